"""Multi-STFT: magnitudes of three short-time Fourier transforms of one window, each in its own band.

Only the bins that are kept are computed, as matrix products on strided views: every frame of every row is one slice of one padded
array, so nothing is copied. That is several times faster than a full FFT, with float32 rounding differences (see `benchmarks/imind_stft.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from .recipes import STFT_BANDS
from .waveform import nominal_rate

CHUNK_ROWS = 1024  # rows under way at once: some 30 MB, which stays near the caches
HOP_S = 0.0625


class StftPlan(NamedTuple):
    """What the bands come to at one sampling rate.

    Attributes:
        nperseg: samples a frame, by band. hop: samples from frame to frame. n_frames: frames of a window.
        kernels: (nperseg, 2 n_bins) float32 by band: the Hann window times cosines, then sines.
        frequencies: (n_bins over all bands,) in Hz.
    """

    nperseg: tuple[int, ...]
    hop: int
    n_frames: int
    kernels: tuple[np.ndarray, ...]
    frequencies: np.ndarray


@lru_cache(maxsize=16)
def stft_plan(n_times: int, sfreq: float, bands: tuple[tuple[float, float, float], ...] = STFT_BANDS, hop_s: float = HOP_S) -> StftPlan:
    """Frames, bins and kernels for windows of `n_times` samples.

    Frames are centred on multiples of the hop, as with ``torch.stft(center=True)``; the Hann window is periodic.

    Args:
        n_times: samples a window.
        sfreq: in Hz; one that is a whole number but for `waveform.CLOCK_TOLERANCE` counts as that, so that bins on the edge of a band stay.
        bands: (seconds a frame, lowest, highest frequency in Hz, both included).
        hop_s: seconds from frame to frame; the whole part in samples is taken (128 at 2,048 Hz, 62 at 1,000 Hz).

    Raises:
        ValueError: a band beyond the Nyquist frequency or with no bin, a window too short for a frame's padding, or bands with different
            numbers of frames.
    """
    sfreq = nominal_rate(sfreq)
    hop = int(hop_s * sfreq + 1e-9)
    if hop < 1:
        raise ValueError(f"hop_s={hop_s} is less than one sample at {sfreq:g} Hz")
    sizes, kernels, frequencies, frames = [], [], [], set()
    for seconds, low, high in bands:
        n = round(seconds * sfreq)
        if n < 2 or n // 2 >= n_times:
            raise ValueError(f"a frame of {seconds} s is {n} samples at {sfreq:g} Hz: windows of {n_times} samples cannot be padded for it")
        if high > sfreq / 2:
            raise ValueError(f"the band {low:g}-{high:g} Hz goes beyond the Nyquist frequency of {sfreq:g} Hz data")
        grid = np.arange(n // 2 + 1) * (sfreq / n)
        bins = np.flatnonzero((grid >= low) & (grid <= high))
        if not len(bins):
            raise ValueError(f"frames of {n} samples at {sfreq:g} Hz have no bin in {low:g}-{high:g} Hz")
        samples = np.arange(n)
        hann = 0.5 - 0.5 * np.cos(2 * np.pi * samples / n)
        # The angle is reduced in whole numbers first, so that it is exact for large products.
        angle = 2 * np.pi * ((samples[:, None] * bins) % n) / n
        kernels.append(np.concatenate([np.cos(angle), np.sin(angle)], axis=1) * hann[:, None])
        sizes.append(n)
        frequencies.append(grid[bins])
        frames.add(1 + (n_times + 2 * (n // 2) - n) // hop)
    if len(frames) > 1:
        raise ValueError(f"the bands give {sorted(frames)} frames for {n_times} samples at {sfreq:g} Hz; they must agree to be stacked")
    return StftPlan(tuple(sizes), hop, frames.pop(), tuple(k.astype(np.float32) for k in kernels), np.concatenate(frequencies))


def multi_stft(
    x: np.ndarray,
    sfreq: float,
    bands: Sequence[Sequence[float]] = STFT_BANDS,
    hop_s: float = HOP_S,
    *,
    log: bool = False,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Magnitudes of short-time Fourier transforms.

    Args:
        x: (..., T) float, windows.
        sfreq: in Hz.
        bands, hop_s: see `stft_plan`; by default 2-40 Hz, 20-150 Hz and 80-250 Hz.
        log: take log(magnitude + 1e-6); no track has that.
        out: (..., frames, bins) float32 to write to.

    Returns:
        (..., frames, bins) float32 in the unit of x: 17 frames and 20 + 33 + 22 = 75 bins for one second at 2,048 or 1,000 Hz.
    """
    plan = stft_plan(x.shape[-1], float(sfreq), tuple((float(a), float(b), float(c)) for a, b, c in bands), float(hop_s))
    rows = x.reshape(-1, x.shape[-1])
    shape = (*x.shape[:-1], plan.n_frames, len(plan.frequencies))
    if out is None:
        out = np.empty(shape, dtype=np.float32)
    if out.shape != shape or not out.flags.c_contiguous:
        raise ValueError(f"out must be C-contiguous of shape {shape}, found {out.shape}")
    flat = out.reshape(-1, *shape[-2:])
    pad = max(n // 2 for n in plan.nperseg)
    for start in range(0, len(rows), CHUNK_ROWS):
        chunk = np.pad(rows[start : start + CHUNK_ROWS].astype(np.float32, copy=False), ((0, 0), (pad, pad)), mode="reflect")
        first = 0
        for n, kernel in zip(plan.nperseg, plan.kernels):
            width = kernel.shape[1] // 2
            for frame in range(plan.n_frames):
                begin = pad - n // 2 + frame * plan.hop
                parts = chunk[:, begin : begin + n] @ kernel
                np.square(parts, out=parts)
                target = flat[start : start + CHUNK_ROWS, frame, first : first + width]
                np.add(parts[:, :width], parts[:, width:], out=target)
            first += width
    np.sqrt(out, out=out)
    if log:
        np.log(out + np.float32(1e-6), out=out)
    return out
