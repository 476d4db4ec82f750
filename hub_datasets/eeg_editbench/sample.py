"""The embedded sample of EEG-EditBench: nine photographs that installed packages carry, with edits of every kind, built in seconds.

Nothing is downloaded: the photographs lie inside the wheels of scikit-image and scikit-learn. Object outlines are drawn by hand
(``sample_masks.json``, in pixels of the 224 x 224 crop) and some are refined by GrabCut. The edits are those of `editor`; how near,
medium or far an identity target is was assigned by hand among these nine concepts, so the levels are ranks within the sample.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from decodehub.core.files import new_folder, package_folder, write_bytes
from decodehub.loaders.images import encode_png, read_image

from . import editor, editor_pixels
from .editor_pixels import SIZE, CutOut
from .manifest import Category, EditRow, Release, ReleaseRow, SourceRow, read_release, write_manifest

RELEASE = "sample"
_MASKS = Path(__file__).with_name("sample_masks.json")
SKIMAGE = package_folder("skimage") / "data"
_SKLEARN = package_folder("sklearn") / "datasets" / "images"

# As stated in skimage/data/_fetchers.py and sklearn/datasets/images/README.txt of the installed packages.
_CC0 = "CC0 1.0, photograph by {}; carried by scikit-image"
_PUBLIC = "Public domain, photograph by {}; carried by scikit-image"
_CC_BY = "CC BY 2.0, photograph by {} (flickr), cropped and edited; carried by scikit-learn"
_MUSEUM = "No known copyright restrictions, Brooklyn Museum Collection; carried by scikit-image"
LICENSE = (
    "CC0 1.0 (chelsea, coffee, camera, brick, grass, gravel); public domain (astronaut, hubble: NASA; rocket: SpaceX; coins: Brooklyn "
    "Museum); CC BY 2.0 (china: danielbuechele; flower: vultilion)"
)


class Concept(NamedTuple):
    """One sample concept: where its photograph is, how it is cropped, what is done to it. Words read after "the"."""

    name: str
    words: str
    category: Category
    photo: Path
    crop: tuple[int, int, int]  # left, top, side in pixels of the photograph
    attribution: str
    targets: dict[str, tuple[str, ...]]  # identity level -> concepts
    colors: tuple[str, ...]
    materials: tuple[str, ...]
    textures: tuple[str, ...]
    shapes: tuple[str, ...]
    states: tuple[str, ...]
    scenes: tuple[str, ...]
    stands: bool = True
    refine: bool = True  # GrabCut helps where object and background differ in colour


CONCEPTS = (
    Concept("cat", "cat", "animal", SKIMAGE / "chelsea.png", (110, 0, 300), _CC0.format("Stefan van der Walt"),
            {"near": ("photographer",), "medium": ("dahlia",), "far": ("coffee_cup",)},
            ("blue",), ("gold",), ("plaid",), ("bulged",), ("frosted", "wet"), ("night_sky",), stands=False, refine=False),
    Concept("coffee_cup", "coffee cup with its saucer", "artifact", SKIMAGE / "coffee.png", (60, 0, 400), _CC0.format("Rachel Michetti"),
            {"near": ("coin",), "medium": ("dahlia",), "far": ("cat", "pagoda")},
            ("blue",), ("marble",), ("polka_dots",), ("smaller",), ("cracked",), ("lawn",), stands=False),
    Concept("rocket", "rocket", "vehicle", SKIMAGE / "rocket.jpg", (181, 112, 300), _PUBLIC.format("SpaceX"),
            {"near": ("space_shuttle",), "medium": ("pagoda",), "far": ("photographer",)},
            ("red", "blue"), ("gold",), ("checkerboard",), ("wider",), ("rusty",), ("lake",), refine=False),
    Concept("space_shuttle", "space shuttle", "vehicle", SKIMAGE / "astronaut.png", (300, 0, 212), _PUBLIC.format("NASA"),
            {"near": ("rocket",), "medium": ("pagoda",), "far": ("dahlia", "cat")},
            ("red",), ("chrome",), ("wood_grain",), ("wider",), ("charred",), ("deep_space", "brick_wall")),
    Concept("space_helmet", "space helmet", "clothing", SKIMAGE / "astronaut.png", (252, 252, 260),
            _PUBLIC.format("NASA"),
            {"near": ("space_shuttle",), "medium": ("coin",), "far": ("dahlia",)},
            ("pink", "yellow"), ("gold",), ("stripes",), ("taller",), ("dirty",), ("deep_space",), refine=False),
    Concept("photographer", "photographer", "other", SKIMAGE / "camera.png", (0, 40, 400), _CC0.format("Lav Varshney"),
            {"near": ("cat",), "medium": ("rocket",), "far": ("pagoda",)},
            ("red",), ("chrome",), ("zigzag",), ("smaller",), ("mossy",), ("brick_wall",), refine=False),
    Concept("pagoda", "pagoda", "artifact", _SKLEARN / "china.jpg", (40, 20, 400), _CC_BY.format("danielbuechele"),
            {"near": ("rocket",), "medium": ("photographer",), "far": ("coffee_cup",)},
            ("purple",), ("jade",), ("stripes",), ("shorter",), ("frosted",), ("deep_space",)),
    Concept("dahlia", "dahlia flower", "other", _SKLEARN / "flower.jpg", (120, 50, 340), _CC_BY.format("vultilion"),
            {"near": ("cat",), "medium": ("coin",), "far": ("space_helmet",)},
            ("blue", "white"), ("chrome",), ("checkerboard",), ("smaller",), ("wet",), ("gravel",), stands=False),
    Concept("coin", "coin", "artifact", SKIMAGE / "coins.png", (298, 2, 86), _MUSEUM,
            {"near": ("coffee_cup",), "medium": ("space_helmet",), "far": ("cat",)},
            ("green",), ("glass", "copper"), ("polka_dots",), ("narrower",), ("rusty",), ("lawn",), stands=False),
)  # fmt: skip


# Scenes: photographs, or ground planes laid out from photographed textures ---------------------------------------------------------------


def crop_photo(path: Path, left: int, top: int, side: int) -> np.ndarray:
    """A square crop of a photograph as (224, 224, 3) uint8; what lies outside the photograph repeats its border."""
    pixels = np.asarray(read_image(path))
    pad = max(0, -left, -top, left + side - pixels.shape[1], top + side - pixels.shape[0])
    padded = cv2.copyMakeBorder(pixels, pad, pad, pad, pad, cv2.BORDER_REPLICATE)
    square = padded[top + pad : top + pad + side, left + pad : left + pad + side]
    return cv2.resize(square, (SIZE, SIZE), interpolation=cv2.INTER_AREA if side >= SIZE else cv2.INTER_CUBIC)


def tint(gray: np.ndarray, stops: tuple[tuple[int, int, int], ...]) -> np.ndarray:
    """A grey photograph (h, w, 3) coloured along evenly spaced sRGB `stops`, from its darkest to its lightest percentile."""
    low, high = np.percentile(gray[..., 0], (2, 98))
    value = np.clip((gray[..., 0].astype(np.float32) - low) / (high - low), 0, 1)
    at = np.linspace(0, 1, len(stops))
    return np.rint(np.stack([np.interp(value, at, [stop[c] for stop in stops]) for c in range(3)], axis=-1)).astype(np.uint8)


def ground_plane(texture: np.ndarray, above: np.ndarray, *, horizon: int = 96, near: float = 1.3, haze: float = 0.35) -> np.ndarray:
    """`texture` (h, w, 3) laid on the ground in perspective, below the `horizon` row of the scene `above` (224, 224, 3); both uint8."""
    y, x = np.indices((SIZE - horizon, SIZE), np.float32)
    distance = (SIZE - horizon) / (y + 5.0)
    u, v = (x - SIZE / 2) * distance * near + texture.shape[1] / 2, distance * SIZE * near
    laid = np.zeros((SIZE - horizon, SIZE, 3), np.float32)
    # Far ground takes its colour from blurred copies, or it would glitter.
    for level, sigma in enumerate((0.0, 1.5, 4.0, 12.0)):
        blurred = texture if sigma == 0 else cv2.GaussianBlur(texture, (0, 0), sigma, borderType=cv2.BORDER_REFLECT_101)
        layer = cv2.remap(blurred, u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
        share = np.clip(1 - np.abs(np.log2(np.maximum(distance * near, 1)) - level), 0, 1)
        if level == 3:
            share = np.where(np.log2(np.maximum(distance * near, 1)) > 3, 1, share)
        laid += layer * share[..., None]
    far = above[horizon - 6 : horizon].reshape(-1, 3).mean(0)
    veil = haze * np.clip(distance / 18, 0, 1)[..., None]
    scene = above.copy()
    scene[horizon:] = np.rint(laid * (1 - veil) + far * veil)
    edge = cv2.GaussianBlur(scene, (0, 0), 1.2)
    scene[horizon - 2 : horizon + 3] = edge[horizon - 2 : horizon + 3]
    return scene


_GRASS = ((22, 40, 10), (70, 110, 30), (168, 190, 90))
_BRICK = ((70, 34, 26), (150, 76, 56), (206, 190, 176))
_STONES = ((40, 36, 32), (128, 118, 104), (214, 206, 194))
SCENE_WORDS = {
    "lake": "a misty lake with boats", "night_sky": "a dark blue evening sky", "lawn": "a lawn seen from above",
    "meadow": "a green meadow under the sky", "gravel": "a bed of gravel", "gravel_yard": "a gravel yard before a brick wall",
    "brick_wall": "a red brick wall", "deep_space": "deep space full of galaxies",
    "garden": "dark green garden leaves", "terrace": "a brick terrace by a lake", "table": "a wooden table top", "sky": "a pale blue sky",
}  # fmt: skip


@cache
def scene(name: str) -> np.ndarray:
    """A background scene of `SCENE_WORDS`, (224, 224, 3) uint8, made from photographs in the wheels (do not write into it).

    Raises:
        KeyError: there is no such scene.
    """
    sky = crop_photo(_SKLEARN / "china.jpg", 300, 0, 300)
    sky = cv2.resize(sky[:110], (SIZE, SIZE), interpolation=cv2.INTER_CUBIC)
    grass = tint(np.asarray(read_image(SKIMAGE / "grass.png")), _GRASS)
    stones = tint(np.asarray(read_image(SKIMAGE / "gravel.png")), _STONES)
    bricks = tint(np.rot90(np.asarray(read_image(SKIMAGE / "brick.png"))).copy(), _BRICK)
    wall = cv2.resize(bricks[60:410, 60:410], (SIZE, SIZE), interpolation=cv2.INTER_AREA)
    lake = crop_photo(_SKLEARN / "china.jpg", 372, 30, 268)
    makers = {
        "lake": lambda: lake,
        "night_sky": lambda: crop_photo(SKIMAGE / "rocket.jpg", 395, 4, 125),
        "lawn": lambda: cv2.resize(grass[:360, :360], (SIZE, SIZE), interpolation=cv2.INTER_AREA),
        "meadow": lambda: ground_plane(grass, sky, horizon=112),
        "gravel": lambda: cv2.resize(stones[:400, :400], (SIZE, SIZE), interpolation=cv2.INTER_AREA),
        "gravel_yard": lambda: ground_plane(stones, wall, horizon=130, haze=0.0),
        "brick_wall": lambda: wall,
        "deep_space": lambda: crop_photo(SKIMAGE / "hubble_deep_field.jpg", 120, 150, 448),
        "garden": lambda: crop_photo(_SKLEARN / "flower.jpg", 0, 130, 160),
        "table": lambda: _subject(CONCEPTS[1]).behind,
        "sky": lambda: cv2.resize(sky[:80, :150], (SIZE, SIZE), interpolation=cv2.INTER_CUBIC),
        "terrace": lambda: ground_plane(bricks, lake, horizon=128),
    }
    return makers[name]()


# Objects --------------------------------------------------------------------------------------------------------------------------------


class Subject(NamedTuple):
    """A concept ready for editing: pixels, the whole object, the part whose surface is edited, the scene without it, its cut-out.

    `own` is the cut-out at its place in the image where it is known exactly; `shadow` says that the object throws one.
    """

    image: np.ndarray
    mask: np.ndarray
    part: np.ndarray
    behind: np.ndarray
    cutout: CutOut
    own: CutOut | None = None
    shadow: bool = False


@cache
def _outlines() -> dict[str, Any]:
    return json.loads(_MASKS.read_text(encoding="utf-8"))


def _polygon(points: list[list[int]]) -> np.ndarray:
    mask = np.zeros((SIZE, SIZE), np.uint8)
    cv2.fillPoly(mask, [np.array(points, np.int32)], 1)
    return mask > 0


def refine_mask(image: np.ndarray, mask: np.ndarray, *, slack: int = 4) -> np.ndarray:
    """A hand-drawn outline drawn to the object's edge by GrabCut, within `slack` pixels; its largest piece, without holes."""
    labels = np.full(mask.shape, cv2.GC_BGD, np.uint8)
    labels[editor_pixels.dilate(mask, slack)] = cv2.GC_PR_BGD
    labels[mask] = cv2.GC_PR_FGD
    labels[editor_pixels.dilate(mask, -slack)] = cv2.GC_FGD
    cv2.setRNGSeed(0)
    cv2.grabCut(np.ascontiguousarray(image[..., ::-1]), labels, None, np.zeros((1, 65)), np.zeros((1, 65)), 4, cv2.GC_INIT_WITH_MASK)
    found = ((labels == cv2.GC_FGD) | (labels == cv2.GC_PR_FGD)).astype(np.uint8)
    _, pieces, stats, _ = cv2.connectedComponentsWithStats(found)
    largest = (pieces == 1 + int(np.argmax(stats[1:, cv2.CC_STAT_AREA]))).astype(np.uint8)
    outlines, _ = cv2.findContours(largest, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    cv2.drawContours(largest, outlines, -1, 1, cv2.FILLED)
    return cv2.medianBlur(largest, 5) > 0


def _subject(concept: Concept) -> Subject:
    outlines = _outlines()[concept.name]
    image = crop_photo(concept.photo, *concept.crop)
    mask = _polygon(outlines["object"])
    if concept.refine:
        mask = refine_mask(image, mask)
    part = _polygon(outlines["part"]) & mask if "part" in outlines else mask
    hole = mask | _polygon(outlines["hole"]) if "hole" in outlines else mask
    behind = editor.remove_object(image, hole, editor_pixels.rng_for(RELEASE, concept.name, "removal"), smooth="smooth" in outlines)
    cutout = editor_pixels.cut_out(image, mask)
    if "cutout" in outlines:
        wider = crop_photo(concept.photo, *outlines["cutout"]["crop"])
        cutout = editor_pixels.cut_out(wider, _polygon(outlines["cutout"]["object"]))
    return Subject(image, mask, part, behind, cutout)


# Edits ----------------------------------------------------------------------------------------------------------------------------------

KEEP_ALL = "Keep the composition, the viewpoint, the background and everything else as they are."


def attribute_instruction(words: str, subtype: str, value: str) -> str:
    """The editing prompt of an attribute edit: what changes and what stays."""
    plain = value.replace("_", " ")
    change = {
        "color": f"Change the colour of the {words} to {plain}; keep its form, material and markings.",
        "material": f"Make the {words} look as if it were made of {plain}; keep its form and details.",
        "texture": f"Cover the surface of the {words} with {'a ' if plain in ('checkerboard', 'zigzag', 'plaid') else ''}{plain}"
        f"{' pattern' if plain in ('checkerboard', 'zigzag', 'plaid', 'camouflage') else ''}; keep its form, light and shade.",
        "shape": f"Make the {words} clearly {plain}; keep what it is and where it stands.",
        "state": f"Show the {words} {plain}; keep what it is, its form and its pose.",
    }[subtype]
    return f"{change} {KEEP_ALL}"


def identity_instruction(words: str, target: str) -> str:
    """The editing prompt of an identity edit."""
    article = "an" if target[0] in "aeiou" else "a"
    return f"Replace the {words} with {article} {target} of about the same size at the same place. {KEEP_ALL}"


def background_instruction(words: str, scene_name: str) -> str:
    """The editing prompt of a background edit to a scene of `SCENE_WORDS`."""
    return f"Change the background to {SCENE_WORDS[scene_name]}; keep the {words}, its look, its place and its size exactly as they are."


def removal_instruction(words: str) -> str:
    """The editing prompt of a removal."""
    return f"Remove the {words} completely and fill its place with the background around it. Keep everything else as it is."


def attribute_edit(subject: Subject, subtype: str, value: str, rng: np.random.Generator, *, anchor: str) -> np.ndarray:
    """One attribute edit as (224, 224, 3) uint8; `value` is a name of the editor's table for that subtype."""
    if subtype == "color":
        return editor.recolor(subject.image, subject.part, value)
    if subtype == "material":
        return editor.rematerial(subject.image, subject.part, value, rng, subject.behind)
    if subtype == "texture":
        return editor.retexture(subject.image, subject.part, value, rng)
    if subtype == "shape":
        return editor.reshape(subject.image, subject.mask, value, subject.behind, anchor=anchor, cut=subject.own, shadow=subject.shadow)
    return editor.restate(subject.image, subject.part, value, rng)


def _edits(concept: Concept, subject: Subject, cutouts: dict[str, CutOut], words: dict[str, str]) -> list[tuple[EditRow, np.ndarray]]:
    """Rows and pixels of all edits of one concept, in the order of the taxonomy."""
    made: list[tuple[EditRow, np.ndarray]] = []

    def add(family: str, subtype: str | None, number: int, instruction: str, pixels: np.ndarray, target: str | None = None) -> None:
        edit_id = "-".join(filter(None, (concept.name, family, subtype, str(number))))
        row = {"edit_id": edit_id, "concept": concept.name, "image": f"edits/{edit_id}.png", "family": family, "subtype": subtype,
               "target_concept": target, "instruction": instruction}  # fmt: skip
        made.append((EditRow.model_validate(row), pixels))

    for level, targets in concept.targets.items():
        for number, target in enumerate(targets, start=1):
            pixels = editor.replace_identity(subject.mask, subject.behind, cutouts[target], stands=concept.stands)
            add("identity", level, number, identity_instruction(concept.words, words[target]), pixels, target)
    values = {"color": concept.colors, "material": concept.materials, "texture": concept.textures, "shape": concept.shapes,
              "state": concept.states}  # fmt: skip
    for subtype, names in values.items():
        for number, value in enumerate(names, start=1):
            rng = editor_pixels.rng_for(RELEASE, concept.name, subtype, value)
            pixels = attribute_edit(subject, subtype, value, rng, anchor="bottom" if concept.stands else "center")
            add("attribute", subtype, number, attribute_instruction(concept.words, subtype, value), pixels)
    for number, name in enumerate(concept.scenes, start=1):
        add("background", None, number, background_instruction(concept.words, name),
            editor.replace_background(subject.image, subject.mask, scene(name)))  # fmt: skip
    add("removal", None, 1, removal_instruction(concept.words), subject.behind)
    return made


# The release ----------------------------------------------------------------------------------------------------------------------------


def build_sample(folder: Path) -> Release:
    """Make the sample release in `folder`, whole or not at all: it is built beside it and renamed into place.

    Args:
        folder: where it will be; it must not exist yet.

    Returns:
        The release, read back and checked. Its bytes depend only on this code and the versions of the imaging packages.

    Raises:
        FileExistsError: `folder` is there already.
        FileNotFoundError: a package does not carry its photograph any more.
    """
    with new_folder(folder) as work:
        _write_release(work)
    return read_release(folder)


def _write_release(folder: Path) -> None:
    subjects = {concept.name: _subject(concept) for concept in CONCEPTS}
    cutouts = {name: subject.cutout for name, subject in subjects.items()}
    words = {concept.name: concept.words for concept in CONCEPTS}
    sources: list[SourceRow] = []
    edits: list[EditRow] = []
    for concept in CONCEPTS:
        subject = subjects[concept.name]
        source = SourceRow(concept=concept.name, image=f"sources/{concept.name}.png", null_image=f"nulls/{concept.name}.png",
                           source_category=concept.category, attribution=concept.attribution)  # fmt: skip
        write_bytes(folder / source.image, encode_png(subject.image))
        write_bytes(folder / f"nulls/{concept.name}.png", encode_png(editor.null_edit(subject.image)))
        sources.append(source)
        for row, pixels in _edits(concept, subject, cutouts, words):
            write_bytes(folder / row.image, encode_png(pixels))
            edits.append(row)
    header = ReleaseRow(
        release=RELEASE, title="EEG-EditBench sample (classical edits)", license=LICENSE, editor="decodehub classical editor",
        notes="A sample to try the benchmark with, not EEG-EditBench: nine photographs from installed packages, edited by classical image "
        "processing, not reviewed by people. Identity levels are ranks among the nine concepts. Null edits are JPEG round trips.",
    )  # fmt: skip
    write_manifest(folder, header, sources, edits)
