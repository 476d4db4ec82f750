"""Where records and cards go, and what they claim: over HTTP, with the real client."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from decodehub.core.entry import find
from decodehub.core.records import ModelInfo
from decodehub.core.repos import export_dataset
from decodehub.hub.client import HubError
from decodehub.hub.publish import Options, push_record, push_thing
from decodehub.metrics.eeg_editbench.benchmark import load_benchmark
from decodehub.metrics.eeg_editbench.protocol import Predictions, make_record

GO = Options(direct=True, go=True)
PROPOSE = Options(go=True)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory, make_release: Callable[..., Path]) -> Path:
    return make_release(tmp_path_factory.mktemp("release") / "tiny", concepts=3)


@pytest.fixture(scope="module")
def tables(release: Path) -> dict[str, bytes]:
    return files_of(export_dataset(find("eeg-editbench", "dataset"), data_dir=str(release)))


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory, release: Path) -> Path:
    return make(tmp_path_factory.mktemp("record") / "r", release, "nice")


def make(folder: Path, release: Path, model: str, seed: int = 0) -> Path:
    benchmark = load_benchmark(str(release))
    q, e = len(benchmark.concepts), len(benchmark.edit_ids)
    rng = np.random.default_rng(seed)
    runs = [Predictions(s, 0, *(rng.standard_normal(shape) for shape in ((q, q), (q, e), (q, q)))) for s in (1, 2)]
    make_record(folder, benchmark, runs, model=ModelInfo(id=model), data="random numbers", similarity="cosine")
    return folder


def push(record: Path, model: str | None, options: Options = GO, **places: str) -> str:
    lines: list[str] = []
    push_record(record, model, options, lines.append, **places)
    return "\n".join(lines)


def front(data: bytes) -> dict[str, Any]:
    return yaml.safe_load(data.decode().split("---\n")[1])


class TestWhere:
    """Results go where the model is; one record, one model."""

    def test_to_the_owner_of_the_model_where_it_can_be_written_to(self, hub: Any, record: Path, tables: dict[str, bytes]) -> None:
        hub.create("model", "lab/nice")
        hub.create("model", "other/nice")
        for owner in ("lab", "me"):
            hub.create("dataset", f"{owner}/eeg-editbench", tables)
        push(record, "lab/nice")
        assert hub.files("dataset", "lab/decodehub-results") and ("dataset", "me/decodehub-results") not in hub.repositories
        push(record, "other/nice")
        assert hub.files("dataset", "me/decodehub-results") and hub.repo("model", "other/nice").pulls

    @pytest.mark.parametrize("model", ["lab/other", "lab/Nice", "lab/nice-2"])
    def test_not_under_another_name(self, hub: Any, record: Path, tables: dict[str, bytes], model: str) -> None:
        hub.create("model", model)
        hub.create("dataset", "lab/eeg-editbench", tables)
        for options in (Options(), GO):
            with pytest.raises(ValueError, match=rf"the record is of model 'nice', not of '{model}': .*make the record of"):
                push(record, model, options)
        assert hub.files("model", model) == {}

    def test_a_record_alone(self, hub: Any, record: Path) -> None:
        assert "model" not in push(record, None, org="lab").replace("predictions of nice", "")
        assert {kind for kind, _ in hub.repositories} == {"dataset"}


class TestNumbers:
    """Numbers are filed under the data that they were made on, once."""

    def test_the_data_set_must_be_there_and_hold_the_release(
        self, hub: Any, record: Path, tables: dict[str, bytes], make_release: Callable[..., Path], tmp_path: Path
    ) -> None:
        hub.create("model", "lab/nice", {"README.md": b"# Mine\n"})
        with pytest.raises(
            HubError, match=r"not on the Hub.*datasets/lab/eeg-editbench, on which the record was scored.*Nothing was published$"
        ):
            push(record, "lab/nice")
        assert "would be refused: datasets/lab/eeg-editbench" in push(record, "lab/nice", Options())
        other = make_release(tmp_path / "other", concepts=4)  # the same name, other content
        hub.create("dataset", "lab/eeg-editbench", files_of(export_dataset(find("eeg-editbench", "dataset"), data_dir=str(other))))
        for options in (Options(), GO):
            with pytest.raises(HubError, match=r"does not hold what the record was scored on.*it has release 'tiny' with 4 sources"):
                push(record, "lab/nice", options)
        hub.create("dataset", "lab/eeg-editbench", {"README.md": b"x"})
        with pytest.raises(HubError, match="does not hold what the record was scored on"):
            push(record, "lab/nice")
        assert ("dataset", "lab/decodehub-results") not in hub.repositories and hub.files("model", "lab/nice") == {"README.md": b"# Mine\n"}
        hub.create("dataset", "data/bench", tables)
        push(record, "lab/nice", data="data/bench")
        (result,) = front(hub.files("model", "lab/nice")["README.md"])["model-index"][0]["results"]
        revision = hub.repo("dataset", "data/bench").refs["main"]
        assert result["dataset"]["type"] == "data/bench" and result["dataset"]["revision"] == revision
        entries = yaml.safe_load(hub.files("model", "lab/nice")[".eval_results/decodehub-eeg-editbench.yaml"])
        assert {e["dataset"]["revision"] for e in entries} == {revision}

    def test_one_entry_a_number_however_often(
        self, hub: Any, record: Path, release: Path, tables: dict[str, bytes], tmp_path: Path
    ) -> None:
        hub.create("model", "lab/nice", {"README.md": b"---\nextra_gated_prompt: ask me\n---\n# Mine\n"})
        dataset = hub.create("dataset", "lab/eeg-editbench", tables)
        push(record, "lab/nice", PROPOSE)
        hub.merge("dataset", "lab/decodehub-results", 1)
        hub.merge("model", "lab/nice", 1)
        before = hub.files("model", "lab/nice")
        dataset.commit({**dataset.tree(), "notes.txt": next(iter(dataset.tree().values()))})  # another commit, the same rows
        assert push(record, "lab/nice").count("nothing to do") == 2 and hub.files("model", "lab/nice") == before
        again = make(tmp_path / "again", release, "lab/nice", seed=1)
        push(again, "lab/nice")
        push(record, "lab/nice")
        files = hub.files("model", "lab/nice")
        assert len(front(files["README.md"])["model-index"][0]["results"]) == 1
        entries = yaml.safe_load(files[".eval_results/decodehub-eeg-editbench.yaml"])
        assert len({(e["dataset"]["id"], e["dataset"]["task_id"]) for e in entries}) == len(entries) == 3
        assert files["README.md"].startswith(b"---\nextra_gated_prompt: ask me\n") and files["README.md"].endswith(b"# Mine\n")

    @pytest.mark.parametrize("card", [b"---\nlicense: [mit\n---\n", b"---\nname: \xff\n---\n", b"---\nlicense: mit\n# Text\n"])
    def test_a_damaged_card_is_not_written_back(self, hub: Any, record: Path, tables: dict[str, bytes], card: bytes) -> None:
        hub.create("model", "lab/nice", {"README.md": card})
        hub.create("dataset", "lab/eeg-editbench", tables)
        with pytest.raises(ValueError, match=r"the card of lab/nice.*mend it first"):
            push(record, "lab/nice")
        assert ("dataset", "lab/decodehub-results") not in hub.repositories
        assert hub.files("model", "lab/nice") == {"README.md": card}

    def test_what_landed_is_said_when_the_rest_fails(self, hub: Any, record: Path, tables: dict[str, bytes]) -> None:
        hub.create("model", "lab/nice")
        hub.create("dataset", "lab/eeg-editbench", tables)
        hub.fail("POST", "/models/lab/nice/commit/", 403, words="no")
        with pytest.raises(HubError) as error:
            push(record, "lab/nice", PROPOSE)
        said = str(error.value)
        assert said.startswith(f"published: {hub.url}/datasets/lab/decodehub-results/discussions/1. The rest was not: this token may not")
        push(record, "lab/nice", PROPOSE)
        assert len(hub.repo("dataset", "lab/decodehub-results").pulls) == 1 and hub.files("model", "lab/nice", "refs/pr/1")


class TestDataSetCard:
    """What a card and a description claim is true of the rows that are there."""

    @pytest.mark.parametrize("sample", [False, True], ids=["reviewed release", "sample"])
    def test_claims_come_from_the_rows(self, hub: Any, release: Path, sample: bool) -> None:
        import mlcroissant

        theirs = b"---\nextra_gated_prompt: Say why.\ntags: [ours-too]\n---\nWritten by hand.\n"
        hub.create("dataset", "lab/eeg-editbench", {"README.md": theirs, ".gitattributes": b""})
        args = ("eeg-editbench", "lab", None, "dataset", "sample" if sample else str(release))
        lines: list[str] = []
        assert push_thing(*args, Options(), lines.append) is None and any("--into-existing" in line for line in lines)
        with pytest.raises(HubError, match="into-existing"):
            push_thing(*args, GO, lines.append)
        push_thing(*args, GO._replace(into_existing=True), lines.append)
        files = hub.files("dataset", "lab/eeg-editbench")
        text, card, about = files["README.md"].decode(), front(files["README.md"]), json.loads(files["croissant.json"])
        assert card["extra_gated_prompt"] == "Say why." and "ours-too" in card["tags"] and "Written by hand.\n" in text
        assert card["annotations_creators"] == (["machine-generated"] if sample else ["expert-generated"])
        assert card["size_categories"] == ["n<1K"]
        head = text[: text.index("## EEG-EditBench in general")]
        assert ("Not reviewed: no row" in head) == sample and ("A sample or rehearsal release" in head) == sample
        assert "2,137" not in head and "two reviewers" not in head and "200 " not in head
        assert about["creator"][0]["name"] == ("decodehub" if sample else "Kaifan Zhang") and "eeg" in about["keywords"]
        assert about["license"][0].startswith("https://spdx.org/licenses/C") and about["rai:dataUseCases"] and about["datePublished"]
        metadata = mlcroissant.Dataset(jsonld=about).metadata
        assert not list(metadata.ctx.issues.errors) and metadata.data_biases and metadata.date_published

        about["datePublished"] = "2020-01-01"  # pushed then; the same data keep their date, and nothing is sent
        repo = hub.repo("dataset", "lab/eeg-editbench")
        repo.commit({**repo.tree(), "croissant.json": repo.tree()["croissant.json"]._replace(data=as_written(about))})
        lines.clear()
        push_thing(*args, Options(), lines.append)
        assert not any("croissant.json" in line and line.startswith("  +") for line in lines)

    def test_files_of_others_that_would_be_read_as_data(self, hub: Any, release: Path) -> None:
        hub.create("dataset", "lab/eeg-editbench", {"edits/test-00001-of-00002.parquet": b"x"})
        with pytest.raises(HubError, match=r"holds edits/test-00001-of-00002.parquet, .*would be read as part of it; nothing was sent"):
            push_thing("eeg-editbench", "lab", None, "dataset", str(release), GO._replace(into_existing=True), lambda line: None)

    @pytest.mark.parametrize("name", ["eeg-editbench", "bcs-annotations", "imindbench", "things-eeg2"])
    def test_every_data_set_states_its_responsible_use(self, name: str) -> None:
        stated = yaml.safe_load((find(name, "dataset").folder / "rai.yaml").read_text())
        assert set(stated) == {"every", "sample", "release"}
        for kind in ("sample", "release"):
            fields = stated["every"] | stated[kind]
            assert {"dataCollection", "dataLimitations", "dataBiases", "dataUseCases", "personalSensitiveInformation"} <= set(fields)
            assert all(isinstance(v, str) or all(isinstance(x, str) for x in v) for v in fields.values())


def as_written(value: Any) -> bytes:
    from decodehub.core.files import canonical_json

    return (canonical_json(value, indent=2) + "\n").encode()


def test_a_model_card_keeps_text_of_others_and_says_its_own_sizes(hub: Any, tmp_path: Path) -> None:
    from decodehub.hub_models.eeg_retrieval import NICEConfig, NICEModel

    model = NICEModel(NICEConfig.tiny())
    model.save_pretrained(tmp_path / "nice")
    args = (str(tmp_path / "nice"), "lab", None, None, None)
    push_thing(*args, GO, lambda line: None)
    repo = hub.repo("model", "lab/nice")
    card = repo.tree()["README.md"]
    repo.commit({**repo.tree(), "README.md": card._replace(data=b"---\ngated: yes\n" + card.data[4:] + b"\n## By hand\n")})
    push_thing(*args, GO, lambda line: None)
    text = hub.files("model", "lab/nice")["README.md"].decode()
    head, _, published = text.partition("## The published architecture")
    assert text.startswith("---\ngated: yes\n") and text.endswith("## By hand\n")
    assert f"{model.num_parameters():,} parameters" in head and "1,802,496" not in head and "1,802,496" in published
    assert f"| `n_channels` | {model.config.n_channels} |" in head
