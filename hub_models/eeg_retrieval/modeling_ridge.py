"""Ridge regression from EEG to image features: the linear baseline of EEG-to-image retrieval.

One epoch is standardised, flattened and mapped linearly to the feature of the image that was seen; candidates are ranked by the cosine
of their features with that prediction. The fit is in closed form, on the CPU or a GPU, and has no random part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.utils import ModelOutput

from .configuration_ridge import RidgeRetrievalConfig

DEFAULT_ALPHAS = tuple(10.0**k for k in range(0, 8))
# float64 values of the standardised EEG that are held at a time while its Gram matrix is summed up (128 MiB).
BLOCK_VALUES = 1 << 24


@dataclass
class RidgeRetrievalOutput(ModelOutput):
    """What :class:`RidgeRetrievalModel` returns.

    Attributes:
        loss: always None: the model is fitted in closed form.
        logits_per_eeg: (b, g) centred cosine of each EEG query with each candidate image, in [-1, 1]; no temperature.
        logits_per_image: (g, b) its transpose.
        eeg_embeds: (b, d) predicted image features, in the space and scale of the image features.
        image_embeds: (g, d) features of the candidates.
    """

    loss: Tensor | None = None
    logits_per_eeg: Tensor | None = None
    logits_per_image: Tensor | None = None
    eeg_embeds: Tensor | None = None
    image_embeds: Tensor | None = None


class RidgeFit(NamedTuple):
    """What :meth:`RidgeRetrievalModel.fit` found.

    Attributes:
        alpha: the penalty taken.
        alphas: the penalties compared, ascending; one when it was given.
        loo_mse: leave-one-out mean squared error over training images and features for each of `alphas`; empty when one was given.
        loo_r2: 1 - loo_mse / variance of the training features, for each of `alphas`.
    """

    alpha: float
    alphas: tuple[float, ...]
    loo_mse: tuple[float, ...]
    loo_r2: tuple[float, ...]


class RidgeRetrievalModel(PreTrainedModel):
    """EEG (b, C, T) to image features (b, d) by one linear map of the standardised epoch.

    Parameters: C*T*d weights and d intercepts; buffers: mean and SD of the EEG (C, T each) and the mean image feature (d).
    """

    config_class = RidgeRetrievalConfig
    similarity = "cosine after centring"
    base_model_prefix = "ridge"
    main_input_name = "eeg"

    def __init__(self, config: RidgeRetrievalConfig) -> None:
        super().__init__(config)
        shape = (config.n_channels, config.n_times)
        self.register_buffer("eeg_mean", torch.zeros(shape))
        self.register_buffer("eeg_scale", torch.ones(shape))
        self.register_buffer("image_mean", torch.zeros(config.embed_dim))
        self.projection = nn.Linear(config.n_channels * config.n_times, config.embed_dim)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, RidgeRetrievalModel):
            init.zeros_(module.eeg_mean)
            init.ones_(module.eeg_scale)
            init.zeros_(module.image_mean)

    # ----------------------------------------------------------------------------------------------------------------- prediction

    @property
    def dummy_inputs(self) -> dict[str, Tensor]:
        """Inputs of the right shapes: two queries, three candidates."""
        config, generator = self.config, torch.Generator().manual_seed(0)
        eeg = torch.randn(2, config.n_channels, config.n_times, generator=generator)
        return {"eeg": eeg, "image_features": torch.randn(3, config.embed_dim, generator=generator)}

    def get_eeg_features(self, eeg: Tensor) -> Tensor:
        """Predicted image features of EEG epochs.

        Args:
            eeg: (b, C, T) float, channels in the order of ``config.ch_names``, in the unit of the training epochs.

        Returns:
            (b, d), in the space and scale of the training image features (not normalised, not centred).

        Raises:
            ValueError: `eeg` does not have shape (b, C, T).
        """
        self._check("eeg", eeg, (self.config.n_channels, self.config.n_times))
        # In half precision a difference of large values would lose the signal.
        standard = (eeg.float() - self.eeg_mean.float()) / self.eeg_scale.float()
        return self.projection(standard.flatten(1).to(self.projection.weight.dtype))

    def get_image_features(self, image_features: Tensor) -> Tensor:
        """Candidates' features as they are, once their shape (g, d) is checked: images pass through no trained part."""
        self._check("image_features", image_features, (self.config.embed_dim,))
        return image_features.to(self.projection.weight.dtype)

    def score(self, eeg_embeds: Tensor, image_embeds: Tensor) -> Tensor:
        """Cosine of predictions and candidates, both less the mean training image feature.

        Features of one encoder lie in a cone (two CLIP ViT-L/14 features of THINGS test images have a mean cosine of about .54), so
        the common direction would dominate a plain cosine.

        Args:
            eeg_embeds: (b, d) from :meth:`get_eeg_features`.
            image_embeds: (g, d) from :meth:`get_image_features`, or plain image features.

        Returns:
            (b, g) float32 in [-1, 1]; 0 where a centred vector is all zeros.
        """
        eeg = nn.functional.normalize(eeg_embeds.float() - self.image_mean.float(), dim=-1)
        image = nn.functional.normalize(image_embeds.float() - self.image_mean.float(), dim=-1)
        return eeg @ image.T

    def forward(
        self, eeg: Tensor, image_features: Tensor | None = None, return_dict: bool | None = None
    ) -> RidgeRetrievalOutput | tuple[Tensor, ...]:
        """Rank candidate images for EEG queries.

        Args:
            eeg: (b, C, T) epochs.
            image_features: (g, d) features of the candidates; without them only ``eeg_embeds`` is returned.
            return_dict: False for a plain tuple.
        """
        output = RidgeRetrievalOutput(eeg_embeds=self.get_eeg_features(eeg))
        if image_features is not None:
            images = self.get_image_features(image_features)
            scores = self.score(output.eeg_embeds, images)
            output = RidgeRetrievalOutput(
                logits_per_eeg=scores, logits_per_image=scores.T, eeg_embeds=output.eeg_embeds, image_embeds=images
            )
        return output.to_tuple() if return_dict is False else output

    @staticmethod
    def _check(name: str, value: Tensor, shape: tuple[int, ...]) -> None:
        if value.ndim != len(shape) + 1 or tuple(value.shape[1:]) != shape:
            raise ValueError(f"{name} has shape {tuple(value.shape)}, expected (n, {', '.join(map(str, shape))})")

    # ------------------------------------------------------------------------------------------------------------------------ fit

    @torch.no_grad()
    def fit(self, eeg: np.ndarray | Tensor, image_features: np.ndarray | Tensor, alpha: float | Sequence[float] | None = None) -> RidgeFit:
        """Fit the weights in closed form (float64), replacing what the model held.

        EEG is standardised per channel and sample over the training epochs; an intercept is fitted and not penalised. With several
        penalties the one with the smallest leave-one-out error is taken, computed in closed form from one eigendecomposition; the
        standardisation stays that of all training epochs while one is left out. Nothing but the training pairs is looked at.

        Cost: min(n, p)^3 for p = C*T, and n*p*min(n, p); memory about 8*min(n, p)^2 bytes three times over.

        Args:
            eeg: (n, C, T) training epochs, n >= 2 (average repetitions of an image first, or its copies tell on each other).
            image_features: (n, d) features of the images seen, row by row.
            alpha: penalty > 0, or several to choose from; None compares 1, 10, ..., 10^7.

        Returns:
            The penalty and the leave-one-out errors.

        Raises:
            ValueError: shapes that do not fit the configuration or each other, non-finite values, fewer than 2 epochs, alpha <= 0.
        """
        alphas = self._alphas(alpha)
        x, y = torch.as_tensor(eeg), torch.as_tensor(image_features)
        self._check("eeg", x, (self.config.n_channels, self.config.n_times))
        self._check("image_features", y, (self.config.embed_dim,))
        if len(x) != len(y) or len(x) < 2:
            raise ValueError(f"expected as many epochs as image features and at least 2, found {len(x)} and {len(y)}")
        for name, values in (("eeg", x), ("image_features", y)):
            if not torch.isfinite(values).all():
                raise ValueError(f"{name} holds NaN or infinite values: repair or drop those rows first")
        # Apple's GPUs have no float64.
        device = torch.device("cpu") if self.device.type == "mps" else self.device
        x, y = x.to(device).flatten(1), y.to(device, torch.float64)
        mean, scale = _moments(x)
        y_mean = y.mean(dim=0)
        solution = _solve(_Standardised(x, mean, scale), y - y_mean, alphas)
        self._store(mean, scale, y_mean, solution.weights)
        self.config.alpha, self.config.n_train = solution.fit.alpha, len(x)
        return solution.fit

    @staticmethod
    def _alphas(alpha: float | Sequence[float] | None) -> tuple[float, ...]:
        values = DEFAULT_ALPHAS if alpha is None else tuple(float(a) for a in np.atleast_1d(np.asarray(alpha, dtype=np.float64)))
        if not values or not all(0 < a < float("inf") for a in values):
            raise ValueError(f"alpha must be positive and finite, got {alpha!r}")
        return tuple(sorted(set(values)))

    def _store(self, mean: Tensor, scale: Tensor, y_mean: Tensor, weights: Tensor) -> None:
        shape = (self.config.n_channels, self.config.n_times)
        self.eeg_mean.copy_(mean.reshape(shape))
        self.eeg_scale.copy_(scale.reshape(shape))
        self.image_mean.copy_(y_mean)
        self.projection.weight.copy_(weights.T)
        self.projection.bias.copy_(y_mean)


# ------------------------------------------------------------------------------------------------------------------------ closed form


class _Solution(NamedTuple):
    weights: Tensor  # (p, d) float64
    fit: RidgeFit


class _Standardised:
    """Standardised training EEG (n, p), made float64 one block of columns at a time: whole it would take 8*n*p bytes."""

    def __init__(self, x: Tensor, mean: Tensor, scale: Tensor) -> None:
        self.x, self.mean, self.scale = x, mean, scale
        self.n, self.p = x.shape

    def _slices(self) -> list[slice]:
        width = max(1, BLOCK_VALUES // self.n)
        return [slice(start, start + width) for start in range(0, self.p, width)]

    def _columns(self, part: slice) -> Tensor:
        return (self.x[:, part].to(torch.float64) - self.mean[part]) / self.scale[part]

    def gram(self) -> Tensor:
        """X X^T, (n, n)."""
        total = torch.zeros(self.n, self.n, dtype=torch.float64, device=self.x.device)
        for part in self._slices():
            columns = self._columns(part)
            total.addmm_(columns, columns.T)
        return total

    def whole(self) -> Tensor:
        """X, (n, p)."""
        return self._columns(slice(None))

    def transposed_times(self, values: Tensor) -> Tensor:
        """X^T values, (p, d)."""
        return torch.cat([self._columns(part).T @ values for part in self._slices()])


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and SD over epochs, float64 (p,) each; SD 1 where nothing varies."""
    means, scales = [], []
    for part in x.split(max(1, BLOCK_VALUES // len(x)), dim=1):
        values = part.to(torch.float64)
        mean = values.mean(dim=0)
        scale = (values - mean).square().mean(dim=0).sqrt()
        # Rounding alone gives a constant column some spread.
        constant = scale <= 1e-7 * mean.abs()
        means.append(mean)
        scales.append(torch.where(constant, torch.ones_like(scale), scale))
    mean, scale = torch.cat(means), torch.cat(scales)
    return mean, scale


def _solve(x: _Standardised, y: Tensor, alphas: tuple[float, ...]) -> _Solution:
    """Ridge weights for centred targets y (n, d), at the given penalty or at the one with the smallest leave-one-out error."""
    if len(alphas) == 1:
        return _Solution(_direct(x, y, alphas[0]), RidgeFit(alphas[0], alphas, (), ()))
    if x.n <= x.p:
        values, basis = torch.linalg.eigh(x.gram())
        values = values.clamp_min(0)
        # X X^T = U L U^T: predictions are U l/(l + a) U^T y.
        coordinates = basis.T @ y
        shrink = [values / (values + a) for a in alphas]
    else:
        whole = x.whole()
        values, axes = torch.linalg.eigh(whole.T @ whole)
        values = values.clamp_min(0)
        basis = whole @ axes
        coordinates = basis.T @ y
        shrink = [1 / (values + a) for a in alphas]
    squares = basis.square()
    errors = []
    for factor in shrink:
        leverage = squares @ factor + 1 / x.n  # the intercept's share is 1/n
        residual = y - basis @ (factor[:, None] * coordinates)
        # A leverage of 1 means that the row alone decides its prediction: its error is not defined, the penalty too small.
        left_out = residual / (1 - leverage).clamp_min(1e-12)[:, None]
        errors.append(float(left_out.square().mean()))
    best = int(np.argmin(errors))
    variance = float(y.square().mean())
    r2 = tuple(1 - error / variance if variance > 0 else 0.0 for error in errors)
    if x.n <= x.p:
        weights = x.transposed_times(basis @ (coordinates / (values + alphas[best])[:, None]))
    else:
        weights = axes @ (coordinates / (values + alphas[best])[:, None])
    return _Solution(weights, RidgeFit(alphas[best], alphas, tuple(errors), r2))


def _direct(x: _Standardised, y: Tensor, alpha: float) -> Tensor:
    """(p, d) weights at one penalty, by a Cholesky factor of the smaller system."""
    if x.n <= x.p:
        gram = x.gram()
        gram.diagonal().add_(alpha)
        return x.transposed_times(torch.cholesky_solve(y, torch.linalg.cholesky(gram)))
    whole = x.whole()
    gram = whole.T @ whole
    gram.diagonal().add_(alpha)
    return torch.cholesky_solve(whole.T @ y, torch.linalg.cholesky(gram))


__all__ = ["RidgeFit", "RidgeRetrievalModel", "RidgeRetrievalOutput"]
