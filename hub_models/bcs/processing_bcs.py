"""Images to the inputs of :class:`BCSModel`: decoded to RGB, preprocessed for each encoder, stacked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import BatchFeature, ProcessorMixin

from decodehub.loaders.images import ImageLike, image_list, source

from .encoders import Preprocessing
from .travel import TravelsWithCode


class BCSProcessor(TravelsWithCode, ProcessorMixin):
    """Pixel inputs of pairs of images; needs the encoders' preprocessing, not their weights."""

    def __init__(self, encoders: Sequence[str] = ("lite0",), **kwargs: Any) -> None:
        """`encoders` are the ids of the model's encoders, in order: ``[e["id"] for e in config.encoders]``."""
        super().__init__(**kwargs)
        self.encoders = list(encoders)
        self._preprocessing: list[Preprocessing] | None = None

    @classmethod
    def get_attributes(cls) -> list[str]:
        """No tokenizer, no image processor of transformers' kind: there may be several encoders."""
        return []

    def to_dict(self) -> dict[str, Any]:
        """What is saved: the ids."""
        saved = {"processor_class": type(self).__name__, "encoders": self.encoders}
        return saved | ({"auto_map": self.auto_map} if hasattr(self, "auto_map") else {})

    def __call__(self, references: Sequence[ImageLike], reconstructions: Sequence[ImageLike], return_tensors: str = "pt") -> BatchFeature:
        """Pairs of images to pixels.

        Args:
            references, reconstructions: n images each, see :meth:`BCSModel.score`.
            return_tensors: "pt".

        Returns:
            ``reference_pixel_values`` and ``reconstruction_pixel_values``: lists with one (n, 3, h, w) float32 tensor an encoder.

        Raises:
            ValueError: other counts, no pair, or an image that cannot be read.
        """
        if return_tensors != "pt":
            raise ValueError(f'return_tensors must be "pt", got {return_tensors!r}')
        references, reconstructions = image_list(references, "references"), image_list(reconstructions, "reconstructions")
        if len(references) != len(reconstructions) or not len(references):
            raise ValueError(
                f"expected as many references as reconstructions and at least one, found {len(references)} and {len(reconstructions)}"
            )
        if self._preprocessing is None:
            self._preprocessing = [Preprocessing(id) for id in self.encoders]
        pixels = {}
        for name, images in (("reference", references), ("reconstruction", reconstructions)):
            decoded = [source(image, f"{name} {i}").load() for i, image in enumerate(images)]
            pixels[f"{name}_pixel_values"] = [torch.stack([step(image) for image in decoded]) for step in self._preprocessing]
        return BatchFeature(pixels)


__all__ = ["BCSProcessor"]
