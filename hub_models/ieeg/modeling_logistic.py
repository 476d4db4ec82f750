"""Logistic regression on flattened iEEG windows, as the published baseline fits it or to its optimum."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import initialization as init

from .base import IEEGClassifier
from .configuration_logistic import LogisticConfig
from .newton import fit_newton, objective_and_gradient

try:
    import sklearn
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits
except ImportError:  # only fitting with solver="sklearn" needs it
    sklearn = None


class LogisticModel(IEEGClassifier):
    """Windows (b, *input_shape) to logits (0, w x + b), so that the softmax is the logistic function.

    Weights are fitted by :meth:`fit`, not by gradient descent on batches. Source: iMINDBench baselines; scikit-learn's LogisticRegression.
    """

    config_class = LogisticConfig

    def __init__(self, config: LogisticConfig) -> None:
        super().__init__(config)
        self.linear = nn.Linear(config.n_features, 1)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            init.zeros_(module.weight)
            init.zeros_(module.bias)

    def _logits(self, features: Tensor) -> Tensor:
        score = self.linear(features.flatten(1))
        return torch.cat([torch.zeros_like(score), score], dim=1)

    @torch.no_grad()
    def fit(self, features: np.ndarray | Tensor, labels: np.ndarray | Tensor) -> dict[str, Any]:
        """Fit the weights to training windows.

        Args:
            features: (n, *input_shape) float, normalised. labels: (n,) int, 0 or 1.

        Returns:
            The report, which the configuration keeps: solver, n_iter, objective, gradient_norm, relative_gradient, converged, version of
            scikit-learn.

        Raises:
            ValueError: another shape, one class, or values that are not finite.
            ImportError: solver "sklearn" without scikit-learn.
        """
        x = torch.as_tensor(features)
        y = torch.as_tensor(labels).long()
        if tuple(x.shape[1:]) != tuple(self.config.input_shape) or len(y) != len(x):
            raise ValueError(
                f"expected features (n, {', '.join(map(str, self.config.input_shape))}) and n labels, got {tuple(x.shape)}, {len(y)}"
            )
        x = x.to(self.device).flatten(1)
        report = self._fit_sklearn(x, y) if self.config.solver == "sklearn" else self._fit_newton(x, y)
        self.config.fit_report = report
        return report

    def _fit_newton(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        found = fit_newton(x, y, self.config.C, self.config.tol, self.config.max_iter)
        self._store(found.weights, found.intercept)
        return {
            "solver": "newton",
            "n_iter": found.n_iter,
            "objective": found.objective,
            "gradient_norm": found.gradient_norm,
            "relative_gradient": found.relative_gradient,
            "converged": found.relative_gradient <= self.config.tol,
        }

    def _fit_sklearn(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        if sklearn is None:
            raise ImportError("solver='sklearn' needs scikit-learn: pip install scikit-learn")
        config = self.config
        # The penalty is scikit-learn's default, L2; naming it warns in some versions.
        estimator = LogisticRegression(
            C=config.C, solver="lbfgs", max_iter=config.max_iter, tol=config.tol, random_state=config.random_state
        )
        if len(y.unique()) < 2:
            raise ValueError(f"the {len(y)} training windows are of one class: a classifier needs both")
        with threadpool_limits(1, user_api="blas"):  # its many short products lose more to waiting threads than they gain
            estimator.fit(x.cpu().numpy(), y.cpu().numpy())
        weights = torch.from_numpy(np.asarray(estimator.coef_[0], dtype=np.float64))
        intercept = float(estimator.intercept_[0])
        self._store(weights, intercept)
        target = y.to(x.device).double()
        objective, norm = objective_and_gradient(x, target, weights.to(x.device), intercept, config.C, x.dtype)
        residual = (0.5 - target).to(x.dtype)
        start = config.C * float((x.T @ residual).double().square().sum() + residual.double().sum() ** 2) ** 0.5
        n_iter = int(estimator.n_iter_[0])
        return {
            "solver": f"scikit-learn {sklearn.__version__} lbfgs",
            "n_iter": n_iter,
            "objective": objective,
            "gradient_norm": norm,
            "relative_gradient": norm / start,
            "converged": n_iter < config.max_iter,
        }

    def _store(self, weights: Tensor, intercept: float) -> None:
        self.linear.weight.copy_(weights[None])
        self.linear.bias.fill_(intercept)


__all__ = ["LogisticModel"]
