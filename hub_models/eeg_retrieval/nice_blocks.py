"""The two-sided network that NICE and MB2C share."""

from __future__ import annotations

from torch import Tensor, nn

from .base import ContrastiveModel
from .blocks import ConvStem, ResidualHead
from .configuration_base import ConvStemConfig
from .configuration_nice import NICEStyleConfig


def stem_of(config: ConvStemConfig) -> ConvStem:
    """The stem that a configuration describes."""
    return ConvStem(
        config.n_channels, config.n_filters, config.temporal_kernel, config.pool_kernel, config.pool_stride, config.stem_dropout
    )


class NICEStyleModel(ContrastiveModel):
    """Stem and residual head for EEG; for images nothing, or a residual head."""

    config_class = NICEStyleConfig

    def __init__(self, config: NICEStyleConfig) -> None:
        super().__init__(config)
        self.eeg_encoder = stem_of(config)
        self.eeg_projection = ResidualHead(config.stem_dim, config.embed_dim, config.head_dropout)
        self.image_projection: nn.Module | None = None
        if config.image_projection == "trained":
            self.image_projection = ResidualHead(config.image_dim, config.embed_dim, config.projection_dropout)
        self.post_init()

    def _encode_eeg(self, eeg: Tensor, subject: int | Tensor | None) -> Tensor:
        return self.eeg_projection(self.eeg_encoder(eeg))

    def _encode_images(self, branches: dict[str, Tensor]) -> Tensor:
        if self.image_projection is None:
            return branches["image"]
        return self.image_projection(branches["image"].to(self.dtype))


__all__ = ["NICEStyleModel", "stem_of"]
