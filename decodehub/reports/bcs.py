"""Tables, plots and pages of BCS records: a head against the annotators' consensus, and reconstructions that a head has scored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

from decodehub.core.files import atomic_path, write_bytes
from decodehub.core.records import Metric, ResultRecord
from decodehub.loaders.images import encode_png, read_image
from decodehub.metrics.bcs.scoring import MEASURES, QUESTIONS, REGIMES, calibration, pearson, regimes, t_scores

from .pages import ACCENT, INK, SECOND, esc, gallery, page, plain_axes, provenance, svg, table, warning

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

Rows = tuple[list[str], list[list[str]]]
PairFiles = Sequence[tuple[str, Path, Path]]


def sample_note(record: ResultRecord) -> str:
    """What is to be said of a record of the sample, or an empty text."""
    if not record.is_sample:
        return ""
    return "SAMPLE: the head was trained on photographs with rule-based answers. These numbers show that everything works and mean nothing scientific."


def evaluation_rows(record: ResultRecord, intervals: bool = True) -> Rows:
    """Table 6 of a head and its baselines."""
    names = [""] + sorted({m.slice["baseline"] for m in record.metrics if "baseline" in m.slice})
    labels = {"": f"{record.model.id}, {record.protocol.settings['output_type']}", "train_mean": "mean of training targets"}
    rows = []
    for name in names:
        by = {m.name: m for m in record.metrics if m.slice == ({"baseline": name} if name else {})}
        rows.append([labels.get(name, name.replace("_", " ")), *(_cell(by[measure], intervals) for measure in MEASURES)])
    return ["predictor", *COLUMNS.values()], rows


def score_rows(record: ResultRecord, intervals: bool = True) -> Rows:
    """Table 9 of scored reconstructions, with T-PAS and T-SAS in front."""
    methods = [None] + sorted({m.slice["method"] for m in record.metrics if "method" in m.slice})
    rows = []
    for method in methods:
        slice_ = {"method": method} if method is not None else {}
        by = {(m.name, m.slice.get("regime")): m for m in record.metrics if {k: v for k, v in m.slice.items() if k == "method"} == slice_}
        shares = [by["regime_share", r] for r in REGIMES]
        cells = [f"{m.value:.3f}" if m.value is not None else "–" for m in shares]
        rows.append(
            [method or "all", str(by["t_pas", None].n), _cell(by["t_pas", None], intervals), _cell(by["t_sas", None], intervals), *cells]
        )
    return ["method", "pairs", "T-PAS", "T-SAS", *(TITLES[r].split(" (")[0] for r in REGIMES)], rows


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
    questions = [
        [q, *(f"{x:.3f}" if np.isfinite(x) else "–" for x in _question_row(targets[:, i], known[:, i], predictions[:, i]))]
        for i, q in enumerate(QUESTIONS)
    ]
    body = [
        "<h1>BCS: a head against the consensus of annotators</h1>",
        warning(esc(sample_note(record))),
        f"<p>{esc(record.data)}</p>",
        table(*evaluation_rows(record), f"Held-out concepts, {record.aggregation}. {PAPER}."),
        f'<figure><h2>Calibration</h2><div role="img" aria-label="calibration plots">{plot}</div><figcaption>Pairs in ten groups by '
        "prediction; a perfect head lies on the diagonal.</figcaption></figure>",
        table(["question", "MAE", "r", "mean target", "mean prediction"], questions, "Each question on its own."),
        _provenance(record),
    ]
    write_bytes(out / "report.html", page("BCS head", body))


def write_scores_page(path: Path, record: ResultRecord, question_scores: np.ndarray, pairs: PairFiles) -> None:
    """Write the page of scored reconstructions: numbers, where they lie, and the best, worst and most plausible but wrong pairs.

    Args:
        question_scores: (n, 12). pairs: n times name, file of the reference, file of the reconstruction.
    """
    t_pas, t_sas = t_scores(question_scores)
    where = regimes(t_pas, t_sas)
    both, gap = (t_pas + t_sas) / 2, t_pas - t_sas
    wrong = np.flatnonzero(where == REGIMES.index("high_p_low_s"))
    galleries = {
        "Best": (np.argsort(-both, kind="stable"), "Highest mean of T-PAS and T-SAS."),
        "Worst": (np.argsort(both, kind="stable"), "Lowest mean of T-PAS and T-SAS."),
        "Plausible but wrong": (
            wrong[np.argsort(-gap[wrong], kind="stable")],
            f"T-PAS of .5 or more with T-SAS under .5: {len(wrong)} of {len(pairs)} pairs; the widest gaps first.",
        ),
    }
    body = [
        f"<h1>BCS: {len(pairs)} reconstructions</h1>",
        warning(esc(sample_note(record))),
        f"<p>{esc(record.data)}</p>",
        table(
            *score_rows(record), f"{record.aggregation}. The last four columns are shares of pairs (table 9 of the paper, threshold .5)."
        ),
        f'<figure><h2>Where the pairs lie</h2><div role="img" aria-label="scatter of T-PAS and T-SAS">{_scatter(t_pas, t_sas, where)}</div></figure>',
        *(_gallery(title, text, order[:N_PAIRS], pairs, t_pas, t_sas) for title, (order, text) in galleries.items()),
        _provenance(record),
    ]
    write_bytes(path, page("BCS scores", body))


def _question_row(target: np.ndarray, known: np.ndarray, prediction: np.ndarray) -> tuple[float, float, float, float]:
    t, p = target[known], prediction[known].astype(np.float64)
    return (float(np.abs(t - p).mean()), pearson(p, t), float(t.mean()), float(p.mean())) if len(t) else (np.nan,) * 4


def _calibration(predicted: tuple[np.ndarray, np.ndarray], consensus: tuple[np.ndarray, np.ndarray]) -> plt.Figure:
    figure, axes = plt.subplots(1, 2, figsize=(7.4, 3.6))
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


def _scatter(t_pas: np.ndarray, t_sas: np.ndarray, where: np.ndarray) -> str:
    figure, axis = plt.subplots(figsize=(4.4, 4.1))
    for regime, colour in enumerate((ACCENT, SECOND, "#7a9a4a", "#8b95a1")):
        rows = where == regime
        axis.scatter(t_pas[rows], t_sas[rows], s=11, color=colour, alpha=0.6, lw=0, label=TITLES[REGIMES[regime]].split(" (")[0])
    axis.axhline(0.5, color=INK, lw=0.7, ls=(0, (3, 2)))
    axis.axvline(0.5, color=INK, lw=0.7, ls=(0, (3, 2)))
    axis.set(xlabel="T-PAS", ylabel="T-SAS", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
    axis.legend(fontsize=7.5, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    plain_axes(axis)
    return svg(figure)


def _gallery(title: str, text: str, rows: np.ndarray, pairs: PairFiles, t_pas: np.ndarray, t_sas: np.ndarray) -> str:
    cards = (
        (
            _thumbnail(pairs[i][1]),
            _thumbnail(pairs[i][2]),
            f"T-PAS {t_pas[i]:.2f}, T-SAS {t_sas[i]:.2f}<br><small style='overflow-wrap: anywhere'>{esc(pairs[i][0])}</small>",
        )
        for i in rows
    )
    note = f"{text} Reference left, reconstruction right." if len(rows) else text
    return gallery(title, note, ("reference", "reconstruction"), cards)


def _thumbnail(path: Path) -> bytes:
    image = read_image(path)
    image.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
    return encode_png(np.asarray(image))


def _cell(metric: Metric, intervals: bool = True) -> str:
    if metric.value is None:
        return "–"
    return f"{metric.value:.3f}" + (f" [{metric.ci95[0]:.3f}, {metric.ci95[1]:.3f}]" if metric.ci95 and intervals else "")


def _provenance(record: ResultRecord) -> str:
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
