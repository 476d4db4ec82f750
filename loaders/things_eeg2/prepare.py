"""From the recordings of a subject to training arrays: epochs, choice of repetitions, MVNN by session, sessions merged.

The steps and their order are those of the published preprocessing (facts of each in `PrepareSettings`). Work is kept in ``.work`` in the
subject's folder: the cut epochs of each recording, float32, with the hash of the settings and of the recording's samples and events beside
them. A restart reads every recording (to hash it) and cuts only those whose epochs are not there or were made from something else. The
bytes of the result do not depend on interruptions; they do, in the last float bits, on the BLAS library and its number of threads.

Float32 epochs carry a relative rounding of 6e-8, which whitening makes about 1e-6 of a noise SD; everything else is computed in float64.
Memory: about 0.2 GB beside the recording that the caller hands over, and the pages of mapped files, which the system takes back at will.
Disk: 6.5 GB for the work and 5.2 GB for the result of one subject of full size with 63 channels.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils import shuffle
from tqdm import tqdm

from decodehub.core.files import remove_orphans, sha256_file, sha256_json, write_json
from decodehub.core.jobs import exclusive
from decodehub.core.tensors import reserved_array

from ..mvnn import noise_covariance, whiten, whitening_matrix
from . import PARTITIONS, Epochs, Partition, Run, channel_indices
from .epoching import PrepareSettings, fingerprint, iter_epochs, usable_events
from .store import INFO, WORK, check_replaces, load_epochs, read_info, subject_folder, write_info

__all__ = ["PrepareSettings", "prepare_subject"]

TRIALS_A_BLOCK = 128  # read, whitened and written together
NAMED = 8  # images that a message names


class Piece(NamedTuple):
    """Cut epochs of one recording.

    Attributes:
        path: ``.npy``, (n, n_channels, n_times) float32 volts, in order of time.
        images: (n,) int, image of each.
        partition, session: of the recording.
        label: such as "ses-01 train 0". fingerprint: hash of the recording.
        unusable: image events too close to its start or end.
    """

    path: Path
    images: np.ndarray
    partition: Partition
    session: int
    label: str
    fingerprint: str
    unusable: int


@dataclass(frozen=True)
class Part:
    """What is kept of one session and partition.

    Attributes:
        images: (n,) int, ascending.
        trials: (n, n_repetitions) int, positions among the trials of the session's pieces, end to end.
        rows: (n,) int, and columns: (n, n_repetitions) int, where they go in the merged array.
    """

    images: np.ndarray
    trials: np.ndarray
    rows: np.ndarray
    columns: np.ndarray


@dataclass(frozen=True)
class Layout:
    """Where everything of one partition goes.

    Attributes:
        images: (n_images,) int, ascending. n_repetitions: over all sessions.
        parts: by session. unused: trials left over. dropped: images left out as incomplete.
    """

    images: np.ndarray
    n_repetitions: int
    parts: dict[int, Part]
    unused: int
    dropped: list[int]


def prepare_subject(
    runs: Callable[[], Iterable[Run]] | Iterable[Run],
    out_root: Path,
    settings: PrepareSettings | None = None,
    *,
    source: str = "recordings",
    design: dict[str, Any] | None = None,
    progress: bool = True,
    overwrite: bool = False,
) -> Path:
    """Prepare one subject: ``train.npy``, ``test.npy`` and what belongs to them, ``info.json`` last.

    At full size: train (16540, 4, n_channels, 250) and test (200, 80, n_channels, 250) float32.

    Args:
        runs: the recordings of one subject in order of time, one after the other (each is let go before the next is asked for); or a function
            that gives them, which lets a subject that is complete be recognised before anything is done.
        out_root: the subject's folder is made in it.
        settings: all choices; by default those of released code and paper.
        source: the layout of the recordings, in words, for ``info.json``.
        design: what simulated recordings of a smaller experiment state as theirs (`Source.design`), for ``info.json``.
        progress: show bars.
        overwrite: replace arrays that were made with other settings, or by others.

    Returns:
        The subject's folder.

    Raises:
        ValueError: bad recordings (see `epoching.fingerprint`), several subjects, a session or partition missing, the same recording twice,
            images with too few repetitions (named).
        JobRunning: another process is preparing this subject in this folder.
    """
    settings = settings or PrepareSettings()
    key = sha256_json(settings.as_dict())
    make = runs if callable(runs) else None
    stream = iter(make() if make is not None else runs)  # type: ignore[arg-type]
    first = next(stream, None)
    if first is None:
        raise ValueError("there are no recordings")
    folder = subject_folder(out_root, first.subject)
    check_replaces(folder, settings.as_dict(), overwrite=overwrite)
    if make is not None and _stated_settings(folder) == key:
        del first, stream
        if _is_complete(folder, make(), settings):
            return folder
        stream = iter(make())
        first = next(stream)
    with exclusive(folder):
        remove_orphans(folder / WORK)
        recordings = _chain([first], stream)
        del first
        pieces = _cut_all(recordings, folder / WORK, settings, key, progress)
        layouts = {partition: _layout(pieces, partition, settings) for partition in PARTITIONS}
        _merge(pieces, layouts, folder / WORK, settings, progress)
        _publish(folder, _subject_of(folder), pieces, layouts, settings, source, design)
        shutil.rmtree(folder / WORK)
    return folder


# ------------------------------------------------------------------------------------------------------------------- one recording


def _cut_all(runs: Iterable[Run], work: Path, settings: PrepareSettings, key: str, progress: bool) -> list[Piece]:
    """Cut every recording that is not cut yet."""
    pieces: list[Piece] = []
    subject = _subject_of(work.parent)
    counts: Counter[tuple[int, str]] = Counter()
    for run in runs:
        if run.subject != subject:
            raise ValueError(f"{run.name or 'a recording'} is of subject {run.subject}, the others of subject {subject}")
        if run.session not in settings.sessions:
            del run
            continue
        label = f"ses-{run.session:02d} {run.partition} {counts[run.session, run.partition]}"
        counts[run.session, run.partition] += 1
        piece = _cut(run, work, label, settings, key, progress)
        for other in pieces:
            if other.fingerprint == piece.fingerprint:
                raise ValueError(f"{run.name or label} is the same recording as {other.label}")
        pieces.append(piece)
        del run  # before the next is read
    have = {(piece.partition, piece.session) for piece in pieces}
    wanted = [(partition, session) for session in settings.sessions for partition in PARTITIONS]
    if missing := [f"session {session} {partition}" for partition, session in wanted if (partition, session) not in have]:
        raise ValueError(
            f"subject {subject}: no recording of {', '.join(missing)}; there are {sorted(f'session {s} {p}' for p, s in have)}. What has been cut "
            "is kept: add the files and start again, or state `sessions`"
        )
    return pieces


def _cut(run: Run, work: Path, label: str, settings: PrepareSettings, key: str, progress: bool) -> Piece:
    """Epochs of one recording, from before if they were made from it under these settings."""
    digest = fingerprint(run, settings)
    _, images = usable_events(run, settings)
    unusable = int((np.asarray(run.images) > 0).sum()) - len(images)
    path = work / f"{label.replace(' ', '_')}.npy"
    piece = Piece(path, images, run.partition, run.session, label, digest, unusable)
    note = path.with_suffix(".json")
    if _note(note) == {"settings": key, "recording": digest} | _hash_of(path):
        return piece
    note.unlink(missing_ok=True)
    if not len(images):
        raise ValueError(f"{run.name or label}: none of its {unusable} epochs lies within the recording")
    blocks = iter_epochs(run, settings)
    head = next(blocks)
    bar = tqdm(total=len(images), desc=f"sub-{run.subject:02d} {label}", unit="trial", disable=not progress)
    with reserved_array(path, (len(images), *head.shape[1:])) as out, bar:
        done = 0
        for block in _chain([head], blocks):
            out[done : done + len(block)] = block
            done += len(block)
            bar.update(len(block))
    write_json(note, {"settings": key, "recording": digest} | _hash_of(path))
    return piece


def _note(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _hash_of(path: Path) -> dict[str, str]:
    return {"epochs": sha256_file(path)} if path.is_file() else {}


# ------------------------------------------------------------------------------------------------------------------------- layout


def _layout(pieces: list[Piece], partition: Partition, settings: PrepareSettings) -> Layout:
    """Choose the repetitions of every image and session, and say where each goes."""
    keep = settings.repetitions(partition)
    trials_of = _trials_of(pieces, partition, settings.sessions)
    total = sum(len(indices) for trials in trials_of.values() for indices in trials.values())
    appears = Counter(image for trials in trials_of.values() for image in trials)
    # Every test image is shown in each session, every training image in the same number of them (two of four).
    n_sessions = len(settings.sessions) if partition == "test" else Counter(appears.values()).most_common(1)[0][0]
    few = {
        image: f"{len(indices)} of {keep} in session {session}"
        for session, trials in trials_of.items()
        for image, indices in trials.items()
        if len(indices) < keep
    }
    few |= {image: f"in {n} of {n_sessions} sessions" for image, n in appears.items() if n != n_sessions}
    if few and (settings.incomplete == "error" or len(few) == len(appears)):
        raise ValueError(_incomplete(partition, few, settings))
    images = np.array(sorted(set(appears) - set(few)))
    n_repetitions = n_sessions * keep
    column = np.arange(n_repetitions)
    if settings.repetition_order == "released_code":
        column = np.argsort(shuffle(column, random_state=settings.repetition_seed))
    seen: Counter[int] = Counter()
    parts = {}
    for session, trials in trials_of.items():
        here = [image for image in images.tolist() if image in trials]
        chosen = np.array([_choose(trials[image], keep, settings) for image in here], dtype=int).reshape(-1, keep)
        slots = np.array([seen[image] for image in here], dtype=int)[:, None] * keep + np.arange(keep)
        seen.update(here)
        parts[session] = Part(np.array(here, dtype=int), chosen, np.searchsorted(images, here), column[slots])
    return Layout(images, n_repetitions, parts, total - n_repetitions * len(images), sorted(few))


def _trials_of(pieces: list[Piece], partition: Partition, sessions: Iterable[int]) -> dict[int, dict[int, np.ndarray]]:
    """By session and image number, the indices of the image's trials among all of the session, ascending."""
    trials_of = {}
    for session in sorted(sessions):
        images = np.concatenate([piece.images for piece in pieces if (piece.partition, piece.session) == (partition, session)])
        order = np.argsort(images, kind="stable")
        numbers, starts = np.unique(images[order], return_index=True)
        trials_of[session] = dict(zip(numbers.tolist(), np.split(order, starts[1:])))
    return trials_of


def _choose(trials: np.ndarray, keep: int, settings: PrepareSettings) -> np.ndarray:
    if settings.repetition_choice == "first":
        return trials[:keep]
    return shuffle(trials, random_state=settings.repetition_seed, n_samples=keep)


def _incomplete(partition: Partition, few: dict[int, str], settings: PrepareSettings) -> str:
    named = "; ".join(f"image {image}: {reason}" for image, reason in sorted(few.items())[:NAMED])
    more = f"; and {len(few) - NAMED} more" if len(few) > NAMED else ""
    advice = "incomplete='drop' leaves such images out" if settings.incomplete == "error" else "no image is left"
    return f"{len(few)} {partition} images have too few repetitions ({named}{more}): is a recording missing or cut short? {advice}"


# -------------------------------------------------------------------------------------------------------------------------- merge


class _Trials:
    """The trials of one session and partition, from mapped files."""

    def __init__(self, pieces: list[Piece], partition: Partition, session: int) -> None:
        mine = [piece for piece in pieces if (piece.partition, piece.session) == (partition, session)]
        self.arrays = [np.load(piece.path, mmap_mode="r", allow_pickle=False) for piece in mine]
        self.starts = np.cumsum([0] + [len(array) for array in self.arrays])

    def blocks(self, part: Part) -> Iterator[tuple[slice, np.ndarray]]:
        """Kept trials in blocks of whole images: (which of the part's images, (k, n_repetitions, n_channels, n_times) float32)."""
        n_repetitions = part.trials.shape[1]
        step = max(1, TRIALS_A_BLOCK // n_repetitions)
        for start in range(0, len(part.images), step):
            wanted = part.trials[start : start + step]
            out = np.empty((*wanted.shape, *self.arrays[0].shape[1:]), np.float32)
            owner = np.searchsorted(self.starts, wanted, side="right") - 1
            for i, array in enumerate(self.arrays):
                out[owner == i] = array[wanted[owner == i] - self.starts[i]]
            yield slice(start, start + step), out


def _merge(pieces: list[Piece], layouts: dict[Partition, Layout], work: Path, settings: PrepareSettings, progress: bool) -> None:
    """Write the arrays of both partitions, whitened, into `work`, a session after the other."""
    matrices = _whitening(pieces, layouts, settings, progress)
    select = channel_indices(settings.ch_names_read, settings.ch_names)
    times = settings.kept if settings.whitened and settings.mvnn_window == "epoch" else slice(None)
    scale = np.float32(1e6 if settings.unit_out == "uV" else 1)
    for partition, layout in layouts.items():
        shape = (len(layout.images), layout.n_repetitions, len(settings.ch_names), len(settings.times))
        sessions = np.zeros(shape[:2], np.int8)
        bar = tqdm(total=sessions.size, desc=f"{_subject_label(work)} {partition} merge", unit="trial", disable=not progress)
        with reserved_array(work / f"{partition}.npy", shape) as out, bar:
            for session, part in layout.parts.items():
                for which, block in _Trials(pieces, partition, session).blocks(part):
                    rows, columns = part.rows[which, None], part.columns[which]
                    if settings.whitened:
                        whiten(block, matrices[session], out=block)
                    out[rows, columns] = block[..., times][:, :, select] * scale
                    sessions[rows, columns] = session
                    bar.update(columns.size)
        for name, values in (("images", layout.images.astype(np.int32)), ("sessions", sessions)):
            with reserved_array(work / f"{partition}_{name}.npy", values.shape, values.dtype) as out:
                out[...] = values


def _whitening(pieces: list[Piece], layouts: dict[Partition, Layout], settings: PrepareSettings, progress: bool) -> dict[int, np.ndarray]:
    """The whitening matrix of each session: of its own noise covariance, or of the mean of all."""
    if not settings.whitened:
        return {}
    fitted: list[Partition] = ["train"] if settings.mvnn == "train" else ["train", "test"]
    sigmas: dict[int, np.ndarray] = {}
    jobs = [(session, partition) for session in sorted(settings.sessions) for partition in fitted]
    for session, partition in tqdm(jobs, desc="noise covariances", unit="part", disable=not progress):
        blocks = (block for _, block in _Trials(pieces, partition, session).blocks(layouts[partition].parts[session]))
        try:
            sigma = noise_covariance(blocks, dim=settings.mvnn_dim, shrinkage=settings.mvnn_shrinkage, ch_names=settings.ch_names_read)
        except ValueError as error:
            raise ValueError(f"session {session} {partition}: {error}") from None
        sigmas[session] = sigmas.get(session, 0) + sigma / len(fitted)
    if settings.mvnn_scope == "subject":  # every image of every session with the same weight
        weights = {session: len(layouts["train"].parts[session].images) for session in sigmas}
        mean = sum(sigma * weights[session] for session, sigma in sigmas.items()) / sum(weights.values())
        sigmas = dict.fromkeys(sigmas, np.asarray(mean))
    return {session: whitening_matrix(sigma) for session, sigma in sigmas.items()}


# ------------------------------------------------------------------------------------------------------------------------ publish


def _publish(
    folder: Path,
    subject: int,
    pieces: list[Piece],
    layouts: dict[Partition, Layout],
    settings: PrepareSettings,
    source: str,
    design: dict[str, Any] | None,
) -> None:
    """Move the arrays out of the work folder, and describe them."""
    (folder / INFO).unlink(missing_ok=True)
    for partition in layouts:
        for suffix in ("", "_images", "_sessions"):
            (folder / WORK / f"{partition}{suffix}.npy").replace(folder / f"{partition}{suffix}.npy")
    described: dict[Partition, Epochs] = {
        partition: Epochs(
            data=np.load(folder / f"{partition}.npy", mmap_mode="r", allow_pickle=False),
            ch_names=settings.ch_names,
            sfreq=settings.sfreq,
            times=settings.times,
            images=layout.images,
            partition=partition,
            subject=subject,
            unit=settings.unit_out,
            settings=settings.as_dict(),
        )
        for partition, layout in layouts.items()
    }
    made_from = {
        "recordings": {piece.label: piece.fingerprint for piece in pieces},
        "events_at_the_edges": {piece.label: piece.unusable for piece in pieces if piece.unusable},
        "unused_trials": {partition: layout.unused for partition, layout in layouts.items()},
        "incomplete_images": {partition: layout.dropped for partition, layout in layouts.items()},
    }
    write_info(folder, described, source=source, made_from=made_from, design=design)


def _stated_settings(folder: Path) -> str | None:
    try:
        return read_info(folder)["settings_hash"]
    except (FileNotFoundError, ValueError, KeyError):
        return None


def _is_complete(folder: Path, runs: Iterable[Run], settings: PrepareSettings) -> bool:
    """Whether the arrays were made from these recordings and have not changed."""
    stated = read_info(folder).get("made_from", {}).get("recordings", {})
    found = []
    for run in runs:
        if run.session in settings.sessions:
            found.append(fingerprint(run, settings))
        del run  # before the next is read
    if sorted(found) != sorted(stated.values()):
        return False
    try:
        for partition in PARTITIONS:
            load_epochs(folder.parent, _subject_of(folder), partition, verify=True)
    except (FileNotFoundError, ValueError, KeyError):
        return False
    return True


def _chain(head: list[Any], rest: Iterable[Any]) -> Iterator[Any]:
    """The items of `head`, then of `rest`, none held longer than needed."""
    while head:
        yield head.pop(0)
    yield from rest


def _subject_of(folder: Path) -> int:
    return int(folder.name.removeprefix("sub-"))


def _subject_label(work: Path) -> str:
    return work.parent.name
