"""Pippi (Berezutskaya et al. 2022, OpenNeuro ds003688): BIDS with BrainVision files, read through MNE a window at a time."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from decodehub.core.files import file_state

from .reader_tools import lip_of_acpc, listed_regions, read_table, require_content
from .recording import NO_UNIT, Recording, microvolt_factor

if TYPE_CHECKING:
    import mne

START, END = "start task", "end task"
CHANNEL_TYPES = ("SEEG",)
LINE_FREQ = 50  # in Utrecht, for a sidecar that says n/a
NOT_KNOWN = ("", "n/a", "nan", "null", "none")  # cells without a number, whatever their case


@dataclass(eq=False)
class BrainVisionRecording(Recording):
    """A stretch of a BrainVision file.

    Attributes:
        path: of the header.
        first: sample of the file that is sample 0.
        factor: (C,) what MNE's values are multiplied by to give microvolts.
    """

    path: Path = Path()
    first: int = 0
    factor: np.ndarray = field(default_factory=lambda: np.array([1e6]))
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
        return self.raw.get_data(picks=picks, start=self.first + start, stop=self.first + stop) * self.factor[:, None]

    def source(self) -> list[Any]:
        files = [self.path, *map(Path, self.raw.filenames)]
        return [[file_state(file) for file in files], list(self.ch_names), self.first, self.factor.tolist()]


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
    sidecar = _json(sidecar_file)
    channels_file = folder / f"{recording_id}_channels.tsv"
    channels = good_channels(channels_file)
    begin, end = film_span(folder / f"sub-{sub}_ses-{ses}_task-film_run-{run}_events.tsv")
    lip = electrode_lip(folder, f"sub-{sub}_ses-{ses}_acq-{acq}", channels)
    path = folder / f"{recording_id}_ieeg.vhdr"
    raw = _open(path)
    sfreq = float(raw.info["sfreq"])
    stated = _number(sidecar.get("SamplingFrequency", "n/a"), f"{sidecar_file}: SamplingFrequency")
    if stated is not None and abs(sfreq - stated) > 1e-6 * sfreq:
        raise ValueError(f"{path} has {sfreq:g} Hz, {sidecar_file.name} says {stated:g}")
    line_freq = _number(sidecar.get("PowerLineFrequency", "n/a"), f"{sidecar_file}: PowerLineFrequency")
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
        line_freq=LINE_FREQ if line_freq is None else line_freq,
        lip=lip,
        regions=listed_regions(root, recording_id, channels),
        start_s=first / sfreq - begin,
        path=path,
        first=first,
        factor=unit_factors(path, channels_file, channels),
    )


def _json(path: Path) -> dict[str, Any]:
    require_content(path)
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected an object, found {type(found).__name__}")
    return found


def _open(path: Path) -> mne.io.BaseRaw:
    import mne

    require_content(path)
    return mne.io.read_raw_brainvision(path, preload=False, verbose="error")


def _number(value: Any, where: str) -> float | None:
    """A number of a sidecar or table; None for one that says that it is not known.

    Raises:
        ValueError: anything else; `where` names the place.
    """
    if value is None or str(value).strip().lower() in NOT_KNOWN:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{where} is {value!r}, expected a number or n/a") from None


def unit_factors(header: Path, channels_file: Path, names: tuple[str, ...]) -> np.ndarray:
    """(C,) factors from what MNE gives to microvolts.

    The unit of a channel is that of the header; where that is empty or "n/a", that of ``channels.tsv``; where neither says it and the
    header's is empty, microvolts, as BrainVision defines it. MNE takes an empty unit for microvolts and "n/a" for volts.

    Raises:
        ValueError: a unit that is no voltage, or "n/a" in both files.
    """
    stated = _header_units(header)
    listed = {row["name"]: (row.get("units") or "").strip() for row in read_table(channels_file, "\t", ("name",))}
    factors = []
    for name in names:
        unit = stated.get(name, "")
        by_mne = 1e6 if unit else 1.0  # microvolts of one unit, as MNE reads a header without a known unit
        if unit.lower() in NO_UNIT:
            unit = listed.get(name, "")
            if unit.lower() in NO_UNIT:
                if stated.get(name, ""):
                    raise ValueError(
                        f"{header}: channel {name!r} has the unit n/a, here and in {channels_file.name}, so its values have no scale: "
                        "put the unit (V, mV or µV) into the column units"
                    )
                unit = "uV"
            factors.append(1e6 * microvolt_factor(unit, f"{channels_file}, channel {name!r}") / by_mne)
        else:
            microvolt_factor(unit, f"{header}, channel {name!r}")
            factors.append(1e6)
    return np.array(factors)


def _header_units(header: Path) -> dict[str, str]:
    """Unit by channel as a BrainVision header has it, "" where it has none."""
    raw = header.read_bytes()
    try:
        lines = raw.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:  # older files
        lines = raw.decode("latin-1").splitlines()
    units, inside = {}, False
    for line in lines:
        if line.startswith("["):
            inside = line.strip().lower() == "[channel infos]"
        elif inside and (match := re.match(r"Ch\d+=(.*)", line, re.IGNORECASE)):
            name, *rest = (part.strip() for part in match[1].split(","))
            units[name.replace("\\1", ",")] = rest[2] if len(rest) > 2 else ""
    return units


def good_channels(path: Path) -> tuple[str, ...]:
    """Names of the SEEG channels whose status is not "bad" (all, without that column), in the order of ``channels.tsv``.

    Raises:
        ValueError: there are none.
    """
    rows = read_table(path, "\t", ("name", "type"))
    kept = tuple(
        row["name"] for row in rows if (row["type"] or "").upper() in CHANNEL_TYPES and (row.get("status") or "").strip().lower() != "bad"
    )
    if not kept:
        raise ValueError(f"{path} has no good SEEG channel among {len(rows)} channels")
    return kept


def film_span(path: Path) -> tuple[float, float]:
    """Onsets in seconds of the events "start task" and "end task".

    Raises:
        ValueError: one of them is missing or there more than once, or they are in the wrong order.
    """
    rows = read_table(path, "\t", ("onset", "trial_type"))
    onsets = {
        name: [_number(row["onset"], f"{path}: onset of {name!r}") for row in rows if row["trial_type"] == name] for name in (START, END)
    }
    begin, end = (found[0] if len(found) == 1 else None for found in onsets.values())
    if begin is None or end is None or begin >= end:
        raise ValueError(f"{path}: expected one {START!r} and a later {END!r}, found them at {onsets[START]} and {onsets[END]} s")
    return begin, end


def electrode_lip(folder: Path, stem: str, names: tuple[str, ...]) -> np.ndarray:
    """(C, 3) L/I/P of the channels from ``electrodes.tsv``, NaN where an electrode is not listed or has no coordinates.

    Raises:
        ValueError: the coordinates are not in mm of the ACPC frame, which the map to L/I/P is for.
    """
    frame_file = folder / f"{stem}_coordsystem.json"
    frame = _json(frame_file)
    found = frame.get("iEEGCoordinateSystem"), frame.get("iEEGCoordinateUnits")
    if found != ("ACPC", "mm"):
        raise ValueError(f"{frame_file}: expected coordinates in mm of ACPC, found {found[1]} of {found[0]}")
    path = folder / f"{stem}_electrodes.tsv"
    rows = {row["name"]: row for row in read_table(path, "\t", ("name", "x", "y", "z"))}
    xyz = np.full((len(names), 3), np.nan)
    for i, name in enumerate(names):
        if name in rows:
            values = [_number(rows[name][axis], f"{path}: {axis} of electrode {name!r}") for axis in "xyz"]
            if all(value is not None for value in values):
                xyz[i] = values
    return lip_of_acpc(xyz)
