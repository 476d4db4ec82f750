"""Scoring folders of reconstructions: pairs by name, features through the cache, table and record."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from accelerate import Accelerator

from decodehub.core.files import write_bytes
from decodehub.core.records import ModelInfo, ResultRecord
from decodehub.hub_models.bcs import BCSModel
from decodehub.loaders.frozen_encoder import hash_state_dict
from decodehub.loaders.image_encoders import load_encoder
from decodehub.loaders.pair_features import PairFeatures, pair_features
from decodehub.loaders.reconstruction_pairs import PairedFolders
from decodehub.metrics.bcs.heads import load_head
from decodehub.metrics.bcs.protocol import Pairs, Scores, make_record
from decodehub.metrics.bcs.scoring import QUESTIONS, REGIMES, regimes, t_scores


class ScoredFolders(NamedTuple):
    """The record; question scores (n, 12) and name, reference and reconstruction of the n pairs; the files that found no partner."""

    record: ResultRecord
    question_scores: np.ndarray
    pairs: list[tuple[str, Path, Path]]
    unmatched_references: list[Path]
    unmatched_reconstructions: list[Path]


def score_folders(
    found: PairedFolders,
    references: Path,
    reconstructions: Path,
    out: Path,
    *,
    model: str | None,
    data: str,
    release: str,
    cache_dir: Path,
    batch_size: int = 32,
    progress: bool = True,
) -> ScoredFolders | None:
    """Score every reconstruction that has a reference; the arguments are those of ``decodehub bcs score``.

    `found` is what :func:`decodehub.loaders.reconstruction_pairs.pair_folders` found in the two folders; its rule enters the record. Nothing is written to `out` before every image was read and every pair scored.

    Returns:
        The record and what did not match; None on the other processes of an Accelerate run.

    Raises:
        ValueError: no head, an image that cannot be read, or encoders that the head was not trained with.
        FileNotFoundError: a folder that is not there.
    """
    accelerator = Accelerator()
    # Where several processes share the work, one trains a sample head and the others find it.
    with accelerator.main_process_first():
        head = load_head(model, progress and accelerator.is_main_process)
    encoders = [load_encoder(entry["id"], accelerator.device) for entry in head.config.encoders]
    head.check_encoders([encoder.fingerprint for encoder in encoders])
    pairs = pair_features(
        encoders,
        [pair.reference for pair in found.pairs],
        [pair.reconstruction for pair in found.pairs],
        cache_dir=cache_dir,
        accelerator=accelerator,
        batch_size=batch_size,
        progress=progress,
    )
    if not accelerator.is_main_process:
        return None
    output = head.to(accelerator.device).predict(pairs.features, progress)
    scores = Scores(output.question_scores.numpy(), output.spread.numpy())
    rows = _rows(found, pairs)
    record = make_record(
        out,
        Pairs(release, rows),
        scores,
        model=_about(head, model),
        data=f"{data}; pairs by {found.rule}",
        encoders=head.config.encoders,
        output_type=head.config.output_type,
        head_release=head.config.release,
        device=accelerator.device.type,
    )
    names = [(pair.reference.relative_to(references), pair.reconstruction.relative_to(reconstructions)) for pair in found.pairs]
    write_bytes(out / "scores.csv", csv_bytes(_score_rows(rows, names, scores, record.is_sample)))
    write_bytes(out / "unmatched.csv", csv_bytes(_unmatched_rows(found, references, reconstructions)))
    named = [(pair.key, pair.reference, pair.reconstruction) for pair in found.pairs]
    return ScoredFolders(record, scores.question_scores, named, found.unmatched_references, found.unmatched_reconstructions)


def _unmatched_rows(found: PairedFolders, references: Path, reconstructions: Path) -> Iterator[Sequence[str]]:
    yield ["kind", "file"]
    yield from (("reference", path.relative_to(references).as_posix()) for path in found.unmatched_references)
    yield from (("reconstruction", path.relative_to(reconstructions).as_posix()) for path in found.unmatched_reconstructions)


def _about(head: BCSModel, model: str | None) -> ModelInfo:
    return ModelInfo(
        id=Path(model).resolve().name if model and Path(model).is_dir() else str(model or head.config.name_or_path),
        revision=getattr(head.config, "_commit_hash", None),
        parameters=head.num_parameters(),
        pretrained_on=", ".join(entry["id"] for entry in head.config.encoders),
        notes=f"head {hash_state_dict(head.network)}, trained on {head.config.n_train} pairs of bcs-annotations release {head.config.release}",
    )


def _rows(found: PairedFolders, pairs: PairFeatures) -> list[dict[str, Any]]:
    """Rows of the table of pairs."""
    return [
        {
            "pair_id": pair.key,
            "method": pair.method,
            "subject": None if pair.subject is None else f"{pair.subject:02d}",
            "concept": None,
            "reference_sha256": pairs.reference_hashes[i],
            "reconstruction_sha256": pairs.reconstruction_hashes[i],
        }
        for i, pair in enumerate(found.pairs)
    ]


def _score_rows(rows: list[dict], names: list[tuple[Path, Path]], scores: Scores, sample: bool) -> Iterator[Sequence[str]]:
    t_pas, t_sas = t_scores(scores.question_scores)
    where = regimes(t_pas, t_sas)
    assert scores.spread is not None
    head = ["pair_id", "method", "subject", "reference", "reconstruction", "t_pas", "t_sas", "regime", "spread", *QUESTIONS]
    yield [*head, *(["note"] if sample else [])]
    for i, row in enumerate(rows):
        values = [f"{x:.6f}" for x in scores.question_scores[i]]
        numbers = [f"{t_pas[i]:.6f}", f"{t_sas[i]:.6f}", REGIMES[where[i]], f"{np.mean(scores.spread[i]):.6f}", *values]
        who = [row["pair_id"], row["method"] or "", row["subject"] or "", names[i][0].as_posix(), names[i][1].as_posix()]
        yield [*who, *numbers, *(["sample head: no scientific meaning"] if sample else [])]


def csv_bytes(rows: Iterable[Sequence[str]]) -> bytes:
    """A CSV file of these rows."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()
