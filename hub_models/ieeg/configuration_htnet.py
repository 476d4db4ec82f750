"""Configuration of HTNet."""

from __future__ import annotations

from typing import Any

from .configuration_base import IEEGConfig


class HTNetConfig(IEEGConfig):
    """Settings of :class:`HTNetModel`; defaults are those of iMINDBench at 500 Hz.

    Attributes:
        f1: temporal filters. depth: spatial filters for each (D). f2: filters of the separable convolution.
        kernel: samples of the temporal filters. separable_kernel: of the separable ones.
        pool1, pool2: samples that are averaged.
        dropout: after both blocks.
        batch_norm_momentum: share of each batch in the running statistics. The published .01 needs some hundred steps before evaluation
            sees statistics like those of training.
        spatial_max_norm, dense_max_norm: largest norm of a spatial filter and of a row of the last layer.
    """

    model_type = "ieeg-htnet"

    f1: int = 8
    depth: int = 2
    f2: int = 16
    kernel: int = 32
    separable_kernel: int = 8
    pool1: int = 4
    pool2: int = 8
    dropout: float = 0.5
    batch_norm_momentum: float = 0.01
    spatial_max_norm: float = 1.0
    dense_max_norm: float = 0.25

    def __post_init__(self, **kwargs: Any) -> None:
        if self.input_shape is None:
            self.input_shape = [120, 500]
        super().__post_init__(**kwargs)
        self._whole("f1", "depth", "f2", "kernel", "separable_kernel", "pool1", "pool2")
        self._positive("batch_norm_momentum", "spatial_max_norm", "dense_max_norm")
        self._probability("dropout")
        if len(self.shape) != 2:
            raise ValueError(f"HTNet takes waveforms, input_shape [channels, times], got {self.input_shape}: use a Waveform recipe")
        if self.n_steps < 1:
            raise ValueError(f"{self.shape[1]} samples are too few for pools of {self.pool1} and {self.pool2}")

    @property
    def n_steps(self) -> int:
        """Time steps that reach the last layer: 15 for 500 samples."""
        return self.shape[1] // self.pool1 // self.pool2

    @classmethod
    def tiny(cls) -> HTNetConfig:
        """A configuration small enough for tests."""
        return cls(input_shape=[3, 40], f1=2, f2=4, kernel=6, separable_kernel=3, pool2=4)


__all__ = ["HTNetConfig"]
