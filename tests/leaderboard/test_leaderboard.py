"""The leaderboard without a browser: what is read, trusted, ranked, compared, and how foreign text is shown."""

from __future__ import annotations

import csv
import html.parser
import importlib.util
import io
import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from decodehub.core.records import protocol_hash
from decodehub.leaderboard import boards as lb
from decodehub.leaderboard.checks import Checks
from decodehub.leaderboard.compare import compare_rows
from decodehub.leaderboard.data import Loaded, read_folder, read_hub, repo_name
from decodehub.leaderboard.details import commands, render_details
from decodehub.leaderboard.html import message, render_comparison, render_problems, render_table, to_csv
from decodehub.leaderboard.published import published_rows
from decodehub.leaderboard.rows import NOT_DECLARED
from decodehub.metrics.eeg_editbench.benchmark import Benchmark
from decodehub.scripts.leaderboard import app

_spec = importlib.util.spec_from_file_location("leaderboard_world", Path(__file__).with_name("leaderboard_world.py"))
assert _spec is not None and _spec.loader is not None
world = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(world)

EDITBENCH, BCS, IMIND = lb.boards()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, tiny_benchmark: Benchmark) -> Iterator[Path]:
    with world.known_truth():
        yield world.write_world(tmp_path_factory.mktemp("results"), tiny_benchmark)


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory, results: Path) -> Checks:
    made = Checks(tmp_path_factory.mktemp("checks"))
    for entry in read_folder(results).entries:
        made.make(entry)
    return made


@pytest.fixture(scope="module")
def loaded(results: Path) -> Loaded:
    return read_folder(results)


@pytest.fixture(scope="module")
def table(loaded: Loaded, checks: Checks) -> Callable[..., lb.Table]:
    def make(board: lb.Board, samples: bool = False, **choices: str) -> lb.Table:
        return lb.make_table(board, lb.rows_of(board, loaded.entries, samples=samples), checks, choices)

    return make


def named(table: lb.Table, name: str) -> lb.Placed:
    return next(p for p in table.placed if p.row.name == name)


class Text(html.parser.HTMLParser):
    """Tags and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


class TestReading:
    def test_wrong_files_are_listed_and_not_fatal(self, loaded: Loaded, results: Path) -> None:
        assert len(loaded.entries) == 13
        assert {p.path for p in loaded.problems} == {"broken/record.json", "newer/record.json", "partial/record.json"}
        reasons = {p.path.partition("/")[0]: p.reason for p in loaded.problems}
        assert "newer than" in reasons["newer"] and "benchmark" in reasons["partial"] and "not a record" in reasons["broken"]
        assert str(results) not in str(loaded.problems)

    def test_links_that_lead_out_are_refused(self, tmp_path: Path, results: Path) -> None:
        (tmp_path / "in" / "file").mkdir(parents=True)
        (tmp_path / "in" / "file" / "record.json").symlink_to(results / "editbench" / "weak" / "record.json")
        (tmp_path / "in" / "folder").symlink_to(results / "editbench" / "weak")
        found = read_folder(tmp_path / "in")
        assert not found.entries and [p.path for p in found.problems] == ["file/record.json", "folder"]
        assert "leads out" in found.problems[0].reason and "a link to a folder elsewhere is not followed" in found.problems[1].reason

    def test_a_huge_file_is_not_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("decodehub.leaderboard.data.MAX_RECORD_BYTES", 100)
        (tmp_path / "record.json").write_text(" " * 101)
        assert "100 bytes" in read_folder(tmp_path).problems[0].reason

    def test_thousands_of_records(self, tmp_path: Path, results: Path) -> None:
        raw = json.loads((results / "imind" / "worse" / "record.json").read_text())
        raw["metrics"] = raw["metrics"][:2]
        for i in range(500):
            raw["model"]["id"] = f"m{i}"
            (tmp_path / str(i)).mkdir()
            (tmp_path / str(i) / "record.json").write_text(json.dumps(raw))
        found = read_folder(tmp_path)
        assert len({e.key for e in found.entries}) == 500 and not found.problems

    def test_no_folder_is_an_error_in_words(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="--hub"):
            read_folder(tmp_path / "none")

    @pytest.mark.parametrize("name", ["../x", "a/b/c", "a", "/a/b", "a/..", "a b/c", "-a/b"])
    def test_names_of_repositories(self, name: str) -> None:
        with pytest.raises(ValueError, match="ORG/NAME"):
            repo_name(name)


class TestTrust:
    def test_states(self, table: Callable[..., lb.Table]) -> None:
        t = table(EDITBENCH)
        state = {p.row.name: p.state for p in t.placed if p.row.entry is not None}
        assert state == {
            "org/strong": lb.RECOMPUTED, "org/weak": lb.RECOMPUTED, world.HOSTILE: lb.RECOMPUTED, "org/other-subjects": lb.RECOMPUTED,
            "org/tampered": lb.UNVERIFIED, "org/lost": lb.UNVERIFIED,
        }  # fmt: skip
        assert "1 number differs" in named(t, "org/tampered").reason and "missing" in named(t, "org/lost").reason

    def test_only_recomputed_rows_are_ranked(self, table: Callable[..., lb.Table]) -> None:
        for board, choices in itertools.product((EDITBENCH, BCS, IMIND), ({}, {"table": "heads", "sort": "T-PAS MAE"})):
            t = table(board, **choices)
            assert t.placed and all((p.rank is not None) == (p.state == lb.RECOMPUTED and not p.reason) for p in t.placed)
            ranked = [(m.value, p.rank) for p in t.placed if p.rank is not None and (m := p.row.metric(t.sort)) is not None]
            worst_first = t.sort.name.endswith("_mae")
            assert ranked == sorted(ranked, key=lambda x: (x[1], x[0])) and ranked[0][1] == 1
            assert [v for v, _ in ranked] == sorted((v for v, _ in ranked), reverse=not worst_first)

    def test_a_record_without_check_waits(self, loaded: Loaded, tmp_path: Path) -> None:
        t = lb.make_table(EDITBENCH, lb.rows_of(EDITBENCH, loaded.entries, samples=False), Checks(tmp_path), {})
        assert {p.state for p in t.placed} == {lb.UNVERIFIED, lb.REPORTED} and all(p.rank is None for p in t.placed)

    def test_a_check_is_made_once_and_again_when_a_file_changes(
        self, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = shutil.copytree(results / "editbench" / "weak", tmp_path / "r")
        entry, checks = read_folder(folder).entries[0], Checks(tmp_path / "checks")
        calls: list[str] = []
        whole = __import__("decodehub.leaderboard.checks", fromlist=["x"]).check_entry
        monkeypatch.setattr("decodehub.leaderboard.checks.check_entry", lambda e: calls.append(e.key) or whole(e))
        assert checks.make(entry).ok and Checks(tmp_path / "checks").make(entry).ok and len(calls) == 1
        file = folder / entry.record.runs[0].predictions
        file.write_bytes(file.read_bytes()[:-1] + b"\0")
        again = Checks(tmp_path / "checks")
        assert again.get(entry) is None and "changed" in again.make(entry).reason

    def test_a_damaged_check_counts_as_none(self, results: Path, tmp_path: Path) -> None:
        entry, folder = read_folder(results / "bcs" / "score").entries[0], tmp_path / "checks"
        Checks(folder).make(entry)
        for file in folder.glob("*.json"):
            file.write_text('{"ok": true}')
        assert Checks(folder).get(entry) is None

    def test_paths_out_of_the_record_are_not_followed(self, results: Path, tmp_path: Path) -> None:
        folder = shutil.copytree(results / "editbench" / "weak", tmp_path / "r")
        raw = json.loads((folder / "record.json").read_text())
        raw["runs"][0]["predictions"] = "../../etc/passwd"
        (folder / "record.json").write_text(json.dumps(raw))
        found = Checks(tmp_path / "c").get(read_folder(folder).entries[0])
        assert found is not None and not found.ok and "leads out" in found.reason

    def test_samples_never_stand_beside_real_rows(self, table: Callable[..., lb.Table]) -> None:
        real, samples = table(EDITBENCH), table(EDITBENCH, samples=True)
        assert {p.row.name for p in samples.placed} == {"org/on-the-sample", "org/on-simulated"}
        assert not {p.row.key for p in real.placed} & {p.row.key for p in samples.placed}
        assert "never stand beside" in render_table(samples, samples=True)


class TestBoards:
    def test_families(self, table: Callable[..., lb.Table]) -> None:
        t = table(EDITBENCH, family="identity")
        row = named(t, "org/strong").row
        assert row.entry is not None
        metric = row.metric(t.columns[0])
        assert metric is not None and metric.value == row.entry.record.value("two_afc", family="identity")

    def test_subset_task_and_data_set(self, table: Callable[..., lb.Table]) -> None:
        assert {p.row.name for p in table(IMIND, subset="full").placed if p.row.entry} == {"org/better", "org/worse"}
        assert {p.row.name for p in table(IMIND, subset="main").placed if p.row.entry} == {"org/better", "org/worse", "org/main-only"}
        t = table(IMIND, subset="full", dataset="kelesbyd2024", task="speech", score="accuracy")
        row = named(t, "org/better").row
        assert row.entry is not None and len(t.columns) == 1
        metric = row.metric(t.columns[0])
        assert metric is not None and metric.value == row.entry.record.value(
            "accuracy", subset="full", dataset="kelesbyd2024", task="speech"
        )
        assert [c.title for c in table(IMIND, domain="auditory").columns] == ["Volume", "Delta Volume", "Voice Pitch"]

    def test_filters_of_rows(self, table: Callable[..., lb.Table], loaded: Loaded) -> None:
        rows = lb.rows_of(IMIND, loaded.entries, samples=False)
        assert ("Waveform", "Waveform") in lb.options(rows, "track") and ("cross-subject", "cross-subject") in lb.options(rows, "split")
        assert {p.row.name for p in table(IMIND, track="Waveform").placed} == {"org/main-only"}
        assert {p.row.name for p in table(IMIND, pretraining=lb.DECLARED).placed} == {"org/better", "PopT-v2"}
        assert {p.row.name for p in table(IMIND, pretraining=NOT_DECLARED, state=lb.RECOMPUTED).placed} == {"org/worse", "org/main-only"}
        assert {p.row.name for p in table(EDITBENCH, search="STRONG").placed} == {"org/strong"}

    def test_intervals_over_people(self, table: Callable[..., lb.Table]) -> None:
        t = table(IMIND)
        p = named(t, "org/better")
        assert p.check is not None
        for column in t.columns:
            low, high = p.check.intervals[p.row.label(column)]
            metric = p.row.metric(column)
            assert metric is not None and metric.value is not None and low < metric.value < high

    def test_rows_of_other_heads_are_of_other_groups(self, loaded: Loaded) -> None:
        groups = lb.groups(lb.rows_of(BCS, loaded.entries, samples=False))
        assert len(groups) == 2 and {title.startswith("heads") for title, _ in groups} == {True, False}

    def test_only_equal_grids_are_ranked(self, tmp_path: Path, tiny_benchmark: Benchmark) -> None:
        b = world.make_benchmark("1.0", tiny_benchmark.rows["sources"], tiny_benchmark.rows["edits"])

        def add(name: str, subjects: range, seeds: tuple[int, ...]) -> None:
            runs = [r for r in world.editbench_runs(b, 0.5, 1, subjects) if r.seed == 0]
            runs = [r._replace(seed=seed) for r in runs for seed in seeds]
            model = world.ModelInfo(id=name)
            world.editbench.make_record(tmp_path / name, b, runs, model=model, data="EEG", similarity="cosine")

        def ranks() -> dict[str, tuple[int | None, str]]:
            loaded, made = read_folder(tmp_path), Checks(tmp_path / "checks")
            for entry in loaded.entries:
                assert made.make(entry).ok
            t = lb.make_table(EDITBENCH, lb.rows_of(EDITBENCH, loaded.entries, samples=False), made, {})
            recomputed = [p for p in t.placed if p.state == lb.RECOMPUTED]
            assert [p.rank is None for p in recomputed] == sorted(p.rank is None for p in recomputed)  # those that are ranked come first
            return {p.row.name: (p.rank, p.reason) for p in recomputed}

        add("ten", range(1, 11), (0, 1))
        for i, subjects in enumerate((range(1, 10), range(1, 10), range(1, 2))):  # without the hardest subject, twice; one subject
            add(f"fewer-{i}", subjects, (0, 1))
        found = ranks()
        assert found["ten"] == (1, "") and all(found[f"fewer-{i}"][0] is None for i in range(3))
        assert found["fewer-0"][1] == (
            "not ranked: its numbers are over 9 subjects (1 to 9) and 2 seeds (0, 1), "
            "those that are ranked over 10 subjects (1 to 10) and 2 seeds (0, 1)"
        )
        add("eleven", range(1, 12), (0, 1, 2, 3, 4))
        add("full", range(1, 11), (0, 1, 2, 3, 4))  # the grid of the benchmark goes before a larger one
        found = ranks()
        assert [name for name, (rank, _) in found.items() if rank is not None] == ["full"]
        one = next(e for e in read_folder(tmp_path).entries if e.record.model.id == "fewer-2")
        assert all(m.sd is None and m.n == 1 for m in one.record.metrics)

    def test_what_was_not_checked_is_reported_and_not_ranked(self, results: Path, tmp_path: Path) -> None:
        folder = shutil.copytree(results / "imind" / "better", tmp_path / "records" / "r")
        raw = json.loads((folder / "record.json").read_text())
        settings = raw["protocol"]["settings"] | {"labels": "not checked"}
        raw["protocol"] |= {"settings": settings, "hash": protocol_hash(raw["protocol"]["name"], settings)}
        (folder / "record.json").write_text(json.dumps(raw))
        loaded, made = read_folder(tmp_path / "records"), Checks(tmp_path / "checks")
        made.make(loaded.entries[0])
        t = lb.make_table(IMIND, lb.rows_of(IMIND, loaded.entries, samples=False), made, {})
        p = named(t, "org/better")
        assert (p.state, p.rank) == (lb.REPORTED, None) and "not checked: labels" in p.reason
        assert "not checked: labels" in render_table(t, samples=False)

    def test_methods_over_other_concepts_are_not_ranked(self, tmp_path: Path) -> None:
        pairs = world.bcs_pairs("recon", False)
        rows = [row for row in pairs.rows if not (row["method"] == "ATM" and row["concept"] == "concept3")]
        scores = world.bcs.Scores(np.random.default_rng(0).random((len(rows), 12)))
        model = world.ModelInfo(id="head")
        world.bcs.make_record(tmp_path / "r", world.bcs.Pairs("recon", rows), scores, model=model, data="images", encoders=[])
        loaded, made = read_folder(tmp_path), Checks(tmp_path / "checks")
        made.make(loaded.entries[0])
        t = lb.make_table(BCS, lb.rows_of(BCS, loaded.entries, samples=False), made, {})
        ranked = {p.row.name: p.rank is not None for p in t.placed if p.row.entry is not None}
        assert ranked == {"ATM": False, "ENIGMA": True, world.FORMULA: True} and "19 concepts" in named(t, "ATM").reason

    def test_ties_share_a_rank(self) -> None:
        from decodehub.core.records import Metric

        def row(key: str, value: float) -> lb.Placed:
            metric = Metric(name="top1", value=value, unit="percent", higher_is_better=True, n=1)
            return lb.Placed(lb.Row(key, key, None, {("top1", ()): metric}), None, lb.RECOMPUTED, "", None)

        placed = lb._ranked([row("a", 2.0), row("b", 2.0), row("c", 1.0)], lb.Column("Top-1", "top1"))
        assert [p.rank for p in placed] == [1, 1, 3]


class TestPublished:
    def test_numbers_of_the_papers(self) -> None:
        def value(board: str, model: str, name: str, *slice_: tuple[str, str], split: str = "") -> float | None:
            row = next(r for r in published_rows(board) if r.name == model and (name, slice_) in r.numbers and r.traits["split"] == split)
            return row.numbers[name, slice_].value

        assert value("eeg-editbench", "NICE", "top1") == 19.5
        assert value("bcs", "4-VLM continuous ensemble", "pas_r") == 0.700
        assert value("bcs", "ATM", "regime_share", ("regime", "high_p_high_s")) == pytest.approx(85 / 1990, abs=1e-6)
        assert value("imindbench", "PopT-v2", "roc_auc", ("subset", "main"), split="within-session") == 0.645

    @pytest.mark.parametrize("board", [b.id for b in lb.boards()])
    def test_every_row_has_a_source_and_shows(self, board: str, tmp_path: Path) -> None:
        rows = published_rows(board)
        assert rows and all(r.source for r in rows) and len({r.key for r in rows}) == len(rows)

    def test_neuroprobe_rows_are_means_over_the_five_sessions(self, shared: Path) -> None:
        sessions = {"btbank1_1", "btbank3_0", "btbank4_0", "btbank7_0", "btbank10_0"}
        with (shared / "data/ieeg/neuroprobe/leaderboard_folds.csv").open(newline="") as f:
            folds = [r for r in csv.DictReader(f) if r["session"] in sessions and r["split"] == "Within-Session"]
        for row in published_rows("imindbench"):
            if row.traits["split"] != "within-session" or row.traits["track"] != "Custom":
                continue
            own = [r for r in folds if r["model_name"] == row.name]
            units = {(r["task"], r["session"]): [] for r in own}  # type: ignore[var-annotated]
            for r in own:
                units[r["task"], r["session"]].append(float(r["test_roc_auc"]))
            mean = np.mean([np.mean(v) for v in units.values()])  # 15 tasks of five sessions each
            metric = row.numbers["roc_auc", (("dataset", "neuroprobev2"), ("subset", "full"))]
            assert metric.value == pytest.approx(mean, abs=1e-6) and metric.n == len(units) == 75


class TestComparison:
    @pytest.mark.parametrize(
        ("board", "better", "worse", "choices"),
        [
            (EDITBENCH, "org/strong", "org/weak", {}),
            (EDITBENCH, "org/strong", "org/weak", {"family": "background"}),
            (BCS, "ENIGMA", "ATM", {}),
            (BCS, "org/head", "mean (baseline of org/head)", {"table": "heads"}),
            (IMIND, "org/better", "org/worse", {"subset": "full"}),
            (IMIND, "org/better", "org/main-only", {"subset": "main", "task": "onset", "dataset": "kelesbyd2024"}),
        ],
    )
    def test_a_planted_difference_is_found(
        self, table: Callable[..., lb.Table], board: lb.Board, better: str, worse: str, choices: dict[str, str]
    ) -> None:
        t = table(board, **choices)
        found = compare_rows(t, named(t, better), named(t, worse), choices)
        back = compare_rows(t, named(t, worse), named(t, better), choices)
        first, other = found.paired[0], back.paired[0]
        assert (first.difference > 0) == first.better and first.p < 0.05 and first.ci95 is not None and first.ci95[0] * first.ci95[1] > 0
        assert first.difference == pytest.approx(-other.difference) and first.p == other.p and first.wins + other.wins == first.n
        assert all(c.p <= c.p_holm <= 1 for c in found.paired)
        assert f"{escape(better)} is better" in render_comparison(named(t, better), named(t, worse), found)
        assert f"{escape(better)} is better" not in render_comparison(
            named(t, better), named(t, worse), found._replace(paired=(first._replace(p_holm=0.2),))
        )

    def test_the_difference_is_that_of_the_values(self, table: Callable[..., lb.Table]) -> None:
        for board, a, b, choices in ((EDITBENCH, "org/strong", "org/weak", {}), (IMIND, "org/better", "org/worse", {"subset": "full"})):
            t = table(board, **choices)
            column = t.columns[0]
            values = [m.value for name in (a, b) if (m := named(t, name).row.metric(column)) is not None]
            assert values[0] is not None and values[1] is not None
            assert compare_rows(t, named(t, a), named(t, b), choices).paired[0].difference == pytest.approx(values[0] - values[1])

    @pytest.mark.parametrize(
        ("first", "second", "why"),
        [
            ("org/strong", "org/strong", "two different"),
            ("org/strong", "org/tampered", "not recomputed"),
            ("org/strong", "NICE", "reported"),
            ("org/strong", "org/other-subjects", "different subjects"),
        ],
    )
    def test_what_cannot_be_compared(self, table: Callable[..., lb.Table], first: str, second: str, why: str) -> None:
        t = table(EDITBENCH)
        with pytest.raises(ValueError, match=why):
            compare_rows(t, named(t, first), named(t, second), {})

    def test_unequal_coverage(self, table: Callable[..., lb.Table]) -> None:
        t = table(IMIND, subset="main")
        with pytest.raises(ValueError, match="both rows cover"):
            compare_rows(t, named(t, "org/better"), named(t, "org/main-only"), {"subset": "full"})


class TestPages:
    def test_foreign_text_stays_text(self, table: Callable[..., lb.Table], loaded: Loaded) -> None:
        t = table(EDITBENCH)
        page = render_table(t, samples=False) + render_problems(loaded.problems)
        page += "".join(render_details(t, p, {}, loaded) for p in t.placed)
        assert {tag for tag, _ in Text(page).tags} <= {
            "p", "div", "table", "caption", "span", "thead", "tbody", "tr", "th", "td", "a", "i", "h2", "h3", "details", "summary", "pre",
        }  # fmt: skip
        assert not any(name.startswith("on") for _, attributes in Text(page).tags for name in attributes)
        assert "${" not in page and "{{" not in page and "alert(1)&gt;" in page

    def test_tables_have_headings_with_scope(self, table: Callable[..., lb.Table]) -> None:
        for board in lb.boards():
            tags = Text(render_table(table(board), samples=False)).tags
            heads = [attributes.get("scope") for tag, attributes in tags if tag == "th"]
            assert heads and set(heads) <= {"col", "row", "rowgroup"} and ("caption", {}) in tags
            assert sum("aria-sort" in attributes for tag, attributes in tags if tag == "th") == 1
            regions = [a for tag, a in tags if a.get("role") == "region"]
            assert regions and all(a["tabindex"] == "0" and a["aria-label"] for a in regions)

    def test_every_row_has_a_page_with_citation_and_command(self, table: Callable[..., lb.Table], loaded: Loaded) -> None:
        for board, choices in ((EDITBENCH, {}), (BCS, {}), (BCS, {"table": "heads"}), (IMIND, {}), (IMIND, {"score": "accuracy"})):
            t = table(board, **choices)
            for p in t.placed:
                page = render_details(t, p, choices, loaded)
                assert "@" in page and "BibTeX" in page
                if p.row.entry is not None:
                    assert "decodehub verify" in page and p.row.entry.record.protocol.hash in page
                if p.state == lb.RECOMPUTED:
                    assert 'class="lb-plot"' in page

    def test_the_command_that_a_record_states_is_a_comment(self, table: Callable[..., lb.Table], loaded: Loaded) -> None:
        t = table(EDITBENCH)
        placed = next(p for p in t.placed if p.row.entry is not None)
        entry = placed.row.entry
        assert entry is not None and "the run itself" not in render_details(t, placed, {}, loaded)
        for stated, shown in (
            ("decodehub editbench score --out OUT", "decodehub editbench score --out OUT"),
            ("a\nrm -r x\u2028y", "a rm -r x y"),
        ):
            record = entry.record.model_copy(update={"environment": entry.record.environment | {"command": stated}})
            changed = placed._replace(row=replace(placed.row, entry=replace(entry, record=record)))
            lines = commands(loaded, changed).splitlines()
            assert lines[-1] == f"# the run itself, as the record states it: {shown}"
            assert lines[-1] in render_details(t, changed, {}, loaded)

    def test_csv_is_the_table_and_runs_no_formula(self, table: Callable[..., lb.Table]) -> None:
        t = table(BCS)
        lines = list(csv.DictReader(io.StringIO(to_csv(t))))
        first = t.placed[0]
        metric = first.row.metric(t.columns[0])
        assert metric is not None and float(lines[0]["value"]) == metric.value and lines[0]["rank"] == "1"
        assert f"'{world.FORMULA}" in {line["model"] for line in lines} and not any(line["model"].startswith("=") for line in lines)

    def test_text_for_html(self) -> None:
        shown = message("a\x00<b>\u202e${x}{{y}}")
        assert shown == '<p role="status" class="lb-warn">a &lt;b&gt; &#36;&#123;x}&#123;&#123;y}}</p>'
        assert message("x" * 700).endswith(f"{'x' * 10} ...</p>")


class TestCommand:
    def test_csv_and_the_command_of_a_row(self, results: Path, tmp_path: Path, table: Callable[..., lb.Table]) -> None:
        run = CliRunner().invoke(app, [str(results), "--csv", str(tmp_path / "all.csv")])
        assert run.exit_code == 0, run.output
        lines = list(csv.DictReader((tmp_path / "all.csv").open(newline="")))
        assert {line["board"] for line in lines} == {"eeg-editbench", "bcs", "imindbench"}
        assert not {"org/on-the-sample", "org/on-simulated"} & {line["model"] for line in lines}
        for board in (EDITBENCH, BCS, IMIND):
            p = table(board).placed[0]
            run = CliRunner().invoke(app, [str(results), "--row", p.row.key, "--csv", str(tmp_path / "row.csv")])
            assert run.exit_code == 0, run.output
            row = list(csv.DictReader((tmp_path / "row.csv").open(newline="")))
            metric = p.row.metric(table(board).columns[0])
            assert (
                {line["state"] for line in row} == {lb.RECOMPUTED}
                and metric is not None
                and repr(metric.value) in {line["value"] for line in row}
            )

    def test_samples_are_asked_for(self, results: Path, tmp_path: Path) -> None:
        run = CliRunner().invoke(app, [str(results), "--samples", "--csv", str(tmp_path / "s.csv")])
        assert run.exit_code == 0 and "say nothing" in run.output
        assert {line["model"] for line in csv.DictReader((tmp_path / "s.csv").open(newline=""))} == {
            "org/on-the-sample",
            "org/on-simulated",
        }

    def test_an_unknown_row_is_an_error(self, results: Path, tmp_path: Path) -> None:
        run = CliRunner().invoke(app, [str(results), "--row", "0" * 12, "--csv", str(tmp_path / "row.csv")])
        assert isinstance(run.exception, ValueError) and not (tmp_path / "row.csv").exists()


class TestHub:
    def test_a_results_repository(self, hub: Any, results: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("DECODEHUB_HOME", str(tmp_path))
        weak, strong = ({f.relative_to(results).as_posix(): f.read_bytes() for f in sorted((results / p).rglob("*")) if f.is_file()} for p in ("editbench/weak", "editbench/strong"))  # fmt: skip
        repo = hub.create("dataset", "lab/decodehub-results", {**weak, **strong})
        found = read_hub("lab/decodehub-results")
        assert {e.path for e in found.entries} == {"editbench/weak", "editbench/strong"} and found.revision == repo.refs["main"]
        assert all(Checks(tmp_path / "c").make(e).ok for e in found.entries)

        blobs = {path: blob for path, blob in repo.tree().items() if path in weak}
        repo.commit(blobs)  # the other record is taken away
        assert {e.path for e in read_hub("lab/decodehub-results").entries} == {"editbench/weak"}
        hub.fail("GET", "/api/datasets/", 503, times=99)
        late = read_hub("lab/decodehub-results")
        assert {e.path for e in late.entries} == {"editbench/weak"} and "last time" in late.note

    def test_no_such_repository(self, hub: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("DECODEHUB_HOME", str(tmp_path))
        with pytest.raises(RuntimeError, match="lab/none"):
            read_hub("lab/none")
