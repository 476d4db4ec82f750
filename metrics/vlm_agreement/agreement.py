"""All numbers on agreement of one set of annotations, with intervals over concepts or pairs (tables 4, 5, 9; figure 3, left)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from decodehub.core.files import sha256_json
from decodehub.core.records import Metric
from decodehub.core.statistics import FEWEST, RESAMPLES, bootstrap_ci, divide, mean_interval, unit_totals
from decodehub.metrics.bcs.scoring import QUESTIONS

from .scoring import (
    LEVELS,
    PERCEPTUAL,
    REGIMES,
    SEMANTIC,
    Definition,
    Patterns,
    annotator_scores,
    check_answers,
    cohen_kappa,
    consensus_scores,
    fleiss_kappa,
    krippendorff_alpha,
    regimes,
    tabulate,
    unanimity,
)

DEFINITIONS: tuple[Definition, ...] = get_args(Definition)


@dataclass(frozen=True)
class Settings:
    """How intervals are made.

    Attributes:
        unit: what is resampled: "concept" (default; reconstructions of one image are not independent), or "pair".
        resamples, seed: of the bootstrap (of kappas and alphas) and of random sign patterns (of means over more than 16 units).
        threshold: of table 9.
        interval: "few_clusters" (default): means by inversion of the sign-flip test, kappas and alphas by a bootstrap with expanded percentiles, none below
            six units (see ``decodehub.core.statistics``). "percentile": what protocol v1.0 did, percentiles of a bootstrap from two units on, which
            cover too rarely. The paper states no intervals.
    """

    unit: Literal["concept", "pair"] = "concept"
    resamples: int = RESAMPLES
    seed: int = 0
    threshold: float = 0.5
    interval: Literal["few_clusters", "percentile"] = "few_clusters"

    def __post_init__(self) -> None:
        if self.interval not in ("few_clusters", "percentile"):
            raise ValueError(f'interval {self.interval!r} is unknown: take "few_clusters" or "percentile"')
        if self.unit not in ("concept", "pair"):
            raise ValueError(f'unit {self.unit!r} is unknown: take "concept" or "pair"')
        if self.resamples < 2:
            raise ValueError(f"resamples is {self.resamples}, expected at least 2")


class AnswerTable(NamedTuple):
    """The annotations of one release.

    Attributes:
        release: its name.
        pair_ids, concepts: (n_pairs,).
        annotators: (n_annotators,).
        answers: (n_pairs, n_annotators, 12) float64 in the order of `QUESTIONS`; NaN for no valid answer.
        rationales: rows of (n_annotators,) texts or None, one an item in the order (pair, question).
    """

    release: str
    pair_ids: tuple[str, ...]
    concepts: tuple[str, ...]
    annotators: tuple[str, ...]
    answers: np.ndarray
    rationales: tuple[tuple[str | None, ...], ...] = ()

    @property
    def rows(self) -> dict[str, Any]:
        """The table without the answers, as it is saved with a record."""
        return {
            "release": self.release,
            "annotators": list(self.annotators),
            "questions": list(QUESTIONS),
            "pairs": [list(pair) for pair in zip(self.pair_ids, self.concepts)],
        }

    @property
    def content_hash(self) -> str:
        return sha256_json(self.rows)


def load_answers(data_dir: str | None = None) -> AnswerTable:
    """The annotations of a release, read through ``load_dataset("bcs-annotations")``; no image is opened.

    Args:
        data_dir: a release folder, ``"sample"``, or None for the release that is configured.

    Raises:
        ValueError: a question that is not of the questionnaire.
    """
    import datasets

    import decodehub  # noqa: F401  (registers the bare name)

    table = datasets.concatenate_datasets(
        list(datasets.load_dataset("bcs-annotations", "annotations", data_dir=data_dir).values())
    ).to_pandas()
    pairs = datasets.concatenate_datasets(list(datasets.load_dataset("bcs-annotations", "consensus", data_dir=data_dir).values()))
    concept_of = dict(zip(pairs["pair_id"], pairs["concept"]))
    if unknown := sorted(set(table["question"]) - set(QUESTIONS)):
        raise ValueError(f"unknown question {unknown[0]!r}; this metric knows {list(QUESTIONS)}")
    pair_ids = list(dict.fromkeys(table["pair_id"]))
    annotators = list(dict.fromkeys(table["annotator"]))
    answers = np.full((len(pair_ids), len(annotators), len(QUESTIONS)), np.nan)
    reasons = np.full(answers.shape, None, dtype=object)
    at = tuple(
        table[column].map({name: i for i, name in enumerate(names)}).to_numpy()
        for column, names in (("pair_id", pair_ids), ("annotator", annotators), ("question", QUESTIONS))
    )
    answers[at] = table["answer"].map({"no": 0.0, "somewhat": 0.5, "yes": 1.0}).to_numpy(dtype=np.float64)
    reasons[at] = table["rationale"].astype(object).where(table["rationale"].notna(), None).to_numpy()
    rows = tuple(map(tuple, reasons.transpose(0, 2, 1).reshape(-1, len(annotators))))
    return AnswerTable(
        str(table["release"].iloc[0]), tuple(pair_ids), tuple(concept_of[p] for p in pair_ids), tuple(annotators), answers, rows
    )


def agreement(table: AnswerTable, settings: Settings | None = None) -> tuple[Metric, ...]:
    """All numbers of a table of answers.

    Raises:
        ValueError: fewer than two annotators, or answers that are not no, somewhat or yes.
    """
    settings = settings or Settings()
    answers = check_answers(table.answers)
    groups = np.array(table.concepts, dtype=object) if settings.unit == "concept" else None
    if groups is not None:
        groups = np.unique(groups.astype(str), return_inverse=True)[1]
    patterns = tabulate(answers)
    return (
        *_pooled(table, patterns, groups, settings),
        *_by_question(patterns, groups, settings),
        *_scores(table, answers, groups, settings),
        *(_answered(table, answers) if settings.interval == "few_clusters" else ()),
    )


def _pooled(table: AnswerTable, patterns: Patterns, groups: np.ndarray | None, settings: Settings) -> list[Metric]:
    keys: list[tuple[str, dict[str, str], str]] = [("unanimous", {}, "share"), ("fleiss_kappa", {}, "kappa")]
    functions: list[Callable[[np.ndarray], np.ndarray]] = [lambda c: unanimity(patterns, c), lambda c: fleiss_kappa(patterns, c)]
    for level in LEVELS:
        keys.append(("krippendorff_alpha", {"level": level}, "alpha"))
        functions.append(lambda c, level=level: krippendorff_alpha(patterns, c, level))  # type: ignore[misc]
    for a, b in combinations(range(len(table.annotators)), 2):
        keys.append(("weighted_kappa", {"annotators": f"{table.annotators[a]}|{table.annotators[b]}"}, "kappa"))
        functions.append(lambda c, a=a, b=b: cohen_kappa(patterns, c, a, b, "linear"))  # type: ignore[misc]
    m = len(patterns.codes)
    totals = np.zeros((len(patterns.items), m))
    np.add.at(totals, (np.arange(len(totals))[:, None], patterns.items), 1)
    n = int(patterns.counts()[np.all(patterns.codes >= 0, axis=1)].sum())
    return _of_sums(keys, totals, lambda sums: np.stack([f(sums) for f in functions], axis=-1), groups, settings, n)


def _by_question(patterns: Patterns, groups: np.ndarray | None, settings: Settings) -> list[Metric]:
    found = []
    complete = np.all(patterns.codes >= 0, axis=1)
    for q in range(patterns.items.shape[1]):
        totals = np.eye(len(patterns.codes))[patterns.items[:, q]]
        keys: list[tuple[str, dict[str, str], str]] = [
            (name, {"question": QUESTIONS[q]}, unit) for name, unit in (("unanimous", "share"), ("fleiss_kappa", "kappa"))
        ]
        found += _of_sums(
            keys,
            totals,
            lambda sums: np.stack([unanimity(patterns, sums), fleiss_kappa(patterns, sums)], axis=-1),
            groups,
            settings,
            int(complete[patterns.items[:, q]].sum()),
        )
    return found


def _scores(table: AnswerTable, answers: np.ndarray, groups: np.ndarray | None, settings: Settings) -> list[Metric]:
    keys: list[tuple[str, dict[str, str], str]] = []
    columns: list[np.ndarray] = []
    axes = {"t_pas": PERCEPTUAL, "t_sas": SEMANTIC}
    for name, block in axes.items():
        for annotator, column in zip(table.annotators, annotator_scores(answers, block).T):
            keys.append((name, {"annotator": annotator}, "score"))
            columns.append(column)
    for definition in DEFINITIONS:
        scores = {name: consensus_scores(answers, block, definition) for name, block in axes.items()}
        for name, column in scores.items():
            keys.append((name, {"consensus": definition}, "score"))
            columns.append(column)
        regime = regimes(scores["t_pas"], scores["t_sas"], settings.threshold)
        for i, label in enumerate(REGIMES):
            keys.append(("regime", {"consensus": definition, "regime": label}, "share"))
            columns.append(np.where(regime < 0, np.nan, regime == i))
    values = np.stack(columns, axis=-1)
    scored = np.isfinite(values)
    sums, counts = (unit_totals(x, groups) for x in (np.where(scored, values, 0.0), scored.astype(np.float64)))
    means = divide(sums.sum(0), counts.sum(0))
    if settings.interval == "percentile":
        both = np.concatenate([sums, counts], axis=1)
        ends = _bootstrap(both, lambda drawn: divide(*np.split(drawn, 2, axis=-1)), settings)
    else:
        ends = mean_interval(sums, counts, draws=settings.resamples, seed=settings.seed)
    former = settings.interval == "percentile"  # protocol v1.0 counted all pairs
    return _metrics(keys, means, ends, np.full(len(keys), len(answers)) if former else scored.sum(0))


def _answered(table: AnswerTable, answers: np.ndarray) -> list[Metric]:
    """How much was answered, by annotator and by all: what is not answered by all enters no agreement and no consensus."""
    valid = np.isfinite(answers)
    rows = [({"annotator": name}, valid[:, i]) for i, name in enumerate(table.annotators)] + [({}, valid.all(1))]
    return [
        Metric(name="answered", slice=dict(slice_), value=float(x.mean()), unit="share", higher_is_better=True, n=x.size)
        for slice_, x in rows
    ]


def _bootstrap(units: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray], settings: Settings) -> np.ndarray:
    few = settings.interval == "few_clusters"
    return bootstrap_ci(units, statistic, n_resamples=settings.resamples, seed=settings.seed, expanded=few, fewest=FEWEST if few else 2)


def _of_sums(
    keys: Sequence[tuple[str, dict[str, str], str]],
    totals: np.ndarray,
    statistic: Callable[[np.ndarray], np.ndarray],
    groups: np.ndarray | None,
    settings: Settings,
    n: int,
) -> list[Metric]:
    ends = _bootstrap(unit_totals(totals, groups), statistic, settings)
    return _metrics(keys, statistic(totals.sum(0)[None])[0], ends, np.full(len(keys), n))


def _metrics(keys: Sequence[tuple[str, dict[str, str], str]], values: np.ndarray, ends: np.ndarray, counts: np.ndarray) -> list[Metric]:
    return [
        Metric(
            name=name,
            slice=slice_,
            value=float(value) if np.isfinite(value) else None,
            reason=None if np.isfinite(value) else "not defined: no item answered by all, or all answers are the same",
            unit=unit,
            higher_is_better=True if name in ("unanimous", "fleiss_kappa", "krippendorff_alpha", "weighted_kappa") else None,
            n=int(n),
            ci95=(float(low), float(high)) if np.isfinite(low) and np.isfinite(value) else None,
            chance=0.0 if unit in ("kappa", "alpha") else None,
        )
        for (name, slice_, unit), value, (low, high), n in zip(keys, values, ends, counts)
    ]
