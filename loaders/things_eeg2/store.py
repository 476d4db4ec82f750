"""Prepared THINGS-EEG2 on disk: plain arrays that every model can map into memory, and ``info.json`` that says what they are.

sub-01/info.json                               written last: its presence means that the arrays are complete
sub-01/train.npy, sub-01/test.npy              (n_images, n_repetitions, n_channels, n_times) float32
sub-01/{train,test}_images.npy                 (n_images,) int32, image numbers within the partition, ascending
sub-01/{train,test}_sessions.npy               (n_images, n_repetitions) int8, session of each repetition
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

from decodehub.core.files import atomic_path, read_data, sha256_file, sha256_json, write_json

from . import PARTITIONS, Epochs, Partition

INFO = "info.json"
SCHEMA_VERSION = 1


@contextmanager
def array_file(path: Path, shape: tuple[int, ...], dtype: Any = np.float32) -> Iterator[np.memmap]:
    """A memory-mapped ``.npy`` to be filled, which appears at `path` only when the block ends without an error."""
    with atomic_path(path) as part:
        array = open_memmap(part, mode="w+", dtype=dtype, shape=shape)
        yield array
        array.flush()
        del array


def subject_folder(root: Path, subject: int) -> Path:
    """Folder of one subject, ``root/sub-01``."""
    return Path(root) / f"sub-{subject:02d}"


def write_info(folder: Path, epochs: dict[Partition, Epochs], *, source: str, made_from: dict[str, Any] | None = None) -> None:
    """Write ``info.json`` for arrays that are already in `folder`, with their hashes.

    Args:
        folder: of one subject.
        epochs: by partition; only their descriptions are used.
        source: the layout that the arrays were made from, in words.
        made_from: what is known of the recordings: their hashes, counts of unused trials.
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
    write_json(folder / INFO, info)


def save_epochs(root: Path, epochs: dict[Partition, Epochs], *, source: str) -> Path:
    """Write the epochs of one subject; ``info.json`` last. Returns the subject's folder."""
    folder = subject_folder(root, next(iter(epochs.values())).subject)
    (folder / INFO).unlink(missing_ok=True)
    for name, e in epochs.items():
        arrays: dict[str, tuple[np.ndarray, Any]] = {"": (e.data, np.float32), "_images": (e.images, np.int32)}
        if e.sessions is not None:
            arrays["_sessions"] = (e.sessions, np.int8)
        for key, (values, dtype) in arrays.items():
            with array_file(folder / f"{name}{key}.npy", values.shape, dtype) as out:
                out[...] = values
    write_info(folder, epochs, source=source)
    return folder


def read_info(folder: Path) -> dict[str, Any]:
    """The description of a subject's prepared arrays.

    Raises:
        FileNotFoundError: no ``info.json``: the arrays are missing or incomplete.
        ValueError: not ours, or of a newer schema.
    """
    path = Path(folder) / INFO
    try:
        info = json.loads(read_data(path))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} does not exist: prepare the subject with 'decodehub things prepare' (it writes this file last)"
        ) from None
    if not isinstance(info, dict) or info.get("dataset") != "things-eeg2":
        raise ValueError(f"{path} does not describe prepared THINGS-EEG2 arrays")
    if info["schema_version"] > SCHEMA_VERSION:
        raise ValueError(f"{path} has schema version {info['schema_version']}, newer than {SCHEMA_VERSION}: update decodehub")
    return info


def load_epochs(root: Path, subject: int, partition: Partition, *, verify: bool = False) -> Epochs:
    """Prepared epochs of one subject and partition, memory-mapped read-only.

    Args:
        root: the folder with ``sub-01`` and so on.
        subject: number, from 1.
        partition: "train" or "test".
        verify: also hash the arrays and compare (reads all of them).

    Raises:
        FileNotFoundError: not prepared. ValueError: an array is not what ``info.json`` says.
    """
    if partition not in PARTITIONS:
        raise ValueError(f"partition must be one of {PARTITIONS}, found {partition!r}")
    folder = subject_folder(root, subject)
    info = read_info(folder)
    if partition not in info["partitions"]:
        raise FileNotFoundError(f"{folder} holds the partitions {sorted(info['partitions'])}, not {partition!r}")
    stated = info["partitions"][partition]
    for key, digest in stated["sha256"].items() if verify else ():
        if sha256_file(folder / f"{partition}{key}.npy") != digest:
            raise ValueError(f"{folder / f'{partition}{key}.npy'} has changed since it was prepared: prepare the subject again")
    data = np.load(folder / f"{partition}.npy", mmap_mode="r", allow_pickle=False)
    if list(data.shape) != stated["shape"] or data.dtype != np.float32:
        raise ValueError(
            f"{folder / f'{partition}.npy'} is {data.shape} {data.dtype}, {INFO} says {stated['shape']} float32: prepare it again"
        )
    sessions = folder / f"{partition}_sessions.npy"
    return Epochs(
        data=data,
        ch_names=tuple(info["ch_names"]),
        sfreq=info["sfreq"],
        times=np.array(info["times"]),
        images=np.load(folder / f"{partition}_images.npy", allow_pickle=False),
        partition=partition,
        subject=info["subject"],
        unit=info["unit"],
        settings=info["settings"],
        sessions=np.load(sessions, allow_pickle=False) if sessions.is_file() else None,
    )
