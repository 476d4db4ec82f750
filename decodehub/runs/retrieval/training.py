"""Training of the EEG-to-image retrieval models: what a run takes, what it writes.

A run sees training data only; there is no way to hand it test data. What it writes:

checkpoint.safetensors   while it trains: weights, optimisers, blur labels, the best weights so far; as metadata, how far the run is
model/                   the selected weights with their code, for ``from_pretrained``
run.json                 what was trained, how, and the losses; written last

:mod:`.loop` has the steps.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from decodehub.core.files import canonical_json, sha256_json, write_bytes, write_json
from decodehub.hub_models.eeg_retrieval import EEGRetrievalModel

from .loop import BLURRED, Loop, make_data
from .negatives import HardNegatives, make_negatives
from .settings import TrainingSettings, settings_for, settings_record

CHECKPOINT, MODEL, RUN = "checkpoint.safetensors", "model", "run.json"


@dataclass
class TrainedRun:
    """A finished run.

    Attributes:
        model: with the selected weights, in evaluation mode.
        losses: mean training loss of each epoch, in nats plus what else the method minimises.
        validation_losses: contrastive loss on the held-out concepts after each epoch; empty without a validation set.
        epoch: number, from 1, of the epoch whose weights were selected.
        train_index: rows that were trained on. validation_index: rows that were held out.
        metadata: content of ``run.json``.
    """

    model: EEGRetrievalModel
    losses: list[float]
    validation_losses: list[float]
    epoch: int
    train_index: np.ndarray
    validation_index: np.ndarray
    metadata: dict[str, Any] = field(default_factory=dict)


def split_by_concept(concepts: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on and rows to validate on, without a concept in common; at least one concept on either side.

    Raises:
        ValueError: there are fewer than two concepts.
    """
    names = np.unique(concepts)
    if len(names) < 2:
        raise ValueError(f"a validation split by concept needs at least 2 concepts, found {len(names)}")
    n = min(max(1, round(share * len(names))), len(names) - 1)
    held_out = np.isin(concepts, np.random.default_rng([seed, 1]).permutation(names)[:n])
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def train(
    model: EEGRetrievalModel,
    eeg: np.ndarray,
    targets: Mapping[str, np.ndarray],
    concepts: np.ndarray,
    subject: int,
    settings: TrainingSettings,
    seed: int,
    out: Path,
    accelerator: Any | None = None,
    progress: bool = True,
    *,
    resume: bool = True,
    checkpoint_every: int = 1,
    on_epoch: Callable[[int, float], None] | None = None,
    negatives: Mapping[str, np.ndarray] | None = None,
    negative_of: np.ndarray | None = None,
    image_of: np.ndarray | None = None,
) -> TrainedRun:
    """Train one model on the EEG of one person.

    Args:
        model: freshly made (its start weights are part of the run), or of any weights to go on from.
        eeg: (n, C, T) float32 training epochs, whitened; single trials for ATM, means over repetitions for the others.
        targets: by name of ``config.image_inputs``: (n, d) float features of the image of each epoch; for UBP and ATS (n, 3, d), low,
            medium and high blur; for ATM also "text" (n, d) unless its weight is 0.
        concepts: (n,) int, the concept of each epoch; any numbers.
        subject: number of the person, from 1.
        settings: see :func:`settings_for`.
        seed: 0 or more; decides order, dropout, noise and the validation split, not the start weights of `model`.
        out: folder of the run.
        accelerator: an ``accelerate.Accelerator`` with one process, for its device; None trains where the model is.
        progress: show a bar.
        resume: go on from the checkpoint in `out`, if there is one; False starts anew.
        checkpoint_every: epochs from one checkpoint to the next; the last epoch always has one.
        on_epoch: called with the number, from 1, and the training loss of each epoch, after its checkpoint.
        negatives: for ``settings.hard_negatives``: by name of ``config.image_inputs``, (m, d) float features of edited training images; for
            UBP and ATS also (m, 3, d), so that an edit is as blurred as its image.
        negative_of: (m,) int, the training image that each edit was made from, as a value of `image_of`. Images that are not trained
            on have no number, so edits of test images cannot be given.
        image_of: (n,) int, the training image of each epoch (single trials share one); None: epoch i is of image i.

    Raises:
        ValueError: shapes that do not fit, an edit of no training image, a checkpoint of another run, several processes, a loss that is
            not finite.
    """
    if accelerator is not None and accelerator.num_processes > 1:
        raise ValueError(f"one run trains in one process, found {accelerator.num_processes}: give each process runs of its own")
    check_data(model, eeg, targets, concepts, subject, seed)
    hard = check_negatives(model, negatives, negative_of, image_of, len(eeg), settings)
    data_hash = hash_data(eeg, concepts, targets, hard)
    device = model.device if accelerator is None else accelerator.device
    out, started = Path(out), time.perf_counter()
    data = make_data(eeg, targets, concepts, subject, hard, settings.hard_negatives, device)
    run = Run(model, *rows_of(concepts, settings, seed), settings, seed, subject, data_hash, out)
    loop = Loop(model, data, run.chosen, run.held_out, settings, seed, accelerator)
    run.resume(loop, resume)
    bar = tqdm(total=settings.epochs, initial=loop.epoch, desc=run.title, disable=not progress)
    with bar:
        while not loop.finished:
            loss = loop.one_epoch()
            run.checkpoint(loop, checkpoint_every)
            bar.set_postfix(loss=f"{loss:.3f}")
            bar.update()
            if on_epoch is not None:
                on_epoch(loop.epoch, loss)
    return run.finish(loop, time.perf_counter() - started)


class Run:
    """Folder and description of a run."""

    def __init__(
        self,
        model: EEGRetrievalModel,
        chosen: np.ndarray,
        held_out: np.ndarray,
        settings: TrainingSettings,
        seed: int,
        subject: int,
        data_hash: str,
        out: Path,
    ) -> None:
        self.chosen, self.held_out, self.settings, self.out = chosen, held_out, settings, out
        self.title = f"{model.config.model_type} sub-{subject:02d} seed-{seed}"
        self.about: dict[str, Any] = {
            "model_type": model.config.model_type,
            "subject": subject,
            "seed": seed,
            "settings": settings_record(settings),
            "config": config_of(model),
            "data": data_hash,
        }
        self.about["settings_hash"] = sha256_json(self.about)

    def resume(self, loop: Loop, wanted: bool) -> None:
        """Go on from the checkpoint, if there is one."""
        if wanted and (self.out / CHECKPOINT).is_file():
            loop.load(self.out / CHECKPOINT, self.about["settings_hash"])

    def checkpoint(self, loop: Loop, every: int) -> None:
        """Write a checkpoint where one is due; the last epoch always has one."""
        if loop.epoch % every == 0 or loop.finished:
            write_bytes(self.out / CHECKPOINT, loop.state(self.about["settings_hash"]))

    def finish(self, loop: Loop, seconds: float) -> TrainedRun:
        """Write the selected weights, then ``run.json``."""
        epoch = loop.select()
        loop.core.eval().save_pretrained(self.out / MODEL)
        metadata = self.about | {
            "epochs": loop.epoch,
            "selected_epoch": epoch,
            "selection": self.settings.selection,
            "losses": loop.losses,
            "validation_losses": loop.validation_losses,
            "n_train": len(self.chosen),
            "n_validation": len(self.held_out),
            "device": loop.device.type,
            "precision": "bfloat16" if loop.bfloat16 else "float32",
            "seconds": round(seconds, 3),
        }
        write_json(self.out / RUN, metadata)
        return TrainedRun(loop.core, loop.losses, loop.validation_losses, epoch, self.chosen, self.held_out, metadata)


def rows_of(concepts: np.ndarray, settings: TrainingSettings, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on and rows held out for the selection; the latter may be none."""
    if settings.selection == "validation":
        return split_by_concept(concepts, settings.validation_concepts, seed)
    return np.arange(len(concepts)), np.arange(0)


def config_of(model: EEGRetrievalModel) -> dict[str, Any]:
    """The configuration as JSON gives it back, without what saving a model adds."""
    added = ("transformers_version", "_name_or_path", "auto_map", "architectures", "dtype")
    return json.loads(canonical_json({key: value for key, value in model.config.to_dict().items() if key not in added}))


def hash_data(eeg: np.ndarray, concepts: np.ndarray, targets: Mapping[str, np.ndarray], negatives: HardNegatives | None) -> str:
    """Hash of all that is trained on."""
    arrays = {"eeg": eeg, "concepts": concepts, **targets, **({} if negatives is None else negatives.arrays())}
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(canonical_json([name, list(array.shape), str(array.dtype)]).encode())
        digest.update(np.ascontiguousarray(array).data)
    return "sha256:" + digest.hexdigest()


def check_negatives(
    model: EEGRetrievalModel,
    negatives: Mapping[str, np.ndarray] | None,
    negative_of: np.ndarray | None,
    image_of: np.ndarray | None,
    n: int,
    settings: TrainingSettings,
) -> HardNegatives | None:
    """Hard negatives for `n` epochs, or None where none are wanted. Raises ValueError for what does not fit, in words."""
    config = model.config
    blurs = config.model_type in BLURRED
    return make_negatives(negatives, negative_of, image_of, n, config.image_inputs, blurs, settings.hard_negatives)


def check_data(
    model: EEGRetrievalModel, eeg: np.ndarray, targets: Mapping[str, np.ndarray], concepts: np.ndarray, subject: int, seed: int
) -> None:
    """Raise ValueError for what does not fit together, in words."""
    config, n = model.config, len(eeg)
    if eeg.ndim != 3 or eeg.shape[1:] != (config.n_channels, config.n_times) or eeg.dtype != np.float32:
        raise ValueError(f"eeg has shape {eeg.shape}, {eeg.dtype}; expected (n, {config.n_channels}, {config.n_times}) float32")
    if n < 2 or concepts.shape != (n,) or concepts.dtype.kind not in "iu":
        raise ValueError(f"concepts has shape {concepts.shape}, {concepts.dtype}; expected ({n},) whole numbers, and at least 2 epochs")
    if subject < 1 or seed < 0:
        raise ValueError(f"subject must be 1 or more and seed 0 or more, got {subject} and {seed}")
    if not np.isfinite(eeg).all():
        raise ValueError(f"eeg has NaN or infinite values, the first in epoch {int(np.argmin(np.isfinite(eeg).all(axis=(1, 2))))}")
    wanted: dict[str, tuple[int, ...]] = {
        name: (n, 3, dim) if config.model_type in BLURRED else (n, dim) for name, dim in config.image_inputs.items()
    }
    if config.model_type == "atm" and config.text_weight > 0:
        wanted["text"] = (n, config.text_dim)
    if set(targets) != set(wanted):
        raise ValueError(f"targets has the parts {sorted(targets)}, {config.model_type} needs {sorted(wanted)}")
    for name, shape in wanted.items():
        if targets[name].shape != shape:
            levels = ": low, medium and high blur" if len(shape) == 3 else ""
            raise ValueError(f"targets[{name!r}] has shape {targets[name].shape}, expected {shape}{levels}")
    if config.model_type == "mb2c" and (found := len(np.unique(concepts))) > config.n_classes:
        raise ValueError(f"there are {found} concepts and n_classes is {config.n_classes}: make the model with n_classes={found}")


__all__ = ["TrainedRun", "TrainingSettings", "settings_for", "split_by_concept", "train"]
