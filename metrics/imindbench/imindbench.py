"""``evaluate.load("imindbench")``: ROC-AUC of one run by unit, task, data set and Overall, from one row a window."""

from typing import Any

import datasets
import evaluate
import numpy as np

from decodehub.metrics.imindbench.grid import Grid, load_grid
from decodehub.metrics.imindbench.predictions import Predictions, require_whole
from decodehub.metrics.imindbench.protocol import score_run

DESCRIPTION = """\
iMINDBench asks which representations of intracranial EEG carry over tasks, people and hospitals: 15 binary decoding tasks on 1 s windows
of 39 movie-watching sessions in three data sets, two folds each. The score is ROC-AUC, averaged over folds, units, tasks and data sets.
"""

CITATION = """@article{chau2026imindbench,
  title = {iMINDBench: iEEG Multi-Institution Neural Decoding Benchmark},
  author = {Chau, Geeling and Hashemi, Saba and Gwon, Yonghyeon and Patel, Eshani and DeWitt, Jan and Wang, Christopher and
            Zahorodnii, Andrii and Talukder, Sabera J and Han, Danny Dongyeop and Chung, Chun Kee and Shanechi, Maryam M and Yue, Yisong},
  journal = {arXiv preprint arXiv:2609.18104},
  year = {2026}
}"""

INPUTS = """
Args:
    predictions: one item a test window of the release, and no others: a dict with `unit` ("DATASET/SUBJECT_SESSION/TASK"), `fold` (0 or 1), `window` (its row in the
        unit's label table, the column `window` of load_dataset("imindbench", "labels")) and `probability` of class 1.
    references: its label, 0 or 1, which must be that of the release.
    unscored: (unit, fold, reason) of folds that could not be scored, such as those with one class; they take no part in the means.
    grid: a `Grid`, the folder of a release, or None for the release named when the metric was loaded
        (`evaluate.load("imindbench", "sample")`; by default the one that `load_dataset("imindbench")` gives).
    pooling: "paper" (folds, units, tasks, data sets) or "released_code" (plain mean over a data set's folds).
    scores: "probabilities", or "logits" for scores outside of 0 to 1, which have no accuracy.
Returns:
    release, coverage ("full", "main" or "challenge"), overall, overall_sem, datasets (AUC of each), tasks (AUC of each), units (AUC of
    each), accuracy, unscored (folds without a score, with the reason), labels ("checked", or "not checked" where the truth is not known here).
    A number that is not defined is None.
"""

FEATURES = datasets.Features(
    {
        "predictions": {
            "unit": datasets.Value("string"),
            # Not whole numbers, which `datasets` would make of .5 without a word.
            "fold": datasets.Value("float64"),
            "window": datasets.Value("float64"),
            "probability": datasets.Value("float64"),
        },
        "references": datasets.Value("float64"),
    }
)


@evaluate.utils.file_utils.add_start_docstrings(DESCRIPTION, INPUTS)
class IMINDBenchMetric(evaluate.Metric):
    """iMINDBench scores of one run; for records see `decodehub.metrics.imindbench.protocol`."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=FEATURES,
            reference_urls=["https://imindbench.github.io/", "https://arxiv.org/abs/2609.18104"],
        )

    def _compute(
        self,
        predictions: list,
        references: list,
        unscored: list | None = None,
        grid: Grid | str | None = None,
        pooling: str = "paper",
        scores: str = "probabilities",
    ) -> dict:
        table_of_units = self._grid(grid)
        scored = score_run(_columns(predictions, references, unscored or []), table_of_units, pooling=pooling, scores=scores)
        table = scored.table
        whole = table.get(subset=table.rule)
        by = {
            kind: {
                dict(v.slice)[kind]: _number(v.value)
                for v in table.values
                if v.name == "roc_auc" and {k for k, _ in v.slice} == {"subset", kind} and dict(v.slice)["subset"] == table.rule
            }
            for kind in ("dataset", "task")
        }
        return {
            "release": table_of_units.release,
            "coverage": table.rule,
            "overall": _number(whole.value),
            "overall_sem": _number(whole.sem),
            "datasets": by["dataset"],
            "tasks": by["task"],
            "units": {unit: _number(value) for unit, value in table.unit_auc.items()},
            "accuracy": _number(table.get("accuracy", subset=table.rule).value),
            "unscored": [list(item) for item in table.unscored_folds],
            "labels": scored.labels.state,
        }

    def _grid(self, grid: Grid | str | None) -> Grid:
        if isinstance(grid, Grid):
            return grid
        if grid is None and self.config_name not in (None, "default"):
            grid = self.config_name
        return load_grid(None if grid is None else str(grid))


def _columns(predictions: list, references: list, unscored: list) -> Predictions:
    n, m = len(predictions), len(unscored)
    numbers = {name: np.array([p[name] for p in predictions], dtype=np.float64) for name in ("fold", "window", "probability")}
    numbers["label"] = np.array(references, dtype=np.float64)
    for name in ("fold", "window", "label"):
        require_whole(name, numbers[name], np.ones(n, dtype=bool), lambda i: f"item {i} (unit {predictions[i]['unit']!r})")
    skipped = np.array([u[1] for u in unscored], dtype=np.float64)
    require_whole("fold", skipped, np.ones(m, dtype=bool), lambda i: f"unscored {i} (unit {unscored[i][0]!r})")
    return Predictions(
        unit=np.array([p["unit"] for p in predictions] + [u[0] for u in unscored], dtype=object),
        fold=np.append(numbers["fold"], skipped).astype(np.int64),
        split=np.full(n + m, "test", dtype=object),
        window=np.append(numbers["window"], np.full(m, -1)).astype(np.int64),
        label=np.append(numbers["label"], np.full(m, -1)).astype(np.int64),
        probability=np.append(numbers["probability"], np.full(m, np.nan)),
        reason=np.array([""] * n + [str(u[2]) or "no reason given" for u in unscored], dtype=object),
    )


def _number(value: Any) -> Any:
    return float(value) if np.isfinite(value) else None
