"""Models that retrieve the image a person saw from EEG. Importing this package registers them with transformers' Auto classes."""

from transformers import AutoConfig, AutoModel

from .configuration_ridge import RidgeRetrievalConfig
from .modeling_ridge import RidgeFit, RidgeRetrievalModel, RidgeRetrievalOutput

AutoConfig.register(RidgeRetrievalConfig.model_type, RidgeRetrievalConfig, exist_ok=True)
AutoModel.register(RidgeRetrievalConfig, RidgeRetrievalModel, exist_ok=True)
# save_pretrained then puts these modules beside the weights, for people without this package (trust_remote_code=True).
RidgeRetrievalConfig.register_for_auto_class()
RidgeRetrievalModel.register_for_auto_class("AutoModel")

__all__ = ["RidgeFit", "RidgeRetrievalConfig", "RidgeRetrievalModel", "RidgeRetrievalOutput"]
