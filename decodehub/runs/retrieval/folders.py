"""Folders that jobs write: nothing of another kind is overwritten."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

RECORD_FILES = ("record.json", "benchmark.json", "predictions", "report.html")
RUN_FILES = (*RECORD_FILES, "checkpoint.safetensors", "model", "run.json")
STUDY_FILES = ("runs", "training", "records", "tables", "figures")


def check_folder(folder: Path, ours: Collection[str], what: str, force: bool = False) -> None:
    """Refuse, before any work, a folder to write to that holds other things.

    Args:
        folder: where a job is to write; it may be missing.
        ours: names that the job writes there. what: what those are, in words.
        force: write beside other files.

    Raises:
        FileExistsError: a file stands there, or above it. ValueError: files that are none of `ours`; one is named.
    """
    folder = Path(folder)
    for place in (folder, *folder.parents):
        if place.exists():
            if not place.is_dir():
                raise FileExistsError(f"--out {folder}: {place} is a file: name another folder")
            break
    if force or not folder.is_dir():
        return
    others = sorted(path.name for path in folder.iterdir() if path.name not in ours and not path.name.startswith("."))
    if others:
        raise ValueError(
            f"--out {folder} holds {others[0]!r}, which is not part of {what}: name another folder, or write beside it with --force"
        )
