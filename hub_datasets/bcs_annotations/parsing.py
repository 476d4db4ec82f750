"""From the text that a VLM wrote to one answer: a strict parser, and the one of the released code by name."""

from __future__ import annotations

import json
import re
from typing import Any, Literal, NamedTuple

from decodehub.core.files import parse_json

from .questionnaire import load_questionnaire

Parser = Literal["strict", "lenient", "released_code"]
VERSION = 2  # of the parsers; enters the settings of answers
REASON_KEYS = ("reasoning", "reason", "rationale")
_THINK = re.compile(r"<(think|thinking)>.*?</\1>", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"^```[A-Za-z]*\s*\n?(.*?)\n?\s*```$", re.DOTALL)
_CHAT_END = re.compile(r"<\|im_end\|>|<\|endoftext\|>|<\|end\|>|<\|eot_id\|>|</s>")
_RELEASED_ORDER = ("yes", "somewhat", "no")
MAX_RATIONALE = 300


class ParsedAnswer(NamedTuple):
    """What was read: `answer` is "no", "somewhat", "yes" or None; `problem` says why a text is not valid, and is None if it is."""

    answer: str | None
    rationale: str | None
    problem: str | None

    @property
    def valid(self) -> bool:
        return self.problem is None


def parse_answer(text: str, parser: Parser = "strict", *, require_rationale: bool = True) -> ParsedAnswer:
    """Read the reply to one question.

    Args:
        text: what the model wrote.
        parser: "strict" takes one JSON object whose ``answer`` is exactly one of the three words, with no key twice, and nothing else.
            "lenient" also takes it within a code fence, with text around it or after the end of the turn, if there is just one. For both, what
            stands between think tags is neither an answer nor a failure, and is reason enough. "released_code" does as the published pipeline: it also takes JSON within other text, and the first of yes,
            somewhat, no (in this order) that occurs as a word. A model that only repeats the instruction ``yes|somewhat|no`` is
            invalid for the first and "yes" for the second; therefore the first is the default.
        require_rationale: whether an answer without a reason is invalid (the default of the released code).

    Raises:
        ValueError: there is no such parser.
    """
    thought = False
    if parser in ("strict", "lenient"):
        text, thought = without_thinking(text)
        if re.match(r"\s*<think(?:ing)?>", text, re.IGNORECASE):
            return ParsedAnswer(None, None, "the reply ends while it is thinking: allow longer replies")
        found = _strict(text if parser == "strict" else _object_within(text))
    elif parser == "released_code":
        found = _released_code(text)
    else:
        raise ValueError(f'parser {parser!r} is unknown: take "strict", "lenient" or "released_code"')
    if found.valid and require_rationale and not found.rationale and not thought:
        return found._replace(answer=None, problem="no rationale")
    return found


def without_thinking(text: str) -> tuple[str, bool]:
    """A reply without what stands between think tags, and whether it thought.

    A model whose prompt opens the tag writes only its end; a thought without an end has taken all the room there was.
    """
    rest = _THINK.sub("", text)
    rest = re.split(r"</think(?:ing)?>", rest, flags=re.IGNORECASE)[-1]
    return rest, rest != text


def _object_within(text: str) -> str:
    """The JSON object in a fence or in other text."""
    text = _CHAT_END.split(text.strip(), maxsplit=1)[0].strip()
    if match := _FENCE.match(text):
        text = match[1]
    return text[text.index("{") : text.rindex("}") + 1] if "{" in text and "}" in text[text.index("{") :] else text


def _strict(text: str) -> ParsedAnswer:
    try:
        raw = parse_json(text.strip())
    except json.JSONDecodeError:
        return ParsedAnswer(None, None, "not one JSON object")
    except ValueError as error:
        return ParsedAnswer(None, None, f"not one JSON object: {error}")
    if not isinstance(raw, dict):
        return ParsedAnswer(None, None, "not one JSON object")
    rationale = next((_clean(raw[key]) for key in REASON_KEYS if isinstance(raw.get(key), str)), None)
    answer = raw.get("answer")
    label = answer.strip().lower() if isinstance(answer, str) else None
    if label not in load_questionnaire().answers:
        return ParsedAnswer(None, rationale, f"answer is {answer!r}, expected yes, somewhat or no"[:200])
    return ParsedAnswer(label, rationale, None)


def _released_code(text: str) -> ParsedAnswer:
    text = _CHAT_END.split(text.strip(), maxsplit=1)[0].strip()
    text = re.sub(r"```[A-Za-z]*", "", text).strip()
    raw = _loads(text)
    if raw is None and "{" in text and "}" in text:
        raw = _loads(text[text.index("{") : text.rindex("}") + 1])
    if raw is not None:
        answer = str(raw.get("answer", "")).strip().lower()
        label = answer if answer in _RELEASED_ORDER else _first_label(answer)
        reasons = {re.sub(r"[^a-z]", "", key.lower()): value for key, value in raw.items()}
        rationale = next((_clean(str(reasons[key])) for key in REASON_KEYS if reasons.get(key)), None)
    else:
        label = _first_label(text)
        match = re.search(r"(?:reasoning|reason|rationale|because)\W+(.+)", text, re.IGNORECASE | re.DOTALL)
        rationale = _clean(match[1]) if match else None
    return ParsedAnswer(label, rationale, None if label else "no answer found")


def _loads(text: str) -> dict[str, Any] | None:
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return raw if isinstance(raw, dict) else None


def _first_label(text: str) -> str | None:
    return next((label for label in _RELEASED_ORDER if re.search(rf"\b{label}\b", text, re.IGNORECASE)), None)


def _clean(text: str) -> str | None:
    return " ".join(text.split()).rstrip(")").strip()[:MAX_RATIONALE] or None
