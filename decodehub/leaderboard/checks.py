"""Which records are recomputed here: their predictions scored anew, once, with the scores of every unit kept for comparison and drill-down."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from decodehub.core.code import code_hash
from decodehub.core.files import home, inside, read_data, sha256_json, write_json
from decodehub.hub.tasks import dataset_of
from decodehub.hub.verify import verify_record
from decodehub.metrics.bcs.scoring import t_scores
from decodehub.metrics.imindbench.aggregate import unit_scores
from decodehub.metrics.imindbench.compare import compare_units

from .data import Entry

BENCHMARKS = {"eeg-editbench": "eeg_editbench", "bcs": "bcs", "imindbench": "imindbench"}  # id in a record, folder of its metric
MAX_PREDICTIONS_BYTES = 4_000_000_000
MAX_JSON_BYTES = 200_000_000
INTERVAL_DRAWS = 5_000


@dataclass(frozen=True)
class Check:
    """What scoring a record anew gave.

    Attributes:
        ok: whether every number is as stated. reason: why not, in words.
        not_checked: what nothing could prove: the numbers count as reported; empty for nothing.
        unit: what a score of `values` is of: "subject", "concept" or "unit" (data set, session and task).
        names: (n,) the units. values: for each number (`label`) the n scores, None where a unit has none.
        intervals: 95 % intervals that the record does not state itself.
        folds: of iMINDBench, rows of unit, fold, AUC, accuracy and test windows.
        grids: what the numbers of a slice (subset, method; "" for all) are over, as the number of parts and the hash of their names: rows are
            ranked side by side only where these are equal.
    """

    ok: bool
    reason: str = ""
    not_checked: str = ""
    unit: str = ""
    names: tuple[str, ...] = ()
    values: dict[str, list[float | None]] = field(default_factory=dict)
    intervals: dict[str, list[float]] = field(default_factory=dict)
    folds: list[list[Any]] = field(default_factory=list)
    grids: dict[str, tuple[int, str]] = field(default_factory=dict)


def label(name: str, slice_: Iterable[tuple[str, str]] = ()) -> str:
    """Key of a number in `Check.values` and `Check.intervals`."""
    return "|".join([name, *(f"{k}={v}" for k, v in sorted(slice_))])


class Checks:
    """Checks of records, kept below ``$DECODEHUB_HOME/leaderboard/checks`` by the hash of record, files and scoring code."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or home() / "leaderboard" / "checks"
        self._known: dict[str, Check] = {}

    def get(self, entry: Entry) -> Check | None:
        """The check of a record, None where it has not been made."""
        try:
            key = _key(entry)
        except (OSError, ValueError) as error:
            return Check(False, _plain(error, entry))
        if key not in self._known:
            path = self.folder / f"{key}.json"
            try:
                raw = json.loads(read_data(path))
                grids = {name: (int(n), str(digest)) for name, (n, digest) in raw["grids"].items()}
                self._known[key] = Check(**{**raw, "names": tuple(raw["names"]), "grids": grids})
            except (OSError, ValueError, TypeError, KeyError):  # none there, or one of another version
                return None
        return self._known[key]

    def make(self, entry: Entry) -> Check:
        """Score a record anew, unless that has been done, and keep the result."""
        if (known := self.get(entry)) is not None:
            return known
        check = check_entry(entry)
        key = _key(entry)
        write_json(self.folder / f"{key}.json", asdict(check))
        self._known[key] = check
        return check


def check_entry(entry: Entry) -> Check:
    """Score a record anew from its files. Nothing that is wrong with it is an error: the check says so."""
    record, folder = entry.record, entry.folder
    if record.benchmark.id not in BENCHMARKS:
        return Check(False, f"this decodehub has no board for benchmark {record.benchmark.id!r}")
    try:
        found = verify_record(folder, record)
    except Exception as error:  # the record comes from anyone, and one that breaks the scoring must not break the page
        return Check(False, _plain(error, entry))
    if found.differences:
        d, n = found.differences[0], len(found.differences)
        what = f"{d.metric}: {d.field} stated {_short(d.stated)}, computed {_short(d.recomputed)}"
        return Check(False, f"{n} number{'s differ' if n > 1 else ' differs'} from the predictions; the first is {what}")
    return replace(_UNITS[record.benchmark.id](found.scored), not_checked=found.not_checked)


def _grid(parts: Iterable[str]) -> tuple[int, str]:
    names = sorted(parts)
    return len(names), sha256_json(names)


def _editbench(scored: Any) -> Check:
    keys = [(i, key) for i, key in enumerate(scored.scores[0].keys) if len(key.slice) < 2]
    values = {label(key.name, key.slice): _floats(scored.total.subject_means[:, i]) for i, key in keys}
    return Check(True, unit="subject", names=tuple(str(s) for s in scored.total.subjects), values=values)


def _imindbench(scored: Any) -> Check:
    cells, grid = scored.cells, scored.grid
    by_unit = {name: unit_scores(cells, scores) for name, scores in (("roc_auc", cells.auc), ("accuracy", cells.accuracy))}
    names = tuple(by_unit["roc_auc"])
    intervals = {}
    for subset in sorted({dict(value.slice)["subset"] for value in scored.table.values}):
        for name, scores in by_unit.items():
            chosen = {u.id: scores[u.id] for u in grid.chosen(subset)}
            if not np.isfinite(list(chosen.values())).any():
                continue
            # Against 0 everywhere the mean difference is the mean itself, and its interval is over subjects.
            for c in compare_units(chosen, dict.fromkeys(chosen, 0.0), grid, draws=INTERVAL_DRAWS):
                if c.ci95 is not None and np.isfinite(c.ci95).all():
                    slice_ = [("subset", subset), *([] if c.label == "overall" else [("dataset", c.label)])]
                    intervals[label(name, slice_)] = list(c.ci95)
    folds = [
        [str(u), int(f), *_floats(np.array([a, b])), int(n)]
        for u, f, a, b, n in zip(cells.unit, cells.fold, cells.auc, cells.accuracy, cells.n_test)
    ]
    values = {name: _floats(np.array([scores[u] for u in names])) for name, scores in by_unit.items()}
    scored_folds = {
        subset: {u.id for u in grid.chosen(subset)} for subset in sorted({dict(v.slice)["subset"] for v in scored.table.values})
    }
    grids = {s: _grid(f"{u} fold {f}" for u, f, auc, *_ in folds if u in units and auc is not None) for s, units in scored_folds.items()}
    return Check(True, unit="unit", names=names, values=values, intervals=intervals, folds=folds, grids=grids)


def _bcs(scored: Any) -> Check:
    pairs, scores = scored.pairs, scored.scores
    concepts, index = np.unique(np.asarray(pairs.concepts, dtype=str), return_inverse=True)
    methods = np.array([row["method"] or "" for row in pairs.rows])
    values: dict[str, list[float | None]] = {}

    def add(name: str, slice_: list[tuple[str, str]], x: np.ndarray, rows: np.ndarray, concept: np.ndarray = index) -> None:
        there = rows & np.isfinite(x)
        n = np.bincount(concept[there], minlength=len(concepts))
        total = np.bincount(concept[there], x[there], minlength=len(concepts))
        values[label(name, slice_)] = _floats(np.divide(total, n, out=np.full(len(n), np.nan), where=n > 0))

    grids = {}
    for name, x in zip(("t_pas", "t_sas"), t_scores(scores.question_scores)):
        add(name, [], x, np.ones(len(x), dtype=bool))
        for method in sorted({m for m in methods if m}):
            add(name, [("method", method)], x, methods == method)
            grids[method] = _grid(set(concepts[index[methods == method]].tolist()))
    if pairs.targets is not None and pairs.weights is not None:
        known = np.isfinite(pairs.targets) & (pairs.weights > 0)
        of_entry = np.broadcast_to(index[:, None], known.shape)
        wanted = t_scores(pairs.targets, known)
        for baseline, x in {"": scores.question_scores, **scores.baselines}.items():
            slice_ = [("baseline", baseline)] if baseline else []
            add("q_mae", slice_, np.abs(x - pairs.targets).ravel(), known.ravel(), of_entry.ravel())
            for name, side, target in zip(("pas_mae", "sas_mae"), t_scores(x, known), wanted):
                add(name, slice_, np.abs(side - target), np.isfinite(target))
    return Check(True, unit="concept", names=tuple(concepts.tolist()), values=values, grids=grids)


_UNITS: dict[str, Callable[[Any], Check]] = {"eeg-editbench": _editbench, "imindbench": _imindbench, "bcs": _bcs}


def _key(entry: Entry) -> str:
    record = entry.record
    if record.benchmark.id not in BENCHMARKS:
        raise ValueError(f"this decodehub has no board for benchmark {record.benchmark.id!r}")
    files, total = [], 0
    for name in [record.benchmark.table, *(run.predictions for run in record.runs)]:
        path = inside(entry.folder, name)
        if not path.is_file():
            raise ValueError(f"{name} is missing from the record's folder")
        stat = path.stat()
        limit = MAX_JSON_BYTES if name == record.benchmark.table else MAX_PREDICTIONS_BYTES
        total += stat.st_size
        if stat.st_size > limit or total > MAX_PREDICTIONS_BYTES:
            raise ValueError(
                f"{name}: {total:,} bytes are more than the {limit:,} that the leaderboard reads; check it with decodehub verify"
            )
        files.append([name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino])
    own = home() / dataset_of(BENCHMARKS[record.benchmark.id])  # a release that has come to this machine is compared
    release = own.stat().st_mtime_ns if own.is_dir() else None
    return sha256_json([entry.key, _code(record.benchmark.id), release, files]).removeprefix("sha256:")


@cache
def _code(benchmark: str) -> str:
    """Hash of the code that scores a benchmark, so that a change of it is a new check."""
    return code_hash(f"decodehub.metrics.{BENCHMARKS[benchmark]}.protocol", "decodehub.leaderboard.checks")


def _plain(error: Exception, entry: Entry) -> str:
    text = (str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)) or type(error).__name__
    for folder in {entry.folder, entry.folder.resolve()}:
        text = text.replace(f"{folder}/", "")
    return text if len(text) <= 400 else text[:400] + " ..."


def _short(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _floats(x: np.ndarray) -> list[float | None]:
    return [float(v) if np.isfinite(v) else None for v in np.asarray(x, dtype=np.float64)]
