"""Parts that several EEG-to-image retrieval models are built from, and the three ways in which their weights start."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from transformers import initialization as init


class ResidualHead(nn.Module):
    """Linear to D, then x + Dropout(Linear(GELU(x))), then LayerNorm (eps 1e-5).

    The projector of NICE, MB2C and ATM (dropout .5; .3 on MB2C's image side), and the second half of :class:`EEGProject`.

    Shapes: (..., n_inputs) to (..., D).
    """

    def __init__(self, n_inputs: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.input = nn.Linear(n_inputs, dim)
        self.hidden = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(dim)

    def forward(self, values: Tensor) -> Tensor:
        x = self.input(values)
        return self.norm(x + self.dropout(self.hidden(nn.functional.gelu(x))))


class EEGProject(ResidualHead):
    """The EEG encoder of UBP, ATS, HyFI and NeuroBridge: the epoch is flattened, channel after channel, into a :class:`ResidualHead`.

    With C*T = 17*250 = 4,250 it has 5,404,672 parameters at D = 1,024 and 3,856,896 at D = 768.

    Shapes: (b, C, T) to (b, D).
    """

    def __init__(self, n_channels: int, n_times: int, dim: int, dropout: float = 0.3) -> None:
        super().__init__(n_channels * n_times, dim, dropout)

    def forward(self, eeg: Tensor) -> Tensor:
        return super().forward(eeg.flatten(1))


class StemBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm2d that also runs when weights were loaded in half precision: its statistics, being buffers, stay in float32."""

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.dtype == self.running_mean.dtype:
            return super().forward(x)
        if self.training:
            self.num_batches_tracked.add_(1)
        weight, bias = self.weight.float(), self.bias.float()
        momentum = 0.0 if self.momentum is None else self.momentum
        return nn.functional.batch_norm(x.float(), self.running_mean, self.running_var, weight, bias, self.training, momentum, self.eps).to(
            x.dtype
        )


class ConvStem(nn.Module):
    """The convolutional stem of NICE, MB2C and ATM (the shallow network of temporal, then spatial filters).

    Conv over time, average pooling, BatchNorm, ELU, conv over channels, BatchNorm, ELU, dropout, 1x1 conv. With 63 channels and 250
    samples: 226 time steps after the first convolution, 36 after pooling, 36 * 40 = 1,440 values, 103,680 parameters.

    Shapes: (b, C, T) to (b, n_tokens * n_filters), time step after time step, the filters of one step side by side.
    """

    def __init__(
        self,
        n_channels: int,
        n_filters: int = 40,
        temporal_kernel: int = 25,
        pool_kernel: int = 51,
        pool_stride: int = 5,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.temporal = nn.Conv2d(1, n_filters, (1, temporal_kernel))
        self.pool = nn.AvgPool2d((1, pool_kernel), (1, pool_stride))
        self.temporal_norm = StemBatchNorm2d(n_filters)
        self.spatial = nn.Conv2d(n_filters, n_filters, (n_channels, 1))
        self.spatial_norm = StemBatchNorm2d(n_filters)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Conv2d(n_filters, n_filters, (1, 1))

    def forward(self, eeg: Tensor) -> Tensor:
        x = nn.functional.elu(self.temporal_norm(self.pool(self.temporal(eeg.unsqueeze(1)))))
        x = nn.functional.elu(self.spatial_norm(self.spatial(x)))
        x = self.output(self.dropout(x))  # (b, filters, 1, tokens)
        return x.permute(0, 2, 3, 1).flatten(1)


def sinusoidal_positions(n: int, width: int) -> Tensor:
    """Position code of "Attention is all you need": (n, width) float32, sines in even columns, cosines in odd ones."""
    angles = torch.arange(n, dtype=torch.float32)[:, None] * torch.exp(
        torch.arange(0, width, 2, dtype=torch.float32) * (-math.log(10000.0) / width)
    )
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width]


def init_torch(module: nn.Module) -> None:
    """What ``torch.nn`` does on construction, in a form that leaves weights alone that a checkpoint has filled.

    Linear and Conv: U(-1/sqrt(fan_in), 1/sqrt(fan_in)) for weights and biases; Embedding N(0, 1); norms 1 and 0.
    """
    if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)):
        init.kaiming_uniform_(module.weight, a=math.sqrt(5))
        _init_torch_bias(module)
    elif isinstance(module, nn.Embedding):
        init.normal_(module.weight)
    elif isinstance(module, (nn.LayerNorm, nn.BatchNorm2d)):
        init.ones_(module.weight)
        init.zeros_(module.bias)
    if isinstance(module, nn.BatchNorm2d):
        init.zeros_(module.running_mean)
        init.ones_(module.running_var)
        init.zeros_(module.num_batches_tracked)


def init_nice(module: nn.Module) -> None:
    """NICE and MB2C: Conv and Linear weights N(0, .02) with torch's biases, BatchNorm weights N(1, .02), the rest as torch does it."""
    if isinstance(module, (nn.Linear, nn.Conv2d)):
        init.normal_(module.weight, mean=0.0, std=0.02)
        _init_torch_bias(module)
    else:
        init_torch(module)
        if isinstance(module, nn.BatchNorm2d):
            init.normal_(module.weight, mean=1.0, std=0.02)


def _init_torch_bias(module: nn.Linear | nn.Conv1d | nn.Conv2d) -> None:
    if module.bias is not None:
        bound = 1 / math.sqrt(module.weight[0].numel())
        init.uniform_(module.bias, -bound, bound)


__all__ = ["ConvStem", "EEGProject", "ResidualHead", "StemBatchNorm2d", "init_nice", "init_torch", "sinusoidal_positions"]
