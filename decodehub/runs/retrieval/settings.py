"""How each EEG-to-image retrieval model is trained: table S7 of EEG-EditBench and, where it is silent, the released codes."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn

from decodehub.core.files import read_data
from decodehub.core.words import suggest

MAX_NUMBER, MOST_NUMBERS = 2**64 - 1, 10_000
BASELINES = ("ridge", "random-projection")  # take NICE's channels and image features
STEP_EPOCHS, STEP_FACTOR = 50, 0.1  # StepLR of ATS's released code


@dataclass(frozen=True)
class TrainingSettings:
    """How a model is trained.

    Attributes:
        epochs: passes over the training items, at most.
        batch_size: pairs a step; all items, where there are fewer.
        optimizer: "adam" or "adamw".
        lr: learning rate, of all of training or at its start.
        weight_decay: of the optimiser.
        betas: of the optimiser.
        schedule: "none", "cosine" (to 0 at the last step, no warm-up) or "step" (a tenth every 50 epochs).
        grad_clip: largest norm of all gradients together; 0 does not clip.
        precision: "float32", or "bfloat16" on devices that are good at it (CUDA from Ampere on) and float32 elsewhere.
        selection: which weights are kept: "last", or "validation" for those with the lowest loss on held-out training concepts.
        validation_concepts: share of the training concepts held out for "validation"; an image is never held out without its concept.
        shuffle: a new order each epoch.
        drop_last: leave out what does not fill a batch.
        patience: stop after so many epochs in which the loss (validation loss if there is one, else training loss) fell by no more
            than `min_delta`; 0 never stops early.
        min_delta: see `patience`.
        decay_all: False leaves biases and normalisation layers out of the weight decay, as transformers' Trainer does.
        hard_negatives: edits of each image of a batch that join the softmax from EEG to images, at most; 0 for none, as in the paper.
    """

    epochs: int
    batch_size: int
    optimizer: str
    lr: float
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    schedule: str = "none"
    grad_clip: float = 0.0
    precision: str = "float32"
    selection: str = "last"
    validation_concepts: float = 0.05
    shuffle: bool = True
    drop_last: bool = False
    patience: int = 0
    min_delta: float = 0.0
    decay_all: bool = True
    hard_negatives: int = 0

    def __post_init__(self) -> None:
        choices = {
            "optimizer": ("adam", "adamw"),
            "schedule": ("none", "cosine", "step"),
            "precision": ("float32", "bfloat16"),
            "selection": ("last", "validation"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if self.epochs < 1 or self.batch_size < 2:
            raise ValueError(f"epochs must be at least 1 and batch_size at least 2, got {self.epochs} and {self.batch_size}")
        if not 0 < self.lr < math.inf or min(self.weight_decay, self.grad_clip, self.patience, self.min_delta) < 0:
            raise ValueError("lr must be positive, and weight_decay, grad_clip, patience and min_delta not negative")
        if self.hard_negatives < 0:
            raise ValueError(f"hard_negatives must not be negative, got {self.hard_negatives}")
        if not 0 < self.validation_concepts < 1:
            raise ValueError(f"validation_concepts must lie between 0 and 1, got {self.validation_concepts}")


# Epochs, batch, optimiser, rate and schedule: table S7 of EEG-EditBench. What it leaves open is from the released codes.
_TABLE_S7 = {
    "nice": TrainingSettings(200, 1000, "adam", 2e-4, betas=(0.5, 0.999)),
    "mb2c": TrainingSettings(1000, 2048, "adam", 2e-4, betas=(0.5, 0.999), drop_last=True, patience=100),
    "atm": TrainingSettings(80, 1024, "adamw", 3e-4, weight_decay=0.01),
    "ubp": TrainingSettings(50, 1024, "adamw", 1e-4, weight_decay=1e-4, patience=5, min_delta=1e-3),
    "ats": TrainingSettings(150, 1024, "adamw", 1e-4, weight_decay=1e-4, schedule="step", patience=5),
    "brain-hive": TrainingSettings(
        25,
        1024,
        "adamw",
        5e-4,
        weight_decay=0.05,
        betas=(0.9, 0.995),
        schedule="cosine",
        grad_clip=1.0,
        precision="bfloat16",
        decay_all=False,
    ),
    "hyfi": TrainingSettings(50, 1024, "adamw", 3e-4, weight_decay=1e-4, patience=5),
    "neurobridge": TrainingSettings(50, 1024, "adamw", 1e-4, weight_decay=1e-4, drop_last=True),
}


def settings_for(model_type: str, **changes: Any) -> TrainingSettings:
    """Settings of a method as EEG-EditBench trained it (table S7), with `changes`.

    Raises:
        ValueError: an unknown model type, or a value out of range.
    """
    if model_type not in _TABLE_S7:
        raise ValueError(f"unknown model type {model_type!r}: expected one of {', '.join(_TABLE_S7)}{suggest(model_type, _TABLE_S7)}")
    return dataclasses.replace(_TABLE_S7[model_type], **changes)


def settings_record(settings: TrainingSettings) -> dict[str, Any]:
    """The settings as JSON has them; without hard negatives, as they were before there were any, so that runs keep their hash."""
    record = dataclasses.asdict(settings) | {"betas": list(settings.betas)}
    return record if settings.hard_negatives else {name: value for name, value in record.items() if name != "hard_negatives"}


def make_optimizer(model: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
    """The optimiser of all parameters that are trained."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    norms = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, (nn.LayerNorm, nn.BatchNorm2d))}
    plain = [] if settings.decay_all else [name for name in trained if name in norms or name.endswith("bias")]
    groups: list[dict[str, Any]] = [
        {"params": [p for name, p in trained.items() if name not in plain], "weight_decay": settings.weight_decay}
    ]
    if plain:
        groups.append({"params": [trained[name] for name in plain], "weight_decay": 0.0})
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, lr=settings.lr, betas=settings.betas)


def rate_of(settings: TrainingSettings, epoch: int, step: int, steps: int) -> float:
    """Learning rate of a step; epoch and step count from 0."""
    if settings.schedule == "cosine":
        return settings.lr * 0.5 * (1 + math.cos(math.pi * (epoch * steps + step) / (settings.epochs * steps)))
    return settings.lr * STEP_FACTOR ** (epoch // STEP_EPOCHS) if settings.schedule == "step" else settings.lr


def numbers(text: str, option: str, least: int = 0) -> tuple[int, ...]:
    """``"1-3,7"`` as (1, 2, 3, 7).

    Raises:
        ValueError: another form, a number below `least` or of more than 64 bits, or very many.
    """
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not re.fullmatch("[0-9]{1,20}", first) or (dash and not re.fullmatch("[0-9]{1,20}", last)) or (dash and int(last) < int(first)):
            raise ValueError(f"{option} {text!r}: expected numbers of at most 64 bits, such as 1-10 or 1,3,5")
        low, high = int(first), int(last or first)
        if low < least or high > MAX_NUMBER:
            raise ValueError(f"{option} {text!r}: numbers go from {least} to {MAX_NUMBER}")
        if len(found) + high - low >= MOST_NUMBERS:
            raise ValueError(f"{option} {text!r}: more than {MOST_NUMBERS:,} numbers")
        found += range(low, high + 1)
    return tuple(found)


def settings_of_models(models: tuple[str, ...], changes: dict[str, Any], file: Path | None) -> dict[str, TrainingSettings]:
    """Settings of every model that is trained: the paper's, with `changes` for all, and what a YAML file says by model.

    Raises:
        FileNotFoundError: no such file. ValueError: a file of another form (its line is named), a model that is not among `models`, or a
            setting that does not exist.
    """
    own = {} if file is None else _read_settings(file)
    if unknown := sorted(set(own) - set(models)):
        raise ValueError(
            f"--settings {file}: {unknown[0]!r} is not among the models of this study ({', '.join(models)}){suggest(unknown[0], models)}"
        )
    names = [field.name for field in dataclasses.fields(TrainingSettings)]
    result = {}
    for model in models:
        if model in BASELINES:
            continue
        mine = own.get(model, {})
        if unknown := sorted(set(mine) - set(names)):
            raise ValueError(f"--settings {file}: {model}: there is no setting {unknown[0]!r}{suggest(unknown[0], names)}")
        try:
            result[model] = settings_for(model, **{**changes, **mine})
        except (TypeError, ValueError) as error:
            raise ValueError(f"--settings {file}: {model}: {error}" if mine else str(error)) from None
    return result


def _read_settings(file: Path) -> dict[str, dict[str, Any]]:
    try:
        found = yaml.safe_load(read_data(file).decode("utf-8")) or {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise ValueError(f"--settings {file}{where}: {getattr(error, 'problem', None) or 'not YAML'}") from None
    except RecursionError:
        raise ValueError(f"--settings {file}: nested too deeply: expected settings by model, such as 'nice: {{epochs: 50}}'") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"--settings {file} is not UTF-8 text ({error})") from None
    if not isinstance(found, dict) or not all(
        isinstance(k, str) and isinstance(v, dict) and all(isinstance(n, str) for n in v) for k, v in found.items()
    ):
        raise ValueError(f"--settings {file}: expected settings by model, such as 'nice: {{epochs: 50}}'")
    return found
