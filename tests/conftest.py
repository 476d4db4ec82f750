"""Everything the tests write goes to one temporary folder, set before any Hugging Face import; no test reaches a network."""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

if "DECODEHUB_TEST_ROOT" not in os.environ:  # the first process; workers of pytest-xdist inherit it
    os.environ["DECODEHUB_TEST_ROOT"] = tempfile.mkdtemp(prefix="decodehub-tests-")
    atexit.register(shutil.rmtree, os.environ["DECODEHUB_TEST_ROOT"], ignore_errors=True)
ROOT = Path(os.environ["DECODEHUB_TEST_ROOT"])
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")
os.environ.update(
    DECODEHUB_HOME=str(ROOT / "home"),  # shared, so that the sample is built once
    HF_HOME=str(ROOT / f"hf-{WORKER}"),
    HF_HUB_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    HF_HUB_DISABLE_XET="1",
    HF_DATASETS_DISABLE_PROGRESS_BARS="1",
    MPLBACKEND="Agg",
    NO_COLOR="1",
    COLUMNS="160",
    OMP_NUM_THREADS="1",
)
for variable in ("DECODEHUB_ORG", "HF_TOKEN", "HF_DATASETS_CACHE", "HF_ENDPOINT"):
    os.environ.pop(variable, None)

import numpy as np
import pytest

REPOSITORY = Path(__file__).parent.parent
SHARED = REPOSITORY.parent / "shared"


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the working tree."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared() -> Path:
    """Real data for tests, which the product does not carry."""
    if not (SHARED / "data").is_dir():
        pytest.skip("real test data (../shared/data) are not on this machine")
    return SHARED


HIDE_PACKAGE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "decodehub":
            raise ModuleNotFoundError("decodehub is not installed")

sys.meta_path.insert(0, Hidden())
"""


@pytest.fixture(scope="session")
def run_without_package() -> Callable[..., str]:
    """Run code in a process of its own where importing this package fails; gives what it prints."""

    def run(code: str, *arguments: str, **options: Any) -> str:
        command = [sys.executable, "-c", HIDE_PACKAGE + code, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **options)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return run


def write_tiny_release(folder: Path, *, concepts: int = 6, nulls: bool = True, release: str = "tiny", distances: bool = True) -> Path:
    """A release of random pixels: per concept one edit of each family and of some subtypes; concept 0 lacks a removal."""
    from decodehub.hub_datasets.eeg_editbench.manifest import EditRow, ReleaseRow, SourceRow, write_manifest
    from decodehub.loaders.images import encode_png

    rng = np.random.default_rng(0)

    def image(relative: str) -> str:
        (folder / relative).parent.mkdir(parents=True, exist_ok=True)
        (folder / relative).write_bytes(encode_png(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)))
        return relative

    names = [f"concept{i}" for i in range(concepts)]
    sources = [
        SourceRow(
            concept=name,
            image=image(f"sources/{name}.png"),
            null_image=image(f"nulls/{name}.png") if nulls else None,
            source_category=("animal", "food", "tool")[i % 3],
        )
        for i, name in enumerate(names)
    ]
    kinds = [
        ("identity", "near"),
        ("identity", "far"),
        ("attribute", "color"),
        ("attribute", "shape"),
        ("background", None),
        ("removal", None),
    ]
    edits = [
        EditRow(
            edit_id=f"{name}-{family}-{subtype or '1'}",
            concept=name,
            image=image(f"edits/{name}-{family}-{subtype or '1'}.png"),
            family=family,
            subtype=subtype,
            target_concept=names[(i + 1) % concepts] if family == "identity" else None,
            instruction=f"Edit the {name}.",
            visual_distance=round(float(rng.uniform(0, 0.5)), 3) if distances else None,
            votes=[True, False, True],
        )
        for i, name in enumerate(names)
        for family, subtype in kinds
        if not (i == 0 and family == "removal")
    ]
    rejected = EditRow(
        edit_id="rejected",
        concept=names[0],
        image=image("edits/rejected.png"),
        family="removal",
        instruction="-",
        votes=[False, False],
        kept=False,
    )
    write_manifest(
        folder, ReleaseRow(release=release, title="Random pixels", license="cc0-1.0", editor="none"), sources, [*edits, rejected]
    )
    return folder


@pytest.fixture(scope="session")
def make_release():
    """`write_tiny_release`, for tests that want other sizes or several releases."""
    return write_tiny_release


@pytest.fixture
def tiny_release(tmp_path: Path) -> Path:
    """Folder of a small release, own to the test."""
    return write_tiny_release(tmp_path / "tiny")


@pytest.fixture(scope="session")
def tiny_benchmark(tmp_path_factory: pytest.TempPathFactory):
    """The benchmark table of a small release."""
    from decodehub.metrics.eeg_editbench.benchmark import load_benchmark

    return load_benchmark(str(write_tiny_release(tmp_path_factory.mktemp("release") / "tiny")))


@pytest.fixture(scope="module")
def hub_server() -> Iterator[Any]:
    """A running `HubServer` (tests/hub_server.py), which this process does not use yet; see `hub`."""
    # By its path: with tests/ on the path, tests/decodehub would hide the package.
    spec = importlib.util.spec_from_file_location("hub_server", Path(__file__).with_name("hub_server.py"))
    assert spec is not None and spec.loader is not None
    module = sys.modules.setdefault("hub_server", importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    with module.HubServer() as server:
        yield server


@pytest.fixture
def hub(hub_server: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The server, empty, with this process made to use it; waits between attempts are skipped."""
    from huggingface_hub import constants
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    hub_server.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", hub_server.url)  # this and the next are made from the environment at import
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub_server.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setenv("HF_TOKEN", hub_server.token)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    return hub_server


@pytest.fixture
def launch_two() -> Any:
    """``accelerate.debug_launcher`` for two processes. They are forked, so what an earlier test made Accelerate believe is forgotten first."""
    from accelerate import debug_launcher
    from accelerate.state import AcceleratorState

    def launch(work: Any, args: tuple[Any, ...] = ()) -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        debug_launcher(work, args, num_processes=2)

    return launch
