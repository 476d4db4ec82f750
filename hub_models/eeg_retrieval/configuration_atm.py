"""Configuration of ATM."""

from __future__ import annotations

from typing import Any

from .configuration_base import ConvStemConfig, tiny_stem

POSITION_CODES = ("none", "sinusoidal")
KEPT_TOKENS = ("released_code", "channels")
SUBJECT_TOKENS = ("released_code", "one_each")
NATIVE_SCORES = ("cosine", "dot")


class ATMConfig(ConvStemConfig):
    """Settings of :class:`ATMModel` (the variant ATM-S).

    EEG is not normalised in the loss, images and texts are; the temperature is trained and used as it is (2.659 at the start).

    Attributes:
        n_subjects: persons with a number, 1 to ``n_subjects``.
        subject_token: what the code makes of these 1-based numbers. "released_code": number k takes row k of a table of ``n_subjects``
            rows that count from 0, so that row 0 is never used and the last person, out of range, gets the shared token of unknown
            people. "one_each": everyone has a token. Default "released_code", with which the published numbers were made; within one
            subject the two differ by a random start only.
        position_code: "none", as the code of 2024 behaves (it adds the code only with time marks, which are never passed), or
            "sinusoidal", which the code of December 2025 always adds. Default "none", with which the published numbers were made.
        kept_tokens: which of the C + 1 tokens go on. "released_code": the first C, which are the subject token and all channels but the
            last (O2 in the 63-channel order). "channels": the C channels. Default "released_code", as the published numbers.
        n_heads: attention heads; each has n_times // n_heads values (62).
        feedforward_dim: hidden width of the feed-forward part.
        attention_dropout: dropout of tokens, attention weights and feed-forward part.
        text_dim: length of the text feature (OpenCLIP ViT-H/14: 1,024).
        text_weight: share w of the text term: loss = (1 - w) * image term + w * text term. 0.01; with 0 no text is needed.
        native_score: "cosine", or "dot" with EEG not normalised, as the released code ranks. All candidates of one query are scaled
            alike by it, so rankings and comparisons are the same; default "cosine", in which all models but HyFI can be set side by side.
    """

    model_type = "atm"

    logit_scale_mapping: str = "none"
    n_subjects: int = 10
    subject_token: str = "released_code"
    position_code: str = "none"
    kept_tokens: str = "released_code"
    n_heads: int = 4
    feedforward_dim: int = 256
    attention_dropout: float = 0.25
    text_dim: int = 1024
    text_weight: float = 0.01
    native_score: str = "cosine"

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self._whole("n_subjects", "n_heads", "feedforward_dim", "text_dim")
        self._probability("attention_dropout", "text_weight")
        self._choice("subject_token", SUBJECT_TOKENS)
        self._choice("position_code", POSITION_CODES)
        self._choice("kept_tokens", KEPT_TOKENS)
        self._choice("native_score", NATIVE_SCORES)
        if self.n_times < self.n_heads:
            raise ValueError(f"n_times={self.n_times} cannot be shared among n_heads={self.n_heads}")
        if not self.embed_dim == self.image_dim == self.text_dim:
            raise ValueError(
                "ATM has no image or text projection: embed_dim, image_dim and text_dim must be equal, "
                f"got {self.embed_dim}, {self.image_dim} and {self.text_dim}"
            )

    @classmethod
    def tiny(cls) -> ATMConfig:
        """A configuration small enough for tests."""
        return cls(**(tiny_stem() | {"embed_dim": 12}), text_dim=12, feedforward_dim=24, n_subjects=3)


__all__ = ["ATMConfig"]
