"""A release of the BCS annotations as a folder, and its reading, which is its checking.

::

    release.json        what it is, which annotators and prompts, how it was split
    pairs.jsonl         {"pair_id", "method", "subject", "concept", "rank", "candidate", "reference", "reconstruction",
                         "reference_sha256", "reconstruction_sha256", "split"}
    annotations.jsonl   one row a pair and annotator: {"pair_id", "annotator", "prompt_version", "settings_hash",
                         "answers": {"P1_global_spatial_structure": {"answer": "yes", "rationale": "...", "valid": true}, ...}}
    human.jsonl         optional: {"rater", "pair_id", "block", "judgement"}

Paths are relative to the folder; many pairs may share one reference. Hashes are of decoded pixels (`pixel_hash`), so that one photograph is
one reference in whatever format it was saved. No reference image and no concept may be in two splits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from decodehub.core.files import canonical_json, inside, read_data, read_json, sha256_bytes, write_bytes, write_json
from decodehub.loaders.images import MAX_BYTES, decode_image

from .questionnaire import load_questionnaire
from .splits import LeakAudit, PairInfo, audit_splits

HEADER, PAIRS, ANNOTATIONS, HUMAN = "release.json", "pairs.jsonl", "annotations.jsonl", "human.jsonl"
SCHEMA_VERSION = 1

_Name = Annotated[str, Field(min_length=1, max_length=200)]
_Sha256 = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
_Model = TypeVar("_Model", bound=BaseModel)


class ReleaseError(ValueError):
    """A release folder that cannot be used: the message names the file, the row and the remedy."""


class NoRowsError(ReleaseError):
    """A table that a release does not have, such as judgements of people."""


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Header(_Row):
    """What the folder is. `annotators` are those whose consensus is taken, in the order of every array."""

    schema_version: int = SCHEMA_VERSION
    release: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    title: _Name
    license: Annotated[str, Field(min_length=1, max_length=1000)]
    annotators: list[_Name]
    split_rule: str
    split_seed: int
    notes: str = ""


class PairRow(_Row):
    """One reconstruction with its reference."""

    pair_id: Annotated[str, Field(min_length=1, max_length=400)]
    method: _Name
    subject: Annotated[int, Field(ge=0)] | None = None
    concept: _Name
    rank: Annotated[int, Field(ge=0)] | None = None
    candidate: Annotated[int, Field(ge=0)] | None = None
    reference: _Name
    reconstruction: _Name
    reference_sha256: _Sha256
    reconstruction_sha256: _Sha256
    split: Literal["train", "validation", "test"]

    @property
    def info(self) -> PairInfo:
        return PairInfo(self.pair_id, self.method, self.concept, self.reference_sha256, self.reconstruction_sha256)


class AnswerItem(_Row):
    """An answer to one question; an answer that could not be read is null and not valid."""

    answer: Literal["no", "somewhat", "yes"] | None
    rationale: str | None = None
    valid: bool

    @model_validator(mode="after")
    def _consistent(self) -> AnswerItem:
        if self.valid != (self.answer is not None):
            raise ValueError(
                f"answer {self.answer!r} with valid={self.valid}: a valid answer is no, somewhat or yes, and an invalid one is null"
            )
        return self


class AnnotationRow(_Row):
    """All answers of one annotator on one pair."""

    pair_id: str
    annotator: _Name
    prompt_version: _Name
    settings_hash: _Sha256
    answers: dict[str, AnswerItem]


class HumanRow(_Row):
    """One judgement of a person; `judgement` is on the scale of the study."""

    rater: _Name
    pair_id: str
    block: Literal["perceptual", "semantic", "coherence"]
    judgement: float


class Release(NamedTuple):
    """A checked release."""

    folder: Path
    header: Header
    pairs: tuple[PairRow, ...]
    annotations: tuple[AnnotationRow, ...]
    human: tuple[HumanRow, ...]

    def codes(self, annotators: Iterable[str] | None = None) -> np.ndarray:
        """Answers as (n_pairs, n_annotators, 12) int8: 0 no, 1 somewhat, 2 yes, -1 none; by default of the header's annotators.

        Raises:
            ReleaseError: an annotator that the release does not have.
        """
        names = list(self.header.annotators if annotators is None else annotators)
        if unknown := [name for name in names if name not in self.header.annotators]:
            raise ReleaseError(f"{self.folder} has no annotator {unknown[0]!r}; it has {self.header.annotators}")
        keys, labels = load_questionnaire().keys, {label: i for i, label in enumerate(load_questionnaire().answers)}
        row_of, column_of = {pair.pair_id: i for i, pair in enumerate(self.pairs)}, {name: j for j, name in enumerate(names)}
        codes = np.full((len(self.pairs), len(names), len(keys)), -1, dtype=np.int8)
        for row in self.annotations:
            if (j := column_of.get(row.annotator)) is not None:
                codes[row_of[row.pair_id], j] = [
                    labels[item.answer] if (item := row.answers.get(key)) and item.answer is not None else -1 for key in keys
                ]
        return codes


def pixel_hash(data: bytes, name: str) -> str:
    """Hash of an image's decoded RGB pixels and size.

    Raises:
        ValueError: not an image (see `decode_image`).
    """
    return hash_of_pixels(np.asarray(decode_image(data, name=name)))


def hash_of_pixels(pixels: np.ndarray) -> str:
    """Hash of (h, w, 3) uint8 RGB pixels and their size."""
    height, width, _ = pixels.shape
    return sha256_bytes(f"{width} {height} ".encode() + np.ascontiguousarray(pixels).tobytes())


def read_header(folder: Path | str) -> Header:
    """Read and check what a release folder says of itself.

    Raises:
        ReleaseError: no folder, no header, a malformed one or a newer schema.
    """
    if not Path(folder).is_dir():
        raise ReleaseError(f"{folder} is not a folder: give the folder that holds {HEADER}, {PAIRS} and their images")
    path = Path(folder) / HEADER
    try:
        raw = read_json(path)
    except (FileNotFoundError, ValueError) as error:
        raise ReleaseError(f"{path}: {error}; a release folder holds {HEADER}, {PAIRS}, {ANNOTATIONS} and their images") from None
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise ReleaseError(f"{path}: schema_version {version} is newer than {SCHEMA_VERSION}: update decodehub")
    return _validate(Header, raw, str(path))


def read_release(folder: Path | str, *, annotations: bool = True) -> Release:
    """Read and check a release folder (no image is opened; see `read_pair_image`).

    Args:
        folder: of the release.
        annotations: whether to read the annotations and human judgements too.

    Raises:
        ReleaseError: a file is missing or a row is malformed, a newer schema, a pair or annotation twice, a row of an unknown pair, annotator or
            question, a path out of the folder, a missing image, one file with two hashes, or a reference or concept in two splits.
    """
    folder, header = Path(folder), read_header(folder)
    pairs: dict[str, PairRow] = {}
    hashes: dict[str, str] = {}
    for where, pair in _rows(folder / PAIRS, PairRow):
        if pair.pair_id in pairs:
            raise ReleaseError(f"{where}: pair_id {pair.pair_id!r} is there twice; make it unique")
        pairs[pair.pair_id] = pair
        for file, digest in ((pair.reference, pair.reference_sha256), (pair.reconstruction, pair.reconstruction_sha256)):
            if file not in hashes:
                _check_file(folder, file, where)
            if hashes.setdefault(file, digest) != digest:
                raise ReleaseError(f"{where}: {file!r} has another hash in an earlier row; one file is one image")
    if not pairs:
        raise ReleaseError(f"{folder / PAIRS}: no pair")
    raise_if_leaking(audit_splits((p.info for p in pairs.values()), {p.pair_id: p.split for p in pairs.values()}), folder / PAIRS)
    if not annotations:
        return Release(folder, header, tuple(pairs.values()), (), ())
    return Release(folder, header, tuple(pairs.values()), tuple(_annotations(folder, header, pairs)), tuple(_human(folder, pairs)))


def raise_if_leaking(audit: LeakAudit, where: Path | str) -> None:
    """End with the first thing that is in two splits.

    Raises:
        ReleaseError: a reference or concept is in two splits.
    """
    for kind in ("references", "concepts"):
        for value, found in getattr(audit, kind).items():
            ids = ", ".join(f"{ids[0]} ({split})" for split, ids in found.items())
            raise ReleaseError(
                f"{where}: the {kind.removesuffix('s')} {value!r} is in the splits {', '.join(found)}, for example {ids}: split anew with the "
                "rule 'reference' (splits.split_pairs), or scores on the test split would be of things seen in training"
            )


def read_pair_image(release: Release, relative: str, expected: str | None, owner: str) -> bytes:
    """The bytes of one image of a release, decoded and compared with the hash that its row states.

    Raises:
        ReleaseError: a pointer in place of the image, damaged, not an image, or another image than the row says.
    """
    try:
        data = read_data(inside(release.folder, relative), max_bytes=MAX_BYTES)
        found = pixel_hash(data, relative)
    except (FileNotFoundError, ValueError) as error:
        raise ReleaseError(f"{release.folder / PAIRS}: {owner}: {error}") from None
    if expected is not None and found != expected:
        raise ReleaseError(f"{release.folder / PAIRS}: {owner}: {relative!r} is another image: expected pixels {expected}, found {found}")
    return data


def write_release(
    folder: Path,
    header: Header,
    pairs: Iterable[PairRow],
    annotations: Iterable[AnnotationRow],
    human: Iterable[HumanRow] = (),
) -> Release:
    """Write the tables (the header last, once all images are in place) and read them back checked."""
    folder = Path(folder)
    for name, rows in ((PAIRS, pairs), (ANNOTATIONS, annotations), (HUMAN, human)):
        write_bytes(folder / name, "".join(canonical_json(row.model_dump(mode="json")) + "\n" for row in rows).encode())
    write_json(folder / HEADER, header.model_dump(mode="json"))
    return read_release(folder)


def release_fingerprint(folder: Path | str) -> str:
    """Hash of the tables of a release; since every row states the hashes of its images, equal only for equal releases."""
    files = {
        name: sha256_bytes(path.read_bytes()) for name in (HEADER, PAIRS, ANNOTATIONS, HUMAN) if (path := Path(folder) / name).is_file()
    }
    return sha256_bytes(canonical_json(files).encode())


def _rows(path: Path, model: type[_Model]) -> Iterator[tuple[str, _Model]]:
    try:
        text = read_data(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ReleaseError(f"{path} is not UTF-8 text ({error}): save it as UTF-8") from None
    except (FileNotFoundError, ValueError) as error:
        raise ReleaseError(f"{error}; a release folder holds {HEADER}, {PAIRS}, {ANNOTATIONS} and their images") from None
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"{path}, row {number}"
            try:
                raw = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ReleaseError(f"{where}: not JSON ({error}); one object a line") from None
            yield where, _validate(model, raw, where)


def _validate(model: type[_Model], raw: Any, where: str) -> _Model:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'row'}: {e['msg'].removeprefix('Value error, ')} (found {str(e['input'])[:80]!r})"
            for e in error.errors()[:5]
        )
        raise ReleaseError(f"{where}: {problems}") from None


def _annotations(folder: Path, header: Header, pairs: dict[str, PairRow]) -> Iterator[AnnotationRow]:
    keys, seen = set(load_questionnaire().keys), set()
    for where, row in _rows(folder / ANNOTATIONS, AnnotationRow) if _has_rows(folder / ANNOTATIONS) else ():
        if row.pair_id not in pairs:
            raise ReleaseError(f"{where}: pair_id {row.pair_id!r} is not in {PAIRS}")
        if row.annotator not in header.annotators:
            raise ReleaseError(f"{where}: annotator {row.annotator!r} is not in {HEADER}, which has {header.annotators}")
        if unknown := sorted(set(row.answers) - keys):
            raise ReleaseError(f"{where}: unknown question {unknown[0]!r}; the questionnaire has {sorted(keys)}")
        if (row.pair_id, row.annotator) in seen:
            raise ReleaseError(f"{where}: {row.annotator!r} answers pair {row.pair_id!r} a second time")
        seen.add((row.pair_id, row.annotator))
        yield row


def _human(folder: Path, pairs: dict[str, PairRow]) -> Iterator[HumanRow]:
    seen = set()
    for where, row in _rows(folder / HUMAN, HumanRow) if _has_rows(folder / HUMAN) else ():
        if row.pair_id not in pairs:
            raise ReleaseError(f"{where}: pair_id {row.pair_id!r} is not in {PAIRS}")
        if (row.rater, row.pair_id, row.block) in seen:
            raise ReleaseError(f"{where}: rater {row.rater!r} judges {row.block} of pair {row.pair_id!r} a second time")
        seen.add((row.rater, row.pair_id, row.block))
        yield row


def _has_rows(path: Path) -> bool:
    """Whether an optional table is there and not empty (a pointer in its place is still an error)."""
    return path.is_symlink() or (path.is_file() and path.stat().st_size > 0)


def _check_file(folder: Path, relative: str, where: str) -> None:
    try:
        path = inside(folder, relative)
    except ValueError as error:
        raise ReleaseError(f"{where}: {error}") from None
    if path.is_symlink() and not path.exists():
        raise ReleaseError(f"{where}: image {relative!r} is a link whose content is not there (git-annex: run 'datalad get')")
    if not path.is_file():
        raise ReleaseError(f"{where}: image {relative!r} is missing from {folder}")
