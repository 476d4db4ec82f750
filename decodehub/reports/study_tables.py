"""Tables 1, 2 and S10 to S14 of the EEG-EditBench paper from scored records, the published numbers beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from decodehub.core import tables
from decodehub.core.files import write_bytes
from decodehub.core.records import Metric, ResultRecord
from decodehub.core.tables import Format, Table, estimate, from_dicts

from .editbench import TITLES
from .pages import plural
from .study_paper import PaperModel, Slice, blocks, caveats, check_study, display_name, paper_model, published, warnings

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
    """Layout of one table: `spread` is what stands behind a mean, ``"sd"`` or ``"ci95"``; `bold` marks the best of each column."""

    number: str
    title: str
    columns: tuple[Column, ...]
    digits: int
    spread: tables.Spread
    bold: bool = False
    facts: bool = False
    signed: bool = False

    @property
    def format(self) -> Format:
        """Cells as in the paper: ``19.5 ± 3.8``, ``67.73 [66.34, 69.21]``; without spread where there is one subject."""
        return Format(self.digits, (self.spread,), self.signed, missing="not scored", minus="−")


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
        spread="ci95",
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
        spread="ci95",
    ),
    Spec(
        "S13",
        "Pairing gain by edit family, percentage points",
        _by_family("pairing_gain", ("attribute", "background", "removal", "identity")),
        digits=2,
        spread="ci95",
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


# ------------------------------------------------------------------------------------------------------------------------ layout


def layout(spec: Spec, scored: Mapping[str, ScoredRuns], records: Mapping[str, ResultRecord]) -> Table:
    """The layout of the paper: its models in its order, each with the published row below, then a block of all other models."""
    paper_block, others = blocks(scored)
    warned = warnings(scored, records)
    by_model: dict[str, list[Cell]] = {}
    for cell in cells(spec, scored):
        by_model.setdefault(cell.model, []).append(cell)
    rows: list[list[Any]] = []
    sections: dict[int, str] = {}
    quiet: set[int] = set()
    place: dict[str, int] = {}
    for name, row in by_model.items():
        if paper_block and name in others[:1]:
            sections[len(rows)] = "Baselines and other models"
        model = paper_model(name)
        place[name] = len(rows)
        facts = _facts(model) if spec.facts else []
        rows.append([display_name(name), *facts, *(estimate(cell.metric) for cell in row)])
        if model:
            quiet.add(len(rows))
            published_row = ("" if cell.paper is None else estimate(cell.paper) for cell in row)
            rows.append(["paper*" if warned else "paper", *([""] * len(facts)), *published_row])
    first = 3 if spec.facts else 1
    headings = ["Model", *(["Venue", "Degraded"] if spec.facts else [])]
    numbers = [tables.Column(cell.column.heading, spec.format) for cell in next(iter(by_model.values()))]
    notes = [*_warning_lines(warned, bool(quiet)), *_legend(spec, scored), *_reasons(by_model)]
    best = {(place[name], first + j) for name, j in _best(by_model)} if spec.bold else set()
    title = f"Table {spec.number}. {spec.title}"
    return Table([*headings, *numbers], rows, title=title, notes=notes, best=best, quiet=quiet, sections=sections)


def _facts(model: PaperModel | None) -> list[str]:
    return ["–", "–"] if model is None else [model.venue, "yes" if model.degraded else "–"]


def _warning_lines(warned: Sequence[str], beside_paper: bool) -> list[str]:
    if not warned:
        return []
    return [" ".join(warned), *(["* The paper's numbers are from the real benchmark."] if beside_paper else [])]


def _best(by_model: Mapping[str, Sequence[Cell]]) -> set[tuple[str, int]]:
    """Model and column of the highest scored numbers; none where one model stands alone."""
    found = set()
    for j in range(len(next(iter(by_model.values())))):
        values = {name: value for name, row in by_model.items() if (value := row[j].metric.value) is not None}
        found |= {(name, j) for name, value in values.items() if value == max(values.values())}
    return found if len(by_model) > 1 else set()


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


def layouts(scored: Mapping[str, ScoredRuns], records: Mapping[str, ResultRecord]) -> list[Table]:
    """All tables in the layout of the paper.

    Raises:
        ValueError: see `check_study`.
    """
    check_study(scored, records)
    return [layout(spec, scored, records) for spec in TABLES]


def write_tables(out: Path, scored: Mapping[str, ScoredRuns], records: Mapping[str, ResultRecord]) -> list[Path]:
    """Write every table as ``table_N.csv`` (one row a model and cell, numbers in full), ``table_N.md`` and ``table_N.tex``.

    Args:
        out: folder to write to.
        scored: display name to scored runs, all on one benchmark table and under one set of settings.
        records: display name to record.

    Returns:
        The files written.

    Raises:
        ValueError: see `check_study`.
    """
    written = []
    for spec, shown in zip(TABLES, layouts(scored, records)):
        texts = {"csv": from_dicts(csv_rows(spec, scored, records)).csv(), "md": shown.markdown(), "tex": shown.latex()}
        for suffix, text in texts.items():
            path = Path(out) / f"table_{spec.number}.{suffix}"
            write_bytes(path, text.encode())
            written.append(path)
    return written
