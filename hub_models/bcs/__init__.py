"""BCS, the BCI-Coherence Score. Importing this package registers it with transformers' Auto classes."""

from transformers import AutoConfig, AutoModel, AutoProcessor

from .configuration_bcs import PUBLISHED_ENCODERS, QUESTIONS, SEEDS, BCSConfig
from .modeling_bcs import BCSHead, BCSModel, BCSOutput, pair_features, weighted_mse
from .processing_bcs import BCSProcessor

AutoConfig.register(BCSConfig.model_type, BCSConfig, exist_ok=True)
AutoModel.register(BCSConfig, BCSModel, exist_ok=True)
AutoProcessor.register(BCSConfig, BCSProcessor, exist_ok=True)
# save_pretrained then puts these modules beside the weights, for people without this package (trust_remote_code=True).
BCSConfig.register_for_auto_class()
BCSModel.register_for_auto_class("AutoModel")
BCSProcessor.register_for_auto_class("AutoProcessor")

__all__ = [
    "PUBLISHED_ENCODERS",
    "QUESTIONS",
    "SEEDS",
    "BCSConfig",
    "BCSHead",
    "BCSModel",
    "BCSOutput",
    "BCSProcessor",
    "pair_features",
    "weighted_mse",
]
