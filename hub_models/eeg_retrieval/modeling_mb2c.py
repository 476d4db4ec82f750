"""MB2C: NICE's network with a trained image side; in training also two generators and two critics (:mod:`.adversarial`)."""

from __future__ import annotations

from .configuration_mb2c import MB2CConfig
from .nice_blocks import NICEStyleModel


class MB2CModel(NICEStyleModel):
    """EEG (b, 63, 250) to (b, 768) as in NICE, CLIP ViT-L/14 embeddings (g, 768) to (g, 768) by a residual head.

    ``loss`` is the contrastive part, over all pairs given (mixed ones are appended to the batch); the training job adds
    :func:`.adversarial.cycle_loss`. 2,985,216 parameters: NICE's 1,802,496 and the image head's 1,182,720.
    Source: Y. Wei et al., ACM Multimedia 2024 (doi 10.1145/3664647.3681292).
    """

    config_class = MB2CConfig


__all__ = ["MB2CModel"]
