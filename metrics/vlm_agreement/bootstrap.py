"""Bootstrap over pairs or over concepts, by how often each distinct unit is drawn instead of by drawing units one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

RESAMPLES = 2_000
_CHUNK = 4_000_000  # numbers drawn at once: some 32 MB


def unit_totals(totals: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """Totals of the units that are resampled.

    Args:
        totals: (n_pairs, K) float64, what each pair adds to K sums.
        groups: (n_pairs,) cluster of each pair, e.g. its concept; None if pairs themselves are resampled.

    Returns:
        (n_units, K) float64.
    """
    if groups is None:
        return totals
    _, index = np.unique(groups, return_inverse=True)
    return np.stack([np.bincount(index, column) for column in totals.T], axis=-1)


def resampled_totals(units: np.ndarray, n_resamples: int = RESAMPLES, seed: int = 0) -> Iterator[np.ndarray]:
    """Sums over resamples of the units with replacement, in chunks of (n, K).

    Units with the same totals are one and the same for every statistic of sums, so the multinomial is over distinct rows.
    """
    rows, multiplicity = np.unique(units, axis=0, return_counts=True)
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    step = max(1, _CHUNK // len(rows))
    for start in range(0, n_resamples, step):
        drawn = rng.multinomial(len(units), multiplicity / len(units), size=min(step, n_resamples - start))
        yield drawn.astype(np.float64) @ rows


def bootstrap_ci(
    units: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray], *, n_resamples: int = RESAMPLES, seed: int = 0, level: float = 0.95
) -> np.ndarray:
    """Percentile interval of statistics of sums.

    Args:
        units: (n_units, K), see `unit_totals`.
        statistic: (n, K) -> (n, S), from sums to statistics; resamples where one is NaN are left out of its interval.
        n_resamples, seed: of the bootstrap.
        level: of confidence.

    Returns:
        (S, 2) ends; NaN with fewer than two units, or where every resample is NaN.
    """
    draws = np.concatenate([statistic(sums) for sums in resampled_totals(units, n_resamples, seed)])
    ends = np.full((draws.shape[1], 2), np.nan)
    if len(units) > 1:
        for s, values in enumerate(draws.T):
            if len(known := values[np.isfinite(values)]):
                ends[s] = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return ends
