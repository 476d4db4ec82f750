"""One session, its 15 tasks, from the recording to AUCs: `decodehub imind run` against the literal way, and what a whole row costs.

    python benchmarks/imind_session.py                      # five simulated minutes, 32 contacts: some minutes
    python benchmarks/imind_session.py --minutes 8 --growth # also growth with contacts and windows
    python benchmarks/imind_session.py --row                # an estimate of all 585 units

The literal way takes each task by itself, as one call of the released code does: every window of the task is cut, filtered and transformed
(``lfilter``, ``torch.stft``) once, normalised for each fold, and given to scikit-learn at the published tolerance. Ours makes the features of
every distinct window of the session once. Both run `logistic-paper` on the same windows, in a process of their own whose libraries have one
thread each. Times are CPU seconds, as machines are shared; memory is the largest resident size of the process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from imind_features import literal_multi_stft

from decodehub.hub_datasets.imindbench import data
from decodehub.loaders.ieeg.labels import TASKS
from decodehub.loaders.ieeg.recording import ArrayRecording, with_data
from decodehub.loaders.ieeg.simulate import simulate_recording
from decodehub.loaders.ieeg.splits import make_folds
from decodehub.metrics.imindbench.grid import Unit

DATASET, SESSION = "kelesbyd2024", "sub41_sess1"
GIB = 1 << 30


def session(minutes: float, copies: int = 1) -> tuple[ArrayRecording, dict[str, Any]]:
    """A simulated recording of 32 contacts, or some copies of it with noise of their own on electrodes of other names, and its labels."""
    source = simulate_recording(DATASET, SESSION, seed=1, minutes=minutes)
    data = source.read(0, source.n_samples)
    rng = np.random.default_rng(0)
    blocks = [data, *(data + 20 * rng.standard_normal(data.shape, dtype=np.float32) for _ in range(copies - 1))]
    names = tuple(f"c{k}{name}" for k in range(copies) for name in source.ch_names)
    whole = ArrayRecording(
        DATASET,
        source.recording_id,
        "sub41",
        "sess1",
        source.sfreq,
        names,
        source.n_samples,
        60,
        simulated=True,
        data=np.concatenate(blocks),
    )
    return with_data(whole, whole.data), {task: source.labels(task) for task in TASKS}


def ours(minutes: float, copies: int, models: tuple[str, ...]) -> dict[str, Any]:
    """Times by stage, memory and AUCs of our sweep over one session."""
    from decodehub.loaders.recipes import named_recipe
    from decodehub.metrics.imindbench.grid import make_grid
    from decodehub.metrics.imindbench.predictions import score_cells
    from decodehub.runs.ieeg import sweep as _imind_run
    from decodehub.runs.ieeg.models import model_spec

    recording, tables = session(minutes, copies)
    _imind_run.open_recording = lambda *_: recording  # type: ignore[assignment]
    data.unit_labels = lambda folder, dataset, name, task: tables[task]  # type: ignore[assignment]
    spent = {"features": 0.0}
    extract = _imind_run.extract

    def timed(*args: Any, **kwargs: Any) -> Any:
        begin = time.process_time()
        found = extract(*args, **kwargs)
        spent["features"] += time.process_time() - begin
        spent["windows"] = len(found.values)
        return found

    _imind_run.extract = timed  # type: ignore[assignment]
    units = [Unit(DATASET, SESSION, task, "main") for task in TASKS]
    grid = make_grid("benchmark", [u._asdict() for u in units])
    result: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory() as folder
    ):  # what is imported on the way is imported now, as the literal way does before its time begins
        _imind_run.sweep(Path(folder), Path(), units[:1], [model_spec(m) for m in models], named_recipe("multi-stft"), progress=False)
    spent["features"] = 0.0
    for model in models:
        with tempfile.TemporaryDirectory() as folder:
            begin = time.process_time()
            found = _imind_run.sweep(Path(folder), Path(), units, [model_spec(model)], named_recipe("multi-stft"), progress=False)
            assert not found.job.failed, found.job.failed
            result[model] = time.process_time() - begin
            result[f"auc {model}"] = score_cells(_imind_run.collect(found.files, model, units), grid).auc
    return {**result, **spent, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def literal(minutes: float, copies: int) -> dict[str, Any]:
    """Time, memory and AUCs of the literal way."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    recording, tables = session(minutes, copies)
    begin, aucs, windows, features = time.process_time(), [], 0, 0.0
    for task in TASKS:
        table = tables[task]
        folds = make_folds(DATASET, recording.recording_id, task, table)
        used = np.unique(np.concatenate([fold.part(p) for fold in folds for p in ("train", "val", "test")]))
        first = np.array([recording.window_bounds(s)[0] for s in table.start_s[used]])
        start = time.process_time()
        made = literal_multi_stft(recording, first)
        features += time.process_time() - start
        windows += len(first)
        x = np.empty((len(table), *made.shape[1:]), dtype=np.float32)
        x[used] = made
        for fold in folds:
            if fold.status != "ok":
                aucs.append(np.nan)
                continue
            train = x[fold.train]
            mean, sd = train.mean(axis=(0, 2), keepdims=True), train.std(axis=(0, 2), keepdims=True)
            model = LogisticRegression(tol=1e-3, max_iter=10_000, random_state=42)
            model.fit(((train - mean) / (sd + 1e-8)).reshape(len(train), -1), table.label[fold.train])
            scores = {}
            for part in ("val", "test"):
                rows = fold.part(part)
                scores[part] = model.predict_proba(((x[rows] - mean) / (sd + 1e-8)).reshape(len(rows), -1))[:, 1]
            aucs.append(roc_auc_score(table.label[fold.test], scores["test"]))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"total": time.process_time() - begin, "features": features, "windows": windows, "auc": np.array(aucs), "memory": memory}


def alone(function: Any, *args: Any) -> Any:
    """The result of a function in a fresh process of one thread."""
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    pool = multiprocessing.get_context("spawn").Pool(1)
    result = pool.apply(function, args)
    pool.close()
    pool.join()
    return result


# Sessions, distinct windows a session, contacts, sampling rate, training windows and test windows of a typical fold.
SHAPES = {
    "neuroprobev2": (5, 12_000, 118, 2048, 1750, 875),
    "kelesbyd2024": (29, 1_097, 110, 1000, 300, 150),
    "berezutskayapippi2022": (5, 802, 110, 2048, 220, 100),
}


def row_estimate(dataset: str) -> tuple[float, float, float]:
    """CPU seconds of features and of fits for all sessions of a data set, from some windows and one fold at its size, and memory."""
    import torch
    from imind_features import make_recording

    from decodehub.hub_models.ieeg import LogisticConfig, LogisticModel
    from decodehub.loaders.recipes import named_recipe
    from decodehub.loaders.session_features import extract, fit_normaliser

    sessions, windows, contacts, sfreq, train, test = SHAPES[dataset]
    recipe, recording = named_recipe("multi-stft"), make_recording(contacts, sfreq, 30)
    first = (np.arange(40) * (sfreq // 2)).astype(np.int64)
    extract(recipe, recording, first[:2])
    begin = time.process_time()
    extract(recipe, recording, first)
    features = (time.process_time() - begin) / len(first) * windows * sessions
    rng = np.random.default_rng(0)
    x, held_out = (rng.standard_normal((n, contacts, 17, 75), dtype=np.float32) for n in (train, test))
    begin = time.process_time()
    normaliser = fit_normaliser(recipe.stages[-1], x, np.arange(train))
    x = normaliser.take(x, np.arange(train))
    model = LogisticModel(LogisticConfig(input_shape=list(x.shape[1:])))
    model.fit(x, np.arange(train) % 2)
    for _ in ("val", "test"):
        model.predict_proba(torch.from_numpy(normaliser.take(held_out, np.arange(test))))
    fits = (time.process_time() - begin) * 2 * len(TASKS) * sessions
    return features, fits, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--copies", type=int, default=1, help="32 contacts each")
    parser.add_argument("--growth", action="store_true", help="also more contacts and more minutes, ours alone")
    parser.add_argument("--row", action="store_true", help="only: what all 585 units would cost, from pieces at the sizes of each data set")
    arguments = parser.parse_args()
    if arguments.row:
        total = 0.0
        for dataset in SHAPES:
            features, fits, memory = alone(row_estimate, dataset)
            total += features + fits
            print(
                f"  {dataset:22} features {features / 60:6.1f} min, fits of logistic-converged {fits / 60:6.1f} min, memory {memory / GIB:.1f} GiB",
                flush=True,
            )
        print(f"  585 units x 2 folds: {total / 3600:.1f} CPU hours")
        return
    minutes, copies = arguments.minutes, arguments.copies
    a = alone(ours, minutes, copies, ("logistic-paper", "logistic-converged"))
    print(f"{minutes:g} simulated minutes, {32 * copies} contacts, 1000 Hz, 15 tasks x 2 folds", flush=True)
    for model in ("logistic-paper", "logistic-converged"):
        print(
            f"  ours, {model:19} {a[model]:7.1f} s, of them {a['features'] / 2:.1f} s features of {a['windows']} distinct windows",
            flush=True,
        )
    print(f"  ours, memory {a['memory'] / GIB:.2f} GiB", flush=True)
    b = alone(literal, minutes, copies)
    print(
        f"  literal                  {b['total']:7.1f} s, of them {b['features']:.1f} s features of {b['windows']} windows, memory {b['memory'] / GIB:.2f} GiB"
    )
    print(f"  ratio, equal model: {b['total'] / a['logistic-paper']:.1f}x; features alone {b['features'] / (a['features'] / 2):.1f}x")
    print(
        f"  largest difference of the 30 AUCs {np.nanmax(np.abs(a['auc logistic-paper'] - b['auc'])):.1e}, mean AUC {np.nanmean(b['auc']):.4f}; converged {np.nanmean(a['auc logistic-converged']):.4f}"
    )
    if arguments.growth:
        for m, c in ((minutes, 2 * copies), (minutes, 4 * copies), (2 * minutes, copies)):
            g = alone(ours, m, c, ("logistic-converged",))
            print(
                f"  {m:g} minutes, {32 * c} contacts: {g['logistic-converged']:.1f} s, of them {g['features']:.1f} s features of {g['windows']} windows; memory {g['memory'] / GIB:.2f} GiB",
                flush=True,
            )


if __name__ == "__main__":
    main()
