"""The three boards: which numbers they show, which rows a record gives, what can be filtered, and who is ranked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from decodehub.core.records import Metric
from decodehub.hub_datasets.imindbench.vocabulary import tasks
from decodehub.metrics.bcs.scoring import QUESTIONS

from .checks import Check, Checks
from .data import Entry
from .published import published_rows
from .rows import BCS_TABLE6, NOT_DECLARED, Column, Row, Slice

ALL = "all"
DECLARED = "any declared"
RECOMPUTED, UNVERIFIED, REPORTED = "recomputed", "not verified", "reported"
FAMILIES = ("identity", "attribute", "background", "removal")
SUBTYPES = ("near", "medium", "far", "material", "texture", "shape", "color", "state")

EDITBENCH_GRID = (tuple(range(1, 11)), tuple(range(5)))  # the ten subjects of THINGS-EEG2 and the five seeds of the paper

Choices = Mapping[str, str]


class GridOf(NamedTuple):
    """What the numbers of a row are over: sizes, largest first in importance; names or hash; and words."""

    size: tuple[int, ...]
    key: object
    words: str


NO_GRID = GridOf((), "", "")


@dataclass(frozen=True)
class Board:
    """One board.

    Attributes:
        id: of the benchmark in records. title, about: for people.
        choosers: filters that say which numbers are shown: name, (title, options as (title, value)); the first option is the default.
        traits: filters of rows: name and title.
        columns: the numbers for some choices; the first is the headline.
        rows: the lines that a record gives.
        keep: whether a row belongs to the table of some choices.
        grid: what a row's numbers are over for some choices; rows are ranked side by side only where it is equal.
        full: the grid that the benchmark asks for, None where its coverage rule does.
    """

    id: str
    title: str
    about: str
    choosers: Mapping[str, tuple[str, list[tuple[str, str]]]]
    traits: Mapping[str, str]
    columns: Callable[[Choices], list[Column]]
    rows: Callable[[Entry], list[Row]]
    keep: Callable[[Row, Choices], bool] = lambda row, choices: True
    grid: Callable[[Row, Check, Choices], GridOf] = lambda row, check, choices: NO_GRID
    full: GridOf | None = None


class Placed(NamedTuple):
    """A row of a table with its rank (None: not ranked), state, and the reason where it is not recomputed, or recomputed and not ranked."""

    row: Row
    rank: int | None
    state: str
    reason: str
    check: Check | None


class Table(NamedTuple):
    """What a board shows: columns, the one it is sorted by, rows (recomputed ones first, then unverified, then reported)."""

    board: Board
    columns: tuple[Column, ...]
    sort: Column
    placed: tuple[Placed, ...]


def make_table(board: Board, rows: Iterable[Row], checks: Checks, choices: Choices) -> Table:
    """Filter, sort and rank.

    Args:
        board: which one.
        rows: all rows of the board that may stand side by side (`rows_of`).
        checks: which records are recomputed.
        choices: by filter name; "group" of `groups`, "sort" the title of a column, "state" one of the three states, "search" a part of a name.
    """
    columns = board.columns(choices)
    sort = next((c for c in columns if c.title == choices.get("sort")), columns[0])
    placed = []
    for row in rows:
        if row.entry is not None and choices.get("group") not in (None, row.group):
            continue
        if not (_passes(board, row, choices) and board.keep(row, choices)) or all(row.metric(c) is None for c in columns):
            continue
        state, reason, check = state_of(row, checks)
        if choices.get("state", ALL) in (ALL, state):
            placed.append(Placed(row, None, state, reason, check))
    better = next((m.higher_is_better for p in placed if (m := p.row.metric(sort)) is not None and p.row.entry is not None), _usual(sort))
    found = []
    for state in (RECOMPUTED, UNVERIFIED, REPORTED):
        section = sorted((p for p in placed if p.state == state), key=lambda p: _order(p.row.metric(sort), better, p.row.name))
        if state == RECOMPUTED and better is not None:
            equal, others = _of_one_grid(board, section, choices)
            section = [*_ranked(equal, sort), *others]
        found += section
    return Table(board, tuple(columns), sort, tuple(found))


def _of_one_grid(board: Board, section: Sequence[Placed], choices: Choices) -> tuple[list[Placed], list[Placed]]:
    """The rows that may be ranked side by side, and the others with the reason.

    In each group they are those over the full grid of the benchmark; where none is, over the largest grid that is there, so that leaving out a
    hard subject, seed, unit or concept never gains a rank.
    """
    grids = {p.row.key: board.grid(p.row, p.check, choices) for p in section if p.check is not None}
    best: dict[str, GridOf] = {}
    for group in {p.row.group for p in section}:
        count = Counter(grids[p.row.key] for p in section if p.row.group == group and p.row.key in grids)
        full = board.full if board.full in count else None
        if count:
            best[group] = full or max(count, key=lambda grid: (grid.size, count[grid], str(grid.key)))
    equal = [p for p in section if grids.get(p.row.key) == best.get(p.row.group)]
    others = [p for p in section if grids.get(p.row.key) != best.get(p.row.group)]
    words = "not ranked: its numbers are over {}, those that are ranked over {}{}"
    result = []
    for p in others:
        mine, theirs = grids[p.row.key], best[p.row.group]
        same = " others" if mine.words == theirs.words else ""
        result.append(p._replace(reason=words.format(mine.words, theirs.words, same)))
    return equal, result


def rows_of(board: Board, entries: Iterable[Entry], *, samples: bool) -> list[Row]:
    """Rows of the records of a board, real ones with the published rows, or samples alone: they never stand side by side."""
    found = [row for e in entries if e.record.benchmark.id == board.id and e.separate == samples for row in board.rows(e)]
    if samples:
        return found
    return found + published_rows(board.id)


def groups(rows: Iterable[Row]) -> list[tuple[str, str]]:
    """Sets of rows that may be compared, as (title, key), the largest first."""
    count: dict[tuple[str, str], int] = {}
    for row in rows:
        if row.entry is not None:
            count[row.group_title, row.group] = count.get((row.group_title, row.group), 0) + 1
    return sorted(count, key=lambda group: (-count[group], group))


def options(rows: Iterable[Row], trait: str) -> list[tuple[str, str]]:
    """Choices of a row filter that some row has."""
    values = sorted({row.traits.get(trait, "") for row in rows} - {""})
    more = [("Any pretraining declared", DECLARED)] if trait == "pretraining" and any(v != NOT_DECLARED for v in values) else []
    return [("All", ALL), *more, *((value, value) for value in values)]


def state_of(row: Row, checks: Checks) -> tuple[str, str, Check | None]:
    """State of a row, the reason where it is not recomputed, and its check."""
    if row.entry is None:
        return REPORTED, row.source, None
    check = checks.get(row.entry)
    if check is None:
        return UNVERIFIED, "waits for its check", None
    if check.ok and check.not_checked:
        return REPORTED, f"the numbers follow from the predictions, but not checked: {check.not_checked}", check
    return (RECOMPUTED, "", check) if check.ok else (UNVERIFIED, check.reason, check)


def _passes(board: Board, row: Row, choices: Choices) -> bool:
    for trait in board.traits:
        wanted, has = choices.get(trait, ALL), row.traits.get(trait, "")
        if (wanted == DECLARED and has == NOT_DECLARED) or wanted not in (ALL, DECLARED, has):
            return False
    return choices.get("search", "").strip().lower() in row.name.lower()


def _usual(column: Column) -> bool:
    return not column.name.endswith("_mae")


def _order(metric: Metric | None, better: bool | None, name: str) -> tuple[bool, float, str]:
    if metric is None or metric.value is None:
        return True, 0.0, name
    return False, metric.value if better is False else -metric.value, name


def _ranked(section: Sequence[Placed], sort: Column) -> list[Placed]:
    values = [m.value if (m := p.row.metric(sort)) is not None else None for p in section]
    return [p._replace(rank=values.index(v) + 1 if v is not None else None) for p, v in zip(section, values)]


# ------------------------------------------------------------------------------------------------------------------------- the boards


def _row(
    entry: Entry,
    traits: Mapping[str, str],
    group: Sequence[str],
    title: str,
    *,
    name: str = "",
    extra: Slice = (),
    grid: tuple[tuple[int, ...], ...] = (),
) -> Row:
    record = entry.record
    common = {"pretraining": record.model.pretrained_on or NOT_DECLARED, "release": record.benchmark.release}
    key = "/".join([entry.key, *(v for _, v in extra)])
    return Row(key, name or record.model.id, entry, entry.metrics, extra, {**common, **traits}, "|".join(group), title, grid=grid)


def _table_title(entry: Entry) -> str:
    b = entry.record.benchmark
    return f"release {b.release}, table {b.content_hash[7:15]}"


def _editbench_rows(entry: Entry) -> list[Row]:
    protocol = entry.record.protocol
    settings = {k: v for k, v in protocol.settings.items() if k not in ("similarity", "distance_encoder")}
    group = (entry.record.benchmark.content_hash, protocol.name, str(sorted(settings.items())))
    grid = tuple(tuple(sorted({getattr(r, name) for r in entry.record.runs})) for name in ("subject", "seed"))
    how = "seeds, then subjects" if len(grid[1]) > 1 else "subjects, one seed"
    return [_row(entry, {"aggregation": how, "n": _editbench_grid(grid).words}, group, _table_title(entry), grid=grid)]


def _editbench_grid(grid: tuple[tuple[int, ...], ...]) -> GridOf:
    subjects, seeds = grid
    return GridOf((len(subjects), len(seeds)), grid, f"{_numbers('subject', subjects)} and {_numbers('seed', seeds)}")


def _numbers(what: str, values: tuple[int, ...]) -> str:
    """``10 subjects (1 to 10)``, ``1 seed (3)``."""
    whole = values == tuple(range(values[0], values[-1] + 1)) and len(values) > 2
    words = f"{values[0]} to {values[-1]}" if whole else ", ".join(map(str, values[:12])) + (" ..." if len(values) > 12 else "")
    return f"{len(values)} {what}{'s' if len(values) != 1 else ''} ({words})"


def _check_grid(check: Check, name: str, what: str) -> GridOf:
    n, digest = check.grids.get(name, (0, ""))
    return GridOf((n,), digest, f"{n} {what}")


def _editbench_columns(choices: Choices) -> list[Column]:
    kind = choices.get("family", ALL)
    if kind in FAMILIES:
        s: Slice = (("family", kind),)
        names = (("2AFC", "two_afc"), ("2AFC, mismatched queries", "two_afc_mismatched"), ("Pairing gain", "pairing_gain"))
        return [Column(t, n, s) for t, n in names] + [
            Column(t, n, s) for t, n in (("Original > null", "original_over_null"), ("Null > edit", "null_over_edit"))
        ]
    if kind in SUBTYPES:
        return [Column("2AFC", "two_afc", (("subtype", kind),))]
    whole = (
        ("Top-1", "top1"),
        ("EP-Top1", "ep_top1"),
        ("Top-5", "top5"),
        ("Top-1, null images", "null_top1"),
        ("2AFC", "two_afc"),
        ("Pairing gain", "pairing_gain"),
    )
    return [Column(t, n) for t, n in whole] + [Column(f"2AFC {f}", "two_afc", (("family", f),)) for f in FAMILIES]


_DATASETS = (("Neuroprobe", "neuroprobev2"), ("BYD", "kelesbyd2024"), ("Pippi", "berezutskayapippi2022"))


def _imind_rows(entry: Entry) -> list[Row]:
    settings = entry.record.protocol.settings
    pooling, text = str(settings.get("pooling", "paper")), {k: str(settings.get(k) or "") for k in ("track", "domain")}
    group = (entry.record.benchmark.content_hash, entry.record.protocol.name, pooling)
    units = f"{settings.get('coverage')} units"
    traits = {"track": text["track"], "split": text["domain"] or "within-session", "aggregation": pooling, "n": units}
    return [_row(entry, traits, group, f"{_table_title(entry)}, averaged as {pooling}")]


def _imind_columns(choices: Choices) -> list[Column]:
    name, subset = choices.get("score", "roc_auc"), ("subset", choices.get("subset", "main"))
    dataset, task, domain = (choices.get(k, ALL) for k in ("dataset", "task", "domain"))
    fixed: list[tuple[str, str]] = [subset, *([("dataset", dataset)] if dataset != ALL else [])]
    tasks = [t for t in imind_tasks() if domain in (ALL, t[2])]
    if task != ALL:
        title = next(t[1] for t in imind_tasks() if t[0] == task)
        fixed.append(("task", task))
        return [Column(title, name, tuple(fixed)), *(_by_dataset(name, fixed) if dataset == ALL else [])]
    by_task = [Column(t[1], name, (*fixed, ("task", t[0]))) for t in tasks]
    if domain != ALL:
        return by_task
    if dataset != ALL:
        return [Column("All tasks", name, tuple(fixed)), *by_task]
    return [Column("Overall", name, tuple(fixed)), *_by_dataset(name, fixed)]


def _by_dataset(name: str, fixed: Sequence[tuple[str, str]]) -> list[Column]:
    return [Column(title, name, (*fixed, ("dataset", d))) for title, d in _DATASETS]


@cache
def imind_tasks() -> tuple[tuple[str, str, str], ...]:
    return tuple((t.id, t.title, t.domain) for t in tasks())


BCS_REGIMES = (
    ("Both high", "high_p_high_s"),
    ("Plausible, wrong", "high_p_low_s"),
    ("Right, implausible", "low_p_high_s"),
    ("Both low", "low_p_low_s"),
)


def _bcs_rows(entry: Entry) -> list[Row]:
    record = entry.record
    test = (record.benchmark.content_hash, record.protocol.name)
    kind = "heads" if record.protocol.settings.get("kind") == "evaluation" else "scores"
    traits = {"aggregation": "pairs", "output": str(record.protocol.settings.get("output_type") or ""), "kind": kind}
    if kind == "heads":
        title = f"heads on {_table_title(entry)}"
        group: tuple[str, ...] = (kind, *test)
        baselines = sorted({m.slice["baseline"] for m in record.metrics if "baseline" in m.slice})
        names = {b: f"{b} (baseline of {record.model.id})" for b in baselines}
        others = [_row(entry, traits, group, title, name=name, extra=(("baseline", b),)) for b, name in names.items()]
        return [_row(entry, traits, group, title), *others]
    # Reconstructions are judged by one head on one set of pairs; other heads or encoders give other scores.
    group, title = (
        (kind, *test, record.model.id, str(record.model.revision), record.protocol.hash),
        f"{_table_title(entry)}, judged by {record.model.id}",
    )
    methods = sorted({m.slice["method"] for m in record.metrics if "method" in m.slice})
    if not methods:
        return [_row(entry, traits, group, title, name=f"all pairs of {record.benchmark.release}")]
    return [_row(entry, traits | {"n": _pairs(entry, m)}, group, title, name=m, extra=(("method", m),)) for m in methods]


def _pairs(entry: Entry, method: str) -> str:
    metric = entry.metric("t_pas", (("method", method),))
    return "" if metric is None else f"{metric.n} pairs"


def bcs_columns(choices: Choices) -> list[Column]:
    if choices.get("table", "scores") == "heads":
        return [Column(t, n) for t, n in BCS_TABLE6]
    if choices.get("questions", "summary") == "summary":
        return [Column("T-PAS", "t_pas"), Column("T-SAS", "t_sas"), *(Column(t, "regime_share", (("regime", r),)) for t, r in BCS_REGIMES)]
    return [Column(q.replace("_", " "), "question_mean", (("question", q),)) for q in QUESTIONS]


@cache
def boards() -> tuple[Board, ...]:
    """The three boards, in their order."""
    common = {"pretraining": "Pretraining exposure", "aggregation": "Aggregation"}
    families = [("All", ALL), *((f.capitalize(), f) for f in FAMILIES), *((f"{'Identity' if i < 3 else 'Attribute'}: {s}", s) for i, s in enumerate(SUBTYPES))]  # fmt: skip
    return (
        Board(
            "eeg-editbench",
            "EEG-EditBench",
            "Which visual information does an EEG-to-image retrieval model use? Percent; means over subjects, 95 % intervals over subjects.",
            {"family": ("Edit family", families)},
            common,
            _editbench_columns,
            _editbench_rows,
            grid=lambda row, check, choices: _editbench_grid(row.grid),
            full=_editbench_grid(EDITBENCH_GRID),
        ),
        Board(
            "bcs",
            "BCS",
            "Is a reconstructed image still perceptually (T-PAS) and semantically (T-SAS) recoverable? Scores from 0 to 1; 95 % intervals over concepts.",
            {
                "table": ("What is ranked", [("Reconstructions", "scores"), ("Heads, against annotators", "heads")]),
                "questions": ("Numbers", [("Scores and regimes", "summary"), ("Twelve questions", "questions")]),
            },
            {**common, "output": "Output"},
            bcs_columns,
            _bcs_rows,
            lambda row, choices: row.traits.get("kind") == choices.get("table", "scores"),
            lambda row, check, choices: _check_grid(check, dict(row.extra).get("method", ""), "concepts"),
        ),
        Board(
            "imindbench",
            "iMINDBench",
            "Which iEEG representations generalise over tasks, people and institutions? ROC-AUC, chance 0.5; 95 % intervals over subjects, else ± the standard error.",
            {
                "dataset": ("Data set", [("All", ALL), *_DATASETS]),
                "task": ("Task", [("All", ALL), *((t[1], t[0]) for t in imind_tasks())]),
                "domain": ("Task domain", [("All", ALL), *((d.capitalize(), d) for d in sorted({t[2] for t in imind_tasks()}))]),
                "subset": ("Subset", [("Main", "main"), ("Challenge", "challenge"), ("Full grid", "full")]),
                "score": ("Score", [("ROC-AUC", "roc_auc"), ("Accuracy", "accuracy")]),
            },
            {"track": "Preprocessing track", "split": "Training and test", **common},
            _imind_columns,
            _imind_rows,
            grid=lambda row, check, choices: _check_grid(check, choices.get("subset", "main"), "folds with a score"),
        ),
    )
