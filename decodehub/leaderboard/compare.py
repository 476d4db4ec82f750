"""Is one row better than another? Paired tests on the units that both were scored on."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from decodehub.metrics.eeg_editbench.aggregate import subject_ci
from decodehub.metrics.imindbench.compare import compare_units
from decodehub.metrics.imindbench.grid import SHORT_NAMES
from decodehub.metrics.imindbench.protocol import load_table

from .boards import RECOMPUTED, Choices, Column, Placed, Table

EXACT_UP_TO = 16  # units: 65,536 sign patterns
DRAWS = 20_000


class Paired(NamedTuple):
    """First row minus second.

    Attributes:
        title: what was compared. difference: mean over units. ci95: 95 % bootstrap interval, None with one unit. p: two-sided, sign-flip.
        p_holm: adjusted for all numbers of the comparison. least_p: the smallest p that so few units (or people) can give. wins: units in which the first is better, a tie counts one half.
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
    found, left_out = [], []
    for column in table.columns:
        x, y = (_values(p, column, common) for p in (first, second))
        if x is None or y is None:
            left_out.append(column.title)
            continue
        there = np.isfinite(x) & np.isfinite(y)
        if there.sum() < 2:
            left_out.append(column.title)
            continue
        found.append(_paired(column, (x - y)[there], first))
    if not found:
        raise ValueError(f"None of the numbers shown has a score for each {a.unit} in both rows (at least two are needed).")
    exact = found[0].n <= EXACT_UP_TO
    method = f"Paired by {a.unit}: {'exact sign-flip test' if exact else f'sign-flip test, {DRAWS:,} draws'}; 95 % bootstrap interval over {a.unit}s; p also adjusted by Holm for {len(found)} numbers."
    if table.board.id == "bcs":
        method += " Differences are means over concepts, each counted once."
    return Comparison(_holm(found), method, tuple(left_out))


def sign_flip(differences: np.ndarray, *, draws: int = DRAWS, seed: int = 0) -> float:
    """Two-sided p of a zero mean under random signs of independent (n,) differences: all 2**n patterns up to 16, else random ones (the observed one counts)."""
    n = len(differences)
    edge = abs(differences.sum()) - 1e-12 * max(1.0, np.abs(differences).sum())
    if n <= EXACT_UP_TO:
        signs = 1.0 - 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
        return float((np.abs(signs @ differences) >= edge).mean())
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    signs = rng.integers(0, 2, size=(draws, n), dtype=np.int8) * 2.0 - 1.0
    return (int((np.abs(signs @ differences) >= edge).sum()) + 1) / (draws + 1)


def least_p(n: int) -> float:
    """The smallest p of a sign-flip test of n differences: all of one sign."""
    return 2.0 ** (1 - n) if n <= EXACT_UP_TO else 1 / (DRAWS + 1)


def _paired(column: Column, differences: np.ndarray, first: Placed) -> Paired:
    metric = first.row.metric(column)
    better = True if metric is None or metric.higher_is_better is None else metric.higher_is_better
    ends, _ = subject_ci(differences[:, None])
    sign = 1 if better else -1
    wins = float((sign * differences > 0).sum() + 0.5 * (differences == 0).sum())
    unit = metric.unit if metric is not None else ""
    low, high = (float(v) for v in ends[0])
    return Paired(
        column.title,
        float(differences.mean()),
        (low, high),
        sign_flip(differences),
        1.0,
        least_p(len(differences)),
        wins,
        len(differences),
        better,
        unit,
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
            least_p(c.n_clusters),
            c.wins,
            c.n_units,
            True,
            "share",
        )
        for c in found
    ]
    what = f" Over {len(tasks)} tasks." if tasks else ""
    return Comparison(
        _holm(paired),
        f"Paired by unit (data set, session and task), whole people flipped and resampled since their units are not independent: {found[0].method}; "
        f"95 % bootstrap interval over people; p also adjusted by Holm for {len(paired)} numbers.{what}",
        (),
    )


def _holm(found: list[Paired]) -> tuple[Paired, ...]:
    order = sorted(range(len(found)), key=lambda i: found[i].p)
    adjusted, worst = {}, 0.0
    for k, i in enumerate(order):
        worst = max(worst, min(1.0, found[i].p * (len(found) - k)))
        adjusted[i] = worst
    return tuple(p._replace(p_holm=adjusted[i]) for i, p in enumerate(found))
