"""From runs to a table row: seeds within subject, then mean and population SD over subjects, with a bootstrap CI (equations S4, S5)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import comb, lgamma
from typing import NamedTuple

import numpy as np

ENUMERATE_UP_TO = 10  # 92,378 compositions at 10 subjects, 352,716 at 11
RESAMPLES = 20_000
BINS = 1024


class Aggregate(NamedTuple):
    """Mean over subjects of M metrics.

    Attributes:
        mean: (M,). sd: (M,) population SD over subjects. ci95: (M, 2), NaN with fewer than two subjects.
        subject_means: (n_subjects, M), seeds averaged. subjects, seeds: the grid that was averaged.
        ci_method: how the interval was made, in words.
    """

    mean: np.ndarray
    sd: np.ndarray
    ci95: np.ndarray
    subject_means: np.ndarray
    subjects: tuple[int, ...]
    seeds: tuple[int, ...]
    ci_method: str


def aggregate(runs: Sequence[tuple[int, int]], values: np.ndarray, intervals: Sequence[bool] | None = None) -> Aggregate:
    """Average runs over seeds within each subject, then over subjects.

    Args:
        runs: (R,) pairs of subject and seed; every subject must have every seed once.
        values: (R, M) float, metrics of each run. A metric that is NaN in one run is NaN in the result.
        intervals: (M,) which metrics get an interval (see `MetricKey.interval`); all by default.

    Raises:
        ValueError: no run, a duplicate run, or an incomplete grid; the missing cells are named.
    """
    values = np.asarray(values, dtype=np.float64)
    if not len(runs) or values.shape[:1] != (len(runs),):
        raise ValueError(f"{len(runs)} runs and values of shape {values.shape}: give one row of values a run")
    subjects, seeds = sorted({subject for subject, _ in runs}), sorted({seed for _, seed in runs})
    index = {run: i for i, run in enumerate(runs)}
    if len(index) != len(runs):
        twice = sorted({run for run in runs if list(runs).count(run) > 1})
        raise ValueError(f"runs (subject, seed) {twice} are there twice")
    if missing := [(subject, seed) for subject in subjects for seed in seeds if (subject, seed) not in index]:
        raise ValueError(
            f"the grid of {len(subjects)} subjects x {len(seeds)} seeds lacks the runs (subject, seed) {missing[:10]}: run them first"
        )
    order = [[index[subject, seed] for seed in seeds] for subject in subjects]
    means = values[np.array(order)].mean(1)
    chosen = np.ones(values.shape[1], bool) if intervals is None else np.asarray(intervals, dtype=bool)
    ci = np.full((values.shape[1], 2), np.nan)
    ci[chosen], method = subject_ci(means[:, chosen])
    return Aggregate(means.mean(0), means.std(0), ci, means, tuple(subjects), tuple(seeds), method)


def subject_ci(means: np.ndarray, *, resamples: int = RESAMPLES, seed: int = 0) -> tuple[np.ndarray, str]:
    """95 % percentile bootstrap interval of the mean over subjects.

    Up to ten subjects every resample is enumerated (the compositions of n into n parts, with their multinomial weights), so the interval
    has no Monte-Carlo error; above, `resamples` vectorised draws are taken. An end is the outermost mean whose tail, itself
    included, holds at least 2.5 % of the resamples.

    Args:
        means: (n_subjects, M) float64.
        resamples, seed: for more than ten subjects only.

    Returns:
        (M, 2) lower and upper ends (NaN for one subject and where a mean is NaN), and the method in words.
    """
    n = len(means)
    if n < 2:
        return np.full((means.shape[1], 2), np.nan), "none: one subject"
    if n <= ENUMERATE_UP_TO:
        counts, weights = _compositions(n)
        method = f"exact bootstrap over {n} subjects ({len(counts):,} compositions)"
    else:
        rng = np.random.default_rng(np.random.SeedSequence(seed))
        counts = rng.multinomial(n, np.full(n, 1 / n), size=resamples).astype(np.float64)
        weights = np.full(resamples, 1.0 / resamples)
        method = f"bootstrap over {n} subjects, {resamples:,} resamples, seed {seed}"
    ends = np.full((means.shape[1], 2), np.nan)
    finite = np.flatnonzero(np.isfinite(means).all(0))
    buffer, bins = np.empty((8, len(weights))), np.empty(len(weights), dtype=np.intp)  # some 6 MB, used again and again
    for start in range(0, len(finite), len(buffer)):
        block = finite[start : start + len(buffer)]
        low, high = means[:, block].min(0), means[:, block].max(0)
        scale = BINS / np.where(high > low, high - low, 1.0)
        # In units of histogram bins, a row a metric: no resampled mean lies outside the subjects' own range.
        resampled = np.matmul(((means[:, block] - low) * (scale / n)).T, counts.T, out=buffer[: len(block)])
        for j, column in enumerate(block):
            np.copyto(bins, resampled[j], casting="unsafe")
            ends[column] = low[j] + _ends(resampled[j], bins, weights) / scale[j]
    return ends, method


def _ends(draws: np.ndarray, bin_of: np.ndarray, weights: np.ndarray, level: float = 0.025) -> np.ndarray:
    """(2,) the smallest draw with at least `level` of the weight at or below it, the largest with as much at or above it.

    Draws are in units of bins, 0 to `BINS`, and `bin_of` are their whole parts. A weighted histogram finds the two bins that hold the ends; only
    those are sorted, which is exact and far faster than sorting all draws.
    """
    level -= 1e-12  # rounding of the summed weights
    mass = np.bincount(bin_of, weights, BINS + 1)
    ends = []
    for sign in (1, -1):
        below = np.cumsum(mass[::sign])
        k = int(np.searchsorted(below, level))
        members = np.flatnonzero(bin_of == (k if sign == 1 else len(mass) - 1 - k))
        members = members[np.argsort(sign * draws[members], kind="stable")]
        reached = (below[k - 1] if k else 0.0) + np.cumsum(weights[members])
        ends.append(draws[members[min(int(np.searchsorted(reached, level)), len(members) - 1)]])
    return np.array(ends)


@cache
def _compositions(n: int) -> tuple[np.ndarray, np.ndarray]:
    """All ways to draw n subjects n times: (C(2n-1, n), n) counts as float64 and their probabilities."""
    rows = _spread(n, n)
    assert len(rows) == comb(2 * n - 1, n)
    log_factorial = np.array([lgamma(k + 1) for k in range(n + 1)])
    weights = np.exp(log_factorial[n] - log_factorial[rows].sum(1) - n * np.log(n))
    return rows.astype(np.float64), weights / weights.sum()


def _spread(total: int, parts: int) -> np.ndarray:
    """All (rows, parts) non-negative whole numbers that sum to `total`."""
    rows = np.array([[k] for k in range(total + 1)])
    for _ in range(parts - 2):
        left = total - rows.sum(1)
        repeats = left + 1
        firsts = np.repeat(rows, repeats, axis=0)
        offsets = np.arange(repeats.sum()) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        rows = np.column_stack([firsts, offsets])
    return np.column_stack([rows, total - rows.sum(1)])
