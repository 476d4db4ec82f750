"""ROC-AUC and accuracy of many cells at once, exactly, with ties. Pure functions on arrays."""

from __future__ import annotations

import numpy as np

from decodehub.core.statistics import ROUNDING

PAD_VALUES = 1 << 22  # values in one padded block


def batched_auc(scores: np.ndarray, labels: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Area under the ROC curve of each of many cells.

    AUC = (R - P (P + 1) / 2) / (P N), with R the sum of the mid-ranks of the P positives among all P + N scores: the share of
    pairs of a positive and a negative in which the positive has the higher score, a tie counting one half (Mann-Whitney). Scores of a cell
    that differ by rounding alone are one score, and the area is .5.
    Ranks are summed as whole numbers (twice the mid-rank), so the only rounding is that of the last division.

    Args:
        scores: (total,) float, one cell after the other; higher means class 1.
        labels: (total,) 0 or 1.
        sizes: (cells,) number of scores of each cell.

    Returns:
        (cells,) float64 in [0, 1]; NaN for a cell with one class or none.

    Raises:
        ValueError: sizes that do not add up, a score that is not finite, or a label that is not 0 or 1 (the cell is named).
    """
    scores, labels, sizes = np.asarray(scores, dtype=np.float64), np.asarray(labels), np.asarray(sizes, dtype=np.int64)
    _check(scores, labels, sizes)
    result = np.full(len(sizes), np.nan)
    ends = np.cumsum(sizes)
    # Cells of like size share a block, padded to the largest of them.
    order = np.argsort(sizes, kind="stable")
    order = order[sizes[order] > 0]
    start = 0
    while start < len(order):
        stop = start + 1
        while (
            stop < len(order)
            and (stop - start + 1) * sizes[order[stop]] <= PAD_VALUES
            and sizes[order[stop]] <= 2 * sizes[order[start]] + 16
        ):
            stop += 1
        cells = order[start:stop]
        result[cells] = _block(scores, labels, sizes[cells], ends[cells] - sizes[cells])
        start = stop
    return result


def _block(scores: np.ndarray, labels: np.ndarray, sizes: np.ndarray, starts: np.ndarray) -> np.ndarray:
    width = int(sizes.max())
    columns = np.arange(width)
    there = columns < sizes[:, None]
    index = np.where(there, starts[:, None] + columns, 0)
    values = np.where(there, scores[index], np.inf)  # padding sorts last, in ties of its own, and is no positive
    positive = np.where(there, labels[index], 0).astype(np.int64)
    order = np.argsort(values, axis=1)
    values, positive = np.take_along_axis(values, order, 1), np.take_along_axis(positive, order, 1)
    new = np.ones(values.shape, dtype=bool)
    np.not_equal(values[:, 1:], values[:, :-1], out=new[:, 1:])
    first = np.maximum.accumulate(np.where(new, columns, 0), axis=1)
    last_of = np.ones(values.shape, dtype=bool)
    last_of[:, :-1] = new[:, 1:]
    last = np.minimum.accumulate(np.where(last_of, columns, width)[:, ::-1], axis=1)[:, ::-1]
    twice_ranks = ((first + last + 2) * positive).sum(axis=1)
    p = positive.sum(axis=1)
    n = sizes - p
    low, high = values[:, 0], np.take_along_axis(values, (sizes - 1)[:, None], 1)[:, 0]
    constant = high - low <= ROUNDING * np.maximum(np.abs(low), np.abs(high))
    with np.errstate(invalid="ignore", divide="ignore"):
        area = np.where(constant, 0.5, (twice_ranks - p * (p + 1)) / (2.0 * p * n))
        return np.where((p > 0) & (n > 0), area, np.nan)


def batched_accuracy(scores: np.ndarray, labels: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """(cells,) share of windows whose probability is above .5 exactly if their label is 1; NaN for an empty cell.

    A probability of exactly .5 is class 0, as with an argmax over two equal probabilities.
    """
    scores, labels, sizes = np.asarray(scores, dtype=np.float64), np.asarray(labels), np.asarray(sizes, dtype=np.int64)
    _check(scores, labels, sizes)
    right = np.concatenate([[0], np.cumsum((scores > 0.5) == (labels == 1))])
    ends = np.cumsum(sizes)
    with np.errstate(invalid="ignore"):
        return (right[ends] - right[ends - sizes]) / np.where(sizes > 0, sizes, np.nan)


def _check(scores: np.ndarray, labels: np.ndarray, sizes: np.ndarray) -> None:
    if scores.ndim != 1 or scores.shape != labels.shape or sizes.ndim != 1 or (sizes < 0).any() or sizes.sum() != len(scores):
        raise ValueError(f"{scores.shape} scores, {labels.shape} labels and sizes that add up to {sizes.sum()}: they must agree")
    if len(bad := np.flatnonzero(~np.isfinite(scores))):
        raise ValueError(f"{len(bad)} scores are not finite, the first is at place {bad[0]} (cell {_cell(sizes, bad[0])})")
    if len(bad := np.flatnonzero((labels != 0) & (labels != 1))):
        raise ValueError(
            f"{len(bad)} labels are not 0 or 1, the first is {labels[bad[0]]!r} at place {bad[0]} (cell {_cell(sizes, bad[0])})"
        )


def _cell(sizes: np.ndarray, place: int) -> int:
    return int(np.searchsorted(np.cumsum(sizes), place, side="right"))
