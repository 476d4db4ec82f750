"""What a run of an EEG-to-image retrieval model takes: training EEG, image features, candidates; recorded or simulated.

Also the model made to fit them, and the embeddings and scores that a trained model gives.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from decodehub.core.files import atomic_path, canonical_json, home
from decodehub.hub_models.eeg_retrieval import RETRIEVAL_MODELS
from decodehub.loaders.image_encoders import load_encoder
from decodehub.loaders.image_features import image_features
from decodehub.loaders.simulate_eeg import SimulationSettings, simulate_eeg
from decodehub.loaders.things_eeg2 import CHANNELS, POSTERIOR_17, channel_indices
from decodehub.loaders.things_eeg2.store import load_epochs
from decodehub.loaders.visual_targets import visual_target
from decodehub.metrics.eeg_editbench.benchmark import load_benchmark, with_distances

from .defaults import EEG_SEED, LATENT_DIM
from .settings import BASELINES
from .stimuli import load_stimuli

if TYPE_CHECKING:
    from decodehub.hub_models.eeg_retrieval import EEGRetrievalModel
    from decodehub.loaders.visual_targets import VisualTarget
    from decodehub.metrics.eeg_editbench.benchmark import Benchmark

    from .settings import TrainingSettings
    from .stimuli import Stimuli
    from .training_images import TrainingImages

ALL_CHANNELS = ("nice", "atm", "mb2c")  # 63 channels; the other models take the 17 posterior ones
# What decodehub.loaders.visual_targets calls a part, and what Brain-HIVE's configuration calls it.
BRANCHES = {"synclr": "self_supervised", "clip_b32": "image_text", "sdxl_vae": "autoencoder"}
CANDIDATES = ("sources", "edits", "nulls")
GROUPS = ("train", *CANDIDATES, "negatives")
NEGATIVE_OF = "negative_of"

Parts = dict[str, np.ndarray]


class Inputs(NamedTuple):
    """What a run needs; test EEG is not among it.

    Attributes:
        eeg: (n, C, T) float32 training epochs. targets: their image features by part. concepts: (n,) int. image: (n,) int, which
            training image each epoch is of.
        ch_names: C names. sfreq: in Hz. encoder: of the image features, in words.
        candidates: features by part of "sources", "edits" and perhaps "nulls", in score order.
        benchmark: what is scored. data: what the EEG is, in words. distance_encoder: where visual distances are from, or None.
        negatives: features (m, d) by part of edits of training images, or none; negative_of: (m,) int, the training image of each.
        simulated: whether no brain made the EEG.
    """

    eeg: np.ndarray
    targets: Parts
    concepts: np.ndarray
    image: np.ndarray
    ch_names: list[str]
    sfreq: float
    encoder: str
    candidates: dict[str, Parts]
    benchmark: Benchmark
    data: str
    distance_encoder: str | None
    negatives: Parts
    negative_of: np.ndarray
    simulated: bool = False


def make_model(model_type: str, inputs: Inputs) -> EEGRetrievalModel:
    """A model of the published sizes that takes these channels and image features; weights from torch's global generator."""
    dims = {name: array.shape[-1] for name, array in inputs.targets.items()}
    sizes: dict[str, Any] = {
        "n_channels": inputs.eeg.shape[1],
        "n_times": inputs.eeg.shape[2],
        "ch_names": inputs.ch_names,
        "sfreq": inputs.sfreq,
        "image_encoder": inputs.encoder,
    }
    if model_type == "brain-hive":
        sizes["branches"] = dims
    else:
        sizes["image_dim"] = dims["semantic" if model_type == "hyfi" else "image"]
    if model_type in ("nice", "atm", "ubp"):  # frozen targets: EEG goes to where they are
        sizes["embed_dim"] = sizes["image_dim"]
    if model_type == "atm":
        sizes |= {"text_dim": sizes["image_dim"], **({} if "text" in dims else {"text_weight": 0.0})}
    if model_type == "mb2c":
        sizes["n_classes"] = len(np.unique(inputs.concepts))
    network = RETRIEVAL_MODELS[model_type]
    return network(network.config_class(**sizes))


def negatives_of(inputs: Inputs, settings: TrainingSettings) -> dict[str, Any]:
    """What `train` takes for hard negatives; nothing where the settings ask for none.

    Raises:
        ValueError: they are asked for and there are none.
    """
    if not settings.hard_negatives:
        return {}
    if not len(inputs.negative_of):
        raise ValueError(
            "hard negatives are asked for, but no edits of training images are there: see 'decodehub editbench targets --help'"
        )
    return {"negatives": inputs.negatives, "negative_of": inputs.negative_of, "image_of": inputs.image}


# ----------------------------------------------------------------------------------------------------------------------------- simulated


def target_parts(
    target: VisualTarget, stimuli: Stimuli, training: TrainingImages, cache_dir: Path, accelerator: Any | None = None
) -> dict[str, Parts]:
    """Features of all images of a study by group ("train", "sources", "edits", "nulls", perhaps "negatives") and part; cached by content."""
    every: dict[str, Any] = {"cache_dir": cache_dir, "accelerator": accelerator}
    parts = {"train": target.compute(training.images, concepts=training.concepts, **every)}
    for name, images in stimuli._asdict().items():
        if images:
            parts[name] = target.compute(images, evaluation=True, **every)
    if training.edits:
        # An edit is as blurred as its image, so there are all blurs of it; text it has none.
        parts["negatives"] = target.compute(training.edits, evaluation=target.text is not None, **every)
    return {group: {BRANCHES.get(name, name): x for name, x in named.items()} for group, named in parts.items()}


def measured_benchmark(data_dir: str) -> Benchmark:
    """A release with visual distances measured by features that need no download."""
    benchmark, stimuli = load_benchmark(data_dir), load_stimuli(data_dir)
    rows = [image_features(load_encoder("lite0"), x, cache_dir=home() / "features") for x in (stimuli.sources, stimuli.edits)]
    sources, edits = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in rows)
    return with_distances(benchmark, np.clip(1 - np.einsum("ed,ed->e", edits, sources[benchmark.query]), 0, 2))


def simulated_inputs(
    model_type: str,
    subject: int,
    snr: float,
    training: TrainingImages,
    data_dir: str = "sample",
    seed: int = 0,
    benchmark: Benchmark | None = None,
) -> tuple[Inputs, np.ndarray]:
    """**Simulated** EEG of training images and of a release's sources, with image features that need no download; test EEG apart."""
    cache, encoder, stimuli, n = home() / "features", load_encoder("lite0"), load_stimuli(data_dir), len(training.images)
    plain = {
        name: image_features(encoder, x, cache_dir=cache) for name, x in {"train": training.images, **stimuli._asdict()}.items() if len(x)
    }
    parts = target_parts(visual_target(_target_of(model_type), base_encoder="lite0", text="none", seed=seed), stimuli, training, cache)

    single = model_type == "atm"
    settings = SimulationSettings(snr=snr, latent_dim=min(LATENT_DIM, n // 4), repetitions_test=8 if single else 80)
    eeg = simulate_eeg(plain["train"], plain["sources"], settings, subject=subject, seed=EEG_SEED, single_trials=single)
    channels = channel_indices(eeg.ch_names, _channels(model_type))
    train_eeg, test_eeg = eeg.train[..., channels, :], eeg.test[..., channels, :]
    repetitions = 1
    if single:
        test_eeg, repetitions = test_eeg.mean(axis=1), train_eeg.shape[1]
        train_eeg = train_eeg.reshape(-1, *train_eeg.shape[2:])

    concepts = np.unique(training.concepts, return_inverse=True)[1]
    inputs = Inputs(
        eeg=np.ascontiguousarray(train_eeg),
        targets={name: np.repeat(x, repetitions, axis=0) for name, x in parts["train"].items()},
        concepts=np.repeat(concepts, repetitions),
        image=np.repeat(np.arange(n), repetitions),
        ch_names=list(_channels(model_type)),
        sfreq=eeg.sfreq,
        encoder="lite0, in place of the published encoder",
        candidates={name: parts[name] for name in CANDIDATES if name in parts},
        benchmark=benchmark or measured_benchmark(data_dir),
        data=f"Simulated EEG ({len(channels)} channels, 250 Hz, linear in image features), snr {snr:g}, {n} training stimuli ({training.name})",
        distance_encoder=encoder.name,
        negatives=parts.get("negatives", {}),
        negative_of=np.asarray(training.edit_of, dtype=np.int64),
        simulated=True,
    )
    return inputs, np.ascontiguousarray(test_eeg)


# ------------------------------------------------------------------------------------------------------------------------------ recorded


def recorded_inputs(model_type: str, subject: int, root: Path, targets: Path, data_dir: str | None) -> Inputs:
    """Training EEG of one person from prepared THINGS-EEG2, and image features from a file.

    Raises:
        FileNotFoundError: the person is not prepared, or there is no such file.
        ValueError: a part is missing, or has not one row for each image.
    """
    from decodehub.loaders.things_eeg2 import channel_indices, concept_of_train_image
    from decodehub.metrics.eeg_editbench.benchmark import load_benchmark

    if not targets.is_file():
        raise FileNotFoundError(f"--targets {targets} does not exist")
    epochs = load_epochs(root, subject, "train", verify=True)
    benchmark = load_benchmark(data_dir)
    sizes = {"sources": len(benchmark.concepts), "edits": len(benchmark.edit_ids), "nulls": len(benchmark.concepts)}
    parts, negative_of, encoder = _read_targets(targets, sizes)
    rows = np.asarray(epochs.images) - 1
    for name, array in parts["train"].items():
        if len(array) <= rows.max():
            raise ValueError(f"{targets}: train/{name} has {len(array)} rows, the EEG is of image numbers up to {rows.max() + 1}")
    if len(unknown := np.setdiff1d(negative_of, rows)):
        raise ValueError(f"{targets}: negative_of has {unknown[0]}, which is not the row of a training image that the EEG is of")
    channels = channel_indices(epochs.ch_names, _channels(model_type))
    repetitions = epochs.data.shape[1] if model_type == "atm" else 1
    shape = (len(rows), repetitions, len(channels), epochs.data.shape[3])
    eeg = np.empty(shape, dtype=np.float32)
    for i, image in enumerate(epochs.data):  # image by image: the file may be larger than the memory
        trials = image[:, channels]
        eeg[i] = trials if model_type == "atm" else trials.mean(axis=0, keepdims=True)
    simulated = bool(epochs.settings.get("simulated"))
    layout = "Simulated recordings in the layout of " if simulated else ""
    return Inputs(
        eeg=eeg.reshape(-1, *shape[2:]),
        targets={name: np.repeat(array[rows], repetitions, axis=0) for name, array in parts["train"].items()},
        concepts=np.repeat(np.asarray(concept_of_train_image(rows + 1)), repetitions),
        image=np.repeat(rows, repetitions),
        ch_names=list(_channels(model_type)),
        sfreq=epochs.sfreq,
        encoder=encoder,
        candidates={name: parts[name] for name in CANDIDATES if name in parts},
        benchmark=benchmark,
        data=f"{layout}THINGS-EEG2, {len(channels)} channels, {epochs.sfreq:g} Hz, unit {epochs.unit}",
        distance_encoder=None,
        negatives=parts.get("negatives", {}),
        negative_of=negative_of,
        simulated=simulated,
    )


def recorded_test_eeg(root: Path, subject: int, inputs: Inputs) -> np.ndarray:
    """(Q, C, T) float32 means over the repetitions of each test image, in score order.

    Test images are numbered in ASCII order of their concepts, and so are the concepts of the release.

    Raises:
        ValueError: the release and the EEG have different numbers of test images.
    """
    from decodehub.loaders.things_eeg2 import channel_indices, image_order

    epochs, names = load_epochs(root, subject, "test", verify=True), inputs.benchmark.concepts
    if len(names) != len(epochs.images):
        raise ValueError(f"release {inputs.benchmark.release!r} has {len(names)} concepts, the test EEG {len(epochs.images)} images")
    position = {name: i for i, name in enumerate(image_order(names))}
    channels = channel_indices(epochs.ch_names, inputs.ch_names)
    return np.stack([np.asarray(epochs.data[position[name]])[:, channels].mean(axis=0) for name in names])


def _channels(model_type: str) -> tuple[str, ...]:
    return CHANNELS if model_type in (*ALL_CHANNELS, *BASELINES) else POSTERIOR_17


def _target_of(model_type: str) -> str:
    return "nice" if model_type in BASELINES else model_type


def write_targets(path: Path, parts: Mapping[str, Parts], edit_of: Sequence[int], target: VisualTarget) -> None:
    """Write what ``--targets`` takes, with all that decided the features as metadata."""
    tensors = {f"{group}/{name}": np.ascontiguousarray(x) for group, named in parts.items() for name, x in named.items()}
    if edit_of:
        tensors[NEGATIVE_OF] = np.asarray(edit_of, dtype=np.int64)
    encoders = {encoder["name"] for part in target.manifest["parts"].values() for encoder in part["encoders"]}
    words = " and ".join(sorted(encoders)) + (", in place of the published encoder" if target.stand_in else "")
    # One entry: safetensors writes several in an order that differs from process to process.
    with atomic_path(path) as part:
        save_file(tensors, part, metadata={"targets": canonical_json({"encoder": words, "manifest": target.manifest})})


def _read_targets(path: Path, sizes: Mapping[str, int]) -> tuple[dict[str, Parts], np.ndarray, str]:
    """Parts by group, the training image of each negative, and the encoder's name or the file's."""
    parts: dict[str, Parts] = {}
    negative_of = np.arange(0)
    try:
        with safe_open(path, framework="numpy") as f:
            metadata = f.metadata() or {}
            metadata = json.loads(metadata["targets"]) if "targets" in metadata else metadata
            encoder = metadata.get("encoder", path.name)
            for key in f.keys():  # noqa: SIM118
                if key == NEGATIVE_OF:
                    negative_of = f.get_tensor(key)
                    continue
                group, _, name = key.partition("/")
                if group not in GROUPS or not name:
                    raise ValueError(f"it has {key!r}, expected {', '.join(f'{g}/PART' for g in GROUPS)}")
                parts.setdefault(group, {})[BRANCHES.get(name, name)] = f.get_tensor(key)
    except Exception as error:  # safetensors has its own error class for damaged files
        raise ValueError(f"--targets {path} cannot be read as image features: {error}") from None
    if missing := [group for group in ("train", "sources", "edits") if group not in parts]:
        raise ValueError(f"--targets {path} lacks {', '.join(f'{group}/PART' for group in missing)}")
    images = set(parts["train"]) - {"text"}
    for group, n in {**sizes, "negatives": len(negative_of)}.items():
        if group in parts and (set(parts[group]) != images or any(len(array) != n for array in parts[group].values())):
            found = {name: len(array) for name, array in parts[group].items()}
            raise ValueError(f"--targets {path}: {group} has the rows {found}, expected {n} for each of {sorted(images)}")
    return parts, negative_of, encoder
