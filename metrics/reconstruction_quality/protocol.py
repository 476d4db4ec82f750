"""A small run on images that are always there."""

from __future__ import annotations

import numpy as np

from decodehub.loaders.images import source

from .measures import PIXEL, measure


def smoke() -> dict[str, float]:
    """Measures of a noisy and of another image, of random pixels."""
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (64, 64, 3)).astype(np.uint8)
    noisy = np.clip(image + rng.normal(0, 20, image.shape), 0, 255).astype(np.uint8)
    found = measure(list(PIXEL), [source(image, "reference")], [source(noisy, "reconstruction")])
    return {name: float(v.values[0]) for name, v in found.items()}
