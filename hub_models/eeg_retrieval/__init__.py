"""Models that retrieve the image a person saw from EEG. Importing this package registers them with transformers' Auto classes."""

from typing import Any

from transformers import AutoConfig, AutoModel

from .base import EEGRetrievalModel, EEGRetrievalOutput
from .blur import BlurSelector
from .configuration_atm import ATMConfig
from .configuration_ats import ATSConfig
from .configuration_brain_hive import BrainHiveConfig
from .configuration_hyfi import HyFIConfig
from .configuration_mb2c import MB2CConfig
from .configuration_neurobridge import NeuroBridgeConfig
from .configuration_nice import NICEConfig
from .configuration_random_projection import RandomProjectionConfig
from .configuration_ridge import RidgeRetrievalConfig
from .configuration_ubp import UBPConfig
from .modeling_atm import ATMModel
from .modeling_ats import ATSModel
from .modeling_brain_hive import BrainHiveModel
from .modeling_hyfi import HyFIModel
from .modeling_mb2c import MB2CModel
from .modeling_neurobridge import NeuroBridgeModel
from .modeling_nice import NICEModel
from .modeling_random_projection import RandomProjectionModel
from .modeling_ridge import RidgeFit, RidgeRetrievalModel, RidgeRetrievalOutput
from .modeling_ubp import UBPModel

# The eight methods that EEG-EditBench compares, by model type.
RETRIEVAL_MODELS: dict[str, type[EEGRetrievalModel]] = {
    model.config_class.model_type: model
    for model in (NICEModel, ATMModel, MB2CModel, UBPModel, ATSModel, BrainHiveModel, HyFIModel, NeuroBridgeModel)
}

_model: Any
for _model in (*RETRIEVAL_MODELS.values(), RandomProjectionModel, RidgeRetrievalModel):
    AutoConfig.register(_model.config_class.model_type, _model.config_class, exist_ok=True)
    AutoModel.register(_model.config_class, _model, exist_ok=True)
    # save_pretrained then puts these modules beside the weights, for people without this package (trust_remote_code=True).
    _model.config_class.register_for_auto_class()
    _model.register_for_auto_class("AutoModel")

__all__ = [
    "RETRIEVAL_MODELS",
    "ATMConfig",
    "ATMModel",
    "ATSConfig",
    "ATSModel",
    "BlurSelector",
    "BrainHiveConfig",
    "BrainHiveModel",
    "EEGRetrievalModel",
    "EEGRetrievalOutput",
    "HyFIConfig",
    "HyFIModel",
    "MB2CConfig",
    "MB2CModel",
    "NICEConfig",
    "NICEModel",
    "NeuroBridgeConfig",
    "NeuroBridgeModel",
    "RandomProjectionConfig",
    "RandomProjectionModel",
    "RidgeFit",
    "RidgeRetrievalConfig",
    "RidgeRetrievalModel",
    "RidgeRetrievalOutput",
    "UBPConfig",
    "UBPModel",
]
