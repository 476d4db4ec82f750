"""**Simulated** intracranial recordings with effects of known size on known contacts: for demonstrations and tests, never a stand-in.

Signal of a contact, in microvolts:

    gain * (background + effects) + drift + mains

- background: Gaussian noise with power 1 / (1 + (f / f_c) ** 2) (about 1/f**2 above f_c = 1 Hz) and RMS `Settings.rms_uv`, partly shared by the contacts of an
  electrode, plus white noise of the amplifier;
- high-gamma effect: noise of 70 to 150 Hz whose envelope follows the events of a task for half a second;
- evoked effect: a damped wave after the events of a task;
- mains: 50 or 60 Hz with two harmonics, nearly the same on all contacts;
- options: slow drift, and gains that differ between contacts and change over the session.

What drives a task is its feature at each word or pause: 1 or 0 for two classes, the percentile rank of a scalar. Tasks without an effect
have none, directly; `NULL_TASKS` have none indirectly either, since their features are independent of those that have.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.fft import irfft, next_fast_len, rfftfreq

from decodehub.core.files import sha256_bytes

from .labels import EventTable, LabelTable, Rule, get_rule, label_table, strict_percentile
from .recording import DATASETS, Recording
from .simulate_events import Timing, simulate_events

MINUTES = 5.0
SESSIONS = {  # of the embedded sample
    "neuroprobev2": ("sub1_sess1", "sub3_sess0"),
    "kelesbyd2024": ("sub41_sess1", "sub41_sess2"),
    "berezutskayapippi2022": ("sub1_sess1", "sub21_sess1"),
}
SFREQ = {"neuroprobev2": 2048.0, "kelesbyd2024": 1000.0, "berezutskayapippi2022": 2048.0}
LINE_FREQ = {"neuroprobev2": 60.0, "kelesbyd2024": 60.0, "berezutskayapippi2022": 50.0}
HIGH_GAMMA = (70.0, 150.0)
NULL_TASKS = ("gpt2_surprisal", "word_head_pos", "word_part_speech", "global_flow", "local_flow", "frame_brightness")

EffectKind = Literal["high_gamma", "evoked"]


class Electrode(NamedTuple):
    """A depth electrode: stem of its contacts' names, number of contacts, Destrieux label, L/I/P of its tip and step between contacts."""

    stem: str
    contacts: int
    region: str
    tip: tuple[float, float, float]
    step: tuple[float, float, float]


# Made up, in the ways in which each hospital names electrodes; letters 2 to 4 are the region code at Cedars-Sinai.
ELECTRODES = {
    "neuroprobev2": (
        Electrode("T1bIc", 8, "G_temp_sup-Lateral", (150, 120, 125), (3.5, 0, 0)),
        Electrode("T2bHa", 8, "G_temporal_middle", (145, 135, 130), (3.5, 0, 0.5)),
        Electrode("F3cId", 8, "G_front_inf-Opercular", (150, 105, 95), (3.4, 0, -0.6)),
        Electrode("O1aIb", 8, "G_occipital_middle", (140, 110, 190), (3.3, 0.5, 1.0)),
    ),
    "kelesbyd2024": (
        Electrode("LAMY", 8, "G_temp_sup-Plan_polar", (152, 128, 120), (4.8, 0, 0)),
        Electrode("RHIP", 8, "G_oc-temp_med-Parahip", (104, 126, 146), (-4.8, 0, 0)),
        Electrode("LACC", 8, "G_and_S_cingul-Ant", (134, 90, 98), (4.6, -0.8, 0)),
        Electrode("ROFC", 8, "G_orbital", (116, 118, 88), (-4.6, -0.6, 0)),
    ),
    "berezutskayapippi2022": (
        Electrode("A", 8, "G_temp_sup-Plan_tempo", (140, 112, 145), (3.5, 0, 0)),
        Electrode("BR", 8, "G_temporal_inf", (110, 136, 135), (-3.5, 0, 0)),
        Electrode("IL", 8, "G_insular_short", (146, 108, 108), (3.5, 0, 0)),
        Electrode("OR", 8, "G_cuneus", (112, 96, 198), (-3.3, 0.4, 0.6)),
    ),
}


@dataclass(frozen=True)
class Effect:
    """One task's trace in the signal.

    Attributes:
        task: whose feature drives it.
        kind: ``"high_gamma"`` or ``"evoked"``.
        electrode: index of the electrode in the session's montage.
        contact: number of the contact on it, from 1.
        size: for the largest feature: RMS of the added high gamma over the background's RMS in that band; or peak of the evoked wave over
            the background's RMS.
    """

    task: str
    kind: EffectKind
    electrode: int
    contact: int
    size: float


# The tasks that best screening decoders find in the real data, at sizes that a linear decoder finds in some 200 windows.
DEFAULT_EFFECTS = (
    Effect("speech", "high_gamma", 0, 3, 1.5),
    Effect("speech", "high_gamma", 0, 6, 1.0),
    Effect("onset", "evoked", 1, 4, 1.0),
    Effect("volume", "high_gamma", 2, 5, 3.0),
    Effect("face_num", "high_gamma", 3, 4, 2.0),
)


@dataclass(frozen=True)
class Settings:
    """Settings of the signals.

    Attributes:
        rms_uv: RMS of the background of one contact.
        shared: share of its power that the contacts of one electrode have in common, in [0, 1).
        corner_hz: below it the spectrum is flat.
        noise_uv: RMS of the white noise.
        line_uv: amplitude of the mains on all contacts; contacts differ from it by 5 %.
        drift_uv: RMS of slow drift (below .1 Hz), of each contact its own.
        gain_sd: SD of the natural logarithm of the contacts' gains.
        gain_drift: change of the natural logarithm of all gains from the start to the end of the session.
    """

    rms_uv: float = 50.0
    shared: float = 0.4
    corner_hz: float = 1.0
    noise_uv: float = 0.3
    line_uv: float = 8.0
    drift_uv: float = 0.0
    gain_sd: float = 0.0
    gain_drift: float = 0.0

    def __post_init__(self) -> None:
        for name in ("rms_uv", "corner_hz"):
            if not 0 < getattr(self, name) < np.inf:
                raise ValueError(f"{name} must be positive, found {getattr(self, name)!r}")
        for name in ("noise_uv", "line_uv", "drift_uv", "gain_sd"):
            if not 0 <= getattr(self, name) < np.inf:
                raise ValueError(f"{name} must be 0 or more, found {getattr(self, name)!r}")
        if not 0 <= self.shared < 1 or not np.isfinite(self.gain_drift):
            raise ValueError(f"shared must be in [0, 1) and gain_drift finite, found {self.shared!r} and {self.gain_drift!r}")


@dataclass(eq=False)
class SimulatedRecording(Recording):
    """A **simulated** recording; signals are made at the first read and kept.

    Attributes:
        events: its words and pauses, from which the real rules make labels.
        effects: what was put in, and where.
        settings: of the signals.
        seed: of the simulation.
    """

    events: EventTable = field(default=None, repr=False)  # type: ignore[assignment]
    effects: tuple[Effect, ...] = ()
    settings: Settings = field(default_factory=Settings)
    seed: int = 0
    _data: np.ndarray | None = field(default=None, repr=False)

    def _read(self, start: int, stop: int) -> np.ndarray:
        if self._data is None:
            self._data = _signals(self)
        return self._data[:, start:stop]

    def source(self) -> list[Any]:
        words, pauses = (table.to_csv(index=False) for table in (self.events.words, self.events.pauses))
        drawn = sha256_bytes(f"{words}\n{pauses}".encode())
        return ["simulated", self.seed, [list(astuple(effect)) for effect in self.effects], asdict(self.settings), drawn]

    def labels(self, task: str) -> LabelTable:
        """The label table of a task by its real rule."""
        return label_table(self.events, task)

    def contact(self, effect: Effect) -> str:
        """Name of the contact that carries an effect."""
        return f"{ELECTRODES[self.dataset][effect.electrode].stem}{effect.contact}"


def simulate_recording(
    dataset: str,
    session: str,
    *,
    seed: int,
    effects: tuple[Effect, ...] = DEFAULT_EFFECTS,
    minutes: float = MINUTES,
    settings: Settings | None = None,
    timing: Timing = "auto",
) -> SimulatedRecording:
    """A **simulated** recording of one session: 32 contacts, 2048 Hz (BYD 1000 Hz), mains 60 Hz (Pippi 50 Hz).

    Equal arguments give equal bytes in any process with the same versions (and the same package ``neuroprobe``, or none). Five minutes
    take some 80 MB.

    Args:
        dataset: canonical id.
        session: as in unit ids, such as ``sub1_sess1``; any number of subject and session.
        seed: 0 or more.
        effects: what to put in; empty for none.
        minutes: length, at least 1.
        settings: of the signals.
        timing: of the words; see `simulate_events`. ``"drawn"`` gives the same on every machine.

    Raises:
        ValueError: bad arguments.
    """
    if dataset not in DATASETS:
        raise ValueError(f"dataset must be one of {', '.join(DATASETS)}, found {dataset!r}")
    if not (match := re.fullmatch(r"(sub\d+)_(sess\d+)", session)):
        raise ValueError(f"session must be like sub1_sess1, found {session!r}")
    if seed < 0 or not 1 <= minutes <= 60:
        raise ValueError(f"seed must be 0 or more and minutes 1 to 60, found {seed!r} and {minutes!r}")
    electrodes = ELECTRODES[dataset]
    for effect in effects:
        get_rule(effect.task)
        if not (0 <= effect.electrode < len(electrodes) and 1 <= effect.contact <= electrodes[effect.electrode].contacts):
            raise ValueError(f"{effect}: {dataset} has {len(electrodes)} electrodes of {electrodes[0].contacts} contacts")
    sfreq = SFREQ[dataset]
    return SimulatedRecording(
        dataset=dataset,
        recording_id=f"simulated-{dataset}-{session}-seed{seed}",
        subject=match[1],
        session=match[2],
        sfreq=sfreq,
        ch_names=tuple(f"{e.stem}{i + 1}" for e in electrodes for i in range(e.contacts)),
        n_samples=round(minutes * 60 * sfreq),
        line_freq=LINE_FREQ[dataset],
        lip=np.array([np.add(e.tip, i * np.array(e.step)) for e in electrodes for i in range(e.contacts)]),
        regions=tuple(e.region for e in electrodes for _ in range(e.contacts)),
        simulated=True,
        events=simulate_events(dataset, session, seed=seed, minutes=minutes, timing=timing),
        effects=tuple(effects),
        settings=settings or Settings(),
        seed=seed,
    )


def scaled(effects: tuple[Effect, ...], factor: float) -> tuple[Effect, ...]:
    """The same effects, `factor` times as large."""
    return tuple(replace(effect, size=effect.size * factor) for effect in effects)


# ------------------------------------------------------------------------------------------------------------------------------- signals


def _signals(recording: SimulatedRecording) -> np.ndarray:
    """(C, n_samples) float32 microvolts. Background, effects, drift, gains and mains have random streams of their own."""
    settings, n, sfreq = recording.settings, recording.n_samples, recording.sfreq
    key = zlib.crc32(f"{recording.dataset}/{recording.subject_session}".encode())
    streams = np.random.SeedSequence([recording.seed, key, 1]).spawn(5)
    background, effect, drift, gain, mains = (np.random.default_rng(s) for s in streams)
    data = np.empty((len(recording.ch_names), n), dtype=np.float32)
    spectrum = 1 / (1 + (_freqs(n, sfreq) / settings.corner_hz) ** 2)
    row = 0
    for electrode in ELECTRODES[recording.dataset]:
        common = _noise(spectrum, n, background) * np.float32(np.sqrt(settings.shared))
        for _ in range(electrode.contacts):
            own = _noise(spectrum, n, background) * np.float32(np.sqrt(1 - settings.shared))
            data[row] = settings.rms_uv * (common + own)
            data[row] += settings.noise_uv * background.standard_normal(n, dtype=np.float32)
            row += 1
    in_band = settings.rms_uv * _band_share(spectrum, n, sfreq, HIGH_GAMMA)
    for e, rng in zip(recording.effects, effect.spawn(len(recording.effects))):
        scale = in_band if e.kind == "high_gamma" else settings.rms_uv
        data[recording.ch_names.index(recording.contact(e))] += np.float32(scale) * _trace(recording, e, rng)
    if settings.gain_sd or settings.gain_drift:
        gains = np.exp(settings.gain_sd * gain.standard_normal(len(data)))
        data *= gains[:, None].astype(np.float32) * np.exp(np.linspace(0, settings.gain_drift, n, dtype=np.float32))
    if settings.drift_uv:
        slow = (_freqs(n, sfreq) < 0.1).astype(float)
        for trace in data:
            trace += settings.drift_uv * _noise(slow, n, drift)
    times = np.arange(n) / sfreq
    hum = sum(np.sin(2 * np.pi * k * recording.line_freq * times + mains.uniform(0, 2 * np.pi)) / k for k in (1, 2, 3))
    data += (settings.line_uv * (1 + 0.05 * mains.standard_normal(len(data))))[:, None].astype(np.float32) * np.asarray(
        hum, dtype=np.float32
    )
    return data


def _freqs(n: int, sfreq: float) -> np.ndarray:
    return rfftfreq(next_fast_len(n, real=True), 1 / sfreq)


def _noise(power: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """(n,) float32 Gaussian noise with this power spectrum (on the grid of `_freqs`), without mean, RMS 1 in expectation."""
    amplitude = np.sqrt(power)
    amplitude[0] = 0.0
    amplitude /= np.sqrt(np.square(amplitude).sum())
    parts = rng.standard_normal((2, len(amplitude)), dtype=np.float32)
    length = next_fast_len(n, real=True)
    series = irfft((parts[0] + 1j * parts[1]) * amplitude.astype(np.float32), length) * (length / 2)
    return series[:n].astype(np.float32)


def _band_share(power: np.ndarray, n: int, sfreq: float, band: tuple[float, float]) -> float:
    """RMS in a band over the RMS of all."""
    freqs = _freqs(n, sfreq)
    inside = (freqs >= band[0]) & (freqs <= band[1])
    return float(np.sqrt(power[inside].sum() / power[1:].sum()))


def _trace(recording: SimulatedRecording, effect: Effect, rng: np.random.Generator) -> np.ndarray:
    """(n,) float32 signal of one effect, in units of its scale."""
    n, sfreq = recording.n_samples, recording.sfreq
    starts, drive = driver(recording.events, effect.task)
    first = np.ceil(starts * sfreq).astype(int)
    shape = np.sin(np.pi * np.arange(round(0.5 * sfreq)) / round(0.5 * sfreq))
    times = np.arange(round(0.6 * sfreq)) / sfreq
    wave = np.sin(2 * np.pi * 3.0 * times) * np.exp(-0.5 * ((times - 0.2) / 0.1) ** 2)
    wave /= np.abs(wave).max()
    trace = np.zeros(n, dtype=np.float32)
    for i, a in zip(first, drive):
        if effect.kind == "evoked":
            piece = trace[i : i + len(wave)]
            piece += np.float32(a) * wave[: len(piece)].astype(np.float32)
        else:  # of overlapping events the stronger one counts, so that the rate of words does not add up
            piece = trace[i : i + len(shape)]
            np.maximum(piece, np.float32(a) * shape[: len(piece)].astype(np.float32), out=piece)
    if effect.kind == "high_gamma":
        freqs = _freqs(n, sfreq)
        trace *= _noise(((freqs >= HIGH_GAMMA[0]) & (freqs <= HIGH_GAMMA[1])).astype(float), n, rng)
    return trace * np.float32(effect.size)


def driver(events: EventTable, task: str) -> tuple[np.ndarray, np.ndarray]:
    """Starts (seconds) and drives (0 to 1) of all events of a task: 1 for the positive class, 0 for others, or the percentile rank."""
    rule: Rule = get_rule(task)
    words, pauses = events.words, events.pauses
    start = words["start_s"].to_numpy()
    if rule.kind == "speech":
        return start, np.ones(len(start))
    if rule.kind == "onset":
        return start, words["is_onset"].to_numpy(dtype=float)
    if rule.kind == "gap":
        inside = np.append(False, words["sentence"].to_numpy()[1:] == words["sentence"].to_numpy()[:-1])
        gaps = np.where(inside, words["start"].to_numpy() - np.append(0, words["end"].to_numpy()[:-1]), np.nan)
        return start, np.nan_to_num(strict_percentile(np.round(gaps, 6)))
    values = words[rule.column].to_numpy()
    if rule.kind == "classes":
        return start, (values == rule.positive).astype(float)
    both = np.append(values, pauses[rule.column].to_numpy()) if rule.column in pauses else values
    start = np.append(start, pauses["start_s"].to_numpy()) if rule.column in pauses else start
    return start, (both > 0).astype(float) if rule.kind == "count" else strict_percentile(both)
