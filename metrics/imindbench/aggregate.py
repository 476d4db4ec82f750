"""From fold scores to a leaderboard row: fold, unit, task, data set, Overall."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .grid import DATASETS, Grid, Unit, coverage_rule
from .predictions import Cells

POOLINGS = ("paper", "released_code")


class Value(NamedTuple):
    """One number of a table.

    Attributes:
        name: "roc_auc" or "accuracy".
        slice: of "subset", "dataset" and "task" those that are fixed, as (name, value) pairs.
        value: NaN where nothing was scored.
        sem: standard error of `value`, NaN with fewer than two parts: over units within a data set, over data sets for the rest.
        n: units with a score that it is made of.
        reason: why there is no value; "" where there is one.
    """

    name: str
    slice: tuple[tuple[str, str], ...]
    value: float
    sem: float
    n: int
    reason: str


class Table(NamedTuple):
    """A scored run: the coverage rule that it meets, every number, and the folds and units without a score."""

    rule: str
    values: tuple[Value, ...]
    unit_auc: dict[str, float]
    unscored_folds: tuple[tuple[str, int, str], ...]
    unscored_units: tuple[str, ...]

    def get(self, name: str = "roc_auc", **slice_: str) -> Value:
        """The number with this slice.

        Raises:
            KeyError: the table has none.
        """
        for value in self.values:
            if value.name == name and dict(value.slice) == slice_:
                return value
        raise KeyError(f"the table has no {name!r} with slice {slice_}")


def unit_scores(cells: Cells, scores: np.ndarray) -> dict[str, float]:
    """Mean over the scored folds of each unit; NaN for a unit that has none."""
    units, index = np.unique(cells.unit.astype(str), return_inverse=True)
    there = np.isfinite(scores)
    total = np.bincount(index, np.where(there, scores, 0.0), len(units))
    count = np.bincount(index, there, len(units))
    with np.errstate(invalid="ignore"):
        return dict(zip(units.tolist(), (total / np.where(count > 0, count, np.nan)).tolist()))


def make_table(cells: Cells, grid: Grid, pooling: str = "paper") -> Table:
    """Aggregate the folds of one run.

    Args:
        cells: scores of every fold; exactly the full grid, exactly Main, or exactly Challenge.
        grid: the release.
        pooling: "paper": folds within unit, units within task, tasks within data set, then the unweighted mean of the three data sets.
            "released_code": a data set is the plain mean over its scored folds, as the site has it; the two agree on the complete
            grid with both folds of every unit.

    Raises:
        ValueError: incomplete or surplus units (named), a fold that is missing or there twice, an unknown pooling.
    """
    if pooling not in POOLINGS:
        raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, found {pooling!r}")
    pairs = list(zip(cells.unit.tolist(), cells.fold.tolist()))
    if len(set(pairs)) != len(pairs):
        twice = next(p for p in pairs if pairs.count(p) > 1)
        raise ValueError(f"unit {twice[0]!r}, fold {twice[1]} is there twice")
    rule = coverage_rule(sorted(set(cells.unit.tolist())), grid)
    values: list[Value] = []
    for name, scores in (("roc_auc", cells.auc), ("accuracy", cells.accuracy)):
        by_unit = unit_scores(cells, scores)
        subsets = [rule] if rule != "full" else [r for r in ("full", "main", "challenge") if grid.chosen(r)]
        for subset in subsets:
            values += _values(name, subset, grid.chosen(subset), by_unit, cells, scores, pooling)
    by_unit = unit_scores(cells, cells.auc)
    unscored = tuple((u, f, r) for (u, f), r in zip(pairs, cells.reason.tolist()) if r)
    return Table(rule, tuple(values), by_unit, unscored, tuple(u for u, v in by_unit.items() if not np.isfinite(v)))


def _values(
    name: str, subset: str, units: tuple[Unit, ...], by_unit: dict[str, float], cells: Cells, scores: np.ndarray, pooling: str
) -> list[Value]:
    fixed = ("subset", subset)
    of_tasks: list[Value] = []  # each within one data set
    of_datasets: list[Value] = []
    found: list[Value] = []
    for dataset in DATASETS:
        own = [unit for unit in units if unit.dataset == dataset]
        if not own:
            continue
        slice_ = (fixed, ("dataset", dataset))
        per_task = []
        for task in sorted({unit.task for unit in own}):
            x = _finite([by_unit[unit.id] for unit in own if unit.task == task])
            per_task.append(_value(name, (*slice_, ("task", task)), x))
        folds = _finite(scores[np.isin(cells.unit.astype(str), [unit.id for unit in own])])
        whole = _dataset_value(_value(name, slice_, _finite([by_unit[unit.id] for unit in own])), per_task, folds, pooling)
        found += [*per_task, whole]
        of_tasks += per_task
        of_datasets.append(whole)
    for task in sorted({unit.task for unit in units}):
        parts = [value for value in of_tasks if value.slice[-1] == ("task", task)]
        means = np.array([value.value for value in parts if value.n])
        found.append(_value(name, (fixed, ("task", task)), means)._replace(n=sum(value.n for value in parts)))
    return [_overall(name, fixed, of_datasets), *found]


def _dataset_value(over_units: Value, per_task: list[Value], folds: np.ndarray, pooling: str) -> Value:
    """The value of a data set, pooled over its tasks or over its (n,) scored folds; `over_units` gives count and standard error."""
    if not over_units.n:
        return over_units
    if pooling == "paper":
        return over_units._replace(value=float(np.mean([value.value for value in per_task if value.n])))
    return over_units._replace(value=float(np.mean(folds)), sem=_sem(folds))


def _overall(name: str, fixed: tuple[str, str], of_datasets: list[Value]) -> Value:
    """The unweighted mean of the three data sets; no value where one of them has none."""
    n = sum(value.n for value in of_datasets)
    lacking = [dataset for dataset in DATASETS if not any(("dataset", dataset) in value.slice for value in of_datasets)]
    x = _finite([value.value for value in of_datasets])
    if lacking or len(x) < len(DATASETS):
        why = f"Overall is the mean of three data sets; without a score: {', '.join(lacking) or 'a data set whose units have none'}"
        return Value(name, (fixed,), np.nan, np.nan, n, why)
    return _value(name, (fixed,), x)._replace(n=n)


def _finite(x: list[float] | np.ndarray) -> np.ndarray:
    x = np.asarray(x, dtype=np.float64)
    return x[np.isfinite(x)]


def _sem(x: np.ndarray) -> float:
    return float(x.std(ddof=1) / np.sqrt(len(x))) if len(x) > 1 else np.nan


def _value(name: str, slice_: tuple[tuple[str, str], ...], x: np.ndarray) -> Value:
    if not len(x):
        return Value(name, slice_, np.nan, np.nan, 0, "no unit here has a scored fold")
    return Value(name, slice_, float(x.mean()), _sem(x), len(x), "")
