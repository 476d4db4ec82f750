"""Configuration of UBP."""

from __future__ import annotations

from typing import Any

from .blur import BLUR_KERNELS
from .configuration_base import ContrastiveConfig, tiny_project


class BlurConfig(ContrastiveConfig):
    """Adds what UBP and ATS share.

    Attributes:
        blur_levels: kernel sizes of low, medium and high FoveaBlur: "paper" 45 / 51 / 57, "released_code" 45 / 45 / 51 (a settings
            dict changed in place; the same in both codes). Default "paper": EEG-EditBench states 45, 51, 57 and medium = 51.
        confidence_rate: weight of the newest logit in the running confidence (.3).
        confidence_z: half width of the bounds in standard deviations (1.96).
        dropout: in the EEG encoder.
    """

    blur_levels: str = "paper"
    confidence_rate: float = 0.3
    confidence_z: float = 1.96
    dropout: float = 0.3

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self._choice("blur_levels", tuple(BLUR_KERNELS))
        self._probability("confidence_rate", "dropout")
        self._positive("confidence_rate", "confidence_z")

    @property
    def eval_kernel(self) -> int:
        """Kernel size of the FoveaBlur of test images: the medium level."""
        return BLUR_KERNELS[self.blur_levels][1]


class UBPConfig(BlurConfig):
    """Settings of :class:`UBPModel`: the 17 posterior channels, 1,024 dimensions, RN50 features, softplus temperature that is trained.

    Defaults are those of the released code. The EEG side is not normalised in the loss, the image side is.
    """

    model_type = "ubp"

    @classmethod
    def tiny(cls) -> UBPConfig:
        """A configuration small enough for tests."""
        return cls(**(tiny_project() | {"embed_dim": 12}))

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.image_dim != self.embed_dim:
            raise ValueError(f"UBP has no image projection: embed_dim must equal image_dim, got {self.embed_dim} and {self.image_dim}")


__all__ = ["BlurConfig", "UBPConfig"]
