"""What was pushed works for people who have the Hugging Face libraries and not this package."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decodehub.hub.publish import Options, push_thing

# Runs in a process of its own, where importing this package fails.
CLEAN = """
import json
import evaluate
import numpy as np
import torch
from datasets import load_dataset
from transformers import AutoModel

edits = load_dataset("lab/eeg-editbench", split="test")
stream = load_dataset("lab/eeg-editbench", "sources", split="test", streaming=True)
sources = [row["concept"] for row in stream]

rng = np.random.default_rng(0)
q, e = len(sources), len(edits)
matrices = [rng.standard_normal(shape).tolist() for shape in ((q, q), (q, e))]
metric = evaluate.load("lab/eeg_editbench")
metric.add_batch(predictions=[{"source_scores": a, "edit_scores": b} for a, b in zip(*matrices)], references=sources)
result = metric.compute()

model = AutoModel.from_pretrained("lab/nice-tiny", trust_remote_code=True).eval()
with torch.inference_mode():
    output = model(**model.dummy_inputs)
assert not any(name.partition(".")[0] == "decodehub" for name in sys.modules)
print("RESULT" + json.dumps({
    "edits": len(edits),
    "image": type(edits[0]["edited_image"]).__name__,
    "label": edits.features["family"].int2str(edits[0]["family"]),
    "sources": sources,
    "two_afc": result["two_afc"],
    "release": result["release"],
    "module": type(model).__module__.partition(".")[0],
    "embeds": output.eeg_embeds.double().sum().item(),
}))
"""


@pytest.fixture
def published(hub: Any, make_release: Callable[..., Path], tmp_path: Path) -> tuple[Any, Path]:
    """The server with a data set, the metric and a model of each kind; and the release."""
    import torch

    from decodehub.hub_models.eeg_retrieval import NICEConfig, NICEModel

    release = make_release(tmp_path / "tiny")
    torch.manual_seed(0)
    NICEModel(NICEConfig.tiny()).eval().save_pretrained(tmp_path / "nice-tiny")
    options = Options(public=True, direct=True, go=True)
    for what, data_dir in (("eeg-editbench", str(release)), ("eeg_editbench", None), (str(tmp_path / "nice-tiny"), None)):
        push_thing(what, "lab", None, None, data_dir, options, lambda line: None)
    return hub, release


def test_it_loads_and_scores_the_same(published: tuple[Any, Path], run_without_package: Callable[..., str], tmp_path: Path) -> None:
    import torch

    from decodehub.hub_models.eeg_retrieval import NICEModel
    from decodehub.metrics.eeg_editbench.benchmark import load_benchmark
    from decodehub.metrics.eeg_editbench.scoring import prepare, score_run

    hub, release = published
    hub.requests.clear()
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "DECODEHUB_", "PYTHON"))}
    environment |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    found = json.loads(run_without_package(CLEAN, cwd=tmp_path, env=environment).partition("RESULT")[2])

    benchmark = load_benchmark(str(release))
    q, e = len(benchmark.concepts), len(benchmark.edit_ids)
    rng = np.random.default_rng(0)
    right = score_run(prepare(benchmark), rng.standard_normal((q, q)), rng.standard_normal((q, e))).as_dict()
    model = NICEModel.from_pretrained(tmp_path / "nice-tiny").eval()
    with torch.inference_mode():
        embeds = model(**model.dummy_inputs).eeg_embeds.double().sum().item()
    assert found == {
        "edits": e,
        "image": "PngImageFile",
        "label": "identity",
        "sources": list(benchmark.concepts),
        "two_afc": right["two_afc"],
        "release": "tiny",
        "module": "transformers_modules",
        "embeds": embeds,
    }
    # The stream read pieces of the table and nobody needed a token.
    assert any(request.range and "sources/test-" in request.path for request in hub.requests)
    assert not any(request.token for request in hub.requests)
