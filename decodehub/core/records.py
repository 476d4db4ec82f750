"""Result records: one canonical JSON file that says what was scored, how, with which predictions, and the numbers.

The folder of a record is self-contained: ``record.json``, the predictions of every run, and the table they are scored against. Anyone can
re-score it (``decodehub verify``) without the model and without the images.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from .files import inside, read_data, sha256_file, sha256_json, write_json
from .provenance import stated

SCHEMA_VERSION = 1
RECORD = "record.json"
PACKAGES = ("decodehub", "accelerate", "datasets", "evaluate", "numpy", "open_clip_torch", "scikit-learn", "scipy", "torch", "transformers")

Sha256 = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BenchmarkInfo(_Part):
    """Which data: `content_hash` covers table and images; `table` is the file in the record's folder that hashes to it."""

    id: str
    release: str
    content_hash: Sha256
    table: str


class Protocol(_Part):
    """Which rules: a versioned name and every setting; `hash` is of both."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+-v\d+\.\d+$")]
    settings: dict[str, Any]
    hash: Sha256

    @model_validator(mode="after")
    def _hashes(self) -> Protocol:
        if self.hash != protocol_hash(self.name, self.settings):
            raise ValueError("protocol.hash is not the hash of its name and settings")
        return self


class ModelInfo(_Part):
    """Which model: `revision` is a commit or null for one that is not published; `notes` says what a reader must know."""

    id: str
    revision: str | None = None
    parameters: int | None = None
    pretrained_on: str | None = None
    notes: str = ""


class Run(_Part):
    """One run and its predictions file, relative to the record's folder."""

    subject: int
    seed: int
    predictions: str
    sha256: Sha256


class Coverage(_Part):
    """The grid that the rule asks for and what is there; a partial one is refused."""

    rule: str
    expected: int
    present: int

    @model_validator(mode="after")
    def _complete(self) -> Coverage:
        if self.present != self.expected or self.expected < 1:
            raise ValueError(f"{self.present} of {self.expected} runs are present: a partial run cannot become a record")
        return self


class Metric(_Part):
    """One number. `value` is null, with a `reason`, where it could not be scored; never 0 or NaN in its place."""

    name: str
    slice: dict[str, str] = Field(default_factory=dict)
    value: Finite | None
    reason: str | None = None
    unit: str
    higher_is_better: bool | None
    n: int
    sd: Finite | None = None
    ci95: tuple[Finite, Finite] | None = None
    chance: Finite | None = None

    @model_validator(mode="after")
    def _explained(self) -> Metric:
        if (self.value is None) != (self.reason is not None):
            raise ValueError(f"metric {self.name} {self.slice}: a null value needs a reason, and only a null value has one")
        return self


class ResultRecord(_Part):
    """The whole record; see the module."""

    schema_version: Literal[1] = 1
    benchmark: BenchmarkInfo
    protocol: Protocol
    model: ModelInfo
    data: str = Field(description="what the EEG was: a data set and preprocessing, or 'simulated' and how")
    aggregation: str = Field(description="unit of analysis; how seeds, folds and subjects were averaged; how intervals were made")
    runs: list[Run]
    coverage: Coverage
    metrics: list[Metric]
    environment: dict[str, Any]
    created: str

    @property
    def is_sample(self) -> bool:
        """Whether the scores are of an embedded sample or a rehearsal and say nothing about the benchmark itself."""
        return self.benchmark.release.partition("-")[0] in ("sample", "rehearsal")

    def value(self, name: str, **slice_: str) -> float | None:
        """Value of one metric.

        Raises:
            KeyError: the record has no such metric.
        """
        for metric in self.metrics:
            if metric.name == name and metric.slice == slice_:
                return metric.value
        raise KeyError(f"the record has no metric {name!r} with slice {slice_}")


class RecordError(ValueError):
    """A record that cannot be used; the message says which part, and what to do."""


def protocol_hash(name: str, settings: Mapping[str, Any]) -> str:
    """Hash of a protocol's name and settings."""
    return sha256_json({"name": name, "settings": dict(settings)})


def environment(*, device: str, dtype: str, seed: int | None = None) -> dict[str, Any]:
    """Versions, device and threads of this process, and the command that runs; names no user, path or variable."""
    packages = {}
    for name in sorted(PACKAGES):
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    threads = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
    found = {"python": platform.python_version(), "packages": packages, "device": device, "dtype": dtype, "threads": threads, "seed": seed}
    return found if (command := stated()) is None else found | {"command": command}


def now() -> str:
    """The time in UTC, to the second."""
    return dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def write_record(folder: Path, record: ResultRecord) -> Path:
    """Write ``record.json`` last, after checking that every file it names is there and hashes to what it says.

    Raises:
        RecordError: a predictions file is missing or differs.
    """
    check_files(Path(folder), record)
    path = Path(folder) / RECORD
    write_json(path, record.model_dump(mode="json"))
    return path


def read_record(path: Path) -> tuple[Path, ResultRecord]:
    """Read a record from its folder or file.

    Returns:
        The folder and the record.

    Raises:
        RecordError: no record there, not JSON, a newer schema, or malformed; the field is named.
    """
    path = Path(path)
    file = path / RECORD if path.is_dir() else path
    try:
        raw = json.loads(read_data(file))
    except FileNotFoundError:
        raise RecordError(f"{file} does not exist: give the folder of a record, or its {RECORD}") from None
    except ValueError as error:
        raise RecordError(f"{file} is not a record: {error}") from None
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise RecordError(
            f"{file} has schema version {version}, newer than the {SCHEMA_VERSION} of this decodehub: update it (pip install -U decodehub)"
        )
    try:
        return file.parent, ResultRecord.model_validate(raw)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'record'}: {e['msg'].removeprefix('Value error, ')}" for e in error.errors()[:5]
        )
        raise RecordError(f"{file} is not a valid record: {problems}") from None


def check_files(folder: Path, record: ResultRecord) -> None:
    """Check that every predictions file of a record is there and unchanged.

    Raises:
        RecordError: the run and file are named.
    """
    if len({(run.subject, run.seed) for run in record.runs}) != len(record.runs) or len(record.runs) != record.coverage.present:
        raise RecordError(f"the record lists {len(record.runs)} runs (duplicates or not the {record.coverage.present} it claims)")
    for run in record.runs:
        where = f"subject {run.subject}, seed {run.seed}: {run.predictions}"
        try:
            path = inside(folder, run.predictions)
        except ValueError as error:
            raise RecordError(f"{where}: {error}") from None
        if not path.is_file():
            raise RecordError(f"{where} is missing from the record's folder")
        if (found := sha256_file(path)) != run.sha256:
            raise RecordError(f"{where} has changed since the record was made: expected {run.sha256}, found {found}")
