"""Training of the retrieval models: settings, falling losses, resume to the bit, splits by concept, and the verb from end to end."""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from typer.testing import CliRunner

from decodehub.hub_models.eeg_retrieval import RETRIEVAL_MODELS, EEGRetrievalModel, RandomProjectionModel, RidgeRetrievalModel
from decodehub.runs.retrieval import settings as settings_module
from decodehub.runs.retrieval.embeddings import score_candidates
from decodehub.runs.retrieval.folders import refuse_other_run
from decodehub.runs.retrieval.inputs import recorded_inputs, recorded_test_eeg
from decodehub.runs.retrieval.training import TrainedRun, settings_for, split_by_concept, train
from decodehub.scripts import train_retrieval

MODELS = sorted(RETRIEVAL_MODELS)
N, CONCEPTS = 60, 6


def tiny(name: str, seed: int = 0, **changes: Any) -> EEGRetrievalModel:
    torch.manual_seed(seed)
    config = RETRIEVAL_MODELS[name].config_class.tiny()
    for key, value in changes.items():
        setattr(config, key, value)
    return RETRIEVAL_MODELS[name](config)


def pairs(name: str, n: int = N, seed: int = 0) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """EEG and features that share a latent of four dimensions, and concepts whose numbers have gaps."""
    config, rng, fixed = RETRIEVAL_MODELS[name].config_class.tiny(), np.random.default_rng(seed), np.random.default_rng(99)
    latent = rng.standard_normal((n, 4))
    eeg = latent @ fixed.standard_normal((4, config.n_channels * config.n_times)) + rng.standard_normal(
        (n, config.n_channels * config.n_times)
    )
    targets = {part: latent @ fixed.standard_normal((4, dim)) for part, dim in config.image_inputs.items()}
    if name == "atm":
        targets["text"] = latent @ fixed.standard_normal((4, config.text_dim))
    if name in ("ubp", "ats"):
        targets["image"] = np.stack([targets["image"] + 0.1 * level for level in range(3)], axis=1)
    shaped = eeg.reshape(n, config.n_channels, config.n_times).astype(np.float32)
    return shaped, {part: x.astype(np.float32) for part, x in targets.items()}, 7 + 3 * (np.arange(n) % CONCEPTS)


def run(name: str, out: Path, seed: int = 0, weights: int = 0, **more: Any) -> TrainedRun:
    keep = {key: more.pop(key) for key in ("resume", "on_epoch", "accelerator") if key in more}
    changes = {"epochs": 3, "batch_size": 20, "lr": 2e-3, "patience": 0} | more
    return train(tiny(name, weights), *pairs(name), 2, settings_for(name, **changes), seed, out, progress=False, **keep)


def equal(a: TrainedRun, b: TrainedRun) -> bool:
    left, right = a.model.state_dict(), b.model.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


# ------------------------------------------------------------------------------------------------------------------------------- settings


def test_settings_are_those_of_table_s7() -> None:
    table = {  # epochs, batch, optimiser, rate, schedule
        "nice": (200, 1000, "adam", 2e-4, "none"),
        "mb2c": (1000, 2048, "adam", 2e-4, "none"),
        "atm": (80, 1024, "adamw", 3e-4, "none"),
        "ubp": (50, 1024, "adamw", 1e-4, "none"),
        "ats": (150, 1024, "adamw", 1e-4, "step"),
        "brain-hive": (25, 1024, "adamw", 5e-4, "cosine"),
        "hyfi": (50, 1024, "adamw", 3e-4, "none"),
        "neurobridge": (50, 1024, "adamw", 1e-4, "none"),
    }
    found = {name: settings_for(name) for name in MODELS}
    assert {name: (s.epochs, s.batch_size, s.optimizer, s.lr, s.schedule) for name, s in found.items()} == table
    assert {s.selection for s in found.values()} == {"last"}
    assert [name for name, s in found.items() if s.precision == "bfloat16"] == ["brain-hive"]
    assert found["nice"].betas == (0.5, 0.999) and found["brain-hive"].betas == (0.9, 0.995)


def test_the_rate_follows_its_schedule() -> None:
    cosine, step = settings_for("brain-hive", epochs=2), settings_for("ats")
    rates = [settings_module.rate_of(cosine, epoch, i, 4) for epoch in range(2) for i in range(4)]
    assert rates[0] == 5e-4 and rates[4] == pytest.approx(2.5e-4) and 0 < rates[-1] < 5e-5
    assert [settings_module.rate_of(step, epoch, 0, 1) for epoch in (0, 49, 50, 100)] == pytest.approx([1e-4, 1e-4, 1e-5, 1e-6])


def test_biases_and_norms_are_not_decayed_where_the_method_does_not() -> None:
    model = tiny("brain-hive")
    decayed, plain = settings_module.make_optimizer(model, settings_for("brain-hive")).param_groups
    assert decayed["weight_decay"] == 0.05 and plain["weight_decay"] == 0
    assert sum(len(group["params"]) for group in (decayed, plain)) == len(list(model.parameters()))
    assert {p.ndim for p in plain["params"]} == {1} and {p.ndim for p in decayed["params"]} == {0, 2}


# ------------------------------------------------------------------------------------------------------------------------------- training


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_falls(name: str, tmp_path: Path) -> None:
    """lr is raised, since there are 3 steps an epoch here."""
    found = run(name, tmp_path, epochs=8, lr=1e-2 if name in ("nice", "atm", "mb2c") else 3e-3)
    assert len(found.losses) == 8 and np.mean(found.losses[-2:]) < found.losses[0], found.losses
    assert found.epoch == 8 and not found.model.training and len(found.validation_index) == 0
    metadata = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert metadata == found.metadata and metadata["losses"] == found.losses
    assert (metadata["model_type"], metadata["subject"], metadata["seed"], metadata["selection"]) == (name, 2, 0, "last")
    again = RETRIEVAL_MODELS[name].from_pretrained(tmp_path / "model")
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in found.model.state_dict().items())
    assert not list(tmp_path.rglob("*.p[tk]*"))  # nothing is pickled


@pytest.mark.parametrize("name", MODELS)
def test_a_trained_model_finds_images_that_it_never_saw(name: str, tmp_path: Path) -> None:
    found = run(name, tmp_path, epochs=25, lr=1e-2 if name in ("nice", "atm", "mb2c") else 3e-3)
    eeg, targets, _ = pairs(name, n=50, seed=1)
    images = {part: targets[part][:, 1] if targets[part].ndim == 3 else targets[part] for part in found.model.config.image_inputs}
    every = dict.fromkeys(("sources", "edits"), images)
    scores = score_candidates(found.model, eeg, every, 2).source_scores
    rank = np.mean(scores > np.diag(scores)[:, None])  # chance .5, with a standard error of .04
    wrong = np.mean(scores > np.roll(scores, 1, axis=1).diagonal()[:, None])
    assert rank < 0.3 and abs(wrong - 0.5) < 0.17, (rank, wrong)


@pytest.mark.parametrize("name", ["nice", "ubp", "mb2c", "brain-hive", "neurobridge"])
def test_a_stopped_run_ends_as_one_that_was_not(name: str, tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stop(epoch: int, loss: float) -> None:
        if epoch == 2:
            raise Stopped

    selection = "validation" if name == "nice" else "last"
    whole = run(name, tmp_path / "whole", epochs=4, selection=selection)
    with pytest.raises(Stopped):
        run(name, tmp_path / "parts", epochs=4, selection=selection, on_epoch=stop)
    assert not (tmp_path / "parts" / "run.json").exists()
    # The start weights are those of the checkpoint, and the state of the global generator does not matter.
    resumed = run(name, tmp_path / "parts", epochs=4, selection=selection, weights=0)
    assert equal(whole, resumed), name
    assert whole.losses == resumed.losses and whole.validation_losses == resumed.validation_losses
    assert whole.epoch == resumed.epoch
    # A finished run is not trained again.
    epochs: list[int] = []
    assert equal(whole, run(name, tmp_path / "parts", epochs=4, selection=selection, on_epoch=lambda epoch, loss: epochs.append(epoch)))
    assert epochs == []


def test_the_seed_decides_the_run(tmp_path: Path) -> None:
    first = run("ats", tmp_path / "a")
    before = torch.get_rng_state()
    torch.manual_seed(123)
    assert equal(first, run("ats", tmp_path / "b"))
    assert not equal(first, run("ats", tmp_path / "c", seed=1))
    torch.set_rng_state(before)


def test_training_leaves_the_global_generator_and_its_inputs_alone(tmp_path: Path) -> None:
    model, (eeg, targets, concepts) = tiny("neurobridge"), pairs("neurobridge")
    copy, before = eeg.copy(), torch.get_rng_state()
    train(model, eeg, targets, concepts, 1, settings_for("neurobridge", epochs=1, batch_size=20), 0, tmp_path, progress=False)
    assert np.array_equal(eeg, copy) and torch.equal(before, torch.get_rng_state())


def test_accelerate_gives_the_same_run(tmp_path: Path) -> None:
    from accelerate import Accelerator

    assert equal(run("mb2c", tmp_path / "a"), run("mb2c", tmp_path / "b", accelerator=Accelerator(cpu=True)))


def test_blur_follows_the_confidence(tmp_path: Path) -> None:
    from safetensors import safe_open

    run("ubp", tmp_path)
    with safe_open(tmp_path / "checkpoint.safetensors", framework="numpy") as f:
        confidence, labels = f.get_tensor("blur/confidence"), f.get_tensor("blur/labels")
    assert confidence.shape == labels.shape == (N,) and (confidence != 1).all() and set(labels) <= {0, 1, 2}


def test_patience_ends_a_run(tmp_path: Path) -> None:
    assert run("hyfi", tmp_path, epochs=30, patience=2, min_delta=1e6).metadata["epochs"] == 3


# ------------------------------------------------------------------------------------------------------------------------------ selection


@pytest.mark.parametrize("seed", range(5))
def test_validation_shares_no_concept_with_training(seed: int) -> None:
    concepts = np.random.default_rng(seed).integers(0, 40, 300)
    rows, held_out = split_by_concept(concepts, 0.1, seed)
    assert not set(concepts[rows]) & set(concepts[held_out])
    assert np.array_equal(np.sort(np.concatenate([rows, held_out])), np.arange(300))
    assert len(set(concepts[held_out])) == 4


@pytest.mark.parametrize("name", ["mb2c", "ubp"])
def test_selection_keeps_the_weights_of_the_lowest_validation_loss(name: str, tmp_path: Path) -> None:
    found = run(name, tmp_path, epochs=4, lr=3e-2, selection="validation", validation_concepts=0.3)
    concepts = pairs(name)[2]
    assert not set(concepts[found.train_index]) & set(concepts[found.validation_index]) and len(found.validation_index) == 20
    assert found.epoch == 1 + int(np.argmin(found.validation_losses))
    eeg, targets, _ = pairs(name)
    images = targets["image"][:, 1] if name == "ubp" else targets["image"]
    rows = found.validation_index
    with torch.no_grad():
        loss = found.model(torch.from_numpy(eeg[rows]), torch.from_numpy(images[rows]), return_loss=True).loss
    assert float(loss) == pytest.approx(min(found.validation_losses), rel=1e-5)


def test_selection_cannot_reach_the_test_set() -> None:
    """What `train` can be given: one array of EEG with its targets, and edits of those images; nothing in it reads data from files."""
    assert list(inspect.signature(train).parameters) == [
        "model",
        "eeg",
        "targets",
        "concepts",
        "subject",
        "settings",
        "seed",
        "out",
        "accelerator",
        "progress",
        "resume",
        "checkpoint_every",
        "on_epoch",
        "negatives",
        "negative_of",
        "image_of",
    ]
    for name in ("training", "loop", "negatives"):
        source = inspect.getsource(importlib.import_module(f"decodehub.runs.retrieval.{name}"))
        assert "decodehub.loaders" not in source and "decodehub.metrics" not in source and "np.load" not in source


# ------------------------------------------------------------------------------------------------------------------------------ bad input


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    run("nice", tmp_path)
    with pytest.raises(ValueError, match="other settings, data or seed"):
        run("nice", tmp_path, lr=1e-3)
    with pytest.raises(ValueError, match="other settings, data or seed"):
        run("nice", tmp_path, seed=1)
    assert run("nice", tmp_path, lr=1e-3, resume=False).metadata["settings"]["lr"] == 1e-3
    (tmp_path / "checkpoint.safetensors").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="cannot be read as a checkpoint"):
        run("nice", tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("nice", {"eeg": lambda x: x[:, :3]}, r"eeg has shape \(60, 3, 32\).*expected \(n, 6, 32\)"),
        ("nice", {"eeg": lambda x: np.where(np.arange(60)[:, None, None] == 4, np.nan, x).astype(np.float32)}, "first in epoch 4"),
        ("nice", {"concepts": lambda x: x[:5]}, r"expected \(60,\)"),
        ("ubp", {"targets": lambda x: {"image": x["image"][:, 0]}}, "low, medium and high blur"),
        ("atm", {"targets": lambda x: {"image": x["image"]}}, r"atm needs \['image', 'text'\]"),
        ("mb2c", {"concepts": lambda x: np.arange(60)}, "n_classes=60"),
        ("hyfi", {"subject": lambda x: 0}, "subject must be 1 or more"),
    ],
)
def test_what_does_not_fit_is_named(name: str, change: dict[str, Any], message: str, tmp_path: Path) -> None:
    eeg, targets, concepts = pairs(name)
    given: dict[str, Any] = {"eeg": eeg, "targets": targets, "concepts": concepts, "subject": 1}
    given |= {key: function(given[key]) for key, function in change.items()}
    with pytest.raises(ValueError, match=message):
        train(tiny(name), **given, settings=settings_for(name), seed=0, out=tmp_path, progress=False)


@pytest.mark.parametrize(
    "change",
    [{"optimizer": "sgd"}, {"epochs": 0}, {"batch_size": 1}, {"lr": 0.0}, {"selection": "test"}, {"validation_concepts": 1.0}],
)
def test_settings_out_of_range(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        settings_for("nice", **change)


def test_an_exploding_loss_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lower the learning rate"):
        run("neurobridge", tmp_path, lr=1e30)


# --------------------------------------------------------------------------------------------------------------------------------- verb


def invoke(*options: object) -> None:
    result = CliRunner().invoke(train_retrieval.app, [str(option) for option in options], catch_exceptions=False)
    assert result.exit_code == 0, result.output


def test_the_verb_trains_on_simulated_eeg_and_its_record_verifies(tmp_path: Path) -> None:
    from decodehub.hub.verify import verify

    invoke("--model", "brain-hive", "--simulate", "--crops", 60, "--epochs", 2, "--snr", 0.5, "--subject", 3, "--out", tmp_path)
    record, differences = verify(tmp_path)
    assert differences == [] and record.is_sample and "Simulated EEG (17 channels" in record.data
    assert record.model.id == "brain-hive" and [(r.subject, r.seed) for r in record.runs] == [(3, 0)]
    assert json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))["epochs"] == 2
    assert "imulated" in (tmp_path / "report.html").read_text(encoding="utf-8")


def prepared(root: Path, concepts: tuple[str, ...], rng: np.random.Generator) -> np.ndarray:
    """Prepared EEG of 40 training images and of the test images, in the recordings' channel order; returns the test means by name order."""
    from decodehub.loaders.things_eeg2 import CHANNELS, Epochs
    from decodehub.loaders.things_eeg2.store import save_epochs

    names = CHANNELS[::-1]
    data = {"train": rng.standard_normal((40, 2, 63, 250)), "test": rng.standard_normal((len(concepts), 3, 63, 250))}
    epochs = {
        name: Epochs(x.astype(np.float32), names, 250.0, np.arange(250) / 250, np.arange(1, len(x) + 1), name, 1, "MVNN")  # type: ignore[arg-type]
        for name, x in data.items()
    }
    save_epochs(root, epochs, source="test")  # type: ignore[arg-type]
    return epochs["test"].data.mean(axis=1)


def test_the_verb_trains_on_prepared_recordings(tiny_release: Path, tmp_path: Path) -> None:
    from decodehub.hub.verify import verify
    from decodehub.metrics.eeg_editbench.benchmark import load_benchmark

    rng, benchmark = np.random.default_rng(0), load_benchmark(str(tiny_release))
    means = prepared(tmp_path / "eeg", benchmark.concepts, rng)
    sizes = {"sources": len(benchmark.concepts), "edits": len(benchmark.edit_ids), "nulls": len(benchmark.concepts)}
    dims = {"synclr": 8, "clip_b32": 6, "sdxl_vae": 10}
    features = {
        f"{g}/{p}": rng.standard_normal((n, d)).astype(np.float16) for g, n in {"train": 40, **sizes}.items() for p, d in dims.items()
    }
    save_file(features, tmp_path / "targets.safetensors", metadata={"encoder": "random numbers"})
    options = ["--model", "brain-hive", "--eeg", tmp_path / "eeg", "--targets", tmp_path / "targets.safetensors", "--epochs", 1]
    invoke(*options, "--data-dir", tiny_release, "--out", tmp_path / "run")
    record, differences = verify(tmp_path / "run")
    assert differences == [] and record.model.pretrained_on == "random numbers" and "THINGS-EEG2, 17 channels" in record.data
    inputs = recorded_inputs("brain-hive", 1, tmp_path / "eeg", tmp_path / "targets.safetensors", str(tiny_release))
    assert inputs.eeg.shape == (40, 17, 250) and set(inputs.targets) == {"self_supervised", "image_text", "autoencoder"}
    assert np.array_equal(inputs.concepts, 1 + np.arange(40) // 10)
    test = recorded_test_eeg(tmp_path / "eeg", 1, inputs)
    assert np.allclose(test, means[np.argsort(np.argsort(benchmark.concepts))][:, ::-1][:, 46:])


def test_candidates_with_equal_features_have_equal_scores() -> None:
    model, (eeg, targets, _) = tiny("hyfi"), pairs("hyfi")
    groups = {"sources": slice(0, 20), "edits": slice(0, 60), "nulls": slice(0, 20)}
    candidates = {group: {name: x[rows] for name, x in targets.items()} for group, rows in groups.items()}
    scores = score_candidates(model, eeg[:20], candidates, 1, batch_size=7)
    assert scores.null_scores is not None and np.array_equal(scores.source_scores, scores.null_scores)
    assert np.array_equal(scores.source_scores, scores.edit_scores[:, :20])
    with torch.inference_mode():
        images = {name: torch.from_numpy(x) for name, x in targets.items()}
        expected = model.score(model.get_eeg_features(torch.from_numpy(eeg[:20])), model.get_image_features(images))
    assert np.allclose(scores.edit_scores, expected.numpy(), atol=1e-4)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (["--model", "resnet", "--simulate"], ValueError, "'resnet' is not known"),
        (["--model", "nise", "--simulate"], ValueError, "did you mean 'nice'"),
        (["--model", "nice"], ValueError, "--eeg and --targets together, or --simulate"),
        (["--simulate", "--eeg", "x", "--targets", "y"], ValueError, "or --simulate without them"),
        (["--eeg", "x"], ValueError, "together"),
        (["--eeg", "x", "--targets", "missing", "--data-dir", "sample"], FileNotFoundError, "x does not exist"),
        (["--simulate", "--selection", "test"], ValueError, "selection must be one of last, validation"),
    ],
)
def test_options_that_do_not_fit(options: list[str], error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        invoke(*options, "--out", tmp_path)


def test_another_run_is_not_written_over_unasked(tmp_path: Path) -> None:
    about = {"model_type": "nice", "seed": 0}
    refuse_other_run(tmp_path, about)
    (tmp_path / "run.json").write_text('{"model_type": "nice", "subject": 1, "seed": 0, "more": 1}')
    refuse_other_run(tmp_path, about)
    with pytest.raises(ValueError, match=r"run\.json is of another run: seed is 0 there and 1 here: name another --out"):
        invoke("--simulate", "--model", "nice", "--seed", "1", "--out", tmp_path)
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(ValueError, match="does not describe a run"):
        refuse_other_run(tmp_path, about)
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(ValueError, match=r"holds 'thesis\.txt', which is not part of a run"):
        invoke("--simulate", "--out", tmp_path)


def test_every_model_states_its_similarity() -> None:
    for model in (*RETRIEVAL_MODELS.values(), RidgeRetrievalModel, RandomProjectionModel):
        assert ("Lorentz" in model.similarity) == (model is RETRIEVAL_MODELS["hyfi"]) and model.similarity


def test_targets_that_do_not_fit(tiny_release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    prepared(tmp_path, ("a", "b"), np.random.default_rng(0))
    save_file({"train/image": np.zeros((5, 3), np.float32), "sources/image": np.zeros((6, 3), np.float32)}, "a.safetensors")
    with pytest.raises(ValueError, match="lacks edits/PART"):
        recorded_inputs("nice", 1, tmp_path, Path("a.safetensors"), str(tiny_release))
    save_file({f"{g}/image": np.zeros((5, 3), np.float32) for g in ("train", "sources", "edits")}, "b.safetensors")
    with pytest.raises(ValueError, match=r"sources has the rows \{'image': 5\}, expected 6"):
        recorded_inputs("nice", 1, tmp_path, Path("b.safetensors"), str(tiny_release))
    Path("c.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="cannot be read as image features"):
        recorded_inputs("nice", 1, tmp_path, Path("c.safetensors"), str(tiny_release))
