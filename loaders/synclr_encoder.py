"""SynCLR's vision transformers (arXiv 2312.17742) as a frozen image encoder, with the preprocessing of Brain-HIVE.

The weights are on no hub that serves them by name: their authors link the files from `SOURCE`. ``synclr:ViT-B-16`` expects the file in the
folder ``weights`` of decodehub's home, ``synclr:ViT-B-16/FILE`` anywhere.
"""

from __future__ import annotations

import argparse
import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from decodehub.core.files import home

from .frozen_encoder import EncoderUnavailableError, FrozenEncoder

SOURCE = "https://github.com/google-research/syn-rep-learn/tree/main/SynCLR"
# File name and the arguments of timm's VisionTransformer.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "ViT-B-16": ("synclr_vit_b_16.pth", {"img_size": 224, "patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12}),
    "ViT-L-14": ("synclr_vit_l_14.pth", {"img_size": 224, "patch_size": 14, "embed_dim": 1024, "depth": 24, "num_heads": 16}),
}
# Those of CLIP: Brain-HIVE's build_embeddings uses them for SynCLR.
MEAN, STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]


def load_synclr(id: str, model: str, file: str, device: torch.device) -> FrozenEncoder:
    """The CLS token after the last norm; shorter side to 224 (bilinear), centre crop, CLIP's mean and SD.

    Args:
        id: what to call it.
        model: ``"ViT-B-16"`` (768 features) or ``"ViT-L-14"`` (1,024).
        file: the published ``.pth`` file, or a ``.safetensors`` file of the same weights; "" looks in decodehub's home.
        device: torch device.

    Raises:
        ValueError: an unknown model, or a file that is not one of its weights.
        EncoderUnavailableError: there is no such file; the message says where to get it.
    """
    from timm.models.vision_transformer import VisionTransformer
    from torchvision import transforms

    if model not in MODELS:
        raise ValueError(f"{id!r}: SynCLR has no model {model!r}, expected one of {', '.join(MODELS)}")
    published, shape = MODELS[model]
    path = Path(file) if file else home() / "weights" / published
    if not path.is_file():
        raise EncoderUnavailableError(
            f"weights of image encoder {id!r}: {path} does not exist. Download {published} from {SOURCE} and put it there, or name the file "
            f"('synclr:{model}/FILE'), or use 'lite0', which needs no download"
        )
    network = VisionTransformer(num_classes=0, **shape)
    try:
        network.load_state_dict(_read_weights(path))
    except (RuntimeError, AttributeError, TypeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        reason = (str(error).strip().splitlines() or [""])[0][:200]
        raise ValueError(f"{id!r}: {path} is not a file of weights of SynCLR {model}: {type(error).__name__}: {reason}") from error
    size = shape["img_size"]
    steps = [transforms.Resize(size), transforms.CenterCrop(size), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    return FrozenEncoder(
        name=id,
        licence="Apache-2.0",
        network=network,
        transform=transforms.Compose(steps),
        readout=lambda vit, batch: vit.forward_features(batch)[:, 0],
        architecture={"family": "timm VisionTransformer", **shape, "readout": "CLS token after the last norm"},
        preprocessing={"resize": "shorter side", "size": size, "resample": "PIL bilinear", "crop": "centre", "mean": MEAN, "std": STD},
        device=device,
    )


def _read_weights(path: Path) -> dict[str, Any]:
    """The state dict of the network, without the prefixes of the training code; nothing but plain values is unpickled."""
    if path.suffix == ".safetensors":
        stored: dict[str, Any] = load_file(path)
    else:
        # The file may hold the training arguments too: a Namespace is plain values.
        with torch.serialization.safe_globals([argparse.Namespace]):
            stored = torch.load(path, map_location="cpu", weights_only=True)
    weights = stored.get("model", stored)
    return {key.removeprefix("module.").removeprefix("visual."): value for key, value in weights.items()}
