"""The photographic cut-outs of Tux Paint (Debian package ``tuxpaint-stamps-default``): which there are, what they show, their pixels."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

from decodehub.loaders.images import MAX_BYTES, MAX_PIXELS

from .editor_pixels import SIZE, CutOut
from .manifest import Category

HOW_TO_GET = (
    "get Debian's package and unpack it (no installation, no root): apt-get download tuxpaint-stamps-default && "
    "dpkg-deb -x tuxpaint-stamps-default_*.deb stamps; then give the folder 'stamps'"
)
_INSIDE = Path("usr/share/tuxpaint/stamps")

# Drawings, symbols, glows and groups among the stamps, found by looking at all of them: folders, then stems.
_NOT_PHOTOS = {"cartoon", "symbols", "roadsigns", "flags", "easter", "hanukkah", "newyears", "naturalforces", "body_parts", "hats", "toys"}
_NOT_PHOTOS_STEMS = re.compile(
    r"^(t_.*|.*_mirror|button|bee|hedgehog|echidna|pizza|tooth|glass|walnut_shelled|rugby_goal_posts|inukshuk-outline|sedan_police"
    r"|final-roll-call|explosion|0_sun|moon_crescent|Santa|bow|candy_cane|hard_candy|lamp|santahat|star|stocking|tree|xmas_tp_bulb|bat_left"
    r"|blackcat|ghost|jackolantern_mean|skull|spider|holiday_candle|menorah|fire|lightningbolt|pen_dryerase|highlighter|syringe)$"
)
_RENAMED = {
    "tucan": "toucan", "nandou": "rhea", "xanthia": "moth", "7spoke256": "car_wheel", "747": "airplane", "tree336": "pili_nut_tree",
    "plyers": "pliers", "adeenia": "desert_rose", "anthoorium": "anthurium", "bolsom": "balsam", "chemparathi": "hibiscus",
    "appooppanthady": "milkweed", "liberia_palm": "palm_tree", "chinesejunk": "chinese_junk", "walnutboat": "sailboat",
    "wheel_tractor": "tractor_wheel", "ww_german_gun": "tank_destroyer", "bradley": "bradley_tank", "kiwi": "kiwifruit",
    "camera_mm": "camera", "heron_greatblue": "great_blue_heron", "heron_greatblue_flying": "flying_heron", "chilepepper": "chile_pepper",
    "balloon": "hot_air_balloon", "sportscar": "sports_car", "garbagetruck": "garbage_truck", "firetruck": "fire_truck",
    "dumper": "dumper_truck", "indycar": "race_car", "pig_golden": "tamworth_pig", "spacewalk": "spacewalker", "f_raptor": "fighter_jet",
    "infantry_stryker": "armored_carrier", "chuvanna_plastic_poo": "plastic_flower", "moon_qt": "waning_moon", "truck": "pickup_truck",
    "firemana": "fireman", "firemanb": "fireman", "cow_white": "cow", "donkey_eating": "donkey", "rabbit_little": "rabbit",
    "gnu_baby": "gnu", "gnu_baby_stand": "gnu", "gnu_sitting": "gnu", "gnu_stand": "gnu", "tiger_sumatran": "tiger",
    "european_bear": "bear", "apricot_whole": "apricot", "helmeted_guineafowl": "guineafowl", "guitar": "electric_guitar",
    "guitar_electric": "electric_guitar", "guitar_electric_bass": "electric_guitar", "guitar_classical": "classical_guitar",
    "apple_fuji": "apple", "apple_granny_smith": "apple", "apple_green": "apple", "apple_red": "apple", "apple_sierra_beauty": "apple",
    "garlics": "garlic", "clothespin_new": "clothespin", "clothespin_old": "clothespin",
    "redlettuce": "lettuce", "lettuce_bolted": "bolted_lettuce", "scissors_small_closed": "scissors", "scissors_small_open": "scissors",
    "moon_full": "full_moon", "wrench_adjustable": "wrench", "wrench_plumbers": "wrench",
    "christmas_tree_photo": "christmas_tree", "candy_cane_photo": "candy_cane", "german_christmas_toy": "wooden_figure",
    "drum_tomtom_floor": "floor_drum", "cymbal_crash": "cymbal", "mallet_metal": "mallet", "orange_seville": "seville_orange",
    "cherry_stella": "cherries", "chicken_profile": "chicken", "rhino_black": "rhinoceros", "cylinder": "gas_cylinder",
    "bluegroper": "blue_groper",
    "pumpkin_small": "pumpkin", "pitcher_small": "pitcher", "paintbrush_large": "paintbrush", "yellowpepper": "yellow_pepper",
    "tamarin_emperor": "emperor_tamarin", "inukshuk_photo": "inukshuk", "sheep_lamb": "lamb", "bandage_adhesive": "bandage",
    "mercurythermometer": "thermometer", "coraltrout": "coral_trout", "moonwrasse": "moon_wrasse", "stripedfish": "striped_fish",
    "mountaingoat": "mountain_goat", "xmaswreath": "wreath", "soccer": "soccer_ball", "beetle": "beetle_car", "rubberduck": "rubber_duck",
    "cementmixer": "cement_mixer", "garbagecan": "garbage_can", "wheelie_bin": "wheeled_bin", "wildboar": "wild_boar",
}  # fmt: skip

_TYPES: tuple[tuple[str, Category, tuple[str, ...], bool], ...] = (  # folder prefix -> category, scenes, does it stand on the ground?
    ("animals/fish", "animal", ("garden", "lake", "night_sky"), False),
    ("animals/mammals/aquatic", "animal", ("lake", "garden", "night_sky"), False),
    ("animals/insects", "animal", ("lawn", "garden", "gravel", "table"), False),
    ("animals/shellfish", "animal", ("gravel", "table"), False),
    ("animals", "animal", ("meadow", "gravel_yard", "terrace"), True),
    ("plants/mushrooms", "food", ("meadow", "lawn", "table"), True),
    ("plants/trees", "other", ("meadow", "terrace", "gravel_yard"), True),
    ("plants", "other", ("garden", "lawn", "sky", "brick_wall"), False),
    ("food", "food", ("table", "gravel", "lawn", "brick_wall"), False),
    ("seasonal/halloween", "artifact", ("meadow", "gravel_yard"), True),
    ("vehicles/flight", "vehicle", ("sky", "lake", "night_sky"), False),
    ("military/vehicles/f22_raptor", "vehicle", ("sky", "night_sky"), False),
    ("vehicles/ship", "vehicle", ("lake", "sky"), False),
    ("military/paratrooper", "other", ("sky", "lake"), False),
    ("military/vehicles", "vehicle", ("meadow", "gravel_yard"), True),
    ("vehicles", "vehicle", ("terrace", "gravel_yard", "meadow"), True),
    ("space", "artifact", ("deep_space", "night_sky"), False),
    ("clothes", "clothing", ("table", "gravel"), False),
    ("household/tools", "tool", ("table", "gravel", "lawn", "brick_wall"), False),
    ("household/arttools", "tool", ("table", "gravel"), False),
    ("household/dishes/utensils", "tool", ("table", "lawn"), False),
    ("medical", "tool", ("table", "gravel"), False),
    ("people", "other", ("gravel_yard", "terrace"), True),
    ("household", "artifact", ("gravel_yard", "terrace"), True),
    ("", "artifact", ("table", "gravel", "terrace", "brick_wall"), False),
)


class Stamp(NamedTuple):
    """One cut-out: `path` of its PNG, `kind` (the concept name it stands for), `group` (its folder), category, English caption, scenes."""

    path: Path
    kind: str
    group: str
    category: Category
    caption: str
    scenes: tuple[str, ...]
    stands: bool
    size: int  # longer side in pixels

    @property
    def words(self) -> str:
        return self.kind.replace("_", " ")


def find_stamps(stamps: Path) -> list[Stamp]:
    """The photographic cut-outs below a folder, sorted by path; drawings and symbols are left out.

    Args:
        stamps: the folder that the package was unpacked to, or its ``usr/share/tuxpaint/stamps``.

    Raises:
        FileNotFoundError: no such folder, or no stamp in it; the message says how to get them.
    """
    stamps = Path(stamps)
    root = stamps / _INSIDE if (stamps / _INSIDE).is_dir() else stamps
    found = [_stamp(path, root) for path in sorted(root.rglob("*.png")) if _is_photo(path.relative_to(root))] if root.is_dir() else []
    if not found:
        raise FileNotFoundError(f"no Tux Paint stamps in {stamps}: {HOW_TO_GET}")
    return found


def _is_photo(relative: Path) -> bool:
    folders = set(relative.parts[:-1])
    return not (folders & _NOT_PHOTOS) and not _NOT_PHOTOS_STEMS.match(relative.stem)


def _stamp(path: Path, root: Path) -> Stamp:
    relative = path.relative_to(root)
    name = relative.with_suffix("").as_posix()
    _, category, scenes, stands = next(row for row in _TYPES if name.startswith(row[0]))
    caption = path.with_suffix(".txt")
    text = caption.read_text(encoding="utf-8", errors="replace").splitlines() if caption.is_file() else []
    raw = relative.stem.lower().replace("-", "_")
    kind = raw if raw in _RENAMED else re.sub(r"_+", "_", re.sub(r"\d+", "", raw)).strip("_")
    kind = _RENAMED.get(kind, kind) or raw
    with Image.open(path) as image:
        size = max(image.size)
    return Stamp(path, kind, relative.parent.as_posix(), category, text[0].strip() if text else "", scenes, stands, size)


def choose_concepts(found: list[Stamp], n_concepts: int) -> list[Stamp]:
    """One stamp a kind (the largest); of the kinds a fixed lottery among those with pictures large enough, then the largest; by name.

    Raises:
        ValueError: there are fewer kinds than asked for.
    """
    best: dict[str, Stamp] = {}
    for stamp in found:
        if stamp.kind not in best or stamp.size > best[stamp.kind].size:
            best[stamp.kind] = stamp
    # Kinds named only "flower" or "grave a" say too little to be a concept of their own.
    kinds = [stamp for stamp in best.values() if not re.match(r"^(flower|grave)(_|$)", stamp.kind)]
    if len(kinds) < n_concepts:
        raise ValueError(f"{len(kinds)} kinds of photographic stamps found, {n_concepts} asked for: ask for fewer, or {HOW_TO_GET}")
    kinds.sort(key=lambda stamp: (-min(stamp.size, 70), hashlib.sha256(stamp.kind.encode()).digest()))
    return sorted(kinds[:n_concepts], key=lambda stamp: stamp.kind)


@lru_cache(maxsize=16)
def read_stamp(path: Path) -> CutOut:
    """A stamp cropped to its alpha: colour (h, w, 3) float32 0..255, alpha (h, w) float32 0..1, longer side at most 224.

    Raises:
        ValueError: too large a file or picture, or nothing opaque in it.
    """
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path} has more than {MAX_BYTES:,} bytes")
    with Image.open(path) as image:
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"{path} has {image.width} x {image.height} pixels, more than the {MAX_PIXELS:,} allowed")
        pixels = np.asarray(image.convert("RGBA"), np.float32)
    alpha = pixels[..., 3] / 255
    rows, columns = np.nonzero(alpha > 0.5)
    if len(rows) < 50:
        raise ValueError(f"{path} has no opaque object: it is not a usable stamp")
    box = np.s_[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    return resize(CutOut(pixels[box][..., :3], alpha[box]), min(1.0, SIZE / max(pixels[box].shape[:2])))


def resize(cut: CutOut, scale: float) -> CutOut:
    """A cut-out at another scale; colours are averaged by alpha so that no fringe appears."""
    height, width = cut.alpha.shape
    size = max(2, round(width * scale)), max(2, round(height * scale))
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    alpha = np.clip(cv2.resize(cut.alpha, size, interpolation=method), 0, 1)
    color = cv2.resize(cut.color * cut.alpha[..., None], size, interpolation=method) / np.maximum(alpha, 1e-3)[..., None]
    return CutOut(np.clip(color, 0, 255), alpha)
