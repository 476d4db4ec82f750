"""BCS numbers against second implementations, and the protocol: records that verify, and that refuse to when they are touched."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from decodehub.core.records import ModelInfo, RecordError, read_record
from decodehub.core.statistics import Resamples, mean_interval
from decodehub.metrics.bcs import protocol
from decodehub.metrics.bcs.protocol import Pairs, Scores, make_record
from decodehub.metrics.bcs.scoring import (
    QUESTIONS,
    REGIMES,
    Settings,
    agreement,
    as_dict,
    calibration,
    describe,
    regimes,
    t_scores,
)

NO_BOOTSTRAP = Settings(n_bootstrap=0)


def scores(n: int = 40, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((n, 12))


def test_questions_are_those_of_the_model_and_of_the_annotations() -> None:
    from decodehub.hub_datasets.bcs_annotations.questionnaire import load_questionnaire
    from decodehub.hub_models.bcs import QUESTIONS as OF_THE_MODEL

    assert OF_THE_MODEL == QUESTIONS == tuple(load_questionnaire().keys)


def test_worked_examples_of_the_paper(shared: Path) -> None:
    """T-PAS .792 = 19/24 and T-SAS 1 of the chinaware, 10/24 and .25 of the eagle: sums of quarters over six questions."""
    examples = json.loads((shared / "data/bcs/paper_numbers.json").read_text())["worked_examples"]
    assert "chinaware" in json.dumps(examples)
    answers = np.array([[1, 1, 0.75, 0.5, 1, 0.5, *[1] * 6], [0.5, 0.25, 0.5, 0.5, 0.25, 0.5, 0.25, 0, 0.25, 0.5, 0.5, 0]])
    t_pas, t_sas = t_scores(answers)
    np.testing.assert_allclose(t_pas, [19 / 24, 10 / 24])
    np.testing.assert_allclose(t_sas, [1, 0.25])
    assert [REGIMES[i] for i in regimes(t_pas, t_sas)] == ["high_p_high_s", "low_p_low_s"]


def test_t_scores_skip_what_is_not_there() -> None:
    values = scores(3)
    values[0, 1] = np.nan
    values[1, 6:] = np.nan
    t_pas, t_sas = t_scores(values)
    assert t_pas[0] == pytest.approx(np.nanmean(values[0, :6])) and np.isnan(t_sas[1]) and t_sas[2] == pytest.approx(values[2, 6:].mean())


def test_regimes_of_table_9_are_counted_right(shared: Path) -> None:
    table = json.loads((shared / "data/bcs/paper_numbers.json").read_text())["table9_regimes"]["rows"]
    n, *counts = table["overall"]
    corners = {"high_p_high_s": (0.5, 0.9), "high_p_low_s": (0.7, 0.4999), "low_p_high_s": (0.3, 0.5), "low_p_low_s": (0.0, 0.1)}
    rows = np.concatenate([np.repeat([[p] * 6 + [s] * 6], count, axis=0) for (p, s), count in zip(corners.values(), counts)])
    assert len(rows) == n == 6855
    found = as_dict(describe(rows, [str(i % 200) for i in range(n)], None, NO_BOOTSTRAP))
    assert [round(found[f"regime_share[regime={r}]"], 3) for r in REGIMES] == [0.072, 0.030, 0.066, 0.831]


def test_describe_gives_overall_and_methods() -> None:
    values = scores(30)
    methods = ["a", "b", None] * 10
    found = as_dict(describe(values, [str(i % 5) for i in range(30)], methods, NO_BOOTSTRAP))
    assert found["t_pas"] == pytest.approx(values[:, :6].mean()) and found["t_sas"] == pytest.approx(values[:, 6:].mean())
    assert found["t_sas[method=b]"] == pytest.approx(values[1::3, 6:].mean())
    assert found[f"question_mean[method=a,question={QUESTIONS[3]}]"] == pytest.approx(values[::3, 3].mean())
    assert sum(found[f"regime_share[regime={r}]"] for r in REGIMES) == pytest.approx(1)
    assert "t_pas[method=None]" not in found


def test_agreement_is_that_of_scipy() -> None:
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 5, (50, 12)) / 4
    predictions = np.clip(targets + 0.3 * rng.standard_normal(targets.shape), 0, 1)
    weights = rng.random(targets.shape) + 0.1
    targets[4, 2], weights[9, 7] = np.nan, 0
    known = np.isfinite(targets) & (weights > 0)
    found = as_dict(agreement(predictions, targets, weights, ["c"] * 50, NO_BOOTSTRAP))
    x, y = predictions[known], targets[known]
    assert found["q_mae"] == pytest.approx(np.abs(x - y).mean())
    assert found["q_r"] == pytest.approx(stats.pearsonr(x, y)[0]) and found["q_rho"] == pytest.approx(stats.spearmanr(x, y)[0])
    hidden = [np.where(known, v, np.nan) for v in (predictions, targets)]
    for name, block in (("pas", slice(0, 6)), ("sas", slice(6, 12))):
        p, t = (np.nanmean(v[:, block], axis=1) for v in hidden)
        assert found[f"{name}_mae"] == pytest.approx(np.abs(p - t).mean()) and found[f"{name}_r"] == pytest.approx(stats.pearsonr(p, t)[0])


def test_perfect_constant_and_reversed_predictions() -> None:
    targets = np.random.default_rng(0).integers(0, 5, (30, 12)) / 4
    ones = np.ones_like(targets)
    concepts = [str(i % 6) for i in range(30)]
    perfect = as_dict(agreement(targets, targets, ones, concepts, NO_BOOTSTRAP))
    assert perfect["q_mae"] == 0 and perfect["q_r"] == pytest.approx(1) and perfect["sas_r"] == pytest.approx(1)
    assert as_dict(agreement(1 - targets, targets, ones, concepts, NO_BOOTSTRAP))["q_rho"] == pytest.approx(-1)
    constant = agreement(np.full_like(targets, 0.5), targets, ones, concepts)
    assert as_dict(constant)["pas_r"] is None and as_dict(constant)["pas_mae"] is not None


def test_bootstrap_is_that_of_drawing_the_pairs_out() -> None:
    """Every statistic in every resample against a loop that repeats the rows of the drawn concepts and calls scipy."""
    rng = np.random.default_rng(0)
    n = 28
    concepts = [f"c{i % 7}" for i in range(n)]
    targets = rng.integers(0, 5, (n, 12)) / 4
    predictions = np.round(np.clip(targets + 0.4 * rng.standard_normal(targets.shape), 0, 1), 1)
    settings = Settings(n_bootstrap=30, seed=3, interval="percentile")
    found = {x.name: x.ci95 for x in agreement(predictions, targets, np.ones_like(targets), concepts, settings)}
    means = {x.name: x.ci95 for x in describe(predictions, concepts, None, settings) if not x.slice}
    resamples = Resamples(concepts, 30, 3)
    drawn = []
    for counts in resamples.counts:
        rows = np.concatenate([np.flatnonzero(resamples.cluster == c) for c in range(7) for _ in range(int(counts[c]))])
        p, t = predictions[rows], targets[rows]
        pas, sas = (stats.pearsonr(*(v[:, b].mean(1) for v in (p, t)))[0] for b in (slice(0, 6), slice(6, 12)))
        error = np.abs(p[:, :6].mean(1) - t[:, :6].mean(1)).mean()
        flat = (p.ravel(), t.ravel())
        drawn.append([np.abs(p - t).mean(), stats.pearsonr(*flat)[0], stats.spearmanr(*flat)[0], error, pas, sas, p[:, :6].mean()])
    low, high = np.percentile(drawn, [2.5, 97.5], axis=0)
    for i, name in enumerate(("q_mae", "q_r", "q_rho", "pas_mae", "pas_r", "sas_r")):
        np.testing.assert_allclose(found[name], (low[i], high[i]), atol=1e-9, err_msg=name)
    np.testing.assert_allclose(means["t_pas"], (low[6], high[6]), atol=1e-12)
    wider = {x.name: x.ci95 for x in agreement(predictions, targets, np.ones_like(targets), concepts, Settings(n_bootstrap=30, seed=3))}
    assert all(wider[name][0] <= found[name][0] and found[name][1] <= wider[name][1] for name in ("q_r", "q_rho", "pas_r", "sas_r"))


def test_intervals_of_means_are_those_of_the_sign_flip_test_over_concepts() -> None:
    rng = np.random.default_rng(1)
    concepts = [f"c{i}" for i in rng.integers(0, 8, 50)]
    values = rng.random((50, 12))
    index = np.unique(concepts, return_inverse=True)[1]
    found = {x.name: x.ci95 for x in describe(values, concepts) if not x.slice}
    t_pas = values[:, :6].mean(1)
    expected = mean_interval(np.bincount(index, t_pas)[:, None], np.bincount(index))[0]
    np.testing.assert_allclose(found["t_pas"], expected)
    errors = {x.name: x.ci95 for x in agreement(values, 1 - values, np.ones_like(values), concepts, Settings(n_bootstrap=9))}
    error = np.abs(2 * t_pas - 1)
    np.testing.assert_allclose(errors["pas_mae"], mean_interval(np.bincount(index, error)[:, None], np.bincount(index))[0])


def test_fewer_than_six_concepts_have_no_interval() -> None:
    values, ones = np.random.default_rng(2).random((40, 12)), np.ones((40, 12))
    for n, there in ((3, False), (5, False), (6, True)):
        concepts = [str(i % n) for i in range(40)]
        numbers = describe(values, concepts) + agreement(values, 1 - values**2, ones, concepts, Settings(n_bootstrap=400))
        assert all(np.isfinite(x.ci95).all() == there for x in numbers)
    with pytest.raises(ValueError, match="interval"):
        Settings(interval="other")


def test_a_head_that_is_constant_up_to_float32_has_no_correlation() -> None:
    targets = np.random.default_rng(3).integers(0, 5, (30, 12)) / 4
    flat = (0.5 + 3e-8 * np.random.default_rng(4).integers(0, 3, targets.shape)).astype(np.float32)
    assert len(np.unique(flat)) > 1
    found = {x.name: x for x in agreement(flat, targets, np.ones_like(targets), [str(i) for i in range(30)])}
    for name in ("q_r", "q_rho", "pas_r", "sas_r"):
        assert np.isnan(found[name].value) and np.isnan(found[name].ci95).all()
    assert np.isfinite(found["q_mae"].ci95).all()


def test_intervals_widen_when_pairs_share_a_concept() -> None:
    rng = np.random.default_rng(0)
    level = np.repeat(rng.random(10), 20)
    values = np.clip(level[:, None] + 0.02 * rng.standard_normal((200, 12)), 0, 1)
    widths = []
    for concepts in ([str(i // 20) for i in range(200)], [str(i) for i in range(200)]):
        low, high = next(x.ci95 for x in describe(values, concepts) if x.name == "t_pas")
        widths.append(high - low)
    assert widths[0] > 2.5 * widths[1]
    assert np.isnan(describe(values, ["one"] * 200)[0].ci95).all()


def test_calibration_groups() -> None:
    groups = calibration(np.linspace(0, 1, 100), np.linspace(0, 1, 100) ** 2)
    assert groups.shape == (10, 3) and groups[:, 2].sum() == 100 and (np.diff(groups[:, 0]) > 0).all()


def test_bad_scores_are_refused() -> None:
    good = scores(3)
    for values, concepts, message in (
        (good[:, :11], ["a"] * 3, r"shape \(3, 11\)"),
        (good[:0], [], "n of at least 1"),
        (good, ["a"] * 2, "2 concepts for 3 pairs"),
        (good + 1, ["a"] * 3, "row 0, P1_global_spatial_structure"),
        (np.where(np.eye(3, 12), np.nan, good), ["a"] * 3, "is nan"),
    ):
        with pytest.raises(ValueError, match=message):
            describe(values, concepts)
    with pytest.raises(ValueError, match="2 methods"):
        describe(good, ["a"] * 3, ["x", "y"])
    with pytest.raises(ValueError, match="no pair has a target"):
        agreement(good, np.full_like(good, np.nan), good, ["a"] * 3)
    with pytest.raises(ValueError, match="targets and weights"):
        agreement(good, good[:2], good, ["a"] * 3)
    with pytest.raises(ValueError, match="threshold"):
        Settings(threshold=1.5)


# -------------------------------------------------------------------------------------------------------------------------------- records


def pairs(n: int = 20, release: str = "own", targets: bool = True) -> Pairs:
    rows = [
        {
            "pair_id": f"p{i}",
            "method": "ab"[i % 2],
            "subject": None,
            "concept": f"c{i % 4}",
            "reference_sha256": f"sha256:{i % 4}",
            "reconstruction_sha256": f"sha256:r{i}",
        }
        for i in range(n)
    ]
    if not targets:
        return Pairs(release, rows)
    t = np.random.default_rng(5).integers(0, 5, (n, 12)) / 4
    t[2, 2] = np.nan
    return Pairs(release, rows, t, np.where(np.isnan(t), 0, 0.75))


def record_in(folder: Path, table: Pairs, **options: object):
    given = Scores(scores(len(table.rows)), 0.1 * scores(len(table.rows), 1), {"train_mean": np.full((len(table.rows), 12), 0.4)})
    if table.targets is None:
        given = Scores(given.question_scores, given.spread)
    encoders = [{"id": "lite0", "dim": 1280, "fingerprint": "sha256:x"}]
    return make_record(folder, table, given, model=ModelInfo(id="m"), data="d", encoders=encoders, **options)


@pytest.mark.parametrize("targets", [True, False])
def test_a_record_verifies_and_a_touched_one_does_not(tmp_path: Path, targets: bool) -> None:
    from decodehub.hub.verify import verify

    record = record_in(tmp_path, pairs(targets=targets))
    assert verify(tmp_path) == (record, [])
    assert record.protocol.settings["kind"] == ("evaluation" if targets else "score")
    assert not record.is_sample and record.value("t_pas", method="a") is not None
    if targets:
        assert record.value("q_mae", baseline="train_mean") is not None
    stated = json.loads((tmp_path / "record.json").read_text())
    stated["metrics"][0]["value"] += 0.01
    (tmp_path / "record.json").write_text(json.dumps(stated))
    assert [d.field for d in verify(tmp_path)[1]] == ["value"]
    record_in(tmp_path, pairs(targets=targets))
    table = json.loads((tmp_path / "pairs.json").read_text())
    table["pairs"][0]["concept"] = "other"
    (tmp_path / "pairs.json").write_text(json.dumps(table))
    with pytest.raises(RecordError, match="another table"):
        verify(tmp_path)
    (tmp_path / "pairs.json").write_text("{}")
    with pytest.raises(RecordError, match="not the table"):
        verify(tmp_path)


def test_a_head_of_the_sample_makes_a_record_of_the_sample(tmp_path: Path) -> None:
    assert record_in(tmp_path, pairs(), head_release="sample").is_sample
    assert read_record(tmp_path)[1].benchmark.release == "sample"


def test_a_record_of_the_former_protocol_is_scored_with_its_intervals(tmp_path: Path) -> None:
    from decodehub.core.records import protocol_hash, write_record
    from decodehub.hub.verify import verify

    record = record_in(tmp_path, pairs(), settings=Settings(interval="percentile"))
    settings = {name: value for name, value in record.protocol.settings.items() if name != "interval"}
    former = {"name": "bcs-v1.0", "settings": settings, "hash": protocol_hash("bcs-v1.0", settings)}
    write_record(tmp_path, record.model_copy(update={"protocol": type(record.protocol)(**former)}))
    assert verify(tmp_path)[1] == [] and any(m.ci95 for m in record.metrics)


def test_equal_inputs_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        record_in(tmp_path / name, pairs())
    for file in ("predictions.safetensors", "pairs.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    both = [json.loads((tmp_path / name / "record.json").read_text()) | {"created": ""} for name in "ab"]
    assert both[0] == both[1]


def test_bad_predictions_write_no_record(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="question scores"):
        make_record(tmp_path, pairs(), Scores(np.full((20, 12), np.nan)), model=ModelInfo(id="m"), data="d", encoders=[])
    assert not list(tmp_path.iterdir())
    (tmp_path / "x.safetensors").write_bytes(b"not one")
    with pytest.raises(ValueError, match="cannot be read as predictions"):
        protocol.load_scores(tmp_path / "x.safetensors")


def test_smoke_is_at_chance() -> None:
    found = protocol.smoke()
    assert found["t_pas"] == pytest.approx(50, abs=4) and abs(found["q_r"]) < 15
