"""The protocol ``editbench-v2.0``: predictions files, the record made from them, and the re-scoring that checks a record.

v2.0 differs from v1.0 in the intervals over subjects alone (`Settings.interval`); records of v1.0 are scored with those of the paper, as they were.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from decodehub.core.files import atomic_path, canonical_json, inside, read_data, sha256_file, write_json
from decodehub.core.jobs import map_threads
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
    now,
    protocol_hash,
    write_record,
)

from .aggregate import Aggregate, aggregate
from .benchmark import Benchmark, load_benchmark, make_benchmark
from .scoring import MetricKey, Plan, RunScores, Settings, prepare, score_run

BENCHMARK_ID = "eeg-editbench"
PROTOCOL, FORMER = "editbench-v2.0", "editbench-v1.0"
HEADLINES = ("top1", "ep_top1", "two_afc")
TABLE = "benchmark.json"


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
    check_predictions(predictions, benchmark)
    tensors = {"source_scores": predictions.source_scores, "edit_scores": predictions.edit_scores}
    if predictions.null_scores is not None:
        tensors["null_scores"] = predictions.null_scores
    # One entry: safetensors writes several in an order that differs from process to process.
    run = {"subject": predictions.subject, "seed": predictions.seed, "benchmark": benchmark.content_hash}
    metadata = {"run": canonical_json(run)}
    with atomic_path(path) as part:
        save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, part, metadata=metadata)
    return sha256_file(path)


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
) -> tuple[ResultRecord, ScoredRuns]:
    """Score the runs of one model and write a record folder: predictions, benchmark table, ``record.json`` last.

    Args:
        folder: where to write; a record of the same model that is there is replaced.
        benchmark, predictions: what is scored; a complete grid of subjects and seeds.
        model: which model.
        data: what the EEG was, in words; say so when it was simulated.
        similarity: the name of the score, "cosine", "dot", or the method's own.
        settings: the protocol's settings.
        distance_encoder: which features the visual distances are from, where the release carries none.
        device: where the model ran.

    Raises:
        ValueError: see `score_runs`.
    """
    folder = Path(folder)
    scored = score_runs(benchmark, predictions, settings)
    runs = []
    for run in predictions:
        name = f"predictions/sub-{run.subject:02d}_seed-{run.seed}.safetensors"
        runs.append(Run(subject=run.subject, seed=run.seed, predictions=name, sha256=save_predictions(folder / name, run, benchmark)))
    write_json(folder / TABLE, {"release": benchmark.release, **benchmark.rows})
    protocol = {**dataclasses.asdict(scored.plan.settings), "similarity": similarity, "distance_encoder": distance_encoder}
    protocol = dict(sorted(protocol.items()))  # as it is read back, so that a report made from either is the same
    record = ResultRecord(
        benchmark=BenchmarkInfo(id=BENCHMARK_ID, release=benchmark.release, content_hash=benchmark.content_hash, table=TABLE),
        protocol=Protocol(name=PROTOCOL, settings=protocol, hash=protocol_hash(PROTOCOL, protocol)),
        model=model,
        data=data,
        aggregation=f"seeds averaged within subject; mean and population SD over {len(scored.total.subjects)} subjects; {scored.total.ci_method}",
        runs=sorted(runs, key=lambda run: (run.subject, run.seed)),
        coverage=Coverage(rule="subjects x seeds", expected=len(scored.total.subjects) * len(scored.total.seeds), present=len(runs)),
        metrics=list(scored.metrics),
        environment=environment(device=device, dtype=str(predictions[0].edit_scores.dtype)),
        created=now(),
    )
    write_record(folder, record)
    return record, scored


def rescore(folder: Path, record: ResultRecord) -> ScoredRuns:
    """Score a record anew from its saved predictions and table; `metrics` of the result are what it should state.

    Raises:
        RecordError: the table does not hash to what the record says, or the protocol is another.
        ValueError: predictions that cannot be scored.
    """
    if record.protocol.name not in (PROTOCOL, FORMER):
        raise RecordError(f"the record follows {record.protocol.name}, this version scores {PROTOCOL} and {FORMER}")
    benchmark = load_table(folder, record)
    known = {field.name for field in dataclasses.fields(Settings)}
    try:
        settings = Settings(**{name: value for name, value in record.protocol.settings.items() if name in known})
        if record.protocol.name == FORMER:
            settings = dataclasses.replace(settings, interval="paper")
    except ValueError as error:
        raise RecordError(f"protocol.settings of the record: {error}") from None
    return score_runs(benchmark, (partial(_load_run, folder, run, benchmark) for run in record.runs), settings)


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
        sd=float(total.sd[i]) if scored else None,
        ci95=(low, high) if np.isfinite(low) else None,
        chance=key.chance,
    )


def _why(plan: Plan, key: MetricKey) -> str:
    if key.label in plan.unscored:
        return plan.unscored[key.label]
    group = "distance" if key.name.startswith("distance") else "target"
    return plan.unscored.get(group, "not defined: the scores are constant")
