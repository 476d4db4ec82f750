"""What the figures 5 to 7 and S1 to S4 of the EEG-EditBench paper show, as rows: pure functions of scored runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from decodehub.core.records import Metric, ResultRecord
from decodehub.hub_datasets.eeg_editbench.taxonomy import load_taxonomy
from decodehub.metrics.eeg_editbench.benchmark import Benchmark
from decodehub.metrics.eeg_editbench.scoring import stable_failures

from .study_paper import Slice, blocks, display_name

if TYPE_CHECKING:
    from decodehub.metrics.eeg_editbench.protocol import ScoredRuns

Row = dict[str, Any]
FAMILIES = {
    "identity": ("near", "medium", "far"),
    "attribute": ("color", "material", "texture", "shape", "state"),
    "background": (),
    "removal": (),
}
# The twelve columns of figures 6 and S2: a family, then its subtypes.
CONDITIONS = tuple(part for f, subtypes in FAMILIES.items() for part in (("family", f), *(("subtype", s) for s in subtypes)))
ALIGNMENT = ("source_drop", "target_gain", "target_similarity_source", "target_similarity_edited")
RANKS = ("target_rank_source", "target_rank_edited")


def averaged_models(scored: Mapping[str, ScoredRuns]) -> list[str]:
    """The models that a figure averages over: those of the paper, and where there is none, all."""
    paper_block, others = blocks(scored)
    return paper_block or others


def distance_rows(benchmark: Benchmark, reference: np.ndarray | None = None) -> list[Row]:
    """Figure 5: box-plot statistics of the source-edit distance of each family and subtype, whiskers at most 1.5 IQR long.

    Args:
        benchmark: with visual distances.
        reference: (E,) median distance of each edited image to the sources of all other concepts (`reference_distances`), if known; its
            quartiles are a row of the family "other concepts".
    """
    rows = []
    for part, value in CONDITIONS:
        member = (benchmark.family if part == "family" else benchmark.subtype) == value
        d = benchmark.distance[member & np.isfinite(benchmark.distance)]
        family = value if part == "family" else next(f for f, subtypes in FAMILIES.items() if value in subtypes)
        if len(d):
            rows.append({"family": family, "subtype": value if part == "subtype" else "", **_box(d)})
    if reference is not None:
        rows.append({"family": "other concepts", "subtype": "", **_box(reference)})
    return rows


def _box(d: np.ndarray) -> Row:
    q1, median, q3 = (float(x) for x in np.percentile(d, (25, 50, 75)))
    reach = 1.5 * (q3 - q1)
    low, high = d[d >= q1 - reach].min(), d[d <= q3 + reach].max()
    return {
        "n": len(d),
        "mean": float(d.mean()),
        "median": median,
        "q1": q1,
        "q3": q3,
        "whisker_low": float(low),
        "whisker_high": float(high),
        "min": float(d.min()),
        "max": float(d.max()),
    }


def reference_distances(edit_features: np.ndarray, source_features: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Median cosine distance of each edited image to the sources of all other concepts (figure 5's reference), (E,).

    Args:
        edit_features: (E, D). source_features: (Q, D). query: (E,) int, the concept of each edit.
    """
    edits, sources = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (edit_features, source_features))
    distances = 1 - edits @ sources.T
    others = np.arange(len(sources)) != query[:, None]
    return np.median(distances[others].reshape(len(edits), -1), axis=1)


def category_rows(scored: Mapping[str, ScoredRuns], metric: str) -> list[Row]:
    """Figures 6 (`two_afc_minus_average`) and S2 (`two_afc`): each model and, as the model "mean", the mean over `averaged_models`.

    A category without an edit of a condition has no value.
    """
    names = averaged_models(scored)
    b = scored[names[0]].plan.benchmark
    found = [_found(scored[name]) for name in names]
    rows = []
    for category in sorted(dict.fromkeys(b.category.tolist()), key=_category_place):
        in_category = b.category[b.query] == category
        for condition in CONDITIONS:
            n = int((in_category & ((b.family if condition[0] == "family" else b.subtype) == condition[1])).sum())
            values = [numbers.get((metric, (("category", category), condition))) for numbers in found]
            numbers = [m.value for m in values if m is not None and m.value is not None]
            cell = {
                "category": category,
                "concepts": int((b.category == category).sum()),
                "condition": "=".join(condition),
                "edits": n,
            }
            rows += [{"model": display_name(name), **cell, metric: m.value if m else None} for name, m in zip(names, values)]
            rows.append({"model": "mean", **cell, metric: float(np.mean(numbers)) if len(numbers) == len(names) else None})
    return rows


def _category_place(category: str) -> int:
    categories = load_taxonomy().categories
    return categories.index(category) if category in categories else len(categories)


def alignment_rows(scored: Mapping[str, ScoredRuns], records: Mapping[str, ResultRecord]) -> list[Row]:
    """Figure 7: directional changes and similarities of every model, each with its interval; `similarity` says what the score is."""
    rows = []
    for name, runs in _ordered(scored):
        found = _found(runs)
        numbers = {key: value for metric in ALIGNMENT for key, value in _number(metric, found[metric, ()]).items()}
        similarity = str(records[name].protocol.settings.get("similarity", "not stated"))
        rows.append({"model": display_name(name), "similarity": similarity, "edits": len(runs.plan.identity), **numbers})
    return rows


def rank_rows(scored: Mapping[str, ScoredRuns]) -> list[Row]:
    """Figure S4: mean rank of the target concept's EEG among all, for source and edited image, with chance."""
    rows = []
    for name, runs in _ordered(scored):
        found = _found(runs)
        numbers = {key: value for metric in RANKS for key, value in _number(metric, found[metric, ()]).items()}
        rows.append({"model": display_name(name), "edits": len(runs.plan.identity), **numbers, "chance": found[RANKS[0], ()].chance})
    return rows


def quintile_rows(scored: Mapping[str, ScoredRuns]) -> list[Row]:
    """Figure S1: 2AFC in each group of visual distance, with the group's borders and number of edits."""
    rows = []
    for name, runs in _ordered(scored):
        plan, found = runs.plan, _found(runs)
        d = plan.benchmark.distance
        bins = plan.settings.distance_bins
        edges = np.quantile(d[np.isfinite(d)], np.linspace(0, 1, bins + 1))
        rho = found["distance_margin_spearman", ()].value
        for k in range(bins):
            label: Slice = (("distance_quantile", f"{k + 1}/{bins}"),)
            if label not in plan.slices:
                continue  # equal distances can leave a group empty
            borders = {"distance_low": float(edges[k]), "distance_high": float(edges[k + 1])}
            edits = int(plan.counts[plan.slices.index(label)])
            number = _number("two_afc", found["two_afc", label])
            rows.append(
                {"model": display_name(name), "group": f"Q{k + 1}", "edits": edits, **borders, **number, "distance_margin_spearman": rho}
            )
    return rows


def failure_rows(scored: Mapping[str, ScoredRuns], per_family: int = 2) -> list[Row]:
    """Figure S3: all edits that fail stably for a model at least, in rank order within their family (section S6.4).

    Ranked by the number of models that they fail for, then by failures over the runs of all `averaged_models`, then in the order of the
    release. `selected` marks the first `per_family` of each family that have different source images.
    """
    names = averaged_models(scored)
    b = scored[names[0]].plan.benchmark
    wins = {name: _wins(scored[name]) for name in names}
    stable = np.array([stable_failures(w) for w in wins.values()])
    coverage = stable.sum(0)
    failures = np.sum([(~w).sum((0, 1)) for w in wins.values()], axis=0)
    comparisons = sum(w.shape[0] * w.shape[1] for w in wins.values())
    rows = []
    for family in FAMILIES:
        qualified = np.flatnonzero((b.family == family) & (coverage > 0))
        shown: set[int] = set()
        for i in qualified[np.lexsort((qualified, -failures[qualified], -coverage[qualified]))]:
            selected = len(shown) < per_family and int(b.query[i]) not in shown
            shown |= {int(b.query[i])} if selected else set()
            rows.append(
                {
                    "family": family,
                    "subtype": b.subtype[i],
                    "edit_id": b.edit_ids[i],
                    "concept": b.concepts[b.query[i]],
                    "models_failing": int(coverage[i]),
                    "models": len(names),
                    "failures": int(failures[i]),
                    "comparisons": comparisons,
                    "selected": selected,
                    "failing_for": "; ".join(display_name(name) for name, fails in zip(names, stable[:, i]) if fails),
                }
            )
    return rows


def _wins(runs: ScoredRuns) -> np.ndarray:
    """(n_subjects, n_seeds, E) bool: the source strictly above the edit."""
    index = {run: i for i, run in enumerate(runs.runs)}
    return np.array([[runs.scores[index[s, seed]].wins for seed in runs.total.seeds] for s in runs.total.subjects])


def _ordered(scored: Mapping[str, ScoredRuns]) -> list[tuple[str, ScoredRuns]]:
    paper_block, others = blocks(scored)
    return [(name, scored[name]) for name in (*paper_block, *others)]


def _found(runs: ScoredRuns) -> dict[tuple[str, Slice], Metric]:
    return {(m.name, tuple(m.slice.items())): m for m in runs.metrics}


def _number(name: str, m: Metric) -> Row:
    low, high = m.ci95 or (None, None)
    return {name: m.value, f"{name}_sd": m.sd, f"{name}_ci_low": low, f"{name}_ci_high": high}
