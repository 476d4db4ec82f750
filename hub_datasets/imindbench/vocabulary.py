"""The vocabulary of iMINDBench as data: tasks, data sets, sessions and units, from the tables beside this file."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from decodehub.loaders.ieeg.labels import RULES

FOLDER = Path(__file__).parent
RELEASE = "0.1.0"  # of iMINDBench, whose grid and Main list these are
SUBSETS = ("main", "challenge")


@dataclass(frozen=True)
class Task:
    """One task; see ``tasks.yaml``."""

    id: str
    title: str
    domain: str
    feature: str | None
    pool: str
    aliases: tuple[str, ...]
    positive: str
    negative: str


@dataclass(frozen=True)
class Session:
    """One recording of the benchmark; see ``sessions.csv``. `channels` is what the benchmark keeps, None where that is not known."""

    dataset: str
    subject_session: str
    subject: str
    session: str
    recording_id: str
    film: str
    sfreq: float
    line_freq: float
    channels: int | None


@dataclass(frozen=True)
class Unit:
    """One (data set, session, task); `subset` is "main" or "challenge"."""

    dataset: str
    subject_session: str
    task: str
    subset: str

    @property
    def id(self) -> str:
        """``dataset/subject_session/task``."""
        return f"{self.dataset}/{self.subject_session}/{self.task}"


@cache
def tasks() -> tuple[Task, ...]:
    """The 15 tasks in the order of the leaderboard."""
    rows = yaml.safe_load((FOLDER / "tasks.yaml").read_text(encoding="utf-8"))["tasks"]
    found = tuple(Task(**{**row, "aliases": tuple(row["aliases"])}) for row in rows)
    if {t.id: t.feature or "" for t in found} != {name: rule.column for name, rule in RULES.items()}:
        raise ValueError(f"{FOLDER / 'tasks.yaml'} and the rules of decodehub.loaders.ieeg.labels name different tasks or features")
    return found


@cache
def sources() -> dict[str, dict[str, Any]]:
    """What ``sources.yaml`` says of each data set, by canonical id, in the order of the leaderboard."""
    return {row["id"]: row for row in yaml.safe_load((FOLDER / "sources.yaml").read_text(encoding="utf-8"))["datasets"]}


@cache
def coverage_contract() -> dict[str, Any]:
    """Coverage rules, folds and the rule of Main."""
    return dict(yaml.safe_load((FOLDER / "sources.yaml").read_text(encoding="utf-8"))["coverage"])


@cache
def sessions() -> tuple[Session, ...]:
    """The 39 sessions."""
    with (FOLDER / "sessions.csv").open(encoding="utf-8", newline="") as f:
        return tuple(
            Session(
                **{k: row[k] for k in ("dataset", "subject_session", "subject", "session", "recording_id", "film")},
                sfreq=float(row["sfreq"]),
                line_freq=float(row["line_freq"]),
                channels=int(row["channels"]) if row["channels"] else None,
            )
            for row in csv.DictReader(f)
        )


@cache
def units() -> tuple[Unit, ...]:
    """The 585 units, by data set, session and task."""
    return read_units(FOLDER / "units.csv")


def read_units(path: Path) -> tuple[Unit, ...]:
    """Units of a CSV with the columns dataset, subject_session, task, subset.

    Raises:
        ValueError: an unknown data set, task or subset, or a unit twice; the message names file and line.
    """
    found: dict[str, Unit] = {}
    with Path(path).open(encoding="utf-8-sig", newline="") as f:
        for line, row in enumerate(csv.DictReader(f), start=2):
            values = [row.get(k) for k in ("dataset", "subject_session", "task", "subset")]
            unit = Unit(*(str(v) for v in values))
            if None in values or unit.dataset not in sources() or unit.task not in RULES or unit.subset not in SUBSETS or unit.id in found:
                raise ValueError(
                    f"{path}, line {line}: expected a unit that is not there yet, with one of {', '.join(sources())}, a task and a subset "
                    f"{' or '.join(SUBSETS)}; found {','.join(map(str, values))}"
                )
            found[unit.id] = unit
    if not found:
        raise ValueError(f"{path} has no units")
    return tuple(found.values())


def find_task(name: str) -> Task:
    """The task with this id, title or alias. Raises KeyError that lists the ids."""
    for task in tasks():
        if name in (task.id, task.title, *task.aliases):
            return task
    raise KeyError(f"no task is called {name!r}; there are {', '.join(t.id for t in tasks())}")


def find_dataset(name: str) -> str:
    """Canonical id of a data set from id, title or alias. Raises KeyError that lists the ids."""
    for key, row in sources().items():
        if name.lower() in (key, row["title"].lower(), *row["aliases"]):
            return key
    raise KeyError(f"no data set is called {name!r}; there are {', '.join(sources())}")


def find_session(dataset: str, subject_session: str) -> Session:
    """One session. Raises KeyError that lists those of the data set."""
    there = [s for s in sessions() if s.dataset == dataset]
    for session in there:
        if session.subject_session == subject_session:
            return session
    raise KeyError(f"{dataset} has no session {subject_session!r}; there are {', '.join(s.subject_session for s in there)}")


def select(subset: str = "all") -> tuple[Unit, ...]:
    """Units of ``"main"``, ``"challenge"`` or ``"all"``."""
    if subset not in (*SUBSETS, "all"):
        raise KeyError(f"subset must be main, challenge or all, not {subset!r}")
    return tuple(unit for unit in units() if subset in ("all", unit.subset))
