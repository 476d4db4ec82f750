"""A world of two short recordings for tests of the iMINDBench sweep, also in processes of their own that can be killed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from decodehub.hub_datasets.imindbench import data
from decodehub.loaders import session_features
from decodehub.loaders.ieeg.labels import LabelTable
from decodehub.loaders.ieeg.recording import ArrayRecording, Recording
from decodehub.loaders.recipes import recipe_from
from decodehub.metrics.imindbench.grid import Grid, make_grid
from decodehub.runs.ieeg import sweep as _imind_run
from decodehub.runs.ieeg.models import model_spec
from decodehub.runs.ieeg.scaling import at_fraction, read_fractions
from decodehub.runs.ieeg.sweep import SweepReport, sweep

SFREQ, SECONDS, TASKS = 500, 60, ("speech", "pitch", "volume")
SESSIONS = {("kelesbyd2024", "sub41_sess1"): 0, ("kelesbyd2024", "sub41_sess2"): 1, ("berezutskayapippi2022", "sub1_sess1"): 2}
RECIPE = {"chain": [{"stage": "filter"}, {"stage": "laplacian"}, {"stage": "stft", "bands": [[0.25, 4, 100]]}, {"stage": "normalise"}]}


def grid() -> Grid:
    """Nine units."""
    rows = [
        {"dataset": d, "subject_session": s, "task": t, "subset": "main" if t == "speech" else "challenge"}
        for d, s in SESSIONS
        for t in TASKS
    ]
    return make_grid("sample", rows)


def labels(dataset: str, session: str, task: str) -> LabelTable:
    """Forty windows; of one session and task the first quarter has one class, so that one fold has no score."""
    rng = np.random.default_rng([SESSIONS[dataset, session], TASKS.index(task)])
    label = rng.integers(0, 2, 56).astype(np.int8)
    if (session, task) == ("sub41_sess2", "volume"):
        label[14:28] = 1
    return LabelTable(dataset, task, np.sort(rng.choice(np.arange(0.5, 58.5, 0.5), 56, replace=False)), label)


def recording(dataset: str, session: str, scale: float = 1.0) -> Recording:
    """Noise of four contacts; those of the task "speech" have more power in its windows of class 1."""
    rng = np.random.default_rng(SESSIONS[dataset, session])
    data = rng.standard_normal((4, SFREQ * SECONDS)).astype(np.float32)
    table = labels(dataset, session, "speech")
    for start in table.start_s[table.label == 1]:
        data[1, int(start * SFREQ) : int((start + 1) * SFREQ)] *= 3
    subject, _, number = session.partition("_")
    return ArrayRecording(
        dataset,
        f"{dataset}-{session}",
        subject,
        number,
        float(SFREQ),
        ("A1", "A2", "A3", "A4"),
        data.shape[1],
        60,
        simulated=True,
        data=data * scale,
    )


def install() -> None:
    """Have the sweep read this world."""
    _imind_run.open_recording = lambda folder, dataset, session: recording(dataset, session)  # type: ignore[assignment]
    data.unit_labels = lambda folder, dataset, session, task: labels(dataset, session, task)  # type: ignore[assignment]


def run(out: Path, model: str, rank: int = 0, world: int = 1, fractions: str = "1") -> SweepReport:
    """Sweep the whole grid with one model and shares of its training windows."""
    spec, shares = model_spec(model), read_fractions(fractions)
    variants = [spec] if shares == [1] else [at_fraction(spec, share) for share in shares]
    return sweep(out, Path("nowhere"), grid().units, variants, recipe_from(RECIPE), rank=rank, world=world, progress=False)


def main(out: str, model: str, fractions: str) -> None:
    """Sweep in a process of its own, with features on the disk whatever their size."""
    install()
    session_features.RAM_BYTES = 0
    found = run(Path(out), model, fractions=fractions)
    assert found.job.failed == {}, found.job.failed
