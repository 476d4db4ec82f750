"""The source images of a construction: copied into its folder, named by concept, checked whenever they are read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from decodehub.core.files import canonical_json, inside, read_csv, read_data, sha256_bytes, write_bytes
from decodehub.hub_datasets.eeg_editbench.construction_schema import CONCEPT_PATTERN, Source
from decodehub.hub_datasets.eeg_editbench.taxonomy import load_taxonomy
from decodehub.loaders.images import FORMATS, MAX_BYTES, decode_image, encode_png

SOURCES = "sources.jsonl"
_PNG = b"\x89PNG"


def start(
    images: Path, out: Path, *, table: Path | None = None, category: str | None = None, attribution: str = "", crop: bool = False
) -> list[Source]:
    """Copy the source images into the folder of a construction and note their concepts.

    Args:
        images: folder of square images, one a concept; THINGS file names (``cheetah_05s.jpg``) give the concept ``cheetah``.
        out: the construction; its sources must not change once it is begun.
        table: CSV with the columns image and concept, and maybe source_category and attribution; without it, all images of the folder.
        category: source category of concepts that neither the table nor the taxonomy knows.
        attribution: of images whose row in the table has none.
        crop: cut images that are not square to their central square; otherwise they are refused.

    Raises:
        ValueError: no image, a name that cannot be part of a file name, two images of a concept, an unknown category, not square, or a
            construction in `out` that was begun with other sources.
    """
    sources: list[Source] = []
    files: dict[str, bytes] = {}
    known = {c.name: c.category for c in load_taxonomy().concepts}
    for where, row in _rows(images, table):
        concept = row["concept"]
        if not re.fullmatch(CONCEPT_PATTERN, concept):
            raise ValueError(f"{where}: concept {concept!r} must be letters, digits, '.', '_' and '-', as it is part of file names")
        chosen = row.get("source_category") or known.get(concept) or category
        if chosen not in load_taxonomy().categories:
            raise ValueError(
                f"{where}: source category {chosen!r} of {concept!r} is none of {', '.join(load_taxonomy().categories)}: "
                "give --category, or a table (--table) with the column source_category"
            )
        data = _square(inside(images, row["image"]), where, crop)
        name = f"sources/{concept}.{'png' if data.startswith(_PNG) else 'jpg'}"
        if name.casefold().rpartition(".")[0] in {n.casefold().rpartition(".")[0] for n in files}:
            raise ValueError(f"{where}: concept {concept!r} has a second image (names differ in more than case); each concept has one")
        files[name] = data
        sources.append(
            Source(
                concept=concept,
                image=name,
                sha256=sha256_bytes(data),
                source_category=chosen,  # type: ignore[arg-type]  # checked above
                attribution=row.get("attribution") or attribution,
            )
        )
    text = "".join(canonical_json(source.model_dump()) + "\n" for source in sources).encode()
    path = out / SOURCES
    if path.is_file() and path.read_bytes() != text:
        raise ValueError(f"{path} is of other sources: take another folder, or remove this one to begin anew")
    for name, data in files.items():
        write_bytes(inside(out, name), data)
    write_bytes(path, text)
    return sources


def read_sources(out: Path) -> list[Source]:
    """The sources of a construction.

    Raises:
        ValueError: none was begun in `out`.
    """
    path = out / SOURCES
    if not path.is_file():
        raise ValueError(f"{path} does not exist: begin with 'decodehub construct start IMAGES --out {out}'")
    return [Source.model_validate_json(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def source_image(out: Path, source: Source) -> Image.Image:
    """A source image as RGB.

    Raises:
        ValueError: it is not the file that the construction was begun with.
    """
    return decode_image(source_bytes(out, source), name=source.image)


def source_bytes(out: Path, source: Source) -> bytes:
    """The file of a source image; see `source_image`."""
    data = read_data(inside(out, source.image), max_bytes=MAX_BYTES)
    if sha256_bytes(data) != source.sha256:
        raise ValueError(f"{out / source.image} has changed since the construction was begun: put the former file back, or begin anew")
    return data


def _rows(images: Path, table: Path | None) -> Iterable[tuple[str, dict[str, str]]]:
    if not images.is_dir():
        raise ValueError(f"{images} is not a folder of images")
    if table is None:
        endings = {f".{name.lower()}" for name in FORMATS} | {".jpg", ".tif"}
        names = {path.name: re.sub(r"_\d+[a-z]$", "", path.stem) for path in images.iterdir() if path.suffix.lower() in endings}
        # By concept and not by file name: the order of THINGS-EEG2.
        rows = [(str(images / n), {"image": n, "concept": concept}) for n, concept in sorted(names.items(), key=lambda item: item[::-1])]
    else:
        rows = [(where, {k: v.strip() for k, v in row.items()}) for where, row in read_csv(table, ("image", "concept"))]
    if not rows:
        raise ValueError(f"no image in {table or images}: formats are {', '.join(FORMATS)}")
    return rows


def _square(path: Path, where: str, crop: bool) -> bytes:
    data = read_data(path, max_bytes=MAX_BYTES)
    image = decode_image(data, name=str(path))
    width, height = image.size
    if width != height and not crop:
        raise ValueError(f"{where}: {path.name} has {width} x {height} pixels and edits are square: crop it, or give --crop")
    if width == height and (data.startswith(_PNG) or data.startswith(b"\xff\xd8")):
        return data
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return encode_png(np.asarray(image.crop((left, top, left + side, top + side))))
