"""Random projection of EEG to the length of an image feature: the floor of EEG-to-image retrieval, at chance by construction."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from transformers import initialization as init

from .base import EEGRetrievalModel
from .configuration_random_projection import RandomProjectionConfig


class RandomProjectionModel(EEGRetrievalModel):
    """EEG (b, C, T), standardised and flattened, to (b, D) by a Gaussian matrix that only ``config.seed`` decides.

    Over seeds the direction of a projected query is uniform, whatever the EEG: of two candidates either one is nearer with probability
    1/2 (2AFC: 50 %), and a query finds its image among Q sources once in Q, on average over the queries. In a pool of a source and its edits
    the source lies between its edits, so it is the nearest one more rarely than 1 / pool size. For one seed, queries share what their epochs
    share and their hits are not independent: judge the floor over several seeds. No gradient reaches the matrix.

    C*T*D numbers, none trained; buffers: mean and SD of the EEG (C, T each), mean image feature (D), all set by :meth:`fit`.
    """

    config_class = RandomProjectionConfig
    similarity = "cosine after centring"

    def __init__(self, config: RandomProjectionConfig) -> None:
        super().__init__(config)
        shape = (config.n_channels, config.n_times)
        self.register_buffer("eeg_mean", torch.zeros(shape))
        self.register_buffer("eeg_scale", torch.ones(shape))
        self.register_buffer("image_mean", torch.zeros(config.image_dim))
        # A parameter, since a model's dtype and device are those of its parameters.
        self.projection = nn.Parameter(torch.empty(config.embed_dim, config.n_channels * config.n_times), requires_grad=False)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, RandomProjectionModel):
            init.zeros_(module.eeg_mean)
            init.ones_(module.eeg_scale)
            init.zeros_(module.image_mean)
            generator = torch.Generator().manual_seed(self.config.seed)
            drawn = torch.randn(module.projection.shape, generator=generator, device="cpu")
            init.copy_(module.projection, drawn / module.projection.shape[1] ** 0.5)

    def _encode_eeg(self, eeg: Tensor, subject: int | Tensor | None) -> Tensor:
        # In half precision a difference of large values would lose the signal.
        standard = (eeg.float() - self.eeg_mean.float()) / self.eeg_scale.float()
        return standard.flatten(1).to(self.dtype) @ self.projection.detach().T

    def get_logits(self, eeg_embeds: Tensor, image_embeds: Tensor) -> Tensor:
        """The scores as they are; there is no temperature, for nothing is trained."""
        return self.score(eeg_embeds, image_embeds)

    def score(self, eeg_embeds: Tensor, image_embeds: Tensor) -> Tensor:
        """Cosine of projected EEG with image features less their training mean (as :meth:`.RidgeRetrievalModel.score` takes it off).

        Args:
            eeg_embeds: (b, D) from :meth:`get_eeg_features`.
            image_embeds: (g, D) from :meth:`get_image_features`.

        Returns:
            (b, g) float32 in [-1, 1], also under autocast; 0 where a vector is all zeros.
        """
        with torch.autocast(eeg_embeds.device.type, enabled=False):
            image = nn.functional.normalize(image_embeds.float() - self.image_mean.float(), dim=-1)
            return nn.functional.normalize(eeg_embeds.float(), dim=-1) @ image.T

    @torch.no_grad()
    def fit(self, eeg: np.ndarray | Tensor, image_features: np.ndarray | Tensor) -> None:
        """Take mean and SD of training EEG, and the mean image feature; the pairing of the two is not looked at.

        Without it EEG goes in as it is and scores are plain cosines, in which what all epochs share, and what all images share, is
        the same for every query.

        Args:
            eeg: (n, C, T) training epochs, n >= 2.
            image_features: (m, D) features of training images.

        Raises:
            ValueError: shapes that do not fit the configuration, values that are not finite, or fewer than 2 epochs.
        """
        x, y = torch.as_tensor(eeg), torch.as_tensor(image_features)
        self._check("eeg", x, (self.config.n_channels, self.config.n_times))
        self._check("image_features", y, (self.config.image_dim,))
        if len(x) < 2 or len(y) < 1:
            raise ValueError(f"expected at least 2 epochs and 1 image, found {len(x)} and {len(y)}")
        for name, values in (("eeg", x), ("image_features", y)):
            if not torch.isfinite(values).all():
                raise ValueError(f"{name} holds NaN or infinite values: repair or drop those rows first")
        for channel in range(self.config.n_channels):  # one at a time: in float64, all at once may not fit the memory
            spread, mean = torch.std_mean(x[:, channel].double(), dim=0, correction=0)
            # Rounding alone gives constant samples some spread.
            spread = torch.where(spread <= 1e-7 * mean.abs(), 1.0, spread)
            self.eeg_mean[channel], self.eeg_scale[channel] = mean.float(), spread.float()
        self.image_mean.copy_(y.double().mean(dim=0))
        self.config.n_train = len(x)


__all__ = ["RandomProjectionModel"]
