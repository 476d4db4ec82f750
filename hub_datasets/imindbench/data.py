"""Labels and recordings of a unit, from a folder of downloads or from the sample.

A folder has one sub-folder a data set, each as its owner publishes it (``sources.yaml`` says where):

    FOLDER/neuroprobev2/           Brain Treebank: sub_1_trial001.h5, localization/, electrode_labels/, transcripts/, ...
    FOLDER/kelesbyd2024/           DANDI 000623: sub-CS41/....nwb; and labels/TASK_binary_labels.csv
    FOLDER/berezutskayapippi2022/  OpenNeuro ds003688; and labels/TASK_binary_labels.csv
    FOLDER/DATASET/processed/      optional: RECORDING_ID.h5 as torch_brain prepares them, read in place of the recording
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from decodehub.core.repos import SAMPLE_CONFIG, data_folder
from decodehub.core.words import suggest
from decodehub.loaders.ieeg import readers
from decodehub.loaders.ieeg.events import neuroprobe_events, pippi_events
from decodehub.loaders.ieeg.labels import EventTable, LabelTable, label_table, labels_csv_name, read_labels_csv
from decodehub.loaders.ieeg.readers_temporaldata import published_folds
from decodehub.loaders.ieeg.recording import Recording
from decodehub.loaders.ieeg.splits import Fold, make_folds

from . import sample
from .vocabulary import find_session

NAME = "imindbench"
PIPPI_TASKS = ("onset", "speech", "word_index", "word_gap", "word_length")  # those that its annotations carry


def resolve_folder(data_dir: str | os.PathLike[str] | None, config: str = "labels") -> Path:
    """`data_dir`; ``$DECODEHUB_HOME/imindbench``; else the sample (`sample.FOLDER`), with a warning.

    Raises:
        FileNotFoundError: `data_dir` is no folder.
    """
    means = ", which is SIMULATED (recordings and labels are got from three sources: see the card)"
    folder = data_folder(NAME, data_dir, config, lambda: sample.FOLDER, means)
    if folder != sample.FOLDER and not folder.is_dir():
        beside = [path.name for path in folder.parent.iterdir() if path.is_dir()] if folder.parent.is_dir() else []
        raise FileNotFoundError(
            f"data folder {folder} does not exist{suggest(folder.name, [SAMPLE_CONFIG, *beside])}; give the folder of the downloads, or "
            f'"{SAMPLE_CONFIG}"'
        )
    return folder


def unit_labels(folder: Path, dataset: str, subject_session: str, task: str) -> LabelTable:
    """Label table of one unit, before splitting and balancing.

    Args:
        folder: as `resolve_folder` gives it.
        dataset, subject_session, task: of the unit.

    Raises:
        KeyError: no such session or task. FileNotFoundError: what the labels are made from is not there; the message says what is missing.
    """
    if folder == sample.FOLDER:
        return sample.sample_recording(dataset, subject_session).labels(task)
    session = find_session(dataset, subject_session)
    root = _root(folder, dataset)
    if dataset == "neuroprobev2":
        subject, trial = int(session.subject[3:]), int(session.session[4:])
        return label_table(_neuroprobe(root, subject, trial, task not in ("speech", "pitch")), task)
    published = root / "labels" / labels_csv_name(task)
    if published.is_file():
        return read_labels_csv(published, dataset, task)
    if dataset == "berezutskayapippi2022" and task in PIPPI_TASKS:
        return label_table(_pippi(root), task)
    raise FileNotFoundError(
        f"{dataset}/{task}: {published} does not exist. It is one of the published label tables; see the card of {NAME}"
    )


def unit_folds(folder: Path, dataset: str, subject_session: str, task: str, recording_id: str) -> tuple[LabelTable, list[Fold]]:
    """Label table and folds of one unit; those that a prepared file carries, where it is all there is.

    The windows of a prepared file are those that its folds use, numbered in time order: other numbers than those of the release.

    Args:
        folder: as `resolve_folder` gives it.
        dataset, subject_session, task: of the unit. recording_id: of its recording, which enters the balancing seed.

    Raises:
        KeyError, FileNotFoundError, ValueError: as `unit_labels` and `make_folds`.
    """
    try:
        table = unit_labels(folder, dataset, subject_session, task)
    except FileNotFoundError:
        prepared = folder / dataset / "processed" / f"{recording_id}.h5"
        if not prepared.is_file():
            raise
        return published_folds(prepared, dataset, task)
    return table, make_folds(dataset, recording_id, task, table)


def open_recording(folder: Path, dataset: str, subject_session: str) -> Recording:
    """The recording of a session; nothing but its header is read.

    Raises:
        KeyError: no such session. FileNotFoundError, ValueError: the files are not there or not as expected (see the readers).
    """
    if folder == sample.FOLDER:
        return sample.sample_recording(dataset, subject_session)
    session = find_session(dataset, subject_session)
    return readers.open_recording(_root(folder, dataset), dataset, session.recording_id)


def _root(folder: Path, dataset: str) -> Path:
    root = folder / dataset
    if not root.is_dir():
        raise FileNotFoundError(f"{root} does not exist: it should hold the download of {dataset}; see the card of {NAME}")
    return root


@lru_cache(maxsize=8)
def _neuroprobe(root: Path, subject: int, trial: int, features: bool) -> EventTable:
    own = root if (root / "time_alignment").is_dir() else None
    return neuroprobe_events(subject, trial, folder=own, features=root if features else None)


@lru_cache(maxsize=2)
def _pippi(root: Path) -> EventTable:
    return pippi_events(root)
