"""A folder to a repository of the Hub: what would be sent, sending it as one commit, and whether what is there is what was meant.

A plan compares hashes, so a second identical push sends nothing, and one that was interrupted sends only what the Hub does not hold yet
(large files are stored by content before the commit). All files enter in one commit: a release is on the Hub as a whole or not at all.

A push that makes a whole repository leaves a manifest there: its files and their hashes. The next one deletes only what this manifest names
and nobody has changed since. Whatever else is there belongs to others, and stays.
"""

from __future__ import annotations

import json
import random
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

from decodehub.core.files import sha256_file, write_json

from .client import (
    ATTEMPTS,
    FIRST_WAIT_S,
    HubError,
    Repo,
    ask,
    git_hash,
    in_words,
    is_content,
    is_ours,
    limit_time,
    may_pass,
    read_remote,
    remote_files,
    status_of,
)

MANIFEST, MANIFEST_SCHEMA = ".decodehub/manifest.json", 1
CARD = "README.md"
OF_THE_HUB = frozenset({".gitattributes"})  # put there by the Hub itself
RACES = 30  # commits of others, to other files, that one push waits for
Manifest = dict[str, list[str]]  # path: its hashes, in the forms of `remote_files`


class State(NamedTuple):
    """What a repository holds before a push.

    Attributes:
        repo: the repository. exists: whether it is there.
        head: the commit of ``main``, None where there is none.
        pull: number of an open pull request that the push brings up to date; the files are then those of its branch.
        revision: the commit of the files. files: hash of every file by path.
        manifest: what the last push of the whole repository put there, None where there was none.
    """

    repo: Repo
    exists: bool
    head: str | None = None
    pull: int | None = None
    revision: str | None = None
    files: dict[str, str] = {}  # noqa: RUF012  (never changed)
    manifest: Manifest | None = None


class Outgoing(NamedTuple):
    """A file to send: path in the repository, bytes, and whether a file of that path is replaced."""

    path: str
    size: int
    replaces: bool


class Goal(NamedTuple):
    """How a folder is to enter its repository.

    Attributes:
        title: of the commit, and of the pull request.
        whole: the folder is the whole repository and not files added to it: what a former push left is deleted, and a manifest written.
        into_existing: files of others in the repository are accepted, and one that the folder has too is replaced.
        reserved: patterns of files that are read as part of what is pushed, so that no other file may match them.
        propose: as a pull request. private: make a new repository private. description: text of the pull request.
    """

    title: str
    whole: bool = False
    into_existing: bool = False
    reserved: tuple[str, ...] = ()
    propose: bool = True
    private: bool = True
    description: str = ""


class Plan(NamedTuple):
    """What a push would do.

    Attributes:
        state, folder, goal: where to, from where, and how.
        send, same, delete: files to send, how many are there already, files of the former push that are no longer part of it.
        others: files of others, which stay. changed: files of the former push that others have changed since, which stay.
        replaces: files of others, or changed by them, in whose place one of the folder would go.
    """

    state: State
    folder: Path
    goal: Goal
    send: tuple[Outgoing, ...]
    same: int
    delete: tuple[str, ...]
    others: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()

    @property
    def repo(self) -> Repo:
        """Where it goes."""
        return self.state.repo

    @property
    def nothing_to_do(self) -> bool:
        """Whether the Hub has all of it."""
        return self.state.exists and not self.send and not self.delete

    @property
    def size(self) -> int:
        """Bytes to send."""
        return sum(file.size for file in self.send)

    @property
    def needs_consent(self) -> tuple[str, ...]:
        """Files of others because of which the whole repository is pushed only with `Goal.into_existing`."""
        if not self.goal.whole or self.goal.into_existing or self.nothing_to_do:
            return ()
        return tuple(sorted({*self.replaces, *(self.others if self.state.manifest is None else ())}))


class Published(NamedTuple):
    """What is on the Hub: the repository, the commit, its pull request or None, and whether this call changed anything."""

    repo: Repo
    revision: str
    pull: int | None
    changed: bool


class _Appeared(Exception):
    """A repository that was to be made is there already, and holds something."""


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


def look_at(api: HfApi, repo: Repo, title: str, *, propose: bool = True) -> State:
    """What a repository holds; with `propose`, an open pull request of that title by the owner of the token.

    Raises:
        HubError: the Hub cannot be asked, there is no such repository and none may be made, or its manifest is damaged.
    """

    def look() -> State:
        try:
            head = str(api.repo_info(repo.id, repo_type=repo.kind).sha)
        except GatedRepoError:
            raise
        except RepositoryNotFoundError:
            if not is_ours(api, repo):
                raise
            return State(repo, False)
        pull = _open_pull(api, repo, title) if propose else None
        revision = head if pull is None else str(api.repo_info(repo.id, repo_type=repo.kind, revision=f"refs/pr/{pull}").sha)
        return State(repo, True, head, pull, revision, remote_files(api, repo, revision))

    state = ask(look, repo)
    return state._replace(manifest=_manifest(read_file(api, state, MANIFEST), repo))


def read_file(api: HfApi, state: State, path: str) -> bytes | None:
    """A file of a repository as it was looked at, None where it has none.

    Raises:
        HubError: it cannot be had, or arrived damaged.
    """
    if path not in state.files or state.revision is None:
        return None
    return read_remote(api, state.repo, state.revision, path, state.files[path])


def write_manifest(folder: Path) -> None:
    """Add the manifest to a folder that is ready to be sent. The card is not in it: others may write there too, and it is never deleted."""
    files = {path: [sha256_file(file), git_hash(file)] for path, file in local_files(folder).items() if path not in (MANIFEST, CARD)}
    write_json(folder / MANIFEST, {"schema_version": MANIFEST_SCHEMA, "files": files})


def make_plan(folder: Path, state: State, goal: Goal) -> Plan:
    """Compare a folder with its repository; nothing is changed.

    Raises:
        HubError: a file of others would be read as part of what is pushed.
    """
    files, there = local_files(folder), state.files
    former = state.manifest or {}
    send = tuple(Outgoing(p, file.stat().st_size, p in there) for p, file in files.items() if not is_content(file, there.get(p)))
    ours = {path for path, hashes in former.items() if there.get(path) in hashes} | {MANIFEST}
    mine = OF_THE_HUB | ours | files.keys()
    others = tuple(path for path in sorted(there) if path not in mine and path not in former)
    changed = tuple(path for path in sorted(there) if path not in mine and path in former)
    delete = tuple(sorted((ours & there.keys()) - files.keys() - {MANIFEST}))
    # The card is not replaced: what others wrote in it is kept (`cards.merged`).
    replaces = tuple(f.path for f in send if f.replaces and f.path not in ours | OF_THE_HUB and f.path != CARD)
    plan = Plan(state, Path(folder), goal, send, len(files) - len(send), delete, others, changed, replaces)
    if not goal.whole:
        return plan._replace(delete=(), others=(), changed=(), replaces=())
    if state.manifest is None and CARD in there and any(f.path == CARD for f in send):
        plan = plan._replace(others=tuple(sorted({*others, CARD})))
    if misread := [path for path in (*others, *changed) if any(fnmatch(path, pattern) for pattern in goal.reserved)]:
        raise HubError(
            f"{state.repo.page} holds {_named(misread)}, which this push did not make and which would be read as part of it; nothing was "
            "sent. Move or delete it there first, or push under another name (--name)"
        )
    return plan


def send_plan(api: HfApi, plan: Plan) -> Published:
    """Do what a plan says, as one commit, and check that the Hub then holds just these files.

    Faults that may pass (5xx, 409, timeouts, lost connections) are tried again after a look at what arrived. A commit of others in the
    meantime is no fault where it touches other files.

    Raises:
        HubError: refused, still failing after the last attempt, changed by others in the meantime, or not as it was sent.
    """
    if plan.needs_consent:
        raise HubError(
            f"{plan.repo.page} holds files that this push did not make: {_named(plan.needs_consent)}; nothing was sent. Look at the list "
            "without --yes, then give --into-existing to keep them beside what is sent, or push under another name (--name)"
        )
    commit, faults, races, created = None, 0, 0, False
    while not plan.nothing_to_do:
        try:
            if not plan.state.exists:
                created = True
                plan = _create(api, plan)
            commit, plan = _commit(api, plan)
            break
        except Exception as error:
            race = isinstance(error, _Appeared) or status_of(error) == 412
            races, faults = races + race, faults + (not race)
            final = races > RACES or faults >= ATTEMPTS or not (race or may_pass(error))
            if final and not (race or may_pass(error)):
                raise HubError(f"{in_words(error, plan.repo)}. {_nothing(plan, created)}") from None
            time.sleep(FIRST_WAIT_S * (random.random() if race else 2 ** (faults - 1)))
            plan = _looked_again(api, plan)
            if final and not plan.nothing_to_do:
                raise HubError(f"{in_words(error, plan.repo)}. {_nothing(plan, created)}") from None
    changed = commit is not None or faults + races > 0
    revision = commit or str(plan.state.revision)
    check_arrived(api, plan.repo, revision, plan.folder)
    return Published(plan.repo, revision, plan.state.pull, changed)


def check_arrived(api: HfApi, repo: Repo, revision: str, folder: Path) -> None:
    """Check that every file of a folder is in a revision with the same hash.

    Raises:
        HubError: files are missing or differ; the first are named.
    """
    there = ask(lambda: remote_files(api, repo, revision), repo)
    wrong = [path for path, file in local_files(folder).items() if not is_content(file, there.get(path))]
    if wrong:
        raise HubError(
            f"{repo.page} at {revision[:12]} does not hold what was sent: {_named(wrong)}. Do not use this revision; run the push again, which "
            "replaces only what differs"
        )


def _create(api: HfApi, plan: Plan) -> Plan:
    repo = plan.repo
    limit_time()
    sdk = "gradio" if repo.kind == "space" else None
    api.create_repo(repo.id, repo_type=repo.kind, private=plan.goal.private, exist_ok=True, space_sdk=sdk)
    head = str(api.repo_info(repo.id, repo_type=repo.kind).sha)
    files = remote_files(api, repo, head)
    if files.keys() - OF_THE_HUB:
        raise _Appeared
    return plan._replace(state=State(repo, True, head, None, head, files))


def _commit(api: HfApi, plan: Plan) -> tuple[str, Plan]:
    """The commit, and the plan with its pull request."""
    state, goal = plan.state, plan.goal
    limit_time()
    operations: list[Any] = [CommitOperationAdd(file.path, plan.folder / file.path) for file in plan.send]
    operations += [CommitOperationDelete(path) for path in plan.delete]
    where: dict[str, Any] = {"parent_commit": state.head, "create_pr": goal.propose, "commit_description": goal.description}
    if state.pull is not None:
        where = {"parent_commit": state.revision, "revision": f"refs/pr/{state.pull}"}
    done = api.create_commit(state.repo.id, operations, commit_message=goal.title, repo_type=state.repo.kind, **where)
    return done.oid, plan._replace(state=state._replace(pull=done.pr_num if state.pull is None else state.pull))


def _looked_again(api: HfApi, plan: Plan) -> Plan:
    """The plan from what is there now.

    Raises:
        HubError: others have changed a file that it would send or delete, or put files there that need consent.
    """
    former = plan.state
    state = look_at(api, plan.repo, plan.goal.title, propose=plan.goal.propose)
    fresh = make_plan(plan.folder, state, plan.goal)
    touched = {p for p in former.files.keys() | state.files.keys() if former.files.get(p) != state.files.get(p)}
    ours = {*(file.path for file in fresh.send), *fresh.delete}
    if former.exists and (conflict := sorted(touched & ours)):
        raise HubError(
            f"{plan.repo.page} was changed by someone else during the push ({_named(conflict)}): expected {(former.revision or '')[:12]}, "
            f"found {(state.revision or '')[:12]}; nothing of this push is there. Run it again to see the new difference"
        )
    if fresh.needs_consent and not plan.needs_consent:
        raise HubError(
            f"{plan.repo.page} was made by someone else during the push and holds {_named(fresh.needs_consent)}; nothing of this push is there. "
            "Run it again to see the new difference"
        )
    return fresh


def _manifest(data: bytes | None, repo: Repo) -> Manifest | None:
    if data is None:
        return None
    try:
        found = json.loads(data)
        version, files = found["schema_version"], found["files"]
        if not all(isinstance(hashes, list) and all(isinstance(h, str) for h in hashes) for hashes in files.values()):
            raise TypeError("hashes are no lists of words")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise HubError(
            f"{repo.page}/{MANIFEST} is damaged ({type(error).__name__}: {error}), so what a former push made is not known; nothing was sent. "
            "Restore it from the history of the repository, or delete it and push with --into-existing"
        ) from None
    if version != MANIFEST_SCHEMA:
        raise HubError(f"{repo.page}/{MANIFEST} has schema version {version}, this decodehub writes {MANIFEST_SCHEMA}: update it")
    return dict(files)


def _open_pull(api: HfApi, repo: Repo, title: str) -> int | None:
    found = api.get_repo_discussions(repo.id, repo_type=repo.kind, discussion_type="pull_request", discussion_status="open")
    me = api.whoami()["name"]
    numbers = [pull.num for pull in found if pull.is_pull_request and pull.title == title and pull.author == me]
    return max(numbers, default=None)


def _named(paths: Any) -> str:
    first = list(paths)
    return ", ".join(first[:3]) + (f" and {len(first) - 3} more" if len(first) > 3 else "")


def _nothing(plan: Plan, created: bool) -> str:
    if not created:
        return "Nothing was published"
    kind = "private" if plan.goal.private else "public"
    return f"Nothing was published, but the {kind} repository {plan.repo.page} may have been made, which is empty"
