"""The leaderboard as HTML: tables with real headings and text beside every mark; the templates escape all text of records."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from decodehub.core import tables
from decodehub.core.html import render
from decodehub.core.records import Metric
from decodehub.core.tables import Format, digits_of

from .boards import RECOMPUTED, REPORTED, UNVERIFIED, Column, Placed, Table
from .compare import Comparison, Paired
from .data import Loaded, Problem

TEMPLATES = "leaderboard/templates"
SECTIONS = {
    RECOMPUTED: "Recomputed: re-scored here from the saved predictions",
    UNVERIFIED: "Not verified: the numbers are those that the record states",
    REPORTED: "Reported: printed in papers or on their sites, or with parts that nothing could check; data and code may differ",
}
SHOWN_TRAITS = ("n", "track", "split", "output", "pretraining", "release")
UNITS = {"percent": "%", "percentage points": "points"}
CSV_TRAITS = ("track", "split", "aggregation", "pretraining", "release")
CSV_COLUMNS = (
    "board", "rank", "model", "state", "reason", "number", "value", "ci95_low", "ci95_high", "sd", "sem", "n", "unit",
    *CSV_TRAITS, "table", "protocol_hash", "revision", "record", "source",
)  # fmt: skip


class Dot(NamedTuple):
    """A line of a dot plot: label, value with its 95 % interval or standard error, chance level, and the values of its parts (subjects, units)."""

    label: str
    value: float
    ends: tuple[float, float] | None
    sem: float | None
    chance: float | None
    parts: Sequence[float]
    unit: str


class Shown(NamedTuple):
    """A cell of a board: the number, its spread, or why there is none (`hidden`: for screen readers alone)."""

    text: str
    spread: str = ""
    reason: str = ""
    hidden: str = ""


def fragment(template: str, /, **values: Any) -> str:
    """A part of the page; Gradio takes ``${`` and ``{{`` for its own, so no value may hold them."""
    return str(render(f"{TEMPLATES}/{template}", **values)).replace("$", "&#36;").replace("{", "&#123;")


def number(value: float | None, unit: str, *, signed: bool = False) -> str:
    """A value in the digits that its unit has in the papers."""
    return Format(digits_of(unit), signed=signed).text(value)


def interval(ends: tuple[float, float] | None, unit: str, *, signed: bool = False) -> str:
    """A 95 % interval in these digits."""
    return Format(digits_of(unit), signed=signed).interval(ends)


def ends_of(placed: Placed, column: Column, metric: Metric) -> tuple[tuple[float, float] | None, float | None]:
    """95 % interval of a number, from record or check, and its standard error."""
    if metric.ci95 is not None:
        return metric.ci95, None
    if placed.check is not None and (found := placed.check.intervals.get(placed.row.label(column))):
        return (found[0], found[1]), None
    sem = placed.row.metric(column._replace(name=f"{column.name}_sem"))
    return None, None if sem is None else sem.value


def render_head(loaded: Loaded) -> str:
    """Title of the page and where its records are from."""
    return fragment("head.html", source=loaded.repo or loaded.root.name or "records", revision=loaded.revision, note=loaded.note)


def render_table(table: Table, *, samples: bool, note: str = "") -> str:
    """The board."""
    count = {state: sum(p.state == state for p in table.placed) for state in SECTIONS}
    return fragment(
        "board.html",
        samples=samples,
        words=", ".join(f"{n} {state}" for state, n in count.items() if n) or "none",
        note=note,
        name=f"{table.board.title}{' samples' if samples else ''}",
        board=table.board,
        sort=table.sort.title,
        columns=[{"title": c.title, "unit": _unit(table, c), "order": _order(table, c)} for c in table.columns],
        sections=[
            {"state": state, "title": title, "rows": [_row(table, p) for p in table.placed if p.state == state]}
            for state, title in SECTIONS.items()
            if count[state]
        ],
        csv=base64.b64encode(to_csv(table).encode()).decode(),
    )


def _row(table: Table, p: Placed) -> dict[str, Any]:
    traits = [_trait(k, v) for k, v in p.row.traits.items() if v and k in SHOWN_TRAITS and v != "none declared"]
    if p.row.entry is not None:
        traits.append(f"record {p.row.entry.key}")
    return {"placed": p, "traits": traits, "cells": [_cell(p, c) for c in table.columns]}


def _trait(name: str, value: str) -> str:
    return {"release": f"release {value}", "pretraining": f"pretrained on {value}"}.get(name, value)


def _cell(p: Placed, column: Column) -> Shown:
    metric = p.row.metric(column)
    if metric is None:
        return Shown(tables.ABSENT, hidden="no such number")
    if metric.value is None:
        return Shown(tables.ABSENT, reason=metric.reason or "")
    ends, sem = ends_of(p, column, metric)
    spread = ""
    if ends is not None:
        spread = interval(ends, metric.unit)
    elif sem is not None:
        spread = f"± {number(sem, metric.unit)} SE"
    elif metric.sd is not None:
        spread = f"± {number(metric.sd, metric.unit)} SD"
    return Shown(number(metric.value, metric.unit), spread)


def _order(table: Table, column: Column) -> str:
    """How the rows are sorted by this column; empty if they are not."""
    if column is not table.sort:
        return ""
    first = [p.row.metric(column) for p in table.placed if p.state == table.placed[0].state]
    values = [m.value for m in first if m is not None and m.value is not None]
    return "ascending" if len(values) > 1 and values[0] < values[-1] else "descending"


def _unit(table: Table, column: Column) -> str:
    return UNITS.get(next((m.unit for p in table.placed if (m := p.row.metric(column)) is not None), ""), "")


def to_csv(table: Table) -> str:
    """One line a row and number, with all that identifies it."""
    rows = [row for p in table.placed for column in table.columns for row in _csv_row(table, p, column)]
    return tables.Table(CSV_COLUMNS, rows).csv()


def _csv_row(table: Table, p: Placed, column: Column) -> Iterable[list[object]]:
    m = p.row.metric(column)
    if m is None:
        return
    ends, sem = ends_of(p, column, m)
    record = p.row.entry.record if p.row.entry is not None else None
    of_record = (record.benchmark.content_hash, record.protocol.hash, record.model.revision, p.row.key) if record else ("",) * 4
    yield [
        table.board.id, p.rank, p.row.name, p.state, p.reason, column.title, m.value, *(ends or ("", "")), m.sd, sem, m.n or "", m.unit,
        *(p.row.traits.get(k, "") for k in CSV_TRAITS), *of_record, p.row.source,
    ]  # fmt: skip


def render_comparison(first: Placed, second: Placed, comparison: Comparison) -> str:
    """Paired differences as a table."""
    tests = len(comparison.paired)
    rows = [
        {
            "title": c.title + ("" if c.better else " (lower is better)"),
            "cells": (
                number(c.difference, c.unit, signed=True),
                interval(c.ci95, c.unit, signed=True),
                _p(c.p),
                _p(c.p_holm),
                f"{c.wins:g} of {c.n}",
            ),
            "verdict": _verdict(c, first.row.name, second.row.name, tests),
        }
        for c in comparison.paired
    ]
    return fragment("comparison.html", first=first.row.name, second=second.row.name, rows=rows, comparison=comparison)


def _verdict(c: Paired, first: str, second: str, tests: int) -> tuple[str, str]:
    """Name of the row that is better, if one is, and the verdict in words."""
    if c.p_holm < 0.05:
        better = c.difference > 0 if c.better else c.difference < 0
        return (first if better else second), "is better"
    if c.least_p * tests < 0.05:
        return "", "no significant difference"
    return "", f"too few to tell: no p below {c.least_p:.3f} is possible"


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def dot_plot(title: str, dots: Sequence[Dot], note: str = "") -> str:
    """A table whose last column is a plot: interval as a bar, value as a dot, parts as small dots, chance as a dashed line."""
    if not dots:
        return ""
    every = [v for d in dots for v in (d.value, *(d.ends or ()), *d.parts, *([] if d.chance is None else [d.chance]))]
    low, high = min(every), max(every)
    pad = (high - low) * 0.04 or abs(high) * 0.04 or 1.0
    low, high = low - pad, high + pad

    def at(value: float) -> str:
        return f"{100 * (value - low) / (high - low):.2f}%"

    rows = [
        {
            "label": d.label,
            "parts": [at(v) for v in d.parts],
            "chance_at": "" if d.chance is None else at(d.chance),
            "bar": (at(d.ends[0]), f"{100 * (d.ends[1] - d.ends[0]) / (high - low):.2f}%") if d.ends else (),
            "at": at(d.value),
            "value": number(d.value, d.unit),
            "ends": interval(d.ends, d.unit) if d.ends or d.sem is None else f"± {number(d.sem, d.unit)} SE",
            "chance": number(d.chance, d.unit),
        }
        for d in dots
    ]
    unit = dots[0].unit
    return fragment("dots.html", title=title, note=note, rows=rows, low=number(low, unit), high=number(high, unit))


def plain_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[object]], *, folded: bool = False) -> str:
    """A table of text; the first cell of each row is its heading."""
    return fragment("plain.html", title=title, heads=heads, rows=list(rows), folded=folded)


def code(title: str, text: str) -> str:
    """A block of text to copy."""
    return fragment("code.html", title=title, lines=text.splitlines())


def render_problems(problems: Sequence[Problem]) -> str:
    """Files that are no records, with the reason."""
    if not problems:
        return fragment("no_problems.html")
    title = f"{len(problems)} files are not valid records and are not shown"
    return plain_table(title, ("File", "Reason"), [(p.path, p.reason) for p in problems])


def message(text: str) -> str:
    """A remark in place of a result."""
    return fragment("message.html", text=text)


def heading(name: str) -> str:
    """The title of the page of a row."""
    return fragment("heading.html", name=name)
