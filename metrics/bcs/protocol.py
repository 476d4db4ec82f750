"""The protocol ``bcs-v2.0``: predictions files (twelve scores a pair), the table of pairs, records and their re-scoring.

A record is of one of two kinds. "score" says how well reconstructions can be recovered according to a head. "evaluation" says how well a head
predicts the consensus of annotators on held-out concepts, beside baselines; its table holds the targets.

v2.0 differs from v1.0 in the intervals over concepts alone (`Settings.interval`); records of v1.0 are scored with percentiles, as they were.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file, save_file

from decodehub.core.files import atomic_path, inside, read_data, sha256_file, sha256_json, write_json
from decodehub.core.records import BenchmarkInfo, Coverage, Metric, ModelInfo, RecordError, ResultRecord, Run, exact_settings, new_record
from decodehub.core.statistics import FEWEST, no_interval

from .scoring import MEASURES, QUESTIONS, Number, Settings, agreement, describe

BENCHMARK_ID = "bcs"
PROTOCOL, FORMER = "bcs-v2.0", "bcs-v1.0"
HEADLINES = ("t_pas", "t_sas")
TABLE, PREDICTIONS = "pairs.json", "predictions.safetensors"
SAMPLE = "sample"
SAMPLES = frozenset({SAMPLE})  # releases whose numbers say nothing
RUNS = ((0, 0),)  # all pairs are one file
STATED_SETTINGS = ("kind", "output_type", "head_release", "encoders", "training")  # by whoever made the record, beside those of `Settings`
COLUMNS = ("pair_id", "method", "subject", "concept", "reference_sha256", "reconstruction_sha256")


@dataclass(frozen=True)
class Pairs:
    """The pairs that were scored.

    Attributes:
        release: of the reconstructions; ``"sample"`` marks numbers without scientific meaning.
        rows: one dict a pair with the keys `COLUMNS`; method, subject and concept may be None.
        targets, weights: (n, 12) consensus of annotators, NaN and 0 where unknown; None where there are no annotations.
    """

    release: str
    rows: Sequence[Mapping[str, Any]]
    targets: np.ndarray | None = None
    weights: np.ndarray | None = None

    @property
    def concepts(self) -> list[str]:
        """What intervals are over: the concept, else the reference image."""
        return [row["concept"] or row["reference_sha256"] for row in self.rows]

    def table(self) -> dict[str, Any]:
        """JSON content of the table."""
        table: dict[str, Any] = {"release": self.release, "questions": list(QUESTIONS), "pairs": [dict(row) for row in self.rows]}
        if self.targets is not None and self.weights is not None:
            table["targets"] = [[None if np.isnan(t) else float(t) for t in row] for row in self.targets]
            table["weights"] = [[float(w) for w in row] for row in self.weights]
        return table


@dataclass(frozen=True)
class Scores:
    """What a head gave.

    Attributes:
        question_scores: (n, 12) in [0, 1]. spread: (n, 12) SD over the members, or None.
        baselines: (n, 12) scores by name of other predictors, for an evaluation.
    """

    question_scores: np.ndarray
    spread: np.ndarray | None = None
    baselines: Mapping[str, np.ndarray] = field(default_factory=dict)


class Rescored(NamedTuple):
    """What `rescore` gives: the metrics that the record should state, with pairs and scores."""

    metrics: tuple[Metric, ...]
    pairs: Pairs
    scores: Scores


def score_pairs(pairs: Pairs, scores: Scores, settings: Settings | None = None) -> tuple[Metric, ...]:
    """Every number of the protocol: of the pairs and, where there are targets, of the agreement with them.

    Raises:
        ValueError: shapes that do not agree, or scores outside [0, 1].
    """
    settings = settings or Settings()
    methods = [row["method"] for row in pairs.rows]
    numbers = describe(scores.question_scores, pairs.concepts, methods, settings)
    if pairs.targets is not None and pairs.weights is not None:
        predictors = {"": scores.question_scores, **scores.baselines}
        for name, values in predictors.items():
            slice_ = (("baseline", name),) if name else ()
            numbers += agreement(values, pairs.targets, pairs.weights, pairs.concepts, settings, slice_)
    return tuple(_metric(number) for number in numbers)


def make_record(
    folder: Path,
    pairs: Pairs,
    scores: Scores,
    *,
    model: ModelInfo,
    data: str,
    encoders: Sequence[Mapping[str, Any]],
    output_type: str = "continuous",
    head_release: str | None = None,
    training: Mapping[str, Any] | None = None,
    settings: Settings | None = None,
    device: str = "cpu",
    simulated: bool = False,
) -> ResultRecord:
    """Score the pairs and write a record folder: predictions, table of pairs, ``record.json`` last.

    Args:
        folder: where to write; a record that is there is replaced.
        pairs, scores: what was scored and what the head gave.
        model: the head. data: what the reconstructions are, in words.
        encoders: ids and fingerprints of the frozen encoders.
        output_type: "continuous" or "ordinal".
        head_release: release of the annotations that the head was trained on. A head of the sample makes the record one of the sample.
        training: settings that the head was trained with, for an evaluation.
        settings: of the protocol.
        simulated: whether the images were reconstructed from simulated recordings: the record's kind.

    Raises:
        ValueError: as :func:`score_pairs`.
    """
    if head_release == SAMPLE and pairs.release != SAMPLE:
        pairs = dataclasses.replace(pairs, release=SAMPLE)
    settings, scores = settings or Settings(), _as_saved(scores)
    metrics = score_pairs(pairs, scores, settings)
    digest, table = save_scores(Path(folder) / PREDICTIONS, scores), pairs.table()
    write_json(Path(folder) / TABLE, table)
    stated = {
        "kind": "score" if pairs.targets is None else "evaluation",
        "output_type": output_type,
        "head_release": head_release,
        "encoders": [dict(entry) for entry in encoders],
        "training": dict(training) if training is not None else None,
    }
    return new_record(
        folder,
        PROTOCOL,
        dict(sorted((dataclasses.asdict(settings) | stated).items())),
        BenchmarkInfo(id=BENCHMARK_ID, release=pairs.release, content_hash=sha256_json(table), table=TABLE),
        SAMPLES,
        simulated=simulated,
        device=device,
        dtype="float32",
        model=model,
        data=data,
        aggregation=f"means over {len(pairs.rows)} pairs; {_intervals(settings, len(set(pairs.concepts)))}",
        runs=[Run(subject=0, seed=0, predictions=PREDICTIONS, sha256=digest)],
        coverage=Coverage(rule="one file of all pairs", expected=1, present=1),
        metrics=list(metrics),
    )


def _intervals(settings: Settings, n_concepts: int) -> str:
    if not settings.n_bootstrap:
        return "no intervals"
    if settings.interval == "percentile":
        return f"95 % percentile intervals from {settings.n_bootstrap} resamples of {n_concepts} concepts"
    if why := no_interval(n_concepts, "concepts"):
        return f"no intervals: {why}"
    how = "means by inversion of the sign-flip test, correlations by a bootstrap with expanded percentiles"
    return f"95 % intervals over {n_concepts} concepts, whose pairs share a reference: {how}; none for methods or numbers of fewer than {FEWEST} concepts"


def _as_saved(scores: Scores) -> Scores:
    """The scores as float32, as the file holds them: numbers are to be those of the file."""
    baselines = {name: np.asarray(values, dtype=np.float32) for name, values in sorted(scores.baselines.items())}
    spread = None if scores.spread is None else np.asarray(scores.spread, dtype=np.float32)
    return Scores(np.asarray(scores.question_scores, dtype=np.float32), spread, baselines)


def save_scores(path: Path, scores: Scores) -> str:
    """Write scores as float32 safetensors, whole or not at all, and return the hash of the file."""
    tensors = {"question_scores": scores.question_scores} | {f"baseline/{name}": values for name, values in scores.baselines.items()}
    if scores.spread is not None:
        tensors["spread"] = scores.spread
    with atomic_path(path) as part:
        save_file({name: np.ascontiguousarray(values, dtype=np.float32) for name, values in sorted(tensors.items())}, part)
    return sha256_file(path)


def load_scores(path: Path) -> Scores:
    """Read scores of :func:`save_scores`.

    Raises:
        ValueError: not such a file.
    """
    read_data(path)
    try:
        tensors = load_file(path)
    except Exception as error:  # safetensors has its own error class for damaged files
        raise ValueError(f"{path} cannot be read as predictions: {error}") from None
    if "question_scores" not in tensors:
        raise ValueError(f"{path} has the tensors {sorted(tensors)}, expected question_scores")
    baselines = {name.removeprefix("baseline/"): values for name, values in tensors.items() if name.startswith("baseline/")}
    return Scores(tensors["question_scores"], tensors.get("spread"), dict(sorted(baselines.items())))


def load_pairs(folder: Path, record: ResultRecord) -> Pairs:
    """The table of pairs saved beside a record, checked against the record's content hash.

    Raises:
        RecordError: missing, malformed or another table.
    """
    path = Path(folder) / record.benchmark.table
    try:
        table = json.loads(read_data(inside(folder, record.benchmark.table)))
        if table["questions"] != list(QUESTIONS) or any(set(row) != set(COLUMNS) for row in table["pairs"]):
            raise ValueError("its questions or columns are others")
        both = [np.array(table[key], dtype=np.float64) if key in table else None for key in ("targets", "weights")]
        pairs = Pairs(table["release"], table["pairs"], *both)
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"{path} is not the table of this record: {error}") from None
    if (found := sha256_json(table)) != record.benchmark.content_hash or pairs.release != record.benchmark.release:
        raise RecordError(f"{path} is another table: expected {record.benchmark.content_hash}, found {found}")
    return pairs


def rescore(folder: Path, record: ResultRecord) -> Rescored:
    """Score a record anew from its saved predictions and table; `metrics` of the result are what it should state.

    Raises:
        RecordError: the table or the protocol is another.
        ValueError: predictions that cannot be scored.
    """
    if record.protocol.name not in (PROTOCOL, FORMER):
        raise RecordError(f"the record follows {record.protocol.name}, this version scores {PROTOCOL} and {FORMER}")
    settings = settings_of(record.protocol.settings, record.protocol.name)
    pairs = load_pairs(folder, record)
    if record.protocol.settings["kind"] != ("score" if pairs.targets is None else "evaluation"):
        raise RecordError(f"protocol.settings.kind is {record.protocol.settings['kind']!r}, which the table of pairs is not for")
    scores = load_scores(inside(folder, record.runs[0].predictions))
    return Rescored(score_pairs(pairs, scores, settings), pairs, scores)


def dataset_fault(folder: Path, record: ResultRecord, rows: Callable[[str, Sequence[str]], list[dict[str, Any]]]) -> str | None:
    """What keeps the data set on the Hub from being what a record was scored on, None where it is just that.

    Args:
        folder, record: of the record.
        rows: gives columns of all rows of a config there, in order.
    """
    pairs = load_pairs(folder, record)
    columns = ("pair_id", "reference_sha256", "reconstruction_sha256")
    there = rows("pairs", ("release", *columns))
    if (releases := {row["release"] for row in there}) != {pairs.release}:
        return f"it has release {', '.join(map(repr, sorted(releases)))}"
    known = {tuple(row[name] for name in columns) for row in there}
    strange = [row["pair_id"] for row in pairs.rows if tuple(row[name] for name in columns) not in known]
    if strange:
        return f"{len(strange)} of the {len(pairs.rows)} pairs that were scored are not in it, the first is {strange[0]!r}"
    return None


def settings_of(stated: Mapping[str, Any], protocol: str = PROTOCOL) -> Settings:
    """The settings that a record states, under the present protocol or the former one, which knew no other interval than its own.

    Raises:
        RecordError: not exactly those of this protocol, or a value that is none.
    """
    former: dict[str, Any] = {"interval": "percentile"} if protocol == FORMER else {}
    names = [field.name for field in dataclasses.fields(Settings) if field.name not in former]
    exact_settings(stated, [*names, *STATED_SETTINGS])
    try:
        return Settings(**{name: stated[name] for name in names}, **former)
    except (ValueError, TypeError) as error:
        raise RecordError(f"protocol.settings of the record: {error}") from None


def smoke() -> dict[str, float]:
    """Headline numbers, in percent, of random scores on random pairs."""
    rng = np.random.default_rng(0)
    n = 60
    rows = [dict.fromkeys(COLUMNS) | {"pair_id": str(i), "concept": f"c{i % 12}", "reference_sha256": ""} for i in range(n)]
    targets = rng.integers(0, 5, (n, len(QUESTIONS))) / 4
    metrics = score_pairs(Pairs(SAMPLE, rows, targets, np.ones_like(targets)), Scores(rng.random(targets.shape)))
    return {m.name: 100 * m.value for m in metrics if not m.slice and m.value is not None and m.name in (*HEADLINES, *MEASURES)}


_UNITS = {"q_r": "correlation", "q_rho": "correlation", "pas_r": "correlation", "sas_r": "correlation", "regime_share": "share"}
_BETTER = {"t_pas": True, "t_sas": True, "question_mean": True, "regime_share": None}


def _metric(number: Number) -> Metric:
    scored = np.isfinite(number.value)
    interval = number.ci95 if scored and np.isfinite(number.ci95).all() else None
    return Metric(
        name=number.name,
        slice=dict(number.slice),
        value=number.value if scored else None,
        reason=None if scored else "not defined: scores or targets are constant, or there are none",
        unit=_UNITS.get(number.name, "score"),
        higher_is_better=_BETTER.get(number.name, not number.name.endswith("_mae")),
        n=number.n,
        ci95=interval,
    )
