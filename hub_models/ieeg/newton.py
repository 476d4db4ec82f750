"""L2-penalised logistic regression to its optimum, by Newton steps in as many dimensions as there are windows.

The optimum has w = X^T a with one number a window, so for n windows of d >> n values everything but one Gram matrix X X^T (n^2 d) and one
product X^T a happens in n dimensions: a Newton step is one Cholesky factor of an n x n matrix.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BLOCK_VALUES = 1 << 19  # values that are converted to float64 at a time: 4 MB, so that they are read again from a cache


class NewtonFit(NamedTuple):
    """What `fit_newton` found.

    Attributes:
        weights: (d,) float64. intercept: float.
        n_iter: Newton steps. objective: at the solution. gradient_norm: of the objective over d + 1 dimensions, computed anew from the
            weights; relative_gradient: that divided by the norm at zero weights.
    """

    weights: Tensor
    intercept: float
    n_iter: int
    objective: float
    gradient_norm: float
    relative_gradient: float


def objective_and_gradient(
    x: Tensor, y: Tensor, weights: Tensor, intercept: float, c: float, dtype: torch.dtype = torch.float64
) -> tuple[float, float]:
    """Objective and norm of its gradient, block by block.

    Args:
        x: (n, d). y: (n,) 0 or 1. weights: (d,) float64. intercept, c: floats.
        dtype: of products with x. float32 gives norms down to some 1e-6 of that at zero weights, without copies of float32 windows.
    """
    blocks = _blocks(x)
    scores = torch.zeros(len(x), dtype=torch.float64, device=x.device) + intercept
    for part in blocks:
        scores += (x[:, part].to(dtype) @ weights[part].to(dtype)).double()
    residual = torch.sigmoid(scores) - y.double()
    gradients = (weights[part] + c * (x[:, part].to(dtype).T @ residual.to(dtype)).double() for part in blocks)
    square = sum(float(gradient.square().sum()) for gradient in gradients)
    norm = (square + (c * float(residual.sum())) ** 2) ** 0.5
    return _objective(weights.square().sum(), scores, y.double(), c), norm


def fit_newton(x: Tensor, y: Tensor, c: float = 1.0, tol: float = 1e-6, max_iter: int = 100) -> NewtonFit:
    """Minimise 1/2 |w|^2 + c sum log(1 + exp(-s (x w + b))), with s = 2 y - 1 and b free.

    With K = X X^T, p the probabilities and W = diag(c p (1 - p)), a step solves (K + W^-1) a + b = f + W^-1 c (y - p), sum a = 0
    (iteratively reweighted least squares of kernel logistic regression), and is halved until the objective falls.

    Args:
        x: (n, d) float, n windows. y: (n,) int, both classes.
        c: inverse strength of the penalty.
        tol: largest norm of the gradient relative to that at w = 0, b = 0.
        max_iter: Newton steps at most.

    Raises:
        ValueError: one class only, or values that are not finite.
    """
    y = y.to(x.device).double()
    if not 0 < float(y.sum()) < len(y):
        raise ValueError(f"the {len(y)} training windows are of one class: a classifier needs both")
    found = None
    for dtype in (torch.float32, torch.float64):  # the second, some three times slower, only where the first is not exact enough
        if x.dtype == torch.float64 and dtype == torch.float32:
            continue
        found = _search(x, _gram(x, dtype), y, c, tol, max_iter)
        if found.relative_gradient <= tol:
            break
    assert found is not None
    return found


def _search(x: Tensor, gram: Tensor, y: Tensor, c: float, tol: float, max_iter: int) -> NewtonFit:
    if not torch.isfinite(gram).all():
        raise ValueError("the training windows hold values that are not finite: repair or drop those channels first")
    state = _State(gram, y, c, torch.zeros_like(y), 0.0)
    start_norm, steps = state.gradient_norm(), 0
    while steps < max_iter and state.gradient_norm() > 0.1 * tol * start_norm:
        target_a, target_b = _newton_target(state)
        size, improved = 1.0, False
        while size > 1e-6:
            new = _State(gram, y, c, state.a + size * (target_a - state.a), state.b + size * (target_b - state.b))
            if new.objective <= state.objective + 1e-14 * abs(state.objective):
                improved = new.objective < state.objective
                state = new
                break
            size /= 2
        steps += 1
        if not improved:  # at the limit of float64
            break
    weights = torch.cat([(x[:, part].double().T @ state.a) for part in _blocks(x)])
    objective, norm = objective_and_gradient(x, y, weights, state.b, c)
    return NewtonFit(weights, state.b, steps, objective, norm, norm / start_norm)


class _State:
    """A point of the search: a (n,) and b, with f = K a + b and the objective there."""

    def __init__(self, gram: Tensor, y: Tensor, c: float, a: Tensor, b: float) -> None:
        self.gram, self.y, self.c, self.a, self.b = gram, y, c, a, b
        self.ka = gram @ a
        self.f = self.ka + b
        self.p = torch.sigmoid(self.f)
        self.objective = _objective(a @ self.ka, self.f, y, c)

    def gradient_norm(self) -> float:
        """Norm over w and b: |X^T r|^2 = r^T K r, with r = a - c (y - p)."""
        r = self.a - self.c * (self.y - self.p)
        return (max(float(r @ (self.gram @ r)), 0.0) + float(self.c * (self.p - self.y).sum()) ** 2) ** 0.5


def _newton_target(state: _State) -> tuple[Tensor, float]:
    w = (state.c * state.p * (1 - state.p)).clamp_min(1e-12)
    root = w.sqrt()
    # (K + W^-1) = W^-1/2 (I + W^1/2 K W^1/2) W^-1/2: the matrix in the middle has no eigenvalue below 1.
    middle = root[:, None] * state.gram * root
    middle.diagonal().add_(1.0)
    factor = torch.linalg.cholesky(middle)
    z = state.f + state.c * (state.y - state.p) / w
    right = torch.stack([z, torch.ones_like(z)], dim=1)
    solved = root[:, None] * torch.cholesky_solve(root[:, None] * right, factor)
    b = float(solved[:, 0].sum() / solved[:, 1].sum())
    return solved[:, 0] - b * solved[:, 1], b


def _objective(square: Tensor, scores: Tensor, y: Tensor, c: float) -> float:
    return 0.5 * float(square) + c * float(torch.nn.functional.softplus((1 - 2 * y) * scores).sum())


def _blocks(x: Tensor) -> list[slice]:
    width = max(1, BLOCK_VALUES // max(len(x), 1))
    return [slice(start, start + width) for start in range(0, x.shape[1], width)]


def _gram(x: Tensor, dtype: torch.dtype) -> Tensor:
    """X X^T in float64; products are summed over short blocks in `dtype`, and these in float64."""
    total = torch.zeros(len(x), len(x), dtype=torch.float64, device=x.device)
    for start in range(0, x.shape[1], 2048):
        part = x[:, start : start + 2048].to(dtype)
        total += (part @ part.T).double()
    return (total + total.T) / 2


__all__ = ["NewtonFit", "fit_newton", "objective_and_gradient"]
