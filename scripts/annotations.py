"""Annotations of reconstruction pairs: make a release of them, ask vision-language models, merge, audit, and measure agreement."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from decodehub.core.records import Metric
    from decodehub.core.tables import Table
    from decodehub.metrics.vlm_agreement.agreement import AnswerTable

PARSERS: tuple[Literal["strict"], Literal["lenient"]] = ("strict", "lenient")  # by --lenient

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)

DataDir = Annotated[
    str | None,
    typer.Option(help='Folder of a release, or "sample"; by default the release that load_dataset("bcs-annotations") gives.'),
]
Out = Annotated[Path, typer.Option(help="Where to write; it must not exist yet.")]


@app.command("import")
def import_(
    run: Annotated[list[str], typer.Option(help="NAME=FOLDER of one annotator's run of the published pipeline. Repeat for each.")],
    images: Annotated[Path, typer.Option(help="Folder that the images of the runs lie in.")],
    out: Out,
    release: Annotated[str, typer.Option(help="Name of the release.")] = "own",
    license_: Annotated[str, typer.Option("--license", help="Licence of the images, for the header.")] = "see the source of the images",
    parser: Annotated[Literal["strict", "released_code"], typer.Option(help="How replies are read.")] = "strict",
    abstract: Annotated[
        Literal["drop", "keep"], typer.Option(help="Pairs without an object (wallpaper): drop as the paper (6,855), or keep (6,885).")
    ] = "drop",
    split_rule: Annotated[
        Literal["reference", "released_code"], typer.Option(help="Groups of the split; the released one may leak, and is then refused.")
    ] = "reference",
) -> None:
    """Read the raw files of the published pipeline into a release folder.

    Example: decodehub annotations import --run InternVL3=runs/internvl3 --run Ovis2=runs/ovis --images data --out bcs-v1
    """
    from decodehub.hub_datasets.bcs_annotations.published import import_published

    if malformed := [text for text in run if not all(text.partition("=")[::2])]:
        raise typer.BadParameter(f"--run {malformed[0]!r} is not NAME=FOLDER")
    runs = {name: Path(folder) for name, _, folder in (text.partition("=") for text in run)}
    if len(runs) != len(run):
        raise typer.BadParameter("two runs have the same name")
    report = import_published(runs, images, out, release=release, license=license_, parser=parser, abstract=abstract, split_rule=split_rule)
    typer.echo(f"{out}: {len(report.release.pairs)} pairs, {report.dropped_abstract} abstract ones left out")
    for name in runs:
        typer.echo(
            f"  {name}: {report.invalid[name]} answers could not be read, {report.changed[name]} differ from those the pipeline noted, "
            f"{report.missing[name]} pairs were not annotated"
        )


@app.command()
def pair(
    references: Annotated[Path, typer.Option(help="Folder of the reference images.")],
    reconstructions: Annotated[Path, typer.Option(help="Folder of the reconstructed images, paired with the references by name.")],
    out: Out,
    method: Annotated[str, typer.Option(help="Name of the method, where neither folder nor file name says it.")] = "own",
    release: Annotated[str, typer.Option(help="Name of the release.")] = "own",
    license_: Annotated[str, typer.Option("--license", help="Licence of the images, for the header.")] = "not stated",
    pattern: Annotated[str | None, typer.Option(help="As for `decodehub bcs score`.")] = None,
    pairs: Annotated[Path | None, typer.Option(help="CSV with columns reference and reconstruction.")] = None,
    by_order: Annotated[bool, typer.Option(help="The k-th reconstruction is of the k-th reference.")] = False,
    concepts: Annotated[
        Path | None, typer.Option(help="CSV with columns reference and concept; by default folder or name of a reference say its concept.")
    ] = None,
) -> None:
    """Make a release without annotations from your own images, split by concept, to annotate or to train on.

    Example: decodehub annotations pair --references stimuli --reconstructions my-method --out my-pairs
    """
    from decodehub.hub_datasets.bcs_annotations.own import pairs_from_folders
    from decodehub.loaders.reconstruction_pairs import pair_folders

    found = pair_folders(references, reconstructions, pattern=pattern, table=pairs, by_order=by_order)
    typer.echo(found.describe())
    made = pairs_from_folders(found, references, out, method=method, release=release, license=license_, concepts=concepts)
    typer.echo(f"{out}: {len(made.pairs)} pairs of {len({pair.concept for pair in made.pairs})} concepts")
    for name, paths in (("references", found.unmatched_references), ("reconstructions", found.unmatched_reconstructions)):
        if paths:
            typer.echo(f"  {len(paths)} {name} without a partner, the first is {paths[0]}", err=True)


@app.command()
def annotate(
    data_dir: Annotated[str, typer.Option(help='Folder of the release whose pairs are annotated, or "sample".')],
    model: Annotated[str, typer.Option(help="Image-text-to-text model of transformers: id on the Hub, or a folder.")],
    out: Annotated[Path, typer.Option(help="Folder of the answers, one file a pair; a restart goes on.")],
    revision: Annotated[str | None, typer.Option(help="Full commit of a model on the Hub.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the annotator; by default the last part of the model's.")] = None,
    prompts: Annotated[Literal["short", "long"], typer.Option(help="Wording of the questions.")] = "short",
    dtype: Annotated[str, typer.Option(help="Of the weights.")] = "bfloat16",
    max_new_tokens: Annotated[int, typer.Option(min=8, help="Longest reply.")] = 128,
    batch_size: Annotated[int, typer.Option(min=1, help="Questions at once.")] = 4,
    retries: Annotated[int, typer.Option(min=0, help="How often an unreadable reply is asked for again.")] = 2,
    device: Annotated[str | None, typer.Option(help="cuda or cpu; by default what Accelerate gives this process.")] = None,
    lenient: Annotated[
        bool, typer.Option(help="Take the JSON object out of fences and text around it too; by default nothing else may stand.")
    ] = False,
    min_valid: Annotated[float, typer.Option(min=0, max=100, help="Percent of valid answers under which the exit code is 1.")] = 95,
    overwrite: Annotated[bool, typer.Option(help="Replace answers in --out that were made under other settings.")] = False,
) -> None:
    """Ask a local vision-language model the twelve questions about every pair: greedy, strict JSON, resumable.

    What a model writes between think tags is left out. The last lines say what share of its answers is valid, by question.

    Several processes share the work under `accelerate launch`. Then `decodehub annotations merge` puts the answers into the release.

    Example: decodehub annotations annotate --data-dir my-pairs --model Qwen/Qwen2.5-VL-7B-Instruct --revision COMMIT --out answers/qwen
    """
    import torch
    from accelerate import PartialState

    from decodehub.construction.annotate import Settings, check_settings, load_vlm, validity
    from decodehub.construction.annotate import annotate as run
    from decodehub.construction.vlm import model_revision
    from decodehub.core.jobs import raise_if_failed
    from decodehub.hub_datasets.bcs_annotations.builder import resolve_folder
    from decodehub.hub_datasets.bcs_annotations.release import read_release

    state = PartialState(cpu=not torch.accelerator.is_available())  # or processes on CPUs would not know of each other
    name, parser = name or model.rstrip("/").rsplit("/", 1)[-1], PARSERS[lenient]
    found = model_revision(model, revision)
    settings = Settings(name, model, found, prompts, dtype, max_new_tokens, batch_size, retries, parser)
    check_settings(out, settings, overwrite=overwrite)
    release = read_release(resolve_folder(data_dir), annotations=False)
    generate = load_vlm(settings, device or str(state.device))
    report = run(release, generate, settings, out, rank=state.process_index, world=state.num_processes, overwrite=overwrite)
    typer.echo(f"{out}: {len(report.made)} pairs annotated now, {len(report.reused)} before")
    raise_if_failed(report, "pairs")
    state.wait_for_everyone()
    share = _show_validity({settings.annotator: validity(out, release, settings)} if state.is_main_process else {})
    if share < min_valid:
        raise ValueError(
            f"{share:.1f} % of the answers in {out} are valid, at least {min_valid:g} % are asked for (--min-valid): see 'replies' and 'problems' "
            "in its files; a longer --max-new-tokens, --lenient or another model may do. A run under other settings needs another --out"
        )


@app.command()
def merge(
    data_dir: Annotated[str, typer.Option(help="Folder of the release that was annotated.")],
    answers: Annotated[list[Path], typer.Option(help="Folder of `annotate`. Repeat for each annotator.")],
    out: Out,
    release: Annotated[str, typer.Option(help="Name of the new release.")] = "own",
) -> None:
    """Put the answers of one or more annotators into a new release folder; annotators that the release has already are kept.

    Example: decodehub annotations merge --data-dir my-pairs --answers answers/qwen --answers answers/internvl --out my-annotations
    """
    from decodehub.construction.annotate import read_answers
    from decodehub.hub_datasets.bcs_annotations.builder import resolve_folder
    from decodehub.hub_datasets.bcs_annotations.own import add_annotations
    from decodehub.hub_datasets.bcs_annotations.release import read_release

    base = read_release(resolve_folder(data_dir))
    made = add_annotations(base, dict(read_answers(folder, base) for folder in answers), out, release=release)
    typer.echo(f"{out}: {len(made.pairs)} pairs, annotators {', '.join(made.header.annotators)}")
    _show_validity(_counted(made.header.annotators, made.codes() >= 0))


def _counted(annotators: Sequence[str], valid: np.ndarray) -> dict[str, dict[str, tuple[int, int]]]:
    """(valid answers, answers) by annotator and question, of (n_pairs, n_annotators, 12) bool."""
    from decodehub.hub_datasets.bcs_annotations.questionnaire import load_questionnaire

    keys = load_questionnaire().keys
    return {name: {key: (int(valid[:, j, q].sum()), len(valid)) for q, key in enumerate(keys)} for j, name in enumerate(annotators)}


def _show_validity(counts: Mapping[str, Mapping[str, tuple[int, int]]]) -> float:
    """Print the share of valid answers by annotator and question (table 11); gives the least share of an annotator, in percent."""
    shares = [100.0]
    for name, by_question in counts.items():
        valid, n = (sum(column) for column in zip(*by_question.values()))
        shares.append(100 * valid / n if n else 0.0)
        typer.echo(f"valid answers of {name}: {valid:,} of {n:,}, {shares[-1]:.1f} %")
        typer.echo("  " + "  ".join(f"{key.partition('_')[0]} {100 * v / m if m else 0:.1f}" for key, (v, m) in by_question.items()))
    return min(shares)


@app.command()
def audit(
    data_dir: DataDir = None,
    hashes: Annotated[bool, typer.Option(help="Decode every image again and compare it with the hash that its row states.")] = True,
) -> None:
    """Prove that no reference, concept or reconstruction is in two splits, and count pairs by method beside table 8.

    Example: decodehub annotations audit --data-dir sample
    """
    from rich.console import Console
    from tqdm import tqdm

    from decodehub.core.tables import Table
    from decodehub.hub_datasets.bcs_annotations.builder import pair_rows, resolve_folder
    from decodehub.hub_datasets.bcs_annotations.published import composition, paper_composition
    from decodehub.hub_datasets.bcs_annotations.release import read_release
    from decodehub.hub_datasets.bcs_annotations.splits import audit_splits

    release = read_release(resolve_folder(data_dir), annotations=False)  # refuses a leak of the hashes as stated
    if hashes:
        for _ in tqdm(pair_rows(release), total=len(release.pairs), desc="images"):
            pass  # raises where an image is not the one stated
    found = audit_splits((p.info for p in release.pairs), {p.pair_id: p.split for p in release.pairs})
    console, paper = Console(), paper_composition()
    rows = [[method, *n, paper[method].pairs if method in paper else None] for method, n in composition(release.pairs).items()]
    columns = ["method", "pairs", "subjects", "concepts", "pairs in table 8"]
    console.print(Table(columns, rows, title=f"release {release.header.release}"))
    for split, n_pairs in found.pairs_by_split.items():
        console.print(f"{split}: {n_pairs} pairs of {found.groups_by_split[split]} concepts")
    console.print(f"no reference or concept is in two splits{'; every image is the one stated' if hashes else ''}")
    if found.reconstructions:
        ids = next(iter(next(iter(found.reconstructions.values())).values()))
        console.print(
            f"[yellow]{len(found.reconstructions)} reconstructions are the same image in several splits (as black images of a safety filter "
            f"are), for example {ids[0]}[/yellow]"
        )
    if found.duplicates:
        doubled = sum(len(ids) - 1 for ids in found.duplicates)
        console.print(
            f"[yellow]{doubled} pairs repeat another pair's two images, for example {', '.join(found.duplicates[0][:3])}[/yellow]"
        )


@app.command()
def agreement(
    data_dir: DataDir = None,
    unit: Annotated[Literal["concept", "pair"], typer.Option(help="What intervals are over.")] = "concept",
    resamples: Annotated[int, typer.Option(min=2, help="Of the intervals.")] = 2000,
    rationales: Annotated[
        str, typer.Option(help='Encoder of rationales: "none", "tfidf" (compares words), or a sentence-transformers model (id or folder).')
    ] = "none",
    out: Annotated[Path | None, typer.Option(help="Folder of a record that `decodehub verify` checks.")] = None,
) -> None:
    """Agreement of the annotators, with intervals: unanimity, kappas, alpha, mean scores, regimes, and of people where there are judgements.

    Example: decodehub annotations agreement --data-dir sample --rationales tfidf --out runs/agreement
    """
    from rich.console import Console

    from decodehub.core.records import ModelInfo
    from decodehub.metrics.vlm_agreement.agreement import Settings, load_answers
    from decodehub.metrics.vlm_agreement.agreement import agreement as compute
    from decodehub.metrics.vlm_agreement.protocol import make_record

    table, settings, console = load_answers(data_dir), Settings(unit=unit, resamples=resamples), Console()
    _show_validity(_counted(table.annotators, table.answers == table.answers))
    metrics = compute(table, settings)
    for shown in _agreement_tables(table, list(metrics)):
        console.print(shown)
    if rationales != "none":
        console.print(*_rationale_table(table, rationales), sep="\n")
    if (people := _human_table(data_dir)) is not None:
        console.print(people)
    if table.release == "sample":
        console.print("[yellow]Release 'sample': rule-based annotators; these numbers say nothing about VLMs or people.[/yellow]")
    if out is not None:
        make_record(out, table, model=ModelInfo(id="+".join(table.annotators)), settings=settings)
        console.print(f"record  {out / 'record.json'}\ncheck   decodehub verify {out}", highlight=False, soft_wrap=True)


@app.command()
def prompts(
    out: Annotated[Path | None, typer.Option(help="File to write; printed otherwise.")] = None,
    wording: Annotated[Literal["short", "long"], typer.Option(help="Which of the two wordings.")] = "short",
) -> None:
    """Export the questionnaire as JSON: what every annotator is told, with the version that is kept beside its answers.

    Example: decodehub annotations prompts --wording long --out prompts.json
    """
    from decodehub.core.files import canonical_json, write_json
    from decodehub.hub_datasets.bcs_annotations.questionnaire import load_questionnaire

    q = load_questionnaire()
    content = {
        "prompt_version": q.prompt_version(wording),
        "answers": q.answers,
        "images": ["reference", "reconstruction"],
        "questions": [{"key": key, **dict(zip(("system", "user"), q.prompt(key, wording)))} for key in q.keys],
    }
    if out is None:
        typer.echo(canonical_json(content, indent=2))
    else:
        write_json(out, content)
        typer.echo(f"{out}: {content['prompt_version']}")


def _agreement_tables(table: AnswerTable, metrics: list[Metric]) -> list[Table]:
    from decodehub.core.tables import PLAIN, Column, Table

    by = {(m.name, *m.slice.values()): m for m in metrics}

    def shown(*chosen: Metric) -> list[Any]:
        return [cell for m in chosen for cell in (m.value, PLAIN.interval(m.ci95))]

    def named(name: str) -> list[Metric]:
        return [m for m in metrics if m.name == name]

    value = ["value", "95 % CI"]
    whole = [
        m for m in metrics if m.name in ("unanimous", "fleiss_kappa", "krippendorff_alpha", "weighted_kappa") and "question" not in m.slice
    ]
    questions = [m.slice["question"] for m in named("unanimous") if m.slice]
    return [
        Table(
            ["", *value],
            [[" ".join([m.name.replace("_", " "), *m.slice.values()]), *shown(m)] for m in whole],
            title=f"release {table.release}: {len(table.pair_ids)} pairs, {len(table.annotators)} annotators",
        ),
        Table(
            ["question", "unanimous", "95 % CI", "Fleiss' kappa", "95 % CI"],
            [[q.replace("_", " "), *shown(by["unanimous", q], by["fleiss_kappa", q])] for q in questions],
            title="by question (table 5)",
        ),
        Table(
            ["annotator, or definition of the consensus", "T-PAS", "95 % CI", "T-SAS", "95 % CI"],
            [[*m.slice.values(), *shown(m, by[("t_sas", *m.slice.values())])] for m in named("t_pas")],
            title="mean scores (table 4)",
        ),
        Table(
            ["definition of the consensus", Column("regime", justify="left"), "share", "95 % CI"],
            [[*m.slice.values(), *shown(m)] for m in named("regime")],
            title="regimes (table 9)",
        ),
    ]


def _rationale_table(table: AnswerTable, encoder: str) -> tuple[str, Table]:
    """Title and table of figure 3, right."""
    from decodehub.core.tables import Table
    from decodehub.metrics.vlm_agreement.rationales import rationale_similarity, sentence_encoder, tfidf_encoder

    matrix = rationale_similarity(table.rationales, tfidf_encoder if encoder == "tfidf" else sentence_encoder(encoder))
    title = "rationales: cosine of TF-IDF (words, not meanings)" if encoder == "tfidf" else f"rationales: cosine of {encoder}"
    return title, Table(["", *table.annotators], [[name, *row] for name, row in zip(table.annotators, matrix)])


def _human_table(data_dir: str | None) -> Table | None:
    """Table 7 for the judgements of people in a release; None where there are none."""
    from datasets import load_dataset

    import decodehub  # noqa: F401
    from decodehub.core.tables import Column, Estimate, Format, Table
    from decodehub.hub_datasets.bcs_annotations.release import NoRowsError
    from decodehub.metrics.vlm_agreement.scoring import LEVELS, krippendorff_alpha, rater_kappas, tabulate

    try:
        frame = load_dataset("bcs-annotations", "human", data_dir=data_dir, split="test").to_pandas()
    except NoRowsError:
        return None
    table = []
    for block, rows in frame.groupby("block"):
        judged = rows.pivot(index="pair_id", columns="rater", values="judgement").to_numpy(dtype="float64")
        kappas, patterns = rater_kappas(judged), tabulate(judged[:, :, None], None)
        alphas = [float(krippendorff_alpha(patterns, patterns.counts(), level)) for level in LEVELS]
        table.append([block, judged.shape[1], len(judged), Estimate(kappas.mean, sd=kappas.sd), *alphas])
    kappa = Column("Cohen's kappa, mean ± SD", Format(spread=("sd",)))
    return Table(["judgement", "raters", "pairs", kappa, *(f"alpha, {level}" for level in LEVELS)], table, title="people (table 7)")


if __name__ == "__main__":
    app()
