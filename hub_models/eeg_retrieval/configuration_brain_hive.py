"""Configuration of Brain-HIVE."""

from __future__ import annotations

from typing import Any

from .configuration_base import ContrastiveConfig, tiny_project

# self_supervised: SynCLR ViT-B/16; image_text: CLIP ViT-B/32; autoencoder: SDXL-VAE latents 4 x 16 x 16; rn50: CLIP RN50.
BRANCH_SETS = {
    "released_code": {"self_supervised": 768, "image_text": 512, "autoencoder": 1024},
    "paper": {"rn50": 1024, "image_text": 512, "autoencoder": 1024},
}


class BrainHiveConfig(ContrastiveConfig):
    """Settings of :class:`BrainHiveModel`: both sides are normalised, exp temperature that is trained, weights start as transformers do.

    Attributes:
        branches: visual features by name and length, or the name of a set. "released_code": SynCLR ViT-B/16, CLIP ViT-B/32
            and SDXL-VAE latents, which its README recommends; "paper": the headline mix, with RN50 in place of SynCLR. Default
            "released_code", which EEG-EditBench uses too. ``image_dim`` is not looked at.
        input_bias: bias of the first EEG layer (True in the released code).
        residual_bias: biases of the two layers of both residual blocks (False in the released code).
        dropout: in the residual blocks.
        layer_norm_eps: of both LayerNorms.
        freeze_images: the image side is not trained, as when a Fusion Prior was loaded into it (stage 2 of the paper with stage 1).
    """

    model_type = "brain-hive"

    logit_scale_mapping: str = "exp"
    normalize_eeg: bool = True
    initialization: str = "transformers"
    branches: dict[str, int] | str = "released_code"
    input_bias: bool = True
    residual_bias: bool = False
    dropout: float = 0.1
    layer_norm_eps: float = 1e-6
    freeze_images: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self._probability("dropout")
        self._positive("layer_norm_eps")
        if isinstance(self.branches, str):
            self._choice("branches", tuple(BRANCH_SETS))
        elif not self.branches or not all(isinstance(dim, int) and dim > 0 and name.isidentifier() for name, dim in self.branches.items()):
            raise ValueError(f"branches must be names and positive lengths, or one of {sorted(BRANCH_SETS)}, got {self.branches!r}")

    @property
    def image_inputs(self) -> dict[str, int]:
        """Names and lengths of the branches, in alphabetical order (that of a saved configuration)."""
        branches = BRANCH_SETS[self.branches] if isinstance(self.branches, str) else self.branches
        return dict(sorted(branches.items()))

    @classmethod
    def tiny(cls) -> BrainHiveConfig:
        """A configuration small enough for tests."""
        return cls(**tiny_project(), branches={"self_supervised": 8, "image_text": 6, "autoencoder": 10})


__all__ = ["BrainHiveConfig"]
