"""Prepared THINGS-EEG2 on disk: plain arrays that every model can map into memory, and ``info.json`` that says what they are.

sub-01/info.json                               written last: its presence means that the arrays are complete
sub-01/train.npy, sub-01/test.npy              (n_images, n_repetitions, n_channels, n_times) float32
sub-01/{train,test}_images.npy                 (n_images,) int32, image numbers within the partition, ascending
sub-01/{train,test}_sessions.npy               (n_images, n_repetitions) int8, session of each repetition
"""

from __future__ import annotations

import json
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from decodehub.core.files import canonical_json, read_json, sha256_file, sha256_json, write_json
from decodehub.core.tensors import reserved_array

from . import PARTITIONS, TEST_IMAGES, TRAIN_IMAGES, Epochs, Partition

INFO = "info.json"
WORK = ".work"  # in a subject's folder, what is being prepared
SCHEMA_VERSION = 1
AGAIN = "prepare the subject again with 'decodehub things prepare'"


def subject_folder(root: Path, subject: int) -> Path:
    """Folder of one subject, ``root/sub-01``."""
    return Path(root) / f"sub-{subject:02d}"


def write_info(
    folder: Path,
    epochs: dict[Partition, Epochs],
    *,
    source: str,
    made_from: dict[str, Any] | None = None,
    design: dict[str, Any] | None = None,
) -> None:
    """Write ``info.json`` for arrays that are already in `folder`, with their hashes.

    Args:
        folder: of one subject.
        epochs: by partition; only their descriptions are used.
        source: the layout that the arrays were made from, in words.
        made_from: what is known of the recordings: their hashes, counts of unused trials.
        design: of simulated recordings of a smaller experiment, see `Design`.
    """
    first = next(iter(epochs.values()))
    info: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "dataset": "things-eeg2",
        "subject": first.subject,
        "source": source,
        "ch_names": list(first.ch_names),
        "sfreq": first.sfreq,
        "times": [float(t) for t in first.times],
        "unit": first.unit,
        "settings": first.settings,
        "settings_hash": sha256_json(first.settings),
        "partitions": {
            name: {
                "shape": list(e.data.shape),
                "sha256": {
                    key: sha256_file(folder / f"{name}{key}.npy")
                    for key in ("", "_images", "_sessions")
                    if (folder / f"{name}{key}.npy").is_file()
                },
            }
            for name, e in epochs.items()
        },
    }
    if made_from is not None:
        info["made_from"] = made_from
    if design is not None:
        info["design"] = design
    write_json(folder / INFO, info)


def check_replaces(folder: Path, settings: dict[str, Any], *, overwrite: bool = False) -> None:
    """Refuse a subject's folder that holds arrays of other settings, or of another origin, which preparing would replace.

    Raises:
        ValueError: what differs, and the flag.
    """
    remedy = "name another --out, or replace them with --overwrite"
    if overwrite or not folder.is_dir():
        return
    if not (folder / INFO).is_file():
        if not (folder / WORK).is_dir() and (there := sorted(p.name for p in folder.glob("*.npy"))):
            raise ValueError(f"{folder} holds files that 'decodehub things prepare' has not made ({', '.join(there[:4])}): {remedy}")
        return
    try:
        before = read_info(folder)["settings"]
    except ValueError as error:
        raise ValueError(f"{str(error).removesuffix(f': {AGAIN}')}: {remedy}") from None
    now = json.loads(canonical_json(settings))
    if before != now:
        differ = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
        raise ValueError(f"{folder} holds arrays made with other settings ({', '.join(differ)} differ): {remedy}")


def save_epochs(root: Path, epochs: dict[Partition, Epochs], *, source: str) -> Path:
    """Write the epochs of one subject; ``info.json`` last. Returns the subject's folder."""
    folder = subject_folder(root, next(iter(epochs.values())).subject)
    (folder / INFO).unlink(missing_ok=True)
    for name, e in epochs.items():
        arrays: dict[str, tuple[np.ndarray, Any]] = {"": (e.data, np.float32), "_images": (e.images, np.int32)}
        if e.sessions is not None:
            arrays["_sessions"] = (e.sessions, np.int8)
        for key, (values, dtype) in arrays.items():
            with reserved_array(folder / f"{name}{key}.npy", values.shape, dtype) as out:
                out[...] = values
    write_info(folder, epochs, source=source)
    return folder


def read_info(folder: Path) -> dict[str, Any]:
    """The description of a subject's prepared arrays, every field checked: what all readers of prepared arrays begin with.

    Raises:
        FileNotFoundError: no ``info.json``: the arrays are missing or incomplete.
        ValueError: not ours, of a newer schema, of another subject than the folder, or with a field missing or wrong; the message names it.
    """
    path = Path(folder) / INFO
    try:
        info = read_json(path)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} does not exist: prepare the subject with 'decodehub things prepare' (it writes this file last)"
        ) from None
    if not isinstance(info, dict) or info.get("dataset") != "things-eeg2":
        raise ValueError(f"{path} does not describe prepared THINGS-EEG2 arrays")
    if isinstance(version := info.get("schema_version"), int) and version > SCHEMA_VERSION:
        raise ValueError(f"{path} has schema version {version}, newer than {SCHEMA_VERSION}: update decodehub")
    for name, expected, found in _wrong_fields(info, Path(folder)):
        raise ValueError(f"{path}: {name} must be {expected}, found {str(found)[:200]}: {AGAIN}")
    return info


def load_epochs(root: Path, subject: int, partition: Partition, *, verify: bool = False) -> Epochs:
    """Prepared epochs of one subject and partition, memory-mapped read-only, all that is stated about them checked.

    Args:
        root: the folder with ``sub-01`` and so on.
        subject: number, from 1.
        partition: "train" or "test".
        verify: also read all values: hash the arrays and compare, and refuse NaN and infinite values.

    Raises:
        FileNotFoundError: not prepared. ValueError: an array is not what ``info.json`` says; image numbers that are not whole, ascending
            numbers of the partition.
    """
    if partition not in PARTITIONS:
        raise ValueError(f"partition must be one of {PARTITIONS}, found {partition!r}")
    folder = subject_folder(root, subject)
    info = read_info(folder)
    if partition not in info["partitions"]:
        raise FileNotFoundError(f"{folder} holds the partitions {sorted(info['partitions'])}, not {partition!r}")
    stated = info["partitions"][partition]
    arrays = {key: folder / f"{partition}{key}.npy" for key in stated["sha256"]}
    for key, digest in stated["sha256"].items() if verify else ():
        if not arrays[key].is_file():
            raise ValueError(f"{arrays[key]} does not exist, but {INFO} lists it: {AGAIN}")
        if sha256_file(arrays[key]) != digest:
            raise ValueError(f"{arrays[key]} has changed since it was prepared: {AGAIN}")
    shape = tuple(stated["shape"])
    data = _array(arrays[""], shape, "f4", mapped=True)
    images = _array(arrays["_images"], shape[:1], "i")
    last = TRAIN_IMAGES if partition == "train" else TEST_IMAGES
    if not (np.diff(images) > 0).all() or images.min() < 1 or images.max() > last:
        raise ValueError(f"{arrays['_images']} must hold ascending numbers from 1 to {last:,} ({partition} images), each once: {AGAIN}")
    for row in range(0, len(data), 64) if verify else ():
        if not np.isfinite(data[row : row + 64]).all():
            at = row + int(np.nonzero(~np.isfinite(data[row : row + 64]).all(axis=(1, 2, 3)))[0][0])
            raise ValueError(f"{arrays['']}: image {images[at]} (row {at}) has NaN or infinite values: {AGAIN}")
    settings = info["settings"] if "design" not in info else {**info["settings"], "simulated": True, "design": info["design"]}
    return Epochs(
        data=data,
        ch_names=tuple(info["ch_names"]),
        sfreq=float(info["sfreq"]),
        times=np.array(info["times"]),
        images=images,
        partition=partition,
        subject=info["subject"],
        unit=info["unit"],
        settings=settings,
        sessions=_array(arrays["_sessions"], shape[:2], "i") if "_sessions" in arrays else None,
    )


def _wrong_fields(info: dict[str, Any], folder: Path) -> Iterator[tuple[str, str, Any]]:
    """(field, what it must be, what it is) of every field of an ``info.json`` that is missing or wrong."""
    name = re.fullmatch(r"sub-(\d+)", folder.resolve().name)
    subject, ch_names, times = (info.get(key) for key in ("subject", "ch_names", "times"))
    if type(info.get("schema_version")) is not int or info["schema_version"] != SCHEMA_VERSION:
        yield "schema_version", f"the number {SCHEMA_VERSION}", repr(info.get("schema_version"))
    if type(subject) is not int or subject < 1 or (name and subject != int(name[1])):
        yield "subject", f"the number of the folder {folder.name}", repr(subject)
    yield from _wrong_channels(ch_names)
    yield from _wrong_clock(info.get("sfreq"), times)
    yield from _wrong_origin(info)
    partitions = info.get("partitions")
    if not isinstance(partitions, dict) or not partitions or not set(partitions) <= set(PARTITIONS):
        yield "partitions", f"an object with {' and '.join(PARTITIONS)}, or one of them", partitions
        return
    sizes = tuple(len(value) if isinstance(value, list) else 0 for value in (ch_names, times))
    for partition, part in partitions.items():
        yield from _wrong_partition(f"partitions.{partition}", part, sizes)


def _wrong_channels(ch_names: Any) -> Iterator[tuple[str, str, Any]]:
    if not _is_list(ch_names, str) or len(set(ch_names)) < len(ch_names) or not all(ch_names):
        yield "ch_names", "a list of names, each once", ch_names


def _wrong_clock(sfreq: Any, times: Any) -> Iterator[tuple[str, str, Any]]:
    if type(sfreq) not in (int, float) or not sfreq > 0:
        yield "sfreq", "a number of Hz above 0", sfreq
    elif not _is_list(times, (int, float)) or not np.allclose(np.diff(times), 1 / sfreq, rtol=0, atol=1e-2 / sfreq):
        yield "times", f"seconds in steps of 1/{sfreq:g}", times


def _wrong_origin(info: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Unit, source and settings."""
    for key, kind in (("unit", str), ("source", str), ("settings", dict)):
        if not isinstance(info.get(key), kind):
            yield key, "text" if kind is str else "an object", info.get(key)
    if isinstance(info.get("settings"), dict) and info.get("settings_hash") != sha256_json(info["settings"]):
        yield "settings_hash", f"the hash of settings, {sha256_json(info['settings'])}", info.get("settings_hash")


def _wrong_partition(name: str, part: Any, sizes: tuple[int, ...]) -> Iterator[tuple[str, str, Any]]:
    """`sizes`: numbers of channels and times."""
    shape: Any
    hashes: Any
    shape, hashes = (part.get("shape"), part.get("sha256")) if isinstance(part, dict) else (None, None)
    if not _is_list(shape, int) or len(shape) != 4 or min(shape) < 1 or tuple(shape[2:]) != sizes:
        yield f"{name}.shape", f"[images, repetitions, {sizes[0]}, {sizes[1]}] for {sizes[0]} ch_names, {sizes[1]} times", shape
    if not isinstance(hashes, dict) or not {"", "_images"} <= set(hashes) <= {"", "_images", "_sessions"}:
        yield f"{name}.sha256", "the hashes of its arrays ('', '_images', perhaps '_sessions')", hashes


def _is_list(value: Any, kind: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, kind) and not isinstance(v, bool) for v in value)


def _array(path: Path, shape: tuple[int, ...], kind: str, *, mapped: bool = False) -> np.ndarray:
    """An array of the shape that ``info.json`` states: "f4", or "i" for whole numbers.

    Raises:
        ValueError: there is none, it has another shape or kind, or it is no array.
    """
    if not path.is_file():
        raise ValueError(f"{path} does not exist, but {INFO} lists it: {AGAIN}")
    try:
        array = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (ValueError, TypeError, OSError, EOFError, SyntaxError, OverflowError, MemoryError, tokenize.TokenError) as error:
        raise ValueError(f"{path} is not a whole .npy array ({str(error).splitlines()[0]}): {AGAIN}") from None
    if not isinstance(array, np.ndarray) or array.shape != shape or (array.dtype.kind != "i" if kind == "i" else array.dtype != kind):
        found = f"{array.shape} {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
        raise ValueError(f"{path} is {found}, {INFO} says {shape} {'of whole numbers' if kind == 'i' else 'float32'}: {AGAIN}")
    return array
