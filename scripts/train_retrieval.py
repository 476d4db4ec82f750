"""Train one EEG-to-image retrieval model on one person's EEG and score it on EEG-EditBench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from decodehub.runs.retrieval.stimuli import CROPS, SNR

app = typer.Typer(add_completion=False)


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
            "1 to 16,540, the others are in the order of `decodehub editbench export`; `decodehub editbench targets` makes it."
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
    hard_negatives: Annotated[
        int,
        typer.Option(
            min=0, help="Edits of each image of a batch that join the softmax; --targets then has negatives/PART and negative_of."
        ),
    ] = 0,
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

    from decodehub.core.records import ModelInfo
    from decodehub.hub_models.eeg_retrieval import RETRIEVAL_MODELS
    from decodehub.metrics.eeg_editbench.protocol import Predictions, make_record
    from decodehub.reports.editbench import show_record
    from decodehub.runs.retrieval.embeddings import score_candidates
    from decodehub.runs.retrieval.inputs import make_model, negatives_of, recorded_inputs, recorded_test_eeg, simulated_inputs
    from decodehub.runs.retrieval.training import settings_for, train
    from decodehub.runs.retrieval.training_images import crops as crops_of

    if model not in RETRIEVAL_MODELS:
        raise ValueError(f"--model {model!r} is not known: expected one of {', '.join(RETRIEVAL_MODELS)}")
    if simulate == (eeg is not None or targets is not None) or (eeg is None) != (targets is None):
        raise ValueError("give --eeg and --targets together, or --simulate without them")
    changes = {"epochs": epochs, "batch_size": batch_size, "lr": lr, "selection": selection, "hard_negatives": hard_negatives}
    settings = settings_for(model, **{name: value for name, value in changes.items() if value is not None})
    out = out or Path(f"runs/{model}/sub-{subject:02d}_seed-{seed}")
    if simulate:
        inputs, test_eeg = simulated_inputs(model, subject, snr, crops_of(crops), seed=seed)
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
        **negatives_of(inputs, settings),
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
        simulated=inputs.simulated,
    )
    show_record(out, record, scored, data_dir)


if __name__ == "__main__":
    app()
