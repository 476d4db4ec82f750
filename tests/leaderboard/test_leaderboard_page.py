"""The leaderboard in headless Chromium: open, filter, compare, look into a row, export, by mouse and by keyboard, at desktop and phone width."""

from __future__ import annotations

import csv
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from decodehub.metrics.eeg_editbench.benchmark import Benchmark

pytest.importorskip("gradio", reason="gradio is not installed: pip install 'decodehub[leaderboard]'")
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
if CHROMIUM is None:
    pytest.skip("no Chromium on this machine: apt-get install chromium", allow_module_level=True)

_spec = importlib.util.spec_from_file_location("leaderboard_world", Path(__file__).with_name("leaderboard_world.py"))
assert _spec is not None and _spec.loader is not None
world = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(world)

SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
TIMEOUT_MS = 60_000


class Served(NamedTuple):
    """A running leaderboard and the browser."""

    url: str
    browser: Any


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, tiny_benchmark: Benchmark) -> Iterator[Served]:
    from decodehub.leaderboard import app as page
    from decodehub.leaderboard.checks import Checks
    from decodehub.leaderboard.data import read_folder

    with world.known_truth():
        root = world.write_world(tmp_path_factory.mktemp("results"), tiny_benchmark)
        store = page.Store(lambda: read_folder(root), Checks(tmp_path_factory.mktemp("checks")))
        store.worker.join()
    demo = page.build(store)
    _, url, _ = demo.launch(prevent_thread_lock=True, **page.launch_options())
    try:
        with sync_api.sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            yield Served(url.rstrip("/"), browser)
            browser.close()
    finally:
        demo.close()


@pytest.fixture
def open_page(served: Served, request: pytest.FixtureRequest) -> Iterator[Callable[[str], Any]]:
    """Opens the page at a size; at the end there must be no error in its console, no dialog, and no request to another server."""
    contexts, faults = [], []

    def call(size: str) -> Any:
        width, height = SIZES[size]
        context = served.browser.new_context(viewport={"width": width, "height": height}, accept_downloads=True)
        contexts.append(context)
        context.set_default_timeout(TIMEOUT_MS)
        page = context.new_page()
        page.on("console", lambda m: faults.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: faults.append(str(error.stack)))
        page.on("dialog", lambda dialog: (faults.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda r: None if r.url.startswith((served.url, "data:")) else faults.append(r.url))
        page.goto(served.url)
        page.get_by_role("region", name="EEG-EditBench: table").wait_for()
        return page

    yield call
    for context in contexts:
        if (folder := os.environ.get("DECODEHUB_SCREENSHOTS")) and context.pages:
            context.pages[0].screenshot(path=Path(folder) / f"{request.node.name}.png", full_page=True)
        faults += [text for text in context.pages[0].locator(".toast-wrap").all_inner_texts() if text]  # errors that Gradio shows
        context.close()
    assert faults == []


def go_to(page: Any, name: str) -> Any:
    """Open a tab, by the menu of hidden tabs where the page is narrow; returns its panel."""
    tab = page.get_by_role("tab", name=name, exact=True)
    if tab.count() and tab.first.is_visible():
        tab.first.click()
    else:
        page.locator(".overflow-menu button").first.click()
        page.locator(".overflow-dropdown button", has_text=name).first.click()
    return page.get_by_role("tabpanel").filter(visible=True).last


def choose(panel: Any, title: str, option: str) -> None:
    panel.get_by_label(title, exact=True).filter(visible=True).click()
    panel.page.get_by_role("option", name=option, exact=True).filter(visible=True).click()


@pytest.mark.parametrize("size", SIZES)
def test_open_filter_compare_drill_down_export(open_page: Callable[[str], Any], size: str, tmp_path: Path) -> None:
    page = open_page(size)
    panel = go_to(page, "iMINDBench")
    region = panel.get_by_role("region", name="iMINDBench: table")
    assert "org/main-only" in region.inner_text()

    choose(panel, "Subset", "Full grid")
    sync_api.expect(region).not_to_contain_text("org/main-only")
    assert region.get_by_role("rowheader", name="org/better").count() == 1

    panel.get_by_role("button", name="Compare two rows").click()
    panel.get_by_role("button", name="Compare", exact=True).click()
    comparison = panel.get_by_role("region", name="Comparison")
    sync_api.expect(comparison).to_contain_text("org/better is better")

    panel.get_by_role("button", name="Look into a row").click()
    panel.get_by_role("button", name="Show", exact=True).click()
    sync_api.expect(panel.get_by_role("region", name="By data set, full")).to_contain_text("Neuroprobe")
    assert "decodehub verify" in panel.get_by_label("Command").inner_text()

    with page.expect_download() as download:
        panel.get_by_role("link", name="Download these rows as CSV").click()
    download.value.save_as(tmp_path / "rows.csv")
    lines = list(csv.DictReader((tmp_path / "rows.csv").open(newline="")))
    assert {line["model"] for line in lines if line["state"] == "recomputed"} == {"org/better", "org/worse"}
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= SIZES[size][0], f"the page is {width} px wide: only tables may scroll"


def test_foreign_text_and_states_are_shown_as_text(open_page: Callable[[str], Any]) -> None:
    page = open_page("desktop")
    region = page.get_by_role("region", name="EEG-EditBench: table")
    assert world.HOSTILE in region.inner_text() and region.locator("img").count() == 0
    assert "1 number differs from the predictions" in region.inner_text()
    about = go_to(page, "About")
    assert "broken/record.json" in about.inner_text()


def test_samples_have_a_view_of_their_own(open_page: Callable[[str], Any]) -> None:
    page = open_page("desktop")
    assert "org/on-the-sample" not in page.get_by_role("region", name="EEG-EditBench: table").inner_text()
    panel = go_to(page, "Samples")
    region = page.get_by_role("region", name="EEG-EditBench samples: table")
    region.wait_for()
    shown = []
    panel.get_by_label("Comparable set").filter(visible=True).click()
    for title in page.get_by_role("option").filter(visible=True).all_inner_texts():
        choose(panel, "Comparable set", title.removeprefix("✓").strip())
        page.wait_for_timeout(500)
        shown.append(region.inner_text())
    assert [("org/on-the-sample" in text, "org/on-simulated" in text) for text in shown] in (
        [(True, False), (False, True)],
        [(False, True), (True, False)],
    )
    assert not any("org/strong" in text or "NICE" in text for text in shown)


def test_by_keyboard(open_page: Callable[[str], Any]) -> None:
    """Tab reaches tabs, filters, the table, the download and both folds in this order; a filter is changed without a mouse."""
    page = open_page("desktop")
    seen: list[str] = []
    for _ in range(16):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate("(e => e.getAttribute('aria-label') || e.innerText || e.value || e.tagName)(document.activeElement)").strip()
        )
    order = ["EEG-EditBench", "Edit family", "EEG-EditBench: table", "Download these rows as CSV", "Compare two rows", "Look into a row"]
    places = [next((i for i, text in enumerate(seen) if text.startswith(name)), -1) for name in order]
    assert -1 not in places and places == sorted(places), seen
    family = page.get_by_label("Edit family").filter(visible=True)
    family.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    sync_api.expect(page.get_by_role("region", name="EEG-EditBench: table")).to_contain_text("mismatched queries")
