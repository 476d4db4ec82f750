"""What a file of OpenCLIP weights cannot say of itself: the activation, and the preprocessing that the weights were trained with.

A tag of open_clip's registry says both. A ``.safetensors`` file says neither, and another choice gives other features without an error. So
what all of open_clip's weights of a model share is taken, and the rest is asked for in the id:

    open_clip:ViT-B-32/FILE.safetensors?like=openai
    open_clip:my-model/FILE.safetensors?like=ViT-B-32/openai
    open_clip:ViT-B-32/FILE.safetensors?quick_gelu=true&mean=0.5,0.5,0.5&std=0.5,0.5,0.5&resize_mode=squash&interpolation=bicubic
"""

from __future__ import annotations

import json
import warnings
from typing import Any
from urllib.parse import parse_qsl

import open_clip

# open_clip's own defaults where a tag does not mention a setting.
_DEFAULTS: dict[str, Any] = {
    "quick_gelu": False,
    "mean": [0.48145466, 0.4578275, 0.40821073],
    "std": [0.26862954, 0.26130258, 0.27577711],
    "resize_mode": "shortest",
    "interpolation": "bicubic",
}
_CHOICES = {
    "quick_gelu": ("true", "false"),
    "resize_mode": ("shortest", "longest", "squash"),
    "interpolation": ("bicubic", "bilinear", "random"),
}


def file_settings(id: str, model: str, config: dict[str, Any], options: str) -> dict[str, Any]:
    """``quick_gelu``, ``mean``, ``std``, ``resize_mode`` and ``interpolation`` of weights in a file.

    Args:
        id: what to call it in an error.
        model: name of the architecture. config: its configuration; a quick_gelu of true there decides.
        options: what stands behind ``?`` in the id.

    Raises:
        ValueError: an unknown or malformed option, or a setting in which open_clip's weights of the model differ and that the id leaves open.
    """
    said = _parse(id, options)
    like = said.pop("like", None)
    if like is not None:
        return _like(id, model, like) | said
    if config.get("quick_gelu"):
        said.setdefault("quick_gelu", True)
    tags = open_clip.list_pretrained_tags_by_model(model)
    of_tags = {tag: _of_tag(model, tag, config) for tag in tags}
    taken, open_settings = _shared([name for name in _DEFAULTS if name not in said], of_tags)
    if open_settings:
        found = ", ".join(f"{name} ({seen})" if seen else name for name, seen in open_settings.items())
        example = f"?like={tags[0]}" if tags else "?like=MODEL/TAG of known weights with the same settings"
        raise ValueError(
            f"{id!r}: a file of weights does not say {found}, and another choice gives other features: add {example}, or "
            f"?{'&'.join(f'{name}={_text(_DEFAULTS[name])}' for name in open_settings)} with the values they were trained with"
        )
    if taken:
        shown = ", ".join(f"{name}={_text(value)}" for name, value in taken.items())
        warnings.warn(f"{id}: {shown}, as all weights of {model} that open_clip knows", stacklevel=2)
    return taken | said


def _like(id: str, model: str, like: str) -> dict[str, Any]:
    """The settings of the weights that ``like=TAG`` or ``like=MODEL/TAG`` names."""
    other, _, tag = like.rpartition("/")
    other = other or model
    if not open_clip.is_pretrained_cfg(other, tag):
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(other)) or "none"
        raise ValueError(
            f"{id!r}: like={like!r} is no weights that open_clip knows; those of {other!r} are: {tags} (another model: like=MODEL/TAG)"
        )
    return _of_tag(other, tag, open_clip.get_model_config(other) or {})


def _shared(names: list[str], of_tags: dict[str, dict[str, Any]]) -> tuple[dict[str, Any], dict[str, str]]:
    """The settings on which all weights of a model agree; of the others, which value stands for which tags, in words."""
    taken, open_settings = {}, {}
    for name in names:
        values: dict[str, list[str]] = {}
        for tag, settings in of_tags.items():
            values.setdefault(json.dumps(settings[name]), []).append(tag)
        if len(values) == 1:
            taken[name] = next(iter(of_tags.values()))[name]
        else:
            open_settings[name] = "; ".join(f"{value} as {', '.join(tags[:3])}" for value, tags in values.items())
    return taken, open_settings


def _of_tag(model: str, tag: str, config: dict[str, Any]) -> dict[str, Any]:
    known = open_clip.get_pretrained_cfg(model, tag)
    settings = {name: known.get(name, default) for name, default in _DEFAULTS.items()}
    settings = {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}
    return settings | {"quick_gelu": bool(settings["quick_gelu"]) or bool(config.get("quick_gelu"))}


def _parse(id: str, options: str) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for name, text in parse_qsl(options, keep_blank_values=True):
        if name == "like":
            said[name] = text
        elif name in ("mean", "std"):
            try:
                said[name] = [float(part) for part in text.split(",")]
            except ValueError:
                said[name] = []
            if len(said[name]) != 3:
                raise ValueError(f"{id!r}: {name}={text!r} is not three numbers with commas between them")
        elif name in _CHOICES:
            if text not in _CHOICES[name]:
                raise ValueError(f"{id!r}: {name}={text!r} is not one of {', '.join(_CHOICES[name])}")
            said[name] = text == "true" if name == "quick_gelu" else text
        else:
            raise ValueError(f"{id!r}: {name!r} is not one of like, {', '.join(_DEFAULTS)}")
    return said


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value).lower()
