"""THINGS-EEG2 as a BIDS data set (NEMAR nm000232, doi 10.82901/nemar.nm000232): recordings with their event tables.

What is odd about the release and met here: some tables start with a byte-order mark; the sidecars call FCz the reference although its
signal is stored; ``channels.tsv`` says V whatever the recording says; the triggers in training recordings are the first two digits of the
image number, so that an image is known from ``tot_img_number`` alone; training and test images are numbered from 1 each, so that the task
in the file name says which; recordings that were not fetched are git-annex pointers of 101 to 105 bytes. The original BrainVision files
are under ``sourcedata`` and take their events from the same run of the BIDS tree.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from decodehub.core.files import POINTER_MAX_BYTES, pointer_kind, read_data

from . import IMAGES_PER_CONCEPT, TEST_IMAGES, TRAIN_IMAGES, Partition, Run

if TYPE_CHECKING:
    import mne

_RUN_FILE = re.compile(r"sub-(\d+)_ses-(\d+)_task-(train|test)(?:_run-(\d+)|_part-(\d+))?_(eeg|events|channels)\.(.+)")
_RECORDINGS = ("bdf", "vhdr", "edf", "set", "eeg")  # in order of preference; .eeg alone is a BrainVision signal that lacks its header
_UNITS = {"v": "V", "mv": "mV", "uv": "uV", "µv": "uV", "μv": "uV", "nv": "nV"}
_TYPES = {"EEG": "eeg", "EOG": "eog", "HEOG": "eog", "VEOG": "eog", "ECG": "ecg", "EMG": "emg", "MISC": "misc", "TRIG": "stim"}


class Events(NamedTuple):
    """Stimulus events of one run.

    Attributes:
        onsets: (n,) float64, seconds. samples: (n,) int64, as the table says (0-based), -1 where it does not.
        images: (n,) int64, image number within the partition, 0 for a catch trial.
    """

    onsets: np.ndarray
    samples: np.ndarray
    images: np.ndarray


@dataclass
class RunFiles:
    """The files of one run.

    Attributes:
        subject, session: numbers. partition: from the task entity. part: number of the training run, 0 for the test run.
        recordings: in the BIDS tree. originals: under ``sourcedata``. events, channels, sidecar: its tables, or None.
    """

    subject: int
    session: int
    partition: Partition
    part: int
    recordings: list[Path] = field(default_factory=list)
    originals: list[Path] = field(default_factory=list)
    events: Path | None = None
    channels: Path | None = None
    sidecar: Path | None = None

    @property
    def name(self) -> str:
        """As BIDS writes it: sub-01_ses-02_task-train_run-03."""
        run = f"_run-{self.part:02d}" if self.partition == "train" else ""
        return f"sub-{self.subject:02d}_ses-{self.session:02d}_task-{self.partition}{run}"


# -------------------------------------------------------------------------------------------------------------------------------- tables


def read_tsv(path: Path) -> list[dict[str, str]]:
    """Rows of a tab-separated table; a byte-order mark is dropped, ``.gz`` is unpacked.

    Raises:
        FileNotFoundError: no such file. ValueError: empty, a pointer, not UTF-8, or a row has another number of cells than the header.
    """
    data = read_data(path)
    try:
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig")
    except (UnicodeDecodeError, EOFError, OSError) as error:
        raise ValueError(f"{path} is not a whole UTF-8 table ({error}): fetch it again") from None
    rows = list(csv.DictReader(io.StringIO(text), delimiter="\t", quoting=csv.QUOTE_NONE))
    for i, row in enumerate(rows):
        if None in row or None in row.values():
            raise ValueError(f"{path} line {i + 2} has another number of cells than its header: the file is cut short or no table of tabs")
    return rows


def read_events(path: Path, partition: Partition) -> Events:
    """Image and target events of a run's ``events.tsv``; other trial types (rest_marker) are left out.

    Args:
        path: ``events.tsv`` or ``events.tsv.gz``.
        partition: from the task entity of the file name. Image 154 of a test run and of a training run are two images.

    Raises:
        ValueError: no image events, columns missing, an image without number, a number outside the partition, or one that contradicts
            the concept (``img_category``) beside it.
    """
    rows = read_tsv(path)
    needed = {"onset", "trial_type", "tot_img_number"}
    if not rows or not needed <= rows[0].keys():
        raise ValueError(f"{path} has the columns {sorted(rows[0]) if rows else []}; expected {sorted(needed)} among them")
    rows = [row for row in rows if row["trial_type"] in ("image", "target")]
    if not any(row["trial_type"] == "image" for row in rows):
        raise ValueError(f"{path} has no event of trial_type 'image'")
    highest = TRAIN_IMAGES if partition == "train" else TEST_IMAGES
    images, samples = np.zeros(len(rows), np.int64), np.full(len(rows), -1, np.int64)
    for i, row in enumerate(rows):
        try:
            samples[i] = int(row["sample"]) if row.get("sample", "n/a") != "n/a" else -1
            images[i] = int(row["tot_img_number"]) if row["trial_type"] == "image" else 0
        except ValueError:
            raise ValueError(
                f"{path}: image event {i + 1} has tot_img_number {row['tot_img_number']!r} and sample {row.get('sample')!r}; "
                "expected whole numbers"
            ) from None
        if row["trial_type"] == "image" and not 1 <= images[i] <= highest:
            raise ValueError(
                f"{path}: image number {images[i]}, but {partition} images are 1..{highest:,}: is this the table of another task?"
            )
        concept = (images[i] - 1) // IMAGES_PER_CONCEPT + 1 if partition == "train" else images[i]
        if images[i] and row.get("img_category", "n/a") not in ("n/a", str(concept)):
            raise ValueError(
                f"{path}: {partition} image {images[i]} belongs to concept {concept}, the table says img_category {row['img_category']}"
            )
    return Events(np.array([float(row["onset"]) for row in rows]), samples, images)


# ---------------------------------------------------------------------------------------------------------------------------- recordings


def missing_content(path: Path) -> str | None:
    """Why a recording cannot be read: not there, empty, or a git-annex or LFS pointer, with the remedy; None when its content is there.

    For a BrainVision header the signal and marker files that it names are looked at too.
    """
    target = path.readlink().name if path.is_symlink() else ""
    if path.is_file() and path.stat().st_size <= POINTER_MAX_BYTES:
        head = path.read_bytes()
        target = head.decode("utf-8", "replace") if pointer_kind(head) else target
        if pointer_kind(head) == "Git LFS":
            return f"{path} is a Git LFS pointer in place of the recording: run 'git lfs pull' in its folder"
        if not head:
            return f"{path} is empty: fetch it again"
    if size := re.search(r"SHA256E-s(\d+)--", target) if not path.is_file() or path.stat().st_size <= POINTER_MAX_BYTES else None:
        return (
            f"{path} is a git-annex pointer in place of the recording, which has {int(size.group(1)):,} bytes: "
            f"run 'datalad get {path.name}' in {path.parent}"
        )
    if not path.is_file():
        return f"{path} does not exist"
    if path.suffix == ".eeg" and not path.with_suffix(".vhdr").is_file():
        return f"{path} is a BrainVision signal without its header {path.stem}.vhdr: fetch that too"
    if path.suffix == ".vhdr":
        for name in re.findall(r"(?m)^(?:DataFile|MarkerFile)=(.+?)\s*$", path.read_text("utf-8", "replace")):
            if problem := missing_content(path.parent / name.replace("$b", path.stem)):
                return problem
    return None


def read_recording(path: Path, channels: Path | None = None) -> mne.io.BaseRaw:
    """A BrainVision, BDF, EDF or EEGLAB recording through MNE, format by content, signal in volts and not yet in memory.

    Args:
        path: the recording (of BrainVision, the ``.vhdr``).
        channels: its ``channels.tsv``. The recording's own units hold; the table's units count where the recording states none.

    Raises:
        ValueError: no content (see :func:`missing_content`), unknown format, or channel names other than the table's.
    """
    import mne

    path = Path(path)
    if (problem := missing_content(path)) is not None:
        raise ValueError(problem)
    table = {row["name"]: row for row in read_tsv(channels)} if channels is not None else {}
    reader = _reader(path)
    try:
        raw = reader(path, preload=False, verbose="error")
        stated = getattr(raw, "_orig_units", {})
        unstated = {
            name: _UNITS[u]
            for name, row in table.items()
            if stated.get(name) in ("", "n/a") and (u := row.get("units", "").lower()) in _UNITS
        }
        if unstated and reader in (mne.io.read_raw_bdf, mne.io.read_raw_edf):
            raw = reader(path, preload=False, units=unstated, verbose="error")
    except (ValueError, RuntimeError, OSError, KeyError, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read by MNE ({type(error).__name__}: {error}): is it whole?") from error
    if table:
        recorded = [name for name in raw.ch_names if name in table or raw.get_channel_types([name]) != ["stim"]]
        if sorted(recorded) != sorted(table):
            odd = sorted(set(recorded) ^ set(table))
            raise ValueError(f"{path} and {channels} name other channels: {odd[:8]} are in one of them only")
        types = {name: _TYPES[row["type"]] for name, row in table.items() if row.get("type") in _TYPES}
        raw.set_channel_types({name: kind for name, kind in types.items() if raw.get_channel_types([name]) != [kind]}, verbose="error")
    return raw


def _reader(path: Path) -> Callable:
    """MNE's function for the format that the first bytes of a recording tell."""
    import mne

    with path.open("rb") as f:
        head = f.read(64)
    if b"Brain Vision Data Exchange Header" in head or b"BrainVision Data Exchange Header" in head:
        return mne.io.read_raw_brainvision
    if head.startswith(b"\xffBIOSEMI"):
        return mne.io.read_raw_bdf
    if head.startswith(b"0       "):
        return mne.io.read_raw_edf
    if head.startswith((b"MATLAB 5.0", b"MATLAB 7", b"\x89HDF")):
        return mne.io.read_raw_eeglab
    raise ValueError(f"{path} is no BrainVision header, BDF, EDF or EEGLAB file (it starts with {head[:20]!r})")


# ---------------------------------------------------------------------------------------------------------------------------------- runs


def is_bids(root: Path) -> bool:
    """Whether a folder holds THINGS-EEG2 runs named as BIDS names them, in itself or under ``sourcedata``."""
    return bool(find_runs(root))


def find_runs(root: Path) -> list[RunFiles]:
    """The train and test runs below a BIDS root, by subject and session, the test run before the training runs as they were recorded."""
    root = Path(root)
    runs: dict[tuple[int, int, str, int], RunFiles] = {}
    for below in ("", "sourcedata/"):
        for path in sorted(root.glob(f"{below}sub-*/ses-*/eeg/*")):
            if (match := _RUN_FILE.fullmatch(path.name)) is None:
                continue
            subject, session, task, run, part, suffix, ending = match.groups()
            key = (int(subject), int(session), task, int(run or part or 0))
            partition: Partition = "train" if task == "train" else "test"
            files = runs.setdefault(key, RunFiles(key[0], key[1], partition, key[3]))
            if suffix == "eeg" and ending in _RECORDINGS:
                (files.originals if below else files.recordings).append(path)
            elif ending in ("tsv", "tsv.gz") and not below:
                setattr(files, suffix, path)
            elif suffix == "eeg" and ending == "json" and not below:
                files.sidecar = path
    for files in runs.values():
        files.recordings, files.originals = _by_preference(files.recordings), _by_preference(files.originals)
    return [runs[key] for key in sorted(runs, key=lambda key: (key[0], key[1], key[2] != "test", key[3]))]


def _by_preference(recordings: list[Path]) -> list[Path]:
    """In the order of `_RECORDINGS`, without the BrainVision signals whose header is among them."""
    headers = {path.stem for path in recordings if path.suffix == ".vhdr"}
    whole = [path for path in recordings if path.suffix != ".eeg" or path.stem not in headers]
    return sorted(whole, key=lambda path: _RECORDINGS.index(path.suffix[1:]))


def missing_runs(runs: list[RunFiles]) -> list[str]:
    """Names of runs that a session lacks although another session has them; a session of THINGS-EEG2 has one test and five training runs."""
    kinds = {(run.partition, run.part) for run in runs}
    present: dict[tuple[int, int], set] = defaultdict(set)
    for run in runs:
        present[run.subject, run.session].add((run.partition, run.part))
    return [RunFiles(*session, *kind).name for session, found in sorted(present.items()) for kind in sorted(kinds - found)]


def choose_recording(files: RunFiles, *, originals: bool) -> Path:
    """The recording of a run whose content is there: from the BIDS tree, else from ``sourcedata`` (or the other way round).

    Raises:
        ValueError: none has content, with the reason for each; or the image numbers (``events.tsv``) are missing.
    """
    if files.events is None:
        raise ValueError(
            f"{files.name}: its events.tsv is missing. The triggers in a recording do not identify images (training triggers are the first two "
            "digits of the image number): fetch the events.tsv of the same run from the BIDS release (NEMAR nm000232)"
        )
    candidates = [*files.originals, *files.recordings] if originals else [*files.recordings, *files.originals]
    problems = []
    for path in candidates:
        if (problem := missing_content(path)) is None:
            return path
        problems.append(problem)
    raise ValueError(
        "; ".join(problems) or f"{files.name} has an events.tsv but no recording ({files.events.parent}): run 'datalad get' there"
    )


def read_run(files: RunFiles, path: Path) -> Run:
    """One run: recording `path` with the events of `files`.

    Raises:
        ValueError: events and recording do not fit (times against samples, beyond the end, against the recording's own markers).
    """
    raw = read_recording(path, files.channels)
    if files.events is None:
        raise ValueError(f"{files.name}: its events.tsv is missing")
    events = read_events(files.events, files.partition)
    sfreq = raw.info["sfreq"]
    onsets = np.round(events.onsets * sfreq).astype(np.int64)
    stated = events.samples >= 0
    if stated.all():
        if (off := np.abs(events.samples - events.onsets * sfreq).max()) > 1.5:
            raise ValueError(f"{files.events}: onset and sample differ by up to {off:.0f} samples at the {sfreq:g} Hz of {path.name}")
        onsets = events.samples
    if onsets.min() < 0 or onsets.max() >= raw.n_times:
        raise ValueError(
            f"{files.events} has events up to sample {onsets.max():,}, {path} ends at {raw.n_times:,}: is the recording whole?"
        )
    # MNE counts annotations from the start of the recording's clock, which is the first sample of these formats.
    marks = np.array([a["onset"] for a in raw.annotations if str(a["description"]).startswith("Stimulus")]) * sfreq
    if len(marks):
        marks = np.sort(marks)
        nearest = np.clip(np.searchsorted(marks, onsets), 1, len(marks) - 1) if len(marks) > 1 else np.zeros(len(onsets), int)
        distance = np.minimum(np.abs(marks[nearest] - onsets), np.abs(marks[nearest - 1] - onsets))
        if (fits := float((distance <= 1.5).mean())) < 0.99:
            raise ValueError(f"{files.events} and the markers of {path} do not belong together: {fits:.0%} of the events have a marker")
    return Run(raw, onsets, events.images, files.partition, files.subject, files.session, files.name)


def bids_runs(runs: list[RunFiles], *, originals: bool = False) -> Iterator[Run]:
    """Runs of one subject, one recording at a time. That every recording is there is checked before the first is read.

    Raises:
        ValueError: recordings or event tables are missing: all are named.
    """
    paths, problems = [], []
    for files in runs:
        try:
            paths.append(choose_recording(files, originals=originals))
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ValueError(f"{len(problems)} of {len(runs)} runs cannot be read:\n" + "\n".join(problems))
    if absent := missing_runs(runs):
        warnings.warn(f"runs that other sessions have are missing: {', '.join(absent)}", stacklevel=3)
    return _read_all(runs, paths)


def _read_all(runs: list[RunFiles], paths: list[Path]) -> Iterator[Run]:
    warned = False
    for files, path in zip(runs, paths):
        run = read_run(files, path)
        if not warned and (stored := stored_reference(files.sidecar, run.raw.ch_names)):
            warnings.warn(
                f"{files.sidecar} calls {stored} the reference, yet {stored} is among the recorded channels; the recording is taken as it is",
                stacklevel=2,
            )
            warned = True
        yield run


def stored_reference(sidecar: Path | None, ch_names: list[str]) -> str | None:
    """The channel that ``eeg.json`` calls the reference although the recording holds its signal, or None."""
    if sidecar is None:
        return None
    try:
        text = str(json.loads(read_data(sidecar).decode("utf-8-sig")).get("EEGReference", ""))
    except (ValueError, AttributeError):
        raise ValueError(f"{sidecar} is not a JSON object: fetch it again") from None
    return next((name for name in ch_names if re.search(rf"\b{re.escape(name)}\b", text)), None)
