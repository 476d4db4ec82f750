"""Seeds trained as one batched model: weights as one by one, folders, checkpoints that either way of training goes on from, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from decodehub.hub_models.eeg_retrieval import RETRIEVAL_MODELS, EEGRetrievalModel
from decodehub.runs.retrieval import batched as module
from decodehub.runs.retrieval.batched import BATCHED, NOT_BATCHED, batches_seeds, train_seeds
from decodehub.runs.retrieval.training import TrainedRun, settings_for, train

N, SEEDS = 48, (0, 3, 4)
# Measured: 3e-7 at most, after weights have moved by .02 to .15.
TOLERANCE = 5e-6
Given = dict[str, Any]


def tiny(name: str, seed: int, **changes: Any) -> EEGRetrievalModel:
    torch.manual_seed(seed)
    kind = RETRIEVAL_MODELS[name].config_class
    return RETRIEVAL_MODELS[name](kind(**(kind.tiny().to_dict() | changes)))


def data(name: str, edits: bool = False, seed: int = 0) -> Given:
    """Pairs that share a latent of four dimensions; `edits` of the first third of the images, so that batches have different numbers."""
    config, rng, fixed = RETRIEVAL_MODELS[name].config_class.tiny(), np.random.default_rng(seed), np.random.default_rng(99)
    latent = rng.standard_normal((N, 4))
    eeg = latent @ fixed.standard_normal((4, config.n_channels * config.n_times))
    maps = {part: fixed.standard_normal((4, dim)) for part, dim in config.image_inputs.items()}
    blurs = name in ("ubp", "ats")

    def features(z: np.ndarray) -> dict[str, np.ndarray]:
        plain = {part: (z @ m).astype(np.float32) for part, m in maps.items()}
        return {part: np.stack([x + 0.1 * i for i in range(3)], axis=1, dtype=np.float32) if blurs else x for part, x in plain.items()}

    of = np.repeat(np.arange(N // 3), 2)
    more = {"negatives": features(latent[of] + 0.3 * rng.standard_normal((len(of), 4))), "negative_of": of} if edits else {}
    noisy = (eeg + rng.standard_normal(eeg.shape)).reshape(N, config.n_channels, config.n_times).astype(np.float32)
    return {"eeg": noisy, "targets": features(latent), "concepts": np.arange(N) % 8, "subject": 2, **more}


def both(
    name: str, out: Path, given: Given | None = None, config: Given | None = None, **changes: Any
) -> list[tuple[TrainedRun, TrainedRun]]:
    """The runs of all seeds: one by one, and batched."""
    settings = settings_for(name, **({"epochs": 3, "batch_size": 20, "lr": 2e-3, "patience": 0} | changes))
    given = data(name) if given is None else given
    alone = [
        train(tiny(name, seed, **config or {}), **given, settings=settings, seed=seed, out=out / f"alone-{seed}", progress=False)
        for seed in SEEDS
    ]
    together = train_seeds(
        [tiny(name, seed, **config or {}) for seed in SEEDS],
        **given,
        settings=settings,
        seeds=SEEDS,
        outs=[out / f"together-{seed}" for seed in SEEDS],
        progress=False,
    )
    return list(zip(alone, together))


def difference(a: TrainedRun, b: TrainedRun) -> float:
    left, right = a.model.state_dict(), b.model.state_dict()
    assert left.keys() == right.keys()
    return max(float((left[key] - right[key]).abs().max()) for key in left)


def assert_equal(a: TrainedRun, b: TrainedRun) -> None:
    assert difference(a, b) < TOLERANCE
    np.testing.assert_allclose(a.losses, b.losses, rtol=1e-5)
    np.testing.assert_allclose(a.validation_losses, b.validation_losses, rtol=1e-5)
    assert a.epoch == b.epoch and np.array_equal(a.train_index, b.train_index)
    for one, other in ((a.metadata, b.metadata), (b.metadata, a.metadata)):
        assert {key for key in one if key not in other} <= {"batched_seeds"}
    assert a.metadata["settings_hash"] == b.metadata["settings_hash"]


# --------------------------------------------------------------------------------------------------------------------------------- equality


@pytest.mark.parametrize("name", BATCHED)
def test_each_seed_ends_as_one_by_one(name: str, tmp_path: Path) -> None:
    """With dropout, several batches (the last one smaller), clipping and a schedule where the method has them, and blur labels."""
    runs = both(name, tmp_path)
    for (alone, together), seed in zip(runs, SEEDS):
        assert_equal(alone, together)
        assert not together.model.training and together.metadata["batched_seeds"] == list(SEEDS)
        again = RETRIEVAL_MODELS[name].from_pretrained(tmp_path / f"together-{seed}" / "model")
        assert all(torch.equal(value, again.state_dict()[key]) for key, value in together.model.state_dict().items())
        metadata = json.loads((tmp_path / f"together-{seed}" / "run.json").read_text(encoding="utf-8"))
        assert metadata == together.metadata and metadata["seed"] == seed
    assert difference(runs[0][1], runs[1][1]) > 100 * TOLERANCE  # seeds differ


@pytest.mark.parametrize("name", BATCHED)
def test_hard_negatives_are_drawn_as_one_by_one(name: str, tmp_path: Path) -> None:
    for alone, together in both(name, tmp_path, data(name, edits=True), hard_negatives=1, epochs=2):
        assert_equal(alone, together)


def test_a_batch_without_edits_for_some_seeds(tmp_path: Path) -> None:
    """One image has an edit: in each step it is in the batch of some seeds only."""
    given = data("neurobridge", edits=True)
    given |= {"negatives": {"image": given["negatives"]["image"][:1]}, "negative_of": given["negative_of"][:1]}
    for alone, together in both("neurobridge", tmp_path, given, hard_negatives=1):
        assert_equal(alone, together)


def test_other_settings_of_models(tmp_path: Path) -> None:
    for name, config in (("brain-hive", {"freeze_images": True}), ("neurobridge", {"smoothing_applied": "every_epoch"})):
        for alone, together in both(name, tmp_path / name, config=config, epochs=2):
            assert_equal(alone, together)


def test_dropout_is_each_seeds_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the masks that stand in for it, the comparison fails: it does look at dropout."""
    monkeypatch.setattr(module._Dropout, "forward", lambda self, x: x)
    assert max(difference(*pair) for pair in both("ubp", tmp_path, epochs=1)) > 100 * TOLERANCE


@pytest.mark.parametrize(("name", "lr", "patience"), [("ats", 2e-2, 1), ("neurobridge", 5e-2, 2)])
def test_selection_and_patience_are_each_seeds_own(name: str, lr: float, patience: int, tmp_path: Path) -> None:
    """Concepts are held out by seed, and seeds stop at different epochs: those leave the stack."""
    runs = both(name, tmp_path, selection="validation", validation_concepts=0.3, epochs=9, patience=patience, lr=lr)
    for alone, together in runs:
        assert_equal(alone, together)
        assert alone.metadata["epochs"] == together.metadata["epochs"]
    assert len({tuple(alone.validation_index) for alone, _ in runs}) > 1
    assert len({alone.metadata["epochs"] for alone, _ in runs}) > 1, "choose others: seeds stopped together"


def test_features_may_differ_from_seed_to_seed(tmp_path: Path) -> None:
    given = [data("brain-hive", seed=i) for i in range(3)]
    settings, eeg = settings_for("brain-hive", epochs=2, batch_size=20), given[0].pop("eeg")
    targets = [one.pop("targets") for one in given]
    shared = {key: given[0][key] for key in ("concepts", "subject")}
    outs = [tmp_path / str(seed) for seed in SEEDS]
    models = [tiny("brain-hive", seed) for seed in SEEDS]
    together = train_seeds(models, eeg, targets, **shared, settings=settings, seeds=SEEDS, outs=outs, progress=False)
    for seed, features, run in zip(SEEDS, targets, together):
        out = tmp_path / f"alone-{seed}"
        alone = train(tiny("brain-hive", seed), eeg, features, **shared, settings=settings, seed=seed, out=out, progress=False)
        assert_equal(alone, run)
    with pytest.raises(ValueError, match="targets has 2 sets for 3 seeds"):
        train_seeds(models, eeg, targets[:2], **shared, settings=settings, seeds=SEEDS, outs=outs, progress=False)


# ------------------------------------------------------------------------------------------------------------------------------ checkpoints


class Stopped(Exception):
    pass


def stop_at(epoch: int, last: int) -> Callable[[int, int, float], None]:
    def stop(seed: int, done: int, loss: float) -> None:
        if (seed, done) == (last, epoch):
            raise Stopped

    return stop


@pytest.mark.parametrize(
    ("name", "last"),
    [("brain-hive", SEEDS[-1]), ("ubp", SEEDS[-1]), ("ubp", SEEDS[0])],
    ids=["clipping", "between epochs", "between seeds"],
)
def test_a_stopped_batch_goes_on_batched_or_in_turn(name: str, last: int, tmp_path: Path) -> None:
    """ "between seeds": the first seed has a checkpoint of epoch 2, the others of epoch 1; they catch up first."""
    given, settings = data(name), settings_for(name, epochs=4, batch_size=20, lr=2e-3, patience=0)

    def go(folder: str, **more: Any) -> list[TrainedRun]:
        models = [tiny(name, seed) for seed in SEEDS]
        outs = [tmp_path / folder / str(seed) for seed in SEEDS]
        return train_seeds(models, **given, settings=settings, seeds=SEEDS, outs=outs, progress=False, **more)

    whole = go("whole")
    for folder in ("batched", "in turn"):
        with pytest.raises(Stopped):
            go(folder, on_epoch=stop_at(2, last))
    resumed = go("batched")
    if last == SEEDS[-1]:
        assert all(difference(a, b) == 0 for a, b in zip(whole, resumed))  # to the bit: the same stacks
    for a, b, seed in zip(whole, resumed, SEEDS):
        assert_equal(a, b)
        out = tmp_path / "in turn" / str(seed)
        assert_equal(train(tiny(name, seed), **given, settings=settings, seed=seed, out=out, progress=False), a)
    epochs: list[int] = []
    again = go("whole", on_epoch=lambda seed, epoch, loss: epochs.append(epoch))
    assert epochs == [] and all(difference(a, b) == 0 for a, b in zip(whole, again))  # a finished batch is not trained again


def test_training_leaves_the_global_generator_alone(tmp_path: Path) -> None:
    models = [tiny("ats", seed) for seed in (0, 1)]
    before = torch.get_rng_state()
    settings = settings_for("ats", epochs=1, batch_size=20)
    train_seeds(models, **data("ats"), settings=settings, seeds=(0, 1), outs=[tmp_path / "0", tmp_path / "1"], progress=False)
    assert torch.equal(before, torch.get_rng_state())


# --------------------------------------------------------------------------------------------------------------------------------- refusals


def test_every_model_is_batched_or_says_why_not() -> None:
    assert {*BATCHED, *NOT_BATCHED} == set(RETRIEVAL_MODELS) and not set(BATCHED) & set(NOT_BATCHED)
    assert [batches_seeds("ubp", device) for device in ("cpu", "cuda")] == [False, True]
    assert [batches_seeds("nice", device) for device in ("cpu", "cuda")] == [False, False]
    assert batches_seeds("ubp", "cpu", "yes") and not batches_seeds("ubp", "cuda", "no")
    with pytest.raises(ValueError, match="nice cannot be trained as one batched model: the biases in front of its BatchNorm"):
        batches_seeds("nice", "cuda", "yes")
    with pytest.raises(ValueError, match="must be one of auto, yes, no"):
        batches_seeds("ubp", "cpu", "maybe")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"models": ("mb2c", "mb2c")}, "mb2c cannot be trained as one batched model: .*Train them in turn"),
        ({"seeds": (0, 0)}, "seeds and folders must differ"),
        ({"outs": ("a", "a")}, "seeds and folders must differ"),
        ({"seeds": (0, 1, 2)}, "found 2, 3 and 2"),
        ({"seeds": (0, -1)}, "seeds must be 0 or more"),
        ({"models": ("ubp", "hyfi")}, "one configuration"),
        (
            {"seeds": (0, 2), "selection": "validation", "concepts": np.sqrt(2 * np.arange(N)).astype(int)},
            "validation splits differ in size: train the seeds in turn",
        ),
        ({"lr": 1e30}, "seed 0, is nan|logit is NaN"),
    ],
)
def test_what_does_not_fit_is_named(change: Given, message: str, tmp_path: Path) -> None:
    given, names = data("ubp"), change.get("models", ("ubp", "ubp"))
    given["concepts"] = change.get("concepts", given["concepts"])
    settings = settings_for("ubp", epochs=3, batch_size=20, **{key: change[key] for key in ("selection", "lr") if key in change})
    outs = [tmp_path / out for out in change.get("outs", ("a", "b"))]
    with pytest.raises(ValueError, match=message):
        train_seeds(
            [tiny(name, i) for i, name in enumerate(names)],
            **given,
            settings=settings,
            seeds=change.get("seeds", (0, 1)),
            outs=outs,
            progress=False,
        )
