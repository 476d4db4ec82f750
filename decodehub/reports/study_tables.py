"""Tables 1, 2 and S10 to S14 of the EEG-EditBench paper from scored records, the published numbers beside them."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.markup import escape
from rich.table import Table

from decodehub.core.files import write_bytes
from decodehub.core.records import Metric, ResultRecord

from .editbench import TITLES
from .pages import plural
from .study_paper import Slice, blocks, caveats, check_study, display_name, paper_model, published, warnings

if TYPE_CHECKING:
    from decodehub.metrics.eeg_editbench.protocol import ScoredRuns


class Column(NamedTuple):
    """A column: its two-part heading and the metric in it."""

    group: str
    title: str
    metric: str
    slice: Slice = ()

    @property
    def heading(self) -> str:
        return f"{self.group}: {self.title}" if self.group else self.title


class Spec(NamedTuple):
    """Layout of one table: `spread` is what stands behind a mean, ``"sd"`` or ``"ci"``; `bold` marks the best of each column."""

    number: str
    title: str
    columns: tuple[Column, ...]
    digits: int
    spread: str
    bold: bool = False
    facts: bool = False
    signed: bool = False


class Cell(NamedTuple):
    """One number of one model: what we scored (`metric.value` is None with a reason where we could not), and the paper's."""

    table: str
    model: str
    column: Column
    metric: Metric
    paper: Metric | None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        if self.metric.value is None or self.paper is None or self.paper.value is None:
            return None
        return self.metric.value - self.paper.value


def _by_family(metric: str, families: Iterable[str], group: str = "") -> tuple[Column, ...]:
    return tuple(Column(group, TITLES[f], metric, (("family", f),)) for f in families)


def _by_subtype(group: str, subtypes: Iterable[str], family: str) -> tuple[Column, ...]:
    columns = tuple(Column(group, TITLES[s], "two_afc", (("subtype", s),)) for s in subtypes)
    return (*columns, Column(group, "Overall", "two_afc", (("family", family),)))


TABLES = (
    Spec(
        "1",
        "Standard retrieval and EEG-EditBench, percent",
        (
            Column("Retrieval", "{n}-way original", "top1"),
            Column("Retrieval", "{n}-way null", "null_top1"),
            Column("Retrieval", "EP-Top1", "ep_top1"),
            *_by_family("two_afc", ("identity", "attribute", "background", "removal"), "2AFC"),
            Column("2AFC", "Overall", "two_afc"),
        ),
        digits=1,
        spread="sd",
        bold=True,
        facts=True,
    ),
    Spec(
        "2",
        "2AFC of identity and attribute edits, percent",
        (
            *_by_subtype("Identity", ("near", "medium", "far"), "identity"),
            *_by_subtype("Attribute", ("color", "material", "texture", "shape", "state"), "attribute"),
        ),
        digits=1,
        spread="sd",
        bold=True,
    ),
    Spec(
        "S10",
        "Overall 2AFC by aggregation, percent",
        (Column("", "Edit-balanced", "two_afc"), Column("", "Concept-and-family-balanced", "two_afc_balanced")),
        digits=1,
        spread="sd",
        bold=True,
    ),
    Spec(
        "S11",
        "2AFC with correctly paired and with mismatched EEG, percent, and their difference in percentage points",
        (
            Column("", "Correctly paired", "two_afc"),
            Column("", "Mismatched query", "two_afc_mismatched"),
            Column("", "Pairing gain", "pairing_gain"),
        ),
        digits=2,
        spread="ci",
    ),
    Spec(
        "S12",
        "2AFC with null edits, percent, and the pairing gain in percentage points",
        (
            Column("Original over null", "correct EEG", "original_over_null"),
            Column("Null over edit", "correct EEG", "null_over_edit"),
            Column("Null over edit", "mismatched EEG", "null_over_edit_mismatched"),
            Column("", "Pairing gain", "null_pairing_gain"),
        ),
        digits=2,
        spread="ci",
    ),
    Spec(
        "S13",
        "Pairing gain by edit family, percentage points",
        _by_family("pairing_gain", ("attribute", "background", "removal", "identity")),
        digits=2,
        spread="ci",
    ),
    Spec(
        "S14",
        "2AFC of a family minus Attribute, before and after balancing by visual distance, percentage points",
        tuple(
            Column(f"{TITLES[f]} − Attribute", title, metric, (("family", f),))
            for f in ("background", "removal", "identity")
            for title, metric in (("unbalanced", "distance_gap_unbalanced"), ("distance-balanced", "distance_gap_balanced"))
        ),
        digits=2,
        spread="sd",
        signed=True,
    ),
)


# ------------------------------------------------------------------------------------------------------------------------- cells


def cells(spec: Spec, scored: Mapping[str, ScoredRuns]) -> list[Cell]:
    """All cells of a table: the models in the order of `blocks`, the columns from left to right."""
    paper_block, others = blocks(scored)
    result = []
    for name in (*paper_block, *others):
        runs = scored[name]
        found = {(m.name, tuple(m.slice.items())): m for m in runs.metrics}
        for column in spec.columns:
            metric = found.get((column.metric, column.slice)) or _absent(runs, column)
            heading = column._replace(title=column.title.format(n=len(runs.plan.benchmark.concepts)))
            paper = published().get((spec.number, display_name(name), column.metric, column.slice))
            result.append(Cell(spec.number, name, heading, metric, paper))
    return result


def _absent(runs: ScoredRuns, column: Column) -> Metric:
    """A number that scoring does not list, with the reason."""
    b = runs.plan.benchmark
    kind = {"family": b.family, "subtype": b.subtype}
    if any(not (kind[part] == value).any() for part, value in column.slice):
        reason = f"release {b.release} has no edits of {' and '.join(value for _, value in column.slice)}"
    elif "null" in column.metric:
        reason = "null-edited images were not scored"
    elif column.metric.startswith("distance"):
        reason = runs.plan.unscored.get("distance") or f"release {b.release} has no attribute edits to compare with"
    else:
        raise KeyError(f"scoring gives no metric {column.metric!r} of {column.slice}")
    return Metric(
        name=column.metric,
        slice=dict(column.slice),
        value=None,
        reason=reason,
        unit="percent",
        higher_is_better=None,
        n=len(runs.total.subjects),
    )


def csv_rows(spec: Spec, scored: Mapping[str, ScoredRuns], records: Mapping[str, ResultRecord]) -> list[dict[str, Any]]:
    """One row a model and cell, numbers in full; see `cells`."""
    paper_block, _ = blocks(scored)
    found = caveats(scored, records)
    rows = []
    for cell in cells(spec, scored):
        m, p, runs = cell.metric, cell.paper, scored[cell.model]
        rows.append(
            {
                "table": spec.number,
                "model": display_name(cell.model),
                "block": "paper" if cell.model in paper_block else "other",
                "column": cell.column.heading,
                "metric": m.name,
                "slice": slice_text(cell.column.slice),
                "unit": m.unit,
                "value": m.value,
                "sd": m.sd,
                "ci_low": m.ci95[0] if m.ci95 else None,
                "ci_high": m.ci95[1] if m.ci95 else None,
                "subjects": m.n,
                "seeds": len(runs.total.seeds),
                "chance": m.chance,
                "reason": m.reason,
                "paper_value": p.value if p else None,
                "paper_sd": p.sd if p else None,
                "paper_ci_low": p.ci95[0] if p and p.ci95 else None,
                "paper_ci_high": p.ci95[1] if p and p.ci95 else None,
                "difference": cell.difference,
                "release": runs.plan.benchmark.release,
                "content_hash": runs.plan.benchmark.content_hash,
                "comparable_with_paper": "; ".join(["no", *found[cell.model]]) if found[cell.model] else "yes",
            }
        )
    return rows


def slice_text(slice_: Slice) -> str:
    """``family=identity``; empty for everything."""
    return ",".join(f"{k}={v}" for k, v in slice_)


def csv_bytes(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Rows as CSV, floats in full, None empty."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


# --------------------------------------------------------------------------------------------------------------- Markdown and terminal


class Grid(NamedTuple):
    """A table as text: `rows` of cells; `best` cells (row, column); rows `from_paper`; `sections` by the row they start at; `notes` below."""

    title: str
    headings: list[str]
    rows: list[list[str]]
    best: set[tuple[int, int]]
    from_paper: set[int]
    sections: dict[int, str]
    notes: list[str]


def grid(spec: Spec, scored: Mapping[str, ScoredRuns], records: Mapping[str, ResultRecord]) -> Grid:
    """The layout of the paper: its models in its order, each with the published row below, then a block of all other models."""
    paper_block, others = blocks(scored)
    warned = warnings(scored, records)
    by_model: dict[str, list[Cell]] = {}
    for cell in cells(spec, scored):
        by_model.setdefault(cell.model, []).append(cell)
    headings = ["Model", *(["Venue", "Degraded"] if spec.facts else []), *(cell.column.heading for cell in next(iter(by_model.values())))]
    rows: list[list[str]] = []
    sections: dict[int, str] = {}
    from_paper: set[int] = set()
    place: dict[str, int] = {}
    mark = "paper*" if warned else "paper"
    for name, row in by_model.items():
        if paper_block and name in others[:1]:
            sections[len(rows)] = "Baselines and other models"
        model = paper_model(name)
        place[name] = len(rows)
        facts = ([model.venue, "yes" if model.degraded else "–"] if model else ["–", "–"]) if spec.facts else []
        rows.append([display_name(name), *facts, *(cell_text(spec, cell.metric) for cell in row)])
        if model:
            from_paper.add(len(rows))
            rows.append([mark, *([""] * len(facts)), *("" if c.paper is None else cell_text(spec, c.paper) for c in row)])
    best = set()
    if spec.bold and len(by_model) > 1:
        first = len(headings) - len(spec.columns)
        for j in range(len(spec.columns)):
            values = {name: value for name, row in by_model.items() if (value := row[j].metric.value) is not None}
            best |= {(place[name], first + j) for name, v in values.items() if v == max(values.values())}
    real = "* The paper's numbers are from the real benchmark."
    notes = [
        *([" ".join(warned)] if warned else []),
        *([real] if warned and from_paper else []),
        *_legend(spec, scored),
        *_reasons(by_model),
    ]
    return Grid(f"Table {spec.number}. {spec.title}", headings, rows, best, from_paper, sections, notes)


def cell_text(spec: Spec, metric: Metric) -> str:
    """A cell as in the paper: ``19.5 ± 3.8``, ``67.73 [66.34, 69.21]``; without spread where there is one subject."""
    if metric.value is None:
        return "not scored"
    digits = spec.digits
    text = f"{metric.value:{'+' if spec.signed else ''}.{digits}f}"
    if spec.spread == "ci" and metric.ci95:
        text += f" [{metric.ci95[0]:.{digits}f}, {metric.ci95[1]:.{digits}f}]"
    elif spec.spread == "sd" and metric.sd is not None and metric.n > 1:
        text += f" ± {metric.sd:.{digits}f}"
    return text.replace("-", "−")


def _legend(spec: Spec, scored: Mapping[str, ScoredRuns]) -> list[str]:
    grids: dict[str, list[str]] = {}
    for name, runs in scored.items():
        words = f"{plural(len(runs.total.subjects), 'subject')}, {plural(len(runs.total.seeds), 'seed')} each"
        grids.setdefault(words, []).append(display_name(name))
    who = next(iter(grids)) if len(grids) == 1 else "; ".join(f"{', '.join(names)}: {words}" for words, names in grids.items())
    spread = "population SD over subjects" if spec.spread == "sd" else "95 % interval over subjects"
    lines = [f"Mean and {spread}, seeds averaged within subject first ({who})."]
    if spec.bold and len(scored) > 1:
        lines.append("Bold: the best of the scored models in a column.")
    return lines


def _reasons(by_model: Mapping[str, Sequence[Cell]]) -> list[str]:
    """A line for each reason: which columns, and which models unless it is all."""
    where: dict[str, tuple[list[str], list[str]]] = {}
    for name, row in by_model.items():
        for cell in row:
            if cell.metric.reason is not None:
                for found, one in zip(where.setdefault(cell.metric.reason, ([], [])), (cell.column.heading, display_name(name))):
                    found += [] if one in found else [one]
    lines = []
    for reason, (columns, models) in where.items():
        of = "" if len(models) == len(by_model) else f" of {', '.join(models)}"
        lines.append(f"Not scored: {', '.join(columns)}{of}: {reason}.")
    return lines


def markdown(table: Grid) -> str:
    """The table as Markdown, notes below it."""
    lines = [f"# {table.title}", "", _line(map(_plain, table.headings)), _line(["---", *["---:"] * (len(table.headings) - 1)])]
    for i, row in enumerate(table.rows):
        if i in table.sections:
            lines.append(_line([f"*{table.sections[i]}*", *[""] * (len(row) - 1)]))
        lines.append(_line(f"**{_plain(text)}**" if (i, j) in table.best else _plain(text) for j, text in enumerate(row)))
    return "\n".join([*lines, "", *(f"- {_plain(note)}" for note in table.notes), ""])


def rich_tables(scored: Mapping[str, ScoredRuns], records: Mapping[str, ResultRecord], width: int = 80) -> list[Table]:
    """All tables for a terminal of `width` characters; a wide one is cut into several between its columns, never within a number.

    Raises:
        ValueError: see `check_study`.
    """
    check_study(scored, records)
    return [table for spec in TABLES for table in _cut(grid(spec, scored, records), width)]


def _cut(table: Grid, width: int) -> list[Table]:
    padding = 3
    headings = [heading.replace(": ", "\n") for heading in table.headings]
    widths = [
        max(len(line) for text in (headings[j], *(row[j] for row in table.rows)) for line in text.split("\n")) for j in range(len(headings))
    ]
    parts: list[list[int]] = [[]]
    for j in range(1, len(headings)):
        if parts[-1] and widths[0] + sum(widths[k] + padding for k in (*parts[-1], j)) + padding + 1 > width:
            parts.append([])
        parts[-1].append(j)
    return [_rich_table(table, headings, [0, *part], first=part is parts[0], last=part is parts[-1]) for part in parts]


def _rich_table(table: Grid, headings: Sequence[str], columns: Sequence[int], *, first: bool, last: bool) -> Table:
    shown = Table(title=escape(table.title + ("" if first else " (continued)")), title_justify="left", caption_justify="left")
    shown.caption = escape("\n".join(table.notes)) if last else None
    for j in columns:
        shown.add_column(escape(headings[j]), justify="right" if j else "left", no_wrap=True)
    for i, row in enumerate(table.rows):
        if i in table.sections:
            shown.add_section()
        texts = (f"[bold]{escape(row[j])}[/bold]" if (i, j) in table.best else escape(row[j]) for j in columns)
        shown.add_row(*texts, style="dim" if i in table.from_paper else None)
    return shown


def write_tables(out: Path, scored: Mapping[str, ScoredRuns], records: Mapping[str, ResultRecord]) -> list[Path]:
    """Write every table as ``table_N.csv`` (one row a model and cell, numbers in full) and ``table_N.md``.

    Args:
        out: folder to write to.
        scored: display name to scored runs, all on one benchmark table and under one set of settings.
        records: display name to record.

    Returns:
        The files written.

    Raises:
        ValueError: see `check_study`.
    """
    check_study(scored, records)
    written = []
    for spec in TABLES:
        for suffix, data in (
            ("csv", csv_bytes(csv_rows(spec, scored, records))),
            ("md", markdown(grid(spec, scored, records)).encode()),
        ):
            path = Path(out) / f"table_{spec.number}.{suffix}"
            write_bytes(path, data)
            written.append(path)
    return written


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _plain(text: str) -> str:
    return re.sub(r"([|<`*\\])", r"\\\1", text).replace("\n", " ")
