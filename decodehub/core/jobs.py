"""Long jobs: a manifest of items, one file an item, a restart that does only what is missing.

Used by everything that edits, encodes, annotates or trains many items. Each process appends to its own ``done-RANK.jsonl`` beside the files;
a line names the item, the hash of the settings it was made under and the hash of the file. A restart reuses an item only if all three
still hold, so a change of settings or a damaged file is made anew.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from threadpoolctl import threadpool_limits
from tqdm import tqdm

from .files import DiskFull, canonical_json, inside, remove_orphans, sha256_bytes, sha256_file, write_bytes

Item = TypeVar("Item")
Result = TypeVar("Result")


class Report(NamedTuple):
    """What a process did: keys made now, keys reused from before, and the errors by key."""

    made: list[str]
    reused: list[str]
    failed: dict[str, str]

    def add(self, other: Report) -> None:
        """Take in what another part of the job did."""
        self.made.extend(other.made)
        self.reused.extend(other.reused)
        self.failed.update(other.failed)


class JobFailed(RuntimeError):
    """Some items failed; the others are done and a restart does only those that failed."""


class JobRunning(RuntimeError):
    """Another process works on the same thing now."""


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold `path` (a folder or file that a job writes) for this process while the block runs, by a lock file beside it.

    Temporary files that a killed process left there are removed. The lock is the system's: it goes with the process, however that ends, so none is ever left behind. What shares a folder by parts
    (the processes of one sweep) locks the parts.

    Raises:
        JobRunning: another process holds it.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise JobRunning(
                f"another decodehub process ({lock.read().strip() or 'of unknown number'}) works on {path}: wait for it, or name another --out"
            ) from None
        lock.truncate(0)
        lock.write(f"process {os.getpid()}")
        lock.flush()
        remove_orphans(path.parent)
        remove_orphans(path)
        yield


def run_job(
    items: Mapping[str, Item],
    work: Callable[[Item], bytes],
    folder: Path,
    settings_hash: str,
    *,
    rank: int = 0,
    world: int = 1,
    dealt: bool = False,
    progress: bool = True,
    label: str = "items",
) -> Report:
    """Make the file of every item that is not there yet; one failure does not stop the others.

    Args:
        items: by key; the key is the file's path below `folder`.
        work: makes the bytes of an item's file.
        folder: where the files go.
        settings_hash: hash of everything besides the item that the bytes depend on.
        rank, world: this process and how many share the job (Accelerate's ``process_index`` and ``num_processes``); items are dealt in turn.
        dealt: `items` are this process's own already.
        progress: show a bar (on rank 0).
        label: what the bar is called.
    """
    folder.mkdir(parents=True, exist_ok=True)
    remove_orphans(folder)
    done = _read_done(folder)
    report = Report([], [], {})
    keys = list(items) if dealt else list(items)[rank::world]
    log_path = folder / f"done-{rank}.jsonl"
    unfinished = log_path.is_file() and not log_path.read_bytes().endswith(b"\n")
    with log_path.open("a", encoding="utf-8") as log:
        if unfinished:  # the line of a killed process: the next one must not run into it
            log.write("\n")
        for key in tqdm(keys, desc=label, disable=not progress or rank != 0):
            path = inside(folder, key)
            if _is_done(done, key, path, settings_hash):
                report.reused.append(key)
                continue
            try:
                data = work(items[key])
            except DiskFull:
                raise
            except Exception as error:  # one bad item must not end a night's job; it is reported at the end
                report.failed[key] = f"{type(error).__name__}: {error}"
                continue
            write_bytes(path, data)
            log.write(canonical_json({"key": key, "settings": settings_hash, "sha256": sha256_bytes(data)}) + "\n")
            log.flush()
            os.fsync(log.fileno())
            report.made.append(key)
    return report


def unfinished(settings_hashes: Mapping[str, str], folder: Path) -> list[str]:
    """Keys whose file is missing, damaged, or was made under other settings by whichever process.

    Args:
        settings_hashes: by key, as given to `run_job`.
        folder: where the files are.
    """
    done = _read_done(folder)
    return [key for key, settings_hash in settings_hashes.items() if not _is_done(done, key, inside(folder, key), settings_hash)]


def map_threads(function: Callable[[Item], Result], items: Iterable[Item], workers: int | None = None) -> Iterator[Result]:
    """``map`` over threads: results in order, no more than `workers` + 1 items under way, so memory does not grow with their number.

    For work that spends its time in numpy. Its linear algebra is held to one thread meanwhile, as the items themselves fill the cores.

    Args:
        function: called with each item; an error is raised where its result would have come.
        items: read as they are needed.
        workers: number of threads; by default the cores, 8 at most.
    """
    workers = workers or min(os.cpu_count() or 1, 8)
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(workers) as pool:
        under_way: deque[Future[Result]] = deque()
        for item in items:
            under_way.append(pool.submit(function, item))
            if len(under_way) > workers:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()


def raise_if_failed(report: Report, label: str) -> None:
    """End a job that had failures with their list.

    Raises:
        JobFailed: at least one item failed.
    """
    if report.failed:
        lines = [f"  {key}: {error}" for key, error in list(report.failed.items())[:20]]
        more = f"\n  and {len(report.failed) - 20} more" if len(report.failed) > 20 else ""
        total = len(report.made) + len(report.reused) + len(report.failed)
        raise JobFailed(f"{len(report.failed)} of {total} {label} failed; run again to retry only these:\n" + "\n".join(lines) + more)


def _is_done(done: Mapping[str, set[tuple[str, str]]], key: str, path: Path, settings_hash: str) -> bool:
    return key in done and path.is_file() and (settings_hash, sha256_file(path)) in done[key]


def _read_done(folder: Path) -> dict[str, set[tuple[str, str]]]:
    """By key, every pair of settings hash and file hash that any process has noted; the logs of several have no common order."""
    done: dict[str, set[tuple[str, str]]] = {}
    for file in sorted(folder.glob("done-*.jsonl")):
        for line in file.read_text(encoding="utf-8", errors="replace").split("\n"):
            try:
                record = json.loads(line)
                done.setdefault(record["key"], set()).add((record["settings"], record["sha256"]))
            except (json.JSONDecodeError, KeyError, TypeError):  # the line that a killed process did not finish
                continue
    return done
