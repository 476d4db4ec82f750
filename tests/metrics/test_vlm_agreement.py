"""Agreement against statsmodels, scikit-learn and krippendorff; identities of the paper; bootstrap against a naive loop."""

from __future__ import annotations

import itertools
import json
import sys
from itertools import combinations
from pathlib import Path

import evaluate
import krippendorff
import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score
from statsmodels.stats.inter_rater import aggregate_raters
from statsmodels.stats.inter_rater import fleiss_kappa as statsmodels_fleiss

import decodehub  # noqa: F401  (registers the bare name)
from decodehub.core.records import ModelInfo, RecordError
from decodehub.core.statistics import bootstrap_ci, resampled_totals, unit_totals
from decodehub.hub_datasets.bcs_annotations.consensus import consensus_table
from decodehub.hub_datasets.bcs_annotations.questionnaire import load_questionnaire
from decodehub.metrics.vlm_agreement.agreement import QUESTIONS, AnswerTable, Settings, agreement, load_answers
from decodehub.metrics.vlm_agreement.protocol import make_record
from decodehub.metrics.vlm_agreement.rationales import rationale_similarity, sentence_encoder, tfidf_encoder
from decodehub.metrics.vlm_agreement.scoring import (
    PERCEPTUAL,
    REGIMES,
    SEMANTIC,
    VALUES,
    agreement_weights,
    annotator_scores,
    cohen_kappa,
    consensus,
    consensus_scores,
    fleiss_kappa,
    krippendorff_alpha,
    rater_kappas,
    regimes,
    tabulate,
    unanimity,
)

ALL_FOUR = np.array(list(itertools.product(VALUES, repeat=4)))[:, :, None]  # every pattern of four annotators, as one question each


def random_answers(seed: int, n: int = 60, annotators: int = 4, questions: int = 12, missing: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, (n, 1, questions))
    noisy = np.clip(truth + rng.integers(-1, 2, (n, annotators, questions)), 0, 2) / 2
    return np.where(rng.random(noisy.shape) < missing, np.nan, noisy)


def items(answers: np.ndarray, complete: bool = True) -> np.ndarray:
    """(n_items, n_annotators)"""
    flat = answers.transpose(0, 2, 1).reshape(-1, answers.shape[1])
    return flat[np.isfinite(flat).all(1)] if complete else flat


# Identities of the paper -----------------------------------------------------------------------------------------------------------------


def test_medians_of_four_keep_fractions() -> None:
    assert set(np.unique(consensus(ALL_FOUR))) == {0, 0.25, 0.5, 0.75, 1}
    assert consensus(np.array([0, 0, 1, 1.0])[None, :, None]) == 0.5


def test_the_weight_sets() -> None:
    paper = {round(float(w), 6) for w in np.unique(agreement_weights(ALL_FOUR))}
    assert paper == {1.0, 0.953125, 0.9375, 0.875, 0.828125, 0.8125, 0.75}
    assert set(np.unique(agreement_weights(ALL_FOUR, "released_code"))) == {1.0, 0.75}  # 0.40 cannot occur
    three = np.array(list(itertools.product(VALUES, repeat=3)))[:, :, None]
    assert set(np.unique(agreement_weights(three, "released_code"))) == {1.0, 0.75, 0.40}
    with pytest.raises(ValueError, match="unknown"):
        agreement_weights(ALL_FOUR, "other")  # type: ignore[arg-type]


def test_counts_of_the_paper_add_up(shared: Path) -> None:
    paper = json.loads((shared / "data/bcs/paper_numbers.json").read_text())
    composition = {name: row[0] for name, row in paper["table8_composition"]["rows"].items()}
    assert sum(composition.values()) == 6855 and 6855 * 12 == paper["overall_agreement"]["scored_instances"] == 82260
    facts = paper["project_page_only_facts"]
    assert composition["ATM"] == 10 * 199 and composition["ENIGMA"] == 10 * 199 * 2
    assert facts["pairs_v1"] == 6855 + 30 and facts["scored_instances_v1"] == 82260 + 30 * 5
    rows = paper["table9_regimes"]["rows"]
    assert all(sum(row[1:]) == row[0] for row in rows.values())
    overall = rows.pop("overall")
    assert [sum(row[i] for row in rows.values()) for i in range(5)] == overall
    assert {name: row[0] for name, row in rows.items()} == composition


def test_the_two_definitions_of_consensus_differ_and_are_what_they_say() -> None:
    answers = random_answers(1)
    medians = consensus_scores(answers, PERCEPTUAL, "mean_of_question_medians")
    assert np.allclose(medians, np.median(answers, 1)[:, :6].mean(1), atol=1e-15)
    aggregates = consensus_scores(answers, SEMANTIC, "median_of_annotator_aggregates")
    assert np.allclose(aggregates, np.median(answers[:, :, 6:].mean(2), 1), atol=1e-15)
    assert not np.allclose(medians, consensus_scores(answers, PERCEPTUAL, "median_of_annotator_aggregates"))
    with pytest.raises(ValueError, match="definition"):
        consensus_scores(answers, PERCEPTUAL, "mean")  # type: ignore[arg-type]


def test_missing_answers_are_skipped_in_scores_and_void_targets() -> None:
    answers = random_answers(2, n=3)
    answers[0, 1, 0] = np.nan
    answers[1, 2, :6] = np.nan
    assert np.isnan(consensus(answers)[0, 0]) and agreement_weights(answers)[0, 0] == 0
    assert annotator_scores(answers, PERCEPTUAL)[0, 1] == pytest.approx(answers[0, 1, 1:6].mean())
    assert np.isnan(annotator_scores(answers, PERCEPTUAL)[1, 2])
    assert consensus_scores(answers, PERCEPTUAL, "mean_of_question_medians")[0] == pytest.approx(np.median(answers[0, :, 1:6], 0).mean())
    assert np.isnan(consensus_scores(answers, PERCEPTUAL, "mean_of_question_medians")[1])
    assert np.isnan(consensus_scores(answers, PERCEPTUAL, "median_of_annotator_aggregates")[1])


def test_regimes_split_at_one_half() -> None:
    found = regimes(np.array([0.5, 0.5, 0.49, 0.0, np.nan]), np.array([0.5, 0.49, 0.5, 0.0, 1]))
    assert found.tolist() == [0, 1, 2, 3, -1] and REGIMES[2] == "low_p_high_s"


# Second implementations ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_fleiss_equals_statsmodels(seed: int, missing: float) -> None:
    answers = random_answers(seed, annotators=3 + seed % 2, missing=missing)
    patterns = tabulate(answers)
    table, _ = aggregate_raters(items(answers), n_cat=None)
    assert fleiss_kappa(patterns, patterns.counts()) == pytest.approx(statsmodels_fleiss(table), abs=1e-12)
    table, _ = aggregate_raters(items(answers[:, :, 3:4]), n_cat=None)
    assert fleiss_kappa(patterns, patterns.counts([3])) == pytest.approx(statsmodels_fleiss(table), abs=1e-12)
    assert unanimity(patterns, patterns.counts()) == pytest.approx((np.ptp(items(answers), axis=1) == 0).mean(), abs=1e-12)


@pytest.mark.parametrize("weights", [None, "linear", "quadratic"])
def test_cohen_equals_scikit_learn(weights: str | None) -> None:
    answers = random_answers(5, missing=0.1)
    patterns = tabulate(answers)
    codes, every = (2 * items(answers)).astype(int), items(answers, complete=False)
    for a, b in combinations(range(4), 2):
        expected = cohen_kappa_score(codes[:, a], codes[:, b], weights=weights, labels=[0, 1, 2])
        assert cohen_kappa(patterns, patterns.counts(), a, b, weights) == pytest.approx(expected, abs=1e-12)  # type: ignore[arg-type]
        both = (2 * every[np.isfinite(every[:, [a, b]]).all(1)][:, [a, b]]).astype(int)
        expected = cohen_kappa_score(both[:, 0], both[:, 1], weights=weights, labels=[0, 1, 2])
        assert cohen_kappa(patterns, patterns.counts(), a, b, weights, items="pairwise") == pytest.approx(expected, abs=1e-12)  # type: ignore[arg-type]


@pytest.mark.parametrize("level", ["nominal", "ordinal", "interval"])
@pytest.mark.parametrize("missing", [0.0, 0.5])
def test_alpha_equals_krippendorff(level: str, missing: float) -> None:
    answers = random_answers(6, n=40, questions=3, missing=missing)
    patterns = tabulate(answers)
    data = items(answers, complete=False).T
    expected = krippendorff.alpha(data, level_of_measurement=level, value_domain=list(VALUES))
    assert krippendorff_alpha(patterns, patterns.counts(), level) == pytest.approx(expected, abs=1e-12)  # type: ignore[arg-type]


def test_rater_kappas_equal_scikit_learn_on_any_scale() -> None:
    rng = np.random.default_rng(7)
    truth = rng.integers(1, 6, 18)
    judged = np.clip(truth[:, None] + rng.integers(-1, 2, (18, 15)), 1, 5).astype(float)
    judged[0, 0] = np.nan
    found = rater_kappas(judged)
    assert len(found.kappas) == 105 and found.undefined == 0
    expected = []
    for a, b in combinations(range(15), 2):
        both = np.isfinite(judged[:, [a, b]]).all(1)
        expected.append(cohen_kappa_score(judged[both, a].astype(int), judged[both, b].astype(int)))
    assert list(found.kappas.values()) == pytest.approx(expected, abs=1e-12)
    assert (found.mean, found.sd) == pytest.approx((np.mean(expected), np.std(expected)), abs=1e-12)


def test_statistics_take_many_counts_at_once() -> None:
    patterns = tabulate(random_answers(8, missing=0.1))
    counts = np.random.default_rng(0).integers(1, 9, (5, len(patterns.codes))).astype(float)
    for statistic in (
        unanimity,
        fleiss_kappa,
        lambda p, c: cohen_kappa(p, c, 0, 3, "linear"),
        lambda p, c: krippendorff_alpha(p, c, "ordinal"),
    ):
        assert np.allclose(statistic(patterns, counts), [statistic(patterns, row) for row in counts], atol=1e-15)


def test_perfect_and_chance_agreement() -> None:
    rng = np.random.default_rng(9)
    same = np.repeat(rng.integers(0, 3, (50, 1, 12)) / 2, 4, axis=1)
    patterns = tabulate(same)
    assert unanimity(patterns, patterns.counts()) == 1 and fleiss_kappa(patterns, patterns.counts()) == pytest.approx(1)
    patterns = tabulate(rng.integers(0, 3, (4000, 4, 12)) / 2)
    for value in (fleiss_kappa(patterns, patterns.counts()), krippendorff_alpha(patterns, patterns.counts(), "interval")):
        assert abs(value) < 0.01
    constant = tabulate(np.ones((5, 4, 2)))
    assert np.isnan(fleiss_kappa(constant, constant.counts())) and np.isnan(krippendorff_alpha(constant, constant.counts(), "nominal"))
    assert np.isnan(cohen_kappa(constant, constant.counts(), 0, 1, "linear"))


def test_bad_answers_are_named() -> None:
    answers = random_answers(0, n=4)
    answers[2, 1, 5] = 0.3
    with pytest.raises(ValueError, match=r"pair 2, annotator 1, question 5: answer 0\.3"):
        tabulate(answers)
    with pytest.raises(ValueError, match="expected \\(n_pairs"):
        consensus(answers[0])
    with pytest.raises(ValueError, match="two annotators"):
        one = tabulate(random_answers(0, annotators=1))
        fleiss_kappa(one, one.counts())


# Bootstrap -------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clusters", [False, True])
def test_bootstrap_over_patterns_equals_a_naive_loop(clusters: bool) -> None:
    answers = random_answers(10, n=24)
    answers[12:18] = answers[:6]  # some pairs are alike, so rows repeat
    groups = np.arange(24) // 3 if clusters else None
    patterns = tabulate(answers)
    totals = np.stack([np.bincount(row, minlength=len(patterns.codes)) for row in patterns.items]).astype(float)
    units = unit_totals(totals, groups)
    fast = np.concatenate([fleiss_kappa(patterns, sums) for sums in resampled_totals(units, 30, seed=3)])

    inverse = np.unique(units, axis=0, return_inverse=True)[1]
    drawn = np.random.default_rng(np.random.SeedSequence(3)).multinomial(len(units), np.bincount(inverse.ravel()) / len(units), size=30)
    naive = []
    for times in drawn:
        chosen = []
        for row, n in enumerate(times):
            unit = int(np.flatnonzero(inverse.ravel() == row)[0])
            chosen += [unit] * n if groups is None else list(np.flatnonzero(groups == unit)) * n
        table, _ = aggregate_raters(items(answers[chosen]))
        naive.append(statsmodels_fleiss(table))
    assert fast == pytest.approx(naive, abs=1e-12)


def test_bootstrap_interval_has_the_width_of_theory() -> None:
    values = np.random.default_rng(11).binomial(1, 0.3, 2000).astype(float)
    units = np.stack([values, np.ones(2000)], axis=1)
    ((low, high),) = bootstrap_ci(units, lambda sums: sums[:, :1] / sums[:, 1:])
    se = np.sqrt(values.mean() * (1 - values.mean()) / 2000)
    assert (low, high) == pytest.approx((values.mean() - 1.96 * se, values.mean() + 1.96 * se), abs=0.003)
    assert np.isnan(bootstrap_ci(units[:1], lambda sums: sums)).all()


# Rationales ------------------------------------------------------------------------------------------------------------------------------


def test_rationale_similarity_is_the_mean_cosine_over_items_with_all_reasons() -> None:
    vectors = {"a": [1, 0], "b": [0, 2], "c": [3, 3]}
    calls = []

    def encode(texts: list[str]) -> np.ndarray:
        calls.append(texts)
        return np.array([vectors[text] for text in texts], dtype=float)

    found = rationale_similarity([["a", "b"], ["a", "c"], ["c", "c"], ["a", None]], encode)
    assert calls == [["a", "b", "c"]]
    assert found[0, 1] == found[1, 0] == pytest.approx((0 + np.sqrt(0.5) + 1) / 3)
    assert np.isnan(rationale_similarity([["a", None]], encode)).all()
    with pytest.raises(ValueError, match="zero or non-finite vector for 'a'"):
        rationale_similarity([["a", "a"]], lambda texts: np.zeros((1, 2)))


def test_without_sentence_transformers_there_is_no_silent_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ModuleNotFoundError, match="pip install sentence-transformers"):
        sentence_encoder()


def test_tfidf_equals_the_dense_computation() -> None:
    rows = [["the shape is lost", "shape is gone"], ["same colour", "same colour"], ["a cat", "no animal at all"]]
    texts = sorted({t for row in rows for t in row})
    dense = tfidf_encoder(texts).toarray()
    position = {t: i for i, t in enumerate(texts)}
    cosines = [
        dense[position[a]] @ dense[position[b]] / np.linalg.norm(dense[position[a]]) / np.linalg.norm(dense[position[b]]) for a, b in rows
    ]
    assert rationale_similarity(rows, tfidf_encoder)[0, 1] == pytest.approx(np.mean(cosines), abs=1e-12)


# The table, the record, the metric ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sample_answers() -> AnswerTable:
    return load_answers("sample")


def test_the_sample_is_scored_as_computed_by_hand(sample_answers: AnswerTable) -> None:
    assert sample_answers.release == "sample" and sample_answers.answers.shape[1:] == (4, 12)
    by = {(m.name, *m.slice.values()): m for m in agreement(sample_answers, Settings(resamples=200))}
    answers = sample_answers.answers
    table, _ = aggregate_raters(items(answers))
    assert by["fleiss_kappa",].value == pytest.approx(statsmodels_fleiss(table), abs=1e-12)
    assert by["fleiss_kappa",].n == answers.shape[0] * 12
    for m in by.values():
        if m.value is not None and m.ci95:
            assert m.ci95[0] - 1e-9 <= m.value + 0.05 and m.value - 0.05 <= m.ci95[1] + 1e-9
    assert by["t_pas", "rule-based-b"].value == pytest.approx(answers[:, 1, :6].mean(), abs=1e-12)
    assert by["t_pas", "rule-based-b"].value < by["t_pas", "rule-based-a"].value < by["t_pas", "rule-based-c"].value  # their biases
    for definition in ("mean_of_question_medians", "median_of_annotator_aggregates"):
        assert sum(m.value or 0 for key, m in by.items() if key[:2] == ("regime", definition)) == pytest.approx(1)
    wide, narrow = (
        agreement(sample_answers, Settings(unit=unit, resamples=200))[1].ci95 for unit in ("concept", "pair")  # type: ignore[arg-type]
    )  # fmt: skip
    assert wide and narrow and wide != narrow


def test_what_is_not_answered_is_counted() -> None:
    """An annotator that fails is in fewer scores, and the share that it answered says so; agreement is over what all answered."""
    answers = random_answers(12, n=20)
    answers[:, 0] = np.where(np.isfinite(answers[:, 0]), answers[:, 0], 0.5)
    names = tuple("abcd")
    shares = []
    for k in (0, 5, 15):
        failing = answers.copy()
        failing[:k, 0] = np.nan
        table = AnswerTable("own", tuple(map(str, range(20))), tuple(map(str, range(20))), names, failing)
        by = {(m.name, *m.slice.values()): m for m in agreement(table, Settings(resamples=20))}
        assert by["t_pas", "a"].n == 20 - k and by["answered", "a"].value == 1 - k / 20
        shares.append(by["answered",].value)
    assert shares[0] > shares[1] > shares[2]


def test_a_kappa_that_one_concept_decides_has_no_interval() -> None:
    """Without the concept all answers are the same, and the kappa of such a resample is not defined."""
    answers = np.zeros((8, 4, 12))
    answers[0, :2] = 1.0
    table = AnswerTable("own", tuple(map(str, range(8))), tuple(map(str, range(8))), tuple("abcd"), answers)
    by = {(m.name, *m.slice.values()): m for m in agreement(table, Settings(resamples=200))}
    assert by["fleiss_kappa",].value is not None and by["fleiss_kappa",].ci95 is None and by["unanimous",].ci95 is not None
    few = AnswerTable("own", table.pair_ids[:5], table.concepts[:5], table.annotators, answers[:5])
    assert all(m.ci95 is None for m in agreement(few, Settings(resamples=20)))


def test_a_record_of_the_former_protocol_is_scored_with_its_intervals(sample_answers: AnswerTable, tmp_path: Path) -> None:
    from decodehub.core.records import protocol_hash, write_record
    from decodehub.hub.verify import verify

    record = make_record(tmp_path, sample_answers, model=ModelInfo(id="rules"), settings=Settings(resamples=50, interval="percentile"))
    settings = {name: value for name, value in record.protocol.settings.items() if name != "interval"}
    former = {"name": "vlm-agreement-v1.0", "settings": settings, "hash": protocol_hash("vlm-agreement-v1.0", settings)}
    write_record(tmp_path, record.model_copy(update={"protocol": type(record.protocol)(**former)}))
    assert verify(tmp_path)[1] == [] and not any(m.name == "answered" for m in record.metrics)


def test_a_record_is_verified_and_a_changed_one_is_not(sample_answers: AnswerTable, tmp_path: Path) -> None:
    from decodehub.hub.verify import verify

    record = make_record(tmp_path / "record", sample_answers, model=ModelInfo(id="rules"), settings=Settings(resamples=50))
    assert record.is_sample and verify(tmp_path / "record")[1] == []
    file = tmp_path / "record/record.json"
    raw = json.loads(file.read_text())
    raw["metrics"][0]["value"] += 0.01
    file.write_text(json.dumps(raw))
    assert [d.field for d in verify(tmp_path / "record")[1]] == ["value"]
    table = tmp_path / "record/table.json"
    table.write_text(table.read_text().replace("rule-based-a", "rule-based-z"))
    with pytest.raises(RecordError, match="another table"):
        verify(tmp_path / "record")


def test_the_metric_loads_by_name_and_equals_the_functions(sample_answers: AnswerTable) -> None:
    metric = evaluate.load("vlm_agreement")
    rows = [[[None if np.isnan(x) else x for x in a] for a in pair] for pair in sample_answers.answers[:40]]
    rows[0][1][2] = None
    found = metric.compute(predictions=rows, references=list(sample_answers.concepts[:40]), unit="pair", resamples=20)
    answers = sample_answers.answers[:40].copy()
    answers[0, 1, 2] = np.nan
    patterns = tabulate(answers)
    assert found["fleiss_kappa"] == pytest.approx(float(fleiss_kappa(patterns, patterns.counts())), abs=1e-12)
    assert len(found["weighted_kappa"]) == 6 and set(found["fleiss_kappa_by_question"]) == set(QUESTIONS)
    whole = metric.compute_from_release("sample", resamples=20)
    assert whole["release"] == "sample" and whole["n_pairs"] == len(sample_answers.pair_ids)
    with pytest.raises(ValueError, match="12 questions"):
        metric.compute(predictions=[[[0, 1], [1, 1]]], references=["a"])


def test_questions_are_those_of_the_questionnaire() -> None:
    questionnaire = load_questionnaire()
    assert questionnaire.keys == QUESTIONS and tuple(questionnaire.answers.values()) == VALUES
    assert (questionnaire.block("perceptual"), questionnaire.block("semantic")) == (PERCEPTUAL, SEMANTIC)


@pytest.mark.parametrize("annotators", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("rule", ["paper", "released_code"])
def test_the_data_set_and_the_metric_agree_on_targets_and_weights(annotators: int, rule: str) -> None:
    answers = random_answers(annotators, annotators=annotators, missing=0.1)
    codes = np.where(np.isnan(answers), -1, answers * 2).astype(int)
    table = consensus_table(codes, (PERCEPTUAL, SEMANTIC), rule)  # type: ignore[arg-type]
    assert np.array_equal(table.targets, consensus(answers), equal_nan=True)
    assert np.allclose(table.weights, agreement_weights(answers, rule), atol=1e-12)  # type: ignore[arg-type]
    expected = consensus_scores(answers, SEMANTIC, "mean_of_question_medians")
    assert np.allclose(table.t_sas, expected, atol=1e-12, equal_nan=True)
