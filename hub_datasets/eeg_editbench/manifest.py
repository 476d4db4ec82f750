"""A release of EEG-EditBench as a folder: ``manifest.jsonl`` and the images it names. Reading it is checking it.

The first row describes the release, then one row a source image, then one row a candidate edit::

    {"row": "release", "schema_version": 1, "release": "1.0", "title": "...", "license": "...", "editor": "..."}
    {"row": "source", "concept": "cheetah", "image": "sources/cheetah.png", "null_image": "nulls/cheetah.png", "source_category": "animal"}
    {"row": "edit", "edit_id": "cheetah-identity-near-1", "concept": "cheetah", "image": "edits/cheetah-identity-near-1.png",
     "family": "identity", "subtype": "near", "target_concept": "panther", "instruction": "Replace the cheetah by ...",
     "votes": [true, true], "kept": true}

The order of the source rows is the order of the concepts (``concept_index``); the order of the edit rows is the order of the edits in every
score matrix. Paths are relative to the folder, with ``/`` between their parts.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from decodehub.core.files import canonical_json, inside, read_data, sha256_bytes, write_bytes
from decodehub.loaders.images import MAX_BYTES, decode_image

from .taxonomy import load_taxonomy

MANIFEST = "manifest.jsonl"
SCHEMA_VERSION = 1

Family = Literal["identity", "attribute", "background", "removal"]
Subtype = Literal["near", "medium", "far", "color", "material", "texture", "shape", "state"]
Category = Literal["animal", "vehicle", "food", "clothing", "tool", "artifact", "other"]
_Name = Annotated[str, Field(min_length=1, max_length=200)]
# A concept becomes part of file names (`decodehub editbench export`).
_Concept = Annotated[str, Field(pattern=r"^[^/\\\x00-\x1f]+$", max_length=200)]


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ReleaseRow(_Row):
    """What the folder is: shown wherever its scores are."""

    row: Literal["release"] = "release"
    schema_version: int = SCHEMA_VERSION
    release: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    title: _Name
    license: _Name
    editor: _Name
    notes: str = ""


class SourceRow(_Row):
    """One viewed image: its concept, its file, the null edit of it when there is one, its source category."""

    row: Literal["source"] = "source"
    concept: _Concept
    image: _Name
    null_image: _Name | None = None
    source_category: Category
    attribution: str = ""


class EditRow(_Row):
    """One candidate edit. `votes` are the reviewers' pass (true) or fail; a third vote decides a tie (section S2.3)."""

    row: Literal["edit"] = "edit"
    edit_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")]
    concept: _Concept
    image: _Name
    family: Family
    subtype: Subtype | None = None
    target_concept: _Concept | None = None
    instruction: Annotated[str, Field(min_length=1, max_length=2000)]
    visual_distance: Annotated[float, Field(ge=0, le=2)] | None = None
    votes: list[bool] = Field(default_factory=list, max_length=3)
    kept: bool = True

    @model_validator(mode="after")
    def _consistent(self) -> EditRow:
        allowed = load_taxonomy().subtypes_of(self.family)
        if allowed and self.subtype not in allowed:
            raise ValueError(f"family {self.family!r} needs a subtype of {allowed}, found {self.subtype!r}")
        if not allowed and self.subtype is not None:
            raise ValueError(f"family {self.family!r} has no subtypes, found {self.subtype!r}")
        if (self.target_concept is not None) != (self.family == "identity"):
            raise ValueError(
                f"target_concept belongs to every identity edit and to no other, found {self.target_concept!r} for {self.family!r}"
            )
        if self.votes:
            if len(self.votes) == 1 or (len(self.votes) == 2 and self.votes[0] != self.votes[1]):
                raise ValueError(f"votes {self.votes} decide nothing: two reviewers must agree or a third must vote")
            if (passed := sum(self.votes) * 2 > len(self.votes)) != self.kept:
                raise ValueError(f"kept is {self.kept} but the votes {self.votes} say {passed}")
        return self


class Release(NamedTuple):
    """A checked release: `folder`, its header, its sources in concept order, its candidate edits in score order."""

    folder: Path
    header: ReleaseRow
    sources: tuple[SourceRow, ...]
    candidates: tuple[EditRow, ...]

    @property
    def edits(self) -> tuple[EditRow, ...]:
        """The candidates that review kept."""
        return tuple(edit for edit in self.candidates if edit.kept)


class ManifestError(ValueError):
    """A release folder that cannot be used: the message names the file, the row and the remedy."""


_ROWS: dict[str, type[ReleaseRow] | type[SourceRow] | type[EditRow]] = {"release": ReleaseRow, "source": SourceRow, "edit": EditRow}


def read_release(folder: Path | str) -> Release:
    """Read and check the manifest of a release folder (no image is opened; see `read_release_image`).

    Raises:
        ManifestError: no manifest, a malformed row, a newer schema, a duplicate or missing concept, edit id or file name,
            a path out of the folder, an image that is not there.
    """
    folder = Path(folder)
    path = folder / MANIFEST
    if not folder.is_dir():
        raise ManifestError(f"{folder} is not a folder: give the folder that holds {MANIFEST} and its images")
    rows = _read_rows(path)
    if not rows or not isinstance(rows[0][1], ReleaseRow):
        raise ManifestError(f'{path}: the first row must be {{"row": "release", ...}}')
    header = rows[0][1]

    sources: dict[str, SourceRow] = {}
    edits: dict[str, EditRow] = {}
    images: dict[str, str] = {}
    for number, row in rows[1:]:
        where = f"{path}, row {number}"
        if isinstance(row, ReleaseRow):
            raise ManifestError(f"{where}: a second release row; keep one release a folder")
        if isinstance(row, SourceRow):
            if row.concept in sources:
                raise ManifestError(f"{where}: concept {row.concept!r} has a second source; each concept has one")
            sources[row.concept] = row
        else:
            if row.edit_id in edits:
                raise ManifestError(f"{where}: edit_id {row.edit_id!r} is there twice; make it unique")
            edits[row.edit_id] = row
        for image in _images(row):
            _check_file(folder, image, where)
            if (file := posixpath.normpath(image)) in images:
                raise ManifestError(f"{where}: image {image!r} already belongs to {images[file]}; each row has its own file")
            images[file] = f"row {number}"

    for number, row in rows[1:]:
        if isinstance(row, EditRow):
            _check_concepts(row, sources, f"{path}, row {number}")
    if not sources:
        raise ManifestError(f"{path}: no source row")
    with_null = sum(source.null_image is not None for source in sources.values())
    if with_null not in (0, len(sources)):
        raise ManifestError(f"{path}: {with_null} of {len(sources)} sources have a null_image; give all or none")
    return Release(folder, header, tuple(sources.values()), tuple(edits.values()))


def _read_rows(path: Path) -> list[tuple[int, ReleaseRow | SourceRow | EditRow]]:
    """The rows of a manifest with their numbers from 1; blank lines are left out."""
    try:
        text = read_data(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path} is not UTF-8 text ({error}): save it as UTF-8") from None
    except (FileNotFoundError, ValueError) as error:
        raise ManifestError(f"{error}; a release folder holds {MANIFEST} and the images that it names") from None
    lines = enumerate(text.split("\n"), start=1)  # splitlines() would also break at a U+2028 within a text
    return [(number, _parse(line, f"{path}, row {number}")) for number, line in lines if line.strip()]


def _check_concepts(edit: EditRow, sources: dict[str, SourceRow], where: str) -> None:
    if edit.concept not in sources:
        raise ManifestError(f"{where}: edit {edit.edit_id!r} is of concept {edit.concept!r}, which has no source row")
    if edit.target_concept == edit.concept:
        raise ManifestError(f"{where}: edit {edit.edit_id!r} replaces {edit.concept!r} by itself")


def read_release_image(release: Release, relative: str, owner: str) -> bytes:
    """The bytes of one image of a release, decoded once to be sure that they are an image.

    Args:
        release: a checked release.
        relative: path of the image in its folder.
        owner: the row that names the image, in words, for an error.

    Raises:
        ManifestError: a pointer in place of the image, too large, damaged, or not an image.
    """
    path = inside(release.folder, relative)
    try:
        data = read_data(path, max_bytes=MAX_BYTES)
        decode_image(data, name=str(path))
    except (FileNotFoundError, ValueError) as error:
        raise ManifestError(f"{release.folder / MANIFEST}: {owner}: {error}") from None
    return data


def write_manifest(folder: Path, header: ReleaseRow, sources: Iterable[SourceRow], edits: Iterable[EditRow]) -> Release:
    """Write ``manifest.jsonl`` (last, once all images are in place) and read it back checked."""
    rows = [header, *sources, *edits]
    lines = [canonical_json(row.model_dump(mode="json")) for row in rows]
    write_bytes(Path(folder) / MANIFEST, ("\n".join(lines) + "\n").encode())
    return read_release(folder)


def release_fingerprint(release: Release) -> str:
    """Hash of the manifest and of every image's bytes: equal only for equal releases."""
    rows: list[SourceRow | EditRow] = [*release.sources, *release.candidates]
    digests = {image: sha256_bytes((release.folder / image).read_bytes()) for row in rows for image in _images(row)}
    manifest = sha256_bytes((release.folder / MANIFEST).read_bytes())
    return sha256_bytes(canonical_json([manifest, digests]).encode())


def _images(row: SourceRow | EditRow) -> list[str]:
    return [image for image in (row.image, getattr(row, "null_image", None)) if image is not None]


def _parse(line: str, where: str) -> ReleaseRow | SourceRow | EditRow:
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as error:  # not JSONDecodeError alone: numbers and nestings without end
        raise ManifestError(f"{where}: not JSON ({error}); one object a line") from None
    kind = raw.get("row") if isinstance(raw, dict) else None
    if not isinstance(kind, str) or kind not in _ROWS:
        raise ManifestError(f"{where}: 'row' must be one of {list(_ROWS)}, found {kind!r}")
    if kind == "release" and isinstance(raw.get("schema_version"), int) and raw["schema_version"] > SCHEMA_VERSION:
        raise ManifestError(f"{where}: schema_version {raw['schema_version']} is newer than {SCHEMA_VERSION}: update decodehub")
    try:
        return _ROWS[kind].model_validate(raw)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'row'}: {e['msg'].removeprefix('Value error, ')} (found {_short(e['input'])})"
            for e in error.errors()
        )
        raise ManifestError(f"{where}: {problems}") from None


def _check_file(folder: Path, relative: str, where: str) -> None:
    try:
        path = inside(folder, relative)
    except ValueError as error:
        raise ManifestError(f"{where}: {error}") from None
    if path.is_symlink() and not path.exists():
        raise ManifestError(
            f"{where}: image {relative!r} is a link to {path.readlink()}, which is not there (git-annex: run 'datalad get')"
        )
    if not path.is_file():
        raise ManifestError(f"{where}: image {relative!r} is missing from {folder}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


assert get_args(Family) == tuple(load_taxonomy().family_names)
assert get_args(Subtype) == tuple(load_taxonomy().subtype_names)
assert get_args(Category) == load_taxonomy().categories
