"""The 15 binary tasks of iMINDBench: from a table of words and pauses to windows with a label.

Neuroprobe takes the bottom and top quartile of a scalar feature, over words alone. BYD and Pippi take terciles; visual and auditory tasks
there use pauses as well. Percentiles are strict: the share of all values below one's own.

Source: Neuroprobe 0.1.8 for the first, the published label tables of the other two, which these rules give row for row where the
annotations are public (Pippi: speech, onset, word_index, word_gap, word_length).
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from decodehub.core.files import read_data

from .recording import DATASETS

if TYPE_CHECKING:
    import pandas as pd

WINDOW_S = 1.0
DECIMALS = 6  # durations and gaps are rounded to this before they are ranked: differences of float times are equal only up to noise
MAX_CSV_BYTES = 1 << 26

Kind = Literal["speech", "onset", "scalar", "gap", "classes", "count"]


@dataclass(frozen=True)
class Rule:
    """How a task is labelled.

    Attributes:
        kind: ``speech`` (words against pauses), ``onset`` (sentence starts against pauses), ``scalar`` (bottom against top of `column`),
            ``gap`` (the same of the pause before a word inside a sentence), ``classes`` (two values of `column`), ``count`` (any
            against none).
        column: of the word table, in the names of Brain Treebank.
        pauses: whether BYD and Pippi also rank and label the pauses.
        positive, negative: the two values of ``classes``.
    """

    kind: Kind
    column: str
    pauses: bool = False
    positive: int | str = 1
    negative: int | str = 0


RULES: dict[str, Rule] = {
    "onset": Rule("onset", "is_onset"),
    "speech": Rule("speech", ""),
    "volume": Rule("scalar", "rms", pauses=True),
    "delta_volume": Rule("scalar", "delta_rms", pauses=True),
    "pitch": Rule("scalar", "enhanced_pitch", pauses=True),
    "word_index": Rule("classes", "idx_in_sentence", positive=0, negative=1),
    "word_gap": Rule("gap", "sentence"),
    "gpt2_surprisal": Rule("scalar", "gpt2_surprisal"),
    "word_head_pos": Rule("classes", "bin_head", positive=0, negative=1),
    "word_part_speech": Rule("classes", "pos", positive="VERB", negative="NOUN"),
    "word_length": Rule("scalar", "word_length"),
    "global_flow": Rule("scalar", "max_global_magnitude", pauses=True),
    "local_flow": Rule("scalar", "max_vector_magnitude", pauses=True),
    "frame_brightness": Rule("scalar", "mean_pixel_brightness", pauses=True),
    "face_num": Rule("count", "face_num", pauses=True),
}
TASKS = tuple(RULES)


@dataclass(frozen=True, eq=False)
class EventTable:
    """What a film says and shows, on the clock of one recording.

    Attributes:
        dataset: canonical id; it decides the rules.
        words: a row a word: ``start_s`` (float64, window start on the recording's clock), ``start`` and ``end`` (seconds of the word on
            the clock of the annotation), ``text`` where known, and feature columns (see `RULES`).
        pauses: a row a window without speech: ``start_s``, and feature columns for BYD and Pippi.
        simulated: names what is simulated in it; empty for none.
    """

    dataset: str
    words: pd.DataFrame
    pauses: pd.DataFrame
    simulated: str = ""


@dataclass(frozen=True, eq=False)
class LabelTable:
    """Windows of one task with their labels, before splitting and balancing.

    Attributes:
        dataset: canonical id.
        task: one of `TASKS`.
        start_s: (n,) float64, window starts in seconds on the recording's clock. Of BYD and Pippi in time order; of Neuroprobe in the
            order of its word and pause tables, which its balancing relies on.
        label: (n,) int8, 0 or 1.
        text: (n,) the words, ``""`` for a pause; None where unknown.
        film_s: (n,) seconds of the film at the window's start, NaN where unknown; None when it is `start_s`.
        window_s: seconds a window.
    """

    dataset: str
    task: str
    start_s: np.ndarray
    label: np.ndarray
    text: np.ndarray | None = None
    film_s: np.ndarray | None = None
    window_s: float = WINDOW_S

    def __post_init__(self) -> None:
        where = f"labels of {self.dataset}/{self.task}"
        if self.dataset not in DATASETS or self.task not in RULES:
            raise ValueError(f"{where}: expected one of {', '.join(DATASETS)} and one of {', '.join(TASKS)}")
        if self.start_s.shape != self.label.shape or self.start_s.ndim != 1:
            raise ValueError(f"{where}: expected as many starts as labels, found {self.start_s.shape} and {self.label.shape}")
        if not np.isfinite(self.start_s).all() or not np.isin(self.label, (0, 1)).all():
            raise ValueError(f"{where}: starts must be finite and labels 0 or 1")

    def __len__(self) -> int:
        return len(self.label)

    @property
    def counts(self) -> tuple[int, int]:
        """Windows of class 0 and class 1."""
        return int((self.label == 0).sum()), int((self.label == 1).sum())


# ---------------------------------------------------------------------------------------------------------------------------- percentile


def strict_percentile(values: np.ndarray, missing: Literal["released_code", "drop"] = "drop") -> np.ndarray:
    """(n,) share in [0, 1) of all values that are smaller than each.

    Args:
        values: (n,) numbers; NaN is missing.
        missing: ``"drop"``: a missing value has percentile NaN and does not count among all; ``"released_code"``: it counts among all
            and its own percentile is 0, so that it falls in the lowest class, as a comparison with NaN gives in Neuroprobe.
    """
    values = np.asarray(values, dtype=np.float64)
    there = np.sort(values[~np.isnan(values)])
    below = np.searchsorted(there, values, side="left").astype(np.float64)
    if missing == "drop":
        return np.where(np.isnan(values), np.nan, below / max(len(there), 1))
    if missing == "released_code":
        return np.where(np.isnan(values), 0.0, below / max(len(values), 1))
    raise ValueError(f'missing must be "drop" or "released_code", found {missing!r}')


def _tail_labels(values: np.ndarray, dataset: str, gap: bool) -> np.ndarray:
    """(n,) int8: 0 in the lowest part, 1 in the highest, -1 between.

    Neuroprobe: below .25, above .75 (gaps: from .75 on). BYD and Pippi: below 1/3, above 2/3.
    """
    if dataset == "neuroprobev2":
        p = strict_percentile(values, "released_code")
        low, high = p < 0.25, (p >= 0.75) if gap else (p > 0.75)
    else:
        p = strict_percentile(values, "drop")
        low, high = p < 1 / 3, p > 2 / 3
    return np.where(low, 0, np.where(high, 1, -1)).astype(np.int8)


# --------------------------------------------------------------------------------------------------------------------------------- rules


def label_table(events: EventTable, task: str) -> LabelTable:
    """Label the windows of one task by its rule.

    Raises:
        KeyError: no such task. ValueError: the tables lack a column that the rule needs.
    """
    rule = get_rule(task)
    words = events.words
    with_pauses = rule.kind in ("speech", "onset") or (rule.pauses and events.dataset != "neuroprobev2")
    if rule.kind == "speech":
        word_labels = np.ones(len(words), dtype=np.int8)
        pause_labels = np.zeros(len(events.pauses), dtype=np.int8)
    elif rule.kind == "onset":
        word_labels = np.where(_column(words, rule.column, task).astype(np.float64) == 1, 1, -1).astype(np.int8)
        pause_labels = np.zeros(len(events.pauses), dtype=np.int8)
    elif rule.kind == "gap":
        word_labels, pause_labels = _gap_labels(words, events.dataset), None
    else:
        values = _values(words, rule, task, events.dataset)
        if with_pauses:
            values = np.concatenate([values, _values(events.pauses, rule, task, events.dataset)])
        labels = _value_labels(values, rule, events.dataset)
        word_labels, pause_labels = labels[: len(words)], labels[len(words) :]

    texts = words["text"].to_numpy(dtype=object) if "text" in words else None
    start, label = words["start_s"].to_numpy(dtype=np.float64), word_labels
    film = words["start"].to_numpy(dtype=np.float64)
    if with_pauses:
        assert pause_labels is not None
        start = np.concatenate([start, events.pauses["start_s"].to_numpy(dtype=np.float64)])
        label = np.concatenate([label, pause_labels])
        film = np.concatenate([film, np.full(len(events.pauses), np.nan)])
        texts = None if texts is None else np.concatenate([texts, np.full(len(events.pauses), "", dtype=object)])
    keep = np.flatnonzero(label >= 0)
    if events.dataset != "neuroprobev2":
        keep = keep[np.argsort(start[keep], kind="stable")]
    own_clock = events.dataset == "neuroprobev2"  # the films of the others begin at 0 of their recordings
    return LabelTable(
        events.dataset,
        task,
        start[keep],
        label[keep],
        None if texts is None else texts[keep],
        film[keep] if own_clock else None,
    )


def get_rule(task: str) -> Rule:
    """The rule of a task. Raises KeyError for a name that is none of `TASKS`."""
    if task not in RULES:
        raise KeyError(f"no task is called {task!r}; there are {', '.join(TASKS)}")
    return RULES[task]


def _column(table: pd.DataFrame, column: str, task: str) -> np.ndarray:
    if column not in table:
        raise ValueError(f"task {task!r} needs the column {column!r}; the table has {', '.join(map(str, table.columns))}")
    return table[column].to_numpy()


def _values(table: pd.DataFrame, rule: Rule, task: str, dataset: str) -> np.ndarray:
    values = _column(table, rule.column, task)
    if rule.kind == "scalar":
        values = values.astype(np.float64)
        if rule.column == "word_length" and dataset != "neuroprobev2":
            values = np.round(values, DECIMALS)
    return values


def _value_labels(values: np.ndarray, rule: Rule, dataset: str) -> np.ndarray:
    if rule.kind == "scalar":
        return _tail_labels(values, dataset, gap=False)
    if rule.kind == "count":
        counts = values.astype(np.float64)
        return np.where(counts > 0, 1, np.where(counts == 0, 0, -1)).astype(np.int8)
    return np.where(values == rule.positive, 1, np.where(values == rule.negative, 0, -1)).astype(np.int8)


def _gap_labels(words: pd.DataFrame, dataset: str) -> np.ndarray:
    """Pause before each word inside a sentence, ranked among such pauses; -1 for the first word of a sentence."""
    sentence = _column(words, "sentence", "word_gap")
    start, end = (_column(words, name, "word_gap").astype(np.float64) for name in ("start", "end"))
    labels = np.full(len(words), -1, dtype=np.int8)
    inside = np.flatnonzero(sentence[1:] == sentence[:-1]) + 1
    gaps = start[inside] - end[inside - 1]
    labels[inside] = _tail_labels(gaps if dataset == "neuroprobev2" else np.round(gaps, DECIMALS), dataset, gap=True)
    return labels


# -------------------------------------------------------------------------------------------------------------------------------- pauses


def film_pauses(onset: np.ndarray, offset: np.ndarray, *, min_gap: float = 2.0, margin: float = 0.5, step: float = 0.5) -> np.ndarray:
    """Starts in seconds of the windows without speech of BYD and Pippi.

    Between words more than `min_gap` apart: from `margin` after the word's end on, every `step`, up to (not including) `margin` before the
    next word. A window lasts 1 s, so the last of a pause may reach up to .5 s into the next word. Nothing before the first or after
    the last word.

    Args:
        onset, offset: (n,) seconds, words in order.
    """
    onset, offset = np.asarray(onset, dtype=np.float64), np.asarray(offset, dtype=np.float64)
    starts: list[np.ndarray] = []
    for i in np.flatnonzero(np.round(onset[1:] - offset[:-1], DECIMALS) > min_gap):
        first, last = offset[i] + margin, onset[i + 1] - margin
        count = int(np.ceil(round((last - first) / step, DECIMALS)))
        starts.append(first + step * np.arange(count))
    return np.concatenate(starts) if starts else np.empty(0)


def neuroprobe_pauses(onset: np.ndarray, offset: np.ndarray, *, sfreq: int = 2048, padding: float = 2.0) -> np.ndarray:
    """First samples (int64) of the 1 s windows without speech of Neuroprobe, half overlapping.

    A window begins at least `padding` after the end of the word before, and ends at least `padding` + 1 s before the next word.

    Args:
        onset, offset: (n,) samples, words in the order of the table.
    """
    onset, offset = np.asarray(onset, dtype=np.int64), np.asarray(offset, dtype=np.int64)
    pad, length = round(padding * sfreq), round(WINDOW_S * sfreq)
    first, last = offset[:-1] + pad, onset[1:] - pad - 2 * length
    pieces = [np.arange(a, b + 1, length // 2) for a, b in zip(first, last) if b >= a]
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)


# ----------------------------------------------------------------------------------------------------------------------- published tables


def read_labels_csv(path: Path, dataset: str, task: str) -> LabelTable:
    """A published label table: a CSV with the columns start_time_s, label; starts strictly increasing.

    Raises:
        FileNotFoundError: no such file. ValueError: not such a table; the message names file and line.
    """
    path = Path(path)
    lines = read_data(path, max_bytes=MAX_CSV_BYTES).decode("utf-8-sig").splitlines()
    rows = list(csv.reader(lines))
    if not rows or [c.strip() for c in rows[0]] != ["start_time_s", "label"]:
        raise ValueError(f"{path}: expected the columns start_time_s,label in line 1, found {','.join(rows[0]) if rows else 'nothing'!r}")
    starts: list[float] = []
    labels: list[int] = []
    for number, row in enumerate(rows[1:], start=2):
        try:
            start, label = float(row[0]), int(row[1])
        except (ValueError, IndexError):
            raise ValueError(f"{path}, line {number}: expected seconds and 0 or 1, found {','.join(row)!r}") from None
        if label not in (0, 1) or not np.isfinite(start) or (starts and start <= starts[-1]):
            raise ValueError(
                f"{path}, line {number}: expected a later start than in the line before and a label 0 or 1, found {','.join(row)!r}"
            )
        starts.append(start)
        labels.append(label)
    if not starts:
        raise ValueError(f"{path} has no windows")
    return LabelTable(dataset, task, np.array(starts), np.array(labels, dtype=np.int8))


def labels_csv_name(task: str) -> str:
    """File name of a published binary label table: ``onset_binary_labels.csv``."""
    get_rule(task)
    return f"{task}_binary_labels.csv"
