"""The rehearsal release: EEG-EditBench at full size from public cut-outs, to try a whole evaluation before the real release is at hand.

Objects are photographic stamps of Tux Paint (Debian package ``tuxpaint-stamps-default``), composited with a contact shadow on scenes made
from photographs in installed packages, then edited by `editor`. Because the scene behind an object is known, a removal is the scene itself,
without shadow and without inpainting traces, unlike the real benchmark's. Counts by family and subtype are those of table S2, scaled to
the number of concepts.

`edit_plan` says what is to be made, `make_edit` makes one image from its item, `build_rehearsal` runs all as a job that can be resumed.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

from decodehub.files import canonical_json, sha256_file, sha256_json, write_bytes
from decodehub.jobs import raise_if_failed, run_job
from decodehub.loaders.images import MAX_BYTES, MAX_PIXELS, encode_png

from . import editor, sample
from .editor import SIZE, CutOut, rng_for
from .manifest import MANIFEST, Category, EditRow, Release, ReleaseRow, SourceRow, write_manifest
from .sample import Subject
from .taxonomy import load_taxonomy

RELEASE = "rehearsal-stamps"
N_CONCEPTS = 200
LICENSE = "GPL-2+ (tuxpaint-stamps, copyright 2002-2022 Bill Kendrick and contributors) for the objects; for the scenes see notes"
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
_STATES: dict[str, tuple[str, ...]] = {
    "animal": ("wet", "dirty", "frosted", "mossy"), "food": ("frosted", "mossy", "charred", "wet", "dirty"),
    "clothing": ("wet", "dirty", "faded"),
    "vehicle": ("rusty", "dirty", "frosted", "charred", "mossy"), "tool": ("rusty", "dirty", "cracked", "frosted"),
    "artifact": ("cracked", "dirty", "mossy", "frosted", "wet"), "other": ("frosted", "charred", "wet", "faded"),
}  # fmt: skip


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


class EditItem(NamedTuple):
    """All that one image of the release depends on: what to make of which stamp on which scene; `image` is its path in the release."""

    image: str
    concept: str
    stamp: Stamp
    scene: str
    family: str  # of the taxonomy, or "source" or "null"
    subtype: str | None = None
    value: str = ""  # attribute value or new scene
    target: Stamp | None = None
    number: int = 1


# Stamps ---------------------------------------------------------------------------------------------------------------------------------


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
    return _resize(CutOut(pixels[box][..., :3], alpha[box]), min(1.0, SIZE / max(pixels[box].shape[:2])))


def _resize(cut: CutOut, scale: float) -> CutOut:
    """A cut-out at another scale; colours are averaged by alpha so that no fringe appears."""
    height, width = cut.alpha.shape
    size = max(2, round(width * scale)), max(2, round(height * scale))
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    alpha = np.clip(cv2.resize(cut.alpha, size, interpolation=method), 0, 1)
    color = cv2.resize(cut.color * cut.alpha[..., None], size, interpolation=method) / np.maximum(alpha, 1e-3)[..., None]
    return CutOut(np.clip(color, 0, 255), alpha)


# Pictures -------------------------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def vary_scene(name: str, key: str) -> np.ndarray:
    """One of `sample.SCENE_WORDS`' scenes as `key` sees it: another crop, mirrored or not, lighter or darker, a little out of focus."""
    rng = rng_for(RELEASE, "scene", name, key)
    side = int(SIZE * rng.uniform(0.72, 1.0))
    top, left = (int(corner) for corner in rng.integers(0, SIZE - side + 1, 2))
    if name in ("meadow", "gravel_yard", "terrace"):
        top = SIZE - side  # ground scenes keep their lower edge, so that the ground stays where objects stand
    view = cv2.resize(sample.scene(name)[top : top + side, left : left + side], (SIZE, SIZE), interpolation=cv2.INTER_CUBIC)
    view = view[:, ::-1] if rng.random() < 0.5 else view
    view = cv2.GaussianBlur(view, (0, 0), rng.uniform(0.4, 2.0)).astype(np.float32)
    tone = rng.uniform(0.76, 1.04) * (1 + rng.uniform(-0.08, 0.08, 3))
    return np.clip(np.rint(view * tone + rng.normal(0, 1.2, (SIZE, SIZE, 1))), 0, 255).astype(np.uint8)


@lru_cache(maxsize=4)
def compose(stamp: Stamp, scene: str, key: str) -> Subject:
    """A stamp on its scene: the picture of a concept with all that edits need (mask, clean scene, cut-out in place)."""
    rng = rng_for(RELEASE, "compose", stamp.kind, scene, key)
    cut = read_stamp(stamp.path)
    # Small stamps are enlarged at most threefold: more would be mush.
    reach = min(rng.uniform(0.60, 0.78) * SIZE, 3.0 * max(cut.alpha.shape))
    cut = _resize(cut, reach / max(cut.alpha.shape))
    height, width = cut.alpha.shape
    base = int(SIZE * rng.uniform(0.86, 0.93)) if stamp.stands else int(SIZE / 2 + height / 2 + rng.uniform(-9, 9))
    left = int(np.clip((SIZE - width) / 2 + rng.uniform(-14, 14), 4, SIZE - width - 4))
    color, alpha = editor.place(cut.color, cut.alpha, base - height, left)
    alpha[editor.dilate(alpha > 0.5, -2)] = 1.0  # or the old scene would shimmer through the object in a new one
    behind = vary_scene(scene, f"{stamp.kind}/{key}")
    image = editor.blend(editor.cast_shadow(behind, alpha) if stamp.stands else _drop_shadow(behind, alpha, scene), color, alpha)
    return Subject(image, alpha > 0.5, alpha > 0.5, behind, CutOut(color, alpha), CutOut(color, alpha), stamp.stands)


def _drop_shadow(scene: np.ndarray, alpha: np.ndarray, name: str) -> np.ndarray:
    """The shadow of a thing that lies on a surface seen from above: its own outline, moved and soft. Things in the air throw none."""
    if name not in ("table", "gravel", "lawn", "brick_wall"):
        return scene
    shadow = cv2.GaussianBlur(np.roll(alpha, (5, 4), (0, 1)), (0, 0), 4.0)
    return np.clip(np.rint(scene * (1 - 0.5 * shadow[..., None])), 0, 255).astype(np.uint8)


def make_edit(item: EditItem) -> bytes:
    """PNG bytes of one image of the release: a pure function of its item.

    Raises:
        ValueError: the stamp is damaged or empty.
    """
    return encode_png(_pixels(item))


def _pixels(item: EditItem) -> np.ndarray:
    subject = compose(item.stamp, item.scene, "source")
    if item.family == "source":
        return subject.image
    if item.family == "null":
        return editor.null_edit(subject.image)
    if item.family == "removal":
        return subject.behind
    if item.family == "background":
        assert subject.own is not None
        scene = vary_scene(item.value, f"{item.concept}/background")
        return editor.replace_background(subject.image, subject.mask, scene, cut=subject.own, shadow=item.stamp.stands)
    if item.family == "identity":
        assert item.target is not None
        return editor.replace_identity(subject.mask, subject.behind, read_stamp(item.target.path), stands=item.stamp.stands)
    rng = rng_for(RELEASE, item.concept, item.subtype or "", item.value)
    return sample.attribute_edit(subject, item.subtype or "", item.value, rng, anchor="bottom" if item.stamp.stands else "center")


# The plan -------------------------------------------------------------------------------------------------------------------------------


def subtype_counts(n_concepts: int) -> dict[tuple[str, str | None], int]:
    """How many edits of each (family, subtype) a release of `n_concepts` has: table S2 scaled from its 200 concepts, at least one each."""
    counts: dict[tuple[str, str | None], int] = {}
    for family in load_taxonomy().families:
        rows: list[tuple[str | None, int]] = [(subtype.name, subtype.count) for subtype in family.subtypes]
        for name, count in rows or [(None, family.count)]:
            counts[family.name, name] = max(1, round(count * n_concepts / N_CONCEPTS))
    return counts


def edit_plan(stamps: Path, *, n_concepts: int = N_CONCEPTS) -> list[EditItem]:
    """Every image of the release, in the order of its manifest: for each concept its source, its null edit, its edits.

    Only names and colours of the stamps are read, so the plan is cheap; it is the same for the same stamps.

    Args:
        stamps: see `find_stamps`.
        n_concepts: how many concepts; at least 5, for identity targets must be found among the others.

    Raises:
        FileNotFoundError: no stamps; the message says how to get them.
        ValueError: fewer stamps than concepts asked for, or fewer than 5 asked for.
    """
    if n_concepts < 5:
        raise ValueError(f"n_concepts must be at least 5 (identity edits need other concepts), found {n_concepts}")
    concepts = choose_concepts(find_stamps(stamps), n_concepts)
    wanted: dict[str, Counter[tuple[str, str | None]]] = {stamp.kind: Counter() for stamp in concepts}
    # Each concept gets count // n edits of a subtype; the rest goes to concepts drawn for that subtype.
    for (family, subtype), count in subtype_counts(n_concepts).items():
        order = rng_for(RELEASE, "plan", family, subtype or "", str(n_concepts)).permutation(n_concepts)
        for index in range(count):
            wanted[concepts[order[index % n_concepts]].kind][family, subtype] += 1
    items: list[EditItem] = []
    for stamp in concepts:
        items += _concept_items(stamp, wanted[stamp.kind], concepts)
    return items


def _concept_items(stamp: Stamp, wanted: Counter[tuple[str, str | None]], concepts: list[Stamp]) -> list[EditItem]:
    rng = rng_for(RELEASE, "choices", stamp.kind)
    scene = str(rng.choice(stamp.scenes))
    items = [EditItem(f"{family}s/{stamp.kind}.png", stamp.kind, stamp, scene, family) for family in ("source", "null")]
    used: set[str] = {stamp.kind}
    for family, subtype in subtype_counts(N_CONCEPTS):
        values = _values(stamp, family, subtype, scene, rng)
        for number in range(1, wanted[family, subtype] + 1):
            target = _target(stamp, subtype or "", concepts, used, rng) if family == "identity" else None
            name = "-".join(filter(None, (stamp.kind, family, subtype, str(number))))
            value = values[number - 1] if values else ""
            items.append(EditItem(f"edits/{name}.png", stamp.kind, stamp, scene, family, subtype, value, target, number))
    return items


def _values(stamp: Stamp, family: str, subtype: str | None, scene: str, rng: np.random.Generator) -> list[str]:
    """Attribute values or background scenes to choose from, in drawn order."""
    if subtype == "color":
        # Among the half of the palette farthest from the object's own colour, so that the change shows.
        cut = read_stamp(stamp.path)
        names = editor.colors_by_contrast(cut.color, cut.alpha > 0.5)[:5]
    elif family == "background":
        names = sorted(set(stamp.scenes) - {scene}) or sorted(set(sample.SCENE_WORDS) - {scene})
    else:
        names = {"material": [*editor.MATERIALS], "texture": [*editor.TEXTURES], "shape": [*editor.SHAPES],
                 "state": [*_STATES[stamp.category]]}.get(subtype or "", [])  # fmt: skip
    return [str(name) for name in rng.permutation(names)] if names else []


def _target(stamp: Stamp, level: str, concepts: list[Stamp], used: set[str], rng: np.random.Generator) -> Stamp:
    """Another concept: near = of the same folder, medium = of another folder in the same kind of scene, far = of another category."""
    free = [other for other in concepts if other.kind not in used]
    near = [other for other in free if other.group == stamp.group]
    kin = [other for other in free if other.category == stamp.category and other not in near]
    same_role = [other for other in free if other.stands == stamp.stands and set(other.scenes) & set(stamp.scenes)]
    role = [other for other in same_role if other.group != stamp.group]
    far = [other for other in free if other.category != stamp.category]
    choices = {
        "near": near or kin or free,
        "medium": [other for other in kin if other in role] or kin or role or free,
        "far": [other for other in far if other.stands == stamp.stands] or far or free,
    }[level]
    if not choices:
        raise ValueError(f"{stamp.kind!r} has no other concept left as an identity target: ask for more concepts")
    chosen = choices[int(rng.integers(len(choices)))]
    used.add(chosen.kind)
    return chosen


# The release ----------------------------------------------------------------------------------------------------------------------------


def build_rehearsal(stamps: Path, folder: Path, *, n_concepts: int = N_CONCEPTS, progress: bool = True) -> Release:
    """Make the rehearsal release in `folder`. It can be stopped at any time: a restart makes only the images that are missing.

    Args:
        stamps: the folder that Debian's ``tuxpaint-stamps-default`` was unpacked to.
        folder: the release; images made under other settings (code, stamps, number of concepts) are made anew.
        n_concepts: 200 for the size of the paper.
        progress: show a bar.

    Returns:
        The release, checked.

    Raises:
        FileNotFoundError, ValueError: no stamps, or too few (see `edit_plan`).
        decodehub.jobs.JobFailed: some images failed; the others are kept, there is no manifest, and a restart tries the failed ones again.
    """
    folder = Path(folder)
    items = edit_plan(stamps, n_concepts=n_concepts)
    settings = _settings_hash(items)
    name = f"decodehub classical editor, rehearsal settings {settings.removeprefix('sha256:')[:12]}"
    # An old manifest must not stand beside images that are being replaced.
    (folder / MANIFEST).unlink(missing_ok=True)
    report = run_job({item.image: item for item in items}, make_edit, folder, settings, progress=progress, label="rehearsal images")
    raise_if_failed(report, "rehearsal images")
    header = ReleaseRow(
        release=RELEASE, title="Rehearsal of EEG-EditBench from Tux Paint stamps", license=LICENSE, editor=name,
        notes="A rehearsal release, NOT EEG-EditBench: public cut-outs composited on photographic scenes, edited by classical image "
        "processing and not reviewed by people. Removals are the clean scene behind the object, not an inpainted image. Identity levels "
        "follow the stamps' folders. Null edits are JPEG round trips. Scenes: " + sample.LICENSE,
    )  # fmt: skip
    sources = [
        SourceRow(concept=item.concept, image=item.image, null_image=f"nulls/{item.concept}.png", source_category=item.stamp.category,
                  attribution=f"Tux Paint stamp {item.stamp.group}/{item.stamp.path.name} ({item.stamp.caption}), GPL-2+")
        for item in items if item.family == "source"
    ]  # fmt: skip
    return write_manifest(folder, header, sources, [_row(item) for item in items if item.family not in ("source", "null")])


def _settings_hash(items: list[EditItem]) -> str:
    """Hash of all that the images depend on: code and imaging packages, the plan, the bytes of the stamps."""
    code = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    stamps = {stamp.path: stamp for item in items for stamp in (item.stamp, item.target) if stamp is not None}
    plan = [[i.image, i.scene, i.family, i.subtype, i.value, i.stamp.kind, i.target.kind if i.target else None] for i in items]
    return sha256_json([sample.CODE_HASH, code, plan, {stamp.kind: sha256_file(path) for path, stamp in stamps.items()}])


def _row(item: EditItem) -> EditRow:
    words = item.stamp.words
    if item.family == "identity":
        assert item.target is not None
        instruction = sample.identity_instruction(words, item.target.words)
    elif item.family == "attribute":
        instruction = sample.attribute_instruction(words, item.subtype or "", item.value)
    elif item.family == "background":
        instruction = sample.background_instruction(words, item.value)
    else:
        instruction = sample.removal_instruction(words)
    row = {"edit_id": Path(item.image).stem, "concept": item.concept, "image": item.image, "family": item.family, "subtype": item.subtype,
           "target_concept": item.target.kind if item.target else None, "instruction": instruction}  # fmt: skip
    return EditRow.model_validate(row)


# Training images ------------------------------------------------------------------------------------------------------------------------


def training_stamps(stamps: Path, release: Release) -> list[Stamp]:
    """The photographic stamps whose kind is no concept of `release` (flowers and gravestones without a name included)."""
    taken = {source.concept for source in release.sources}
    return [stamp for stamp in find_stamps(stamps) if stamp.kind not in taken]


def build_training_images(stamps: Path, folder: Path, release: Release, *, per_stamp: int = 10, progress: bool = True) -> Path:
    """Composite the stamps that are no concepts of a rehearsal release on scenes, as images to train on; concepts are disjoint.

    Args:
        stamps: see `find_stamps`.
        folder: gets ``images/NAME-K.png`` and, when all are there, ``training.jsonl``: one object a line with ``image``, ``concept``,
            ``caption``, ``source_category`` and ``scene``. Resumable like `build_rehearsal`.
        release: the rehearsal release whose concepts must not appear.
        per_stamp: pictures of each stamp, each with its own scene, place and size (THINGS-EEG2 has 10 a concept).
        progress: show a bar.

    Returns:
        The path of ``training.jsonl``.

    Raises:
        FileNotFoundError: no stamps.
        ValueError: every stamp is a concept of the release already.
        decodehub.jobs.JobFailed: some images failed.
    """
    left = training_stamps(stamps, release)
    if not left:
        raise ValueError(f"all stamps in {stamps} are concepts of {release.folder}: build that release with fewer concepts")
    items: dict[str, tuple[Stamp, str, int]] = {}
    for stamp in left:
        for number in range(per_stamp):
            name = f"{stamp.group.replace('/', '_')}_{stamp.path.stem}-{number + 1}".lower()
            items[f"images/{name}.png"] = (stamp, stamp.scenes[number % len(stamp.scenes)], number)
    code = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    settings = sha256_json([sample.CODE_HASH, code, {image: [sha256_file(item[0].path), item[1]] for image, item in items.items()}])
    report = run_job(items, _make_training, folder, settings, progress=progress, label="training images")
    raise_if_failed(report, "training images")
    lines = [
        canonical_json({"image": image, "concept": s.kind, "caption": s.caption, "source_category": s.category, "scene": scene})
        for image, (s, scene, _) in items.items()
    ]
    write_bytes(folder / "training.jsonl", ("\n".join(lines) + "\n").encode())
    return folder / "training.jsonl"


def _make_training(item: tuple[Stamp, str, int]) -> bytes:
    stamp, scene, number = item
    return encode_png(compose(stamp, scene, f"training-{stamp.path.stem}-{number}").image)
