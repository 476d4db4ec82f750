"""BCS: twelve question scores of a reconstructed image against its reference, from frozen image encoders and a trained ensemble of heads.

ImageSource: Tiwari et al. 2026, arXiv 2607.12364, section 5 and appendix C.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.utils import ModelOutput

from decodehub.loaders.images import ImageLike, ImageSource, image_list, source

from .configuration_bcs import BCSConfig
from .encoders import ImageEncoder, load_encoder
from .members import BaselineHead, MLPHead, PrototypeHead, start_weights
from .travel import TravelsWithCode

ROWS = 512  # pairs that pass through the head at once outside training: 5 members of 9,219 float32 features are 94 MB


@dataclass
class BCSOutput(ModelOutput):
    """What BCS says of n pairs.

    Attributes:
        loss: scalar, mean over members of the weighted MSE (Eq. 17); only with labels.
        question_scores: (n, 12) in [0, 1], the mean over members (snapped to 0, .5, 1 where the configuration says "ordinal").
        t_pas: (n,) mean of the six perceptual scores (Eq. 19). t_sas: (n,) mean of the six semantic ones (Eq. 20).
        spread: (n, 12) population SD over members of the scores before any snapping.
        member_scores: (M, n, 12), on request. logits: (M, n, 12, 3) of the ordinal head, on request.
    """

    loss: Tensor | None = None
    question_scores: Tensor | None = None
    t_pas: Tensor | None = None
    t_sas: Tensor | None = None
    spread: Tensor | None = None
    member_scores: Tensor | None = None
    logits: Tensor | None = None


def pair_features(reference: Tensor, reconstruction: Tensor) -> Tensor:
    """The features of pairs for one encoder (Eq. 14 and 15): [r, g, |r - g|, r * g, <r, g>] of the unit vectors r and g.

    Args:
        reference, reconstruction: (n, d) embeddings, any dtype.

    Returns:
        (n, 4 d + 1) float32; the cast comes before the normalisation, as in the released code.

    Raises:
        ValueError: an embedding that is not finite or has length 0.
    """
    sides = []
    for name, values in (("reference", reference.float()), ("reconstruction", reconstruction.float())):
        length = values.norm(dim=-1, keepdim=True)
        bad = ~torch.isfinite(length[:, 0]) | (length[:, 0] == 0)
        if bad.any():
            raise ValueError(f"the {name} embedding of row {int(bad.nonzero()[0, 0])} is not finite or all zeros and has no direction")
        sides.append(values / length)
    r, g = sides
    return torch.cat([r, g, (r - g).abs(), r * g, (r * g).sum(-1, keepdim=True)], dim=-1)


def weighted_mse(scores: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """sum w (p - t)^2 / sum w for each member (Eq. 17 and 26).

    Args:
        scores: (M, n, 12). labels: (n, 12) or (M, n, 12), NaN where unknown. weights: as labels; 0 where a label is unknown.

    Returns:
        (M,).
    """
    weights = torch.where(labels.isnan(), 0, weights)
    errors = weights * (scores - labels.nan_to_num()).square()
    return errors.sum((-2, -1)) / weights.sum((-2, -1))


class BCSHead(TravelsWithCode, PreTrainedModel):
    """The trained part: features of pairs to scores. All members are one batched network (see ``members``)."""

    config_class = BCSConfig
    base_model_prefix = "bcs"
    main_input_name = "features"

    def __init__(self, config: BCSConfig) -> None:
        super().__init__(config)
        sizes = (config.n_members, config.feature_dim, len(config.questions or ()))
        if config.architecture == "siglip_baseline":
            self.network: nn.Module = BaselineHead(*sizes)
        else:
            kind = MLPHead if config.architecture == "mlp" else PrototypeHead
            self.network = kind(*sizes, config.hidden_size, config.ffn_size, config.n_blocks, config.dropout)
        for index, layer in enumerate(self.network.modules()):
            layer.index = index
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        for name, value in start_weights(module, self.config.seeds, getattr(module, "index", 0)).items():
            init.copy_(getattr(module, name), value)

    @property
    def dummy_inputs(self) -> dict[str, Tensor]:
        """Features of three pairs, of the right length."""
        return {"features": torch.randn(3, self.config.feature_dim, generator=torch.Generator().manual_seed(0))}

    def check_encoders(self, fingerprints: Sequence[str]) -> None:
        """Refuse features of other encoders than those the head was trained with.

        Raises:
            ValueError: the number of encoders or a fingerprint differs.
        """
        expected = self.config.encoders
        if len(fingerprints) != len(expected):
            raise ValueError(f"this head takes features of {len(expected)} encoders ({_ids(expected)}), found {len(fingerprints)}")
        for entry, found in zip(expected, fingerprints):
            if entry["fingerprint"] not in (None, found):
                raise ValueError(
                    f"this head was trained with encoder {entry['id']!r} of fingerprint {entry['fingerprint'][:19]}..., found "
                    f"{found[:19]}...: other weights, architecture or preprocessing; load the encoder it was trained with or train a head for this one"
                )

    def member_scores(self, features: Tensor, masks: Iterator[Tensor] | None = None) -> tuple[Tensor, Tensor | None]:
        """Scores of every member, (M, n, 12) float32, and the logits of the ordinal head (M, n, 12, 3) or None.

        Args:
            features: (n, F), or (M, n, F) with rows of its own for each member.
            masks: dropout masks in training, see ``members.Dropout``; None draws them from torch's generator.
        """
        scores, logits = self.network(features.to(self.dtype), masks)
        return scores.float(), None if logits is None else logits.float()

    def forward(
        self,
        features: Tensor | None = None,
        labels: Tensor | None = None,
        weights: Tensor | None = None,
        return_members: bool = False,
        return_dict: bool | None = None,
    ) -> BCSOutput | tuple[Tensor, ...]:
        """Score pairs.

        Args:
            features: (n, F) float, F = ``config.feature_dim``: :func:`pair_features` of each encoder, side by side in the order of the
                configuration.
            labels: (n, 12) targets in [0, 1] for a loss, NaN where unknown. weights: (n, 12), by default 1.
            return_members: also give the scores (and logits) of each member.
            return_dict: False for a plain tuple.

        Raises:
            ValueError: features of another length, or with NaN or infinite values.
        """
        if features is None:
            raise ValueError(f"expected features (n, {self.config.feature_dim}), found none")
        self._check(features)
        scores, logits = self.member_scores(features)
        loss = None
        if labels is not None:
            loss = weighted_mse(scores, labels, torch.ones_like(labels) if weights is None else weights).mean()
        output = self._summary(scores)
        output.loss = loss
        if return_members:
            output.member_scores, output.logits = scores, logits
        return output.to_tuple() if return_dict is False else output

    def predict(self, features: np.ndarray, progress: bool = False) -> BCSOutput:
        """Score any number of pairs in blocks, on the model's device; (n, F) float32, may be memory-mapped. Outputs are on the CPU.

        Raises:
            ValueError: as :meth:`forward`, or no pair.
        """
        if not len(features):
            raise ValueError("there are no pairs to score")
        was_training = self.training
        self.eval()
        blocks = []
        with torch.inference_mode(), tqdm(total=len(features), desc="scores", unit="pair", disable=not progress) as bar:
            for start in range(0, len(features), ROWS):
                block = torch.from_numpy(np.array(features[start : start + ROWS], dtype=np.float32))
                self._check(block, start)
                blocks.append(self.member_scores(block.to(self.device))[0].cpu())
                bar.update(len(block))
        self.train(was_training)
        scores = torch.cat(blocks, dim=1)
        output = self._summary(scores)
        output.member_scores = scores
        return output

    def _summary(self, members: Tensor) -> BCSOutput:
        scores = members.mean(0)
        if self.config.output_type == "ordinal":
            low, high = torch.tensor(self.config.thresholds, device=scores.device, dtype=scores.dtype).unbind(-1)
            scores = torch.where(scores < low, 0.0, torch.where(scores < high, 0.5, 1.0))
        perceptual, semantic = ([i for i, q in enumerate(self.config.questions) if q[0] == kind] for kind in "PS")
        return BCSOutput(
            question_scores=scores,
            t_pas=scores[:, perceptual].mean(-1),
            t_sas=scores[:, semantic].mean(-1),
            spread=members.std(0, correction=0),
        )

    def _check(self, features: Tensor, first: int = 0) -> None:
        if features.ndim != 2 or features.shape[1] != self.config.feature_dim:
            raise ValueError(
                f"features have shape {tuple(features.shape)}, expected (n, {self.config.feature_dim}) of {_ids(self.config.encoders)}"
            )
        bad = (~torch.isfinite(features)).any(1).nonzero()
        if len(bad):
            raise ValueError(f"features have NaN or infinite values in {len(bad)} rows, the first is row {first + int(bad[0, 0])}")


class BCSModel(BCSHead):
    """The head with its frozen encoders, which are loaded by id when first needed and are no part of what is saved."""

    _encoders: list[ImageEncoder] | None = None

    @property
    def encoders(self) -> list[ImageEncoder]:
        """The frozen encoders in the order of the configuration; loaded on first use, or set to ones that are loaded already.

        Raises:
            ValueError: encoders that the head was not trained with. RuntimeError: weights that are not here and cannot be fetched.
        """
        if self._encoders is None:
            self.encoders = [load_encoder(entry["id"]) for entry in self.config.encoders]
        assert self._encoders is not None
        return self._encoders

    @encoders.setter
    def encoders(self, encoders: Sequence[ImageEncoder]) -> None:
        self.check_encoders([encoder.fingerprint for encoder in encoders])
        for encoder, entry in zip(encoders, self.config.encoders):
            if encoder.dim != entry["dim"]:
                raise ValueError(f"encoder {entry['id']!r} gives {encoder.dim} numbers, this head takes {entry['dim']}")
        self._encoders = list(encoders)

    def embed(self, images: Sequence[Any]) -> list[Tensor]:
        """Embeddings of 8-bit RGB PIL images, one (n, d) float32 tensor an encoder."""
        rows = []
        for encoder in self.encoders:
            if hasattr(encoder, "to"):
                encoder.to(self.device)
            rows.append(torch.from_numpy(np.asarray(encoder.encode(images), dtype=np.float32)))
        return rows

    def forward(
        self,
        features: Tensor | None = None,
        labels: Tensor | None = None,
        weights: Tensor | None = None,
        return_members: bool = False,
        return_dict: bool | None = None,
        reference_pixel_values: Sequence[Tensor] | None = None,
        reconstruction_pixel_values: Sequence[Tensor] | None = None,
    ) -> BCSOutput | tuple[Tensor, ...]:
        """Score pairs from ready features, or from pixels as :class:`BCSProcessor` gives them.

        Args:
            features, labels, weights, return_members, return_dict: see :meth:`BCSHead.forward`.
            reference_pixel_values, reconstruction_pixel_values: (n, 3, h, w) for each encoder, in place of features.

        Raises:
            ValueError: both or neither of features and pixels; and as :meth:`BCSHead.forward`.
        """
        pixels = [values for values in (reference_pixel_values, reconstruction_pixel_values) if values is not None]
        if len(pixels) != (2 if features is None else 0):
            raise ValueError("expected either features, or reference_pixel_values and reconstruction_pixel_values")
        if pixels:
            blocks = []
            for encoder, reference, reconstruction in zip(self.encoders, *pixels, strict=True):
                if not hasattr(encoder, "forward"):
                    raise ValueError("the encoders that were set take images, not pixels: call score()")
                if hasattr(encoder, "to"):
                    encoder.to(self.device)
                blocks.append(pair_features(encoder.forward(reference), encoder.forward(reconstruction)))
            features = torch.cat(blocks, dim=-1).clone()
        return super().forward(features, labels, weights, return_members, return_dict)

    def score(
        self, references: Sequence[ImageLike], reconstructions: Sequence[ImageLike], batch_size: int = 32, progress: bool = False
    ) -> BCSOutput:
        """Score pairs of images; each distinct image is decoded and encoded once.

        Args:
            references, reconstructions: n images each: paths, encoded bytes, PIL images, arrays or tensors of one image, dicts of
                bytes and path; or one array or tensor (n, 3, h, w) or (n, h, w, 3). How values become pixels: `loaders.images`.
            batch_size: images held at once, and in one forward pass on a GPU. On CPU scores do not depend on it.
            progress: show bars.

        Raises:
            ValueError: other counts, no pair, an image that cannot be read (named), encoders the head was not trained with.
            TypeError, FileNotFoundError: what is given is no image, or is not there.
        """
        references, reconstructions = image_list(references, "references"), image_list(reconstructions, "reconstructions")
        if len(references) != len(reconstructions) or not len(references):
            raise ValueError(
                f"expected as many references as reconstructions and at least one, found {len(references)} and {len(reconstructions)}"
            )
        named = {
            name: [source(image, f"{name} {i}") for i, image in enumerate(images)]
            for name, images in (("reference", references), ("reconstruction", reconstructions))
        }
        return self.score_sources(named["reference"], named["reconstruction"], batch_size, progress)

    def score_sources(
        self, references: Sequence[ImageSource], reconstructions: Sequence[ImageSource], batch_size: int = 32, progress: bool = False
    ) -> BCSOutput:
        """As :meth:`score`, for images whose content is known already (see ``loaders.images.source``)."""
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        distinct = list({s.digest: s for s in reversed([*references, *reconstructions])}.values())[::-1]
        place = {s.digest: i for i, s in enumerate(distinct)}
        parts: list[list[Tensor]] = []
        with tqdm(total=len(distinct), desc="images", unit="image", disable=not progress) as bar:
            for start in range(0, len(distinct), batch_size):
                batch = distinct[start : start + batch_size]
                parts.append(self.embed([s.load() for s in batch]))
                bar.update(len(batch))
        embeddings = [torch.cat(rows) for rows in zip(*parts)]
        left, right = ([place[s.digest] for s in side] for side in (references, reconstructions))
        outputs = []
        for start in range(0, len(left), ROWS):
            rows = slice(start, start + ROWS)
            blocks = [pair_features(e[left[rows]], e[right[rows]]) for e in embeddings]
            outputs.append(self.predict(torch.cat(blocks, dim=-1).numpy()).member_scores)
        scores = torch.cat(outputs, dim=1)
        output = self._summary(scores)
        output.member_scores = scores
        return output


def _ids(encoders: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(str(entry["id"]) for entry in encoders)


__all__ = ["BCSHead", "BCSModel", "BCSOutput", "pair_features", "weighted_mse"]
