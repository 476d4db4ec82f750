"""The leaderboard as HTML: tables with real headings and text beside every mark. All text of records is foreign and is escaped here."""

from __future__ import annotations

import base64
import csv
import html
import io
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from decodehub.core.records import Metric

from .boards import RECOMPUTED, REPORTED, UNVERIFIED, Column, Placed, Table
from .compare import Comparison
from .data import Problem

SECTIONS = {
    RECOMPUTED: "Recomputed: scored anew here from the saved predictions",
    UNVERIFIED: "Not verified: the numbers are those that the record states",
    REPORTED: "Reported: printed in papers or on their sites, or with parts that nothing could check; data and code may differ",
}
SHOWN_TRAITS = ("n", "track", "split", "output", "pretraining", "release")
UNITS = {"percent": "%", "percentage points": "points", "share": "", "score": "", "correlation": "", "": ""}
CSV_COLUMNS = (
    "board", "rank", "model", "state", "reason", "number", "value", "ci95_low", "ci95_high", "sd", "sem", "n", "unit",
    "track", "split", "aggregation", "pretraining", "release", "table", "protocol_hash", "revision", "record", "source",
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


def esc(text: object, limit: int = 300) -> str:
    """Text for HTML; control characters and all beyond `limit` are dropped."""
    plain = "".join(c if c.isprintable() else " " for c in str(text))
    return html.escape(plain if len(plain) <= limit else plain[:limit] + " ...", quote=True).replace("$", "&#36;").replace("{", "&#123;")


def number(value: float, unit: str, *, signed: bool = False) -> str:
    """A value in the digits that its unit has in the papers."""
    digits = 1 if unit in ("percent", "percentage points") else 3
    return f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"


def ends_of(placed: Placed, column: Column, metric: Metric) -> tuple[tuple[float, float] | None, float | None]:
    """95 % interval of a number, from record or check, and its standard error."""
    if metric.ci95 is not None:
        return metric.ci95, None
    if placed.check is not None and (found := placed.check.intervals.get(placed.row.label(column))):
        return (found[0], found[1]), None
    sem = placed.row.metric(column._replace(name=f"{column.name}_sem"))
    return None, None if sem is None else sem.value


def render_table(table: Table, *, samples: bool, note: str = "") -> str:
    """The board."""
    count = {state: sum(p.state == state for p in table.placed) for state in SECTIONS}
    words = ", ".join(f"{n} {state}" for state, n in count.items() if n) or "none"
    status = f'<p role="status" class="lb-status">Rows: {words}.{esc(note)}</p>'
    warning = _sample_warning() if samples else ""
    if not table.placed:
        return f"{warning}{status}<p>No row passes these filters.</p>"
    sort = table.sort.title
    heads = "".join(
        f'<th scope="col"{_sorted(table, c)}>{esc(c.title)}{_unit(table, c)}</th>' for c in table.columns
    )  # fmt: skip
    parts = []
    for state, title in SECTIONS.items():
        rows = [p for p in table.placed if p.state == state]
        if rows:
            span = len(table.columns) + 2
            parts.append(
                f'<tbody class="lb-{state.replace(" ", "-")}"><tr><th scope="rowgroup" colspan="{span}"><span class="lb-wide">{title}</span></th></tr>'
            )
            parts += [_line(table, p) for p in rows]
            parts.append("</tbody>")
    name = f"{table.board.title}{' samples' if samples else ''}"
    caption = f"{esc(name)}, sorted by {esc(sort)}. {esc(table.board.about)}"
    return (
        f'{warning}{status}<div class="lb-scroll" role="region" aria-label="{esc(name)}: table" tabindex="0">'
        f'<table class="lb"><caption><span class="lb-wide">{caption}</span></caption><thead><tr><th scope="col">Rank</th><th scope="col">Model</th>{heads}</tr></thead>'
        f"{''.join(parts)}</table></div>{_download(to_csv(table), f'{table.board.id}.csv', 'Download these rows as CSV')}"
    )


def _line(table: Table, p: Placed) -> str:
    traits = [_trait(k, v) for k, v in p.row.traits.items() if v and k in SHOWN_TRAITS and v != "none declared"]
    if p.row.entry is not None:
        traits.append(f"record {p.row.entry.key}")
    about = " · ".join(esc(t, 60) for t in traits)
    reason = f'<span class="lb-reason">{esc(p.state)}: {esc(p.reason)}</span>' if p.reason else ""
    cells = "".join(_cell(p, c) for c in table.columns)
    rank = str(p.rank) if p.rank is not None else '–<span class="lb-hidden">not ranked</span>'
    return f'<tr><td class="lb-rank">{rank}</td><th scope="row">{esc(p.row.name, 80)}<span class="lb-about">{about}</span>{reason}</th>{cells}</tr>'


def _trait(name: str, value: str) -> str:
    return {"release": f"release {value}", "pretraining": f"pretrained on {value}"}.get(name, value)


def _cell(p: Placed, column: Column) -> str:
    metric = p.row.metric(column)
    if metric is None:
        return '<td>–<span class="lb-hidden">no such number</span></td>'
    if metric.value is None:
        return f'<td>–<span class="lb-about">not scored: {esc(metric.reason, 80)}</span></td>'
    ends, sem = ends_of(p, column, metric)
    spread = ""
    if ends is not None:
        spread = f"[{number(ends[0], metric.unit)}, {number(ends[1], metric.unit)}]"
    elif sem is not None:
        spread = f"± {number(sem, metric.unit)} SE"
    elif metric.sd is not None:
        spread = f"± {number(metric.sd, metric.unit)} SD"
    return f"<td>{number(metric.value, metric.unit)}{f'<span class=lb-ci>{spread}</span>' if spread else ''}</td>"


def _sorted(table: Table, column: Column) -> str:
    if column is not table.sort:
        return ""
    values = [
        m.value
        for p in table.placed
        if (m := p.row.metric(column)) is not None and m.value is not None and p.state == table.placed[0].state
    ]
    return f' aria-sort="{"ascending" if len(values) > 1 and values[0] < values[-1] else "descending"}"'


def _unit(table: Table, column: Column) -> str:
    unit = next((m.unit for p in table.placed if (m := p.row.metric(column)) is not None), "")
    return f' <span class="lb-unit">({UNITS[unit]})</span>' if UNITS.get(unit) else ""


def _sample_warning() -> str:
    return (
        '<p class="lb-warn"><strong>Samples.</strong> Sample and rehearsal releases and simulated recordings show how things work. '
        "Their scores say nothing about the benchmark and never stand beside real ones.</p>"
    )


def to_csv(table: Table) -> str:
    """One line a row and number, with all that identifies it."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for p in table.placed:
        record = p.row.entry.record if p.row.entry is not None else None
        for column in table.columns:
            m = p.row.metric(column)
            if m is None:
                continue
            ends, sem = ends_of(p, column, m)
            low, high = ends or ("", "")
            of_record = (
                (record.benchmark.content_hash, record.protocol.hash, record.model.revision or "", p.row.key)
                if record
                else ("", "", "", "")
            )
            traits = [p.row.traits.get(k, "") for k in ("track", "split", "aggregation", "pretraining", "release")]
            line = [
                table.board.id, p.rank or "", p.row.name, p.state, p.reason, column.title, "" if m.value is None else repr(m.value), low, high,
                "" if m.sd is None else m.sd, "" if sem is None else sem, m.n or "", m.unit, *traits, *of_record, p.row.source,
            ]  # fmt: skip
            writer.writerow([_safe(v) for v in line])
    return text.getvalue()


def _safe(value: object) -> object:
    """Text that a spreadsheet would run as a formula gets an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") and not _is_number(value) else value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _download(text: str, name: str, title: str) -> str:
    data = base64.b64encode(text.encode()).decode()
    return f'<p><a class="lb-download" download="{esc(name)}" href="data:text/csv;base64,{data}">{esc(title)}</a></p>'


def render_comparison(first: Placed, second: Placed, comparison: Comparison) -> str:
    """Paired differences as a table."""
    digits = "percentage points"
    rows = []
    for c in comparison.paired:
        unit = digits if c.unit in ("percent", "percentage points") else c.unit
        ends = f"[{number(c.ci95[0], unit, signed=True)}, {number(c.ci95[1], unit, signed=True)}]" if c.ci95 else "–"
        better = c.difference > 0 if c.better else c.difference < 0
        verdict = f"{esc((first if better else second).row.name, 60)} is better"
        if c.p_holm >= 0.05:
            can_be = c.least_p * len(comparison.paired) < 0.05
            verdict = "no significant difference" if can_be else f"too few to tell: no p below {c.least_p:.3f} is possible"
        rows.append(
            f'<tr><th scope="row">{esc(c.title)}{"" if c.better else " (lower is better)"}</th><td>{number(c.difference, unit, signed=True)}</td><td>{ends}</td>'
            f"<td>{_p(c.p)}</td><td>{_p(c.p_holm)}</td><td>{c.wins:g} of {c.n}</td><td>{verdict}</td></tr>"
        )
    left = (
        f"<p>Not compared, since they have no score for each unit: {esc(', '.join(comparison.left_out))}.</p>"
        if comparison.left_out
        else ""
    )
    title = f"{esc(first.row.name, 80)} minus {esc(second.row.name, 80)}"
    heads = "".join(f'<th scope="col">{h}</th>' for h in ("Number", "Difference", "95 % CI", "p", "p (Holm)", "Wins", "At 5 %"))
    return (
        f'<div class="lb-scroll" role="region" aria-label="Comparison" tabindex="0"><table class="lb"><caption><span class="lb-wide">{title}</span></caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div><p class=lb-note>{esc(comparison.method, 1000)}</p>{left}"
    )


def _p(p: float) -> str:
    return "&lt; 0.001" if p < 0.001 else f"{p:.3f}"


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

    lines = []
    for d in dots:
        marks = "".join(f'<i class="part" style="left:{at(v)}"></i>' for v in d.parts)
        if d.chance is not None:
            marks += f'<i class="chance" style="left:{at(d.chance)}"></i>'
        if d.ends is not None:
            marks += f'<i class="bar" style="left:{at(d.ends[0])};width:{100 * (d.ends[1] - d.ends[0]) / (high - low):.2f}%"></i>'
        marks += f'<i class="dot" style="left:{at(d.value)}"></i>'
        ends = (
            f"[{number(d.ends[0], d.unit)}, {number(d.ends[1], d.unit)}]"
            if d.ends
            else "–"
            if d.sem is None
            else f"± {number(d.sem, d.unit)} SE"
        )
        chance = "–" if d.chance is None else number(d.chance, d.unit)
        lines.append(
            f'<tr><th scope="row">{esc(d.label, 80)}</th><td class="lb-plot"><div aria-hidden="true">{marks}</div></td>'
            f"<td>{number(d.value, d.unit)}</td><td>{ends}</td><td>{chance}</td></tr>"
        )
    unit = dots[0].unit
    plot = f"Plot, {number(low, unit)} to {number(high, unit)}"
    heads = "".join(f'<th scope="col">{h}</th>' for h in ("Part", plot, "Value", "95 % CI", "Chance"))
    return (
        f'<h3 class="lb-sub">{esc(title)}</h3><div class="lb-scroll" role="region" aria-label="{esc(title)}" tabindex="0"><table class="lb lb-dots">'
        f'<caption><span class="lb-wide">{esc(note, 600)}</span></caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def plain_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[object]], *, folded: bool = False) -> str:
    """A table of text; the first cell of each row is its heading."""
    head = "".join(f'<th scope="col">{esc(h)}</th>' for h in heads)
    body = "".join(
        f'<tr><th scope="row">{esc(first)}</th>{"".join(f"<td>{esc(v, 2000)}</td>" for v in rest)}</tr>' for first, *rest in rows
    )
    table = (
        f'<div class="lb-scroll" role="region" aria-label="{esc(title)}" tabindex="0"><table class="lb lb-plain"><caption class="lb-hidden">{esc(title)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
    return f"<details><summary>{esc(title)}</summary>{table}</details>" if folded else f'<h3 class="lb-sub">{esc(title)}</h3>{table}'


def code(title: str, text: str) -> str:
    """A block of text to copy."""
    return f'<h3 class="lb-sub">{esc(title)}</h3><pre class="lb-code" tabindex="0" aria-label="{esc(title)}">{_lines(text)}</pre>'


def _lines(text: str) -> str:
    return "\n".join(esc(line, 1000) for line in text.splitlines())


def render_problems(problems: Sequence[Problem]) -> str:
    """Files that are no records, with the reason."""
    if not problems:
        return "<p>Every record file that was found could be read.</p>"
    return plain_table(
        f"{len(problems)} files are not valid records and are not shown", ("File", "Reason"), [(p.path, p.reason) for p in problems]
    )


def message(text: str) -> str:
    """A remark in place of a result."""
    return f'<p role="status" class="lb-warn">{esc(text, 600)}</p>'


CSS = """
.lb-scroll { container-type: inline-size; overflow-x: auto; margin: .5rem 0; border: 1px solid var(--border-color-primary); border-radius: 6px }
.lb-scroll:focus-visible, .lb-download:focus-visible, .lb-code:focus-visible, summary:focus-visible { outline: 3px solid #2563eb; outline-offset: 2px }
table.lb { border-collapse: collapse; width: 100%; margin: 0 !important; border: 0 !important; font-size: .9rem; color: var(--body-text-color) }
table.lb tr, table.lb thead, table.lb tbody { border: 0 !important }
table.lb caption { text-align: left; padding: .6rem .7rem; color: var(--body-text-color); caption-side: top }
table.lb .lb-wide { display: block; position: sticky; left: .7rem; white-space: normal; width: max-content; max-width: min(60rem, calc(100cqw - 1.6rem)) }
table.lb th, table.lb td { text-align: left; padding: .4rem .7rem; border: 0 !important; border-top: 1px solid var(--border-color-primary) !important; vertical-align: top }
table.lb thead th { white-space: nowrap; font-weight: 600 } table.lb th[aria-sort]::after { content: " ↓" } table.lb th[aria-sort=ascending]::after { content: " ↑" }
table.lb td { font-variant-numeric: tabular-nums; white-space: nowrap }
table.lb tbody th[scope=row] { font-weight: 600; min-width: 15rem; overflow-wrap: anywhere }
table.lb th[scope=rowgroup] { background: var(--background-fill-secondary); font-weight: 600; font-size: .82rem }
.lb-about, .lb-ci, .lb-reason { display: block; font-weight: 400; font-size: .78rem; color: var(--body-text-color); opacity: .85 }
.lb-reason { opacity: 1; font-style: italic; max-width: 26rem } .lb-unit { font-weight: 400 } .lb-note, .lb-status { font-size: .85rem }
.lb-reported tr td, .lb-reported tr th[scope=row] { background: repeating-linear-gradient(135deg, transparent 0 9px, rgba(127,127,127,.09) 9px 11px) }
.lb-warn { border-left: 4px solid #b45309; padding: .5rem .8rem; background: var(--background-fill-secondary) }
.lb-hidden { position: absolute !important; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap }
.lb-code { overflow-x: auto; padding: .6rem .8rem; background: var(--background-fill-secondary); border-radius: 6px; font-size: .8rem; white-space: pre-wrap; overflow-wrap: anywhere }
table.lb-plain td { white-space: normal; overflow-wrap: anywhere } table.lb-dots tbody th[scope=row], table.lb-plain tbody th[scope=row] { min-width: 7rem; overflow-wrap: break-word }
.lb-title { font-size: 1.15rem; margin: 1rem 0 .2rem } .lb-sub { font-size: 1rem; margin: 1rem 0 .3rem } .lb-download { text-decoration: underline; padding: .3rem 0; display: inline-block }
td.lb-plot { width: 45%; min-width: 9rem } td.lb-plot div { position: relative; height: 1.3rem; background: var(--background-fill-secondary) }
td.lb-plot i { position: absolute; top: 50% } i.dot { width: 11px; height: 11px; margin: -5.5px; border-radius: 50%; background: #1d4ed8; border: 1px solid #fff }
i.part { width: 6px; height: 6px; margin: -3px; border-radius: 50%; background: #c2610c; opacity: .75 } i.bar { height: 4px; margin-top: -2px; background: #5b8def }
i.chance { top: 0 !important; height: 100%; border-left: 2px dashed var(--body-text-color) }
.dark { --color-accent: #93c5fd } .dark i.dot { background: #93c5fd } .dark i.part { background: #fdba74 }
@media (max-width: 640px) {
  table.lb th, table.lb td { padding: .35rem .4rem } table.lb { font-size: .82rem } table.lb tbody th[scope=row] { min-width: 8.5rem }
  table.lb-dots tbody th[scope=row], table.lb-plain tbody th[scope=row] { min-width: 5.5rem } td.lb-plot { min-width: 7rem }
}
"""
