"""A frozen network with its preprocessing: 8-bit RGB images in, float32 features out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from decodehub.core.files import sha256_json

# Encoders enlarge the shorter side to a few hundred pixels: a strip one pixel wide would become gigabytes.
MAX_ASPECT = 64


@runtime_checkable
class ImageEncoder(Protocol):
    """What :func:`decodehub.loaders.image_features.image_features` needs of an encoder; any object with these will do.

    Attributes:
        name: id to show to people, e.g. ``"lite0"``.
        dim: length d of a feature vector.
        licence: licence of the weights.
        preprocessing: settings of :meth:`preprocess`, JSON values only.
        fingerprint: ``"sha256:..."`` of weights, architecture and preprocessing; equal fingerprints promise equal features.
    """

    name: str
    dim: int
    licence: str
    preprocessing: dict[str, Any]

    @property
    def fingerprint(self) -> str: ...

    def preprocess(self, image: Image.Image) -> Tensor:
        """One 8-bit RGB image to a float32 tensor (3, h, w)."""
        ...

    def encode(self, images: Sequence[Image.Image]) -> np.ndarray:
        """8-bit RGB images to features (n, d), float32."""
        ...


class EncoderUnavailableError(RuntimeError):
    """The id is valid, but its weights are neither on this machine nor can they be fetched."""


@dataclass
class FrozenEncoder:
    """A network in evaluation mode with its preprocessing; implements :class:`ImageEncoder`.

    Attributes:
        name: the id it was loaded by.
        licence: licence of the weights.
        network: the torch module, float32, without gradients.
        transform: 8-bit RGB image to a float32 tensor (3, h, w).
        readout: (network, batch (n, 3, h, w)) to features (n, d).
        architecture: what the weights alone do not tell (configuration, which output is read), JSON values only.
        preprocessing: settings of `transform`, JSON values only.
        device: where the network lives.
        dim: length d of a feature vector, measured on a blank image.
    """

    name: str
    licence: str
    network: nn.Module
    transform: Callable[[Image.Image], Tensor]
    readout: Callable[[nn.Module, Tensor], Tensor]
    architecture: dict[str, Any]
    preprocessing: dict[str, Any]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dim: int = field(init=False)

    def __post_init__(self) -> None:
        self.network.eval().requires_grad_(False).float()
        self.to(self.device)
        self.dim = self.encode([Image.new("RGB", (64, 64), "gray")]).shape[1]

    @cached_property
    def fingerprint(self) -> str:
        """Hash of weights, architecture and preprocessing; independent of the name, the device and the folder of the weights."""
        return sha256_json(
            {"architecture": self.architecture, "preprocessing": self.preprocessing, "weights": hash_state_dict(self.network)}
        )

    def to(self, device: torch.device | str) -> FrozenEncoder:
        """Move the network to `device` and return self."""
        self.device = torch.device(device)
        # Convolutions run about twice as fast on CPU with channels innermost.
        self.network.to(device=self.device, memory_format=torch.channels_last)
        return self

    def preprocess(self, image: Image.Image) -> Tensor:
        """One image to the network's input, float32 (3, h, w). Raises ValueError for an image over 64 times as long as wide."""
        if max(image.size) > MAX_ASPECT * min(image.size):
            raise ValueError(f"an image of {image.width} x {image.height} pixels is too elongated for {self.name}: crop or pad it first")
        return self.transform(image if image.mode == "RGB" else image.convert("RGB"))

    def encode(self, images: Sequence[Image.Image]) -> np.ndarray:
        """Images to features (n, d), float32; on a GPU as one batch. Raises ValueError for an empty list."""
        if not len(images):
            raise ValueError(f"{self.name}: encode() got no images")
        if self.device.type == "cpu":
            rows = self._encode_on_cpu(images)
        else:
            rows = [self._forward(torch.stack([self.preprocess(image) for image in images]))]
        return np.ascontiguousarray(torch.cat(rows).float().cpu().numpy())

    def _encode_on_cpu(self, images: Sequence[Image.Image]) -> list[Tensor]:
        # One image a thread: larger batches leave the processor's cache (half the speed for lite0) and take other kernels, so that an
        # image's features would depend on its neighbours in the last bits, and with several threads an image on the machine.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with ThreadPoolExecutor(threads) as pool:
                return list(pool.map(lambda image: self._forward(self.preprocess(image)[None]), images))
        finally:
            torch.set_num_threads(threads)

    def _forward(self, batch: Tensor) -> Tensor:
        # TF32 and autotuned kernels would make features depend on the card.
        with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            return self.readout(self.network, batch.to(self.device, memory_format=torch.channels_last)).flatten(1)


def hash_state_dict(module: nn.Module) -> str:
    """``"sha256:..."`` over names, dtypes, shapes and bytes of a module's state dict, in order of the names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return "sha256:" + digest.hexdigest()
