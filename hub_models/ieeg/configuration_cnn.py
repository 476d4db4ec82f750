"""Configuration of the CNN baseline."""

from __future__ import annotations

from typing import Any

from .configuration_base import IEEGConfig


class CNNConfig(IEEGConfig):
    """Settings of :class:`CNNModel`; defaults are those of iMINDBench. Two-dimensional for [C, frames, bins], one-dimensional for [C, T].

    Attributes:
        filters: maps of each convolution; each is followed by ReLU and a max pool of 2.
        kernel: width of the convolutions, an odd number; they are padded to keep the length.
        hidden_size: of the layer before the logits. dropout: after it.
    """

    model_type = "ieeg-cnn"

    filters: list[int] | None = None
    kernel: int = 3
    hidden_size: int = 128
    dropout: float = 0.5

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self.filters = [32, 64, 128] if self.filters is None else [int(n) for n in self.filters]
        self._whole("kernel", "hidden_size")
        self._probability("dropout")
        if not self.filters or min(self.filters) < 1 or self.kernel % 2 == 0:
            raise ValueError(f"filters must be at least 1 and the kernel odd, got {self.filters!r} and {self.kernel}")
        if min(self.pooled_shape) < 1:
            raise ValueError(f"input_shape {self.input_shape} is too small for {len(self.filters)} pools of 2")

    @property
    def pooled_shape(self) -> list[int]:
        """What is left of frames and bins, or of the samples, after all pools."""
        return [n // 2 ** len(self.filters or []) for n in self.shape[1:]]

    @classmethod
    def tiny(cls) -> CNNConfig:
        """A configuration small enough for tests."""
        return cls(input_shape=[2, 5, 9], filters=[3, 4], hidden_size=6)


__all__ = ["CNNConfig"]
