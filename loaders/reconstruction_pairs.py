"""Reconstructed images and the images they are of: pairs by name, and the pair ids of the BCS corpus (arXiv 2607.12364, appendix A)."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff"})

_NUMBER = r"0|[1-9]\d*"
_TAIL = rf"(?P<concept>.+)__rank(?P<rank>_unknown|{_NUMBER})__cand(?P<candidate>_unknown|{_NUMBER})"
_WITH_SUBJECT = re.compile(rf"(?P<method>.+?)__sub-(?P<subject>\d\d|[1-9]\d\d+)__{_TAIL}")
_EXTRA = re.compile(rf"(?P<method>.+?)__extra__{_TAIL}__row(?P<row>{_NUMBER})")
_INDEX_PREFIX = re.compile(r"^(?:\d+_)+(?=.)")
_COUNTER = re.compile(r"[_-]\d+$")
_SUBJECT_PART = re.compile(r"sub(?:ject)?[-_]?0*(\d+)", re.IGNORECASE)


class PairId(NamedTuple):
    """What a pair id says. `subject` belongs to the first form, `row` to the second; rank or candidate is None where unknown."""

    method: str
    subject: int | None
    concept: str
    rank: int | None
    candidate: int | None
    row: int | None = None

    def __str__(self) -> str:
        return format_pair_id(self)


class ReconstructionPair(NamedTuple):
    """One reconstruction with its reference. `key` is its pair id, or its path below the folder without the ending."""

    key: str
    reference: Path
    reconstruction: Path
    method: str | None
    subject: int | None


class PairedFolders(NamedTuple):
    """Pairs in the order of their keys, and the files that found no partner."""

    pairs: list[ReconstructionPair]
    unmatched_references: list[Path]
    unmatched_reconstructions: list[Path]


def parse_pair_id(text: str) -> PairId:
    """Read a pair id: ``METHOD__sub-05__eagle__rank1__cand4`` or ``brainvis__extra__chinaware__rank1__cand2__row36``.

    Raises:
        ValueError: neither of the two forms.
    """
    for pattern in (_EXTRA, _WITH_SUBJECT):
        if match := pattern.fullmatch(text):
            part = match.groupdict()
            rank, candidate = (None if part[name] == "_unknown" else int(part[name]) for name in ("rank", "candidate"))
            subject, row = (int(part[name]) if part.get(name) else None for name in ("subject", "row"))
            return PairId(part["method"], subject, part["concept"], rank, candidate, row)
    raise ValueError(
        f"{text!r} is not a pair id: expected METHOD__sub-XX__concept__rankR__candC (two digits or more of the subject) or "
        "method__extra__concept__rankR__candC__rowK"
    )


def format_pair_id(pair: PairId) -> str:
    """Write a pair id; `parse_pair_id` gives `pair` back.

    Raises:
        ValueError: neither subject nor row, both, or a name that would be read back as another.
    """
    if (pair.subject is None) == (pair.row is None):
        raise ValueError(f"a pair id has a subject or a row number, and not both; found subject {pair.subject} and row {pair.row}")
    rank, candidate = ("_unknown" if value is None else value for value in (pair.rank, pair.candidate))
    middle = "extra" if pair.subject is None else f"sub-{pair.subject:02d}"
    text = f"{pair.method}__{middle}__{pair.concept}__rank{rank}__cand{candidate}" + (f"__row{pair.row}" if pair.subject is None else "")
    try:
        same = parse_pair_id(text) == pair
    except ValueError:
        same = False
    if not same:
        raise ValueError(f"{pair!r} cannot be written as a pair id: {text!r} would be read as something else")
    return text


def normalise_concept(concept: str) -> str:
    """One spelling of a concept: lower case, no index prefix (``00012_``), words joined by ``_``.

    Sources of the published corpus spell concepts differently, so that one photograph counts as several concepts there.

    Raises:
        ValueError: nothing is left.
    """
    words = _INDEX_PREFIX.sub("", re.sub(r"[\s_-]+", "_", concept.lower()).strip("_"))
    if not words:
        raise ValueError(f"concept {concept!r} has no name in it")
    return words


def pair_folders(references: Path | str, reconstructions: Path | str) -> PairedFolders:
    """Find the reference of every reconstruction by its name; many reconstructions may be of one reference.

    A reconstruction is of the one reference with (the first of these that fits) the same path below the folder, the same file stem, the
    concept of its pair id, the first part of its stem before ``__``, its folder's name, or its stem without a trailing number
    (``cat_3.png``). A reference is known by its path, stem, stem without ``__reference``, and folder; case and index prefixes
    (``00012_cat``) do not matter where the exact name finds nothing. Method and subject come from the pair id, or from folders ``METHOD/sub-XX``.

    Args:
        references: folder of reference images, at any depth.
        reconstructions: folder of reconstructed images, at any depth.

    Returns:
        The pairs and what was left over; a left-over file is no error, since a method may have reconstructed a part only.

    Raises:
        FileNotFoundError: a folder is missing.
        ValueError: a folder without images, nothing matched, a name that fits several references, or two reconstructions of one name.
    """
    references, reconstructions = Path(references), Path(reconstructions)
    reference_files, reconstruction_files = image_files(references, "references"), image_files(reconstructions, "reconstructions")
    known = [_index(_reference_names(path.relative_to(references)) for path in reference_files)]
    known.append(_index(map(_loose, _reference_names(path.relative_to(references))) for path in reference_files))

    pairs: dict[str, ReconstructionPair] = {}
    used: set[int] = set()
    unmatched: list[Path] = []
    for path in reconstruction_files:
        relative = path.relative_to(reconstructions)
        found = _find(relative, known)
        if found is None:
            unmatched.append(path)
            continue
        name, matches = found
        if len(matches) > 1:
            several = ", ".join(str(reference_files[i].relative_to(references)) for i in sorted(matches)[:5])
            raise ValueError(
                f"{path}: its name {name!r} fits {len(matches)} references in {references} ({several}): give each reference a name of its "
                "own, or lay the reconstructions out in the same sub-folders"
            )
        (i,) = matches
        pair = _pair(relative, path, reference_files[i], known)
        if pair.key in pairs:
            raise ValueError(f"{path} and {pairs[pair.key].reconstruction} have the same name {pair.key!r}: rename or remove one")
        pairs[pair.key] = pair
        used.add(i)
    if not pairs:
        raise ValueError(
            f"no reconstruction in {reconstructions} fits a reference in {references} by name: found for example "
            f"{reconstruction_files[0].relative_to(reconstructions)} and {reference_files[0].relative_to(references)}; "
            "give both the same stem, or name reconstructions METHOD__sub-XX__concept__rankR__candC"
        )
    left = [path for i, path in enumerate(reference_files) if i not in used]
    return PairedFolders([pairs[key] for key in sorted(pairs)], left, unmatched)


def image_files(folder: Path, role: str = "images") -> list[Path]:
    """Images of a folder and those below it, in the order of their names; hidden ones are left out.

    Raises:
        FileNotFoundError: no such folder. ValueError: it holds no image; `role` is what they are called.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder: give the folder of the {role}")
    found = [
        Path(base) / name
        for base, folders, names in os.walk(folder)
        if not folders.sort() and not any(part.startswith(".") for part in Path(base).relative_to(folder).parts)
        for name in sorted(names)
        if not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES
    ]
    if not found:
        raise ValueError(f"{folder} holds no image: the {role} may end in {', '.join(sorted(SUFFIXES))}")
    return found


def _loose(name: str) -> str:
    try:
        return normalise_concept(name)
    except ValueError:
        return name


def _index(names: Iterable[Iterable[str]]) -> dict[str, set[int]]:
    index: dict[str, set[int]] = defaultdict(set)
    for i, of_one in enumerate(names):
        for name in of_one:
            index[name].add(i)
    return dict(index)


def _reference_names(relative: Path) -> set[str]:
    stem = relative.stem
    names = {relative.with_suffix("").as_posix(), stem, stem.removesuffix("__reference")}
    return names | ({relative.parent.name} if relative.parent.name else set())


def _reconstruction_names(relative: Path) -> Iterator[str]:
    """Names by which a reconstruction's reference may be known, the surest first."""
    yield relative.with_suffix("").as_posix()
    yield relative.stem
    if (pair := _pair_id(relative)) is not None:
        yield pair.concept
    if "__" in relative.stem:
        yield relative.stem.partition("__")[0]
    if relative.parent.name:
        yield relative.parent.name
    yield _COUNTER.sub("", relative.stem)


def _find(relative: Path, known: list[dict[str, set[int]]]) -> tuple[str, set[int]] | None:
    for name in _reconstruction_names(relative):
        for exact_or_loose, index in enumerate(known):
            if matches := index.get(_loose(name) if exact_or_loose else name):
                return name, matches
    return None


def _pair_id(relative: Path) -> PairId | None:
    try:
        return parse_pair_id(relative.stem)
    except ValueError:
        return None


def _pair(relative: Path, path: Path, reference: Path, known: list[dict[str, set[int]]]) -> ReconstructionPair:
    if (pair := _pair_id(relative)) is not None:
        return ReconstructionPair(relative.stem, reference, path, pair.method, pair.subject)
    key, folders = relative.with_suffix("").as_posix(), relative.parts[:-1]
    for i, part in enumerate(folders):
        if match := _SUBJECT_PART.fullmatch(part):
            return ReconstructionPair(key, reference, path, folders[i - 1] if i else None, int(match[1]))
    # Without a subject the first folder is the method, unless it is that of a concept.
    is_method = bool(folders) and folders[0] not in known[0] and _loose(folders[0]) not in known[1]
    return ReconstructionPair(key, reference, path, folders[0] if is_method else None, None)
