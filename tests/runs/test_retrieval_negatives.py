"""Hard negatives: a loss worked out by hand, draws, planted effects, resume to the bit, bad input."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from decodehub.hub_models.eeg_retrieval import RETRIEVAL_MODELS, EEGRetrievalModel
from decodehub.hub_models.eeg_retrieval.losses import symmetric_infonce
from decodehub.runs.retrieval.negatives import EditSampler, contrast, hard_negative_term
from decodehub.runs.retrieval.training import TrainedRun, settings_for, train

MODELS = sorted(RETRIEVAL_MODELS)
N = 24  # images, and edits of them


def tiny(name: str, seed: int = 0, **changes: Any) -> EEGRetrievalModel:
    torch.manual_seed(seed)
    kind = RETRIEVAL_MODELS[name].config_class
    return RETRIEVAL_MODELS[name](kind(**(kind.tiny().to_dict() | changes)))


def data(name: str, seed: int = 0) -> dict[str, Any]:
    """Random pairs, and edits of every other image: one of image 0, two of image 2, three of image 4, one of image 6 and so on."""
    config, rng = RETRIEVAL_MODELS[name].config_class.tiny(), np.random.default_rng(seed)
    of = np.repeat(np.arange(0, N, 2), 1 + np.arange(N // 2) % 3)[::-1].copy()
    blurs = (3,) if name in ("ubp", "ats") else ()

    def features(n: int) -> dict[str, np.ndarray]:
        return {part: rng.standard_normal((n, *blurs, dim)).astype(np.float32) for part, dim in config.image_inputs.items()}

    targets = features(N)
    if name == "atm":
        targets["text"] = rng.standard_normal((N, config.text_dim)).astype(np.float32)
    return {
        "eeg": rng.standard_normal((N, config.n_channels, config.n_times)).astype(np.float32),
        "targets": targets,
        "concepts": np.arange(N) % 4,
        "subject": 1,
        "negatives": features(len(of)),
        "negative_of": of,
    }


def run(name: str, out: Path, hard_negatives: int = 2, **more: Any) -> TrainedRun:
    given = data(name) | {key: more.pop(key) for key in ("on_epoch", "image_of", "negatives", "negative_of") if key in more}
    settings = settings_for(name, **({"epochs": 2, "batch_size": 12, "lr": 2e-3, "patience": 0, "hard_negatives": hard_negatives} | more))
    return train(tiny(name), **given, settings=settings, seed=0, out=out, progress=False)


def equal(a: TrainedRun, b: TrainedRun) -> bool:
    left, right = a.model.state_dict(), b.model.state_dict()
    return all(torch.equal(left[key], right[key]) for key in left)


# ------------------------------------------------------------------------------------------------------------------------------- the loss


def test_the_loss_worked_out_by_hand() -> None:
    """Two pairs, three edits: row 1 sees e^2, e^0 and e^1, e^0, e^0; row 2 sees e^1, e^3 and e^3, e^0, e^0."""
    logits, edits = torch.tensor([[2.0, 0.0], [1.0, 3.0]]), torch.tensor([[1.0, 0.0, 0.0], [3.0, 0.0, 0.0]])
    e = math.e
    rows = (math.log((e**2 + 1 + e + 2) / e**2) + math.log((e + e**3 + e**3 + 2) / e**3)) / 2
    columns = (math.log((e**2 + e) / e**2) + math.log((1 + e**3) / e**3)) / 2
    assert float(symmetric_infonce(logits) + hard_negative_term(logits, edits)) == pytest.approx((rows + columns) / 2, rel=1e-6)


def test_edits_that_are_far_or_left_out_add_nothing() -> None:
    logits = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    assert float(hard_negative_term(logits, torch.full((4, 3), -torch.inf))) == 0
    assert float(hard_negative_term(logits, torch.full((4, 3), -200.0))) == pytest.approx(0, abs=1e-6)
    # An edit that is as near as its image costs ln 2, in this half of the loss.
    large = 100 * torch.eye(4)
    assert float(hard_negative_term(large, large)) == pytest.approx(math.log(2) / 2, abs=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_of_every_model_is_a_cross_entropy_over_images_and_edits(name: str) -> None:
    model, given = tiny(name).eval(), data(name)
    pick = {part: torch.from_numpy(x[:, 1] if x.ndim == 3 else x) for part, x in given["targets"].items()}
    edits = {part: torch.from_numpy(x[:, 1] if x.ndim == 3 else x) for part, x in given["negatives"].items()}
    eeg, target = torch.from_numpy(given["eeg"]), torch.arange(N)
    with torch.no_grad():
        plain, hard = contrast(model, model, eeg, pick, 1), contrast(model, model, eeg, pick, 1, edits)
        images = {part: x for part, x in pick.items() if part != "text"}
        queries = model.get_eeg_features(eeg, 1)
        whole = model.get_logits(queries, model.get_image_features({part: torch.cat([images[part], edits[part]]) for part in images}))
        to_images = torch.nn.functional.cross_entropy(whole, target)
        to_eeg = torch.nn.functional.cross_entropy(whole[:, :N].T, target)
        expected = (to_images + to_eeg) / 2
        if name == "atm":
            w = model.config.text_weight
            expected = (1 - w) * expected + w * symmetric_infonce(model.get_logits(queries, pick["text"]))
    assert float(hard.loss) == pytest.approx(float(expected), rel=1e-5)
    assert float(plain.loss) < float(hard.loss)


# ------------------------------------------------------------------------------------------------------------------------------ the draws


def test_each_image_of_a_batch_gets_different_edits_of_its_own() -> None:
    of, image_of = np.array([5, 7, 5, 5, 9, 7]), np.array([9, 5, 7, 8, 5])  # images 5 (trials 1 and 4), 7, 9; image 8 has no edit
    sampler, seen = EditSampler(of, image_of, 2), Counter()
    for seed in range(300):
        drawn = sampler.draw(np.array([4, 3, 1, 2]), torch.Generator().manual_seed(seed))
        rows, position = drawn.rows.tolist(), drawn.of.tolist()
        assert len(set(rows)) == len(rows) == 4  # two of three of image 5, once for both trials, and both of image 7
        assert all(of[row] == image_of[[4, 3, 1, 2]][i] for row, i in zip(rows, position)) and set(position) == {0, 3}
        seen.update(rows)
    assert seen[1] == seen[5] == 300 and 4 not in seen
    assert all(abs(seen[row] - 200) < 40 for row in (0, 2, 3))  # 300 * 2/3 with an SD of 8
    again = [sampler.draw(np.array([1, 2]), torch.Generator().manual_seed(3)).rows.tolist() for _ in range(2)]
    assert again[0] == again[1]
    assert len(sampler.draw(np.array([3]), torch.Generator().manual_seed(0)).rows) == 0


# --------------------------------------------------------------------------------------------------------------------------------- training


@pytest.mark.parametrize("name", MODELS)
def test_a_run_with_hard_negatives_that_was_stopped_ends_as_one_that_was_not(name: str, tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stop(epoch: int, loss: float) -> None:
        raise Stopped

    whole = run(name, tmp_path / "whole")
    with pytest.raises(Stopped):
        run(name, tmp_path / "parts", on_epoch=stop)
    assert equal(whole, run(name, tmp_path / "parts"))
    metadata = json.loads((tmp_path / "whole/run.json").read_text(encoding="utf-8"))
    assert metadata["settings"]["hard_negatives"] == 2


def test_without_hard_negatives_a_run_is_what_it_was(tmp_path: Path) -> None:
    """Nothing is drawn for them and the settings hash does not know of them."""
    given = {key: value for key, value in data("ubp").items() if not key.startswith("negative")}
    settings = settings_for("ubp", epochs=1, batch_size=12)
    plain = train(tiny("ubp"), **given, settings=settings, seed=0, out=tmp_path / "a", progress=False)
    assert "hard_negatives" not in plain.metadata["settings"]
    one, two, other = (run("ubp", tmp_path / f"{k}{i}", hard_negatives=k, epochs=1, image_of=np.arange(N)) for i, k in enumerate((1, 2, 2)))
    hashes = {r.metadata["settings_hash"] for r in (plain, one, two)}
    assert len(hashes) == 3 and other.metadata["settings_hash"] == two.metadata["settings_hash"] and equal(two, other)
    assert plain.losses[0] < one.losses[0] < two.losses[0]


def test_an_edit_is_as_blurred_as_its_image(tmp_path: Path) -> None:
    """All blur labels are medium at first: in one epoch nothing but that level of the edits is looked at."""
    blurred = data("ubp")["negatives"]
    medium = {"image": blurred["image"][:, 1].copy()}
    other = {"image": np.where(np.arange(3)[:, None] == 1, blurred["image"], 7.0).astype(np.float32)}
    runs = [run("ubp", tmp_path / str(i), epochs=1, negatives=x) for i, x in enumerate((blurred, medium, other))]
    assert equal(runs[0], runs[1]) and equal(runs[0], runs[2])


def planted(seed: int, hard_negatives: int, out: Path, fine: float = 0.5) -> float:
    """Share of edits that a trained model tells from images it never saw.

    Images have six coarse and two fine variables; edits change the fine ones only. EEG carries both (the fine ones times `fine`), and the
    space of the model has four dimensions, too few for all.
    """
    rng, fixed, n = np.random.default_rng(seed), np.random.default_rng(99), 120
    model = tiny("neurobridge", seed, embed_dim=4)
    config, scale = model.config, np.array([1.0] * 6 + [0.5] * 2)
    to_eeg = fixed.standard_normal((8, config.n_channels * config.n_times)) * np.array([1.0] * 6 + [fine / 0.5] * 2)[:, None]
    to_image = fixed.standard_normal((8, config.image_dim))

    def sample(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        z = rng.standard_normal((n, 8)) * scale
        eeg = (z @ to_eeg).reshape(n, config.n_channels, config.n_times)
        edits = np.repeat(z, 3, axis=0)
        edits[:, 6:] = rng.standard_normal((3 * n, 2)) * 0.5
        return (eeg + rng.standard_normal(eeg.shape)).astype(np.float32), (z @ to_image).astype(np.float32), (edits @ to_image).astype("f4")

    eeg, images, edits = sample(n)
    more = {"negatives": {"image": edits}, "negative_of": np.repeat(np.arange(n), 3)} if hard_negatives else {}
    settings = settings_for("neurobridge", epochs=30, batch_size=40, lr=1e-2, hard_negatives=hard_negatives)
    done = train(model, eeg, {"image": images}, np.arange(n) % 6, 1, settings, seed, out, progress=False, **more)
    eeg, images, edits = sample(300)
    with torch.no_grad():
        queries = done.model.get_eeg_features(torch.from_numpy(eeg))
        sources, others = (done.model.score(queries, done.model.get_image_features(torch.from_numpy(x))) for x in (images, edits))
    own = sources.diagonal().repeat_interleave(3)
    return float((own > others[torch.arange(300).repeat_interleave(3), torch.arange(900)]).float().mean())


def test_hard_negatives_teach_what_edits_change(tmp_path: Path) -> None:
    gains = [planted(seed, 3, tmp_path / f"{seed}hard") - planted(seed, 0, tmp_path / f"{seed}plain") for seed in range(3)]
    assert np.mean(gains) > 0.03 and min(gains) > 0, gains
    # What the EEG does not carry cannot be learned: 900 comparisons by 300 queries, SD about .02.
    assert abs(planted(0, 3, tmp_path / "null", fine=0.0) - 0.5) < 0.08


# ------------------------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("nice", {"negative_of": np.full(24, N)}, r"negative_of\[0\] is 24: expected numbers of training images, 0 to 23"),
        ("nice", {"negative_of": np.full(24, -1)}, r"negative_of\[0\] is -1"),
        ("nice", {"image_of": np.arange(N) + 100}, "expected numbers of training images, 100 to 123"),
        ("nice", {"negative_of": np.zeros(24)}, "negative_of has shape .*float64; expected .* whole numbers"),
        ("nice", {"negative_of": np.zeros(3, int)}, r"expected \(3, 12\): one row for each of negative_of"),
        ("nice", {"negative_of": np.zeros(0, int), "negatives": {"image": np.zeros((0, 12))}}, "negative_of is empty"),
        ("nice", {"image_of": np.arange(3)}, r"image_of has shape \(3,\)"),
        ("nice", {"negatives": None}, "hard_negatives is 2: give negatives"),
        ("nice", {"hard_negatives": 0}, "negatives are given, but hard_negatives of the settings is 0"),
        ("nice", {"hard_negatives": -1}, "must not be negative"),
        ("hyfi", {"negatives": {"semantic": np.zeros((24, 12))}}, r"negatives has the parts \['semantic'\], expected"),
        ("nice", {"negatives": {"image": np.zeros((24, 3, 12))}}, r"expected \(24, 12\)"),
        ("ats", {"negatives": {"image": np.zeros((24, 2, 12))}}, r"expected \(24, 12\) or \(24, 3, 12\)"),
    ],
)
def test_what_does_not_fit_is_named(name: str, change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        run(name, tmp_path, **change)
