"""What every classifier of iEEG windows does: shapes checked, two logits, cross-entropy, probabilities."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import SequenceClassifierOutput

from .configuration_base import IEEGConfig


class IEEGClassifier(PreTrainedModel):
    """Base of the classifiers. A model adds ``_logits``."""

    config_class = IEEGConfig
    base_model_prefix = "ieeg"
    main_input_name = "features"

    def _init_weights(self, module: nn.Module) -> None:
        """Weights start as ``torch.nn`` starts them, as the released baselines do."""
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)):
            bound = 1 / (module.weight[0].numel() ** 0.5)
            init.uniform_(module.weight, -bound, bound)
            if module.bias is not None:
                init.uniform_(module.bias, -bound, bound)
        elif isinstance(module, nn.BatchNorm2d):
            init.ones_(module.weight)
            init.zeros_(module.bias)
            init.zeros_(module.running_mean)
            init.ones_(module.running_var)
            init.zeros_(module.num_batches_tracked)

    def _logits(self, features: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} does not say what its logits are")

    @property
    def dummy_inputs(self) -> dict[str, Any]:
        """Three windows with labels."""
        generator = torch.Generator().manual_seed(0)
        return {"features": torch.randn(3, *self.config.input_shape, generator=generator), "labels": torch.tensor([0, 1, 1])}

    def forward(
        self, features: Tensor, labels: Tensor | None = None, return_dict: bool | None = None
    ) -> SequenceClassifierOutput | tuple[Tensor, ...]:
        """Logits of class 0 and class 1.

        Args:
            features: (b, *input_shape) float, normalised as in training.
            labels: (b,) int, 0 or 1; gives the mean cross-entropy in nats.
            return_dict: False for a tuple.

        Returns:
            `loss` (scalar, with labels) and `logits` (b, 2).

        Raises:
            ValueError: another shape.
        """
        if tuple(features.shape[1:]) != tuple(self.config.input_shape):
            raise ValueError(f"features must have shape (b, {', '.join(map(str, self.config.input_shape))}), got {tuple(features.shape)}")
        logits = self._logits(features.to(self.dtype))
        loss = None if labels is None else nn.functional.cross_entropy(logits.float(), labels)
        if return_dict is False:
            return (logits,) if loss is None else (loss, logits)
        return SequenceClassifierOutput(loss=loss, logits=logits)

    @torch.inference_mode()
    def predict_proba(self, features: Tensor, batch_size: int = 512) -> Tensor:
        """(n,) float64 on the CPU, probability of class 1 by softmax; the model's mode is left as it was.

        Args:
            features: (n, *input_shape).
            batch_size: windows at a time.
        """
        was_training = self.training
        self.eval()
        parts = [self(part.to(self.device)).logits.double().softmax(dim=1)[:, 1].cpu() for part in features.split(batch_size)]
        self.train(was_training)
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64)


__all__ = ["IEEGClassifier"]
