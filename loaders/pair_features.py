"""Features of pairs of images for BCS: each distinct image encoded once, pairs put together in blocks, on disk when they are many.

    encoders = [load_encoder("lite0")]
    pairs = pair_features(encoders, references, reconstructions, cache_dir="cache", out="pairs.npy")
    pairs.features                      # (n, 5121) float32, memory-mapped

Source: Tiwari et al. 2026, arXiv 2607.12364, Eq. 14 to 16.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from decodehub.core.files import atomic_path, file_state, sha256_json, write_json
from decodehub.core.space import reserve_space

from .frozen_encoder import ImageEncoder
from .image_features import ImageLike, image_features, image_hashes

FORMAT = "decodehub-pair-features-1"
BLOCK = 512  # pairs put together at once: 19 MB of 9,219 float32


@dataclass(frozen=True)
class PairFeatures:
    """Features of n pairs.

    Attributes:
        features: (n, F) float32, F = sum of 4 d + 1 over the encoders; memory-mapped, read-only, where a file was asked for.
        reference_hashes, reconstruction_hashes: ``"sha256:..."`` of each image's content.
        fingerprints: of the encoders, in order.
        n_images: distinct images among the 2 n.
    """

    features: np.ndarray
    reference_hashes: list[str]
    reconstruction_hashes: list[str]
    fingerprints: list[str]
    n_images: int


def pair_features(
    encoders: Sequence[ImageEncoder],
    references: Sequence[ImageLike],
    reconstructions: Sequence[ImageLike],
    *,
    cache_dir: Path | str | None = None,
    out: Path | str | None = None,
    accelerator: Any | None = None,
    batch_size: int = 32,
    progress: bool = True,
    ids: Sequence[str] | None = None,
) -> PairFeatures:
    """Features of pairs (reference i, reconstruction i), block by block [r, g, |r - g|, r * g, <r, g>] for each encoder (Eq. 15).

    r and g are embeddings scaled to length 1, in float32 (a half-precision embedding is cast first, as in the released code).

    Args:
        encoders: frozen encoders in the order of the features.
        references, reconstructions: n images each, of any kind that :func:`image_features` takes.
        cache_dir: folder of the cache of image features; None keeps none.
        out: a ``.npy`` file for the features, written whole or not at all and used again when it is of the same images and encoders; None
            keeps them in memory.
        accelerator, batch_size, progress: see :func:`image_features`.
        ids: n names of pairs, for errors; by default paths and row numbers.

    Raises:
        ValueError: no encoder, no pair, other counts, an image that cannot be read, or an embedding without a direction.
        TypeError, FileNotFoundError, RuntimeError: as :func:`image_features`.
    """
    _require_pairs(encoders, references, reconstructions, ids)
    n = len(references)
    names = None if ids is None else [f"{kind} of {id}" for kind in ("reference", "reconstruction") for id in ids]
    images = _Distinct([*references, *reconstructions], names)
    digests = image_hashes(images.images, ids=images.names)
    hashes = [digests[i] for i in images.place]
    fingerprints = [encoder.fingerprint for encoder in encoders]
    width = sum(4 * encoder.dim + 1 for encoder in encoders)
    stamp = {"format": FORMAT, "shape": [n, width], "hash": sha256_json([fingerprints, hashes])}
    path = None if out is None else Path(out)
    if path is None or not _fits(path, stamp):
        options = {"cache_dir": cache_dir, "accelerator": accelerator, "batch_size": batch_size, "progress": progress}
        units = [images.unit_vectors(encoder, n, options) for encoder in encoders]
        left, right = np.array(images.place[:n]), np.array(images.place[n:])
        if path is None:
            features = np.empty((n, width), dtype=np.float32)
            _fill(features, units, left, right)
        elif accelerator is None or accelerator.is_main_process:
            _write(path, stamp, units, left, right)
        if path is not None and accelerator is not None:
            accelerator.wait_for_everyone()
    if path is not None:
        features = np.load(path, mmap_mode="r")
    return PairFeatures(features, hashes[:n], hashes[n:], fingerprints, len(set(hashes)))


def _require_pairs(encoders: Sequence[Any], references: Sequence[Any], reconstructions: Sequence[Any], ids: Sequence[str] | None) -> None:
    if not encoders:
        raise ValueError("pair features need at least one encoder")
    if len(references) != len(reconstructions) or not len(references):
        raise ValueError(
            f"expected as many references as reconstructions and at least one, found {len(references)} and {len(reconstructions)}"
        )
    if ids is not None and len(ids) != len(references):
        raise ValueError(f"{len(ids)} ids for {len(references)} pairs")


class _Distinct:
    """The distinct images of a list: one that several pairs share, as a path or as an object, is read once.

    Attributes:
        place: for each image of the list its number among the distinct ones. first: row of the list of each distinct one.
        images, names: of the distinct ones; `names` is None where none were given.
    """

    def __init__(self, images: Sequence[ImageLike], names: Sequence[str] | None) -> None:
        numbers: dict[Any, int] = {}
        self.place = [numbers.setdefault(str(image) if isinstance(image, (str, Path)) else id(image), len(numbers)) for image in images]
        first: dict[int, int] = {}
        for row, i in enumerate(self.place):
            first.setdefault(i, row)
        self.first = list(first.values())
        self.images = [images[row] for row in self.first]
        self.names = None if names is None else [names[row] for row in self.first]

    def unit_vectors(self, encoder: ImageEncoder, n: int, options: dict[str, Any]) -> np.ndarray:
        """(distinct, d) float32 embeddings of length 1."""
        rows = np.asarray(image_features(encoder, self.images, ids=self.names, **options), dtype=np.float32)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        if not lengths.all():
            i = int(np.argmin(lengths))
            kind = "reference" if self.first[i] < n else "reconstruction"
            name = f"{kind} {self.first[i] % n}" if self.names is None else self.names[i]
            raise ValueError(f"{encoder.name}: the embedding of {name} is all zeros and has no direction")
        return rows / lengths


def assemble(reference: np.ndarray, reconstruction: np.ndarray) -> np.ndarray:
    """[r, g, |r - g|, r * g, <r, g>] of unit vectors (n, d), as (n, 4 d + 1) float32 (Eq. 15)."""
    r, g = reference, reconstruction
    product = r * g
    return np.concatenate([r, g, np.abs(r - g), product, product.sum(axis=1, keepdims=True)], axis=1, dtype=np.float32)


def _fill(out: np.ndarray, units: Sequence[np.ndarray], left: np.ndarray, right: np.ndarray) -> None:
    for start in range(0, len(out), BLOCK):
        rows = slice(start, start + BLOCK)
        np.concatenate([assemble(unit[left[rows]], unit[right[rows]]) for unit in units], axis=1, out=out[rows])


def _write(path: Path, stamp: dict[str, Any], units: Sequence[np.ndarray], left: np.ndarray, right: np.ndarray) -> None:
    """The file of features, and then the stamp that says what it is of."""
    with atomic_path(path) as part:
        mapped = np.lib.format.open_memmap(part, mode="w+", dtype=np.float32, shape=tuple(stamp["shape"]))
        reserve_space(part, part.stat().st_size, target=path)
        _fill(mapped, units, left, right)
        mapped.flush()
        del mapped
    write_json(_stamp_path(path), {**stamp, "file": file_state(path)})


def _stamp_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _fits(path: Path, stamp: dict[str, Any]) -> bool:
    """Whether `path` is a whole file of exactly these pairs and encoders."""
    try:
        # The state of the file as well: another job may have put its own there between the file and its stamp.
        if json.loads(_stamp_path(path).read_text(encoding="utf-8")) != {**stamp, "file": file_state(path)}:
            return False
        found = np.load(path, mmap_mode="r")
    except (OSError, ValueError):
        return False
    return list(found.shape) == stamp["shape"] and found.dtype == np.float32


__all__ = ["PairFeatures", "assemble", "pair_features"]
