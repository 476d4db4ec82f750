"""**Simulated** word and pause tables: real word timing of Brain Treebank where the package ``neuroprobe`` is installed, else drawn.

Every feature but timing and words is drawn: loudness, voice pitch, surprisal, syntax, optical flow, brightness and faces. They are
independent of each other unless said so, so a task whose feature drives no signal is a true null.
"""

from __future__ import annotations

import zlib
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from .events import FILMS, film_events, neuroprobe_events, neuroprobe_folder
from .labels import EventTable, neuroprobe_pauses

PARTS_OF_SPEECH = ("NOUN", "VERB", "PRON", "DET", "ADJ", "ADV")
PART_SHARES = (0.22, 0.24, 0.2, 0.14, 0.1, 0.1)
VOCABULARY = 2000  # pseudo-words, drawn by Zipf's law
SFREQ = 2048  # of the samples in Brain Treebank's tables


Timing = Literal["auto", "drawn", "neuroprobe"]


class Speech(NamedTuple):
    """How people talk in a film; the figures are those of its real word table.

    Attributes:
        words_a_sentence: mean.
        word_s: median word duration in seconds.
        gap_share: share of words inside a sentence that come after a pause.
        pause_s: median seconds between sentences.
        long_share: share of pauses between sentences that are long.
        long_s: median of the long ones.
        block_s: speech and its absence alternate in blocks of so many seconds; 0 for no blocks.
    """

    words_a_sentence: float
    word_s: float
    gap_share: float
    pause_s: float
    long_share: float
    long_s: float
    block_s: float = 0.0


SPEECH = {
    "neuroprobev2": Speech(6.5, 0.2, 0.5, 0.5, 0.12, 9.0),  # the-martian: 10,723 words and 7,175 pauses in 9,300 s
    "kelesbyd2024": Speech(4.5, 0.18, 0.5, 0.5, 0.2, 6.0),  # 582 words, 130 sentences, 515 pauses in 467 s
    "berezutskayapippi2022": Speech(6.6, 0.21, 0.08, 0.4, 0.1, 3.0, block_s=30.0),  # 445 words, 67 sentences, 357 pauses in 390 s
}


def simulate_events(dataset: str, session: str, *, seed: int, minutes: float, timing: Timing = "auto") -> EventTable:
    """A **simulated** event table of `minutes` minutes, on a clock that begins at 0; equal arguments give equal tables.

    Args:
        dataset: canonical id.
        session: as in unit ids, such as ``sub1_sess1``. Sessions of one film (BYD and Pippi) share their table, as the real ones do.
        seed: 0 or more.
        minutes: length; words end at least 2 s before it.
        timing: ``"drawn"``; ``"neuroprobe"`` (words of the real session, from the installed package; Neuroprobe alone); ``"auto"``: the
            latter where it can be had.

    Returns:
        `simulated` of the table says where the timing is from.

    Raises:
        ValueError: timing "neuroprobe" for a session that the installed package does not have, or without the package.
    """
    speech = SPEECH[dataset]
    film = session if dataset == "neuroprobev2" else "film"
    rng = np.random.default_rng(np.random.SeedSequence([seed, zlib.crc32(f"{dataset}/{film}".encode())]))
    duration = minutes * 60
    if timing not in ("auto", "drawn", "neuroprobe"):
        raise ValueError(f'timing must be "auto", "drawn" or "neuroprobe", found {timing!r}')
    real = _real_timing(session, duration) if dataset == "neuroprobev2" and timing != "drawn" else None
    if real is None and timing == "neuroprobe":
        raise ValueError(f"no real timing for {dataset}/{session}: it needs 'pip install neuroprobe' and a session of Brain Treebank")
    if real is not None:
        words, starts, origin = real
    else:
        words, starts, origin = _drawn_timing(speech, duration, rng), None, "simulated timing and features"
    events = film_events(dataset, words)
    pauses = events.pauses
    if dataset == "neuroprobev2":
        samples = [np.round(events.words[c].to_numpy() * SFREQ).astype(np.int64) for c in ("start", "end")]
        events.words["start_s"] = samples[0] / SFREQ
        pauses = type(pauses)({"start_s": neuroprobe_pauses(*samples) / SFREQ if starts is None else starts})
    _add_features(events.words, pauses, duration, rng)
    return EventTable(dataset, events.words, pauses, origin)


# -------------------------------------------------------------------------------------------------------------------------------- timing


def _real_timing(session: str, duration: float) -> tuple[pd.DataFrame, np.ndarray, str] | None:
    """Words and pauses of a stretch of a Brain Treebank session that has many of both in each half, and a note.

    None without the package or such a session.
    """
    subject, trial = (int("".join(c for c in part if c.isdigit())) for part in session.split("_"))
    if (folder := neuroprobe_folder()) is None or (subject, trial) not in FILMS:
        return None
    events = neuroprobe_events(subject, trial, folder=folder)
    words = events.words.sort_values("start_s", kind="stable")
    spoken, silent = words["start_s"].to_numpy(), np.sort(events.pauses["start_s"].to_numpy())
    begins = np.floor(spoken[spoken + duration <= spoken[-1]][::10])
    if not len(begins):
        return None
    edges = begins[:, None] + duration * np.array([0.0, 0.5, 1.0])
    held = [np.diff(np.searchsorted(times, edges), axis=1).min(axis=1) for times in (spoken, silent)]
    begin = float(begins[np.argmax(np.minimum(*held))])
    inside = words[(spoken >= begin) & (words["est_end_idx"] / SFREQ < begin + duration - 2)]
    start, end = (inside[c].to_numpy() / SFREQ - begin for c in ("est_idx", "est_end_idx"))
    keep = (start > np.append(-np.inf, np.maximum.accumulate(start)[:-1])) & (end > start)  # a few words of some films overlap
    restart = np.append(True, np.diff(inside["char_in_sentence"].to_numpy()) <= 0)
    table = type(words)({"start": start, "end": end, "text": inside["text"].to_numpy(), "sentence": np.cumsum(restart)})
    pauses = silent[(silent >= begin) & (silent < begin + duration - 2)] - begin
    return (
        table[keep].reset_index(drop=True),
        pauses,
        f"timing of neuroprobe subject {subject} trial {trial} from {begin:g} s; simulated features",
    )


def _drawn_timing(speech: Speech, duration: float, rng: np.random.Generator) -> pd.DataFrame:
    rows: list[tuple[float, float, int]] = []
    time, sentence, last = 1.0, 0, duration - 2.0
    while time < last:
        if speech.block_s and int(time // speech.block_s) % 2 == 0:  # a block of music
            time = (time // speech.block_s + 1) * speech.block_s + rng.uniform(0.2, 1.0)
        for _ in range(1 + rng.poisson(speech.words_a_sentence - 1)):
            length = float(np.clip(speech.word_s * np.exp(0.45 * rng.standard_normal()), 0.06, 0.9))
            if time + length >= last:
                break
            rows.append((round(time, 3), round(time + length, 3), sentence))
            time += length + (float(rng.exponential(0.08)) if rng.random() < speech.gap_share else 0.0)
        sentence += 1
        median = speech.long_s if rng.random() < speech.long_share else speech.pause_s
        time += median * float(np.exp(0.5 * rng.standard_normal()))
    start, end, number = zip(*rows)
    ranks = np.minimum(rng.zipf(1.3, size=len(rows)), VOCABULARY)
    table = pd.DataFrame({"start": start, "end": end, "text": [f"word{r}" for r in ranks], "sentence": number})
    table["end"] = np.minimum(table["end"], table["start"].shift(-1, fill_value=np.inf))  # rounding must not make neighbours overlap
    return table[(table["end"] > table["start"]) & (table["start"].diff().fillna(1) > 0)].reset_index(drop=True)


# ------------------------------------------------------------------------------------------------------------------------------ features


def _add_features(words: pd.DataFrame, pauses: pd.DataFrame, duration: float, rng: np.random.Generator) -> None:
    """Draw the feature columns of words and pauses in place. Sound: quieter and without pitch in pauses. Sight: independent of speech."""
    n, m = len(words), len(pauses)
    loud = np.exp(0.6 * rng.standard_normal(n + m)) * np.append(np.full(n, 0.05), np.full(m, 0.01))
    order = np.argsort(np.append(words["start_s"], pauses["start_s"]), kind="stable")
    delta = np.empty(n + m)
    delta[order] = np.diff(loud[order], prepend=loud[order][0])
    pitch = np.append(180 * np.exp(0.3 * rng.standard_normal(n)), np.exp(rng.standard_normal(m)))
    for column, values in (("rms", loud), ("delta_rms", delta), ("enhanced_pitch", pitch)):
        words[column], pauses[column] = values[:n], values[n:]
    words["gpt2_surprisal"] = rng.gamma(2.0, 3.0, n)
    words["bin_head"] = (rng.random(n) < 0.45).astype(int)
    words["pos"] = rng.choice(PARTS_OF_SPEECH, size=n, p=PART_SHARES)
    # Shots of some 4 s; brightness and faces stay within one, flow moves.
    cuts = np.cumsum(1.0 + rng.exponential(3.0, size=int(duration) + 10))
    bright = 90 + 30 * rng.standard_normal(len(cuts) + 1)
    faces = rng.choice(4, size=len(cuts) + 1, p=(0.4, 0.35, 0.15, 0.1))
    for table in (words, pauses):
        shot = np.searchsorted(cuts, table["start_s"].to_numpy())
        table["mean_pixel_brightness"] = bright[shot] + rng.standard_normal(len(table))
        table["face_num"] = faces[shot]
        table["max_global_magnitude"] = rng.gamma(1.5, 2.0, len(table))
        table["max_vector_magnitude"] = rng.gamma(2.0, 5.0, len(table))
