"""Images from bytes to arrays: size-limited before decoding, RGB after it, with errors that say what to do."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from decodehub.core.files import read_data

MAX_BYTES = 64 * 2**20
MAX_PIXELS = 50_000_000
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")  # no format whose decoder starts another program, as EPS does


def decode_image(data: bytes, *, name: str = "image", max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Decode one still image to 8-bit RGB; the size is checked before any pixel is decoded.

    Alpha is composited on white, EXIF orientation is applied, the first frame of an animation is taken.

    Args:
        data: an encoded image in one of `FORMATS`.
        name: what to call the image in an error.
        max_pixels: largest width times height.

    Raises:
        ValueError: not an image, truncated, or larger than `max_pixels`.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image: Image.Image = Image.open(io.BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(f"{name} is too large to decode safely ({error}): shrink it first") from None
    except Exception as error:  # decoders have many error classes of their own
        raise ValueError(
            f"{name} cannot be read as an image ({error}): check that the file is whole and one of {', '.join(FORMATS)}"
        ) from None
    width, height = image.size
    if width * height > max_pixels:
        raise ValueError(f"{name} has {width} x {height} pixels, more than the {max_pixels:,} allowed: shrink it first")
    try:
        image = ImageOps.exif_transpose(image)
        if image.mode in ("I", "I;16", "I;16B", "I;16L"):
            image = Image.fromarray((np.asarray(image, dtype=np.float64) / 257).round().clip(0, 255).astype(np.uint8))
        if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
            image = image.convert("RGBA")
            white = Image.new("RGBA", image.size, "white")
            return Image.alpha_composite(white, image).convert("RGB")
        return image.convert("RGB")
    except Exception as error:
        raise ValueError(f"{name} cannot be read as an image ({error}): it is cut short or damaged, fetch it again") from None


def read_image(path: Path | str, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Read one image file as 8-bit RGB.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: empty, a git-annex or Git LFS pointer, over 64 MiB, too many pixels, damaged, or not an image.
    """
    return decode_image(read_data(Path(path), max_bytes=MAX_BYTES), name=str(path), max_pixels=max_pixels)


def encode_png(pixels: np.ndarray) -> bytes:
    """PNG bytes of an (h, w, 3) uint8 array; equal pixels give equal bytes within one version of Pillow."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG", optimize=False, compress_level=6)
    return buffer.getvalue()
