"""``evaluate.load("eeg_editbench")``: the same numbers as the scoring functions, whatever the order, the pieces and the processes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import evaluate
import numpy as np
import pytest
import torch

import decodehub  # noqa: F401  (registers the bare name)
from decodehub.metrics.eeg_editbench.benchmark import Benchmark, load_benchmark
from decodehub.metrics.eeg_editbench.scoring import prepare, score_run
from decodehub.metrics.eeg_editbench.similarity import cosine_scores, dot_scores

Matrices = tuple[np.ndarray, np.ndarray, np.ndarray]


@pytest.fixture
def metric() -> Any:
    return evaluate.load("eeg_editbench")


@pytest.fixture(params=[True, False], ids=["in memory", "on disk"])
def either_metric(request: pytest.FixtureRequest) -> Any:
    return evaluate.load("eeg_editbench", keep_in_memory=request.param)


def random_matrices(b: Benchmark, seed: int = 0) -> Matrices:
    """Random scores of sources; an edit's and a null edit's are near those of its source, as those of images are."""
    rng = np.random.default_rng(seed)
    sources = rng.standard_normal((len(b.concepts), len(b.concepts)))
    return tuple(x + 0.3 * rng.standard_normal(x.shape) if i else x for i, x in enumerate((sources, sources[:, b.query], sources)))  # type: ignore[return-value]


def rows_of(matrices: Matrices, *, nulls: bool = True) -> list[dict[str, Any]]:
    names = ("source_scores", "edit_scores", "null_scores")[: 3 if nulls else 2]
    return [{name: matrix[i] for name, matrix in zip(names, matrices)} for i in range(len(matrices[0]))]


def expected(b: Benchmark, matrices: Matrices, *, nulls: bool = True) -> dict[str, float | None]:
    values = score_run(prepare(b), *(np.asarray(m) for m in matrices[: 3 if nulls else 2])).as_dict()
    return {label: value if np.isfinite(value) else None for label, value in values.items()}


def same(a: dict[str, float | None], b: dict[str, float | None]) -> bool:
    """Equal to the last digit: counts are whole numbers until one division."""
    return a == b


class TestRows:
    """`compute`, `add` and `add_batch`."""

    def test_equals_scoring_exactly_in_any_order(self, metric: Any, tiny_benchmark: Benchmark) -> None:
        b = tiny_benchmark
        for seed in range(5):
            matrices = random_matrices(b, seed)
            rows, order = rows_of(matrices), np.random.default_rng(seed).permutation(len(b.concepts))
            found = metric.compute(predictions=[rows[i] for i in order], references=[b.concepts[i] for i in order], benchmark=b)
            values = expected(b, matrices)
            assert same(found["metrics"], values)
            for name in ("top1", "top5", "ep_top1", "two_afc", "pairing_gain", "null_top1"):
                assert found[name] == values[name]
            assert found["two_afc_by_family"] == {
                f: values[f"two_afc[family={f}]"] for f in ("identity", "attribute", "background", "removal")
            }
            assert found["two_afc_by_subtype"] == {s: values[f"two_afc[subtype={s}]"] for s in ("near", "far", "color", "shape")}
            assert found["release"] == "tiny" and found["ep_top1_chance"] == pytest.approx(100 * (5 / 7 + 1 / 6) / 6)
            assert found["ties"] == {"top1": 0, "ep_top1": 0, "two_afc": 0, "null_top1": 0}
            json.dumps(found, allow_nan=False)

    def test_pieces_give_the_same(self, metric: Any, tiny_benchmark: Benchmark) -> None:
        b = tiny_benchmark
        matrices = random_matrices(b)
        rows = rows_of(matrices)
        metric.add_batch(predictions=rows[4:], references=list(b.concepts[4:]))
        metric.add(prediction=rows[0], reference=b.concepts[0])
        metric.add(prediction=rows[3], reference=b.concepts[3])
        metric.add_batch(predictions=rows[1:3], references=list(b.concepts[1:3]))
        assert same(metric.compute(benchmark=b)["metrics"], expected(b, matrices))
        again = random_matrices(b, 1)  # and nothing of the first run is left
        metric.add_batch(predictions=rows_of(again), references=list(b.concepts))
        assert same(metric.compute(benchmark=b)["metrics"], expected(b, again))

    def test_two_objects_do_not_mix(self, tiny_benchmark: Benchmark) -> None:
        b = tiny_benchmark
        first, second = evaluate.load("eeg_editbench"), evaluate.load("eeg_editbench")
        a, c = random_matrices(b, 1), random_matrices(b, 2)
        for i, concept in enumerate(b.concepts):
            first.add(prediction=rows_of(a)[i], reference=concept)
            second.add(prediction=rows_of(c)[i], reference=concept)
        assert same(second.compute(benchmark=b)["metrics"], expected(b, c))
        assert same(first.compute(benchmark=b)["metrics"], expected(b, a))

    def test_null_scores_are_for_all_or_none(self, metric: Any, tiny_benchmark: Benchmark) -> None:
        b = tiny_benchmark
        matrices, concepts = random_matrices(b), list(b.concepts)
        without = metric.compute(predictions=rows_of(matrices, nulls=False), references=concepts, benchmark=b)
        assert same(without["metrics"], expected(b, matrices, nulls=False))
        assert "null_top1" not in without and "null_top1" not in without["ties"]
        as_none = [{**row, "null_scores": None} for row in rows_of(matrices, nulls=False)]
        assert metric.compute(predictions=as_none, references=concepts, benchmark=b) == without
        some = rows_of(matrices)
        del some[2]["null_scores"]
        with pytest.raises(ValueError, match="null_scores are missing for concept 'concept2' and given for others: give all or none"):
            metric.compute(predictions=some, references=concepts, benchmark=b)

    @pytest.mark.filterwarnings("ignore:scores of edits may be in another order")
    @pytest.mark.parametrize(
        "convert", [lambda x: x.astype(np.float32), lambda x: x.astype(np.float16), lambda x: torch.tensor(x, dtype=torch.float32)]
    )
    def test_ties_of_the_type_of_the_scores_are_kept(self, metric: Any, tiny_benchmark: Benchmark, convert: Callable[[Any], Any]) -> None:
        # One third and a half's worth of rounding below it are one number in float32: equal before and after.
        b = tiny_benchmark
        matrices = tuple(convert(np.full(m.shape, 1 / 3)) for m in random_matrices(b))
        found = metric.compute(predictions=rows_of(matrices), references=list(b.concepts), benchmark=b)
        assert found["ties"] == {"top1": 6, "ep_top1": 6, "two_afc": 35, "null_top1": 6}
        assert {found[name] for name in ("top1", "ep_top1", "two_afc")} == {0.0}

    def test_float32_scores_give_the_numbers_of_float32(self, metric: Any, tiny_benchmark: Benchmark) -> None:
        b = tiny_benchmark
        matrices = tuple(m.astype(np.float32) for m in random_matrices(b))
        found = metric.compute(predictions=rows_of(matrices), references=list(b.concepts), benchmark=b)
        assert same(found["metrics"], expected(b, tuple(m.astype(np.float64) for m in matrices)))

    def test_plain_lists_and_whole_numbers_are_scores(self, metric: Any, tiny_benchmark: Benchmark) -> None:
        b = tiny_benchmark
        rows = [{"source_scores": [int(i == j) for j in range(6)], "edit_scores": [0] * len(b.edit_ids)} for i in range(len(b.concepts))]
        found = metric.compute(predictions=rows, references=list(b.concepts), benchmark=b)
        assert {found[name] for name in ("top1", "top5", "ep_top1", "two_afc")} == {100.0}

    def test_wrong_rows_are_named(self, tiny_benchmark: Benchmark) -> None:
        metric = evaluate.load("eeg_editbench", keep_in_memory=True)
        b = tiny_benchmark
        matrices, concepts = random_matrices(b), list(b.concepts)
        rows = rows_of(matrices)
        nan, inf = rows[3]["edit_scores"].copy(), rows[1]["null_scores"].copy()
        nan[[4, 7]], inf[5] = np.nan, -np.inf
        cases: list[tuple[list[dict[str, Any]], list[str], str]] = [
            (rows[:-1], concepts[:-1], "1 of 6 concepts of release 'tiny' have no query, the first is 'concept5'"),
            ([*rows, rows[0]], [*concepts, "concept0"], "rows 0 and 6 are both of concept 'concept0'; give one query a concept"),
            (rows, ["cat", *concepts[1:]], "row 0: concept 'cat' is not in release 'tiny', which has 6 concepts"),
            (
                [*rows[:2], {**rows[2], "edit_scores": [0.0] * 34}, *rows[3:]],
                concepts,
                "row 2 (concept 'concept2'): edit_scores has 34 values, release 'tiny' needs 35",
            ),
            (
                [*rows[:2], {**rows[2], "source_scores": []}, *rows[3:]],
                concepts,
                "row 2 (concept 'concept2'): source_scores has 0 values, release 'tiny' needs 6",
            ),
            (
                [*rows[:3], {**rows[3], "edit_scores": nan}, *rows[4:]],
                concepts,
                f"edit_scores has 2 values that are not finite, the first for query 'concept3' and image {b.edit_ids[4]!r}",
            ),
            (
                [rows[0], {**rows[1], "null_scores": inf}, *rows[2:]],
                concepts,
                "null_scores has 1 values that are not finite, the first for query 'concept1' and image 'concept5'",
            ),
            (
                [{**rows[0], "scores": [1.0]}, *rows[1:]],
                concepts,
                "a row of predictions has the unknown fields ['scores']; it takes ['source_scores', 'edit_scores', 'null_scores']",
            ),
            ([{"source_scores": [0.0] * 6}, *rows[1:]], concepts, "a row of predictions lacks ['edit_scores']; found ['source_scores']"),
            ([{**rows[0], "edit_scores": None}, *rows[1:]], concepts, "a row of predictions lacks ['edit_scores']"),
        ]
        for predictions, references, message in cases:
            with pytest.raises(ValueError) as error:
                metric.compute(predictions=predictions, references=references, benchmark=b)
            assert message in str(error.value)

    def test_a_run_that_failed_leaves_nothing_behind(self, either_metric: Any, tiny_benchmark: Benchmark) -> None:
        b = tiny_benchmark
        matrices, concepts = random_matrices(b), list(b.concepts)
        rows = rows_of(matrices)
        for predictions, references in ((rows[:-1], concepts[:-1]), ([{"source_scores": [0.0]}, *rows[1:]], concepts)):
            with pytest.raises(ValueError):
                either_metric.compute(predictions=predictions, references=references, benchmark=b)
            assert same(either_metric.compute(predictions=rows, references=concepts, benchmark=b)["metrics"], expected(b, matrices))

    def test_a_run_of_another_number_of_references_is_refused(self, metric: Any, tiny_benchmark: Benchmark) -> None:
        with pytest.raises(ValueError):
            metric.compute(predictions=rows_of(random_matrices(tiny_benchmark)), references=["concept0"], benchmark=tiny_benchmark)


class TestBenchmark:
    """Which release is scored."""

    def test_a_folder_and_the_name_at_loading_and_the_sample(self, tiny_release: Path) -> None:
        table = load_benchmark(str(tiny_release))
        matrices = random_matrices(table)
        call = {"predictions": rows_of(matrices), "references": list(table.concepts)}
        by_table = evaluate.load("eeg_editbench").compute(**call, benchmark=table)
        assert evaluate.load("eeg_editbench").compute(**call, benchmark=str(tiny_release)) == by_table
        assert evaluate.load("eeg_editbench").compute(**call, benchmark=tiny_release) == by_table

        sample = load_benchmark("sample")
        matrices = random_matrices(sample)
        call = {"predictions": rows_of(matrices), "references": list(sample.concepts)}
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # asked for by name, the sample is no surprise
            found = evaluate.load("eeg_editbench", "sample").compute(**call)
        assert found["release"] == "sample" and same(found["metrics"], expected(sample, matrices))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert evaluate.load("eeg_editbench").compute(**call) == found
        with pytest.raises(ValueError, match="concept 'concept0' is not in release 'sample'"):
            evaluate.load("eeg_editbench", "sample").compute(predictions=rows_of(random_matrices(table)), references=list(table.concepts))


def planted(b: Benchmark, dim: int = 16) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """EEG, sources and edits (float32): edits lie near their sources, EEG less so."""
    rng = np.random.default_rng(7)
    sources = rng.standard_normal((len(b.concepts), dim), dtype=np.float32)
    near = lambda x, noise: x + noise * rng.standard_normal(x.shape, dtype=np.float32)  # noqa: E731
    return near(sources, 1.0), sources, near(sources[b.query], 0.5)


class TestEmbeddings:
    """`compute_from_embeddings`."""

    @pytest.mark.parametrize(("name", "score"), [("cosine", cosine_scores), ("dot", dot_scores)])
    def test_equals_scores_by_hand(self, metric: Any, tiny_benchmark: Benchmark, name: str, score: Callable[..., np.ndarray]) -> None:
        b, rng = tiny_benchmark, np.random.default_rng(3)
        eeg, sources = (rng.standard_normal((6, 5)) for _ in range(2))
        nulls, edits = sources + 0.3 * rng.standard_normal((6, 5)), sources[b.query] + 0.3 * rng.standard_normal((35, 5))
        by_hand = lambda x, y: x @ y / (np.linalg.norm(x) * np.linalg.norm(y) if name == "cosine" else 1)  # noqa: E731
        matrices = tuple(np.array([[by_hand(x, y) for y in images] for x in eeg]) for images in (sources, edits, nulls))
        for found, images in zip(matrices, (sources, edits, nulls)):
            assert np.allclose(score(eeg, images), found, atol=1e-12, rtol=0)
        result = metric.compute_from_embeddings(eeg, sources, edits, nulls, similarity=name, benchmark=b)
        values = expected(b, matrices)
        assert result["metrics"].keys() == values.keys()
        for label, value in values.items():
            assert result["metrics"][label] == pytest.approx(value, abs=1e-9), label
        rows = rows_of((score(eeg, sources), score(eeg, edits), score(eeg, nulls)))
        assert metric.compute(predictions=rows, references=list(b.concepts), benchmark=b) == result
        without = metric.compute_from_embeddings(eeg, sources, edits, similarity=name, benchmark=b)
        assert "null_top1" not in without and without["top1"] == result["top1"]

    def test_the_query_itself_is_its_own_best_match(self, metric: Any, tiny_benchmark: Benchmark) -> None:
        rng = np.random.default_rng(4)
        sources = rng.standard_normal((6, 32)).astype(np.float32)
        edits = sources[tiny_benchmark.query] + rng.standard_normal((35, 32)).astype(np.float32)
        found = metric.compute_from_embeddings(sources * 7, sources, edits, benchmark=tiny_benchmark)
        assert {found[name] for name in ("top1", "ep_top1", "two_afc")} == {100.0}

    @pytest.mark.parametrize("similarity", ["cosine", "dot"])
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_an_edit_that_changes_nothing_is_a_tie(self, metric: Any, similarity: str, dtype: Any) -> None:
        # Equal embeddings must get equal scores, or the rounding of a matrix product decides what the protocol calls a tie.
        b = load_benchmark("sample")
        rng = np.random.default_rng(5)
        eeg, sources = rng.standard_normal((2, len(b.concepts), 768)).astype(dtype)
        found = metric.compute_from_embeddings(eeg, sources, sources[b.query], similarity=similarity, benchmark=b)
        assert found["ties"]["two_afc"] == len(b.edit_ids) and found["two_afc"] == 0.0

    @pytest.mark.parametrize(
        "convert",
        [
            lambda x: torch.tensor(x, dtype=torch.float64, requires_grad=True),
            lambda x: torch.nn.Parameter(torch.tensor(x)).to(torch.float64) * 1,
            lambda x: x.tolist(),
        ],
    )
    def test_whatever_holds_the_numbers(self, metric: Any, tiny_benchmark: Benchmark, convert: Callable[[np.ndarray], Any]) -> None:
        b, (eeg, sources, edits) = tiny_benchmark, (x.astype(np.float64) for x in planted(tiny_benchmark))
        right = metric.compute_from_embeddings(eeg, sources, edits, benchmark=b)
        assert metric.compute_from_embeddings(convert(eeg), convert(sources), convert(edits), benchmark=b) == right

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
    def test_small_float_types_are_their_values(self, metric: Any, tiny_benchmark: Benchmark, dtype: torch.dtype) -> None:
        b = tiny_benchmark
        tensors = [torch.tensor(x).to(dtype).requires_grad_() for x in planted(b)]
        values = [x.detach().float().numpy() for x in tensors]
        assert metric.compute_from_embeddings(*tensors, benchmark=b) == metric.compute_from_embeddings(*values, benchmark=b)

    def test_ids_put_rows_in_order(self, metric: Any, tiny_benchmark: Benchmark) -> None:
        b, (eeg, sources, edits) = tiny_benchmark, planted(tiny_benchmark)
        right = metric.compute_from_embeddings(eeg, sources, edits, benchmark=b)
        rng = np.random.default_rng(0)
        order = {"eeg": rng.permutation(6), "sources": rng.permutation(6), "edits": rng.permutation(35)}
        arrays = {"eeg": eeg, "sources": sources, "edits": edits}
        shuffled = {name: arrays[name][order[name]] for name in arrays}
        ids = {name: [(b.edit_ids if name == "edits" else b.concepts)[i] for i in order[name]] for name in arrays}
        assert metric.compute_from_embeddings(**shuffled, ids=ids, benchmark=b) == right
        with pytest.raises(ValueError, match="rows are in"):
            metric.compute_from_embeddings(**shuffled, benchmark=b)
        assert metric.compute_from_embeddings(**shuffled, benchmark=b, allow_order=True) != right
        with pytest.raises(ValueError, match="ids of 'edit', and embeddings of eeg, sources, edits; did you mean 'edits'"):
            metric.compute_from_embeddings(**arrays, ids={"edit": b.edit_ids}, benchmark=b)

    @pytest.mark.filterwarnings("error")
    def test_rows_of_scores_in_another_order_are_doubted(self, metric: Any, tiny_benchmark: Benchmark) -> None:
        b, matrices = tiny_benchmark, random_matrices(tiny_benchmark)
        metric.compute(predictions=rows_of(matrices), references=list(b.concepts), benchmark=b)
        mixed = (matrices[0], matrices[1][:, ::-1], matrices[2])
        with pytest.raises(UserWarning, match="scores of edits may be in another order than release 'tiny'"):
            metric.compute(predictions=rows_of(mixed), references=list(b.concepts), benchmark=b)

    def test_eeg_in_another_order_is_doubted(self, metric: Any) -> None:
        b = load_benchmark("sample")
        rng = np.random.default_rng(1)
        sources = rng.standard_normal((9, 64))
        edits = sources[b.query] + 0.5 * rng.standard_normal((len(b.query), 64))
        with pytest.warns(UserWarning, match="EEG rows may be in another order: they fit .* far better reversed"):
            metric.compute_from_embeddings(sources[::-1], sources, edits, benchmark=b)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"sources": np.ones((6, 4))}, "eeg are 5 wide and sources 4: both must be embeddings in one space"),
            ({"eeg": np.ones((6, 5, 1))}, r"eeg has shape \(6, 5, 1\), expected \(rows, dimensions\)"),
            ({"edits": np.ones((34, 5))}, r"edits has 34 rows, release 'tiny' needs 35"),
            ({"eeg": np.ones((5, 5))}, r"eeg has 5 rows, release 'tiny' needs 6"),
            (
                {"edits": np.vstack([np.ones((30, 5)), np.zeros((5, 5))])},
                "edits: 5 rows have no direction .*, the first is row 30",
            ),
            ({"eeg": np.vstack([np.ones((2, 5)), np.full((4, 5), np.nan)])}, "eeg: 4 rows are not finite, the first is row 2"),
            (
                {"sources": np.vstack([np.full((1, 5), np.inf), np.ones((5, 5))])},
                "sources: 1 rows are not finite, the first is row 0",
            ),
            ({"eeg": np.full((6, 5), 1e30, np.float32)}, "eeg: 6 rows have no direction"),
            ({"eeg": np.ones((6, 5), complex)}, "eeg holds complex128: embeddings are real numbers"),
            ({"edits": np.ones((35, 5), bool)}, "edits holds bool"),
            ({"sources": np.full((6, 5), "a")}, "sources holds <U1"),
            ({"sources": np.full((6, 5), None)}, "sources holds object"),
            ({"sources": [[1.0], [1.0, 2.0]]}, "sources cannot be read as an array"),
            ({"eeg": torch.ones(6, 5, dtype=torch.complex64)}, "eeg holds complex64"),
            ({"similarity": "euclid"}, r"similarity must be one of \['cosine', 'dot'\], found 'euclid'"),
        ],
    )
    def test_wrong_embeddings_are_named(self, metric: Any, tiny_benchmark: Benchmark, changes: dict[str, Any], message: str) -> None:
        ones = {"eeg": np.ones((6, 5)), "sources": np.ones((6, 5)), "edits": np.ones((35, 5))}
        with pytest.raises(ValueError, match=message):
            metric.compute_from_embeddings(**{**ones, **changes}, benchmark=tiny_benchmark)

    def test_an_infinite_dot_product_is_found(self, metric: Any, tiny_benchmark: Benchmark) -> None:
        large = np.full((6, 5), 1e25, np.float32)
        with np.errstate(over="ignore"), pytest.raises(ValueError, match="source_scores has 36 values that are not finite"):
            metric.compute_from_embeddings(large, large, np.ones((35, 5)), similarity="dot", benchmark=tiny_benchmark)


def scores_of_two_processes(matrices: Matrices, table: Benchmark, folder: str) -> None:
    """What a user's script does on every process: its share of the queries, gathered, scored on the main process."""
    accelerator = accelerate.Accelerator(cpu=True)
    assert accelerator.num_processes == 2
    queries = torch.utils.data.DataLoader(list(range(len(table.concepts))), batch_size=2)
    queries = accelerator.prepare(queries)
    metric = evaluate.load("eeg_editbench", experiment_id=f"process-{accelerator.process_index}")
    rows = rows_of(matrices)
    for batch in queries:
        mine = [(rows[i], table.concepts[i]) for i in batch.tolist()]
        gathered = accelerator.gather_for_metrics(mine, use_gather_object=True)
        if accelerator.is_main_process:
            metric.add_batch(predictions=[row for row, _ in gathered], references=[concept for _, concept in gathered])
    if accelerator.is_main_process:
        (Path(folder) / "found.json").write_text(json.dumps(metric.compute(benchmark=table)))


def test_two_processes_give_what_one_gives(metric: Any, tmp_path: Path, make_release: Callable[..., Path], launch_two: Any) -> None:
    # Seven queries in batches of two over two processes: the last batch is padded, and its copies must not be scored.
    b = load_benchmark(str(make_release(tmp_path / "seven", concepts=7)))
    matrices = random_matrices(b)
    launch_two(scores_of_two_processes, (matrices, b, str(tmp_path)))
    one = metric.compute(predictions=rows_of(matrices), references=list(b.concepts), benchmark=b)
    assert json.loads((tmp_path / "found.json").read_text()) == json.loads(json.dumps(one))
