"""NICE: a small convolutional network brings EEG to frozen CLIP features."""

from __future__ import annotations

from .configuration_nice import NICEConfig
from .nice_blocks import NICEStyleModel


class NICEModel(NICEStyleModel):
    """EEG (b, 63, 250) to 36 * 40 values (:class:`.blocks.ConvStem`) to (b, 768); images are CLIP ViT-L/14 embeddings (g, 768).

    1,802,496 parameters: stem 103,680, head 1,698,816. The optional attention over channels of the paper's variants is not part of the
    base model. Source: Y. Song et al., ICLR 2024 (arXiv 2308.13234).
    """

    config_class = NICEConfig


__all__ = ["NICEModel"]
