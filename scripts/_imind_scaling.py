"""Sample efficiency of iMINDBench: the sweep over fractions of the training windows, its table, its plot."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from decodehub.files import atomic_path, sha256_file, write_bytes, write_json
from decodehub.metrics.imindbench.aggregate import unit_scores
from decodehub.metrics.imindbench.compare import Comparison
from decodehub.metrics.imindbench.grid import SHORT_NAMES, Grid, Unit
from decodehub.metrics.imindbench.predictions import load_fits, score_cells
from decodehub.metrics.imindbench.scaling import Curves, Point, complete_units, curve, gain_per_doubling
from decodehub.records import environment, now

from ._imind_models import ModelSpec
from ._imind_run import UnitFile, collect

SCALING = "scaling.json"


def read_fractions(text: str) -> list[Fraction]:
    """``"1,1/2,1/4"`` as fractions, largest first.

    Raises:
        ValueError: not a fraction above 0 and at most 1, or one that comes twice.
    """
    found = []
    for item in text.split(","):
        try:
            fraction = Fraction(item.strip())
        except (ValueError, ZeroDivisionError):
            raise ValueError(f"--fractions: expected numbers such as 1,1/2,1/4, found {item!r}") from None
        if not 0 < fraction <= 1 or fraction in found:
            raise ValueError(f"--fractions: {item.strip()} is not above 0 and at most 1, or comes twice")
        found.append(fraction)
    return sorted(found, reverse=True)


def at_fraction(spec: ModelSpec, fraction: Fraction) -> ModelSpec:
    """The same model, fitted to a share of the training windows of each fold."""
    return spec._replace(name=f"{spec.name}@{fraction.numerator}-{fraction.denominator}", fraction=fraction)


def unit_curves(
    files: Sequence[UnitFile], specs: Sequence[ModelSpec], fractions: Sequence[Fraction], units: Sequence[Unit], grid: Grid
) -> Curves:
    """AUC of every unit by model and fraction, from the saved predictions."""
    curves: dict[str, dict[Fraction, dict[str, float]]] = {}
    for spec in specs:
        for fraction in fractions:
            cells = score_cells(collect(files, at_fraction(spec, fraction).name, units), grid)
            curves.setdefault(spec.name, {})[fraction] = unit_scores(cells, cells.auc)
    return curves


def summarise(out: Path, curves: Curves, files: Sequence[UnitFile], grid: Grid, settings: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Write ``units.csv``, ``scaling.json`` and the plot, and give the content of the second.

    Raises:
        ValueError: no unit has a score everywhere.
    """
    units = complete_units(curves)
    every = {unit for scores in next(iter(curves.values())).values() for unit in scores}
    windows = _training_windows(files, set(units))
    models = {}
    for name, scores in curves.items():
        models[name] = {
            "points": [_point(p) for p in curve(scores, units, grid)],
            "gain_per_doubling": [_gain(g) for g in gain_per_doubling(scores, units, grid)],
        }
    rows = [["model", "fraction", "unit", "roc_auc"]]
    for name, scores in curves.items():
        for fraction in sorted(scores):
            rows += [[name, str(fraction), unit, f"{auc:.9g}" if np.isfinite(auc) else ""] for unit, auc in scores[fraction].items()]
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    write_bytes(out / "units.csv", text.getvalue().encode())
    result = {
        "release": grid.release,
        "content_hash": grid.content_hash,
        "sample": grid.release.startswith("sample"),
        "n_units": len(units),
        "units_without_a_score_somewhere": sorted(every - set(units)),
        "training_windows": windows,
        "models": models,
        "settings": dict(settings),
        "units_sha256": sha256_file(out / "units.csv"),
        "environment": environment(device=device, dtype="float32", seed=42),
        "created": now(),
    }
    write_json(out / SCALING, result)
    _plot(out, result)
    return result


def table(result: Mapping[str, Any], label: str) -> Any:
    """A rich table of one data set or "overall": a row a model, a column a fraction."""
    from rich.table import Table

    fractions = list(dict.fromkeys(p["fraction"] for m in result["models"].values() for p in m["points"]))
    n = next(p["n_units"] for m in result["models"].values() for p in m["points"] if p["label"] == label)
    shown = Table(title=f"{SHORT_NAMES.get(label, label)}, {n} units: ROC-AUC by share of training windows", title_justify="left")
    shown.add_column("model")
    for fraction in fractions:
        shown.add_column(fraction, justify="right")
    shown.add_column("gain per doubling", justify="right")
    for name, model in result["models"].items():
        by = {p["fraction"]: p["value"] for p in model["points"] if p["label"] == label}
        gain = next(g for g in model["gain_per_doubling"] if g["label"] == label)
        interval = f" [{gain['ci95'][0]:+.4f}, {gain['ci95'][1]:+.4f}]" if gain["ci95"] else ""
        shown.add_row(name, *(f"{by[f]:.3f}" for f in fractions), f"{gain['value']:+.4f}{interval}")
    return shown


def labels(result: Mapping[str, Any]) -> list[str]:
    """ "overall" and the data sets, as far as they are there."""
    return list(dict.fromkeys(p["label"] for m in result["models"].values() for p in m["points"]))


def _training_windows(files: Sequence[UnitFile], units: set[str]) -> dict[str, float]:
    """Median number of training windows of a fold by fraction."""
    counts: dict[str, list[int]] = {}
    for file in files:
        if file.unit in units:
            for fit in load_fits(file.path):
                if "train_windows" in fit:
                    counts.setdefault(str(fit["train_fraction"]), []).append(int(fit["train_windows"]))
    return {fraction: float(np.median(values)) for fraction, values in sorted(counts.items(), key=lambda item: Fraction(item[0]))}


def _point(point: Point) -> dict[str, Any]:
    return {
        "label": point.label,
        "fraction": str(point.fraction),
        "value": point.value,
        "ci95": None if point.ci95 is None else list(point.ci95),
        "n_units": point.n_units,
    }


def _gain(gain: Comparison) -> dict[str, Any]:
    return {
        "label": gain.label,
        "value": gain.difference,
        "ci95": None if gain.ci95 is None else list(gain.ci95),
        "p": gain.p,
        "n_units": gain.n_units,
        "n_persons": gain.n_clusters,
        "method": gain.method,
    }


def _plot(out: Path, result: Mapping[str, Any]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from ._pages import plain_axes, svg

    shown = labels(result)
    figure, axes = plt.subplots(1, len(shown), figsize=(3.1 * len(shown) + 0.6, 3.2), sharey=True, squeeze=False)
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
