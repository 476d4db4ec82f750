"""ATS, the adaptive teaching system: UBP's blur choice, and an adapter that shrinks the image features to what EEG can tell."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .base import ContrastiveModel
from .blocks import EEGProject
from .configuration_ats import ATSConfig


class TemporalAttention(nn.Module):
    """One weight a sample, softmax over time, times the epoch. All ones at the start, so that epochs are divided by T.

    Shapes: (b, C, T) to (b, C, T).
    """

    def __init__(self, n_times: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_times))

    def forward(self, eeg: Tensor) -> Tensor:
        return eeg * self.weight.softmax(dim=0)


class ShrinkAdapter(nn.Module):
    """Linear, GELU, Linear, Dropout, LayerNorm; no residual path (paper: 59.60 % without, 54.05 % with one).

    Shapes: (g, image_dim) to (g, D), through ``bottleneck`` values.
    """

    def __init__(self, image_dim: int, bottleneck: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.down = nn.Linear(image_dim, bottleneck)
        self.up = nn.Linear(bottleneck, dim)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(dim)

    def forward(self, values: Tensor) -> Tensor:
        return self.norm(self.dropout(self.up(nn.functional.gelu(self.down(values)))))


class ATSModel(ContrastiveModel):
    """EEG (b, 17, 250) to (b, 768) by :class:`.blocks.EEGProject`; RN50 features (g, 1024) to (g, 768) by :class:`ShrinkAdapter`.

    4,318,209 parameters: encoder 3,856,896, adapter 461,312, temperature 1; 250 more with temporal attention. The terms of the released
    loss whose weight is 0 (image-to-EEG, image-to-image, MMD, map) are left out. Source: L. Wu et al., AAAI 2026 (arXiv 2511.11422).
    """

    config_class = ATSConfig

    def __init__(self, config: ATSConfig) -> None:
        super().__init__(config)
        self.attention = TemporalAttention(config.n_times) if config.temporal_attention else None
        self.eeg_encoder = EEGProject(config.n_channels, config.n_times, config.embed_dim, config.dropout)
        self.image_adapter = ShrinkAdapter(config.image_dim, config.bottleneck_dim, config.embed_dim, config.adapter_dropout)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, TemporalAttention):
            init.ones_(module.weight)

    def _encode_eeg(self, eeg: Tensor, subject: int | Tensor | None) -> Tensor:
        return self.eeg_encoder(eeg if self.attention is None else self.attention(eeg))

    def _encode_images(self, branches: dict[str, Tensor]) -> Tensor:
        return self.image_adapter(branches["image"].to(self.dtype))


__all__ = ["ATSModel", "ShrinkAdapter", "TemporalAttention"]
