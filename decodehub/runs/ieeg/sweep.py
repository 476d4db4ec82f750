"""The sweep of iMINDBench: sessions x units x models x folds, one file of predictions a unit, restartable."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from decodehub.core.code import code_hash
from decodehub.core.files import sha256_bytes, sha256_file, sha256_json
from decodehub.core.jobs import Report, run_job
from decodehub.hub_datasets.imindbench.data import open_recording, unit_folds
from decodehub.loaders.ieeg.labels import LabelTable
from decodehub.loaders.ieeg.recording import Recording
from decodehub.loaders.ieeg.splits import Fold
from decodehub.loaders.recipes import Recipe
from decodehub.loaders.session_features import Features, Windows, distinct_windows, extract, fit_normaliser
from decodehub.metrics.imindbench.grid import Unit
from decodehub.metrics.imindbench.predictions import Predictions, concatenate, fold_rows, load, load_fits, skipped_fold, to_parquet

from .models import FoldData, ModelSpec
from .training import SEED

PACKAGES = ("numpy", "scipy", "torch", "scikit-learn")


class UnitFile(NamedTuple):
    """Where the predictions of one model on one unit are, and the hash of the file."""

    model: str
    unit: str
    path: Path
    sha256: str


class SweepReport(NamedTuple):
    """What a process did: files that are there now, and errors by ``model/unit``; `job` counts them."""

    files: list[UnitFile]
    job: Report


class _Session(NamedTuple):
    recording: Recording
    tables: dict[str, LabelTable]
    folds: dict[str, list[Fold]]
    errors: dict[str, str]  # of tasks whose labels or folds could not be made


def sweep(
    out: Path,
    data_folder: Path,
    units: Sequence[Unit],
    models: Sequence[ModelSpec],
    recipe: Recipe,
    *,
    rank: int = 0,
    world: int = 1,
    progress: bool = True,
) -> SweepReport:
    """Fit and predict every unit of this process's sessions with every model.

    The features of a session are made once, when a unit needs them, and shared by its tasks, folds and models. A file is reused only if
    recipe, model, labels, folds, recording and code are what it was made with.

    Args:
        out: folder of the run; files go to ``units/MODEL/DATASET/SESSION/TASK.parquet``.
        data_folder: as `data.resolve_folder` gives it.
        units: what to run.
        models: what to fit.
        recipe: the preprocessing.
        rank, world: this process and how many share the job; whole sessions are dealt.
        progress: show a bar.
    """
    sessions: dict[tuple[str, str], list[Unit]] = {}
    for unit in units:
        sessions.setdefault((unit.dataset, unit.subject_session), []).append(unit)
    mine = list(sessions.values())[rank::world]
    files: list[UnitFile] = []
    report = Report([], [], {})
    with tqdm(total=sum(map(len, mine)) * len(models), desc="units", disable=not progress or rank != 0) as bar:
        for own in mine:
            try:
                session = _open(data_folder, own)
                identity = fingerprint(session.recording)
            except Exception as error:  # one session that cannot be read must not end a night's job; it is reported at the end
                for model in models:
                    report.failed.update({f"{model.name}/{unit.id}": f"{type(error).__name__}: {error}" for unit in own})
                bar.update(len(own) * len(models))
                continue
            features = _LazyFeatures(session, recipe, out)
            for unit in own:
                for model in models:
                    _run_unit(out, session, identity, unit, model, recipe, features, files, report)
                    bar.update()
    return SweepReport(files, report)


def _run_unit(
    out: Path,
    session: _Session,
    identity: str,
    unit: Unit,
    model: ModelSpec,
    recipe: Recipe,
    features: _LazyFeatures,
    files: list[UnitFile],
    report: Report,
) -> None:
    """Make or reuse the file of one unit and model, and add to `files` and `report`."""
    name = f"{model.name}/{unit.id}"
    if unit.task in session.errors:
        report.failed[name] = session.errors[unit.task]
        return
    folder, key = out / "units" / model.name / unit.dataset / unit.subject_session, f"{unit.task}.parquet"
    settings = sha256_json(unit_settings(session, unit, identity, model, recipe))
    found = run_job({key: unit}, lambda u: _unit_bytes(session, u, features, model, recipe), folder, settings, progress=False)
    report.made.extend([name] * len(found.made))
    report.reused.extend([name] * len(found.reused))
    if found.failed:
        report.failed[name] = found.failed[key]
    else:
        files.append(UnitFile(model.name, unit.id, folder / key, sha256_file(folder / key)))


def collect(files: Sequence[UnitFile], model: str, units: Sequence[Unit]) -> Predictions:
    """The predictions of one model on all units, in the order of `units`.

    Raises:
        ValueError: a unit is missing, or a file has changed since it was made.
    """
    by_unit = {file.unit: file for file in files if file.model == model}
    if missing := [unit.id for unit in units if unit.id not in by_unit]:
        raise ValueError(f"{len(missing)} units of {model} have no predictions, the first is {missing[0]}")
    parts = []
    for unit in units:
        file = by_unit[unit.id]
        if sha256_file(file.path) != file.sha256:
            raise ValueError(f"{file.path} has changed while it was collected")
        parts.append(load(file.path))
    return concatenate(parts)


def fit_summary(files: Sequence[UnitFile], model: str) -> str:
    """How the fits of one model went, in words, for its record: steps, gradients and epochs over all folds that were fitted."""
    fits = [fit for file in files if file.model == model for fit in load_fits(file.path) if fit["status"] == "ok"]
    words = [f"{len(fits)} fits"]
    if any("converged" in fit for fit in fits):
        words.append(f"{sum(fit['converged'] for fit in fits)} by their own stopping rule, solver {fits[0]['solver']}")
    for key, text in (("n_iter", "steps"), ("relative_gradient", "gradient relative to zero weights"), ("best_epoch", "best epoch")):
        values = [fit[key] for fit in fits if key in fit]
        if values:
            words.append(f"{text}: median {np.median(values):.3g}, largest {max(values):.3g}")
    return "; ".join(words)


def unit_settings(session: _Session, unit: Unit, identity: str, model: ModelSpec, recipe: Recipe) -> dict[str, Any]:
    """Everything that the predictions of a unit depend on, as JSON values."""
    table = session.tables[unit.task]
    folds = [
        [fold.index, fold.status, *(sha256_bytes(fold.part(p).astype("<i8").tobytes()) for p in ("train", "val", "test"))]
        for fold in session.folds[unit.task]
    ]
    return {
        "unit": unit.id,
        "recording": identity,
        "windows": sha256_bytes(table.start_s.astype("<f8").tobytes() + table.label.astype("<i8").tobytes()),
        "folds": folds,
        "recipe": recipe.hash,
        "model": [model.name, model.hash, str(model.fraction)],
        "code": run_code(),
    }


@cache
def run_code() -> str:
    """Changes when the code or the packages that make predictions do."""
    return code_hash("decodehub.runs.ieeg.sweep", packages=PACKAGES)


def fingerprint(recording: Recording) -> str:
    """Hash of what a recording is: names, rates, and where its signals come from (`Recording.source`)."""
    head = [
        recording.dataset,
        recording.recording_id,
        float(recording.sfreq),
        list(recording.ch_names),
        int(recording.n_samples),
        float(recording.line_freq),
        float(recording.start_s),
        recording.simulated,
    ]
    return sha256_json([head, recording.source()])


# ---------------------------------------------------------------------------------------------------------------------------- one unit


def _open(data_folder: Path, units: Sequence[Unit]) -> _Session:
    recording = open_recording(data_folder, units[0].dataset, units[0].subject_session)
    session = _Session(recording, {}, {}, {})
    for unit in units:
        try:
            table, folds = unit_folds(data_folder, unit.dataset, unit.subject_session, unit.task, recording.recording_id)
            session.tables[unit.task], session.folds[unit.task] = table, folds
        except Exception as error:  # the other tasks of the session go on
            session.errors[unit.task] = f"{type(error).__name__}: {error}"
    return session


class _LazyFeatures:
    """Features of a session's windows, made when first asked for; an error then is the same error for every unit."""

    def __init__(self, session: _Session, recipe: Recipe, folder: Path) -> None:
        self.session, self.recipe, self.folder = session, recipe, folder
        self._made: tuple[Windows, Features] | None = None
        self._error: Exception | None = None

    def get(self) -> tuple[Windows, Features]:
        if self._error is not None:
            raise self._error
        if self._made is None:
            try:
                used = {task: _used_rows(folds) for task, folds in self.session.folds.items()}
                starts = {task: self.session.tables[task].start_s[rows] for task, rows in used.items()}
                windows = distinct_windows(self.session.recording, starts, self.recipe)
                # Back to rows of the label tables: -1 for those that no fold uses.
                rows = {}
                for task, table_rows in used.items():
                    rows[task] = np.full(len(self.session.tables[task]), -1, dtype=np.int64)
                    rows[task][table_rows] = windows.rows[task]
                features = extract(self.recipe, self.session.recording, windows.first, folder=self.folder)
                self._made = windows._replace(rows=rows), features
            except Exception as error:
                self._error = error
                raise
        return self._made


def _used_rows(folds: Sequence[Fold]) -> np.ndarray:
    parts = [fold.part(name) for fold in folds if fold.status == "ok" for name in ("train", "val", "test")]
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int64)


def _unit_bytes(session: _Session, unit: Unit, lazy: _LazyFeatures, model: ModelSpec, recipe: Recipe) -> bytes:
    parts, fits = [], []
    for whole in session.folds[unit.task]:
        fold = whole if model.fraction == 1 else smaller_fold(whole, session.tables[unit.task].label, model.fraction)
        if fold.status != "ok":
            parts.append(skipped_fold(unit.id, fold.index, fold.reason))
            fits.append({"fold": fold.index, "status": fold.status, "reason": fold.reason})
            continue
        predictions, report = _fold(session, unit, fold, lazy, model, recipe)
        parts += predictions
        size = {"train_windows": len(fold.train), "train_fraction": str(model.fraction)}
        fits.append({"fold": fold.index, "status": "ok", **size, **report})
    return to_parquet(concatenate(parts), fits)


def smaller_fold(fold: Fold, label: np.ndarray, fraction: Fraction) -> Fold:
    """A fold with a random share of its training windows; a smaller share is part of a larger one, and the rest of the fold stays.

    The order is drawn from the benchmark's seed and the fold; iMINDBench says "random per fold" and no more. A share that lacks a class makes
    the fold unscorable, with the reason.
    """
    if fold.status != "ok":
        return fold
    order = np.random.default_rng(SEED + fold.index).permutation(len(fold.train))
    kept = np.sort(order[: max(1, round(len(order) * fraction))])
    train = fold.train[kept]
    if len(np.unique(label[train])) < 2:
        reason = f"{len(train)} training windows ({fraction} of {len(fold.train)}) are of one class"
        return dataclasses.replace(fold, train=train, status="unscorable", reason=reason)
    return dataclasses.replace(fold, train=train)


def _fold(
    session: _Session, unit: Unit, fold: Fold, lazy: _LazyFeatures, model: ModelSpec, recipe: Recipe
) -> tuple[list[Predictions], dict[str, Any]]:
    windows, features = lazy.get()
    label = session.tables[unit.task].label.astype(np.int64)
    row = windows.rows[unit.task]
    normaliser = fit_normaliser(recipe.stages[-1] if recipe.stages[-1].name == "normalise" else None, features.values, row[fold.train])
    x, x_val = (normaliser.take(features.values, row[rows]) for rows in (fold.train, fold.val))
    fitted = model.fit(FoldData(x, label[fold.train], x_val, label[fold.val], fold.index, features.ch_names, recipe.hash, unit.id))
    found = []
    for split, rows, values in (("val", fold.val, x_val), ("test", fold.test, None)):
        if values is None:
            values = normaliser.take(features.values, row[rows])
        found.append(fold_rows(unit.id, fold.index, split, rows, label[rows], fitted.predict(values)))
    return found, fitted.report
