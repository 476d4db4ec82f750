"""The edit taxonomy of EEG-EditBench, read from ``taxonomy.yaml``: families, subtypes, counts, the 200 concepts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Subtype:
    """A kind of edit within a family, with its count in the full release (table S2)."""

    name: str
    title: str
    count: int
    meaning: str


@dataclass(frozen=True)
class Family:
    """An edit family: what it changes and preserves (table S1), edits and source concepts in the full release (table S2)."""

    name: str
    title: str
    changes: str
    preserves: str
    count: int
    concepts: int
    subtypes: tuple[Subtype, ...]


@dataclass(frozen=True)
class Concept:
    """One of the 200 THINGS-EEG2 test concepts, the file name of its photograph, its source category (ours)."""

    name: str
    image: str
    category: str


@dataclass(frozen=True)
class Taxonomy:
    """All of ``taxonomy.yaml``."""

    families: tuple[Family, ...]
    sources: int
    candidates: int
    edits: int
    category_map: str
    categories: tuple[str, ...]
    concepts: tuple[Concept, ...]

    @property
    def family_names(self) -> list[str]:
        return [family.name for family in self.families]

    @property
    def subtype_names(self) -> list[str]:
        return [subtype.name for family in self.families for subtype in family.subtypes]

    def subtypes_of(self, family: str) -> list[str]:
        """Names of the subtypes of `family` (empty for background and removal).

        Raises:
            KeyError: there is no such family.
        """
        return [subtype.name for subtype in {f.name: f for f in self.families}[family].subtypes]


@cache
def load_taxonomy() -> Taxonomy:
    """Read the taxonomy that ships with the package."""
    raw = yaml.safe_load((Path(__file__).parent / "taxonomy.yaml").read_text(encoding="utf-8"))
    families = tuple(Family(**{**f, "subtypes": tuple(Subtype(**s) for s in f["subtypes"])}) for f in raw["families"])
    return Taxonomy(
        families=families,
        **raw["full_release"],
        category_map=raw["category_map"],
        categories=tuple(raw["categories"]),
        concepts=tuple(Concept(**c) for c in raw["concepts"]),
    )
