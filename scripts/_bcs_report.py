"""Tables, plots and pages of BCS records: a head against the annotators' consensus, and reconstructions that a head has scored."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

from decodehub.files import atomic_path, write_bytes
from decodehub.loaders.images import encode_png, read_image
from decodehub.metrics.bcs.scoring import MEASURES, QUESTIONS, REGIMES, calibration, regimes, t_scores
from decodehub.records import Metric, ResultRecord

from ._editbench_report import _PAGE, ACCENT, INK, SECOND, _data_url, _esc

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
    svg = _svg(figure)
    write_bytes(out / "calibration.svg", svg.encode())
    with atomic_path(out / "calibration.png") as part:
        figure.savefig(part, format="png", dpi=150, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)
    questions = [
        [q, *(f"{x:.3f}" if np.isfinite(x) else "–" for x in _question_row(targets[:, i], known[:, i], predictions[:, i]))]
        for i, q in enumerate(QUESTIONS)
    ]
    body = [
        "<h1>BCS: a head against the consensus of annotators</h1>",
        _banner(record),
        f"<p>{_esc(record.data)}</p>",
        _table(*evaluation_rows(record), f"Held-out concepts, {record.aggregation}. {PAPER}."),
        f'<figure><h2>Calibration</h2><div role="img" aria-label="calibration plots">{svg}</div><figcaption>Pairs in ten groups by '
        "prediction; a perfect head lies on the diagonal.</figcaption></figure>",
        _table(["question", "MAE", "r", "mean target", "mean prediction"], questions, "Each question on its own."),
        _provenance(record),
    ]
    _write_page(out / "report.html", "BCS head", body)


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
        _banner(record),
        f"<p>{_esc(record.data)}</p>",
        _table(
            *score_rows(record), f"{record.aggregation}. The last four columns are shares of pairs (table 9 of the paper, threshold .5)."
        ),
        f'<figure><h2>Where the pairs lie</h2><div role="img" aria-label="scatter of T-PAS and T-SAS">{_scatter(t_pas, t_sas, where)}</div></figure>',
        *(_gallery(title, text, order[:N_PAIRS], pairs, t_pas, t_sas) for title, (order, text) in galleries.items()),
        _provenance(record),
    ]
    _write_page(path, "BCS scores", body)


def _question_row(target: np.ndarray, known: np.ndarray, prediction: np.ndarray) -> tuple[float, float, float, float]:
    from decodehub.metrics.bcs.scoring import pearson

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
        _style(axis)
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
    _style(axis)
    svg = _svg(figure)
    plt.close(figure)
    return svg


def _style(axis: plt.Axes) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8.5, length=0)
    axis.grid(color="#e4e8ec", lw=0.8, zorder=0)


def _svg(figure: plt.Figure) -> str:
    buffer = io.StringIO()
    with plt.rc_context({"svg.hashsalt": "decodehub"}):
        figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    return buffer.getvalue().split("?>", 1)[-1].split('.dtd">', 1)[-1]


def _gallery(title: str, text: str, rows: np.ndarray, pairs: PairFiles, t_pas: np.ndarray, t_sas: np.ndarray) -> str:
    if not len(rows):
        return f"<section><h2>{_esc(title)}</h2><p>{_esc(text)}</p></section>"
    cards = "".join(
        f'<li><div class=pair><img src="{_thumbnail(pairs[i][1])}" alt="reference"><img src="{_thumbnail(pairs[i][2])}" alt="reconstruction"></div>'
        f"T-PAS {t_pas[i]:.2f}, T-SAS {t_sas[i]:.2f}<br><small style='overflow-wrap: anywhere'>{_esc(pairs[i][0])}</small></li>"
        for i in rows
    )
    return (
        f"<section><h2>{_esc(title)}</h2><p>{_esc(text)} Reference left, reconstruction right.</p><ul class=gallery>{cards}</ul></section>"
    )


def _thumbnail(path: Path) -> str:
    image = read_image(path)
    image.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
    return _data_url(encode_png(np.asarray(image)))


def _cell(metric: Metric, intervals: bool = True) -> str:
    if metric.value is None:
        return "–"
    return f"{metric.value:.3f}" + (f" [{metric.ci95[0]:.3f}, {metric.ci95[1]:.3f}]" if metric.ci95 and intervals else "")


def _table(header: list[str], rows: list[list[str]], caption: str) -> str:
    head = "".join(f"<th scope=col>{_esc(h)}</th>" for h in header)
    lines = "".join(f"<tr><th scope=row>{_esc(row[0])}</th>{''.join(f'<td>{_esc(c)}</td>' for c in row[1:])}</tr>" for row in rows)
    return f"<table><caption>{_esc(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def _banner(record: ResultRecord) -> str:
    note = sample_note(record)
    return f'<p class="warn">{_esc(note)}</p>' if note else ""


def _provenance(record: ResultRecord) -> str:
    settings = record.protocol.settings
    rows = {
        "protocol": f"{record.protocol.name} {record.protocol.hash}",
        "release": record.benchmark.release,
        "content hash": record.benchmark.content_hash,
        "head": f"{record.model.id} (revision {record.model.revision or 'none'}, {record.model.parameters or '?'} parameters) {record.model.notes}",
        "encoders": "; ".join(f"{e['id']} {e['fingerprint'] or ''}" for e in settings["encoders"]),
        "output": settings["output_type"],
        "environment": f"Python {record.environment.get('python')}, "
        + ", ".join(f"{k} {v}" for k, v in record.environment.get("packages", {}).items()),
        "made": record.created,
    }
    cells = "".join(f"<tr><th scope=row>{_esc(k)}</th><td>{_esc(str(v))}</td></tr>" for k, v in rows.items())
    check = "<p>Check it: <code>decodehub verify FOLDER</code> scores the saved predictions anew.</p>"
    return f"<section><h2>How this was made</h2><table>{cells}</table>{check}</section>"


def _write_page(path: Path, title: str, body: Sequence[str]) -> None:
    places = {"{title}": _esc(title), "{body}": "\n".join(part for part in body if part)}
    write_bytes(path, re.sub(r"\{title\}|\{body\}", lambda place: places[place[0]], _PAGE).encode())
