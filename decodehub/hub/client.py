"""A folder to a repository of the Hub: what would be sent, sending it as one commit, and whether what is there is what was meant.

A plan compares hashes, so a second identical push sends nothing, and one that was interrupted sends only what the Hub does not hold yet
(large files are stored by content before the commit). All files enter in one commit: a release is on the Hub as a whole or not at all.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, get_session
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

from decodehub.core.files import sha256_file
from decodehub.core.provenance import redact

Kind = Literal["model", "dataset", "space"]
Result = TypeVar("Result")
TIMEOUT_S = 120.0  # for one answer of the Hub; the client itself would wait for ever
ATTEMPTS, FIRST_WAIT_S = 5, 1.0
_AGAIN = {408, 409, 425, 429, 500, 502, 503, 504}


class Repo(NamedTuple):
    """A repository: `kind` and ``OWNER/NAME``."""

    kind: Kind
    id: str

    @property
    def page(self) -> str:
        """Its path on the Hub's site."""
        return self.id if self.kind == "model" else f"{self.kind}s/{self.id}"


class Outgoing(NamedTuple):
    """A file to send: path in the repository, bytes, and whether a file of that path is replaced."""

    path: str
    size: int
    replaces: bool


class Plan(NamedTuple):
    """What a push would do.

    Attributes:
        repo, folder, title: where to, from where, and the title of the commit.
        exists: whether the repository is there.
        private: whether it is made private if it is not there.
        head: the commit of ``main`` that the folder was compared with, None where there is none.
        send, same, delete: files to send, how many are there already, files that a former release left.
        propose: as a pull request. pull: number of an open one with this title, which is brought up to date.
    """

    repo: Repo
    folder: Path
    title: str
    exists: bool
    private: bool
    head: str | None
    send: tuple[Outgoing, ...]
    same: int
    delete: tuple[str, ...]
    propose: bool
    pull: int | None

    @property
    def nothing_to_do(self) -> bool:
        """Whether the Hub has all of it."""
        return self.exists and not self.send and not self.delete

    @property
    def size(self) -> int:
        """Bytes to send."""
        return sum(file.size for file in self.send)


class Published(NamedTuple):
    """What is on the Hub: the repository, the commit, its pull request or None, and whether this call changed anything."""

    repo: Repo
    revision: str
    pull: int | None
    changed: bool


class HubError(RuntimeError):
    """The Hub refused, failed or holds something else; the message says what, where and what to do, and shows no token."""


class NotOnHub(HubError):
    """There is no such repository, or none that this token may see."""


def hub_api() -> HfApi:
    """The client of the Hub (``$HF_ENDPOINT``), with the token that ``hf auth login`` stored or ``$HF_TOKEN``."""
    return HfApi(endpoint=constants.ENDPOINT)


def local_files(folder: Path) -> dict[str, Path]:
    """Files of a folder by their path in the repository.

    Raises:
        ValueError: a link, which could lead anywhere.
    """
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        if path.is_symlink():
            raise ValueError(f"{path} is a link: put the file itself there")
        if path.is_file():
            found[path.relative_to(folder).as_posix()] = path
    return found


def make_plan(
    api: HfApi, repo: Repo, folder: Path, title: str, *, owned: Iterable[str] = (), propose: bool = True, private: bool = True
) -> Plan:
    """Compare a folder with its repository; nothing is changed.

    Args:
        api: client.
        repo, folder, title: see `Plan`.
        owned: patterns of files that belong to what is pushed: one on the Hub that is not in the folder is deleted.
        propose: as a pull request. private: make a new repository private.

    Raises:
        HubError: the Hub cannot be asked.
    """

    def look() -> Plan:
        files = local_files(folder)
        head, there, pull = None, None, None
        try:
            head = api.repo_info(repo.id, repo_type=repo.kind).sha
            there = remote_files(api, repo, head)
        except GatedRepoError:
            raise
        except RepositoryNotFoundError:
            if not is_ours(api, repo):
                raise
        send, delete = _difference(files, there or {}, owned)
        if there is not None and propose and (send or delete) and (pull := _open_pull(api, repo, title)) is not None:
            there = remote_files(api, repo, f"refs/pr/{pull}")
            send, delete = _difference(files, there, owned)
        return Plan(repo, Path(folder), title, there is not None, private, head, send, len(files) - len(send), delete, propose, pull)

    return ask(look, repo)


def send_plan(api: HfApi, plan: Plan, owned: Iterable[str] = ()) -> Published:
    """Do what a plan says, as one commit, and check that the Hub then holds just these files.

    Faults that may pass (5xx, 409, timeouts, lost connections) are tried again after a look at what arrived.

    Args:
        api, owned: as for `make_plan`.
        plan: what was shown to the user.

    Raises:
        HubError: refused, still failing after the last attempt, changed by others in the meantime, or not as it was sent.
    """
    owned = tuple(owned)
    changed = False
    for attempt in range(ATTEMPTS):
        if plan.nothing_to_do:
            break
        try:
            changed = True
            plan = _commit(api, plan)
            break
        except Exception as error:
            if attempt == ATTEMPTS - 1 or not _may_pass(error):
                raise _told(error, plan.repo) from None
            time.sleep(FIRST_WAIT_S * 2**attempt)
            fresh = make_plan(api, plan.repo, plan.folder, plan.title, owned=owned, propose=plan.propose, private=plan.private)
            if plan.exists and fresh.head != plan.head and not fresh.nothing_to_do:
                raise HubError(_moved(plan, fresh.head)) from None
            plan = fresh
    revision = ask(lambda: _revision(api, plan), plan.repo)
    check_arrived(api, plan.repo, revision, plan.folder)
    return Published(plan.repo, revision, plan.pull, changed)


def check_arrived(api: HfApi, repo: Repo, revision: str, folder: Path) -> None:
    """Check that every file of a folder is in a revision with the same hash.

    Raises:
        HubError: files are missing or differ; the first are named.
    """
    there = ask(lambda: remote_files(api, repo, revision), repo)
    wrong = [path for path, file in local_files(folder).items() if not _equal(file, there.get(path))]
    if wrong:
        named = ", ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")
        raise HubError(
            f"{repo.page} at {revision[:12]} does not hold what was sent: {named}. Do not use this revision; run the push again, which "
            "replaces only what differs"
        )


def remote_files(api: HfApi, repo: Repo, revision: str | None) -> dict[str, str]:
    """Hash of every file of a revision: ``sha256:...`` of a large file, ``git:...`` of another."""
    found = {}
    for entry in api.list_repo_tree(repo.id, recursive=True, revision=revision, repo_type=repo.kind):
        lfs, oid = getattr(entry, "lfs", None), getattr(entry, "blob_id", None)
        if lfs is not None:
            found[entry.path] = f"sha256:{lfs.sha256}"
        elif oid is not None:
            found[entry.path] = f"git:{oid}"
    return found


def git_hash(path: Path) -> str:
    """``git:...`` hash of a file, as git names its content."""
    data = path.read_bytes()
    return "git:" + hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def ask(call: Callable[[], Result], repo: Repo) -> Result:
    """Call the Hub to read; faults that may pass are tried again.

    Raises:
        HubError: any other fault, in words.
    """
    for attempt in range(ATTEMPTS):
        try:
            _limit_time()
            return call()
        except HubError:
            raise
        except Exception as error:
            if attempt == ATTEMPTS - 1 or not _may_pass(error):
                raise _told(error, repo) from None
            time.sleep(FIRST_WAIT_S * 2**attempt)
    raise AssertionError("not reached")


def _limit_time() -> None:
    """Have every request of the client end; it sets no limit itself, or expressly none."""
    session = get_session()
    hooks = session.event_hooks
    if _bounded not in hooks["request"]:
        session.event_hooks = {**hooks, "request": [*hooks["request"], _bounded]}


def _bounded(request: Any) -> None:
    limits = request.extensions.get("timeout") or {}
    request.extensions["timeout"] = {k: TIMEOUT_S if limits.get(k) is None else limits[k] for k in ("connect", "read", "write", "pool")}


def _commit(api: HfApi, plan: Plan) -> Plan:
    repo, head = plan.repo, plan.head
    _limit_time()
    if not plan.exists:
        sdk = "gradio" if repo.kind == "space" else None
        api.create_repo(repo.id, repo_type=repo.kind, private=plan.private, exist_ok=True, space_sdk=sdk)
        head = api.repo_info(repo.id, repo_type=repo.kind).sha
    operations: list[Any] = [CommitOperationAdd(file.path, plan.folder / file.path) for file in plan.send]
    operations += [CommitOperationDelete(path) for path in plan.delete]
    where: dict[str, Any] = {"parent_commit": head, "create_pr": plan.propose}
    if plan.pull is not None:
        where = {"revision": f"refs/pr/{plan.pull}"}
    done = api.create_commit(repo.id, operations, commit_message=plan.title, repo_type=repo.kind, **where)
    return plan._replace(exists=True, head=head, pull=done.pr_num if plan.pull is None else plan.pull)


def _revision(api: HfApi, plan: Plan) -> str:
    revision = "main" if plan.pull is None else f"refs/pr/{plan.pull}"
    return str(api.repo_info(plan.repo.id, repo_type=plan.repo.kind, revision=revision).sha)


def _difference(files: dict[str, Path], there: dict[str, str], owned: Iterable[str]) -> tuple[tuple[Outgoing, ...], tuple[str, ...]]:
    send = [Outgoing(p, file.stat().st_size, p in there) for p, file in files.items() if not _equal(file, there.get(p))]
    patterns = tuple(owned)
    delete = [path for path in sorted(there) if path not in files and any(fnmatch(path, pattern) for pattern in patterns)]
    return tuple(send), tuple(delete)


def _equal(file: Path, there: str | None) -> bool:
    if there is None:
        return False
    return there == (sha256_file(file) if there.startswith("sha256:") else git_hash(file))


def is_ours(api: HfApi, repo: Repo) -> bool:
    """Whether a repository belongs to the owner of the token or to an organisation of theirs."""
    me = api.whoami()
    return repo.id.split("/")[0] in {me["name"], *(org["name"] for org in me.get("orgs", []))}


def _open_pull(api: HfApi, repo: Repo, title: str) -> int | None:
    found = api.get_repo_discussions(repo.id, repo_type=repo.kind, discussion_type="pull_request", discussion_status="open")
    me = api.whoami()["name"]
    numbers = [pull.num for pull in found if pull.is_pull_request and pull.title == title and pull.author == me]
    return max(numbers, default=None)


def _status(error: BaseException) -> int | None:
    return next((e.response.status_code for e in _causes(error) if getattr(e, "response", None) is not None), None)  # type: ignore[attr-defined]


def _may_pass(error: BaseException) -> bool:
    # The transport errors of the HTTP library, whichever the client uses.
    lost = any(cls.__name__ == "TransportError" for e in _causes(error) for cls in type(e).__mro__)
    return lost or any(isinstance(e, (ConnectionError, TimeoutError)) for e in _causes(error)) or _status(error) in _AGAIN


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and what it was raised from: the client wraps those of uploads."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _told(error: BaseException, repo: Repo) -> HubError:
    """The error in words a user can act on."""
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalTokenNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, HubError):
        return error
    status, what = _status(error), repo.page
    said = next((e.server_message for e in _causes(error) if getattr(e, "server_message", None)), None)  # type: ignore[attr-defined]
    first = redact(" ".join((said or str([*_causes(error)][-1])).split()) or type(error).__name__)[:300]
    if isinstance(error, OfflineModeIsEnabled):
        return HubError(f"{what}: offline mode is on: unset HF_HUB_OFFLINE to reach the Hub")
    if isinstance(error, LocalTokenNotFoundError):
        return HubError(f"{what}: there is no token of the Hub on this machine: run `hf auth login`, or set HF_TOKEN")
    if isinstance(error, GatedRepoError):
        return HubError(f"{what} is gated: ask for access on its page, then run this again with the token of that account")
    if isinstance(error, RevisionNotFoundError):
        return HubError(f"{what} has no such revision ({first}): it was renamed or deleted; name one that `hf repos` lists")
    if status == 401:
        return HubError(f"{what}: the Hub does not know this token ({first}): run `hf auth login`, or set HF_TOKEN, with write access")
    if isinstance(error, RepositoryNotFoundError) or status == 404:
        return NotOnHub(f"{what} is not on the Hub, or this token may not see it ({first}): check the name and the token's organisations")
    if status == 403:
        return HubError(f"this token may not do that in {what} ({first}): use one with write access there, or propose it as a pull request")
    if status == 412:
        return HubError(f"{what} was changed since it was looked at ({first}): run the push again to see the new difference")
    tried = f" after {ATTEMPTS} attempts" if _may_pass(error) else ""
    kind = f"status {status}" if status else type(error).__name__
    return HubError(
        f"{what}: the Hub could not be used{tried} ({kind}: {first}). Nothing was published; run this again to go on where it stopped"
    )


def _moved(plan: Plan, head: str | None) -> str:
    return (
        f"{plan.repo.page} was changed by someone else during the push: expected {(plan.head or '')[:12]}, found {(head or '')[:12]}. "
        "Run the push again to see the new difference"
    )
