"""UBP, the uncertainty-aware blur prior: EEG meets RN50 features of a foveated, blurred image."""

from __future__ import annotations

from torch import Tensor

from .base import ContrastiveModel
from .blocks import EEGProject
from .configuration_ubp import UBPConfig


class UBPModel(ContrastiveModel):
    """EEG (b, 17, 250) to (b, 1024) by :class:`.blocks.EEGProject`; images are frozen OpenCLIP RN50 (openai) features (g, 1024).

    The features of training images come from the blur that :class:`.blur.BlurSelector` names, those of test images from the medium one
    (``config.eval_kernel``). 5,404,673 parameters: the encoder and the temperature.
    Source: H. Wu et al., CVPR 2025 (arXiv 2503.04207).
    """

    config_class = UBPConfig

    def __init__(self, config: UBPConfig) -> None:
        super().__init__(config)
        self.eeg_encoder = EEGProject(config.n_channels, config.n_times, config.embed_dim, config.dropout)
        self.post_init()

    def _encode_eeg(self, eeg: Tensor, subject: int | Tensor | None) -> Tensor:
        return self.eeg_encoder(eeg)


__all__ = ["UBPModel"]
