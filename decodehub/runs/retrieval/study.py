"""The study of EEG-EditBench: models x subjects x seeds as one job that can be stopped anywhere, shared by processes and machines.

What it writes below its folder:

runs/MODEL/sub-01_seed-0.safetensors   embeddings, and the scores computed from them; one file a run, written when the run is complete
training/MODEL/sub-01_seed-0/          weights and run.json; a checkpoint while the run is under way
records/MODEL/                         record, predictions and report, once all runs of the model are there
tables/, figures/                      the paper's tables and figures over all complete models

A run depends on the EEG, the image features, the release, the model's configuration and its training settings. All of them are hashed;
a run made under others is made anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from tqdm import tqdm

from decodehub.core.files import sha256_file, sha256_json
from decodehub.core.jobs import JobRunning, Report, exclusive, run_job, unfinished
from decodehub.core.records import ModelInfo, ResultRecord
from decodehub.core.words import suggest
from decodehub.hub_models.eeg_retrieval import (
    RETRIEVAL_MODELS,
    RandomProjectionConfig,
    RandomProjectionModel,
    RidgeRetrievalConfig,
    RidgeRetrievalModel,
)
from decodehub.loaders.image_encoders import load_encoder
from decodehub.loaders.image_features import image_hashes
from decodehub.loaders.things_eeg2.store import load_epochs, read_info, subject_folder
from decodehub.metrics.eeg_editbench.benchmark import Benchmark, load_benchmark
from decodehub.metrics.eeg_editbench.protocol import ScoredRuns, make_record

from .embeddings import embed, read_run, run_bytes, score
from .inputs import Inputs, make_model, measured_benchmark, negatives_of, recorded_inputs, recorded_test_eeg, simulated_inputs
from .settings import BASELINES, TrainingSettings
from .training import CHECKPOINT, train
from .training_images import TrainingImages

VERSION = 1  # of the files of runs
MODELS = (*RETRIEVAL_MODELS, *BASELINES)


def check_models(names: Sequence[str]) -> None:
    """Raise ValueError for a name that is none of `MODELS`."""
    if unknown := [name for name in names if name not in MODELS]:
        raise ValueError(f"unknown model {unknown[0]!r}: expected some of {', '.join(MODELS)}{suggest(unknown[0], MODELS)}")


class Group(NamedTuple):
    """The runs that share model and subject, and so their data."""

    model: str
    subject: int
    seeds: tuple[int, ...]


class Source(Protocol):
    """Where EEG and image features come from."""

    data_dir: str | None

    @property
    def benchmark(self) -> Benchmark:
        """What is scored."""

    def simulated(self, subjects: Sequence[int]) -> bool:
        """Whether no brain made the EEG of some of these subjects."""

    def identity(self, model: str, subject: int, seed: int) -> Any:
        """JSON of all that decides what `load` gives, without loading it."""

    def load(self, model: str, subject: int, seed: int) -> tuple[Inputs, np.ndarray]:
        """What training takes, and the test EEG (Q, C, T)."""


@dataclasses.dataclass(frozen=True)
class Recorded:
    """Prepared THINGS-EEG2 and files of image features: ``MODEL.safetensors``, or ``MODEL_seed-0.safetensors`` where they are a seed's own."""

    eeg: Path
    targets: Path
    data_dir: str | None

    def targets_of(self, model: str, seed: int) -> Path:
        """The file of image features of a run. Raises FileNotFoundError."""
        name = "nice" if model in BASELINES else model
        files = [self.targets / f"{name}_seed-{seed}.safetensors", self.targets / f"{name}.safetensors"]
        for file in files:
            if file.is_file():
                return file
        raise FileNotFoundError(
            f"{self.targets} has neither {files[0].name} nor {files[1].name}: make it with 'decodehub editbench targets {name}'"
        )

    @cached_property
    def benchmark(self) -> Benchmark:
        return load_benchmark(self.data_dir)

    def simulated(self, subjects: Sequence[int]) -> bool:
        return any(bool(load_epochs(self.eeg, subject, "test").settings.get("simulated")) for subject in subjects)

    def identity(self, model: str, subject: int, seed: int) -> Any:
        partitions = read_info(subject_folder(self.eeg, subject))["partitions"]
        return {
            "eeg": {name: part["sha256"] for name, part in partitions.items()},
            "targets": _hash_of(self.targets_of(model, seed)),
            "benchmark": self.benchmark.content_hash,
        }

    def load(self, model: str, subject: int, seed: int) -> tuple[Inputs, np.ndarray]:
        inputs = recorded_inputs(model, subject, self.eeg, self.targets_of(model, seed), self.data_dir)
        return inputs, recorded_test_eeg(self.eeg, subject, inputs)


@dataclasses.dataclass(frozen=True)
class Simulated:
    """**Simulated** EEG of training images and of the sources of a release that needs no licence."""

    training: TrainingImages
    data_dir: str
    snr: float

    @cached_property
    def benchmark(self) -> Benchmark:
        return measured_benchmark(self.data_dir)

    @cached_property
    def _images(self) -> str:
        hashes = [image_hashes(images) if images else [] for images in (self.training.images, self.training.edits)]
        return sha256_json([load_encoder("lite0").fingerprint, *hashes, self.training.edit_of, self.benchmark.content_hash])

    def simulated(self, subjects: Sequence[int]) -> bool:
        return True

    def identity(self, model: str, subject: int, seed: int) -> Any:
        noise = seed if model == "neurobridge" else None  # the one with random targets
        return {"simulated": True, "snr": self.snr, "images": self._images, "noise": noise}

    def load(self, model: str, subject: int, seed: int) -> tuple[Inputs, np.ndarray]:
        return simulated_inputs(model, subject, self.snr, self.training, self.data_dir, seed, self.benchmark)


@dataclasses.dataclass(frozen=True)
class Study:
    """What is run.

    Attributes:
        out: folder of the study.
        models: of `MODELS`. subjects: numbers. seeds: the same for every model and subject.
        source: EEG and image features.
        settings: by trained model.
        precision: of the exported embeddings, "float32" or "float16"; scores are computed from what is exported.
    """

    out: Path
    models: tuple[str, ...]
    subjects: tuple[int, ...]
    seeds: tuple[int, ...]
    source: Source
    settings: Mapping[str, TrainingSettings]
    precision: str = "float32"

    def __post_init__(self) -> None:
        check_models(self.models)
        for name in ("models", "subjects", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name} must be given once each, found {list(values)}")

    def groups(self) -> list[Group]:
        """Model by model, subject by subject."""
        return [Group(model, subject, self.seeds) for model in self.models for subject in self.subjects]

    def settings_hash(self, model: str, subject: int, seed: int) -> str:
        """Hash of all that a run's file depends on."""
        trained = dataclasses.asdict(self.settings[model]) if model in self.settings else None
        return sha256_json([VERSION, model, subject, seed, trained, self.precision, self.source.identity(model, subject, seed)])


def deal(groups: Sequence[Group], rank: int, world: int) -> list[Group]:
    """The share of process `rank` of `world`: whole groups where there are enough, so that no data is loaded twice; else single runs."""
    if len(groups) >= world:
        return list(groups[rank::world])
    runs = [Group(g.model, g.subject, (seed,)) for g in groups for seed in g.seeds]
    return runs[rank::world]


def run_study(study: Study, rank: int = 0, world: int = 1, device: torch.device | str = "cpu", progress: bool = True) -> Report:
    """Make the runs of this process that are not there yet; one that another process has under way is left to it, and in no list.

    A failed run does not stop the others.
    """
    total = Report([], [], {})
    mine = deal(study.groups(), rank, world)
    with tqdm(total=sum(len(g.seeds) for g in mine), desc="runs", disable=not progress) as bar:
        for group in mine:
            bar.set_postfix_str(f"{group.model} sub-{group.subject:02d}")
            keys = {seed: f"{group.model}/{_name(group.subject, seed)}" for seed in group.seeds}
            try:
                hashes = {key: study.settings_hash(group.model, group.subject, seed) for seed, key in keys.items()}
            except (OSError, ValueError) as error:  # the data of this group is missing: the others go on
                total.failed.update(dict.fromkeys(keys.values(), f"{type(error).__name__}: {error}"))
                bar.update(len(keys))
                continue
            pending = set(unfinished(hashes, study.out / "runs"))
            worker = _Worker(study, group._replace(seeds=tuple(seed for seed in keys if keys[seed] in pending)), device, progress)
            for seed, key in keys.items():
                bar.update()
                try:
                    with exclusive(worker.folder(seed)):
                        done = run_job({key: seed}, worker.run, study.out / "runs", hashes[key], rank=rank, dealt=True, progress=False)
                        if done.made and (checkpoint := worker.folder(seed) / CHECKPOINT).is_file():
                            checkpoint.unlink()  # three times the weights, and the run is complete
                except JobRunning:  # of another command on the same folder, whose result is as good
                    bar.write(f"{key} is under way in another process")
                    continue
                total.add(done)
    return total


class _Worker:
    """Trains the runs of one group; loads its data when the first run needs it."""

    def __init__(self, study: Study, group: Group, device: torch.device | str, progress: bool) -> None:
        self.study, self.group, self.device, self.progress = study, group, device, progress
        self._loaded: tuple[Any, tuple[Inputs, np.ndarray]] | None = None

    def folder(self, seed: int) -> Path:
        """Where a run trains."""
        return self.study.out / "training" / self.group.model / _name(self.group.subject, seed).removesuffix(".safetensors")

    def run(self, seed: int) -> bytes:
        """The bytes of a run's file."""
        model_type, subject = self.group.model, self.group.subject
        inputs, test_eeg = self._load(seed)
        model, info = (self._baseline if model_type in BASELINES else self._train)(inputs, seed)
        embeddings = embed(model, test_eeg, inputs.candidates, subject, self.study.precision)
        facts = {
            "model": model_type,
            "subject": subject,
            "seed": seed,
            "benchmark": inputs.benchmark.content_hash,
            "parameters": int(model.num_parameters()),
            "precision": self.study.precision,
            "encoder": inputs.encoder,
            "data": inputs.data,
            "distance_encoder": inputs.distance_encoder,
            "device": torch.device(self.device).type,
            "settings": self.study.settings_hash(model_type, subject, seed),
            **info,
        }
        return run_bytes(embeddings, score(model, embeddings), facts)

    def _load(self, seed: int) -> tuple[Inputs, np.ndarray]:
        key = self.study.source.identity(self.group.model, self.group.subject, seed)
        if self._loaded is None or self._loaded[0] != key:
            self._loaded = key, self.study.source.load(self.group.model, self.group.subject, seed)
        return self._loaded[1]

    def _baseline(self, inputs: Inputs, seed: int) -> tuple[Any, dict[str, Any]]:
        shape = {"n_channels": inputs.eeg.shape[1], "n_times": inputs.eeg.shape[2], "ch_names": inputs.ch_names}
        features = inputs.targets["image"]
        model: Any
        if self.group.model == "ridge":
            model = RidgeRetrievalModel(RidgeRetrievalConfig(embed_dim=features.shape[1], **shape))
        else:
            model = RandomProjectionModel(
                RandomProjectionConfig(embed_dim=features.shape[1], image_dim=features.shape[1], seed=seed, **shape)
            )
        model.to(self.device)
        model.fit(inputs.eeg, features)
        return model, {"similarity": model.similarity, "training": "closed form" if self.group.model == "ridge" else "none"}

    def _train(self, inputs: Inputs, seed: int) -> tuple[Any, dict[str, Any]]:
        settings = self.study.settings[self.group.model]
        torch.manual_seed(seed)
        network = make_model(self.group.model, inputs).to(self.device)
        run = train(
            network,
            inputs.eeg,
            inputs.targets,
            inputs.concepts,
            self.group.subject,
            settings,
            seed,
            self.folder(seed),
            progress=self.progress,
            checkpoint_every=max(1, settings.epochs // 10),
            **negatives_of(inputs, settings),
        )
        training = f"{run.metadata['epochs']} epochs, weights of epoch {run.epoch} ({settings.selection})"
        return run.model, {"similarity": run.model.similarity, "training": training}


# ------------------------------------------------------------------------------------------------------------------------------- results


def missing_runs(study: Study) -> list[str]:
    """Keys ``MODEL/sub-01_seed-0.safetensors`` of the runs that are not there, or are of other settings."""
    hashes = {}
    for model, subject, seeds in study.groups():
        for seed in seeds:
            hashes[f"{model}/{_name(subject, seed)}"] = study.settings_hash(model, subject, seed)
    return unfinished(hashes, study.out / "runs")


def refuse_other_runs(study: Study) -> None:
    """Refuse, before any work, to write over runs that were made with other data or settings.

    Raises:
        ValueError: such a run is there; it is named.
    """
    for model, subject, seeds in study.groups():
        for seed in seeds:
            path = study.out / "runs" / model / _name(subject, seed)
            if not path.is_file():
                continue
            try:
                settings_hash, made_with = study.settings_hash(model, subject, seed), read_run(path)[1].get("settings")
            except (OSError, ValueError):  # data that is missing is named later; a damaged file is made again
                continue
            if made_with != settings_hash:
                raise ValueError(f"{path} was made with other data or settings: name another --out, or write over such runs with --force")


def make_records(study: Study, missing: Sequence[str]) -> Iterator[tuple[str, ResultRecord, ScoredRuns]]:
    """Score each model of which no run is missing and write its record, to ``records/MODEL``; yields model, record and scores."""
    for model in study.models:
        if any(key.startswith(f"{model}/") for key in missing):
            continue
        runs = [read_run(study.out / "runs" / model / _name(subject, seed)) for subject in study.subjects for seed in study.seeds]
        info = runs[0][1]
        trained = sorted({other["training"] for _, other in runs})
        notes = f"training: {trained[0]}{f' (others differ, up to {trained[-1]})' if len(trained) > 1 else ''}; image features: {info['encoder']}"
        record, scored = make_record(
            study.out / "records" / model,
            study.source.benchmark,
            [predictions for predictions, _ in runs],
            model=ModelInfo(id=model, parameters=info["parameters"], pretrained_on=info["encoder"], notes=notes),
            data=f"{info['data']}; {info['precision']} embeddings",
            similarity=info["similarity"],
            distance_encoder=info["distance_encoder"],
            device=info["device"],
            simulated=study.source.simulated(study.subjects),
        )
        yield model, record, scored


def _name(subject: int, seed: int) -> str:
    return f"sub-{subject:02d}_seed-{seed}.safetensors"


@lru_cache(maxsize=64)
def _hash_of(path: Path) -> str:
    return sha256_file(path)
