"""NeuroBridge: EEG meets the mean RN50 feature of four degraded versions of the image."""

from __future__ import annotations

from torch import Tensor, nn

from .base import ContrastiveModel
from .blocks import EEGProject
from .configuration_neurobridge import NeuroBridgeConfig


class NeuroBridgeModel(ContrastiveModel):
    """EEG (b, 17, 250) to (b, 1024) to (b, 512), image features (g, 1024) to (g, 512) by a linear map.

    The image feature is the mean of the raw OpenCLIP RN50 (openai) features of the image blurred, with noise, at low resolution and as a
    mosaic, also at test. No text (beta = 1) and no other image term (alpha = 1). 6,454,272 parameters: encoder 5,404,672, two
    projections of 524,800. Source: W. Zhang et al., AAAI 2026 (arXiv 2511.06836).
    """

    config_class = NeuroBridgeConfig

    def __init__(self, config: NeuroBridgeConfig) -> None:
        super().__init__(config)
        self.eeg_encoder = EEGProject(config.n_channels, config.n_times, config.encoder_dim, config.dropout)
        self.eeg_projection = nn.Linear(config.encoder_dim, config.embed_dim)
        self.image_projection = nn.Linear(config.image_dim, config.embed_dim)
        self.post_init()

    def _encode_eeg(self, eeg: Tensor, subject: int | Tensor | None) -> Tensor:
        return self.eeg_projection(self.eeg_encoder(eeg))

    def _encode_images(self, branches: dict[str, Tensor]) -> Tensor:
        return self.image_projection(branches["image"].to(self.dtype))


__all__ = ["NeuroBridgeModel"]
