"""The images that retrieval models are trained on, and edits of them for hard negatives; never images of the benchmark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from decodehub.core.files import inside, read_data
from decodehub.loaders.images import SUFFIXES

from .stimuli import training_crops, training_photos

IMAGES, EDITS = "training.jsonl", "training_edits.jsonl"


class TrainingImages(NamedTuple):
    """Images to train on.

    Attributes:
        images: n images, in the order of their numbers. concepts: n names. name: what they are, in words.
        edits: edited training images, for hard negatives; may be none. edit_of: for each, the position in `images` of what was edited.
    """

    images: list[Any]
    concepts: list[str]
    name: str
    edits: list[Any]
    edit_of: list[int]


def crops(n: int) -> TrainingImages:
    """Crops of public photographs that are no source of the sample; a photograph counts as a concept."""
    names = [path.stem for path in training_photos()]
    return TrainingImages(list(training_crops(n)), [names[i % len(names)] for i in range(n)], "crops of public photographs", [], [])


def read_training_images(folder: Path) -> TrainingImages:
    """Training images from a folder.

    Either concept folders with images, in ASCII order as THINGS-EEG2 numbers them (``training_images/00001_aardvark/aardvark_01b.jpg``),
    or ``training.jsonl`` with ``image`` and ``concept`` a line. Beside them ``training_edits.jsonl`` may list edits: ``image`` is the
    edited file and ``edit_of`` the path, below the folder, of the training image it was made from.

    Raises:
        FileNotFoundError: no such folder, or no images in it. ValueError: a malformed line, or an edit of what is no training image.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"--training {folder} is not a folder")
    if (folder / IMAGES).is_file():
        rows = _lines(folder / IMAGES, ("image", "concept"))
        paths, concepts = [row["image"] for row in rows], [row["concept"] for row in rows]
    else:
        found = sorted(p for p in folder.glob("*/*") if p.suffix.lower() in SUFFIXES)
        paths, concepts = [p.relative_to(folder).as_posix() for p in found], [p.parent.name for p in found]
    if not paths:
        raise FileNotFoundError(f"--training {folder} has neither {IMAGES} nor concept folders with images")
    number = {path: i for i, path in enumerate(paths)}
    edits = _lines(folder / EDITS, ("image", "edit_of")) if (folder / EDITS).is_file() else []
    for row in edits:
        if row["edit_of"] not in number:
            raise ValueError(f"{folder / EDITS}: {row['image']} is an edit of {row['edit_of']}, which is no training image of this folder")
    return TrainingImages(
        [inside(folder, path) for path in paths],
        concepts,
        folder.name,
        [inside(folder, row["image"]) for row in edits],
        [number[row["edit_of"]] for row in edits],
    )


def _lines(path: Path, fields: tuple[str, ...]) -> list[dict[str, str]]:
    rows = []
    for i, line in enumerate(read_data(path).decode().splitlines(), 1):
        try:
            row = json.loads(line)
            rows.append({name: str(row[name]) for name in fields})
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"{path}, line {i}: expected an object with {', '.join(fields)}, found {line[:80]!r}") from error
    return rows
