"""Space on a disk, asked for before it is used: a memory map on a full disk ends a process by SIGBUS, without a word."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np


def reserve(handle: int, n_bytes: int, path: Path) -> None:
    """Make an open file `n_bytes` long, with the space for them.

    Args:
        handle: of the file. n_bytes: its length.
        path: for the message.

    Raises:
        OSError: the disk has not that much left (ENOSPC); the message says where and how much is needed.
    """
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, 0, max(n_bytes, 1))
            return
        if shutil.disk_usage(path.parent).free < n_bytes:
            raise OSError(errno.ENOSPC, "")
        os.ftruncate(handle, n_bytes)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        free = shutil.disk_usage(path.parent).free
        raise OSError(
            error.errno,
            f"no space for {n_bytes / 1e9:.3g} GB at {path} ({free / 1e9:.3g} GB are free there): make room, or name a folder on another disk",
        ) from None


def scratch_array(folder: Path, shape: tuple[int, ...]) -> np.memmap:
    """A float32 array in a file of `folder` that has no name: no other process meets it, and it is gone when this one ends, however it does.

    Raises:
        OSError: no space.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        reserve(file.fileno(), 4 * int(np.prod(shape)), folder / "features")
        return np.memmap(file, dtype=np.float32, mode="r+", shape=shape)
