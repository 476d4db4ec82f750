"""Which trained head scores: one from a folder or the Hub, or the sample head that is trained here when first asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from decodehub.core.files import home, new_folder, read_json, sha256_json
from decodehub.core.registry import ORG_VARIABLE
from decodehub.hub_models.bcs import BCSModel
from decodehub.hub_models.bcs.encoders import load_encoder
from decodehub.hub_models.bcs.training import EnsembleTrainer, PairData, TrainingSettings
from decodehub.loaders.images import decode_image
from decodehub.metrics.bcs.annotations import Annotations, load_annotations

SAMPLE = "sample"
SAMPLE_WARNING = (
    "SAMPLE head: trained on photographs with rule-based answers, not on annotations of reconstructions. Its scores show that everything works "
    "and mean nothing scientific."
)
# Of the sample's pairs this many are trained on and stopped by: encoding them takes most of the time.
SAMPLE_PAIRS = {"train": 160, "validation": 40}
SAMPLE_VERSION = 1  # of what is below; enters the name of the cached folder
_SAMPLE_CONFIG = {"hidden_size": 64, "ffn_size": 128}
_SAMPLE_TRAINING: dict[str, Any] = {"batch_size": 32, "epochs": 30, "lr": 1e-3}


def load_head(model: str | os.PathLike[str] | None, progress: bool = True) -> BCSModel:
    """The head by its name.

    Args:
        model: a folder that ``decodehub bcs train`` wrote, ``ORG/NAME`` of the Hub, ``"sample"``, or None for ``ORG/bcs`` of the
            organisation in ``$DECODEHUB_ORG``.
        progress: show bars while a sample head is trained.

    Raises:
        ValueError: there is no such head, or none was named; the message says how to get one. Or the head has random weights.
    """
    if model is None and os.environ.get(ORG_VARIABLE):
        model = f"{os.environ[ORG_VARIABLE]}/bcs"
    how = (
        'train one with \'decodehub bcs train\' and give model="FOLDER/model", give model="ORG/NAME" of one on the Hub, or model="sample" for a '
        "small head that works offline and shows how it goes (its scores mean nothing)"
    )
    if model is None:
        raise ValueError(f"BCS needs a trained head, and the authors have published none: {how}")
    if os.fspath(model) == SAMPLE:
        return sample_head(progress)
    name = os.fspath(model)
    local = Path(name).expanduser()
    if local.is_dir() and not (local / "config.json").is_file() and (local / "model" / "config.json").is_file():
        local = local / "model"
    if local.is_dir() and (local / "config.json").exists():
        config = read_json(local / "config.json")
        if not isinstance(config, dict) or config.get("model_type") != BCSModel.config_class.model_type:
            raise ValueError(f"{local / 'config.json'} is not that of a BCS head (model_type 'bcs'): {how}")
    try:
        head = BCSModel.from_pretrained(local if local.is_dir() else name)
    except OSError as error:
        first = (str(error).strip().splitlines() or [""])[0][:200]
        raise ValueError(f"there is no BCS head {name!r} ({first}): {how}") from None
    if not head.config.n_train:
        raise ValueError(f"the head {name!r} was never trained (n_train is 0 in its configuration): {how}")
    return head.eval()


def sample_head(progress: bool = True) -> BCSModel:
    """The sample head, trained when first asked for and kept below ``$DECODEHUB_HOME``."""
    from datasets import load_dataset_builder

    import decodehub  # noqa: F401  (the bare name)

    builder = load_dataset_builder("bcs-annotations", "consensus", data_dir=SAMPLE)
    key = sha256_json([SAMPLE_VERSION, builder.hash, SAMPLE_PAIRS, _SAMPLE_CONFIG, _SAMPLE_TRAINING]).removeprefix("sha256:")[:16]
    folder = home() / f"bcs-sample-head-{key}"
    if not folder.is_dir():
        annotations = load_annotations(SAMPLE)
        rows = [np.flatnonzero(annotations.split == name) for name in SAMPLE_PAIRS]
        # Evenly over the rows, which are in the order of concepts and kinds.
        chosen = [r[np.linspace(0, len(r) - 1, min(n, len(r))).astype(int)] for r, n in zip(rows, SAMPLE_PAIRS.values())]
        head = _train(annotations.take(np.concatenate(chosen)), progress)
        with new_folder(folder, or_existing=True) as part:
            head.save_pretrained(part)
    return BCSModel.from_pretrained(folder).eval()


def _train(annotations: Annotations, progress: bool) -> BCSModel:
    import torch

    from decodehub.hub_models.bcs import BCSConfig, BCSModel, pair_features

    encoder = load_encoder("lite0")
    config = BCSConfig(encoders=[{"id": "lite0", "dim": encoder.dim, "fingerprint": encoder.fingerprint}], release=SAMPLE, **_SAMPLE_CONFIG)
    images: dict[str, bytes] = {}
    for row, reference, reconstruction in zip(annotations.rows, annotations.references, annotations.reconstructions):
        images |= {row["reference_sha256"]: reference["bytes"], row["reconstruction_sha256"]: reconstruction["bytes"]}
    place = {digest: i for i, digest in enumerate(images)}
    data, embedded = list(images.values()), []
    for start in tqdm(range(0, len(data), 32), desc="sample head: images", disable=not progress):
        embedded.append(torch.from_numpy(encoder.encode([decode_image(d, name="image of the sample") for d in data[start : start + 32]])))
    embeddings = torch.cat(embedded)
    left, right = ([place[row[key]] for row in annotations.rows] for key in ("reference_sha256", "reconstruction_sha256"))
    features = pair_features(embeddings[left], embeddings[right]).numpy()
    split = {name: np.flatnonzero(annotations.split == name) for name in SAMPLE_PAIRS}
    model = BCSModel(config)
    settings = TrainingSettings(**_SAMPLE_TRAINING)
    trainer = EnsembleTrainer(
        model, PairData(features, annotations.targets, annotations.weights, split["train"], split["validation"]), settings
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a network of this size loses more to the threads' waiting than it gains
    try:
        while not trainer.finished:
            trainer.run_epoch()
    finally:
        torch.set_num_threads(threads)
    trainer.select()
    model.config.n_train = len(split["train"])
    return model
