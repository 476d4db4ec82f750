"""``decodehub editbench targets`` and ``study``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .demo import CROPS, SNR

if TYPE_CHECKING:
    from ._retrieval_settings import TrainingSettings
    from ._study import Study

ENCODER_HELP = 'Image encoder: "published" (weights from the Hub), or an id such as "lite0", which needs no download and is marked.'
TRAINING_HELP = (
    "Folder of training images: concept folders as in THINGS-EEG2, or training.jsonl; training_edits.jsonl may list edits of them "
    "(image, edit_of) as hard negatives."
)


def targets(
    model: Annotated[str, typer.Argument(help="nice, atm, mb2c, ubp, ats, brain-hive, hyfi or neurobridge.")],
    training: Annotated[Path, typer.Option(help=TRAINING_HELP)],
    out: Annotated[Path, typer.Option(help="Folder of the file, MODEL.safetensors.")] = Path("targets"),
    data_dir: Annotated[str | None, typer.Option(help="Folder of the release to score on; by default the one that is configured.")] = None,
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

    from decodehub.files import home
    from decodehub.loaders.visual_targets import visual_target

    from ._retrieval_inputs import target_parts, write_targets
    from ._training_images import read_training_images
    from .demo import load_stimuli

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


def study(
    models: Annotated[str, typer.Option(help="Names with commas; ridge and random-projection are the baselines.")] = (
        "nice,atm,mb2c,ubp,ats,brain-hive,hyfi,neurobridge,ridge,random-projection"
    ),
    subjects: Annotated[str, typer.Option(help="Numbers, e.g. 1-10 or 1,3,5.")] = "1-10",
    seeds: Annotated[str, typer.Option(help="Numbers, e.g. 0-4.")] = "0-4",
    eeg: Annotated[Path | None, typer.Option(help="Folder that `decodehub things prepare` wrote.")] = None,
    targets: Annotated[Path | None, typer.Option(help="Folder that `decodehub editbench targets` wrote.")] = None,
    data_dir: Annotated[str | None, typer.Option(help="Folder of the release to score on; by default the one that is configured.")] = None,
    simulate: Annotated[bool, typer.Option("--simulate", help="Simulated EEG and lite0 features in place of --eeg and --targets.")] = False,
    training: Annotated[Path | None, typer.Option(help=f"With --simulate: {TRAINING_HELP} By default crops of public photographs.")] = None,
    snr: Annotated[float, typer.Option(min=0, help="With --simulate: signal-to-noise ratio of one trial.")] = SNR,
    out: Annotated[Path, typer.Option(help="Folder of the study.")] = Path("runs/study"),
    epochs: Annotated[int | None, typer.Option(min=1, help="Of every model; by default those of the paper.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=2, help="Of every model; by default that of the paper.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of every model; by default that of the paper.")] = None,
    settings: Annotated[Path | None, typer.Option(help="YAML: training settings by model, e.g. {nice: {epochs: 50}}.")] = None,
    hard_negatives: Annotated[int, typer.Option(min=0, help="Edits of each training image that join the softmax.")] = 0,
    batch_seeds: Annotated[
        str, typer.Option(help="Seeds of a model and subject as one batched model: auto (on accelerators, where exact), yes or no.")
    ] = "auto",
    precision: Annotated[str, typer.Option(help="Of the exported embeddings: float32 or float16.")] = "float32",
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Train nothing: records, tables and figures of what is there.")
    ] = False,
) -> None:
    """Train models x subjects x seeds, score them on EEG-EditBench, write the paper's tables and figures.

    One resumable job: stop it at any time, run it again, and it does what is missing. Under `accelerate launch` or `torchrun` each process
    takes runs of its own; the last to finish writes records, tables and figures. See docs/study.md for GPUs and clusters.

    Example: decodehub editbench study --simulate --data-dir sample --models nice,ridge --subjects 1-2 --seeds 0 --epochs 20 --out runs/small
    Example: decodehub editbench study --eeg prepared --targets targets --data-dir release
    """
    import torch
    from accelerate import PartialState

    from decodehub.jobs import raise_if_failed

    from ._retrieval_embeddings import PRECISIONS
    from ._study import Recorded, Simulated, Study, missing_runs, run_study
    from ._training_images import crops, read_training_images

    if simulate == (eeg is not None or targets is not None) or (eeg is None) != (targets is None):
        raise ValueError("give --eeg and --targets together, or --simulate without them")
    if precision not in PRECISIONS:
        raise ValueError(f"--precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    names = tuple(name.strip() for name in models.split(","))
    changes = {"epochs": epochs, "batch_size": batch_size, "lr": lr, "hard_negatives": hard_negatives or None}
    chosen = _settings(names, {k: v for k, v in changes.items() if v is not None}, settings)
    source: Any
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
        subjects=numbers(subjects, "--subjects"),
        seeds=numbers(seeds, "--seeds"),
        source=source,
        settings=chosen,
        precision=precision,
        batch_seeds=batch_seeds,
    )
    state = PartialState(cpu=not torch.accelerator.is_available())  # or processes on CPUs would not know of each other
    if not report_only:
        done = run_study(plan, state.process_index, state.num_processes, state.device)
        typer.echo(f"{len(done.made)} runs made, {len(done.reused)} there already, {len(done.failed)} failed")
    missing = missing_runs(plan)
    if missing and state.num_processes > 1 and not report_only and not done.failed:
        typer.echo(f"{len(missing)} runs of other processes are under way; the last process to finish writes the results")
        return
    _report(plan, missing)
    if not report_only:
        raise_if_failed(done, "runs")
    if missing:
        raise ValueError(f"{len(missing)} runs are missing, the first is {missing[0]}: run the study again without --report-only")


def numbers(text: str, option: str) -> tuple[int, ...]:
    """``"1-3,7"`` as (1, 2, 3, 7). Raises ValueError."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
            raise ValueError(f"{option} {text!r}: expected numbers such as 1-10 or 1,3,5")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def _settings(models: tuple[str, ...], changes: dict[str, Any], file: Path | None) -> dict[str, TrainingSettings]:
    import yaml

    from ._retrieval_inputs import BASELINES
    from ._retrieval_settings import settings_for

    own: dict[str, dict[str, Any]] = {}
    if file is not None:
        own = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        if not isinstance(own, dict) or not all(isinstance(value, dict) for value in own.values()):
            raise ValueError(f"--settings {file}: expected settings by model, such as 'nice: {{epochs: 50}}'")
        if unknown := sorted(set(own) - set(models)):
            raise ValueError(f"--settings {file}: {unknown[0]!r} is not among the models of this study ({', '.join(models)})")
    result = {}
    for name in models:
        if name not in BASELINES:
            try:
                result[name] = settings_for(name, **{**changes, **own.get(name, {})})
            except TypeError as error:
                raise ValueError(f"--settings {file}: {name}: {error}") from None
    return result


def _report(plan: Study, missing: list[str]) -> None:
    from rich.console import Console

    from ._editbench_report import write_report
    from ._study import make_records
    from ._study_figures import write_figures
    from ._study_tables import rich_tables, write_tables
    from .editbench import gallery

    records, scored = {}, {}
    for model, record, scores in make_records(plan, missing):
        write_report(plan.out / "records" / model / "report.html", record, gallery(scores, plan.source.data_dir))
        records[model], scored[model] = record, scores
    if not records:
        typer.echo("no model is complete yet: nothing to report", err=True)
        return
    files = [
        *write_tables(plan.out / "tables", scored, records),
        *write_figures(plan.out / "figures", scored, records, plan.source.data_dir),
    ]
    console = Console()
    for table in rich_tables(scored, records, console.width):
        console.print(table, "")
    incomplete = [model for model in plan.models if model not in records]
    if incomplete:
        console.print(f"[yellow]left out, as runs are missing: {', '.join(incomplete)}[/yellow]")
    console.print(
        f"{len(files)} files in {plan.out / 'tables'} and {plan.out / 'figures'}; records in {plan.out / 'records'}",
        highlight=False,
        soft_wrap=True,
    )
