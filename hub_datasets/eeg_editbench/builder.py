"""``load_dataset("eeg-editbench")``: the builder that reads a release folder and checks all of it."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
from datasets import ClassLabel, Features, Image, List, Value
from datasets.exceptions import DatasetGenerationError

from decodehub.core.files import sha256_bytes
from decodehub.core.papers import EEG_EDITBENCH
from decodehub.core.repos import data_folder

from .manifest import EditRow, ManifestError, Release, SourceRow, read_release, read_release_image, release_fingerprint
from .sample_folder import ensure_sample
from .taxonomy import load_taxonomy

NAME = "eeg-editbench"
VERSION = "1.0.0"  # of this table layout; enters the cache key

_FAMILY = ClassLabel(names=load_taxonomy().family_names)
_SUBTYPE = ClassLabel(names=load_taxonomy().subtype_names)
_CATEGORY = ClassLabel(names=list(load_taxonomy().categories))
_EDIT = {
    "edit_id": Value("string"),
    "concept": Value("string"),
    "concept_index": Value("int32"),
    "source_image": Image(),
    "edited_image": Image(),
    "family": _FAMILY,
    "subtype": _SUBTYPE,
    "target_concept": Value("string"),
    "instruction": Value("string"),
    "source_category": _CATEGORY,
    "visual_distance": Value("float64"),
    "source_sha256": Value("string"),
    "edited_sha256": Value("string"),
    "release": Value("string"),
}
FEATURES = {
    "edits": Features(_EDIT),
    "sources": Features(
        {
            "concept": Value("string"),
            "concept_index": Value("int32"),
            "image": Image(),
            "null_image": Image(),
            "source_category": _CATEGORY,
            "source_sha256": Value("string"),
            "null_sha256": Value("string"),
            "attribution": Value("string"),
            "release": Value("string"),
        }
    ),
    "candidates": Features({**_EDIT, "votes": List(Value("bool")), "kept": Value("bool")}),
    "sample": Features(_EDIT),
}
_DESCRIPTIONS = {
    "edits": "one row an edit that review kept",
    "sources": "one row a viewed image, with its null edit when there is one",
    "candidates": "all edits that were made, with the reviewers' votes",
    "sample": "the edits of the embedded sample",
}


class EEGEditBench(datasets.GeneratorBasedBuilder):
    """EEG-EditBench as `datasets` sees it: configs ``edits`` (default), ``sources``, ``candidates``, ``sample``; one split, ``test``.

    The data come from the first of these that applies: `data_dir` (a release folder, see `manifest`; ``"sample"`` asks for the embedded
    sample); ``$DECODEHUB_HOME/eeg-editbench``; the Hub repository of the organisation in ``$DECODEHUB_ORG`` (through
    `load_dataset`; see `decodehub.core.registry`); else the embedded sample, with a warning.

    Raises:
        ManifestError: anything in the release folder is missing, malformed, or leads out of it; nothing is loaded then.
    """

    BUILDER_CONFIGS = [  # noqa: RUF012  (the library reads it so)
        datasets.BuilderConfig(name=name, version=datasets.Version(VERSION), description=text) for name, text in _DESCRIPTIONS.items()
    ]
    DEFAULT_CONFIG_NAME = "edits"

    def __init__(self, *args: Any, data_dir: str | None = None, data_files: Any = None, hash: str | None = None, **kwargs: Any) -> None:
        if data_files is not None:
            raise ValueError(f"{NAME} takes data_dir= (a folder with manifest.jsonl and its images), not data_files=")
        config = kwargs.get("config_name") or self.DEFAULT_CONFIG_NAME
        self._folder = resolve_folder(data_dir, config)
        self._release, fingerprint = _read(self._folder, _stamp(self._folder))
        kwargs.setdefault("dataset_name", NAME)
        # The cache key is the content, so that a changed folder is never answered from an old cache.
        super().__init__(*args, hash=fingerprint.removeprefix("sha256:")[:16], **kwargs)

    def download_and_prepare(self, *args: Any, **kwargs: Any) -> None:
        """As in `datasets`, but a fault of the release is raised as itself and not as a generic generation error."""
        try:
            super().download_and_prepare(*args, **kwargs)
        except DatasetGenerationError as error:
            if isinstance(error.__cause__, ManifestError):
                raise error.__cause__ from None
            raise

    def _info(self) -> datasets.DatasetInfo:
        header = self._release.header
        return datasets.DatasetInfo(
            description=f"EEG-EditBench, release {header.release}: {header.title}. Config {self.config.name}: {self.config.description}. {header.notes}",
            features=FEATURES[self.config.name],
            license=header.license,
            citation=EEG_EDITBENCH,
            homepage="https://arxiv.org/abs/2607.27857",
        )

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        return [datasets.SplitGenerator(name=datasets.Split.TEST, gen_kwargs={"folder": str(self._folder), "config": self.config.name})]

    def _generate_examples(self, folder: str, config: str) -> Iterator[tuple[int, dict[str, Any]]]:
        release = read_release(folder)
        index = {source.concept: i for i, source in enumerate(release.sources)}
        if config == "sources":
            for i, source in enumerate(release.sources):
                yield i, _source_row(release, source, i)
            return
        sources: dict[str, dict[str, Any]] = {}
        for i, edit in enumerate(release.candidates if config == "candidates" else release.edits):
            if edit.concept not in sources:  # edits of one concept usually follow each other: keep one source at a time
                sources = {edit.concept: _source_row(release, release.sources[index[edit.concept]], index[edit.concept], null=False)}
            row = _edit_row(release, edit, sources[edit.concept])
            yield i, row if config != "candidates" else {**row, "votes": edit.votes, "kept": edit.kept}


def resolve_folder(data_dir: str | os.PathLike[str] | None, config: str = "edits") -> Path:
    """The release folder that a load reads; see `EEGEditBench` for the order."""
    return data_folder(NAME, data_dir, config, ensure_sample, "; its scores say nothing about the benchmark")


@functools.lru_cache(maxsize=8)
def _read(folder: Path, stamp: str) -> tuple[Release, str]:
    release = read_release(folder)
    return release, sha256_bytes(f"{VERSION} {release_fingerprint(release)}".encode())


def _stamp(folder: Path) -> str:
    """Changes when a file in the folder does, so that the (costlier) fingerprint is taken once a state of the folder.

    The change time is in it: a file may be replaced by one with an older modification time (``rsync -a``, ``cp -p``).
    """
    states = []
    for base, _, files in os.walk(folder):
        for name in files:
            s = os.stat(os.path.join(base, name), follow_symlinks=False)  # noqa: PTH116, PTH118
            states.append((base, name, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns))
    return sha256_bytes(repr(sorted(states)).encode())


def _source_row(release: Release, source: SourceRow, index: int, *, null: bool = True) -> dict[str, Any]:
    owner = f"source of concept {source.concept!r}"
    image = read_release_image(release, source.image, owner)
    row = {
        "concept": source.concept,
        "concept_index": index,
        "image": {"path": Path(source.image).name, "bytes": image},
        "source_category": source.source_category,
        "source_sha256": sha256_bytes(image),
        "attribution": source.attribution,
        "release": release.header.release,
    }
    if null:
        data = read_release_image(release, source.null_image, owner) if source.null_image else None
        row["null_image"] = None if data is None else {"path": Path(source.null_image or "").name, "bytes": data}
        row["null_sha256"] = None if data is None else sha256_bytes(data)
    return row


def _edit_row(release: Release, edit: EditRow, source: dict[str, Any]) -> dict[str, Any]:
    image = read_release_image(release, edit.image, f"edit {edit.edit_id!r}")
    return {
        "edit_id": edit.edit_id,
        "concept": edit.concept,
        "concept_index": source["concept_index"],
        "source_image": source["image"],
        "edited_image": {"path": Path(edit.image).name, "bytes": image},
        "family": edit.family,
        "subtype": edit.subtype,
        "target_concept": edit.target_concept,
        "instruction": edit.instruction,
        "source_category": source["source_category"],
        "visual_distance": edit.visual_distance,
        "source_sha256": source["source_sha256"],
        "edited_sha256": sha256_bytes(image),
        "release": release.header.release,
    }
