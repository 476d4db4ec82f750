"""Pair features: the published layout against a second implementation, each image encoded once, files that are whole or absent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from decodehub.hub_models.bcs import pair_features as of_the_model
from decodehub.loaders.pair_features import assemble, pair_features


class Counting:
    """Mean colour of the quarters of an image, 12 numbers; counts what it encodes."""

    name, dim, licence = "counting", 12, "none"
    preprocessing: dict = {}  # noqa: RUF012

    def __init__(self, scale: float = 1.0) -> None:
        self.encoded, self.scale = 0, scale
        self.fingerprint = f"sha256:{scale}"

    def preprocess(self, image: Image.Image) -> Tensor:
        return torch.from_numpy(np.asarray(image.resize((2, 2)), dtype=np.float32).copy())

    def encode(self, images: Sequence[Image.Image]) -> np.ndarray:
        self.encoded += len(images)
        return np.stack([self.preprocess(image).flatten().numpy() * self.scale for image in images])


def pictures(n: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 255, (8, 8, 3), dtype=np.uint8) for _ in range(n)]


def test_layout_and_values_are_those_of_the_model() -> None:
    encoders = [Counting(), Counting(2.0)]
    a, b = pictures(600), pictures(600, 1)
    found = pair_features(encoders, a, b, progress=False)
    assert found.features.shape == (600, 2 * 49) and found.features.dtype == np.float32
    assert found.fingerprints == ["sha256:1.0", "sha256:2.0"]
    sides = [torch.from_numpy(Counting().encode([Image.fromarray(x) for x in side])) for side in (a, b)]
    block = of_the_model(*sides).numpy()
    np.testing.assert_allclose(
        found.features, np.concatenate([block, block], axis=1), atol=1e-6
    )  # the length of an embedding has no effect
    r, g = (side.numpy()[0] / np.linalg.norm(side.numpy()[0]) for side in sides)
    np.testing.assert_allclose(found.features[0, :49], [*r, *g, *abs(r - g), *(r * g), r @ g], atol=1e-6)


def test_shared_references_are_encoded_once(tmp_path: Path) -> None:
    references = pictures(3)
    paths = []
    for i, picture in enumerate(references):
        Image.fromarray(picture).save(tmp_path / f"{i}.png")
        paths.append(tmp_path / f"{i}.png")
    reconstructions = pictures(9, 1)
    encoder = Counting()
    found = pair_features([encoder], [paths[i % 3] for i in range(9)], reconstructions, progress=False)
    assert encoder.encoded == found.n_images == 12
    assert len(set(found.reference_hashes)) == 3 and len(set(found.reconstruction_hashes)) == 9
    # Equal content under two names counts once, too.
    (tmp_path / "copy.png").write_bytes(paths[0].read_bytes())
    encoder = Counting()
    assert pair_features([encoder], [paths[0]], [tmp_path / "copy.png"], progress=False).n_images == encoder.encoded == 1


def test_a_file_is_used_again_only_for_the_same_pairs_and_encoders(tmp_path: Path) -> None:
    out = tmp_path / "pairs.npy"
    a, b = pictures(5), pictures(5, 1)
    in_memory = pair_features([Counting()], a, b, progress=False).features
    first = pair_features([Counting()], a, b, out=out, progress=False)
    assert isinstance(first.features, np.memmap) and np.array_equal(first.features, in_memory)
    again = Counting()
    assert np.array_equal(pair_features([again], a, b, out=out, progress=False).features, in_memory) and again.encoded == 0
    other = Counting()
    pair_features([other], b, a, out=out, progress=False)
    assert other.encoded == 10
    changed = Counting(3.0)
    pair_features([changed], b, a, out=out, progress=False)
    assert changed.encoded == 10
    out.write_bytes(out.read_bytes()[:100])
    repaired = Counting(3.0)
    assert pair_features([repaired], b, a, out=out, progress=False).features.shape == (5, 49) and repaired.encoded == 10


def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_text("no image")
    with pytest.raises(ValueError, match=r"reconstruction of pair-b"):
        pair_features(
            [Counting()],
            pictures(2),
            [pictures(1)[0], tmp_path / "bad.png"],
            out=tmp_path / "out" / "pairs.npy",
            ids=["pair-a", "pair-b"],
            progress=False,
        )
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_bad_calls_are_refused() -> None:
    a = pictures(2)
    with pytest.raises(ValueError, match="at least one encoder"):
        pair_features([], a, a)
    with pytest.raises(ValueError, match="found 2 and 1"):
        pair_features([Counting()], a, a[:1])
    with pytest.raises(ValueError, match="found 0 and 0"):
        pair_features([Counting()], [], [])
    with pytest.raises(ValueError, match="1 ids for 2 pairs"):
        pair_features([Counting()], a, a, ids=["x"])
    with pytest.raises(ValueError, match="reconstruction 1 is all zeros"):
        pair_features([Counting()], a, [a[0], np.zeros((8, 8, 3), dtype=np.uint8)], progress=False)


def test_assemble_of_equal_vectors() -> None:
    r = np.array([[0.6, 0.8]], dtype=np.float32)
    np.testing.assert_allclose(assemble(r, r), [[0.6, 0.8, 0.6, 0.8, 0, 0, 0.36, 0.64, 1]], atol=1e-7)
