"""Configuration of the MLP baseline."""

from __future__ import annotations

from typing import Any

from .configuration_base import IEEGConfig


class MLPConfig(IEEGConfig):
    """Settings of :class:`MLPModel`; defaults are those of iMINDBench.

    Attributes:
        hidden_sizes: widths of the hidden layers.
        dropout: after each hidden layer.
    """

    model_type = "ieeg-mlp"

    hidden_sizes: list[int] | None = None
    dropout: float = 0.2

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self.hidden_sizes = [128, 128] if self.hidden_sizes is None else [int(n) for n in self.hidden_sizes]
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise ValueError(f"hidden_sizes must be widths of at least 1, got {self.hidden_sizes!r}")
        self._probability("dropout")

    @classmethod
    def tiny(cls) -> MLPConfig:
        """A configuration small enough for tests."""
        return cls(input_shape=[2, 3, 4], hidden_sizes=[5, 4])


__all__ = ["MLPConfig"]
