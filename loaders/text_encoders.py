"""Frozen text encoders: the text half of an OpenCLIP model, for ATM's text targets.

    encoder = load_text_encoder("open_clip:ViT-H-14/laion2b_s32b_b79k")
    text_features(encoder, ["This picture is aardvark"], cache_dir="cache")     # (n, 1024) float32, not normalised

There is no stand-in for them: where the weights are not at hand, text targets are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from decodehub.core.files import sha256_bytes, sha256_json

from .frozen_encoder import EncoderUnavailableError, hash_state_dict
from .image_encoders import open_clip_licence, open_clip_network
from .image_feature_files import read_cache, refuse_nonfinite, shard_folder, write_shard

TEXT_BATCH = 64


@dataclass
class TextEncoder:
    """A frozen text network with its tokenizer.

    Attributes:
        name: the id it was loaded by, with ``#text``.
        licence: licence of the weights.
        network: the torch module, float32, without gradients.
        tokenize: n texts to token ids (n, context length), int64.
        architecture: what the weights alone do not tell, JSON values only.
        preprocessing: settings of `tokenize`, JSON values only.
        device: where the network lives.
        dim: length d of a feature vector, measured.
    """

    name: str
    licence: str
    network: nn.Module
    tokenize: Callable[[list[str]], Tensor]
    architecture: dict[str, Any]
    preprocessing: dict[str, Any]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dim: int = field(init=False)

    def __post_init__(self) -> None:
        self.network.eval().requires_grad_(False).float()
        self.to(self.device)
        self.dim = self.encode(["a"]).shape[1]

    @cached_property
    def fingerprint(self) -> str:
        """Hash of weights, architecture and tokenizer settings; independent of the name, the device and the folder of the weights."""
        return sha256_json(
            {"architecture": self.architecture, "preprocessing": self.preprocessing, "weights": hash_state_dict(self.network)}
        )

    def to(self, device: torch.device | str) -> TextEncoder:
        """Move the network to `device` and return self."""
        self.device = torch.device(device)
        self.network.to(self.device)
        return self

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Texts to features (n, d), float32, not normalised. Raises ValueError for an empty list."""
        if not len(texts):
            raise ValueError(f"{self.name}: encode() got no texts")
        tokens = self.tokenize(list(texts))
        # One at a time on CPU, so that a text's features do not depend on its neighbours in the last bits (as for images).
        parts = tokens.split(1 if self.device.type == "cpu" else TEXT_BATCH)
        with torch.inference_mode():
            rows = [self.network.encode_text(part.to(self.device)) for part in parts]
        return np.ascontiguousarray(torch.cat(rows).float().cpu().numpy())


def load_text_encoder(id: str, device: str | torch.device | None = None) -> TextEncoder:
    """Load the text half of an OpenCLIP model.

    Args:
        id: ``open_clip:MODEL/TAG``; TAG may be the path of a ``.safetensors`` file.
        device: torch device; None takes CUDA when there is one, else the CPU.

    Raises:
        ValueError: an id of another form, or a model or tag that open_clip does not know.
        EncoderUnavailableError: weights or tokenizer are not here and cannot be fetched.
    """
    kind, _, rest = id.partition(":")
    model, _, tag = rest.partition("/")
    if kind != "open_clip" or not model or not tag:
        raise ValueError(f"unknown text encoder {id!r}: expected 'open_clip:MODEL/TAG' (as 'open_clip:ViT-H-14/laion2b_s32b_b79k')")
    import open_clip

    network, config, quick_gelu = open_clip_network(id, model, tag)
    # The image half is neither hashed nor kept in memory.
    network.visual = nn.Identity()
    try:
        tokenizer = open_clip.get_tokenizer(model)
    except (OSError, ConnectionError) as error:
        raise EncoderUnavailableError(f"the tokenizer of text encoder {id!r} is neither cached nor could it be fetched: {error}") from error
    return TextEncoder(
        name=f"{id}#text",
        licence=open_clip_licence(tag),
        network=network,
        tokenize=tokenizer,
        architecture={"family": "open_clip", "text": config["text_cfg"], "embed_dim": config["embed_dim"], "quick_gelu": quick_gelu},
        preprocessing={"tokenizer": type(tokenizer).__name__, "context_length": int(tokenizer.context_length)},
        device=torch.device(device) if device is not None else torch.device("cuda" if torch.cuda.is_available() else "cpu"),
    )


def text_features(encoder: TextEncoder, texts: Sequence[str], *, cache_dir: Path | str | None = None, write: bool = True) -> np.ndarray:
    """Features of texts in their order; equal texts are encoded once, cached texts not at all.

    Args:
        encoder: from :func:`load_text_encoder`.
        texts: n texts.
        cache_dir: folder of the cache, which may be that of the image features; None keeps nothing.
        write: whether to add to the cache; with several processes one of them does.

    Returns:
        (n, d) float32, not normalised.

    Raises:
        ValueError: no text, or NaN or infinite features.
    """
    if isinstance(texts, str) or not len(texts):
        raise ValueError("texts must be a list of at least one text")
    digests = [sha256_bytes(f"text\n{text}".encode()) for text in texts]
    unique = dict(zip(digests, texts))
    folder = None if cache_dir is None else shard_folder(Path(cache_dir), encoder)  # type: ignore[arg-type]
    rows = {} if folder is None else read_cache(folder, encoder, set(unique))  # type: ignore[arg-type]
    missing = [digest for digest in unique if digest not in rows]
    if missing:
        encoded = encoder.encode([unique[digest] for digest in missing])
        refuse_nonfinite(encoded, encoder.name)
        if folder is not None and write:
            write_shard(folder, encoded, missing, encoder)  # type: ignore[arg-type]
        rows |= dict(zip(missing, encoded, strict=True))
    return np.stack([rows[digest] for digest in digests])
