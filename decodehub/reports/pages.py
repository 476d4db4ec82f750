"""What the self-contained HTML pages of records share: writing them, colors, plots as SVG, images as data URLs."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import matplotlib
from markupsafe import Markup

from decodehub.core.files import write_bytes
from decodehub.core.html import render
from decodehub.core.records import ResultRecord
from decodehub.core.tables import Column, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, ACCENT, SECOND = "#1b2733", "#6aa9bd", "#c8702a"


class Plot(NamedTuple):
    """A figure of a page: title, what it shows, and the plot (`svg`)."""

    title: str
    caption: str
    svg: Markup


def write_page(path: Path, template: str, /, **values: Any) -> None:
    """Write a page of one of the templates beside this module; it needs no other file and no network."""
    write_bytes(path, render(f"reports/templates/{template}", **values).encode())


def plural(n: int, noun: str) -> str:
    """``1 subject``, ``2 subjects``."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def data_url(data: bytes) -> str:
    """A PNG or JPEG file within a page."""
    kind = "png" if data.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def plain_axes(axis: Axes, grid: Literal["both", "x", "y"] = "both") -> None:
    """The look of plots on pages: no box, and a faint grid."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8.5, length=0)
    axis.grid(axis=grid, color="#e4e8ec", lw=0.8, zorder=0)


def svg(figure: Figure, *, transparent: bool = False) -> Markup:
    """A matplotlib figure as an SVG element, equal text for equal figures. Matplotlib escapes the text in it."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "decodehub"}):
        figure.savefig(buffer, format="svg", bbox_inches="tight", transparent=transparent, metadata={"Date": None})
    return Markup(buffer.getvalue().split("?>", 1)[-1].split('.dtd">', 1)[-1])


def facts(rows: Mapping[str, object]) -> Table:
    """A table of names and what is stated, without headings."""
    return Table(["", Column("", justify="left")], list(rows.items()))


def provenance(record: ResultRecord, rows: Mapping[str, object]) -> Table:
    """How a record was made: `rows` of its benchmark, then what all records state."""
    made = record.environment
    command = {"command": str(made["command"])} if made.get("command") else {}
    return facts({**rows, **command, "environment": environment_text(made), "made": record.created})


def environment_text(made: Mapping[str, Any]) -> str:
    """Versions of Python and of the packages."""
    return f"Python {made.get('python')}, " + ", ".join(f"{k} {v}" for k, v in made.get("packages", {}).items())
