"""The protocol ``imind-v1.0``: the record made from a run's predictions, and the re-scoring that checks a record."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
from .grid import Grid, load_grid, make_grid
from .predictions import Cells, Predictions, concatenate, fold_rows, load_inside, save, score_cells

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
    """A scored run: grid, fold scores, table, and the numbers of its record."""

    grid: Grid
    cells: Cells
    table: Table
    metrics: tuple[Metric, ...]


def score_run(predictions: Predictions, grid: Grid, *, pooling: str = "paper") -> Scored:
    """Score the predictions of one run.

    Args:
        predictions: of the full grid, exactly Main, or exactly Challenge.
        grid: the release.
        pooling: see `aggregate.make_table`.

    Raises:
        ValueError: malformed or incomplete predictions; the cell is named.
    """
    cells = score_cells(predictions, grid)
    table = make_table(cells, grid, pooling)
    return Scored(grid, cells, table, tuple(metric for value in table.values for metric in _metrics(value)))


def make_record(
    folder: Path,
    grid: Grid,
    predictions: Predictions,
    *,
    model: ModelInfo,
    data: str,
    settings: Mapping[str, Any],
    pooling: str = "paper",
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
        pooling: see `aggregate.make_table`.
        device: where the model ran.
        simulated: whether the recordings were simulated: the record's kind.

    Raises:
        ValueError: see `score_run`; settings without a "track", or with one that the protocol does not know.
    """
    if not settings.get("track"):
        raise ValueError('settings must say the preprocessing "track" (Multi-STFT, Waveform, ..., or Custom)')
    folder = Path(folder)
    scored = score_run(predictions, grid, pooling=pooling)
    protocol = json.loads(json.dumps({**settings, "pooling": pooling, "coverage": scored.table.rule}, sort_keys=True))
    settings_of(protocol)
    save(folder / PREDICTIONS_FILE, predictions)
    write_json(folder / GRID_FILE, {"release": grid.release, "units": grid.rows()})
    record = ResultRecord(
        kind=kind_of(grid.release, SAMPLES, simulated=simulated),
        benchmark=BenchmarkInfo(id=BENCHMARK_ID, release=grid.release, content_hash=grid.content_hash, table=GRID_FILE),
        protocol=Protocol(name=PROTOCOL, settings=protocol, hash=protocol_hash(PROTOCOL, protocol)),
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


def rescore(folder: Path, record: ResultRecord) -> Scored:
    """Score a record anew from its predictions and table of units; `metrics` of the result are what it should state.

    Raises:
        RecordError: the table does not hash to what the record says, the protocol is another, or the coverage differs.
        ValueError: predictions that cannot be scored.
    """
    if record.protocol.name != PROTOCOL:
        raise RecordError(f"the record follows {record.protocol.name}, this version scores {PROTOCOL}")
    grid = load_table(folder, record)
    if len(record.runs) != 1:
        raise RecordError(f"a record of imindbench has one predictions file, this one lists {len(record.runs)}")
    settings = record.protocol.settings
    scored = score_run(load_inside(folder, record.runs[0].predictions), grid, pooling=settings_of(settings))
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


def settings_of(stated: Mapping[str, Any]) -> str:
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
    """Overall numbers of random probabilities on the sample's units: near chance."""
    grid, rng = load_grid("sample"), np.random.default_rng(0)
    parts = [
        fold_rows(unit, fold, split, np.arange(40), np.arange(40) % 2, rng.random(40))
        for unit in grid.ids
        for fold in (0, 1)
        for split in ("val", "test")
    ]
    table = score_run(concatenate(parts), grid).table
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
