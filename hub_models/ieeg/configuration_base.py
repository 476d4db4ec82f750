"""Settings that the models of iEEG windows share."""

from __future__ import annotations

import math
from typing import Any

from transformers import PreTrainedConfig


class IEEGConfig(PreTrainedConfig):
    """Shape and provenance of the windows that a model takes.

    Attributes:
        input_shape: of one window: [C, frames, bins] (Multi-STFT: C x 17 x 75) or [C, T] (Waveform: C x 500).
        ch_names: C channel names in the order that the model takes them, or None when unknown.
        recipe_hash: hash of the preprocessing recipe, or None when unknown.
        unit: benchmark unit that the weights were fitted on, or None.
    """

    input_shape: list[int] | None = None
    ch_names: list[str] | None = None
    recipe_hash: str | None = None
    unit: str | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.input_shape is None:
            self.input_shape = [120, 17, 75]
        self.input_shape = [int(n) for n in self.input_shape]
        if len(self.input_shape) not in (2, 3) or min(self.input_shape) < 1:
            raise ValueError(f"input_shape must be [channels, times] or [channels, frames, bins], got {self.input_shape!r}")
        if self.ch_names is not None and len(self.ch_names) != self.input_shape[0]:
            raise ValueError(f"ch_names has {len(self.ch_names)} names for {self.input_shape[0]} channels")

    @property
    def shape(self) -> tuple[int, ...]:
        """`input_shape` as a tuple."""
        return tuple(self.input_shape or ())

    @property
    def n_features(self) -> int:
        """Values of one window."""
        return math.prod(self.shape)

    def _positive(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {value!r}")

    def _whole(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")

    def _probability(self, *names: str) -> None:
        for name in names:
            if not isinstance(getattr(self, name), (int, float)) or not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must lie in [0, 1), got {getattr(self, name)!r}")


__all__ = ["IEEGConfig"]
