"""The job of `decodehub imind run` and `scale`: models by name, swept over units by all processes, while no other job has their files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import torch
from accelerate import PartialState
from accelerate.utils import gather_object

from decodehub.core.jobs import Report, exclusive
from decodehub.core.words import suggest
from decodehub.loaders.recipes import Recipe
from decodehub.metrics.imindbench.grid import Unit

from .models import ModelSpec, model_spec
from .scaling import at_fraction
from .sweep import UnitFile, sweep

DEVICES = ("cpu", "cuda", "mps")


class JobResult(NamedTuple):
    """What all processes of a job did together: the files of every unit and model, and the counts."""

    files: list[UnitFile]
    report: Report


def load_models(names: Sequence[str], device: str, epochs: int | None) -> list[ModelSpec]:
    """The models of a job, each checked before any work.

    Args:
        names: see `models.model_spec`.
        device: "cpu", "cuda" (one of this process's own) or "mps".
        epochs: of networks; None for the benchmark's.

    Raises:
        ValueError: no such model or device, a device that is not there, or two models of one name.
    """
    if device not in DEVICES:
        raise ValueError(f"--device must be one of {', '.join(DEVICES)}, found {device!r}{suggest(device, DEVICES)}")
    if (device == "cuda" and not torch.cuda.is_available()) or (device == "mps" and not torch.backends.mps.is_available()):
        raise ValueError(f"--device {device}: this machine (or its build of torch) has none; use --device cpu")
    own_device = f"cuda:{PartialState().local_process_index}" if device == "cuda" else device
    specs = [model_spec(name, device=own_device, training={} if epochs is None else {"epochs": epochs}) for name in names]
    if len({spec.name for spec in specs}) != len(specs):
        raise ValueError(f"two models have one name: {', '.join(spec.name for spec in specs)}")
    return specs


@contextmanager
def swept(
    out: Path, folder: Path, units: Sequence[Unit], specs: Sequence[ModelSpec], fractions: Sequence[Fraction], recipe: Recipe, device: str
) -> Iterator[JobResult | None]:
    """Sweep models (and shares of their training windows) over units; None on processes that are not the main one.

    Until the block ends no other job may write the files of these models in `out`; one of other models may.

    Raises:
        JobRunning: another job has the files of one of these models.
    """
    state = PartialState(cpu=device == "cpu")  # on CPUs as well, processes that were launched together share the job
    variants = list(specs) if list(fractions) == [1] else [at_fraction(spec, fraction) for spec in specs for fraction in fractions]
    with ExitStack() as stack:
        for variant in variants if state.is_main_process else ():
            stack.enter_context(exclusive(out / "units" / variant.name))
        state.wait_for_everyone()
        found = sweep(out, folder, units, variants, recipe, rank=state.process_index, world=state.num_processes)
        files, reports = gather_object(list(found.files)), gather_object([found.job])
        total = Report([], [], {})
        for report in reports:
            total.add(report)
        yield JobResult(files, total) if state.is_main_process else None
