"""An intracranial recording as arrays: microvolts, one sampling rate, channel names, read a window at a time."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from decodehub.core.files import sha256_bytes

DATASETS = ("neuroprobev2", "kelesbyd2024", "berezutskayapippi2022")  # canonical ids, in the order in which iMINDBench shows them
UNIT = "uV"
TO_MICROVOLT = {"V": 1e6, "mV": 1e3, "uV": 1.0, "µV": 1.0, "μV": 1.0, "nV": 1e-3}
NO_UNIT = ("", "n/a")
SNAP = 1e-9  # samples: a time this near to a sample is that sample, so that 0.1 + 0.2 s does not move a window by one
MAX_READ_BYTES = 1 << 33  # guards against reading a whole recording by mistake

WindowPolicy = Literal["ceil", "legacy_floor"]
_ELECTRODE = re.compile(r"^(?P<stem>.*?)(?P<number>\d+)$")


@dataclass(eq=False)
class Recording:
    """What all recordings have in common; a kind of file or of simulation gives `_read`.

    Attributes:
        dataset: canonical id, one of `DATASETS`.
        recording_id: of the session in its source, such as ``sub_1_trial001``.
        subject: as in unit ids, such as ``sub1``.
        session: as in unit ids, such as ``sess1``.
        sfreq: sampling rate in Hz.
        ch_names: (C,) names as in the source, stem and number (``LAH1``), which spatial filters rely on.
        n_samples: samples that can be read.
        line_freq: mains frequency in Hz, 50 or 60.
        lip: (C, 3) float64, voxel coordinates left, inferior, posterior of iMINDBench, NaN where unknown; None without coordinates.
        regions: (C,) Destrieux labels, ``"unknown"`` where there is none; None without labels.
        start_s: time of sample 0 on the clock of the labels, in seconds (0 unless the recording begins before the film).
        simulated: True for signals that no brain made.
        unit: always ``"uV"``.
    """

    dataset: str
    recording_id: str
    subject: str
    session: str
    sfreq: float
    ch_names: tuple[str, ...]
    n_samples: int
    line_freq: float
    lip: np.ndarray | None = None
    regions: tuple[str, ...] | None = None
    start_s: float = 0.0
    simulated: bool = False
    unit: str = field(default=UNIT, init=False)

    def __post_init__(self) -> None:
        where = f"recording {self.recording_id!r}"
        self.ch_names = tuple(self.ch_names)
        if self.dataset not in DATASETS:
            raise ValueError(f"{where}: dataset {self.dataset!r} is none of {', '.join(DATASETS)}")
        if not (math.isfinite(self.sfreq) and self.sfreq > 0):
            raise ValueError(f"{where}: sfreq must be positive, found {self.sfreq!r}")
        if self.line_freq not in (50, 60):
            raise ValueError(f"{where}: line_freq must be 50 or 60 Hz, found {self.line_freq!r}")
        if not self.ch_names:
            raise ValueError(f"{where} has no channels")
        if len(set(self.ch_names)) != len(self.ch_names):
            twice = sorted({name for name in self.ch_names if self.ch_names.count(name) > 1})
            raise ValueError(f"{where}: channel names must differ, found more than once: {', '.join(twice[:5])}")
        if self.lip is not None and np.shape(self.lip) != (len(self.ch_names), 3):
            raise ValueError(f"{where}: lip must be ({len(self.ch_names)}, 3), found {np.shape(self.lip)}")
        if self.regions is not None and len(self.regions) != len(self.ch_names):
            raise ValueError(f"{where}: expected {len(self.ch_names)} regions, found {len(self.regions)}")

    @property
    def subject_session(self) -> str:
        """As in unit ids: ``sub1_sess1``."""
        return f"{self.subject}_{self.session}"

    @property
    def duration_s(self) -> float:
        """Seconds that can be read."""
        return self.n_samples / self.sfreq

    def read(self, start: int, stop: int) -> np.ndarray:
        """(C, stop - start) float32 in microvolts: samples `start` up to, not including, `stop`.

        Raises:
            IndexError: samples that the recording does not have (there is no silent padding).
            ValueError: the piece is larger than memory should hold; an array of another shape came from the source.
        """
        start, stop = int(start), int(stop)
        if not 0 <= start < stop <= self.n_samples:
            raise IndexError(f"recording {self.recording_id!r} has samples 0 to {self.n_samples}, asked for were {start} to {stop}")
        if (size := 4 * len(self.ch_names) * (stop - start)) > MAX_READ_BYTES:
            raise ValueError(f"recording {self.recording_id!r}: {size / 2**30:.1f} GiB asked for at once: read it in pieces")
        data = np.ascontiguousarray(self._read(start, stop), dtype=np.float32)
        if data.shape != (len(self.ch_names), stop - start):
            raise ValueError(
                f"recording {self.recording_id!r}: expected {(len(self.ch_names), stop - start)} from the source, found {data.shape}"
            )
        return data

    def _read(self, start: int, stop: int) -> np.ndarray:
        raise NotImplementedError

    def source(self) -> list[Any]:
        """What the signals come from, as JSON values that differ once any sample may: for keys of what is made of them.

        The state of the files for recordings on disk, the parameters of simulated ones, the content of those in memory.
        """
        raise NotImplementedError

    def window_bounds(self, start_s: float, window_s: float = 1.0, policy: WindowPolicy = "ceil") -> tuple[int, int]:
        """First sample and end of the window that begins at `start_s` on the clock of the labels; see `window_bounds`."""
        return window_bounds(start_s - self.start_s, self.sfreq, window_s, policy)

    def pick(self, names: tuple[str, ...] | list[str]) -> Recording:
        """The same recording with these channels, in this order.

        Raises:
            ValueError: a name that the recording does not have.
        """
        index = {name: i for i, name in enumerate(self.ch_names)}
        if missing := [name for name in names if name not in index]:
            raise ValueError(f"recording {self.recording_id!r} has no channels {', '.join(missing[:5])} (of {len(self.ch_names)})")
        rows = [index[name] for name in names]
        return _Picked(
            **{f: getattr(self, f) for f in _COMMON},
            ch_names=tuple(names),
            lip=None if self.lip is None else np.asarray(self.lip)[rows],
            regions=None if self.regions is None else tuple(self.regions[i] for i in rows),
            parent=self,
            rows=np.array(rows),
        )


_COMMON = ("dataset", "recording_id", "subject", "session", "sfreq", "n_samples", "line_freq", "start_s", "simulated")


@dataclass(eq=False)
class _Picked(Recording):
    parent: Recording | None = None
    rows: np.ndarray | None = None

    def _read(self, start: int, stop: int) -> np.ndarray:
        assert self.parent is not None and self.rows is not None
        return self.parent.read(start, stop)[self.rows]

    def source(self) -> list[Any]:
        assert self.parent is not None and self.rows is not None
        return [self.parent.source(), self.rows.tolist()]


@dataclass(eq=False)
class ArrayRecording(Recording):
    """A recording in memory.

    Attributes:
        data: (C, n_samples), microvolts.
    """

    data: np.ndarray = field(default_factory=lambda: np.empty((0, 0), dtype=np.float32), repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data.shape != (len(self.ch_names), self.n_samples):
            raise ValueError(
                f"recording {self.recording_id!r}: expected data ({len(self.ch_names)}, {self.n_samples}), found {self.data.shape}"
            )

    def _read(self, start: int, stop: int) -> np.ndarray:
        return self.data[:, start:stop]

    def source(self) -> list[Any]:
        return [str(self.data.dtype), sha256_bytes(np.ascontiguousarray(self.data).tobytes())]


def to_array(recording: Recording) -> ArrayRecording:
    """The whole recording in memory."""
    return with_data(recording, recording.read(0, recording.n_samples))


def with_data(recording: Recording, data: np.ndarray) -> ArrayRecording:
    """`recording` with other signals: (C, n_samples) microvolts."""
    fields = {f: getattr(recording, f) for f in _COMMON} | {"n_samples": data.shape[1]}
    return ArrayRecording(**fields, ch_names=recording.ch_names, lip=recording.lip, regions=recording.regions, data=data)


def window_bounds(start_s: float, sfreq: float, window_s: float = 1.0, policy: WindowPolicy = "ceil") -> tuple[int, int]:
    """First sample and end of a window of `window_s` seconds from `start_s` seconds on.

    Every window of one length has the same number of samples: ``round(window_s * sfreq)``.

    Args:
        start_s: seconds after sample 0.
        sfreq: in Hz.
        window_s: in seconds.
        policy: ``"ceil"`` (current iMINDBench: the first sample at or after the start; times within `SNAP` of a sample are that
            sample) or ``"legacy_floor"`` (its older results: the last sample at or before the start).

    Source: window slicing policies of iMINDBench 0.1.0. There the end is rounded by itself, which can give one sample more or less
    where 1 s is no whole number of samples.
    """
    position = start_s * sfreq
    nearest = round(position)
    if policy == "ceil":
        near = abs(position - nearest) <= max(SNAP, 4 * math.ulp(position))
        first = nearest if near else math.ceil(position)
    elif policy == "legacy_floor":
        first = math.floor(position)
    else:
        raise ValueError(f'policy must be "ceil" or "legacy_floor", found {policy!r}')
    return first, first + round(window_s * sfreq)


def microvolt_factor(unit: str, where: str) -> float:
    """What a value in `unit` is multiplied by to give microvolts.

    Raises:
        ValueError: a unit that is no voltage (`where` names the file).
    """
    try:
        return TO_MICROVOLT[{"volts": "V", "volt": "V", "microvolts": "uV", "microV": "uV", "uv": "uV"}.get(unit, unit)]
    except KeyError:
        raise ValueError(f"{where}: unit {unit!r} is none of {', '.join(TO_MICROVOLT)}") from None


def split_electrode(name: str) -> tuple[str, int] | None:
    """Stem and number of a contact: ``("LAH", 1)`` of ``"LAH1"``; None for a name without a number at its end."""
    match = _ELECTRODE.match(name)
    return (match["stem"], int(match["number"])) if match else None
