"""The protocol ``imind-v1.0``: the record made from a run's predictions, and the re-scoring that checks a record."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from decodehub.core.files import inside, read_data, sha256_file, write_json
from decodehub.core.records import (
    BenchmarkInfo,
    Coverage,
    Metric,
    ModelInfo,
    Protocol,
    RecordError,
    ResultRecord,
    Run,
    environment,
    exact_settings,
    kind_of,
    now,
    protocol_hash,
    write_record,
)

from .aggregate import Table, make_table
from .grid import FIELDS, Grid, load_grid, make_grid
from .predictions import Cells, Predictions, concatenate, fold_rows, load_inside, save, score_cells, skipped_fold
from .truth import LabelCheck, Truth, check_labels, load_truth

BENCHMARK_ID = "imindbench"
PROTOCOL = "imind-v1.0"
HEADLINES = ("roc_auc", "accuracy")
GRID_FILE = "units.json"
PREDICTIONS_FILE = "predictions.parquet"
SEED = 42
SAMPLES = frozenset({"sample", "sample-simulated", "sample-simulated-real-timing"})  # releases whose scores say nothing about the benchmark
RUNS = ((0, SEED),)  # all units are one file
STATED_SETTINGS = (
    "domain",
    "track_is",
    "recipe",
    "recipe_hash",
    "model",
    "labels",
    "labels_hash",
    "scores",
)  # by whoever made the record; may be left out


class Scored(NamedTuple):
    """A scored run: grid, fold scores, table, the numbers of its record, and whether its labels could be checked here."""

    grid: Grid
    cells: Cells
    table: Table
    metrics: tuple[Metric, ...]
    labels: LabelCheck

    @property
    def not_checked(self) -> str:
        """ "labels" where the release's own are not known here for some units, else empty."""
        return "labels" if self.labels.unchecked else ""


def score_run(
    predictions: Predictions, grid: Grid, *, pooling: str = "paper", scores: str = "probabilities", truth: Truth | None = None
) -> Scored:
    """Check the windows and labels of one run against those of the release, and score it.

    Args:
        predictions: of the full grid, exactly Main, or exactly Challenge.
        grid: the release.
        pooling: see `aggregate.make_table`.
        scores: "probabilities" or "logits", which have no accuracy.
        truth: of the release; by default what `truth.load_truth` finds.

    Raises:
        ValueError: malformed or incomplete predictions, or other windows or labels than those of the release; the cell is named.
    """
    cells = score_cells(predictions, grid, scores)
    checked = check_labels(predictions, grid, load_truth(grid) if truth is None else truth)
    cells = _without(cells, checked.unscorable)
    table = make_table(cells, grid, pooling)
    if scores != "probabilities":
        values = (v._replace(reason="the scores are logits, which have no threshold") if v.name == "accuracy" else v for v in table.values)
        table = table._replace(values=tuple(values))
    return Scored(grid, cells, table, tuple(metric for value in table.values for metric in _metrics(value)), checked)


def _without(cells: Cells, unscorable: Mapping[tuple[str, int], str]) -> Cells:
    """The same, with no score where the release gives none: whoever predicts such a fold has what the others have."""
    reasons = [unscorable.get((u, int(f)), "") for u, f in zip(cells.unit, cells.fold)]
    none = np.array([bool(r) for r in reasons])
    why = np.array([own or r for own, r in zip(cells.reason, reasons)], dtype=object)
    blank = {name: np.where(none, np.nan, getattr(cells, name)) for name in ("auc", "accuracy", "val_auc")}
    return cells._replace(**blank, reason=why)


def make_record(
    folder: Path,
    grid: Grid,
    predictions: Predictions,
    *,
    model: ModelInfo,
    data: str,
    settings: Mapping[str, Any],
    pooling: str = "paper",
    scores: str = "probabilities",
    truth: Truth | None = None,
    device: str = "cpu",
    simulated: bool = False,
) -> tuple[ResultRecord, Scored]:
    """Score a run and write a record folder: predictions, table of units, ``record.json`` last.

    Args:
        folder: where to write.
        grid, predictions: what is scored.
        model: which model.
        data: what the recordings were, in words; say so when they were simulated.
        settings: of the run, JSON values: track, recipe and how the model was trained; they enter the protocol hash.
        pooling, scores, truth: see `score_run`.
        device: where the model ran.
        simulated: whether the recordings were simulated: the record's kind.

    ``protocol.settings["labels"]`` of the record is "checked", or "not checked" where the truth of some units is not known here;
    ``labels_hash`` is of all test windows and labels, fold by fold.

    Raises:
        ValueError: see `score_run`; settings without a "track", or with one that the protocol does not know.
    """
    if not settings.get("track"):
        raise ValueError('settings must say the preprocessing "track" (Multi-STFT, Waveform, ..., or Custom)')
    folder = Path(folder)
    scored = score_run(predictions, grid, pooling=pooling, scores=scores, truth=truth)
    protocol = _protocol(settings, scored, pooling, scores)
    save(folder / PREDICTIONS_FILE, predictions)
    write_json(folder / GRID_FILE, {"release": grid.release, "units": grid.rows()})
    record = ResultRecord(
        kind=kind_of(grid.release, SAMPLES, simulated=simulated),
        benchmark=BenchmarkInfo(id=BENCHMARK_ID, release=grid.release, content_hash=grid.content_hash, table=GRID_FILE),
        protocol=protocol,
        model=model,
        data=data,
        aggregation=_aggregation(scored, pooling),
        # The predictions of all units are one file; the unit grid itself is checked by `coverage_rule`.
        runs=[Run(subject=0, seed=SEED, predictions=PREDICTIONS_FILE, sha256=sha256_file(folder / PREDICTIONS_FILE))],
        coverage=Coverage(rule=f"{scored.table.rule}: {len(scored.table.unit_auc)} units in one file", expected=1, present=1),
        metrics=list(scored.metrics),
        environment=environment(device=device, dtype="float32", seed=SEED),
        created=now(),
    )
    write_record(folder, record)
    return record, scored


def _protocol(settings: Mapping[str, Any], scored: Scored, pooling: str, scores: str) -> Protocol:
    """What a record states of how it was scored; refuses settings that the protocol does not know."""
    stated = {
        **settings,
        "pooling": pooling,
        "coverage": scored.table.rule,
        "labels": scored.labels.state,
        "labels_hash": scored.labels.sha256,
    }
    if scores != "probabilities":
        stated["scores"] = scores
    stated = json.loads(json.dumps(stated, sort_keys=True))
    settings_of(stated)
    return Protocol(name=PROTOCOL, settings=stated, hash=protocol_hash(PROTOCOL, stated))


def rescore(folder: Path, record: ResultRecord) -> Scored:
    """Re-score a record from its predictions and table of units; `metrics` of the result are what it should state.

    Windows and labels are checked against the release that is installed here, not against what the record says of them: `labels` of the
    result says whether that could be done, whatever the record claims.

    Raises:
        RecordError: the table does not hash to what the record says, the protocol is another, coverage or labels differ.
        ValueError: predictions that cannot be scored, or that have other windows or labels than the release.
    """
    if record.protocol.name != PROTOCOL:
        raise RecordError(f"the record follows {record.protocol.name}, this version scores {PROTOCOL}")
    grid = load_table(folder, record)
    if len(record.runs) != 1:
        raise RecordError(f"a record of imindbench has one predictions file, this one lists {len(record.runs)}")
    settings = record.protocol.settings
    pooling, scores = settings_of(settings), settings.get("scores", "probabilities")
    scored = score_run(load_inside(folder, record.runs[0].predictions), grid, pooling=pooling, scores=scores)
    if settings.get("labels_hash", scored.labels.sha256) != scored.labels.sha256:
        raise RecordError(
            f"the record was made with labels of the hash {settings['labels_hash']}, its predictions have {scored.labels.sha256}"
        )
    if scored.table.rule != settings["coverage"]:
        raise RecordError(f"the predictions cover {scored.table.rule!r}, the record says {settings['coverage']!r}")
    return scored


def load_table(folder: Path, record: ResultRecord) -> Grid:
    """The table of units beside a record, checked against its content hash."""
    path = Path(folder) / record.benchmark.table
    try:
        table = json.loads(read_data(inside(folder, record.benchmark.table)))
        grid = make_grid(table["release"], table["units"])
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"{path} is not the table of units of this record: {error}") from None
    if grid.content_hash != record.benchmark.content_hash or grid.release != record.benchmark.release:
        raise RecordError(f"{path} is another table: expected {record.benchmark.content_hash}, found {grid.content_hash}")
    return grid


def dataset_fault(folder: Path, record: ResultRecord, rows: Callable[[str, Sequence[str]], list[dict[str, Any]]]) -> str | None:
    """What keeps the data set on the Hub from being what a record was scored on, None where it is just that.

    Args:
        folder, record: of the record.
        rows: gives columns of all rows of a config there, in order.
    """
    grid, units = load_table(folder, record), rows("units", ("release", *FIELDS))
    there = make_grid(units[0]["release"] if units else "", units)
    if there.content_hash == grid.content_hash:
        return None
    return f"it has release {there.release!r} with {len(there.units)} units, {there.content_hash}"


def settings_of(stated: Mapping[str, Any], protocol: str = PROTOCOL) -> str:
    """The pooling that a record states.

    Raises:
        RecordError: settings that are not those of this protocol, or a value that is none.
    """
    exact_settings(stated, ("track", "pooling", "coverage"), STATED_SETTINGS)
    for name in ("track", "pooling", "coverage"):
        if not isinstance(stated[name], str):
            raise RecordError(f"protocol.settings of the record: {name} must be a text, found {stated[name]!r}")
    return str(stated["pooling"])


def smoke() -> dict[str, float]:
    """Overall numbers of random probabilities on the sample's test windows: near chance."""
    grid, rng = load_grid("sample"), np.random.default_rng(0)
    truth = load_truth(grid)
    parts = []
    for (unit, fold), t in truth.release.items():
        assert t.windows is not None and t.labels is not None
        parts.append(
            skipped_fold(unit, fold, t.reason) if t.reason else fold_rows(unit, fold, "test", t.windows, t.labels, rng.random(t.n_test))
        )
    table = score_run(concatenate(parts), grid, truth=truth).table
    return {name: 100 * table.get(name, subset=table.rule).value for name in HEADLINES}


def _aggregation(scored: Scored, pooling: str) -> str:
    how = {
        "paper": "folds averaged within unit, units within task, tasks within data set",
        "released_code": "a data set is the mean over its scored folds",
    }[pooling]
    n = len(scored.table.unscored_folds)
    return f"{how}; Overall is the unweighted mean of three data sets; no score for {n} of {len(scored.cells.fold)} folds; SEM over the parts of each mean"


def _metrics(value: Any) -> list[Metric]:
    scored = bool(np.isfinite(value.value))
    slice_ = dict(sorted(value.slice))  # as it is read back
    metrics = [
        Metric(
            name=value.name,
            slice=slice_,
            value=value.value if scored else None,
            reason=None if scored else value.reason,
            unit="share",
            higher_is_better=True,
            n=value.n,
            chance=0.5,
        )
    ]
    if scored and np.isfinite(value.sem):
        metrics.append(Metric(name=f"{value.name}_sem", slice=slice_, value=value.sem, unit="share", higher_is_better=None, n=value.n))
    return metrics
