"""The eight retrieval models: shapes, sizes, starts, scores, settings, saving and loading with and without the package, learning."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from decodehub.hub_models.eeg_retrieval import RETRIEVAL_MODELS, BlurSelector, EEGRetrievalModel
from decodehub.hub_models.eeg_retrieval import adversarial as adv
from decodehub.hub_models.eeg_retrieval.augment import mixup, smooth_eeg
from decodehub.hub_models.eeg_retrieval.blocks import sinusoidal_positions

# Of the card: parameters of the EEG side, of the image side, and scalars (temperature, curvature).
PARAMETERS = {
    "nice": (1_802_496, 0, 0),
    "atm": (3_075_412, 0, 1),
    "mb2c": (1_802_496, 1_182_720, 0),
    "ubp": (5_404_672, 0, 1),
    "ats": (3_856_896, 461_312, 1),
    "brain-hive": (6_452_224, 4_461_568, 1),
    "hyfi": (5_404_672, 2_100_225, 2),
    "neurobridge": (5_929_472, 524_800, 0),
}
# EEG channels, embedding, image features, scale of the logits at the start, all at 250 samples (paper, table S6 and S3.1).
SHAPES: dict[str, tuple[int, int, dict[str, int], float]] = {
    "nice": (63, 768, {"image": 768}, 1 / 0.07),
    "atm": (63, 1024, {"image": 1024}, 2.6593),
    "mb2c": (63, 768, {"image": 768}, 1 / 0.07),
    "ubp": (17, 1024, {"image": 1024}, 2.72692),
    "ats": (17, 768, {"image": 1024}, 2.72692),
    "brain-hive": (17, 1024, {"autoencoder": 1024, "image_text": 512, "self_supervised": 768}, 1 / 0.07),
    "hyfi": (17, 1024, {"perceptual": 1024, "semantic": 1024}, 100.003),
    "neurobridge": (17, 512, {"image": 1024}, 2.72692),
}
MODELS = list(RETRIEVAL_MODELS)
COSINE = [name for name in MODELS if name != "hyfi"]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed))


def tiny(name: str, seed: int = 0, **settings: Any) -> EEGRetrievalModel:
    torch.manual_seed(seed)
    config = RETRIEVAL_MODELS[name].config_class.tiny()
    return RETRIEVAL_MODELS[name](type(config)(**(config.to_dict() | settings))).eval()


@pytest.fixture(scope="module", params=MODELS)
def full(request: pytest.FixtureRequest) -> Iterator[tuple[str, EEGRetrievalModel]]:
    """A model of the published size; one at a time in memory."""
    torch.manual_seed(0)
    yield request.param, RETRIEVAL_MODELS[request.param](RETRIEVAL_MODELS[request.param].config_class()).eval()


def test_all_eight_are_there() -> None:
    assert set(MODELS) == {"nice", "atm", "mb2c", "ubp", "ats", "brain-hive", "hyfi", "neurobridge"}
    assert [model.config_class.model_type for model in RETRIEVAL_MODELS.values()] == MODELS


# ------------------------------------------------------------------------------------------------------------------- the published size


def _scalars(model: EEGRetrievalModel) -> int:
    return sum(p.numel() for p in model.parameters(recurse=False))


def test_documented_shapes_and_number_of_parameters(full: tuple[str, EEGRetrievalModel]) -> None:
    name, model = full
    channels, dim, branches, scale = SHAPES[name]
    assert model.config.image_inputs == branches
    eeg = normal(2, channels, 250)
    images = {branch: normal(3, d, seed=i) for i, (branch, d) in enumerate(branches.items())}
    with torch.inference_mode():
        output = model(eeg, images)
        assert output.eeg_embeds.shape == (2, dim) and output.image_embeds.shape == (3, dim)
        assert output.logits_per_eeg.shape == (2, 3) and torch.equal(output.logits_per_image, output.logits_per_eeg.T)
        assert output.loss is None and all(torch.isfinite(value).all() for value in output.values())
        score = model.score(output.eeg_embeds, output.image_embeds)
        assert score.dtype == torch.float32 and score.shape == (2, 3)
    found = model.config.loss_scale if name == "hyfi" else float(torch.as_tensor(model.scale).detach())
    assert found == pytest.approx(scale, rel=1e-4)
    image_side = sum(p.numel() for key, p in model.named_parameters() if key.startswith("image_"))
    eeg_side = sum(p.numel() for p in model.parameters()) - image_side - _scalars(model)
    assert (eeg_side, image_side, _scalars(model)) == PARAMETERS[name]
    assert model.num_parameters() == sum(PARAMETERS[name])


def test_number_of_parameters_is_that_of_the_card(repository: Path) -> None:
    card = (repository / "hub_models/eeg_retrieval/README.md").read_text(encoding="utf-8")
    for name, parts in PARAMETERS.items():
        line = next(line for line in card.splitlines() if line.startswith(f"| `{name}` |"))
        assert f"| {sum(parts):,} |" in line, name


def test_weights_start_as_in_the_released_code(full: tuple[str, EEGRetrievalModel]) -> None:
    name, model = full
    if name in ("nice", "mb2c", "atm"):
        conv, linear = model.eeg_encoder.temporal, model.eeg_projection.input
        assert float(conv.weight.detach().std()) == pytest.approx(1 / math.sqrt(3 * 25) if name == "atm" else 0.02, rel=0.08)
        expected = 1 / math.sqrt(3 * 1440) if name == "atm" else 0.02
        norm = model.eeg_encoder.temporal_norm
        assert float((norm.weight.detach() - 1).std()) == pytest.approx(0 if name == "atm" else 0.02, rel=0.4)
    elif name == "brain-hive":
        linear, expected = model.eeg_encoder.input, 0.02
        assert not linear.bias.any()
    else:
        linear, expected = model.eeg_encoder.input, 1 / math.sqrt(3 * 4250)
    assert float(linear.weight.detach().std()) == pytest.approx(expected, rel=0.01)
    if name != "brain-hive":
        assert float(linear.bias.detach().std()) == pytest.approx(1 / math.sqrt(3 * linear.in_features), rel=0.1)
    if name == "atm":
        assert float(model.tokens.subjects.weight.detach().std()) == pytest.approx(1, rel=0.1)
    if name == "hyfi":
        assert float(model.curvature.detach()) == 1 and float(model.log_eeg_alpha.detach().exp()) == pytest.approx(1 / 32)


def test_temporal_attention_of_the_released_ats() -> None:
    model = RETRIEVAL_MODELS["ats"](RETRIEVAL_MODELS["ats"].config_class(temporal_attention=True)).eval()
    assert model.num_parameters() == sum(PARAMETERS["ats"]) + 250
    eeg = normal(2, 17, 250)
    with torch.no_grad():
        np.testing.assert_allclose(model.attention(eeg), eeg / 250, rtol=1e-5)
        model.attention.weight[3] = 1e4
        assert torch.equal(model.attention(eeg)[..., 3], eeg[..., 3]) and not model.attention(eeg)[..., :3].any()


# --------------------------------------------------------------------------------------------------------- logits, score, second versions


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.mark.parametrize("name", COSINE)
@pytest.mark.parametrize("normalize_eeg", [True, False])
def test_logits_and_cosines_equal_numpy(name: str, normalize_eeg: bool) -> None:
    model = tiny(name, normalize_eeg=normalize_eeg)
    with torch.no_grad():
        out = model(**model.dummy_inputs)
    eeg, image = out.eeg_embeds.double().numpy(), out.image_embeds.double().numpy()
    logits = float(model.scale) * (_unit(eeg) if normalize_eeg else eeg) @ _unit(image).T
    np.testing.assert_allclose(out.logits_per_eeg, logits, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(model.score(out.eeg_embeds, out.image_embeds), _unit(eeg) @ _unit(image).T, atol=1e-6)
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True)), logits - np.log(np.exp(logits).sum(0, keepdims=True))
    if name != "atm":
        assert float(out.loss) == pytest.approx(-(np.trace(log_p[0]) + np.trace(log_p[1])) / 6, rel=1e-4)


def test_defaults_of_normalisation_and_temperature() -> None:
    normalized = {name for name in COSINE if RETRIEVAL_MODELS[name].config_class().normalize_eeg}
    assert normalized == {"nice", "mb2c", "brain-hive"}
    assert {name for name in COSINE if not tiny(name).config.logit_scale_trainable} == {"nice", "mb2c", "neurobridge"}
    assert all(RETRIEVAL_MODELS[name].config_class().normalize_image for name in COSINE)


def test_a_fixed_temperature_is_out_of_reach_of_weight_decay() -> None:
    assert not any("scale" in key for key in tiny("nice").state_dict())
    model = tiny("nice", logit_scale_trainable=True)
    assert float(model.logit_scale) == pytest.approx(math.log(1 / 0.07)) and float(model.scale) == pytest.approx(1 / 0.07)
    assert float(tiny("neurobridge", logit_scale_mapping="exp").scale) == pytest.approx(1 / 0.07)


def _lorentz(x: np.ndarray, y: np.ndarray, c: float) -> np.ndarray:
    time = np.outer(np.sqrt(1 / c + (x**2).sum(1)), np.sqrt(1 / c + (y**2).sum(1)))
    return np.arccosh(np.maximum(1, -c * (x @ y.T - time))) / math.sqrt(c)


def test_hyfi_loss_and_score_have_geometries_of_their_own() -> None:
    model = tiny("hyfi")
    with torch.no_grad():
        model.log_curvature.fill_(math.log(0.4))
        out = model(**model.dummy_inputs)
        score = model.score(out.eeg_embeds, out.image_embeds)
    eeg, image = out.eeg_embeds.double().numpy(), out.image_embeds.double().numpy()
    np.testing.assert_allclose(score, -_lorentz(eeg, image, 0.4), rtol=1e-5)
    np.testing.assert_allclose(out.logits_per_eeg, -100.003 * _lorentz(eeg, image, 0.07), rtol=1e-3)
    model.config.loss_curvature, model.config.loss_scale = None, 1.0
    np.testing.assert_allclose(model.get_logits(out.eeg_embeds, out.image_embeds).detach(), score, rtol=1e-3)


def test_hyfi_embeddings_equal_numpy_and_the_gate_moves_them() -> None:
    model = tiny("hyfi")
    images = model.dummy_inputs["image_features"]
    semantic, perceptual = (images[key].double().numpy() for key in ("semantic", "perceptual"))
    weights = {key: value.double().numpy() for key, value in model.image_encoder.state_dict().items()}

    def point(x: np.ndarray, branch: str) -> np.ndarray:
        v = x @ weights[f"{branch}.weight"].T + weights[f"{branch}.bias"]
        norm = np.linalg.norm(v, axis=1, keepdims=True)
        return np.sinh(norm) * v / norm

    p, q = point(_unit(semantic), "semantic"), point(perceptual, "perceptual")
    share = 1 / (1 + np.exp(-(semantic @ weights["gate.weight"].T + weights["gate.bias"])))
    angle = np.diag(_lorentz(p, q, 1.0))[:, None]
    expected = (np.sinh((1 - share) * angle) * p + np.sinh(share * angle) * q) / np.sinh(angle)
    with torch.no_grad():
        np.testing.assert_allclose(model.get_image_features(images), expected, atol=1e-5)
        for bias, end in ((-200.0, p), (200.0, q)):
            model.image_encoder.gate.bias.fill_(bias)
            np.testing.assert_allclose(model.get_image_features(images), end, atol=1e-5)
        eeg = model.dummy_inputs["eeg"]
        v = model.eeg_encoder(eeg).double().numpy() / math.sqrt(model.config.embed_dim)
        norm = np.linalg.norm(v, axis=1, keepdims=True)
        np.testing.assert_allclose(model.get_eeg_features(eeg), np.sinh(norm) * v / norm, atol=1e-5)


def test_atm_layer_equals_that_of_torch() -> None:
    """With a width that the heads share without rest, the layer is torch's own post-norm encoder layer."""
    model = tiny("atm")
    layer, width = model.layer, model.config.n_times
    other = nn.TransformerEncoderLayer(width, 4, model.config.feedforward_dim, activation="gelu", batch_first=True).eval()
    attention = layer.attention
    with torch.no_grad():
        other.self_attn.in_proj_weight.copy_(torch.cat([attention.query.weight, attention.key.weight, attention.value.weight]))
        other.self_attn.in_proj_bias.copy_(torch.cat([attention.query.bias, attention.key.bias, attention.value.bias]))
        for mine, theirs in (
            (attention.output, other.self_attn.out_proj),
            (layer.expand, other.linear1),
            (layer.contract, other.linear2),
            (layer.attention_norm, other.norm1),
            (layer.feedforward_norm, other.norm2),
        ):
            theirs.load_state_dict(mine.state_dict())
        x = normal(2, 7, width)
        np.testing.assert_allclose(layer(x), layer.final_norm(other(x)), atol=1e-5)
    wide = RETRIEVAL_MODELS["atm"](RETRIEVAL_MODELS["atm"].config_class())
    assert wide.layer.attention.query.out_features == 248


def test_atm_tokens_positions_and_people() -> None:
    eeg = normal(1, 6, 32)

    def first(model: EEGRetrievalModel, person: int) -> Tensor:
        return model.tokens(eeg, torch.tensor([person]))[0, 0].detach()

    released, each = tiny("atm"), tiny("atm", subject_token="one_each")
    table, shared = released.tokens.subjects.weight.detach(), released.tokens.shared.detach()[0]
    assert [torch.equal(first(released, k), table[k]) for k in (1, 2)] == [True, True]  # row 0 is never used
    assert torch.equal(first(released, 3), shared) and torch.equal(first(released, 0), shared)
    assert all(torch.equal(first(each, k), each.tokens.subjects.weight[k - 1]) for k in (1, 2, 3))
    assert torch.equal(first(each, 0), each.tokens.shared[0])
    with torch.no_grad():
        coded, plain = tiny("atm", position_code="sinusoidal"), tiny("atm")
        difference = coded.tokens(eeg, torch.tensor([1])) - plain.tokens(eeg, torch.tensor([1]))
        np.testing.assert_allclose(difference[0, 1:], sinusoidal_positions(6, 32), atol=1e-6)
        assert not difference[0, 0].any()
        assert torch.equal(plain.get_eeg_features(eeg), plain.get_eeg_features(eeg, 0))
        assert torch.equal(plain.get_eeg_features(eeg, 2), plain.get_eeg_features(eeg, torch.tensor([2])))


def test_atm_drops_the_last_channel_as_the_released_code_does() -> None:
    eeg = normal(2, 6, 32)
    changed = eeg.clone()
    changed[:, -1] += 1
    with torch.no_grad():
        for kept, same in (("released_code", True), ("channels", False)):
            model = tiny("atm", kept_tokens=kept)
            model.layer = nn.Identity()  # attention would carry the last channel into the other tokens
            assert torch.equal(model.get_eeg_features(eeg, 1), model.get_eeg_features(changed, 1)) is same
            assert torch.equal(model.get_eeg_features(eeg, 1), model.get_eeg_features(eeg, 2)) is not same


def test_atm_weighs_image_and_text() -> None:
    model = tiny("atm", text_weight=0.25)
    inputs = model.dummy_inputs
    with torch.no_grad():
        both = float(model(**inputs).loss)
        images_only = float(tiny("atm", text_weight=0.0)(**inputs).loss)
        text_only = float(tiny("atm", text_weight=0.0)(**(inputs | {"image_features": inputs["text_features"]})).loss)
    assert both == pytest.approx(0.75 * images_only + 0.25 * text_only, rel=1e-5)
    assert RETRIEVAL_MODELS["atm"].config_class().text_weight == 0.01
    with pytest.raises(ValueError, match=r"text term of weight 0.25: give text_features"):
        model(**{key: value for key, value in inputs.items() if key != "text_features"})


def test_atm_dot_ranks_as_cosine() -> None:
    cosine, dot = tiny("atm"), tiny("atm", native_score="dot")
    eeg, image = normal(5, 12), normal(40, 12, seed=1)
    np.testing.assert_allclose(dot.score(eeg, image), eeg.numpy() @ _unit(image.numpy()).T, atol=1e-5)
    assert torch.equal(dot.score(eeg, image).argsort(dim=1), cosine.score(eeg, image).argsort(dim=1))


def test_brain_hive_sums_its_branches() -> None:
    model = tiny("brain-hive")
    images = model.dummy_inputs["image_features"]
    with torch.no_grad():
        total = sum(layer(images[name]) for name, layer in model.image_encoder.inputs.items())
        np.testing.assert_allclose(model.get_image_features(images), model.image_encoder.residual(total), atol=1e-5)
    paper = RETRIEVAL_MODELS["brain-hive"].config_class(branches="paper")
    assert paper.image_inputs == {"autoencoder": 1024, "image_text": 512, "rn50": 1024}
    names = dict(tiny("brain-hive", residual_bias=True, input_bias=False).named_parameters())
    assert "eeg_encoder.residual.expand.bias" in names and "eeg_encoder.input.bias" not in names
    frozen = tiny("brain-hive", freeze_images=True)
    assert {key.split(".")[0] for key, p in frozen.named_parameters() if not p.requires_grad} == {"image_encoder"}


def test_nice_leaves_images_alone_unless_told_otherwise() -> None:
    images = normal(3, 12)
    with torch.no_grad():
        assert torch.equal(tiny("nice").get_image_features(images), images)
        assert tiny("nice", image_projection="trained", embed_dim=16).get_image_features(images).shape == (3, 16)


def test_score_does_not_depend_on_autocast_or_on_half_files() -> None:
    for name in MODELS:
        model = tiny(name)
        inputs = model.dummy_inputs
        images = inputs["image_features"]
        half = {k: v.half() for k, v in images.items()} if isinstance(images, dict) else images.half()
        back = {k: v.float() for k, v in half.items()} if isinstance(half, dict) else half.float()
        with torch.no_grad():
            assert torch.equal(model.get_image_features(half), model.get_image_features(back))
            eeg_embeds, image_embeds = model.get_eeg_features(inputs["eeg"]), model.get_image_features(images)
            plain = model.score(eeg_embeds, image_embeds)
            with torch.autocast("cpu", torch.bfloat16):
                assert torch.equal(model.score(eeg_embeds, image_embeds), plain)
                out = model(**inputs)
        assert out.logits_per_eeg.dtype == torch.float32 and torch.isfinite(out.loss)


def test_kernels_by_name() -> None:
    for name in ("ubp", "ats"):
        config = RETRIEVAL_MODELS[name].config_class
        assert config().eval_kernel == 51 and config(blur_levels="released_code").eval_kernel == 45


# ------------------------------------------------------------------------------------------------------------------- saving and loading


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every model, with weights that are not those of any start, and its outputs."""
    root = tmp_path_factory.mktemp("retrieval")
    for name in MODELS:
        model = tiny(name, seed=3)
        with torch.no_grad():
            for i, value in enumerate([*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]):
                value.add_(0.1 * torch.rand(value.shape, generator=seeded(i)))
            out = model(**model.dummy_inputs)
        model.save_pretrained(root / name)
        np.savez(root / name / "expected.npz", **{key: value.numpy() for key, value in out.items()})
    return root


@pytest.mark.parametrize("name", MODELS)
def test_reloading_is_bit_equal(saved: Path, name: str) -> None:
    expected = np.load(saved / name / "expected.npz")
    assert not list((saved / name).glob("*.bin"))
    for loaded in (AutoModel.from_pretrained(saved / name), RETRIEVAL_MODELS[name].from_pretrained(saved / name)):
        assert type(loaded) is RETRIEVAL_MODELS[name] and not loaded.training
        with torch.no_grad():
            out = loaded(**loaded.dummy_inputs)
        assert set(out) == set(expected) and all(np.array_equal(out[key].numpy(), expected[key]) for key in expected)
    config = AutoConfig.from_pretrained(saved / name)
    assert type(config) is RETRIEVAL_MODELS[name].config_class
    assert config.to_dict().items() >= {"model_type": name, "n_times": config.n_times, "embed_dim": config.embed_dim}.items()


@pytest.mark.parametrize("name", MODELS)
def test_loads_in_half_precision(saved: Path, name: str) -> None:
    expected = np.load(saved / name / "expected.npz")
    model = AutoModel.from_pretrained(saved / name, dtype=torch.bfloat16)
    with torch.no_grad():
        out = model(**model.dummy_inputs)
        score = model.score(out.eeg_embeds, out.image_embeds)
    assert next(model.parameters()).dtype == torch.bfloat16 and score.dtype == torch.float32
    for key in ("eeg_embeds", "image_embeds"):
        found, wanted = out[key].float().numpy(), expected[key]
        assert np.abs(found - wanted).max() < 0.05 * np.abs(wanted).max(), key
    model.train()(**model.dummy_inputs).loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("ubp", "logit_scale"),
        ("ats", "attention.weight"),
        ("atm", "tokens.shared"),
        ("hyfi", "log_curvature"),
        ("nice", "eeg_encoder.temporal_norm.running_var"),
        ("brain-hive", "eeg_encoder.residual.norm.weight"),
    ],
)
def test_a_weight_that_a_checkpoint_lacks_gets_its_start(tmp_path: Path, saved: Path, name: str, key: str) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(saved / name / "model.safetensors")
    del weights[key]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_bytes((saved / name / "config.json").read_bytes())
    torch.manual_seed(0)
    found = RETRIEVAL_MODELS[name].from_pretrained(tmp_path).state_dict()[key]
    if key == "tokens.shared":
        assert torch.isfinite(found).all() and 0.4 < float(found.std()) < 1.6
    else:
        assert torch.equal(found, tiny(name).state_dict()[key])


WITHOUT_PACKAGE = """
import numpy as np, sys, torch
torch.set_num_threads(1)
from transformers import AutoModel
for name in sys.argv[2:]:
    model = AutoModel.from_pretrained(f"{sys.argv[1]}/{name}", trust_remote_code=True)
    expected = np.load(f"{sys.argv[1]}/{name}/expected.npz")
    with torch.no_grad():
        out = model(**model.dummy_inputs)
    for key in expected:
        np.testing.assert_allclose(out[key].numpy(), expected[key], rtol=1e-5, atol=1e-5)
    print(type(model).__module__.split(".")[0], name)
assert not any(name.split(".")[0] == "decodehub" for name in sys.modules)
"""


def test_all_load_without_the_package(run_without_package: Callable[..., str], saved: Path, tmp_path: Path) -> None:
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": f"{tmp_path}/modules"}
    printed = run_without_package(WITHOUT_PACKAGE, str(saved), *MODELS, env=environment)
    assert printed.split("\n")[:-1] == [f"transformers_modules {name}" for name in MODELS]


def test_the_seed_decides_the_weights() -> None:
    for name in MODELS:
        a, b, c = (tiny(name, seed=s).state_dict() for s in (1, 1, 2))
        assert all(torch.equal(a[key], b[key]) for key in a) and not all(torch.equal(a[key], c[key]) for key in a)


# -------------------------------------------------------------------------------------------------------------------------------- learning


def _pairs(model: EEGRetrievalModel, n: int, seed: int) -> dict[str, Any]:
    """EEG and image features that share a latent of four dimensions, through maps that are the same for all pairs."""
    config, latent = model.config, normal(n, 4, seed=seed)
    mixing = normal(4, config.n_channels * config.n_times, seed=101)
    eeg = (latent @ mixing).reshape(n, config.n_channels, config.n_times) + 0.5 * normal(
        n, config.n_channels, config.n_times, seed=seed + 1
    )
    images = {
        name: latent @ normal(4, dim, seed=200 + i) + 0.2 * normal(n, dim, seed=seed + 2 + i)
        for i, (name, dim) in enumerate(config.image_inputs.items())
    }
    inputs: dict[str, Any] = {"eeg": eeg, "image_features": images if len(images) > 1 else images["image"]}
    if config.model_type == "atm":
        inputs["text_features"] = latent @ normal(4, config.text_dim, seed=300)
    return inputs


def _top1(model: EEGRetrievalModel, inputs: dict[str, Any]) -> float:
    with torch.no_grad():
        out = model.eval()(inputs["eeg"], inputs["image_features"])
        return float((model.score(out.eeg_embeds, out.image_embeds).argmax(1) == torch.arange(len(out.eeg_embeds))).float().mean())


@pytest.mark.parametrize("name", MODELS)
def test_learns_pairs_and_finds_images_that_it_never_saw(name: str) -> None:
    model = tiny(name, seed=1)
    train, held_out = _pairs(model, 160, seed=10), _pairs(model, 40, seed=50)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    torch.manual_seed(0)
    losses = []
    for _ in range(60):
        loss = model.train()(**train, return_loss=True).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert all(math.isfinite(loss) for loss in losses) and np.mean(losses[-5:]) < 0.8 * losses[0]
    hits = _top1(model, held_out)
    mismatched = dict(held_out, eeg=held_out["eeg"].roll(1, dims=0))
    assert hits > 0.2, f"{hits} of 40 candidates, chance 0.025"
    assert _top1(model, mismatched) < 0.15
    if model.config.to_dict().get("logit_scale_trainable"):
        assert float(model.logit_scale.detach()) != pytest.approx(model.config.logit_scale_init, abs=1e-4)


def test_mb2c_trains_with_all_its_parts() -> None:
    model = tiny("mb2c", seed=1)
    config, generator = model.config, seeded(4)
    adversary = adv.MB2CAdversary(config, generator)
    train, held_out = _pairs(model, 140, seed=10), _pairs(model, 40, seed=50)
    labels = torch.arange(140) % config.n_classes
    main = torch.optim.Adam(model.parameters(), lr=5e-3, betas=(0.5, 0.999))
    critic_step = torch.optim.RMSprop([*adversary.image_critic.parameters(), *adversary.eeg_critic.parameters()], lr=5e-4, alpha=0.9)
    network_step = torch.optim.RMSprop([*adversary.to_image.parameters(), *adversary.to_eeg.parameters()], lr=5e-4, alpha=0.9)
    torch.manual_seed(0)
    losses = []
    for _ in range(40):
        mixed = mixup(train["eeg"], train["image_features"], labels, generator, config.mixup_ratio, config.mixup_alpha)
        out = model.train()(
            torch.cat([train["eeg"], mixed.eeg]), torch.cat([train["image_features"], mixed.image_features]), return_loss=True
        )
        assert len(out.eeg_embeds) == 140 + len(mixed.index)
        eeg, image = (adv.adversarial_features(x[:140], config.adversarial_features) for x in (out.eeg_embeds, out.image_embeds))
        for critic, network, source, real in (
            (adversary.image_critic, adversary.to_image, eeg.detach(), image.detach()),
            (adversary.eeg_critic, adversary.to_eeg, image.detach(), eeg.detach()),
        ):
            fake = network.with_noise(source, generator)
            critic_step.zero_grad()
            adv.critic_loss(critic, real, fake, labels, generator, config.gradient_penalty, config.class_weight).total.backward()
            critic_step.step()
            network_step.zero_grad()
            adv.generator_loss(critic, network, real, fake, labels, decay=config.generator_decay).backward()
            network_step.step()
        loss = out.loss + adv.cycle_loss(adversary, eeg, image, generator, config.cycle_weight, config.cycle_weighting)
        main.zero_grad()
        loss.backward()
        main.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] and all(math.isfinite(loss) for loss in losses)
    assert _top1(model, held_out) > 0.15


def test_neurobridge_smoothing_and_ubp_blur_fit_their_configurations() -> None:
    config = RETRIEVAL_MODELS["neurobridge"].config_class()
    assert smooth_eeg(normal(2, 17, 250), seeded(), config.smoothing_probability, config.smoothing_width).shape == (2, 17, 250)
    model = tiny("ubp")
    selector = BlurSelector(3, model.config.blur_levels, model.config.confidence_rate, model.config.confidence_z)
    with torch.no_grad():
        selector.update(torch.arange(3), model(**model.dummy_inputs).logits_per_eeg.diagonal())
    assert torch.isfinite(selector.confidence).all()


# ------------------------------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("name", MODELS)
def test_wrong_inputs_are_named(name: str) -> None:
    model = tiny(name)
    inputs, config = model.dummy_inputs, model.config
    with pytest.raises(
        ValueError, match=rf"eeg has shape \(3, {config.n_channels}, 7\), expected \(n, {config.n_channels}, {config.n_times}\)"
    ):
        model(normal(3, config.n_channels, 7))
    with pytest.raises(ValueError, match=r"eeg has shape"):
        model(normal(config.n_channels, config.n_times))
    images = inputs["image_features"]
    if isinstance(images, dict):
        with pytest.raises(ValueError, match=r"must be a mapping with the keys"):
            model(inputs["eeg"], next(iter(images.values())))
        first = next(iter(images))
        with pytest.raises(ValueError, match=rf"image_features\['{first}'\] has shape"):
            model(inputs["eeg"], images | {first: normal(3, 99)})
        with pytest.raises(ValueError, match="one row per image in every branch"):
            model(inputs["eeg"], images | {first: images[first][:2]})
        with pytest.raises(ValueError, match="has the keys"):
            model(inputs["eeg"], {first: images[first]})
    else:
        with pytest.raises(ValueError, match=r"image_features has shape \(3, 99\)"):
            model(inputs["eeg"], normal(3, 99))
        with pytest.raises(ValueError, match=r"has the keys \['clip'\], expected \['image'\]"):
            model(inputs["eeg"], {"clip": images})
    with pytest.raises(ValueError, match=r"one image per EEG epoch: logits have shape \(2, 3\)"):
        model(**(inputs | {"eeg": inputs["eeg"][:2]} | ({"subject": None} if name == "atm" else {})))
    with pytest.raises(ValueError, match="needs image_features"):
        model(**{key: value for key, value in inputs.items() if key != "image_features"})
    assert set(model(inputs["eeg"])) == {"eeg_embeds"}
    assert torch.equal(model(inputs["eeg"], return_dict=False)[0], model(inputs["eeg"]).eeg_embeds)


@pytest.mark.parametrize("subject", [-1, 4, torch.tensor([1, 2]), torch.tensor([1.0, 2.0, 3.0])])
def test_atm_refuses_people_that_do_not_exist(subject: Any) -> None:
    with pytest.raises(ValueError, match="subject must"):
        tiny("atm").get_eeg_features(normal(3, 6, 32), subject)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("nice", {"n_times": 70}, "too short .* at least 75 samples"),
        ("nice", {"image_dim": 1024}, "needs embed_dim equal to image_dim, got 768 and 1024"),
        ("nice", {"image_projection": "identity"}, "'frozen', 'trained', got 'identity'"),
        ("nice", {"logit_scale_mapping": "log"}, "logit_scale_mapping must be one of"),
        ("nice", {"stem_dropout": 1.5}, r"stem_dropout must lie in \[0, 1\]"),
        ("nice", {"logit_scale_init": math.nan}, "must be finite"),
        ("atm", {"text_dim": 768}, "embed_dim, image_dim and text_dim must be equal"),
        ("atm", {"kept_tokens": "all"}, "kept_tokens must be one of"),
        ("atm", {"position_code": "learned"}, "position_code must be one of"),
        ("mb2c", {"cycle_weighting": "twice"}, "'released_code', 'paper', got 'twice'"),
        ("ubp", {"embed_dim": 512}, "UBP has no image projection"),
        ("ubp", {"blur_levels": "code"}, "blur_levels must be one of"),
        ("ubp", {"initialization": "xavier"}, "initialization must be one of"),
        ("ats", {"bottleneck_ratio": 0.0}, "bottleneck_ratio must be positive"),
        ("brain-hive", {"branches": "all"}, "branches must be one of"),
        ("brain-hive", {"branches": {}}, "branches must be names and positive lengths"),
        ("hyfi", {"loss_curvature": -0.07}, "loss_curvature must be positive"),
        ("neurobridge", {"smoothing_applied": "once"}, "smoothing_applied must be one of"),
        ("neurobridge", {"n_channels": 2, "ch_names": ["Oz"]}, "1 names for 2 channels"),
        ("neurobridge", {"n_channels": True}, "n_channels must be a whole number"),
    ],
)
def test_configurations_refuse(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RETRIEVAL_MODELS[name].config_class(**settings)
