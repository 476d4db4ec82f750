"""Croissant (JSON-LD) of a data set repository, for archives; made from its Parquet schema and ``release.json``, checked with mlcroissant."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

CROISSANT = "croissant.json"
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


def croissant(folder: Path, release: Mapping[str, Any], *, url: str, version: str, citation: str, licence: str) -> dict[str, Any]:
    """The description of an exported data set.

    Args:
        folder: the repository; one record set is made a config and split. release: its ``release.json``.
        url: of its page on the Hub. version: of the layout of its tables. citation, licence: as on the card.
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
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": release["dataset"],
        "description": "\n".join(dict.fromkeys(about["description"] for about in release["configs"].values())),
        "version": version,
        "license": licence,
        "url": url,
        "citeAs": citation,
        "distribution": files,
        "recordSet": records,
    }


def check_croissant(path: Path) -> None:
    """Have mlcroissant read a description.

    Raises:
        ImportError: it is not installed. ValueError: it refuses the description.
    """
    try:
        import mlcroissant
    except ImportError:
        raise ImportError("the Croissant description of a data set is checked with mlcroissant: pip install 'decodehub[publish]'") from None
    logging.getLogger("absl").setLevel(logging.ERROR)  # it recommends a date of publication, which would differ from push to push
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
