"""Is one run better than another on the same units? Paired sign-flip tests and bootstrap intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from .grid import DATASETS, Grid, Unit

EXACT_UP_TO = 16  # clusters: 65,536 sign patterns
DRAWS = 20_000
CLUSTERS = ("subject", "unit")


class Comparison(NamedTuple):
    """A mean paired difference (first run minus second).

    Attributes:
        label: "overall" or a data set.
        difference: in AUC, averaged as the table is (units within task, tasks within data set, data sets).
        ci95: percentile bootstrap interval over clusters, data set by data set; None where a data set has one cluster, which has no spread.
        p: two-sided, of the sign-flip test over clusters.
        n_units, n_clusters: what it is made of. wins: units in which the first run is better (a tie counts one half).
        method: the test in words.
    """

    label: str
    difference: float
    ci95: tuple[float, float] | None
    p: float
    n_units: int
    n_clusters: int
    wins: float
    method: str


def compare_units(
    first: Mapping[str, float], second: Mapping[str, float], grid: Grid, *, cluster: str = "subject", draws: int = DRAWS, seed: int = 0
) -> list[Comparison]:
    """Compare two runs by the unit scores that both have.

    Units of one person share a brain and a film, so their differences are not independent: by default whole persons are flipped and
    resampled. With "unit" every unit counts as independent, which gives smaller p values than it should.

    Args:
        first, second: AUC by unit id; NaN for a unit without a score, which is left out of both.
        grid: the release.
        cluster: "subject" or "unit".
        draws, seed: of sign patterns (above 16 clusters; up to 16 all are enumerated) and of bootstrap resamples.

    Raises:
        ValueError: the runs have different units (the first few are named), none in common with a score, or an unknown cluster.
    """
    if cluster not in CLUSTERS:
        raise ValueError(f"cluster must be one of {', '.join(CLUSTERS)}, found {cluster!r}")
    if other := sorted(set(first) ^ set(second)):
        raise ValueError(f"{len(other)} units are in one run only ({', '.join(other[:5])}): compare runs of equal coverage")
    units = [u for u in grid.units if u.id in first and np.isfinite(first[u.id]) and np.isfinite(second[u.id])]
    if not units:
        raise ValueError("no unit has a score in both runs")
    difference = np.array([first[u.id] - second[u.id] for u in units])
    found = []
    whole = [d for d in DATASETS if any(u.dataset == d for u in units)]
    groups = ([("overall", whole)] if len(whole) > 1 else []) + [(d, [d]) for d in whole]
    for label, datasets in groups:
        keep = [i for i, u in enumerate(units) if u.dataset in datasets]
        found.append(_compare(label, [units[i] for i in keep], difference[keep], cluster, draws, seed))
    return found


def _compare(label: str, units: list[Unit], difference: np.ndarray, cluster: str, draws: int, seed: int) -> Comparison:
    names = [u.subject if cluster == "subject" else u.id for u in units]
    clusters, index = np.unique(names, return_inverse=True)
    contribution = np.bincount(index, _weights(units) * difference, len(clusters))
    observed = float(contribution.sum())
    flip_seed, boot_seed = np.random.SeedSequence(seed).spawn(2)
    p, method = _sign_flip(contribution, draws, np.random.default_rng(flip_seed))
    ci = _bootstrap(units, difference, index, clusters, draws, np.random.default_rng(boot_seed))
    wins = float((difference > 0).sum() + 0.5 * (difference == 0).sum())
    return Comparison(label, observed, ci, p, len(units), len(clusters), wins, f"{method} over {len(clusters)} {cluster}s")


def _weights(units: list[Unit]) -> np.ndarray:
    """(n,) weight of each unit in the mean over units, tasks and data sets; they add up to 1."""
    keys = [(u.dataset, u.task) for u in units]
    n_units = {key: keys.count(key) for key in set(keys)}
    n_tasks = {d: len({t for dd, t in n_units if dd == d}) for d, _ in n_units}
    return np.array([1 / (n_units[key] * n_tasks[key[0]] * len(n_tasks)) for key in keys])


def _sign_flip(contribution: np.ndarray, draws: int, rng: np.random.Generator) -> tuple[float, str]:
    n = len(contribution)
    observed = abs(contribution.sum())
    edge = observed - 1e-12 * max(1.0, np.abs(contribution).sum())
    if n <= EXACT_UP_TO:
        signs = 1.0 - 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
        return float((np.abs(signs @ contribution) >= edge).mean()), "exact sign-flip test"
    signs = rng.integers(0, 2, size=(draws, n), dtype=np.int8) * 2.0 - 1.0
    hits = int((np.abs(signs @ contribution) >= edge).sum())
    return (hits + 1) / (draws + 1), f"sign-flip test, {draws:,} draws"


def _bootstrap(
    units: list[Unit], difference: np.ndarray, index: np.ndarray, clusters: np.ndarray, draws: int, rng: np.random.Generator
) -> tuple[float, float] | None:
    of_cluster = np.array([str(name).partition("/")[0] for name in clusters])
    if np.unique(of_cluster, return_counts=True)[1].min() < 2:
        return None
    total = np.zeros(draws)
    datasets = sorted({u.dataset for u in units})
    for dataset in datasets:
        own = np.flatnonzero(of_cluster == dataset)
        counts = np.zeros((draws, len(clusters)))
        counts[:, own] = rng.multinomial(len(own), np.full(len(own), 1 / len(own)), size=draws)
        task_sum, task_count = np.zeros(draws), np.zeros(draws)
        for task in sorted({u.task for u in units if u.dataset == dataset}):
            rows = [i for i, u in enumerate(units) if (u.dataset, u.task) == (dataset, task)]
            weight = counts[:, index[rows]]
            n = weight.sum(axis=1)
            there = n > 0
            task_sum[there] += (weight @ difference[rows])[there] / n[there]
            task_count += there
        total += task_sum / task_count
    low, high = np.quantile(total / len(datasets), (0.025, 0.975))
    return float(low), float(high)
