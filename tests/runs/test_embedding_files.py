"""Files of embeddings: every format gives the same rows, ids put them in order, and whatever is wrong names its file."""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_tensors

from decodehub.metrics.eeg_editbench.benchmark import Benchmark, make_benchmark
from decodehub.runs.retrieval.embedding_files import read_embeddings, run_of, score_files

Writer = Callable[[Path, np.ndarray, list[str]], Path]


def _npy(path: Path, x: np.ndarray, ids: list[str]) -> Path:
    np.save(path.with_suffix(".npy"), x)
    path.with_suffix(".ids.txt").write_text("".join(f"{i}\n" for i in ids), encoding="utf-8")
    return path.with_suffix(".npy")


def _npz(path: Path, x: np.ndarray, ids: list[str]) -> Path:
    np.savez_compressed(path.with_suffix(".npz"), embeddings=x, ids=np.array(ids))
    return path.with_suffix(".npz")


def _safetensors(path: Path, x: np.ndarray, ids: list[str]) -> Path:
    save_file({"x": x}, path.with_suffix(".safetensors"), metadata={"ids": json.dumps(ids)})
    return path.with_suffix(".safetensors")


def _parquet(path: Path, x: np.ndarray, ids: list[str]) -> Path:
    pq.write_table(pa.table({"id": ids, "embedding": list(x)}), path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


WRITERS = {"npy": _npy, "npz": _npz, "safetensors": _safetensors, "parquet": _parquet}


class World:
    """One run's embeddings in the order of a release, and files of them in another order."""

    def __init__(self, b: Benchmark) -> None:
        rng = np.random.default_rng(0)
        sources = rng.standard_normal((6, 16), dtype=np.float32)
        edits = sources[b.query] + 0.4 * rng.standard_normal((35, 16), dtype=np.float32)
        self.benchmark, self.arrays = b, {"eeg": sources + 1, "sources": sources, "edits": edits, "nulls": sources * 1.5}
        self.ids = {name: list(b.edit_ids if name == "edits" else b.concepts) for name in self.arrays}

    def files(self, folder: Path, write: Writer, seed: int = 1) -> list[list[Path]]:
        rng, found = np.random.default_rng(seed), []
        for name, x in self.arrays.items():
            order = rng.permutation(len(x))
            found.append([write(folder / name, x[order], [self.ids[name][i] for i in order])])
        return found


@pytest.fixture(scope="module")
def world(tiny_benchmark: Benchmark) -> World:
    return World(tiny_benchmark)


@pytest.mark.parametrize("kind", WRITERS)
def test_every_format_in_any_order_gives_the_same_scores(world: World, tmp_path: Path, kind: str) -> None:
    plain = []
    for name, x in world.arrays.items():
        np.save(tmp_path / f"plain-{name}.npy", x)
        plain.append([tmp_path / f"plain-{name}.npy"])
    right = score_files(world.benchmark, *plain)
    found = score_files(world.benchmark, *world.files(tmp_path, WRITERS[kind]))
    for a, b in zip(right.predictions[0], found.predictions[0]):
        assert np.array_equal(a, b)  # type: ignore[arg-type]
    assert right.order.startswith("rows as given: 100.0 % of edits") and found.order.startswith("rows put in order by ids: 100.0 %")


def test_a_bfloat16_tensor_is_its_values(world: World, tmp_path: Path) -> None:
    x = torch.tensor(world.arrays["sources"]).to(torch.bfloat16)
    save_tensors({"embeddings": x, "other": torch.ones(2)}, tmp_path / "x.safetensors")
    rows, ids = read_embeddings(tmp_path / "x.safetensors")
    assert ids is None and np.array_equal(rows, x.float().numpy())


def test_one_file_of_several_that_is_not_finite_is_named(world: World, tmp_path: Path) -> None:
    _, sources, edits, nulls = world.files(tmp_path, _npz)
    eeg = []
    for seed in range(10):
        x = world.arrays["eeg"].copy()
        if seed == 7:
            x[4, 3] = np.nan
        eeg.append(_npz(tmp_path / f"sub-01_seed-{seed}", x, world.ids["eeg"]))
    with pytest.raises(ValueError, match=r"--eeg .*/sub-01_seed-7\.npz: 1 rows are not finite, the first is row 4 \('concept4'\)"):
        score_files(world.benchmark, eeg, sources, edits, nulls)


def test_eeg_in_another_order_is_doubted_by_name(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    concepts = 40
    names = [f"n{i:02d}" for i in range(concepts)]
    rows = [{"edit_id": f"{n}-{k}", "concept": n, "family": "attribute"} for n in names for k in range(2)]
    b = make_benchmark("r", [{"concept": n, "source_category": "x"} for n in names], rows)
    x = rng.standard_normal((concepts, 16))
    for name, value in {"s": x, "e": x[b.query] + 0.1, "sub-01_seed-0": x, "sub-01_seed-1": x[::-1]}.items():
        np.save(tmp_path / f"{name}.npy", value)
    eeg = [tmp_path / f"sub-01_seed-{i}.npy" for i in (0, 1)]
    with pytest.warns(UserWarning, match=r"--eeg sub-01_seed-1\.npy: rows may be in another order: .* far better reversed"):
        score_files(b, eeg, [tmp_path / "s.npy"], [tmp_path / "e.npy"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        score_files(b, eeg[:1], [tmp_path / "s.npy"], [tmp_path / "e.npy"])


def _zip_of(name: str, data: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, data)

    return write


def _saved(x: np.ndarray, **options: object) -> bytes:
    file = io.BytesIO()
    np.save(file, x, **options)  # type: ignore[arg-type]
    return file.getvalue()


BAD = {
    "no key": ("x.npz", _zip_of("arr_0.npy", _saved(np.ones((6, 2)))), r"x\.npz lacks the key 'embeddings': it has \['arr_0'\]"),
    "objects": (
        "x.npz",
        _zip_of("embeddings.npy", _saved(np.full((6, 2), None), allow_pickle=True)),
        "x.npz, key 'embeddings', is not a plain array: it holds pickled objects",
    ),
    "no archive": ("x.npz", lambda p: p.write_bytes(b"PK no"), "is not a whole .npz archive"),
    "no tensors": ("x.safetensors", lambda p: p.write_bytes(b"12345678{}"), "is not a whole safetensors file"),
    "two tensors": (
        "x.safetensors",
        lambda p: save_file({"a": np.ones((6, 2)), "b": np.ones((6, 2))}, p),
        r"has the tensors \['a', 'b'\]: expected 'embeddings', or one alone",
    ),
    "ids that are no list": (
        "x.safetensors",
        lambda p: save_file({"a": np.ones((6, 2))}, p, metadata={"ids": "a,b"}),
        "ids in the metadata must be a JSON list",
    ),
    "no table": ("x.parquet", lambda p: p.write_bytes(b"PAR1"), "is not a whole Parquet file"),
    "no column": ("x.parquet", lambda p: pq.write_table(pa.table({"id": ["a"]}), p), "lacks the column 'embedding': it has"),
    "text": ("x.parquet", lambda p: pq.write_table(pa.table({"id": ["a"], "embedding": ["b"]}), p), "column embedding holds string"),
    "lengths": (
        "x.parquet",
        lambda p: pq.write_table(pa.table({"id": ["a", "b"], "embedding": [[1.0], [1.0, 2.0]]}), p),
        "embeddings one length",
    ),
    "a pickle": ("x.pt", lambda p: p.write_bytes(b"x"), "is a pickle, which is not read: save the embeddings as .npy"),
    "a pointer": (
        "x.npy",
        lambda p: p.write_text("version https://git-lfs.github.com/spec/v1\n"),
        "is a Git LFS pointer in place of the data",
    ),
    "ids of another length": ("x.npy", lambda p: (np.save(p, np.ones((2, 2))), p.with_suffix(".ids.txt").write_text("a\n")), None),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_one_line(world: World, tmp_path: Path, case: str) -> None:
    name, make, message = BAD[case]
    make(tmp_path / name)  # type: ignore[operator]
    sources, edits = world.files(tmp_path, _npz)[1:3]
    with pytest.raises(ValueError, match=message or "has 2 rows and 1 ids: give one id a row") as error:
        score_files(world.benchmark, [tmp_path / name], sources, edits)
    assert str(error.value).startswith(f"--eeg {tmp_path / name}") and "\n" not in str(error.value)


def test_ids_inside_and_beside_a_file_must_agree(world: World, tmp_path: Path) -> None:
    path = _npz(tmp_path / "x", np.ones((2, 2)), ["a", "b"])
    path.with_suffix(".ids.txt").write_text("a\nb\n")
    assert read_embeddings(path).ids == ["a", "b"]
    path.with_suffix(".ids.txt").write_text("b\na\n")
    with pytest.raises(ValueError, match="holds other ids than"):
        read_embeddings(path)


def test_numbers_in_names_have_64_bits() -> None:
    assert run_of(Path("sub-02_seed-18446744073709551615.npy"), 2) == (2, 2**64 - 1)
    for name in ("sub-00_seed-1.npy", "sub-01_seed-18446744073709551616.npy"):
        with pytest.raises(ValueError, match="subjects count from 1, and neither has more than 64 bits"):
            run_of(Path(name), 2)
