"""Does the pipeline find what was put into **simulated** recordings, and nothing else? Small simulations, tables of AUC.

    python benchmarks/imind_recovery.py

1. Planted effects: AUC against their size. 2. Tasks without an effect, and permuted labels: chance. 3. Global Norm on contacts of different
gains. 4. The .5 Hz high-pass on recordings with drift. 5. Networks. 1 to 4 with `logistic-converged`.

Intervals are of Student's t over the means of sessions, since folds and tasks of one session share its signal. Each session has a film of
its own here. In the data sets whose sessions share one film they share its accidents too: where a slow label such as brightness happens to
go with speech in one half of the film and against it in the other, that task is below chance in every session.
"""

from __future__ import annotations

import dataclasses
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import t

from decodehub.hub_datasets.imindbench import data
from decodehub.loaders.ieeg.labels import LabelTable
from decodehub.loaders.ieeg.simulate import DEFAULT_EFFECTS, NULL_TASKS, Settings, scaled, simulate_recording
from decodehub.metrics.imindbench.aggregate import unit_scores
from decodehub.metrics.imindbench.grid import Unit, make_grid
from decodehub.metrics.imindbench.predictions import score_cells
from decodehub.runs.ieeg import sweep as _imind_run
from decodehub.runs.ieeg.models import model_spec

DATASET = "kelesbyd2024"
SESSIONS, CHANCE_SESSIONS = (tuple(f"sub{41 + i}_sess1" for i in range(n)) for n in (6, 20))
PLANTED = ("speech", "onset", "volume", "face_num")
MINUTES = 4.0


def aucs(
    tasks: tuple[str, ...],
    recipe: str,
    *,
    sessions: tuple[str, ...] = SESSIONS,
    model: str = "logistic-converged",
    change: Callable[[LabelTable, str], LabelTable] = lambda table, name: table,
    **simulation: Any,
) -> np.ndarray:
    """(sessions, tasks) means over folds; NaN where no fold could be scored."""
    from decodehub.loaders.recipes import named_recipe

    made = {s: simulate_recording(DATASET, s, seed=7 + i, minutes=MINUTES, **simulation) for i, s in enumerate(sessions)}
    _imind_run.open_recording = lambda folder, dataset, s: made[s]  # type: ignore[assignment]
    data.unit_labels = lambda folder, dataset, s, task: change(made[s].labels(task), s + task)  # type: ignore[assignment]
    units = [Unit(DATASET, s, task, "main") for s in sessions for task in tasks]
    grid = make_grid("recovery", [u._asdict() for u in units])
    with tempfile.TemporaryDirectory() as folder:
        found = _imind_run.sweep(Path(folder), Path(), units, [model_spec(model)], named_recipe(recipe), progress=False)
        if found.job.failed:
            raise RuntimeError(str(found.job.failed))
        cells = score_cells(_imind_run.collect(found.files, model, units), grid)
    scores = unit_scores(cells, cells.auc)
    return np.array([[scores[f"{DATASET}/{s}/{task}"] for task in tasks] for s in sessions])


def line(label: str, tasks: tuple[str, ...], found: np.ndarray) -> None:
    """Print the mean over sessions with its 95 % interval, and the mean of each task."""
    means = np.nanmean(found, axis=1)
    half = t.ppf(0.975, len(means) - 1) * means.std(ddof=1) / np.sqrt(len(means))
    each = "  ".join(f"{task} {np.nanmean(x):.3f}" for task, x in zip(tasks, found.T))
    print(f"  {label:26} mean {means.mean():.3f} ± {half:.3f} ({len(means)} sessions)   {each}", flush=True)


def permuted(table: LabelTable, name: str) -> LabelTable:
    """The same windows with labels in another order."""
    return dataclasses.replace(table, label=np.random.default_rng(zlib.crc32(name.encode())).permutation(table.label))


def main() -> None:
    """Run the simulations."""
    torch.set_num_threads(1)
    print("1. planted effects, times their default size")
    for factor in (0.0, 0.1, 0.2, 0.4, 1.0):
        line(f"x {factor:g}", PLANTED, aucs(PLANTED, "multi-stft", effects=scaled(DEFAULT_EFFECTS, factor) if factor else ()))
    print("2. chance")
    line("tasks without an effect", NULL_TASKS, aucs(NULL_TASKS, "multi-stft", sessions=CHANCE_SESSIONS))
    line("planted, labels permuted", PLANTED, aucs(PLANTED, "multi-stft", sessions=CHANCE_SESSIONS, change=permuted))
    print("3. gains of contacts that differ (SD of their logarithm 2), effects x 0.4")
    weak, gains = scaled(DEFAULT_EFFECTS, 0.4), Settings(gain_sd=2.0)
    for recipe in ("multi-stft", "multi-stft-unnormalised"):
        line(recipe, PLANTED, aucs(PLANTED, recipe, effects=weak, settings=gains))
    print("4. drift of 1 mV, evoked effect x 1")
    for recipe in ("wav-hpf-robust", "wav-nohpf-robust"):
        line(recipe, ("onset",), aucs(("onset",), recipe, settings=Settings(drift_uv=1000.0)))
    print("5. networks with their published settings: Multi-STFT, effects x 1; waveforms, effects x 4 (minutes each)")
    for model in ("mlp", "cnn"):
        line(f"{model}, multi-stft", PLANTED, aucs(PLANTED, "multi-stft", sessions=SESSIONS[:3], model=model))
    strong, two = scaled(DEFAULT_EFFECTS, 4.0), ("speech", "onset")
    for model in ("logistic-converged", "cnn", "htnet"):
        line(f"{model}, waveform", two, aucs(two, "wav-hpf-robust", sessions=SESSIONS[:2], model=model, effects=strong))


if __name__ == "__main__":
    main()
