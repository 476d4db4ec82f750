"""A metric with optional packages as a Space: they are not required of everyone, and it works without this package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from decodehub.publish import Repo
from decodehub.registry import names
from decodehub.scripts._push_metric import foreign, requirements, stage_metric

CLEAN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "decodehub":
            raise ModuleNotFoundError("decodehub is not installed")

sys.meta_path.insert(0, Hidden())
import evaluate
import numpy as np

metric = evaluate.load(sys.argv[1])
images = [np.random.default_rng(i).integers(0, 256, (40, 40, 3)).astype(np.uint8) for i in range(2)]
print(metric.compute(predictions=images, references=images, measures=["mse", "ssim"], progress=False)["ssim"])
"""


def test_packages_of_extras_are_left_to_the_user_and_unknown_ones_refused() -> None:
    assert foreign("def f():\n    import lpips\n    import numpy") == {"lpips", "numpy"}
    assert [line.split("<")[0] for line in requirements({"lpips", "numpy"})] == ["numpy"]
    with pytest.raises(ValueError, match="notapackage"):
        requirements({"notapackage"})


def test_a_measure_of_images_works_without_the_package(tmp_path: Path) -> None:
    folder = tmp_path / "reconstruction_quality"
    folder.mkdir()
    entry = next(entry for entry in names("metric") if entry.name == "reconstruction_quality")
    stage_metric(entry, folder, Repo("space", "lab/reconstruction_quality"))
    done = subprocess.run([sys.executable, "-c", CLEAN, str(folder)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) == pytest.approx(1)
