"""Models of iMINDBench by name: the baselines, a folder with a configuration of ours, or a user's Python file."""

from __future__ import annotations

import dataclasses
import importlib.util
import traceback
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from decodehub.core.files import read_json, sha256_file, sha256_json
from decodehub.core.words import suggest
from decodehub.hub_models.ieeg import IEEG_MODELS

from .training import SEED, TrainSettings, train_network

if TYPE_CHECKING:
    from decodehub.hub_models.ieeg import IEEGClassifier

_HTNET = TrainSettings(lr=1e-3, batch_size=128, clip=1.0)


class _Baseline(NamedTuple):
    model_type: str
    config: dict[str, Any]
    training: TrainSettings | None


BASELINES: dict[str, _Baseline] = {
    "logistic-paper": _Baseline("ieeg-logistic", {"solver": "sklearn", "tol": 1e-3}, None),
    "logistic-code": _Baseline("ieeg-logistic", {"solver": "sklearn", "tol": 1e-4}, None),
    "logistic-converged": _Baseline("ieeg-logistic", {"solver": "newton", "tol": 1e-6}, None),
    "mlp": _Baseline("ieeg-mlp", {}, TrainSettings()),
    "mlp-paper": _Baseline("ieeg-mlp", {}, TrainSettings(tol=1e-8)),
    "cnn": _Baseline("ieeg-cnn", {}, TrainSettings()),
    "htnet": _Baseline("ieeg-htnet", {}, _HTNET),
}
_TRAINING = {"ieeg-mlp": TrainSettings(), "ieeg-cnn": TrainSettings(), "ieeg-htnet": _HTNET}


class FoldData(NamedTuple):
    """What a model is fitted on; no test window is among it.

    Attributes:
        x, y, x_val, y_val: (n, C, ...) float32 normalised windows, (n,) int64 labels.
        fold: 0 or 1. ch_names: C names. recipe_hash, unit: for the configuration.
    """

    x: np.ndarray
    y: np.ndarray
    x_val: np.ndarray
    y_val: np.ndarray
    fold: int
    ch_names: tuple[str, ...]
    recipe_hash: str
    unit: str


class Fitted(NamedTuple):
    """A fitted model: `predict` gives (n,) probabilities of class 1; `report` says how the fit went (JSON values)."""

    predict: Callable[[np.ndarray], np.ndarray]
    report: dict[str, Any]


class ModelSpec(NamedTuple):
    """A model that can be fitted to folds.

    Attributes:
        name: for tables and folders. settings: JSON values that decide its predictions, for the record; `hash` is of them.
        fit: fits one fold. fraction: share of the training windows that it gets.
    """

    name: str
    settings: dict[str, Any]
    hash: str
    fit: Callable[[FoldData], Fitted]
    fraction: Fraction = Fraction(1)


def model_spec(name: str, *, device: str = "cpu", training: Mapping[str, Any] | None = None) -> ModelSpec:
    """The model of that name.

    Args:
        name: one of `BASELINES`; the path of a Python file with ``fit(x, y, x_val, y_val)`` and ``predict_proba(x)``, which is run as your own
            code, anew for each fold; or of a folder with a ``config.json`` of a model of `decodehub.hub_models.ieeg` (and perhaps weights,
            to start from where shapes agree).
        device: where networks are trained.
        training: changes to the training settings, for networks.

    Raises:
        ValueError: no such name, no such file, a configuration of another family, or training settings for a model that has none.
    """
    changes = dict(training or {})
    if name in BASELINES:
        base = BASELINES[name]
        return _network_spec(name, base.model_type, base.config, base.training, changes, device, None)
    path = Path(name)
    if path.suffix == ".py":
        if changes:
            raise ValueError(f"{name} trains itself: training settings {sorted(changes)} do not apply")
        return _file_spec(path)
    if path.is_dir():
        return _folder_spec(path, changes, device)
    raise ValueError(
        f"--model {name!r} is not known: expected one of {', '.join(BASELINES)}, a Python file with fit and predict_proba, or a folder with config.json{suggest(name, BASELINES)}"
    )


def _network_spec(
    name: str,
    model_type: str,
    config: Mapping[str, Any],
    training: TrainSettings | None,
    changes: dict[str, Any],
    device: str,
    weights: Path | None,
) -> ModelSpec:
    if training is None and changes:
        raise ValueError(f"{name} is fitted at once: training settings {sorted(changes)} do not apply")
    if training is not None:
        training = dataclasses.replace(training, **changes)
    settings: dict[str, Any] = {"model_type": model_type, "config": dict(config)}
    if training is not None:
        settings |= {"training": dataclasses.asdict(training), "seed": f"{SEED} + fold", "device": device.partition(":")[0]}
    if weights is not None:
        settings["start_weights"] = sha256_file(weights)

    def fit(data: FoldData) -> Fitted:
        cls: Any = IEEG_MODELS[model_type]
        shape = list(data.x.shape[1:])
        made = cls.config_class(**config, input_shape=shape, ch_names=list(data.ch_names), recipe_hash=data.recipe_hash, unit=data.unit)
        if training is None:
            model = cls(made)
            report = model.fit(data.x, data.y)
        else:
            model, report = train_network(
                lambda: _start(cls, made, weights), data.x, data.y, data.x_val, data.y_val, training, seed=SEED + data.fold, device=device
            )
        return Fitted(lambda x: model.predict_proba(torch.from_numpy(np.ascontiguousarray(x))).numpy(), report)

    return ModelSpec(name, settings, sha256_json(settings), fit)


def _start(cls: Any, config: Any, weights: Path | None) -> IEEGClassifier:
    if weights is None:
        return cls(config)
    saved = cls.config_class.from_pretrained(weights.parent)
    if saved.input_shape != config.input_shape:
        raise ValueError(
            f"the weights in {weights.parent} take windows of shape {saved.input_shape}, these are {config.input_shape}: "
            "remove model.safetensors to train from new weights"
        )
    return cls.from_pretrained(weights.parent)


def _folder_spec(path: Path, changes: dict[str, Any], device: str) -> ModelSpec:
    try:
        raw = read_json(path / "config.json", max_bytes=1 << 20)
        model_type = raw["model_type"]
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a model folder: its config.json cannot be used ({error})") from None
    if not isinstance(model_type, str) or model_type not in IEEG_MODELS:
        raise ValueError(
            f"{path}: model type {model_type!r} is not one of {', '.join(IEEG_MODELS)}. For a network of your own give a Python file with "
            "fit(x, y, x_val, y_val) and predict_proba(x)"
        )
    config_class: Any = IEEG_MODELS[model_type].config_class
    known = set(config_class().to_dict()) - set(_PROVENANCE)
    plain: Any = config_class()
    config = {
        k: v for k, v in raw.items() if k in known and hasattr(plain, k) and k in config_class.__dataclass_fields__ and k not in _PROVENANCE
    }
    config_class(**config)  # a bad value is an error now, not in the middle of the job
    weights = path / "model.safetensors"
    start = weights if weights.is_file() and model_type in _TRAINING else None
    return _network_spec(path.name, model_type, config, _TRAINING.get(model_type), changes, device, start)


# Set for each unit, or of no consequence for the fit.
_PROVENANCE = (
    "input_shape",
    "ch_names",
    "recipe_hash",
    "unit",
    "fit_report",
    "transformers_version",
    "architectures",
    "auto_map",
    "dtype",
    "id2label",
    "label2id",
)


def _file_spec(path: Path) -> ModelSpec:
    if not path.is_file():
        raise ValueError(f"--model {path} does not exist")
    _load_module(path)  # an error in the file is an error now
    settings = {"file": path.name, "sha256": sha256_file(path)}

    def fit(data: FoldData) -> Fitted:
        module = _load_module(path)
        module.fit(data.x, data.y, data.x_val, data.y_val)

        def predict(x: np.ndarray) -> np.ndarray:
            found = np.asarray(module.predict_proba(x), dtype=np.float64)
            if found.ndim == 2 and found.shape[1] == 2:
                found = found[:, 1]
            if found.shape != (len(x),) or not np.isfinite(found).all() or found.min(initial=0) < 0 or found.max(initial=1) > 1:
                raise ValueError(
                    f"{path.name}: predict_proba must give ({len(x)},) or ({len(x)}, 2) probabilities, found shape {found.shape}"
                )
            return found

        return Fitted(predict, {})

    return ModelSpec(path.stem, settings, sha256_json(settings), fit)


def _load_module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"decodehub_user_model_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever the user's own code raises
        line = next((f.lineno for f in reversed(traceback.extract_tb(error.__traceback__)) if f.filename == str(path)), None)
        where = (
            f"{path}, line {error.lineno if isinstance(error, SyntaxError) else line}" if line or isinstance(error, SyntaxError) else path
        )
        raise ValueError(f"--model {where}: {type(error).__name__}: {str(error) or 'no message'}; correct the file") from None
    if missing := [name for name in ("fit", "predict_proba") if not callable(getattr(module, name, None))]:
        raise ValueError(f"{path} lacks the functions {', '.join(missing)}: expected fit(x, y, x_val, y_val) and predict_proba(x)")
    return module
