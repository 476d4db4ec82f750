"""Latents of an image autoencoder (SDXL-VAE) as features: the third visual branch of Brain-HIVE.

    encoder = load_latent_encoder("vae:stabilityai/sdxl-vae", seed=0)
    features = image_features(encoder, paths, cache_dir="cache")     # (n, 1024): 4 x 16 x 16, flattened

The encoder half gives a mean and a variance of every latent, and Brain-HIVE takes one sample of it. The noise is drawn from the seed and
the resized image; the seed is in the fingerprint, so caches are kept apart by seed (EEG-EditBench, "Computing and caching").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from decodehub.core.files import sha256_json

from .frozen_encoder import EncoderUnavailableError, FrozenEncoder
from .image_transforms import PixelTransform, check_seed, content_generator, shorter_side

SDXL_VAE = "vae:stabilityai/sdxl-vae"
LATENT_SIZE = 128
SAMPLING = ("sample", "mean")
# diffusers bounds the log variance so.
LOG_VARIANCE = (-30.0, 20.0)


@dataclass
class LatentEncoder:
    """Scaled latents of a frozen autoencoder, sampled with a seed or their mean; implements :class:`ImageEncoder`.

    Attributes:
        moments: the frozen encoder of means and log variances, (n, 2 d).
        resize: the pixel transform in front of it; its output also determines the noise.
        scale: what latents are multiplied by (.13025 for SDXL).
        sampling: ``"sample"`` (Brain-HIVE) or ``"mean"``, which needs no seed.
        seed: of the noise; None for the mean.
        name, dim, licence, preprocessing: as for every encoder.
    """

    moments: FrozenEncoder
    resize: PixelTransform
    scale: float
    sampling: str = "sample"
    seed: int | None = 0
    name: str = field(init=False)
    dim: int = field(init=False)
    licence: str = field(init=False)
    preprocessing: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        if self.sampling not in SAMPLING:
            raise ValueError(f"unknown sampling {self.sampling!r} of latents: expected one of {', '.join(SAMPLING)}")
        self.seed = check_seed(self.seed if self.seed is not None else 0) if self.random else None
        self.name = f"{self.moments.name}+{f'sample(seed={self.seed})' if self.random else 'mean'}"
        self.dim = self.moments.dim // 2
        self.licence = self.moments.licence
        self.preprocessing = {
            **self.moments.preprocessing,
            "latents": {"sampling": self.sampling, "seed": self.seed, "scale": self.scale, "version": 1},
        }

    @property
    def random(self) -> bool:
        """Whether the features depend on the seed."""
        return self.sampling == "sample"

    @property
    def fingerprint(self) -> str:
        """Hash of weights, resize, scale, sampling and seed."""
        return sha256_json({"moments": self.moments.fingerprint, "latents": self.preprocessing["latents"]})

    def to(self, device: torch.device | str) -> LatentEncoder:
        """Move the network to `device` and return self."""
        self.moments.to(device)
        return self

    def preprocess(self, image: Image.Image) -> Tensor:
        """One image to the network's input, float32 (3, h, w) in -1..1."""
        return self.moments.preprocess(image)

    def encode(self, images: Sequence[Image.Image]) -> np.ndarray:
        """8-bit RGB images to latents (n, d), float32; row order is channel, row, column of the latent."""
        mean, log_variance = np.split(self.moments.encode(images), 2, axis=1)
        if not self.random:
            return np.ascontiguousarray(mean * np.float32(self.scale))
        assert self.seed is not None
        noise = [content_generator("latents", self.seed, self.resize(_pixels(image))) for image in images]
        standard = np.stack([generator.standard_normal(self.dim, dtype=np.float32) for generator in noise])
        return (mean + np.exp(0.5 * np.clip(log_variance, *LOG_VARIANCE)) * standard) * np.float32(self.scale)


class _Moments(nn.Module):
    """The encoding half of a diffusers autoencoder: means and log variances, (n, 2 c, h, w)."""

    def __init__(self, vae: nn.Module) -> None:
        super().__init__()
        self.encoder = vae.encoder
        self.quant_conv = getattr(vae, "quant_conv", None) or nn.Identity()

    def forward(self, batch: Tensor) -> Tensor:
        return self.quant_conv(self.encoder(batch))


def load_latent_encoder(
    id: str = SDXL_VAE, *, seed: int = 0, sampling: str = "sample", size: int = LATENT_SIZE, device: str | torch.device | None = None
) -> LatentEncoder:
    """Load the encoding half of an autoencoder through diffusers, in float32 (half precision overflows in SDXL's).

    Args:
        id: ``vae:ORG/NAME[@REVISION]`` or ``vae:FOLDER`` of a diffusers ``AutoencoderKL``.
        seed: of the sampling.
        sampling: ``"sample"`` as Brain-HIVE does, or ``"mean"``, which is the same for all seeds.
        size: side of the image that is encoded; 128 gives SDXL latents of 4 x 16 x 16 = 1,024 numbers.
        device: torch device; None takes CUDA when there is one, else the CPU.

    Raises:
        ValueError: an id of another form, unknown sampling, or a negative seed.
        EncoderUnavailableError: diffusers is not installed, or the weights are not here and cannot be fetched.
    """
    kind, _, rest = id.partition(":")
    if kind != "vae" or not rest:
        raise ValueError(f"unknown autoencoder {id!r}: expected 'vae:ORG/NAME[@REVISION]' (as '{SDXL_VAE}')")
    name, _, revision = (rest, "", "") if Path(rest).is_dir() else rest.partition("@")
    try:
        from diffusers import AutoencoderKL
    except ImportError as error:
        raise EncoderUnavailableError(
            f"autoencoder {id!r} needs diffusers: pip install 'decodehub[edit]'; or leave latents out with base_encoder='lite0'"
        ) from error
    try:
        vae = AutoencoderKL.from_pretrained(name, revision=revision or None, use_safetensors=True, torch_dtype=torch.float32)
    except (OSError, ConnectionError) as error:
        pinned = f" --revision {revision}" if revision else ""
        raise EncoderUnavailableError(
            f"weights of autoencoder {id!r} are neither cached nor could they be fetched ({type(error).__name__}): run once with network "
            f"access 'hf download {name}{pinned}' (set HF_HOME or copy the cache), or use base_encoder='lite0', which needs no download"
        ) from error
    resize = shorter_side(size, "bilinear")
    where = torch.device(device) if device is not None else torch.device("cuda" if torch.cuda.is_available() else "cpu")
    moments = FrozenEncoder(
        name=id,
        licence="MIT" if name == "stabilityai/sdxl-vae" else "unknown: see the model card",
        network=_Moments(vae),
        transform=lambda image: torch.from_numpy(resize(_pixels(image)) / np.float32(127.5) - np.float32(1)).permute(2, 0, 1),
        readout=lambda network, batch: network(batch),
        architecture={"family": "diffusers AutoencoderKL", "config": _config(vae), "readout": "means and log variances"},
        preprocessing={"resize": resize.describe(), "mean": [127.5] * 3, "scale": [127.5] * 3},
        device=where,
    )
    return LatentEncoder(moments, resize, scale=float(vae.config.scaling_factor), sampling=sampling, seed=seed)


def _pixels(image: Image.Image) -> np.ndarray:
    return np.array(image if image.mode == "RGB" else image.convert("RGB"))


def _config(vae: Any) -> dict[str, Any]:
    """The shape of the network: what the weights alone do not tell, and nothing that depends on folder or version."""
    keys = ("block_out_channels", "down_block_types", "latent_channels", "layers_per_block", "norm_num_groups", "act_fn", "scaling_factor")
    values = {key: getattr(vae.config, key, None) for key in keys}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
