"""Word and pause tables of the three data sets, from the files that their owners publish.

- Neuroprobe: timing tables (and voice pitch) in the PyPI package ``neuroprobe``, whose data files are read without importing it; the other
  features in ``transcripts/FILM/features.csv`` of Brain Treebank.
- Pippi: the word and sentence annotations of OpenNeuro ds003688.
- BYD: no word table is public; use the published label tables (`decodehub.loaders.ieeg.labels.read_labels_csv`).
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pandas as pd

from .labels import EventTable, film_pauses

NEUROPROBE_SFREQ = 2048
PITCH_DECIMALS = 5  # voice pitch is looked up by the word's start to this many decimals
FILMS = {  # by subject and trial of Brain Treebank
    (1, 0): "fantastic-mr-fox",
    (1, 1): "the-martian",
    (1, 2): "thor-ragnarok",
    (2, 0): "venom",
    (2, 1): "spider-man-3-homecoming",
    (2, 2): "guardians-of-the-galaxy",
    (2, 3): "guardians-of-the-galaxy-2",
    (2, 4): "avengers-infinity-war",
    (2, 5): "black-panther",
    (2, 6): "aquaman",
    (3, 0): "cars-2",
    (3, 1): "lotr-1",
    (3, 2): "lotr-2",
    (4, 0): "shrek-the-third",
    (4, 1): "megamind",
    (4, 2): "incredibles",
    (5, 0): "fantastic-mr-fox",
    (6, 0): "megamind",
    (6, 1): "toy-story",
    (6, 4): "coraline",
    (7, 0): "cars-2",
    (7, 1): "megamind",
    (8, 0): "sesame-street-episode-3990",
    (9, 0): "ant-man",
    (10, 0): "cars-2",
    (10, 1): "spider-man-far-from-home",
}
TEXT = ("full_word", "text", "word", "sentence", "pos")  # columns of words, whatever is in them
PIPPI_ANNOTATIONS = "stimuli/annotations/sound"
# A word of the annotation that the published labels do not have; neither its onset nor its end is used there.
PIPPI_LEFT_OUT = (("kous", 335.288),)


# ----------------------------------------------------------------------------------------------------------------------------- Neuroprobe


def neuroprobe_folder() -> Path | None:
    """Data folder of the installed package ``neuroprobe`` (found, not imported); None when it is not installed."""
    spec = importlib.util.find_spec("neuroprobe")
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def neuroprobe_events(subject: int, trial: int, *, folder: Path | None = None, features: Path | None = None) -> EventTable:
    """Words and pauses of one Brain Treebank session; ``start_s`` is the sample in the recording divided by 2048 Hz.

    Args:
        subject, trial: numbers of Brain Treebank, trials from 0.
        folder: with the timing tables; default the installed package ``neuroprobe``.
        features: root folder of a Brain Treebank download, or a ``features.csv``; without it, there are only the tasks ``speech`` and ``pitch``.

    Raises:
        KeyError: no such session. FileNotFoundError: the package or a file is missing. ValueError: a table lacks columns or words.
    """
    if (subject, trial) not in FILMS:
        raise KeyError(f"Brain Treebank has no subject {subject} with trial {trial}; it has {', '.join(f'{s}_{t}' for s, t in FILMS)}")
    root = folder or neuroprobe_folder()
    if root is None:
        raise FileNotFoundError(
            "timing tables of Neuroprobe: give folder=, or 'pip install neuroprobe' (27 MB; only its data files are read)"
        )
    words = _timing(root, f"subject{subject}_trial{trial}_words_df", ("original_index", "est_idx", "est_end_idx", "start", "end"))
    pauses = _timing(root, f"subject{subject}_trial{trial}_nonverbal_df", ("est_idx", "est_end_idx"))
    table = pd.DataFrame(
        {
            "start_s": words["est_idx"].astype(np.int64) / NEUROPROBE_SFREQ,
            "start": words["start"],
            "end": words["end"],
            "text": words["full_word"].fillna("").astype(str) if "full_word" in words else "",
            "original_index": words["original_index"].astype(np.int64),
            "est_idx": words["est_idx"].astype(np.int64),
            "est_end_idx": words["est_end_idx"].astype(np.int64),
        }
    )
    if "char_in_sentence" in words:
        table["char_in_sentence"] = words["char_in_sentence"].astype(np.int64)
    if (pitch := _pitch(root, FILMS[subject, trial])) is not None:
        table["enhanced_pitch"] = _look_up(pitch, words["start"].to_numpy(), FILMS[subject, trial])
    if features is not None:
        table = _with_features(table, features, FILMS[subject, trial])
    starts = pd.DataFrame({"start_s": pauses["est_idx"].astype(np.int64) / NEUROPROBE_SFREQ, "est_idx": pauses["est_idx"].astype(np.int64)})
    return EventTable("neuroprobev2", table, starts)


def _timing(root: Path, name: str, columns: tuple[str, ...]) -> pd.DataFrame:
    places = [
        root / sub / f"{name}{end}"
        for sub in ("braintreebank_features_time_alignment", "time_alignment", ".")
        for end in (".csv", ".csv.gz")
    ]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise FileNotFoundError(
            f"{root} has no {name}.csv (or .csv.gz) in braintreebank_features_time_alignment/, time_alignment/ or itself"
        )
    table = read_events(found)
    if missing := [c for c in columns if c not in table]:
        raise ValueError(f"{found} lacks the columns {', '.join(missing)}; it has {', '.join(table.columns)}")
    if table[list(columns)].isna().any().any():
        row = int(np.flatnonzero(table[list(columns)].isna().any(axis=1))[0])
        raise ValueError(f"{found}, row {row + 2}: a value is missing in {', '.join(columns)}")
    return table


def read_events(file: Path) -> pd.DataFrame:
    """A CSV of words in which "null", "nan", "None", "NA" and "n/a" are words like others: only an empty cell of a text column is missing.

    A column is text if it is called so (`TEXT`) or has a cell that is no number; in columns of numbers these words mean a missing value.
    """
    table, raw = pd.read_csv(file), pd.read_csv(file, dtype=str, keep_default_na=False)
    for name in table:
        if name in TEXT or not (pd.api.types.is_numeric_dtype(table[name]) or pd.api.types.is_bool_dtype(table[name])):
            table[name] = raw[name].astype(object).where(raw[name] != "", np.nan)
    return table


def _pitch(root: Path, film: str) -> dict[str, float] | None:
    """Enhanced pitch by word start; from the JSON of the package, or a CSV with the columns start, enhanced_pitch."""
    if (file := root / "pitch_volume_features" / f"{film}_pitch_volume_features.json").is_file():
        raw = json.loads(file.read_text(encoding="utf-8"))
        return {f"{float(k):.{PITCH_DECIMALS}f}": v["enhanced_pitch"] for k, v in raw.items()}
    if (file := root / "pitch_volume" / f"{film}_pitch_volume_features.csv.gz").is_file():
        table = pd.read_csv(file)
        return {f"{k:.{PITCH_DECIMALS}f}": v for k, v in zip(table["start"], table["enhanced_pitch"])}
    return None


def _look_up(pitch: dict[str, float], starts: np.ndarray, film: str) -> list[float]:
    keys = [f"{start:.{PITCH_DECIMALS}f}" for start in starts]
    if missing := [key for key in keys if key not in pitch]:
        raise ValueError(f"voice pitch of {film} lacks {len(missing)} of {len(keys)} words (first: the one at {missing[0]} s)")
    return [pitch[key] for key in keys]


def _with_features(table: pd.DataFrame, features: Path, film: str) -> pd.DataFrame:
    file = Path(features)
    if file.is_dir():
        file = file / "transcripts" / film / "features.csv"
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist: it is in transcripts.zip of braintreebank.dev")
    extra = read_events(file)
    extra = extra.set_index(extra.columns[0])
    if absent := sorted(set(table["original_index"]) - set(extra.index)):
        raise ValueError(f"{file} lacks {len(absent)} of {len(table)} words of the timing table (first: original_index {absent[0]})")
    for column in extra.columns:
        if column not in table:
            table[column] = table["original_index"].map(extra[column])
    return table


# ---------------------------------------------------------------------------------------------------------------------------------- films


def film_events(dataset: str, words: pd.DataFrame) -> EventTable:
    """Events of a film from its words alone: adds ``start_s``, ``word_length``, ``is_onset`` and ``idx_in_sentence``, and finds the pauses.

    Args:
        dataset: canonical id.
        words: a row a word in order, with ``start``, ``end`` (seconds of the film) and ``sentence`` (any value that differs between
            neighbouring sentences).
    """
    table = words.reset_index(drop=True).copy()
    start, end = table["start"].to_numpy(dtype=np.float64), table["end"].to_numpy(dtype=np.float64)
    if not (np.diff(start) > 0).all() or not (end > start).all():
        row = int(np.flatnonzero(~np.append(np.diff(start) > 0, True) | ~(end > start))[0])
        raise ValueError(f"words of {dataset}, row {row}: words must end after they start and begin after the one before")
    sentence = table["sentence"].to_numpy()
    first = np.append(True, sentence[1:] != sentence[:-1])
    table["start_s"] = start
    table["word_length"] = end - start
    table["is_onset"] = first.astype(int)
    table["idx_in_sentence"] = np.arange(len(table)) - np.maximum.accumulate(np.where(first, np.arange(len(table)), 0))
    return EventTable(dataset, table, pd.DataFrame({"start_s": film_pauses(start, end)}))


def pippi_events(folder: Path) -> EventTable:
    """Words and pauses of the Pippi film, from the annotations of OpenNeuro ds003688 (CC0).

    They carry the tasks speech, onset, word_index, word_gap and word_length; the others need features that are not annotated there.

    Args:
        folder: root of the data set, or its ``stimuli/annotations/sound``.
    """
    folder = Path(folder)
    if (folder / PIPPI_ANNOTATIONS).is_dir():
        folder = folder / PIPPI_ANNOTATIONS
    words = _annotation(folder / "sound_annotation_words.tsv").sort_values("onset", kind="stable")
    for text, onset in PIPPI_LEFT_OUT:
        words = words[~((words["item"] == text) & (words["onset"] == onset))]
    sentences = _annotation(folder / "sound_annotation_sentences.tsv").sort_values("onset", kind="stable")
    # A sentence's own onset differs from its first word's by up to .11 s: a word belongs to the last sentence that begins before its middle.
    middle = (words["onset"].to_numpy() + words["offset"].to_numpy()) / 2
    sentence = np.searchsorted(sentences["onset"].to_numpy(), middle, side="right") - 1
    table = words.rename(columns={"item": "text", "onset": "start", "offset": "end"}).assign(sentence=sentence)
    return film_events("berezutskayapippi2022", table)


def _annotation(file: Path) -> pd.DataFrame:
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist: it is part of OpenNeuro ds003688 (stimuli/annotations/sound)")
    table = pd.read_csv(file, sep="\t", dtype={"item": str}, keep_default_na=False)
    if missing := [c for c in ("item", "onset", "offset") if c not in table]:
        raise ValueError(f"{file} lacks the columns {', '.join(missing)}; it has {', '.join(table.columns)}")
    return table.astype({"onset": np.float64, "offset": np.float64})
