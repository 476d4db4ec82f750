"""Train one EEG-to-image retrieval model on one person's EEG and score it on EEG-EditBench."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer

from .demo import CROPS, EEG_SEED, LATENT_DIM, SNR

if TYPE_CHECKING:
    from decodehub.hub_models.eeg_retrieval import EEGRetrievalModel
    from decodehub.metrics.eeg_editbench.benchmark import Benchmark
    from decodehub.metrics.eeg_editbench.similarity import Scores

app = typer.Typer(add_completion=False)

ALL_CHANNELS = ("nice", "atm", "mb2c")  # 63 channels; the other models take the 17 posterior ones
# What decodehub.loaders.visual_targets calls a part, and what Brain-HIVE's configuration calls it.
BRANCHES = {"synclr": "self_supervised", "clip_b32": "image_text", "sdxl_vae": "autoencoder"}
GROUPS = ("train", "sources", "edits", "nulls")

Parts = dict[str, np.ndarray]


class Inputs(NamedTuple):
    """What a run needs; test EEG is not among it.

    Attributes:
        eeg: (n, C, T) float32 training epochs. targets: their image features by part. concepts: (n,) int.
        ch_names: C names. sfreq: in Hz. encoder: of the image features, in words.
        candidates: features by part of "sources", "edits" and perhaps "nulls", in score order.
        benchmark: what is scored. data: what the EEG is, in words. distance_encoder: where visual distances are from, or None.
    """

    eeg: np.ndarray
    targets: Parts
    concepts: np.ndarray
    ch_names: list[str]
    sfreq: float
    encoder: str
    candidates: dict[str, Parts]
    benchmark: Benchmark
    data: str
    distance_encoder: str | None


@app.command()
def main(
    model: Annotated[str, typer.Option(help="nice, atm, mb2c, ubp, ats, brain-hive, hyfi or neurobridge.")] = "nice",
    subject: Annotated[int, typer.Option(min=1, help="Number of the person.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of start weights, order, dropout and noise.")] = 0,
    eeg: Annotated[Path | None, typer.Option(help="Folder that `decodehub things prepare` wrote.")] = None,
    targets: Annotated[
        Path | None,
        typer.Option(
            help="Image features as safetensors: train/PART, sources/PART, edits/PART and perhaps nulls/PART. Rows of train are images "
            "1 to 16,540, the others are in the order of `decodehub editbench export`; PART is what visual_target(MODEL) calls it."
        ),
    ] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Simulated EEG and the sample release in place of --eeg and --targets.")
    ] = False,
    data_dir: Annotated[str | None, typer.Option(help="Folder of the release to score on; by default the one that is configured.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; by default runs/MODEL/sub-XX_seed-Y.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="By default that of the paper.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=2, help="By default that of the paper.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate; by default that of the paper.")] = None,
    selection: Annotated[
        str, typer.Option(help="Weights to keep: last, or validation (lowest loss on held-out training concepts).")
    ] = "last",
    resume: Annotated[bool, typer.Option(help="Go on from a checkpoint in the folder.")] = True,
    snr: Annotated[float, typer.Option(min=0, help="With --simulate: signal-to-noise ratio of one trial.")] = SNR,
    crops: Annotated[int, typer.Option(min=50, help="With --simulate: training stimuli.")] = CROPS,
) -> None:
    """Train MODEL on one person's EEG, then score it on EEG-EditBench: weights, run.json, predictions, record and report.

    Training never sees test data. A run that was stopped goes on where it was.

    Example: decodehub train-retrieval --model nice --simulate --epochs 20
    Example: decodehub train-retrieval --model ubp --subject 1 --seed 0 --eeg prepared --targets ubp.safetensors --data-dir release
    """
    import torch
    from accelerate import Accelerator

    from decodehub.hub_models.eeg_retrieval import RETRIEVAL_MODELS
    from decodehub.metrics.eeg_editbench.protocol import Predictions, make_record
    from decodehub.records import ModelInfo

    from ._retrieval_training import settings_for, train
    from .editbench import finish

    if model not in RETRIEVAL_MODELS:
        raise ValueError(f"--model {model!r} is not known: expected one of {', '.join(RETRIEVAL_MODELS)}")
    if simulate == (eeg is not None or targets is not None) or (eeg is None) != (targets is None):
        raise ValueError("give --eeg and --targets together, or --simulate without them")
    changes = {"epochs": epochs, "batch_size": batch_size, "lr": lr, "selection": selection}
    settings = settings_for(model, **{name: value for name, value in changes.items() if value is not None})
    out = out or Path(f"runs/{model}/sub-{subject:02d}_seed-{seed}")
    if simulate:
        inputs, test_eeg = simulated_inputs(model, subject, snr, crops)
        data_dir = "sample"
    else:
        assert eeg is not None and targets is not None
        inputs, test_eeg = recorded_inputs(model, subject, eeg, targets, data_dir), None
    torch.manual_seed(seed)
    network = make_model(model, inputs)
    accelerator = Accelerator()
    run = train(
        network,
        inputs.eeg,
        inputs.targets,
        inputs.concepts,
        subject,
        settings,
        seed,
        out,
        accelerator,
        accelerator.is_main_process,
        resume=resume,
    )
    if test_eeg is None:
        assert eeg is not None
        test_eeg = recorded_test_eeg(eeg, subject, inputs)
    scores = score_candidates(run.model, test_eeg, inputs.candidates, subject)
    record, scored = make_record(
        out,
        inputs.benchmark,
        [Predictions(subject, seed, *scores)],
        model=ModelInfo(
            id=model,
            parameters=run.model.num_parameters(),
            pretrained_on=inputs.encoder,
            notes=f"trained {run.metadata['epochs']} epochs, weights of epoch {run.epoch} ({settings.selection}); image features: {inputs.encoder}",
        ),
        data=inputs.data,
        similarity="minus Lorentz distance" if model == "hyfi" else "cosine",
        distance_encoder=inputs.distance_encoder,
        device=run.metadata["device"],
    )
    finish(out, record, scored, data_dir)


def make_model(model_type: str, inputs: Inputs) -> EEGRetrievalModel:
    """A model of the published sizes that takes these channels and image features; weights from torch's global generator."""
    from decodehub.hub_models.eeg_retrieval import RETRIEVAL_MODELS

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


def score_candidates(
    model: EEGRetrievalModel, eeg: np.ndarray, candidates: Mapping[str, Mapping[str, np.ndarray]], subject: int, batch_size: int = 512
) -> Scores:
    """Scores of every query with every source, edit and null edit, by ``model.score``.

    Candidates with equal features are scored once, so that a rounding cannot decide between them.

    Args:
        model: a trained model.
        eeg: (Q, C, T) float32 test epochs, in score order.
        candidates: features (rows, d) by part, of "sources", "edits" and perhaps "nulls".
        subject: number of the person.
        batch_size: rows embedded at once.
    """
    import torch

    from decodehub.metrics.eeg_editbench.similarity import Scores

    names = list(model.config.image_inputs)
    groups = [group for group in ("sources", "edits", "nulls") if group in candidates]
    rows = np.concatenate([np.concatenate([candidates[group][name] for name in names], axis=1) for group in groups]).astype(np.float32)
    # Equal rows by their bytes: np.unique on rows sorts them, which takes long for many columns.
    first: dict[bytes, int] = {}
    column = np.array([first.setdefault(row.tobytes(), len(first)) for row in rows])
    distinct = rows[np.unique(column, return_index=True)[1]]
    borders = np.cumsum([model.config.image_inputs[name] for name in names])[:-1]
    model.eval()
    with torch.inference_mode():
        queries = torch.cat(
            [
                model.get_eeg_features(part.to(model.device), subject)
                for part in torch.from_numpy(np.ascontiguousarray(eeg)).split(batch_size)
            ]
        )
        images = torch.cat(
            [
                model.get_image_features({name: torch.from_numpy(x).to(model.device) for name, x in zip(names, np.split(part, borders, 1))})
                for part in np.split(distinct, range(batch_size, len(distinct), batch_size))
            ]
        )
        scores = model.score(queries, images).float().cpu().numpy()[:, column]
    split = dict(zip(groups, np.split(scores, np.cumsum([len(next(iter(candidates[group].values()))) for group in groups])[:-1], axis=1)))
    return Scores(split["sources"], split["edits"], split.get("nulls"))


# ----------------------------------------------------------------------------------------------------------------------------- simulated


def simulated_inputs(model_type: str, subject: int, snr: float, crops: int) -> tuple[Inputs, np.ndarray]:
    """**Simulated** EEG of crops of public photographs and of the sample's sources, with image features that need no download."""
    from decodehub.files import home
    from decodehub.loaders.image_encoders import load_encoder
    from decodehub.loaders.image_features import image_features
    from decodehub.loaders.simulate_eeg import SimulationSettings, simulate_eeg
    from decodehub.loaders.things_eeg2 import channel_indices
    from decodehub.loaders.visual_targets import visual_target
    from decodehub.metrics.eeg_editbench.benchmark import load_benchmark, with_distances

    from .demo import load_stimuli, training_crops, training_photos

    cache, encoder, stimuli = home() / "features", load_encoder("lite0"), load_stimuli()
    images = list(training_crops(crops))
    plain = {name: image_features(encoder, x, cache_dir=cache) for name, x in {"train": images, **stimuli._asdict()}.items()}
    target = visual_target(model_type, base_encoder="lite0", text="none")
    parts = {"train": target.compute(images, cache_dir=cache)}
    parts |= {name: target.compute(x, cache_dir=cache, evaluation=True) for name, x in stimuli._asdict().items()}

    single = model_type == "atm"
    settings = SimulationSettings(snr=snr, latent_dim=min(LATENT_DIM, crops // 4), repetitions_test=8 if single else 80)
    eeg = simulate_eeg(plain["train"], plain["sources"], settings, subject=subject, seed=EEG_SEED, single_trials=single)
    channels = channel_indices(eeg.ch_names, _channels(model_type))
    train_eeg, test_eeg = eeg.train[..., channels, :], eeg.test[..., channels, :]
    concepts = np.arange(crops) % len(training_photos())
    repetitions = 1
    if single:
        test_eeg, repetitions = test_eeg.mean(axis=1), train_eeg.shape[1]
        train_eeg = train_eeg.reshape(-1, *train_eeg.shape[2:])

    benchmark = load_benchmark("sample")
    sources, edits = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (plain["sources"], plain["edits"]))
    distances = np.clip(1 - np.einsum("ed,ed->e", edits, sources[benchmark.query]), 0, 2)
    inputs = Inputs(
        eeg=np.ascontiguousarray(train_eeg),
        targets={name: np.repeat(x, repetitions, axis=0) for name, x in parts["train"].items()},
        concepts=np.repeat(concepts, repetitions),
        ch_names=list(_channels(model_type)),
        sfreq=eeg.sfreq,
        encoder="lite0, in place of the published encoder",
        candidates={name: parts[name] for name in ("sources", "edits", "nulls")},
        benchmark=with_distances(benchmark, distances),
        data=f"Simulated EEG ({len(channels)} channels, 250 Hz, linear in image features), snr {snr:g}, {crops} training stimuli",
        distance_encoder=encoder.name,
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
    from decodehub.loaders.things_eeg2.store import load_epochs
    from decodehub.metrics.eeg_editbench.benchmark import load_benchmark

    if not targets.is_file():
        raise FileNotFoundError(f"--targets {targets} does not exist")
    epochs = load_epochs(root, subject, "train")
    benchmark = load_benchmark(data_dir)
    sizes = {"sources": len(benchmark.concepts), "edits": len(benchmark.edit_ids), "nulls": len(benchmark.concepts)}
    parts, encoder = _read_targets(targets, sizes)
    rows = np.asarray(epochs.images) - 1
    for name, array in parts["train"].items():
        if len(array) <= rows.max():
            raise ValueError(f"{targets}: train/{name} has {len(array)} rows, the EEG is of image numbers up to {rows.max() + 1}")
    channels = channel_indices(epochs.ch_names, _channels(model_type))
    repetitions = epochs.data.shape[1] if model_type == "atm" else 1
    shape = (len(rows), repetitions, len(channels), epochs.data.shape[3])
    eeg = np.empty(shape, dtype=np.float32)
    for i, image in enumerate(epochs.data):  # image by image: the file may be larger than the memory
        trials = image[:, channels]
        eeg[i] = trials if model_type == "atm" else trials.mean(axis=0, keepdims=True)
    simulated = "Simulated recordings in the layout of " if epochs.settings.get("simulated") else ""
    return Inputs(
        eeg=eeg.reshape(-1, *shape[2:]),
        targets={name: np.repeat(array[rows], repetitions, axis=0) for name, array in parts["train"].items()},
        concepts=np.repeat(np.asarray(concept_of_train_image(rows + 1)), repetitions),
        ch_names=list(_channels(model_type)),
        sfreq=epochs.sfreq,
        encoder=encoder,
        candidates={name: parts[name] for name in ("sources", "edits", "nulls") if name in parts},
        benchmark=benchmark,
        data=f"{simulated}THINGS-EEG2, subject {subject}, {len(channels)} channels, {epochs.sfreq:g} Hz, unit {epochs.unit}",
        distance_encoder=None,
    )


def recorded_test_eeg(root: Path, subject: int, inputs: Inputs) -> np.ndarray:
    """(Q, C, T) float32 means over the repetitions of each test image, in score order.

    Test images are numbered in ASCII order of their concepts, and so are the concepts of the release.

    Raises:
        ValueError: the release and the EEG have different numbers of test images.
    """
    from decodehub.loaders.things_eeg2 import channel_indices, image_order
    from decodehub.loaders.things_eeg2.store import load_epochs

    epochs, names = load_epochs(root, subject, "test"), inputs.benchmark.concepts
    if len(names) != len(epochs.images):
        raise ValueError(f"release {inputs.benchmark.release!r} has {len(names)} concepts, the test EEG {len(epochs.images)} images")
    position = {name: i for i, name in enumerate(image_order(names))}
    channels = channel_indices(epochs.ch_names, inputs.ch_names)
    return np.stack([np.asarray(epochs.data[position[name]])[:, channels].mean(axis=0) for name in names])


def _channels(model_type: str) -> tuple[str, ...]:
    from decodehub.loaders.things_eeg2 import CHANNELS, POSTERIOR_17

    return CHANNELS if model_type in ALL_CHANNELS else POSTERIOR_17


def _read_targets(path: Path, sizes: Mapping[str, int]) -> tuple[dict[str, Parts], str]:
    """Parts by group, and the metadata's "encoder" or the file's name."""
    from safetensors import safe_open

    parts: dict[str, Parts] = {}
    try:
        with safe_open(path, framework="numpy") as f:
            encoder = (f.metadata() or {}).get("encoder", path.name)
            for key in f.keys():  # noqa: SIM118
                group, _, name = key.partition("/")
                if group not in GROUPS or not name:
                    raise ValueError(f"it has {key!r}, expected {', '.join(f'{g}/PART' for g in GROUPS)}")
                parts.setdefault(group, {})[BRANCHES.get(name, name)] = f.get_tensor(key)
    except Exception as error:  # safetensors has its own error class for damaged files
        raise ValueError(f"--targets {path} cannot be read as image features: {error}") from None
    if missing := [group for group in ("train", "sources", "edits") if group not in parts]:
        raise ValueError(f"--targets {path} lacks {', '.join(f'{group}/PART' for group in missing)}")
    images = set(parts["train"]) - {"text"}
    for group, n in sizes.items():
        if group in parts and (set(parts[group]) != images or any(len(array) != n for array in parts[group].values())):
            found = {name: len(array) for name, array in parts[group].items()}
            raise ValueError(f"--targets {path}: {group} has the rows {found}, expected {n} for each of {sorted(images)}")
    return parts, encoder


if __name__ == "__main__":
    app()
