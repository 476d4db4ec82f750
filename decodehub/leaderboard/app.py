"""The leaderboard as a Gradio page: filters, boards, comparison of two rows, a look into one row."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

import gradio as gr

from decodehub.core.html import source

from .boards import ALL, RECOMPUTED, REPORTED, UNVERIFIED, Board, Row, Table, boards, groups, make_table, options, rows_of
from .checks import Checks
from .compare import compare_rows
from .data import Loaded
from .details import render_details
from .html import TEMPLATES, message, render_comparison, render_head, render_problems, render_table

STATES = [("All", ALL), ("Recomputed", RECOMPUTED), ("Not verified", UNVERIFIED), ("Reported", REPORTED)]
# Values are checked here, not by Gradio: it refuses one that was chosen just before its options changed.
QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden", "preprocess": False}


class Store:
    """The records that are shown, and a thread that checks them.

    Args:
        read: reads the records; called again by `reload`.
        checks: what is recomputed.
        verify: whether records are scored anew in the background.
    """

    def __init__(self, read: Callable[[], Loaded], checks: Checks, *, verify: bool = True) -> None:
        self.read, self.checks, self.verify = read, checks, verify
        self._lock = threading.Lock()
        self.waiting = 0
        self.reload()

    def reload(self) -> None:
        """Read the records anew and check those that are new."""
        with self._lock:
            self.loaded = self.read()
            self._rows: dict[tuple[str, bool], list[Row]] = {}
            if self.verify and not self.waiting:
                self.waiting = len(self.loaded.entries)
                self.worker = threading.Thread(target=self._check, args=(self.loaded,), daemon=True)
                self.worker.start()

    def rows(self, board: Board, samples: bool) -> list[Row]:
        """Rows of a board, made once."""
        key = board.id, samples
        if key not in self._rows:
            self._rows[key] = rows_of(board, self.loaded.entries, samples=samples)
        return self._rows[key]

    def _check(self, loaded: Loaded) -> None:
        for done, entry in enumerate(loaded.entries, start=1):
            with contextlib.suppress(OSError):  # a full or read-only disk: the record stays unverified
                self.checks.make(entry)
            self.waiting = len(loaded.entries) - done
        self.waiting = 0


class Panel(NamedTuple):
    """The components of one board: filters by name in order, and what they fill."""

    board: Board
    samples: bool
    filters: dict[str, Any]
    table: Any
    first: Any
    second: Any
    compared: Any
    row: Any
    details: Any

    @property
    def inputs(self) -> list[Any]:
        """All that a change of a filter depends on."""
        return [*self.filters.values(), self.first, self.second, self.row]

    @property
    def outputs(self) -> list[Any]:
        """All that a change of a filter fills; in the order of `refresh`."""
        return [*(self.filters[name] for name in self.dynamic), self.first, self.second, self.row, self.table, self.compared, self.details]

    @property
    def dynamic(self) -> list[str]:
        """Filters whose options depend on the records."""
        return ["group", "sort", *self.board.traits]

    def refresh(self, store: Store, values: Sequence[Any]) -> list[Any]:
        """New options and the table for the values of `inputs`."""
        rows = store.rows(self.board, self.samples)
        choices = self.choices(values)
        *_, first, second, row = values
        found: dict[str, tuple[list[tuple[str, str]], str]] = {
            "group": _kept(_group_options(rows, self.board, choices), choices.get("group"))
        }
        for trait in self.board.traits:
            found[trait] = _kept(options(rows, trait), choices.get(trait))
        choices |= {name: value for name, (_, value) in found.items()}
        titles = [(c.title, c.title) for c in self.board.columns(choices)]
        found["sort"] = _kept(titles, choices.get("sort"))
        choices["sort"] = found["sort"][1]
        table = self.make(store, choices)
        keys = [(f"{p.row.name} ({p.row.key.partition('/')[0] if p.row.entry else p.state})", p.row.key) for p in table.placed]
        pairable = [k for k, p in zip(keys, table.placed) if p.state == RECOMPUTED]
        picks = [_kept(pairable, first), _kept(pairable, second, 1), _kept(keys, row)]
        updates = [gr.update(choices=opts, value=value or None) for opts, value in (*(found[n] for n in self.dynamic), *picks)]
        more = len(found["group"][0]) - 1
        note = f" Other rows, on other tables or settings: choose another Comparable set ({more})." if more > 0 else ""
        note += f" Records that wait for their check: {store.waiting}; reload the page for news." if store.waiting else ""
        return [*updates, render_table(table, samples=self.samples, note=note), "", ""]  # results of before would be of other rows

    def choices(self, values: Sequence[Any]) -> dict[str, str]:
        """Filters that are set, by name."""
        return {name: str(value) for name, value in zip(self.filters, values) if value not in (None, "")}

    def make(self, store: Store, choices: dict[str, str]) -> Table:
        """The table for some choices."""
        return make_table(self.board, store.rows(self.board, self.samples), store.checks, choices)

    def compare(self, store: Store, *values: Any) -> str:
        """The comparison of the two chosen rows."""
        choices, (first, second, _) = self.choices(values), values[-3:]
        table = self.make(store, choices)
        placed = {p.row.key: p for p in table.placed}
        if first not in placed or second not in placed:
            return message("Choose two recomputed rows of this table; there may be fewer than two under these filters.")
        try:
            return render_comparison(placed[first], placed[second], compare_rows(table, placed[first], placed[second], choices))
        except ValueError as error:
            return message(str(error))

    def look(self, store: Store, *values: Any) -> str:
        """The page of the chosen row."""
        choices, key = self.choices(values), values[-1]
        table = self.make(store, choices)
        for p in table.placed:
            if p.row.key == key:
                return render_details(table, p, choices, store.loaded)
        return message("Choose a row of this table.")


def build(store: Store) -> gr.Blocks:
    """The page; launch it with `launch_options`."""
    panels: list[Panel] = []
    with gr.Blocks(title="decodehub leaderboard", analytics_enabled=False) as demo:
        gr.HTML(render_head(store.loaded))
        with gr.Tabs():
            for board in boards():
                with gr.Tab(board.title):
                    panels.append(_panel(board, False, store))
            with gr.Tab("Samples"), gr.Tabs():
                for board in boards():
                    with gr.Tab(f"{board.title} samples"):
                        panels.append(_panel(board, True, store))
            with gr.Tab("About"):
                gr.Markdown(str(source(f"{TEMPLATES}/about.md")))
                problems = gr.HTML(render_problems(store.loaded.problems))
        reload = gr.Button("Read the records again", size="sm")

        def refresh_all(*values: Any) -> list[Any]:
            found, start = [], 0
            for panel in panels:
                n = len(panel.inputs)
                found += panel.refresh(store, values[start : start + n])
                start += n
            return [*found, render_problems(store.loaded.problems)]

        def reload_all(*values: Any) -> list[Any]:
            store.reload()
            return refresh_all(*values)

        inputs, outputs = [c for p in panels for c in p.inputs], [*(c for p in panels for c in p.outputs), problems]
        demo.load(refresh_all, inputs, outputs, **QUIET)
        reload.click(reload_all, inputs, outputs, **QUIET)
    return demo


def launch_options() -> dict[str, Any]:
    """Arguments of ``launch``: nothing from other servers (fonts of the system), no telemetry, no public API."""
    fonts = ["system-ui", "sans-serif"]
    theme = gr.themes.Base(primary_hue="blue", font=fonts, font_mono=["ui-monospace", "monospace"])
    blue = {"color_accent": "#1d4ed8", "button_primary_background_fill": "#1d4ed8", "button_primary_background_fill_hover": "#1e40af"}
    theme = theme.set(**blue, button_primary_background_fill_dark="#1d4ed8")  # the theme's own blue has too little contrast with white
    return {
        "css": str(source(f"{TEMPLATES}/board.css")),
        "js": str(source(f"{TEMPLATES}/close_lists.js")),
        "theme": theme,
        "footer_links": [],
        "ssr_mode": False,
        "enable_monitoring": False,
        "quiet": True,
        "mcp_server": False,
    }


def _panel(board: Board, samples: bool, store: Store) -> Panel:
    rows = store.rows(board, samples)
    filters: dict[str, Any] = {}
    with gr.Row():
        for name, (title, opts) in board.choosers.items():
            filters[name] = gr.Dropdown(opts, value=opts[0][1], label=title, filterable=False, min_width=150)
        titles = [c.title for c in board.columns({})]
        sets = _group_options(rows, board, {})
        filters["group"] = gr.Dropdown(sets, value=sets[0][1] if sets else None, label="Comparable set", filterable=False, min_width=220)
        filters["sort"] = gr.Dropdown([(t, t) for t in titles], value=titles[0], label="Sort by", filterable=False, min_width=150)
    with gr.Accordion("More filters", open=False), gr.Row():
        for trait, title in board.traits.items():
            filters[trait] = gr.Dropdown(options(rows, trait), value=ALL, label=title, filterable=False, min_width=150)
        filters["state"] = gr.Dropdown(STATES, value=ALL, label="State", filterable=False, min_width=150)
        filters["search"] = gr.Textbox(label="Model name contains", min_width=150, max_lines=1)
    table = gr.HTML("<p>Reading.</p>")
    with gr.Accordion("Compare two rows", open=False):
        with gr.Row():
            first, second = (gr.Dropdown([], label=title, min_width=200) for title in ("First row", "Second row"))
        compare = gr.Button("Compare", variant="primary")
        compared = gr.HTML()
    with gr.Accordion("Look into a row", open=False):
        row = gr.Dropdown([], label="Row", min_width=200)
        show = gr.Button("Show", variant="primary")
        details = gr.HTML()
    panel = Panel(board, samples, filters, table, first, second, compared, row, details)
    gr.on(
        [component.input for component in filters.values()],
        lambda *values: panel.refresh(store, values),
        panel.inputs,
        panel.outputs,
        trigger_mode="always_last",
        **QUIET,
    )
    compare.click(lambda *values: panel.compare(store, *values), panel.inputs, compared, **QUIET)
    show.click(lambda *values: panel.look(store, *values), panel.inputs, details, **QUIET)
    return panel


def _group_options(rows: Sequence[Row], board: Board, choices: dict[str, str]) -> list[tuple[str, str]]:
    return groups(row for row in rows if board.keep(row, choices))


def _kept(opts: list[tuple[str, str]], value: str | None, default: int = 0) -> tuple[list[tuple[str, str]], str]:
    """Options, and the value if it is still one of them, else the default one."""
    values = [v for _, v in opts]
    if value in values:
        return opts, str(value)
    return opts, values[min(default, len(values) - 1)] if values else ""
