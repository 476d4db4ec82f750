"""Malformed input of every kind to the verbs that read files: one line that names what is at fault, an exit code, and nothing written.

Each case is a good input of a verb with one file damaged; the damage is drawn from a seeded generator where it has a place.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from decodehub import cli
from decodehub.core.files import home
from decodehub.hub_datasets.things_eeg2.sample import simulate_sample
from decodehub.loaders.images import encode_png
from decodehub.loaders.things_eeg2.store import save_epochs

SEED = 0
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 10\n"
ANNEX = b"../../.git/annex/objects/xx/yy/SHA256E-s10--0/SHA256E-s10--0\n"


def _npy(shape: str, dtype: str = "<f4") -> bytes:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(96)


def _half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _with_nul(data: bytes) -> bytes:
    at = random.Random(SEED).randrange(len(data) // 2)
    return data[:at] + b"\0" + data[at:]


Change = Callable[[bytes], bytes]
ANY: dict[str, Change] = {
    "empty": lambda d: b"",
    "LFS pointer": lambda d: LFS,
    "annex pointer": lambda d: ANNEX,
    "NUL bytes": lambda d: bytes(200),
    "not UTF-8": lambda d: b"\xff\xfe\x00" + d[:50],
}
JSON: dict[str, Change] = {
    "truncated": _half,
    "a NUL": _with_nul,
    "deep": lambda d: b"[" * 200_000,
    "a list": lambda d: b"[]",
    "a number": lambda d: b"1",
    "null": lambda d: b"null",
    "an empty object": lambda d: b"{}",
    "doubled key": lambda d: b'{"schema_version": 1, "schema_version": 1}',
    "schema as text": lambda d: (
        re.sub(rb'"schema_version": ?\d+', b'"schema_version": "x"', d) if b"schema_version" in d else b'{"x": "1"}'
    ),
    "long number": lambda d: b'{"schema_version": ' + b"9" * 5000 + b"}",
}
YAML: dict[str, Change] = {
    "syntax": lambda d: b"ridge: {epochs: [",
    "tag": lambda d: b"nice: !!python/object/apply:os.getcwd []",
    "list": lambda d: b"- nice",
    "word": lambda d: b"nice",
    "deep": lambda d: b"[" * 200_000,
    "unknown setting": lambda d: b"nice: {epoch: 1}",
    "text for a number": lambda d: b"nice: {epochs: many}",
    "control character": lambda d: b"nice: \x07",
}
CSV: dict[str, Change] = {
    "long field": lambda d: d + b"x" * 140_000 + b",y\n",
    "long row": lambda d: d.replace(b"\n", b",more,more\n").replace(b",more,more", b"", 1),
    "short row": lambda d: d + b"x\n",
    "header alone": lambda d: d.split(b"\n")[0] + b"\n",
    "other header": lambda d: b"a,b\n1,2\n",
    "a NUL": lambda d: d + b"\0,\0\n",
    "open quote": lambda d: d + b'"x,y\n',
}
NPY: dict[str, Change] = {
    "truncated": _half,
    "text": lambda d: b"1,2,3\n",
    "float128": lambda d: _npy("(6, 8)", "<f16"),
    "negative shape": lambda d: _npy("(9, -16)"),
    "vast shape": lambda d: _npy("(9, 100000000000000000000000)"),
    "large shape": lambda d: _npy("(9, 100000000000000)"),
    "objects": lambda d: _npy("(6, 8)", "|O"),
    "bad header": lambda d: d[:10] + b"{{{" + d[13:],
}
BINARY: dict[str, Change] = {"truncated": _half, "text": lambda d: b"1,2,3\n", "head alone": lambda d: d[:12]}
PYTHON: dict[str, Change] = {
    "syntax": lambda d: b"def fit(:\n",
    "raises": lambda d: b"1 / 0\n",
    "exits": lambda d: b"raise SystemExit(0)\n",
    "imports": lambda d: b"import no_such_module\n",
    "no functions": lambda d: b"fit = 3\n",
}
CONFIG = {
    f"model_type {text.decode()}": (lambda d, text=text: b'{"model_type": ' + text + b"}")
    for text in (b"[]", b"5", b"{}", b"null", b'"cn"')
}

SCORE = ("editbench", "score", "--sources", "sources.npy", "--edits", "edits.npy", "--data-dir", "release", "--out", "OUT", "--eeg")
STUDY = ("editbench", "study", "--simulate", "--models", "nice", "--data-dir", "release", "--out", "OUT", "--settings", "settings.yaml")
PAIR = ("annotations", "pair", "--references", "ref", "--reconstructions", "rec", "--out", "OUT")
RUN = ("imind", "run", "--data-dir", "sample", "--out", "OUT", "--model")
#: By name: the command; the file that is damaged; the ways to damage it.
VERBS: dict[str, tuple[tuple[str, ...], str, dict[str, Change]]] = {
    "npy": ((*SCORE, "eeg.npy"), "eeg.npy", NPY),
    "npz": ((*SCORE, "eeg.npz"), "eeg.npz", BINARY),
    "safetensors": ((*SCORE, "eeg.safetensors"), "eeg.safetensors", BINARY),
    "parquet": ((*SCORE, "eeg.parquet"), "eeg.parquet", BINARY),
    "manifest": ((*SCORE, "eeg.npy"), "release/manifest.jsonl", JSON),
    "report": (("editbench", "report", "record"), "record/record.json", JSON),
    "tables": (("editbench", "tables", "record", "--data-dir", "release", "--out", "OUT"), "record/record.json", JSON),
    "settings": (STUDY, "settings.yaml", YAML),
    "recipe": ((*RUN, "logistic-code", "--recipe", "recipe.json"), "recipe.json", JSON),
    "model file": ((*RUN, "model.py"), "model.py", PYTHON),
    "model folder": ((*RUN, "network"), "network/config.json", JSON | CONFIG),
    "imind predictions": (("imind", "score", "predictions.parquet", "--data-dir", "sample", "--out", "OUT"), "predictions.parquet", BINARY),
    "things info": (("things", "shard", "prepared", "--out", "OUT"), "prepared/sub-01/info.json", JSON),
    "things array": (("things", "shard", "prepared", "--out", "OUT"), "prepared/sub-01/test.npy", NPY),
    "things validate": (("things", "validate", "eeg3.npy", "--no-design"), "eeg3.npy", NPY),
    "pairs": ((*PAIR, "--pairs", "pairs.csv"), "pairs.csv", CSV),
    "concepts": ((*PAIR, "--concepts", "concepts.csv"), "concepts.csv", CSV),
    "release header": (("annotations", "agreement", "--data-dir", "own", "--out", "OUT"), "own/release.json", JSON),
    "release pairs": (("annotations", "merge", "--data-dir", "own", "--answers", "ref", "--out", "OUT"), "own/pairs.jsonl", JSON),
    "bcs head": (("bcs", "score", "ref", "rec", "--model", "head", "--out", "OUT"), "head/config.json", JSON | CONFIG),
    "sources": (("construct", "start", "ref", "--table", "table.csv", "--category", "artifact", "--out", "OUT"), "table.csv", CSV),
}
# Right all the same: YAML that says nothing, and the rows of a table that are wider than they need be.
ALLOWED = {("settings", "empty")}
CASES = [
    (verb, damage) for verb, (_, _, own) in VERBS.items() for damage in ("missing", "a folder", *ANY, *own) if (verb, damage) not in ALLOWED
]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, make_release: Callable[..., Path]) -> Path:
    """A folder with a good input of each kind."""
    world = tmp_path_factory.mktemp("good")
    rng = np.random.default_rng(SEED)
    make_release(world / "release", concepts=2)
    for name, shape in {"eeg": (2, 8), "sources": (2, 8), "edits": (11, 8), "eeg3": (4, 63, 50)}.items():
        np.save(world / f"{name}.npy", rng.standard_normal(shape).astype(np.float32))
    eeg = np.load(world / "eeg.npy")
    np.savez(world / "eeg.npz", eeg=eeg)
    save_file({"eeg": eeg}, world / "eeg.safetensors")
    pq.write_table(pa.table({"embedding": list(eeg)}), world / "eeg.parquet")
    pq.write_table(pa.table({"unit": ["a"], "fold": [0], "window": [0], "label": [1], "probability": [0.5]}), world / "predictions.parquet")
    save_epochs(world / "prepared", simulate_sample(counts={"train": (24, 1), "test": (2, 2)}), source="simulated")
    for i in range(8):
        for name in (f"ref/thing_{i}.png", f"rec/thing_{i}.png"):
            (world / name).parent.mkdir(exist_ok=True)
            (world / name).write_bytes(encode_png(rng.integers(0, 255, (12, 12, 3), dtype=np.uint8)))
    rows = {"pairs": "reference,reconstruction", "concepts": "reference,concept", "table": "image,concept"}
    for name, header in rows.items():
        second = ".png" if name == "pairs" else ""
        (world / f"{name}.csv").write_text("\n".join([header, *(f"thing_{i}.png,thing_{i}{second}" for i in range(8)), ""]))
    (world / "settings.yaml").write_text("nice: {epochs: 1}\n")
    (world / "recipe.json").write_text(json.dumps({"chain": [{"stage": "filter"}]}))
    (world / "model.py").write_text("def fit(*parts): ...\ndef predict_proba(x): ...\n")
    for folder in ("network", "head", "record"):
        (world / folder).mkdir()
        (world / folder / ("record.json" if folder == "record" else "config.json")).write_text('{"schema_version": 1, "model_type": "cnn"}')
    cli.app([*_at(world, PAIR[:6]), "--out", str(world / "own")], standalone_mode=False)
    return world


def _at(world: Path, command: tuple[str, ...]) -> list[str]:
    return [str(world / word) if (world / word).exists() or "." in word else word for word in command]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """Exit code and error stream of a command."""

    def call(*args: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["decodehub", *map(str, args)])
        capfd.readouterr()
        code: object = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        return code if isinstance(code, int) else 1, err

    return call


@pytest.fixture
def damaged(good: Path) -> Iterator[Callable[[str, str, Change | None], Path]]:
    """Damages a file of `good`, which is as it was after the test."""
    kept: list[tuple[Path, bytes]] = []

    def change(name: str, damage: str, how: Change | None) -> Path:
        path = good / name
        kept.append((path, path.read_bytes()))
        path.unlink()
        if damage == "a folder":
            path.mkdir()
        elif how is not None:
            path.write_bytes(how(kept[0][1]))
        return path

    yield change
    for path, data in kept:
        if path.is_dir():
            shutil.rmtree(path)
        path.write_bytes(data)


def check(code: int, err: str, *names: str) -> None:
    """One line of an error, which names one of `names`."""
    errors = [line for line in err.splitlines() if line.startswith("Error:")]
    assert code in (1, 2) and len(errors) == 1, (code, err[-2000:])
    others = [
        other for other in err.splitlines() if other != errors[0] and not re.match(r"[\w-]+ failed: ", other)
    ]  # of the items of a job
    assert not others, f"more than a line: {err[-2000:]}"
    line = errors[0]
    assert len(line) < 1500, line[:300]
    assert "DECODEHUB_DEBUG" not in line and len(line.split()) > 3, line
    assert any(name in line for name in names), line


@pytest.mark.parametrize(("verb", "damage"), CASES)
def test_a_damaged_file_is_one_line(
    run: Callable[..., tuple[int, str]],
    good: Path,
    damaged: Callable[[str, str, Change | None], Path],
    tmp_path: Path,
    verb: str,
    damage: str,
) -> None:
    command, name, own = VERBS[verb]
    path = damaged(name, damage, (ANY | own).get(damage))
    words = [str(tmp_path / "out") if word == "OUT" else word for word in _at(good, command)]
    code, err = run(*words)
    # A missing file of a folder may be named by its folder, and one of a pair of options by its option.
    check(code, err, str(path), str(good / name.split("/")[0]))
    assert not (tmp_path / "out").exists() or not any(p.is_file() and not p.name.startswith(".") for p in (tmp_path / "out").rglob("*"))


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("info", "eeg-editbenc"), "eeg-editbench"),
        (("editbench", "scor"), "score"),
        (("editbenc",), "editbenc"),
        (("editbench", "score", "--egg", "x"), "--egg"),
        (("imind", "run", "--model", "logistic-cod", "--data-dir", "sample"), "did you mean 'logistic-code'"),
        (("imind", "run", "--model", "cnn", "--recipe", "multi-sft", "--data-dir", "sample"), "did you mean 'multi-stft'"),
        (("imind", "run", "--model", "cnn", "--device", "tpu", "--data-dir", "sample"), "--device"),
        (("imind", "run", "--model", "cnn", "--pooling", "mean", "--data-dir", "sample"), "--pooling"),
        (("imind", "run", "--model", "cnn", "--subset", "mian", "--data-dir", "sample"), "--subset"),
        (("editbench", "study", "--simulate", "--models", "nise", "--data-dir", "sample"), "did you mean 'nice'"),
        (("editbench", "study", "--simulate", "--subjects", "0", "--data-dir", "sample"), "--subjects"),
        (("editbench", "study", "--simulate", "--seeds", "99999999999999999999999", "--data-dir", "sample"), "--seeds"),
        (("bcs", "train", "--data-dir", "sample", "--seeds", "-1"), "--seeds"),
        (("bcs", "train", "--data-dir", "sampel"), "sampel"),
        (("things", "shard", "sampel", "--out", "OUT"), "sampel"),
        (("push", "eeg-editbenc", "--org", "me"), "did you mean 'eeg-editbench'"),
    ],
)
def test_a_misspelt_name_is_one_line(
    run: Callable[..., tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, err = run(*command)
    check(code, err, name)
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_no_home_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DECODEHUB_HOME")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("Could not determine home directory.")))
    with pytest.raises(RuntimeError, match="set DECODEHUB_HOME to a folder"):
        home()
