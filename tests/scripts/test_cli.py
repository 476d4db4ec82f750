"""The ``decodehub`` command: what it prints and writes, and that a mistake is one line and an exit code."""

from __future__ import annotations

import base64
import csv
import html.parser
import json
import pickle
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import decodehub
from decodehub import cli
from decodehub.core.files import sha256_bytes
from decodehub.core.records import read_record
from decodehub.hub_datasets.eeg_editbench.manifest import read_release
from decodehub.metrics.eeg_editbench.benchmark import load_benchmark
from decodehub.metrics.eeg_editbench.protocol import Predictions, load_predictions, score_runs
from decodehub.metrics.eeg_editbench.similarity import cosine_scores


class Result(NamedTuple):
    """What a command left: exit code, output, errors."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    def call(*args: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["decodehub", *map(str, args)])
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


class Embeddings(NamedTuple):
    """Files of one release and two subjects with two seeds."""

    release: Path
    eeg: list[Path]
    sources: Path
    edits: Path
    nulls: Path

    def options(self, *, runs: int = 4, nulls: bool = True, **changes: Any) -> list[object]:
        files = {"--sources": self.sources, "--edits": self.edits, "--data-dir": self.release, "--model": "me/my-model"}
        if nulls:
            files["--nulls"] = self.nulls
        files |= {f"--{name}": value for name, value in changes.items() if name != "eeg"}
        eeg = changes.get("eeg", self.eeg[:runs])
        return ["editbench", "score", *(x for path in eeg for x in ("--eeg", path)), *(x for pair in files.items() for x in pair)]


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory, make_release: Callable[..., Path]) -> Embeddings:
    folder = tmp_path_factory.mktemp("embeddings")
    release = make_release(folder / "release")
    rng = np.random.default_rng(0)

    def save(name: str, rows: int, near: np.ndarray | float = 0.0) -> Path:
        np.save(folder / name, (near + (0.5 if np.ndim(near) else 1) * rng.standard_normal((rows, 8))).astype(np.float32))
        return folder / name

    eeg = [save(f"sub-{subject:02d}_seed-{seed}.npy", 6) for subject in (1, 10) for seed in (0, 3)]
    images = np.load(save("sources.npy", 6))
    edits = save("edits.npy", 35, images[load_benchmark(str(release)).query])
    return Embeddings(release, eeg, folder / "sources.npy", edits, save("nulls.npy", 6, images))


@pytest.fixture(scope="module")
def scored(embeddings: Embeddings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a record made by the command, with a name that is not harmless."""
    out = tmp_path_factory.mktemp("scored") / "run"
    argv = [*embeddings.options(model="<script>alert(1)</script>&me", data="<b>random</b> numbers"), "--out", out]
    cli.app([str(arg) for arg in argv], standalone_mode=False)
    return out


class TestNames:
    """Help, version, list, info."""

    def test_help_names_every_verb(self, run: Callable[..., Result], repository: Path) -> None:
        verbs = {path.stem.replace("_", "-") for path in (repository / "scripts").glob("[a-z]*.py")}
        for flag in ("--help", "-h"):
            shown = run(flag)
            assert shown.code == 0 and shown.err == ""
            for verb in {"list", "info", *verbs}:
                assert re.search(rf"\b{verb}\b", shown.out), verb
        for verb in verbs:
            shown = run(verb, "--help")
            assert shown.code == 0 and "Usage: decodehub " + verb in shown.out

    def test_version(self, run: Callable[..., Result]) -> None:
        assert run("--version") == Result(0, decodehub.__version__ + "\n", "")

    def test_list_shows_all_names(self, run: Callable[..., Result]) -> None:
        shown = run("list")
        assert shown.code == 0
        for entry in decodehub.names():
            assert re.search(rf"{entry.kind} +{re.escape(entry.name)} ", shown.out)
        assert 'load_dataset("eeg-editbench")' in shown.out and 'evaluate.load("eeg_editbench")' in shown.out

    def test_info_shows_the_card(self, run: Callable[..., Result]) -> None:
        shown = run("info", "eeg-editbench")
        assert shown.code == 0 and 'dataset eeg-editbench   load_dataset("eeg-editbench")' in shown.out
        assert "license:" not in shown.out  # the head of the card is for the Hub
        assert run("info", "ridge").code == 0

    def test_unknown_names_and_verbs(self, run: Callable[..., Result]) -> None:
        shown = run("info", "nothing")
        assert shown.code == 2 and "nothing is called 'nothing'" in shown.err and "eeg-editbench" in shown.err
        assert run("no-such-verb").code == 2
        assert "Traceback" not in shown.err


class TestExport:
    """`decodehub editbench export`."""

    def test_tables_and_images_are_in_score_order(self, run: Callable[..., Result], embeddings: Embeddings, tmp_path: Path) -> None:
        assert run("editbench", "export", tmp_path / "out", "--data-dir", embeddings.release).code == 0
        release = read_release(embeddings.release)
        tables = {}
        for name in ("sources", "edits"):
            with (tmp_path / "out" / f"{name}.csv").open(newline="", encoding="utf-8") as f:
                tables[name] = list(csv.DictReader(f))
            assert [int(row["row"]) for row in tables[name]] == list(range(len(tables[name])))
        assert [row["concept"] for row in tables["sources"]] == [source.concept for source in release.sources]
        assert [row["edit_id"] for row in tables["edits"]] == [edit.edit_id for edit in release.edits]
        assert [row["family"] for row in tables["edits"]] == [edit.family for edit in release.edits]
        assert [row["subtype"] for row in tables["edits"]] == [edit.subtype or "" for edit in release.edits]
        for row, source in zip(tables["sources"], release.sources):
            assert (tmp_path / "out" / row["image"]).read_bytes() == (release.folder / source.image).read_bytes()
            assert (tmp_path / "out" / row["null_image"]).read_bytes() == (release.folder / str(source.null_image)).read_bytes()
        for row, edit in zip(tables["edits"], release.edits):
            data = (tmp_path / "out" / row["edited_image"]).read_bytes()
            assert data == (release.folder / edit.image).read_bytes() and row["edited_sha256"] == sha256_bytes(data)
        assert len(list((tmp_path / "out").rglob("*.png"))) == 6 + 6 + 35

    def test_a_bad_release_is_one_line(self, run: Callable[..., Result], tmp_path: Path, make_release: Callable[..., Path]) -> None:
        folder = make_release(tmp_path / "bad", concepts=2)
        (folder / "edits/concept0-identity-near.png").write_bytes(b"no image")
        shown = run("editbench", "export", tmp_path / "out", "--data-dir", folder)
        assert shown.code == 1 and shown.err.startswith(f"Error: {folder}/manifest.jsonl: edit 'concept0-identity-near': ")
        assert len(shown.err.splitlines()) == 1 and not (tmp_path / "out" / "edits.csv").exists()


class TestScore:
    """`decodehub editbench score`."""

    def test_several_runs(self, run: Callable[..., Result], embeddings: Embeddings, tmp_path: Path) -> None:
        shown = run(*embeddings.options(), "--out", tmp_path / "out")
        assert shown.code == 0, shown.err
        assert "me/my-model on EEG-EditBench, release tiny (2 subjects, 4 runs)" in " ".join(shown.out.split())
        _, record = read_record(tmp_path / "out")
        assert [(r.subject, r.seed) for r in record.runs] == [(1, 0), (1, 3), (10, 0), (10, 3)]
        table = load_benchmark(str(embeddings.release))
        images = [np.load(path) for path in (embeddings.sources, embeddings.edits, embeddings.nulls)]
        runs = [
            Predictions(subject, seed, *(cosine_scores(np.load(path), x) for x in images))
            for path, (subject, seed) in zip(embeddings.eeg, [(1, 0), (1, 3), (10, 0), (10, 3)])
        ]
        assert tuple(record.metrics) == score_runs(table, runs).metrics
        assert f"{record.value('two_afc'):.1f} ±" in shown.out
        saved = load_predictions(tmp_path / "out" / record.runs[2].predictions)
        assert np.array_equal(saved.edit_scores, runs[2].edit_scores)
        for line in (
            f"record  {tmp_path}/out/record.json",
            f"report  {tmp_path}/out/report.html",
            f"check   decodehub verify {tmp_path}/out",
        ):
            assert line in shown.out
        assert run("verify", tmp_path / "out").code == 0

    def test_the_record_states_the_command(self, run: Callable[..., Result], embeddings: Embeddings, tmp_path: Path) -> None:
        found = []
        for name in ("a", "b"):
            assert run(*embeddings.options(runs=1), "--out", tmp_path / name).code == 0
            value = json.loads((tmp_path / name / "record.json").read_text())
            found.append(value | {"created": ""})
        assert found[0] == found[1], "equal runs make equal records wherever they go"
        assert found[0]["environment"]["command"] == (
            "decodehub editbench score --eeg sub-01_seed-0.npy --sources sources.npy --edits edits.npy --data-dir release --model me/my-model "
            "--nulls nulls.npy --out OUT"
        )
        assert str(tmp_path) not in json.dumps(found) and "<code>" in (page := (tmp_path / "a/report.html").read_text())
        assert "<th scope=row>command</th><td>decodehub editbench score --eeg" in page
        assert run("verify", tmp_path / "a").code == 0

    def test_one_run_without_null_images(self, run: Callable[..., Result], embeddings: Embeddings, tmp_path: Path) -> None:
        (tmp_path / "eeg.npy").write_bytes(embeddings.eeg[0].read_bytes())
        options = embeddings.options(eeg=[tmp_path / "eeg.npy"], nulls=False, similarity="dot")
        shown = run(*options, "--out", tmp_path / "out")
        assert shown.code == 0 and "(1 subject, 1 run)" in " ".join(shown.out.split())
        _, record = read_record(tmp_path / "out")
        assert [(r.subject, r.seed) for r in record.runs] == [(1, 0)] and record.protocol.settings["similarity"] == "dot"
        assert not any(metric.name == "null_top1" for metric in record.metrics)
        expected = np.load(embeddings.eeg[0]) @ np.load(embeddings.sources).T
        assert np.array_equal(load_predictions(tmp_path / "out" / record.runs[0].predictions).source_scores, expected)

    def test_image_embeddings_of_each_run(self, run: Callable[..., Result], embeddings: Embeddings, tmp_path: Path) -> None:
        own = []
        for i in range(2):
            np.save(tmp_path / f"s{i}.npy", np.load(embeddings.sources) * (i + 0.5))
            own.append(tmp_path / f"s{i}.npy")
        options = embeddings.options(runs=2, nulls=False)
        at = options.index("--sources")
        options[at : at + 2] = ["--sources", own[0], "--sources", own[1]]
        assert run(*options, "--out", tmp_path / "out").code == 0
        _, record = read_record(tmp_path / "out")
        first, second = (load_predictions(tmp_path / "out" / r.predictions) for r in record.runs)
        for path, images, found in zip(embeddings.eeg, own, (first, second)):
            assert np.array_equal(found.source_scores, cosine_scores(np.load(path), np.load(images)))

    def test_rows_in_another_order_are_refused_unless_ids_or_the_user_say_so(
        self, run: Callable[..., Result], embeddings: Embeddings, tmp_path: Path
    ) -> None:
        assert run("editbench", "export", tmp_path / "images", "--data-dir", embeddings.release).code == 0
        ids = (tmp_path / "images/edits.ids.txt").read_text().splitlines()
        assert ids == list(load_benchmark(str(embeddings.release)).edit_ids)
        np.save(tmp_path / "edits.npy", np.load(embeddings.edits)[::-1])
        options = [*embeddings.options(runs=1, edits=tmp_path / "edits.npy"), "--out", tmp_path / "out"]
        TestMistakes.check(run(*options), rf"--edits {tmp_path}/edits.npy and --sources .*: rows are in ", tmp_path / "out")
        shown = run(*options, "--allow-order")
        assert shown.code == 0 and "rows as given, order allowed by name" in shown.out
        assert "order allowed by name" in read_record(tmp_path / "out")[1].model.notes
        (tmp_path / "edits.ids.txt").write_text("\n".join(ids[::-1]))
        assert run(*options, "--force").code == 0
        assert run(*embeddings.options(runs=1), "--out", tmp_path / "right").code == 0
        found, right = (read_record(tmp_path / name)[1] for name in ("out", "right"))
        assert found.metrics == right.metrics and "% of edits lie nearest to their own source" in right.model.notes
        assert [r.sha256 for r in found.runs] == [r.sha256 for r in right.runs]

    def test_nothing_of_another_kind_is_overwritten(self, run: Callable[..., Result], embeddings: Embeddings, tmp_path: Path) -> None:
        out = tmp_path / "out"
        assert run(*embeddings.options(runs=2), "--out", out).code == 0
        assert run(*embeddings.options(runs=2), "--out", out).code == 0, "the same record again"
        before = {path: path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}
        for options, message in (
            (embeddings.options(runs=2, model="other"), "holds the record of another model, 'me/my-model' and not 'other'"),
            (embeddings.options(runs=1), "holds a record of 'me/my-model' with other predictions"),
            (embeddings.options(runs=2, similarity="dot"), "holds a record of 'me/my-model' with other predictions"),
        ):
            shown = run(*options, "--out", out)
            assert shown.code == 1 and message in shown.err and "write over it with --force" in shown.err
        assert before == {path: path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}
        assert run(*embeddings.options(runs=1, model="other"), "--out", out, "--force").code == 0
        assert [path.name for path in (out / "predictions").iterdir()] == ["sub-01_seed-0.safetensors"], "and nothing of the old one stays"
        (out / "record.json").write_text("{}")
        assert "holds a record that cannot be read" in run(*embeddings.options(runs=1), "--out", out).err
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine/thesis.txt").write_text("x")
        shown = run(*embeddings.options(runs=1), "--out", tmp_path / "mine")
        assert shown.code == 1 and "mine holds 'thesis.txt', which is not part of a record" in shown.err
        shown = run(*embeddings.options(runs=1), "--out", tmp_path / "mine/thesis.txt/x")
        assert shown.code == 1 and "thesis.txt is a file: name another folder" in shown.err
        assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["thesis.txt"]

    def test_a_name_with_markup_is_a_name(self, run: Callable[..., Result], embeddings: Embeddings, tmp_path: Path) -> None:
        shown = run(*embeddings.options(runs=1, model="me/[/b][red]x"), "--out", tmp_path / "out")
        assert shown.code == 0 and "me/[/b][red]x on EEG-EditBench" in " ".join(shown.out.split())
        checked = run("verify", tmp_path / "out")
        assert checked.code == 0 and "me/[/b][red]x on eeg-editbench" in checked.out


class _Touch:
    """Creates a file when unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(self.path),)


def _npy(array: np.ndarray) -> Callable[[Path], None]:
    return lambda path: np.save(path, array)


def _object_array(path: Path) -> None:
    array = np.empty((6, 1), dtype=object)
    array[:] = _Touch(str(path.parent / "executed"))
    np.save(path, array, allow_pickle=True)


def _pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps(_Touch(str(path.parent / "executed"))))


def _npz(path: Path) -> None:
    with path.open("wb") as f:
        np.savez(f, a=np.ones((6, 8)))


def _header(shape: tuple[int, ...]) -> Callable[[Path], None]:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return lambda path: path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)  # type: ignore[func-returns-value]


BAD_FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "too few rows": (
        _npy(np.ones((5, 8))),
        r"has shape \(5, 8\): release 'tiny' needs 6 rows \(order: decodehub editbench export\)",
    ),
    "one axis": (_npy(np.ones(6)), r"has shape \(6,\), expected \(rows, dimensions\)"),
    "text": (_npy(np.full((6, 8), "a")), r"holds <U1: embeddings are real numbers"),
    "complex": (_npy(np.ones((6, 8), complex)), r"holds complex128: embeddings are real numbers"),
    "truth values": (_npy(np.ones((6, 8), bool)), r"holds bool: embeddings are real numbers"),
    "extended precision": (_npy(np.ones((6, 8), np.longdouble)), r"holds float128: embeddings are real numbers"),
    "a negative shape": (
        _header((9, -16)),
        r"its header says shape \(9, -16\), float32, which is not the 0 bytes|is not a plain \.npy array",
    ),
    "more than a memory": (_header((9, 10**23)), r"is not a plain \.npy array"),
    "a folder": (lambda path: path.mkdir(), r"is a folder: name the file of embeddings in it"),
    "an archive": (_npz, r"is not a plain \.npy array"),
    "pickled objects": (_object_array, r"is not a plain \.npy array"),
    "a pickle": (_pickle, r"is not a plain \.npy array"),
    "no array": (lambda path: path.write_bytes(b"PK\x03\x04 no archive"), r"is not a plain \.npy array"),
    "half an array": (lambda path: path.write_bytes(b"\x93NUMPY\x01\x00v\x00{'descr'"), r"is not a plain \.npy array"),
    "a header that promises much": (_header((10**12, 8)), r"is not a plain \.npy array"),
    "empty": (lambda path: path.write_bytes(b""), r"is empty"),
    "missing": (lambda path: None, r"does not exist"),
    "not finite": (_npy(np.full((6, 8), np.nan)), r"rows are not finite, the first is row 0"),
    "zero": (_npy(np.zeros((6, 8))), r"6 rows have no direction"),
    "another width": (_npy(np.ones((6, 9))), r"both must be embeddings in one space"),
}


class TestMistakes:
    """Each is one line on the error stream, exit code 1, and nothing written."""

    @staticmethod
    def check(result: Result, message: str, out: Path) -> None:
        assert result.code == 1
        assert result.err.startswith("Error: ") and len(result.err.splitlines()) == 1, result.err
        assert re.search(message, result.err), result.err
        assert "Traceback" not in result.out + result.err and not out.exists()

    @pytest.mark.parametrize("option", ["eeg", "sources"])
    @pytest.mark.parametrize("case", BAD_FILES)
    def test_a_bad_file(self, run: Callable[..., Result], embeddings: Embeddings, tmp_path: Path, case: str, option: str) -> None:
        make, message = BAD_FILES[case]
        bad = tmp_path / "bad.npy"
        make(bad)
        options = embeddings.options(runs=1, eeg=[bad]) if option == "eeg" else embeddings.options(runs=1, sources=bad)
        result = run(*options, "--out", tmp_path / "out")
        self.check(result, message, tmp_path / "out")
        assert f"--{option} {bad}" in result.err
        assert not (tmp_path / "executed").exists()

    def test_names_that_do_not_say_the_run(self, run: Callable[..., Result], embeddings: Embeddings, tmp_path: Path) -> None:
        for name in ("first.npy", "sub-01.npy", "seed-0.npy"):
            (tmp_path / name).write_bytes(embeddings.eeg[0].read_bytes())
            result = run(*embeddings.options(eeg=[embeddings.eeg[0], tmp_path / name]), "--out", tmp_path / "out")
            self.check(
                result, rf"{name}: with several runs each file name must say subject and seed, such as sub-01_seed-0\.npy", tmp_path / "out"
            )

    def test_grids(self, run: Callable[..., Result], embeddings: Embeddings, tmp_path: Path) -> None:
        out = tmp_path / "out"
        self.check(run(*embeddings.options(runs=3), "--out", out), r"lacks the runs \(subject, seed\) \[\(10, 3\)\]: run them first", out)
        (tmp_path / "sub-1_seed-00.npy").write_bytes(embeddings.eeg[0].read_bytes())
        twice = [embeddings.eeg[0], tmp_path / "sub-1_seed-00.npy"]
        self.check(run(*embeddings.options(eeg=twice), "--out", out), r"runs \(subject, seed\) \[\(1, 0\)\] are there twice", out)
        options = [*embeddings.options(runs=4), "--sources", embeddings.sources]
        self.check(run(*options, "--out", out), "2 files for 4 runs .*: give one, or one a run in the order of --eeg", out)

    def test_options(self, run: Callable[..., Result], embeddings: Embeddings, tmp_path: Path) -> None:
        out = tmp_path / "out"
        self.check(
            run(*embeddings.options(similarity="euclid"), "--out", out),
            r"similarity must be one of \['cosine', 'dot'\], found 'euclid'",
            out,
        )
        result = run(*embeddings.options(**{"data-dir": tmp_path / "nowhere"}), "--out", out)
        self.check(result, r"nowhere is not a folder: give the folder that holds manifest\.jsonl", out)

    def test_the_debug_variable_shows_where_it_came_from(
        self, run: Callable[..., Result], embeddings: Embeddings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("DECODEHUB_DEBUG", "1")
        with pytest.raises(ValueError, match="similarity must be one of"):
            run(*embeddings.options(similarity="euclid"), "--out", tmp_path / "out")


class TestVerify:
    """`decodehub verify`."""

    def test_a_right_record(self, run: Callable[..., Result], scored: Path) -> None:
        for place in (scored, scored / "record.json"):
            shown = run("verify", place)
            assert shown.code == 0 and shown.err == ""
            assert re.search(r"RECOMPUTED: .* on eeg-editbench, release tiny: \d+ numbers from 4 runs are as stated", shown.out)

    def test_a_wrong_number(self, run: Callable[..., Result], scored: Path, tmp_path: Path) -> None:
        (tmp_path / "r").mkdir()
        for file in scored.rglob("*"):
            if file.is_file():
                target = tmp_path / "r" / file.relative_to(scored)
                target.parent.mkdir(exist_ok=True)
                target.write_bytes(file.read_bytes())
        value = json.loads((tmp_path / "r/record.json").read_text())
        stated = value["metrics"][0]["value"]
        value["metrics"][0]["value"] = 99.5
        (tmp_path / "r/record.json").write_text(json.dumps(value))
        shown = run("verify", tmp_path / "r")
        assert shown.code == 1 and "NOT VERIFIED" in shown.out and "1 numbers differ" in shown.out
        assert f"top1 value: stated 99.5, recomputed {stated}" in shown.out

    def test_no_record(self, run: Callable[..., Result], tmp_path: Path) -> None:
        shown = run("verify", tmp_path)
        assert shown.code == 1
        assert shown.err == f"Error: {tmp_path}/record.json does not exist: give the folder of a record, or its record.json\n"


class _Page(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


class TestReport:
    """The page of a record."""

    def test_it_needs_no_other_file(self, scored: Path, embeddings: Embeddings) -> None:
        text = (scored / "report.html").read_text(encoding="utf-8")
        page = _Page(text)
        loading = [
            value
            for _, attrs in page.tags
            for name, value in attrs.items()
            if name in ("src", "srcset", "href", "xlink:href", "poster", "action", "data") and value is not None
        ]
        assert all(value.startswith(("#", "data:image/")) for value in loading)
        assert not {"script", "link", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.tags}
        assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
        assert "@import" not in text and not re.search(r"url\((?!#)", text)

        images = [attrs["src"] or "" for tag, attrs in page.tags if tag == "img"]
        assert len(images) == 24
        release = read_release(embeddings.release)
        known = {(release.folder / row.image).read_bytes() for row in (*release.sources, *release.edits)}
        for url in images:
            assert url.startswith("data:image/png;base64,") and base64.b64decode(url.split(",", 1)[1]) in known
        assert all(attrs.get("alt") for tag, attrs in page.tags if tag == "img")

    def test_names_are_text(self, scored: Path) -> None:
        text = (scored / "report.html").read_text(encoding="utf-8")
        assert "<script" not in text and "<b>random" not in text
        page = _Page(text)
        assert any("<script>alert(1)</script>&me" in part for part in ["".join(page.texts)])
        assert "EEG: <b>random</b> numbers" in page.texts

    def test_a_name_cannot_be_a_place_of_the_template(self, run: Callable[..., Result], embeddings: Embeddings, tmp_path: Path) -> None:
        assert run(*embeddings.options(runs=1, model="me/{body}"), "--out", tmp_path / "out").code == 0
        text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
        assert "<title>EEG-EditBench: me/{body}</title>" in text and text.count("<h1>") == 1

    def test_it_states_the_numbers_of_the_record(self, scored: Path) -> None:
        _, record = read_record(scored)
        texts = _Page((scored / "report.html").read_text(encoding="utf-8")).texts
        for name, slice_ in (("top1", {}), ("ep_top1", {}), ("two_afc", {"family": "identity"})):
            metric = next(m for m in record.metrics if m.name == name and m.slice == slice_)
            assert f"{metric.value:.1f} ± {metric.sd:.1f}" in texts
        assert record.benchmark.content_hash in texts
        assert any("2AFC by subtype" in text for text in texts)

    def test_it_is_made_anew_with_the_same_bytes(self, run: Callable[..., Result], scored: Path, embeddings: Embeddings) -> None:
        before = (scored / "report.html").read_bytes()
        record = (scored / "record.json").read_bytes()
        (scored / "report.html").unlink()
        shown = run("editbench", "report", scored, "--data-dir", embeddings.release)
        assert shown.code == 0 and (scored / "report.html").read_bytes() == before
        assert (scored / "record.json").read_bytes() == record

    def test_images_of_another_release_are_not_shown(
        self, run: Callable[..., Result], scored: Path, tmp_path: Path, make_release: Callable[..., Path]
    ) -> None:
        before = (scored / "report.html").read_bytes()
        other = make_release(tmp_path / "other", concepts=3)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            shown = run("editbench", "report", scored, "--data-dir", other)
        assert shown.code == 0 and "no gallery: the images on this machine are of another release" in shown.err
        assert b"<img" not in (scored / "report.html").read_bytes()
        (scored / "report.html").write_bytes(before)

    def test_a_changed_record_gets_no_report(
        self, run: Callable[..., Result], scored: Path, tmp_path: Path, embeddings: Embeddings
    ) -> None:
        name = json.loads((scored / "record.json").read_text())["runs"][0]["predictions"]
        good = (scored / name).read_bytes()
        try:
            (scored / name).write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
            shown = run("editbench", "report", scored, "--data-dir", embeddings.release)
        finally:
            (scored / name).write_bytes(good)
        assert shown.code == 1 and "has changed since the record was made" in shown.err and len(shown.err.splitlines()) == 1
