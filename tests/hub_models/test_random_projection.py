"""The random projection: decided by its seed, at chance whatever the EEG, saved and loaded equal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel

from decodehub.hub_models.eeg_retrieval import RETRIEVAL_MODELS, RandomProjectionConfig, RandomProjectionModel
from decodehub.hub_models.eeg_retrieval import modeling_random_projection as modeling

C, T, D, Q = 5, 8, 12, 20


def make(seed: int = 0) -> RandomProjectionModel:
    return RandomProjectionModel(RandomProjectionConfig(n_channels=C, n_times=T, embed_dim=D, image_dim=D, seed=seed)).eval()


def pairs(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features in a cone, and EEG that is a linear map of them with an offset: a decoder could not wish for more."""
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(99)
    features = rng.standard_normal((n, D)) + 2
    eeg = features @ fixed.standard_normal((D, C * T)) + 3
    return eeg.reshape(n, C, T).astype(np.float32), features.astype(np.float32)


def scores(model: RandomProjectionModel, eeg: np.ndarray, features: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        return model.score(model.get_eeg_features(torch.from_numpy(eeg)), model.get_image_features(torch.from_numpy(features))).numpy()


def test_the_seed_decides_the_matrix_and_nothing_else_does() -> None:
    torch.manual_seed(1)
    a, before = make(), torch.get_rng_state()
    torch.manual_seed(2)
    b = make()
    assert torch.equal(a.projection, b.projection) and not torch.equal(a.projection, make(1).projection)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), before)
    large = RandomProjectionModel(RandomProjectionConfig(n_channels=10, n_times=100, embed_dim=200, image_dim=200)).projection.detach()
    assert float(large.mean()) == pytest.approx(0, abs=1e-3) and float(large.std()) == pytest.approx(1000**-0.5, rel=0.01)


def test_embeddings_are_the_projection_of_standardised_epochs() -> None:
    model, (eeg, features) = make(), pairs(30)
    model.fit(eeg, features)
    x = eeg.reshape(30, -1).astype(np.float64)
    expected = ((x - x.mean(0)) / x.std(0)) @ model.projection.detach().double().numpy().T
    with torch.no_grad():
        found = model.get_eeg_features(torch.from_numpy(eeg), subject=3)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    centred = features.astype(np.float64) - features.mean(0, dtype=np.float64)
    cosine = (expected @ centred.T) / np.linalg.norm(expected, axis=1)[:, None] / np.linalg.norm(centred, axis=1)
    np.testing.assert_allclose(scores(model, eeg, features), cosine, atol=1e-5)
    assert model.config.n_train == 30 and model.config.image_inputs == {"image": D} and "random-projection" not in RETRIEVAL_MODELS


def test_nothing_is_learned() -> None:
    model, (eeg, features) = make(), pairs(10)
    shuffled = make()
    model.fit(eeg, features)
    shuffled.fit(eeg, features[::-1].copy())
    assert all(torch.equal(value, shuffled.state_dict()[key]) for key, value in model.state_dict().items())
    assert model.num_parameters() == C * T * D and model.num_parameters(only_trainable=True) == 0
    output = model(torch.from_numpy(eeg), torch.from_numpy(features), return_loss=True)
    assert not output.loss.requires_grad and torch.equal(output.logits_per_eeg, model.score(output.eeg_embeds, output.image_embeds))


@pytest.mark.parametrize("fitted", [False, True])
def test_it_is_at_chance_over_seeds(fitted: bool) -> None:
    """Over 300 seeds; SD of a seed: of top-1 about 1 / sqrt(20) / sqrt(20), of 2AFC at most .5."""
    (eeg, features), train = pairs(Q, seed=1), pairs(50)
    edits = features + 0.5 * np.random.default_rng(2).standard_normal(features.shape).astype(np.float32)
    top1, afc, pool = [], [], []
    for seed in range(300):
        model = make(seed)
        if fitted:
            model.fit(*train)
        s, e = scores(model, eeg, features), scores(model, eeg, edits)
        top1.append(np.mean(s.argmax(1) == np.arange(Q)))
        afc.append(np.mean(np.diag(s) > np.diag(e)))
        around = [features[:1] + sign * 0.5 * np.eye(D, dtype=np.float32)[i] for i in range(3) for sign in (-1, 1)]
        pool.append(bool((s[0, 0] > scores(model, eeg[:1], np.concatenate(around))).all()))
    for found, chance in ((top1, 1 / Q), (afc, 0.5)):
        assert abs(np.mean(found) - chance) < 4 * np.std(found) / np.sqrt(300), (np.mean(found), chance)
    # A source amid its edits is singled out more rarely than one candidate in seven.
    assert np.mean(pool) < 1 / 7 - 4 * np.sqrt(1 / 7 * 6 / 7 / 300)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, RandomProjectionModel]:
    folder, model = str(tmp_path_factory.mktemp("projection")), make(7)
    model.fit(*pairs(30))
    model.save_pretrained(folder)
    return folder, model


def test_reloading_is_bit_equal(saved: tuple[str, RandomProjectionModel]) -> None:
    folder, model = saved
    for loaded in (RandomProjectionModel.from_pretrained(folder), AutoModel.from_pretrained(folder)):
        assert type(loaded) is RandomProjectionModel and loaded.config.seed == 7 and loaded.config.n_train == 30
        assert all(torch.equal(value, model.state_dict()[key]) for key, value in loaded.state_dict().items())
        assert not loaded(**loaded.dummy_inputs).loss.requires_grad
    assert type(AutoConfig.from_pretrained(folder)) is RandomProjectionConfig
    half = AutoModel.from_pretrained(folder, dtype=torch.bfloat16)
    eeg, features = pairs(9, seed=3)
    np.testing.assert_allclose(scores(half, eeg, features), scores(model, eeg, features), atol=0.05)


def test_its_code_travels_with_it(saved: tuple[str, RandomProjectionModel]) -> None:
    """Loading such a folder where the package is not is tested with the other models; the modules are these."""
    assert {path.name for path in Path(saved[0]).glob("*.py")} == {
        "base.py",
        "blocks.py",
        "configuration_base.py",
        "configuration_random_projection.py",
        "losses.py",
        "modeling_random_projection.py",
    }


def test_constant_samples_stay_finite() -> None:
    eeg, features = pairs(10)
    eeg[:, 1] = 7.3
    model = make()
    model.fit(eeg, features)
    assert np.isfinite(scores(model, eeg, features)).all() and torch.equal(model.eeg_scale[1], torch.ones(T))


@pytest.mark.parametrize(
    ("eeg", "features", "message"),
    [
        (np.zeros((3, C, T + 1), np.float32), np.zeros((3, D), np.float32), r"eeg has shape \(3, 5, 9\)"),
        (np.zeros((3, C, T), np.float32), np.zeros((3, D + 1), np.float32), r"image_features has shape \(3, 13\)"),
        (np.zeros((1, C, T), np.float32), np.zeros((3, D), np.float32), "at least 2 epochs"),
        (np.full((3, C, T), np.nan, np.float32), np.zeros((3, D), np.float32), "eeg holds NaN"),
    ],
)
def test_fit_refuses(eeg: np.ndarray, features: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make().fit(eeg, features)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"seed": -1}, "seed must be a whole number"), ({"embed_dim": 8}, "embed_dim 8 must equal image_dim"), ({"n_train": 0.5}, "n_train")],
)
def test_configuration_refuses(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RandomProjectionConfig(**settings)


def test_it_is_listed() -> None:
    assert modeling.RandomProjectionModel is RandomProjectionModel and AutoConfig.for_model("random-projection").n_channels == 63
