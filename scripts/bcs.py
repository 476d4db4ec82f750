"""BCS jobs: train a head on annotated pairs, score folders of reconstructions, audit conventional measures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from decodehub.core.records import ResultRecord
    from decodehub.core.tables import Table

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)

ValueRange = Annotated[
    str | None, typer.Option(help='What black and white are in files of arrays, as "-1,1"; by default [0, 1] or 0 to 255, checked.')
]
Layout = Annotated[str | None, typer.Option(help="chw or hwc, where the shape of arrays leaves it open.")]
CacheDir = Annotated[Path | None, typer.Option(help="Folder of cached image features; by default below $DECODEHUB_HOME.")]
PairTable = Annotated[Path | None, typer.Option(help="CSV of the pairs: columns reference, reconstruction (paths below the folders).")]
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
    from decodehub.reports.bcs import write_evaluation
    from decodehub.runs.bcs.training import train_and_evaluate

    if output_type not in OUTPUT_TYPES:
        raise ValueError(f"--output-type is {output_type!r}, expected one of {', '.join(OUTPUT_TYPES)}")
    ids = [str(e["id"]) for e in PUBLISHED_ENCODERS] if encoders == PUBLISHED else _list(encoders)
    settings = TrainingSettings(lr=lr, batch_size=batch_size, epochs=epochs, validation_loss=validation_loss)
    evaluation = train_and_evaluate(
        out,
        data_dir=data_dir,
        encoder_ids=ids,
        teachers=None if teachers is None else _list(teachers),
        weight_rule=weight_rule,
        output_type=output_type,
        seeds=_seeds(seeds),
        hidden_size=hidden_size,
        settings=settings,
        baseline=baseline,
        cache_dir=cache_dir or default_cache(),
        resume=resume,
    )
    if evaluation is not None:
        write_evaluation(out, *evaluation)
        _print_evaluation(evaluation.record)
        typer.echo(f"model   {out / 'model'}\nrecord  {out / 'record.json'}\nreport  {out / 'report.html'}\ncheck   decodehub verify {out}")


@app.command()
def score(
    references: Annotated[Path, typer.Argument(help="Folder of reference images, or .pt, .npy, .npz or .safetensors of them.")],
    reconstructions: Annotated[
        Path, typer.Argument(help="Folder (or array file) of reconstructions; their names say which reference they are of.")
    ],
    model: Annotated[
        str | None, typer.Option(help='The head: a folder of `decodehub bcs train`, ORG/NAME of the Hub, or "sample" to see how it goes.')
    ] = None,
    data: Annotated[str, typer.Option(help="What the reconstructions are, for the record.")] = "not stated",
    release: Annotated[str, typer.Option(help="Name of this set of reconstructions, for the record.")] = "own",
    out: Annotated[Path, typer.Option(help="Folder of table, record and page.")] = Path("runs/bcs-scores"),
    cache_dir: CacheDir = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images read at once.")] = 32,
    page: Annotated[bool, typer.Option(help="Write the page with the best, worst and most plausible but wrong pairs.")] = True,
    pattern: Annotated[
        str | None, typer.Option(help='How names say the pair, as "{image}_{sample}" or "{method}/subj{subject}/{image}"; * is anything.')
    ] = None,
    pairs: PairTable = None,
    by_order: Annotated[bool, typer.Option(help="The k-th reconstruction is of the k-th reference (2 before 10).")] = False,
    value_range: ValueRange = None,
    layout: Layout = None,
) -> None:
    """Score every reconstruction against its reference and write scores.csv, a record and a page.

    Pairs are found by name (same path or stem, METHOD__sub-XX__concept__rankR__candC, IMAGE_SAMPLE, a folder that names the image, 000_rec
    for 000_gt) and the rule is printed; names that can be read in two ways stop the run, and --pattern, --pairs or --by-order say it.

    Example: decodehub bcs score references/ reconstructions/ --model runs/bcs/model
    """
    from accelerate import PartialState

    from decodehub.loaders.reconstruction_pairs import pair_folders
    from decodehub.reports.bcs import write_scores_page
    from decodehub.runs.bcs.scoring import score_folders

    references, reconstructions = _image_folders(references, reconstructions, cache_dir, value_range, layout)
    found = pair_folders(references, reconstructions, pattern=pattern, table=pairs, by_order=by_order)
    if PartialState().is_main_process:
        typer.echo(found.describe())
    result = score_folders(
        found,
        references,
        reconstructions,
        out,
        model=model,
        data=data,
        release=release,
        cache_dir=cache_dir or default_cache(),
        batch_size=batch_size,
    )
    if result is None:
        return
    if page:
        write_scores_page(out / "report.html", result.record, result.question_scores, result.pairs)
    _show_unmatched("references without a reconstruction", result.unmatched_references, out)
    _show_unmatched("reconstructions without a reference", result.unmatched_reconstructions, out)
    _print_scores(result.record)
    made = ["scores.csv", "record.json", *(["report.html"] if page else [])]
    typer.echo("\n".join(str(out / name) for name in made) + f"\ncheck   decodehub verify {out}")


@app.command()
def audit(
    references: Annotated[Path | None, typer.Argument(help="Folder of reference images, with --scores.")] = None,
    reconstructions: Annotated[Path | None, typer.Argument(help="Folder of reconstructions, with --scores.")] = None,
    scores: Annotated[Path | None, typer.Option(help="Folder that `decodehub bcs score` made of these images.")] = None,
    data_dir: Annotated[str | None, typer.Option(help='Instead: folder of annotations, or "sample"; the signal is the consensus.')] = None,
    consensus: Annotated[
        str, typer.Option(help="mean_of_question_medians (what BCS is trained on) or median_of_annotator_aggregates (table 12).")
    ] = "mean_of_question_medians",
    measures: Annotated[
        str,
        typer.Option(
            help="Names with commas: mse, psnr, ssim, ssim-gaussian, edge-cosine, color-histogram, pixel-correlation, lpips, dists, cosine:ENCODER, two-way:ENCODER, clip-l14, dinov2, openclip, siglip."
        ),
    ] = "mse,psnr,ssim,ssim-gaussian,edge-cosine,color-histogram,cosine:lite0",
    table: Annotated[
        Path | None, typer.Option(help="CSV of further values: pair_id and one column a measure (DreamSim, PieAPP, ...).")
    ] = None,
    higher: Annotated[
        str | None, typer.Option(help="Columns of the table where larger is better, with commas; published names are known.")
    ] = None,
    lower: Annotated[str | None, typer.Option(help="Columns where smaller is better.")] = None,
    signal: Annotated[
        str | None, typer.Option(help="A column of the table as a third signal, such as blip_caption_sbert_cosine (table 1).")
    ] = None,
    failure_rule: Annotated[
        str, typer.Option(help="paper (Eq. 3 and 4: quartiles) or released_code (recovered means at least .5).")
    ] = "paper",
    input_range: Annotated[
        str, typer.Option(help="documented (LPIPS gets [-1, 1], DISTS [0, 1]) or released_code (the other way round).")
    ] = "documented",
    out: Annotated[Path, typer.Option(help="Folder of values.csv, audit.json, report.html.")] = Path("runs/bcs-audit"),
    batch_size: Annotated[int, typer.Option(min=1)] = 32,
    value_range: ValueRange = None,
    layout: Layout = None,
) -> None:
    """Audit conventional measures: how far do MSE, SSIM, LPIPS, CLIP, ... agree with what can be recovered (tables 1 and 12 of the paper)?

    Values are kept: a second run computes only measures that are new. A measure that fails is named, and the others go on.

    Example: decodehub bcs audit stimuli my-method --scores runs/bcs-scores --out runs/audit
    Example: decodehub bcs audit --data-dir sample
    """
    from accelerate import Accelerator

    from decodehub.core.jobs import raise_if_failed
    from decodehub.metrics.reconstruction_quality.scoring import Settings
    from decodehub.reports.bcs_audit import SAMPLE_NOTE, audit_table, dependence_note, signals_of, write_audit_page
    from decodehub.runs.bcs.audit import pairs_of_annotations, pairs_of_scores, read_table, run_audit

    accelerator = Accelerator()
    if not accelerator.is_main_process:  # one process and its device do; pixels take all cores
        return
    if (higher or lower or signal) and table is None:
        raise ValueError("--higher, --lower and --signal are about columns of --table")
    if scores is not None and references is not None and reconstructions is not None and data_dir is None:
        pairs = pairs_of_scores(*_image_folders(references, reconstructions, None, value_range, layout), scores)
    elif data_dir is not None and scores is references is reconstructions is None:
        pairs = pairs_of_annotations(data_dir, consensus)
    else:
        raise ValueError("give either REFERENCES RECONSTRUCTIONS --scores FOLDER, or --data-dir")
    extra = None if table is None else read_table(table, pairs.keys, _list(higher) if higher else (), _list(lower) if lower else ())
    found = run_audit(
        out,
        pairs,
        _list(measures),
        extra=extra,
        signal=signal,
        input_range=input_range,
        settings=Settings(failure_rule=failure_rule),
        device=accelerator.device,
        batch_size=batch_size,
    )
    write_audit_page(out / "report.html", found.result)
    for name, title in signals_of(found.result).items():
        typer.echo(f"against {title}, {found.result['signals']}")
        _print(audit_table(found.result, name, intervals=False))
    for note in (dependence_note(found.result), SAMPLE_NOTE if found.result["sample"] else ""):
        if note:
            typer.secho(note, fg="yellow")
    typer.echo("\n".join(str(out / name) for name in ("values.csv", "audit.json", "report.html")))
    raise_if_failed(found.job, "measures")


@app.command()
def probe(
    images: Annotated[Path | None, typer.Argument(help="Folder of images; by default the photographs of the sample.")] = None,
    measures: Annotated[
        str, typer.Option(help="Names with commas, as for audit.")
    ] = "mse,psnr,ssim-gaussian,edge-cosine,color-histogram,cosine:lite0",
    noise_seed: Annotated[
        str, typer.Option(help="image (noise of its own for each image) or released_code (seeded by the level and the first pixel).")
    ] = "image",
    out: Annotated[Path, typer.Option(help="Folder of values.csv, probe.json, report.html.")] = Path("runs/bcs-probe"),
) -> None:
    """Degrade images in six known ways at four levels and see which measures follow (table 2 of the paper).

    Example: decodehub bcs probe stimuli --measures mse,ssim-gaussian,clip-l14 --out runs/probe
    """
    from accelerate import Accelerator

    from decodehub.loaders.images import source
    from decodehub.loaders.reconstruction_pairs import image_files
    from decodehub.reports.bcs_audit import probe_table, write_probe_page
    from decodehub.runs.bcs.audit import run_probe, sample_images

    accelerator = Accelerator()
    if not accelerator.is_main_process:
        return
    found = sample_images() if images is None else {p.relative_to(images).as_posix(): source(p, p.name) for p in image_files(images)}
    result = run_probe(out, found, _list(measures), noise_seed=noise_seed, sample=images is None, device=accelerator.device)
    write_probe_page(out / "report.html", result)
    for name, title in (("pooled", "all images ranked together (as table 2)"), ("per_image", "each image on its own, then the mean")):
        typer.echo(title)
        _print(probe_table(result, name, intervals=False))
    typer.echo("\n".join(str(out / name) for name in ("values.csv", "probe.json", "report.html")))


def _image_folders(
    references: Path, reconstructions: Path, cache_dir: Path | None, value_range: str | None, layout: str | None
) -> tuple[Path, Path]:
    """Folders of images; files of arrays are unpacked into the cache."""
    from decodehub.loaders.image_arrays import image_folder, parse_range

    black_white = parse_range(value_range)
    one, other = (
        image_folder(path, cache_dir or default_cache(), value_range=black_white, layout=layout) for path in (references, reconstructions)
    )
    return one, other


def _show_unmatched(kind: str, paths: list[Path], out: Path) -> None:
    if paths:
        typer.secho(f"{len(paths)} {kind} (all are in {out / 'unmatched.csv'}):", fg="yellow", err=True)
        for path in paths[:10]:
            typer.echo(f"  {path}", err=True)


def default_cache() -> Path:
    """Folder of cached image features."""
    from decodehub.core.files import home

    return home() / "image-features"


def _seeds(text: str) -> list[int]:
    if wrong := [seed for seed in _list(text) if not (seed.isascii() and seed.isdecimal() and int(seed) < 1 << 63)]:
        raise ValueError(f"--seeds: {wrong[0]!r} is not a whole number from 0 to 2**63 - 1")
    return [int(seed) for seed in _list(text)]


def _list(text: str) -> list[str]:
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise ValueError(f"expected names with commas between them, found {text!r}")
    return items


def _print_evaluation(record: ResultRecord) -> None:
    from decodehub.reports.bcs import evaluation_table, sample_note

    _print(evaluation_table(record, intervals=False), sample_note(record))


def _print_scores(record: ResultRecord) -> None:
    from decodehub.reports.bcs import sample_note, score_table

    _print(score_table(record, intervals=False), sample_note(record))


def _print(table: Table, note: str = "") -> None:
    from rich.console import Console

    console = Console()
    console.print(table.rich(box=False))
    if note:
        console.print(f"[yellow]{note}[/yellow]")


if __name__ == "__main__":
    app()
