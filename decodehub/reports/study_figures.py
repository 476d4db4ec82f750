"""Figures 5 to 7 and S1 to S4 of the EEG-EditBench paper from scored records: PNG, SVG and the numbers shown as CSV."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import typer

from decodehub.core.files import home, write_bytes
from decodehub.core.records import ResultRecord
from decodehub.core.tables import from_dicts
from decodehub.loaders.frozen_encoder import EncoderUnavailableError
from decodehub.loaders.image_encoders import load_encoder
from decodehub.loaders.image_features import image_features
from decodehub.loaders.images import decode_image

from . import study_plots as plots
from .editbench import release_images
from .study_figure_data import (
    Row,
    alignment_rows,
    averaged_models,
    category_rows,
    distance_rows,
    failure_rows,
    quintile_rows,
    rank_rows,
    reference_distances,
)
from .study_paper import check_study, display_name, warnings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from decodehub.metrics.eeg_editbench.protocol import ScoredRuns

DISTANCE_TOLERANCE = 1e-4  # float32 features of one encoder on two machines


class Item(NamedTuple):
    """A figure: its number and title, the rows that it shows, how it is drawn, and why a part or all of it is missing."""

    number: str
    title: str
    rows: list[Row]
    draw: Callable[[str], Figure] | None
    reason: str = ""


class Reference(NamedTuple):
    """Distances of the edited images to the sources of other concepts (E,), or None with the reason."""

    distances: np.ndarray | None
    reason: str = ""


def write_figures(
    out: Path, scored: Mapping[str, ScoredRuns], records: Mapping[str, ResultRecord], gallery_data_dir: str | None
) -> list[Path]:
    """Write ``figure_N.png`` (200 dpi), ``.svg`` and ``.csv`` for each figure, and ``figures.md`` with captions.

    A figure that cannot be drawn has a CSV file with the reason alone; the reason is printed, too.

    Args:
        out: folder to write to.
        scored, records: see `write_tables`.
        gallery_data_dir: the release with the images (figures S3 and the reference of 5), as for ``load_dataset("eeg-editbench")``.

    Returns:
        The files written.

    Raises:
        ValueError: see `check_study`.
    """
    check_study(scored, records)
    note = " ".join(warnings(scored, records))
    written, captions = [], ["# Figures", ""]
    for item in _items(scored, records, gallery_data_dir):
        files = {"csv": from_dicts(item.rows or [{"reason": item.reason}]).csv().encode()}
        if item.draw is not None:
            with plots.style():
                files |= plots.rendered(item.draw(note))
            captions += [f"![Figure {item.number}](figure_{item.number}.png)", ""]
        if item.reason:
            typer.echo(f"figure {item.number}{'' if item.draw else ' not drawn'}: {item.reason}", err=True)
        captions += [f"**Figure {item.number}.** {' '.join(filter(None, [item.title, _sentence(item.reason), note]))}", ""]
        for suffix in ("png", "svg", "csv"):
            path = Path(out) / f"figure_{item.number}.{suffix}"
            if suffix in files:
                write_bytes(path, files[suffix])
                written.append(path)
            else:
                path.unlink(missing_ok=True)  # of an earlier study in this folder
    write_bytes(Path(out) / "figures.md", "\n".join(captions).encode())
    return [*written, Path(out) / "figures.md"]


def _items(scored: Mapping[str, ScoredRuns], records: Mapping[str, ResultRecord], data_dir: str | None) -> list[Item]:
    plan = next(iter(scored.values())).plan
    b = plan.benchmark
    names = averaged_models(scored)
    over = f"averaged over {', '.join(display_name(name) for name in names)}" if len(names) > 1 else f"of {display_name(names[0])}"
    no_distance, no_target = plan.unscored.get("distance", ""), plan.unscored.get("target", "")
    images = _Images(b, data_dir)

    def whole(number: str, title: str, rows: Callable[[], list[Row]], draw: Callable[[Sequence[Row], str], Figure], missing: str) -> Item:
        if missing:
            return Item(number, title, [], None, missing)
        found = rows()
        return Item(number, title, found, lambda note: draw(found, note))

    def by_category(number: str, metric: str) -> Item:
        title = _TITLES[number].format(over=over)
        return whole(number, title, lambda: category_rows(scored, metric), lambda rows, note: plots.categories(rows, metric, note), "")

    reference = Reference(None) if no_distance else _reference(b, records, images)
    five = whole("5", _TITLES["5"], lambda: distance_rows(b, reference.distances), plots.distances, no_distance)
    failing = failure_rows(scored)
    missing = "no edit fails stably for any model" if not failing else images.missing
    return [
        five._replace(reason=five.reason or reference.reason),
        by_category("6", "two_afc_minus_average"),
        whole("7", _TITLES["7"], lambda: alignment_rows(scored, records), plots.alignment, no_target),
        whole("S1", _TITLES["S1"], lambda: quintile_rows(scored), plots.quintiles, no_distance),
        by_category("S2", "two_afc"),
        Item("S3", _TITLES["S3"], failing, None if missing else lambda note: plots.failures(failing, images.pair, note), missing),
        whole("S4", _TITLES["S4"], lambda: rank_rows(scored), plots.ranks, no_target),
    ]


_TITLES = {
    "5": "Cosine distance of edited images to their source: quartiles, whiskers of at most 1.5 interquartile ranges, mean (diamond), with the "
    "median (dashed) and interquartile range (shaded) of each edited image's median distance to the sources of all other concepts.",
    "6": "2AFC of a source category minus that of all concepts under the same edit condition, percentage points, {over}. In brackets: concepts.",
    "7": "Target-concept alignment under identity edits. A: the edited image moves away from the EEG of its source (right) and towards the EEG "
    "of its target concept (up). B: similarity of source and edited image to the target concept's EEG. Lines: 95 % intervals over "
    "subjects. Models with another kind of score have panels of their own.",
    "S1": "2AFC over groups of equally many edits by visual distance, with 95 % intervals over subjects.",
    "S2": "2AFC by source category and edit condition, percent, {over}. In brackets: concepts.",
    "S3": "Edits that fail stably (for most runs, in most seeds, for most subjects), the first two of each family with different sources by "
    "number of models and of failures. Contains stimuli: mind their licence before you share it.",
    "S4": "Mean rank of the target concept's EEG among all, for the source image (open) and the edited image (filled); 1 is best. Lines: 95 % "
    "intervals over subjects.",
}


class _Images:
    """The images of a benchmark's release; `missing` says why they are not there, and is empty when they are."""

    def __init__(self, benchmark: Any, data_dir: str | None) -> None:
        self._edits = release_images(benchmark, data_dir)
        self._load_sources = lambda: release_images(benchmark, data_dir, "sources")
        self._row = {} if self._edits is None else {name: i for i, name in enumerate(self._edits["edit_id"])}
        self.missing = (
            "" if self._edits is not None else "the images on this machine are of another release (give its folder with --data-dir)"
        )

    def pair(self, edit_id: str) -> tuple[Any, Any, str]:
        """Source image, edited image, at most 256 pixels wide, and the instruction."""
        assert self._edits is not None
        row = self._edits[self._row[edit_id]]
        pair = [decode_image(row[name]["bytes"], name=f"{name} of {edit_id}") for name in ("source_image", "edited_image")]
        for image in pair:
            image.thumbnail((256, 256))
        return pair[0], pair[1], row["instruction"]

    def features(self, encoder: Any, edit_ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(E, D) features of the edits in the order of `edit_ids` and (Q, D) of the sources."""
        sources = self._load_sources()
        assert self._edits is not None and sources is not None
        order = [self._row[name] for name in edit_ids]
        edits = self._edits.select(order)["edited_image"]
        return tuple(image_features(encoder, list(x), cache_dir=home() / "features") for x in (edits, sources["image"]))  # type: ignore[return-value]


def _reference(benchmark: Any, records: Mapping[str, ResultRecord], images: _Images) -> Reference:
    """Encode the release with the encoder of the visual distances, and check that it gives those distances."""
    without = "drawn without the distance to other concepts: "
    encoders = {str(r.protocol.settings["distance_encoder"]) for r in records.values() if r.protocol.settings.get("distance_encoder")}
    if len(encoders) != 1:
        known = f"the records name {sorted(encoders)}" if encoders else "no record says which"
        return Reference(None, f"{without}it needs the encoder of the visual distances, and {known}")
    if images.missing:
        return Reference(None, without + images.missing)
    try:
        encoder = load_encoder(encoders.pop())
    except (EncoderUnavailableError, ValueError) as error:
        return Reference(None, f"{without}{error}")
    edits, sources = images.features(encoder, benchmark.edit_ids)
    unit_edits, unit_sources = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (edits, sources))
    again = 1 - np.einsum("ed,ed->e", unit_edits, unit_sources[benchmark.query])
    if (off := float(np.nanmax(np.abs(again - benchmark.distance)))) > DISTANCE_TOLERANCE:
        return Reference(None, f"{without}{encoder.name} gives distances that differ from the table's by up to {off:.2g}")
    return Reference(reference_distances(edits, sources, benchmark.query))


def _sentence(text: str) -> str:
    return text and text[0].upper() + text[1:] + "."
