"""Pixel transforms: each against a second implementation, seeds that hold across processes, fingerprints that follow every setting."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from skimage import data as pictures

from decodehub.core.files import sha256_bytes, sha256_json
from decodehub.loaders import image_transforms as it
from decodehub.loaders.frozen_encoder import ImageEncoder
from decodehub.loaders.image_features import image_features
from decodehub.loaders.image_transforms import PixelTransform, TransformedEncoder


class MeanColour:
    """Mean and SD of the colours; counts what it encodes."""

    name, dim, licence = "mean-colour", 6, "CC0-1.0"

    def __init__(self, scale: float = 255.0) -> None:
        self.preprocessing: dict[str, Any] = {"scale": scale}
        self.encoded = 0

    @property
    def fingerprint(self) -> str:
        return sha256_json(self.preprocessing)

    def preprocess(self, image: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.array(image, dtype=np.float32) / self.preprocessing["scale"]).permute(2, 0, 1)

    def encode(self, images: list[Image.Image]) -> np.ndarray:
        self.encoded += len(images)
        tensors = [self.preprocess(image) for image in images]
        return np.stack([torch.cat([x.mean((1, 2)), x.std((1, 2))]).numpy() for x in tensors])


@pytest.fixture(scope="module")
def photo() -> np.ndarray:
    """A photograph, 224 x 224."""
    return np.array(Image.fromarray(pictures.chelsea()).crop((60, 20, 340, 300)).resize((224, 224), Image.Resampling.BICUBIC))


ALL: list[PixelTransform] = [
    it.fovea_blur(51, 3.0),
    it.gaussian_blur(31),
    it.gaussian_noise(25.0, 0),
    it.low_resolution(0.1),
    it.mosaic(5),
    it.stretch(224, "bilinear"),
    it.shorter_side(128, "bilinear"),
    it.random_resized_crop(0),
    it.jpeg_resave(75),
]


# ------------------------------------------------------------------------------------------------------------------- what holds for all


@pytest.mark.parametrize("transform", ALL, ids=lambda t: t.name)
def test_transform_is_a_pure_function_of_8_bit_pixels(transform: PixelTransform, photo: np.ndarray) -> None:
    before = photo.copy()
    out = transform(photo)
    side = transform.settings.get("size", 224)
    assert (out.shape, out.dtype) == ((side, side, 3), np.uint8)
    assert np.array_equal(photo, before)
    assert np.array_equal(transform(photo), out)
    assert np.array_equal(transform(np.asfortranarray(photo)), out)
    assert not np.shares_memory(out, photo)
    json.dumps(transform.describe())
    assert transform.random == (transform.name in ("noise", "crop"))


@pytest.mark.parametrize("transform", ALL, ids=lambda t: t.name)
def test_flat_image_stays_flat_but_for_noise(transform: PixelTransform) -> None:
    out = transform(np.full((224, 224, 3), 128, np.uint8))
    if transform.name == "noise":
        assert out.std() > 20
    else:
        assert (out == 128).all()


@pytest.mark.parametrize("transform", ALL, ids=lambda t: t.name)
@pytest.mark.parametrize("channel", [0, 1, 2])
def test_channels_keep_their_places(transform: PixelTransform, photo: np.ndarray, channel: int) -> None:
    """A channel that stands out keeps standing out: no swap of red and blue on the way through OpenCV."""
    pixels = photo // 4
    pixels[:, :, channel] += 150
    assert int(transform(pixels).reshape(-1, 3).mean(axis=0).argmax()) == channel


@pytest.mark.parametrize("transform", ALL, ids=lambda t: t.name)
@pytest.mark.parametrize("bad", [np.zeros((224, 224, 3)), np.zeros((224, 224), np.uint8), np.zeros((0, 224, 3), np.uint8), "photo.png"])
def test_what_is_not_8_bit_rgb_is_refused(transform: PixelTransform, bad: Any) -> None:
    with pytest.raises(ValueError, match=r"expected pixels \(h, w, 3\) of uint8, found"):
        transform(bad)


def test_same_bytes_in_another_process(photo: np.ndarray, tmp_path: Path) -> None:
    """Everything, random or not, with the hash seed and the process's own random state different."""
    np.save(tmp_path / "photo.npy", photo)
    code = (
        "import sys, numpy as np; from decodehub.core.files import sha256_bytes; from decodehub.loaders import image_transforms as it\n"
        "np.random.seed(5); photo = np.load(sys.argv[1])\n"
        "for t in (it.gaussian_noise(25.0, 3), it.random_resized_crop(3), it.fovea_blur(51, 3.0), it.mosaic(5), it.low_resolution(0.1)):\n"
        "    sys.stdout.write(sha256_bytes(t(photo).tobytes()) + '\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "photo.npy"], capture_output=True, text=True, check=True)
    here = [it.gaussian_noise(25.0, 3), it.random_resized_crop(3), it.fovea_blur(51, 3.0), it.mosaic(5), it.low_resolution(0.1)]
    assert done.stdout.split() == [sha256_bytes(t(photo).tobytes()) for t in here]


# ----------------------------------------------------------------------------------------------------------------------------- FoveaBlur


@pytest.mark.parametrize(("k", "sigma"), [(15, 2.6), (31, 5.0), (45, 7.1), (51, 8.0), (57, 8.9)])
def test_sigma_of_a_kernel_is_opencv_s(k: int, sigma: float) -> None:
    assert it.kernel_sigma(k) == pytest.approx(sigma)
    offset = np.arange(k) - k // 2
    expected = np.exp(-(offset**2) / (2 * sigma**2))
    np.testing.assert_allclose(cv2.getGaussianKernel(k, 0)[:, 0], expected / expected.sum(), atol=1e-9)


def test_share_of_the_sharp_image() -> None:
    mask = it.fovea_mask(3.0)
    assert (mask.shape, mask.dtype) == ((224, 224), np.float32)
    assert mask[112, 112] == 0.5 == mask.max()
    # Left and top edges are 112 pixels away, right and bottom ones 111.
    assert [round(100 * float(mask[p]), 1) for p in ((0, 112), (112, 0), (223, 112), (112, 223))] == [5.9, 5.9, 6.0, 6.0]
    assert mask[0, 112] == pytest.approx(0.5 * np.exp(-3 * 112 / np.sqrt(2 * 111**2)), rel=1e-6)
    assert [round(100 * float(mask[p]), 1) for p in ((0, 0), (0, 223), (223, 0), (223, 223))] == [2.5, 2.5, 2.5, 2.5]
    assert mask[0, 0] == pytest.approx(0.5 * np.exp(-3), rel=1e-6)
    assert np.array_equal(mask, mask.T)
    assert it.fovea_mask(4.0)[0, 0] < mask[0, 0]
    with pytest.raises(ValueError, match="read-only"):
        mask[0, 0] = 1


def _blur_by_hand(pixels: np.ndarray, k: int) -> np.ndarray:
    """Separable Gaussian in float64 with mirrored borders, the edge pixel not repeated."""
    sigma = 0.3 * ((k - 1) / 2 - 1) + 0.8
    weights = np.exp(-((np.arange(k) - k // 2) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    out = pixels.astype(np.float64)
    for axis in (0, 1):
        padding = [(k // 2, k // 2) if a == axis else (0, 0) for a in range(3)]
        padded = np.pad(out, padding, mode="reflect")
        out = sum(w * np.take(padded, np.arange(i, i + pixels.shape[axis]), axis=axis) for i, w in enumerate(weights))
    return out


@pytest.mark.parametrize("k", [15, 31, 45, 51, 57])
def test_blurs_equal_a_second_implementation(photo: np.ndarray, k: int) -> None:
    blurred = _blur_by_hand(photo, k)
    assert np.abs(it.gaussian_blur(k)(photo) - blurred).max() <= 1
    y, x = np.mgrid[0:224, 0:224]
    mask = 0.5 * np.exp(-3 * np.minimum(1, np.sqrt((y - 112) ** 2 + (x - 112) ** 2) / np.sqrt(111**2 + 111**2)))[:, :, None]
    assert np.abs(it.fovea_blur(k, 3)(photo) - (mask * photo + (1 - mask) * blurred)).max() <= 1.5


def test_fovea_of_single_pixels_shows_the_mask() -> None:
    """White pixels on black, apart: what is left of them, less the blur's own small share, is the mask."""
    pixels = np.zeros((224, 224, 3), np.uint8)
    places = [(112, 112), (0, 112), (0, 0), (223, 223)]
    for place in places:
        pixels[place] = 255
    out = it.fovea_blur(57, 3.0)(pixels)
    share = it.fovea_mask(3.0)
    for place in places:
        blurred = float(it.gaussian_blur(57)(pixels)[place][0])
        assert abs(float(out[place][0]) - (255 * share[place] + (1 - share[place]) * blurred)) <= 0.51


def test_more_blur_leaves_less_detail(photo: np.ndarray) -> None:
    def detail(pixels: np.ndarray) -> float:
        return float(np.abs(np.diff(pixels.astype(float), axis=1)).mean())

    levels = [detail(it.fovea_blur(k)(photo)) for k in it.FOVEA_LEVELS["paper"].values()]
    assert detail(photo) > levels[0] > levels[1] > levels[2] > detail(it.gaussian_blur(57)(photo))
    assert it.FOVEA_LEVELS == {"paper": {"low": 45, "medium": 51, "high": 57}, "released_code": {"low": 45, "medium": 45, "high": 51}}


# -------------------------------------------------------------------------------------------------------------------------- degradations


def test_noise_has_its_sd_and_follows_seed_and_image(photo: np.ndarray) -> None:
    grey = np.full((224, 224, 3), 128, np.uint8)
    difference = it.gaussian_noise(25.0, 0)(grey).astype(float) + 0.5 - 128  # whole numbers are cut, not rounded
    assert abs(difference.mean()) < 0.3
    assert difference.std() == pytest.approx(25, rel=0.01)
    assert abs(np.corrcoef(difference[:, :-1].ravel(), difference[:, 1:].ravel())[0, 1]) < 0.02
    other = it.gaussian_noise(25.0, 1)(grey).astype(float) - 128
    assert abs(np.corrcoef(difference.ravel(), other.ravel())[0, 1]) < 0.02
    nearly = grey.copy()
    nearly[0, 0, 0] += 1
    third = it.gaussian_noise(25.0, 0)(nearly).astype(float) - 128
    assert abs(np.corrcoef(difference.ravel(), third.ravel())[0, 1]) < 0.02
    # The same pixels in another shape are another image.
    assert not np.array_equal(it.gaussian_noise(25.0, 0)(grey.reshape(112, 448, 3)).ravel(), it.gaussian_noise(25.0, 0)(grey).ravel())
    bright = it.gaussian_noise(25.0, 0)(np.full((64, 64, 3), 250, np.uint8))
    assert bright.max() == 255
    assert bright.min() > 100  # clipped, not wrapped


def test_noise_does_not_depend_on_the_global_generator(photo: np.ndarray) -> None:
    first = it.gaussian_noise(25.0, 0)(photo)
    np.random.random(7)  # noqa: NPY002
    torch.rand(3)
    assert np.array_equal(it.gaussian_noise(25.0, 0)(photo), first)
    # Nor do two purposes share their draws.
    draws = [it.content_generator(name, 0, photo).random(4) for name in ("noise", "crop")]
    assert not np.array_equal(*draws)


def _triangle(n_in: int, n_out: int) -> np.ndarray:
    """Pillow's bilinear filter as a matrix (n_out, n_in): a triangle as wide as the reduction, at least one pixel."""
    scale = n_in / n_out
    width = max(scale, 1.0)
    centre = (np.arange(n_out) + 0.5) * scale
    weights = np.maximum(0, 1 - np.abs(np.arange(n_in)[None, :] + 0.5 - centre[:, None]) / width)
    return weights / weights.sum(axis=1, keepdims=True)


def test_low_resolution_equals_a_second_implementation(photo: np.ndarray) -> None:
    down, up = _triangle(224, 22), _triangle(22, 224)
    small = np.einsum("yh,xw,hwc->yxc", down, down, photo.astype(float))
    expected = np.einsum("yh,xw,hwc->yxc", up, up, small)
    assert np.abs(it.low_resolution(0.1)(photo) - expected).max() <= 2


def test_mosaic_equals_a_second_implementation(photo: np.ndarray) -> None:
    out = it.mosaic(5)(photo)
    at = (np.arange(44) + 0.5) * 224 / 44 - 0.5
    low = np.floor(at).astype(int)
    part = (at - low)[:, None]
    rows = photo[low] * (1 - part[:, :, None]) + photo[low + 1] * part[:, :, None]
    small = rows[:, low] * (1 - part) + rows[:, low + 1] * part
    block = np.floor(np.arange(224) * 44 / 224).astype(int)
    assert np.abs(out - small[block][:, block]).max() <= 1.01
    assert len(np.unique(out.reshape(-1, 3), axis=0)) <= 44 * 44


def test_jpeg_is_pillow_s_default(photo: np.ndarray) -> None:
    buffer = io.BytesIO()
    Image.fromarray(photo).save(buffer, format="JPEG")
    assert np.array_equal(it.jpeg_resave(75)(photo), np.array(Image.open(buffer)))
    assert not np.array_equal(it.jpeg_resave(75)(photo), it.jpeg_resave(90)(photo))


# ------------------------------------------------------------------------------------------------------------------------------- resizes


@pytest.mark.parametrize("size", [(500, 500), (451, 300), (300, 451), (224, 224), (100, 227), (3, 190)])
@pytest.mark.parametrize("resample", ["bilinear", "bicubic"])
def test_resizes_equal_torchvision(size: tuple[int, int], resample: str) -> None:
    from torchvision import transforms

    mode = transforms.InterpolationMode(resample)
    image = Image.fromarray(pictures.chelsea()).resize(size)
    stretched = transforms.Resize((224, 224), interpolation=mode)(image)
    assert np.array_equal(it.stretch(224, resample)(np.array(image)), np.array(stretched))
    cropped = transforms.Compose([transforms.Resize(128, interpolation=mode), transforms.CenterCrop(128)])(image)
    assert np.array_equal(it.shorter_side(128, resample)(np.array(image)), np.array(cropped))


def test_strip_that_would_fill_the_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="1 x 40000 pixels is too elongated"):
        it.shorter_side(128)(np.zeros((40_000, 1, 3), np.uint8))
    assert it.stretch(224)(np.zeros((40_000, 1, 3), np.uint8)).shape == (224, 224, 3)


def test_random_crop_keeps_the_area_and_follows_the_seed() -> None:
    """Pixels that hold their own column and row tell which part was taken."""
    y, x = np.mgrid[0:250, 0:250].astype(np.uint8)
    pixels = np.stack([x, y, np.zeros_like(x)], axis=2)
    areas, corners = [], set()
    for seed in range(60):
        out = it.random_resized_crop(seed)(pixels).astype(float)
        # At the outermost pixel centres half a source pixel is missing on either side.
        width, height = ((out[..., c].max() - out[..., c].min()) * 224 / 223 for c in (0, 1))
        areas.append(width * height / 250**2)
        assert 0.72 < width / height < 1.39
        corners.add((out[0, 0, 0], out[0, 0, 1]))
    assert min(areas) > 0.88
    assert max(areas) < 1.02
    assert np.ptp(areas) > 0.05
    assert len(corners) > 20


@pytest.mark.parametrize("shape", [(10, 400), (400, 10), (1, 1), (224, 224)])
def test_random_crop_takes_any_shape(shape: tuple[int, int]) -> None:
    pixels = np.zeros((*shape, 3), np.uint8)
    pixels[shape[0] // 2, shape[1] // 2] = 255
    assert it.random_resized_crop(0)(pixels).shape == (224, 224, 3)
    assert it.random_resized_crop(0)(pixels).any()


# -------------------------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: it.fovea_blur(50), "kernel size must be odd and positive, got 50"),
        (lambda: it.fovea_blur(51, 0), "g must be positive"),
        (lambda: it.fovea_blur(51, float("nan")), "g must be positive"),
        (lambda: it.gaussian_blur(-1), "odd and positive"),
        (lambda: it.gaussian_noise(0), "sd must be positive"),
        (lambda: it.gaussian_noise(25, -1), "seed is a whole number from 0, got -1"),
        (lambda: it.gaussian_noise(25, 0.5), "seed is a whole number from 0, got 0.5"),  # type: ignore[arg-type]
        (lambda: it.low_resolution(1.0), "scale must be between 0 and 1"),
        (lambda: it.mosaic(1), "level must be a whole number over 1"),
        (lambda: it.stretch(224, "lanczos"), "unknown filter 'lanczos'"),
        (lambda: it.shorter_side(0), "size must be a whole number from 1"),
        (lambda: it.random_resized_crop(0, scale_min=0.9, scale_max=0.8), "0 < scale_min <= scale_max <= 1"),
        (lambda: it.jpeg_resave(100), "quality must be a whole number from 1 to 95"),
        (lambda: it.fovea_blur()(np.zeros((200, 224, 3), np.uint8)), "expected 224 x 224 pixels, found 224 x 200: put a resize before it"),
        (lambda: it.low_resolution(0.1)(np.zeros((5, 50, 3), np.uint8)), "50 x 5 pixels times 0.1 leave none"),
        (lambda: it.mosaic(5)(np.zeros((4, 50, 3), np.uint8)), "fewer than one block of 5"),
        (lambda: TransformedEncoder(MeanColour(), ()), "no transform given: use mean-colour itself"),
    ],
)
def test_wrong_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# --------------------------------------------------------------------------------------------------------------------- behind an encoder


def test_every_setting_changes_fingerprint_and_name() -> None:
    """A cache can not be reused under any other setting, seed, order of steps or encoder."""
    resize = it.stretch(224)
    chains = [
        (resize, it.fovea_blur(51, 3)),
        (resize, it.fovea_blur(45, 3)),
        (resize, it.fovea_blur(51, 4)),
        (it.stretch(224, "bicubic"), it.fovea_blur(51, 3)),
        (resize, it.jpeg_resave(75), it.fovea_blur(51, 3)),
        (resize, it.jpeg_resave(90), it.fovea_blur(51, 3)),
        (it.jpeg_resave(75), resize, it.fovea_blur(51, 3)),
        (resize, it.gaussian_blur(51)),
        (resize, it.gaussian_noise(25, 0)),
        (resize, it.gaussian_noise(25, 1)),
        (resize, it.gaussian_noise(20, 0)),
        (resize, it.low_resolution(0.1)),
        (resize, it.low_resolution(0.2)),
        (resize, it.mosaic(5)),
        (resize, it.mosaic(6)),
        (it.random_resized_crop(0),),
        (it.random_resized_crop(1),),
        (it.random_resized_crop(0, scale_min=0.8),),
        (it.random_resized_crop(0, scale_max=0.95),),
        (resize,),
        (it.stretch(112),),
        (it.shorter_side(224),),
    ]
    encoders = [TransformedEncoder(base, chain) for base in (MeanColour(), MeanColour(scale=100.0)) for chain in chains]
    prints = [encoder.fingerprint for encoder in encoders] + [MeanColour().fingerprint]
    assert len(set(prints)) == len(prints)
    assert len({encoder.name for encoder in encoders}) == len(chains)
    again = TransformedEncoder(MeanColour(), (it.stretch(np.int64(224)), it.fovea_blur(np.int64(51), 3)))  # type: ignore[arg-type]
    assert again.fingerprint == encoders[0].fingerprint
    assert encoders[0].name == "mean-colour+stretch(size=224,resample=bilinear)+fovea(k=51,g=3)"


def test_version_of_the_transforms_is_in_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    before = TransformedEncoder(MeanColour(), (it.mosaic(5),)).fingerprint
    monkeypatch.setattr(it, "VERSION", 99)
    assert TransformedEncoder(MeanColour(), (it.mosaic(5),)).fingerprint != before


def test_transformed_encoder_encodes_the_transformed_image(photo: np.ndarray) -> None:
    encoder = TransformedEncoder(MeanColour(), [it.stretch(224), it.mosaic(5)])
    assert isinstance(encoder, ImageEncoder)
    image = Image.fromarray(pictures.chelsea())
    expected = Image.fromarray(it.mosaic(5)(it.stretch(224)(np.array(image))))
    assert np.array_equal(encoder.encode([image]), MeanColour().encode([expected]))
    assert torch.equal(encoder.preprocess(image), MeanColour().preprocess(expected))
    assert np.array_equal(encoder.encode([image.convert("L")]), encoder.encode([image.convert("L").convert("RGB")]))
    assert (encoder.dim, encoder.licence, encoder.random) == (6, "CC0-1.0", False)
    twice = TransformedEncoder(TransformedEncoder(MeanColour(), [it.gaussian_noise(25, 0)]), [it.stretch(224)])
    assert twice.random
    assert twice.to("cpu") is twice


def test_caches_of_transforms_are_kept_apart(photo: np.ndarray, tmp_path: Path) -> None:
    images = [photo, photo[:, ::-1].copy(), photo]
    base = MeanColour()
    seeds = [TransformedEncoder(base, (it.gaussian_noise(25, seed),)) for seed in (0, 1)]
    first = [image_features(encoder, images, cache_dir=tmp_path, progress=False) for encoder in seeds]
    assert base.encoded == 4
    assert not np.allclose(first[0], first[1], atol=1e-7)
    again = [image_features(encoder, images, cache_dir=tmp_path, progress=False) for encoder in reversed(seeds)]
    assert base.encoded == 4
    assert np.array_equal(again[0], first[1])
    assert np.array_equal(again[1], first[0])
    # Neither neighbours nor order matter.
    alone = image_features(seeds[0], images[1:2], progress=False)
    assert np.array_equal(alone, first[0][1:2])
    assert np.array_equal(first[0][0], first[0][2])
