"""Scoring against a literal second implementation, and by its properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from decodehub.core.statistics import bootstrap_of_means, mean_interval
from decodehub.metrics.eeg_editbench.aggregate import aggregate, subject_ci
from decodehub.metrics.eeg_editbench.benchmark import Benchmark, make_benchmark, with_distances
from decodehub.metrics.eeg_editbench.scoring import Settings, ep_top1_chance, prepare, score_run, stable_failures

KINDS = [
    ("identity", "near"),
    ("identity", "medium"),
    ("attribute", "color"),
    ("attribute", "state"),
    ("background", None),
    ("removal", None),
]


def random_benchmark(rng: np.random.Generator, concepts: int, per_concept: int, *, distances: bool = True) -> Benchmark:
    sources = [{"concept": f"c{i}", "source_category": "abc"[i % 3]} for i in range(concepts)]
    edits = []
    for i in range(concepts):
        for _ in range(int(rng.integers(1, per_concept + 1))):
            family, subtype = KINDS[rng.integers(len(KINDS))]
            target = f"c{(i + int(rng.integers(1, concepts))) % concepts}" if family == "identity" else None
            distance = float(rng.uniform(0, 0.5)) if distances else None
            edits.append(
                {
                    "edit_id": f"e{len(edits)}",
                    "concept": f"c{i}",
                    "family": family,
                    "subtype": subtype,
                    "target_concept": target,
                    "visual_distance": distance,
                }
            )
    return make_benchmark("random", sources, edits)


def random_scores(rng: np.random.Generator, b: Benchmark, *, levels: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    q, e = len(b.concepts), len(b.edit_ids)
    shapes = ((q, q), (q, e), (q, q))
    if levels:  # few values: many ties
        return tuple(rng.integers(0, levels, shape).astype(np.float32) for shape in shapes)  # type: ignore[return-value]
    return tuple(rng.standard_normal(shape) for shape in shapes)  # type: ignore[return-value]


def literal(b: Benchmark, s: np.ndarray, e: np.ndarray, n: np.ndarray) -> dict[str, float]:
    """The paper's rules, one comparison at a time, in the words of sections 3, S3.3, S4.1, S5 and S6.3."""
    s, e, n = (np.asarray(x, dtype=np.float64) for x in (s, e, n))
    queries, edits = range(len(b.concepts)), range(len(b.edit_ids))
    pct = lambda hits: 100.0 * sum(hits) / len(hits) if hits else math.nan  # noqa: E731
    others = lambda c: [q for q in queries if q != c]  # noqa: E731
    out = {
        "top1": pct([all(s[c, c] > s[c, j] for j in others(c)) for c in queries]),
        "top5": pct([sum(not s[c, c] > s[c, j] for j in others(c)) < 5 for c in queries]),
        "null_top1": pct([all(n[c, c] > n[c, j] for j in others(c)) for c in queries]),
    }
    pools = {c: [i for i in edits if b.query[i] == c] for c in queries}
    out["ep_top1"] = pct([all(s[c, c] > e[c, i] for i in pool) for c, pool in pools.items() if pool])
    groups: dict[str, list[int]] = {"": list(edits)}
    for i in edits:
        category = b.category[b.query[i]]
        conditions = [f"family={b.family[i]}"] + ([f"subtype={b.subtype[i]}"] if b.subtype[i] else [])
        for label in [*conditions, f"category={category}", *(f"category={category},{c}" for c in conditions)]:
            groups.setdefault(label, []).append(i)
    name = lambda metric, label: metric + (f"[{label}]" if label else "")  # noqa: E731
    for label, members in groups.items():
        right = pct([s[b.query[i], b.query[i]] > e[b.query[i], i] for i in members])
        out[name("two_afc", label)] = right
        if "category" not in label and "subtype" not in label:
            wrong_query = pct([s[q, b.query[i]] > e[q, i] for i in members for q in others(b.query[i])])
            out[name("two_afc_mismatched", label)] = wrong_query
            out[name("pairing_gain", label)] = right - wrong_query
            out[name("original_over_null", label)] = pct([s[b.query[i], b.query[i]] > n[b.query[i], b.query[i]] for i in members])
            null_right = pct([n[b.query[i], b.query[i]] > e[b.query[i], i] for i in members])
            null_wrong = pct([n[q, b.query[i]] > e[q, i] for i in members for q in others(b.query[i])])
            out |= {name("null_over_edit", label): null_right, name("null_over_edit_mismatched", label): null_wrong}
            out[name("null_pairing_gain", label)] = null_right - null_wrong
    for label in groups:
        if label.startswith("category"):
            condition = label.partition(",")[2]
            out[name("two_afc_minus_average", label)] = out[name("two_afc", label)] - out[name("two_afc", condition)]
    families = sorted(set(b.family))
    per_family = []
    for family in families:
        cells = [[i for i in pool if b.family[i] == family] for pool in pools.values()]
        per_family.append(np.mean([pct([s[b.query[i], b.query[i]] > e[b.query[i], i] for i in cell]) for cell in cells if cell]))
    out["two_afc_balanced"] = float(np.mean(per_family))
    identity = [i for i in edits if b.family[i] == "identity"]
    if identity:
        t, c = b.target, b.query
        out["source_drop"] = float(np.mean([s[c[i], c[i]] - e[c[i], i] for i in identity]))
        out["target_gain"] = float(np.mean([e[t[i], i] - s[t[i], c[i]] for i in identity]))
        out["target_rank_source"] = float(np.mean([1 + sum(s[q, c[i]] >= s[t[i], c[i]] for q in others(t[i])) for i in identity]))
        out["target_rank_edited"] = float(np.mean([1 + sum(e[q, i] >= e[t[i], i] for q in others(t[i])) for i in identity]))
    margins = [s[b.query[i], b.query[i]] - e[b.query[i], i] for i in edits]
    out["distance_margin_spearman"] = float(spearmanr(b.distance, margins).statistic) if len(set(margins)) > 1 else math.nan
    return out


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 8), st.integers(1, 6), st.sampled_from([None, 2, 3]))
def test_equals_the_literal_rules(seed: int, concepts: int, per_concept: int, levels: int | None) -> None:
    rng = np.random.default_rng(seed)
    b = random_benchmark(rng, concepts, per_concept)
    s, e, n = random_scores(rng, b, levels=levels)
    found = score_run(prepare(b), s, e, n).as_dict()
    for label, value in literal(b, s, e, n).items():
        if label == "distance_margin_spearman" and len(b.edit_ids) < 5:
            continue  # too few edits for five distance groups: not scored
        assert found[label] == pytest.approx(value, abs=1e-9, nan_ok=True), label


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_order_of_concepts_and_edits_changes_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    b = random_benchmark(rng, 7, 5)
    s, e, n = random_scores(rng, b)
    q, k = rng.permutation(len(b.concepts)), rng.permutation(len(b.edit_ids))
    moved = make_benchmark("random", [b.rows["sources"][i] for i in q], [b.rows["edits"][i] for i in k])
    a = score_run(prepare(b), s, e, n).as_dict()
    c = score_run(prepare(moved), s[np.ix_(q, q)], e[np.ix_(q, k)], n[np.ix_(q, q)]).as_dict()
    assert a.keys() == c.keys()
    for label in a:
        assert a[label] == pytest.approx(c[label], abs=1e-9, nan_ok=True), label


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(-8, 8))
def test_a_constant_added_to_one_query_changes_no_comparison_of_that_query(seed: int, constant: int) -> None:
    rng = np.random.default_rng(seed)
    b = random_benchmark(rng, 6, 5)
    s, e, n = (np.round(x * 16) / 16 for x in random_scores(rng, b))  # sixteenths: the sums are exact
    query = int(rng.integers(6))
    a = score_run(prepare(b), s, e, n).as_dict()
    for matrix in (s, e, n):
        matrix[query] += constant
    c = score_run(prepare(b), s, e, n).as_dict()
    for label in a:
        if not label.startswith("target_"):  # similarities and ranks of the target compare different queries, so they may move
            assert a[label] == pytest.approx(c[label], abs=1e-9, nan_ok=True), label


def test_perfect_scores_give_100_and_constant_scores_0() -> None:
    b = random_benchmark(np.random.default_rng(1), 8, 6)
    plan, q, k = prepare(b), len(b.concepts), len(b.edit_ids)
    perfect = score_run(plan, np.eye(q), np.zeros((q, k)), np.eye(q)).as_dict()
    assert {perfect[name] for name in ("top1", "top5", "ep_top1", "null_top1", "two_afc")} == {100.0}
    assert perfect["two_afc_balanced"] == pytest.approx(100)  # a sum of fractions
    constant = score_run(plan, np.ones((q, q)), np.ones((q, k)), np.ones((q, q)))
    values = constant.as_dict()
    assert {values[name] for name in ("top1", "top5", "ep_top1", "null_top1", "two_afc", "two_afc_mismatched", "pairing_gain")} == {0.0}
    assert constant.ties == {"top1": q, "ep_top1": sum(np.bincount(b.query) > 0), "two_afc": k, "null_top1": q}


def test_nan_is_wrong_wherever_it_stands() -> None:
    b = random_benchmark(np.random.default_rng(2), 8, 6)
    plan, q, k = prepare(b), len(b.concepts), len(b.edit_ids)
    all_nan = score_run(plan, np.full((q, q), np.nan), np.full((q, k), np.nan)).as_dict()
    assert {all_nan[name] for name in ("top1", "top5", "ep_top1", "two_afc")} == {0.0}
    s, e = np.eye(q), np.zeros((q, k))
    s[0, 1] = np.nan  # one candidate of query 0 is not comparable
    e[b.query[3], 3] = np.nan
    values = score_run(plan, s, e).as_dict()
    assert values["top1"] == pytest.approx(100 * (q - 1) / q)
    assert values["two_afc"] == pytest.approx(100 * (k - 1) / k)


def test_random_scores_are_at_chance() -> None:
    rng = np.random.default_rng(3)
    b = random_benchmark(rng, 40, 12)
    plan = prepare(b)
    runs = [score_run(plan, *random_scores(rng, b)) for _ in range(200)]
    mean, sd = np.mean([r.values for r in runs], 0), np.std([r.values for r in runs], 0)
    for i, key in enumerate(runs[0].keys):
        if key.chance is not None and np.isfinite(mean[i]):
            # EP-Top1 pools share their source, so 5 standard errors over independent runs is the right yardstick for all.
            assert abs(mean[i] - key.chance) < 5 * sd[i] / np.sqrt(len(runs)) + 1e-9, key.label


def test_ep_top1_chance_of_the_published_composition() -> None:
    # Section S3.3: 200 pools of 5 to 14 edits, 2,137 edits in all, mean pool size 11.685, chance 8.722 %. Which concept has how many
    # edits is not published; any composition with those sums has a chance of at least 1 / 11.685 (Jensen) and near it.
    sizes = np.full(200, 10)
    sizes[:137] += 1
    b = make_benchmark(
        "published",
        [{"concept": f"c{i}", "source_category": "a"} for i in range(200)],
        [
            {"edit_id": f"{i}-{j}", "concept": f"c{i}", "family": "attribute", "subtype": "color"}
            for i, size in enumerate(sizes)
            for j in range(size)
        ],
    )
    assert len(b.edit_ids) == 2137 and (1 + sizes).mean() == 11.685
    assert ep_top1_chance(prepare(b)) == pytest.approx(100 * np.mean(1 / (1 + sizes)))
    assert 100 / 11.685 < ep_top1_chance(prepare(b)) < 8.722


def test_distance_balancing_removes_a_gap_that_is_distance_alone() -> None:
    rng = np.random.default_rng(4)
    sources = [{"concept": f"c{i}", "source_category": "a"} for i in range(60)]
    rows = []
    for i in range(60):
        for family, power in (("attribute", 2.0), ("background", 0.5)):  # the same range, attribute mostly near, background mostly far
            rows += [
                {
                    "edit_id": f"{family}{i}-{j}",
                    "concept": f"c{i}",
                    "family": family,
                    "subtype": "color" if family == "attribute" else None,
                    "visual_distance": 0.4 * float(rng.uniform() ** power),
                }
                for j in range(10)
            ]
    b = make_benchmark("planted", sources, rows)
    # Right exactly when the distance is above .2: within an interval both families are equally hard.
    e = np.where(b.distance > 0.2, 0.0, 2.0)[None].repeat(60, 0)
    values = score_run(prepare(b), np.eye(60), e).as_dict()
    assert values["distance_gap_unbalanced[family=background]"] > 15
    assert abs(values["distance_gap_balanced[family=background]"]) < 1e-9
    assert values["two_afc[distance_quantile=1/5]"] == 0 and values["two_afc[distance_quantile=5/5]"] == 100
    equal = score_run(prepare(b, Settings(distance_interval_weight="equal")), np.eye(60), e).as_dict()
    assert abs(equal["distance_gap_balanced[family=background]"]) < 1e-9
    few = prepare(b, Settings(distance_min_edits=10_000))
    assert "no distance interval" in few.unscored["distance_gap_balanced[family=background]"]
    assert np.isnan(score_run(few, np.eye(60), e).as_dict()["distance_gap_balanced[family=background]"])


def test_distance_gap_equals_a_literal_computation() -> None:
    rng = np.random.default_rng(8)
    b = random_benchmark(rng, 60, 30)
    s, e, _ = random_scores(rng, b)
    wins = s[b.query, b.query] > e[b.query, np.arange(len(b.query))]
    found = score_run(prepare(b, Settings(distance_min_edits=5)), s, e).as_dict()
    for family in ("identity", "background", "removal"):
        shared = [c for c in range(60) if {"attribute", family} <= set(b.family[b.query == c])]
        cells: dict[int, dict[str, list[bool]]] = {}
        for i in range(len(b.query)):
            if b.query[i] in shared and b.family[i] in ("attribute", family):
                cells.setdefault(int(b.distance[i] // 0.05), {"attribute": [], family: []})[b.family[i]].append(wins[i])
        kept = [cell for cell in cells.values() if min(len(cell["attribute"]), len(cell[family])) >= 5]
        pooled = {f: [w for cell in kept for w in cell[f]] for f in ("attribute", family)}
        weights = [len(cell["attribute"]) + len(cell[family]) for cell in kept]
        gaps = [np.mean(cell[family]) - np.mean(cell["attribute"]) for cell in kept]
        assert kept
        assert found[f"distance_gap_unbalanced[family={family}]"] == pytest.approx(
            100 * (np.mean(pooled[family]) - np.mean(pooled["attribute"]))
        )
        assert found[f"distance_gap_balanced[family={family}]"] == pytest.approx(100 * np.average(gaps, weights=weights))


def test_without_distances_the_distance_numbers_are_not_scored() -> None:
    rng = np.random.default_rng(5)
    b = random_benchmark(rng, 6, 4, distances=False)
    plan = prepare(b)
    assert np.isnan(score_run(plan, *random_scores(rng, b)).as_dict()["distance_margin_spearman"])
    assert plan.unscored["distance"]
    measured = with_distances(b, rng.uniform(0, 1, len(b.edit_ids)))
    assert measured.content_hash != b.content_hash and "distance" not in prepare(measured).unscored
    with pytest.raises(ValueError, match="one for each edit"):
        with_distances(b, np.zeros(3))
    with pytest.raises(ValueError, match="not a cosine distance"):
        with_distances(b, np.full(len(b.edit_ids), np.nan))


def test_stable_failures_have_the_papers_thresholds() -> None:
    wins = np.ones((10, 5, 3), bool)
    wins[:6, :3, 0] = False  # 18 failures: three seeds with six subjects, but fewer than 26
    wins[:6, :3, 1] = False
    wins[6:8, :4, 1] = False  # 26 failures in all
    wins[:5, :, 2] = False  # 25 failures, and five subjects a seed
    assert stable_failures(wins).tolist() == [False, True, False]


def test_wrong_shapes_are_named() -> None:
    b = random_benchmark(np.random.default_rng(6), 4, 3)
    with pytest.raises(ValueError, match=r"edit_scores has shape \(4, 1\), expected \(4, "):
        score_run(prepare(b), np.zeros((4, 4)), np.zeros((4, 1)))


@pytest.mark.parametrize(
    ("sources", "edits", "message"),
    [
        ([], [], "0 sources and 0 edits"),
        (
            [{"concept": "a", "source_category": "x"}] * 2,
            [{"edit_id": "1", "concept": "a", "family": "removal"}],
            "concept 'a' is there twice",
        ),
        (
            [{"concept": "a", "source_category": "x"}],
            [{"edit_id": "1", "concept": "b", "family": "removal"}],
            "'b', which is not among the sources",
        ),
        ([{"concept": "a", "source_category": "x"}], [{"edit_id": "1", "concept": "a"}], r"edit row 0 lacks \['family'\]"),
    ],
)
def test_malformed_tables_are_named(sources: list, edits: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_benchmark("bad", sources, edits)


class TestAggregation:
    """Equations S4 and S5, and intervals over subjects."""

    def test_seeds_within_subject_then_population_sd(self) -> None:
        runs = [(s, k) for s in (1, 2, 3) for k in (0, 1)]
        values = np.array([[1.0], [3.0], [4.0], [4.0], [9.0], [5.0]])
        a = aggregate(runs, values)
        assert a.subject_means[:, 0].tolist() == [2, 4, 7]
        assert a.mean[0] == pytest.approx(13 / 3) and a.sd[0] == pytest.approx(np.std([2, 4, 7]))
        shuffled = np.random.default_rng(0).permutation(6)
        again = aggregate([runs[i] for i in shuffled], values[shuffled])
        assert np.array_equal(a.ci95, again.ci95, equal_nan=True) and np.array_equal(a.mean, again.mean)

    def test_an_incomplete_or_double_grid_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"lacks the runs \(subject, seed\) \[\(2, 1\)\]"):
            aggregate([(1, 0), (1, 1), (2, 0)], np.zeros((3, 1)))
        with pytest.raises(ValueError, match=r"\[\(1, 0\)\] are there twice"):
            aggregate([(1, 0), (1, 0)], np.zeros((2, 1)))
        with pytest.raises(ValueError, match="one row of values a run"):
            aggregate([], np.zeros((0, 1)))

    def test_intervals_are_of_the_sign_flip_test_or_of_the_paper(self) -> None:
        x = np.random.default_rng(7).standard_normal((10, 3))
        ends, method = subject_ci(x)
        assert np.array_equal(ends, mean_interval(x)) and method == "95 % intervals by inversion of the sign-flip test over 10 subjects"
        paper, method = subject_ci(x, "paper")
        assert np.array_equal(paper, bootstrap_of_means(x)[0]) and "percentile bootstrap over 10 subjects" in method
        assert (ends[:, 0] < paper[:, 0]).all() and (paper[:, 1] < ends[:, 1]).all()
        runs = [(s, 0) for s in range(10)]
        assert np.array_equal(aggregate(runs, x, interval="paper").ci95, paper) and np.array_equal(aggregate(runs, x).ci95, ends)

    def test_fewer_than_six_subjects_have_no_interval_and_say_why(self) -> None:
        ends, method = subject_ci(np.random.default_rng(8).standard_normal((5, 2)))
        assert np.isnan(ends).all() and method == "no intervals: 5 subjects: no 95 % interval below 6"
        assert np.isfinite(subject_ci(np.random.default_rng(8).standard_normal((5, 2)), "paper")[0]).all()
        assert np.isnan(subject_ci(np.array([[1.0, np.nan]] * 6))[0]).tolist() == [[False, False], [True, True]]
