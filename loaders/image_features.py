"""Image features: every image encoded once, kept under its content, verified when read.

    encoder = load_encoder("lite0")
    features = image_features(encoder, paths, cache_dir="cache")     # (n, 1280) float32
    check_features(features, len(paths))

Encoders are in :mod:`.image_encoders`, the format of the cache and of feature files in :mod:`.image_feature_files`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from accelerate.utils import broadcast, broadcast_object_list, gather_object
from tqdm.auto import tqdm

from decodehub.core.files import sha256_json

from .frozen_encoder import EncoderUnavailableError, FrozenEncoder, ImageEncoder
from .image_encoders import load_encoder
from .image_feature_files import (
    SHARD_ROWS,
    FeatureFile,
    read_cache,
    read_features,
    refuse_nonfinite,
    shard_folder,
    write_features,
    write_shard,
)
from .images import ImageLike, ImageSource, image_list, source

__all__ = [
    "EncoderUnavailableError",
    "FeatureFile",
    "FrozenEncoder",
    "ImageEncoder",
    "check_features",
    "image_features",
    "image_hashes",
    "load_encoder",
    "read_features",
    "write_features",
]

T = TypeVar("T")

MAX_MEAN_COSINE = 0.95


# ------------------------------------------------------------------------------------------------------------------------ image sources


def image_hashes(images: Sequence[ImageLike], *, ids: Sequence[str] | None = None) -> list[str]:
    """``"sha256:..."`` of each image: of the file's bytes for paths, bytes and undecoded dicts, of size and RGB pixels otherwise.

    The same picture as a file and as an array therefore counts as two images.

    Raises:
        ValueError, TypeError, FileNotFoundError: as for :func:`image_features`.
    """
    return [source.digest for source in _sources(images, ids)]


def _sources(images: Sequence[ImageLike], ids: Sequence[str] | None) -> list[ImageSource]:
    images = image_list(images)
    if ids is not None and len(ids) != len(images):
        raise ValueError(f"{len(ids)} ids for {len(images)} images")
    names = [f"image {row}" for row in range(len(images))] if ids is None else [str(id) for id in ids]
    sources = [source(image, name, files_too=ids is not None) for image, name in zip(images, names)]
    if not sources:
        raise ValueError("there are no images to encode")
    return sources


# ---------------------------------------------------------------------------------------------------------------------------- encoding


def image_features(
    encoder: ImageEncoder,
    images: Sequence[ImageLike],
    *,
    cache_dir: Path | str | None = None,
    batch_size: int = 32,
    accelerator: Any | None = None,
    progress: bool = True,
    ids: Sequence[str] | None = None,
) -> np.ndarray:
    """Features of images in their order; equal images are encoded once, cached images not at all.

    Args:
        encoder: from :func:`load_encoder`, or any :class:`ImageEncoder`.
        images: n images: paths, encoded bytes, PIL images, (h, w, 3) uint8 arrays, or the dicts ``{"bytes", "path"}`` of an undecoded
            ``datasets.Image`` column (which need not fit into memory, as a decoded one must).
        cache_dir: folder of the cache; None keeps nothing. Shards of up to 1,024 images are written while the job runs, so a restart
            encodes only what is missing. Shards that fail verification are named in a warning and computed again.
        batch_size: images read at once, and in one forward pass on a GPU. On CPU a :class:`FrozenEncoder` computes image by image, so
            the bits do not depend on it (nor on the number of processes); on a GPU the last bits of float32 may.
        accelerator: an ``accelerate.Accelerator``: its processes share the images (each must call this with the same ones) and all get
            the whole result. The encoder is moved to its device.
        progress: show a progress bar (main process only).
        ids: n names to use in errors; default: the path, else ``image <row>``.

    Returns:
        (n, d) float32, C-contiguous.

    Raises:
        ValueError: no image, bad ids or batch size, an image that cannot be read, or an encoder that gives wrong shapes or NaN.
        TypeError: something that is not an image.
        FileNotFoundError: a path that does not exist.
        RuntimeError: another process of the accelerator failed, or was given other images.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if accelerator is not None and isinstance(encoder, FrozenEncoder):
        encoder.to(accelerator.device)
    team = _Team(accelerator)
    folder = None if cache_dir is None else shard_folder(Path(cache_dir), encoder)
    sources = team.all_or_none(lambda: _sources(images, ids))
    unique = {source.digest: source for source in reversed(sources)}
    order = list(dict.fromkeys(source.digest for source in sources))
    team.require_equal(sha256_json([encoder.fingerprint, order]), "images or encoder")
    rows = team.from_main(lambda: {} if folder is None else read_cache(folder, encoder, set(order)), encoder.dim)
    missing = [unique[digest] for digest in order if digest not in rows]
    if missing:
        mine = missing[team.share(len(missing))]
        bar = tqdm(total=len(mine), desc=f"{encoder.name} features", unit="image", disable=not (progress and team.is_main))
        with bar:
            encoded = team.all_or_none(lambda: _encode(encoder, mine, batch_size, folder, bar))
        rows |= dict(zip((source.digest for source in missing), team.gather(encoded, len(missing)), strict=True))
    return np.stack([rows[source.digest] for source in sources])


def _encode(encoder: ImageEncoder, sources: Sequence[ImageSource], batch_size: int, folder: Path | None, bar: Any) -> np.ndarray:
    """Encode sources in batches to (n, d) float32, adding to the cache shard by shard."""
    done = np.empty((len(sources), encoder.dim), dtype=np.float32)
    kept = start = 0
    for batch in _batches(sources, batch_size):
        features = np.asarray(encoder.encode([source.load() for source in batch]))
        if features.shape != (len(batch), encoder.dim):
            raise ValueError(f"{encoder.name} gave features {features.shape}, expected {(len(batch), encoder.dim)}")
        done[start : start + len(batch)] = features
        refuse_nonfinite(done[start : start + len(batch)], f"{encoder.name} on {batch[0].name} to {batch[-1].name}")
        start += len(batch)
        bar.update(len(batch))
        if folder is not None and (start - kept >= SHARD_ROWS or start == len(sources)):
            write_shard(folder, done[kept:start], [source.digest for source in sources[kept:start]], encoder)
            kept = start
    return done


def _batches(items: Sequence[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


class _Team:
    """The processes that share one call; alone when there is no accelerator. Every method is collective: all must call it."""

    def __init__(self, accelerator: Any | None) -> None:
        self.accelerator: Any = accelerator
        self.size = 1 if accelerator is None else accelerator.num_processes
        self.rank = 0 if accelerator is None else accelerator.process_index

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def share(self, n: int) -> slice:
        """This process's part of n items; parts follow each other in order of rank and differ by one item at most."""
        return slice(self.rank * n // self.size, (self.rank + 1) * n // self.size)

    def all_or_none(self, work: Callable[[], T]) -> T:
        """Run `work` everywhere; where one process fails all raise, so that none waits for it until the timeout."""
        if self.size == 1:
            return work()
        error, result = None, None
        try:
            result = work()
        except Exception as caught:
            error = caught
        failures = [text for text in gather_object([f"process {self.rank}: {error}" if error else ""]) if text]
        if error is not None:
            raise error
        if failures:
            raise RuntimeError(f"another process failed: {failures[0]}")
        return result  # type: ignore[return-value]

    def require_equal(self, value: str, what: str) -> None:
        """Refuse processes that were given different work."""
        if self.size == 1:
            return
        if len(set(gather_object([value]))) > 1:
            raise RuntimeError(f"processes were given different {what}: call image_features with the same ones everywhere")

    def from_main(self, read: Callable[[], dict[str, np.ndarray]], dim: int) -> dict[str, np.ndarray]:
        """The main process's rows, everywhere: what the cache holds may look different from another machine or a moment later."""
        if self.size == 1:
            return read()
        import torch

        rows = self.all_or_none(lambda: read() if self.is_main else {})
        names = broadcast_object_list([list(rows)])[0]
        if not names:
            return {}
        values = np.stack([rows[name] for name in names]) if self.is_main else np.zeros((len(names), dim), dtype=np.float32)
        shared = broadcast(torch.from_numpy(values).to(self.accelerator.device)).cpu().numpy()
        return dict(zip(names, shared, strict=True))

    def gather(self, mine: np.ndarray, n: int) -> np.ndarray:
        """The parts of all processes put together in order, (n, d); equal lengths for the transfer, the padding dropped."""
        if self.size == 1:
            return mine
        import torch

        longest = -(-n // self.size)
        padded = np.zeros((longest, mine.shape[1]), dtype=np.float32)
        padded[: len(mine)] = mine
        parts = self.accelerator.gather(torch.from_numpy(padded).to(self.accelerator.device)).cpu().numpy().reshape(self.size, longest, -1)
        lengths = [(rank + 1) * n // self.size - rank * n // self.size for rank in range(self.size)]
        return np.concatenate([part[:length] for part, length in zip(parts, lengths, strict=True)])


# ------------------------------------------------------------------------------------------------------------------------------ checks


def check_features(
    features: np.ndarray, n_rows: int, *, image_hashes: Sequence[str] | None = None, max_cosine: float = MAX_MEAN_COSINE
) -> None:
    """Refuse features that cannot be right for a varied set of images.

    Published caches have been found collapsed: random pairs with a mean cosine of .994, where a fresh extraction gave .326. Do not ask
    this of a handful of nearly equal images (one source and its edits), which are alike by design.

    Args:
        features: (n, d) numbers.
        n_rows: how many images they stand for.
        image_hashes: n hashes of the images; rows of the same image may be equal. None takes every row for another image.
        max_cosine: largest mean cosine over all pairs of rows that differ; computed exactly.

    Raises:
        ValueError: not (n_rows, d), NaN or infinite values, a row of zeros, or collapsed features.

    Warns:
        UserWarning: rows of different images are exactly equal.
    """
    features = np.asarray(features)
    if features.ndim != 2 or len(features) != n_rows:
        raise ValueError(f"features have shape {features.shape}, expected {n_rows} rows, one an image: they are of another list of images")
    if image_hashes is not None and len(image_hashes) != n_rows:
        raise ValueError(f"{len(image_hashes)} image hashes for {n_rows} rows")
    refuse_nonfinite(features, "features")
    norms = np.linalg.norm(features.astype(np.float64), axis=1)
    if not norms.all():
        raise ValueError(f"row {int(np.argmin(norms))} of the features is all zeros: it was never computed")
    distinct, first = np.unique(features, axis=0, return_index=True)
    different = n_rows if image_hashes is None else len(set(image_hashes))
    if len(distinct) < different:
        warnings.warn(f"{different} different images have only {len(distinct)} different feature rows: check their order", stacklevel=2)
    n = len(distinct)
    if n == 1 and different > 1:
        raise ValueError(f"all {different} images have the same features: the cache is collapsed, compute it again")
    if n > 1:
        unit = distinct.astype(np.float64) / norms[first, None]
        # Sum over all pairs = |sum of unit vectors|^2, less the n pairs of a row with itself.
        cosine = float((np.square(unit.sum(axis=0)).sum() - n) / (n * (n - 1)))
        if cosine > max_cosine:
            raise ValueError(f"features are collapsed: the mean cosine of two rows is {cosine:.3f}, over {max_cosine}: compute them again")
