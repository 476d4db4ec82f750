"""Reconstructed images and the images they are of: pairs of two folders, found by name or as the caller says."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from decodehub.core.files import read_csv

from .images import SUFFIXES
from .pair_ids import parse_pair_id, spell_concept
from .pair_names import (
    FOLDER,
    LAST_NUMBER,
    RECONSTRUCTION_WORDS,
    REFERENCE_WORDS,
    SAMPLE,
    Reading,
    ReferenceNames,
    Tokens,
    core_of,
    has_word,
    image_number,
    is_kind_of_file,
    is_number,
    peeled,
    readings,
    side_of,
    subject_of,
    things_concept,
    tokens_of,
)

REMEDY = (
    "say which is meant: --pattern '{image}_{sample}' (or another form of the reconstructions' names), --pairs FILE.csv with the columns "
    "reference and reconstruction, or --by-order where both folders hold the same images in the same order"
)
_FIELDS = {"image": ".+?", "sample": r"\d+", "subject": r"\d+", "method": "[^/]+?"}
_GROUPING_FOLDERS = frozenset("train training test testing val validation shared unique data dataset stimuli".split())


class ReconstructionPair(NamedTuple):
    """One reconstruction with its reference. `key` is its pair id, or its path below the folder without the ending."""

    key: str
    reference: Path
    reconstruction: Path
    method: str | None
    subject: int | None
    rule: str = ""


class PairedFolders(NamedTuple):
    """Pairs in the order of their keys, and the files that have no partner."""

    pairs: list[ReconstructionPair]
    unmatched_references: list[Path]
    unmatched_reconstructions: list[Path]

    @property
    def rule(self) -> str:
        """How the pairs were found, for the record: the rules with how many pairs each found, and the samples an image has."""
        rules = Counter(pair.rule for pair in self.pairs)
        text = "; ".join(f"{rule} ({n})" if len(rules) > 1 else rule for rule, n in rules.most_common())
        return f"{text}; {self.samples}"

    @property
    def samples(self) -> str:
        """How many reconstructions an image has, for each method and subject."""
        counts = sorted(Counter((pair.method, pair.subject, pair.reference) for pair in self.pairs).values())
        n = str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
        return f"{n} reconstruction{'' if n == '1' else 's'} an image"

    def describe(self) -> str:
        """Lines for a terminal: the rule, and three pairs."""
        step = max(1, (len(self.pairs) - 1) // 2)
        examples = [self.pairs[i] for i in sorted({0, min(step, len(self.pairs) - 1), len(self.pairs) - 1})]
        lines = [f"{len(self.pairs)} pairs, by: {self.rule}"]
        return "\n".join([*lines, *(f"  {pair.key} is of {pair.reference.name}" for pair in examples)])


def pair_folders(
    references: Path | str,
    reconstructions: Path | str,
    *,
    pattern: str | None = None,
    table: Path | str | None = None,
    by_order: bool = False,
) -> PairedFolders:
    """Find the reference of every reconstruction; many reconstructions may be of one reference.

    By name, where nothing else is said, with the rules of :mod:`.pair_names`: concept of a pair id, same path, a folder that names the
    image, same stem, stem but for words such as ``recon`` or ``gt`` and with numbers by value, first part before ``__``, and the stem
    without a sample number (``cat_3``, ``0_1``: the image comes first). All rules are asked. Where two give different references, the one
    that comes earlier here is taken only if it explains every file that the other explains and names as many references; a folder is never
    preferred to a word. Everything else stops the run.

    One folder may be given as both sides if the names say which file is which (``000_gt.png``, ``000_rec.png``). A reference among the
    reconstructions (``0_gt.png`` beside ``0_rec.png``) is left out; the reverse stops the run.

    Args:
        references: folder of reference images, at any depth.
        reconstructions: folder of reconstructed images, at any depth.
        pattern: form of the reconstructions' paths without ending, with ``{image}`` (name or number of a reference), ``{sample}``,
            ``{subject}`` (numbers), ``{method}`` and ``*`` (anything); without ``/`` it is the form of the stem, in any folder.
        table: CSV with columns ``reference`` and ``reconstruction`` (paths below the folders) and, if wanted, ``method``, ``subject``.
        by_order: the k-th reconstruction is of the k-th reference, both in natural order of their paths (2 before 10).

    Returns:
        The pairs and what was left over; a left-over file is no error, since a method may have reconstructed a part only.

    Raises:
        FileNotFoundError: a folder is missing.
        ValueError: a folder without images, nothing matched, a name that fits several references or is read in two ways, two
            reconstructions of one name, numbers that start at 0 on one side and at 1 on the other, or options that do not fit.
    """
    references, reconstructions = Path(references), Path(reconstructions)
    if sum((pattern is not None, table is not None, by_order)) > 1:
        raise ValueError("--pattern, --pairs and --by-order are three ways to say the same: give one")
    if table is not None:
        return _from_table(Path(table), references, reconstructions)
    sides = _sides(references, reconstructions, explicit=pattern is not None)
    pairs: Iterable[ReconstructionPair]
    if by_order:
        pairs = _by_order(sides, references, reconstructions)
    elif pattern is not None:
        pairs = _by_pattern(pattern, sides, references, reconstructions)
    else:
        pairs = _by_name(sides, references, reconstructions)
    return _finish(pairs, sides)


class _Sides(NamedTuple):
    references: list[Path]
    reconstructions: list[Path]
    set_aside: list[Path]


def _finish(pairs: Iterable[ReconstructionPair], sides: _Sides) -> PairedFolders:
    by_key: dict[str, ReconstructionPair] = {}
    for pair in pairs:
        if pair.key in by_key:
            raise ValueError(
                f"{pair.reconstruction} and {by_key[pair.key].reconstruction} have the same name {pair.key!r}: rename or remove one"
            )
        if pair.reference.resolve() == pair.reconstruction.resolve():
            raise ValueError(
                f"{pair.reconstruction} would be scored against itself: give the folder of the references, without reconstructions"
            )
        by_key[pair.key] = pair
    ordered = [by_key[key] for key in sorted(by_key)]
    used = {path for pair in ordered for path in (pair.reference, pair.reconstruction)}
    left = ([path for path in files if path not in used] for files in (sides.references, sides.reconstructions))
    return PairedFolders(ordered, next(left), next(left) + sides.set_aside)


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


def _sides(references: Path, reconstructions: Path, explicit: bool) -> _Sides:
    """The files of the two sides; one folder, or one inside the other, is divided by what the names say."""
    reference_files = image_files(references, "references")
    reconstruction_files = image_files(reconstructions, "reconstructions")
    one, other = references.resolve(), reconstructions.resolve()
    if one == other:
        return _divide(references, reference_files)
    if one.is_relative_to(other):
        reconstruction_files = [path for path in reconstruction_files if not path.resolve().is_relative_to(one)]
    elif other.is_relative_to(one):
        reference_files = [path for path in reference_files if not path.resolve().is_relative_to(other)]
    for files, role, folder in ((reference_files, "references", references), (reconstruction_files, "reconstructions", reconstructions)):
        if not files:
            raise ValueError(f"{folder} holds no image outside the other folder: give the folder of the {role} alone")
    if explicit:
        return _Sides(reference_files, reconstruction_files, [])
    _, among_references = _set_aside(reference_files, references, "reconstruction")
    if among_references:
        raise ValueError(
            f"{references} holds {len(among_references)} files that are reconstructions by their names, such as "
            f"{among_references[0].relative_to(references)}: give a folder of references alone, or {REMEDY}"
        )
    kept, aside = _set_aside(reconstruction_files, reconstructions, "reference")
    return _Sides(reference_files, kept, aside)


def _divide(folder: Path, files: list[Path]) -> _Sides:
    by_side: dict[str | None, list[Path]] = defaultdict(list)
    for path in files:
        by_side[side_of(path.relative_to(folder))].append(path)
    references, reconstructions, rest = (by_side[side] for side in ("reference", "reconstruction", None))
    if references and not reconstructions:
        reconstructions, rest = rest, []
    elif reconstructions and not references:
        references, rest = rest, []
    if not references or not reconstructions:
        raise ValueError(
            f"{folder} is given as both sides, and its names do not say which files are references (as 000_gt.png) and which are "
            f"reconstructions (as 000_rec.png); found for example {files[0].relative_to(folder)}: give two folders, or --pairs FILE.csv"
        )
    return _Sides(references, reconstructions, rest)


def _set_aside(files: list[Path], folder: Path, other: str) -> tuple[list[Path], list[Path]]:
    """Files without those that say they are of the `other` side and stand beside one of the same name that does not."""
    sides = {path: side_of(path.relative_to(folder)) for path in files}
    own = {core_of(path.relative_to(folder)) for path, side in sides.items() if side != other}
    aside = [path for path, side in sides.items() if side == other and core_of(path.relative_to(folder)) in own]
    return [path for path in files if path not in set(aside)], aside


# ------------------------------------------------------------------------------------------------------------------------------ by name


def _by_name(sides: _Sides, references: Path, reconstructions: Path) -> list[ReconstructionPair]:
    names = ReferenceNames(path.relative_to(references) for path in sides.references)
    relatives = [path.relative_to(reconstructions) for path in sides.reconstructions]
    said = [list(readings(relative, names)) for relative in relatives]
    evidence = _Evidence(said)
    called: dict[tuple[str | None, int | None, int], tuple[tuple[Tokens, bool], Path]] = {}  # by method, subject, reference: its name
    pairs, numbers = [], set()
    for path, relative, of_one in zip(sides.reconstructions, relatives, said):
        if not any(reading.rule != LAST_NUMBER for reading in of_one):
            if of_one:
                raise _two_ways(path, of_one[0], None, sides.references, references)
            numbers.add(image_number(relative))
            continue
        taken = evidence.resolve(path, of_one, sides.references, references)
        matches = frozenset.intersection(*(reading.references for reading in taken))
        if len(matches) > 1:
            several = ", ".join(sides.references[i].relative_to(references).as_posix() for i in sorted(matches)[:5])
            raise ValueError(
                f"{path}: its name {taken[0].name!r} fits {len(matches)} references in {references} ({several}): give each reference a name "
                f"of its own, lay the reconstructions out in the same sub-folders, or {REMEDY}"
            )
        (i,) = matches
        name = peeled(tokens_of(taken[0].name), RECONSTRUCTION_WORDS)[-1]
        numbers.add(int(name[0]) if is_number(name) else None)
        pair = _pair(relative, path, sides.references[i], taken[0].rule, names)
        said_as = (name, taken[0].rule == SAMPLE)
        other, before = called.setdefault((pair.method, pair.subject, i), (said_as, path))
        if other != said_as:
            raise ValueError(
                f"{path} and {before.relative_to(reconstructions)} name their image in two ways (one with a bare number behind it, or other "
                f"words), and only the reference {sides.references[i].relative_to(references)} fits both: another may be missing; {REMEDY}"
            )
        pairs.append(pair)
    if not pairs:
        raise ValueError(
            f"no reconstruction in {reconstructions} fits a reference in {references} by name: found for example {relatives[0]} and "
            f"{sides.references[0].relative_to(references)}; give both the same stem, name reconstructions "
            f"METHOD__sub-XX__concept__rankR__candC, or {REMEDY}"
        )
    _refuse_shifted({n for n in numbers if n is not None}, names.numbers, references, reconstructions)
    return pairs


class _Evidence:
    """Which files each rule explains, and which references it names, over all reconstructions."""

    def __init__(self, said: Sequence[Sequence[Reading]]) -> None:
        self._files: dict[str, set[int]] = defaultdict(set)
        self._references: dict[str, set[int]] = defaultdict(set)
        for k, of_one in enumerate(said):
            for reading in of_one:
                self._files[reading.rule].add(k)
                self._references[reading.rule] |= reading.references

    def resolve(self, path: Path, of_one: Sequence[Reading], files: Sequence[Path], folder: Path) -> list[Reading]:
        """The readings that agree; raises where two differ and the earlier does not explain as much as the later."""
        taken: list[Reading] = []
        for reading in of_one:
            rival = next((other for other in taken if not other.references & reading.references), None)
            if rival is None and taken and not frozenset.intersection(reading.references, *(other.references for other in taken)):
                rival = taken[0]
            if rival is None:
                taken.append(reading)
            elif not self._surer(rival, reading):
                raise _two_ways(path, rival, reading, files, folder)
        return taken

    def _surer(self, one: Reading, other: Reading) -> bool:
        if one.rule == other.rule or (one.rule == FOLDER and has_word(tokens_of(other.name))):
            return False
        explains = self._files[other.rule] <= self._files[one.rule]
        return explains and len(self._references[other.rule]) <= len(self._references[one.rule])


def _two_ways(path: Path, one: Reading, other: Reading | None, files: Sequence[Path], folder: Path) -> ValueError:
    def says(reading: Reading) -> str:
        return f"{files[min(reading.references)].relative_to(folder).as_posix()} by {reading.rule!r} (name {reading.name!r})"

    rest = f"and {says(other)}" if other is not None else "but as IMAGE_SAMPLE no reference has its name"
    return ValueError(f"{path} can be read in two ways: it is of {says(one)} {rest}; {REMEDY}")


def _refuse_shifted(numbers: set[int], known: set[int], references: Path, reconstructions: Path) -> None:
    for shift in (1, -1):
        if len({n + shift for n in numbers} & known) > len(numbers & known):
            raise ValueError(
                f"images are numbered from {min(numbers)} to {max(numbers)} in {reconstructions} and from {min(known)} to {max(known)} in "
                f"{references}: one side may count from 0 and the other from 1, and every pair would be wrong by one; {REMEDY}"
            )


def _pair(relative: Path, path: Path, reference: Path, rule: str, names: ReferenceNames) -> ReconstructionPair:
    try:
        pair = parse_pair_id(relative.stem)
    except ValueError:
        pass
    else:
        return ReconstructionPair(relative.stem, reference, path, pair.method, pair.subject, rule)
    key, folders = relative.with_suffix("").as_posix(), relative.parts[:-1]
    subject = next((found for part in (*folders, relative.stem) if (found := subject_of(part)) is not None), None)
    of_images = lambda part: any(map(names.find, peeled(tokens_of(part), REFERENCE_WORDS)))  # noqa: E731
    method = next((part for part in folders if subject_of(part) is None and not is_kind_of_file(part) and not of_images(part)), None)
    return ReconstructionPair(key, reference, path, method, subject, rule)


# ---------------------------------------------------------------------------------------------------------------------- as the caller says


def _by_order(sides: _Sides, references: Path, reconstructions: Path) -> Iterator[ReconstructionPair]:
    if len(sides.references) != len(sides.reconstructions):
        raise ValueError(
            f"--by-order needs as many references as reconstructions, found {len(sides.references)} in {references} and "
            f"{len(sides.reconstructions)} in {reconstructions}"
        )
    ordered = (sorted(files, key=_natural_order) for files in (sides.references, sides.reconstructions))
    for reference, path in zip(*ordered):
        key = path.relative_to(reconstructions).with_suffix("").as_posix()
        yield ReconstructionPair(key, reference, path, None, None, "the order of both folders (--by-order)")


def _natural_order(path: Path) -> list[tuple[int, int, str]]:
    return [(0, int(part), part) if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", path.as_posix())]


def _by_pattern(pattern: str, sides: _Sides, references: Path, reconstructions: Path) -> list[ReconstructionPair]:
    short, long = _pattern(pattern, lazy=True), _pattern(pattern, lazy=False)
    names = ReferenceNames(path.relative_to(references) for path in sides.references)
    pairs = []
    for path in sides.reconstructions:
        relative = path.relative_to(reconstructions).with_suffix("")
        text = relative.as_posix() if "/" in pattern else relative.name
        match, other = short.fullmatch(text), long.fullmatch(text)
        if match is None or other is None:
            continue
        if match.groupdict() != other.groupdict():
            raise ValueError(
                f"{path} fits --pattern {pattern!r} in two ways: {match.groupdict()} and {other.groupdict()}; write more of the name into the pattern"
            )
        part = match.groupdict()
        matches = names.path(part["image"]) or names.same(part["image"]) or names.find(tokens_of(part["image"]))
        if len(matches) > 1:
            raise ValueError(f"{path}: {{image}} of --pattern is {part['image']!r}, which fits {len(matches)} references in {references}")
        if not matches:
            continue
        subject = int(part["subject"]) if part.get("subject") else None
        (i,) = matches
        key = relative.as_posix()
        pairs.append(
            ReconstructionPair(key, sides.references[i], path, part.get("method"), subject, f"the pattern {pattern!r} (--pattern)")
        )
    if not pairs:
        raise ValueError(
            f"--pattern {pattern!r} gives no pair: found for example {sides.reconstructions[0].relative_to(reconstructions)} and the reference "
            f"{sides.references[0].relative_to(references)}; it is the form of a reconstruction's path without ending, and {{image}} the name of a reference"
        )
    return pairs


def _pattern(pattern: str, lazy: bool) -> re.Pattern[str]:
    text, fields = "", []
    for part in re.split(r"(\{[^{}]*\}|\*)", pattern):
        if part == "*":
            text += ".*?" if lazy else ".*"
        elif part.startswith("{") and part.endswith("}"):
            fields.append(part[1:-1])
            if fields[-1] not in _FIELDS or fields.count(fields[-1]) > 1:
                raise ValueError(f"--pattern {pattern!r}: {part} is not one of {', '.join(f'{{{name}}}' for name in _FIELDS)}, each once")
            expression = _FIELDS[fields[-1]]
            text += f"(?P<{fields[-1]}>{expression if lazy else expression.removesuffix('?')})"
        else:
            text += re.escape(part)
    if "image" not in fields:
        raise ValueError(f"--pattern {pattern!r} lacks {{image}}, the part that names the reference")
    return re.compile(text)


def _from_table(table: Path, references: Path, reconstructions: Path) -> PairedFolders:
    rows = read_csv(table, ("reference", "reconstruction"))
    sides = _Sides(image_files(references, "references"), image_files(reconstructions, "reconstructions"), [])
    known = {(k, path.resolve()): path for k, files in enumerate(sides[:2]) for path in files}
    pairs = []
    for where, row in rows:
        found = []
        for k, (folder, role) in enumerate(((references, "reference"), (reconstructions, "reconstruction"))):
            path = known.get((k, (folder / (row[role] or "")).resolve()))
            if path is None:
                raise ValueError(f"{where}: {role} {row[role]!r} is not an image below {folder}")
            found.append(path)
        subject = (row.get("subject") or "").strip()
        if subject and not subject.isdecimal():
            raise ValueError(f"{where}: subject {subject!r} is not a number")
        key = found[1].relative_to(reconstructions).with_suffix("").as_posix()
        rule = f"the table {table.name} (--pairs)"
        pairs.append(ReconstructionPair(key, found[0], found[1], row.get("method") or None, int(subject) if subject else None, rule))
    if not pairs:
        raise ValueError(f"{table} holds no pair: it needs a row for each reconstruction below its header")
    return _finish(pairs, sides)


# ------------------------------------------------------------------------------------------------------------------------------ concepts


def concepts_of(references: Sequence[Path]) -> list[str]:
    """The concept of each reference, from paths below their folder: its folder, its THINGS name without exemplar, else its stem.

    A folder is a concept where every reference lies in one, there are at least two, and their names are words (not ``train`` or
    ``subj01``). Numbers before a word are dropped only where every concept has the form NUMBER_WORD and the words are unique
    (``0000_aardvark``), so that ``101_dalmatian`` and ``7_up`` keep theirs.
    """
    folders = {path.parent.name for path in references}
    words = [tokens_of(folder) for folder in folders]
    if len(folders) > 1 and all(has_word(word) and not _is_grouping(word, folder) for word, folder in zip(words, folders)):
        names = [spell_concept(path.parent.name) for path in references]
    else:
        stems = ["_".join(peeled(tuple(spell_concept(path.stem).split("_")), REFERENCE_WORDS)[-1]) for path in references]
        names = [things_concept(stem) or stem for stem in stems]
        if len(set(names)) == 1 < len(references):
            names = [spell_concept(path.stem) for path in references]
    split = {name: re.fullmatch(r"\d+_(\D.*)", name) for name in names}
    rest = {match[1] for match in split.values() if match and any(c.isalpha() for c in match[1])}
    return [str(split[name][1]) for name in names] if len(rest) == len(split) else names  # type: ignore[index]


def _is_grouping(tokens: tuple[str, ...], folder: str) -> bool:
    return is_kind_of_file(folder) or subject_of(folder) is not None or tokens[0] in _GROUPING_FOLDERS
