"""Configuration of MB2C."""

from __future__ import annotations

from typing import Any

from .configuration_base import tiny_stem
from .configuration_nice import NICEStyleConfig

CYCLE_WEIGHTINGS = ("released_code", "paper")
ADVERSARIAL_FEATURES = ("normalized", "raw")


class MB2CConfig(NICEStyleConfig):
    """Settings of :class:`MB2CModel` and of :class:`.adversarial.MB2CAdversary`, which is needed in training only.

    The temperature is fixed, as in NICE; the image projection is trained.

    Attributes:
        cycle_weight: weight w of the cycle term (10).
        cycle_weighting: "released_code" applies it twice, w * ((w * L1_eeg + w * L1_image) / 2), an effective 100;
            "paper" once, (w * L1_eeg + w * L1_image) / 2. Default "released_code", with which the published numbers were made.
        adversarial_features: what generators and critics see, embeddings L2-normalised ("normalized") or as the projectors give
            them ("raw"). Which of the two the released code takes is not documented; default "normalized", since the generator of image
            features ends in a tanh, which reaches all unit vectors and not all outputs of a LayerNorm.
        mixup_ratio: share of a batch that is mixed (.75).
        mixup_alpha: of the Beta distribution of the mixing weight (1: uniform).
        gradient_penalty: weight of the critics' gradient penalty (10).
        class_weight: weight of the auxiliary classification (1).
        generator_decay: factor of the generators' sum of squared weights (1e-3).
        noise_dim: length of the generators' noise (100).
        adversarial_dim: hidden width of generators and critics (900).
        n_classes: concepts of the training set (1,654).
        negative_slope: of the generators' leaky ReLU (torch's default, .01).
    """

    model_type = "mb2c"

    image_projection: str = "trained"
    cycle_weight: float = 10.0
    cycle_weighting: str = "released_code"
    adversarial_features: str = "normalized"
    mixup_ratio: float = 0.75
    mixup_alpha: float = 1.0
    gradient_penalty: float = 10.0
    class_weight: float = 1.0
    generator_decay: float = 1e-3
    noise_dim: int = 100
    adversarial_dim: int = 900
    n_classes: int = 1654
    negative_slope: float = 0.01

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self._choice("cycle_weighting", CYCLE_WEIGHTINGS)
        self._choice("adversarial_features", ADVERSARIAL_FEATURES)
        self._whole("noise_dim", "adversarial_dim", "n_classes")
        self._positive("mixup_alpha")
        self._probability("mixup_ratio")

    @classmethod
    def tiny(cls) -> MB2CConfig:
        """A configuration small enough for tests."""
        return cls(**tiny_stem(), noise_dim=4, adversarial_dim=20, n_classes=7)


__all__ = ["MB2CConfig"]
