"""Preprocessed THINGS-EEG2 arrays of other projects as `Epochs`: axes checked by their sizes, images put in the official order.

None of these files says everything: what is missing stays empty (channel names), is said to be unknown, or is a note in `settings`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import IMAGES_PER_CONCEPT, SFREQ, TEST_IMAGES, TRAIN_IMAGES, Epochs, Partition, image_order, train_image_number

CHANNEL_SIZES = (63, 17)
TIME_SIZES = (250, 100, 300)  # 0..1 s at 250 Hz; -0.2..0.8 s at 100 Hz; -0.2..1 s at 250 Hz
AXES = "(images, repetitions, 63 or 17 channels, 250 or 100 times)"


def check_axes(shape: tuple[int, ...], where: str) -> None:
    """Refuse an array whose last two axes are not channels and times.

    Raises:
        ValueError: with the permutation that would fit, if there is one.
    """
    if len(shape) == 4 and shape[2] in CHANNEL_SIZES and shape[3] in TIME_SIZES and min(shape) > 0:
        return
    reason = f"{where} has shape {shape}; expected {AXES}"
    channels = [axis for axis, n in enumerate(shape) if n in CHANNEL_SIZES]
    times = [axis for axis, n in enumerate(shape) if n in TIME_SIZES]
    if len(shape) == 4 and len(channels) == 1 and times:
        raise ValueError(
            f"axes look swapped: {reason}. By their sizes axis {channels[0]} ({shape[channels[0]]}) is channels and axis {times[-1]} "
            f"({shape[times[-1]]}) is times: move them to the places 2 and 3 with numpy.moveaxis, if its source confirms that"
        )
    if len(shape) == 3:
        raise ValueError(f"{reason}. One axis is missing: was an average taken over repetitions, or by mistake over channels?")
    raise ValueError(reason)


def dict_epochs(content: dict[str, Any], path: Path, partition: Partition, subject: int) -> Epochs:
    """The pickled dict of NICE, ATM and MB2C (63 channels, 250 Hz) or of the data's authors (17 channels, 100 Hz).

    `times` of the former has the 300 values of -0.2 to 1 s for the 250 samples of 0 to 1 s: the last ones are theirs. The channels of the
    latter are in recording order, not in that of the models' 17 channels; names are taken as the file states them.

    Raises:
        ValueError: other axes, or names or times of another number than the data.
    """
    data = content["preprocessed_eeg_data"]
    check_axes(data.shape, f"{path}: preprocessed_eeg_data")
    return _epochs(data, content.get("ch_names", ()), content.get("times"), path, partition, subject, _simulated(content))


def plain_epochs(data: np.ndarray, info: dict[str, Any], path: Path, partition: Partition, subject: int) -> Epochs:
    """NeuroBridge's arrays (concepts, images of a concept, repetitions, channels, times), or the same with the first two axes as one.

    Args:
        data: memory map. info: of ``info.json``; channel names and times are taken from it if it has them, and never guessed.

    Raises:
        ValueError: other axes, or names or times of another number than the data.
    """
    if data.ndim == 5:
        expected = IMAGES_PER_CONCEPT if partition == "train" else 1
        if data.shape[1] != expected:
            raise ValueError(
                f"axes look swapped: {path} has shape {data.shape}; axis 1 should be the {expected} images of a {partition} concept"
            )
        data = data.reshape(-1, *data.shape[2:])
    check_axes(data.shape, str(path))
    names = next((info[key] for key in ("ch_names", "channels", "channel_names") if isinstance(info.get(key), list)), ())
    return _epochs(data, names, info.get("times"), path, partition, subject, _simulated(info))


def torch_epochs(content: dict[str, Any], path: Path, partition: Partition, subject: int) -> Epochs:
    """The dict of UBP, ATS and HyFI: eeg with the path of each image beside it, which alone decides the order of images.

    Raises:
        ValueError: other axes, paths that do not identify images, an image there twice or missing from its concept.
    """
    data = content["eeg"]
    check_axes(data.shape, f"{path}: eeg")
    if "img" not in content:
        raise ValueError(f"{path} has the keys {sorted(map(str, content))}; expected 'img', the path of each image, among them")
    names = np.asarray(content["img"], dtype=str)
    if names.size not in (len(data), len(data) * data.shape[1]):
        raise ValueError(f"{path}: {names.size} image paths for {len(data)} images with {data.shape[1]} repetitions")
    names = names.reshape(len(data), -1)
    if not (names == names[:, :1]).all():
        raise ValueError(f"{path}: a row of eeg has repetitions of different images: sort it by image first")
    images = image_numbers(names[:, 0].tolist(), partition, str(path))
    sessions = np.asarray(content["session"]) if "session" in content else None
    if sessions is not None:
        sessions = sessions.reshape(data.shape[:2]).astype(np.int64) if sessions.size == len(data) * data.shape[1] else None
    settings = _simulated(content)
    if not (np.diff(images) > 0).all():
        order = np.argsort(images)
        data, images, sessions = data[order], images[order], sessions[order] if sessions is not None else None
        settings["rows"] = "reordered to the official image order by the paths in 'img'"
    return _epochs(data, content.get("ch_names", ()), content.get("times"), path, partition, subject, settings, images, sessions)


def image_numbers(paths: Sequence[str], partition: Partition, where: str) -> np.ndarray:
    """(n,) int64 image numbers of paths such as ``train_images/00001_aardvark/aardvark_01b.jpg``.

    The folder's number is the concept; within a training concept, images are numbered in the ASCII order of their ten file names.

    Raises:
        ValueError: no concept folder, an image twice, or a training concept without all of its ten images (their rank is then unknown).
    """
    concepts: dict[int, list[str]] = defaultdict(list)
    for path in paths:
        parts = path.replace("\\", "/").split("/")
        match = re.fullmatch(r"(\d{5})_.+", parts[-2]) if len(parts) > 1 else None
        if match is None:
            raise ValueError(
                f"{where}: image path {path!r} does not end in a concept folder and a file, such as 00001_aardvark/aardvark_01b.jpg"
            )
        concepts[int(match.group(1))].append(parts[-1])
    expected = IMAGES_PER_CONCEPT if partition == "train" else 1
    rank: dict[tuple[int, str], int] = {}
    for concept, files in concepts.items():
        ordered = image_order(set(files))
        if len(files) != expected or len(ordered) != expected:
            raise ValueError(
                f"{where}: concept {concept} has {len(files)} images ({len(set(files))} different); expected {expected} of a {partition} concept"
            )
        rank.update({(concept, name): i + 1 for i, name in enumerate(ordered)})
    if partition == "test" and max(concepts) > TEST_IMAGES:
        raise ValueError(f"{where}: test concept {max(concepts)}, but there are {TEST_IMAGES}")
    split = [path.replace("\\", "/").split("/") for path in paths]
    keys = [(int(parts[-2][:5]), parts[-1]) for parts in split]
    return np.array([train_image_number(key[0], rank[key]) if partition == "train" else key[0] for key in keys], dtype=np.int64)


def _epochs(
    data: np.ndarray,
    ch_names: Any,
    times: Any,
    path: Path,
    partition: Partition,
    subject: int,
    settings: dict[str, Any],
    images: np.ndarray | None = None,
    sessions: np.ndarray | None = None,
) -> Epochs:
    names = tuple(str(name) for name in ch_names) if ch_names is not None else ()
    if names and len(names) != data.shape[2]:
        raise ValueError(f"{path}: {len(names)} channel names for {data.shape[2]} channels")
    n_times = data.shape[3]
    if times is None:
        if n_times != 250:
            raise ValueError(f"{path} has {n_times} samples an epoch and no times; expected 'times', or the 250 samples of 0 to 1 s")
        seconds, settings["times"] = np.arange(n_times) / SFREQ, "not in the file; 250 samples of 0 to 1 s"
    else:
        seconds = np.asarray(times, dtype=np.float64).ravel()
        if len(seconds) < n_times or len(seconds) < 2:
            raise ValueError(f"{path}: {len(seconds)} times for {n_times} samples")
        if len(seconds) > n_times:
            settings["times"] = f"the last {n_times} of the {len(seconds)} in the file"
            seconds = seconds[-n_times:]
    if images is None:
        expected = TRAIN_IMAGES if partition == "train" else TEST_IMAGES
        images = np.arange(1, len(data) + 1, dtype=np.int64)
        settings["images"] = "row numbers; the file names no images"
        if len(data) > expected:
            raise ValueError(f"{path} has {len(data):,} images; {partition} has {expected:,}")
        if len(data) != expected:
            settings["images"] += f" and has {len(data)} rows instead of {expected}"
    return Epochs(
        data=single_precision(data),
        ch_names=names,
        sfreq=round(float(1 / np.diff(seconds).mean()), 3),
        times=seconds,
        images=images,
        partition=partition,
        subject=subject,
        unit=_unit(data),
        settings={"read_from": path.name, **settings},
        sessions=sessions,
    )


def _simulated(content: dict[str, Any]) -> dict[str, Any]:
    return {"simulated": True} if content.get("simulated") is True else {}


def single_precision(data: np.ndarray) -> np.ndarray:
    """`data` as float32: itself when it is, else a copy made image by image, so that the float64 original is never in memory at once."""
    if data.dtype == np.float32:
        return data
    out = np.empty(data.shape, dtype=np.float32)
    for i, image in enumerate(data):
        out[i] = image
    return out


def _unit(data: np.ndarray) -> str:
    """The unit by the scale of some values: whitened data have an SD near 1, EEG in volts near 1e-5; what lies between is unknown."""
    scale = float(np.nanstd(np.asarray(data[: min(8, len(data))], dtype=np.float64)))
    return "MVNN" if 0.05 < scale < 5 else "V" if 1e-8 < scale < 1e-3 else "unknown"
