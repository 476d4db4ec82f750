"""The demo's parts, and what its scores must do as the signal grows: chance at 0, near-perfect when high, monotone between."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from decodehub.metrics.eeg_editbench.benchmark import Benchmark, make_benchmark
from decodehub.metrics.eeg_editbench.protocol import Predictions, ScoredRuns, score_runs
from decodehub.runs.retrieval import stimuli
from decodehub.scripts import demo

CONCEPTS, EDITS, DIM = 40, 10, 24


@pytest.fixture(scope="module")
def planted() -> tuple[Benchmark, np.ndarray, dict[str, np.ndarray]]:
    """Features with cluster structure: edits lie near their source, identity edits far, attribute edits close."""
    rng = np.random.default_rng(0)
    families = [("identity", 1.5), ("attribute", 0.3), ("background", 0.8), ("removal", 1.2)]
    edits, shifts = [], []
    for i in range(CONCEPTS):
        for j in range(EDITS):
            family, size = families[j % 4]
            edits.append(
                {
                    "edit_id": f"{i}-{j}",
                    "concept": f"c{i}",
                    "family": family,
                    "target_concept": f"c{(i + 1) % CONCEPTS}" if family == "identity" else None,
                }
            )
            shifts.append(size)
    benchmark = make_benchmark("planted", [{"concept": f"c{i}", "source_category": "animal"} for i in range(CONCEPTS)], edits)
    training = rng.standard_normal((400, DIM))
    sources = rng.standard_normal((CONCEPTS, DIM))
    edited = sources[benchmark.query] + np.array(shifts)[:, None] * rng.standard_normal((len(edits), DIM))
    nulls = sources + 0.05 * rng.standard_normal(sources.shape)
    return (
        benchmark,
        training.astype(np.float32),
        {name: x.astype(np.float32) for name, x in (("sources", sources), ("edits", edited), ("nulls", nulls))},
    )


def scored(planted: tuple[Benchmark, np.ndarray, dict[str, np.ndarray]], snr: float, monkeypatch: pytest.MonkeyPatch) -> ScoredRuns:
    monkeypatch.setattr(demo, "LATENT_DIM", DIM)
    monkeypatch.setattr(demo, "SUBJECTS", (1, 2, 3, 4))
    monkeypatch.setattr(demo, "SEEDS", (0,))
    benchmark, training, features = planted
    runs: list[Predictions] = [run for run, _ in demo._runs(training, features, snr)]
    return score_runs(benchmark, runs)


def test_scores_follow_the_signal(planted: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    by_snr = {snr: scored(planted, snr, monkeypatch) for snr in (0.0, 0.05, 0.5)}
    values = {snr: {m.name: m for m in s.metrics if not m.slice} for snr, s in by_snr.items()}
    null = values[0.0]
    for name in ("top1", "top5", "null_top1", "ep_top1", "two_afc", "pairing_gain"):
        # Means over 4 subjects of 40 queries: the yardstick is the binomial error over the queries of all subjects.
        p = max(null[name].chance, 5.0) / 100
        assert abs(null[name].value - null[name].chance) < 4 * 100 * np.sqrt(p * (1 - p) / (4 * CONCEPTS)), name
    for name in ("top1", "top5", "ep_top1", "two_afc", "pairing_gain"):
        series = [values[snr][name].value for snr in sorted(values)]
        assert all(a <= b + 1.0 for a, b in itertools.pairwise(series)), (name, series)
    assert values[0.5]["top1"].value > 99 and values[0.5]["two_afc"].value > 98 and values[0.5]["ep_top1"].value > 90
    assert 5 < values[0.05]["top1"].value < 99
    assert abs(values[0.5]["two_afc_mismatched"].value - 50) < 6  # the wrong EEG does not know the source


def test_larger_changes_are_easier(planted: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    families = {
        m.slice["family"]: m.value for m in scored(planted, 0.05, monkeypatch).metrics if m.name == "two_afc" and set(m.slice) == {"family"}
    }
    assert families["identity"] > families["attribute"] + 5, families
    assert families["background"] > families["attribute"], families


def test_training_crops_come_from_no_source_of_the_sample() -> None:
    from decodehub.hub_datasets.eeg_editbench.sample import CONCEPTS as SAMPLE

    photos = stimuli.training_photos()
    assert all(photo.is_file() for photo in photos)
    assert not {photo.name for photo in photos} & {concept.photo.name for concept in SAMPLE}


def test_training_crops_are_the_same_every_time() -> None:
    first, again = list(stimuli.training_crops(30)), list(stimuli.training_crops(30))
    assert all(np.array_equal(a, b) for a, b in zip(first, again))
    assert {crop.shape for crop in first} == {(224, 224, 3)} and first[0].dtype == np.uint8
    assert not np.array_equal(first[0], next(stimuli.training_crops(1, seed=9)))


def test_the_demo_runs_and_its_record_verifies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from decodehub.hub.verify import verify

    monkeypatch.setattr(demo, "SUBJECTS", (1, 2))
    monkeypatch.setattr(demo, "SEEDS", (0,))
    monkeypatch.setattr(demo, "LATENT_DIM", 30)
    monkeypatch.setattr(demo, "NICE", {**demo.NICE, "crops": 60, "epochs": 1})
    monkeypatch.setattr(demo, "IMIND_SESSIONS", demo.IMIND_SESSIONS[:1])
    monkeypatch.setattr(demo, "IMIND_TASKS", {"speech": "strong"})
    monkeypatch.setattr(demo, "IMIND_MODELS", ("logistic-converged",))
    result = CliRunner().invoke(demo.app, ["--out", str(tmp_path / "demo"), "--crops", "200", "--snr", "0.5"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    record, differences = verify(tmp_path / "demo")
    assert differences == [] and record.is_sample and "Simulated" in record.data and len(record.runs) == 2
    assert record.value("two_afc") > 70
    page = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    assert "simulated" in page and page.count("data:image/") >= 20 and "sample" in result.output
