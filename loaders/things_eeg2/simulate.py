"""**Simulated** THINGS-EEG2 recordings: continuous 63-channel EEG at 1000 Hz driven by the experiment's schedule of images.

    signal(t) = sum over events e of r[image(e)](t - onset(e)) + noise(t)

- The schedule has the statistics of the real one (:class:`ScheduleSettings`), at any size, or is the true one, read from the event tables of
  a BIDS tree (:func:`schedule_from_bids`). An image comes every 200 ms, so that responses overlap.
- r[image], some 0.9 s long: the evoked components of `simulate_eeg`, for random latent variables of the image, and the common ERP. Catch trials
  have a response of their own.
- noise: 1/f, correlated over the scalp as in `simulate_eeg`, low-passed at 100 Hz.

What the layouts of the real data look like on disk is written by `simulate_files`. Equal arguments give equal arrays; what a
run holds does not depend on the other runs. Statistics of the schedule: the 835,200 events of NEMAR nm000232 (CC BY 4.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.linalg import cholesky

from ..simulate_eeg import SimulationSettings, _correlation, _evoked_maps
from . import (
    CHANNELS,
    IMAGES_PER_CONCEPT,
    N_TIMES,
    RECORDING_ORDER,
    REPETITIONS_PER_SESSION,
    SFREQ,
    SFREQ_RAW,
    TEST_IMAGES,
    TRAIN_CONCEPTS,
    TRAIN_IMAGES,
    Epochs,
    Partition,
    channel_indices,
    train_image_number,
)
from .bids import find_runs, read_events

_SAMPLES = 1000  # of an evoked response at 1000 Hz
_TO_RECORDING = channel_indices(CHANNELS, RECORDING_ORDER)
_SOA_MS, _SOA_SHARE = (199, 200, 201), (0.264, 0.526, 0.21)  # 98 % of the onset distances within sequences
_TARGET_RATE: dict[Partition, float] = {"test": 24 / 204, "train": 90 / 840}  # sequences with a catch trial


@dataclass(frozen=True)
class ScheduleSettings:
    """Size of the experiment; the defaults are that of THINGS-EEG2.

    A session shows every test image `REPETITIONS_PER_SESSION` (20) times and every image of its half of the training concepts twice. Blocks
    are filled up to whole sequences with further repetitions (at full size: 56 test images 21 times, 170 training images 3 or 4 times).

    Attributes:
        n_train_concepts, images_per_concept, n_test_images: images shown. n_train_concepts is even: sessions 1 and 2 share the concepts out
            between them, 3 and 4 do so again.
        n_sessions: 2 or 4 in pairs. train_parts: recordings of the training images in a session.
        train_blocks, test_blocks: blocks in a session, train_blocks a multiple of train_parts.
        sequence_length: images in a sequence.
        pauses: factor on the pauses between blocks and on the lead-in (median 24 s and 12 s); gaps between sequences (median 2.2 s) stay.
    """

    n_train_concepts: int = TRAIN_CONCEPTS
    images_per_concept: int = IMAGES_PER_CONCEPT
    n_test_images: int = TEST_IMAGES
    n_sessions: int = 4
    train_parts: int = 5
    train_blocks: int = 15
    test_blocks: int = 4
    sequence_length: int = 20
    pauses: float = 1.0

    @property
    def design(self) -> dict[str, dict[str, int]]:
        """What is shown, as the simulated files state it (see `design_of`)."""
        train = {"concepts": self.n_train_concepts, "images_per_concept": self.images_per_concept}
        repetitions = {name: n * self.n_sessions for name, n in REPETITIONS_PER_SESSION.items()}
        return {
            "train": {**train, "repetitions": repetitions["train"] // 2},  # an image is shown in every other session
            "test": {"concepts": self.n_test_images, "images_per_concept": 1, "repetitions": repetitions["test"]},
        }

    def __post_init__(self) -> None:
        bounds = {
            "n_train_concepts": TRAIN_CONCEPTS,
            "images_per_concept": IMAGES_PER_CONCEPT,
            "n_test_images": TEST_IMAGES,
            "n_sessions": 98,
            "train_parts": 99,
            "train_blocks": 1000,
            "test_blocks": 1000,
            "sequence_length": 1000,
        }
        for name, most in bounds.items():
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be 1..{most}, found {getattr(self, name)!r}")
        if self.n_train_concepts % 2 or self.n_sessions % 2:
            raise ValueError(f"n_train_concepts and n_sessions must be even, found {self.n_train_concepts} and {self.n_sessions}")
        if self.train_blocks % self.train_parts:
            raise ValueError(f"train_blocks must be a multiple of train_parts ({self.train_parts}), found {self.train_blocks}")
        if self.sequence_length < 2 or not 0 <= self.pauses < np.inf:
            raise ValueError(f"sequence_length must be at least 2 and pauses 0 or more, found {self.sequence_length} and {self.pauses}")


class RunSchedule(NamedTuple):
    """What is shown in one recording.

    Attributes:
        subject, session, partition, part: part is 1..train_parts of a training run, 0 of the test run.
        samples: (n,) int64, onset of each event at 1000 Hz. images: (n,) int64, image number in the partition, 0 for a catch trial.
        block, sequence, position: (n,) int64 from 1; blocks count over the parts of a session.
        n_samples: length of the recording.
    """

    subject: int
    session: int
    partition: Partition
    part: int
    samples: np.ndarray
    images: np.ndarray
    block: np.ndarray
    sequence: np.ndarray
    position: np.ndarray
    n_samples: int


@dataclass(frozen=True)
class SignalSettings:
    """What the simulated brain and amplifier do.

    Attributes:
        snr: RMS of the image-driven response over channels and the second after onset, divided by the SD of the noise. 0 is pure noise
            (of the SD that snr 0.1 has), infinity no noise.
        evoked: the same RMS, in volts.
        latent_dim: number of latent variables of an image. common: RMS of the common ERP relative to the image-driven part.
        noise_exponent, noise_corner, noise_length, pattern_length, subject_similarity: as in `simulate_eeg.SimulationSettings`.
    """

    snr: float = 0.1
    evoked: float = 1e-6
    latent_dim: int = 32
    common: float = 2.0
    noise_exponent: float = 1.0
    noise_corner: float = 1.0
    noise_length: float = 0.06
    pattern_length: float = 0.04
    subject_similarity: float = 0.5

    def __post_init__(self) -> None:
        if not self.snr >= 0 or not 0 < self.evoked < np.inf:
            raise ValueError(f"snr must be 0 or more and evoked positive, found {self.snr!r} and {self.evoked!r}")
        self.components()  # checks the others

    def components(self) -> SimulationSettings:
        """The settings for the functions of `simulate_eeg`, responses of unit RMS at 1000 Hz."""
        return SimulationSettings(
            snr=1.0,
            latent_dim=self.latent_dim,
            sfreq=SFREQ_RAW,
            n_times=_SAMPLES,
            subject_similarity=self.subject_similarity,
            common=self.common,
            noise_exponent=self.noise_exponent,
            noise_corner=self.noise_corner,
            noise_length=self.noise_length,
            pattern_length=self.pattern_length,
        )

    @property
    def noise_sd(self) -> float:
        """SD of the noise at each channel, in volts."""
        return self.evoked / (self.snr or 0.1)

    @property
    def gain(self) -> float:
        """RMS of the image-driven response in volts: `evoked`, or 0 when snr is 0."""
        return self.evoked if self.snr else 0.0


# ------------------------------------------------------------------------------------------------------------------------------ schedules


def make_schedule(settings: ScheduleSettings, *, subject: int, seed: int) -> list[RunSchedule]:
    """The recordings of one subject in their order: sessions; in each the test run, then the training parts.

    Raises:
        ValueError: subject or seed out of range.
    """
    if subject < 1 or seed < 0:
        raise ValueError(f"subject must be 1 or more and seed 0 or more, found {subject} and {seed}")
    runs: list[RunSchedule] = []
    for session in range(1, settings.n_sessions + 1):
        pair = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(5, subject, (session - 1) // 2)))
        concepts = np.sort(np.array_split(pair.permutation(settings.n_train_concepts) + 1, 2)[(session - 1) % 2])
        train = [train_image_number(int(c), w) for c in concepts for w in range(1, settings.images_per_concept + 1)]
        shown: list[tuple[Partition, Sequence[int]]] = [("test", range(1, settings.n_test_images + 1)), ("train", train)]
        for partition, images in shown:
            stream = np.random.SeedSequence(seed, spawn_key=(6, subject, session, int(partition == "train")))
            runs += _session_runs(settings, np.array(images), partition, subject, session, np.random.default_rng(stream))
    return runs


def _session_runs(
    settings: ScheduleSettings, images: np.ndarray, partition: Partition, subject: int, session: int, rng: np.random.Generator
) -> list[RunSchedule]:
    parts, blocks = (settings.train_parts, settings.train_blocks) if partition == "train" else (1, settings.test_blocks)
    length, wanted = settings.sequence_length, len(images) * REPETITIONS_PER_SESSION[partition]
    per_part = blocks // parts
    sequences = 0
    while True:  # the fewest sequences in a block that hold all trials and the catch trials, of which there are more with more sequences
        sequences += 1
        targets = max(1, round(_TARGET_RATE[partition] * sequences * per_part))
        if (room := blocks * sequences * length - targets * parts) >= wanted:
            break
    extra = rng.choice(images, room - wanted, replace=partition == "train" or room - wanted > len(images))
    trials = iter(rng.permutation(np.concatenate([np.repeat(images, REPETITIONS_PER_SESSION[partition]), extra])))
    runs = []
    for part in range(parts):
        n = per_part * sequences * length
        catch = rng.choice(per_part * sequences, targets, replace=False) * length + rng.integers(
            1, length, targets
        )  # never the first image
        shown = np.array([0 if i else next(trials) for i in np.isin(np.arange(n), catch)])
        place = np.arange(n)
        samples = _onsets(n, length, sequences * length, settings.pauses, rng)
        runs.append(
            RunSchedule(
                subject,
                session,
                partition,
                part + 1 if partition == "train" else 0,
                samples,
                shown,
                place // (sequences * length) + 1 + part * per_part,
                place // length % sequences + 1,
                place % length + 1,
                int(samples[-1]) + 2 * _SAMPLES,
            )
        )
    return runs


def _onsets(n: int, sequence: int, block: int, pauses: float, rng: np.random.Generator) -> np.ndarray:
    """(n,) int64 onsets in ms: 199 to 201 within a sequence; gaps of 1.5 s and more between sequences (quartiles 1.9, 2.2, 2.5 s)."""
    place = np.arange(n)
    steps = rng.choice(_SOA_MS, n, p=_SOA_SHARE)
    gaps = 1532 + rng.gamma(3, 240, n)
    rests = gaps + pauses * rng.lognormal(np.log(22_000), 0.9, n)
    steps = np.where(place % sequence == 0, gaps, steps)
    steps = np.where(place % block == 0, rests, steps)
    steps[0] = 1000 + pauses * rng.uniform(9_000, 20_000)
    return np.cumsum(np.round(steps).astype(np.int64))


def schedule_from_bids(root: Path, subject: int) -> list[RunSchedule]:
    """The true event history of one subject, from the event tables of a BIDS tree (recordings are not needed).

    Raises:
        ValueError: no runs of that subject, or a table is damaged.
    """
    runs = [run for run in find_runs(root) if run.subject == subject and run.events is not None]
    if not runs:
        raise ValueError(f"{root} has no event tables of subject {subject}; expected sub-{subject:02d}/ses-01/eeg/*_events.tsv")
    schedules = []
    for run in runs:
        assert run.events is not None
        events = read_events(run.events, run.partition)
        samples = np.round(events.onsets * SFREQ_RAW).astype(np.int64)
        starts = np.concatenate([[True], np.diff(samples) > 1000])  # events of a sequence are 0.2 s apart
        sequence = np.cumsum(starts)
        position = np.arange(len(samples)) - np.flatnonzero(starts)[sequence - 1] + 1
        end = int(samples[-1]) + 2 * _SAMPLES
        schedules.append(
            RunSchedule(
                subject,
                run.session,
                run.partition,
                run.part,
                samples,
                events.images,
                np.ones_like(samples),
                sequence,
                position,
                end,
            )
        )
    return schedules


# -------------------------------------------------------------------------------------------------------------------------------- signals


@dataclass(frozen=True, eq=False)
class EvokedModel:
    """**Simulated** responses of one subject to all images.

    Attributes:
        maps: (latent_dim, 63, 1000) float32 volts at 1000 Hz, model channel order, what a latent variable evokes. erp: (63, 1000), common.
        target: (63, 1000), response to a catch trial.
        latents: by partition (n_images, latent_dim) float32, row = image number - 1.
        settings, subject, seed: what it was made with.
    """

    maps: np.ndarray
    erp: np.ndarray
    target: np.ndarray
    latents: dict[Partition, np.ndarray] = field(repr=False)
    settings: SignalSettings
    subject: int
    seed: int

    def responses(self, partition: Partition, images: np.ndarray) -> np.ndarray:
        """(n, 63, 1000) float32 volts at 1000 Hz, model channel order; 0 among `images` is a catch trial."""
        images = np.asarray(images)
        z = self.latents[partition][np.maximum(images, 1) - 1]
        out = (z @ self.maps.reshape(len(self.maps), -1)).reshape(len(z), *self.erp.shape) + self.erp
        out[images == 0] = self.target
        return out

    def truth(self, partition: Partition, images: np.ndarray) -> np.ndarray:
        """(n, 63, 250) float32 volts: the responses at 250 Hz, 0 to 1 s, model channel order."""
        return self.responses(partition, images)[:, :, :: int(SFREQ_RAW / SFREQ)][:, :, :N_TIMES]


def evoked_model(settings: SignalSettings, *, subject: int, seed: int, latents: dict[Partition, np.ndarray] | None = None) -> EvokedModel:
    """Draw the responses of one subject; the images' latent variables are the same for all subjects of a seed.

    Args:
        settings: see :class:`SignalSettings`. subject: 1 or more. seed: 0 or more.
        latents: by partition (16,540 or 200, latent_dim) of unit variance, e.g. from `simulate_eeg.latent_variables`; drawn when None.
    """
    stimuli, group = (np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(key,))) for key in (0, 1))
    own = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2, subject)))
    maps, erp = _evoked_maps(settings.components(), group, own)
    times = np.arange(_SAMPLES) / SFREQ_RAW
    fade = 0.5 * (1 + np.cos(np.pi * np.clip((times - 0.7) / 0.2, 0, 1)))  # the late positivity ends at 0.9 s
    shape = (len(CHANNELS), _SAMPLES)
    maps = (settings.gain * maps.reshape(-1, *shape) * fade).astype(np.float32)
    erp = (settings.gain * erp.reshape(shape) * fade).astype(np.float32)
    if latents is None:
        sizes: dict[Partition, int] = {"train": TRAIN_IMAGES, "test": TEST_IMAGES}
        latents = {name: stimuli.standard_normal((n, settings.latent_dim), dtype=np.float32) for name, n in sizes.items()}
    target = 2 * erp + np.einsum("k,kct->ct", stimuli.standard_normal(settings.latent_dim, dtype=np.float32), maps)
    return EvokedModel(maps, erp, target.astype(np.float32), latents, settings, subject, seed)


def record(run: RunSchedule, model: EvokedModel) -> np.ndarray:
    """The recording of one run: (63, n_samples) float32 volts at 1000 Hz in RECORDING channel order.

    Memory: the recording itself (a real training part: 1.2 million samples, 0.3 GB) and some 50 MB.
    """
    key = (3, run.subject, run.session, run.part + 1)
    rng = np.random.default_rng(np.random.SeedSequence(model.seed, spawn_key=key))
    out = noise(run.n_samples, model.settings, rng)
    for start in range(0, len(run.samples), 64):
        chunk = slice(start, start + 64)
        for sample, response in zip(run.samples[chunk], model.responses(run.partition, run.images[chunk])[:, _TO_RECORDING]):
            n = min(_SAMPLES, run.n_samples - int(sample))
            out[:, sample : sample + n] += response[:, :n]
    return out


def noise(n_samples: int, settings: SignalSettings, rng: np.random.Generator) -> np.ndarray:
    """(63, n_samples) float32 volts: 1/f noise up to 100 Hz, correlated over the scalp, in RECORDING channel order."""
    out = np.zeros((len(CHANNELS), n_samples), dtype=np.float32)
    if not settings.noise_sd:
        return out
    n = 1 << int(np.ceil(np.log2(n_samples)))
    freqs = np.fft.rfftfreq(n, 1 / SFREQ_RAW)
    power = np.maximum(freqs, settings.noise_corner) ** -settings.noise_exponent / (1 + (freqs / 100) ** 8)
    power[0] = 0
    weights = np.ones_like(power)
    weights[1:-1] = 2  # each inner frequency stands for two of the whole spectrum
    shape = np.sqrt(power * n / (power * weights).sum()).astype(np.float32)
    for row in out:
        row[:] = np.fft.irfft(np.fft.rfft(rng.standard_normal(n, dtype=np.float32)) * shape, n)[:n_samples]
    space = settings.noise_sd * cholesky(_correlation(settings.noise_length), lower=True)[_TO_RECORDING]
    for start in range(0, n_samples, 1 << 16):
        out[:, start : start + (1 << 16)] = space.astype(np.float32) @ out[:, start : start + (1 << 16)]
    return out


def simulate_epochs(model: EvokedModel, partition: Partition, images: np.ndarray, repetitions: int) -> Epochs:
    """**Simulated** epochs, as if prepared: response over the SD of the noise, plus spatially white noise of SD 1 (as after whitening).

    Args:
        model: of the subject. partition: "train" or "test". images: ascending numbers. repetitions: of each image.

    Returns:
        Epochs with data (n, repetitions, 63, 250) float32, unit "MVNN", settings that say simulated.
    """
    images = np.asarray(images, dtype=np.int64)
    key = (4, model.subject, int(partition == "train"))
    rng = np.random.default_rng(np.random.SeedSequence(model.seed, spawn_key=key))
    data = rng.standard_normal((len(images), repetitions, len(CHANNELS), N_TIMES), dtype=np.float32)
    scale = model.settings.noise_sd or model.settings.evoked
    data *= np.float32(bool(model.settings.noise_sd))
    data += model.truth(partition, images)[:, None] / np.float32(scale)
    return Epochs(
        data=data,
        ch_names=CHANNELS,
        sfreq=SFREQ,
        times=np.arange(N_TIMES) / SFREQ,
        images=images,
        partition=partition,
        subject=model.subject,
        unit="MVNN",
        settings={"simulated": True, "seed": model.seed},
        sessions=np.tile(np.arange(repetitions) % 4 + 1, (len(images), 1)),
    )
