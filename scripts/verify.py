"""Re-score a result record from its saved predictions and compare."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from decodehub.records import Metric, RecordError, ResultRecord, check_files, read_record

app = typer.Typer(add_completion=False)
TOLERANCE = 1e-9  # counts are exact; only the order of a few float64 sums may differ between machines


class Difference(NamedTuple):
    """A number that the record states and its predictions do not give."""

    metric: str
    field: str
    stated: object
    recomputed: object


def verify(path: Path) -> tuple[ResultRecord, list[Difference]]:
    """Check a record's files and hashes, score its predictions anew, and list every number that differs.

    Raises:
        RecordError: no record, a newer schema, a missing or changed file, an unknown benchmark.
        ValueError: predictions that cannot be scored.
    """
    folder, record = read_record(path)
    check_files(folder, record)
    name = record.benchmark.id.replace("-", "_")
    try:
        protocol = importlib.import_module(f"decodehub.metrics.{name}.protocol")
    except ModuleNotFoundError:
        raise RecordError(f"this decodehub has no metric for benchmark {record.benchmark.id!r}: update it") from None
    return record, compare(record.metrics, list(protocol.rescore(folder, record).metrics))


def compare(stated: list[Metric], recomputed: list[Metric]) -> list[Difference]:
    """Every number of `stated` that `recomputed` does not have, and the other way round."""
    left, right = ({_label(metric): metric for metric in metrics} for metrics in (stated, recomputed))
    differences = [
        Difference(label, "metric", "stated" if label in left else "absent", "absent" if label in left else "computed")
        for label in left.keys() ^ right.keys()
    ]
    if len(left) != len(stated):
        differences.append(Difference("", "metric", f"{len(stated)} metrics", f"{len(left)} distinct ones"))
    for label in (label for label in left if label in right):
        a, b = left[label].model_dump(), right[label].model_dump()
        differences += [Difference(label, field, a[field], b[field]) for field in a if not _equal(a[field], b[field])]
    return differences


def _equal(a: object, b: object) -> bool:
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b))
    if isinstance(a, float) and isinstance(b, (float, int)) and not isinstance(b, bool):
        return abs(a - b) <= TOLERANCE * max(1.0, abs(a), abs(b))
    return a == b


def _label(metric: Metric) -> str:
    return metric.name + (f"[{','.join(f'{k}={v}' for k, v in metric.slice.items())}]" if metric.slice else "")


@app.command()
def main(record: Annotated[Path, typer.Argument(help="Folder of a record, or its record.json.")]) -> None:
    """Re-score RECORD from its saved predictions and say whether its numbers are right.

    Example: decodehub verify runs/demo
    """
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    found, differences = verify(record)
    headline = escape(f"{found.model.id} on {found.benchmark.id}, release {found.benchmark.release}")
    if differences:
        console.print(f"[bold red]NOT VERIFIED[/bold red]: {headline}: {len(differences)} numbers differ from the saved predictions")
        for d in differences[:20]:
            console.print(f"  {d.metric} {d.field}: stated {d.stated}, recomputed {d.recomputed}", markup=False)
        raise typer.Exit(1)
    console.print(
        f"[bold green]RECOMPUTED[/bold green]: {headline}: {len(found.metrics)} numbers from {len(found.runs)} runs are as stated"
    )
    if found.is_sample:
        console.print("It is a sample or rehearsal release: these scores say nothing about the benchmark itself.")


if __name__ == "__main__":
    app()
