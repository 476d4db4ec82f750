"""MVNN against its literal definition, on data of known covariance, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import fractional_matrix_power
from sklearn.covariance import ledoit_wolf

from decodehub.loaders import mvnn

CHANNELS, TIMES = 9, 40


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def mixing(rng: np.random.Generator, n: int = CHANNELS) -> np.ndarray:
    return rng.standard_normal((n, n)) * rng.uniform(0.5, 20, (n, 1)) * 1e-6


def trials(rng: np.random.Generator, n: int, r: int, t: int = TIMES, n_channels: int = CHANNELS) -> np.ndarray:
    return mixing(rng, n_channels) @ rng.standard_normal((n, r, n_channels, t)).cumsum(axis=-1)


def literal_covariance(samples: np.ndarray) -> np.ndarray:
    """Standardise columns, shrink, rescale: one (n_samples, n_channels) matrix at a time."""
    centred = samples - samples.mean(axis=0)
    sd = np.sqrt((centred**2).mean(axis=0))
    shrunk, _ = ledoit_wolf(centred / sd)
    return shrunk * np.outer(sd, sd)


def literal_sigma(epochs: np.ndarray, dim: str) -> np.ndarray:
    conditions = []
    for condition in epochs:
        if dim == "epoch":
            members = [literal_covariance(trial.T) for trial in condition]
        else:
            members = [literal_covariance(condition[:, :, t]) for t in range(condition.shape[2])]
        conditions.append(np.mean(members, axis=0))
    return np.mean(conditions, axis=0)


def relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max() / np.abs(b).max())


@pytest.mark.parametrize("dim", mvnn.DIMS)
@pytest.mark.parametrize(("n_channels", "n_times", "n_repetitions"), [(9, 40, 3), (9, 5, 4), (12, 30, 20), (63, 250, 2), (1, 30, 2)])
def test_equals_the_definition(rng, dim, n_channels, n_times, n_repetitions):
    epochs = trials(rng, 4, n_repetitions, n_times, n_channels)
    sigma = mvnn.noise_covariance(epochs, dim=dim)
    expected = literal_sigma(epochs, dim)
    assert relative(sigma, expected) < 1e-10
    matrix = mvnn.whitening_matrix(sigma)
    assert relative(matrix, fractional_matrix_power(expected, -0.5).real) < 1e-8  # the condition number of Sigma stands between the two
    literal = np.stack([[(trial.T @ matrix).T for trial in condition] for condition in epochs])
    assert relative(mvnn.whiten(epochs, matrix), literal) < 1e-12


def test_the_limits_of_the_shrinkage_are_those_of_the_reference(rng):
    """Where both terms of the ratio are zero but for rounding: one channel, channels without any correlation, samples of opposite sign."""
    walsh = np.array([[1, 1, -1, -1], [1, -1, 1, -1], [1, -1, -1, 1]], dtype=float)  # exactly uncorrelated, centred
    opposite = np.outer([1.0, 2.0, 3.0], [1, -1])  # beta is 0: every sample has the same square
    for x in (
        rng.standard_normal((1, 30)),
        1e-7 * rng.standard_normal((1, 7)) + 1e-4,
        walsh,
        np.tile(walsh, 5) * 3e-6,
        opposite,
        0.1 * opposite,
    ):
        own = mvnn._sum_of_covariances(x[None].copy(), "ledoit_wolf", None)
        assert np.isfinite(own).all() and relative(own, literal_covariance(x.T)) < 1e-10
    noise = np.array([3e-17, -2e-17, 0.0, -1e-17, 5e-17])  # either sign, either one larger
    beta, delta = (a.ravel() for a in np.meshgrid(noise, noise))
    assert not mvnn._shrinkage_weight(beta, delta, np.ones(25)).any()
    assert mvnn._shrinkage_weight(np.array([2.0, 0.25, 3e-17]), np.full(3, 0.5), np.ones(3)).tolist() == [1, 0.5, 0]


def test_a_channel_that_is_flat_but_for_rounding_is_refused(rng):
    epochs = trials(rng, 3, 2)
    epochs[1, 0, 4] = 0.1  # its mean over 40 samples is not .1
    epochs[1, 0, 4, ::3] = 0.3 - 0.2
    with pytest.raises(ValueError, match=r"channels \[4\] are flat"):
        mvnn.noise_covariance(epochs)


def test_every_matrix_has_its_own_shrinkage(rng):
    """Sums could hide errors that cancel: each trial alone, from hardly to fully shrunk."""
    loose = rng.standard_normal((5, CHANNELS, 12))
    tight = mixing(rng) @ rng.standard_normal((5, CHANNELS, 400))
    for x in (*loose, *tight):
        own = mvnn._sum_of_covariances(x[None].copy(), "ledoit_wolf", None)
        assert relative(own, literal_covariance(x.T)) < 1e-10


def test_without_shrinkage_it_is_the_empirical_covariance(rng):
    epochs = trials(rng, 3, 2)
    expected = np.mean([np.cov(trial, bias=True) for trial in epochs.reshape(-1, CHANNELS, TIMES)], axis=0)
    assert relative(mvnn.noise_covariance(epochs, shrinkage="none"), expected) < 1e-12


@pytest.mark.parametrize("dim", mvnn.DIMS)
def test_blocks_change_nothing(rng, dim, monkeypatch):
    epochs = trials(rng, 11, 3)
    whole = mvnn.noise_covariance(epochs, dim=dim)
    matrix = mvnn.whitening_matrix(whole)
    whitened = mvnn.whiten(epochs, matrix)
    monkeypatch.setattr(mvnn, "_BLOCK_BYTES", 8 * CHANNELS * TIMES * 2)
    assert relative(mvnn.noise_covariance((epochs[i : i + 4] for i in range(0, 11, 4)), dim=dim), whole) < 1e-13
    assert relative(mvnn.whiten(epochs, matrix), whitened) < 1e-14


def test_known_covariance_becomes_identity(rng):
    mild = np.eye(CHANNELS) + 0.3 * rng.standard_normal((CHANNELS, CHANNELS))  # shrinkage drowns directions without power
    epochs = (1e-5 * mild @ rng.standard_normal((20, 2, CHANNELS, 5000))).astype(np.float32)
    whitened = mvnn.whiten(epochs, mvnn.fit_mvnn(epochs))
    covariance = np.cov(whitened.transpose(2, 0, 1, 3).reshape(CHANNELS, -1).astype(float))
    assert np.abs(covariance - np.eye(CHANNELS)).max() < 0.05  # long trials need little shrinkage
    exact = mvnn.whiten(epochs, mvnn.fit_mvnn(epochs, shrinkage="none")).transpose(2, 0, 1, 3)
    assert np.abs(np.cov(exact.reshape(CHANNELS, -1).astype(float)) - np.eye(CHANNELS)).max() < 0.01


def test_scale_and_order_of_channels_carry_through(rng):
    """Units do not matter after whitening, and permuting the channels permutes the transform."""
    epochs = trials(rng, 5, 2)
    matrix = mvnn.fit_mvnn(epochs)
    assert relative(mvnn.whiten(epochs * 1e6, mvnn.fit_mvnn(epochs * 1e6)), mvnn.whiten(epochs, matrix)) < 1e-10
    order = rng.permutation(CHANNELS)
    assert relative(mvnn.fit_mvnn(epochs[:, :, order]), matrix[np.ix_(order, order)]) < 1e-10


def test_test_data_leave_no_trace_unless_asked(rng):
    train, test = trials(rng, 6, 2), trials(rng, 3, 5)
    assert np.array_equal(mvnn.fit_mvnn(train, test), mvnn.fit_mvnn(train, 3 * test[::-1]))
    both = mvnn.fit_mvnn(train, test, fit_on="train+test")
    assert not np.allclose(both, mvnn.fit_mvnn(train, 3 * test, fit_on="train+test"), rtol=1e-3)
    expected = (literal_sigma(train, "epoch") + literal_sigma(test, "epoch")) / 2
    assert relative(both, fractional_matrix_power(expected, -0.5).real) < 1e-8


def test_float32_in_place(rng):
    epochs = trials(rng, 5, 2).astype(np.float32)
    matrix = mvnn.fit_mvnn(epochs)
    expected = np.matmul(matrix, epochs.astype(float)).astype(np.float32)
    assert mvnn.whiten(epochs, matrix, out=epochs) is epochs
    np.testing.assert_array_equal(epochs, expected)


def test_what_is_refused(rng):
    epochs = trials(rng, 4, 2)
    with pytest.raises(ValueError, match="single trials"):
        mvnn.noise_covariance(epochs.mean(axis=1, keepdims=True))
    with pytest.raises(ValueError, match=r"n_conditions, n_repetitions.*found \(2, 9, 40\)"):
        mvnn.noise_covariance(epochs[0])
    with pytest.raises(ValueError, match="no trials"):
        mvnn.noise_covariance(iter([]))
    flat = epochs.copy()
    flat[2, 1, 3] = 5.0
    with pytest.raises(ValueError, match=r"\['Cz'\] are flat"):
        mvnn.noise_covariance(flat, ch_names=["a", "b", "c", "Cz", *"defgh"])
    flat[2, 1, 3, 7] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        mvnn.noise_covariance(flat)
    referenced = epochs - epochs.mean(axis=2, keepdims=True)
    with pytest.raises(ValueError, match="singular"):
        mvnn.fit_mvnn(referenced, shrinkage="none")
    with pytest.raises(ValueError, match="dim must be"):
        mvnn.noise_covariance(epochs, dim="epochs")
    with pytest.raises(ValueError, match="needs the test trials"):
        mvnn.fit_mvnn(epochs, fit_on="train+test")
    with pytest.raises(ValueError, match="fit_on must be"):
        mvnn.fit_mvnn(epochs, fit_on="test")
    with pytest.raises(ValueError, match="need a whitening matrix"):
        mvnn.whiten(epochs, np.eye(3))
    with pytest.raises(ValueError, match="C-contiguous"):
        mvnn.whiten(epochs, np.eye(CHANNELS), out=epochs.swapaxes(0, 1).copy().swapaxes(0, 1))
