"""The grid of iMINDBench: which units exist, and which of them are Main and Challenge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from decodehub.core.files import sha256_json

DATASETS = ("neuroprobev2", "kelesbyd2024", "berezutskayapippi2022")  # in the order of the site
SHORT_NAMES = {"neuroprobev2": "Neuroprobe", "kelesbyd2024": "BYD", "berezutskayapippi2022": "Pippi"}
FOLDS = (0, 1)
RULES = ("full", "main", "challenge")
FIELDS = ("dataset", "subject_session", "task", "subset")


class Unit(NamedTuple):
    """One data set, session and task; `subset` is "main" or "challenge"."""

    dataset: str
    subject_session: str
    task: str
    subset: str

    @property
    def id(self) -> str:
        """``dataset/subject_session/task``."""
        return f"{self.dataset}/{self.subject_session}/{self.task}"

    @property
    def subject(self) -> str:
        """``dataset/subject``: the person, who may have several sessions."""
        return f"{self.dataset}/{self.subject_session.partition('_')[0]}"


class Grid(NamedTuple):
    """All units of a release, in its order; `content_hash` covers release and units."""

    release: str
    units: tuple[Unit, ...]
    content_hash: str

    @property
    def ids(self) -> tuple[str, ...]:
        """Unit ids, in order."""
        return tuple(unit.id for unit in self.units)

    def chosen(self, rule: str) -> tuple[Unit, ...]:
        """The units that a coverage rule asks for: "full", "main" or "challenge"."""
        if rule not in RULES:
            raise ValueError(f"coverage rule {rule!r} is not known: expected one of {', '.join(RULES)}")
        return self.units if rule == "full" else tuple(unit for unit in self.units if unit.subset == rule)

    def rows(self) -> list[dict[str, str]]:
        """Plain rows, which `make_grid` reads."""
        return [dict(zip(FIELDS, unit)) for unit in self.units]


def make_grid(release: str, rows: Iterable[Mapping[str, Any]]) -> Grid:
    """Build the grid from rows with the fields dataset, subject_session, task and subset.

    Raises:
        ValueError: no row, a missing or unknown value, or a unit that is there twice (the row is named).
    """
    units: dict[str, Unit] = {}
    for i, row in enumerate(rows):
        if missing := [name for name in FIELDS if not row.get(name)]:
            raise ValueError(f"row {i} of the units lacks {missing}; found the fields {sorted(row)}")
        unit = Unit(*(str(row[name]) for name in FIELDS))
        if unit.dataset not in DATASETS:
            raise ValueError(f"row {i}: dataset {unit.dataset!r} is not one of {', '.join(DATASETS)}")
        if unit.subset not in ("main", "challenge"):
            raise ValueError(f"row {i}: subset {unit.subset!r} must be main or challenge")
        if unit.id in units:
            raise ValueError(f"row {i}: unit {unit.id!r} is there twice")
        units[unit.id] = unit
    if not units:
        raise ValueError("the table of units is empty")
    every = tuple(units.values())
    return Grid(release, every, sha256_json([release, [list(unit) for unit in every]]))


def load_grid(data_dir: str | None = None) -> Grid:
    """The grid of a release, through ``load_dataset("imindbench", "units")``.

    Args:
        data_dir: a folder, ``"sample"``, or None for the release that is configured.
    """
    import datasets

    import decodehub  # noqa: F401  (registers the bare name)

    # The real grid is a table of the package; only the sample and a user's own folder have one of their own.
    found = datasets.load_dataset("imindbench", "units", data_dir=data_dir)
    data = found[next(iter(found))]
    labels = {name: feature for name, feature in data.features.items() if isinstance(feature, datasets.ClassLabel)}
    rows = [{k: labels[k].int2str(v) if k in labels and v is not None else v for k, v in row.items()} for row in data]
    return make_grid(rows[0]["release"] if rows else "", rows)


def coverage_rule(present: Sequence[str], grid: Grid) -> str:
    """The coverage rule that a set of unit ids meets exactly: "full", "main" or "challenge".

    Raises:
        ValueError: a unit that the grid does not have, or a set that is none of the three (the nearest rule and its missing and surplus
            units are named).
    """
    have = set(present)
    if unknown := sorted(have - set(grid.ids)):
        raise ValueError(f"{len(unknown)} units are not in release {grid.release!r}, the first is {unknown[0]!r}")
    wanted = {rule: {unit.id for unit in grid.chosen(rule)} for rule in RULES}
    for rule, ids in wanted.items():
        if have == ids and ids:
            return rule
    rule = min((r for r in RULES if wanted[r]), key=lambda r: len(wanted[r] ^ have))
    missing, surplus = sorted(wanted[rule] - have), sorted(have - wanted[rule])
    parts = [
        f"{len(x)} {word} ({', '.join(x[:5])}{', ...' if len(x) > 5 else ''})"
        for x, word in ((missing, "missing"), (surplus, "too many"))
        if x
    ]
    raise ValueError(
        f"{len(have)} units are neither the full grid ({len(grid.units)}), nor exactly Main ({len(wanted['main'])}) or Challenge "
        f"({len(wanted['challenge'])}); from {rule} they differ by {' and '.join(parts)}"
    )
