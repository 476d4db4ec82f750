"""The protocol ``vlm-agreement-v2.0``: the record made from a table of answers, and the re-scoring that checks it.

v2.0 differs from v1.0 in the intervals (`Settings.interval`) and has the share of answered items; records of v1.0 are scored as they were.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file, save_file

from decodehub.core.files import atomic_path, inside, read_data, sha256_file, write_json
from decodehub.core.records import BenchmarkInfo, Coverage, Metric, ModelInfo, RecordError, ResultRecord, Run, exact_settings, new_record
from decodehub.core.statistics import no_interval

from .agreement import QUESTIONS, AnswerTable, Settings, agreement, load_answers

BENCHMARK_ID = "vlm-agreement"
PROTOCOL, FORMER = "vlm-agreement-v2.0", "vlm-agreement-v1.0"
HEADLINES = ("unanimous", "fleiss_kappa")
SAMPLES = frozenset({"sample"})  # releases whose numbers say nothing
RUNS = ((0, 0),)  # all answers are one file
TABLE, ANSWERS = "table.json", "predictions/answers.safetensors"


class Scored(NamedTuple):
    """What was scored, and the numbers."""

    table: AnswerTable
    metrics: tuple[Metric, ...]


def make_record(folder: Path, table: AnswerTable, *, model: ModelInfo, settings: Settings | None = None, data: str = "") -> ResultRecord:
    """Score a table of answers and write a record folder: answers, table, ``record.json`` last.

    Args:
        folder: where to write; a record that is there is replaced.
        table: the answers.
        model: a name for the set of annotators.
        settings: the protocol's settings.
        data: what the images were, in words.
    """
    folder, settings = Path(folder), settings or Settings()
    metrics = agreement(table, settings)
    codes = np.where(np.isfinite(table.answers), table.answers * 2, -1).astype(np.int8)
    with atomic_path(folder / ANSWERS) as part:
        save_file({"answers": np.ascontiguousarray(codes)}, part, metadata={"table": table.content_hash})
    write_json(folder / TABLE, table.rows)
    return new_record(
        folder,
        PROTOCOL,
        dataclasses.asdict(settings),
        BenchmarkInfo(id=BENCHMARK_ID, release=table.release, content_hash=table.content_hash, table=TABLE),
        SAMPLES,
        device="cpu",
        dtype="float64",
        model=model,
        data=data or f"annotations of {len(table.pair_ids)} pairs of release {table.release}",
        aggregation=f"items pooled; {_intervals(table, settings)}",
        runs=[Run(subject=0, seed=0, predictions=ANSWERS, sha256=sha256_file(folder / ANSWERS))],
        coverage=Coverage(rule="one table of answers", expected=1, present=1),
        metrics=list(metrics),
    )


def _intervals(table: AnswerTable, settings: Settings) -> str:
    drawn = f"over {settings.unit}s, {settings.resamples:,} resamples, seed {settings.seed}"
    if settings.interval == "percentile":
        return f"percentile bootstrap {drawn}"
    if why := no_interval(len(set(table.concepts if settings.unit == "concept" else table.pair_ids)), f"{settings.unit}s"):
        return f"no intervals: {why}"
    shared = "" if settings.unit == "concept" else ", though pairs of a concept share a reference"
    return f"95 % intervals {drawn}{shared}: means by inversion of the sign-flip test, kappas and alphas by a bootstrap with expanded percentiles"


def rescore(folder: Path, record: ResultRecord) -> Scored:
    """Score a record anew from its saved answers and table.

    Raises:
        RecordError: another protocol, or a table or answers that are not those of the record.
    """
    if record.protocol.name not in (PROTOCOL, FORMER):
        raise RecordError(f"the record follows {record.protocol.name}, this version scores {PROTOCOL} and {FORMER}")
    settings = settings_of(record.protocol.settings, record.protocol.name)
    path = inside(Path(folder), record.benchmark.table)
    try:
        raw = json.loads(read_data(path))
        if raw["questions"] != list(QUESTIONS):
            raise ValueError(f"its questions are {raw['questions']}")
        codes = load_file(inside(Path(folder), record.runs[0].predictions))["answers"]
        answers = np.where(codes < 0, np.nan, codes / 2)
        table = AnswerTable(
            raw["release"], tuple(p for p, _ in raw["pairs"]), tuple(c for _, c in raw["pairs"]), tuple(raw["annotators"]), answers
        )
    except (FileNotFoundError, ValueError, KeyError, TypeError, IndexError) as error:
        raise RecordError(f"{path} and its answers are not the table of this record: {error}") from None
    if table.content_hash != record.benchmark.content_hash or table.release != record.benchmark.release:
        raise RecordError(f"{path} is another table: expected {record.benchmark.content_hash}, found {table.content_hash}")
    if answers.shape != (len(table.pair_ids), len(table.annotators), len(QUESTIONS)):
        raise RecordError(f"{record.runs[0].predictions} has answers of shape {answers.shape}, which is not that of {path.name}")
    return Scored(table, agreement(table, settings))


def dataset_fault(folder: Path, record: ResultRecord, rows: Callable[[str, Sequence[str]], list[dict[str, Any]]]) -> str | None:
    """What keeps the data set on the Hub from being what a record was scored on, None where it is just that.

    Args:
        folder, record: of the record.
        rows: gives columns of all rows of a config there, in order.
    """
    table = rescore(folder, record).table
    concepts = {row["pair_id"]: row["concept"] for row in rows("consensus", ("pair_id", "concept"))}
    fields = ("release", "pair_id", "annotator", "question", "answer")
    there = {(concepts.get(row["pair_id"]), *(row[name] for name in fields)) for row in rows("annotations", fields)}
    words = {0.0: "no", 0.5: "somewhat", 1.0: "yes"}
    scored = {
        (table.concepts[i], table.release, table.pair_ids[i], table.annotators[j], QUESTIONS[k], words[float(table.answers[i, j, k])])
        for i, j, k in np.argwhere(~np.isnan(table.answers))
    }
    differing = {row for row in there if row[-1] is not None} ^ scored
    return f"{len(differing)} answers are in one of the two and not in the other" if differing else None


def settings_of(stated: Mapping[str, Any], protocol: str = PROTOCOL) -> Settings:
    """The settings that a record states, under the present protocol or the former one, which knew no other interval than its own.

    Raises:
        RecordError: not exactly those of this protocol, or a value that is none.
    """
    former: dict[str, Any] = {"interval": "percentile"} if protocol == FORMER else {}
    exact_settings(stated, [field.name for field in dataclasses.fields(Settings) if field.name not in former])
    try:
        return Settings(**stated, **former)
    except (ValueError, TypeError) as error:
        raise RecordError(f"protocol.settings of the record: {error}") from None


def smoke() -> dict[str, float]:
    """Headline numbers of the rule-based annotators of the sample."""
    metrics = agreement(load_answers("sample"), Settings(resamples=50))
    return {m.name: m.value for m in metrics if m.name in HEADLINES and not m.slice and m.value is not None}
