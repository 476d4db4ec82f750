"""Folders that jobs write: nothing of another kind is overwritten."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

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


def refuse_other_run(folder: Path, about: Mapping[str, Any]) -> None:
    """Refuse, before any work, a folder whose ``run.json`` differs in one of the values of `about`; it is named.

    Raises:
        ValueError: another run is there, or a file that is no description of a run.
    """
    file = Path(folder) / "run.json"
    if not file.exists():
        return
    remedy = "name another --out, or start again there with --no-resume or --force"
    try:
        there = json.loads(file.read_text(encoding="utf-8"))
        other = [name for name, value in about.items() if there.get(name) != value]
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file} does not describe a run ({error}): {remedy}") from None
    if other:
        raise ValueError(f"{file} is of another run: {other[0]} is {there.get(other[0])!r} there and {about[other[0]]!r} here: {remedy}")
