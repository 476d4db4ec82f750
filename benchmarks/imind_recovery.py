"""Does the pipeline find what was put into **simulated** recordings, and nothing else? Small simulations, tables of AUC.

    python benchmarks/imind_recovery.py

1. Planted effects: AUC against their size. 2. Tasks without an effect, and permuted labels: chance. 3. Global Norm on contacts of different
gains. 4. The .5 Hz high-pass on recordings with drift. All with `logistic-converged`.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from decodehub.loaders.ieeg.labels import LabelTable
from decodehub.loaders.ieeg.simulate import DEFAULT_EFFECTS, NULL_TASKS, Settings, scaled, simulate_recording
from decodehub.metrics.imindbench.grid import Unit, make_grid
from decodehub.metrics.imindbench.predictions import score_cells
from decodehub.scripts import _imind_run
from decodehub.scripts._imind_models import model_spec

DATASET, SESSIONS = "kelesbyd2024", ("sub41_sess1", "sub42_sess1")
PLANTED = ("speech", "onset", "volume", "face_num")
MINUTES = 4.0


def aucs(
    tasks: tuple[str, ...], recipe: str, *, change: Callable[[LabelTable], LabelTable] | None = None, **simulation: Any
) -> dict[str, np.ndarray]:
    """Fold AUCs by task over the sessions."""
    from decodehub.loaders.recipes import named_recipe

    made = {s: simulate_recording(DATASET, s, seed=7, minutes=MINUTES, **simulation) for s in SESSIONS}
    _imind_run.open_recording = lambda folder, dataset, s: made[s]  # type: ignore[assignment]
    keep = change or (lambda table: table)
    _imind_run.unit_labels = lambda folder, dataset, s, task: keep(made[s].labels(task))  # type: ignore[assignment]
    units = [Unit(DATASET, s, task, "main") for s in SESSIONS for task in tasks]
    grid = make_grid("recovery", [u._asdict() for u in units])
    with tempfile.TemporaryDirectory() as folder:
        found = _imind_run.sweep(Path(folder), Path(), units, [model_spec("logistic-converged")], named_recipe(recipe), progress=False)
        if found.job.failed:
            raise RuntimeError(str(found.job.failed))
        cells = score_cells(_imind_run.collect(found.files, "logistic-converged", units), grid)
    return {task: cells.auc[[u.endswith("/" + task) for u in cells.unit]] for task in tasks}


def line(label: str, found: dict[str, np.ndarray]) -> None:
    """Print the mean of each task, and over all folds with its 95 % interval."""
    every = np.concatenate(list(found.values()))
    every = every[np.isfinite(every)]
    half = 1.96 * every.std(ddof=1) / np.sqrt(len(every))
    tasks = "  ".join(f"{task} {np.nanmean(x):.3f}" for task, x in found.items())
    print(f"  {label:34} mean {every.mean():.3f} ± {half:.3f} ({len(every)} folds)   {tasks}", flush=True)


def permuted(table: LabelTable) -> LabelTable:
    """The same windows with labels in another order."""
    return dataclasses.replace(table, label=np.random.default_rng(len(table)).permutation(table.label))


def main() -> None:
    """Run the simulations."""
    torch.set_num_threads(1)
    print("1. planted effects, times their default size")
    for factor in (0.0, 0.1, 0.2, 0.4, 1.0):
        line(f"x {factor:g}", aucs(PLANTED, "multi-stft", effects=scaled(DEFAULT_EFFECTS, factor) if factor else ()))
    print("2. chance")
    line("tasks without an effect", aucs(NULL_TASKS, "multi-stft"))
    line("planted, labels permuted", aucs(PLANTED, "multi-stft", change=permuted))
    print("3. gains of contacts that differ (SD of their logarithm 2), effects x 0.4")
    weak, gains = scaled(DEFAULT_EFFECTS, 0.4), Settings(gain_sd=2.0)
    for recipe in ("multi-stft", "multi-stft-unnormalised"):
        line(recipe, aucs(PLANTED, recipe, effects=weak, settings=gains))
    print("4. drift of 1 mV, evoked effect x 1")
    for recipe in ("wav-hpf-robust", "wav-nohpf-robust"):
        line(recipe, aucs(("onset",), recipe, settings=Settings(drift_uv=1000.0)))


if __name__ == "__main__":
    main()
