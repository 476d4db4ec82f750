"""A Hub for tests: repositories in memory behind the HTTP interface that `huggingface_hub` speaks, with faults to inject.

It knows models, datasets and Spaces; regular and LFS files; branches, tags and pull requests; private and gated repositories; byte ranges.
It does not know Xet: clients set ``HF_HUB_DISABLE_XET=1``. A fault belongs to the next requests that fit it::

    with HubServer() as hub:
        hub.fail("PUT", "/lfs/", "cut")            # half of the body is read, then the connection is closed
        hub.fail("POST", "/commit/", 500, times=2)
        HfApi(endpoint=hub.url, token=hub.token)...
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

LFS_SUFFIXES = (".safetensors", ".parquet", ".bin", ".png", ".jpg", ".npy", ".tar")
KINDS = {"models": "model", "datasets": "dataset", "spaces": "space"}
DATE = "2026-01-01T00:00:00.000Z"


class Blob(NamedTuple):
    """A stored file: its bytes, and whether it went the way of LFS."""

    data: bytes
    lfs: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def git_oid(self) -> str:
        data = self.data
        if self.lfs:
            data = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(self.data)}\n".encode()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    def entry(self, path: str) -> dict[str, Any]:
        lfs = {"lfs": {"oid": self.sha256, "size": len(self.data), "pointerSize": 130}} if self.lfs else {}
        return {"type": "file", "path": path, "size": len(self.data), "oid": self.git_oid, **lfs}


Tree = dict[str, Blob]


@dataclass
class PullRequest:
    """An open proposal: its branch is ``refs/pr/NUMBER``."""

    number: int
    title: str
    author: str
    status: str = "open"


@dataclass
class Repository:
    """Commits are whole trees by id; refs are branches, tags and pull requests."""

    kind: str
    id: str
    private: bool = False
    gated: bool = False
    commits: dict[str, Tree] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    pulls: list[PullRequest] = field(default_factory=list)

    def commit(self, tree: Tree, ref: str = "main") -> str:
        seed = f"{len(self.commits)} {self.kind} {self.id} {sorted((p, b.sha256) for p, b in tree.items())}"
        oid = hashlib.sha1(seed.encode()).hexdigest()
        self.commits[oid], self.refs[ref] = dict(tree), oid
        return oid

    def tree(self, revision: str = "main") -> Tree:
        return self.commits[self.refs.get(revision, revision)]


@dataclass
class Fault:
    """What happens to the next `times` requests of `method` whose path has `part` in it.

    Attributes:
        action: a status; "cut" (close the connection in the middle); "timeout" (never answer); "corrupt" (flip a byte of the answer);
            or a function, called before the request is answered as usual.
        code, words: for a status: the Hub's ``X-Error-Code``, and what it says.
        late: for a status or "cut": after the request was done, so that only the answer is lost.
    """

    method: str
    part: str
    action: int | str | Callable[[], Any]
    times: int = 1
    code: str = ""
    words: str = "injected"
    late: bool = False


class Request(NamedTuple):
    """A request as it came in."""

    method: str
    path: str
    range: str | None
    token: str | None
    size: int


class HubServer:
    """The server and what it holds; every request that came is in `requests`."""

    def __init__(self, user: str = "me", orgs: tuple[str, ...] = ("lab",), token: str = "hf_" + "Test" * 8) -> None:
        self.user, self.orgs, self.token = user, orgs, token
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.blobs: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.lock = threading.RLock()
        self.closing = threading.Event()
        handler = type("Handler", (_Handler,), {"hub": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> HubServer:
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()

    def clear(self) -> None:
        """Forget repositories, files, faults and requests."""
        for store in (self.repositories, self.blobs, self.faults, self.requests):
            store.clear()

    def create(self, kind: str, repo_id: str, files: dict[str, bytes] | None = None, **options: Any) -> Repository:
        """Make a repository from outside, such as that of another person."""
        repo = self.repositories[kind, repo_id] = Repository(kind, repo_id, **options)
        repo.commit({path: Blob(data, path.endswith(LFS_SUFFIXES)) for path, data in (files or {}).items()})
        return repo

    def repo(self, kind: str, repo_id: str) -> Repository:
        return self.repositories[kind, repo_id]

    def files(self, kind: str, repo_id: str, revision: str = "main") -> dict[str, bytes]:
        """Contents of a repository."""
        return {path: blob.data for path, blob in sorted(self.repo(kind, repo_id).tree(revision).items())}

    def merge(self, kind: str, repo_id: str, number: int) -> None:
        """Accept a pull request."""
        repo = self.repo(kind, repo_id)
        repo.refs["main"] = repo.refs[f"refs/pr/{number}"]
        repo.pulls[number - 1].status = "merged"

    def fail(self, method: str, part: str, action: int | str | Callable[[], Any], **options: Any) -> None:
        self.faults.append(Fault(method, part, action, **options))

    def count(self, method: str, part: str) -> int:
        """How many requests of a method had `part` in their path."""
        return sum(r.method == method and part in r.path for r in self.requests)

    def writable(self, repo_id: str) -> bool:
        return repo_id.split("/")[0] in (self.user, *self.orgs)


class _Closed(Exception):
    """The connection was given up on purpose."""


class _Refusal(Exception):
    """An answer that is an error: status, the Hub's code, words."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize, disable_nagle_algorithm = -1, True  # an answer goes out at once and in one piece
    hub: HubServer

    def log_message(self, *_: object) -> None:
        pass

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (_Closed, ConnectionError):
            self.close_connection = True

    def _handle(self) -> None:
        hub = self.hub
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        fault = self._fault()
        action = fault.action if fault else None
        if action == "cut" and fault and not fault.late:
            self.rfile.read(int(self.headers.get("Content-Length") or 0) // 2)
            self._cut()
        body = self._body()
        with hub.lock:
            hub.requests.append(Request(self.command, self.path, self.headers.get("Range"), token, len(body)))
        if action == "timeout":
            hub.closing.wait(30)
            self._cut()
        self.corrupt = action == "corrupt"
        try:
            if callable(action):
                action()
            if fault and isinstance(action, int) and not fault.late:
                raise _Refusal(action, fault.code, fault.words)
            url = urlsplit(self.path)
            self.late = fault if fault and fault.late else None
            with hub.lock:
                self._route([unquote(part) for part in url.path.strip("/").split("/")], parse_qs(url.query), body, token)
        except _Refusal as refusal:
            status, code, words = refusal.args
            self.late = None
            self._send(status, {"error": words}, {"X-Error-Message": words, **({"X-Error-Code": code} if code else {})})

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _handle

    def _fault(self) -> Fault | None:
        with self.hub.lock:
            for fault in self.hub.faults:
                if fault.method == self.command and fault.part in self.path and fault.times > 0:
                    fault.times -= 1
                    return fault
        return None

    def _cut(self) -> None:
        self.connection.shutdown(socket.SHUT_RDWR)
        raise _Closed

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _send(self, status: int, value: Any = None, headers: dict[str, str] | None = None, raw: bytes | None = None) -> None:
        late = getattr(self, "late", None)
        if late:  # the request was done; only its answer is lost
            self.late = None
            if late.action == "cut":
                self._cut()
            status, value, raw, headers = late.action, {"error": "injected"}, None, None
        data = raw if raw is not None else b"" if value is None else json.dumps(value).encode()
        if self.corrupt and data:
            data = bytes([data[0] ^ 1]) + data[1:]
        self.send_response(status)
        for name, text in {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    # ---- routes

    def _route(self, parts: list[str], query: dict[str, list[str]], body: bytes, token: str | None) -> None:
        if parts[:1] == ["api"]:
            return self._api(parts[1:], query, body, token)
        if parts[0] == "lfs":
            return self._lfs_object(parts[1], body)
        kind = KINDS.get(parts[0], "model")
        rest = parts if kind == "model" else parts[1:]
        if rest[2:5] == ["info", "lfs", "objects"]:
            return self._lfs_batch(json.loads(body))
        if len(rest) > 4 and rest[2] == "resolve":
            # A revision such as refs/pr/1 may come with its slashes as they are.
            revision, path = ("/".join(rest[3:6]), rest[6:]) if rest[3] == "refs" else (rest[3], rest[4:])
            return self._resolve(self._find(kind, "/".join(rest[:2]), token), revision, "/".join(path))
        raise _Refusal(404, "RepoNotFound", f"no such page: {self.path}")

    def _api(self, parts: list[str], query: dict[str, list[str]], body: bytes, token: str | None) -> None:
        hub = self.hub
        if parts == ["whoami-v2"]:
            if token != hub.token:
                raise _Refusal(401, "", "Invalid user token.")
            orgs = [{"name": org, "roleInOrg": "write"} for org in hub.orgs]
            access = {"displayName": "test", "role": "write"}
            return self._send(200, {"type": "user", "name": hub.user, "fullname": hub.user, "orgs": orgs, "auth": {"accessToken": access}})
        if parts == ["validate-yaml"]:
            return self._send(200, {"errors": [], "warnings": []})
        if parts == ["repos", "create"]:
            return self._create(json.loads(body), token)
        if parts[0] in KINDS and len(parts) >= 3:
            repo = self._find(KINDS[parts[0]], "/".join(parts[1:3]), token)
            operation, rest = (parts[3], parts[4:]) if len(parts) > 3 else ("revision", ["main"])
            return getattr(self, "_api_" + operation.replace("-", "_"), self._unknown)(repo, rest, query, body, token)
        raise _Refusal(404, "RepoNotFound", f"no such page: {self.path}")

    def _unknown(self, *_: Any) -> None:
        raise _Refusal(404, "", f"no such page: {self.path}")

    def _create(self, wanted: dict[str, Any], token: str | None) -> None:
        hub, kind = self.hub, wanted.get("type") or "model"
        if token != hub.token:
            raise _Refusal(401, "", "Invalid user token.")
        repo_id = f"{wanted.get('organization') or hub.user}/{wanted['name']}"
        answer = {"url": f"{hub.url}/{'' if kind == 'model' else kind + 's/'}{repo_id}", "name": repo_id, "id": repo_id}
        if (kind, repo_id) in hub.repositories:
            return self._send(409, {"error": "You already created this repo", **answer})
        if not hub.writable(repo_id):
            raise _Refusal(403, "", f"You don't have the rights to create a {kind} under this namespace")
        hub.create(kind, repo_id, private=wanted.get("visibility") == "private" or bool(wanted.get("private")))
        return self._send(200, answer)

    def _find(self, kind: str, repo_id: str, token: str | None) -> Repository:
        repo = self.hub.repositories.get((kind, repo_id))
        if repo is None or (repo.private and token != self.hub.token):
            raise _Refusal(404 if token else 401, "RepoNotFound", "Repository Not Found")
        return repo

    def _tree(self, repo: Repository, revision: str) -> tuple[str, Tree]:
        oid = repo.refs.get(revision, revision)
        if oid not in repo.commits:
            raise _Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return oid, repo.commits[oid]

    def _resolve(self, repo: Repository, revision: str, path: str) -> None:
        if repo.gated:
            raise _Refusal(403, "GatedRepo", f"Access to {repo.kind} {repo.id} is restricted. Visit the page to ask for access.")
        oid, tree = self._tree(repo, revision)
        if path not in tree:
            self._send(
                404,
                {"error": "Entry not found"},
                {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found", "X-Repo-Commit": oid},
            )
            return
        blob = tree[path]
        headers = {"X-Repo-Commit": oid, "ETag": f'"{blob.sha256 if blob.lfs else blob.git_oid}"', "Accept-Ranges": "bytes"}
        if blob.lfs:
            headers |= {"X-Linked-Etag": f'"{blob.sha256}"', "X-Linked-Size": str(len(blob.data))}
        headers["Content-Type"] = "application/octet-stream"
        size = len(blob.data)
        if (match := re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")) and (match[1] or match[2]):
            start = int(match[1]) if match[1] else max(0, size - int(match[2]))
            stop = min(int(match[2]) + 1, size) if match[1] and match[2] else size
            self._send(206, None, {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{size}"}, blob.data[start:stop])
            return
        self._send(200, None, headers, blob.data)

    def _lfs_batch(self, wanted: dict[str, Any]) -> None:
        objects = []
        for item in wanted["objects"]:
            href = {"href": f"{self.hub.url}/lfs/{item['oid']}"}
            stored = item["oid"] in self.hub.blobs
            objects.append({"oid": item["oid"], "size": item["size"], **({} if stored else {"actions": {"upload": href, "verify": href}})})
        self._send(200, {"transfer": "basic", "objects": objects})

    def _lfs_object(self, oid: str, body: bytes) -> None:
        if self.command == "PUT":
            if hashlib.sha256(body).hexdigest() != oid:
                raise _Refusal(400, "", "the bytes do not hash to their name")
            self.hub.blobs[oid] = body
        elif oid not in self.hub.blobs:
            raise _Refusal(404, "", "no such object")
        self._send(200, {})

    # ---- repositories

    def _api_revision(self, repo: Repository, rest: list[str], *_: Any) -> None:
        oid, tree = self._tree(repo, "/".join(rest))
        info = {
            "id": repo.id,
            "modelId": repo.id,
            "sha": oid,
            "private": repo.private,
            "gated": "auto" if repo.gated else False,
            "tags": [],
        }
        siblings = [{"rfilename": path} for path in sorted(tree)]
        self._send(200, {**info, "siblings": siblings, "downloads": 0, "likes": 0, "lastModified": DATE, "createdAt": DATE})

    def _api_preupload(self, repo: Repository, rest: list[str], query: Any, body: bytes, *_: Any) -> None:
        tree, answer = self._tree(repo, "/".join(rest))[1], []
        for item in json.loads(body)["files"]:
            lfs = item["path"].endswith(LFS_SUFFIXES) or item["size"] > 10_000_000
            old = tree.get(item["path"])
            oid = None if old is None else old.sha256 if old.lfs else old.git_oid
            answer.append({"path": item["path"], "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False, "oid": oid})
        self._send(200, {"files": answer})

    def _api_commit(self, repo: Repository, rest: list[str], query: dict[str, list[str]], body: bytes, token: str | None) -> None:
        hub, revision = self.hub, "/".join(rest)
        lines = [json.loads(line) for line in body.splitlines()]
        header = next(line["value"] for line in lines if line["key"] == "header")
        propose = query.get("create_pr", ["0"])[0] in ("1", "true", "True")
        if token != hub.token:
            raise _Refusal(401, "", "Invalid user token.")
        if not hub.writable(repo.id) and not propose and not revision.startswith("refs/pr/"):
            raise _Refusal(403, "", "Forbidden: pass `create_pr=1` to open a pull request")
        head, tree = self._tree(repo, header.get("parentCommit") or revision if propose else revision)
        if not propose and header.get("parentCommit") not in (None, head):
            raise _Refusal(412, "", "A commit has happened since. Please refresh and try again.")
        tree = dict(tree)
        for line in lines:
            self._change(tree, line["key"], line["value"])
        prefix = "" if repo.kind == "model" else repo.kind + "s/"
        pull = None
        if propose:
            number = len(repo.pulls) + 1
            repo.pulls.append(PullRequest(number, header["summary"], hub.user))
            revision, pull = f"refs/pr/{number}", f"{hub.url}/{prefix}{repo.id}/discussions/{number}"
        oid = repo.commit(tree, revision)
        self._send(
            200, {"success": True, "commitOid": oid, "commitUrl": f"{hub.url}/{prefix}{repo.id}/commit/{oid}", "pullRequestUrl": pull}
        )

    def _change(self, tree: Tree, key: str, value: dict[str, Any]) -> None:
        if key == "file":
            tree[value["path"]] = Blob(base64.b64decode(value["content"]), False)
        elif key == "lfsFile":
            if value["oid"] not in self.hub.blobs:
                raise _Refusal(400, "", f"LFS object of {value['path']} was never uploaded")
            tree[value["path"]] = Blob(self.hub.blobs[value["oid"]], True)
        elif key == "deletedFile":
            tree.pop(value["path"], None)
        elif key == "deletedFolder":
            for path in [path for path in tree if path.startswith(value["path"].rstrip("/") + "/")]:
                del tree[path]

    def _api_tree(self, repo: Repository, rest: list[str], query: dict[str, list[str]], *_: Any) -> None:
        tree = self._tree(repo, rest[0])[1]
        prefix = "".join(part + "/" for part in rest[1:] if part)
        deep = query.get("recursive", ["false"])[0].lower() in ("1", "true")
        files, folders = [], set()
        for path, blob in sorted(tree.items()):
            if not path.startswith(prefix):
                continue
            parents = path.removeprefix(prefix).split("/")[:-1]
            folders |= {prefix + "/".join(parents[: i + 1]) for i in range(len(parents) if deep else min(1, len(parents)))}
            if deep or not parents:
                files.append(blob.entry(path))
        if prefix and not files and not folders:
            raise _Refusal(404, "EntryNotFound", f"{prefix} does not exist")
        self._send(200, [{"type": "directory", "path": path, "size": 0, "oid": "0" * 40} for path in sorted(folders)] + files)

    def _api_paths_info(self, repo: Repository, rest: list[str], query: Any, body: bytes, *_: Any) -> None:
        tree = self._tree(repo, "/".join(rest))[1]
        wanted = json.loads(body)["paths"] if body[:1] == b"{" else parse_qs(body.decode()).get("paths", [])
        found = [tree[path].entry(path) for path in wanted if path in tree]
        folders = [path for path in wanted if path not in tree and any(name.startswith(path.rstrip("/") + "/") for name in tree)]
        self._send(200, found + [{"type": "directory", "path": path, "size": 0, "oid": "0" * 40} for path in folders])

    def _api_refs(self, repo: Repository, *_: Any) -> None:
        branches = [{"name": "main", "ref": "refs/heads/main", "targetCommit": repo.refs["main"]}]
        pulls = [{"name": n, "ref": n, "targetCommit": oid} for n, oid in repo.refs.items() if n.startswith("refs/pr/")]
        tags = [{"name": n, "ref": f"refs/tags/{n}", "targetCommit": oid} for n, oid in repo.refs.items() if n != "main" and "/" not in n]
        self._send(200, {"branches": branches, "converts": [], "tags": tags, "pullRequests": pulls})

    def _api_tag(self, repo: Repository, rest: list[str], query: Any, body: bytes, *_: Any) -> None:
        repo.refs[json.loads(body)["tag"]] = self._tree(repo, "/".join(rest))[0]
        self._send(200, {})

    def _api_discussions(self, repo: Repository, rest: list[str], query: dict[str, list[str]], *_: Any) -> None:
        wanted = query.get("status", ["all"])[0]
        pulls = [p for p in repo.pulls if wanted in ("all", p.status) or (wanted == "closed" and p.status != "open")]
        base = {"isPullRequest": True, "createdAt": DATE, "repo": {"name": repo.id, "type": repo.kind}}
        found = [{**base, "num": p.number, "title": p.title, "status": p.status, "author": {"name": p.author}} for p in pulls]
        self._send(200, {"discussions": found, "count": len(found), "start": 0})
