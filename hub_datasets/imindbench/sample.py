"""The embedded sample of iMINDBench: **simulated** recordings of two sessions a data set, with effects for some tasks and none for others."""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path

from decodehub.core.code import code_hash
from decodehub.loaders.ieeg.simulate import DEFAULT_EFFECTS, SESSIONS, SimulatedRecording, simulate_recording

from .vocabulary import Unit, tasks

FOLDER = Path("sample")  # stands for the sample where a folder of data is asked for; nothing is stored
SEED = 2026
# What `load_dataset("imindbench", "sample")` shows: a task with an effect and one without, one session a data set, some windows a part.
SHOWN_TASKS = ("speech", "gpt2_surprisal")
SHOWN_WINDOWS = 8  # of each class


@lru_cache(maxsize=2)  # units come session by session
def sample_recording(dataset: str, subject_session: str) -> SimulatedRecording:
    """A **simulated** recording of the sample; its signals are made when first read. The last two are kept.

    Raises:
        KeyError: the sample has no such session.
    """
    if subject_session not in SESSIONS.get(dataset, ()):
        raise KeyError(
            f"the sample has no {dataset}/{subject_session}; it has {', '.join(f'{d}/{s}' for d, ss in SESSIONS.items() for s in ss)}"
        )
    return simulate_recording(dataset, subject_session, seed=SEED)


def sample_units() -> tuple[Unit, ...]:
    """The 90 units of the sample; ``main`` are the tasks that have an effect of their own."""
    planted = {effect.task for effect in DEFAULT_EFFECTS}
    return tuple(
        Unit(dataset, session, task.id, "main" if task.id in planted else "challenge")
        for dataset, sessions in SESSIONS.items()
        for session in sessions
        for task in tasks()
    )


@cache
def release() -> str:
    """``sample-simulated``, or ``sample-simulated-real-timing`` where the timing of words is that of Brain Treebank (package ``neuroprobe``)."""
    first = sample_recording("neuroprobev2", SESSIONS["neuroprobev2"][0])
    return "sample-simulated" + ("-real-timing" if first.events.simulated.startswith("timing of") else "")


@cache
def sample_code() -> str:
    """Changes when the code that makes the sample does."""
    return code_hash(__name__).removeprefix("sha256:")[:12]
