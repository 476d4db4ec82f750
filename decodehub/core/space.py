"""Space on a disk, asked for before it is used: a memory map on a full disk ends a process by SIGBUS, without a word."""

from __future__ import annotations

import errno
import math
import os
import tempfile
from pathlib import Path
from typing import IO

import numpy as np

from .files import disk_full_in_words


def reserve_space(path: Path, size: int, *, target: Path | None = None) -> None:
    """Give the file `path` `size` bytes on the disk now, so that a memory map of it can be filled without the disk running full under it
    (which ends a process by SIGBUS, without a word).

    Args:
        path: a file that exists; what it holds stays.
        size: bytes in all.
        target: what a message calls it, when `path` is temporary.

    Raises:
        DiskFull: there is no space for it, or a file may not be as large.
    """
    with path.open("rb+") as f:
        _reserve(f, size, target or path)


def scratch_array(folder: Path, shape: tuple[int, ...]) -> np.memmap:
    """A float32 array in a file of `folder` that has no name: no other process meets it, and it is gone when this one ends, however it does.

    Raises:
        DiskFull: no space.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        _reserve(file, max(4 * math.prod(shape), 1), folder / "features")
        return np.memmap(file, dtype=np.float32, mode="r+", shape=shape)


def _reserve(f: IO[bytes], size: int, target: Path) -> None:
    with disk_full_in_words(target, size):
        if hasattr(os, "posix_fallocate") and size:
            try:
                os.posix_fallocate(f.fileno(), 0, size)
                return
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                    raise
        f.seek(0, os.SEEK_END)
        while (missing := size - f.tell()) > 0:  # a file system that cannot reserve: ordinary writes fail in words
            f.write(bytes(min(missing, 1 << 20)))
        f.flush()
        os.fsync(f.fileno())
