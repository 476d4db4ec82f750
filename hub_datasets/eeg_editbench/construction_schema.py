"""What the stages of a construction give: sources, scene profiles, targets, instructions, as strict types."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .manifest import Category

Decision = Literal["accept", "borderline", "reject"]
# A concept is part of file names and edit ids here.
CONCEPT_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"

_Text = Annotated[str, Field(min_length=1, max_length=600)]
_Short = Annotated[str, Field(min_length=1, max_length=200)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, str_strip_whitespace=True)


class Attributes(_Model):
    """The five visible properties of the main object as they are."""

    color: _Text
    material: _Text
    texture: _Text
    shape: _Text
    state: _Text


class Layout(_Model):
    """Spatial layout of the scene."""

    viewpoint: _Text
    placement: _Text
    support: _Text


class Background(_Model):
    """Surroundings of the main object."""

    setting: _Text
    other_objects: list[_Short]


class Editability(_Model):
    """Whether a family of edits can be made of this image, and why."""

    decision: Decision
    reason: _Text


class FamilyEditability(_Model):
    """The decision on each family."""

    identity: Editability
    attribute: Editability
    background: Editability
    removal: Editability


class Profile(_Model):
    """Stage 1: the scene profile of one source image."""

    main_object: _Text
    attributes: Attributes
    layout: Layout
    background: Background
    editability: FamilyEditability

    def of(self, family: str) -> Editability:
        """The decision on one family."""
        return cast(Editability, getattr(self.editability, family))


class AttributeTarget(_Model):
    """A visible property and its new value."""

    subtype: Literal["color", "material", "texture", "shape", "state"]
    now: _Short
    change_to: _Short

    @model_validator(mode="after")
    def _changes(self) -> AttributeTarget:
        if plain(self.now) == plain(self.change_to):
            raise ValueError(f"change_to {self.change_to!r} is the present value: give another one")
        return self


class BackgroundTarget(_Model):
    """A new scene."""

    scene: _Short
    fits: _Text


class IdentityTarget(_Model):
    """Another concept in place of the main object."""

    subtype: Literal["near", "medium", "far"]
    concept: _Short
    fits: _Text


class RemovalTarget(_Model):
    """What goes, and what is seen there afterwards."""

    subject: _Short
    with_it: list[_Short]
    fill: _Text


Target = AttributeTarget | BackgroundTarget | IdentityTarget | RemovalTarget
TARGETS: dict[str, type[Target]] = {
    "identity": IdentityTarget,
    "attribute": AttributeTarget,
    "background": BackgroundTarget,
    "removal": RemovalTarget,
}


class Targets(_Model):
    """Stage 2: the targets of one family of one source; there may be none, with the reason in `left_out`."""

    targets: list[Any]
    left_out: Annotated[str, Field(max_length=1000)]


class EditPrompt(_Model):
    """Stage 3: what to change and what to preserve; the instruction is the two together."""

    change: Annotated[str, Field(min_length=10)]
    preserve: Annotated[str, Field(min_length=10)]

    @property
    def instruction(self) -> str:
        """The text that the editing model and the reviewers are given."""
        return " ".join(f"{self.change} {self.preserve}".split())


class Source(_Model):
    """One source image.

    Attributes:
        concept: its name, unique, part of file names. image: path below the folder of the construction.
        sha256: of the file. source_category, attribution: as in the manifest of a release.
    """

    concept: Annotated[str, Field(pattern=CONCEPT_PATTERN)]
    image: str
    sha256: str
    source_category: Category
    attribution: str = ""

    @property
    def words(self) -> str:
        """The concept in plain words: ``aircraft_carrier`` is "aircraft carrier", ``baton4`` "baton"."""
        return concept_words(self.concept)


def concept_words(concept: str) -> str:
    """A concept's name in plain words; THINGS numbers the senses of a word, and the number says nothing to a model."""
    return re.sub(r"(?<=[A-Za-z])\d+$", "", concept).replace("_", " ").strip() or concept


def family_of(target: Target) -> str:
    """The family that a target belongs to."""
    return next(name for name, model in TARGETS.items() if isinstance(target, model))


def plain(text: str) -> str:
    """Text for comparison: case, underscores and runs of spaces do not count."""
    return " ".join(text.casefold().replace("_", " ").split())
