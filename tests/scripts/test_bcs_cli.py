"""``decodehub bcs``: a head trained, stopped, resumed and evaluated; folders scored; records that verify; failures that leave nothing behind."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file
from torch import Tensor
from typer.testing import CliRunner

from decodehub.core.records import read_record
from decodehub.hub.verify import verify
from decodehub.hub_models.bcs import BCSModel
from decodehub.hub_models.bcs.training import EnsembleTrainer
from decodehub.loaders.images import encode_png
from decodehub.loaders.reconstruction_pairs import pair_folders
from decodehub.metrics.bcs.annotations import Annotations
from decodehub.runs.bcs import scoring as _bcs_scoring
from decodehub.runs.bcs import training as _bcs_training
from decodehub.scripts.bcs import app

N_CONCEPTS, PER_CONCEPT = 20, 6


class QuarterColours:
    """Mean colours of the quarters of an image: a quick stand-in of 12 numbers."""

    name, dim, licence, fingerprint = "lite0", 12, "none", "sha256:" + "0" * 64
    preprocessing: dict = {}  # noqa: RUF012
    network = None

    def preprocess(self, image: Image.Image) -> Tensor:
        return torch.from_numpy(np.asarray(image.resize((2, 2), Image.Resampling.BOX), dtype=np.float32) / 255 + 0.05)

    def encode(self, images: Sequence[Image.Image]) -> np.ndarray:
        return np.stack([self.preprocess(image).flatten().numpy() for image in images])


def annotations(release: str = "tiny") -> Annotations:
    """Images of four colours; a reconstruction mixes its reference with noise, and targets are how much of it is left, in quarters."""
    rng = np.random.default_rng(0)
    rows, references, reconstructions, targets, split = [], [], [], [], []
    for c in range(N_CONCEPTS):
        colours = rng.integers(0, 255, (2, 2, 3))
        reference = {"path": None, "bytes": encode_png(colours.astype(np.uint8).repeat(4, 0).repeat(4, 1))}
        for k in range(PER_CONCEPT):
            kept = k / (PER_CONCEPT - 1)
            mixed = kept * colours + (1 - kept) * rng.integers(0, 255, (2, 2, 3))
            reconstructions.append({"path": None, "bytes": encode_png(mixed.astype(np.uint8).repeat(4, 0).repeat(4, 1))})
            references.append(reference)
            targets.append(np.round(4 * np.clip(kept + 0.1 * rng.standard_normal(12), 0, 1)) / 4)
            split.append("train" if c < 12 else "validation" if c < 15 else "test")
            who = {"pair_id": f"m__extra__c{c}__rank1__cand{k}__row{c}", "method": "m", "subject": None, "concept": f"c{c}"}
            rows.append(who | {"reference_sha256": f"sha256:{c}", "reconstruction_sha256": f"sha256:{c}-{k}"})
    values = np.array(targets)
    values[7, 3] = np.nan
    weights = np.where(np.isnan(values), 0.0, 0.75)
    return Annotations(release, rows, references, reconstructions, values, weights, np.array(split), 4, "paper")


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small annotated set and a quick encoder in place of the real ones."""
    for module in (_bcs_training, _bcs_scoring):
        monkeypatch.setattr(module, "load_encoder", lambda id, device=None: QuarterColours())
    monkeypatch.setattr(_bcs_training, "load_annotations", lambda *args: annotations())


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)


def train(out: Path, *more: object) -> Any:
    fixed = ("train", "--hidden-size", 16, "--epochs", 25, "--batch-size", 32, "--lr", 3e-3, "--seeds", "7,13", "--out", out)
    return call(*fixed, "--cache-dir", out / "cache", *more)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_bcs_training, "load_encoder", lambda id, device=None: QuarterColours())
        patch.setattr(_bcs_training, "load_annotations", lambda *args: annotations())
        out = tmp_path_factory.mktemp("trained")
        done = train(out)
        assert done.exit_code == 0
    return out


def test_a_trained_head_is_better_than_the_mean_on_held_out_concepts(trained: Path) -> None:
    record, differences = verify(trained)
    assert differences == []
    for measure in ("pas_r", "sas_r"):
        assert record.value(measure) > 0.7
    for measure in ("q_mae", "pas_mae", "sas_mae"):
        assert record.value(measure) < 0.7 * record.value(measure, baseline="train_mean")
    assert record.value("sas_r", baseline="siglip_baseline") is not None and record.value("pas_r", baseline="train_mean") is None
    assert record.protocol.settings["kind"] == "evaluation" and record.protocol.settings["training"]["train_pairs"] == 72
    assert record.metrics[0].n == 30 and not record.is_sample
    names = {path.name for path in trained.iterdir()}
    assert {"model", "record.json", "report.html", "calibration.png", "calibration.svg", "run.json"} <= names
    assert "checkpoint.safetensors" not in names
    model = BCSModel.from_pretrained(trained / "model")
    assert model.config.n_train == 72 and model.config.encoders[0]["fingerprint"] == QuarterColours.fingerprint
    page = (trained / "report.html").read_text()
    assert "Held-out concepts" in page and "<svg" in page and 'src="http' not in page and "<script" not in page


def test_a_stopped_run_goes_on_to_the_same_bytes(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = EnsembleTrainer.run_epoch

    def stop(self: EnsembleTrainer) -> Any:
        if self.epoch == 13 and len(self.seeds) == 2:
            raise KeyboardInterrupt
        return whole(self)

    monkeypatch.setattr(EnsembleTrainer, "run_epoch", stop)
    train(tmp_path)
    assert (tmp_path / "checkpoint.safetensors").is_file() and not (tmp_path / "record.json").exists()
    monkeypatch.setattr(EnsembleTrainer, "run_epoch", whole)
    with pytest.raises(ValueError, match="other data or settings"):
        train(tmp_path, "--weight-rule", "released_code", "--lr", 1e-3)
    assert train(tmp_path).exit_code == 0
    assert (tmp_path / "model/model.safetensors").read_bytes() == (trained / "model/model.safetensors").read_bytes()
    assert (tmp_path / "predictions.safetensors").read_bytes() == (trained / "predictions.safetensors").read_bytes()
    (tmp_path / "checkpoint.safetensors").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="cannot be read"):
        train(tmp_path)


@pytest.mark.parametrize("output_type", ["snapping", "prototypes"])
def test_ordinal_heads(tmp_path: Path, output_type: str) -> None:
    assert train(tmp_path, "--output-type", output_type, "--no-baseline").exit_code == 0
    record, differences = verify(tmp_path)
    config = BCSModel.from_pretrained(tmp_path / "model").config
    assert differences == [] and record.value("pas_r") > 0.5
    if output_type == "snapping":
        assert config.output_type == "ordinal" and len(config.thresholds) == 12
        from safetensors.numpy import load_file

        assert set(np.unique(load_file(tmp_path / "predictions.safetensors")["question_scores"])) <= {0.0, 0.5, 1.0}
    else:
        assert config.architecture == "ordinal_prototype" and config.output_type == "continuous"


def test_unknown_settings_are_refused(tmp_path: Path) -> None:
    for option, value, message in (
        ("--output-type", "other", "expected one of continuous"),
        ("--validation-loss", "other", "validation_loss"),
        ("--encoders", ",", "expected names"),
    ):
        with pytest.raises(ValueError, match=message):
            train(tmp_path, option, value)
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------------------------------------------- folders


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Six references, two of them without a reconstruction, and METHOD/sub-XX folders with one file that fits nothing."""
    rng = np.random.default_rng(3)
    references, reconstructions = tmp_path / "references", tmp_path / "reconstructions"
    references.mkdir()
    for i in range(6):
        colours = rng.integers(0, 255, (2, 2, 3)).astype(np.uint8)
        Image.fromarray(colours.repeat(4, 0).repeat(4, 1)).save(references / f"thing{i}.png")
        for method in ("ATM", "ENIGMA") if i < 4 else ():
            noise = rng.integers(0, 255, (2, 2, 3)).astype(np.uint8)
            pixels = colours if method == "ATM" else noise
            (reconstructions / method / "sub-03").mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.repeat(4, 0).repeat(4, 1)).save(reconstructions / method / "sub-03" / f"thing{i}.png")
    Image.new("RGB", (8, 8), "red").save(reconstructions / "ATM" / "sub-03" / "nothing.png")
    return references, reconstructions


def test_folders_are_scored_and_the_record_verifies(trained: Path, folders: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = call("score", *folders, "--model", trained / "model", "--out", out, "--cache-dir", tmp_path / "cache", "--data", "planted")
    assert done.exit_code == 0
    assert "2 references without a reconstruction" in done.output and "1 reconstructions without a reference" in done.output
    with (out / "unmatched.csv").open() as f:
        assert [row["file"] for row in csv.DictReader(f)] == ["thing4.png", "thing5.png", "ATM/sub-03/nothing.png"]
    with (out / "scores.csv").open() as f:
        rows = list(csv.DictReader(f))
    assert len(rows) == 8 and rows[0]["method"] == "ATM" and rows[0]["subject"] == "03" and rows[0]["reference"] == "thing0.png"
    exact, noise = ([float(r["t_sas"]) for r in rows if r["method"] == m] for m in ("ATM", "ENIGMA"))
    assert min(exact) > max(noise), "copies of the reference must score above random colours"
    record, differences = verify(out)
    assert differences == [] and record.value("t_sas", method="ATM") == pytest.approx(np.mean(exact), abs=1e-5)
    assert record.data == "planted; pairs by same name; 1 reconstruction an image" and record.protocol.settings["kind"] == "score"
    assert str(tmp_path) not in (out / "record.json").read_text() and str(tmp_path) not in (out / "report.html").read_text()
    page = (out / "report.html").read_text()
    assert "Plausible but wrong" in page and page.count("<img") >= 16 and "ENIGMA/sub-03/thing0" in page


def test_every_batch_size_gives_the_same_scores(trained: Path, folders: tuple[Path, Path], tmp_path: Path) -> None:
    found = []
    for size in (1, 3, 64):
        out = tmp_path / str(size)
        call("score", *folders, "--model", trained, "--out", out, "--cache-dir", tmp_path / f"c{size}", "--batch-size", size, "--no-page")
        found.append((out / "predictions.safetensors").read_bytes())
        assert not (out / "report.html").exists()
    assert found[0] == found[1] == found[2]


def test_a_failure_leaves_nothing_behind(
    trained: Path, folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, (references, reconstructions) = tmp_path / "out", folders
    fixed = ("--model", trained / "model", "--out", out, "--cache-dir", tmp_path / "cache")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match="holds no image"):
        call("score", references, empty, *fixed)
    with pytest.raises(ValueError, match="needs a trained head"):
        call("score", *folders, "--out", out)
    (reconstructions / "ATM" / "sub-03" / "thing1.png").write_bytes(b"\x89PNG cut short")
    with pytest.raises(ValueError, match=r"ATM/sub-03/thing1\.png cannot be read"):
        call("score", *folders, *fixed)
    (reconstructions / "ATM" / "sub-03" / "thing1.png").unlink()
    monkeypatch.setattr(QuarterColours, "fingerprint", "sha256:" + "1" * 64)
    with pytest.raises(ValueError, match="other weights, architecture or preprocessing"):
        call("score", *folders, *fixed)
    assert not out.exists()


def test_a_head_of_the_sample_marks_all_it_scores(trained: Path, folders: tuple[Path, Path], tmp_path: Path) -> None:
    model = BCSModel.from_pretrained(trained / "model")
    model.config.release = "sample"
    model.save_pretrained(tmp_path / "model")
    out = tmp_path / "out"
    done = call("score", *folders, "--model", tmp_path / "model", "--out", out, "--cache-dir", tmp_path / "cache")
    assert "mean nothing scientific" in done.output and read_record(out)[1].is_sample
    for file in ("scores.csv", "report.html"):
        assert "scientific" in (out / file).read_text()
    assert json.loads((out / "pairs.json").read_text())["release"] == "sample"


def score_in_two(arguments: tuple) -> None:
    found = pair_folders(*arguments[:2])
    _bcs_scoring.score_folders(
        found, *arguments, model=str(arguments[2].parent / "model"), data="d", release="own", cache_dir=arguments[2] / "c"
    )


def test_two_processes_write_what_one_writes(
    trained: Path, folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launch_two: Any
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    BCSModel.from_pretrained(trained / "model").save_pretrained(tmp_path / "model")
    score_in_two((*folders, tmp_path / "one"))
    launch_two(score_in_two, ((*folders, tmp_path / "two"),))
    one, two = (load_file(tmp_path / name / "predictions.safetensors") for name in ("one", "two"))
    for name in one:  # products of float32 may round otherwise in a process with other threads
        np.testing.assert_allclose(one[name], two[name], rtol=0, atol=1e-6)
    for file in ("scores.csv", "pairs.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
