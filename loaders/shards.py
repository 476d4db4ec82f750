"""Epochs as webdataset shards: plain tar files that many machines can stream, also over HTTP with byte ranges.

A sample is an image: ``sub-01_train_00001.eeg.npy`` (repetitions, channels, times), or (channels, times) when averaged, and
``sub-01_train_00001.json`` with what is known of it. A shard, ``sub-01_train-00000.tar``, holds images of one subject and partition in
ascending order. Equal content gives equal bytes: no compression, and fixed times, owners, modes and key order. ``index.json`` lists the
shards with their hashes and appears, or gains a group, only once these are complete.

    webdataset.WebDataset("FOLDER/sub-01_train-{00000..00016}.tar", shardshuffle=False).decode()
    datasets.load_dataset("webdataset", data_files={"train": "FOLDER/sub-01_train-*.tar"}, streaming=True)
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from decodehub.core.files import atomic_path, canonical_json, read_data, sha256_file, write_json

from .things_eeg2 import Epochs

INDEX = "index.json"
SCHEMA_VERSION = 1
MAX_BYTES = 256 << 20  # of a shard: large enough for sequential speed, small enough to shuffle and to repeat after a failure
BLOCK, RECORD = 512, 10_240  # of the tar format
JSON_ROOM = 4096  # at most this many bytes of metadata a sample


class _Sink(io.RawIOBase):
    """Takes the bytes of a shard: hashes them, and writes them to one file or compares them with those of another."""

    def __init__(self, out: IO[bytes] | None = None, same_as: IO[bytes] | None = None) -> None:
        self.sha256, self.size, self.same = hashlib.sha256(), 0, True
        self._out, self._same_as = out, same_as

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.sha256.update(view)
        self.size += len(view)
        if self._out is not None:
            self._out.write(view)
        if self._same_as is not None and self.same:
            self.same = self._same_as.read(len(view)) == view
        return len(view)


def write_shards(
    epochs_iter: Iterable[Epochs],
    folder: Path,
    *,
    max_bytes: int = MAX_BYTES,
    float16: bool = False,
    average: bool = False,
    release: str | None = None,
) -> dict[str, Any]:
    """Write epochs as shards; a shard that is there with the right bytes is left alone, so that a stopped run can be started again.

    Args:
        epochs_iter: of any subjects and partitions, one at a time. A folder may be filled by several calls with the same settings.
        folder: where the shards and ``index.json`` go.
        max_bytes: upper bound of a shard's size.
        float16: half the size; MVNN data keep 3 digits. Refused for data in volts, which would become 0.
        average: the mean over repetitions in place of all of them.
        release: what the metadata call the data; by default what the settings of the epochs say.

    Returns:
        What ``index.json`` says.

    Raises:
        ValueError: a sample does not fit in `max_bytes`; the folder holds shards of other settings or of an unknown origin; data that
            float16 cannot hold.
    """
    folder = Path(folder)
    head = {"schema_version": SCHEMA_VERSION, "dataset": "things-eeg2", "dtype": "float16" if float16 else "float32", "averaged": average}
    index = _open_index(folder, head)
    if strangers := [name for name in _not_listed(folder, index) if not _is_shard(folder / name)]:
        raise ValueError(f"{folder} holds archives that are not ours ({', '.join(strangers[:3])}): use an empty folder")
    for epochs in epochs_iter:
        group = f"sub-{epochs.subject:02d}_{epochs.partition}"
        label = release or str(epochs.settings.get("release") or "")
        if group in index["groups"]:
            _same_group(folder, group, index["groups"][group], {**_description(epochs), "release": label})
            del index["groups"][group]  # while its shards may change, the index does not vouch for them
            _write_index(folder, index)
        shards = _write_group(folder, group, epochs, average, str(head["dtype"]), max_bytes, label)
        index["groups"][group] = {**_description(epochs), "release": label, "samples": len(epochs.images), "shards": shards}
        _write_index(folder, index)
    if strangers := _not_listed(folder, index):
        raise ValueError(
            f"{folder} holds {len(strangers)} shards that {INDEX} does not list ({', '.join(strangers[:3])}): a run of other subjects was "
            "stopped (run it again), or they are not ours (use an empty folder)"
        )
    return index


def read_index(folder: Path, *, verify: bool = False) -> dict[str, Any]:
    """What ``index.json`` says.

    Args:
        folder: of the shards.
        verify: also compare sizes and hashes (reads all shards).

    Raises:
        FileNotFoundError: no index: the shards are incomplete. ValueError: a newer schema, or a shard that is not as listed.
    """
    path = Path(folder) / INDEX
    try:
        index = json.loads(read_data(path))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist: the shards are incomplete; run 'decodehub things shard' again") from None
    if not isinstance(index, dict) or index.get("dataset") != "things-eeg2":
        raise ValueError(f"{path} does not describe shards of THINGS-EEG2")
    if index["schema_version"] > SCHEMA_VERSION:
        raise ValueError(f"{path} has schema version {index['schema_version']}, newer than {SCHEMA_VERSION}: update decodehub")
    for shard in (shard for group in index["groups"].values() for shard in group["shards"]) if verify else ():
        file = Path(folder) / shard["name"]
        if not file.is_file() or file.stat().st_size != shard["size"] or sha256_file(file) != shard["sha256"]:
            raise ValueError(f"{file} is not the shard that {INDEX} lists: run 'decodehub things shard' again")
    return index


def _open_index(folder: Path, head: dict[str, Any]) -> dict[str, Any]:
    if not (folder / INDEX).is_file():
        return {**head, "groups": {}}
    index = read_index(folder)
    found = {key: index.get(key) for key in head}
    if found != head:
        raise ValueError(f"{folder} holds shards with other settings: expected {head}, found {found}; use an empty folder")
    return index


def _not_listed(folder: Path, index: dict[str, Any]) -> list[str]:
    """Names of the archives that the index does not list."""
    listed = {shard["name"] for group in index["groups"].values() for shard in group["shards"]}
    return sorted(p.name for p in folder.glob("*.tar") if p.name not in listed)


def _is_shard(path: Path) -> bool:
    """Whether a file has the name of a shard and is not an archive of something else; what is damaged is made again."""
    if re.fullmatch(r"sub-\d+_(train|test)-\d{5}\.tar", path.name) is None:
        return False
    with path.open("rb") as f:
        head = f.read(BLOCK)
    try:
        first = tarfile.TarInfo.frombuf(head, "utf-8", "replace").name
    except tarfile.HeaderError:
        return True
    return re.fullmatch(r"sub-\d+_(train|test)_\d+\.eeg\.npy", first) is not None


def _same_group(folder: Path, group: str, before: dict[str, Any], now: dict[str, Any]) -> None:
    if differ := [key for key, value in now.items() if before.get(key) != value]:
        raise ValueError(
            f"{folder} holds shards of {group} from other arrays ({', '.join(differ)} differ): use an empty folder, or remove them first"
        )


def _write_index(folder: Path, index: dict[str, Any]) -> None:
    write_json(folder / INDEX, index)


def _ranges(epochs: Epochs, average: bool, dtype: str, max_bytes: int) -> Iterator[tuple[int, int]]:
    """Rows of each shard: as many as surely fit."""
    values = int(np.prod(epochs.data.shape[2 if average else 1 :])) * np.dtype(dtype).itemsize
    sample = _padded(128 + values) + _padded(JSON_ROOM) + 2 * BLOCK
    per_shard = (max_bytes - RECORD) // sample
    if per_shard < 1:
        raise ValueError(f"max_bytes is {max_bytes:,}, but one sample takes {sample + RECORD:,}: raise it, or average")
    for start in range(0, len(epochs.images), per_shard):
        yield start, min(start + per_shard, len(epochs.images))


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _write_group(folder: Path, group: str, epochs: Epochs, average: bool, dtype: str, max_bytes: int, label: str) -> list[dict[str, Any]]:
    """Write the shards of one subject and partition; gives what the index says of each."""
    shards: list[dict[str, Any]] = []
    ranges = list(_ranges(epochs, average, dtype, max_bytes))
    for i, (start, stop) in enumerate(ranges):
        name = f"{group}-{i:05d}.tar"
        size, digest = _write_shard(folder / name, partial(_samples, epochs, start, stop, average, dtype, label))
        shards.append({"name": name, "size": size, "sha256": digest, "samples": stop - start, "first_image": int(epochs.images[start])})
    for stale in set(folder.glob(f"{group}-[0-9]*.tar")) - {folder / shard["name"] for shard in shards}:
        stale.unlink()  # of an earlier run with smaller shards: its samples are in the new ones
    return shards


def _write_shard(path: Path, samples: Callable[[], Iterator[tuple[str, bytes]]]) -> tuple[int, str]:
    """Write a shard unless the file has these bytes already. Returns size and hash."""
    if path.is_file():
        with path.open("rb") as there:
            sink = _Sink(same_as=there)
            _write_tar(sink, samples())
            if sink.same and path.stat().st_size == sink.size:
                return sink.size, f"sha256:{sink.sha256.hexdigest()}"
    with ExitStack() as stack:
        out = stack.enter_context(stack.enter_context(atomic_path(path)).open("wb"))
        sink = _Sink(out=out)
        _write_tar(sink, samples())
    return sink.size, f"sha256:{sink.sha256.hexdigest()}"


def _write_tar(sink: _Sink, files: Iterator[tuple[str, bytes]]) -> None:
    # Mode "w" writes straight through; the stream mode "w|" would copy all bytes many times over.
    with tarfile.TarFile(fileobj=sink, mode="w", format=tarfile.USTAR_FORMAT, copybufsize=1 << 20) as tar:
        for name, content in files:
            member = tarfile.TarInfo(name)  # time 0, owner 0, mode 0644
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def _samples(epochs: Epochs, start: int, stop: int, average: bool, dtype: str, release: str) -> Iterator[tuple[str, bytes]]:
    shared = {**_description(epochs), "release": release}
    for i in range(start, stop):
        number = int(epochs.images[i])
        values = np.asarray(epochs.data[i])
        if average:
            values = values.mean(axis=0, dtype=np.float64)
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(values, dtype=np.dtype(dtype).newbyteorder("<"))
        _check_precision(values, stored, number, epochs)
        key = f"sub-{epochs.subject:02d}_{epochs.partition}_{number:05d}"
        about: dict[str, Any] = {**shared, "image_number": number, "repetitions": int(epochs.data.shape[1])}
        if epochs.sessions is not None:
            about["sessions"] = [int(s) for s in epochs.sessions[i]]
        text = canonical_json(about).encode()
        if len(text) > JSON_ROOM:
            raise ValueError(f"the metadata of {key} take {len(text):,} bytes, at most {JSON_ROOM:,} are allowed: shorten release")
        array = io.BytesIO()
        np.lib.format.write_array(array, stored, version=(1, 0), allow_pickle=False)
        yield f"{key}.eeg.npy", array.getvalue()
        yield f"{key}.json", text


def _check_precision(values: np.ndarray, stored: np.ndarray, number: int, epochs: Epochs) -> None:
    if stored.dtype.itemsize == 2:
        largest = float(np.abs(values).max())
        if not largest < float(np.finfo(np.float16).max) or 0 < largest < 1e-2:
            raise ValueError(
                f"image {number} of subject {epochs.subject} ({epochs.partition}) has values up to {largest:.3g} (unit {epochs.unit}), which "
                "float16 cannot hold: whiten the data first, or write float32"
            )


def _description(epochs: Epochs) -> dict[str, Any]:
    """What all samples of a subject and partition share; small enough for each to say it."""
    return {
        "subject": epochs.subject,
        "partition": epochs.partition,
        "ch_names": list(epochs.ch_names),
        "sfreq": float(epochs.sfreq),
        "tmin": float(epochs.times[0]),
        "unit": epochs.unit,
    }
