"""One self-contained HTML page of an EEG-EditBench record: numbers, plots with intervals, the hardest edits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib

matplotlib.use("Agg")

import datasets
import matplotlib.pyplot as plt
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from decodehub.core.files import write_bytes
from decodehub.core.records import Metric, ResultRecord
from decodehub.metrics.eeg_editbench.protocol import ScoredRuns

if TYPE_CHECKING:
    from decodehub.metrics.eeg_editbench.benchmark import Benchmark

from .pages import ACCENT, INK, SECOND, esc, page, plain_axes, plural, provenance, svg, table, table_rows, warning
from .pages import gallery as gallery_section

TITLES = {
    "identity": "Identity",
    "attribute": "Attribute",
    "background": "Background",
    "removal": "Removal",
    "material": "Material",
    "texture": "Texture",
    "shape": "Shape",
    "color": "Color",
    "state": "State",
    "near": "Near",
    "medium": "Medium",
    "far": "Far",
}


class GalleryItem(NamedTuple):
    """An edit to show: PNG or JPEG bytes of source and edit, its name, instruction and share of runs that got it right."""

    source: bytes
    edited: bytes
    title: str
    instruction: str
    correct: float


def hardest_edits(scored: ScoredRuns, n: int = 12) -> list[tuple[int, float]]:
    """Indices of the edits that fewest runs tell from their source, with the share of runs that do; ties by the mean margin."""
    wins = np.mean([s.wins for s in scored.scores], axis=0)
    margins = np.mean([s.margins for s in scored.scores], axis=0)
    order = np.lexsort((margins, wins))[:n]
    return [(int(i), float(wins[i])) for i in order]


def write_report(path: Path, record: ResultRecord, gallery: Sequence[GalleryItem] = ()) -> None:
    """Write the page; it needs no other file and no network."""
    title = f"EEG-EditBench: {record.model.id}"
    parts = [
        f"<h1>{esc(title)}</h1>",
        _banner(record),
        f"<p>EEG: {esc(record.data)}</p>",
        _headline_table(record),
        *(_figure(title, caption, svg) for title, caption, svg in _figures(record)),
        _gallery(record, gallery),
        _all_numbers(record),
        _provenance(record),
    ]
    write_bytes(path, page(title, parts))


def show_record(folder: Path, record: ResultRecord, scored: ScoredRuns, data_dir: str | None) -> None:
    """Print the table of a record and write its report."""
    console = Console()
    console.print(headline_table(record))
    if record.is_sample:
        console.print(f"[yellow]Release {record.benchmark.release!r}: these scores say nothing about EEG-EditBench itself.[/yellow]")
    write_report(folder / "report.html", record, gallery(scored, data_dir))
    console.print(
        f"record  {folder / 'record.json'}\nreport  {folder / 'report.html'}\ncheck   decodehub verify {folder}",
        highlight=False,
        soft_wrap=True,
    )


def headline_table(record: ResultRecord) -> Any:
    """The headline numbers of a record as a rich table."""
    n = record.metrics[0].n
    table = Table(
        title=f"{escape(record.model.id)} on EEG-EditBench, release {escape(record.benchmark.release)} ({plural(n, 'subject')}, {plural(len(record.runs), 'run')})",
        title_justify="left",
    )
    for column, justify in (("", "left"), ("mean ± SD", "right"), ("95 % CI", "right"), ("chance", "right")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for label, metric in headline(record):
        table.add_row(label, number(metric), interval(metric), "–" if metric.chance is None else f"{metric.chance:.1f}")
    return table


def gallery(scored: ScoredRuns, data_dir: str | None, n: int = 12) -> list[GalleryItem]:
    """The hardest edits with their images; empty, with a word, when the images on this machine are of another release."""
    benchmark = scored.plan.benchmark
    data = release_images(benchmark, data_dir)
    if data is None:
        Console(stderr=True).print(
            "no gallery: the images on this machine are of another release (give its folder with --data-dir)",
            highlight=False,
            soft_wrap=True,
        )
        return []
    index = {edit_id: i for i, edit_id in enumerate(data["edit_id"])}
    items = []
    for edit, share in hardest_edits(scored, n):
        row = data[index[benchmark.edit_ids[edit]]]
        kind = benchmark.family[edit] + (f" / {benchmark.subtype[edit]}" if benchmark.subtype[edit] else "")
        items.append(
            GalleryItem(row["source_image"]["bytes"], row["edited_image"]["bytes"], f"{row['concept']}: {kind}", row["instruction"], share)
        )
    return items


def release_images(benchmark: Benchmark, data_dir: str | None, config: str = "edits") -> Any | None:
    """Config ``"edits"`` or ``"sources"`` of a release with its images encoded, or None if its images are not those of the benchmark."""
    data = undecoded(datasets.load_dataset("eeg-editbench", config, split="test", data_dir=data_dir))
    name, content = ("edit_id", "edited_sha256") if config == "edits" else ("concept", "source_sha256")
    expected = {row[name]: row[content] for row in benchmark.rows[config]}
    return data if dict(zip(data[name], data[content])) == expected else None


def undecoded(data: Any) -> Any:
    """The same data with images as their encoded bytes."""
    for name, feature in data.features.items():
        if isinstance(feature, datasets.Image):
            data = data.cast_column(name, datasets.Image(decode=False))
    return data


def headline(record: ResultRecord) -> list[tuple[str, Metric]]:
    """The numbers of table 1 of the paper, with the pairing gain, in reading order."""
    wanted: list[tuple[str, str, dict[str, str]]] = [
        ("Top-1", "top1", {}),
        ("Top-5", "top5", {}),
        ("Top-1, null images", "null_top1", {}),
        ("EP-Top1", "ep_top1", {}),
        ("2AFC overall", "two_afc", {}),
        *((f"2AFC {TITLES[f].lower()}", "two_afc", {"family": f}) for f in ("identity", "attribute", "background", "removal")),
        ("2AFC, mismatched queries", "two_afc_mismatched", {}),
        ("Pairing gain", "pairing_gain", {}),
    ]
    by_key = {(m.name, tuple(m.slice.items())): m for m in record.metrics}
    return [(label, by_key[name, tuple(s.items())]) for label, name, s in wanted if (name, tuple(s.items())) in by_key]


def number(metric: Metric) -> str:
    """A value as in the paper: mean, and SD over subjects."""
    if metric.value is None:
        return "not scored"
    digits = 3 if metric.unit in ("score", "correlation") else 1
    spread = f" ± {metric.sd:.{digits}f}" if metric.sd is not None and metric.n > 1 else ""
    return f"{metric.value:.{digits}f}{spread}"


def interval(metric: Metric) -> str:
    """A 95 % interval in words, or a dash."""
    return f"[{metric.ci95[0]:.1f}, {metric.ci95[1]:.1f}]" if metric.ci95 else "–"


def _figures(record: ResultRecord) -> Iterable[tuple[str, str, str]]:
    afc = {tuple(m.slice.items()): m for m in record.metrics if m.name == "two_afc" and m.value is not None}
    families = [(TITLES.get(k[0][1], k[0][1]), m) for k, m in afc.items() if len(k) == 1 and k[0][0] == "family"]
    subtypes = [(TITLES.get(k[0][1], k[0][1]), m) for k, m in afc.items() if len(k) == 1 and k[0][0] == "subtype"]
    whiskers = ", whiskers 95 % intervals over subjects" if any(m.ci95 for _, m in families) else ""
    note = f"Bars are means over subjects{whiskers}, dashed lines chance."
    yield "2AFC by edit family", note, _bars(families, "2AFC (%)")
    if subtypes:
        yield (
            "2AFC by subtype",
            "Identity edits by semantic distance, attribute edits by the property changed. " + note,
            _bars(subtypes, "2AFC (%)"),
        )
    retrieval = [(label, m) for label, m in headline(record) if m.name in ("top1", "null_top1", "top5", "ep_top1") and m.value is not None]
    yield (
        "Retrieval",
        f"Standard retrieval over {_count(record)} sources, and EP-Top1: the source above every edit of its own. " + note,
        _bars(retrieval, "%"),
    )
    gains = [
        (TITLES.get(m.slice.get("family", ""), "Overall"), m) for m in record.metrics if m.name == "pairing_gain" and m.value is not None
    ]
    yield (
        "Pairing gain",
        "2AFC with the right EEG minus 2AFC with every other query: 0 means that the EEG plays no part.",
        _bars(gains, "percentage points"),
    )
    categories = [(k[0][1], m) for k, m in afc.items() if len(k) == 1 and k[0][0] == "category"]
    if len(categories) > 1:
        yield "2AFC by source category", note, _bars(categories, "2AFC (%)")
    named = {
        "original_over_null": "Original > null",
        "null_over_edit": "Null > edit",
        "null_over_edit_mismatched": "Null > edit, mismatched",
    }
    null = [(named[m.name], m) for m in record.metrics if m.name in named and not m.slice and m.value is not None]
    if null:
        yield "Null edits", "Does going through the editor alone change the match? " + note, _bars(null, "2AFC (%)")


def _bars(items: Sequence[tuple[str, Metric]], unit: str) -> str:
    fig, ax = plt.subplots(figsize=(max(3.2, 0.85 * len(items) + 1.2), 2.9))
    for i, (_, m) in enumerate(items):
        ax.bar(i, m.value, 0.62, color=ACCENT if (m.value or 0) >= 0 else SECOND, zorder=2)
        if m.ci95:
            ax.vlines(i, *m.ci95, color=INK, lw=1.4, zorder=3)
        if m.chance is not None:
            ax.hlines(m.chance, i - 0.42, i + 0.42, color=SECOND, lw=1.3, ls=(0, (3, 2)), zorder=4)
        top = m.ci95[1] if m.ci95 else m.value
        ax.annotate(f"{m.value:.1f}", (i, max(top or 0, 0)), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=8, color=INK)
    slant = max(len(label) for label, _ in items) > 11
    ax.set_xticks(range(len(items)), [label for label, _ in items], rotation=25 if slant else 0, ha="right" if slant else "center")
    ax.set_ylabel(unit, fontsize=9)
    low, high = ax.get_ylim()
    ax.set_ylim(low, max(high * 1.08, 1))
    plain_axes(ax, "y")
    return svg(fig, transparent=True)


def _banner(record: ResultRecord) -> str:
    warnings = []
    if record.is_sample:
        warnings.append(
            f"Release <b>{esc(record.benchmark.release)}</b> is a sample or rehearsal: these scores say nothing about EEG-EditBench itself."
        )
    if "simulated" in record.data.lower():
        warnings.append("The EEG is <b>simulated</b>.")
    return warning(" ".join(warnings))


def _headline_table(record: ResultRecord) -> str:
    rows = [(label, number(m), interval(m), "–" if m.chance is None else f"{m.chance:.1f}") for label, m in headline(record)]
    caption = (
        f"Mean ± population SD over {plural(record.metrics[0].n, 'subject')} (seeds averaged within subject), 95 % interval over subjects. "
        "Percent, pairing gain in percentage points."
    )
    return table(("", "score", "95 % CI", "chance"), rows, caption, "<table class=headline>")


def _figure(title: str, caption: str, svg: str) -> str:
    return f'<figure role="group"><h2>{esc(title)}</h2><div role="img" aria-label="{esc(title)}">{svg}</div><figcaption>{esc(caption)}</figcaption></figure>'


def _gallery(record: ResultRecord, items: Sequence[GalleryItem]) -> str:
    if not items:
        return ""
    note = "" if record.is_sample else " This page contains stimuli: mind their licence before you share it."
    cards = (
        (i.source, i.edited, f"<b>{esc(i.title)}</b><br>{i.correct:.0%} of runs right<br><small>{esc(i.instruction)}</small>")
        for i in items
    )
    text = f"Viewed image left, edit right; runs are subject and seed.{note}"
    return gallery_section("The hardest edits", text, ("viewed image", "edited image"), cards)


def _all_numbers(record: ResultRecord) -> str:
    rows = (
        (m.name, ", ".join(f"{k}: {v}" for k, v in m.slice.items()), number(m), m.reason or interval(m), m.unit) for m in record.metrics
    )
    head = "<tr><th>metric</th><th>slice</th><th>score</th><th>95 % CI</th><th>unit</th></tr>"
    title = f"<summary>All {len(record.metrics)} numbers</summary>"
    return f"<details>{title}<table><thead>{head}</thead><tbody>{table_rows(rows)}</tbody></table></details>"


def _provenance(record: ResultRecord) -> str:
    rows = {
        "benchmark": f"{record.benchmark.id}, release {record.benchmark.release}",
        "content hash": record.benchmark.content_hash,
        "protocol": f"{record.protocol.name} {record.protocol.hash}",
        "settings": ", ".join(f"{k}={v}" for k, v in record.protocol.settings.items()),
        "model": f"{record.model.id} (revision {record.model.revision}, {record.model.parameters or '?'} parameters) {record.model.notes}",
        "aggregation": record.aggregation,
        "runs": f"{len(record.runs)} (subject, seed): " + ", ".join(f"{r.subject}/{r.seed}" for r in record.runs),
    }
    return provenance(record, rows, "<table class=wide>")


def _count(record: ResultRecord) -> int:
    chance = next(m.chance for m in record.metrics if m.name == "top1")
    return round(100 / chance) if chance else 0
