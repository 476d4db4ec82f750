"""Image degradations of known kind and strength.

Source: the controlled degradation probe of Tiwari et al. 2026 (arXiv 2607.12364, section 3.3, table 2); strengths are those of the released code.
"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter

# Four levels of each, from weak to strong: radius, SD in [0, 1], scale, quality, share of the saturation, pixels on both axes.
LEVELS: dict[str, tuple[float, ...]] = {
    "blur": (1, 2, 4, 8),
    "noise": (0.03, 0.06, 0.12, 0.24),
    "downsample": (0.75, 0.5, 0.25, 0.125),
    "jpeg": (60, 40, 25, 10),
    "desaturate": (0.75, 0.5, 0.25, 0.0),
    "shift": (4, 8, 16, 32),
}


def degrade(pixels: np.ndarray, kind: str, parameter: float, rng: np.random.Generator) -> np.ndarray:
    """One degradation of an (h, w, 3) uint8 image.

    Args:
        pixels: the image. kind: one of `LEVELS`. parameter: its strength, in the unit of `LEVELS`. rng: for noise.

    Raises:
        ValueError: there is no such kind.
    """
    image, (height, width) = Image.fromarray(pixels), pixels.shape[:2]
    if kind == "blur":
        return np.asarray(image.filter(ImageFilter.GaussianBlur(parameter)))
    if kind == "noise":
        noisy = pixels / 255 + rng.normal(0, parameter, pixels.shape)
        return np.rint(np.clip(noisy, 0, 1) * 255).astype(np.uint8)
    if kind == "downsample":
        small = image.resize((max(1, round(width * parameter)), max(1, round(height * parameter))), Image.Resampling.BICUBIC)
        return np.asarray(small.resize((width, height), Image.Resampling.BICUBIC))
    if kind == "jpeg":
        buffer = io.BytesIO()
        image.save(buffer, format="JPEG", quality=int(parameter))
        return np.asarray(Image.open(buffer).convert("RGB"))
    if kind == "desaturate":
        return np.asarray(ImageEnhance.Color(image).enhance(parameter))
    if kind == "shift":
        by = int(parameter)
        return np.pad(pixels, ((0, by), (0, by), (0, 0)), mode="reflect")[by:, by:]
    raise ValueError(f"degradation {kind!r} is unknown: take one of {sorted(LEVELS)}")
