"""Is one row better than another? Paired tests on the units that both were scored on."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from decodehub.core.statistics import DRAWS, EXACT_UP_TO, least_p, mean_interval, no_interval, settled, sign_flip
from decodehub.metrics.imindbench.compare import compare_units
from decodehub.metrics.imindbench.grid import SHORT_NAMES
from decodehub.metrics.imindbench.protocol import load_table

from .boards import RECOMPUTED, Choices, Column, Placed, Table


class Paired(NamedTuple):
    """First row minus second.

    Attributes:
        title: what was compared. difference: mean over units. ci95: what the sign-flip test does not reject at 5 %, None below six units (or subjects). p: two-sided, sign-flip.
        p_holm: adjusted for all numbers of the comparison. least_p: the smallest p that so few units (or subjects) can give. wins: units in which the first is better, a tie counts one half.
        n: units. better: whether higher is better.
    """

    title: str
    difference: float
    ci95: tuple[float, float] | None
    p: float
    p_holm: float
    least_p: float
    wins: float
    n: int
    better: bool
    unit: str


class Comparison(NamedTuple):
    """All paired differences of two rows, the method in words, and what could not be compared."""

    paired: tuple[Paired, ...]
    method: str
    left_out: tuple[str, ...]


def compare_rows(table: Table, first: Placed, second: Placed, choices: Choices) -> Comparison:
    """Compare two rows of a table.

    Raises:
        ValueError: they cannot be compared; the message says why.
    """
    if first.row.key == second.row.key:
        raise ValueError("Choose two different rows.")
    for p in (first, second):
        if p.state != RECOMPUTED or p.check is None:
            raise ValueError(
                f"{p.row.name} is {p.state}, not recomputed here: without its predictions there is no score of each unit to pair."
            )
    if first.row.group != second.row.group:
        raise ValueError("The two rows are of different benchmark tables, settings or heads and cannot be compared.")
    if table.board.id == "imindbench":
        return _compare_imind(table, first, second, choices)
    a, b = first.check, second.check
    assert a is not None and b is not None
    if set(a.names) != set(b.names) and table.board.id == "eeg-editbench":
        raise ValueError(
            f"The rows have different subjects ({', '.join(a.names)} and {', '.join(b.names)}): only equal ones can be paired."
        )
    common = [name for name in a.names if name in set(b.names)]
    found, left_out, missing = [], [], {name for name in (*a.names, *b.names) if name not in common}
    for column in table.columns:
        x, y = (_values(p, column, common) for p in (first, second))
        scored = None if x is None or y is None else np.isfinite(x) & np.isfinite(y)
        if x is None or y is None or scored is None or scored.sum() < 2:
            left_out.append(column.title)
            continue
        missing |= {name for name, there in zip(common, scored) if not there}
        size = np.maximum(np.abs(x), np.abs(y))[scored].max()
        found.append(_paired(column, settled((x - y)[scored], size), first))
    if not found:
        raise ValueError(f"None of the numbers shown has a score for each {a.unit} in both rows (at least two are needed).")
    n = found[0].n
    parts = [
        f"Paired by {a.unit}: {_interval_words('exact sign-flip test' if n <= EXACT_UP_TO else f'sign-flip test, {DRAWS:,} draws', n, a.unit, len(found))}"
    ]
    parts.append(SHARED[table.board.id])
    if missing:
        names = sorted(missing)
        parts.append(f"Left out of some number or all, without a score in one of the rows: {_shown(names)}.")
    return Comparison(_holm(found), " ".join(parts), tuple(left_out))


SHARED = {
    "eeg-editbench": "All subjects saw the same images: p and intervals speak of other subjects, not of other images.",
    "bcs": "Differences are means over concepts, each counted once; pairs of a concept share a reference and are one cluster.",
}


def _interval_words(test: str, n: int, unit: str, numbers: int) -> str:
    """Test, smallest p and intervals in words."""
    interval = no_interval(n, f"{unit}s") or f"95 % intervals over {unit}s are the differences that the test does not reject"
    return (
        f"{test}, which can give no p below {least_p(n):.3g} with {n} {unit}s; {interval}; p also adjusted by Holm for {numbers} numbers."
    )


def _shown(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _paired(column: Column, differences: np.ndarray, first: Placed) -> Paired:
    metric = first.row.metric(column)
    better = True if metric is None or metric.higher_is_better is None else metric.higher_is_better
    ((low, high),) = mean_interval(differences[:, None])
    sign = 1 if better else -1
    wins = float((sign * differences > 0).sum() + 0.5 * (differences == 0).sum())
    test = sign_flip(differences)
    return Paired(
        column.title,
        float(differences.mean()),
        (float(low), float(high)) if np.isfinite(low) else None,
        test.p,
        1.0,
        test.p_min,
        wins,
        len(differences),
        better,
        metric.unit if metric is not None else "",
    )


def _values(p: Placed, column: Column, names: list[str]) -> np.ndarray | None:
    assert p.check is not None
    values = p.check.values.get(p.row.label(column))
    if values is None:
        return None
    by_name = dict(zip(p.check.names, values))
    return np.array([np.nan if by_name[n] is None else by_name[n] for n in names], dtype=np.float64)


def _compare_imind(table: Table, first: Placed, second: Placed, choices: Choices) -> Comparison:
    assert first.row.entry is not None
    grid = load_table(first.row.entry.folder, first.row.entry.record)
    name, subset = choices.get("score", "roc_auc"), choices.get("subset", "main")
    tasks = {dict(c.slice).get("task") for c in table.columns} - {None}
    dataset = choices.get("dataset", "all")
    chosen = [u for u in grid.chosen(subset) if (not tasks or u.task in tasks) and dataset in ("all", u.dataset)]
    scores = []
    for p in (first, second):
        assert p.check is not None
        by_unit: dict[str, Any] = dict(zip(p.check.names, p.check.values[name]))
        if missing := [u.id for u in chosen if u.id not in by_unit]:
            raise ValueError(
                f"{p.row.name} has no score in {len(missing)} of the {len(chosen)} units shown: choose a subset that both rows cover."
            )
        scores.append({u.id: np.nan if by_unit[u.id] is None else by_unit[u.id] for u in chosen})
    found = compare_units(scores[0], scores[1], grid)
    title = {"overall": "Overall", **SHORT_NAMES}
    paired = [
        Paired(
            title[c.label],
            c.difference,
            c.ci95,
            c.p,
            1.0,
            c.p_min,
            c.wins,
            c.n_units,
            True,
            "share",
        )
        for c in found
    ]
    what = f" Over {len(tasks)} tasks." if tasks else ""
    left = f" Left out, since neither row has a score: {_shown(list(found[0].left_out))}." if found[0].left_out else ""
    words = _interval_words(found[0].method.partition(" over ")[0], found[0].n_clusters, "subject", len(paired))
    return Comparison(
        _holm(paired),
        f"Paired by unit (data set, session and task); whole subjects are flipped, since their units are not independent: {words} {found[0].shared}{left}{what}",
        (),
    )


def _holm(found: list[Paired]) -> tuple[Paired, ...]:
    order = sorted(range(len(found)), key=lambda i: found[i].p)
    adjusted, worst = {}, 0.0
    for k, i in enumerate(order):
        worst = max(worst, min(1.0, found[i].p * (len(found) - k)))
        adjusted[i] = worst
    return tuple(p._replace(p_holm=adjusted[i]) for i, p in enumerate(found))
