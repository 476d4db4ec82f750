"""The protocol ``editbench-v2.0``: predictions files, the record made from them, and the re-scoring that checks a record.

v2.0 differs from v1.0 in the intervals over subjects alone (`Settings.interval`); records of v1.0 are scored with those of the paper, as they were.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from decodehub.core.files import canonical_json, home, inside, read_data, sha256_bytes, write_bytes, write_json
from decodehub.core.jobs import map_threads
from decodehub.core.records import (
    RECORD,
    BenchmarkInfo,
    Coverage,
    Metric,
    ModelInfo,
    RecordError,
    ResultRecord,
    Run,
    exact_settings,
    new_record,
    read_record,
)

from .aggregate import Aggregate, aggregate
from .benchmark import EDIT_FIELDS, SOURCE_FIELDS, Benchmark, load_benchmark, make_benchmark
from .scoring import MetricKey, Plan, RunScores, Settings, prepare, score_run

BENCHMARK_ID = "eeg-editbench"
PROTOCOL, FORMER = "editbench-v2.0", "editbench-v1.0"
HEADLINES = ("top1", "ep_top1", "two_afc")
TABLE = "benchmark.json"
SAMPLES = frozenset({"sample", "rehearsal-stamps"})  # releases whose scores say nothing about the benchmark
STATED_SETTINGS = ("similarity", "distance_encoder")  # by whoever made the record, beside those of `Settings`


class Predictions(NamedTuple):
    """What a run saves: its score matrices (see `scoring` for their shapes)."""

    subject: int
    seed: int
    source_scores: np.ndarray
    edit_scores: np.ndarray
    null_scores: np.ndarray | None = None


class ScoredRuns(NamedTuple):
    """All runs of one model: what was scored, run by run, and aggregated."""

    plan: Plan
    runs: tuple[tuple[int, int], ...]
    scores: tuple[RunScores, ...]
    total: Aggregate
    metrics: tuple[Metric, ...]


def save_predictions(path: Path, predictions: Predictions, benchmark: Benchmark) -> str:
    """Write one run's score matrices as safetensors and return the hash of the file.

    Raises:
        ValueError: a shape that is not the benchmark's, or a score that is not finite (query and column are named).
    """
    data = predictions_bytes(predictions, benchmark)
    write_bytes(path, data)
    return sha256_bytes(data)


def predictions_bytes(predictions: Predictions, benchmark: Benchmark) -> bytes:
    """What `save_predictions` writes."""
    check_predictions(predictions, benchmark)
    tensors = {"source_scores": predictions.source_scores, "edit_scores": predictions.edit_scores}
    if predictions.null_scores is not None:
        tensors["null_scores"] = predictions.null_scores
    # One entry: safetensors writes several in an order that differs from process to process.
    run = {"subject": predictions.subject, "seed": predictions.seed, "benchmark": benchmark.content_hash}
    return save({name: np.ascontiguousarray(value) for name, value in tensors.items()}, metadata={"run": canonical_json(run)})


def refuse_other_record(folder: Path, model: str, benchmark: Benchmark, hashes: Mapping[str, str] | None = None) -> None:
    """Refuse a folder whose record is not this one.

    Args:
        folder: of a record, or of none. model: id. benchmark: what is scored.
        hashes: of the predictions, by file; None before they are known.

    Raises:
        RecordError: the record there is of another model, benchmark or predictions, or cannot be read.
    """
    if not (folder / RECORD).exists():
        return
    remedy = "name another --out, or write over it with --force"
    try:
        _, there = read_record(folder)
    except RecordError as error:
        raise RecordError(f"{folder} holds a record that cannot be read ({error}): {remedy}") from None
    for what, old, new in (
        ("model", there.model.id, model),
        ("benchmark", there.benchmark.id, BENCHMARK_ID),
        ("release", there.benchmark.release, benchmark.release),
        ("benchmark table", there.benchmark.content_hash, benchmark.content_hash),
    ):
        if old != new:
            raise RecordError(f"{folder} holds the record of another {what}, {old!r} and not {new!r}: {remedy}")
    if hashes is not None and hashes != {run.predictions: run.sha256 for run in there.runs}:
        raise RecordError(f"{folder} holds a record of {model!r} with other predictions: {remedy}")


def load_predictions(path: Path, benchmark: Benchmark | None = None) -> Predictions:
    """Read one run's score matrices.

    Args:
        path: a file of `save_predictions`.
        benchmark: the table that it must have been saved for, or None to take it as it is.

    Raises:
        ValueError: not a predictions file, or one of another benchmark table.
    """
    try:
        with safe_open(path, framework="numpy") as f:
            names, metadata = set(f.keys()), f.metadata() or {}
            if not {"source_scores", "edit_scores"} <= names:
                raise ValueError(f"it has the tensors {sorted(names)}, expected source_scores and edit_scores")
            run = json.loads(metadata["run"])
            subject, seed, table = int(run["subject"]), int(run["seed"]), run["benchmark"]
            null = f.get_tensor("null_scores") if "null_scores" in names else None
            found = Predictions(subject, seed, f.get_tensor("source_scores"), f.get_tensor("edit_scores"), null)
    except KeyError as error:
        raise ValueError(f"{path} does not say its {error}: it was not written by save_predictions") from None
    except Exception as error:  # safetensors has its own error class for damaged files
        raise ValueError(f"{path} cannot be read as predictions: {error}") from None
    if benchmark is not None and table != benchmark.content_hash:
        raise ValueError(f"{path} was saved for another benchmark table: expected {benchmark.content_hash}, found {table}")
    return found


def check_predictions(predictions: Predictions, benchmark: Benchmark) -> None:
    """Check shapes and that every score is finite.

    Raises:
        ValueError: what was expected, what was found, and for which query and image.
    """
    b, q = benchmark, len(benchmark.concepts)
    run = f"subject {predictions.subject}, seed {predictions.seed}"
    columns = {"source_scores": b.concepts, "edit_scores": b.edit_ids, "null_scores": b.concepts}
    for name, labels in columns.items():
        scores = getattr(predictions, name)
        if scores is None:
            continue
        if scores.shape != (q, len(labels)):
            raise ValueError(
                f"{run}: {name} has shape {scores.shape}, expected {(q, len(labels))} (queries in rows) for release {b.release!r}"
            )
        if len(bad := np.argwhere(~np.isfinite(scores))):
            i, j = bad[0]
            raise ValueError(
                f"{run}: {name} has {len(bad)} values that are not finite, the first for query {b.concepts[i]!r} and image {labels[j]!r}"
            )


def score_runs(
    benchmark: Benchmark, predictions: Iterable[Predictions | Callable[[], Predictions]], settings: Settings | None = None
) -> ScoredRuns:
    """Score every run and aggregate (seeds within subject, mean and population SD over subjects, interval over subjects).

    Args:
        benchmark: what is scored.
        predictions: of each run, or a function that loads or computes them: runs are then loaded and scored in threads and dropped, so memory does
            not grow with their number.
        settings: the protocol's settings.

    Raises:
        ValueError: malformed predictions, an incomplete grid, or null scores in some runs only.
    """
    plan = prepare(benchmark, settings)

    def score_one(item: Predictions | Callable[[], Predictions]) -> tuple[tuple[int, int], RunScores]:
        run = item() if callable(item) else item
        check_predictions(run, benchmark)
        return (run.subject, run.seed), score_run(plan, run.source_scores, run.edit_scores, run.null_scores)

    scored = list(map_threads(score_one, predictions))
    runs, scores = [run for run, _ in scored], [s for _, s in scored]
    if len({s.keys for s in scores}) > 1:
        without = [run for run, s in zip(runs, scores) if s.keys == plan.keys]
        raise ValueError(f"null scores are missing from the runs (subject, seed) {without} and present in others: give all or none")
    total = aggregate(
        runs, np.array([s.values for s in scores]), [key.interval for key in scores[0].keys] if scores else None, plan.settings.interval
    )
    metrics = tuple(_metric(plan, key, i, total) for i, key in enumerate(scores[0].keys))
    return ScoredRuns(plan, tuple(runs), tuple(scores), total, metrics)


def make_record(
    folder: Path,
    benchmark: Benchmark,
    predictions: Sequence[Predictions],
    *,
    model: ModelInfo,
    data: str,
    similarity: str,
    settings: Settings | None = None,
    distance_encoder: str | None = None,
    device: str = "cpu",
    replace: bool = True,
    simulated: bool = False,
) -> tuple[ResultRecord, ScoredRuns]:
    """Score the runs of one model and write a record folder: predictions, benchmark table, ``record.json`` last.

    Args:
        folder: where to write.
        benchmark, predictions: what is scored; a complete grid of subjects and seeds.
        model: which model.
        data: what the EEG was, in words; say so when it was simulated.
        similarity: the name of the score, "cosine", "dot", or the method's own.
        settings: the protocol's settings.
        distance_encoder: which features the visual distances are from, where the release carries none.
        device: where the model ran.
        replace: write over whatever record is there; False writes over the same record only (model, benchmark and predictions).
        simulated: whether the EEG was simulated: the record's kind.

    Raises:
        ValueError: see `score_runs`.
        RecordError: another record is there and is not to be replaced; nothing was written.
    """
    folder = Path(folder)
    scored = score_runs(benchmark, predictions, settings)
    names = {(run.subject, run.seed): f"predictions/sub-{run.subject:02d}_seed-{run.seed}.safetensors" for run in predictions}
    if not replace:
        hashes = {names[run.subject, run.seed]: sha256_bytes(predictions_bytes(run, benchmark)) for run in predictions}
        refuse_other_record(folder, model.id, benchmark, hashes)
    runs = [_saved(folder, names[run.subject, run.seed], run, benchmark) for run in predictions]
    write_json(folder / TABLE, {"release": benchmark.release, **benchmark.rows})
    stated = {**dataclasses.asdict(scored.plan.settings), "similarity": similarity, "distance_encoder": distance_encoder}
    protocol = dict(sorted(stated.items()))  # as it is read back, so that a report made from either is the same
    record = new_record(
        folder,
        PROTOCOL,
        protocol,
        BenchmarkInfo(id=BENCHMARK_ID, release=benchmark.release, content_hash=benchmark.content_hash, table=TABLE),
        SAMPLES,
        simulated=simulated,
        device=device,
        dtype=str(predictions[0].edit_scores.dtype),
        model=model,
        data=data,
        aggregation=f"seeds averaged within subject; mean and population SD over {len(scored.total.subjects)} subjects; {scored.total.ci_method}",
        runs=sorted(runs, key=lambda run: (run.subject, run.seed)),
        coverage=Coverage(rule="subjects x seeds", expected=len(scored.total.subjects) * len(scored.total.seeds), present=len(runs)),
        metrics=list(scored.metrics),
    )
    _remove_others(folder, runs)
    return record, scored


def rescore(folder: Path, record: ResultRecord) -> ScoredRuns:
    """Score a record anew from its saved predictions and table; `metrics` of the result are what it should state.

    Raises:
        RecordError: the table does not hash to what the record says, or the protocol is another.
        ValueError: predictions that cannot be scored.
    """
    if record.protocol.name not in (PROTOCOL, FORMER):
        raise RecordError(f"the record follows {record.protocol.name}, this version scores {PROTOCOL} and {FORMER}")
    settings = settings_of(record.protocol.settings, record.protocol.name)
    benchmark = load_table(folder, record)
    return score_runs(benchmark, (partial(_load_run, folder, run, benchmark) for run in record.runs), settings)


def dataset_fault(folder: Path, record: ResultRecord, rows: Callable[[str, Sequence[str]], list[dict[str, Any]]]) -> str | None:
    """What keeps the data set on the Hub from being what a record was scored on, None where it is just that.

    Args:
        folder, record: of the record.
        rows: gives columns of all rows of a config there, in order.
    """
    benchmark = load_table(folder, record)
    sources, edits = (rows(config, ("release", *fields)) for config, fields in (("sources", SOURCE_FIELDS), ("edits", EDIT_FIELDS)))
    there = make_benchmark(sources[0]["release"] if sources else "", sources, edits)
    if np.isnan(there.distance).all():  # the release carries no distances, so that they may have been measured for the record
        unmeasured = [{**row, "visual_distance": None} for row in benchmark.rows["edits"]]
        benchmark = make_benchmark(benchmark.release, benchmark.rows["sources"], unmeasured)
    if there.content_hash == benchmark.content_hash:
        return None
    return f"it has release {there.release!r} with {len(there.concepts)} sources and {len(there.edit_ids)} edits, {there.content_hash}"


def settings_of(stated: Mapping[str, Any], protocol: str = PROTOCOL) -> Settings:
    """The settings that a record states, under the present protocol or the former one, which knew no other interval than its own.

    Raises:
        RecordError: not exactly those of this protocol, or a value that is none.
    """
    former: dict[str, Any] = {"interval": "paper"} if protocol == FORMER else {}
    names = [field.name for field in dataclasses.fields(Settings) if field.name not in former]
    exact_settings(stated, [*names, *STATED_SETTINGS])
    if not isinstance(stated["similarity"], str) or not isinstance(stated["distance_encoder"], (str, type(None))):
        raise RecordError("protocol.settings of the record: similarity must be a text, distance_encoder a text or null")
    try:
        return Settings(**{name: stated[name] for name in names}, **former)
    except (ValueError, TypeError) as error:
        raise RecordError(f"protocol.settings of the record: {error}") from None


def local_release_fault(scored: ScoredRuns) -> str | None:
    """What is wrong with the table that was scored, where this machine has the release that it says it is; None for nothing, or no release.

    Visual distances may be others: they are measured where a release carries none (`benchmark.with_distances`).
    """
    table, folder = scored.plan.benchmark, home() / BENCHMARK_ID
    if not folder.is_dir() or (release := _release(folder, folder.stat().st_mtime_ns)).release != table.release:
        return None
    for name in ("sources", "edits"):
        mine, theirs = release.rows[name], table.rows[name]
        if len(mine) != len(theirs):
            return f"release {table.release!r} has {len(mine)} {name} in {folder}, the record's table has {len(theirs)}"
        for i, (a, b) in enumerate(zip(mine, theirs)):
            if {**a, "visual_distance": None} != {**b, "visual_distance": None}:
                return f"row {i} of {name} of release {table.release!r} is {a} in {folder}, in the record's table {b}"
    return None


@lru_cache(maxsize=2)
def _release(folder: Path, changed: int) -> Benchmark:
    return load_benchmark(str(folder))


def smoke() -> dict[str, float]:
    """Headline numbers of random scores on the sample: near chance."""
    benchmark = load_benchmark("sample")
    rng = np.random.default_rng(0)
    q, e = len(benchmark.concepts), len(benchmark.edit_ids)
    runs = [Predictions(s, 0, *(rng.standard_normal(shape) for shape in ((q, q), (q, e), (q, q)))) for s in range(1, 5)]
    metrics = score_runs(benchmark, runs).metrics
    return {m.name: m.value for m in metrics if m.name in HEADLINES and not m.slice and m.value is not None}


def load_table(folder: Path, record: ResultRecord) -> Benchmark:
    """The benchmark table saved beside a record, checked against the record's content hash."""
    path = Path(folder) / record.benchmark.table
    try:
        table = json.loads(read_data(inside(folder, record.benchmark.table)))
        benchmark = make_benchmark(table["release"], table["sources"], table["edits"])
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"{path} is not the table of this record: {error}") from None
    if benchmark.release != record.benchmark.release:
        raise RecordError(f"{path} is of release {benchmark.release!r}, the record says {record.benchmark.release!r}")
    if benchmark.content_hash != record.benchmark.content_hash:
        raise RecordError(f"{path} is another table: expected {record.benchmark.content_hash}, found {benchmark.content_hash}")
    return benchmark


def _saved(folder: Path, name: str, run: Predictions, benchmark: Benchmark) -> Run:
    """Save the predictions of a run, and what a record says of them."""
    return Run(subject=run.subject, seed=run.seed, predictions=name, sha256=save_predictions(folder / name, run, benchmark))


def _remove_others(folder: Path, runs: Sequence[Run]) -> None:
    """Remove predictions of a record that was there."""
    for file in set((folder / "predictions").glob("sub-*_seed-*.safetensors")) - {folder / run.predictions for run in runs}:
        file.unlink()


def _load_run(folder: Path, run: Run, benchmark: Benchmark) -> Predictions:
    predictions = load_predictions(inside(folder, run.predictions), benchmark)
    if (predictions.subject, predictions.seed) != (run.subject, run.seed):
        raise RecordError(
            f"{run.predictions} is of subject {predictions.subject}, seed {predictions.seed}, the record says {run.subject}, {run.seed}"
        )
    return predictions


def _metric(plan: Plan, key: MetricKey, i: int, total: Aggregate) -> Metric:
    scored = bool(np.isfinite(total.mean[i]))
    low, high = (float(x) for x in total.ci95[i])
    return Metric(
        name=key.name,
        slice=dict(key.slice),
        value=float(total.mean[i]) if scored else None,
        reason=None if scored else _why(plan, key),
        unit=key.unit,
        higher_is_better=key.higher_is_better,
        n=len(total.subjects),
        sd=float(total.sd[i]) if scored and len(total.subjects) > 1 else None,
        ci95=(low, high) if np.isfinite(low) else None,
        chance=key.chance,
    )


def _why(plan: Plan, key: MetricKey) -> str:
    if key.label in plan.unscored:
        return plan.unscored[key.label]
    group = "distance" if key.name.startswith("distance") else "target"
    return plan.unscored.get(group, "not defined: the scores are constant")
