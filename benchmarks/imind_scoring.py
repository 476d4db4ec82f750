"""ROC-AUC of all 1,170 folds of a leaderboard row: batched, against a loop over scikit-learn; and a whole record from its file.

    python benchmarks/imind_scoring.py

Cells have 6 to 875 test windows, as the benchmark has, with and without ties. Times are CPU seconds of one thread, medians of repeats taken in turn.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

from decodehub.metrics.imindbench.compare import compare_units
from decodehub.metrics.imindbench.grid import DATASETS, make_grid
from decodehub.metrics.imindbench.predictions import concatenate, fold_rows, load, save
from decodehub.metrics.imindbench.protocol import score_run
from decodehub.metrics.imindbench.scoring import batched_auc

REPEATS = 5
SESSIONS = dict(zip(DATASETS, (5, 29, 5)))


def cell_sizes(rng: np.random.Generator) -> np.ndarray:
    """(1170,) even numbers of test windows: Neuroprobe 200 to 875, the others 6 to 190."""
    small = rng.integers(3, 96, 2 * 15 * 34) * 2
    return np.concatenate([rng.integers(100, 438, 2 * 15 * 5) * 2, small])


def main() -> None:
    """Run the comparison."""
    rng = np.random.default_rng(0)
    sizes = cell_sizes(rng)
    ends = np.cumsum(sizes)
    labels = np.concatenate([np.arange(n) % 2 for n in sizes])
    smooth = rng.random(len(labels)) + 0.2 * labels
    for name, scores in (("no ties", smooth), ("ties (two decimals)", smooth.round(2))):
        loop_times, batch_times = [], []
        for _ in range(REPEATS):
            begin = time.process_time()
            loop = np.array([roc_auc_score(labels[e - n : e], scores[e - n : e]) for e, n in zip(ends, sizes)])
            loop_times.append(time.process_time() - begin)
            begin = time.process_time()
            batch = batched_auc(scores, labels, sizes)
            batch_times.append(time.process_time() - begin)
        a, b = statistics.median(loop_times), statistics.median(batch_times)
        print(f"{len(sizes)} cells, {len(labels):,} windows, {name}: scikit-learn {a:.2f} s, batched {b * 1e3:.0f} ms, {a / b:.0f}x, largest difference {np.abs(loop - batch).max():.1e}")  # fmt: skip

    rows = [
        {"dataset": d, "subject_session": f"sub{s // 2}_sess{s % 2}", "task": f"task{t}", "subset": "main" if (s + t) % 2 else "challenge"}
        for d, n in SESSIONS.items()
        for s, t in itertools.product(range(n), range(15))
    ]
    grid = make_grid("full size", rows)
    parts = []
    for k, (unit, fold) in enumerate(itertools.product(grid.ids, (0, 1))):
        cell = slice(ends[k] - sizes[k], ends[k])
        for split in ("val", "test"):
            parts.append(fold_rows(unit, fold, split, np.arange(sizes[k]), labels[cell], smooth[cell]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "predictions.parquet"
        save(path, concatenate(parts))
        begin = time.process_time()
        scored = score_run(load(path), grid)
        seconds = time.process_time() - begin
        print(f"file of {path.stat().st_size / 1e6:.1f} MB to the table of {len(scored.metrics)} numbers: {seconds:.2f} s")
    other = {unit: auc + 0.01 * rng.standard_normal() for unit, auc in scored.table.unit_auc.items()}
    begin = time.process_time()
    compare_units(scored.table.unit_auc, other, grid)
    print(f"paired comparison, 20,000 draws: {time.process_time() - begin:.2f} s")


if __name__ == "__main__":
    main()
