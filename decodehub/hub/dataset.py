"""A data set as the repository that is pushed: Parquet, card, ``release.json``, ``eval.yaml`` and ``croissant.json``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from decodehub.core.entry import Entry
from decodehub.core.files import write_bytes, write_json
from decodehub.core.repos import builder_class, export_dataset, read_release_file

from .cards import decode, merged, read_card
from .checks import check_licence, has_images, spdx
from .client import Repo
from .croissant import CROISSANT, Facts, authors, check_croissant, croissant, with_former_date
from .dataset_card import MANAGED, dataset_card, named_licences
from .tasks import tasks_of

FRAMEWORK = "decodehub"
RAI = "rai.yaml"


def stage_dataset(
    entry: Entry,
    folder: Path,
    repo: Repo,
    data_dir: str | None,
    there: Callable[[str], bytes | None] = lambda path: None,
    *,
    replace: bool = False,
) -> list[str]:
    """Write the repository of a data set into `folder` and return its faults.

    Args:
        entry: the data set. folder: empty. repo: where it will go.
        data_dir: the release, as its builder takes it.
        there: gives a file of the repository as it is, or None.
        replace: replace our part of the card even where others changed it.

    Raises:
        ValueError: the release, or the card that is there, cannot be read.
    """
    exported = export_dataset(entry, **({} if data_dir is None else {"data_dir": data_dir}))
    release = read_release_file(exported)
    faults = release_faults(entry, exported, release, sample=data_dir == "sample")
    for path in (p for p in exported.rglob("*") if p.is_file() and p.name != "README.md"):
        target = folder / path.relative_to(exported)
        target.parent.mkdir(parents=True, exist_ok=True)
        _same_file(path, target)
    former = there("README.md")
    card = merged(
        dataset_card(entry, exported, release, repo),
        None if former is None else decode(former, repo.page),
        repo.page,
        managed=MANAGED,
        replace=replace,
    )
    write_bytes(folder / "README.md", card.encode())
    write_bytes(folder / "eval.yaml", yaml.safe_dump(_evaluation(entry, release), sort_keys=False, allow_unicode=True).encode())
    about = croissant(exported, release, _facts(entry, release, repo))
    write_json(folder / CROISSANT, with_former_date(about, there(CROISSANT)))
    check_croissant(folder / CROISSANT)
    return faults


def reserved(folder: Path) -> tuple[str, ...]:
    """Patterns of the files that loading a staged data set would read."""
    configs = read_release_file(folder)["configs"]
    return tuple(f"{config}/{split}-*" for config, about in configs.items() for split in about["rows"])


def _facts(entry: Entry, release: dict[str, Any], repo: Repo) -> Facts:
    """What a description says of a release beside its tables."""
    info = builder_class(entry)(config_name="sample").info
    front, _ = read_card(entry.folder / "README.md")
    stated = yaml.safe_load((entry.folder / RAI).read_text(encoding="utf-8"))
    names = {r for name, about in release["configs"].items() if name != "sample" for r in about["releases"]}
    is_sample = any(r.partition("-")[0] in ("sample", "rehearsal") for r in names)
    return Facts(
        url=f"https://huggingface.co/{repo.page}",
        version=str(info.version),
        citation=info.citation,
        licences=tuple(spdx(named_licences(release))),
        keywords=(*front.get("tags", []), "decodehub"),
        authors=() if is_sample else tuple(authors(info.citation)),
        responsible_ai=stated["every"] | stated["sample" if is_sample else "release"],
    )


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
