"""``load_dataset("bcs-annotations", CONFIG)``: reconstruction pairs, what annotators said of them, and the consensus to train on."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from datasets import Features, Image, List, Value
from datasets.exceptions import DatasetGenerationError

from decodehub.core.files import sha256_bytes
from decodehub.core.papers import BCS
from decodehub.core.repos import SAMPLE_CONFIG, data_folder

from .consensus import WEIGHT_RULES, WeightRule, consensus_table
from .questionnaire import load_questionnaire
from .release import (
    ANNOTATIONS,
    HEADER,
    HUMAN,
    PAIRS,
    NoRowsError,
    PairRow,
    Release,
    ReleaseError,
    read_header,
    read_pair_image,
    read_release,
    release_fingerprint,
)
from .sample import ensure_sample
from .splits import SPLITS

NAME = "bcs-annotations"
VERSION = "1.0.0"  # of this table layout; enters the cache key

_STRING, _INT, _SCORES = Value("string"), Value("int32"), List(Value("float32"), length=len(load_questionnaire().keys))
_PAIR = {
    "pair_id": _STRING,
    "method": _STRING,
    "subject": _INT,
    "concept": _STRING,
    "rank": _INT,
    "candidate": _INT,
    "reference": Image(),
    "reconstruction": Image(),
    "reference_sha256": _STRING,
    "reconstruction_sha256": _STRING,
    "split": _STRING,
    "release": _STRING,
}
FEATURES = {
    "pairs": Features(_PAIR),
    "annotations": Features(
        {
            "pair_id": _STRING,
            "annotator": _STRING,
            "question": _STRING,
            "answer": _STRING,
            "rationale": _STRING,
            "valid": Value("bool"),
            "prompt_version": _STRING,
            "settings_hash": _STRING,
            "release": _STRING,
        }
    ),
    "consensus": Features(
        {
            "pair_id": _STRING,
            "concept": _STRING,
            "targets": _SCORES,
            "weights": _SCORES,
            "t_pas": Value("float32"),
            "t_sas": Value("float32"),
            "n_annotators": _INT,
            "weight_rule": _STRING,
            "split": _STRING,
            "release": _STRING,
        }
    ),
    "human": Features(
        {"rater": _STRING, "pair_id": _STRING, "block": _STRING, "judgement": Value("float64"), "release": _STRING},
    ),
    "sample": Features(_PAIR),
}
_DESCRIPTIONS = {
    "pairs": "one row a reconstruction, with its reference",
    "annotations": "one row an answer: pair, annotator, question",
    "consensus": "one row a pair: medians over annotators and their weights",
    "human": "one row a judgement of a person",
    "sample": "the pairs of the embedded sample",
}


@dataclass
class BCSAnnotationsConfig(datasets.BuilderConfig):
    """A table of the annotations.

    Attributes:
        weight_rule: of the config ``consensus``: "paper" (default, equation 18) or "released_code" (1, 0.75, 0.40).
        annotators: of ``consensus``: those whose consensus it is; all of the release by default.
    """

    weight_rule: WeightRule = "paper"
    annotators: list[str] | None = None


class BCSAnnotations(datasets.GeneratorBasedBuilder):
    """The annotations of BCS as `datasets` sees them: configs ``pairs`` (default), ``annotations``, ``consensus``, ``human``, ``sample``.

    ``pairs``, ``annotations``, ``consensus`` and ``sample`` have the splits train, validation and test by concept; ``human`` has test alone.
    The data come from the first of these that applies: `data_dir` (a release folder, see `release`; ``"sample"`` asks for the embedded
    sample); ``$DECODEHUB_HOME/bcs-annotations``; the Hub repository of the organisation in ``$DECODEHUB_ORG``; else the embedded sample,
    with a warning.

    Raises:
        ReleaseError: anything in the release folder is missing, malformed, leads out of it, or crosses the splits; nothing is loaded then.
    """

    BUILDER_CONFIG_CLASS = BCSAnnotationsConfig
    BUILDER_CONFIGS = [  # noqa: RUF012  (the library reads it so)
        BCSAnnotationsConfig(name=name, version=datasets.Version(VERSION), description=text) for name, text in _DESCRIPTIONS.items()
    ]
    DEFAULT_CONFIG_NAME = "pairs"

    def __init__(self, *args: Any, data_dir: str | None = None, data_files: Any = None, hash: str | None = None, **kwargs: Any) -> None:
        if data_files is not None:
            raise ValueError(f"{NAME} takes data_dir= (a folder with {HEADER}, {PAIRS} and their images), not data_files=")
        if (rule := kwargs.get("weight_rule", "paper")) not in WEIGHT_RULES:
            raise ValueError(f"weight_rule {rule!r} is unknown: take one of {list(WEIGHT_RULES)}")
        self._folder = resolve_folder(data_dir, kwargs.get("config_name") or self.DEFAULT_CONFIG_NAME)
        self._header = read_header(self._folder)
        kwargs.setdefault("dataset_name", NAME)
        # The cache key is the content, so that a changed folder is never answered from an old cache.
        content = sha256_bytes(f"{VERSION} {release_fingerprint(self._folder)}".encode())
        super().__init__(*args, hash=content.removeprefix("sha256:")[:16], **kwargs)

    def download_and_prepare(self, *args: Any, **kwargs: Any) -> None:
        """As in `datasets`, but a fault of the release is raised as itself and not as a generic generation error."""
        try:
            super().download_and_prepare(*args, **kwargs)
        except DatasetGenerationError as error:
            if isinstance(error.__cause__, ReleaseError):
                raise error.__cause__ from None
            raise

    def _info(self) -> datasets.DatasetInfo:
        header = self._header
        return datasets.DatasetInfo(
            description=f"BCS annotations, release {header.release}: {header.title}. Config {self.config.name}: {self.config.description}. {header.notes}",
            features=FEATURES[self.config.name],
            license=header.license,
            citation=BCS,
            homepage="https://arxiv.org/abs/2607.12364",
        )

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        options = {"weight_rule": self.config.weight_rule, "annotators": self.config.annotators}
        return [
            datasets.SplitGenerator(
                name=name, gen_kwargs={"folder": str(self._folder), "config": self.config.name, "split": name, "options": options}
            )
            for name in self._splits()
        ]

    @property
    def is_empty(self) -> bool:
        """Whether the release does not have this table."""
        try:
            return not self._splits()
        except NoRowsError:
            return True

    def _splits(self) -> list[str]:
        """The splits that have a row: `datasets` has no empty ones.

        Raises:
            NoRowsError: no row at all.
        """
        release, config = self._read(), self.config.name
        if config == "human":
            found = ["test"] if release.human else []
        elif config in ("annotations", "consensus"):
            annotated = {row.pair_id for row in release.annotations}
            found = [split for split in SPLITS if any(p.split == split and p.pair_id in annotated for p in release.pairs)]
        else:
            found = [split for split in SPLITS if any(p.split == split for p in release.pairs)]
        if not found:
            file, remedy = (
                (HUMAN, "judgements of people") if config == "human" else (ANNOTATIONS, "answers (see 'decodehub annotations annotate')")
            )
            raise NoRowsError(
                f"{self._folder / file}: release {release.header.release!r} has no row for the config {config!r}, which needs {remedy}"
            )
        return found

    def _read(self) -> Release:
        return _read(str(self._folder), release_fingerprint(self._folder), self.config.name in ("annotations", "consensus", "human"))

    def _generate_examples(self, folder: str, config: str, split: str, options: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
        release = self._read()
        rows: Iterable[dict[str, Any]]
        if config in ("pairs", SAMPLE_CONFIG):
            rows = pair_rows(release, split)
        elif config == "annotations":
            rows = _annotation_rows(release, split)
        elif config == "consensus":
            rows = _consensus_rows(release, split, **options)
        else:
            rows = (row.model_dump() for row in release.human)
        for i, row in enumerate(rows):
            yield i, {**row, "release": release.header.release}


def resolve_folder(data_dir: str | os.PathLike[str] | None, config: str = "pairs") -> Path:
    """The release folder that a load reads; see `BCSAnnotations` for the order."""
    meaning = ", answered by a rule-based annotator; scores trained or measured on it mean nothing scientific"
    return data_folder(NAME, data_dir, config, ensure_sample, meaning)


@functools.lru_cache(maxsize=1)
def _read(folder: str, fingerprint: str, annotations: bool) -> Release:
    """The release, read once for all splits."""
    return read_release(folder, annotations=annotations)


def pair_rows(release: Release, split: str | None = None) -> Iterator[dict[str, Any]]:
    """Rows of the config ``pairs`` (of one split, or all), with images as encoded bytes that were decoded once and fit their hashes."""
    references: dict[str, dict[str, Any]] = {}
    for pair in (pair for pair in release.pairs if split in (None, pair.split)):
        if pair.reference not in references:  # pairs of one reference usually follow each other: keep one at a time
            references = {pair.reference: _image(release, pair, pair.reference, pair.reference_sha256)}
        yield {
            **pair.model_dump(),
            "reference": references[pair.reference],
            "reconstruction": _image(release, pair, pair.reconstruction, pair.reconstruction_sha256),
        }


def _image(release: Release, pair: PairRow, file: str, expected: str) -> dict[str, Any]:
    return {"path": Path(file).name, "bytes": read_pair_image(release, file, expected, f"pair {pair.pair_id!r}")}


def _annotation_rows(release: Release, split: str) -> Iterator[dict[str, Any]]:
    inside = {pair.pair_id for pair in release.pairs if pair.split == split}
    keys = load_questionnaire().keys
    for row in release.annotations:
        if row.pair_id in inside:
            shared = row.model_dump(exclude={"answers"})
            for key in keys:
                if (item := row.answers.get(key)) is not None:
                    yield {**shared, "question": key, **item.model_dump()}


def _consensus_rows(release: Release, split: str, weight_rule: WeightRule, annotators: list[str] | None) -> Iterator[dict[str, Any]]:
    codes = release.codes(annotators)
    questionnaire = load_questionnaire()
    table = consensus_table(codes, (questionnaire.block("perceptual"), questionnaire.block("semantic")), weight_rule)
    chosen = set(release.header.annotators if annotators is None else annotators)
    annotated = {row.pair_id for row in release.annotations if row.annotator in chosen}
    for i, pair in enumerate(release.pairs):
        if pair.split == split and pair.pair_id in annotated:
            yield {
                "pair_id": pair.pair_id,
                "concept": pair.concept,
                "targets": [_or_none(x) for x in table.targets[i]],
                "weights": table.weights[i].tolist(),
                "t_pas": _or_none(table.t_pas[i]),
                "t_sas": _or_none(table.t_sas[i]),
                "n_annotators": codes.shape[1],
                "weight_rule": weight_rule,
                "split": split,
            }


def _or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
