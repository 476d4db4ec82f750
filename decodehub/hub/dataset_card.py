"""The card of a data set repository: what its rows and configuration say of this release, then the benchmark in general."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets import ClassLabel, Features

from decodehub.core.entry import Entry
from decodehub.core.repos import RELEASE, builder_class

from .cards import parse, with_values
from .checks import licences
from .client import Repo

# Keys of the YAML that a push writes; all others are of whoever wrote them.
MANAGED = (
    *("license", "license_name", "license_link", "pretty_name", "language", "task_categories", "tags", "size_categories"),
    *("annotations_creators", "source_datasets", "configs", "dataset_info"),
)
SHOWN_VALUES, SHOWN_LETTERS = 8, 40
_SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (10**7, "1M<n<10M"), (10**8, "10M<n<100M"))


class Column(NamedTuple):
    """What a column of a config holds, in words: its name, type and values."""

    name: str
    kind: str
    values: str


def dataset_card(entry: Entry, folder: Path, release: Mapping[str, Any], repo: Repo) -> str:
    """The card of an exported release.

    Args:
        entry: the data set. folder: its exported repository, whose card has the configs and features. release: its ``release.json``.
        repo: where it will go.
    """
    what = str(folder / "README.md")
    text = (folder / "README.md").read_text(encoding="utf-8")
    card = parse(text, what)
    text = with_values(text, what, _front(entry, folder, release, repo, card.front))
    body = _body(entry, folder, release, repo, str(card.front.get("pretty_name") or entry.name), card.body)
    return text[: len(text) - len(card.body)] + body


def named_licences(release: Mapping[str, Any], *, sample: bool = True) -> list[str]:
    """Licences that the configs of a release state, as the Hub writes them; without `sample` those of the embedded sample are left out."""
    texts = [about["license"] or "" for name, about in release["configs"].items() if sample or name != "sample"]
    return sorted({name for text in texts for name in licences(text)})


def size_category(n: int) -> str:
    """The Hub's word for a number of rows."""
    return next((word for limit, word in _SIZES if n < limit), "n>1T" if n >= 10**12 else "100M<n<1B" if n < 10**9 else "n>1B")


def reviewed(folder: Path, release: Mapping[str, Any]) -> tuple[int, int] | None:
    """Rows with votes of reviewers, and all rows, of the configs that have a column `votes`; None where none has."""
    with_votes, rows = 0, 0
    for path in release["files"]:
        if "votes" in pq.read_schema(folder / path).names:
            votes = pq.read_table(folder / path, columns=["votes"])["votes"]
            with_votes += pc.sum(pc.greater(pc.fill_null(pc.list_value_length(votes), 0), 0)).as_py() or 0
            rows += len(votes)
    return (with_votes, rows) if rows else None


def describe(folder: Path, paths: list[str]) -> list[Column]:
    """What the columns of a table hold; images and signals are named by their type and not read.

    Args:
        folder: the repository. paths: the Parquet files of one config.
    """
    schema = pq.read_schema(folder / paths[0])
    features = Features.from_arrow_schema(schema)
    plain = [f.name for f in schema if not pa.types.is_nested(f.type) and not isinstance(f.type, pa.ExtensionType)]
    table = pa.concat_tables([pq.read_table(folder / path, columns=plain) for path in paths])
    return [
        Column(field.name, _kind(features[field.name]), _values(table[field.name], features[field.name]) if field.name in plain else "")
        for field in schema
    ]


def _front(entry: Entry, folder: Path, release: Mapping[str, Any], repo: Repo, front: Mapping[str, Any]) -> dict[str, Any]:
    named = named_licences(release, sample=False)
    rows = release["configs"][builder_class(entry).DEFAULT_CONFIG_NAME]["rows"]
    values: dict[str, Any] = {
        "tags": list(dict.fromkeys([*front.get("tags", []), "decodehub"])),
        "size_categories": [size_category(sum(rows.values()))],
    }
    if (votes := reviewed(folder, release)) is not None:
        values["annotations_creators"] = ["expert-generated" if votes[0] else "machine-generated"]
    if len(named) == 1 and named[0] != "public-domain":
        return values | {"license": named[0], "license_name": None, "license_link": None}
    link = f"https://huggingface.co/{repo.page}#this-repository"
    return values | {"license": "other", "license_name": "-and-".join(named) or "unknown", "license_link": link}


def _body(entry: Entry, folder: Path, release: Mapping[str, Any], repo: Repo, title: str, about: str) -> str:
    rows = "\n".join(
        f"| `{name}` | {', '.join(map(_cell, config['releases']))} | {', '.join(f'{split} {n:,}' for split, n in config['rows'].items())} "
        f"| {_megabytes(folder, release, name)} | {_cell(config['license'] or '')} |"
        for name, config in release["configs"].items()
    )
    words = "\n\n".join(dict.fromkeys(_cell(config["description"], None) for config in release["configs"].values()))
    general = re.sub(r"\A\s*# [^\n]*\n", "", about)
    return f"""
# {title}

## This repository

| config | release | rows | size | licence of the content |
|---|---|---|---|---|
{rows}

{words}

{_warning(release)}{_review(folder, release)}```python
from datasets import load_dataset  # nothing else is needed

data = load_dataset("{repo.id}")
```

`{RELEASE}` has the hash of every file; `decodehub verify {repo.id}` compares them with what is here.

### What the rows hold

{_columns(folder, release)}

## {title} in general

What follows is about the benchmark and all its releases. Which of them is here, how many rows it has and how it was made, is said above; a number
below is of the release that it names.

{_demoted(general).strip()}
"""


def _warning(release: Mapping[str, Any]) -> str:
    default = {r for name, about in release["configs"].items() if name != "sample" for r in about["releases"]}
    if any(r.partition("-")[0] in ("sample", "rehearsal") for r in default):
        return "**A sample or rehearsal release: scores on it say nothing about the benchmark itself.**\n\n"
    return ""


def _review(folder: Path, release: Mapping[str, Any]) -> str:
    if (votes := reviewed(folder, release)) is None:
        return ""
    n, rows = votes
    return (
        f"Reviewed: {n:,} of {rows:,} rows carry votes of reviewers.\n\n" if n else "Not reviewed: no row carries a vote of a reviewer.\n\n"
    )


def _megabytes(folder: Path, release: Mapping[str, Any], config: str) -> str:
    n = sum((folder / path).stat().st_size for path in release["files"] if path.startswith(f"{config}/"))
    return f"{n / 1e6:,.1f} MB"


def _columns(folder: Path, release: Mapping[str, Any]) -> str:
    lines = ["| config | column | type | values |", "|---|---|---|---|"]
    for config in release["configs"]:
        paths = sorted(path for path in release["files"] if path.startswith(f"{config}/"))
        lines += [f"| `{config}` | `{c.name}` | {_cell(c.kind)} | {c.values} |" for c in describe(folder, paths)]
    return "\n".join(lines)


def _kind(feature: Any) -> str:
    if isinstance(feature, ClassLabel):
        return "label"
    if (shape := getattr(feature, "shape", None)) is not None:
        return f"{feature.dtype}, {' x '.join('any' if n is None else str(n) for n in shape)}"
    if (inner := getattr(feature, "feature", None)) is not None:
        length = getattr(feature, "length", -1)
        return f"list of {length if length >= 0 else ''} {_kind(inner)}".replace("  ", " ")
    return (
        str(getattr(feature, "dtype", type(feature).__name__.lower()))
        if type(feature).__name__ == "Value"
        else type(feature).__name__.lower()
    )


def _values(column: pa.ChunkedArray, feature: Any) -> str:
    missing = f"; {column.null_count:,} missing" if column.null_count else ""
    present = column.drop_null()
    if not len(present):
        return f"none{missing}"
    kind = present.type
    if isinstance(feature, ClassLabel) or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        counted = [(row["values"], row["counts"]) for chunk in [pc.value_counts(present)] for row in chunk.to_pylist()]
        names = [(feature.int2str(v) if isinstance(feature, ClassLabel) else str(v), n) for v, n in counted]
        if len(names) > SHOWN_VALUES:
            return f"{len(names):,} different{missing}"
        return ", ".join(f"{_cell(name)} ({n:,})" for name, n in sorted(names)) + missing
    low, high = (pc.min_max(present)[key].as_py() for key in ("min", "max"))
    return (f"{low:.4g} to {high:.4g}" if pa.types.is_floating(kind) else f"{low} to {high}") + missing


def _cell(text: str, letters: int | None = SHOWN_LETTERS * 5) -> str:
    """Text of a release in a table: it may hold anything."""
    line = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return line if letters is None or len(line) <= letters else line[: letters - 3] + "..."


def _demoted(text: str) -> str:
    """Headings one level lower; lines of code stay."""
    lines, code = [], False
    for line in text.splitlines():
        code ^= line.startswith("```")
        lines.append(f"#{line}" if line.startswith("#") and not code else line)
    return "\n".join(lines)
