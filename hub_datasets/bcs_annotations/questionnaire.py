"""The questionnaire of BCS, read from ``questionnaire.yaml``: twelve questions, three answers, two sets of prompts with a version each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

import yaml

from decodehub.core.files import sha256_json

PromptSet = Literal["short", "long"]
PROMPT_SETS: tuple[PromptSet, ...] = get_args(PromptSet)


@dataclass(frozen=True)
class Question:
    """One question: `block` is "perceptual" or "semantic"; `abstract` says that it is also asked of images without an object."""

    key: str
    block: str
    title: str
    short: str
    long: str
    abstract: bool = False


@dataclass(frozen=True)
class Questionnaire:
    """All of ``questionnaire.yaml``; `answers` maps each answer to its value (equation 7)."""

    version: int
    answers: dict[str, float]
    system: dict[str, str]
    format: str
    questions: tuple[Question, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The twelve keys, P1 to P6 and S1 to S6: the order of every array of answers."""
        return tuple(question.key for question in self.questions)

    def block(self, name: str) -> tuple[int, ...]:
        """Positions of the questions of a block, "perceptual" or "semantic".

        Raises:
            KeyError: there is no such block.
        """
        positions = tuple(i for i, question in enumerate(self.questions) if question.block == name)
        if not positions:
            raise KeyError(f"the questionnaire has no block {name!r}; it has perceptual and semantic")
        return positions

    def prompt(self, key: str, prompts: PromptSet) -> tuple[str, str]:
        """What a VLM is told: the system text, and the text that follows image 1 (reference) and image 2 (reconstruction).

        Args:
            key: of a question.
            prompts: "short" (as in the released code: a sentence a question) or "long" (as in appendix B: what to accept and to mark down).

        Raises:
            KeyError: there is no such question or set of prompts.
        """
        question = {q.key: q for q in self.questions}[key]
        return self.system[prompts], f"{getattr(question, prompts)}\n{self.format}"

    def prompt_version(self, prompts: PromptSet) -> str:
        """Name of a set of prompts with the hash of every text in it, e.g. ``"short-v1-0123456789ab"``."""
        texts = [[question.key, *self.prompt(question.key, prompts)] for question in self.questions]
        digest = sha256_json([self.answers, texts]).removeprefix("sha256:")[:12]
        return f"{prompts}-v{self.version}-{digest}"


@cache
def load_questionnaire() -> Questionnaire:
    """Read the questionnaire that ships with the package."""
    raw = yaml.safe_load((Path(__file__).parent / "questionnaire.yaml").read_text(encoding="utf-8"))
    return Questionnaire(**{**raw, "questions": tuple(Question(**question) for question in raw["questions"])})
