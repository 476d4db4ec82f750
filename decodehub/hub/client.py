"""Talking to the Hub: repositories, what they hold, and its faults in words that a user can act on."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from huggingface_hub import HfApi, constants, get_session, get_token
from huggingface_hub.errors import (
    GatedRepoError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from decodehub.core.files import sha256_file
from decodehub.core.provenance import redact

Kind = Literal["model", "dataset", "space"]
Result = TypeVar("Result")
TIMEOUT_S = 120.0  # for one answer of the Hub; the client itself would wait for ever
ATTEMPTS, FIRST_WAIT_S = 5, 1.0
REACH_S = 10.0  # for the Hub to answer at all
_AGAIN = {408, 409, 425, 429, 500, 502, 503, 504}


class Repo(NamedTuple):
    """A repository: `kind` and ``OWNER/NAME``."""

    kind: Kind
    id: str

    @property
    def page(self) -> str:
        """Its path on the Hub's site."""
        return self.id if self.kind == "model" else f"{self.kind}s/{self.id}"


class HubError(RuntimeError):
    """The Hub refused, failed or holds something else; the message says what, where and what to do, and shows no token."""


class NotOnHub(HubError):
    """There is no such repository, or none that this token may see."""


def hub_api() -> HfApi:
    """The client of the Hub (``$HF_ENDPOINT``), with the token that ``hf auth login`` stored or ``$HF_TOKEN``."""
    return HfApi(endpoint=constants.ENDPOINT)


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
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as f:
        while block := f.read(1 << 20):
            digest.update(block)
    return f"git:{digest.hexdigest()}"


def is_content(file: Path, remote_hash: str | None) -> bool:
    """Whether a file has the content that `remote_files` states."""
    if remote_hash is None:
        return False
    return remote_hash == (sha256_file(file) if remote_hash.startswith("sha256:") else git_hash(file))


def read_remote(api: HfApi, repo: Repo, revision: str, path: str, remote_hash: str) -> bytes:
    """One file of a revision, which must arrive with the hash that the Hub states for it.

    Raises:
        HubError: it cannot be had, or arrived damaged.
    """
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(ask(lambda: api.hf_hub_download(repo.id, path, repo_type=repo.kind, revision=revision, local_dir=scratch), repo))
        if not is_content(file, remote_hash):
            raise HubError(f"{repo.page}/{path} arrived damaged: expected {remote_hash}; nothing was sent. Run this again")
        return file.read_bytes()


def ask(call: Callable[[], Result], repo: Repo) -> Result:
    """Call the Hub to read; faults that may pass are tried again.

    Raises:
        HubError: any other fault, in words.
    """
    for attempt in range(ATTEMPTS):
        try:
            limit_time()
            return call()
        except HubError:
            raise
        except Exception as error:
            if attempt == ATTEMPTS - 1 or not may_pass(error):
                raise in_words(error, repo) from None
            time.sleep(FIRST_WAIT_S * 2**attempt)
    raise AssertionError("not reached")


def limit_time() -> None:
    """Have every request of the client end; it sets no limit itself, or expressly none."""
    session = get_session()
    hooks = session.event_hooks
    if _bounded not in hooks["request"]:
        session.event_hooks = {**hooks, "request": [*hooks["request"], _bounded]}


def _bounded(request: Any) -> None:
    limits = request.extensions.get("timeout") or {}
    request.extensions["timeout"] = {k: TIMEOUT_S if limits.get(k) is None else limits[k] for k in ("connect", "read", "write", "pool")}


def is_ours(api: HfApi, repo: Repo) -> bool:
    """Whether a repository belongs to the owner of the token or to an organisation of theirs that they may write in."""
    me = api.whoami()
    return repo.id.split("/")[0] in {me["name"], *(org["name"] for org in me.get("orgs", []) if org.get("roleInOrg") != "read")}


def out_of_reach(api: HfApi) -> str | None:
    """Why the Hub cannot be asked from here, None where it can."""
    if constants.HF_HUB_OFFLINE:
        return "offline mode is on (HF_HUB_OFFLINE)"
    if get_token() is None:
        return "there is no token of the Hub on this machine (run `hf auth login`, or set HF_TOKEN)"
    try:
        get_session().head(api.endpoint, timeout=REACH_S)
    except Exception as error:  # any answer is an answer, whatever its status; the library of the client has errors of its own
        return f"{api.endpoint} does not answer ({type(error).__name__})"
    return None


def status_of(error: BaseException) -> int | None:
    return next((e.response.status_code for e in _causes(error) if getattr(e, "response", None) is not None), None)  # type: ignore[attr-defined]


def may_pass(error: BaseException) -> bool:
    # The transport errors of the HTTP library, whichever the client uses.
    lost = any(cls.__name__ == "TransportError" for e in _causes(error) for cls in type(e).__mro__)
    return lost or any(isinstance(e, (ConnectionError, TimeoutError)) for e in _causes(error)) or status_of(error) in _AGAIN


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and what it was raised from: the client wraps those of uploads."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def in_words(error: BaseException, repo: Repo) -> HubError:
    """The error in words a user can act on."""
    if isinstance(error, HubError):
        return error
    status, what = status_of(error), repo.page
    said = next((e.server_message for e in _causes(error) if getattr(e, "server_message", None)), None)  # type: ignore[attr-defined]
    first = redact(" ".join((said or str([*_causes(error)][-1])).split()) or type(error).__name__)[:300]
    words = _known_fault(error, status, what, first)
    if words is not None:
        missing = isinstance(error, RepositoryNotFoundError) or status == 404
        return (NotOnHub if missing and not isinstance(error, (GatedRepoError, RevisionNotFoundError)) and status != 401 else HubError)(
            words
        )
    tried = f" after {ATTEMPTS} attempts" if may_pass(error) else ""
    kind = f"status {status}" if status else type(error).__name__
    return HubError(f"{what}: the Hub could not be used{tried} ({kind}: {first}). Run this again; what has arrived is not sent twice")


def _known_fault(error: BaseException, status: int | None, what: str, said: str) -> str | None:
    """Words for a fault whose remedy is known, None for another."""
    by_type: tuple[tuple[type[BaseException], str], ...] = (
        (OfflineModeIsEnabled, f"{what}: offline mode is on: unset HF_HUB_OFFLINE to reach the Hub"),
        (LocalTokenNotFoundError, f"{what}: there is no token of the Hub on this machine: run `hf auth login`, or set HF_TOKEN"),
        (GatedRepoError, f"{what} is gated: ask for access on its page, then run this again with the token of that account"),
        (RevisionNotFoundError, f"{what} has no such revision ({said}): it was renamed or deleted; name one that `hf repos` lists"),
    )
    missing = f"{what} is not on the Hub, or this token may not see it ({said}): check the name and the token's organisations"
    by_status = {
        401: f"{what}: the Hub does not know this token ({said}): run `hf auth login`, or set HF_TOKEN, with write access",
        404: missing,
        403: f"this token may not do that in {what} ({said}): use one with write access there, or propose it as a pull request",
        412: f"{what} was changed since it was looked at ({said}): run the push again to see the new difference",
    }
    if (words := next((words for kind, words in by_type if isinstance(error, kind)), None)) is not None:
        return words
    if status != 401 and isinstance(error, RepositoryNotFoundError):
        return missing
    return by_status.get(status or 0)
