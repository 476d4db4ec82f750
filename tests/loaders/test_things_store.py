"""Prepared arrays are what their ``info.json`` says, or every reader refuses them and names the file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

import decodehub  # noqa: F401  (registers the bare names)
from decodehub.core.files import sha256_file, sha256_json
from decodehub.hub_datasets.things_eeg2.sample import simulate_sample
from decodehub.hub_datasets.things_eeg2.shard import shard
from decodehub.loaders.things_eeg2.store import load_epochs, read_info, save_epochs
from decodehub.loaders.things_eeg2.validate import validate


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("prepared")
    save_epochs(root, simulate_sample(counts={"train": (24, 2), "test": (3, 4)}), source="simulated")
    return root


def info(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Change ``info.json``."""

    def apply(folder: Path) -> None:
        value = json.loads((folder / "info.json").read_text())
        change(value)
        (folder / "info.json").write_text(json.dumps(value))

    return apply


def array(name: str, make: Callable[[np.ndarray], np.ndarray], stated: bool = True) -> Callable[[Path], None]:
    """Change an array; by default ``info.json`` states its new hash."""

    def apply(folder: Path) -> None:
        np.save(folder / f"{name}.npy", make(np.load(folder / f"{name}.npy")))
        partition, _, key = name.partition("_")
        digest = sha256_file(folder / f"{name}.npy")
        if stated:
            info(lambda v: v["partitions"][partition]["sha256"].update({f"_{key}" if key else "": digest}))(folder)

    return apply


def with_nan(values: np.ndarray) -> np.ndarray:
    values[11, 1, 5, 7] = np.nan
    return values


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "3 image numbers for 24 images": (array("train_images", lambda x: x[:3]), r"train_images.npy is \(3,\) int32"),
    "image numbers are fractions": (array("train_images", lambda x: x.astype(np.float32)), "train_images.npy is .* float32"),
    "an image number twice": (array("train_images", lambda x: np.maximum(x, 2)), "train_images.npy must hold ascending"),
    "image numbers from 0": (array("train_images", lambda x: x - 1), "train_images.npy must hold ascending"),
    "image numbers of no image": (array("test_images", lambda x: x + 200), "test_images.npy must hold ascending"),
    "NaN": (array("train", with_nan), r"train.npy: image 12 \(row 11\) has NaN"),
    "another value": (array("train", lambda x: x + 1, stated=False), "train.npy has changed"),
    "float64": (array("train", lambda x: x.astype(np.float64)), "train.npy is .* float64"),
    "sessions of fewer": (array("train_sessions", lambda x: x[:, :1]), r"train_sessions.npy is \(24, 1\)"),
    "no array": (lambda folder: (folder / "train.npy").write_bytes(b"\x93NUMPY"), "train.npy has changed"),
    "array lost": (lambda folder: (folder / "test.npy").unlink(), "test.npy does not exist"),
    "62 names for 63 channels": (info(lambda v: v["ch_names"].pop()), "shape must be"),
    "a name twice": (info(lambda v: v["ch_names"].__setitem__(0, "Oz")), "ch_names must be"),
    "ch_names is a number": (info(lambda v: v.update(ch_names=5)), "ch_names must be"),
    "10 times for 250": (info(lambda v: v.update(times=v["times"][:10])), "shape must be"),
    "times of another rate": (info(lambda v: v.update(sfreq=100)), "times must be seconds in steps"),
    "sfreq null": (info(lambda v: v.update(sfreq=None)), "sfreq must be"),
    "sfreq infinite": (info(lambda v: v.update(sfreq=float("inf"))), "Infinity is no number"),
    "another subject": (info(lambda v: v.update(subject=2)), "subject must be the number of the folder sub-01"),
    "partitions is a list": (info(lambda v: v.update(partitions=[1])), "partitions must be"),
    "another partition": (info(lambda v: v["partitions"].update(dev=v["partitions"]["test"])), "partitions must be"),
    "hashes lost": (info(lambda v: v["partitions"]["test"].update(sha256={})), "partitions.test.sha256 must be"),
    "schema of text": (info(lambda v: v.update(schema_version="1")), "schema_version must be"),
    "newer schema": (info(lambda v: v.update(schema_version=9)), "newer than 1"),
    "settings of others": (info(lambda v: v.update(settings={"mvnn": "off"})), "settings_hash must be"),
    "of another kind": (info(lambda v: v.update(dataset="other")), "does not describe"),
    "a list": (lambda folder: (folder / "info.json").write_text("[1]"), "does not describe"),
    "half of a file": (lambda folder: (folder / "info.json").write_text('{"dataset": "things-e'), "is not JSON"),
    "a key twice": (lambda folder: (folder / "info.json").write_text('{"dataset": 1, "dataset": "things-eeg2"}'), "is there twice"),
    "empty": (lambda folder: (folder / "info.json").write_text(""), "is empty"),
    "not UTF-8": (lambda folder: (folder / "info.json").write_bytes(b"\xff\xfe{}"), "is not UTF-8"),
} | {
    f"no {key}": (info(lambda v, key=key: v.pop(key)), key)
    for key in ("schema_version", "subject", "source", "ch_names", "sfreq", "times", "unit", "settings", "settings_hash", "partitions")
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_reader_refuses(prepared: Path, tmp_path: Path, fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "prepared"
    shutil.copytree(prepared, root)
    spoil, message = FAULTS[fault]
    spoil(root / "sub-01")
    with pytest.raises((ValueError, FileNotFoundError), match=message) as shown:
        shard(root, tmp_path / "shards", max_bytes=1 << 20)
    assert str(root / "sub-01") in str(shown.value) and "\n" not in str(shown.value)
    assert not list(tmp_path.glob("shards/*"))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        for partition in ("train", "test"):
            load_epochs(root, 1, partition, verify=True)
    partition = "test" if "test" in message else "train"
    with pytest.raises((ValueError, FileNotFoundError, datasets.exceptions.DatasetGenerationError)) as loaded:
        datasets.load_dataset("things-eeg2", partition, split=partition, data_dir=str(root), cache_dir=str(tmp_path / "cache"))
    assert loaded.match(message) or loaded.value.__cause__
    assert validate(root, design=False) == 1


def test_good_arrays_are_read_by_all(prepared: Path, tmp_path: Path) -> None:
    assert sum(group["samples"] for group in shard(prepared, tmp_path / "shards", max_bytes=1 << 20)["groups"].values()) == 27
    assert validate(prepared) == 0 and read_info(prepared / "sub-01")["settings_hash"] == sha256_json(
        read_info(prepared / "sub-01")["settings"]
    )
