"""Arrays in files: safetensors read with the fault named, and ``.npy`` files to be filled whose space is reserved first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.lib.format import dtype_to_descr, open_memmap, write_array_header_1_0
from safetensors import SafetensorError, safe_open

from .files import POINTER_MAX_BYTES, atomic_path, pointer_kind
from .space import reserve_space


class Tensors(NamedTuple):
    """Arrays (numpy or torch) by name, and the metadata of the file."""

    arrays: dict[str, Any]
    metadata: dict[str, str]


def read_tensors(path: Path, framework: Literal["numpy", "pt"] = "numpy") -> Tensors:
    """All tensors and the metadata of a safetensors file.

    Args:
        path: the file.
        framework: "numpy" for arrays; "pt" for torch tensors, which also have bfloat16.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: not a whole safetensors file, or a git-annex or Git LFS pointer in its place.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    with path.open("rb") as f:
        kind = pointer_kind(f.read(POINTER_MAX_BYTES + 1))
    if kind is not None:
        raise ValueError(f"{path} is a {kind} pointer in place of the data: fetch it (git annex get, git lfs pull)")
    try:
        with safe_open(path, framework=framework) as f:
            return Tensors({name: f.get_tensor(name) for name in f.keys()}, f.metadata() or {})  # noqa: SIM118  (not a dict)
    except (SafetensorError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{path} is not a whole safetensors file of types that can be read here ({error})") from None


@contextmanager
def reserved_array(path: Path, shape: tuple[int, ...], dtype: Any = np.float32) -> Iterator[np.memmap]:
    """A memory-mapped ``.npy`` to be filled, which appears at `path` only when the block ends without an error.

    Raises:
        DiskFull: there is no space for all of it; said before anything is computed.
    """
    with atomic_path(path) as part:
        array = create_array(part, shape, dtype, target=path)
        yield array
        array.flush()
        del array


def create_array(path: Path, shape: tuple[int, ...], dtype: Any = np.float32, *, target: Path | None = None) -> np.memmap:
    """A memory-mapped ``.npy`` of zeros at `path`, whose space is reserved: filling it cannot fail for want of space.

    Args:
        path: the file, made or overwritten.
        shape, dtype: of the array.
        target: what a message calls it, when `path` is temporary.

    Raises:
        DiskFull: there is no space for all of it.
    """
    path, dtype = Path(path), np.dtype(dtype)
    with path.open("wb") as f:
        write_array_header_1_0(f, {"descr": dtype_to_descr(dtype), "fortran_order": False, "shape": tuple(shape)})
        start = f.tell()
    reserve_space(path, start + int(np.prod(shape, dtype=object)) * dtype.itemsize, target=target)
    return open_memmap(path, mode="r+")
