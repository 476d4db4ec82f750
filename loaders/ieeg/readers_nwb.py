"""BYD (Keles et al. 2024, DANDI 000623): NWB files with macro-electrode LFP at 1000 Hz, read through HDF5 as NWB 2 lays it out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .reader_tools import H5MatrixRecording, lip_of_mni, listed_regions, open_h5, text
from .recording import microvolt_factor

SERIES = "processing/ecephys/LFP_macro/ElectricalSeries"
TRIALS = "intervals/trials"
ELECTRODES = "general/extracellular_ephys/electrodes"
REGIONS = ("AMY", "HIP", "ACC", "SMA", "OFC")  # letters 2 to 4 of the channels that are kept
LEAD_S = 10.0  # the LFP's clock begins this much before the film
MARGIN_S = 10.0  # kept before and after the film
LINE_FREQ = 60


def open_byd(root: Path, recording_id: str) -> H5MatrixRecording:
    """One session of DANDI 000623; label time 0 is the start of the film.

    Args:
        root: folder of the download.
        recording_id: ``sub-CS41_ses-P41CSR1``; the file is ``sub-CS41/RECORDING_ID*.nwb`` (or lies in `root`).

    Raises:
        FileNotFoundError, ValueError: the file is missing, a pointer, or not as expected.
    """
    root = Path(root)
    match = re.fullmatch(r"sub-CS(\d+)_ses-P\d+CSR(\d+)", recording_id)
    if not match:
        raise ValueError(f"recording {recording_id!r} of kelesbyd2024: expected an id like sub-CS41_ses-P41CSR1")
    path = _find(root, recording_id)
    with open_h5(path) as f:
        if SERIES not in f or "data" not in f[SERIES]:
            raise ValueError(f"{path} has no {SERIES}/data: this session has no macro-electrode recording")
        series = f[SERIES]
        data = series["data"]
        if "electrodes" not in series:
            raise ValueError(f"{path}: {SERIES} has no electrodes, so its columns have no names")
        origin, rate = _clock(series, path)
        rows = np.asarray(series["electrodes"][:], dtype=int)
        if len(rows) != data.shape[1]:
            raise ValueError(f"{path}: {SERIES}/data has {data.shape[1]} channels and {len(rows)} electrodes")
        columns, kept, xyz = _channels(f.get(ELECTRODES, {}), rows, path)
        factor = _factor(series, path, columns)
        offset = float(data.attrs.get("offset", 0.0)) * _unit_factor(data, path)
        begin, end = _film(f, path)
        n = data.shape[0]
    first = max(0, int(np.ceil((begin - MARGIN_S - origin) * rate - 1e-6)))
    last = min(n, int(np.floor((end + MARGIN_S - origin) * rate + 1e-6)) + 1)
    if last <= first:
        raise ValueError(f"{path}: the film ({begin:g} to {end:g} s) lies outside the LFP ({origin:g} to {origin + n / rate:g} s)")
    return H5MatrixRecording(
        dataset="kelesbyd2024",
        recording_id=recording_id,
        subject=f"sub{match[1]}",
        session=f"sess{match[2]}",
        sfreq=rate,
        ch_names=kept,
        n_samples=last - first,
        line_freq=LINE_FREQ,
        lip=lip_of_mni(xyz),
        regions=listed_regions(root, recording_id, kept),
        start_s=origin + first / rate,
        path=path,
        factor=factor,
        offset=offset,
        first=first,
        key=f"{SERIES}/data",
        columns=columns,
    )


def _find(root: Path, recording_id: str) -> Path:
    folder = root / recording_id.partition("_")[0]
    files = sorted(path for place in (folder, root) if place.is_dir() for path in place.glob(f"{recording_id}[._]*nwb"))
    if not files:
        raise FileNotFoundError(f"{folder} has no {recording_id}*.nwb: 'dandi download DANDI:000623'")
    return files[0]


def _channels(table: Mapping[str, Any], rows: np.ndarray, path: Path) -> tuple[np.ndarray, tuple[str, ...], np.ndarray]:
    """The columns of the LFP in `REGIONS`: their numbers (C,), names, and MNI coordinates (C, 3) as the table of electrodes has them.

    Args:
        table: of electrodes. rows: (n,) the row there of each column. path: of the file, for errors.
    """
    if missing := [name for name in ("origchannel_name", "x", "y", "z") if name not in table]:
        raise ValueError(f"{path}: {ELECTRODES} lacks the columns {', '.join(missing)}; it has {', '.join(table) or 'none'}")
    names = np.array(text(table["origchannel_name"][:]))[rows]
    columns = np.array([i for i, name in enumerate(names) if name[1:4] in REGIONS], dtype=int)
    if not len(columns):
        raise ValueError(f"{path}: none of its {len(names)} macro channels is in {', '.join(REGIONS)} (letters 2 to 4 of the name)")
    xyz = np.stack([np.asarray(table[axis][:], dtype=np.float64)[rows] for axis in "xyz"], axis=1)[columns]
    return columns, tuple(names[columns]), xyz


def _clock(series: object, path: Path) -> tuple[float, float]:
    """Time of the first sample on the film's clock, and the sampling rate in Hz.

    Raises:
        ValueError: neither rate nor time stamps, or time stamps that no constant rate explains to half a sample.
    """
    if "starting_time" in series:  # type: ignore[operator]
        start = series["starting_time"]  # type: ignore[index]
        if "rate" not in start.attrs:
            raise ValueError(f"{path}: {SERIES}/starting_time has no attribute rate, so its samples have no time")
        return float(start[()]) - LEAD_S, float(start.attrs["rate"])
    if "timestamps" not in series:  # type: ignore[operator]
        raise ValueError(f"{path}: {SERIES} has neither starting_time with its rate nor timestamps, so its samples have no time")
    stamps = np.asarray(series["timestamps"][:], dtype=np.float64)  # type: ignore[index]
    rate = float(np.round((len(stamps) - 1) / (stamps[-1] - stamps[0]), 3))
    off = np.abs(stamps - stamps[0] - np.arange(len(stamps)) / rate).max() * rate
    if off > 0.5:
        raise ValueError(f"{path}: the time stamps of {SERIES} differ from a constant {rate:g} Hz by up to {off:.1f} samples (a gap?)")
    return float(stamps[0]) - LEAD_S, rate


def _unit_factor(data: object, path: Path) -> float:
    attributes = data.attrs  # type: ignore[attr-defined]
    if "unit" not in attributes:
        raise ValueError(f"{path}: {SERIES}/data has no attribute unit, so its values have no scale")
    return microvolt_factor(text(attributes["unit"])[0], str(path))


def _factor(series: object, path: Path, columns: np.ndarray) -> float | np.ndarray:
    """Stored value to microvolts: NWB's unit, its conversion and, where there is one, each channel's own conversion."""
    data = series["data"]  # type: ignore[index]
    factor = float(data.attrs.get("conversion", 1.0)) * _unit_factor(data, path)
    if "channel_conversion" in series:  # type: ignore[operator]
        return factor * np.asarray(series["channel_conversion"][:], dtype=np.float64)[columns]  # type: ignore[index]
    return factor


def _film(file: object, path: Path) -> tuple[float, float]:
    """Start and end in seconds of the earliest trial whose stim_phase is ``encoding``."""
    if TRIALS not in file or "stim_phase" not in file[TRIALS]:  # type: ignore[operator, index]
        raise ValueError(f"{path} has no {TRIALS}/stim_phase")
    trials = file[TRIALS]  # type: ignore[index]
    if missing := [name for name in ("start_time", "stop_time") if name not in trials]:
        raise ValueError(f"{path}: {TRIALS} lacks the columns {', '.join(missing)}")
    rows = [i for i, phase in enumerate(text(trials["stim_phase"][:])) if phase == "encoding"]
    if not rows:
        raise ValueError(f"{path}: no row of {TRIALS} has the stim_phase encoding")
    starts, ends = trials["start_time"][:], trials["stop_time"][:]
    row = min(rows, key=lambda i: starts[i])
    return float(starts[row]), float(ends[row])
