"""Records from a folder or a results repository of the Hub: read fast, wrong ones listed and never fatal."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from decodehub.core.files import home, inside, read_data, write_json
from decodehub.core.records import MAX_RECORD_BYTES, Metric, RecordError, ResultRecord, find_records, parse_record
from decodehub.hub.client import HubError, Repo, ask, hub_api, remote_files

PATTERNS = ("*.json", "*.safetensors", "*.parquet")  # all that a record's folder holds that is needed to score it anew

Slice = tuple[tuple[str, str], ...]


@dataclass(frozen=True, eq=False)
class Entry:
    """One valid record.

    Attributes:
        root: the folder that was read. path: of the record's folder below it, "." for `root` itself.
        key: first 12 hex digits of the hash of ``record.json``; equal records have equal keys.
        record: the record.
    """

    root: Path
    path: str
    key: str
    record: ResultRecord

    @property
    def folder(self) -> Path:
        """The record's folder."""
        return self.root / self.path

    @property
    def separate(self) -> bool:
        """Whether it must not stand beside real results: a sample or rehearsal release, or simulated recordings."""
        return self.record.kind != "real"

    @cached_property
    def metrics(self) -> dict[tuple[str, Slice], Metric]:
        """The record's numbers by name and sorted slice."""
        return {(m.name, tuple(sorted(m.slice.items()))): m for m in self.record.metrics}

    def metric(self, name: str, slice_: Slice) -> Metric | None:
        """One number, None where the record does not have it."""
        return self.metrics.get((name, tuple(sorted(slice_))))


class Problem(NamedTuple):
    """A file that should be a record and is none."""

    path: str
    reason: str


class Loaded(NamedTuple):
    """What a folder holds; `repo` and `revision` where it is a copy of a Hub repository; `note` is for the reader."""

    root: Path
    entries: tuple[Entry, ...]
    problems: tuple[Problem, ...]
    repo: str | None = None
    revision: str | None = None
    note: str = ""


def read_folder(root: Path, only: Collection[str] | None = None) -> Loaded:
    """Read every ``record.json`` below a folder.

    Args:
        root: the folder. Links to other folders are not followed.
        only: paths of files relative to `root` that count; all by default.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    root = Path(root)
    if not root.is_dir():
        raise FileNotFoundError(f"{root} is not a folder: give a folder of records (runs/) or --hub ORG/RESULTS")
    entries, problems = [], []
    collecting = gc.isenabled()
    gc.disable()  # nothing that is made here is garbage; looking for it would take half of the time
    try:
        files, skipped = find_records(root)
        for relative in files:
            if only is None or relative in only:
                found = _read_one(root, relative)
                entries.append(found) if isinstance(found, Entry) else problems.append(found)
    finally:
        if collecting:
            gc.enable()
    return Loaded(root, tuple(entries), (*problems, *(Problem(s.path, s.reason) for s in skipped)))


def read_hub(repo: str, revision: str | None = None) -> Loaded:
    """Copy a results repository (a data set repository of record folders) below ``$DECODEHUB_HOME`` and read it.

    Only what changed is downloaded. Without a connection the last copy is read, and `Loaded.note` says so.

    Raises:
        ValueError: `repo` is no ``ORG/NAME``.
        HubError: it is not there, or cannot be reached and there is no copy.
    """
    base = home() / "leaderboard" / "hub" / repo_name(repo).replace("/", "--")
    folder, listing = base / "files", base / "listing.json"  # real files: those of the Hub cache are links that lead out of the folder
    api, where, note = hub_api(), Repo("dataset", repo), ""
    try:
        sha = str(ask(lambda: api.dataset_info(repo, revision=revision), where).sha)
        files = sorted(ask(lambda: remote_files(api, where, sha), where))
        ask(lambda: api.snapshot_download(repo, repo_type="dataset", revision=sha, local_dir=folder, allow_patterns=list(PATTERNS)), where)
        write_json(listing, {"revision": sha, "files": files})
    except HubError as error:
        if "is not on the Hub" in str(error) or not listing.is_file():
            raise
        note = f"The Hub cannot be read now ({error}); these are the records of the last time."
    kept = json.loads(read_data(listing))
    return read_folder(folder, set(kept["files"]))._replace(repo=repo, revision=kept["revision"], note=note)


def repo_name(repo: str) -> str:
    """`repo`, which must be ``ORG/NAME``.

    Raises:
        ValueError: it is not.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*", repo):
        raise ValueError(f"{repo!r} is not the name of a Hub repository: expected ORG/NAME")
    return repo


def _read_one(root: Path, relative: str) -> Entry | Problem:
    path = f"{root}/{relative}"
    try:
        if os.path.islink(path):  # noqa: PTH114
            inside(root, relative)
        with open(path, "rb", buffering=0) as f:  # noqa: PTH123
            if os.fstat(f.fileno()).st_size > MAX_RECORD_BYTES:
                raise RecordError(f"{relative} has more than the {MAX_RECORD_BYTES:,} bytes that a record may have")
            data = f.readall()
        record = parse_record(data, relative)
    except (ValueError, OSError, RecursionError) as error:
        return Problem(relative, str(error).replace(f"{root}/", ""))
    return Entry(root, relative.rpartition("/")[0] or ".", hashlib.sha256(data).hexdigest()[:12], record)
