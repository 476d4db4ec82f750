"""``evaluate.load("vlm_agreement")``: how far annotators of reconstruction pairs agree, one row of answers a pair."""

from typing import Any

import datasets
import evaluate
import numpy as np

from decodehub.core.papers import BCS
from decodehub.metrics.vlm_agreement.agreement import QUESTIONS, AnswerTable, Settings, agreement, load_answers

DESCRIPTION = """\
Agreement of annotators (VLMs) that answer twelve questions on pairs of a reference image and its reconstruction with no, somewhat or yes:
unanimity, Fleiss' kappa, pairwise linearly weighted Cohen's kappa, Krippendorff's alpha, mean T-PAS and T-SAS of every annotator and of the
consensus in both published definitions, and the perceptual-semantic regimes, with intervals over concepts or pairs, and how much was answered.
"""

INPUTS = """
Args:
    predictions: one item a pair: a list with the twelve answers of every annotator, each 0 (no), 0.5 (somewhat), 1 (yes) or None (no valid
        answer), in the order P1 to P6, S1 to S6.
    references: the concept of the pair's reference image, the cluster of the intervals.
    annotators: their names (optional). unit: "concept" or "pair". resamples, seed: of the intervals. interval: "few_clusters" or "percentile".
Returns:
    release, n_pairs, unanimous, fleiss_kappa, unanimous_by_question, fleiss_kappa_by_question, weighted_kappa (by "a|b"),
    krippendorff_alpha (by level), t_pas and t_sas (by annotator and by definition of the consensus), answered (share, by annotator and by "all"), regimes, and metrics (every number with its
    interval, as in a record). A number that is not defined is None.
"""


@evaluate.utils.file_utils.add_start_docstrings(DESCRIPTION, INPUTS)
class VLMAgreement(evaluate.Metric):
    """Agreement of annotators; the functions are in `decodehub.metrics.vlm_agreement.scoring`."""

    def _info(self) -> evaluate.MetricInfo:
        features = {
            "predictions": datasets.List(datasets.List(datasets.Value("float64"))),
            "references": datasets.Value("string"),
        }
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=BCS,
            inputs_description=INPUTS,
            features=datasets.Features(features),
            reference_urls=["https://arxiv.org/abs/2607.12364"],
        )

    def compute_from_release(self, data_dir: str | None = None, **options: Any) -> dict:
        """Agreement of the annotations that ``load_dataset("bcs-annotations", data_dir=...)`` gives; options as of `compute`."""
        return _result(load_answers(data_dir), Settings(**options))

    def _compute(self, predictions: list, references: list, annotators: list | None = None, release: str = "own", **options: Any) -> dict:
        shapes = {(len(row), *sorted({len(answers) for answers in row})) for row in predictions}
        if len(shapes) != 1 or len(shape := next(iter(shapes))) != 2 or shape[1] != len(QUESTIONS):
            raise ValueError(f"every pair needs the answers of the same annotators to {len(QUESTIONS)} questions; found {sorted(shapes)}")
        names = [f"annotator {i + 1}" for i in range(shape[0])] if annotators is None else [str(name) for name in annotators]
        if len(names) != shape[0]:
            raise ValueError(f"{len(names)} names for {shape[0]} annotators")
        answers = np.array([[[np.nan if x is None else x for x in a] for a in row] for row in predictions], dtype=np.float64)
        ids = tuple(str(i) for i in range(len(answers)))
        return _result(AnswerTable(release, ids, tuple(map(str, references)), tuple(names), answers), Settings(**options))


def _result(table: AnswerTable, settings: Settings) -> dict:
    metrics = agreement(table, settings)

    def by(name: str, *keys: str) -> dict:
        return {"|".join(m.slice[k] for k in keys): m.value for m in metrics if m.name == name and set(m.slice) == set(keys)}

    return {
        "release": table.release,
        "n_pairs": len(table.pair_ids),
        "unanimous": by("unanimous")[""],
        "fleiss_kappa": by("fleiss_kappa")[""],
        "unanimous_by_question": by("unanimous", "question"),
        "fleiss_kappa_by_question": by("fleiss_kappa", "question"),
        "weighted_kappa": by("weighted_kappa", "annotators"),
        "krippendorff_alpha": by("krippendorff_alpha", "level"),
        "t_pas": {**by("t_pas", "annotator"), **by("t_pas", "consensus")},
        "t_sas": {**by("t_sas", "annotator"), **by("t_sas", "consensus")},
        "answered": {**by("answered", "annotator"), "all": by("answered").get("")},
        "regimes": by("regime", "consensus", "regime"),
        "metrics": [m.model_dump() for m in metrics],
    }
