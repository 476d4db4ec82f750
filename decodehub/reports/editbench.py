"""One self-contained HTML page of an EEG-EditBench record: numbers, plots with intervals, the hardest edits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import datasets
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from decodehub.core.records import Metric, ResultRecord
from decodehub.core.tables import Column, Format, Table, digits_of, estimate
from decodehub.metrics.eeg_editbench.protocol import ScoredRuns

from .pages import ACCENT, INK, SECOND, Plot, data_url, plain_axes, plural, provenance, svg, write_page

if TYPE_CHECKING:
    from markupsafe import Markup

    from decodehub.metrics.eeg_editbench.benchmark import Benchmark

ENDS = Format(digits=1)  # of intervals and chance
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
NULL_TITLES = {
    "original_over_null": "Original > null",
    "null_over_edit": "Null > edit",
    "null_over_edit_mismatched": "Null > edit, mismatched",
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
    cards = [{**item._asdict(), "left": data_url(item.source), "right": data_url(item.edited)} for item in gallery]
    write_page(
        path,
        "editbench.html",
        title=f"EEG-EditBench: {record.model.id}",
        sample=record.is_sample,
        simulated=record.kind == "simulated",
        release=record.benchmark.release,
        data=record.data,
        headline=headline_table(record),
        figures=list(_figures(record)),
        gallery=cards,
        numbers=_all_numbers(record),
        provenance=_provenance(record),
    )


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


def headline_table(record: ResultRecord) -> Table:
    """The headline numbers of a record."""
    subjects = plural(record.metrics[0].n, "subject")
    return Table(
        ["", "mean ± SD", "95 % CI", "chance"],
        [(label, number(m), ENDS.interval(m.ci95), ENDS.text(m.chance)) for label, m in headline(record)],
        title=f"{record.model.id} on EEG-EditBench, release {record.benchmark.release} ({subjects}, {plural(len(record.runs), 'run')})",
        caption=f"Mean ± population SD over {subjects} (seeds averaged within subject), 95 % interval over subjects. "
        "Percent, pairing gain in percentage points.",
    )


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
    return Format(digits_of(metric.unit), ("sd",), missing="not scored").text(estimate(metric))


def _figures(record: ResultRecord) -> Iterable[Plot]:
    afc = {tuple(m.slice.items()): m for m in record.metrics if m.name == "two_afc" and m.value is not None}

    def of(kind: str) -> list[tuple[str, Metric]]:
        return [(TITLES.get(key[0][1], key[0][1]), m) for key, m in afc.items() if len(key) == 1 and key[0][0] == kind]

    families, subtypes, categories = of("family"), of("subtype"), of("category")
    whiskers = ", whiskers 95 % intervals over subjects" if any(m.ci95 for _, m in families) else ""
    note = f"Bars are means over subjects{whiskers}, dashed lines chance."
    yield Plot("2AFC by edit family", note, _bars(families, "2AFC (%)"))
    if subtypes:
        caption = f"Identity edits by semantic distance, attribute edits by the property changed. {note}"
        yield Plot("2AFC by subtype", caption, _bars(subtypes, "2AFC (%)"))
    retrieval = [(label, m) for label, m in headline(record) if m.name in ("top1", "null_top1", "top5", "ep_top1") and m.value is not None]
    caption = f"Standard retrieval over {_count(record)} sources, and EP-Top1: the source above every edit of its own. {note}"
    yield Plot("Retrieval", caption, _bars(retrieval, "%"))
    gains = [
        (TITLES.get(m.slice.get("family", ""), "Overall"), m) for m in record.metrics if m.name == "pairing_gain" and m.value is not None
    ]
    caption = "2AFC with the right EEG minus 2AFC with every other query: 0 means that the EEG plays no part."
    yield Plot("Pairing gain", caption, _bars(gains, "percentage points"))
    if len(categories) > 1:
        yield Plot("2AFC by source category", note, _bars(categories, "2AFC (%)"))
    null = [(NULL_TITLES[m.name], m) for m in record.metrics if m.name in NULL_TITLES and not m.slice and m.value is not None]
    if null:
        yield Plot("Null edits", f"Does going through the editor alone change the match? {note}", _bars(null, "2AFC (%)"))


def _bars(items: Sequence[tuple[str, Metric]], unit: str) -> Markup:
    fig = Figure(figsize=(max(3.2, 0.85 * len(items) + 1.2), 2.9))
    ax = fig.subplots()
    for i, (_, m) in enumerate(items):
        value = m.value or 0.0  # those without a value are not drawn
        ax.bar(i, value, 0.62, color=ACCENT if value >= 0 else SECOND, zorder=2)
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


def _all_numbers(record: ResultRecord) -> Table:
    rows = [
        (m.name, ", ".join(f"{k}: {v}" for k, v in m.slice.items()), number(m), m.reason or ENDS.interval(m.ci95), m.unit)
        for m in record.metrics
    ]
    slices, ends, unit = (Column(title, justify="left") for title in ("slice", "95 % CI", "unit"))  # text, or the reason of no score
    return Table(["metric", slices, "score", ends, unit], rows)


def _provenance(record: ResultRecord) -> Table:
    rows = {
        "benchmark": f"{record.benchmark.id}, release {record.benchmark.release}",
        "content hash": record.benchmark.content_hash,
        "protocol": f"{record.protocol.name} {record.protocol.hash}",
        "settings": ", ".join(f"{k}={v}" for k, v in record.protocol.settings.items()),
        "model": f"{record.model.id} (revision {record.model.revision}, {record.model.parameters or '?'} parameters) {record.model.notes}",
        "aggregation": record.aggregation,
        "runs": f"{len(record.runs)} (subject, seed): " + ", ".join(f"{r.subject}/{r.seed}" for r in record.runs),
    }
    return provenance(record, rows)


def _count(record: ResultRecord) -> int:
    chance = next(m.chance for m in record.metrics if m.name == "top1")
    return round(100 / chance) if chance else 0
