"""Annotation of reconstruction pairs by a local vision-language model: one file a pair, resumable, greedy, strict."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from decodehub.core.files import canonical_json, read_json, sha256_bytes, sha256_json, write_json
from decodehub.core.jobs import Report, run_job
from decodehub.hub_datasets.bcs_annotations.parsing import VERSION, Parser, parse_answer
from decodehub.hub_datasets.bcs_annotations.questionnaire import PromptSet, load_questionnaire
from decodehub.hub_datasets.bcs_annotations.release import AnnotationRow, AnswerItem, Release, read_pair_image
from decodehub.loaders.images import decode_image

from .vlm import Chat, load_chats

SETTINGS = "settings.json"
REMINDER = "Your last reply could not be read ({problem}). Reply again with the JSON object alone."


class Request(NamedTuple):
    """What the model is asked: the two images are the reference and the reconstruction, in this order."""

    system: str
    user: str
    reference: Any
    reconstruction: Any


Generate = Callable[[Sequence[Request]], list[str]]


class Settings(NamedTuple):
    """All that an answer depends on besides the images; its hash is kept with every answer.

    Attributes:
        annotator: the name under which the answers are kept.
        model, revision: id and commit, or "local folder" and the hash of its files.
        prompts: "short" or "long". dtype: of the weights. max_new_tokens: of a reply. batch_size: questions at once.
        retries: how often a reply that is not valid is asked for again; decoding is greedy, so the request then says what was wrong.
        parser: how replies are read, "strict" or "lenient" (see `parse_answer`).
    """

    annotator: str
    model: str
    revision: str
    prompts: PromptSet = "short"
    dtype: str = "bfloat16"
    max_new_tokens: int = 128
    batch_size: int = 4
    retries: int = 2
    parser: Parser = "strict"

    @property
    def full(self) -> dict[str, Any]:
        return {
            **self._asdict(),
            "prompt_version": load_questionnaire().prompt_version(self.prompts),
            "decoding": "greedy",
            "parser": f"{self.parser}-{VERSION}",
            "reminder": REMINDER,
            "packages": {name: version(name) for name in ("torch", "transformers")},
        }

    @property
    def hash(self) -> str:
        return sha256_json(self.full)


def annotate(
    release: Release,
    generate: Generate,
    settings: Settings,
    out: Path,
    *,
    rank: int = 0,
    world: int = 1,
    progress: bool = True,
    overwrite: bool = False,
) -> Report:
    """Ask a model the twelve questions about every pair of a release that it was not yet asked.

    Args:
        release: whose pairs are annotated.
        generate: the model; a list of requests to as many texts.
        settings: see `Settings`.
        out: folder of the answers, one JSON file a pair.
        rank, world, progress: see `run_job`.
        overwrite: replace answers that `out` holds under other settings.

    Raises:
        ValueError: `out` holds answers under other settings.
    """
    check_settings(out, settings, overwrite=overwrite)
    digest = settings.hash

    def work(pair: Any) -> bytes:
        images = []
        for file, expected in ((pair.reference, pair.reference_sha256), (pair.reconstruction, pair.reconstruction_sha256)):
            data = read_pair_image(release, file, expected, f"pair {pair.pair_id!r}")
            images.append(decode_image(data, name=file))
        answers = ask(generate, settings, *images)
        row = {
            "pair_id": pair.pair_id,
            "settings": digest,
            "images": [pair.reference_sha256, pair.reconstruction_sha256],
            "answers": answers,
        }
        return (canonical_json(row) + "\n").encode()

    if rank == 0:
        write_json(out / SETTINGS, settings.full)
    # The images are in the name, so that a pair whose image has changed is asked again.
    items = {_file(pair): pair for pair in release.pairs}
    return run_job(items, work, out, digest, rank=rank, world=world, progress=progress, label=f"{settings.annotator}: pairs")


def check_settings(out: Path, settings: Settings, *, overwrite: bool = False) -> None:
    """Refuse a folder of answers that were made under other settings, which a run would replace.

    Raises:
        ValueError: which settings differ, and the flag.
    """
    if overwrite or not (out / SETTINGS).is_file():
        return
    before, now = read_json(out / SETTINGS), json.loads(canonical_json(settings.full))
    if before != now:
        before = before if isinstance(before, dict) else {}
        differ = [f"{key} {before.get(key)!r}, now {now.get(key)!r}" for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
        raise ValueError(
            f"{out} holds answers made under other settings ({'; '.join(differ)}): name another --out, or replace them with --overwrite"
        )


def validity(folder: Path, release: Release, settings: Settings) -> dict[str, tuple[int, int]]:
    """(valid answers, answers) by question, of the answers that there are under these settings."""
    counts = dict.fromkeys(load_questionnaire().keys, (0, 0))
    for pair in release.pairs:
        file = folder / _file(pair)
        raw = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if raw.get("settings") == settings.hash:
            for key, item in raw["answers"].items():
                counts[key] = counts[key][0] + bool(item["valid"]), counts[key][1] + 1
    return counts


def ask(generate: Generate, settings: Settings, reference: Any, reconstruction: Any) -> dict[str, dict[str, Any]]:
    """Twelve answers on one pair, by question: answer, rationale, valid, problem, and of every try the reply and its problem.

    Raises:
        ValueError: the model gives another number of texts than it was asked for.
    """
    questionnaire = load_questionnaire()
    found: dict[str, dict[str, Any]] = {key: {"replies": [], "problems": []} for key in questionnaire.keys}
    waiting = list(questionnaire.keys)
    for _ in range(settings.retries + 1):
        for start in range(0, len(waiting), settings.batch_size):
            keys = waiting[start : start + settings.batch_size]
            requests = []
            for key in keys:
                system, user = questionnaire.prompt(key, settings.prompts)
                if found[key]["replies"]:
                    user = f"{user}\n{REMINDER.format(problem=found[key]['problem'])}"
                requests.append(Request(system, user, reference, reconstruction))
            replies = generate(requests)
            if len(replies) != len(keys):
                raise ValueError(f"the model gave {len(replies)} replies to {len(keys)} requests")
            for key, reply in zip(keys, replies):
                parsed = parse_answer(reply, settings.parser)
                found[key].update(answer=parsed.answer, rationale=parsed.rationale, valid=parsed.valid, problem=parsed.problem)
                found[key]["replies"].append(reply)
                found[key]["problems"].append(parsed.problem)
        waiting = [key for key in waiting if not found[key]["valid"]]
        if not waiting:
            break
    return found


def read_answers(folder: Path, release: Release) -> tuple[str, list[AnnotationRow]]:
    """The answers in a folder of `annotate`, as rows of a release; gives the annotator and its rows.

    Raises:
        ValueError: no settings, a pair of the release without an answer, or a damaged file.
    """
    path = folder / SETTINGS
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        name, prompts, digest = settings["annotator"], settings["prompt_version"], sha256_json(settings)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"{path} does not say how the answers were made ({error}): give a folder of 'decodehub annotations annotate'"
        ) from None
    rows = []
    for pair in release.pairs:
        file = folder / _file(pair)
        raw = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if raw.get("settings") != digest:
            raise ValueError(
                f"{folder}: no answers on pair {pair.pair_id!r} under the settings in {SETTINGS}: run 'annotate' again to finish it"
            )
        answers = {
            key: AnswerItem(answer=item["answer"], rationale=item["rationale"], valid=item["valid"]) for key, item in raw["answers"].items()
        }
        rows.append(AnnotationRow(pair_id=pair.pair_id, annotator=name, prompt_version=prompts, settings_hash=digest, answers=answers))
    return name, rows


def _file(pair: Any) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]", "_", pair.pair_id)[:120]
    digest = sha256_bytes(canonical_json([pair.pair_id, pair.reference_sha256, pair.reconstruction_sha256]).encode())
    return f"{digest.removeprefix('sha256:')[:16]}_{name}.json"


def load_vlm(settings: Settings, device: str) -> Generate:
    """A vision-language model of transformers (image-text-to-text), without remote code, decoding greedily.

    Args:
        settings: model, revision (of a Hub id), dtype, max_new_tokens.
        device: such as "cuda" or "cpu".
    """
    chats = load_chats(settings.model, settings.revision, settings.dtype, settings.max_new_tokens, device)

    def generate(requests: Sequence[Request]) -> list[str]:
        return chats([_chat(request) for request in requests])

    return generate


def _chat(request: Request) -> Chat:
    images = [{"type": "image", "image": image} for image in (request.reference, request.reconstruction)]
    return [
        {"role": "system", "content": [{"type": "text", "text": request.system}]},
        {"role": "user", "content": [*images, {"type": "text", "text": request.user}]},
    ]
