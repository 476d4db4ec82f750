"""What a run saves: one row a window of every unit and fold, as one Parquet file, and the checks on it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from decodehub.core.files import canonical_json, inside, read_data, write_bytes

from .grid import FOLDS, Grid
from .scoring import batched_accuracy, batched_auc

COLUMNS = ("unit", "fold", "split", "window", "label", "probability", "reason")
REQUIRED = ("unit", "fold", "window", "label", "probability")
SPLITS = ("val", "test")
SCORES = ("probabilities", "logits")  # what `probability` holds; logits are any scores that rise with class 1
MAX_WINDOW = 2**31 - 1


class Predictions(NamedTuple):
    """Columns of equal length; see `COLUMNS`.

    Attributes:
        unit: (n,) object, unit ids.
        fold: (n,) int64, 0 or 1.
        split: (n,) object, "val" or "test".
        window: (n,) int64, row of the window in the unit's label table; -1 in the row of a fold that was not scored.
        label: (n,) int64, 0 or 1; -1 in such a row.
        probability: (n,) float64 of class 1, or logits where that is said (`SCORES`); NaN in such a row.
        reason: (n,) object, why the fold was not scored; "" elsewhere.
    """

    unit: np.ndarray
    fold: np.ndarray
    split: np.ndarray
    window: np.ndarray
    label: np.ndarray
    probability: np.ndarray
    reason: np.ndarray


class Cells(NamedTuple):
    """Scores of every unit and fold, in the order of `unit`, then fold.

    Attributes:
        unit: (n,) unit ids. fold: (n,) int64.
        auc, accuracy: (n,) float64 on test windows, NaN where there is a reason. val_auc: the same on validation windows.
        n_test: (n,) int64 test windows. reason: (n,) why there is no score; "" where there is one.
    """

    unit: np.ndarray
    fold: np.ndarray
    auc: np.ndarray
    accuracy: np.ndarray
    val_auc: np.ndarray
    n_test: np.ndarray
    reason: np.ndarray


def fold_rows(unit: str, fold: int, split: str, window: np.ndarray, label: np.ndarray, probability: np.ndarray) -> Predictions:
    """Predictions of one part of one fold.

    Raises:
        ValueError: a window or label that is no whole number.
    """
    n = len(window)
    for field, values in (("window", window), ("label", label)):
        require_whole(field, np.asarray(values), np.ones(n, dtype=bool), lambda i: f"unit {unit!r}, fold {fold}, row {i}", low=-1)
    text = (np.full(n, value, dtype=object) for value in (unit, split, ""))
    name, part, reason = text
    return Predictions(
        name, np.full(n, fold, dtype=np.int64), part, np.asarray(window, dtype=np.int64), np.asarray(label, dtype=np.int64),
        np.asarray(probability, dtype=np.float64), reason,
    )  # fmt: skip


def skipped_fold(unit: str, fold: int, reason: str) -> Predictions:
    """The one row of a fold that was not scored."""
    row = fold_rows(unit, fold, "test", np.array([-1]), np.array([-1]), np.array([np.nan]))
    return row._replace(reason=np.array([reason], dtype=object))


def concatenate(parts: Sequence[Predictions]) -> Predictions:
    """All rows of several predictions, in order."""
    if not parts:
        raise ValueError("there are no predictions")
    return Predictions(*(np.concatenate(columns) for columns in zip(*parts)))


def to_parquet(predictions: Predictions, fits: list[dict[str, Any]] | None = None) -> bytes:
    """The bytes of the Parquet file; equal predictions give equal bytes under one version of pyarrow.

    Args:
        predictions: the rows.
        fits: how the fit of each fold went, JSON values, kept in the file's metadata (`load_fits`).
    """
    none = np.array(predictions.reason != "", dtype=bool)
    columns = {
        "unit": pa.array(predictions.unit, pa.string()),
        "fold": pa.array(predictions.fold, pa.int8()),
        "split": pa.array(predictions.split, pa.string()),
        "window": pa.array(predictions.window, pa.int32()),
        "label": pa.array(predictions.label, pa.int8(), mask=none),
        "probability": pa.array(predictions.probability, pa.float64(), mask=none),
        "reason": pa.array(predictions.reason, pa.string(), mask=~none),
    }
    table = pa.table(columns)
    if fits is not None:
        table = table.replace_schema_metadata({"fits": canonical_json(fits)})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def save(path: Path, predictions: Predictions) -> None:
    """Write the Parquet file whole or not at all."""
    write_bytes(path, to_parquet(predictions))


def load(path: Path) -> Predictions:
    """Read a predictions file: columns unit, fold, window, label, probability, and perhaps split ("test" by default) and reason.

    Raises:
        ValueError: not such a file; the column, or the first row that cannot be used.
    """
    path = Path(path)
    try:
        table = pd.read_parquet(io.BytesIO(read_data(path)))
    except FileNotFoundError:
        raise
    except Exception as error:  # pyarrow has its own error classes for damaged files
        raise ValueError(f"{path} cannot be read as Parquet: {error}") from None
    if missing := [name for name in REQUIRED if name not in table]:
        raise ValueError(
            f"{path} lacks the columns {missing}; it has {list(table)}, expected {', '.join(COLUMNS)} (split and reason may be left out)"
        )
    n = len(table)
    if n == 0:
        raise ValueError(f"{path} has no rows")
    if "split" not in table:
        table["split"] = "test"
    reason = np.full(n, "", dtype=object) if "reason" not in table else table["reason"].fillna("").astype(object).to_numpy()
    skipped = np.array(reason != "", dtype=bool)

    def where(i: int) -> str:
        return f"{path}, row {i} (unit {table['unit'].iloc[i]!r})"

    numbers = {}
    for field in ("fold", "window", "label", "probability"):
        column = table[field]
        if not pd.api.types.is_numeric_dtype(column) and not column.isna().all():
            raise ValueError(f"{path}: the column {field} holds {column.dtype} values, expected numbers")
        numbers[field] = column.to_numpy(dtype=np.float64, na_value=np.nan)
    if len(bad := np.flatnonzero(np.isnan(numbers["probability"]) != skipped)):
        raise ValueError(
            f"{where(bad[0])}: a missing probability needs a reason, and only it has one ({len(bad)} such rows); give one such row for a "
            "fold that could not be scored"
        )
    require_whole("fold", numbers["fold"], np.ones(n, dtype=bool), where)
    for field in ("window", "label"):
        require_whole(field, numbers[field], ~skipped, where)
    fold, window, label = (
        np.where(skipped & (field != "fold"), -1, np.nan_to_num(numbers[field], nan=-1)).astype(np.int64)
        for field in ("fold", "window", "label")
    )
    units, splits = (table[field].astype(object).to_numpy() for field in ("unit", "split"))
    return Predictions(units, fold, splits, window, label, numbers["probability"], reason)


def require_whole(field: str, values: np.ndarray, rows: np.ndarray, where: Callable[[int], str], *, low: int = 0) -> None:
    """Refuse numbers that are not whole, below `low` or beyond `MAX_WINDOW`: nothing is cut to a whole number.

    Args:
        field: what they are. values: (n,) numbers. rows: (n,) bool, which count. where: names a row.

    Raises:
        ValueError: the first such row is named, and how many there are.
    """
    values = values.astype(np.float64)
    with np.errstate(invalid="ignore"):
        bad = np.flatnonzero(rows & ~((values == np.floor(values)) & (values >= low) & (values <= MAX_WINDOW)))
    if len(bad):
        found = "missing" if np.isnan(values[bad[0]]) else f"{values[bad[0]]:g}"
        raise ValueError(f"{where(bad[0])}: {field} is {found}, expected a whole number of at least {max(low, 0)} ({len(bad)} such rows)")


def load_fits(path: Path) -> list[dict[str, Any]]:
    """What `to_parquet` was given as `fits`; empty for a file without it."""
    return list(json.loads((pq.read_schema(path).metadata or {}).get(b"fits", b"[]")))


def load_inside(folder: Path, name: str) -> Predictions:
    """Read the predictions file `name` of a record's folder."""
    return load(inside(folder, name))


def score_cells(predictions: Predictions, grid: Grid, scores: str = "probabilities") -> Cells:
    """Score every unit and fold at once; whether windows and labels are the true ones is for `truth.check_labels`.

    A cell with one class in its test windows has no score and says so.

    Args:
        predictions: the rows. grid: the release.
        scores: one of `SCORES`; of logits there is no accuracy (NaN).

    Raises:
        ValueError: unknown units, folds or splits, a fold of a unit that is missing, a window that is there twice, a label that is not 0
            or 1, a probability that is not finite (or from 0 to 1, unless they are logits), or a fold that is scored and skipped; the cell
            is named.
    """
    _check(predictions, grid, scores)
    index = {unit: i for i, unit in enumerate(grid.ids)}
    place = np.array([index[unit] for unit in predictions.unit], dtype=np.int64)
    cell = place * len(FOLDS) + predictions.fold
    is_test = predictions.split == "test"
    order = np.lexsort((predictions.window, ~is_test, cell))
    cell, is_test = cell[order], is_test[order]
    label, probability, window, reason = (
        x[order] for x in (predictions.label, predictions.probability, predictions.window, predictions.reason)
    )

    def name(c: int) -> str:
        return f"unit {grid.ids[c // len(FOLDS)]!r}, fold {c % len(FOLDS)}"

    same = (cell[1:] == cell[:-1]) & (is_test[1:] == is_test[:-1]) & (window[1:] == window[:-1])
    if len(twice := np.flatnonzero(same)):
        raise ValueError(f"{name(cell[twice[0]])}: window {window[twice[0]]} is there twice in one split ({len(twice)} duplicates in all)")
    cells, starts = np.unique(cell, return_index=True)
    _require_both_folds(cells, name)
    ends = np.append(starts[1:], len(cell))
    skipped = np.maximum.reduceat((reason != "").astype(np.int64), starts).astype(bool)
    for k in np.flatnonzero(skipped):
        if ends[k] - starts[k] != 1:
            raise ValueError(
                f"{name(int(cells[k]))} has a row with the reason {reason[starts[k]]!r} and other rows: it is scored or it is not"
            )
    n_test = np.add.reduceat((is_test & (reason == "")).astype(np.int64), starts)
    n_val = np.where(skipped, 0, ends - starts - n_test)
    if len(none := np.flatnonzero(~skipped & (n_test == 0))):
        raise ValueError(f"{name(int(cells[none[0]]))} has no test windows")
    scored = reason == ""
    test, val = is_test & scored, ~is_test & scored
    auc = batched_auc(probability[test], label[test], n_test)
    why = [
        str(reason[s]) if skip else ("" if np.isfinite(a) else f"the {n} test windows are of one class")
        for s, skip, a, n in zip(starts, skipped, auc, n_test)
    ]
    defined = np.isfinite(auc) & (scores == "probabilities")
    accuracy = np.where(defined, batched_accuracy(probability[test], label[test], n_test), np.nan)
    val_auc = batched_auc(probability[val], label[val], n_val)
    ids = np.array([grid.ids[c // len(FOLDS)] for c in cells], dtype=object)
    return Cells(ids, cells % len(FOLDS), auc, accuracy, val_auc, n_test, np.array(why, dtype=object))


def _require_both_folds(cells: np.ndarray, name: Callable[[int], str]) -> None:
    """`cells` are numbers of a unit and fold, as `name` takes them."""
    units = np.unique(cells // len(FOLDS))
    wanted = (units[:, None] * len(FOLDS) + np.arange(len(FOLDS))).ravel()
    if len(missing := np.setdiff1d(wanted, cells)):
        raise ValueError(
            f"{len(missing)} folds are missing, the first is of {name(int(missing[0]))}: give both folds of every unit, or one row with a reason"
        )


def _check(p: Predictions, grid: Grid, scores: str) -> None:
    if scores not in SCORES:
        raise ValueError(f"scores must be one of {', '.join(SCORES)}, found {scores!r}")
    if len({len(column) for column in p}) != 1 or not len(p.unit):
        raise ValueError(f"columns of lengths {[len(column) for column in p]}: they must be equal and not empty")
    known = set(grid.ids)
    if unknown := sorted({str(u) for u in set(p.unit)} - known):
        raise ValueError(
            f"{len(unknown)} units are not in release {grid.release!r} of imindbench, the first is {unknown[0]!r}; a unit is DATASET/SUBJECT_SESSION/TASK, "
            f"e.g. {grid.ids[0]!r}"
        )
    scored = np.array(p.reason == "", dtype=bool)
    if whole := [name for name in ("fold", "window", "label") if not np.issubdtype(getattr(p, name).dtype, np.integer)]:
        raise ValueError(f"{', '.join(whole)} must be whole numbers, found {getattr(p, whole[0]).dtype} values")
    outside = scored & np.isfinite(p.probability) & ((p.probability < 0) | (p.probability > 1)) & (scores == "probabilities")
    if outside.any():
        i = int(np.flatnonzero(outside)[0])
        raise ValueError(
            f"row {i} (unit {p.unit[i]!r}, fold {p.fold[i]}): probability is {p.probability[i]:g}, expected a number from 0 to 1 "
            f'({outside.sum()} such rows). For logits, or other scores that rise with class 1, say scores="logits" (--scores logits): '
            "accuracy is then left out"
        )
    checks = (
        ("fold", ~np.isin(p.fold, FOLDS), f"expected one of {FOLDS}"),
        ("split", ~np.isin(p.split.astype(str), SPLITS), f"expected one of {SPLITS}"),
        ("window", scored & (p.window < 0), "expected 0 or more"),
        ("label", scored & ~np.isin(p.label, (0, 1)), "expected 0 or 1"),
        ("probability", scored & ~np.isfinite(p.probability), "expected a finite number"),
    )
    for field, bad, expected in checks:
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            raise ValueError(
                f"row {i} (unit {p.unit[i]!r}, fold {p.fold[i]}): {field} is {getattr(p, field)[i]}, {expected} ({bad.sum()} such rows)"
            )
