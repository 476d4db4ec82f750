"""HTNet: EEGNet with a Hilbert transform after its temporal filters, on iEEG waveforms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .base import IEEGClassifier
from .configuration_htnet import HTNetConfig


class _Amplitude(torch.autograd.Function):
    """|y + i H y| of real signals, H the Hilbert transform; real transforms alone, as complex ones cost twice the memory and time.

    H is antisymmetric, so the gradient of g |y + i H y| is u y - H(u H y) with u = g / |y + i H y|, and 0 where the amplitude is 0.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        h = _hilbert(y)
        amplitude = torch.hypot(y, h)
        ctx.save_for_backward(y, h, amplitude)
        return amplitude

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        y, h, amplitude = ctx.saved_tensors
        u = torch.where(amplitude > 0, gradient / amplitude, 0)
        return u * y - _hilbert(u * h)


def _hilbert(y: Tensor) -> Tensor:
    spectrum = torch.fft.rfft(y, dim=-1)
    turned = torch.complex(spectrum.imag, -spectrum.real)  # times -i
    turned[..., 0] = 0
    if y.shape[-1] % 2 == 0:
        turned[..., -1] = 0
    return torch.fft.irfft(turned, n=y.shape[-1], dim=-1)


def hilbert_amplitude(x: Tensor) -> Tensor:
    """Amplitude of the analytic signal along the last axis, as ``abs(scipy.signal.hilbert(x))``; x real, of any shape."""
    return _Amplitude.apply(x)


class HTNetModel(IEEGClassifier):
    """Waveforms (b, C, 500) to two logits.

    Temporal filters (8, 32 samples, length kept), amplitude of their analytic signal, batch norm; spatial filters over channels (2 for each,
    norm at most 1), batch norm, ELU, mean over 4, dropout; separable convolution (16, 8 samples, length kept), batch norm, ELU,
    mean over 8, dropout; 16 x 15 values to a layer whose rows have a norm of at most .25.

    Source: S. Peterson et al., J. Neural Eng. 18, 026014 (2021); settings of iMINDBench.
    """

    config_class = HTNetConfig

    def __init__(self, config: HTNetConfig) -> None:
        super().__init__(config)
        spatial = config.f1 * config.depth
        self.temporal = nn.Conv2d(1, config.f1, (1, config.kernel), bias=False)
        self.temporal_norm = _batch_norm(config.f1, config.batch_norm_momentum)
        self.spatial = nn.Conv2d(config.f1, spatial, (config.shape[0], 1), groups=config.f1, bias=False)
        self.spatial_norm = _batch_norm(spatial, config.batch_norm_momentum)
        self.separable_depth = nn.Conv2d(spatial, spatial, (1, config.separable_kernel), groups=spatial, bias=False)
        self.separable_point = nn.Conv2d(spatial, config.f2, 1, bias=False)
        self.separable_norm = _batch_norm(config.f2, config.batch_norm_momentum)
        self.pool1, self.pool2 = nn.AvgPool2d((1, config.pool1)), nn.AvgPool2d((1, config.pool2))
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.f2 * config.n_steps, 2)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        else:
            super()._init_weights(module)

    @torch.no_grad()
    def clip_norms(self) -> None:
        """Bring filters that have grown beyond their largest norm back to it; training calls this after each step."""
        for weight, norm in ((self.spatial.weight, self.config.spatial_max_norm), (self.classifier.weight, self.config.dense_max_norm)):
            weight.copy_(torch.renorm(weight, p=2, dim=0, maxnorm=norm))

    def _logits(self, features: Tensor) -> Tensor:
        x = self.temporal_norm(hilbert_amplitude(_same(self.temporal, features[:, None])))
        x = self.dropout(self.pool1(nn.functional.elu(self.spatial_norm(self.spatial(x)))))
        x = self.separable_norm(self.separable_point(_same(self.separable_depth, x)))
        x = self.dropout(self.pool2(nn.functional.elu(x)))
        return self.classifier(x.flatten(1))


def _same(convolution: nn.Conv2d, x: Tensor) -> Tensor:
    """Convolve with zeros around, so that the length is kept; for an even kernel one more of them after than before."""
    width = convolution.kernel_size[1]
    return convolution(nn.functional.pad(x, ((width - 1) // 2, width // 2)))


def _batch_norm(width: int, momentum: float) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(width, eps=1e-3, momentum=momentum)


__all__ = ["HTNetModel"]
