"""Training and evaluating a BCS head: annotations, features, the run with its checkpoints, baselines, the record."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from accelerate import Accelerator
from safetensors import safe_open
from safetensors.torch import save
from tqdm import tqdm

from decodehub.core.files import atomic_path, new_folder, sha256_json, write_json
from decodehub.core.records import ModelInfo, ResultRecord
from decodehub.hub_models.bcs import BCSConfig, BCSHead, BCSModel, BCSProcessor
from decodehub.hub_models.bcs.training import EnsembleTrainer, PairData, TrainingSettings, fit_thresholds
from decodehub.loaders.frozen_encoder import FrozenEncoder
from decodehub.loaders.image_encoders import load_encoder
from decodehub.loaders.pair_features import PairFeatures, pair_features
from decodehub.metrics.bcs.annotations import Annotations, load_annotations
from decodehub.metrics.bcs.protocol import Pairs, Scores, make_record

CHECKPOINT, MODEL, RUN, FEATURES = "checkpoint.safetensors", "model", "run.json", "features.npy"
CHECKPOINT_EVERY = 10
BASELINE = "siglip_baseline"
BASELINE_SEED = 42


class Split(NamedTuple):
    """Rows of each split."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


class Evaluation(NamedTuple):
    """The record of a head; targets, weights and predictions (n, 12) of the test pairs."""

    record: ResultRecord
    targets: np.ndarray
    weights: np.ndarray
    predictions: np.ndarray


def train_and_evaluate(
    out: Path,
    *,
    data_dir: str | None,
    encoder_ids: Sequence[str],
    settings: TrainingSettings,
    cache_dir: Path,
    teachers: Sequence[str] | None = None,
    weight_rule: str = "paper",
    output_type: str = "continuous",
    seeds: Sequence[int] = (7, 13, 21, 37, 42),
    hidden_size: int = 512,
    baseline: bool = True,
    resume: bool = True,
    progress: bool = True,
) -> Evaluation | None:
    """Train on the training concepts, stop by the validation concepts, evaluate on the test concepts.

    Args:
        out: folder for ``model/``, the record and ``run.json``.
        output_type: "continuous", "snapping" or "prototypes". The other arguments are those of ``decodehub bcs train``.

    Returns:
        The record and what it was made from; None on the other processes of an Accelerate run.

    Raises:
        ValueError: annotations, encoders or settings that do not fit, or a checkpoint of another run.
    """
    accelerator = Accelerator()
    annotations = load_annotations(data_dir, weight_rule, teachers)
    encoders = [load_encoder(id, accelerator.device) for id in encoder_ids]
    pairs = pair_features(
        encoders,
        annotations.references,
        annotations.reconstructions,
        cache_dir=cache_dir,
        out=out / FEATURES,
        accelerator=accelerator,
        progress=progress,
        ids=[row["pair_id"] for row in annotations.rows],
    )
    if not accelerator.is_main_process:
        return None
    split = Split(*(np.flatnonzero(annotations.split == name) for name in Split._fields))
    config = make_config(encoders, seeds, output_type, hidden_size, annotations.release)
    run = run_description(config, settings, annotations, pairs, output_type)
    model = BCSModel(config).to(accelerator.device)
    data = PairData(pairs.features, annotations.targets, annotations.weights, split.train, split.validation)
    trainer = fit(model, data, settings, out / CHECKPOINT, run["hash"], resume=resume, progress=progress)
    if output_type == "snapping":
        snap(model, data, split)
    baselines = {"train_mean": train_mean(annotations, split)}
    if baseline:
        baselines[BASELINE] = baseline_scores(config, data, split, encoders[0].dim, settings.validation_loss)
    evaluation = evaluate(out, model, data, annotations, split, [e.name for e in encoders], baselines, run, trainer.best_epoch.tolist())
    train_loss = [[None if math.isnan(v) else v for v in row] for row in trainer.train_loss]  # none once a member has stopped
    losses = {"train_loss": train_loss, "validation_loss": trainer.validation_loss, "best_epoch": trainer.best_epoch.tolist()}
    write_json(out / RUN, run | losses)
    (out / CHECKPOINT).unlink(missing_ok=True)
    return evaluation


def make_config(encoders: Sequence[FrozenEncoder], seeds: Sequence[int], output_type: str, hidden_size: int, release: str) -> BCSConfig:
    """Configuration of a new head on these encoders."""
    return BCSConfig(
        encoders=[{"id": pinned_id(e), "dim": e.dim, "fingerprint": e.fingerprint} for e in encoders],
        seeds=list(seeds),
        architecture="ordinal_prototype" if output_type == "prototypes" else "mlp",
        hidden_size=hidden_size,
        ffn_size=2 * hidden_size,
        release=release,
    )


def snap(model: BCSModel, data: PairData, split: Split) -> None:
    """Make the scores of a trained head ordinal, by thresholds that are fitted on the validation pairs."""
    known = np.where(data.weights > 0, data.targets, np.nan)[split.validation]
    continuous = np.asarray(model.predict(data.features[split.validation]).question_scores)
    model.config.thresholds, model.config.output_type = fit_thresholds(continuous, known), "ordinal"


def evaluate(
    out: Path,
    model: BCSModel,
    data: PairData,
    annotations: Annotations,
    split: Split,
    encoders: Sequence[str],
    baselines: Mapping[str, np.ndarray],
    run: Mapping[str, Any],
    best_epoch: list[int],
) -> Evaluation:
    """Score the test pairs, save the head and write the record; `encoders` are names, `run` is what :func:`run_description` gave."""
    device, config = model.device.type, model.config
    config.n_train = len(split.train)
    output = model.predict(data.features[split.test])
    scores = Scores(np.asarray(output.question_scores), np.asarray(output.spread), baselines)
    save_model(model, out / MODEL)
    tested = annotations.take(split.test)
    record = make_record(
        out,
        Pairs(annotations.release, tested.rows, tested.targets, tested.weights),
        scores,
        model=ModelInfo(
            id="bcs",
            parameters=model.num_parameters(),
            pretrained_on=", ".join(encoders),
            notes=f"{config.n_members} members of {model.num_parameters() // config.n_members:,} parameters, best epochs {best_epoch}",
        ),
        data=f"bcs-annotations release {annotations.release}, test concepts; consensus of {annotations.n_annotators} annotators",
        encoders=config.encoders or [],
        output_type=config.output_type,
        head_release=annotations.release,
        training={**run, "train_pairs": len(split.train), "validation_pairs": len(split.validation)},
        device=device,
    )
    return Evaluation(record, tested.targets, tested.weights, scores.question_scores)


def fit(
    model: BCSHead,
    data: PairData,
    settings: TrainingSettings,
    checkpoint: Path | None,
    run_hash: str,
    *,
    resume: bool = True,
    progress: bool = True,
    label: str = "bcs",
) -> EnsembleTrainer:
    """Train all members, with a checkpoint every ten epochs; the model ends with the best weights of each.

    Raises:
        ValueError: the checkpoint is of another run, or is damaged.
    """
    trainer = EnsembleTrainer(model, data, settings)
    if resume and checkpoint is not None and checkpoint.is_file():
        trainer.load_state(_read_checkpoint(checkpoint, run_hash))
    with tqdm(total=settings.epochs, initial=trainer.epoch, desc=label, unit="epoch", disable=not progress) as bar:
        while not trainer.finished:
            _, losses = trainer.run_epoch()
            bar.set_postfix(validation=f"{np.mean(losses):.4f}", running=int((~trainer.stopped).sum()))
            bar.update()
            if checkpoint is not None and trainer.epoch % CHECKPOINT_EVERY == 0:
                with atomic_path(checkpoint) as part:
                    part.write_bytes(save(trainer.state(), metadata={"run": run_hash}))
    trainer.select()
    return trainer


def _read_checkpoint(path: Path, run_hash: str) -> dict[str, Any]:
    try:
        with safe_open(path, framework="pt") as f:
            found = (f.metadata() or {}).get("run")
            tensors = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118  (not a dict)
    except Exception as error:  # safetensors has its own error class for damaged files
        raise ValueError(f"{path} cannot be read ({error}): remove it, or give --no-resume to start anew") from None
    if found != run_hash:
        raise ValueError(f"{path} is of a run with other data or settings: give another --out, or --no-resume to start anew")
    return tensors


def run_description(
    config: BCSConfig, settings: TrainingSettings, annotations: Annotations, pairs: PairFeatures, output_type: str
) -> dict[str, Any]:
    """All that decides the weights, JSON values, with its hash."""
    rows = [[row["pair_id"], split] for row, split in zip(annotations.rows, annotations.split.tolist())]
    run: dict[str, Any] = {
        "settings": dataclasses.asdict(settings),
        "output_type": output_type,
        "architecture": config.architecture,
        "hidden_size": config.hidden_size,
        "seeds": config.seeds,
        "encoders": config.encoders,
        "weight_rule": annotations.weight_rule,
        "n_annotators": annotations.n_annotators,
        "release": annotations.release,
        "data": sha256_json(
            [
                rows,
                pairs.reference_hashes,
                pairs.reconstruction_hashes,
                np.nan_to_num(annotations.targets, nan=-1).tolist(),
                annotations.weights.tolist(),
            ]
        ),
    }
    return run | {"hash": sha256_json(run)}


def train_mean(annotations: Annotations, split: Split) -> np.ndarray:
    """(test pairs, 12): the mean target of each question over training pairs, the same for every pair."""
    known = np.where(annotations.weights > 0, annotations.targets, np.nan)[split.train]
    if np.isnan(known).all(axis=0).any():
        raise ValueError("a question has no target in the training split")
    return np.tile(np.nanmean(known, axis=0), (len(split.test), 1))


def baseline_scores(config: BCSConfig, data: PairData, split: Split, dim: int, validation_loss: str) -> np.ndarray:
    """(test pairs, 12) of the single-encoder baseline of table 6 on the first encoder's features, one seed."""
    assert config.encoders is not None
    model = BCSHead(BCSConfig(encoders=config.encoders[:1], seeds=[BASELINE_SEED], architecture=BASELINE))
    features = np.ascontiguousarray(data.features[:, : 4 * dim + 1])
    fit(model, data._replace(features=features), TrainingSettings.baseline(validation_loss=validation_loss), None, "", label="baseline")
    return np.asarray(model.predict(features[split.test]).question_scores)


def pinned_id(encoder: FrozenEncoder) -> str:
    """The id with the commit of the weights where they came from a Hub repository and none was asked for."""
    revision = getattr(getattr(encoder.network, "config", None), "_commit_hash", None)
    if encoder.name.startswith("hf:") and "@" not in encoder.name and revision:
        return f"{encoder.name}@{revision}"
    return encoder.name


def save_model(model: BCSModel, folder: Path) -> None:
    """Write model and processor; a folder that is there is replaced once the new one is whole."""
    with new_folder(folder, replace=True) as part:
        model.cpu().eval().save_pretrained(part)
        BCSProcessor([entry["id"] for entry in model.config.encoders]).save_pretrained(part)
