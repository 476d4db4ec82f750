"""iMINDBench jobs: run models over units, score a predictions file, tables, paired comparison, audit of the splits."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

if TYPE_CHECKING:
    from decodehub.core.jobs import Report
    from decodehub.core.records import ModelInfo, ResultRecord
    from decodehub.loaders.recipes import Recipe
    from decodehub.metrics.imindbench.grid import Grid, Unit
    from decodehub.metrics.imindbench.predictions import Predictions
    from decodehub.metrics.imindbench.protocol import Scored

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)

POOLINGS = ("paper", "released_code")
SUBSETS = ("all", "main", "challenge")

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
    from decodehub.runs.ieeg.job import load_models, swept
    from decodehub.runs.ieeg.sweep import collect, fit_summary

    chain = read_recipe(recipe)
    _one_of("--pooling", pooling, POOLINGS)
    _one_of("--subset", subset, SUBSETS)
    specs = load_models(model, device, epochs)
    folder, grid = data_and_grid(data_dir)
    units = _selected(grid, subset, only)
    rows = []
    with swept(out, folder, units, specs, [Fraction(1)], chain, device) as done:
        if done is None:
            return
        _report(out, done.report)
        for spec in specs:
            predictions = collect(done.files, spec.name, units)
            settings = {"track": chain.track, "recipe": chain.as_dict(), "recipe_hash": chain.hash, "model": spec.settings}
            info = ModelInfo(id=spec.name, notes=fit_summary(done.files, spec.name))
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

    from decodehub.core.jobs import exclusive
    from decodehub.reports.imind_scaling import labels, table, write_plot
    from decodehub.runs.ieeg import scaling
    from decodehub.runs.ieeg.job import load_models, swept

    chain = read_recipe(recipe)
    shares = scaling.read_fractions(fractions)
    if len(shares) < 2:
        raise ValueError("--fractions: a curve needs at least two")
    _one_of("--subset", subset, SUBSETS)
    specs = load_models(model, device, epochs)
    folder, grid = data_and_grid(data_dir)
    units = _selected(grid, subset, only)
    settings = {"recipe": chain.as_dict(), "recipe_hash": chain.hash, "track": chain.track, "models": {s.name: s.settings for s in specs}}
    with swept(out, folder, units, specs, shares, chain, device) as done:
        if done is None:
            return
        _report(out, done.report)
        with exclusive(out / scaling.SCALING):
            curves = scaling.unit_curves(done.files, specs, shares, units, grid)
            result = scaling.summarize(out, curves, done.files, grid, settings, device)
            write_plot(out, result)
    console = Console()
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
    scores: Annotated[
        str, typer.Option(help="What the column probability holds: probabilities, or logits (any scores that rise with class 1).")
    ] = "probabilities",
    simulated: Annotated[bool, typer.Option("--simulated", help="The recordings were simulated: the record's kind.")] = False,
) -> None:
    """Score predictions that were made elsewhere: of the test windows that load_dataset("imindbench", "labels") gives, each once.

    A fold that the release gives no score (a part of it has one class) is one row with a reason and no probability.

    Example: decodehub imind score mine.parquet --data-dir sample --model me/mine --out runs/mine
    """
    from rich.console import Console

    from decodehub.core.records import ModelInfo
    from decodehub.loaders.recipes import TRACKS
    from decodehub.metrics.imindbench.predictions import SCORES, load
    from decodehub.metrics.imindbench.protocol import make_record, score_run
    from decodehub.metrics.imindbench.truth import load_truth
    from decodehub.reports.imind import leaderboard, task_table, unchecked_labels

    for option, value, options in (("--track", track, TRACKS), ("--pooling", pooling, POOLINGS), ("--scores", scores, SCORES)):
        _one_of(option, value, options)
    folder, grid = data_and_grid(data_dir)
    predictions = load(file)
    truth = load_truth(grid, str(folder))
    if out is None:
        scored = score_run(predictions, grid, pooling=pooling, scores=scores, truth=truth)
    else:
        _, scored = make_record(
            out,
            grid,
            predictions,
            model=ModelInfo(id=model),
            data=_data_words(folder, grid),
            settings={"track": track, "track_is": "stated by the submitter"},
            pooling=pooling,
            scores=scores,
            truth=truth,
            simulated=simulated,
        )
    console = Console()
    console.print(leaderboard([(model, track, scored)], scored.table.rule).rich(box=False))
    console.print(task_table(scored, scored.table.rule).rich(box=False))
    if remark := unchecked_labels(model, scored):
        console.print(f"[yellow]{remark}[/yellow]")
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
        console.print(leaderboard([(r.model.id, track, s) for r, s in own], chosen, metric).rich(box=False))
        for r, s in own if tasks else ():
            console.print(r.model.id, task_table(s, chosen, metric).rich(box=False))
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

    from decodehub.core.files import write_bytes
    from decodehub.core.tables import Table
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
    table = []
    columns = ("test windows", "fewest", "sharing time with train", "touching train", "test words seen in train", "unscored folds")
    for name, part in frame.groupby("dataset", sort=False):
        ok = part[part["status"] == "ok"]
        share = ok["repeated_words_share"].astype(float).mean() if len(ok) else np.nan
        counts = (ok["n_test"].sum(), ok["n_test"].min() if len(ok) else 0, ok["overlap_test_train"].sum(), ok["touch_test_train"].sum())
        tests, fewest, overlap, touch = map(int, counts)
        seen = f"{share:.0%}" if np.isfinite(share) else None
        table.append([name, len(part), tests, fewest if len(ok) else None, overlap, touch, seen, len(part) - len(ok)])
    console = Console()
    console.print(Table(["data set", "folds", *columns], table, title=f"Splits of {len(units)} units, release {grid.release}"))
    for text, names in notches.items():
        console.print(f"[yellow]{text} ({len(names)} recordings). The reference does so; the recipes named corrected do not.[/yellow]")
    if out is not None:
        write_bytes(out, frame.to_csv(index=False).encode())
        console.print(f"{out}: {len(frame)} folds", highlight=False)


@app.command()
def truth(
    data_dir: Annotated[str, typer.Option(help="Folder of the real labels.")],
    out: Annotated[Path, typer.Option(help="CSV with a row a unit and fold.")],
) -> None:
    """Write hashes of the test windows and labels of a release, by which a file is checked where the labels are not.

    Example: decodehub imind truth --data-dir data --out truth.csv
    """
    from decodehub.metrics.imindbench.truth import labels_truth, write_table

    folder, _ = data_and_grid(data_dir)
    known = labels_truth(str(folder))
    write_table(out, known)
    typer.echo(f"{out}: {len(known)} folds of {len({unit for unit, _ in known})} units")


@app.command()
def recipes() -> None:
    """List the preprocessing recipes, their tracks and hashes.

    Example: decodehub imind recipes
    """
    from rich.console import Console

    from decodehub.core.tables import Column, Table
    from decodehub.loaders.recipes import RECIPES

    rows = [(name, chain.track, chain.hash[7:19], ", ".join(stage.name for stage in chain.stages)) for name, chain in RECIPES.items()]
    columns = ["recipe", *(Column(title, justify="left", wrap=title == "stages") for title in ("track", "hash", "stages"))]
    Console().print(Table(columns, rows).rich(box=False))


def _report(out: Path, report: Report) -> None:
    from decodehub.core.jobs import raise_if_failed

    typer.echo(f"{out}: {len(report.made)} units made, {len(report.reused)} reused, {len(report.failed)} failed")
    raise_if_failed(report, "units")


def read_recipe(name: str) -> Recipe:
    """A recipe by name, or from a JSON file.

    Raises:
        ValueError: no such recipe or file, or malformed.
    """
    from decodehub.core.files import read_json
    from decodehub.loaders.recipes import named_recipe, recipe_from

    path = Path(name)
    if path.suffix != ".json":
        return named_recipe(name)
    try:
        return recipe_from(read_json(path, max_bytes=1 << 20))
    except ValueError as error:
        raise ValueError(f"--recipe {path}: {error}") from None


def data_and_grid(data_dir: str | None) -> tuple[Path, Grid]:
    """The folder of recordings and labels, and the units that belong to it."""
    from decodehub.hub_datasets.imindbench import sample
    from decodehub.hub_datasets.imindbench.data import resolve_folder
    from decodehub.metrics.imindbench.grid import load_grid

    folder = resolve_folder(data_dir)
    return folder, load_grid("sample" if folder == sample.FOLDER else None)


def _one_of(option: str, value: str, options: Sequence[str]) -> None:
    from decodehub.core.words import suggest

    if value not in options:
        raise ValueError(f"{option} must be one of {', '.join(options)}, found {value!r}{suggest(value, options)}")


def _selected(grid: Grid, subset: str, only: list[str] | None) -> list[Unit]:
    from decodehub.core.words import suggest

    units = list(grid.chosen({"all": "full"}.get(subset, subset)))
    names = {part for unit in grid.units for part in (unit.dataset, f"{unit.dataset}/{unit.subject_session}", unit.id)}
    for name in only or ():
        if name.rstrip("/") not in names:
            raise ValueError(
                f"--only {name} begins no unit of release {grid.release!r}{suggest(name, sorted(names))}; a unit id is like {grid.ids[0]}"
            )
    if only:
        units = [unit for unit in units if any(unit.id == p or unit.id.startswith(p.rstrip("/") + "/") for p in only)]
    if not units:
        raise ValueError(f"no unit of release {grid.release!r} is selected by --subset {subset} and --only {only}")
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
    from decodehub.metrics.imindbench.truth import load_truth

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
    truth = load_truth(grid, str(data))
    words = _data_words(data, grid)
    simulated = _are_simulated(data, grid, set(predictions.unit.tolist()))
    return make_record(
        folder,
        grid,
        predictions,
        model=model,
        data=words,
        settings=settings,
        pooling=pooling,
        truth=truth,
        device=device,
        simulated=simulated,
    )


def _are_simulated(folder: Path, grid: Grid, units: set[str]) -> bool:
    """Whether no brain made some of the recordings that the units are of."""
    from decodehub.hub_datasets.imindbench.data import open_recording
    from decodehub.metrics.imindbench.protocol import SAMPLES

    sessions = sorted({(u.dataset, u.subject_session) for u in grid.units if u.id in units})
    return grid.release in SAMPLES or any(open_recording(folder, *session).simulated for session in sessions)


def _data_words(folder: Path, grid: Grid) -> str:
    from decodehub.metrics.imindbench.protocol import SAMPLES

    return (
        f"Simulated recordings, release {grid.release}"
        if grid.release in SAMPLES
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
