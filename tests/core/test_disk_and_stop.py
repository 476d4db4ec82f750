"""A full disk and a stopped process: one clear message, nothing half-written, nothing left behind."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from decodehub.core import files
from decodehub.core.tensors import reserved_array


@pytest.fixture
def small_files() -> Iterator[int]:
    """No file of this process may be larger than this."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    yield 100_000
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_an_array_is_reserved_before_it_is_filled(tmp_path: Path, small_files: int) -> None:
    message = r"no space to write .*/x\.npy: 0\.\d+ GB are needed, .* GB are free"
    with pytest.raises(files.DiskFull, match=message) as error, reserved_array(tmp_path / "x.npy", (200, 200)):
        raise AssertionError("the block must not begin")
    assert "ulimit -f" in str(error.value) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL])
def test_where_space_cannot_be_reserved_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def cannot(*_: object) -> None:
        raise OSError(number, "not here")

    monkeypatch.setattr(os, "posix_fallocate", cannot)
    with reserved_array(tmp_path / "x.npy", (3, 2), np.int16) as array:
        assert not array.any()
        array[...] = np.arange(6).reshape(3, 2)
    assert np.load(tmp_path / "x.npy").tolist() == [[0, 1], [2, 3], [4, 5]]


def test_the_bytes_are_those_of_numpy(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    with reserved_array(tmp_path / "ours.npy", values.shape) as array:
        array[...] = values
    np.save(tmp_path / "numpy.npy", values)
    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "numpy.npy").read_bytes()


def test_any_file_that_does_not_fit_is_named(tmp_path: Path, small_files: int) -> None:
    with pytest.raises(files.DiskFull, match=r"no space to write .*/x\.bin"):
        files.write_bytes(tmp_path / "x.bin", bytes(small_files + 1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_on_a_full_disk(tmp_path: Path) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let root mount")
    try:
        with (
            pytest.raises(files.DiskFull, match=r"x\.npy: 0\.400 GB are needed, 0\.000 GB are free"),
            reserved_array(tmp_path / "x.npy", (10**8,)),
        ):
            raise AssertionError("the block must not begin")
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


HOLD = """
import sys, time
from pathlib import Path
from decodehub.core.files import atomic_path, new_folder
with new_folder(Path(sys.argv[1]) / "folder") as folder, atomic_path(Path(sys.argv[1]) / "file") as part:
    (folder / "x").write_text("half"); part.write_text("half"); print("ready", flush=True); time.sleep(60)
"""


def test_what_a_killed_process_left_goes_and_what_a_living_one_holds_stays(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"ready\n"
    assert files.remove_orphans(tmp_path) == [] and len(list(tmp_path.iterdir())) == 2
    child.kill()
    child.wait()
    for name in (".git", ".x.part", ".train.npy.abcdefgh.part"):  # not ours
        (tmp_path / name).write_text("stays")
    assert len(files.remove_orphans(tmp_path)) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == [".git", ".train.npy.abcdefgh.part", ".x.part"]


def test_a_folder_is_put_back_whose_replacement_was_killed(tmp_path: Path) -> None:
    old = tmp_path / f".results.{files._HOST}-{2**22 + 1}-abcdefgh.old"
    old.mkdir()
    (old / "record.json").write_text("{}")
    files.remove_orphans(tmp_path)
    assert (tmp_path / "results/record.json").read_text() == "{}" and not old.exists()


def test_of_another_machine_they_stay_for_a_day(tmp_path: Path) -> None:
    name = ".x.000000-1-abcdefgh.part"
    (tmp_path / name).write_text("")
    assert files.remove_orphans(tmp_path) == []
    os.utime(tmp_path / name, (0, time.time() - 90_000))
    assert files.remove_orphans(tmp_path) == [name]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_command_says_that_it_goes_on(tmp_path: Path, number: int, code: int) -> None:
    """The real command in a process of its own, stopped while it writes."""
    words = ["things", "simulate", str(tmp_path / "out"), "--concepts", "1654", "--images", "10"]
    child = subprocess.Popen([sys.executable, "-m", "decodehub.cli", *words], stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not list(tmp_path.iterdir()) and time.monotonic() < until:
        time.sleep(0.05)
    child.send_signal(number)
    _, err = child.communicate(timeout=60)
    assert child.returncode == code and err.splitlines()[-1].startswith("Stopped.") and "again to go on" in err, err
    assert "Traceback" not in err and [p for p in tmp_path.rglob("*") if p.name.endswith(".part")] == []


def test_json_that_says_a_thing_twice_is_refused(tmp_path: Path) -> None:
    for text, message in (
        ('{"a": 1, "a": 1}', "'a' is there twice"),
        ("[" * 100_000, "too deeply"),
        ('{"a": NaN}', "NaN is no number"),
        ("{", "JSON"),
    ):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(ValueError, match=message) as error:
            files.read_json(tmp_path / "x.json")
        assert str(tmp_path / "x.json") in str(error.value)
    (tmp_path / "x.json").write_text("\ufeff" + json.dumps({"a": [1.5, None]}), encoding="utf-8")
    assert files.read_json(tmp_path / "x.json") == {"a": [1.5, None]}
