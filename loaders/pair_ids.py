"""The pair ids of the BCS corpus (arXiv 2607.12364, appendix A), and one spelling for its concepts."""

from __future__ import annotations

import re
from typing import NamedTuple

_NUMBER = r"0|[1-9]\d*"
_TAIL = rf"(?P<concept>.+)__rank(?P<rank>_unknown|{_NUMBER})__cand(?P<candidate>_unknown|{_NUMBER})"
_WITH_SUBJECT = re.compile(rf"(?P<method>.+?)__sub-(?P<subject>\d\d|[1-9]\d\d+)__{_TAIL}")
_EXTRA = re.compile(rf"(?P<method>.+?)__extra__{_TAIL}__row(?P<row>{_NUMBER})")
# A running number before words: zero-padded or long, as in THINGS. 101_dalmatian and 7_up are names.
_INDEX_PREFIX = re.compile(r"^(?:0\d+|\d{4,})_(?=.*[^\W\d_])")


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


def spell_concept(concept: str) -> str:
    """A concept in lower case, its words joined by ``_``."""
    return re.sub(r"[\s_-]+", "_", concept.lower()).strip("_")


def normalise_concept(concept: str) -> str:
    """One spelling of a concept of the published corpus: lower case, words joined by ``_``, no index prefix (``00012_``).

    Sources of that corpus spell concepts differently, so that one photograph counts as several concepts there. An index is a zero-padded
    number, or one of four digits and more, before words: ``101_dalmatian`` and ``7_up`` are kept.

    Raises:
        ValueError: nothing is left.
    """
    words = spell_concept(concept)
    while (shorter := _INDEX_PREFIX.sub("", words)) != words:
        words = shorter
    if not words:
        raise ValueError(f"concept {concept!r} has no name in it")
    return words
