"""Several seeds of one model and person trained at once, as one batched model, with the result that they have one by one.

Weights are stacked over the seeds and the model is mapped over the stack (``torch.func``); one optimiser steps all of them, which is the
same, since Adam and AdamW treat each number alone. What is random or stateful stays each seed's own: order, dropout masks, drawn edits, blur labels,
clipping, validation, selection, patience. A seed that has finished leaves the stack. Folders, hashes and checkpoints are those of
:func:`._retrieval_training.train`: either way of training goes on from the checkpoint of the other.

Sums of floating-point numbers are taken in another order than one by one, so weights agree up to rounding, not to the bit. At the published
sizes, after ten steps on the CPU, the root mean square of the difference was 1e-6 to 4e-5 of that of how far weights had moved, and losses
agreed to six digits. Where rounding does not stay small, :data:`NOT_BATCHED` says why and seeds are trained in turn.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from decodehub.hub_models.eeg_retrieval import EEGRetrievalModel

from .loop import Loop, make_data
from .negatives import add_edits, contrast
from .settings import TrainingSettings, make_optimizer, rate_of
from .training import Run, TrainedRun, check_data, check_negatives, config_of, hash_data, rows_of

BATCHED = ("ubp", "ats", "brain-hive", "neurobridge")
_BATCH_NORM = (
    "the biases in front of its BatchNorm layers have a gradient of nothing but rounding, which Adam turns into whole steps, so that these "
    "weights depend on the order of sums"
)
# Why the seeds of the other models are trained in turn.
NOT_BATCHED = {
    "nice": _BATCH_NORM,
    "atm": _BATCH_NORM,
    "hyfi": "its loss takes a hundred times the difference of nearly equal numbers, so that rounding grows within a few steps",
    "mb2c": "its seeds mix different numbers of pairs in a step, and critics and generators take steps of their own in between",
}
CHOICES = ("auto", "yes", "no")
Parts: TypeAlias = Mapping[str, np.ndarray]


def batches_seeds(model_type: str, device: torch.device | str, choice: str = "auto") -> bool:
    """Whether to train the seeds of a model together.

    Args:
        model_type: of the model.
        device: where it trains. On the CPU matrix products fill the cores as they are, and seeds in turn are faster (see
            ``benchmarks/retrieval_training.py``).
        choice: "auto" batches on accelerators where the model allows it, "yes" wherever the model allows it, "no" never.

    Raises:
        ValueError: an unknown choice, or "yes" for a model that cannot.
    """
    if choice not in CHOICES:
        raise ValueError(f"batch_seeds must be one of {', '.join(CHOICES)}, got {choice!r}")
    if choice == "yes" and model_type not in BATCHED:
        raise ValueError(_refusal(model_type))
    return choice != "no" and model_type in BATCHED and (choice == "yes" or torch.device(device).type != "cpu")


def train_seeds(
    models: Sequence[EEGRetrievalModel],
    eeg: np.ndarray,
    targets: Parts | Sequence[Parts],
    concepts: np.ndarray,
    subject: int,
    settings: TrainingSettings,
    seeds: Sequence[int],
    outs: Sequence[Path],
    accelerator: Any | None = None,
    progress: bool = True,
    *,
    resume: bool = True,
    checkpoint_every: int = 1,
    on_epoch: Callable[[int, int, float], None] | None = None,
    negatives: Parts | Sequence[Parts] | None = None,
    negative_of: np.ndarray | None = None,
    image_of: np.ndarray | None = None,
) -> list[TrainedRun]:
    """Train one model for each seed on the EEG of one person, all as one batched model.

    Args:
        models: one for each seed, freshly made, of one configuration and one of :data:`BATCHED`.
        targets: image features as for ``train``, or one set for each seed where features have noise of their own.
        seeds: different numbers.
        outs: the folder of each run.
        on_epoch: called with seed, number of the epoch from 1, and training loss.
        negatives: as for ``train``, or one set for each seed.
        eeg, concepts, subject, settings, accelerator, progress, resume, checkpoint_every, negative_of, image_of: as for
            :func:`._retrieval_training.train`; shared by the seeds.

    Returns:
        The runs, in the order of `seeds`. ``seconds`` of their metadata are those of all together.

    Raises:
        ValueError: as for ``train``; also a model that cannot be batched, models that differ in their configuration, or validation
            splits of different sizes.
    """
    _check(models, seeds, outs, accelerator)
    device = models[0].device if accelerator is None else accelerator.device
    started = time.perf_counter()
    features = list(zip(_each(targets, len(seeds), "targets"), _each(negatives, len(seeds), "negatives")))
    runs: list[Run] = []
    loops: list[Loop] = []
    for i, (model, seed, out) in enumerate(zip(models, seeds, outs)):
        if i == 0 or any(x is not y for x, y in zip(features[i], features[i - 1])):
            own_targets, own_negatives = features[i]
            check_data(model, eeg, own_targets, concepts, subject, seed)
            hard = check_negatives(model, own_negatives, negative_of, image_of, len(eeg), settings)
            data_hash = hash_data(eeg, concepts, own_targets, hard)
            shared = loops[0].data.eeg if loops else eeg
            data = make_data(shared, own_targets, concepts, subject, hard, settings.hard_negatives, device)
        runs.append(Run(model, *rows_of(concepts, settings, seed), settings, seed, subject, data_hash, Path(out)))
        loops.append(Loop(model, data, runs[-1].chosen, runs[-1].held_out, settings, seed))
        runs[-1].resume(loops[-1], resume)
    if len({len(run.chosen) for run in runs}) > 1:
        raise ValueError("concepts have different numbers of images, so that the validation splits differ in size: train the seeds in turn")
    title = f"{models[0].config.model_type} sub-{subject:02d} seeds {', '.join(map(str, seeds))}"
    total = settings.epochs * len(loops)
    with tqdm(total=total, initial=sum(loop.epoch for loop in loops), desc=title, disable=not progress) as bar:
        for group, losses in _epochs(loops):
            for loop, loss in zip(group, losses):
                runs[loops.index(loop)].checkpoint(loop, checkpoint_every)
                bar.update()
                if on_epoch is not None:
                    on_epoch(loop.seed, loop.epoch, loss)
            bar.set_postfix(loss=f"{np.mean(losses):.3f}")
    seconds = time.perf_counter() - started
    return [run.finish(loop, seconds, batched_seeds=list(seeds)) for run, loop in zip(runs, loops)]


def _each(values: Any, n: int, name: str) -> list[Any]:
    """`values` for each of n seeds: one for all, or a sequence of them."""
    if not isinstance(values, Sequence):
        return [values] * n
    if len(values) != n:
        raise ValueError(f"{name} has {len(values)} sets for {n} seeds: give one for all, or one for each")
    return list(values)


def _epochs(loops: list[Loop]) -> Iterator[tuple[list[Loop], list[float]]]:
    """Train to the end, epoch by epoch: those that trained, and their losses. Seeds that are behind (after a stop) catch up first."""
    stack: _Stack | None = None
    while under_way := [loop for loop in loops if not loop.finished]:
        first = min(loop.epoch for loop in under_way)
        group = [loop for loop in under_way if loop.epoch == first]
        if stack is None or stack.loops != group:
            if stack is not None:
                stack.release()
            stack = _Stack(group)
        yield group, stack.one_epoch()
    if stack is not None:
        stack.release()


class _Stack:
    """Weights, buffers and optimiser of several loops as one. While it lasts, those of the loops are views of it."""

    def __init__(self, loops: list[Loop]) -> None:
        self.loops, first = loops, loops[0]
        self.settings, self.streams = first.settings, _Streams(first.device)
        for loop in loops:
            loop.core.train()
        self.parameters, self.buffers = torch.func.stack_module_state([loop.core for loop in loops])
        self.objective = _Objective(copy.deepcopy(first.core).to("meta"), first.data.subject, self.streams)
        self.optimizer = make_optimizer(first.core, self.settings, self.parameters)
        for entries in zip(*(self._trained(loop) for loop in loops)):
            states = [loop.optimizers["main"].state.get(p, {}) for loop, (_, p) in zip(loops, entries)]
            if states[0]:  # of a checkpoint; all have made the same number of steps
                stacked = {key: torch.stack([state[key] for state in states]) for key in states[0] if key != "step"}
                self.optimizer.state[self.parameters[entries[0][0]]] = stacked | {"step": states[0]["step"].clone()}
        self._share()

    def _trained(self, loop: Loop) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in loop.core.named_parameters() if p.requires_grad]

    def _share(self) -> None:
        """Make weights, buffers and optimiser of each loop views of the stack."""
        for i, loop in enumerate(self.loops):
            for name, p in loop.core.named_parameters():
                p.data = self.parameters[name].detach()[i]
            for name, buffer in loop.core.named_buffers():
                buffer.data = self.buffers[name][i]
            for name, p in self._trained(loop):
                state = self.optimizer.state.get(self.parameters[name], {})
                loop.optimizers["main"].state[p] = {key: value if key == "step" else value[i] for key, value in state.items()}

    def release(self) -> None:
        """Give each loop weights, buffers and optimiser of its own."""
        for loop in self.loops:
            for tensor in (*loop.core.parameters(), *loop.core.buffers()):
                tensor.data = tensor.data.clone()
            state = loop.optimizers["main"].state
            for p, values in state.items():
                state[p] = {key: value.clone() for key, value in values.items()}

    def one_epoch(self) -> list[float]:
        """Train one epoch and validate; returns the mean training loss of each seed."""
        epochs = [loop.begin_epoch() for loop in self.loops]
        n_steps, losses = len(epochs[0].batches), []
        with self.streams.seeded([epoch.order.initial_seed() for epoch in epochs]):
            for i in range(n_steps):
                rate = rate_of(self.settings, self.loops[0].epoch, i, n_steps)
                for group in self.optimizer.param_groups:
                    group["lr"] = rate
                losses.append(self._step([epoch.batches[i] for epoch in epochs], epochs))
        self._share()
        return [loop.end_epoch(loss) for loop, loss in zip(self.loops, torch.stack(losses, dim=1))]

    def _step(self, batches: list[Tensor], epochs: list[Any]) -> Tensor:
        pairs = [loop.pairs(batch, epoch) for loop, batch, epoch in zip(self.loops, batches, epochs)]
        eeg = torch.stack([pair.eeg for pair in pairs])
        targets = {name: torch.stack([pair.targets[name] for pair in pairs]) for name in pairs[0].targets}
        self.streams.edits = [0 if pair.edits is None else len(next(iter(pair.edits.values()))) for pair in pairs]
        edits = _pad([pair.edits for pair in pairs], self.streams.edits)

        def loss(p: dict[str, Tensor], b: dict[str, Tensor], inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
            return torch.func.functional_call(self.objective, (p, b), kwargs=inputs)

        state = ({f"model.{name}": x for name, x in group.items()} for group in (self.parameters, self.buffers))
        with torch.autocast(eeg.device.type, torch.bfloat16, enabled=self.loops[0].bfloat16):
            # Anything random other than the dropout that _Dropout stands in for is an error here (randomness="error" by default).
            losses, diagonals = torch.func.vmap(loss)(*state, {"eeg": eeg, "targets": targets, **edits})
        for loop, batch, diagonal in zip(self.loops, batches, diagonals.detach()):
            if loop.selector is not None:
                loop.selector.update(batch, diagonal)
        self.optimizer.zero_grad()
        losses.sum().backward()  # a seed's weights have no part in the loss of another
        if self.settings.grad_clip:
            _clip([p.grad for p in self.parameters.values() if p.grad is not None], self.settings.grad_clip)
        self.optimizer.step()
        return losses.detach()


class _Objective(nn.Module):
    """A model with its loss as what ``functional_call`` calls, its dropout layers replaced by ones whose masks are each seed's own."""

    def __init__(self, model: EEGRetrievalModel, subject: int, streams: _Streams) -> None:
        super().__init__()
        self.model, self.subject, self.streams = model, subject, streams
        for module in list(model.modules()):
            for name, child in module.named_children():
                if isinstance(child, nn.Dropout):
                    setattr(module, name, _Dropout(child.p, streams))

    def forward(
        self, eeg: Tensor, targets: dict[str, Tensor], edits: dict[str, Tensor] | None = None, absent: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        output = contrast(self.model, self.model, eeg, targets, self.subject)
        if edits is not None:
            with self.streams.of_edits():
                output = add_edits(output, self.model, edits, absent)
        return output.loss, output.logits_per_eeg.diagonal()


class _Dropout(nn.Module):
    """``nn.Dropout`` below ``vmap``, with the masks that each seed draws when it trains alone."""

    def __init__(self, p: float, streams: _Streams) -> None:
        super().__init__()
        self.p, self.streams = p, streams

    def forward(self, x: Tensor) -> Tensor:
        return x * _Masks.apply(x.detach(), self.p, self.streams) if self.training and self.p > 0 else x


class _Masks(torch.autograd.Function):
    """Masks (S, ...) for values (...) below ``vmap`` over S seeds: what a plain operation could not know there is which seed it is of."""

    @staticmethod
    def forward(x: Tensor, p: float, streams: _Streams) -> Tensor:
        raise RuntimeError("masks of several seeds are drawn below vmap only")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to keep: masks have no gradient."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, p: float, streams: _Streams) -> tuple[Tensor, int]:
        shape = x.shape if in_dims[0] is None else x.movedim(in_dims[0], 0).shape[1:]
        return streams.masks(shape, p, x.dtype), 0


class _Streams:
    """States of the global generator, one for each seed. Dropout draws from the global generator and takes no other."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.states: list[Tensor] = []
        self.edits: list[int] = []  # number of edits of each seed in this step; what fills them up draws nothing
        self._rows: list[int] | None = None

    @contextmanager
    def seeded(self, seeds: list[int]) -> Iterator[None]:
        """Begin anew with these seeds; the global generator is left as it was."""
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            self.states = []
            for seed in seeds:
                torch.manual_seed(seed)
                self.states.append(self._get())
            yield

    @contextmanager
    def of_edits(self) -> Iterator[None]:
        """Draw for edits: each seed for as many as it has."""
        self._rows = self.edits
        try:
            yield
        finally:
            self._rows = None

    def masks(self, shape: torch.Size, p: float, dtype: torch.dtype) -> Tensor:
        """(S, *shape): 0 or 1 / (1 - p)."""
        masks = torch.ones(len(self.states), *shape, dtype=dtype, device=self.device)
        for i, mask in enumerate(masks):
            self._set(self.states[i])
            there = mask if self._rows is None else mask[: self._rows[i]]
            there.copy_(nn.functional.dropout(there, p))
            self.states[i] = self._get()
        return masks

    def _get(self) -> Tensor:
        return torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else torch.get_rng_state()

    def _set(self, state: Tensor) -> None:
        torch.cuda.set_rng_state(state, self.device) if self.device.type == "cuda" else torch.set_rng_state(state)


def _pad(edits: list[dict[str, Tensor] | None], counts: list[int]) -> dict[str, Any]:
    """Edits of all seeds (S, k, d) by part, filled up to the most that one has, and ``absent`` (S, k), True for what fills up."""
    like = next((part for part in edits if part is not None), None)
    if like is None:
        return {}
    # Filled up with copies of a row, not zeros: a norm has no gradient at zero.
    whole = [like if part is None else part for part in edits]
    rows = [torch.arange(max(counts)).clamp(max=len(next(iter(part.values()))) - 1) for part in whole]
    padded = {name: torch.stack([part[name][row.to(value.device)] for part, row in zip(whole, rows)]) for name, value in like.items()}
    absent = torch.arange(max(counts)) >= torch.tensor(counts)[:, None]
    return {"edits": padded, "absent": absent.to(next(iter(like.values())).device)}


def _clip(gradients: list[Tensor], largest: float) -> None:
    """``clip_grad_norm_`` for each seed: gradients (S, ...) are scaled so that no seed's norm is above `largest`."""
    norms = torch.stack([torch.linalg.vector_norm(g.reshape(len(g), -1), dim=1) for g in gradients])
    factor = (largest / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
    for g in gradients:
        g.mul_(factor.view(-1, *[1] * (g.ndim - 1)))


def _refusal(model_type: str) -> str:
    why = NOT_BATCHED.get(model_type, "it is not known to give the same result that way")
    return f"the seeds of {model_type} cannot be trained as one batched model: {why}. Train them in turn"


def _check(models: Sequence[EEGRetrievalModel], seeds: Sequence[int], outs: Sequence[Path], accelerator: Any | None) -> None:
    """Raise ValueError for what does not fit together, in words."""
    if not len(models) == len(seeds) == len(outs) or not models:
        raise ValueError(f"expected as many models, seeds and folders, and at least one, found {len(models)}, {len(seeds)} and {len(outs)}")
    if len(set(seeds)) < len(seeds) or len({Path(out).absolute() for out in outs}) < len(outs):
        raise ValueError(
            f"seeds and folders must differ from run to run, got the seeds {list(seeds)} and the folders {list(map(str, outs))}"
        )
    if models[0].config.model_type not in BATCHED:
        raise ValueError(_refusal(models[0].config.model_type))
    if min(seeds) < 0:
        raise ValueError(f"seeds must be 0 or more, got {list(seeds)}")
    if any(config_of(model) != config_of(models[0]) for model in models):
        raise ValueError("the models of a batch must have one configuration")
    if accelerator is not None and (accelerator.num_processes > 1 or accelerator.mixed_precision != "no"):
        raise ValueError(
            "a batch of seeds trains in one process, in the precision of its settings, found "
            f"{accelerator.num_processes} processes and mixed precision {accelerator.mixed_precision!r}"
        )


__all__ = ["BATCHED", "NOT_BATCHED", "batches_seeds", "train_seeds"]
