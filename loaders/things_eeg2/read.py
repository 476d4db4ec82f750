"""Readers for every layout in which THINGS-EEG2 circulates: `open_source` says what a folder holds and reads it as runs or epochs.

The layout is recognised by what is in the files. Only what no content can tell is taken from names: the subject (``sub-01``), the session
(``ses-02``) and the partition (``train``, ``training`` or ``test``), because training and test images share their numbers.

| layout | kind | files |
|---|---|---|
| BIDS (NEMAR nm000232), with or without ``sourcedata`` | runs | ``sub-01/ses-01/eeg/*_task-{test,train_run-01}_{eeg,events,channels}.*`` |
| raw dicts (OSF crxs4) | runs | ``sub-01/ses-01/raw_eeg_{training,test}.npy``, dict with raw_eeg_data |
| preprocessed dicts (NICE, ATM, MB2C: 63 channels, 250 Hz; OSF anp5v: 17 channels, 100 Hz) | epochs | dict with preprocessed_eeg_data |
| torch files (UBP, ATS, HyFI) | epochs | ``sub-01/{train,test}.pt``, dict with eeg |
| plain arrays (NeuroBridge) | epochs | ``sub-01/{train,test}.npy`` and ``info.json`` |
| prepared by decodehub | epochs | ``sub-01/info.json`` that says so |
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from decodehub.core.files import POINTER_MAX_BYTES, read_data

from ..restricted_pickle import load_arrays, load_torch
from . import PARTITIONS, TARGET_EVENT, TEST_IMAGES, TRAIN_IMAGES, Epochs, Partition, Run, channel_indices
from .arrays import dict_epochs, plain_epochs, torch_epochs
from .bids import bids_runs, find_runs
from .store import INFO, load_epochs, read_info

BIDS = "BIDS recordings (NEMAR nm000232)"
BIDS_ORIGINALS = "BrainVision originals of the BIDS release (sourcedata)"
RAW_DICTS = "raw dicts (OSF crxs4)"
PREPROCESSED_DICTS = "preprocessed dicts, 63 channels (NICE, ATM, MB2C)"
PREPROCESSED_DICTS_OSF = "preprocessed dicts, 17 channels at 100 Hz (OSF anp5v)"
TORCH_FILES = "torch files (UBP, ATS, HyFI)"
PLAIN_ARRAYS = "plain arrays (NeuroBridge)"
PREPARED = "prepared by decodehub"
LAYOUTS = (BIDS, BIDS_ORIGINALS, RAW_DICTS, PREPROCESSED_DICTS, PREPROCESSED_DICTS_OSF, TORCH_FILES, PLAIN_ARRAYS, PREPARED)
_PARTITION_WORDS: dict[str, Partition] = {"train": "train", "training": "train", "test": "test"}
_NOT_DATA = {".json", ".tsv", ".txt", ".md", ".csv", ".gz", ".zip", ".jpg", ".png", ".mat", ".vmrk", ".vhdr", ".eeg", ".bdf", ".edf", ".py"}


@dataclass(frozen=True, eq=False)
class Source:
    """A folder of THINGS-EEG2 files in a known layout.

    Attributes:
        path: the folder. layout: its name in words, one of `LAYOUTS`.
        kind: "runs" (continuous recordings, to be prepared) or "epochs" (arrays).
        subjects: numbers, ascending.
        simulated: whether the files say that nobody was recorded.
        design: of a simulated experiment, when the files state one (see `design_of`).
    """

    path: Path
    layout: str
    kind: Literal["runs", "epochs"]
    subjects: list[int]
    simulated: bool = False
    design: dict[str, Any] | None = None
    _runs: Callable[[int], Iterator[Run]] | None = None
    _epochs: Callable[[int, Partition], Epochs] | None = None

    @property
    def description(self) -> str:
        """The layout, and whether the data are simulated: what is noted with everything made from this source."""
        return f"{self.layout}, simulated" if self.simulated else self.layout

    def runs(self, subject: int) -> Iterator[Run]:
        """Recordings of one subject, each read when its turn comes: by session, the test run before the training runs.

        Raises:
            ValueError: the source holds epochs, has no such subject, or files are missing or damaged (all missing ones are named at once).
        """
        if self._runs is None:
            raise ValueError(f"{self.path} holds epochs ({self.layout}), not continuous recordings: use epochs()")
        self._check(subject)
        return self._runs(subject)

    def epochs(self, subject: int, partition: Partition) -> Epochs:
        """Epochs of one subject and partition.

        Raises:
            ValueError: the source holds recordings, has no such subject or partition, or a file is damaged or has other axes.
        """
        if self._epochs is None:
            raise ValueError(
                f"{self.path} holds continuous recordings ({self.layout}): make epochs of them with 'decodehub things prepare'"
            )
        self._check(subject)
        if partition not in PARTITIONS:
            raise ValueError(f"partition must be one of {PARTITIONS}, found {partition!r}")
        return self._epochs(subject, partition)

    def _check(self, subject: int) -> None:
        if subject not in self.subjects:
            raise ValueError(f"{self.path} has the subjects {self.subjects}, not {subject}")


def open_source(path: Path) -> Source:
    """Recognise the layout of a folder: a data set with ``sub-01`` and so on, at most two folders down, or the folder of one subject.

    Raises:
        FileNotFoundError: no such folder. ValueError: nothing in it is THINGS-EEG2 of a known layout; what was found is said.
    """
    path = Path(path)
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is no folder: give the data set's folder, or that of one subject")
    if (source := _open_bids(path)) is not None:
        return source
    folders = _subject_folders(path)
    if not folders:
        raise ValueError(f"{path} has no folder sub-01 or the like in it; found {_names(path)}")
    layout, contents = _identify(next(iter(folders.values())))
    subjects = list(folders)
    simulations = [value for value in contents.values() if isinstance(value, dict) and value.get("simulated") is True]
    simulated, design = bool(simulations), next((value["design"] for value in simulations if isinstance(value.get("design"), dict)), None)
    if layout == RAW_DICTS:
        return Source(path, layout, "runs", subjects, simulated, design, _runs=lambda subject: _raw_dict_runs(folders[subject], subject))
    return Source(
        path,
        layout,
        "epochs",
        subjects,
        simulated,
        design,
        _epochs=lambda subject, part: _read_epochs(folders[subject], subject, part, layout),
    )


def _open_bids(path: Path) -> Source | None:
    """A BIDS root, its ``sourcedata``, or one subject's folder in either; None when there are no runs named as in BIDS."""
    one = re.fullmatch(r"sub-(\d+)", path.name)
    root = path.parent if one else path
    originals = root.name == "sourcedata"
    runs = find_runs(root.parent if originals else root)
    if one:
        runs = [run for run in runs if run.subject == int(one.group(1))]
    if originals:
        runs = [run for run in runs if run.originals]
    if not runs:
        if any(root.glob("sub-*/ses-*/eeg/*_task-*")):
            tasks = sorted({match.group(1) for p in root.glob("sub-*/ses-*/eeg/*") if (match := re.search(r"_task-([^_]+)", p.name))})
            raise ValueError(f"{path} is a BIDS data set with the tasks {tasks}; THINGS-EEG2 has 'train' and 'test'")
        return None
    subjects = sorted({run.subject for run in runs})
    simulated, design = _simulation((root.parent if originals else root) / "dataset_description.json")
    return Source(
        path,
        BIDS_ORIGINALS if originals else BIDS,
        "runs",
        subjects,
        simulated,
        design,
        _runs=lambda subject: bids_runs([run for run in runs if run.subject == subject], originals=originals),
    )


def _simulation(file: Path) -> tuple[bool, dict[str, Any] | None]:
    """Whether a ``dataset_description.json`` says that the data are simulated, and the design that it states for them."""
    about = _json(file) if file.is_file() else {}
    if "simulated" not in str(about.get("Name", "")).lower():
        return False, None
    designs = [g["Design"] for g in about.get("GeneratedBy") or () if isinstance(g, dict) and isinstance(g.get("Design"), dict)]
    return True, designs[0] if designs else None


# ------------------------------------------------------------------------------------------------------------------------ folders, files


def _subject_folders(path: Path) -> dict[int, Path]:
    """Folder by subject number; the folder itself when it is that of a subject."""
    if match := re.fullmatch(r"sub-(\d+)", path.name):
        return {int(match.group(1)): path}
    for pattern in ("sub-*", "*/sub-*", "*/*/sub-*"):
        found = sorted(p for p in path.glob(pattern) if p.is_dir() and re.fullmatch(r"sub-\d+", p.name))
        numbers = [int(p.name[4:]) for p in found]
        if len(set(numbers)) != len(numbers):
            parents = sorted({str(p.parent) for p in found})
            raise ValueError(f"{path} holds several data sets ({', '.join(parents)}): give one of these folders")
        if found:
            return dict(sorted(zip(numbers, found)))
    return {}


def _names(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir() if not p.name.startswith("."))[:8]


def _data_files(folder: Path) -> list[Path]:
    files = (p for p in sorted(folder.rglob("*")) if (p.is_file() or p.is_symlink()) and not p.name.startswith("."))
    return [p for p in files if p.suffix.lower() not in _NOT_DATA and not p.is_dir()]


def _identify(folder: Path) -> tuple[str, dict[Path, Any]]:
    """Layout of a subject's folder, and what its data files hold (arrays are memory-mapped).

    Raises:
        ValueError: no layout, or several; a file is unreadable.
    """
    if (folder / INFO).is_file() and _json(folder / INFO).get("dataset") == "things-eeg2":
        return PREPARED, {}
    contents: dict[str, dict[Path, Any]] = {}
    strange = []
    for path in _data_files(folder):
        value = _load(path)
        if (layout := _layout_of(value, path)) is None:
            strange.append(f"{path.name} ({_describe(value)})")
        else:
            contents.setdefault(layout, {})[path] = value
    if len(contents) > 1:
        raise ValueError(f"{folder} holds several layouts ({'; '.join(sorted(contents))}): keep one of them in the folder")
    if not contents:
        raise ValueError(
            f"{folder} holds nothing of a known THINGS-EEG2 layout; found {strange[:6] or _names(folder)}. Known: {'; '.join(LAYOUTS)}"
        )
    return next(iter(contents.items()))


def _load(path: Path) -> Any:
    """Content of a data file, by its first bytes."""
    if path.is_file() and path.stat().st_size > POINTER_MAX_BYTES:
        with path.open("rb") as f:
            head = f.read(4)
        if head == b"PK\x03\x04" and path.suffix != ".npz":
            return load_torch(path)
    return load_arrays(path)


def _layout_of(value: Any, path: Path) -> str | None:
    if isinstance(value, dict) and isinstance(value.get("raw_eeg_data"), np.ndarray):
        return RAW_DICTS
    if isinstance(value, dict) and isinstance(data := value.get("preprocessed_eeg_data"), np.ndarray):
        return PREPROCESSED_DICTS_OSF if 17 in data.shape[1:3] and data.shape[-1] == 100 else PREPROCESSED_DICTS
    if isinstance(value, dict) and isinstance(value.get("eeg"), np.ndarray):
        return TORCH_FILES
    if isinstance(value, np.ndarray) and value.ndim in (4, 5) and value.dtype.kind == "f":
        return PLAIN_ARRAYS
    return None


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"array {value.shape} {value.dtype}"
    return f"dict with {sorted(map(str, value))[:6]}" if isinstance(value, dict) else type(value).__name__


def _partition_of(path: Path) -> Partition:
    """The partition that a file name states.

    Raises:
        ValueError: the name says neither or both.
    """
    found = {_PARTITION_WORDS[word] for word in re.split(r"[^a-z]+", path.stem.lower()) if word in _PARTITION_WORDS}
    if len(found) != 1:
        raise ValueError(
            f"{path}: the name does not say 'train' (or 'training') or 'test'. The image numbers of both begin at 1, so it cannot be "
            "told from the data: name the file after its partition"
        )
    return found.pop()


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_data(path).decode("utf-8-sig"))
    except UnicodeDecodeError:
        value = None
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON ({error}): fetch it again") from None
    return value if isinstance(value, dict) else {}


# --------------------------------------------------------------------------------------------------------------------------------- epochs


def _read_epochs(folder: Path, subject: int, partition: Partition, layout: str) -> Epochs:
    if layout == PREPARED:
        if (stated := read_info(folder)["subject"]) != subject:
            raise ValueError(f"{folder / INFO} says subject {stated}, the folder {folder.name}: rename the folder")
        return load_epochs(folder.parent, subject, partition)
    found, contents = _identify(folder)
    if found != layout:
        raise ValueError(f"{folder} holds {found}, other subjects of the same data set hold {layout}: keep data sets apart")
    paths = [path for path in contents if _partition_of(path) == partition]
    if len(paths) != 1:
        raise ValueError(f"{folder} has {len(paths)} files for the partition {partition!r} ({[p.name for p in paths]}); expected one")
    value = contents[paths[0]]
    if layout == TORCH_FILES:
        return torch_epochs(value, paths[0], partition, subject)
    if layout == PLAIN_ARRAYS:
        info = next((p for p in (folder / INFO, folder.parent / INFO) if p.is_file()), None)
        return plain_epochs(value, _json(info) if info else {}, paths[0], partition, subject)
    return dict_epochs(value, paths[0], partition, subject)


# ------------------------------------------------------------------------------------------------------------------------------ raw dicts


def _raw_dict_runs(folder: Path, subject: int) -> Iterator[Run]:
    """Runs of the raw dicts, one file at a time; sessions and partitions are checked before the first is read."""
    runs: dict[tuple[int, int, Partition], Path] = {}
    for path in _data_files(folder):
        if (match := re.search(r"ses-(\d+)", str(path.relative_to(folder)))) is None:
            raise ValueError(f"{path}: the path does not say the session; expected sub-{subject:02d}/ses-01/{path.name}")
        key = int(match.group(1)), PARTITIONS.index(partition := _partition_of(path)) * -1, partition
        if key in runs:
            raise ValueError(f"{path} and {runs[key]} are both {partition} of session {key[0]}: keep one of them")
        runs[key] = path
    for session in sorted({key[0] for key in runs}):
        if lacking := [name for name in PARTITIONS if not any(key[0] == session and key[2] == name for key in runs)]:
            raise ValueError(
                f"{folder} session {session} lacks the recording of {lacking}: fetch raw_eeg_training.npy and raw_eeg_test.npy"
            )
    return (raw_dict_run(runs[key], subject=subject, session=key[0], partition=key[2]) for key in sorted(runs))


def raw_dict_run(path: Path, *, subject: int, session: int, partition: Partition) -> Run:
    """One ``raw_eeg_*.npy``: a dict with raw_eeg_data (n_channels + 1, n_samples) in volts, ch_names, ch_types, sfreq.

    The last row, 'stim', is 0 but for pulses whose value is the image number, or 99999 for a catch trial. A pulse may last one sample or
    more; its first sample counts, and a value that changes without a 0 between is two events. Two events of equal value that touch cannot
    be told apart, which 200 ms between images rule out.

    Raises:
        ValueError: keys or shapes other than these, no events, image numbers outside the partition, no number in the stimulus channel.
    """
    import mne

    content = load_arrays(path)
    if not isinstance(content, dict) or not isinstance(content.get("raw_eeg_data"), np.ndarray):
        raise ValueError(f"{path} holds {_describe(content)}; expected a dict with raw_eeg_data, ch_names, ch_types, sfreq")
    data, sfreq = content["raw_eeg_data"], float(content.get("sfreq", 0))
    ch_names = [str(name) for name in content.get("ch_names", ())]
    if data.ndim != 2 or data.shape[0] != len(ch_names) or data.dtype.kind != "f" or not sfreq > 0:
        hint = ": axes look swapped" if data.ndim == 2 and data.shape[1] == len(ch_names) else ""
        raise ValueError(
            f"{path}: raw_eeg_data is {data.shape} {data.dtype} with {len(ch_names)} channel names at {sfreq:g} Hz; "
            f"expected (n_channels, n_samples) of floats, a name for each channel and the rate{hint}"
        )
    stim = channel_indices(ch_names, ["stim"])[0]
    pulses = np.array(data[stim], dtype=np.float64)
    if not np.array_equal(pulses, np.round(pulses)) or pulses.min() < 0:
        raise ValueError(f"{path}: the channel 'stim' has values that are no image numbers ({pulses.min():g} to {pulses.max():g})")
    if not pulses.any():
        raise ValueError(f"{path}: the channel 'stim' has no event")
    led = np.concatenate([[0.0], pulses])[None]  # so that a pulse on the first sample has an onset
    channel = mne.io.RawArray(led, mne.create_info(["stim"], sfreq, "stim"), verbose="error")
    events = mne.find_events(channel, "stim", consecutive=True, shortest_event=1, verbose="error")
    images = np.where(events[:, 2] == TARGET_EVENT, 0, events[:, 2]).astype(np.int64)
    highest = TRAIN_IMAGES if partition == "train" else TEST_IMAGES
    if images.max() > highest:
        raise ValueError(
            f"{path}: image number {images.max():,}, but {partition} images are 1..{highest:,}: does the name say the partition?"
        )
    signal = np.delete(data, stim, axis=0) if stim != len(data) - 1 else data[:stim]
    raw = mne.io.RawArray(
        np.array(signal, dtype=np.float64, order="C"),  # the one copy: the file itself stays mapped
        mne.create_info([name for i, name in enumerate(ch_names) if i != stim], sfreq, "eeg"),
        verbose="error",
    )
    name = f"sub-{subject:02d}/ses-{session:02d}/{path.name}"
    return Run(raw, events[:, 0].astype(np.int64) - 1, images, partition, subject, session, name)
