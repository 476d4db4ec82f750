"""Tables and figures of a study: cells against plain numpy, the paper's numbers against themselves, what is refused, what is said."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from decodehub import cli
from decodehub.core.records import ModelInfo, ResultRecord
from decodehub.metrics.eeg_editbench.benchmark import Benchmark, load_benchmark, make_benchmark
from decodehub.metrics.eeg_editbench.protocol import Predictions, ScoredRuns, make_record, score_runs
from decodehub.metrics.eeg_editbench.scoring import Settings
from decodehub.reports import study_figure_data as data
from decodehub.reports import study_figures, study_plots
from decodehub.reports.study_figures import write_figures
from decodehub.reports.study_paper import PAPER_MODELS, blocks, caveats, check_study, paper_model, published
from decodehub.reports.study_tables import TABLES, cells, csv_rows, layout, layouts, write_tables

CONCEPTS, SUBJECTS, SEEDS = 40, (1, 2, 3), (0, 1)
KINDS = [(family, subtype) for family, subtypes in data.FAMILIES.items() for subtype in subtypes or (None,)]
STRENGTH = {"ridge": 0.5, "Brain_HIVE": 2.0, "random-projection": 0.0, "me/nice": 1.0}  # in no order


def family(name: str) -> tuple[tuple[str, str], ...]:
    return (("family", name),)


@pytest.fixture(scope="module")
def benchmark() -> Benchmark:
    """All families and subtypes for every concept; distances in two of the intervals of table S14, 20 edits of a family in each."""
    rng = np.random.default_rng(0)
    sources = [{"concept": f"c{i}", "source_category": ("food", "animal", "other")[i % 3]} for i in range(CONCEPTS)]
    edits = [
        {
            "edit_id": f"c{i}-{kind}-{subtype}",
            "concept": f"c{i}",
            "family": kind,
            "subtype": subtype,
            "target_concept": f"c{(i + 1 + j) % CONCEPTS}" if kind == "identity" else None,
            "visual_distance": float((0.03, 0.07)[i % 2] + rng.uniform(0, 0.015)),
        }
        for i in range(CONCEPTS)
        for j, (kind, subtype) in enumerate(KINDS)
    ]
    return make_benchmark("planted", sources, edits)


def planted(b: Benchmark, strength: float, *, nulls: bool = True, subjects: tuple[int, ...] = SUBJECTS) -> list[Predictions]:
    """Scores in which the source of a query is better than the rest by `strength`, and an edit resembles its source the more the nearer it is."""
    runs = []
    for subject, seed in itertools.product(subjects, SEEDS):
        rng = np.random.default_rng([subject, seed, int(100 * strength)])
        q, e = len(b.concepts), len(b.edit_ids)
        same = strength * np.eye(q)
        edit = same[:, b.query] * 0.5 + rng.standard_normal((q, e))
        runs.append(
            Predictions(subject, seed, same + rng.standard_normal((q, q)), edit, same + rng.standard_normal((q, q)) if nulls else None)
        )
    return runs


def record_of(b: Benchmark, name: str, text: str = "recorded EEG", **settings: Any) -> ResultRecord:
    """What tables and figures read of a record, without files."""
    sample = b.release in ("sample", "tiny", "rehearsal-stamps")
    stand_in = SimpleNamespace(
        kind="sample" if sample else "simulated" if text.startswith("simulated") else "real",
        is_sample=sample,
        data=text,
        benchmark=SimpleNamespace(release=b.release),
        protocol=SimpleNamespace(settings={"similarity": "cosine", "distance_encoder": None, **settings}),
        model=SimpleNamespace(id=name),
    )
    return stand_in  # type: ignore[return-value]


@pytest.fixture(scope="module")
def predictions(benchmark: Benchmark) -> dict[str, list[Predictions]]:
    return {name: planted(benchmark, strength) for name, strength in STRENGTH.items()}


@pytest.fixture(scope="module")
def scored(benchmark: Benchmark, predictions: dict[str, list[Predictions]]) -> dict[str, ScoredRuns]:
    return {name: score_runs(benchmark, runs, Settings(interval="paper")) for name, runs in predictions.items()}


@pytest.fixture(scope="module")
def records(benchmark: Benchmark) -> dict[str, ResultRecord]:
    return {name: record_of(benchmark, name, "simulated EEG" if name == "ridge" else "recorded EEG") for name in STRENGTH}


def literal(b: Benchmark, run: Predictions) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every cell of every table for one run, comparison by comparison."""
    s, e, n = run.source_scores, run.edit_scores, run.null_scores
    assert n is not None
    q, wrong = range(len(b.concepts)), lambda c: np.delete(np.arange(len(b.concepts)), c)
    own = np.array([s[c, c] > e[c, i] for i, c in enumerate(b.query)])
    mismatched = np.array([np.mean(s[wrong(c), c] > e[wrong(c), i]) for i, c in enumerate(b.query)])
    null_own = np.array([n[c, c] > e[c, i] for i, c in enumerate(b.query)])
    null_mismatched = np.array([np.mean(n[wrong(c), c] > e[wrong(c), i]) for i, c in enumerate(b.query)])
    out = {
        ("top1", ()): np.mean([all(s[c, c] > s[c, wrong(c)]) for c in q]),
        ("null_top1", ()): np.mean([all(n[c, c] > n[c, wrong(c)]) for c in q]),
        ("ep_top1", ()): np.mean([all(own[b.query == c]) for c in q]),
        ("original_over_null", ()): np.mean([s[c, c] > n[c, c] for c in b.query]),
        ("null_over_edit", ()): null_own.mean(),
        ("null_over_edit_mismatched", ()): null_mismatched.mean(),
        ("null_pairing_gain", ()): null_own.mean() - null_mismatched.mean(),
        ("two_afc_mismatched", ()): mismatched.mean(),
        ("two_afc_balanced", ()): np.mean([np.mean([own[(b.query == c) & (b.family == f)].mean() for c in q]) for f in data.FAMILIES]),
    }
    for slice_, mask in {(): b.query >= 0, **{family(f): b.family == f for f in data.FAMILIES}}.items():
        out["two_afc", slice_] = own[mask].mean()
        out["pairing_gain", slice_] = own[mask].mean() - mismatched[mask].mean()
    for subtype in set(b.subtype) - {""}:
        out["two_afc", (("subtype", subtype),)] = own[b.subtype == subtype].mean()
    attribute, interval = b.family == "attribute", b.distance > 0.05
    for f in ("background", "removal", "identity"):
        mine = b.family == f
        out["distance_gap_unbalanced", family(f)] = own[mine].mean() - own[attribute].mean()
        parts = [
            (own[mine & half].mean() - own[attribute & half].mean(), (half & (mine | attribute)).sum()) for half in (interval, ~interval)
        ]
        out["distance_gap_balanced", family(f)] = np.average([gap for gap, _ in parts], weights=[weight for _, weight in parts])
    return {key: 100 * float(value) for key, value in out.items()}


@pytest.fixture(scope="module")
def by_run(benchmark: Benchmark, predictions: dict[str, list[Predictions]]) -> dict[str, list[dict[Any, float]]]:
    return {name: [literal(benchmark, run) for run in runs] for name, runs in predictions.items()}


class TestTables:
    """`write_tables` and its parts."""

    @pytest.mark.parametrize("spec", TABLES, ids=lambda spec: spec.number)
    def test_every_cell_is_what_numpy_gives(
        self, spec: Any, scored: Mapping[str, ScoredRuns], by_run: Mapping[str, list[dict[Any, float]]]
    ) -> None:
        found = cells(spec, scored)
        assert len(found) == len(STRENGTH) * len(spec.columns)
        for cell in found:
            runs = np.array([run[cell.column.metric, cell.column.slice] for run in by_run[cell.model]])
            subjects = runs.reshape(len(SUBJECTS), len(SEEDS)).mean(1)
            assert cell.metric.value == pytest.approx(subjects.mean(), abs=1e-9), cell
            assert cell.metric.sd == pytest.approx(subjects.std(), abs=1e-9), cell
            # Each of the 27 resamples of three subjects has more than 2.5 %: the interval is their range.
            assert cell.metric.ci95 == pytest.approx((subjects.min(), subjects.max()), abs=1e-9), cell
            assert cell.metric.n == len(SUBJECTS)

    def test_csv_has_all_numbers_in_full_and_the_difference(
        self, tmp_path: Path, scored: Mapping[str, ScoredRuns], records: Mapping[str, ResultRecord]
    ) -> None:
        files = write_tables(tmp_path, scored, records)
        assert sorted(path.name for path in files) == sorted(
            f"table_{spec.number}.{kind}" for spec in TABLES for kind in ("csv", "md", "tex")
        )
        for spec in TABLES:
            rows = list(csv.DictReader(io.StringIO((tmp_path / f"table_{spec.number}.csv").read_text(encoding="utf-8"))))
            assert [row["model"] for row in rows[:: len(spec.columns)]] == ["NICE", "Brain-HIVE", "ridge", "random-projection"]
            for row, cell in zip(rows, cells(spec, scored), strict=True):
                assert float(row["value"]) == cell.metric.value and float(row["ci_low"]) == cell.metric.ci95[0]  # type: ignore[index]
                assert (row["subjects"], row["seeds"], row["release"]) == ("3", "2", "planted")
                assert row["comparable_with_paper"].startswith("no; release planted has 40 sources and 400 edits")
                assert ("simulated" in row["comparable_with_paper"]) == (row["model"] == "ridge")
                if row["block"] == "paper":
                    paper = published()[spec.number, row["model"], cell.column.metric, cell.column.slice]
                    assert float(row["paper_value"]) == paper.value
                    assert float(row["difference"]) == pytest.approx(float(row["value"]) - float(row["paper_value"]))
                else:
                    assert row["paper_value"] == row["difference"] == ""

    def test_layout(self, scored: Mapping[str, ScoredRuns], records: Mapping[str, ResultRecord]) -> None:
        table = layout(TABLES[0], scored, records)
        rows = table.text()
        assert [row[0] for row in rows] == ["NICE", "paper*", "Brain-HIVE", "paper*", "ridge", "random-projection"]
        assert rows[1][3:] == "19.5 ± 3.8|19.8 ± 4.2|14.0 ± 2.6|79.1 ± 1.8|55.8 ± 3.5|66.6 ± 5.4|84.7 ± 3.7|67.7 ± 2.3".split("|")
        assert rows[2][:3] == ["Brain-HIVE", "ICLR'26", "–"] and rows[4][1:3] == ["–", "–"]
        assert table.heads[3].title == "Retrieval: 40-way original"
        assert table.sections == {4: "Baselines and other models"} and table.quiet == {1, 3}
        for j in range(3, len(table.heads)):
            means = {i: float(rows[i][j].split(" ")[0]) for i in (0, 2, 4, 5)}
            assert {means[i] for i, column in table.best if column == j} == {max(means.values())}
        text = table.markdown()
        assert text.count("\n| ") == 1 + 1 + 6 + 1 and "- The EEG is simulated (ridge)." in text.replace(
            "paper's 200 and 2,137. ", "paper's 200 and 2,137.\n- "
        )
        assert "3 subjects, 2 seeds each" in text and "\\* The paper's numbers are from the real benchmark." in text

    @pytest.mark.parametrize("width", [60, 80, 400])
    def test_a_terminal_cuts_between_columns_never_within_a_number(
        self, width: int, scored: Mapping[str, ScoredRuns], records: Mapping[str, ResultRecord]
    ) -> None:
        from rich.console import Console

        tables = [part for table in layouts(scored, records) for part in table.cut(width)]
        assert len(tables) == 7 if width == 400 else len(tables) > 7
        buffer = io.StringIO()
        console = Console(file=buffer, width=width)
        for table in tables:
            console.print(table)
        shown = buffer.getvalue()
        assert "…" not in shown and max(map(len, shown.splitlines())) <= width
        for spec in TABLES:
            for row in layout(spec, scored, records).text():
                assert all(text in shown for text in row)

    def test_names(self) -> None:
        for name, known in {
            "nice": "NICE",
            "ORG/brain_hive": "Brain-HIVE",
            "NeuroBridge": "NeuroBridge",
            "my-nice": None,
            "ridge": None,
        }.items():
            found = paper_model(name)
            assert (found.name if found else None) == known
        assert blocks(["z", "hyfi", "a", "ATM"]) == (["ATM", "hyfi"], ["z", "a"])
        with pytest.raises(ValueError, match="'nice' and 'me/NICE' are both NICE"):
            blocks(["nice", "me/NICE"])

    def test_a_full_study_of_recorded_eeg_is_comparable(self) -> None:
        b = SimpleNamespace(release="1.0", concepts=range(200), edit_ids=range(2137))
        runs = SimpleNamespace(plan=SimpleNamespace(benchmark=b), total=SimpleNamespace(subjects=range(10), seeds=range(5)))
        assert caveats({"nice": runs}, {"nice": record_of(b, "nice")}) == {"nice": []}  # type: ignore[arg-type, dict-item]
        b.release = "rehearsal-stamps"
        assert "rehearsal" in caveats({"nice": runs}, {"nice": record_of(b, "nice")})["nice"][0]  # type: ignore[arg-type, dict-item]

    def test_what_cannot_be_compared_is_refused(
        self, benchmark: Benchmark, predictions: Mapping[str, list[Predictions]], scored: Mapping[str, ScoredRuns], tmp_path: Path
    ) -> None:
        other = make_benchmark("other", benchmark.rows["sources"], benchmark.rows["edits"])
        mixed = {"nice": scored["me/nice"], "ridge": score_runs(other, predictions["ridge"])}
        both = {name: record_of(benchmark, name) for name in mixed}
        for write in (lambda: write_tables(tmp_path, mixed, both), lambda: write_figures(tmp_path, mixed, both, None)):
            with pytest.raises(ValueError, match=r"different benchmark tables .*nice: planted sha256:.*; ridge: other sha256:"):
                write()
        mixed["ridge"] = score_runs(benchmark, predictions["ridge"], Settings(distance_interval_weight="equal"))
        with pytest.raises(ValueError, match="different settings"):
            check_study(mixed, both)
        with pytest.raises(ValueError, match=r"no record for \['ridge'\]"):
            check_study(mixed, {"nice": both["nice"]})
        with pytest.raises(ValueError, match="no scored model"):
            check_study({}, {})
        assert list(tmp_path.iterdir()) == []

    def test_what_was_not_scored_says_why(self, tiny_benchmark: Benchmark) -> None:
        rows = [{**row, "visual_distance": None} for row in tiny_benchmark.rows["edits"]]
        b = make_benchmark("tiny", tiny_benchmark.rows["sources"], rows)
        one = {"hyfi": score_runs(b, planted(b, 1.0, nulls=False, subjects=(1,)))}
        record = {"hyfi": record_of(b, "hyfi", "simulated")}
        reasons = {(r["table"], r["column"]): r["reason"] for s in TABLES for r in csv_rows(s, one, record) if r["value"] is None}
        assert reasons["1", "Retrieval: 6-way null"] == "null-edited images were not scored"
        assert reasons["2", "Identity: Medium"] == "release tiny has no edits of medium"
        assert sum(table == "S12" for table, _ in reasons) == 4 and sum(table == "S14" for table, _ in reasons) == 6
        assert {text for (table, _), text in reasons.items() if table == "S14"} == {
            "fewer than 5 edits of the release have a visual_distance"
        }
        text = layout(TABLES[-1], one, record).markdown()
        assert text.count("not scored") == 6 and text.count("- Not scored:") == 1 and "sample or rehearsal" in text and "simulated" in text
        assert "±" not in layout(TABLES[0], one, record).text()[0][-1]  # one subject has no spread


class TestPublished:
    """`published.csv` against the paper's text and against itself."""

    def test_rows(self) -> None:
        counts = {spec.number: sum(table == spec.number for table, *_ in published()) for spec in TABLES}
        assert counts == {spec.number: 8 * len(spec.columns) for spec in TABLES} and sum(counts.values()) == len(published()) == 296
        for spec in TABLES:
            for model, column in itertools.product(PAPER_MODELS, spec.columns):
                metric = published()[spec.number, model.name, column.metric, column.slice]
                assert (metric.sd is None, metric.ci95 is None) == (spec.spread == "ci95", spec.spread == "sd")
                if metric.ci95:
                    assert metric.ci95[0] <= metric.value <= metric.ci95[1]  # type: ignore[operator]

    def test_anchors_of_the_text(self) -> None:
        value = lambda table, model, metric, slice_=(): published()[table, model, metric, slice_].value  # noqa: E731
        assert [value("1", "Brain-HIVE", m) for m in ("top1", "null_top1", "ep_top1", "two_afc")] == [75.2, 65.5, 46.3, 88.6]
        gains = [value("S11", m.name, "pairing_gain") for m in PAPER_MODELS]
        assert (min(gains), max(gains)) == (13.89, 35.14)
        gains = [value("S12", m.name, "null_pairing_gain") for m in PAPER_MODELS]
        assert (min(gains), max(gains)) == (16.23, 29.29)
        ahead = [
            value("1", m.name, "two_afc", family("identity")) - value("1", m.name, "two_afc", family("attribute")) for m in PAPER_MODELS
        ]
        assert (min(ahead), max(ahead)) == (pytest.approx(9.0), pytest.approx(23.3))
        # "NICE on Attribute edits is the only case whose confidence interval includes zero"
        low = [key for key, m in published().items() if key[0] == "S13" and m.ci95 and m.ci95[0] <= 0]
        assert low == [("S13", "NICE", "pairing_gain", family("attribute"))]
        assert sum(value("S12", m.name, "original_over_null") > 50 for m in PAPER_MODELS) == 7

    @pytest.mark.parametrize("model", [m.name for m in PAPER_MODELS])
    def test_tables_agree_with_each_other(self, model: str) -> None:
        from decodehub.hub_datasets.eeg_editbench.taxonomy import load_taxonomy

        families = {f.name: f for f in load_taxonomy().families}
        value = lambda table, metric, slice_=(): published()[table, model, metric, slice_].value  # noqa: E731

        def pooled(table: str, metric: str, part: str, counts: Mapping[str, int]) -> float:
            return sum(n * value(table, metric, ((part, name),)) for name, n in counts.items()) / sum(counts.values())

        sizes = {name: f.count for name, f in families.items()}
        assert pooled("1", "two_afc", "family", sizes) == pytest.approx(value("1", "two_afc"), abs=0.1)
        assert pooled("S13", "pairing_gain", "family", sizes) == pytest.approx(value("S11", "pairing_gain"), abs=0.01)
        for name in ("identity", "attribute"):
            subtypes = {s.name: s.count for s in families[name].subtypes}
            assert pooled("2", "two_afc", "subtype", subtypes) == pytest.approx(value("2", "two_afc", family(name)), abs=0.1)
            assert value("2", "two_afc", family(name)) == value("1", "two_afc", family(name))
        assert value("S10", "two_afc") == value("1", "two_afc") == pytest.approx(value("S11", "two_afc"), abs=0.0501)
        assert value("S11", "two_afc") - value("S11", "two_afc_mismatched") == pytest.approx(value("S11", "pairing_gain"), abs=0.0101)
        gain = value("S12", "null_over_edit") - value("S12", "null_over_edit_mismatched")
        assert gain == pytest.approx(value("S12", "null_pairing_gain"), abs=0.0101)


class TestFigureData:
    """The rows behind the figures, against plain numpy."""

    def test_categories_are_averaged_over_the_models_of_the_paper(
        self, benchmark: Benchmark, scored: Mapping[str, ScoredRuns], predictions: Mapping[str, list[Predictions]]
    ) -> None:
        b = benchmark
        absolute, relative = (data.category_rows(scored, metric) for metric in ("two_afc", "two_afc_minus_average"))
        assert list(dict.fromkeys(row["category"] for row in absolute)) == ["animal", "food", "other"]
        assert {row["model"] for row in absolute} == {"NICE", "Brain-HIVE", "mean"}

        def rate(name: str, mask: np.ndarray) -> float:
            edits = [(i, c) for i, c in enumerate(b.query) if mask[i]]
            return 100 * float(np.mean([[run.source_scores[c, c] > run.edit_scores[c, i] for i, c in edits] for run in predictions[name]]))

        for row, difference in zip(absolute, relative):
            if row["model"] != "mean" or row["condition"] not in ("family=identity", "subtype=shape", "family=removal"):
                continue
            part, value = row["condition"].split("=")
            condition = (b.family if part == "family" else b.subtype) == value
            mask = condition & (b.category[b.query] == row["category"])
            assert row["edits"] == mask.sum() and row["concepts"] == (b.category == row["category"]).sum()
            models = ("me/nice", "Brain_HIVE")
            assert row["two_afc"] == pytest.approx(np.mean([rate(name, mask) for name in models]))
            expected = np.mean([rate(name, mask) - rate(name, condition) for name in models])
            assert difference["two_afc_minus_average"] == pytest.approx(expected, abs=1e-9)
        assert data.averaged_models({"ridge": scored["ridge"], "x": scored["ridge"]}) == ["ridge", "x"]

    def test_quintiles_alignment_and_ranks(
        self,
        benchmark: Benchmark,
        scored: Mapping[str, ScoredRuns],
        records: Mapping[str, ResultRecord],
        predictions: Mapping[str, list[Predictions]],
    ) -> None:
        b, runs = benchmark, predictions["me/nice"]
        rows = [row for row in data.quintile_rows(scored) if row["model"] == "NICE"]
        order = np.array_split(np.argsort(b.distance), 5)
        wins = np.array([[run.source_scores[c, c] > run.edit_scores[c, i] for i, c in enumerate(b.query)] for run in runs])
        for row, members in zip(rows, order, strict=True):
            assert row["edits"] == len(members)
            assert row["two_afc"] == pytest.approx(100 * wins[:, members].mean())
            assert row["distance_low"] <= b.distance[members].min() and b.distance[members].max() <= row["distance_high"]
        edits = np.flatnonzero(b.target >= 0)
        row = next(row for row in data.alignment_rows(scored, records) if row["model"] == "NICE")
        pick = lambda scores, query, column: scores[query, column]  # noqa: E731
        drop = [pick(r.source_scores, b.query[edits], b.query[edits]) - pick(r.edit_scores, b.query[edits], edits) for r in runs]
        source = [pick(r.source_scores, b.target[edits], b.query[edits]) for r in runs]
        edited = [pick(r.edit_scores, b.target[edits], edits) for r in runs]
        expected = {"source_drop": drop, "target_similarity_source": source, "target_similarity_edited": edited}
        for metric, values in expected.items():
            assert row[metric] == pytest.approx(np.mean(values))
        assert row["target_gain"] == pytest.approx(np.mean(edited) - np.mean(source)) and row["edits"] == len(edits) == 120
        rank = next(row for row in data.rank_rows(scored) if row["model"] == "NICE")
        places = [1 + (r.edit_scores[:, edits] > pick(r.edit_scores, b.target[edits], edits)).sum(0) for r in runs]
        assert rank["target_rank_edited"] == pytest.approx(np.mean(places)) and rank["chance"] == 20.5

    def test_distances_and_their_reference(self, benchmark: Benchmark) -> None:
        rng = np.random.default_rng(1)
        edits, sources = rng.standard_normal((len(benchmark.query), 5)), rng.standard_normal((CONCEPTS, 5))
        found = data.reference_distances(edits, sources, benchmark.query)
        for i in (0, 7, 399):
            others = [
                1 - edits[i] @ s / np.linalg.norm(edits[i]) / np.linalg.norm(s) for c, s in enumerate(sources) if c != benchmark.query[i]
            ]
            assert found[i] == pytest.approx(np.median(others))
        rows = {(row["family"], row["subtype"]): row for row in data.distance_rows(benchmark, found)}
        assert len(rows) == 13 and rows["other concepts", ""]["median"] == pytest.approx(np.median(found))
        d = benchmark.distance[benchmark.subtype == "shape"]
        row = rows["attribute", "shape"]
        assert (row["n"], row["median"], row["mean"]) == (40, pytest.approx(np.median(d)), pytest.approx(d.mean()))
        assert (row["q1"], row["q3"]) == pytest.approx(tuple(np.quantile(d, (0.25, 0.75))))
        assert d.min() <= row["whisker_low"] <= row["q1"] and row["q3"] <= row["whisker_high"] <= d.max()

    def test_stable_failures_are_ranked_by_models_then_failures_with_different_sources(self, benchmark: Benchmark) -> None:
        b = benchmark
        index = {name: i for i, name in enumerate(b.edit_ids)}
        near, far, other = (index[f"c{c}-identity-{s}"] for c, s in ((3, "near"), (3, "far"), (5, "near")))

        def study(failing: Mapping[int, int]) -> ScoredRuns:
            """Perfect runs but for the edits that fail in as many of the first runs as given."""
            runs = []
            for k, (subject, seed) in enumerate(itertools.product(SUBJECTS, SEEDS)):
                edit = np.zeros((CONCEPTS, len(b.edit_ids)))
                for i, times in failing.items():
                    edit[b.query[i], i] = 2.0 * (k < times)
                runs.append(Predictions(subject, seed, np.eye(CONCEPTS), edit))
            return score_runs(b, runs)

        # near: 2 models, 9 of 18 failures; far: 2 models, 11; other: one model, 6; the baseline's failures count for nothing.
        models = {"nice": study({near: 5, far: 6, other: 3}), "hyfi": study({near: 4, far: 5, other: 6}), "ridge": study({0: 6})}
        rows = data.failure_rows(models)
        assert [(row["edit_id"], row["models_failing"], row["failures"], row["selected"]) for row in rows] == [
            ("c3-identity-far", 2, 11, True),
            ("c3-identity-near", 2, 9, False),
            ("c5-identity-near", 1, 9, True),
        ]
        assert rows[2]["failing_for"] == "HyFI" and rows[0]["comparisons"] == 12 and rows[0]["models"] == 2


@pytest.fixture
def no_ink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made but not rendered."""

    def close(figure: Any) -> dict[str, bytes]:
        return {"png": b"png", "svg": b"svg"}

    monkeypatch.setattr(study_plots, "rendered", close)


NAMES = ("5", "6", "7", "S1", "S2", "S3", "S4")


class TestFigures:
    """`write_figures`: files, bytes, reasons."""

    def test_files_are_deterministic(self, tmp_path: Path, make_release: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
        release = make_release(tmp_path / "release", concepts=9, release="planted")
        b = load_benchmark(str(release))
        scored = {name: score_runs(b, planted(b, strength)) for name, strength in {"ridge": 0.2, "hyfi": 1.0, "nice": 0.5}.items()}
        records = {name: record_of(b, name, similarity="minus distance" if name == "hyfi" else "cosine") for name in scored}
        first = write_figures(tmp_path / "a", scored, records, str(release))
        second = write_figures(tmp_path / "b", dict(reversed(scored.items())), records, str(release))
        expected = {f"figure_{name}.{kind}" for name in NAMES for kind in ("png", "svg", "csv")} | {"figures.md"}
        assert {path.name for path in first} == expected == {path.name for path in (tmp_path / "a").iterdir()}
        for a, c in zip(first, second, strict=True):
            assert a.read_bytes() == c.read_bytes(), a.name
        for name in NAMES:
            assert (tmp_path / "a" / f"figure_{name}.png").read_bytes().startswith(b"\x89PNG")
            assert b"<dc:date>" not in (tmp_path / "a" / f"figure_{name}.svg").read_bytes()
        captions = (tmp_path / "a" / "figures.md").read_text(encoding="utf-8")
        assert captions.count("![Figure") == 7 and captions.count("Release planted has 9 sources and 53 edits, the paper's 200") == 7
        assert "figure 5: drawn without the distance to other concepts" in capsys.readouterr().err

    def test_what_is_missing_is_said_and_leaves_no_old_picture(
        self, no_ink: None, tmp_path: Path, tiny_benchmark: Benchmark, make_release: Callable[..., Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        edits = [{**row, "visual_distance": None, "target_concept": None} for row in tiny_benchmark.rows["edits"]]
        b = make_benchmark("tiny", tiny_benchmark.rows["sources"], edits)
        (tmp_path / "figure_5.png").write_bytes(b"of an earlier study")
        elsewhere = make_release(tmp_path / "elsewhere", concepts=4)
        one = {"nice": score_runs(b, planted(b, 0.0, subjects=(1,)))}
        write_figures(tmp_path, one, {"nice": record_of(b, "nice")}, str(elsewhere))
        said = capsys.readouterr().err
        for name in ("5", "S1", "7", "S4"):
            assert not (tmp_path / f"figure_{name}.png").exists()
            reason = "fewer than 5 edits of the release have a visual_distance" if name in ("5", "S1") else "no identity edit whose target"
            assert reason in (tmp_path / f"figure_{name}.csv").read_text(encoding="utf-8") and f"figure {name} not drawn: {reason}" in said
        assert "figure S3 not drawn: the images on this machine are of another release" in said
        assert not (tmp_path / "figure_S3.png").exists() and "edit_id" in (tmp_path / "figure_S3.csv").read_text(encoding="utf-8")
        assert (tmp_path / "figure_6.png").exists()

    def test_the_reference_is_taken_only_from_the_encoder_of_the_distances(
        self,
        no_ink: None,
        tmp_path: Path,
        make_release: Callable[..., Path],
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        from decodehub.metrics.eeg_editbench.benchmark import with_distances

        release = make_release(tmp_path / "release", concepts=6)
        plain = load_benchmark(str(release))
        rng = np.random.default_rng(2)
        features = {6: rng.standard_normal((6, 8)), len(plain.query): rng.standard_normal((len(plain.query), 8))}
        monkeypatch.setattr(study_figures, "load_encoder", lambda name: SimpleNamespace(name=name))
        monkeypatch.setattr(study_figures, "image_features", lambda encoder, images, cache_dir: features[len(images)])
        edits, sources = (features[n] / np.linalg.norm(features[n], axis=1, keepdims=True) for n in (len(plain.query), 6))
        measured = with_distances(plain, np.clip(1 - (edits * sources[plain.query]).sum(1), 0, 2))
        for b, drawn in ((measured, True), (plain, False)):
            one = {"nice": score_runs(b, planted(b, 0.5))}
            write_figures(tmp_path / "out", one, {"nice": record_of(b, "nice", distance_encoder="lite0")}, str(release))
            assert ("other concepts" in (tmp_path / "out" / "figure_5.csv").read_text(encoding="utf-8")) == drawn
            assert ("lite0 gives distances that differ from the table's" in capsys.readouterr().err) != drawn


def test_the_command(no_ink: None, tmp_path: Path, make_release: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    release = make_release(tmp_path / "release", release="sample")
    b = load_benchmark(str(release))
    for name in ("ORG/nice", "ridge"):
        make_record(tmp_path / name, b, planted(b, 0.5), model=ModelInfo(id=name), data="Simulated EEG", similarity="cosine")
    options = ["--out", str(tmp_path / "out"), "--data-dir", str(release)]
    cli.app(["editbench", "tables", str(tmp_path / "ORG/nice"), f"mine={tmp_path / 'ridge'}", *options], standalone_mode=False)
    shown = capsys.readouterr().out
    assert "43 files in" in shown and "Table S14" in shown and "mine" in shown and "is a sample or rehearsal" in shown
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".csv", ".md", ".png", ".svg", ".tex"}
    with pytest.raises(ValueError, match="two records are of 'ridge'"):
        cli.app(["editbench", "tables", str(tmp_path / "ridge"), str(tmp_path / "ridge"), *options], standalone_mode=False)
