"""The classical editor and the two releases it makes: what changes, what stays, and that equal inputs give equal bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from decodehub.core.files import sha256_bytes
from decodehub.core.jobs import JobFailed
from decodehub.hub_datasets.eeg_editbench import editor, editor_fill, editor_pixels, rehearsal, sample, sample_folder
from decodehub.hub_datasets.eeg_editbench.manifest import MANIFEST, EditRow, Release, read_release, release_fingerprint
from decodehub.hub_datasets.eeg_editbench.taxonomy import load_taxonomy

_OTHER_PROCESS = """
import sys
from pathlib import Path
from decodehub.hub_datasets.eeg_editbench.sample import build_sample
build_sample(Path(sys.argv[1]))
"""


@pytest.fixture(scope="session")
def releases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Release, Release]:
    """The sample built here and, at the same time, by a fresh process with another hash seed and one thread."""
    folder = tmp_path_factory.mktemp("sample")
    env = {**os.environ, "PYTHONHASHSEED": "77", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    other = subprocess.Popen([sys.executable, "-c", _OTHER_PROCESS, str(folder / "there")], env=env)
    here = sample.build_sample(folder / "here")
    assert other.wait(timeout=300) == 0
    return here, read_release(folder / "there")


@pytest.fixture(scope="session")
def release(releases: tuple[Release, Release]) -> Release:
    return releases[0]


@pytest.fixture(scope="session")
def subjects() -> dict[str, sample.Subject]:
    """Two subjects whose masks the tests look at: the coffee cup (refined by GrabCut) and the rocket (thin, drawn by hand)."""
    return {concept.name: sample._subject(concept) for concept in sample.CONCEPTS if concept.name in ("coffee_cup", "rocket")}


def pixels(release: Release, relative: str) -> np.ndarray:
    return np.asarray(Image.open(release.folder / relative)).astype(int)


def source_of(release: Release, concept: str) -> np.ndarray:
    return pixels(release, f"sources/{concept}.png")


def changed(first: np.ndarray, second: np.ndarray, threshold: int = 0) -> np.ndarray:
    return np.abs(first.astype(int) - second.astype(int)).max(-1) > threshold


# The sample ------------------------------------------------------------------------------------------------------------------------------


def test_sample_is_the_same_in_another_process(releases: tuple[Release, Release]) -> None:
    here, there = releases
    assert release_fingerprint(here) == release_fingerprint(there)


def test_sample_covers_the_taxonomy(release: Release) -> None:
    taxonomy = load_taxonomy()
    assert release.header.release == "sample"
    assert len(release.sources) >= 8
    assert {edit.family for edit in release.edits} == set(taxonomy.family_names)
    assert {edit.subtype for edit in release.edits if edit.subtype} == set(taxonomy.subtype_names)
    per_concept = Counter(edit.concept for edit in release.edits)
    assert min(per_concept.values()) >= 8
    assert set(per_concept) == {source.concept for source in release.sources}
    for concept in per_concept:
        assert {edit.family for edit in release.edits if edit.concept == concept} == set(taxonomy.family_names)
    assert all(source.attribution for source in release.sources)


def test_all_images_differ_and_have_the_size(release: Release) -> None:
    paths = [p for s in release.sources for p in (s.image, s.null_image)] + [e.image for e in release.candidates]
    arrays = [pixels(release, path) for path in paths if path is not None]
    assert {array.shape for array in arrays} == {(224, 224, 3)}
    assert len({array.tobytes() for array in arrays}) == len(paths)


def test_null_edits_are_close_but_not_equal(release: Release) -> None:
    for row in release.sources:
        assert row.null_image is not None
        error = (pixels(release, row.image) - pixels(release, row.null_image)) ** 2
        assert error.max() > 0
        assert 10 * np.log10(255**2 / error.mean()) > 30, row.concept


def test_attribute_edits_change_the_object_and_nothing_else(release: Release, subjects: dict[str, sample.Subject]) -> None:
    for edit in release.edits:
        if edit.family == "attribute" and edit.subtype != "shape" and edit.concept in subjects:
            mask = subjects[edit.concept].part
            difference = np.abs(pixels(release, edit.image) - source_of(release, edit.concept)).max(-1)
            assert difference[~editor_pixels.dilate(mask, editor_pixels.FEATHER_REACH + 1)].max() == 0, edit.edit_id
            assert difference[mask].mean() > 15, edit.edit_id


def test_background_edits_keep_the_object(release: Release, subjects: dict[str, sample.Subject]) -> None:
    for edit in release.edits:
        if edit.family == "background" and edit.concept in subjects:
            mask = subjects[edit.concept].mask
            different = changed(pixels(release, edit.image), source_of(release, edit.concept))
            assert not different[editor_pixels.dilate(mask, -3)].any(), edit.edit_id
            assert different[~editor_pixels.dilate(mask, 3)].mean() > 0.9, edit.edit_id


def test_removal_and_identity_change_the_place_of_the_object(release: Release, subjects: dict[str, sample.Subject]) -> None:
    for edit in release.edits:
        if edit.family in ("identity", "removal") and edit.concept in subjects:
            mask = subjects[edit.concept].mask
            different = changed(pixels(release, edit.image), source_of(release, edit.concept), 12)
            assert different[mask].mean() > 0.6, edit.edit_id
    rocket = subjects["rocket"]
    far = ~editor_pixels.dilate(rocket.mask, 60)
    assert not changed(rocket.behind, rocket.image)[far].any()


def test_identity_targets_are_other_concepts(release: Release) -> None:
    names = {source.concept for source in release.sources}
    for edit in release.edits:
        if edit.family == "identity":
            assert edit.target_concept in names - {edit.concept}
    assert all(edit.instruction.endswith(".") for edit in release.edits)


def test_build_refuses_a_folder_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match="exists already"):
        sample.build_sample(tmp_path)


def test_ensure_sample_builds_once_and_yields_to_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DECODEHUB_HOME", str(tmp_path))
    calls = []

    def slower_process(folder: Path) -> None:
        calls.append(folder)
        folder.mkdir(parents=True)
        (folder / MANIFEST).write_text("built by the other process")
        raise OSError("Directory not empty")

    monkeypatch.setattr(sample, "build_sample", slower_process)
    first = sample_folder.ensure_sample()
    assert sample_folder.ensure_sample() == first == tmp_path / "releases" / f"sample-{sample_folder.sample_code()}"
    assert len(calls) == 1


def test_failed_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "_write_release", lambda folder: (folder / "half.png").write_bytes(b"x") and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        sample.build_sample(tmp_path / "release")
    assert list(tmp_path.iterdir()) == []


# The editor ------------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def disc() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A shaded orange disc before a blue gradient: image, mask, the gradient alone."""
    y, x = np.indices((224, 224))
    behind = np.stack([40 + y // 4, 90 + x // 6, 170 - y // 5], axis=-1).astype(np.uint8)
    distance = np.hypot(y - 120, x - 110)
    mask = distance < 55
    image = behind.copy()
    image[mask] = (np.array([230, 140, 60]) * (1.05 - 0.5 * distance[mask, None] / 55)).clip(0, 255).astype(np.uint8)
    return image, mask, behind


def _surface_edits() -> list[tuple[str, str]]:
    tables = {"recolor": editor.COLORS, "rematerial": editor.MATERIALS, "retexture": editor.TEXTURES, "restate": editor.STATES}
    return [(function, value) for function, values in tables.items() for value in values]


def _edit(function: str, value: str, image: np.ndarray, mask: np.ndarray, behind: np.ndarray) -> np.ndarray:
    rng = editor_pixels.rng_for("test", value)
    if function == "recolor":
        return editor.recolor(image, mask, value)
    if function == "rematerial":
        return editor.rematerial(image, mask, value, rng, behind)
    return getattr(editor, function)(image, mask, value, rng)


@pytest.mark.parametrize(("function", "value"), _surface_edits())
def test_every_surface_edit(function: str, value: str, disc: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    image, mask, behind = disc
    before = image.copy()
    edited = _edit(function, value, image, mask, behind)
    assert edited.dtype == np.uint8
    assert edited.shape == image.shape
    assert np.array_equal(image, before), "the input was written into"
    difference = np.abs(edited.astype(int) - image).max(-1)
    assert difference[~editor_pixels.dilate(mask, editor_pixels.FEATHER_REACH)].max() == 0
    assert difference[mask].mean() > (5 if value in ("orange", "yellow") else 12)
    assert np.array_equal(edited, _edit(function, value, image, mask, behind))


@pytest.mark.parametrize("shape", editor.SHAPES)
def test_shapes_have_the_named_extent(shape: str, disc: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    image, mask, behind = disc
    edited = editor.reshape(image, mask, shape, behind)
    rows, columns = np.nonzero(changed(edited, behind, 40))
    height, width = np.ptp(rows) / 110, np.ptp(columns) / 110
    as_named = {
        "taller": height > 1.2, "shorter": height < 0.75, "wider": width > 1.25, "narrower": width < 0.75, "leaning": width > 1.03,
        "larger": min(height, width) > 1.2, "smaller": max(height, width) < 0.75, "bulged": changed(edited, image, 8)[mask].mean() > 0.2,
    }  # fmt: skip
    assert as_named[shape], (height, width)
    assert not changed(edited, behind)[:8].any()


def test_fill_continues_the_scene(disc: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    image, mask, behind = disc
    filled = editor.remove_object(image, mask, editor_pixels.rng_for("fill"))
    assert np.abs(filled.astype(int) - behind)[mask].mean() < 12
    assert not changed(filled, image)[~editor_pixels.dilate(mask, editor.HOLE_MARGIN + editor_pixels.FEATHER_REACH)].any()
    smooth = editor.remove_object(image, mask, editor_pixels.rng_for("fill"), smooth=True)
    assert np.abs(smooth.astype(int) - behind)[mask].mean() < 20


def test_a_hole_that_leaves_nothing_to_copy_is_filled_smoothly() -> None:
    image = np.full((224, 224, 3), 120, np.uint8)
    hole = np.ones((224, 224), bool)
    hole[:, :2] = False
    filled = editor_fill.fill(image, hole, editor_pixels.rng_for("nothing"))
    assert np.abs(filled[:, 2:].astype(int) - 120).mean() < 30


def test_unknown_names_are_refused(disc: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    image, mask, behind = disc
    rng = editor_pixels.rng_for("x")
    for call in (
        lambda: editor.recolor(image, mask, "octarine"),
        lambda: editor.rematerial(image, mask, "vibranium", rng, behind),
        lambda: editor.retexture(image, mask, "plain", rng),
        lambda: editor.reshape(image, mask, "gone", behind),
        lambda: editor.restate(image, mask, "sad", rng),
    ):
        with pytest.raises(ValueError, match=r"unknown .* one of"):
            call()


def test_rng_depends_on_every_part_of_the_name() -> None:
    assert editor_pixels.rng_for("a", "b").integers(2**32) == editor_pixels.rng_for("a", "b").integers(2**32)
    assert len({int(editor_pixels.rng_for(*names).integers(2**32)) for names in (("a", "b"), ("a", "c"), ("a/b", "c"), ("b", "a"))}) == 4


# The rehearsal ---------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def stamps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight drawn cut-outs in the layout of the package, and two names that it uses for cartoons, which must not become concepts."""
    root = tmp_path_factory.mktemp("stamps") / "usr/share/tuxpaint/stamps"
    names = ["animals/birds/wren", "animals/birds/robin-2", "animals/mammals/vole", "food/fruit/plum", "food/fruit/quince",
             "vehicles/auto/van", "household/tools/file", "animals/fish/cartoon/nemo", "clothes/t_sock", "household/stool"]  # fmt: skip
    y, x = np.indices((100, 100))
    for index, name in enumerate(names):
        alpha = np.hypot((y - 50) / (25 + 2 * index), (x - 50) / (45 - 2 * index)) < 1
        rgb = np.stack([(40 * index + y) % 256, (200 - 15 * index + x // 2) % 256, (90 + 7 * index) + (x * y) // 200], axis=-1)
        path = root / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.dstack([rgb, alpha * 255]).clip(0, 255).astype(np.uint8)).save(path)
        path.with_suffix(".txt").write_text(f"A {path.stem}.\nde.utf8=Ding.\n", encoding="utf-8")
    return root.parents[3]


@pytest.fixture(scope="session")
def rehearsed(stamps: Path, tmp_path_factory: pytest.TempPathFactory) -> Release:
    return rehearsal.build_rehearsal(stamps, tmp_path_factory.mktemp("rehearsal") / "release", n_concepts=7, progress=False)


def test_rehearsal_has_the_proportions_of_the_paper(rehearsed: Release) -> None:
    counts = rehearsal.subtype_counts(200)
    assert sum(counts.values()) == load_taxonomy().edits == 2137
    for family in load_taxonomy().families:
        assert sum(n for (name, _), n in counts.items() if name == family.name) == family.count
    assert Counter((edit.family, edit.subtype) for edit in rehearsed.edits) == rehearsal.subtype_counts(7)
    assert {source.concept for source in rehearsed.sources} <= {"wren", "robin", "vole", "plum", "quince", "van", "file", "stool"}
    assert "NOT EEG-EditBench" in rehearsed.header.notes
    assert "GPL-2+" in rehearsed.header.license


def test_rehearsal_images_differ_and_edits_are_local(rehearsed: Release, stamps: Path) -> None:
    digests = Counter(sha256_bytes(path.read_bytes()) for path in rehearsed.folder.rglob("*.png"))
    assert max(digests.values()) == 1
    items = {item.image: item for item in rehearsal.edit_plan(stamps, n_concepts=7)}
    for edit in rehearsed.edits:
        item = items[edit.image]
        subject = rehearsal.compose(item.stamp, item.scene, "source")
        edited, source = pixels(rehearsed, edit.image), source_of(rehearsed, edit.concept)
        assert np.array_equal(source, subject.image)
        if edit.family == "removal":
            assert np.array_equal(edited, subject.behind)
        elif edit.family == "background":
            assert not changed(edited, source)[editor_pixels.dilate(subject.mask, -3)].any()
        elif edit.subtype not in ("shape", "near", "medium", "far"):
            assert not changed(edited, source)[~editor_pixels.dilate(subject.mask, editor_pixels.FEATHER_REACH)].any()
            assert changed(edited, source, 8)[subject.mask].mean() > 0.3, edit.edit_id


def test_rehearsal_resumes_to_the_same_bytes(rehearsed: Release, stamps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    make = rehearsal.make_edit
    broken = f"edits/{rehearsed.edits[5].edit_id}.png"

    def failing(item: rehearsal.EditItem) -> bytes:
        if item.image == broken:
            raise ValueError("no paint left")
        return make(item)

    monkeypatch.setattr(rehearsal, "make_edit", failing)
    with pytest.raises(JobFailed, match="no paint left"):
        rehearsal.build_rehearsal(stamps, tmp_path / "again", n_concepts=7, progress=False)
    assert not (tmp_path / "again" / MANIFEST).exists()
    monkeypatch.setattr(rehearsal, "make_edit", lambda item: made.append(item.image) or make(item))
    again = rehearsal.build_rehearsal(stamps, tmp_path / "again", n_concepts=7, progress=False)
    assert made == [broken]
    assert release_fingerprint(again) == release_fingerprint(rehearsed)
    (again.folder / again.sources[0].image).write_bytes(b"damaged")
    repaired = rehearsal.build_rehearsal(stamps, again.folder, n_concepts=7, progress=False)
    assert release_fingerprint(repaired) == release_fingerprint(rehearsed)


def test_training_images_come_from_other_stamps(rehearsed: Release, stamps: Path, tmp_path: Path) -> None:
    listing = rehearsal.build_training_images(stamps, tmp_path, rehearsed, per_stamp=2, progress=False)
    lines = listing.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2
    assert len({path.read_bytes() for path in (tmp_path / "images").iterdir()}) == 2
    concepts = {source.concept for source in rehearsed.sources}
    assert all(f'"concept":"{name}"' not in line for line in lines for name in concepts)
    images = {json.loads(line)["image"] for line in lines}
    edits = [json.loads(line) for line in (tmp_path / "training_edits.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(edits) == 4 and {row["edit_of"] for row in edits} == images  # two of each, of different families
    assert len({(row["edit_of"], row["family"]) for row in edits}) == 4
    for row in edits:
        assert (tmp_path / row["image"]).read_bytes() != (tmp_path / row["edit_of"]).read_bytes()
    with pytest.raises(ValueError, match="one a family at most"):
        rehearsal.build_training_images(stamps, tmp_path, rehearsed, edits_per_image=9, progress=False)


def test_missing_or_few_stamps_say_how_to_get_them(stamps: Path, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(FileNotFoundError, match="apt-get download tuxpaint-stamps-default"):
            rehearsal.edit_plan(folder)
    with pytest.raises(ValueError, match=r"8 kinds .* 200 asked for.*apt-get"):
        rehearsal.edit_plan(stamps)
    with pytest.raises(ValueError, match="at least 5"):
        rehearsal.edit_plan(stamps, n_concepts=2)


def test_empty_stamp_is_refused(tmp_path: Path) -> None:
    Image.new("RGBA", (60, 60)).save(tmp_path / "void.png")
    with pytest.raises(ValueError, match="no opaque object"):
        rehearsal.read_stamp(tmp_path / "void.png")


def test_rows_are_valid(rehearsed: Release) -> None:
    assert all(isinstance(edit, EditRow) and len(edit.instruction) <= 200 for edit in rehearsed.edits)
