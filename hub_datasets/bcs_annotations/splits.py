"""Which pairs belong together, the concept split, and the audit that proves that no reference crosses it."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from decodehub.loaders.pair_ids import spell_concept

SPLITS = ("train", "validation", "test")
BOUNDS = (0.70, 0.85)  # train up to the first, validation up to the second, as shares of the groups
SEED = 42
SplitRule = Literal["reference", "released_code"]
SPLIT_RULES: tuple[SplitRule, ...] = get_args(SplitRule)
_WNID = re.compile(r"n\d{8}(?=_|$)")


class PairInfo(NamedTuple):
    """What the split and the audit need to know of a pair; hashes are of decoded pixels."""

    pair_id: str
    method: str
    concept: str
    reference_sha256: str
    reconstruction_sha256: str


def concept_group(concept: str) -> str:
    """The class that a concept of a release stands for: one spelling, and the synset where it is an ImageNet file stem (CVPR40).

    Numbers stay: what is no part of the concept is left out when a release is made (`pair_ids.normalise_concept`,
    `reconstruction_pairs.concepts_of`), where all names are known.
    """
    match = _WNID.match(concept.strip().lower())
    return match[0] if match else spell_concept(concept)


def split_pairs(pairs: Iterable[PairInfo], rule: SplitRule = "reference", *, seed: int = SEED) -> dict[str, str]:
    """Divide pairs 70/15/15 by group, as the released code draws it: one ``random.Random(seed).shuffle`` of the groups.

    Groups are in order of first appearance among the sorted pair ids; shares are of groups, not of pairs, with Python's rounding.

    Args:
        pairs: all pairs.
        rule: "reference" joins pairs that have the same concept (see `concept_group`) or the same reference image, also over several steps, so
            that no reference is in two splits. "released_code" groups by the exact concept string.
        seed: 42 in the paper.

    Returns:
        Split by pair id.

    Raises:
        ValueError: an unknown rule or a pair id that is there twice.
    """
    items = sorted(pairs, key=lambda pair: pair.pair_id)
    if twice := [name for name, n in Counter(pair.pair_id for pair in items).items() if n > 1]:
        raise ValueError(f"pair id {twice[0]!r} is there twice")
    if rule == "reference":
        groups = _connected([("concept", concept_group(p.concept)), ("image", p.reference_sha256)] for p in items)
    elif rule == "released_code":
        groups = [pair.concept.strip() for pair in items]
    else:
        raise ValueError(f"split rule {rule!r} is unknown: take one of {list(SPLIT_RULES)}")
    order = list(dict.fromkeys(groups))
    random.Random(seed).shuffle(order)
    first, second = (round(bound * len(order)) for bound in BOUNDS)
    split_of = {group: SPLITS[0] if i < first else SPLITS[1] if i < second else SPLITS[2] for i, group in enumerate(order)}
    return {pair.pair_id: split_of[group] for pair, group in zip(items, groups)}


def _connected(keys_of: Iterable[Sequence[Any]]) -> list[Any]:
    """A label for each item, equal where items share a key directly or through others."""
    parent: dict[Any, Any] = {}

    def root(key: Any) -> Any:
        while (up := parent.setdefault(key, key)) != key:
            parent[key] = key = parent[up]
        return key

    firsts = []
    for keys in keys_of:
        firsts.append(keys[0])
        for key in keys:
            parent[root(key)] = root(keys[0])
    return [root(key) for key in firsts]


class LeakAudit(NamedTuple):
    """What crosses the splits, and what is there twice.

    Attributes:
        references, concepts, reconstructions: by content hash (or concept group), the pairs in each split; only what is in several splits.
            A reconstruction of several references, such as the black image of a safety filter, is no leak.
        duplicates: lists of pair ids that have the same reference and the same reconstruction.
        pairs_by_split, groups_by_split: counts.
    """

    references: dict[str, dict[str, list[str]]]
    concepts: dict[str, dict[str, list[str]]]
    reconstructions: dict[str, dict[str, list[str]]]
    duplicates: list[list[str]]
    pairs_by_split: dict[str, int]
    groups_by_split: dict[str, int]

    @property
    def leaks(self) -> bool:
        """Whether a reference image or a concept is in more than one split."""
        return bool(self.references or self.concepts)


def audit_splits(pairs: Iterable[PairInfo], split_of: Mapping[str, str]) -> LeakAudit:
    """Look for reference images, concepts and reconstructions that are in more than one split, and for pairs that are there twice.

    Args:
        pairs: all pairs, with hashes of the pixels that were really found.
        split_of: split by pair id.
    """
    items = list(pairs)
    duplicates = defaultdict(list)
    for pair in items:
        duplicates[pair.reference_sha256, pair.reconstruction_sha256].append(pair.pair_id)
    crossing = {}
    for name, key in (
        ("references", lambda p: p.reference_sha256),
        ("concepts", lambda p: concept_group(p.concept)),
        ("reconstructions", lambda p: p.reconstruction_sha256),
    ):
        where: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for pair in items:
            where[key(pair)][split_of[pair.pair_id]].append(pair.pair_id)
        crossing[name] = {value: {k: sorted(v) for k, v in found.items()} for value, found in where.items() if len(found) > 1}
    concepts = {(split_of[pair.pair_id], concept_group(pair.concept)) for pair in items}
    return LeakAudit(
        **crossing,
        duplicates=sorted(sorted(ids) for ids in duplicates.values() if len(ids) > 1),
        pairs_by_split={split: sum(split_of[p.pair_id] == split for p in items) for split in SPLITS},
        groups_by_split={split: sum(s == split for s, _ in concepts) for split in SPLITS},
    )
