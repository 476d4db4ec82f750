"""EEG-EditBench jobs: export the images in score order, score embeddings, report on a record, build the rehearsal release."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from decodehub.runs.retrieval.defaults import CROPS, SNR
from decodehub.runs.retrieval.options import (
    MODEL_NAMES,
    TRAINING_HELP,
    BatchSize,
    Epochs,
    Force,
    HardNegatives,
    LearningRate,
    Prepared,
    ReleaseDir,
    Snr,
    check_source,
)

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)

ENCODER_HELP = 'Image encoder: "published" (weights from the Hub), or an id such as "lite0", which needs no download and is marked.'
FORMATS = ".npy, .npz, .safetensors or .parquet"
DataDir = Annotated[
    str | None, typer.Option(help='Folder of a release, or "sample"; by default the release that load_dataset("eeg-editbench") gives.')
]


@app.command()
def export(folder: Annotated[Path, typer.Argument(help="Where to write.")], data_dir: DataDir = None) -> None:
    """Write the images to encode, sources.csv and edits.csv with their order, and their ids as sources.ids.txt and edits.ids.txt.

    Row i of each table is row i of the embeddings that `decodehub editbench score` takes; a file X.npy with X.ids.txt beside it may have rows in
    any order. Ids are concepts (of EEG, sources and nulls) and edit ids, or the names of the exported files.

    Example: decodehub editbench export images --data-dir sample
    """
    import csv

    from datasets import load_dataset

    import decodehub  # noqa: F401
    from decodehub.core.files import write_bytes
    from decodehub.metrics.eeg_editbench.benchmark import export_stem
    from decodehub.reports.editbench import undecoded

    for config, columns in (("sources", {"image": "sources", "null_image": "nulls"}), ("edits", {"edited_image": "edits"})):
        data = undecoded(load_dataset("eeg-editbench", config, split="test", data_dir=data_dir))
        rows = []
        for i, row in enumerate(data):
            files = {}
            for column, sub in columns.items():
                if row[column] is not None:
                    stem = export_stem(i, row.get("edit_id") or row["concept"])
                    files[column] = f"{sub}/{stem}{Path(row[column]['path'] or '.png').suffix}"
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
        ids = [row.get("edit_id") or row["concept"] for row in rows]
        write_bytes(folder / f"{config}.ids.txt", "".join(f"{name}\n" for name in ids).encode())
    typer.echo(f"{folder}: sources.csv and edits.csv say which file is which row, sources.ids.txt and edits.ids.txt are their ids")


@app.command()
def score(
    eeg: Annotated[
        list[Path], typer.Option(help=f"EEG embeddings (Q, D): {FORMATS}. Repeat for several runs; their names then say sub-01 and seed-0.")
    ],
    sources: Annotated[list[Path], typer.Option(help="Source image embeddings (Q, D): one file, or one a run.")],
    edits: Annotated[list[Path], typer.Option(help="Edited image embeddings (E, D): one file, or one a run.")],
    nulls: Annotated[list[Path] | None, typer.Option(help="Null-edited image embeddings (Q, D): one file, or one a run.")] = None,
    data_dir: DataDir = None,
    similarity: Annotated[str, typer.Option(help="How your method compares: cosine or dot. It is recorded as you say it.")] = "cosine",
    allow_order: Annotated[
        bool, typer.Option("--allow-order", help="Score rows that do not look in order, as of an encoder that maps edits far away.")
    ] = False,
    model: Annotated[str, typer.Option(help="Name of the model for table and record, e.g. ORG/my-model.")] = "my-model",
    data: Annotated[str, typer.Option(help="What the EEG was, for the record.")] = "not stated",
    simulated: Annotated[
        bool, typer.Option("--simulated", help="The EEG was simulated: the record's kind, which no words decide.")
    ] = False,
    interval: Annotated[
        Literal["sign_flip", "paper"], typer.Option(help="Intervals over subjects: of the sign-flip test, or the paper's bootstrap.")
    ] = "sign_flip",
    out: Annotated[Path, typer.Option(help="Folder of the record and the report.")] = Path("runs/editbench"),
    force: Force = False,
) -> None:
    """Score embeddings and write table, record and report.

    Files with ids (NAME.ids.txt beside them, or inside) may have their rows in any order; without ids, rows are in the order of
    `decodehub editbench export`, and edits that do not lie with their sources are refused.

    Example: decodehub editbench score --eeg E.npy --sources S.npy --edits D.npy --data-dir sample --model me/nice
    """
    from decodehub.core.records import ModelInfo
    from decodehub.metrics.eeg_editbench.benchmark import load_benchmark
    from decodehub.metrics.eeg_editbench.protocol import make_record, refuse_other_record
    from decodehub.metrics.eeg_editbench.scoring import Settings
    from decodehub.reports.editbench import show_record
    from decodehub.runs.retrieval.embedding_files import score_files
    from decodehub.runs.retrieval.folders import RECORD_FILES, check_folder

    check_folder(out, RECORD_FILES, "a record", force)
    benchmark = load_benchmark(data_dir)
    if not force:
        refuse_other_record(out, model, benchmark)
    with warnings.catch_warnings(record=True) as doubts:
        warnings.simplefilter("always")
        scores = score_files(benchmark, eeg, sources, edits, nulls or [], similarity, allow_order)
    for doubt in doubts:
        typer.secho(f"Warning: {doubt.message}", fg="yellow", err=True)
    typer.echo(scores.order)
    record, scored = make_record(
        out,
        benchmark,
        scores.predictions,
        model=ModelInfo(id=model, notes=scores.order),
        data=data,
        similarity=similarity,
        replace=force,
        simulated=simulated,
        settings=Settings(interval=interval),
    )
    show_record(out, record, scored, data_dir)


@app.command()
def report(record: Annotated[Path, typer.Argument(help="Folder of a record.")], data_dir: DataDir = None) -> None:
    """Write report.html anew from a record; its numbers are the record's, the gallery is from the saved predictions.

    Example: decodehub editbench report runs/demo --data-dir sample
    """
    from decodehub.core.records import check_files, read_record
    from decodehub.metrics.eeg_editbench.protocol import rescore
    from decodehub.reports.editbench import show_record

    folder, found = read_record(record)
    check_files(folder, found)
    show_record(folder, found, rescore(folder, found), data_dir)


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

    from decodehub.core.records import check_files, read_record
    from decodehub.metrics.eeg_editbench.protocol import rescore
    from decodehub.reports.study_figures import write_figures
    from decodehub.reports.study_tables import layouts, write_tables

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
    for table in layouts(scored, found):
        console.print(*table.cut(console.width), "")
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


@app.command()
def targets(
    model: Annotated[str, typer.Argument(help=f"{MODEL_NAMES}.")],
    training: Annotated[Path, typer.Option(help=TRAINING_HELP)],
    out: Annotated[Path, typer.Option(help="Folder of the file, MODEL.safetensors.")] = Path("targets"),
    data_dir: ReleaseDir = None,
    base_encoder: Annotated[str, typer.Option(help=ENCODER_HELP)] = "published",
    text: Annotated[str, typer.Option(help='Text encoder of atm: "published", an id, or "none".')] = "published",
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Of noise and latent samples; the file is then MODEL_seed-SEED. One file serves all seeds without."),
    ] = None,
    setting: Annotated[list[str] | None, typer.Option(help="Named setting NAME=VALUE, e.g. blur_levels=released_code.")] = None,
) -> None:
    """Encode training images, sources, edits and null edits for one model: the file that `--targets` of training and study takes.

    Every image is encoded once; features are cached by content, so a run that was stopped goes on. Use `accelerate launch` for several GPUs.

    Example: decodehub editbench targets nice --training things/training_images --data-dir release
    Example: decodehub editbench targets neurobridge --seed 0 --training things/training_images --base-encoder lite0
    """
    import torch
    from accelerate import Accelerator

    from decodehub.core.files import home
    from decodehub.loaders.visual_targets import visual_target
    from decodehub.runs.retrieval.inputs import target_parts, write_targets
    from decodehub.runs.retrieval.stimuli import load_stimuli
    from decodehub.runs.retrieval.training_images import read_training_images

    settings: dict[str, Any] = {name: value for name, _, value in (pair.partition("=") for pair in setting or [])}
    accelerator = Accelerator(cpu=not torch.accelerator.is_available())
    target = visual_target(model, base_encoder=base_encoder, text=text, seed=seed or 0, device=accelerator.device, **settings)
    if target.seed is None and seed is not None:
        raise ValueError(f"the targets of {model} have nothing random: leave --seed out, one file serves all seeds")
    images = read_training_images(training)
    parts = target_parts(target, load_stimuli(data_dir), images, home() / "features", accelerator)
    if accelerator.is_main_process:
        path = out / (f"{model}.safetensors" if seed is None else f"{model}_seed-{seed}.safetensors")
        write_targets(path, parts, images.edit_of, target)
        shapes = ", ".join(f"{group}/{name} {x.shape}" for group, named in parts.items() for name, x in named.items())
        typer.echo(f"{path}: {shapes}")


@app.command()
def study(
    models: Annotated[str, typer.Option(help="Names with commas; ridge and random-projection are the baselines.")] = (
        "nice,atm,mb2c,ubp,ats,brain-hive,hyfi,neurobridge,ridge,random-projection"
    ),
    subjects: Annotated[str, typer.Option(help="Numbers, e.g. 1-10 or 1,3,5.")] = "1-10",
    seeds: Annotated[str, typer.Option(help="Numbers, e.g. 0-4.")] = "0-4",
    eeg: Prepared = None,
    targets: Annotated[Path | None, typer.Option(help="Folder that `decodehub editbench targets` wrote.")] = None,
    data_dir: ReleaseDir = None,
    simulate: Annotated[bool, typer.Option("--simulate", help="Simulated EEG and lite0 features in place of --eeg and --targets.")] = False,
    training: Annotated[Path | None, typer.Option(help=f"With --simulate: {TRAINING_HELP} By default crops of public photographs.")] = None,
    snr: Snr = SNR,
    out: Annotated[Path, typer.Option(help="Folder of the study.")] = Path("runs/study"),
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    lr: LearningRate = None,
    settings: Annotated[Path | None, typer.Option(help="YAML: training settings by model, e.g. {nice: {epochs: 50}}.")] = None,
    hard_negatives: HardNegatives = 0,
    precision: Annotated[str, typer.Option(help="Of the exported embeddings: float32 or float16.")] = "float32",
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Train nothing: records, tables and figures of what is there.")
    ] = False,
    force: Force = False,
) -> None:
    """Train models x subjects x seeds, score them on EEG-EditBench, write the paper's tables and figures.

    One resumable job: stop it at any time, run it again, and it does what is missing. Under `accelerate launch` or `torchrun` each process
    takes runs of its own; the last to finish writes records, tables and figures. See docs/study.md for GPUs and clusters.

    Example: decodehub editbench study --simulate --data-dir sample --models nice,ridge --subjects 1-2 --seeds 0 --epochs 20 --out runs/small
    Example: decodehub editbench study --eeg prepared --targets targets --data-dir release
    """
    import torch
    from accelerate import PartialState

    from decodehub.core.jobs import JobRunning, exclusive, raise_if_failed
    from decodehub.metrics.eeg_editbench.benchmark import load_benchmark
    from decodehub.reports.study import report_study
    from decodehub.runs.retrieval.embeddings import PRECISIONS
    from decodehub.runs.retrieval.folders import STUDY_FILES, check_folder
    from decodehub.runs.retrieval.settings import numbers, settings_of_models
    from decodehub.runs.retrieval.study import Recorded, Simulated, Study, check_models, missing_runs, refuse_other_runs, run_study
    from decodehub.runs.retrieval.training_images import crops, read_training_images

    check_source(simulate, eeg, targets)
    check_folder(out, STUDY_FILES, "a study", force)
    if precision not in PRECISIONS:
        raise ValueError(f"--precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    names = tuple(name.strip() for name in models.split(","))
    check_models(names)
    grid = {"subjects": numbers(subjects, "--subjects", 1), "seeds": numbers(seeds, "--seeds")}
    changes = {"epochs": epochs, "batch_size": batch_size, "lr": lr, "hard_negatives": hard_negatives or None}
    chosen = settings_of_models(names, {k: v for k, v in changes.items() if v is not None}, settings)
    source: Any
    load_benchmark(data_dir or "sample" if simulate else data_dir)  # a folder that is none is named before any work
    if simulate:
        images = read_training_images(training) if training else crops(CROPS)
        if not any(own.hard_negatives for own in chosen.values()):  # then edits need no features
            images = images._replace(edits=[], edit_of=[])
        source = Simulated(images, data_dir or "sample", snr)
    else:
        assert eeg is not None and targets is not None
        source = Recorded(eeg, targets, data_dir)
    plan = Study(
        out=out,
        models=names,
        **grid,
        source=source,
        settings=chosen,
        precision=precision,
    )
    if not (force or report_only):
        refuse_other_runs(plan)
    state = PartialState(cpu=not torch.accelerator.is_available())  # or processes on CPUs would not know of each other
    if not report_only:
        done = run_study(plan, state.process_index, state.num_processes, state.device)
        typer.echo(f"{len(done.made)} runs made, {len(done.reused)} there already, {len(done.failed)} failed")
    missing = missing_runs(plan)
    if missing and not report_only and not done.failed:
        typer.echo(f"{len(missing)} runs of other processes are under way; the last process to finish writes the results")
        return
    try:
        with exclusive(out / "records"):
            report_study(plan, missing)
    except JobRunning:
        typer.echo("another process writes the results")
    if not report_only:
        raise_if_failed(done, "runs")
    if missing:
        raise ValueError(f"{len(missing)} runs are missing, the first is {missing[0]}: run the study again without --report-only")


if __name__ == "__main__":
    app()
