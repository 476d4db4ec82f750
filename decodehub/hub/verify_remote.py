"""What a repository of the Hub holds, checked: records and predictions, the files of a data set, the numbers on a model's card."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import yaml

from decodehub.core.files import sha256_file
from decodehub.core.records import RECORD, ResultRecord
from decodehub.core.repos import RELEASE, read_release_file

from .client import HubError, Kind, NotOnHub, Repo, ask, hub_api, remote_files
from .results import number_name, split_card
from .tasks import headline_metrics
from .verify import Finding, check_record, compare_release, equal_numbers, record_folders

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_REPO_ID = re.compile(r"(?:(datasets|spaces|models)/)?([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)")
_SOURCE = re.compile(r"/datasets/([^/]+/[^/]+)/tree/([^/]+)/(.+?)/?$")


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
        findings += _check_card(api, repo, files, revision)
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
    """What is to be said of every record of a repository, or of those below a folder of it."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        download(api, repo, revision, [f"{below}/*" if below else "*"], folder)
        return [
            finding._replace(what=finding.what.replace(scratch, repo.page))
            for path in record_folders(folder)
            for finding in [check_record(path, f"{repo.page}/{path.relative_to(folder).as_posix()}".removesuffix("/."))]
        ]


def _check_card(api: HfApi, repo: Repo, files: dict[str, str], revision: str | None) -> list[Finding]:
    """Every number that the model's repository reports, against the record that it names as its source."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = download(api, repo, revision, ["README.md", ".eval_results/*.yaml"], Path(scratch))
        reported = [_index_numbers(folder / "README.md")] if "README.md" in files else []
        reported += [_entries(path) for path in sorted((folder / ".eval_results").glob("*.yaml"))]
    findings = []
    for place, numbers, fault in reported:
        if fault:
            findings.append(Finding("wrong", f"{repo.page}/{place}: {fault}"))
        for url in dict.fromkeys(url for _, _, url in numbers):
            findings.append(_check_numbers(api, f"{repo.page}/{place}", url, {k: v for k, v, u in numbers if u == url}))
    return findings


Numbers = tuple[str, list[tuple[str, Any, str]], str | None]


def _entries(path: Path) -> Numbers:
    place = f".eval_results/{path.name}"
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
        return place, [(str(e["dataset"]["task_id"]), e["value"], (e.get("source") or {}).get("url") or "") for e in entries], None
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        return place, [], f"it cannot be read ({type(error).__name__}: {error})"


def _index_numbers(path: Path) -> Numbers:
    place = "README.md"
    try:
        front, _ = split_card(path.read_text(encoding="utf-8"), place)
        results = [result for index in front.get("model-index") or [] for result in index.get("results") or []]
        return (
            place,
            [
                (str(metric.get("name") or metric["type"]), metric["value"], (result.get("source") or {}).get("url") or "")
                for result in results
                for metric in result["metrics"]
            ],
            None,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return place, [], f"its numbers cannot be read ({type(error).__name__}: {error})"


def _check_numbers(api: HfApi, place: str, url: str, numbers: dict[str, Any]) -> Finding:
    what = f"{place}: {len(numbers)} numbers"
    match = _SOURCE.search(url)
    if match is None:
        return Finding("reported only", f"{what} without predictions" + (f" (source {url})" if url else ""))
    try:
        found = check_records(api, Repo("dataset", match[1]), unquote(match[2]), match[3])
    except HubError as error:
        return Finding("reported only", f"{what}: their predictions cannot be had ({error})")
    if len(found) != 1 or found[0].record is None or found[0].state == "reported only":
        state = "wrong" if found and found[0].state == "wrong" else "reported only"
        words = found[0].what if found else f"there is no record at {url}"
        return Finding(state, f"{what}: {words}", found[0].details if found else ())  # type: ignore[arg-type]
    if found[0].state == "wrong":
        return Finding("wrong", f"{what}: {found[0].what}", found[0].details)
    right = stated_numbers(found[0].record)
    wrong = [
        f"{name}: stated {value}, recomputed {right.get(name, 'nothing of that name')}"
        for name, value in numbers.items()
        if name not in right or not equal_numbers(right[name], value)
    ]
    if wrong:
        return Finding("wrong", f"{what}: {len(wrong)} differ from the predictions at {url}", tuple(wrong), found[0].record)
    return Finding("recomputed", f"{what} are as the predictions of {found[0].record.model.id} give them", (), found[0].record)


def stated_numbers(record: ResultRecord) -> dict[str, float]:
    """Numbers of a record under the names that a model's repository gives them: task ids, and names of the card."""
    found = {number_name(metric): metric.value for metric in record.metrics if metric.value is not None}
    return found | {task: metric.value for task, metric in headline_metrics(record).items() if metric.value is not None}
