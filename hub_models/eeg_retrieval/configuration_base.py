"""Settings that the EEG-to-image retrieval models share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedConfig

# ln(1/.07): the number at which every one of the released codes starts its temperature; what they do with it differs.
LOG_INVERSE_007 = math.log(1 / 0.07)
SCALE_MAPPINGS = ("exp", "softplus", "none")
INITIALIZATIONS = ("torch", "nice", "transformers")


class EEGRetrievalConfig(PreTrainedConfig):
    """Shapes and provenance that every retrieval model has.

    Attributes:
        n_channels: number C of EEG channels.
        n_times: number T of samples an epoch (THINGS-EEG2 as all eight methods use it: 250, one second at 250 Hz).
        embed_dim: length D of the space that EEG and images share.
        image_dim: length of the feature of the frozen image encoder that comes in.
        initialization: "torch" (the defaults of ``torch.nn``: what a plain PyTorch code gets), "nice" (Conv and Linear weights
            N(0, .02) with the default biases of torch, BatchNorm weights N(1, .02)) or "transformers" (Conv, Linear and Embedding
            weights N(0, .02), zero biases: what a ``PreTrainedModel`` does unless told otherwise). Each model defaults to what its
            released code has.
        ch_names: C channel names in the order the model takes them, or None when unknown.
        sfreq: sampling rate in Hz, or None when unknown.
        image_encoder: id of the encoder (and of the transform) of the image features, or None when unknown.
    """

    n_channels: int = 17
    n_times: int = 250
    embed_dim: int = 1024
    image_dim: int = 1024
    initialization: str = "torch"
    ch_names: list[str] | None = None
    sfreq: float | None = None
    image_encoder: str | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self._whole("n_channels", "n_times", "embed_dim", "image_dim")
        self._choice("initialization", INITIALIZATIONS)
        if self.ch_names is not None and len(self.ch_names) != self.n_channels:
            raise ValueError(f"ch_names has {len(self.ch_names)} names for {self.n_channels} channels")

    @property
    def image_inputs(self) -> dict[str, int]:
        """Names and lengths of the image features that the model takes, by name; one called "image" unless a model says otherwise."""
        return {"image": self.image_dim}

    def _whole(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")

    def _positive(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {value!r}")

    def _probability(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0 <= value <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {value!r}")

    def _choice(self, name: str, allowed: Sequence[str]) -> None:
        if getattr(self, name) not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {getattr(self, name)!r}")


class ContrastiveConfig(EEGRetrievalConfig):
    """Adds the softmax temperature and the normalisation of models that are trained on scaled inner products.

    The logits of the loss are scale * E I^T, with scale = mapping(logit_scale). What the released codes do with the same start value
    of 2.6593 gives effective scales of 14.286 (exp), 2.727 (softplus) or 2.659 (none). Where the EEG side is not normalised its rows
    are LayerNorm outputs of norm about sqrt(D), so that the softmax is sharper by that factor.

    Attributes:
        logit_scale_init: start value of the temperature before the mapping.
        logit_scale_mapping: "exp", "softplus" or "none".
        logit_scale_trainable: False keeps the start value as a number of the configuration, out of reach of optimiser and weight decay.
        normalize_eeg: L2-normalise EEG embeddings in the logits of the loss (``score`` is a cosine either way).
        normalize_image: L2-normalise image embeddings in the logits of the loss.
    """

    logit_scale_init: float = LOG_INVERSE_007
    logit_scale_mapping: str = "softplus"
    logit_scale_trainable: bool = True
    normalize_eeg: bool = False
    normalize_image: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self._choice("logit_scale_mapping", SCALE_MAPPINGS)
        if not math.isfinite(self.logit_scale_init):
            raise ValueError(f"logit_scale_init must be finite, got {self.logit_scale_init!r}")


class ConvStemConfig(ContrastiveConfig):
    """Adds the sizes of NICE's convolutional stem (:class:`.blocks.ConvStem`) and of the head behind it.

    Attributes:
        n_filters: feature maps of each convolution.
        temporal_kernel: samples that the first convolution spans (25 at 250 Hz: 100 ms).
        pool_kernel: samples that are averaged (51).
        pool_stride: samples from one average to the next (5).
        stem_dropout: dropout after the spatial convolution.
        head_dropout: dropout in the residual head.
    """

    n_channels: int = 63
    n_filters: int = 40
    temporal_kernel: int = 25
    pool_kernel: int = 51
    pool_stride: int = 5
    stem_dropout: float = 0.5
    head_dropout: float = 0.5

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self._whole("n_filters", "temporal_kernel", "pool_kernel", "pool_stride")
        self._probability("stem_dropout", "head_dropout")
        if self.n_tokens < 1:
            raise ValueError(
                f"n_times={self.n_times} is too short for temporal_kernel={self.temporal_kernel} and pool_kernel={self.pool_kernel}: "
                f"at least {self.temporal_kernel + self.pool_kernel - 1} samples are needed"
            )

    @property
    def n_tokens(self) -> int:
        """Time steps that leave the stem: 36 for 250 samples."""
        return (self.n_times - self.temporal_kernel + 1 - self.pool_kernel) // self.pool_stride + 1

    @property
    def stem_dim(self) -> int:
        """Values that leave the stem: 36 * 40 = 1,440 for 250 samples."""
        return self.n_tokens * self.n_filters


def tiny_stem() -> dict[str, int]:
    """Sizes for tests: 5 tokens of 8 maps."""
    return {
        "n_channels": 6,
        "n_times": 32,
        "embed_dim": 16,
        "image_dim": 12,
        "n_filters": 8,
        "temporal_kernel": 5,
        "pool_kernel": 9,
        "pool_stride": 4,
    }


def tiny_project() -> dict[str, int]:
    """Sizes for tests."""
    return {"n_channels": 4, "n_times": 10, "embed_dim": 16, "image_dim": 12}


__all__ = ["ContrastiveConfig", "ConvStemConfig", "EEGRetrievalConfig"]
