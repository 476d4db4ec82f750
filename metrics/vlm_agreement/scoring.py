"""Scores, consensus and agreement of annotators, on arrays (arXiv 2607.12364, sections 4 to 5.6; tables 4, 5, 7, 9; figure 3).

``answers`` is always (n_pairs, n_annotators, n_questions) float64 with NaN where an annotator gave no valid answer. An item is a pair and a
question. Statistics of agreement depend only on how often each pattern of answers occurs (four annotators and three answers make 81), so they are
computed from `Patterns` and counts of them, which is what makes a bootstrap cheap.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Literal, NamedTuple, get_args

import numpy as np

from decodehub.core.statistics import divide

VALUES = (0.0, 0.5, 1.0)  # no, somewhat, yes: equation 7
PERCEPTUAL = tuple(range(6))
SEMANTIC = tuple(range(6, 12))
REGIMES = ("high_p_high_s", "high_p_low_s", "low_p_high_s", "low_p_low_s")  # table 9

WeightRule = Literal["paper", "released_code"]
Definition = Literal["mean_of_question_medians", "median_of_annotator_aggregates"]
Level = Literal["nominal", "ordinal", "interval"]
LEVELS: tuple[Level, ...] = get_args(Level)
KappaWeights = Literal["linear", "quadratic"] | None


def consensus(answers: np.ndarray) -> np.ndarray:
    """Median over annotators of every answer; fractions of an even number of annotators are kept (equation 12).

    Returns:
        (n_pairs, n_questions) float64, NaN where not every annotator answered. Four annotators give 0, .25, .5, .75 or 1.
    """
    answers = check_answers(answers)
    return np.median(answers, axis=1)  # NaN where any is, which is the rule


def agreement_weights(answers: np.ndarray, rule: WeightRule = "paper") -> np.ndarray:
    """Weight of every target in training.

    Args:
        answers: see the module.
        rule: "paper" is one minus the population variance over annotators (equation 18); "released_code" is 1 where all agree, 0.75 where any
            answer occurs at least twice, 0.40 otherwise (which four annotators and three answers cannot reach).

    Returns:
        (n_pairs, n_questions) float64, 0 where not every annotator answered.

    Raises:
        ValueError: an unknown rule.
    """
    answers = check_answers(answers)
    complete = np.isfinite(answers).all(1)
    if rule == "paper":
        return np.where(complete, 1 - np.var(np.where(complete[:, None], answers, 0), axis=1), 0.0)
    if rule == "released_code":
        most = (answers[:, :, None] == answers[:, None]).sum(2).max(1)
        return np.where(complete, np.select([most == answers.shape[1], most >= 2], [1.0, 0.75], 0.40), 0.0)
    raise ValueError(f'weight rule {rule!r} is unknown: take "paper" or "released_code"')


def annotator_scores(answers: np.ndarray, questions: Sequence[int]) -> np.ndarray:
    """T-PAS or T-SAS of each annotator: the mean over the answered `questions` (equations 8, 9).

    Returns:
        (n_pairs, n_annotators) float64, NaN where none of them was answered.
    """
    return _mean(check_answers(answers)[:, :, list(questions)], 2)


def consensus_scores(answers: np.ndarray, questions: Sequence[int], definition: Definition) -> np.ndarray:
    """T-PAS or T-SAS of all annotators together; the two definitions differ, since median and mean do not commute.

    Args:
        answers: see the module.
        questions: positions of the block.
        definition: "mean_of_question_medians" is what BCS is trained on (equations 12, 19, 20); "median_of_annotator_aggregates" is the consensus of
            tables 9 and 12 in the released code.

    Returns:
        (n_pairs,) float64; NaN where no question has a target, or an annotator has no score.

    Raises:
        ValueError: an unknown definition.
    """
    if definition == "mean_of_question_medians":
        return _mean(consensus(answers)[:, list(questions)], 1)
    if definition == "median_of_annotator_aggregates":
        return np.median(annotator_scores(answers, questions), axis=1)
    raise ValueError(f'definition {definition!r} is unknown: take "mean_of_question_medians" or "median_of_annotator_aggregates"')


def regimes(t_pas: np.ndarray, t_sas: np.ndarray, threshold: float = 0.5) -> np.ndarray:
    """Which of `REGIMES` each pair is in (table 9): high is at least `threshold`; -1 where a score is NaN."""
    t_pas, t_sas = np.asarray(t_pas, dtype=np.float64), np.asarray(t_sas, dtype=np.float64)
    return np.where(np.isfinite(t_pas + t_sas), 2 * (t_pas < threshold) + (t_sas < threshold), -1)


class Patterns(NamedTuple):
    """The patterns of answers that occur.

    Attributes:
        codes: (n_patterns, n_annotators) int, position in `values`, -1 for no answer.
        values: (n_levels,) ascending float64.
        items: (n_pairs, n_questions) int, pattern of each item.
    """

    codes: np.ndarray
    values: np.ndarray
    items: np.ndarray

    def counts(self, questions: Sequence[int] | None = None) -> np.ndarray:
        """(n_patterns,) float64, how often each pattern occurs in the items of `questions` (all by default)."""
        items = self.items if questions is None else self.items[:, list(questions)]
        return np.bincount(items.ravel(), minlength=len(self.codes)).astype(np.float64)


def tabulate(answers: np.ndarray, values: Sequence[float] | None = VALUES) -> Patterns:
    """Find the patterns of answers.

    Args:
        answers: see the module; for people, their judgements.
        values: the values that occur, or None to take those that are found.

    Raises:
        ValueError: a value that is not one of `values`; the pair, annotator and question are named.
    """
    answers = check_answers(answers)
    there = np.isfinite(answers)
    levels = np.unique(answers[there]) if values is None else np.array(sorted(values), dtype=np.float64)
    if not len(levels):
        raise ValueError("no answer at all: every value is NaN")
    codes = np.searchsorted(levels, answers).clip(max=len(levels) - 1)
    if len(bad := np.argwhere(there & (levels[codes] != answers))):
        i, a, q = bad[0]
        raise ValueError(f"pair {i}, annotator {a}, question {q}: answer {answers[i, a, q]} is none of {levels.tolist()}")
    codes = np.where(there, codes, -1)
    rows, index = np.unique(codes.transpose(0, 2, 1).reshape(-1, answers.shape[1]), axis=0, return_inverse=True)
    return Patterns(rows, levels, index.reshape(answers.shape[0], answers.shape[2]))


def unanimity(patterns: Patterns, counts: np.ndarray) -> np.ndarray:
    """Share of the items answered by all where all gave the same answer (table 5).

    Args:
        patterns: of `tabulate`.
        counts: (..., n_patterns) how often each occurs, e.g. `Patterns.counts` or resamples of it.

    Returns:
        (...) float64, NaN without an item.
    """
    complete = np.all(patterns.codes >= 0, axis=1)
    same = complete & (patterns.codes == patterns.codes[:, :1]).all(1)
    return divide(counts @ same, counts @ complete)


def fleiss_kappa(patterns: Patterns, counts: np.ndarray) -> np.ndarray:
    """Fleiss' kappa, nominal, over the items answered by all (Fleiss 1971); see `unanimity` for the arguments.

    Returns:
        (...) float64, NaN where all answers of all annotators are one and the same.
    """
    n_raters = patterns.codes.shape[1]
    if n_raters < 2:
        raise ValueError(f"agreement needs at least two annotators, found {n_raters}")
    complete = np.all(patterns.codes >= 0, axis=1)
    tally = _tally(patterns) * complete[:, None]
    n = counts @ complete
    observed = divide(counts @ ((tally**2).sum(1) - n_raters * complete) / (n_raters * (n_raters - 1)), n)
    expected = (divide(counts @ tally, (n * n_raters)[..., None]) ** 2).sum(-1)
    return _kappa(observed, expected)


def cohen_kappa(
    patterns: Patterns, counts: np.ndarray, a: int, b: int, weights: KappaWeights = None, *, items: str = "complete"
) -> np.ndarray:
    """Cohen's kappa of annotators `a` and `b` (Cohen 1960, 1968; figure 3 with linear weights).

    Args:
        patterns, counts: see `unanimity`.
        a, b: positions of the annotators.
        weights: None, "linear" or "quadratic" in the difference of the values.
        items: "complete" takes the items that all annotators answered (as the paper), "pairwise" those that these two answered.

    Returns:
        (...) float64, NaN where no disagreement can be expected.

    Raises:
        ValueError: unknown weights or items.
    """
    codes, n_levels = patterns.codes, len(patterns.values)
    if items not in ("complete", "pairwise"):
        raise ValueError(f'items {items!r} is unknown: take "complete" or "pairwise"')
    used = (codes >= 0).all(1) if items == "complete" else (codes[:, a] >= 0) & (codes[:, b] >= 0)
    cells = np.zeros((len(codes), n_levels * n_levels))
    cells[np.flatnonzero(used), (codes[:, a] * n_levels + codes[:, b])[used]] = 1
    table = (counts @ cells).reshape(*np.shape(counts)[:-1], n_levels, n_levels)
    distance = np.abs(patterns.values[:, None] - patterns.values)
    if weights is None:
        cost = (distance > 0).astype(np.float64)
    elif weights in ("linear", "quadratic"):
        cost = distance ** (1 if weights == "linear" else 2)
    else:
        raise ValueError(f'weights {weights!r} are unknown: take None, "linear" or "quadratic"')
    total = table.sum((-2, -1))
    chance = (table.sum(-1)[..., None] * table.sum(-2)[..., None, :] * cost).sum((-2, -1))
    return 1 - divide((table * cost).sum((-2, -1)) * total, chance)


def krippendorff_alpha(patterns: Patterns, counts: np.ndarray, level: Level) -> np.ndarray:
    """Krippendorff's alpha over all items with at least two answers (Krippendorff 2011); see `unanimity` for the arguments.

    Args:
        patterns, counts: see `unanimity`.
        level: of measurement, "nominal", "ordinal" or "interval". The paper does not state its level.

    Returns:
        (...) float64, NaN where all answers are one and the same.

    Raises:
        ValueError: an unknown level.
    """
    tally = _tally(patterns)
    n_answers = tally.sum(1)
    pairable = n_answers >= 2
    share = np.where(pairable, 1 / np.maximum(n_answers - 1, 1), 0.0)
    coincidences = (tally[:, :, None] * (tally[:, None] - np.eye(len(patterns.values)))) * share[:, None, None]
    table = (counts @ coincidences.reshape(len(tally), -1)).reshape(*np.shape(counts)[:-1], *coincidences.shape[1:])
    margin = table.sum(-1)
    if level == "nominal":
        cost = 1 - np.eye(len(patterns.values))
    elif level == "interval":
        cost = (patterns.values[:, None] - patterns.values) ** 2
    elif level == "ordinal":
        middle = np.cumsum(margin, -1) - margin / 2
        cost = (middle[..., :, None] - middle[..., None, :]) ** 2
    else:
        raise ValueError(f'level {level!r} is unknown: take "nominal", "ordinal" or "interval"')
    observed = (table * cost).sum((-2, -1)) * (margin.sum(-1) - 1)
    return 1 - divide(observed, (margin[..., :, None] * margin[..., None, :] * cost).sum((-2, -1)))


class RaterKappas(NamedTuple):
    """Cohen's kappa over all pairs of raters: `mean` and population `sd` (table 7), `kappas` by pair, `undefined` how many are NaN."""

    mean: float
    sd: float
    kappas: dict[tuple[int, int], float]
    undefined: int


def rater_kappas(judgements: np.ndarray, weights: KappaWeights = None) -> RaterKappas:
    """Cohen's kappa of every two raters over the items that both judged, and its mean and SD over pairs of raters (table 7).

    Args:
        judgements: (n_items, n_raters) float64, NaN for none; any scale.
        weights: see `cohen_kappa`. The paper does not state its weights.
    """
    patterns = tabulate(np.asarray(judgements, dtype=np.float64)[:, :, None], None)
    counts = patterns.counts()
    pairs = combinations(range(patterns.codes.shape[1]), 2)
    kappas = {(a, b): float(cohen_kappa(patterns, counts, a, b, weights, items="pairwise")) for a, b in pairs}
    known = np.array([kappa for kappa in kappas.values() if np.isfinite(kappa)])
    mean, sd = (float(known.mean()), float(known.std())) if len(known) else (np.nan, np.nan)
    return RaterKappas(mean, sd, kappas, len(kappas) - len(known))


def check_answers(answers: np.ndarray) -> np.ndarray:
    """The answers as float64, with the shape checked.

    Raises:
        ValueError: not three axes, an empty one, or an infinite value.
    """
    answers = np.asarray(answers, dtype=np.float64)
    if answers.ndim != 3 or 0 in answers.shape:
        raise ValueError(f"answers have shape {answers.shape}, expected (n_pairs, n_annotators, n_questions) with none of them 0")
    if np.isinf(answers).any():
        raise ValueError(
            f"answers have infinite values, the first at (pair, annotator, question) {tuple(np.argwhere(np.isinf(answers))[0])}"
        )
    return answers


def _tally(patterns: Patterns) -> np.ndarray:
    """(n_patterns, n_levels) how many annotators gave each answer."""
    return (patterns.codes[:, :, None] == np.arange(len(patterns.values))).sum(1).astype(np.float64)


def _kappa(observed: np.ndarray, expected: np.ndarray) -> np.ndarray:
    return divide(observed - expected, 1 - expected)


def _mean(values: np.ndarray, axis: int) -> np.ndarray:
    there = np.isfinite(values)
    return divide(np.where(there, values, 0.0).sum(axis), there.sum(axis))
