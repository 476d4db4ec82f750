"""Images of many kinds to 8-bit RGB, known by their content, so that each is encoded once.

The rules are those of ``decodehub.loaders`` (tests hold the two together); they are here because code that travels with the weights can
import nothing else of the package.
"""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from PIL import Image, ImageOps

ImageLike: TypeAlias = "str | Path | bytes | Image.Image | np.ndarray | Mapping[str, Any]"

MAX_BYTES = 64 * 2**20
MAX_PIXELS = 50_000_000
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")  # no format whose decoder starts another program, as EPS does
_PNG_MODES = ("1", "L", "LA", "P", "PA", "RGBA", "I", "I;16", "I;16B", "I;16L")


class Source(NamedTuple):
    """One image: what to call it in an error, ``"sha256:..."`` of its content, and a function that gives it as 8-bit RGB."""

    name: str
    digest: str
    load: Callable[[], Image.Image]


def source(image: ImageLike, name: str) -> Source:
    """An image by its content: of the file's bytes for paths and bytes, of size and RGB pixels otherwise.

    Args:
        image: path, encoded bytes, PIL image, (h, w, 3) uint8 array, or a dict with ``bytes`` or ``path``.
        name: what to call it in an error, where it is no path.

    Raises:
        FileNotFoundError: a path that does not exist.
        ValueError: an empty or too large file, an array of another kind, a damaged PIL image.
        TypeError: not an image.
    """
    if isinstance(image, Mapping):
        content = image.get("bytes") if image.get("bytes") is not None else image.get("path")
        if content is None:
            raise ValueError(f"{name}: expected 'bytes' or 'path' in the dict, found neither (keys: {sorted(image)})")
        return source(content, f"{name} ({image['path']})" if image.get("path") else name)
    if isinstance(image, (str, Path)):
        path = Path(image)
        digest = _sha256(_read(path))
        return Source(str(path), digest, lambda: _load_file(path, digest))
    if isinstance(image, (bytes, bytearray, memoryview)):
        data = bytes(image)
        return Source(name, _sha256(data), lambda: decode(data, name))
    if isinstance(image, Image.Image):
        rgb = _from_pil(image, name)
    elif isinstance(image, np.ndarray):
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or 0 in image.shape:
            raise ValueError(f"{name}: expected an array (h, w, 3) of uint8, found {image.shape} of {image.dtype}")
        rgb = Image.fromarray(np.ascontiguousarray(image))
    else:
        raise TypeError(f"{name}: expected a path, bytes, PIL image, uint8 array or dict of bytes and path, found {type(image).__name__}")
    return Source(name, _sha256(f"rgb8 {rgb.width}x{rgb.height}\n".encode() + rgb.tobytes()), lambda: rgb)


def decode(data: bytes, name: str) -> Image.Image:
    """Encoded bytes to 8-bit RGB: first frame, EXIF turned, 16 bit scaled to 8, alpha on white; the size is looked at first.

    Raises:
        ValueError: not an image, damaged, or over 50 million pixels.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image: Image.Image = Image.open(io.BytesIO(data), formats=FORMATS)
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"{image.width} x {image.height} pixels are more than the {MAX_PIXELS:,} allowed")
        image = ImageOps.exif_transpose(image)
        if image.mode in ("I", "I;16", "I;16B", "I;16L"):
            image = Image.fromarray((np.asarray(image, dtype=np.float64) / 257).round().clip(0, 255).astype(np.uint8))
        if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
            image = image.convert("RGBA")
            return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
        return image.convert("RGB")
    except Exception as error:  # decoders have many error classes of their own
        raise ValueError(
            f"{name} cannot be read as an image ({error}): check that it is whole, of usual size and one of {', '.join(FORMATS)}"
        ) from None


def _from_pil(image: Image.Image, name: str) -> Image.Image:
    if image.width * image.height > MAX_PIXELS:
        raise ValueError(f"{name} has {image.width} x {image.height} pixels, more than the {MAX_PIXELS:,} allowed: shrink it first")
    try:
        image = ImageOps.exif_transpose(image)
        if image.mode == "RGB" and "transparency" not in image.info:
            return image
        if image.mode not in _PNG_MODES:
            return image.convert("RGB")
        buffer = io.BytesIO()
        image.save(buffer, format="PNG", compress_level=0)
    except (OSError, SyntaxError) as error:
        raise ValueError(f"{name} is cut short or damaged ({error}): fetch it again") from None
    return decode(buffer.getvalue(), name)


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    if not 0 < path.stat().st_size <= MAX_BYTES:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes, expected 1 to {MAX_BYTES:,}")
    return path.read_bytes()


def _load_file(path: Path, digest: str) -> Image.Image:
    data = _read(path)
    if _sha256(data) != digest:
        raise ValueError(f"{path} changed while it was being scored: run again")
    return decode(data, str(path))


def _sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


__all__ = ["ImageLike", "Source", "decode", "source"]
