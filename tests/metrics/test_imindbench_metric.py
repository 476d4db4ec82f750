"""iMINDBench scores: batched AUC against scikit-learn, aggregation by hand, coverage, records, paired comparison."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, roc_auc_score

from decodehub.core.records import ModelInfo, RecordError, read_record
from decodehub.hub.verify import verify
from decodehub.metrics.imindbench import protocol
from decodehub.metrics.imindbench.aggregate import make_table
from decodehub.metrics.imindbench.compare import compare_units
from decodehub.metrics.imindbench.grid import DATASETS, Grid, coverage_rule, make_grid
from decodehub.metrics.imindbench.predictions import Predictions, concatenate, fold_rows, load, save, score_cells, skipped_fold
from decodehub.metrics.imindbench.scoring import batched_accuracy, batched_auc

SETTINGS = {"track": "Multi-STFT"}


def small_grid(release: str = "sample") -> Grid:
    """Unequal numbers of sessions and tasks by data set; Pippi has no Main unit of one task."""
    rows = []
    for d, (dataset, sessions, tasks) in enumerate(
        zip(DATASETS, (2, 3, 1), (("onset", "pitch"), ("onset", "pitch", "volume"), ("onset", "pitch")))
    ):
        for s, task in itertools.product(range(sessions), tasks):
            subset = "challenge" if task == "pitch" and (s or d == 2) else "main"
            rows.append({"dataset": dataset, "subject_session": f"sub{s // 2 + 1}_sess{s}", "task": task, "subset": subset})
    return make_grid(release, rows)


def random_run(grid: Grid, seed: int = 0, rule: str = "full", n: int = 30, boost: float = 0.0) -> Predictions:
    rng = np.random.default_rng(seed)
    parts = []
    for unit in grid.chosen(rule):
        for fold in (0, 1):
            for split in ("val", "test"):
                label = np.arange(n) % 2
                parts.append(fold_rows(unit.id, fold, split, np.arange(n), label, np.clip(rng.random(n) + boost * (label - 0.5), 0, 1)))
    return concatenate(parts)


class TestBatchedAUC:
    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.sampled_from([0, 1, 2, 9]))
    def test_equals_scikit_learn_with_and_without_ties(self, seed: int, cells: int, decimals: int) -> None:
        rng = np.random.default_rng(seed)
        sizes = rng.integers(0, 70, cells)
        scores, labels = rng.normal(size=sizes.sum()).round(decimals), rng.integers(0, 2, sizes.sum())
        found, right = batched_auc(scores, labels, sizes), batched_accuracy(scores, labels, sizes)
        for k, (end, n) in enumerate(zip(np.cumsum(sizes), sizes)):
            y, s = labels[end - n : end], scores[end - n : end]
            if len(set(y)) < 2:
                assert np.isnan(found[k])
            else:
                assert found[k] == pytest.approx(roc_auc_score(y, s), abs=1e-12)
            if n:
                assert right[k] == pytest.approx(accuracy_score(y, s > 0.5), abs=1e-12)

    def test_identities(self) -> None:
        rng = np.random.default_rng(0)
        s, y = rng.normal(size=100).round(1), rng.integers(0, 2, 100)
        auc = batched_auc(s, y, np.array([100]))[0]
        assert batched_auc(-s, y, np.array([100]))[0] == pytest.approx(1 - auc, abs=1e-15)
        assert batched_auc(np.exp(s), y, np.array([100]))[0] == auc
        assert batched_auc(np.zeros(4), np.array([0, 1, 1, 0]), np.array([4]))[0] == 0.5
        assert batched_auc(np.array([0.1, 0.9]), np.array([0, 1]), np.array([2]))[0] == 1.0

    @pytest.mark.parametrize(
        ("scores", "labels", "sizes", "message"),
        [
            ([0.1, np.nan], [0, 1], [2], "not finite.*cell 0"),
            ([0.1, 0.2, 0.3], [0, 1, 2], [2, 1], r"not 0 or 1.*cell 1"),
            ([0.1], [1], [2], "must agree"),
        ],
    )
    def test_bad_input_names_the_cell(self, scores: list, labels: list, sizes: list, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            batched_auc(np.array(scores), np.array(labels), np.array(sizes))


class TestTable:
    def test_folds_units_tasks_data_sets_by_hand(self) -> None:
        grid = small_grid()
        cells = score_cells(random_run(grid), grid)
        table = make_table(cells, grid)
        auc = {(u, f): a for u, f, a in zip(cells.unit, cells.fold, cells.auc)}
        means = []
        for dataset in DATASETS:
            own = [u for u in grid.units if u.dataset == dataset]
            by_task = [np.mean([np.mean([auc[u.id, 0], auc[u.id, 1]]) for u in own if u.task == t]) for t in sorted({u.task for u in own})]
            assert table.get(subset="full", dataset=dataset).value == pytest.approx(np.mean(by_task), abs=1e-14)
            means.append(np.mean(by_task))
        overall = table.get(subset="full")
        assert overall.value == pytest.approx(np.mean(means), abs=1e-14)
        assert overall.sem == pytest.approx(np.std(means, ddof=1) / np.sqrt(3), abs=1e-14)
        site = make_table(cells, grid, "released_code")
        folds = [a for (u, _), a in auc.items() if u.startswith(DATASETS[1])]
        assert site.get(subset="full", dataset=DATASETS[1]).value == pytest.approx(np.mean(folds), abs=1e-14)
        assert site.get(subset="full", dataset=DATASETS[1]).sem == pytest.approx(np.std(folds, ddof=1) / np.sqrt(len(folds)), abs=1e-14)

    def test_both_poolings_agree_on_a_balanced_grid(self) -> None:
        rows = [
            {"dataset": d, "subject_session": f"sub{s}_sess1", "task": t, "subset": "main"}
            for d in DATASETS for s in range(2) for t in ("onset", "pitch")
        ]  # fmt: skip
        grid = make_grid("sample", rows)
        cells = score_cells(random_run(grid), grid)
        values = [make_table(cells, grid, pooling).get(subset="full").value for pooling in ("paper", "released_code")]
        assert values[0] == pytest.approx(values[1], abs=1e-14)

    def test_a_fold_of_one_class_is_unscored_and_the_unit_uses_the_other(self) -> None:
        grid = small_grid()
        run = random_run(grid)
        unit = grid.ids[0]
        gone = (run.unit == unit) & (run.fold == 1)
        rest = Predictions(*(column[~gone] for column in run))
        table = make_table(score_cells(concatenate([rest, skipped_fold(unit, 1, "train has one class")]), grid), grid)
        cells = score_cells(run, grid)
        assert table.unit_auc[unit] == cells.auc[0]
        assert table.unscored_folds == ((unit, 1, "train has one class"),) and table.unscored_units == ()
        one_class = run._replace(label=np.where((run.unit == unit) & (run.fold == 0) & (run.split == "test"), 1, run.label))
        found = make_table(score_cells(one_class, grid), grid)
        assert found.unit_auc[unit] == cells.auc[1] and "one class" in found.unscored_folds[0][2]

    @pytest.mark.parametrize("rule", ["main", "challenge"])
    def test_accepts_exactly_main_or_challenge(self, rule: str) -> None:
        grid = small_grid()
        table = make_table(score_cells(random_run(grid, rule=rule), grid), grid)
        full = make_table(score_cells(random_run(grid), grid), grid)
        assert table.rule == rule and {dict(v.slice)["subset"] for v in table.values} == {rule}
        assert {dict(v.slice)["subset"] for v in full.values} == {"full", "main", "challenge"}

    def test_refuses_anything_else_and_names_it(self) -> None:
        grid = small_grid()
        run = random_run(grid)
        for dropped in (grid.ids[0], grid.ids[-1]):
            part = Predictions(*(column[run.unit != dropped] for column in run))
            with pytest.raises(ValueError, match=f"1 missing \\({dropped}"):
                make_table(score_cells(part, grid), grid)
        main = [u.id for u in grid.chosen("main")]
        extra = grid.chosen("challenge")[0].id
        with pytest.raises(ValueError, match=f"from main they differ by 1 too many \\({extra}"):
            coverage_rule([*main, extra], grid)

    def test_refuses_duplicates_missing_folds_and_bad_values(self) -> None:
        grid = small_grid()
        run = random_run(grid)
        one = Predictions(*(column[:1] for column in run))
        with pytest.raises(ValueError, match="window 0 is there twice"):
            score_cells(concatenate([run, one]), grid)
        with pytest.raises(ValueError, match=r"1 folds are missing.*fold 1"):
            score_cells(Predictions(*(c[~((run.unit == grid.ids[2]) & (run.fold == 1))] for c in run)), grid)
        with pytest.raises(ValueError, match="scored or it is not"):
            score_cells(concatenate([run, skipped_fold(grid.ids[0], 0, "x")]), grid)
        with pytest.raises(ValueError, match="not in release"):
            score_cells(run._replace(unit=np.where(run.unit == grid.ids[0], "neuroprobev2/sub9_sess9/onset", run.unit)), grid)
        bad = run.probability.copy()
        bad[5] = np.nan
        with pytest.raises(ValueError, match=r"row 5 .*probability is nan"):
            score_cells(run._replace(probability=bad), grid)

    def test_overall_needs_all_three_data_sets(self) -> None:
        grid = make_grid("sample", [r for r in small_grid().rows() if r["dataset"] != DATASETS[2]])
        overall = make_table(score_cells(random_run(grid), grid), grid).get(subset="full")
        assert np.isnan(overall.value) and DATASETS[2] in overall.reason

    def test_main_of_the_real_grid(self, shared: Path) -> None:
        import json

        manifest = json.loads((shared / "data/ieeg/imindbench_main_units.json").read_text())["datasets"]
        main = {f"{d}/{s}/{t}" for d, tasks in manifest.items() for t, found in tasks.items() for s in found["main"]}
        assert len(main) == 347
        sessions = {d: sorted({s for found in tasks.values() for s in found["main"]}) for d, tasks in manifest.items()}
        assert [len(sessions[d]) for d in DATASETS] == [5, 29, 5]
        rows = [
            {"dataset": d, "subject_session": s, "task": t, "subset": "main" if f"{d}/{s}/{t}" in main else "challenge"}
            for d in DATASETS for s in sessions[d] for t in manifest[d]
        ]  # fmt: skip
        grid = make_grid("1.0", rows)
        assert (len(grid.units), coverage_rule(sorted(main), grid)) == (585, "main")


class TestRecord:
    def test_parquet_round_trip_is_exact_and_stable(self, tmp_path: Path) -> None:
        run = concatenate([random_run(small_grid()), skipped_fold("neuroprobev2/x/onset", 0, "one class")])
        save(tmp_path / "a.parquet", run)
        save(tmp_path / "b.parquet", run)
        assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
        for before, after in zip(run, load(tmp_path / "a.parquet")):
            np.testing.assert_array_equal(before, after)

    def test_a_users_file_needs_five_columns(self, tmp_path: Path) -> None:
        import pandas as pd

        run = random_run(small_grid())
        test = run.split == "test"
        table = pd.DataFrame({name: getattr(run, name)[test] for name in ("unit", "fold", "window", "label", "probability")})
        table.to_parquet(tmp_path / "mine.parquet")
        grid = small_grid()
        np.testing.assert_array_equal(score_cells(load(tmp_path / "mine.parquet"), grid).auc, score_cells(run, grid).auc)
        table.drop(columns="window").to_parquet(tmp_path / "less.parquet")
        with pytest.raises(ValueError, match=r"lacks the columns \['window'\]"):
            load(tmp_path / "less.parquet")
        (tmp_path / "text.parquet").write_text("no")
        with pytest.raises(ValueError, match="cannot be read as Parquet"):
            load(tmp_path / "text.parquet")

    def test_verifies_and_notices_any_change(self, tmp_path: Path) -> None:
        grid = small_grid()
        record, scored = protocol.make_record(
            tmp_path, grid, random_run(grid), model=ModelInfo(id="x"), data="random", settings=SETTINGS, simulated=True
        )
        found, differences = verify(tmp_path)
        assert differences == [] and found == read_record(tmp_path)[1] and found.kind == "sample"
        assert record.value("roc_auc", subset="full") == scored.table.get(subset="full").value
        save(tmp_path / protocol.PREDICTIONS_FILE, random_run(grid, seed=1))
        with pytest.raises(RecordError, match="has changed"):
            verify(tmp_path)

    def test_a_changed_table_of_units_is_noticed(self, tmp_path: Path) -> None:
        grid = small_grid()
        protocol.make_record(tmp_path, grid, random_run(grid), model=ModelInfo(id="x"), data="random", settings=SETTINGS)
        path = tmp_path / protocol.GRID_FILE
        path.write_text(path.read_text().replace('"main"', '"challenge"', 1))
        with pytest.raises(RecordError, match="another table"):
            verify(tmp_path)


def test_scores_that_differ_by_rounding_alone_are_chance() -> None:
    labels = np.tile([0, 1], 10)
    nearly = np.where(labels, 0.1 + 0.2, 0.3)
    assert len(set(nearly)) == 2
    separated = np.where(labels, 0.3 + 1e-9, 0.3)
    assert batched_auc(np.concatenate([nearly, separated]), np.tile(labels, 2), np.array([20, 20])).tolist() == [0.5, 1.0]


class TestComparison:
    def test_exact_sign_flips_equal_full_enumeration(self) -> None:
        grid = make_grid("sample", [
            {"dataset": DATASETS[0], "subject_session": f"sub{s}_sess1", "task": "onset", "subset": "main"} for s in range(6)
        ])  # fmt: skip
        d = np.array([0.03, 0.01, -0.005, 0.02, 0.04, 0.015])
        first = dict(zip(grid.ids, 0.6 + d))
        second = dict.fromkeys(grid.ids, 0.6)
        found = compare_units(first, second, grid)[0]
        flips = [abs(np.dot(signs, d)) >= abs(d.sum()) - 1e-12 for signs in itertools.product((1, -1), repeat=6)]
        assert found.p == pytest.approx(np.mean(flips)) and found.difference == pytest.approx(d.mean())
        assert (found.wins, found.n_clusters, "exact" in found.method) == (5, 6, True)
        assert found.ci95 is not None and found.ci95[0] < d.mean() < found.ci95[1]

    def test_fewer_than_six_clusters_have_no_interval_and_say_why(self) -> None:
        rows = [(f"sub{s}_sess{k}", task) for s in (1, 2) for k in (1, 2) for task in ("onset", "speech")]
        grid = make_grid("sample", [
            {"dataset": DATASETS[0], "subject_session": session, "task": task, "subset": "main"} for session, task in rows
        ])  # fmt: skip
        first, second = dict(zip(grid.ids, np.linspace(0.6, 0.9, 8))), dict.fromkeys(grid.ids, 0.5)
        (few,) = compare_units(first, second, grid)
        assert (few.n_clusters, few.ci95, few.p, few.p_min) == (2, None, 0.5, 0.5)
        assert few.ci_reason == "2 subjects: no 95 % interval below 6" and "same films" in few.shared
        (many,) = compare_units(first, second, grid, cluster="unit")
        assert many.n_clusters == 8 and many.ci95 is not None and many.p == many.p_min == 2 / 2**8
        assert many.ci_reason == "" and "smaller than they should be" in many.shared

    def test_the_interval_holds_what_the_test_does_not_reject(self) -> None:
        grid = small_grid()
        rng = np.random.default_rng(5)
        first, second = ({u: 0.5 + 0.1 * rng.random() for u in grid.ids} for _ in range(2))
        for found in compare_units(first, second, grid, cluster="unit"):
            if found.ci95 is not None:
                assert (found.ci95[0] <= 0 <= found.ci95[1]) == (found.p > 0.05)

    def test_runs_that_differ_by_rounding_are_equal(self) -> None:
        grid = small_grid()
        first = {u: 0.3 if i % 3 else 0.1 + 0.2 for i, u in enumerate(grid.ids)}
        for found in compare_units(first, dict.fromkeys(grid.ids, 0.3), grid):
            assert (found.difference, found.p, found.wins) == (0, 1, found.n_units / 2)

    def test_a_unit_that_one_run_lacks_is_refused_and_one_that_both_lack_is_named(self) -> None:
        grid = small_grid()
        first, second = dict.fromkeys(grid.ids, 0.6), dict.fromkeys(grid.ids, 0.5)
        first[grid.ids[0]] = np.nan
        with pytest.raises(ValueError, match=f"1 units have a score in one run only .{grid.ids[0]}"):
            compare_units(first, second, grid)
        second[grid.ids[0]] = np.nan
        assert compare_units(first, second, grid)[0].left_out == (grid.ids[0],)

    def test_the_difference_is_that_of_the_tables_and_persons_are_one_cluster(self) -> None:
        grid = small_grid()
        tables = [make_table(score_cells(random_run(grid, seed), grid), grid) for seed in (1, 2)]
        overall = compare_units(tables[0].unit_auc, tables[1].unit_auc, grid)[0]
        assert overall.difference == pytest.approx(tables[0].get(subset="full").value - tables[1].get(subset="full").value, abs=1e-14)
        assert overall.n_clusters == len({u.subject for u in grid.units}) < overall.n_units
        reverse = compare_units(tables[1].unit_auc, tables[0].unit_auc, grid)[0]
        assert reverse.difference == -overall.difference and reverse.p == overall.p
        assert compare_units(tables[0].unit_auc, tables[1].unit_auc, grid)[0] == overall

    def test_null_p_values_are_uniform_enough_and_effects_are_found(self) -> None:
        grid = make_grid("sample", [
            {"dataset": DATASETS[0], "subject_session": f"sub{s}_sess1", "task": "onset", "subset": "main"} for s in range(20)
        ])  # fmt: skip
        rng = np.random.default_rng(0)
        base = dict.fromkeys(grid.ids, 0.6)
        p = [compare_units(dict(zip(grid.ids, 0.6 + rng.normal(0, 0.02, 20))), base, grid, draws=400, seed=k)[0].p for k in range(150)]
        assert 0.01 <= np.mean(np.array(p) < 0.05) <= 0.10
        assert compare_units(dict(zip(grid.ids, 0.63 + rng.normal(0, 0.02, 20))), base, grid)[0].p < 0.01

    def test_other_units_are_refused(self) -> None:
        grid = small_grid()
        scores = dict.fromkeys(grid.ids, 0.5)
        with pytest.raises(ValueError, match="in one run only"):
            compare_units(scores, {k: v for k, v in scores.items() if k != grid.ids[0]}, grid)


def test_the_evaluate_module_gives_the_numbers_of_the_table() -> None:
    import evaluate

    import decodehub  # noqa: F401

    grid = small_grid()
    run = random_run(grid)
    test = run.split == "test"
    metric = evaluate.load("imindbench")
    rows = [
        {"unit": u, "fold": f, "window": w, "probability": p}
        for u, f, w, p in zip(run.unit[test], run.fold[test].tolist(), run.window[test].tolist(), run.probability[test].tolist())
    ]
    result = metric.compute(predictions=rows, references=run.label[test].tolist(), grid=grid)
    table = make_table(score_cells(run, grid), grid)
    assert result["overall"] == table.get(subset="full").value and result["coverage"] == "full"
    assert result["datasets"][DATASETS[1]] == table.get(subset="full", dataset=DATASETS[1]).value
    assert result["tasks"]["volume"] == table.get(subset="full", task="volume").value
    assert result["units"] == table.unit_auc and result["unscored"] == []
