"""The protocol ``vlm-agreement-v2.0``: the record made from a table of answers, and the re-scoring that checks it.

v2.0 differs from v1.0 in the intervals (`Settings.interval`) and has the share of answered items; records of v1.0 are scored as they were.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors.numpy import load_file, save_file

from decodehub.core.files import atomic_path, inside, read_data, sha256_file, write_json
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
from decodehub.core.statistics import no_interval

from .agreement import QUESTIONS, AnswerTable, Settings, agreement, load_answers

BENCHMARK_ID = "vlm-agreement"
PROTOCOL, FORMER = "vlm-agreement-v2.0", "vlm-agreement-v1.0"
HEADLINES = ("unanimous", "fleiss_kappa")
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
    chosen = dataclasses.asdict(settings)
    record = ResultRecord(
        benchmark=BenchmarkInfo(id=BENCHMARK_ID, release=table.release, content_hash=table.content_hash, table=TABLE),
        protocol=Protocol(name=PROTOCOL, settings=chosen, hash=protocol_hash(PROTOCOL, chosen)),
        model=model,
        data=data or f"annotations of {len(table.pair_ids)} pairs of release {table.release}",
        aggregation=f"items pooled; {_intervals(table, settings)}",
        runs=[Run(subject=0, seed=0, predictions=ANSWERS, sha256=sha256_file(folder / ANSWERS))],
        coverage=Coverage(rule="one table of answers", expected=1, present=1),
        metrics=list(metrics),
        environment=environment(device="cpu", dtype="float64"),
        created=now(),
    )
    write_record(folder, record)
    return record


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
        former = {"interval": "percentile"} if record.protocol.name == FORMER else {}
        settings = Settings(**{**record.protocol.settings, **former})
    except (FileNotFoundError, ValueError, KeyError, TypeError, IndexError) as error:
        raise RecordError(f"{path} and its answers are not the table of this record: {error}") from None
    if table.content_hash != record.benchmark.content_hash or table.release != record.benchmark.release:
        raise RecordError(f"{path} is another table: expected {record.benchmark.content_hash}, found {table.content_hash}")
    if answers.shape != (len(table.pair_ids), len(table.annotators), len(QUESTIONS)):
        raise RecordError(f"{record.runs[0].predictions} has answers of shape {answers.shape}, which is not that of {path.name}")
    return Scored(table, agreement(table, settings))


def smoke() -> dict[str, float]:
    """Headline numbers of the rule-based annotators of the sample."""
    metrics = agreement(load_answers("sample"), Settings(resamples=50))
    return {m.name: m.value for m in metrics if m.name in HEADLINES and not m.slice and m.value is not None}
