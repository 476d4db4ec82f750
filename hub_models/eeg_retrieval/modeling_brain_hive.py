"""Brain-HIVE: EEG meets a sum of several visual features, from semantics (SynCLR, CLIP) to pixels (VAE latents)."""

from __future__ import annotations

from torch import Tensor, nn

from .base import ContrastiveModel
from .configuration_brain_hive import BrainHiveConfig


class ResidualNorm(nn.Module):
    """LayerNorm of x + W2 Dropout(GELU(W1 x)). Shapes: (n, D) to (n, D)."""

    def __init__(self, config: BrainHiveConfig) -> None:
        super().__init__()
        self.expand = nn.Linear(config.embed_dim, config.embed_dim, bias=config.residual_bias)
        self.contract = nn.Linear(config.embed_dim, config.embed_dim, bias=config.residual_bias)
        self.dropout = nn.Dropout(config.dropout)
        self.norm = nn.LayerNorm(config.embed_dim, eps=config.layer_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.contract(self.dropout(nn.functional.gelu(self.expand(x)))))


class BrainMLP(nn.Module):
    """The epoch, flattened channel after channel, through a linear layer and a residual block. Shapes: (b, C, T) to (b, D)."""

    def __init__(self, config: BrainHiveConfig) -> None:
        super().__init__()
        self.input = nn.Linear(config.n_channels * config.n_times, config.embed_dim, bias=config.input_bias)
        self.residual = ResidualNorm(config)

    def forward(self, eeg: Tensor) -> Tensor:
        return self.residual(self.input(eeg.flatten(1)))


class FusionEncoder(nn.Module):
    """One linear layer a branch, outputs summed, and a residual block. Shapes: name to (g, d_k), to (g, D)."""

    def __init__(self, config: BrainHiveConfig) -> None:
        super().__init__()
        self.inputs = nn.ModuleDict({name: nn.Linear(dim, config.embed_dim) for name, dim in config.image_inputs.items()})
        self.residual = ResidualNorm(config)

    def forward(self, branches: dict[str, Tensor]) -> Tensor:
        terms = [layer(branches[name].to(layer.weight.dtype)) for name, layer in self.inputs.items()]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return self.residual(total)


class BrainHiveModel(ContrastiveModel):
    """EEG (b, 17, 250) to (b, 1024); features "self_supervised" (SynCLR, g x 768), "image_text" (CLIP ViT-B/32, g x 512) and
    "autoencoder" (SDXL-VAE latents, g x 1024) to (g, 1024).

    10,913,793 parameters: EEG 6,452,224, images 4,461,568, temperature 1. The released code trains in bfloat16.
    Source: J. Zheng et al., ICLR 2026 (arXiv 2602.07495).
    """

    config_class = BrainHiveConfig

    def __init__(self, config: BrainHiveConfig) -> None:
        super().__init__(config)
        self.eeg_encoder = BrainMLP(config)
        self.image_encoder = FusionEncoder(config)
        self.image_encoder.requires_grad_(not config.freeze_images)
        self.post_init()

    def _encode_eeg(self, eeg: Tensor, subject: int | Tensor | None) -> Tensor:
        return self.eeg_encoder(eeg)

    def _encode_images(self, branches: dict[str, Tensor]) -> Tensor:
        return self.image_encoder(branches)


__all__ = ["BrainHiveModel", "BrainMLP", "FusionEncoder", "ResidualNorm"]
