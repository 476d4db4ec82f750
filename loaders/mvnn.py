"""Multivariate noise normalisation (MVNN): whiten epochs by the noise covariance of single trials.

M. Guggenmos, P. Sterzer, R. M. Cichy, "Multivariate pattern analysis for MEG: a comparison of dissimilarity measures", NeuroImage 173
(2018) 434-447, equation 1. The noise covariance of a recording session is the mean, over conditions, of the mean over a condition's trials of the
trial's shrinkage covariance, and data are multiplied by its inverse square root:

    Sigma = mean over conditions c of mean over trials k of c of cov(X_k),    X_k (n_times, n_channels),    X_k <- X_k Sigma^(-1/2)

cov() standardises the channels of the trial, shrinks the correlation matrix as Ledoit and Wolf (2004) do, and gives the channels their variances
back: `sklearn.covariance.ledoit_wolf` on standardised columns, as in the published preprocessing of THINGS-EEG2. Here it is done for many
small matrices at once. Two sums that scikit-learn takes by matrix products of size n_channels^2 n_times need less: the sum over all pairs of
channels of (x_i^2)'(x_j^2) is the sum over times of (sum_i x_i^2)^2, and the empirical covariance is computed once instead of three times.

Whitened data are dimensionless (noise SD near 1) and mix the channels: maps of whitened "electrodes" are not maps of electrodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
from threadpoolctl import ThreadpoolController

from decodehub.core.statistics import ROUNDING

Dim = Literal["epoch", "time"]
Shrinkage = Literal["ledoit_wolf", "none"]
FitOn = Literal["train", "train+test"]
DIMS: tuple[Dim, ...] = ("epoch", "time")
SHRINKAGES: tuple[Shrinkage, ...] = ("ledoit_wolf", "none")

_BLOCK_BYTES = 4 << 20  # float64 working set of one block of trials: stays in the cache, and bounds the memory


def noise_covariance(
    epochs: np.ndarray | Iterable[np.ndarray],
    *,
    dim: Dim = "epoch",
    shrinkage: Shrinkage = "ledoit_wolf",
    ch_names: Sequence[str] | None = None,
) -> np.ndarray:
    """Mean shrinkage covariance of single trials, each condition with the same weight.

    Sums are in float64 whatever the data. Memory: a few blocks of 4 MB, and a block of the data when it is mapped from disk.

    Args:
        epochs: (n_conditions, n_repetitions, n_channels, n_times), any float dtype; or an iterable of such blocks, which share all axes but the first.
        dim: "epoch" (default; released code and paper): a covariance over the times of each trial, averaged over trials. "time": a
            covariance over the repetitions at each time, averaged over times (the other option of the original code).
        shrinkage: "ledoit_wolf" (default), or "none" for the empirical covariance.
        ch_names: for messages.

    Returns:
        (n_channels, n_channels) float64, unit of the data squared.

    Raises:
        ValueError: one repetition a condition (averaged data: their covariance is not that of the noise), no data, a channel that is flat in a
            trial, NaN or infinite values, an unknown setting.
    """
    if dim not in DIMS or shrinkage not in SHRINKAGES:
        raise ValueError(f"dim must be one of {DIMS} and shrinkage one of {SHRINKAGES}, found {dim!r} and {shrinkage!r}")
    total: np.ndarray | None = None
    n_conditions = 0
    for block in [epochs] if isinstance(epochs, np.ndarray) else epochs:
        _check_single_trials(block)
        n_conditions += len(block)
        for matrices in _matrices(block, dim):
            with _blas().limit(limits=1, user_api="blas"):  # threads that share one product of 63 x 250 x 63 wait more than they work
                part = _sum_of_covariances(matrices, shrinkage, ch_names)
            total = part if total is None else total + part
        per_condition = block.shape[1] if dim == "epoch" else block.shape[3]
    if total is None:
        raise ValueError("there are no trials to fit the noise covariance on")
    return total / (n_conditions * per_condition)


def whitening_matrix(covariance: np.ndarray) -> np.ndarray:
    """Sigma^(-1/2) of a symmetric positive definite matrix, by its eigenvectors.

    Args:
        covariance: (n_channels, n_channels).

    Returns:
        (n_channels, n_channels) float64, symmetric.

    Raises:
        ValueError: the matrix is not positive definite to working precision: channels that are sums of others, such as after an average
            reference or an interpolation, cannot be whitened without shrinkage.
    """
    values, vectors = np.linalg.eigh(np.asarray(covariance, dtype=np.float64))
    if not values[0] > len(values) * np.finfo(np.float64).eps * values[-1]:
        raise ValueError(
            f"the noise covariance is singular (eigenvalues {values[0]:.3g} to {values[-1]:.3g}): a channel is a sum of others; use shrinkage, "
            "or leave out interpolated channels"
        )
    return (vectors / np.sqrt(values)) @ vectors.T


def fit_mvnn(
    train: np.ndarray,
    test: np.ndarray | None = None,
    *,
    fit_on: FitOn = "train",
    dim: Dim = "epoch",
    shrinkage: Shrinkage = "ledoit_wolf",
) -> np.ndarray:
    """The whitening matrix of one session.

    Args:
        train: (n_conditions, n_repetitions, n_channels, n_times), single trials of the training partition.
        test: the same of the test partition; used only by ``fit_on="train+test"``.
        fit_on: "train" (default): EEG-EditBench section S3.1 and the NICE family; test data leave no trace in the transform. "train+test":
            the mean of both partitions' covariances, as in the original code of Gifford et al. (2022), a mild leak.
        dim, shrinkage: see :func:`noise_covariance`.

    Returns:
        (n_channels, n_channels) float64: Sigma^(-1/2).

    Raises:
        ValueError: see :func:`noise_covariance` and :func:`whitening_matrix`; ``fit_on="train+test"`` without test data.
    """
    if fit_on not in ("train", "train+test"):
        raise ValueError(f"fit_on must be 'train' or 'train+test', found {fit_on!r}")
    sigma = noise_covariance(train, dim=dim, shrinkage=shrinkage)
    if fit_on == "train+test":
        if test is None:
            raise ValueError("fit_on='train+test' needs the test trials too")
        sigma = (sigma + noise_covariance(test, dim=dim, shrinkage=shrinkage)) / 2
    return whitening_matrix(sigma)


def whiten(data: np.ndarray, matrix: np.ndarray, *, out: np.ndarray | None = None) -> np.ndarray:
    """Multiply every trial by the whitening matrix, in blocks and float64, and round to the dtype of `out`.

    Args:
        data: (..., n_channels, n_times), any float dtype.
        matrix: (n_channels, n_channels), from :func:`whitening_matrix` (symmetric).
        out: where the result goes, of the shape of `data`; may be `data` itself. By default a new array of its dtype.

    Returns:
        `out`.

    Raises:
        ValueError: shapes do not fit, or `out` is not C-contiguous.
    """
    if data.ndim < 2 or matrix.shape != (data.shape[-2], data.shape[-2]):
        raise ValueError(f"data {data.shape} need a whitening matrix of {data.shape[-2:-1] * 2}, found {matrix.shape}")
    out = np.empty(data.shape, data.dtype) if out is None else out
    if out.shape != data.shape or not out.flags.c_contiguous:
        raise ValueError(f"out must be C-contiguous of shape {data.shape}, found {out.shape}")
    trials, target = data.reshape(-1, *data.shape[-2:]), out.reshape(-1, *data.shape[-2:])
    step = _trials_a_block(*data.shape[-2:])
    n_channels, n_times = data.shape[-2:]
    for start in range(0, len(trials), step):
        block = (
            trials[start : start + step].transpose(1, 0, 2).astype(np.float64, order="C").reshape(n_channels, -1)
        )  # one product, not many
        target[start : start + step] = (matrix @ block).reshape(n_channels, -1, n_times).transpose(1, 0, 2)
    return out


@lru_cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def _check_single_trials(block: np.ndarray) -> None:
    if block.ndim != 4 or 0 in block.shape:
        raise ValueError(f"expected trials (n_conditions, n_repetitions, n_channels, n_times), found {block.shape}")
    if block.shape[1] == 1:
        raise ValueError(
            "there is one repetition a condition: these look like averages, and MVNN must be fitted on single trials (averaging changes the "
            "covariance of the noise); whiten before averaging"
        )


def _trials_a_block(n_channels: int, n_times: int) -> int:
    return max(1, _BLOCK_BYTES // (8 * n_channels * n_times))


def _matrices(block: np.ndarray, dim: Dim) -> Iterator[np.ndarray]:
    """Own float64 copies (n, n_channels, n_samples) of the matrices of a block, a few at a time."""
    _, n_repetitions, n_channels, n_times = block.shape
    if dim == "epoch":
        trials = block.reshape(-1, n_channels, n_times)
        step = _trials_a_block(n_channels, n_times)
        for start in range(0, len(trials), step):
            yield np.array(trials[start : start + step], dtype=np.float64)
        return
    for condition in block:  # (n_repetitions, n_channels, n_times): a matrix of channels by repetitions at each time
        step = _trials_a_block(n_channels, n_repetitions)
        for start in range(0, n_times, step):
            yield np.array(condition[:, :, start : start + step].transpose(2, 1, 0), dtype=np.float64, order="C")


def _sum_of_covariances(x: np.ndarray, shrinkage: Shrinkage, ch_names: Sequence[str] | None) -> np.ndarray:
    """Sum over n of the shrinkage covariances of (n, n_channels, n_samples) matrices, which are overwritten.

    The names follow scikit-learn's derivation (Ledoit and Wolf 2004, lemma 3.1): with Z the standardised matrix and S = Z Z' / T,
    delta = |S - mu I|^2 / C and beta = (sum_ij sum_t z_it^2 z_jt^2 / T - |S|^2) / (C T); the shrinkage is `_shrinkage_weight`.
    """
    n, n_channels, n_samples = x.shape
    size = np.maximum(x.max(axis=2), -x.min(axis=2))
    x -= x.mean(axis=2, keepdims=True)
    variance = np.einsum("nct,nct->nc", x, x) / n_samples
    _check_variance(variance, size, ch_names)
    sd = np.sqrt(variance)
    x /= sd[:, :, None]
    wide = n_samples < n_channels  # then the Gram matrix of the samples is the smaller one, with the same norm
    gram = np.matmul(x.transpose(0, 2, 1), x) if wide else np.matmul(x, x.transpose(0, 2, 1))
    gram /= n_samples
    mu = np.trace(gram, axis1=1, axis2=2) / n_channels
    weight = np.zeros(n)
    if shrinkage == "ledoit_wolf":
        squared_norm = np.einsum("nij,nij->n", gram, gram)
        power = np.square(x).sum(axis=1)  # (n, n_samples)
        beta = (np.einsum("nt,nt->n", power, power) / n_samples - squared_norm) / (n_channels * n_samples)
        delta = (squared_norm - n_channels * mu**2) / n_channels
        weight = _shrinkage_weight(beta, delta, squared_norm / n_channels)
    if wide:
        x *= (sd * np.sqrt((1 - weight) / n_samples)[:, None])[:, :, None]
        flat = x.transpose(1, 0, 2).reshape(n_channels, -1)
        total = flat @ flat.T
    else:
        gram *= (sd * (1 - weight)[:, None])[:, :, None]
        gram *= sd[:, None, :]
        total = gram.sum(axis=0)
    total[np.diag_indices(n_channels)] += (weight * mu) @ variance
    return total


def _shrinkage_weight(beta: np.ndarray, delta: np.ndarray, size: np.ndarray) -> np.ndarray:
    """(n,) min(beta, delta) / delta, and 0 where beta is 0, as `sklearn.covariance.ledoit_wolf_shrinkage` has it.

    Both are differences of terms of the `size` |S|^2 / C. Where delta is 0 up to their rounding, the covariance is mu I already (as that of one channel always is):
    every weight gives the same matrix, and the weight is 0. Where beta is 0 up to rounding (two samples of opposite sign), nothing is shrunk.
    """
    rounding = ROUNDING * size
    weight = np.zeros(len(beta))
    np.divide(np.minimum(beta, delta), delta, out=weight, where=(beta > rounding) & (delta > rounding))
    return weight


def _check_variance(variance: np.ndarray, size: np.ndarray, ch_names: Sequence[str] | None) -> None:
    """Refuse channels whose (n, n_channels) variance is that of the rounding of values of the (n, n_channels) `size`."""
    if not np.isfinite(variance).all():
        raise ValueError("there are NaN or infinite values among the trials")
    flat = np.sqrt(variance) <= ROUNDING * size
    if flat.any():
        channels = sorted(set(np.nonzero(flat)[1].tolist()))
        raise ValueError(
            f"channels {[ch_names[c] if ch_names is not None else c for c in channels]} are flat in at least one trial: they have no noise to "
            "normalise; leave them out or mend the recording"
        )
