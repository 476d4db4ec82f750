"""The raw layout of the published pipeline, read into a release of ours: one run folder an annotator, and a folder of images.

A run folder holds ``pair_scores.jsonl`` (or ``internvl3_pair_scores.jsonl``), and perhaps ``selected_pairs.json`` and ``run_config.json``. None of
these files is public; who has them brings them. Every reply is parsed anew from its raw text.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

from tqdm import tqdm

from decodehub.core.files import inside, new_folder, read_json_lines, sha256_json
from decodehub.loaders.pair_ids import normalise_concept, parse_pair_id

from .own import copy_image
from .parsing import Parser, parse_answer
from .questionnaire import load_questionnaire
from .release import (
    AnnotationRow,
    AnswerItem,
    Header,
    PairRow,
    Release,
    ReleaseError,
    read_release,
    write_release,
)
from .splits import SEED, PairInfo, SplitRule, concept_group, split_pairs

SCORES = ("pair_scores.jsonl", "internvl3_pair_scores.jsonl")
ALIASES = {"P3_surface_texture_pattern": "P3_surface_texture_material"}  # what the code asks of abstract images in place of P3
Abstract = Literal["drop", "keep"]


class Composition(NamedTuple):
    """How many pairs, subjects and concepts a method has (table 8). The paper counts no subject as one."""

    pairs: int
    subjects: int
    concepts: int


class ImportReport(NamedTuple):
    """What an import found.

    Attributes:
        release: what was written, read back and checked.
        dropped_abstract: pairs left out because they are routed "abstract".
        invalid: by annotator, how many answers could not be read.
        changed: by annotator, how many answers differ from those that the published pipeline had noted.
        missing: by annotator, how many pairs it did not annotate.
    """

    release: Release
    dropped_abstract: int
    invalid: dict[str, int]
    changed: dict[str, int]
    missing: dict[str, int]


class _Raw(NamedTuple):
    pair_id: str
    routing: str
    reference: Path
    reconstruction: Path


_Answers = dict[str, tuple[str, dict[str, AnswerItem]]]  # of one annotator, by pair id: hash of the settings, answers by question


def composition(pairs: Iterable[PairRow]) -> dict[str, Composition]:
    """Pairs, subjects and concepts by method, as table 8 counts them."""
    by_method: dict[str, list[PairRow]] = defaultdict(list)
    for pair in pairs:
        by_method[pair.method].append(pair)
    return {
        method: Composition(len(rows), len({row.subject for row in rows}), len({row.concept for row in rows}))
        for method, rows in sorted(by_method.items())
    }


def paper_composition() -> dict[str, Composition]:
    """Table 8, with the number of concepts that its pairs imply: "wallpaper" is left out of ATM and ENIGMA, which leaves 199 and not 200."""
    with (Path(__file__).parent / "composition.csv").open(encoding="utf-8", newline="") as f:
        return {row["method"]: Composition(int(row["pairs"]), int(row["subjects"]), int(row["concepts"])) for row in csv.DictReader(f)}


def import_published(
    runs: Mapping[str, Path],
    images: Path,
    out: Path,
    *,
    release: str,
    license: str,
    parser: Parser = "strict",
    abstract: Abstract = "drop",
    split_rule: SplitRule = "reference",
    seed: int = SEED,
    progress: bool = True,
) -> ImportReport:
    """Read the runs of the published pipeline, copy their images, split by concept, and write a release folder.

    Args:
        runs: run folder by annotator.
        images: folder that the paths of references and reconstructions lie in; leading parts of a path that are not there are ignored.
        out: where to write; it must not exist yet.
        release, license: for the header.
        parser: see `parse_answer`.
        abstract: "drop" leaves out pairs routed "abstract" (no object, five questions): of the 6,885 annotated pairs these are the 30 of
            "wallpaper", and 6,855 are left, as in the paper. "keep" keeps them with five answers, as the first version of the project page.
        split_rule, seed: see `split_pairs`. With "released_code" a reference may be in two splits, and the release is then refused.
        progress: show a bar.

    Raises:
        ReleaseError: no or malformed run, a pair that differs between runs, an image that is missing, or a leak.
        FileExistsError: `out` exists.
    """
    if abstract not in ("drop", "keep"):
        raise ReleaseError(f'abstract {abstract!r} is unknown: take "drop" or "keep"')
    raw: dict[str, _Raw] = {}
    answers: dict[str, _Answers] = {}
    changed: dict[str, int] = {}
    for annotator, folder in runs.items():
        answers[annotator], changed[annotator] = _read_run(Path(folder), annotator, Path(images), parser, raw)
    kept = {pair_id: pair for pair_id, pair in sorted(raw.items()) if abstract == "keep" or pair.routing != "abstract"}
    if not kept:
        raise ReleaseError(f"no pair in the runs {[str(folder) for folder in runs.values()]}")

    with new_folder(out) as work:
        copied = _copy_images(kept.values(), work, progress)
        rows = _pair_rows(kept, copied, split_rule, seed)
        header = Header(
            release=release,
            title="BCS annotations, imported from runs of the published pipeline",
            license=license,
            annotators=list(runs),
            split_rule=split_rule,
            split_seed=seed,
            notes=f"Replies read by the parser {parser!r}; abstract pairs: {abstract}.",
        )
        write_release(work, header, rows, _annotations(answers, kept))
    written = read_release(out)
    missing = {name: sum(pair_id not in answers[name] for pair_id in kept) for name in runs}
    return ImportReport(written, len(raw) - len(kept), _invalid(written, runs), changed, missing)


def _annotations(answers: Mapping[str, _Answers], kept: Collection[str]) -> Iterator[AnnotationRow]:
    """The answers about the pairs that are kept, by annotator and then by pair id."""
    for annotator, of_one in answers.items():
        for pair_id, (settings, items) in sorted(of_one.items()):
            if pair_id in kept:
                yield AnnotationRow(pair_id=pair_id, annotator=annotator, prompt_version="published", settings_hash=settings, answers=items)


def _invalid(release: Release, annotators: Iterable[str]) -> dict[str, int]:
    """How many answers could not be read, by annotator."""
    counts = dict.fromkeys(annotators, 0)
    for annotation in release.annotations:
        counts[annotation.annotator] += sum(not item.valid for item in annotation.answers.values())
    return counts


def _read_run(folder: Path, annotator: str, images: Path, parser: Parser, raw: dict[str, _Raw]) -> tuple[_Answers, int]:
    """The answers of one run by pair id, and how many differ from those that the pipeline noted; its pairs are added to `raw`."""
    settings = _run_settings(folder, annotator, parser)
    answers: _Answers = {}
    differing = 0
    for where, row in _score_rows(folder):
        pair = _raw_pair(row, images, where)
        if raw.setdefault(pair.pair_id, pair) != pair:
            raise ReleaseError(
                f"{where}: pair {pair.pair_id!r} has other images or routing than in an earlier run: {pair} and {raw[pair.pair_id]}"
            )
        if pair.pair_id in answers:
            raise ReleaseError(f"{where}: pair {pair.pair_id!r} is there twice")
        items, n = _items(row, parser)
        answers[pair.pair_id] = (settings, items)
        differing += n
    return answers, differing


def _copy_images(pairs: Collection[_Raw], work: Path, progress: bool) -> dict[Path, tuple[str, str]]:
    """Each image's path below `work` and hash; see `copy_image`."""
    copied: dict[Path, tuple[str, str]] = {}
    for pair in tqdm(pairs, desc="images", disable=not progress):
        for role, path in (("references", pair.reference), ("reconstructions", pair.reconstruction)):
            if path not in copied:
                copied[path] = copy_image(path, work, role)
    return copied


def _pair_rows(kept: dict[str, _Raw], copied: dict[Path, tuple[str, str]], rule: SplitRule, seed: int) -> list[PairRow]:
    parsed = {pair_id: parse_pair_id(pair_id) for pair_id in kept}
    concepts = {pair_id: concept_group(normalise_concept(pair.concept)) for pair_id, pair in parsed.items()}
    infos = [
        PairInfo(
            pair_id,
            parsed[pair_id].method,
            parsed[pair_id].concept if rule == "released_code" else concepts[pair_id],
            copied[pair.reference][1],
            copied[pair.reconstruction][1],
        )
        for pair_id, pair in kept.items()
    ]
    split_of = split_pairs(infos, rule, seed=seed)
    return [
        PairRow.model_validate(
            {
                "pair_id": info.pair_id,
                "method": info.method,
                "subject": parsed[info.pair_id].subject,
                "concept": concepts[info.pair_id],
                "rank": parsed[info.pair_id].rank,
                "candidate": parsed[info.pair_id].candidate,
                "reference": copied[kept[info.pair_id].reference][0],
                "reconstruction": copied[kept[info.pair_id].reconstruction][0],
                "reference_sha256": info.reference_sha256,
                "reconstruction_sha256": info.reconstruction_sha256,
                "split": split_of[info.pair_id],
            }
        )
        for info in infos
    ]


def _score_rows(folder: Path) -> Iterable[tuple[str, dict[str, Any]]]:
    path = next((folder / name for name in SCORES if (folder / name).is_file()), folder / SCORES[0])
    try:
        yield from read_json_lines(path)
    except FileNotFoundError as error:
        raise ReleaseError(f"{error}; a run folder of the published pipeline holds {' or '.join(SCORES)}") from None
    except ValueError as error:
        raise ReleaseError(str(error)) from None


def _raw_pair(row: dict[str, Any], images: Path, where: str) -> _Raw:
    for field in ("pair_id", "reference_path", "generated_path"):
        if not isinstance(row.get(field), str) or not row[field]:
            raise ReleaseError(f"{where}: {field} must be a text, found {row.get(field)!r}")
    try:
        parsed = parse_pair_id(row["pair_id"])
    except ValueError as error:
        raise ReleaseError(f"{where}: {error}") from None
    if isinstance(row.get("concept"), str) and row["concept"].strip() != parsed.concept:
        raise ReleaseError(f"{where}: concept {row['concept']!r} is not that of pair_id {row['pair_id']!r}")
    reference, reconstruction = (_locate(images, row[field], f"{where}: {field}") for field in ("reference_path", "generated_path"))
    return _Raw(row["pair_id"], str(row.get("routing") or "object"), reference, reconstruction)


def _locate(images: Path, path: str, where: str) -> Path:
    parts = [part for part in PurePosixPath(path.replace("\\", "/")).parts if part not in ("/", "..", ".") and not part.endswith(":")]
    for start in range(len(parts)):
        try:
            found = inside(images, "/".join(parts[start:]))
        except ValueError:
            continue
        if found.is_file():
            return found
    raise ReleaseError(f"{where} {path!r} is not in {images}: give the folder that the images of the runs lie in")


def _items(row: dict[str, Any], parser: Parser) -> tuple[dict[str, AnswerItem], int]:
    """The answers of one pair, and how many differ from those that the pipeline noted."""
    texts, noted = (_object(row.get(field)) for field in ("raw_response", "normalized_response"))
    before = {key: value for block in ("perceptual", "semantic") for key, value in _object(noted.get(block)).items()}
    known, items, differing = set(load_questionnaire().keys), {}, 0
    for key in [*texts, *(key for key in before if key not in texts)]:
        if (name := ALIASES.get(key, key)) not in known:
            continue
        parsed = parse_answer(str(texts.get(key, "")), parser)
        items[name] = AnswerItem(answer=parsed.answer, rationale=parsed.rationale, valid=parsed.valid)  # type: ignore[arg-type]
        if isinstance(before.get(key), dict) and before[key].get("answer") != parsed.answer:
            differing += 1
    return items, differing


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _run_settings(folder: Path, annotator: str, parser: Parser) -> str:
    path = folder / "run_config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    except ValueError as error:
        raise ReleaseError(f"{path} is not JSON: {error}") from None
    return sha256_json({"annotator": annotator, "parser": parser, "run_config": config})
