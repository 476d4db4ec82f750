"""How THINGS-EEG2 recordings are cut: every choice as a setting, and the cutting itself, a few trials at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal

import mne
import numpy as np

from decodehub.core.files import canonical_json

from ..mvnn import DIMS, SHRINKAGES, Dim, FitOn, Shrinkage
from . import CHANNELS, POSTERIOR_17, SFREQ, SFREQ_RAW, TEST_IMAGES, TRAIN_IMAGES, Partition, Run, channel_indices

METHOD = "things-eeg2-prepare-v1"
TRIALS_A_BLOCK = 64  # 63 channels of 1,201 float64 samples: 39 MB
MAX_BLOCK_SECONDS = 60.0  # of recording read together, where trials are sparse
_READ_SAMPLES = 50_000
_OWN_SETS = {"63": CHANNELS, "17": POSTERIOR_17}
_MAX_IMAGE = {"train": TRAIN_IMAGES, "test": TEST_IMAGES}


@dataclass(frozen=True)
class PrepareSettings:
    """Everything that changes the prepared arrays. "Released code" is what NICE, ATM, MB2C, UBP, ATS, HyFI and NeuroBridge share, which comes from
    the code of Gifford et al. (2022); "paper" is EEG-EditBench section S3.1. All that are said to agree do so where both speak.

    Attributes:
        channels: "63" (default; released code and paper: NICE, MB2C, ATM), "17" (occipital and parietal; UBP, ATS, Brain-HIVE, HyFI, NeuroBridge), or names.
        tmin, tmax: epoch in seconds, both ends included. -0.2 to 1.0: released code and paper. (-0.2 to 0.8 in Gifford's 100 Hz files.)
        baseline: "prestimulus" (default, tmin to 0, both included; released code and paper) or "none".
        sfreq_raw: sampling rate that the recordings must have; state another one if yours are already downsampled.
        resample: "epochs" (default): each epoch, after the baseline, by MNE's FFT method with its edges repeated; released code, and the order of the
            paper's sentences. MNE pads the 1,201 samples by 423 in front and removes 106 of 250 Hz, which is 424: every sample of such data, published
            files included, is of a time 1 ms later than `times` says. "raw": the whole recording first, which is the textbook advice, as epochs
            have edges and recordings none (the padding depends on the length then, and moves times by 2 ms at most).
        sfreq: rate of the result in Hz. 250: released code and paper.
        window: seconds kept, the end excluded. 0 to 1 s: released code and paper, 250 samples.
        sessions: the sessions that must be there.
        repetitions_train, repetitions_test: repetitions kept of an image a session: exactly 2 and 20 (released code; the paper's 4 and 80 over four
            sessions). Recordings hold more of some images.
        repetition_choice: which are kept. "released_code" (default): at random with `sklearn.utils.shuffle` and `repetition_seed`, anew for each image.
            "first": in the order of presentation; the paper does not say.
        repetition_seed: 20200220 in the released code.
        repetition_order: of the merged repetitions. "released_code" (default, so that arrays compare with published files element by element): one
            permutation for all images by the same shuffle. "session": session by session. Averages over all repetitions are the same.
        incomplete: images with too few repetitions: "error" (default; the released code stops too), or "drop" them.
        mvnn: what the noise covariance is fitted on. "train" (default; paper and released code), "train+test" (Gifford et al.), "off".
        mvnn_scope: "session" (default; released code): a transform for each session. "subject": one for all sessions, which the paper's "for each
            subject" could also be read as.
        mvnn_dim, mvnn_shrinkage: see `mvnn.noise_covariance`; "epoch" and "ledoit_wolf" in released code.
        mvnn_window: samples that the covariance is fitted on. "kept" (default; NICE, and the order of the paper's sentences): `window`. "epoch": tmin to
            tmax (ATM, which cuts the window out later).
        mvnn_channels: "all" (default; released code): the 63 channels are whitened and then selected from, so that 17 channels are a slice of the 63.
            "selected": only the selected channels are whitened, as for the 17 channels of Gifford's 100 Hz files. Without MVNN both are the same.
        unit: of the result when `mvnn` is "off": "V" (default; as recorded) or "uV".
    """

    channels: str | tuple[str, ...] = "63"
    tmin: float = -0.2
    tmax: float = 1.0
    baseline: Literal["prestimulus", "none"] = "prestimulus"
    sfreq_raw: float = SFREQ_RAW
    resample: Literal["epochs", "raw"] = "epochs"
    sfreq: float = SFREQ
    window: tuple[float, float] = (0.0, 1.0)
    sessions: tuple[int, ...] = (1, 2, 3, 4)
    repetitions_train: int = 2
    repetitions_test: int = 20
    repetition_choice: Literal["released_code", "first"] = "released_code"
    repetition_seed: int = 20200220
    repetition_order: Literal["released_code", "session"] = "released_code"
    incomplete: Literal["error", "drop"] = "error"
    mvnn: FitOn | Literal["off"] = "train"
    mvnn_scope: Literal["session", "subject"] = "session"
    mvnn_dim: Dim = "epoch"
    mvnn_shrinkage: Shrinkage = "ledoit_wolf"
    mvnn_window: Literal["kept", "epoch"] = "kept"
    mvnn_channels: Literal["all", "selected"] = "all"
    unit: Literal["V", "uV"] = "V"

    def __post_init__(self) -> None:
        allowed: dict[str, tuple[str, ...]] = {
            "baseline": ("prestimulus", "none"),
            "resample": ("epochs", "raw"),
            "repetition_choice": ("released_code", "first"),
            "repetition_order": ("released_code", "session"),
            "incomplete": ("error", "drop"),
            "mvnn": ("train", "train+test", "off"),
            "mvnn_scope": ("session", "subject"),
            "mvnn_dim": DIMS,
            "mvnn_shrinkage": SHRINKAGES,
            "mvnn_window": ("kept", "epoch"),
            "mvnn_channels": ("all", "selected"),
            "unit": ("V", "uV"),
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise ValueError(f"{name} must be one of {values}, found {getattr(self, name)!r}")
        if isinstance(self.channels, str) and self.channels not in _OWN_SETS:
            raise ValueError(f"channels must be '63', '17' or a tuple of names, found {self.channels!r}")
        if not self.ch_names or len(set(self.ch_names)) != len(self.ch_names):
            raise ValueError(f"channels must be different names, found {self.ch_names}")
        if self.mvnn != "off" and self.mvnn_channels == "all":
            channel_indices(CHANNELS, self.ch_names)
        if not (self.tmin <= self.window[0] < self.window[1] <= self.tmax and self.tmin < 0):
            raise ValueError(f"tmin {self.tmin} <= window {self.window} <= tmax {self.tmax} and tmin < 0 must hold")
        for seconds, sfreq in ((self.tmin, self.sfreq_raw), *((s, self.sfreq) for s in (self.tmin, *self.window))):
            if abs(seconds * sfreq - round(seconds * sfreq)) > 1e-6:
                raise ValueError(f"{seconds} s is no whole number of samples at {sfreq:g} Hz")
        if not self.sessions or len(set(self.sessions)) != len(self.sessions) or min(self.repetitions_train, self.repetitions_test) < 1:
            raise ValueError("sessions must be different numbers, and at least one repetition must be kept")

    @property
    def ch_names(self) -> tuple[str, ...]:
        """Names of the channels of the result, in order."""
        return _OWN_SETS[self.channels] if isinstance(self.channels, str) else tuple(self.channels)

    @property
    def ch_names_read(self) -> tuple[str, ...]:
        """Names of the channels that are cut from the recordings: all 63 when they are whitened together."""
        return CHANNELS if self.mvnn != "off" and self.mvnn_channels == "all" else self.ch_names

    @property
    def whitened(self) -> bool:
        """Whether the result is whitened."""
        return self.mvnn != "off"

    @property
    def unit_out(self) -> str:
        """Unit of the result: "MVNN", "V" or "uV"."""
        return "MVNN" if self.whitened else self.unit

    @property
    def times(self) -> np.ndarray:
        """(n_times,) float64: seconds of the kept samples."""
        return np.arange(round(self.window[0] * self.sfreq), round(self.window[1] * self.sfreq)) / self.sfreq

    @property
    def kept(self) -> slice:
        """The kept samples among those of the whole resampled epoch."""
        start = round((self.window[0] - self.tmin) * self.sfreq)
        return slice(start, start + len(self.times))

    def repetitions(self, partition: Partition) -> int:
        """Repetitions kept of an image of `partition` in each session."""
        return self.repetitions_train if partition == "train" else self.repetitions_test

    def as_dict(self) -> dict[str, Any]:
        """Plain values for ``info.json`` and its hash: names in place of sets of channels."""
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {"method": METHOD, **values, "channels": list(self.ch_names)}


def fingerprint(run: Run, settings: PrepareSettings) -> str:
    """Hash of what is used of a recording: samples of the channels, events, subject, session, partition.

    Raises:
        ValueError: channels are missing, the sampling rate is not `settings.sfreq_raw`, there are no events, image numbers out of range, two events
            at one sample, NaN or infinite samples.
    """
    _check(run, settings)
    picks = _picks(run, settings)
    header = {"subject": run.subject, "session": run.session, "partition": run.partition, "sfreq": float(run.raw.info["sfreq"])}
    digest = hashlib.sha256(canonical_json({**header, "ch_names": list(settings.ch_names_read)}).encode())
    digest.update(np.ascontiguousarray([run.onsets, run.images], dtype="<i8").tobytes())
    for start in range(0, run.raw.n_times, _READ_SAMPLES):
        block = run.raw.get_data(picks=picks, start=start, stop=min(start + _READ_SAMPLES, run.raw.n_times))
        sums = block.sum(axis=1)
        if not np.isfinite(sums).all():
            bad = int(np.nonzero(~np.isfinite(sums))[0][0])
            at = (start + int(np.nonzero(~np.isfinite(block[bad]))[0][:1].sum())) / run.raw.info["sfreq"]
            raise ValueError(f"{_name(run)}: channel {settings.ch_names_read[bad]} has NaN or infinite samples, the first at {at:.3f} s")
        digest.update(np.ascontiguousarray(block, dtype="<f8").tobytes())
    return "sha256:" + digest.hexdigest()


def usable_events(run: Run, settings: PrepareSettings) -> tuple[np.ndarray, np.ndarray]:
    """Onsets and images of the trials whose epoch lies in the recording, in order of time; catch trials left out.

    Returns:
        onsets: (n,) int, samples. images: (n,) int.
    """
    order = np.argsort(run.onsets, kind="stable")
    onsets, images = np.asarray(run.onsets)[order], np.asarray(run.images)[order]
    first, length = _extent(settings)
    fits = (images > 0) & (onsets + first >= 0) & (onsets + first + length <= run.raw.n_times)
    return onsets[fits], images[fits]


def iter_epochs(run: Run, settings: PrepareSettings, *, trials_a_block: int = TRIALS_A_BLOCK) -> Iterator[np.ndarray]:
    """Epochs of the usable events in blocks: cut, baseline subtracted, resampled.

    Resampling is linear, so MNE does it once, on unit impulses, and epochs are multiplied by the result: equal to `mne.Epochs.resample` on all
    epochs at once to float64 rounding, whatever the size of the blocks.

    Args:
        run: a recording that :func:`fingerprint` has accepted.
        settings: how.
        trials_a_block: bounds the memory.

    Yields:
        (up to trials_a_block, n_channels, n_times) float64 volts; channels `settings.ch_names_read`; times: `settings.window`, or the whole epoch if
        the noise covariance needs it.
    """
    onsets, _ = usable_events(run, settings)
    read = _recording(run, settings)
    sfreq = settings.sfreq if settings.resample == "raw" else settings.sfreq_raw
    if settings.resample == "raw":
        onsets = np.round(onsets * (settings.sfreq / settings.sfreq_raw)).astype(int)  # as mne.io.Raw.resample moves events
    first, length = round(settings.tmin * sfreq), round(settings.tmax * sfreq) - round(settings.tmin * sfreq) + 1
    n_baseline = -first + 1 if settings.baseline == "prestimulus" else 0
    kept = slice(None) if settings.whitened and settings.mvnn_window == "epoch" else settings.kept
    # Contiguous, and epochs as one matrix below: anything else takes numpy off its fast path.
    operator = np.ascontiguousarray(_resampling(length, sfreq, settings.sfreq)[:, kept]) if sfreq != settings.sfreq else None
    for group in _groups(onsets, trials_a_block, round(MAX_BLOCK_SECONDS * sfreq)):
        start = int(group[0]) + first
        samples = read(start, int(group[-1]) + first + length)
        epochs = np.stack([samples[:, onset + first - start : onset + first - start + length] for onset in group])
        if n_baseline:
            epochs -= epochs[:, :, :n_baseline].mean(axis=2, keepdims=True)
        if operator is None:
            yield np.ascontiguousarray(epochs[:, :, kept])
        else:
            yield (epochs.reshape(-1, length) @ operator).reshape(*epochs.shape[:2], -1)


def _name(run: Run) -> str:
    return run.name or f"subject {run.subject}, session {run.session}, {run.partition}"


def _check(run: Run, settings: PrepareSettings) -> None:
    sfreq = float(run.raw.info["sfreq"])
    if abs(sfreq - settings.sfreq_raw) > 1e-6:
        raise ValueError(
            f"{_name(run)} is sampled at {sfreq:g} Hz, expected {settings.sfreq_raw:g} Hz; if it has been downsampled before, state "
            f"sfreq_raw={sfreq:g}"
        )
    onsets, images = np.asarray(run.onsets), np.asarray(run.images)
    if onsets.shape != images.shape or onsets.ndim != 1 or not (images > 0).any():
        raise ValueError(
            f"{_name(run)} has no image events ({len(onsets)} onsets, {len(images)} image numbers): the stimulus channel is empty"
        )
    top = _MAX_IMAGE[run.partition]
    if images.min() < 0 or images.max() > top:
        raise ValueError(
            f"{_name(run)} has image numbers {images.min()}..{images.max()}; {run.partition} images are 1..{top} and 0 is a catch trial: the "
            "partition is wrong, or targets (99999) were not marked as catch trials"
        )
    if len(np.unique(onsets)) != len(onsets):
        raise ValueError(f"{_name(run)} has {len(onsets) - len(np.unique(onsets))} events at the sample of another event")


def _picks(run: Run, settings: PrepareSettings) -> list[int]:
    try:
        return channel_indices(run.raw.ch_names, settings.ch_names_read)
    except ValueError as error:
        whitened = settings.whitened and settings.mvnn_channels == "all" and settings.ch_names != CHANNELS
        hint = "; all 63 are needed to whiten before selecting (mvnn_channels='selected' whitens only those selected)" if whitened else ""
        raise ValueError(f"{_name(run)}: {error}{hint}") from None


def _extent(settings: PrepareSettings) -> tuple[int, int]:
    """First sample of an epoch relative to its onset, and its length, at the rate of the recording."""
    first = round(settings.tmin * settings.sfreq_raw)
    return first, round(settings.tmax * settings.sfreq_raw) - first + 1


def _recording(run: Run, settings: PrepareSettings) -> Callable[[int, int], np.ndarray]:
    """A function that gives samples start..stop of the channels, (n_channels, stop - start) float64."""
    picks = _picks(run, settings)
    if settings.resample == "epochs" or settings.sfreq == settings.sfreq_raw:
        return lambda start, stop: run.raw.get_data(picks=picks, start=start, stop=stop)
    # As mne.io.Raw.resample, a channel at a time: the recording is never there twice at its full rate.
    ratio = {"up": settings.sfreq, "down": settings.sfreq_raw, "npad": "auto", "pad": "auto", "window": "boxcar", "verbose": False}
    data = np.concatenate([mne.filter.resample(run.raw.get_data(picks=[pick]), **ratio) for pick in picks])

    def resampled(start: int, stop: int) -> np.ndarray:
        # Rounding may put an epoch one sample outside; the last sample then stands for the next.
        return data[:, np.clip(np.arange(start, stop), 0, data.shape[1] - 1)]

    return resampled


@lru_cache(maxsize=4)
def _resampling(length: int, sfreq_in: float, sfreq_out: float) -> np.ndarray:
    """(length, new length) float64: an epoch times this is the epoch resampled as `mne.Epochs.resample` does by default."""
    return mne.filter.resample(np.eye(length), up=sfreq_out, down=sfreq_in, npad="auto", pad="edge", window="boxcar", verbose=False)


def _groups(onsets: np.ndarray, size: int, span: int) -> Iterator[np.ndarray]:
    """Consecutive onsets, up to `size` together and within `span` samples."""
    start = 0
    while start < len(onsets):
        stop = min(start + size, int(np.searchsorted(onsets, onsets[start] + span, side="right")))
        yield onsets[start:stop]
        start = stop
