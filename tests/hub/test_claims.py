"""Claims on the Hub: whatever of them is not what the record at their source gives is found."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml

from decodehub.core.records import ModelInfo, ResultRecord, read_record
from decodehub.hub.claims import Claim, compare_claim, doubles, read_claims, source_of
from decodehub.hub.released import DataSet
from decodehub.hub.results import entries_path, filed_card, filed_entries, stage_results
from decodehub.hub.verify_remote import verify_hub
from decodehub.metrics.eeg_editbench.benchmark import Benchmark
from decodehub.metrics.eeg_editbench.protocol import Predictions, make_record

MODEL, RESULTS, ENTRIES = "lab/mymodel", "lab/decodehub-results", ".eval_results/decodehub-eeg-editbench.yaml"
ENDPOINT = "https://hub.example"
RELEASE = {"schema_version": 1, "dataset": "eeg-editbench", "configs": {"edits": {"releases": ["tiny", "2.0"]}}, "files": {}}


class Published(NamedTuple):
    """A record, its path in the repository of results, its files there, and the files of the model's repository for a url."""

    record: ResultRecord
    path: str
    results: dict[str, bytes]
    model: Callable[[str], dict[str, bytes]]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, tiny_benchmark: Benchmark) -> Published:
    root = tmp_path_factory.mktemp("published")
    q, e = len(tiny_benchmark.concepts), len(tiny_benchmark.edit_ids)
    rng = np.random.default_rng(0)
    runs = [Predictions(s, 0, *(rng.standard_normal(shape) for shape in ((q, q), (q, e), (q, q)))) for s in (1, 2, 3)]
    make_record(root / "record", tiny_benchmark, runs, model=ModelInfo(id=MODEL), data="random numbers", similarity="cosine")
    _, record = read_record(root / "record")
    path = stage_results(root / "record", record, root / "results", with_card=False)

    def model(url: str) -> dict[str, bytes]:
        data = DataSet("lab/eeg-editbench", "c" * 40)
        entries = filed_entries(None, record, url, MODEL, data)
        assert entries is not None
        return {"README.md": filed_card(None, record, url, MODEL, data).encode(), entries_path(record): entries.encode()}

    return Published(record, path, contents(root / "results"), model)


@pytest.fixture
def claims(published: Published, tmp_path: Path) -> dict[str, list[Claim]]:
    for place, data in published.model(f"{ENDPOINT}/datasets/{RESULTS}/tree/main/{published.path}").items():
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_bytes(data)
    read = {place: read_claims(tmp_path / place, place) for place in ("README.md", ENTRIES)}
    assert all(not faults for _, faults in read.values())
    return {place: found for place, (found, _) in read.items()}


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value that holds no others."""
    if isinstance(value, (dict, list)) and value:
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(part, (*path, key))
    else:
        yield path


def altered(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, (int, float)) else f"{value}x"


def with_leaf(content: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    result = copy.deepcopy(content)
    place = result
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = change(place.get(path[-1]) if isinstance(place, dict) else place[path[-1]])
    return result


class TestFields:
    """Every field of a claim, whatever fields there are."""

    def test_a_claim_as_push_writes_it_is_right(self, claims: dict[str, list[Claim]], published: Published) -> None:
        every = [claim for found in claims.values() for claim in found]
        assert [claim.n for claim in claims[ENTRIES]] == [1, 1, 1] and claims["README.md"][0].n > 3
        assert all(compare_claim(claim, published.record, MODEL) == [] for claim in every) and doubles(every) == []

    @pytest.mark.parametrize("place", ["README.md", ENTRIES])
    def test_any_altered_or_new_field_is_found(self, claims: dict[str, list[Claim]], published: Published, place: str) -> None:
        claim = claims[place][0]
        elsewhere = {("source", "url"), ("dataset", "type"), ("dataset", "id"), ("dataset", "revision")}  # compared with the Hub: TestHub
        paths = [path for path in leaves(claim.content) if path not in elsewhere and (path[0] != "metrics" or path[1] == 0)]
        assert len(paths) >= 5
        for path in paths:
            assert compare_claim(Claim(place, with_leaf(claim.content, path, altered)), published.record, MODEL), path
        for path in sorted({leaf[:-1] for leaf in paths if isinstance(leaf[-1], str)}, key=str):
            for name, value in (("verified", True), ("verifyToken", "abc")):
                changed = with_leaf(claim.content, (*path, name), lambda _, value=value: value)
                assert compare_claim(Claim(place, changed), published.record, MODEL), (path, name)

    @pytest.mark.parametrize(("model", "right"), [(MODEL, True), ("other/clone", False), ("other/mymodel", False), ("lab/mymodel2", False)])
    def test_the_model_is_that_of_the_record(self, claims: dict[str, list[Claim]], published: Published, model: str, right: bool) -> None:
        for found in claims.values():
            assert (compare_claim(found[0], published.record, model) == []) == right
        bare = published.record.model_copy(update={"model": ModelInfo(id="mymodel")})
        faults = compare_claim(claims[ENTRIES][0], bare, model)
        assert any("the record is of model 'mymodel'" in fault for fault in faults) == (not model.endswith("/mymodel"))

    @pytest.mark.parametrize("update", [{"kind": "simulated"}, {"kind": "sample"}])
    def test_what_is_not_real_enters_no_leaderboard(
        self, claims: dict[str, list[Claim]], published: Published, update: dict[str, Any]
    ) -> None:
        (fault,) = compare_claim(claims[ENTRIES][0], published.record.model_copy(update=update), MODEL)
        assert "no headline number of that name for a leaderboard" in fault

    def test_numbers_that_are_claimed_twice(self, claims: dict[str, list[Claim]]) -> None:
        first, card = claims[ENTRIES][0], claims["README.md"][0]
        fake = Claim(".eval_results/a.yaml", {**first.content, "value": 100.0, "source": {"url": "https://else.where"}})
        assert len(doubles([fake, first])) == 1 and len(doubles([card, card])) == card.n

    @pytest.mark.parametrize(
        ("url", "found"),
        [
            (f"{ENDPOINT}/datasets/lab/results/tree/main/a/b", ("lab/results", "main", "a/b")),
            (f"{ENDPOINT}/datasets/lab/results/tree/refs%2Fpr%2F1/a", ("lab/results", "refs/pr/1", "a")),
            (f"{ENDPOINT}/datasets/lab/results/tree/main/../b", "without predictions"),
            (f"{ENDPOINT}/datasets/lab/results/tree/main/*", "without predictions"),
            (f"{ENDPOINT}/datasets/lab/results", "without predictions"),
            (f"{ENDPOINT}/lab/results/tree/main/a", "without predictions"),
            (f"{ENDPOINT}.evil.org/datasets/lab/results/tree/main/a/b", "on this Hub"),
            ("https://evil.org/datasets/lab/results/tree/main/a/b", "on this Hub"),
            ("https://hub.example@evil.org/datasets/lab/results/tree/main/a/b", "on this Hub"),
            ("", "without predictions"),
        ],
    )
    def test_sources(self, url: str, found: Any) -> None:
        source = source_of(url, ENDPOINT)
        assert source == found if isinstance(found, tuple) else isinstance(source, str) and found in source


class TestReading:
    """Files that are no lists of claims, and entries that are none beside others."""

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("- [1, 2]", "entry 1 cannot be read: expected a mapping with a data set"),
            ("a: 1", "expected a list of entries, found dict"),
            ("- dataset: {id: a/b}\n  value: 1", "its data set lacks task_id"),
            ("- dataset: {id: a/b, task_id: t}", "it has no value"),
            ("- dataset: {id: a/b, task_id: t}\n  value: 1\n  value: 2", "the key 'value' is there twice"),
            ("- dataset: &x {id: a/b, task_id: t}\n  value: *x", "it has aliases"),
            ("[" * 5000, "cannot be read"),
            ("- !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ],
    )
    def test_what_is_none(self, tmp_path: Path, text: str, message: str) -> None:
        (tmp_path / "e.yaml").write_text(text)
        found, faults = read_claims(tmp_path / "e.yaml", "e.yaml")
        assert found == [] and len(faults) == 1 and message in faults[0]

    def test_a_wrong_entry_does_not_hide_the_others(self, tmp_path: Path) -> None:
        (tmp_path / "e.yaml").write_text("- mine\n- dataset: {id: a/b, task_id: t}\n  value: 1\n")
        found, faults = read_claims(tmp_path / "e.yaml", "e.yaml")
        assert len(found) == len(faults) == 1


class TestHub:
    """Whole repositories, through the client."""

    @pytest.fixture
    def world(self, hub: Any, published: Published) -> Any:
        """A function that puts the model's files on the Hub, changed, and gives the states of what is found."""
        hub.create("dataset", RESULTS, published.results)
        hub.create("dataset", "lab/eeg-editbench", {"release.json": json.dumps(RELEASE).encode()})
        files = published.model(f"{hub.url}/datasets/{RESULTS}/tree/main/{published.path}")

        def states(change: Callable[[list[Any], dict[str, Any]], Any] = lambda e, r: None, model: str = MODEL) -> list[str]:
            commit = hub.repo("dataset", "lab/eeg-editbench").refs["main"].encode()
            there = {place: data.replace(b"c" * 40, commit) for place, data in files.items()}
            entries = yaml.safe_load(there[ENTRIES])
            head, body = there["README.md"].decode().split("---\n", 2)[1:]
            front = yaml.safe_load(head)
            change(entries, front["model-index"][0]["results"][0])
            card = f"---\n{yaml.safe_dump(front)}---\n{body}"
            hub.create("model", model, {"README.md": card.encode(), ENTRIES: yaml.safe_dump(entries).encode()})
            return [finding.state for finding in verify_hub(model)]

        return states

    def test_right_then_each_forgery(self, world: Any, hub: Any, published: Published) -> None:
        assert world() == ["recomputed", "recomputed"]

        def each(path: tuple[str, ...], value: Any) -> Callable[[list[Any], dict[str, Any]], None]:
            def change(entries: list[Any], result: dict[str, Any]) -> None:
                for content in (*entries, result):
                    place = content
                    for key in path[:-1]:
                        place = place[key]
                    place["type" if path == ("dataset", "id") and content is result else path[-1]] = value

            return change

        assert world(lambda e, r: e.insert(0, {**copy.deepcopy(e[0]), "value": 100.0})) == ["recomputed", "wrong", "wrong"]
        assert world(model="other/clone") == ["wrong", "wrong"]
        assert world(each(("dataset", "id"), "lab/another")) == ["reported only", "reported only"]
        assert world(each(("dataset", "id"), "evil/eeg-editbench")) == ["reported only", "reported only"]  # no such data set is there
        assert world(lambda e, r: r["dataset"]["args"].update(release="2.0")) == ["wrong", "recomputed"]
        assert world(lambda e, r: r["dataset"].update(name="EEG-EditBench, release 2.0")) == ["wrong", "recomputed"]
        assert world(lambda e, r: r["dataset"]["args"].update(content_hash="sha256:" + "0" * 64)) == ["wrong", "recomputed"]
        assert world(lambda e, r: [x["source"].update(url=x["source"]["url"].replace(hub.url, "https://evil.org")) for x in (*e, r)]) == [
            "reported only",
            "reported only",
        ]
        assert world(each(("source", "url"), f"{hub.url}/datasets/{RESULTS}/tree/main/{published.path}x")) == ["reported only"] * 2
        assert world(each(("source", "url"), f"{hub.url}/datasets/{RESULTS}/tree/other/{published.path}")) == ["reported only"] * 2
        assert world(lambda e, r: e[0]["dataset"].update(revision="main")) == ["recomputed", "wrong"]
        assert world(lambda e, r: e[0]["dataset"].update(revision="0" * 40)) == ["recomputed", "reported only"]
        head = hub.repo("dataset", "lab/eeg-editbench").refs["main"]
        assert world(lambda e, r: [x["dataset"].update(revision=head) for x in e]) == ["recomputed", "recomputed"]
        hub.create("dataset", "lab/eeg-editbench", {"release.json": json.dumps({**RELEASE, "configs": {}}).encode()})
        assert world() == ["wrong", "wrong"]

    def test_a_record_without_its_predictions_or_of_simulated_data(self, world: Any, hub: Any, published: Published) -> None:
        bare = {path: data for path, data in published.results.items() if not path.endswith(".safetensors")}
        hub.create("dataset", RESULTS, bare)
        assert world() == ["reported only", "reported only"]
        text = published.results[f"{published.path}/record.json"]
        hub.create("dataset", RESULTS, {**published.results, f"{published.path}/record.json": text.replace(b'"real"', b'"simulated"')})
        assert world() == ["wrong", "wrong"]
