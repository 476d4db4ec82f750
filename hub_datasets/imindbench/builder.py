"""``load_dataset("imindbench")``: the units of the benchmark, their labelled windows in two folds, and a simulated sample with signals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from datasets import Features, Sequence, Value

from decodehub.core.files import file_state, sha256_file, sha256_json
from decodehub.core.repos import SAMPLE_CONFIG
from decodehub.loaders.ieeg.events import neuroprobe_folder
from decodehub.loaders.ieeg.labels import RULES
from decodehub.loaders.ieeg.splits import PARTS

from . import sample, vocabulary
from .data import NAME, resolve_folder, unit_folds
from .vocabulary import Unit

VERSION = "1.1.0"  # of these tables; enters the cache key
CITATION = """@article{chau2026imindbench,
  title = {{iMINDBench}: {iEEG} Multi-Institution Neural Decoding Benchmark},
  author = {Chau, Geeling and Hashemi, Saba and Gwon, Yonghyeon and Patel, Eshani and DeWitt, Jan and Wang, Christopher and Zahorodnii, Andrii
            and Talukder, Sabera J and Han, Danny Dongyeop and Chung, Chun Kee and Shanechi, Maryam M and Yue, Yisong},
  journal = {arXiv preprint arXiv:2609.18104},
  year = {2026}
}"""
UNIT_COLUMNS = {k: Value("string") for k in ("unit", "dataset", "subject_session", "subject", "session", "task", "subset")}
LABEL_COLUMNS = {
    **{k: Value("string") for k in ("unit", "dataset", "subject_session", "task")},
    "fold": Value("int8"),
    "part": Value("string"),
    "window": Value("int32"),
    "start_s": Value("float64"),
    "window_s": Value("float64"),
    "label": Value("int8"),
    "text": Value("string"),
}


@dataclass
class IMINDBenchConfig(datasets.BuilderConfig):
    """What to load.

    Attributes:
        unit_dataset: canonical id of one data set, or "all".
        task: id of one task, or "all".
        subset: "main", "challenge" or "all".
        partial: of "labels": leave out units whose files are not there, instead of refusing.
    """

    unit_dataset: str = "all"
    task: str = "all"
    subset: str = "all"
    partial: bool = False


class IMINDBench(datasets.GeneratorBasedBuilder):
    """iMINDBench as `datasets` sees it: configs ``units`` (default), ``labels`` and ``sample``, each with one split of its name.

    ``units`` is the published grid; with ``data_dir="sample"`` that of the sample. ``labels`` are read or made from the first of these that
    applies: `data_dir` (see `data`; ``"sample"`` for the sample); ``$DECODEHUB_HOME/imindbench``; else the sample, with a warning. ``sample``
    shows **simulated** windows with their signals.

    Raises:
        FileNotFoundError: units whose files are missing (unless ``partial``). ValueError: malformed files, unknown selections.
    """

    BUILDER_CONFIG_CLASS = IMINDBenchConfig
    BUILDER_CONFIGS = [  # noqa: RUF012  (the library reads it so)
        IMINDBenchConfig(name=name, version=datasets.Version(VERSION), description=text)
        for name, text in (
            ("units", "the grid: a row a data set, session and task"),
            ("labels", "a row a labelled window of a fold"),
            (SAMPLE_CONFIG, "the embedded sample: simulated windows with their signals"),
        )
    ]
    DEFAULT_CONFIG_NAME = "units"

    def __init__(self, *args: Any, data_dir: str | None = None, data_files: Any = None, hash: str | None = None, **kwargs: Any) -> None:
        if data_files is not None:
            raise ValueError(f"{NAME} takes data_dir= (see the card for its folders), not data_files=")
        config = kwargs.get("config_name") or self.DEFAULT_CONFIG_NAME
        if config == "units":
            self._folder = sample.FOLDER if data_dir == SAMPLE_CONFIG else None
        else:
            self._folder = resolve_folder(data_dir, config)
        self._release = sample.release() if self._folder == sample.FOLDER else vocabulary.RELEASE
        kwargs.setdefault("dataset_name", NAME)
        content = [VERSION, self._release, sha256_file(vocabulary.FOLDER / "units.csv"), sample.sample_code(), fingerprint(self._folder)]
        super().__init__(*args, hash=sha256_json(content).removeprefix("sha256:")[:16], **kwargs)

    def _info(self) -> datasets.DatasetInfo:
        columns = dict(UNIT_COLUMNS if self.config.name == "units" else LABEL_COLUMNS)
        if self.config.name == SAMPLE_CONFIG:
            columns |= {"ieeg": Sequence(Sequence(Value("float32"))), "sfreq": Value("float64"), "ch_names": Sequence(Value("string"))}
        return datasets.DatasetInfo(
            description=f"iMINDBench, release {self._release}. Config {self.config.name}: {self.config.description}.",
            features=Features({**columns, "release": Value("string")}),
            citation=CITATION,
            homepage="https://imindbench.github.io/",
            license=self._licence(),
        )

    def _licence(self) -> str:
        if self.config.name == "units":
            return "Apache-2.0 (a list of names)"
        if self._folder == sample.FOLDER:
            return "Apache-2.0 (simulated signals), CC BY 4.0 (word timing of Brain Treebank, where it is used)"
        return "; ".join(f"{name}: {source['licence']}" for name, source in vocabulary.sources().items())

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        return [datasets.SplitGenerator(name=self.config.name, gen_kwargs={"units": list(self._units())})]

    def _units(self) -> tuple[Unit, ...]:
        config = self.config
        if config.name == SAMPLE_CONFIG:
            first = {dataset: sessions[0] for dataset, sessions in sample.SESSIONS.items()}
            return tuple(u for u in sample.sample_units() if u.task in sample.SHOWN_TASKS and u.subject_session == first[u.dataset])
        chosen = sample.sample_units() if self._folder == sample.FOLDER else vocabulary.units()
        for value, known in ((config.unit_dataset, vocabulary.sources()), (config.task, RULES), (config.subset, vocabulary.SUBSETS)):
            if value not in ("all", *known):
                raise ValueError(f"{value!r} selects nothing: expected all or one of {', '.join(known)}")
        chosen = tuple(u for u in chosen if config.unit_dataset in ("all", u.dataset) and config.task in ("all", u.task))
        return tuple(u for u in chosen if config.subset in ("all", u.subset))

    def _generate_examples(self, units: list[Unit]) -> Iterator[tuple[str, dict[str, Any]]]:
        if self.config.name == "units":
            for unit in units:
                yield unit.id, unit_row(unit) | {"release": self._release}
            return
        assert self._folder is not None
        shown = sample.SHOWN_WINDOWS if self.config.name == SAMPLE_CONFIG else None
        missing = []
        for unit in units:
            try:
                rows = list(label_rows(self._folder, unit, shown))
            except FileNotFoundError as error:
                missing.append((unit, error))
                continue
            for i, row in enumerate(rows):
                yield f"{unit.id}/{i}", row | {"release": self._release}
        if missing and not self.config.partial:
            first, reason = missing[0]
            raise FileNotFoundError(
                f"{len(missing)} of {len(units)} units have no labels, the first is {first.id}: {reason}. Select with unit_dataset= and task=, or give "
                "partial=True to leave them out"
            )


def unit_row(unit: Unit) -> dict[str, str]:
    """A row of the config ``units``, without its release."""
    subject, _, session = unit.subject_session.partition("_")
    head = {"unit": unit.id, "dataset": unit.dataset, "subject_session": unit.subject_session, "subject": subject, "session": session}
    return head | {"task": unit.task, "subset": unit.subset}


def label_rows(folder: Path, unit: Unit, shown: int | None = None) -> Iterator[dict[str, Any]]:
    """Rows of the config ``labels`` of one unit, by fold and part; with `shown`, so many a class and part of fold 0, with their signals."""
    recording = sample.sample_recording(unit.dataset, unit.subject_session) if folder == sample.FOLDER else None
    recording_id = recording.recording_id if recording else vocabulary.find_session(unit.dataset, unit.subject_session).recording_id
    table, folds = unit_folds(folder, unit.dataset, unit.subject_session, unit.task, recording_id)
    head = {"unit": unit.id, "dataset": unit.dataset, "subject_session": unit.subject_session, "task": unit.task}
    for fold in folds[: 1 if shown else None]:
        for part in PARTS:
            chosen = fold.part(part)
            if shown:
                chosen = np.sort(np.concatenate([chosen[table.label[chosen] == c][:shown] for c in (0, 1)]))
            for i in chosen:
                row: dict[str, Any] = {**head, "fold": fold.index, "part": part, "window": int(i), "start_s": float(table.start_s[i])}
                row |= {
                    "window_s": table.window_s,
                    "label": int(table.label[i]),
                    "text": None if table.text is None else str(table.text[i]),
                }
                if shown and recording:
                    signal = recording.read(*recording.window_bounds(row["start_s"], table.window_s))
                    row |= {"ieeg": signal, "sfreq": recording.sfreq, "ch_names": list(recording.ch_names)}
                yield row


def fingerprint(folder: Path | None) -> list[list[str]]:
    """Names and hashes (the state, of prepared recordings) of what labels are made from, so that a changed file or package is never answered from an old cache."""
    if folder is None or folder == sample.FOLDER:
        return []
    patterns = (
        "*/labels/*_binary_labels.csv",
        "*/stimuli/annotations/sound/*.tsv",
        "*/transcripts/*/features.csv",
        "*/time_alignment/*.csv*",
    )
    files = sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})
    try:
        package = version("neuroprobe")
    except PackageNotFoundError:
        package = str(neuroprobe_folder())  # not installed, or a folder on the path
    prepared = sorted(path for path in folder.glob("*/processed/*.h5") if path.is_file())  # too large to hash
    named = [[str(path.relative_to(folder)), sha256_file(path)] for path in files]
    return [["neuroprobe", package], *named, *([str(path.relative_to(folder)), *map(str, file_state(path))] for path in prepared)]
