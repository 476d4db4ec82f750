"""Numbers of BCS from question scores: means, regimes, agreement with targets, intervals over concepts. Pure functions on arrays.

Source: Tiwari et al. 2026, arXiv 2607.12364, Eq. 19 and 20, tables 6 and 9; where that is silent, the released code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from decodehub.core.statistics import (
    FEWEST,
    ROUNDING_32,
    Resamples,
    bootstrap_pearson,
    bootstrap_spearman,
    divide,
    mean_interval,
    pearson,
    percentile_interval,
)
from decodehub.core.statistics import spearman as rho

QUESTIONS = (
    "P1_global_spatial_structure",
    "P2_object_shape_silhouette",
    "P3_surface_texture_material",
    "P4_color_chromatic_consistency",
    "P5_artifact_absence",
    "P6_holistic_visual_recoverability",
    "S1_basic_category_identity",
    "S2_subordinate_identity",
    "S3_functional_role_purpose",
    "S4_quantity_cardinality",
    "S5_scene_context_environment",
    "S6_semantic_recoverability",
)
PERCEPTUAL = np.array([q[0] == "P" for q in QUESTIONS])
# Table 9, in its order: jointly coherent; plausible but wrong; recoverable meaning in a weak image; failed.
REGIMES = ("high_p_high_s", "high_p_low_s", "low_p_high_s", "low_p_low_s")
THRESHOLD = 0.5
MEASURES = ("q_mae", "q_r", "q_rho", "pas_mae", "pas_r", "sas_mae", "sas_r")  # the columns of table 6
INTERVALS = ("few_clusters", "percentile")


@dataclass(frozen=True)
class Settings:
    """What the numbers depend on besides the scores.

    Attributes:
        threshold: a score of at least this is "high" (table 9).
        n_bootstrap: random sign patterns (of means over more than 16 concepts) and resamples of concepts (of correlations) for 95 % intervals; 0 for no
            intervals.
        seed: of them.
        interval: "few_clusters" (default): means by inversion of the sign-flip test over concepts, correlations by a bootstrap with expanded percentiles,
            none below six concepts (see ``decodehub.core.statistics``). "percentile": what protocol v1.0 did, percentiles of a bootstrap from two concepts
            on, which cover too rarely. The paper states no intervals.
    """

    threshold: float = THRESHOLD
    n_bootstrap: int = 1000
    seed: int = 0
    interval: str = "few_clusters"

    def __post_init__(self) -> None:
        if self.interval not in INTERVALS:
            raise ValueError(f"interval is {self.interval!r}, expected one of {', '.join(INTERVALS)}")
        if not 0 < self.threshold < 1 or self.n_bootstrap < 0 or self.seed < 0:
            raise ValueError(f"threshold must lie between 0 and 1, n_bootstrap and seed must be 0 or more, got {self}")


class Number(NamedTuple):
    """One number: what it is called, of which slice, its value (NaN where not defined), 95 % interval (NaN where none) and pairs behind it."""

    name: str
    slice: tuple[tuple[str, str], ...]
    value: float
    ci95: tuple[float, float]
    n: int


class Concepts(Resamples):
    """The concepts of pairs, and their resamples: pairs of a concept share a reference."""

    def __init__(self, concepts: Sequence[str], settings: Settings) -> None:
        self.settings = settings
        self.expanded = settings.interval == "few_clusters"
        self.fewest = FEWEST if self.expanded else 2
        super().__init__(concepts, settings.n_bootstrap, settings.seed, self.fewest)

    def interval_of_means(self, values: np.ndarray, cluster: np.ndarray | None = None) -> np.ndarray:
        """(K, 2) 95 % intervals of the means of (m, K) values; `cluster` (m,) says whose value each is, by default those of the pairs."""
        n = np.ones((len(values), 1))
        if not self.expanded:
            return self.interval(divide(self.sums(values, cluster), self.sums(n, cluster)))
        if not self.settings.n_bootstrap or not len(values):
            return np.full((values.shape[1], 2), np.nan)
        return mean_interval(
            self.totals(values, cluster), self.totals(n, cluster), draws=self.settings.n_bootstrap, seed=self.settings.seed
        )

    def interval(self, draws: np.ndarray) -> np.ndarray:
        """(K, 2) 95 % intervals from (B, K) statistics of the resamples."""
        return percentile_interval(draws, self.n, expanded=self.expanded, fewest=self.fewest)


def t_scores(question_scores: np.ndarray, available: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """T-PAS and T-SAS (Eq. 19 and 20): means over the perceptual and over the semantic questions.

    Args:
        question_scores: (n, 12). available: (n, 12) bool, questions to take the mean over; all by default.

    Returns:
        Two (n,) float64; NaN where no question of the block is available.
    """
    scores = np.asarray(question_scores, dtype=np.float64)
    there = np.isfinite(scores) if available is None else available
    sides = []
    for block in (PERCEPTUAL, ~PERCEPTUAL):
        n = there[:, block].sum(1)
        total = np.where(there[:, block], scores[:, block], 0).sum(1)
        sides.append(np.divide(total, n, out=np.full(len(scores), np.nan), where=n > 0))
    return sides[0], sides[1]


def regimes(t_pas: np.ndarray, t_sas: np.ndarray, threshold: float = THRESHOLD) -> np.ndarray:
    """(n,) index into `REGIMES` of each pair (table 9); a score of exactly the threshold is high."""
    return 2 * (t_pas < threshold).astype(int) + (t_sas < threshold)


def describe(
    question_scores: np.ndarray,
    concepts: Sequence[str],
    methods: Sequence[str | None] | None = None,
    settings: Settings | None = None,
) -> list[Number]:
    """Mean T-PAS, T-SAS and question scores and shares of the four regimes, over all pairs and for each method.

    Args:
        question_scores: (n, 12) in [0, 1].
        concepts: n names, what intervals are over; the reference's hash where the concept is not known.
        methods: n names or None; pairs without a name are in the overall numbers only.

    Raises:
        ValueError: shapes that do not agree, or scores that are not finite or not in [0, 1].
    """
    settings = settings or Settings()
    scores = check_scores(question_scores, concepts)
    if methods is not None and len(methods) != len(scores):
        raise ValueError(f"{len(methods)} methods for {len(scores)} pairs")
    names = sorted({m for m in methods or () if m is not None})
    groups: list[tuple[tuple[tuple[str, str], ...], np.ndarray]] = [((), np.arange(len(scores)))]
    groups += [((("method", m),), np.flatnonzero([x == m for x in methods or ()])) for m in names]
    numbers = []
    for slice_, rows in groups:
        numbers += _describe(scores[rows], [concepts[int(i)] for i in rows], slice_, settings)
    return numbers


def _describe(scores: np.ndarray, concepts: Sequence[str], slice_: tuple[tuple[str, str], ...], settings: Settings) -> list[Number]:
    t_pas, t_sas = t_scores(scores)
    shares = np.eye(len(REGIMES))[regimes(t_pas, t_sas, settings.threshold)]
    values = np.column_stack([t_pas, t_sas, scores, shares])
    ends = Concepts(concepts, settings).interval_of_means(values)
    labels = [("t_pas", slice_), ("t_sas", slice_)]
    labels += [("question_mean", (*slice_, ("question", q))) for q in QUESTIONS]
    labels += [("regime_share", (*slice_, ("regime", r))) for r in REGIMES]
    means = values.mean(axis=0)
    return [Number(name, s, float(means[i]), (float(ends[i, 0]), float(ends[i, 1])), len(values)) for i, (name, s) in enumerate(labels)]


def agreement(
    predictions: np.ndarray,
    targets: np.ndarray,
    weights: np.ndarray,
    concepts: Sequence[str],
    settings: Settings | None = None,
    slice_: tuple[tuple[str, str], ...] = (),
) -> list[Number]:
    """The seven columns of table 6: MAE and correlations with the consensus, pooled over questions and of T-PAS and T-SAS.

    Question-level numbers are over all (pair, question) entries with a target and a weight over 0, each counted once. T-PAS and T-SAS of
    predictions and targets are means over the questions of the pair that have a target.

    Args:
        predictions: (n, 12). targets: (n, 12), NaN where unknown. weights: (n, 12), 0 where unknown. concepts: n names.

    Raises:
        ValueError: shapes that do not agree, no target at all, or predictions that are not in [0, 1].
    """
    settings = settings or Settings()
    scores = check_scores(predictions, concepts)
    targets, weights = np.asarray(targets, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    if targets.shape != scores.shape or weights.shape != scores.shape:
        raise ValueError(f"targets and weights have shapes {targets.shape} and {weights.shape}, expected {scores.shape}")
    known = np.isfinite(targets) & (weights > 0)
    if not known.any():
        raise ValueError("no pair has a target to compare with")
    resamples = Concepts(concepts, settings)
    row = np.nonzero(known)[0]
    numbers = _compare("q", scores[known], targets[known], resamples, resamples.cluster[row], slice_, spearman=True)
    for name, x, y in zip(("pas", "sas"), t_scores(scores, known), t_scores(targets, known)):
        there = np.isfinite(y)
        numbers += _compare(name, x[there], y[there], resamples, resamples.cluster[there], slice_, spearman=False)
    return numbers


def _compare(
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    resamples: Concepts,
    cluster: np.ndarray,
    slice_: tuple[tuple[str, str], ...],
    spearman: bool,
) -> list[Number]:
    error = np.abs(x - y)[:, None]
    found = {
        f"{name}_mae": (float(error.mean()) if len(error) else np.nan, resamples.interval_of_means(error, cluster)),
        f"{name}_r": (
            pearson(x, y, rounding=ROUNDING_32),
            resamples.interval(bootstrap_pearson(x, y, resamples, cluster, rounding=ROUNDING_32)[:, None]),
        ),
    }
    if spearman:
        found[f"{name}_rho"] = (
            rho(x, y, rounding=ROUNDING_32),
            resamples.interval(bootstrap_spearman(x, y, resamples, cluster, rounding=ROUNDING_32)[:, None]),
        )
    return [Number(label, slice_, value, (float(ends[0, 0]), float(ends[0, 1])), len(x)) for label, (value, ends) in found.items()]


def calibration(predictions: np.ndarray, targets: np.ndarray, bins: int = 10) -> np.ndarray:
    """Reliability of one score: (bins, 3) mean prediction, mean target and number of pairs in `bins` groups of equal size (by prediction)."""
    order = np.argsort(predictions, kind="stable")
    parts = np.array_split(order, min(bins, len(order)))
    return np.array([[predictions[p].mean(), targets[p].mean(), len(p)] for p in parts])


def check_scores(question_scores: np.ndarray, concepts: Sequence[str]) -> np.ndarray:
    """The scores as (n, 12) float64. Raises ValueError: another shape, not finite, outside [0, 1], or other than n concepts."""
    scores = np.asarray(question_scores, dtype=np.float64)
    if scores.ndim != 2 or scores.shape[1] != len(QUESTIONS) or not len(scores):
        raise ValueError(f"question scores have shape {scores.shape}, expected (n, {len(QUESTIONS)}) with n of at least 1")
    if len(concepts) != len(scores):
        raise ValueError(f"{len(concepts)} concepts for {len(scores)} pairs")
    if not (np.isfinite(scores) & (scores >= 0) & (scores <= 1)).all():
        row, column = np.argwhere(~(np.isfinite(scores) & (scores >= 0) & (scores <= 1)))[0]
        raise ValueError(f"question scores must be in [0, 1]; row {row}, {QUESTIONS[column]} is {scores[row, column]}")
    return scores


def as_dict(numbers: Sequence[Number]) -> dict[str, float | None]:
    """Numbers by label, such as ``t_pas`` or ``regime_share[regime=high_p_low_s]``; None where not defined."""
    return {label(n.name, dict(n.slice)): (n.value if np.isfinite(n.value) else None) for n in numbers}


def label(name: str, slice_: Mapping[str, str]) -> str:
    """Name and slice in one string."""
    return name + (f"[{','.join(f'{k}={v}' for k, v in slice_.items())}]" if slice_ else "")
