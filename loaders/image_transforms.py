"""Pixel transforms in front of a frozen encoder: blurs, noise, mosaics and resizes, each with a name and settings that a cache can tell apart.

    medium = TransformedEncoder(load_encoder("open_clip:RN50/openai"), (stretch(224), fovea_blur(k=51, g=3)))
    medium.name                       # "open_clip:RN50/openai+stretch(size=224,resample=bilinear)+fovea(k=51,g=3)"
    image_features(medium, paths, cache_dir="cache")

A transform is a pure function of 8-bit RGB pixels and its settings, and nothing else: what is random draws from a generator that the seed
and the pixels determine, so that an image gets the same noise alone, in a batch, in another order and in another process.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
import torch
from PIL import Image
from torch import Tensor

from decodehub.core.files import sha256_json

from .frozen_encoder import MAX_ASPECT, ImageEncoder

# Part of every fingerprint: a change of what any transform computes must raise it.
VERSION = 1
FOVEA_SIZE = 224
# Kernel sizes of UBP and ATS. The released code changes one configuration in place for each level in turn, so that 51 - 6 = 45, 45 + 0 = 45
# and 45 + 6 = 51 came out where the paper, and EEG-EditBench S3.2, say 45, 51 and 57.
FOVEA_LEVELS: dict[str, dict[str, int]] = {
    "paper": {"low": 45, "medium": 51, "high": 57},
    "released_code": {"low": 45, "medium": 45, "high": 51},
}
RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@dataclass(frozen=True)
class PixelTransform:
    """A named pure function of pixels; made by the functions below, which check the settings.

    Attributes:
        name: what it is, e.g. ``"fovea"``.
        settings: all that its result depends on besides the pixels, JSON values only; passed to `function` by keyword.
        function: (pixels (h, w, 3) uint8, **settings) to pixels (h', w', 3) uint8.
    """

    name: str
    settings: Mapping[str, Any]
    function: Callable[..., np.ndarray]

    @property
    def label(self) -> str:
        """Name and settings for people, e.g. ``"fovea(k=51,g=3)"``."""
        shown = (f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in self.settings.items())
        return f"{self.name}({','.join(shown)})"

    @property
    def random(self) -> bool:
        """Whether the result depends on a seed."""
        return "seed" in self.settings

    def describe(self) -> dict[str, Any]:
        """Name, settings and version, JSON values only; equal descriptions promise equal pixels."""
        return {"transform": self.name, "version": VERSION, **self.settings}

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        """(h, w, 3) uint8 to (h', w', 3) uint8; the input is left alone. Raises ValueError for another shape or dtype."""
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or 0 in pixels.shape:
            found = f"{pixels.shape} of {pixels.dtype}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
            raise ValueError(f"{self.label}: expected pixels (h, w, 3) of uint8, found {found}")
        return self.function(pixels, **self.settings)


@dataclass
class TransformedEncoder:
    """A frozen encoder behind pixel transforms; an :class:`ImageEncoder` with a name and a fingerprint, and so a cache, of its own.

    Attributes:
        encoder: the encoder that sees the transformed image.
        transforms: applied in this order to the 8-bit RGB image.
        name: ``ENCODER+transform(settings)+...``.
        dim: length of a feature vector, that of `encoder`.
        licence: licence of the weights.
        preprocessing: settings of the transforms and of `encoder`.
    """

    encoder: ImageEncoder
    transforms: Sequence[PixelTransform]
    name: str = field(init=False)
    dim: int = field(init=False)
    licence: str = field(init=False)
    preprocessing: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        if not self.transforms:
            raise ValueError(f"no transform given: use {self.encoder.name} itself")
        self.transforms = tuple(self.transforms)
        self.name = "+".join([self.encoder.name, *(transform.label for transform in self.transforms)])
        self.dim = self.encoder.dim
        self.licence = self.encoder.licence
        self.preprocessing = {
            "transforms": [transform.describe() for transform in self.transforms],
            "encoder": self.encoder.preprocessing,
        }

    @property
    def fingerprint(self) -> str:
        """Hash of the encoder's fingerprint and of every setting of the transforms, seeds included."""
        return sha256_json({"encoder": self.encoder.fingerprint, "transforms": self.preprocessing["transforms"]})

    @property
    def random(self) -> bool:
        """Whether the features depend on a seed."""
        return any(transform.random for transform in self.transforms) or bool(getattr(self.encoder, "random", False))

    def to(self, device: torch.device | str) -> TransformedEncoder:
        """Move the encoder to `device`, if it can be moved, and return self."""
        if hasattr(self.encoder, "to"):
            self.encoder.to(device)
        return self

    def transform(self, image: Image.Image) -> Image.Image:
        """The 8-bit RGB image that the encoder sees."""
        pixels = np.array(image if image.mode == "RGB" else image.convert("RGB"))
        for transform in self.transforms:
            pixels = transform(pixels)
        return Image.fromarray(pixels)

    def preprocess(self, image: Image.Image) -> Tensor:
        """One image to the encoder's input, float32 (3, h, w)."""
        return self.encoder.preprocess(self.transform(image))

    def encode(self, images: Sequence[Image.Image]) -> np.ndarray:
        """8-bit RGB images to features (n, d), float32."""
        return self.encoder.encode([self.transform(image) for image in images])


def content_generator(name: str, seed: int, pixels: np.ndarray) -> np.random.Generator:
    """A generator that the purpose, the seed and the pixels (with their shape) determine: equal images get equal noise.

    Raises:
        ValueError: a negative seed.
    """
    check_seed(seed)
    digest = hashlib.sha256(f"{name} {pixels.dtype} {pixels.shape}\n".encode())
    digest.update(np.ascontiguousarray(pixels).data)
    words = np.frombuffer(digest.digest(), dtype="<u4")
    return np.random.default_rng(np.random.SeedSequence([seed, *(int(word) for word in words)]))


def check_seed(seed: int) -> int:
    """The seed as a plain int, so that it can stand in a fingerprint. Raises ValueError unless it is a whole number from 0."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ValueError(f"a seed is a whole number from 0, got {seed!r}")
    return int(seed)


# ------------------------------------------------------------------------------------------------------------------------------- blurs


def kernel_sigma(k: int) -> float:
    """Standard deviation in pixels of a Gaussian kernel of k x k, as OpenCV chooses it where sigma is given as 0."""
    return 0.3 * ((k - 1) * 0.5 - 1) + 0.8


@lru_cache(maxsize=8)
def fovea_mask(g: float = 3.0) -> np.ndarray:
    """Share of the sharp image at each pixel, (224, 224) float32, at most one half.

    ``.5 exp(-g min(1, d / d_max))`` with d the distance to pixel (112, 112) and d_max = sqrt(111^2 + 111^2), that of the lower right
    corner: .5 in the centre, .059 in the middle of an edge, .025 in a corner (UBP, FoveaBlur with c = .5 and g = 3).
    """
    offset = np.arange(FOVEA_SIZE, dtype=np.float64) - FOVEA_SIZE // 2
    distance = np.hypot(offset[:, None], offset[None, :])
    mask = (0.5 * np.exp(-g * np.minimum(1.0, distance / np.hypot(offset[-1], offset[-1])))).astype(np.float32)
    mask.setflags(write=False)
    return mask


def fovea_blur(k: int = 51, g: float = 3.0) -> PixelTransform:
    """FoveaBlur (UBP, section 3; used by ATS and HyFI too): sharper in the centre than at the edges, and blurred everywhere.

    Args:
        k: odd size of the Gaussian kernel (see `FOVEA_LEVELS`).
        g: how fast sharpness falls off from the centre.

    Returns:
        A transform of 224 x 224 images: ``mask * sharp + (1 - mask) * blurred`` rounded to 8 bits.

    Raises:
        ValueError: k is not odd and positive, or g is not positive.
    """
    if not (math.isfinite(g) and g > 0):
        raise ValueError(f"fovea: g must be positive, got {g}")
    return PixelTransform("fovea", {"k": _kernel("fovea", k), "g": float(g)}, _fovea)


def _fovea(pixels: np.ndarray, k: int, g: float) -> np.ndarray:
    if pixels.shape[:2] != (FOVEA_SIZE, FOVEA_SIZE):
        raise ValueError(
            f"fovea: expected {FOVEA_SIZE} x {FOVEA_SIZE} pixels, found {pixels.shape[1]} x {pixels.shape[0]}: put a resize before it"
        )
    mask = fovea_mask(g)[:, :, None]
    return np.rint(mask * pixels + (1 - mask) * _gaussian(pixels, k)).astype(np.uint8)


def gaussian_blur(k: int = 31) -> PixelTransform:
    """Plain Gaussian blur with a kernel of k x k, mirrored at the borders: k = 31 is HyFI's perceptual image, k = 15 NeuroBridge's.

    Raises:
        ValueError: k is not odd and positive.
    """
    return PixelTransform("gaussian", {"k": _kernel("gaussian", k)}, _gaussian)


def _gaussian(pixels: np.ndarray, k: int) -> np.ndarray:
    return cv2.GaussianBlur(np.ascontiguousarray(pixels), (k, k), 0, borderType=cv2.BORDER_REFLECT_101)


def _kernel(name: str, k: int) -> int:
    if isinstance(k, bool) or int(k) != k or k < 1 or k % 2 == 0:
        raise ValueError(f"{name}: the kernel size must be odd and positive, got {k}")
    return int(k)


# ------------------------------------------------------------------------------------------------------------------------ degradations


def gaussian_noise(sd: float = 25.0, seed: int = 0) -> PixelTransform:
    """Independent Gaussian noise on every value, clipped to 0..255 and cut to whole numbers (NeuroBridge, sd 25).

    The released code draws from an unseeded global generator, so no two of its extractions agree; here the seed and the image decide.

    Raises:
        ValueError: sd is not positive or the seed is negative.
    """
    if not (math.isfinite(sd) and sd > 0):
        raise ValueError(f"noise: sd must be positive, got {sd}")
    return PixelTransform("noise", {"sd": float(sd), "seed": check_seed(seed)}, _noise)


def _noise(pixels: np.ndarray, sd: float, seed: int) -> np.ndarray:
    noise = content_generator("noise", seed, pixels).standard_normal(pixels.shape, dtype=np.float32)
    return np.clip(pixels + np.float32(sd) * noise, 0, 255).astype(np.uint8)


def low_resolution(scale: float = 0.1) -> PixelTransform:
    """Down to `scale` of each side (cut to whole pixels: 224 to 22) and up again, both bilinear by Pillow (NeuroBridge).

    Raises:
        ValueError: scale is not between 0 and 1.
    """
    if not 0 < scale < 1:
        raise ValueError(f"lowres: scale must be between 0 and 1, got {scale}")
    return PixelTransform("lowres", {"scale": float(scale)}, _low_resolution)


def _low_resolution(pixels: np.ndarray, scale: float) -> np.ndarray:
    height, width = pixels.shape[:2]
    small = (int(width * scale), int(height * scale))
    if 0 in small:
        raise ValueError(f"lowres: {width} x {height} pixels times {scale:g} leave none")
    image = Image.fromarray(pixels).resize(small, Image.Resampling.BILINEAR)
    return np.array(image.resize((width, height), Image.Resampling.BILINEAR))


def mosaic(level: int = 5) -> PixelTransform:
    """Blocks of one colour: down by `level` (224 to 44) with OpenCV's bilinear, which does not average, and up by nearest (NeuroBridge).

    Raises:
        ValueError: level is not a whole number over 1.
    """
    if isinstance(level, bool) or int(level) != level or level < 2:
        raise ValueError(f"mosaic: level must be a whole number over 1, got {level}")
    return PixelTransform("mosaic", {"level": int(level)}, _mosaic)


def _mosaic(pixels: np.ndarray, level: int) -> np.ndarray:
    height, width = pixels.shape[:2]
    if min(height, width) < level:
        raise ValueError(f"mosaic: {width} x {height} pixels are fewer than one block of {level}")
    small = cv2.resize(np.ascontiguousarray(pixels), (width // level, height // level), interpolation=cv2.INTER_LINEAR)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_NEAREST)


# ----------------------------------------------------------------------------------------------------------------------------- resizes


def stretch(size: int = 224, resample: str = "bilinear") -> PixelTransform:
    """To size x size whatever the shape, with Pillow's antialiased filter.

    Bilinear is torchvision's ``Resize((size, size))`` of a PIL image (UBP, ATS), bicubic Pillow's own default (HyFI, NeuroBridge). The
    photographs of THINGS are square, so nothing is distorted there.

    Raises:
        ValueError: an unknown filter or a size below 1.
    """
    return PixelTransform("stretch", _resize_settings("stretch", size, resample), _stretch)


def _stretch(pixels: np.ndarray, size: int, resample: str) -> np.ndarray:
    return np.array(Image.fromarray(pixels).resize((size, size), RESAMPLING[resample]))


def shorter_side(size: int = 224, resample: str = "bilinear") -> PixelTransform:
    """The shorter side to `size`, then the centre square: torchvision's ``Resize(size)`` and ``CenterCrop(size)`` of a PIL image.

    Raises:
        ValueError: an unknown filter or a size below 1; when applied, an image over 64 times as long as wide.
    """
    return PixelTransform("shorter", _resize_settings("shorter", size, resample), _shorter_side)


def _shorter_side(pixels: np.ndarray, size: int, resample: str) -> np.ndarray:
    height, width = pixels.shape[:2]
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise ValueError(f"shorter: an image of {width} x {height} pixels is too elongated: crop or pad it first")
    # Sizes and offsets are rounded as torchvision does.
    new_width, new_height = (size * side // min(height, width) for side in (width, height))
    image = Image.fromarray(pixels).resize((new_width, new_height), RESAMPLING[resample])
    left, top = round((new_width - size) / 2), round((new_height - size) / 2)
    return np.array(image.crop((left, top, left + size, top + size)))


def random_resized_crop(seed: int, size: int = 224, scale_min: float = 0.9, scale_max: float = 1.0) -> PixelTransform:
    """OpenCLIP's training crop: 90 to 100 % of the area at an aspect from 3/4 to 4/3, to size x size by bicubic.

    ATM's released code encodes its targets through it, unseeded, so that its features change between extractions; here the seed and the
    image decide. The distribution is that of torchvision's ``RandomResizedCrop``, the draws are not.

    Raises:
        ValueError: a negative seed, a size below 1, or scales that are not 0 < scale_min <= scale_max <= 1.
    """
    if not 0 < scale_min <= scale_max <= 1:
        raise ValueError(f"crop: expected 0 < scale_min <= scale_max <= 1, got {scale_min} and {scale_max}")
    settings = _resize_settings("crop", size, "bicubic")
    return PixelTransform(
        "crop", {**settings, "scale_min": float(scale_min), "scale_max": float(scale_max), "seed": check_seed(seed)}, _random_crop
    )


def _random_crop(pixels: np.ndarray, size: int, resample: str, scale_min: float, scale_max: float, seed: int) -> np.ndarray:
    height, width = pixels.shape[:2]
    rng = content_generator("crop", seed, pixels)
    for _ in range(10):
        area = height * width * rng.uniform(scale_min, scale_max)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1))
            break
    else:  # nothing of that area fits: the largest centred part of an allowed aspect
        w, h = min(width, max(1, round(height * 4 / 3))), min(height, max(1, round(width * 4 / 3)))
        left, top = (width - w) // 2, (height - h) // 2
    return _stretch(np.ascontiguousarray(pixels[top : top + h, left : left + w]), size, resample)


def _resize_settings(name: str, size: int, resample: str) -> dict[str, Any]:
    if resample not in RESAMPLING:
        raise ValueError(f"{name}: unknown filter {resample!r}, expected one of {', '.join(RESAMPLING)}")
    if isinstance(size, bool) or int(size) != size or size < 1:
        raise ValueError(f"{name}: size must be a whole number from 1, got {size}")
    return {"size": int(size), "resample": resample}


def jpeg_resave(quality: int = 75) -> PixelTransform:
    """Through a JPEG file and back, as UBP's preparation does with the resized image (Pillow's default quality 75, colours at half size).

    Different builds of the JPEG library may round differently: features behind it agree between machines only nearly.

    Raises:
        ValueError: quality is not from 1 to 95.
    """
    if isinstance(quality, bool) or int(quality) != quality or not 1 <= quality <= 95:
        raise ValueError(f"jpeg: quality must be a whole number from 1 to 95, got {quality}")
    return PixelTransform("jpeg", {"quality": int(quality)}, _jpeg)


def _jpeg(pixels: np.ndarray, quality: int) -> np.ndarray:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="JPEG", quality=quality, subsampling="4:2:0")
    return np.array(Image.open(buffer))
