"""Result records re-scored from their saved predictions and compared: one record, or all of a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from decodehub.core.files import inside, sha256_file
from decodehub.core.records import RECORD, Metric, ResultRecord, check_files, read_record
from decodehub.core.repos import RELEASE, SAMPLE_CONFIG, read_release_file

from .tasks import protocol_of

TOLERANCE = 1e-9  # counts are exact; only the order of a few float64 sums may differ between machines
State = Literal["recomputed", "reported only", "wrong"]


class Difference(NamedTuple):
    """A number that the record states and its predictions do not give."""

    metric: str
    field: str
    stated: object
    recomputed: object


class Finding(NamedTuple):
    """What was found of one thing: its name and what is to be said of it, and the details where something is wrong."""

    state: State
    what: str
    details: tuple[str, ...] = ()
    record: ResultRecord | None = None


def verify(path: Path) -> tuple[ResultRecord, list[Difference]]:
    """Check a record's files and hashes, score its predictions anew, and list every number that differs.

    Raises:
        RecordError: no record, a newer schema, a missing or changed file, an unknown benchmark.
        ValueError: predictions that cannot be scored.
    """
    folder, record = read_record(path)
    check_files(folder, record)
    return record, compare(record.metrics, list(protocol_of(record.benchmark.id).rescore(folder, record).metrics))


def check_record(path: Path, name: str = "") -> Finding:
    """What is to be said of one record; nothing is raised for a wrong one.

    Args:
        path: its folder or file.
        name: put before what is said, where there are many.
    """
    prefix = f"{name}: " if name else ""
    try:
        folder, record = read_record(path)
        headline = f"{prefix}{record.model.id} on {record.benchmark.id}, release {record.benchmark.release}"
        if record.runs and not any(_is_there(folder, run.predictions) for run in record.runs):
            return Finding("reported only", f"{headline}: its predictions are not there", (), record)
        record, differences = verify(path)
    except ValueError as error:
        return Finding("wrong", f"{prefix}{error}")
    if differences:
        details = tuple(f"{d.metric} {d.field}: stated {d.stated}, recomputed {d.recomputed}" for d in differences)
        return Finding("wrong", f"{headline}: {len(differences)} numbers differ from the saved predictions", details, record)
    numbers = f"{len(record.metrics)} numbers from {len(record.runs)} runs are as stated"
    return Finding("recomputed", f"{headline}: {numbers}", (), record)


def check_release(folder: Path, name: str = "") -> Finding:
    """Whether the Parquet files of a data set repository are those of its ``release.json``."""
    try:
        release = read_release_file(folder)
        there = {path.relative_to(folder).as_posix(): sha256_file(path) for path in sorted(folder.rglob("*.parquet"))}
    except ValueError as error:
        return Finding("wrong", str(error))
    return compare_release(release, there, name or str(folder))


def compare_release(release: dict, there: dict[str, str], name: str) -> Finding:
    """Compare the files of ``release.json`` with those that are there, by path and ``sha256:...`` hash."""
    expected = release["files"]
    wrong = [f"{path}: missing" for path in sorted(expected.keys() - there.keys())]
    wrong += [f"{path}: no part of the release" for path in sorted(there.keys() - expected.keys())]
    wrong += [
        f"{path}: expected {expected[path]}, found {there[path]}"
        for path in sorted(expected.keys() & there.keys())
        if expected[path] != there[path]
    ]
    names = ", ".join(sorted({r for config, about in release["configs"].items() if config != SAMPLE_CONFIG for r in about["releases"]}))
    what = f"{name}: {release['dataset']}, release {names}"
    if wrong:
        return Finding("wrong", f"{what}: {len(wrong)} of {len(expected)} files are not those of the release", tuple(wrong))
    return Finding("recomputed", f"{what}: {len(expected)} files hash as stated")


def check_folder(path: Path) -> list[Finding]:
    """What is to be said of a record, a data set repository, or every record below a folder.

    Raises:
        RecordError: there is none.
    """
    if path.is_file() or (path / RECORD).is_file():
        return [check_record(path)]
    found = [check_release(path)] if (path / RELEASE).is_file() else []
    found += [check_record(folder, folder.relative_to(path).as_posix()) for folder in record_folders(path)]
    if not found:
        read_record(path)  # says what is missing
    return found


def record_folders(path: Path) -> Iterator[Path]:
    """Folders below `path` that hold a record."""
    yield from sorted(file.parent for file in path.rglob(RECORD))


def compare(stated: list[Metric], recomputed: list[Metric]) -> list[Difference]:
    """Every number of `stated` that `recomputed` does not have, and the other way round."""
    left, right = ({_label(metric): metric for metric in metrics} for metrics in (stated, recomputed))
    differences = [
        Difference(label, "metric", "stated" if label in left else "absent", "absent" if label in left else "computed")
        for label in left.keys() ^ right.keys()
    ]
    if len(left) != len(stated):
        differences.append(Difference("", "metric", f"{len(stated)} metrics", f"{len(left)} distinct ones"))
    for label in (label for label in left if label in right):
        a, b = left[label].model_dump(), right[label].model_dump()
        differences += [Difference(label, field, a[field], b[field]) for field in a if not equal_numbers(a[field], b[field])]
    return differences


def equal_numbers(a: object, b: object) -> bool:
    """Whether two values of a metric are equal, numbers up to `TOLERANCE`."""
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(equal_numbers(x, y) for x, y in zip(a, b))
    if isinstance(a, float) and isinstance(b, (float, int)) and not isinstance(b, bool):
        return abs(a - b) <= TOLERANCE * max(1.0, abs(a), abs(b))
    return a == b


def _is_there(folder: Path, relative: str) -> bool:
    try:
        return inside(folder, relative).exists()
    except ValueError:
        return True  # `verify` says what is wrong with the path


def _label(metric: Metric) -> str:
    return metric.name + (f"[{','.join(f'{k}={v}' for k, v in metric.slice.items())}]" if metric.slice else "")
