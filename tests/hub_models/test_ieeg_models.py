"""Classifiers of iEEG windows: saving, shapes, the optimum of logistic regression, the layers of HTNet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.signal import hilbert
from sklearn.linear_model import LogisticRegression
from transformers import AutoModel

from decodehub.hub_models.ieeg import (
    IEEG_MODELS,
    CNNConfig,
    CNNModel,
    HTNetConfig,
    HTNetModel,
    IEEGConfig,
    LogisticConfig,
    LogisticModel,
    MLPConfig,
    MLPModel,
)
from decodehub.hub_models.ieeg.modeling_htnet import hilbert_amplitude
from decodehub.hub_models.ieeg.newton import fit_newton, objective_and_gradient


def windows(n: int = 60, shape: tuple[int, ...] = (3, 20), seed: int = 0, effect: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    x = rng.standard_normal((n, *shape)).astype(np.float32)
    x[:, 0] += np.float32(effect) * (y - np.float32(0.5)).reshape(-1, *[1] * (len(shape) - 1))
    return x, y


@pytest.mark.parametrize("cls", IEEG_MODELS.values(), ids=lambda c: c.__name__)
class TestEveryModel:
    def test_saves_as_safetensors_and_loads_to_equal_outputs(self, cls: type, tmp_path: Path) -> None:
        torch.manual_seed(0)
        model = cls(cls.config_class.tiny())
        model.train()
        for _ in range(2):
            model(**model.dummy_inputs)
        model.eval().save_pretrained(tmp_path)
        assert {p.suffix for p in tmp_path.iterdir()} == {".py", ".json", ".safetensors"}
        again = AutoModel.from_pretrained(tmp_path).eval()
        before, after = model(**model.dummy_inputs), again(**model.dummy_inputs)
        assert torch.equal(before.logits, after.logits) and torch.equal(before.loss, after.loss)

    def test_probabilities_are_the_softmax_in_evaluation_mode(self, cls: type) -> None:
        torch.manual_seed(0)
        model = cls(cls.config_class.tiny()).train()
        x = torch.randn(7, *model.config.input_shape)
        p = model.predict_proba(x, batch_size=3)
        assert model.training and p.dtype == torch.float64 and p.shape == (7,)
        torch.testing.assert_close(p, model.eval()(x).logits.double().softmax(1)[:, 1].detach(), rtol=1e-5, atol=1e-6)

    def test_a_wrong_shape_is_named(self, cls: type) -> None:
        with pytest.raises(ValueError, match="features must have shape"):
            cls(cls.config_class.tiny())(torch.zeros(1, 2))


def test_parameter_counts_are_those_stated() -> None:
    assert LogisticModel(LogisticConfig()).num_parameters() == 120 * 17 * 75 + 1
    assert MLPModel(MLPConfig(input_shape=[10, 17, 75])).num_parameters() == 12_750 * 128 + 128 + 128 * 128 + 128 + 2 * 128 + 2
    assert CNNConfig().pooled_shape == [2, 9] and HTNetConfig().n_steps == 15
    assert CNNModel(CNNConfig()).num_parameters() == 422_242
    c = 120
    assert HTNetModel(HTNetConfig()).num_parameters() == 8 * 32 + 16 + 16 * c + 32 + 16 * 8 + 16 * 16 + 32 + 240 * 2 + 2


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="input_shape"):
        IEEGConfig(input_shape=[3])
    with pytest.raises(ValueError, match="solver must be one of"):
        LogisticConfig(solver="saga")
    with pytest.raises(ValueError, match="waveforms"):
        HTNetConfig(input_shape=[3, 17, 75])
    with pytest.raises(ValueError, match="too small"):
        CNNConfig(input_shape=[3, 5, 75])


class TestLogistic:
    @pytest.mark.parametrize(("n", "d"), [(40, 300), (200, 12)])
    @pytest.mark.parametrize("c", [0.01, 1.0, 30.0])
    def test_newton_reaches_the_optimum_of_scikit_learns_objective(self, n: int, d: int, c: float) -> None:
        x, y = windows(n, (d,), effect=0.0)
        x[:, :3] += 0.8 * (y[:, None] - 0.3)
        found = fit_newton(torch.from_numpy(x), torch.from_numpy(y), c)

        def objective(v: np.ndarray) -> tuple[float, np.ndarray]:
            f = x.astype(np.float64) @ v[:-1] + v[-1]
            r = c * (1 / (1 + np.exp(-f)) - y)
            return 0.5 * v[:-1] @ v[:-1] + c * np.logaddexp(0, (1 - 2 * y) * f).sum(), np.append(
                v[:-1] + x.T.astype(np.float64) @ r, r.sum()
            )

        best = minimize(objective, np.zeros(d + 1), jac=True, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-9, "maxiter": 20_000})
        assert found.objective == pytest.approx(best.fun, rel=1e-7) and found.relative_gradient < 1e-6
        np.testing.assert_allclose(found.weights.numpy(), best.x[:-1], atol=2e-4 * np.abs(best.x).max())
        assert found.intercept == pytest.approx(best.x[-1], abs=1e-3)
        value, norm = objective_and_gradient(torch.from_numpy(x), torch.from_numpy(y), found.weights, found.intercept, c)
        assert (value, norm) == (found.objective, found.gradient_norm)

    def test_separable_data_and_a_constant_column_have_a_finite_optimum(self) -> None:
        x, y = windows(30, (50,), effect=20.0)
        x[:, 7] = 3.0
        assert fit_newton(torch.from_numpy(x), torch.from_numpy(y)).relative_gradient < 1e-6

    def test_the_published_setting_is_scikit_learns_and_stops_early(self) -> None:
        x, y = windows(80, (4, 60), effect=0.3)
        model = LogisticModel(LogisticConfig.paper(input_shape=[4, 60]))
        report = model.fit(x, y)
        direct = LogisticRegression(C=1.0, tol=1e-3, max_iter=10_000, random_state=42).fit(x.reshape(80, -1), y)
        np.testing.assert_allclose(
            model.predict_proba(torch.from_numpy(x)).numpy(), direct.predict_proba(x.reshape(80, -1))[:, 1], atol=1e-6
        )
        optimum = LogisticModel(LogisticConfig(input_shape=[4, 60]))
        exact = optimum.fit(x, y)
        assert exact["converged"] and exact["objective"] < report["objective"] and exact["gradient_norm"] < 1e-3 * report["gradient_norm"]
        assert optimum.config.fit_report == exact

    def test_one_class_and_values_that_are_not_finite_are_refused(self) -> None:
        x, y = windows()
        for solver in ("newton", "sklearn"):
            with pytest.raises(ValueError, match="of one class"):
                LogisticModel(LogisticConfig(input_shape=[3, 20], solver=solver)).fit(x, np.ones_like(y))
        x[3, 1, 2] = np.inf
        with pytest.raises(ValueError, match="not finite"):
            LogisticModel(LogisticConfig(input_shape=[3, 20])).fit(x, y)


class TestHTNet:
    @pytest.mark.parametrize("n", [50, 51])
    def test_amplitude_is_that_of_scipy(self, n: int) -> None:
        x = np.random.default_rng(0).standard_normal((2, n))
        np.testing.assert_allclose(hilbert_amplitude(torch.from_numpy(x)).numpy(), np.abs(hilbert(x)), atol=1e-12)

    @pytest.mark.parametrize("n", [8, 9])
    def test_gradient_of_the_amplitude(self, n: int) -> None:
        x = torch.randn(3, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
        assert torch.autograd.gradcheck(hilbert_amplitude, (x,))
        flat = torch.zeros(1, n, requires_grad=True)
        hilbert_amplitude(flat).sum().backward()
        assert torch.equal(flat.grad, torch.zeros(1, n))

    def test_norms_are_clipped(self) -> None:
        model = HTNetModel(HTNetConfig.tiny())
        with torch.no_grad():
            model.spatial.weight.fill_(5.0)
            model.classifier.weight.fill_(5.0)
        model.clip_norms()
        assert model.spatial.weight.flatten(1).norm(dim=1).max() <= 1 + 1e-5
        assert model.classifier.weight.norm(dim=1).max() <= 0.25 + 1e-5

    def test_shapes_of_the_published_network(self) -> None:
        model = HTNetModel(HTNetConfig(input_shape=[5, 500])).eval()
        sizes = {}
        for name in ("spatial", "separable_point", "classifier"):
            getattr(model, name).register_forward_hook(lambda m, i, o, name=name: sizes.update({name: (tuple(i[0].shape), tuple(o.shape))}))
        model(torch.randn(2, 5, 500))
        assert sizes["spatial"] == ((2, 8, 5, 500), (2, 16, 1, 500))
        assert sizes["separable_point"] == ((2, 16, 1, 125), (2, 16, 1, 125))
        assert sizes["classifier"] == ((2, 240), (2, 2))
