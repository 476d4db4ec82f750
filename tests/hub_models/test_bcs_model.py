"""BCS models: the published sizes, a second implementation, members as one module, encoders by reference, images of every kind."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoProcessor

from decodehub.hub_models.bcs import BCSConfig, BCSHead, BCSModel, BCSProcessor, pair_features
from decodehub.hub_models.bcs import encoders as own_encoders
from decodehub.hub_models.bcs.modeling_bcs import weighted_mse
from decodehub.loaders.image_encoders import load_encoder

DIM = 6
ARCHITECTURES = ("mlp", "ordinal_prototype", "siglip_baseline")


def config(**changes: object) -> BCSConfig:
    settings = {"encoders": [{"id": "lite0", "dim": DIM, "fingerprint": None}], "hidden_size": 8, "ffn_size": 12, "seeds": [7, 13, 21]}
    return BCSConfig(**(settings | changes))


def features(n: int = 5, width: int = 4 * DIM + 1, seed: int = 0) -> Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed))


class FakeEncoder:
    """Mean colour and some moments: a stand-in of `DIM` numbers that counts what it encodes."""

    dim = DIM

    def __init__(self, fingerprint: str = "sha256:fake") -> None:
        self.fingerprint, self.encoded = fingerprint, 0

    def encode(self, images: Sequence[Image.Image]) -> np.ndarray:
        self.encoded += len(images)
        pixels = [np.asarray(image, dtype=np.float32).reshape(-1, 3) / 255 for image in images]
        return np.stack([np.concatenate([p.mean(0) + 0.1, p.std(0) + 0.1]) for p in pixels])


# ------------------------------------------------------------------------------------------------------------------------ sizes, second form


def test_published_sizes() -> None:
    """Appendix C.3 and the released code: 9,219 features, 6,848,530 parameters a member, seeds 7 13 21 37 42."""
    published = BCSConfig()
    assert published.feature_dim == 9219 and published.seeds == [7, 13, 21, 37, 42]
    with torch.device("meta"):
        head = BCSHead(published)
    assert head.num_parameters() == 5 * 6_848_530
    assert BCSConfig(encoders=[{"id": "lite0", "dim": 1280, "fingerprint": None}]).feature_dim == 5121


class PlainMember(nn.Module):
    """One member of the "mlp" architecture, of torch's own layers."""

    def __init__(self, n_in: int, dim: int, ffn: int, blocks: int, n_out: int) -> None:
        super().__init__()
        self.start = nn.Sequential(nn.LayerNorm(n_in), nn.Linear(n_in, dim), nn.GELU())
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, ffn), nn.GELU(), nn.Dropout(0.2), nn.Linear(ffn, dim), nn.Dropout(0.2))
            for _ in range(blocks)
        )
        self.end = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, n_out))

    def forward(self, x: Tensor) -> Tensor:
        x = self.start(x)
        for block in self.blocks:
            x = x + block(x)
        return torch.sigmoid(self.end(x))


def plain_member(head: BCSHead, member: int) -> PlainMember:
    c, trunk = head.config, head.network.trunk
    plain = PlainMember(c.feature_dim, c.hidden_size, c.ffn_size, c.n_blocks, 12)
    layers = [(plain.start[0], trunk.input_norm), (plain.start[1], trunk.input)]
    for block, stacked in zip(plain.blocks, trunk.blocks):
        layers += [(block[0], stacked.norm), (block[1], stacked.up), (block[4], stacked.down)]
    layers += [(plain.end[0], trunk.output_norm), (plain.end[1], head.network.output)]
    for layer, stacked in layers:
        layer.load_state_dict({"weight": stacked.weight[member], "bias": stacked.bias[member]})
    return plain.eval()


def test_every_member_is_the_plain_network() -> None:
    head = BCSHead(config(n_blocks=2)).eval()
    x = features()
    with torch.no_grad():
        for p in head.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))  # norms off their start
    output = head(x, return_members=True)
    output.member_scores.square().sum().backward()
    for member in range(3):
        plain, trunk = plain_member(head, member), head.network.trunk
        scores = plain(x)
        scores.square().sum().backward()
        torch.testing.assert_close(output.member_scores[member], scores, rtol=1e-5, atol=1e-6)
        layers = [(plain.start[0], trunk.input_norm), (plain.start[1], trunk.input), (plain.blocks[0][1], trunk.blocks[0].up)]
        for layer, stacked in layers:
            torch.testing.assert_close(stacked.weight.grad[member], layer.weight.grad, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(stacked.bias.grad[member], layer.bias.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(output.question_scores, output.member_scores.mean(0))
    torch.testing.assert_close(output.t_pas, output.question_scores[:, :6].mean(1))
    torch.testing.assert_close(output.t_sas, output.question_scores[:, 6:].mean(1))
    torch.testing.assert_close(output.spread, output.member_scores.std(0, correction=0))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_member_does_not_depend_on_the_others(architecture: str) -> None:
    together = BCSHead(config(architecture=architecture)).eval()
    alone = BCSHead(config(architecture=architecture, seeds=[13])).eval()
    for name, value in alone.state_dict().items():
        assert torch.equal(value[0], together.state_dict()[name][1]), name
    with torch.no_grad():
        torch.testing.assert_close(
            alone(features(), return_members=True).member_scores[0],
            together(features(), return_members=True).member_scores[1],
            rtol=1e-6,
            atol=1e-6,
        )


def test_prototype_scores_mix_expected_class_and_linear_score() -> None:
    head = BCSHead(config(architecture="ordinal_prototype")).eval()
    with torch.no_grad():
        output = head(features(), return_members=True)
        hidden = head.network.trunk(features(), None)
        cosines = torch.einsum(
            "mnd,mkd->mnk", nn.functional.normalize(hidden, dim=-1), nn.functional.normalize(head.network.prototypes, dim=-1)
        )
        torch.testing.assert_close(output.logits.flatten(-2), 10 * cosines, rtol=1e-4, atol=1e-5)  # the scale starts at 10
        expected = (output.logits.softmax(-1) * torch.tensor([0, 0.5, 1])).sum(-1)
        linear = torch.sigmoid(head.network.output(hidden))
    torch.testing.assert_close(output.member_scores, 0.75 * expected + 0.25 * linear)


def test_ordinal_output_snaps_to_three_values_and_keeps_the_spread() -> None:
    thresholds = [[0.3, 0.6]] * 12
    plain = BCSHead(config()).eval()
    ordinal = BCSHead(config(output_type="ordinal", thresholds=thresholds)).eval()
    with torch.no_grad():
        a, b = plain(features()), ordinal(features())
    expected = np.select([a.question_scores < 0.3, a.question_scores < 0.6], [0.0, 0.5], 1.0)
    np.testing.assert_array_equal(b.question_scores, expected)
    np.testing.assert_allclose(b.t_pas, expected[:, :6].mean(1), rtol=1e-6)
    assert torch.equal(a.spread, b.spread)


def test_pair_features_are_the_five_parts() -> None:
    r, g = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 2.0]])
    torch.testing.assert_close(pair_features(r, g), torch.tensor([[0.6, 0.8, 0, 1, 0.6, 0.2, 0, 0.8, 0.8]]))
    same = pair_features(r.bfloat16(), r.bfloat16())
    assert same.dtype == torch.float32 and same[0, 4:6].abs().max() == 0 and same[0, -1] == pytest.approx(1, abs=1e-6)
    with pytest.raises(ValueError, match="reconstruction embedding of row 0"):
        pair_features(r, torch.zeros(1, 2))


def test_loss_is_equation_17_and_skips_unknown_targets() -> None:
    scores = torch.rand(2, 4, 12, generator=torch.Generator().manual_seed(0))
    labels, weights = torch.rand(4, 12), torch.rand(4, 12)
    labels[0, 3] = np.nan
    known = ~labels.isnan().numpy()
    for m in range(2):
        error = (scores[m].numpy() - labels.numpy())[known] ** 2
        assert weighted_mse(scores, labels, weights)[m].item() == pytest.approx(np.average(error, weights=weights.numpy()[known]), rel=1e-5)


# -------------------------------------------------------------------------------------------------------------------- saving and loading


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_reloading_is_bit_equal_and_saves_the_head_alone(tmp_path: Path, architecture: str) -> None:
    model = BCSModel(config(architecture=architecture, encoders=[{"id": "lite0", "dim": DIM, "fingerprint": "sha256:fake"}])).eval()
    model.encoders = [FakeEncoder()]
    model.save_pretrained(tmp_path)
    for again in (AutoModel.from_pretrained(tmp_path), BCSModel.from_pretrained(tmp_path), BCSHead.from_pretrained(tmp_path)):
        assert again.state_dict().keys() == model.state_dict().keys()
        assert all(name.startswith("network.") for name in again.state_dict())
        assert all(torch.equal(value, model.state_dict()[name]) for name, value in again.state_dict().items())
        with torch.no_grad():
            assert torch.equal(again.eval()(features()).t_pas, model(features()).t_pas)
    assert type(AutoConfig.from_pretrained(tmp_path)) is BCSConfig
    assert {p.suffix for p in tmp_path.iterdir()} == {".json", ".py", ".safetensors"}


def test_loads_in_half_precision(tmp_path: Path) -> None:
    model = BCSModel(config()).eval()
    model.save_pretrained(tmp_path)
    half = BCSModel.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        torch.testing.assert_close(half(features()).question_scores, model(features()).question_scores, atol=0.02, rtol=0)


WITHOUT_PACKAGE = """
import numpy as np, sys, torch
torch.set_num_threads(1)
from transformers import AutoModel, AutoProcessor
folder = sys.argv[1]
model = AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
processor = AutoProcessor.from_pretrained(folder, trust_remote_code=True)
data = np.load(folder + "/expected.npz")
with torch.no_grad():
    np.testing.assert_allclose(model(torch.from_numpy(data["features"])).t_sas.numpy(), data["t_sas"], atol=1e-6)
    pixels = model(**processor([data["a"]], [data["b"]])).t_pas.numpy()
np.testing.assert_allclose(pixels, data["t_pas"], atol=1e-5)
np.testing.assert_allclose(model.score([data["a"]], [data["b"]]).t_pas.numpy(), data["t_pas"], atol=1e-5)
assert not any(name.split(".")[0] == "decodehub" for name in sys.modules)
print(type(model).__module__.split(".")[0])
"""


def test_works_without_the_package(run_without_package: Callable[..., str], tmp_path: Path) -> None:
    encoder = own_encoders.load_encoder("lite0")
    model = BCSModel(config(encoders=[{"id": "lite0", "dim": 1280, "fingerprint": encoder.fingerprint}])).eval()
    model.encoders = [encoder]
    model.save_pretrained(tmp_path)
    BCSProcessor(["lite0"]).save_pretrained(tmp_path)
    assert AutoProcessor.from_pretrained(tmp_path).encoders == ["lite0"]
    own = {path.stem for path in Path(inspect.getfile(BCSModel)).parent.glob("*.py")}
    assert {path.stem for path in tmp_path.glob("*.py")} - own == {"images", "files"}  # what travels has no name of the family's own
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 255, (40, 50, 3), dtype=np.uint8) for _ in range(2))
    x = features(4, 5121)
    with torch.no_grad():
        expected = {"features": x.numpy(), "a": a, "b": b, "t_sas": model(x).t_sas, "t_pas": model.score([a], [b]).t_pas}
    np.savez(tmp_path / "expected.npz", **expected)
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": f"{tmp_path}/modules"}
    assert run_without_package(WITHOUT_PACKAGE, str(tmp_path), env=environment).strip() == "transformers_modules"


# ------------------------------------------------------------------------------------------------------------------------ encoders, images


def test_lite0_is_that_of_the_loaders() -> None:
    ours, theirs = own_encoders.load_encoder("lite0"), load_encoder("lite0")
    assert ours.fingerprint == theirs.fingerprint and ours.dim == theirs.dim == 1280
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 90, 3), dtype=np.uint8))
    assert np.array_equal(ours.encode([picture]), theirs.encode([picture]))


def save_tiny(kind: str, folder: Path) -> str:
    """A random encoder of transformers with its image processor; gives its id."""
    import transformers as t

    torch.manual_seed(0)
    vision = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 16,
    }
    text = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 20}
    if kind == "clip":
        model: nn.Module = t.CLIPModel(t.CLIPConfig(vision_config=vision, text_config=text, projection_dim=10))
        processor = t.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    elif kind == "siglip":
        model = t.SiglipModel(t.SiglipConfig(vision_config=vision, text_config=text))
        processor = t.SiglipImageProcessorPil(size={"height": 32, "width": 32})
    else:
        model = t.Dinov2Model(t.Dinov2Config(**{k: v for k, v in vision.items() if k != "intermediate_size"}))
        processor = t.BitImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return f"hf:{folder}"


@pytest.mark.parametrize("kind", ["clip", "siglip", "dinov2"])
def test_transformers_encoders_are_those_of_the_loaders(tmp_path: Path, kind: str) -> None:
    id = save_tiny(kind, tmp_path / kind)
    ours, theirs = own_encoders.load_encoder(id), load_encoder(id, "cpu")
    assert ours.fingerprint == theirs.fingerprint
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 90, 3), dtype=np.uint8))
    assert np.array_equal(ours.encode([picture]), theirs.encode([picture]))
    model = BCSModel(config(encoders=[{"id": id, "dim": ours.dim, "fingerprint": ours.fingerprint}])).eval()
    with torch.no_grad():
        from_pixels = model(**BCSProcessor([id])([picture], [picture])).question_scores
    torch.testing.assert_close(from_pixels, model.score([picture], [picture]).question_scores)


def test_unreachable_and_unknown_encoders_are_named() -> None:
    with pytest.raises(RuntimeError, match="hf download nobody/nothing"):
        own_encoders.load_encoder("hf:nobody/nothing")
    with pytest.raises(ValueError, match="cannot load encoder 'open_clip:x/y'"):
        own_encoders.load_encoder("open_clip:x/y")


def test_a_head_refuses_other_encoders() -> None:
    model = BCSModel(config(encoders=[{"id": "lite0", "dim": DIM, "fingerprint": "sha256:right"}]))
    with pytest.raises(ValueError, match=r"trained with encoder 'lite0'.*other weights"):
        model.encoders = [FakeEncoder("sha256:wrong")]
    with pytest.raises(ValueError, match="takes features of 1 encoders"):
        model.encoders = [FakeEncoder("sha256:right")] * 2
    wide = BCSModel(config(encoders=[{"id": "x", "dim": 7, "fingerprint": None}]))
    with pytest.raises(ValueError, match="gives 6 numbers, this head takes 7"):
        wide.encoders = [FakeEncoder()]


# ------------------------------------------------------------------------------------------------------------------------------- scoring


def fake_model() -> tuple[BCSModel, FakeEncoder]:
    model, encoder = BCSModel(config()).eval(), FakeEncoder()
    model.encoders = [encoder]
    return model, encoder


def test_each_distinct_image_is_encoded_once_and_batches_change_nothing() -> None:
    rng = np.random.default_rng(1)
    references = [rng.integers(0, 255, (8, 8, 3), dtype=np.uint8) for _ in range(4)]
    reconstructions = [rng.integers(0, 255, (8, 8, 3), dtype=np.uint8) for _ in range(11)]
    shared = [references[i % 4] for i in range(11)]
    model, encoder = fake_model()
    whole = model.score(shared, reconstructions)
    assert encoder.encoded == 15
    for size in (1, 4, 7):
        other = model.score(shared, reconstructions, batch_size=size)
        torch.testing.assert_close(other.question_scores, whole.question_scores, rtol=0, atol=1e-6)
    one = model.score(shared[3:4], reconstructions[3:4])
    torch.testing.assert_close(one.question_scores[0], whole.question_scores[3], rtol=0, atol=1e-6)
    swapped = model.score(reconstructions, shared)
    assert not torch.allclose(swapped.t_pas, whole.t_pas)


def test_blocks_of_predict_join_without_a_seam() -> None:
    head = BCSHead(config()).eval()
    x = features(1100)
    with torch.no_grad():
        torch.testing.assert_close(head.predict(x.numpy()).question_scores, head(x).question_scores, rtol=0, atol=1e-6)


def test_bad_calls_are_refused() -> None:
    model, _ = fake_model()
    picture = np.zeros((8, 8, 3), dtype=np.uint8)
    with pytest.raises(ValueError, match=r"shape \(5, 24\), expected \(n, 25\) of lite0"):
        model(features(5, 24))
    bad = features()
    bad[2, 3] = np.nan
    with pytest.raises(ValueError, match="NaN or infinite values in 1 rows, the first is row 2"):
        model(bad)
    late = features(600)
    late[555, 0] = np.inf
    with pytest.raises(ValueError, match="row 555"):
        model.predict(late.numpy())
    with pytest.raises(ValueError, match="found 1 and 2"):
        model.score([picture], [picture] * 2)
    with pytest.raises(ValueError, match="found 0 and 0"):
        model.score([], [])
    with pytest.raises(TypeError, match="must be a sequence of images"):
        model.score(picture, [picture])
    with pytest.raises(ValueError, match="batch_size"):
        model.score([picture], [picture], batch_size=0)
    with pytest.raises(ValueError, match="either features"):
        model()
    with pytest.raises(ValueError, match="take images, not pixels"):
        model(reference_pixel_values=[features()], reconstruction_pixel_values=[features()])
    with pytest.raises(ValueError, match="no pairs"):
        model.predict(np.empty((0, 25), dtype=np.float32))
    with pytest.raises(ValueError, match="found 1 and 0"):
        BCSProcessor()([picture], [])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoders": []}, "encoders must be a list"),
        ({"seeds": [1, 1]}, "seeds must be distinct"),
        ({"architecture": "cnn"}, "architecture is 'cnn'"),
        ({"output_type": "ordinal"}, "needs thresholds"),
        ({"thresholds": [[0.5, 0.2]] * 12}, "0 <= low < high <= 1"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"dropout": 1.0}, "dropout"),
        ({"questions": ["P1", "P1", "S1"]}, "questions must be distinct"),
    ],
)
def test_bad_configurations_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**changes)


def test_configuration_survives_json(tmp_path: Path) -> None:
    made = config(output_type="ordinal", thresholds=[[0.25, 0.75]] * 12, release="sample", n_train=10)
    made.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "bcs"
    again = BCSConfig.from_pretrained(tmp_path)
    assert (again.encoders, again.thresholds, again.release, again.n_train) == (made.encoders, made.thresholds, "sample", 10)
