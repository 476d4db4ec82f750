"""A data set as the repository that is pushed: Parquet, card, ``release.json``, ``eval.yaml`` and ``croissant.json``."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import DatasetCard

from decodehub.core.entry import Entry
from decodehub.core.files import write_bytes, write_json
from decodehub.core.repos import RELEASE, builder_class, export_dataset, read_release_file

from .checks import check_licence, has_images, licences
from .client import Repo
from .croissant import CROISSANT, check_croissant, croissant
from .tasks import tasks_of

FRAMEWORK = "decodehub"
# What a former release may have left in the repository.
OWNED = ("*/*.parquet", RELEASE, CROISSANT, "eval.yaml")


def stage_dataset(entry: Entry, folder: Path, repo: Repo, data_dir: str | None) -> list[str]:
    """Write the repository of a data set into `folder` and return its faults.

    Args:
        entry: the data set. folder: empty. repo: where it will go.
        data_dir: the release, as its builder takes it.

    Raises:
        ValueError: the release cannot be read.
    """
    exported = export_dataset(entry, **({} if data_dir is None else {"data_dir": data_dir}))
    release = read_release_file(exported)
    for path in (p for p in exported.rglob("*") if p.is_file()):
        target = folder / path.relative_to(exported)
        target.parent.mkdir(parents=True, exist_ok=True)
        _same_file(path, target)
    faults = release_faults(entry, exported, release, sample=data_dir == "sample")
    (folder / "README.md").unlink()
    licence = _card(entry, exported / "README.md", folder / "README.md", release, repo)
    write_bytes(folder / "eval.yaml", yaml.safe_dump(_evaluation(entry, release), sort_keys=False, allow_unicode=True).encode())
    info = builder_class(entry)(config_name="sample").info
    page = f"https://huggingface.co/{repo.page}"
    about = croissant(exported, release, url=page, version=str(info.version), citation=info.citation, licence=licence)
    write_json(folder / CROISSANT, about)
    check_croissant(folder / CROISSANT)
    return faults


def release_faults(entry: Entry, folder: Path, release: dict[str, Any], *, sample: bool) -> list[str]:
    """What keeps a release from being published: it is not whole, is a sample by accident, or its licence does not allow it.

    Args:
        entry: the data set. folder: its repository. release: its ``release.json``.
        sample: the sample was asked for by name.
    """
    cls, faults = builder_class(entry), []
    if missing := {config.name for config in cls.BUILDER_CONFIGS} - set(release["configs"]):
        faults.append(f"the release is not complete: it lacks the configs {sorted(missing)}")
    default = cls.DEFAULT_CONFIG_NAME
    for name, config in release["configs"].items():
        if empty := [split for split, rows in config["rows"].items() if not rows]:
            faults += [f"the release is not complete: split {split!r} of config {name!r} has no rows" for split in empty if name == default]
        if not sample and name != "sample" and any(r.startswith("sample") for r in config["releases"]):
            faults.append(
                f"config {name!r} would be the embedded sample, since there is no release on this machine: give --data-dir FOLDER, or "
                "--data-dir sample to publish the sample as such"
            )
    releases = {r for name, config in release["configs"].items() if name != "sample" for r in config["releases"]}
    if len(releases) > 1:
        faults.append(f"the configs are of several releases ({', '.join(sorted(releases))}): publish one")
    for name, config in release["configs"].items():
        images = any(has_images(folder / path) for path in release["files"] if path.startswith(f"{name}/"))
        faults += check_licence(config["license"], f"config {name!r}", images=images)
    return faults


def _same_file(source: Path, target: Path) -> None:
    """A second name for a file, or a copy where the file system has no such names."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _card(entry: Entry, source: Path, target: Path, release: dict[str, Any], repo: Repo) -> str:
    """Write the card with the licence of this release; returns the licence."""
    card = DatasetCard(source.read_text(encoding="utf-8"))
    data: Any = card.data
    statements = {name: config["license"] or "" for name, config in release["configs"].items() if name != "sample"}
    named = sorted({licence for text in statements.values() for licence in licences(text)})
    if len(named) == 1 and named[0] != "public-domain":
        data.license = named[0]
        data.license_name = None
    else:
        data.license = "other"
        data.license_name = "-and-".join(named) or "unknown"
        data.license_link = f"https://huggingface.co/{repo.page}#this-repository"
    data.tags = [*(data.tags or []), "decodehub"]
    rows = "\n".join(
        f"| `{name}` | {', '.join(config['releases'])} | {', '.join(f'{split} {n:,}' for split, n in config['rows'].items())} | {config['license']} |"
        for name, config in release["configs"].items()
    )
    card.text = f"""{card.text.rstrip()}

## This repository

| config | release | rows | licence of the content |
|---|---|---|---|
{rows}

```python
from datasets import load_dataset  # nothing else is needed

data = load_dataset("{repo.id}")
```

`{RELEASE}` has the hash of every file; `decodehub verify {repo.id}` compares them with what is here.
"""
    write_bytes(target, str(card).encode())
    return data.license if data.license != "other" else str(data.license_name)


def _evaluation(entry: Entry, release: dict[str, Any]) -> dict[str, Any]:
    cls = builder_class(entry)
    config = cls.DEFAULT_CONFIG_NAME
    splits = list(release["configs"][config]["rows"])
    split = "test" if "test" in splits else splits[-1]
    about = release["configs"][config]
    return {
        "name": entry.name,
        "description": about["description"],
        "evaluation_framework": FRAMEWORK,
        "tasks": [{"id": task, "config": config, "split": split} for task in tasks_of(entry)],
    }
