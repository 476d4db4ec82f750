"""The THINGS-EEG2 verbs as a user types them: simulated files of a published layout to arrays, checks and shards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from decodehub.core.files import sha256_json
from decodehub.hub_datasets.things_eeg2.sample import simulate_sample
from decodehub.loaders.things_eeg2.store import load_epochs, read_info, save_epochs
from decodehub.scripts.things import _blocks, app


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.mark.parametrize("layout", ["raw-dicts", "bids"])
def test_from_recordings_to_shards(tmp_path: Path, layout: str) -> None:
    size = ("--concepts", 4, "--images", 2, "--test-images", 5)
    assert run("simulate", tmp_path / "files", "--layout", layout, *size).exit_code == 0
    result = run("prepare", tmp_path / "files", "--out", tmp_path / "prepared", "--no-progress")
    assert result.exit_code == 0, result.output
    assert "simulated" in read_info(tmp_path / "prepared" / "sub-01")["source"]
    assert load_epochs(tmp_path / "prepared", 1, "train", verify=True).data.shape == (8, 4, 63, 250)
    assert load_epochs(tmp_path / "prepared", 1, "test", verify=True).data.shape == (5, 80, 63, 250)
    result = run("validate", tmp_path / "prepared", "--json", tmp_path / "findings.json")
    assert result.exit_code == 0, result.output
    assert run("validate", tmp_path / "files").exit_code == 0
    assert json.loads((tmp_path / "findings.json").read_text())
    result = run("shard", tmp_path / "prepared", "--out", tmp_path / "shards", "--float16")
    assert result.exit_code == 0, result.output
    assert {p.name for p in (tmp_path / "shards").glob("*.tar")} == {"sub-01_train-00000.tar", "sub-01_test-00000.tar"}
    groups = json.loads((tmp_path / "shards" / "index.json").read_text())["groups"]
    assert all(group["release"].startswith("simulated-") for group in groups.values())


def test_arrays_of_other_settings_or_of_others_are_not_replaced(tmp_path: Path) -> None:
    save_epochs(tmp_path / "a", simulate_sample(counts={"train": (24, 2), "test": (2, 4)}), source="simulated")
    out = tmp_path / "out"
    assert run("prepare", tmp_path / "a", "--out", out).exit_code == 0
    assert run("prepare", tmp_path / "a", "--out", out).exit_code == 0
    result = run("prepare", tmp_path / "a", "--out", out, "--channels", 17)
    assert result.exit_code == 1 and "other settings (channels differ)" in result.output and "--overwrite" in result.output
    assert load_epochs(out, 1, "test", verify=True).data.shape[2] == 63
    assert run("prepare", tmp_path / "a", "--out", out, "--channels", 17, "--overwrite").exit_code == 0
    assert load_epochs(out, 1, "test", verify=True).data.shape[2] == 17 and not (out / "sub-01/.work").exists()
    (out / "sub-01/info.json").unlink()
    result = run("prepare", tmp_path / "a", "--out", out)
    assert result.exit_code == 1 and "has not made" in result.output


def test_partial_data_are_an_error_unless_said(tmp_path: Path) -> None:
    save_epochs(tmp_path / "prepared", simulate_sample(counts={"train": (24, 2), "test": (2, 4)}), source="simulated")
    info = tmp_path / "prepared/sub-01/info.json"
    value = json.loads(info.read_text())
    del value["settings"]["design"]
    info.write_text(json.dumps({**value, "settings_hash": sha256_json(value["settings"])}))
    assert run("validate", tmp_path / "prepared").exit_code == 1
    assert run("validate", tmp_path / "prepared", "--no-design").exit_code == 0


def test_the_mislabelled_snippet_is_noticed(shared: Path) -> None:
    snippet = shared / "data/things_eeg2/eeg/sub01_test_posterior_mean_17reps_100hz_200x17x100.npy"
    result = run("validate", snippet, "--channels", 17, "--sfreq", 100)
    assert result.exit_code == 1 and "behaves like" in " ".join(result.output.split())


def test_a_pointer_in_place_of_the_recording_is_named(shared: Path, tmp_path: Path) -> None:
    result = run("prepare", shared / "data/things_eeg2/bids_sample", "--out", tmp_path / "prepared")
    assert result.exit_code == 1 and "git-annex pointer" in result.output and "datalad get" in result.output


def test_the_real_size_has_the_real_blocks() -> None:
    assert _blocks(16540, 200) == {"train_parts": 5, "train_blocks": 15, "test_blocks": 4}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("simulate", "x", "--layout", "edf"), "--layout must be one of"),
        (("validate", "x", "--partition", "dev"), "--partition must be train or test"),
    ],
)
def test_wrong_words_are_named(arguments: tuple, message: str) -> None:
    result = run(*arguments)
    assert isinstance(result.exception, ValueError) and message in str(result.exception)
