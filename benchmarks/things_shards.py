"""How fast epochs are read: memory map at random and in order, webdataset shards from disk and over HTTP, and an Arrow table of `datasets`.

    python benchmarks/things_shards.py                 # some 250 MB of temporary files, under a minute
    python benchmarks/things_shards.py --images 16000  # the size of one subject's training part

All deliver every image as a float32 array (4, 63, 250), the table as (252, 250), in one process. The file cache is warm, so these are
the costs of the formats and not of the disk. Ratios are medians over rounds in which each reader has its turn.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import webdataset
from datasets import Array2D, Dataset, Features, disable_progress_bars, load_dataset

from decodehub.loaders.shards import write_shards
from decodehub.loaders.things_eeg2 import CHANNELS, N_TIMES, SFREQ, Epochs
from decodehub.loaders.things_eeg2.store import load_epochs, save_epochs

REPETITIONS = 4
SHAPE = (REPETITIONS, len(CHANNELS), N_TIMES)


class Quiet(SimpleHTTPRequestHandler):
    """A file server without a log."""

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address at which `folder` can be read over HTTP."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def make_epochs(images: int) -> Epochs:
    """Random numbers in the shape of training epochs."""
    rng = np.random.default_rng(0)
    data = np.empty((images, *SHAPE), dtype=np.float32)
    for row in data:
        row[...] = rng.standard_normal(SHAPE, dtype=np.float32)
    return Epochs(data, CHANNELS, SFREQ, np.arange(N_TIMES) / SFREQ, np.arange(1, images + 1), "train", 1, unit="MVNN")


def consume(arrays: Iterator[np.ndarray]) -> tuple[int, float]:
    """Number of samples and a sum over one value of each row, which makes sure that the values are there."""
    n, total = 0, 0.0
    for array in arrays:
        n, total = n + 1, total + float(array.reshape(-1, N_TIMES)[:, 0].sum(dtype=np.float64))
    return n, total


def readers(scratch: Path, epochs: Epochs, max_bytes: int, url: str) -> dict[str, Callable[[], Iterator[np.ndarray]]]:
    """By name, what delivers every image once."""
    start = time.perf_counter()
    index = write_shards([epochs], scratch / "shards", max_bytes=max_bytes)
    first = time.perf_counter()
    write_shards([epochs], scratch / "shards", max_bytes=max_bytes)
    again = time.perf_counter()
    names = [shard["name"] for shard in index["groups"]["sub-01_train"]["shards"]]
    size = epochs.data.nbytes / 1e6
    print(f"written: {len(names)} shards, {size / (first - start):,.0f} MB/s; again, all being right: {size / (again - first):,.0f} MB/s")
    features = Features({"eeg": Array2D(shape=(SHAPE[0] * SHAPE[1], SHAPE[2]), dtype="float32")})
    rows = ({"eeg": row.reshape(-1, SHAPE[2])} for row in epochs.data)
    Dataset.from_generator(lambda: rows, features=features, cache_dir=str(scratch / "cache"), fingerprint="0").save_to_disk(
        str(scratch / "arrow")
    )
    table = Dataset.load_from_disk(str(scratch / "arrow")).with_format("numpy")
    order = np.random.default_rng(1).permutation(len(epochs.images))
    mapped = load_epochs(scratch / "prepared", 1, "train").data

    def shards(urls: list[str]) -> Iterator[np.ndarray]:
        return (row["eeg.npy"] for row in webdataset.WebDataset(urls, shardshuffle=False).decode())

    def stream() -> Iterator[np.ndarray]:
        data = load_dataset("webdataset", data_files={"train": str(scratch / "shards/*.tar")}, split="train", streaming=True)
        return (np.asarray(row["eeg.npy"]) for row in data.with_format("numpy"))

    return {
        ".npy memory map, in order": lambda: (np.array(row) for row in mapped),
        ".npy memory map, random": lambda: (np.array(mapped[i]) for i in order),
        "webdataset shards, disk": lambda: shards([str(scratch / "shards" / name) for name in names]),
        "webdataset shards, HTTP": lambda: shards([f"{url}/shards/{name}" for name in names]),
        "datasets Arrow, in order": lambda: (row["eeg"] for row in table),
        "datasets Arrow, random": lambda: (table[int(i)]["eeg"] for i in order),
        "datasets stream of shards, disk": stream,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-bytes", type=int, default=32 << 20, help="of a shard")
    options = parser.parse_args()
    disable_progress_bars()
    with tempfile.TemporaryDirectory() as name, served(Path(name)) as url:
        scratch = Path(name)
        epochs = make_epochs(options.images)
        size = epochs.data.nbytes / 1e6
        print(f"{options.images:,} images of {SHAPE} float32, {size:,.0f} MB, {options.rounds} rounds")
        save_epochs(scratch / "prepared", {"train": epochs}, source="benchmark")
        expected = consume(iter(epochs.data))
        jobs = readers(scratch, epochs, options.max_bytes, url)
        seconds: dict[str, list[float]] = {job: [] for job in jobs}
        for _ in range(options.rounds):
            for job, reader in jobs.items():
                start = time.perf_counter()
                found = consume(reader())
                seconds[job].append(time.perf_counter() - start)
                assert found[0] == expected[0] and abs(found[1] - expected[1]) < 1e-6 * max(1, abs(expected[1])), job
    base = next(iter(seconds))
    print(f"{'reader':34}{'samples/s':>12}{'MB/s':>10}   time against '{base}'")
    for job, times in seconds.items():
        ratio = statistics.median(t / b for t, b in zip(times, seconds[base]))
        print(f"{job:34}{options.images / min(times):12,.0f}{size / min(times):10,.0f}   {ratio:.1f}")


if __name__ == "__main__":
    main()
