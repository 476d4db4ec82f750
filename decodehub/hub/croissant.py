"""Croissant (JSON-LD) of a data set repository, for archives; made from its Parquet schema and ``release.json``, checked with mlcroissant."""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

CROISSANT = "croissant.json"
HOME = "https://github.com/decodehub/decodehub"
_TYPES = {"string": "sc:Text", "large_string": "sc:Text", "bool": "sc:Boolean", "double": "sc:Float", "float": "sc:Float"}
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileProperty": "cr:fileProperty",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}


class Facts(NamedTuple):
    """What is said of a release beside its tables.

    Attributes:
        url: of its page on the Hub. version: of the layout of its tables. citation: BibTeX.
        licences: SPDX names. keywords: tags.
        authors: who made the data; empty for what this package made itself.
        responsible_ai: fields of the responsible-AI vocabulary, by their name without ``rai:``.
    """

    url: str
    version: str
    citation: str
    licences: tuple[str, ...]
    keywords: tuple[str, ...]
    authors: tuple[str, ...]
    responsible_ai: Mapping[str, Any]


def croissant(folder: Path, release: Mapping[str, Any], facts: Facts) -> dict[str, Any]:
    """The description of an exported data set, published today.

    Args:
        folder: the repository; one record set is made a config and split. release: its ``release.json``. facts: what else is said.
    """
    files, records = [], []
    for path, digest in release["files"].items():
        files.append(
            {
                "@type": "cr:FileObject",
                "@id": path,
                "name": path,
                "contentUrl": path,
                "encodingFormat": "application/x-parquet",
                "sha256": digest.removeprefix("sha256:"),
                "contentSize": f"{(folder / path).stat().st_size} B",
            }
        )
    for config, about in release["configs"].items():
        for split, rows in about["rows"].items():
            shards = [path for path in release["files"] if path.startswith(f"{config}/{split}-")]
            records += [_record_set(folder, config, split, shard, i if len(shards) > 1 else None, rows) for i, shard in enumerate(shards)]
    makers = [{"@type": "sc:Person", "name": name} for name in facts.authors]
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": ["http://mlcommons.org/croissant/1.0", "http://mlcommons.org/croissant/RAI/1.0"],
        "name": release["dataset"],
        "description": "\n".join(dict.fromkeys(about["description"] for about in release["configs"].values())),
        "version": facts.version,
        "license": [f"https://spdx.org/licenses/{name}.html" for name in facts.licences],
        "url": facts.url,
        "citeAs": facts.citation,
        "creator": makers or [{"@type": "sc:Organization", "name": "decodehub", "url": HOME}],
        "datePublished": dt.datetime.now(dt.timezone.utc).date().isoformat(),
        "keywords": list(dict.fromkeys(facts.keywords)),
        **{f"rai:{name}": value for name, value in sorted(facts.responsible_ai.items())},
        "distribution": files,
        "recordSet": records,
    }


def with_former_date(about: dict[str, Any], former: bytes | None) -> dict[str, Any]:
    """The description with the date of a former one that says the same otherwise: data are published once."""
    try:
        there = json.loads(former or b"{}")
    except (ValueError, RecursionError):
        return about
    if isinstance(there, dict) and {**there, "datePublished": about["datePublished"]} == about:
        return there
    return about


def authors(bibtex: str) -> list[str]:
    """Names of the authors of the first BibTeX entry."""
    match = re.search(r"\bauthor\s*=\s*[{\"](.+?)[}\"],?\s*\n\s*\w+\s*=", bibtex, re.DOTALL)
    names = re.split(r"\s+and\s+", " ".join(match[1].split())) if match else []
    return [" ".join(reversed(name.replace("{", "").replace("}", "").split(", ", 1))) for name in names if name != "others"]


def check_croissant(path: Path) -> None:
    """Have mlcroissant read a description.

    Raises:
        ImportError: it is not installed. ValueError: it refuses the description.
    """
    try:
        import mlcroissant
    except ImportError:
        raise ImportError("the Croissant description of a data set is checked with mlcroissant: pip install 'decodehub[publish]'") from None
    logging.getLogger("absl").setLevel(logging.ERROR)
    try:
        metadata = mlcroissant.Dataset(jsonld=path).metadata
    except mlcroissant.ValidationError as error:
        raise ValueError(f"{path.name} is not valid Croissant: {error}") from None
    if errors := metadata.ctx.issues.errors:
        raise ValueError(f"{path.name} is not valid Croissant: {'; '.join(map(str, errors))}")


def _record_set(folder: Path, config: str, split: str, shard: str, part: int | None, rows: int) -> dict[str, Any]:
    schema = pq.read_schema(folder / shard)
    features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    name = f"{config}/{split}" + ("" if part is None else f"/{part:05d}")
    fields = [_field(name, shard, column, features.get(column.name)) for column in schema]
    words = f"{rows} rows of config {config}, split {split}" + ("" if part is None else f", part {part}")
    return {"@type": "cr:RecordSet", "@id": name, "name": name, "description": words, "field": fields}


def _field(records: str, shard: str, column: Any, feature: Any) -> dict[str, Any]:
    kind, source = column.type, {"fileObject": {"@id": shard}, "extract": {"column": column.name}}
    found: dict[str, Any] = {"@type": "cr:Field", "@id": f"{records}/{column.name}", "name": column.name, "source": source}
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind) or isinstance(kind, pa.ExtensionType):
        kind = kind.storage_type if isinstance(kind, pa.ExtensionType) else kind.value_type
        found["repeated"] = True
    if pa.types.is_struct(kind):
        found["dataType"] = "sc:ImageObject"
        source["transform"] = {"jsonPath": "bytes"}
    elif pa.types.is_integer(kind):
        found["dataType"] = "sc:Integer"
    else:
        found["dataType"] = _TYPES.get(str(kind), "sc:Text")
    if isinstance(feature, dict) and feature.get("names"):
        found["description"] = "class label: " + ", ".join(f"{i} {name}" for i, name in enumerate(feature["names"]))
    return found
