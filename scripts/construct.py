"""Build an edit benchmark of your own images: profiles, targets, instructions, edited images, human review, release."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from decodehub.construction.stages import Edit, EditorSettings, ModelSettings
    from decodehub.core.jobs import Report

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)

# The repository of the paper, OpenGVLab/InternVL3_5-38B, needs remote code; this is the same model in the format of transformers.
MODEL, EDITOR = "OpenGVLab/InternVL3_5-38B-HF", "black-forest-labs/FLUX.2-klein-9B"

Folder = Annotated[Path, typer.Argument(help="Folder of the construction.")]
Images = Annotated[Path, typer.Argument(help="Folder of square source images, one a concept.")]
Out = Annotated[Path, typer.Option(help="Folder of the construction.")]
Table = Annotated[Path | None, typer.Option(help="CSV: image, concept[, source_category, attribution]; else file names are the concepts.")]
Category = Annotated[str | None, typer.Option(help="Source category of concepts that are not among the 200 of THINGS-EEG2.")]
Attribution = Annotated[str, typer.Option(help="Attribution of images that the table gives none.")]
Crop = Annotated[bool, typer.Option(help="Cut images that are not square to their central square.")]
Model = Annotated[str, typer.Option(help="Image-text-to-text model of transformers: id on the Hub, or a folder.")]
Revision = Annotated[str | None, typer.Option(help="Full commit of a model on the Hub.")]
Dtype = Annotated[str, typer.Option(help="Of the weights: bfloat16, float16 or float32.")]
MaxNewTokens = Annotated[int, typer.Option(min=8, help="Longest reply.")]
Retries = Annotated[int, typer.Option(min=0, help="How often an invalid reply is sent back with what is wrong.")]
Device = Annotated[str | None, typer.Option(help='cuda, cpu, or for the language model "auto" (all devices); by default Accelerate\'s.')]
Pipeline = Annotated[str, typer.Option(help="Class of diffusers that takes an image and a prompt.")]
Resolution = Annotated[int, typer.Option(min=16, help="Side of the edited images in pixels.")]
SourceResolution = Annotated[
    Literal["resized", "as_given"], typer.Option(help="Whether the editor sees the source at the resolution of the edit, or as it is.")
]
Steps = Annotated[int, typer.Option(min=1, help="Inference steps.")]
Guidance = Annotated[float, typer.Option(help="Guidance scale.")]
Seed = Annotated[int, typer.Option(help="Of each edit.")]
MaxSequence = Annotated[int, typer.Option(min=0, help="Of the prompt, in tokens; 0 for a pipeline that takes no such setting.")]
Layers = Annotated[str, typer.Option(help='Output layers of the text encoder; "none" for a pipeline that takes no such setting.')]
Offload = Annotated[bool, typer.Option(help="Keep the parts of the pipeline that do not compute in main memory.")]
Nulls = Annotated[bool, typer.Option(help="Make a null edit of each source as well (section S5.2).")]


@app.command()
def start(
    images: Images, out: Out, table: Table = None, category: Category = None, attribution: Attribution = "", crop: Crop = False
) -> None:
    """Begin a construction: copy the source images and note their concepts.

    Example: decodehub construct start photos --out my-edits --category artifact
    """
    from decodehub.construction.sources import start as begin

    sources = begin(images, out, table=table, category=category, attribution=attribution, crop=crop)
    typer.echo(f"{out}: {len(sources)} source images")


@app.command()
def profile(
    out: Folder,
    model: Model = MODEL,
    revision: Revision = None,
    dtype: Dtype = "bfloat16",
    max_new_tokens: MaxNewTokens = 1024,
    retries: Retries = 2,
    device: Device = None,
) -> None:
    """Stage 1: describe every source image and judge which families of edits it allows. Resumable.

    Example: decodehub construct profile my-edits --revision COMMIT
    """
    _finish(_language([_PROFILE], out, _model(model, revision, dtype, max_new_tokens, retries), device))


@app.command()
def targets(
    out: Folder,
    model: Model = MODEL,
    revision: Revision = None,
    dtype: Dtype = "bfloat16",
    max_new_tokens: MaxNewTokens = 1024,
    retries: Retries = 2,
    device: Device = None,
) -> None:
    """Stage 2: choose what to edit, from the profiles alone: attributes, background, identity (among the other concepts), removal.

    Example: decodehub construct targets my-edits --revision COMMIT
    """
    _finish(_language([_TARGETS], out, _model(model, revision, dtype, max_new_tokens, retries), device))


@app.command()
def prompts(
    out: Folder,
    model: Model = MODEL,
    revision: Revision = None,
    dtype: Dtype = "bfloat16",
    max_new_tokens: MaxNewTokens = 1024,
    retries: Retries = 2,
    device: Device = None,
) -> None:
    """Stage 3: write a self-contained editing instruction for every target.

    Example: decodehub construct prompts my-edits --revision COMMIT
    """
    _finish(_language([_PROMPTS], out, _model(model, revision, dtype, max_new_tokens, retries), device))


@app.command()
def edit(
    out: Folder,
    model: Annotated[str, typer.Option(help="Editing model of diffusers: id on the Hub, or a folder.")] = EDITOR,
    revision: Revision = None,
    pipeline: Pipeline = "Flux2KleinPipeline",
    resolution: Resolution = 224,
    source_resolution: SourceResolution = "resized",
    steps: Steps = 4,
    guidance_scale: Guidance = 1.0,
    seed: Seed = 0,
    max_sequence_length: MaxSequence = 512,
    text_encoder_layers: Layers = "9,18,27",
    dtype: Dtype = "bfloat16",
    cpu_offload: Offload = True,
    nulls: Nulls = True,
    device: Device = None,
) -> None:
    """Stage 4: edit the images, with the settings of table S4 unless told otherwise.

    Example: decodehub construct edit my-edits --revision COMMIT
    """
    settings = _editor(model, revision, pipeline, resolution, source_resolution, steps, guidance_scale, seed, max_sequence_length, text_encoder_layers, dtype, cpu_offload)  # fmt: skip
    _finish([_images(out, settings, nulls, device, alone=True)])


@app.command("all")
def all_(
    images: Images,
    out: Out,
    model: Model = MODEL,
    revision: Revision = None,
    editor: Annotated[str, typer.Option(help="Editing model of diffusers: id on the Hub, or a folder.")] = EDITOR,
    editor_revision: Revision = None,
    table: Table = None,
    category: Category = None,
    attribution: Attribution = "",
    crop: Crop = False,
    max_new_tokens: MaxNewTokens = 1024,
    retries: Retries = 2,
    pipeline: Pipeline = "Flux2KleinPipeline",
    resolution: Resolution = 224,
    source_resolution: SourceResolution = "resized",
    steps: Steps = 4,
    guidance_scale: Guidance = 1.0,
    seed: Seed = 0,
    max_sequence_length: MaxSequence = 512,
    text_encoder_layers: Layers = "9,18,27",
    dtype: Dtype = "bfloat16",
    cpu_offload: Offload = True,
    nulls: Nulls = True,
    device: Device = None,
) -> None:
    """All stages up to the edited images; what fails at one stage does not stop the others, and a restart goes on.

    Example: decodehub construct all photos --out my-edits --revision COMMIT --editor-revision COMMIT --category artifact
    """
    from decodehub.construction.models import check_editor
    from decodehub.construction.sources import start as begin

    language = _model(model, revision, dtype, max_new_tokens, retries)
    settings = _editor(editor, editor_revision, pipeline, resolution, source_resolution, steps, guidance_scale, seed, max_sequence_length, text_encoder_layers, dtype, cpu_offload)  # fmt: skip
    check_editor(settings)
    begin(images, out, table=table, category=category, attribution=attribution, crop=crop)
    made = _language([_PROFILE, _TARGETS, _PROMPTS], out, language, device)
    _finish([*made, _images(out, settings, nulls, device, alone=False)])


@app.command()
def status(out: Folder) -> None:
    """How far a construction is: decisions of the profiles, targets and edited images by family, and what is missing.

    Example: decodehub construct status my-edits
    """
    from rich.console import Console

    from decodehub.construction.sources import read_sources
    from decodehub.construction.stages import funnel, read_edits
    from decodehub.core.tables import from_dicts

    rows = [{"family": family, **row} for family, row in funnel(out).items()]
    Console().print(from_dicts(rows, title=f"{len(read_sources(out))} sources"))
    missing = read_edits(out)[1]
    for name, why in list(missing.items())[:20]:
        typer.echo(f"{name}: {why}")
    if len(missing) > 20:
        typer.echo(f"and {len(missing) - 20} more")


@app.command()
def review(
    out: Folder,
    reviewer: Annotated[str, typer.Option(help="Name of the reviewer.")],
    third: Annotated[bool, typer.Option(help="Pages of the disputed edits alone, as `decide` has listed them.")] = False,
    per_page: Annotated[int, typer.Option(min=1, help="Edits on a page.")] = 400,
    seed: Annotated[int, typer.Option(help="Of the order, which also depends on the name.")] = 0,
    partial: Annotated[bool, typer.Option(help="Review what is there although some edits are missing.")] = False,
) -> None:
    """Write the review pages of one person: open in a browser, judge by keyboard, download the judgements.

    Example: decodehub construct review my-edits --reviewer anna
    """
    import json

    from decodehub.construction.release import DISPUTED, REVIEW
    from decodehub.construction.review_page import write_pages
    from decodehub.construction.stages import read_edits

    candidates, missing = read_edits(out)
    if missing and not partial:
        name, why = next(iter(missing.items()))
        raise ValueError(
            f"{len(missing)} items are not there yet, the first is {name} ({why}): finish them, or give --partial to go on without"
        )
    if third:
        path = out / REVIEW / DISPUTED
        if not path.is_file():
            raise ValueError(f"{path} does not exist: run 'decodehub construct decide' with the files of both reviewers first")
        wanted = set(json.loads(path.read_text(encoding="utf-8")))
        candidates = [c for c in candidates if c.edit_id in wanted]
    pages = write_pages(out, candidates, reviewer, out / REVIEW, seed=seed, per_page=per_page, third=third)
    typer.echo(f"{len(candidates)} edits for {reviewer}; open in a browser, and keep the CSV that each page downloads:")
    for path in pages:
        typer.echo(f"  {path}")


@app.command()
def decide(
    out: Folder,
    judgements: Annotated[list[Path], typer.Argument(help="CSV files of first and second reviewers, of all pages.")],
    third: Annotated[list[Path] | None, typer.Option(help="CSV file of a third reviewer. Repeat for each.")] = None,
    resamples: Annotated[int, typer.Option(min=2, help="Of the bootstrap, over source concepts.")] = 2000,
) -> None:
    """Check the judgements, list what is disputed, measure agreement, and write the final decisions.

    Example: decodehub construct decide my-edits anna-1-of-1.csv ben-1-of-1.csv --third carla-third-1-of-1.csv
    """
    from rich.console import Console

    from decodehub.construction.release import DECISIONS, DISPUTED, REVIEW, write_decisions
    from decodehub.construction.review import agreement, read_judgements
    from decodehub.construction.review import decide as bring_together
    from decodehub.construction.stages import read_edits
    from decodehub.core.files import write_json
    from decodehub.core.tables import PLAIN, Column, Format, Table
    from decodehub.hub_datasets.eeg_editbench.construction import NULL

    candidates = {c.edit_id: c for c in read_edits(out)[0]}
    if not candidates:
        raise ValueError(f"{out} has no edited images: run 'decodehub construct edit' first")
    read = [[j for path in files for j in read_judgements(path, candidates)] for files in (judgements, third or [])]
    decided = bring_together(list(candidates), *read)
    edits = {edit_id: c.source.concept for edit_id, c in candidates.items() if c.family != NULL}
    of_edits = {edit_id: judged for edit_id, judged in decided.judgements.items() if edit_id in edits}
    rows = agreement(decided._replace(judgements=of_edits), edits, resamples=resamples)
    columns = ["reviewers", Column("question", justify="left"), "edits", "raw agreement", "95 % CI"]
    columns += [Column("Cohen's kappa", Format(missing="not defined")), "95 % CI"]
    measured = [
        (" and ".join(r.reviewers), r.question, r.n, r.raw, PLAIN.interval(r.raw_ci95), r.kappa, PLAIN.interval(r.kappa_ci95)) for r in rows
    ]
    Console().print(Table(columns, measured))
    write_json(out / REVIEW / DISPUTED, decided.disputed)
    if decided.open:
        (out / REVIEW / DECISIONS).unlink(missing_ok=True)
        for edit_id in decided.open:
            typer.echo(f"  disputed: {edit_id}")
        raise ValueError(
            f"{len(decided.open)} edits need a third reviewer: 'decodehub construct review {out} --reviewer NAME --third', then 'decide' with --third"
        )
    path = write_decisions(out, decided, candidates, rows)
    kept = {edit_id for edit_id in candidates if decided.kept(edit_id)}
    typer.echo(
        f"{path}: {len(kept & edits.keys())} of {len(edits)} edits and {len(kept - edits.keys())} of {len(candidates) - len(edits)} null edits "
        f"pass, {len(decided.disputed)} were decided by a third reviewer"
    )


@app.command()
def assemble(
    out: Folder,
    release: Annotated[str, typer.Option(help="Name of the release, such as my-lab-1.0.")],
    to: Annotated[Path, typer.Option("--out", help="Folder of the release; it must not exist yet.")],
    licence: Annotated[str, typer.Option("--licence", "--license", help="Licence of the source images, such as CC-BY-4.0.")],
    title: Annotated[str | None, typer.Option(help="Title that is shown with scores.")] = None,
    nulls: Annotated[bool, typer.Option(help="Carry the null edits.")] = True,
    rejected: Annotated[bool, typer.Option(help="Carry the edits that failed too, for the config `candidates` alone.")] = False,
) -> None:
    """Make a release of the edits with a final pass; load_dataset and evaluate take its folder.

    Example: decodehub construct assemble my-edits --release my-lab-1.0 --out my-release --licence CC-BY-4.0
    """
    from rich.console import Console

    from decodehub.construction.release import assemble as make
    from decodehub.core.tables import Column, Table

    made = make(out, to, release=release, licence=licence, title=title, nulls=nulls, rejected=rejected)
    composition = [
        (row.family, row.subtype or "all", row.candidates, row.kept, row.candidates - row.kept, row.concepts) for row in made.composition
    ]
    columns = ["family", Column("subtype", justify="left"), "candidates", "kept", "dropped", "source concepts"]
    editor, people = made.provenance["editor"], made.provenance["review"]
    how = [
        ("profiles, targets, instructions", f"{language['model']} at {language['revision']}, {language['prompt_version']}")
        for language in made.provenance["language_models"]
    ]
    how += [
        ("images", f"{editor['model']} at {editor['revision']}, {editor['pipeline']}, {editor['steps']} steps, seed {editor['seed']}"),
        ("review", f"{people['reviewers']} people, {people['decided_by_a_third']} edits decided by a third"),
        ("licence of the sources", licence),
    ]
    Console().print(
        Table(columns, composition, title=f"release {release}"),
        Table(["", Column("", justify="left", wrap=True)], how, title="how it was made"),
    )
    typer.echo(f'load_dataset("eeg-editbench", data_dir="{to}")')


# The stages ---------------------------------------------------------------------------------------------------------------------------------

_PROFILE, _TARGETS, _PROMPTS = "profiles", "targets", "prompts"


def _language(stages: Sequence[str], out: Path, settings: ModelSettings, device: str | None) -> list[Report]:
    """Run stages of the language model, which is loaded once, and only where there is something left to ask."""
    from decodehub.construction import models
    from decodehub.construction import stages as jobs

    answer, reports = None, []
    for stage in stages:
        work = {_PROFILE: jobs.profile_work, _TARGETS: jobs.targets_work, _PROMPTS: jobs.prompts_work}[stage](out)
        if answer is None and not jobs.is_finished(out / stage, work, settings.full):
            answer = models.load_answer(settings, device or str(_state().device))
        ask = answer or _unasked
        make: Callable[[Any], bytes] = {
            _PROFILE: jobs.make_profile(out, ask, settings.retries),
            _TARGETS: jobs.make_targets(ask, settings.retries),
            _PROMPTS: jobs.make_prompt(ask, settings.retries),
        }[stage]
        reports.append(_run(out / stage, work, make, settings.full, stage, alone=stage == stages[0]))
    return reports


def _images(out: Path, settings: EditorSettings, nulls: bool, device: str | None, *, alone: bool) -> Report:
    """Run stage 4."""
    import gc

    import torch

    from decodehub.construction import models
    from decodehub.construction import stages as jobs

    gc.collect()  # the language model is not needed any more
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    work = jobs.edits_work(out, nulls=nulls)
    editor: Edit = _unasked
    if not jobs.is_finished(out / jobs.EDITS, work, settings.full):
        editor = models.load_editor(settings, str(_state().device) if device in (None, "auto") else str(device))
    return _run(out / jobs.EDITS, work, jobs.make_edit(out, editor, settings), settings.full, "edits", alone=alone)


def _run(folder: Path, work: Any, make: Callable[[Any], bytes], settings: dict[str, Any], label: str, *, alone: bool) -> Report:
    from decodehub.construction.stages import run_stage

    state = _state()
    if not alone:  # what is missing has been named as a failure of an earlier stage
        work = work._replace(missing={})
    report = run_stage(folder, work, make, settings, label, rank=state.process_index, world=state.num_processes)
    state.wait_for_everyone()  # the next stage reads what all have made
    typer.echo(f"{folder}: {len(report.made)} {label} made now, {len(report.reused)} before")
    return report._replace(failed={f"{folder.name}/{key}": error for key, error in report.failed.items()})


def _finish(reports: Sequence[Report]) -> None:
    """End with the list of what failed at any stage in any process; the first process shows it."""
    from accelerate.utils import gather_object

    from decodehub.core.jobs import Report, raise_if_failed

    mine = Report(
        [k for r in reports for k in r.made], [k for r in reports for k in r.reused], {k: e for r in reports for k, e in r.failed.items()}
    )
    made, reused, failed = (gather_object([part]) for part in mine)
    total = Report(
        [k for part in made for k in part], [k for part in reused for k in part], {k: e for part in failed for k, e in part.items()}
    )
    if total.failed and not _state().is_main_process:
        raise typer.Exit(1)
    raise_if_failed(total, "items")


def _state() -> Any:
    from datetime import timedelta

    import torch
    from accelerate import PartialState

    # Without `cpu`, processes on CPUs would not know of each other; in a restart one process may have days of work left, another none.
    return PartialState(cpu=not torch.accelerator.is_available(), timeout=timedelta(days=14))


def _unasked(*_: Any) -> Any:
    raise RuntimeError("a file changed while the job ran: run it again")


def _model(model: str, revision: str | None, dtype: str, max_new_tokens: int, retries: int) -> ModelSettings:
    from decodehub.construction.stages import ModelSettings
    from decodehub.construction.vlm import model_revision

    return ModelSettings(model, model_revision(model, revision), dtype, max_new_tokens, retries)


def _editor(model: str, revision: str | None, pipeline: str, resolution: int, source_resolution: str, steps: int, guidance_scale: float,
            seed: int, max_sequence_length: int, layers: str, dtype: str, cpu_offload: bool) -> EditorSettings:  # fmt: skip
    from decodehub.construction.stages import EditorSettings
    from decodehub.construction.vlm import model_revision

    try:
        numbers = None if layers == "none" else tuple(int(text) for text in layers.split(","))
    except ValueError:
        raise typer.BadParameter(f'--text-encoder-layers {layers!r}: give numbers such as 9,18,27, or "none"') from None
    found = model_revision(model, revision)
    return EditorSettings(model, found, pipeline, resolution, source_resolution, steps, guidance_scale, seed, max_sequence_length or None, numbers, dtype, cpu_offload)  # fmt: skip


if __name__ == "__main__":
    app()
