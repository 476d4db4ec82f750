"""One training run under way: its batches and random numbers, its steps, its validation, its checkpoint.

All random numbers of an epoch (order, dropout, noise, edits) come from the run's seed and the epoch's number, so a run that goes on from a
checkpoint needs no state of a generator and ends, on the CPU, with the weights of one that was never stopped, to the bit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from decodehub.core.files import canonical_json
from decodehub.hub_models.eeg_retrieval import BlurSelector, EEGRetrievalModel
from decodehub.hub_models.eeg_retrieval import adversarial as adv
from decodehub.hub_models.eeg_retrieval.augment import Mixup, mixup, smooth_eeg

from .negatives import EditSampler, HardNegatives, contrast
from .settings import TrainingSettings, make_optimizer, rate_of

CRITIC_STEPS = 5
ADVERSARY_LR, ADVERSARY_ALPHA = 5e-5, 0.9  # RMSprop of MB2C's critics and generators
MEDIUM = 1  # position of the medium blur among low, medium, high
BLURRED = ("ubp", "ats")  # models whose targets come in three blurs, chosen sample by sample
EDITS = 1  # number of the stream of random numbers that draws edits; 0 is that of everything else


class Data(NamedTuple):
    """Training data of one person, on the device.

    Attributes:
        eeg: (n, C, T). targets: by part, (n, d) or, with three blurs, (n, 3, d). concepts: (n,) int. subject: number of the person.
        edits: features (m, d) or (m, 3, d) by part, of `sampler`, which draws them; None without hard negatives.
    """

    eeg: Tensor
    targets: dict[str, Tensor]
    concepts: np.ndarray
    subject: int
    edits: dict[str, Tensor]
    sampler: EditSampler | None


def make_data(
    eeg: np.ndarray,
    targets: Mapping[str, np.ndarray],
    concepts: np.ndarray,
    subject: int,
    negatives: HardNegatives | None,
    per_image: int,
    device: torch.device,
) -> Data:
    """Training data on `device`: accelerators hold all of it (4 GB at most), on the CPU nothing is copied that need not be."""

    def move(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(device)

    edits = {} if negatives is None else {name: move(array) for name, array in negatives.features.items()}
    sampler = None if negatives is None else EditSampler(negatives.negative_of, negatives.image_of, per_image)
    return Data(move(eeg), {name: move(array) for name, array in targets.items()}, concepts, subject, edits, sampler)


class Pairs(NamedTuple):
    """A batch: EEG (b, C, T), targets (b, d) by part, and edits (k, d) by part or None."""

    eeg: Tensor
    targets: dict[str, Tensor]
    edits: dict[str, Tensor] | None


class Draws(NamedTuple):
    """Random numbers of one epoch, and what the first of them give: the batches, positions among the rows that are trained on."""

    order: torch.Generator
    noise: torch.Generator
    edits: torch.Generator
    batches: list[Tensor]


class Loop:
    """One run under way: everything that a checkpoint has to hold, and the steps."""

    def __init__(
        self,
        model: EEGRetrievalModel,
        data: Data,
        chosen: np.ndarray,
        held_out: np.ndarray,
        settings: TrainingSettings,
        seed: int,
        accelerator: Any | None = None,
    ) -> None:
        self.settings, self.seed, self.data, self.accelerator, self.core = settings, seed, data, accelerator, model
        self.device = data.eeg.device
        model.to(self.device)
        config = model.config
        self.kind = config.model_type
        self.losses: list[float] = []
        self.validation_losses: list[float] = []
        self.best: dict[str, Tensor] = {}
        self.optimizers = {"main": make_optimizer(model, settings)}
        self.selector: BlurSelector | None = None
        if self.kind in BLURRED:
            self.selector = BlurSelector(len(chosen), config.blur_levels, config.confidence_rate, config.confidence_z)
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
        self.chosen, self.held_out = chosen, held_out
        self.rows = torch.from_numpy(chosen)
        self.labels = torch.from_numpy(np.unique(data.concepts[chosen], return_inverse=True)[1]).to(self.device)
        self.smoothed: Tensor | None = None  # EEG of `chosen`, where the method changes it once and for all
        if self.kind == "neurobridge" and config.smoothing_applied == "released_code":
            generator = self._generator(0, self.device)
            self.smoothed = smooth_eeg(data.eeg[self.rows.to(self.device)], generator, config.smoothing_probability, config.smoothing_width)

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

    @property
    def finished(self) -> bool:
        """Whether nothing is left to train."""
        return self.epoch >= self.settings.epochs or self.exhausted

    def _generator(self, epoch: int, device: torch.device | str, stream: int = 0) -> torch.Generator:
        state = np.random.SeedSequence([self.seed, epoch, *([stream] if stream else [])]).generate_state(1, np.uint64)[0]
        return torch.Generator(device).manual_seed(int(state >> np.uint64(1)))

    # ------------------------------------------------------------------------------------------------------------------------- one epoch

    def begin_epoch(self) -> Draws:
        """Random numbers and batches of the next epoch; dropout is to be seeded with ``order.initial_seed()``."""
        order = self._generator(self.epoch + 1, "cpu")
        n, size = len(self.rows), min(self.settings.batch_size, len(self.rows))
        index = torch.randperm(n, generator=order) if self.settings.shuffle else torch.arange(n)
        batches = [batch for batch in index.split(size) if len(batch) == size or (not self.settings.drop_last and len(batch) > 1)]
        return Draws(order, self._generator(self.epoch + 1, self.device), self._generator(self.epoch + 1, "cpu", EDITS), batches)

    def one_epoch(self) -> float:
        """Train one epoch and validate; returns the mean training loss."""
        draws = self.begin_epoch()
        self.model.train()
        losses = []
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):  # dropout has the global generator only
            torch.manual_seed(draws.order.initial_seed())
            for i, batch in enumerate(draws.batches):
                rate = rate_of(self.settings, self.epoch, i, len(draws.batches))
                for group in self.optimizers["main"].param_groups:
                    group["lr"] = rate
                losses.append(self._step(batch, draws))
        return self.end_epoch(torch.stack(losses))

    def end_epoch(self, losses: Tensor) -> float:
        """Take in the losses of an epoch's steps (n_steps,), put blur labels in force and validate; returns the mean loss.

        Raises:
            ValueError: it is not finite.
        """
        loss = float(losses.mean())
        if not math.isfinite(loss):
            raise ValueError(
                f"the loss of epoch {self.epoch + 1}, seed {self.seed}, is {loss}: lower the learning rate, or look for outliers in the EEG"
            )
        if self.selector is not None:
            self.selector.end_epoch()
        self.losses.append(loss)
        if len(self.held_out):
            self.validation_losses.append(self._validate())
            if self.validation_losses[-1] < min(self.validation_losses[:-1], default=math.inf):
                self.best = {name: value.detach().cpu().clone() for name, value in self.core.state_dict().items()}
        return loss

    def pairs(self, batch: Tensor, draws: Draws) -> Pairs:
        """The batch at positions `batch` (b,) of the rows that are trained on: blurs chosen, EEG smoothed, edits drawn."""
        config, position, index = self.core.config, batch.to(self.device), self.rows[batch]
        rows = index.to(self.device)
        eeg = self.data.eeg[rows] if self.smoothed is None else self.smoothed[position]
        targets, levels = {name: value[rows] for name, value in self.data.targets.items()}, None
        if self.selector is not None:
            levels = self.selector.labels[batch].to(self.device)
            targets = {name: value[torch.arange(len(batch), device=self.device), levels] for name, value in targets.items()}
        if self.kind == "neurobridge" and config.smoothing_applied == "every_epoch":
            eeg = smooth_eeg(eeg, draws.noise, config.smoothing_probability, config.smoothing_width)
        return Pairs(eeg, targets, self._edits(index, levels, draws.edits))

    def _edits(self, index: Tensor, levels: Tensor | None, generator: torch.Generator) -> dict[str, Tensor] | None:
        if self.data.sampler is None:
            return None
        drawn = self.data.sampler.draw(index.numpy(), generator)
        rows, of = drawn.rows.to(self.device), drawn.of.to(self.device)
        # An edit is shown as blurred as the image that it was made from.
        features = {
            name: value[rows] if value.ndim == 2 or levels is None else value[rows, levels[of]] for name, value in self.data.edits.items()
        }
        return features if len(rows) else None

    def _step(self, batch: Tensor, draws: Draws) -> Tensor:
        index, mixed = batch.to(self.device), None
        eeg, targets, edits = self.pairs(batch, draws)
        if self.adversary is not None:
            config = self.core.config
            mixed = mixup(eeg, targets["image"], self.labels[index], draws.order, config.mixup_ratio, config.mixup_alpha)
            eeg, targets = torch.cat([eeg, mixed.eeg]), {"image": torch.cat([targets["image"], mixed.image_features])}
        output = self._forward(eeg, targets, edits)
        loss = output.loss
        if self.selector is not None:
            self.selector.update(batch, output.logits_per_eeg.diagonal())
        if mixed is not None:
            loss = loss + self._adversarial_step(output, mixed, self.labels[index], draws.noise)
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

    def _forward(self, eeg: Tensor, targets: Mapping[str, Tensor], edits: Mapping[str, Tensor] | None = None) -> Any:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
            return contrast(self.model, self.core, eeg, targets, self.data.subject, edits)

    def _backward(self, loss: Tensor) -> None:
        loss.backward() if self.accelerator is None else self.accelerator.backward(loss)

    @torch.no_grad()
    def _validate(self) -> float:
        """Contrastive loss on the held-out concepts, medium blur, without dropout; mean over batches, weighted by their size; without edits."""
        self.model.eval()
        total, n = 0.0, len(self.held_out)
        for rows in torch.from_numpy(self.held_out).to(self.device).chunk(math.ceil(n / self.settings.batch_size)):
            targets = {name: value[rows][:, MEDIUM] if value.ndim == 3 else value[rows] for name, value in self.data.targets.items()}
            total += float(self._forward(self.data.eeg[rows], targets).loss) * len(rows)
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


__all__ = ["BLURRED", "Data", "Draws", "Loop", "Pairs", "make_data"]
