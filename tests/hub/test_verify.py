"""One function verifies a record of any benchmark: each field is altered, whatever fields there are, and records of a folder are judged alone."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from decodehub.core.records import ModelInfo, parse_record, protocol_hash, read_record
from decodehub.hub.verify import check_folder, check_record
from decodehub.metrics.bcs import protocol as bcs
from decodehub.metrics.bcs.scoring import Settings as BCSSettings
from decodehub.metrics.eeg_editbench import protocol as editbench
from decodehub.metrics.eeg_editbench.benchmark import Benchmark
from decodehub.metrics.imindbench import protocol as imind
from decodehub.metrics.vlm_agreement import protocol as vlm
from decodehub.metrics.vlm_agreement.agreement import QUESTIONS, AnswerTable
from decodehub.metrics.vlm_agreement.agreement import Settings as VLMSettings
from decodehub.scripts.verify import app

_spec = importlib.util.spec_from_file_location("leaderboard_world", Path(__file__).parents[1] / "leaderboard" / "leaderboard_world.py")
assert _spec is not None and _spec.loader is not None
world = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(world)

# What only the submitter can know: shown as stated, proved by nothing. A new field must be checked, or be written down here.
WORDS = {("data",), ("aggregation",), ("coverage", "rule"), *(("model", name) for name in ModelInfo.model_fields)}
FREE = ("environment",)
PROTOCOLS = {"editbench": editbench, "bcs": bcs, "imind": imind, "vlm": vlm}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory, tiny_benchmark: Benchmark) -> Iterator[dict[str, Path]]:
    root, model, rng = (
        tmp_path_factory.mktemp("records"),
        ModelInfo(id="me/model", revision="a" * 40, parameters=3),
        np.random.default_rng(0),
    )
    runs = world.editbench_runs(tiny_benchmark, 1.0, 0, range(1, 4))
    editbench.make_record(root / "editbench", tiny_benchmark, runs, model=model, data="d", similarity="cosine")
    pairs = world.bcs_pairs("mine", False)
    few = bcs.Pairs("mine", pairs.rows[:12])
    bcs.make_record(
        root / "bcs", few, bcs.Scores(rng.random((12, 12))), model=model, data="d", encoders=[], settings=BCSSettings(n_bootstrap=20)
    )
    grid = world.imind_grid("sample")
    answers = rng.integers(0, 3, (6, 2, len(QUESTIONS))) / 2
    table = AnswerTable("mine", tuple("abcdef"), tuple("aabbcc"), ("x", "y"), answers)
    vlm.make_record(root / "vlm", table, model=model, settings=VLMSettings(resamples=5))
    with world.known_truth():
        imind.make_record(
            root / "imind", grid, world.imind_predictions(grid, "main", 0.5, 1), model=model, data="d", settings={"track": "Custom"}
        )
        yield {name: root / name for name in PROTOCOLS}


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, (dict, list)) and value:
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(part, (*path, key))
    else:
        yield path


def altered(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, str):
        return value[:-1] + ("1" if value[-1:] != "1" else "2") if value.startswith("sha256:") else f"{value}x"
    return {"x": "y"} if isinstance(value, dict) else ["x"] if isinstance(value, list) else 1.0


def changed(raw: Any, path: tuple[Any, ...]) -> Any:
    raw = copy.deepcopy(raw)
    place = raw
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = altered(place[path[-1]])
    return raw


def value_at(raw: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        raw = raw[key]
    return raw


def state(folder: Path, raw: Any) -> str:
    (folder / "record.json").write_text(json.dumps(raw))
    return check_record(folder).state


class TestFields:
    """Tampering, generated from the record itself."""

    @pytest.mark.parametrize("name", PROTOCOLS)
    def test_any_altered_field_is_found(self, records: dict[str, Path], tmp_path: Path, name: str) -> None:
        folder = shutil.copytree(records[name], tmp_path / "r")
        raw = json.loads((folder / "record.json").read_text())
        assert state(folder, raw) == "recomputed"
        paths = [p for p in leaves(raw) if p[0] not in FREE and not (p[0] in ("metrics", "runs") and p[1] > 0)]
        assert {p[0] for p in paths} == set(raw) - set(FREE)
        for path in paths:
            words = path in WORDS or path[:1] in WORDS
            verdict = state(folder, changed(raw, path))
            if words:
                assert verdict == ("recomputed" if value_at(raw, path) is not None else "wrong"), path
            else:
                assert verdict == "wrong" or (verdict == "reported only" and path[-1] == "predictions"), path
        for place in ((), ("benchmark",), ("protocol",), ("model",), ("runs", 0), ("coverage",), ("metrics", 0)):
            more = copy.deepcopy(raw)
            inner = more
            for key in place:
                inner = inner[key]
            inner["mine"] = 1
            assert state(folder, more) == "wrong", place
        for key in raw:
            assert state(folder, {k: v for k, v in raw.items() if k != key}) == "wrong", key

    @pytest.mark.parametrize("name", PROTOCOLS)
    def test_settings_are_exactly_those_of_the_protocol(self, records: dict[str, Path], tmp_path: Path, name: str) -> None:
        folder = shutil.copytree(records[name], tmp_path / "r")
        raw = json.loads((folder / "record.json").read_text())
        required = set(raw["protocol"]["settings"]) - set(getattr(PROTOCOLS[name], "STATED_SETTINGS", ()) if name == "imind" else ())
        for key, settings in [
            ("mine", raw["protocol"]["settings"] | {"mine": 1}),
            *((k, {n: v for n, v in raw["protocol"]["settings"].items() if n != k}) for k in sorted(required)),
        ]:
            protocol = raw["protocol"] | {"settings": settings, "hash": protocol_hash(raw["protocol"]["name"], settings)}
            (folder / "record.json").write_text(json.dumps(raw | {"protocol": protocol}))
            found = check_record(folder)
            assert found.state == "wrong" and f"{key!r} " in found.what, key

    def test_sample_releases_are_those_of_the_data_sets(self) -> None:
        from decodehub.hub_datasets.bcs_annotations import sample as annotations
        from decodehub.hub_datasets.eeg_editbench import rehearsal, sample
        from decodehub.hub_datasets.imindbench.sample import release

        assert {sample.RELEASE, rehearsal.RELEASE} == editbench.SAMPLES
        assert annotations.RELEASE in bcs.SAMPLES and annotations.RELEASE in vlm.SAMPLES and release() in imind.SAMPLES

    def test_a_record_that_says_what_nothing_could_prove_is_reported(self, records: dict[str, Path], tmp_path: Path) -> None:
        folder = shutil.copytree(records["imind"], tmp_path / "r")
        raw = json.loads((folder / "record.json").read_text())
        settings = raw["protocol"]["settings"] | {"labels": "not checked"}
        raw["protocol"] |= {"settings": settings, "hash": protocol_hash(raw["protocol"]["name"], settings)}
        (folder / "record.json").write_text(json.dumps(raw))
        found = check_record(folder)
        assert found.state == "reported only" and "not checked: labels" in found.what


class TestMigration:
    """Records of the schema before kinds."""

    @pytest.mark.parametrize(
        ("release", "data", "kind"),
        [
            ("1.0", "THINGS-EEG2", "real"),
            ("1.0", "Simulated EEG", "simulated"),
            ("sample", "x", "sample"),
            ("rehearsal-stamps", "x", "sample"),
        ],
    )
    def test_the_kind_of_an_old_record_is_derived_and_marked(self, repository: Path, release: str, data: str, kind: str) -> None:
        raw = json.loads((repository / "tests" / "core" / "old_records" / "schema-1.json").read_text())
        raw["benchmark"]["release"], raw["data"] = release, data
        raw["metrics"][0] |= {"n": 1, "sd": 0.0, "ci95": None}
        record = parse_record(json.dumps(raw).encode(), "r")
        assert (record.kind, record.schema_version, record.metrics[0].sd) == (kind, 1, None)


class TestFolders:
    """Many records, some of them made to end the job."""

    @pytest.fixture
    def many(self, records: dict[str, Path], tmp_path: Path) -> Path:
        root = tmp_path / "many"
        for name, path in records.items():
            shutil.copytree(path, root / "good" / name)
        for name, text in (("brackets", "[" * 200_000), ("objects", '{"a":' * 100_000), ("binary", "\udcff" * 3), ("empty", "")):
            (root / name).mkdir()
            (root / name / "record.json").write_text(text, errors="surrogateescape")
        long = json.loads((records["bcs"] / "record.json").read_text())
        long["runs"][0]["predictions"] = "p" * 5_000
        deep = copy.deepcopy(long)
        deep["runs"][0]["predictions"] = "/".join("p" * 90)
        for name, raw in (("long", long), ("deep", deep)):
            (root / name).mkdir()
            (root / name / "record.json").write_text(json.dumps(raw))
        (root / "link").symlink_to(records["bcs"])
        (root / "record-link").mkdir()
        (root / "record-link" / "record.json").symlink_to(records["bcs"] / "record.json")
        (root / "loop").symlink_to(root)
        return root

    def test_each_is_judged_alone(self, many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (many / "closed").mkdir()
        scandir = os.scandir

        def refuse(path: str) -> Any:
            if str(path).rstrip("/").endswith("closed"):
                raise PermissionError(13, "Permission denied")
            return scandir(path)

        monkeypatch.setattr("decodehub.core.records.os.scandir", refuse)
        found = {finding.what.partition(":")[0]: finding for finding in check_folder(many)}
        assert {name for name, f in found.items() if f.state == "recomputed"} == {f"good/{name}" for name in PROTOCOLS}
        assert {name for name, f in found.items() if f.state == "wrong"} == {
            "binary",
            "brackets",
            "closed",
            "empty",
            "long",
            "objects",
            "record-link",
        }
        assert {name for name, f in found.items() if f.state == "reported only"} == {"deep", "link"}
        assert "nested too deep" in found["brackets"].what and "the folder cannot be read" in found["closed"].what

    def test_what_nobody_foresaw_ends_one_record_only(self, many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(*args: Any) -> Any:
            raise ZeroDivisionError("planted")

        monkeypatch.setattr(bcs, "rescore", broken)
        found = {finding.what.partition(":")[0]: finding for finding in check_folder(many / "good")}
        assert "it cannot be scored (ZeroDivisionError: planted)" in found["bcs"].what
        assert [f.state for f in found.values()].count("recomputed") == 3

    @pytest.mark.parametrize(
        ("change", "plain", "strict", "last"),
        [
            (lambda folder: None, 0, 0, "1 recomputed, 0 reported only, 0 wrong"),
            (lambda folder: (folder / bcs.PREDICTIONS).unlink(), 0, 1, "0 recomputed, 1 reported only, 0 wrong"),
            (lambda folder: (folder / bcs.PREDICTIONS).write_bytes(b"x"), 1, 1, "0 recomputed, 0 reported only, 1 wrong"),
        ],
    )
    def test_strict(
        self, records: dict[str, Path], tmp_path: Path, change: Callable[[Path], Any], plain: int, strict: int, last: str
    ) -> None:
        folder = shutil.copytree(records["bcs"], tmp_path / "r")
        change(folder)
        for options, code in (([], plain), (["--strict"], strict)):
            run = CliRunner().invoke(app, [str(folder), *options])
            assert run.exit_code == code and run.output.splitlines()[-1] == last

    def test_a_release_on_this_machine_is_compared(
        self, records: dict[str, Path], tmp_path: Path, make_release: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DECODEHUB_HOME", str(tmp_path / "home"))
        make_release(tmp_path / "home" / "eeg-editbench")
        assert check_record(records["editbench"]).state == "recomputed"
        folder = shutil.copytree(records["editbench"], tmp_path / "r")
        shutil.rmtree(tmp_path / "home" / "eeg-editbench")
        make_release(tmp_path / "home" / "eeg-editbench", concepts=7)
        found = check_record(folder)
        assert found.state == "wrong" and "release 'tiny' has 7 sources" in found.what
        assert read_record(folder)[1].benchmark.release == "tiny"
