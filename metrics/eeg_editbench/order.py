"""Whether rows are in the order of the release: by ids where there are any, and by what the images themselves say.

An edit lies near the image that it was made from, and an identity edit may lie near its target's image instead. So the nearest source of
most edits is one of these two when rows are in order, whatever the encoder, and hardly ever when they are not. That share, corrected for
chance, on the embedded sample (9 sources, 98 edits) and on a rehearsal release (80 sources, 855 edits):

    rows                     encoder                                  sample      rehearsal
    in order                 EfficientNet-lite0                       .94         .84
    in order                 random projections of it to 64, 16, 4    .88 .70 .31 .78 .51 .10
    in order                 pixels; random projections to 64, 16, 4  .71 .70 .69 .52   .69 .67 .59 .24
    edits off by one row     EfficientNet-lite0, pixels               .63 .65     .50 .61
    sorted by id             EfficientNet-lite0, pixels               .07 .08     .52 .66
    shuffled, reversed       all of these                             0 +- .08    0 +- .01
    in any order             one that maps images at random           0 +- .07    0 +- .01

Order by family, off by one and by name are told from the right one by comparison: each was the best of the orders tried, by 4 to 27
standard errors on the rehearsal release (3 with 4 projections). What no image says is the order of the edits of one concept and family: only ids do.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from decodehub.core.words import suggest

from .benchmark import Benchmark, export_stem

REFUSED_BELOW, DOUBTED_BELOW = 0.15, 0.5  # agreement corrected for chance; see the module
CLEARLY_BETTER, PERHAPS_BETTER = 3.0, 1.0  # standard errors by which another order fits better (McNemar)
EEG_AT_CHANCE, EEG_CLEAR = 3.0, 5.0  # standard deviations of a random order


class RowOrderError(ValueError):
    """Rows are not in the order of the release, or nothing shows that they are."""


class Fit(NamedTuple):
    """How many images lie nearest to the source that their row stands for.

    Attributes:
        share: of the rows as they are, 0 to 1. chance: what rows in random order would give.
        better: another order that fits better, in words, or None; `better_share`, its share, and `better_by`, in standard errors.
    """

    share: float
    chance: float
    better: str | None = None
    better_share: float = 0.0
    better_by: float = 0.0

    @property
    def agreement(self) -> float:
        """The share corrected for chance: 1 is full agreement, 0 what a random order gives."""
        return (self.share - self.chance) / (1 - self.chance) if self.chance < 1 else 0.0

    def words(self, group: str) -> str:
        """The share, for people."""
        near = "their own source or that of their target" if group == "edits" else "their own source"
        return f"{100 * self.share:.1f} % of {group} lie nearest to {near} (random order: {100 * self.chance:.1f} %)"

    @property
    def other(self) -> str:
        """The other order, for people; empty where none fits better."""
        return f", and {100 * self.better_share:.1f} % if they are {self.better}" if self.better else ""


def row_order(benchmark: Benchmark, sources: np.ndarray, edits: np.ndarray, nulls: np.ndarray | None = None) -> dict[str, Fit]:
    """How well edits, and null edits where there are any, lie with their sources.

    Args:
        benchmark: the release.
        sources: (Q, D) finite image embeddings. edits: (E, D). nulls: (Q, D) or None. Columns of score matrices (image in rows) do as well.

    Returns:
        By "edits" and "nulls".
    """
    b, q = benchmark, np.arange(len(benchmark.concepts))
    by_source = _orders(b.concepts)
    by_edit = {
        **_orders(b.edit_ids),
        "in families, sorted": np.argsort(b.family.astype(str), kind="stable"),
        "in families": np.argsort([list(dict.fromkeys(b.family)).index(f) for f in b.family], kind="stable"),
    }
    found = {"edits": _fit("edits", _nearest(sources, edits), b.query, b.target, by_source, by_edit)}
    if nulls is not None:
        found["nulls"] = _fit("nulls", _nearest(sources, nulls), q, np.full(len(q), -1), by_source, by_source)
    return found


def check_row_order(
    benchmark: Benchmark,
    sources: np.ndarray,
    edits: np.ndarray,
    nulls: np.ndarray | None = None,
    *,
    allow: bool = False,
    by_ids: bool = False,
    names: Mapping[str, str] | None = None,
) -> str:
    """Refuse or doubt image rows that are not in the order of the release.

    Args:
        benchmark, sources, edits, nulls: see `row_order`.
        allow: take the rows as they are; what was found is part of the answer.
        by_ids: rows were put in order by ids. An encoder may then map edits far away from their sources, and is only warned of.
        names: what to call "sources", "edits" and "nulls" in errors.

    Returns:
        What was found, in words for the record.

    Raises:
        RowOrderError: agreement near chance, or another order that fits clearly better.
    """
    names = {"sources": "sources", "edits": "edits", "nulls": "nulls", **(names or {})}
    remedy = (
        f"give ids beside the arrays or put rows in the order of release {benchmark.release!r} (decodehub editbench export writes both); "
        "allow the order by name (--allow-order, allow_order=True) if the image encoder really maps edits away from their sources"
    )
    words = []
    for group, fit in row_order(benchmark, sources, edits, nulls).items():
        seen, which = fit.words(group), f"{names[group]} and {names['sources']}"
        words.append(seen)
        if allow:
            continue
        if fit.better_by > CLEARLY_BETTER:
            raise RowOrderError(f"{which}: rows are in another order: {seen}{fit.other}: {remedy}")
        if fit.agreement < REFUSED_BELOW and not by_ids:
            raise RowOrderError(f"{which}: nothing shows that rows are in order: {seen}: {remedy}")
        if fit.agreement < DOUBTED_BELOW or fit.better_by > PERHAPS_BETTER:
            settle = "their ids say otherwise" if by_ids else "ids beside the arrays would settle it"
            warnings.warn(f"{which}: rows may be in another order: {seen}{fit.other}; {settle}", stacklevel=3)
    how = "rows put in order by ids" if by_ids else "rows as given, order allowed by name" if allow else "rows as given"
    return f"{how}: {'; '.join(words)}"


def column_order(benchmark: Benchmark, source_scores: np.ndarray, edit_scores: np.ndarray, null_scores: np.ndarray | None) -> str | None:
    """Doubts about the order of candidates in score matrices, in words; None where there is none.

    An image's scores over all queries say where it lies, as its embedding would, even where the queries are noise.

    Args:
        benchmark: the release. source_scores: (Q, Q) finite, queries in rows. edit_scores: (Q, E). null_scores: (Q, Q) or None.
    """
    for group, fit in row_order(benchmark, source_scores.T, edit_scores.T, None if null_scores is None else null_scores.T).items():
        if fit.better_by > CLEARLY_BETTER or fit.agreement < REFUSED_BELOW:
            return (
                f"scores of {group} may be in another order than release {benchmark.release!r}: over all queries {fit.words(group)}"
                f"{fit.other if fit.better_by > CLEARLY_BETTER else ''}"
            )
    return None


def query_order(benchmark: Benchmark, source_scores: np.ndarray) -> str | None:
    """Another order of the EEG rows that fits where the given one is at chance, in words; None where there is none.

    The mean score of the matched pairs is compared with that of random orders (mean and variance of a permutation statistic, exact).

    Args:
        benchmark: the release. source_scores: (Q, Q) float, queries in rows.
    """
    scores = np.asarray(source_scores, dtype=np.float64)
    centered = scores - scores.mean(0) - scores.mean(1, keepdims=True) + scores.mean()
    spread = np.sqrt((centered**2).sum() / max(len(scores) - 1, 1))
    if not spread > 0:
        return None
    rows = np.arange(len(scores))
    # Row k of the EEG is concept order[k], so its own source is column order[k].
    z = {name: centered[rows, order].sum() / spread for name, order in _orders(benchmark.concepts).items()}
    given = z.pop(AS_GIVEN)
    best = max(z, key=lambda name: z[name])
    return best if given < EEG_AT_CHANCE and z[best] > EEG_CLEAR else None


def by_ids(rows: np.ndarray, ids: Sequence[object], wanted: Sequence[str], name: str, release: str) -> np.ndarray:
    """Put rows in the order of the release.

    Args:
        rows: (n, D). ids: n concepts or edit ids, or the names of the files that ``decodehub editbench export`` wrote, with or without folder
            and suffix. wanted: n ids in the order of the release.
        name: what to call the rows in errors. release: its name.

    Raises:
        ValueError: an id that is unknown, missing or there twice; it is named.
    """
    texts = [x.decode(errors="replace") if isinstance(x, bytes) else str(x) for x in ids]
    if len(texts) != len(rows):
        raise ValueError(f"{name} has {len(rows)} rows and {len(texts)} ids: give one id a row")
    position = {export_stem(i, id_): i for i, id_ in enumerate(wanted)} | {id_: i for i, id_ in enumerate(wanted)}
    row_of: dict[int, int] = {}
    for row, text in enumerate(texts):
        file = text.replace("\\", "/").rsplit("/", 1)[-1]
        place = next((position[x] for x in (text, file, file.rpartition(".")[0]) if x in position), None)
        if place is None:
            raise ValueError(f"{name}: id {text!r} of row {row} is not in release {release!r}{suggest(text, wanted)}")
        if place in row_of:
            raise ValueError(f"{name}: id {wanted[place]!r} is in rows {row_of[place]} and {row}")
        row_of[place] = row
    if missing := [id_ for i, id_ in enumerate(wanted) if i not in row_of]:
        raise ValueError(f"{name} lacks {len(missing)} of the {len(wanted)} ids of release {release!r}, the first is {missing[0]!r}")
    return rows[[row_of[i] for i in range(len(wanted))]]


AS_GIVEN = "as given"


def _orders(ids: Sequence[str]) -> dict[str, np.ndarray]:
    """Orders that rows are found in by mistake: by name, which row of the release each row of the array is."""
    n = np.arange(len(ids))
    return {
        AS_GIVEN: n,
        "reversed": n[::-1],
        "one row too late": np.roll(n, 1),
        "one row too early": np.roll(n, -1),
        "sorted by id": np.array(sorted(range(len(ids)), key=lambda i: ids[i])),
    }


def _nearest(sources: np.ndarray, images: np.ndarray) -> np.ndarray:
    """(n,) the source that each image lies nearest to: largest cosine once the sources' mean is taken off all."""
    center = sources.mean(0, dtype=np.float64)
    left, right = ((np.asarray(x) - center).astype(np.float32) for x in (sources, images))
    lengths = np.linalg.norm(left, axis=1)
    return np.argmax(right @ (left / np.where(lengths > 0, lengths, 1.0)[:, None]).T, axis=1)


def _fit(
    group: str,
    nearest: np.ndarray,
    own: np.ndarray,
    target: np.ndarray,
    source_orders: Mapping[str, np.ndarray],
    image_orders: Mapping[str, np.ndarray],
) -> Fit:
    """How well images whose nearest sources are `nearest` (n,) fit their own (n,) or their target (n,), -1 for none."""
    found = np.bincount(nearest, minlength=len(source_orders[AS_GIVEN])) / len(nearest)
    second = (target >= 0) & (target != own)
    chance = float((found[own] + np.where(second, found[target], 0.0)).mean())
    fits = {
        (s, i): (source_order[nearest] == own[order]) | (source_order[nearest] == target[order])
        for s, source_order in source_orders.items()
        for i, order in image_orders.items()
    }
    given = fits[AS_GIVEN, AS_GIVEN]
    best = max(fits, key=lambda name: np.count_nonzero(fits[name]))  # the given one, where none has more
    gained, lost = np.count_nonzero(fits[best] & ~given), np.count_nonzero(given & ~fits[best])
    if gained == lost:
        return Fit(float(given.mean()), chance)
    words = " and ".join(f"{what} {order}" for what, order in zip(("sources", group), best) if order != AS_GIVEN)
    return Fit(float(given.mean()), chance, words, float(fits[best].mean()), float((gained - lost) / np.sqrt(gained + lost)))
