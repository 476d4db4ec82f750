"""The construction of a release of edits as resumable jobs over a folder: profiles, targets, instructions, edited images.

Below the folder: ``sources.jsonl`` and ``sources/``; then ``profiles/``, ``targets/``, ``prompts/`` and ``edits/``, each with one file an item,
``settings.json`` and the log of `decodehub.core.jobs`. A file's name ends with a hash of what it was made from, so that nothing made from an old
profile, target, instruction or image is ever taken for new.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from decodehub.core.files import canonical_json, sha256_bytes, sha256_json, write_json
from decodehub.core.jobs import Report, run_job, unfinished
from decodehub.hub_datasets.eeg_editbench.construction import (
    NULL,
    RETRIES,
    Answer,
    Planned,
    ask,
    load_prompts,
    plan_edits,
    profile_stage,
    prompt_stage,
    prompt_version,
    read_targets,
    targets_stage,
)
from decodehub.hub_datasets.eeg_editbench.construction_schema import TARGETS, EditPrompt, Profile, Source, Targets
from decodehub.hub_datasets.eeg_editbench.taxonomy import load_taxonomy
from decodehub.loaders.images import encode_png

from .sources import read_sources, source_image

SETTINGS = "settings.json"
PROFILES, TARGETS_FOLDER, PROMPTS, EDITS = "profiles", "targets", "prompts", "edits"
Edit = Callable[[Image.Image, str, "EditorSettings"], Image.Image]


class ModelSettings(NamedTuple):
    """All that the answers of stages 1 to 3 depend on besides their input.

    Attributes:
        model, revision: id and commit on the Hub, or folder and the hash of its files. dtype: of the weights.
        max_new_tokens: of a reply. retries: with corrective feedback.
    """

    model: str
    revision: str
    dtype: str = "bfloat16"
    max_new_tokens: int = 1024
    retries: int = RETRIES

    @property
    def full(self) -> dict[str, Any]:
        return {**self._asdict(), "prompt_version": prompt_version(), "decoding": "greedy", "packages": _packages("torch", "transformers")}


class EditorSettings(NamedTuple):
    """All that an edited image depends on besides source and instruction; the defaults are table S4.

    Attributes:
        model, revision: as in `ModelSettings`. pipeline: class of diffusers that takes image and prompt.
        resolution: side of the edited image in pixels.
        source_resolution: "resized" gives the editor the source at `resolution`, "as_given" in its own size (the paper does not say).
        steps, guidance_scale, max_sequence_length, text_encoder_out_layers: given to the pipeline; the last two may be None.
        seed: of a generator on the CPU that is made anew for each edit. dtype: of the weights.
        cpu_offload: parts of the pipeline wait in main memory; without effect where there is no accelerator.
    """

    model: str
    revision: str
    pipeline: str = "Flux2KleinPipeline"
    resolution: int = 224
    source_resolution: str = "resized"
    steps: int = 4
    guidance_scale: float = 1.0
    seed: int = 0
    max_sequence_length: int | None = 512
    text_encoder_out_layers: tuple[int, ...] | None = (9, 18, 27)
    dtype: str = "bfloat16"
    cpu_offload: bool = True

    @property
    def full(self) -> dict[str, Any]:
        layers = self.text_encoder_out_layers
        return {
            **self._asdict(),
            "text_encoder_out_layers": None if layers is None else list(layers),
            "packages": _packages("torch", "transformers", "diffusers"),
        }


class Work(NamedTuple):
    """The items of a stage by file name, and why others cannot be made yet, by name of the item."""

    items: dict[str, Any]
    missing: dict[str, str]


class Candidate(NamedTuple):
    """An edited image as it goes to review; `family` is ``null`` for the null edit of a source, which has no planned edit."""

    edit_id: str
    source: Source
    family: str
    subtype: str | None
    target_concept: str | None
    instruction: str
    image: str
    sha256: str


# Stages 1 to 3 ------------------------------------------------------------------------------------------------------------------------------


def profile_work(out: Path) -> Work:
    """Stage 1: one item a source."""
    return Work({_file(s.concept, [s.sha256]): s for s in read_sources(out)}, {})


def targets_work(out: Path) -> Work:
    """Stage 2: one item a source and family that its profile does not reject."""
    profiles, missing = read_profiles(out)
    concepts = [source.concept for source in read_sources(out)]
    items = {}
    for source, profile in profiles:
        for family in load_taxonomy().family_names:
            others = concepts if family == "identity" else []
            if targets_stage(source, profile, family, others) is not None:  # type: ignore[arg-type]  # a name of the taxonomy
                items[_file(f"{source.concept}-{family}", [source.words, profile.model_dump(), others])] = (source, profile, family, others)
    return Work(items, missing)


def prompts_work(out: Path) -> Work:
    """Stage 3: one item a target."""
    planned, missing = read_plan(out)
    return Work({_prompt_file(edit, profile): (edit, profile) for edit, profile in planned}, missing)


def make_profile(out: Path, answer: Answer, retries: int) -> Callable[[Source], bytes]:
    """The work of an item of stage 1."""
    return lambda source: _answer(answer, profile_stage(source), source_image(out, source), retries)


def make_targets(answer: Answer, retries: int) -> Callable[[Any], bytes]:
    """The work of an item of stage 2."""
    return lambda item: _answer(answer, targets_stage(*item), None, retries)


def make_prompt(answer: Answer, retries: int) -> Callable[[tuple[Planned, Profile]], bytes]:
    """The work of an item of stage 3."""
    return lambda item: _answer(answer, prompt_stage(item[0].source, item[1], item[0].target), None, retries)


def read_profiles(out: Path) -> tuple[list[tuple[Source, Profile]], dict[str, str]]:
    """The profiles that are there, and the sources without one."""
    work = profile_work(out)
    there, missing = _read(out / PROFILES, work.items, "profile")
    return [(work.items[file], Profile.model_validate(value)) for file, value in there.items()], missing


def read_plan(out: Path) -> tuple[list[tuple[Planned, Profile]], dict[str, str]]:
    """The planned edits in the order of a release, each with the profile of its source; and what is missing before it is complete."""
    work = targets_work(out)
    there, missing = _read(out / TARGETS_FOLDER, work.items, "targets")
    by_source: dict[str, tuple[Source, Profile, dict[str, Targets]]] = {}
    for file, value in there.items():
        source, profile, family, _ = work.items[file]
        by_source.setdefault(source.concept, (source, profile, {}))[2][family] = read_targets(value, family)
    planned = [(edit, profile) for source, profile, targets in by_source.values() for edit in plan_edits(source, targets)]
    return planned, {**work.missing, **missing}


def _answer(answer: Answer, stage: Any, image: Any, retries: int) -> bytes:
    asked = ask(answer, stage, image, retries=retries)
    return (canonical_json({"value": asked.value.model_dump(), "replies": list(asked.replies)}) + "\n").encode()


# Stage 4 ------------------------------------------------------------------------------------------------------------------------------------


def edits_work(out: Path, *, nulls: bool) -> Work:
    """Stage 4: one item an instruction, and one null edit a source (section S5.2)."""
    candidates, missing = _candidates(out)
    return Work({file: item for file, item in candidates.items() if nulls or item.family != NULL}, missing)


def make_edit(out: Path, edit: Edit, settings: EditorSettings) -> Callable[[Candidate], bytes]:
    """The work of an item of stage 4."""
    side = settings.resolution

    def work(item: Candidate) -> bytes:
        image = source_image(out, item.source)
        if settings.source_resolution == "resized" and image.size != (side, side):
            image = image.resize((side, side), Image.Resampling.LANCZOS)
        made = edit(image, item.instruction, settings)
        if made.size != (side, side):
            raise ValueError(f"the editor gave {made.width} x {made.height} pixels, expected {side} x {side}")
        return encode_png(np.asarray(made.convert("RGB")))

    return work


def read_edits(out: Path) -> tuple[list[Candidate], dict[str, str]]:
    """The edited images that are there, in the order of a release, null edits last; and what is missing.

    Null edits are missing only where some are there.
    """
    items, missing = _candidates(out)
    there = _present(out / EDITS, items)
    nulls = any(item.family == NULL for item in there.values())
    missing |= {
        item.edit_id: "no edited image: run 'decodehub construct edit'"
        for file, item in items.items()
        if file not in there and (nulls or item.family != NULL)
    }
    found = [item._replace(image=f"{EDITS}/{file}", sha256=sha256_bytes((out / EDITS / file).read_bytes())) for file, item in there.items()]
    return sorted(found, key=lambda item: item.family == NULL), missing


def _candidates(out: Path) -> tuple[dict[str, Candidate], dict[str, str]]:
    planned, missing = read_plan(out)
    files = {_prompt_file(edit, profile): edit for edit, profile in planned}
    there, no_prompt = _read(out / PROMPTS, files, "instruction")
    made = []
    for file, value in there.items():
        edit = files[file]
        target = getattr(edit.target, "concept", None)
        text = EditPrompt.model_validate(value).instruction
        made.append(Candidate(edit.edit_id, edit.source, edit.family, edit.subtype, target, text, "", ""))
    for source in read_sources(out):
        text = load_prompts()["null_instruction"]
        made.append(Candidate(f"{source.concept}-{NULL}", source, NULL, None, None, text, "", ""))
    return {_file(c.edit_id, [c.source.sha256, c.instruction], "png"): c for c in made}, {**missing, **no_prompt}


def funnel(out: Path) -> dict[str, dict[str, int]]:
    """By family: the decisions of the profiles, sources without a target, targets, and edited images."""
    profiles, _ = read_profiles(out)
    planned, _ = read_plan(out)
    edits, _ = read_edits(out)
    rows = {}
    for family in load_taxonomy().family_names:
        decisions = Counter(profile.of(family).decision for _, profile in profiles)
        rows[family] = {name: decisions[name] for name in ("accept", "borderline", "reject")} | {
            "targets": sum(edit.family == family for edit, _ in planned),
            "edits": sum(item.family == family for item in edits),
        }
    return rows


# Jobs ---------------------------------------------------------------------------------------------------------------------------------------


def run_stage(
    folder: Path,
    work: Work,
    make: Callable[[Any], bytes],
    settings: Mapping[str, Any],
    label: str,
    *,
    rank: int = 0,
    world: int = 1,
    progress: bool = True,
) -> Report:
    """Make what is missing of a stage; items whose input is missing are among the failures.

    Args:
        folder: of the stage. work: its items. make: the bytes of an item. settings: all that the bytes depend on besides the item.
        label: of the progress bar. rank, world, progress: see `run_job`.
    """
    if rank == 0:
        write_json(folder / SETTINGS, settings)
    report = run_job(work.items, make, folder, sha256_json(settings), rank=rank, world=world, progress=progress, label=label)
    if rank == 0:
        report.failed.update(work.missing)
    return report


def is_finished(folder: Path, work: Work, settings: Mapping[str, Any]) -> bool:
    """Whether nothing is left for the model of a stage, so that it need not be loaded."""
    return not unfinished(dict.fromkeys(work.items, sha256_json(settings)), folder)


def read_settings(folder: Path) -> dict[str, Any] | None:
    """The settings that a stage was last run with; None where it was not run."""
    path = folder / SETTINGS
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _present(folder: Path, items: Mapping[str, Any]) -> dict[str, Any]:
    settings = read_settings(folder)
    if settings is None:
        return {}
    lacking = set(unfinished(dict.fromkeys(items, sha256_json(settings)), folder))
    return {file: item for file, item in items.items() if file not in lacking}


def _read(folder: Path, items: Mapping[str, Any], what: str) -> tuple[dict[str, Any], dict[str, str]]:
    there = {file: json.loads((folder / file).read_text(encoding="utf-8"))["value"] for file in _present(folder, items)}
    verb = folder.name.removesuffix("s") if folder.name == PROFILES else folder.name
    missing = {file.rpartition("_")[0]: f"no {what}: run 'decodehub construct {verb}'" for file in items if file not in there}
    return there, missing


def _prompt_file(edit: Planned, profile: Profile) -> str:
    return _file(edit.edit_id, [edit.source.words, profile.model_dump(), edit.target.model_dump()])


def _file(name: str, made_from: list[Any], ending: str = "json") -> str:
    return f"{name}_{sha256_json(made_from).removeprefix('sha256:')[:16]}.{ending}"


def _packages(*names: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


assert set(TARGETS) == set(load_taxonomy().family_names)
