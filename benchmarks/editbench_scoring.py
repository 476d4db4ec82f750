"""EEG-EditBench scoring at full size: (a) one run against a plain per-edit loop, (b) 400 runs against reading and matrix products alone.

    python benchmarks/editbench_scoring.py            # both, about two minutes, 450 MB of temporary files
    python benchmarks/editbench_scoring.py --runs 40  # a quick look

(a) goes from embeddings to every number of the protocol, mismatched queries included. The loop computes each cosine when it needs it, edit by
edit, as a script written straight from the paper would. Both score float64, so that rounding flips no comparison; the time of the
float32 that runs are usually saved in is given beside it. (b) reads safetensors files (warm file cache, which makes reading cheap and
the ratio harder), scores every run and aggregates 10 subjects x 5 seeds a model with exact bootstrap intervals.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from decodehub.core.jobs import map_threads
from decodehub.metrics.eeg_editbench.aggregate import aggregate
from decodehub.metrics.eeg_editbench.benchmark import Benchmark, make_benchmark
from decodehub.metrics.eeg_editbench.scoring import Plan, RunScores, prepare, score_run
from decodehub.metrics.eeg_editbench.similarity import score_embeddings

Q, D, SUBJECTS, SEEDS = 200, 1024, 10, 5
COUNTS = {  # table S2
    ("identity", "near"): 266,
    ("identity", "medium"): 280,
    ("identity", "far"): 234,
    ("attribute", "color"): 231,
    ("attribute", "material"): 199,
    ("attribute", "texture"): 198,
    ("attribute", "shape"): 156,
    ("attribute", "state"): 195,
    ("background", None): 199,
    ("removal", None): 179,
}


def full_size_benchmark(rng: np.random.Generator) -> Benchmark:
    """200 concepts and 2,137 edits in the published composition, dealt to the concepts in turn."""
    edits: list[dict[str, Any]] = []
    for (family, subtype), count in COUNTS.items():
        for _ in range(count):
            i = len(edits) % Q
            target = f"c{(i + 1 + len(edits) % 7) % Q}" if family == "identity" else None
            distance = float(np.clip(rng.gamma(4, 0.05), 0.01, 0.6))
            edits.append(
                {
                    "edit_id": f"e{len(edits)}",
                    "concept": f"c{i}",
                    "family": family,
                    "subtype": subtype,
                    "target_concept": target,
                    "visual_distance": distance,
                }
            )
    sources = [{"concept": f"c{i}", "source_category": f"category{i % 7}"} for i in range(Q)]
    return make_benchmark("composition of table S2, random vectors", sources, edits)


def embeddings(rng: np.random.Generator, b: Benchmark, dtype: Any) -> dict[str, np.ndarray]:
    """Random image vectors, edits near their source, EEG queries that carry some of their source."""
    sources = rng.standard_normal((Q, D))
    vectors = {
        "eeg": sources * 0.15 + rng.standard_normal((Q, D)),
        "sources": sources,
        "edits": sources[b.query] + 0.6 * rng.standard_normal((len(b.query), D)),
        "nulls": sources + 0.3 * rng.standard_normal((Q, D)),
    }
    return {name: value.astype(dtype) for name, value in vectors.items()}


def ours(plan: Plan, x: dict[str, np.ndarray]) -> RunScores:
    return score_run(plan, *score_embeddings(x["eeg"], x["sources"], x["edits"], x["nulls"]))


def products(x: dict[str, np.ndarray]) -> None:
    """The matrix products alone, of vectors that need no normalising."""
    for name in ("sources", "edits", "nulls"):
        x["eeg"] @ x[name].T


def plain_loop(b: Benchmark, x: dict[str, np.ndarray]) -> dict[str, float]:
    """The protocol edit by edit; cosines are computed where they are needed."""
    unit = {name: value / np.linalg.norm(value, axis=1, keepdims=True) for name, value in x.items()}
    eeg, sources, edits, nulls = unit["eeg"], unit["sources"], unit["edits"], unit["nulls"]
    n_edits = len(b.query)
    sums: dict[str, list[float]] = {}

    def count(name: str, value: float) -> None:
        sums.setdefault(name, []).append(value)

    for c in range(Q):
        own = eeg[c] @ sources[c]
        above = sum(1 for j in range(Q) if j != c and not own > eeg[c] @ sources[j])
        count("top1", above < 1)
        count("top5", above < 5)
        null = eeg[c] @ nulls[c]
        count("null_top1", all(null > eeg[c] @ nulls[j] for j in range(Q) if j != c))
        count("ep_top1", all(own > eeg[c] @ edits[i] for i in range(n_edits) if b.query[i] == c))
    for i in range(n_edits):
        c = b.query[i]
        own, edit, null = eeg[c] @ sources[c], eeg[c] @ edits[i], eeg[c] @ nulls[c]
        labels = ["", f"[family={b.family[i]}]", f"[category={b.category[c]}]", f"[category={b.category[c]},family={b.family[i]}]"]
        labels += [f"[subtype={b.subtype[i]}]", f"[category={b.category[c]},subtype={b.subtype[i]}]"] if b.subtype[i] else []
        for label in labels:
            count("two_afc" + label, own > edit)
        wrong = null_wrong = 0
        for q in range(Q):
            if q != c:
                other = eeg[q] @ edits[i]
                wrong += bool(eeg[q] @ sources[c] > other)
                null_wrong += bool(eeg[q] @ nulls[c] > other)
        for label in ("", f"[family={b.family[i]}]"):
            count("two_afc_mismatched" + label, wrong / (Q - 1))
            count("null_over_edit_mismatched" + label, null_wrong / (Q - 1))
            count("original_over_null" + label, own > null)
            count("null_over_edit" + label, null > edit)
        if b.family[i] == "identity":
            t = b.target[i]
            source_at_target, edit_at_target = eeg[t] @ sources[c], eeg[t] @ edits[i]
            rank_source = 1 + sum(1 for q in range(Q) if q != t and not source_at_target > eeg[q] @ sources[c])
            rank_edit = 1 + sum(1 for q in range(Q) if q != t and not edit_at_target > eeg[q] @ edits[i])
            for name, value in (("source_drop", own - edit), ("target_gain", edit_at_target - source_at_target)):
                count(name, value)
            count("target_rank_source", rank_source)
            count("target_rank_edited", rank_edit)
    raw = ("source_drop", "target_gain", "target_rank_source", "target_rank_edited")
    found = {name: float(np.mean(values)) * (1 if name in raw else 100) for name, values in sums.items()}
    for label in ["", *(f"[family={f}]" for f in dict.fromkeys(b.family))]:
        found["pairing_gain" + label] = found["two_afc" + label] - found["two_afc_mismatched" + label]
        found["null_pairing_gain" + label] = found["null_over_edit" + label] - found["null_over_edit_mismatched" + label]
    return found


def best(function: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def one_run(rng: np.random.Generator, b: Benchmark) -> None:
    plan = prepare(b)
    x64, x32 = embeddings(rng, b, np.float64), None
    x32 = {name: value.astype(np.float32) for name, value in x64.items()}
    start = time.perf_counter()
    expected = plain_loop(b, x64)
    loop = time.perf_counter() - start
    found = ours(plan, x64).as_dict()
    worst = max((abs(found[name] - value), name) for name, value in expected.items())
    exact = sum(found[name] == value for name, value in expected.items())
    fast64, fast32 = best(lambda: ours(plan, x64), 9), best(lambda: ours(plan, x32), 9)
    print(f"(a) one run, {Q} queries x {Q + len(b.query):,} images (and {Q} nulls), D = {D}: {len(found)} numbers")
    print(f"    plain per-edit loop         {loop:8.2f} s   ({len(expected)} of the numbers)")
    print(f"    decodehub, float64          {fast64:8.4f} s   ratio {loop / fast64:6.0f}")
    print(f"    decodehub, float32          {fast32:8.4f} s   ratio {loop / fast32:6.0f}")
    print(f"    equal: {exact} of {len(expected)} bit for bit; largest difference {worst[0]:.1e} ({worst[1]})")
    assert worst[0] < 1e-9, worst


def many_runs(rng: np.random.Generator, b: Benchmark, runs: int, distinct: int) -> None:
    plan, per_model = prepare(b), SUBJECTS * SEEDS
    grid = [(subject, seed) for subject in range(1, SUBJECTS + 1) for seed in range(SEEDS)]
    with tempfile.TemporaryDirectory() as scratch:
        files = []
        for i in range(min(distinct, runs)):
            files.append(Path(scratch) / f"{i}.safetensors")
            save_file(embeddings(rng, b, np.float32), files[-1])

        def floor() -> None:
            for i in range(per_model):
                products(load_file(files[i % len(files)]))

        def whole() -> None:
            runs = map_threads(lambda i: ours(plan, load_file(files[i % len(files)])).values, range(per_model))
            aggregate(grid, np.array(list(runs)), [key.interval for key in plan.null_keys])

        floor()
        whole()
        pairs = []
        for _ in range(runs // per_model):  # model by model in turn, so that a slow spell of the machine meets both
            start = time.perf_counter(), time.process_time()
            floor()
            middle = time.perf_counter(), time.process_time()
            whole()
            end = time.perf_counter(), time.process_time()
            pairs.append([(middle[k] - start[k], end[k] - middle[k]) for k in (0, 1)])
    wall, cpu = ([p[k] for p in pairs] for k in (0, 1))
    print(
        f"(b) {runs} runs, {len(files)} distinct files, {len(pairs)} models x {SUBJECTS} subjects x {SEEDS} seeds, {len(plan.null_keys)} numbers, {sum(key.interval for key in plan.null_keys)} with CIs"
    )
    print(f"    reading and matrix products {sum(a for a, _ in wall):8.2f} s")
    print(f"    scored and aggregated       {sum(b for _, b in wall):8.2f} s")
    for name, times in (("wall", wall), ("processor", cpu)):
        ratios = sorted(b / a for a, b in times)
        print(f"    ratio, {name} time: median over models {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400, help="runs of (b), a multiple of 50")
    parser.add_argument("--distinct", type=int, default=40, help="different files of (b)")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    benchmark = full_size_benchmark(rng)
    one_run(rng, benchmark)
    many_runs(rng, benchmark, options.runs, options.distinct)


if __name__ == "__main__":
    main()
