"""Pippi (Berezutskaya et al. 2022, OpenNeuro ds003688): BIDS with BrainVision files, read through MNE a window at a time."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .reader_tools import lip_of_acpc, listed_regions, read_table, require_content
from .recording import Recording

if TYPE_CHECKING:
    import mne

START, END = "start task", "end task"
CHANNEL_TYPES = ("SEEG",)


@dataclass(eq=False)
class BrainVisionRecording(Recording):
    """A stretch of a BrainVision file; MNE gives volts, whatever the file's unit.

    Attributes:
        path: of the header.
        first: sample of the file that is sample 0.
    """

    path: Path = Path()
    first: int = 0
    _raw: Any = field(default=None, repr=False)

    @property
    def raw(self) -> mne.io.BaseRaw:
        """The file through MNE, not in memory."""
        if self._raw is None:
            self._raw = _open(self.path)
        return self._raw

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_raw": None}

    def _read(self, start: int, stop: int) -> np.ndarray:
        picks = [self.raw.ch_names.index(name) for name in self.ch_names]
        return self.raw.get_data(picks=picks, start=self.first + start, stop=self.first + stop) * 1e6


def open_pippi(root: Path, recording_id: str) -> BrainVisionRecording:
    """One recording of ds003688, from the event "start task" to "end task"; label time 0 is the former.

    Kept are good SEEG channels (``channels.tsv``). The mains frequency is that of the sidecar: 50 Hz in Utrecht, though the benchmark's own
    recipes take out 60 Hz.

    Args:
        root: of the data set.
        recording_id: ``sub-01_ses-iemu_task-film_acq-clinical_run-1``.

    Raises:
        FileNotFoundError, ValueError: a file is missing, a pointer, or not as expected.
    """
    root = Path(root)
    match = re.fullmatch(r"sub-(\d+)_ses-(\w+)_task-film_acq-(\w+)_run-(\d+)", recording_id)
    if not match:
        raise ValueError(
            f"recording {recording_id!r} of berezutskayapippi2022: expected an id like sub-01_ses-iemu_task-film_acq-clinical_run-1"
        )
    sub, ses, acq, run = match.groups()
    folder = root / f"sub-{sub}/ses-{ses}/ieeg"
    sidecar_file = folder / f"{recording_id}_ieeg.json"
    require_content(sidecar_file)
    sidecar = json.loads(sidecar_file.read_text(encoding="utf-8"))
    channels = good_channels(folder / f"{recording_id}_channels.tsv")
    begin, end = film_span(folder / f"sub-{sub}_ses-{ses}_task-film_run-{run}_events.tsv")
    lip = electrode_lip(folder, f"sub-{sub}_ses-{ses}_acq-{acq}", channels)
    path = folder / f"{recording_id}_ieeg.vhdr"
    raw = _open(path)
    sfreq = float(raw.info["sfreq"])
    if abs(sfreq - float(sidecar["SamplingFrequency"])) > 1e-6 * sfreq:
        raise ValueError(f"{path} has {sfreq:g} Hz, {sidecar_file.name} says {sidecar['SamplingFrequency']}")
    if missing := [name for name in channels if name not in raw.ch_names]:
        raise ValueError(
            f"{path} lacks {len(missing)} of {len(channels)} good SEEG channels of its channels.tsv, the first is {missing[0]!r}"
        )
    first, last = (math.ceil(round(t * sfreq, 6)) for t in (begin, end))
    if not 0 <= first < last <= raw.n_times:
        raise ValueError(f"{path} has {raw.n_times / sfreq:g} s, the task runs from {begin:g} to {end:g} s")
    return BrainVisionRecording(
        dataset="berezutskayapippi2022",
        recording_id=recording_id,
        subject=f"sub{int(sub)}",
        session=f"sess{int(run)}",
        sfreq=sfreq,
        ch_names=channels,
        n_samples=last - first,
        line_freq=float(sidecar["PowerLineFrequency"]),
        lip=lip,
        regions=listed_regions(root, recording_id, channels),
        start_s=first / sfreq - begin,
        path=path,
        first=first,
    )


def _open(path: Path) -> mne.io.BaseRaw:
    import mne

    require_content(path)
    return mne.io.read_raw_brainvision(path, preload=False, verbose="error")


def good_channels(path: Path) -> tuple[str, ...]:
    """Names of the SEEG channels whose status is not "bad", in the order of ``channels.tsv``.

    Raises:
        ValueError: there are none.
    """
    rows = read_table(path, "\t", ("name", "type", "status"))
    kept = tuple(row["name"] for row in rows if row["type"].upper() in CHANNEL_TYPES and row["status"].lower() != "bad")
    if not kept:
        raise ValueError(f"{path} has no good SEEG channel among {len(rows)} channels")
    return kept


def film_span(path: Path) -> tuple[float, float]:
    """Onsets in seconds of the events "start task" and "end task".

    Raises:
        ValueError: one of them is missing or there more than once, or they are in the wrong order.
    """
    rows = read_table(path, "\t", ("onset", "trial_type"))
    onsets = {name: [float(row["onset"]) for row in rows if row["trial_type"] == name] for name in (START, END)}
    if any(len(found) != 1 for found in onsets.values()) or onsets[START][0] >= onsets[END][0]:
        raise ValueError(f"{path}: expected one {START!r} and a later {END!r}, found them at {onsets[START]} and {onsets[END]} s")
    return onsets[START][0], onsets[END][0]


def electrode_lip(folder: Path, stem: str, names: tuple[str, ...]) -> np.ndarray:
    """(C, 3) L/I/P of the channels from ``electrodes.tsv``, NaN where an electrode is not listed or has no coordinates.

    Raises:
        ValueError: the coordinates are not in mm of the ACPC frame, which the map to L/I/P is for.
    """
    frame_file = folder / f"{stem}_coordsystem.json"
    require_content(frame_file)
    frame = json.loads(frame_file.read_text(encoding="utf-8"))
    found = frame.get("iEEGCoordinateSystem"), frame.get("iEEGCoordinateUnits")
    if found != ("ACPC", "mm"):
        raise ValueError(f"{frame_file}: expected coordinates in mm of ACPC, found {found[1]} of {found[0]}")
    rows = {row["name"]: row for row in read_table(folder / f"{stem}_electrodes.tsv", "\t", ("name", "x", "y", "z"))}
    xyz = np.full((len(names), 3), np.nan)
    for i, name in enumerate(names):
        if name in rows and "n/a" not in (values := [rows[name][axis] for axis in "xyz"]):
            xyz[i] = [float(v) for v in values]
    return lip_of_acpc(xyz)
