"""Visual targets: the eight models' parts by hand, caches and manifests that follow every setting, the loading code on tiny networks."""

from __future__ import annotations

import argparse
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from skimage import data as pictures

from decodehub.core.files import sha256_json
from decodehub.loaders import image_transforms as it
from decodehub.loaders import synclr_encoder
from decodehub.loaders.frozen_encoder import EncoderUnavailableError, FrozenEncoder, ImageEncoder
from decodehub.loaders.image_encoders import load_encoder
from decodehub.loaders.image_features import image_features
from decodehub.loaders.text_encoders import load_text_encoder, text_features
from decodehub.loaders.vae_encoder import load_latent_encoder
from decodehub.loaders.visual_targets import ENCODERS, SETTINGS, visual_target


class ColourGrid:
    """A small encoder: the image as 4 x 4 colours; counts what it encodes."""

    name, dim, licence = "colour-grid", 48, "CC0-1.0"

    def __init__(self, scale: float = 255.0) -> None:
        self.preprocessing: dict[str, Any] = {"scale": scale}
        self.encoded = 0

    @property
    def fingerprint(self) -> str:
        return sha256_json(["colour-grid", self.preprocessing])

    def preprocess(self, image: Image.Image) -> torch.Tensor:
        small = image.resize((4, 4), Image.Resampling.NEAREST)
        return torch.from_numpy(np.array(small, dtype=np.float32) / self.preprocessing["scale"]).permute(2, 0, 1)

    def encode(self, images: list[Image.Image]) -> np.ndarray:
        self.encoded += len(images)
        return np.stack([self.preprocess(image).numpy().ravel() for image in images])


IMAGES = [
    np.array(Image.fromarray(getattr(pictures, name)()).convert("RGB").resize((260, 230)))[:, offset : offset + 230]
    for name, offset in (("chelsea", 0), ("coffee", 10), ("astronaut", 5))
]
DIMS = {
    "nice": {"image": ()},
    "mb2c": {"image": ()},
    "atm": {"image": ()},
    "ubp": {"image": (3,)},
    "ats": {"image": (3,)},
    "brain-hive": {"self_supervised": (), "image_text": (), "autoencoder": ()},
    "hyfi": {"semantic": (), "perceptual": ()},
    "neurobridge": {"image": ()},
}


@pytest.fixture(scope="module")
def lite0() -> FrozenEncoder:
    return load_encoder("lite0", "cpu")


def _grid(model_type: str, encoder: ImageEncoder | None = None, **options: Any) -> Any:
    """A target of the small encoder, without text."""
    text = {"text": "none"} if model_type == "atm" and "text" not in options else {}
    return visual_target(model_type, base_encoder=encoder or ColourGrid(), **text, **options)


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


# ------------------------------------------------------------------------------------------------------------------------ the eight models


@pytest.mark.parametrize("model_type", ENCODERS)
def test_every_target_runs_without_download(model_type: str, lite0: FrozenEncoder) -> None:
    target = _grid(model_type, lite0)
    arrays = target.compute(IMAGES[:2], progress=False)
    assert {name: rows.shape for name, rows in arrays.items()} == {n: (2, *middle, 1280) for n, middle in DIMS[model_type].items()}
    assert all(rows.dtype == np.float32 and np.isfinite(rows).all() for rows in arrays.values())
    assert target.dims == dict.fromkeys(DIMS[model_type], 1280)
    assert target.stand_in
    assert target.manifest["stand_in"]
    names = [encoder["name"] for part in target.manifest["parts"].values() for encoder in part["encoders"]]
    assert all(name.split("+")[0] == "lite0" for name in names)
    text = json.dumps(target.manifest).lower()
    assert "clip" not in text.replace("crop", "")
    for name, part in target.parts.items():
        norms = np.linalg.norm(arrays[name], axis=-1)
        assert np.allclose(norms, 1, atol=1e-5) == (part.normalisation == "l2")
        assert np.ptp(arrays[name], axis=0).max() > 0


def test_lite0_is_loaded_by_its_name() -> None:
    target = visual_target("nice", base_encoder="lite0", device="cpu")
    assert target.parts["image"].encoders[0].name == "lite0"


def test_settings_and_encoders_cover_the_same_models() -> None:
    assert set(ENCODERS) == set(SETTINGS) == set(DIMS)
    assert ENCODERS["atm"]["image"] == "open_clip:ViT-H-14/laion2b_s32b_b79k"
    assert list(ENCODERS["brain-hive"]) == list(DIMS["brain-hive"])


@pytest.mark.parametrize("model_type", ["nice", "mb2c", "atm"])
def test_image_embedding_is_scaled_to_length_one(model_type: str) -> None:
    arrays = _grid(model_type).compute(IMAGES, progress=False)
    expected = _unit(ColourGrid().encode([Image.fromarray(p) for p in IMAGES]))
    np.testing.assert_allclose(arrays["image"], expected, rtol=1e-6)


@pytest.mark.parametrize("model_type", ["ubp", "ats"])
@pytest.mark.parametrize(("levels", "kernels"), [("paper", (45, 51, 57)), ("released_code", (45, 45, 51))])
@pytest.mark.parametrize("resave", ["paper", "released_code"])
def test_three_blurs_by_hand(model_type: str, levels: str, kernels: tuple[int, ...], resave: str, lite0: FrozenEncoder) -> None:
    encoder = ColourGrid()
    target = _grid(model_type, encoder, blur_levels=levels, resave=resave)
    arrays = target.compute(IMAGES, progress=False)
    assert encoder.encoded == 3 * len(set(kernels))  # equal levels are encoded once
    for level, k in enumerate(kernels):
        steps = [it.stretch(224, "bilinear"), *([it.jpeg_resave(75)] if resave == "released_code" else []), it.fovea_blur(k, 3)]
        rows = []
        for pixels in IMAGES:
            for step in steps:
                pixels = step(pixels)
            rows.append(ColourGrid().encode([Image.fromarray(pixels)])[0])
        np.testing.assert_allclose(arrays["image"][:, level], _unit(np.stack(rows)), rtol=1e-6)
    assert target.parts["image"].levels == ("low", "medium", "high")
    assert target.settings == {"blur_levels": levels, "resave": resave}
    before = encoder.encoded
    test = target.compute(IMAGES, evaluation=True, progress=False)
    assert np.array_equal(test["image"], arrays["image"][:, 1])
    assert encoder.encoded == before + 3  # tests pay for the medium level alone


def test_hyfi_by_hand() -> None:
    arrays = _grid("hyfi").compute(IMAGES, progress=False)
    resized = [np.array(Image.fromarray(p).resize((224, 224))) for p in IMAGES]  # Pillow's default filter
    for name, blur in (("semantic", it.fovea_blur(51, 3)), ("perceptual", it.gaussian_blur(31))):
        expected = ColourGrid().encode([Image.fromarray(blur(p)) for p in resized])
        assert np.array_equal(arrays[name], expected), name


def test_neurobridge_by_hand_and_by_seed() -> None:
    arrays = [_grid("neurobridge", seed=seed).compute(IMAGES, progress=False)["image"] for seed in (0, 0, 1)]
    resized = [np.array(Image.fromarray(p).resize((224, 224))) for p in IMAGES]
    steps = (it.gaussian_blur(15), it.gaussian_noise(25, 0), it.low_resolution(0.1), it.mosaic(5))
    each = [ColourGrid().encode([Image.fromarray(step(p)) for p in resized]) for step in steps]
    np.testing.assert_allclose(arrays[0], np.mean(np.stack(each).astype(np.float64), axis=0), rtol=1e-6)
    assert np.array_equal(arrays[0], arrays[1])
    assert not np.array_equal(arrays[0], arrays[2])
    test = _grid("neurobridge").compute(IMAGES, evaluation=True, progress=False)["image"]
    assert np.array_equal(test, arrays[0])  # test images are degraded in the same way


def test_brain_hive_stand_in_sees_the_image_of_each_branch() -> None:
    arrays = _grid("brain-hive").compute(IMAGES, progress=False)
    whole = ColourGrid().encode([Image.fromarray(p) for p in IMAGES])
    small = ColourGrid().encode([Image.fromarray(it.shorter_side(128)(p)) for p in IMAGES])
    assert np.array_equal(arrays["self_supervised"], whole)
    assert np.array_equal(arrays["image_text"], whole)
    assert np.array_equal(arrays["autoencoder"], small)


def test_training_crop_of_atm_follows_the_seed() -> None:
    still = _grid("atm").compute(IMAGES, progress=False)["image"]
    crops = [_grid("atm", image_transform="released_code", seed=seed).compute(IMAGES, progress=False)["image"] for seed in (0, 0, 1)]
    assert np.array_equal(crops[0], crops[1])
    assert not np.array_equal(crops[0], crops[2])
    assert not np.array_equal(crops[0], still)
    assert ((crops[0] @ still.T).argmax(axis=1) == np.arange(3)).all()


# ------------------------------------------------------------------------------------------------------------------- caches and manifests


@pytest.mark.parametrize("model_type", ENCODERS)
def test_second_run_encodes_nothing(model_type: str, tmp_path: Path) -> None:
    encoder = ColourGrid()
    first = _grid(model_type, encoder).compute(IMAGES, cache_dir=tmp_path, progress=False)
    before = encoder.encoded
    again = _grid(model_type, encoder).compute(IMAGES, cache_dir=tmp_path, progress=False)
    assert encoder.encoded == before
    assert all(np.array_equal(first[name], again[name]) for name in first)


def test_another_seed_or_setting_encodes_only_what_differs(tmp_path: Path) -> None:
    encoder = ColourGrid()
    _grid("neurobridge", encoder, seed=0).compute(IMAGES, cache_dir=tmp_path, progress=False)
    assert encoder.encoded == 4 * 3
    _grid("neurobridge", encoder, seed=1).compute(IMAGES, cache_dir=tmp_path, progress=False)
    assert encoder.encoded == 5 * 3  # the noise
    _grid("ubp", encoder).compute(IMAGES, cache_dir=tmp_path, progress=False)
    assert encoder.encoded == 8 * 3
    _grid("ats", encoder, blur_levels="released_code").compute(IMAGES, cache_dir=tmp_path, progress=False)
    assert encoder.encoded == 8 * 3  # 45 and 51 are among 45, 51 and 57
    _grid("ats", encoder, resave="released_code").compute(IMAGES, cache_dir=tmp_path, progress=False)
    assert encoder.encoded == 11 * 3
    other = ColourGrid(scale=100.0)
    _grid("ubp", other).compute(IMAGES, cache_dir=tmp_path, progress=False)
    assert other.encoded == 3 * 3


def test_manifest_hash_follows_what_decides_the_arrays_and_nothing_else() -> None:
    different = [
        _grid("ubp"),
        _grid("ats"),
        _grid("ubp", blur_levels="released_code"),
        _grid("ubp", resave="released_code"),
        _grid("ubp", ColourGrid(scale=1.0)),
        _grid("hyfi"),
        _grid("neurobridge", seed=0),
        _grid("neurobridge", seed=1),
        _grid("atm"),
        _grid("atm", text_names="spaces"),
        _grid("atm", image_transform="released_code", seed=0),
        _grid("atm", image_transform="released_code", seed=1),
        _grid("brain-hive"),
        _grid("brain-hive", latents="mean"),
    ]
    hashes = [target.manifest["hash"] for target in different]
    assert len(set(hashes)) == len(hashes)
    assert _grid("ubp", seed=5).manifest == different[0].manifest  # nothing random: no seed
    assert [target.seed for target in different[6:8]] == [0, 1]
    assert different[0].seed is None
    renamed = ColourGrid()
    renamed.name = "of another name"  # type: ignore[misc]
    assert _grid("ubp", renamed).manifest["hash"] == hashes[0]
    for target in different:
        manifest = json.loads(json.dumps(target.manifest))
        assert manifest == target.manifest
        assert manifest["settings"] == dict(target.settings)


# ------------------------------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: visual_target("eegnet"), "unknown model type 'eegnet': expected one of nice, mb2c, atm"),
        (lambda: _grid("nice", blur_levels="paper"), "nice has no setting 'blur_levels': expected none"),
        (lambda: _grid("ubp", blur_levels="mine"), "ubp: blur_levels is 'mine', expected one of paper, released_code"),
        (lambda: _grid("hyfi", encoders={"text": ColourGrid()}), "hyfi has no encoder 'text': expected image"),
        (lambda: _grid("ubp", text="open_clip:x/y"), "ubp has no text target"),
        (lambda: _grid("neurobridge", seed=-1), "seed is a whole number from 0, got -1"),
    ],
)
def test_wrong_arguments_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_image_without_direction_is_refused() -> None:
    black = np.zeros((230, 230, 3), np.uint8)
    with pytest.raises(ValueError, match=r"colour-grid: row 1 is all zeros and has no direction"):
        _grid("nice").compute([IMAGES[0], black], progress=False)
    assert not _grid("hyfi").compute([black], progress=False)["semantic"].any()  # not scaled, so nothing is wrong with it


def test_text_of_atm_has_no_stand_in() -> None:
    with pytest.raises(EncoderUnavailableError, match=r"no stand-in: with base_encoder='lite0' pass text='none'.*ViT-H-14"):
        visual_target("atm", base_encoder="lite0")
    assert list(_grid("atm", text="none").dims) == ["image"]


@pytest.mark.parametrize("model_type", [name for name in ENCODERS if name != "brain-hive"])
def test_published_weights_that_are_not_here_are_named(model_type: str) -> None:
    """The tests run with HF_HUB_OFFLINE=1 and an empty cache: the default never falls back to a stand-in."""
    with pytest.raises(EncoderUnavailableError, match=f"{ENCODERS[model_type]['image']}.*use 'lite0'"):
        visual_target(model_type, device="cpu")


def test_brain_hive_names_each_branch_that_is_missing() -> None:
    roles = list(ENCODERS["brain-hive"])
    for role, message in zip(roles, ("synclr_vit_b_16.pth from https://", "hf download laion/CLIP-ViT-B-32", "autoencoder 'vae:stabil")):
        others = {other: ColourGrid() for other in roles if other != role}
        with pytest.raises(EncoderUnavailableError, match=message):
            visual_target("brain-hive", encoders=others, device="cpu")


# --------------------------------------------------------------------------------------------------------- the loading code: CLIP and text


@pytest.fixture(scope="module")
def tiny_open_clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    """A tiny OpenCLIP model with random weights, image and text, in a safetensors file: its id and the model itself."""
    import open_clip
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("open_clip")
    config = {
        "embed_dim": 8,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "patch_size": 16},
        "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 1, "layers": 1},
    }
    (folder / "decodehub-tiny-text.json").write_text(json.dumps(config))
    open_clip.add_model_config(folder / "decodehub-tiny-text.json")
    torch.manual_seed(0)
    model = open_clip.create_model("decodehub-tiny-text").eval()
    save_file(model.state_dict(), folder / "weights.safetensors")
    mean, sd = "0.48145466,0.4578275,0.40821073", "0.26862954,0.26130258,0.27577711"
    settings = f"quick_gelu=false&mean={mean}&std={sd}&resize_mode=shortest&interpolation=bicubic"
    return f"open_clip:decodehub-tiny-text/{folder}/weights.safetensors?{settings}", model


def test_atm_pairs_images_with_their_names(tiny_open_clip: tuple[str, Any], tmp_path: Path) -> None:
    import open_clip

    id, model = tiny_open_clip
    target = visual_target("atm", base_encoder=id, text=id, device="cpu")
    assert target.dims == {"image": 8, "text": 8}
    concepts = ["00001_aircraft_carrier", "00002_antelope", "00001_aircraft_carrier"]
    arrays = target.compute(IMAGES, concepts=concepts, cache_dir=tmp_path, progress=False)
    prompts = ["This picture is aircraft_carrier", "This picture is antelope", "This picture is aircraft_carrier"]
    transform = open_clip.image_transform(32, is_train=False)
    with torch.no_grad():
        text = model.encode_text(open_clip.get_tokenizer("decodehub-tiny-text")(prompts)).numpy()
        image = model.encode_image(torch.stack([transform(Image.fromarray(p)) for p in IMAGES])).numpy()
    np.testing.assert_allclose(arrays["text"], _unit(text), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(arrays["image"], _unit(image), rtol=1e-4, atol=1e-5)
    assert np.array_equal(arrays["text"][0], arrays["text"][2])
    spaced = visual_target("atm", base_encoder=id, text=id, text_names="spaces", device="cpu")
    words = spaced.compute(IMAGES, concepts=concepts, cache_dir=tmp_path, progress=False)["text"]
    assert not np.array_equal(words[0], arrays["text"][0])
    assert np.array_equal(words[1], arrays["text"][1])
    assert list(target.compute(IMAGES, evaluation=True, progress=False)) == ["image"]
    for wrong in (None, concepts[:2], "cat"):
        with pytest.raises(ValueError, match=r"expected concepts=, one name an image \(3\), found"):
            target.compute(IMAGES, concepts=wrong, progress=False)
    assert "text" in target.manifest["parts"]
    assert target.manifest["hash"] != visual_target("atm", base_encoder=id, text="none", device="cpu").manifest["hash"]


def test_text_features_are_encoded_once_and_kept(tiny_open_clip: tuple[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = load_text_encoder(tiny_open_clip[0], "cpu")
    image_encoder = load_encoder(tiny_open_clip[0], "cpu")
    assert encoder.fingerprint != image_encoder.fingerprint
    assert not any(key.startswith("visual") for key in encoder.network.state_dict())
    texts = ["a cat", "a dog", "a cat"]
    nothing = text_features(encoder, texts, cache_dir=tmp_path / "a", write=False)
    assert not list(tmp_path.rglob("*.safetensors"))
    first = text_features(encoder, texts, cache_dir=tmp_path)
    assert first.shape == (3, 8)
    assert first.dtype == np.float32
    assert np.array_equal(first, nothing)
    assert np.array_equal(encoder.encode(["a dog"])[0], first[1])  # neighbours do not matter
    monkeypatch.setattr(type(encoder), "encode", lambda self, texts: pytest.fail(f"encoded {texts} again"))
    assert np.array_equal(text_features(encoder, texts[::-1], cache_dir=tmp_path), first[::-1])
    for bad in ([], "a cat"):
        with pytest.raises(ValueError, match="list of at least one text"):
            text_features(encoder, bad)


def test_text_encoder_refuses_what_it_does_not_know() -> None:
    for id in ("lite0", "open_clip:ViT-H-14", "hf:openai/clip-vit-large-patch14"):
        with pytest.raises(ValueError, match="unknown text encoder"):
            load_text_encoder(id)
    with pytest.raises(EncoderUnavailableError, match=r"open_clip\.create_model"):
        load_text_encoder("open_clip:ViT-B-32/laion2b_s34b_b79k", "cpu")


def test_nice_with_a_local_clip(tmp_path: Path) -> None:
    from transformers import AutoImageProcessor, CLIPConfig, CLIPImageProcessorPil, CLIPModel

    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision, words = {**small, "image_size": 32, "patch_size": 16}, {**small, "vocab_size": 10}
    torch.manual_seed(0)
    model = CLIPModel(CLIPConfig(vision_config=vision, text_config=words, projection_dim=6)).eval()
    model.save_pretrained(tmp_path)
    CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(tmp_path)
    target = visual_target("nice", encoders={"image": f"hf:{tmp_path}"}, device="cpu")
    pixels = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")(images=[Image.fromarray(p) for p in IMAGES], return_tensors="pt")
    with torch.no_grad():
        expected = model.visual_projection(model.vision_model(pixels["pixel_values"]).pooler_output).numpy()
    np.testing.assert_allclose(target.compute(IMAGES, progress=False)["image"], _unit(expected), rtol=1e-4, atol=1e-5)
    assert target.stand_in
    assert target.dims == {"image": 6}


# ------------------------------------------------------------------------------------------------------------------------------ SynCLR


@pytest.fixture
def tiny_synclr(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Path, Any]:
    from timm.models.vision_transformer import VisionTransformer

    shape = {"img_size": 32, "patch_size": 16, "embed_dim": 16, "depth": 1, "num_heads": 2}
    monkeypatch.setitem(synclr_encoder.MODELS, "tiny", ("tiny.pth", shape))
    torch.manual_seed(0)
    model = VisionTransformer(num_classes=0, **shape).eval()
    state = {f"module.visual.{key}": value for key, value in model.state_dict().items()}
    torch.save({"model": state, "args": argparse.Namespace(epochs=3)}, tmp_path / "tiny.pth")
    return tmp_path / "tiny.pth", model


def test_synclr_reads_its_checkpoint(tiny_synclr: tuple[Path, Any], tmp_path: Path) -> None:
    from safetensors.torch import save_file
    from torchvision import transforms

    path, model = tiny_synclr
    encoder = load_encoder(f"synclr:tiny/{path}", "cpu")
    steps = [transforms.Resize(32), transforms.CenterCrop(32), transforms.ToTensor()]
    normalise = transforms.Normalize((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
    batch = torch.stack([transforms.Compose([*steps, normalise])(Image.fromarray(p)) for p in IMAGES])
    with torch.no_grad():
        expected = model(batch).numpy()  # without a head: the CLS token after the norm
    np.testing.assert_allclose(encoder.encode([Image.fromarray(p) for p in IMAGES]), expected, rtol=1e-4, atol=1e-5)
    assert (encoder.dim, encoder.licence) == (16, "Apache-2.0")
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    assert load_encoder(f"synclr:tiny/{tmp_path}/w.safetensors", "cpu").fingerprint == encoder.fingerprint
    # What was cached under it is accepted again.
    first = image_features(encoder, IMAGES, cache_dir=tmp_path / "cache", progress=False)
    assert np.array_equal(image_features(encoder, IMAGES, cache_dir=tmp_path / "cache", progress=False), first)


def test_synclr_published_shape_is_vit_b_16() -> None:
    from timm.models.vision_transformer import VisionTransformer

    with torch.device("meta"):
        network = VisionTransformer(num_classes=0, **synclr_encoder.MODELS["ViT-B-16"][1])
    assert sum(p.numel() for p in network.parameters()) == 85_798_656  # ViT-B/16 without a head


class _Evil:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (pytest.fail, ("code from a checkpoint was run",))


def test_synclr_refuses_other_files(tiny_synclr: tuple[Path, Any], tmp_path: Path) -> None:
    contents: dict[str, Any] = {
        "other": {"model": {"x": torch.zeros(2)}},
        "evil": {"model": _Evil()},
        "list": [1, 2],
    }
    for name, content in contents.items():
        torch.save(content, tmp_path / f"{name}.pth")
        with pytest.raises(ValueError, match="is not a file of weights of SynCLR tiny"):
            load_encoder(f"synclr:tiny/{tmp_path}/{name}.pth", "cpu")
    with pytest.raises(ValueError, match="SynCLR has no model 'ViT-X', expected one of ViT-B-16"):
        load_encoder("synclr:ViT-X")
    with pytest.raises(EncoderUnavailableError, match=r"weights.synclr_vit_b_16\.pth does not exist\. Download"):
        load_encoder("synclr:ViT-B-16")


# ------------------------------------------------------------------------------------------------------------------------- autoencoder


class _FakeAutoencoder(torch.nn.Module):
    """What is used of diffusers' AutoencoderKL: an encoder that shrinks by 8, a quant_conv, a configuration."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = torch.nn.Conv2d(3, 8, 8, stride=8)
        self.quant_conv = torch.nn.Conv2d(8, 8, 1)
        self.config = types.SimpleNamespace(scaling_factor=0.13025, latent_channels=4, block_out_channels=(128, 256))

    @classmethod
    def from_pretrained(cls, name: str, **options: Any) -> _FakeAutoencoder:
        assert options["use_safetensors"]
        if name == "nobody/nothing":
            raise OSError("offline")
        return cls()


@pytest.fixture
def diffusers(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("diffusers")
    module.AutoencoderKL = _FakeAutoencoder  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "diffusers", module)


def _latents(**options: Any) -> Any:
    return load_latent_encoder("vae:some/vae", device="cpu", **options)


@pytest.mark.usefixtures("diffusers")
def test_latents_are_a_seeded_sample_of_the_posterior() -> None:
    from torchvision import transforms

    steps = [transforms.Resize(128), transforms.CenterCrop(128), transforms.ToTensor(), transforms.Normalize([0.5], [0.5])]
    batch = torch.stack([transforms.Compose(steps)(Image.fromarray(p)) for p in IMAGES])
    images = [Image.fromarray(p) for p in IMAGES]
    vae = _FakeAutoencoder()
    with torch.no_grad():
        mean, log_variance = vae.quant_conv(vae.encoder(batch)).chunk(2, dim=1)
    encoder = _latents(sampling="mean")
    np.testing.assert_allclose(encoder.preprocess(images[0]), batch[0], atol=1e-6)
    assert encoder.dim == 1024
    np.testing.assert_allclose(encoder.encode(images), 0.13025 * mean.flatten(1).numpy(), rtol=1e-4, atol=1e-6)
    samples = np.stack([_latents(seed=seed).encode(images) for seed in range(20)])
    assert samples.shape == (20, 3, 1024)
    assert samples.dtype == np.float32
    standard = (samples / 0.13025 - mean.flatten(1).numpy()) / np.exp(0.5 * log_variance.flatten(1).numpy())
    assert abs(standard.mean()) < 0.02
    assert abs(standard.std() - 1) < 0.02
    assert abs(np.corrcoef(standard.reshape(20, -1))[np.triu_indices(20, 1)]).max() < 0.1  # seeds
    assert abs(np.corrcoef(standard[0])[np.triu_indices(3, 1)]).max() < 0.15  # images
    # One image alone, and in another place, gets the same sample.
    assert np.array_equal(_latents(seed=3).encode(images[1:2])[0], samples[3, 1])


@pytest.mark.usefixtures("diffusers")
def test_latent_caches_are_kept_apart_by_seed_and_sampling(tmp_path: Path) -> None:
    encoders = [_latents(seed=0), _latents(seed=1), _latents(sampling="mean"), _latents(size=64)]
    assert len({encoder.fingerprint for encoder in encoders}) == 4
    assert _latents(sampling="mean", seed=7).fingerprint == encoders[2].fingerprint
    assert [encoder.name for encoder in encoders[:3]] == ["vae:some/vae+sample(seed=0)", "vae:some/vae+sample(seed=1)", "vae:some/vae+mean"]
    rows = [image_features(encoder, IMAGES, cache_dir=tmp_path, progress=False) for encoder in encoders]
    assert rows[3].shape == (3, 256)
    assert not np.array_equal(rows[0], rows[1])
    assert len(list(tmp_path.iterdir())) == 4
    for encoder, expected in zip(encoders, rows):
        assert isinstance(encoder, ImageEncoder)
        assert np.array_equal(image_features(encoder, IMAGES, cache_dir=tmp_path, progress=False), expected)


@pytest.mark.usefixtures("diffusers")
def test_brain_hive_with_an_autoencoder(tmp_path: Path) -> None:
    def target(**options: Any) -> Any:
        encoders = {"autoencoder": "vae:some/vae", "self_supervised": ColourGrid(), "image_text": ColourGrid(scale=1.0)}
        return visual_target("brain-hive", encoders=encoders, device="cpu", **options)

    first, second, mean = target(seed=0), target(seed=1), target(seed=1, latents="mean")
    assert (first.dims["autoencoder"], first.seed, second.seed, mean.seed) == (1024, 0, 1, None)
    assert len({t.manifest["hash"] for t in (first, second, mean)}) == 3
    arrays = [t.compute(IMAGES, cache_dir=tmp_path, progress=False) for t in (first, second, mean)]
    # A part has the published name where the published encoder is loaded, and its role's where not.
    published = visual_target("brain-hive", base_encoder=ColourGrid(), encoders={"autoencoder": "vae:stabilityai/sdxl-vae"}, device="cpu")
    assert list(published.parts) == ["self_supervised", "image_text", "sdxl_vae"]
    assert published.stand_in
    assert np.array_equal(arrays[0]["image_text"], arrays[1]["image_text"])
    assert not np.array_equal(arrays[0]["autoencoder"], arrays[1]["autoencoder"])
    np.testing.assert_array_equal(arrays[0]["autoencoder"], _latents(seed=0).encode([Image.fromarray(p) for p in IMAGES]))


@pytest.mark.usefixtures("diffusers")
def test_autoencoder_errors() -> None:
    with pytest.raises(EncoderUnavailableError, match="hf download nobody/nothing --revision abc"):
        load_latent_encoder("vae:nobody/nothing@abc", device="cpu")
    with pytest.raises(ValueError, match="unknown autoencoder 'hf:x/y'"):
        load_latent_encoder("hf:x/y")
    with pytest.raises(ValueError, match="unknown sampling 'mode' of latents"):
        _latents(sampling="mode")
    with pytest.raises(ValueError, match="seed is a whole number from 0"):
        _latents(seed=-1)


def test_missing_diffusers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(EncoderUnavailableError, match=r"needs diffusers: pip install 'decodehub\[edit\]'"):
        load_latent_encoder()


# --------------------------------------------------------------------------------------------------------------------------- processes


def test_two_processes_give_the_target_of_one(tmp_path: Path, launch_two: Any) -> None:
    images = [*IMAGES, IMAGES[0][::-1].copy(), IMAGES[1][::-1].copy()]
    expected = _grid("neurobridge", seed=2).compute(images, progress=False)["image"]

    def work() -> None:
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        rows = _grid("neurobridge", seed=2).compute(images, accelerator=accelerator, cache_dir=tmp_path / "cache", progress=False)["image"]
        np.save(tmp_path / f"{accelerator.process_index}.npy", rows)

    launch_two(work)
    assert all(np.array_equal(np.load(tmp_path / f"{rank}.npy"), expected) for rank in (0, 1))
