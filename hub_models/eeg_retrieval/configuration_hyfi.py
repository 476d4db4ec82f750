"""Configuration of HyFI."""

from __future__ import annotations

from typing import Any

from .configuration_base import EEGRetrievalConfig, tiny_project


class HyFIConfig(EEGRetrievalConfig):
    """Settings of :class:`HyFIModel`.

    The geometry of training and test differs in the released code: embeddings are mapped with the curvature that is learned and compared
    with it at test, but the loss measures them with a constant one. Both are settings here.

    Attributes:
        curvature_init: start value of the learned curvature c.
        loss_curvature: curvature in the loss; None for the learned one. Default .07, the constant of the released code, with which
            the published numbers were made.
        loss_scale: factor of -distance in the loss; 100.003 is a constant of the released code, whose logit-scale parameter is unused.
        eeg_alpha_init: factor of EEG embeddings before they are mapped to hyperbolic space, learned as its logarithm; None for
            D^-1/2, which makes LayerNorm outputs of norm about 1.
        visual_alpha: the same for images, fixed.
        dropout: in the EEG encoder.
    """

    model_type = "hyfi"

    curvature_init: float = 1.0
    loss_curvature: float | None = 0.07
    loss_scale: float = 100.003
    eeg_alpha_init: float | None = None
    visual_alpha: float = 1.0
    dropout: float = 0.3

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self._positive("curvature_init", "loss_scale", "visual_alpha")
        self._positive(*(name for name in ("loss_curvature", "eeg_alpha_init") if getattr(self, name) is not None))
        self._probability("dropout")

    @property
    def image_inputs(self) -> dict[str, int]:
        """Both branches, of one length: RN50 features of the foveated (k 51) and of the evenly blurred image (k 31)."""
        return {"perceptual": self.image_dim, "semantic": self.image_dim}

    @classmethod
    def tiny(cls) -> HyFIConfig:
        """A configuration small enough for tests."""
        return cls(**tiny_project())


__all__ = ["HyFIConfig"]
