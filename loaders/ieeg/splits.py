"""The two within-session folds of a unit, and an audit of what they leak.

Neuroprobe balances the whole table first, interleaves the classes and cuts by position. BYD and Pippi cut by time first and balance inside
each part. Both hold out one half of the session, its first half for validation and its second for test.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from .labels import LabelTable

N_FOLDS = 2
PARTS = ("train", "val", "test")
NEUROPROBE_SEED = 42
CAPS: dict[str, int | None] = {"lite": 3500, "nano": 1000, "full": None}  # windows of both classes together
LABEL_MODE = "binary"  # part of the balancing seed

Parts = tuple[np.ndarray, np.ndarray, np.ndarray]  # rows of train, val, test
Tier = Literal["lite", "nano", "full"]


@dataclass(frozen=True, eq=False)
class Fold:
    """One fold: rows of a label table, balanced.

    Attributes:
        index: 0 or 1.
        train, val, test: (n,) int64 rows of the label table, in the order in which the benchmark has them.
        counts: by part, rows of class 0 and 1.
        status: ``"ok"``, or ``"unscorable"`` when a part lacks a class.
        reason: which parts lack which class; empty when ok.
    """

    index: int
    train: np.ndarray
    val: np.ndarray
    test: np.ndarray
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)
    status: str = "ok"
    reason: str = ""

    def part(self, name: str) -> np.ndarray:
        """Rows of ``"train"``, ``"val"`` or ``"test"``."""
        if name not in PARTS:
            raise KeyError(f"a fold has the parts {', '.join(PARTS)}, not {name!r}")
        return {"train": self.train, "val": self.val, "test": self.test}[name]


def make_folds(
    dataset: str,
    recording_id: str,
    task: str,
    table: LabelTable,
    *,
    tier: Tier = "lite",
    balance_seed: int = 0,
    seed: int = NEUROPROBE_SEED,
) -> list[Fold]:
    """The two within-session folds of one unit.

    Args:
        dataset: canonical id; Neuroprobe has a rule of its own.
        recording_id: enters the balancing seed of BYD and Pippi (`balanced_rows`).
        task: must be the task of the table.
        table: labelled windows, before balancing.
        tier: of Neuroprobe; its cap on the number of windows.
        balance_seed: of BYD and Pippi.
        seed: of Neuroprobe.

    Raises:
        ValueError: table of another unit, unknown tier, or fewer than 4 windows (two folds with validation and test need them).
    """
    if (dataset, task) != (table.dataset, table.task):
        raise ValueError(f"expected labels of {dataset}/{task}, found those of {table.dataset}/{table.task}")
    if tier not in CAPS:
        raise ValueError(f"tier must be one of {', '.join(CAPS)}, found {tier!r}")
    if len(table) < 2 * N_FOLDS:
        raise ValueError(f"{dataset}/{task}: {len(table)} windows are too few for {N_FOLDS} folds")
    if dataset == "neuroprobev2":
        parts = _interleaved_folds(table.label, CAPS[tier], seed)
    else:
        key = f"{dataset}|{balance_seed}|{recording_id}|{task}|{LABEL_MODE}"
        parts = _time_folds(table, key)
    return [describe_fold(k, table.label, *rows) for k, rows in enumerate(parts)]


def describe_fold(index: int, label: np.ndarray, train: np.ndarray, val: np.ndarray, test: np.ndarray) -> Fold:
    """A fold of these rows with its counts and status."""
    counts = {name: (int((label[r] == 0).sum()), int((label[r] == 1).sum())) for name, r in zip(PARTS, (train, val, test))}
    lacking = [f"{name} has {n0} windows of class 0 and {n1} of class 1" for name, (n0, n1) in counts.items() if not (n0 and n1)]
    return Fold(index, train, val, test, counts=counts, status="unscorable" if lacking else "ok", reason="; ".join(lacking))


def interleave(label: np.ndarray, cap: int | None, seed: int = NEUROPROBE_SEED) -> np.ndarray:
    """Rows balanced as in Neuroprobe: both classes down-sampled without replacement, sorted, and taken in turn, positive first.

    Args:
        label: (n,) 0 or 1, in the order of the word and pause tables.
        cap: windows of both classes together; None for all.
        seed: one generator; positives are drawn first. ``RandomState`` because the published draws are its.

    Returns:
        (2 m,) int64 rows; their labels are 1, 0, 1, 0, ...
    """
    rng = np.random.RandomState(seed)
    positive, negative = np.flatnonzero(label == 1), np.flatnonzero(label == 0)
    n = min(len(positive), len(negative))
    n = n if cap is None else min(n, cap // 2)
    drawn = [np.sort(rng.choice(rows, size=n, replace=False)) for rows in (positive, negative)]
    return np.stack(drawn, axis=1).ravel()


def _interleaved_folds(label: np.ndarray, cap: int | None, seed: int) -> list[Parts]:
    rows = interleave(label, cap, seed)
    # KFold(2) without shuffling: the first fold holds out the first half, the larger one when the number is odd (it never is here).
    middle = (len(rows) + 1) // 2
    folds = []
    for held in (slice(0, middle), slice(middle, None)):
        out, rest = rows[held], np.delete(rows, held)
        folds.append((rest, out[: len(out) // 2], out[len(out) // 2 :]))
    return folds


def _time_folds(table: LabelTable, key: str) -> list[Parts]:
    rows = np.argsort(table.start_s, kind="stable")
    middle = len(rows) // 2
    folds = []
    for k, held in enumerate((slice(0, middle), slice(middle, None))):
        out, rest = rows[held], np.delete(rows, held)
        parts = (rest, out[: len(out) // 2], out[len(out) // 2 :])
        train, val, test = (balanced_rows(part, table.label, f"{key}|{k}|{name}") for part, name in zip(parts, PARTS))
        folds.append((train, val, test))
    return folds


def balanced_rows(rows: np.ndarray, label: np.ndarray, key: str) -> np.ndarray:
    """`rows` with the larger class down-sampled without replacement to the smaller one, in their order; unchanged if a class is absent.

    Args:
        rows: (n,) rows of a label table.
        label: of the whole table.
        key: ``dataset|balance_seed|recording|task|mode|fold|part``. The generator's seed is its 8-byte BLAKE2b digest, little-endian.
    """
    classes = [rows[label[rows] == c] for c in (0, 1)]
    small, large = sorted(classes, key=len)
    if len(small) in (0, len(large)):
        return rows
    seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")
    drawn = np.random.default_rng(seed).choice(large, size=len(small), replace=False)
    return rows[np.isin(rows, np.concatenate([small, drawn]))]


# --------------------------------------------------------------------------------------------------------------------------------- audit


def audit_fold(table: LabelTable, fold: Fold) -> dict[str, Any]:
    """What one fold leaks, as a flat row of numbers.

    Returns:
        - ``n_PART``, ``positive_PART``: windows and share of class 1 in train, val and test.
        - ``overlap_val_train``, ``overlap_test_train``, ``overlap_test_val``: windows of the first part that share time with a window
          of the second; ``touch_...``: those that begin or end where one of the second ends or begins, without sharing time.
        - ``gap_...``: shortest time in seconds between windows of the two parts (0 when they overlap).
        - ``repeated_words_test_train``, ``repeated_words_share``: test windows of a word that is a training word as well (the same text
          in lower case), and their share of the test words; None without texts.
        - ``same_label_by_word``: accuracy on those windows of calling each by the training majority of its word; None when there are
          none or when all words are of one class.
        - ``duplicated_windows``: windows that are in two parts.
    """
    start, end = table.start_s, table.start_s + table.window_s
    row: dict[str, Any] = {}
    for name in PARTS:
        n0, n1 = fold.counts[name]
        row[f"n_{name}"] = n0 + n1
        row[f"positive_{name}"] = n1 / (n0 + n1) if n0 + n1 else None
    for a, b in (("val", "train"), ("test", "train"), ("test", "val")):
        gaps = _gaps(start, end, fold.part(a), fold.part(b))
        row[f"overlap_{a}_{b}"] = int((gaps < 0).sum())
        row[f"touch_{a}_{b}"] = int((gaps == 0).sum())
        row[f"gap_{a}_{b}"] = float(max(gaps.min(), 0.0)) if len(gaps) else None
    row |= _repeated_words(table, fold)
    everything = np.concatenate([fold.part(name) for name in PARTS])
    row["duplicated_windows"] = int(len(everything) - len(np.unique(everything)))
    return row


def _gaps(start: np.ndarray, end: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(len(a),) seconds from each window of `a` to the nearest of `b` (all of one length); negative when they overlap; empty if `b` is."""
    if not len(a) or not len(b):
        return np.empty(0)
    other = np.sort(start[b])
    length = end[b[0]] - start[b[0]]
    after = np.searchsorted(other, start[a])
    distance = np.minimum(np.abs(other[np.minimum(after, len(other) - 1)] - start[a]), np.abs(other[np.maximum(after - 1, 0)] - start[a]))
    gaps = distance - length
    return np.where(np.abs(gaps) < 1e-9, 0.0, gaps)


def _repeated_words(table: LabelTable, fold: Fold) -> dict[str, Any]:
    names = ("repeated_words_test_train", "repeated_words_share", "same_label_by_word")
    if table.text is None:
        return dict.fromkeys(names)
    text = np.array([str(t).lower() for t in table.text])
    votes: dict[str, list[int]] = {}
    for i in fold.train:
        if text[i]:
            votes.setdefault(text[i], []).append(int(table.label[i]))
    words = [i for i in fold.test if text[i]]
    known = [i for i in words if text[i] in votes]
    # Where words are one class and pauses the other, the word says nothing more.
    two = len({label for labels in votes.values() for label in labels}) > 1
    hits = [_majority_score(votes[text[i]], int(table.label[i])) for i in known] if two else []
    return {
        "repeated_words_test_train": len(known),
        "repeated_words_share": len(known) / len(words) if words else None,
        "same_label_by_word": float(np.mean(hits)) if hits else None,
    }


def _majority_score(labels: list[int], truth: int) -> float:
    """1 if the majority is the truth, .5 for a tie, 0 otherwise."""
    share = np.mean(labels)
    return 0.5 if share == 0.5 else float((share > 0.5) == bool(truth))


def audit(units: list[tuple[str, str, LabelTable]], **options: Any) -> list[dict[str, Any]]:
    """Audit many units: a row a fold, with ``unit``, ``dataset``, ``task``, ``fold``, ``status``, ``reason`` and the numbers of `audit_fold`.

    Args:
        units: (unit id, recording id, label table).
        options: of `make_folds`.
    """
    rows = []
    for unit, recording_id, table in units:
        for fold in make_folds(table.dataset, recording_id, table.task, table, **options):
            head = {"unit": unit, "dataset": table.dataset, "task": table.task, "fold": fold.index}
            rows.append(head | {"status": fold.status, "reason": fold.reason} | audit_fold(table, fold))
    return rows
