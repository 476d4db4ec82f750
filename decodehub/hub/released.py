"""The data set that a record was scored on, as the Hub holds it: the rows there against the table that lies beside the record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
from datasets import ClassLabel, Features
from huggingface_hub import HfApi, HfFileSystem

from decodehub.core.records import ResultRecord

from .client import HubError, NotOnHub, Repo, ask, remote_files
from .tasks import protocol_of


class DataSet(NamedTuple):
    """A data set on the Hub, ``ORG/NAME`` at a commit."""

    id: str
    revision: str


def released_data(api: HfApi, folder: Path, record: ResultRecord, name: str) -> DataSet:
    """The data set `name` at its present commit, which must hold what a record was scored on.

    Its rows are compared, as far as they decide scores: ids, labels, order, hashes of images. Images are not downloaded.

    Args:
        api: client. folder, record: of the record, whose table lies in the folder. name: ``ORG/NAME``.

    Raises:
        NotOnHub: there is no such data set.
        HubError: it holds something else, or cannot be read.
    """
    repo = Repo("dataset", name)
    revision = str(ask(lambda: api.repo_info(name, repo_type="dataset").sha, repo))
    files = ask(lambda: remote_files(api, repo, revision), repo)

    def rows(config: str, columns: Sequence[str]) -> list[dict[str, Any]]:
        tables = [path for path in sorted(files) if path.startswith(f"{config}/") and path.endswith(".parquet")]
        return [row for path in tables for row in _rows(api, repo, revision, path, columns)]

    try:
        fault = protocol_of(record.benchmark.id).dataset_fault(folder, record, rows)
    except NotOnHub:
        raise
    except (ValueError, KeyError, IndexError) as error:
        fault = f"its tables are not those of the benchmark ({type(error).__name__}: {error})"
    if fault is not None:
        raise HubError(
            f"{repo.page} does not hold what the record was scored on, release {record.benchmark.release!r} of {record.benchmark.id}: {fault}. "
            "Push that release there, name where it is (--dataset ORG/NAME), or give --results-only, which writes no numbers on a model"
        )
    return DataSet(name, revision)


def _rows(api: HfApi, repo: Repo, revision: str, path: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Some columns of a Parquet file, read by ranges; class labels as their names."""
    place = f"datasets/{repo.id}@{revision}/{path}"

    def read() -> list[dict[str, Any]]:
        files = HfFileSystem(endpoint=api.endpoint, token=api.token, skip_instance_cache=True)
        with files.open(place, "rb", block_size=1 << 20) as f:
            table = pq.read_table(f, columns=list(columns))
        if missing := [name for name in columns if name not in table.column_names]:
            raise KeyError(f"{path} has no column {missing[0]!r}")
        labels = {n: f for n, f in Features.from_arrow_schema(table.schema).items() if isinstance(f, ClassLabel)}
        return [{k: labels[k].int2str(v) if k in labels and v is not None else v for k, v in row.items()} for row in table.to_pylist()]

    return ask(read, repo)
