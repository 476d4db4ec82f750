"""`decodehub imind scale`: shares of the training windows, the sweep over them, its table and files."""

from __future__ import annotations

import csv
import importlib.util
import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from decodehub.loaders.ieeg.splits import Fold
from decodehub.loaders.recipes import recipe_from
from decodehub.metrics.imindbench.predictions import load_fits
from decodehub.runs.ieeg import sweep as _imind_run
from decodehub.runs.ieeg.models import model_spec
from decodehub.runs.ieeg.scaling import at_fraction, read_fractions
from decodehub.runs.ieeg.sweep import smaller_fold, sweep
from decodehub.scripts import imind

_spec = importlib.util.spec_from_file_location("imind_world", Path(__file__).with_name("imind_world.py"))
assert _spec is not None and _spec.loader is not None
world = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(world)


@pytest.fixture(autouse=True)
def small_world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_imind_run, "open_recording", lambda folder, dataset, session: world.recording(dataset, session))
    monkeypatch.setattr(
        "decodehub.hub_datasets.imindbench.data.unit_labels", lambda folder, dataset, session, task: world.labels(dataset, session, task)
    )
    monkeypatch.setattr(imind, "data_and_grid", lambda data_dir: (Path("nowhere"), world.grid()))
    monkeypatch.setattr(imind, "read_recipe", lambda name: recipe_from(world.RECIPE))


class TestSmallerFold:
    fold = Fold(0, np.arange(10, 50), np.arange(50, 60), np.arange(60, 80))
    label = np.arange(80) % 2

    def test_smaller_shares_are_part_of_larger_ones_and_the_rest_stays(self) -> None:
        parts = [smaller_fold(self.fold, self.label, Fraction(1, n)) for n in (1, 2, 4)]
        assert [len(p.train) for p in parts] == [40, 20, 10]
        assert set(parts[2].train) < set(parts[1].train) < set(parts[0].train) == set(self.fold.train)
        assert all(np.array_equal(p.val, self.fold.val) and np.array_equal(p.test, self.fold.test) for p in parts)
        assert all((np.diff(p.train) > 0).all() for p in parts)

    def test_folds_differ_and_draws_repeat(self) -> None:
        other = Fold(1, self.fold.train, self.fold.val, self.fold.test)
        again = smaller_fold(self.fold, self.label, Fraction(1, 2)).train
        assert np.array_equal(again, smaller_fold(self.fold, self.label, Fraction(1, 2)).train)
        assert not np.array_equal(again, smaller_fold(other, self.label, Fraction(1, 2)).train)

    def test_a_share_of_one_class_is_unscorable_with_the_reason(self) -> None:
        found = smaller_fold(self.fold, self.label, Fraction(1, 100))
        assert found.status == "unscorable" and "1 training windows (1/100 of 40) are of one class" in found.reason
        bad = Fold(0, self.fold.train, self.fold.val, self.fold.test, status="unscorable", reason="test lacks class 1")
        assert smaller_fold(bad, self.label, Fraction(1, 2)) is bad


def test_the_normalisation_sees_the_share_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    fit = _imind_run.fit_normaliser
    monkeypatch.setattr(_imind_run, "fit_normaliser", lambda stage, values, rows: (seen.append(len(rows)), fit(stage, values, rows))[1])
    specs = [at_fraction(model_spec("logistic-converged"), f) for f in (Fraction(1), Fraction(1, 2))]
    found = sweep(tmp_path, Path("nowhere"), world.grid().units[:1], specs, recipe_from(world.RECIPE), progress=False)
    fits = [fit for file in found.files for fit in load_fits(file.path)]
    assert seen == [fit["train_windows"] for fit in fits] and fits[2]["train_windows"] == round(fits[0]["train_windows"] / 2)
    assert [fit["train_fraction"] for fit in fits] == ["1", "1", "1/2", "1/2"]


def test_the_command(tmp_path: Path) -> None:
    arguments = ["scale", "--model", "logistic-converged", "--fractions", "1/4,1,1/2", "--out", str(tmp_path)]
    done = CliRunner().invoke(imind.app, arguments)
    assert done.exit_code == 0, done.output
    assert "gain per doubling" in " ".join(done.output.split()) and "SAMPLE" in done.output
    assert "BYD, 6 units" in done.output and "Pippi, 3 units" in done.output
    result = json.loads((tmp_path / "scaling.json").read_text())
    points = [p for p in result["models"]["logistic-converged"]["points"] if p["label"] == "overall"]
    assert [p["fraction"] for p in points] == ["1/4", "1/2", "1"] and set(result["training_windows"]) == {"1", "1/2", "1/4"}
    assert result["training_windows"]["1"] == pytest.approx(2 * result["training_windows"]["1/2"], abs=1)
    with (tmp_path / "units.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * len(world.grid().units) and (tmp_path / "scaling.png").stat().st_size > 5000
    assert "<svg" in (tmp_path / "scaling.svg").read_text()
    again = CliRunner().invoke(imind.app, arguments)
    assert "0 units made, 27 reused" in again.output


def test_whole_windows_give_what_run_gives(tmp_path: Path) -> None:
    spec = model_spec("logistic-converged")
    sides = [
        sweep(tmp_path / name, Path("nowhere"), world.grid().units[:2], [s], recipe_from(world.RECIPE), progress=False)
        for name, s in (("run", spec), ("scale", at_fraction(spec, Fraction(1))))
    ]
    a, b = (_imind_run.collect(s.files, m, world.grid().units[:2]) for s, m in zip(sides, ("logistic-converged", "logistic-converged@1-1")))
    assert np.array_equal(a.probability, b.probability, equal_nan=True)


@pytest.mark.parametrize(
    ("text", "message"), [("1,half", "expected numbers"), ("2", "above 0"), ("1,1/2,0.5", "comes twice"), ("1/0", "expected")]
)
def test_bad_fractions_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_fractions(text)
    assert "at least two" in str(CliRunner().invoke(imind.app, ["scale", "--model", "mlp", "--fractions", "1"]).exception)
