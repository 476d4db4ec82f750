"""Tables of iMINDBench for the console."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from decodehub.metrics.imindbench.grid import DATASETS, SHORT_NAMES

if TYPE_CHECKING:
    from decodehub.core.records import ResultRecord
    from decodehub.metrics.imindbench.compare import Comparison
    from decodehub.metrics.imindbench.protocol import Scored


def leaderboard(rows: Sequence[tuple[str, str, Scored]], subset: str, metric: str = "roc_auc") -> Any:
    """Rows of (model, track, scored run) as a rich table, best Overall first; a run without this subset is left out."""
    release = rows[0][2].grid.release
    title = f"iMINDBench {release}, {subset} units, {'ROC-AUC' if metric == 'roc_auc' else 'accuracy'} ± SEM"
    table = Table(title=title, title_justify="left", box=None, header_style="bold", padding=(0, 1, 0, 0))
    for column in ("", "Model", "Track", "Overall", *(SHORT_NAMES[d] for d in DATASETS), "units"):
        name = column in ("Model", "Track")  # names go over several lines in a narrow terminal; numbers do not
        table.add_column(
            column, justify="left" if name else "right", no_wrap=not name, overflow="fold" if name else "ellipsis", min_width=7 * name
        )
    found = []
    for model, track, scored in rows:
        try:
            overall = scored.table.get(metric, subset=subset)
        except KeyError:
            continue
        cells = [_number(overall)]
        for dataset in DATASETS:
            try:
                cells.append(_number(scored.table.get(metric, subset=subset, dataset=dataset)))
            except KeyError:
                cells.append("–")
        found.append((-np.inf if not np.isfinite(overall.value) else overall.value, model, track, cells, overall.n))
    for rank, (_, model, track, cells, n) in enumerate(sorted(found, key=lambda item: -item[0]), start=1):
        table.add_row(str(rank), escape(model), escape(track), *cells, str(n))
    return table


def task_table(scored: Scored, subset: str, metric: str = "roc_auc") -> Any:
    """AUC by task and data set of one run."""
    table = Table(title=f"by task, {subset} units", title_justify="left", box=None, header_style="bold")
    table.add_column("task")
    for name in ("mean", *(SHORT_NAMES[d] for d in DATASETS)):
        table.add_column(name, justify="right")
    values = {v.slice: v for v in scored.table.values if v.name == metric}
    tasks = [dict(s)["task"] for s in values if dict(s).get("subset") == subset and len(s) == 2 and "task" in dict(s)]
    for task in tasks:
        cells = [_number(scored.table.get(metric, subset=subset, task=task))]
        for dataset in DATASETS:
            key = (("subset", subset), ("dataset", dataset), ("task", task))
            cells.append(_number(values[key]) if key in values else "–")
        table.add_row(task, *cells)
    return table


def comparison_table(first: str, second: str, comparisons: Sequence[Comparison]) -> Any:
    """Paired differences as a rich table."""
    table = Table(title=f"{escape(first)} minus {escape(second)}, ROC-AUC", title_justify="left")
    for column in ("", "difference", "95 % CI", "p", "smallest p", "better in", "test"):
        table.add_column(column, justify="left" if column in ("", "test") else "right")
    for c in comparisons:
        name = SHORT_NAMES.get(c.label, "Overall")
        table.add_row(
            name,
            f"{c.difference:+.4f}",
            "–" if c.ci95 is None else f"{c.ci95[0]:+.4f} to {c.ci95[1]:+.4f}",
            f"{c.p:.4g}",
            f"{c.p_min:.2g}",
            f"{c.wins:g} of {c.n_units}",
            c.method if c.ci95 is not None else f"{c.method}; {c.ci_reason}",
        )
    notes = [comparisons[0].shared]
    if left := comparisons[0].left_out:
        notes.append(
            f"Left out, without a score in either run: {', '.join(left[:5])}{', ...' if len(left) > 5 else ''} ({len(left)} units)."
        )
    table.caption, table.caption_justify = escape(" ".join(notes)), "left"
    return table


def remarks(record: ResultRecord, scored: Scored) -> list[str]:
    """What a reader of a record's numbers must know."""
    found = []
    if folds := scored.table.unscored_folds:
        unit, fold, reason = folds[0]
        units = len(scored.table.unscored_units)
        found.append(
            f"{record.model.id}: {len(folds)} folds have no score ({units} units none at all), the first is {unit}, fold {fold}: {reason}."
        )
    if record.benchmark.release.startswith("sample"):
        found.append(f"Release {record.benchmark.release!r} is SIMULATED: these scores say nothing about iMINDBench itself.")
    if record.protocol.settings["track"] not in ("Multi-STFT", "Waveform"):
        found.append(f"Track {record.protocol.settings['track']!r} is not one of the published ones: compare within it only.")
    return found


def _number(value: Any) -> str:
    if not np.isfinite(value.value):
        return "–"
    return f"{value.value:.3f}" + (f" ± {value.sem:.3f}" if np.isfinite(value.sem) else "")
