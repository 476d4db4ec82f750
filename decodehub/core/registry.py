"""Bare names. The folder is the registry: ``hub_datasets/x_y/builder.py`` is the dataset ``x-y``, ``metrics/x_y/x_y.py`` the metric ``x_y``.

This is the one place that hooks ``datasets`` and ``evaluate``, and only once they are imported. Neither has a plug-in point, so one
private function of each is wrapped. Where a version has moved it, the public functions are wrapped instead, to say which call works.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import wrapt

from .entry import by_bare_name, names
from .files import home

ORG_VARIABLE = "DECODEHUB_ORG"


def path(name: str, **options: Any) -> str:
    """A path that ``load_dataset`` or ``evaluate.load`` takes as it is, without any hook of ours.

    For a metric it is its folder. For a dataset it is a data-only repository (README with its configs, Parquet files) that is made when
    first asked for, the same that is published on the Hub.

    Args:
        name: of a dataset ("eeg-editbench") or metric ("eeg_editbench").
        options: for a dataset, what its builder takes, such as ``data_dir="sample"``.

    Raises:
        KeyError: no dataset or metric has this name.
    """
    matches = [entry for entry in names() if entry.name == name and entry.kind in ("dataset", "metric")]
    if not matches:
        raise KeyError(f"no dataset or metric is called {name!r}; there are {[entry.name for entry in names() if entry.kind != 'model']}")
    entry = matches[0]
    if entry.kind == "metric":
        return str(entry.folder)
    from .repos import export_dataset

    return str(export_dataset(entry, **options))


def install() -> None:
    """Have the bare names hooked in as soon as ``datasets`` and ``evaluate`` are imported (or now, if they are)."""
    wrapt.register_post_import_hook(_hook_datasets, "datasets.load")
    wrapt.register_post_import_hook(_hook_datasets_inspect, "datasets.inspect")
    wrapt.register_post_import_hook(_hook_evaluate, "evaluate.loading")


def _dataset_factory(original: Callable[..., Any], load: ModuleType) -> Callable[..., Any]:
    @functools.wraps(original)
    def factory(path: str, *args: Any, **kwargs: Any) -> Any:
        # A path, or a folder of that name where the user stands, is the user's own and wins.
        entry = None if not isinstance(path, str) or Path(path).is_dir() else by_bare_name(path, "dataset")
        if entry is None:
            return original(path, *args, **kwargs)
        revision = args[0] if args else kwargs.get("revision")
        data_dir = kwargs.get("data_dir")
        org = os.environ.get(ORG_VARIABLE)
        if org and data_dir is None and not _local_release(path):
            return original(f"{org}/{path}", *args, **kwargs)
        if revision is not None:
            raise ValueError(
                f"revision={revision!r} is of a Hub repository, but {path!r} is read from this machine: "
                f"load 'ORG/{path}', or set ${ORG_VARIABLE} to its organisation"
            )
        return load.DatasetModule(entry.module, "decodehub", {"dataset_name": path})

    factory._decodehub = True  # type: ignore[attr-defined]
    return factory


def _metric_factory(original: Callable[..., Any], loading: ModuleType) -> Callable[..., Any]:
    @functools.wraps(original)
    def factory(path: str, *args: Any, **kwargs: Any) -> Any:
        entry = None if not isinstance(path, str) or (Path(path) / f"{path}.py").is_file() else by_bare_name(path, "metric")
        if entry is None:
            return original(path, *args, **kwargs)
        return loading.ImportableModule(entry.module, "decodehub")

    factory._decodehub = True  # type: ignore[attr-defined]
    return factory


def _hook_datasets(load: ModuleType) -> None:
    if not _hook(load, "dataset_module_factory", "DatasetModule", _dataset_factory):
        for function in ("load_dataset", "load_dataset_builder"):
            _explain(load, "datasets", function, "dataset")


def _hook_datasets_inspect(inspect: ModuleType) -> None:
    load = importlib.import_module("datasets.load")
    if getattr(getattr(load, "dataset_module_factory", None), "_decodehub", False) and hasattr(inspect, "dataset_module_factory"):
        inspect.dataset_module_factory = load.dataset_module_factory  # type: ignore[attr-defined]
    else:
        for function in ("get_dataset_config_names", "get_dataset_split_names"):
            _explain(inspect, "datasets", function, "dataset")


def _hook_evaluate(loading: ModuleType) -> None:
    if not _hook(loading, "evaluation_module_factory", "ImportableModule", _metric_factory):
        _explain(loading, "evaluate", "load", "metric")


def _hook(module: ModuleType, function: str, result: str, wrap: Callable[[Callable[..., Any], ModuleType], Callable[..., Any]]) -> bool:
    original = getattr(module, function, None)
    if original is None or not hasattr(module, result):
        return False
    if not getattr(original, "_decodehub", False):
        setattr(module, function, wrap(original, module))
    return True


def _explain(module: ModuleType, package: str, function: str, kind: str) -> None:
    """Wrap a public function so that a bare name of ours gets an error with the call that works."""
    original = getattr(module, function, None)
    if original is None or getattr(original, "_decodehub", False):
        return

    @functools.wraps(original)
    def explained(path: str, *args: Any, **kwargs: Any) -> Any:
        if isinstance(path, str) and not Path(path).exists() and by_bare_name(path, kind) is not None:
            version = getattr(importlib.import_module(package), "__version__", "?")
            call = "load_dataset" if kind == "dataset" else "evaluate.load"
            raise RuntimeError(
                f"the bare name {path!r} does not work with {package} {version}, which has moved what decodehub hooks; "
                f'this call works: {call}(decodehub.path("{path}"))'
            )
        return original(path, *args, **kwargs)

    explained._decodehub = True  # type: ignore[attr-defined]
    setattr(module, function, explained)
    package_module = importlib.import_module(package)
    if getattr(package_module, function, None) is original:
        setattr(package_module, function, explained)


def _local_release(name: str) -> bool:
    return (home() / name).is_dir()
