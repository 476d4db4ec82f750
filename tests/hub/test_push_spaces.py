"""Metrics as Spaces: optional packages are not required of everyone, they work without this package, and their pages answer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from decodehub.core.entry import names
from decodehub.hub.client import Repo
from decodehub.hub.metric import foreign, requirements, stage_metric

CLEAN = """
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


def test_a_measure_of_images_works_without_the_package(run_without_package: Callable[..., str], tmp_path: Path) -> None:
    folder = tmp_path / "reconstruction_quality"
    folder.mkdir()
    entry = next(entry for entry in names("metric") if entry.name == "reconstruction_quality")
    stage_metric(entry, folder, Repo("space", "lab/reconstruction_quality"))
    assert float(run_without_package(CLEAN, str(folder), cwd=tmp_path).split()[-1]) == pytest.approx(1)


APP = """
import json, runpy, sys
import numpy as np

space = runpy.run_path(sys.argv[1], run_name="app")
image = np.random.default_rng(0).integers(0, 256, (40, 40, 3)).astype(np.uint8)
print("RESULT" + json.dumps(space["score"](*({"json": sys.argv[2:4], "image": [image, image]}[sys.argv[4]]))))
"""


@pytest.mark.parametrize(
    ("name", "arguments", "key"),
    [
        ("reconstruction_quality", ["", "", "image"], "ssim"),
        ("vlm_agreement", [json.dumps([[[1] * 12, [0.5] * 12]] * 3), json.dumps(["a", "b", "c"]), "json"], "unanimous"),
    ],
)
def test_the_page_of_a_space_answers(name: str, arguments: list[str], key: str, tmp_path: Path) -> None:
    pytest.importorskip("gradio")
    folder = tmp_path / name
    folder.mkdir()
    stage_metric(next(entry for entry in names("metric") if entry.name == name), folder, Repo("space", f"lab/{name}"))
    done = subprocess.run([sys.executable, "-c", APP, str(folder / "app.py"), *arguments], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert key in json.loads(done.stdout.split("RESULT")[1])
