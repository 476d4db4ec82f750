"""Classifiers of iEEG windows. Importing this package registers them with transformers' Auto classes."""

from typing import Any

from transformers import AutoConfig, AutoModel

from .base import IEEGClassifier
from .configuration_base import IEEGConfig
from .configuration_cnn import CNNConfig
from .configuration_htnet import HTNetConfig
from .configuration_logistic import LogisticConfig
from .configuration_mlp import MLPConfig
from .modeling_cnn import CNNModel
from .modeling_htnet import HTNetModel
from .modeling_logistic import LogisticModel
from .modeling_mlp import MLPModel

# By model type.
IEEG_MODELS: dict[str, type[IEEGClassifier]] = {
    model.config_class.model_type: model for model in (LogisticModel, MLPModel, CNNModel, HTNetModel)
}

_model: Any
for _model in IEEG_MODELS.values():
    AutoConfig.register(_model.config_class.model_type, _model.config_class, exist_ok=True)
    AutoModel.register(_model.config_class, _model, exist_ok=True)
    # save_pretrained then puts these modules beside the weights, for people without this package (trust_remote_code=True).
    _model.config_class.register_for_auto_class()
    _model.register_for_auto_class("AutoModel")

__all__ = [
    "IEEG_MODELS",
    "CNNConfig",
    "CNNModel",
    "HTNetConfig",
    "HTNetModel",
    "IEEGClassifier",
    "IEEGConfig",
    "LogisticConfig",
    "LogisticModel",
    "MLPConfig",
    "MLPModel",
]
