"""What belongs together on the Hub: a benchmark, the data set it scores on, its headline numbers. Read from the metrics themselves."""

from __future__ import annotations

import ast
import importlib
from functools import cache
from types import ModuleType

from decodehub.core.entry import Entry, names
from decodehub.core.records import Metric, RecordError, ResultRecord

LOADERS = ("load_dataset", "load_dataset_builder")


def protocol_of(benchmark_id: str) -> ModuleType:
    """The `protocol` module of a benchmark.

    Raises:
        RecordError: this version has none.
    """
    try:
        return importlib.import_module(f"decodehub.metrics.{benchmark_id.replace('-', '_')}.protocol")
    except ModuleNotFoundError:
        raise RecordError(f"this decodehub has no metric for benchmark {benchmark_id!r}: update it") from None


def dataset_of(metric: str) -> str:
    """Name of the data set that a metric (``eeg_editbench``) scores on: the one that its code loads.

    Raises:
        ValueError: it loads none or several of ours.
    """
    found = datasets_of(metric)
    if len(found) != 1:
        raise ValueError(f"metric {metric} should load one of our data sets, it loads {sorted(found)}")
    return next(iter(found))


@cache
def datasets_of(metric: str) -> frozenset[str]:
    """Our data sets that a metric's code loads; none for a measure of any images."""
    entry = next(entry for entry in names("metric") if entry.name == metric)
    found = {name for file in entry.folder.glob("*.py") for name in loaded_names(ast.parse(file.read_text(encoding="utf-8")))}
    return frozenset(found & {other.name for other in names("dataset")})


def loaded_names(tree: ast.AST) -> dict[str, list[ast.Constant]]:
    """Names that are the first argument of ``load_dataset`` in some code, with where they stand."""
    found: dict[str, list[ast.Constant]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if function in LOADERS:
                found.setdefault(node.args[0].value, []).append(node.args[0])
    return found


@cache
def headlines(benchmark_id: str) -> tuple[str, ...]:
    """Names of the headline numbers of a benchmark: ``HEADLINES`` of its protocol, else those of its ``smoke()``."""
    protocol = protocol_of(benchmark_id)
    return tuple(getattr(protocol, "HEADLINES", None) or protocol.smoke())


def task_id(benchmark_id: str, metric: str) -> str:
    """Id of the task of one headline number; the Hub takes one value a data set and task."""
    return f"{benchmark_id}-{metric}".replace("_", "-")


def headline_metrics(record: ResultRecord) -> dict[str, Metric]:
    """The headline numbers of a record by task id: those over everything that its coverage rule names."""
    covered = record.protocol.settings.get("coverage")
    found = {}
    for metric in record.metrics:
        if metric.name not in headlines(record.benchmark.id) or metric.value is None:
            continue
        if not metric.slice:
            found[task_id(record.benchmark.id, metric.name)] = metric
        elif metric.slice == {"subset": covered}:
            ending = "" if covered == "full" else f"-{covered}"
            found[task_id(record.benchmark.id, metric.name) + ending] = metric
    return found


def tasks_of(dataset: Entry) -> dict[str, str]:
    """Task ids that are scored on a data set, each with the words of its headline number."""
    found: dict[str, str] = {}
    for metric in names("metric"):
        if dataset.name in datasets_of(metric.name):
            benchmark = str(protocol_of(metric.name).BENCHMARK_ID)
            found |= {task_id(benchmark, name): f"{name} of {benchmark}" for name in headlines(benchmark)}
    return found
