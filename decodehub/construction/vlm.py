"""A vision-language model of transformers as a plain function from chats to texts, shared by the jobs that ask one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from decodehub.core.files import sha256_file, sha256_json

Chat = list[dict[str, Any]]  # messages of transformers: "role", and "content" as a list of parts
Chats = Callable[[Sequence[Chat]], list[str]]
_WEIGHTS = (".safetensors", ".json", ".model", ".txt", ".jinja")


def model_revision(model: str, revision: str | None) -> str:
    """What identifies the weights: a commit of the Hub, or the hash of the files of a local folder.

    Raises:
        ValueError: a Hub id without a full commit, since a branch may change.
    """
    folder = Path(model)
    if folder.is_dir():
        files = sorted(path for path in folder.rglob("*") if path.suffix in _WEIGHTS and path.is_file())
        return sha256_json({path.relative_to(folder).as_posix(): sha256_file(path) for path in files})
    if revision is None or not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise ValueError(
            f"--revision of {model!r} must be a full commit (40 hex digits), found {revision!r}: a branch may change under the answers"
        )
    return revision


def load_chats(model: str, revision: str, dtype: str, max_new_tokens: int, device: str) -> Chats:
    """A model of transformers (image-text-to-text), without remote code, from safetensors, decoding greedily.

    Args:
        model: id on the Hub, or a folder.
        revision: commit of a model on the Hub.
        dtype: of the weights.
        max_new_tokens: longest reply.
        device: such as "cuda" or "cpu", or "auto" to spread one model over all devices.
    """
    options: Mapping[str, Any] = {} if Path(model).is_dir() else {"revision": revision}
    processor = AutoProcessor.from_pretrained(model, trust_remote_code=False, **options)
    tokenizer = getattr(processor, "tokenizer", processor)
    tokenizer.padding_side = "left"
    spread = {"device_map": "auto"} if device == "auto" else {}
    network = AutoModelForImageTextToText.from_pretrained(
        model, trust_remote_code=False, use_safetensors=True, dtype=getattr(torch, dtype), **spread, **options
    )
    network = (network if spread else network.to(device)).eval()

    def generate(chats: Sequence[Chat]) -> list[str]:
        inputs = processor.apply_chat_template(
            list(chats),
            tokenize=True,
            return_dict=True,
            add_generation_prompt=True,
            return_tensors="pt",
            processor_kwargs={"padding": True},
        ).to(network.device)
        inputs = {k: v.to(network.dtype) if torch.is_tensor(v) and v.is_floating_point() else v for k, v in inputs.items()}
        with torch.inference_mode():
            out = network.generate(**inputs, do_sample=False, num_beams=1, max_new_tokens=max_new_tokens)
        return processor.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)

    return generate
