"""Options that several verbs of retrieval share, each said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .defaults import MAX_SEED, SNR

MODEL_NAMES = "nice, atm, mb2c, ubp, ats, brain-hive, hyfi or neurobridge"
TRAINING_HELP = (
    "Folder of training images: concept folders as in THINGS-EEG2, or training.jsonl; training_edits.jsonl may list edits of them "
    "(image, edit_of) as hard negatives."
)

ReleaseDir = Annotated[str | None, typer.Option(help="Folder of the release to score on; by default the one that is configured.")]
Prepared = Annotated[Path | None, typer.Option(help="Folder that `decodehub things prepare` wrote.")]
Seed = Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Of start weights, order, dropout and noise.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Of every model; by default those of the paper.")]
BatchSize = Annotated[int | None, typer.Option(min=2, help="Of every model; by default that of the paper.")]
LearningRate = Annotated[float | None, typer.Option(help="Learning rate of every model; by default that of the paper.")]
HardNegatives = Annotated[
    int,
    typer.Option(min=0, help="Edits of each image of a batch that join the softmax; the targets then have negatives/PART and negative_of."),
]
Snr = Annotated[float, typer.Option(min=0, help="With --simulate: signal-to-noise ratio of one trial.")]
Force = Annotated[bool, typer.Option("--force", help="Also write over results of another kind or other settings, or beside other files.")]

__all__ = [
    "MODEL_NAMES",
    "SNR",
    "TRAINING_HELP",
    "BatchSize",
    "Epochs",
    "Force",
    "HardNegatives",
    "LearningRate",
    "Prepared",
    "ReleaseDir",
    "Seed",
    "Snr",
]


def check_source(simulate: bool, eeg: Path | None, targets: Path | None) -> None:
    """Raise for EEG and image features that do not go together or are not there, before any work."""
    if simulate == (eeg is not None or targets is not None) or (eeg is None) != (targets is None):
        raise ValueError("give --eeg and --targets together, or --simulate without them")
    for option, path in (("--eeg", eeg), ("--targets", targets)):
        if path is not None and not path.exists():
            raise FileNotFoundError(f"{option} {path} does not exist")
