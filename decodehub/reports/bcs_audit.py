"""Tables and pages of the audit of conventional measures and of the degradation probe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from decodehub.core.files import write_bytes
from decodehub.loaders.degradations import LEVELS

from .pages import ACCENT, INK, SECOND, esc, page, plain_axes, svg, table, table_rows, warning

AUDIT_COLUMNS = {"rho": "ρ", "r": "r", "harshness": "harshness", "blind_spot": "blind spot"}
SIGNALS = {"t_pas": "T-PAS", "t_sas": "T-SAS"}
SAMPLE_NOTE = "SAMPLE: degraded photographs, a rule-based annotator or a head trained on them. These numbers mean nothing scientific."
PAPER = (
    "In the paper (table 12, its own corpus) ρ with T-SAS is .06 for SSIM, .07 for MSE, .24 for LPIPS, .46 for DISTS, .58 for DINOv2, .63 for DreamSim "
    "and .68 for OpenCLIP."
)
PAPER_PROBE = (
    "In the paper (table 2, pooled, 1,085 images): MSE .738 .968 .779 .612 .625 .605, SSIM .720 .914 .844 .717 .579 .233, edge cosine .947 .905 .960 "
    ".836 -.607 .062, colour histogram .764 .943 .773 .727 .631 .898."
)

Rows = tuple[list[str], list[list[str]]]


def audit_rows(result: Mapping[str, Any], signal: str, intervals: bool = True) -> Rows:
    """Tables 1 and 12 for one signal: one row a measure, with its correlations and failure rates."""
    by = {(n["measure"], n["name"]): n for n in result["numbers"] if n["signal"] == signal}
    return ["measure", *AUDIT_COLUMNS.values()], [
        [name, *(_cell(by[name, c], intervals) for c in AUDIT_COLUMNS)] for name in result["measures"]
    ]


def dependence_note(result: Mapping[str, Any]) -> str:
    """What is to be said of measures that share an encoder with the head, or an empty text."""
    names = ", ".join(result["not_independent"])
    return f"{names}: the head sees the features of the same encoder, so agreement with it is no evidence for the measure." if names else ""


def signals_of(result: Mapping[str, Any]) -> dict[str, str]:
    """Signals of an audit with their titles, in its order."""
    return {n["signal"]: SIGNALS.get(n["signal"], n["signal"]) for n in result["numbers"]}


def probe_rows(result: Mapping[str, Any], name: str = "pooled", intervals: bool = True) -> Rows:
    """Table 2: one row a measure, one column a degradation; `name` is "pooled" or "per_image"."""
    by = {(n["measure"], n["degradation"]): n for n in result["numbers"] if n["name"] == name}
    return ["measure", *LEVELS], [[m, *(_cell(by[m, kind], intervals) for kind in LEVELS)] for m in result["measures"]]


def write_audit_page(path: Path, result: Mapping[str, Any]) -> None:
    """Write the page of an audit."""
    rule = result["settings"]["failure_rule"]
    failed = "; ".join(f"{key.removesuffix('.json')}: {error}" for key, error in result["failed"].items())
    body = [
        "<h1>Do conventional measures see what can be recovered?</h1>",
        warning(SAMPLE_NOTE if result["sample"] else ""),
        warning(f"Not computed: {esc(failed)}" if failed else ""),
        warning(esc(dependence_note(result))),
        f"<p>{result['n_pairs']:,} pairs of {result['n_concepts']:,} concepts; signals: {esc(result['signals'])}. Measures are turned so that larger is "
        "better.</p>",
        _figure("Rank correlation with what was recovered", _audit_plot(result), "Spearman's ρ with 95 % intervals over concepts."),
        *(table(*audit_rows(result, name), f"Against {title}.") for name, title in signals_of(result).items()),
        f"<p>ρ, r: Spearman and Pearson. Harshness: share of well recovered pairs that the measure puts into its lowest quarter. Blind spot: share of its "
        f"highest quarter that was not recovered (rule: {rule.replace('_', ' ')}{'; .25 is chance' if rule == 'paper' else ''}). {PAPER}</p>",
        _provenance(result),
    ]
    write_bytes(path, page("Audit of conventional measures", body))


def write_probe_page(path: Path, result: Mapping[str, Any]) -> None:
    """Write the page of a degradation probe."""
    body = [
        "<h1>Which degradations does a measure follow?</h1>",
        warning("SAMPLE: a few photographs that come with the package." if result["sample"] else ""),
        f"<p>{result['n_images']:,} images of 256 x 256 pixels, six degradations at four levels. A value near 1: quality falls with every level.</p>",
        _figure("Rank correlation with the level", _probe_plot(result), "Pooled over images, as in the paper."),
        table(*probe_rows(result, "pooled"), f"All images and levels ranked together, at most .968 where images differ. {PAPER_PROBE}"),
        table(*probe_rows(result, "per_image"), "Each image on its own, then the mean (Eq. 6 as written), at most 1."),
        _provenance(result),
    ]
    write_bytes(path, page("Degradation probe", body))


def _audit_plot(result: Mapping[str, Any]) -> str:
    names = list(result["measures"])
    signals = signals_of(result)
    by = {(n["measure"], n["signal"]): n for n in result["numbers"] if n["name"] == "rho"}
    figure, axis = plt.subplots(figsize=(6.6, 0.6 + 0.36 * len(names)))
    for k, (signal, color) in enumerate(zip(signals, (ACCENT, SECOND, INK))):
        for i, name in enumerate(names):
            number = by[name, signal]
            if number["value"] is None:
                continue
            y = i + 0.16 * (k - (len(signals) - 1) / 2)
            axis.plot(number["value"], y, "o", color=color, ms=5, zorder=3, label=signals[signal] if i == 0 else None)
            if number["ci95"]:
                axis.plot(number["ci95"], [y, y], color=color, lw=1.6, zorder=2)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.axvline(0, color=INK, lw=0.8)
    axis.set_xlabel("Spearman's ρ", fontsize=9)
    axis.legend(frameon=False, fontsize=8.5, loc="best")
    plain_axes(axis, "x")
    return svg(figure)


def _probe_plot(result: Mapping[str, Any]) -> str:
    names, kinds = list(result["measures"]), list(LEVELS)
    by = {(n["measure"], n["degradation"]): n["value"] for n in result["numbers"] if n["name"] == "pooled"}
    values = np.array([[by[name, kind] if by[name, kind] is not None else np.nan for kind in kinds] for name in names])
    figure, axis = plt.subplots(figsize=(6.6, 0.8 + 0.36 * len(names)))
    axis.imshow(values, cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
    for i, j in np.ndindex(values.shape):
        strong = abs(values[i, j]) > 0.6
        axis.text(
            j,
            i,
            f"{values[i, j]:.2f}" if np.isfinite(values[i, j]) else "–",
            ha="center",
            va="center",
            fontsize=8.5,
            color="white" if strong else INK,
        )
    axis.set_xticks(range(len(kinds)), kinds)
    axis.set_yticks(range(len(names)), names)
    axis.tick_params(length=0, labelsize=8.5)
    axis.spines[:].set_visible(False)
    return svg(figure)


def _figure(title: str, plot: str, caption: str) -> str:
    label = f'<div role="img" aria-label="{esc(title)}">{plot}</div>'
    return f"<figure><h2>{esc(title)}</h2>{label}<figcaption>{esc(caption)}</figcaption></figure>"


def _provenance(result: Mapping[str, Any]) -> str:
    made = result["environment"]
    rows = {"settings": ", ".join(f"{k} {v}" for k, v in result["settings"].items()), "made": result["created"]}
    for name, entry in result["measures"].items():
        if stated := [f"{k} {v}" for k, v in entry["settings"].items() if v is not None and k != "side"]:
            rows[name] = ", ".join(stated)
    rows |= {"values": result["values_sha256"], "environment": f"Python {made.get('python')}, {_packages(made)}"}
    if made.get("command"):
        rows["command"] = str(made["command"])
    return f"<section><h2>How this was made</h2><table>{table_rows([k, v] for k, v in rows.items())}</table></section>"


def _packages(made: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in made.get("packages", {}).items())


def _cell(number: Mapping[str, Any], intervals: bool) -> str:
    if number["value"] is None:
        return "–"
    text = f"{number['value']:.3f}"
    return f"{text} [{number['ci95'][0]:.3f}, {number['ci95'][1]:.3f}]" if intervals and number["ci95"] else text
