"""iMINDBench jobs: run models over units, score a predictions file, tables, paired comparison, audit of the splits."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

if TYPE_CHECKING:
    from decodehub.core.records import ModelInfo, ResultRecord
    from decodehub.loaders.recipes import Recipe
    from decodehub.metrics.imindbench.grid import Grid, Unit
    from decodehub.metrics.imindbench.predictions import Predictions
    from decodehub.metrics.imindbench.protocol import Scored
    from decodehub.runs.ieeg.models import ModelSpec
    from decodehub.runs.ieeg.sweep import UnitFile

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)

DataDir = Annotated[
    str | None, typer.Option(help='Folder of recordings and labels, or "sample"; by default what load_dataset("imindbench") uses.')
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        help="Only units whose id begins with this, e.g. neuroprobev2/sub1_sess1. Repeat for several; without a whole subset there is no record.",
    ),
]
Subset = Annotated[str, typer.Option(help="all, main or challenge.")]


@app.command()
def run(
    model: Annotated[
        list[str],
        typer.Option(
            help="logistic-paper, logistic-code, logistic-converged, mlp, mlp-paper, cnn, htnet; a Python file with fit(x, y, x_val, y_val) and "
            "predict_proba(x); or a folder with the config.json of such a network. Repeat for several."
        ),
    ],
    recipe: Annotated[
        str, typer.Option(help="Name of a preprocessing recipe (`decodehub imind recipes`), or a JSON file with a chain.")
    ] = "multi-stft",
    data_dir: DataDir = None,
    subset: Subset = "all",
    only: Only = None,
    out: Annotated[Path, typer.Option(help="Folder of the run; a record of each model goes to a folder of its name there.")] = Path(
        "runs/imind"
    ),
    device: Annotated[str, typer.Option(help="Where networks are trained: cpu, cuda, mps.")] = "cpu",
    epochs: Annotated[int | None, typer.Option(min=1, help="Of networks; by default that of the benchmark.")] = None,
    pooling: Annotated[str, typer.Option(help="paper or released_code (the site's plain mean over folds).")] = "paper",
) -> None:
    """Fit models to every unit and fold, save their predictions, write a record of each model. Stop it at any time: a restart goes on.

    Under `accelerate launch` the sessions are shared by the processes.

    Example: decodehub imind run --model logistic-converged --data-dir sample --out runs/sample
    Example: decodehub imind run --model htnet --model my_model.py --recipe wav-hpf-robust --data-dir data --subset main
    """
    from decodehub.core.records import ModelInfo
    from decodehub.runs.ieeg.sweep import collect, fit_summary

    chain = read_recipe(recipe)
    folder, grid = data_and_grid(data_dir)
    units = _selected(grid, subset, only)
    specs, files = _run_models(model, [Fraction(1)], out, folder, units, chain, device, epochs)
    if files is None:
        return
    rows = []
    for spec in specs:
        predictions = collect(files, spec.name, units)
        settings = {"track": chain.track, "recipe": chain.as_dict(), "recipe_hash": chain.hash, "model": spec.settings}
        info = ModelInfo(id=spec.name, notes=fit_summary(files, spec.name))
        rows.append(_finish(out / spec.name, grid, predictions, info, settings, pooling, folder, device))
    _print([row for row in rows if row is not None])


@app.command()
def scale(
    model: Annotated[list[str], typer.Option(help="As for run. Repeat for several.")],
    fractions: Annotated[str, typer.Option(help="Shares of the training windows, with commas.")] = "1,1/2,1/4,1/8,1/16",
    recipe: Annotated[str, typer.Option(help="As for run.")] = "multi-stft",
    data_dir: DataDir = None,
    subset: Subset = "all",
    only: Only = None,
    out: Annotated[Path, typer.Option(help="Folder of the run, with scaling.json, units.csv and the plot.")] = Path("runs/imind-scaling"),
    device: Annotated[str, typer.Option(help="Where networks are trained: cpu, cuda, mps.")] = "cpu",
    epochs: Annotated[int | None, typer.Option(min=1, help="Of networks; by default that of the benchmark.")] = None,
) -> None:
    """Sample efficiency within sessions: fit models to shares of the training windows; AUC by share, and the gain per doubling.

    Validation and test windows stay the same. Units that lack a score anywhere (small shares of few windows lack a class) are left out everywhere.

    Example: decodehub imind scale --model logistic-converged --data-dir sample --out runs/scaling
    """
    from rich.console import Console

    from decodehub.reports.imind_scaling import labels, table, write_plot
    from decodehub.runs.ieeg import scaling

    chain = read_recipe(recipe)
    shares = scaling.read_fractions(fractions)
    if len(shares) < 2:
        raise ValueError("--fractions: a curve needs at least two")
    folder, grid = data_and_grid(data_dir)
    units = _selected(grid, subset, only)
    specs, files = _run_models(model, shares, out, folder, units, chain, device, epochs)
    if files is None:
        return
    settings = {"recipe": chain.as_dict(), "recipe_hash": chain.hash, "track": chain.track, "models": {s.name: s.settings for s in specs}}
    result = scaling.summarize(out, scaling.unit_curves(files, specs, shares, units, grid), files, grid, settings, device)
    console = Console()
    write_plot(out, result)
    for label in labels(result):
        console.print(table(result, label))
    left = result["units_without_a_score_somewhere"]
    if left:
        console.print(f"[yellow]{len(left)} units are left out: a share of their windows, or a fold, has one class only[/yellow]")
    if result["sample"]:
        console.print("[yellow]SAMPLE: simulated recordings. These numbers mean nothing scientific.[/yellow]")
    console.print("\n".join(str(out / name) for name in ("units.csv", "scaling.json", "scaling.png", "scaling.svg")), highlight=False)


@app.command()
def score(
    file: Annotated[Path, typer.Argument(help="Parquet with the columns unit, fold, window, label, probability (and split, reason).")],
    data_dir: DataDir = None,
    model: Annotated[str, typer.Option(help="Name of the model, e.g. ORG/my-model.")] = "my-model",
    track: Annotated[str, typer.Option(help="Preprocessing track that you state: Multi-STFT, Waveform or Custom.")] = "Custom",
    out: Annotated[Path | None, typer.Option(help="Folder of a record; none is written without it.")] = None,
    pooling: Annotated[str, typer.Option(help="paper or released_code.")] = "paper",
) -> None:
    """Score predictions that were made elsewhere. A fold that could not be scored is one row with a reason and no probability.

    Example: decodehub imind score mine.parquet --data-dir sample --model me/mine --out runs/mine
    """
    from rich.console import Console

    from decodehub.core.records import ModelInfo
    from decodehub.loaders.recipes import TRACKS
    from decodehub.metrics.imindbench.predictions import load
    from decodehub.metrics.imindbench.protocol import make_record, score_run
    from decodehub.reports.imind import leaderboard, task_table

    if track not in TRACKS:
        raise ValueError(f"--track must be one of {', '.join(TRACKS)}, found {track!r}")
    folder, grid = data_and_grid(data_dir)
    predictions = load(file)
    if out is None:
        scored = score_run(predictions, grid, pooling=pooling)
    else:
        settings = {"track": track, "track_is": "stated by the submitter"}
        _, scored = make_record(
            out, grid, predictions, model=ModelInfo(id=model), data=_data_words(folder, grid), settings=settings, pooling=pooling
        )
    console = Console()
    console.print(leaderboard([(model, track, scored)], scored.table.rule))
    console.print(task_table(scored, scored.table.rule))
    if out is not None:
        console.print(f"record  {out / 'record.json'}\ncheck   decodehub verify {out}", highlight=False, soft_wrap=True)


@app.command()
def table(
    record: Annotated[list[Path], typer.Argument(help="Folders of records, or folders of such folders.")],
    subset: Annotated[str | None, typer.Option(help="full, main or challenge; by default the largest that all runs have.")] = None,
    metric: Annotated[str, typer.Option(help="roc_auc or accuracy.")] = "roc_auc",
    tasks: Annotated[bool, typer.Option("--tasks", help="Also a table by task of each run.")] = False,
) -> None:
    """Print the leaderboard of some runs, one table a track. Scores are made anew from the saved predictions.

    Example: decodehub imind table runs/sample
    """
    from rich.console import Console

    from decodehub.metrics.imindbench.grid import RULES
    from decodehub.reports.imind import leaderboard, remarks, task_table

    if metric not in ("roc_auc", "accuracy") or subset not in (None, *RULES):
        raise ValueError(f"--metric must be roc_auc or accuracy and --subset one of {', '.join(RULES)}, found {metric!r} and {subset!r}")
    runs = [_read(folder) for folder in _record_folders(record)]
    if len(hashes := {scored.grid.content_hash for _, scored in runs}) > 1:
        raise ValueError(
            f"the runs are of {len(hashes)} different releases ({', '.join(sorted({s.grid.release for _, s in runs}))}): give those of one"
        )
    have = [{dict(v.slice)["subset"] for v in scored.table.values} for _, scored in runs]
    common = [rule for rule in RULES if all(rule in h for h in have)]
    if subset is None and not common:
        raise ValueError("the runs have no subset in common (some are Main, some Challenge): choose one with --subset")
    chosen = subset or common[0]
    console = Console()
    for track in sorted({r.protocol.settings["track"] for r, _ in runs}):
        own = [(r, s) for r, s in runs if r.protocol.settings["track"] == track]
        console.print(leaderboard([(r.model.id, track, s) for r, s in own], chosen, metric))
        for r, s in own if tasks else ():
            console.print(r.model.id, task_table(s, chosen, metric))
    for line in dict.fromkeys(line for r, s in runs for line in remarks(r, s)):
        console.print(f"[yellow]{line}[/yellow]")


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="Folder of a record.")],
    second: Annotated[Path, typer.Argument(help="Folder of another record of the same units.")],
    cluster: Annotated[str, typer.Option(help="What is independent: subject (all units of a person together) or unit.")] = "subject",
    subset: Annotated[str | None, typer.Option(help="main or challenge, of two full runs.")] = None,
) -> None:
    """Is FIRST better than SECOND? Paired sign-flip tests over subjects, and the intervals that they leave.

    Example: decodehub imind compare runs/sample/logistic-converged runs/sample/logistic-paper
    """
    from rich.console import Console

    from decodehub.metrics.imindbench.compare import compare_units
    from decodehub.reports.imind import comparison_table, remarks

    (a, scored_a), (b, scored_b) = _read(first), _read(second)
    if scored_a.grid.content_hash != scored_b.grid.content_hash:
        raise ValueError(
            f"{first} is of release {scored_a.grid.release!r} and {second} of another table of units ({scored_b.grid.release!r})"
        )
    scores = [scored_a.table.unit_auc, scored_b.table.unit_auc]
    if subset is not None:
        ids = {unit.id for unit in scored_a.grid.chosen(subset)}
        scores = [{k: v for k, v in s.items() if k in ids} for s in scores]
    console = Console()
    console.print(comparison_table(_label(a), _label(b), compare_units(scores[0], scores[1], scored_a.grid, cluster=cluster)))
    for line in dict.fromkeys([*remarks(a, scored_a), *remarks(b, scored_b)]):
        console.print(f"[yellow]{line}[/yellow]")


@app.command()
def audit(
    data_dir: DataDir = None,
    recipe: Annotated[str, typer.Option(help="Recipe whose line frequency is checked against the recordings.")] = "multi-stft",
    subset: Subset = "all",
    only: Only = None,
    out: Annotated[Path | None, typer.Option(help="CSV with a row a fold.")] = None,
) -> None:
    """Look for what the splits leak (windows of test and train that share time or words), folds without a score, and the wrong line frequency.

    Example: decodehub imind audit --data-dir sample --out audit.csv
    """
    import pandas as pd
    from rich.console import Console
    from rich.table import Table

    from decodehub.core.files import write_bytes
    from decodehub.hub_datasets.imindbench.data import open_recording, unit_labels
    from decodehub.loaders.ieeg import splits

    chain = read_recipe(recipe)
    folder, grid = data_and_grid(data_dir)
    units = _selected(grid, subset, only)
    notches: dict[str, list[str]] = {}
    rows = []
    sessions: dict[tuple[str, str], list[Unit]] = {}
    for unit in units:
        sessions.setdefault((unit.dataset, unit.subject_session), []).append(unit)
    for (dataset, session), own in sessions.items():
        recording = open_recording(folder, dataset, session)
        rows += splits.audit([(u.id, recording.recording_id, unit_labels(folder, dataset, session, u.task)) for u in own])
        filter_ = chain.find("filter")
        if filter_ is not None and filter_["notch_hz"] != "line" and recording.line_freq not in filter_["notch_hz"]:
            notches.setdefault(
                f"{dataset}: mains at {recording.line_freq:g} Hz, notches at {', '.join(f'{f:g}' for f in filter_['notch_hz'])}", []
            ).append(session)
    frame = pd.DataFrame(rows)
    shown = Table(title=f"Splits of {len(units)} units, release {grid.release}", title_justify="left")
    columns = ("test windows", "fewest", "sharing time with train", "touching train", "test words seen in train", "unscored folds")
    for column in ("data set", "folds", *columns):
        shown.add_column(column, justify="left" if column == "data set" else "right")
    for name, part in frame.groupby("dataset", sort=False):
        ok = part[part["status"] == "ok"]
        share = ok["repeated_words_share"].astype(float).mean() if len(ok) else np.nan
        shown.add_row(
            str(name),
            str(len(part)),
            str(int(ok["n_test"].sum())),
            str(int(ok["n_test"].min())) if len(ok) else "–",
            str(int(ok["overlap_test_train"].sum())),
            str(int(ok["touch_test_train"].sum())),
            f"{share:.0%}" if np.isfinite(share) else "–",
            str(int((part["status"] != "ok").sum())),
        )
    console = Console()
    console.print(shown)
    for text, names in notches.items():
        console.print(f"[yellow]{text} ({len(names)} recordings). The reference does so; the recipes named corrected do not.[/yellow]")
    if out is not None:
        write_bytes(out, frame.to_csv(index=False).encode())
        console.print(f"{out}: {len(frame)} folds", highlight=False)


@app.command()
def recipes() -> None:
    """List the preprocessing recipes, their tracks and hashes.

    Example: decodehub imind recipes
    """
    from rich.console import Console
    from rich.table import Table

    from decodehub.loaders.recipes import RECIPES

    shown = Table(box=None, header_style="bold")
    for column in ("recipe", "track", "hash", "stages"):
        shown.add_column(column)
    for name, chain in RECIPES.items():
        shown.add_row(name, chain.track, chain.hash[7:19], ", ".join(stage.name for stage in chain.stages))
    Console().print(shown)


def _run_models(
    names: list[str], fractions: list[Fraction], out: Path, folder: Path, units: list[Unit], chain: Recipe, device: str, epochs: int | None
) -> tuple[list[ModelSpec], list[UnitFile] | None]:
    """Sweep models (and shares of their training windows) over units; the models, and the files on the main process, None on others."""
    from accelerate import PartialState
    from accelerate.utils import gather_object

    from decodehub.core.jobs import Report, raise_if_failed
    from decodehub.runs.ieeg.models import model_spec
    from decodehub.runs.ieeg.scaling import at_fraction
    from decodehub.runs.ieeg.sweep import sweep

    training = {} if epochs is None else {"epochs": epochs}
    state = PartialState(cpu=device == "cpu")  # on CPUs as well, processes that were launched together share the job
    own_device = f"cuda:{state.local_process_index}" if device == "cuda" else device
    specs = [model_spec(name, device=own_device, training=training) for name in names]
    if len({spec.name for spec in specs}) != len(specs):
        raise ValueError(f"two models have one name: {', '.join(spec.name for spec in specs)}")
    variants = specs if fractions == [1] else [at_fraction(spec, fraction) for spec in specs for fraction in fractions]
    found = sweep(out, folder, units, variants, chain, rank=state.process_index, world=state.num_processes)
    files, reports = gather_object(list(found.files)), gather_object([found.job])
    if not state.is_main_process:
        return specs, None
    total = Report([], [], {})
    for report in reports:
        total.made.extend(report.made)
        total.reused.extend(report.reused)
        total.failed.update(report.failed)
    typer.echo(f"{out}: {len(total.made)} units made, {len(total.reused)} reused, {len(total.failed)} failed")
    raise_if_failed(total, "units")
    return specs, files


def read_recipe(name: str) -> Recipe:
    """A recipe by name, or from a JSON file.

    Raises:
        ValueError: no such recipe or file, or malformed.
    """
    import json

    from decodehub.core.files import read_data
    from decodehub.loaders.recipes import named_recipe, recipe_from

    path = Path(name)
    if path.suffix != ".json":
        return named_recipe(name)
    try:
        return recipe_from(json.loads(read_data(path, max_bytes=1 << 20)))
    except ValueError as error:
        raise ValueError(f"--recipe {path}: {error}") from None


def data_and_grid(data_dir: str | None) -> tuple[Path, Grid]:
    """The folder of recordings and labels, and the units that belong to it."""
    from decodehub.hub_datasets.imindbench import sample
    from decodehub.hub_datasets.imindbench.data import resolve_folder
    from decodehub.metrics.imindbench.grid import load_grid

    folder = resolve_folder(data_dir)
    return folder, load_grid("sample" if folder == sample.FOLDER else None)


def _selected(grid: Grid, subset: str, only: list[str] | None) -> list[Unit]:
    units = list(grid.chosen({"all": "full"}.get(subset, subset)))
    if only:
        units = [unit for unit in units if any(unit.id == p or unit.id.startswith(p.rstrip("/") + "/") for p in only)]
    if not units:
        raise ValueError(
            f"no unit of release {grid.release!r} is selected by --subset {subset} and --only {only}; a unit id is like {grid.ids[0]}"
        )
    return units


def _finish(
    folder: Path, grid: Grid, predictions: Predictions, model: ModelInfo, settings: dict[str, Any], pooling: str, data: Path, device: str
) -> tuple[ResultRecord, Scored] | None:
    """Write the record of a model, or, where the units are no whole subset, its predictions alone."""
    from decodehub.core.records import RECORD
    from decodehub.metrics.imindbench.aggregate import unit_scores
    from decodehub.metrics.imindbench.grid import coverage_rule
    from decodehub.metrics.imindbench.predictions import save, score_cells
    from decodehub.metrics.imindbench.protocol import PREDICTIONS_FILE, make_record

    try:
        coverage_rule(sorted(set(predictions.unit.tolist())), grid)
    except ValueError as error:
        (folder / RECORD).unlink(missing_ok=True)
        save(folder / PREDICTIONS_FILE, predictions)
        cells = score_cells(predictions, grid)
        typer.echo(f"{model.id}: no record, as {error}")
        for unit, auc in unit_scores(cells, cells.auc).items():
            typer.echo(f"  {unit}  {'not scored' if np.isnan(auc) else f'{auc:.4f}'}")
        return None
    words = _data_words(data, grid)
    return make_record(folder, grid, predictions, model=model, data=words, settings=settings, pooling=pooling, device=device)


def _data_words(folder: Path, grid: Grid) -> str:
    return (
        f"Simulated recordings, release {grid.release}"
        if grid.release.startswith("sample")
        else f"recordings and labels in the folder {folder.name!r}, units of release {grid.release}"
    )


def _print(runs: list[tuple[ResultRecord, Scored]]) -> None:
    from rich.console import Console

    from decodehub.reports.imind import leaderboard, remarks

    if not runs:
        return
    console = Console()
    rows = [(record.model.id, record.protocol.settings["track"], scored) for record, scored in runs]
    for subset in dict.fromkeys(dict(v.slice)["subset"] for v in runs[0][1].table.values):
        console.print(leaderboard(rows, subset))
    for line in dict.fromkeys(line for record, scored in runs for line in remarks(record, scored)):
        console.print(f"[yellow]{line}[/yellow]")


def _record_folders(paths: list[Path]) -> list[Path]:
    from decodehub.core.records import RECORD

    found = []
    for path in paths:
        own = [path] if (path / RECORD).is_file() else sorted(file.parent for file in path.glob(f"*/{RECORD}"))
        if not own:
            raise FileNotFoundError(f"{path} holds no {RECORD}, nor do its folders")
        found += own
    return found


def _read(folder: Path) -> tuple[ResultRecord, Scored]:
    from decodehub.core.records import RecordError, check_files, read_record
    from decodehub.metrics.imindbench.protocol import BENCHMARK_ID, rescore

    root, record = read_record(folder)
    if record.benchmark.id != BENCHMARK_ID:
        raise RecordError(f"{folder} is a record of {record.benchmark.id}, expected one of {BENCHMARK_ID}")
    check_files(root, record)
    return record, rescore(root, record)


def _label(record: ResultRecord) -> str:
    return f"{record.model.id} ({record.protocol.settings['track']})"


if __name__ == "__main__":
    app()
