"""Cheap checks of THINGS-EEG2 recordings and event logs against the design of the experiment (see `checks` for epochs).

A session is one test run of 4,080 events (24 of them catch trials; each of 200 images 20 or 21 times) and five training runs of 3,360
events (18 catch trials; 8,270 images twice or more), one image every 200 ms in sequences of 20. Source: A. T. Gifford et al., NeuroImage
264 (2022) 119754, and the event logs of NEMAR nm000232.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from . import (
    CHANNELS,
    PARTITIONS,
    REPETITIONS_PER_SESSION,
    SESSIONS,
    SFREQ_RAW,
    SOA,
    TRAIN_IMAGES,
    Epochs,
    Partition,
    Run,
    design_of,
)
from .checks import IMAGES, Finding, Level, some

# By partition, the events a file may hold and the catch trials among them: a run, or (training) a session's five runs in one file.
EVENTS: dict[Partition, dict[int, int]] = {"train": {3360: 18, 16800: 90}, "test": {4080: 24}}
SEQUENCE = 20  # images
FLAT_VOLT, LOUD_VOLT = 1e-8, 5e-3  # standard deviation within 10 s; scalp EEG has some 1e-5
PIECE_SECONDS = 10.0


@dataclass(frozen=True, eq=False)
class Shown:
    """What one run showed: image numbers of its events, 0 for catch trials."""

    images: np.ndarray
    partition: Partition
    session: int
    name: str


def check_run(run: Run, *, design: bool = True) -> list[Finding]:
    """One recording: events, timing, channels. Reads three pieces of 10 s of it.

    Args:
        run: a recording with its events.
        design: compare the number of events with the experiment.
    """
    return [*_check_events(run, design), *_check_timing(run), *_check_recording(run)]


def check_session_counts(shown: Iterable[Shown], *, subject: int, design: Mapping[str, Any] | None = None) -> list[Finding]:
    """All runs of a subject together: every image in the sessions and as often as the experiment, or a simulated `design`, has it."""
    counts: dict[tuple[Partition, int], np.ndarray] = defaultdict(lambda: np.zeros(TRAIN_IMAGES + 1, dtype=np.int64))
    for run in shown:
        inside = run.images[(run.images > 0) & (run.images <= TRAIN_IMAGES)]
        counts[run.partition, run.session] += np.bincount(inside, minlength=TRAIN_IMAGES + 1)
    findings = []
    for partition in PARTITIONS:
        sessions = sorted(s for name, s in counts if name == partition)
        check, experiment = f"subject {subject}, {partition}", design_of(partition, dict(design or {}))
        in_session = len(experiment.images) // (2 if partition == "train" else 1)  # half of the training images, all test images
        expected = f"{SESSIONS} sessions, each with {in_session:,} images at least {REPETITIONS_PER_SESSION[partition]} times"
        faults = [] if len(sessions) == SESSIONS else [f"sessions {sessions}"]
        for s in sessions:
            often = counts[partition, s] >= REPETITIONS_PER_SESSION[partition]
            if often.sum() != in_session:
                faults.append(f"session {s}: {often.sum():,} images")
        total = np.sum([counts[partition, s] for s in sessions], axis=0) if sessions else np.zeros(TRAIN_IMAGES + 1, dtype=np.int64)
        few = experiment.images[total[experiment.images] < experiment.repetitions]
        if few.size:
            faults.append(f"{few.size:,} images less than {experiment.repetitions} times in all ({some(few)})")
        remedy = "a run or session is missing, or another partition's: see the files"
        findings.append(Finding(check, "error" if faults else "ok", expected, "; ".join(faults) or "as expected", remedy if faults else ""))
    return findings


def check_event_log(epochs: Epochs, log: Mapping[int, np.ndarray]) -> list[Finding]:
    """Images and repetitions against what was shown.

    Args:
        epochs: of one subject and partition.
        log: by session, the image number of every event of that subject and partition; 0 for catch trials.
    """
    images, expected = np.asarray(epochs.images), "images and repetitions that the event log has"
    size = int(max([images.max(initial=0), *(int(np.max(v, initial=0)) for v in log.values())])) + 1
    shown = {s: np.bincount(np.asarray(v, dtype=np.int64), minlength=size) for s, v in log.items()}
    total = np.sum(list(shown.values()), axis=0) if shown else np.zeros(size, dtype=int)
    total[0] = 0
    faults = []
    if (never := images[total[images] == 0]).size:
        faults.append(f"{never.size:,} images never shown ({some(never)})")
    if (absent := np.setdiff1d(np.flatnonzero(total), images)).size:
        faults.append(f"{absent.size:,} shown images not there ({some(absent)})")
    if (more := images[(total[images] < epochs.data.shape[1]) & (total[images] > 0)]).size:
        faults.append(f"{more.size:,} images with more repetitions than were shown ({some(more)})")
    if epochs.sessions is not None:
        nothing = np.zeros(size, dtype=int)
        sessions = np.asarray(epochs.sessions)
        wrong = np.zeros(len(images), dtype=bool)
        for s in np.unique(sessions):
            wrong |= (sessions == s).sum(axis=1) > shown.get(int(s), nothing)[images]
        if wrong.any():
            faults.append(f"{wrong.sum()} images with more repetitions of a session than were shown in it ({some(images[wrong])})")
    if not faults:
        return [Finding("event log", "ok", expected, f"{len(images):,} images agree")]
    return [Finding("event log", "error", expected, "; ".join(faults), "another subject or partition's log, or a wrong image order")]


def read_event_log(root: Path, subject: int, partition: Partition) -> dict[int, np.ndarray]:
    """Image numbers of every event by session, from the ``events.tsv`` (also .gz) of a BIDS tree.

    Raises:
        FileNotFoundError: there is none for this subject and partition. ValueError: a table lacks a column.
    """
    log: dict[int, list[np.ndarray]] = {}
    for path in sorted(Path(root).glob(f"sub-{subject:02d}/ses-*/eeg/*_task-{partition}*_events.tsv*")):
        session = re.search(r"_ses-(\d+)_", path.name)
        table = pd.read_csv(path, sep="\t", encoding="utf-8-sig", na_values=["n/a"])  # some tables start with a byte-order mark
        if missing := {"trial_type", "tot_img_number"} - set(table.columns):
            raise ValueError(f"{path} has no column {sorted(missing)}, found {list(table.columns)}")
        rows = table[table["trial_type"].isin(["image", "target"])]
        numbers = rows["tot_img_number"].where(rows["trial_type"] == "image", 0).fillna(0).to_numpy(dtype=np.int64)
        log.setdefault(int(session[1]) if session else 0, []).append(numbers)
    if not log:
        raise FileNotFoundError(f"{root} has no events.tsv of subject {subject}, {partition}: give the root of the BIDS tree")
    return {s: np.concatenate(parts) for s, parts in log.items()}


def _check_events(run: Run, design: bool) -> list[Finding]:
    images, check = np.asarray(run.images), f"{run.name}: events"
    if len(images) != len(run.onsets):
        return [Finding(check, "error", "an image number for every onset", f"{len(images)} and {len(run.onsets)}", "see the event file")]
    findings = []
    if design:
        known = EVENTS[run.partition]
        expected = " or ".join(f"{n:,} events with {k} catch trials" for n, k in known.items())
        n, targets = len(images), int((images == 0).sum())
        found = f"{n:,} events with {targets} catch trials"
        good = known.get(n) == targets
        findings.append(Finding(check, "ok" if good else "error", expected, found, "" if good else "an incomplete recording or event file"))
    outside = np.unique(images[(images < 0) | (images > IMAGES[run.partition])])
    expected = f"image numbers 0 (catch trial) to {IMAGES[run.partition]:,} ({run.partition})"
    if outside.size:
        remedy = "numbers of the other partition, trigger values in place of image numbers, or unmarked catch trials (99999)"
        findings.append(Finding(f"{run.name}: image numbers", "error", expected, f"{outside.size} others ({some(outside)})", remedy))
    return findings


def _check_timing(run: Run) -> list[Finding]:
    onsets, sfreq, check = np.asarray(run.onsets, dtype=np.int64), float(run.raw.info["sfreq"]), f"{run.name}: onset spacing"
    expected = f"{SOA * 1000:g} ms from image to image within sequences of {SEQUENCE}"
    if len(onsets) < 2:
        return [Finding(check, "error", expected, f"{len(onsets)} onsets", "see the event file")]
    if onsets.min() < 0 or onsets.max() >= run.raw.n_times or (np.diff(onsets) <= 0).any():
        found = f"samples {onsets.min():,} to {onsets.max():,}, recording of {run.raw.n_times:,}, ascending: {(np.diff(onsets) > 0).all()}"
        return [Finding(check, "error", "ascending onsets within the recording", found, "the events are of another recording or rate")]
    gaps = np.diff(onsets) / sfreq
    within = gaps[gaps < 3 * SOA]
    regular = float(np.mean(np.abs(within - SOA) <= 0.01)) if within.size else 0.0
    found = f"median {np.median(gaps) * 1000:.4g} ms; {regular:.1%} of the gaps within a sequence are within 10 ms of it"
    good = within.size >= 0.8 * gaps.size and abs(float(np.median(within)) - SOA) <= 0.005 and regular >= 0.95
    remedy = "" if good else "onsets in other samples than the recording's, or events left out"
    return [Finding(check, "ok" if good else "error", expected, found, remedy)]


def _check_recording(run: Run) -> list[Finding]:
    raw, name = run.raw, run.name
    sfreq = float(raw.info["sfreq"])
    rate = sfreq == SFREQ_RAW
    findings = [
        Finding(f"{name}: sampling rate", "ok" if rate else "warning", f"{SFREQ_RAW:g} Hz", f"{sfreq:g} Hz", "" if rate else "resampled?")
    ]
    missing = [ch for ch in CHANNELS if ch not in raw.ch_names]
    found = f"{len(missing)} missing ({some(missing)})" if missing else "all there"
    level: Level = "error" if missing else "ok"
    findings.append(
        Finding(f"{name}: channels", level, f"the {len(CHANNELS)} electrodes by name", found, "rename the channels" if missing else "")
    )
    picks = [ch for ch in CHANNELS if ch in raw.ch_names]
    if not picks:
        return findings
    length = min(raw.n_times, round(PIECE_SECONDS * sfreq))
    starts = np.unique(np.linspace(0, raw.n_times - length, 3).astype(int))
    deviation = np.stack([raw.get_data(picks=picks, start=int(s), stop=int(s) + length).std(axis=1) for s in starts])
    flat = [ch for ch, sd in zip(picks, deviation.T) if not (sd > FLAT_VOLT).all()]
    found = f"{len(flat)} flat or not finite ({some(flat)})" if flat else "none"
    findings.append(
        Finding(
            f"{name}: flat channels", "error" if flat else "ok", "no flat channel", found, "interpolate or leave them out" if flat else ""
        )
    )
    middle = float(np.nanmedian(deviation))
    volts = FLAT_VOLT < middle < LOUD_VOLT
    remedy = "" if volts else "the file's unit is not volts: scale it on reading"
    findings.append(Finding(f"{name}: unit", "ok" if volts else "error", "volts, SD near 1e-5", f"median SD {middle:.2g}", remedy))
    return findings
