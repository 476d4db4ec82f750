"""Changes to training data that belong to a method: EEG smoothing (NeuroBridge) and mixup (MB2C). Seeded, no state."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn


def moving_average(eeg: Tensor, width: int = 5) -> Tensor:
    """Centred moving average over the last axis; at the edges over the samples that are there.

    Args:
        eeg: (..., T) float.
        width: odd number of samples.

    Raises:
        ValueError: `width` is not an odd number of at least 1.
    """
    if width < 1 or width % 2 == 0:
        raise ValueError(f"width must be odd and at least 1, got {width}")
    flat = eeg.reshape(-1, 1, eeg.shape[-1])
    return nn.functional.avg_pool1d(flat, width, stride=1, padding=width // 2, count_include_pad=False).reshape(eeg.shape)


def smooth_eeg(eeg: Tensor, generator: torch.Generator, probability: float = 0.3, width: int = 5) -> Tensor:
    """NeuroBridge's augmentation: each channel of each epoch is smoothed with some probability.

    The released code does this once, when the training set is built, so that an epoch stays smoothed or not for all of training;
    ``NeuroBridgeConfig.smoothing_applied`` names the two ways. Test data are left alone.

    Args:
        eeg: (b, C, T) float; not changed.
        generator: on the device of `eeg`; one uniform number per epoch and channel is drawn.
        probability: of smoothing one channel.
        width: samples of the moving average (5 at 250 Hz: 20 ms).

    Returns:
        (b, C, T).

    Raises:
        ValueError: `eeg` does not have three axes, or a setting is out of range.
    """
    if eeg.ndim != 3:
        raise ValueError(f"eeg has shape {tuple(eeg.shape)}, expected (epochs, channels, samples)")
    if not 0 <= probability <= 1:
        raise ValueError(f"probability must lie in [0, 1], got {probability}")
    chosen = torch.rand(eeg.shape[:2], generator=generator, device=eeg.device) < probability
    return torch.where(chosen[..., None], moving_average(eeg, width), eeg)


class Mixup(NamedTuple):
    """Mixed pairs, to be appended to a batch.

    Attributes:
        eeg: (m, C, T) lam * eeg[index] + (1 - lam) * eeg[partner].
        image_features: (m, d) mixed in the same way.
        index: (m,) int64 rows of the batch that were mixed.
        partner: (m,) int64 rows that were mixed in, each of another label.
        lam: the one weight of this batch.
    """

    eeg: Tensor
    image_features: Tensor
    index: Tensor
    partner: Tensor
    lam: float


def mixup(
    eeg: Tensor, image_features: Tensor, labels: Tensor, generator: torch.Generator, ratio: float = 0.75, alpha: float = 1.0
) -> Mixup:
    """MB2C's mixup inside a batch: the first int(ratio * b) pairs are mixed with those of a random permutation of the batch.

    One weight lam ~ Beta(alpha, alpha) serves the whole batch, EEG and images. Pairs whose partner has the same label are left out, so
    that m <= int(ratio * b).

    Args:
        eeg: (b, C, T).
        image_features: (b, d).
        labels: (b,) concept of each pair.
        generator: on the CPU; draws a permutation and the weight.
        ratio: share of the batch that is mixed.
        alpha: of the Beta distribution; 1 is uniform.

    Raises:
        ValueError: the three do not have the same number of rows, or a setting is out of range.
    """
    n = len(eeg)
    if not len(image_features) == len(labels) == n:
        raise ValueError(f"expected as many image features and labels as epochs, found {len(image_features)} and {len(labels)} for {n}")
    if not 0 <= ratio <= 1 or not alpha > 0:
        raise ValueError(f"ratio must lie in [0, 1] and alpha be positive, got {ratio} and {alpha}")
    partner = torch.randperm(n, generator=generator)[: int(ratio * n)].to(labels.device)
    # torch draws from Beta with its global generator only.
    seed = int(torch.randint(2**62, (), generator=generator))
    lam = float(np.random.default_rng(seed).beta(alpha, alpha))
    index = torch.nonzero(labels[: len(partner)] != labels[partner]).flatten()
    partner = partner[index]
    return Mixup(
        lam * eeg[index] + (1 - lam) * eeg[partner],
        lam * image_features[index] + (1 - lam) * image_features[partner],
        index,
        partner,
        lam,
    )


__all__ = ["Mixup", "mixup", "moving_average", "smooth_eeg"]
