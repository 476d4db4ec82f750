"""Tables of iMINDBench for the console."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from decodehub.core.tables import Column, Estimate, Format, Table
from decodehub.metrics.imindbench.grid import DATASETS, SHORT_NAMES

if TYPE_CHECKING:
    from decodehub.core.records import ResultRecord
    from decodehub.metrics.imindbench.compare import Comparison
    from decodehub.metrics.imindbench.protocol import Scored

SCORES = Format(spread=("sem",))
DIFFERENCES = Format(4, signed=True)


def leaderboard(rows: Sequence[tuple[str, str, Scored]], subset: str, metric: str = "roc_auc") -> Table:
    """A table of (model, track, scored run), best Overall first; a run without this subset is left out."""
    release = rows[0][2].grid.release
    ranked: list[tuple[float, list[Any]]] = []
    for model, track, scored in rows:
        overall = _score(scored, metric, subset=subset)
        if overall is not None:
            parts = (_score(scored, metric, subset=subset, dataset=d) for d in DATASETS)
            total = scored.table.get(metric, subset=subset)
            ranked.append((total.value if np.isfinite(total.value) else -np.inf, [model, track, overall, *parts, total.n]))
    ranked.sort(key=lambda item: -item[0])
    return Table(
        [
            Column("", justify="right"),
            Column("Model", justify="left", wrap=True),
            Column("Track", justify="left", wrap=True),
            *(Column(name, SCORES) for name in ("Overall", *(SHORT_NAMES[d] for d in DATASETS))),
            "units",
        ],
        [[rank, *row] for rank, (_, row) in enumerate(ranked, start=1)],
        title=f"iMINDBench {release}, {subset} units, {'ROC-AUC' if metric == 'roc_auc' else 'accuracy'} ± SEM",
    )


def task_table(scored: Scored, subset: str, metric: str = "roc_auc") -> Table:
    """AUC by task and data set of one run."""
    slices = [dict(v.slice) for v in scored.table.values if v.name == metric]
    tasks = [s["task"] for s in slices if s.get("subset") == subset and len(s) == 2 and "task" in s]
    parts: tuple[dict[str, str], ...] = ({}, *({"dataset": d} for d in DATASETS))
    return Table(
        ["task", *(Column(name, SCORES) for name in ("mean", *(SHORT_NAMES[d] for d in DATASETS)))],
        [(task, *(_score(scored, metric, subset=subset, **part, task=task) for part in parts)) for task in tasks],
        title=f"by task, {subset} units",
    )


def comparison_table(first: str, second: str, comparisons: Sequence[Comparison]) -> Table:
    """Paired differences."""
    notes = [comparisons[0].shared]
    if left := comparisons[0].left_out:
        notes.append(
            f"Left out, without a score in either run: {', '.join(left[:5])}{', ...' if len(left) > 5 else ''} ({len(left)} units)."
        )
    return Table(
        ["", Column("difference", DIFFERENCES), "95 % CI", "p", "smallest p", "better in", Column("test", justify="left", wrap=True)],
        [
            (
                SHORT_NAMES.get(c.label, "Overall"),
                c.difference,
                DIFFERENCES.interval(c.ci95),
                f"{c.p:.4g}",
                f"{c.p_min:.2g}",
                f"{c.wins:g} of {c.n_units}",
                c.method if c.ci95 is not None else f"{c.method}; {c.ci_reason}",
            )
            for c in comparisons
        ],
        title=f"{first} minus {second}, ROC-AUC",
        notes=[note for note in notes if note],
    )


def remarks(record: ResultRecord, scored: Scored) -> list[str]:
    """What a reader of a record's numbers must know."""
    found = []
    if folds := scored.table.unscored_folds:
        unit, fold, reason = folds[0]
        units = len(scored.table.unscored_units)
        found.append(
            f"{record.model.id}: {len(folds)} folds have no score ({units} units none at all), the first is {unit}, fold {fold}: {reason}."
        )
    if remark := unchecked_labels(record.model.id, scored):
        found.append(remark)
    if record.kind != "real":
        found.append(f"Release {record.benchmark.release!r} is SIMULATED: these scores say nothing about iMINDBench itself.")
    if record.protocol.settings["track"] not in ("Multi-STFT", "Waveform"):
        found.append(f"Track {record.protocol.settings['track']!r} is not one of the published ones: compare within it only.")
    return found


def _score(scored: Scored, metric: str, **slice_: str) -> Estimate | None:
    try:
        value = scored.table.get(metric, **slice_)
    except KeyError:
        return None
    return Estimate(value.value, sem=value.sem)


def unchecked_labels(model: str, scored: Scored) -> str:
    """What to say of a run whose labels could not be checked; "" for one whose labels are those of the release."""
    if not (units := scored.labels.unchecked):
        return ""
    return (
        f"{model}: labels not checked in {len(units)} units (the first is {units[0]}), as the truth of release {scored.grid.release!r} is not known "
        "here for them: these scores are reported, not ranked."
    )
