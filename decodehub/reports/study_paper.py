"""What a study is set beside: the eight models of the EEG-EditBench paper, its numbers, and whether ours may stand next to them."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from decodehub.core.records import Metric, ResultRecord
from decodehub.metrics.eeg_editbench import benchmark as benchmark_module

from .pages import plural

if TYPE_CHECKING:
    from decodehub.metrics.eeg_editbench.protocol import ScoredRuns

Slice = tuple[tuple[str, str], ...]
PUBLISHED = Path(benchmark_module.__file__).with_name("published.csv")
PAPER_SIZE = (200, 2137)  # sources and edits (section S2.3)
PAPER_GRID = (10, 5)  # subjects and seeds (section S3.2)


class PaperModel(NamedTuple):
    """A row of table 1: name, venue, whether it learns from degraded images."""

    name: str
    venue: str
    degraded: bool


PAPER_MODELS = (
    PaperModel("NICE", "ICLR'24", False),
    PaperModel("ATM", "NeurIPS'24", False),
    PaperModel("MB2C", "ACM MM'24", False),
    PaperModel("UBP", "CVPR'25", True),
    PaperModel("ATS", "AAAI'26", True),
    PaperModel("NeuroBridge", "AAAI'26", True),
    PaperModel("HyFI", "AAAI'26", True),
    PaperModel("Brain-HIVE", "ICLR'26", False),
)


def paper_model(name: str) -> PaperModel | None:
    """The paper's model of a display name (``nice``, ``brain_hive``, ``ORG/HyFI``), or None; the whole name must be the model's."""
    plain = re.sub(r"[^a-z0-9]", "", name.rpartition("/")[2].lower())
    return {re.sub(r"[^a-z0-9]", "", m.name.lower()): m for m in PAPER_MODELS}.get(plain)


def display_name(name: str) -> str:
    """The paper's spelling of one of its models, any other name as it is."""
    found = paper_model(name)
    return found.name if found else name


def blocks(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Models of the paper in its order, then all others (baselines, own models) in the order given.

    Raises:
        ValueError: two names are of one of the paper's models.
    """
    names = list(names)
    found: dict[str, str] = {}
    for name in names:
        if (model := paper_model(name)) is not None:
            if model.name in found:
                raise ValueError(f"{found[model.name]!r} and {name!r} are both {model.name}: give one of them another name")
            found[model.name] = name
    return [found[m.name] for m in PAPER_MODELS if m.name in found], [name for name in names if paper_model(name) is None]


@cache
def published() -> dict[tuple[str, str, str, Slice], Metric]:
    """The paper's numbers by table, model, metric and slice; `n` is its ten subjects."""
    result = {}
    with PUBLISHED.open(newline="", encoding="utf-8") as f:
        for row in csv.DictReader(f):
            slice_: Slice = (tuple(row["slice"].split("=", 1)),) if row["slice"] else ()
            result[row["table"], row["model"], row["metric"], slice_] = Metric(
                name=row["metric"],
                slice=dict(slice_),
                value=float(row["value"]),
                unit="percentage points" if "gap" in row["metric"] or "gain" in row["metric"] else "percent",
                higher_is_better=None,
                n=PAPER_GRID[0],
                sd=float(row["sd"]) if row["sd"] else None,
                ci95=(float(row["ci_low"]), float(row["ci_high"])) if row["ci_low"] else None,
            )
    return result


def check_study(scored: Mapping[str, ScoredRuns], records: Mapping[str, ResultRecord]) -> None:
    """Check that the models can stand in one table.

    Raises:
        ValueError: no model, a model without record, or models scored on other tables or under other settings; they are named.
    """
    if not scored:
        raise ValueError("there is no scored model to make tables of")
    if missing := [name for name in scored if name not in records]:
        raise ValueError(f"there is no record for {missing}: give the record of every scored model")
    blocks(scored)
    for what, of in (
        ("benchmark tables", lambda s: f"{s.plan.benchmark.release} {s.plan.benchmark.content_hash}"),
        ("settings", lambda s: str(s.plan.settings)),
    ):
        groups: dict[str, list[str]] = {}
        for name, runs in scored.items():
            groups.setdefault(of(runs), []).append(name)
        if len(groups) > 1:
            parts = "; ".join(f"{', '.join(names)}: {key}" for key, names in groups.items())
            raise ValueError(f"the models were scored with different {what} and cannot be compared: {parts}")


def caveats(scored: Mapping[str, ScoredRuns], records: Mapping[str, ResultRecord]) -> dict[str, list[str]]:
    """For each model, in words, how its numbers differ in kind from the paper's; empty where they can be set side by side."""
    result: dict[str, list[str]] = {}
    for name, runs in scored.items():
        record, b, total = records[name], runs.plan.benchmark, runs.total
        found = []
        if record.is_sample:
            found.append(f"release {b.release} is a sample or rehearsal and says nothing about EEG-EditBench itself (EEG: {record.data})")
        elif (len(b.concepts), len(b.edit_ids)) != PAPER_SIZE:
            found.append(f"release {b.release} has {len(b.concepts)} sources and {len(b.edit_ids):,} edits, the paper's 200 and 2,137")
        if record.kind == "simulated":
            found.append("the EEG is simulated")
        grid = len(total.subjects), len(total.seeds)
        if grid != PAPER_GRID:
            found.append(f"{plural(grid[0], 'subject')} x {plural(grid[1], 'seed')}, the paper has 10 x 5")
        result[name] = found
    return result


def warnings(scored: Mapping[str, ScoredRuns], records: Mapping[str, ResultRecord]) -> list[str]:
    """`caveats` as lines, each with the models that it holds for (all: none is named)."""
    lines: dict[str, list[str]] = {}
    for name, found in caveats(scored, records).items():
        for text in found:
            lines.setdefault(text, []).append(display_name(name))
    return [
        text[0].upper() + text[1:] + ("" if len(names) == len(scored) else f" ({', '.join(names)})") + "." for text, names in lines.items()
    ]
