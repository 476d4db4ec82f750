"""The ridge baseline against scikit-learn, against brute force, on planted and absent signals, and through saving and loading."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import binom
from sklearn.linear_model import Ridge
from transformers import AutoConfig, AutoModel

from decodehub.hub_models.eeg_retrieval import RidgeRetrievalConfig, RidgeRetrievalModel
from decodehub.hub_models.eeg_retrieval import modeling_ridge as modeling
from decodehub.loaders.simulate_eeg import SimulationSettings, simulate_eeg

C, T, D = 5, 8, 6


def _data(n: int, seed: int = 0, n_channels: int = C, n_times: int = T, d: int = D) -> tuple[np.ndarray, np.ndarray]:
    """EEG with offsets and scales of its own at each sample, and features that depend on it and have a mean."""
    rng = np.random.default_rng(seed)
    latent = rng.standard_normal((n, d))
    eeg = (latent @ rng.standard_normal((d, n_channels * n_times)) + 2 * rng.standard_normal((n, n_channels * n_times))) * rng.uniform(
        0.1, 10, n_channels * n_times
    ) + 5 * rng.standard_normal(n_channels * n_times)
    return eeg.reshape(n, n_channels, n_times).astype(np.float32), (latent + 3).astype(np.float32)


def _model(n_channels: int = C, n_times: int = T, d: int = D) -> RidgeRetrievalModel:
    return RidgeRetrievalModel(RidgeRetrievalConfig(n_channels=n_channels, n_times=n_times, embed_dim=d))


def _predict(model: RidgeRetrievalModel, eeg: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model.get_eeg_features(torch.from_numpy(eeg)).numpy()


def _standardised(eeg: np.ndarray) -> np.ndarray:
    x = eeg.reshape(len(eeg), -1).astype(np.float64)
    return (x - x.mean(0)) / x.std(0)


def _sklearn_loo(x: np.ndarray, y: np.ndarray, alpha: float) -> float:
    """Leave-one-out mean squared error with as many refits as rows."""
    errors = []
    for i in range(len(x)):
        keep = np.arange(len(x)) != i
        errors.append(Ridge(alpha=alpha).fit(x[keep], y[keep]).predict(x[i : i + 1])[0] - y[i])
    return float(np.square(errors).mean())


# ------------------------------------------------------------------------------------------------------------- second implementations


@pytest.mark.parametrize("n", [25, 40, 41, 120], ids=["n<p", "n=p", "n=p+1", "n>p"])
@pytest.mark.parametrize("alpha", [0.5, 100.0])
def test_equals_sklearn_ridge(n: int, alpha: float) -> None:
    eeg, features = _data(n)
    test, _ = _data(30, seed=1)
    model = _model()
    model.fit(eeg, features, alpha)
    x = eeg.reshape(n, -1).astype(np.float64)
    reference = Ridge(alpha=alpha).fit(_standardised(eeg), features.astype(np.float64))
    expected = reference.predict((test.reshape(30, -1) - x.mean(0)) / x.std(0))
    found = _predict(model, test)
    assert np.abs(found - expected).max() / np.abs(expected).max() < 1e-5
    np.testing.assert_allclose(model.projection.weight.detach().numpy(), reference.coef_, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("n", [20, 60], ids=["dual", "primal"])
def test_leave_one_out_equals_refits(n: int) -> None:
    eeg, features = _data(n)
    alphas = [0.3, 3.0, 30.0, 300.0]
    fit = _model().fit(eeg, features, alphas)
    brute = [_sklearn_loo(_standardised(eeg), features.astype(np.float64), alpha) for alpha in alphas]
    np.testing.assert_allclose(fit.loo_mse, brute, rtol=1e-6)
    assert fit.alpha == alphas[int(np.argmin(brute))]
    variance = features.astype(np.float64).var(axis=0).mean()
    np.testing.assert_allclose(fit.loo_r2, 1 - np.array(brute) / variance, rtol=1e-6)


@pytest.mark.parametrize("n", [20, 60], ids=["dual", "primal"])
def test_chosen_penalty_gives_the_weights_of_that_penalty_alone(n: int) -> None:
    eeg, features = _data(n)
    several, one = _model(), _model()
    fit = several.fit(eeg, features, [1.0, 50.0])
    one.fit(eeg, features, fit.alpha)
    np.testing.assert_allclose(_predict(several, eeg), _predict(one, eeg), rtol=1e-5, atol=1e-5)
    assert several.config.alpha == fit.alpha == one.config.alpha
    assert several.config.n_train == n


def test_blocks_of_columns_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    eeg, features = _data(25)
    whole, blocks = _model(), _model()
    whole.fit(eeg, features, 2.0)
    monkeypatch.setattr(modeling, "BLOCK_VALUES", 75)
    blocks.fit(eeg, features, 2.0)
    np.testing.assert_allclose(_predict(blocks, eeg), _predict(whole, eeg), rtol=1e-6)


# --------------------------------------------------------------------------------------------------------------------------- identities


def test_small_penalty_interpolates_and_large_penalty_gives_the_mean() -> None:
    eeg, features = _data(20)
    model = _model()
    model.fit(eeg, features, 1e-6)
    np.testing.assert_allclose(_predict(model, eeg), features, atol=1e-3)
    model.fit(eeg, features, 1e12)
    np.testing.assert_allclose(_predict(model, eeg), np.broadcast_to(features.mean(0), features.shape), rtol=1e-5)


def test_scale_and_offset_of_the_eeg_do_not_matter() -> None:
    eeg, features = _data(30)
    volts, unit = _model(), _model()
    unit.fit(eeg, features, 5.0)
    volts.fit(eeg * np.float32(1e-6) + np.float32(1e-6), features, 5.0)
    np.testing.assert_allclose(_predict(volts, eeg * np.float32(1e-6) + np.float32(1e-6)), _predict(unit, eeg), rtol=1e-4, atol=1e-4)


def test_order_of_training_pairs_does_not_matter_and_pairing_does() -> None:
    eeg, features = _data(40)
    model, shuffled, mismatched = _model(), _model(), _model()
    order = np.random.default_rng(0).permutation(40)
    model.fit(eeg, features, 5.0)
    shuffled.fit(eeg[order], features[order], 5.0)
    mismatched.fit(eeg, features[order], 5.0)
    np.testing.assert_allclose(_predict(shuffled, eeg), _predict(model, eeg), rtol=1e-5, atol=1e-5)
    assert np.abs(_predict(mismatched, eeg) - _predict(model, eeg)).max() > 0.1


def test_constant_channel_is_ignored() -> None:
    eeg, features = _data(30)
    eeg[:, 2] = 7.3
    model = _model()
    model.fit(eeg, features, 5.0)
    changed = eeg.copy()
    changed[:, 2] += 1
    assert np.isfinite(_predict(model, eeg)).all()
    np.testing.assert_allclose(_predict(model, changed), _predict(model, eeg), atol=1e-5)


def test_scores_are_centred_cosines() -> None:
    eeg, features = _data(40)
    model = _model()
    model.fit(eeg, features, 5.0)
    candidates = features[:7]
    with torch.no_grad():
        output = model(torch.from_numpy(eeg[:4]), torch.from_numpy(candidates))
    p, c = _predict(model, eeg[:4]) - features.mean(0), candidates - features.mean(0)
    expected = (p @ c.T) / np.linalg.norm(p, axis=1)[:, None] / np.linalg.norm(c, axis=1)
    np.testing.assert_allclose(output.logits_per_eeg.numpy(), expected, atol=1e-5)
    assert torch.equal(output.logits_per_image, output.logits_per_eeg.T)
    assert torch.equal(model.score(output.eeg_embeds, output.image_embeds), output.logits_per_eeg)
    assert torch.equal(output.image_embeds, torch.from_numpy(candidates))
    assert output.loss is None
    assert torch.equal(model.score(model.image_mean[None], output.image_embeds), torch.zeros(1, 7))


def test_output_without_candidates_and_as_tuple() -> None:
    model, eeg = _model(), torch.from_numpy(_data(3)[0])
    output = model(eeg)
    assert set(output) == {"eeg_embeds"}
    assert torch.equal(model(eeg, return_dict=False)[0], output.eeg_embeds)


def test_number_of_parameters_follows_the_card() -> None:
    assert _model().num_parameters() == C * T * D + D


# ------------------------------------------------------------------------------------------------------------- planted and absent effects


def _top1(snr: float, n: int = 300, q: int = 100) -> int:
    """Hits of 100-way retrieval of simulated EEG by a fitted ridge."""
    rng = np.random.default_rng(7)
    train, test = rng.standard_normal((n, 40)) + 2, rng.standard_normal((q, 40)) + 2
    settings = SimulationSettings(snr=snr, latent_dim=30, n_times=120, sfreq=125.0)
    eeg = simulate_eeg(train, test, settings, subject=1, seed=11)
    model = _model(63, 120, 40)
    model.fit(eeg.train, train, [1e3, 1e4, 1e5, 1e6])
    with torch.no_grad():
        scores = model(torch.from_numpy(eeg.test), torch.from_numpy(test).float()).logits_per_eeg
    return int((scores.argmax(1) == torch.arange(q)).sum())


def test_retrieval_is_at_chance_without_signal_and_grows_with_it() -> None:
    hits = [_top1(snr) for snr in (0.0, 0.05, 0.1, 1.0)]
    assert hits[0] <= binom.ppf(0.9995, 100, 1 / 100)
    assert hits == sorted(hits)
    assert hits[1] > binom.ppf(0.9995, 100, 1 / 100)
    assert hits[3] >= 95


# -------------------------------------------------------------------------------------------------------------------- saving and loading


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, RidgeRetrievalModel]:
    folder = str(tmp_path_factory.mktemp("ridge"))
    model = RidgeRetrievalModel(
        RidgeRetrievalConfig(n_channels=C, n_times=T, embed_dim=D, ch_names=list("abcde"), sfreq=250.0, image_encoder="lite0")
    )
    model.fit(*_data(30), [1.0, 10.0])
    model.save_pretrained(folder)
    return folder, model


def test_reloading_is_bit_equal(saved: tuple[str, RidgeRetrievalModel]) -> None:
    folder, model = saved
    again, auto = RidgeRetrievalModel.from_pretrained(folder), AutoModel.from_pretrained(folder)
    assert type(auto) is RidgeRetrievalModel
    assert type(AutoConfig.from_pretrained(folder)) is RidgeRetrievalConfig
    for loaded in (again, auto):
        assert loaded.state_dict().keys() == model.state_dict().keys()
        assert all(torch.equal(value, model.state_dict()[name]) for name, value in loaded.state_dict().items())
        assert loaded.config.ch_names == list("abcde")
        assert (loaded.config.alpha, loaded.config.n_train) == (model.config.alpha, 30)


def test_folder_holds_weights_as_safetensors_and_its_code(saved: tuple[str, RidgeRetrievalModel]) -> None:
    names = {path.name for path in Path(saved[0]).iterdir()}
    assert names == {"config.json", "configuration_ridge.py", "model.safetensors", "modeling_ridge.py"}


def test_loads_in_half_precision(saved: tuple[str, RidgeRetrievalModel]) -> None:
    folder, model = saved
    half = AutoModel.from_pretrained(folder, dtype=torch.bfloat16)
    eeg, features = (torch.from_numpy(a) for a in _data(9, seed=3))
    with torch.no_grad():
        np.testing.assert_allclose(half(eeg, features).logits_per_eeg, model(eeg, features).logits_per_eeg, atol=0.05)


def test_fresh_process_fits_the_same_bytes_and_loads_without_the_package(saved: tuple[str, RidgeRetrievalModel], tmp_path: Path) -> None:
    """Remote code works where decodehub is not imported, and refitting there gives the weights of this process."""
    folder, _ = saved
    np.savez(f"{tmp_path}/data.npz", eeg=_data(30)[0], features=_data(30)[1])
    code = (
        "import sys, torch, numpy as np; from transformers import AutoModel; torch.set_num_threads(int(sys.argv[3]))\n"
        "m = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True); before = {k: v.clone() for k, v in m.state_dict().items()}\n"
        "d = np.load(sys.argv[2] + '/data.npz'); m.fit(d['eeg'], d['features'], [1.0, 10.0])\n"
        "assert all(torch.equal(v, before[k]) for k, v in m.state_dict().items())\n"
        "assert not any(name.split('.')[0] == 'decodehub' for name in sys.modules)\n"
        "print(type(m).__module__)"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": f"{tmp_path}/modules"}
    done = subprocess.run(
        [sys.executable, "-c", code, folder, str(tmp_path), str(torch.get_num_threads())],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("transformers_modules.")


# ------------------------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eeg": np.zeros((30, C, T + 1), np.float32)}, r"eeg has shape \(30, 5, 9\), expected \(n, 5, 8\)"),
        ({"eeg": np.zeros((30, C * T), np.float32)}, r"eeg has shape \(30, 40\)"),
        ({"features": np.zeros((30, D + 1), np.float32)}, r"image_features has shape \(30, 7\), expected \(n, 6\)"),
        ({"features": np.zeros((29, D), np.float32)}, "found 30 and 29"),
        ({"eeg": np.full((30, C, T), np.nan, np.float32)}, "eeg holds NaN"),
        ({"features": np.full((30, D), np.inf, np.float32)}, "image_features holds NaN or infinite"),
        ({"alpha": 0.0}, "alpha must be positive and finite, got 0.0"),
        ({"alpha": [1.0, -1.0]}, "alpha must be positive"),
        ({"alpha": []}, "alpha must be positive"),
        ({"alpha": float("nan")}, "alpha must be positive"),
    ],
)
def test_fit_refuses(change: dict, message: str) -> None:
    eeg, features = _data(30)
    with pytest.raises(ValueError, match=message):
        _model().fit(change.get("eeg", eeg), change.get("features", features), change.get("alpha", 1.0))


def test_fit_refuses_one_epoch() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        _model().fit(*_data(1), 1.0)


def test_forward_refuses_wrong_shapes() -> None:
    model = _model()
    with pytest.raises(ValueError, match=r"eeg has shape \(2, 4, 8\)"):
        model(torch.zeros(2, C - 1, T))
    with pytest.raises(ValueError, match=r"image_features has shape \(6,\)"):
        model(torch.zeros(2, C, T), torch.zeros(D))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_channels": 0}, "n_channels must be a whole number"),
        ({"embed_dim": 1.5}, "embed_dim must be a whole number"),
        ({"n_channels": 2, "ch_names": ["Oz"]}, "1 names for 2 channels"),
        ({"alpha": 0}, "alpha must be positive"),
    ],
)
def test_configuration_refuses(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RidgeRetrievalConfig(**settings)
