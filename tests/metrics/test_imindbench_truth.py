"""The windows and labels of a release: whatever of them a predictions file changes is refused by name, and what cannot be checked is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from decodehub.core.records import ModelInfo
from decodehub.metrics.imindbench import protocol, truth
from decodehub.metrics.imindbench.grid import DATASETS, Grid, load_grid, make_grid
from decodehub.metrics.imindbench.predictions import Predictions, concatenate, fold_rows, load, score_cells, skipped_fold
from decodehub.metrics.imindbench.truth import FoldTruth, Truth, check_labels, fold_hash

GRID = make_grid("tiny", [{"dataset": d, "subject_session": "sub1_sess1", "task": "onset", "subset": "main"} for d in DATASETS])
FIRST = GRID.ids[0]
N = 12
UNSCORABLE = (GRID.ids[2], 1)  # the release gives this fold no score


def values(reason: str = "val has 0 windows of class 1") -> dict[tuple[str, int], FoldTruth]:
    """The truth by value: N windows a fold, every third row of a label table."""
    rng = np.random.default_rng(0)
    cells = {}
    for unit in GRID.ids:
        for fold in (0, 1):
            windows, labels = np.arange(N) * 3 + fold, rng.permutation(np.arange(N) % 2)
            own = reason if (unit, fold) == UNSCORABLE else ""
            cells[unit, fold] = FoldTruth(fold_hash(unit, fold, windows, labels), N, own, windows, labels)
    return cells


def hashes() -> dict[tuple[str, int], FoldTruth]:
    """The same by hash."""
    return {cell: t._replace(windows=None, labels=None) for cell, t in values().items()}


def right_run() -> Predictions:
    """A file as it should be, in another order than the release's."""
    rng = np.random.default_rng(1)
    parts = []
    for (unit, fold), t in values().items():
        order = rng.permutation(N)
        parts.append(
            skipped_fold(unit, fold, t.reason)
            if t.reason
            else fold_rows(unit, fold, "test", t.windows[order], t.labels[order], rng.random(N))
        )
    return concatenate(parts)


def changed(where: Callable[[Predictions], np.ndarray], **columns: Callable[[np.ndarray], np.ndarray]) -> Predictions:
    run = right_run()
    rows = where(run)
    return run._replace(**{name: np.where(rows, change(getattr(run, name)), getattr(run, name)) for name, change in columns.items()})


def kept(rows: np.ndarray) -> Predictions:
    return Predictions(*(column[rows] for column in right_run()))


def by_prediction(run: Predictions) -> Predictions:
    """Labels that agree with the predictions."""
    scored = run.reason == ""
    return run._replace(label=np.where(scored, run.probability > np.nanmedian(run.probability), run.label).astype(np.int64))


def only_right(run: Predictions) -> Predictions:
    good = (run.reason != "") | ((run.probability > 0.5) == run.label)
    return Predictions(*(column[good] for column in run))


SCORED = lambda run: run.reason == ""  # noqa: E731
WRONG = {
    "labels are the own predictions": (by_prediction(right_run()), "windows with another label"),
    "only windows that were right": (only_right(right_run()), "windows missing"),
    "labels flipped": (changed(SCORED, label=lambda x: 1 - x), f"in all {5 * N} windows with another label"),
    "windows that do not exist": (changed(SCORED, window=lambda x: x + 100_000), "not in the release .the first is 10000"),
    "a window too many": (concatenate([right_run(), fold_rows(FIRST, 0, "test", [7], [1], [0.5])]), "1 windows not in the release .* is 7"),
    "a window dropped": (kept(np.arange(len(right_run().unit)) != 0), "1 windows missing"),
    "two windows a fold": (
        concatenate([fold_rows(u, f, "test", [1_000_000, 1_000_001], [0, 1], [0.1, 0.9]) for u, f in values()]),
        "do not have the test windows",
    ),
    "all folds skipped": (
        concatenate([skipped_fold(u, f, "too hard") for u, f in values()]),
        "is skipped, but the release has both classes",
    ),
}


class TestCheck:
    @pytest.mark.parametrize("known", [values, hashes])
    def test_the_right_file_is_checked_whatever_its_order(self, known: Callable[[], dict]) -> None:
        found = check_labels(right_run(), GRID, Truth(known(), dict))
        assert (found.state, found.unchecked, found.unscorable) == ("checked", (), {UNSCORABLE: values()[UNSCORABLE].reason})
        mirrored = Predictions(*(column[::-1] for column in right_run()))
        assert check_labels(mirrored, GRID, Truth(known(), dict)).sha256 == found.sha256

    @pytest.mark.parametrize("name", WRONG)
    def test_anything_else_is_refused_with_counts_and_the_first(self, name: str) -> None:
        run, message = WRONG[name]
        with pytest.raises(ValueError, match=message):
            check_labels(run, GRID, Truth(values(), dict))
        with pytest.raises(ValueError, match="folds do not have the test windows and labels of release 'tiny'"):
            check_labels(run, GRID, Truth(hashes(), dict))

    def test_one_changed_label_is_enough(self) -> None:
        run = right_run()
        for row in np.flatnonzero(run.reason == ""):
            label = run.label.copy()
            label[row] = 1 - label[row]
            with pytest.raises(ValueError, match="1 of 6 folds"):
                check_labels(run._replace(label=label), GRID, Truth(hashes(), dict))

    def test_what_is_not_known_is_said_and_what_is_known_still_counts(self) -> None:
        part = {cell: t for cell, t in hashes().items() if cell[0] != FIRST}
        assert check_labels(right_run(), GRID, Truth(part, dict))[:2] == ("not checked", (FIRST,))
        assert check_labels(right_run(), GRID, Truth({}, dict)).unchecked == GRID.ids
        flipped = changed(lambda run: run.unit == FIRST, label=lambda x: 1 - x)
        assert check_labels(flipped, GRID, Truth(part, dict)).state == "not checked"
        with pytest.raises(ValueError, match="labels of release"):
            check_labels(changed(lambda run: run.unit == GRID.ids[1], label=lambda x: 1 - x), GRID, Truth(part, dict))

    def test_labels_of_this_machine_fill_what_the_release_lacks_and_do_not_overrule_it(self) -> None:
        assert check_labels(right_run(), GRID, Truth({}, values)).state == "checked"
        flipped = changed(SCORED, label=lambda x: 1 - x)
        own = {(u, f): t._replace(labels=1 - t.labels, sha256=fold_hash(u, f, t.windows, 1 - t.labels)) for (u, f), t in values().items()}
        assert check_labels(flipped, GRID, Truth(hashes(), lambda: own)).state == "not checked"

    def test_a_fold_without_a_score_has_none_whoever_predicts_it(self) -> None:
        t = values()[UNSCORABLE]
        rows = ~((right_run().unit == UNSCORABLE[0]) & (right_run().fold == 1))
        whole = concatenate([kept(rows), fold_rows(*UNSCORABLE, "test", t.windows, t.labels, t.labels.astype(float))])
        scored = [protocol.score_run(run, GRID, truth=Truth(values(), dict)) for run in (right_run(), whole)]
        assert scored[0].table.unit_auc == scored[1].table.unit_auc
        assert scored[1].table.unscored_folds == ((*UNSCORABLE, t.reason),)


class TestFile:
    @pytest.mark.parametrize(
        ("column", "value", "message"),
        [
            ("fold", 0.4, "fold is 0.4, expected a whole number of at least 0 .1 such rows"),
            ("fold", None, "fold is missing"),
            ("label", 0.9, "label is 0.9"),
            ("label", None, "label is missing"),
            ("label", 2, r"label is 2, expected 0 or 1"),
            ("window", 2.5, "window is 2.5"),
            ("window", -4, "window is -4"),
            ("window", None, "window is missing"),
            ("window", 2.0**40, "window is 1.09"),
            ("probability", None, "a missing probability needs a reason"),
            ("probability", np.inf, "probability is inf"),
            ("probability", -3.1, 'probability is -3.1, expected a number from 0 to 1.*scores="logits"'),
        ],
    )
    def test_one_bad_value_is_named(self, column: str, value: float | None, message: str, tmp_path: Path) -> None:
        run = right_run()
        frame = pd.DataFrame({name: getattr(run, name) for name in ("unit", "fold", "window", "label", "probability", "reason")})
        frame[column] = frame[column].astype("Float64" if value is None else float)
        frame.loc[3, column] = value
        frame.to_parquet(tmp_path / "bad.parquet")
        with pytest.raises(ValueError, match=f"row 3.*{message}"):
            score_cells(load(tmp_path / "bad.parquet"), GRID)

    def test_text_in_place_of_numbers_is_named(self, tmp_path: Path) -> None:
        frame = pd.DataFrame({"unit": [FIRST], "fold": ["0"], "window": [0], "label": [0], "probability": [0.5]})
        frame.to_parquet(tmp_path / "bad.parquet")
        with pytest.raises(ValueError, match="the column fold holds"):
            load(tmp_path / "bad.parquet")

    def test_logits_by_name_have_the_same_auc_and_no_accuracy(self) -> None:
        run = right_run()
        logits = run._replace(probability=np.log(run.probability / (1 - run.probability)))
        known = Truth(values(), dict)
        plain, named = protocol.score_run(run, GRID, truth=known), protocol.score_run(logits, GRID, scores="logits", truth=known)
        assert named.table.unit_auc == plain.table.unit_auc
        accuracy = [m for m in named.metrics if m.name == "accuracy"]
        assert accuracy and all(m.value is None and m.reason == "the scores are logits, which have no threshold" for m in accuracy)


class TestRelease:
    def test_the_table_of_hashes_is_of_units_of_the_release(self) -> None:
        packaged, grid = truth.packaged_truth(), load_grid()
        assert {unit for unit, _ in packaged} <= set(grid.ids)
        assert len(packaged) == 1040 and len({t.sha256 for t in packaged.values()}) == 1040
        assert all((unit, 1 - fold) in packaged for unit, fold in packaged)

    def test_the_hashes_are_those_of_the_published_tables(self, shared: Path, tmp_path: Path) -> None:
        from decodehub.hub_datasets.imindbench.data import unit_labels
        from decodehub.hub_datasets.imindbench.vocabulary import find_session
        from decodehub.loaders.ieeg.splits import make_folds

        (tmp_path / DATASETS[2]).mkdir()
        (tmp_path / DATASETS[2] / "labels").symlink_to(shared / "data/ieeg/labels/pippi")
        for task in ("onset", "frame_brightness"):
            table = unit_labels(tmp_path, DATASETS[2], "sub1_sess1", task)
            for fold in make_folds(DATASETS[2], find_session(DATASETS[2], "sub1_sess1").recording_id, task, table):
                known = truth.packaged_truth()[f"{DATASETS[2]}/sub1_sess1/{task}", fold.index]
                assert known.sha256 == fold_hash(f"{DATASETS[2]}/sub1_sess1/{task}", fold.index, fold.test, table.label[fold.test])
                assert (known.n_test, known.reason) == (len(fold.test), fold.reason)

    def test_another_table_of_units_under_the_name_of_the_release_is_refused(self) -> None:
        real = load_grid()
        with pytest.raises(ValueError, match="the table of units is not that of the release"):
            truth.load_truth(make_grid(real.release, real.rows()[:3]))
        assert truth.load_truth(make_grid("9.9", real.rows())).release == {}


@pytest.fixture(scope="module")
def grid() -> Grid:
    return load_grid("sample")


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    from datasets import load_dataset

    import decodehub  # noqa: F401

    labels = load_dataset("imindbench", "labels", split="labels", data_dir="sample").to_pandas()
    test = labels[labels["part"] == "test"]
    return test[["unit", "fold", "window", "label"]].assign(probability=np.random.default_rng(0).random(len(test)))


class TestSample:
    """The walk of the card, on the sample: from the labels to a file, a score and a record."""

    def test_a_file_made_from_the_labels_is_checked(self, grid: Grid, table: pd.DataFrame, tmp_path: Path) -> None:
        from decodehub.hub.verify import verify

        table.to_parquet(tmp_path / "mine.parquet")
        record, scored = protocol.make_record(
            tmp_path / "record",
            grid,
            load(tmp_path / "mine.parquet"),
            model=ModelInfo(id="me/mine"),
            data="x",
            settings={"track": "Custom"},
        )
        assert record.protocol.settings["labels"] == "checked" and scored.labels.unchecked == ()
        assert abs(scored.table.get(subset="full").value - 0.5) < 0.05
        assert verify(tmp_path / "record")[1] == []

    def test_a_record_with_other_labels_is_wrong_for_everyone(self, grid: Grid, table: pd.DataFrame, tmp_path: Path) -> None:
        from decodehub.hub.verify import check_record

        cheat = table.assign(label=(table["probability"] > 0.5).astype(int))
        cheat.to_parquet(tmp_path / "cheat.parquet")
        run = load(tmp_path / "cheat.parquet")
        with pytest.raises(ValueError, match="windows with another label"):
            protocol.score_run(run, grid)
        # Made by someone whose check is switched off, the record is found wrong by a verifier.
        record, _ = protocol.make_record(
            tmp_path / "record", grid, run, model=ModelInfo(id="x"), data="x", settings={"track": "Custom"}, truth=Truth({}, dict)
        )
        assert record.protocol.settings["labels"] == "not checked" and record.value("roc_auc", subset="full") == 1.0
        found = check_record(tmp_path / "record")
        assert found.state == "wrong" and "windows with another label" in found.what

    def test_the_walk_of_the_card_and_what_evaluate_refuses(
        self, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import re

        monkeypatch.chdir(tmp_path)
        code = re.search(r"```python\n(.*?)```", (repository / "metrics/imindbench/README.md").read_text(encoding="utf-8"), re.DOTALL)
        assert code is not None
        names: dict[str, Any] = {}
        exec(code[1], names)
        metric, rows, labels = names["metric"], names["rows"], names["mine"]["label"].tolist()
        assert names["result"]["labels"] == "checked" and names["result"]["coverage"] == "full" and (tmp_path / "mine.parquet").is_file()
        two = [rows[0], *[row for row in rows if (row["unit"], row["fold"]) == (rows[0]["unit"], 1)]]
        with pytest.raises(ValueError, match="windows missing"):
            metric.compute(predictions=two, references=[labels[0], *[1] * (len(two) - 1)])
        with pytest.raises(ValueError, match=r"item 0 .*window is 0.5"):
            metric.compute(predictions=[rows[0] | {"window": 0.5}], references=[1])
        with pytest.raises(ValueError, match=r"item 0 .*label is 0.9"):
            metric.compute(predictions=rows[:1], references=[0.9])
