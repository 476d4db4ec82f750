"""Shards: equal content gives equal bytes, a stopped run goes on, and both clients read them, locally and over HTTP with ranges."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import re
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import webdataset
from datasets import load_dataset

from decodehub.core.files import sha256_file
from decodehub.loaders.shards import INDEX, read_index, write_shards
from decodehub.loaders.things_eeg2 import CHANNELS, Epochs

N, R, C, T = 23, 4, 63, 50
SMALL = 220_000  # bytes: 4 samples of float32 a shard


@pytest.fixture(scope="module")
def epochs() -> Epochs:
    rng = np.random.default_rng(0)
    return Epochs(
        data=rng.standard_normal((N, R, C, T), dtype=np.float32),
        ch_names=CHANNELS,
        sfreq=250.0,
        times=np.arange(T) / 250,
        images=np.arange(1, N + 1),
        partition="train",
        subject=1,
        unit="MVNN",
        settings={"release": "simulated"},
        sessions=np.tile([1, 1, 3, 3], (N, 1)).astype(np.int8),
    )


@pytest.fixture(scope="module")
def folder(epochs: Epochs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shards")
    write_shards([epochs], path, max_bytes=SMALL)
    return path


def tars(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.glob("*.tar"))}


class RangeHandler(SimpleHTTPRequestHandler):
    """Serves a folder with byte ranges; `ranges` counts the requests for a part of a file."""

    ranges: list[str]

    def log_message(self, *args: Any) -> None:
        pass

    def end_headers(self) -> None:
        if self.command == "HEAD":  # what a client that can read parts looks for
            self.send_header("Accept-Ranges", "bytes")
        super().end_headers()

    def do_GET(self) -> None:
        path, asked = Path(self.translate_path(self.path)), self.headers.get("Range")
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", asked or "")
        if match is None or not path.is_file():
            with contextlib.suppress(BrokenPipeError):  # a client that has seen enough
                super().do_GET()
            return
        data = path.read_bytes()
        first, last = int(match[1]), min(int(match[2] or len(data) - 1), len(data) - 1)
        self.ranges.append(asked or "")
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(last - first + 1))
        self.end_headers()
        self.wfile.write(data[first : last + 1])


@pytest.fixture
def served(folder: Path) -> Iterator[tuple[str, list[str]]]:
    ranges: list[str] = []
    handler = type("Handler", (RangeHandler,), {"ranges": ranges})
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", ranges
    server.shutdown()
    thread.join()
    server.server_close()


class TestBytes:
    def test_equal_content_gives_equal_bytes(self, epochs: Epochs, folder: Path, tmp_path: Path) -> None:
        fortran = replace(epochs, data=np.asfortranarray(epochs.data))
        write_shards(iter([fortran]), tmp_path, max_bytes=SMALL)
        assert tars(tmp_path) == tars(folder)
        assert (tmp_path / INDEX).read_bytes() == (folder / INDEX).read_bytes()

    def test_members_carry_nothing_of_the_machine_and_samples_lie_together(self, folder: Path) -> None:
        names = []
        for path in sorted(folder.glob("*.tar")):
            with tarfile.open(path) as tar:
                for m in tar.getmembers():
                    assert (m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode) == (0, 0, 0, "", "", 0o644)
                    names.append(m.name)
        assert names == [f"sub-01_train_{i:05d}.{end}" for i in range(1, N + 1) for end in ("eeg.npy", "json")]

    @pytest.mark.parametrize("limit", [SMALL, 120_000, 10_000_000])
    def test_shards_stay_below_the_limit_and_hold_everything(self, epochs: Epochs, limit: int, tmp_path: Path) -> None:
        index = write_shards([epochs], tmp_path, max_bytes=limit)
        shards = index["groups"]["sub-01_train"]["shards"]
        assert sum(s["samples"] for s in shards) == N == index["groups"]["sub-01_train"]["samples"]
        for shard in shards:
            path = tmp_path / shard["name"]
            assert path.stat().st_size == shard["size"] <= limit and sha256_file(path) == shard["sha256"]

    def test_a_sample_larger_than_the_limit_is_refused(self, epochs: Epochs, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="one sample takes"):
            write_shards([epochs], tmp_path, max_bytes=50_000)

    def test_half_precision_and_averages(self, epochs: Epochs, tmp_path: Path) -> None:
        write_shards([epochs], tmp_path, float16=True, average=True)
        (row,) = [
            s
            for s in webdataset.WebDataset(str(tmp_path / "sub-01_train-00000.tar"), shardshuffle=False).decode()
            if "00007" in s["__key__"]
        ]
        assert row["eeg.npy"].dtype == np.float16 and row["eeg.npy"].shape == (C, T)
        np.testing.assert_allclose(row["eeg.npy"], epochs.data[6].mean(axis=0), atol=2e-3)

    @pytest.mark.parametrize("scale", [1e-6, 1e5, np.nan])
    def test_half_precision_of_what_it_cannot_hold_is_refused(self, epochs: Epochs, scale: float, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="float16 cannot hold"):
            write_shards([replace(epochs, data=epochs.data * np.float32(scale))], tmp_path, float16=True)
        assert not (tmp_path / INDEX).exists()


class TestRestart:
    def test_right_shards_are_left_alone_and_damaged_ones_made_again(self, epochs: Epochs, folder: Path, tmp_path: Path) -> None:
        write_shards([epochs], tmp_path, max_bytes=SMALL)
        names = sorted(tars(tmp_path))
        (tmp_path / names[1]).write_bytes(b"x" + (tmp_path / names[1]).read_bytes()[1:])
        (tmp_path / names[2]).unlink()
        (tmp_path / names[3]).write_bytes((tmp_path / names[3]).read_bytes() + b"\0" * 512)
        (tmp_path / INDEX).unlink()  # as after a run that was stopped
        before = {name: (tmp_path / name).stat().st_ino for name in names if (tmp_path / name).exists()}
        write_shards([epochs], tmp_path, max_bytes=SMALL)
        after = {name: (tmp_path / name).stat().st_ino for name in names}
        assert tars(tmp_path) == tars(folder)
        assert {name for name in before if before[name] == after[name]} == set(names) - set(names[1:4])

    def test_a_failure_leaves_no_index_that_vouches_for_it_and_no_part(self, epochs: Epochs, tmp_path: Path) -> None:
        write_shards([epochs], tmp_path, max_bytes=SMALL)
        broken = replace(epochs, images=np.append(epochs.images, 24))  # a number without its row
        with pytest.raises(IndexError):
            write_shards([broken], tmp_path, max_bytes=SMALL)
        assert read_index(tmp_path)["groups"] == {}
        assert not list(tmp_path.glob(".*"))
        write_shards([epochs], tmp_path, max_bytes=SMALL)
        read_index(tmp_path, verify=True)

    def test_other_sizes_replace_the_old_shards(self, epochs: Epochs, tmp_path: Path) -> None:
        write_shards([epochs], tmp_path, max_bytes=SMALL)
        write_shards([epochs], tmp_path)
        assert list(tars(tmp_path)) == ["sub-01_train-00000.tar"]

    def test_several_calls_fill_a_folder(self, epochs: Epochs, tmp_path: Path) -> None:
        second = replace(epochs, subject=2, partition="test")
        for part in ([epochs], [second], []):
            write_shards(part, tmp_path, max_bytes=SMALL)
        assert set(read_index(tmp_path, verify=True)["groups"]) == {"sub-01_train", "sub-02_test"}

    def test_other_settings_and_strangers_are_refused(self, epochs: Epochs, tmp_path: Path) -> None:
        write_shards([epochs], tmp_path / "a")
        with pytest.raises(ValueError, match="other settings"):
            write_shards([epochs], tmp_path / "a", average=True)
        (tmp_path / "a/other.tar").write_bytes(b"")
        with pytest.raises(ValueError, match=r"archives that are not ours \(other\.tar\)"):
            write_shards([epochs], tmp_path / "a")

    def test_the_index_is_checked_on_reading(self, epochs: Epochs, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="incomplete"):
            read_index(tmp_path)
        write_shards([epochs], tmp_path)
        (tmp_path / "sub-01_train-00000.tar").write_bytes(b"")
        with pytest.raises(ValueError, match="is not the shard"):
            read_index(tmp_path, verify=True)
        index = json.loads((tmp_path / INDEX).read_text())
        (tmp_path / INDEX).write_text(json.dumps({**index, "schema_version": 99}))
        with pytest.raises(ValueError, match="newer than"):
            read_index(tmp_path)


class TestReading:
    def test_by_webdataset(self, epochs: Epochs, folder: Path) -> None:
        rows = list(webdataset.WebDataset(sorted(map(str, folder.glob("*.tar"))), shardshuffle=False).decode())
        assert [row["__key__"] for row in rows] == [f"sub-01_train_{i:05d}" for i in range(1, N + 1)]
        np.testing.assert_array_equal(np.stack([row["eeg.npy"] for row in rows]), epochs.data)
        about = rows[4]["json"]
        assert about["image_number"] == 5 and about["sessions"] == [1, 1, 3, 3] and about["release"] == "simulated"
        assert tuple(about["ch_names"]) == CHANNELS and about["unit"] == "MVNN" and about["sfreq"] == 250

    @pytest.mark.parametrize("streaming", [False, True])
    def test_by_datasets(self, epochs: Epochs, folder: Path, streaming: bool, tmp_path: Path) -> None:
        rows = load_dataset(
            "webdataset", data_files={"train": str(folder / "*.tar")}, split="train", streaming=streaming, cache_dir=str(tmp_path)
        )
        found = list(rows)
        np.testing.assert_array_equal(np.array([row["eeg.npy"] for row in found], dtype=np.float32), epochs.data)
        assert [row["json"]["image_number"] for row in found] == list(range(1, N + 1))

    def test_by_webdataset_over_http(self, epochs: Epochs, folder: Path, served: tuple[str, list[str]]) -> None:
        urls = [f"{served[0]}/{name}" for name in tars(folder)]
        rows = list(webdataset.WebDataset(urls, shardshuffle=False).decode())
        np.testing.assert_array_equal(np.stack([row["eeg.npy"] for row in rows]), epochs.data)

    def test_by_datasets_over_http(self, epochs: Epochs, folder: Path, served: tuple[str, list[str]]) -> None:
        urls = [f"{served[0]}/{name}" for name in tars(folder)]
        stream = load_dataset("webdataset", data_files={"train": urls}, split="train", streaming=True)
        assert stream.num_shards == len(urls)
        found = list(stream)
        np.testing.assert_array_equal(np.array([row["eeg.npy"] for row in found], dtype=np.float32), epochs.data)

    def test_a_sample_can_be_read_by_its_range(self, epochs: Epochs, folder: Path, served: tuple[str, list[str]]) -> None:
        """Tar members are stored as they are: a reader that knows the offset needs no more than that part of the shard."""
        name = "sub-01_train-00001.tar"
        with tarfile.open(folder / name) as tar:
            member = tar.getmembers()[2]
        with fsspec.open(f"{served[0]}/{name}", block_size=1024, cache_type="none").open() as f:
            f.seek(member.offset_data)
            array = np.load(io.BytesIO(f.read(member.size)), allow_pickle=False)
        np.testing.assert_array_equal(array, epochs.data[int(member.name[13:18]) - 1])
        assert served[1] and sum(int(r.split("-")[1]) - int(r[6:].split("-")[0]) + 1 for r in served[1]) < member.size + 4096


def test_the_job_writes_shards_of_the_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from decodehub.hub_datasets.things_eeg2.shard import shard

    index = shard("sample", tmp_path, partitions=["train"], average=True, float16=True)
    assert index["groups"]["sub-01_train"]["samples"] == 40 and index["dtype"] == "float16"
    assert "sample-simulated" in capsys.readouterr().out
    with pytest.raises(FileNotFoundError, match="prepared subjects"):
        shard("sample", tmp_path, subjects=[9])
