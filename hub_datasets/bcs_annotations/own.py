"""Releases of one's own: from folders of images, and with the answers of further annotators."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from decodehub.core.files import new_folder, read_csv, read_data
from decodehub.loaders.images import MAX_BYTES
from decodehub.loaders.pair_ids import normalise_concept, parse_pair_id
from decodehub.loaders.reconstruction_pairs import PairedFolders, ReconstructionPair, concepts_of

from .release import AnnotationRow, Header, PairRow, Release, ReleaseError, pixel_hash, read_release, write_release
from .splits import SEED, PairInfo, concept_group, split_pairs


def copy_image(path: Path, work: Path, role: str) -> tuple[str, str]:
    """Copy an image into a new release under the hash of its pixels.

    Args:
        path: of the image. work: the folder in the making. role: "references" or "reconstructions".

    Returns:
        Its path below `work`, and the hash.

    Raises:
        ReleaseError: no image, or a pointer in its place.
    """
    try:
        data = read_data(path, max_bytes=MAX_BYTES)
        digest = pixel_hash(data, str(path))
    except (FileNotFoundError, ValueError) as error:
        raise ReleaseError(str(error)) from None
    name = f"{role}/{digest.removeprefix('sha256:')[:32]}{path.suffix.lower()}"
    if not (work / name).is_file():
        (work / role).mkdir(exist_ok=True)
        (work / name).write_bytes(data)  # not atomic: the whole folder is renamed into place
    return name, digest


def pairs_from_folders(
    found: PairedFolders,
    references: Path,
    out: Path,
    *,
    method: str,
    release: str,
    license: str,
    concepts: Path | None = None,
    seed: int = SEED,
) -> Release:
    """Make a release without annotations from two folders of images.

    Args:
        found: what `pair_folders` found. references: the folder of the references.
        out: where to write; it must not exist yet.
        method: name of the method where neither folder nor file name says it.
        release, license: for the header.
        concepts: CSV with the columns reference (path below the folder) and concept; by default pair ids and names say it (`concepts_of`).
        seed: of the split, 70/15/15 by concept and reference image.

    Raises:
        ValueError: `concepts` lacks a reference or has two concepts of one.
        ReleaseError: an image that cannot be read.
    """
    concept_of = _concepts(found, references, concepts)
    with new_folder(out) as work:
        copied = {
            path: copy_image(path, work, role)
            for role, paths in (
                ("references", {pair.reference for pair in found.pairs}),
                ("reconstructions", {pair.reconstruction for pair in found.pairs}),
            )
            for path in sorted(paths)
        }
        rows = _pair_rows(found.pairs, concept_of, copied, method, seed)
        header = Header(
            release=release,
            title="Reconstruction pairs, not annotated",
            license=license,
            annotators=[],
            split_rule="reference",
            split_seed=seed,
            notes=f"Pairs by {found.rule}.",
        )
        write_release(work, header, rows, [])
    return read_release(out)


def _pair_rows(
    pairs: Sequence[ReconstructionPair], concept_of: Mapping[str, str], copied: Mapping[Path, tuple[str, str]], method: str, seed: int
) -> list[PairRow]:
    """The rows of pairs whose images are copied (path in the release and hash), split by concept and reference image."""
    infos = {
        pair.key: PairInfo(pair.key, pair.method or method, concept_of[pair.key], copied[pair.reference][1], copied[pair.reconstruction][1])
        for pair in pairs
    }
    split_of = split_pairs(infos.values(), seed=seed)
    rows = []
    for pair in pairs:
        info = infos[pair.key]
        rank, candidate = _rank(pair)
        row = {
            "pair_id": pair.key,
            "method": info.method,
            "subject": pair.subject,
            "concept": info.concept,
            "rank": rank,
            "candidate": candidate,
            "reference": copied[pair.reference][0],
            "reconstruction": copied[pair.reconstruction][0],
            "reference_sha256": info.reference_sha256,
            "reconstruction_sha256": info.reconstruction_sha256,
            "split": split_of[pair.key],
        }
        rows.append(PairRow.model_validate(row))
    return rows


def add_annotations(base: Release, answers: Mapping[str, list[AnnotationRow]], out: Path, *, release: str) -> Release:
    """A copy of a release with the answers of further annotators.

    Args:
        base: the release that was annotated.
        answers: rows by annotator.
        out: where to write; it must not exist yet.
        release: name of the new release. The sample stays the sample.

    Raises:
        ReleaseError: an annotator that the release has already.
    """
    if known := sorted(set(answers) & set(base.header.annotators)):
        raise ReleaseError(f"{base.folder} has answers of {known[0]!r} already: give the annotator another name")
    name = base.header.release if base.header.release == "sample" else release
    header = base.header.model_copy(update={"release": name, "annotators": [*base.header.annotators, *answers]})
    with new_folder(out) as work:
        for file in sorted({file for pair in base.pairs for file in (pair.reference, pair.reconstruction)}):
            (work / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(base.folder / file, work / file)
        write_release(work, header, base.pairs, [*base.annotations, *chain.from_iterable(answers.values())], base.human)
    return read_release(out)


def _concepts(found: PairedFolders, references: Path, table: Path | None) -> dict[str, str]:
    """Concept by key of the pair."""
    if table is not None:
        said = read_concepts(table)
        names = {pair.key: pair.reference.relative_to(references).as_posix() for pair in found.pairs}
        if missing := sorted({name for name in names.values() if name not in said}):
            raise ValueError(f"{table} lacks the concept of {missing[0]!r} ({len(missing)} references in all)")
        return {key: concept_group(said[name]) for key, name in names.items()}
    paths = sorted({pair.reference for pair in found.pairs})
    named = dict(zip(paths, concepts_of([path.relative_to(references) for path in paths])))
    return {pair.key: concept_group(_concept_of_id(pair) or named[pair.reference]) for pair in found.pairs}


def read_concepts(table: Path) -> dict[str, str]:
    """Concept by reference from a CSV with the columns ``reference`` and ``concept``.

    Raises:
        ValueError: a column is missing, a cell is empty, or a reference has two concepts.
    """
    said: dict[str, str] = {}
    for where, row in read_csv(table, ("reference", "concept")):
        reference, concept = ((row[name] or "").strip() for name in ("reference", "concept"))
        if not reference or not concept:
            raise ValueError(f"{where}: reference or concept is empty")
        if said.setdefault(reference, concept) != concept:
            raise ValueError(f"{where}: {reference!r} has the concepts {said[reference]!r} and {concept!r}")
    return said


def _concept_of_id(pair: ReconstructionPair) -> str | None:
    try:
        return normalise_concept(parse_pair_id(pair.key).concept)
    except ValueError:
        return None


def _rank(pair: ReconstructionPair) -> tuple[int | None, int | None]:
    try:
        parsed = parse_pair_id(pair.key)
    except ValueError:
        return None, None
    return parsed.rank, parsed.candidate
