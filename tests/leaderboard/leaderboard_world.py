"""Records of all three benchmarks with planted differences, and some that must not be trusted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from decodehub.core.records import ModelInfo
from decodehub.metrics.bcs import protocol as bcs
from decodehub.metrics.eeg_editbench import protocol as editbench
from decodehub.metrics.eeg_editbench.benchmark import Benchmark, make_benchmark
from decodehub.metrics.imindbench import protocol as imind
from decodehub.metrics.imindbench.grid import DATASETS, Grid, make_grid
from decodehub.metrics.imindbench.predictions import Predictions, concatenate, fold_rows
from decodehub.metrics.imindbench.truth import FoldTruth, Truth, fold_hash, load_truth

HOSTILE = "<img src=x onerror=alert(1)>${alert(2)}{{7*7}}"
FORMULA = "=HYPERLINK(1)"
TASKS = ("onset", "speech", "volume")


def editbench_runs(b: Benchmark, strength: float, seed: int, subjects: range = range(1, 11)) -> list[editbench.Predictions]:
    """Two seeds a subject; a larger `strength` is a better model."""
    rng = np.random.default_rng(seed)
    q, e = len(b.concepts), len(b.edit_ids)
    source = np.array([b.concepts.index(edit["concept"]) for edit in b.rows["edits"]])
    runs = []
    for subject in subjects:
        for run in (0, 1):
            edits = rng.standard_normal((q, e))
            edits[source, np.arange(e)] += strength
            sources = rng.standard_normal((q, q)) + 2 * strength * np.eye(q)
            runs.append(editbench.Predictions(subject, run, sources, edits, rng.standard_normal((q, q))))
    return runs


def imind_grid(release: str = "0.1.0") -> Grid:
    """Three tasks in three data sets of six people each, the last task in Challenge."""
    return make_grid(
        release,
        [
            {"dataset": d, "subject_session": f"sub{s}_sess1", "task": t, "subset": "challenge" if t == "volume" else "main"}
            for d in DATASETS
            for s in range(1, 7)
            for t in TASKS
        ],
    )


def imind_predictions(grid: Grid, rule: str, strength: float, seed: int) -> Predictions:
    """Forty windows a fold; a larger `strength` is a better model."""
    rng, parts, label = np.random.default_rng(seed), [], np.arange(40) % 2
    for unit in grid.chosen(rule):
        for fold in (0, 1):
            for split in ("val", "test"):
                p = 1 / (1 + np.exp(-(rng.standard_normal(40) + strength * (2 * label - 1))))
                parts.append(fold_rows(unit.id, fold, split, np.arange(40), label, p))
    return concatenate(parts)


def imind_truth(grid: Grid) -> Truth:
    """The truth of `imind_grid`, which stands for a release here; that of other releases as it is."""
    if grid.content_hash != imind_grid().content_hash:
        return load_truth(grid)
    windows, labels = np.arange(40), np.arange(40) % 2
    cells = {(u, f): FoldTruth(fold_hash(u, f, windows, labels), 40, "", windows, labels) for u in grid.ids for f in (0, 1)}
    return Truth(cells, dict)


imind.load_truth = imind_truth  # type: ignore[assignment]


def bcs_pairs(release: str, targets: bool) -> bcs.Pairs:
    """Sixty pairs of twenty concepts by three methods."""
    methods = ("ATM", "ENIGMA", FORMULA)
    rows = [
        dict(zip(bcs.COLUMNS, (str(i), methods[i % 3], "sub-01", f"concept{i // 3}", "sha256:" + "0" * 64, "sha256:" + "1" * 64)))
        for i in range(60)
    ]
    wanted = np.random.default_rng(5).integers(0, 5, (60, 12)) / 4
    return bcs.Pairs(release, rows, wanted if targets else None, np.ones_like(wanted) if targets else None)


def write_world(root: Path, table: Benchmark) -> Path:
    """All records below `root`."""
    b = make_benchmark("1.0", table.rows["sources"], table.rows["edits"])

    def add_editbench(name: str, model: str, strength: float, benchmark: Benchmark = b, **more: Any) -> None:
        info = ModelInfo(id=model, pretrained_on=more.pop("pretrained_on", None))
        data, runs = more.pop("data", "THINGS-EEG2"), editbench_runs(benchmark, strength, len(name), more.pop("subjects", range(1, 11)))
        editbench.make_record(root / "editbench" / name, benchmark, runs, model=info, data=data, similarity="cosine")

    add_editbench("strong", "org/strong", 2.0, pretrained_on="THINGS-EEG1")
    add_editbench("weak", "org/weak", 0.2)
    add_editbench("hostile", HOSTILE, 0.4)
    add_editbench("others", "org/other-subjects", 0.4, subjects=range(3, 13))
    add_editbench("sample", "org/on-the-sample", 1.0, make_benchmark("sample", table.rows["sources"], table.rows["edits"]))
    add_editbench("simulated", "org/on-simulated", 1.0, data="Simulated EEG")
    for name, field in (("tampered", "value"), ("lost", "file")):
        shutil.copytree(root / "editbench" / "weak", root / "editbench" / name)
        file = root / "editbench" / name / "record.json"
        raw = json.loads(file.read_text())
        raw["model"]["id"] = f"org/{name}"
        if field == "value":
            raw["metrics"][0]["value"] += 1.0
        else:
            (root / "editbench" / name / raw["runs"][0]["predictions"]).unlink()
        file.write_text(json.dumps(raw))
    for name, text in (("broken", "{not json <b>"), ("newer", '{"schema_version": 99}'), ("partial", '{"schema_version": 1}')):
        (root / name).mkdir()
        (root / name / "record.json").write_text(text)

    grid = imind_grid()
    for name, rule, strength, track, corpus in (
        ("better", "full", 0.9, "Multi-STFT", "Brain Treebank"),
        ("worse", "full", 0.2, "Multi-STFT", None),
        ("main-only", "main", 0.4, "Waveform", None),
    ):
        info = ModelInfo(id=f"org/{name}", pretrained_on=corpus)
        predictions = imind_predictions(grid, rule, strength, len(name))
        imind.make_record(root / "imind" / name, grid, predictions, model=info, data="iEEG", settings={"track": track})

    rng, head = np.random.default_rng(6), ModelInfo(id="org/head")
    scores = np.clip(rng.normal(0.3, 0.1, (60, 12)) + 0.2 * (np.arange(60) % 3 == 1)[:, None], 0, 1)
    bcs.make_record(root / "bcs" / "score", bcs_pairs("recon-1", False), bcs.Scores(scores), model=head, data="images", encoders=[])
    pairs = bcs_pairs("annotations-1", True)
    assert pairs.targets is not None
    near = np.clip(pairs.targets + rng.normal(0, 0.1, (60, 12)), 0, 1)
    both = bcs.Scores(near, baselines={"mean": np.full((60, 12), 0.5)})
    bcs.make_record(root / "bcs" / "head", pairs, both, model=head, data="annotations", encoders=[], training={"lr": 5e-4})
    return root
