"""The Hub of the tests, for everything that publishes or reads there."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def hub_server() -> Iterator[Any]:
    """A running `HubServer` (tests/hub_server.py), which this process does not use yet; see `hub`."""
    # By its path: with tests/ on the path, tests/decodehub would hide the package.
    spec = importlib.util.spec_from_file_location("hub_server", Path(__file__).parents[1] / "hub_server.py")
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
