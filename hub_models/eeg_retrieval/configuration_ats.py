"""Configuration of ATS."""

from __future__ import annotations

from typing import Any

from .configuration_base import tiny_project
from .configuration_ubp import BlurConfig


class ATSConfig(BlurConfig):
    """Settings of :class:`ATSModel`: as UBP with 768 dimensions and a trained adapter on the image side.

    Attributes:
        temporal_attention: True is the encoder of the released code (one weight a sample, softmax over time, before the flattening);
            False the plain EEGProject. Default False: EEG-EditBench lists EEGProjectLayer, and its 56.1 % is the paper's 56.75 % for
            the plain encoder, not the 60.20 % with attention.
        bottleneck_ratio: width of the adapter's hidden layer by that of the image feature (.25: 1,024 to 256 to 768).
        adapter_dropout: dropout before the adapter's LayerNorm.
    """

    model_type = "ats"

    embed_dim: int = 768
    temporal_attention: bool = False
    bottleneck_ratio: float = 0.25
    adapter_dropout: float = 0.3

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self._positive("bottleneck_ratio")
        self._probability("adapter_dropout")
        if self.bottleneck_dim < 1:
            raise ValueError(f"bottleneck_ratio={self.bottleneck_ratio} leaves nothing of image_dim={self.image_dim}")

    @property
    def bottleneck_dim(self) -> int:
        """Width of the adapter's hidden layer."""
        return int(self.image_dim * self.bottleneck_ratio)

    @classmethod
    def tiny(cls) -> ATSConfig:
        """A configuration small enough for tests."""
        return cls(**tiny_project(), temporal_attention=True)


__all__ = ["ATSConfig"]
