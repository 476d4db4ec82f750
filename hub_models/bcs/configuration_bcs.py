"""Configuration of BCS: which frozen encoders, which head, and what it was trained on."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig

# Order of the columns of every array of answers, targets and weights (paper, table 3).
QUESTIONS = (
    "P1_global_spatial_structure",
    "P2_object_shape_silhouette",
    "P3_surface_texture_material",
    "P4_color_chromatic_consistency",
    "P5_artifact_absence",
    "P6_holistic_visual_recoverability",
    "S1_basic_category_identity",
    "S2_subordinate_identity",
    "S3_functional_role_purpose",
    "S4_quantity_cardinality",
    "S5_scene_context_environment",
    "S6_semantic_recoverability",
)
# Table 13. The revisions that the authors used are not published; a trained head is bound by the fingerprints of its encoders.
PUBLISHED_ENCODERS = (
    {"id": "hf:google/siglip-base-patch16-224", "dim": 768, "fingerprint": None},
    {"id": "hf:openai/clip-vit-large-patch14", "dim": 768, "fingerprint": None},
    {"id": "hf:timm/vit_base_patch16_dinov3.lvd1689m", "dim": 768, "fingerprint": None},
)
SEEDS = (7, 13, 21, 37, 42)
ARCHITECTURES = ("mlp", "ordinal_prototype", "siglip_baseline")
OUTPUT_TYPES = ("continuous", "ordinal")


class BCSConfig(PreTrainedConfig):
    """Settings of :class:`BCSModel`.

    Attributes:
        encoders: the frozen encoders in the order of their features, each ``{"id", "dim", "fingerprint"}``. The id is ``"lite0"`` or
            ``"hf:ORG/NAME[@REVISION]"``; the fingerprint (``"sha256:..."`` over weights, architecture and preprocessing) is set by training, and
            None means that any encoder of that length is taken. Default: SigLIP, CLIP and DINOv3 of table 13.
        questions: names of the twelve outputs.
        seeds: one member of the ensemble a seed; the seed decides its start weights.
        architecture: ``"mlp"`` (the paper's residual head), ``"ordinal_prototype"`` (three prototypes a question, trained with a
            cross-entropy of weight .35 beside the MSE) or ``"siglip_baseline"`` (the single-encoder head of table 6).
        output_type: ``"continuous"``, or ``"ordinal"``: scores snapped to 0, .5 and 1 by `thresholds`.
        thresholds: (12, 2) low and high threshold of each question, fitted on validation data, or None.
        hidden_size, ffn_size, n_blocks, dropout: of the residual head (512, 1,024, 2, .2 in the paper).
        release: release of the annotations that the weights were trained on, or None; ``"sample"`` marks scores without scientific meaning.
        n_train: pairs trained on; 0 for random weights.
    """

    model_type = "bcs"

    encoders: list[dict[str, Any]] | None = None
    questions: list[str] | None = None
    seeds: list[int] | None = None
    architecture: str = "mlp"
    output_type: str = "continuous"
    thresholds: list[list[float]] | None = None
    hidden_size: int = 512
    ffn_size: int = 1024
    n_blocks: int = 2
    dropout: float = 0.2
    release: str | None = None
    n_train: int = 0

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self.encoders = [dict(e) for e in (self.encoders if self.encoders is not None else PUBLISHED_ENCODERS)]
        self.questions = list(self.questions if self.questions is not None else QUESTIONS)
        self.seeds = list(self.seeds if self.seeds is not None else SEEDS)
        if not self.encoders or any(set(e) != {"id", "dim", "fingerprint"} or int(e["dim"]) < 1 for e in self.encoders):
            raise ValueError(f"encoders must be a list of at least one {{'id', 'dim', 'fingerprint'}}, got {self.encoders!r}")
        if len(set(self.questions)) != len(self.questions) or {q[:1] for q in self.questions} != {"P", "S"}:
            raise ValueError(f"questions must be distinct names that start with P or S, with both kinds, got {self.questions!r}")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds must be distinct and at least one, got {self.seeds!r}")
        for name, allowed in (("architecture", ARCHITECTURES), ("output_type", OUTPUT_TYPES)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected one of {', '.join(allowed)}")
        self._check_thresholds()
        for name in ("hidden_size", "ffn_size", "n_blocks"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {getattr(self, name)!r}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout!r}")

    def _check_thresholds(self) -> None:
        if self.output_type == "ordinal" and self.thresholds is None:
            raise ValueError('output_type "ordinal" needs thresholds, which `decodehub bcs train` fits on validation data')
        if self.thresholds is not None:
            assert self.questions is not None
            ordered = all(len(pair) == 2 and 0 <= pair[0] < pair[1] <= 1 for pair in self.thresholds)
            if len(self.thresholds) != len(self.questions) or not ordered:
                raise ValueError(f"thresholds must be {len(self.questions)} pairs 0 <= low < high <= 1, got {self.thresholds!r}")

    @property
    def feature_dim(self) -> int:
        """Length of a pair's features: 4 d + 1 for each encoder (Eq. 15); 9,219 in the paper."""
        return sum(4 * int(e["dim"]) + 1 for e in self.encoders or ())

    @property
    def n_members(self) -> int:
        """Members of the ensemble."""
        return len(self.seeds or ())

    @classmethod
    def tiny(cls) -> BCSConfig:
        """A small configuration for tests: one encoder of 6 numbers, two members."""
        return cls(
            encoders=[{"id": "lite0", "dim": 6, "fingerprint": None}],
            seeds=[0, 1],
            hidden_size=8,
            ffn_size=12,
            n_blocks=1,
        )


__all__ = ["PUBLISHED_ENCODERS", "QUESTIONS", "SEEDS", "BCSConfig"]
