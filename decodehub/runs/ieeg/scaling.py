"""Sample efficiency of iMINDBench: the sweep over fractions of the training windows."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from decodehub.core.files import sha256_file, write_bytes, write_json
from decodehub.core.records import environment, now
from decodehub.metrics.imindbench.aggregate import unit_scores
from decodehub.metrics.imindbench.compare import Comparison
from decodehub.metrics.imindbench.grid import Grid, Unit
from decodehub.metrics.imindbench.predictions import load_fits, score_cells
from decodehub.metrics.imindbench.protocol import SAMPLES
from decodehub.metrics.imindbench.scaling import Curves, Point, complete_units, curve, gain_per_doubling

from .models import ModelSpec
from .sweep import UnitFile, collect

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


def summarize(out: Path, curves: Curves, files: Sequence[UnitFile], grid: Grid, settings: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Write ``units.csv`` and ``scaling.json``, and give the content of the second.

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
        "sample": grid.release in SAMPLES,
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
    return result


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
        "ci_reason": gain.ci_reason,
        "p": gain.p,
        "p_min": gain.p_min,
        "shared": gain.shared,
        "n_units": gain.n_units,
        "n_persons": gain.n_clusters,
        "method": gain.method,
    }
