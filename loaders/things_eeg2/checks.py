"""Cheap checks of THINGS-EEG2 data: is this what it is said to be? Each gives `Finding`s that say what was expected, found, and the remedy.

`check_epochs` runs all that need nothing but the epochs; the others take what a caller has besides (lists of concepts, a folder of
downloads). Recordings and event logs are checked in `run_checks`. The design and the faults that were met in the field: A. T. Gifford et
al., NeuroImage 264 (2022) 119754, and the published code built on it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np

from decodehub.core.files import POINTER_MAX_BYTES, pointer_kind, sha256_file

from . import (
    CHANNELS,
    POSTERIOR_17,
    POSTERIOR_17_OSF,
    RECORDING_ORDER,
    TEST_IMAGES,
    TRAIN_IMAGES,
    Design,
    Epochs,
    Partition,
    design_of,
)
from .signal import Summary, axis_roles, ripple, spatial_roughness, summarise, trial_sample, whiteness

Level = Literal["ok", "warning", "error"]

KNOWN_TIMES = {250.0: (250, 0.0), 100.0: (100, -0.2)}  # by sampling rate: samples and first time of the models' and of the OSF files
IMAGES: dict[Partition, int] = {"train": TRAIN_IMAGES, "test": TEST_IMAGES}
ORDERS = {
    "that of the models": (CHANNELS, POSTERIOR_17),
    "that of the recordings": (RECORDING_ORDER,),
    "that of the OSF files": (POSTERIOR_17_OSF,),
}
# Official files: bytes and SHA-256, of NEMAR nm000232 version 1.1.0 and OSF 3jk45.
KNOWN_FILES = {
    "test_images.zip": (8_129_948, "57ed472cd88f68ccf88e9ecbadf3da91ac222d8548684d5680be95bcf47ec14a"),
    "training_images.zip": (655_039_265, "dc9cc627141ba230641f729f84b80eb01f0a963d288c971eefcf76b4a7581f3a"),
    "image_metadata.npy": (656_579, "681a75633c59a356a66ca19a277429c1d48a00a98405ff96e53ee0b9f00b397c"),
}

MIN_RELIABILITY = 0.5  # split-half correlation of an axis whose levels differ; real repetitions taken for channels: 0.41
MIN_SHARE = 0.2  # power of what channels do not share over that of what they share; real repetitions: 0.14, simulated channels: 0.4 to 5
MIN_SIGNAL = 0.5  # split-half correlation of the grand mean below which its axes cannot be told apart; real data: 0.98
RIPPLE = (2.0, 5.0)  # below: none; below: weak. No ripple: 1; real data: above 20
EVENNESS = (0.3, 0.6)  # below: not whitened; below: partly. Identity: 1
MAX_CHANCE, MIN_CHANNELS = 0.01, 32  # share of random channel orders as smooth as the names' own; channels that this is asked of
SCALE_VOLT, SCALE_UNIT, SCALE_MICROVOLT = 1e-3, (0.3, 3.0), 3.0  # standard deviation of noise; MVNN data have about 1


@dataclass(frozen=True)
class Finding:
    """What a check found.

    Attributes:
        check: its name.
        level: "ok", "warning" (may be meant; look at it) or "error" (numbers from these data would be wrong).
        expected, found: in words and numbers.
        remedy: what to do; empty when ok.
    """

    check: str
    level: Level
    expected: str
    found: str
    remedy: str = ""


def check_epochs(epochs: Epochs, *, design: Design | None = None) -> list[Finding]:
    """All checks that need nothing but the epochs; reads every value once (4 GB for the training part of a subject).

    Args:
        epochs: of one subject and partition.
        design: images and repetitions; by default those of the experiment, and for simulated epochs what their settings say.
    """
    findings = check_shape(epochs)
    if any(f.level == "error" for f in findings if f.check == "shape"):
        return findings  # nothing else would make sense
    findings += [*check_times(epochs), *check_channel_names(epochs), *check_counts(epochs, design), *check_images(epochs, design)]
    findings += check_sessions(epochs)
    summary, sample = summarise(epochs), trial_sample(epochs.data)
    findings += [*check_values(epochs, summary), *check_axis_roles(epochs, summary, sample), *check_scale(epochs, sample)]
    return [*findings, *check_ripple(epochs, summary), *check_positions(epochs, summary)]


def check_shape(epochs: Epochs) -> list[Finding]:
    """Rank, sizes, dtype, and whether the repetition and channel axes look exchanged."""
    data, remedy = epochs.data, "give (images, repetitions, channels, times); load with decodehub.loaders.things_eeg2.read"
    expected = "4 axes: images, repetitions, channels (63 or 17), times"
    if data.ndim != 4 or not data.size:
        return [Finding("shape", "error", expected, f"shape {data.shape}", remedy)]
    n, r, c, t = data.shape
    found = f"{n} images, {r} repetitions, {c} channels, {t} times"
    findings = [Finding("shape", "ok", expected, found)]
    if r in (63, 17) and c not in (63, 17):
        findings = [Finding("shape", "error", expected, f"{found}: axes 1 and 2 look swapped", "exchange axes 1 and 2 of the array")]
    elif len(epochs.ch_names) not in (0, c):
        findings = [Finding("shape", "error", f"as many channels as names ({len(epochs.ch_names)})", found, remedy)]
    elif len(epochs.images) != n:
        findings = [
            Finding("shape", "error", f"as many rows as image numbers ({len(epochs.images)})", found, "see the order of the images")
        ]
    elif c not in (63, 17):
        findings = [Finding("shape", "warning", expected, found, "models take 63 or 17 channels: select them by name")]
    level: Level = "ok" if data.dtype == np.float32 else ("warning" if data.dtype.kind == "f" else "error")
    remedy = {"ok": "", "warning": "float64 takes twice the memory, float16 has 3 digits: prepare the data again"}.get(level, "convert")
    return [*findings, Finding("dtype", level, "float32", str(data.dtype), remedy)]


def check_times(epochs: Epochs) -> list[Finding]:
    """`times` against the data and the sampling rate, and against the epochs that models take."""
    t, times = epochs.data.shape[-1], np.asarray(epochs.times)
    if len(times) != t:
        cut = "; files of one layout keep the 300 times of -0.2 to 1 s with the 250 samples of 0 to 1 s: take times[-250:]"
        remedy = "correct the times" + (cut if (len(times), t) == (300, 250) else "")
        return [Finding("times", "error", f"{t} times for {t} samples", f"{len(times)} times", remedy)]
    step = np.diff(times)
    if len(step) and not np.allclose(step, 1 / epochs.sfreq, atol=1e-2 / epochs.sfreq):
        found = f"steps of {step.min() * 1000:.3g} to {step.max() * 1000:.3g} ms"
        return [
            Finding("times", "error", f"steps of {1000 / epochs.sfreq:.3g} ms at {epochs.sfreq:g} Hz", found, "correct the times or sfreq")
        ]
    found = f"{t} samples from {times[0]:.3g} to {times[-1]:.3g} s at {epochs.sfreq:g} Hz"
    known = KNOWN_TIMES.get(float(epochs.sfreq))
    if known and t == known[0] and abs(times[0] - known[1]) < 1 / epochs.sfreq:
        return [Finding("times", "ok", "an epoch of the published layouts", found)]
    return [
        Finding(
            "times", "warning", "250 Hz, 0 to 1 s, or 100 Hz, -0.2 to 0.8 s", found, "models of the benchmark take 250 samples of 0 to 1 s"
        )
    ]


def check_channel_names(epochs: Epochs) -> list[Finding]:
    """Names present, known, and in which order."""
    names = tuple(epochs.ch_names)
    if not names:
        remedy = "state the order when preparing: --channel-order model (Fp1 ... O2), recording, or osf17 (Pz P3 P7 ... P2)"
        return [Finding("channel names", "error", "a name for every channel", "none", remedy)]
    twice = sorted({name for name in names if names.count(name) > 1})
    unknown = [name for name in names if name not in CHANNELS]
    if twice or unknown:
        found = ", ".join([*(f"{name} twice" for name in twice), *(f"unknown {name}" for name in unknown)][:8])
        return [Finding("channel names", "error", "names of the 63 electrodes, each once", found, "correct the names")]
    order = next((label for label, known in ORDERS.items() if names in known), None)
    found = f"{len(names)} names in {order or 'another'} order" if order is None else f"{len(names)} names, order: {order}"
    if order == "that of the models":
        return [Finding("channel names", "ok", "the 63 or the 17 posterior electrodes in the order of the models", found)]
    remedy = "take the channels by name (channel_indices); by position they would be mixed up"
    return [Finding("channel names", "warning", "the 63 or the 17 posterior electrodes in the order of the models", found, remedy)]


def check_counts(epochs: Epochs, design: Design | None = None) -> list[Finding]:
    """Images and repetitions against the design."""
    design = _design(epochs, design)
    images, repetitions = len(design.images), design.repetitions
    n, r = epochs.data.shape[:2]
    findings = []
    for check, expected, found, what in (("image count", images, n, "images"), ("repetition count", repetitions, r, "repetitions")):
        text = f"{expected:,} {what} ({epochs.partition})"
        if found == expected:
            findings.append(Finding(check, "ok", text, f"{found:,}"))
        elif check == "repetition count" and found == 1:
            findings.append(Finding(check, "warning", text, "1: averaged?", "whitening must be fitted on single trials, before averaging"))
        else:
            findings.append(Finding(check, "error", text, f"{found:,}", "a part is missing or from elsewhere: prepare the subject again"))
    return findings


def check_images(epochs: Epochs, design: Design | None = None) -> list[Finding]:
    """Image numbers: range of the partition, duplicates, gaps, ascending order."""
    shown, images = _design(epochs, design).images, np.asarray(epochs.images)
    expected = f"{len(shown):,} from {shown[0]:,} to {shown[-1]:,}, each once, ascending"
    values, counts = np.unique(images, return_counts=True)
    faults = []
    if (outside := np.setdiff1d(values, shown)).size:
        faults.append(f"{outside.size:,} outside the range ({some(outside)})")
    if (twice := values[counts > 1]).size:
        faults.append(f"{twice.size:,} there twice ({some(twice)})")
    if (missing := np.setdiff1d(shown, values)).size:
        faults.append(f"{missing.size:,} missing ({some(missing)})")
    if (np.diff(images.astype(np.int64)) < 0).any():
        faults.append("not ascending")
    if not faults:
        return [Finding("image numbers", "ok", expected, f"{len(images):,} as expected")]
    remedy = "train (1 to 16,540) and test (1 to 200) share their numbers: see that they are kept apart; then prepare the subject again"
    return [Finding("image numbers", "error", expected, "; ".join(faults), remedy)]


def check_sessions(epochs: Epochs) -> list[Finding]:
    """Repetitions by session: test images equally in all sessions, a training image in two of them."""
    if epochs.sessions is None:
        return []
    sessions = np.asarray(epochs.sessions)
    if sessions.shape != epochs.data.shape[:2]:
        return [Finding("sessions", "error", f"shape {epochs.data.shape[:2]}", f"shape {sessions.shape}", "prepare the subject again")]
    table = np.stack([(sessions == s).sum(axis=1) for s in range(1, 5)], axis=1)
    r = sessions.shape[1]
    if epochs.partition == "test":
        expected, good = f"{r / 4:g} repetitions in each of sessions 1 to 4", (table * 4 == r).all(axis=1)
    else:
        expected, good = f"{r / 2:g} repetitions in each of two sessions", ((table * 2 == r).sum(axis=1) == 2) & (table.sum(axis=1) == r)
    if good.all():
        return [Finding("sessions", "ok", expected, "for all images")]
    found = f"not for {np.count_nonzero(~good):,} images ({some(np.asarray(epochs.images)[~good])})"
    return [Finding("sessions", "error", expected, found, "a session is missing or counted twice: prepare the subject again")]


def check_values(epochs: Epochs, summary: Summary) -> list[Finding]:
    """NaN and infinite values, channels and epochs without any change, equal epochs."""
    findings = [Finding("finite", "ok", "finite values", "all are")]
    if summary.nonfinite:
        at = f"first at (row, repetition, channel, time) {summary.nonfinite_at}"
        findings = [
            Finding("finite", "error", "finite values", f"{summary.nonfinite:,} NaN or infinite, {at}", "prepare the subject again")
        ]
    if summary.constant_channels or summary.constant_trials:
        names = [epochs.ch_names[i] if epochs.ch_names else str(i) for i in summary.constant_channels]
        found = f"flat throughout: {', '.join(names) or 'none'}; {summary.constant_trials:,} other flat epochs"
        findings.append(
            Finding("flat channels", "error", "every channel changes in every epoch", found, "look at the recording; interpolate")
        )
    else:
        findings.append(Finding("flat channels", "ok", "every channel changes in every epoch", "none is flat"))
    if summary.duplicates:
        pairs = ", ".join(f"{a} and {b}" for a, b in summary.duplicates[:3])
        findings.append(
            Finding("equal epochs", "error", "no two epochs are equal", f"(row, repetition) {pairs}", "rows were copied: prepare again")
        )
    else:
        findings.append(Finding("equal epochs", "ok", "no two epochs are equal", "none are"))
    return findings


def check_axis_roles(epochs: Epochs, summary: Summary, sample: np.ndarray) -> list[Finding]:
    """Channels differ from each other in the same way in both halves of the images; repetitions do not."""
    roles, check = axis_roles(summary, sample, epochs.sfreq), "axis roles"
    expected = "channels that differ reliably between halves of the images, repetitions that do not"
    found = f"split-half reliability: axis 2 (channels) {roles.channels:.2f}"
    if roles.repetitions is not None:
        found += f", axis 1 (repetitions) {roles.repetitions:.2f}"
    found += f"; adjacent channels correlate {roles.neighbours:.2f} over time"
    if roles.repetitions is not None and roles.repetition_power > max(roles.channel_power, 0) and roles.repetitions > MIN_RELIABILITY:
        return [
            Finding(
                check, "error", expected, f"{found}: axis 1 behaves like channels", "exchange axes 1 and 2; see where the file comes from"
            )
        ]
    if sample.shape[2] < 2:
        return []
    if roles.signal < MIN_SIGNAL:
        found += f"; the grand mean itself has a reliability of {roles.signal:.2f}"
        return [Finding(check, "warning", expected, f"{found}: cannot tell", "too few epochs, no response, or shuffled in time")]
    if roles.channels < MIN_RELIABILITY:
        remedy = "the channels may have been averaged in place of the repetitions: take the data from their source again"
        return [Finding(check, "error", expected, f"{found}: axis 2 behaves like repetitions", remedy)]
    if roles.share < MIN_SHARE:
        found += f"; the channels are nearly alike (what they do not share has {roles.share:.2f} of the power of what they share)"
        return [
            Finding(check, "warning", expected, found, "repetitions, or channels after averaging over them? See where the file comes from")
        ]
    return [Finding(check, "ok", expected, found)]


def check_scale(epochs: Epochs, sample: np.ndarray) -> list[Finding]:
    """Unit and noise covariance: whitened data have about unit variance and an identity over channels."""
    scale, evenness = whiteness(sample)
    prepare = "whiten with MVNN, fitted on single training trials ('decodehub things prepare')"
    if scale is None:
        sd = float(sample.std())
        if sd < SCALE_VOLT:
            return [Finding("scale", "error" if epochs.unit == "MVNN" else "warning", "whitened data", f"SD {sd:.2g}: volts", prepare)]
        return [Finding("scale", "ok", "not tested with one repetition", f"SD {sd:.2g}")]
    expected, found = "noise with SD near 1 (MVNN units)", f"noise SD {scale:.3g}"
    mislabelled: Level = "error" if epochs.unit == "MVNN" else "warning"
    if scale < SCALE_VOLT:
        size = Finding("scale", mislabelled, expected, f"{found}: volts, not whitened", prepare)
    elif scale > SCALE_MICROVOLT:
        size = Finding("scale", mislabelled, expected, f"{found}: microvolts, not whitened", prepare)
    elif not SCALE_UNIT[0] <= scale <= SCALE_UNIT[1]:
        size = Finding("scale", "warning", expected, found, "data were scaled, or repetitions averaged before whitening")
    else:
        size = Finding("scale", "ok", expected, found)
    expected, found = "channel covariance of the noise near the identity (evenness 1)", f"evenness {evenness:.2f}"
    if evenness is None or sample.shape[2] < 2 or evenness >= EVENNESS[1]:
        return [size, Finding("whiteness", "ok", expected, found)]
    level: Level = "error" if epochs.unit == "MVNN" and evenness < EVENNESS[0] else "warning"
    return [size, Finding("whiteness", level, expected, f"{found}: {'not' if evenness < EVENNESS[0] else 'partly'} whitened", prepare)]


def check_ripple(epochs: Epochs, summary: Summary) -> list[Finding]:
    """The 5 Hz ripple of images every 200 ms in the grand mean."""
    result, check = ripple(summary, epochs.sfreq), "5 Hz ripple"
    expected = f"grand mean with power at 5, 10, 15, ... Hz at least {RIPPLE[1]:g} times that between"
    if result is None:
        return [Finding(check, "warning", expected, "epochs shorter than 0.6 s: not tested", "use longer epochs for this check")]
    found = f"{result.ratio:.1f} times; strongest at {result.peak:.3g} Hz"
    remedy = "images come every 200 ms: wrong onsets or sampling rate, samples shuffled in time, or another experiment"
    if result.ratio < RIPPLE[0]:
        return [Finding(check, "error", expected, found, remedy)]
    return [Finding(check, "warning", expected, found, remedy) if result.ratio < RIPPLE[1] else Finding(check, "ok", expected, found)]


def check_positions(epochs: Epochs, summary: Summary) -> list[Finding]:
    """Whether the data of neighbouring electrodes are alike when the channels have their names; finds names in the order of another file.

    The order must suit the data better than 99% of random ones, and better than any other order that files come in. Where it does not, names
    of 32 channels or more are wrong; 17 posterior channels are too alike for that, and so is a response too weak to come back in the other
    half of the images: then it cannot be told.
    """
    if (result := spatial_roughness(summary, tuple(epochs.ch_names))) is None:
        return []
    ratio, chance = result
    expected = "neighbouring electrodes with similar mean responses, more than in other orders (Geary's ratio)"
    found = f"ratio {ratio:.2f}, {chance:.1%} of random orders as low"
    rivals = {}
    for label, known in ORDERS.items():
        for names in known:
            if set(names) == set(epochs.ch_names) and names != tuple(epochs.ch_names):
                other = spatial_roughness(summary, names)
                if other is not None and other[1] <= MAX_CHANCE and other[0] < ratio:
                    rivals[label] = other[0]
    remedy = "the names may be in the order of another file: see where they come from, and take the channels by name"
    enough = len(epochs.ch_names) >= MIN_CHANNELS
    if rivals:
        best = min(rivals, key=lambda label: rivals[label])
        found += f"; the data fit the order {best} better (ratio {rivals[best]:.2f})"
    elif chance <= MAX_CHANCE:
        return [Finding("channel positions", "ok", expected, found)]
    elif not enough or _reliability(summary) < MIN_SIGNAL:
        why = "the mean response is too weak" if enough else f"{len(epochs.ch_names)} channels are too alike"
        return [Finding("channel positions", "warning", expected, f"{found}: cannot tell, {why}", remedy)]
    return [Finding("channel positions", "error" if enough else "warning", expected, found, remedy)]


def _reliability(summary: Summary) -> float:
    """Correlation of the mean responses (channels, times) to the even and the odd images."""
    first, second = (half - half.mean(axis=-1, keepdims=True) for half in summary.halves.mean(axis=1))
    power = float(np.sqrt(np.square(first).sum() * np.square(second).sum()))
    return float((first * second).sum()) / power if power > 0 else 0.0


def check_leakage(splits: Mapping[str, Iterable[str | int]], *, what: Literal["concepts", "images"] = "concepts") -> list[Finding]:
    """Whether splits share concepts or images.

    Args:
        splits: by name ("train", "validation", "test"), names or numbers that mean the same in all of them. (The image numbers of the two
            partitions do not: 154 is another image in each.)
        what: "images" shared by any two splits, and "concepts" shared with "test", are errors; concepts shared by others a warning.
    """
    sets = {name: set(values) for name, values in splits.items()}
    findings = []
    for a, b in combinations(sets, 2):
        check, expected = f"{what} of {a} and {b}", f"no {what} in common"
        common = sorted(sets[a] & sets[b], key=str)
        level: Level = "error" if what == "images" or "test" in (a, b) else "warning"
        if common:
            remedy = "split by concept, never by image or trial; a validation split that shares concepts with training overrates zero-shot models"
            findings.append(Finding(check, level, expected, f"{len(common)} ({some(common)})", remedy))
        else:
            findings.append(Finding(check, "ok", expected, "none"))
    return findings


def check_files(folder: Path) -> list[Finding]:
    """Checksums of the official files, where known, in a folder and below it."""
    findings = []
    there = (Path(base) / name for base, _, names in os.walk(folder) for name in names if name in KNOWN_FILES)  # broken links as well
    for path in sorted(there):
        size, digest = KNOWN_FILES[path.name]
        check, expected = f"file {path.name}", f"{size:,} bytes, SHA-256 {digest[:12]}..."
        head = b""
        if path.is_file():
            with path.open("rb") as f:
                head = f.read(POINTER_MAX_BYTES + 1)
        if not path.is_file() or pointer_kind(head) is not None:
            kind = "a git-annex link" if not path.is_file() else f"a {pointer_kind(head)} pointer"
            findings.append(Finding(check, "error", expected, f"{kind} without the data", "run 'datalad get' in its folder"))
        elif (found := path.stat().st_size) != size:
            findings.append(Finding(check, "error", expected, f"{found:,} bytes", "an incomplete or another download: get it again"))
        elif (hashed := sha256_file(path).removeprefix("sha256:")) != digest:
            findings.append(Finding(check, "error", expected, f"SHA-256 {hashed[:12]}...", "a damaged or another file: get it again"))
        else:
            findings.append(Finding(check, "ok", expected, "as expected"))
    return findings


def _design(epochs: Epochs, design: Design | None) -> Design:
    return design or design_of(epochs.partition, epochs.settings.get("design") if epochs.settings.get("simulated") else None)


def some(values: Sequence[object] | np.ndarray) -> str:
    """The first few of `values`, in words."""
    return ", ".join(str(v) for v in values[:5]) + (", ..." if len(values) > 5 else "")
