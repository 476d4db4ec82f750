"""The table that EEG-EditBench scores are computed over: which edit belongs to which concept, family, subtype, target."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from decodehub.core.files import sha256_json

SOURCE_FIELDS = ("concept", "source_category", "source_sha256")
EDIT_FIELDS = ("edit_id", "concept", "family", "subtype", "target_concept", "visual_distance", "edited_sha256")


@dataclass(frozen=True, eq=False)
class Benchmark:
    """One release of the benchmark as arrays; Q concepts (one query and one source image each), E edits.

    Attributes:
        release: name of the release; it is part of every score.
        concepts: (Q,) names in the order of the rows and columns of the source score matrix.
        category: (Q,) source category of each concept.
        edit_ids: (E,) names in the order of the columns of the edit score matrix.
        query: (E,) int, index of the concept that each edit is made from.
        family: (E,) str. subtype: (E,) str, empty where the family has none.
        target: (E,) int, index of the concept that an identity edit shows, -1 where none has a query.
        distance: (E,) float64, visual distance to the source (equation S6), NaN where it was not measured.
        rows: the rows that were read, as saved with a record and hashed by `content_hash`.
    """

    release: str
    concepts: tuple[str, ...]
    category: np.ndarray
    edit_ids: tuple[str, ...]
    query: np.ndarray
    family: np.ndarray
    subtype: np.ndarray
    target: np.ndarray
    distance: np.ndarray
    rows: dict[str, list[dict[str, Any]]]

    @property
    def content_hash(self) -> str:
        """Hash of the table and of the image hashes in it: equal only for the same images, edits, order and labels."""
        return sha256_json({"release": self.release, **self.rows})


def make_benchmark(release: str, sources: Iterable[Mapping[str, Any]], edits: Iterable[Mapping[str, Any]]) -> Benchmark:
    """Build the table from rows such as those of ``load_dataset("eeg-editbench", "sources" | "edits")``.

    Args:
        release: name of the release.
        sources: one row a concept with `concept`, `source_category` and, if known, `source_sha256`; in score order.
        edits: one row an edit with `edit_id`, `concept`, `family`, and `subtype`, `target_concept`, `visual_distance`,
            `edited_sha256` or None; in score order. Families and subtypes are strings.

    Raises:
        ValueError: no rows, a duplicate concept or edit_id, an edit of an unknown concept, a missing field.
    """
    source_rows = [_pick(row, SOURCE_FIELDS, ("concept", "source_category"), f"source row {i}") for i, row in enumerate(sources)]
    edit_rows = [_pick(row, EDIT_FIELDS, ("edit_id", "concept", "family"), f"edit row {i}") for i, row in enumerate(edits)]
    if not source_rows or not edit_rows:
        raise ValueError(f"release {release!r} has {len(source_rows)} sources and {len(edit_rows)} edits; both are needed")
    index = {row["concept"]: i for i, row in enumerate(source_rows)}
    _no_duplicates([row["concept"] for row in source_rows], "concept")
    _no_duplicates([row["edit_id"] for row in edit_rows], "edit_id")
    for i, row in enumerate(edit_rows):
        if row["concept"] not in index:
            raise ValueError(f"edit row {i} ({row['edit_id']!r}) is of concept {row['concept']!r}, which is not among the sources")
    distance = [np.nan if row["visual_distance"] is None else row["visual_distance"] for row in edit_rows]
    return Benchmark(
        release=release,
        concepts=tuple(index),
        category=np.array([row["source_category"] for row in source_rows], dtype=object),
        edit_ids=tuple(row["edit_id"] for row in edit_rows),
        query=np.array([index[row["concept"]] for row in edit_rows]),
        family=np.array([row["family"] for row in edit_rows], dtype=object),
        subtype=np.array([row["subtype"] or "" for row in edit_rows], dtype=object),
        target=np.array([index.get(row["target_concept"], -1) for row in edit_rows]),
        distance=np.array(distance, dtype=np.float64),
        rows={"sources": source_rows, "edits": edit_rows},
    )


def export_stem(row: int, id_: str) -> str:
    """Name, without suffix, of the file that ``decodehub editbench export`` writes an image to."""
    return f"{row:04d}_{re.sub(r'[^A-Za-z0-9._-]', '_', id_)}"


def _pick(row: Mapping[str, Any], fields: tuple[str, ...], required: tuple[str, ...], where: str) -> dict[str, Any]:
    if missing := [name for name in required if row.get(name) in (None, "")]:
        raise ValueError(f"{where} lacks {missing}; found the fields {sorted(row)}")
    return {name: row.get(name) for name in fields}


def _no_duplicates(names: list[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{what} {name!r} is there twice")
        seen.add(name)


def load_benchmark(data_dir: str | None = None) -> Benchmark:
    """The table of a release, read through ``load_dataset("eeg-editbench")`` without decoding an image.

    Args:
        data_dir: a release folder, ``"sample"`` for the embedded sample, or None for the release that is configured
            (``$DECODEHUB_HOME/eeg-editbench``, then ``$DECODEHUB_ORG``, then the sample with a warning).
    """
    import datasets

    import decodehub  # noqa: F401  (registers the bare name)

    tables = {}
    for config in ("sources", "edits"):
        data = datasets.load_dataset("eeg-editbench", config, split="test", data_dir=data_dir)
        images = [name for name, feature in data.features.items() if isinstance(feature, datasets.Image)]
        data = data.remove_columns(images)
        labels = {name: feature for name, feature in data.features.items() if isinstance(feature, datasets.ClassLabel)}
        tables[config] = [{k: labels[k].int2str(v) if k in labels and v is not None else v for k, v in row.items()} for row in data]
    return make_benchmark(tables["sources"][0]["release"], tables["sources"], tables["edits"])


def with_distances(benchmark: Benchmark, distances: np.ndarray) -> Benchmark:
    """The same benchmark with other visual distances (E,), for a release that carries none; its content hash changes with them.

    Raises:
        ValueError: the number of distances is not the number of edits, or one is not within 0..2.
    """
    distances = np.asarray(distances, dtype=np.float64)
    if distances.shape != (len(benchmark.edit_ids),):
        raise ValueError(f"distances have shape {distances.shape}, expected {(len(benchmark.edit_ids),)}: one for each edit")
    if len(bad := np.flatnonzero(~((distances >= 0) & (distances <= 2)))):
        raise ValueError(f"distance {distances[bad[0]]} of edit {benchmark.edit_ids[bad[0]]!r} is not a cosine distance (0 to 2)")
    edits = [{**row, "visual_distance": float(d)} for row, d in zip(benchmark.rows["edits"], distances)]
    return make_benchmark(benchmark.release, benchmark.rows["sources"], edits)
