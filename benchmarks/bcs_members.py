"""Five members of a BCS head trained and scored together, against five runs in turn and against one.

    python benchmarks/bcs_members.py                          # the published sizes: 9,219 features, batches of 512
    python benchmarks/bcs_members.py --dims 1280 --batch 64   # lite0, a small batch

An epoch is two batches and validation pairs in the paper's proportion. Medians of repeats whose order changes; the ratios of one run are
what to look at where processors are shared. On CPU the matrix products take the time and five members cost about five times one; batching
spares a GPU its small launches.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from decodehub.hub_models.bcs import SEEDS, BCSConfig, BCSHead
from decodehub.hub_models.bcs.training import EnsembleTrainer, PairData, TrainingSettings


def head(dims: list[int], seeds: list[int], device: torch.device) -> BCSHead:
    encoders = [{"id": f"encoder {i}", "dim": d, "fingerprint": None} for i, d in enumerate(dims)]
    return BCSHead(BCSConfig(encoders=encoders, seeds=seeds)).to(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dims", default="768,768,768", help="lengths of the encoders' features")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dims = [int(d) for d in args.dims.split(",")]
    seeds = list(SEEDS)
    rng = np.random.default_rng(0)
    train = 2 * args.batch
    n = train + train * 1089 // 4797
    features = rng.standard_normal((n, sum(4 * d + 1 for d in dims))).astype(np.float32)
    targets = rng.integers(0, 5, (n, 12)) / 4
    data = PairData(features, targets, np.ones_like(targets), np.arange(train), np.arange(train, n))
    groups = {"five batched": [seeds], "five in turn": [[seed] for seed in seeds], "one": [seeds[:1]]}
    settings = TrainingSettings(batch_size=args.batch)

    def scoring(name: str) -> Callable[[], None]:
        models = [head(dims, group, device) for group in groups[name]]
        return lambda: [model.predict(features[: args.batch]) for model in models]  # type: ignore[func-returns-value, return-value]

    def training(name: str) -> Callable[[], None]:
        trainers = [EnsembleTrainer(head(dims, group, device), data, settings) for group in groups[name]]
        return lambda: [trainer.run_epoch() for trainer in trainers]  # type: ignore[func-returns-value, return-value]

    for what, make in ((f"scoring {args.batch} pairs", scoring), (f"an epoch of {train} and {n - train} pairs", training)):
        jobs = {name: make(name) for name in groups}
        times: dict[str, list[float]] = {name: [] for name in jobs}
        for job in jobs.values():
            job()
        for repeat in range(args.repeats):
            names = list(jobs)
            for name in names[repeat % 3 :] + names[: repeat % 3]:
                start = time.perf_counter()
                jobs[name]()
                if device.type == "cuda":
                    torch.cuda.synchronize()
                times[name].append(time.perf_counter() - start)
        medians = {name: statistics.median(values) for name, values in times.items()}
        print(f"{what} of {features.shape[1]:,} features, {device.type}, {torch.get_num_threads()} threads")
        for name, seconds in medians.items():
            print(f"  {name:13} {1000 * seconds:8.1f} ms   {', '.join(f'{1000 * t:.0f}' for t in times[name])}")
        ratio = {name: medians["five batched"] / medians[name] for name in ("five in turn", "one")}
        print(f"  five batched / five in turn: {ratio['five in turn']:.2f}   five batched / one: {ratio['one']:.2f}")


if __name__ == "__main__":
    main()
