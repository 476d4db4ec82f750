"""``evaluate.load("eeg_editbench")``: the EEG-EditBench protocol for one run, one row of scores a query."""

from typing import Any

import datasets
import evaluate
import numpy as np

from decodehub.metrics.eeg_editbench.benchmark import Benchmark, load_benchmark
from decodehub.metrics.eeg_editbench.protocol import Predictions, check_predictions
from decodehub.metrics.eeg_editbench.scoring import prepare, score_run
from decodehub.metrics.eeg_editbench.similarity import score_embeddings

DESCRIPTION = """\
EEG-EditBench asks whether an EEG-to-image retrieval model tells the viewed image from controlled edits of it. It reports 200-way Top-1
and Top-5 retrieval, EP-Top1 (the viewed image strictly above all its edits), two-alternative forced choice (2AFC) overall and by edit
family, subtype and source category, and the control analyses of the paper (mismatched queries, null edits, visual distance, target
concept). All accuracies are in percent.
"""

CITATION = """@article{zhang2026eegeditbench,
  title = {EEG-EditBench: Probing Visual Information in EEG-Image Retrieval Models with Controlled Image Edits},
  author = {Zhang, Kaifan and He, Lihuo and Ji, Yuqi and Ke, Junjie and Wu, Lukun and You, Tianhao and Gao, Xinbo},
  journal = {arXiv preprint arXiv:2607.27857},
  year = {2026}
}"""

INPUTS = """
Args:
    predictions: one item a query: a dict with `source_scores` (Q floats, in the order of the release's concepts), `edit_scores` (E floats,
        in the order of its edits) and optionally `null_scores` (Q floats). Higher is more similar.
    references: the query's concept, a string; every concept of the release once, in any order.
    benchmark: a `Benchmark`, the folder of a release, or None for the release named when the metric was loaded
        (`evaluate.load("eeg_editbench", "sample")`; by default the one that `load_dataset("eeg-editbench")` gives).
Returns:
    release, top1, top5, ep_top1, ep_top1_chance, two_afc, pairing_gain, null_top1 (if scored), two_afc_by_family, two_afc_by_subtype,
    ties (number of exact ties by comparison), and metrics (every number, by label). A number that is not defined is None.
"""

SCORES = datasets.List(datasets.Value("float64"))
FEATURES = datasets.Features(
    {
        "predictions": {"source_scores": SCORES, "edit_scores": SCORES, "null_scores": SCORES},
        "references": datasets.Value("string"),
    }
)


@evaluate.utils.file_utils.add_start_docstrings(DESCRIPTION, INPUTS)
class EEGEditBenchMetric(evaluate.Metric):
    """EEG-EditBench scores of one run; for many runs see `decodehub.metrics.eeg_editbench.protocol.score_runs`."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=FEATURES,
            reference_urls=["https://arxiv.org/abs/2607.27857"],
        )

    def add_batch(self, *, predictions: list | None = None, references: list | None = None, **kwargs: Any) -> None:
        """As in `evaluate`; `null_scores` may be left out of the rows."""
        super().add_batch(predictions=None if predictions is None else [_row(p) for p in predictions], references=references, **kwargs)

    def add(self, *, prediction: dict | None = None, reference: str | None = None, **kwargs: Any) -> None:
        """As in `evaluate`; `null_scores` may be left out of the row."""
        super().add(prediction=None if prediction is None else _row(prediction), reference=reference, **kwargs)

    def compute_from_embeddings(
        self,
        eeg: np.ndarray,
        sources: np.ndarray,
        edits: np.ndarray,
        nulls: np.ndarray | None = None,
        similarity: str = "cosine",
        benchmark: Benchmark | str | None = None,
    ) -> dict:
        """Score one run from its embeddings.

        Args:
            eeg: (Q, D), one row a query. sources: (Q, D). edits: (E, D). nulls: (Q, D) or None. Rows in the order of the release.
            similarity: "cosine" or "dot".
            benchmark: see `compute`.

        Raises:
            ValueError: shapes that do not fit the release, non-finite or zero rows, an unknown similarity.
        """
        return self._score(self._benchmark(benchmark), *score_embeddings(eeg, sources, edits, nulls, similarity))

    def _compute(self, predictions: list, references: list, benchmark: Benchmark | str | None = None) -> dict:
        table = self._benchmark(benchmark)
        order = _order(references, table)
        has_null = [bool(row["null_scores"]) for row in predictions]
        if any(has_null) and not all(has_null):
            raise ValueError(
                f"null_scores are missing for concept {references[has_null.index(False)]!r} and given for others: give all or none"
            )
        columns = {"source_scores": len(table.concepts), "edit_scores": len(table.edit_ids)}
        if all(has_null):
            columns["null_scores"] = len(table.concepts)
        matrices = {name: _matrix(predictions, references, order, name, width, table.release) for name, width in columns.items()}
        return self._score(table, matrices["source_scores"], matrices["edit_scores"], matrices.get("null_scores"))

    def _benchmark(self, benchmark: Benchmark | str | None) -> Benchmark:
        if isinstance(benchmark, Benchmark):
            return benchmark
        if benchmark is None and self.config_name not in (None, "default"):
            benchmark = self.config_name
        return load_benchmark(None if benchmark is None else str(benchmark))

    def _score(self, benchmark: Benchmark, sources: np.ndarray, edits: np.ndarray, nulls: np.ndarray | None) -> dict:
        check_predictions(Predictions(0, 0, sources, edits, nulls), benchmark)
        plan = prepare(benchmark)
        run = score_run(plan, sources, edits, nulls)
        metrics = {label: (value if np.isfinite(value) else None) for label, value in run.as_dict().items()}
        by = {
            kind: {
                key.slice[0][1]: metrics[key.label]
                for key in run.keys
                if key.name == "two_afc" and len(key.slice) == 1 and key.slice[0][0] == kind
            }
            for kind in ("family", "subtype")
        }
        chance = {key.name: key.chance for key in run.keys if not key.slice}
        headline = ("top1", "top5", "ep_top1", "two_afc", "pairing_gain", *(("null_top1",) if nulls is not None else ()))
        return {
            "release": benchmark.release,
            **{name: metrics[name] for name in headline},
            "ep_top1_chance": chance["ep_top1"],
            "two_afc_by_family": by["family"],
            "two_afc_by_subtype": by["subtype"],
            "ties": run.ties,
            "metrics": metrics,
        }


def _row(prediction: dict) -> dict:
    """The row with every field of the schema; the library has no optional ones."""
    if unknown := set(prediction) - set(FEATURES["predictions"]):
        raise ValueError(f"a row of predictions has the unknown fields {sorted(unknown)}; it takes {list(FEATURES['predictions'])}")
    if missing := [name for name in ("source_scores", "edit_scores") if prediction.get(name) is None]:
        raise ValueError(f"a row of predictions lacks {missing}; found {sorted(prediction)}")
    return {"null_scores": None, **prediction}


def _order(references: list, benchmark: Benchmark) -> list:
    """Index of the row of each concept of the benchmark."""
    rows: dict = {}
    for i, concept in enumerate(references):
        if concept not in benchmark.concepts:
            raise ValueError(
                f"row {i}: concept {concept!r} is not in release {benchmark.release!r}, which has {len(benchmark.concepts)} concepts"
            )
        if concept in rows:
            raise ValueError(f"rows {rows[concept]} and {i} are both of concept {concept!r}; give one query a concept")
        rows[concept] = i
    if missing := [concept for concept in benchmark.concepts if concept not in rows]:
        raise ValueError(
            f"{len(missing)} of {len(benchmark.concepts)} concepts of release {benchmark.release!r} have no query, the first is {missing[0]!r}"
        )
    return [rows[concept] for concept in benchmark.concepts]


def _matrix(predictions: list, references: list, order: list, name: str, width: int, release: str) -> np.ndarray:
    for i, row in enumerate(predictions):
        if len(row[name]) != width:
            raise ValueError(f"row {i} (concept {references[i]!r}): {name} has {len(row[name])} values, release {release!r} needs {width}")
    return np.array([predictions[i][name] for i in order], dtype=np.float64)
