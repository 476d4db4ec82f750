"""Training throughput of the EEG-to-image retrieval models at their published sizes.

    python benchmarks/retrieval_training.py                          # all models: some minutes with a GPU, an hour on two cores
    python benchmarks/retrieval_training.py --models ubp --quick     # a quick look
    python benchmarks/retrieval_training.py --device cuda --batch 1024

Each number is the time of whole epochs of ``train`` on random data, everything in them: gathering batches, dropout, loss, optimiser, blur
labels. The first epoch, which warms up, and checkpoints are left out; medians over the repeats are given with the smallest and largest.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.utils import logging

from decodehub.hub_models.eeg_retrieval import RETRIEVAL_MODELS, EEGRetrievalModel
from decodehub.runs.retrieval.training import settings_for, train


def make(name: str, seed: int, device: str) -> EEGRetrievalModel:
    torch.manual_seed(seed)
    return RETRIEVAL_MODELS[name](RETRIEVAL_MODELS[name].config_class()).to(device)


def random_data(name: str, n: int) -> dict[str, Any]:
    """Pairs of the published sizes, without any signal."""
    config, rng = RETRIEVAL_MODELS[name].config_class(), np.random.default_rng(0)
    blurs = (3,) if name in ("ubp", "ats") else ()
    targets = {part: rng.standard_normal((n, *blurs, dim), dtype=np.float32) for part, dim in config.image_inputs.items()}
    if name == "atm":
        targets["text"] = rng.standard_normal((n, config.text_dim), dtype=np.float32)
    eeg = rng.standard_normal((n, config.n_channels, config.n_times), dtype=np.float32)
    return {"eeg": eeg, "targets": targets, "concepts": np.arange(n) % 100, "subject": 1}


def epoch_time(stamps: list[float]) -> float:
    """Seconds an epoch, without the first."""
    return (stamps[-1] - stamps[0]) / (len(stamps) - 1)


def one(name: str, options: argparse.Namespace, data: dict[str, Any], settings: Any) -> float:
    stamps: list[float] = []
    with tempfile.TemporaryDirectory() as out:
        train(
            make(name, 0, options.device),
            **data,
            settings=settings,
            seed=0,
            out=Path(out),
            progress=False,
            checkpoint_every=10**6,
            on_epoch=lambda epoch, loss: stamps.append(_now(options.device)),
        )
    return epoch_time(stamps[:-1])  # the last epoch has a checkpoint


def _now(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


def _spread(values: list[float], form: str) -> str:
    low, middle, high = (format(f(values), form) for f in (min, statistics.median, max))
    return f"{middle} ({low}-{high})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(RETRIEVAL_MODELS), choices=list(RETRIEVAL_MODELS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=256, help="pairs a step")
    parser.add_argument("--steps", type=int, default=2, help="steps an epoch")
    parser.add_argument("--epochs", type=int, default=2, help="epochs that count, of each repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--quick", action="store_true", help="batches of 64, one epoch of one step, one repeat")
    options = parser.parse_args()
    if options.quick:
        options.batch, options.steps, options.epochs, options.repeats = 64, 1, 1, 1
    torch.set_num_threads(options.threads)
    logging.disable_progress_bar()
    print(f"{options.device}, {options.threads} threads, torch {torch.__version__}; batches of {options.batch}; pairs/s")
    for name in options.models:
        n = options.batch * options.steps
        data = random_data(name, n)
        settings = settings_for(name, epochs=options.epochs + 2, batch_size=options.batch, patience=0)
        times = [one(name, options, data, settings) for _ in range(options.repeats)]
        print(f"{name:12} {_spread([n / seconds for seconds in times], ',.0f'):>24}", flush=True)


if __name__ == "__main__":
    main()
