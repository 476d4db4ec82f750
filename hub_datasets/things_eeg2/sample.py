"""The embedded sample of THINGS-EEG2: **simulated** epochs in the prepared layout, made in seconds, that look like whitened recordings.

Evoked parts follow random features (no photographs are behind them); what all images evoke repeats every 200 ms, as in the stream of the
experiment; the noise is white over channels, as after the noise normalisation, because the covariance that it was drawn with is undone.
Image numbers are the first of the real ones, so the tables of the real data set fit.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from decodehub.core.code import code_hash
from decodehub.core.files import home, new_folder
from decodehub.loaders.simulate_eeg import (
    COMPONENTS,
    SimulationSettings,
    channel_positions,
    noise_autocorrelation,
    simulate_eeg,
    spatial_weights,
)
from decodehub.loaders.things_eeg2 import CHANNELS, N_TIMES, PARTITIONS, SESSIONS, SFREQ, SOA, Epochs, Partition
from decodehub.loaders.things_eeg2.store import INFO, save_epochs, subject_folder

RELEASE = "sample-simulated"
COUNTS: dict[Partition, tuple[int, int]] = {"train": (40, 4), "test": (10, 80)}  # images, repetitions
SEED = 2022
FEATURES, LATENTS = 64, 20
SNR = 0.1  # of the image-driven part against one trial's noise, before whitening
COMMON = 0.7  # RMS of the response to the stream, in units of one trial's noise, before whitening


def simulate_sample(
    *, subject: int = 1, counts: dict[Partition, tuple[int, int]] | None = None, seed: int = SEED
) -> dict[Partition, Epochs]:
    """**Simulated** single-trial epochs of one subject, by partition.

    Args:
        subject: number, from 1.
        counts: by partition, images and repetitions; default `COUNTS`. Training repetitions are split over two sessions, those of
            test images over four.
        seed: 0 or more.
    """
    counts = counts or COUNTS
    settings = SimulationSettings(
        snr=SNR,
        latent_dim=LATENTS,
        common=0.0,
        repetitions_train=counts["train"][1],
        repetitions_test=counts["test"][1],
        sfreq=SFREQ,
        n_times=N_TIMES,
    )
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    train, test = (rng.standard_normal((counts[name][0], FEATURES)) for name in PARTITIONS)
    simulated = simulate_eeg(train, test, settings, subject=subject, seed=seed, single_trials=True)
    whiten = _whitening(settings)
    common = stream_response(settings)
    made: dict[Partition, Epochs] = {}
    for name, data in zip(PARTITIONS, (simulated.train, simulated.test)):
        n, repetitions = counts[name]
        for i in range(n):  # in place, an image at a time
            data[i] = whiten @ (data[i] + common)
        made[name] = Epochs(
            data=data,
            ch_names=CHANNELS,
            sfreq=SFREQ,
            times=simulated.times,
            images=np.arange(1, n + 1, dtype=np.int32),
            partition=name,
            subject=subject,
            unit="MVNN",
            settings=_description(counts, seed),
            sessions=_sessions(name, n, repetitions),
        )
    return made


def stream_response(settings: SimulationSettings) -> np.ndarray:
    """(63, n_times) float32: the common response to images that come every 200 ms, before and after as well; RMS `COMMON`."""
    times = np.arange(settings.n_times) / settings.sfreq
    onsets = np.arange(-10, 10 + round(times[-1] / SOA)) * SOA
    bumps = np.array([c.polarity * np.exp(-0.5 * ((times[:, None] - onsets - c.latency) / c.width) ** 2).sum(axis=1) for c in COMPONENTS])
    response = spatial_weights().T @ bumps
    response -= response.mean(axis=1, keepdims=True)
    return (response * COMMON / np.sqrt(np.square(response).mean())).astype(np.float32)


def ensure_sample() -> Path:
    """Root folder of the sample in the prepared layout, made when it is not there; safe for processes that start together."""
    folder = home() / "releases" / f"things-eeg2-{RELEASE}-{_sample_code()}"
    if not (subject_folder(folder, 1) / INFO).is_file():
        with new_folder(folder, or_existing=True) as part:
            save_epochs(part, simulate_sample(), source=f"{RELEASE}: simulated, no recordings")
    return folder


def _whitening(settings: SimulationSettings) -> np.ndarray:
    """(63, 63) float32: inverse square root of the noise covariance over channels within an epoch."""
    positions = channel_positions()
    covariance = np.exp(-np.linalg.norm(positions[:, None] - positions[None], axis=-1) / settings.noise_length)
    values, vectors = np.linalg.eigh(covariance)
    # Centring an epoch over time takes its slow part away: what is left of the unit variance.
    within = 1 - noise_autocorrelation(settings).mean()
    return ((vectors / np.sqrt(values)) @ vectors.T / np.sqrt(within)).astype(np.float32)


def _sessions(partition: Partition, n: int, repetitions: int) -> np.ndarray:
    """(n, repetitions) int8: as in the experiment, a training image is seen in one of sessions 1, 2 and one of 3, 4, a test image in all."""
    if partition == "test":
        return np.tile(np.arange(repetitions) * SESSIONS // repetitions + 1, (n, 1)).astype(np.int8)
    late = np.arange(repetitions) >= repetitions / 2
    return (1 + (np.arange(n)[:, None] // 10) % 2 + 2 * late).astype(np.int8)


def _description(counts: dict[Partition, tuple[int, int]], seed: int) -> dict[str, Any]:
    return {
        "simulated": True,
        "release": RELEASE,
        "design": {name: list(size) for name, size in counts.items()},
        "seed": seed,
        "snr": SNR,
        "common": COMMON,
        "noise_normalisation": "inverse of the covariance that the noise was drawn with",
    }


@cache
def _sample_code() -> str:
    """Changes when the code that makes the sample does."""
    return code_hash(__name__).removeprefix("sha256:")[:12]
