"""The contrastive loss of all eight models, and what the temperature means in each."""

from __future__ import annotations

import math
from typing import overload

import torch
from torch import Tensor, nn


@overload
def temperature_scale(value: float, mapping: str) -> float: ...
@overload
def temperature_scale(value: Tensor, mapping: str) -> Tensor: ...
def temperature_scale(value: float | Tensor, mapping: str) -> float | Tensor:
    """The factor that multiplies the inner products.

    Args:
        value: number, or tensor of one element, as it is stored; ln(1/.07) = 2.6593 at the start in all released codes.
        mapping: "exp" (NICE, MB2C, Brain-HIVE: 14.286 at the start), "softplus" (UBP, ATS, NeuroBridge: 2.727) or "none" (ATM: 2.659).

    Raises:
        ValueError: the mapping is none of these.
    """
    if mapping == "none":
        return value
    if mapping == "exp":
        return value.exp() if isinstance(value, Tensor) else math.exp(value)
    if mapping == "softplus":
        return nn.functional.softplus(value) if isinstance(value, Tensor) else max(value, 0.0) + math.log1p(math.exp(-abs(value)))
    raise ValueError(f"mapping must be 'exp', 'softplus' or 'none', got {mapping!r}")


def symmetric_infonce(logits: Tensor) -> Tensor:
    """Mean of the cross-entropies of rows and columns, where row i and column i are a pair.

    Args:
        logits: (n, n), already scaled.

    Returns:
        Scalar, in nats: 0 for perfect pairs, ln(n) when nothing is known.

    Raises:
        ValueError: `logits` is not square.
    """
    if logits.ndim != 2 or logits.shape[0] != logits.shape[1]:
        raise ValueError(f"a contrastive loss needs one image per EEG epoch: logits have shape {tuple(logits.shape)}, expected (n, n)")
    target = torch.arange(len(logits), device=logits.device)
    return (nn.functional.cross_entropy(logits, target) + nn.functional.cross_entropy(logits.T, target)) / 2


__all__ = ["symmetric_infonce", "temperature_scale"]
