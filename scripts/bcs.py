"""BCS jobs: train a head on annotated pairs, score folders of reconstructions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from decodehub.records import ResultRecord

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)

CacheDir = Annotated[Path | None, typer.Option(help="Folder of cached image features; by default below $DECODEHUB_HOME.")]
PUBLISHED = "published"
OUTPUT_TYPES = ("continuous", "snapping", "prototypes")


@app.command()
def train(
    data_dir: Annotated[
        str | None, typer.Option(help='Folder of annotations, or "sample"; by default what load_dataset("bcs-annotations") gives.')
    ] = None,
    encoders: Annotated[
        str, typer.Option(help='Ids of frozen encoders, with commas; "published" is SigLIP, CLIP and DINOv3; lite0 needs no download.')
    ] = "lite0",
    teachers: Annotated[str | None, typer.Option(help="Annotators whose consensus is the target, with commas; all by default.")] = None,
    weight_rule: Annotated[str, typer.Option(help="paper (1 - variance) or released_code (1, .75, .40).")] = "paper",
    output_type: Annotated[
        str,
        typer.Option(
            help="continuous; snapping (thresholds fitted on validation); prototypes (trained with a cross-entropy of weight .35)."
        ),
    ] = "continuous",
    validation_loss: Annotated[str, typer.Option(help="paper (over the whole set) or released_code (mean of batch losses).")] = "paper",
    seeds: Annotated[str, typer.Option(help="Of the members, with commas.")] = "7,13,21,37,42",
    epochs: Annotated[int, typer.Option(min=1, help="At most.")] = 120,
    batch_size: Annotated[int, typer.Option(min=1)] = 512,
    lr: Annotated[float, typer.Option(help="Learning rate of AdamW.")] = 5e-4,
    hidden_size: Annotated[int, typer.Option(min=1, help="Width of the head; its blocks are twice as wide inside.")] = 512,
    baseline: Annotated[bool, typer.Option(help="Also train the single-encoder baseline of table 6 on the first encoder.")] = True,
    out: Annotated[Path, typer.Option(help="Folder of model, record and report.")] = Path("runs/bcs"),
    cache_dir: CacheDir = None,
    resume: Annotated[bool, typer.Option(help="Go on from a checkpoint in the folder.")] = True,
) -> None:
    """Train a BCS head on the consensus of annotators and evaluate it on held-out concepts as table 6 of the paper.

    Example: decodehub bcs train --data-dir sample --out runs/bcs
    """
    from decodehub.hub_models.bcs import PUBLISHED_ENCODERS
    from decodehub.hub_models.bcs.training import TrainingSettings

    from ._bcs_training import train_and_evaluate

    if output_type not in OUTPUT_TYPES:
        raise ValueError(f"--output-type is {output_type!r}, expected one of {', '.join(OUTPUT_TYPES)}")
    ids = [str(e["id"]) for e in PUBLISHED_ENCODERS] if encoders == PUBLISHED else _list(encoders)
    settings = TrainingSettings(lr=lr, batch_size=batch_size, epochs=epochs, validation_loss=validation_loss)
    record = train_and_evaluate(
        out,
        data_dir=data_dir,
        encoder_ids=ids,
        teachers=None if teachers is None else _list(teachers),
        weight_rule=weight_rule,
        output_type=output_type,
        seeds=[int(seed) for seed in _list(seeds)],
        hidden_size=hidden_size,
        settings=settings,
        baseline=baseline,
        cache_dir=cache_dir or default_cache(),
        resume=resume,
    )
    if record is not None:
        _print_evaluation(record)
        typer.echo(f"model   {out / 'model'}\nrecord  {out / 'record.json'}\nreport  {out / 'report.html'}\ncheck   decodehub verify {out}")


@app.command()
def score(
    references: Annotated[Path, typer.Argument(help="Folder of reference images.")],
    reconstructions: Annotated[Path, typer.Argument(help="Folder of reconstructions; their names say which reference they are of.")],
    model: Annotated[
        str | None, typer.Option(help='The head: a folder of `decodehub bcs train`, ORG/NAME of the Hub, or "sample" to see how it goes.')
    ] = None,
    data: Annotated[str, typer.Option(help="What the reconstructions are, for the record.")] = "not stated",
    release: Annotated[str, typer.Option(help="Name of this set of reconstructions, for the record.")] = "own",
    out: Annotated[Path, typer.Option(help="Folder of table, record and page.")] = Path("runs/bcs-scores"),
    cache_dir: CacheDir = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images read at once.")] = 32,
    page: Annotated[bool, typer.Option(help="Write the page with the best, worst and most plausible but wrong pairs.")] = True,
) -> None:
    """Score every reconstruction against its reference and write scores.csv, a record and a page.

    Pairs are found by name: same path, same stem, METHOD__sub-XX__concept__rankR__candC, or a folder or stem that names the reference.

    Example: decodehub bcs score references/ reconstructions/ --model runs/bcs/model
    """
    from ._bcs_scoring import score_folders

    result = score_folders(
        references,
        reconstructions,
        out,
        model=model,
        data=data,
        release=release,
        cache_dir=cache_dir or default_cache(),
        batch_size=batch_size,
        page=page,
    )
    if result is None:
        return
    for kind, paths in (
        ("references without a reconstruction", result.unmatched_references),
        ("reconstructions without a reference", result.unmatched_reconstructions),
    ):
        if paths:
            typer.secho(f"{len(paths)} {kind} (all are in {out / 'unmatched.csv'}):", fg="yellow", err=True)
            for path in paths[:10]:
                typer.echo(f"  {path}", err=True)
    _print_scores(result.record)
    made = ["scores.csv", "record.json", *(["report.html"] if page else [])]
    typer.echo("\n".join(str(out / name) for name in made) + f"\ncheck   decodehub verify {out}")


def default_cache() -> Path:
    """Folder of cached image features."""
    from decodehub.files import home

    return home() / "image-features"


def _list(text: str) -> list[str]:
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise ValueError(f"expected names with commas between them, found {text!r}")
    return items


def _print_evaluation(record: ResultRecord) -> None:
    from ._bcs_report import evaluation_rows

    header, rows = evaluation_rows(record, intervals=False)
    _print_table(header, rows, record)


def _print_scores(record: ResultRecord) -> None:
    from ._bcs_report import score_rows

    header, rows = score_rows(record, intervals=False)
    _print_table(header, rows, record)


def _print_table(header: list[str], rows: list[list[str]], record: ResultRecord) -> None:
    from rich.console import Console
    from rich.table import Table

    from ._bcs_report import sample_note

    table: Any = Table(*header, box=None, header_style="bold")
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.print(table)
    if note := sample_note(record):
        console.print(f"[yellow]{note}[/yellow]")


if __name__ == "__main__":
    app()
