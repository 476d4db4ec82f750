"""BCS over a corpus with the shape of the paper's (6,855 pairs of 200 references) against scoring pair after pair.

    python benchmarks/bcs_scoring.py                 # 69 pairs of 2 references, about a minute
    python benchmarks/bcs_scoring.py --scale 0.1     # 686 pairs of 20 references

"pair by pair" encodes both images of every pair (the released code encodes references so) and scores all pairs at the end. "once each" is
what `BCSModel.score` does. "bare" is the encoder's forward passes over the distinct images, decoded and resized beforehand: what no scoring can
do without. The order of the three changes from repeat to repeat; the best of the repeats counts, since what else runs on the machine can only add. lite0 is the
cheapest encoder there is: with the paper's, whose forward passes cost some thirty times as much, all else is a smaller share.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image

from decodehub.hub_models.bcs import BCSConfig, BCSModel, pair_features
from decodehub.hub_models.bcs.encoders import load_encoder
from decodehub.loaders.images import decode_image

PAIRS, REFERENCES = 6855, 200


def corpus(pairs: int, references: int, size: int) -> tuple[list[bytes], list[bytes]]:
    """Smooth random pictures as JPEG bytes; pair i is of reference i modulo their number."""
    rng = np.random.default_rng(0)

    def picture() -> bytes:
        small = Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8))
        buffer = io.BytesIO()
        small.resize((size, size), Image.Resampling.BICUBIC).save(buffer, format="JPEG", quality=90)
        return buffer.getvalue()

    originals = [picture() for _ in range(references)]
    return [originals[i % references] for i in range(pairs)], [picture() for _ in range(pairs)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scale", type=float, default=0.01)
    parser.add_argument("--size", type=int, default=256, help="side of an image in pixels")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    encoder = load_encoder("lite0")
    model = BCSModel(BCSConfig(encoders=[{"id": "lite0", "dim": encoder.dim, "fingerprint": encoder.fingerprint}])).eval()
    model.encoders = [encoder]
    references, reconstructions = corpus(round(PAIRS * args.scale), round(REFERENCES * args.scale), args.size)
    distinct = list(dict.fromkeys([*references, *reconstructions]))
    tensors = [encoder.preprocess(Image.open(io.BytesIO(data)).convert("RGB"))[None] for data in distinct]
    found: dict[str, np.ndarray] = {}

    def pair_by_pair() -> None:
        rows = []
        for a, b in zip(references, reconstructions):
            r, g = model.embed([decode_image(a, name="reference"), decode_image(b, name="reconstruction")])[0]
            rows.append(pair_features(r[None], g[None]).numpy())
        found["pair by pair"] = np.asarray(model.predict(np.concatenate(rows)).question_scores)

    def once_each() -> None:
        found["once each"] = np.asarray(model.score(references, reconstructions).question_scores)

    def bare() -> None:
        for tensor in tensors:
            encoder.forward(tensor)

    jobs: dict[str, Callable[[], None]] = {"pair by pair": pair_by_pair, "once each": once_each, "bare": bare}
    times: dict[str, list[float]] = {name: [] for name in jobs}
    bare()  # warm up
    for repeat in range(args.repeats):
        names = list(jobs)
        for name in names[repeat % 3 :] + names[: repeat % 3]:
            start = time.process_time()
            jobs[name]()
            times[name].append(time.process_time() - start)
    best = {name: min(values) for name, values in times.items()}
    print(
        f"{len(references)} pairs of {len(set(references))} references, {len(distinct)} distinct images, one thread, lite0, processor time"
    )
    for name, seconds in best.items():
        print(f"  {name:13} {seconds:7.2f} s   {', '.join(f'{t:.2f}' for t in times[name])}")
    print(f"  pair by pair / once each: {best['pair by pair'] / best['once each']:.2f}")
    print(f"  once each / bare forward passes: {best['once each'] / best['bare']:.3f}")
    print(f"  largest difference of a score: {np.abs(found['pair by pair'] - found['once each']).max():.1e}")


if __name__ == "__main__":
    main()
