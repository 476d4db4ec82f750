"""The plots of a study, each from the rows of its CSV file (`_study_figure_data`)."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from sklearn.isotonic import isotonic_regression

from .editbench import TITLES
from .pages import INK
from .study_figure_data import CONDITIONS, FAMILIES, Row
from .study_paper import PAPER_MODELS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from PIL.Image import Image

COLUMN, PAGE = 3.4, 7.0  # inches: one column and the full width of a two-column page
SOFT, FAINT = "#6b7785", "#dfe4e9"
# Okabe and Ito's colours without yellow, and wine; told apart with every common kind of colour blindness, and each has a marker of its own.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#1b2733")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
_STYLES = {m.name: (colour, marker) for m, colour, marker in zip(PAPER_MODELS, _COLOURS, _MARKERS)}
_OTHERS = (("#767676", "x"), ("#a08a5b", "+"), ("#9aa5b1", "1"), ("#7d6b91", "2"))
FAMILY_COLOURS = {"identity": "#0072B2", "attribute": "#D55E00", "background": "#009E73", "removal": "#CC79A7"}
_STYLE = {
    "font.size": 7.5,
    "axes.labelsize": 7.5,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": SOFT,
    "axes.linewidth": 0.7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.2,
    "svg.hashsalt": "decodehub",
}


@contextmanager
def style() -> Iterator[None]:
    """The look of all plots, and SVG whose identifiers do not change from run to run."""
    with matplotlib.rc_context(_STYLE):
        yield


def rendered(figure: Figure) -> dict[str, bytes]:
    """The figure as PNG (200 dpi) and SVG, equal bytes for equal figures."""
    files = {}
    for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, dpi=200, metadata=metadata)
        figure.set_layout_engine("none")  # laid out once: both files have the same places
        files[kind] = buffer.getvalue()
    return files


def distances(rows: Sequence[Row], note: str) -> Figure:
    """Figure 5."""
    groups = {row["subtype"] or row["family"]: row for row in rows if row["family"] in FAMILIES}
    blocks = _blocks([c for c in CONDITIONS if c[1] in groups])
    fig = Figure(figsize=(PAGE, 2.8), layout="constrained")
    ax = fig.subplots()
    end = blocks[-1].edges[-1]
    for row in (row for row in rows if row["family"] not in FAMILIES):
        ax.axhspan(row["q1"], row["q3"], color=FAINT, zorder=0)
        ax.axhline(row["median"], color=SOFT, ls=(0, (4, 2)), lw=1, zorder=1)
        ax.text(end, row["q3"], f"sources of {row['family']}", ha="right", va="bottom", fontsize=7, color=SOFT)
    for block in blocks:
        colour = FAMILY_COLOURS[block.family]
        for (part, name), x in zip(block.conditions, block.centres):
            row = groups[name]
            box = {"med": row["median"], "q1": row["q1"], "q3": row["q3"], "whislo": row["whisker_low"], "whishi": row["whisker_high"]}
            ax.bxp(
                [{**box, "fliers": []}],
                positions=[x],
                widths=0.6,
                showfliers=False,
                patch_artist=True,
                boxprops={"facecolor": colour + ("cc" if part == "family" else "66"), "edgecolor": colour, "lw": 0.8},
                medianprops={"color": INK, "lw": 1.2},
                whiskerprops={"color": colour, "lw": 0.8},
                capprops={"color": colour, "lw": 0.8},
                zorder=2,
            )
            ax.plot(x, row["mean"], marker="D", ms=3.4, mfc="white", mec=INK, mew=0.8, zorder=4)
    _label_blocks(ax, blocks, lambda name: f"\nn={groups[name]['n']}")
    ax.set_xlim(-0.1, end + 0.1)
    ax.set_ylim(bottom=0)
    ax.set_ylabel("cosine distance to source")
    _foot(fig, note)
    return fig


def categories(rows: Sequence[Row], metric: str, note: str) -> Figure:
    """Figures 6 (`two_afc_minus_average`) and S2 (`two_afc`): the mean over models, categories by conditions."""
    mean = [row for row in rows if row["model"] == "mean"]
    names = list(dict.fromkeys((row["category"], row["concepts"]) for row in mean))
    blocks = _blocks([c for c in CONDITIONS if any(row["condition"] == "=".join(c) and row["edits"] for row in mean)])
    values = {(row["category"], row["condition"]): np.nan if row[metric] is None else row[metric] for row in mean}
    known = [v for v in values.values() if np.isfinite(v)]
    difference = metric == "two_afc_minus_average"
    reach = max((abs(v) for v in known), default=1.0) or 1.0
    low, high = (-reach, reach) if difference else (min(50.0, *known), 100.0)
    cmap = matplotlib.colormaps["RdBu" if difference else "Blues"].with_extremes(bad="#f2f4f6")
    norm = matplotlib.colors.Normalize(low, high)
    fig = Figure(figsize=(PAGE, 0.28 * len(names) + 1.15), layout="constrained")
    ax = fig.subplots()
    for block in blocks:
        table = np.array([[values[name, "=".join(c)] for c in block.conditions] for name, _ in names])
        mesh = ax.pcolormesh(block.edges, np.arange(len(names) + 1) - 0.5, table, cmap=cmap, norm=norm, edgecolors="white", linewidth=0.5)
        for (i, j), value in np.ndenumerate(table):
            number = round(float(value), 1) + 0.0  # no minus zero
            text = "–" if np.isnan(value) else (f"{number:+.1f}" if difference and number else f"{number:.1f}").replace("-", "−")
            colour = INK if np.isnan(value) else _readable_on(cmap(norm(value)))
            ax.text(float(block.centres[j]), i, text, ha="center", va="center", fontsize=7, color=colour, in_layout=False)
    _label_blocks(ax, blocks, lambda name: "")
    ax.set_yticks(range(len(names)), [f"{name.capitalize()} ({n})" for name, n in names])
    ax.invert_yaxis()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    bar = fig.colorbar(mesh, ax=ax, pad=0.01, aspect=14, label="percentage points" if difference else "2AFC (%)")
    bar.outline.set_visible(False)
    _foot(fig, note)
    return fig


def alignment(rows: Sequence[Row], note: str) -> Figure:
    """Figure 7: a row of two panels for each scale of scores."""
    scales: dict[str, list[Row]] = {}
    for row in rows:
        scales.setdefault("cosine" if row["similarity"].startswith("cosine") else row["similarity"], []).append(row)
    heights = [max(1.4, 0.24 * len(members) + 0.8) for members in scales.values()]
    fig = Figure(figsize=(PAGE, sum(heights) + 0.2), layout="constrained")
    axes = fig.subplots(len(scales), 2, squeeze=False, gridspec_kw={"height_ratios": heights})
    styles = _model_styles(rows)
    for (left, right), (scale, members) in zip(axes, scales.items()):
        for row in members:
            colour, marker = styles[row["model"]]
            x, y = row["source_drop"], row["target_gain"]
            left.errorbar(
                x, y, xerr=_error(row, "source_drop"), yerr=_error(row, "target_gain"), color=colour, marker=marker, ms=5, lw=1, zorder=3
            )
        for axis in (left.axhline, left.axvline):
            axis(0, color=SOFT, lw=0.7, ls=(0, (3, 2)), zorder=1)
        left.margins(0.12)
        left.set_xlabel("source EEG: source image − edited image")
        left.set_ylabel("target EEG:\nedited − source image")
        _label_right(left, [(row["model"], row["source_drop"], row["target_gain"], styles[row["model"]][0]) for row in members])
        _dumbbells(right, members, "target_similarity_source", "target_similarity_edited", styles)
        right.set_xlabel("similarity to the target EEG")
        for ax in (left, right):
            ax.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(5))
        for ax, title in ((left, "A  Directional changes"), (right, "B  Target similarity")):
            ax.set_title(f"{title if left is axes[0, 0] else title[0]} ({scale})", loc="left", fontsize=7.5, fontweight="bold")
    _foot(fig, note)
    return fig


def quintiles(rows: Sequence[Row], note: str) -> Figure:
    """Figure S1: one line a model over the groups of visual distance."""
    groups = list(dict.fromkeys((row["group"], row["edits"], row["distance_low"], row["distance_high"]) for row in rows))
    styles = _model_styles(rows)
    fig = Figure(figsize=(PAGE * 0.7, 3.1), layout="constrained")
    ax = fig.subplots()
    place = {group[0]: i for i, group in enumerate(groups)}
    ends = []
    for model, (colour, marker) in styles.items():
        mine = [row for row in rows if row["model"] == model]
        x, y = [place[row["group"]] for row in mine], [row["two_afc"] for row in mine]
        errors = np.array([_error(row, "two_afc") if row["two_afc_ci_low"] is not None else [[0], [0]] for row in mine])[:, :, 0].T
        known = any(m.name == model for m in PAPER_MODELS)
        ax.errorbar(x, y, yerr=errors, color=colour, marker=marker, ms=4, ls="-" if known else (0, (4, 2)), elinewidth=0.7, zorder=3)
        ends.append((model, x[-1], y[-1], colour))
    ax.axhline(50, color=SOFT, lw=0.8, ls=(0, (3, 2)), zorder=1)
    ax.annotate("chance", (0.5, 50), xytext=(0, -2), textcoords="offset points", ha="center", va="top", fontsize=6.5, color=SOFT)
    ax.set_ylim(bottom=min(ax.get_ylim()[0], 46))
    ax.set_xticks(range(len(groups)), [f"{name}\n{low:.3f}–{high:.3f}\nn={n}" for name, n, low, high in groups])
    ax.set_xlim(-0.25, len(groups) - 0.85)
    ax.set_xlabel("source–edit distance, from the smallest changes to the largest")
    ax.set_ylabel("2AFC (%)")
    ax.grid(axis="y", color=FAINT, lw=0.6)
    ax.set_axisbelow(True)
    _label_right(ax, ends)
    _foot(fig, note)
    return fig


def ranks(rows: Sequence[Row], note: str) -> Figure:
    """Figure S4: mean rank of the target concept's EEG, for source and edited image."""
    fig = Figure(figsize=(PAGE * 0.6, 0.24 * len(rows) + 1.15), layout="constrained")
    ax = fig.subplots()
    _dumbbells(ax, rows, "target_rank_source", "target_rank_edited", _model_styles(rows))
    chance = rows[0]["chance"]
    ax.axvline(chance, color=SOFT, lw=0.8, ls=(0, (3, 2)), zorder=1)
    ax.annotate(
        "chance", (chance, 0), xycoords=("data", "axes fraction"), xytext=(2, 2), textcoords="offset points", fontsize=6.5, color=SOFT
    )
    ax.set_xlabel("mean rank of the target concept's EEG (1 is best)")
    _foot(fig, note)
    return fig


def failures(rows: Sequence[Row], images: Callable[[str], tuple[Image, Image, str]], note: str) -> Figure:
    """Figure S3: the selected stable failures, families in columns.

    Args:
        rows: see `failure_rows`. note: the line at the foot.
        images: source image, edited image and instruction of an edit id.
    """
    selected = {family: [row for row in rows if row["family"] == family and row["selected"]] for family in FAMILIES}
    depth = max(map(len, selected.values()))
    fig = Figure(figsize=(PAGE, 1.62 * depth + 0.35), layout="constrained")
    panels = fig.subfigures(depth, len(FAMILIES), squeeze=False)
    for j, (family, members) in enumerate(selected.items()):
        for i in range(depth):
            panel = panels[i, j]
            left, right = panel.subplots(1, 2)
            for ax in (left, right):
                ax.set_axis_off()
            title = f"$\\bf{{{TITLES[family]}}}$\n" if i == 0 else ""
            if i >= len(members):
                panel.suptitle(f"{title}no{' second' if i else ''} stable failure", fontsize=7)
                continue
            row = members[i]
            source, edited, instruction = images(row["edit_id"])
            left.imshow(source)
            right.imshow(edited)
            left.set_title("viewed", fontsize=6, pad=2)
            right.set_title("edited", fontsize=6, pad=2)
            kind = TITLES.get(row["subtype"], "").lower()
            panel.suptitle(f"{title}{_math_free(row['concept'].replace('_', ' '))}{f', {kind}' if kind else ''}", fontsize=7)
            lines = textwrap.wrap(_math_free(instruction), 36, max_lines=3, placeholder=" …")
            panel.supxlabel("\n".join([f"fails for {row['models_failing']} of {row['models']} models", *lines]), fontsize=5.8)
    _foot(fig, note)
    return fig


def _math_free(text: str) -> str:
    return text.replace("$", r"\$")


class _Block(NamedTuple):
    """A family and its subtypes side by side: `conditions` and the borders of their columns, one wide, with a gap before the next family."""

    family: str
    conditions: list[tuple[str, str]]
    edges: np.ndarray

    @property
    def centres(self) -> np.ndarray:
        return self.edges[:-1] + 0.5


def _blocks(conditions: Sequence[tuple[str, str]]) -> list[_Block]:
    blocks, start = [], 0.0
    for family, subtypes in FAMILIES.items():
        if mine := [c for c in conditions if c == ("family", family) or (c[0] == "subtype" and c[1] in subtypes)]:
            blocks.append(_Block(family, mine, start + np.arange(len(mine) + 1.0)))
            start += len(mine) + 0.5
    return blocks


def _label_blocks(ax: Axes, blocks: Sequence[_Block], below: Callable[[str], str]) -> None:
    """Families above the axes, "All" and the subtypes below them."""
    for block in blocks:
        middle = (block.edges[0] + block.edges[-1]) / 2
        where: dict[str, Any] = {"xy": (middle, 1), "xycoords": ("data", "axes fraction"), "xytext": (0, 4), "textcoords": "offset points"}
        ax.annotate(TITLES[block.family], ha="center", fontweight="bold", fontsize=7, color=FAMILY_COLOURS[block.family], **where)
    ticks = [(x, "All" if part == "family" else TITLES[name], name) for b in blocks for (part, name), x in zip(b.conditions, b.centres)]
    ax.set_xticks([x for x, _, _ in ticks], [label + below(name) for _, label, name in ticks])
    ax.tick_params(axis="x", length=0)


def _readable_on(rgba: Sequence[float]) -> str:
    """Ink or white, whichever has the larger contrast (relative luminance, WCAG 2)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgba[:3]]
    return "white" if float(np.dot(linear, (0.2126, 0.7152, 0.0722))) < 0.2 else INK


def _foot(fig: Figure, note: str) -> None:
    if note:
        width = int(fig.get_figwidth() * 22)
        fig.supxlabel("\n".join(textwrap.wrap(note, width)), x=0.01, ha="left", fontsize=6, color=SOFT)


def _model_styles(rows: Sequence[Row]) -> dict[str, tuple[str, str]]:
    """Colour and marker of each model: the paper's have their own whichever others there are."""
    names = list(dict.fromkeys(row["model"] for row in rows))
    others = [name for name in names if name not in _STYLES]
    return {name: _STYLES[name] if name in _STYLES else _OTHERS[others.index(name) % len(_OTHERS)] for name in names}


def _error(row: Row, metric: str) -> Any:
    low, high = row[f"{metric}_ci_low"], row[f"{metric}_ci_high"]
    return None if low is None else [[max(row[metric] - low, 0)], [max(high - row[metric], 0)]]


def _dumbbells(ax: Axes, rows: Sequence[Row], before: str, after: str, styles: Mapping[str, tuple[str, str]]) -> None:
    """A line a model from its value for the source image (open) to its value for the edited image (filled)."""
    for i, row in enumerate(rows):
        colour, _ = styles[row["model"]]
        ax.plot([row[before], row[after]], [i, i], color=colour, lw=1.6, alpha=0.45, zorder=2)
        for metric, face in ((before, "white"), (after, colour)):
            ax.errorbar(row[metric], i, xerr=_error(row, metric), color=colour, marker="o", ms=5, mfc=face, lw=1, zorder=3)
    ax.set_yticks(range(len(rows)), [row["model"] for row in rows])
    ax.set_ylim(len(rows) - 0.4, -0.9)
    ax.tick_params(axis="y", length=0)
    ax.margins(x=0.14)
    ax.autoscale_view()
    ax.grid(axis="x", color=FAINT, lw=0.6)
    ax.set_axisbelow(True)
    low, high = ax.get_xlim()
    first = sorted(((rows[0][before], "source"), (rows[0][after], "edited")))
    near = first[1][0] - first[0][0] < 0.2 * (high - low)
    for (value, word), side, shift in zip(first, ("right", "left") if near else ("center", "center"), (3, -3) if near else (0, 0)):
        ax.annotate(word, (value, 0), xytext=(shift, 6), textcoords="offset points", ha=side, fontsize=6.5, color=SOFT)


def _label_right(ax: Axes, points: Sequence[tuple[str, float, float, str]]) -> None:
    """Names at the right edge, each joined to its point by a thin line, moved as little as keeps them apart (least squares)."""
    low, high = ax.get_ylim()
    height = ax.get_figure().get_figheight() * 72 * 0.65  # type: ignore[union-attr]  # about the height of the axes in points
    gap = 8.5 * (high - low) / height
    order = sorted(points, key=lambda p: p[2])
    steps = gap * np.arange(len(order))
    wanted = np.array([y for _, _, y, _ in order])
    places = isotonic_regression(wanted - steps, y_min=low + gap / 2, y_max=max(high - steps[-1], low + gap / 2)) + steps
    for (name, x, y, colour), place in zip(order, places):
        ax.annotate(
            name,
            (x, y),
            xytext=(1.03, place),
            textcoords=("axes fraction", "data"),
            va="center",
            fontsize=7,
            color=colour,
            arrowprops={"arrowstyle": "-", "color": colour, "lw": 0.5, "alpha": 0.6, "shrinkA": 1, "shrinkB": 3},
        )
    ax.set_ylim(low, high)
