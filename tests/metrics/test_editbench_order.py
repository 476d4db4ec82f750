"""Rows in another order: what images say of it, and what ids do."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from decodehub.metrics.eeg_editbench.benchmark import Benchmark, export_stem, make_benchmark
from decodehub.metrics.eeg_editbench.order import (
    AS_GIVEN,
    RowOrderError,
    _orders,
    by_ids,
    check_row_order,
    column_order,
    query_order,
    row_order,
)

Images = tuple[np.ndarray, np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def benchmark() -> Benchmark:
    """40 concepts with 5 to 9 edits each, whose names do not sort as they stand; identity edits have targets."""
    names = [f"c{(7 * i) % 40}" for i in range(40)]
    edits = [
        {
            "edit_id": f"{name}-{family}-{k}",
            "concept": name,
            "family": family,
            "target_concept": names[(i + k + 1) % 40] if family == "identity" else None,
        }
        for i, name in enumerate(names)
        for family, n in (("identity", 2), ("attribute", 1 + i % 5), ("removal", 2))
        for k in range(n)
    ]
    return make_benchmark("planted", [{"concept": name, "source_category": "x"} for name in names], edits)


def images(b: Benchmark, seed: int = 0, dim: int = 64, noise: float = 0.7) -> Images:
    """Edits near their sources, identity edits nearer to their targets, null edits nearest."""
    rng = np.random.default_rng(seed)
    sources = rng.standard_normal((len(b.concepts), dim)) + 5  # the mean says nothing
    near = np.where(b.target[:, None] >= 0, 0.3 * sources[b.query] + 0.7 * sources[b.target], sources[b.query])
    return (
        sources,
        near + noise * rng.standard_normal((len(b.query), dim)),
        sources + 0.1 * rng.standard_normal(sources.shape),
    )


@pytest.mark.parametrize("seed", range(3))
def test_rows_in_order_pass_without_a_word(benchmark: Benchmark, seed: int) -> None:
    sources, edits, nulls = images(benchmark, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        words = check_row_order(benchmark, sources, edits, nulls)
        scale = np.random.default_rng(seed).uniform(0.1, 10, (len(edits), 1))
        check_row_order(benchmark, sources - 5, (edits - 5) * scale, nulls - 5)  # the length of an embedding says nothing
    assert words.startswith("rows as given: ") and "% of nulls lie nearest to their own source (random order: 2.5 %)" in words
    assert row_order(benchmark, sources, edits)["edits"].better is None


@pytest.mark.parametrize("name", ["reversed", "one row too late", "one row too early", "sorted by id"])
def test_another_order_is_refused_and_named(benchmark: Benchmark, name: str) -> None:
    b, (sources, edits, nulls) = benchmark, images(benchmark)
    wrong_edits, wrong_concepts = _orders(b.edit_ids)[name], _orders(b.concepts)[name]
    for given, who in (
        ((sources, edits[wrong_edits], nulls), f"edits {name}"),
        ((sources[wrong_concepts], edits, nulls), f"sources {name}"),
        ((sources, edits, nulls[wrong_concepts]), f"nulls {name}"),
        ((sources[wrong_concepts], edits[wrong_edits], nulls), f"sources {name} and edits {name}"),
    ):
        with pytest.raises(RowOrderError, match=f"rows are in another order: .*% if they are {who}: give ids beside the arrays"):
            check_row_order(b, *given)
        assert "order allowed by name" in check_row_order(b, *given, allow=True)


def test_families_one_after_another_are_refused(benchmark: Benchmark) -> None:
    sources, edits, _ = images(benchmark)
    with pytest.raises(RowOrderError, match="if they are edits in families"):
        check_row_order(benchmark, sources, edits[np.argsort(benchmark.family.astype(str), kind="stable")])


@pytest.mark.parametrize("seed", range(5))
def test_shuffled_rows_are_refused(benchmark: Benchmark, seed: int) -> None:
    sources, edits, nulls = images(benchmark, seed)
    rng = np.random.default_rng(seed)
    with pytest.raises(RowOrderError, match=r"edits and sources: nothing shows that rows are in order: \d\.\d % of edits"):
        check_row_order(benchmark, sources, rng.permutation(edits))
    with pytest.raises(RowOrderError, match="nulls and sources: nothing shows"):
        check_row_order(benchmark, sources, edits, rng.permutation(nulls))
    fit = row_order(benchmark, sources, rng.permutation(edits))["edits"]
    assert abs(fit.share - fit.chance) < 0.06, "chance is what a random order gives"


def test_an_encoder_that_maps_edits_away_needs_a_word_or_ids(benchmark: Benchmark) -> None:
    rng = np.random.default_rng(0)
    sources, edits = rng.standard_normal((40, 16)), rng.standard_normal((len(benchmark.query), 16))
    with pytest.raises(RowOrderError, match=r"--allow-order, allow_order=True"):
        check_row_order(benchmark, sources, edits)
    assert check_row_order(benchmark, sources, edits, allow=True).startswith("rows as given, order allowed by name: ")
    with pytest.warns(UserWarning, match="rows may be in another order"):
        assert check_row_order(benchmark, sources, edits, by_ids=True).startswith("rows put in order by ids: ")


@pytest.mark.parametrize("dim", [8, 32])
def test_a_random_encoder_passes(benchmark: Benchmark, dim: int) -> None:
    sources, edits, nulls = images(benchmark, dim=512, noise=0.3)
    matrix = np.random.default_rng(1).standard_normal((512, dim))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a doubt is right where few dimensions are left
        check_row_order(benchmark, sources @ matrix, edits @ matrix, nulls @ matrix)


def test_an_encoder_that_sees_nothing_is_refused(benchmark: Benchmark) -> None:
    with pytest.raises(RowOrderError, match="nothing shows"):
        check_row_order(benchmark, np.ones((40, 4)), np.ones((len(benchmark.query), 4)))


def test_columns_of_scores_say_the_same_even_of_noise(benchmark: Benchmark) -> None:
    sources, edits, nulls = images(benchmark)
    queries = np.random.default_rng(2).standard_normal((40, 64))  # EEG that knows nothing
    assert column_order(benchmark, queries @ sources.T, queries @ edits.T, queries @ nulls.T) is None
    doubt = column_order(benchmark, queries @ sources.T, queries @ edits[::-1].T, None)
    assert doubt is not None and doubt.endswith("if they are edits reversed")


@pytest.mark.parametrize("name", ["reversed", "one row too late", "one row too early", "sorted by id"])
def test_eeg_in_another_order_is_named(benchmark: Benchmark, name: str) -> None:
    rng = np.random.default_rng(3)
    sources = rng.standard_normal((40, 32))
    eeg = sources + 2 * rng.standard_normal(sources.shape)
    assert query_order(benchmark, eeg @ sources.T) is None
    assert query_order(benchmark, eeg[_orders(benchmark.concepts)[name]] @ sources.T) == name


def test_eeg_of_noise_raises_no_doubt(benchmark: Benchmark) -> None:
    rng = np.random.default_rng(4)
    for _ in range(200):
        assert query_order(benchmark, rng.standard_normal((40, 8)) @ rng.standard_normal((8, 40)) + rng.standard_normal(40)) is None
    assert query_order(benchmark, np.zeros((40, 40))) is None and AS_GIVEN in _orders("ab")


class TestIds:
    """`by_ids`."""

    def test_rows_come_back_in_order(self, benchmark: Benchmark) -> None:
        rows = np.arange(40.0)[:, None]
        order = np.random.default_rng(0).permutation(40)
        names = np.array(benchmark.concepts)
        files = [f"images/sources/{export_stem(i, names[i])}.jpg" for i in order]
        for ids in (
            names[order].tolist(),
            [x.encode() for x in names[order]],
            names[order],
            files,
            [f.rsplit("/", 1)[1][:-4] for f in files],
        ):
            assert np.array_equal(by_ids(rows[order], ids, benchmark.concepts, "X", "r"), rows)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda ids: [*ids[:3], "c0x", *ids[4:]], r"X: id 'c0x' of row 3 is not in release 'r'; did you mean 'c0'\?"),
            (lambda ids: [*ids[:3], ids[0], *ids[4:]], "X: id 'c0' is in rows 0 and 3"),
            (lambda ids: ids[:-1], "X has 40 rows and 39 ids: give one id a row"),
        ],
    )
    def test_wrong_ids_are_named(self, benchmark: Benchmark, change: object, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            by_ids(np.zeros((40, 2)), change(list(benchmark.concepts)), benchmark.concepts, "X", "r")  # type: ignore[operator]

    def test_missing_ids_are_named(self, benchmark: Benchmark) -> None:
        with pytest.raises(ValueError, match="X lacks 2 of the 40 ids of release 'r', the first is 'c26'"):
            by_ids(np.zeros((38, 2)), benchmark.concepts[:-2], benchmark.concepts, "X", "r")
