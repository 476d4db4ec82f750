"""Losses, maps, augmentations and blocks of the retrieval models: by hand, against second implementations in numpy, and at the edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import erf
from torch import Tensor, nn

from decodehub.hub_models.eeg_retrieval import BlurSelector, MB2CConfig
from decodehub.hub_models.eeg_retrieval import adversarial as adv
from decodehub.hub_models.eeg_retrieval import hyperbolic as hyp
from decodehub.hub_models.eeg_retrieval.augment import mixup, moving_average, smooth_eeg
from decodehub.hub_models.eeg_retrieval.blocks import (
    ConvStem,
    EEGProject,
    ResidualHead,
    StemBatchNorm2d,
    init_nice,
    init_torch,
    sinusoidal_positions,
)
from decodehub.hub_models.eeg_retrieval.blur import BLUR_KERNELS, blur_bounds
from decodehub.hub_models.eeg_retrieval.losses import symmetric_infonce, temperature_scale

START = math.log(1 / 0.07)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed))


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


# ------------------------------------------------------------------------------------------------------------------ temperature and loss


@pytest.mark.parametrize(("mapping", "expected"), [("exp", 14.286), ("softplus", 2.727), ("none", 2.659)])
def test_scales_at_the_start(mapping: str, expected: float) -> None:
    assert temperature_scale(START, mapping) == pytest.approx(expected, abs=5e-4)
    assert float(temperature_scale(torch.tensor(START), mapping)) == pytest.approx(expected, abs=5e-4)


def test_softplus_of_numbers_neither_overflows_nor_differs_from_torch() -> None:
    for value in (-1000.0, -3.0, 0.0, 3.0, 1000.0):
        assert temperature_scale(value, "softplus") == pytest.approx(float(nn.functional.softplus(torch.tensor(value).double())))


def test_unknown_mapping_is_refused() -> None:
    with pytest.raises(ValueError, match="'exp', 'softplus' or 'none', got 'log'"):
        temperature_scale(1.0, "log")


def test_infonce_of_two_pairs_by_hand() -> None:
    a, b, c, d = 2.0, 0.5, -1.0, 1.5
    expected = (math.log1p(math.exp(b - a)) + math.log1p(math.exp(c - d)) + math.log1p(math.exp(c - a)) + math.log1p(math.exp(b - d))) / 4
    assert float(symmetric_infonce(torch.tensor([[a, b], [c, d]]))) == pytest.approx(expected, rel=1e-6)


def test_infonce_bounds_and_symmetry() -> None:
    assert float(symmetric_infonce(torch.zeros(7, 7))) == pytest.approx(math.log(7))
    assert float(symmetric_infonce(1000 * torch.eye(7))) == 0
    logits, order = normal(6, 6), torch.tensor([3, 1, 0, 5, 4, 2])
    assert float(symmetric_infonce(logits)) == pytest.approx(float(symmetric_infonce(logits.T)), rel=1e-6)
    assert float(symmetric_infonce(logits[order][:, order])) == pytest.approx(float(symmetric_infonce(logits)), rel=1e-6)


def test_infonce_refuses_what_is_not_square() -> None:
    with pytest.raises(ValueError, match=r"one image per EEG epoch: logits have shape \(2, 3\)"):
        symmetric_infonce(torch.zeros(2, 3))


# -------------------------------------------------------------------------------------------------------------------------------- blocks


def _layer_norm(x: np.ndarray, norm: nn.LayerNorm) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + norm.eps) * norm.weight.detach().numpy() + norm.bias.detach().numpy()


def _affine(x: np.ndarray, layer: nn.Linear) -> np.ndarray:
    return x @ layer.weight.detach().numpy().astype(np.float64).T + layer.bias.detach().numpy()


def _randomise(module: nn.Module) -> None:
    with torch.no_grad():
        for i, value in enumerate([*module.parameters(), *(b for b in module.buffers() if b.is_floating_point())]):
            value.copy_(torch.rand(value.shape, generator=seeded(i)) - 0.3)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_var.abs_().add_(0.5)


def test_eeg_project_equals_numpy() -> None:
    block = EEGProject(3, 7, 5).eval()
    _randomise(block)
    eeg = normal(4, 3, 7)
    x = _affine(eeg.double().numpy().reshape(4, 21), block.input)  # channel after channel
    gelu = x * 0.5 * (1 + erf(x / math.sqrt(2)))
    expected = _layer_norm(x + _affine(gelu, block.hidden), block.norm)
    with torch.no_grad():
        np.testing.assert_allclose(block(eeg).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize(("dim", "expected"), [(1024, 5_404_672), (768, 3_856_896)])
def test_eeg_project_has_the_published_number_of_parameters(dim: int, expected: int) -> None:
    with torch.device("meta"):
        block = EEGProject(17, 250, dim)
    assert count(block) == expected == 4250 * dim + dim + dim * dim + dim + 2 * dim


def _elu(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def _batch_norm(x: np.ndarray, norm: nn.BatchNorm2d) -> np.ndarray:
    """x: (b, filters, ...)."""
    mean, var, weight, bias = (
        v.detach().numpy().astype(np.float64).reshape(-1, *[1] * (x.ndim - 2))
        for v in (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    )
    return (x - mean) / np.sqrt(var + norm.eps) * weight + bias


def test_conv_stem_equals_numpy_and_is_token_major() -> None:
    stem = ConvStem(3, n_filters=4, temporal_kernel=5, pool_kernel=7, pool_stride=3).eval()
    _randomise(stem)
    eeg = normal(2, 3, 26).double().numpy()
    kernel, bias = stem.temporal.weight.detach().numpy()[:, 0, 0].astype(np.float64), stem.temporal.bias.detach().numpy()
    windows = np.stack([eeg[:, :, t : t + 5] for t in range(22)], axis=2)  # (b, C, 22, 5)
    conv = np.einsum("bctk,fk->bfct", windows, kernel) + bias[None, :, None, None]
    pooled = np.stack([conv[..., s : s + 7].mean(-1) for s in range(0, 16, 3)], axis=-1)  # (b, f, C, 6)
    x = _elu(_batch_norm(pooled, stem.temporal_norm))
    spatial = np.einsum("bfct,gfc->bgt", x, stem.spatial.weight.detach().numpy()[..., 0].astype(np.float64))
    x = _elu(_batch_norm(spatial + stem.spatial.bias.detach().numpy()[None, :, None], stem.spatial_norm))
    tokens = (
        np.einsum("bft,gf->btg", x, stem.output.weight.detach().numpy()[..., 0, 0].astype(np.float64)) + stem.output.bias.detach().numpy()
    )
    assert tokens.shape == (2, 6, 4)
    with torch.no_grad():
        np.testing.assert_allclose(stem(torch.from_numpy(eeg).float()).numpy(), tokens.reshape(2, 24), atol=1e-5)


def test_conv_stem_has_the_published_shape_and_size() -> None:
    stem = ConvStem(63).eval()
    with torch.no_grad():
        assert stem(torch.zeros(1, 63, 250)).shape == (1, 36 * 40)
    assert count(stem) == 40 * 25 + 40 + 80 + 40 * 40 * 63 + 40 + 80 + 1600 + 40 == 103_680
    assert count(ResidualHead(1440, 768, 0.5)) == 1440 * 768 + 768 + 768 * 768 + 768 + 1536


@pytest.mark.parametrize("train", [True, False])
def test_batch_norm_in_half_precision_follows_float32(train: bool) -> None:
    full, half = StemBatchNorm2d(3).train(train), StemBatchNorm2d(3).train(train)
    half.weight.data, half.bias.data = half.weight.data.bfloat16(), half.bias.data.bfloat16()
    x = normal(4, 3, 2, 5).bfloat16()
    out, expected = half(x), full(x.float())
    assert out.dtype == torch.bfloat16
    np.testing.assert_allclose(out.float().detach().numpy(), expected.detach().numpy(), atol=0.02)
    assert torch.equal(half.running_mean, full.running_mean)
    assert int(half.num_batches_tracked) == int(full.num_batches_tracked) == int(train)


def test_position_code_by_hand() -> None:
    code = sinusoidal_positions(3, 4)
    expected = [[math.sin(p), math.cos(p), math.sin(p / 100), math.cos(p / 100)] for p in range(3)]
    np.testing.assert_allclose(code.numpy(), expected, atol=1e-6)
    assert sinusoidal_positions(2, 5).shape == (2, 5)


@pytest.mark.parametrize("make", [lambda: nn.Linear(30, 20), lambda: nn.Conv2d(1, 40, (1, 25)), lambda: nn.Embedding(10, 8)])
def test_torch_start_is_that_of_torch(make: object) -> None:
    torch.manual_seed(3)
    plain = make()  # type: ignore[operator]
    torch.manual_seed(4)
    other = make()  # type: ignore[operator]
    torch.manual_seed(3)
    init_torch(other)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), other.parameters()))


def test_nice_start() -> None:
    torch.manual_seed(0)
    linear, norm = nn.Linear(400, 300), nn.BatchNorm2d(4000)
    init_nice(linear)
    init_nice(norm)
    assert float(linear.weight.detach().std()) == pytest.approx(0.02, rel=0.02)
    assert float(linear.bias.detach().abs().max()) <= 1 / 20 and float(linear.bias.detach().std()) == pytest.approx(
        1 / 20 / math.sqrt(3), rel=0.1
    )
    assert (float(norm.weight.detach().mean()), float(norm.weight.detach().std())) == (
        pytest.approx(1, abs=2e-3),
        pytest.approx(0.02, rel=0.1),
    )
    assert not norm.bias.any()


# ---------------------------------------------------------------------------------------------------------------------------- hyperbolic


@pytest.mark.parametrize("curvature", [0.07, 1.0, 3.5])
def test_exp_and_log_are_inverse(curvature: float) -> None:
    v = normal(50, 6).double() * torch.logspace(-6, 0.3, 50, dtype=torch.float64)[:, None] / math.sqrt(curvature)
    x = hyp.exp_map0(v, curvature)
    np.testing.assert_allclose(hyp.log_map0(x, curvature), v, atol=1e-6)
    p, q = hyp.on_sheet(normal(50, 6, seed=1).double(), curvature), hyp.on_sheet(x, curvature)
    tangent = hyp.log_map(p, q, curvature)
    np.testing.assert_allclose(hyp.lorentz_inner(p, tangent), 0, atol=1e-6)
    np.testing.assert_allclose(hyp.exp_map(p, tangent, curvature), q, atol=1e-6)
    np.testing.assert_allclose(hyp.log_map(p, hyp.exp_map(p, 0.3 * tangent, curvature), curvature), 0.3 * tangent, atol=1e-6)


def test_exp_and_log_in_float32() -> None:
    v = normal(40, 16)
    np.testing.assert_allclose(hyp.log_map0(hyp.exp_map0(v, 0.5), 0.5), v, atol=1e-5)
    assert not hyp.exp_map0(torch.zeros(1, 3), 1.0).any()


def test_maps_by_hand_in_one_dimension() -> None:
    """With c = 1 and D = 1 the sheet is (cosh a, sinh a), and a is the distance from the origin."""
    a, b = torch.tensor([[0.7]]).double(), torch.tensor([[-1.9]]).double()
    x, y = hyp.exp_map0(a, 1.0), hyp.exp_map0(b, 1.0)
    assert float(x) == pytest.approx(math.sinh(0.7)) and float(hyp.time_coordinate(x, 1.0)) == pytest.approx(math.cosh(0.7))
    assert float(hyp.lorentz_distance(x, y, 1.0)) == pytest.approx(2.6)
    assert float(hyp.geodesic(x, y, 0.25, 1.0)) == pytest.approx(math.sinh(0.7 - 0.25 * 2.6))
    # A curvature of -c makes everything smaller by sqrt(c).
    assert float(hyp.lorentz_distance(x / 2, y / 2, 4.0)) == pytest.approx(1.3)


def test_points_lie_on_the_sheet() -> None:
    point = hyp.on_sheet(normal(5, 4).double(), 0.3)
    np.testing.assert_allclose(hyp.lorentz_inner(point, point), -1 / 0.3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("curvature", [0.07, 1.0])
def test_distance_is_a_metric(dtype: torch.dtype, curvature: float) -> None:
    x = normal(12, 8).to(dtype)
    distance = hyp.lorentz_distance(x, x, curvature)
    tolerance = 3e-3 if dtype == torch.float32 else 1e-6
    np.testing.assert_allclose(distance, distance.T, atol=tolerance)
    np.testing.assert_allclose(distance.diagonal(), 0, atol=tolerance)
    assert (distance[:, None, :] <= distance[:, :, None] + distance[None] + tolerance).all()
    z = x.double().numpy()
    t = np.sqrt(1 / curvature + (z**2).sum(1))
    expected = np.arccosh(np.maximum(1, -curvature * (z @ z.T - np.outer(t, t)))) / math.sqrt(curvature)
    np.testing.assert_allclose(distance, expected, atol=max(tolerance, 1e-6))


def test_geodesic_ends_middle_and_composition() -> None:
    p, q, share = normal(9, 5).double(), normal(9, 5, seed=1).double(), torch.linspace(0, 1, 9, dtype=torch.float64)[:, None]
    np.testing.assert_allclose(hyp.geodesic(p, q, 0.0, 0.6), p, atol=1e-12)
    np.testing.assert_allclose(hyp.geodesic(p, q, 1.0, 0.6), q, atol=1e-12)
    between = hyp.geodesic(p, q, share, 0.6)
    start = hyp.on_sheet(p, 0.6)
    composed = hyp.exp_map(start, share * hyp.log_map(start, hyp.on_sheet(q, 0.6), 0.6), 0.6)
    np.testing.assert_allclose(between, composed[:, 1:], atol=1e-6)
    whole = hyp.lorentz_distance(p, q, 0.6).diagonal()
    np.testing.assert_allclose(hyp.lorentz_distance(p, between, 0.6).diagonal(), share[:, 0] * whole, atol=1e-6)
    np.testing.assert_allclose(hyp.lorentz_distance(between, q, 0.6).diagonal(), (1 - share[:, 0]) * whole, atol=1e-6)


def test_geodesic_and_distance_of_equal_points_have_finite_gradients() -> None:
    for gap in (0.0, 1e-9, 1e-4):
        p = normal(3, 4).requires_grad_(True)
        curvature = torch.tensor(1.0, requires_grad=True)
        (hyp.geodesic(p, p.detach() + gap, 0.4, curvature).sum() + hyp.lorentz_distance(p, p.detach() + gap, curvature).sum()).backward()
        assert torch.isfinite(p.grad).all() and torch.isfinite(curvature.grad)
    zero = torch.zeros(1, 3, requires_grad=True)
    hyp.exp_map0(zero, 1.0).sum().backward()
    np.testing.assert_allclose(zero.grad, 1)


def test_far_points_stay_finite() -> None:
    x = hyp.exp_map0(1e4 * normal(4, 3), 1.0)
    assert float(torch.linalg.vector_norm(x, dim=-1).max()) <= 2**15 * 1.001
    assert torch.isfinite(hyp.lorentz_distance(x, -x, 1.0)).all() and torch.isfinite(hyp.geodesic(x, -x, 0.5, 1.0)).all()


# --------------------------------------------------------------------------------------------------------------------- smoothing, mixup


def test_moving_average_by_hand() -> None:
    eeg = torch.tensor([[[1.0, 2, 6, 4, 12, 6]]])
    expected = [(1 + 2 + 6) / 3, (1 + 2 + 6 + 4) / 4, 25 / 5, 30 / 5, (6 + 4 + 12 + 6) / 4, (4 + 12 + 6) / 3]
    np.testing.assert_allclose(moving_average(eeg, 5)[0, 0], expected, rtol=1e-6)
    assert torch.equal(moving_average(eeg, 1), eeg)
    with pytest.raises(ValueError, match="odd"):
        moving_average(eeg, 4)


def test_smoothing_takes_a_share_of_the_channels() -> None:
    eeg = normal(200, 10, 20)
    before = eeg.clone()
    smooth = smooth_eeg(eeg, seeded(1), 0.3)
    changed = (smooth != eeg).any(-1)
    assert torch.equal(eeg, before)
    assert abs(float(changed.float().mean()) - 0.3) < 5 * math.sqrt(0.21 / 2000)
    assert torch.equal(smooth[changed], moving_average(eeg)[changed])
    assert torch.equal(smooth_eeg(eeg, seeded(1), 0.3), smooth) and not torch.equal(smooth_eeg(eeg, seeded(2), 0.3), smooth)
    assert torch.equal(smooth_eeg(eeg, seeded(), 0.0), eeg) and torch.equal(smooth_eeg(eeg, seeded(), 1.0), moving_average(eeg))


@pytest.mark.parametrize(
    ("eeg", "probability", "message"),
    [(torch.zeros(3, 4), 0.3, r"shape \(3, 4\), expected \(epochs, channels, samples\)"), (torch.zeros(1, 3, 4), 1.1, "probability")],
)
def test_smoothing_refuses(eeg: Tensor, probability: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        smooth_eeg(eeg, seeded(), probability)


def test_mixup_by_hand() -> None:
    eeg, image, labels = normal(9, 2, 3), normal(9, 4, seed=1), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3, 4])
    mixed = mixup(eeg, image, labels, seeded(5))
    assert 0 < mixed.lam < 1 and 0 < len(mixed.index) <= 6 and int(mixed.index.max()) < int(0.75 * 9)
    assert (labels[mixed.index] != labels[mixed.partner]).all()
    for row, (i, j) in enumerate(zip(mixed.index.tolist(), mixed.partner.tolist())):
        np.testing.assert_allclose(mixed.eeg[row], mixed.lam * eeg[i] + (1 - mixed.lam) * eeg[j], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(mixed.image_features[row], mixed.lam * image[i] + (1 - mixed.lam) * image[j], rtol=1e-5, atol=1e-6)
    again, other = mixup(eeg, image, labels, seeded(5)), mixup(eeg, image, labels, seeded(6))
    assert again.lam == mixed.lam != other.lam and torch.equal(again.eeg, mixed.eeg)


def test_mixup_of_one_concept_mixes_nothing_and_its_weight_is_uniform() -> None:
    assert len(mixup(normal(8, 1, 2), normal(8, 3), torch.zeros(8), seeded()).index) == 0
    lams = [mixup(torch.zeros(4, 1, 1), torch.zeros(4, 1), torch.arange(4), seeded(s)).lam for s in range(400)]
    assert abs(np.mean(lams) - 0.5) < 0.07 and abs(np.var(lams) - 1 / 12) < 0.02


def test_mixup_refuses() -> None:
    with pytest.raises(ValueError, match="found 2 and 3 for 3"):
        mixup(torch.zeros(3, 1, 1), torch.zeros(2, 1), torch.zeros(3), seeded())
    with pytest.raises(ValueError, match="ratio"):
        mixup(torch.zeros(3, 1, 1), torch.zeros(3, 1), torch.zeros(3), seeded(), ratio=1.5)


def test_no_random_number_comes_from_the_global_generator() -> None:
    state = torch.get_rng_state()
    smooth_eeg(normal(2, 3, 8), seeded())
    mixup(normal(4, 3, 8), normal(4, 2), torch.arange(4), seeded())
    adversary = adv.MB2CAdversary(MB2CConfig.tiny(), seeded())
    adv.cycle_loss(adversary, normal(3, 16), normal(3, 16), seeded())
    adv.gradient_penalty(lambda x: x.sum(-1), normal(3, 4), normal(3, 4), seeded())
    np.random.seed(0)  # noqa: NPY002 - the global state of numpy does not matter either
    assert (
        mixup(normal(4, 3, 8), normal(4, 2), torch.arange(4), seeded()).lam
        == mixup(normal(4, 3, 8), normal(4, 2), torch.arange(4), seeded()).lam
    )
    fresh = torch.get_rng_state()
    # nn.Linear draws on construction, before the weights are set from the generator; nothing else may.
    torch.set_rng_state(state)
    for module in adversary.modules():
        if isinstance(module, nn.Linear):
            nn.Linear(module.in_features, module.out_features)
    assert torch.equal(torch.get_rng_state(), fresh)


# --------------------------------------------------------------------------------------------------------------------------- adversarial


@pytest.fixture
def adversary() -> adv.MB2CAdversary:
    return adv.MB2CAdversary(MB2CConfig.tiny(), seeded())


@pytest.mark.parametrize("weights", [[3.0, 4.0], [0.6, 0.8], [0.0, 0.0]])
def test_gradient_penalty_of_a_linear_critic(weights: list[float]) -> None:
    w = torch.tensor(weights)
    penalty = adv.gradient_penalty(lambda x: x @ w, normal(5, 2), normal(5, 2, seed=1), seeded())
    assert float(penalty) == pytest.approx((math.hypot(*weights) - 1) ** 2, abs=1e-6)


def test_gradient_penalty_of_a_square_critic_looks_between_the_two() -> None:
    real, fake = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [6.0]])
    place = torch.rand(2, 1, generator=seeded(7))
    expected = float(((place * real + (1 - place) * fake).abs() - 1).square().mean())
    penalty = adv.gradient_penalty(lambda x: x.square().sum(-1) / 2, real, fake, seeded(7))
    assert float(penalty.detach()) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ValueError, match="one shape"):
        adv.gradient_penalty(lambda x: x.sum(-1), real, fake[:1], seeded())


def test_critic_loss_by_hand(adversary: adv.MB2CAdversary) -> None:
    critic = adversary.image_critic
    for p in critic.parameters():
        nn.init.zeros_(p)
    with torch.no_grad():  # one hidden unit sees the first feature: validity = 2 * relu(x_0), classes uniform
        critic.hidden.weight[0, 0] = 1
        critic.validity.weight[0, 0] = 2
    real, fake = torch.zeros(2, 16), torch.zeros(2, 16)
    real[:, 0], fake[:, 0] = torch.tensor([1.0, 3.0]), torch.tensor([0.5, 1.5])
    loss = adv.critic_loss(critic, real, fake, torch.tensor([1, 2]), seeded())
    assert float(loss.wasserstein) == pytest.approx(2 * 1.0 - 2 * 2.0)
    assert float(loss.classification) == pytest.approx(2 * math.log(7), rel=1e-6)
    assert float(loss.penalty) == pytest.approx(1.0)  # (2 - 1)^2
    assert float(loss.total) == pytest.approx(-2 + 2 * math.log(7) + 10, rel=1e-6)


def test_generator_loss_by_hand(adversary: adv.MB2CAdversary) -> None:
    critic, network = adversary.image_critic, adversary.to_image
    for p in critic.parameters():
        nn.init.zeros_(p)
    with torch.no_grad():
        critic.validity.bias.fill_(0.25)
        critic.classes.bias[3] = 1.0
    fake, labels = normal(2, 16), torch.tensor([3, 0])
    total = math.log(6 + math.e)
    entropy = ((total - 1) + total) / 2
    decay = 1e-3 * float(network.hidden.weight.square().sum() + network.output.weight.square().sum())
    loss = adv.generator_loss(critic, network, fake, fake, labels)
    assert float(loss) == pytest.approx(-0.25 + entropy + decay, rel=1e-5)
    mixed = adv.MixedFakes(fake[:1], torch.tensor([3]), torch.tensor([0]), 0.7)
    with_mixed = adv.generator_loss(critic, network, fake, fake, labels, mixed)
    assert float(with_mixed - loss) == pytest.approx(0.7 * (total - 1) + 0.3 * total, rel=1e-4)


def test_cycle_loss_by_hand_and_its_weighting(adversary: adv.MB2CAdversary) -> None:
    for network in (adversary.to_image, adversary.to_eeg):
        for p in network.parameters():
            nn.init.zeros_(p)
    with torch.no_grad():
        adversary.to_eeg.output.bias.fill_(2.0)  # EEG comes back as 2, images as tanh(0) = 0
    eeg, image = torch.full((3, 16), 1.5), torch.full((3, 16), -0.25)
    once = (10 * 0.5 + 10 * 0.25) / 2
    assert float(adv.cycle_loss(adversary, eeg, image, seeded(), weighting="paper")) == pytest.approx(once)
    assert float(adv.cycle_loss(adversary, eeg, image, seeded())) == pytest.approx(10 * once)
    with pytest.raises(ValueError, match="'released_code' or 'paper', got 'twice'"):
        adv.cycle_loss(adversary, eeg, image, seeded(), weighting="twice")


def test_adversary_start_bounds_and_sizes(adversary: adv.MB2CAdversary) -> None:
    with torch.device("meta"):
        full = MB2CConfig()
        critic = adv.Critic(full.embed_dim, full.adversarial_dim, full.n_classes)
        network = adv.Generator(full.embed_dim, full.noise_dim, full.adversarial_dim, 0.01, True)
    assert count(critic) == 768 * 900 + 900 + 900 + 1 + 900 * 1654 + 1654 == 2_183_255
    assert count(network) == 868 * 900 + 900 + 900 * 768 + 768 == 1_474_068
    weight = adversary.to_eeg.hidden.weight
    assert float(weight.std()) == pytest.approx(math.sqrt(2 / sum(weight.shape)), rel=0.1)
    assert not adversary.to_eeg.hidden.bias.any()
    large = 100 * normal(4, 16)
    assert (
        float(adversary.to_image.with_noise(large, seeded()).abs().max())
        <= 1
        < float(adversary.to_eeg.with_noise(large, seeded()).abs().max())
    )
    again = adv.MB2CAdversary(MB2CConfig.tiny(), seeded())
    assert all(torch.equal(a, b) for a, b in zip(adversary.parameters(), again.parameters()))


def test_adversarial_features() -> None:
    embeds = normal(3, 5)
    np.testing.assert_allclose(adv.adversarial_features(embeds, "normalized").norm(dim=-1), 1, rtol=1e-6)
    assert adv.adversarial_features(embeds, "raw") is embeds
    with pytest.raises(ValueError, match="'normalized' or 'raw'"):
        adv.adversarial_features(embeds, "l2")


def test_critics_learn_to_tell_and_generators_to_fool(adversary: adv.MB2CAdversary) -> None:
    labels = torch.arange(7).repeat(6)
    centres = nn.functional.normalize(normal(7, 16, seed=3), dim=-1)
    image = nn.functional.normalize(centres[labels] + 0.05 * normal(42, 16, seed=4), dim=-1)
    eeg, generator = normal(42, 16, seed=5), seeded(9)
    critic_steps = torch.optim.RMSprop(adversary.image_critic.parameters(), lr=2e-3, alpha=0.9)
    network_steps = torch.optim.RMSprop(adversary.to_image.parameters(), lr=2e-3, alpha=0.9)
    first = None
    for _ in range(15):
        for _ in range(3):
            fake = adversary.to_image.with_noise(eeg, generator)
            loss = adv.critic_loss(adversary.image_critic, image, fake, labels, generator)
            critic_steps.zero_grad()
            loss.total.backward()
            critic_steps.step()
        first = first or loss
        fake = adversary.to_image.with_noise(eeg, generator)
        network_steps.zero_grad()
        adv.generator_loss(adversary.image_critic, adversary.to_image, image, fake, labels).backward()
        network_steps.step()
    assert float(loss.total) < float(first.total) and float(loss.classification) < float(first.classification)


# ---------------------------------------------------------------------------------------------------------------------------------- blur


def test_blur_rule_by_hand() -> None:
    selector = BlurSelector(6)
    logits = torch.tensor([1.0, 1.0, 1.0, 9.0, -7.0])
    bounds = selector.update(torch.tensor([0, 1, 2, 4, 5]), logits)
    confidence = np.array([1.0, 1.0, 1.0, 0.7 + 0.3 * 9, 0.7 - 0.3 * 7])
    np.testing.assert_allclose(selector.confidence, [1, 1, 1, 1, confidence[3], confidence[4]])
    spread = 1.96 * confidence.std(ddof=1)
    assert (bounds.lower, bounds.upper) == (pytest.approx(confidence.mean() - spread), pytest.approx(confidence.mean() + spread))
    assert selector.labels.tolist() == [1] * 6  # not before the epoch ends
    assert selector.end_epoch().tolist() == [1, 1, 1, 1, 0, 2]
    assert selector.kernels().tolist() == [51, 51, 51, 51, 45, 57]
    selector.update(torch.tensor([4]), torch.tensor([100.0]))  # one sample alone has no bounds
    assert selector.end_epoch()[4] == 1


def test_released_kernels_repeat_a_level() -> None:
    assert BLUR_KERNELS == {"paper": (45, 51, 57), "released_code": (45, 45, 51)}
    selector = BlurSelector(3, "released_code")
    selector.labels = torch.tensor([0, 1, 2])
    assert selector.kernels(torch.tensor([2, 0])).tolist() == [51, 45]


def test_blur_state_goes_on_where_it_stopped() -> None:
    whole, stopped = BlurSelector(20), BlurSelector(20)
    batches = [(torch.randperm(20, generator=seeded(i))[:12], 3 * normal(12, seed=i)) for i in range(4)]
    for batch in batches[:2]:
        whole.update(*batch), stopped.update(*batch)
    resumed = BlurSelector(20)
    resumed.load_state_dict(stopped.state_dict())
    for batch in batches[2:]:
        whole.update(*batch), resumed.update(*batch)
    assert torch.equal(whole.end_epoch(), resumed.end_epoch()) and torch.equal(whole.confidence, resumed.confidence)
    with pytest.raises(ValueError, match="20 images with levels 'paper', expected 5 with 'paper'"):
        BlurSelector(5).load_state_dict(stopped.state_dict())


@pytest.mark.parametrize(
    ("index", "logits", "message"),
    [
        ([0, 1], [1.0], "as many logits as images"),
        ([0, 9], [1.0, 1.0], "from 0 to 3"),
        ([1, 1], [1.0, 1.0], "different numbers"),
        ([0, 1], [1.0, math.nan], "diverged"),
    ],
)
def test_blur_update_refuses(index: list[int], logits: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BlurSelector(4).update(torch.tensor(index), torch.tensor(logits))


@pytest.mark.parametrize(
    "settings", [{"n_samples": 0}, {"n_samples": 3, "levels": "both"}, {"n_samples": 3, "rate": 0}, {"n_samples": 3, "z": -1}]
)
def test_blur_selector_refuses(settings: dict) -> None:
    with pytest.raises(ValueError, match="must"):
        BlurSelector(**settings)


def test_bounds_use_the_sample_deviation() -> None:
    assert blur_bounds(torch.tensor([1.0, 3.0]), 1.0) == (pytest.approx(2 - math.sqrt(2)), pytest.approx(2 + math.sqrt(2)))
