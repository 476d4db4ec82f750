"""From embeddings to score matrices, so that equal embeddings get equal scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from decodehub.core.words import suggest


class Scores(NamedTuple):
    """Score matrices of one run: `source_scores` (Q, Q), `edit_scores` (Q, E), `null_scores` (Q, Q) or None; queries in rows."""

    source_scores: np.ndarray
    edit_scores: np.ndarray
    null_scores: np.ndarray | None


def as_embeddings(x: Any, name: str) -> np.ndarray:
    """Embeddings of whatever kind as an array (rows, D) of float32 or wider.

    Args:
        x: (rows, D) real numbers: an array, nested lists, or a tensor of any float type, on any device, with or without gradient.
        name: what to call it in errors.

    Raises:
        ValueError: complex numbers, objects, strings, truth values or extended precision, or not two axes.
    """
    if callable(getattr(x, "detach", None)):  # a torch tensor; torch itself is not needed here
        x = x.detach().cpu()
        # bfloat16 and the 8-bit types are not numpy's.
        x = x.float() if x.is_floating_point() and str(x.dtype).removeprefix("torch.") not in FLOATS else x
    try:
        array = np.asarray(x)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} cannot be read as an array: {error}") from None
    if array.dtype.name.startswith(("bfloat16", "float8")):
        array = array.astype(np.float32)
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
        raise ValueError(f"{name} holds {array.dtype}: embeddings are real numbers in {', '.join(FLOATS)}, bfloat16 or whole numbers")
    if array.ndim != 2:
        raise ValueError(f"{name} has shape {array.shape}, expected (rows, dimensions)")
    return array.astype(np.result_type(array.dtype, np.float32), copy=False)


def cosine_scores(queries: Any, images: Any, names: tuple[str, str] = ("query embeddings", "image embeddings")) -> np.ndarray:
    """Cosine similarity of every query with every image, (Q, D) and (N, D) to (Q, N), in the wider of their dtypes (at least float32).

    Raises:
        ValueError: not matrices of one width, a non-finite value, or a zero vector; the row is named, and what `names` calls its matrix.
    """
    left, right = _matrices(queries, images, names)
    lengths = []
    for x, name in ((left, names[0]), (right, names[1])):
        with np.errstate(over="ignore"):  # an overflow is named below
            length = np.sqrt(np.vecdot(x, x))
        if len(bad := np.flatnonzero(~(np.isfinite(length) & (length > 0)))):
            check_finite(x, name)  # a value that is not finite is the better error
            raise ValueError(f"{name}: {len(bad)} rows have no direction (zero, or too large), the first is row {bad[0]}")
        lengths.append(length)
    scores = right @ (left / lengths[0][:, None]).T
    scores /= lengths[1][:, None]  # dividing the products, not the vectors, spares a copy of all image embeddings
    return scores.T  # an image's scores lie together, which is how `score_run` reads them


def dot_scores(queries: Any, images: Any, names: tuple[str, str] = ("query embeddings", "image embeddings")) -> np.ndarray:
    """Inner product of every query with every image, (Q, D) and (N, D) to (Q, N), dtype as in `cosine_scores`.

    Raises:
        ValueError: not matrices of one width, or a non-finite value; the row is named, and what `names` calls its matrix.
    """
    left, right = _matrices(queries, images, names)
    check_finite(left, names[0])
    check_finite(right, names[1])
    return left @ right.T


FLOATS = ("float16", "float32", "float64")
SIMILARITIES: dict[str, Callable[[Any, Any, tuple[str, str]], np.ndarray]] = {"cosine": cosine_scores, "dot": dot_scores}


def check_similarity(similarity: str) -> None:
    """Raise ValueError for a similarity that is not computed here."""
    if similarity not in SIMILARITIES:
        raise ValueError(
            f"similarity must be one of {sorted(SIMILARITIES)}, found {similarity!r}{suggest(similarity, SIMILARITIES)}; "
            "score another one yourself and pass its rows"
        )


def score_embeddings(
    queries: Any,
    sources: Any,
    edits: Any,
    nulls: Any | None = None,
    similarity: str = "cosine",
    names: tuple[str, str, str, str] = ("query embeddings", "source embeddings", "edit embeddings", "null embeddings"),
) -> Scores:
    """Score matrices of one run from its embeddings.

    A matrix product may round two equal rows differently, and that rounding would decide what the protocol calls a tie (an edit that an
    encoder does not see). Images with equal embeddings therefore share one column of scores, to the bit.

    Args:
        queries: (Q, D), the EEG embeddings. sources: (Q, D). edits: (E, D). nulls: (Q, D) or None.
        similarity: "cosine" or "dot".
        names: what to call the four in errors.

    Raises:
        ValueError: an unknown similarity, types that are no embeddings, different widths, a row that is not finite or, for cosine, zero.
    """
    check_similarity(similarity)
    queries = as_embeddings(queries, names[0])
    given = [(x, name) for x, name in zip((sources, edits, nulls), names[1:]) if x is not None]
    images = [as_embeddings(x, name) for x, name in given]
    scores = [SIMILARITIES[similarity](queries, x, (names[0], name)) for x, (_, name) in zip(images, given)]
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


def check_finite(x: np.ndarray, name: str) -> None:
    """Raise ValueError for rows (n, D) that are not finite; the first is named."""
    if len(bad := np.flatnonzero(~np.isfinite(x).all(1))):
        raise ValueError(f"{name}: {len(bad)} rows are not finite, the first is row {bad[0]}")


def _matrices(queries: Any, images: Any, names: tuple[str, str]) -> tuple[np.ndarray, np.ndarray]:
    left, right = (as_embeddings(x, name) for x, name in zip((queries, images), names))
    if left.shape[1] != right.shape[1]:
        raise ValueError(f"{names[0]} are {left.shape[1]} wide and {names[1]} {right.shape[1]}: both must be embeddings in one space")
    return left, right
