"""Sending a folder to the Hub: what is sent, what is not sent again, and what happens when the Hub or the line fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from decodehub.core.provenance import redact
from decodehub.hub import client as publish
from decodehub.hub.client import HubError, Repo, ask, hub_api, remote_files
from decodehub.hub.sending import MANIFEST, Goal, Plan, Published, look_at, make_plan, send_plan, write_manifest

REPO = Repo("dataset", "lab/numbers")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two large files (by their ending) and a small one."""
    (tmp_path / "out" / "data").mkdir(parents=True)
    (tmp_path / "out" / "README.md").write_text("---\nlicense: mit\n---\n# Numbers\n")
    for i in range(2):
        (tmp_path / "out" / "data" / f"part-{i}.parquet").write_bytes(bytes([i]) * 5000)
    return tmp_path / "out"


def plan_of(folder: Path, *, repo: Repo = REPO, title: str = "Numbers", propose: bool = False, **options: Any) -> Plan:
    write_manifest(folder)
    goal = Goal(title, whole=True, propose=propose, **options)
    return make_plan(folder, look_at(hub_api(), repo, title, propose=propose), goal)


@pytest.fixture
def push(folder: Path) -> Callable[..., Published]:
    return lambda **options: send_plan(hub_api(), plan_of(folder, **options))


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class TestPlan:
    """What is sent."""

    def test_a_new_repository_is_private_and_whole(self, hub: Any, push: Callable[..., Published], folder: Path) -> None:
        plan = plan_of(folder, propose=True)
        assert [(f.path, f.replaces) for f in plan.send][:2] == [(MANIFEST, False), ("README.md", False)] and plan.send[1].size == 31
        assert not plan.state.exists and plan.goal.private and plan.size > 10_031 and not hub.repositories
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
        plan = plan_of(folder)
        assert [f.path for f in plan.send] == [MANIFEST, "data/part-0.parquet"] and plan.send[1].replaces and plan.same == 1
        assert plan.delete == ("data/part-1.parquet",) and plan.others == ("notes.txt",)  # which are someone's own
        push()
        assert set(hub.files(*REPO)) == {MANIFEST, "README.md", "notes.txt", "data/part-0.parquet"}

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
            push(repo=theirs, into_existing=True)
        assert push(repo=theirs, propose=True, into_existing=True).pull == 1
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
        with pytest.raises(
            HubError, match=r"datasets/lab/numbers: the Hub could not be used after 5 attempts .*Run this again.*Nothing was published"
        ):
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

    def test_a_change_of_others_in_the_meantime(self, hub: Any, push: Callable[..., Published], folder: Path) -> None:
        push()
        repo = hub.repo(*REPO)
        (folder / "data" / "part-0.parquet").write_bytes(b"new")
        hub.fail("POST", "/commit/", lambda: repo.commit({**repo.tree(), "data/part-0.parquet": _blob(hub, b"theirs")}))
        with pytest.raises(
            HubError, match=r"changed by someone else during the push \(data/part-0.parquet\): expected [0-9a-f]{12}, found"
        ):
            push()
        assert hub.files(*REPO)["data/part-0.parquet"] == b"theirs"

    @pytest.mark.parametrize("when", ["before the commit", "while the repository is made"])
    def test_commits_of_others_to_other_files_land_too(self, hub: Any, push: Callable[..., Published], folder: Path, when: str) -> None:
        seen = iter(range(3))

        def theirs() -> None:
            repo = hub.repo(*REPO)
            repo.commit({**repo.tree(), f"theirs-{next(seen)}.txt": _blob(hub, b"x")})

        if when == "before the commit":
            push()
            (folder / "data" / "part-0.parquet").write_bytes(b"new")
            hub.fail("POST", "/commit/", theirs, times=3)
            done = push()
            assert hub.files(*REPO) == content(folder) | {f"theirs-{i}.txt": b"x" for i in range(3)}
            assert done.revision == hub.repo(*REPO).refs["main"]
        else:
            hub.fail("GET", "/api/datasets/lab/numbers", lambda: None)
            hub.fail("GET", "/api/datasets/lab/numbers", theirs)  # the first look after it was made
            with pytest.raises(HubError, match=r"was made by someone else during the push and holds theirs-0.txt"):
                push()
            assert hub.files(*REPO) == {"theirs-0.txt": b"x"}

    def test_two_at_once(self, hub: Any, tmp_path: Path) -> None:
        from concurrent.futures import ThreadPoolExecutor

        def one(i: int) -> Published:
            (tmp_path / str(i)).mkdir()
            (tmp_path / str(i) / f"record-{i}.json").write_text("{}")
            goal = Goal(f"Record {i}", propose=False)
            return send_plan(hub_api(), make_plan(tmp_path / str(i), look_at(hub_api(), REPO, goal.title, propose=False), goal))

        with ThreadPoolExecutor(6) as pool:
            done = list(pool.map(one, range(6)))
        assert set(hub.files(*REPO)) == {f"record-{i}.json" for i in range(6)}
        assert len({published.revision for published in done}) == 6

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
        assert len(ask(lambda: remote_files(hub_api(), REPO, "main"), REPO)) == 4


def _blob(hub: Any, data: bytes) -> Any:
    import sys

    return sys.modules["hub_server"].Blob(data, False)


class TestFilesOfOthers:
    """What a push did not make is neither deleted nor replaced."""

    THEIRS = {"data/train-00000.parquet": b"1", "sub/other.parquet": b"2", "modeling_other.py": b"3"}  # noqa: RUF012

    def test_a_repository_of_others_needs_consent_and_keeps_its_files(self, hub: Any, push: Callable[..., Published], folder: Path) -> None:
        hub.create(*REPO, self.THEIRS)
        plan = plan_of(folder)
        assert plan.needs_consent == plan.others == tuple(sorted(self.THEIRS)) and not plan.delete
        with pytest.raises(HubError, match=r"holds files that this push did not make: data/train-00000.parquet, .*--into-existing"):
            send_plan(hub_api(), plan)
        assert hub.files(*REPO) == self.THEIRS
        push(into_existing=True)
        assert hub.files(*REPO) == self.THEIRS | content(folder)
        (folder / "data" / "part-1.parquet").unlink()
        push()  # the repository has a manifest now; only what it names goes
        assert hub.files(*REPO) == self.THEIRS | content(folder)

    def test_a_file_that_others_changed_since_stays_and_is_named(self, hub: Any, push: Callable[..., Published], folder: Path) -> None:
        push()
        repo = hub.repo(*REPO)
        repo.commit({**repo.tree(), "data/part-1.parquet": _blob(hub, b"mended")})
        (folder / "data" / "part-1.parquet").unlink()
        plan = plan_of(folder)
        assert plan.changed == ("data/part-1.parquet",) and not plan.delete
        with pytest.raises(
            HubError, match=r"holds data/part-1.parquet, which this push did not make and which would be read as part of it"
        ):
            push(reserved=("data/part-*",))
        push()
        assert hub.files(*REPO)["data/part-1.parquet"] == b"mended"

    def test_a_file_that_others_changed_is_not_replaced_without_consent(
        self, hub: Any, push: Callable[..., Published], folder: Path
    ) -> None:
        push()
        repo = hub.repo(*REPO)
        repo.commit({**repo.tree(), "data/part-1.parquet": _blob(hub, b"mended")})
        assert plan_of(folder).replaces == ("data/part-1.parquet",)
        with pytest.raises(HubError, match="into-existing"):
            push()
        push(into_existing=True)
        assert hub.files(*REPO) == content(folder)

    def test_a_new_repository_of_the_hub_counts_as_empty(self, hub: Any, push: Callable[..., Published], folder: Path) -> None:
        hub.create(*REPO, {".gitattributes": b"*.parquet filter=lfs\n"})
        push()
        assert hub.files(*REPO) == content(folder) | {".gitattributes": b"*.parquet filter=lfs\n"}

    @pytest.mark.parametrize("data", [b"[]", b"{", b'{"schema_version": 1, "files": {"a": "b"}}', b'{"schema_version": 9, "files": {}}'])
    def test_a_damaged_manifest_is_no_licence_to_delete(self, hub: Any, push: Callable[..., Published], data: bytes) -> None:
        hub.create(*REPO, {MANIFEST: data, "data/x.parquet": b"1"})
        with pytest.raises(HubError, match=r"manifest.json (is damaged|has schema version 9)"):
            push()
        assert len(hub.files(*REPO)) == 2
        hub.create(*REPO, {"README.md": b"x"})

    def test_a_manifest_that_arrives_damaged(self, hub: Any, push: Callable[..., Published]) -> None:
        push()
        hub.fail("GET", "/resolve/", "corrupt")
        with pytest.raises(HubError, match=r"manifest.json arrived damaged: expected git:"):
            push()


class TestWhatIsSaidOfFailures:
    """ "Nothing was published" is said when nothing was, and then only."""

    def test_when_nothing_was(self, hub: Any, push: Callable[..., Published]) -> None:
        hub.fail("POST", "/commit/", 500, times=10_000)
        with pytest.raises(HubError, match="Nothing was published, but the private repository datasets/lab/numbers may have been made"):
            push()
        with pytest.raises(HubError, match=r"Nothing was published$"):
            push()

    def test_not_when_the_commit_landed(self, hub: Any, push: Callable[..., Published], folder: Path) -> None:
        hub.fail("POST", "/commit/", 500, times=5, late=True)
        hub.faults[0].times = 1
        hub.fail("POST", "/commit/", 500, times=10_000)
        assert push().changed and hub.files(*REPO) == content(folder)  # seen by looking

    def test_nor_when_the_look_afterwards_fails(self, hub: Any, push: Callable[..., Published], folder: Path) -> None:
        hub.fail("POST", "/commit/", lambda: hub.fail("GET", "/tree/", 500, times=10_000))
        with pytest.raises(HubError) as error:
            push()
        assert "Nothing was" not in str(error.value) and hub.files(*REPO) == content(folder)


def test_tokens_are_hidden_and_other_words_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "a-token-of-another-kind")
    text = f"a-token-of-another-kind hf_{'aB3' * 11} hf_oauth_{'x' * 20}.y-z hf_hub_download hf_{'short'}"
    hidden = redact(text)
    assert hidden == "hf_[hidden] hf_[hidden] hf_[hidden] hf_hub_download hf_short"
