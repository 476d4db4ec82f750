"""Configuration of NeuroBridge."""

from __future__ import annotations

from typing import Any

from .configuration_base import ContrastiveConfig, tiny_project

SMOOTHING_TIMES = ("released_code", "every_epoch")


class NeuroBridgeConfig(ContrastiveConfig):
    """Settings of :class:`NeuroBridgeModel`.

    The temperature is fixed: softplus(2.6593) = 2.727, since the loss module of the released code overwrites the flag that should select
    exp; ``logit_scale_mapping="exp"`` is what the flag asks for (14.286). Default "softplus": the published numbers were made with it.

    Attributes:
        encoder_dim: width of the EEG encoder, before the projection to ``embed_dim``.
        dropout: in the EEG encoder.
        smoothing_probability: of smoothing one channel of a training epoch (:func:`.augment.smooth_eeg`).
        smoothing_width: samples of the moving average.
        smoothing_applied: "released_code" smooths once, when the training set is built; "every_epoch" draws anew. Default the former,
            with which the published numbers were made. The training job reads these three; the model itself smooths nothing.
    """

    model_type = "neurobridge"

    embed_dim: int = 512
    encoder_dim: int = 1024
    dropout: float = 0.3
    logit_scale_trainable: bool = False
    smoothing_probability: float = 0.3
    smoothing_width: int = 5
    smoothing_applied: str = "released_code"

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self._whole("encoder_dim", "smoothing_width")
        self._probability("dropout", "smoothing_probability")
        self._choice("smoothing_applied", SMOOTHING_TIMES)

    @classmethod
    def tiny(cls) -> NeuroBridgeConfig:
        """A configuration small enough for tests."""
        return cls(**tiny_project(), encoder_dim=20)


__all__ = ["NeuroBridgeConfig"]
