"""Parts that the classical editor and the hole filling share: masks, feathered edges, noise, shading, cut-outs."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import cv2
import numpy as np

SIZE = 224
FEATHER_REACH = 3  # pixels beyond the mask that a feathered edge may touch


class CutOut(NamedTuple):
    """An object lifted from its photograph: `color` (h, w, 3) float32 0..255 continued beyond its edge, `alpha` (h, w) float32 0..1."""

    color: np.ndarray
    alpha: np.ndarray


def rng_for(*names: str) -> np.random.Generator:
    """The Generator of a name: the same in every process and on every machine (never Python's salted ``hash``)."""
    digest = hashlib.sha256("/".join(names).encode()).digest()
    return np.random.default_rng(np.random.SeedSequence(list(digest)))


# Shared parts ---------------------------------------------------------------------------------------------------------------------------


def dilate(mask: np.ndarray, radius: int) -> np.ndarray:
    """`mask` (h, w) bool grown by a disc of `radius` pixels (shrunk where negative)."""
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * abs(radius) + 1, 2 * abs(radius) + 1))
    operation = cv2.dilate if radius >= 0 else cv2.erode
    return operation(mask.astype(np.uint8), kernel, borderType=cv2.BORDER_REPLICATE) > 0


def feather(mask: np.ndarray, softness: float = 1.2) -> np.ndarray:
    """Alpha (h, w) float32 in 0..1: a soft `mask`, exactly 1 in its core and exactly 0 from `FEATHER_REACH` pixels outside it."""
    alpha = cv2.GaussianBlur(mask.astype(np.float32), (0, 0), softness, borderType=cv2.BORDER_REPLICATE)
    alpha[dilate(mask, -FEATHER_REACH)] = 1.0
    alpha[~dilate(mask, FEATHER_REACH)] = 0.0
    return np.clip(alpha, 0.0, 1.0)


def blend(below: np.ndarray, above: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """`above` over `below` through `alpha` (h, w), as uint8; where alpha is 0 or 1 the pixels are copied exactly."""
    mixed = below.astype(np.float32) * (1 - alpha[..., None]) + above.astype(np.float32) * alpha[..., None]
    return np.clip(np.rint(mixed), 0, 255).astype(np.uint8)


def noise(rng: np.random.Generator, cell: float, octaves: int = 4, stretch: tuple[float, float] = (1.0, 1.0)) -> np.ndarray:
    """Smooth value noise (224, 224) float32 in 0..1; `cell` is its coarsest grain in pixels, `stretch` draws it out over (y, x)."""
    total = np.zeros((SIZE, SIZE), np.float32)
    for octave in range(octaves):
        step = cell / 2**octave
        rows, columns = (max(2, int(SIZE / (step * s)) + 2) for s in stretch)
        grid = rng.random((rows, columns), dtype=np.float32)
        total += cv2.resize(grid, (SIZE, SIZE), interpolation=cv2.INTER_CUBIC) / 2**octave
    low, high = np.percentile(total, (0.5, 99.5))
    return np.clip((total - low) / (high - low + 1e-6), 0, 1)


def luminance(image: np.ndarray) -> np.ndarray:
    """Luma (h, w) float32 in 0..1 of uint8 or 0..255 float pixels."""
    return image.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32) / 255


def shading(image: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The object's own light and shade (h, w), about 0..1 over the mask whatever its colour: what a repainted surface must keep."""
    luma = luminance(image)
    low, high = np.percentile(luma[mask], (3, 97))
    return np.clip((luma - low) / max(high - low, 0.12), -0.1, 1.25)


def normals(image: np.ndarray, mask: np.ndarray, *, relief: float = 18.0) -> np.ndarray:
    """Surface normals (h, w, 3): the mask inflated like a balloon, with the photograph's own detail pressed into it."""
    inner = cv2.distanceTransform(np.pad(mask, 1, mode="edge").astype(np.uint8), cv2.DIST_L2, 5)[1:-1, 1:-1]
    depth = max(float(inner.max()), 1.0)
    height = depth * np.sqrt(np.clip(1 - (1 - np.minimum(inner / depth, 1)) ** 2, 0, 1))
    luma = luminance(image)
    detail = cv2.GaussianBlur(luma, (0, 0), 1.0) - cv2.GaussianBlur(luma, (0, 0), 9.0)
    height = cv2.GaussianBlur(height, (0, 0), 3.0) + relief * detail
    dy, dx = np.gradient(height)
    normal = np.stack([-dx, -dy, np.full_like(dx, 0.9)], axis=-1)
    return normal / np.linalg.norm(normal, axis=-1, keepdims=True)


def ramp(value: np.ndarray, stops: list[tuple[float, tuple[int, int, int]]]) -> np.ndarray:
    """Colours (h, w, 3) of `value` along a gradient of (position, sRGB) stops."""
    at = [position for position, _ in stops]
    return np.stack([np.interp(value, at, [color[channel] for _, color in stops]) for channel in range(3)], axis=-1).astype(np.float32)


def _core(mask: np.ndarray) -> np.ndarray:
    """The pixels of `mask` (h, w) that hold no background: its inside, and thin parts (legs, stalks) that have no inside."""
    inside = dilate(mask, -2)
    return inside | (mask & ~dilate(inside, 5)) if inside.any() else mask


def cut_out(image: np.ndarray, mask: np.ndarray) -> CutOut:
    """Lift the object out; its colour is continued outwards from the core so that no rim of the old background comes along."""
    core = _core(mask)
    _, labels = cv2.distanceTransformWithLabels((~core).astype(np.uint8), cv2.DIST_L2, 5, labelType=cv2.DIST_LABEL_PIXEL)
    table = np.zeros((labels.max() + 1, 3), np.float32)
    table[labels[core]] = image[core]
    spread = cv2.GaussianBlur(table[labels], (0, 0), 1.0)
    color = np.where(core[..., None], image.astype(np.float32), spread)
    alpha = cv2.GaussianBlur(dilate(mask, -1).astype(np.float32), (0, 0), 1.1, borderType=cv2.BORDER_REPLICATE)
    alpha[core] = 1.0
    alpha[~dilate(mask, 1)] = 0.0
    return CutOut(color, alpha)
