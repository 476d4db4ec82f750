"""The hash of code follows imports."""

from __future__ import annotations

from pathlib import Path

import pytest

from decodehub.core.code import _source, code_hash, imported_modules


def test_follows_imports_at_any_depth_and_inside_functions() -> None:
    modules = imported_modules("decodehub.runs.ieeg.sweep")
    assert {"decodehub.loaders.session_features", "decodehub.metrics.imindbench.scoring", "decodehub.core.files"} <= modules
    assert "decodehub.hub_models.ieeg.modeling_htnet" in modules  # through the package's own imports
    assert not any(name.startswith("decodehub.scripts") for name in modules)
    assert "decodehub.hub_datasets.eeg_editbench.sample" in imported_modules("decodehub.hub_datasets.eeg_editbench.builder")


def test_a_change_anywhere_below_is_another_hash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = code_hash("decodehub.leaderboard.checks")
    assert before == code_hash("decodehub.leaderboard.checks")

    def changed(name: str) -> bytes:
        return _source(name) + (b"#" if name == "decodehub.core.files" else b"")

    monkeypatch.setattr("decodehub.core.code._source", changed)
    assert code_hash("decodehub.leaderboard.checks") != before
    (tmp_path / "data.json").write_text("1")
    with_data = code_hash("decodehub.core.files", data=[tmp_path / "data.json"])
    (tmp_path / "data.json").write_text("2")
    assert code_hash("decodehub.core.files", data=[tmp_path / "data.json"]) != with_data
    assert code_hash("decodehub.core.files", packages=["numpy"]) != code_hash("decodehub.core.files")


def test_a_name_that_is_no_module() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"decodehub\.nothing"):
        code_hash("decodehub.nothing.here")
