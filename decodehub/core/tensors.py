"""Safetensors files: one way to read them, with the fault named."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

from safetensors import SafetensorError, safe_open

from .files import POINTER_MAX_BYTES, pointer_kind


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
