"""Result records: one canonical JSON file that says what was scored, how, with which predictions, and the numbers.

The folder of a record is self-contained: ``record.json``, the predictions of every run, and the table they are scored against. Anyone can
re-score it (``decodehub verify``) without the model and without the images.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import json
import math
import os
import platform
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from .files import inside, read_data, sha256_file, sha256_json, write_json
from .provenance import stated

SCHEMA_VERSION = 2  # 1 had no `kind`; its records are read, see `_migrate`
RECORD = "record.json"
NOT_CHECKED = "not checked"  # as a setting, or in the coverage rule: what nothing could prove; such a record counts as reported
MAX_RECORD_BYTES = 20_000_000
MAX_FOLDERS = 16  # folders within folders, where records are looked for
MAX_NESTING, MAX_VALUES, MAX_TEXT = 16, 100_000, 20_000  # of settings and environment, which are free in form
PACKAGES = ("decodehub", "accelerate", "datasets", "evaluate", "numpy", "open_clip_torch", "scikit-learn", "scipy", "torch", "transformers")

Kind = Literal["real", "simulated", "sample"]


def _some_hash(value: str) -> str:
    if not value.removeprefix("sha256:").strip("0"):
        raise ValueError("it is all zeros, which is no hash of anything")
    return value


def _some_time(value: str) -> str:
    try:
        if re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", value, re.ASCII):
            dt.datetime.fromisoformat(value.removesuffix("Z") + "+00:00")
            return value
    except ValueError:
        pass
    raise ValueError(f"expected a time in UTC such as 2026-11-30T12:00:00Z, found {value[:40]!r}")


def _bounded(value: dict[str, Any]) -> dict[str, Any]:
    """Settings or environment that are no trap: finite numbers, limited depth, length and number."""
    n = 0
    waiting: list[tuple[Any, int]] = [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        n += 1
        if depth > MAX_NESTING or n > MAX_VALUES:
            raise ValueError(f"it has more than {MAX_NESTING} levels or {MAX_VALUES:,} values")
        if isinstance(item, float) and not math.isfinite(item):
            raise ValueError(f"it holds {item}, which is no number: say null")
        if isinstance(item, str) and len(item) > MAX_TEXT:
            raise ValueError(f"it holds a text of {len(item):,} characters, more than {MAX_TEXT:,}")
        if isinstance(item, dict):
            waiting += [(part, depth + 1) for pair in item.items() for part in pair]
        elif isinstance(item, (list, tuple)):
            waiting += [(part, depth + 1) for part in item]
    return value


Sha256 = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$"), AfterValidator(_some_hash)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Free = Annotated[dict[str, Any], AfterValidator(_bounded)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BenchmarkInfo(_Part):
    """Which data: `content_hash` covers table and images; `table` is the file in the record's folder that hashes to it."""

    id: Name
    release: Name
    content_hash: Sha256
    table: Name


class Protocol(_Part):
    """Which rules: a versioned name and every setting; `hash` is of both."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+-v\d+\.\d+$", max_length=200)]
    settings: Free
    hash: Sha256

    @model_validator(mode="after")
    def _hashes(self) -> Protocol:
        if self.hash != protocol_hash(self.name, self.settings):
            raise ValueError("protocol.hash is not the hash of its name and settings")
        return self


class ModelInfo(_Part):
    """Which model: `revision` is a commit or null for one that is not published; `notes` says what a reader must know."""

    id: Name
    revision: Name | None = None
    parameters: Annotated[int, Field(ge=0)] | None = None
    pretrained_on: Text | None = None
    notes: Text = ""


class Run(_Part):
    """One run and its predictions file, relative to the record's folder."""

    subject: int
    seed: int
    predictions: Name
    sha256: Sha256


class Coverage(_Part):
    """The grid that the rule asks for and what is there; a partial one is refused."""

    rule: Text
    expected: int
    present: int

    @model_validator(mode="after")
    def _complete(self) -> Coverage:
        if self.present != self.expected or self.expected < 1:
            raise ValueError(f"{self.present} of {self.expected} runs are present: a partial run cannot become a record")
        return self


class Metric(_Part):
    """One number. `value` is null, with a `reason`, where it could not be scored; never 0 or NaN in its place. One unit has no `sd`."""

    name: Name
    slice: dict[Name, Text] = Field(default_factory=dict, max_length=16)
    value: Finite | None
    reason: Text | None = None
    unit: Annotated[str, Field(max_length=200)]
    higher_is_better: bool | None
    n: Annotated[int, Field(ge=0)]
    sd: Finite | None = None
    ci95: tuple[Finite, Finite] | None = None
    chance: Finite | None = None

    @model_validator(mode="after")
    def _explained(self) -> Metric:
        if (self.value is None) != (self.reason is not None):
            raise ValueError(f"metric {self.name} {self.slice}: a null value needs a reason, and only a null value has one")
        if self.n == 1 and self.sd is not None:
            raise ValueError(f"metric {self.name} {self.slice}: one unit has no spread, found sd {self.sd}")
        return self


class ResultRecord(_Part):
    """The whole record; see the module.

    `kind` says what was scored: "real" recordings or images, "simulated" ones, or a "sample" or rehearsal release. Only real ones stand on the
    leaderboard. Schema version 1 did not say it: such a record keeps its version when it is read, which marks that its kind was derived.
    """

    schema_version: Literal[1, 2] = 2
    kind: Kind
    benchmark: BenchmarkInfo
    protocol: Protocol
    model: ModelInfo
    data: Text = Field(description="what the EEG was: a data set and preprocessing, or 'simulated' and how")
    aggregation: Text = Field(description="unit of analysis; how seeds, folds and subjects were averaged; how intervals were made")
    runs: Annotated[list[Run], Field(max_length=100_000)]
    coverage: Coverage
    metrics: Annotated[list[Metric], Field(max_length=100_000)]
    environment: Free
    created: Annotated[str, AfterValidator(_some_time)]

    @field_validator("schema_version", mode="before")
    @classmethod
    def _whole(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError(f"expected a whole number, found {value}")
        return value

    @property
    def is_sample(self) -> bool:
        """Whether the scores are of an embedded sample or a rehearsal and say nothing about the benchmark itself."""
        return self.kind == "sample"

    @property
    def not_checked(self) -> str:
        """What the record itself says that nothing could prove, such as "labels"; empty for nothing. Its numbers then count as reported."""
        parts = [name for name, value in self.protocol.settings.items() if value == NOT_CHECKED]
        return ", ".join([*parts, *(["coverage"] if NOT_CHECKED in self.coverage.rule else [])])

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


def kind_of(release: str, samples: Collection[str], *, simulated: bool = False) -> Kind:
    """Kind of a new record: that of the release where it is one of the `samples` of its benchmark, else as the caller says of the data."""
    return "sample" if release in samples else "simulated" if simulated else "real"


def exact_settings(settings: Mapping[str, Any], required: Collection[str], optional: Collection[str] = ()) -> None:
    """Check that settings are those that a protocol has, no more and no fewer: an unknown one would make rules of one's own.

    Raises:
        RecordError: the settings that are unknown or missing.
    """
    unknown, missing = sorted(settings.keys() - {*required, *optional}), sorted(set(required) - settings.keys())
    if unknown or missing:
        words = [f"{', '.join(map(repr, names))} {what}" for names, what in ((unknown, "unknown"), (missing, "missing")) if names]
        raise RecordError(f"protocol.settings: {'; '.join(words)}; the protocol has {', '.join(sorted({*required, *optional}))}")


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
        RecordError: a predictions file is missing or differs, or the record is one of an older schema.
    """
    if record.schema_version != SCHEMA_VERSION:
        raise RecordError(f"a record of schema version {record.schema_version} is only read; new ones have version {SCHEMA_VERSION}")
    check_files(Path(folder), record)
    path = Path(folder) / RECORD
    write_json(path, record.model_dump(mode="json"))
    return path


def new_record(
    folder: Path,
    protocol: str,
    settings: dict[str, Any],
    benchmark: BenchmarkInfo,
    samples: Collection[str],
    *,
    simulated: bool = False,
    device: str,
    dtype: str,
    seed: int | None = None,
    **parts: Any,
) -> ResultRecord:
    """Make the record of what was just scored and write it last; its kind, hash of the protocol, environment and time are set here.

    Args:
        folder: of the record, with the files that it names.
        protocol, settings: name and settings of the protocol.
        benchmark: what was scored. samples: the releases of the benchmark whose numbers say nothing.
        simulated: see :func:`kind_of`. device, dtype, seed: see :func:`environment`.
        parts: the other parts of :class:`ResultRecord`.

    Raises:
        RecordError: as :func:`write_record`.
    """
    record = ResultRecord(
        kind=kind_of(benchmark.release, samples, simulated=simulated),
        benchmark=benchmark,
        protocol=Protocol(name=protocol, settings=settings, hash=protocol_hash(protocol, settings)),
        environment=environment(device=device, dtype=dtype, seed=seed),
        created=now(),
        **parts,
    )
    write_record(folder, record)
    return record


def read_record(path: Path) -> tuple[Path, ResultRecord]:
    """Read a record from its folder or file.

    Returns:
        The folder and the record.

    Raises:
        RecordError: no record there, not JSON, a newer schema, too large, or malformed; the field is named.
    """
    path = Path(path)
    file = path / RECORD if path.is_dir() else path
    try:
        data = read_data(file, max_bytes=MAX_RECORD_BYTES)
    except FileNotFoundError:
        raise RecordError(f"{file} does not exist: give the folder of a record, or its {RECORD}") from None
    except (ValueError, OSError) as error:
        raise RecordError(f"{file} is not a record: {error}") from None
    return file.parent, parse_record(data, str(file))


def parse_record(data: bytes, name: str) -> ResultRecord:
    """The record that the bytes of a ``record.json`` state.

    Args:
        data: of the file. name: of the file, for errors.

    Raises:
        RecordError: as `read_record`.
    """
    try:
        text = data.decode("utf-8")
        raw = json.loads(text, object_pairs_hook=_without_doubles)
    except RecursionError:
        raise RecordError(f"{name} is not a record: its brackets are nested too deep") from None
    except ValueError as error:
        raise RecordError(f"{name} is not a record: {error}") from None
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise RecordError(
            f"{name} has schema version {version}, newer than the {SCHEMA_VERSION} of this decodehub: update it (pip install -U decodehub)"
        )
    if isinstance(raw, dict) and version is None:
        raise RecordError(f"{name} is not a valid record: schema_version: Field required")
    try:
        if version == 1 and not isinstance(version, bool):
            if "kind" in raw:
                raise RecordError(f"{name} is not a valid record: kind: schema version 1 has no such field")
            text = json.dumps(_migrate(raw))
        return ResultRecord.model_validate_json(text, strict=True)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'record'}: {e['msg'].removeprefix('Value error, ')}"[:400] for e in error.errors()[:5]
        )
        raise RecordError(f"{name} is not a valid record: {problems}") from None


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {double[:80]!r} is there twice in one object")
    return found


def _migrate(raw: dict[str, Any]) -> dict[str, Any]:
    """A record of schema version 1 with what version 2 says besides: its kind, read from the words that stood for it; no spread of one unit."""
    benchmark, metrics = raw.get("benchmark"), raw.get("metrics")
    release = str(benchmark.get("release") if isinstance(benchmark, dict) else "")
    sample = release.partition("-")[0] in ("sample", "rehearsal")
    kind = "sample" if sample else "simulated" if "simulated" in str(raw.get("data")).lower() else "real"
    if isinstance(metrics, list):
        metrics = [{**m, "sd": None} if isinstance(m, dict) and m.get("n") == 1 and m.get("sd") == 0 else m for m in metrics]
    return {**raw, "kind": kind, "metrics": metrics}


class Skipped(NamedTuple):
    """A place where no record could be looked for, relative to the folder that was asked for; `broken` where that is a fault."""

    path: str
    reason: str
    broken: bool


def find_records(root: Path) -> tuple[list[str], list[Skipped]]:
    """Every ``record.json`` below a folder, in order, relative to it, and the places that were not looked into. Hidden folders are passed by."""
    files: list[str] = []
    skipped: list[Skipped] = []
    for name, problem in _search(str(root), ""):
        files.append(name) if problem is None else skipped.append(problem)
    return sorted(files), sorted(skipped)


def _search(root: str, below: str) -> Iterator[tuple[str, Skipped | None]]:
    # Strings, since ten thousand `Path` objects cost more than reading the files.
    try:
        with os.scandir(f"{root}/{below}") as entries:
            items = list(entries)
    except OSError as error:
        yield below, Skipped(below.rstrip("/") or ".", f"the folder cannot be read ({error.strerror or error})", True)
        return
    for item in items:
        name = below + item.name
        if item.name == RECORD:
            yield name, None
        elif item.name.startswith("."):
            continue
        elif item.is_symlink():
            if item.is_dir() and not Path(item.path).resolve().is_relative_to(Path(root).resolve()):
                yield name, Skipped(name, "a link to a folder elsewhere is not followed: give that folder itself", False)
        elif item.is_dir():
            if below.count("/") >= MAX_FOLDERS:
                yield name, Skipped(name, f"it lies more than {MAX_FOLDERS} folders deep", True)
            else:
                yield from _search(root, f"{name}/")


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
            there = path.is_file()
        except (ValueError, OSError) as error:
            raise RecordError(f"{where}: {error}") from None
        if not there:
            raise RecordError(f"{where} is missing from the record's folder")
        if (found := sha256_file(path)) != run.sha256:
            raise RecordError(f"{where} has changed since the record was made: expected {run.sha256}, found {found}")
