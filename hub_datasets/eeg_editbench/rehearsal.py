"""The rehearsal release: EEG-EditBench at full size from public cut-outs, to try a whole evaluation before the real release is at hand.

Objects are photographic stamps of Tux Paint (Debian package ``tuxpaint-stamps-default``), composited with a contact shadow on scenes made
from photographs in installed packages, then edited by `editor`. Because the scene behind an object is known, a removal is the scene itself,
without shadow and without inpainting traces, unlike the real benchmark's. Counts by family and subtype are those of table S2, scaled to
the number of concepts.

`edit_plan` says what is to be made, `make_edit` makes one image from its item, `build_rehearsal` runs all as a job that can be resumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from decodehub.core.code import code_hash
from decodehub.core.files import canonical_json, sha256_file, sha256_json, write_bytes
from decodehub.core.jobs import raise_if_failed, run_job
from decodehub.loaders.images import encode_png

from . import editor, editor_pixels, sample
from .editor_pixels import SIZE, CutOut, rng_for
from .manifest import MANIFEST, EditRow, Release, ReleaseRow, SourceRow, write_manifest
from .sample import Subject
from .sample_folder import MASKS, PACKAGES
from .stamps import Stamp, choose_concepts, find_stamps, read_stamp, resize
from .taxonomy import load_taxonomy

RELEASE = "rehearsal-stamps"
N_CONCEPTS = 200
LICENSE = "GPL-2+ (tuxpaint-stamps, copyright 2002-2022 Bill Kendrick and contributors) for the objects; for the scenes see notes"
_STATES: dict[str, tuple[str, ...]] = {
    "animal": ("wet", "dirty", "frosted", "mossy"), "food": ("frosted", "mossy", "charred", "wet", "dirty"),
    "clothing": ("wet", "dirty", "faded"),
    "vehicle": ("rusty", "dirty", "frosted", "charred", "mossy"), "tool": ("rusty", "dirty", "cracked", "frosted"),
    "artifact": ("cracked", "dirty", "mossy", "frosted", "wet"), "other": ("frosted", "charred", "wet", "faded"),
}  # fmt: skip


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
    cut = resize(cut, reach / max(cut.alpha.shape))
    height, width = cut.alpha.shape
    base = int(SIZE * rng.uniform(0.86, 0.93)) if stamp.stands else int(SIZE / 2 + height / 2 + rng.uniform(-9, 9))
    left = int(np.clip((SIZE - width) / 2 + rng.uniform(-14, 14), 4, SIZE - width - 4))
    color, alpha = editor.place(cut.color, cut.alpha, base - height, left)
    alpha[editor_pixels.dilate(alpha > 0.5, -2)] = 1.0  # or the old scene would shimmer through the object in a new one
    behind = vary_scene(scene, f"{stamp.kind}/{key}")
    image = editor_pixels.blend(editor.cast_shadow(behind, alpha) if stamp.stands else _drop_shadow(behind, alpha, scene), color, alpha)
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


def _pixels(item: EditItem, key: str = "source") -> np.ndarray:
    subject = compose(item.stamp, item.scene, key)
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
    preferences: tuple[Callable[[Stamp], bool], ...] = {
        "near": (lambda other: other.group == stamp.group, partial(_is_kin, stamp)),
        "medium": (lambda other: _is_kin(stamp, other) and _has_role(stamp, other), partial(_is_kin, stamp), partial(_has_role, stamp)),
        "far": (
            lambda other: other.category != stamp.category and other.stands == stamp.stands,
            lambda other: other.category != stamp.category,
        ),
    }[level]
    choices = next(filter(None, ([other for other in free if fits(other)] for fits in preferences)), free)
    if not choices:
        raise ValueError(f"{stamp.kind!r} has no other concept left as an identity target: ask for more concepts")
    chosen = choices[int(rng.integers(len(choices)))]
    used.add(chosen.kind)
    return chosen


def _is_kin(stamp: Stamp, other: Stamp) -> bool:
    return other.category == stamp.category and other.group != stamp.group


def _has_role(stamp: Stamp, other: Stamp) -> bool:
    """Whether a stamp of another folder stands or lies as this one does, and in the same kind of scene."""
    return other.group != stamp.group and other.stands == stamp.stands and bool(set(other.scenes) & set(stamp.scenes))


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
        decodehub.core.jobs.JobFailed: some images failed; the others are kept, there is no manifest, and a restart tries the failed ones again.
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


@cache
def _rehearsal_code() -> str:
    return code_hash(__name__, packages=PACKAGES, data=(MASKS,))


def _settings_hash(items: list[EditItem]) -> str:
    """Hash of all that the images depend on: code and imaging packages, the plan, the bytes of the stamps."""
    stamps = {stamp.path: stamp for item in items for stamp in (item.stamp, item.target) if stamp is not None}
    plan = [[i.image, i.scene, i.family, i.subtype, i.value, i.stamp.kind, i.target.kind if i.target else None] for i in items]
    return sha256_json([_rehearsal_code(), plan, {stamp.kind: sha256_file(path) for path, stamp in stamps.items()}])


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


def build_training_images(
    stamps: Path, folder: Path, release: Release, *, per_stamp: int = 10, edits_per_image: int = 2, progress: bool = True
) -> Path:
    """Composite the stamps that are no concepts of a rehearsal release on scenes, as images to train on; concepts are disjoint.

    Args:
        stamps: see `find_stamps`.
        folder: gets ``images/NAME-K.png``, ``edits/NAME-K-FAMILY.png`` and, when all are there, ``training.jsonl`` (one object a line with
            ``image``, ``concept``, ``caption``, ``source_category`` and ``scene``) and ``training_edits.jsonl`` (``image``, ``edit_of``,
            ``family``), for hard negatives. Resumable like `build_rehearsal`.
        release: the rehearsal release whose concepts must not appear, neither in an image nor in an edit.
        per_stamp: pictures of each stamp, each with its own scene, place and size (THINGS-EEG2 has 10 a concept).
        edits_per_image: edits of each picture, at most one of each family.
        progress: show a bar.

    Returns:
        The path of ``training.jsonl``.

    Raises:
        FileNotFoundError: no stamps.
        ValueError: every stamp is a concept of the release already, or more edits are asked for than there are families.
        decodehub.core.jobs.JobFailed: some images failed.
    """
    left = training_stamps(stamps, release)
    if not left:
        raise ValueError(f"all stamps in {stamps} are concepts of {release.folder}: build that release with fewer concepts")
    alone = len({stamp.kind for stamp in left}) == 1
    families = [family.name for family in load_taxonomy().families if family.name != "identity" or not alone]
    if not 0 <= edits_per_image <= len(families):
        raise ValueError(f"edits_per_image must be 0 to {len(families)}, one a family at most, found {edits_per_image}")
    items: dict[str, tuple[EditItem, str]] = {}
    for stamp in left:
        for number in range(per_stamp):
            name = f"{stamp.group.replace('/', '_')}_{stamp.path.stem}-{number + 1}".lower()
            key, scene = f"training-{stamp.path.stem}-{number}", stamp.scenes[number % len(stamp.scenes)]
            source = EditItem(f"images/{name}.png", stamp.kind, stamp, scene, "source")
            rng = rng_for(RELEASE, "training edits", name)
            drawn = [families[i] for i in sorted(rng.permutation(len(families))[:edits_per_image])]
            edits = [_training_edit(source, family, f"edits/{name}-{family}.png", left, rng) for family in drawn]
            items |= {item.image: (item, key) for item in (source, *edits)}
    targets = {image: item.target and sha256_file(item.target.path) for image, (item, _) in items.items()}
    plan = {image: [sha256_file(i.stamp.path), i.scene, i.family, i.subtype, i.value, targets[image]] for image, (i, _) in items.items()}
    report = run_job(
        items,
        lambda item: encode_png(_pixels(*item)),
        folder,
        sha256_json([_rehearsal_code(), plan]),
        progress=progress,
        label="training images",
    )
    raise_if_failed(report, "training images")
    return _write_training_tables(folder, items)


def _write_training_tables(folder: Path, items: dict[str, tuple[EditItem, str]]) -> Path:
    """``training_edits.jsonl`` and then ``training.jsonl``, whose path is returned; `items` by image, sources before their edits."""
    pictures, edited, source_of = [], [], {}
    for image, (item, key) in items.items():
        if item.family == "source":
            source_of[key] = image
            row = {"concept": item.concept, "caption": item.stamp.caption, "source_category": item.stamp.category, "scene": item.scene}
            pictures.append(canonical_json({"image": image, **row}))
        else:
            edited.append(canonical_json({"image": image, "edit_of": source_of[key], "family": item.family}))
    write_bytes(folder / "training_edits.jsonl", "".join(f"{line}\n" for line in edited).encode())
    write_bytes(folder / "training.jsonl", "".join(f"{line}\n" for line in pictures).encode())
    return folder / "training.jsonl"


def _training_edit(source: EditItem, family: str, image: str, others: list[Stamp], rng: np.random.Generator) -> EditItem:
    """A random edit of a training image: any attribute, any scene of its kind, any other training stamp that stands or lies as it does."""
    subtype, value, target = None, "", None
    if family == "attribute":
        subtype = str(rng.choice([sub.name for sub in next(f for f in load_taxonomy().families if f.name == family).subtypes]))
    if family in ("attribute", "background"):
        value = _values(source.stamp, family, subtype, source.scene, rng)[0]
    if family == "identity":
        free = [other for other in others if other.kind != source.stamp.kind]
        same = [other for other in free if other.stands == source.stamp.stands]
        target = (same or free)[int(rng.integers(len(same or free)))]
    return source._replace(image=image, family=family, subtype=subtype, value=value, target=target)
