"""What the name of an image file may say: which image it is of, which sample, which side (reference or reconstruction), which subject.

Names are compared by their tokens: lower case, split at ``_``, ``-``, blanks and brackets, numbers by value (``000`` is ``0``). Words that
say only what kind of file it is (``recon``, ``gt``, ``img``) are peeled off the ends, and so are named sample numbers (``seed_3``,
``rank1``) and subjects (``subj01``). A bare number at the end is a sample number (``cat_3``, ``0_1``: IMAGE_SAMPLE).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from .pair_ids import parse_pair_id

Tokens = tuple[str, ...]

RECONSTRUCTION_WORDS = frozenset(
    "rec recs recon recons reconstruction reconstructions reconstructed pred predicted prediction predictions gen generated generation "
    "output outputs out decoded fake hat result results".split()
)
REFERENCE_WORDS = frozenset(
    "gt gts groundtruth ref refs reference references orig original originals target targets truth true real stim stimulus stimuli".split()
)
NEUTRAL_WORDS = frozenset("image images img imgs im pic photo photos picture pictures all".split())
SAMPLE_WORDS = frozenset("sample samples seed cand candidate rank rep repeat repetition draw".split())

_SEPARATORS = re.compile(r"[\s_\-()\[\]]+")
_WORD_NUMBER = re.compile(r"([a-z]+)(\d+)")
_SUBJECT = re.compile(r"(?:sub|subj|subject|participant)0*(\d+)")
_SUBJECT_WORDS = frozenset({"sub", "subj", "subject", "participant"})
_EXEMPLAR = re.compile(r"(.*[^\W\d_])_\d{2}[a-z]")  # aardvark_01b of THINGS


def tokens_of(text: str) -> Tokens:
    """The tokens of a name; numbers in their shortest form."""
    text = text.lower().replace("ground_truth", "gt").replace("ground-truth", "gt")
    return tuple(str(int(token)) if _is_number(token) else token for token in _SEPARATORS.split(text) if token)


def _is_number(token: str) -> bool:
    return token.isascii() and token.isdigit()


def is_number(tokens: Tokens) -> bool:
    """Whether a name is one number."""
    return len(tokens) == 1 and _is_number(tokens[0])


def has_word(tokens: Tokens) -> bool:
    """Whether a letter is in a name."""
    return any(character.isalpha() for token in tokens for character in token)


def peeled(tokens: Tokens, words: frozenset[str]) -> list[Tokens]:
    """The name, and what is left of it as words of its kind, named samples and subjects are taken off its ends one by one."""
    if sum(any(c.isdigit() for c in token) for token in tokens) == 1:  # recon0; but gen1_0 may be the first generation
        tokens = tuple(part for token in tokens for part in _parts(token, words))
    states = [tokens]
    while (shorter := _peel_once(states[-1], words)) is not None:
        states.append(shorter)
    return states


def _parts(token: str, words: frozenset[str]) -> Tokens:
    match = _WORD_NUMBER.fullmatch(token)
    return (match[1], str(int(match[2]))) if match and match[1] in words | NEUTRAL_WORDS else (token,)


def _peel_once(tokens: Tokens, words: frozenset[str]) -> Tokens | None:
    if len(tokens) < 2:
        return None
    for first in (False, True):
        end = tokens[0] if first else tokens[-1]
        match = _WORD_NUMBER.fullmatch(end)
        if end in words or end in NEUTRAL_WORDS or (match and match[1] in SAMPLE_WORDS) or _SUBJECT.fullmatch(end):
            return tokens[1:] if first else tokens[:-1]
        pair, rest = (tokens[:2], tokens[2:]) if first else (tokens[-2:], tokens[:-2])
        if rest and pair[0] in SAMPLE_WORDS | _SUBJECT_WORDS and _is_number(pair[1]):
            return rest
    return None


def subject_of(text: str) -> int | None:
    """The subject that a folder or a stem names, as ``subj01`` or ``sub-01``."""
    tokens = tokens_of(text)
    for i, token in enumerate(tokens):
        if match := _SUBJECT.fullmatch(token):
            return int(match[1])
        if token in _SUBJECT_WORDS and i + 1 < len(tokens) and _is_number(tokens[i + 1]):
            return int(tokens[i + 1])
    return None


def is_kind_of_file(text: str) -> bool:
    """Whether a folder's name tells of no method: ``recons``, ``subj01``, ``seed_3``, ``0``."""
    tokens = tokens_of(text)
    known = RECONSTRUCTION_WORDS | REFERENCE_WORDS | NEUTRAL_WORDS | SAMPLE_WORDS | _SUBJECT_WORDS
    match = _WORD_NUMBER.fullmatch(tokens[0]) if tokens else None
    return all(token in known or _is_number(token) for token in tokens) or (match is not None and len(tokens) == 1 and match[1] in known)


def side_of(relative: Path) -> str | None:
    """Whether a file's name, or else one of its folders, says "reference" or "reconstruction"."""
    for part in (relative.stem, *reversed(relative.parts[:-1])):
        tokens = tokens_of(part)
        ends = {tokens[0], tokens[-1]} if tokens else set()
        ends |= {_parts(end, RECONSTRUCTION_WORDS | REFERENCE_WORDS)[0] for end in ends}
        sides = {name for name, words in (("reference", REFERENCE_WORDS), ("reconstruction", RECONSTRUCTION_WORDS)) if ends & words}
        if len(sides) == 1:
            return sides.pop()
    return None


def core_of(relative: Path) -> tuple[str, Tokens]:
    """The folder of a file and its name without any word of its kind: equal for the two sides of one pair."""
    return relative.parent.as_posix(), peeled(tokens_of(relative.stem), REFERENCE_WORDS | RECONSTRUCTION_WORDS)[-1]


def things_concept(stem: str) -> str | None:
    """The concept of a THINGS file name, ``aardvark`` of ``aardvark_01b``, else None."""
    match = _EXEMPLAR.fullmatch(stem)
    return match[1] if match else None


class Reading(NamedTuple):
    """What one rule says of one file: the name it takes for that of the image, and the references (by number) that have it."""

    rule: str
    name: str
    references: frozenset[int]


class ReferenceNames:
    """The names by which references are known."""

    def __init__(self, relatives: Iterable[Path]) -> None:
        self._paths: dict[str, set[int]] = defaultdict(set)
        self._stems: dict[str, set[int]] = defaultdict(set)
        self._whole: dict[Tokens, set[int]] = defaultdict(set)
        self._peeled: dict[Tokens, set[int]] = defaultdict(set)
        self._folders: dict[Tokens, set[int]] = defaultdict(set)
        self._words: dict[Tokens, set[tuple[str | None, int]]] = defaultdict(set)  # name without its index, with the index
        self.numbers: set[int] = set()
        for i, relative in enumerate(relatives):
            tokens = tokens_of(relative.stem)
            self._paths[relative.with_suffix("").as_posix()].add(i)
            self._stems[relative.stem].add(i)
            self._whole[tokens].add(i)
            for state in peeled(tokens, REFERENCE_WORDS):
                self._peeled[state].add(i)
                self._add_words(state, i)
                if is_number(state):
                    self.numbers.add(int(state[0]))
            if relative.parent.name:
                self._folders[tokens_of(relative.parent.name)].add(i)
                self._add_words(tokens_of(relative.parent.name), i)
            if concept := things_concept(relative.stem.lower()):
                self._add_words(tokens_of(concept), i)

    def _add_words(self, tokens: Tokens, i: int) -> None:
        index = tokens[0] if len(tokens) > 1 and _is_number(tokens[0]) and has_word(tokens[1:]) else None
        self._words[tokens[1:] if index is not None else tokens].add((index, i))

    def path(self, name: str) -> frozenset[int]:
        """References at this path, without ending, below their folder."""
        return frozenset(self._paths.get(name, ()))

    def same(self, stem: str) -> frozenset[int]:
        """References of this stem, or else of one with equal tokens."""
        return frozenset(self._stems.get(stem) or self._whole.get(tokens_of(stem)) or ())

    def find(self, tokens: Tokens) -> frozenset[int]:
        """References known by these tokens: name without words of its kind, folder, or (where there is none) word without an index.

        An index is left out where only one side has one; two that differ are two names.
        """
        found = self._peeled.get(tokens, set()) | self._folders.get(tokens, set())
        if found:
            return frozenset(found)
        index = tokens[0] if len(tokens) > 1 and _is_number(tokens[0]) and has_word(tokens[1:]) else None
        rows = self._words.get(tokens[1:] if index is not None else tokens, set())
        return frozenset(i for other, i in rows if index is None or other is None or other == index)


FOLDER, SAMPLE, LAST_NUMBER = "the folder is the image", "IMAGE_SAMPLE", "SAMPLE_IMAGE"


def readings(relative: Path, names: ReferenceNames) -> Iterator[Reading]:
    """What each rule says of a reconstruction, the surest first; rules that say nothing are left out."""
    for rule, name, found in _readings(relative, names):
        if found:
            yield Reading(rule, name, found)


def _readings(relative: Path, names: ReferenceNames) -> Iterator[tuple[str, str, frozenset[int]]]:
    stem, parts = relative.stem, relative.with_suffix("").parts
    try:
        concept = parse_pair_id(stem).concept
    except ValueError:
        pass
    else:
        yield "concept of the pair id", concept, names.same(concept) or names.find(tokens_of(concept))
        return
    for start in range(len(parts) - 1):  # below folders of method and subject
        path = "/".join(parts[start:])
        if found := names.path(path):
            yield "same path", path, found
            break
    for folder in reversed(parts[:-1]):
        if found := _first(peeled(tokens_of(folder), RECONSTRUCTION_WORDS | REFERENCE_WORDS), names):
            yield FOLDER, folder, found
    if any(is_number(tokens_of(folder)) for folder in parts[:-1]) and not has_word(tokens_of(stem)):
        # The folder is the image, or a sample, or a subject; then the stem is the image. It is asked for evidence alone.
        for part in _SEPARATORS.split(stem):
            yield LAST_NUMBER, part, names.find(tokens_of(part))
        return
    yield "same name", stem, names.same(stem)
    if "__" in stem:
        first = stem.partition("__")[0]
        yield "name before __", first, names.same(first) or names.find(tokens_of(first))
    tokens = tokens_of(stem)
    states = peeled(tokens, RECONSTRUCTION_WORDS)
    yield "same name but for words such as recon, numbers by value", "_".join(states[-1]), _first(states, names)
    for state in states:
        if len(state) > 1 and _is_number(state[-1]):
            image = peeled(state[:-1], RECONSTRUCTION_WORDS)
            found = _first(image, names)
            yield SAMPLE, "_".join(image[-1]), found
            if found or is_number(image[-1]):
                yield LAST_NUMBER, state[-1], names.find((state[-1],))
            break


def _first(states: list[Tokens], names: ReferenceNames) -> frozenset[int]:
    return next((found for state in reversed(states) if (found := names.find(state))), frozenset())


def image_number(relative: Path) -> int | None:
    """The number that a reconstruction's name says its image has, whether or not a reference has it; None where there is none."""
    for state in peeled(tokens_of(relative.stem), RECONSTRUCTION_WORDS):
        if is_number(state):
            return int(state[0])
        if len(state) == 2 and all(map(_is_number, state)):
            return int(state[0])
    return None
