"""Files written whole or not at all, paths that stay in their folder, and long jobs that can be stopped anywhere."""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from decodehub.core import files
from decodehub.core.jobs import JobFailed, Report, raise_if_failed, run_job


class TestFiles:
    """`decodehub.core.files`."""

    def test_home_is_the_variable_and_absolute(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DECODEHUB_HOME", str(tmp_path))
        assert files.home() == tmp_path
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("DECODEHUB_HOME", "here")
        assert files.home() == tmp_path / "here"
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("DECODEHUB_HOME", "~/there")
        assert files.home() == tmp_path / "there"
        for unset in ("", None):
            monkeypatch.setenv("DECODEHUB_HOME", unset) if unset is not None else monkeypatch.delenv("DECODEHUB_HOME")
            assert files.home() == tmp_path / ".cache" / "decodehub"

    def test_canonical_json_is_one_text_for_equal_values(self) -> None:
        assert files.canonical_json({"b": 1, "a": [1.5, None, "é"]}) == '{"a":[1.5,null,"é"],"b":1}'
        assert files.canonical_json({"b": 1, "a": 2}) == files.canonical_json({"a": 2, "b": 1})
        assert json.loads(files.canonical_json({"x": 0.1 + 0.2}))["x"] == 0.1 + 0.2
        for value in (math.nan, math.inf, -math.inf):
            with pytest.raises(ValueError, match="not JSON compliant"):
                files.canonical_json({"a": [value]})

    def test_hashes_are_sha256_of_the_bytes(self, tmp_path: Path) -> None:
        data = os.urandom(3_000_000)
        (tmp_path / "a").write_bytes(data)
        expected = "sha256:" + hashlib.sha256(data).hexdigest()
        assert files.sha256_bytes(data) == files.sha256_file(tmp_path / "a") == expected
        assert files.sha256_json({"b": 1, "a": 2}) == files.sha256_bytes(b'{"a":2,"b":1}')

    def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(self, tmp_path: Path) -> None:
        path = tmp_path / "deep" / "file.json"
        files.write_json(path, {"a": 1})
        assert path.read_bytes() == b'{\n  "a": 1\n}\n'
        with pytest.raises(RuntimeError, match="stopped"), files.atomic_path(path) as part:
            part.write_bytes(b"half")
            assert part.parent == path.parent and path.read_bytes() == b'{\n  "a": 1\n}\n'
            raise RuntimeError("stopped")
        with pytest.raises(ValueError):
            files.write_json(path, {"a": math.nan})
        with pytest.raises(TypeError):
            files.write_bytes(path, "text")  # type: ignore[arg-type]
        with pytest.raises(FileNotFoundError), files.atomic_path(path) as part:
            part.unlink()
        assert json.loads(path.read_text()) == {"a": 1} and list(path.parent.iterdir()) == [path]
        files.write_bytes(path, b"new")
        assert path.read_bytes() == b"new" and list(path.parent.iterdir()) == [path]

    @pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
    def test_a_written_file_has_the_rights_that_the_user_asked_for(self, tmp_path: Path, umask: int, mode: int) -> None:
        before = os.umask(umask)
        try:
            files.write_bytes(tmp_path / "file", b"x")
            assert os.umask(umask) == umask
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode

    def test_paths_stay_in_their_folder(self, tmp_path: Path) -> None:
        folder = tmp_path / "folder"
        (folder / "sub").mkdir(parents=True)
        (tmp_path / "folder-2").mkdir()
        (folder / "out").symlink_to(tmp_path)
        (folder / "in").symlink_to(folder / "sub")
        for good in ("a", "sub/a", "sub/../a", "in/a", "..a", "sub/.../a"):
            assert files.inside(folder, good) == folder / good
        for bad, words in {
            "": "must be relative",
            "/etc/passwd": "must be relative",
            "a\\b": "must be relative",
            "a\0b": "must be relative",
            "..": "leads out",
            "../folder-2/a": "leads out",
            "sub/../../a": "leads out",
            "out/a": "leads out",
            "in/../../a": "leads out",
        }.items():
            with pytest.raises(ValueError, match=words):
                files.inside(folder, bad)

    def test_a_folder_reached_through_a_link_is_a_folder(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "real")
        assert files.inside(tmp_path / "link", "a") == tmp_path / "link" / "a"

    def test_pointers_are_told_from_data(self) -> None:
        lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
        assert files.pointer_kind(lfs) == "Git LFS"
        assert files.pointer_kind(b"/annex/objects/SHA256E-s10--00.eeg\n") == "git-annex"
        assert files.pointer_kind(b"../../.git/annex/objects/XX/YY/SHA256E-s10--00/SHA256E-s10--00") == "git-annex"
        assert files.pointer_kind(b"\x89PNG\r\n") is None
        assert files.pointer_kind(b"a long text that names /annex/objects/ " + b"x" * files.POINTER_MAX_BYTES) is None

    def test_reading_says_why_data_are_not_there(self, tmp_path: Path) -> None:
        path = tmp_path / "data"
        with pytest.raises(FileNotFoundError, match="data does not exist"):
            files.read_data(path)
        with pytest.raises(FileNotFoundError):
            files.read_data(tmp_path)
        path.symlink_to(".git/annex/objects/x")
        with pytest.raises(ValueError, match="git-annex link without its content: run 'datalad get' or 'git annex get'"):
            files.read_data(path)
        path.unlink()
        for content, words in {
            b"": "is empty",
            b"x" * 11: r"has 11 bytes, more than the 10 allowed",
            b"/annex/objects/SHA256E-s10--00.eeg\n": "has 35 bytes",
        }.items():
            path.write_bytes(content)
            with pytest.raises(ValueError, match=words):
                files.read_data(path, max_bytes=10)
        with pytest.raises(ValueError, match="git-annex pointer in place of the data: run 'datalad get'"):
            files.read_data(path)
        path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
        with pytest.raises(ValueError, match="Git LFS pointer in place of the data: run 'git lfs pull' in its folder"):
            files.read_data(path)
        path.write_bytes(b"x" * 10)
        assert files.read_data(path, max_bytes=10) == b"x" * 10


ITEMS = {f"item-{i}.bin": i for i in range(9)}


class Work:
    """Makes the bytes of an item and remembers what it was asked for."""

    def __init__(self, *, fails: tuple[int, ...] = (), salt: str = "") -> None:
        self.asked: list[int] = []
        self.fails, self.salt = fails, salt

    def __call__(self, item: int) -> bytes:
        self.asked.append(item)
        if item in self.fails:
            raise OSError(f"item {item} is bad")
        return f"{item}{self.salt}".encode() * 100


def run(work: Callable[[int], bytes], folder: Path, settings: str = "s1", **options: int) -> Report:
    return run_job(ITEMS, work, folder, settings, progress=False, **options)


def make_part(folder: Path, rank: int, world: int) -> None:
    run(Work(), folder, rank=rank, world=world)


class TestJobs:
    """`decodehub.core.jobs`."""

    def test_a_restart_does_only_what_is_missing(self, tmp_path: Path) -> None:
        assert run(Work(), tmp_path) == Report(list(ITEMS), [], {})
        assert all((tmp_path / key).read_bytes() == str(i).encode() * 100 for key, i in ITEMS.items())
        (tmp_path / "item-3.bin").unlink()
        (tmp_path / "item-5.bin").write_bytes(b"damaged")
        again = Work()
        report = run(again, tmp_path)
        assert again.asked == [3, 5] and report.made == ["item-3.bin", "item-5.bin"] and len(report.reused) == 7
        assert (tmp_path / "item-5.bin").read_bytes() == b"5" * 100
        untouched = Work()
        assert run(untouched, tmp_path).reused == list(ITEMS) and untouched.asked == []

    def test_other_settings_make_every_item_anew(self, tmp_path: Path) -> None:
        run(Work(), tmp_path)
        changed = Work(salt="!")
        assert run(changed, tmp_path, "s2").made == list(ITEMS)
        assert (tmp_path / "item-1.bin").read_bytes() == b"1!" * 100
        # Back under the first settings, the files are those of the second: nothing may be reused.
        assert run(Work(), tmp_path, "s1").made == list(ITEMS)

    def test_a_file_without_its_line_is_not_trusted(self, tmp_path: Path) -> None:
        (tmp_path / "item-2.bin").write_bytes(b"who wrote this?")
        assert run(Work(), tmp_path).made == list(ITEMS)
        assert (tmp_path / "item-2.bin").read_bytes() == b"2" * 100

    def test_failures_are_listed_and_do_not_stop_the_others(self, tmp_path: Path) -> None:
        report = run(Work(fails=(2, 7)), tmp_path)
        assert report.failed == {"item-2.bin": "OSError: item 2 is bad", "item-7.bin": "OSError: item 7 is bad"}
        assert len(report.made) == 7 and not (tmp_path / "item-2.bin").exists()
        with pytest.raises(JobFailed) as error:
            raise_if_failed(report, "images")
        assert str(error.value).splitlines() == [
            "2 of 9 images failed; run again to retry only these:",
            "  item-2.bin: OSError: item 2 is bad",
            "  item-7.bin: OSError: item 7 is bad",
        ]
        retried = Work()
        raise_if_failed(run(retried, tmp_path), "images")
        assert retried.asked == [2, 7]

    def test_many_failures_are_cut(self) -> None:
        with pytest.raises(JobFailed, match=r"(?s)^30 of 31 items failed.*\n  and 10 more$"):
            raise_if_failed(Report(["a"], [], {str(i): "x" for i in range(30)}), "items")

    def test_a_stop_by_the_user_is_no_failure_of_an_item(self, tmp_path: Path) -> None:
        def stop(item: int) -> bytes:
            if item == 4:
                raise KeyboardInterrupt
            return Work()(item)

        with pytest.raises(KeyboardInterrupt):
            run(stop, tmp_path)
        rest = Work()
        assert len(run(rest, tmp_path).reused) == 4 and rest.asked == [4, 5, 6, 7, 8]

    @pytest.mark.parametrize(
        "tail", [b'{"key": "item-6.bin", "sett', '{"key": "item-é'.encode()[:-1], b'{"key": "item-6.bin"}\n', b"[1]\n", b"null\n"]
    )
    def test_a_line_that_a_killed_process_did_not_finish_costs_one_item(self, tmp_path: Path, tail: bytes) -> None:
        run(Work(), tmp_path)
        log = tmp_path / "done-0.jsonl"
        lines = log.read_bytes().splitlines(keepends=True)
        log.write_bytes(b"".join(lines[:6]) + tail)
        second = Work()
        assert run(second, tmp_path).made == ["item-6.bin", "item-7.bin", "item-8.bin"]
        third = Work()
        run(third, tmp_path)
        assert third.asked == []

    def test_ranks_share_all_items_once(self, tmp_path: Path) -> None:
        reports = [run(Work(), tmp_path, rank=rank, world=4) for rank in range(4)]
        made = [key for report in reports for key in report.made]
        assert sorted(made) == sorted(ITEMS) and len(made) == len(ITEMS)
        assert max(len(r.made) for r in reports) - min(len(r.made) for r in reports) <= 1
        for world in (1, 2, 5):  # what several made, another number of them can reuse
            again = [run(Work(), tmp_path, rank=rank, world=world) for rank in range(world)]
            assert not any(r.made for r in again) and sum(len(r.reused) for r in again) == 9
        assert run(Work(), tmp_path, rank=9, world=10).made == []

    def test_a_line_of_another_rank_and_older_settings_does_not_hide_the_newer_one(self, tmp_path: Path) -> None:
        for rank in range(2):
            run(Work(), tmp_path, "old", rank=rank, world=2)
        assert run(Work(salt="!"), tmp_path, "new").made == list(ITEMS)
        assert run(Work(salt="!"), tmp_path, "new").reused == list(ITEMS)

    def test_processes_at_the_same_time(self, tmp_path: Path) -> None:
        context = multiprocessing.get_context("fork")
        processes = [context.Process(target=make_part, args=(tmp_path, rank, 2)) for rank in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
            assert process.exitcode == 0
        assert run(Work(), tmp_path).reused == list(ITEMS)

    def test_keys_may_have_folders_and_may_not_lead_out(self, tmp_path: Path) -> None:
        work = lambda item: b"x"  # noqa: E731
        assert run_job({"a/b/c.png": 0}, work, tmp_path / "job", "s", progress=False).made == ["a/b/c.png"]
        assert (tmp_path / "job/a/b/c.png").read_bytes() == b"x"
        with pytest.raises(ValueError, match="leads out of its folder"):
            run_job({"../c.png": 0}, work, tmp_path / "job", "s", progress=False)
        assert not (tmp_path / "c.png").exists()
