"""A dataset of ours as the data-only repository that it publishes: README with its configs, and Parquet."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .files import home, new_folder, read_data, sha256_file, sha256_json, write_bytes, write_json

if TYPE_CHECKING:
    from .entry import Entry

SAMPLE_CONFIG = "sample"
RELEASE = "release.json"
RELEASE_SCHEMA = 1


def data_folder(
    name: str, data_dir: str | os.PathLike[str] | None, config: str, ensure_sample: Callable[[], Path], sample_means: str
) -> Path:
    """The folder that a data set of ours is read from: `data_dir`; ``$DECODEHUB_HOME/NAME``; else the embedded sample, with a warning.

    (Between the last two comes the Hub repository of ``$DECODEHUB_ORG``, which `decodehub.core.registry` looks after.)

    Args:
        name: of the data set.
        data_dir: a folder, ``"sample"`` for the sample by name, or None.
        config: the configuration asked for; ``"sample"`` is the sample.
        ensure_sample: makes the sample where it is not there yet, and gives its folder.
        sample_means: what is to be known of scores or data of the sample, and how the real data are got, for the warning.

    Raises:
        ValueError: config "sample" together with another folder.
    """
    wanted = None if data_dir is None else os.fspath(data_dir)
    if config == SAMPLE_CONFIG and wanted not in (None, SAMPLE_CONFIG):
        raise ValueError(f'config "sample" is the embedded sample and takes no data_dir, found {wanted!r}')
    if SAMPLE_CONFIG in (config, wanted):
        return ensure_sample()
    if wanted is not None:
        return Path(wanted).expanduser().absolute()
    own = home() / name
    if own.is_dir():
        return own
    warnings.warn(
        f"{name}: no data on this machine, so this is the embedded SAMPLE{sample_means}. For the real one give data_dir=FOLDER, put the folder at "
        f"{own}, or set $DECODEHUB_ORG to the Hub organisation that holds it.",
        stacklevel=3,
    )
    return ensure_sample()


def builder_class(entry: Entry) -> Any:
    """The one `datasets.DatasetBuilder` that the module of a dataset defines.

    Raises:
        TypeError: the module defines none or several.
    """
    import datasets

    module = importlib.import_module(entry.module)
    found = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, datasets.DatasetBuilder) and value.__module__ == module.__name__
    ]
    if len(found) != 1:
        raise TypeError(f"{entry.module} must define one DatasetBuilder, found {[c.__name__ for c in found]}")
    return found[0]


def export_dataset(entry: Entry, **options: Any) -> Path:
    """Write all configs of a dataset as a data-only repository below ``$DECODEHUB_HOME/repos`` and return its folder.

    Beside README and Parquet it holds ``release.json``: release, licence and rows of every config, and the hash of every Parquet file.
    The folder is named by the hash of what is in it and appears only once complete, so a second call returns at once.

    Args:
        entry: a dataset of the registry.
        options: what its builder takes, such as ``data_dir``; the config ``sample`` takes none.
    """
    from datasets.info import DatasetInfosDict
    from datasets.utils.metadata import MetadataConfigs
    from huggingface_hub import DatasetCard

    cls = builder_class(entry)
    builders = {c.name: cls(config_name=c.name, **({} if c.name == SAMPLE_CONFIG else options)) for c in cls.BUILDER_CONFIGS}
    builders = {name: builder for name, builder in builders.items() if not getattr(builder, "is_empty", False)}
    card_text = (entry.folder / "README.md").read_text(encoding="utf-8")
    key = sha256_json([RELEASE_SCHEMA, card_text, {name: builder.hash for name, builder in builders.items()}]).removeprefix("sha256:")[:16]
    folder = home() / "repos" / f"{entry.name}-{key}"
    if folder.is_dir():
        return folder

    with new_folder(folder, or_existing=True) as part:
        configs, infos = MetadataConfigs(), DatasetInfosDict()
        for name, builder in builders.items():
            builder.download_and_prepare(str(part / name), file_format="parquet")
            data_files = []
            for split in builder.info.splits:
                shards = sorted((part / name).glob(f"*-{split}*.parquet"))
                for i, shard in enumerate(shards):
                    shard.rename(part / name / f"{split}-{i:05d}-of-{len(shards):05d}.parquet")
                data_files.append({"split": split, "path": f"{name}/{split}-*"})
            (part / name / "dataset_info.json").unlink(missing_ok=True)
            configs[name] = {"data_files": data_files, **({"default": True} if name == cls.DEFAULT_CONFIG_NAME else {})}
            infos[name] = builder.info
        for lock in part.glob("*.lock"):  # left by `datasets`; no part of what is published
            lock.unlink()
        card = DatasetCard(card_text)
        infos.to_dataset_card_data(card.data)
        configs.to_dataset_card_data(card.data)
        write_bytes(part / "README.md", str(card).encode())
        write_json(part / RELEASE, _release(entry, part, builders, card.data.get("license")))
    return folder


def read_release_file(folder: Path) -> dict[str, Any]:
    """The ``release.json`` of an exported or downloaded dataset repository.

    Raises:
        ValueError: missing, malformed, or of a newer schema.
    """
    path = Path(folder) / RELEASE
    try:
        release = json.loads(read_data(path))
        version = release["schema_version"]
        if not (isinstance(release["dataset"], str) and isinstance(release["configs"], dict) and isinstance(release["files"], dict)):
            raise TypeError("dataset, configs or files are of another type")
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not the description of a release: {error!r}; export or download it anew") from None
    if version != RELEASE_SCHEMA:
        raise ValueError(
            f"{path} has schema version {version}, this decodehub reads {RELEASE_SCHEMA}: update it (pip install -U decodehub)"
        )
    return release


def _release(entry: Entry, folder: Path, builders: dict[str, Any], card_licence: str | None) -> dict[str, Any]:
    import pyarrow.parquet as pq

    configs: dict[str, Any] = {}
    files: dict[str, str] = {}
    for name, builder in builders.items():
        shards = sorted((folder / name).glob("*.parquet"))
        releases = {value for shard in shards for value in pq.read_table(shard, columns=["release"])["release"].unique().to_pylist()}
        configs[name] = {
            "releases": sorted(releases),
            "license": builder.info.license or card_licence,
            "description": builder.info.description,
            "rows": {split: info.num_examples for split, info in builder.info.splits.items()},
        }
        files |= {shard.relative_to(folder).as_posix(): sha256_file(shard) for shard in shards}
    return {"schema_version": RELEASE_SCHEMA, "dataset": entry.name, "configs": configs, "files": files}
