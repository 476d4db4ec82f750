"""What a repository of the Hub holds, checked: records and predictions, the files of a data set, the numbers that a model claims."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from decodehub.core.files import sha256_file
from decodehub.core.records import RECORD, ResultRecord, find_records
from decodehub.core.repos import RELEASE, read_release_file

from .claims import Claim, compare_claim, doubles, read_claims, source_of
from .client import HubError, Kind, NotOnHub, Repo, ask, hub_api, remote_files
from .tasks import dataset_of
from .verify import Finding, State, check_record, compare_release

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_REPO_ID = re.compile(r"(?:(datasets|spaces|models)/)?([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)")


def is_repo_id(text: str) -> bool:
    """Whether `text` is ``ORG/NAME``, or that behind ``datasets/`` or ``spaces/``."""
    return _REPO_ID.fullmatch(text) is not None


def verify_hub(target: str, revision: str | None = None, *, deep: bool = False, api: HfApi | None = None) -> list[Finding]:
    """Check everything of ours in the repositories of a name.

    Args:
        target: ``ORG/NAME``; ``datasets/ORG/NAME`` and the like where models, data sets and Spaces share a name.
        revision: by default ``main``. deep: download the files of a data set to hash them. api: client.

    Raises:
        HubError: not there, gated, or the Hub cannot be used.
    """
    api = api or hub_api()
    match = _REPO_ID.fullmatch(target)
    if match is None:
        raise ValueError(f"{target!r} is not the name of a Hub repository: expected ORG/NAME")
    kinds: tuple[Kind, ...] = ("dataset", "model", "space")
    if match[1]:
        kinds = tuple(kind for kind in kinds if match[1] == f"{kind}s")
    findings: list[Finding] = []
    missing: list[NotOnHub] = []
    for kind in kinds:
        repo = Repo(kind, match[2])
        try:
            files = ask(lambda repo=repo: remote_files(api, repo, revision), repo)  # type: ignore[misc]
        except NotOnHub as error:
            missing.append(error)
            continue
        findings += _check_repo(api, repo, files, revision, deep)
    if len(missing) == len(kinds):
        raise missing[0]
    return findings


def _check_repo(api: HfApi, repo: Repo, files: dict[str, str], revision: str | None, deep: bool) -> list[Finding]:
    findings = []
    if repo.kind == "dataset" and RELEASE in files:
        findings.append(_check_dataset(api, repo, files, revision, deep))
    if any(path.split("/")[-1] == RECORD for path in files):
        findings += check_records(api, repo, revision)
    if repo.kind == "model":
        findings += _check_claims(api, repo, files, revision)
    return findings or [Finding("reported only", f"{repo.page}: it holds no record, release or number that could be checked")]


def download(api: HfApi, repo: Repo, revision: str | None, patterns: list[str], folder: Path) -> Path:
    """Files of a repository in a folder of their own, so that no damaged copy is kept."""
    return Path(
        ask(
            lambda: api.snapshot_download(
                repo.id, repo_type=repo.kind, revision=revision, allow_patterns=patterns, local_dir=folder, max_workers=4
            ),
            repo,
        )
    )


def _check_dataset(api: HfApi, repo: Repo, files: dict[str, str], revision: str | None, deep: bool) -> Finding:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        tables = [path for path in files if path.endswith(".parquet")]
        # A table that is no large file has a git hash, which says nothing about its SHA-256.
        fetch = [path for path in tables if deep or not files[path].startswith("sha256:")]
        download(api, repo, revision, [RELEASE, *fetch], folder)
        try:
            release = read_release_file(folder)
        except ValueError as error:
            return Finding("wrong", f"{repo.page}: {str(error).replace(scratch, repo.page)}")
        there = {path: sha256_file(folder / path) if path in fetch else files[path] for path in tables}
    return compare_release(release, there, repo.page)


def check_records(api: HfApi, repo: Repo, revision: str | None, below: str = "") -> list[Finding]:
    """The verdict on every record of a repository, or of those below a folder of it."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        download(api, repo, revision, [f"{below}/*" if below else "*"], folder)
        return [
            finding._replace(what=finding.what.replace(scratch, repo.page))
            for file in find_records(folder)[0]
            for finding in [check_record(folder / file, f"{repo.page}/{file.removesuffix(RECORD)}".rstrip("/"))]
        ]


def _check_claims(api: HfApi, repo: Repo, files: dict[str, str], revision: str | None) -> list[Finding]:
    """Every number that a model's repository claims, field by field, against the record that it names as its source."""
    wanted = [path for path in files if path == "README.md" or re.fullmatch(r"\.eval_results/[^/]+\.ya?ml", path)]
    if not wanted:
        return []
    with tempfile.TemporaryDirectory() as scratch:
        folder = download(api, repo, revision, wanted, Path(scratch))
        read = {path: read_claims(folder / path, path) for path in sorted(wanted, key=lambda path: (path != "README.md", path))}
    findings: list[Finding] = []
    records: dict[str, list[Finding]] = {}
    for path, (claims, faults) in read.items():
        findings += [Finding("wrong", f"{repo.page}/{path}: {fault}") for fault in faults]
        for url in dict.fromkeys(claim.url for claim in claims):
            findings.append(_check_source(api, repo, url, [claim for claim in claims if claim.url == url], records))
    if twice := doubles(claim for claims, _ in read.values() for claim in claims):
        findings.append(Finding("wrong", f"{repo.page}: {len(twice)} numbers are claimed twice", tuple(twice)))
    return findings


def _check_source(api: HfApi, repo: Repo, url: str, claims: list[Claim], records: dict[str, list[Finding]]) -> Finding:
    """The verdict on the claims of one file that name one source; `records` keeps what was downloaded."""
    what = f"{repo.page}/{claims[0].place}: {sum(claim.n for claim in claims)} numbers"
    source = source_of(url, api.endpoint)
    if isinstance(source, str):
        return Finding("reported only", f"{what}{source}")
    try:
        if url not in records:
            records[url] = check_records(api, Repo("dataset", source.repo), source.revision, source.path)
    except HubError as error:
        return Finding("reported only", f"{what}: their predictions cannot be had ({error})")
    found = records[url]
    if len(found) != 1:
        return Finding("reported only", f"{what}: there is {'more than one' if found else 'no'} record at {url}")
    record = found[0].record
    if record is None or found[0].state == "wrong":
        return Finding("wrong", f"{what}: {found[0].what}", found[0].details)
    faults = [fault for claim in claims for fault in compare_claim(claim, record, repo.id)]
    if faults:
        return Finding("wrong", f"{what}: {len(faults)} things are not as the record at {url} says", tuple(dict.fromkeys(faults)), record)
    if found[0].state == "reported only":
        return Finding("reported only", f"{what}: {found[0].what}", (), record)
    datasets = {(claim.dataset, claim.revision) for claim in claims}
    checks = [_check_data(api, dataset, commit, record) for dataset, commit in sorted(datasets, key=str)]
    for state in ("wrong", "reported only"):
        if words := [text for verdict, text in checks if verdict == state]:
            return Finding(state, f"{what}: {words[0]}", tuple(words[1:]), record)
    bare = "" if "/" in record.model.id else f" (the record names its model only as {record.model.id!r}, without an owner)"
    return Finding("recomputed", f"{what} are as the predictions of {record.model.id} give them{bare}", (), record)


def _check_data(api: HfApi, dataset: str, commit: str | None, record: ResultRecord) -> tuple[State, str]:
    """Whether the data set that a claim is filed under is there, at the commit that it states, and holds the release that was scored."""
    repo = Repo("dataset", dataset)
    if commit is not None and re.fullmatch(r"[0-9a-f]{40}", commit) is None:
        return "wrong", f"the revision of data set {dataset} is {commit!r}, expected a commit of 40 hex digits"
    try:
        if RELEASE not in ask(lambda: remote_files(api, repo, commit), repo):
            return "reported only", f"{repo.page} holds no {RELEASE}, so nobody can tell what was scored"
        with tempfile.TemporaryDirectory() as scratch:
            about = read_release_file(download(api, repo, commit, [RELEASE], Path(scratch)))
        releases = sorted({str(name) for config in about["configs"].values() for name in config["releases"]})
    except HubError as error:
        return "reported only", f"the data set that they are filed under cannot be looked at ({error})"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return "wrong", f"{repo.page}: its {RELEASE} is none ({error})"
    release = record.benchmark.release
    if about["dataset"] != dataset_of(record.benchmark.id.replace("-", "_")) or release not in releases:
        return "wrong", f"{repo.page} holds release {', '.join(releases)} of {about['dataset']}, the record is of release {release}"
    return "recomputed", ""
