"""Lorentz model of hyperbolic space of curvature -c, as HyFI uses it.

A point is kept by its space coordinates x (..., D); its time coordinate follows: t = sqrt(1/c + |x|^2), so that <p, p>_L = -1/c with
<p, q>_L = x_p.x_q - t_p t_q. Maps at the origin (x = 0) take and give space coordinates; maps at a point also carry the time coordinate,
as the first value of (..., D + 1).

Close points: acosh(1 + delta) is taken from delta, which is computed from differences, not by subtracting two large numbers.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import Tensor

# Largest argument of sinh: norms up to 2^15.
MAX_SINH = math.asinh(2.0**15)
MIN_NORM = 1e-8
Curvature: TypeAlias = float | Tensor


def time_coordinate(space: Tensor, curvature: Curvature) -> Tensor:
    """sqrt(1/c + |x|^2): (..., D) to (..., 1)."""
    return (1 / curvature + space.square().sum(dim=-1, keepdim=True)).sqrt()


def on_sheet(space: Tensor, curvature: Curvature) -> Tensor:
    """The whole point: (..., D) to (..., D + 1), time first."""
    return torch.cat([time_coordinate(space, curvature), space], dim=-1)


def lorentz_inner(x: Tensor, y: Tensor) -> Tensor:
    """<x, y>_L of whole vectors (..., D + 1), (..., D + 1) to (..., 1)."""
    product = x * y
    return product[..., 1:].sum(dim=-1, keepdim=True) - product[..., :1]


def exp_map0(vector: Tensor, curvature: Curvature) -> Tensor:
    """From the tangent space at the origin to the sheet, sinh(sqrt(c)|v|) v / (sqrt(c)|v|); |v| is the distance from the origin.

    sqrt(c)|v| is clamped to asinh(2^15), beyond which float32 has no accuracy left. Shapes: (..., D) to (..., D).
    """
    norm = _root(curvature) * torch.linalg.vector_norm(vector, dim=-1, keepdim=True)
    return vector * norm.clamp(MIN_NORM, MAX_SINH).sinh() / norm.clamp_min(MIN_NORM)


def log_map0(space: Tensor, curvature: Curvature) -> Tensor:
    """Inverse of :func:`exp_map0`. Shapes: (..., D) to (..., D)."""
    norm = _root(curvature) * torch.linalg.vector_norm(space, dim=-1, keepdim=True)
    safe = norm.clamp_min(MIN_NORM)
    return space * safe.asinh() / safe


def exp_map(point: Tensor, vector: Tensor, curvature: Curvature) -> Tensor:
    """From the tangent space at `point` to the sheet: cosh(sqrt(c)|v|) p + sinh(sqrt(c)|v|) v / (sqrt(c)|v|).

    Args:
        point: (..., D + 1) on the sheet.
        vector: (..., D + 1) tangent at `point`: <p, v>_L = 0.
        curvature: c > 0.

    Returns:
        (..., D + 1) on the sheet.
    """
    norm = _root(curvature) * lorentz_inner(vector, vector).clamp_min(MIN_NORM**2).sqrt()
    return norm.cosh() * point + norm.sinh() / norm * vector


def log_map(point: Tensor, other: Tensor, curvature: Curvature) -> Tensor:
    """Inverse of :func:`exp_map`: the tangent vector at `point` that leads to `other`, of length their distance. Shapes as there."""
    delta = _delta(point, other, curvature)
    angle, sine = acosh1p(delta), (delta * (delta + 2)).sqrt()
    ratio = torch.where(sine > 0, angle / sine.clamp_min(torch.finfo(delta.dtype).tiny), 1.0)
    return ratio * (other - (1 + delta) * point)


def geodesic(start: Tensor, end: Tensor, share: Tensor | float, curvature: Curvature) -> Tensor:
    """The point at `share` of the way from `start` to `end`: exp_start(share * log_start(end)).

    In closed form: (sinh((1 - s) a) p + sinh(s a) q) / sinh(a), with a = sqrt(c) times the distance, which also holds where p = q.

    Args:
        start: (..., D) space coordinates.
        end: (..., D).
        share: (..., 1) or a number; 0 is `start`, 1 is `end`.
        curvature: c > 0.

    Returns:
        (..., D) space coordinates.
    """
    angle = acosh1p(_delta(on_sheet(start, curvature), on_sheet(end, curvature), curvature))
    far = angle > 1e-3
    safe = torch.where(far, angle, 1.0)
    first = torch.where(far, ((1 - share) * safe).sinh() / safe.sinh(), 1 - share)
    second = torch.where(far, (share * safe).sinh() / safe.sinh(), share * torch.ones_like(angle))
    return first * start + second * end


def lorentz_distance(x: Tensor, y: Tensor, curvature: Curvature) -> Tensor:
    """Distances of all pairs, acosh(max(1, -c <x, y>_L)) / sqrt(c): space coordinates (n, D), (m, D) to (n, m).

    Their accuracy is that of the matrix product: take float64 where close points matter.
    """
    inner = x @ y.T - time_coordinate(x, curvature) @ time_coordinate(y, curvature).T
    return acosh1p(-curvature * inner - 1) / _root(curvature)


def acosh1p(delta: Tensor) -> Tensor:
    """acosh(1 + delta); 0, with gradient 0, where delta is below the rounding error of 1 (or, through rounding, negative)."""
    far = delta > torch.finfo(delta.dtype).eps
    safe = torch.where(far, delta, 1.0)
    return torch.where(far, torch.log1p(safe + (safe * (safe + 2)).sqrt()), 0.0)


def _delta(p: Tensor, q: Tensor, curvature: Curvature) -> Tensor:
    """-c <p, q>_L - 1 >= 0 of whole points, from their difference: c/2 <p - q, p - q>_L; (..., 1)."""
    difference = p - q
    # (t_p - t_q) from (t_p^2 - t_q^2) keeps what the subtraction of large times would lose.
    squares = (difference[..., 1:] * (p + q)[..., 1:]).sum(dim=-1, keepdim=True)
    times = squares / (p + q)[..., :1]
    return (curvature / 2 * (difference[..., 1:].square().sum(dim=-1, keepdim=True) - times.square())).clamp_min(0)


def _root(curvature: Curvature) -> Curvature:
    return curvature.sqrt() if isinstance(curvature, Tensor) else math.sqrt(curvature)


__all__ = [
    "acosh1p",
    "exp_map",
    "exp_map0",
    "geodesic",
    "log_map",
    "log_map0",
    "lorentz_distance",
    "lorentz_inner",
    "on_sheet",
    "time_coordinate",
]
