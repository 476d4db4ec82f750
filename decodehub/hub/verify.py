"""Result records re-scored from their saved predictions and compared: one record, or all of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

from decodehub.core.files import inside, sha256_file
from decodehub.core.records import RECORD, Metric, RecordError, ResultRecord, check_files, find_records, read_record
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
    """The verdict on one thing: its state, a headline that names it, the details where something is wrong, and the record if it is one."""

    state: State
    what: str
    details: tuple[str, ...] = ()
    record: ResultRecord | None = None


class Rescored(NamedTuple):
    """What the predictions of a record give.

    Attributes:
        differences: every number that is not as the record states it.
        not_checked: what nothing could prove, by the record's own word or here and now, such as "labels": its numbers are then reported;
            empty for nothing.
        scored: what the `rescore` of the benchmark's protocol gave.
    """

    differences: list[Difference]
    not_checked: str
    scored: Any


def verify_record(folder: Path, record: ResultRecord) -> Rescored:
    """Check a record's files, hashes, settings, kind and release, score its predictions, and list every number that differs.

    This is the one function that verifies a record: `decodehub verify`, `decodehub push` and the leaderboard call it.

    Raises:
        RecordError: a missing or changed file, an unknown benchmark or setting, another release, or a kind that is not that of the release.
        ValueError: predictions that cannot be scored.
    """
    protocol = _protocol(record)
    check_files(folder, record)
    scored = protocol.rescore(folder, record)
    fault = protocol.local_release_fault(scored) if hasattr(protocol, "local_release_fault") else None
    if fault is not None:
        raise RecordError(fault)
    unproved = dict.fromkeys(words for words in (record.not_checked, getattr(scored, "not_checked", "")) if words)
    return Rescored(compare(record.metrics, list(scored.metrics)), ", ".join(unproved), scored)


def verify(path: Path) -> tuple[ResultRecord, list[Difference]]:
    """`verify_record` of a folder or file: the record, and the numbers that differ.

    Raises:
        RecordError, ValueError: as `read_record` and `verify_record`.
    """
    folder, record = read_record(path)
    return record, verify_record(folder, record).differences


def check_record(path: Path, name: str = "") -> Finding:
    """The verdict on one record; whatever is wrong with it is no error, since records come from anyone.

    Args:
        path: its folder or file.
        name: put before the headline, where there are many.
    """
    prefix, record = f"{name}: " if name else "", None
    try:
        folder, record = read_record(path)
        headline = f"{prefix}{record.model.id} on {record.benchmark.id}, release {record.benchmark.release}"
        if record.runs and not any(_is_there(folder, run.predictions) for run in record.runs):
            _protocol(record)
            return Finding("reported only", f"{headline}: its predictions are not there", (), record)
        found = verify_record(folder, record)
    except Exception as error:
        words = str(error) if isinstance(error, (ValueError, OSError)) else f"it cannot be scored ({type(error).__name__}: {error})"
        return Finding("wrong", f"{prefix}{words[:2000]}", (), record)
    if found.differences:
        details = tuple(f"{d.metric} {d.field}: stated {d.stated}, recomputed {d.recomputed}" for d in found.differences)
        return Finding("wrong", f"{headline}: {len(details)} numbers differ from the saved predictions", details, record)
    numbers = f"{len(record.metrics)} numbers from {len(record.runs)} runs are as stated"
    if found.not_checked:
        return Finding("reported only", f"{headline}: {numbers}, but not checked: {found.not_checked}", (), record)
    return Finding("recomputed", f"{headline}: {numbers}", (), record)


def _protocol(record: ResultRecord) -> Any:
    """The protocol module of a record, after checking all that needs no predictions.

    Raises:
        RecordError: see `verify_record`.
    """
    b, protocol = record.benchmark, protocol_of(record.benchmark.id)
    if getattr(protocol, "BENCHMARK_ID", None) != b.id or not hasattr(protocol, "rescore"):
        raise RecordError(f"this decodehub has no metric for benchmark {b.id!r}: update it")
    names = [protocol.PROTOCOL, *([protocol.FORMER] if hasattr(protocol, "FORMER") else [])]
    if record.protocol.name not in names:
        raise RecordError(f"the record follows {record.protocol.name}, this version scores {' and '.join(names)}")
    protocol.settings_of(record.protocol.settings, record.protocol.name)
    if (b.release in protocol.SAMPLES) != (record.kind == "sample"):
        which = "a sample" if b.release in protocol.SAMPLES else f"none of the samples ({', '.join(sorted(protocol.SAMPLES))})"
        raise RecordError(f"the record's kind is {record.kind!r}, but release {b.release!r} of {b.id} is {which}")
    runs = getattr(protocol, "RUNS", None)
    if runs is not None and [(run.subject, run.seed) for run in record.runs] != list(runs):
        raise RecordError(
            f"runs of a record of {b.id} are (subject, seed) {list(runs)}, found {[(r.subject, r.seed) for r in record.runs[:5]]}"
        )
    return protocol


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
    """The verdict on a record, a data set repository, or every record below a folder, each alone; what was not looked into is named.

    Raises:
        RecordError: there is none.
    """
    if path.is_file() or (path / RECORD).is_file():
        return [check_record(path)]
    found = [check_release(path)] if (path / RELEASE).is_file() else []
    files, skipped = find_records(path)
    found += [_check_below(path, name) for name in files]
    found += [Finding("wrong" if s.broken else "reported only", f"{s.path}: {s.reason}") for s in skipped]
    if not found:
        read_record(path)  # says what is missing
    return found


def _check_below(root: Path, name: str) -> Finding:
    folder = name.rpartition("/")[0]
    try:
        return check_record(inside(root, name), folder)
    except (ValueError, OSError) as error:  # a link that leads elsewhere
        return Finding("wrong", f"{folder}: {error}")


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
    except (ValueError, OSError):
        return True  # `verify` says what is wrong with the path


def _label(metric: Metric) -> str:
    return metric.name + (f"[{','.join(f'{k}={v}' for k, v in metric.slice.items())}]" if metric.slice else "")
