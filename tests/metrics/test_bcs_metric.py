"""``evaluate.load("bcs")``: images of many kinds, methods, intervals, the sample head, errors; the same numbers in one process and in two."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from decodehub.hub_models.bcs import BCSConfig, BCSModel
from decodehub.metrics.bcs import heads
from decodehub.metrics.bcs.scoring import QUESTIONS, REGIMES


class FakeEncoder:
    dim, fingerprint = 6, "sha256:fake"

    def encode(self, images: Any) -> np.ndarray:
        pixels = [np.asarray(image, dtype=np.float32).reshape(-1, 3) / 255 for image in images]
        return np.stack([np.concatenate([p.mean(0) + 0.1, p.std(0) + 0.1]) for p in pixels])


@pytest.fixture
def metric(monkeypatch: pytest.MonkeyPatch):
    """The metric with a random head on a stand-in encoder."""
    import evaluate

    model = BCSModel(BCSConfig(encoders=[{"id": "x", "dim": 6, "fingerprint": None}], hidden_size=8, ffn_size=8, n_train=1)).eval()
    model.encoders = [FakeEncoder()]
    bcs = evaluate.load("bcs")
    module = importlib.import_module("decodehub.metrics.bcs.bcs")
    assert type(bcs) is module.BCSMetric
    monkeypatch.setattr(module, "load_head", lambda name, progress: model)
    return bcs, model


def pictures(n: int, seed: int = 0) -> list[np.ndarray]:
    return [np.random.default_rng([seed, i]).integers(0, 255, (9, 8, 3), dtype=np.uint8) for i in range(n)]


def compute(metric: Any, **kwargs: Any) -> dict:
    return metric.compute(progress=False, **kwargs)


def test_numbers_are_those_of_the_model(metric) -> None:
    bcs, model = metric
    references, reconstructions = pictures(3) * 4, pictures(12, 1)
    methods = ["a"] * 6 + ["b"] * 6
    found = compute(bcs, predictions=reconstructions, references=references, method=methods, concept=list("xyzuvw") * 2, per_pair=True)
    output = model.score(references, reconstructions)
    assert found["t_pas"] == pytest.approx(output.t_pas.mean().item(), abs=1e-6)
    assert found["t_sas"] == pytest.approx(output.t_sas.mean().item(), abs=1e-6)
    assert list(found["question_means"]) == list(QUESTIONS) and list(found["regime_shares"]) == list(REGIMES)
    assert found["by_method"]["b"]["t_sas"] == pytest.approx(output.t_sas[6:].mean().item(), abs=1e-6)
    assert found["n_pairs"] == 12 and found["n_images"] == 15
    assert found["t_pas_ci95"][0] <= found["t_pas"] <= found["t_pas_ci95"][1]
    rows = found["per_pair"]
    assert [row["method"] for row in rows] == methods and rows[7]["concept"] == "y"
    np.testing.assert_allclose([row["t_pas"] for row in rows], output.t_pas, atol=1e-6)
    np.testing.assert_allclose(list(rows[4]["question_scores"].values()), output.question_scores[4], atol=1e-6)
    assert "warning" not in found and found["encoders"] == ["x"]


def test_batches_added_one_by_one_and_any_kind_of_image(metric, tmp_path: Path) -> None:
    bcs, _ = metric
    references, reconstructions = pictures(5), pictures(5, 1)
    whole = compute(bcs, predictions=reconstructions, references=references, n_bootstrap=0)
    for i, picture in enumerate(reconstructions):
        Image.fromarray(picture).save(tmp_path / f"{i}.png")
    kinds = [
        [str(tmp_path / f"{i}.png") for i in range(5)],
        [tmp_path / f"{i}.png" for i in range(5)],
        [(tmp_path / f"{i}.png").read_bytes() for i in range(5)],
        [Image.open(tmp_path / f"{i}.png") for i in range(5)],
        [{"path": None, "bytes": (tmp_path / f"{i}.png").read_bytes()} for i in range(5)],
        np.stack(reconstructions),
    ]
    for images in kinds:
        bcs.add_batch(predictions=images[:2], references=references[:2])
        bcs.add(prediction=images[2], reference=references[2])
        bcs.add_batch(predictions=images[3:], references=references[3:])
        found = compute(bcs, n_bootstrap=0, batch_size=2)
        assert found["t_pas"] == pytest.approx(whole["t_pas"], abs=1e-6) and found["t_pas_ci95"] is None


def test_bad_calls_are_refused_and_leave_the_metric_usable(metric, tmp_path: Path) -> None:
    bcs, _ = metric
    a = pictures(2)
    (tmp_path / "bad.png").write_text("no image")
    cases: list[tuple[dict, type[Exception], str]] = [
        ({"predictions": a, "references": a[:1]}, ValueError, "found 2 and 1"),
        ({"predictions": [], "references": []}, ValueError, "found 0 and 0"),
        ({"predictions": a[0], "references": a}, TypeError, "predictions must be a sequence"),
        ({"predictions": [a[0], tmp_path / "gone.png"], "references": a}, FileNotFoundError, "gone.png"),
        ({"predictions": [a[0], np.full((3, 3), -1.0)], "references": a}, ValueError, "prediction 1"),
        ({"predictions": a, "references": a, "method": ["one"]}, ValueError, "method must be 2 names"),
        ({"predictions": a, "references": [a[0], tmp_path / "bad.png"]}, ValueError, "bad.png cannot be read"),
    ]
    for arguments, kind, message in cases:
        with pytest.raises(kind, match=message):
            compute(bcs, **arguments)
    assert compute(bcs, predictions=a, references=a)["n_pairs"] == 2


def test_no_head_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="decodehub bcs train"):
        heads.load_head(None)
    with pytest.raises(ValueError, match=r"there is no BCS head 'nobody/bcs'.*sample"):
        heads.load_head("nobody/bcs")
    BCSModel(BCSConfig.tiny()).save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="never trained"):
        heads.load_head(tmp_path / "model")
    monkeypatch.setenv("DECODEHUB_ORG", "nobody")
    with pytest.raises(ValueError, match="no BCS head 'nobody/bcs'"):
        heads.load_head(None)


def test_a_folder_of_a_run_stands_for_its_model(tmp_path: Path) -> None:
    config = BCSConfig.tiny()
    config.n_train = 3
    BCSModel(config).save_pretrained(tmp_path / "model")
    assert heads.load_head(tmp_path).config.n_train == heads.load_head(str(tmp_path / "model")).config.n_train == 3


def test_the_sample_head_is_trained_once_works_offline_and_says_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    import evaluate

    monkeypatch.setattr(heads, "SAMPLE_PAIRS", {"train": 36, "validation": 10})
    bcs = evaluate.load("bcs", "sample")
    from skimage import data

    references = [data.astronaut()[:300, :300], data.coffee(), data.chelsea()]
    shuffled = [references[i] for i in (1, 2, 0)]
    found = compute(bcs, predictions=[*references, *shuffled], references=references * 2, method=["same"] * 3 + ["other"] * 3)
    assert "mean nothing scientific" in found["warning"] and found["release"] == "sample" and found["model"] == "sample"
    for score in ("t_pas", "t_sas"):
        assert found["by_method"]["same"][score] > found["by_method"]["other"][score] + 0.1
    monkeypatch.setattr(heads, "_train", lambda *_: pytest.fail("trained a second time"))
    assert heads.sample_head(progress=False).config.release == "sample"


def score_share(expected: np.ndarray) -> None:
    """Run in each process: score this process's part, gather, compare with the whole on the main process."""
    from accelerate import Accelerator

    torch.manual_seed(0)
    model = BCSModel(BCSConfig(encoders=[{"id": "x", "dim": 6, "fingerprint": None}], hidden_size=8, ffn_size=8)).eval()
    model.encoders = [FakeEncoder()]
    accelerator = Accelerator(cpu=True)
    references, reconstructions = pictures(3) * 3, pictures(9, 1)
    with accelerator.split_between_processes(list(range(9)), apply_padding=True) as rows:
        output = model.score([references[i] for i in rows], [reconstructions[i] for i in rows])
    gathered = accelerator.gather(output.question_scores)[:9].numpy()
    np.testing.assert_allclose(gathered, expected, rtol=0, atol=1e-6)


def test_two_processes_give_what_one_gives(launch_two: Any) -> None:
    model = BCSModel(BCSConfig(encoders=[{"id": "x", "dim": 6, "fingerprint": None}], hidden_size=8, ffn_size=8)).eval()
    model.encoders = [FakeEncoder()]
    expected = model.score(pictures(3) * 3, pictures(9, 1)).question_scores.numpy()
    launch_two(score_share, (expected,))
