"""How scores grow with training windows: curves over fractions and the gain per doubling. Pure functions on unit scores.

Source: iMINDBench, arXiv 2609.18104: within-session sample efficiency, fractions 1 to 1/16, complete cases only.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from decodehub.core.statistics import DRAWS

from .compare import Comparison, compare_units
from .grid import Grid

FRACTIONS = tuple(Fraction(1, 2**k) for k in range(5))  # of the paper

Curves = Mapping[str, Mapping[Fraction, Mapping[str, float]]]  # model, fraction, unit id: AUC, NaN where there is none


class Point(NamedTuple):
    """Mean AUC of a model at one fraction: over units, tasks and data sets as in the table, with a 95 % interval over subjects (None below six)."""

    label: str
    fraction: Fraction
    value: float
    ci95: tuple[float, float] | None
    n_units: int


def complete_units(curves: Curves) -> list[str]:
    """Units that every model has a score of at every fraction, in the order of the first.

    Raises:
        ValueError: models with other fractions, or no such unit.
    """
    tables = [scores for by_fraction in curves.values() for scores in by_fraction.values()]
    if len({tuple(sorted(by_fraction)) for by_fraction in curves.values()}) != 1:
        raise ValueError("all models need the same fractions")
    found = [unit for unit in tables[0] if all(np.isfinite(scores.get(unit, np.nan)) for scores in tables)]
    if not found:
        raise ValueError("no unit has a score at every fraction: small fractions of few windows lack a class; leave the smallest out")
    return found


def curve(scores: Mapping[Fraction, Mapping[str, float]], units: list[str], grid: Grid, draws: int = DRAWS) -> list[Point]:
    """Points of one model, by fraction from small to large: "overall" (with several data sets) and each data set."""
    nothing = dict.fromkeys(units, 0.0)
    points = []
    for fraction in sorted(scores):
        for mean in compare_units({u: scores[fraction][u] for u in units}, nothing, grid, draws=draws):
            points.append(Point(mean.label, fraction, mean.difference, mean.ci95, mean.n_units))
    return points


def gain_per_doubling(scores: Mapping[Fraction, Mapping[str, float]], units: list[str], grid: Grid, draws: int = DRAWS) -> list[Comparison]:
    """Slope of the least-squares line of AUC over log2 of the fraction, of each unit, averaged as in the table; tested over subjects.

    Raises:
        ValueError: fewer than two fractions.
    """
    fractions = sorted(scores)
    if len(fractions) < 2:
        raise ValueError(f"a gain needs at least two fractions, found {len(fractions)}")
    x = np.log2([float(f) for f in fractions])
    x -= x.mean()
    slope = {u: float(x @ np.array([scores[f][u] for f in fractions]) / (x @ x)) for u in units}
    return compare_units(slope, dict.fromkeys(units, 0.0), grid, draws=draws)
