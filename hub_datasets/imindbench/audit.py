"""What the published splits leak, a row a fold: windows that share time, words and films that return, class balance."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Any

import numpy as np

from decodehub.loaders.ieeg.labels import LabelTable
from decodehub.loaders.ieeg.splits import Fold, audit_fold, make_folds

from . import sample
from .data import resolve_folder, unit_labels
from .vocabulary import Unit, find_dataset, find_session, find_task, units


def audit(
    data_dir: str | os.PathLike[str] | None = None,
    *,
    dataset: str = "all",
    task: str = "all",
    subset: str = "all",
    partial: bool = False,
    balance_seed: int = 0,
) -> list[dict[str, Any]]:
    """Audit the two folds of every unit chosen.

    Args:
        data_dir: as for ``load_dataset("imindbench", "labels")``.
        dataset, task, subset: id, title or alias of one, or "all".
        partial: leave out units whose files are not there.
        balance_seed: of the balancing of BYD and Pippi.

    Returns:
        Rows with ``unit``, ``dataset``, ``subject_session``, ``task``, ``subset``, ``film``, ``fold``, ``status``, ``reason``, the numbers of
        `audit_fold`, and for training on the other sessions of the data set as well: ``same_film_sessions`` (how many of those audited have the same film)
        and ``film_overlap_test_sources`` (test windows whose moment of the film is in the training part of one of them, same fold; None
        where the film's clock is unknown).

    Raises:
        KeyError: an unknown name. FileNotFoundError: files of a unit are not there (unless `partial`).
    """
    folder = resolve_folder(data_dir)
    grid = sample.sample_units() if folder == sample.FOLDER else units()
    wanted = None if dataset == "all" else find_dataset(dataset), None if task == "all" else find_task(task).id
    chosen = [u for u in grid if wanted[0] in (None, u.dataset) and wanted[1] in (None, u.task) and subset in ("all", u.subset)]
    if not chosen:
        raise KeyError(f"no unit has dataset {dataset!r}, task {task!r} and subset {subset!r} (main, challenge or all)")
    made: dict[Unit, tuple[LabelTable, list[Fold]]] = {}
    for unit in chosen:
        try:
            table = unit_labels(folder, unit.dataset, unit.subject_session, unit.task)
        except FileNotFoundError:
            if not partial:
                raise
            continue
        made[unit] = table, make_folds(unit.dataset, recording_id(folder, unit), unit.task, table, balance_seed=balance_seed)
    together: dict[tuple[str, str, str], list[Unit]] = defaultdict(list)
    for unit in made:
        together[unit.dataset, unit.task, film_of(folder, unit)].append(unit)
    rows = []
    for unit, (table, folds) in made.items():
        film = film_of(folder, unit)
        others = [made[other] for other in together[unit.dataset, unit.task, film] if other != unit]
        head = {name: getattr(unit, name) for name in ("dataset", "subject_session", "task", "subset")}
        for fold in folds:
            row = {"unit": unit.id, **head, "film": film, "fold": fold.index, "status": fold.status, "reason": fold.reason}
            row |= audit_fold(table, fold) | {"same_film_sessions": len(others)}
            rows.append(row | {"film_overlap_test_sources": film_overlap(table, fold, others)})
    return rows


def recording_id(folder: os.PathLike[str], unit: Unit) -> str:
    """Id of the recording of a unit, which enters the balancing seed."""
    if folder == sample.FOLDER:
        return sample.sample_recording(unit.dataset, unit.subject_session).recording_id
    return find_session(unit.dataset, unit.subject_session).recording_id


def film_of(folder: os.PathLike[str], unit: Unit) -> str:
    """Name of the film of a unit."""
    if folder == sample.FOLDER:
        return "simulated film" if unit.dataset != "neuroprobev2" else f"simulated film of {unit.subject_session}"
    return find_session(unit.dataset, unit.subject_session).film


def film_overlap(table: LabelTable, fold: Fold, others: list[tuple[LabelTable, list[Fold]]]) -> int | None:
    """Test windows whose second of the film is in the training part of another session with the same film and fold index."""
    own = _film(table)[fold.test]
    if np.isnan(own).all():
        return None
    shared = np.zeros(len(own), dtype=bool)
    for other, folds in others:
        train = np.sort(_film(other)[folds[fold.index].train])
        train = train[~np.isnan(train)]
        if len(train):
            after = np.searchsorted(train, own)
            near = np.minimum(np.abs(train[np.minimum(after, len(train) - 1)] - own), np.abs(train[np.maximum(after - 1, 0)] - own))
            shared |= near < table.window_s  # NaN compares false
    return int(shared.sum())


def _film(table: LabelTable) -> np.ndarray:
    return table.start_s if table.film_s is None else table.film_s
