"""The table object: every form shows the same cells, nothing of a cell becomes code, and numbers are written in one place."""

from __future__ import annotations

import csv
import html.parser
import io
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from decodehub.core.records import Metric
from decodehub.core.tables import Column, Estimate, Format, Table, digits_of, estimate, from_dicts

HOSTILE = "<script>alert(1)</script> | `x` & \\textbf{y} [red]z[/red] $1 _a_ 5%"
cells = st.one_of(st.text(max_size=12), st.integers(-99, 99), st.floats(allow_infinity=False), st.none())


class Words(html.parser.HTMLParser):
    """Text of the cells of a table, and its tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.tags: set[str] = set()
        self.open = False
        self.feed(str(page))

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        self.open = tag in ("td", "th")
        if self.open:
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        self.open = False

    def handle_data(self, data: str) -> None:
        if self.open:
            self.cells[-1] += data


def printed(table: Table, width: int = 400, **options: bool) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(table.rich(**options))
    return out.getvalue()


class TestNumbers:
    """`Format`."""

    @pytest.mark.parametrize(
        ("form", "cell", "text"),
        [
            (Format(), 0.12345, "0.123"),
            (Format(1), 19.45, f"{19.45:.1f}"),
            (Format(), None, "–"),
            (Format(missing="not scored"), Estimate(None, (0, 1)), "not scored"),
            (Format(), math.nan, "–"),
            (Format(), np.float32(0.5), "0.500"),
            (Format(), np.int64(7), "7"),
            (Format(), True, "True"),
            (Format(), "as it is", "as it is"),
            (Format(spread=("ci95",)), Estimate(0.5, (0.4, 0.6), 0.1), "0.500 [0.400, 0.600]"),
            (Format(1, ("ci95", "sd")), Estimate(50.0, None, 5.0), "50.0 ± 5.0"),
            (Format(spread=("sem",)), Estimate(0.5, sem=math.nan), "0.500"),
            (Format(), Estimate(0.5, (0.4, 0.6), 0.1, 0.2), "0.500"),
            (Format(2, ("ci95",), signed=True), Estimate(-1.0, (-2.0, 1.0)), "-1.00 [-2.00, +1.00]"),
            (Format(2, ("sd",), signed=True, minus="−"), Estimate(-1.0, sd=2.0), "−1.00 ± 2.00"),
        ],
    )
    def test_a_cell(self, form: Format, cell: object, text: str) -> None:
        assert form.text(cell) == text

    def test_an_interval(self) -> None:
        assert Format(1).interval((1, 2)) == "[1.0, 2.0]" and Format().interval(None) == "–"

    def test_one_subject_has_no_spread(self) -> None:
        metric = Metric(name="x", value=1.0, unit="percent", higher_is_better=None, n=1)
        assert estimate(metric).sd is None and estimate(metric.model_copy(update={"n": 2, "sd": 0.0})).sd == 0.0

    def test_digits_of_units(self) -> None:
        assert [digits_of(unit) for unit in ("percent", "percentage points", "rank", "score", "correlation")] == [1, 1, 1, 3, 3]


class TestForms:
    """One table in every form."""

    def test_rows_and_columns_agree(self) -> None:
        with pytest.raises(ValueError, match=r"'numbers': row 1 has 1 cells for 2 columns: \('b',\)"):
            Table(["x", "y"], [["a", 1], ["b"]], title="numbers")
        with pytest.raises(ValueError, match="row 1 has the keys"):
            from_dicts([{"a": 1}, {"a": 1, "b": 2}])

    @given(st.lists(st.tuples(st.text(max_size=8), cells, cells), min_size=1, max_size=5))
    def test_html_and_csv_hold_the_cells(self, rows: list[tuple[object, ...]]) -> None:
        table = Table(["name", "x", "y"], rows)
        words = Words(table.html()).cells[3:]
        plain = lambda text: "".join(c if c.isprintable() or c in "\n\t" else " " for c in text)  # noqa: E731
        assert words == [plain(cell) for row in table.text() for cell in row]
        read = list(csv.reader(io.StringIO(table.csv(), newline="")))[1:]
        assert len(read) == len(rows)
        for line, row in zip(read, rows):
            for text, cell in zip(line, row):
                if isinstance(cell, float):
                    assert float(text) == cell or math.isnan(cell)
                else:
                    assert text.removeprefix("'") == (
                        "" if cell is None else str(cell).replace("\r\n", "\n").replace("\r", "\n").removeprefix("'")
                    )

    def test_foreign_text_stays_text(self) -> None:
        table = Table(
            [HOSTILE, "n"], [[HOSTILE, 1], ["b", HOSTILE]], title=HOSTILE, caption=HOSTILE, notes=[HOSTILE], sections={1: HOSTILE}
        )
        words = Words(table.html())
        assert "script" not in words.tags and words.cells.count(HOSTILE) == 4
        lines = table.markdown().replace("\\<", "").splitlines()
        assert not any("<script" in line for line in lines)
        assert all(line.replace("\\|", "").count("|") == 3 for line in lines if line.startswith("| "))
        assert printed(table).count(HOSTILE) >= 4  # no markup of rich, nothing lost
        text = table.latex()
        assert "\\textbackslash{}textbf\\{y\\}" in text and "\\$1" in text and "5\\%" in text and "\\_a\\_" in text

    def test_no_formula_in_csv(self) -> None:
        rows = list(csv.reader(io.StringIO(Table(["a", "b"], [["=1+1", "-1.5"], ["@x", -2.5], ["+", "\tx"]]).csv())))
        assert rows[1:] == [["'=1+1", "-1.5"], ["'@x", "-2.5"], ["'+", "'\tx"]]

    def test_markdown(self) -> None:
        table = Table(
            [Column("name", code=True), "x", Column("why", justify="left")],
            [["a|b", 0.5, "p"], ["c", None, "q"]],
            title="T",
            notes=["n"],
            best={(0, 1)},
            sections={1: "others"},
        )
        assert table.markdown() == (
            "# T\n\n| name | x | why |\n| --- | ---: | --- |\n| `a\\|b` | **0.500** | p |\n| *others* |  |  |\n| `c` | – | q |\n\n- n\n"
        )

    def test_latex_is_balanced(self) -> None:
        table = Table(["m", "x"], [["a", Estimate(1.0, sd=2.0)], ["b", 0.5]], title="T", notes=["Note."], best={(1, 1)}, sections={1: "S"})
        lines = table.latex().splitlines()
        assert [line for line in lines if line.startswith(r"\begin")] == [r"\begin{table}", r"\begin{tabular}{lr}"]
        assert sum(line.startswith((r"\toprule", r"\midrule", r"\bottomrule")) for line in lines) == 4
        assert r"\caption{T. Note.}" in lines and r"b & \textbf{0.500} \\" in lines

    def test_frame_has_numbers_in_full(self) -> None:
        frame = Table(["m", "x"], [["a", Estimate(1 / 3, (0, 1))], ["b", None]]).frame()
        assert list(frame.columns) == ["m", "x"] and frame["x"][0] == 1 / 3 and frame["x"].isna()[1]

    @pytest.mark.parametrize("width", [24, 40, 200])
    def test_cut_between_columns(self, width: int) -> None:
        table = Table(
            ["model", *(f"group: c{i}" for i in range(6))],
            [["long name", *(i / 7 for i in range(6))]],
            title="T",
            notes=["note"],
            best={(0, 4)},
        )
        parts = table.cut(width)
        assert (len(parts) == 1) == (width == 200)
        assert [c.title for p in parts for c in p.heads[1:]] == [c.title for c in table.heads[1:]]
        assert [bool(p.notes) for p in parts] == [False] * (len(parts) - 1) + [True]
        assert [p.title for p in parts] == ["T"] + ["T (continued)"] * (len(parts) - 1)
        assert [p.rows[0][j] for p in parts for _, j in p.best] == [3 / 7]
        shown = "".join(printed(part, width) for part in parts)
        assert "…" not in shown and all(f"{i / 7:.3f}" in shown for i in range(6))
