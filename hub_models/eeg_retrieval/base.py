"""What every EEG-to-image retrieval model does: inputs checked, two embeddings, logits, a score, a contrastive loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.utils import ModelOutput

from .blocks import init_nice, init_torch
from .configuration_base import ContrastiveConfig, EEGRetrievalConfig
from .losses import symmetric_infonce, temperature_scale

ImageFeatures: TypeAlias = Tensor | Mapping[str, Tensor]


@dataclass
class EEGRetrievalOutput(ModelOutput):
    """What a retrieval model returns, after the pattern of CLIP.

    Attributes:
        loss: scalar, the contrastive loss in nats; only with ``return_loss=True``.
        logits_per_eeg: (b, g) what the softmax of the loss sees: scaled, with the model's own normalisation. Rank with ``score``.
        logits_per_image: (g, b) its transpose.
        eeg_embeds: (b, D) EEG embeddings as the encoder gives them (not normalised).
        image_embeds: (g, D) image embeddings as the image side gives them (not normalised).
    """

    loss: Tensor | None = None
    logits_per_eeg: Tensor | None = None
    logits_per_image: Tensor | None = None
    eeg_embeds: Tensor | None = None
    image_embeds: Tensor | None = None


class EEGRetrievalModel(PreTrainedModel):
    """Base of the retrieval models. A model adds ``_encode_eeg``, where it has one ``_encode_images``, ``get_logits`` and ``score``."""

    config_class = EEGRetrievalConfig
    base_model_prefix = "retrieval"
    main_input_name = "eeg"
    similarity: str  # what `score` is, in words; every model states its own

    def _init_weights(self, module: nn.Module) -> None:
        if self.config.initialization == "transformers":
            super()._init_weights(module)
        elif self.config.initialization == "nice":
            init_nice(module)
        else:
            init_torch(module)

    # --------------------------------------------------------------------------------------------------------------- what a model is

    def _encode_eeg(self, eeg: Tensor, subject: int | Tensor | None) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} does not say how it encodes EEG")

    def _encode_images(self, branches: dict[str, Tensor]) -> Tensor:
        """Frozen targets, as they are."""
        return branches["image"]

    def get_logits(self, eeg_embeds: Tensor, image_embeds: Tensor) -> Tensor:
        """(b, g) float32 logits of the contrastive loss, from embeddings (b, D) and (g, D)."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its logits are")

    def score(self, eeg_embeds: Tensor, image_embeds: Tensor) -> Tensor:
        """(b, g) float32, the method's own score of EEG queries (b, D) and candidates (g, D); larger is better."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it scores")

    # -------------------------------------------------------------------------------------------------------------------- embeddings

    @property
    def dummy_inputs(self) -> dict[str, Any]:
        """Inputs of the right shapes: three pairs, and the wish for a loss."""
        config, generator = self.config, torch.Generator().manual_seed(0)
        eeg = torch.randn(3, config.n_channels, config.n_times, generator=generator)
        images = {name: torch.randn(3, dim, generator=generator) for name, dim in config.image_inputs.items()}
        return {"eeg": eeg, "image_features": images if len(images) > 1 else next(iter(images.values())), "return_loss": True}

    def get_eeg_features(self, eeg: Tensor, subject: int | Tensor | None = None) -> Tensor:
        """Embeddings of EEG epochs.

        Args:
            eeg: (b, C, T) float, channels in the order of ``config.ch_names``, whitened as in training (no unit).
            subject: number of the person, 1-based, or (b,) of them; only ATM looks at it.

        Returns:
            (b, D), not normalised.

        Raises:
            ValueError: `eeg` does not have shape (b, C, T).
        """
        self._check("eeg", eeg, (self.config.n_channels, self.config.n_times))
        return self._encode_eeg(eeg.to(self.dtype), subject)

    def get_image_features(self, image_features: ImageFeatures) -> Tensor:
        """Embeddings of candidate images, from features of the frozen encoders that the model was trained with.

        Args:
            image_features: (g, image_dim), raw as the encoder gives them; or a mapping with the names and lengths of
                ``config.image_inputs``, which models with several visual branches need.

        Returns:
            (g, D), not normalised; the features themselves where the method has frozen targets.

        Raises:
            ValueError: a feature is missing, is not known, or has the wrong shape.
        """
        return self._encode_images(self._image_branches(image_features))

    # ----------------------------------------------------------------------------------------------------------------------- forward

    def forward(
        self,
        eeg: Tensor,
        image_features: ImageFeatures | None = None,
        subject: int | Tensor | None = None,
        return_loss: bool | None = None,
        return_dict: bool | None = None,
    ) -> EEGRetrievalOutput | tuple[Tensor, ...]:
        """Embed EEG epochs and images and compare all with all.

        Args:
            eeg: (b, C, T) epochs.
            image_features: see :meth:`get_image_features`; without them only ``eeg_embeds`` is returned.
            subject: see :meth:`get_eeg_features`.
            return_loss: True for the contrastive loss, which takes epoch i and image i as a pair.
            return_dict: False for a plain tuple.

        Raises:
            ValueError: wrong shapes, or a loss is wanted and there is not one image per epoch.
        """
        output = self._compare(self.get_eeg_features(eeg, subject), image_features, return_loss)
        return output.to_tuple() if return_dict is False else output

    def _compare(self, eeg_embeds: Tensor, image_features: ImageFeatures | None, return_loss: bool | None) -> EEGRetrievalOutput:
        if image_features is None:
            if return_loss:
                raise ValueError("return_loss=True needs image_features")
            return EEGRetrievalOutput(eeg_embeds=eeg_embeds)
        image_embeds = self.get_image_features(image_features)
        logits = self.get_logits(eeg_embeds, image_embeds)
        return EEGRetrievalOutput(
            loss=symmetric_infonce(logits) if return_loss else None,
            logits_per_eeg=logits,
            logits_per_image=logits.T,
            eeg_embeds=eeg_embeds,
            image_embeds=image_embeds,
        )

    # ------------------------------------------------------------------------------------------------------------------------ borders

    def _image_branches(self, image_features: ImageFeatures) -> dict[str, Tensor]:
        """The features by name, float32 (files of features are often float16), in the order of ``config.image_inputs``."""
        wanted = self.config.image_inputs
        if isinstance(image_features, Tensor):
            if len(wanted) > 1:
                raise ValueError(f"image_features must be a mapping with the keys {list(wanted)}, got one tensor")
            image_features = {next(iter(wanted)): image_features}
        if set(image_features) != set(wanted):
            raise ValueError(f"image_features has the keys {sorted(image_features)}, expected {sorted(wanted)}")
        for name, dim in wanted.items():
            self._check("image_features" if len(wanted) == 1 else f"image_features[{name!r}]", image_features[name], (dim,))
        lengths = {name: len(image_features[name]) for name in wanted}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"image_features must have one row per image in every branch, found {lengths}")
        return {name: image_features[name].float() for name in wanted}

    @staticmethod
    def _check(name: str, value: Tensor, shape: tuple[int, ...]) -> None:
        if value.ndim != len(shape) + 1 or tuple(value.shape[1:]) != shape:
            raise ValueError(f"{name} has shape {tuple(value.shape)}, expected (n, {', '.join(map(str, shape))})")


class ContrastiveModel(EEGRetrievalModel):
    """A retrieval model with scaled inner products in its loss and the cosine as its score (all but HyFI)."""

    config_class = ContrastiveConfig
    similarity = "cosine"

    def __init__(self, config: ContrastiveConfig) -> None:
        super().__init__(config)
        # A fixed temperature stays a number of the configuration: as a Parameter, weight decay would move it.
        self.logit_scale = nn.Parameter(torch.empty(())) if config.logit_scale_trainable else None

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, ContrastiveModel) and module.logit_scale is not None:
            init.constant_(module.logit_scale, self.config.logit_scale_init)

    @property
    def scale(self) -> float | Tensor:
        """What the inner products are multiplied by in the logits."""
        value = self.config.logit_scale_init if self.logit_scale is None else self.logit_scale.float()
        return temperature_scale(value, self.config.logit_scale_mapping)

    def get_logits(self, eeg_embeds: Tensor, image_embeds: Tensor) -> Tensor:
        """scale * E I^T, each side L2-normalised as the configuration says.

        Args:
            eeg_embeds: (b, D).
            image_embeds: (g, D).

        Returns:
            (b, g) float32, also under autocast.
        """
        with torch.autocast(eeg_embeds.device.type, enabled=False):
            eeg, image = eeg_embeds.float(), image_embeds.float()
            if self.config.normalize_eeg:
                eeg = nn.functional.normalize(eeg, dim=-1)
            if self.config.normalize_image:
                image = nn.functional.normalize(image, dim=-1)
            return self.scale * (eeg @ image.T)

    def score(self, eeg_embeds: Tensor, image_embeds: Tensor) -> Tensor:
        """Cosine of queries and candidates.

        Args:
            eeg_embeds: (b, D) from :meth:`get_eeg_features`.
            image_embeds: (g, D) from :meth:`get_image_features`.

        Returns:
            (b, g) float32 in [-1, 1], also under autocast; 0 where an embedding is all zeros.
        """
        with torch.autocast(eeg_embeds.device.type, enabled=False):
            return nn.functional.normalize(eeg_embeds.float(), dim=-1) @ nn.functional.normalize(image_embeds.float(), dim=-1).T


__all__ = ["ContrastiveModel", "EEGRetrievalModel", "EEGRetrievalOutput"]
