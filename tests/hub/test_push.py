"""`decodehub push` and `decodehub verify` with the real client, over HTTP, against the Hub of the tests."""

from __future__ import annotations

import ast
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import typer
import yaml

from decodehub.core.entry import find, names
from decodehub.core.files import sha256_file
from decodehub.core.records import ModelInfo, RecordError, read_record
from decodehub.core.repos import export_dataset
from decodehub.hub.checks import check_files, check_licence, licences
from decodehub.hub.client import HubError, Repo
from decodehub.hub.listing import size_text
from decodehub.hub.metric import stage_metric
from decodehub.hub.tasks import datasets_of, headlines, tasks_of
from decodehub.hub.verify import Finding, check_folder, check_record
from decodehub.hub.verify_remote import verify_hub
from decodehub.metrics.eeg_editbench.benchmark import load_benchmark
from decodehub.metrics.eeg_editbench.protocol import Predictions, make_record
from decodehub.scripts import push as push_script
from decodehub.scripts import verify as verify_script

PLANTED = "hf_" + "Planted0" * 4
CARD = b"""---
license: mit
model-index:
- name: theirs
  results:
  - task: {type: feature-extraction}
    dataset: {type: lab/eeg-editbench, name: EEG-EditBench, config: edits, split: test}
    metrics: [{type: two_afc, value: 99.0}]
---
# A model of theirs
"""


class Shown(NamedTuple):
    """What a command printed, its error, and its exit code."""

    out: str
    error: str
    code: int = 0


def call(app: typer.Typer, capfd: pytest.CaptureFixture[str], *args: object) -> Shown:
    capfd.readouterr()
    error, code = "", 0
    try:
        code = typer.main.get_command(app)([str(arg) for arg in args], standalone_mode=False) or 0
    except (HubError, ValueError) as raised:
        error = str(raised)
    captured = capfd.readouterr()
    return Shown(captured.out + captured.err, error, code)


@pytest.fixture
def push(capfd: pytest.CaptureFixture[str]) -> Callable[..., Shown]:
    return lambda *args: call(push_script.app, capfd, *args)


@pytest.fixture
def verify(capfd: pytest.CaptureFixture[str]) -> Callable[..., Shown]:
    return lambda *args: call(verify_script.app, capfd, *args)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory, make_release: Callable[..., Path]) -> Path:
    return make_release(tmp_path_factory.mktemp("release") / "tiny")


@pytest.fixture(scope="module")
def made_record(tmp_path_factory: pytest.TempPathFactory, release: Path) -> Path:
    folder = tmp_path_factory.mktemp("record") / "mine"
    write_record(folder, str(release))
    return folder


def write_record(folder: Path, data_dir: str, model: str = "nice") -> None:
    benchmark = load_benchmark(data_dir)
    q, e = len(benchmark.concepts), len(benchmark.edit_ids)
    rng = np.random.default_rng(0)
    runs = [Predictions(s, 0, *(rng.standard_normal(shape) for shape in ((q, q), (q, e), (q, q)))) for s in (1, 2, 3)]
    make_record(folder, benchmark, runs, model=ModelInfo(id=model), data="random numbers", similarity="cosine")


@pytest.fixture(scope="module")
def tables(release: Path) -> dict[str, bytes]:
    """The repository of the release, as it is exported."""
    folder = export_dataset(find("eeg-editbench", "dataset"), data_dir=str(release))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def hub_with_data(hub: Any, tables: dict[str, bytes]) -> Any:
    """The Hub with the release that the records are scored on."""
    hub.create("dataset", "lab/eeg-editbench", tables)
    return hub


@pytest.fixture
def record(made_record: Path, tmp_path: Path) -> Path:
    """A record that the test may damage."""
    return shutil.copytree(made_record, tmp_path / "mine")


@pytest.fixture
def data_set(hub: Any) -> None:
    """What says that the release of the records is on the Hub."""
    about = {"schema_version": 1, "dataset": "eeg-editbench", "configs": {"edits": {"releases": ["tiny"]}}, "files": {}}
    hub.create("dataset", "lab/eeg-editbench", {"release.json": json.dumps(about).encode()})


@pytest.fixture(scope="module")
def made_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    from decodehub.hub_models.eeg_retrieval import NICEConfig, NICEModel

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model") / "nice-tiny"
    NICEModel(NICEConfig.tiny()).eval().save_pretrained(folder / "model")
    return folder


@pytest.fixture
def model(made_model: Path, made_record: Path, tmp_path: Path) -> Path:
    """The folder of a training job, with its record, that the test may damage."""
    shutil.copytree(made_record, tmp_path / "nice")
    return shutil.copytree(made_model, tmp_path / "nice", dirs_exist_ok=True)


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    value = json.loads(path.read_text(encoding="utf-8"))
    change(value)
    path.write_text(json.dumps(value), encoding="utf-8")


def front(card: bytes) -> dict[str, Any]:
    return yaml.safe_load(card.decode().split("---\n")[1])


def states(findings: list[Finding]) -> list[str]:
    return [finding.state for finding in findings]


class TestDataset:
    """A data set release."""

    def test_shown_then_pushed_then_nothing_to_do(self, hub: Any, push: Callable[..., Shown], release: Path) -> None:
        args = ("eeg-editbench", "--org", "lab", "--data-dir", release)
        shown = push(*args)
        assert shown.error == "" and "nothing was sent: this is what --yes would do" in shown.out and not hub.repositories
        assert "dataset lab/eeg-editbench, new and private, as a pull request:" in shown.out
        assert "+ eval.yaml  " in shown.out and "+ edits/test-00000-of-00001.parquet  " in shown.out

        push_out = push(*args, "--yes").out
        repo = hub.repo("dataset", "lab/eeg-editbench")
        assert repo.private and repo.tree() == {} and len(repo.pulls) == 1
        commits = hub.count("POST", "/commit/")
        assert f"{hub.url}/datasets/lab/eeg-editbench/discussions/1" in push_out
        assert "hf discussions merge lab/eeg-editbench 1 --type dataset" in push_out
        assert "files are there in pull request 1; nothing to do" in push(*args, "--yes").out
        hub.merge("dataset", "lab/eeg-editbench", 1)
        assert "files are there; nothing to do" in push(*args, "--yes").out
        assert hub.count("POST", "/commit/") == commits

        files = hub.files("dataset", "lab/eeg-editbench")
        card = front(files["README.md"])
        assert card["license"] == "cc0-1.0" and "license_name" not in card
        assert {c["config_name"] for c in card["configs"]} == {c["config_name"] for c in card["dataset_info"]}
        assert [c["config_name"] for c in card["configs"] if c.get("default")] == ["edits"]
        tasks = yaml.safe_load(files["eval.yaml"])["tasks"]
        assert {"id": "eeg-editbench-two-afc", "config": "edits", "split": "test"} in tasks
        assert {t["id"] for t in tasks} == set(tasks_of(find("eeg-editbench", "dataset")))

        for deep in (False, True):
            assert states(verify_hub("lab/eeg-editbench", deep=deep)) == ["recomputed"]
        # One file of the release is replaced by another, one is added, one is lost: each is named.
        tree = dict(repo.tree())
        tree["edits/test-00000-of-00001.parquet"] = tree["sources/test-00000-of-00001.parquet"]
        tree["edits/test-00001-of-00002.parquet"] = tree.pop("candidates/test-00000-of-00001.parquet")
        repo.commit(tree)
        (found,) = verify_hub("datasets/lab/eeg-editbench")
        assert found.state == "wrong" and "3 of 4 files are not those of the release" in found.what
        assert [line.split(":")[0] for line in found.details] == [
            "candidates/test-00000-of-00001.parquet",
            "edits/test-00001-of-00002.parquet",
            "edits/test-00000-of-00001.parquet",
        ]

    def test_a_damaged_download_is_seen(self, hub: Any, push: Callable[..., Shown], release: Path) -> None:
        push("eeg-editbench", "--org", "lab", "--data-dir", release, "--yes", "--direct")
        hub.fail("GET", "sources/test-00000-of-00001.parquet", "corrupt")
        (found,) = verify_hub("lab/eeg-editbench", deep=True)
        assert found.state == "wrong" and found.details[0].startswith("sources/test-00000-of-00001.parquet: expected sha256:")

    def test_croissant_is_read_back(self, hub: Any, push: Callable[..., Shown], release: Path, tmp_path: Path) -> None:
        import mlcroissant

        push("eeg-editbench", "--org", "lab", "--data-dir", release, "--yes", "--direct")
        for path, data in hub.files("dataset", "lab/eeg-editbench").items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes(data)
        about = mlcroissant.Dataset(jsonld=tmp_path / "croissant.json")
        rows = list(about.records("sources/test"))
        assert [row["sources/test/concept"] for row in rows] == [f"concept{i}".encode() for i in range(6)]

    def test_what_may_not_be_passed_on(self, hub: Any, push: Callable[..., Shown], release: Path, tmp_path: Path) -> None:
        def change(rows: list[dict]) -> None:
            rows[0]["license"] = "CC BY 4.0 edits of THINGS images"
            (tmp_path / "r" / rows[1]["image"]).rename(tmp_path / "r" / "sources" / "aardvark_01b.jpg")
            rows[1]["image"] = "sources/aardvark_01b.jpg"
            next(row for row in rows if row["row"] == "edit")["instruction"] = f"Use {PLANTED}."

        folder = changed_release(release, tmp_path / "r", change)
        shown = push("eeg-editbench", "--org", "lab", "--data-dir", folder, "--yes")
        assert shown.error.startswith("datasets/lab/eeg-editbench cannot be published; nothing was sent:") and not hub.repositories
        assert shown.error.count("does not allow it to be passed on ('THINGS'") == 3  # and not the sample, which has another licence
        assert "column 'image': aardvark_01b.jpg is named as a photograph of THINGS" in shown.error
        assert "column 'instruction' holds a token" in shown.error and PLANTED not in shown.error + shown.out

    @pytest.mark.filterwarnings("ignore:.*SAMPLE")
    def test_another_data_set_comes_in_by_itself_and_its_sample_not_by_accident(self, hub: Any, push: Callable[..., Shown]) -> None:
        shown = push("things-eeg2", "--org", "lab", "--yes")
        assert "config 'train' would be the embedded sample" in shown.error and not hub.repositories
        shown = push("things-eeg2", "--org", "lab", "--data-dir", "sample", "--yes", "--direct")
        assert shown.error == "" and states(verify_hub("lab/things-eeg2")) == ["recomputed"]

    def test_names(self, push: Callable[..., Shown], tmp_path: Path) -> None:
        assert "say where to publish: --org" in push("eeg-editbench").error
        assert "'nothing' is neither the folder of a model or record nor a data set or metric of" in push("nothing", "--org", "lab").error
        assert "holds no model: expected config.json" in push(tmp_path, "--org", "lab").error
        assert "a data set and a metric: say --kind" in push("imindbench", "--org", "lab").error


def changed_release(source: Path, folder: Path, change: Callable[[list[dict]], Any]) -> Path:
    shutil.copytree(source, folder)
    manifest = folder / "manifest.jsonl"
    rows = [json.loads(line) for line in manifest.read_text().splitlines()]
    change(rows)
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


class TestChecks:
    """What no file may be or hold."""

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("cc-by-4.0", ["cc-by-4.0"]),
            ("CC BY 2.0 (a, b); CC0 1.0 (c); public domain (d)", ["cc-by-2.0", "cc0-1.0", "public-domain"]),
            ("CC BY-NC-SA 4.0", ["cc-by-nc-sa-4.0"]),
            ("GPL-2+", ["gpl-2.0"]),
            ("Apache-2.0", ["apache-2.0"]),
            ("MIT", ["mit"]),
            ("see-the-release", []),
            ("unknown", []),
            ("permitted", []),
        ],
    )
    def test_licences_are_read(self, text: str, expected: list[str]) -> None:
        assert licences(text) == expected

    def test_what_a_licence_allows(self) -> None:
        assert check_licence("cc-by-4.0", "x", images=True) == []
        assert check_licence("CC BY 4.0; THINGS concept names", "x", images=False) == []  # names are not photographs
        assert len(check_licence("CC BY 4.0; THINGS concept names", "x", images=True)) == 1
        for text in (None, "", "other", "CC BY 4.0, no redistribution", "MIT code, images: all rights reserved"):
            assert len(check_licence(text, "x", images=False)) == 1, text
        assert check_licence("CC BY-ND 4.0", "x", images=True) == ["x: cc-by-nd-4.0 allows no edited images"]

    def test_files(self, tmp_path: Path) -> None:
        assert check_files(tmp_path) == []
        (tmp_path / "weights.bin").write_bytes(b"x")
        (tmp_path / "table.csv").write_bytes(pickle.dumps([1]))
        (tmp_path / "aardvark_01b.jpg").write_bytes(b"x")
        (tmp_path / "my-dog-1.jpg").write_bytes(b"x")
        (tmp_path / "config.json").write_text(json.dumps({"token": PLANTED}))
        (tmp_path / "LICENSE").write_text("MIT")
        faults = {fault.split(":")[0].split(" ")[0]: fault for fault in check_files(tmp_path)}
        assert set(faults) == {"weights.bin", "table.csv", "aardvark_01b.jpg", "config.json"}
        assert "holds a pickle" in faults["table.csv"] and PLANTED not in "".join(faults.values())


class TestModel:
    """A trained model."""

    def test_weights_code_and_card(self, hub: Any, push: Callable[..., Shown], model: Path) -> None:
        args = (model, "--org", "lab", "--yes", "--direct")
        assert push(*args).error == ""
        files = hub.files("model", "lab/nice")
        assert {"README.md", "config.json", "model.safetensors", "modeling_nice.py", "configuration_nice.py"} <= set(files)
        assert not any(name.startswith("predictions") or name == "record.json" for name in files)
        assert json.loads(files["config.json"])["auto_map"]["AutoModel"] == "modeling_nice.NICEModel"
        card, (_, stated) = front(files["README.md"]), read_record(model)
        assert card["license"] == "apache-2.0" and "model-index" not in card  # numbers are filed with their predictions
        assert f"| two_afc | {stated.value('two_afc'):.4g} |" in files["README.md"].decode()
        assert "song2024nice" in files["README.md"].decode() and "hoerl1970ridge" not in files["README.md"].decode()
        assert "nothing to do" in push(*args).out

    def test_numbers_with_predictions_stay_and_nothing_is_sent_twice(
        self, hub_with_data: Any, push: Callable[..., Shown], model: Path
    ) -> None:
        both = ((model, "--org", "lab"), (model, "--model", "lab/nice", "--org", "lab"))
        for args in both:
            assert push(*args, "--yes", "--direct").error == ""
        hub = hub_with_data
        assert states(verify_hub("lab/nice")) == ["recomputed", "recomputed"]
        commits = hub.count("POST", "/commit/")
        for args in both:
            assert "nothing to do" in push(*args, "--yes", "--direct").out
        assert hub.count("POST", "/commit/") == commits

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (lambda m: (m / "model" / "pytorch_model.bin").write_bytes(b"x"), "pytorch_model.bin: files of kind '.bin' are not sent"),
            (lambda m: (m / "model" / "extra.json").write_bytes(pickle.dumps({})), "extra.json: it holds a pickle"),
            (lambda m: edit(m / "model" / "config.json", lambda c: c.update(hub_token=PLANTED)), "config.json: the file holds a token"),
            (lambda m: edit(m / "model" / "config.json", lambda c: c.update(model_type="bert")), "model_type 'bert' is none of ours"),
            (
                lambda m: edit(m / "record.json", lambda r: r["metrics"][0].update(value=99.0)),
                "states numbers that its predictions do not give",
            ),
        ],
    )
    def test_what_is_refused(self, hub: Any, push: Callable[..., Shown], model: Path, damage: Callable[[Path], Any], message: str) -> None:
        damage(model)
        shown = push(model, "--org", "lab", "--yes")
        assert message in shown.error and PLANTED not in shown.error + shown.out and not hub.repositories


class TestMetric:
    """A metric as a Space that needs nothing of this package."""

    @pytest.mark.parametrize("name", [entry.name for entry in names("metric")])
    def test_everything_travels(self, name: str, tmp_path: Path) -> None:
        entry = find(name, "metric")
        assert stage_metric(entry, tmp_path, Repo("space", f"lab/{name}")) == [] and check_files(tmp_path) == []
        there = {path.stem for path in tmp_path.glob("*.py")}
        script = (tmp_path / f"{name}.py").read_text()
        for path in tmp_path.glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    assert not any(alias.name.split(".")[0] == "decodehub" for alias in node.names), path
                elif isinstance(node, ast.ImportFrom):
                    assert (node.module or "").split(".")[0] != "decodehub", path
                    assert not node.level or (node.level == 1 and node.module in there), path
            if path.stem not in (name, "app"):  # `evaluate` copies only what the script itself imports
                assert f"\nfrom .{path.stem} import " in script
        code = "".join(path.read_text() for path in tmp_path.glob("*.py"))
        assert all(f'"lab/{dataset}"' in code for dataset in datasets_of(name))
        assert "evaluate<0.5,>=0.4.6" in (tmp_path / "requirements.txt").read_text()
        card = front((tmp_path / "README.md").read_bytes())
        assert card["sdk"] == "gradio" and card["app_file"] == "app.py" and "evaluate" in card["tags"]

    def test_push(self, hub: Any, push: Callable[..., Shown]) -> None:
        args = ("eeg_editbench", "--org", "lab", "--public", "--yes")
        assert push(*args).error == "" and not hub.repo("space", "lab/eeg_editbench").private
        hub.merge("space", "lab/eeg_editbench", 1)
        assert "nothing to do" in push(*args).out
        assert "a metric keeps its name" in push(*args, "--name", "other").error

    def test_headlines_are_metrics_of_the_benchmark(self) -> None:
        assert headlines("eeg-editbench") == ("top1", "ep_top1", "two_afc")


class TestResults:
    """The numbers of a record."""

    def test_a_pull_request_on_the_model_of_someone_else(self, hub_with_data: Any, push: Callable[..., Shown], record: Path) -> None:
        from huggingface_hub import parse_eval_result_entries

        hub_with_data.create("model", "other/nice", {"README.md": CARD, ".eval_results/theirs.yaml": b"- mine\n"})
        args = (record, "--model", "other/nice", "--org", "lab", "--direct")
        shown = push(*args)
        assert "dataset lab/decodehub-results, new and private" in shown.out and "model other/nice, as a pull request" in shown.out
        assert (
            not hub_with_data.repo("model", "other/nice").pulls and ("dataset", "lab/decodehub-results") not in hub_with_data.repositories
        )

        shown = push(*args, "--yes")
        assert shown.error == "" and "loaded back and re-scored" in shown.out and "/other/nice/discussions/1\n" in shown.out
        files, (_, stated) = hub_with_data.files("model", "other/nice", "refs/pr/1"), read_record(record)
        assert hub_with_data.files("model", "other/nice")["README.md"] == CARD and files[".eval_results/theirs.yaml"] == b"- mine\n"
        card = front(files["README.md"])
        theirs, ours = card["model-index"][0]["results"]
        assert theirs == front(CARD)["model-index"][0]["results"][0] and card["license"] == "mit"
        assert files["README.md"].endswith(b"# A model of theirs\n")
        assert {m["name"]: m["value"] for m in ours["metrics"]}["two_afc"] == stated.value("two_afc")
        entries = parse_eval_result_entries(yaml.safe_load(files[".eval_results/decodehub-eeg-editbench.yaml"]))
        assert {e.task_id: e.value for e in entries} == {
            f"eeg-editbench-{name.replace('_', '-')}": stated.value(name) for name in headlines("eeg-editbench")
        }
        assert {e.dataset_id for e in entries} == {"lab/eeg-editbench"} and len({e.source_url for e in entries}) == 1
        assert states(verify_hub("other/nice", "refs/pr/1")) == ["reported only", "recomputed", "recomputed", "wrong"]

        commits = hub_with_data.count("POST", "/commit/")
        shown = push(*args, "--yes")
        assert shown.out.count("nothing to do") == 2 and hub_with_data.count("POST", "/commit/") == commits

    @pytest.mark.parametrize("missing", ["token", "network", "answer"])
    def test_the_list_needs_neither_token_nor_network(
        self, hub_with_data: Any, push: Callable[..., Shown], record: Path, monkeypatch: pytest.MonkeyPatch, missing: str
    ) -> None:
        from huggingface_hub import constants

        hub_with_data.create("model", "other/nice", {"README.md": CARD})
        if missing == "token":
            monkeypatch.delenv("HF_TOKEN")
        elif missing == "network":
            monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        else:
            monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
        shown, (_, stated) = push(record, "--model", "other/nice", "--org", "lab"), read_record(record)
        assert shown.error == "" and not hub_with_data.requests
        why = {
            "token": "there is no token of the Hub on this machine",
            "network": "offline mode is on",
            "answer": "http://127.0.0.1:9 does not answer",
        }[missing]
        assert (
            f"the card of datasets/lab/decodehub-results, the card of other/nice and the rows of datasets/lab/eeg-editbench were not read on the Hub: {why}"
            in shown.out
        )
        assert "OWNER" not in shown.out and shown.out.endswith("nothing was sent\n")
        folder = f"eeg-editbench/nice/{sha256_file(record / 'record.json')[7:23]}"
        files = ["record.json", "benchmark.json", *(run.predictions for run in stated.runs)]
        for name in files:
            assert f"  + {folder}/{name}  {size_text((record / name).stat().st_size)}\n" in shown.out
        assert (
            f"  {len(files) + 1} files, " in shown.out
            and "  ~ README.md  the card that is there" in shown.out
            and "  + .eval_results/decodehub-eeg-editbench.yaml  1," in shown.out
        )
        assert f"checked: the predictions give the {len(stated.metrics)} numbers of the record" in shown.out
        for name in headlines("eeg-editbench"):
            assert f"  {name}: {stated.value(name):.6g} percent\n" in shown.out
            assert f"  eeg-editbench-{name.replace('_', '-')}: {stated.value(name):.6g}\n" in shown.out
        assert "OWNER/decodehub-results" in (unnamed := push(record, "--model", "other/nice").out) and "OWNER stands for" in unnamed

        edit(record / "record.json", lambda r: r["metrics"][0].update(value=99.0))
        assert "1 numbers are not what the predictions give" in push(record, "--model", "other/nice").error

    def test_what_is_listed_is_what_is_sent(
        self, hub_with_data: Any, push: Callable[..., Shown], record: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hub_with_data.create("model", "lab/nice", {"README.md": CARD})
        args = (record, "--model", "lab/nice", "--org", "lab", "--direct")
        with monkeypatch.context() as without:
            without.delenv("HF_TOKEN")
            listed = {line.split()[1] for line in push(*args).out.splitlines() if line.startswith(("  + ", "  ~ "))}
        assert push(*args, "--yes").error == ""
        assert listed == {*hub_with_data.files("dataset", "lab/decodehub-results"), *hub_with_data.files("model", "lab/nice")}

    def test_sending_needs_a_token_and_a_wrong_model_is_an_error_with_one(
        self, hub_with_data: Any, push: Callable[..., Shown], record: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        listed = push(record, "--model", "other/nice", "--org", "lab")
        assert listed.error == "" and "  two_afc: " in listed.out and "model other/nice, " in listed.out
        assert "not on the Hub yet, so that --yes would be refused: other/nice: publish the model first" in listed.out
        hub_with_data.create("model", "other/nice", {"README.md": CARD})
        monkeypatch.setenv("HF_TOKEN", "hf_" + "Wrong0" * 5)
        assert "other/nice: the Hub does not know this token" in push(record, "--model", "other/nice").error
        monkeypatch.delenv("HF_TOKEN")
        for org in ((), ("--org", "lab")):
            shown = push(record, "--model", "other/nice", "--yes", *org)
            assert ": there is no token of the Hub on this machine: run `hf auth login`" in shown.error
        assert (
            not hub_with_data.repo("model", "other/nice").pulls and ("dataset", "lab/decodehub-results") not in hub_with_data.repositories
        )

    def test_new_numbers_replace_the_old_ones_of_ours_alone(
        self, hub_with_data: Any, push: Callable[..., Shown], record: Path, release: Path
    ) -> None:
        hub_with_data.create("model", "lab/nice", {"README.md": CARD})
        push(record, "--model", "lab/nice", "--org", "lab", "--yes", "--direct")
        benchmark = load_benchmark(str(release))
        ones = [Predictions(1, 0, np.eye(6), np.zeros((6, len(benchmark.edit_ids))), np.zeros((6, 6)))]
        make_record(record, benchmark, ones, model=ModelInfo(id="nice"), data="perfect", similarity="cosine")
        push(record, "--model", "lab/nice", "--org", "lab", "--yes", "--direct")
        results = front(hub_with_data.files("model", "lab/nice")["README.md"])["model-index"][0]["results"]
        assert len(results) == 2 and {m["name"]: m["value"] for m in results[1]["metrics"]}["top1"] == 100.0
        assert states(verify_hub("lab/nice"))[1:] == ["recomputed", "recomputed"]
        assert states(verify_hub("lab/decodehub-results")) == ["recomputed", "recomputed"]  # the former record stays

    def test_what_is_refused(self, hub_with_data: Any, push: Callable[..., Shown], record: Path, tmp_path: Path, release: Path) -> None:
        refused = push(record, "--model", "other/nice", "--org", "lab", "--yes").error
        assert "other/nice: publish the model first" in refused and refused.endswith("Nothing was published")
        assert "--model must be ORG/NAME" in push(record, "--model", "nice", "--yes").error
        write_record(tmp_path / "other", str(release), model="lab/other")
        assert "the record is of model 'lab/other', not of 'lab/nice'" in push(tmp_path / "other", "--model", "lab/nice").error
        edit(record / "record.json", lambda r: r["metrics"][0].update(value=99.0))
        assert "1 numbers are not what the predictions give" in push(record, "--model", "lab/nice", "--yes").error
        assert set(hub_with_data.repositories) == {("dataset", "lab/eeg-editbench")}

    def test_a_sample_says_so_and_enters_no_leaderboard(self, hub_with_data: Any, push: Callable[..., Shown], tmp_path: Path) -> None:
        hub_with_data.create("model", "lab/nice")
        write_record(tmp_path / "sample", "sample")
        args = (tmp_path / "sample", "--model", "lab/nice", "--org", "lab", "--yes", "--direct")
        assert "does not hold what the record was scored on, release 'sample'" in push(*args).error  # but that of the tests
        sample = export_dataset(find("eeg-editbench", "dataset"), data_dir="sample")
        files = {p.relative_to(sample).as_posix(): p.read_bytes() for p in sample.rglob("*") if p.is_file()}
        hub_with_data.create("dataset", "lab/eeg-editbench", files)
        assert push(*args).error == ""
        files = hub_with_data.files("model", "lab/nice")
        assert set(files) == {"README.md"}
        (result,) = front(files["README.md"])["model-index"][0]["results"]
        assert "a sample: these scores say nothing about the benchmark" in result["dataset"]["name"]

    def test_what_arrived_damaged_is_not_called_published(self, hub_with_data: Any, push: Callable[..., Shown], record: Path) -> None:
        hub_with_data.create("model", "lab/nice", {"README.md": CARD})
        hub_with_data.fail("GET", "benchmark.json", "corrupt")
        shown = push(record, "--model", "lab/nice", "--org", "lab", "--yes", "--direct")
        assert "does not verify" in shown.error and "benchmark.json" in shown.error
        assert hub_with_data.files("model", "lab/nice") == {"README.md": CARD}


class TestVerify:
    """What is said of records, here and on the Hub."""

    def test_folders(self, record: Path, verify: Callable[..., Shown], tmp_path: Path) -> None:
        shutil.copytree(record, tmp_path / "many" / "a" / "right")
        wrong = shutil.copytree(record, tmp_path / "many" / "b")
        edit(wrong / "record.json", lambda r: r["metrics"][1].update(value=12.5))
        bare = shutil.copytree(record, tmp_path / "many" / "c")
        shutil.rmtree(bare / "predictions")
        found = check_folder(tmp_path / "many")
        assert states(found) == ["recomputed", "wrong", "reported only"]
        assert [f.what.split(":")[0] for f in found] == ["a/right", "b", "c"]
        shown = verify(tmp_path / "many")
        assert shown.code == 1 and shown.out.count("RECOMPUTED: ") == 1 and "stated 12.5, recomputed" in shown.out
        with pytest.raises(RecordError, match="does not exist: give the folder of a record"):
            check_folder(tmp_path / "many" / "a" / "right" / "predictions")

    def test_a_release(self, release: Path, tmp_path: Path) -> None:
        folder = shutil.copytree(export_dataset(find("eeg-editbench", "dataset"), data_dir=str(release)), tmp_path / "repo")
        assert states(check_folder(folder)) == ["recomputed"]
        table = folder / "edits" / "test-00000-of-00001.parquet"
        table.write_bytes(table.read_bytes() + b" ")
        (found,) = check_folder(folder)
        assert found.state == "wrong" and found.details[0].startswith("edits/test-00000-of-00001.parquet: expected sha256:")
        edit(folder / "release.json", lambda r: r.update(schema_version=2))
        assert "schema version 2, this decodehub reads 1: update it" in check_folder(folder)[0].what

    def test_what_was_tampered_with_is_named(self, hub_with_data: Any, push: Callable[..., Shown], record: Path) -> None:
        from safetensors import safe_open
        from safetensors.numpy import save_file

        hub_with_data.create("model", "lab/nice", {"README.md": CARD})
        push(record, "--model", "lab/nice", "--org", "lab", "--yes", "--direct")
        results, model = hub_with_data.repo("dataset", "lab/decodehub-results"), hub_with_data.repo("model", "lab/nice")
        right, card = results.tree(), model.tree()
        place = next(path for path in right if path.endswith("record.json")).removesuffix("record.json")

        def swap(path: str, data: bytes) -> list[Finding]:
            results.commit({**right, place + path: right[place + path]._replace(data=data)})
            return verify_hub("lab/decodehub-results")

        stated = json.loads(right[place + "record.json"].data)
        score = json.loads(json.dumps(stated))
        score["metrics"][2]["value"] += 1
        (found,) = swap("record.json", json.dumps(score).encode())
        assert found.state == "wrong" and found.details[0].startswith(f"{score['metrics'][2]['name']} value: stated")
        # The model's card is checked against the same predictions, so it is no longer right either.
        assert states(verify_hub("lab/nice"))[1:] == ["wrong", "wrong"]

        run = stated["runs"][1]
        file = record / run["predictions"]
        with safe_open(file, framework="numpy") as f:
            tensors, metadata = {name: f.get_tensor(name) for name in f.keys()}, f.metadata()  # noqa: SIM118
        tensors["edit_scores"] = tensors["edit_scores"][:, ::-1].copy()
        save_file(tensors, file, metadata=metadata)
        (found,) = swap(run["predictions"], file.read_bytes())
        assert "subject 2, seed 0: predictions/sub-02_seed-0.safetensors has changed since the record was made" in found.what
        score = json.loads(json.dumps(stated))
        score["runs"][1]["sha256"] = sha256_file(file)  # the forger adapts the hash too; the numbers give it away
        changed = {run["predictions"]: file.read_bytes(), "record.json": json.dumps(score).encode()}
        results.commit({**right, **{place + path: right[place + path]._replace(data=data) for path, data in changed.items()}})
        (found,) = verify_hub("lab/decodehub-results")
        assert found.state == "wrong" and "numbers differ from the saved predictions" in found.what

        results.commit(right)
        text = card["README.md"].data.replace(b"value: 99.0", b"value: 98.0")  # someone else's number: nobody can check it
        number = next(m for m in stated["metrics"] if m["name"] == "top5")["value"]
        forged = text.replace(f"value: {number}".encode(), b"value: 99.9")
        model.commit({**card, "README.md": card["README.md"]._replace(data=forged)})
        other, ours, entries = verify_hub("lab/nice")
        assert (other.state, ours.state, entries.state) == ("reported only", "wrong", "recomputed")
        assert any(line.startswith("top5: stated 99.9, recomputed") for line in ours.details)

        newer = {**stated, "schema_version": 3}
        (found,) = swap("record.json", json.dumps(newer).encode())
        assert found.state == "wrong" and "schema version 3, newer than the 2 of this decodehub: update it" in found.what

    def test_the_command(self, hub_with_data: Any, push: Callable[..., Shown], verify: Callable[..., Shown], record: Path) -> None:
        hub_with_data.create("model", "lab/nice", {"README.md": CARD})
        push(record, "--model", "lab/nice", "--org", "lab", "--yes")
        shown = verify("lab/nice", "--revision", "refs/pr/1")
        assert shown.code == 0 and shown.out.count("RECOMPUTED: ") == 2  # the source is the pull request of the results, open or merged
        hub_with_data.merge("dataset", "lab/decodehub-results", 1)
        shown = verify("lab/nice", "--revision", "refs/pr/1")
        assert shown.code == 0 and shown.out.count("RECOMPUTED: ") == 2 and shown.out.count("REPORTED ONLY: ") == 1
        assert "There is no folder lab/none on this machine either" in verify("lab/none").error
        hub_with_data.repo("dataset", "lab/decodehub-results").gated = True
        assert "datasets/lab/decodehub-results is gated: ask for access" in verify("datasets/lab/decodehub-results").error
        assert verify_hub("lab/nice", "refs/pr/1")[1].state == "reported only"

    def test_every_older_record_loads(self, repository: Path) -> None:
        files = sorted((repository / "tests" / "core" / "old_records").glob("schema-*.json"))
        assert [file.stem for file in files] == ["schema-1"]
        for file in files:
            found = read_record(file)[1]
            assert found.metrics and (found.schema_version, found.kind) == (1, "real")  # the version marks that the kind was derived
            assert check_record(file).state == "reported only"


def test_a_token_appears_nowhere(
    hub_with_data: Any,
    push: Callable[..., Shown],
    verify: Callable[..., Shown],
    record: Path,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(hub_with_data, "token", PLANTED)
    monkeypatch.setenv("HF_TOKEN", PLANTED)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    (tmp_path / "token").write_text(PLANTED)
    caplog.set_level("DEBUG")
    shown = [push(model, "--org", "lab", "--yes"), push(record, "--model", "lab/nice", "--org", "lab", "--yes")]
    assert [s.error for s in shown] == ["", ""]
    shown += [verify("lab/nice"), verify("lab/none")]
    assert PLANTED not in caplog.text
    hub_with_data.fail(
        "POST", "/commit/", 403, words=f"Token {PLANTED} may not write here"
    )  # a Hub that repeats it, which logs of the transport may show
    shown.append(push("eeg_editbench", "--org", "lab", "--yes"))
    assert "(Token hf_[hidden] may not write here)" in shown[4].error
    edit(model / "model" / "config.json", lambda c: c.update(auth=PLANTED))
    shown.append(push(model, "--org", "lab", "--yes"))
    assert "holds a token" in shown[5].error
    assert any(request.token == PLANTED for request in hub_with_data.requests)  # it was used
    written = b"".join(
        blob.data for repo in hub_with_data.repositories.values() for tree in repo.commits.values() for blob in tree.values()
    )
    assert PLANTED.encode() not in written
    assert PLANTED not in "".join(s.out + s.error for s in shown)
    assert not any(PLANTED in path.read_text(errors="replace") for path in record.rglob("*") if path.is_file())
