"""What one row of the leaderboard is made of: numbers by family or unit, where it is from, how to cite and how to make it again."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np

from decodehub import metrics
from decodehub.metrics.imindbench.grid import DATASETS, SHORT_NAMES
from decodehub.metrics.imindbench.protocol import load_table

from .boards import BCS_REGIMES, BCS_TABLE6, FAMILIES, SUBTYPES, Choices, Column, Placed, Table, bcs_columns, imind_tasks
from .checks import BENCHMARKS, label
from .data import Entry, Loaded, Slice
from .html import Dot, code, dot_plot, ends_of, heading, message, number, plain_table

MAX_CONCEPTS = 10
SHOWN_SETTINGS = 4000  # characters


def render_details(table: Table, placed: Placed, choices: Choices, loaded: Loaded) -> str:
    """The page of one row."""
    parts = [heading(placed.row.name)]
    if placed.reason:
        parts.append(message(f"{placed.state}: {placed.reason}{'; ' + placed.row.note if placed.row.note else ''}"))
    parts.append({"eeg-editbench": _editbench, "bcs": _bcs, "imindbench": _imind}[table.board.id](placed, choices))
    if placed.row.entry is not None:
        parts.append(_provenance(placed.row.entry, placed))
        parts.append(code("Command", commands(loaded, placed)))
    else:
        parts.append(plain_table("Where it is from", ("Item", "Value"), [("source", placed.row.source), ("note", placed.row.note or "–")]))
    parts.append(code("Citation (BibTeX)", citation(table.board.id, placed.row.entry)))
    return "".join(parts)


def commands(loaded: Loaded, placed: Placed) -> str:
    """Shell lines that get the record, score it anew, and print the row."""
    entry = placed.row.entry
    assert entry is not None
    lines, root = [], str(loaded.root)
    if loaded.repo:
        root = "results"
        include = "*" if entry.path == "." else f"{entry.path}/*"
        lines.append(
            f"hf download {shlex.quote(loaded.repo)} --repo-type dataset --revision {loaded.revision} --include {shlex.quote(include)} --local-dir {root}"
        )
    folder = root if entry.path == "." else f"{root}/{entry.path}"
    lines.append(f"decodehub verify {shlex.quote(folder)}")
    lines.append(f"decodehub leaderboard {shlex.quote(root)} --row {shlex.quote(placed.row.key)} --csv row.csv")
    stated = entry.record.environment.get("command")
    if isinstance(stated, str) and stated:
        # On one line: what a record states is foreign, and must not become a command to copy.
        lines.append(f"# the run itself, as the record states it: {' '.join(stated.split())}")
    return "\n".join(lines)


def citation(board: str, entry: Entry | None) -> str:
    """BibTeX of the benchmark, from its card, and of the record."""
    card = Path(next(iter(metrics.__path__))) / BENCHMARKS[board] / "README.md"
    text = card.read_text(encoding="utf-8") if card.is_file() else ""
    found = re.findall(r"```bibtex\n(.*?)```", text, re.DOTALL)
    parts = [block.strip() for block in found] or [f"% see the card of {board}"]
    if entry is not None:
        r = entry.record
        plain = {
            k: re.sub(r"[{}\\%\n]", " ", str(v))
            for k, v in {"model": r.model.id, "release": r.benchmark.release, "revision": r.model.revision or "not stated"}.items()
        }
        parts.append(
            f"@misc{{decodehub-{entry.key},\n  title = {{{{{plain['model']}}} on {r.benchmark.id}, release {plain['release']}: result record {entry.key}}},\n"
            f"  year = {{{r.created[:4]}}},\n  note = {{protocol {r.protocol.name}, model revision {plain['revision']}}}\n}}"
        )
    return "\n\n".join(parts)


def _dot(placed: Placed, column: Column, title: str | None = None, parts: tuple[float, ...] = ()) -> Dot | None:
    metric = placed.row.metric(column)
    if metric is None or metric.value is None:
        return None
    ends, sem = ends_of(placed, column, metric)
    return Dot(title or column.title, metric.value, ends, sem, metric.chance, parts, metric.unit)


def _dots(placed: Placed, columns: list[Column], *, units: bool = False) -> list[Dot]:
    values = placed.check.values if units and placed.check is not None else {}
    parts = (tuple(v for v in values.get(placed.row.label(column), []) if v is not None) for column in columns)
    dots = (_dot(placed, column, parts=own) for column, own in zip(columns, parts))
    return [dot for dot in dots if dot is not None]


def _editbench(placed: Placed, choices: Choices) -> str:
    note = "Dot: mean over subjects. Bar: 95 % interval. Small dots: subjects. Dashed line: chance."
    whole = [Column("Top-1", "top1"), Column("Top-1, null images", "null_top1"), Column("Top-5", "top5"), Column("EP-Top1", "ep_top1")]
    families = [Column("All", "two_afc"), *(Column(f.capitalize(), "two_afc", (("family", f),)) for f in FAMILIES)]
    subtypes = [Column(s.capitalize(), "two_afc", (("subtype", s),)) for s in SUBTYPES]
    gains = [Column("All", "pairing_gain"), *(Column(f.capitalize(), "pairing_gain", (("family", f),)) for f in FAMILIES)]
    names = sorted({s["category"] for (n, _), m in placed.row.numbers.items() if n == "two_afc" and set(s := m.slice) == {"category"}})
    categories = [Column(c, "two_afc", (("category", c),)) for c in names]
    plots = (
        ("Retrieval (%)", whole, note),
        ("2AFC by edit family (%)", families, note),
        ("2AFC by subtype (%)", subtypes, "Identity edits by semantic distance, attribute edits by the property changed. " + note),
        ("Pairing gain by family (points)", gains, "2AFC with the right EEG minus 2AFC with every other query. " + note),
        ("2AFC by source category (%)", categories, note),
    )
    return "".join(dot_plot(title, _dots(placed, columns, units=True), text) for title, columns, text in plots) + _per_subject(
        placed, [*whole, families[0]]
    )


def _per_subject(placed: Placed, columns: list[Column]) -> str:
    if placed.check is None or not placed.check.ok:
        return ""
    there = [c for c in columns if placed.row.label(c) in placed.check.values]
    values = [placed.check.values[placed.row.label(c)] for c in there]
    rows = [(f"subject {name}", *(number(v[i], "percent") for v in values)) for i, name in enumerate(placed.check.names)]
    heads = ("Subject", *("2AFC" if c.name == "two_afc" else c.title for c in there))
    return plain_table("Scores of each subject (%)", heads, rows, folded=True)


def _imind(placed: Placed, choices: Choices) -> str:
    name, subset = choices.get("score", "roc_auc"), choices.get("subset", "main")
    fixed: Slice = (("subset", subset),)
    sets = [Column("Overall", name, fixed), *(Column(SHORT_NAMES[d], name, (*fixed, ("dataset", d))) for d in DATASETS)]
    parts = [dot_plot(f"By data set, {subset}", _dots(placed, sets), "Bar: 95 % interval over subjects. Dashed line: chance.")]
    inside = _units_of(placed, subset)
    note = "Dot: mean over sessions. Small dots: sessions. Dashed line: chance. Small test sets scatter widely."
    for d in DATASETS:
        parts.append(dot_plot(f"{SHORT_NAMES[d]} by task, {subset}", _task_dots(placed, name, (*fixed, ("dataset", d)), d, inside), note))
    check = placed.check
    if check is not None and check.folds:
        rows = [(u, f, number(a, "score"), number(b, "score"), n) for u, f, a, b, n in check.folds if u in inside]
        parts.append(plain_table(f"All {len(rows)} folds", ("Unit", "Fold", "AUC", "Accuracy", "Test windows"), rows, folded=True))
    return "".join(parts)


def _task_dots(placed: Placed, name: str, slice_: Slice, dataset: str, inside: set[str]) -> list[Dot]:
    """A dot for each task of a data set, the scores of its units (sessions) beside it."""
    check = placed.check
    scores = dict(zip(check.names, check.values.get(name, []))) if check is not None and check.ok else {}
    by_task: dict[str, list[float]] = {}
    for unit, score in scores.items():
        if score is not None and unit in inside and unit.startswith(f"{dataset}/"):
            by_task.setdefault(unit.rpartition("/")[2], []).append(score)
    dots = (
        _dot(placed, Column(title, name, (*slice_, ("task", task))), parts=tuple(by_task.get(task, ()))) for task, title, _ in imind_tasks()
    )
    return [dot for dot in dots if dot is not None]


def _units_of(placed: Placed, subset: str) -> set[str]:
    """Ids of the units of a subset, from the table beside a checked record."""
    if placed.row.entry is None or placed.check is None or not placed.check.ok:
        return set()
    return {u.id for u in load_table(placed.row.entry.folder, placed.row.entry.record).chosen(subset)}


def _bcs(placed: Placed, choices: Choices) -> str:
    if choices.get("table", "scores") == "heads":
        return dot_plot(
            "Agreement with the annotators", _dots(placed, [Column(t, n) for t, n in BCS_TABLE6]), "Bar: 95 % interval over concepts."
        )
    note = "Bar: 95 % interval over concepts."
    questions = bcs_columns({"questions": "questions"})
    means = [Column("T-PAS", "t_pas"), Column("T-SAS", "t_sas")]
    shares = [Column(title, "regime_share", (("regime", regime),)) for title, regime in BCS_REGIMES]
    return "".join(
        (
            dot_plot("T-PAS and T-SAS", _dots(placed, means, units=True), note + " Small dots: concepts."),
            dot_plot("The twelve questions", _dots(placed, questions), note),
            dot_plot("Regimes (share of pairs)", _dots(placed, shares), note),
            _concepts(placed),
        )
    )


def _concepts(placed: Placed) -> str:
    """The best and the worst concepts of a checked record."""
    if placed.check is None or not placed.check.ok:
        return ""
    values = [placed.check.values.get(label(name, placed.row.extra), []) for name in ("t_pas", "t_sas")]
    if not all(values):
        return ""
    both = np.array(values, dtype=np.float64)
    order = np.argsort(-both.mean(0), kind="stable")
    order = order[np.isfinite(both.mean(0)[order])]
    shown = [*order[:MAX_CONCEPTS], *order[MAX_CONCEPTS:][-MAX_CONCEPTS:]]
    rows = [(placed.check.names[i], number(both[0, i], "score"), number(both[1, i], "score")) for i in shown]
    return plain_table("Best and worst concepts", ("Concept", "T-PAS", "T-SAS"), rows, folded=True)


def _provenance(entry: Entry, placed: Placed) -> str:
    r = entry.record
    settings = "; ".join(f"{k}: {v}" for k, v in r.protocol.settings.items())
    packages = r.environment.get("packages")
    packages = ", ".join(f"{k} {v}" for k, v in packages.items()) if isinstance(packages, dict) else "not stated"
    rows = [
        ("state", placed.state + (f": {placed.reason}" if placed.reason else "")),
        ("record", f"{entry.path}, sha256 {entry.key}..."),
        ("benchmark", f"{r.benchmark.id}, release {r.benchmark.release}, {r.benchmark.content_hash}"),
        ("protocol", f"{r.protocol.name}, {r.protocol.hash}"),
        ("settings", settings[:SHOWN_SETTINGS] or "none"),
        (
            "model",
            f"{r.model.id}, revision {r.model.revision or 'not stated'}, {'parameters not stated' if r.model.parameters is None else f'{r.model.parameters:,} parameters'}",
        ),
        ("pretrained on", r.model.pretrained_on or "nothing declared"),
        ("data", r.data),
        ("aggregation", r.aggregation),
        ("coverage", f"{r.coverage.rule}: {r.coverage.present} of {r.coverage.expected}"),
        ("made", f"{r.created}, Python {r.environment.get('python', 'not stated')}, {r.environment.get('device', '')}"),
        ("packages", packages),
    ]
    if r.model.notes:
        rows.insert(6, ("notes", r.model.notes))
    return plain_table("Where it is from", ("Item", "Value"), rows)
