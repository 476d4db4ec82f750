"""Tables: columns and rows once, shown in a terminal, as Markdown, HTML, CSV, LaTeX or a data frame; and the one place that writes numbers."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from markupsafe import Markup
from rich.table import Table as RichTable
from rich.text import Text

from .html import render

if TYPE_CHECKING:
    import pandas as pd

    from .records import Metric

ABSENT = "–"
Ends = tuple[float, float]
Spread = Literal["ci95", "sd", "sem"]
Cell = Any  # str, int, float, None or Estimate
_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "±": r"$\pm$", "−": r"$-$", "–": "--", "ρ": r"$\rho$", "\n": " ",
}  # fmt: skip


class Estimate(NamedTuple):
    """A number with what is known of its spread; `value` is None where it could not be scored."""

    value: float | None
    ci95: Ends | None = None
    sd: float | None = None
    sem: float | None = None


def estimate(metric: Metric) -> Estimate:
    """A number of a record; an SD of one subject or unit says nothing and is left out."""
    return Estimate(metric.value, metric.ci95, metric.sd if metric.n > 1 else None)


def digits_of(unit: str) -> int:
    """Digits after the point that the papers give a number of this unit."""
    return 1 if unit in ("percent", "percentage points", "rank") else 3


class Format(NamedTuple):
    """How a number is written.

    Attributes:
        digits: after the point. spread: what stands behind the value, the first of these that it has. signed: a plus before positive values.
        missing: in place of no value. minus: the sign before negative values.
    """

    digits: int = 3
    spread: tuple[Spread, ...] = ()
    signed: bool = False
    missing: str = ABSENT
    minus: str = "-"

    def text(self, cell: Cell) -> str:
        """A cell in words: text and whole numbers as they are, other numbers rounded, nothing for what is not a finite number."""
        if isinstance(cell, Estimate):
            return self._number(cell.value) + ("" if _absent(cell.value) else self._spread(cell))
        if cell is not None and (not isinstance(cell, Real) or isinstance(cell, Integral)):
            return str(cell)
        return self._number(None if cell is None else float(cell))

    def interval(self, ends: Ends | None) -> str:
        """``[low, high]``."""
        return self.missing if ends is None else f"[{self._number(ends[0])}, {self._number(ends[1])}]"

    def _number(self, value: float | None) -> str:
        if value is None or _absent(value):
            return self.missing
        return f"{value:{'+' if self.signed else ''}.{self.digits}f}".replace("-", self.minus)

    def _spread(self, cell: Estimate) -> str:
        for name in self.spread:
            if name == "ci95" and cell.ci95 is not None:
                return f" {self.interval(cell.ci95)}"
            width = cell.sd if name == "sd" else cell.sem if name == "sem" else None
            if not _absent(width):
                return f" ± {self._replace(signed=False)._number(width)}"
        return ""


PLAIN = Format()


class Column(NamedTuple):
    """A column; by default the first is to the left, others to the right. `wrap`: cells may take several lines. `code`: names to type."""

    title: str
    format: Format = PLAIN
    justify: Literal["left", "right"] | None = None
    wrap: bool = False
    code: bool = False


@dataclass(frozen=True)
class Table:
    """Rows under columns.

    Attributes:
        columns: `Column` or its title alone. rows: cells of text, numbers, None or `Estimate`; the first of each names it.
        title: above. caption: what the numbers are, in HTML. notes: lines below.
        best: cells (row, column) that stand out. quiet: rows that stand back. sections: titles by the row that they stand before.

    Raises:
        ValueError: a row has not as many cells as there are columns.
    """

    columns: Sequence[Any]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    caption: str = ""
    notes: Sequence[str] = ()
    best: Collection[tuple[int, int]] = ()
    quiet: Collection[int] = ()
    sections: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        columns = tuple(Column(c) if isinstance(c, str) else c for c in self.columns)
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "rows", tuple(tuple(row) for row in self.rows))
        for i, row in enumerate(self.rows):
            if len(row) != len(columns):
                raise ValueError(f"table {self.title!r}: row {i} has {len(row)} cells for {len(columns)} columns: {row}")

    @property
    def heads(self) -> tuple[Column, ...]:
        """The columns."""
        return tuple(self.columns)

    def text(self) -> list[list[str]]:
        """Cells as text, in the format of their columns."""
        return [[column.format.text(cell) for column, cell in zip(self.heads, row)] for row in self.rows]

    def justified(self, j: int) -> Literal["left", "right"]:
        """Where the cells of column `j` stand."""
        return self.heads[j].justify or ("right" if j else "left")

    # ---------------------------------------------------------------------------------------------------------------------- terminal

    def rich(self, *, box: bool = True) -> RichTable:
        """For a terminal; a heading of two parts (``2AFC: Overall``) takes two lines."""
        look: dict[str, Any] = {} if box else {"box": None, "header_style": "bold", "padding": (0, 1, 0, 0)}
        shown = RichTable(
            title=Text(self.title) if self.title else None,
            title_justify="left",
            caption=Text("\n".join(self.notes)) if self.notes else None,
            caption_justify="left",
            show_header=any(column.title for column in self.heads),
            **look,
        )
        for j, column in enumerate(self.heads):
            shown.add_column(
                Text(_two_lines(column.title)),
                justify=self.justified(j),
                no_wrap=not column.wrap,
                overflow="fold",
                min_width=7 * column.wrap,
            )
        for i, row in enumerate(self.text()):
            if i in self.sections:
                shown.add_section()
            shown.add_row(
                *(Text(cell, style="bold" if (i, j) in self.best else "") for j, cell in enumerate(row)),
                style="dim" if i in self.quiet else None,
            )
        return shown

    def __rich__(self) -> RichTable:
        return self.rich()

    def cut(self, width: int) -> list[Table]:
        """The table as several that are no wider than a terminal of `width` characters, cut between columns; each has the first column."""
        padding, text = 3, self.text()
        widths = [
            max(len(line) for cell in (_two_lines(column.title), *(row[j] for row in text)) for line in cell.split("\n"))
            for j, column in enumerate(self.heads)
        ]
        parts: list[list[int]] = [[]]
        for j in range(1, len(widths)):
            if parts[-1] and widths[0] + sum(widths[k] + padding for k in (*parts[-1], j)) + padding + 1 > width:
                parts.append([])
            parts[-1].append(j)
        return [self._part([0, *part], first=part is parts[0], last=part is parts[-1]) for part in parts]

    def _part(self, chosen: Sequence[int], *, first: bool, last: bool) -> Table:
        place = {j: k for k, j in enumerate(chosen)}
        return replace(
            self,
            columns=[self.heads[j] for j in chosen],
            rows=[[row[j] for j in chosen] for row in self.rows],
            title=self.title + ("" if first else " (continued)"),
            notes=self.notes if last else (),
            best={(i, place[j]) for i, j in self.best if j in place},
        )

    # ------------------------------------------------------------------------------------------------------------------------- files

    def markdown(self) -> str:
        """Title, table and notes as Markdown."""
        heads = [_markdown(column.title) for column in self.heads]
        rules = ["---:" if self.justified(j) == "right" else "---" for j in range(len(heads))]
        lines = [f"# {_markdown(self.title)}", ""] if self.title else []
        lines += [_line(heads), _line(rules)]
        for i, row in enumerate(self.text()):
            if i in self.sections:
                lines.append(_line([f"*{_markdown(self.sections[i])}*", *[""] * (len(row) - 1)]))
            cells = (_code(cell) if self.heads[j].code else _markdown(cell) for j, cell in enumerate(row))
            lines.append(_line(f"**{cell}**" if (i, j) in self.best else cell for j, cell in enumerate(cells)))
        return "\n".join([*lines, *(["", *(f"- {_markdown(note)}" for note in self.notes)] if self.notes else []), ""])

    def html(self, css: str = "") -> Markup:
        """A table element of the class `css`, with the caption; everything is escaped."""
        headed = any(column.title for column in self.heads)
        return render("core/templates/table.html", table=self, columns=self.heads, rows=self.text(), headed=headed, css=css)

    def csv(self) -> str:
        """Titles and rows; numbers in full, None empty, and an apostrophe before text that a spreadsheet would run as a formula."""
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([_no_formula(column.title) for column in self.heads])
        writer.writerows([_no_formula(_value(cell)) for cell in row] for row in self.rows)
        return text.getvalue()

    def latex(self) -> str:
        """A ``table`` of LaTeX with the rules of booktabs; title and notes are its caption."""
        layout = "".join(self.justified(j)[0] for j in range(len(self.heads)))
        caption = " ".join(filter(None, [f"{self.title}." if self.title else "", *self.notes]))
        lines = [r"\begin{table}", r"\centering", *([rf"\caption{{{_latex(caption)}}}"] if caption else [])]
        lines += [rf"\begin{{tabular}}{{{layout}}}", r"\toprule", _row(_latex(column.title) for column in self.heads), r"\midrule"]
        for i, row in enumerate(self.text()):
            if i in self.sections:
                lines += [r"\midrule", rf"\multicolumn{{{len(row)}}}{{l}}{{\emph{{{_latex(self.sections[i])}}}}} \\"]
            lines.append(_row(rf"\textbf{{{_latex(cell)}}}" if (i, j) in self.best else _latex(cell) for j, cell in enumerate(row)))
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])

    def frame(self) -> pd.DataFrame:
        """A data frame of the cells, numbers in full; of an `Estimate` its value."""
        import pandas as pd

        return pd.DataFrame([[_value(cell) for cell in row] for row in self.rows], columns=[column.title for column in self.heads])


def from_dicts(rows: Sequence[Mapping[str, Cell]], title: str = "") -> Table:
    """A table of rows that all have the same keys, which are the titles of the columns; at least one row.

    Raises:
        ValueError: the keys of a row differ from those of the first.
    """
    keys = list(rows[0])
    for i, row in enumerate(rows):
        if set(row) != set(keys):
            raise ValueError(f"table {title!r}: row {i} has the keys {sorted(row)}, the first has {sorted(keys)}")
    return Table(keys, [[row[key] for key in keys] for row in rows], title=title)


def _absent(value: float | None) -> bool:
    return value is None or not math.isfinite(value)


def _value(cell: Cell) -> Any:
    return cell.value if isinstance(cell, Estimate) else cell


def _no_formula(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    guarded = f"'{value}" if value.startswith(("=", "+", "-", "@", "\t", "\r")) and not _is_number(value) else value
    return guarded.replace("\r\n", "\n").replace("\r", "\n")  # a bare CR would not be quoted and would end the row


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _two_lines(heading: str) -> str:
    return heading.replace(": ", "\n")


def _line(cells: Any) -> str:
    return "| " + " | ".join(cells) + " |"


def _row(cells: Any) -> str:
    return " & ".join(cells) + r" \\"


def _markdown(text: str) -> str:
    return re.sub(r"([|<`*\\])", r"\\\1", text).replace("\n", " ")


def _code(text: str) -> str:
    return "`" + text.replace("`", "'").replace("|", "\\|").replace("\n", " ") + "`"


def _latex(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in text)
