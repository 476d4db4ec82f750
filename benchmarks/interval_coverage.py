"""How often 95 % intervals over few clusters hold the true value, and how often a paired test finds nothing where there is nothing.

    python benchmarks/interval_coverage.py [--simulations 2000]

Means: clusters are drawn as normal, heavy-tailed (Student's t, 3 degrees of freedom), skewed (exponential) or unequal (1 to some 30 pairs with
noise of their own, the mean is over pairs); the true mean is 0. "sign flip" is `decodehub.core.statistics.mean_interval`; "paper" the percentile bootstrap that
it replaces (enumerated up to ten clusters); "t" Student's t on the cluster sums. Correlations: four pairs a cluster that share half of their variance, or one;
"expanded" is `percentile_interval`, "percentile" the former one. Widths are medians, relative to the sign-flip (or expanded) interval.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from scipy import stats

from decodehub.core.statistics import (
    FEWEST,
    Resamples,
    bootstrap_of_means,
    bootstrap_pearson,
    least_p,
    mean_interval,
    percentile_interval,
    sign_flip,
)

CLUSTERS = (2, 5, 6, 10, 16, 40)
RHO = 0.6
DRAWS: dict[str, Callable[[np.random.Generator, tuple[int, int]], np.ndarray]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "heavy tails": lambda rng, shape: rng.standard_t(3, shape),
    "skewed": lambda rng, shape: rng.exponential(1, shape) - 1,
    "unequal": lambda rng, shape: rng.standard_normal(shape),
}


def clusters(kind: str, n: int, simulations: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(n, simulations) sums and weights of clusters whose true mean is 0."""
    x = DRAWS[kind](rng, (n, simulations))
    weight = rng.geometric(0.15, x.shape).astype(float) if kind == "unequal" else np.ones(x.shape)
    if kind == "unequal":
        x += rng.standard_normal(x.shape) / np.sqrt(weight)
    return weight * x, weight


def percentiles(sums: np.ndarray, weight: np.ndarray, rng: np.random.Generator, draws: int = 1000) -> np.ndarray:
    """(M, 2) percentile bootstrap of sums.sum(0) / weight.sum(0)."""
    n = len(sums)
    if (weight == 1).all():
        return bootstrap_of_means(sums)[0]
    counts = rng.multinomial(n, np.full(n, 1 / n), size=draws).astype(float)
    return np.quantile((counts @ sums) / (counts @ weight), (0.025, 0.975), axis=0).T


def student(sums: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """(M, 2) Student's t with n - 1 degrees of freedom and the standard error of cluster sums."""
    n, total = len(sums), weight.sum(0)
    mean = sums.sum(0) / total
    se = np.sqrt(n / (n - 1) * np.square(sums - mean * weight).sum(0)) / total
    return np.stack([mean - stats.t.ppf(0.975, n - 1) * se, mean + stats.t.ppf(0.975, n - 1) * se], axis=1)


def report(ends: np.ndarray, truth: float, unit: float) -> str:
    """Coverage and relative median width."""
    held = ((ends[:, 0] <= truth) & (truth <= ends[:, 1])).mean()
    return f"{100 * held:5.1f} ({np.median(ends[:, 1] - ends[:, 0]) / unit:4.2f})"


def means(simulations: int, rng: np.random.Generator) -> None:
    print(f"{'means':12s} clusters   sign flip        paper            t             p <= .05, smallest p")
    for kind in DRAWS:
        for n in CLUSTERS:
            sums, weight = clusters(kind, n, simulations, rng)
            ends, other, t = mean_interval(sums, weight, draws=1999), percentiles(sums, weight, rng), student(sums, weight)
            width = float(np.median(ends[:, 1] - ends[:, 0])) if n >= FEWEST else float(np.median(t[:, 1] - t[:, 0]))
            own = report(ends, 0, width) if n >= FEWEST else "none        "
            p = np.array([sign_flip(x, draws=999).p for x in sums.T[: 1000 if n > 16 else simulations]])
            print(
                f"{kind:12s} {n:8d}   {own}     {report(other, 0, width)}     {report(t, 0, width)}     "
                f"{100 * (p <= 0.05).mean():4.1f} %, {least_p(n, 999):.2g}"
            )


def correlations(simulations: int, rng: np.random.Generator) -> None:
    print(f"\n{'Pearson':12s} clusters   expanded         percentile")
    mixing = np.linalg.cholesky([[1, RHO], [RHO, 1]])
    for pairs in (1, 4):
        for n in CLUSTERS:
            both = []
            cluster = np.repeat(np.arange(n), pairs)
            for i in range(simulations):
                shared, own = rng.standard_normal((n, 2))[cluster] @ mixing.T, rng.standard_normal((n * pairs, 2)) @ mixing.T
                x, y = (np.sqrt(0.5) * (shared + own)).T
                resamples = Resamples(list(map(str, cluster)), 600, i, fewest=2)
                drawn = bootstrap_pearson(x, y, resamples, resamples.cluster)[:, None]
                both.append([percentile_interval(drawn, n)[0], percentile_interval(drawn, n, expanded=False, fewest=2)[0]])
            ends = np.array(both)
            known = np.isfinite(ends[:, :, 0])
            width = float(np.median(np.diff(ends[known[:, 0], 0], axis=1))) if known[:, 0].any() else 1.0
            own_ = report(ends[known[:, 0], 0], RHO, width) if known[:, 0].any() else "none        "
            old = report(ends[known[:, 1], 1], RHO, width) if known[:, 1].any() else "none        "
            print(f"{pairs} a cluster  {n:8d}   {own_}     {old}   {100 * (1 - known[:, 0].mean()):.1f} % without an expanded one")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulations", type=int, default=2000)
    arguments = parser.parse_args()
    means(arguments.simulations, np.random.default_rng(0))
    correlations(max(200, arguments.simulations // 2), np.random.default_rng(1))


if __name__ == "__main__":
    main()
