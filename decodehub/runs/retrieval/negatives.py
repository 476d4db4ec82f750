"""Edits of training images as hard negatives of the contrastive loss.

EEG-EditBench finds that models retrieve well and still prefer an edit to the image that was seen, and proposes edits in training.
Here they are further columns of the softmax from EEG to images: row i of a batch is to tell its image from all other images of the batch and
from edits of these images. There is no EEG of an edit, so the softmax from images to EEG stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class HardNegatives(NamedTuple):
    """Edits of training images.

    Attributes:
        features: (m, d) float features by name of ``config.image_inputs``; for UBP and ATS (m, d), or (m, 3, d) with one for each blur, of
            which the one is taken that the image has in that step.
        negative_of: (m,) int, the training image that each edit was made from, as a value of `image_of`.
        image_of: (n,) int, the training image of each epoch of EEG.
    """

    features: Mapping[str, np.ndarray]
    negative_of: np.ndarray
    image_of: np.ndarray

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays by a name of their own, for a hash."""
        named = {f"negatives/{name}": array for name, array in self.features.items()}
        return {**named, "negative_of": self.negative_of, "image_of": self.image_of}


def make_negatives(
    negatives: Mapping[str, np.ndarray] | None,
    negative_of: np.ndarray | None,
    image_of: np.ndarray | None,
    n_epochs: int,
    image_inputs: Mapping[str, int],
    blurs: bool,
    hard_negatives: int,
) -> HardNegatives | None:
    """What `train` was given, checked; None when no hard negatives are wanted.

    Raises:
        ValueError: edits are given and not wanted, or wanted and not given; shapes do not fit; an edit is not of a training image.
    """
    if not hard_negatives:
        if negatives is not None or negative_of is not None:
            raise ValueError("negatives are given, but hard_negatives of the settings is 0: set how many of them join each image")
        return None
    if not negatives or negative_of is None:
        raise ValueError(f"hard_negatives is {hard_negatives}: give negatives, the features of edited training images, and negative_of")
    image_of = np.arange(n_epochs) if image_of is None else image_of
    m = len(negative_of)
    for name, array, shape in (("image_of", image_of, (n_epochs,)), ("negative_of", negative_of, (m,))):
        if array.shape != shape or array.dtype.kind not in "iu":
            raise ValueError(f"{name} has shape {array.shape}, {array.dtype}; expected {shape} whole numbers")
    if set(negatives) != set(image_inputs):
        raise ValueError(f"negatives has the parts {sorted(negatives)}, expected {sorted(image_inputs)}")
    for name, dim in image_inputs.items():
        allowed = [(m, dim), (m, 3, dim)] if blurs else [(m, dim)]
        if negatives[name].shape not in allowed:
            expected = " or ".join(map(str, allowed))
            raise ValueError(f"negatives[{name!r}] has shape {negatives[name].shape}, expected {expected}: one row for each of negative_of")
    unknown = ~np.isin(negative_of, image_of)
    if m == 0 or unknown.any():
        row = f"negative_of[{int(unknown.argmax())}] is {negative_of[unknown.argmax()]}" if m else "negative_of is empty"
        raise ValueError(f"{row}: expected numbers of training images, {image_of.min()} to {image_of.max()} as image_of has them")
    return HardNegatives(negatives, negative_of, image_of)


class Drawn(NamedTuple):
    """Edits that join a batch.

    Attributes:
        rows: (k,) int64 rows of the edits' features.
        of: (k,) int64 position in the batch of the image that each was made from (its first one).
    """

    rows: Tensor
    of: Tensor


class EditSampler:
    """Draws, for each image of a batch, up to `per_image` different edits of it."""

    def __init__(self, negative_of: np.ndarray, image_of: np.ndarray, per_image: int) -> None:
        images = np.unique(image_of)
        owner = np.searchsorted(images, negative_of)
        self.per_image = per_image
        self.image = np.searchsorted(images, image_of)  # (n,) of each epoch, counted without gaps
        self.edits = torch.from_numpy(np.argsort(owner, kind="stable"))  # image after image
        self.count = torch.from_numpy(np.bincount(owner, minlength=len(images)))
        self.start = self.count.cumsum(0) - self.count

    def draw(self, epochs: np.ndarray, generator: torch.Generator) -> Drawn:
        """Edits for a batch of epochs (b,); an image that is there twice draws once.

        Args:
            epochs: rows of the EEG.
            generator: on the CPU.
        """
        images, first = np.unique(self.image[epochs], return_index=True)
        which = torch.from_numpy(images)
        count = self.count[which, None]
        keys = torch.rand(len(images), int(self.count.max()), generator=generator)
        there = torch.arange(keys.shape[1]) < count
        chosen = keys.masked_fill(~there, 2.0).argsort(dim=1)[:, : self.per_image]
        taken = torch.arange(chosen.shape[1]) < count
        position = torch.from_numpy(first)[:, None].expand_as(chosen)
        return Drawn(self.edits[(self.start[which, None] + chosen)[taken]], position[taken])


def hard_negative_term(logits: Tensor, edit_logits: Tensor) -> Tensor:
    """What edits add to the symmetric contrastive loss: half the mean over rows of LSE(logits and edit_logits) - LSE(logits).

    Added to ``symmetric_infonce(logits)`` it makes the cross-entropy from EEG to images one over images and edits.

    Args:
        logits: (b, b) of EEG and images, scaled.
        edit_logits: (b, k) of EEG and edits, scaled alike; -inf leaves an edit out.

    Returns:
        Scalar in nats, at least 0.
    """
    return (torch.cat([logits, edit_logits], dim=1).logsumexp(dim=1) - logits.logsumexp(dim=1)).mean() / 2


def contrast(
    model: Any, core: Any, eeg: Tensor, targets: Mapping[str, Tensor], subject: int, edits: Mapping[str, Tensor] | None = None
) -> Any:
    """Forward pass of a retrieval model on pairs, with its contrastive loss.

    Args:
        model: what is called. core: the same model without what an accelerator may have put around it.
        eeg: (b, C, T).
        targets: features (b, d) by part, with "text" for ATM.
        subject: number of the person.
        edits: features (k, d) by part of edits of the images, or None.

    Returns:
        The model's output; ``loss`` has the edits in it.
    """
    images = {name: targets[name] for name in core.config.image_inputs}
    text = {"text_features": targets["text"]} if "text" in targets else {}
    output = model(eeg, images, subject=subject, return_loss=True, **text)
    return output if edits is None else add_edits(output, core, edits)


def add_edits(output: Any, core: Any, edits: Mapping[str, Tensor]) -> Any:
    """Add edits to the loss of a forward pass: to the image term, which is all of it but for ATM, where the text has a share.

    Args:
        output: of the forward pass; its ``loss`` is replaced.
        core: the model.
        edits: features (k, d) by part.
    """
    logits = core.get_logits(output.eeg_embeds, core.get_image_features(edits))
    share = 1 - getattr(core.config, "text_weight", 0.0)
    output.loss = output.loss + share * hard_negative_term(output.logits_per_eeg, logits)
    return output


__all__ = ["Drawn", "EditSampler", "HardNegatives", "add_edits", "contrast", "hard_negative_term", "make_negatives"]
