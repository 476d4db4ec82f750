"""Configuration of the random-projection baseline for EEG-to-image retrieval."""

from __future__ import annotations

from typing import Any

from .configuration_base import EEGRetrievalConfig


class RandomProjectionConfig(EEGRetrievalConfig):
    """Settings of :class:`RandomProjectionModel`.

    Attributes:
        seed: decides the projection, 0 or more; nothing else does.
        n_train: training pairs whose means are taken off; 0 for a model that has seen none.
    """

    model_type = "random-projection"

    n_channels: int = 63
    seed: int = 0
    n_train: int = 0

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        for name in ("seed", "n_train"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ValueError(f"{name} must be a whole number of at least 0, got {value!r}")
        if self.image_dim != self.embed_dim:
            raise ValueError(f"EEG is projected to the image features: embed_dim {self.embed_dim} must equal image_dim {self.image_dim}")

    @classmethod
    def tiny(cls) -> RandomProjectionConfig:
        """A configuration small enough for tests."""
        return cls(n_channels=4, n_times=10, embed_dim=6, image_dim=6)


__all__ = ["RandomProjectionConfig"]
