"""Images of any kind to 8-bit RGB: the same in every reader, by stated rules, or refused with what was found."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from decodehub.loaders.image_arrays import image_folder, parse_range
from decodehub.loaders.image_features import image_hashes
from decodehub.loaders.images import array_to_rgb, batch_to_rgb, decode_image, image_list, read_image, source


def pictures() -> dict[str, bytes]:
    """Encoded images of many kinds."""
    rng = np.random.default_rng(0)
    rgb = Image.fromarray(rng.integers(0, 255, (24, 30, 3), dtype=np.uint8))
    made = {}

    def keep(name: str, image: Image.Image, kind: str, **options: object) -> None:
        buffer = io.BytesIO()
        image.save(buffer, format=kind, **options)
        made[name] = buffer.getvalue()

    keep("rgb.png", rgb, "PNG")
    keep("grey.png", rgb.convert("L"), "PNG")
    keep("cmyk.jpg", rgb.convert("CMYK"), "JPEG")
    keep("alpha.png", rgb.convert("RGBA").resize((24, 24)), "PNG")
    keep("16bit.png", Image.fromarray(rng.integers(0, 65535, (24, 30), dtype=np.uint16)), "PNG")
    keep("palette.gif", rgb.quantize(16), "GIF", save_all=True, append_images=[Image.new("RGB", rgb.size)])
    exif = Image.Exif()
    exif[0x0112] = 6
    keep("turned.jpg", rgb, "JPEG", exif=exif)
    keep("one.png", Image.new("RGB", (1, 1), "red"), "PNG")
    return made


def pixels(image: object) -> np.ndarray:
    return np.asarray(source(image, "x").load())  # type: ignore[arg-type]


def saved(image: Image.Image, kind: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=kind)
    return buffer.getvalue()


def test_every_reader_gives_the_same_pixels(tmp_path: Path) -> None:
    for name, data in pictures().items():
        path = tmp_path / name
        path.write_bytes(data)
        right = np.asarray(read_image(path))
        for image in (path, str(path), data, Image.open(path), {"bytes": data, "path": None}, {"path": str(path)}):
            assert np.array_equal(pixels(image), right), name
        assert image_hashes([path, data]) == [source(path, "x").digest] * 2


GREY = np.random.default_rng(3).integers(0, 256, (6, 9)).astype(np.uint8)
RGB = np.random.default_rng(4).integers(0, 256, (6, 9, 3)).astype(np.uint8)


@pytest.mark.parametrize("kind", ["float32 in [0, 1]", "float32 of 0 to 255", "int32"])
def test_wide_pixels_are_those_of_8_bit(tmp_path: Path, kind: str) -> None:
    """Float and int32 TIFF and PIL modes F and I, which came out black or divided by 257."""
    values = {
        "float32 in [0, 1]": (GREY / 255).astype(np.float32),
        "float32 of 0 to 255": GREY.astype(np.float32),
        "int32": GREY.astype(np.int32),
    }[kind]
    image, right = Image.fromarray(values), np.stack([GREY] * 3, -1)
    assert image.mode == ("I" if kind == "int32" else "F")
    data = saved(image, "TIFF")
    (tmp_path / "a.tif").write_bytes(data)
    for found in (image, data, tmp_path / "a.tif", {"bytes": data}, values, torch.from_numpy(values)):
        assert np.array_equal(pixels(found), right)
    assert np.array_equal(np.asarray(decode_image(data)), right)


def test_16_bit_is_divided_by_257() -> None:
    wide = GREY.astype(np.uint16) * 257
    for image in (Image.fromarray(wide), saved(Image.fromarray(wide), "PNG"), saved(Image.fromarray(wide), "TIFF"), wide):
        assert np.array_equal(pixels(image), np.stack([GREY] * 3, -1))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.full((4, 4), 0.5, np.float32) * 7, "values of float32 from 3.5 to 3.5"),
        (np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4), "from -1 to 1, which is neither"),
        (np.full((4, 4), np.nan, np.float32), "NaN or infinite"),
        (np.full((4, 4), 40000, np.int32), "values of int32 from 40000 to 40000"),
        (np.full((4, 4), 200, np.uint16), "may be 8 bit or a dark image of 16 bit"),
    ],
)
def test_values_of_no_rule_are_refused_with_what_was_found(values: np.ndarray, message: str) -> None:
    readers = [values, torch.from_numpy(values), Image.fromarray(values), saved(Image.fromarray(values), "TIFF")]
    for image in readers[: 1 if values.dtype == np.uint16 else 4]:
        with pytest.raises(ValueError, match=message):
            pixels(image)


def test_layouts_channels_and_ranges_of_arrays() -> None:
    alpha = np.concatenate([RGB, np.full((6, 9, 1), 255, np.uint8)], -1)
    half = np.float32(RGB) / 255
    for array in (
        RGB,
        RGB.transpose(2, 0, 1),
        half,
        half.transpose(2, 0, 1).astype(np.float64),
        alpha,
        alpha.transpose(2, 0, 1),
        alpha / 255,
    ):
        assert np.array_equal(pixels(array), RGB) and np.array_equal(pixels(torch.from_numpy(array.copy())), RGB)
    for array in (GREY, GREY[None], GREY[..., None], GREY / 255):
        assert np.array_equal(pixels(array), np.stack([GREY] * 3, -1))
    clear = alpha.copy()
    clear[..., 3] = 0
    assert (pixels(clear) == 255).all()
    signed = torch.from_numpy(half * 2 - 1)
    assert np.array_equal(np.asarray(array_to_rgb(signed, value_range=(-1, 1))), RGB)
    assert np.array_equal(pixels(np.array([[True, False]])), [[[255] * 3, [0] * 3]])
    assert np.abs(pixels(torch.from_numpy(half).to(torch.bfloat16)).astype(int) - RGB).max() <= 1
    square = np.zeros((3, 5, 3), np.uint8)
    with pytest.raises(ValueError, match=r"may be \(c, h, w\) or \(h, w, c\)"):
        pixels(square)
    assert array_to_rgb(square, layout="chw").size == (3, 5) and array_to_rgb(square, layout="hwc").size == (5, 3)
    for bad in (np.zeros((6, 9, 2)), np.zeros(4), np.zeros((0, 4, 3)), np.zeros((2, 2, 2, 2, 2))):
        with pytest.raises(ValueError, match="expected an image"):
            pixels(bad)
    with pytest.raises(ValueError, match="expected numbers"):
        pixels(np.array([["a"]]))


def test_a_batch_is_read_with_one_range() -> None:
    """A dark image of 0 to 255 is no image in [0, 1]: the others of the tensor say what it is."""
    batch = np.stack([RGB, np.ones_like(RGB)]).astype(np.float32)
    for arrays in (batch, torch.from_numpy(batch).permute(0, 3, 1, 2), batch.astype(np.uint8)):
        found = [np.asarray(image) for image in image_list(arrays)]
        assert np.array_equal(found[0], RGB) and (found[1] == 1).all()
    assert [np.asarray(image)[0, 0, 0] for image in batch_to_rgb(np.stack([GREY, GREY]))] == [GREY[0, 0]] * 2
    with pytest.raises(TypeError, match="a single one"):
        image_list(RGB)


def test_bad_images_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "cut.png").write_bytes(pictures()["rgb.png"][:200])
    for name in ("empty.png", "text.png", "cut.png"):
        with pytest.raises(ValueError, match=name):
            source(tmp_path / name, "x").load()
    with pytest.raises(FileNotFoundError, match=r"gone\.png"):
        source(tmp_path / "gone.png", "x")
    huge = Image.new("1", (8000, 8000))
    with pytest.raises(ValueError, match="8000 x 8000"):
        source(huge, "reference 3")
    buffer = io.BytesIO()
    huge.save(buffer, format="PNG")
    with pytest.raises(ValueError, match="reference 3 cannot be read"):
        source(buffer.getvalue(), "reference 3").load()
    with pytest.raises(TypeError, match="found int"):
        source(3, "x")  # type: ignore[arg-type]


def test_array_files_are_unpacked_once_and_like_the_images(tmp_path: Path) -> None:
    cache, batch = tmp_path / "cache", torch.from_numpy(np.stack([RGB, 255 - RGB])).permute(0, 3, 1, 2)
    torch.save(batch / 255, tmp_path / "all.pt")
    torch.save({"images": batch}, tmp_path / "dict.pt")
    np.save(tmp_path / "all.npy", batch.numpy())
    np.savez(tmp_path / "all.npz", batch.permute(0, 2, 3, 1).numpy() / 255)
    torch.save(batch / 127.5 - 1, tmp_path / "signed.pt")
    for name in ("all.pt", "dict.pt", "all.npy", "all.npz", "signed.pt"):
        value_range = (-1.0, 1.0) if name == "signed.pt" else None
        folder = image_folder(tmp_path / name, cache, value_range=value_range)
        assert sorted(p.name for p in folder.iterdir()) == ["0.png", "1.png"]
        assert np.array_equal(np.asarray(read_image(folder / "0.png")), RGB)
        assert image_folder(tmp_path / name, cache, value_range=value_range) == folder
    with pytest.raises(ValueError, match=r"signed\.pt has values of float32 from -1.*--value-range"):
        image_folder(tmp_path / "signed.pt", cache)
    many = tmp_path / "many"
    many.mkdir()
    np.save(many / "cat.npy", RGB)
    torch.save(batch, many / "dog.pt")
    folder = image_folder(many, cache)
    assert sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.png")) == ["cat.png", "dog/0.png", "dog/1.png"]
    (many / "x.png").write_bytes(saved(Image.fromarray(RGB), "PNG"))
    with pytest.raises(ValueError, match="images and array files"):
        image_folder(many, cache)
    torch.save({"a": batch, "b": batch}, tmp_path / "two.pt")
    torch.save(Path("x"), tmp_path / "code.pt")
    for name, message in (("two.pt", "2 entries"), ("code.pt", "cannot be read as arrays alone")):
        with pytest.raises(ValueError, match=message):
            image_folder(tmp_path / name, cache)
    assert parse_range("-1,1") == (-1, 1) and parse_range(None) is None
    with pytest.raises(ValueError, match="LOW,HIGH"):
        parse_range("1")
