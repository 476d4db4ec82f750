"""How similar the reasons are that annotators give (figure 3, right): mean cosine of sentence embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np

Encoder = Callable[[list[str]], Any]  # n texts -> (n, d) array or scipy sparse matrix
MINILM = "sentence-transformers/all-MiniLM-L6-v2"  # the encoder of the released code


def rationale_similarity(rationales: Sequence[Sequence[str | None]], encode: Encoder) -> np.ndarray:
    """Mean cosine between the reasons of every two annotators, over the items where all annotators gave one.

    Args:
        rationales: (n_items, n_annotators) texts, None where there is none.
        encode: the sentence encoder; called once, with every distinct text.

    Returns:
        (n_annotators, n_annotators) float64 with ones on the diagonal; NaN if no item has a reason of all.

    Raises:
        ValueError: rows of different lengths, or an encoder that gives another number of rows or a zero row.
    """
    widths = {len(row) for row in rationales}
    if len(widths) != 1:
        raise ValueError(f"rationales have rows of {sorted(widths)} annotators; give one text or None for each in every row")
    (n_annotators,) = widths
    rows = [row for row in rationales if all(row)]
    result = np.full((n_annotators, n_annotators), np.nan)
    if not rows:
        return result
    texts = sorted({str(text) for row in rows for text in row})
    position = {text: i for i, text in enumerate(texts)}
    vectors = _unit_rows(encode(texts), texts)
    index = np.array([[position[str(text)] for text in row] for row in rows])
    np.fill_diagonal(result, 1.0)
    for a, b in combinations(range(n_annotators), 2):
        pairs, times = np.unique(index[:, [a, b]], axis=0, return_counts=True)
        product = vectors[pairs[:, 0]]
        product = product.multiply(vectors[pairs[:, 1]]) if hasattr(product, "multiply") else product * vectors[pairs[:, 1]]
        result[a, b] = result[b, a] = float(np.asarray(product.sum(1)).ravel() @ times / times.sum())
    return result


def tfidf_encoder(texts: list[str]) -> Any:
    """TF-IDF vectors of the texts: works offline, but compares words and not meanings. Never to be reported as sentence similarity."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\b\w+\b").fit_transform(texts)


def sentence_encoder(model: str = MINILM, *, batch_size: int = 64) -> Encoder:
    """An encoder of the optional package sentence-transformers.

    Args:
        model: id on the Hub, or a folder.
        batch_size: texts at once.

    Raises:
        ModuleNotFoundError: sentence-transformers is not installed.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "rationale similarity by sentence embeddings needs 'pip install sentence-transformers'; the TF-IDF encoder works without it"
        ) from None
    encoder = SentenceTransformer(model, trust_remote_code=False)
    return lambda texts: encoder.encode(texts, batch_size=batch_size, show_progress_bar=False)


def _unit_rows(vectors: Any, texts: list[str]) -> Any:
    if vectors.shape[0] != len(texts):
        raise ValueError(f"the encoder gave {vectors.shape[0]} rows for {len(texts)} texts")
    if hasattr(vectors, "multiply"):
        vectors = vectors.tocsr().astype(np.float64)
        norms = np.sqrt(np.asarray(vectors.multiply(vectors).sum(1)).ravel())
    else:
        vectors = np.asarray(vectors, dtype=np.float64)
        norms = np.linalg.norm(vectors, axis=1)
    if len(bad := np.flatnonzero(~(norms > 0))):
        raise ValueError(f"the encoder gives a zero or non-finite vector for {texts[bad[0]]!r}")
    return vectors.multiply((1 / norms)[:, None]).tocsr() if hasattr(vectors, "multiply") else vectors / norms[:, None]
