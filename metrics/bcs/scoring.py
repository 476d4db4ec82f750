"""Numbers of BCS from question scores: means, regimes, agreement with targets, intervals over concepts. Pure functions on arrays.

Source: Tiwari et al. 2026, arXiv 2607.12364, Eq. 19 and 20, tables 6 and 9; where that is silent, the released code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

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
BLOCK_VALUES = 4_000_000  # values of a bootstrap that are held at once


@dataclass(frozen=True)
class Settings:
    """What the numbers depend on besides the scores.

    Attributes:
        threshold: a score of at least this is "high" (table 9).
        n_bootstrap: resamples of concepts for the 95 % percentile intervals; 0 for none.
        seed: of the resampling.
    """

    threshold: float = THRESHOLD
    n_bootstrap: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1 or self.n_bootstrap < 0 or self.seed < 0:
            raise ValueError(f"threshold must lie between 0 and 1, n_bootstrap and seed must be 0 or more, got {self}")


class Number(NamedTuple):
    """One number: what it is called, of which slice, its value (NaN where not defined), 95 % interval (NaN where none) and pairs behind it."""

    name: str
    slice: tuple[tuple[str, str], ...]
    value: float
    ci95: tuple[float, float]
    n: int


class Resamples:
    """Bootstrap resamples of concepts: all pairs of a concept are drawn together, since they share a reference.

    Attributes:
        counts: (B, C) how often each concept is drawn in each resample. cluster: (n,) the concept of each pair, from 0.
    """

    def __init__(self, concepts: Sequence[str], settings: Settings) -> None:
        names, self.cluster = np.unique(np.asarray(concepts, dtype=str), return_inverse=True)
        c = len(names)
        draws = settings.n_bootstrap if c > 1 else 0
        self.counts = np.random.default_rng(settings.seed).multinomial(c, np.full(c, 1 / c), size=draws).astype(np.float64)

    def sums(self, values: np.ndarray, cluster: np.ndarray | None = None) -> np.ndarray:
        """(B, ...) sum of `values` (m, ...) in each resample; `cluster` (m,) says whose value each is, by default those of the pairs."""
        total = np.zeros((self.counts.shape[1], *values.shape[1:]))
        np.add.at(total, self.cluster if cluster is None else cluster, values)
        return np.tensordot(self.counts, total, axes=1)


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
    resamples = Resamples(concepts, settings)
    low, high = percentile_interval(resamples.sums(values) / resamples.sums(np.ones((len(values), 1))), values.shape[1])
    labels = [("t_pas", slice_), ("t_sas", slice_)]
    labels += [("question_mean", (*slice_, ("question", q))) for q in QUESTIONS]
    labels += [("regime_share", (*slice_, ("regime", r))) for r in REGIMES]
    means = values.mean(axis=0)
    return [Number(name, s, float(means[i]), (float(low[i]), float(high[i])), len(values)) for i, (name, s) in enumerate(labels)]


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
    resamples = Resamples(concepts, settings)
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
    resamples: Resamples,
    cluster: np.ndarray,
    slice_: tuple[tuple[str, str], ...],
    spearman: bool,
) -> list[Number]:
    error = np.abs(x - y)[:, None]
    means = _divide(resamples.sums(error, cluster), resamples.sums(np.ones_like(error), cluster))
    drawn = {
        f"{name}_mae": (float(error.mean()) if len(error) else np.nan, means),
        f"{name}_r": (pearson(x, y), bootstrap_pearson(x, y, resamples, cluster)[:, None]),
    }
    if spearman:
        drawn[f"{name}_rho"] = (pearson(ranks(x), ranks(y)), bootstrap_spearman(x, y, resamples, cluster)[:, None])
    numbers = []
    for label, (value, samples) in drawn.items():
        low, high = percentile_interval(samples, 1)
        numbers.append(Number(label, slice_, value, (float(low[0]), float(high[0])), len(x)))
    return numbers


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


# --------------------------------------------------------------------------------------------------------------------- correlations


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Pearson's r of two (n,) arrays; NaN where either is constant."""
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    a, b = x - x.mean(), y - y.mean()
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def ranks(x: np.ndarray) -> np.ndarray:
    """Average ranks, from 1; ties share theirs."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def bootstrap_pearson(x: np.ndarray, y: np.ndarray, resamples: Resamples, cluster: np.ndarray) -> np.ndarray:
    """(B,) r in each resample, from sums over concepts."""
    a, b = x - x.mean(), y - y.mean()  # so that differences of large sums lose no digits
    n, sa, sb, saa, sbb, sab = resamples.sums(np.column_stack([np.ones_like(a), a, b, a * a, b * b, a * b]), cluster).T
    with np.errstate(invalid="ignore", divide="ignore"):
        va, vb = saa - sa * sa / n, sbb - sb * sb / n
        small = (va <= 1e-12 * np.maximum(saa, 1e-300)) | (vb <= 1e-12 * np.maximum(sbb, 1e-300))
        return np.where(small, np.nan, (sab - sa * sb / n) / np.sqrt(va * vb))


def bootstrap_spearman(x: np.ndarray, y: np.ndarray, resamples: Resamples, cluster: np.ndarray) -> np.ndarray:
    """(B,) Spearman's rho in each resample: ranks are those within the resample, where a concept drawn twice has every entry twice."""
    out = np.empty(len(resamples.counts))
    step = max(1, BLOCK_VALUES // max(1, len(x)))
    for start in range(0, len(out), step):
        weight = resamples.counts[start : start + step][:, cluster]
        rx, ry = (_weighted_ranks(values, weight) for values in (x, y))
        total = weight.sum(1, keepdims=True)
        with np.errstate(invalid="ignore", divide="ignore"):
            rx -= (weight * rx).sum(1, keepdims=True) / total
            ry -= (weight * ry).sum(1, keepdims=True) / total
            out[start : start + step] = (weight * rx * ry).sum(1) / np.sqrt((weight * rx * rx).sum(1) * (weight * ry * ry).sum(1))
    return out


def _weighted_ranks(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """(B, n) average ranks of `x` where entry i occurs weight[b, i] times."""
    order = np.argsort(x, kind="stable")
    values, inverse = np.unique(x, return_inverse=True)
    starts = np.searchsorted(x[order], values)
    per_value = np.add.reduceat(weight[:, order], starts, axis=1)
    return (np.cumsum(per_value, axis=1) - (per_value - 1) / 2)[:, inverse]


def percentile_interval(samples: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """2.5 and 97.5 % percentiles of (B, width); NaN without resamples or where a number is undefined in some."""
    if not len(samples):
        return np.full(width, np.nan), np.full(width, np.nan)
    low, high = np.percentile(samples, [2.5, 97.5], axis=0)
    return low, high


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.divide(a, b, out=np.full_like(a, np.nan), where=b > 0)


def as_dict(numbers: Sequence[Number]) -> dict[str, float | None]:
    """Numbers by label, such as ``t_pas`` or ``regime_share[regime=high_p_low_s]``; None where not defined."""
    return {label(n.name, dict(n.slice)): (n.value if np.isfinite(n.value) else None) for n in numbers}


def label(name: str, slice_: Mapping[str, str]) -> str:
    """Name and slice in one string."""
    return name + (f"[{','.join(f'{k}={v}' for k, v in slice_.items())}]" if slice_ else "")
