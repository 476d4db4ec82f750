"""The test windows and labels of a release, and the check that predictions have exactly these.

A release knows its truth by value (the sample, or a folder of the real labels on this machine) or by a hash for each unit and fold
(``truth.csv``, for labels that are not carried here). Nothing is taken from the side that is scored.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from decodehub.core.files import home, sha256_bytes, sha256_json, write_bytes

from .grid import Grid, load_grid
from .predictions import Predictions

TABLE = Path(__file__).with_name("truth.csv")
FIELDS = ("unit", "fold", "n_test", "reason", "sha256")
SHOWN = 3  # folds that an error names
HOW = (
    'a file must have the test windows that load_dataset("imindbench", "labels") gives (part "test"; columns unit, fold, window, label), '
    "each once, and no others"
)

State = Literal["checked", "not checked"]
Cell = tuple[str, int]  # unit id, fold


class FoldTruth(NamedTuple):
    """The truth of one unit and fold.

    Attributes:
        sha256: see `fold_hash`. n_test: test windows.
        reason: why the release gives this fold no score (a part of it lacks a class); "" for a fold that must be scored.
        windows, labels: (n_test,) int64, windows ascending; None where only the hash is known.
    """

    sha256: str
    n_test: int
    reason: str
    windows: np.ndarray | None = None
    labels: np.ndarray | None = None


class Truth(NamedTuple):
    """What is known of a release here: `release` of the release itself, `folder` gives that of a folder of labels on this machine."""

    release: Mapping[Cell, FoldTruth]
    folder: Callable[[], Mapping[Cell, FoldTruth]]


class LabelCheck(NamedTuple):
    """What the check came to.

    Attributes:
        state: "checked" where the windows and labels of every fold are those of the release, "not checked" where that could not be known
            of some.
        unchecked: ids of their units.
        unscorable: reason by unit and fold, where the release gives no score.
        sha256: of the hashes of all folds, as they are in the predictions.
    """

    state: State
    unchecked: tuple[str, ...]
    unscorable: dict[Cell, str]
    sha256: str


def fold_hash(unit: str, fold: int, windows: np.ndarray, labels: np.ndarray) -> str:
    """``"sha256:..."`` of a unit, a fold and (n,) test windows with their labels, in whatever order."""
    order = np.argsort(windows, kind="stable")
    pairs = np.stack([np.asarray(windows)[order], np.asarray(labels)[order]], axis=1).astype("<i8")
    return sha256_bytes(f"{unit}|{fold}|".encode() + pairs.tobytes())


def load_truth(grid: Grid, data_dir: str | None = None) -> Truth:
    """What is known here of a release; nothing for a release that is not of this version.

    Args:
        grid: the release.
        data_dir: folder of real labels; by default ``$DECODEHUB_HOME/imindbench``, where there is one.

    Raises:
        ValueError: the units differ from those that the release has.
    """
    sample = grid.release.partition("-")[0] == "sample"
    installed = load_grid("sample" if sample else None)
    if installed.release != grid.release:
        return Truth({}, dict)
    if installed.content_hash != grid.content_hash:
        raise ValueError(
            f"release {grid.release!r} of imindbench has {len(installed.units)} units with the hash {installed.content_hash}, found "
            f"{len(grid.units)} with {grid.content_hash}: the table of units is not that of the release"
        )
    if sample:
        return Truth(_sample_truth(), dict)
    folder = Path(data_dir) if data_dir else home() / "imindbench"
    return Truth(packaged_truth(), lambda: labels_truth(str(folder)) if folder.is_dir() else {})


@cache
def _sample_truth() -> dict[Cell, FoldTruth]:
    return labels_truth("sample")


def labels_truth(data_dir: str) -> dict[Cell, FoldTruth]:
    """Truth by value, from ``load_dataset("imindbench", "labels")``; units whose files are not there are left out."""
    import datasets

    import decodehub  # noqa: F401  (registers the bare name)

    own = {} if data_dir == "sample" else {"partial": True}  # the sample is whole, and is then one cache with what a user loads
    frame = datasets.load_dataset("imindbench", "labels", data_dir=data_dir, split="labels", **own).to_pandas()
    truth = {}
    for (unit, fold), rows in frame.groupby(["unit", "fold"], sort=False):
        test = rows[rows["part"] == "test"].sort_values("window")
        windows, labels = test["window"].to_numpy(dtype=np.int64), test["label"].to_numpy(dtype=np.int64)
        truth[str(unit), int(fold)] = FoldTruth(
            fold_hash(str(unit), int(fold), windows, labels), len(test), _unscorable(rows), windows, labels
        )
    return truth


def _unscorable(rows: Any) -> str:
    """Which parts of a fold lack a class; "" for none."""
    counts = {part: [int(((rows["part"] == part) & (rows["label"] == c)).sum()) for c in (0, 1)] for part in ("train", "val", "test")}
    return "; ".join(f"{part} has {n0} windows of class 0 and {n1} of class 1" for part, (n0, n1) in counts.items() if not (n0 and n1))


@cache
def packaged_truth() -> dict[Cell, FoldTruth]:
    """Truth by hash of the real release, from ``truth.csv``, which says for how many of its units that could be made."""
    with TABLE.open(encoding="utf-8", newline="") as f:
        rows = list(csv.DictReader(f))
    return {(r["unit"], int(r["fold"])): FoldTruth("sha256:" + r["sha256"], int(r["n_test"]), r["reason"]) for r in rows}


def write_table(path: Path, truth: Mapping[Cell, FoldTruth]) -> None:
    """Write such a table of hashes, sorted by unit and fold."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(FIELDS)
    for (unit, fold), t in sorted(truth.items()):
        writer.writerow([unit, fold, t.n_test, t.reason, t.sha256.removeprefix("sha256:")])
    write_bytes(path, text.getvalue().encode())


def check_labels(predictions: Predictions, grid: Grid, truth: Truth) -> LabelCheck:
    """Check that predictions have exactly the test windows and labels of the release.

    Args:
        predictions: well-formed, as `predictions.score_cells` checks.
        grid: the release. truth: see `load_truth`.

    Raises:
        ValueError: windows that are missing or do not exist, labels that differ, or a fold that is skipped though the release scores
            it; counted, with the first of each.
    """
    cells = _cells(predictions)
    wrong = {cell: found for cell, found in cells.items() if cell not in truth.release or not _agrees(cell, found, truth.release[cell])}
    folder = truth.folder() if wrong else {}
    faults, unchecked, unscorable = [], set(), {}
    for cell, found in cells.items():
        own, release = folder.get(cell), truth.release.get(cell)
        verdict = _verdict(cell, found, release, own) if cell in wrong else "checked"
        if verdict == "not checked":
            unchecked.add(cell[0])
        elif verdict == "wrong":
            faults.append((cell, found, own or release))
        if (known := release or own) is not None and known.reason:
            unscorable[cell] = known.reason
    if faults:
        raise ValueError(_explain(faults, len(cells), grid.release))
    names = tuple(unit for unit in grid.ids if unit in unchecked)
    hashes = [[unit, fold, None if found is None else fold_hash(unit, fold, *found)] for (unit, fold), found in sorted(cells.items())]
    return LabelCheck("not checked" if names else "checked", names, unscorable, sha256_json(hashes))


_Found = tuple[np.ndarray, np.ndarray] | None  # test windows and labels of a fold; None for one that is skipped


def _cells(p: Predictions) -> dict[Cell, _Found]:
    chosen = np.flatnonzero((p.split == "test") | (p.reason != ""))
    _, index = np.unique(p.unit[chosen].astype(str), return_inverse=True)
    order = np.lexsort((p.window[chosen], p.fold[chosen], index))
    rows, key = chosen[order], (index * 2 + p.fold[chosen])[order]
    starts = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
    cells: dict[Cell, _Found] = {}
    for own in np.split(rows, starts[1:]):
        cell = str(p.unit[own[0]]), int(p.fold[own[0]])
        cells[cell] = None if p.reason[own[0]] else (p.window[own], p.label[own])
    return cells


def _agrees(cell: Cell, found: _Found, truth: FoldTruth) -> bool:
    if found is None:
        return bool(truth.reason)
    return len(found[0]) == truth.n_test and fold_hash(*cell, *found) == truth.sha256


def _verdict(cell: Cell, found: _Found, release: FoldTruth | None, own: FoldTruth | None) -> Literal["checked", "not checked", "wrong"]:
    """Of a fold that the release does not confirm, given the labels of this machine (`own`)."""
    if own is not None and _agrees(cell, found, own):
        # Labels of this machine that are not those of the release (other tables, or windows numbered otherwise) vouch for nobody else.
        return "checked" if release is None else "not checked"
    return "not checked" if own is None and release is None else "wrong"


def _explain(faults: Iterable[tuple[Cell, _Found, FoldTruth | None]], n_cells: int, release: str) -> str:
    lines, counts = [], {"missing": 0, "not in the release": 0, "with another label": 0}
    faults = list(faults)
    for (unit, fold), found, truth in faults:
        assert truth is not None
        where = f"unit {unit!r}, fold {fold}"
        if found is None:
            lines.append(f"{where} is skipped, but the release has both classes in it ({truth.n_test} test windows)")
        elif truth.windows is None or truth.labels is None:
            lines.append(
                f"{where}: its {len(found[0])} test windows or their labels are not those of the release (which has {truth.n_test})"
            )
        else:
            lines.append(f"{where}: {_differences(*found, truth.windows, truth.labels, counts)}")
    total = ", ".join(f"{n} windows {what}" for what, n in counts.items() if n)
    return (
        f"{len(faults)} of {n_cells} folds do not have the test windows and labels of release {release!r}{f' (in all {total})' if total else ''}. "
        f"{'; '.join(lines[:SHOWN])}{'; ...' if len(lines) > SHOWN else ''}. What is expected: {HOW}"
    )


def _differences(windows: np.ndarray, labels: np.ndarray, right: np.ndarray, right_labels: np.ndarray, counts: dict[str, int]) -> str:
    missing, surplus = np.setdiff1d(right, windows), np.setdiff1d(windows, right)
    _, a, b = np.intersect1d(windows, right, return_indices=True)
    changed = np.flatnonzero(labels[a] != right_labels[b])
    parts = []
    for what, n, first in (
        ("missing", len(missing), missing[:1]),
        ("not in the release", len(surplus), surplus[:1]),
        ("with another label", len(changed), windows[a][changed[:1]]),
    ):
        counts[what] += n
        if n:
            parts.append(f"{n} windows {what} (the first is {first[0]})")
    return ", ".join(parts)
