"""``load_dataset("things-eeg2")``: epochs of THINGS-EEG2 in the prepared layout (`decodehub.loaders.things_eeg2.store`) as a table."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
from datasets import Array2D, Features, Value

from decodehub.core.files import canonical_json, file_state, sha256_json
from decodehub.core.repos import SAMPLE_CONFIG, data_folder
from decodehub.hub_datasets.eeg_editbench.taxonomy import load_taxonomy
from decodehub.loaders.things_eeg2 import PARTITIONS, TRAIN_CONCEPTS, Partition, concept_of_train_image, image_order
from decodehub.loaders.things_eeg2.store import INFO, load_epochs, read_info, subject_folder

from .sample import ensure_sample

NAME = "things-eeg2"
VERSION = "1.0.0"  # of this table layout; enters the cache key
IMAGES_A_BLOCK = 1000  # rows of the array that one worker or streaming shard reads
CONCEPT_FILE, CONCEPT_FOLDER = "train_concepts.txt", "training_images"

CITATION = """@article{gifford2022large,
  title = {A large and rich {EEG} dataset for modeling human visual object recognition},
  author = {Gifford, Alessandro T. and Dwivedi, Kshitij and Roig, Gemma and Cichy, Radoslaw M.},
  journal = {NeuroImage},
  volume = {264},
  pages = {119754},
  year = {2022},
  doi = {10.1016/j.neuroimage.2022.119754}
}"""
LICENSE = "cc-by-4.0"


class Block(NamedTuple):
    """Rows `start` to `stop` of a subject's array of one partition."""

    subject: int
    partition: Partition
    start: int
    stop: int


@dataclass
class ThingsEEG2Config(datasets.BuilderConfig):
    """What to load.

    Attributes:
        subject: number from 1, or "all" for every prepared subject.
        average: one row an image, the mean over its repetitions (True), or one row a trial, with `repetition` and `session` (False).
    """

    subject: int | str = 1
    average: bool = True


class ThingsEEG2(datasets.GeneratorBasedBuilder):
    """THINGS-EEG2 as `datasets` sees it: configs ``train`` (default) and ``test``, each with a split of its name, and ``sample`` with both.

    The data come from the first of these that applies: `data_dir` (a folder that ``decodehub things prepare`` has written; ``"sample"``
    asks for the embedded sample); ``$DECODEHUB_HOME/things-eeg2``; the Hub repository of the organisation in ``$DECODEHUB_ORG`` (through
    `load_dataset`; see `decodehub.core.registry`); else the embedded sample, which is **simulated**, with a warning.

    Raises:
        FileNotFoundError: the folder or the subject is not prepared. ValueError: the arrays are not what their ``info.json`` says, or
            subjects with different channels or times are asked for together.
    """

    BUILDER_CONFIG_CLASS = ThingsEEG2Config
    BUILDER_CONFIGS = [  # noqa: RUF012  (the library reads it so)
        ThingsEEG2Config(name=name, version=datasets.Version(VERSION), description=text)
        for name, text in (
            ("train", "training images, a row an image and subject, or a row a trial"),
            ("test", "test images, a row an image and subject, or a row a trial"),
            (SAMPLE_CONFIG, "the embedded sample: simulated, 40 training and 10 test images"),
        )
    ]
    DEFAULT_CONFIG_NAME = "train"

    def __init__(self, *args: Any, data_dir: str | None = None, data_files: Any = None, hash: str | None = None, **kwargs: Any) -> None:
        if data_files is not None:
            raise ValueError(f"{NAME} takes data_dir= (a folder that 'decodehub things prepare' has written), not data_files=")
        config = kwargs.get("config_name") or self.DEFAULT_CONFIG_NAME
        self._folder = resolve_folder(data_dir, config)
        self._subjects = find_subjects(self._folder, kwargs.get("subject", ThingsEEG2Config.subject))
        self._infos = {subject: read_info(subject_folder(self._folder, subject)) for subject in self._subjects}
        self._concepts = train_concept_names(self._folder)
        _same_epochs(self._infos)
        kwargs.setdefault("dataset_name", NAME)
        # The cache key is the content (info.json has the hashes of the arrays) and the state of the arrays, so that a changed folder is never
        # answered from an old cache: an array that is no longer what info.json says is read, and refused.
        arrays = sorted(path for subject in self._subjects for path in subject_folder(self._folder, subject).glob("*.npy"))
        states = [[path.name, *file_state(path)] for path in arrays]
        fingerprint = sha256_json([VERSION, {str(s): info for s, info in self._infos.items()}, self._concepts, states])
        super().__init__(*args, hash=fingerprint.removeprefix("sha256:")[:16], **kwargs)

    def _info(self) -> datasets.DatasetInfo:
        if not isinstance(self.config.average, bool):
            raise ValueError(f"average must be True or False, found {self.config.average!r}")
        info = next(iter(self._infos.values()))
        shape = (len(info["ch_names"]), len(info["times"]))
        columns = {
            "subject": Value("int32"),
            "image_number": Value("int32"),
            "concept_index": Value("int32"),
            "concept": Value("string"),
            "eeg": Array2D(shape=shape, dtype="float32"),
            **({} if self.config.average else {"repetition": Value("int32"), "session": Value("int32")}),
            "release": Value("string"),
        }
        times = info["times"]
        return datasets.DatasetInfo(
            description=(
                f"THINGS-EEG2, {', '.join(sorted({release_name(i) for i in self._infos.values()}))}. Config {self.config.name}: "
                f"{self.config.description}; {'mean over repetitions' if self.config.average else 'single trials'}. "
                f"eeg: {shape[0]} channels x {shape[1]} times ({times[0]:g} to {times[-1]:g} s, {info['sfreq']:g} Hz), unit {info['unit']}. "
                f"Channels: {' '.join(info['ch_names'])}."
            ),
            features=Features(columns),
            license=LICENSE,
            citation=CITATION,
            homepage="https://osf.io/3jk45/",
        )

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        partitions = PARTITIONS if self.config.name == SAMPLE_CONFIG else (self.config.name,)
        generators = []
        for partition in partitions:
            blocks: list[Block] = []
            for subject in self._subjects:
                # Everything is read anyway when a table is made; a stream begins at once and trusts the files.
                epochs = load_epochs(self._folder, subject, partition, verify=not dl_manager.is_streaming)
                n = len(epochs.images)
                blocks += [Block(subject, partition, i, min(i + IMAGES_A_BLOCK, n)) for i in range(0, n, IMAGES_A_BLOCK)]
            arguments = {
                "blocks": blocks,
                "folder": str(self._folder),
                "average": self.config.average,
                "concepts": tuple(self._concepts or ()),
            }
            generators.append(datasets.SplitGenerator(name=partition, gen_kwargs=arguments))
        return generators

    def _generate_examples(
        self, blocks: list[Block], folder: str, average: bool, concepts: tuple[str, ...]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        for subject, partition, start, stop in blocks:
            epochs = load_epochs(Path(folder), subject, partition)
            release = release_name(read_info(subject_folder(Path(folder), subject)))
            for i in range(start, stop):
                number = int(epochs.images[i])
                index = concept_index(number, partition)
                head = {
                    "subject": subject,
                    "image_number": number,
                    "concept_index": index,
                    "concept": concept_name(index, partition, concepts),
                }
                trials = np.asarray(epochs.data[i])
                if average:
                    mean = trials.mean(axis=0, dtype=np.float64).astype(np.float32)
                    yield f"{subject}-{number}", {**head, "eeg": mean, "release": release}
                    continue
                for r, trial in enumerate(trials):
                    session = None if epochs.sessions is None else int(epochs.sessions[i, r])
                    row = {**head, "eeg": trial, "repetition": r + 1, "session": session, "release": release}
                    yield f"{subject}-{number}-{r + 1}", row


def resolve_folder(data_dir: str | os.PathLike[str] | None, config: str = "train") -> Path:
    """The prepared folder that a load reads; see `ThingsEEG2` for the order."""
    return data_folder(
        NAME, data_dir, config, ensure_sample, ", which is SIMULATED (recordings become such a folder by 'decodehub things prepare')"
    )


def find_subjects(folder: Path, subject: int | str) -> list[int]:
    """The prepared subjects of `folder` that `subject` (a number or "all") asks for.

    Raises:
        ValueError: neither a number from 1 nor "all". FileNotFoundError: not prepared; the message says which are.
    """
    there = sorted(int(p.parent.name[4:]) for p in folder.glob(f"sub-*/{INFO}") if re.fullmatch(r"sub-\d\d", p.parent.name))
    if subject == "all" and there:
        return there
    if subject != "all" and (isinstance(subject, bool) or not isinstance(subject, int) or subject < 1):
        raise ValueError(f'subject must be a number from 1 or "all", found {subject!r}')
    if subject not in there:
        raise FileNotFoundError(
            f"{folder} has the prepared subjects {there}, asked for was {subject}: write it with 'decodehub things prepare' "
            "(sub-01/info.json and so on)"
        )
    return [int(subject)]


def train_concept_names(folder: Path) -> list[str] | None:
    """Names of the 1,654 training concepts, when the folder has them: lines of ``train_concepts.txt``, or the folder names of the official
    ``training_images`` (``00001_aardvark``).

    Raises:
        ValueError: another number of names.
    """
    if (table := folder / CONCEPT_FILE).is_file():
        names = table.read_text(encoding="utf-8-sig").split()
    elif (images := folder / CONCEPT_FOLDER).is_dir():
        names = image_order(p.name for p in images.iterdir() if p.is_dir())
    else:
        return None
    if len(names) != TRAIN_CONCEPTS:
        raise ValueError(f"{folder} names {len(names):,} training concepts, expected {TRAIN_CONCEPTS:,} in the official (ASCII) order")
    return [re.sub(r"^\d{5}_", "", name) for name in names]


def concept_index(number: int, partition: Partition) -> int:
    """0-based place of an image's concept in the official order of the partition; of test images the same as in ``eeg-editbench``."""
    return int(concept_of_train_image(number)) - 1 if partition == "train" else number - 1


def concept_name(index: int, partition: Partition, train_concepts: tuple[str, ...]) -> str | None:
    """Name of a concept; None for a training concept without a table."""
    if partition == "test":
        return load_taxonomy().concepts[index].name
    return train_concepts[index] if train_concepts else None


def release_name(info: dict[str, Any]) -> str:
    """What rows are labelled with: the name in the settings, else one that says how the data were prepared; simulated data say so."""
    if name := info["settings"].get("release"):
        return str(name)
    simulated = "simulated" in canonical_json([info["source"], info["settings"], info.get("made_from")]).lower()
    return f"{'simulated' if simulated else 'prepared'}-{info['settings_hash'].removeprefix('sha256:')[:8]}"


def _same_epochs(infos: dict[int, dict[str, Any]]) -> None:
    shapes = {(tuple(info["ch_names"]), tuple(info["times"]), info["unit"]): subject for subject, info in infos.items()}
    if len(shapes) > 1:
        subjects = ", ".join(str(s) for s in shapes.values())
        raise ValueError(f"subjects {subjects} differ in channels, times or unit: prepare them with the same settings, or load one by one")
