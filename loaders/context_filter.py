"""The context filter of the Waveform track for many overlapping windows at the cost of one pass over the recording.

The reference cuts 15 s around every window, runs notches from a zero state and a zero-phase high-pass over the piece, and keeps the 1 s in
the middle. All of it is linear, so the output for a piece is that of one pass over the whole stretch plus the response to the difference of
the filters' states where the piece begins and where it ends. That is exact up to rounding in float64, and some ten times less work than
filtering every piece.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.signal import sosfilt

from .waveform import highpass_sos, notch_sos


class _Responses(NamedTuple):
    """What states at the ends of a piece do to the samples that are kept.

    Attributes:
        start: (S, n) backward-filtered output in the middle, for each state of notches and high-pass at the start of the piece.
        start_to_end: (S, H) state of the forward high-pass at the end of the piece.
        end: (H, n) output in the middle, for each state of the backward high-pass at the end.
        steady: (sections, 2) state of the high-pass for a constant input of 1 (`scipy.signal.sosfilt_zi`).
        padding: samples by which `scipy.signal.sosfiltfilt` extends a signal.
    """

    start: np.ndarray
    start_to_end: np.ndarray
    end: np.ndarray
    steady: np.ndarray
    padding: int


def context_filter(
    data: np.ndarray,
    starts: np.ndarray,
    width: int,
    before: int,
    n: int,
    sfreq: float,
    *,
    notch_hz: tuple[float, ...],
    notch_q: float,
    highpass_hz: float,
    highpass_order: int,
) -> np.ndarray:
    """Filter a piece around each of many windows and keep the window.

    Args:
        data: (C, N) float, a stretch of the recording that holds every piece.
        starts: (k,) ascending first samples of the pieces in `data`.
        width: samples of a piece. before: samples of it ahead of the window. n: samples of the window.
        sfreq: in Hz. notch_hz, notch_q, highpass_hz, highpass_order: as in `filter_signal`, notches causal.

    Returns:
        (k, C, n) float64, equal to ``filter_signal`` on every piece, cropped, but for rounding.
    """
    notch = notch_sos(notch_hz, notch_q, sfreq)
    highpass = highpass_sos(highpass_hz, highpass_order, sfreq)
    responses = _responses(notch_hz, notch_q, highpass_hz, highpass_order, sfreq, width, before, n)
    x = np.asarray(data, dtype=np.float64)
    ends = starts + width
    notched, forward, states = _forward(notch, highpass, x, np.concatenate([starts, ends]))
    backward, back_states = _backward(highpass, forward, ends)
    # By how much the states of the stretch differ from the piece's own: (k * C, S) where it begins, (k * C, H) where it ends.
    start_states = _states_at(states, starts)
    start_states[len(notch) :] -= _own_start(notch, highpass, x, starts, responses)
    at_start = start_states.transpose(1, 0, 2).reshape(len(starts) * len(x), -1)
    end_states = _states_at(states, ends)[len(notch) :]
    end_states = end_states - (at_start @ responses.start_to_end).reshape(-1, len(highpass), 2).transpose(1, 0, 2)
    end_difference = _own_end(highpass, notched, ends, end_states, responses) - _states_at(back_states, ends)
    at_end = end_difference.transpose(1, 0, 2).reshape(len(at_start), -1)
    result = np.stack([backward[:, s + before : s + before + n] for s in starts]).reshape(-1, n)
    result += at_end @ responses.end
    result -= at_start @ responses.start
    return result.reshape(len(starts), len(x), n)


def _forward(notch: np.ndarray, highpass: np.ndarray, x: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, dict]:
    """(C, N) after the notches, (C, N) after the high-pass too, and the states (S sections, C, 2) of all filters at each of `places`."""
    state, last = np.zeros((len(notch) + len(highpass), len(x), 2)), 0
    notched, forward = np.empty_like(x), np.empty_like(x)
    states = {}
    for stop in np.unique(np.concatenate([places, [x.shape[1]]])):
        piece = slice(last, int(stop))
        notched[:, piece], notch_state = _run(notch, x[:, piece], state[: len(notch)])
        forward[:, piece], high_state = _run(highpass, notched[:, piece], state[len(notch) :])
        state = np.concatenate([notch_state, high_state])
        last = int(stop)
        states[last] = state
    return notched, forward, states


def _backward(highpass: np.ndarray, forward: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, dict]:
    """(C, N) after the high-pass run from the end, and its states (sections, C, 2) at each of `places`."""
    backward, last = np.empty_like(forward), forward.shape[1]
    state = np.zeros((len(highpass), len(forward), 2))
    states = {last: state}
    for stop in np.unique(np.concatenate([places, [0]]))[::-1]:
        if int(stop) < last:
            reverse, state = _run(highpass, forward[:, int(stop) : last][:, ::-1], state)
            backward[:, int(stop) : last] = reverse[:, ::-1]
            last = int(stop)
        states[last] = state
    return backward, states


def _states_at(states: dict[int, np.ndarray], places: np.ndarray) -> np.ndarray:
    """(sections, k * C, 2) states at each of k places."""
    stacked = np.stack([states[int(place)] for place in places], axis=1)
    return stacked.reshape(len(stacked), -1, 2)


def _own_start(notch: np.ndarray, highpass: np.ndarray, x: np.ndarray, starts: np.ndarray, responses: _Responses) -> np.ndarray:
    """State of a piece's own high-pass where it begins: it has run over an odd extension of the first samples of notches at rest."""
    pad = responses.padding
    first = np.stack([x[:, s : s + pad + 1] for s in starts]).reshape(-1, pad + 1)
    head = _run(notch, first, np.zeros((len(notch), len(first), 2)))[0]
    extension = 2 * head[:, :1] - head[:, :0:-1]
    return sosfilt(highpass, extension, axis=-1, zi=responses.steady[:, None, :] * extension[None, :, :1])[1]


def _own_end(highpass: np.ndarray, notched: np.ndarray, ends: np.ndarray, states: np.ndarray, responses: _Responses) -> np.ndarray:
    """State of a piece's own backward high-pass where it ends: the forward one, with `states`, has run on over an odd extension."""
    pad = responses.padding
    tail = np.stack([notched[:, e - pad - 1 : e] for e in ends]).reshape(-1, pad + 1)
    onward, _ = sosfilt(highpass, 2 * tail[:, -1:] - tail[:, -2::-1], axis=-1, zi=states)
    return sosfilt(highpass, onward[:, ::-1], axis=-1, zi=responses.steady[:, None, :] * onward[None, :, -1:])[1]


def _run(sos: np.ndarray, x: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if not len(sos) or not x.shape[-1]:
        return x, state
    return sosfilt(sos, x, axis=-1, zi=state)


@lru_cache(maxsize=4)
def _responses(
    notch_hz: tuple[float, ...], notch_q: float, highpass_hz: float, order: int, sfreq: float, width: int, before: int, n: int
) -> _Responses:
    from scipy.signal import sosfilt, sosfilt_zi

    notch, highpass = notch_sos(notch_hz, notch_q, sfreq), highpass_sos(highpass_hz, order, sfreq)
    sos = np.concatenate([notch, highpass])
    size, high = 2 * len(sos), 2 * len(highpass)
    forward, final = sosfilt(sos, np.zeros((size, width)), axis=-1, zi=np.eye(size).reshape(size, len(sos), 2).transpose(1, 0, 2))
    backward = sosfilt(highpass, forward[:, ::-1], axis=-1)[:, ::-1]
    ending = sosfilt(highpass, np.zeros((high, width)), axis=-1, zi=np.eye(high).reshape(high, len(highpass), 2).transpose(1, 0, 2))[0][
        :, ::-1
    ]
    kept = slice(before, before + n)
    # scipy.signal.sosfiltfilt: three times the number of taps, less the sections that are of first order.
    padding = 3 * (2 * len(highpass) + 1 - min((highpass[:, 2] == 0).sum(), (highpass[:, 5] == 0).sum()))
    to_end = final[len(notch) :].transpose(1, 0, 2).reshape(size, high)
    return _Responses(
        np.ascontiguousarray(backward[:, kept]), to_end, np.ascontiguousarray(ending[:, kept]), sosfilt_zi(highpass), int(padding)
    )
