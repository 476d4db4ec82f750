"""What THINGS-EEG2 epochs themselves say about their axes, scale, time and channels, whatever their names say.

All of it follows from the design (A. T. Gifford et al., NeuroImage 264 (2022) 119754): images come every 200 ms, so the mean over images
is a response that repeats every 200 ms (5 Hz and its harmonics); repetitions of an image are exchangeable, channels are not; and
multivariate noise normalisation leaves noise with an identity covariance over channels.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from decodehub.core.statistics import ROUNDING

from ..simulate_eeg import channel_names, channel_positions
from . import SOA, Epochs

CHUNK_BYTES = 1 << 26  # of the epochs looked at together
MAX_TRIALS = 800  # of the sample that covariances are taken from


@dataclass(frozen=True, eq=False)
class Summary:
    """One pass over all epochs.

    Attributes:
        halves: (2, n_repetitions, n_channels, n_times) float64, mean over the even and the odd rows; non-finite values count as 0.
        nonfinite: number of NaN or infinite values; `nonfinite_at` (image row, repetition, channel, time) of the first, or None.
        constant_channels: indices of channels that never change. `constant_trials`: single-channel epochs without any change, others.
        duplicates: pairs of (image row, repetition) with equal data, at most 20.
    """

    halves: np.ndarray
    nonfinite: int
    nonfinite_at: tuple[int, ...] | None
    constant_channels: list[int]
    constant_trials: int
    duplicates: list[tuple[tuple[int, int], tuple[int, int]]]


class AxisRoles(NamedTuple):
    """Whether the levels of an axis differ from each other in a way that comes back in the other half of the images.

    All but `neighbours` is of the part of the grand means that repeats every 200 ms, where there is one: nearly all of the response to the
    stream is in it, and little of the noise.

    Attributes:
        signal: correlation of the two halves' grand means; low means that nothing can be said.
        channels, repetitions: split-half correlation of the levels' deviations from their mean (near 1 for channels, near 0 for
            repetitions, whose order means nothing); `repetitions` is None where there is one.
        channel_power, repetition_power: mean product of the halves' deviations: power of what the levels do not share.
        share: `channel_power` over the power of the channels' mean. Real repetitions taken for channels: 0.14.
        neighbours: mean correlation over time of adjacent channels within an epoch.
    """

    signal: float
    channels: float
    repetitions: float | None
    channel_power: float
    repetition_power: float
    share: float
    neighbours: float


class Whiteness(NamedTuple):
    """The noise between repetitions. Both are None for one repetition.

    Attributes:
        scale: standard deviation over time of what repetitions do not share, mean over channels, in units of the data.
        evenness: (sum of eigenvalues)^2 / (n * sum of their squares) of its channel covariance: 1 for an identity, near 0 for raw EEG.
    """

    scale: float | None
    evenness: float | None


class Ripple(NamedTuple):
    """The response to the stream of images in the grand mean.

    Attributes:
        ratio: mean power at 5 Hz and its harmonics (up to 30 Hz) over the mean power between them; about 1 without a ripple.
        peak: frequency in Hz of the strongest power from 3 to 30 Hz.
        periods: whole stimulus periods in the window.
    """

    ratio: float
    peak: float
    periods: int


def summarise(epochs: Epochs) -> Summary:
    """Look at every value once, a few rows at a time."""
    data = epochs.data
    n, r, c, t = data.shape
    step = max(2, CHUNK_BYTES // max(1, r * c * t * 8) // 2 * 2)
    halves, counts = np.zeros((2, r, c, t)), [0, 0]
    nonfinite, first, still = 0, None, np.zeros(c, dtype=np.int64)
    lowest, highest = np.full(c, np.inf), np.full(c, -np.inf)
    seen: dict[bytes, tuple[int, int]] = {}
    duplicates: list[tuple[tuple[int, int], tuple[int, int]]] = []
    for start in range(0, n, step):
        block = np.asarray(data[start : start + step])
        low, high = block.min(axis=-1), block.max(axis=-1)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):  # NaN and infinity come through min and max
            bad = ~np.isfinite(block)
            if first is None:
                at = np.argwhere(bad)[0]
                first = (start + int(at[0]), *(int(i) for i in at[1:]))
            nonfinite += int(bad.sum())
            block = np.where(bad, 0, block)
            low, high = block.min(axis=-1), block.max(axis=-1)
        still += (low == high).sum(axis=(0, 1))
        lowest, highest = np.minimum(lowest, low.min(axis=(0, 1))), np.maximum(highest, high.max(axis=(0, 1)))
        rows = block.reshape(len(block), -1)
        if rows.dtype not in (np.float32, np.float64):
            rows = rows.astype(np.float64)
        for parity in (0, 1):  # a product with ones is a sum, and several times as fast; some hundred rows at a time
            ones = np.ones(len(rows[parity::2]), dtype=rows.dtype)
            halves[parity] += (ones @ rows[parity::2]).reshape(r, c, t)
            counts[parity] += len(ones)
        # Two channels stand for the trial; one without any change there says nothing.
        pair = [c // 3, c - 1]
        telling = (low != high)[:, :, pair].all(axis=-1)
        for i, k in np.argwhere(telling):
            key = hashlib.blake2b(np.ascontiguousarray(block[i, k, pair]).tobytes(), digest_size=16).digest()
            here = (start + int(i), int(k))
            if seen.setdefault(key, here) != here and len(duplicates) < 20:
                duplicates.append((seen[key], here))
    for parity in (0, 1):
        halves[parity] /= max(1, counts[parity])
    constant = np.flatnonzero(lowest == highest)
    return Summary(halves, nonfinite, first, constant.tolist(), int(np.delete(still, constant).sum()), duplicates)


def trial_sample(data: np.ndarray, max_trials: int = MAX_TRIALS) -> np.ndarray:
    """Rows spread evenly over the images with all (up to 20) repetitions, (m, r, c, t) float64; non-finite values count as 0."""
    r = min(data.shape[1], 20)
    rows = np.unique(np.linspace(0, len(data) - 1, min(len(data), max(1, max_trials // r))).astype(int))
    return np.nan_to_num(np.stack([np.asarray(data[i, :r], dtype=np.float64) for i in rows]), posinf=0, neginf=0)


def axis_roles(summary: Summary, sample: np.ndarray, sfreq: float) -> AxisRoles:
    """How channels and repetitions differ; `sample` from `trial_sample`."""
    halves = summary.halves - summary.halves.mean(axis=(1, 2, 3), keepdims=True)
    found = ripple(summary, sfreq)
    if found is not None and found.ratio > 5:
        window = _window(summary.halves, sfreq, found.periods)
        spectrum = np.fft.rfft(window)
        spectrum[..., ~_comb(window.shape[-1], sfreq, found.periods)] = 0
        halves = np.fft.irfft(spectrum, window.shape[-1])
    channels, repetitions = halves.mean(axis=1), halves.mean(axis=2)  # (2, levels, n_times)
    by_channel, by_repetition = _deviation(channels), _deviation(repetitions)
    channel_power = float((by_channel[0] * by_channel[1]).mean())
    common = float((channels[0].mean(axis=0) * channels[1].mean(axis=0)).mean())
    return AxisRoles(
        signal=max(_correlation(*channels.mean(axis=1)), _correlation(*channels)),
        channels=_correlation(*by_channel),
        repetitions=_correlation(*by_repetition) if repetitions.shape[1] > 1 else None,
        channel_power=channel_power,
        repetition_power=float((by_repetition[0] * by_repetition[1]).mean()),
        share=channel_power / common if common > 0 else np.inf,
        neighbours=_neighbours(sample),
    )


def whiteness(sample: np.ndarray) -> Whiteness:
    """Covariance over channels of what repetitions of an image do not share, each epoch centred over time; `sample` from `trial_sample`.

    Centring over time is what the definition of the noise normalisation does (it takes the covariance over time within a trial), so
    whitened data have an identity here with or without slow drifts.
    """
    r = sample.shape[1]
    if r < 2:
        return Whiteness(None, None)
    noise = (sample - sample.mean(axis=1, keepdims=True)) * np.sqrt(r / (r - 1))
    noise -= noise.mean(axis=-1, keepdims=True)
    flat = noise.transpose(2, 0, 1, 3).reshape(sample.shape[2], -1)
    covariance = flat @ flat.T / flat.shape[1]
    total = float(np.trace(covariance))
    if total <= len(covariance) * (ROUNDING * float(np.abs(sample).max())) ** 2:
        return Whiteness(0.0, 0.0)
    evenness = total**2 / (len(covariance) * float(np.square(covariance).sum()))
    return Whiteness(float(np.sqrt(np.diag(covariance)).mean()), float(evenness))


def ripple(summary: Summary, sfreq: float) -> Ripple | None:
    """The ripple of the stimulus stream in the grand mean over images and repetitions; None when the epochs last less than 0.6 s."""
    grand = summary.halves.mean(axis=(0, 1))
    periods = int(grand.shape[-1] / (SOA * sfreq) + 1e-9)
    if periods < 3:
        return None
    window = _window(grand, sfreq, periods)
    power = np.square(np.abs(np.fft.rfft(window))).sum(axis=0)
    freqs = np.fft.rfftfreq(window.shape[-1], 1 / sfreq)
    band, comb = _band(freqs), _comb(window.shape[-1], sfreq, periods)
    between, at = float(power[band & ~comb].mean()), float(power[comb].mean())
    ratio = at / between if between > 0 else (np.inf if at > 0 else 0.0)
    return Ripple(float(ratio), float(freqs[band][power[band].argmax()]), periods)


def spatial_roughness(summary: Summary, ch_names: tuple[str, ...], n_permutations: int = 999) -> tuple[float, float] | None:
    """Whether neighbours on the head have similar mean responses when the channels have these names.

    Geary's contiguity ratio with the four nearest electrodes as neighbours: the mean square difference of neighbours over that of all
    pairs; well below 1 for the names' own places, about 1 for others.

    Returns:
        The ratio, and the share of random orders (of a fixed seed) with a ratio as low; None with fewer than 12 known channels.
    """
    places = dict(zip(channel_names(), channel_positions(), strict=True))
    known = [i for i, name in enumerate(ch_names) if name in places]
    if len(known) < 12:
        return None
    course = summary.halves.mean(axis=(0, 1))[known]
    size = float(np.abs(course).max())
    course = course - course.mean(axis=1, keepdims=True)
    squares = np.square(course[:, None] - course[None]).sum(axis=-1)
    positions = np.array([places[ch_names[i]] for i in known])
    distance = np.linalg.norm(positions[:, None] - positions[None], axis=-1)
    neighbours = np.argsort(distance, axis=1)[:, 1:5]
    rows = np.arange(len(known))[:, None]
    overall = squares.sum() / (len(known) * (len(known) - 1))
    if overall <= course.shape[1] * (ROUNDING * size) ** 2:
        return None

    def ratio(order: np.ndarray) -> float:
        return float(squares[order[rows], order[neighbours]].mean() / overall)

    found = ratio(np.arange(len(known)))
    rng = np.random.default_rng(0)
    as_low = sum(ratio(rng.permutation(len(known))) <= found for _ in range(n_permutations))
    return found, (1 + as_low) / (1 + n_permutations)


def _window(courses: np.ndarray, sfreq: float, periods: int) -> np.ndarray:
    """The last whole periods of the stream, without mean and linear trend."""
    window = courses[..., -round(periods * SOA * sfreq) :]
    time = np.linspace(-1, 1, window.shape[-1])
    window = window - window.mean(axis=-1, keepdims=True)
    return window - (window @ time / (time @ time))[..., None] * time


def _band(freqs: np.ndarray) -> np.ndarray:
    return (freqs >= 3) & (freqs <= 30.5)


def _comb(n: int, sfreq: float, periods: int) -> np.ndarray:
    """Which frequencies of a window of `n` samples are 5 Hz or its harmonics, up to 30 Hz."""
    freqs = np.fft.rfftfreq(n, 1 / sfreq)
    return _band(freqs) & (np.arange(len(freqs)) % periods == 0)


def _deviation(levels: np.ndarray) -> np.ndarray:
    return levels - levels.mean(axis=1, keepdims=True)


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    x, y = a.ravel() - a.mean(), b.ravel() - b.mean()
    if min(np.linalg.norm(x) - ROUNDING * np.linalg.norm(a), np.linalg.norm(y) - ROUNDING * np.linalg.norm(b)) <= 0:
        return 0.0
    return float(x @ y) / float(np.sqrt((x @ x) * (y @ y)))


def _neighbours(sample: np.ndarray) -> float:
    x = sample - sample.mean(axis=-1, keepdims=True)
    norm = np.linalg.norm(x, axis=-1, keepdims=True)
    x = np.divide(x, norm, out=np.zeros_like(x), where=norm > ROUNDING * np.linalg.norm(sample, axis=-1, keepdims=True))
    return float((x[:, :, 1:] * x[:, :, :-1]).sum(axis=-1).mean()) if x.shape[2] > 1 else 0.0
