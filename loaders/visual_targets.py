"""The visual targets of the eight EEG-to-image models of EEG-EditBench (table S6), from images to named float32 arrays.

    target = visual_target("ubp")                                   # published weights; base_encoder="lite0" needs no download
    train = target.compute(paths, cache_dir="cache")                # {"image": (n, 3, 1024)}: low, medium, high blur
    test = target.compute(paths, cache_dir="cache", evaluation=True)  # {"image": (n, 1024)}: medium blur
    target.manifest["hash"]                                         # goes into a run's metadata

| model type | parts | encoder | in front of it | after it |
|---|---|---|---|---|
| nice, mb2c | image 768 | CLIP ViT-L/14 | | L2 |
| atm | image 1024, text 1024 | OpenCLIP ViT-H/14 | (training crop, as released) | L2 |
| ubp, ats | image 3 x 1024 | RN50 | stretch to 224, FoveaBlur of three strengths | L2 each |
| brain-hive | synclr 768, clip_b32 512, sdxl_vae 1024 | SynCLR ViT-B/16, CLIP ViT-B/32, SDXL-VAE | | |
| hyfi | semantic 1024, perceptual 1024 | RN50 | stretch to 224, FoveaBlur or Gaussian blur | |
| neurobridge | image 1024 | RN50 | stretch to 224, four degradations | their mean |

What is trained on top (projections, ATS's ShrinkAdapter, HyFI's hyperbolic maps) belongs to the models.

Where paper and released code disagree there is a setting (`SETTINGS`) with the values ``"paper"``, the default since EEG-EditBench
follows the papers' figures (S3.2), and ``"released_code"``. Features of HyFI and Brain-HIVE are float32 here, whatever the released
caches hold (float16).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from decodehub.core.files import sha256_json

from .frozen_encoder import EncoderUnavailableError, ImageEncoder
from .image_encoders import load_encoder
from .image_features import ImageLike, image_features
from .image_transforms import (
    FOVEA_LEVELS,
    PixelTransform,
    TransformedEncoder,
    check_seed,
    fovea_blur,
    gaussian_blur,
    gaussian_noise,
    jpeg_resave,
    low_resolution,
    mosaic,
    random_resized_crop,
    shorter_side,
    stretch,
)
from .text_encoders import TextEncoder, load_text_encoder, text_features
from .vae_encoder import LATENT_SIZE, SDXL_VAE, LatentEncoder, load_latent_encoder

VERSION = 1
PUBLISHED = "published"
_CLIP_L, _CLIP_H, _RN50 = "hf:openai/clip-vit-large-patch14", "open_clip:ViT-H-14/laion2b_s32b_b79k", "open_clip:RN50/openai"
# Model type to {role of an encoder: published weights}.
ENCODERS: dict[str, dict[str, str]] = {
    "nice": {"image": _CLIP_L},
    "mb2c": {"image": _CLIP_L},
    "atm": {"image": _CLIP_H},
    "ubp": {"image": _RN50},
    "ats": {"image": _RN50},
    "brain-hive": {
        "self_supervised": "synclr:ViT-B-16",
        "image_text": "hf:laion/CLIP-ViT-B-32-laion2B-s34B-b79K",
        "autoencoder": SDXL_VAE,
    },
    "hyfi": {"image": _RN50},
    "neurobridge": {"image": _RN50},
}
# What Brain-HIVE's configuration calls its branches; a part goes by its role instead where another encoder stands in.
_BRANCHES = {"self_supervised": "synclr", "image_text": "clip_b32", "autoencoder": "sdxl_vae"}
_BLUR_SETTINGS: dict[str, tuple[str, ...]] = {
    # Kernel sizes 45/51/57 or, by a defect of the released code, 45/45/51.
    "blur_levels": ("paper", "released_code"),
    # released_code: the resized image goes through a JPEG file of quality 75 first, a step that the papers do not mention.
    "resave": ("paper", "released_code"),
}
# Model type to {setting: allowed values, the default first}.
SETTINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "nice": {},
    "mb2c": {},
    "atm": {
        # released_code: images are encoded through OpenCLIP's training crop, at random (here seeded); paper: its evaluation transform.
        "image_transform": ("paper", "released_code"),
        # released_code: names keep the underscores of their folders ("aircraft_carrier"); spaces: words.
        "text_names": ("released_code", "spaces"),
    },
    "ubp": _BLUR_SETTINGS,
    "ats": _BLUR_SETTINGS,
    # One seeded sample of the latents (paper and code), or their mean, which is the same for all seeds.
    "brain-hive": {"latents": ("sample", "mean")},
    "hyfi": {},
    "neurobridge": {},
}


@dataclass(frozen=True)
class TargetPart:
    """One named array of a visual target.

    Attributes:
        encoders: what it is computed from.
        reduction: ``"single"`` (one encoder), ``"levels"`` (one row an encoder, stacked) or ``"mean"`` (over the encoders).
        normalisation: ``"l2"`` (every vector to length 1) or ``"none"``.
        levels: names of the levels, for ``"levels"``.
    """

    encoders: tuple[ImageEncoder, ...]
    reduction: str = "single"
    normalisation: str = "none"
    levels: tuple[str, ...] = ()

    @property
    def dim(self) -> int:
        """Length d of a feature vector."""
        return self.encoders[0].dim


@dataclass(frozen=True)
class TextPart:
    """ATM's text target: the text embedding of ``This picture is NAME``, scaled to length 1."""

    encoder: TextEncoder
    names: str

    def prompts(self, concepts: Sequence[str]) -> list[str]:
        """A prompt for each concept; the number in front of a folder name (``00001_aircraft_carrier``) is left out."""
        names = [re.sub(r"^\d+_", "", str(concept)) for concept in concepts]
        return [f"This picture is {name if self.names == 'released_code' else name.replace('_', ' ')}" for name in names]


@dataclass(frozen=True)
class VisualTarget:
    """What a model's EEG embeddings are trained towards; made by :func:`visual_target`.

    Attributes:
        model_type: one of `ENCODERS`.
        parts: named image parts, in the order of the published configuration.
        text: the text part of ATM, else None.
        settings: the named settings in force.
        seed: the seed, where anything is random; else None, and features are the same for all seeds.
        stand_in: whether any encoder is not the published one.
    """

    model_type: str
    parts: Mapping[str, TargetPart]
    text: TextPart | None
    settings: Mapping[str, str]
    seed: int | None
    stand_in: bool

    @property
    def dims(self) -> dict[str, int]:
        """Length of a feature vector of each part."""
        dims = {name: part.dim for name, part in self.parts.items()}
        return dims if self.text is None else {**dims, "text": self.text.encoder.dim}

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """All that decides the arrays, JSON values only. ``hash`` covers weights, preprocessing, settings and seed, but no names or folders."""
        parts = {name: _describe(part.encoders, part.reduction, part.normalisation, part.levels) for name, part in self.parts.items()}
        if self.text is not None:
            parts["text"] = _describe((self.text.encoder,), "single", "l2", ())
        decisive = {
            "version": VERSION,
            "model_type": self.model_type,
            "settings": dict(self.settings),
            "seed": self.seed,
            "parts": {name: {**part, "encoders": [e["fingerprint"] for e in part["encoders"]]} for name, part in parts.items()},
        }
        return {**decisive, "parts": parts, "stand_in": self.stand_in, "hash": sha256_json(decisive)}

    def compute(
        self,
        images: Sequence[ImageLike],
        *,
        concepts: Sequence[str] | None = None,
        evaluation: bool = False,
        cache_dir: Path | str | None = None,
        accelerator: Any | None = None,
        batch_size: int = 32,
        progress: bool = True,
        ids: Sequence[str] | None = None,
    ) -> dict[str, np.ndarray]:
        """The target of each image; the arguments not named here are those of :func:`image_features`.

        Args:
            images: n images.
            concepts: n names of concepts or of their folders, for a text part.
            evaluation: give what tests rank: of several blur levels only the medium one, and no text.

        Returns:
            Float32 arrays (n, d) by name of part; (n, 3, d) for low, medium and high blur in training.

        Raises:
            ValueError: there is a text part and no concepts, or not n; and as :func:`image_features`, with its other errors.
        """
        if self.text is not None and not evaluation and (concepts is None or isinstance(concepts, str) or len(concepts) != len(images)):
            found = "none" if concepts is None else repr(concepts) if isinstance(concepts, str) else f"{len(concepts)}"
            raise ValueError(f"{self.model_type} has a text part: expected concepts=, one name an image ({len(images)}), found {found}")
        known: dict[str, np.ndarray] = {}

        def features(encoder: ImageEncoder) -> np.ndarray:
            if encoder.fingerprint not in known:
                if accelerator is not None and hasattr(encoder, "to"):
                    encoder.to(accelerator.device)
                known[encoder.fingerprint] = image_features(
                    encoder,
                    images,
                    cache_dir=cache_dir,
                    batch_size=batch_size,
                    accelerator=accelerator,
                    progress=progress,
                    ids=ids,
                )
            return known[encoder.fingerprint]

        arrays = {name: _reduce(part, features, evaluation) for name, part in self.parts.items()}
        if self.text is not None and not evaluation:
            assert concepts is not None
            if accelerator is not None:
                self.text.encoder.to(accelerator.device)
            write = accelerator is None or accelerator.is_main_process
            rows = text_features(self.text.encoder, self.text.prompts(concepts), cache_dir=cache_dir, write=write)
            arrays["text"] = _unit(rows, "text")
        return arrays


def visual_target(
    model_type: str,
    *,
    base_encoder: str | ImageEncoder = PUBLISHED,
    encoders: Mapping[str, str | ImageEncoder] | None = None,
    text: str | TextEncoder = PUBLISHED,
    seed: int = 0,
    device: Any | None = None,
    **settings: str,
) -> VisualTarget:
    """The visual target of one of the eight models.

    Args:
        model_type: ``nice``, ``mb2c``, ``atm``, ``ubp``, ``ats``, ``brain-hive``, ``hyfi`` or ``neurobridge``.
        base_encoder: ``"published"`` loads the published weights. An id of :func:`load_encoder`, or an encoder, takes their place everywhere,
            behind the same transforms: ``"lite0"`` needs no download (every part then has 1,280 numbers) and is marked as a stand-in.
            Brain-HIVE's three branches are then that encoder on the whole image twice and on the 128-pixel image of the autoencoder.
        encoders: overrides of single encoders by role: ``image``, or Brain-HIVE's ``self_supervised``, ``image_text``, ``autoencoder``
            (whose parts then go by the role instead of ``synclr``, ``clip_b32``, ``sdxl_vae``).
        text: ATM's text encoder: ``"published"``, an id of :func:`load_text_encoder`, an encoder, or ``"none"`` to leave the text part out.
            There is no stand-in for text: together with another `base_encoder` it has to be given.
        seed: of noise, random crops and latent samples; targets without any are the same for all seeds.
        device: torch device of the encoders; None takes CUDA when there is one, else the CPU.
        **settings: named settings of the model (see `SETTINGS`), e.g. ``blur_levels="released_code"``.

    Raises:
        ValueError: an unknown model type, role, setting or value, a negative seed, or text for a model that has none.
        EncoderUnavailableError: weights are not here and cannot be fetched, or there is no text encoder to go with a stand-in.
    """
    if model_type not in ENCODERS:
        raise ValueError(f"unknown model type {model_type!r}: expected one of {', '.join(ENCODERS)}")
    chosen = _settings(model_type, settings)
    _check_text(model_type, text, base_encoder)
    seed = check_seed(seed)
    roles = ENCODERS[model_type]
    wanted = _wanted(model_type, base_encoder, encoders or {})
    loaded = _load(wanted, seed, chosen, device)
    parts = _PARTS[model_type](loaded, chosen, seed)
    if model_type == "brain-hive":
        parts = {_BRANCHES[role] if wanted[role] == roles[role] else role: part for role, part in parts.items()}
    random = any(getattr(encoder, "random", False) for part in parts.values() for encoder in part.encoders)
    text_part = _text_part(text, chosen, device) if model_type == "atm" else None
    return VisualTarget(
        model_type=model_type,
        parts=parts,
        text=text_part,
        settings=chosen,
        seed=seed if random else None,
        stand_in=wanted != dict(roles) or (text_part is not None and text not in (PUBLISHED, _CLIP_H)),
    )


def _settings(model_type: str, given: Mapping[str, str]) -> dict[str, str]:
    allowed = SETTINGS[model_type]
    for name, value in given.items():
        if name not in allowed:
            raise ValueError(f"{model_type} has no setting {name!r}: expected {', '.join(allowed) or 'none'}")
        if value not in allowed[name]:
            raise ValueError(f"{model_type}: {name} is {value!r}, expected one of {', '.join(allowed[name])}")
    return {name: given.get(name, values[0]) for name, values in allowed.items()}


def _check_text(model_type: str, text: str | TextEncoder, base_encoder: str | ImageEncoder) -> None:
    if model_type != "atm" and text not in (PUBLISHED, "none"):
        raise ValueError(f"{model_type} has no text target: text= is for atm")
    if model_type == "atm" and text == PUBLISHED and base_encoder != PUBLISHED:
        raise EncoderUnavailableError(
            f"atm's text target has no stand-in: with base_encoder={_name(base_encoder)!r} pass text='none' to train on images alone, "
            f"or the id of a text encoder (the published one is {_CLIP_H!r})"
        )


def _wanted(
    model_type: str, base_encoder: str | ImageEncoder, overrides: Mapping[str, str | ImageEncoder]
) -> dict[str, str | ImageEncoder]:
    """The encoder of each role, by id or itself."""
    roles = ENCODERS[model_type]
    if unknown := sorted(set(overrides) - set(roles)):
        raise ValueError(f"{model_type} has no encoder {unknown[0]!r}: expected {', '.join(roles)}")
    return {role: overrides.get(role, published if base_encoder == PUBLISHED else base_encoder) for role, published in roles.items()}


def _text_part(text: str | TextEncoder, settings: Mapping[str, str], device: Any | None) -> TextPart | None:
    if text == "none":
        return None
    encoder = load_text_encoder(_CLIP_H if text == PUBLISHED else text, device) if isinstance(text, str) else text
    return TextPart(encoder, settings["text_names"])


def _load(wanted: Mapping[str, str | ImageEncoder], seed: int, settings: Mapping[str, str], device: Any | None) -> dict[str, ImageEncoder]:
    """The encoders by role; an id that stands for several roles is loaded once."""
    by_id: dict[str, ImageEncoder] = {}
    loaded: dict[str, ImageEncoder] = {}
    for role, encoder in wanted.items():
        if isinstance(encoder, str) and encoder not in by_id:
            by_id[encoder] = (
                load_latent_encoder(encoder, seed=seed, sampling=settings.get("latents", "sample"), device=device)
                if encoder.startswith("vae:")
                else load_encoder(encoder, device)
            )
        loaded[role] = by_id[encoder] if isinstance(encoder, str) else encoder
    return loaded


def _name(encoder: str | ImageEncoder) -> str:
    return encoder if isinstance(encoder, str) else encoder.name


# ----------------------------------------------------------------------------------------------------------------- the parts of each model


def _clip_image(loaded: Mapping[str, ImageEncoder], settings: Mapping[str, str], seed: int) -> dict[str, TargetPart]:
    """NICE and MB2C (2.1, 2.2), ATM (2.3): the image embedding, scaled to length 1."""
    transforms = [random_resized_crop(seed)] if settings.get("image_transform") == "released_code" else []
    return {"image": TargetPart((_behind(transforms, loaded["image"]),), normalisation="l2")}


def _three_blurs(loaded: Mapping[str, ImageEncoder], settings: Mapping[str, str], seed: int) -> dict[str, TargetPart]:
    """UBP and ATS: three strengths of FoveaBlur, each scaled to length 1 as UBP's cache holds them."""
    resize = [stretch(224, "bilinear"), *([jpeg_resave(75)] if settings["resave"] == "released_code" else [])]
    levels = FOVEA_LEVELS[settings["blur_levels"]]
    blurred = tuple(_behind([*resize, fovea_blur(k, 3.0)], loaded["image"]) for k in levels.values())
    return {"image": TargetPart(blurred, "levels", "l2", tuple(levels))}


def _brain_hive(loaded: Mapping[str, ImageEncoder], settings: Mapping[str, str], seed: int) -> dict[str, TargetPart]:
    """Brain-HIVE: three branches as they come."""
    latent = loaded["autoencoder"]
    if not isinstance(latent, LatentEncoder):  # a stand-in sees the pixels that the autoencoder would
        latent = _behind([shorter_side(LATENT_SIZE, "bilinear")], latent)
    return {
        "self_supervised": TargetPart((loaded["self_supervised"],)),
        "image_text": TargetPart((loaded["image_text"],)),
        "autoencoder": TargetPart((latent,)),
    }


def _hyfi(loaded: Mapping[str, ImageEncoder], settings: Mapping[str, str], seed: int) -> dict[str, TargetPart]:
    """HyFI: semantic (FoveaBlur 51) and perceptual (Gaussian 31), both as they come."""
    resize = stretch(224, "bicubic")
    return {
        "semantic": TargetPart((_behind([resize, fovea_blur(51, 3.0)], loaded["image"]),)),
        "perceptual": TargetPart((_behind([resize, gaussian_blur(31)], loaded["image"]),)),
    }


def _neurobridge(loaded: Mapping[str, ImageEncoder], settings: Mapping[str, str], seed: int) -> dict[str, TargetPart]:
    """NeuroBridge: the mean of the features of four degraded images, for training and test alike."""
    resize = stretch(224, "bicubic")
    degradations = (gaussian_blur(15), gaussian_noise(25.0, seed), low_resolution(0.1), mosaic(5))
    return {"image": TargetPart(tuple(_behind([resize, step], loaded["image"]) for step in degradations), "mean")}


_PARTS = {
    "nice": _clip_image,
    "mb2c": _clip_image,
    "atm": _clip_image,
    "ubp": _three_blurs,
    "ats": _three_blurs,
    "brain-hive": _brain_hive,
    "hyfi": _hyfi,
    "neurobridge": _neurobridge,
}


def _behind(transforms: Sequence[PixelTransform], encoder: ImageEncoder) -> ImageEncoder:
    return TransformedEncoder(encoder, transforms) if transforms else encoder


# ---------------------------------------------------------------------------------------------------------------------------- arithmetic


def _reduce(part: TargetPart, features: Callable[[ImageEncoder], np.ndarray], evaluation: bool) -> np.ndarray:
    """The array of one part, float32."""
    if part.reduction == "mean":
        rows = np.stack([features(encoder) for encoder in part.encoders]).mean(axis=0, dtype=np.float32)
        return _unit(rows, "features") if part.normalisation == "l2" else rows
    used = part.encoders
    if part.levels and evaluation:
        used = (part.encoders[part.levels.index("medium")],)
    each = [_unit(features(encoder), encoder.name) if part.normalisation == "l2" else features(encoder) for encoder in used]
    return each[0] if len(used) == 1 else np.stack(each, axis=1)


def _unit(rows: np.ndarray, name: str) -> np.ndarray:
    """Rows (n, d) scaled to length 1. Raises ValueError for a row of zeros."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not lengths.all():
        raise ValueError(f"{name}: row {int(np.argmin(lengths))} is all zeros and has no direction")
    return rows / lengths


def _describe(encoders: Sequence[ImageEncoder | TextEncoder], reduction: str, normalisation: str, levels: Sequence[str]) -> dict[str, Any]:
    return {
        "dim": encoders[0].dim,
        "reduction": reduction,
        "normalisation": normalisation,
        "levels": list(levels),
        "encoders": [
            {"name": e.name, "fingerprint": e.fingerprint, "licence": e.licence, "preprocessing": e.preprocessing} for e in encoders
        ],
    }
