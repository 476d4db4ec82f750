"""HDF5 files of temporaldata, as torch_brain prepares all three data sets: signals, channels, and the published splits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from .labels import LabelTable
from .reader_tools import UNKNOWN, H5MatrixRecording, lip_of_acpc, lip_of_mni, open_h5, text
from .recording import microvolt_factor
from .splits import LABEL_MODE, N_FOLDS, PARTS, Fold, describe_fold

LINE_FREQ = {"neuroprobev2": 60, "kelesbyd2024": 60, "berezutskayapippi2022": 50}
TIERS = {"neuroprobev2": "lite", "kelesbyd2024": "full", "berezutskayapippi2022": "high-cov"}
_ID = {  # subject and session of a recording id, as in unit ids
    "neuroprobev2": r"sub_(\d+)_trial(\d+)",
    "kelesbyd2024": r"sub-CS(\d+)_ses-P\d+CSR(\d+)",
    "berezutskayapippi2022": r"sub-(\d+)_ses-\w+_task-film_acq-\w+_run-(\d+)",
}


def open_temporaldata(path: Path, dataset: str) -> H5MatrixRecording:
    """A prepared recording; only channels whose ``included`` is true.

    The unit is what ``scale_to_uV`` (or ``unit``) of ``seeg_data`` says. L/I/P come from the columns L, I, P or ``btb_lip`` of ``channels``,
    else from x, y, z by the map of the data set.

    Args:
        path: ``RECORDING_ID.h5``.
        dataset: canonical id.

    Raises:
        FileNotFoundError, ValueError: missing, a pointer, or not as expected.
    """
    path = Path(path)
    match = re.fullmatch(_ID[dataset], path.stem)
    if not match:
        raise ValueError(f"{path.name}: expected the recording id of {dataset} as its name ({_ID[dataset]})")
    with open_h5(path) as f:
        if "seeg_data/data" not in f or "channels/name" not in f:
            raise ValueError(f"{path} has no seeg_data/data and channels/name; it has {', '.join(f)}")
        series, channels = f["seeg_data"], f["channels"]
        if "sampling_rate" not in series.attrs or "domain/start" not in series:
            raise ValueError(f"{path}: seeg_data has no attribute sampling_rate or no domain/start, so its samples have no time")
        names = text(channels["name"][:])
        shape = series["data"].shape
        if len(shape) != 2 or shape[1] != len(names):
            raise ValueError(f"{path}: expected seeg_data/data (time, {len(names)} channels), found {shape}")
        included = np.asarray(channels["included"][:], dtype=bool) if "included" in channels else np.ones(len(names), dtype=bool)
        columns = np.flatnonzero(included)
        if not len(columns):
            raise ValueError(f"{path}: no channel is included")
        lip = _lip(channels, dataset)
        region = next((name for name in channels if "destrieux" in name.lower()), None)
        labels = None if region is None else [label or UNKNOWN for label in text(channels[region][:])]
        return H5MatrixRecording(
            dataset=dataset,
            recording_id=path.stem,
            subject=f"sub{int(match[1])}",
            session=f"sess{int(match[2])}",
            sfreq=float(series.attrs["sampling_rate"]),
            ch_names=tuple(names[i] for i in columns),
            n_samples=shape[0],
            line_freq=LINE_FREQ[dataset],
            lip=None if lip is None else lip[columns],
            regions=None if labels is None else tuple(labels[i] for i in columns),
            start_s=float(series["domain/start"][0]),
            path=path,
            factor=_factor(series, path),
            key="seeg_data/data",
            columns=columns,
        )


def _factor(series: Any, path: Path) -> float:
    if "scale_to_uV" in series.attrs:
        return float(series.attrs["scale_to_uV"])
    if "unit" in series.attrs:
        return microvolt_factor(text(series.attrs["unit"])[0], str(path))
    raise ValueError(f"{path}: seeg_data says neither scale_to_uV nor unit, so its values have no scale")


def _lip(channels: Any, dataset: str) -> np.ndarray | None:
    if all(axis in channels for axis in "LIP"):
        return np.stack([np.asarray(channels[axis][:], dtype=np.float64) for axis in "LIP"], axis=1)
    if "btb_lip" in channels:
        return np.asarray(channels["btb_lip"][:], dtype=np.float64)
    if all(axis in channels for axis in "xyz") and dataset != "neuroprobev2":
        xyz = np.stack([np.asarray(channels[axis][:], dtype=np.float64) for axis in "xyz"], axis=1)
        return lip_of_mni(xyz) if dataset == "kelesbyd2024" else lip_of_acpc(xyz)
    return None


def published_folds(path: Path, dataset: str, task: str, tier: str | None = None) -> tuple[LabelTable, list[Fold]]:
    """The published within-session folds that a prepared file carries, to be used as they are or compared with `make_folds`.

    Their keys are ``TIER$binary$within_session$TASK$foldK$PART`` below ``splits``, each with start, end and label of its windows.

    Returns:
        A table of all windows in time order, and folds with rows of it.

    Raises:
        ValueError: the file has no such splits.
    """
    path, tier = Path(path), tier or TIERS[dataset]
    with open_h5(path) as f:
        stored: list[list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = []
        for k in range(N_FOLDS):
            stored.append([])
            for part in PARTS:
                key = f"splits/{tier}${LABEL_MODE}$within_session${task}$fold{k}${part}"
                if key not in f:
                    raise ValueError(f"{path} has no {key}")
                stored[-1].append(tuple(np.asarray(f[key][name][:], dtype=np.float64) for name in ("start", "end", "label")))  # type: ignore[arg-type]
    windows = np.unique(np.concatenate([np.stack([s, lab], axis=1) for fold in stored for s, _, lab in fold]), axis=0)
    table = LabelTable(dataset, task, windows[:, 0].copy(), windows[:, 1].astype(np.int8))
    row = {(s, lab): i for i, (s, lab) in enumerate(windows)}
    folds = [
        describe_fold(k, table.label, *(np.array([row[pair] for pair in zip(s, lab)], dtype=np.int64) for s, _, lab in fold))
        for k, fold in enumerate(stored)
    ]
    return table, folds
