"""An ensemble as one module: the weights of M equal networks stacked, applied with one batched product a layer.

Values are (M, n, d), member first; (n, d) stands for the same rows in every member. Each layer computes for member m what the layer of
``torch.nn`` of the same name computes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Linear(nn.Module):
    """M times ``nn.Linear``: weight (M, n_out, n_in), bias (M, n_out)."""

    def __init__(self, members: int, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(members, n_out, n_in))
        self.bias = nn.Parameter(torch.empty(members, n_out))

    def forward(self, x: Tensor) -> Tensor:
        x = x.expand(len(self.weight), *x.shape[-2:])
        return torch.baddbmm(self.bias[:, None], x, self.weight.transpose(1, 2))


class LayerNorm(nn.Module):
    """M times ``nn.LayerNorm``: weight and bias (M, d); rows that the members share are normalised once."""

    def __init__(self, members: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(members, dim))
        self.bias = nn.Parameter(torch.empty(members, dim))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.bias[:, None], F.layer_norm(x, x.shape[-1:]), self.weight[:, None])


def normed_linear(norm: LayerNorm, linear: Linear, x: Tensor) -> Tensor:
    """``linear(norm(x))`` with the scale and shift of the norm taken into the weights of the layer.

    For features, which need no gradient, training then has two large products instead of three.
    """
    weight = linear.weight * norm.weight[:, None]
    bias = linear.bias[:, None] + norm.bias[:, None] @ linear.weight.transpose(1, 2)
    x = F.layer_norm(x, x.shape[-1:])
    return torch.baddbmm(bias, x.expand(len(weight), *x.shape[-2:]), weight.transpose(1, 2))


class Dropout(nn.Module):
    """Dropout whose mask can be given, so that members trained together drop what they would drop alone.

    `masks` of :meth:`Network.forward` are taken in the order of the layers: (M, n, d) of 0 and 1 / (1 - p).
    """

    def __init__(self, dim: int, p: float) -> None:
        super().__init__()
        self.dim, self.p = dim, p

    def forward(self, x: Tensor, masks: Iterator[Tensor] | None) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return F.dropout(x, self.p) if masks is None else x * next(masks)


class ResidualBlock(nn.Module):
    """x + [LayerNorm, Linear, GELU, Dropout, Linear, Dropout]."""

    def __init__(self, members: int, dim: int, ffn: int, p: float) -> None:
        super().__init__()
        self.norm = LayerNorm(members, dim)
        self.up = Linear(members, dim, ffn)
        self.up_dropout = Dropout(ffn, p)
        self.down = Linear(members, ffn, dim)
        self.down_dropout = Dropout(dim, p)

    def forward(self, x: Tensor, masks: Iterator[Tensor] | None) -> Tensor:
        inner = self.up_dropout(F.gelu(self.up(self.norm(x))), masks)
        return x + self.down_dropout(self.down(inner), masks)


class ResidualTrunk(nn.Module):
    """LayerNorm, Linear, GELU, residual blocks, LayerNorm: what both residual heads have in common."""

    def __init__(self, members: int, n_in: int, dim: int, ffn: int, blocks: int, p: float) -> None:
        super().__init__()
        self.input_norm = LayerNorm(members, n_in)
        self.input = Linear(members, n_in, dim)
        self.blocks = nn.ModuleList(ResidualBlock(members, dim, ffn, p) for _ in range(blocks))
        self.output_norm = LayerNorm(members, dim)

    def forward(self, x: Tensor, masks: Iterator[Tensor] | None) -> Tensor:
        x = F.gelu(normed_linear(self.input_norm, self.input, x))
        for block in self.blocks:
            x = block(x, masks)
        return self.output_norm(x)


class MLPHead(nn.Module):
    """The head of the paper (released code, "mlp"): trunk, Linear, sigmoid. 6,848,530 parameters a member at 9,219 features."""

    def __init__(self, members: int, n_in: int, n_out: int, dim: int, ffn: int, blocks: int, p: float) -> None:
        super().__init__()
        self.trunk = ResidualTrunk(members, n_in, dim, ffn, blocks, p)
        self.output = Linear(members, dim, n_out)

    def forward(self, x: Tensor, masks: Iterator[Tensor] | None = None) -> tuple[Tensor, None]:
        return torch.sigmoid(self.output(self.trunk(x, masks))), None


class PrototypeHead(nn.Module):
    """The released code's "ordinal_prototype": each question has a prototype for no, somewhat and yes.

    Logits are scaled cosines of the trunk's output with the prototypes plus a bias, the scale exp(temperature) within 1 to 50. The score is
    .75 x the expected value of the class + .25 x a sigmoid of a linear output. The start of scale (10) and prototypes (N(0, 1 / dim)) is
    ours: the sources do not state it.
    """

    def __init__(self, members: int, n_in: int, n_out: int, dim: int, ffn: int, blocks: int, p: float) -> None:
        super().__init__()
        self.trunk = ResidualTrunk(members, n_in, dim, ffn, blocks, p)
        self.output = Linear(members, dim, n_out)
        self.prototypes = nn.Parameter(torch.empty(members, n_out * 3, dim))
        self.prototype_bias = nn.Parameter(torch.empty(members, n_out * 3))
        self.temperature = nn.Parameter(torch.empty(members, 1))

    def forward(self, x: Tensor, masks: Iterator[Tensor] | None = None) -> tuple[Tensor, Tensor]:
        hidden = self.trunk(x, masks)
        cosines = F.normalize(hidden, dim=-1) @ F.normalize(self.prototypes, dim=-1).transpose(1, 2)
        scale = self.temperature.exp().clamp(1, 50)[:, :, None]
        logits = (scale * cosines + self.prototype_bias[:, None]).unflatten(-1, (-1, 3))
        values = torch.tensor([0.0, 0.5, 1.0], device=x.device, dtype=logits.dtype)
        expected = (logits.softmax(-1) * values).sum(-1)
        return 0.75 * expected + 0.25 * torch.sigmoid(self.output(hidden)), logits


class BaselineHead(nn.Module):
    """The single-encoder baseline of table 6: Linear 512, LayerNorm, GELU, Dropout .1, Linear 256, the same, Linear, sigmoid."""

    SIZES = (512, 256)

    def __init__(self, members: int, n_in: int, n_out: int) -> None:
        super().__init__()
        wide, narrow = self.SIZES
        self.first, self.first_norm, self.first_dropout = Linear(members, n_in, wide), LayerNorm(members, wide), Dropout(wide, 0.1)
        self.second, self.second_norm, self.second_dropout = Linear(members, wide, narrow), LayerNorm(members, narrow), Dropout(narrow, 0.1)
        self.output = Linear(members, narrow, n_out)

    def forward(self, x: Tensor, masks: Iterator[Tensor] | None = None) -> tuple[Tensor, None]:
        x = self.first_dropout(F.gelu(self.first_norm(self.first(x))), masks)
        x = self.second_dropout(F.gelu(self.second_norm(self.second(x))), masks)
        return torch.sigmoid(self.output(x)), None


def start_weights(module: nn.Module, seeds: list[int], index: int) -> dict[str, Tensor]:
    """Start weights of one layer by name; those of a member are drawn from its seed and the layer's number, whatever other members there are.

    As ``torch.nn`` does on construction: U(-1/sqrt(fan_in), 1/sqrt(fan_in)) for Linear weights and biases, norms 1 and 0.

    Args:
        module: a layer, or a :class:`PrototypeHead` for the parameters of its own. seeds: one a member. index: number of the layer.
    """
    generators = [torch.Generator().manual_seed((seed << 16) + index) for seed in seeds]
    if isinstance(module, Linear):
        bound = 1 / math.sqrt(module.weight.shape[-1])
        own = {"weight": module.weight.shape[1:], "bias": module.bias.shape[1:]}
        return {name: torch.stack([(torch.rand(shape, generator=g) * 2 - 1) * bound for g in generators]) for name, shape in own.items()}
    if isinstance(module, LayerNorm):
        return {"weight": torch.ones(module.weight.shape), "bias": torch.zeros(module.bias.shape)}
    if isinstance(module, PrototypeHead):
        shape = module.prototypes.shape[1:]
        return {
            "prototypes": torch.stack([torch.randn(shape, generator=g) for g in generators]) / math.sqrt(shape[-1]),
            "prototype_bias": torch.zeros(module.prototype_bias.shape),
            "temperature": torch.full(module.temperature.shape, math.log(10)),
        }
    return {}


__all__ = ["BaselineHead", "Dropout", "LayerNorm", "Linear", "MLPHead", "PrototypeHead", "start_weights"]
