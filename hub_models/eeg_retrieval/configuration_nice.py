"""Configuration of NICE."""

from __future__ import annotations

from typing import Any

from .configuration_base import ConvStemConfig, tiny_stem

IMAGE_PROJECTIONS = ("frozen", "trained")


class NICEStyleConfig(ConvStemConfig):
    """Adds what NICE and MB2C share: 63 channels, 768 dimensions, CLIP ViT-L/14, cosines at a fixed scale of exp(2.6593) = 14.286.

    The released codes make the temperature a parameter and do not give it to the optimiser, so it stays where it is.

    Attributes:
        image_projection: "frozen" takes the image features as they are, "trained" passes them through a residual head
            (768 to 768, dropout ``projection_dropout``).
        projection_dropout: dropout of the trained image projection.
    """

    embed_dim: int = 768
    image_dim: int = 768
    normalize_eeg: bool = True
    logit_scale_mapping: str = "exp"
    logit_scale_trainable: bool = False
    initialization: str = "nice"
    image_projection: str = "frozen"
    projection_dropout: float = 0.3

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self._choice("image_projection", IMAGE_PROJECTIONS)
        self._probability("projection_dropout")
        if self.image_projection == "frozen" and self.image_dim != self.embed_dim:
            raise ValueError(
                f"image_projection='frozen' needs embed_dim equal to image_dim, got {self.embed_dim} and {self.image_dim}: "
                "use image_projection='trained'"
            )


class NICEConfig(NICEStyleConfig):
    """Settings of :class:`NICEModel`; defaults are those of the released code.

    ``image_projection``: the code has a trainable projector whose forward is overridden by the identity; hence "frozen". "trained" is
    the projector as it is written there.
    """

    model_type = "nice"

    @classmethod
    def tiny(cls) -> NICEConfig:
        """A configuration small enough for tests."""
        return cls(**(tiny_stem() | {"embed_dim": 12}))


__all__ = ["NICEConfig", "NICEStyleConfig"]
