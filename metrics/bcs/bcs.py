"""``evaluate.load("bcs")``: how well reconstructed images can be recovered, perceptually and semantically, for images of any kind."""

from typing import Any

import evaluate
import numpy as np

from decodehub.core.papers import BCS
from decodehub.metrics.bcs.heads import SAMPLE, SAMPLE_WARNING, load_head
from decodehub.metrics.bcs.image_pairs import FEATURES, ImagePairMetric
from decodehub.metrics.bcs.scoring import QUESTIONS, REGIMES, Settings, describe, regimes

DESCRIPTION = """\
BCS (BCI-Coherence Score) asks whether the reference image can still be recovered from a reconstruction that was decoded from the brain: twelve
question scores in [0, 1], their perceptual mean T-PAS and their semantic mean T-SAS, predicted from frozen image encoders by a head that was
trained on the consensus of vision-language models. Higher is better.
"""

INPUTS = """
Args:
    predictions: n reconstructions: paths, encoded bytes, PIL images, arrays or tensors, or dicts of bytes and path; or one array or tensor
        (n, 3, h, w) or (n, h, w, 3). Floats are in [0, 1], 8 bit in 0 to 255 (`loaders.images`).
    references: n reference images, one a reconstruction; repeat a reference that several reconstructions are of.
    model: the trained head: a folder, "ORG/NAME" of the Hub, or "sample"; by default the name the metric was loaded with
        (`evaluate.load("bcs", "sample")`).
    method, subject, concept: n names each, or None. Methods get numbers of their own; intervals are over concepts, else over references.
    per_pair: True for the scores of every pair too.
    batch_size, progress: images encoded at once; whether to show a bar.
    n_bootstrap, seed, threshold: of the intervals; what counts as high in the regimes (.5 in the paper).
Returns:
    t_pas, t_sas, t_pas_ci95, t_sas_ci95, question_means, regime_shares, regime_shares_ci95 (high_p_high_s: coherent; high_p_low_s: plausible but
    wrong; low_p_high_s: meaning without likeness; low_p_low_s: failed), by_method, n_pairs, n_images, model, release, output_type, encoders, and with
    a sample head a warning. An interval that is not defined is None.
"""


@evaluate.utils.file_utils.add_start_docstrings(DESCRIPTION, INPUTS)
class BCSMetric(ImagePairMetric):
    """BCS of pairs of images; each distinct image is encoded once."""

    def _info(self) -> evaluate.MetricInfo:
        self._forget()
        self._heads: dict = {}
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
        model: Any = None,
        method: Any = None,
        subject: Any = None,
        concept: Any = None,
        per_pair: bool = False,
        batch_size: int = 32,
        progress: bool = True,
        n_bootstrap: int = 1000,
        seed: int = 0,
        threshold: float = 0.5,
    ) -> dict:
        n = len(references)
        names = {"method": method, "subject": subject, "concept": concept}
        left, right = self._take(predictions, references, names)
        settings = Settings(threshold, n_bootstrap, seed)
        if model is None and self.config_name not in (None, "default"):
            model = self.config_name
        head = self._head(model, progress)
        output = head.score_sources(left, right, batch_size, progress)
        scores = output.question_scores.numpy()
        concepts = [c if c is not None else r for c, r in zip(concept if concept is not None else [None] * n, references)]
        methods = None if method is None else [None if m is None else str(m) for m in method]
        numbers = describe(scores, [str(c) for c in concepts], methods, settings)
        result = _summary([number for number in numbers if "method" not in dict(number.slice)])
        if methods is not None:
            found = sorted({m for m in methods if m is not None})
            result["by_method"] = {m: _summary([x for x in numbers if ("method", m) in x.slice]) for m in found}
        result |= {
            "n_pairs": n,
            "n_images": len({*predictions, *references}),
            "model": str(model) if model is not None else head.config.name_or_path,
            "release": head.config.release,
            "output_type": head.config.output_type,
            "encoders": [entry["id"] for entry in head.config.encoders],
        }
        if head.config.release == SAMPLE:
            result["warning"] = SAMPLE_WARNING
        if per_pair:
            result["per_pair"] = _rows(output, names, predictions, references, settings.threshold)
        return result

    def _head(self, model: Any, progress: bool) -> Any:
        key = None if model is None else str(model)
        if key not in self._heads:
            self._heads = {key: load_head(model, progress)}
        return self._heads[key]


def _summary(numbers: list) -> dict:
    by = {(x.name, dict(x.slice).get("question") or dict(x.slice).get("regime")): x for x in numbers}
    interval = {key: (list(x.ci95) if np.isfinite(x.ci95).all() else None) for key, x in by.items()}
    return {
        "t_pas": by["t_pas", None].value,
        "t_sas": by["t_sas", None].value,
        "t_pas_ci95": interval["t_pas", None],
        "t_sas_ci95": interval["t_sas", None],
        "question_means": {q: by["question_mean", q].value for q in QUESTIONS},
        "regime_shares": {r: by["regime_share", r].value for r in REGIMES},
        "regime_shares_ci95": {r: interval["regime_share", r] for r in REGIMES},
    }


def _rows(output: Any, names: dict, predictions: list, references: list, threshold: float) -> list:
    scores, spread = output.question_scores.numpy(), output.spread.numpy()
    t_pas, t_sas = output.t_pas.numpy().astype(float), output.t_sas.numpy().astype(float)
    where = regimes(t_pas, t_sas, threshold)
    return [
        {
            **{name: values[i] for name, values in names.items() if values is not None},
            "prediction_sha256": predictions[i],
            "reference_sha256": references[i],
            "t_pas": float(t_pas[i]),
            "t_sas": float(t_sas[i]),
            "regime": REGIMES[where[i]],
            "question_scores": {q: float(s) for q, s in zip(QUESTIONS, scores[i])},
            "spread": float(spread[i].mean()),
        }
        for i in range(len(references))
    ]
