"""Train one EEG-to-image retrieval model on one person's EEG and score it on EEG-EditBench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from decodehub.runs.retrieval.defaults import CROPS, SNR
from decodehub.runs.retrieval.options import (
    MODEL_NAMES,
    BatchSize,
    Epochs,
    Force,
    HardNegatives,
    LearningRate,
    Prepared,
    ReleaseDir,
    Seed,
    Snr,
    check_source,
)

app = typer.Typer(add_completion=False)

Targets = Annotated[
    Path | None,
    typer.Option(
        help="Image features as safetensors: train/PART, sources/PART, edits/PART and perhaps nulls/PART. Rows of train are images "
        "1 to 16,540, the others are in the order of `decodehub editbench export`; `decodehub editbench targets` makes it."
    ),
]
Selection = Annotated[str, typer.Option(help="Weights to keep: last, or validation (lowest loss on held-out training concepts).")]


@app.command()
def main(
    model: Annotated[str, typer.Option(help=f"{MODEL_NAMES}.")] = "nice",
    subject: Annotated[int, typer.Option(min=1, help="Number of the subject.")] = 1,
    seed: Seed = 0,
    eeg: Prepared = None,
    targets: Targets = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Simulated EEG and the sample release in place of --eeg and --targets.")
    ] = False,
    data_dir: ReleaseDir = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; by default runs/MODEL/sub-XX_seed-Y.")] = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    lr: LearningRate = None,
    selection: Selection = "last",
    hard_negatives: HardNegatives = 0,
    resume: Annotated[bool, typer.Option(help="Go on from a checkpoint in the folder.")] = True,
    snr: Snr = SNR,
    crops: Annotated[int, typer.Option(min=50, help="With --simulate: training stimuli.")] = CROPS,
    force: Force = False,
) -> None:
    """Train MODEL on one person's EEG, then score it on EEG-EditBench: weights, run.json, predictions, record and report.

    Training never sees test data. A run that was stopped goes on where it was.

    Example: decodehub train-retrieval --model nice --simulate --epochs 20
    Example: decodehub train-retrieval --model ubp --subject 1 --seed 0 --eeg prepared --targets ubp.safetensors --data-dir release
    """
    from functools import partial

    from decodehub.core.jobs import exclusive
    from decodehub.core.words import suggest
    from decodehub.hub_models.eeg_retrieval import RETRIEVAL_MODELS
    from decodehub.reports.editbench import show_record
    from decodehub.runs.retrieval.folders import RUN_FILES, check_folder, refuse_other_run
    from decodehub.runs.retrieval.inputs import recorded_inputs, recorded_test_eeg, simulated_inputs
    from decodehub.runs.retrieval.settings import settings_for, settings_record
    from decodehub.runs.retrieval.single import train_and_score
    from decodehub.runs.retrieval.training_images import crops as crops_of

    if model not in RETRIEVAL_MODELS:
        raise ValueError(f"--model {model!r} is not known: expected one of {', '.join(RETRIEVAL_MODELS)}{suggest(model, RETRIEVAL_MODELS)}")
    check_source(simulate, eeg, targets)
    changes = {"epochs": epochs, "batch_size": batch_size, "lr": lr, "selection": selection, "hard_negatives": hard_negatives}
    settings = settings_for(model, **{name: value for name, value in changes.items() if value is not None})
    out = out or Path(f"runs/{model}/sub-{subject:02d}_seed-{seed}")
    check_folder(out, RUN_FILES, "a run", force)
    if resume and not force:
        refuse_other_run(out, {"model_type": model, "subject": subject, "seed": seed, "settings": settings_record(settings)})
    if simulate:
        inputs, simulated_eeg = simulated_inputs(model, subject, snr, crops_of(crops), seed=seed)
        data_dir, test_eeg = "sample", lambda: simulated_eeg
    else:
        assert eeg is not None and targets is not None
        inputs = recorded_inputs(model, subject, eeg, targets, data_dir)
        test_eeg = partial(recorded_test_eeg, eeg, subject, inputs)
    with exclusive(out):
        record, scored = train_and_score(model, inputs, test_eeg, subject, settings, seed, out, resume=resume and not force)
        show_record(out, record, scored, data_dir)


if __name__ == "__main__":
    app()
