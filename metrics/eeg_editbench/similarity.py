"""From embeddings to score matrices, so that equal embeddings get equal scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Scores(NamedTuple):
    """Score matrices of one run: `source_scores` (Q, Q), `edit_scores` (Q, E), `null_scores` (Q, Q) or None; queries in rows."""

    source_scores: np.ndarray
    edit_scores: np.ndarray
    null_scores: np.ndarray | None


def cosine_scores(queries: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Cosine similarity of every query with every image, (Q, D) and (N, D) to (Q, N), in the wider of their dtypes (at least float32).

    Raises:
        ValueError: not matrices of one width, a non-finite value, or a zero vector; the row is named.
    """
    left, right = _matrices(queries, images)
    lengths = []
    for x, name in ((left, "query"), (right, "image")):
        with np.errstate(over="ignore"):  # an overflow is named below
            length = np.sqrt(np.vecdot(x, x))
        if len(bad := np.flatnonzero(~(np.isfinite(length) & (length > 0)))):
            _check_rows(x, name)  # a value that is not finite is the better error
            raise ValueError(f"{name} embeddings: {len(bad)} rows have no direction (zero, or too large), the first is row {bad[0]}")
        lengths.append(length)
    scores = right @ (left / lengths[0][:, None]).T
    scores /= lengths[1][:, None]  # dividing the products, not the vectors, spares a copy of all image embeddings
    return scores.T  # an image's scores lie together, which is how `score_run` reads them


def dot_scores(queries: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Inner product of every query with every image, (Q, D) and (N, D) to (Q, N), dtype as in `cosine_scores`.

    Raises:
        ValueError: not matrices of one width, or a non-finite value; the row is named.
    """
    left, right = _matrices(queries, images)
    _check_rows(left, "query")
    _check_rows(right, "image")
    return left @ right.T


SIMILARITIES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {"cosine": cosine_scores, "dot": dot_scores}


def score_embeddings(
    queries: np.ndarray, sources: np.ndarray, edits: np.ndarray, nulls: np.ndarray | None = None, similarity: str = "cosine"
) -> Scores:
    """Score matrices of one run from its embeddings.

    A matrix product may round two equal rows differently, and that rounding would decide what the protocol calls a tie (an edit that an
    encoder does not see). Images with equal embeddings therefore share one column of scores, to the bit.

    Args:
        queries: (Q, D), the EEG embeddings. sources: (Q, D). edits: (E, D). nulls: (Q, D) or None.
        similarity: "cosine" or "dot".

    Raises:
        ValueError: an unknown similarity, different widths, a row that is not finite or, for cosine, zero.
    """
    if similarity not in SIMILARITIES:
        raise ValueError(
            f"similarity must be one of {sorted(SIMILARITIES)}, found {similarity!r}; score another one yourself and pass its rows"
        )
    images = [np.asarray(x) for x in (sources, edits, nulls) if x is not None]
    scores = [SIMILARITIES[similarity](queries, x) for x in images]
    _share_columns(images, scores)
    return Scores(scores[0], scores[1], scores[2] if nulls is not None else None)


def _share_columns(images: list[np.ndarray], scores: list[np.ndarray]) -> None:
    """Give images with equal rows the score column of the first of them, in place."""
    # A cheap key by element-wise operations alone, so that equal rows have equal keys; rows of equal keys are then compared in full.
    head = np.concatenate([x[:, :8] for x in images]).astype(np.float64)
    keys = sum(head[:, k] * np.sqrt(k + 2) for k in range(head.shape[1]))
    order = np.argsort(keys, kind="stable")
    same = keys[order][1:] == keys[order][:-1]
    if not same.any():
        return
    place = [(part, row) for part, x in enumerate(images) for row in range(len(x))]
    known: list[tuple[int, int]] = []
    for k, index in enumerate(order):
        part, row = place[index]
        if k == 0 or not same[k - 1]:
            known = [(part, row)]
            continue
        for first_part, first_row in known:
            if np.array_equal(images[part][row], images[first_part][first_row]):
                scores[part][:, row] = scores[first_part][:, first_row]
                break
        else:
            known.append((part, row))


def _matrices(queries: np.ndarray, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    pair = []
    for x, name in ((np.asarray(queries), "query"), (np.asarray(images), "image")):
        if x.ndim != 2:
            raise ValueError(f"{name} embeddings have shape {x.shape}, expected (rows, dimensions)")
        pair.append(x.astype(np.result_type(x.dtype, np.float32), copy=False))
    if pair[0].shape[1] != pair[1].shape[1]:
        raise ValueError(f"queries are {pair[0].shape[1]} wide and images {pair[1].shape[1]}: both must be embeddings in one space")
    return pair[0], pair[1]


def _check_rows(x: np.ndarray, name: str) -> None:
    if len(bad := np.flatnonzero(~np.isfinite(x).all(1))):
        raise ValueError(f"{name} embeddings: {len(bad)} rows are not finite, the first is row {bad[0]}")
