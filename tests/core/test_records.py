"""Result records: what they hold, what they refuse, and that any tampering with one is found."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from safetensors.numpy import load_file, save_file

from decodehub.core.files import canonical_json, sha256_file
from decodehub.core.records import (
    Coverage,
    Metric,
    ModelInfo,
    Protocol,
    RecordError,
    ResultRecord,
    environment,
    protocol_hash,
    read_record,
    write_record,
)
from decodehub.hub.verify import verify
from decodehub.metrics.eeg_editbench.benchmark import Benchmark, make_benchmark
from decodehub.metrics.eeg_editbench.protocol import Predictions, load_predictions, make_record, save_predictions, score_runs
from decodehub.metrics.eeg_editbench.scoring import Settings

RUNS = [(subject, seed) for subject in (1, 2, 3) for seed in (0, 1)]
MODEL = ModelInfo(id="me/model", revision="a" * 40, parameters=12)


def random_runs(b: Benchmark, runs: list[tuple[int, int]] = RUNS, *, nulls: bool = True) -> list[Predictions]:
    q, e = len(b.concepts), len(b.edit_ids)

    def matrices(subject: int, seed: int) -> list[np.ndarray]:
        rng = np.random.default_rng([subject, seed])
        return [rng.standard_normal(shape).astype(np.float32) for shape in ((q, q), (q, e), (q, q))]

    return [Predictions(s, k, *matrices(s, k)[: 3 if nulls else 2]) for s, k in runs]


def make(folder: Path, b: Benchmark, runs: list[Predictions] | None = None, **options: Any) -> ResultRecord:
    options = {"model": MODEL, "data": "random numbers", "similarity": "cosine", **options}
    return make_record(folder, b, random_runs(b) if runs is None else runs, **options)[0]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, tiny_benchmark: Benchmark) -> Path:
    folder = tmp_path_factory.mktemp("records") / "original"
    make(folder, tiny_benchmark)
    return folder


@pytest.fixture
def record(original: Path, tmp_path: Path) -> Path:
    """A record folder that the test may damage."""
    return shutil.copytree(original, tmp_path / "record")


def edit_json(path: Path, change: Callable[[Any], None]) -> None:
    value = json.loads(path.read_text(encoding="utf-8"))
    change(value)
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")


class TestWriting:
    """What a record holds and what cannot become one."""

    def test_a_record_is_read_as_it_was_made(self, tmp_path: Path, tiny_benchmark: Benchmark) -> None:
        record = make(tmp_path / "r", tiny_benchmark)
        for place in (tmp_path / "r", tmp_path / "r" / "record.json"):
            folder, found = read_record(place)
            assert folder == tmp_path / "r" and found == record
        assert record.model == MODEL and record.coverage == Coverage(rule="subjects x seeds", expected=6, present=6)
        assert [(run.subject, run.seed) for run in record.runs] == RUNS
        assert record.benchmark.content_hash == tiny_benchmark.content_hash
        assert record.protocol.settings == {
            "distance_bins": 5,
            "interval": "sign_flip",
            "distance_width": 0.05,
            "distance_min_edits": 20,
            "distance_interval_weight": "edits",
            "similarity": "cosine",
            "distance_encoder": None,
        }
        scored = score_runs(tiny_benchmark, random_runs(tiny_benchmark))
        values = dict(zip((key.label for key in scored.scores[0].keys), scored.total.mean))
        assert record.value("two_afc") == values["two_afc"]
        assert record.value("two_afc", family="identity") == values["two_afc[family=identity]"]
        with pytest.raises(KeyError, match="no metric 'two_afc' with slice"):
            record.value("two_afc", family="style")
        assert verify(tmp_path / "r") == (record, [])

    def test_equal_inputs_give_equal_bytes_but_for_the_time(self, tmp_path: Path, tiny_benchmark: Benchmark) -> None:
        def content(folder: Path) -> dict[str, bytes]:
            return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}

        make(tmp_path / "a", tiny_benchmark)
        make(tmp_path / "b", tiny_benchmark, random_runs(tiny_benchmark)[::-1])  # the order of the runs is no content
        a, b = content(tmp_path / "a"), content(tmp_path / "b")
        assert len(a) == 8 and a.keys() == b.keys()
        for text in (a, b):
            value = json.loads(text["record.json"])
            assert text["record.json"].decode() == canonical_json(value, indent=2) + "\n"
            value["created"] = ""
            text["record.json"] = canonical_json(value).encode()
        assert a == b

    def test_a_record_that_is_there_is_replaced(self, tmp_path: Path, tiny_benchmark: Benchmark) -> None:
        make(tmp_path, tiny_benchmark)
        make(tmp_path, tiny_benchmark, random_runs(tiny_benchmark, [(1, 5)]), data="another run")
        found, differences = verify(tmp_path)
        assert found.data == "another run" and len(found.runs) == 1 and differences == []

    @pytest.mark.parametrize(
        ("runs", "message"),
        [
            (RUNS[:-1], r"grid of 3 subjects x 2 seeds lacks the runs \(subject, seed\) \[\(3, 1\)\]: run them first"),
            ([*RUNS, (2, 1)], r"runs \(subject, seed\) \[\(2, 1\)\] are there twice"),
            ([], "give one row of values a run"),
        ],
    )
    def test_a_partial_grid_is_refused(self, tmp_path: Path, tiny_benchmark: Benchmark, runs: list[tuple[int, int]], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            make(tmp_path / "r", tiny_benchmark, random_runs(tiny_benchmark, runs))
        assert not (tmp_path / "r").exists()

    def test_bad_predictions_write_nothing(self, tmp_path: Path, tiny_benchmark: Benchmark) -> None:
        runs = random_runs(tiny_benchmark)
        with_nan = runs[4].edit_scores.copy()
        with_nan[1, 2] = np.nan
        b = tiny_benchmark
        cases = {
            f"subject 3, seed 0: edit_scores has 1 values that are not finite, the first for query {b.concepts[1]!r} and image {b.edit_ids[2]!r}": (
                runs[4]._replace(edit_scores=with_nan)
            ),
            "subject 3, seed 0: source_scores has shape (5, 6), expected (6, 6) (queries in rows) for release 'tiny'": runs[4]._replace(
                source_scores=runs[4].source_scores[1:]
            ),
            "null scores are missing from the runs (subject, seed) [(3, 0)] and present in others: give all or none": runs[4]._replace(
                null_scores=None
            ),
        }
        for message, bad in cases.items():
            with pytest.raises(ValueError) as error:
                make(tmp_path / "r", b, [*runs[:4], bad, runs[5]])
            assert str(error.value) == message
        assert not (tmp_path / "r").exists()

    def test_predictions_that_changed_meanwhile_stop_the_record(self, original: Path, record: Path) -> None:
        _, made = read_record(original)
        (record / "record.json").unlink()
        (record / made.runs[0].predictions).write_bytes(b"other")
        with pytest.raises(RecordError, match=r"sub-01_seed-0\.safetensors has changed since the record was made"):
            write_record(record, made)
        assert not (record / "record.json").exists()

    def test_what_is_not_scored_is_null_with_a_reason_and_never_nan(self, tmp_path: Path, tiny_benchmark: Benchmark) -> None:
        rows = tiny_benchmark.rows
        edits = [{**row, "visual_distance": None} for row in rows["edits"] if row["family"] != "identity"]
        bare = make_benchmark("bare", rows["sources"], edits)
        record = make(tmp_path, bare, random_runs(bare, nulls=False))
        null = {metric.name: metric for metric in record.metrics if metric.value is None}
        assert null["distance_margin_spearman"].reason == "fewer than 5 edits of the release have a visual_distance"
        assert {null[name].reason for name in null if name.startswith(("target_", "source_drop"))} == {
            "no identity edit whose target concept has a query"
        }
        assert all(m.sd is None and m.ci95 is None for m in null.values())
        text = (tmp_path / "record.json").read_text()
        assert "NaN" not in text and "Infinity" not in text
        assert not any(metric.name.startswith(("null", "original")) for metric in record.metrics)
        assert verify(tmp_path)[1] == []

        constant = [Predictions(1, 0, np.ones((6, 6)), np.ones((6, 35)), None)]
        metrics = make(tmp_path / "constant", tiny_benchmark, constant).metrics
        spearman = next(m for m in metrics if m.name == "distance_margin_spearman")
        assert (spearman.value, spearman.reason) == (None, "not defined: the scores are constant")
        assert all(m.ci95 is None and m.n == 1 for m in metrics)  # one subject has no interval

    def test_a_record_of_the_former_protocol_is_scored_with_the_intervals_of_the_paper(
        self, tmp_path: Path, tiny_benchmark: Benchmark
    ) -> None:
        record = make(tmp_path, tiny_benchmark, settings=Settings(interval="paper"))
        settings = {name: value for name, value in record.protocol.settings.items() if name != "interval"}
        former = {"name": "editbench-v1.0", "settings": settings, "hash": protocol_hash("editbench-v1.0", settings)}
        write_record(tmp_path, record.model_copy(update={"protocol": type(record.protocol)(**former)}))
        assert verify(tmp_path)[1] == [] and any(m.ci95 for m in record.metrics)

    def test_every_number_is_explained_or_refused(self) -> None:
        fields: dict[str, Any] = {"name": "top1", "unit": "percent", "higher_is_better": True, "n": 1}
        for value, reason in ((None, None), (1.0, "why")):
            with pytest.raises(ValidationError, match="a null value needs a reason, and only a null value has one"):
                Metric(value=value, reason=reason, **fields)
        for bad in (math.nan, math.inf):
            for field in ("value", "sd", "chance"):
                with pytest.raises(ValidationError, match="finite"):
                    Metric(**{"value": 1.0, **fields, field: bad})
        for expected, present in ((2, 1), (1, 2), (0, 0)):
            with pytest.raises(ValidationError, match=f"{present} of {expected} runs are present: a partial run cannot become a record"):
                Coverage(rule="all", expected=expected, present=present)
        with pytest.raises(ValidationError, match="pattern"):
            Protocol(name="editbench", settings={}, hash=protocol_hash("editbench", {}))

    def test_no_secret_of_the_environment_is_in_a_record(
        self, tmp_path: Path, tiny_benchmark: Benchmark, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        secret = "hf_" + "SeCrEt" * 6
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "OPENAI_API_KEY", "USER", "HOSTNAME"):
            monkeypatch.setenv(name, secret)
        make(tmp_path, tiny_benchmark)
        for file in tmp_path.rglob("*"):
            if file.is_file():
                assert secret.encode() not in file.read_bytes() and str(tmp_path).encode() not in file.read_bytes()
        found = environment(device="cpu", dtype="float32")
        assert set(found) == {"python", "packages", "device", "dtype", "threads", "seed"}
        assert {"decodehub", "numpy", "torch"} <= set(found["packages"])

    def test_scores_keep_their_type_and_their_ties(self, tmp_path: Path, tiny_benchmark: Benchmark) -> None:
        run = random_runs(tiny_benchmark)[0]
        half = run._replace(source_scores=run.source_scores.astype(np.float16))
        assert save_predictions(tmp_path / "p", half, tiny_benchmark) == sha256_file(tmp_path / "p")
        found = load_predictions(tmp_path / "p")
        assert (found.subject, found.seed) == (1, 0) and found.source_scores.dtype == np.float16
        for name in ("source_scores", "edit_scores", "null_scores"):
            assert np.array_equal(getattr(found, name), getattr(half, name))
        fortran = run._replace(edit_scores=np.asfortranarray(run.edit_scores))
        assert save_predictions(tmp_path / "q", fortran, tiny_benchmark) == save_predictions(tmp_path / "r", run, tiny_benchmark)

    @pytest.mark.parametrize(
        ("tensors", "metadata", "message"),
        [
            ({"source_scores": np.zeros((2, 2))}, {"run": "{}"}, r"has the tensors \['source_scores'\], expected"),
            ({"source_scores": np.zeros((2, 2)), "edit_scores": np.zeros((2, 2))}, {"run": '{"subject": 1}'}, "does not say its 'seed'"),
            ({"source_scores": np.zeros((2, 2)), "edit_scores": np.zeros((2, 2))}, None, "does not say its 'run'"),
            ({"source_scores": np.zeros((2, 2)), "edit_scores": np.zeros((2, 2))}, {"run": '{"subject": "x"}'}, "cannot be read"),
        ],
    )
    def test_a_file_that_holds_no_predictions_is_named(self, tmp_path: Path, tensors: Any, metadata: Any, message: str) -> None:
        save_file(tensors, tmp_path / "p.safetensors", metadata=metadata)
        with pytest.raises(ValueError, match=r"p\.safetensors.*" + message):
            load_predictions(tmp_path / "p.safetensors")
        (tmp_path / "p.safetensors").write_bytes(b"garbage")
        with pytest.raises(ValueError, match=r"p\.safetensors cannot be read as predictions"):
            load_predictions(tmp_path / "p.safetensors")


Change = Callable[[dict[str, Any]], None]


def index_of(value: dict[str, Any], name: str, **slice_: str) -> int:
    return next(i for i, m in enumerate(value["metrics"]) if m["name"] == name and m["slice"] == slice_)


def change_metric(field: str, change: Callable[[Any], Any], name: str = "two_afc", **slice_: str) -> Change:
    def apply(value: dict[str, Any]) -> None:
        metric = value["metrics"][index_of(value, name, **slice_)]
        metric[field] = change(metric[field])

    return apply


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 1


def change_setting(name: str, setting: Any) -> Change:
    def apply(value: dict[str, Any]) -> None:
        protocol = value["protocol"]
        protocol["settings"][name] = setting
        protocol["hash"] = protocol_hash(protocol["name"], protocol["settings"])

    return apply


STATED: dict[str, tuple[Change, tuple[str, str]]] = {
    "a value": (change_metric("value", lambda x: x + 0.01), ("two_afc", "value")),
    "a value by a millionth": (change_metric("value", lambda x: x + 1e-6, family="identity"), ("two_afc[family=identity]", "value")),
    "an interval": (change_metric("ci95", lambda x: [20.0, 30.0], name="ep_top1"), ("ep_top1", "ci95")),
    "a spread": (change_metric("sd", lambda x: x / 2, name="top1"), ("top1", "sd")),
    "a spread that is gone": (change_metric("sd", lambda x: None, name="top1"), ("top1", "sd")),
    "the number of subjects": (change_metric("n", lambda x: x + 1, name="top1"), ("top1", "n")),
    "a chance level": (change_metric("chance", lambda x: 1.0, name="top1"), ("top1", "chance")),
    "a direction": (change_metric("higher_is_better", lambda x: not x, name="top1"), ("top1", "higher_is_better")),
    "a unit": (change_metric("unit", lambda x: "share", name="top1"), ("top1", "unit")),
    "a slice": (change_metric("slice", lambda x: {"family": "style"}, family="removal"), ("two_afc[family=removal]", "metric")),
    "a reason": (
        change_metric("reason", lambda x: "no time", name="distance_gap_balanced", family="identity"),
        ("distance_gap_balanced[family=identity]", "reason"),
    ),
    "a dropped number": (lambda v: v["metrics"].pop(index_of(v, "null_top1")), ("null_top1", "metric")),
    "a number of one's own": (lambda v: v["metrics"].append({**v["metrics"][0], "name": "mine"}), ("mine", "metric")),
    "a number twice": (lambda v: v["metrics"].append(v["metrics"][0]), ("", "metric")),
    "a protocol setting": (change_setting("distance_bins", 4), ("two_afc[distance_quantile=4/4]", "metric")),
}


class TestTampering:
    """`decodehub verify` on records that were changed by hand."""

    @pytest.mark.parametrize("case", STATED)
    def test_a_stated_number_that_the_predictions_do_not_give(self, record: Path, case: str) -> None:
        change, expected = STATED[case]
        edit_json(record / "record.json", change)
        _, differences = verify(record)
        assert expected in {(d.metric, d.field) for d in differences}
        if case.startswith(("a value", "an interval", "a spread", "a unit")):
            assert len(differences) == 1

    def test_a_difference_says_both_numbers(self, record: Path) -> None:
        right = read_record(record)[1].value("top1")
        edit_json(record / "record.json", change_metric("value", lambda x: 99.0, name="top1"))
        assert verify(record)[1] == [("top1", "value", 99.0, right)]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                lambda v: v["protocol"]["settings"].update(distance_bins=4),
                "protocol: protocol.hash is not the hash of its name and settings",
            ),
            (lambda v: v["protocol"].update(name="editbench-v1.1"), "protocol.hash is not the hash"),
            (change_setting("distance_interval_weight", "as I like"), "distance_interval_weight"),
            (change_setting("distance_bins", "five"), "distance_bins"),
            (change_setting("distance_bins", 0), "distance_bins"),
            (change_setting("distance_width", -1.0), "distance_width"),
            (lambda v: v["runs"].pop(), "the record lists 5 runs (duplicates or not the 6 it claims)"),
            (lambda v: v["runs"].__setitem__(1, v["runs"][0]), "the record lists 6 runs (duplicates"),
            (lambda v: v["coverage"].update(present=5), "5 of 6 runs are present: a partial run cannot become a record"),
            (lambda v: v["runs"][0].update(sha256="sha256:0"), "runs.0.sha256"),
            (
                lambda v: v["runs"][0].update(predictions="../outside"),
                "subject 1, seed 0: ../outside: path '../outside' leads out of its folder",
            ),
            (
                lambda v: v["runs"][0].update(predictions="/etc/passwd"),
                "subject 1, seed 0: /etc/passwd: path '/etc/passwd' must be relative",
            ),
            (lambda v: v["benchmark"].update(table="../outside"), "path '../outside' leads out of its folder"),
            (lambda v: v["benchmark"].update(table="predictions"), "predictions"),
            (lambda v: v["benchmark"].update(release="1.0"), "release"),
            (lambda v: v["benchmark"].update(content_hash="sha256:" + "0" * 64), "benchmark.content_hash: it is all zeros"),
            (lambda v: v["benchmark"].update(content_hash="sha256:" + "1" * 64), "benchmark.json is another table: expected sha256:111"),
            (change_setting("mine", 1), "'mine' unknown; the protocol has distance_bins"),
            (lambda v: v.update(created="yesterday"), "created: expected a time in UTC such as 2026-11-30T12:00:00Z, found 'yesterday'"),
            (lambda v: v.update(created="2026-02-30T12:00:00Z"), "created: expected a time"),
            (lambda v: v.pop("kind"), "kind: Field required"),
            (lambda v: v.update(kind="true"), "kind: Input should be"),
            (
                lambda v: v.update(kind="sample"),
                "the record's kind is 'sample', but release 'tiny' of eeg-editbench is none of the samples",
            ),
            (lambda v: v.update(schema_version=1), "kind: schema version 1 has no such field"),
            (lambda v: v.update(schema_version=True), "schema_version"),
            (lambda v: v["runs"][0].update(predictions="p" * 5000), "runs.0.predictions: String should have at most"),
            (lambda v: v["runs"][0].update(subject=True), "runs.0.subject"),
            (lambda v: v["benchmark"].update(id="eeg_editbench"), "no metric for benchmark 'eeg_editbench'"),
            (lambda v: v["benchmark"].update(id="reconstruction-quality"), "no metric for benchmark 'reconstruction-quality'"),
            (lambda v: v["environment"].update(deep=nested(40)), "environment: it has more than 16 levels"),
            (lambda v: v["environment"].update(long="x" * 30_000), "environment: it holds a text of 30,000 characters"),
            (lambda v: v["metrics"][0].update(n=1), "metrics.0: metric top1 {}: one unit has no spread"),
            (lambda v: v["benchmark"].update(id="no-such-benchmark"), "no metric for benchmark 'no-such-benchmark': update it"),
            (lambda v: v["benchmark"].update(id="../../etc"), "no metric for benchmark '../../etc'"),
            (lambda v: v.update(schema_version=3), "schema version 3, newer than the 2 of this decodehub: update it"),
            (lambda v: v.update(schema_version="1"), "schema_version"),
            (lambda v: v.update(note="mine"), "note: Extra inputs are not permitted"),
            (lambda v: v.pop("model"), "model: Field required"),
            (lambda v: v["metrics"][0].update(value=math.nan), "metrics.0.value"),
        ],
    )
    def test_a_record_that_cannot_be_right_is_refused(self, record: Path, change: Change, message: str) -> None:
        (record.parent / "outside").write_bytes(b"x")
        edit_json(record / "record.json", change)
        with pytest.raises(RecordError) as error:
            verify(record)
        assert message in str(error.value)

    def test_one_byte_of_a_predictions_file(self, record: Path) -> None:
        path = record / "predictions" / "sub-02_seed-1.safetensors"
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        with pytest.raises(
            RecordError, match=r"^subject 2, seed 1: predictions/sub-02_seed-1\.safetensors has changed .*: expected sha256:"
        ):
            verify(record)

    def test_a_predictions_file_that_is_gone(self, record: Path) -> None:
        (record / "predictions" / "sub-02_seed-1.safetensors").unlink()
        with pytest.raises(
            RecordError, match=r"^subject 2, seed 1: predictions/sub-02_seed-1\.safetensors is missing from the record's folder"
        ):
            verify(record)

    def test_swapped_predictions(self, record: Path) -> None:
        a, b = (record / "predictions" / f"sub-0{i}_seed-0.safetensors" for i in (1, 2))
        first = a.read_bytes()
        a.write_bytes(b.read_bytes())
        b.write_bytes(first)
        with pytest.raises(RecordError, match=r"subject 1, seed 0: .* has changed"):
            verify(record)

        def swap_hashes(value: dict[str, Any]) -> None:
            runs = value["runs"]
            runs[0]["sha256"], runs[2]["sha256"] = runs[2]["sha256"], runs[0]["sha256"]

        edit_json(record / "record.json", swap_hashes)
        with pytest.raises(RecordError, match=r"predictions/sub-01_seed-0\.safetensors is of subject 2, seed 0, the record says 1, 0"):
            verify(record)

    def test_better_predictions_with_their_hash(self, record: Path, tiny_benchmark: Benchmark) -> None:
        name = "predictions/sub-01_seed-0.safetensors"
        better = load_predictions(record / name)._replace(source_scores=np.eye(6, dtype=np.float32) * 9)
        found = save_predictions(record / name, better, tiny_benchmark)
        edit_json(record / "record.json", lambda v: v["runs"][0].update(sha256=found))
        assert ("top1", "value") in {(d.metric, d.field) for d in verify(record)[1]}

    def test_a_run_that_was_left_out(self, record: Path) -> None:
        def leave_out(value: dict[str, Any]) -> None:
            value["runs"] = [run for run in value["runs"] if run["subject"] != 2]
            value["coverage"] = {"rule": "subjects x seeds", "expected": 4, "present": 4}

        edit_json(record / "record.json", leave_out)
        assert {("top1", "n"), ("two_afc", "value")} <= {(d.metric, d.field) for d in verify(record)[1]}
        edit_json(record / "record.json", lambda v: (v["runs"].pop(), v["coverage"].update(expected=3, present=3)))
        with pytest.raises(ValueError, match=r"lacks the runs \(subject, seed\) \[\(3, 1\)\]"):
            verify(record)

    @pytest.mark.parametrize(
        "change",
        [
            lambda t: t["edits"][0].update(family="removal", subtype=None, target_concept=None),
            lambda t: t["edits"].reverse(),
            lambda t: t["sources"].reverse(),
            lambda t: t.update(release="other"),
            lambda t: t["edits"][3].update(visual_distance=0.4),
        ],
    )
    def test_another_table(self, record: Path, change: Change) -> None:
        edit_json(record / "benchmark.json", change)
        with pytest.raises(
            RecordError, match=r"benchmark\.json is (another table: expected sha256:|of release 'other', the record says 'tiny')"
        ):
            verify(record)

        # With its hash put right it is the table of other predictions than those that are there.
        table = json.loads((record / "benchmark.json").read_text())
        made = make_benchmark(table["release"], table["sources"], table["edits"])
        edit_json(record / "record.json", lambda v: v["benchmark"].update(content_hash=made.content_hash, release=made.release))
        with pytest.raises(ValueError, match=r"sub-01_seed-0\.safetensors was saved for another benchmark table"):
            verify(record)

    @pytest.mark.parametrize(
        "text", ["", "[]", "{}", '{"release": 1, "sources": 2, "edits": 3}', '{"release": "a", "sources": [1], "edits": [2]}', "{"]
    )
    def test_a_table_that_is_none(self, record: Path, text: str) -> None:
        (record / "benchmark.json").write_text(text)
        with pytest.raises(RecordError, match=r"benchmark\.json is not the table of this record"):
            verify(record)
        (record / "benchmark.json").unlink()
        with pytest.raises(RecordError, match=r"benchmark\.json is not the table of this record: .* does not exist"):
            verify(record)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "is empty"),
            ("{", "is not a record"),
            ("[]", "is not a valid record"),
            ("null", "is not a valid record"),
            ("\0", "is not a record"),
            ("[" * 200_000, "is not a record: its brackets are nested too deep"),
            ('{"kind": "real", "kind": "real"}', "the key 'kind' is there twice in one object"),
        ],
    )
    def test_a_record_that_is_none(self, record: Path, text: str, message: str) -> None:
        (record / "record.json").write_text(text)
        with pytest.raises(RecordError, match=r"record\.json .*" + message if text else message):
            verify(record)
        (record / "record.json").unlink()
        with pytest.raises(RecordError, match=r"record\.json does not exist: give the folder of a record, or its record\.json"):
            verify(record)

    def test_pickles_are_not_opened(self, record: Path) -> None:
        import pickle

        path = record / "predictions" / "sub-01_seed-0.safetensors"
        marker = record.parent / "executed"
        path.write_bytes(pickle.dumps(_Touch(str(marker))))
        edit_json(record / "record.json", lambda v: v["runs"][0].update(sha256=sha256_file(path)))
        with pytest.raises(ValueError, match=r"sub-01_seed-0\.safetensors cannot be read as predictions"):
            verify(record)
        assert not marker.exists()

    def test_predictions_that_are_not_finite_do_not_verify(self, record: Path) -> None:
        path = record / "predictions" / "sub-01_seed-0.safetensors"
        tensors = load_file(path)
        tensors["source_scores"][0, 0] = np.inf
        run = {"subject": 1, "seed": 0, "benchmark": read_record(record)[1].benchmark.content_hash}
        save_file(tensors, path, metadata={"run": json.dumps(run)})
        edit_json(record / "record.json", lambda v: v["runs"][0].update(sha256=sha256_file(path)))
        with pytest.raises(
            ValueError, match="subject 1, seed 0: source_scores has 1 values that are not finite, the first for query 'concept0'"
        ):
            verify(record)

    def test_other_settings_are_scored_as_stated(self, tmp_path: Path, tiny_benchmark: Benchmark) -> None:
        settings = Settings(distance_bins=3, distance_min_edits=1, distance_interval_weight="equal")
        record = make(tmp_path, tiny_benchmark, settings=settings)
        assert record.value("two_afc", distance_quantile="3/3") is not None
        assert record.value("distance_gap_balanced", family="identity") is not None
        assert verify(tmp_path)[1] == []


class _Touch:
    """Creates a file when unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.open, (self.path, os.O_CREAT)
