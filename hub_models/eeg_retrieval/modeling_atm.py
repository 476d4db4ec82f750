"""ATM: channels as tokens of a transformer layer, then NICE's stem; EEG meets image and text features of OpenCLIP ViT-H/14."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .base import ContrastiveModel, EEGRetrievalOutput, ImageFeatures
from .blocks import ResidualHead, sinusoidal_positions
from .configuration_atm import ATMConfig
from .losses import symmetric_infonce
from .nice_blocks import stem_of


class ChannelTokens(nn.Module):
    """Every channel becomes a token as wide as the epoch is long; a token for the person is put in front.

    Shapes: (b, C, T) and (b,) to (b, C + 1, T).
    """

    def __init__(self, config: ATMConfig) -> None:
        super().__init__()
        self.config = config
        self.value = nn.Linear(config.n_times, config.n_times)
        self.subjects = nn.Embedding(config.n_subjects, config.n_times)
        self.shared = nn.Parameter(torch.empty(1, config.n_times))  # of people without a number
        self.dropout = nn.Dropout(config.attention_dropout)

    def forward(self, eeg: Tensor, subject: Tensor) -> Tensor:
        x = self.value(eeg)
        if self.config.position_code == "sinusoidal":
            x = x + sinusoidal_positions(x.shape[1], x.shape[2]).to(x)
        table = torch.cat([self.shared, self.subjects.weight])
        return self.dropout(torch.cat([table[self._rows(subject)][:, None].to(x.dtype), x], dim=1))

    def _rows(self, subject: Tensor) -> Tensor:
        """Rows of the table (shared token, tokens of people) for 1-based numbers, 0 for unknown."""
        if self.config.subject_token == "one_each":
            return subject
        return torch.where((subject == 0) | (subject >= self.config.n_subjects), 0, subject + 1)


class SelfAttention(nn.Module):
    """Heads of T // n_heads values (4 * 62 = 248 of 250), softmax of q k^T / sqrt(62). Shapes: (b, n, T) to (b, n, T).

    Written out, since ``torch.func.vmap`` (several seeds trained as one model) has no batching rule for the fused kernel on the CPU.
    """

    def __init__(self, width: int, n_heads: int, dropout: float) -> None:
        super().__init__()
        self.n_heads = n_heads
        inner = width // n_heads * n_heads
        self.query, self.key, self.value = nn.Linear(width, inner), nn.Linear(width, inner), nn.Linear(width, inner)
        self.output = nn.Linear(inner, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        weights = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(dim=-1)
        return self.output((self.dropout(weights) @ v).transpose(1, 2).flatten(2))


class EncoderLayer(nn.Module):
    """One post-norm transformer layer and the LayerNorm behind it. Shapes: (b, n, T) to (b, n, T).

    The feed-forward part, two 1x1 convolutions in the released code, is written as the linear layers that it is.
    """

    def __init__(self, config: ATMConfig) -> None:
        super().__init__()
        width = config.n_times
        self.attention = SelfAttention(width, config.n_heads, config.attention_dropout)
        self.attention_norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, config.feedforward_dim)
        self.contract = nn.Linear(config.feedforward_dim, width)
        self.feedforward_norm = nn.LayerNorm(width)
        self.final_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(config.attention_dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x)))
        hidden = self.dropout(nn.functional.gelu(self.expand(x)))
        return self.final_norm(self.feedforward_norm(x + self.dropout(self.contract(hidden))))


class ATMModel(ContrastiveModel):
    """EEG (b, 63, 250) and numbers of people (b,) to (b, 1024); images and texts are frozen ViT-H/14 features (g, 1024).

    3,075,413 parameters: tokens 65,500, transformer layer 379,000, stem 103,680, head 2,527,232, temperature 1. The layer per subject that
    the released code makes and never uses is left out. Training takes single trials: repetitions of an image are samples of their own.
    Source: D. Li et al., NeurIPS 2024 (arXiv 2403.07721).
    """

    config_class = ATMConfig

    def __init__(self, config: ATMConfig) -> None:
        super().__init__(config)
        self.tokens = ChannelTokens(config)
        self.layer = EncoderLayer(config)
        self.eeg_encoder = stem_of(config)
        self.eeg_projection = ResidualHead(config.stem_dim, config.embed_dim, config.head_dropout)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, ChannelTokens):
            init.normal_(module.shared)

    @property
    def dummy_inputs(self) -> dict[str, Any]:
        """Inputs of the right shapes: three pairs of people 1, 3 and unknown, with texts."""
        text = torch.randn(3, self.config.text_dim, generator=torch.Generator().manual_seed(1))
        return super().dummy_inputs | {"subject": torch.tensor([1, self.config.n_subjects, 0]), "text_features": text}

    def get_text_features(self, text_features: Tensor) -> Tensor:
        """(g, 1024) features of the captions ("This picture is ..."), checked, as they are.

        Raises:
            ValueError: the shape is not (g, text_dim).
        """
        self._check("text_features", text_features, (self.config.text_dim,))
        return text_features.float()

    def score(self, eeg_embeds: Tensor, image_embeds: Tensor) -> Tensor:
        """Cosine (b, g), or with ``native_score="dot"`` the cosine times the norm of each EEG embedding."""
        cosine = super().score(eeg_embeds, image_embeds)
        return cosine * eeg_embeds.float().norm(dim=-1, keepdim=True) if self.config.native_score == "dot" else cosine

    def forward(  # type: ignore[override]
        self,
        eeg: Tensor,
        image_features: ImageFeatures | None = None,
        subject: int | Tensor | None = None,
        text_features: Tensor | None = None,
        return_loss: bool | None = None,
        return_dict: bool | None = None,
    ) -> EEGRetrievalOutput | tuple[Tensor, ...]:
        """Embed epochs and images and compare all with all; see :meth:`.base.EEGRetrievalModel.forward`.

        Args:
            eeg: (b, C, T) epochs.
            image_features: (g, 1024).
            subject: 1-based number of the person, (b,) of them, or None or 0 for people without a number.
            text_features: (b, 1024), needed for the loss unless ``config.text_weight`` is 0.
            return_loss: True for (1 - w) * image loss + w * text loss.
            return_dict: False for a plain tuple.

        Raises:
            ValueError: wrong shapes, a number that is out of range, or texts that the loss needs are missing.
        """
        weight = self.config.text_weight
        if return_loss and weight > 0 and text_features is None:
            raise ValueError(f"the loss has a text term of weight {weight}: give text_features, or set text_weight to 0")
        output = self._compare(self.get_eeg_features(eeg, subject), image_features, return_loss)
        if return_loss and weight > 0:
            text_loss = symmetric_infonce(self.get_logits(output.eeg_embeds, self.get_text_features(text_features)))
            output.loss = (1 - weight) * output.loss + weight * text_loss
        return output.to_tuple() if return_dict is False else output

    def _encode_eeg(self, eeg: Tensor, subject: int | Tensor | None) -> Tensor:
        x = self.layer(self.tokens(eeg, self._subjects(subject, eeg)))
        x = x[:, :-1] if self.config.kept_tokens == "released_code" else x[:, 1:]
        return self.eeg_projection(self.eeg_encoder(x))

    def _subjects(self, subject: int | Tensor | None, eeg: Tensor) -> Tensor:
        """(b,) numbers on the device of the EEG, 0 for unknown."""
        numbers = torch.as_tensor(0 if subject is None else subject, device=eeg.device)
        numbers = numbers.expand(len(eeg)) if numbers.ndim == 0 else numbers
        if numbers.shape != (len(eeg),) or numbers.is_floating_point():
            raise ValueError(f"subject must be a whole number or {len(eeg)} of them, got {tuple(numbers.shape)} of {numbers.dtype}")
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) <= self.config.n_subjects:
            raise ValueError(f"subject must lie in 0 (unknown) to {self.config.n_subjects}, got {sorted(set(numbers.tolist()))}")
        return numbers.long()


__all__ = ["ATMModel", "ChannelTokens", "EncoderLayer", "SelfAttention"]
