"""THINGS-EEG2: its numbers, its channel and image orders, and the two things that its files are turned into.

Files of any layout become `Run`s (continuous recordings with events) or `Epochs` (arrays), see `read`; runs become epochs in
`prepare`. Source: A. T. Gifford, K. Dwivedi, G. Roig, R. M. Cichy, "A large and rich EEG dataset for modeling human visual
object recognition", NeuroImage 264 (2022) 119754; EEG-EditBench (arXiv 2607.27857) section S3.1 for the preprocessing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import mne

Partition = Literal["train", "test"]
PARTITIONS: tuple[Partition, ...] = ("train", "test")

SUBJECTS = 10
SESSIONS = 4
SFREQ_RAW, SFREQ = 1000.0, 250.0
N_TIMES = 250  # 0 to 1 s after onset at 250 Hz
TRAIN_CONCEPTS, IMAGES_PER_CONCEPT, TEST_IMAGES = 1654, 10, 200
TRAIN_IMAGES = TRAIN_CONCEPTS * IMAGES_PER_CONCEPT
REPETITIONS: dict[Partition, int] = {"train": 4, "test": 80}  # after trimming, over all sessions
REPETITIONS_PER_SESSION: dict[Partition, int] = {"train": 2, "test": 20}
TARGET_EVENT = 99999  # catch trials in the merged stimulus channel of the OSF files
SOA = 0.2  # seconds from image to image

# The fixed order in which models take the channels (front to back). It is not the order of the recordings.
CHANNELS = tuple(
    "Fp1 Fp2 AF7 AF3 AFz AF4 AF8 F7 F5 F3 F1 F2 F4 F6 F8 FT9 FT7 FC5 FC3 FC1 FCz FC2 FC4 FC6 FT8 FT10 T7 C5 C3 C1 Cz C2 C4 C6 T8 TP9 TP7 CP5 CP3 "
    "CP1 CPz CP2 CP4 CP6 TP8 TP10 P7 P5 P3 P1 Pz P2 P4 P6 P8 PO7 PO3 POz PO4 PO8 O1 Oz O2".split()
)
# The order of the raw files.
RECORDING_ORDER = tuple(
    "Fp1 F3 F7 FT9 FC5 FC1 C3 T7 TP9 CP5 CP1 Pz P3 P7 O1 Oz O2 P4 P8 TP10 CP6 CP2 Cz C4 T8 FT10 FC6 FC2 F4 F8 Fp2 AF7 AF3 AFz F1 F5 FT7 FC3 FCz C1 "
    "C5 TP7 CP3 P1 P5 PO7 PO3 POz PO4 PO8 P6 P2 CPz CP4 TP8 C6 C2 FC4 FT8 F6 F2 AF4 AF8".split()
)
# The 17 occipital and parietal channels of UBP, ATS, Brain-HIVE, HyFI and NeuroBridge, in their order (section S3.1).
POSTERIOR_17 = CHANNELS[46:]
# The same 17 in the order of the authors' preprocessed OSF files (100 Hz): recording order.
POSTERIOR_17_OSF = tuple(name for name in RECORDING_ORDER if name in POSTERIOR_17)


@dataclass(frozen=True, eq=False)
class Run:
    """A continuous recording with its stimulus events.

    Attributes:
        raw: the recording; EEG channels by name, in volts; any channel order.
        onsets: (n,) int, sample of each event relative to the first sample of `raw`.
        images: (n,) int, 1-based image number within the partition (train 1..16,540, test 1..200); 0 for a catch trial.
        partition: "train" or "test"; the two number spaces overlap, so it is never guessed from the numbers.
        subject, session: numbers, from 1.
        name: file or folder, for messages.
    """

    raw: mne.io.BaseRaw
    onsets: np.ndarray
    images: np.ndarray
    partition: Partition
    subject: int
    session: int
    name: str = ""


@dataclass(frozen=True, eq=False)
class Epochs:
    """Epochs of one subject and partition, all sessions.

    Attributes:
        data: (n_images, n_repetitions, n_channels, n_times) float32 (an array or memory map); unit: see `unit`.
        ch_names: channel names in the order of axis 2.
        sfreq: sampling rate in Hz. times: (n_times,) float64, seconds after onset.
        images: (n_images,) int, 1-based image numbers within the partition, ascending.
        partition: "train" or "test". subject: number, from 1.
        unit: "MVNN" (whitened, dimensionless), "V", "uV", or "unknown".
        settings: how the data were made; {} when a file does not say.
        sessions: (n_images, n_repetitions) int, session of each repetition, or None when a file does not say.
    """

    data: np.ndarray
    ch_names: tuple[str, ...]
    sfreq: float
    times: np.ndarray
    images: np.ndarray
    partition: Partition
    subject: int
    unit: str = "unknown"
    settings: dict[str, Any] = field(default_factory=dict)
    sessions: np.ndarray | None = None


class Design(NamedTuple):
    """What an experiment shows of one partition.

    Attributes:
        images: (n_images,) int, ascending numbers. repetitions: of each image, over all sessions.
    """

    images: np.ndarray
    repetitions: int


def design_of(partition: Partition, simulated: dict[str, Any] | None = None) -> Design:
    """The design of THINGS-EEG2, or what the files of a smaller simulated experiment state as theirs.

    Args:
        partition: "train" or "test".
        simulated: by partition, ``{"concepts": 8, "images_per_concept": 2, "repetitions": 4}`` (the first images of the first concepts) or
            ``[images, repetitions]`` (the first images).

    Raises:
        ValueError: a design of another form.
    """
    stated = (simulated or {}).get(partition)
    if stated is None:
        n = TRAIN_IMAGES if partition == "train" else TEST_IMAGES
        return Design(np.arange(1, n + 1), REPETITIONS[partition])
    try:
        if isinstance(stated, dict):
            concepts, per_concept, repetitions = (int(stated[key]) for key in ("concepts", "images_per_concept", "repetitions"))
            first = np.arange(concepts) * (IMAGES_PER_CONCEPT if partition == "train" else 1)
            return Design((first[:, None] + np.arange(1, per_concept + 1)).ravel(), repetitions)
        n, repetitions = stated
        return Design(np.arange(1, n + 1), int(repetitions))
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"the design of {partition} must state concepts, images_per_concept and repetitions, found {stated!r}") from None


def channel_indices(ch_names: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Positions of `wanted` in `ch_names`: channels are always taken by name.

    Raises:
        ValueError: a wanted channel is not there, or a name is there twice.
    """
    position = {name: i for i, name in enumerate(ch_names)}
    if len(position) != len(ch_names):
        twice = sorted({name for name in ch_names if list(ch_names).count(name) > 1})
        raise ValueError(f"channels {twice} are there twice")
    if missing := [name for name in wanted if name not in position]:
        raise ValueError(f"channels {missing} are not among the {len(ch_names)} of the data ({', '.join(list(ch_names)[:8])}, ...)")
    return [position[name] for name in wanted]


def train_image_number(concept: int, within: int) -> int:
    """Number 1..16,540 of a training image: concept 1..1,654 in ASCII order of the THINGS ids, image 1..10 within it."""
    if not (1 <= concept <= TRAIN_CONCEPTS and 1 <= within <= IMAGES_PER_CONCEPT):
        raise ValueError(f"concept must be 1..{TRAIN_CONCEPTS} and image 1..{IMAGES_PER_CONCEPT}, found {concept} and {within}")
    return (concept - 1) * IMAGES_PER_CONCEPT + within


def concept_of_train_image(number: int | np.ndarray) -> int | np.ndarray:
    """Concept 1..1,654 of a training image number 1..16,540."""
    return (number - 1) // IMAGES_PER_CONCEPT + 1


def image_order(names: Iterable[str]) -> list[str]:
    """Image or concept names in the official order: plain ASCII, stray files (.DS_Store, ._x.jpg, Thumbs.db) left out.

    A sort by locale, as in file managers, puts 17 concepts elsewhere (camera_lens, hot-air_balloon, ...).
    """
    stray = {"Thumbs.db", "desktop.ini"}
    return sorted(
        (name for name in names if not name.startswith(".") and name not in stray), key=lambda name: name.encode("ascii", "replace")
    )
