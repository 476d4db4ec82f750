"""The models of a construction: a vision-language model of transformers, an editing pipeline of diffusers."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from decodehub.hub_datasets.eeg_editbench.construction import Answer, Message

from .stages import Edit, EditorSettings, ModelSettings
from .vlm import Chat, load_chats

INSTALL = "pip install 'decodehub[edit]'"


def load_answer(settings: ModelSettings, device: str) -> Answer:
    """A model of transformers that answers messages, with an image or without.

    Args:
        settings: model, revision, dtype, max_new_tokens.
        device: such as "cuda" or "cpu"; "auto" spreads the model over all devices.

    Raises:
        ValueError: transformers cannot load it without code from its repository.
    """
    try:
        chats = load_chats(settings.model, settings.revision, settings.dtype, settings.max_new_tokens, device)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ValueError(
            f"{settings.model!r} has code of its own, which is not run: take a repository in the format of transformers, such as "
            "OpenGVLab/InternVL3_5-38B-HF in place of OpenGVLab/InternVL3_5-38B"
        ) from None
    return lambda messages, image: chats([chat(messages, image)])[0]


def chat(messages: Sequence[Message], image: Any) -> Chat:
    """Messages in the form of transformers; the image belongs to the first of the user."""
    made: Chat = [{"role": m["role"], "content": [{"type": "text", "text": m["content"]}]} for m in messages]
    if image is not None:
        first = next(m for m in made if m["role"] == "user")
        first["content"].insert(0, {"type": "image", "image": image})
    return made


def pipeline_class(name: str) -> Any:
    """A pipeline of the diffusers that is installed, by the name of its class.

    Raises:
        ImportError: no diffusers. ValueError: it has no such class, or the class does not take an image and a prompt.
    """
    try:
        import diffusers
    except ImportError as error:
        raise ImportError(f"image editing needs diffusers: {INSTALL}") from error
    try:
        cls = getattr(diffusers, name)
        takes = set(inspect.signature(cls.__call__).parameters)
    except (AttributeError, TypeError, RuntimeError, ImportError):
        # Names that look like pipelines are placeholders where a package they need is missing.
        raise ValueError(
            f"diffusers {diffusers.__version__} has no usable pipeline {name!r} (Flux2KleinPipeline needs 0.37): pip install --upgrade "
            "diffusers, or name another with --pipeline"
        ) from None
    if lacking := {"image", "prompt", "generator", "num_inference_steps", "guidance_scale"} - takes:
        raise ValueError(f"pipeline {name} does not take {', '.join(sorted(lacking))}: choose one that edits an image by a prompt")
    return cls


def call_options(cls: Any, settings: EditorSettings) -> dict[str, Any]:
    """What is given to the pipeline besides image, prompt and generator.

    Raises:
        ValueError: a setting that the pipeline does not take and that is not None. (Without height and width the size follows the image;
            what comes out is checked.)
    """
    takes = set(inspect.signature(cls.__call__).parameters)
    options: dict[str, Any] = {"num_inference_steps": settings.steps, "guidance_scale": settings.guidance_scale}
    options |= {name: settings.resolution for name in ("height", "width") if name in takes}
    for name in ("max_sequence_length", "text_encoder_out_layers"):
        if (value := getattr(settings, name)) is not None:
            if name not in takes:
                raise ValueError(
                    f"pipeline {cls.__name__} does not take {name}: leave it out (--max-sequence-length 0, --text-encoder-layers none)"
                )
            options[name] = value
    return options


def check_editor(settings: EditorSettings) -> None:
    """Raise what `load_editor` would raise of diffusers and its pipeline, before hours of work that lead up to it."""
    call_options(pipeline_class(settings.pipeline), settings)


def load_editor(settings: EditorSettings, device: str) -> Edit:
    """A pipeline of diffusers from safetensors, without remote code; the same seed for each edit.

    Args:
        settings: see `EditorSettings`. device: of Accelerate, such as "cuda:0" or "cpu".

    Raises:
        ImportError, ValueError: see `pipeline_class` and `call_options`.
    """
    cls = pipeline_class(settings.pipeline)
    options = call_options(cls, settings)
    at = {} if Path(settings.model).is_dir() else {"revision": settings.revision}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch_dtype` is deprecated", FutureWarning)  # its new name is not known to diffusers 0.37
        pipeline = cls.from_pretrained(settings.model, torch_dtype=getattr(torch, settings.dtype), use_safetensors=True, **at)
    if settings.cpu_offload and torch.device(device).type != "cpu":
        pipeline.enable_model_cpu_offload(device=device)
    else:
        pipeline.to(device)
    pipeline.set_progress_bar_config(disable=True)

    def edit(image: Image.Image, prompt: str, _: EditorSettings) -> Image.Image:
        generator = torch.Generator("cpu").manual_seed(settings.seed)
        return pipeline(image=image, prompt=prompt, generator=generator, **options).images[0]

    return edit
