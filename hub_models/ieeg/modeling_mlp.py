"""A multi-layer perceptron on flattened iEEG windows."""

from __future__ import annotations

from torch import Tensor, nn

from .base import IEEGClassifier
from .configuration_mlp import MLPConfig


class MLPModel(IEEGClassifier):
    """Windows (b, *input_shape), flattened, through two hidden layers of 128 ReLU units with dropout .2, to two logits. Source: iMINDBench baselines."""

    config_class = MLPConfig

    def __init__(self, config: MLPConfig) -> None:
        super().__init__(config)
        layers: list[nn.Module] = []
        width = config.n_features
        for hidden in config.hidden_sizes or []:
            layers += [nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(config.dropout)]
            width = hidden
        self.layers = nn.Sequential(*layers, nn.Linear(width, 2))
        self.post_init()

    def _logits(self, features: Tensor) -> Tensor:
        return self.layers(features.flatten(1))


__all__ = ["MLPModel"]
