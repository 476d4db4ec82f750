"""What a trained retrieval model makes of a benchmark: embeddings, the scores computed from them, and the file of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save

from decodehub.core.files import canonical_json
from decodehub.metrics.eeg_editbench.protocol import Predictions
from decodehub.metrics.eeg_editbench.similarity import Scores

PRECISIONS = ("float32", "float16")


class Embeddings(NamedTuple):
    """Embeddings of one run: `eeg` (Q, D), `sources` (Q, D), `edits` (E, D) and `nulls` (Q, D) or None, in score order."""

    eeg: np.ndarray
    sources: np.ndarray
    edits: np.ndarray
    nulls: np.ndarray | None


def embed(
    model: Any,
    eeg: np.ndarray,
    candidates: Mapping[str, Mapping[str, np.ndarray]],
    subject: int,
    precision: str = "float32",
    batch_size: int = 512,
) -> Embeddings:
    """Embeddings of every query and candidate. Candidates with equal features are embedded once and have equal embeddings, to the bit.

    Args:
        model: a trained model of :mod:`decodehub.hub_models.eeg_retrieval`, or a fitted baseline of that folder.
        eeg: (Q, C, T) float32 test epochs, in score order.
        candidates: features (rows, d) by part, of "sources", "edits" and perhaps "nulls".
        subject: number of the person.
        precision: "float32", or "float16" for files of half the size.
        batch_size: rows embedded at once.
    """
    dims: Mapping[str, int] = getattr(model.config, "image_inputs", None) or {"image": model.config.embed_dim}
    groups = [group for group in ("sources", "edits", "nulls") if group in candidates]
    rows = np.concatenate([np.concatenate([candidates[group][name] for name in dims], axis=1) for group in groups]).astype(np.float32)
    distinct, column = _distinct(rows)
    borders = np.cumsum(list(dims.values()))[:-1]
    model.eval()

    def images(part: np.ndarray) -> torch.Tensor:
        parts = {name: torch.from_numpy(np.ascontiguousarray(x)).to(model.device) for name, x in zip(dims, np.split(part, borders, 1))}
        return model.get_image_features(parts if hasattr(model.config, "image_inputs") else parts["image"])

    with torch.inference_mode():
        batches = torch.from_numpy(np.ascontiguousarray(eeg)).split(batch_size)
        takes_subject = hasattr(model.config, "image_inputs")
        queries = [
            model.get_eeg_features(*((part.to(model.device), subject) if takes_subject else (part.to(model.device),))) for part in batches
        ]
        pictures = [images(part) for part in np.split(distinct, range(batch_size, len(distinct), batch_size))]
    as_array = [torch.cat(x).float().cpu().numpy().astype(precision) for x in (queries, pictures)]
    sizes = np.cumsum([len(next(iter(candidates[group].values()))) for group in groups])[:-1]
    split = dict(zip(groups, np.split(as_array[1][column], sizes)))
    return Embeddings(as_array[0], split["sources"], split["edits"], split.get("nulls"))


def score(model: Any, embeddings: Embeddings) -> Scores:
    """Float32 scores of every query with every candidate by ``model.score``; candidates with equal embeddings have equal scores."""
    given = [x for x in embeddings[1:] if x is not None]
    distinct, column = _distinct(np.concatenate(given).astype(np.float32))
    with torch.inference_mode():
        queries = torch.from_numpy(embeddings.eeg.astype(np.float32)).to(model.device)
        scores = model.score(queries, torch.from_numpy(distinct).to(model.device)).float().cpu().numpy()[:, column]
    parts = np.split(scores, np.cumsum([len(x) for x in given])[:-1], axis=1)
    return Scores(parts[0], parts[1], parts[2] if embeddings.nulls is not None else None)


def score_candidates(
    model: Any, eeg: np.ndarray, candidates: Mapping[str, Mapping[str, np.ndarray]], subject: int, batch_size: int = 512
) -> Scores:
    """Scores of every query with every source, edit and null edit; the arguments are those of :func:`embed`."""
    return score(model, embed(model, eeg, candidates, subject, batch_size=batch_size))


def run_bytes(embeddings: Embeddings, scores: Scores, info: Mapping[str, Any]) -> bytes:
    """The file of a run: embeddings, the scores computed from them, and what the run was as metadata (JSON values)."""
    tensors = {**embeddings._asdict(), **scores._asdict()}
    arrays = {name: np.ascontiguousarray(x) for name, x in tensors.items() if x is not None}
    return save(arrays, metadata={"run": canonical_json(dict(info))})


def read_run(path: Path) -> tuple[Predictions, dict[str, Any]]:
    """Scores and metadata of a run's file.

    Raises:
        ValueError: it was not written by :func:`run_bytes`.
    """
    try:
        with safe_open(path, framework="numpy") as f:
            info = json.loads((f.metadata() or {})["run"])
            null = f.get_tensor("null_scores") if "null_scores" in set(f.keys()) else None
            scores = Scores(f.get_tensor("source_scores"), f.get_tensor("edit_scores"), null)
            return Predictions(int(info["subject"]), int(info["seed"]), *scores), info
    except Exception as error:  # safetensors has its own error class for damaged files
        raise ValueError(
            f"{path} cannot be read as the file of a run: {type(error).__name__}: {error}; delete it and run the study again"
        ) from None


def _distinct(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different rows, and for each row which of them it is. By their bytes: np.unique sorts rows, which takes long for many columns."""
    first: dict[bytes, int] = {}
    column = np.array([first.setdefault(row.tobytes(), len(first)) for row in rows])
    return rows[np.unique(column, return_index=True)[1]], column
