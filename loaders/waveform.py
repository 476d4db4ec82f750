"""Filters, re-reference and resampling of iEEG windows, as the tracks of iMINDBench ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.signal import butter, iirnotch, resample_poly, sosfilt, sosfiltfilt

from .ieeg.recording import split_electrode

CLOCK_TOLERANCE = 5e-5  # 50 millionths, what the clocks of amplifiers keep to
LINE_UP_TO = 360.0  # the reference removes 60 Hz harmonics up to the sixth


def harmonics(line_freq: float, up_to: float = LINE_UP_TO) -> tuple[float, ...]:
    """Multiples of the line frequency up to `up_to` Hz: (60, ..., 360) or (50, ..., 350)."""
    return tuple(line_freq * k for k in range(1, int(up_to / line_freq + 1e-9) + 1))


@lru_cache(maxsize=32)
def notch_sos(frequencies: tuple[float, ...], q: float, sfreq: float) -> np.ndarray:
    """(n, 6) second-order sections of a cascade of notches; those at or above the Nyquist frequency are left out.

    A cascade of sections is the same filter as one `scipy.signal.iirnotch` after the other.
    """
    sections = [np.concatenate(iirnotch(f, q, sfreq)) for f in frequencies if f < sfreq / 2]
    return np.array(sections).reshape(-1, 6)


@lru_cache(maxsize=32)
def highpass_sos(frequency: float, order: int, sfreq: float) -> np.ndarray:
    """(n, 6) second-order sections of a Butterworth high-pass."""
    return butter(order, frequency, "highpass", fs=sfreq, output="sos")


def filter_signal(
    x: np.ndarray,
    sfreq: float,
    *,
    notch_hz: Sequence[float] = (),
    notch_q: float = 30.0,
    notch_phase: str = "causal",
    highpass_hz: float | None = None,
    highpass_order: int = 4,
) -> np.ndarray:
    """Notches, then a zero-phase Butterworth high-pass, in float64.

    Args:
        x: (..., T) float. sfreq: in Hz.
        notch_hz: centre frequencies in Hz; those at or above the Nyquist frequency are skipped. notch_q: frequency over bandwidth.
        notch_phase: "causal" (one pass from a zero state, as the reference) or "zero" (forward and backward).
        highpass_hz, highpass_order: None for no high-pass. It is always run forward and backward.

    Returns:
        (..., T) float64 in the unit of x.

    Source: iMINDBench time_domain_filter (``iirnotch``, ``lfilter``; ``sosfiltfilt``).
    """
    y = np.asarray(x, dtype=np.float64)
    if len(notch := notch_sos(tuple(float(f) for f in notch_hz), float(notch_q), float(sfreq))):
        y = sosfilt(notch, y, axis=-1) if notch_phase == "causal" else sosfiltfilt(notch, y, axis=-1)
    if highpass_hz is not None:
        y = sosfiltfilt(highpass_sos(float(highpass_hz), int(highpass_order), float(sfreq)), y, axis=-1)
    return y


class Montage(NamedTuple):
    """A re-reference as a matrix.

    Attributes:
        weights: (kept, C) float32. kept: index of each kept channel.
    """

    weights: np.ndarray
    kept: np.ndarray


def laplacian_montage(ch_names: Sequence[str], drop_isolated: bool = True) -> Montage:
    """Each contact minus the mean of those beside it on its electrode (numbers one lower and one higher).

    A contact with one neighbour is referenced to that. One with none, or whose name does not end in a number, is dropped (or kept as it
    is, without `drop_isolated`).

    Raises:
        ValueError: no channel has a neighbour.
    """
    index = {parts: i for i, name in enumerate(ch_names) if (parts := split_electrode(name)) is not None}
    rows, kept = [], []
    for i, name in enumerate(ch_names):
        parts = split_electrode(name)
        beside = [index[parts[0], n] for n in (parts[1] - 1, parts[1] + 1) if (parts[0], n) in index] if parts else []
        if beside or not drop_isolated:
            row = np.zeros(len(ch_names), dtype=np.float32)
            row[beside] = -1 / max(len(beside), 1)
            row[i] = 1
            rows.append(row)
            kept.append(i)
    if not np.count_nonzero(rows) > len(rows):
        raise ValueError(
            f"none of the {len(ch_names)} channels ({', '.join(list(ch_names)[:4])}, ...) has a neighbour: names must be like LAH1"
        )
    return Montage(np.array(rows), np.array(kept))


def apply_montage(montage: Montage, x: np.ndarray) -> np.ndarray:
    """(..., C, T) to (..., kept, T) float32.

    Differences are taken channel by channel, not by a matrix product, so that a large common offset costs no precision.
    """
    x = np.asarray(x, dtype=np.float32)
    out = x[..., montage.kept, :].copy()
    for i, (row, own) in enumerate(zip(montage.weights, montage.kept)):
        beside = np.flatnonzero(row)
        beside = beside[beside != own]
        if len(beside) == 1:
            out[..., i, :] -= x[..., beside[0], :]
        elif len(beside) == 2:
            out[..., i, :] -= (x[..., beside[0], :] + x[..., beside[1], :]) * np.float32(0.5)
    return out


def nominal_rate(sfreq: float) -> float:
    """The whole number of Hz that a rate stands for, where it is within `CLOCK_TOLERANCE` of it; else the rate itself.

    Clocks of amplifiers, and rates found from time stamps, are off by some millionths: 1,000.001 Hz means 1,000 Hz wherever bins or ratios
    are counted. Where samples are placed in time, the rate as it is counts.
    """
    whole = float(round(sfreq))
    return whole if whole and abs(sfreq - whole) <= CLOCK_TOLERANCE * whole else float(sfreq)


def resample(x: np.ndarray, sfreq: float, target: float) -> np.ndarray:
    """Polyphase resampling along the last axis, (..., T) to (..., ceil(T * target / sfreq)), float32.

    Raises:
        ValueError: the ratio is not one of whole numbers below 10,000.
    """
    sfreq = nominal_rate(sfreq)
    ratio = Fraction(float(target) / float(sfreq)).limit_denominator(10_000)
    if abs(float(ratio) * sfreq - target) > 1e-6 * target:
        raise ValueError(f"{sfreq:g} Hz cannot be resampled to {target:g} Hz by a ratio of small whole numbers")
    if ratio == 1:
        return np.asarray(x, dtype=np.float32)
    return resample_poly(np.asarray(x, dtype=np.float32), ratio.numerator, ratio.denominator, axis=-1).astype(np.float32)
