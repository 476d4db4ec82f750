"""Targets and weights of the ``consensus`` table, from how many annotators gave each answer (equations 12, 18; released code)."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import numpy as np

WeightRule = Literal["paper", "released_code"]
WEIGHT_RULES: tuple[WeightRule, ...] = get_args(WeightRule)
VALUES = np.array([0.0, 0.5, 1.0])


class Consensus(NamedTuple):
    """What the annotators agree on.

    Attributes:
        targets: (N, Q) float64, median answer; NaN where not every annotator answered.
        weights: (N, Q) float64, 0 where the target is NaN.
        t_pas, t_sas: (N,) float64, mean of the perceptual and semantic targets that are there; NaN where none is.
    """

    targets: np.ndarray
    weights: np.ndarray
    t_pas: np.ndarray
    t_sas: np.ndarray


def consensus_table(codes: np.ndarray, blocks: tuple[tuple[int, ...], tuple[int, ...]], rule: WeightRule = "paper") -> Consensus:
    """Median targets, agreement weights and the two scores of every pair.

    T-PAS and T-SAS here are means of question medians (equations 19, 20 on targets), not medians over annotators of their own scores.

    Args:
        codes: (N, A, Q) int, 0 no, 1 somewhat, 2 yes, -1 no valid answer.
        blocks: positions of the perceptual and of the semantic questions.
        rule: "paper" is one minus the population variance over annotators; "released_code" is 1 where all agree, 0.75 where any answer occurs
            twice, else 0.40.

    Raises:
        ValueError: no annotator, or an unknown rule.
    """
    n_annotators = codes.shape[1]
    if not n_annotators:
        raise ValueError("no annotator: the consensus needs at least one")
    if rule not in WEIGHT_RULES:
        raise ValueError(f"weight_rule {rule!r} is unknown: take one of {list(WEIGHT_RULES)}")
    counts = np.stack([(codes == code).sum(1) for code in range(3)], axis=-1)  # (N, Q, 3)
    complete = counts.sum(-1) == n_annotators
    upto = counts.cumsum(-1)
    # The two middle answers in sorted order; they are one and the same for an odd number.
    middle = [(upto <= k).sum(-1).clip(max=2) for k in ((n_annotators - 1) // 2, n_annotators // 2)]
    targets = np.where(complete, (VALUES[middle[0]] + VALUES[middle[1]]) / 2, np.nan)
    if rule == "paper":
        mean = counts @ VALUES / n_annotators
        weights = 1 - (counts @ VALUES**2 / n_annotators - mean**2)
    else:
        most = counts.max(-1)
        weights = np.where(most == n_annotators, 1.0, np.where(most >= 2, 0.75, 0.40))
    weights = np.where(complete, weights, 0.0)
    t_pas, t_sas = (_mean(targets[:, list(block)]) for block in blocks)
    return Consensus(targets, weights, t_pas, t_sas)


def _mean(values: np.ndarray) -> np.ndarray:
    there = np.isfinite(values)
    n = there.sum(1)
    return np.divide(np.where(there, values, 0.0).sum(1), n, out=np.full(len(values), np.nan), where=n > 0)
