"""Numbers of the papers as rows of the boards. Each says where it is printed; nobody has recomputed them here."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from decodehub import metrics
from decodehub.core.records import Metric

from .checks import BENCHMARKS
from .data import Slice
from .rows import BCS_TABLE6, NOT_DECLARED, Row

PUBLISHED = Path(__file__).with_name("published.csv")  # BCS and iMINDBench
EDITBENCH_SOURCE = "arXiv 2607.27857, tables 1, 2, S10 to S14"
EDITBENCH_SUBJECTS = "10"


@cache
def published_rows(board: str) -> list[Row]:
    """The published rows of a board: one for each model, track, kind of training and table.

    Raises:
        ValueError: a malformed line of the tables.
    """
    found: dict[tuple[str, str, str, str], list[Mapping[str, str]]] = {}
    for line in _lines(board):
        kind = "heads" if line["metric"] in {name for _, name in BCS_TABLE6} else "scores"
        found.setdefault((line["model"], line["track"], line["split"], kind), []).append(line)
    rows = []
    for (model, track, split, kind), lines in found.items():
        traits = {"track": track, "split": split, "pretraining": lines[0]["pretrained_on"] or NOT_DECLARED, "kind": kind}
        source, note = ("; ".join(dict.fromkeys(line[column] for line in lines if line[column])) for column in ("source", "note"))
        key = "paper:" + re.sub(r"[^a-z0-9]+", "-", " ".join([board, model, track, split, kind]).lower())
        rows.append(Row(key, model, None, _numbers(lines), (), traits, source=source, note=note))
    return rows


def _numbers(lines: Iterable[Mapping[str, str]]) -> dict[tuple[str, Slice], Metric]:
    """Numbers by name and slice; where several tables print one, the first counts."""
    numbers: dict[tuple[str, Slice], Metric] = {}
    for line in lines:
        slice_ = _slice(line["slice"])
        low, high, sd, sem = (float(line[c]) if line.get(c) else None for c in ("ci_low", "ci_high", "sd", "sem"))
        metric = Metric(
            name=line["metric"],
            slice=dict(slice_),
            value=float(line["value"]),
            unit=line.get("unit") or "score",
            higher_is_better=None,
            n=int(line["n"] or 0),
            sd=sd,
            ci95=None if low is None or high is None else (low, high),
        )
        numbers.setdefault((metric.name, slice_), metric)
        if sem is not None:
            name = f"{metric.name}_sem"
            numbers.setdefault((name, slice_), metric.model_copy(update={"name": name, "value": sem, "sd": None, "ci95": None}))
    return numbers


def _slice(text: str) -> Slice:
    pairs = [part.partition("=") for part in text.split(";") if part]
    return tuple(sorted((name, value) for name, _, value in pairs))


def _lines(board: str) -> list[Mapping[str, str]]:
    if board != "eeg-editbench":
        with PUBLISHED.open(newline="", encoding="utf-8") as f:
            return [line for line in csv.DictReader(f) if line["board"] == board]
    with (Path(next(iter(metrics.__path__))) / BENCHMARKS[board] / "published.csv").open(newline="", encoding="utf-8") as f:
        lines = sorted(csv.DictReader(f), key=lambda line: line["table"] not in ("1", "2"))  # tables 1 and 2 first
    fixed = {"track": "", "split": "", "n": EDITBENCH_SUBJECTS, "pretrained_on": "", "note": "", "source": EDITBENCH_SOURCE}
    return [
        {**line, **fixed, "unit": "percentage points" if "gain" in line["metric"] or "gap" in line["metric"] else "percent"}
        for line in lines
    ]
