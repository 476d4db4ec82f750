"""Configuration of the ridge-regression baseline for EEG-to-image retrieval."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig


class RidgeRetrievalConfig(PreTrainedConfig):
    """Settings of :class:`RidgeRetrievalModel`.

    Attributes:
        n_channels: number C of EEG channels.
        n_times: number T of samples an epoch.
        embed_dim: length d of an image feature.
        alpha: penalty on the squared weights, over standardised EEG; set by ``fit``.
        n_train: training pairs that the weights were fitted on; 0 for a model that was not fitted.
        ch_names: C channel names in the order the model takes them, or None when unknown.
        sfreq: sampling rate in Hz, or None when unknown.
        image_encoder: id of the encoder of the image features, or None when unknown.
    """

    model_type = "eeg-ridge"

    n_channels: int = 63
    n_times: int = 250
    embed_dim: int = 1280
    alpha: float = 1000.0
    n_train: int = 0
    ch_names: list[str] | None = None
    sfreq: float | None = None
    image_encoder: str | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        for name in ("n_channels", "n_times", "embed_dim"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {getattr(self, name)!r}")
        if self.ch_names is not None and len(self.ch_names) != self.n_channels:
            raise ValueError(f"ch_names has {len(self.ch_names)} names for {self.n_channels} channels")
        if not self.alpha > 0:
            raise ValueError(f"alpha must be positive, got {self.alpha!r}")

    @classmethod
    def tiny(cls) -> RidgeRetrievalConfig:
        """A configuration small enough for tests."""
        return cls(n_channels=4, n_times=10, embed_dim=6)


__all__ = ["RidgeRetrievalConfig"]
