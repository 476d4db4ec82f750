"""The embedded sample of the BCS annotations: photographs that installed packages carry, degraded, swapped or edited in known ways.

No VLM and no person has seen it. Its answers come from a rule (``sample_rules.yaml``) that knows what was done to each image, by four rule-based
annotators that disagree by a seeded chance. It exists so that everything runs offline; scores trained or measured on it mean nothing scientific.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from PIL import Image

from decodehub.core.code import code_hash
from decodehub.core.files import home, new_folder, sha256_json
from decodehub.loaders.degradations import degrade
from decodehub.loaders.images import read_image
from decodehub.loaders.pair_ids import PairId, format_pair_id

from ..eeg_editbench import sample as editbench
from ..eeg_editbench.manifest import read_release as read_editbench
from ..eeg_editbench.sample_folder import MASKS, PACKAGES
from ..eeg_editbench.sample_folder import ensure_sample as ensure_editbench
from .questionnaire import load_questionnaire
from .release import (
    HEADER,
    AnnotationRow,
    AnswerItem,
    Header,
    HumanRow,
    PairRow,
    Release,
    hash_of_pixels,
    read_release,
    write_release,
)
from .splits import SEED, PairInfo, split_pairs

RELEASE = "sample"
SIZE = 224
_RULES = Path(__file__).with_name("sample_rules.yaml")
CODE_HASH = code_hash(__name__, packages=PACKAGES, data=(_RULES, MASKS)).removeprefix("sha256:")[:12]

# Scenes and photographs that are concepts here besides the nine of the EEG-EditBench sample; licences as scikit-image states them.
SCENES = ("brick_wall", "lawn", "gravel", "lake", "night_sky", "deep_space", "garden")
PHOTOS = {
    "retina": (editbench.SKIMAGE / "retina.jpg", (100, 100, 1211)),
    "clock": (editbench.SKIMAGE / "clock_motion.png", (50, 0, 300)),
    "cell": (editbench.SKIMAGE / "cell.png", (75, 130, 400)),
    "printed_text": (editbench.SKIMAGE / "text.png", (20, 0, 172)),
}
LICENSE = f"{editbench.LICENSE}; CC0 1.0 (retina: Mikael Haggstrom; cell); public domain (clock: Stefan van der Walt; text)"
NOTES = (
    "NOT THE ANNOTATIONS OF THE PAPER. Photographs from installed packages, degraded, swapped or edited by classical image processing; the answers "
    "come from a rule that knows what was done, not from a VLM or a person. Scores trained or measured on it mean nothing scientific."
)


class Made(NamedTuple):
    """One reconstruction of the sample: what was done, as (kind, strength) steps, and its pixels (224, 224, 3) uint8."""

    steps: tuple[tuple[str, float], ...]
    pixels: np.ndarray

    @property
    def method(self) -> str:
        return "+".join(f"{kind}-{strength:g}" if strength != 1 else kind for kind, strength in self.steps)


@cache
def load_rules() -> dict[str, Any]:
    """All of ``sample_rules.yaml``."""
    return yaml.safe_load(_RULES.read_text(encoding="utf-8"))


def quality(steps: tuple[tuple[str, float], ...]) -> np.ndarray:
    """(12,) what is left for each question, 1 all and 0 nothing: the product over steps of one minus strength times damage."""
    damage = load_rules()["damage"]
    return np.prod([1 - strength * np.array(damage[kind]) for kind, strength in steps], axis=0) if steps else np.ones(12)


def references() -> dict[str, np.ndarray]:
    """The reference images by concept, (224, 224, 3) uint8."""
    base = read_editbench(ensure_editbench())
    found = {source.concept: np.asarray(read_image(base.folder / source.image)) for source in base.sources}
    found |= {f"scene_{name}": editbench.scene(name) for name in SCENES}
    return found | {name: editbench.crop_photo(path, *crop) for name, (path, crop) in PHOTOS.items()}


def reconstructions(images: dict[str, np.ndarray], partners: dict[str, list[str]]) -> Iterator[tuple[str, Made]]:
    """All reconstructions as (concept, what was made).

    Args:
        images: of `references`.
        partners: by concept, the concepts that may stand in its place: those of the same split, so that no image is in two splits.
    """
    rules = load_rules()
    base = read_editbench(ensure_editbench())
    for concept, pixels in images.items():
        yield concept, Made((), pixels)
        for kind, parameters in rules["parameters"].items():
            for strength, parameter in zip(rules["strengths"], parameters):
                changed = degrade(pixels, kind, parameter, _rng(concept, kind, strength))
                if not np.array_equal(changed, pixels):  # a grey photograph has no colour to lose
                    yield concept, Made(((kind, strength),), changed)
        other = images[partners[concept][0]]
        yield concept, Made((("swap", 1.0),), other)
        for kind in ("blur", "noise"):
            changed = degrade(other, kind, rules["parameters"][kind][1], _rng(concept, "swap", kind))
            yield concept, Made((("swap", 1.0), (kind, rules["strengths"][1])), changed)
        for edit in (edit for edit in base.edits if edit.concept == concept):
            kind = f"{edit.family}-{edit.subtype}" if edit.subtype else edit.family
            yield concept, Made(((kind, 1.0),), np.asarray(read_image(base.folder / edit.image)))


def build_sample(folder: Path) -> Release:
    """Make the sample release in `folder`, whole or not at all: it is built beside it and renamed into place.

    Returns:
        The release, read back and checked. Its bytes depend only on this code and the versions of the imaging packages.

    Raises:
        FileExistsError: `folder` is there already.
    """
    with new_folder(folder) as work:
        _write(work)
    return read_release(folder)


def ensure_sample() -> Path:
    """Folder of the sample release under `decodehub.core.files.home`, built when it is not there; safe for processes that start together."""
    folder = home() / "releases" / f"bcs-{RELEASE}-{CODE_HASH}"
    if not (folder / HEADER).is_file():
        try:
            build_sample(folder)
        except OSError:
            # Another process may have renamed its own, equal build into place first.
            if not (folder / HEADER).is_file():
                raise
    return folder


def _write(folder: Path) -> None:
    images = references()
    hashes = {concept: _save(folder, f"references/{concept}.png", pixels) for concept, pixels in images.items()}
    split_of = split_pairs(PairInfo(concept, "", concept, hashes[concept], "") for concept in images)
    same = {split: [c for c in images if split_of[c] == split] for split in split_of.values()}
    partners = {c: [o for o in same[split_of[c]] if o != c] for c in images}
    partners = {
        c: sorted(others, key=lambda o: (list(images).index(o) - list(images).index(c)) % len(images)) for c, others in partners.items()
    }

    pairs: list[PairRow] = []
    qualities: list[np.ndarray] = []
    done: list[str] = []
    candidate: dict[tuple[str, str], int] = {}
    for row, (concept, made) in enumerate(reconstructions(images, partners)):
        method = f"sample-{made.method or 'copy'}"
        candidate[method, concept] = candidate.get((method, concept), -1) + 1
        pair = PairId(method, None, concept, 1, candidate[method, concept], row)
        name = format_pair_id(pair)
        file = f"reconstructions/{name}.png"
        pairs.append(PairRow.model_validate({
            "pair_id": name, "method": method, "concept": concept, "rank": pair.rank, "candidate": pair.candidate,
            "reference": f"references/{concept}.png", "reference_sha256": hashes[concept],
            "reconstruction": file, "reconstruction_sha256": _save(folder, file, made.pixels), "split": split_of[concept],
        }))  # fmt: skip
        qualities.append(quality(made.steps))
        done.append(" and ".join(f"{kind} at strength {strength:g}" for kind, strength in made.steps) or "nothing")
    values = np.array(qualities)
    header = Header(
        release=RELEASE, title="Embedded sample, answered by rule-based annotators", license=LICENSE, notes=NOTES,
        annotators=list(load_rules()["annotators"]), split_rule="reference", split_seed=SEED,
    )  # fmt: skip
    write_release(folder, header, pairs, _annotations(pairs, values, done), _human(pairs, values))


def _annotations(pairs: list[PairRow], values: np.ndarray, done: list[str]) -> Iterator[AnnotationRow]:
    rules, questions = load_rules(), load_questionnaire().questions
    settings = sha256_json({"rules": rules, "annotator": "rule-based"})
    for name, rule in rules["annotators"].items():
        labels = _labels(values, rule["bias"], rule["noise"], _rng(name))
        for pair, row, what in zip(pairs, labels, done):
            answers = {
                question.key: AnswerItem(
                    answer=label, rationale=f"By rule, {question.title.lower()} is {_WORDS[label]} after {what}.", valid=True
                )
                for question, label in zip(questions, row)
            }
            yield AnnotationRow(pair_id=pair.pair_id, annotator=name, prompt_version="rule-based", settings_hash=settings, answers=answers)


def _human(pairs: list[PairRow], values: np.ndarray) -> Iterator[HumanRow]:
    """Judgements by rule in the form of the paper's study (section 5.6); the raters' names say what they are."""
    rules, scale = load_rules(), {"no": 0.0, "somewhat": 0.5, "yes": 1.0}
    test = [i for i, pair in enumerate(pairs) if pair.split == "test"]
    chosen = [test[i] for i in np.linspace(0, len(test) - 1, rules["rated_pairs"]).round().astype(int)]
    p, s = (values[:, list(load_questionnaire().block(name))].mean(1) for name in ("perceptual", "semantic"))
    for block, value in (("perceptual", p), ("semantic", s), ("coherence", (p + s) / 2)):
        for rater in range(1, rules["raters"] + 1):
            name = f"rule-based-rater-{rater:02d}"
            for i, label in zip(chosen, _labels(value[chosen], 0.0, rules["rater_noise"][block], _rng(name, block))):
                row = {"rater": name, "pair_id": pairs[i].pair_id, "block": block, "judgement": scale[label]}
                yield HumanRow.model_validate(row)


_LABELS = np.array(["no", "somewhat", "yes"])
_WORDS = {"no": "lost", "somewhat": "kept in part", "yes": "kept"}


def _labels(values: np.ndarray, bias: float, noise: float, rng: np.random.Generator) -> Any:
    seen = values + bias + rng.normal(0, noise, values.shape)
    return _LABELS[np.searchsorted([1 / 3, 2 / 3], seen, side="right")].tolist()


def _rng(*words: object) -> np.random.Generator:
    digest = hashlib.sha256(repr((RELEASE, *words)).encode()).digest()
    return np.random.default_rng(np.random.SeedSequence(int.from_bytes(digest[:16], "big")))


def _save(folder: Path, file: str, pixels: np.ndarray) -> str:
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, format="PNG", compress_level=1)  # not atomic: the whole folder is renamed into place
    return hash_of_pixels(pixels)
