"""Feature files: image features with all that tells what they are, verified when read.

A feature file is one safetensors file: tensor ``features`` (n, d), float32 or float16, and a JSON header with the encoder's
fingerprint, its preprocessing, the sha256 of each image in the order of the rows, shape, dtype and a checksum over all of it. A cache
is a folder of such files (shards), one folder an encoder; a shard is never changed after it was written, so processes can add to one
cache at the same time and a job that was stopped goes on where it was.

What is verified follows EEG-EditBench, appendix "Computing and caching": encoder checkpoint, preprocessing, manifest, order of the
images, their identity, and the shapes.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from decodehub.core.files import atomic_path, canonical_json, read_data, sha256_bytes, sha256_json

from .frozen_encoder import ImageEncoder

FORMAT = "decodehub-image-features"
FORMAT_VERSION = 1
SHARD_ROWS = 1024


@dataclass(frozen=True)
class FeatureFile:
    """What a feature file holds, after verification.

    Attributes:
        features: (n, d) float32.
        image_hashes: sha256 of each image, in the order of the rows.
        encoder: name of the encoder.
        fingerprint: fingerprint of the encoder (weights, architecture, preprocessing).
        preprocessing: the encoder's preprocessing settings.
        dtype: ``"float32"`` or ``"float16"``, as stored.
    """

    features: np.ndarray
    image_hashes: tuple[str, ...]
    encoder: str
    fingerprint: str
    preprocessing: dict[str, Any]
    dtype: str


def write_features(path: Path | str, features: np.ndarray, hashes: Sequence[str], encoder: ImageEncoder, *, dtype: str = "float32") -> None:
    """Write one feature file whole or not at all.

    Args:
        path: where to; ``.safetensors`` by convention.
        features: (n, d) finite numbers, d = ``encoder.dim``.
        hashes: n image hashes as :func:`image_hashes` gives them, in the order of the rows.
        encoder: the encoder that made the features.
        dtype: ``"float32"`` or ``"float16"`` (half the space; rounds to 3 significant digits and refuses values over 65,504).

    Raises:
        ValueError: shapes that do not agree, NaN or infinite values, or another dtype.
    """
    if dtype not in ("float32", "float16"):
        raise ValueError(f"feature files hold float32 or float16, not {dtype!r}")
    features = np.asarray(features)
    if features.shape != (len(hashes), encoder.dim):
        expected = (len(hashes), encoder.dim)
        raise ValueError(f"features have shape {features.shape}, expected {expected}: one row an image hash, d of {encoder.name}")
    with np.errstate(over="ignore"):
        stored = np.ascontiguousarray(features, dtype=dtype)
    refuse_nonfinite(stored, f"features of {encoder.name}")
    header = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "encoder": encoder.name,
        "fingerprint": encoder.fingerprint,
        "licence": encoder.licence,
        "preprocessing": encoder.preprocessing,
        "image_hashes": list(hashes),
        "shape": list(stored.shape),
        "dtype": dtype,
    }
    header["checksum"] = _checksum(header, stored)
    with atomic_path(Path(path)) as part:
        part.write_bytes(save({"features": stored}, metadata={"header": canonical_json(header)}))


def read_features(path: Path | str, *, encoder: ImageEncoder | None = None, image_hashes: Sequence[str] | None = None) -> FeatureFile:
    """Read one feature file and verify it: format, shape, dtype, checksum and, where given, encoder and images in order.

    Args:
        path: the file.
        encoder: the encoder the features must come from (fingerprint and preprocessing are compared).
        image_hashes: the images that the rows must stand for, in this order.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged or is not what was asked for; the message says in which point.
    """
    path = Path(path)
    header = _read_header(path)
    with safe_open(path, framework="numpy") as f:
        names = list(f.keys())
        if names != ["features"]:
            raise ValueError(f"{path}: expected one tensor 'features', found {names}")
        stored = f.get_tensor("features")
    if list(stored.shape) != header["shape"] or str(stored.dtype) != header["dtype"] or stored.shape[0] != len(header["image_hashes"]):
        raise ValueError(
            f"{path}: the tensor is {stored.dtype} {list(stored.shape)}, the header says {header['dtype']} {header['shape']} "
            f"for {len(header['image_hashes'])} images: make the file again"
        )
    if _checksum({k: v for k, v in header.items() if k != "checksum"}, stored) != header["checksum"]:
        raise ValueError(f"{path}: header and data do not have the checksum they were written with (damaged): make the file again")
    _verify_encoder(path, header, encoder)
    if image_hashes is not None:
        _verify_images(path, header["image_hashes"], list(image_hashes))
    features = np.ascontiguousarray(stored, dtype=np.float32)
    refuse_nonfinite(features, str(path))
    return FeatureFile(
        features, tuple(header["image_hashes"]), header["encoder"], header["fingerprint"], header["preprocessing"], header["dtype"]
    )


def _read_header(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    try:
        with safe_open(path, framework="numpy") as f:
            text = (f.metadata() or {}).get("header")
    except SafetensorError as error:
        read_data(path)  # names an empty file or a git-annex or Git LFS pointer as such
        raise ValueError(f"{path} is not a whole safetensors file ({error}): make it again") from None
    try:
        header = json.loads(text or "")
        complete = header["format"] == FORMAT and set(_HEADER_TYPES) <= set(header)
        valid = complete and all(isinstance(header[key], kind) for key, kind in _HEADER_TYPES.items())
    except (ValueError, TypeError, KeyError):
        valid = False
    if not valid:
        raise ValueError(f"{path} has no complete {FORMAT} header: it was not written by write_features")
    if header["version"] != FORMAT_VERSION:
        raise ValueError(f"{path} has format version {header['version']}, this release reads {FORMAT_VERSION}: make it again")
    return header


_HEADER_TYPES: dict[str, type] = {
    "format": str,
    "version": int,
    "encoder": str,
    "fingerprint": str,
    "preprocessing": dict,
    "image_hashes": list,
    "shape": list,
    "dtype": str,
    "checksum": str,
}


def _verify_encoder(path: Path, header: Mapping[str, Any], encoder: ImageEncoder | None) -> None:
    if encoder is None:
        return
    if header["preprocessing"] != encoder.preprocessing:
        differing = sorted(
            k for k in {*header["preprocessing"], *encoder.preprocessing} if header["preprocessing"].get(k) != encoder.preprocessing.get(k)
        )
        raise ValueError(f"{path}: made with another preprocessing (differs in: {', '.join(differing)}): make it again with {encoder.name}")
    if header["fingerprint"] != encoder.fingerprint:
        raise ValueError(
            f"{path}: made by {header['encoder']} with fingerprint {header['fingerprint'][:19]}..., expected {encoder.name} "
            f"with {encoder.fingerprint[:19]}...: other weights or architecture"
        )
    if header["shape"][1:] != [encoder.dim]:
        raise ValueError(f"{path}: rows have shape {header['shape'][1:]}, {encoder.name} gives [{encoder.dim}]")


def _verify_images(path: Path, found: list[str], expected: list[str]) -> None:
    if found == expected:
        return
    if sorted(found) == sorted(expected):
        raise ValueError(f"{path}: holds the same images in another order: reorder by image_hashes or make it again")
    missing = len(set(expected) - set(found))
    raise ValueError(f"{path}: holds {len(found)} images, {missing} of the {len(expected)} expected ones are missing: make it again")


def _checksum(header: Mapping[str, Any], stored: np.ndarray) -> str:
    digest = hashlib.sha256(canonical_json(dict(header)).encode())
    digest.update(np.ascontiguousarray(stored).view(np.uint8).data)
    return "sha256:" + digest.hexdigest()


def refuse_nonfinite(features: np.ndarray, name: str) -> None:
    bad = np.flatnonzero(~np.isfinite(features).all(axis=1))
    if len(bad):
        raise ValueError(f"{name}: {len(bad)} of {len(features)} rows have NaN or infinite values (first: row {bad[0]})")


# ------------------------------------------------------------------------------------------------------------------------------- cache


def shard_folder(cache_dir: Path, encoder: ImageEncoder) -> Path:
    slug = re.sub(r"[^A-Za-z0-9.-]+", "_", encoder.name).strip("_")[-60:]
    return cache_dir / f"{slug}-{encoder.fingerprint.removeprefix('sha256:')[:16]}"


def read_cache(folder: Path, encoder: ImageEncoder, wanted: set[str]) -> dict[str, np.ndarray]:
    """The rows of `wanted` images that verified shards hold; a shard that fails is named in a warning and left out."""
    rows: dict[str, np.ndarray] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            if not (wanted - set(rows)).intersection(_read_header(path)["image_hashes"]):
                continue
            shard = read_features(path, encoder=encoder)
        except (ValueError, OSError) as error:
            warnings.warn(f"cached features are not used and are computed again: {error}", stacklevel=3)
            continue
        rows |= {digest: row for row, digest in zip(shard.features, shard.image_hashes, strict=True) if digest in wanted}
    return rows


def write_shard(folder: Path, features: np.ndarray, hashes: Sequence[str], encoder: ImageEncoder) -> None:
    # The name is the content, so the same rows written twice, or by two processes, are one file.
    name = sha256_json([encoder.fingerprint, list(hashes), sha256_bytes(features.tobytes())]).removeprefix("sha256:")[:24]
    write_features(folder / f"{name}.safetensors", features, hashes, encoder)
