"""What the readers of recordings share: HDF5 files that are opened lazily, tables, coordinates."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from decodehub.core.files import file_state

from ..things_eeg2.bids import missing_content
from .recording import Recording

if TYPE_CHECKING:
    import h5py

REGIONS_FILE = "regions.csv"  # optional, in the root of a data set: recording_id, channel, destrieux
UNKNOWN = "unknown"
_EXTRA = "pip install 'decodehub[ieeg]'"


# Of no consequence for samples, or in `path`, whose state counts.
_NOT_SIGNAL = {"path", "_file", "_pid", "lip", "regions"}


@dataclass(eq=False)
class H5Recording(Recording):
    """A recording in an HDF5 file, which is opened at the first read and once a process, so that copies and workers can share the object.

    Attributes:
        path: of the file.
        factor: what stored values are multiplied by to give microvolts; `offset` (in microvolts) is added then.
        first: stored sample that is sample 0.
    """

    path: Path = Path()
    factor: float | np.ndarray = 1.0
    offset: float = 0.0
    first: int = 0
    _file: Any = field(default=None, repr=False)
    _pid: int = field(default=0, repr=False)

    @property
    def file(self) -> h5py.File:
        """The open file."""
        if self._file is None or self._pid != os.getpid():
            self._file, self._pid = open_h5(self.path), os.getpid()
        return self._file

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None, "_pid": 0}

    def _read(self, start: int, stop: int) -> np.ndarray:
        raw = self._stored(self.first + start, self.first + stop).astype(np.float64)
        return raw * (self.factor if np.ndim(self.factor) == 0 else np.asarray(self.factor)[:, None]) + self.offset

    def source(self) -> list[Any]:
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NOT_SIGNAL}
        return [file_state(self.path), {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in own.items()}]

    def _stored(self, start: int, stop: int) -> np.ndarray:
        """(C, stop - start) values as they are in the file."""
        raise NotImplementedError


@dataclass(eq=False)
class H5MatrixRecording(H5Recording):
    """One data set of shape (time, channels).

    Attributes:
        key: path of the data set in the file.
        columns: (C,) columns to read, in the order of `ch_names`.
    """

    key: str = ""
    columns: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=int))

    def _stored(self, start: int, stop: int) -> np.ndarray:
        return self.file[self.key][start:stop][:, self.columns].T


def open_h5(path: Path) -> h5py.File:
    """An HDF5 file to read.

    Raises:
        ImportError: h5py is not installed. FileNotFoundError, ValueError: the file is missing, a pointer, or not HDF5.
    """
    try:
        import h5py
    except ImportError as error:
        raise ImportError(f"reading {path} needs h5py: {_EXTRA}") from error
    require_content(path)
    if not h5py.is_hdf5(path):
        raise ValueError(f"{path} is not an HDF5 file (or a download that was cut short): fetch it again")
    return h5py.File(path, "r")


def require_content(path: Path) -> None:
    """Raise FileNotFoundError for a missing file and ValueError for a git-annex or Git LFS pointer, with the remedy."""
    if (problem := missing_content(Path(path))) is None:
        return
    raise (FileNotFoundError if problem.endswith("does not exist") else ValueError)(problem)


def text(values: Any) -> list[str]:
    """Strings of an HDF5 data set or attribute, which come as bytes or str."""
    return [v.decode() if isinstance(v, bytes) else str(v) for v in np.atleast_1d(np.asarray(values, dtype=object)).ravel()]


def read_table(path: Path, delimiter: str, columns: tuple[str, ...]) -> list[dict[str, str]]:
    """Rows of a CSV or TSV file that must have these columns.

    Raises:
        FileNotFoundError, ValueError: no file, or a column is missing.
    """
    require_content(path)
    with Path(path).open(encoding="utf-8-sig", newline="") as f:
        reader = csv.DictReader(f, delimiter=delimiter)
        if missing := [c for c in columns if c not in (reader.fieldnames or [])]:
            raise ValueError(f"{path} lacks the columns {', '.join(missing)}; it has {', '.join(reader.fieldnames or [])}")
        return list(reader)


def listed_regions(root: Path, recording_id: str, names: tuple[str, ...]) -> tuple[str, ...] | None:
    """Destrieux labels of the channels from ``regions.csv`` in the root of a data set; None without that file.

    The labels of BYD and Pippi are not in their releases: they follow from sampling an atlas at the coordinates.
    """
    path = Path(root) / REGIONS_FILE
    if not path.is_file():
        return None
    rows = read_table(path, ",", ("recording_id", "channel", "destrieux"))
    found = {row["channel"]: row["destrieux"] or UNKNOWN for row in rows if row["recording_id"] == recording_id}
    return tuple(found.get(name, UNKNOWN) for name in names)


# ---------------------------------------------------------------------------------------------------------------------------- coordinates


def lip_of_mni(xyz: np.ndarray) -> np.ndarray:
    """(n, 3) L/I/P of MNI152 RAS coordinates in mm, as iMINDBench maps BYD: L = 128 - x, I = 110 - z, P = 128 - y."""
    x, y, z = np.asarray(xyz, dtype=np.float64).T
    return np.stack([128 - x, 110 - z, 128 - y], axis=1)


def lip_of_acpc(xyz: np.ndarray) -> np.ndarray:
    """(n, 3) L/I/P of ACPC coordinates in mm, by the linear map of iMINDBench for Pippi."""
    x, y, z = np.asarray(xyz, dtype=np.float64).T
    return np.stack([127.5748 - 0.9610 * x, 112.7481 - 1.0179 * z, 130.1209 - 0.9173 * y], axis=1)
