"""A release folder is read whole or not at all: every kind of fault is named, and none of it reaches a cache."""

from __future__ import annotations

import csv
import io
import json
import os
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from datasets import ClassLabel, Image, List, Value, load_dataset
from PIL import Image as Pillow

import decodehub  # noqa: F401  (registers the bare name)
from decodehub.core.files import home, sha256_bytes
from decodehub.hub_datasets.eeg_editbench.builder import EEGEditBench, resolve_folder
from decodehub.hub_datasets.eeg_editbench.manifest import MANIFEST, ManifestError, read_release, release_fingerprint
from decodehub.hub_datasets.eeg_editbench.taxonomy import load_taxonomy
from decodehub.loaders.images import decode_image, encode_png

Rows = list[dict[str, Any]]
# The release of two concepts has these rows: 1 release; 2, 3 sources; 4 to 8 edits of concept0; 9 to 14 of concept1; 15 the rejected one.
FIRST_EDIT, IDENTITY, COLOR, BACKGROUND = 4, 4, 6, 8
REMOVED = object()


@pytest.fixture
def release(tmp_path: Path, make_release: Callable[..., Path]) -> Path:
    return make_release(tmp_path / "two", concepts=2)


def read_rows(folder: Path) -> Rows:
    return [json.loads(line) for line in (folder / MANIFEST).read_text(encoding="utf-8").split("\n") if line]


def write_rows(folder: Path, rows: Rows) -> None:
    (folder / MANIFEST).write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def set_field(number: int, **changes: Any) -> Callable[[Path, Rows], Rows]:
    def change(_: Path, rows: Rows) -> Rows:
        row = {**rows[number - 1], **changes}
        rows[number - 1] = {k: v for k, v in row.items() if v is not REMOVED}
        return rows

    return change


def replace_row(number: int, row: Any) -> Callable[[Path, Rows], Rows]:
    return lambda _, rows: [*rows[: number - 1], row, *rows[number:]]


def drop_rows(first: int, last: int) -> Callable[[Path, Rows], Rows]:
    return lambda _, rows: rows[: first - 1] + rows[last:]


def copy_field(source: int, target: int, field: str) -> Callable[[Path, Rows], Rows]:
    return lambda folder, rows: set_field(target, **{field: rows[source - 1][field]})(folder, rows)


def escape_by_link(folder: Path, rows: Rows) -> Rows:
    outside = folder.parent / "outside.png"
    outside.write_bytes((folder / rows[3]["image"]).read_bytes())
    (folder / "link.png").symlink_to(outside)
    return set_field(FIRST_EDIT, image="link.png")(folder, rows)


def escape_by_folder_link(folder: Path, rows: Rows) -> Rows:
    (folder.parent / "elsewhere").mkdir()
    (folder.parent / "elsewhere" / "a.png").write_bytes(b"x")
    (folder / "link").symlink_to(folder.parent / "elsewhere")
    return set_field(FIRST_EDIT, image="link/a.png")(folder, rows)


def annex_link(folder: Path, rows: Rows) -> Rows:
    (folder / rows[3]["image"]).unlink()
    (folder / rows[3]["image"]).symlink_to("../.git/annex/objects/xx/yy/SHA256E-s10--00.png/SHA256E-s10--00.png")
    return rows


MALFORMED: dict[str, tuple[Callable[[Path, Rows], Rows], list[str]]] = {
    "the row kind is unknown": (set_field(5, row="edits"), ["row 5", "'row' must be one of ['release', 'source', 'edit']", "'edits'"]),
    "the row kind is a list": (set_field(5, row=["edit"]), ["row 5", "'row' must be one of", "['edit']"]),
    "a row is no object": (replace_row(5, [1, 2]), ["row 5", "'row' must be one of", "found None"]),
    "the release row is missing": (drop_rows(1, 1), ['the first row must be {"row": "release", ...}']),
    "the release row comes late": (lambda _, rows: [rows[1], rows[0], *rows[2:]], ['the first row must be {"row": "release", ...}']),
    "there are two release rows": (lambda _, rows: [*rows, rows[0]], ["row 16", "a second release row", "keep one release a folder"]),
    "the schema is newer": (set_field(1, schema_version=2), ["row 1", "schema_version 2 is newer than 1", "update decodehub"]),
    "the schema is no number": (set_field(1, schema_version="1"), ["row 1", "schema_version", "found '1'"]),
    "the release name has a space": (set_field(1, release="my release"), ["row 1", "release", "'my release'"]),
    "there is no source": (drop_rows(2, 15), ["no source row"]),
    "the family is missing": (set_field(5, family=REMOVED), ["row 5", "family", "Field required"]),
    "the family is unknown": (
        set_field(5, family="style"),
        ["row 5", "family", "'identity', 'attribute', 'background' or 'removal'", "'style'"],
    ),
    "the subtype is of another family": (
        set_field(COLOR, subtype="near"),
        ["row 6", "family 'attribute' needs a subtype of ['color', 'material', 'texture', 'shape', 'state'], found 'near'"],
    ),
    "the subtype is missing": (set_field(COLOR, subtype=None), ["row 6", "needs a subtype of", "found None"]),
    "the family has no subtypes": (set_field(BACKGROUND, subtype="color"), ["row 8", "family 'background' has no subtypes, found 'color'"]),
    "an identity edit has no target": (
        set_field(IDENTITY, target_concept=None),
        ["row 4", "target_concept belongs to every identity edit"],
    ),
    "a background edit has a target": (
        set_field(BACKGROUND, target_concept="concept1"),
        ["row 8", "target_concept belongs to every identity edit and to no other, found 'concept1' for 'background'"],
    ),
    "an edit is its own target": (
        set_field(IDENTITY, target_concept="concept0"),
        ["row 4", "'concept0-identity-near'", "replaces 'concept0' by itself"],
    ),
    "an edit_id is there twice": (copy_field(4, 5, "edit_id"), ["row 5", "edit_id 'concept0-identity-near' is there twice", "unique"]),
    "an edit_id is a path": (set_field(5, edit_id="../a"), ["row 5", "edit_id", "'../a'"]),
    "a concept is a path": (set_field(2, concept="a/../../b"), ["row 2", "concept", "'a/../../b'"]),
    "a concept is there twice": (copy_field(2, 3, "concept"), ["row 3", "concept 'concept0' has a second source"]),
    "an image is there twice": (
        copy_field(4, 5, "image"),
        ["row 5", "image 'edits/concept0-identity-near.png' already belongs to row 4", "each row has its own file"],
    ),
    "an image is there twice, spelled differently": (
        set_field(5, image="edits/../edits/./concept0-identity-near.png"),
        ["row 5", "already belongs to row 4", "each row has its own file"],
    ),
    "an edit has no source": (
        set_field(5, concept="nothing"),
        ["row 5", "edit 'concept0-identity-far' is of concept 'nothing', which has no source row"],
    ),
    "an image is missing": (set_field(5, image="edits/none.png"), ["row 5", "edits/none.png"]),
    "an image is a folder": (set_field(5, image="edits"), ["row 5", "edits"]),
    "an image is empty text": (set_field(5, image=""), ["row 5", "image"]),
    "a path leads up": (set_field(5, image="../two.png"), ["row 5", "path '../two.png' leads out of its folder"]),
    "a path is absolute": (set_field(5, image="/etc/hostname"), ["row 5", "path '/etc/hostname' must be relative"]),
    "a path has a backslash": (set_field(5, image="edits\\a.png"), ["row 5", "must be relative, with '/' between its parts"]),
    "a path has a NUL": (set_field(5, image="edits/\0.png"), ["row 5", "must be relative"]),
    "a link leads out": (escape_by_link, ["row 4", "path 'link.png' leads out of its folder"]),
    "a linked folder leads out": (escape_by_folder_link, ["row 4", "path 'link/a.png' leads out of its folder"]),
    "an image is an annex link": (
        annex_link,
        ["row 4", "'edits/concept0-identity-near.png' is a link to", "SHA256E-s10--00.png, which is not there", "run 'datalad get'"],
    ),
    "one vote decides nothing": (set_field(5, votes=[True]), ["row 5", "votes [True] decide nothing", "a third must vote"]),
    "two votes are a tie": (set_field(5, votes=[True, False]), ["row 5", "votes [True, False] decide nothing"]),
    "there are four votes": (set_field(5, votes=[True] * 4), ["row 5", "votes"]),
    "a vote is a number": (set_field(5, votes=[1, 1]), ["row 5", "votes.0"]),
    "kept is against the votes": (
        set_field(5, votes=[False, True, False]),
        ["row 5", "kept is True but the votes [False, True, False] say False"],
    ),
    "rejected is against the votes": (set_field(5, kept=False), ["row 5", "kept is False but the votes [True, False, True] say True"]),
    "some null images only": (set_field(2, null_image=None), ["1 of 2 sources have a null_image; give all or none"]),
    "the category is unknown": (set_field(2, source_category="plant"), ["row 2", "source_category", "'plant'"]),
    "a distance is negative": (set_field(5, visual_distance=-0.1), ["row 5", "visual_distance", "found -0.1"]),
    "a distance is NaN": (set_field(5, visual_distance=float("nan")), ["row 5", "visual_distance"]),
    "a field is unknown": (set_field(5, colour="red"), ["row 5", "colour", "Extra inputs are not permitted"]),
    "an instruction is empty": (set_field(5, instruction=""), ["row 5", "instruction"]),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_manifest_is_named(release: Path, case: str) -> None:
    change, words = MALFORMED[case]
    write_rows(release, change(release, read_rows(release)))
    with pytest.raises(ManifestError) as error:
        read_release(release)
    assert str(error.value).startswith(str(release / MANIFEST))
    for word in words:
        assert word in str(error.value)
    with pytest.raises(ManifestError) as loaded:
        load_dataset("eeg-editbench", split="test", data_dir=str(release))
    assert str(loaded.value) == str(error.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["does not exist", "a release folder holds manifest.jsonl"]),
        (b"", ["is empty"]),
        (b"\n\n", ["the first row must be"]),
        (b'{"row": "release"\n', ["row 1", "not JSON", "one object a line"]),
        (b"[" * 100_000, ["row 1", "not JSON"]),
        (b'{"row": "release", "schema_version": ' + b"9" * 5000 + b"}", ["row 1", "not JSON"]),
        (b"\xff\xfe{}", ["UTF-8"]),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", ["Git LFS pointer", "git lfs pull"]),
        (b"../../.git/annex/objects/xx/yy/SHA256E-s10--00", ["git-annex pointer", "'datalad get' or 'git annex get'"]),
    ],
)
def test_a_manifest_that_cannot_be_read_is_named(release: Path, content: bytes | None, words: list[str]) -> None:
    (release / MANIFEST).unlink()
    if content is not None:
        (release / MANIFEST).write_bytes(content)
    with pytest.raises(ManifestError) as error:
        load_dataset("eeg-editbench", split="test", data_dir=str(release))
    for word in [str(release / MANIFEST), *words]:
        assert word in str(error.value)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"nowhere is not a folder: give the folder that holds manifest\.jsonl"):
        load_dataset("eeg-editbench", split="test", data_dir=str(tmp_path / "nowhere"))


def png_of_size(width: int, height: int) -> bytes:
    """A small file whose header promises many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 10)) + chunk(b"IEND", b"")


def whole_png() -> bytes:
    return encode_png(np.random.default_rng(5).integers(0, 255, (64, 64, 3), dtype=np.uint8))


BAD_IMAGES: dict[str, tuple[bytes, list[str]]] = {
    "no image": (b"hello, this is text", ["cannot be read as an image", "check that the file is whole and one of PNG, JPEG"]),
    "half a PNG": (whole_png()[:5000], ["cut short or damaged, fetch it again"]),
    "a PNG header alone": (whole_png()[:20], ["cannot be read as an image"]),
    "a pixel bomb": (png_of_size(100_000, 100_000), ["too large to decode safely", "shrink it first"]),
    "56 million pixels": (png_of_size(8_000, 7_000), ["8000 x 7000 pixels, more than the 50,000,000 allowed", "shrink it first"]),
    "empty": (b"", ["is empty"]),
    "a Git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", ["Git LFS pointer", "'git lfs pull'"]),
    "a git-annex pointer": (b"/annex/objects/SHA256E-s10--00.png\n", ["git-annex pointer", "'datalad get' or 'git annex get'"]),
}


@pytest.mark.parametrize("case", BAD_IMAGES)
@pytest.mark.parametrize(("number", "owner"), [(5, "edit 'concept0-identity-far'"), (3, "source of concept 'concept1'")])
def test_a_bad_image_is_named_and_leaves_nothing_behind(release: Path, tmp_path: Path, case: str, number: int, owner: str) -> None:
    content, words = BAD_IMAGES[case]
    image = release / read_rows(release)[number - 1]["image"]
    good = image.read_bytes()
    image.write_bytes(content)
    cache = tmp_path / "cache"
    with pytest.raises(ManifestError) as error:
        load_dataset("eeg-editbench", split="test", data_dir=str(release), cache_dir=str(cache))
    for word in [str(release / MANIFEST), owner, str(image), *words]:
        assert word in str(error.value)
    assert not list(cache.rglob("*.arrow")) and not list(cache.rglob("dataset_info.json")) and not list(cache.rglob("*.incomplete"))
    with pytest.raises(ManifestError):
        list(load_dataset("eeg-editbench", split="test", data_dir=str(release), streaming=True))
    image.write_bytes(good)
    data = load_dataset("eeg-editbench", split="test", data_dir=str(release), cache_dir=str(cache))
    assert data["edit_id"][:] == [edit.edit_id for edit in read_release(release).edits] and len(data) == 11


def test_a_bad_null_image_and_a_bad_rejected_image_are_found_where_they_are_read(release: Path, tmp_path: Path) -> None:
    (release / "nulls/concept1.png").write_bytes(b"no image")
    (release / "edits/rejected.png").write_bytes(b"no image")
    for config, owner in (("sources", "source of concept 'concept1'"), ("candidates", "edit 'rejected'")):
        with pytest.raises(ManifestError, match=owner):
            load_dataset("eeg-editbench", config, split="test", data_dir=str(release), cache_dir=str(tmp_path / "cache"))


def test_damaged_images_raise_nothing_but_value_errors() -> None:
    # A library that decodes foreign bytes has many error classes of its own; none may reach the user as it is.
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (24, 24, 3), dtype=np.uint8)
    originals = []
    for kind in ("PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"):
        buffer = io.BytesIO()
        Pillow.fromarray(pixels).save(buffer, format=kind)
        originals.append(buffer.getvalue())
    for original in originals:
        assert decode_image(original).size == (24, 24)
        for _ in range(400):
            data = bytearray(original)
            for position in rng.integers(0, min(len(data), int(rng.choice([60, 2000]))), rng.integers(1, 6)):
                data[position] = rng.integers(256)
            if rng.integers(3) == 0:
                del data[rng.integers(len(data)) :]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    decode_image(bytes(data), name="damaged")
                except ValueError as error:
                    assert "damaged" in str(error)


def test_formats_that_start_other_programs_are_not_opened() -> None:
    buffer = io.BytesIO()
    Pillow.new("RGB", (8, 8)).save(buffer, format="EPS")
    with pytest.raises(ValueError, match="page cannot be read as an image"):
        decode_image(buffer.getvalue(), name="page")


# What is accepted ------------------------------------------------------------------------------------------------------------------------


def test_a_byte_order_mark_blank_lines_and_windows_line_ends_are_accepted(release: Path) -> None:
    expected = read_release(release)
    text = (release / MANIFEST).read_bytes()
    (release / MANIFEST).write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n\r\n"))
    assert read_release(release) == expected


def test_a_line_separator_within_a_text_does_not_end_the_row(release: Path) -> None:
    rows = read_rows(release)
    rows[4]["instruction"] = "Put it on\u2028the moon,\u0085please"
    write_rows(release, rows)
    assert read_release(release).candidates[1].instruction == rows[4]["instruction"]


def test_a_link_within_the_folder_is_accepted(release: Path) -> None:
    target = release / read_rows(release)[3]["image"]
    target.rename(release / "objects.png")
    target.symlink_to(release / "objects.png")
    assert load_dataset("eeg-editbench", split="test", data_dir=str(release))[0]["edited_sha256"] == sha256_bytes(target.read_bytes())


# What is loaded --------------------------------------------------------------------------------------------------------------------------


def test_the_tables_are_the_manifest_in_its_order(release: Path) -> None:
    rows = read_rows(release)
    rows = [rows[0], rows[2], rows[1], *rows[:2:-1]]  # neither sorted nor grouped as written
    write_rows(release, rows)
    sources, candidates = rows[1:3], rows[3:]
    edits = [row for row in candidates if row["kept"]]
    image = lambda relative: sha256_bytes((release / relative).read_bytes())  # noqa: E731
    order = ["concept1", "concept0"]
    table = {c: load_dataset("eeg-editbench", c, split="test", data_dir=str(release)) for c in ("edits", "sources", "candidates")}

    assert table["sources"]["concept"][:] == order and table["sources"]["concept_index"][:] == [0, 1]
    assert table["sources"]["source_sha256"][:] == [image(row["image"]) for row in sources]
    assert table["sources"]["null_sha256"][:] == [image(row["null_image"]) for row in sources]
    for config, expected in (("edits", edits), ("candidates", candidates)):
        data = table[config]
        assert data["edit_id"][:] == [row["edit_id"] for row in expected]
        assert data["concept_index"][:] == [order.index(row["concept"]) for row in expected]
        for field in ("concept", "target_concept", "instruction", "visual_distance"):
            assert data[field][:] == [row[field] for row in expected]
        for field in ("family", "subtype"):
            names = [None if v is None else data.features[field].int2str(v) for v in data[field]]
            assert names == [row[field] for row in expected]
        assert data["edited_sha256"][:] == [image(row["image"]) for row in expected]
        assert data["source_sha256"][:] == [image(f"sources/{row['concept']}.png") for row in expected]
    assert table["candidates"]["votes"][:] == [row["votes"] for row in candidates]
    assert table["candidates"]["kept"][:] == [row["kept"] for row in candidates]
    assert sum(not kept for kept in table["candidates"]["kept"]) == 1 and "votes" not in table["edits"].features
    for data in table.values():
        assert set(data["release"]) == {"tiny"}
        assert "release tiny: Random pixels" in data.info.description and data.info.license == "cc0-1.0"
        assert "2607.27857" in data.info.citation

    undecoded = table["edits"].cast_column("edited_image", Image(decode=False))[3]
    assert undecoded["edited_image"]["bytes"] == (release / edits[3]["image"]).read_bytes()
    assert undecoded["edited_image"]["path"] == Path(edits[3]["image"]).name
    pixels = np.asarray(decode_image((release / edits[3]["image"]).read_bytes()))
    assert np.array_equal(np.asarray(table["edits"][3]["edited_image"]), pixels)


def test_the_columns_have_their_types(release: Path) -> None:
    data = load_dataset("eeg-editbench", "candidates", data_dir=str(release))
    assert list(data) == ["test"]
    features, taxonomy = data["test"].features, load_taxonomy()
    assert features["source_image"] == Image() and features["edited_image"] == Image()
    assert features["family"] == ClassLabel(names=["identity", "attribute", "background", "removal"])
    assert features["subtype"] == ClassLabel(names=["near", "medium", "far", "color", "material", "texture", "shape", "state"])
    assert features["source_category"] == ClassLabel(names=list(taxonomy.categories))
    assert features["votes"] == List(Value("bool")) and features["visual_distance"] == Value("float64")
    sources = load_dataset("eeg-editbench", "sources", split="test", data_dir=str(release))
    assert sources.features["image"] == Image() and sources.features["null_image"] == Image()


def test_a_release_without_null_images_and_distances_has_none(tmp_path: Path, make_release: Callable[..., Path]) -> None:
    folder = make_release(tmp_path / "bare", concepts=2, nulls=False, distances=False)
    sources = load_dataset("eeg-editbench", "sources", split="test", data_dir=str(folder))
    assert sources["null_image"][:] == [None, None] and sources["null_sha256"][:] == [None, None]
    assert set(load_dataset("eeg-editbench", split="test", data_dir=str(folder))["visual_distance"]) == {None}


def test_the_cache_key_is_the_content(release: Path, tmp_path: Path) -> None:
    def key() -> str:
        return EEGEditBench(data_dir=str(release), cache_dir=str(tmp_path / "cache")).hash

    first, fingerprint = key(), release_fingerprint(read_release(release))
    assert key() == first
    moved = tmp_path / "moved"
    release.rename(moved)
    release.symlink_to(moved)
    assert key() == first  # the place is not content

    image = release / "edits/concept0-identity-near.png"
    before, stat = image.read_bytes(), image.stat()
    data = load_dataset("eeg-editbench", split="test", data_dir=str(release), cache_dir=str(tmp_path / "cache"))
    changed = encode_png(255 - np.asarray(decode_image(before)))
    image.write_bytes(changed)
    os.utime(image, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as 'rsync -a' or 'cp -p' would leave it
    assert key() != first and release_fingerprint(read_release(release)) != fingerprint
    again = load_dataset("eeg-editbench", split="test", data_dir=str(release), cache_dir=str(tmp_path / "cache"))
    assert again[0]["edited_sha256"] == sha256_bytes(changed) != data[0]["edited_sha256"]
    assert again[1]["edited_sha256"] == data[1]["edited_sha256"]

    image.write_bytes(before)
    assert key() == first
    rows = read_rows(release)
    rows[4]["instruction"] = "Another instruction."
    write_rows(release, rows)
    assert key() != first


def test_streaming_gives_the_same_rows(release: Path) -> None:
    plain = load_dataset("eeg-editbench", split="test", data_dir=str(release)).cast_column("edited_image", Image(decode=False))
    stream = load_dataset("eeg-editbench", split="test", data_dir=str(release), streaming=True)
    assert isinstance(stream, datasets.IterableDataset)
    assert [row["edited_sha256"] for row in stream] == plain["edited_sha256"][:]
    assert next(iter(stream))["edited_image"].size == (16, 16)


def test_data_files_and_a_folder_for_the_sample_are_refused(release: Path) -> None:
    with pytest.raises(
        ValueError, match=r"eeg-editbench takes data_dir= \(a folder with manifest\.jsonl and its images\), not data_files="
    ):
        load_dataset("eeg-editbench", data_files="a.csv")
    with pytest.raises(ValueError, match='config "sample" is the embedded sample and takes no data_dir'):
        load_dataset("eeg-editbench", "sample", data_dir=str(release))


def test_the_configured_folder_is_used_and_the_sample_says_so(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_release: Callable[..., Path]
) -> None:
    def loaded(*args: str, **kwargs: Any) -> tuple[set[str], list[str]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            data = load_dataset("eeg-editbench", *args, split="test", **kwargs)
        return set(data["release"]), [str(w.message) for w in caught if "SAMPLE" in str(w.message)]

    # The sample is not built anew in a home of its own: the one that all tests share is linked to.
    shared_home = home()
    resolve_folder("sample")
    own = tmp_path / "home"
    own.mkdir()
    for folder in shared_home.iterdir():
        if folder.name != "eeg-editbench":
            (own / folder.name).symlink_to(folder)
    monkeypatch.setenv("DECODEHUB_HOME", str(own))

    names, said = loaded()
    assert names == {"sample"} and len(said) == 1
    for word in ("its scores say nothing about the benchmark", "data_dir=FOLDER", str(own / "eeg-editbench"), "$DECODEHUB_ORG"):
        assert word in said[0]
    assert loaded("sample") == ({"sample"}, [])
    assert loaded(data_dir="sample") == ({"sample"}, [])

    make_release(own / "eeg-editbench", concepts=2, release="2.0")
    assert loaded() == ({"2.0"}, [])
    assert loaded(data_dir=str(release)) == ({"tiny"}, [])
    assert loaded("sample") == ({"sample"}, [])


# The taxonomy ----------------------------------------------------------------------------------------------------------------------------


def test_the_taxonomy_has_the_numbers_of_the_paper() -> None:
    taxonomy = load_taxonomy()
    assert {f.name: f.count for f in taxonomy.families} == {"identity": 780, "attribute": 979, "background": 199, "removal": 179}
    assert {f.name: f.concepts for f in taxonomy.families} == {"identity": 198, "attribute": 200, "background": 199, "removal": 179}
    counts = {s.name: s.count for f in taxonomy.families for s in f.subtypes}
    assert [counts[name] for name in ("near", "medium", "far")] == [266, 280, 234]
    assert [counts[name] for name in ("color", "material", "texture", "shape", "state")] == [231, 199, 198, 156, 195]
    for family in taxonomy.families:
        assert not family.subtypes or sum(s.count for s in family.subtypes) == family.count
    assert sum(f.count for f in taxonomy.families) == taxonomy.edits == 2137
    assert (taxonomy.candidates, taxonomy.sources, len(taxonomy.concepts)) == (2210, 200, 200)
    names = [concept.name for concept in taxonomy.concepts]
    assert names == sorted(set(names))
    assert {c.category for c in taxonomy.concepts} == set(taxonomy.categories)
    assert sum(c.category == "other" for c in taxonomy.concepts) == 3
    with pytest.raises(KeyError):
        taxonomy.subtypes_of("style")


RULE = {  # as the comment in taxonomy.yaml states it; the first that applies wins
    "animal": {"animal", "bird", "insect"},
    "vehicle": {"vehicle"},
    "food": {"food", "fruit", "vegetable", "drink", "dessert"},
    "clothing": {"clothing", "clothing accessory"},
    "tool": {"tool", "kitchen tool", "weapon"},
    "other": {"plant"},
}


def test_names_images_and_categories_are_those_of_things(shared: Path) -> None:
    folder = shared / "data" / "things_eeg2"
    with (folder / "things_eeg2_test_concepts_200.csv").open(encoding="utf-8") as f:
        test = list(csv.DictReader(f))
    with (folder / "things_1854_concepts.csv").open(encoding="utf-8") as f:
        things = {row["uniqueID"]: row for row in csv.DictReader(f)}
    concepts = load_taxonomy().concepts
    assert [(c.name, c.image) for c in concepts] == [(row["concept_id"], row["image_file"]) for row in test]
    for concept in concepts:
        row = things[concept.name]
        assert row["split_eeg2"] == "test"
        text = row["category_manual"] or row["category_bottom_up_raters"] or row["category_top_down_wordnet"]
        found = {part.strip() for part in text.split(",")}
        assert concept.category == next((name for name, kinds in RULE.items() if kinds & found), "artifact"), (concept.name, text)
