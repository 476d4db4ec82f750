"""Files of many images, as people save reconstructions (``all_recons.pt``): unpacked once into a folder of PNG files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from decodehub.core.files import new_folder, sha256_file, sha256_json
from decodehub.core.tensors import read_tensors

from .images import SUFFIXES, array_to_rgb, batch_to_rgb, encode_png

ARRAY_SUFFIXES = (".pt", ".pth", ".npy", ".npz", ".safetensors")
_FORMAT = 1  # of what is unpacked; enters the name of the folder


def image_folder(path: Path | str, cache: Path | str, *, value_range: tuple[float, float] | None = None, layout: str | None = None) -> Path:
    """A folder of image files: `path` itself, or what its arrays hold, unpacked below `cache` under the hash of their content.

    A file of n images becomes ``0.png``, ``1.png``, ... in the order of its first axis. In a folder of array files each file of one image
    becomes ``NAME.png`` and each of n images ``NAME/0.png``, ``NAME/1.png``, ... Values and layouts are read by the rules of
    `loaders.images`, decided over all images of a file.

    Args:
        path: a folder of images, a folder of array files, or one array file (``.pt``, ``.npy``, ``.npz``, ``.safetensors``), which holds one
            array (n, 3, h, w), (n, h, w, 3), (n, h, w), or one image.
        cache: where to unpack. value_range, layout: see `images.array_to_rgb`.

    Raises:
        FileNotFoundError: no such file or folder.
        ValueError: several arrays in a file, values or layouts that no rule takes, or images and array files in one folder.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if path.is_file() and path.suffix.lower() not in ARRAY_SUFFIXES:
        raise ValueError(f"{path} is neither a folder of images nor an array file ({', '.join(ARRAY_SUFFIXES)})")
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
    arrays = [p for p in files if p.suffix.lower() in ARRAY_SUFFIXES]
    if not arrays:
        return path
    if any(p.suffix.lower() in SUFFIXES for p in files):
        raise ValueError(f"{path} holds images and array files such as {arrays[0].relative_to(path)}: give a folder of one kind")
    names = [Path() if p == path else p.relative_to(path).with_suffix("") for p in arrays]
    key = sha256_json([_FORMAT, value_range, layout, [[name.as_posix(), sha256_file(p)] for name, p in zip(names, arrays)]])
    folder = Path(cache) / f"unpacked-{key.removeprefix('sha256:')[:16]}"
    if not folder.is_dir():
        with new_folder(folder, or_existing=True) as work:
            for name, file in zip(names, arrays):
                _unpack(file, work / name, value_range, layout)
    return folder


def parse_range(text: str | None) -> tuple[float, float] | None:
    """``"-1,1"`` as (-1, 1); None as None.

    Raises:
        ValueError: another text.
    """
    if text is None:
        return None
    number = r"\s*(-?(?:\d+\.?\d*|\.\d+))\s*"
    match = re.fullmatch(f"{number},{number}", text)
    if match is None or float(match[1]) >= float(match[2]):
        raise ValueError(f"--value-range is {text!r}, expected LOW,HIGH such as -1,1")
    return float(match[1]), float(match[2])


def read_array(file: Path) -> Any:
    """The one array or tensor of a file; nothing in it is run.

    Raises:
        ValueError: damaged, several arrays, or what only unpickling could read.
    """
    suffix = file.suffix.lower()
    try:
        if suffix == ".safetensors":
            content: Any = read_tensors(file, "pt").arrays
        elif suffix in (".npy", ".npz"):
            loaded = np.load(file, allow_pickle=False)
            content = dict(loaded) if suffix == ".npz" else loaded
        else:
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # each library has many error classes of its own
        first = (str(error).strip().splitlines() or [""])[0][:120]
        raise ValueError(f"{file} cannot be read as arrays alone ({type(error).__name__}: {first}): save one array of the images") from None
    if isinstance(content, dict):
        if len(content) != 1:
            raise ValueError(
                f"{file} holds {len(content)} entries ({', '.join(map(str, list(content)[:5]))}): save the images as one array"
            )
        (content,) = content.values()
    if isinstance(content, (list, tuple)) and content and all(isinstance(x, torch.Tensor) and x.shape == content[0].shape for x in content):
        content = torch.stack(list(content))
    if not isinstance(content, (np.ndarray, torch.Tensor)):
        raise ValueError(f"{file} holds {type(content).__name__}, expected one array or tensor of images")
    return content


def _unpack(file: Path, target: Path, value_range: tuple[float, float] | None, layout: str | None) -> None:
    array = read_array(file)
    options: dict[str, Any] = {"name": str(file), "value_range": value_range, "layout": layout}
    many = array.ndim == 4 or (array.ndim == 3 and not {1, 3, 4} & {array.shape[0], array.shape[2]})
    images = batch_to_rgb(array, **options) if many else [array_to_rgb(array, **options)]
    names = [target / f"{i}.png" for i in range(len(images))] if many or target.is_dir() else [target.with_name(f"{target.name}.png")]
    names[0].parent.mkdir(parents=True, exist_ok=True)
    for name, image in zip(names, images):
        name.write_bytes(encode_png(np.asarray(image)))
