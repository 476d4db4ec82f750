"""Conventional measures of reconstructions by name, and their values for any number of pairs of images.

``mse``, ``psnr``, ``ssim``, ``ssim-gaussian``, ``edge-cosine`` and ``color-histogram`` look at pixels; ``lpips`` and ``dists`` need
their packages; ``cosine:ENCODER`` is the cosine of the features of any encoder that BCS can load (``lite0``, ``hf:ORG/NAME[@REVISION]``), for which
`ALIASES` has names, and ``two-way:ENCODER`` their two-way identification. ImageSource: Tiwari et al. 2026, arXiv 2607.12364, tables 1, 2 and 12, and the released code.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from decodehub.core.jobs import map_threads
from decodehub.core.statistics import ROUNDING, ROUNDING_32, settled
from decodehub.hub_models.bcs.encoders import load_encoder
from decodehub.loaders.images import ImageSource

from .networks import DISTANCES, distances, fingerprint, load_distance
from .pixels import SIDE, color_histogram, edge_cosine, fit, mse, pixel_correlation, psnr, ssim

INPUT_RANGES = ("documented", "released_code")
PIXEL: dict[str, tuple[bool, Callable[[np.ndarray, np.ndarray], float]]] = {  # whether larger is better, and what computes it
    "mse": (False, mse),
    "psnr": (True, psnr),
    "ssim": (True, ssim),
    "ssim-gaussian": (True, lambda x, y: ssim(x, y, "gaussian11")),
    "edge-cosine": (True, edge_cosine),
    "color-histogram": (True, color_histogram),
    "pixel-correlation": (True, pixel_correlation),
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
    """Values of one measure: (n,) float64, NaN where it is not defined for the reference; whether larger is better; what else decides them, JSON values."""

    values: np.ndarray
    higher_is_better: bool
    settings: dict[str, Any]


def check_measure(name: str) -> str:
    """The full name of a measure.

    Raises:
        ValueError: there is no such measure.
    """
    full = ALIASES.get(name, name)
    kind, _, encoder = full.partition(":")
    if full in PIXEL or full in DISTANCES or (kind in OF_FEATURES and encoder):
        return full
    known = ", ".join([*PIXEL, *DISTANCES, *ALIASES])
    raise ValueError(f"measure {name!r} is unknown: expected one of {known}, or {' or '.join(f'{k}:ENCODER' for k in OF_FEATURES)}")


def measure(
    names: Sequence[str],
    references: Sequence[ImageSource],
    reconstructions: Sequence[ImageSource],
    *,
    input_range: str = "documented",
    device: Any = "cpu",
    batch_size: int = 32,
    progress: bool = False,
    networks: dict[str, Any] | None = None,
) -> dict[str, Values]:
    """Values of measures for pairs of images. Each distinct image is encoded once; pixels are computed over threads.

    Args:
        names: of measures; each key of the result is as it was given.
        references, reconstructions: n images each.
        input_range: of LPIPS and DISTS, ``"documented"`` or ``"released_code"``; see `networks.distances`.
        device, batch_size: for networks.
        progress: show bars.
        networks: loaded networks by name of the distance or encoder, to be kept from call to call; filled here.

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
    if input_range not in INPUT_RANGES:
        raise ValueError(f"input_range is {input_range!r}, expected one of {', '.join(INPUT_RANGES)}")
    pairs = list(zip(references, reconstructions))
    found: dict[str, Values] = {}
    plain = sorted({f for f in full.values() if f in PIXEL})
    table = _pixel_values(plain, pairs, progress)
    for i, name in enumerate(plain):
        found[name] = Values(table[:, i], PIXEL[name][0], {"side": SIDE})
    networks = {} if networks is None else networks
    features: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name in dict.fromkeys(f for f in full.values() if f not in PIXEL):
        kind, _, encoder = name.partition(":")
        network = encoder or name
        if network not in networks:
            networks[network] = _load_network(network).to(device)
        if name in DISTANCES:
            found[name] = _distances(name, networks[name], pairs, input_range, device, batch_size, progress)
            continue
        if encoder not in features:
            features[encoder] = _features(encoder, networks[encoder], pairs, batch_size, progress)
        settings = {"encoder": encoder, "fingerprint": networks[encoder].fingerprint, "revision": networks[encoder].revision}
        found[name] = Values(OF_FEATURES[kind](*features[encoder]), True, settings)
    return {name: found[f] for name, f in full.items()}


def fitted_pairs(pairs: Sequence[tuple[ImageSource, ImageSource]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
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


def _pixel_values(names: Sequence[str], pairs: Sequence[tuple[ImageSource, ImageSource]], progress: bool) -> np.ndarray:
    out = np.empty((len(pairs), len(names)))
    if not names:
        return out
    order = sorted(range(len(pairs)), key=lambda i: pairs[i][0].digest)  # equal references are neighbours
    ready = zip(order, fitted_pairs([pairs[i] for i in order]))
    done = map_threads(lambda item: (item[0], pixel_values(names, *item[1])), ready)
    for i, values in tqdm(done, total=len(pairs), desc="pixels", unit="pair", disable=not progress):
        out[i] = values
    return out


def cosines(references: np.ndarray, reconstructions: np.ndarray) -> np.ndarray:
    """(n,) cosines of the rows of two (n, d) arrays, float64; NaN for a reference of zeros, -1, the worst, for a reconstruction of zeros alone."""
    a, b = references.astype(np.float64), reconstructions.astype(np.float64)
    norms = np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosine = (a * b).sum(1) / (norms[0] * norms[1])
    return np.where(norms[0] == 0, np.nan, np.where(norms[1] == 0, -1.0, cosine))


def two_way(references: np.ndarray, reconstructions: np.ndarray) -> np.ndarray:
    """Two-way identification: the share of the other references that correlate less with a reconstruction than its own does; chance .5.

    Pearson's r over features, as in the field (Ozcelik and VanRullen 2023; Scotti et al. 2023). A tie (up to rounding) counts one half. References
    with equal features are one.

    Args:
        references, reconstructions: (n, d), row i of both is pair i.

    Returns:
        (n,) float64; NaN with fewer than two different references, and for a reference whose features are constant, which is no other's alternative;
        0, the worst, for a reconstruction whose features are constant.
    """
    distinct, own = np.unique(references, axis=0, return_inverse=True)
    (left, usable), (right, made) = _unit_rows(distinct), _unit_rows(reconstructions)
    own = own.ravel()
    if usable.sum() < 2:
        return np.full(len(references), np.nan)
    r = right @ left.T
    gap = settled(r - r[np.arange(len(r)), own][:, None], 1.0)[:, usable]  # correlations are at most 1
    share = ((gap < 0).sum(1) + 0.5 * (gap == 0).sum(1) - 0.5) / (usable.sum() - 1)
    return np.where(usable[own], np.where(made, share, 0.0), np.nan)


def _unit_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(n, d) rows without their mean and of length 1, and (n,) which of them are not constant up to rounding."""
    centred = rows.astype(np.float64) - rows.mean(axis=1, keepdims=True, dtype=np.float64)
    norms = np.linalg.norm(centred, axis=1, keepdims=True)
    varies = norms > (ROUNDING if rows.dtype == np.float64 else ROUNDING_32) * np.linalg.norm(
        rows.astype(np.float64), axis=1, keepdims=True
    )
    return np.divide(centred, norms, out=np.zeros_like(centred), where=varies), varies[:, 0]


# What is made of the features of an encoder, of the references and of the reconstructions, (n, d) each.
OF_FEATURES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {"cosine": cosines, "two-way": two_way}


def _load_network(name: str) -> Any:
    if name in DISTANCES:
        return load_distance(name)
    return load_encoder(name)


def _features(
    encoder_id: str, encoder: Any, pairs: Sequence[tuple[ImageSource, ImageSource]], batch_size: int, progress: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Features of references and of reconstructions, (n, d) float32 each."""
    distinct = {source.digest: source for pair in pairs for source in pair}
    place = {digest: i for i, digest in enumerate(distinct)}
    features = np.empty((len(distinct), encoder.dim), dtype=np.float32)
    with tqdm(total=len(distinct), desc=encoder_id, unit="image", disable=not progress) as bar:
        for start in range(0, len(distinct), batch_size):
            images = [source.load() for source in itertools.islice(distinct.values(), start, start + batch_size)]
            features[start : start + len(images)] = encoder.encode(images)
            bar.update(len(images))
    left, right = (features[[place[pair[side].digest] for pair in pairs]] for side in (0, 1))
    return left, right


def _distances(
    name: str, model: Any, pairs: Sequence[tuple[ImageSource, ImageSource]], input_range: str, device: Any, batch_size: int, progress: bool
) -> Values:
    import torch

    values: list[float] = []
    with torch.inference_mode(), tqdm(total=len(pairs), desc=name, unit="pair", disable=not progress) as bar:
        for batch in _batches(fitted_pairs(pairs), batch_size):
            x, y = (torch.from_numpy(np.stack(side)).permute(0, 3, 1, 2).to(device).float() / 255 for side in zip(*batch))
            values += distances(name, model, x, y, input_range).double().cpu().tolist()
            bar.update(len(batch))
    return Values(np.array(values), False, {"side": SIDE, "range": input_range, "fingerprint": fingerprint(model)})


def _batches(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while batch := list(itertools.islice(items, size)):
        yield batch


def higher_is_better(column: str) -> bool | None:
    """Whether larger is better for a measure or a published column; None for another name."""
    if column in PUBLISHED_COLUMNS:
        return PUBLISHED_COLUMNS[column]
    with suppress(ValueError):
        full = check_measure(column)
        return PIXEL[full][0] if full in PIXEL else full not in DISTANCES
    return None
