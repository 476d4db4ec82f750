"""Files of embeddings that a user brings: read as they are, put in the order of the release, scored."""

from __future__ import annotations

import json
import math
import re
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from safetensors import safe_open

from decodehub.core.files import POINTER_MAX_BYTES, pointer_kind, read_data
from decodehub.core.tensors import read_tensors
from decodehub.metrics.eeg_editbench.benchmark import Benchmark
from decodehub.metrics.eeg_editbench.order import by_ids, check_row_order, query_order
from decodehub.metrics.eeg_editbench.protocol import Predictions
from decodehub.metrics.eeg_editbench.similarity import as_embeddings, check_similarity, score_embeddings

from .defaults import MAX_SEED

FORMATS = ".npy, .npz (embeddings, ids), .safetensors (one matrix; ids in the metadata) or .parquet (id, embedding)"
IDS = ".ids.txt"  # beside a file that holds no ids of its own: NAME.ids.txt, one id a line
NUMPY_CANNOT = ("BF16", "F8_E4M3", "F8_E5M2")


class EmbeddingFile(NamedTuple):
    """A matrix (rows, D) of float32 or wider, and the id of each row, or None."""

    rows: np.ndarray
    ids: list[str] | None


class Scored(NamedTuple):
    """Scores of all runs, and what was seen of the order of rows, in words for the record."""

    predictions: list[Predictions]
    order: str


def score_files(
    benchmark: Benchmark,
    eeg: Sequence[Path],
    sources: Sequence[Path],
    edits: Sequence[Path],
    nulls: Sequence[Path] = (),
    similarity: str = "cosine",
    allow_order: bool = False,
) -> Scored:
    """Read the embeddings of one or several runs, check them and score them.

    Args:
        benchmark: the release.
        eeg: one file a run, (Q, D). sources: (Q, D), one file or one a run. edits: (E, D). nulls: (Q, D), may be none.
        similarity: "cosine" or "dot".
        allow_order: see `check_row_order`.

    Raises:
        FileNotFoundError, ValueError: what is wrong with which file. RowOrderError: see `check_row_order`.
    """
    check_similarity(similarity)
    runs = [run_of(path, len(eeg)) for path in eeg]
    if twice := sorted({run for run in runs if runs.count(run) > 1}):
        raise ValueError(f"runs (subject, seed) {twice} are there twice")
    wanted = {"--eeg": benchmark.concepts, "--sources": benchmark.concepts, "--edits": benchmark.edit_ids, "--nulls": benchmark.concepts}
    images = {"--sources": per_run(sources, len(eeg)), "--edits": per_run(edits, len(eeg)), "--nulls": per_run(nulls, len(eeg))}
    known: dict[tuple[str, Path], tuple[np.ndarray, bool]] = {}
    orders: dict[tuple[Path | None, ...], str] = {}
    predictions, doubted = [], {}
    for i, run in enumerate(runs):
        paths = {"--eeg": eeg[i], **{option: files[i] for option, files in images.items()}}
        given = {option: path for option, path in paths.items() if path is not None}
        for option, path in given.items():
            if (option, path) not in known:
                known[option, path] = _read_ordered(path, option, wanted[option], benchmark.release)
        names = {option: f"{option} {path}" for option, path in given.items()}
        arrays = {option: known[option, path][0] for option, path in given.items()}
        three = (arrays["--sources"], arrays["--edits"], arrays.get("--nulls"))
        four = (names["--eeg"], names["--sources"], names["--edits"], names.get("--nulls", ""))
        scores = score_embeddings(arrays["--eeg"], *three, similarity, four)
        key = tuple(paths[option] for option in images)
        if key not in orders:
            ids = all(known[option, path][1] for option, path in given.items() if option != "--eeg")
            called = {option.removeprefix("--"): name for option, name in names.items()}
            orders[key] = check_row_order(benchmark, *three, allow=allow_order, by_ids=ids, names=called)
        if not known["--eeg", eeg[i]][1] and (other := query_order(benchmark, scores.source_scores)):
            doubted[eeg[i].name] = other
        for option in ("--eeg", *(option for option, files in images.items() if len(set(files)) > 1)):  # files of this run alone
            known.pop((option, paths[option]), None)  # type: ignore[arg-type]
        predictions.append(Predictions(*run, scores.source_scores, scores.edit_scores, scores.null_scores))
    if doubted:
        name, other = next(iter(doubted.items()))
        more = f" (and {len(doubted) - 1} more files)" if len(doubted) > 1 else ""
        warnings.warn(
            f"--eeg {name}{more}: rows may be in another order: they fit their images at chance as given, and far better {other}",
            stacklevel=2,
        )
    return Scored(predictions, next(iter(orders.values())) + (f" (first of {len(orders)} sets of files)" if len(orders) > 1 else ""))


def run_of(path: Path, n_runs: int) -> tuple[int, int]:
    """Subject and seed that a file's name says; one file alone may leave them out.

    Raises:
        ValueError: one of several names does not say both, or a seed that has more than 64 bits.
    """
    subject, seed = re.search(r"sub-?0*(\d+)", path.stem), re.search(r"seed-?0*(\d+)", path.stem)
    if n_runs > 1 and (subject is None or seed is None):
        raise ValueError(f"{path.name}: with several runs each file name must say subject and seed, such as sub-01_seed-0.npy")
    run = int(subject[1]) if subject else 1, int(seed[1]) if seed else 0
    if run[0] < 1 or max(run) > MAX_SEED:
        raise ValueError(f"{path.name}: subject {run[0]}, seed {run[1]}: subjects count from 1, and neither has more than 64 bits")
    return run


def per_run(files: Sequence[Path], n_runs: int) -> list[Path | None]:
    """The file of each run: one for all, one a run in the order of the runs, or none.

    Raises:
        ValueError: another number of files.
    """
    if len(files) not in (0, 1, n_runs):
        raise ValueError(
            f"{len(files)} files for {n_runs} runs ({', '.join(f.name for f in files[:3])}, ...): give one, or one a run in the order of --eeg"
        )
    if not files:
        return [None] * n_runs
    return [files[0] if len(files) == 1 else files[i] for i in range(n_runs)]


def read_embeddings(path: Path, option: str = "") -> EmbeddingFile:
    """Embeddings from a file of one of `FORMATS`, with the ids in it or in ``NAME.ids.txt`` beside it.

    Raises:
        FileNotFoundError, ValueError: no file, a folder, a pointer in place of data, a type that is no number, a row that is not finite, a
            file that is not whole, ids that are not one a row; nothing is unpickled, and no memory is taken for what a header promises.
    """
    path, name = Path(path), f"{option} {path}".strip()
    if path.is_dir():
        raise ValueError(f"{name} is a folder: name the file of embeddings in it")
    if not path.is_file():
        raise FileNotFoundError(f"{name} does not exist")
    if path.stat().st_size == 0:
        raise ValueError(f"{name} is empty")
    with path.open("rb") as f:
        kind = pointer_kind(f.read(POINTER_MAX_BYTES + 1))
    if kind:
        raise ValueError(f"{name} is a {kind} pointer in place of the data: fetch it (git annex get, git lfs pull)")
    if path.suffix in (".pt", ".pth", ".pkl", ".pickle"):
        raise ValueError(f"{name} is a pickle, which is not read: save the embeddings as {FORMATS}")
    reader = {".npz": _read_npz, ".safetensors": _read_safetensors, ".parquet": _read_parquet}.get(path.suffix, _read_npy)
    values, ids = reader(path, name)
    rows = as_embeddings(values, name)
    if len(bad := np.flatnonzero(~np.isfinite(rows).all(1))):
        which = f" ({ids[bad[0]]!r})" if ids is not None and bad[0] < len(ids) else ""
        raise ValueError(f"{name}: {len(bad)} rows are not finite, the first is row {bad[0]}{which}")
    return EmbeddingFile(rows, _with_sidecar(path, name, ids))


def _read_ordered(path: Path, option: str, wanted: Sequence[str], release: str) -> tuple[np.ndarray, bool]:
    """Rows in the order of the release, and whether ids said so."""
    rows, ids = read_embeddings(path, option)
    if ids is not None:
        return by_ids(rows, ids, wanted, f"{option} {path}", release), True
    if len(rows) != len(wanted):
        raise ValueError(
            f"{option} {path} has shape {rows.shape}: release {release!r} needs {len(wanted)} rows (order: decodehub editbench export)"
        )
    return rows, False


def _with_sidecar(path: Path, name: str, ids: list[str] | None) -> list[str] | None:
    file = path.with_suffix(IDS)
    if not file.is_file():
        return ids
    try:
        lines = read_data(file).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text ({error}): one id a line") from None
    if ids is not None and ids != lines:
        raise ValueError(f"{name} holds other ids than {file}: remove one of them")
    return lines


def _read_npy(path: Path, name: str) -> tuple[np.ndarray, None]:
    with path.open("rb") as f:
        return _array(f, path.stat().st_size, name, "a plain .npy array"), None


def _array(f: BinaryIO, size: int, name: str, what: str) -> np.ndarray:
    """An array in numpy's format of `size` bytes; its header is checked before any memory is taken."""
    try:
        version = np.lib.format.read_magic(f)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(f)
    except Exception as error:  # a header is a literal of Python, and numpy lets through what its parser raises
        raise ValueError(
            f"{name} is not {what} ({type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''})"
        ) from None
    if dtype.hasobject:
        raise ValueError(
            f"{name} is not {what}: it holds pickled objects, which are not read; save real numbers, and ids as text (dtype=str)"
        )
    promised = math.prod(shape) * dtype.itemsize
    if min(shape, default=1) < 0 or promised != size - f.tell():
        raise ValueError(f"{name} is not {what}: its header says shape {shape}, {dtype}, which is not the {size:,} bytes that it has")
    f.seek(0)
    return np.lib.format.read_array(f, allow_pickle=False)


def _read_npz(path: Path, name: str) -> tuple[np.ndarray, list[str] | None]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if "embeddings" not in members:
                raise ValueError(f"{name} lacks the key 'embeddings': it has {sorted(members)}; np.savez(..., embeddings=X, ids=IDS)")
            arrays = {}
            for key in {"embeddings", "ids"} & set(members):
                with archive.open(members[key]) as f:
                    arrays[key] = _array(f, members[key].file_size, f"{name}, key {key!r},", "a plain array")  # type: ignore[arg-type]
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{name} is not a whole .npz archive ({error})") from None
    return arrays["embeddings"], _texts(arrays["ids"], name) if "ids" in arrays else None


def _texts(ids: np.ndarray, name: str) -> list[str]:
    if ids.ndim != 1 or ids.dtype.kind not in "USiu":
        raise ValueError(f"{name}: ids have shape {ids.shape}, {ids.dtype}; expected one text a row")
    return [x.decode(errors="replace") if isinstance(x, bytes) else str(x) for x in ids.tolist()]


def _read_safetensors(path: Path, name: str) -> tuple[Any, list[str] | None]:
    try:
        with safe_open(path, framework="numpy") as f:
            types = {key: f.get_slice(key).get_dtype() for key in f.keys()}  # noqa: SIM118  (not a dict)
    except Exception as error:  # safetensors has its own error class for damaged files
        raise ValueError(f"{name} is not a whole safetensors file ({error})") from None
    tensors, metadata = read_tensors(path, "pt" if set(types.values()) & set(NUMPY_CANNOT) else "numpy")
    key = "embeddings" if "embeddings" in tensors else next(iter(tensors), "")
    if not tensors or ("embeddings" not in tensors and len(tensors) > 1):
        raise ValueError(f"{name} has the tensors {sorted(tensors)}: expected 'embeddings', or one alone")
    if "ids" not in metadata:
        return tensors[key], None
    try:
        ids = json.loads(metadata["ids"])
    except (ValueError, RecursionError):
        ids = None
    if not isinstance(ids, list) or not all(isinstance(x, (str, int)) for x in ids):
        raise ValueError(f"{name}: ids in the metadata must be a JSON list of texts (metadata={{'ids': json.dumps(ids)}})")
    return tensors[key], [str(x) for x in ids]


def _read_parquet(path: Path, name: str) -> tuple[np.ndarray, list[str]]:
    import pyarrow as pa  # heavy, and few need it
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, memory_map=False)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{name} is not a whole Parquet file ({str(error).splitlines()[0]})") from None
    if missing := [column for column in ("id", "embedding") if column not in table.column_names]:
        raise ValueError(f"{name} lacks the column {missing[0]!r}: it has {table.column_names}, expected id and embedding")
    column = table["embedding"].combine_chunks()
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type) or pa.types.is_fixed_size_list(column.type)):
        raise ValueError(f"{name}: column embedding holds {column.type}, expected lists of numbers")
    flat = column.flatten()
    lengths = set(pa.compute.list_value_length(column).to_pylist())
    if column.null_count or flat.null_count or len(lengths) > 1 or table["id"].null_count:
        raise ValueError(f"{name}: id and embedding must have a value in every row, and embeddings one length")
    values = flat.to_numpy(zero_copy_only=False)
    return values.reshape(len(column), -1), [str(x) for x in table["id"].to_pylist()]
