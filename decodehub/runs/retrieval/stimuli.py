"""The images that retrieval models are tried on: a release's own, and crops of public photographs to train on with simulated EEG."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
from PIL import Image

from decodehub.loaders.images import read_image

from .defaults import CROP_SEED

# Photographs in the wheels of scikit-image and matplotlib that are no source of the sample.
TRAINING_PHOTOS = {
    "skimage": (
        "brick.png",
        "cell.png",
        "clock_motion.png",
        "grass.png",
        "gravel.png",
        "hubble_deep_field.jpg",
        "ihc.png",
        "moon.png",
        "motorcycle_left.png",
        "motorcycle_right.png",
        "page.png",
        "retina.jpg",
        "text.png",
    ),
    "matplotlib": ("grace_hopper.jpg",),
}


class Stimuli(NamedTuple):
    """A release's images as encoded bytes, in score order; no nulls where it has none."""

    sources: list[dict[str, Any]]
    edits: list[dict[str, Any]]
    nulls: list[dict[str, Any]]


def training_photos() -> list[Path]:
    """Paths of the photographs that training crops are cut from."""
    folders = {"skimage": "data", "matplotlib": "mpl-data/sample_data"}
    found = []
    for package, names in TRAINING_PHOTOS.items():
        spec = find_spec(package)
        assert spec is not None and spec.submodule_search_locations
        found += [Path(next(iter(spec.submodule_search_locations))) / folders[package] / name for name in names]
    return found


def training_crops(n: int, seed: int = CROP_SEED) -> Iterator[np.ndarray]:
    """Random square crops of the training photographs, (224, 224, 3) uint8, mirrored at random; each photograph gives as many."""
    rng = np.random.default_rng(seed)
    photos = [read_image(path) for path in training_photos()]
    for i in range(n):
        photo = photos[i % len(photos)]
        side = int(min(photo.size) * rng.uniform(0.25, 1.0))
        left, top = (int(rng.integers(0, size - side + 1)) for size in photo.size)
        crop = photo.crop((left, top, left + side, top + side)).resize((224, 224), Image.Resampling.BICUBIC)
        yield np.asarray(crop)[:, :: -1 if rng.integers(2) else 1]


def load_stimuli(data_dir: str | None = "sample") -> Stimuli:
    """The images of a release through `load_dataset`, left encoded."""
    edits = datasets.load_dataset("eeg-editbench", "edits", data_dir=data_dir, split="test").cast_column(
        "edited_image", datasets.Image(decode=False)
    )
    sources = datasets.load_dataset("eeg-editbench", "sources", data_dir=data_dir, split="test")
    for column in ("image", "null_image"):
        sources = sources.cast_column(column, datasets.Image(decode=False))
    nulls = list(sources["null_image"])
    return Stimuli(list(sources["image"]), list(edits["edited_image"]), [] if None in nulls else nulls)
