"""Training the members of a BCS head together, equal to training each alone; thresholds of the ordinal output.

Everything random in an epoch (order, dropout) comes from a member's seed and the epoch's number. So a member does not depend on which
others are trained beside it, and a run that goes on from a saved state needs no state of a generator.

An accelerator takes one step of all members with one batched product a layer. A CPU gains nothing from that and loses its caches to the five
times larger temporaries, so there the same layers step through the stacked weights member by member, and those that have stopped are left out.

Source: Tiwari et al. 2026, section 5.3, appendix C.3 and table 13; where that is silent, the released code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .members import Dropout
from .modeling_bcs import ROWS, BCSHead

MAX_ON_DEVICE = 8 * 2**30  # bytes of features that are copied to a GPU as a whole
VALIDATION_LOSSES = ("paper", "released_code")


@dataclass(frozen=True)
class TrainingSettings:
    """How the members are trained; the defaults are those of table 13.

    Attributes:
        lr, weight_decay: of AdamW, on all parameters.
        batch_size: pairs a step and member; the last, smaller batch of an epoch is kept.
        epochs: at most. patience: epochs without a validation loss lower by more than 1e-6 after which a member stops.
        lr_floor: the cosine, one step an epoch, ends at this share of `lr`; 1 keeps the rate constant.
        max_grad_norm: the gradient of each member is scaled to at most this norm; None for no limit.
        ce_weight: of the cross-entropy of the ordinal_prototype head (without effect on the others, which have no logits).
        validation_loss: ``"paper"``: Eq. 17 over the whole validation set; ``"released_code"``: the plain mean of the losses of batches of 512,
            which gives a small last batch the weight of a full one.
    """

    lr: float = 5e-4
    weight_decay: float = 5e-4
    batch_size: int = 512
    epochs: int = 120
    patience: int = 16
    lr_floor: float = 0.05
    max_grad_norm: float | None = 1.0
    ce_weight: float = 0.35
    validation_loss: str = "paper"

    def __post_init__(self) -> None:
        if self.validation_loss not in VALIDATION_LOSSES:
            raise ValueError(f"validation_loss is {self.validation_loss!r}, expected one of {', '.join(VALIDATION_LOSSES)}")
        if min(self.batch_size, self.epochs, self.patience) < 1 or self.lr <= 0:
            raise ValueError(f"batch_size, epochs and patience must be at least 1 and lr positive, got {self}")

    @classmethod
    def baseline(cls, **changes: Any) -> TrainingSettings:
        """Settings of the single-encoder baseline of table 6, as in the released code."""
        return cls(**({"lr": 1e-3, "weight_decay": 1e-4, "epochs": 80, "patience": 12, "lr_floor": 1.0, "max_grad_norm": None} | changes))

    def rate(self, epoch: int) -> float:
        """Learning rate of an epoch, counted from 0."""
        floor = self.lr * self.lr_floor
        return floor + (self.lr - floor) * (1 + math.cos(math.pi * epoch / self.epochs)) / 2


class PairData(NamedTuple):
    """Annotated pairs.

    Attributes:
        features: (n, F) float32, may be memory-mapped. targets: (n, 12) in [0, 1], NaN where unknown. weights: (n, 12), 0 where unknown.
        train, validation: rows to train on and to stop by.
    """

    features: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    train: np.ndarray
    validation: np.ndarray


class Part(NamedTuple):
    """Members that take a step together: the whole ensemble, or one member.

    Attributes:
        members: their places. parameters: their stacked weights by name, (m, ...), leaves that share memory with the model's.
    """

    members: slice
    parameters: dict[str, Tensor]
    optimizer: torch.optim.AdamW


class EnsembleTrainer:
    """One training run of all members of a head, epoch by epoch; with a state that can be saved and loaded.

    Attributes:
        epoch: epochs done. train_loss, validation_loss: one row of M numbers an epoch. best_epoch: (M,) epoch of the best weights, from 1.
    """

    def __init__(self, model: BCSHead, data: PairData, settings: TrainingSettings, *, together: bool | None = None) -> None:
        """Start a run on the model's device.

        Args:
            model: to be trained in place. data, settings: of the run.
            together: one batched step of all members (True) or a step of each in turn (False); by default what suits the device.

        Raises:
            ValueError: shapes that do not fit the model, targets outside [0, 1], negative weights, NaN features, or an empty split.
        """
        _check(model, data)
        self.model, self.settings, self.device = model, settings, model.device
        self.seeds = list(model.config.seeds)
        members = len(self.seeds)
        self.features = data.features
        small = self.device.type != "cpu" and data.features.nbytes <= MAX_ON_DEVICE
        self.on_device = torch.from_numpy(np.array(data.features)).to(self.device) if small else None
        known = ~np.isnan(data.targets) & (data.weights > 0)
        self.targets = torch.from_numpy(np.where(known, data.targets, 0).astype(np.float32))
        self.weights = torch.from_numpy(np.where(known, data.weights, 0).astype(np.float32))
        self.train_rows, self.validation_rows = torch.from_numpy(data.train), torch.from_numpy(data.validation)
        size = members if (self.device.type != "cpu" if together is None else together) else 1
        self.parts = [self._part(slice(i, i + size)) for i in range(0, members, size)]
        self.dropouts = [layer for layer in model.network.modules() if isinstance(layer, Dropout)]
        self.epoch = 0
        self.train_loss: list[list[float]] = []
        self.validation_loss: list[list[float]] = []
        self.best = {name: value.detach().clone() for name, value in model.named_parameters()}
        self.best_loss = torch.full((members,), math.inf, dtype=torch.float64)
        self.best_epoch = torch.zeros(members, dtype=torch.int64)
        self.stopped = torch.zeros(members, dtype=torch.bool)

    @property
    def finished(self) -> bool:
        """Whether every member has stopped or the last epoch is done."""
        return bool(self.stopped.all()) or self.epoch >= self.settings.epochs

    def run_epoch(self) -> tuple[list[float], list[float]]:
        """Train one epoch and validate; gives the losses of each member; the training loss of one that has stopped is NaN.

        Raises:
            ValueError: a loss of a member that is still running is not finite.
        """
        train_loss = torch.full((len(self.seeds),), math.nan, dtype=torch.float64)
        for part in self.parts:
            if not self.stopped[part.members].all():
                train_loss[part.members] = self._train(part)
        validation_loss = self._validate()
        running = ~self.stopped
        train_loss[self.stopped] = math.nan
        if not torch.isfinite(validation_loss[running]).all() or not torch.isfinite(train_loss[running]).all():
            raise ValueError(f"the loss is not finite in epoch {self.epoch + 1}: lower the learning rate, found lr={self.settings.lr}")
        self.epoch += 1
        better = running & (validation_loss < self.best_loss - 1e-6)
        for name, value in self.model.named_parameters():
            for m in better.nonzero()[:, 0].tolist():
                self.best[name][m].copy_(value.detach()[m])
        self.best_loss = torch.where(better, validation_loss, self.best_loss)
        self.best_epoch = torch.where(better, self.epoch, self.best_epoch)
        self.stopped |= self.epoch - self.best_epoch >= self.settings.patience
        self.train_loss.append(train_loss.tolist())
        self.validation_loss.append(validation_loss.tolist())
        return self.train_loss[-1], self.validation_loss[-1]

    def select(self) -> BCSHead:
        """Put every member's best weights into the model, in evaluation mode."""
        with torch.no_grad():
            for name, value in self.model.named_parameters():
                value.copy_(self.best[name])
        return self.model.eval()

    # -------------------------------------------------------------------------------------------------------------------- one epoch

    def _part(self, members: slice) -> Part:
        parameters = {name: value.detach()[members].requires_grad_() for name, value in self.model.network.named_parameters()}
        settings = self.settings
        return Part(members, parameters, torch.optim.AdamW(parameters.values(), lr=settings.lr, weight_decay=settings.weight_decay))

    def _train(self, part: Part) -> Tensor:
        """One epoch of the members of a part; gives their losses (m,)."""
        self.model.train()
        for group in part.optimizer.param_groups:
            group["lr"] = self.settings.rate(self.epoch)
        n, size, seeds = len(self.train_rows), self.settings.batch_size, self.seeds[part.members]
        orders = torch.stack([self.train_rows[torch.randperm(n, generator=self._generator(seed, "cpu"))] for seed in seeds])
        generators = [self._generator(seed, self.device) for seed in seeds]
        total = torch.zeros(len(seeds), dtype=torch.float64)
        for start in range(0, n, size):
            rows = orders[:, start : start + size]
            masks = iter([self._mask(layer, rows.shape[1], generators) for layer in self.dropouts])
            scores, logits = torch.func.functional_call(self.model.network, part.parameters, (self._features(rows), masks))
            errors, weights = self._errors(scores, logits, rows)
            losses = errors / weights
            part.optimizer.zero_grad()
            losses.sum().backward()
            if self.settings.max_grad_norm is not None:
                clip_by_member(list(part.parameters.values()), self.settings.max_grad_norm)
            part.optimizer.step()
            total += losses.detach().double().cpu() * rows.shape[1] / n
        return total

    @torch.no_grad()
    def _validate(self) -> Tensor:
        self.model.eval()
        sums, means = [], []
        for start in range(0, len(self.validation_rows), ROWS):
            rows = self.validation_rows[start : start + ROWS]
            errors, weights = self._errors(*self.model.member_scores(self._features(rows)), rows)
            sums.append(torch.stack([errors, weights.expand_as(errors)]).double().cpu())
            means.append((errors / weights).double().cpu())
        if self.settings.validation_loss == "released_code":
            return torch.stack(means).mean(0)
        errors, weights = torch.stack(sums).sum(0)
        return errors / weights

    def _errors(self, scores: Tensor, logits: Tensor | None, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Numerator and denominator of Eq. 17 for each member; with logits, the numerator has the weighted cross-entropy too."""
        targets, weights = self.targets[rows].to(self.device), self.weights[rows].to(self.device)
        errors = (scores - targets).square()
        if logits is not None and self.settings.ce_weight:
            # round() takes halves to even, as the released code: .25 is "no", .75 is "yes".
            classes = (2 * targets).round().long().expand(logits.shape[:-1])
            entropy = nn.functional.cross_entropy(logits.flatten(0, -2), classes.flatten(), reduction="none")
            errors = errors + self.settings.ce_weight * entropy.view_as(errors)
        return (weights * errors).sum((-2, -1)), weights.sum((-2, -1))

    def _features(self, rows: Tensor) -> Tensor:
        if self.on_device is not None:
            return self.on_device[rows.to(self.device)]
        return torch.from_numpy(np.asarray(self.features[rows.numpy()], dtype=np.float32)).to(self.device)

    def _generator(self, seed: int, device: torch.device | str) -> torch.Generator:
        mixed = np.random.SeedSequence([seed, self.epoch]).generate_state(1, np.uint64)[0]
        return torch.Generator(device).manual_seed(int(mixed >> np.uint64(1)))

    def _mask(self, layer: Dropout, n: int, generators: list[torch.Generator]) -> Tensor:
        kept = torch.stack([torch.rand(n, layer.dim, generator=g, device=self.device) >= layer.p for g in generators])
        return kept / (1 - layer.p)

    # ------------------------------------------------------------------------------------------------------------------------ state

    def state(self) -> dict[str, Tensor]:
        """All that a later process needs to go on, as tensors by name."""
        tensors = {f"weights/{name}": value.detach() for name, value in self.model.named_parameters()}
        tensors |= {f"best/{name}": value for name, value in self.best.items()}
        for name in self.parts[0].parameters if self.epoch else ():  # before the first step the optimizer has no state
            kept = [part.optimizer.state[part.parameters[name]] for part in self.parts]
            # Members that run have taken equally many steps; of one that has stopped nothing is needed.
            tensors[f"optimizer/step/network.{name}"] = torch.stack([torch.as_tensor(state["step"]) for state in kept]).max()
            tensors |= {f"optimizer/{key}/network.{name}": torch.cat([state[key] for state in kept]) for key in ("exp_avg", "exp_avg_sq")}
        progress = {
            "best_loss": self.best_loss,
            "best_epoch": self.best_epoch,
            "stopped": self.stopped,
            "train_loss": torch.tensor(self.train_loss, dtype=torch.float64),
            "validation_loss": torch.tensor(self.validation_loss, dtype=torch.float64),
        }
        return {name: value.cpu().contiguous() for name, value in (tensors | {f"progress/{k}": v for k, v in progress.items()}).items()}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Go on from what :meth:`state` gave.

        Raises:
            ValueError: a tensor is missing or has another shape.
        """
        begun = len(tensors.get("progress/train_loss", ())) > 0
        kinds = ("weights", "best", *(("optimizer/exp_avg", "optimizer/exp_avg_sq") if begun else ()))
        expected = {f"{kind}/{name}": value.shape for name, value in self.model.named_parameters() for kind in kinds}
        for name, shape in expected.items():
            if name not in tensors or tensors[name].shape != shape:
                raise ValueError(
                    f"the saved state does not fit this run: {name} has shape {getattr(tensors.get(name), 'shape', None)}, expected {shape}"
                )
        with torch.no_grad():
            for name, value in self.model.named_parameters():
                value.copy_(tensors[f"weights/{name}"])
                self.best[name].copy_(tensors[f"best/{name}"])
            for part in self.parts if begun else ():
                for name, value in part.parameters.items():
                    kept = {key: tensors[f"optimizer/{key}/network.{name}"] for key in ("step", "exp_avg", "exp_avg_sq")}
                    part.optimizer.state[value] = {
                        key: t.clone() if key == "step" else t[part.members].to(value.device, copy=True) for key, t in kept.items()
                    }
        progress = {key.removeprefix("progress/"): t for key, t in tensors.items() if key.startswith("progress/")}
        self.best_loss, self.best_epoch, self.stopped = (progress[key].clone() for key in ("best_loss", "best_epoch", "stopped"))
        self.train_loss, self.validation_loss = progress["train_loss"].tolist(), progress["validation_loss"].tolist()
        self.epoch = len(self.train_loss)


def clip_by_member(parameters: list[nn.Parameter], max_norm: float) -> Tensor:
    """Scale the gradients of each member to a norm of at most `max_norm`, as ``clip_grad_norm_`` does for one network.

    Args:
        parameters: each (M, ...), with gradients.

    Returns:
        (M,) norms before scaling.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients]).norm(dim=0)
    scale = (max_norm / (norms + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.view(-1, *[1] * (gradient.ndim - 1)))
    return norms


def fit_thresholds(scores: np.ndarray, targets: np.ndarray) -> list[list[float]]:
    """For each question the thresholds that snap scores to 0, .5 and 1 with the lowest mean absolute error (released code's "ordinal").

    Every low of 51 steps in [.05, .55] with every high of 51 steps in [.45, .95] that is more than .05 above it; the first minimum in that
    order is kept.

    Args:
        scores: (n, 12) continuous scores of validation pairs. targets: (n, 12), NaN where unknown.

    Returns:
        12 pairs [low, high]; [.25, .75] for a question without a target.
    """
    lows, highs = np.meshgrid(np.linspace(0.05, 0.55, 51), np.linspace(0.45, 0.95, 51), indexing="ij")
    allowed = highs > lows + 0.05
    lows, highs = lows[allowed], highs[allowed]
    found = []
    for score, target in zip(np.asarray(scores, dtype=np.float64).T, np.asarray(targets, dtype=np.float64).T):
        known = ~np.isnan(target)
        if not known.any():
            found.append([0.25, 0.75])
            continue
        # Errors if snapped to each level, summed over the scores below a threshold: all pairs of thresholds at once.
        order = np.argsort(score[known], kind="stable")
        s, t = score[known][order], target[known][order]
        below = {level: np.concatenate([[0.0], np.cumsum(np.abs(level - t))]) for level in (0.0, 0.5, 1.0)}
        i, j = np.searchsorted(s, lows, side="left"), np.searchsorted(s, highs, side="left")
        errors = below[0.0][i] + (below[0.5][j] - below[0.5][i]) + (below[1.0][-1] - below[1.0][j])
        best = int(np.argmin(np.round(errors, 9)))
        found.append([float(lows[best]), float(highs[best])])
    return found


def _check(model: BCSHead, data: PairData) -> None:
    n, width = len(data.features), len(model.config.questions)
    if data.features.ndim != 2 or data.features.shape[1] != model.config.feature_dim:
        raise ValueError(f"features have shape {data.features.shape}, this head takes (n, {model.config.feature_dim})")
    if data.targets.shape != (n, width) or data.weights.shape != (n, width):
        raise ValueError(f"targets and weights have shapes {data.targets.shape} and {data.weights.shape}, expected both {(n, width)}")
    known = ~np.isnan(data.targets)
    if ((data.targets[known] < 0) | (data.targets[known] > 1)).any() or not (data.weights[known] >= 0).all():
        raise ValueError("targets must be in [0, 1] and weights 0 or more")
    for name, rows in (("training", data.train), ("validation", data.validation)):
        if not len(rows) or not (known & (data.weights > 0))[rows].any():
            raise ValueError(f"the {name} split has no pair with a target: {len(rows)} pairs")
        for start in range(0, len(rows), ROWS):
            if not np.isfinite(data.features[rows[start : start + ROWS]]).all():
                raise ValueError(f"features of the {name} split have NaN or infinite values")
    if len(np.intersect1d(data.train, data.validation)):
        raise ValueError("training and validation rows overlap")


__all__ = ["EnsembleTrainer", "PairData", "TrainingSettings", "clip_by_member", "fit_thresholds"]
