"""Bare names: they work from anywhere, they take nothing from the user, and where they cannot work the error says what does."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import evaluate
import numpy as np
import pytest
from datasets import get_dataset_config_names, get_dataset_split_names, load_dataset, load_dataset_builder

import decodehub
from decodehub.core import registry
from decodehub.core.entry import find
from decodehub.core.repos import builder_class, export_dataset
from decodehub.hub_datasets.eeg_editbench.builder import resolve_folder
from decodehub.hub_datasets.eeg_editbench.manifest import read_release
from decodehub.metrics.eeg_editbench.benchmark import Benchmark, load_benchmark

CONFIGS = ["edits", "sources", "candidates", "sample"]


def python(script: str, *args: str | Path, cwd: Path, **env: str) -> str:
    """Output of a script in a fresh process that starts in `cwd`."""
    result = subprocess.run(
        [sys.executable, "-c", script, *map(str, args)], cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def score_call(b: Benchmark) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    q, e = len(b.concepts), len(b.edit_ids)
    rows = [{"source_scores": rng.standard_normal(q), "edit_scores": rng.standard_normal(e)} for _ in range(q)]
    return {"predictions": rows, "references": list(b.concepts)}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, make_release: Callable[..., Path]) -> tuple[Path, Path]:
    """A release folder and the data-only repository made of it."""
    folder = make_release(tmp_path_factory.mktemp("export") / "tiny")
    return folder, Path(decodehub.path("eeg-editbench", data_dir=str(folder)))


class TestNames:
    """What is there, found by looking."""

    def test_the_folders_are_the_registry(self, repository: Path) -> None:
        assert {entry.name for entry in decodehub.names("dataset")} == {
            p.parent.name.replace("_", "-") for p in (repository / "hub_datasets").glob("*/builder.py")
        }
        assert {entry.name for entry in decodehub.names("metric")} == {
            p.stem for p in (repository / "metrics").glob("*/*.py") if p.stem == p.parent.name
        }
        assert [e for kind in ("dataset", "metric", "model") for e in decodehub.names(kind)] == decodehub.names()
        entry = find("eeg-editbench")
        assert entry[:3] == ("dataset", "eeg-editbench", "decodehub.hub_datasets.eeg_editbench.builder")
        assert entry.folder.samefile(repository / "hub_datasets" / "eeg_editbench")

    def test_an_unknown_name_gets_the_list(self) -> None:
        with pytest.raises(KeyError, match=r"no metric is called 'eeg-editbench'; there are .*'eeg_editbench'"):
            find("eeg-editbench", "metric")
        with pytest.raises(KeyError, match=r"no dataset or metric is called 'nothing'; there are .*'eeg-editbench'"):
            decodehub.path("nothing")
        with pytest.raises(KeyError):
            decodehub.path("eeg_retrieval/ridge")  # a model is loaded by its class

    def test_a_module_with_two_builders_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        entry = find("eeg-editbench")
        cls = builder_class(entry)
        assert cls.__name__ == "EEGEditBench"
        module = sys.modules[entry.module]
        monkeypatch.setattr(module, "Second", type("Second", (cls,), {"__module__": module.__name__}), raising=False)
        with pytest.raises(TypeError, match=r"must define one DatasetBuilder, found \['EEGEditBench', 'Second'\]"):
            builder_class(entry)

    def test_importing_it_imports_nothing_heavy(self, tmp_path: Path) -> None:
        script = (
            "import sys, decodehub\n"
            "print(sorted({'torch', 'datasets', 'evaluate', 'transformers', 'numpy', 'pandas', 'pyarrow', 'pydantic', 'yaml'} & set(sys.modules)))\n"
            "print(len(decodehub.names()) > 2, 'numpy' in sys.modules)\n"
        )
        assert python(script, cwd=tmp_path).splitlines() == ["[]", "True False"]


class TestDataset:
    """`load_dataset` and its relatives in this process."""

    def test_every_call_takes_the_bare_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_release: Path) -> None:
        monkeypatch.chdir(tmp_path)
        folder = str(tiny_release)
        assert get_dataset_config_names("eeg-editbench") == CONFIGS
        assert get_dataset_split_names("eeg-editbench", "sources", data_dir=folder) == ["test"]
        assert get_dataset_split_names("eeg-editbench", "sample") == ["test"]
        data = load_dataset("eeg-editbench", data_dir=folder)
        assert list(data) == ["test"] and len(data["test"]) == 35
        assert len(load_dataset("eeg-editbench", "candidates", split="test", data_dir=folder)) == 36
        assert len(load_dataset("eeg-editbench", name="sources", split="test[:2]", data_dir=tiny_release)) == 2
        builder = load_dataset_builder("eeg-editbench", "sources", data_dir=folder)
        assert builder.config.name == "sources" and builder.dataset_name == "eeg-editbench"
        assert load_dataset("eeg-editbench", "sample", split="test").unique("release") == ["sample"]
        stream = load_dataset("eeg-editbench", data_dir=folder, split="test", streaming=True)
        assert [row["edit_id"] for row in stream] == data["test"]["edit_id"][:]
        with pytest.raises(ValueError, match=r"nothing.*not found|'nothing'"):
            load_dataset("eeg-editbench", "nothing", data_dir=folder)
        with pytest.raises(ValueError, match="train"):
            load_dataset("eeg-editbench", split="train", data_dir=folder)

    def test_a_relative_folder_is_of_the_users_place(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_release: Callable[..., Path]
    ) -> None:
        make_release(tmp_path / "a" / "mine", release="a", concepts=2)
        make_release(tmp_path / "b" / "mine", release="b", concepts=2)
        for name in ("a", "b"):
            monkeypatch.chdir(tmp_path / name)
            assert load_dataset("eeg-editbench", data_dir="mine", split="test").unique("release") == [name]

    def test_it_can_be_mapped_by_processes_and_pickled(self, tiny_release: Path) -> None:
        data = load_dataset("eeg-editbench", split="test", data_dir=str(tiny_release))
        mapped = data.map(lambda row: {"width": row["edited_image"].width}, num_proc=2)
        assert set(mapped["width"]) == {16} and mapped["edit_id"][:] == data["edit_id"][:]
        again = pickle.loads(pickle.dumps(data))  # noqa: S301
        assert again.features == data.features and again["edited_sha256"][:] == data["edited_sha256"][:]
        builder = pickle.loads(pickle.dumps(load_dataset_builder("eeg-editbench", data_dir=str(tiny_release))))  # noqa: S301
        builder.download_and_prepare(num_proc=2)
        assert len(builder.as_dataset("test")) == 35
        stream = load_dataset("eeg-editbench", split="test", data_dir=str(tiny_release), streaming=True)
        assert next(iter(pickle.loads(pickle.dumps(stream))))["edit_id"] == data[0]["edit_id"]  # noqa: S301

    def test_a_folder_of_the_same_name_wins(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "eeg-editbench").mkdir()
        (tmp_path / "eeg-editbench" / "train.csv").write_text("mine\n1\n2\n")
        for name in ("eeg-editbench", "./eeg-editbench", str(tmp_path / "eeg-editbench")):
            assert load_dataset(name, split="train")["mine"][:] == [1, 2]

    @pytest.mark.parametrize("name", ["./eeg-editbench", "some/eeg-editbench", "eeg-editbench/", "eeg_editbench", "EEG-EditBench"])
    def test_paths_and_other_names_are_left_alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises((FileNotFoundError, ConnectionError, datasets.exceptions.DatasetNotFoundError)) as error:
            load_dataset(name)
        assert "decodehub" not in str(error.value)

    @pytest.mark.parametrize("call", [load_dataset, load_dataset_builder, get_dataset_config_names])
    def test_a_revision_is_refused(self, call: Callable[..., Any]) -> None:
        with pytest.raises(ValueError) as error:
            call("eeg-editbench", revision="v1")
        assert str(error.value) == (
            "revision='v1' is of a Hub repository, but 'eeg-editbench' is read from this machine: "
            "load 'ORG/eeg-editbench', or set $DECODEHUB_ORG to its organisation"
        )

    def test_an_organisation_redirects_to_the_hub(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_release: Callable[..., Path]
    ) -> None:
        # No network here: that the Hub was asked for this repository is what can be seen.
        monkeypatch.setenv("DECODEHUB_ORG", "some-lab")
        for options in ({}, {"revision": "v1"}, {"streaming": True}):
            with pytest.raises((ConnectionError, datasets.exceptions.DatasetNotFoundError), match="some-lab/eeg-editbench"):
                load_dataset("eeg-editbench", **options)
        folder = make_release(tmp_path / "tiny", concepts=2)
        assert len(load_dataset("eeg-editbench", split="test", data_dir=str(folder))) == 11
        assert type(evaluate.load("eeg_editbench")).__name__ == "EEGEditBenchMetric"
        make_release(tmp_path / "home" / "eeg-editbench", concepts=2, release="9.9")
        monkeypatch.setenv("DECODEHUB_HOME", str(tmp_path / "home"))
        assert load_dataset("eeg-editbench", split="test").unique("release") == ["9.9"]


class TestMetric:
    """`evaluate.load` in this process."""

    def test_every_call_takes_the_bare_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_benchmark: Benchmark) -> None:
        monkeypatch.chdir(tmp_path)
        call = score_call(tiny_benchmark)
        found = evaluate.load("eeg_editbench").compute(**call, benchmark=tiny_benchmark)
        assert 0 <= found["two_afc"] <= 100
        assert evaluate.load("eeg_editbench", module_type="metric").compute(**call, benchmark=tiny_benchmark) == found
        assert evaluate.load(decodehub.path("eeg_editbench")).compute(**call, benchmark=tiny_benchmark) == found
        combined = evaluate.combine(["eeg_editbench"])
        assert combined.compute(**call, benchmark=tiny_benchmark)["metrics"] == found["metrics"]

    def test_a_folder_of_the_same_name_wins(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "eeg_editbench").mkdir()
        assert type(evaluate.load("eeg_editbench")).__name__ == "EEGEditBenchMetric"  # an empty folder is no metric
        (tmp_path / "eeg_editbench" / "eeg_editbench.py").write_text(
            "import datasets\n"
            "import evaluate\n\n"
            "class Mine(evaluate.Metric):\n"
            "    def _info(self):\n"
            "        features = datasets.Features({'predictions': datasets.Value('int64'), 'references': datasets.Value('int64')})\n"
            "        return evaluate.MetricInfo(description='', citation='', inputs_description='', features=features)\n\n"
            "    def _compute(self, predictions, references):\n"
            "        return {'mine': sum(predictions)}\n"
        )
        for name in ("eeg_editbench", "./eeg_editbench", "./eeg_editbench/eeg_editbench.py"):
            assert evaluate.load(name).compute(predictions=[1, 2], references=[0, 0]) == {"mine": 3}

    @pytest.mark.parametrize("name", ["./eeg_editbench", "some/eeg_editbench", "eeg-editbench"])
    def test_paths_and_other_names_are_left_alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(evaluate.config, "HF_EVALUATE_OFFLINE", True)
        with pytest.raises((FileNotFoundError, ConnectionError)):
            evaluate.load(name)


def test_hooking_again_changes_nothing() -> None:
    before = datasets.load.dataset_module_factory, datasets.inspect.dataset_module_factory, evaluate.loading.evaluation_module_factory
    registry.install()
    registry.install()
    after = datasets.load.dataset_module_factory, datasets.inspect.dataset_module_factory, evaluate.loading.evaluation_module_factory
    assert before == after and before[0] is before[1]
    for factory in (before[0], before[2]):
        assert factory._decodehub and not hasattr(factory.__wrapped__, "__wrapped__")


class TestExport:
    """The data-only repository that `decodehub.path` makes."""

    def test_it_holds_a_card_and_parquet_and_nothing_else(self, exported: tuple[Path, Path]) -> None:
        _, repo = exported
        files = sorted(str(p.relative_to(repo)) for p in repo.rglob("*") if p.is_file())
        expected = [f"{config}/{name}" for config in CONFIGS for name in ("LICENSE", "test-00000-of-00001.parquet")]
        assert files == sorted(["README.md", "release.json", *expected])
        assert (repo / "edits" / "LICENSE").read_text() == "cc0-1.0"
        card = (repo / "README.md").read_text(encoding="utf-8")
        assert card.startswith("---\n") and re.search(r"config_name: edits\n(.*\n)*?.*default: true", card)
        assert not list(repo.parent.glob(".*"))

    def test_it_is_made_once_for_its_content(self, exported: tuple[Path, Path], tmp_path: Path, make_release: Callable[..., Path]) -> None:
        folder, repo = exported
        stamp = (repo / "README.md").stat().st_mtime_ns
        assert decodehub.path("eeg-editbench", data_dir=str(folder)) == str(repo)
        same = make_release(tmp_path / "elsewhere")
        assert decodehub.path("eeg-editbench", data_dir=str(same)) == str(repo)
        assert (repo / "README.md").stat().st_mtime_ns == stamp
        other = make_release(tmp_path / "other", release="other")
        assert export_dataset(find("eeg-editbench"), data_dir=str(other)) != repo

    def test_its_table_is_the_same_benchmark(self, exported: tuple[Path, Path]) -> None:
        folder, repo = exported
        for config in ("edits", "sources", "candidates"):
            ours = load_dataset("eeg-editbench", config, split="test", data_dir=str(folder))
            theirs = load_dataset(str(repo), config, split="test")
            assert theirs.features == ours.features
            for a, b in zip(_undecoded(ours), _undecoded(theirs), strict=True):
                assert a == b


def _undecoded(data: datasets.Dataset) -> datasets.Dataset:
    for name, feature in data.features.items():
        if isinstance(feature, datasets.Image):
            data = data.cast_column(name, datasets.Image(decode=False))
    return data


# In fresh processes: importing datasets and evaluate costs seconds, so each script checks several things. -----------------------------------

_IMPORTED_LATER = """
import json, sys
import datasets
from datasets import get_dataset_config_names, load_dataset
repo, metric, folder = sys.argv[1:]
found = {
    "configs": sorted(get_dataset_config_names(repo)),
    "default": load_dataset(repo, split="test")["edit_id"][:],
    "streamed": [row["edit_id"] for row in load_dataset(repo, "edits", split="test", streaming=True)],
    "candidates": load_dataset(repo, "candidates", split="test")["kept"][:],
    "size": load_dataset(repo, "sources", split="test")[0]["image"].size,
    "names": load_dataset(repo, split="test").features["family"].names,
}
from evaluate import load
found["hooked"] = [hasattr(datasets.load.dataset_module_factory, "_decodehub"), "decodehub" in sys.modules]
found["metric"] = type(load(metric)).__name__

import decodehub
found["bare names"] = [get_dataset_config_names("eeg-editbench"), type(load("eeg_editbench")).__name__]
found["bare rows"] = load_dataset("eeg-editbench", split="test", data_dir=folder)["edit_id"][:]
print(json.dumps(found))
"""


def test_plain_libraries_load_the_exported_folder_and_the_bare_names_come_with_a_later_import(
    exported: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, repo = exported
    found = json.loads(python(_IMPORTED_LATER, repo, decodehub.path("eeg_editbench"), folder, cwd=tmp_path).splitlines()[-1])
    edits = [edit.edit_id for edit in read_release(folder).edits]
    assert found == {
        "configs": sorted(CONFIGS),
        "default": edits,
        "streamed": edits,
        "candidates": [True] * 35 + [False],
        "size": [16, 16],
        "names": ["identity", "attribute", "background", "removal"],
        "hooked": [False, False],
        "metric": "EEGEditBenchMetric",
        "bare names": [CONFIGS, "EEGEditBenchMetric"],
        "bare rows": edits,
    }


_MOVED = '''
import importlib.machinery, json, sys

MOVED = {
    "datasets.load": b"dataset_module_factory",
    "datasets.inspect": b"dataset_module_factory",
    "evaluate.loading": b"evaluation_module_factory",
    "evaluate.evaluation_suite": b"evaluation_module_factory",
    "evaluate.inspect": b"evaluation_module_factory",
}

class Loader(importlib.machinery.SourceFileLoader):
    """A version of the library in which the function has another name."""

    def path_stats(self, path):
        raise OSError("no bytecode, please")

    def source_to_code(self, data, path, **options):
        name = MOVED[self.name]
        return super().source_to_code(data.replace(name, b"renamed_" + name), path, **options)

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name not in MOVED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        spec.loader = Loader(name, spec.origin)
        return spec

sys.meta_path.insert(0, Finder())
import decodehub
import datasets, evaluate
assert not hasattr(datasets.load, "dataset_module_factory") and not hasattr(evaluate.loading, "evaluation_module_factory")
folder = sys.argv[1]
said = {}
for name, call in {
    "load_dataset": lambda: datasets.load_dataset("eeg-editbench", data_dir=folder),
    "load_dataset_builder": lambda: datasets.load_dataset_builder("eeg-editbench", data_dir=folder),
    "get_dataset_config_names": lambda: datasets.get_dataset_config_names("eeg-editbench"),
    "get_dataset_split_names": lambda: datasets.get_dataset_split_names("eeg-editbench"),
    "evaluate.load": lambda: evaluate.load("eeg_editbench"),
    "evaluate.combine": lambda: evaluate.combine(["eeg_editbench"]),
}.items():
    try:
        call()
        said[name] = "no error"
    except Exception as error:
        said[name] = f"{type(error).__name__}: {error}"
said["dataset by path"] = len(datasets.load_dataset(decodehub.path("eeg-editbench", data_dir=folder), split="test"))
said["metric by path"] = type(evaluate.load(decodehub.path("eeg_editbench"))).__name__
print(json.dumps(said))
'''


def test_where_a_library_has_moved_what_we_hook_the_error_says_what_works(exported: tuple[Path, Path], tmp_path: Path) -> None:
    said = json.loads(python(_MOVED, exported[0], cwd=tmp_path).splitlines()[-1])
    assert said.pop("dataset by path") == 35 and said.pop("metric by path") == "EEGEditBenchMetric"
    version = {"datasets": datasets.__version__, "evaluate": evaluate.__version__}
    for name, message in said.items():
        package, bare, call = (
            ("evaluate", "eeg_editbench", "evaluate.load") if name.startswith("evaluate") else ("datasets", "eeg-editbench", "load_dataset")
        )
        assert message == (
            f"RuntimeError: the bare name '{bare}' does not work with {package} {version[package]}, which has moved what decodehub hooks; "
            f'this call works: {call}(decodehub.path("{bare}"))'
        ), name


def test_the_benchmark_table_is_the_same_by_either_way(exported: tuple[Path, Path]) -> None:
    assert load_benchmark(str(exported[0])).release == "tiny"
    assert resolve_folder(exported[0]) == exported[0]
