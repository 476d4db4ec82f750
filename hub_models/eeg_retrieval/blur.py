"""Which of three blurs a training image gets: the rule of UBP and ATS, which follows how well its EEG matches it.

No loss is weighted: "uncertainty-aware" means that features of a sharper or a more blurred version of the image are the target.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

BLUR_LABELS = ("low", "medium", "high")
# Kernel sizes (pixels of a 224-pixel image) of low, medium and high blur. The released codes of UBP and ATS mean 45 / 51 / 57 and change
# one settings dict in place, so that the three levels really are 45 / 45 / 51 and the one used at test is 45.
BLUR_KERNELS = {"paper": (45, 51, 57), "released_code": (45, 45, 51)}


class BlurBounds(NamedTuple):
    """Between `lower` and `upper` a sample is as well matched as the batch; both in the unit of the logits."""

    lower: float
    upper: float


def blur_bounds(confidence: Tensor, z: float = 1.96) -> BlurBounds:
    """mean -+ z * SD (n - 1 in the denominator) of the running confidences of a batch (n,); infinite for a single sample."""
    if len(confidence) < 2:
        return BlurBounds(float("-inf"), float("inf"))
    mean, spread = float(confidence.mean()), z * float(confidence.std())
    return BlurBounds(mean - spread, mean + spread)


class BlurSelector:
    """Running confidence of each training image and the blur that follows from it.

    ``confidence <- (1 - rate) * confidence + rate * logit`` with the image's own diagonal logit. A logit above the upper bound of its
    batch means an image that is matched well: "low" blur from the next epoch on; below the lower bound "high"; otherwise "medium".
    Labels take effect with :meth:`end_epoch`, and evaluation always uses "medium". Nothing here is random. State is on the CPU.

    Attributes:
        confidence: (n,) float64, starts at 1.
        labels: (n,) int64 positions in :data:`BLUR_LABELS` that are in force, all "medium" at first.
        pending: (n,) int64 labels that :meth:`end_epoch` puts in force.
    """

    def __init__(self, n_samples: int, levels: str = "paper", rate: float = 0.3, z: float = 1.96) -> None:
        """Start without any experience.

        Args:
            n_samples: number of training images.
            levels: key of :data:`BLUR_KERNELS`.
            rate: weight of the newest logit (.3 in the released code of UBP).
            z: half width of the bounds in standard deviations.

        Raises:
            ValueError: no samples, unknown levels, a rate outside (0, 1] or a negative z.
        """
        if n_samples < 1:
            raise ValueError(f"n_samples must be at least 1, got {n_samples}")
        if levels not in BLUR_KERNELS:
            raise ValueError(f"levels must be one of {sorted(BLUR_KERNELS)}, got {levels!r}")
        if not 0 < rate <= 1 or z < 0:
            raise ValueError(f"rate must lie in (0, 1] and z must not be negative, got {rate} and {z}")
        self.levels, self.rate, self.z = levels, rate, z
        self.confidence = torch.ones(n_samples, dtype=torch.float64)
        self.labels = torch.ones(n_samples, dtype=torch.int64)
        self.pending = self.labels.clone()

    def update(self, index: Tensor, logits: Tensor) -> BlurBounds:
        """Take in one batch.

        Args:
            index: (b,) int64 numbers of the training images in the batch, each at most once.
            logits: (b,) the diagonal of ``logits_per_eeg``.

        Returns:
            The bounds of this batch.

        Raises:
            ValueError: shapes differ, an image is out of range or occurs twice, or a logit is not finite.
        """
        index, logits = index.detach().cpu().long(), logits.detach().cpu().double()
        n = len(self.confidence)
        if index.shape != logits.shape or index.ndim != 1:
            raise ValueError(f"expected as many logits as images, found {tuple(index.shape)} and {tuple(logits.shape)}")
        if len(index) and (int(index.min()) < 0 or int(index.max()) >= n or len(index.unique()) != len(index)):
            raise ValueError(f"index must hold different numbers from 0 to {n - 1}")
        if not torch.isfinite(logits).all():
            raise ValueError("a logit is NaN or infinite: the training has diverged")
        self.confidence[index] = (1 - self.rate) * self.confidence[index] + self.rate * logits
        bounds = blur_bounds(self.confidence[index], self.z)
        self.pending[index] = 1 - (logits > bounds.upper).long() + (logits < bounds.lower).long()
        return bounds

    def end_epoch(self) -> Tensor:
        """Put the labels of this epoch in force and return them, (n,)."""
        self.labels = self.pending.clone()
        return self.labels

    def kernels(self, index: Tensor | None = None) -> Tensor:
        """Kernel sizes in force, in pixels: of all training images, or of those in `index`."""
        sizes = torch.tensor(BLUR_KERNELS[self.levels])[self.labels]
        return sizes if index is None else sizes[index.cpu()]

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold for training to go on as if it had not stopped."""
        return {
            "levels": self.levels,
            "confidence": self.confidence.clone(),
            "labels": self.labels.clone(),
            "pending": self.pending.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict`.

        Raises:
            ValueError: the state is of another number of images or of other levels.
        """
        if state["levels"] != self.levels or len(state["confidence"]) != len(self.confidence):
            raise ValueError(
                f"the state is of {len(state['confidence'])} images with levels {state['levels']!r}, "
                f"expected {len(self.confidence)} with {self.levels!r}"
            )
        self.confidence, self.labels, self.pending = (state[key].clone() for key in ("confidence", "labels", "pending"))


__all__ = ["BLUR_KERNELS", "BLUR_LABELS", "BlurBounds", "BlurSelector", "blur_bounds"]
