"""A deterministic classical editor: one pure function an edit kind, on (224, 224, 3) uint8 pixels and a (224, 224) bool mask.

It stands in for the diffusion editor of EEG-EditBench (section S2.2 of the paper) where a release must be made from data at hand. Each
edit is composited through a feathered mask, so pixels more than `FEATHER_REACH` away from the edited object are those of the source.
Randomness comes from the Generator given by the caller (`rng_for` makes one from stable names).
"""

from __future__ import annotations

import io
from typing import Any

import cv2
import numpy as np
from PIL import Image

from .editor_fill import fill, fill_smooth
from .editor_pixels import SIZE, CutOut, blend, cut_out, dilate, feather, luminance, noise, normals, ramp, shading

HOLE_MARGIN = 5  # pixels around the object that removal rebuilds too: halo, soft shadow, hair

_PALETTE = {  # sRGB
    "red": (200, 30, 36), "orange": (235, 125, 25), "yellow": (240, 205, 40), "green": (45, 150, 60), "teal": (20, 150, 150),
    "blue": (35, 80, 200), "purple": (125, 50, 170), "pink": (240, 120, 170), "white": (240, 240, 238), "black": (32, 32, 36),
}  # fmt: skip
COLORS = tuple(_PALETTE)
MATERIALS = ("gold", "chrome", "copper", "marble", "glass", "jade")
TEXTURES = ("stripes", "polka_dots", "checkerboard", "plaid", "wood_grain", "zigzag", "camouflage")
SHAPES = ("taller", "shorter", "wider", "narrower", "larger", "smaller", "bulged", "leaning")
STATES = ("wet", "dirty", "rusty", "frosted", "cracked", "faded", "mossy", "charred")


# Attributes -----------------------------------------------------------------------------------------------------------------------------


def recolor(image: np.ndarray, mask: np.ndarray, color: str) -> np.ndarray:
    """Give the object another colour; its light, shade, markings and highlights stay.

    Args:
        image: (224, 224, 3) uint8.
        mask: (224, 224) bool.
        color: one of `COLORS`.

    Returns:
        (224, 224, 3) uint8.

    Raises:
        ValueError: unknown colour.
    """
    paint = np.array(_one_of(color, _PALETTE, "color"), np.float32)
    luma = np.clip(luminance(image), 0, 1)[..., None]
    median = float(np.median(luma[mask]))
    # Black things need light to show paint, hence the higher floor.
    middle, floor = float(np.clip(median, 0.12, 0.8)), 0.06 + 0.45 * float(np.clip(1 - median / 0.15, 0, 1))
    # A dye: the object's middle tone takes the paint, darker tones its shade, lighter ones go towards white.
    shade = paint * (floor + (1 - floor) * np.clip(luma / middle, 0, 1) ** 0.9)
    light = np.clip((luma - middle) / (1 - middle), 0, 1)
    dyed = np.where(luma < middle, shade, paint + (255 - paint) * 0.85 * light**1.1)
    return blend(image, dyed, feather(mask))


def colors_by_contrast(image: np.ndarray, mask: np.ndarray) -> list[str]:
    """`COLORS`, those farthest in CIELAB from the object's median colour first: to choose a change that shows."""
    median = np.median(cv2.cvtColor(image.astype(np.float32) / 255, cv2.COLOR_RGB2LAB)[mask], axis=0)
    return sorted(COLORS, key=lambda color: -float(np.linalg.norm(median - _lab(_PALETTE[color]))))


def rematerial(image: np.ndarray, mask: np.ndarray, material: str, rng: np.random.Generator, behind: np.ndarray) -> np.ndarray:
    """Remake the object's surface: metals mirror a horizon, stone has veins, glass shows the bent background.

    Args:
        image: (224, 224, 3) uint8.
        mask: (224, 224) bool.
        material: one of `MATERIALS`.
        rng: draws veins and blotches.
        behind: (224, 224, 3) uint8, the scene without the object (used by glass and jade).

    Returns:
        (224, 224, 3) uint8.

    Raises:
        ValueError: unknown material.
    """
    _one_of(material, dict.fromkeys(MATERIALS), "material")
    normal, shade = normals(image, mask), shading(image, mask)
    edge = np.clip(1 - normal[..., 2], 0, 1)
    half = np.array([-0.38, -0.55, 0.74])
    gloss = np.clip(normal @ half, 0, 1) ** 40
    if material in ("gold", "chrome", "copper"):
        surface = _metal(material, normal, shade)
    elif material == "marble":
        warp = noise(rng, 70) * 9 + noise(rng, 18, 3) * 2.2 + np.indices((SIZE, SIZE)).sum(0) / 45
        veins = np.clip(1 - np.abs(np.sin(warp)) * 5.0, 0, 1) * (0.35 + 0.65 * noise(rng, 40))
        stone = ramp(noise(rng, 60), [(0, (214, 212, 210)), (1, (246, 244, 240))]) * (1 - 0.62 * veins[..., None])
        lit = 0.42 + 0.35 * shade + 0.32 * np.clip(normal @ np.array([-0.45, -0.6, 0.66]), 0, 1)
        surface = stone * lit[..., None] + 90 * gloss[..., None]
    else:
        y, x = np.indices((SIZE, SIZE), np.float32)
        bend = 26 if material == "glass" else 12
        maps = (x - normal[..., 0] * bend).astype(np.float32), (y - normal[..., 1] * bend).astype(np.float32)
        seen = cv2.remap(behind, *maps, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101).astype(np.float32)
        fine = (luminance(image) - cv2.GaussianBlur(luminance(image), (0, 0), 5.0))[..., None]
        if material == "glass":
            rim = (np.clip(edge * 1.6, 0, 1) ** 1.5)[..., None]
            surface = seen * (0.86 - 0.45 * rim) + 215 * np.clip(fine, 0, 0.5) + 90 * np.clip(fine, -0.6, 0)
            surface = surface * np.array([0.93, 1.0, 0.99]) + 16 + 95 * rim**3 + 190 * gloss[..., None]
        else:
            cloud = 0.75 * shade + 0.25 * noise(rng, 30)
            stone = ramp(cloud, [(0, (10, 52, 36)), (0.45, (44, 128, 86)), (0.8, (128, 196, 150)), (1.1, (214, 240, 220))])
            surface = 0.84 * stone + 0.16 * seen + 150 * gloss[..., None] + 55 * np.clip(edge - 0.3, 0, 1)[..., None]
    return blend(image, np.clip(surface, 0, 255), feather(mask))


def _metal(material: str, normal: np.ndarray, shade: np.ndarray) -> np.ndarray:
    """A polished metal: the horizon of a bright room mirrored in the normals, broken up by the photograph's own shading."""
    smooth = cv2.GaussianBlur(np.clip(shade, 0, 1).astype(np.float32), (0, 0), 1.4)
    facing = 2 * normal[..., 2] * normal[..., 1]
    height = np.clip(0.5 - 0.42 * facing + 0.10 * normal[..., 0], 0, 1)
    band = 0.55 * height + 0.45 * smooth
    stops = [(0.0, 0.03), (0.18, 0.20), (0.34, 0.52), (0.44, 0.16), (0.52, 0.30), (0.62, 0.80), (0.72, 1.0), (0.82, 0.62), (1.0, 1.0)]
    light = np.interp(band, [at for at, _ in stops], [value for _, value in stops]) * (0.55 + 0.45 * np.clip(shade, 0, 1))
    light = cv2.GaussianBlur(light.astype(np.float32), (0, 0), 0.7)
    tones = {
        "chrome": [(0, (14, 17, 24)), (0.35, (92, 102, 116)), (0.7, (188, 198, 210)), (1, (252, 254, 255))],
        "gold": [(0, (44, 24, 4)), (0.3, (134, 84, 14)), (0.6, (222, 166, 44)), (0.85, (255, 224, 120)), (1, (255, 250, 214))],
        "copper": [(0, (38, 12, 6)), (0.3, (122, 52, 28)), (0.6, (204, 110, 70)), (0.85, (246, 176, 134)), (1, (255, 234, 214))],
    }[material]
    return ramp(light, tones)


def retexture(image: np.ndarray, mask: np.ndarray, texture: str, rng: np.random.Generator) -> np.ndarray:
    """Print a pattern on the object; it bends with the form and keeps its light and shade.

    Args:
        image: (224, 224, 3) uint8.
        mask: (224, 224) bool.
        texture: one of `TEXTURES`.
        rng: draws grain and patches.

    Returns:
        (224, 224, 3) uint8.

    Raises:
        ValueError: unknown texture.
    """
    _one_of(texture, dict.fromkeys(TEXTURES), "texture")
    normal, shade = normals(image, mask, relief=6.0), shading(image, mask)
    y, x = np.indices((SIZE, SIZE), np.float32)
    rows, columns = np.nonzero(mask)
    # The pitch follows the object, so that small objects carry as many repeats as large ones.
    pitch = float(np.clip(np.sqrt(mask.sum()) / 6.0, 7, 22))
    v = (y - rows.mean() + normal[..., 1] * pitch * 0.9) / pitch
    u = (x - columns.mean() + normal[..., 0] * pitch * 0.9) / pitch
    light = (0.34 + 0.72 * np.clip(shade, 0, 1.1))[..., None]
    base = ramp(np.zeros_like(u), [(0, (238, 232, 220))])
    if texture == "stripes":
        ink = _soft_step(np.sin(2 * np.pi * (u + 0.25 * v)))
        printed = base * (1 - ink) + np.array([24, 40, 110]) * ink
    elif texture == "polka_dots":
        stagger = np.floor(v) % 2 * 0.5
        ink = _soft_step(0.36 - np.hypot((u + stagger) % 1 - 0.5, v % 1 - 0.5), 10)
        printed = np.array([206, 36, 54]) * (1 - ink) + np.array([250, 246, 240]) * ink
    elif texture == "checkerboard":
        ink = _soft_step(np.sin(np.pi * u) * np.sin(np.pi * v), 9)
        printed = base * (1 - ink) + np.array([22, 22, 26]) * ink
    elif texture == "plaid":
        across, down = _soft_step(np.sin(np.pi * u)), _soft_step(np.sin(np.pi * v))
        line = _soft_step(0.09 - np.abs((u / 2) % 1 - 0.25), 40) + _soft_step(0.09 - np.abs((v / 2) % 1 - 0.25), 40)
        printed = base * (1 - 0.45 * across) * (1 - 0.45 * down) * np.array([0.55, 0.78, 0.66]) * (1 - np.clip(line, 0, 1) * 0.8)
        printed = printed + np.clip(line, 0, 1) * np.array([190, 30, 40]) * 0.8
    elif texture == "zigzag":
        ink = _soft_step(np.sin(2 * np.pi * (v / 1.3 + np.abs(u % 2 - 1) * 0.7)))
        printed = np.array([248, 196, 40]) * (1 - ink) + np.array([30, 90, 100]) * ink
    elif texture == "wood_grain":
        rings = (u * 0.9 + noise(rng, 60, 2) * 2.6 + 0.10 * np.sin(v * 0.8)) * 3.2
        fibre = noise(rng, 26, 4, stretch=(5.0, 0.16))
        tone = 0.5 + 0.32 * np.sin(rings * 2) + 0.42 * (fibre - 0.5)
        printed = ramp(np.clip(tone, 0, 1), [(0, (82, 44, 18)), (0.45, (150, 92, 44)), (1, (222, 168, 104))])
    else:  # camouflage: three layers of blots
        printed = np.full((SIZE, SIZE, 3), (168, 146, 92), np.float32)
        for tint in ((92, 112, 50), (44, 38, 28), (214, 202, 160)):
            blot = _soft_step(noise(rng, pitch * 2.2, 2) - 0.60, 18)
            printed = printed * (1 - blot) + np.array(tint, np.float32) * blot
    return blend(image, np.clip(printed * light, 0, 255), feather(mask))


def _soft_step(value: np.ndarray, sharpness: float = 5.0) -> np.ndarray:
    """0 below zero, 1 above, with an anti-aliased edge, as (h, w, 1)."""
    return np.clip(0.5 + value * sharpness / 2, 0, 1)[..., None]


def reshape(image: np.ndarray, mask: np.ndarray, shape: str, behind: np.ndarray, *, anchor: str = "bottom",
            cut: CutOut | None = None, shadow: bool = False) -> np.ndarray:  # fmt: skip
    """Change the object's proportions or size; its old place shows the background.

    Args:
        image: (224, 224, 3) uint8.
        mask: (224, 224) bool.
        shape: one of `SHAPES`.
        behind: (224, 224, 3) uint8, the scene without the object.
        anchor: the point that stays: ``"bottom"`` (it stands on something) or ``"center"``. A side cut by the frame stays cut.
        cut: the object's own cut-out where it is known (else `cut_out` makes one).
        shadow: lay a soft contact shadow beneath the new shape.

    Returns:
        (224, 224, 3) uint8.

    Raises:
        ValueError: unknown shape or anchor.
    """
    scale = {"taller": (0.95, 1.4), "shorter": (1.05, 0.62), "wider": (1.42, 0.97), "narrower": (0.6, 1.0), "larger": (1.35, 1.35),
             "smaller": (0.6, 0.6), "bulged": (1.0, 1.0), "leaning": (1.0, 1.0)}  # fmt: skip
    sx, sy = _one_of(shape, scale, "shape")
    _one_of(anchor, dict.fromkeys(("bottom", "center")), "anchor")
    rows, columns = np.nonzero(mask)
    top, bottom, left, right = rows.min(), rows.max(), columns.min(), columns.max()
    ay = float(bottom) if anchor == "bottom" or bottom >= SIZE - 2 else (0.0 if top <= 1 else (top + bottom) / 2)
    ax = 0.0 if left <= 1 < SIZE - 2 > right else (SIZE - 1.0 if right >= SIZE - 2 and left > 1 else (left + right) / 2)
    if top > 1 and sy > 1:  # what the frame did not cut must not grow out of it
        sy = max(1.12, min(sy, (ay - 3) / max(ay - top, 1)))
    y, x = np.indices((SIZE, SIZE), np.float32)
    if shape == "bulged":
        cy, cx, reach = (top + bottom) / 2, (left + right) / 2, 0.62 * max(bottom - top, right - left)
        distance = np.hypot(y - cy, x - cx) / reach
        pull = np.where(distance < 1, 1 - 0.5 * (1 - distance**2) ** 1.0, 1.0)
        from_y, from_x = cy + (y - cy) * pull, cx + (x - cx) * pull
    elif shape == "leaning":
        from_y, from_x = y, x - 0.38 * (ay - y)
        from_x = from_x + 0.38 * (ay - (top + bottom) / 2) * (0 if anchor == "bottom" else 1)
    else:
        from_y, from_x = ay + (y - ay) / sy, ax + (x - ax) / sx
    cut = cut or cut_out(image, mask)
    maps = from_x.astype(np.float32), from_y.astype(np.float32)
    # Replicated borders let an object that the frame cuts reach the frame again; elsewhere alpha is zero at the border.
    color = cv2.remap(cut.color, *maps, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    alpha = cv2.remap(cut.alpha, *maps, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    alpha = np.clip(alpha, 0, 1)
    return blend(cast_shadow(behind, alpha) if shadow else behind, np.clip(color, 0, 255), alpha)


def restate(image: np.ndarray, mask: np.ndarray, state: str, rng: np.random.Generator) -> np.ndarray:
    """Weather, soil, wet, freeze or break the object's surface; what it is stays plain.

    Args:
        image: (224, 224, 3) uint8.
        mask: (224, 224) bool.
        state: one of `STATES`.
        rng: draws drops, blotches and cracks.

    Returns:
        (224, 224, 3) uint8.

    Raises:
        ValueError: unknown state.
    """
    _one_of(state, dict.fromkeys(STATES), "state")
    pixels, luma, normal = image.astype(np.float32), luminance(image)[..., None], normals(image, mask)
    rows = np.nonzero(mask)[0]
    down = np.clip((np.indices((SIZE, SIZE))[0] - rows.min()) / max(np.ptp(rows), 1), 0, 1)
    upward = np.clip(-normal[..., 1], 0, 1)
    if state == "wet":
        changed = _wet(pixels, mask, normal, rng)
    elif state == "cracked":
        changed = _cracked(pixels, mask, rng)
    elif state == "faded":
        grain = noise(rng, 7, 2)[..., None]
        changed = (0.28 * pixels + 0.72 * 255 * luma * np.array([1.0, 0.95, 0.84])) * 0.55 + 92
        changed = changed * (1 - 0.16 * grain) - 34 * np.clip(noise(rng, 50)[..., None] - 0.55, 0, 1)
    elif state == "dirty":
        mud = _soft_step(noise(rng, 34, 5) + 0.42 * down - 0.66, 7)
        splash = _soft_step(noise(rng, 9, 2) - 0.74, 14)
        cover = np.clip(0.9 * mud + 0.8 * splash, 0, 0.93)
        earth = ramp(noise(rng, 12, 3), [(0, (54, 36, 20)), (1, (122, 88, 54))]) * (0.55 + 0.7 * luma)
        changed = pixels * np.array([0.82, 0.78, 0.70]) * (1 - cover) + earth * cover
    elif state == "rusty":
        cover = 0.93 * _soft_step(noise(rng, 42, 5) - 0.36, 6)
        crust = ramp(noise(rng, 10, 4), [(0, (58, 24, 12)), (0.45, (138, 62, 24)), (0.8, (190, 98, 40)), (1, (214, 140, 74))])
        changed = pixels * 0.72 * (1 - cover) + crust * (0.45 + 0.75 * luma) * cover
    elif state == "frosted":
        ice = noise(rng, 16, 5)
        cover = np.clip(0.34 + 0.75 * ice + 0.55 * upward - 0.25 * down, 0, 0.94)[..., None]
        needle = np.clip(noise(rng, 5, 2) - 0.62, 0, 1)[..., None] * 150
        changed = pixels * np.array([0.80, 0.92, 1.02]) * (1 - cover) + (np.array([206, 226, 244]) * (0.72 + 0.34 * luma) + needle) * cover
    elif state == "mossy":
        cover = 0.95 * _soft_step(noise(rng, 36, 5) + 0.35 * upward - 0.44, 7)
        tuft = noise(rng, 5, 3)
        moss = ramp(tuft, [(0, (22, 40, 10)), (0.5, (70, 104, 28)), (1, (150, 178, 66))]) * (0.62 + 0.55 * luma)
        changed = pixels * 0.86 * (1 - cover) + moss * cover
    else:  # charred: soot everywhere, embers where the noise is thinnest
        soot = noise(rng, 30, 5)
        black = ramp(0.55 * soot + 0.45 * shading(image, mask), [(0, (10, 9, 9)), (0.6, (44, 40, 38)), (1.1, (122, 116, 112))])
        fissure = (np.clip(1 - np.abs(noise(rng, 24, 4) - 0.5) * 15, 0, 1) * np.clip((soot - 0.45) * 6, 0, 1)).astype(np.float32)
        glow = cv2.GaussianBlur(fissure, (0, 0), 3.0)[..., None]
        changed = black + np.array([190, 60, 8]) * np.clip(glow * 1.6, 0, 1) + np.array([120, 90, 30]) * fissure[..., None] ** 2
    return blend(image, np.clip(changed, 0, 255), feather(mask))


def _wet(pixels: np.ndarray, mask: np.ndarray, normal: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Darker and glossy, with drops that magnify what is beneath and carry a highlight and a shadow edge."""
    sheen = np.clip(normal @ np.array([-0.38, -0.55, 0.74]), 0, 1) ** 24
    luma = luminance(pixels)
    gloss = np.clip((luma - cv2.GaussianBlur(luma, (0, 0), 4.0)) * 2.2, 0, 0.5)
    wet = (pixels / 255) ** 1.55 * 255 * np.array([0.90, 0.95, 1.0]) + (110 * sheen + 150 * gloss)[..., None]
    y, x = np.indices((SIZE, SIZE), np.float32)
    places = np.argwhere(dilate(mask, -3) if dilate(mask, -3).any() else mask)
    map_y, map_x, light = y.copy(), x.copy(), np.zeros((SIZE, SIZE), np.float32)
    finest = float(np.clip(np.sqrt(mask.sum()) / 150, 0.4, 1.0))
    for _ in range(int(np.clip(mask.sum() / 110, 14, 150))):
        cy, cx = places[rng.integers(len(places))]
        radius = finest * float(np.clip(rng.gamma(3.0, 1.1), 2.0, 8.0))
        reach = int(np.ceil(radius * 1.2))
        near = np.s_[max(0, cy - reach) : cy + reach + 1, max(0, cx - reach) : cx + reach + 1]
        dy, dx = (y[near] - cy) / (radius * 1.2), (x[near] - cx) / radius
        inside = dy**2 + dx**2 < 1
        map_y[near][inside], map_x[near][inside] = (cy + (y[near] - cy) * 0.4)[inside], (cx + (x[near] - cx) * 0.4)[inside]
        light[near][inside] = (0.55 * dy - 0.45)[inside] * 0.55
        light[near][inside & (np.hypot(dy + 0.42, dx + 0.36) < 0.27)] = 1.3
        light[near][inside & (np.hypot(dy - 0.55, dx - 0.35) < 0.30)] = 0.5
    drops = cv2.remap(wet.astype(np.float32), map_x, map_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
    return drops * (1 + 0.75 * np.minimum(light, 0.0))[..., None] + 85 * np.maximum(light, 0.0)[..., None]


def _cracked(pixels: np.ndarray, mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Dry, split surface: dark seams between the cells of jittered seeds, lit along one lip, each plate a little lighter or darker."""
    y, x = np.indices((SIZE, SIZE), np.float32)
    cell = float(np.clip(np.sqrt(mask.sum()) / 5.5, 9, 26))
    wobble = (noise(rng, 14, 3) - 0.5) * cell * 0.7, (noise(rng, 14, 3) - 0.5) * cell * 0.7
    count = int((SIZE / cell) ** 2)
    seeds = rng.random((count, 2), dtype=np.float32) * SIZE
    nearest = np.full((SIZE, SIZE), 1e9, np.float32)
    second, owner = nearest.copy(), np.zeros((SIZE, SIZE), np.int64)
    for index, (sy, sx) in enumerate(seeds):
        distance = np.hypot(y + wobble[0] - sy, x + wobble[1] - sx)
        closer = distance < nearest
        second = np.where(closer, nearest, np.minimum(second, distance))
        nearest, owner = np.where(closer, distance, nearest), np.where(closer, index, owner)
    gap = second - nearest
    plate = (0.80 + 0.34 * rng.random(count))[owner]
    seam = np.clip(1.35 - gap / 1.6, 0, 1)
    lip = np.clip(1 - np.abs(np.roll(gap, (-1, -1), (0, 1)) - 3.0) / 1.5, 0, 1)
    dry = 0.72 * pixels + 0.28 * 255 * luminance(pixels)[..., None] * np.array([1.0, 0.93, 0.80]) + 14
    return dry * plate[..., None] * (1 - 0.94 * seam[..., None]) + 38 * (lip * (1 - seam))[..., None]


# Scene edits ----------------------------------------------------------------------------------------------------------------------------


def replace_background(image: np.ndarray, mask: np.ndarray, scene: np.ndarray, *, cut: CutOut | None = None,
                       shadow: bool = False) -> np.ndarray:  # fmt: skip
    """Put the object, untouched, before another scene.

    Args:
        image: (224, 224, 3) uint8.
        mask: (224, 224) bool; its core (eroded by 2) is copied exactly.
        scene: (224, 224, 3) uint8.
        cut: the object's own cut-out where it is known (else `cut_out` makes one).
        shadow: lay a soft contact shadow beneath the object.

    Returns:
        (224, 224, 3) uint8.
    """
    cut = cut or cut_out(image, mask)
    return blend(cast_shadow(scene, cut.alpha) if shadow else scene, cut.color, cut.alpha)


def cast_shadow(scene: np.ndarray, alpha: np.ndarray, *, strength: float = 0.55) -> np.ndarray:
    """`scene` (h, w, 3) uint8 darkened beneath an object's `alpha` (h, w): a flat pool where it stands, none where the frame cuts it."""
    rows, columns = np.nonzero(alpha > 0.5)
    if not len(rows) or rows.max() >= SIZE - 2:
        return scene
    bottom, height = float(rows.max()), float(np.ptp(rows) + 1)
    foot = columns[rows > bottom - max(3.0, 0.12 * height)]
    center, reach = float(foot.mean()), max(float(np.ptp(foot)) / 2, 0.22 * np.ptp(columns)) * 1.15 + 4
    y, x = np.indices((SIZE, SIZE), np.float32)
    pool = np.exp(-(((x - center - 0.12 * reach) / reach) ** 2) * 1.6 - ((y - bottom + 1) / max(0.20 * reach, 3.0)) ** 2)
    return np.clip(np.rint(scene * (1 - strength * pool[..., None])), 0, 255).astype(np.uint8)


def remove_object(image: np.ndarray, mask: np.ndarray, rng: np.random.Generator, *, smooth: bool = False) -> np.ndarray:
    """Take the whole object away, with its halo, and rebuild what it hid (`fill`).

    Args:
        image: (224, 224, 3) uint8.
        mask: (224, 224) bool.
        rng: draws the patch search.
        smooth: the background is out of focus: use `fill_smooth`.

    Returns:
        (224, 224, 3) uint8; pixels more than `HOLE_MARGIN` + `FEATHER_REACH` from the object are those of `image`.
    """
    hole = dilate(mask, HOLE_MARGIN)
    return blend(image, (fill_smooth if smooth else fill)(image, hole, rng), feather(hole))


def replace_identity(mask: np.ndarray, behind: np.ndarray, target: CutOut, *, stands: bool = True, cover: float = 1.0) -> np.ndarray:
    """Put another object where one was: same place, about the same size, toned towards the light of the scene.

    Args:
        mask: (224, 224) bool, where the old object was.
        behind: (224, 224, 3) uint8, the scene without it.
        target: the new object; it is cropped to its alpha and keeps its proportions.
        stands: align the bottoms (and cast a shadow), else the centres.
        cover: size relative to the largest that fits the old object's box.

    Returns:
        (224, 224, 3) uint8.
    """
    rows, columns = np.nonzero(mask)
    box_h, box_w = np.ptp(rows) + 1, np.ptp(columns) + 1
    inner_y, inner_x = np.nonzero(target.alpha > 0.02)
    crop = np.s_[inner_y.min() : inner_y.max() + 1, inner_x.min() : inner_x.max() + 1]
    color, alpha = target.color[crop], target.alpha[crop]
    height, width = alpha.shape
    # Between "fits the box" and "has the box's area": thin boxes would else make tiny targets, as towers in place of cups.
    fits, area = min(box_h / height, box_w / width), np.sqrt(box_h * box_w / (height * width))
    smallest = 0.55 * max(box_h, box_w) / max(height, width)
    tallest = (rows.max() - 5) / height if stands else np.inf
    scale = min(cover * max((fits * area) ** 0.5, smallest), 1.02 * SIZE / max(height, width), tallest)
    size = max(8, round(width * scale)), max(8, round(height * scale))
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    color, alpha = cv2.resize(color, size, interpolation=method), np.clip(cv2.resize(alpha, size, interpolation=method), 0, 1)
    base = rows.max() if stands else (rows.min() + rows.max() + size[1]) // 2
    top, left = int(base + 1 - size[1]), int((columns.min() + columns.max() + 1 - size[0]) // 2)
    full_color, full_alpha = place(np.clip(color, 0, 255), alpha, top, left)
    toned = _harmonize(full_color, full_alpha, behind)
    return blend(cast_shadow(behind, full_alpha) if stands else behind, toned, full_alpha)


def place(color: np.ndarray, alpha: np.ndarray, top: int, left: int) -> tuple[np.ndarray, np.ndarray]:
    """A small layer set into a full (224, 224) one; what hangs over the frame is cut."""
    shift = np.array([[1, 0, left], [0, 1, top]], np.float32)
    layers = [
        cv2.warpAffine(part.astype(np.float32), shift, (SIZE, SIZE), flags=cv2.INTER_NEAREST, borderMode=cv2.BORDER_CONSTANT, borderValue=0)
        for part in (color, alpha)
    ]
    return layers[0], layers[1]


def _harmonize(color: np.ndarray, alpha: np.ndarray, scene: np.ndarray, amount: float = 0.22) -> np.ndarray:
    """Move the layer's mean colour a little towards the scene's, in CIELAB, so that both seem lit by the same light."""
    inside = alpha > 0.5
    if not inside.any():
        return color
    layer = cv2.cvtColor(color.astype(np.float32) / 255, cv2.COLOR_RGB2LAB)
    whole = cv2.cvtColor(scene.astype(np.float32) / 255, cv2.COLOR_RGB2LAB)
    layer += amount * (whole.reshape(-1, 3).mean(0) - layer[inside].mean(0))
    return cv2.cvtColor(layer, cv2.COLOR_LAB2RGB).clip(0, 1) * 255


def null_edit(image: np.ndarray, *, quality: int = 85) -> np.ndarray:
    """The picture once through a lossy codec (JPEG, full chroma): no visible change, yet not the same pixels (section S5.2's null edit)."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="JPEG", quality=quality, subsampling=0)
    return np.asarray(Image.open(buffer).convert("RGB"))


def _lab(color: tuple[int, int, int]) -> np.ndarray:
    return cv2.cvtColor(np.array([[color]], np.float32) / 255, cv2.COLOR_RGB2LAB)[0, 0]


def _one_of(name: str, known: dict[str, Any], what: str) -> Any:
    if name not in known:
        raise ValueError(f"unknown {what} {name!r}: one of {list(known)}")
    return known[name]
