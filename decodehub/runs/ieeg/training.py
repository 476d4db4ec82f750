"""Training of the networks of iMINDBench: checkpoint and early stop by validation AUC, seeds that decide everything."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from decodehub.metrics.imindbench.scoring import batched_auc

if TYPE_CHECKING:
    from decodehub.hub_models.ieeg import IEEGClassifier

SEED = 42  # of iMINDBench; fold k has SEED + k


@dataclass(frozen=True)
class TrainSettings:
    """How a network is trained; defaults are those of the MLP and CNN baselines.

    Attributes:
        lr, batch_size, epochs: of Adam. patience: epochs without a better validation AUC before it stops.
        tol: by how much an AUC must be better. The released code has 1e-4, the paper's MLP runs 1e-8; nothing is stated for CNN and
            HTNet, which take the code's.
        clip: largest norm of the gradient, or None.
    """

    lr: float = 1e-4
    batch_size: int = 200
    epochs: int = 100
    patience: int = 10
    tol: float = 1e-4
    clip: float | None = None


def train_network(
    make_model: Callable[[], IEEGClassifier],
    x: np.ndarray,
    y: np.ndarray,
    x_val: np.ndarray,
    y_val: np.ndarray,
    settings: TrainSettings,
    *,
    seed: int,
    device: str = "cpu",
) -> tuple[IEEGClassifier, dict[str, Any]]:
    """Train one network on one fold; test windows are not seen.

    Args:
        make_model: builds it; called once the seed is set, so start weights follow from the seed as well.
        x, y, x_val, y_val: (n, ...) float32 windows and (n,) labels.
        settings: see `TrainSettings`.
        seed: decides start weights, order and dropout; the caller's random state is left as it was.
        device: where to train.

    Returns:
        The network with the weights of the best epoch, in evaluation mode, and a report (epochs, best_epoch, val_auc).
    """
    devices = [torch.cuda.current_device()] if device.startswith("cuda") else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        model = make_model().to(device)
        order = torch.Generator().manual_seed(seed)
        optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr)
        inputs, targets = torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(np.asarray(y, dtype=np.int64))
        held_out = torch.from_numpy(np.ascontiguousarray(x_val))
        best, best_epoch, best_state = -np.inf, 0, copy.deepcopy(model.state_dict())
        for epoch in range(1, settings.epochs + 1):
            model.train()
            for rows in torch.randperm(len(inputs), generator=order).split(settings.batch_size):
                optimizer.zero_grad(set_to_none=True)
                model(inputs[rows].to(device), labels=targets[rows].to(device)).loss.backward()
                if settings.clip is not None:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
                optimizer.step()
                if hasattr(model, "clip_norms"):
                    model.clip_norms()
            auc = float(batched_auc(model.predict_proba(held_out).numpy(), y_val, np.array([len(y_val)]))[0])
            if auc > best + settings.tol:
                best, best_epoch, best_state = auc, epoch, copy.deepcopy(model.state_dict())
            elif epoch - best_epoch >= settings.patience:
                break
        model.load_state_dict(best_state)
    return model.eval(), {"epochs": epoch, "best_epoch": best_epoch, "val_auc": best}
