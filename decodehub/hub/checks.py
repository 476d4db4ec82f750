"""What a folder must pass before any of it is sent: files of safe kinds, no token, a known licence that allows it, no THINGS photograph.

THINGS photographs (Hebart et al. 2019) may be used in research and not be passed on. They are known in two ways, and either is enough to refuse:
a table with images whose release states a licence that names THINGS, and image files named as THINGS names its photographs
(``aardvark_01b.jpg``: concept, number, letter), in the folder or as the path kept with an image of a table.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from decodehub.core.provenance import TOKEN, secrets

from .sending import local_files

SUFFIXES = {
    *(
        ".parquet",
        ".safetensors",
        ".json",
        ".jsonl",
        ".yaml",
        ".yml",
        ".md",
        ".py",
        ".txt",
        ".csv",
        ".bib",
        ".png",
        ".jpg",
        ".jpeg",
        ".webp",
    ),
}
IMAGES = (".png", ".jpg", ".jpeg", ".webp")
THINGS_NAME = re.compile(r"(?:^|/)[a-z][a-z0-9_]*_\d{2}[a-z]\.(?:jpe?g|png|webp)$", re.IGNORECASE)
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_FORBIDDING = re.compile(
    r"\bTHINGS\b|no[nt]?[- ]re-?distribut|no redistribution|(?:may|must|can)\s*not be (?:re-?distributed|shared|passed on)|"
    r"all rights reserved|proprietary|research use only|unlicensed",
    re.IGNORECASE,
)
_CREATIVE_COMMONS = re.compile(r"\bcc[- ]by((?:[- ](?:nc|nd|sa))*)(?:[- ](\d\.\d))?", re.IGNORECASE)
_GPL = re.compile(r"\b([al]?gpl)(?:[- ]?v?(\d)(?:\.\d)?)?", re.IGNORECASE)
# Licences by how they are written; the names are those that the Hub knows.
_NAMED = {
    r"\bcc0\b|\bcc[- ]zero\b": "cc0-1.0",
    r"public domain|no known copyright": "public-domain",
    r"\bapache[- ](?:license[- ])?2": "apache-2.0",
    r"\bmit\b": "mit",
    r"\bbsd[- ]3": "bsd-3-clause",
    r"\bodc[- ]by": "odc-by",
    r"\bodbl\b": "odbl",
    r"\bpddl\b": "pddl",
}


# Names of the SPDX list, https://spdx.org/licenses, for those that are more than the Hub's name in other letters.
_SPDX = {
    "public-domain": "CC-PDM-1.0",
    "mit": "MIT",
    "bsd-3-clause": "BSD-3-Clause",
    "apache-2.0": "Apache-2.0",
    "odc-by": "ODC-By-1.0",
    "odbl": "ODbL-1.0",
    "pddl": "PDDL-1.0",
    "gpl": "GPL-1.0-or-later",
    "lgpl": "LGPL-2.0-or-later",
    "agpl": "AGPL-1.0-or-later",
}


def spdx(names: Iterable[str]) -> list[str]:
    """SPDX names of licences that `licences` gives. Of GPL and its kin the later versions are not taken to be allowed."""
    return [_SPDX.get(name) or name.upper() + ("-only" if "gpl" in name else "") for name in names]


def licences(text: str) -> list[str]:
    """Licences that a statement names, as the Hub writes them; empty where none is known."""
    found = {name for pattern, name in _NAMED.items() if re.search(pattern, text, re.IGNORECASE)}
    for parts, number in _CREATIVE_COMMONS.findall(text):
        found.add(f"cc-by{parts.lower().replace(' ', '-')}-{number or '4.0'}")
    for name, number in _GPL.findall(text):
        found.add(f"{name.lower()}-{number}.0" if number else name.lower())
    return sorted(found)


def check_licence(text: str | None, what: str, *, images: bool) -> list[str]:
    """Faults of a licence statement: unknown, or one that does not let the content be passed on.

    Args:
        text: the statement of a card or a release.
        what: whose, in words.
        images: whether photographs or edits of them are in it.
    """
    if not text or not licences(text):
        return [f"{what}: the licence is unknown (found {text!r}): state it in the release or its card, for example cc-by-4.0"]
    if (match := _FORBIDDING.search(text)) and (images or match[0].upper() != "THINGS"):
        return [f"{what}: its licence does not allow it to be passed on ({match[0]!r} in {text!r})"]
    if images and (no := [name for name in licences(text) if "-nd-" in name]):
        return [f"{what}: {', '.join(no)} allows no edited images"]
    return []


def check_files(folder: Path) -> list[str]:
    """Faults of the files of a folder, each with its path; empty where all may be sent."""
    faults = []
    for name, path in local_files(folder).items():
        if path.suffix.lower() not in SUFFIXES and path.name != "LICENSE":
            faults.append(f"{name}: files of kind {path.suffix or 'no ending'!r} are not sent; weights are safetensors, tables Parquet")
        elif _is_pickle(path):
            faults.append(f"{name}: it holds a pickle, which runs code when it is read: save it as safetensors, JSON or Parquet")
        if path.suffix.lower() in IMAGES and THINGS_NAME.search(name):
            faults.append(_things(name))
        faults += [f"{name}: {where} holds a token of the Hub: take it out and revoke it" for where in _tokens(path)]
        if path.suffix == ".parquet":
            faults += [f"{name}: {fault}" for fault in _photographs(path)]
    return faults


def refuse(faults: list[str], what: str) -> None:
    """End a push that has faults with the list of them.

    Raises:
        ValueError: there is at least one.
    """
    if faults:
        lines = "".join(f"\n  {fault}" for fault in faults[:20]) + (f"\n  and {len(faults) - 20} more" if len(faults) > 20 else "")
        raise ValueError(f"{what} cannot be published; nothing was sent:{lines}")


def has_images(parquet: Path) -> bool:
    """Whether a table has a column of images."""
    return bool(_image_columns(pq.read_schema(parquet)))


def _image_columns(schema: Any) -> list[str]:
    return [f.name for f in schema if pa.types.is_struct(f.type) and {"bytes", "path"} <= {inner.name for inner in f.type}]


def _things(name: str) -> str:
    return f"{name} is named as a photograph of THINGS, which may not be passed on; give an image of your own another name"


def _is_pickle(path: Path) -> bool:
    with path.open("rb") as f:
        head = f.read(2)
    if head == b"PK" and zipfile.is_zipfile(path):
        return any(name.endswith((".pkl", ".pickle")) for name in zipfile.ZipFile(path).namelist())
    return _PICKLE.match(head) is not None and path.suffix != ".safetensors"


def _tokens(path: Path) -> Iterator[str]:
    known = [token.encode() for token in secrets()]
    pattern = re.compile(TOKEN.pattern.encode())
    for where, data in _texts(path):
        if pattern.search(data) or any(token in data for token in known):
            yield where
            return


def _texts(path: Path) -> Iterator[tuple[str, bytes]]:
    """What of a file may hold text: all of it, the header of safetensors, the text columns of Parquet."""
    if path.suffix == ".safetensors":
        with path.open("rb") as f:
            size = int.from_bytes(f.read(8), "little")
            yield "the header", f.read(min(size, 100_000_000))
    elif path.suffix == ".parquet":
        file = pq.ParquetFile(path)
        yield "the metadata", repr(file.schema_arrow.metadata).encode()
        names = [field.name for field in file.schema_arrow if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)]
        for batch in file.iter_batches(columns=names) if names else ():
            for name, column in zip(batch.schema.names, batch.columns):
                # Arrow keeps the texts of a column one behind the other, which is all that a search needs.
                text = column.buffers()[-1]
                yield f"column {name!r}", b"" if text is None else text.to_pybytes()
    elif path.suffix.lower() not in IMAGES:
        yield "the file", path.read_bytes()


def _photographs(path: Path) -> Iterator[str]:
    """Images of a table whose kept path is that of a THINGS photograph."""
    file = pq.ParquetFile(path)
    for column in _image_columns(file.schema_arrow):
        for batch in file.iter_batches(columns=[f"{column}.path"]):
            names = batch.column(0).field("path").unique().to_pylist()
            if found := next((name for name in names if name and THINGS_NAME.search(name)), None):
                yield f"column {column!r}: " + _things(found)
                break
