"""**Simulated** EEG driven by image features: for demonstrations and tests, never a stand-in for recordings.

Epochs look like preprocessed THINGS-EEG2 (63 channels, 250 Hz, 0 to 1 s after onset) and carry as much of an image as is asked for:

    epoch[image] = common + sum over components c of g_c(t) * (z[image] @ S_c) + noise

- ``z`` (latent_dim,): the image's features, standardised and reduced by PCA to white latent variables; both are fitted on the
  training features alone. The evoked part is therefore exactly linear (affine) in the features.
- ``g_c``: Gaussian bumps at the latencies of P1, N1, P2, N300, P3 and a late positivity (:data:`COMPONENTS`), the same for everyone.
- ``S_c`` (latent_dim, 63): for each latent variable a random scalp pattern that is smooth over the electrodes and weighted to the
  component's (posterior) sites; partly shared by subjects, partly a subject's own.
- ``common``: an ERP with the same components, the same for all images and subjects.
- noise: Gaussian with a 1/f spectrum and a correlation that falls exponentially with the distance of electrodes, independent over
  repetitions and images.

Amplitudes are in units of the noise's SD in one trial (as after noise normalisation), not in volts. Overlap with the neighbours of a
rapid stream, eye blinks, drifts and line noise are not simulated.

Electrode positions: ``things_eeg2_channels.csv``, subject 01 of THINGS-EEG2 (A. T. Gifford, K. Dwivedi, G. Roig, R. M. Cichy, "A large
and rich EEG dataset for modeling human visual object recognition", NeuroImage 2022) from its BIDS copy NEMAR nm000232
(doi 10.82901/nemar.nm000232), CC BY 4.0: names in the order in which models take them, CapTrak coordinates in metres.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.linalg import cholesky, toeplitz

if TYPE_CHECKING:
    import mne

CHUNK = 128  # images generated at a time: bounds the memory of temporaries


class Component(NamedTuple):
    """One evoked component: a Gaussian bump in time and the sites where it is strongest.

    Attributes:
        name: name in the literature.
        latency: centre of the bump in seconds after onset.
        width: standard deviation of the bump in seconds.
        sites: electrodes where the component has full weight.
        reach: distance in metres over which the weight falls to exp(-1/2).
        polarity: sign in the common ERP.
    """

    name: str
    latency: float
    width: float
    sites: tuple[str, ...]
    reach: float
    polarity: int


# Textbook latencies and sites of the visual ERP to objects.
COMPONENTS = (
    Component("P1", 0.105, 0.015, ("O1", "Oz", "O2"), 0.04, 1),
    Component("N1", 0.165, 0.018, ("PO7", "PO8"), 0.04, -1),
    Component("P2", 0.225, 0.025, ("O1", "Oz", "O2", "POz"), 0.05, 1),
    Component("N300", 0.300, 0.040, ("PO7", "PO8", "P7", "P8"), 0.05, -1),
    Component("P3", 0.400, 0.060, ("Pz", "P1", "P2"), 0.05, 1),
    Component("LPP", 0.580, 0.110, ("Pz", "CPz"), 0.05, 1),
)


@dataclass(frozen=True)
class SimulationSettings:
    """Settings of the simulation.

    Attributes:
        snr: RMS of the image-driven evoked part, over training images, channels and times, divided by the RMS (= SD) of the noise of
            one trial over the same. Averaging r repetitions divides the noise by sqrt(r) and leaves the evoked part. 0 is pure noise.
        latent_dim: number of PCA dimensions of the standardised training features that drive the EEG; each has unit variance over the
            training images. At most min(n_train - 1, d).
        repetitions_train: trials averaged for each training image (4 in THINGS-EEG2).
        repetitions_test: trials averaged for each test image (80 in THINGS-EEG2).
        sfreq: sampling rate in Hz.
        n_times: samples an epoch, the first at image onset.
        subject_similarity: correlation in [0, 1] between the scalp patterns of two subjects.
        common: RMS of the ERP common to all images, relative to that of the image-driven part.
        noise_exponent: power spectrum of the noise falls as 1 / f ** noise_exponent.
        noise_corner: frequency in Hz below which the spectrum is flat.
        noise_length: noise correlation of electrodes at distance x metres is exp(-x / noise_length).
        pattern_length: the same for the random scalp patterns.
    """

    snr: float = 0.1
    latent_dim: int = 50
    repetitions_train: int = 4
    repetitions_test: int = 80
    sfreq: float = 250.0
    n_times: int = 250
    subject_similarity: float = 0.5
    common: float = 2.0
    noise_exponent: float = 1.0
    noise_corner: float = 1.0
    noise_length: float = 0.06
    pattern_length: float = 0.04

    def __post_init__(self) -> None:
        for name in ("latent_dim", "repetitions_train", "repetitions_test", "n_times"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        for name in ("snr", "common", "noise_exponent"):
            if not 0 <= getattr(self, name) < np.inf:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)!r}")
        for name in ("sfreq", "noise_corner", "noise_length", "pattern_length"):
            if not 0 < getattr(self, name) < np.inf:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)!r}")
        if not 0 <= self.subject_similarity <= 1:
            raise ValueError(f"subject_similarity must be in [0, 1], got {self.subject_similarity!r}")
        if self.noise_corner >= self.sfreq / 2:
            raise ValueError(f"noise_corner must be below half of sfreq ({self.sfreq / 2:g} Hz), got {self.noise_corner!r}")


@dataclass(frozen=True)
class SimulatedEEG:
    """**Simulated** epochs of one subject.

    Attributes:
        train: (n, 63, n_times) float32, or (n, repetitions_train, 63, n_times) as single trials; unit: noise SD of one trial.
        test: (q, 63, n_times) float32, or (q, repetitions_test, 63, n_times).
        ch_names: the 63 channel names in order.
        sfreq: sampling rate in Hz.
        times: (n_times,) float64, seconds after onset.
        settings: the settings of the simulation.
        subject: number of the simulated subject.
        seed: seed of the simulation.
        simulated: always True.
    """

    train: np.ndarray
    test: np.ndarray
    ch_names: list[str]
    sfreq: float
    times: np.ndarray
    settings: SimulationSettings
    subject: int
    seed: int
    simulated: bool = True


# --------------------------------------------------------------------------------------------------------------------------- electrodes


@cache
def _channels() -> tuple[tuple[str, ...], tuple[tuple[float, float, float], ...]]:
    text = files("decodehub.loaders").joinpath("things_eeg2_channels.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    return tuple(row["name"] for row in rows), tuple((float(row["x"]), float(row["y"]), float(row["z"])) for row in rows)


def channel_names() -> list[str]:
    """The 63 channel names of THINGS-EEG2 in the order in which models take them."""
    return list(_channels()[0])


def channel_positions() -> np.ndarray:
    """(63, 3) float64: x (right), y (front), z (up) in metres, CapTrak coordinates of subject 01."""
    return np.array(_channels()[1])


def montage() -> mne.channels.DigMontage:
    """The electrodes as an MNE montage; CapTrak's axes and origin are those of MNE's head frame."""
    import mne

    return mne.channels.make_dig_montage(dict(zip(*_arrays(), strict=True)), coord_frame="head")


def info(sfreq: float = 250.0) -> mne.Info:
    """MNE measurement info of the simulated epochs, with positions; its description says that they are simulated."""
    import mne

    result = mne.create_info(channel_names(), sfreq, "eeg")
    result.set_montage(montage())
    result["description"] = "simulated EEG"
    return result


def _arrays() -> tuple[list[str], np.ndarray]:
    return channel_names(), channel_positions()


# --------------------------------------------------------------------------------------------------------------------------- simulation


def simulate_eeg(
    train_features: np.ndarray,
    test_features: np.ndarray,
    settings: SimulationSettings | None = None,
    *,
    subject: int,
    seed: int,
    single_trials: bool = False,
) -> SimulatedEEG:
    """Simulate the EEG of one subject who sees images with these features.

    The noise of the mean of r trials is drawn at once as noise / sqrt(r), which has exactly the distribution of that mean. Equal
    arguments give equal bytes in any process with the same versions and number of threads.

    Args:
        train_features: (n, d) finite numbers; they alone set the standardisation, the PCA and the scale of the evoked part.
        test_features: (q, d) finite numbers.
        settings: see :class:`SimulationSettings`; default settings when None.
        subject: number of the subject, 1 or more. Subjects share components and, by `subject_similarity`, scalp patterns.
        seed: 0 or more. Mixing, training noise and test noise have streams of their own.
        single_trials: return every repetition on its own, (n, r, 63, n_times); 200 images with 80 repetitions take 1 GB.

    Raises:
        ValueError: features with wrong shapes or non-finite values, `latent_dim` larger than their rank, bad subject or seed.
    """
    settings = settings or SimulationSettings()
    if subject < 1 or seed < 0:
        raise ValueError(f"subject must be 1 or more and seed 0 or more, got subject {subject} and seed {seed}")
    train_features, test_features = _validated(train_features, test_features)
    latents = latent_variables(train_features, test_features, settings.latent_dim)
    group, *_, own = np.random.SeedSequence(seed).spawn(subject + 1)
    mixing, train_noise, test_noise = own.spawn(3)
    evoked, erp = _evoked_maps(settings, np.random.default_rng(group), np.random.default_rng(mixing))
    epochs = [
        _epochs(z, evoked, erp, repetitions, settings, np.random.default_rng(stream), single_trials)
        for z, repetitions, stream in zip(latents, (settings.repetitions_train, settings.repetitions_test), (train_noise, test_noise))
    ]
    times = np.arange(settings.n_times) / settings.sfreq
    return SimulatedEEG(epochs[0], epochs[1], channel_names(), settings.sfreq, times, settings, subject, seed)


def _validated(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    train, test = np.asarray(train, dtype=np.float64), np.asarray(test, dtype=np.float64)
    if train.ndim != 2 or test.ndim != 2 or train.shape[1] != test.shape[1] or not train.size or not test.size:
        raise ValueError(f"expected features (n, d) and (q, d), found {train.shape} for training and {test.shape} for test")
    for name, values in (("training", train), ("test", test)):
        bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
        if len(bad):
            raise ValueError(f"{name} features have NaN or infinite values in {len(bad)} rows (first: row {bad[0]})")
    return train, test


def latent_variables(train_features: np.ndarray, test_features: np.ndarray, latent_dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Standardise and whiten features by PCA; both steps are fitted on the training features.

    Returns:
        (n, latent_dim) and (q, latent_dim) float64; the training rows have mean 0 and covariance I (divisor n).

    Raises:
        ValueError: `latent_dim` exceeds the rank of the centred training features.
    """
    n, d = train_features.shape
    mean, sd = train_features.mean(axis=0), train_features.std(axis=0)
    # A feature that does not vary carries nothing; rounding must not blow it up.
    sd = np.where(sd > 1e-12 * np.maximum(1, np.abs(mean)), sd, np.inf)
    x, y = (train_features - mean) / sd, (test_features - mean) / sd
    # The smaller of the two Gram matrices has the same non-zero spectrum.
    gram = x @ x.T if n < d else x.T @ x
    values, vectors = np.linalg.eigh(gram)
    values, vectors = values[::-1], vectors[:, ::-1]
    rank = int((values > max(n, d) * np.finfo(np.float64).eps * max(values[0], 1e-300)).sum())
    if latent_dim > min(rank, n - 1):
        raise ValueError(f"latent_dim is {latent_dim}, but {n} training features of length {d} have rank {min(rank, n - 1)}: choose fewer")
    values, vectors = values[:latent_dim], vectors[:, :latent_dim]
    axes = x.T @ vectors / np.sqrt(values) if n < d else vectors
    # The sign of an eigenvector is the solver's whim: make its largest entry positive.
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(latent_dim)])
    axes = axes * np.sqrt(n / values)
    return x @ axes, y @ axes


def _evoked_maps(settings: SimulationSettings, group: np.random.Generator, own: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """What each latent variable evokes (latent_dim, 63 * n_times) and the common ERP (63 * n_times,), scaled to `snr`."""
    smooth = cholesky(_correlation(settings.pattern_length), lower=True)
    weights, bumps = spatial_weights(), time_courses(settings)
    shape = (len(COMPONENTS), settings.latent_dim, len(smooth))
    shared, private = group.standard_normal(shape), own.standard_normal(shape)
    rho = settings.subject_similarity
    patterns = (np.sqrt(rho) * shared + np.sqrt(1 - rho) * private) @ smooth.T * weights[:, None]
    # Equal energy for all components, so that the long late ones do not drown P1 and N1; that of the whole bump, also where the epoch
    # cuts it off (its squares sum to sfreq * width * sqrt(pi)).
    energy = np.square(weights).sum(axis=1) * [settings.sfreq * component.width * np.sqrt(np.pi) for component in COMPONENTS]
    patterns /= np.sqrt(energy)[:, None, None]
    maps = np.einsum("cks,ct->kst", patterns, bumps).reshape(settings.latent_dim, -1)
    # Training latents have covariance I, so the mean square over images is the sum of squares over latents.
    maps *= settings.snr / np.sqrt(np.square(maps).sum() / maps.shape[1])
    polarity = np.array([component.polarity for component in COMPONENTS])
    erp = np.einsum("c,cs,ct->st", polarity, weights, bumps).ravel()
    erp *= settings.common * settings.snr / np.sqrt(np.square(erp).mean())
    return maps, erp


def spatial_weights() -> np.ndarray:
    """(n_components, 63) in (0, 1]: weight of each component at each electrode, falling with the distance to its nearest site."""
    names, positions = _arrays()
    rows = []
    for component in COMPONENTS:
        sites = positions[[names.index(site) for site in component.sites]]
        distance = np.linalg.norm(positions[:, None] - sites[None], axis=2).min(axis=1)
        rows.append(np.exp(-0.5 * (distance / component.reach) ** 2))
    return np.array(rows)


def time_courses(settings: SimulationSettings) -> np.ndarray:
    """(n_components, n_times): Gaussian bumps with peak 1. Raises ValueError when the epoch ends before the first component."""
    times = np.arange(settings.n_times) / settings.sfreq
    if times[-1] < COMPONENTS[0].latency:
        raise ValueError(f"the epoch ends at {times[-1]:.3f} s, before the first component at {COMPONENTS[0].latency} s: raise n_times")
    return np.array([np.exp(-0.5 * ((times - c.latency) / c.width) ** 2) for c in COMPONENTS])


def _epochs(
    latents: np.ndarray,
    maps: np.ndarray,
    erp: np.ndarray,
    repetitions: int,
    settings: SimulationSettings,
    rng: np.random.Generator,
    single_trials: bool,
) -> np.ndarray:
    n, n_channels = len(latents), len(channel_names())
    shape = (n, repetitions, n_channels, settings.n_times) if single_trials else (n, n_channels, settings.n_times)
    epochs = np.empty(shape, dtype=np.float32)
    z, maps32, erp32 = latents.astype(np.float32), maps.astype(np.float32), erp.astype(np.float32)
    noise = _noise(n * repetitions if single_trials else n, settings, rng)
    trials = epochs.reshape(-1, n_channels, settings.n_times)
    for start, block in noise:
        trials[start : start + len(block)] = block if single_trials else block / np.float32(np.sqrt(repetitions))
    for start in range(0, n, CHUNK):
        evoked = (z[start : start + CHUNK] @ maps32 + erp32).reshape(-1, n_channels, settings.n_times)
        epochs[start : start + CHUNK] += evoked[:, None] if single_trials else evoked
    return epochs


# -------------------------------------------------------------------------------------------------------------------------------- noise


def _noise(n: int, settings: SimulationSettings, rng: np.random.Generator) -> Iterator[tuple[int, np.ndarray]]:
    """Single-trial noise of n trials in blocks: (start, (up to CHUNK, 63, n_times) float32), unit variance at each sample."""
    space = cholesky(_correlation(settings.noise_length), lower=True).astype(np.float32)
    time = cholesky(noise_autocorrelation(settings), lower=True).astype(np.float32)
    for start in range(0, n, CHUNK):
        white = rng.standard_normal((min(CHUNK, n - start), len(space), len(time)), dtype=np.float32)
        yield start, np.matmul(space, white @ time.T)


def _correlation(length: float) -> np.ndarray:
    """(63, 63) exp(-distance / length): positive definite for any positions in space."""
    positions = channel_positions()
    return np.exp(-np.linalg.norm(positions[:, None] - positions[None], axis=2) / length)


def noise_autocorrelation(settings: SimulationSettings) -> np.ndarray:
    """(n_times, n_times) correlation in time of noise with power 1 / f ** exponent, flat below the corner."""
    # The spectrum is laid on a grid some 16 times finer than the epoch's, so that the noise does not repeat after one epoch.
    n_grid = 1 << int(np.ceil(np.log2(16 * max(settings.n_times, settings.sfreq / settings.noise_corner))))
    freqs = np.fft.rfftfreq(n_grid, 1 / settings.sfreq)
    power = np.maximum(freqs, settings.noise_corner) ** -settings.noise_exponent
    lags = np.fft.irfft(power, n_grid)[: settings.n_times]
    return toeplitz(lags / lags[0])
