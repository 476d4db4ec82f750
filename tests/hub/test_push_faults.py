"""Sending a folder to the Hub: what is sent, what is not sent again, and what happens when the Hub or the line fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from decodehub.core.provenance import redact
from decodehub.hub import client as publish
from decodehub.hub.client import HubError, Published, Repo, ask, hub_api, make_plan, remote_files, send_plan

REPO = Repo("dataset", "lab/numbers")
OWNED = ("data/*.parquet",)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two large files (by their ending) and a small one."""
    (tmp_path / "out" / "data").mkdir(parents=True)
    (tmp_path / "out" / "README.md").write_text("---\nlicense: mit\n---\n# Numbers\n")
    for i in range(2):
        (tmp_path / "out" / "data" / f"part-{i}.parquet").write_bytes(bytes([i]) * 5000)
    return tmp_path / "out"


@pytest.fixture
def push(folder: Path) -> Callable[..., Published]:
    def call(*, propose: bool = False, repo: Repo = REPO, title: str = "Numbers") -> Published:
        plan = make_plan(hub_api(), repo, folder, title, owned=OWNED, propose=propose)
        return send_plan(hub_api(), plan, OWNED)

    return call


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class TestPlan:
    """What is sent."""

    def test_a_new_repository_is_private_and_whole(self, hub: Any, push: Callable[..., Published], folder: Path) -> None:
        plan = make_plan(hub_api(), REPO, folder, "Numbers")
        assert next((f.path, f.size, f.replaces) for f in plan.send) == ("README.md", 31, False)
        assert not plan.exists and plan.private and plan.propose and plan.size == 10_031 and not hub.repositories
        done = push()
        assert hub.repo(*REPO).private and hub.files(*REPO) == content(folder)
        assert done == Published(REPO, hub.repo(*REPO).refs["main"], None, True)
        assert hub.count("PUT", "/lfs/") == 2 and hub.count("POST", "/commit/") == 1

    def test_the_same_again_sends_nothing(self, hub: Any, push: Callable[..., Published]) -> None:
        first = push()
        writes = [r for r in hub.requests if r.method in ("PUT", "POST")]
        assert push() == first._replace(changed=False)
        assert [r for r in hub.requests if r.method in ("PUT", "POST")] == writes

    def test_only_the_difference_is_sent_and_what_is_left_over_goes(self, hub: Any, push: Callable[..., Published], folder: Path) -> None:
        push()
        hub.repo(*REPO).commit({**hub.repo(*REPO).tree(), "notes.txt": hub.repo(*REPO).tree()["README.md"]})
        (folder / "data" / "part-1.parquet").unlink()
        (folder / "data" / "part-0.parquet").write_bytes(b"new")
        plan = make_plan(hub_api(), REPO, folder, "Numbers", owned=OWNED)
        assert [f.path for f in plan.send] == ["data/part-0.parquet"] and plan.send[0].replaces and plan.same == 1
        assert plan.delete == ("data/part-1.parquet",)  # and not the notes, which are someone's own
        push()
        assert set(hub.files(*REPO)) == {"README.md", "notes.txt", "data/part-0.parquet"}

    def test_a_pull_request_is_opened_once_and_brought_up_to_date(self, hub: Any, push: Callable[..., Published], folder: Path) -> None:
        assert push(propose=True).pull == 1
        assert hub.files(*REPO) == {} and hub.files(*REPO, "refs/pr/1") == content(folder)
        assert push(propose=True) == (REPO, hub.repo(*REPO).refs["refs/pr/1"], 1, False)
        (folder / "README.md").write_text("---\nlicense: mit\n---\n# Other\n")
        again = push(propose=True)
        assert again.pull == 1 and again.changed and len(hub.repo(*REPO).pulls) == 1
        assert hub.files(*REPO, "refs/pr/1") == content(folder)
        assert push(propose=True, title="Another").pull == 2
        hub.merge(*REPO, 1)
        assert push(propose=True) == (REPO, hub.repo(*REPO).refs["main"], None, False)

    def test_the_model_of_someone_else_gets_a_pull_request_and_no_commit(self, hub: Any, push: Callable[..., Published]) -> None:
        theirs = Repo("model", "other/model")
        hub.create(*theirs, {"README.md": b"theirs"})
        with pytest.raises(HubError, match=r"may not do that in other/model .*propose it as a pull request"):
            push(repo=theirs)
        assert push(repo=theirs, propose=True).pull == 1
        assert hub.files(*theirs) == {"README.md": b"theirs"}

    def test_a_link_is_not_followed(self, hub: Any, push: Callable[..., Published], folder: Path) -> None:
        (folder / "link.md").symlink_to("/etc/hostname")
        with pytest.raises((HubError, ValueError), match="is a link"):
            push()


PASSING: dict[str, tuple[str, str, Any, dict[str, Any]]] = {
    "500 on the commit": ("POST", "/commit/", 500, {}),
    "503 twice": ("POST", "/commit/", 503, {"times": 2}),
    "409, another commit under way": ("POST", "/commit/", 409, {}),
    "500 on an upload": ("PUT", "/lfs/", 500, {}),
    "connection cut in the middle of an upload": ("PUT", "/lfs/", "cut", {}),
    "no answer to the commit": ("POST", "/commit/", "timeout", {}),
    "no answer to a look": ("GET", "/tree/", "timeout", {}),
    "500 on a look": ("GET", "/tree/", 502, {}),
    "500 on creation": ("POST", "/repos/create", 500, {}),
    "commit done, answer lost": ("POST", "/commit/", "cut", {"late": True}),
    "commit done, 500 answered": ("POST", "/commit/", 500, {"late": True}),
}


class TestFaults:
    """A fault that passes is got over; another is an error in words; nothing is ever half there."""

    @pytest.mark.parametrize("propose", [False, True], ids=["commit", "pull request"])
    @pytest.mark.parametrize("fault", PASSING)
    def test_what_passes_is_tried_again(
        self, hub: Any, push: Callable[..., Published], folder: Path, fault: str, propose: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(publish, "TIMEOUT_S", 0.4)
        method, part, action, options = PASSING[fault]
        hub.fail(method, part, action, **options)
        done = push(propose=propose)
        assert not any(f.times for f in hub.faults), "the fault was not met"
        assert hub.files(*REPO, done.revision) == content(folder)
        assert len(hub.repo(*REPO).pulls) == propose  # never a second one
        assert len(hub.repo(*REPO).commits) == 2  # the first, empty one, and ours

    @pytest.mark.parametrize("what", [("POST", "/commit/", 500), ("PUT", "/lfs/", "cut"), ("POST", "/lfs/objects/batch", 500)])
    def test_what_does_not_pass_leaves_nothing_and_a_restart_goes_on(
        self, hub: Any, push: Callable[..., Published], folder: Path, what: tuple[str, str, Any]
    ) -> None:
        hub.fail(*what, times=10_000)
        with pytest.raises(HubError, match=r"datasets/lab/numbers: the Hub could not be used after 5 attempts .*run this again"):
            push()
        assert hub.files(*REPO) == {}
        stored = len(hub.blobs)
        hub.faults.clear()
        hub.requests.clear()
        push()
        assert hub.files(*REPO) == content(folder)
        assert hub.count("PUT", "/lfs/") == 2 - stored  # what had arrived is not sent again

    def test_one_file_of_two_had_arrived(self, hub: Any, push: Callable[..., Published], folder: Path) -> None:
        import hashlib

        name = hashlib.sha256((folder / "data" / "part-0.parquet").read_bytes()).hexdigest()
        hub.fail("PUT", name, "cut", times=10_000)
        with pytest.raises(HubError):
            push()
        assert len(hub.blobs) == 1 and hub.files(*REPO) == {}
        hub.faults.clear()
        hub.requests.clear()
        push()
        assert hub.count("PUT", "/lfs/") == 1 and hub.files(*REPO) == content(folder)

    @pytest.mark.parametrize(
        ("fault", "message"),
        [
            (("POST", "/commit/", 403, {}), "this token may not do that in datasets/lab/numbers"),
            (("POST", "/commit/", 401, {}), "the Hub does not know this token .*hf auth login"),
            (("POST", "/commit/", 400, {"words": "bad file"}), "could not be used .*status 400: .*bad file"),
            (("GET", "/tree/", 403, {"code": "GatedRepo"}), "datasets/lab/numbers is gated: ask for access on its page"),
            (("GET", "/tree/", 404, {"code": "RevisionNotFound"}), "has no such revision"),
        ],
    )
    def test_what_is_refused_is_said_in_words(
        self, hub: Any, push: Callable[..., Published], fault: tuple[str, str, Any, dict[str, Any]], message: str
    ) -> None:
        hub.create(*REPO)
        method, part, action, options = fault
        hub.fail(method, part, action, **options)
        with pytest.raises(HubError, match=message):
            push()
        assert hub.files(*REPO) == {} and hub.count("POST", "/commit/") <= 1  # and it is not tried again

    def test_a_repository_that_is_not_there(self, hub: Any, push: Callable[..., Published]) -> None:
        with pytest.raises(HubError, match=r"datasets/other/numbers is not on the Hub, or this token may not see it"):
            push(repo=Repo("dataset", "other/numbers"))

    def test_without_a_token(self, hub: Any, push: Callable[..., Published], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("HF_TOKEN")
        with pytest.raises(HubError, match="there is no token of the Hub on this machine: run `hf auth login`"):
            push()

    def test_a_change_of_others_in_the_meantime(self, hub: Any, push: Callable[..., Published]) -> None:
        repo = hub.create(*REPO)
        hub.fail("POST", "/commit/", lambda: repo.commit({}))
        with pytest.raises(HubError, match="was changed since it was looked at"):
            push()
        hub.fail("POST", "/commit/", 500)
        hub.fail("GET", "/revision/", lambda: None)
        hub.fail("POST", "/preupload/", lambda: repo.commit({"theirs.txt": next(iter(_blobs(hub, b"x")))}))
        with pytest.raises(HubError, match=r"changed by someone else during the push: expected [0-9a-f]{12}, found [0-9a-f]{12}"):
            push()
        assert set(hub.files(*REPO)) == {"theirs.txt"}

    def test_other_bytes_than_those_that_were_sent(self, hub: Any, push: Callable[..., Published]) -> None:
        def damage() -> None:
            name = next(iter(hub.blobs))
            hub.blobs[name] = b"something else"

        hub.fail("POST", "/commit/", damage)
        with pytest.raises(HubError, match=r"does not hold what was sent: data/part-\d.parquet. Do not use this revision"):
            push()

    def test_reading_is_tried_again_too(self, hub: Any, push: Callable[..., Published]) -> None:
        push()
        hub.fail("GET", "/tree/", 500, times=2)
        assert len(ask(lambda: remote_files(hub_api(), REPO, "main"), REPO)) == 3


def _blobs(hub: Any, *data: bytes) -> list[Any]:
    import sys

    return [sys.modules["hub_server"].Blob(item, False) for item in data]


def test_tokens_are_hidden_and_other_words_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "a-token-of-another-kind")
    text = f"a-token-of-another-kind hf_{'aB3' * 11} hf_oauth_{'x' * 20}.y-z hf_hub_download hf_{'short'}"
    hidden = redact(text)
    assert hidden == "hf_[hidden] hf_[hidden] hf_[hidden] hf_hub_download hf_short"
