"""EEG-EditBench jobs: export the images in score order, score embeddings, report on a record, build the rehearsal release."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from decodehub.files import POINTER_MAX_BYTES, pointer_kind

from . import _study_commands

if TYPE_CHECKING:
    from decodehub.metrics.eeg_editbench.benchmark import Benchmark
    from decodehub.metrics.eeg_editbench.protocol import ScoredRuns
    from decodehub.records import ResultRecord

    from ._editbench_report import GalleryItem

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)
app.command()(_study_commands.targets)
app.command()(_study_commands.study)

DataDir = Annotated[
    str | None, typer.Option(help='Folder of a release, or "sample"; by default the release that load_dataset("eeg-editbench") gives.')
]


@app.command()
def export(folder: Annotated[Path, typer.Argument(help="Where to write.")], data_dir: DataDir = None) -> None:
    """Write the images to encode, and sources.csv and edits.csv with their order.

    Row i of each table is row i of the embeddings that `decodehub editbench score` takes.

    Example: decodehub editbench export images --data-dir sample
    """
    import csv

    from datasets import load_dataset

    import decodehub  # noqa: F401
    from decodehub.files import write_bytes

    for config, columns in (("sources", {"image": "sources", "null_image": "nulls"}), ("edits", {"edited_image": "edits"})):
        data = _undecoded(load_dataset("eeg-editbench", config, split="test", data_dir=data_dir))
        rows = []
        for i, row in enumerate(data):
            files = {}
            for column, sub in columns.items():
                if row[column] is not None:
                    name = re.sub(r"[^A-Za-z0-9._-]", "_", row.get("edit_id") or row["concept"])
                    files[column] = f"{sub}/{i:04d}_{name}{Path(row[column]['path'] or '.png').suffix}"
                    write_bytes(folder / files[column], row[column]["bytes"])
            label = {
                k: data.features[k].int2str(row[k]) if hasattr(data.features[k], "int2str") and row[k] is not None else row[k] for k in row
            }
            plain = {k: v for k, v in label.items() if k not in ("image", "null_image", "source_image", "edited_image")}
            rows.append({"row": i, **files, **plain})
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, rows[0])
        writer.writeheader()
        writer.writerows(rows)
        write_bytes(folder / f"{config}.csv", text.getvalue().encode())
    typer.echo(f"{folder}: sources.csv and edits.csv say which file is which row")


@app.command()
def score(
    eeg: Annotated[
        list[Path], typer.Option(help="EEG embeddings (Q, D) as .npy. Repeat for several runs; their names then say sub-01 and seed-0.")
    ],
    sources: Annotated[list[Path], typer.Option(help="Source image embeddings (Q, D) as .npy: one file, or one a run.")],
    edits: Annotated[list[Path], typer.Option(help="Edited image embeddings (E, D) as .npy: one file, or one a run.")],
    nulls: Annotated[list[Path] | None, typer.Option(help="Null-edited image embeddings (Q, D) as .npy: one file, or one a run.")] = None,
    data_dir: DataDir = None,
    similarity: Annotated[str, typer.Option(help="cosine or dot.")] = "cosine",
    model: Annotated[str, typer.Option(help="Name of the model for table and record, e.g. ORG/my-model.")] = "my-model",
    data: Annotated[str, typer.Option(help="What the EEG was, for the record.")] = "not stated",
    out: Annotated[Path, typer.Option(help="Folder of the record and the report.")] = Path("runs/editbench"),
) -> None:
    """Score embeddings and write table, record and report. Rows are in the order of `decodehub editbench export`.

    Example: decodehub editbench score --eeg E.npy --sources S.npy --edits D.npy --data-dir sample --model me/nice
    """
    from decodehub.metrics.eeg_editbench.benchmark import load_benchmark
    from decodehub.metrics.eeg_editbench.protocol import Predictions, make_record
    from decodehub.metrics.eeg_editbench.similarity import score_embeddings
    from decodehub.records import ModelInfo

    benchmark = load_benchmark(data_dir)
    runs = [_run_of(path, len(eeg)) for path in eeg]
    files = {"--sources": _per_run(sources, len(eeg)), "--edits": _per_run(edits, len(eeg)), "--nulls": _per_run(nulls or [], len(eeg))}
    widths = {
        "--eeg": len(benchmark.concepts),
        "--sources": len(benchmark.concepts),
        "--edits": len(benchmark.edit_ids),
        "--nulls": len(benchmark.concepts),
    }
    predictions = []
    for i, (subject, seed) in enumerate(runs):
        paths = {"--eeg": eeg[i], **{name: per_run[i] for name, per_run in files.items()}}
        arrays = {name: _load(path, name, widths[name], benchmark.release) for name, path in paths.items() if path is not None}
        images = (arrays["--sources"], arrays["--edits"], arrays.get("--nulls"))
        predictions.append(Predictions(subject, seed, *score_embeddings(arrays["--eeg"], *images, similarity)))
    record, scored = make_record(out, benchmark, predictions, model=ModelInfo(id=model), data=data, similarity=similarity)
    finish(out, record, scored, data_dir)


@app.command()
def report(record: Annotated[Path, typer.Argument(help="Folder of a record.")], data_dir: DataDir = None) -> None:
    """Write report.html anew from a record; its numbers are the record's, the gallery is from the saved predictions.

    Example: decodehub editbench report runs/demo --data-dir sample
    """
    from decodehub.metrics.eeg_editbench.protocol import rescore
    from decodehub.records import check_files, read_record

    folder, found = read_record(record)
    check_files(folder, found)
    finish(folder, found, rescore(folder, found), data_dir)


@app.command()
def tables(
    records: Annotated[list[str], typer.Argument(help="Folders of records, one a model; NAME=FOLDER to show a model by another name.")],
    out: Annotated[Path, typer.Option(help="Folder of the tables and figures.")] = Path("runs/tables"),
    data_dir: DataDir = None,
) -> None:
    """Write the paper's tables and figures of one or more models from their records, the published numbers beside them.

    All records must be of one benchmark table. Numbers are computed anew from the saved predictions.

    Example: decodehub editbench tables nice=runs/nice runs/ridge --out runs/tables --data-dir sample
    """
    from rich.console import Console

    from decodehub.metrics.eeg_editbench.protocol import rescore
    from decodehub.records import check_files, read_record

    from ._study_figures import write_figures
    from ._study_tables import rich_tables, write_tables

    console = Console()
    scored, found = {}, {}
    for argument in records:
        name, given, path = ("", "", argument) if Path(argument).exists() else argument.rpartition("=")
        folder, record = read_record(Path(path))
        name = name if given else record.model.id
        if name in found:
            raise ValueError(f"two records are of {name!r}: give one of them another name, as in other-name={path}")
        check_files(folder, record)
        with console.status(f"scoring {len(record.runs)} runs of {name}"):
            found[name], scored[name] = record, rescore(folder, record)
    for table in rich_tables(scored, found, console.width):
        console.print(table, "")
    files = [*write_tables(out, scored, found), *write_figures(out, scored, found, data_dir)]
    console.print(f"{len(files)} files in {out}; captions in {out / 'figures.md'}", highlight=False, soft_wrap=True)


@app.command()
def rehearse(
    stamps: Annotated[Path, typer.Option(help="Folder that Debian's tuxpaint-stamps-default was unpacked to.")],
    out: Annotated[Path, typer.Option(help="Folder of the release.")] = Path("runs/rehearsal"),
    concepts: Annotated[int, typer.Option(min=2, help="Number of concepts; 200 is the size of the paper.")] = 200,
    training: Annotated[
        Path | None, typer.Option(help="Also composite the stamps that are no concept here, as images to train on.")
    ] = None,
) -> None:
    """Build the full-size rehearsal release from public cut-outs; stop it at any time, a restart goes on.

    It is for load tests and for trying a whole study before the real release is at hand; it is not EEG-EditBench.

    Example: decodehub editbench rehearse --stamps stamps --out rehearsal --training rehearsal-training
    """
    from decodehub.hub_datasets.eeg_editbench.rehearsal import build_rehearsal, build_training_images

    release = build_rehearsal(stamps, out, n_concepts=concepts)
    typer.echo(
        f'{out}: release {release.header.release}, {len(release.sources)} sources, {len(release.edits)} edits; load_dataset("eeg-editbench", data_dir="{out}")'
    )
    if training is not None:
        typer.echo(f"{build_training_images(stamps, training, release)}: the training images")


def finish(folder: Path, record: ResultRecord, scored: ScoredRuns, data_dir: str | None) -> None:
    """Print the table of a record and write its report."""
    from rich.console import Console

    from ._editbench_report import write_report

    console = Console()
    console.print(headline_table(record))
    if record.is_sample:
        console.print(f"[yellow]Release {record.benchmark.release!r}: these scores say nothing about EEG-EditBench itself.[/yellow]")
    write_report(folder / "report.html", record, gallery(scored, data_dir))
    console.print(
        f"record  {folder / 'record.json'}\nreport  {folder / 'report.html'}\ncheck   decodehub verify {folder}",
        highlight=False,
        soft_wrap=True,
    )


def headline_table(record: ResultRecord) -> Any:
    """The headline numbers of a record as a rich table."""
    from rich.markup import escape
    from rich.table import Table

    from ._editbench_report import headline, interval, number
    from ._pages import plural

    n = record.metrics[0].n
    table = Table(
        title=f"{escape(record.model.id)} on EEG-EditBench, release {escape(record.benchmark.release)} ({plural(n, 'subject')}, {plural(len(record.runs), 'run')})",
        title_justify="left",
    )
    for column, justify in (("", "left"), ("mean ± SD", "right"), ("95 % CI", "right"), ("chance", "right")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for label, metric in headline(record):
        table.add_row(label, number(metric), interval(metric), "–" if metric.chance is None else f"{metric.chance:.1f}")
    return table


def gallery(scored: ScoredRuns, data_dir: str | None, n: int = 12) -> list[GalleryItem]:
    """The hardest edits with their images; empty, with a word, when the images on this machine are of another release."""
    from ._editbench_report import GalleryItem, hardest_edits

    benchmark = scored.plan.benchmark
    data = release_images(benchmark, data_dir)
    if data is None:
        typer.echo("no gallery: the images on this machine are of another release (give its folder with --data-dir)", err=True)
        return []
    index = {edit_id: i for i, edit_id in enumerate(data["edit_id"])}
    items = []
    for edit, share in hardest_edits(scored, n):
        row = data[index[benchmark.edit_ids[edit]]]
        kind = benchmark.family[edit] + (f" / {benchmark.subtype[edit]}" if benchmark.subtype[edit] else "")
        items.append(
            GalleryItem(row["source_image"]["bytes"], row["edited_image"]["bytes"], f"{row['concept']}: {kind}", row["instruction"], share)
        )
    return items


def release_images(benchmark: Benchmark, data_dir: str | None, config: str = "edits") -> Any | None:
    """Config ``"edits"`` or ``"sources"`` of a release with its images encoded, or None if its images are not those of the benchmark."""
    from datasets import load_dataset

    import decodehub  # noqa: F401

    data = _undecoded(load_dataset("eeg-editbench", config, split="test", data_dir=data_dir))
    name, content = ("edit_id", "edited_sha256") if config == "edits" else ("concept", "source_sha256")
    known = {row[name]: row[content] for row in benchmark.rows[config]}
    return data if dict(zip(data[name], data[content])) == known else None


def _undecoded(data: Any) -> Any:
    """The same data with images as their encoded bytes."""
    from datasets import Image

    for name, feature in data.features.items():
        if isinstance(feature, Image):
            data = data.cast_column(name, Image(decode=False))
    return data


def _run_of(path: Path, n_runs: int) -> tuple[int, int]:
    subject, seed = re.search(r"sub-?0*(\d+)", path.stem), re.search(r"seed-?0*(\d+)", path.stem)
    if n_runs == 1:
        return int(subject[1]) if subject else 1, int(seed[1]) if seed else 0
    if subject is None or seed is None:
        raise ValueError(f"{path.name}: with several runs each file name must say subject and seed, such as sub-01_seed-0.npy")
    return int(subject[1]), int(seed[1])


def _per_run(files: Sequence[Path], n_runs: int) -> list[Path | None]:
    if len(files) not in (0, 1, n_runs):
        raise ValueError(
            f"{len(files)} files for {n_runs} runs ({', '.join(f.name for f in files[:3])}, ...): give one, or one a run in the order of --eeg"
        )
    if not files:
        return [None] * n_runs
    return [files[0] if len(files) == 1 else files[i] for i in range(n_runs)]


def _load(path: Path, option: str, rows: int, release: str) -> np.ndarray:
    if not path.is_file():
        raise FileNotFoundError(f"{option} {path} does not exist")
    if path.stat().st_size == 0:
        raise ValueError(f"{option} {path} is empty")
    try:
        # Reads the header alone before any memory is taken, and never unpickles.
        array = np.array(np.lib.format.open_memmap(path, mode="r"))
    except ValueError as error:
        with path.open("rb") as f:
            kind = pointer_kind(f.read(POINTER_MAX_BYTES + 1))
        what = f"a {kind} pointer in place of the data: fetch it" if kind else f"not a plain .npy array ({error})"
        raise ValueError(f"{option} {path} is {what}") from None
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype.kind not in "fiu" or len(array) != rows:
        found = f"shape {array.shape}, {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
        raise ValueError(f"{option} {path} has {found}; release {release!r} needs {rows} rows (order: decodehub editbench export)")
    return array


if __name__ == "__main__":
    app()
