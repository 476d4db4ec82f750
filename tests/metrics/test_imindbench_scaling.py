"""Curves over fractions of the training windows: planted gains, complete cases, intervals over persons."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from decodehub.metrics.imindbench.grid import Grid, make_grid
from decodehub.metrics.imindbench.scaling import FRACTIONS, complete_units, curve, gain_per_doubling


def grid() -> Grid:
    """Two data sets of four subjects with two tasks; the second data set lacks a task of one subject."""
    rows = [
        {"dataset": d, "subject_session": f"sub{s}_sess1", "task": t, "subset": "main"}
        for d in ("kelesbyd2024", "berezutskayapippi2022")
        for s in range(4)
        for t in ("speech", "onset")
        if (d, s, t) != ("berezutskayapippi2022", 3, "onset")
    ]
    return make_grid("mine", rows)


def scores(gain: float, noise: float = 0.0, seed: int = 0) -> dict[Fraction, dict[str, float]]:
    rng = np.random.default_rng(seed)
    start = dict(zip(grid().ids, rng.uniform(0.6, 0.8, len(grid().ids))))
    return {f: {u: s + gain * np.log2(float(f)) + noise * rng.standard_normal() for u, s in start.items()} for f in FRACTIONS}


def test_the_fractions_of_the_paper() -> None:
    assert (1, Fraction(1, 2), Fraction(1, 4), Fraction(1, 8), Fraction(1, 16)) == FRACTIONS


def test_a_planted_gain_is_found_in_every_data_set() -> None:
    found = {g.label: g for g in gain_per_doubling(scores(0.025), list(grid().ids), grid(), draws=200)}
    assert set(found) == {"overall", "kelesbyd2024", "berezutskayapippi2022"}
    assert all(g.difference == pytest.approx(0.025, abs=1e-12) for g in found.values())
    assert found["overall"].ci95 == pytest.approx((0.025, 0.025)) and found["overall"].n_units == 15


def test_it_is_the_slope_of_a_line_through_the_points() -> None:
    """The mean of the units' slopes is the slope of the means, as both are linear."""
    noisy = scores(0.01, noise=0.02, seed=1)
    points = [p for p in curve(noisy, list(grid().ids), grid(), draws=50) if p.label == "overall"]
    slope = np.polyfit([np.log2(float(p.fraction)) for p in points], [p.value for p in points], 1)[0]
    assert gain_per_doubling(noisy, list(grid().ids), grid(), draws=50)[0].difference == pytest.approx(slope)
    assert all(p.ci95 is not None and p.ci95[0] <= p.value <= p.ci95[1] for p in points) and [p.fraction for p in points] == sorted(
        FRACTIONS
    )


def test_no_gain_is_found_where_there_is_none() -> None:
    hits = sum(gain_per_doubling(scores(0, noise=0.03, seed=s), list(grid().ids), grid(), draws=400)[0].p > 0.05 for s in range(40))
    assert hits >= 34  # 38 expected


def test_units_without_a_score_anywhere_are_left_out_everywhere() -> None:
    first, second = scores(0.02), scores(0.01)
    first[FRACTIONS[-1]][grid().ids[0]] = np.nan
    del second[FRACTIONS[1]][grid().ids[4]]
    assert complete_units({"a": first, "b": second}) == [u for i, u in enumerate(grid().ids) if i not in (0, 4)]
    with pytest.raises(ValueError, match="same fractions"):
        complete_units({"a": first, "b": {FRACTIONS[0]: second[FRACTIONS[0]]}})
    with pytest.raises(ValueError, match="no unit has a score"):
        complete_units({"a": {f: dict.fromkeys(grid().ids, np.nan) for f in FRACTIONS}})
    with pytest.raises(ValueError, match="at least two fractions"):
        gain_per_doubling({FRACTIONS[0]: first[FRACTIONS[0]]}, list(grid().ids), grid())
