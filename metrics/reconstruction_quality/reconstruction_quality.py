"""``evaluate.load("reconstruction_quality")``: conventional measures of reconstructed images, for images of any kind."""

from typing import Any

import evaluate
import numpy as np

from decodehub.core.papers import BCS
from decodehub.metrics.bcs.image_pairs import FEATURES, ImagePairMetric
from decodehub.metrics.reconstruction_quality.measures import DEFAULT, measure
from decodehub.metrics.reconstruction_quality.scoring import mean_over_concepts

DESCRIPTION = """\
Conventional measures of reconstructed images against their references: MSE, PSNR, SSIM, edge cosine, colour histograms, LPIPS, DISTS, and cosines of the
features of any image encoder. How far they can be trusted for reconstructions from brain signals is what `decodehub bcs audit` measures.
"""

INPUTS = """
Args:
    predictions: n reconstructions: paths, encoded bytes, PIL images, arrays or tensors, or dicts of bytes and path; or one array or tensor
        (n, 3, h, w) or (n, h, w, 3). Floats are in [0, 1], 8 bit in 0 to 255 (`loaders.images`).
    references: n reference images, one a reconstruction.
    measures: names; by default those that need no download. Also lpips, dists, clip-l14, dinov2, openclip, siglip, cosine:hf:ORG/NAME, two-way:lite0.
    concept: n names, what intervals are over; by default the references.
    per_pair: True for the values of every pair too.
    input_range: "documented" or "released_code": what LPIPS and DISTS are fed with.
    device, batch_size, progress: of the networks; whether to show bars.
    n_bootstrap, seed: of the intervals.
Returns:
    for each measure its mean, and under "ci95" the 95 % interval of each (None where not defined); "higher_is_better", "settings" (what decided the
    values), "undefined" (how many pairs are left out, such as edges of flat references) and "left_out" (their places, from 0) by measure; n_pairs. A
    reconstruction that has no value, such as the edges of a flat image, counts as the worst: -1 of cosines and correlations, 0 of two-way identification.
"""


@evaluate.utils.file_utils.add_start_docstrings(DESCRIPTION, INPUTS)
class ReconstructionQuality(ImagePairMetric):
    """Conventional measures of pairs of images; each distinct image is encoded once."""

    def _info(self) -> evaluate.MetricInfo:
        self._forget()
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=BCS,
            inputs_description=INPUTS,
            features=FEATURES,
            reference_urls=["https://arxiv.org/abs/2607.12364"],
        )

    def _compute(
        self,
        predictions: list,
        references: list,
        measures: Any = DEFAULT,
        concept: Any = None,
        per_pair: bool = False,
        input_range: str = "documented",
        device: Any = "cpu",
        batch_size: int = 32,
        progress: bool = True,
        n_bootstrap: int = 1000,
        seed: int = 0,
    ) -> dict:
        left, right = self._take(predictions, references, {"concept": concept})
        if isinstance(measures, str):
            raise TypeError(f"measures must be a list of names, found the string {measures!r}")
        found = measure(measures, left, right, input_range=input_range, device=device, batch_size=batch_size, progress=progress)
        concepts = [
            str(c) if c is not None else r for c, r in zip(concept if concept is not None else [None] * len(references), references)
        ]
        means = {name: mean_over_concepts(v.values, concepts, n_bootstrap, seed) for name, v in found.items()}
        result: dict = {name: number.value if number.n else None for name, number in means.items()}
        result["ci95"] = {name: list(m.ci95) if np.isfinite(m.ci95).all() else None for name, m in means.items()}
        result["higher_is_better"] = {name: v.higher_is_better for name, v in found.items()}
        result["settings"] = {name: v.settings for name, v in found.items()}
        result["undefined"] = {name: int((~np.isfinite(v.values)).sum()) for name, v in found.items()}
        result["left_out"] = {name: np.flatnonzero(~np.isfinite(v.values)).tolist() for name, v in found.items()}
        result["n_pairs"] = len(references)
        if per_pair:
            result["per_pair"] = {name: [x if np.isfinite(x) else None for x in v.values.tolist()] for name, v in found.items()}
        return result
