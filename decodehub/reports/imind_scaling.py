"""Table and plot of the sample efficiency of iMINDBench models."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from decodehub.core.files import atomic_path, write_bytes
from decodehub.core.tables import Column, Estimate, Format, Table
from decodehub.metrics.imindbench.grid import SHORT_NAMES

from .pages import plain_axes, svg


def table(result: Mapping[str, Any], label: str) -> Table:
    """One data set or "overall": a row a model, a column a fraction."""
    fractions = list(dict.fromkeys(p["fraction"] for m in result["models"].values() for p in m["points"]))
    n = next(p["n_units"] for m in result["models"].values() for p in m["points"] if p["label"] == label)
    rows = []
    for name, model in result["models"].items():
        by = {p["fraction"]: p["value"] for p in model["points"] if p["label"] == label}
        gain = next(g for g in model["gain_per_doubling"] if g["label"] == label)
        rows.append([name, *(by[f] for f in fractions), Estimate(gain["value"], tuple(gain["ci95"]) if gain["ci95"] else None)])
    gains = Column("gain per doubling", Format(4, ("ci95",), signed=True))
    title = f"{SHORT_NAMES.get(label, label)}, {n} units: ROC-AUC by share of training windows"
    return Table(["model", *fractions, gains], rows, title=title)


def labels(result: Mapping[str, Any]) -> list[str]:
    """ "overall" and the data sets, as far as they are there."""
    return list(dict.fromkeys(p["label"] for m in result["models"].values() for p in m["points"]))


def write_plot(out: Path, result: Mapping[str, Any]) -> None:
    """Write ``scaling.png`` and ``scaling.svg`` to the folder `out`."""
    shown = labels(result)
    figure = Figure(figsize=(3.1 * len(shown) + 0.6, 3.2))
    axes = figure.subplots(1, len(shown), sharey=True, squeeze=False)
    for axis, label in zip(axes[0], shown):
        for k, (name, model) in enumerate(result["models"].items()):
            points = [p for p in model["points"] if p["label"] == label]
            x = np.log2([float(Fraction(p["fraction"])) for p in points])
            axis.plot(x, [p["value"] for p in points], "o-", color=f"C{k}", ms=4, lw=1.6, label=name, zorder=3)
            if all(p["ci95"] for p in points):
                axis.fill_between(x, *zip(*(p["ci95"] for p in points)), color=f"C{k}", alpha=0.15, lw=0)
        axis.axhline(0.5, color="#6b7785", lw=0.8, ls=":")
        axis.set_xticks(x, [p["fraction"] for p in points])
        axis.set_title(SHORT_NAMES.get(label, label.capitalize()), fontsize=10, loc="left")
        axis.set_xlabel("share of the training windows", fontsize=9)
        plain_axes(axis)
    axes[0][0].set_ylabel("ROC-AUC", fontsize=9)
    axes[0][0].legend(frameon=False, fontsize=8.5)
    if result["sample"]:
        figure.suptitle("SAMPLE: simulated recordings", fontsize=9, color="#c8702a", x=0.01, ha="left")
    figure.tight_layout()
    with atomic_path(out / "scaling.png") as part:
        figure.savefig(part, format="png", dpi=150, bbox_inches="tight", metadata={"Software": None})
    write_bytes(out / "scaling.svg", svg(figure).encode())
