"""Features of the windows of one session: every distinct window is preprocessed once, whichever tasks use it.

A recipe's chain runs up to its normalisation on groups of neighbouring windows, so memory is bounded by `CHUNK_BYTES` and does not grow with
channels or windows. The normalisation is fitted on the training windows of each fold (`fit_normaliser`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from decodehub.core.space import scratch_array

from .context_filter import context_filter
from .ieeg.recording import Recording
from .multi_stft import multi_stft, stft_plan
from .recipes import Recipe, Stage
from .waveform import Montage, apply_montage, filter_signal, harmonics, laplacian_montage, resample

CHUNK_BYTES = 1 << 27  # float64 values that are filtered at a time
CONTEXT_SPAN_S = 30.0  # the same where windows have a context, which comes on top
SPAN_S = 60.0  # longest piece of a recording that is read at a time, but for margins
MARGIN_S = 20.0  # what "recording" filters see on either side of a piece: their response has decayed by 1e-10 there
RAM_BYTES = 2 << 30  # larger features go to a file
MOMENT_BYTES = 1 << 21  # windows that are summed at a time


class Windows(NamedTuple):
    """The distinct windows of several tasks.

    Attributes:
        first: (n,) int64 ascending, first sample of each window.
        rows: for each task, (n_task,) int64: row in `first` of each of its windows.
        n_times: samples a window.
    """

    first: np.ndarray
    rows: dict[str, np.ndarray]
    n_times: int


class Features(NamedTuple):
    """What a chain gives before its normalisation.

    Attributes:
        values: (n, C, frames, bins) or (n, C, T) float32, in the unit of the recording; a memory map where it is large.
        ch_names: C names that are left. sfreq: in Hz, of the last axis if that is time.
    """

    values: np.ndarray
    ch_names: tuple[str, ...]
    sfreq: float


def distinct_windows(recording: Recording, starts_s: Mapping[str, np.ndarray], recipe: Recipe) -> Windows:
    """Cut the windows of several tasks and find those that are the same samples.

    Args:
        recording: of the session.
        starts_s: for each task, (n_task,) window starts in seconds.
        recipe: says length and slicing.

    Raises:
        ValueError: a window lies outside of the recording (task, row and time are named).
    """
    bounds = {}
    n_times = round(recipe.window_s * recording.sfreq)
    for task, starts in starts_s.items():
        first = np.array([recording.window_bounds(float(s), recipe.window_s, recipe.slicing)[0] for s in starts], dtype=np.int64)  # type: ignore[arg-type]
        if len(bad := np.flatnonzero((first < 0) | (first + n_times > recording.n_samples))):
            raise ValueError(
                f"{recording.recording_id}, task {task}: {len(bad)} windows are outside of the recording (0 to {recording.duration_s:.3f} s), "
                f"the first is row {bad[0]} at {float(starts[bad[0]]):.3f} s"
            )
        bounds[task] = first
    every = np.unique(np.concatenate(list(bounds.values()))) if bounds else np.empty(0, dtype=np.int64)
    return Windows(every, {task: np.searchsorted(every, first) for task, first in bounds.items()}, n_times)


def extract(recipe: Recipe, recording: Recording, first: np.ndarray, *, folder: Path | None = None) -> Features:
    """Run a chain, but for its normalisation, over windows of a recording.

    Args:
        recipe: what to do.
        recording: of the session.
        first: (n,) ascending first samples, of `distinct_windows`.
        folder: on its disk lie features of more than `RAM_BYTES`, in a file without a name that goes with the array; None keeps all in memory.

    Raises:
        ValueError: a stage that this package does not know or that cannot stand where it stands; electrodes without neighbours.
        OSError: the disk has no room for the features.
    """
    plan = _plan(recipe, recording)
    sizes = (len(first), *plan.shape)
    on_disk = folder is not None and 4 * int(np.prod(sizes)) > RAM_BYTES
    values: np.ndarray = scratch_array(folder, sizes) if on_disk and folder is not None else np.empty(sizes, dtype=np.float32)
    for rows, x in _cut(plan, recording, first):
        sfreq = recording.sfreq
        for stage in plan.after:
            if stage.name == "filter":
                x = filter_signal(x, sfreq, **plan.filter_settings(stage)).astype(np.float32)
            elif stage.name == "laplacian":
                assert plan.montage is not None
                x = apply_montage(plan.montage, x)
            elif stage.name == "resample":
                x, sfreq = resample(x, sfreq, stage["sfreq"]), stage["sfreq"]
            elif stage.name == "stft":
                multi_stft(x, sfreq, stage["bands"], stage["hop_s"], log=stage["output"] == "log_magnitude", out=values[rows])
        if plan.after[-1:] and plan.after[-1].name == "stft":
            continue
        values[rows] = x
    return Features(values, plan.ch_names, plan.sfreq)


# ----------------------------------------------------------------------------------------------------------------------- normalisation


class Normaliser(NamedTuple):
    """A fitted normalisation; `shift` and `scale` broadcast over features, and are None for modes that look at one window alone."""

    mode: str
    eps: float
    shift: np.ndarray | None
    scale: np.ndarray | None

    def take(self, values: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Some windows, normalised: a copy (len(rows), C, ...) of rows of `values` (n, C, ...) float32, which may be a memory map."""
        out = np.empty((len(rows), *values.shape[1:]), dtype=np.float32)
        shift, scale = (None if v is None else np.ascontiguousarray(np.broadcast_to(v, values.shape[1:])) for v in (self.shift, self.scale))
        axis = 1 if self.mode == "sample_channel_time" else tuple(range(1, out.ndim - 1))
        for x, row in zip(out, rows):
            if shift is not None:
                np.subtract(values[row], shift, out=x)
                x /= scale
                continue
            x[...] = values[row]
            if self.mode != "none":
                x -= x.mean(axis=axis, keepdims=True)
                x /= x.std(axis=axis, keepdims=True) + np.float32(self.eps)
        return out


def fit_normaliser(stage: Stage | None, values: np.ndarray, rows: np.ndarray) -> Normaliser:
    """Fit the normalisation of a recipe on training windows.

    - "channel_frequency" (Global Norm): mean and population SD of each channel and frequency, pooled over windows and frames; SD + eps.
    - "global_robust": one median and one 1.4826 MAD for all values, from at most `reservoir` of them drawn without replacement.
    - "sample_channel_time", "sample_channel": nothing to fit; each window by itself.

    Args:
        stage: "normalise", or None for nothing.
        values: (n, C, frames, bins) or (n, C, T) float32, may be a memory map. rows: of training windows.

    Raises:
        ValueError: no window, values that are not finite, or "channel_frequency" without a frequency axis.
    """
    if stage is None:
        return Normaliser("none", 0.0, None, None)
    mode, eps = stage["mode"], float(stage.settings.get("eps", 0.0))
    if mode not in ("channel_frequency", "global_robust"):
        return Normaliser(mode, eps, None, None)
    if not len(rows):
        raise ValueError(f"normalisation {mode!r} needs training windows, found none")
    if mode == "channel_frequency":
        if values.ndim != 4:
            raise ValueError(f"normalisation {mode!r} needs features (n, C, frames, bins), found shape {values.shape}")
        shift, scale = _pooled_moments(values, rows)
        scale += eps
    else:
        flat = values[rows].reshape(-1)
        if len(flat) > stage["reservoir"]:
            flat = flat[np.random.default_rng(stage["seed"]).choice(len(flat), stage["reservoir"], replace=False)]
        shift = np.asarray(np.median(flat.astype(np.float64)))
        scale = np.maximum(1.4826 * np.median(np.abs(flat - shift)), eps)
    if not (np.isfinite(shift).all() and np.isfinite(scale).all()):
        raise ValueError("training windows hold values that are not finite: repair or drop those channels first")
    return Normaliser(mode, eps, np.asarray(shift, dtype=np.float32), np.asarray(scale, dtype=np.float32))


def _pooled_moments(values: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and population SD (C, 1, bins) of the frames of some windows (n, C, frames, bins), float64 but within blocks of windows.

    A block is small enough to stay in a cache; it is summed in float32, about a value near the mean.
    """
    shape = values.shape[1:]
    about = np.ascontiguousarray(np.broadcast_to(values[rows[0]].mean(axis=1, keepdims=True), shape)).ravel()
    total, squares = np.zeros((2, len(about)))
    size = max(1, MOMENT_BYTES // about.nbytes)
    for start in range(0, len(rows), size):
        block = values[rows[start : start + size]].reshape(-1, len(about))
        block -= about
        total += block.sum(axis=0)
        squares += np.square(block, out=block).sum(axis=0)
    count = len(rows) * shape[1]
    mean, square = (v.reshape(shape).sum(axis=1, keepdims=True) / count for v in (total, squares))
    return about.reshape(shape)[:, :1] + mean, np.sqrt(np.maximum(square - mean**2, 0))


# --------------------------------------------------------------------------------------------------------------------------- the chain


class _Plan(NamedTuple):
    before: Stage | None  # the filter that runs before windows are cut
    context_s: float  # seconds of the piece that it sees around a window; 0 without
    after: tuple[Stage, ...]
    montage: Montage | None
    ch_names: tuple[str, ...]
    sfreq: float
    shape: tuple[int, ...]
    n_times: int
    line_freq: float

    def filter_settings(self, stage: Stage) -> dict[str, Any]:
        settings = {name: value for name, value in stage.settings.items() if name != "scope"}
        if settings["notch_hz"] == "line":
            settings["notch_hz"] = harmonics(self.line_freq)
        return settings


def _plan(recipe: Recipe, recording: Recording) -> _Plan:
    if unknown := [stage.name for stage in recipe.stages if not stage.is_known]:
        raise ValueError(f"the recipe has the stages {unknown} that this package cannot run (unknown name or setting)")
    before, context_s, stages = _before_windows(recipe)
    ch_names, sfreq, n_times, montage = tuple(recording.ch_names), float(recording.sfreq), round(recipe.window_s * recording.sfreq), None
    shape: tuple[int, ...] | None = None
    length = n_times
    for i, stage in enumerate(stages):
        if shape is not None or stage.name in ("normalise", "context", "crop"):
            raise ValueError(f"stage {stage.name!r} cannot stand at place {i} of {[s.name for s in recipe.stages]}")
        if stage.name == "filter" and stage["scope"] != "window":
            raise ValueError(f"a filter of scope {stage['scope']!r} must come before all other stages")
        if stage.name == "laplacian":
            if montage is not None:
                raise ValueError("the chain has two Laplacians; the second would be of contacts that are no neighbours")
            montage = laplacian_montage(ch_names, stage["drop_isolated"])
            ch_names = tuple(ch_names[k] for k in montage.kept)
        elif stage.name == "resample":
            length = resample(np.zeros((1, length), dtype=np.float32), sfreq, stage["sfreq"]).shape[-1]
            sfreq = stage["sfreq"]
        elif stage.name == "stft":
            plan = stft_plan(length, sfreq, stage["bands"], float(stage["hop_s"]))
            shape = (plan.n_frames, len(plan.frequencies))
    return _Plan(
        before, context_s, tuple(stages), montage, ch_names, sfreq, (len(ch_names), *(shape or (length,))), n_times, recording.line_freq
    )


def _before_windows(recipe: Recipe) -> tuple[Stage | None, float, list[Stage]]:
    """The filter that runs before windows are cut, the seconds of context that it sees, and the stages that come after."""
    stages = list(recipe.stages)
    if stages[-1].name == "normalise":
        stages.pop()
    names = [stage.name for stage in stages]
    if "context" in names or "crop" in names:
        if names[:3] != ["context", "filter", "crop"] or "context" in names[3:] or "crop" in names[3:] or stages[1]["scope"] != "context":
            raise ValueError(f"a context needs the stages context, filter (scope 'context'), crop at the start of the chain, found {names}")
        context_s = stages[0]["seconds"]
        if context_s < recipe.window_s:
            raise ValueError(f"a context of {context_s} s is shorter than the window of {recipe.window_s} s")
        return stages[1], context_s, stages[3:]
    if stages and stages[0].name == "filter" and stages[0]["scope"] == "recording":
        return stages[0], 0.0, stages[1:]
    return None, 0.0, stages


def _cut(plan: _Plan, recording: Recording, first: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Groups of windows as (n, C, T), filtered before cutting where the chain says so."""
    n, channels = plan.n_times, len(recording.ch_names)
    if plan.context_s:
        yield from _cut_contexts(plan, recording, first)
        return
    limit = max(1, CHUNK_BYTES // (8 * channels * n))
    for rows in _groups(first, limit, int(SPAN_S * recording.sfreq)):
        starts = first[rows]
        low, high = int(starts[0]), int(starts[-1]) + n
        if plan.before is None:
            piece = recording.read(low, high)
        else:
            margin = int(MARGIN_S * recording.sfreq)
            begin, end = max(0, low - margin), min(recording.n_samples, high + margin)
            whole = filter_signal(recording.read(begin, end), recording.sfreq, **plan.filter_settings(plan.before))
            piece = whole[:, low - begin : high - begin].astype(np.float32)
        yield rows, np.stack([piece[:, s - low : s - low + n] for s in starts])


def _cut_contexts(plan: _Plan, recording: Recording, first: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    assert plan.before is not None
    n, channels, sfreq = plan.n_times, len(recording.ch_names), float(recording.sfreq)
    width = round(plan.context_s * sfreq)
    before = (width - n) // 2
    settings = plan.filter_settings(plan.before)
    # One pass over the stretch does for all its windows, unless the chain has another filter than the reference's.
    shared = settings["highpass_hz"] is not None and settings["notch_phase"] == "causal"
    linear = {**{k: v for k, v in settings.items() if k != "notch_phase"}, "notch_hz": tuple(float(f) for f in settings["notch_hz"])}
    limit = max(1, CHUNK_BYTES // (8 * channels * (n if shared else width)))
    for rows in _groups(first, limit, int(CONTEXT_SPAN_S * sfreq)):
        starts = first[rows] - before
        stretch = _reflected(recording, int(starts[0]), int(starts[-1]) + width)
        starts = starts - starts[0]
        if shared:
            cut = context_filter(stretch, starts, width, before, n, sfreq, **linear)
        else:
            cut = filter_signal(np.stack([stretch[:, s : s + width] for s in starts]), sfreq, **settings)[..., before : before + n]
        yield rows, cut.astype(np.float32)


def _groups(first: np.ndarray, limit: int, span: int) -> Iterator[slice]:
    start = 0
    for i in range(1, len(first) + 1):
        if i == len(first) or i - start >= limit or first[i] - first[start] > span:
            if i > start:
                yield slice(start, i)
            start = i


def _reflected(recording: Recording, low: int, high: int) -> np.ndarray:
    """(C, high - low) samples, reflected at the ends of the recording where they go beyond it."""
    begin, end = max(0, low), min(recording.n_samples, high)
    data = recording.read(begin, end)
    if max(begin - low, high - end) >= data.shape[1]:
        raise ValueError(
            f"{recording.recording_id}: {recording.duration_s:.1f} s are too short to be reflected to {(high - low) / recording.sfreq:g} s around a window"
        )
    return np.pad(data, ((0, 0), (begin - low, high - end)), mode="reflect")
