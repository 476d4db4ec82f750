"""Ranks, correlations, and tests and intervals over few clusters. Pure functions on arrays; every metric and the leaderboard use these.

A cluster is what was drawn independently: a subject, or a concept whose reconstructions share a reference. Benchmarks of this field have 2 to 40 of
them, where the percentile bootstrap is too narrow: about 83 % instead of 95 at 5 clusters and 90 % at 10 (``benchmarks/interval_coverage.py``).

* **Means and mean differences**: :func:`mean_interval`, all values that the sign-flip test of :func:`sign_flip` does not reject at 5 %. It is exact
  for independent clusters that are symmetric about the mean, of whatever sizes and spreads, and agrees with the p value beside it. Its ends are
  means over subsets of the clusters, so it stays in the range of the values (Fisher 1935, The Design of Experiments, section 21; Hartigan 1969,
  Using subsample values as typical values, J. Am. Stat. Assoc. 64: 1303-1317). In simulations it covered better than Student's t and the bootstrap-t with
  clusters of unequal size, and as well as t with equal ones. Strongly skewed clusters are covered too rarely by all of them.
* **Other statistics** (correlations, kappas, rates): :func:`percentile_interval` of a bootstrap over clusters with *expanded* percentiles, which have
  the width of Student's t with n - 1 degrees of freedom (Hesterberg 2015, What teachers should know about the bootstrap, Am. Stat. 69: 371-386).
* **No interval below** `FEWEST` **clusters**: with five, the smallest p of a sign-flip test is 2 / 2^5 = .0625, so that no value can be rejected.
* **An undefined resample** (a correlation of constants, a kappa of equal answers) counts as below the lower and as above the upper end. It can only widen an
  interval; where undefined ones fill a tail there is none.
* **Zero up to rounding**: a spread or difference below `ROUNDING` of the values that it is made of is zero (:func:`settled`, :func:`is_constant`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import comb, lgamma
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, stdtrit

LEVEL = 0.95
FEWEST = 6  # clusters of an interval
EXACT_UP_TO = 16  # clusters: 32,768 pairs of opposite sign patterns
DRAWS = 20_000  # sign patterns above that
RESAMPLES = 2_000
ROUNDING = 1e-12  # some thousand roundings of float64, relative to the size of the values
ROUNDING_32 = 1e-6  # the same of float32
ENUMERATE_UP_TO = 10  # 92,378 compositions at 10 clusters, 352,716 at 11
ENUMERATED_DRAWS = 20_000  # resamples of `bootstrap_of_means` above that
_BINS = 1024
_BLOCK = 4_000_000  # float64 values held at once: 32 MB


# ------------------------------------------------------------------------------------------------------------------- zero up to rounding


def settled(x: np.ndarray, scale: float | np.ndarray) -> np.ndarray:
    """Differences with those that are only rounding set to 0.

    Args:
        x: (...) float64, differences of values.
        scale: size of the values that were subtracted, such as 1 for shares; broadcasts with `x`.

    Returns:
        (...) float64.
    """
    x = np.asarray(x, dtype=np.float64)
    return np.where(np.abs(x) <= ROUNDING * np.asarray(scale), 0.0, x)


def is_constant(x: np.ndarray, *, scale: float = 0.0, rounding: float = ROUNDING) -> bool:
    """Whether finite (n,) values are all the same up to rounding.

    Args:
        x: (n,) values.
        scale: size of what they are differences of, where that is larger than they are.
        rounding: of the arithmetic that they come from, relative: `ROUNDING` of float64, or `ROUNDING_32` of float32.
    """
    x = np.asarray(x)
    return not len(x) or bool(np.ptp(x) <= rounding * max(float(np.abs(x).max()), scale))


def divide(a: np.ndarray, b: np.ndarray, scale: float | np.ndarray = 1.0) -> np.ndarray:
    """a / b, NaN where b is 0 up to the rounding of sums of the size `scale`; shapes broadcast."""
    a, b = np.broadcast_arrays(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64))
    return np.divide(a, b, out=np.full(a.shape, np.nan), where=np.abs(b) > ROUNDING * np.asarray(scale))


# ------------------------------------------------------------------------------------------------------------------- ranks, correlations


def ranks(values: np.ndarray) -> np.ndarray:
    """(n,) average ranks from 1 of (n,) finite values; ties share theirs, and values that differ by rounding alone are ties."""
    order, starts = _ties(np.asarray(values))
    ends = np.append(starts[1:], len(order))
    found = np.empty(len(order))
    found[order] = np.repeat((starts + ends + 1) / 2, ends - starts)
    return found


def weighted_ranks(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """(B, n) average ranks of (n,) values of which value i occurs weight[b, i] (whole) times; ties as in :func:`ranks`."""
    order, starts = _ties(np.asarray(x))
    group = np.empty(len(order), dtype=int)
    group[order] = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(order))))
    per_value = np.add.reduceat(weight[:, order], starts, axis=1)
    return (np.cumsum(per_value, axis=1) - (per_value - 1) / 2)[:, group]


def _ties(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The order of (n,) values, and where in it each group of tied ones begins."""
    order = np.argsort(values, kind="stable")
    if not len(order):
        return order, np.empty(0, dtype=int)
    ordered = values[order]
    new = np.diff(ordered) > ROUNDING * max(abs(float(ordered[0])), abs(float(ordered[-1])))
    return order, np.flatnonzero(np.concatenate([[True], new]))


def pearson(x: np.ndarray, y: np.ndarray, *, rounding: float = ROUNDING) -> float:
    """Pearson's r of two (n,) arrays, in [-1, 1]; NaN where either is constant up to `rounding` (see :func:`is_constant`)."""
    if len(x) < 2 or is_constant(x, rounding=rounding) or is_constant(y, rounding=rounding):
        return float("nan")
    a, b = x - x.mean(), y - y.mean()
    norm = np.sqrt((a @ a) * (b @ b))
    if not norm > 0:  # squares of very small values
        return pearson(a / np.abs(a).max(), b / np.abs(b).max(), rounding=rounding)
    return float(np.clip(a @ b / norm, -1.0, 1.0))


def spearman(x: np.ndarray, y: np.ndarray, *, rounding: float = ROUNDING) -> float:
    """Spearman's rho of two (n,) arrays, in [-1, 1]; NaN as :func:`pearson`."""
    if len(x) < 2 or is_constant(x, rounding=rounding) or is_constant(y, rounding=rounding):
        return float("nan")
    return pearson(ranks(x), ranks(y))


# ------------------------------------------------------------------------------------------------------------------- the sign-flip test


class SignFlip(NamedTuple):
    """A two-sided test of a zero mean under random signs.

    Attributes:
        p: of the test.
        p_min: the smallest p that so many clusters can give: all of one sign.
        method: in words.
    """

    p: float
    p_min: float
    method: str


def least_p(n: int, draws: int = DRAWS) -> float:
    """The smallest two-sided p of a sign-flip test over `n` clusters: 2 / 2^n up to 16, then 1 / (draws + 1)."""
    return 2.0 ** (1 - n) if n <= EXACT_UP_TO else 1 / (draws + 1)


def sign_flip(sums: np.ndarray, *, draws: int = DRAWS, seed: int = 0) -> SignFlip:
    """Test whether the sum of independent (n,) contributions is zero, under random signs of them.

    Up to 16 clusters all sign patterns are listed; above, `draws` random ones are taken and the observed one counts among them. Contributions are taken as
    they are: pass differences through :func:`settled` first.

    Args:
        sums: (n,) float64, what each cluster adds to a mean (differences of cluster means, or weighted sums).
        draws, seed: of the random patterns.
    """
    sums = np.asarray(sums, dtype=np.float64)
    n = len(sums)
    edge = abs(sums.sum()) - ROUNDING * np.abs(sums).sum()
    hits = sum(int((np.abs(2 * (subsets @ sums) - sums.sum()) >= edge).sum()) for subsets in _subsets(n, draws, seed))
    exact = n <= EXACT_UP_TO
    return SignFlip(
        (hits + 1) / _n_patterns(n, draws), least_p(n, draws), "exact sign-flip test" if exact else f"sign-flip test, {draws:,} draws"
    )


def mean_interval(sums: np.ndarray, weights: np.ndarray | None = None, *, draws: int = DRAWS, seed: int = 0) -> np.ndarray:
    """95 % intervals of means over clusters: every mean that the sign-flip test of the same clusters does not reject.

    A sign pattern splits the clusters in two; it does not speak against a mean that lies between the means of the two parts. The ends are thus order statistics of
    the means over subsets.

    Args:
        sums: (n, M) sum of each cluster. Means are sums.sum(0) / weights.sum(0).
        weights: (n,) or (n, M) weight of each cluster, such as its number of pairs; all alike by default. A cluster of weight 0 does not count.
        draws, seed: of the random patterns above 16 clusters.

    Returns:
        (M, 2) float64; NaN with fewer than `FEWEST` clusters and for a mean that is not finite.
    """
    sums = np.asarray(sums, dtype=np.float64)
    n, m = sums.shape
    weight = np.ones((n, 1)) if weights is None else np.asarray(weights, dtype=np.float64).reshape(n, -1)
    weight = np.broadcast_to(weight, sums.shape)
    ends = np.full((m, 2), np.nan)
    columns = np.flatnonzero(np.isfinite(sums).all(0) & ((weight > 0).sum(0) >= FEWEST)) if n >= FEWEST else np.empty(0, dtype=int)
    rank = int((1 - LEVEL) * _n_patterns(n, draws) + 1e-9) if len(columns) else 0
    if rank < 1:
        return ends
    width = max(1, _BLOCK // (_n_patterns(n, draws) - 1))
    for start in range(0, len(columns), width):
        block = columns[start : start + width]
        parts = [_part_means(subsets, sums[:, block], weight[:, block]) for subsets in _subsets(n, draws, seed)]
        low, high = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        ends[block, 0] = np.partition(low, rank - 1, axis=0)[rank - 1]
        ends[block, 1] = -np.partition(-high, rank - 1, axis=0)[rank - 1]
    return ends


def _part_means(subsets: np.ndarray, sums: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(B, M) smaller and larger of the means over a subset and over the rest; without bounds where one of them is empty."""
    total, whole = sums.sum(0), weight.sum(0)
    part, size = subsets @ sums, subsets @ weight
    split = (size > ROUNDING * whole) & (whole - size > ROUNDING * whole)
    with np.errstate(invalid="ignore", divide="ignore"):
        one, other = part / size, (total - part) / (whole - size)
    return np.where(split, np.minimum(one, other), -np.inf), np.where(split, np.maximum(one, other), np.inf)


def _n_patterns(n: int, draws: int) -> int:
    """How many pairs of opposite sign patterns are counted, the observed one among them."""
    return 2 ** (n - 1) if n <= EXACT_UP_TO else draws + 1


def _subsets(n: int, draws: int, seed: int) -> Iterator[np.ndarray]:
    """(B, n) float64 of 0 and 1, in blocks: which clusters have a plus. One of each pair of opposite patterns, without the observed one."""
    if n <= EXACT_UP_TO:
        yield _all_subsets(n)
        return
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    step = max(1, _BLOCK // n)
    for start in range(0, draws, step):
        yield rng.integers(0, 2, size=(min(step, draws - start), n), dtype=np.int8).astype(np.float64)


@cache
def _all_subsets(n: int) -> np.ndarray:
    return ((np.arange(1, max(1, 2 ** (n - 1)))[:, None] >> np.arange(n)) & 1).astype(np.float64)  # the last cluster is in the other part


def no_interval(n: int, what: str) -> str:
    """Why `n` clusters called `what` (a plural) have no interval, "" where they have."""
    return "" if n >= FEWEST else f"{n} {what if n != 1 else what.removesuffix('s')}: no 95 % interval below {FEWEST}"


# ------------------------------------------------------------------------------------------------------------------- bootstrap over clusters


class Resamples:
    """Bootstrap resamples of clusters: all rows of a cluster are drawn together.

    Attributes:
        counts: (B, n) float64, how often each cluster is drawn in each resample; B is 0 where there are too few clusters.
        cluster: (rows,) the cluster of each row, from 0.
        n: clusters.
    """

    def __init__(self, names: Sequence[str], n_resamples: int, seed: int = 0, fewest: int = FEWEST) -> None:
        distinct, self.cluster = np.unique(np.asarray(names, dtype=str), return_inverse=True)
        self.n = len(distinct)
        draws = n_resamples if self.n >= fewest else 0
        self.counts = np.random.default_rng(seed).multinomial(self.n, np.full(self.n, 1 / self.n), size=draws).astype(np.float64)

    def totals(self, values: np.ndarray, cluster: np.ndarray | None = None) -> np.ndarray:
        """(n, ...) sum of `values` (m, ...) over each cluster; `cluster` (m,) says whose value each is, by default those of the rows."""
        total = np.zeros((self.n, *values.shape[1:]))
        np.add.at(total, self.cluster if cluster is None else cluster, values)
        return total

    def sums(self, values: np.ndarray, cluster: np.ndarray | None = None) -> np.ndarray:
        """(B, ...) sum of `values` (m, ...) in each resample; see :meth:`totals`."""
        return np.tensordot(self.counts, self.totals(values, cluster), axes=1)

    def weights(self, cluster: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Slices of the resamples and (b, m) how often each of m values occurs in them, a block at a time."""
        step = max(1, _BLOCK // max(1, len(cluster)))
        for start in range(0, len(self.counts), step):
            block = slice(start, start + step)
            yield block, self.counts[block][:, cluster]


def bootstrap_pearson(x: np.ndarray, y: np.ndarray, resamples: Resamples, cluster: np.ndarray, *, rounding: float = ROUNDING) -> np.ndarray:
    """(B,) r of (m,) values in each resample, from sums over clusters; NaN where either is constant."""
    if len(x) < 2 or is_constant(x, rounding=rounding) or is_constant(y, rounding=rounding):
        return np.full(len(resamples.counts), np.nan)
    a, b = ((v - v.mean()) / np.ptp(v) for v in (x, y))  # so that differences of large sums lose no digits
    n, sa, sb, saa, sbb, sab = resamples.sums(np.column_stack([np.ones_like(a), a, b, a * a, b * b, a * b]), cluster).T
    with np.errstate(invalid="ignore", divide="ignore"):
        va, vb = saa - sa * sa / n, sbb - sb * sb / n
        # Sums of squares of values in [-1, 1]: what is smaller than the rounding of n of them is 0.
        small = (va <= ROUNDING * n) | (vb <= ROUNDING * n) | (n < 2)
        return np.where(small, np.nan, np.clip((sab - sa * sb / n) / np.sqrt(va * vb), -1.0, 1.0))


def bootstrap_spearman(
    x: np.ndarray, y: np.ndarray, resamples: Resamples, cluster: np.ndarray, *, rounding: float = ROUNDING
) -> np.ndarray:
    """(B,) Spearman's rho in each resample: ranks are those within the resample, where a cluster drawn twice has every value twice."""
    out = np.full(len(resamples.counts), np.nan)
    if len(x) < 2 or is_constant(x, rounding=rounding) or is_constant(y, rounding=rounding):
        return out
    for block, weight in resamples.weights(cluster):
        rx, ry = (weighted_ranks(values, weight) for values in (x, y))
        total = weight.sum(1, keepdims=True)
        with np.errstate(invalid="ignore", divide="ignore"):
            rx -= (weight * rx).sum(1, keepdims=True) / total
            ry -= (weight * ry).sum(1, keepdims=True) / total
            norms = [(weight * r * r).sum(1) for r in (rx, ry)]
            # Ranks that differ have a sum of squares of at least 1/4; those of one value only have none but for rounding.
            small = (norms[0] < 0.1) | (norms[1] < 0.1)
            rho = np.clip((weight * rx * ry).sum(1) / np.sqrt(norms[0] * norms[1]), -1.0, 1.0)
        out[block] = np.where(small, np.nan, rho)
    return out


def unit_totals(totals: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """Totals of the clusters.

    Args:
        totals: (rows, K) float64, what each row adds to K sums.
        groups: (rows,) cluster of each row, e.g. its concept; None if rows are clusters themselves.

    Returns:
        (n_clusters, K) float64.
    """
    if groups is None:
        return totals
    _, index = np.unique(groups, return_inverse=True)
    return np.stack([np.bincount(index, column) for column in totals.T], axis=-1)


def resampled_totals(units: np.ndarray, n_resamples: int = RESAMPLES, seed: int = 0) -> Iterator[np.ndarray]:
    """Sums over resamples of (n, K) units with replacement, in blocks of (b, K).

    Units with the same totals are one and the same for every statistic of sums, so the multinomial is over distinct rows.
    """
    rows, multiplicity = np.unique(units, axis=0, return_counts=True)
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    step = max(1, _BLOCK // len(rows))
    for start in range(0, n_resamples, step):
        drawn = rng.multinomial(len(units), multiplicity / len(units), size=min(step, n_resamples - start))
        yield drawn.astype(np.float64) @ rows


def bootstrap_ci(
    units: np.ndarray,
    statistic: Callable[[np.ndarray], np.ndarray],
    *,
    n_resamples: int = RESAMPLES,
    seed: int = 0,
    expanded: bool = True,
    fewest: int = FEWEST,
) -> np.ndarray:
    """95 % intervals of statistics of sums over clusters.

    Args:
        units: (n, K), see :func:`unit_totals`.
        statistic: (B, K) -> (B, S), from sums to statistics; NaN where one is not defined.
        n_resamples, seed: of the bootstrap.
        expanded, fewest: see :func:`percentile_interval`.

    Returns:
        (S, 2) ends; NaN where there is no interval.
    """
    if len(units) < fewest:
        return np.full((statistic(units.sum(0)[None]).shape[1], 2), np.nan)
    draws = np.concatenate([statistic(sums) for sums in resampled_totals(units, n_resamples, seed)])
    return percentile_interval(draws, len(units), expanded=expanded, fewest=fewest)


def percentile_interval(draws: np.ndarray, n: int, *, expanded: bool = True, fewest: int = FEWEST) -> np.ndarray:
    """95 % intervals from bootstrap draws of S statistics over `n` clusters.

    Args:
        draws: (B, S) float64. A draw that is not defined counts as below the lower and above the upper end.
        n: clusters that were resampled.
        expanded: True widens the percentiles to the width of Student's t; False takes 2.5 and 97.5 %, which cover too rarely with few clusters.
        fewest: clusters from which there is an interval.

    Returns:
        (S, 2); NaN without draws, below `fewest` clusters, and where undefined draws fill a tail.
    """
    if not len(draws) or n < max(fewest, 2):
        return np.full((draws.shape[1], 2), np.nan)
    tail = (1 - LEVEL) / 2
    if expanded:
        tail = float(ndtr(np.sqrt(n / (n - 1)) * stdtrit(n - 1, tail)))
    known = np.isfinite(draws)
    with np.errstate(invalid="ignore"):
        low = np.quantile(np.where(known, draws, -np.inf), tail, axis=0)
        high = np.quantile(np.where(known, draws, np.inf), 1 - tail, axis=0)
    ends = np.stack([low, high], axis=1)
    return np.where(np.isfinite(ends).all(1, keepdims=True), ends, np.nan)


# ------------------------------------------------------------------------------------------- the bootstrap of the EEG-EditBench paper


def bootstrap_of_means(means: np.ndarray, *, resamples: int = ENUMERATED_DRAWS, seed: int = 0) -> tuple[np.ndarray, str]:
    """95 % percentile bootstrap intervals of means over few clusters, as EEG-EditBench (arXiv 2607.27857, section S5.1) states them. At ten clusters they cover about 90 %.

    Up to ten clusters every resample is enumerated (the compositions of n into n parts, with their multinomial weights), so the interval
    has no Monte-Carlo error; above, `resamples` vectorised draws are taken. An end is the outermost mean whose tail, itself
    included, holds at least 2.5 % of the resamples.

    Args:
        means: (n, M) float64, a row a cluster.
        resamples, seed: for more than ten clusters only.

    Returns:
        (M, 2) lower and upper ends (NaN for one cluster and where a mean is NaN), and the resamples in words.
    """
    n = len(means)
    if n < 2:
        return np.full((means.shape[1], 2), np.nan), "none"
    if n <= ENUMERATE_UP_TO:
        counts, weights = _compositions(n)
        method = f"{len(counts):,} compositions"
    else:
        rng = np.random.default_rng(np.random.SeedSequence(seed))
        counts = rng.multinomial(n, np.full(n, 1 / n), size=resamples).astype(np.float64)
        weights = np.full(resamples, 1.0 / resamples)
        method = f"{resamples:,} resamples, seed {seed}"
    ends = np.full((means.shape[1], 2), np.nan)
    finite = np.flatnonzero(np.isfinite(means).all(0))
    buffer, bins = np.empty((8, len(weights))), np.empty(len(weights), dtype=np.intp)  # some 6 MB, used again and again
    for start in range(0, len(finite), len(buffer)):
        block = finite[start : start + len(buffer)]
        low, high = means[:, block].min(0), means[:, block].max(0)
        scale = _BINS / np.where(high > low, high - low, 1.0)
        # In units of histogram bins, a row a metric: no resampled mean lies outside the clusters' own range.
        resampled = np.matmul(((means[:, block] - low) * (scale / n)).T, counts.T, out=buffer[: len(block)])
        for j, column in enumerate(block):
            np.copyto(bins, resampled[j], casting="unsafe")
            ends[column] = low[j] + _ends(resampled[j], bins, weights) / scale[j]
    return ends, method


def _ends(draws: np.ndarray, bin_of: np.ndarray, weights: np.ndarray, level: float = 0.025) -> np.ndarray:
    """(2,) the smallest draw with at least `level` of the weight at or below it, the largest with as much at or above it.

    Draws are in units of bins, 0 to `_BINS`, and `bin_of` are their whole parts. A weighted histogram finds the two bins that hold the ends; only
    those are sorted, which is exact and far faster than sorting all draws.
    """
    level -= 1e-12  # rounding of the summed weights
    mass = np.bincount(bin_of, weights, _BINS + 1)
    ends = []
    for sign in (1, -1):
        below = np.cumsum(mass[::sign])
        k = int(np.searchsorted(below, level))
        members = np.flatnonzero(bin_of == (k if sign == 1 else len(mass) - 1 - k))
        members = members[np.argsort(sign * draws[members], kind="stable")]
        reached = (below[k - 1] if k else 0.0) + np.cumsum(weights[members])
        ends.append(draws[members[min(int(np.searchsorted(reached, level)), len(members) - 1)]])
    return np.array(ends)


@cache
def _compositions(n: int) -> tuple[np.ndarray, np.ndarray]:
    """All ways to draw n clusters n times: (C(2n-1, n), n) counts as float64 and their probabilities."""
    rows = _spread(n, n)
    assert len(rows) == comb(2 * n - 1, n)
    log_factorial = np.array([lgamma(k + 1) for k in range(n + 1)])
    weights = np.exp(log_factorial[n] - log_factorial[rows].sum(1) - n * np.log(n))
    return rows.astype(np.float64), weights / weights.sum()


def _spread(total: int, parts: int) -> np.ndarray:
    """All (rows, parts) non-negative whole numbers that sum to `total`."""
    rows = np.array([[k] for k in range(total + 1)])
    for _ in range(parts - 2):
        left = total - rows.sum(1)
        repeats = left + 1
        firsts = np.repeat(rows, repeats, axis=0)
        offsets = np.arange(repeats.sum()) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        rows = np.column_stack([firsts, offsets])
    return np.column_stack([rows, total - rows.sum(1)])
