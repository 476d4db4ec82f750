"""``evaluate.load("eeg_editbench")``: the EEG-EditBench protocol for one run, one row of scores a query."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import datasets
import evaluate
import numpy as np

from decodehub.core.papers import EEG_EDITBENCH
from decodehub.core.words import suggest
from decodehub.metrics.eeg_editbench.benchmark import Benchmark, load_benchmark
from decodehub.metrics.eeg_editbench.order import by_ids, check_row_order, column_order, query_order
from decodehub.metrics.eeg_editbench.protocol import Predictions, check_predictions
from decodehub.metrics.eeg_editbench.scoring import prepare, score_run
from decodehub.metrics.eeg_editbench.similarity import as_embeddings, check_finite, check_similarity, score_embeddings

DESCRIPTION = """\
EEG-EditBench asks whether an EEG-to-image retrieval model tells the viewed image from controlled edits of it. It reports 200-way Top-1
and Top-5 retrieval, EP-Top1 (the viewed image strictly above all its edits), two-alternative forced choice (2AFC) overall and by edit
family, subtype and source category, and the control analyses of the paper (mismatched queries, null edits, visual distance, target
concept). All accuracies are in percent.
"""

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
            citation=EEG_EDITBENCH,
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
        eeg: Any,
        sources: Any,
        edits: Any,
        nulls: Any | None = None,
        similarity: str = "cosine",
        benchmark: Benchmark | str | None = None,
        *,
        ids: Mapping[str, Sequence[Any]] | None = None,
        allow_order: bool = False,
    ) -> dict:
        """Score one run from its embeddings.

        Args:
            eeg: (Q, D), one row a query. sources: (Q, D). edits: (E, D). nulls: (Q, D) or None. Arrays, or tensors of any float type on any
                device. Rows in the order of the release, or in any order with `ids`.
            similarity: "cosine" or "dot".
            benchmark: see `compute`.
            ids: by "eeg", "sources", "edits", "nulls", or some of them: concepts, for edits their edit ids, or names of exported files.
            allow_order: score also where nothing shows that rows are in order, as for an encoder that maps edits away from their sources.

        Raises:
            RowOrderError: edits do not lie with their sources: rows are in another order, or seem to be.
            ValueError: shapes that do not fit the release, types that are no embeddings, non-finite or zero rows, an unknown similarity, ids
                that are unknown, missing or there twice.
        """
        table = self._benchmark(benchmark)
        check_similarity(similarity)
        given = {"eeg": eeg, "sources": sources, "edits": edits, "nulls": nulls}
        arrays = _in_order({name: value for name, value in given.items() if value is not None}, ids or {}, table)
        images = (arrays["sources"], arrays["edits"], arrays.get("nulls"))
        named = set(arrays) - {"eeg"} <= set(ids or {})
        scores = score_embeddings(arrays["eeg"], *images, similarity, ("eeg", "sources", "edits", "nulls"))
        check_predictions(Predictions(0, 0, *scores), table)
        check_row_order(table, *images, allow=allow_order, by_ids=named)
        if "eeg" not in (ids or {}) and (other := query_order(table, scores.source_scores)):
            warnings.warn(
                f"EEG rows may be in another order: they fit their images at chance as given, and far better {other}", stacklevel=2
            )
        return self._score(table, *scores)

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
        found = (matrices["source_scores"], matrices["edit_scores"], matrices.get("null_scores"))
        check_predictions(Predictions(0, 0, *found), table)
        if doubt := column_order(table, *found):
            warnings.warn(doubt, stacklevel=2)
        return self._score(table, *found)

    def _benchmark(self, benchmark: Benchmark | str | None) -> Benchmark:
        if isinstance(benchmark, Benchmark):
            return benchmark
        if benchmark is None and self.config_name not in (None, "default"):
            benchmark = self.config_name
        return load_benchmark(None if benchmark is None else str(benchmark))

    def _score(self, benchmark: Benchmark, sources: np.ndarray, edits: np.ndarray, nulls: np.ndarray | None) -> dict:
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


def _in_order(embeddings: dict[str, Any], ids: Mapping[str, Sequence[Any]], table: Benchmark) -> dict[str, np.ndarray]:
    """Embeddings by name as arrays, in the order of the release."""
    wanted = {"eeg": table.concepts, "sources": table.concepts, "edits": table.edit_ids, "nulls": table.concepts}
    if unknown := sorted(set(ids) - set(embeddings)):
        raise ValueError(f"there are ids of {unknown[0]!r}, and embeddings of {', '.join(embeddings)}{suggest(unknown[0], embeddings)}")
    arrays = {}
    for name, value in embeddings.items():
        rows = as_embeddings(value, name)
        if name in ids:
            rows = by_ids(rows, ids[name], wanted[name], name, table.release)
        elif len(rows) != len(wanted[name]):
            raise ValueError(f"{name} has {len(rows)} rows, release {table.release!r} needs {len(wanted[name])}")
        check_finite(rows, name)
        arrays[name] = rows
    return arrays


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
