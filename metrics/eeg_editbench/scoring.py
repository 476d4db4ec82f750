"""EEG-EditBench scoring: pure functions from score matrices to numbers, one run (one subject, one seed) at a time.

Shapes: Q concepts, E edits. `source_scores` (Q, Q): query of row, source image of column, the matched pair on the diagonal.
`edit_scores` (Q, E): query of row, edited image of column. `null_scores` (Q, Q): query of row, null-edited image of column.
Scores are a method's own similarity, higher is more similar. Accuracies are in percent. Rules (paper, sections 3 and S3.3):
the source must be strictly above; a tie counts against it; NaN is wrong.

Equation, table and section numbers are those of the EEG-EditBench paper (arXiv 2607.27857).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from decodehub.core.statistics import ROUNDING, ROUNDING_32, is_constant, pearson, ranks

from .benchmark import Benchmark

BASE_FAMILY = "attribute"  # table S14 compares every other family with this one
IDENTITY_FAMILY = "identity"
Slice = tuple[tuple[str, str], ...]  # such as (("family", "identity"),); the empty one is everything


@dataclass(frozen=True)
class Settings:
    """What the paper leaves open or fixes by a number; part of the protocol hash.

    Attributes:
        distance_bins: number of equal-count distance groups (section S6.1: five).
        distance_width: width of the intervals of the distance-balanced comparison (section S6.1: .05).
        distance_min_edits: edits that an interval must have of each family (section S6.1: 20).
        distance_interval_weight: how retained intervals are weighted against each other, which the paper does not say:
            ``"edits"`` (default) by the edits in them, ``"equal"`` all alike.
        interval: how 95 % intervals over subjects are made. ``"sign_flip"`` (default): inversion of the sign-flip test, which covers 95 % at ten subjects;
            none below six. ``"paper"``: percentile bootstrap of the subjects (section S5.1), which covers about 90 % at ten; for tables beside
            the paper's, and what protocol v1.0 did.
    """

    distance_bins: int = 5
    distance_width: float = 0.05
    distance_min_edits: int = 20
    distance_interval_weight: Literal["edits", "equal"] = "edits"
    interval: Literal["sign_flip", "paper"] = "sign_flip"

    def __post_init__(self) -> None:
        for name, valid, what in (
            ("distance_bins", _is_number(self.distance_bins, int, 1), "a whole number from 1"),
            ("distance_width", _is_number(self.distance_width, (int, float), 1e-6), "a positive number"),
            ("distance_min_edits", _is_number(self.distance_min_edits, int, 1), "a whole number from 1"),
            ("distance_interval_weight", self.distance_interval_weight in ("edits", "equal"), "'edits' or 'equal'"),
            ("interval", self.interval in ("sign_flip", "paper"), "'sign_flip' or 'paper'"),
        ):
            if not valid:
                raise ValueError(f"{name} must be {what}, found {getattr(self, name)!r}")


class MetricKey(NamedTuple):
    """What a number is: its name, the slice of the benchmark it is of, unit, direction, chance level (None: none is defined)."""

    name: str
    slice: Slice = ()
    unit: str = "percent"
    higher_is_better: bool | None = True
    chance: float | None = None

    @property
    def interval(self) -> bool:
        """Whether aggregation gives it an interval: all numbers but the cells of category by condition (figures 6 and S2 have none either)."""
        return len(self.slice) < 2 and self.name != "two_afc_minus_average"

    @property
    def label(self) -> str:
        """``name`` or ``name[family=identity]``."""
        return self.name + (f"[{','.join(f'{k}={v}' for k, v in self.slice)}]" if self.slice else "")


@dataclass(frozen=True, eq=False)
class Plan:
    """All that depends on the benchmark and not on the scores, computed once for any number of runs.

    Attributes:
        slices: (S,) the slices of the benchmark that 2AFC is reported on; the first is everything.
        members: (S, E) float64 of 0 and 1. counts: (S,) their sums.
        family_slices: indices of the slices that are families (and of "everything", first), used by the control analyses.
        contrasts: (K,) keys, and `contrast_weights` (K, E): weighted sums of the outcomes of single edits; `contrast_scored` (K,) bool.
        scored: (Q,) number of edits of each concept; concepts without edits take no part in EP-Top1.
        identity: indices of the identity edits whose target concept has a query.
        distance_edits: indices of the edits with a visual distance, and `distance_ranks`, the ranks of those.
        keys: (M,) what `score_run` returns without null scores; `null_keys` with them.
        unscored: why numbers are not defined for this benchmark, by label (or "distance", "target" for a whole group).
    """

    benchmark: Benchmark
    settings: Settings
    slices: tuple[Slice, ...]
    members: np.ndarray
    counts: np.ndarray
    family_slices: np.ndarray
    contrasts: tuple[MetricKey, ...]
    contrast_weights: np.ndarray
    contrast_scored: np.ndarray
    scored: np.ndarray
    identity: np.ndarray
    distance_edits: np.ndarray
    distance_ranks: np.ndarray
    keys: tuple[MetricKey, ...]
    null_keys: tuple[MetricKey, ...]
    unscored: dict[str, str]


class RunScores(NamedTuple):
    """Scores of one run.

    Attributes:
        values: (M,) float64 in the order of `keys`; NaN where a number is not defined (`Plan.unscored` has the reasons).
        keys: (M,) what the values are.
        wins: (E,) bool, source strictly above the edit for the matched query.
        margins: (E,) float64, source score minus edit score for the matched query.
        ties: number of exact ties by comparison ("top1", "ep_top1", "null_top1", "two_afc").
    """

    values: np.ndarray
    keys: tuple[MetricKey, ...]
    wins: np.ndarray
    margins: np.ndarray
    ties: dict[str, int]

    def as_dict(self) -> dict[str, float]:
        """Values by label."""
        return {key.label: float(value) for key, value in zip(self.keys, self.values)}


def prepare(benchmark: Benchmark, settings: Settings | None = None) -> Plan:
    """Work out slices, weights and metric keys of a benchmark."""
    settings = settings or Settings()
    b = benchmark
    measured = np.flatnonzero(np.isfinite(b.distance))
    unscored: dict[str, str] = {}
    if len(measured) < settings.distance_bins:
        unscored["distance"] = f"fewer than {settings.distance_bins} edits of the release have a visual_distance"
    slices = _slices(b, settings, with_distance="distance" not in unscored)
    contrasts = [(MetricKey("two_afc_balanced", chance=50.0), _concept_family_weights(b)), *_category_contrasts(slices)]
    if "distance" not in unscored:
        contrasts += _distance_contrasts(b, settings, unscored)

    labels = tuple(slices)
    members = np.array(list(slices.values()), dtype=np.float64)
    scored = np.bincount(b.query, minlength=len(b.concepts))
    plan = Plan(
        benchmark=b,
        settings=settings,
        slices=labels,
        members=members,
        counts=members.sum(1),
        family_slices=np.array([i for i, label in enumerate(labels) if not label or (len(label) == 1 and label[0][0] == "family")]),
        contrasts=tuple(key for key, _ in contrasts),
        contrast_weights=np.array([weights for _, weights in contrasts]),
        contrast_scored=np.array([key.label not in unscored for key, _ in contrasts]),
        scored=scored,
        identity=np.flatnonzero((b.family == IDENTITY_FAMILY) & (b.target >= 0)),
        distance_edits=measured,
        distance_ranks=ranks(b.distance[measured]),
        keys=(),
        null_keys=(),
        unscored=unscored,
    )
    if not len(plan.identity):
        unscored["target"] = "no identity edit whose target concept has a query"
    return _with_keys(plan)


def score_run(plan: Plan, source_scores: np.ndarray, edit_scores: np.ndarray, null_scores: np.ndarray | None = None) -> RunScores:
    """Compute every number of the protocol for one run.

    Args:
        plan: from `prepare`.
        source_scores: (Q, Q) float. edit_scores: (Q, E) float. null_scores: (Q, Q) float or None.

    Raises:
        ValueError: a matrix has another shape than the benchmark asks for.
    """
    b = plan.benchmark
    n_queries, n_edits = len(b.concepts), len(b.query)
    for name, matrix, shape in (
        ("source_scores", source_scores, (n_queries, n_queries)),
        ("edit_scores", edit_scores, (n_queries, n_edits)),
        ("null_scores", null_scores, (n_queries, n_queries)),
    ):
        if matrix is not None and np.shape(matrix) != shape:
            raise ValueError(f"{name} has shape {np.shape(matrix)}, expected {shape} for release {b.release!r} (queries in rows)")

    own = edit_scores[b.query, np.arange(n_edits)]
    matched = np.diagonal(source_scores)
    source_of_edit = _columns(source_scores, b.query)
    wins = matched[b.query] > own
    better = _candidates_not_below(source_scores, matched)
    lost = np.bincount(b.query, weights=~wins, minlength=n_queries)
    pools = plan.scored > 0
    ties = {
        "top1": int(((source_scores == matched[:, None]).sum(1) > 1).sum()),
        "ep_top1": int((np.bincount(b.query, weights=matched[b.query] == own, minlength=n_queries) > 0).sum()),
        "two_afc": int((matched[b.query] == own).sum()),
    }
    outcomes = [wins, _mismatched(source_of_edit > edit_scores, wins)]
    head = [_percent(better < 1), _percent(better < 5), _percent(lost[pools] == 0)]
    if null_scores is not None:
        null_matched = np.diagonal(null_scores)
        head.append(_percent(_candidates_not_below(null_scores, null_matched) < 1))
        ties["null_top1"] = int(((null_scores == null_matched[:, None]).sum(1) > 1).sum())
        null_of_edit = _columns(null_scores, b.query)
        null_wins = null_matched[b.query] > own
        outcomes += [matched[b.query] > null_matched[b.query], null_wins, _mismatched(null_of_edit > edit_scores, null_wins)]

    # Whole numbers until the one division: counts are exact. Mismatched outcomes are counts over Q - 1 queries.
    trials = np.array([1, max(n_queries - 1, 1), 1, 1, max(n_queries - 1, 1)])[: len(outcomes)]
    rates = 100.0 * (plan.members @ np.array(outcomes, dtype=np.float64).T) / (plan.counts[:, None] * trials)  # (S, outcomes)
    families = rates[plan.family_slices]
    margins = matched[b.query].astype(np.float64) - own
    values = [
        *head,
        *rates[:, 0],
        *np.where(plan.contrast_scored, 100.0 * (plan.contrast_weights @ wins.astype(np.float64)), np.nan),
        *families[:, 1],
        *(families[:, 0] - families[:, 1]),
        *_target_alignment(plan, source_scores, edit_scores, margins),
        _spearman(plan, margins, float(np.abs(own).max(initial=0)), ROUNDING if own.dtype == np.float64 else ROUNDING_32),
    ]
    if null_scores is not None:
        values += [*families[:, 2], *families[:, 3], *families[:, 4], *(families[:, 3] - families[:, 4])]
    keys = plan.keys if null_scores is None else plan.null_keys
    return RunScores(np.array(values, dtype=np.float64), keys, wins, margins, ties)


def stable_failures(wins: np.ndarray) -> np.ndarray:
    """Edits that fail for a majority of runs, in a majority of seeds that each fail for a majority of subjects (section S6.4).

    With the paper's 10 subjects and 5 seeds: at least 26 of 50 runs, and at least 3 seeds with at least 6 subjects each.

    Args:
        wins: (n_subjects, n_seeds, E) bool, True where the source was strictly above the edit.

    Returns:
        (E,) bool.
    """
    failures = ~np.asarray(wins, dtype=bool)
    n_subjects, n_seeds = failures.shape[:2]
    in_total = failures.sum((0, 1)) >= n_subjects * n_seeds // 2 + 1
    failing_seeds = (failures.sum(0) >= n_subjects // 2 + 1).sum(0)
    return in_total & (failing_seeds >= n_seeds // 2 + 1)


def ep_top1_chance(plan: Plan) -> float:
    """Chance of EP-Top1 in percent: the mean over concepts of 1 / pool size (equation S2; 8.722 % for the full release)."""
    return float(100.0 * (1.0 / (1 + plan.scored[plan.scored > 0])).mean())


def _is_number(value: object, kind: type | tuple[type, ...], least: float) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and least <= value < np.inf  # type: ignore[operator]


def _percent(right: np.ndarray) -> float:
    return 100.0 * np.count_nonzero(right) / len(right)


def _candidates_not_below(scores: np.ndarray, matched: np.ndarray) -> np.ndarray:
    # Counting "not strictly below" puts ties and NaN against the source; the source itself is always one of them.
    return (~(matched[:, None] > scores)).sum(1) - 1 + np.isnan(matched) * scores.shape[1]


def _mismatched(outcome: np.ndarray, matched: np.ndarray) -> np.ndarray:
    """For how many of the Q - 1 other queries the outcome holds, (Q, E) bool to (E,) int (section S5.1)."""
    return _count(outcome) - matched.astype(np.int64)


def _columns(scores: np.ndarray, index: np.ndarray) -> np.ndarray:
    # As rows of the transpose, which is a copy of whole rows where an image's scores lie together.
    return scores.T[index].T


def _count(outcome: np.ndarray) -> np.ndarray:
    """Number of true values in each column, (Q, E) bool to (E,) int64; bytes are summed as bytes, which is several times faster."""
    flags = outcome.T.view(np.uint8)
    return np.sum([flags[:, i : i + 255].sum(1, dtype=np.uint8).astype(np.int64) for i in range(0, flags.shape[1], 255)], axis=0)


def _target_alignment(plan: Plan, source_scores: np.ndarray, edit_scores: np.ndarray, margins: np.ndarray) -> list[float]:
    """Figure 7 and S6.3: source drop, target gain, both similarities and both ranks of the target concept's EEG."""
    b, edits = plan.benchmark, plan.identity
    if not len(edits):
        return [np.nan] * 6
    target, query = b.target[edits], b.query[edits]
    source_at_target = source_scores[target, query]
    edit_at_target = edit_scores[target, edits]
    rank_source = _count(~(source_at_target > _columns(source_scores, query)))
    rank_edit = _count(~(edit_at_target > _columns(edit_scores, edits)))
    gain = edit_at_target.astype(np.float64) - source_at_target
    return [float(np.mean(v, dtype=np.float64)) for v in (margins[edits], gain, source_at_target, edit_at_target, rank_source, rank_edit)]


def _spearman(plan: Plan, margins: np.ndarray, scale: float, rounding: float) -> float:
    """Spearman correlation of visual distance and source-minus-edit margin (section S6.1); NaN when either is constant up to rounding."""
    if "distance" in plan.unscored:
        return np.nan
    y = margins[plan.distance_edits]
    if is_constant(y, scale=scale, rounding=rounding):
        return np.nan
    return pearson(plan.distance_ranks, ranks(y))


def _with_keys(plan: Plan) -> Plan:
    n = len(plan.benchmark.concepts)
    families = [plan.slices[i] for i in plan.family_slices]
    chance_top1, chance_top5 = 100.0 / n, 100.0 * min(5, n) / n
    head = [MetricKey("top1", chance=chance_top1), MetricKey("top5", chance=chance_top5), MetricKey("ep_top1", chance=ep_top1_chance(plan))]
    rest = [
        *(MetricKey("two_afc", label, chance=50.0) for label in plan.slices),
        *plan.contrasts,
        *(MetricKey("two_afc_mismatched", label, chance=50.0, higher_is_better=None) for label in families),
        *(MetricKey("pairing_gain", label, "percentage points", True, 0.0) for label in families),
        MetricKey("source_drop", (), "score", True, 0.0),
        MetricKey("target_gain", (), "score", True, 0.0),
        MetricKey("target_similarity_source", (), "score", None, None),
        MetricKey("target_similarity_edited", (), "score", None, None),
        MetricKey("target_rank_source", (), "rank", None, (n + 1) / 2),
        MetricKey("target_rank_edited", (), "rank", False, (n + 1) / 2),
        MetricKey("distance_margin_spearman", (), "correlation", None, 0.0),
    ]
    null = [
        *(MetricKey("original_over_null", label, chance=50.0, higher_is_better=None) for label in families),
        *(MetricKey("null_over_edit", label, chance=50.0) for label in families),
        *(MetricKey("null_over_edit_mismatched", label, chance=50.0, higher_is_better=None) for label in families),
        *(MetricKey("null_pairing_gain", label, "percentage points", True, 0.0) for label in families),
    ]
    keys = (*head, *rest)
    null_keys = (*head, MetricKey("null_top1", chance=chance_top1), *rest, *null)
    return replace(plan, keys=keys, null_keys=null_keys)


def _ordered(values: np.ndarray) -> list[str]:
    return list(dict.fromkeys(values.tolist()))


def _slices(b: Benchmark, settings: Settings, *, with_distance: bool) -> dict[Slice, np.ndarray]:
    """Membership (E,) bool of every slice that 2AFC is reported on: everything, families, subtypes, categories, their crossings, distance."""
    slices: dict[Slice, np.ndarray] = {(): np.ones(len(b.query), bool)}
    conditions = [(("family", f), b.family == f) for f in _ordered(b.family)]
    conditions += [(("subtype", s), b.subtype == s) for s in _ordered(b.subtype) if s]
    categories = [(("category", c), b.category[b.query] == c) for c in _ordered(b.category[b.query])]
    for part, mask in (*conditions, *categories):
        slices[(part,)] = mask
    for category, in_category in categories:
        for condition, mask in conditions:
            if (in_category & mask).any():
                slices[(category, condition)] = in_category & mask
    if with_distance:
        measured = np.isfinite(b.distance)
        edges = np.quantile(b.distance[measured], np.linspace(0, 1, settings.distance_bins + 1)[1:-1])
        group = np.searchsorted(edges, b.distance, side="right")
        for k in np.unique(group[measured]):
            slices[(("distance_quantile", f"{k + 1}/{settings.distance_bins}"),)] = measured & (group == k)
    return slices


def _category_contrasts(slices: dict[Slice, np.ndarray]) -> list[tuple[MetricKey, np.ndarray]]:
    """Category minus all concepts, overall and under each condition (section 4, figure 6)."""
    means = {label: mask / mask.sum() for label, mask in slices.items()}
    return [
        (MetricKey("two_afc_minus_average", label, "percentage points", None, 0.0), means[label] - means[label[1:]])
        for label in slices
        if label and label[0][0] == "category"
    ]


def _distance_contrasts(b: Benchmark, settings: Settings, unscored: dict[str, str]) -> list[tuple[MetricKey, np.ndarray]]:
    """Every other family minus attribute, unbalanced and distance-balanced (table S14); why one is not defined goes to `unscored`."""
    contrasts = []
    for family in _ordered(b.family):
        if family == BASE_FAMILY:
            continue
        gap = _distance_gap(b, family, settings)
        for i, name in enumerate(("distance_gap_unbalanced", "distance_gap_balanced")):
            key = MetricKey(name, (("family", family),), "percentage points", None, 0.0)
            if gap is None:
                unscored[key.label] = f"no distance interval with {settings.distance_min_edits} edits of {family} and of {BASE_FAMILY}"
            contrasts.append((key, np.zeros(len(b.query)) if gap is None else gap[i]))
    return contrasts


def _concept_family_weights(b: Benchmark) -> np.ndarray:
    """Weights of section S4.1: families equal, concepts equal within a family, edits equal within a concept and family."""
    families = _ordered(b.family)
    weights = np.zeros(len(b.query))
    for family in families:
        mask = b.family == family
        per_concept = np.bincount(b.query[mask], minlength=len(b.concepts))
        weights[mask] = 1.0 / (len(families) * (per_concept > 0).sum() * per_concept[b.query[mask]])
    return weights


def _distance_gap(b: Benchmark, family: str, settings: Settings) -> tuple[np.ndarray, np.ndarray] | None:
    """Signed weights of (family minus attribute) 2AFC, unbalanced and distance-balanced, over the same eligible edits (section S6.1)."""
    eligible, sides = np.isfinite(b.distance), (b.family == family, b.family == BASE_FAMILY)
    shared = np.logical_and(*(np.isin(np.arange(len(b.concepts)), b.query[eligible & side]) for side in sides))
    eligible &= shared[b.query]
    # The small offset keeps a distance such as .15, stored as .1499999, in the interval that it is written in.
    interval = np.where(eligible, np.floor(np.where(eligible, b.distance, 0) / settings.distance_width + 1e-9), -1).astype(int)
    counts = [np.bincount(interval[eligible & side], minlength=interval.max() + 1) for side in sides]
    kept = np.flatnonzero((counts[0] >= settings.distance_min_edits) & (counts[1] >= settings.distance_min_edits))
    if not len(kept):
        return None
    weight = np.ones(len(kept)) if settings.distance_interval_weight == "equal" else (counts[0] + counts[1])[kept].astype(float)
    weight /= weight.sum()
    unbalanced, balanced = np.zeros(len(b.query)), np.zeros(len(b.query))
    for side, count, sign in zip(sides, counts, (1.0, -1.0)):
        unbalanced[eligible & side & np.isin(interval, kept)] = sign / count[kept].sum()
        for k, w in zip(kept, weight):
            balanced[eligible & side & (interval == k)] = sign * w / count[k]
    return unbalanced, balanced
