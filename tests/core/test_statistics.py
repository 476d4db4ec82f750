"""Intervals, tests, ranks and correlations against second implementations, and on inputs that are constant up to rounding."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from decodehub.core import statistics as s

NOISE = np.array([0.1 + 0.2 - 0.3, 0.0, 0.3 - 0.2 - 0.1, 0.0, 0.1 + 0.2 - 0.3])  # zeros, but for rounding
NEARLY = 0.7 + NOISE + np.array([0.0, 1.1e-16, 0.0, -1.1e-16, 0.0])  # .7, but for rounding


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


class TestSignFlip:
    """The test of a zero mean."""

    def test_against_all_patterns(self) -> None:
        x = rng().normal(0.5, 1, 9)
        sums = np.array([abs(np.dot(signs, x)) for signs in itertools.product((1, -1), repeat=9)])
        assert s.sign_flip(x).p == pytest.approx(np.mean(sums >= abs(x.sum()) - 1e-12))

    @pytest.mark.parametrize("n", [1, 2, 5, 9, 16])
    def test_the_smallest_p_is_that_of_one_sign(self, n: int) -> None:
        test = s.sign_flip(np.arange(1.0, n + 1))
        assert test.p == test.p_min == s.least_p(n) == 2 / 2**n and "exact" in test.method
        assert s.sign_flip(np.zeros(n)).p == 1

    def test_more_than_sixteen_are_drawn(self) -> None:
        x = rng(2).standard_normal(40)
        test = s.sign_flip(x + 2, draws=2000)
        assert test.p == test.p_min == s.least_p(40, 2000) == 1 / 2001 and "2,000 draws" in test.method
        assert s.sign_flip(x - x.mean(), draws=2000).p > 0.9

    def test_it_keeps_its_level(self) -> None:
        r = rng(1)
        p = np.array([s.sign_flip(r.standard_normal(8)).p for _ in range(400)])
        assert 0.02 < (p <= 0.05).mean() < 0.08

    @given(st.lists(st.integers(-20, 20), min_size=2, max_size=9), st.sampled_from([1e-200, 1e-9, 1.0, 1e12]))
    def test_units_of_measurement_change_nothing(self, values: list[int], scale: float) -> None:
        assert s.sign_flip(np.array(values) * scale).p == s.sign_flip(np.array(values, dtype=float)).p


class TestMeanInterval:
    """Intervals of means: the inverted test."""

    @pytest.mark.parametrize(("n", "seed"), [(6, 0), (7, 1), (9, 2)])
    @pytest.mark.parametrize("weighted", [False, True])
    def test_it_is_what_the_test_does_not_reject(self, n: int, seed: int, weighted: bool) -> None:
        """p of the sign-flip test of cluster sums minus their weight times a mean: over .05 inside the interval, not over it outside."""
        r = rng(seed)
        weight = r.integers(1, 9, n).astype(float) if weighted else np.ones(n)
        sums = weight * r.standard_normal(n)
        ((low, high),) = s.mean_interval(sums[:, None], weight)

        def p(mean: float) -> float:
            return s.sign_flip(sums - mean * weight).p

        for mean in np.linspace(low - 1, high + 1, 61):
            assert (p(mean) > 0.05) == (low <= mean <= high)
        assert p(low + 1e-9) > 0.05 >= p(low - 1e-9) and p(high - 1e-9) > 0.05 >= p(high + 1e-9)

    def test_six_clusters_span_their_range_and_five_have_none(self) -> None:
        x = rng(3).standard_normal((6, 3))
        np.testing.assert_allclose(s.mean_interval(x), np.stack([x.min(0), x.max(0)], axis=1))
        assert np.isnan(s.mean_interval(x[:5])).all() and np.isnan(s.mean_interval(x[:1])).all()
        assert s.no_interval(5, "subjects") == "5 subjects: no 95 % interval below 6" and s.no_interval(1, "units").startswith("1 unit:")
        assert s.no_interval(6, "subjects") == "" and s.least_p(5) > 0.05 >= s.least_p(6)

    @pytest.mark.parametrize("n", [8, 30])
    def test_it_moves_scales_and_mirrors_with_the_data(self, n: int) -> None:
        x = rng(4).standard_normal((n, 1))
        ends = s.mean_interval(x, draws=999)
        np.testing.assert_allclose(s.mean_interval(10 * x + 3, draws=999), 10 * ends + 3)
        np.testing.assert_allclose(s.mean_interval(-x, draws=999), -ends[:, ::-1])
        assert ends[0, 0] < x.mean() < ends[0, 1]

    def test_columns_are_alone(self) -> None:
        x, weight = rng(5).standard_normal((12, 4)), rng(6).integers(0, 3, (12, 4)).astype(float)
        x = np.where(weight > 0, x, 0)
        both = s.mean_interval(x, weight)
        for j in range(4):
            np.testing.assert_allclose(s.mean_interval(x[:, j : j + 1], weight[:, j])[0], both[j])
            used = weight[:, j] > 0  # a cluster without weight is none
            np.testing.assert_allclose(s.mean_interval(x[used, j : j + 1], weight[used, j])[0], both[j])
        x[0, 1] = np.nan
        assert np.isnan(s.mean_interval(x, weight)[1]).all() and np.isfinite(s.mean_interval(x, weight)[0]).all()

    def test_blocks_change_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        x = rng(7).standard_normal((9, 7))
        whole = s.mean_interval(x)
        monkeypatch.setattr(s, "_BLOCK", 600)
        np.testing.assert_allclose(s.mean_interval(x), whole, rtol=1e-14)  # a product of another shape may round otherwise

    @pytest.mark.parametrize("n", [6, 10, 20])
    def test_coverage(self, n: int) -> None:
        """Robust bounds on 600 seeded simulations with clusters of unequal size; ``benchmarks/interval_coverage.py`` has the table."""
        r = rng(8)
        size = r.geometric(0.2, (n, 600)).astype(float)
        sums = size * (r.standard_t(4, (n, 600)) + r.standard_normal((n, 600)) / np.sqrt(size))
        ends = s.mean_interval(sums, size, draws=999)
        assert 0.92 < ((ends[:, 0] <= 0) & (ends[:, 1] >= 0)).mean() < 0.99

    def test_constants_have_an_interval_without_width(self) -> None:
        ends = s.mean_interval(np.full((7, 1), 0.3))
        np.testing.assert_allclose(ends, [[0.3, 0.3]], atol=1e-15)


class TestBootstrap:
    """Resamples of clusters, and intervals from them."""

    def test_expanded_percentiles_are_those_of_t(self) -> None:
        """For normal draws the expanded interval has the half-width t * sqrt(n / (n - 1)) of their SD, the plain one 1.96."""
        draws = rng().standard_normal((400_000, 1))
        for n in (6, 12, 40):
            width = stats.t.ppf(0.975, n - 1) * np.sqrt(n / (n - 1))
            assert s.percentile_interval(draws, n)[0] == pytest.approx((-width, width), rel=0.03)
        assert s.percentile_interval(draws, 12, expanded=False)[0] == pytest.approx((-1.96, 1.96), rel=0.02)

    def test_undefined_resamples_widen_and_then_end_an_interval(self) -> None:
        draws = np.arange(1000.0)[:, None]
        whole = s.percentile_interval(draws, 40)[0]
        some = draws.copy()
        some[500:505] = np.nan
        ends = s.percentile_interval(some, 40)[0]
        assert ends[0] < whole[0] and ends[1] > whole[1]
        some[500:540] = np.nan
        assert np.isnan(s.percentile_interval(some, 40)).all()
        assert np.isnan(s.percentile_interval(draws, 5)).all() and np.isnan(s.percentile_interval(draws[:0], 40)).all()

    @pytest.mark.parametrize("n", [2, 3, 5, 6])
    def test_exact_interval_equals_listing_every_resample(self, n: int) -> None:
        x = rng(n).standard_normal(n)
        means = np.sort(np.stack(np.meshgrid(*[x] * n)).reshape(n, -1).mean(0))
        tail = math.ceil(0.025 * len(means))
        ends, method = s.bootstrap_of_means(x[:, None])
        assert ends[0] == pytest.approx([means[tail - 1], means[-tail]], abs=1e-12) and "compositions" in method

    def test_ten_are_enumerated_and_eleven_resampled(self) -> None:
        x = rng(7).standard_normal((11, 1))
        exact, method = s.bootstrap_of_means(x[:10])
        assert method == "92,378 compositions"
        draws = x[rng(1).integers(0, 10, (200_000, 10)), 0].mean(1)
        assert exact[0] == pytest.approx(np.quantile(draws, [0.025, 0.975]), abs=0.007)
        sampled, method = s.bootstrap_of_means(x)
        assert "resamples" in method and np.array_equal(sampled, s.bootstrap_of_means(x)[0])
        assert sampled[0, 0] < x.mean() < sampled[0, 1]

    def test_one_cluster_and_missing_means_have_none(self) -> None:
        assert np.isnan(s.bootstrap_of_means(np.zeros((1, 2)))[0]).all()
        ends, _ = s.bootstrap_of_means(np.array([[1.0, np.nan], [1.0, 2.0]]))
        assert ends[0].tolist() == [1.0, 1.0] and np.isnan(ends[1]).all()

    def test_correlations_are_those_of_drawing_the_rows_out(self) -> None:
        r = rng(9)
        names = [f"c{i % 7}" for i in range(40)]
        x = r.standard_normal(40).round(1)
        y = (x + r.standard_normal(40)).round(1)
        resamples = s.Resamples(names, 25, 3)
        assert resamples.counts.shape == (25, 7) and (resamples.counts.sum(1) == 7).all() and resamples.n == 7
        pearson = s.bootstrap_pearson(x, y, resamples, resamples.cluster)
        spearman = s.bootstrap_spearman(x, y, resamples, resamples.cluster)
        for b, counts in enumerate(resamples.counts):
            rows = np.concatenate([np.flatnonzero(resamples.cluster == c) for c in range(7) for _ in range(int(counts[c]))])
            assert pearson[b] == pytest.approx(stats.pearsonr(x[rows], y[rows])[0], abs=1e-12)
            assert spearman[b] == pytest.approx(stats.spearmanr(x[rows], y[rows])[0], abs=1e-12)
        assert len(s.Resamples(names[:5], 25).counts) == 0  # five clusters

    def test_a_resample_of_one_value_is_undefined(self) -> None:
        x, y = np.array([0.3, 0.1 + 0.2, 5.0, 5.0]), np.array([1.0, 2.0, 3.0, 4.0])
        resamples = s.Resamples(["a", "a", "b", "b"], 40, fewest=2)
        alone = (resamples.counts == 2).any(1)  # one of the two concepts alone: its x is one value
        for draws in (f(x, y, resamples, resamples.cluster) for f in (s.bootstrap_pearson, s.bootstrap_spearman)):
            assert np.array_equal(np.isnan(draws), alone) and alone.any() and not alone.all()


class TestRanksAndCorrelations:
    """Against scipy, and on values that differ by rounding alone."""

    @given(st.lists(st.integers(-5, 5), min_size=1, max_size=60))
    def test_ranks_equal_scipy(self, values: list[int]) -> None:
        x = np.array(values, dtype=float)
        assert np.array_equal(s.ranks(x), stats.rankdata(x))
        weight = np.random.default_rng(len(values)).integers(0, 3, (3, len(x))).astype(float)
        for found, times in zip(s.weighted_ranks(x, weight), weight.astype(int)):
            repeated = stats.rankdata(np.repeat(x, times))
            assert np.array_equal(found[times > 0], repeated[(np.cumsum(times) - 1)[times > 0]])

    def test_values_that_differ_by_rounding_are_ties(self) -> None:
        assert s.ranks(np.array([0.1 + 0.2, 0.3, 1.0, 0.7 + 0.2 + 0.1])).tolist() == [1.5, 1.5, 3.5, 3.5]
        assert s.ranks(np.array([1e-30, 2e-30, 3e-30])).tolist() == [1, 2, 3]  # small is not rounding
        assert s.weighted_ranks(np.array([0.1 + 0.2, 0.3, 1.0]), np.ones((1, 3))).tolist() == [[1.5, 1.5, 3]]
        assert len(s.ranks(np.empty(0))) == 0

    @pytest.mark.parametrize("scale", [1e-200, 1e-9, 1.0, 1e9, 1e150])
    def test_correlations_have_no_unit(self, scale: float) -> None:
        x, y = rng(1).standard_normal((2, 30))
        assert s.pearson(scale * x, y) == pytest.approx(stats.pearsonr(x, y)[0], abs=1e-12)
        assert s.spearman(scale * x, y) == pytest.approx(stats.spearmanr(x, y)[0], abs=1e-12)
        assert s.pearson(x, scale * x) == pytest.approx(1) and s.pearson(x, -scale * x) == pytest.approx(-1)

    def test_what_is_constant_up_to_rounding_has_no_correlation(self) -> None:
        y = np.arange(5.0)
        for f in (s.pearson, s.spearman):
            assert np.isnan(f(NEARLY, y)) and np.isnan(f(y, 1e6 * NEARLY)) and np.isnan(f(np.ones(5), y)) and np.isnan(f(y[:1], y[:1]))
            assert np.isfinite(f(1 + 1e-9 * y, y))
            assert np.isnan(f((0.3 + 1e-8 * y).astype(np.float32), y, rounding=s.ROUNDING_32))
        assert len(set(NEARLY)) > 1 and s.is_constant(NEARLY) and s.is_constant(NOISE, scale=0.3) and not s.is_constant(NOISE)

    def test_differences_that_are_rounding_settle_at_zero(self) -> None:
        assert not s.settled(NOISE, 0.3).any() and NOISE.any()
        assert s.sign_flip(s.settled(NOISE, 0.3)).p == 1
        x = np.array([1e-3, -2.0, 0.0])
        assert np.array_equal(s.settled(x, 1.0), x)
        assert (
            np.isnan(s.divide(1.0, 0.1 + 0.2 - 0.3))
            and s.divide(1.0, 2.0) == 0.5
            and s.divide(1.0, 1e-15, scale=1e-15) == pytest.approx(1e15)
        )
