"""What the self-contained HTML pages of records share: the page itself, colours, tables, plots as SVG, images as data URLs."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from decodehub.core.records import ResultRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, ACCENT, SECOND = "#1b2733", "#6aa9bd", "#c8702a"
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>
<style>
:root { color: #1b2733; background: #fff; font: 15px/1.5 system-ui, sans-serif }
body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin: 0 0 .4rem }
.warn { background: #fff3e0; border-left: 4px solid #c8702a; padding: .6rem .9rem }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto }
caption { text-align: left; color: #6b7785; padding-bottom: .4rem }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid #e4e8ec; vertical-align: top; overflow-wrap: anywhere }
th[scope=row] { min-width: 7rem } td { font-variant-numeric: tabular-nums } .headline td { white-space: nowrap }
figure { margin: 1.6rem 0; display: inline-block; vertical-align: top; max-width: 100% } figure svg { max-width: 100%; height: auto }
figcaption { color: #6b7785; font-size: .85rem; max-width: 30rem }
.gallery { list-style: none; padding: 0; display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: 1.1rem }
.pair { display: flex; gap: .3rem } .pair img { width: 50%; border-radius: 4px }
code { background: #f2f4f6; padding: .1rem .3rem; border-radius: 3px }
</style></head><body>
{body}
</body></html>
"""


def page(title: str, parts: Iterable[str]) -> bytes:
    """A page that needs no other file and no network; `title` is text, the parts are HTML, empty ones are left out."""
    places = {"{title}": esc(title), "{body}": "\n".join(part for part in parts if part)}
    return re.sub(r"\{title\}|\{body\}", lambda place: places[place[0]], _PAGE).encode()


def esc(text: str) -> str:
    """Text for HTML, also within an attribute."""
    return html.escape(text, quote=True)


def plural(n: int, noun: str) -> str:
    """``1 subject``, ``2 subjects``."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def warning(text: str) -> str:
    """A banner of HTML, nothing for no text."""
    return f'<p class="warn">{text}</p>' if text else ""


def table_rows(rows: Iterable[Sequence[str]]) -> str:
    """Rows of a table, of text; the first cell of each is its heading."""
    return "".join(f"<tr><th scope=row>{esc(row[0])}</th>{''.join(f'<td>{esc(c)}</td>' for c in row[1:])}</tr>" for row in rows)


def table(header: Sequence[str], rows: Iterable[Sequence[str]], caption: str, tag: str = "<table>") -> str:
    """A table of text; `tag` opens it."""
    head = "".join(f"<th scope=col>{esc(h)}</th>" for h in header)
    return f"{tag}<caption>{esc(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{table_rows(rows)}</tbody></table>"


def gallery(title: str, text: str, alts: tuple[str, str], cards: Iterable[tuple[bytes, bytes, str]]) -> str:
    """A section of pairs of images (PNG or JPEG bytes; `alts` says what the two are), each above some HTML, below a line of text."""
    shown = ""
    for left, right, below in cards:
        images = "".join(f'<img src="{data_url(data)}" alt="{esc(alt)}">' for alt, data in zip(alts, (left, right)))
        shown += f"<li><div class=pair>{images}</div>{below}</li>"
    return f"<section><h2>{esc(title)}</h2><p>{esc(text)}</p>{f'<ul class=gallery>{shown}</ul>' if shown else ''}</section>"


def data_url(data: bytes) -> str:
    """A PNG or JPEG file within a page."""
    kind = "png" if data.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def plain_axes(axis: Axes, grid: Literal["both", "x", "y"] = "both") -> None:
    """The look of plots on pages: no box, and a faint grid."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8.5, length=0)
    axis.grid(axis=grid, color="#e4e8ec", lw=0.8, zorder=0)


def svg(figure: Figure, *, transparent: bool = False) -> str:
    """A matplotlib figure as an SVG element, equal text for equal figures; the figure is closed."""
    import matplotlib.pyplot as plt

    buffer = io.StringIO()
    with plt.rc_context({"svg.hashsalt": "decodehub"}):
        figure.savefig(buffer, format="svg", bbox_inches="tight", transparent=transparent, metadata={"Date": None})
    plt.close(figure)
    return buffer.getvalue().split("?>", 1)[-1].split('.dtd">', 1)[-1]


def provenance(record: ResultRecord, rows: Mapping[str, str], tag: str = "<table>") -> str:
    """The section on how a record was made: `rows` of its benchmark, then what all records state; `tag` opens the table."""
    made = record.environment
    packages = ", ".join(f"{k} {v}" for k, v in made.get("packages", {}).items())
    command = {"command": str(made["command"])} if made.get("command") else {}
    rows = {**rows, **command, "environment": f"Python {made.get('python')}, {packages}", "made": record.created}
    check = "<p>Check it: <code>decodehub verify FOLDER</code> scores the saved predictions anew.</p>"
    return f"<section><h2>How this was made</h2>{tag}{table_rows(rows.items())}</table>{check}</section>"
