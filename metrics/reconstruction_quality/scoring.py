"""The audit of a measure: does it agree with what can be recovered, and does it fall when an image is degraded? Pure functions on arrays.

Source: Tiwari et al. 2026, arXiv 2607.12364, Eq. 2 to 6, tables 1, 2 and 12; where that is silent, the released code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from decodehub.core.statistics import (
    Resamples,
    bootstrap_pearson,
    bootstrap_spearman,
    mean_interval,
    pearson,
    percentile_interval,
    ranks,
    spearman,
)

FAILURE_RULES = ("paper", "released_code")
AUDIT = ("rho", "r", "harshness", "blind_spot")
PROBE = ("pooled", "per_image")


@dataclass(frozen=True)
class Settings:
    """What the numbers of an audit depend on besides the values.

    Attributes:
        failure_rule: "paper" (Eq. 3 and 4: quartiles of the signal) or "released_code" (the signal counts as high from `threshold`).
        threshold: of "released_code".
        n_bootstrap: resamples of concepts (random sign patterns for means) for 95 % intervals; 0 for none. There are none below six concepts.
        seed: of them.
    """

    failure_rule: str = "paper"
    threshold: float = 0.5
    n_bootstrap: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.failure_rule not in FAILURE_RULES:
            raise ValueError(f"failure_rule is {self.failure_rule!r}, expected one of {', '.join(FAILURE_RULES)}")
        if not 0 < self.threshold < 1 or self.n_bootstrap < 0 or self.seed < 0:
            raise ValueError(f"threshold must lie between 0 and 1, n_bootstrap and seed must be 0 or more, got {self}")


class Number(NamedTuple):
    """One number of an audit: its value (NaN where not defined), its 95 % interval (NaN where none), and what it is over."""

    name: str
    value: float
    ci95: tuple[float, float]
    n: int


def oriented(values: np.ndarray, higher_is_better: bool) -> np.ndarray:
    """The values so that larger is better (Eq. 2), float64."""
    values = np.asarray(values, dtype=np.float64)
    return values if higher_is_better else -values


def failure_rates(quality: np.ndarray, signal: np.ndarray, rule: str = "paper", threshold: float = 0.5) -> tuple[float, float]:
    """Harshness and blind-spot rate of a measure against a signal of what was recovered (Eq. 3 and 4).

    Harshness: of the pairs whose signal is high, the share whose quality is below its lower quartile. Blind spot: of the pairs whose quality
    reaches its upper quartile, the share whose signal is low. "paper": a signal is high from its upper quartile and low below its lower one;
    both rates are .25 where the two are independent. "released_code": high from `threshold`, else low. Quartiles interpolate linearly.

    Args:
        quality: (n,) oriented values. signal: (n,). rule, threshold: see `Settings`.

    Returns:
        Two shares; NaN where no pair is counted.
    """
    drawn = _failure_rates(quality, signal, np.ones((1, len(quality))), rule, threshold)
    return float(drawn[0, 0]), float(drawn[0, 1])


def _failure_rates(quality: np.ndarray, signal: np.ndarray, weight: np.ndarray, rule: str, threshold: float) -> np.ndarray:
    """(B, 2) rates where pair i occurs weight[b, i] times."""
    low_q, high_q = (weighted_quantile(quality, weight, q)[:, None] for q in (0.25, 0.75))
    if rule == "paper":
        low_s, high_s = (weighted_quantile(signal, weight, q)[:, None] for q in (0.25, 0.75))
        recovered, lost = signal >= high_s, signal < low_s
    elif rule == "released_code":
        recovered = np.broadcast_to(signal >= threshold, weight.shape)
        lost = ~recovered
    else:
        raise ValueError(f"rule is {rule!r}, expected one of {', '.join(FAILURE_RULES)}")
    praised, dismissed = quality >= high_q, quality < low_q
    with np.errstate(invalid="ignore"):
        harsh = (weight * (recovered & dismissed)).sum(1) / (weight * recovered).sum(1)
        blind = (weight * (praised & lost)).sum(1) / (weight * praised).sum(1)
    return np.stack([harsh, blind], axis=1)


def weighted_quantile(x: np.ndarray, weight: np.ndarray, q: float) -> np.ndarray:
    """(B,) quantile, with linear interpolation, of (n,) values of which value i occurs weight[b, i] (whole) times."""
    order = np.argsort(x, kind="stable")
    total = np.cumsum(weight[:, order], axis=1)
    place = (total[:, -1] - 1) * q
    low = np.floor(place)
    # The value at place k of the expanded sample is the first whose running total exceeds k.
    below, above = (x[order][np.minimum((total <= k[:, None]).sum(1), len(x) - 1)] for k in (low, np.ceil(place)))
    return below + (place - low) * (above - below)


def audit(quality: np.ndarray, signal: np.ndarray, concepts: Sequence[str], settings: Settings | None = None) -> list[Number]:
    """Spearman's rho and Pearson's r with a signal (table 12), harshness and blind-spot rate (table 1).

    Args:
        quality: (n,) oriented values. signal: (n,), such as T-SAS. concepts: n names, what intervals are over.

    Pairs without either value are left out; the numbers say how many are left.

    Raises:
        ValueError: arrays of different lengths.
    """
    settings = settings or Settings()
    quality, signal = np.asarray(quality, dtype=np.float64), np.asarray(signal, dtype=np.float64)
    if quality.shape != signal.shape or quality.ndim != 1 or len(concepts) != len(quality):
        raise ValueError(f"quality, signal and concepts have {quality.shape}, {signal.shape} and {len(concepts)} values, expected the same")
    there = np.isfinite(quality) & np.isfinite(signal)
    x, y = quality[there], signal[there]
    names = [c for c, t in zip(concepts, there) if t]
    n = len(x)
    if n < 2:
        return [Number(name, np.nan, (np.nan, np.nan), n) for name in AUDIT]
    values = np.array([spearman(x, y), pearson(x, y), *failure_rates(x, y, settings.failure_rule, settings.threshold)])
    resamples = Resamples(names, settings.n_bootstrap, settings.seed)
    rates = np.empty((len(resamples.counts), 2))
    for block, weight in resamples.weights(resamples.cluster):
        rates[block] = _failure_rates(x, y, weight, settings.failure_rule, settings.threshold)
    drawn = np.column_stack(
        [bootstrap_spearman(x, y, resamples, resamples.cluster), bootstrap_pearson(x, y, resamples, resamples.cluster), rates]
    )
    ends = percentile_interval(drawn, resamples.n)
    return [Number(name, float(v), (float(a), float(b)), n) for name, v, (a, b) in zip(AUDIT, values, ends)]


def degradation_tracking(quality: np.ndarray, settings: Settings | None = None) -> list[Number]:
    """How well a measure follows a growing degradation: Spearman's rho of its quality and minus the level (Eq. 6).

    "pooled" (table 2, released code) ranks all images and levels together; with four levels, whose ranks are tied, it is at most sqrt(15/16) =
    .968. "per_image" (the reading of Eq. 6) is the mean over images of each one's own rho, at most 1.

    Args:
        quality: (n, k) oriented values of n images at k levels, from weak to strong. Images with a missing value are left out.

    Raises:
        ValueError: another shape.
    """
    settings = settings or Settings()
    quality = np.asarray(quality, dtype=np.float64)
    if quality.ndim != 2 or quality.shape[1] < 2:
        raise ValueError(f"quality has shape {quality.shape}, expected (images, levels) with at least two levels")
    quality = quality[np.isfinite(quality).all(axis=1)]
    n, k = quality.shape
    if not n:
        return [Number(name, np.nan, (np.nan, np.nan), 0) for name in PROBE]
    x, y = quality.ravel(), np.tile(-np.arange(1.0, k + 1), n)
    own = np.array([pearson(ranks(row), y[:k]) for row in quality])  # minus the level is its own rank up to a constant
    image = np.repeat(np.arange(n), k)
    resamples = Resamples([f"{i:09d}" for i in range(n)], settings.n_bootstrap, settings.seed)
    own = np.nan_to_num(own)  # a measure that is the same at all levels follows none of them
    pooled = percentile_interval(bootstrap_spearman(x, y, resamples, image)[:, None], n)
    single = _interval_of_mean(own, np.arange(n), settings.n_bootstrap, settings.seed)
    values = (spearman(x, y), float(own.mean()))
    return [Number(name, float(v), (float(a), float(b)), n) for name, v, ((a, b),) in zip(PROBE, values, (pooled, single))]


def mean_over_concepts(values: np.ndarray, concepts: Sequence[str], n_bootstrap: int = 1000, seed: int = 0) -> Number:
    """Mean of the values that are defined, with a 95 % interval over concepts (none below six); `n` says how many values are defined."""
    there = np.isfinite(values)
    x, names = values[there], [c for c, t in zip(concepts, there) if t]
    if not len(x):
        return Number("mean", np.nan, (np.nan, np.nan), 0)
    ((low, high),) = _interval_of_mean(x, np.unique(names, return_inverse=True)[1], n_bootstrap, seed)
    return Number("mean", float(x.mean()), (float(low), float(high)), len(x))


def _interval_of_mean(x: np.ndarray, cluster: np.ndarray, draws: int, seed: int) -> np.ndarray:
    """(1, 2) interval of the mean of (m,) values; `cluster` (m,) counts from 0."""
    if not draws:
        return np.full((1, 2), np.nan)
    return mean_interval(np.bincount(cluster, x)[:, None], np.bincount(cluster), draws=draws, seed=seed)
