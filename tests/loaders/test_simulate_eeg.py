"""The simulator does what its docstring says: scale, spectrum, topography, averaging, linearity, determinism."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy.signal import periodogram
from scipy.stats import chi2

from decodehub.loaders import simulate_eeg as simulator
from decodehub.loaders.simulate_eeg import COMPONENTS, SimulatedEEG, SimulationSettings, channel_names, channel_positions, simulate_eeg

# The official order of 63 channels that the published models use (no Fz).
ORDER = [
    "Fp1",
    "Fp2",
    "AF7",
    "AF3",
    "AFz",
    "AF4",
    "AF8",
    "F7",
    "F5",
    "F3",
    "F1",
    "F2",
    "F4",
    "F6",
    "F8",
    "FT9",
    "FT7",
    "FC5",
    "FC3",
    "FC1",
    "FCz",
    "FC2",
    "FC4",
    "FC6",
    "FT8",
    "FT10",
    "T7",
    "C5",
    "C3",
    "C1",
    "Cz",
    "C2",
    "C4",
    "C6",
    "T8",
    "TP9",
    "TP7",
    "CP5",
    "CP3",
    "CP1",
    "CPz",
    "CP2",
    "CP4",
    "CP6",
    "TP8",
    "TP10",
    "P7",
    "P5",
    "P3",
    "P1",
    "Pz",
    "P2",
    "P4",
    "P6",
    "P8",
    "PO7",
    "PO3",
    "POz",
    "PO4",
    "PO8",
    "O1",
    "Oz",
    "O2",
]
POSTERIOR = slice(46, 63)
SETTINGS = SimulationSettings(latent_dim=8)


def _features(n: int, d: int = 20, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)) * rng.uniform(0.1, 10, d) + 5


def _simulate(n: int = 60, q: int = 10, subject: int = 1, seed: int = 3, single_trials: bool = False, **changes: object) -> SimulatedEEG:
    settings = replace(SETTINGS, **changes)
    return simulate_eeg(_features(n), _features(q, seed=1), settings, subject=subject, seed=seed, single_trials=single_trials)


# ----------------------------------------------------------------------------------------------------------------------------- electrodes


def test_channels_are_those_of_things_eeg2_in_model_order() -> None:
    assert channel_names() == ORDER
    assert channel_positions().shape == (63, 3)
    x, y, z = channel_positions().T
    named = dict(zip(ORDER, zip(x, y, z)))
    assert named["T8"][0] > 0.07 > -0.07 > named["T7"][0]
    assert named["Fp1"][1] > 0.1 > -0.07 > named["Oz"][1]
    assert named["Cz"][2] > 0.12


def test_montage_and_info_are_usable() -> None:
    montage, info = simulator.montage(), simulator.info()
    assert montage.ch_names == info["ch_names"] == ORDER
    np.testing.assert_allclose(np.array([montage.get_positions()["ch_pos"][name] for name in ORDER]), channel_positions())
    np.testing.assert_allclose(np.array([channel["loc"][:3] for channel in info["chs"]]), channel_positions(), atol=1e-7)
    assert info["sfreq"] == 250
    assert "simulated" in info["description"]


# ----------------------------------------------------------------------------------------------------------------------- shape and scale


def test_output_is_labelled_and_laid_out_as_documented() -> None:
    eeg = _simulate()
    assert eeg.simulated is True
    assert eeg.train.shape == (60, 63, 250)
    assert eeg.test.shape == (10, 63, 250)
    for epochs in (eeg.train, eeg.test):
        assert epochs.dtype == np.float32
        assert epochs.flags.c_contiguous
    assert eeg.ch_names == ORDER
    np.testing.assert_allclose(eeg.times, np.arange(250) / 250)
    assert (eeg.settings, eeg.subject, eeg.seed) == (SETTINGS, 1, 3)


def test_single_trials_have_an_axis_of_repetitions() -> None:
    eeg = _simulate(n=12, q=4, single_trials=True, repetitions_train=3, repetitions_test=5)
    assert eeg.train.shape == (12, 3, 63, 250)
    assert eeg.test.shape == (4, 5, 63, 250)


def _evoked(snr: float = 1.0, common: float = 0.0, n: int = 60, **changes: object) -> np.ndarray:
    """Training epochs less their noise: two simulations with the same noise differ in the evoked part alone."""
    with_signal, without = _simulate(n=n, snr=snr, common=common, **changes), _simulate(n=n, snr=0.0, **changes)
    return with_signal.train.astype(np.float64) - without.train


@pytest.mark.parametrize("snr", [0.05, 2.0])
def test_snr_is_rms_of_the_evoked_part_over_rms_of_single_trial_noise(snr: float) -> None:
    assert np.sqrt(np.square(_evoked(snr)).mean()) == pytest.approx(snr, rel=1e-4)
    noise = _simulate(n=120, snr=0.0, repetitions_train=1).train
    assert np.sqrt(np.square(noise).mean()) == pytest.approx(1, rel=0.03)


def test_common_erp_is_the_same_for_all_images_and_has_its_size() -> None:
    erp = _evoked(snr=0.5, common=3.0) - _evoked(snr=0.5, common=0.0)
    np.testing.assert_allclose(erp, np.broadcast_to(erp[:1], erp.shape), atol=1e-5)
    assert np.sqrt(np.square(erp).mean()) == pytest.approx(1.5, rel=1e-4)


def test_zero_snr_is_pure_noise_whatever_the_features() -> None:
    other = simulate_eeg(-_features(60, seed=9), _features(10, seed=8), replace(SETTINGS, snr=0.0), subject=1, seed=3)
    assert np.array_equal(other.train, _simulate(snr=0.0).train)
    assert np.array_equal(other.test, _simulate(snr=0.0).test)


# --------------------------------------------------------------------------------------------------------------------------------- noise


def test_noise_falls_as_one_over_f() -> None:
    noise = _simulate(n=300, snr=0.0, repetitions_train=1).train
    freqs, power = periodogram(noise, fs=250, window="hann", axis=-1)
    band = (freqs >= 4) & (freqs <= 60)
    slope = np.polyfit(np.log(freqs[band]), np.log(power.mean(axis=(0, 1))[band]), 1)[0]
    assert slope == pytest.approx(-1, abs=0.06)


def test_noise_exponent_zero_is_white() -> None:
    noise = _simulate(n=200, snr=0.0, noise_exponent=0.0).train.astype(np.float64)
    neighbours = (noise[..., 1:] * noise[..., :-1]).mean() / np.square(noise).mean()
    assert abs(neighbours) < 0.01


def test_noise_correlation_falls_with_distance_as_set() -> None:
    noise = _simulate(n=400, snr=0.0).train.transpose(1, 0, 2).reshape(63, -1)
    found = np.corrcoef(noise)
    expected = np.exp(-np.linalg.norm(channel_positions()[:, None] - channel_positions()[None], axis=2) / SETTINGS.noise_length)
    np.testing.assert_allclose(found, expected, atol=0.06)
    near, far = found[ORDER.index("O1"), ORDER.index("Oz")], found[ORDER.index("O1"), ORDER.index("Fp1")]
    assert near > 0.4 > 0.15 > far


def test_noise_sd_falls_as_the_root_of_repetitions() -> None:
    """Same law for the mean drawn at once as for the mean of single trials, within the interval of a variance estimate."""
    for repetitions in (1, 4, 16):
        drawn = _simulate(n=80, snr=0.0, repetitions_train=repetitions).train
        averaged = _simulate(n=80, snr=0.0, repetitions_train=repetitions, single_trials=True, subject=2).train.mean(axis=1)
        for noise in (drawn, averaged):
            # One sample an epoch from two far electrodes: nearly independent, so chi-square with about n degrees each.
            values = noise[:, [0, 62], 125].astype(np.float64)
            low, high = chi2.ppf([1e-4, 1 - 1e-4], values.size)
            assert low < np.square(values).sum() * repetitions < high


def test_noise_is_independent_over_images_and_repetitions() -> None:
    trials = _simulate(n=40, snr=0.0, single_trials=True, repetitions_train=2).train.reshape(80, -1)
    correlation = np.corrcoef(trials)[np.triu_indices(80, 1)]
    # Some 60 samples in time and space are effectively independent in one trial of this noise.
    assert abs(correlation.mean()) < 0.01
    assert np.abs(correlation).max() < 0.6


def test_single_trials_average_to_the_evoked_part() -> None:
    trials = _simulate(n=20, single_trials=True, snr=1.0, repetitions_train=64, common=0.0)
    error = trials.train.mean(axis=1) - _evoked(n=20, repetitions_train=64)
    assert np.sqrt(np.square(error).mean()) == pytest.approx(1 / 8, rel=0.1)


# -------------------------------------------------------------------------------------------------------------------------------- evoked


def test_evoked_part_is_linear_in_the_features() -> None:
    """Second implementation: least squares from features to epochs leaves nothing over, also on test images."""
    train, test = _features(60), _features(10, seed=1)
    settings = replace(SETTINGS, snr=3.0, latent_dim=20)
    silent = replace(settings, snr=0.0)
    loud, noise = (simulate_eeg(train, test, s, subject=1, seed=0) for s in (settings, silent))
    y, y_test = ((a.astype(np.float64) - b).reshape(len(a), -1) for a, b in ((loud.train, noise.train), (loud.test, noise.test)))
    design = np.column_stack([train, np.ones(60)])
    weights, *_ = np.linalg.lstsq(design, y, rcond=None)
    np.testing.assert_allclose(design @ weights, y, atol=1e-4)
    np.testing.assert_allclose(np.column_stack([test, np.ones(10)]) @ weights, y_test, atol=2e-4)


def test_latent_dim_bounds_the_rank_of_the_evoked_part() -> None:
    evoked = _evoked(latent_dim=8).reshape(60, -1)
    singular = np.linalg.svd(evoked, compute_uv=False)
    assert singular[7] > 1e3 * singular[8]


def test_latents_are_white_on_training_images_and_equal_sklearn() -> None:
    from sklearn.decomposition import PCA

    for n, d in ((30, 50), (80, 20)):
        train, test = _features(n, d), _features(7, d, seed=1)
        z, z_test = simulator.latent_variables(train, test, 6)
        np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-10)
        np.testing.assert_allclose(z.T @ z / n, np.eye(6), atol=1e-9)
        mean, sd = train.mean(0), train.std(0)
        pca = PCA(6, whiten=True, svd_solver="full").fit((train - mean) / sd)
        expected = pca.transform((test - mean) / sd) * np.sqrt(n / (n - 1))
        np.testing.assert_allclose(z_test, expected * np.sign((expected * z_test).sum(axis=0)), rtol=1e-7, atol=1e-9)


def test_constant_features_are_ignored() -> None:
    train, test = _features(60), _features(10, seed=1)
    plain = simulator.latent_variables(train, test, 8)
    padded = simulator.latent_variables(np.c_[train, np.full(60, 0.1)], np.c_[test, np.full(10, 0.7)], 8)
    np.testing.assert_allclose(padded[1], plain[1], atol=1e-9)


def test_evoked_part_is_posterior_and_peaks_at_the_components() -> None:
    power = np.square(_evoked()).mean(axis=0)
    frontal = [ORDER.index(name) for name in ("Fp1", "Fp2", "AF7", "AF8", "F7", "F8")]
    by_channel = power.mean(axis=1)
    assert by_channel[POSTERIOR].mean() > 20 * by_channel[frontal].mean()
    course = power[POSTERIOR].mean(axis=0)
    assert course[:10].max() < 1e-3 * course.max()
    for component in COMPONENTS[:2]:
        at = round(component.latency * 250)
        assert at - 8 + course[at - 8 : at + 9].argmax() == pytest.approx(at, abs=3)


def test_late_components_do_not_fill_a_short_epoch() -> None:
    course = np.square(_evoked(n_times=50)).mean(axis=(0, 1))
    assert np.isfinite(course).all()
    assert course[:40].max() > 3 * course[-2:].max()  # P2, just beyond the end, rises rightly


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 3.0])
def test_noise_has_unit_variance_for_any_exponent(exponent: float) -> None:
    noise = _simulate(n=200, snr=0.0, noise_exponent=exponent, repetitions_train=1).train
    assert np.sqrt(np.square(noise).mean()) == pytest.approx(1, rel=0.05)


def test_each_weight_is_one_at_its_sites() -> None:
    weights = simulator.spatial_weights()
    for row, component in zip(weights, COMPONENTS):
        assert all(row[ORDER.index(site)] == 1 for site in component.sites)
        assert row.max() == 1


# ----------------------------------------------------------------------------------------------------------------- subjects, determinism


@pytest.mark.parametrize("similarity", [0.0, 0.5, 1.0])
def test_subjects_are_as_alike_as_set(similarity: float) -> None:
    # Patterns are compared over many latents, as the correlation is one in expectation.
    one, two = (_evoked_of(subject, similarity) for subject in (1, 2))
    assert np.corrcoef(one.ravel(), two.ravel())[0, 1] == pytest.approx(similarity, abs=0.1)


def _evoked_of(subject: int, similarity: float) -> np.ndarray:
    def run(snr: float) -> np.ndarray:
        settings = SimulationSettings(snr=snr, latent_dim=60, common=0.0, subject_similarity=similarity)
        return simulate_eeg(_features(90, 70), _features(2, 70), settings, subject=subject, seed=5).train.astype(np.float64)

    return run(1.0) - run(0.0)


def test_seed_and_subject_set_the_noise_and_nothing_outside_does() -> None:
    first = _simulate()
    np.random.seed(0)  # noqa: NPY002 - the global state must not matter
    again = _simulate()
    assert np.array_equal(first.train, again.train)
    assert np.array_equal(first.test, again.test)
    silent = _simulate(snr=0.0).train
    for other in (_simulate(snr=0.0, seed=4).train, _simulate(snr=0.0, subject=2).train):
        assert abs(np.corrcoef(silent.ravel(), other.ravel())[0, 1]) < 0.05
    # Training and test noise of one subject are streams of their own.
    same = _simulate(n=60, q=60, snr=0.0, repetitions_test=4)
    assert abs(np.corrcoef(same.train.ravel(), same.test.ravel())[0, 1]) < 0.05


def test_more_test_images_leave_training_epochs_alone() -> None:
    assert np.array_equal(_simulate(q=10).train, _simulate(q=3).train)


def test_fresh_process_gives_the_same_bytes() -> None:
    code = (
        "import hashlib, numpy as np\n"
        "from decodehub.loaders.simulate_eeg import SimulationSettings, simulate_eeg\n"
        "f = np.random.default_rng(0).standard_normal((150, 30))\n"
        "e = simulate_eeg(f, f[:20], SimulationSettings(latent_dim=10), subject=3, seed=1)\n"
        "print(hashlib.sha256(e.train.tobytes() + e.test.tobytes()).hexdigest())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    features = np.random.default_rng(0).standard_normal((150, 30))
    eeg = simulate_eeg(features, features[:20], SimulationSettings(latent_dim=10), subject=3, seed=1)
    assert run.stdout.strip() == hashlib.sha256(eeg.train.tobytes() + eeg.test.tobytes()).hexdigest()


# ------------------------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"snr": -0.1}, "snr must be 0 or more, got -0.1"),
        ({"snr": float("nan")}, "snr must be 0 or more"),
        ({"latent_dim": 0}, "latent_dim must be a whole number of at least 1"),
        ({"repetitions_train": 1.5}, "repetitions_train must be a whole number"),
        ({"repetitions_test": True}, "repetitions_test must be a whole number"),
        ({"sfreq": 0.0}, "sfreq must be positive"),
        ({"noise_length": -1.0}, "noise_length must be positive"),
        ({"subject_similarity": 1.1}, r"subject_similarity must be in \[0, 1\]"),
        ({"noise_corner": 125.0}, "noise_corner must be below half of sfreq"),
    ],
)
def test_settings_refuse(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SimulationSettings(**changes)


def test_simulator_refuses() -> None:
    features = _features(20)
    nan = features.copy()
    nan[4, 2] = np.nan
    settings = SimulationSettings(latent_dim=8)
    with pytest.raises(ValueError, match=r"found \(20, 20\) for training and \(20, 19\) for test"):
        simulate_eeg(features, features[:, 1:], settings, subject=1, seed=0)
    with pytest.raises(ValueError, match=r"expected features \(n, d\)"):
        simulate_eeg(features[0], features, settings, subject=1, seed=0)
    with pytest.raises(ValueError, match=r"training features have NaN or infinite values in 1 rows \(first: row 4\)"):
        simulate_eeg(nan, features, settings, subject=1, seed=0)
    with pytest.raises(ValueError, match="latent_dim is 20, but 20 training features of length 20 have rank 19"):
        simulate_eeg(features, features, SimulationSettings(latent_dim=20), subject=1, seed=0)
    with pytest.raises(ValueError, match="have rank 1: choose fewer"):
        simulate_eeg(np.outer(np.arange(20.0), np.ones(5)), np.ones((2, 5)), settings, subject=1, seed=0)
    with pytest.raises(ValueError, match="have rank 0: choose fewer"):
        simulate_eeg(np.ones((20, 5)), np.ones((2, 5)), settings, subject=1, seed=0)
    with pytest.raises(ValueError, match="subject must be 1 or more"):
        simulate_eeg(features, features, settings, subject=0, seed=0)
    with pytest.raises(ValueError, match=r"epoch ends at 0.036 s, before the first component"):
        simulate_eeg(features, features, SimulationSettings(latent_dim=2, n_times=10), subject=1, seed=0)
