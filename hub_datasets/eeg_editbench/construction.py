"""The construction of a release of edits, stage by stage, as data and pure functions (section S2.2 of the paper).

Three stages ask a vision-language model: a scene profile with the editability of each family (`profile_stage`); the edit targets of each
family that is not rejected (`targets_stage`); one self-contained editing instruction a target (`prompt_stage`). Each `Stage` is a
conversation and a check of its reply; `ask` holds the conversation, sending the faults of a reply back as feedback. A fourth stage edits the
images. No model is loaded here: any callable that maps messages and an image to text will do. The jobs are in `scripts/construct.py`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Template
from typing import Any, Generic, NamedTuple, TypeVar, cast

import annotated_types
import yaml
from pydantic import BaseModel, ValidationError

from decodehub.core.files import canonical_json

from .construction_schema import (
    TARGETS,
    AttributeTarget,
    EditPrompt,
    IdentityTarget,
    Profile,
    Source,
    Target,
    Targets,
    concept_words,
    family_of,
    plain,
)
from .manifest import EditRow, Family
from .taxonomy import load_taxonomy

RETRIES = 2  # section S2.2
NULL = "null"  # family of the null edit of a source, which is no edit of the taxonomy
Message = dict[str, str]  # "role" (system, user, assistant) and "content"
Answer = Callable[[Sequence[Message], Any], str]  # messages and a PIL image, or None for a text-only stage

_PROMPTS = Path(__file__).parent / "construction_prompts.yaml"


@cache
def load_prompts() -> dict[str, Any]:
    """The prompts that ship with the package."""
    return cast("dict[str, Any]", yaml.safe_load(_PROMPTS.read_text(encoding="utf-8")))


def prompt_version() -> str:
    """Version of the prompts and hash of their file: enters the settings of every answer."""
    return f"construction-v{load_prompts()['version']}-{hashlib.sha256(_PROMPTS.read_bytes()).hexdigest()[:12]}"


def instruction_limit() -> int:
    """Longest instruction in characters: what a row of a release may hold, 1,500 at most (well below 512 tokens of the editor)."""
    held = [m.max_length for m in EditRow.model_fields["instruction"].metadata if isinstance(m, annotated_types.MaxLen)]
    return min(1500, *held)


# Stages -------------------------------------------------------------------------------------------------------------------------------------

Value = TypeVar("Value", bound=BaseModel)


@dataclass(frozen=True)
class Stage(Generic[Value]):
    """One question to the model: its messages, and the check that makes a value of the reply.

    Attributes:
        messages: to start with. check: raises `ReplyError` with all faults in words for the model.
        sees_image: the source image belongs to the question (stage 1 alone).
    """

    messages: tuple[Message, ...]
    check: Callable[[str], Value]
    sees_image: bool = False


class ReplyError(ValueError):
    """A reply that cannot be used; `problems` go back to the model."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True)
class Asked(Generic[Value]):
    """A valid value and every reply up to it."""

    value: Value
    replies: tuple[str, ...]


def ask(answer: Answer, stage: Stage[Value], image: Any = None, *, retries: int = RETRIES) -> Asked[Value]:
    """Hold the conversation of a stage until a reply is valid.

    Args:
        answer: the model.
        stage: what is asked.
        image: the source image for a stage that sees it.
        retries: how often an invalid reply is answered with feedback; decoding is deterministic, so asking the same again would not help.

    Raises:
        ReplyError: no reply was valid; the message has the faults of the last one and how it begins.
    """
    messages, replies = list(stage.messages), []
    for left in range(retries, -1, -1):
        reply = answer(messages, image if stage.sees_image else None)
        replies.append(reply)
        try:
            return Asked(stage.check(reply), tuple(replies))
        except ReplyError as error:
            if not left:
                start = " ".join(reply.split())[:160]
                raise ReplyError([f"no valid reply in {len(replies)} tries; of the last: {error} (it begins {start!r})"]) from None
            feedback = Template(load_prompts()["feedback"]).substitute(problems="\n".join(f"- {p}" for p in error.problems))
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": feedback}]
    raise AssertionError("unreachable")


def profile_stage(source: Source) -> Stage[Profile]:
    """Stage 1: describe the source image and judge each family of edits."""
    preserves = {f"{family.name}_preserves": family.preserves for family in load_taxonomy().families}
    user = Template(load_prompts()["profile"]).substitute(words=source.words, **preserves)
    return Stage(_messages(user), lambda reply: parse_reply(reply, Profile), sees_image=True)


def targets_stage(source: Source, profile: Profile, family: Family, candidates: Sequence[str] = ()) -> Stage[Targets] | None:
    """Stage 2, one branch: the targets of a family; None where the profile rejects the family.

    Args:
        source, profile: of stage 1.
        family: the branch.
        candidates: for identity, the concepts to choose from; the source's own is left out.
    """
    verdict = profile.of(family)
    if verdict.decision == "reject":
        return None
    prompts = load_prompts()
    others = [concept for concept in candidates if concept != source.concept]
    if family == "identity" and not others:
        return None
    text = Template(prompts["targets"][family]).substitute(
        words=source.words,
        profile=_shown(profile),
        subtypes="\n".join(f"- {s.name}: {s.meaning}" for s in _family(family).subtypes),
        per_subtype=prompts["limits"].get(f"{family}_per_subtype", 1),
        most=prompts["limits"][family],
        candidates=", ".join(others),
    )
    if verdict.decision == "borderline":
        text += Template(prompts["borderline"]).substitute(reason=verdict.reason)
    return Stage(_messages(text), lambda reply: _check_targets(reply, family, others))


def prompt_stage(source: Source, profile: Profile, target: Target) -> Stage[EditPrompt]:
    """Stage 3: the instruction for one target."""
    family = _family(family_of(target))
    named = f' ("{concept_words(target.concept)}" must be named)' if isinstance(target, IdentityTarget) else ""
    user = Template(load_prompts()["prompt"]).substitute(
        words=source.words,
        profile=_shown(profile),
        family=family.title,
        changes=family.changes,
        preserves=family.preserves,
        target=_target_words(target),
        must_name=named,
        limit=instruction_limit(),
    )
    return Stage(_messages(user), lambda reply: _check_prompt(reply, target))


class Planned(NamedTuple):
    """A target with the id that its edit will have: ``CONCEPT-FAMILY-SUBTYPE-NUMBER``."""

    edit_id: str
    source: Source
    family: str
    subtype: str | None
    target: Target


def plan_edits(source: Source, targets: Mapping[str, Targets]) -> list[Planned]:
    """The edits of one source, in the order of the taxonomy; numbers count within a subtype."""
    planned, counts = [], dict[tuple[str, str | None], int]()
    for family in load_taxonomy().families:
        found = targets[family.name].targets if family.name in targets else []
        order = {name: i for i, name in enumerate(load_taxonomy().subtypes_of(family.name))}
        for target in sorted(found, key=lambda t: order.get(getattr(t, "subtype", ""), 0)):
            subtype = getattr(target, "subtype", None)
            number = counts[family.name, subtype] = counts.get((family.name, subtype), 0) + 1
            edit_id = "-".join(filter(None, (source.concept, family.name, subtype, str(number))))
            planned.append(Planned(edit_id, source, family.name, subtype, target))
    return planned


# Checks -------------------------------------------------------------------------------------------------------------------------------------


def parse_reply(reply: str, model: type[Value]) -> Value:
    """A reply as a value: one JSON object, alone or in one Markdown fence, with exactly the keys of the model.

    Raises:
        ReplyError: not that; every fault is named with its place.
    """
    text = reply.strip()
    if fenced := re.fullmatch(r"```(?:json)?\s*\n(.*)\n\s*```", text, re.DOTALL):
        text = fenced[1]
    try:
        raw = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ReplyError([f"it is not one JSON object alone ({error})"]) from None
    if not isinstance(raw, dict):
        raise ReplyError([f"a JSON object is expected, found {type(raw).__name__}"])
    return _validated(raw, model)


def read_targets(raw: Any, family: str) -> Targets:
    """Targets from their stored form, without the constraints on choice.

    Raises:
        ReplyError: keys or types do not fit.
    """
    loose = _validated(raw, Targets)
    problems: list[str] = []
    found = []
    for i, item in enumerate(loose.targets):
        try:
            found.append(_validated(item, TARGETS[family], f"targets.{i}."))
        except ReplyError as error:
            problems += error.problems
    if problems:
        raise ReplyError(problems)
    return loose.model_copy(update={"targets": found})


def _check_targets(reply: str, family: str, candidates: Sequence[str]) -> Targets:
    value = read_targets(parse_reply(reply, Targets).model_dump(), family)
    problems = [] if value.targets or value.left_out else ["targets is empty: say in left_out why"]
    limits, allowed = load_prompts()["limits"], set(candidates)
    if len(value.targets) > limits[family]:
        problems.append(f"there are {len(value.targets)} targets, at most {limits[family]} are allowed")
    subtypes = [t.subtype for t in value.targets if hasattr(t, "subtype")]
    for name in sorted(set(subtypes)):
        if subtypes.count(name) > (most := limits[f"{family}_per_subtype"]):
            problems.append(f"{name} has {subtypes.count(name)} targets, at most {most} are allowed")
    seen: set[str] = set()
    for i, target in enumerate(value.targets):
        key = plain(
            target.concept
            if isinstance(target, IdentityTarget)
            else f"{target.subtype} {target.change_to}"
            if isinstance(target, AttributeTarget)
            else str(target)
        )
        if key in seen:
            problems.append(f"targets.{i} repeats another target")
        seen.add(key)
        if isinstance(target, IdentityTarget) and target.concept not in allowed:
            problems.append(f"targets.{i}.concept {target.concept!r} is not in the list: take a name from it, spelled exactly so")
    if problems:
        raise ReplyError(problems)
    return value


# What only makes sense to someone who has read the question.
_OUTSIDE = re.compile(
    r"(?i)\bscene profile\b|\bthe profile\b|\bas (?:described|specified|listed|stated|mentioned)\b|\bedit target\b|\bJSON\b"
)


def _check_prompt(reply: str, target: Target) -> EditPrompt:
    value, problems = parse_reply(reply, EditPrompt), []
    text = value.instruction
    if len(text) > (limit := instruction_limit()):
        problems.append(f"change and preserve have {len(text)} characters together, at most {limit} are allowed")
    if found := _OUTSIDE.search(text):
        problems.append(f"{found[0]!r} refers to something that the editing model does not see: say it in full")
    if isinstance(target, IdentityTarget) and (words := concept_words(target.concept)).lower() not in plain(value.change):
        problems.append(f"change does not name {words!r}")
    if problems:
        raise ReplyError(problems)
    return value


def _validated(raw: Any, model: type[Value], where: str = "") -> Value:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise ReplyError(
            [f"{where}{'.'.join(map(str, e['loc'])) or 'object'}: {e['msg'].removeprefix('Value error, ')}" for e in error.errors()]
        ) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(keys := [key for key, _ in pairs]) != len(set(keys)):
        raise ValueError(f"a key is there twice in {keys}")
    return dict(pairs)


def _messages(user: str) -> tuple[Message, ...]:
    return {"role": "system", "content": load_prompts()["system"]}, {"role": "user", "content": user}


def _shown(profile: Profile) -> str:
    """What later stages are told of the profile: all but the decisions on other families."""
    return canonical_json(profile.model_dump(exclude={"editability"}), indent=1)


def _target_words(target: Target) -> str:
    fields = target.model_dump()
    if isinstance(target, IdentityTarget):
        fields["concept"] = concept_words(target.concept)
    return canonical_json(fields, indent=1)


def _family(name: str) -> Any:
    return next(family for family in load_taxonomy().families if family.name == name)
