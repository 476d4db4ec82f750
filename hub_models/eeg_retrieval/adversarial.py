"""The adversarial and cycle parts of MB2C's training: two generators, two critics, and their losses as plain functions.

One step of training: five times the image critic, the EEG-to-image generator, five times the EEG critic, the image-to-EEG generator,
then encoder and projectors on cycle plus contrastive loss. Critics and generators go to RMSprop (5e-5, alpha .9), the rest to Adam.
In the released code the generators get a second backward on top of the gradients of the main loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .configuration_mb2c import MB2CConfig


class Judgement(NamedTuple):
    """A critic's opinion: `validity` (n,), larger for real features, unbounded; `classes` (n, n_classes) logits of the concept."""

    validity: Tensor
    classes: Tensor


class Critic(nn.Module):
    """Linear, ReLU and two heads. Shapes: (n, D) to (n,) and (n, n_classes)."""

    def __init__(self, dim: int, hidden: int, n_classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(dim, hidden)
        self.validity = nn.Linear(hidden, 1)
        self.classes = nn.Linear(hidden, n_classes)

    def forward(self, features: Tensor) -> Judgement:
        hidden = self.hidden(features).relu()
        return Judgement(self.validity(hidden).squeeze(-1), self.classes(hidden))


class Generator(nn.Module):
    """Features of one kind, with noise, to features of the other. Shapes: (n, D) and (n, noise_dim) to (n, D)."""

    def __init__(self, dim: int, noise_dim: int, hidden: int, negative_slope: float, bounded: bool) -> None:
        super().__init__()
        self.noise_dim, self.negative_slope, self.bounded = noise_dim, negative_slope, bounded
        self.hidden = nn.Linear(dim + noise_dim, hidden)
        self.output = nn.Linear(hidden, dim)

    def forward(self, features: Tensor, noise: Tensor) -> Tensor:
        hidden = nn.functional.leaky_relu(self.hidden(torch.cat([features, noise], dim=-1)), self.negative_slope)
        output = self.output(hidden)
        return output.tanh() if self.bounded else output

    def with_noise(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """As :meth:`forward`, with standard normal noise drawn from `generator`, which is on the device of the features."""
        noise = torch.randn(len(features), self.noise_dim, generator=generator, device=features.device, dtype=torch.float32)
        return self(features, noise.to(features.dtype))


class MB2CAdversary(nn.Module):
    """Both generators and both critics, Xavier-normal weights, zero biases.

    With the published sizes 2,183,255 parameters a critic and 1,474,068 a generator. Training only; not part of a saved model.

    Attributes:
        to_image: generator of image features from EEG features, ends in a tanh.
        to_eeg: generator of EEG features from image features, unbounded.
        image_critic: judges image features.
        eeg_critic: judges EEG features.
    """

    def __init__(self, config: MB2CConfig, generator: torch.Generator) -> None:
        """Draw the weights from `generator` (on the CPU)."""
        super().__init__()
        dim, hidden = config.embed_dim, config.adversarial_dim
        self.to_image = Generator(dim, config.noise_dim, hidden, config.negative_slope, bounded=True)
        self.to_eeg = Generator(dim, config.noise_dim, hidden, config.negative_slope, bounded=False)
        self.image_critic = Critic(dim, hidden, config.n_classes)
        self.eeg_critic = Critic(dim, hidden, config.n_classes)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_normal_(module.weight, generator=generator)
                nn.init.zeros_(module.bias)


class CriticLoss(NamedTuple):
    """`total` is what to minimise; the parts: mean D(fake) - mean D(real), both cross-entropies, the penalty before its weight."""

    total: Tensor
    wasserstein: Tensor
    classification: Tensor
    penalty: Tensor


class MixedFakes(NamedTuple):
    """Features generated from mixed inputs: `features` (m, D), `labels` and `partner_labels` (m,), `lam` the weight of `labels`."""

    features: Tensor
    labels: Tensor
    partner_labels: Tensor
    lam: float


def adversarial_features(embeds: Tensor, kind: str) -> Tensor:
    """What generators and critics see of embeddings (n, D), by ``MB2CConfig.adversarial_features``."""
    if kind == "normalized":
        return nn.functional.normalize(embeds, dim=-1)
    if kind == "raw":
        return embeds
    raise ValueError(f"kind must be 'normalized' or 'raw', got {kind!r}")


def gradient_penalty(validity: Callable[[Tensor], Tensor], real: Tensor, fake: Tensor, generator: torch.Generator) -> Tensor:
    """Mean of (|gradient of the validity| - 1)^2 at points between real and fake, each at a place of its own (WGAN-GP).

    Args:
        validity: (n, D) to (n,): one number a row, which depends on that row alone.
        real: (n, D).
        fake: (n, D).
        generator: on the device of the features; draws n uniform places.

    Returns:
        Scalar, not yet weighted; for a linear critic w it is (|w| - 1)^2 whatever the points.

    Raises:
        ValueError: real and fake have different shapes.
    """
    if real.shape != fake.shape:
        raise ValueError(f"real and fake features must have one shape, got {tuple(real.shape)} and {tuple(fake.shape)}")
    place = torch.rand(len(real), 1, generator=generator, device=real.device, dtype=torch.float32).to(real.dtype)
    between = (place * real.detach() + (1 - place) * fake.detach()).requires_grad_(True)
    (gradient,) = torch.autograd.grad(validity(between).sum(), between, create_graph=True)
    return (torch.linalg.vector_norm(gradient, dim=-1) - 1).square().mean()


def critic_loss(
    critic: Critic,
    real: Tensor,
    fake: Tensor,
    labels: Tensor,
    generator: torch.Generator,
    penalty_weight: float = 10.0,
    class_weight: float = 1.0,
) -> CriticLoss:
    """-mean D(real) + CE(real) + mean D(fake) + CE(fake) + 10 * penalty; features are detached.

    Args:
        critic: what is trained.
        real: (n, D) features of one modality.
        fake: (n, D) features generated for the same concepts.
        labels: (n,) int64 concepts.
        generator: see :func:`gradient_penalty`.
        penalty_weight: ``MB2CConfig.gradient_penalty``.
        class_weight: ``MB2CConfig.class_weight``.
    """
    real, fake = real.detach(), fake.detach()
    on_real, on_fake = critic(real), critic(fake)
    wasserstein = on_fake.validity.mean() - on_real.validity.mean()
    classification = nn.functional.cross_entropy(on_real.classes, labels) + nn.functional.cross_entropy(on_fake.classes, labels)
    penalty = gradient_penalty(lambda features: critic(features).validity, real, fake, generator)
    return CriticLoss(wasserstein + class_weight * classification + penalty_weight * penalty, wasserstein, classification, penalty)


def generator_loss(
    critic: Critic,
    network: Generator,
    real: Tensor,
    fake: Tensor,
    labels: Tensor,
    mixed: MixedFakes | None = None,
    decay: float = 1e-3,
    class_weight: float = 1.0,
) -> Tensor:
    """-mean D(fake) + (CE(real) + CE(fake)) / 2 (+ mixup CE) + 1e-3 * sum of squared weights of the generator.

    Args:
        critic: judges; not to be stepped with this loss.
        network: the generator that made `fake`; its weights, not its biases, are decayed.
        real: (n, D); detach it where its encoder is not to learn from this.
        fake: (n, D), with its graph.
        labels: (n,) int64 concepts.
        mixed: features generated from mixed inputs, if any.
        decay: ``MB2CConfig.generator_decay``.
        class_weight: ``MB2CConfig.class_weight``.
    """
    on_real, on_fake = critic(real), critic(fake)
    classification = (nn.functional.cross_entropy(on_real.classes, labels) + nn.functional.cross_entropy(on_fake.classes, labels)) / 2
    if mixed is not None and len(mixed.features):
        classification = classification + mixup_cross_entropy(critic(mixed.features).classes, mixed.labels, mixed.partner_labels, mixed.lam)
    weights = network.hidden.weight.square().sum() + network.output.weight.square().sum()
    return -on_fake.validity.mean() + class_weight * classification + decay * weights


def mixup_cross_entropy(logits: Tensor, labels: Tensor, partner_labels: Tensor, lam: float) -> Tensor:
    """lam * CE(labels) + (1 - lam) * CE(partner labels), for logits (m, n_classes)."""
    cross_entropy = nn.functional.cross_entropy
    return lam * cross_entropy(logits, labels) + (1 - lam) * cross_entropy(logits, partner_labels)


def cycle_loss(
    adversary: MB2CAdversary,
    eeg: Tensor,
    image: Tensor,
    generator: torch.Generator,
    weight: float = 10.0,
    weighting: str = "released_code",
) -> Tensor:
    """Mean absolute difference after a round trip, EEG to image to EEG and image to EEG to image.

    Args:
        adversary: holds the generators.
        eeg: (n, D) features.
        image: (n, D) features.
        generator: draws the noise of four generations, those that start from EEG first.
        weight: ``MB2CConfig.cycle_weight``.
        weighting: ``MB2CConfig.cycle_weighting``; the validation of the released code uses what is called "paper" here.

    Raises:
        ValueError: `weighting` is neither "released_code" nor "paper".
    """
    if weighting not in ("released_code", "paper"):
        raise ValueError(f"weighting must be 'released_code' or 'paper', got {weighting!r}")
    eeg_again = adversary.to_eeg.with_noise(adversary.to_image.with_noise(eeg, generator), generator)
    image_again = adversary.to_image.with_noise(adversary.to_eeg.with_noise(image, generator), generator)
    once = (weight * nn.functional.l1_loss(eeg_again, eeg) + weight * nn.functional.l1_loss(image_again, image)) / 2
    return weight * once if weighting == "released_code" else once


__all__ = [
    "Critic",
    "CriticLoss",
    "Generator",
    "Judgement",
    "MB2CAdversary",
    "MixedFakes",
    "adversarial_features",
    "critic_loss",
    "cycle_loss",
    "generator_loss",
    "gradient_penalty",
    "mixup_cross_entropy",
]
