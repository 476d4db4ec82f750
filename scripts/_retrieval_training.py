"""The training loop of the EEG-to-image retrieval models: settings of each method, batches, checkpoints, selection.

A run sees training data only; there is no way to hand it test data. What it writes:

checkpoint.safetensors   while it trains: weights, optimisers, blur labels, the best weights so far; as metadata, how far the run is
model/                   the selected weights with their code, for ``from_pretrained``
run.json                 what was trained, how, and the losses; written last

All random numbers of an epoch (order, dropout, noise) come from the run's seed and the epoch's number, so a run that goes on from a
checkpoint needs no state of a generator and ends, on the CPU, with the weights of one that was never stopped, to the bit.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn
from tqdm import tqdm

from decodehub.files import canonical_json, sha256_json, write_bytes, write_json
from decodehub.hub_models.eeg_retrieval import BlurSelector, EEGRetrievalModel
from decodehub.hub_models.eeg_retrieval import adversarial as adv
from decodehub.hub_models.eeg_retrieval.augment import Mixup, mixup, smooth_eeg

from ._retrieval_settings import TrainingSettings, make_optimizer, rate_of, settings_for

CHECKPOINT, MODEL, RUN = "checkpoint.safetensors", "model", "run.json"
CRITIC_STEPS = 5
ADVERSARY_LR, ADVERSARY_ALPHA = 5e-5, 0.9  # RMSprop of MB2C's critics and generators
MEDIUM = 1  # position of the medium blur among low, medium, high


@dataclass
class TrainedRun:
    """A finished run.

    Attributes:
        model: with the selected weights, in evaluation mode.
        losses: mean training loss of each epoch, in nats plus what else the method minimises.
        validation_losses: contrastive loss on the held-out concepts after each epoch; empty without a validation set.
        epoch: number, from 1, of the epoch whose weights were selected.
        train_index: rows that were trained on. validation_index: rows that were held out.
        metadata: content of ``run.json``.
    """

    model: EEGRetrievalModel
    losses: list[float]
    validation_losses: list[float]
    epoch: int
    train_index: np.ndarray
    validation_index: np.ndarray
    metadata: dict[str, Any] = field(default_factory=dict)


def split_by_concept(concepts: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on and rows to validate on, without a concept in common; at least one concept on either side.

    Raises:
        ValueError: there are fewer than two concepts.
    """
    names = np.unique(concepts)
    if len(names) < 2:
        raise ValueError(f"a validation split by concept needs at least 2 concepts, found {len(names)}")
    n = min(max(1, round(share * len(names))), len(names) - 1)
    held_out = np.isin(concepts, np.random.default_rng([seed, 1]).permutation(names)[:n])
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def train(
    model: EEGRetrievalModel,
    eeg: np.ndarray,
    targets: Mapping[str, np.ndarray],
    concepts: np.ndarray,
    subject: int,
    settings: TrainingSettings,
    seed: int,
    out: Path,
    accelerator: Any | None = None,
    progress: bool = True,
    *,
    resume: bool = True,
    checkpoint_every: int = 1,
    on_epoch: Callable[[int, float], None] | None = None,
) -> TrainedRun:
    """Train one model on the EEG of one person.

    Args:
        model: freshly made (its start weights are part of the run), or of any weights to go on from.
        eeg: (n, C, T) float32 training epochs, whitened; single trials for ATM, means over repetitions for the others.
        targets: by name of ``config.image_inputs``: (n, d) float features of the image of each epoch; for UBP and ATS (n, 3, d), low,
            medium and high blur; for ATM also "text" (n, d) unless its weight is 0.
        concepts: (n,) int, the concept of each epoch; any numbers.
        subject: number of the person, from 1.
        settings: see :func:`settings_for`.
        seed: 0 or more; decides order, dropout, noise and the validation split, not the start weights of `model`.
        out: folder of the run.
        accelerator: an ``accelerate.Accelerator`` with one process, for its device; None trains where the model is.
        progress: show a bar.
        resume: go on from the checkpoint in `out`, if there is one; False starts anew.
        checkpoint_every: epochs from one checkpoint to the next; the last epoch always has one.
        on_epoch: called with the number, from 1, and the training loss of each epoch, after its checkpoint.

    Raises:
        ValueError: shapes that do not fit, a checkpoint of another run, several processes, a loss that is not finite.
    """
    if accelerator is not None and accelerator.num_processes > 1:
        raise ValueError(f"one run trains in one process, found {accelerator.num_processes}: give each process runs of its own")
    _check(model, eeg, targets, concepts, subject, seed)
    chosen, held_out = np.arange(len(eeg)), np.arange(0)
    if settings.selection == "validation":
        chosen, held_out = split_by_concept(concepts, settings.validation_concepts, seed)
    run = {
        "model_type": model.config.model_type,
        "subject": subject,
        "seed": seed,
        "settings": dataclasses.asdict(settings) | {"betas": list(settings.betas)},
        "config": _config_of(model),
        "data": _hash_arrays({"eeg": eeg, "concepts": concepts, **targets}),
    }
    run["settings_hash"] = sha256_json(run)
    out = Path(out)
    started = time.perf_counter()
    loop = _Loop(model, eeg, targets, concepts, chosen, held_out, subject, settings, seed, accelerator)
    if resume and (out / CHECKPOINT).is_file():
        loop.load(out / CHECKPOINT, str(run["settings_hash"]))
    bar = tqdm(
        total=settings.epochs, initial=loop.epoch, desc=f"{model.config.model_type} sub-{subject:02d} seed-{seed}", disable=not progress
    )
    with bar:
        while loop.epoch < settings.epochs and not loop.exhausted:
            loss = loop.one_epoch()
            if loop.epoch % checkpoint_every == 0 or loop.epoch == settings.epochs or loop.exhausted:
                write_bytes(out / CHECKPOINT, loop.state(str(run["settings_hash"])))
            bar.set_postfix(loss=f"{loss:.3f}")
            bar.update()
            if on_epoch is not None:
                on_epoch(loop.epoch, loss)
    epoch = loop.select()
    loop.core.eval().save_pretrained(out / MODEL)
    metadata = run | {
        "epochs": loop.epoch,
        "selected_epoch": epoch,
        "selection": settings.selection,
        "losses": loop.losses,
        "validation_losses": loop.validation_losses,
        "n_train": len(chosen),
        "n_validation": len(held_out),
        "device": loop.device.type,
        "precision": "bfloat16" if loop.bfloat16 else "float32",
        "seconds": round(time.perf_counter() - started, 3),
    }
    write_json(out / RUN, metadata)
    return TrainedRun(loop.core, loop.losses, loop.validation_losses, epoch, chosen, held_out, metadata)


class _Loop:
    """One run under way: everything that a checkpoint has to hold, and the steps."""

    def __init__(
        self,
        model: EEGRetrievalModel,
        eeg: np.ndarray,
        targets: Mapping[str, np.ndarray],
        concepts: np.ndarray,
        chosen: np.ndarray,
        held_out: np.ndarray,
        subject: int,
        settings: TrainingSettings,
        seed: int,
        accelerator: Any | None,
    ) -> None:
        self.settings, self.seed, self.subject, self.accelerator, self.core = settings, seed, subject, accelerator, model
        self.device = model.device if accelerator is None else accelerator.device
        model.to(self.device)
        config = model.config
        self.kind = config.model_type
        self.losses: list[float] = []
        self.validation_losses: list[float] = []
        self.best: dict[str, Tensor] = {}
        self.optimizers = {"main": make_optimizer(model, settings)}
        self.selector = BlurSelector(len(chosen), config.blur_levels, config.confidence_rate, config.confidence_z) if self.blurs else None
        self.adversary: adv.MB2CAdversary | None = None
        if self.kind == "mb2c":
            self.adversary = adv.MB2CAdversary(config, self._generator(0, "cpu")).to(self.device)
            for name, parts in (("critics", ("image_critic", "eeg_critic")), ("generators", ("to_image", "to_eeg"))):
                parameters = [p for part in parts for p in getattr(self.adversary, part).parameters()]
                self.optimizers[name] = torch.optim.RMSprop(parameters, lr=ADVERSARY_LR, alpha=ADVERSARY_ALPHA)
        self.model: nn.Module = model
        if accelerator is not None:
            self.model, *prepared = accelerator.prepare(model, *self.optimizers.values())
            self.optimizers = dict(zip(self.optimizers, prepared))
        self.bfloat16 = settings.precision == "bfloat16" and self.device.type == "cuda" and torch.cuda.is_bf16_supported()

        def rows(array: np.ndarray, index: np.ndarray) -> Tensor:
            # Accelerators hold all training data (4 GB at most); on the CPU nothing is copied that need not be.
            whole = array if len(index) == len(array) else array[index]
            return torch.from_numpy(np.require(whole, requirements=["C", "W"])).to(self.device)

        labels = np.unique(concepts[chosen], return_inverse=True)[1]
        self.eeg, self.held_eeg = rows(eeg, chosen), rows(eeg, held_out)
        self.targets = {name: rows(array, chosen) for name, array in targets.items()}
        self.held_targets = {name: rows(array, held_out) for name, array in targets.items()}
        self.labels = torch.from_numpy(labels).to(self.device)
        if self.kind == "neurobridge" and config.smoothing_applied == "released_code":
            generator = self._generator(0, self.device)
            self.eeg = smooth_eeg(self.eeg, generator, config.smoothing_probability, config.smoothing_width)

    @property
    def blurs(self) -> bool:
        """Whether targets come in three blurs, chosen sample by sample."""
        return self.kind in ("ubp", "ats")

    @property
    def epoch(self) -> int:
        """Epochs done."""
        return len(self.losses)

    @property
    def exhausted(self) -> bool:
        """Whether patience has run out."""
        best, since = math.inf, 0
        for loss in self.validation_losses or self.losses:
            best, since = (loss, 0) if loss < best - self.settings.min_delta else (best, since + 1)
        return 0 < self.settings.patience <= since

    def _generator(self, epoch: int, device: torch.device | str) -> torch.Generator:
        state = np.random.SeedSequence([self.seed, epoch]).generate_state(1, np.uint64)[0]
        return torch.Generator(device).manual_seed(int(state >> np.uint64(1)))

    # ------------------------------------------------------------------------------------------------------------------------- one epoch

    def one_epoch(self) -> float:
        """Train one epoch and validate; returns the mean training loss."""
        order = self._generator(self.epoch + 1, "cpu")
        noise = self._generator(self.epoch + 1, self.device)
        n, size = len(self.eeg), min(self.settings.batch_size, len(self.eeg))
        index = torch.randperm(n, generator=order) if self.settings.shuffle else torch.arange(n)
        batches = [batch for batch in index.split(size) if len(batch) == size or (not self.settings.drop_last and len(batch) > 1)]
        self.model.train()
        losses = []
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):  # dropout has the global generator only
            torch.manual_seed(order.initial_seed())
            for i, batch in enumerate(batches):
                rate = rate_of(self.settings, self.epoch, i, len(batches))
                for group in self.optimizers["main"].param_groups:
                    group["lr"] = rate
                losses.append(self._step(batch, order, noise))
        loss = float(torch.stack(losses).mean())
        if not math.isfinite(loss):
            raise ValueError(f"the loss of epoch {self.epoch + 1} is {loss}: lower the learning rate, or look for outliers in the EEG")
        if self.selector is not None:
            self.selector.end_epoch()
        self.losses.append(loss)
        if len(self.held_eeg):
            self.validation_losses.append(self._validate())
            if self.validation_losses[-1] < min(self.validation_losses[:-1], default=math.inf):
                self.best = {name: value.detach().cpu().clone() for name, value in self.core.state_dict().items()}
        return loss

    def _step(self, batch: Tensor, order: torch.Generator, noise: torch.Generator) -> Tensor:
        index = batch.to(self.device)
        eeg, images = self.eeg[index], {name: value[index] for name, value in self.targets.items()}
        config, mixed = self.core.config, None
        if self.selector is not None:
            levels = self.selector.labels[batch].to(self.device)
            images = {name: value[torch.arange(len(batch), device=self.device), levels] for name, value in images.items()}
        if self.kind == "neurobridge" and config.smoothing_applied == "every_epoch":
            eeg = smooth_eeg(eeg, noise, config.smoothing_probability, config.smoothing_width)
        if self.adversary is not None:
            mixed = mixup(eeg, images["image"], self.labels[index], order, config.mixup_ratio, config.mixup_alpha)
            eeg, images = torch.cat([eeg, mixed.eeg]), {"image": torch.cat([images["image"], mixed.image_features])}
        output = self._forward(eeg, images)
        loss = output.loss
        if self.selector is not None:
            self.selector.update(batch, output.logits_per_eeg.diagonal())
        if mixed is not None:
            loss = loss + self._adversarial_step(output, mixed, self.labels[index], noise)
        optimizer = self.optimizers["main"]
        optimizer.zero_grad()
        self._backward(loss)
        if self.settings.grad_clip:
            nn.utils.clip_grad_norm_(self.core.parameters(), self.settings.grad_clip)
        optimizer.step()
        return loss.detach()

    def _adversarial_step(self, output: Any, mixed: Mixup, labels: Tensor, noise: torch.Generator) -> Tensor:
        """Critics and generators in turn, in MB2C's order; returns the cycle loss, for encoder and projectors.

        Gradients are cleared before each step; the released code lets those of the main loss add up in the generators.
        """
        assert self.adversary is not None
        config, network, n = self.core.config, self.adversary, len(labels)
        embeds = [adv.adversarial_features(x.float(), config.adversarial_features) for x in (output.eeg_embeds, output.image_embeds)]
        eeg, image = (x[:n] for x in embeds)
        critics, generators = self.optimizers["critics"], self.optimizers["generators"]
        for critic, maker, (source, real) in (
            (network.image_critic, network.to_image, embeds),
            (network.eeg_critic, network.to_eeg, embeds[::-1]),
        ):
            source, real = source.detach(), real[:n].detach()
            for _ in range(CRITIC_STEPS):
                with torch.no_grad():
                    fake = maker.with_noise(source[:n], noise)
                critics.zero_grad()
                total = adv.critic_loss(critic, real, fake, labels, noise, config.gradient_penalty, config.class_weight).total
                self._backward(total)
                critics.step()
            fakes = maker.with_noise(source, noise)
            mixed_fakes = adv.MixedFakes(fakes[n:], labels[mixed.index], labels[mixed.partner], mixed.lam)
            generators.zero_grad()
            total = adv.generator_loss(critic, maker, real, fakes[:n], labels, mixed_fakes, config.generator_decay, config.class_weight)
            self._backward(total)
            generators.step()
        return adv.cycle_loss(network, eeg, image, noise, config.cycle_weight, config.cycle_weighting)

    def _forward(self, eeg: Tensor, targets: Mapping[str, Tensor]) -> Any:
        images = {name: targets[name] for name in self.core.config.image_inputs}
        text = {"text_features": targets["text"]} if "text" in targets else {}
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
            return self.model(eeg, images, subject=self.subject, return_loss=True, **text)

    def _backward(self, loss: Tensor) -> None:
        loss.backward() if self.accelerator is None else self.accelerator.backward(loss)

    @torch.no_grad()
    def _validate(self) -> float:
        """Contrastive loss on the held-out concepts, medium blur, without dropout; mean over batches, weighted by their size."""
        self.model.eval()
        total, n = 0.0, len(self.held_eeg)
        for rows in torch.arange(n, device=self.device).chunk(math.ceil(n / self.settings.batch_size)):
            targets = {name: value[rows][:, MEDIUM] if value.ndim == 3 else value[rows] for name, value in self.held_targets.items()}
            total += float(self._forward(self.held_eeg[rows], targets).loss) * len(rows)
        return total / n

    def select(self) -> int:
        """Load the weights that the settings select; returns the number of their epoch, from 1."""
        if self.best:
            self.core.load_state_dict(self.best)
        return 1 + int(np.argmin(self.validation_losses)) if self.best else self.epoch

    # ----------------------------------------------------------------------------------------------------------------------- checkpoints

    def state(self, settings_hash: str) -> bytes:
        """The run as the bytes of one safetensors file."""
        tensors = {f"model/{name}": value for name, value in self.core.state_dict().items()}
        tensors |= {f"best/{name}": value for name, value in self.best.items()}
        if self.adversary is not None:
            tensors |= {f"adversary/{name}": value for name, value in self.adversary.state_dict().items()}
        for name, optimizer in self.optimizers.items():
            for i, values in optimizer.state_dict()["state"].items():
                tensors |= {f"optimizer/{name}/{i}/{key}": torch.as_tensor(value) for key, value in values.items() if value is not None}
        if self.selector is not None:
            tensors |= {f"blur/{key}": value for key, value in self.selector.state_dict().items() if isinstance(value, Tensor)}
        about = {"settings_hash": settings_hash, "losses": self.losses, "validation_losses": self.validation_losses}
        cpu = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
        return save(cpu, {"run": canonical_json(about)})

    def load(self, path: Path, settings_hash: str) -> None:
        """Go on from a checkpoint.

        Raises:
            ValueError: it is of a run with other settings, data or seed, or it cannot be read.
        """
        try:
            with safe_open(path, framework="pt") as f:
                about = json.loads((f.metadata() or {})["run"])
                tensors = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118
        except Exception as error:  # safetensors has its own error class for damaged files
            raise ValueError(f"{path} cannot be read as a checkpoint ({error}): start anew with --no-resume") from None
        if about["settings_hash"] != settings_hash:
            raise ValueError(f"{path} is of a run with other settings, data or seed: choose another folder, or start anew with --no-resume")

        def part(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

        self.core.load_state_dict(part("model/"))
        self.best, self.losses, self.validation_losses = part("best/"), about["losses"], about["validation_losses"]
        if self.adversary is not None:
            self.adversary.load_state_dict(part("adversary/"))
        for name, optimizer in self.optimizers.items():
            state: dict[int, dict[str, Tensor]] = {}
            for key, value in part(f"optimizer/{name}/").items():
                i, _, what = key.partition("/")
                state.setdefault(int(i), {})[what] = value
            optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        if self.selector is not None:
            self.selector.load_state_dict({"levels": self.selector.levels, **part("blur/")})


def _config_of(model: EEGRetrievalModel) -> dict[str, Any]:
    """The configuration as JSON gives it back, without what saving a model adds."""
    added = ("transformers_version", "_name_or_path", "auto_map", "architectures", "dtype")
    return json.loads(canonical_json({key: value for key, value in model.config.to_dict().items() if key not in added}))


def _hash_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(canonical_json([name, list(array.shape), str(array.dtype)]).encode())
        digest.update(np.ascontiguousarray(array).data)
    return "sha256:" + digest.hexdigest()


def _check(
    model: EEGRetrievalModel, eeg: np.ndarray, targets: Mapping[str, np.ndarray], concepts: np.ndarray, subject: int, seed: int
) -> None:
    """Raise ValueError for what does not fit together, in words."""
    config, n = model.config, len(eeg)
    if eeg.ndim != 3 or eeg.shape[1:] != (config.n_channels, config.n_times) or eeg.dtype != np.float32:
        raise ValueError(f"eeg has shape {eeg.shape}, {eeg.dtype}; expected (n, {config.n_channels}, {config.n_times}) float32")
    if n < 2 or concepts.shape != (n,) or concepts.dtype.kind not in "iu":
        raise ValueError(f"concepts has shape {concepts.shape}, {concepts.dtype}; expected ({n},) whole numbers, and at least 2 epochs")
    if subject < 1 or seed < 0:
        raise ValueError(f"subject must be 1 or more and seed 0 or more, got {subject} and {seed}")
    if not np.isfinite(eeg).all():
        raise ValueError(f"eeg has NaN or infinite values, the first in epoch {int(np.argmin(np.isfinite(eeg).all(axis=(1, 2))))}")
    wanted: dict[str, tuple[int, ...]] = {
        name: (n, 3, dim) if config.model_type in ("ubp", "ats") else (n, dim) for name, dim in config.image_inputs.items()
    }
    if config.model_type == "atm" and config.text_weight > 0:
        wanted["text"] = (n, config.text_dim)
    if set(targets) != set(wanted):
        raise ValueError(f"targets has the parts {sorted(targets)}, {config.model_type} needs {sorted(wanted)}")
    for name, shape in wanted.items():
        if targets[name].shape != shape:
            levels = ": low, medium and high blur" if len(shape) == 3 else ""
            raise ValueError(f"targets[{name!r}] has shape {targets[name].shape}, expected {shape}{levels}")
    if config.model_type == "mb2c" and (found := len(np.unique(concepts))) > config.n_classes:
        raise ValueError(f"there are {found} concepts and n_classes is {config.n_classes}: make the model with n_classes={found}")


__all__ = ["TrainedRun", "TrainingSettings", "settings_for", "split_by_concept", "train"]
