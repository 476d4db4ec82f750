"""Tables, plots and pages of BCS records: a head against the annotators' consensus, and reconstructions that a head has scored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from decodehub.core.files import atomic_path, write_bytes
from decodehub.core.records import ResultRecord
from decodehub.core.tables import Column, Format, Table, estimate
from decodehub.loaders.images import encode_png, read_image
from decodehub.metrics.bcs.scoring import MEASURES, QUESTIONS, REGIMES, calibration, pearson, regimes, t_scores

from .pages import ACCENT, INK, SECOND, data_url, plain_axes, provenance, svg, write_page

if TYPE_CHECKING:
    from markupsafe import Markup

THUMBNAIL = 160
N_PAIRS = 8
TITLES = {
    "high_p_high_s": "High P/High S (coherent)",
    "high_p_low_s": "High P/Low S (plausible but wrong)",
    "low_p_high_s": "Low P/High S (meaning without likeness)",
    "low_p_low_s": "Low P/Low S (failed)",
}
COLUMNS = dict(zip(MEASURES, ("Q-MAE", "Q-r", "Q-ρ", "PAS MAE", "PAS-r", "SAS MAE", "SAS-r")))
PAPER = "4-VLM continuous ensemble of the paper, on its own corpus: .137, .815, .798, .079, .700, .082, .850"

PairFiles = Sequence[tuple[str, Path, Path]]


def sample_note(record: ResultRecord) -> str:
    """The warning that goes with a record of the sample, or an empty text."""
    if not record.is_sample:
        return ""
    return "SAMPLE: the head was trained on photographs with rule-based answers. These numbers show that everything works and mean nothing scientific."


def evaluation_table(record: ResultRecord, intervals: bool = True) -> Table:
    """Table 6 of a head and its baselines."""
    names = [""] + sorted({m.slice["baseline"] for m in record.metrics if "baseline" in m.slice})
    labels = {"": f"{record.model.id}, {record.protocol.settings['output_type']}", "train_mean": "mean of training targets"}
    rows = []
    for name in names:
        by = {m.name: m for m in record.metrics if m.slice == ({"baseline": name} if name else {})}
        rows.append([labels.get(name, name.replace("_", " ")), *(estimate(by[measure]) for measure in MEASURES)])
    columns = [Column("predictor", wrap=True), *_numbers(COLUMNS.values(), intervals)]
    return Table(columns, rows, caption=f"Held-out concepts, {record.aggregation}. {PAPER}.")


def score_table(record: ResultRecord, intervals: bool = True) -> Table:
    """Table 9 of scored reconstructions, with T-PAS and T-SAS in front."""
    methods = [None] + sorted({m.slice["method"] for m in record.metrics if "method" in m.slice})
    rows = []
    for method in methods:
        slice_ = {"method": method} if method is not None else {}
        by = {(m.name, m.slice.get("regime")): m for m in record.metrics if {k: v for k, v in m.slice.items() if k == "method"} == slice_}
        shares = (by["regime_share", regime].value for regime in REGIMES)
        rows.append([method or "all", by["t_pas", None].n, *(estimate(by[name, None]) for name in ("t_pas", "t_sas")), *shares])
    columns = [Column("method", wrap=True), "pairs", *_numbers(("T-PAS", "T-SAS"), intervals), *(TITLES[r].split(" (")[0] for r in REGIMES)]
    caption = f"{record.aggregation}. The last four columns are shares of pairs (table 9 of the paper, threshold .5)."
    return Table(columns, rows, caption=caption)


def write_evaluation(out: Path, record: ResultRecord, targets: np.ndarray, weights: np.ndarray, predictions: np.ndarray) -> None:
    """Write ``report.html``, ``calibration.svg`` and ``calibration.png`` of a trained head.

    Args:
        targets, weights, predictions: (n, 12) of the test pairs.
    """
    known = np.isfinite(targets) & (weights > 0)
    figure = _calibration(t_scores(predictions, known), t_scores(targets, known))
    with atomic_path(out / "calibration.png") as part:
        figure.savefig(part, format="png", dpi=150, bbox_inches="tight", metadata={"Software": None})
    plot = svg(figure)
    write_bytes(out / "calibration.svg", plot.encode())
    write_page(
        out / "report.html",
        "bcs_head.html",
        title="BCS head",
        note=sample_note(record),
        data=record.data,
        agreement=evaluation_table(record),
        plot=plot,
        questions=Table(
            ["question", "MAE", "r", "mean target", "mean prediction"],
            [[q, *_question_row(targets[:, i], known[:, i], predictions[:, i])] for i, q in enumerate(QUESTIONS)],
            caption="Each question on its own.",
        ),
        provenance=_provenance(record),
    )


def write_scores_page(path: Path, record: ResultRecord, question_scores: np.ndarray, pairs: PairFiles) -> None:
    """Write the page of scored reconstructions: numbers, where they lie, and the best, worst and most plausible but wrong pairs.

    Args:
        question_scores: (n, 12). pairs: n times name, file of the reference, file of the reconstruction.
    """
    t_pas, t_sas = t_scores(question_scores)
    where = regimes(t_pas, t_sas)
    both, gap = (t_pas + t_sas) / 2, t_pas - t_sas
    wrong = np.flatnonzero(where == REGIMES.index("high_p_low_s"))
    galleries = (
        ("Best", "Highest mean of T-PAS and T-SAS.", np.argsort(-both, kind="stable")),
        ("Worst", "Lowest mean of T-PAS and T-SAS.", np.argsort(both, kind="stable")),
        (
            "Plausible but wrong",
            f"T-PAS of .5 or more with T-SAS under .5: {len(wrong)} of {len(pairs)} pairs; the widest gaps first.",
            wrong[np.argsort(-gap[wrong], kind="stable")],
        ),
    )

    def card(i: int) -> dict[str, Any]:
        name, reference, reconstruction = pairs[i]
        return {"name": name, "left": _thumbnail(reference), "right": _thumbnail(reconstruction), "t_pas": t_pas[i], "t_sas": t_sas[i]}

    write_page(
        path,
        "bcs_scores.html",
        title="BCS scores",
        n_pairs=len(pairs),
        note=sample_note(record),
        data=record.data,
        scores=score_table(record),
        plot=_scatter(t_pas, t_sas, where),
        galleries=[{"title": title, "text": text, "cards": [card(i) for i in order[:N_PAIRS]]} for title, text, order in galleries],
        provenance=_provenance(record),
    )


def _numbers(titles: Iterable[str], intervals: bool) -> list[Column]:
    return [Column(title, Format(spread=("ci95",) if intervals else ())) for title in titles]


def _question_row(target: np.ndarray, known: np.ndarray, prediction: np.ndarray) -> tuple[float, float, float, float]:
    t, p = target[known], prediction[known].astype(np.float64)
    return (float(np.abs(t - p).mean()), pearson(p, t), float(t.mean()), float(p.mean())) if len(t) else (np.nan,) * 4


def _calibration(predicted: tuple[np.ndarray, np.ndarray], consensus: tuple[np.ndarray, np.ndarray]) -> Figure:
    figure = Figure(figsize=(7.4, 3.6))
    axes = figure.subplots(1, 2)
    for axis, name, x, y in zip(axes, ("T-PAS", "T-SAS"), predicted, consensus):
        there = np.isfinite(y)
        axis.plot([0, 1], [0, 1], color=INK, lw=0.8, ls=(0, (3, 2)), zorder=1)
        axis.scatter(x[there], y[there], s=7, color=ACCENT, alpha=0.35, lw=0, zorder=2)
        groups = calibration(x[there], y[there])
        axis.plot(groups[:, 0], groups[:, 1], color=SECOND, marker="o", ms=4, lw=1.4, zorder=3)
        axis.set(xlabel=f"predicted {name}", ylabel=f"consensus {name}", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
        plain_axes(axis)
    figure.tight_layout()
    return figure


def _scatter(t_pas: np.ndarray, t_sas: np.ndarray, where: np.ndarray) -> Markup:
    figure = Figure(figsize=(4.4, 4.1))
    axis = figure.subplots()
    for regime, colour in enumerate((ACCENT, SECOND, "#7a9a4a", "#8b95a1")):
        rows = where == regime
        axis.scatter(t_pas[rows], t_sas[rows], s=11, color=colour, alpha=0.6, lw=0, label=TITLES[REGIMES[regime]].split(" (")[0])
    axis.axhline(0.5, color=INK, lw=0.7, ls=(0, (3, 2)))
    axis.axvline(0.5, color=INK, lw=0.7, ls=(0, (3, 2)))
    axis.set(xlabel="T-PAS", ylabel="T-SAS", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
    axis.legend(fontsize=7.5, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    plain_axes(axis)
    return svg(figure)


def _thumbnail(path: Path) -> str:
    image = read_image(path)
    image.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
    return data_url(encode_png(np.asarray(image)))


def _provenance(record: ResultRecord) -> Table:
    settings = record.protocol.settings
    rows = {
        "protocol": f"{record.protocol.name} {record.protocol.hash}",
        "release": record.benchmark.release,
        "content hash": record.benchmark.content_hash,
        "head": f"{record.model.id} (revision {record.model.revision or 'none'}, {record.model.parameters or '?'} parameters) {record.model.notes}",
        "encoders": "; ".join(f"{e['id']} {e['fingerprint'] or ''}" for e in settings["encoders"]),
        "output": settings["output_type"],
    }
    return provenance(record, rows)
