"""Images of any kind to 8-bit RGB: size-limited before decoding, known by their content, with errors that say what to do.

The one place where images are decoded. It travels with the weights of models that take images, see `hub_models.bcs.travel`.

How pixels become 8 bit, the same in every reader (paths, bytes, PIL images, arrays, tensors):

| values | taken as |
|---|---|
| 8 bit, boolean | they are; True is 255 |
| 16 bit (PNG and TIFF; arrays of uint16) | divided by 257; an array whose largest value is 2 to 255 is refused |
| wider integers (int32 TIFF, mode I) | they are, where all lie in 0 to 255; else refused |
| floats (float TIFF, mode F) | times 255, where all lie in [0, 1]; as they are, where all are whole and lie in [0, 255]; else refused |

Floats may leave [0, 1] by half a level, 1/510, as sums in float16 do. Values in [-1, 1] are taken where the caller says so. Alpha is put on white.
"""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from PIL import Image, ImageOps

from decodehub.core.files import read_data

ImageLike: TypeAlias = "str | Path | bytes | Image.Image | np.ndarray | Mapping[str, Any]"  # or a torch tensor

MAX_BYTES = 64 * 2**20
MAX_PIXELS = 50_000_000
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")  # no format whose decoder starts another program, as EPS does
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff"})  # of files in these formats
CHANNELS = (1, 3, 4)
LAYOUTS = ("chw", "hwc")
_TOLERANCE = 1 / 510
_SIXTEEN_BIT = ("I;16", "I;16B", "I;16L", "I;16N")


@dataclass(frozen=True)
class ImageSource:
    """One image that is known by its content and decoded when needed.

    Attributes:
        name: what to call it in an error.
        digest: ``"sha256:..."`` of its content.
        load: gives it as 8-bit RGB.
    """

    name: str
    digest: str
    load: Callable[[], Image.Image]


def source(image: ImageLike, name: str, *, files_too: bool = False) -> ImageSource:
    """An image by its content: of the file's bytes for paths, bytes and undecoded dicts, of size and RGB pixels otherwise.

    The same picture as a file and as an array therefore counts as two images. A file is read twice, for the hash and for the pixels, and not
    held in between: a data set need not fit into memory.

    Args:
        image: path, encoded bytes, PIL image, array or tensor of one image (see `array_to_rgb`), or a dict with ``bytes`` or ``path``.
        name: what to call it in an error, where it is no path.
        files_too: call a file so too, in place of its path.

    Raises:
        FileNotFoundError: a path that does not exist.
        ValueError: an empty or too large file, a pointer in its place, an array that is no image, a damaged PIL image.
        TypeError: not an image.
    """
    if isinstance(image, Mapping):
        content = image.get("bytes") if image.get("bytes") is not None else image.get("path")
        if content is None:
            raise ValueError(f"{name}: expected 'bytes' or 'path' in the dict, found neither (keys: {sorted(image)})")
        return source(content, f"{name} ({image['path']})" if image.get("path") and not files_too else name, files_too=files_too)
    if isinstance(image, (str, Path)):
        path = Path(image)
        digest = _sha256(read_data(path, max_bytes=MAX_BYTES))
        label = name if files_too else str(path)
        return ImageSource(label, digest, lambda: _load_file(path, digest, label))
    if isinstance(image, (bytes, bytearray, memoryview)):
        data = bytes(image)
        return ImageSource(name, _sha256(data), lambda: decode_image(data, name=name))
    if isinstance(image, Image.Image):
        rgb = pil_to_rgb(image, name=name)
    elif isinstance(image, np.ndarray) or hasattr(image, "detach"):
        rgb = array_to_rgb(image, name=name)
    else:
        raise TypeError(f"{name}: expected a path, bytes, PIL image, array, tensor or dict of bytes and path, found {type(image).__name__}")
    return ImageSource(name, _sha256(f"rgb8 {rgb.width}x{rgb.height}\n".encode() + rgb.tobytes()), lambda: rgb)


def image_list(images: Any, name: str = "images") -> Sequence[Any]:
    """A sequence of images; one array or tensor of many becomes a list of 8-bit RGB images.

    Raises:
        TypeError: a single image, or nothing that has a length.
        ValueError: see `batch_to_rgb`.
    """
    if isinstance(images, (str, bytes, Path, Image.Image, Mapping)) or getattr(images, "ndim", 4) in (2, 3):
        raise TypeError(f"{name} must be a sequence of images, got a single one: pass [image]")
    if not hasattr(images, "__len__"):
        raise TypeError(f"{name} must be a sequence of images, got {type(images).__name__}")
    return batch_to_rgb(images, name=name) if getattr(images, "ndim", 0) == 4 else images


def read_image(path: Path | str, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Read one image file as 8-bit RGB.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: empty, a git-annex or Git LFS pointer, over 64 MiB, too many pixels, damaged, or not an image.
    """
    return decode_image(read_data(Path(path), max_bytes=MAX_BYTES), name=str(path), max_pixels=max_pixels)


def decode_image(data: bytes, *, name: str = "image", max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Decode one still image to 8-bit RGB; the size is checked before any pixel is decoded.

    Alpha is composited on white, EXIF orientation is applied, the first frame of an animation is taken.

    Args:
        data: an encoded image in one of `FORMATS`.
        name: what to call the image in an error.
        max_pixels: largest width times height.

    Raises:
        ValueError: not an image, truncated, larger than `max_pixels`, or with values that no rule above takes.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image: Image.Image = Image.open(io.BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(f"{name} cannot be read: it is too large to decode safely ({error}): shrink it first") from None
    except Exception as error:  # decoders have many error classes of their own
        raise ValueError(
            f"{name} cannot be read as an image ({error}): check that the file is whole and one of {', '.join(FORMATS)}"
        ) from None
    return pil_to_rgb(image, name=name, max_pixels=max_pixels)


def pil_to_rgb(image: Image.Image, *, name: str = "image", max_pixels: int = MAX_PIXELS) -> Image.Image:
    """A PIL image as 8-bit RGB: EXIF turned, alpha on white, wider pixels by the rules above.

    Raises:
        ValueError: too many pixels, truncated, or values that no rule takes.
    """
    if image.width * image.height > max_pixels:
        raise ValueError(
            f"{name} cannot be read: it has {image.width} x {image.height} pixels, more than the {max_pixels:,} allowed: shrink it first"
        )
    is_png = image.format == "PNG"
    try:
        image = ImageOps.exif_transpose(image)
        image.load()
        if image.mode in _SIXTEEN_BIT or (image.mode == "I" and is_png):  # older Pillows open 16-bit PNG as I
            grey = (np.asarray(image, dtype=np.float64) / 257).round().clip(0, 255).astype(np.uint8)
        elif image.mode in ("I", "F"):
            grey = None
        elif image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
            return _on_white(image.convert("RGBA"))
        else:
            return image if image.mode == "RGB" else image.convert("RGB")
    except Exception as error:
        raise ValueError(f"{name} cannot be read as an image ({error}): it is cut short or damaged, fetch it again") from None
    if grey is None:
        grey = _to_8_bit(np.asarray(image), name, None)
    return Image.fromarray(grey).convert("RGB")


def array_to_rgb(
    array: Any, *, name: str = "image", value_range: tuple[float, float] | None = None, layout: str | None = None
) -> Image.Image:
    """One image from an array or tensor: (h, w), (h, w, c) or (c, h, w) with c of 1, 3 (RGB) or 4 (RGBA).

    Args:
        array: numpy array or torch tensor; values as in the table above.
        name: what to call it in an error.
        value_range: the values that mean black and white, such as (-1, 1); None goes by the table.
        layout: ``"chw"`` or ``"hwc"``, where the shape leaves it open; None goes by the shape.

    Raises:
        ValueError: another shape, a shape that may be either, or values that no rule takes.
    """
    return _pixels_to_rgb(_to_hwc(_as_array(array, name)[None], name, layout, value_range)[0])


def batch_to_rgb(
    arrays: Any, *, name: str = "images", value_range: tuple[float, float] | None = None, layout: str | None = None
) -> list[Image.Image]:
    """n images from one array or tensor (n, h, w), (n, h, w, c) or (n, c, h, w); range and layout are decided once, over all of them.

    Args and errors as :func:`array_to_rgb`.
    """
    found = _as_array(arrays, name)
    if found.ndim not in (3, 4) or 0 in found.shape:
        raise ValueError(f"{name}: expected an array (n, 3, h, w), (n, h, w, 3) or (n, h, w), found {found.shape} of {found.dtype}")
    return [_pixels_to_rgb(pixels) for pixels in _to_hwc(found, name, layout, value_range)]


def encode_png(pixels: np.ndarray) -> bytes:
    """PNG bytes of an (h, w, 3) uint8 array; equal pixels give equal bytes within one version of Pillow."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG", optimize=False, compress_level=6)
    return buffer.getvalue()


def _as_array(array: Any, name: str) -> np.ndarray:
    if hasattr(array, "detach"):
        array = array.detach().cpu()
        array = array.float().numpy() if "float" in str(array.dtype) else array.numpy()  # numpy has no bfloat16
    if array.dtype.kind not in "buif":
        raise ValueError(f"{name}: expected numbers, found an array {array.shape} of {array.dtype}")
    return array


def _to_hwc(arrays: np.ndarray, name: str, layout: str | None, value_range: tuple[float, float] | None) -> np.ndarray:
    """(n, ...) of one of the layouts to (n, h, w, c) uint8."""
    if layout not in (None, *LAYOUTS):
        raise ValueError(f"layout is {layout!r}, expected one of {', '.join(LAYOUTS)}")
    shape = arrays.shape[1:]
    if arrays.ndim == 3 and 0 not in arrays.shape:
        arrays = arrays[..., None]
    elif arrays.ndim != 4 or 0 in arrays.shape or not (shape[0] in CHANNELS or shape[2] in CHANNELS):
        raise ValueError(f"{name}: expected an image (h, w), (h, w, c) or (c, h, w) with c of 1, 3 or 4, found {shape} of {arrays.dtype}")
    else:
        fits = [kind for kind, c in (("chw", shape[0]), ("hwc", shape[2])) if c in CHANNELS]
        if layout is None and len(fits) == 2:
            raise ValueError(f"{name}: the shape {shape} may be (c, h, w) or (h, w, c): say layout='chw' or 'hwc' (--layout)")
        if layout is not None and layout not in fits:
            raise ValueError(f"{name}: the shape {shape} does not fit layout {layout!r}, where c is 1, 3 or 4")
        arrays = arrays.transpose(0, 2, 3, 1) if (layout or fits[0]) == "chw" else arrays
    if arrays.shape[1] * arrays.shape[2] > MAX_PIXELS:
        raise ValueError(f"{name} has {arrays.shape[2]} x {arrays.shape[1]} pixels, more than the {MAX_PIXELS:,} allowed: shrink it first")
    return _to_8_bit(arrays, name, value_range)


def _to_8_bit(values: np.ndarray, name: str, value_range: tuple[float, float] | None) -> np.ndarray:
    """Values to uint8 by the table of this module, or from `value_range`."""
    kind, low, high = values.dtype.kind, float(values.min()), float(values.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ValueError(f"{name} has NaN or infinite values: it cannot be an image")
    found = f"values of {values.dtype} from {low:.6g} to {high:.6g}"
    remedy = "scale them to [0, 1] or save 8 bit, or say what black and white are (value_range=(LOW, HIGH), --value-range LOW,HIGH)"
    if value_range is not None:
        black, white = value_range
        slack = (white - black) * _TOLERANCE
        if not black < white or low < black - slack or high > white + slack:
            raise ValueError(f"{name} has {found}, outside the value range {black:g} to {white:g} that was said")
        return np.rint((values.astype(np.float64) - black) * (255 / (white - black))).clip(0, 255).astype(np.uint8)
    if kind == "b":
        return values.astype(np.uint8) * np.uint8(255)
    if values.dtype == np.uint8:
        return np.ascontiguousarray(values)
    if values.dtype == np.uint16:
        if 1 < high <= 255:
            raise ValueError(f"{name} has {found}, which may be 8 bit or a dark image of 16 bit: {remedy}")
        return np.rint(values / 257).astype(np.uint8)
    if kind in "iu" and low >= 0 and high <= 255:
        return values.astype(np.uint8)
    if kind == "f" and low >= -_TOLERANCE and high <= 1 + _TOLERANCE:
        return np.rint(values.astype(np.float64) * 255).clip(0, 255).astype(np.uint8)
    if kind == "f" and low >= 0 and high <= 255 and (values == np.rint(values)).all():
        return values.astype(np.uint8)
    raise ValueError(f"{name} has {found}, which is neither [0, 1] nor whole numbers of 0 to 255: {remedy}")


def _pixels_to_rgb(pixels: np.ndarray) -> Image.Image:
    if pixels.shape[2] == 1:
        return Image.fromarray(np.ascontiguousarray(pixels[..., 0])).convert("RGB")
    image = Image.fromarray(np.ascontiguousarray(pixels))
    return _on_white(image) if image.mode == "RGBA" else image


def _on_white(image: Image.Image) -> Image.Image:
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def _load_file(path: Path, digest: str, name: str) -> Image.Image:
    data = read_data(path, max_bytes=MAX_BYTES)
    if _sha256(data) != digest:
        raise ValueError(f"{name} changed while it was in use: run again")
    return decode_image(data, name=name)


def _sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()
