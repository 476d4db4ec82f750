"""A small convolutional network on iEEG windows; channels are input planes."""

from __future__ import annotations

import math

from torch import Tensor, nn

from .base import IEEGClassifier
from .configuration_cnn import CNNConfig


class CNNModel(IEEGClassifier):
    """Three convolutions of 32, 64 and 128 maps, each with ReLU and a max pool of 2, a layer of 128 with dropout .5, two logits.

    Over frames and bins for (b, C, frames, bins), over samples for (b, C, T). Source: iMINDBench baselines.
    """

    config_class = CNNConfig

    def __init__(self, config: CNNConfig) -> None:
        super().__init__(config)
        flat = len(config.shape) == 2
        convolution, pool = (nn.Conv1d, nn.MaxPool1d) if flat else (nn.Conv2d, nn.MaxPool2d)
        layers: list[nn.Module] = []
        width = config.shape[0]
        for filters in config.filters or []:
            layers += [convolution(width, filters, config.kernel, padding=config.kernel // 2), nn.ReLU(), pool(2)]
            width = filters
        self.convolutions = nn.Sequential(*layers)
        self.hidden = nn.Linear(width * math.prod(config.pooled_shape), config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.hidden_size, 2)
        self.post_init()

    def _logits(self, features: Tensor) -> Tensor:
        hidden = nn.functional.relu(self.hidden(self.convolutions(features).flatten(1)))
        return self.classifier(self.dropout(hidden))


__all__ = ["CNNModel"]
