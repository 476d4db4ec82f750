"""The iMINDBench sweep and its command: recovery of planted effects, restart after a kill, nothing stale, a user's own model, tables."""

from __future__ import annotations

import importlib.util
import multiprocessing
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from decodehub.cli import app
from decodehub.core.records import ModelInfo, read_record
from decodehub.loaders.ieeg.recording import with_data
from decodehub.loaders.ieeg.splits import make_folds
from decodehub.loaders.recipes import recipe_from
from decodehub.metrics.imindbench.predictions import load, load_fits, save, score_cells
from decodehub.runs.ieeg import sweep as _imind_run
from decodehub.runs.ieeg.models import BASELINES, FoldData, model_spec
from decodehub.runs.ieeg.sweep import collect, sweep
from decodehub.runs.ieeg.training import TrainSettings, train_network

# A file of its own, as it is also run as a program; tests are no package.
_spec = importlib.util.spec_from_file_location("imind_world", Path(__file__).with_name("imind_world.py"))
assert _spec is not None and _spec.loader is not None
imind_world = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(imind_world)
RECIPE, grid, labels, recording = imind_world.RECIPE, imind_world.grid, imind_world.labels, imind_world.recording

NOWHERE = Path("nowhere")
LABELS = "decodehub.hub_datasets.imindbench.data.unit_labels"
OWN_MODEL = """
import numpy as np
import time
state = {}

def fit(x, y, x_val, y_val):
    assert not state, "each fold gets a fresh module"
    time.sleep(PAUSE)
    state["w"] = x[y == 1].mean(0) - x[y == 0].mean(0)

def predict_proba(x):
    z = (x * state["w"]).sum(axis=tuple(range(1, x.ndim)))
    p = 1 / (1 + np.exp(-z / np.abs(z).max()))
    return np.stack([1 - p, p], axis=1)
"""


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_imind_run, "open_recording", lambda folder, dataset, session: recording(dataset, session))
    monkeypatch.setattr(LABELS, lambda folder, dataset, session, task: labels(dataset, session, task))


def start(out: Path, model: Path, fractions: str) -> multiprocessing.Process:
    """A process of its own, forked so that nothing is imported again."""
    process = multiprocessing.get_context("fork").Process(target=imind_world.main, args=(str(out), str(model), fractions))
    process.start()
    return process


def own_model(folder: Path, pause: float = 0.0, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text(OWN_MODEL.replace("PAUSE", str(pause)))
    return path


def run(out: Path, model: str = "logistic-converged", recipe: dict = RECIPE, units=None, **kwargs):
    return sweep(out, NOWHERE, units or grid().units, [model_spec(model)], recipe_from(recipe), progress=False, **kwargs)


class TestSweep:
    def test_planted_effects_are_decoded_and_others_are_not(self, tmp_path: Path) -> None:
        found = run(tmp_path)
        assert (len(found.job.made), found.job.failed) == (9, {})
        cells = score_cells(collect(found.files, "logistic-converged", grid().units), grid())
        planted = np.array(["speech" in unit for unit in cells.unit])
        assert np.nanmean(cells.auc[planted]) > 0.95
        others = cells.auc[~planted]
        # Some 14 test windows a fold: the standard error of one AUC is about .15.
        assert abs(np.nanmean(others) - 0.5) < 3 * 0.16 / np.sqrt(np.isfinite(others).sum())
        unscored = [(u, f) for u, f, r in zip(cells.unit, cells.fold, cells.reason) if r]
        assert ("kelesbyd2024/sub41_sess2/volume", 0) in unscored or ("kelesbyd2024/sub41_sess2/volume", 1) in unscored
        fits = load_fits(found.files[0].path)
        assert [fit["fold"] for fit in fits] == [0, 1] and all(fit["converged"] for fit in fits)

    def test_permuted_labels_are_at_chance(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def permuted(folder: Path, dataset: str, session: str, task: str):
            table = labels(dataset, session, "speech")
            rng = np.random.default_rng(imind_world.TASKS.index(task))
            return type(table)(dataset, task, table.start_s, rng.permutation(table.label))

        monkeypatch.setattr(LABELS, permuted)
        cells = score_cells(collect(run(tmp_path).files, "logistic-converged", grid().units), grid())
        assert abs(np.nanmean(cells.auc) - 0.5) < 3 * 0.16 / np.sqrt(np.isfinite(cells.auc).sum())

    def test_test_windows_do_not_reach_the_fit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Signal outside of the training and validation windows of fold 0 is replaced: fit, and so validation predictions, stay the same."""
        unit = grid().units[:1]
        table = labels(unit[0].dataset, unit[0].subject_session, "speech")
        fold = make_folds(unit[0].dataset, recording(unit[0].dataset, unit[0].subject_session).recording_id, "speech", table)[0]
        before = load(run(tmp_path / "a", units=unit).files[0].path)
        original = recording(unit[0].dataset, unit[0].subject_session)
        data = np.full_like(original.data, 1e3)
        for row in (*fold.train, *fold.val):
            first, stop = original.window_bounds(table.start_s[row])
            data[:, first:stop] = original.data[:, first:stop]
        monkeypatch.setattr(_imind_run, "open_recording", lambda *a: with_data(original, data))
        after = load(run(tmp_path / "b", units=unit).files[0].path)
        val, test = ((before.fold == 0) & (before.split == part) for part in ("val", "test"))
        np.testing.assert_allclose(after.probability[val], before.probability[val], rtol=1e-6)
        assert not np.allclose(after.probability[test], before.probability[test])

    def test_two_processes_share_the_sessions(self, tmp_path: Path) -> None:
        parts = [run(tmp_path / "two", rank=rank, world=2) for rank in (0, 1)]
        assert [len(part.job.made) for part in parts] == [6, 3]
        whole = run(tmp_path / "one")
        a = collect([f for part in parts for f in part.files], "logistic-converged", grid().units)
        b = collect(whole.files, "logistic-converged", grid().units)
        for x, y in zip(a, b):
            np.testing.assert_array_equal(x, y)

    def test_a_session_that_cannot_be_read_does_not_stop_the_others(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(folder: Path, dataset: str, session: str):
            if session == "sub41_sess2":
                raise ValueError("damaged file")
            return recording(dataset, session)

        monkeypatch.setattr(_imind_run, "open_recording", broken)
        found = run(tmp_path)
        assert len(found.job.made) == 6 and len(found.job.failed) == 3 and "damaged file" in next(iter(found.job.failed.values()))
        with pytest.raises(ValueError, match="3 units of logistic-converged have no predictions"):
            collect(found.files, "logistic-converged", grid().units)
        assert not list(tmp_path.glob(".features*"))

    def test_a_task_without_labels_does_not_stop_the_others(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def lacking(folder: Path, dataset: str, session: str, task: str):
            if task == "pitch":
                raise FileNotFoundError("pitch_binary_labels.csv does not exist")
            return labels(dataset, session, task)

        monkeypatch.setattr(LABELS, lacking)
        found = run(tmp_path)
        assert len(found.job.made) == 6 and len(found.job.failed) == 3
        assert all("pitch_binary_labels.csv" in error for error in found.job.failed.values())


class TestRestart:
    @pytest.mark.parametrize(("fractions", "items"), [("1", 9), ("1,1/2", 18)])
    def test_a_killed_sweep_goes_on_to_the_same_table(self, fractions: str, items: int, tmp_path: Path) -> None:
        """Of `imind run` and of `imind scale`, killed at a random moment."""
        model = own_model(tmp_path, pause=0.05)
        process = start(tmp_path / "killed", model, fractions)
        wanted = int(np.random.default_rng().integers(1, items - 2))
        deadline = time.monotonic() + 120
        while len(list((tmp_path / "killed").rglob("*.parquet"))) < wanted:
            assert process.is_alive() and time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
        process.join()
        made = len(list((tmp_path / "killed").rglob("*.parquet")))
        assert wanted <= made < items and not list((tmp_path / "killed").rglob(".features*"))
        resumed, whole = (imind_world.run(tmp_path / name, str(model), fractions=fractions) for name in ("killed", "whole"))
        assert len(resumed.job.reused) in (made, made - 1) and len(resumed.job.reused) + len(resumed.job.made) == items
        assert [f.sha256 for f in resumed.files] == [f.sha256 for f in whole.files]
        assert imind_world.run(tmp_path / "killed", str(model), fractions=fractions).job.made == []

    def test_two_jobs_at_once_in_one_folder_do_not_meet(self, tmp_path: Path) -> None:
        """Two processes of the same rank, with their features on the disk at the same time, in one folder."""
        models = [own_model(tmp_path, pause=0.05), own_model(tmp_path, pause=0.05, name="other.py")]
        processes = [start(tmp_path / "shared", model, "1") for model in models]
        for process in processes:
            process.join(timeout=120)
        assert [process.exitcode for process in processes] == [0, 0]
        for model in models:
            shared, alone = (imind_world.run(tmp_path / name, str(model)) for name in ("shared", "alone"))
            assert shared.job.made == [] and [f.sha256 for f in shared.files] == [f.sha256 for f in alone.files]

    def test_nothing_stale_is_reused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert len(run(tmp_path).job.made) == 9 and len(run(tmp_path).job.reused) == 9
        other = {"chain": [*RECIPE["chain"][:3], {"stage": "normalise", "mode": "sample_channel"}]}
        assert len(run(tmp_path, recipe={**RECIPE, "slicing": "legacy_floor"}).job.made) == 9
        assert len(run(tmp_path, recipe=other).job.made) == 9
        assert len(run(tmp_path).job.made) == 9  # the files are now those of the other recipe
        with monkeypatch.context() as changed:
            changed.setattr(_imind_run, "run_code", lambda: "sha256:newer")
            assert len(run(tmp_path).job.made) == 9
        with monkeypatch.context() as changed:
            changed.setattr(_imind_run, "open_recording", lambda f, d, s: recording(d, s, scale=2.0 if s == "sub41_sess1" else 1.0))
            assert len(run(tmp_path).job.made) == 3

    def test_a_signal_that_changed_in_one_second_anywhere_is_run_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run(tmp_path)
        original = recording("kelesbyd2024", "sub41_sess1")
        data = original.data.copy()
        data[1, 10 * imind_world.SFREQ : 11 * imind_world.SFREQ] = 0.0  # not its first, middle or last second
        repaired = with_data(original, data)
        monkeypatch.setattr(_imind_run, "open_recording", lambda f, d, s: repaired if s == "sub41_sess1" else recording(d, s))
        assert len(run(tmp_path, units=[u for u in grid().units if u.subject_session == "sub41_sess1"]).job.made) == 3

    def test_a_smaller_set_of_subjects_reuses_its_own_and_gives_their_table_alone(self, tmp_path: Path) -> None:
        run(tmp_path)
        some = [unit for unit in grid().units if unit.dataset == "kelesbyd2024"]
        found = run(tmp_path, units=some)
        assert len(found.job.reused) == 6
        assert set(collect(found.files, "logistic-converged", some).unit) == {unit.id for unit in some}

    def test_a_changed_file_is_made_anew(self, tmp_path: Path) -> None:
        first = run(tmp_path).files[0]
        first.path.write_bytes(first.path.read_bytes()[:-1] + b"x")
        again = run(tmp_path)
        assert len(again.job.made) == 1 and again.files[0].sha256 == first.sha256


class TestModels:
    @pytest.mark.parametrize("name", ["mlp", "cnn", "logistic-paper"])
    def test_baselines_learn_a_planted_effect(self, name: str, tmp_path: Path) -> None:
        unit = grid().units[:1]
        changes = {} if name == "logistic-paper" else {"epochs": 15, "lr": 1e-3}
        found = sweep(tmp_path, NOWHERE, unit, [model_spec(name, training=changes)], recipe_from(RECIPE), progress=False)
        assert found.job.failed == {}
        one = score_cells(load(found.files[0].path), grid())
        assert np.nanmean(one.auc) > 0.9

    def test_training_is_decided_by_its_seed_and_leaves_the_callers_alone(self) -> None:
        import torch

        from decodehub.hub_models.ieeg import HTNetConfig, HTNetModel

        rng = np.random.default_rng(0)
        y = np.arange(40) % 2
        x = rng.standard_normal((40, 3, 40)).astype(np.float32)
        x[:, 1] *= np.where(y, 4, 1)[:, None].astype(np.float32)
        settings = TrainSettings(lr=1e-2, batch_size=16, epochs=12, clip=1.0)
        torch.manual_seed(7)
        before = torch.get_rng_state()
        runs = [train_network(lambda: HTNetModel(HTNetConfig.tiny()), x, y, x, y, settings, seed=seed) for seed in (42, 42, 43)]
        assert torch.equal(torch.get_rng_state(), before)
        weights = [torch.cat([p.detach().flatten() for p in model.parameters()]) for model, _ in runs]
        assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
        model, report = runs[0]
        assert model.spatial.weight.flatten(1).norm(dim=1).max() <= 1 + 1e-5
        from sklearn.metrics import roc_auc_score

        assert report["val_auc"] == pytest.approx(roc_auc_score(y, model.predict_proba(torch.from_numpy(x)).numpy()))

    def test_a_users_file_and_its_errors(self, tmp_path: Path) -> None:
        found = run(tmp_path / "out", model=str(own_model(tmp_path)))
        assert found.job.failed == {} and len(found.job.made) == 9
        bad = tmp_path / "bad.py"
        bad.write_text("def fit(x, y, x_val, y_val): ...\n")
        with pytest.raises(ValueError, match="lacks the functions predict_proba"):
            model_spec(str(bad))
        bad.write_text("def fit(*a): ...\ndef predict_proba(x): return x[:, 0, 0, 0] * 1e9\n")
        failed = run(tmp_path / "bad", model=str(bad), units=grid().units[:1])
        assert "must give" in next(iter(failed.job.failed.values()))
        with pytest.raises(ValueError, match="is not known"):
            model_spec("perceptron")

    def test_a_folder_with_a_configuration_and_weights(self, tmp_path: Path) -> None:
        from decodehub.hub_models.ieeg import MLPConfig, MLPModel

        MLPConfig(input_shape=[9, 9], hidden_sizes=[7]).save_pretrained(tmp_path / "plain")
        spec = model_spec(str(tmp_path / "plain"), training={"epochs": 2})
        assert spec.settings["config"]["hidden_sizes"] == [7] and "start_weights" not in spec.settings
        rng = np.random.default_rng(0)
        data = FoldData(rng.standard_normal((8, 2, 3)).astype(np.float32), np.arange(8) % 2, rng.standard_normal((4, 2, 3)).astype(np.float32), np.arange(4) % 2, 0, ("A1", "A2"), "sha256:0", "u")  # fmt: skip
        assert spec.fit(data).predict(data.x_val).shape == (4,)
        MLPModel(MLPConfig(input_shape=[9, 9], hidden_sizes=[7])).save_pretrained(tmp_path / "weights")
        with pytest.raises(ValueError, match=r"take windows of shape \[9, 9\]"):
            model_spec(str(tmp_path / "weights")).fit(data)
        MLPModel(MLPConfig(input_shape=[2, 3], hidden_sizes=[7])).save_pretrained(tmp_path / "fits")
        assert model_spec(str(tmp_path / "fits"), training={"epochs": 1}).fit(data).report["epochs"] == 1
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "config.json").write_text('{"model_type": "bert"}')
        with pytest.raises(ValueError, match="model type 'bert' is not one of"):
            model_spec(str(tmp_path / "other"))

    def test_names_say_what_differs(self) -> None:
        assert len({model_spec(name).hash for name in BASELINES}) == len(BASELINES)
        with pytest.raises(ValueError, match="do not apply"):
            model_spec("logistic-paper", training={"epochs": 3})


class TestCommand:
    @pytest.fixture
    def records(self, tmp_path: Path) -> Path:
        from decodehub.metrics.imindbench.protocol import make_record

        for name in ("logistic-converged", "logistic-paper"):
            files = run(tmp_path / "run", model=name).files
            predictions = collect(files, name, grid().units)
            make_record(tmp_path / "records" / name, grid(), predictions, model=ModelInfo(id=name), data="x", settings={"track": "Custom"})
        return tmp_path / "records"

    def test_table_compare_and_verify(self, records: Path) -> None:
        runner = CliRunner()
        table = runner.invoke(app, ["imind", "table", str(records), "--tasks"], catch_exceptions=False)
        assert table.exit_code == 0 and "logistic-paper" in table.output and "pitch" in table.output
        assert "SIMULATED" in table.output
        names = [str(records / name) for name in ("logistic-converged", "logistic-paper")]
        compared = runner.invoke(app, ["imind", "compare", *names], catch_exceptions=False)
        assert compared.exit_code == 0 and "exact sign-flip" in compared.output
        assert runner.invoke(app, ["verify", names[0]], catch_exceptions=False).exit_code == 0

    def test_run_writes_a_record_of_each_model_and_a_restart_reuses(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import json

        monkeypatch.setattr("decodehub.scripts.imind.data_and_grid", lambda data_dir: (NOWHERE, grid()))
        (tmp_path / "r.json").write_text(json.dumps(RECIPE))
        command = [
            "imind",
            "run",
            "--model",
            "logistic-converged",
            "--model",
            str(own_model(tmp_path)),
            "--recipe",
            str(tmp_path / "r.json"),
        ]
        command += ["--out", str(tmp_path / "out")]
        first = CliRunner().invoke(app, command, catch_exceptions=False)
        assert "18 units made, 0 reused, 0 failed" in first.output and "SIMULATED" in first.output and "mine" in first.output
        record = read_record(tmp_path / "out" / "logistic-converged")[1]
        assert record.protocol.settings["track"] == "Custom" and record.protocol.settings["recipe"] == json.loads(
            json.dumps(recipe_from(RECIPE).as_dict())
        )
        assert "17 fits; 17 by their own stopping rule" in record.model.notes and "1 of 18 folds" in record.aggregation
        assert "0 units made, 18 reused" in CliRunner().invoke(app, command, catch_exceptions=False).output
        part = CliRunner().invoke(app, [*command, "--only", "kelesbyd2024"], catch_exceptions=False)
        assert "12 reused" in part.output and "no record" in part.output
        assert not (tmp_path / "out" / "logistic-converged" / "record.json").exists()

    def test_a_second_job_with_the_same_model_is_told_so_and_one_with_another_runs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from decodehub.core.jobs import JobRunning, exclusive

        monkeypatch.setattr("decodehub.scripts.imind.data_and_grid", lambda data_dir: (NOWHERE, grid()))
        monkeypatch.setattr("decodehub.scripts.imind.read_recipe", lambda name: recipe_from(RECIPE))
        command = ["imind", "run", "--only", "kelesbyd2024/sub41_sess1/pitch", "--out", str(tmp_path), "--model"]
        with exclusive(tmp_path / "units" / "logistic-converged"):
            assert isinstance(CliRunner().invoke(app, [*command, "logistic-converged"]).exception, JobRunning)
            assert CliRunner().invoke(app, [*command, str(own_model(tmp_path))], catch_exceptions=False).exit_code == 0
        assert CliRunner().invoke(app, [*command, "logistic-converged"], catch_exceptions=False).exit_code == 0

    def test_score_of_a_users_file_on_the_sample(self, tmp_path: Path) -> None:
        from decodehub.metrics.imindbench.grid import load_grid
        from decodehub.metrics.imindbench.predictions import concatenate, fold_rows
        from decodehub.metrics.imindbench.truth import load_truth

        rng = np.random.default_rng(0)
        known = load_truth(load_grid("sample")).release
        parts = [fold_rows(*cell, "test", t.windows, t.labels, rng.random(t.n_test)) for cell, t in known.items()]
        save(tmp_path / "mine.parquet", concatenate(parts))
        command = ["imind", "score", str(tmp_path / "mine.parquet"), "--data-dir", "sample", "--model", "me/mine"]
        result = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "rec")], catch_exceptions=False)
        assert result.exit_code == 0 and "me/mine" in result.output
        record = read_record(tmp_path / "rec")[1]
        assert record.value("roc_auc", subset="full") == pytest.approx(0.5, abs=0.05) and record.protocol.settings["labels"] == "checked"
        save(tmp_path / "less.parquet", concatenate(parts[:-2]))
        result = CliRunner().invoke(app, ["imind", "score", str(tmp_path / "less.parquet"), "--data-dir", "sample"])
        assert isinstance(result.exception, ValueError) and "1 missing" in str(result.exception)
        run = concatenate(parts)
        save(tmp_path / "logits.parquet", run._replace(probability=10 * run.probability - 5))
        command = ["imind", "score", str(tmp_path / "logits.parquet"), "--data-dir", "sample"]
        assert "expected a number from 0 to 1" in str(CliRunner().invoke(app, command).exception)
        named = CliRunner().invoke(app, [*command, "--scores", "logits", "--out", str(tmp_path / "logits")], catch_exceptions=False)
        assert named.exit_code == 0
        again = read_record(tmp_path / "logits")[1]
        assert again.value("roc_auc", subset="full") == record.value("roc_auc", subset="full")
        assert again.value("accuracy", subset="full") is None
        assert CliRunner().invoke(app, ["verify", str(tmp_path / "logits")], catch_exceptions=False).exit_code == 0

    @pytest.mark.parametrize(
        ("option", "value", "message"),
        [
            ("--device", "tpu", "--device must be one of cpu, cuda, mps, found 'tpu'"),
            ("--pooling", "mean", "--pooling must be one of paper, released_code, found 'mean'"),
            ("--subset", "mian", "found 'mian'; did you mean 'main'"),
            ("--recipe", "multi-sftf", "did you mean 'multi-stft'"),
            ("--model", "logistic-convergd", "did you mean 'logistic-converged'"),
            ("--data-dir", "smaple", "smaple does not exist; did you mean 'sample'"),
            ("--only", "kelesbyd2024/sub41_sess1/onsett", "did you mean 'kelesbyd2024/sub41_sess1/onset'"),
        ],
    )
    @pytest.mark.parametrize("verb", ["run", "scale"])
    def test_options_are_checked_before_any_work(self, verb: str, option: str, value: str, message: str, tmp_path: Path) -> None:
        if (verb, option) == ("scale", "--pooling"):
            return
        given = {"--model": "logistic-converged", "--data-dir": "sample", "--out": str(tmp_path / "out"), option: value}
        result = CliRunner().invoke(app, ["imind", verb, *(word for pair in given.items() for word in pair)])
        assert message in str(result.exception), result.exception
        assert not (tmp_path / "out").exists()

    def test_recipes_are_listed_and_read_from_json(self, tmp_path: Path) -> None:
        import json

        from decodehub.scripts.imind import read_recipe

        assert "Multi-STFT (corrected)" in CliRunner().invoke(app, ["imind", "recipes"], catch_exceptions=False).output
        (tmp_path / "r.json").write_text(json.dumps(RECIPE))
        assert read_recipe(str(tmp_path / "r.json")).track == "Custom"
        with pytest.raises(ValueError, match="no recipe is called"):
            read_recipe("multistft")
