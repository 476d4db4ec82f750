"""From runs to a table row: seeds within subject, then mean and population SD over subjects, with an interval (equations S4, S5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from decodehub.core.statistics import bootstrap_of_means, mean_interval, no_interval

Interval = Literal["sign_flip", "paper"]


class Aggregate(NamedTuple):
    """Mean over subjects of M metrics.

    Attributes:
        mean: (M,). sd: (M,) population SD over subjects. ci95: (M, 2), NaN where there is no interval.
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


def aggregate(
    runs: Sequence[tuple[int, int]], values: np.ndarray, intervals: Sequence[bool] | None = None, interval: Interval = "sign_flip"
) -> Aggregate:
    """Average runs over seeds within each subject, then over subjects.

    Args:
        runs: (R,) pairs of subject and seed; every subject must have every seed once.
        values: (R, M) float, metrics of each run. A metric that is NaN in one run is NaN in the result.
        intervals: (M,) which metrics get an interval (see `MetricKey.interval`); all by default.
        interval: how they are made, see `Settings.interval`.

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
    ci[chosen], method = subject_ci(means[:, chosen], interval)
    return Aggregate(means.mean(0), means.std(0), ci, means, tuple(subjects), tuple(seeds), method)


def subject_ci(means: np.ndarray, interval: Interval = "sign_flip") -> tuple[np.ndarray, str]:
    """95 % intervals of means over subjects.

    Args:
        means: (n_subjects, M) float64.
        interval: see `Settings.interval`.

    Returns:
        (M, 2) lower and upper ends (NaN where there is none), and the method in words.
    """
    n = len(means)
    if interval == "paper":
        ends, how = bootstrap_of_means(means)
        return ends, f"percentile bootstrap over {n} subjects as in the paper ({how})" if n > 1 else "no intervals: one subject"
    if why := no_interval(n, "subjects"):
        return np.full((means.shape[1], 2), np.nan), f"no intervals: {why}"
    return mean_interval(means), f"95 % intervals by inversion of the sign-flip test over {n} subjects"
