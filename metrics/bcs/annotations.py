"""Annotated pairs of ``load_dataset("bcs-annotations")`` as arrays and images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from decodehub.metrics.bcs.scoring import QUESTIONS

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Annotations:
    """n annotated pairs, in the order of splits and rows.

    Attributes:
        release: of the annotations. rows: one dict a pair with the keys of ``protocol.COLUMNS``.
        references, reconstructions: encoded images as dicts of bytes and path; pairs of one reference share one dict.
        targets, weights: (n, 12) float64; NaN and 0 where annotators left a question out.
        split: (n,) of "train", "validation", "test". n_annotators: behind each target. weight_rule: "paper" or "released_code".
    """

    release: str
    rows: list[dict[str, Any]]
    references: list[dict[str, Any]]
    reconstructions: list[dict[str, Any]]
    targets: np.ndarray
    weights: np.ndarray
    split: np.ndarray
    n_annotators: int
    weight_rule: str

    def take(self, index: Sequence[int] | np.ndarray) -> Annotations:
        """The pairs of these rows."""
        rows = [int(i) for i in index]
        return replace(
            self,
            rows=[self.rows[i] for i in rows],
            references=[self.references[i] for i in rows],
            reconstructions=[self.reconstructions[i] for i in rows],
            targets=self.targets[rows],
            weights=self.weights[rows],
            split=self.split[rows],
        )


def load_annotations(data_dir: str | None = None, weight_rule: str = "paper", annotators: Sequence[str] | None = None) -> Annotations:
    """Load pairs and the consensus of annotators.

    Args:
        data_dir: folder of a release, ``"sample"``, or None for the one that ``load_dataset("bcs-annotations")`` gives.
        weight_rule: ``"paper"`` (one minus the variance, Eq. 18) or ``"released_code"`` (1, .75, .40).
        annotators: those whose consensus it is; all by default.

    Raises:
        ValueError: a pair in both tables with other splits, other questions, or a split without pairs.
    """
    from datasets import Image, load_dataset

    import decodehub  # noqa: F401  (the bare name)

    options: dict[str, Any] = {"weight_rule": weight_rule}
    if annotators is not None:
        options["annotators"] = list(annotators)
    pairs = load_dataset("bcs-annotations", "pairs", data_dir=data_dir)
    consensus = load_dataset("bcs-annotations", "consensus", data_dir=data_dir, **options)
    kept: dict[str, dict[str, Any]] = {}
    rows, references, reconstructions, targets, weights, split, counts = [], [], [], [], [], [], set()
    for name in SPLITS:
        table = pairs[name].cast_column("reference", Image(decode=False)).cast_column("reconstruction", Image(decode=False))
        place = {id: i for i, id in enumerate(table["pair_id"])}
        if not len(consensus[name]):
            raise ValueError(f"the split {name!r} of the annotations has no annotated pair")
        for answer in consensus[name]:
            if len(answer["targets"]) != len(QUESTIONS):
                raise ValueError(f"pair {answer['pair_id']!r} has {len(answer['targets'])} targets, expected {len(QUESTIONS)}")
            pair = table[place[answer["pair_id"]]]
            subject = None if pair["subject"] is None else f"{pair['subject']:02d}"
            rows.append(
                {key: pair[key] for key in ("pair_id", "method", "concept", "reference_sha256", "reconstruction_sha256")}
                | {"subject": subject}
            )
            references.append(kept.setdefault(pair["reference_sha256"], pair["reference"]))
            reconstructions.append(pair["reconstruction"])
            targets.append([np.nan if t is None else t for t in answer["targets"]])
            weights.append(answer["weights"])
            split.append(name)
            counts.add(answer["n_annotators"])
            release = answer["release"]
    return Annotations(
        release, rows, references, reconstructions, np.array(targets), np.array(weights), np.array(split), max(counts), weight_rule
    )
