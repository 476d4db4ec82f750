"""Write prepared THINGS-EEG2 as webdataset shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from decodehub.core.tables import Table
from decodehub.loaders.shards import write_shards
from decodehub.loaders.things_eeg2.store import load_epochs, read_info, subject_folder

from .builder import find_subjects, release_name, resolve_folder

if TYPE_CHECKING:
    from decodehub.loaders.things_eeg2 import Epochs, Partition


def shard(
    prepared: Path | str,
    folder: Path,
    *,
    subjects: Sequence[int] | None = None,
    partitions: Sequence[Partition] = ("train", "test"),
    max_bytes: int = 256 << 20,
    float16: bool = False,
    average: bool = False,
) -> dict[str, Any]:
    """Write shards and ``index.json`` to `folder` and print what is there; shards that are right already are left alone.

    Args:
        prepared: root that ``decodehub things prepare`` has written, or "sample" for the simulated sample.
        folder: where the shards go.
        subjects: numbers; all prepared ones by default.
        partitions: which of "train" and "test".
        max_bytes, float16, average: see `decodehub.loaders.shards.write_shards`.

    Returns:
        What ``index.json`` says.

    Raises:
        FileNotFoundError: nothing is prepared there. ValueError: arrays that are not what their ``info.json`` says, or NaN in them (see
            `load_epochs`); see `write_shards`.
    """
    root = resolve_folder(str(prepared))
    chosen = find_subjects(root, "all") if subjects is None else [s for number in subjects for s in find_subjects(root, number)]
    for subject in chosen:  # all of it, before the first shard
        for partition in read_info(subject_folder(root, subject))["partitions"]:
            if partition in partitions:
                load_epochs(root, subject, partition, verify=True)
    index: dict[str, Any] = {}
    for subject in chosen:
        info = read_info(subject_folder(root, subject))

        def each(subject: int = subject, present: dict[str, Any] = info["partitions"]) -> Iterator[Epochs]:
            for partition in partitions:
                if partition in present:
                    yield load_epochs(root, subject, partition)

        index = write_shards(each(), folder, max_bytes=max_bytes, float16=float16, average=average, release=release_name(info))

    rows = [
        (name, f"{group['samples']:,}", len(group["shards"]), f"{sum(s['size'] for s in group['shards']) / 1e6:,.1f}", group["release"])
        for name, group in index["groups"].items()
    ]
    Console().print(Table(["group", "samples", "shards", "MB", "release"], rows).rich(box=False))
    return index
