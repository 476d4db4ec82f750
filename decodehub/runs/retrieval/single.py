"""One model on one person's EEG, from its start weights to the record of its scores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator

from decodehub.core.records import ModelInfo, ResultRecord
from decodehub.metrics.eeg_editbench.protocol import Predictions, ScoredRuns, make_record

from .embeddings import score_candidates
from .inputs import Inputs, make_model, negatives_of
from .settings import TrainingSettings
from .training import train


def train_and_score(
    name: str,
    inputs: Inputs,
    test_eeg: Callable[[], np.ndarray],
    subject: int,
    settings: TrainingSettings,
    seed: int,
    out: Path,
    *,
    resume: bool,
) -> tuple[ResultRecord, ScoredRuns]:
    """Train a model, score the EEG of the test images and write the record; training sees nothing of them.

    Args:
        name: of the model. inputs: what it is trained on, and the candidates.
        test_eeg: gives the test EEG (Q, C, T); called once the model is trained.
        subject, settings, seed, out, resume: as for :func:`.training.train`; the seed also decides the start weights.

    Raises:
        ValueError: as :func:`.training.train`.
    """
    torch.manual_seed(seed)
    network = make_model(name, inputs)
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
        **negatives_of(inputs, settings),
    )
    scores = score_candidates(run.model, test_eeg(), inputs.candidates, subject)
    return make_record(
        out,
        inputs.benchmark,
        [Predictions(subject, seed, *scores)],
        model=ModelInfo(
            id=name,
            parameters=run.model.num_parameters(),
            pretrained_on=inputs.encoder,
            notes=f"trained {run.metadata['epochs']} epochs, weights of epoch {run.epoch} ({settings.selection}); image features: {inputs.encoder}",
        ),
        data=inputs.data,
        similarity=run.model.similarity,
        distance_encoder=inputs.distance_encoder,
        device=run.metadata["device"],
        simulated=inputs.simulated,
    )
