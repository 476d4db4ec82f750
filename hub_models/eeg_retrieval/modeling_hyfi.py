"""HyFI: EEG meets, in hyperbolic space, a point between a semantic and a perceptual feature of the image."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .base import EEGRetrievalModel
from .blocks import EEGProject
from .configuration_hyfi import HyFIConfig
from .hyperbolic import exp_map0, geodesic, lorentz_distance


class VisualInterpolation(nn.Module):
    """Two linear maps, and a gate on the raw semantic feature that says how far to go from the semantic to the perceptual point."""

    def __init__(self, image_dim: int, dim: int) -> None:
        super().__init__()
        self.semantic = nn.Linear(image_dim, dim)
        self.perceptual = nn.Linear(image_dim, dim)
        self.gate = nn.Linear(image_dim, 1)

    def forward(self, semantic: Tensor, perceptual: Tensor, alpha: float, curvature: Tensor) -> Tensor:
        """Space coordinates (g, D) float32, from raw features (g, image_dim) each; only the semantic one is L2-normalised."""
        share = self.gate(semantic).sigmoid().float()
        p = self.semantic(nn.functional.normalize(semantic.float(), dim=-1).to(semantic.dtype))
        q = self.perceptual(perceptual)
        # Hyperbolic maps lose too much in half precision.
        with torch.autocast(p.device.type, enabled=False):
            start, end = exp_map0(alpha * p.float(), curvature), exp_map0(alpha * q.float(), curvature)
            return geodesic(start, end, share, curvature)


class HyFIModel(EEGRetrievalModel):
    """EEG (b, 17, 250) to (b, 1024), RN50 features "semantic" and "perceptual" (g, 1024) to (g, 1024); points of a Lorentz sheet.

    ``eeg_embeds`` and ``image_embeds`` are the space coordinates in float32; ``score`` is minus their distance, with the learned
    curvature (:attr:`curvature`), ``logits_per_eeg`` minus that of the loss, scaled. 7,504,899 parameters: EEG encoder 5,404,672, image
    side 2,100,225, curvature and EEG scale. Source: S. Jo et al., AAAI 2026 (arXiv 2603.22721).
    """

    config_class = HyFIConfig
    similarity = "minus Lorentz distance"

    def __init__(self, config: HyFIConfig) -> None:
        super().__init__(config)
        self.eeg_encoder = EEGProject(config.n_channels, config.n_times, config.embed_dim, config.dropout)
        self.image_encoder = VisualInterpolation(config.image_dim, config.embed_dim)
        self.log_curvature = nn.Parameter(torch.empty(()))
        self.log_eeg_alpha = nn.Parameter(torch.empty(()))
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, HyFIModel):
            alpha = self.config.eeg_alpha_init
            init.constant_(module.log_curvature, math.log(self.config.curvature_init))
            init.constant_(module.log_eeg_alpha, -0.5 * math.log(self.config.embed_dim) if alpha is None else math.log(alpha))

    @property
    def curvature(self) -> Tensor:
        """The learned c > 0, a scalar."""
        return self.log_curvature.float().exp()

    def _encode_eeg(self, eeg: Tensor, subject: int | Tensor | None) -> Tensor:
        x = self.eeg_encoder(eeg)
        with torch.autocast(x.device.type, enabled=False):
            return exp_map0(self.log_eeg_alpha.float().exp() * x.float(), self.curvature)

    def _encode_images(self, branches: dict[str, Tensor]) -> Tensor:
        semantic, perceptual = branches["semantic"].to(self.dtype), branches["perceptual"].to(self.dtype)
        return self.image_encoder(semantic, perceptual, self.config.visual_alpha, self.curvature)

    def get_logits(self, eeg_embeds: Tensor, image_embeds: Tensor) -> Tensor:
        """-``loss_scale`` times the distance under ``loss_curvature``: (b, D), (g, D) to (b, g) float32."""
        fixed = self.config.loss_curvature
        with torch.autocast(eeg_embeds.device.type, enabled=False):
            distance = lorentz_distance(eeg_embeds.float(), image_embeds.float(), self.curvature if fixed is None else fixed)
            return -self.config.loss_scale * distance

    def score(self, eeg_embeds: Tensor, image_embeds: Tensor) -> Tensor:
        """Minus the Lorentz distance under the learned curvature.

        Args:
            eeg_embeds: (b, D) from :meth:`get_eeg_features`.
            image_embeds: (g, D) from :meth:`get_image_features`.

        Returns:
            (b, g) float32, at most 0; computed in float64 where the device has it, so that near points are told apart.
        """
        dtype = torch.float32 if eeg_embeds.device.type == "mps" else torch.float64
        with torch.autocast(eeg_embeds.device.type, enabled=False):
            return -lorentz_distance(eeg_embeds.to(dtype), image_embeds.to(dtype), self.curvature.to(dtype)).float()


__all__ = ["HyFIModel", "VisualInterpolation"]
