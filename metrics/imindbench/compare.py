"""Is one run better than another on the same units? Paired sign-flip tests and the intervals that they leave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from decodehub.core.statistics import DRAWS, mean_interval, no_interval, settled, sign_flip

from .grid import DATASETS, Grid, Unit

CLUSTERS = ("subject", "unit")
SHARED = {  # what the clusters have in common
    "subject": "Subjects of a data set saw the same films, so windows are shared: p and interval speak of other subjects, not of other films.",
    "unit": "Units of one subject share brain and electrodes, those of one session its windows: p and interval are smaller than they should be.",
}


class Comparison(NamedTuple):
    """A mean paired difference (first run minus second).

    Attributes:
        label: "overall" or a data set.
        difference: in AUC, averaged as the table is (units within task, tasks within data set, data sets).
        ci95: the differences that the sign-flip test does not reject (`decodehub.core.statistics.mean_interval`); None below six clusters.
        p: two-sided, of the sign-flip test over clusters. p_min: the smallest p that so many clusters can give.
        n_units, n_clusters: what it is made of. wins: units in which the first run is better (a tie counts one half).
        method: the test in words. ci_reason: why there is no interval, "" where there is one. shared: what the clusters have in common.
        left_out: units without a score in either run, by id.
    """

    label: str
    difference: float
    ci95: tuple[float, float] | None
    p: float
    n_units: int
    n_clusters: int
    wins: float
    method: str
    p_min: float = 1.0
    ci_reason: str = ""
    shared: str = ""
    left_out: tuple[str, ...] = ()


def compare_units(
    first: Mapping[str, float], second: Mapping[str, float], grid: Grid, *, cluster: str = "subject", draws: int = DRAWS, seed: int = 0
) -> list[Comparison]:
    """Compare two runs by the unit scores that both have.

    Units of one subject share a brain and a film, so their differences are not independent: by default whole subjects are flipped.
    With "unit" every unit counts as independent, which gives smaller p values than it should.

    Args:
        first, second: AUC by unit id; NaN for a unit without a score, which must have none in both (its labels have one class) and is left out by name.
        grid: the release.
        cluster: "subject" or "unit".
        draws, seed: of sign patterns above 16 clusters; up to 16 all are listed.

    Raises:
        ValueError: the runs have different units or one has no score where the other has one (the first few are named: a run that fails where it is
            hard must not gain), none in common with a score, or an unknown cluster.
    """
    if cluster not in CLUSTERS:
        raise ValueError(f"cluster must be one of {', '.join(CLUSTERS)}, found {cluster!r}")
    units, left_out = _scored_units(first, second, grid)
    difference = settled(np.array([first[u.id] - second[u.id] for u in units]), 1.0)
    found = []
    whole = [d for d in DATASETS if any(u.dataset == d for u in units)]
    groups = ([("overall", whole)] if len(whole) > 1 else []) + [(d, [d]) for d in whole]
    for label, datasets in groups:
        keep = [i for i, u in enumerate(units) if u.dataset in datasets]
        own = tuple(name for name in left_out if name.partition("/")[0] in datasets or label == "overall")
        found.append(_compare(label, [units[i] for i in keep], difference[keep], cluster, draws, seed)._replace(left_out=own))
    return found


def _scored_units(first: Mapping[str, float], second: Mapping[str, float], grid: Grid) -> tuple[list[Unit], tuple[str, ...]]:
    """The units with a score in both runs, and the ids of those with a score in neither; refuses any other pair of runs."""
    if other := sorted(set(first) ^ set(second)):
        raise ValueError(f"{len(other)} units are in one run only ({', '.join(other[:5])}): compare runs of equal coverage")
    if failed := sorted(u for u in first if np.isfinite(first[u]) != np.isfinite(second[u])):
        raise ValueError(
            f"{len(failed)} units have a score in one run only ({', '.join(failed[:5])}): run them again, or leave them out of both by name"
        )
    units = [u for u in grid.units if u.id in first and np.isfinite(first[u.id])]
    if not units:
        raise ValueError("no unit has a score in both runs")
    return units, tuple(u.id for u in grid.units if u.id in first and not np.isfinite(first[u.id]))


def _compare(label: str, units: list[Unit], difference: np.ndarray, cluster: str, draws: int, seed: int) -> Comparison:
    names = [u.subject if cluster == "subject" else u.id for u in units]
    clusters, index = np.unique(names, return_inverse=True)
    n, weights = len(clusters), _weights(units)
    sums, sizes = np.bincount(index, weights * difference, n), np.bincount(index, weights, n)
    test = sign_flip(sums, draws=draws, seed=seed)
    reason = no_interval(n, f"{cluster}s")
    ((low, high),) = mean_interval(sums[:, None], sizes, draws=draws, seed=seed)
    return Comparison(
        label,
        float(sums.sum()),
        (float(low), float(high)) if not reason else None,
        test.p,
        len(units),
        n,
        float((difference > 0).sum() + 0.5 * (difference == 0).sum()),
        f"{test.method} over {n} {cluster}s",
        test.p_min,
        reason,
        SHARED[cluster],
    )


def _weights(units: list[Unit]) -> np.ndarray:
    """(n,) weight of each unit in the mean over units, tasks and data sets; they add up to 1."""
    keys = [(u.dataset, u.task) for u in units]
    n_units = {key: keys.count(key) for key in set(keys)}
    n_tasks = {d: len({t for dd, t in n_units if dd == d}) for d, _ in n_units}
    return np.array([1 / (n_units[key] * n_tasks[key[0]] * len(n_tasks)) for key in keys])
