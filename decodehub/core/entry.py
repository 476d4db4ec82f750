"""What loads by name, found by looking at the folders: datasets, metrics and models."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import NamedTuple


class Entry(NamedTuple):
    """A thing that loads by name: `kind` is "dataset", "metric" or "model"; `module` what implements it; `folder` where it lives."""

    kind: str
    name: str
    module: str
    folder: Path


def names(kind: str | None = None) -> list[Entry]:
    """Everything that can be loaded by name, found by looking at the folders.

    Args:
        kind: "dataset", "metric", "model", or None for all.
    """
    found = []
    for folder in _folders("hub_datasets"):
        if (folder / "builder.py").is_file():
            found.append(Entry("dataset", folder.name.replace("_", "-"), f"decodehub.hub_datasets.{folder.name}.builder", folder))
    for folder in _folders("metrics"):
        if (folder / f"{folder.name}.py").is_file():
            found.append(Entry("metric", folder.name, f"decodehub.metrics.{folder.name}.{folder.name}", folder))
    for folder in _folders("hub_models"):
        for file in sorted(folder.glob("modeling_*.py")):
            name = file.stem.removeprefix("modeling_")
            found.append(Entry("model", f"{folder.name}/{name}", f"decodehub.hub_models.{folder.name}.{file.stem}", folder))
    return [entry for entry in found if kind in (None, entry.kind)]


def find(name: str, kind: str | None = None) -> Entry:
    """The entry called `name`.

    Raises:
        KeyError: there is none; the message lists the names that exist.
    """
    for entry in names(kind):
        if entry.name == name:
            return entry
    raise KeyError(f"no {kind or 'dataset, metric or model'} is called {name!r}; there are {[entry.name for entry in names(kind)]}")


def by_bare_name(name: str, kind: str) -> Entry | None:
    """The dataset or metric of this bare name; None for a path, an ``ORG/NAME`` or a name that is not ours."""
    if "/" in name or os.sep in name:
        return None
    return next((entry for entry in names(kind) if entry.name == name), None)


def _folders(part: str) -> list[Path]:
    spec = importlib.util.find_spec(f"decodehub.{part}")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"decodehub.{part} is not installed: run 'pip install decodehub' (in a clone: 'pip install -e .')")
    return sorted(
        p for p in Path(next(iter(spec.submodule_search_locations))).iterdir() if p.is_dir() and not p.name.startswith(("_", "."))
    )
