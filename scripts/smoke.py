"""Everything once, small: every data set's sample, every metric on random predictions, a tiny random model of every class."""

from __future__ import annotations

import importlib
import inspect
import tempfile
from collections.abc import Callable
from typing import Any

import typer

from decodehub.core.entry import Entry, names

app = typer.Typer(add_completion=False)


def smoke_dataset(entry: Entry) -> str:
    """Load the sample config and look at every row's release."""
    from datasets import load_dataset

    data = load_dataset(entry.name, "sample")
    rows = {split: len(part) for split, part in data.items()}
    releases = {release for part in data.values() for release in part.unique("release")}
    if not rows or not min(rows.values()):
        raise ValueError(f"the sample of {entry.name} is empty: {rows}")
    return f"{rows} of release {sorted(releases)}"


def smoke_metric(entry: Entry) -> str:
    """Load the metric and score random predictions on its sample."""
    import evaluate

    evaluate.load(entry.name)
    protocol = importlib.import_module(f"{entry.module.rpartition('.')[0]}.protocol")
    return ", ".join(f"{name} {value:.1f}" for name, value in protocol.smoke().items())


def smoke_model(entry: Entry) -> str:
    """Build a tiny random model of every class, run it, save it, load it, and compare the outputs."""
    import torch
    from transformers import AutoModel, PreTrainedModel

    importlib.import_module(entry.module.rpartition(".")[0])
    module = importlib.import_module(entry.module)
    done = []
    classes: list[Any] = [c for c in vars(module).values() if inspect.isclass(c) and issubclass(c, PreTrainedModel)]
    for cls in classes:
        if cls.__module__ != module.__name__ or not cls.config_class:
            continue
        torch.manual_seed(0)
        model = cls(cls.config_class.tiny()).eval()
        with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
            model.save_pretrained(folder)
            again = AutoModel.from_pretrained(folder).eval()
            before, after = model(**model.dummy_inputs), again(**model.dummy_inputs)
        if not all(torch.equal(before[key], after[key]) for key in before):
            raise ValueError(f"{cls.__name__} gives other outputs once saved and loaded")
        done.append(f"{cls.__name__} ({model.num_parameters():,} parameters)")
    if not done:
        raise ValueError(f"{entry.module} defines no PreTrainedModel")
    return ", ".join(done)


CHECKS: dict[str, Callable[[Entry], str]] = {"dataset": smoke_dataset, "metric": smoke_metric, "model": smoke_model}


def smoke(report: Callable[[str], Any] = typer.echo) -> dict[str, str]:
    """Check everything that loads by name; returns the failures by name."""
    failures = {}
    for entry in names():
        try:
            report(f"ok    {entry.kind} {entry.name}: {CHECKS[entry.kind](entry)}")
        except Exception as error:  # one broken entry must not hide the others
            failures[f"{entry.kind} {entry.name}"] = f"{type(error).__name__}: {error}"
            report(f"FAIL  {entry.kind} {entry.name}: {failures[f'{entry.kind} {entry.name}']}")
    return failures


@app.command()
def main() -> None:
    """Check in a minute that every data set, metric and model works here.

    Example: decodehub smoke
    """
    if smoke():
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
