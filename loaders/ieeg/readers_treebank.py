"""Brain Treebank (braintreebank.dev): one HDF5 file a session with a 1-D data set an electrode, microvolts, 2048 Hz."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .reader_tools import UNKNOWN, H5Recording, open_h5, read_table, require_content

SFREQ = 2048.0
LINE_FREQ = 60
LITE_TABLE = "neuroprobe_lite_electrodes.csv"  # from the package neuroprobe (MIT)


@dataclass(eq=False)
class TreebankRecording(H5Recording):
    """A Brain Treebank session.

    Attributes:
        keys: (C,) names of the electrodes' data sets below ``data``.
    """

    keys: tuple[str, ...] = ()

    def _stored(self, start: int, stop: int) -> np.ndarray:
        group = self.file["data"]
        return np.stack([group[key][start:stop] for key in self.keys])


def clean(label: str) -> str:
    """An electrode label without the marks ``*`` and ``#``."""
    return label.replace("*", "").replace("#", "")


@cache
def lite_electrodes() -> dict[int, tuple[str, ...]]:
    """Electrodes of Neuroprobe (tier lite) by subject, in its order."""
    lines = files("decodehub.loaders.ieeg").joinpath(LITE_TABLE).read_text(encoding="utf-8").splitlines()
    found: dict[int, list[str]] = {}
    for row in csv.DictReader(lines):
        found.setdefault(int(row["subject"]), []).append(row["electrode"])
    return {subject: tuple(names) for subject, names in found.items()}


def open_treebank(root: Path, subject: int, trial: int, tier: Literal["lite", "full"] = "lite") -> TreebankRecording:
    """One session of a Brain Treebank download.

    Left out: electrodes listed in ``corrupted_elec.json``, triggers (names that begin with DC or TRIG), and with tier ``"lite"`` all that
    Neuroprobe does not use.

    Args:
        root: folder with ``electrode_labels/``, ``localization/``, ``corrupted_elec.json`` and ``sub_1_trial001.h5`` (there or in
            ``subject_data/sub_1/trial001/``).
        subject, trial: numbers of Brain Treebank.
        tier: which electrodes.

    Raises:
        FileNotFoundError, ValueError: a file is missing, a pointer, or not as expected.
    """
    root = Path(root)
    name = f"sub_{subject}_trial{trial:03d}"
    path = next(
        (p for p in (root / f"{name}.h5", root / f"subject_data/sub_{subject}/trial{trial:03d}/{name}.h5") if p.is_file()),
        root / f"{name}.h5",
    )
    labels_file = root / f"electrode_labels/sub_{subject}/electrode_labels.json"
    labels = [clean(label) for label in _json(labels_file)]
    keys = {label: f"electrode_{i}" for i, label in enumerate(labels)}
    corrupted = {clean(label) for label in _json(root / "corrupted_elec.json").get(f"sub_{subject}", [])}
    kept = _of_tier([e for e in labels if e not in corrupted and not e.upper().startswith(("DC", "TRIG"))], subject, tier)
    if not kept:
        raise ValueError(f"{labels_file}: none of its {len(labels)} electrodes is in tier {tier} of subject {subject}")
    with open_h5(path) as f:
        if missing := [keys[e] for e in kept if f"data/{keys[e]}" not in f]:
            raise ValueError(
                f"{path} lacks {len(missing)} of {len(kept)} electrodes in data/, the first is {missing[0]} ({labels_file} has {len(labels)})"
            )
        lengths = {f[f"data/{keys[e]}"].shape for e in kept}
    if len(lengths) != 1 or len(next(iter(lengths))) != 1:
        raise ValueError(f"{path}: expected 1-D data sets of one length in data/, found the shapes {sorted(lengths)}")
    lip, regions = _localization(root / f"localization/sub_{subject}/depth-wm.csv", kept)
    return TreebankRecording(
        dataset="neuroprobev2",
        recording_id=name,
        subject=f"sub{subject}",
        session=f"sess{trial}",
        sfreq=SFREQ,
        ch_names=tuple(kept),
        n_samples=next(iter(lengths))[0],
        line_freq=LINE_FREQ,
        lip=lip,
        regions=regions,
        path=path,
        keys=tuple(keys[e] for e in kept),
    )


def _of_tier(usable: list[str], subject: int, tier: Literal["lite", "full"]) -> list[str]:
    """The electrodes of a tier among the usable ones, in its order."""
    if tier != "lite":
        return usable
    if subject not in lite_electrodes():
        raise ValueError(f"Neuroprobe's tier lite has no subject {subject}; it has {', '.join(map(str, lite_electrodes()))}")
    return [e for e in lite_electrodes()[subject] if e in set(usable)]


def _json(path: Path) -> Any:
    require_content(path)
    return json.loads(path.read_text(encoding="utf-8"))


def _localization(path: Path, names: list[str]) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """(C, 3) L/I/P, NaN where an electrode is not listed, and Destrieux labels where the table has them."""
    rows = {clean(row["Electrode"]): row for row in read_table(path, ",", ("Electrode", "L", "I", "P"))}
    lip = np.full((len(names), 3), np.nan)
    for i, name in enumerate(names):
        if name in rows:
            lip[i] = [float(rows[name][axis]) for axis in "LIP"]
    if "Destrieux" not in next(iter(rows.values()), {}):
        return lip, None
    return lip, tuple(rows[name]["Destrieux"] or UNKNOWN if name in rows else UNKNOWN for name in names)
