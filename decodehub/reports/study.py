"""Records, pages, tables and figures of a study."""

from __future__ import annotations

from rich.console import Console

from decodehub.runs.retrieval.study import Study, make_records

from .editbench import gallery, write_report
from .study_figures import write_figures
from .study_tables import layouts, write_tables


def report_study(plan: Study, missing: list[str]) -> None:
    """Write the records and pages of the models that are complete, the tables and figures of all of them, and print the tables.

    Args:
        plan: the study.
        missing: names of runs that are not there; their models are left out, and named.
    """
    records, scored = {}, {}
    for model, record, scores in make_records(plan, missing):
        write_report(plan.out / "records" / model / "report.html", record, gallery(scores, plan.source.data_dir))
        records[model], scored[model] = record, scores
    if not records:
        Console(stderr=True).print("no model is complete yet: nothing to report", highlight=False)
        return
    files = [
        *write_tables(plan.out / "tables", scored, records),
        *write_figures(plan.out / "figures", scored, records, plan.source.data_dir),
    ]
    console = Console()
    for table in layouts(scored, records):
        console.print(*table.cut(console.width), "")
    incomplete = [model for model in plan.models if model not in records]
    if incomplete:
        console.print(f"[yellow]left out, as runs are missing: {', '.join(incomplete)}[/yellow]")
    console.print(
        f"{len(files)} files in {plan.out / 'tables'} and {plan.out / 'figures'}; records in {plan.out / 'records'}",
        highlight=False,
        soft_wrap=True,
    )
