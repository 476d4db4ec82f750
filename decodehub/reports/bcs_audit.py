"""Tables and pages of the audit of conventional measures and of the degradation probe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from decodehub.core.tables import Column, Estimate, Format, Table
from decodehub.loaders.degradations import LEVELS

from .pages import ACCENT, INK, SECOND, environment_text, facts, plain_axes, svg, write_page

if TYPE_CHECKING:
    from markupsafe import Markup

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
PROBE_CAPTIONS = {
    "pooled": f"All images and levels ranked together, at most .968 where images differ. {PAPER_PROBE}",
    "per_image": "Each image on its own, then the mean (Eq. 6 as written), at most 1.",
}


def audit_table(result: Mapping[str, Any], signal: str, intervals: bool = True) -> Table:
    """Tables 1 and 12 for one signal: one row a measure, with its correlations and failure rates."""
    by = {(n["measure"], n["name"]): _estimate(n) for n in result["numbers"] if n["signal"] == signal}
    rows = [[name, *(by[name, c] for c in AUDIT_COLUMNS)] for name in result["measures"]]
    return Table(_columns(AUDIT_COLUMNS.values(), intervals), rows, caption=f"Against {signals_of(result)[signal]}.")


def dependence_note(result: Mapping[str, Any]) -> str:
    """The warning about measures that share an encoder with the head, or an empty text."""
    names = ", ".join(result["not_independent"])
    return f"{names}: the head sees the features of the same encoder, so agreement with it is no evidence for the measure." if names else ""


def signals_of(result: Mapping[str, Any]) -> dict[str, str]:
    """Signals of an audit with their titles, in its order."""
    return {n["signal"]: SIGNALS.get(n["signal"], n["signal"]) for n in result["numbers"]}


def probe_table(result: Mapping[str, Any], name: str = "pooled", intervals: bool = True) -> Table:
    """Table 2: one row a measure, one column a degradation; `name` is "pooled" or "per_image"."""
    by = {(n["measure"], n["degradation"]): _estimate(n) for n in result["numbers"] if n["name"] == name}
    rows = [[measure, *(by[measure, kind] for kind in LEVELS)] for measure in result["measures"]]
    return Table(_columns(LEVELS, intervals), rows, caption=PROBE_CAPTIONS[name])


def write_audit_page(path: Path, result: Mapping[str, Any]) -> None:
    """Write the page of an audit."""
    write_page(
        path,
        "bcs_audit.html",
        title="Audit of conventional measures",
        sample=SAMPLE_NOTE if result["sample"] else "",
        failed="; ".join(f"{key.removesuffix('.json')}: {error}" for key, error in result["failed"].items()),
        dependence=dependence_note(result),
        n_pairs=result["n_pairs"],
        n_concepts=result["n_concepts"],
        signals=result["signals"],
        plot=_audit_plot(result),
        tables=[audit_table(result, signal) for signal in signals_of(result)],
        rule=result["settings"]["failure_rule"],
        paper=PAPER,
        provenance=_provenance(result),
    )


def write_probe_page(path: Path, result: Mapping[str, Any]) -> None:
    """Write the page of a degradation probe."""
    write_page(
        path,
        "bcs_probe.html",
        title="Degradation probe",
        sample=result["sample"],
        n_images=result["n_images"],
        plot=_probe_plot(result),
        tables=[probe_table(result, name) for name in PROBE_CAPTIONS],
        provenance=_provenance(result),
    )


def _audit_plot(result: Mapping[str, Any]) -> Markup:
    names = list(result["measures"])
    signals = signals_of(result)
    by = {(n["measure"], n["signal"]): n for n in result["numbers"] if n["name"] == "rho"}
    figure = Figure(figsize=(6.6, 0.6 + 0.36 * len(names)))
    axis = figure.subplots()
    labeled: set[str] = set()
    for k, (signal, color) in enumerate(zip(signals, (ACCENT, SECOND, INK))):
        for i, name in enumerate(names):
            number = by[name, signal]
            if number["value"] is None:
                continue
            y = i + 0.16 * (k - (len(signals) - 1) / 2)
            axis.plot(number["value"], y, "o", color=color, ms=5, zorder=3, label=signals[signal] if signal not in labeled else None)
            labeled.add(signal)
            if number["ci95"]:
                axis.plot(number["ci95"], [y, y], color=color, lw=1.6, zorder=2)
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.axvline(0, color=INK, lw=0.8)
    axis.set_xlabel("Spearman's ρ", fontsize=9)
    if labeled:
        axis.legend(frameon=False, fontsize=8.5, loc="best")
    plain_axes(axis, "x")
    return svg(figure)


def _probe_plot(result: Mapping[str, Any]) -> Markup:
    names, kinds = list(result["measures"]), list(LEVELS)
    by = {(n["measure"], n["degradation"]): n["value"] for n in result["numbers"] if n["name"] == "pooled"}
    values = np.array([[by[name, kind] if by[name, kind] is not None else np.nan for kind in kinds] for name in names])
    figure = Figure(figsize=(6.6, 0.8 + 0.36 * len(names)))
    axis = figure.subplots()
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


def _provenance(result: Mapping[str, Any]) -> Table:
    made = result["environment"]
    rows = {"settings": ", ".join(f"{k} {v}" for k, v in result["settings"].items()), "made": result["created"]}
    for name, entry in result["measures"].items():
        if stated := [f"{k} {v}" for k, v in entry["settings"].items() if v is not None and k != "side"]:
            rows[name] = ", ".join(stated)
    rows |= {"values": result["values_sha256"], "environment": environment_text(made)}
    if made.get("command"):
        rows["command"] = str(made["command"])
    return facts(rows)


def _columns(titles: Iterable[str], intervals: bool) -> list[Column]:
    return [Column("measure", wrap=True), *(Column(title, Format(spread=("ci95",) if intervals else ())) for title in titles)]


def _estimate(number: Mapping[str, Any]) -> Estimate:
    return Estimate(number["value"], tuple(number["ci95"]) if number["ci95"] else None)
