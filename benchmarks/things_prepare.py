"""THINGS-EEG2 preparation against the straightforward way, on simulated recordings with the true proportions.

    python benchmarks/things_prepare.py                            # one session at a quarter of its size, about two minutes, 4 GB
    python benchmarks/things_prepare.py --scale 0.05               # a quick look
    python benchmarks/things_prepare.py --scale 1 --sessions 4 --ours-only   # a whole subject: memory and time; 12 GB of disk

The straightforward way is what the published preprocessing does: mne.Epochs of all trials at once, epochs.resample, trials sorted in a loop
over images, scikit-learn's Ledoit-Wolf for each trial in a loop, arrays in float64 memory, saved at the end. Ours hashes the recordings, keeps
its work on disk so that it can be interrupted, and writes float32 with checksums; all of that is in its time. Each runs in a process of
its own. Peak memory is the highest resident set size less that of the process when the recordings were there; for ours most of it is pages of
mapped files, which the system takes back at will, so the peak of memory that it allocates is given beside it (Linux).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import mne
import numpy as np

from decodehub.loaders.mvnn import noise_covariance
from decodehub.loaders.things_eeg2 import CHANNELS, RECORDING_ORDER, Run
from decodehub.loaders.things_eeg2.prepare import PrepareSettings, prepare_subject
from decodehub.loaders.things_eeg2.store import load_epochs

SEED = 20200220


def recording(session: int, partition: str, scale: float) -> Run:
    """A stream at 5 images a second: correlated 1/f-like noise of some 10 microvolts; 1 % more trials than are kept, 0.6 % targets."""
    rng = np.random.default_rng([session, partition == "train"])
    if partition == "test":
        images = np.repeat(np.arange(1, max(2, round(200 * scale)) + 1), 20)
    else:
        n = max(2, round(16540 * scale))
        halves = np.random.default_rng((session - 1) // 2).permutation(n) + 1
        images = np.repeat(np.sort(halves[: n // 2] if session % 2 else halves[n // 2 :]), 2)
    events = rng.permutation(np.concatenate([images, images[: len(images) // 100], np.zeros(len(images) // 150, int)]))
    onsets = 2000 + 200 * np.arange(len(events)) + rng.integers(-1, 2, len(events))
    n = int(onsets[-1]) + 3000
    data = np.empty((len(CHANNELS), n))
    shared = _noise(rng, n)
    for channel in data:  # neighbours share noise; a slow and a fast part
        shared = 0.9 * shared + 0.45 * _noise(rng, n)
        channel[:] = 1e-5 * shared
    info = mne.create_info(list(RECORDING_ORDER), 1000.0, "eeg")
    return Run(mne.io.RawArray(data, info, copy="auto", verbose=False), onsets, events, partition, 1, session)  # type: ignore[arg-type]


def _noise(rng: np.random.Generator, n: int) -> np.ndarray:
    slow = np.repeat(rng.standard_normal(n // 100 + 1), 100)[:n]
    middle = np.repeat(rng.standard_normal(n // 10 + 1), 10)[:n]
    return slow + 0.7 * middle + 0.4 * rng.standard_normal(n, dtype=np.float32)


def recordings(sessions: int, scale: float) -> Iterator[Run]:
    for session in range(1, sessions + 1):
        yield recording(session, "test", scale)
        yield recording(session, "train", scale)


# ---------------------------------------------------------------------------------------------------------------- straightforward


def loop_covariance(epochs: np.ndarray) -> np.ndarray:
    """(n_images, n_repetitions, n_channels, n_times) -> mean over images of the mean over trials of the Ledoit-Wolf covariance."""
    from sklearn.covariance import ledoit_wolf
    from sklearn.preprocessing import StandardScaler

    sigma = np.empty((len(epochs), epochs.shape[2], epochs.shape[2]))
    for i, condition in enumerate(epochs):
        members = []
        for trial in condition:
            scaler = StandardScaler()
            shrunk = ledoit_wolf(scaler.fit_transform(trial.T))[0]
            members.append(shrunk * np.outer(scaler.scale_, scaler.scale_))
        sigma[i] = np.mean(members, axis=0)
    return sigma.mean(axis=0)


def loop_epochs(run: Run) -> np.ndarray:
    """All epochs of a recording at once, sorted by image."""
    from sklearn.utils import shuffle

    events = np.column_stack([run.onsets, np.zeros_like(run.onsets), run.images])[run.images > 0]
    epochs = mne.Epochs(run.raw, events, tmin=-0.2, tmax=1.0, baseline=(None, 0), preload=True, verbose=False)
    epochs.resample(250, verbose=False)
    data = epochs.reorder_channels(list(CHANNELS)).get_data(copy=False)
    labels, keep = epochs.events[:, 2], 2 if run.partition == "train" else 20
    images = np.unique(labels)
    out = np.zeros((len(images), keep, *data.shape[1:]))
    for i, image in enumerate(images):
        out[i] = data[shuffle(np.where(labels == image)[0], random_state=SEED, n_samples=keep)]
    return out[:, :, :, 50:]


def straightforward(test: Run, train: Run, folder: Path) -> dict[str, float]:
    """One session, from recordings to saved arrays."""
    from scipy.linalg import fractional_matrix_power
    from sklearn.utils import shuffle

    begin = time.perf_counter()
    data = {"test": loop_epochs(test), "train": loop_epochs(train)}
    cut = time.perf_counter()
    matrix = fractional_matrix_power(loop_covariance(data["train"]), -0.5)
    for name in data:
        d = data[name]
        white = (d.reshape(-1, *d.shape[2:]).swapaxes(1, 2) @ matrix).swapaxes(1, 2).reshape(d.shape)
        data[name] = white[:, shuffle(np.arange(white.shape[1]), random_state=SEED)]
    normalised = time.perf_counter()
    for name, d in data.items():
        np.save(folder / f"{name}.npy", d)
    return {"epochs": cut - begin, "MVNN": normalised - cut, "all": time.perf_counter() - begin}


# ---------------------------------------------------------------------------------------------------------------------- processes


class Allocated(threading.Thread):
    """Highest anonymous resident memory (what is allocated, without pages of files), looked at every 20 ms; 0 where /proc is not."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self.done = 0, threading.Event()

    def now(self) -> int:
        status = Path("/proc/self/status")
        lines = status.read_text().splitlines() if status.exists() else []
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")), 0)

    def run(self) -> None:
        while not self.done.wait(0.02):
            self.peak = max(self.peak, self.now())


def child(kind: str, scale: float, sessions: int, folder: Path) -> None:
    """One measurement; prints JSON."""
    settings = PrepareSettings(sessions=tuple(range(1, sessions + 1)))
    result: dict[str, float] = {}
    allocated = Allocated()
    if kind == "mvnn":
        epochs = loop_epochs(recording(1, "train", scale))
        sigmas = []
        for name, function, repeats in (("ours", noise_covariance, 3), ("loop", loop_covariance, 1)):
            for repeat in range(repeats):  # the first of ours also wakes the BLAS library
                begin, cpu = time.perf_counter(), time.process_time()
                sigma = function(epochs)
                wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
                if not repeat or wall < result[name]:
                    result |= {name: wall, f"{name} cpu": cpu}
            sigmas.append(sigma)
        difference = np.abs(sigmas[0] - sigmas[1]).max() / np.abs(sigmas[1]).max()
        result |= {"difference": float(difference), "trials": epochs.shape[0] * epochs.shape[1]}
    else:
        runs = list(recordings(sessions, scale)) if sessions == 1 else None
        if runs is not None:
            _ = [run.raw.get_data(stop=10) for run in runs]
        before = allocated.now()
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        allocated.start()
        cpu = time.process_time()
        if kind == "loop":
            assert runs is not None
            result |= straightforward(*runs, folder)
        else:
            begin = time.perf_counter()
            prepare_subject(runs or recordings(sessions, scale), folder, settings, progress=sys.stderr.isatty())
            result["all"] = time.perf_counter() - begin
        result["cpu"] = time.process_time() - cpu
        allocated.done.set()
        allocated.join()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        result |= {"peak": peak - (before or rss), "allocated": allocated.peak - before, "recordings": before}
    print(json.dumps(result))


def measure(kind: str, args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Run this file again as a process of its own."""
    environment = dict(os.environ)
    if args.threads:
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(args.threads))
    command = [
        sys.executable,
        __file__,
        "--child",
        kind,
        "--scale",
        str(args.scale),
        "--sessions",
        str(args.sessions),
        "--folder",
        str(folder),
    ]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=0.25, help="share of the images (default: 0.25)")
    parser.add_argument("--sessions", type=int, default=1, help="sessions; the straightforward way is compared with one only")
    parser.add_argument("--threads", type=int, default=0, help="threads of the BLAS library (default: its own choice)")
    parser.add_argument("--ours-only", action="store_true")
    parser.add_argument("--folder", type=Path, default=None, help="for temporary files")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, args.scale, args.sessions, args.folder)
        return
    if args.sessions > 1 and not args.ours_only:
        parser.error("several sessions only with --ours-only")
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        folder = Path(temporary)
        ours = measure("ours", args, folder)
        print(
            f"ours             {ours['all']:7.1f} s ({ours['cpu']:.1f} s CPU)   peak {ours['peak'] / 1e9:5.2f} GB, of which allocated {ours['allocated'] / 1e9:5.2f} GB"
        )
        if args.ours_only:
            if args.sessions > 1:
                print("times and memory include the recordings, which are made one after the other")
            return
        loop = measure("loop", args, folder)
        print(
            f"straightforward  {loop['all']:7.1f} s ({loop['cpu']:.1f} s CPU)   peak {loop['peak'] / 1e9:5.2f} GB, of which allocated {loop['allocated'] / 1e9:5.2f} GB"
        )
        print(f"  of which epochs {loop['epochs']:.1f} s, MVNN {loop['MVNN']:.1f} s")
        print(f"the recordings themselves: {ours['recordings'] / 1e9:.2f} GB")
        print(
            f"ratio of times {loop['all'] / ours['all']:.1f} (CPU {loop['cpu'] / ours['cpu']:.1f}), of memory allocated {loop['allocated'] / max(1, ours['allocated']):.1f}"
        )
        for partition in ("train", "test"):
            a = load_epochs(folder, 1, partition).data  # type: ignore[arg-type]
            b = np.load(folder / f"{partition}.npy", mmap_mode="r")
            worst = max(float(np.abs(x - y).max()) for x, y in zip(a, b))
            print(f"{partition}: {' x '.join(map(str, a.shape))}, largest difference {worst:.2e} (noise SD is about 1)")
        mvnn = measure("mvnn", args, folder)
        print(
            f"noise covariance of {mvnn['trials']:,.0f} trials: ours {mvnn['ours']:.2f} s ({mvnn['ours cpu']:.2f} s CPU), "
            f"scikit-learn trial by trial {mvnn['loop']:.2f} s ({mvnn['loop cpu']:.2f} s CPU), "
            f"ratio {mvnn['loop'] / mvnn['ours']:.1f} (CPU {mvnn['loop cpu'] / mvnn['ours cpu']:.1f}), relative difference {mvnn['difference']:.1e}"
        )


if __name__ == "__main__":
    main()
