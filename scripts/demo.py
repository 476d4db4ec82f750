"""The whole way on one machine, in three parts, each with table, record and page where there is one.

editbench: sample images, real image features, simulated EEG, a ridge decoder. nice: NICE trained on the same. imind: simulated intracranial
recordings, three tasks x two sessions x two models.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

if TYPE_CHECKING:
    from rich.console import Console

from decodehub.runs.retrieval.defaults import CROPS, EEG_SEED, LATENT_DIM, SNR
from decodehub.runs.retrieval.stimuli import Stimuli, load_stimuli, training_crops

app = typer.Typer(add_completion=False)

SUBJECTS = (1, 2, 3)
SEEDS = (0, 1)
SHARE = 0.8  # of the training stimuli that one training seed draws
PARTS = ("editbench", "nice", "imind")
# Few stimuli and epochs, so that NICE trains in half a minute; a signal strong enough for it to learn from them, and small batches.
NICE: dict[str, Any] = {"snr": 0.3, "crops": 800, "epochs": 5, "batch_size": 64, "lr": 1e-3}
IMIND_SESSIONS, IMIND_MODELS = ("sub41_sess1", "sub41_sess2"), ("logistic-converged", "mlp")
IMIND_TASKS = {"speech": "strong", "volume": "weaker", "word_part_speech": "none"}  # and the effect that the simulator gives each


@app.command()
def main(
    out: Annotated[Path, typer.Option(help="Folder of the records and reports.")] = Path("runs/demo"),
    only: Annotated[str | None, typer.Option(help=f"One part alone: {', '.join(PARTS)}.")] = None,
    snr: Annotated[float, typer.Option(min=0, help="Signal-to-noise ratio of one simulated trial, of editbench; 0 is noise alone.")] = SNR,
    crops: Annotated[int, typer.Option(min=200, help="Training stimuli of editbench.")] = CROPS,
) -> None:
    """Score a ridge decoder and NICE on the sample of EEG-EditBench, and two classifiers on simulated iEEG, with tables, records, reports.

    Example: decodehub demo
    Example: decodehub demo --only imind
    """
    from rich.console import Console

    from decodehub.runs.retrieval.folders import RECORD_FILES, check_folder

    if only not in (None, *PARTS):
        raise ValueError(f"--only must be one of {', '.join(PARTS)}, got {only!r}")
    check_folder(out, (*RECORD_FILES, "nice", "imind"), "the demo")
    console = Console()
    parts = {
        "editbench": lambda: editbench(out, snr, crops, console),
        "nice": lambda: nice(out, console),
        "imind": lambda: imind(out, console),
    }
    for name in PARTS if only is None else (only,):
        started = time.perf_counter()
        parts[name]()
        console.print(f"{name} took {time.perf_counter() - started:.0f} s\n", highlight=False)


def nice(out: Path, console: Console) -> None:
    """Train NICE on simulated EEG of the sample, by the command that trains any model."""
    from .train_retrieval import main as train_retrieval

    console.print(f"[bold]NICE[/bold], trained {NICE['epochs']} epochs on {NICE['crops']} stimuli; [bold]simulated[/bold] EEG")
    train_retrieval(model="nice", subject=1, seed=0, simulate=True, out=out / "nice", **NICE)


def imind(out: Path, console: Console) -> None:
    """Three tasks x two sessions x two models on simulated recordings; the same job as ``decodehub imind run``."""
    from decodehub.core.jobs import raise_if_failed
    from decodehub.core.tables import Column, Table
    from decodehub.metrics.imindbench.aggregate import unit_scores
    from decodehub.metrics.imindbench.predictions import score_cells
    from decodehub.runs.ieeg.models import model_spec
    from decodehub.runs.ieeg.sweep import collect, sweep

    from .imind import data_and_grid, read_recipe

    console.print("[bold]iMINDBench[/bold]: [bold]simulated[/bold] recordings, Multi-STFT features, ROC-AUC on held-out windows")
    folder, grid = data_and_grid("sample")
    units = [u for u in grid.units if u.subject_session in IMIND_SESSIONS and u.task in IMIND_TASKS]
    specs = [model_spec(name) for name in IMIND_MODELS]
    found = sweep(out / "imind", folder, units, specs, read_recipe("multi-stft"))
    raise_if_failed(found.job, "units")
    scores = {}
    for name in IMIND_MODELS:
        cells = score_cells(collect(found.files, name, units), grid)
        scores[name] = unit_scores(cells, cells.auc)
    columns = [Column(name, justify="left", wrap=True) for name in ("session", "task", "effect in the simulation")]
    rows = [(u.subject_session, u.task, IMIND_TASKS[u.task], *(scores[name][u.id] for name in IMIND_MODELS)) for u in units]
    console.print(Table([*columns, *IMIND_MODELS], rows, title="ROC-AUC, mean of two folds (chance .5)"))
    console.print("[yellow]Simulated recordings: these scores say nothing about iMINDBench itself.[/yellow]")


def editbench(out: Path, snr: float, crops: int, console: Console) -> None:
    """Ridge decoders of simulated EEG on the sample: three subjects, two seeds."""
    import evaluate

    from decodehub.core.files import home
    from decodehub.core.records import ModelInfo
    from decodehub.hub_models.eeg_retrieval import RidgeRetrievalModel
    from decodehub.loaders.image_encoders import load_encoder
    from decodehub.loaders.image_features import check_features, image_features
    from decodehub.metrics.eeg_editbench.benchmark import load_benchmark, with_distances
    from decodehub.metrics.eeg_editbench.protocol import make_record
    from decodehub.reports.editbench import show_record

    console.print(
        "[bold]EEG-EditBench[/bold]: real photographs and edits, real image features, [bold]simulated[/bold] EEG, a ridge decoder"
    )
    stimuli = load_stimuli()
    encoder = load_encoder("lite0")
    cache = home() / "features"
    features = {name: image_features(encoder, images, cache_dir=cache) for name, images in stimuli._asdict().items()}
    training = image_features(encoder, list(training_crops(crops)), cache_dir=cache)
    check_features(training, crops)

    cosine = np.einsum("ed,ed->e", *(_unit(x) for x in (features["edits"], features["sources"][_concept_of(stimuli)])))
    benchmark = with_distances(load_benchmark("sample"), np.clip(1 - cosine, 0, 2))
    metric = evaluate.load("eeg_editbench")
    predictions, parameters = [], 0
    for run, count in _runs(training, features, snr):
        rows = [
            {"source_scores": run.source_scores[i], "edit_scores": run.edit_scores[i], "null_scores": run.null_scores[i]}
            for i in range(len(run.source_scores))
        ]
        metric.add_batch(predictions=rows, references=list(benchmark.concepts))
        score = metric.compute(benchmark=benchmark)
        console.print(
            f"subject {run.subject}, seed {run.seed}: Top-1 {score['top1']:.1f}, EP-Top1 {score['ep_top1']:.1f}, 2AFC {score['two_afc']:.1f} %",
            highlight=False,
        )
        predictions.append(run)
        parameters = count
    record, scored = make_record(
        out,
        benchmark,
        predictions,
        model=ModelInfo(id="ridge-baseline", parameters=parameters, notes="linear map from EEG to EfficientNet-lite0 features"),
        data=f"Simulated EEG (63 channels, 250 Hz, linear in image features), snr {snr:g}, {len(SUBJECTS)} simulated subjects, {crops} training stimuli",
        similarity=RidgeRetrievalModel.similarity,
        distance_encoder=encoder.name,
        simulated=True,
    )
    show_record(out, record, scored, "sample")


def _runs(training: np.ndarray, features: dict[str, np.ndarray], snr: float) -> Iterator[tuple[Any, int]]:
    """Predictions of every subject and seed, and the decoder's parameter count. A training seed draws its share of the stimuli."""
    import torch

    from decodehub.hub_models.eeg_retrieval import RidgeRetrievalConfig, RidgeRetrievalModel
    from decodehub.loaders.simulate_eeg import SimulationSettings, simulate_eeg
    from decodehub.metrics.eeg_editbench.protocol import Predictions
    from decodehub.metrics.eeg_editbench.similarity import score_embeddings

    settings = SimulationSettings(snr=snr, latent_dim=LATENT_DIM)
    for subject in SUBJECTS:
        eeg = simulate_eeg(training, features["sources"], settings, subject=subject, seed=EEG_SEED)
        for seed in SEEDS:
            chosen = np.sort(np.random.default_rng([subject, seed]).choice(len(training), int(SHARE * len(training)), replace=False))
            model = RidgeRetrievalModel(
                RidgeRetrievalConfig(n_channels=63, n_times=250, embed_dim=training.shape[1], ch_names=eeg.ch_names)
            )
            model.fit(eeg.train[chosen], training[chosen])
            model.eval()
            with torch.inference_mode():
                queries = model.get_eeg_features(torch.from_numpy(eeg.test))
                centre = model.image_mean.numpy()  # the model's own score is the cosine less the mean training feature
                scores = score_embeddings(queries.numpy() - centre, *(features[name] - centre for name in ("sources", "edits", "nulls")))
            yield Predictions(subject, seed, *scores), model.num_parameters()


def _concept_of(stimuli: Stimuli) -> list[int]:
    from datasets import load_dataset

    return load_dataset("eeg-editbench", "sample", split="test")["concept_index"][:]


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


if __name__ == "__main__":
    app()
