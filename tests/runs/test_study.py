"""The study: runs dealt, made once, resumed, remade under other settings; records of complete models only; the verbs."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from typer.testing import CliRunner

from decodehub.core.jobs import exclusive
from decodehub.hub.verify import verify
from decodehub.metrics.eeg_editbench.benchmark import Benchmark, make_benchmark
from decodehub.runs.retrieval.embeddings import read_run
from decodehub.runs.retrieval.inputs import Inputs, recorded_inputs
from decodehub.runs.retrieval.settings import numbers, settings_for
from decodehub.runs.retrieval.study import Group, Study, deal, make_records, missing_runs, refuse_other_runs, run_study
from decodehub.runs.retrieval.training_images import read_training_images
from decodehub.scripts import editbench

Q, EDITS, TRAINING, DIM = 8, 3, 80, 12
FAMILIES = ("identity", "attribute", "background")


@dataclasses.dataclass(frozen=True)
class Planted:
    """EEG that is linear in image features; edits lie beside their sources."""

    broken: tuple[int, ...] = ()
    version: int = 1
    edits: bool = False
    data_dir: str | None = None

    @property
    def benchmark(self) -> Benchmark:
        names = [f"concept{i}" for i in range(Q)]
        sources = [{"concept": name, "source_category": "animal"} for name in names]
        edits = [
            {
                "edit_id": f"{name}-{family}",
                "concept": name,
                "family": family,
                "subtype": "",
                "target_concept": None,
                "visual_distance": 0.1,
            }
            for name in names
            for family in FAMILIES
        ]
        return make_benchmark("sample", sources, edits)

    def identity(self, model: str, subject: int, seed: int) -> Any:
        return {"planted": self.version, "subject": subject}

    def load(self, model: str, subject: int, seed: int) -> tuple[Inputs, np.ndarray]:
        if subject in self.broken:
            raise ValueError(f"no EEG of subject {subject}")
        rng = np.random.default_rng(1)
        part = {"hyfi": ["semantic", "perceptual"]}.get(model, ["image"])
        mix = rng.standard_normal((DIM, 17 * 20)) / 4
        train, sources = rng.standard_normal((TRAINING, DIM)), rng.standard_normal((Q, DIM))
        edits = np.repeat(sources, EDITS, axis=0) + 0.6 * rng.standard_normal((Q * EDITS, DIM))
        eeg = [(x @ mix + 0.3 * rng.standard_normal((len(x), 340))).reshape(-1, 17, 20).astype(np.float32) for x in (train, sources)]
        groups = {"train": train, "sources": sources, "edits": edits, "nulls": sources + 0.01, "negatives": train + 0.6}
        parts = {name: {p: x.astype(np.float32) for p in part} for name, x in groups.items()}
        inputs = Inputs(
            eeg=eeg[0],
            targets=parts["train"],
            concepts=np.arange(TRAINING) // 10,
            image=np.arange(TRAINING),
            ch_names=[f"E{i}" for i in range(17)],
            sfreq=250.0,
            encoder="planted",
            candidates={name: parts[name] for name in ("sources", "edits", "nulls")},
            benchmark=self.benchmark,
            data="Simulated EEG of a test",
            distance_encoder=None,
            negatives=parts["negatives"] if self.edits else {},
            negative_of=np.arange(TRAINING) if self.edits else np.arange(0),
        )
        return inputs, eeg[1]

    def simulated(self, subjects: tuple[int, ...]) -> bool:
        return True


def plan(out: Path, models: tuple[str, ...] = ("neurobridge", "ridge", "random-projection"), **changes: Any) -> Study:
    trained = {"epochs": 3, "batch_size": 40, "lr": 1e-3, "patience": 0} | changes.pop("training", {})
    settings = {name: settings_for(name, **trained) for name in models if name not in ("ridge", "random-projection")}
    return Study(**{"out": out, "models": models, "subjects": (1, 2), "seeds": (0, 1), "source": Planted(), "settings": settings} | changes)


def files(study: Study) -> dict[str, bytes]:
    return {path.relative_to(study.out).as_posix(): path.read_bytes() for path in sorted((study.out / "runs").glob("*/*.safetensors"))}


def test_a_study_is_made_once_scored_and_verified(tmp_path: Path) -> None:
    study = plan(tmp_path)
    report = run_study(study, progress=False)
    assert (len(report.made), report.failed, missing_runs(study)) == (12, {}, [])
    found = {model: (record, scored) for model, record, scored in make_records(study, [])}
    assert list(found) == list(study.models)
    for model, (record, _) in found.items():
        assert len(record.runs) == 4 and "imulated" in record.data
        assert verify(tmp_path / "records" / model)
    value = {model: next(m.value for m in record.metrics if m.name == "top1") for model, (record, _) in found.items()}
    assert value["ridge"] > 80  # linear data, linear model
    assert value["random-projection"] < 60
    assert not list(tmp_path.glob("training/*/*/checkpoint.safetensors"))
    before = files(study)
    again = run_study(study, progress=False)
    assert (len(again.reused), again.made) == (12, [])
    assert files(study) == before


def test_other_data_or_settings_are_made_anew_and_a_lost_file_alone(tmp_path: Path) -> None:
    study = plan(tmp_path, ("neurobridge", "ridge"))
    run_study(study, progress=False)
    (tmp_path / "runs/ridge/sub-02_seed-1.safetensors").unlink()
    (tmp_path / "runs/neurobridge/sub-01_seed-0.safetensors").write_bytes(b"damaged")
    assert missing_runs(study) == ["neurobridge/sub-01_seed-0.safetensors", "ridge/sub-02_seed-1.safetensors"]
    assert [model for model, *_ in make_records(study, missing_runs(study))] == []
    assert sorted(run_study(study, progress=False).made) == sorted(
        ["neurobridge/sub-01_seed-0.safetensors", "ridge/sub-02_seed-1.safetensors"]
    )
    longer = plan(tmp_path, ("neurobridge", "ridge"), training={"epochs": 4})
    assert all(key.startswith("neurobridge/") for key in missing_runs(longer)) and len(missing_runs(longer)) == 4
    other = plan(tmp_path, ("neurobridge", "ridge"), source=Planted(version=2))
    assert len(missing_runs(other)) == 8


def test_runs_of_other_settings_are_not_written_over_unasked(tmp_path: Path) -> None:
    study = plan(tmp_path, ("ridge",))
    refuse_other_runs(study)
    run_study(study, progress=False)
    refuse_other_runs(study)
    (tmp_path / "runs/ridge/sub-01_seed-0.safetensors").write_bytes(b"damaged")
    (tmp_path / "runs/done-0.jsonl").unlink()  # a process killed between a file and its line has lost nothing of another kind
    refuse_other_runs(study)
    other = plan(tmp_path, ("ridge",), source=Planted(version=2))
    with pytest.raises(ValueError, match=r"sub-01_seed-1\.safetensors was made with other data or settings: .* --force"):
        refuse_other_runs(other)


def test_a_run_that_another_process_has_is_left_to_it(tmp_path: Path) -> None:
    study = plan(tmp_path, ("ridge",))
    with exclusive(tmp_path / "training/ridge/sub-01_seed-1"):  # a lock of another open file counts as another process
        report = run_study(study, progress=False)
    assert len(report.made) == 3 and not report.failed and not report.reused
    assert missing_runs(study) == ["ridge/sub-01_seed-1.safetensors"]
    again = run_study(study, progress=False)
    assert again.made == ["ridge/sub-01_seed-1.safetensors"] and len(again.reused) == 3


def test_a_stopped_run_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = plan(tmp_path / "whole", ("neurobridge",), subjects=(1,), seeds=(0,))
    run_study(study, progress=False)
    import decodehub.runs.retrieval.study as module

    real = module.train

    def stopped(*args: Any, **more: Any) -> Any:
        def stop(epoch: int, loss: float) -> None:
            if epoch == 2:
                raise KeyboardInterrupt

        return real(*args, **{**more, "on_epoch": stop})

    second = dataclasses.replace(study, out=tmp_path / "stopped")
    monkeypatch.setattr(module, "train", stopped)
    with pytest.raises(KeyboardInterrupt):
        run_study(second, progress=False)
    assert list((tmp_path / "stopped/training/neurobridge/sub-01_seed-0").iterdir())
    assert missing_runs(second)
    epochs: list[int] = []
    monkeypatch.setattr(module, "train", lambda *a, **k: real(*a, **{**k, "on_epoch": lambda e, _: epochs.append(e)}))
    run_study(second, progress=False)
    assert epochs == [3]  # the two before were not done again
    assert files(second) == files(study)


def test_processes_share_the_runs_and_give_what_one_gives(tmp_path: Path) -> None:
    one, two = plan(tmp_path / "one", ("neurobridge", "ridge")), plan(tmp_path / "two", ("neurobridge", "ridge"))
    run_study(one, progress=False)
    first = run_study(two, 0, 2, progress=False)
    assert len(missing_runs(two)) == 4
    second = run_study(two, 1, 2, progress=False)
    assert not set(first.made) & set(second.made)
    assert missing_runs(two) == []
    assert files(one) == files(two)


@pytest.mark.parametrize("world", [1, 2, 3, 7, 40])
def test_every_run_is_dealt_to_one_process(world: int) -> None:
    groups = [Group(model, subject, (0, 1, 2)) for model in ("a", "b") for subject in (1, 2, 3)]
    shares = [deal(groups, rank, world) for rank in range(world)]
    runs = [(g.model, g.subject, seed) for share in shares for g in share for seed in g.seeds]
    assert sorted(runs) == sorted((g.model, g.subject, seed) for g in groups for seed in g.seeds)
    if world <= len(groups):
        assert all(len(g.seeds) == 3 for share in shares for g in share)


def test_a_failed_run_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    study = plan(tmp_path, ("ridge",), source=Planted(broken=(1,)))
    report = run_study(study, progress=False)
    assert sorted(report.failed) == ["ridge/sub-01_seed-0.safetensors", "ridge/sub-01_seed-1.safetensors"]
    assert "no EEG of subject 1" in report.failed["ridge/sub-01_seed-0.safetensors"]
    assert len(report.made) == 2


def test_scores_are_computed_from_what_is_exported(tmp_path: Path) -> None:
    study = plan(tmp_path, ("hyfi", "ridge"), subjects=(1,), seeds=(0,), precision="float16")
    assert not run_study(study, progress=False).failed
    for model in study.models:
        tensors = load_file(tmp_path / f"runs/{model}/sub-01_seed-0.safetensors")
        assert tensors["eeg"].dtype == np.float16 and tensors["edits"].shape[0] == Q * EDITS
        assert tensors["edit_scores"].dtype == np.float32 and tensors["edit_scores"].shape == (Q, Q * EDITS)
    from decodehub.hub_models.eeg_retrieval import RETRIEVAL_MODELS

    hyfi = RETRIEVAL_MODELS["hyfi"].from_pretrained(tmp_path / "training/hyfi/sub-01_seed-0/model")
    tensors = load_file(tmp_path / "runs/hyfi/sub-01_seed-0.safetensors")
    again = hyfi.score(*(torch.from_numpy(tensors[name].astype(np.float32)) for name in ("eeg", "sources")))
    torch.testing.assert_close(again, torch.from_numpy(tensors["source_scores"]), atol=1e-5, rtol=1e-5)
    _, info = read_run(tmp_path / "runs/hyfi/sub-01_seed-0.safetensors")
    assert info["similarity"] == "minus Lorentz distance"
    with pytest.raises(ValueError, match=r"delete it and run the study again"):
        (tmp_path / "bad").write_bytes(b"no")
        read_run(tmp_path / "bad")


def test_hard_negatives_are_used_or_missed_by_name(tmp_path: Path) -> None:
    training = {"hard_negatives": 2}
    without = plan(tmp_path / "a", ("neurobridge",), training=training, subjects=(1,), seeds=(0,))
    assert "no edits of training images are there" in next(iter(run_study(without, progress=False).failed.values()))
    with_edits = dataclasses.replace(without, out=tmp_path / "b", source=Planted(edits=True))
    assert not run_study(with_edits, progress=False).failed
    plain = plan(tmp_path / "c", ("neurobridge",), subjects=(1,), seeds=(0,), source=Planted(edits=True))
    run_study(plain, progress=False)
    losses = [json.loads((tmp_path / x / "training/neurobridge/sub-01_seed-0/run.json").read_text())["losses"] for x in "bc"]
    assert losses[0][0] > losses[1][0]  # more to tell apart


@pytest.mark.parametrize(("text", "expected"), [("1-3", (1, 2, 3)), ("0", (0,)), ("1, 3,5-6", (1, 3, 5, 6))])
def test_ranges(text: str, expected: tuple[int, ...]) -> None:
    assert numbers(text, "--subjects") == expected


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-", "-2", "1,,2"])
def test_bad_ranges_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="--subjects"):
        numbers(text, "--subjects")


def test_bad_studies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown model.*'clip'"):
        plan(tmp_path, ("ridge", "clip"), settings={})
    with pytest.raises(ValueError, match="seeds"):
        plan(tmp_path, ("ridge",), seeds=(1, 1))


# -------------------------------------------------------------------------------------------------------------------------------- verbs


def command(*options: Any) -> Any:
    return CliRunner().invoke(editbench.app, [str(option) for option in options])


def test_study_by_command_on_prepared_arrays(tmp_path: Path, tiny_release: Path) -> None:
    from decodehub.hub_datasets.eeg_editbench.manifest import read_release
    from decodehub.loaders.things_eeg2 import CHANNELS, Epochs
    from decodehub.loaders.things_eeg2.store import save_epochs

    n_sources = len(read_release(tiny_release).sources)
    rng = np.random.default_rng(0)

    def epochs(partition: Any, n: int, repetitions: int) -> Epochs:
        return Epochs(
            data=rng.standard_normal((n, repetitions, 63, 250)).astype(np.float32),
            ch_names=CHANNELS,
            sfreq=250.0,
            times=np.arange(250) / 250,
            images=np.arange(1, n + 1),
            partition=partition,
            subject=1,
            unit="whitened",
            settings={"simulated": True},
        )

    save_epochs(tmp_path / "eeg", {"train": epochs("train", 20, 2), "test": epochs("test", n_sources, 2)}, source="test")
    images = tmp_path / "images"
    for i in range(20):
        folder = images / f"{i // 10 + 1:05d}_thing{i // 10}"
        folder.mkdir(parents=True, exist_ok=True)
        from PIL import Image

        Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(folder / f"thing_{i:02d}.png")
    first = sorted(images.glob("*/*"))[0].relative_to(images).as_posix()
    (images / "training_edits.jsonl").write_text(json.dumps({"image": first, "edit_of": first}) + "\n")
    result = command(
        "targets", "nice", "--training", images, "--out", tmp_path / "t", "--data-dir", tiny_release, "--base-encoder", "lite0"
    )
    assert result.exit_code == 0, result.output + repr(result.exception)
    assert (tmp_path / "t/nice.safetensors").is_file()
    inputs = recorded_inputs("nice", 1, tmp_path / "eeg", tmp_path / "t/nice.safetensors", str(tiny_release))
    assert "lite0" in inputs.encoder and "in place of" in inputs.encoder
    assert inputs.negative_of.tolist() == [0] and inputs.negatives["image"].shape == (1, 1280)
    common = ["--eeg", tmp_path / "eeg", "--targets", tmp_path / "t", "--data-dir", tiny_release, "--subjects", 1, "--seeds", "0-1"]
    result = command("study", *common, "--models", "ridge,random-projection", "--out", tmp_path / "s")
    assert result.exit_code == 0, result.output + repr(result.exception)
    assert (tmp_path / "s/records/ridge/report.html").is_file() and list((tmp_path / "s/tables").glob("*.csv"))
    # Two processes share the runs; one of them, the last, writes the results.
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29617", "-m", "decodehub.cli"]
    options = [str(x) for x in ("editbench", "study", *common, "--models", "ridge", "--out", tmp_path / "two")]
    done = subprocess.run([*launch, *options], capture_output=True, text=True, timeout=240, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("1 runs made, 0 there already, 0 failed") == 2
    for seed in (0, 1):
        one, two = (tmp_path / folder / f"runs/ridge/sub-01_seed-{seed}.safetensors" for folder in ("s", "two"))
        np.testing.assert_allclose(load_file(one)["edit_scores"], load_file(two)["edit_scores"], atol=1e-5)
    assert list((tmp_path / "two/tables").glob("*.csv"))
    result = command("study", *common, "--models", "ridge,ubp", "--out", tmp_path / "s", "--epochs", 1)
    assert result.exit_code != 0 and "decodehub editbench targets ubp" in str(result.exception)


def test_what_is_asked_of_the_verbs_is_checked(tmp_path: Path) -> None:
    result = command("study", "--eeg", tmp_path)
    assert "--eeg and --targets together" in str(result.exception)
    bad = tmp_path / "settings.yaml"
    bad.write_text("nice: {epoch: 3}")
    result = command("study", "--simulate", "--models", "nice", "--settings", bad, "--report-only")
    assert "epoch" in str(result.exception) and "settings.yaml" in str(result.exception)
    for text, message in (
        ("nice: {epochs: 3", r"settings.yaml, line 1: expected ',' or '}'"),
        ("nice:\n  epochs: !!python/object:os.system x", "settings.yaml, line 2: could not determine a constructor"),
        ("nice: 3", "settings.yaml: expected settings by model"),
        ("nice: {epochs: many}", "settings.yaml: nice: "),
        ("nice: {epochs: 0}", "settings.yaml: nice: epochs must be at least 1"),
        ("nice: {epoch: 3}", "there is no setting 'epoch'; did you mean 'epochs'?"),
        ("nise: {epochs: 3}", "did you mean 'nice'?"),
    ):
        bad.write_text(text)
        shown = str(command("study", "--simulate", "--models", "nice", "--settings", bad, "--report-only").exception)
        assert message in shown and "\n" not in shown, shown
    for options, message in (
        (["--subjects", 0], "--subjects '0': numbers go from 1"),
        (["--seeds", 2**64], f"--seeds '{2**64}': numbers go from 0 to {2**64 - 1}"),
        (["--seeds", "0-99999"], "more than 10,000 numbers"),
        (["--models", "nise"], "did you mean 'nice'?"),
        (["--data-dir", tmp_path / "nowhere"], "nowhere is not a folder"),
        (["--out", bad / "x"], "settings.yaml is a file"),
        (["--out", tmp_path], "holds 'settings.yaml', which is not part of a study"),
    ):
        shown = str(command("study", "--simulate", "--models", "ridge", "--out", tmp_path / "s", *options).exception)
        assert message in shown and not (tmp_path / "s").exists(), shown
    assert "--eeg nowhere does not exist" in str(command("study", "--eeg", "nowhere", "--targets", tmp_path).exception)
    bad.write_text("atm: {epochs: 3}")
    result = command("study", "--simulate", "--models", "nice", "--settings", bad, "--report-only")
    assert "'atm' is not among the models" in str(result.exception)
    result = command("targets", "nice", "--seed", 1, "--training", tmp_path, "--base-encoder", "lite0")
    assert "nothing random" in str(result.exception)


def test_training_images_are_read_in_their_order(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"neither training\.jsonl nor concept folders"):
        read_training_images(tmp_path)
    for name in ("00002_cat/b.jpg", "00001_dog/z.jpg", "00001_dog/a.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found = read_training_images(tmp_path)
    assert [path.name for path in found.images] == ["a.jpg", "z.jpg", "b.jpg"]
    assert found.concepts == ["00001_dog", "00001_dog", "00002_cat"]
    (tmp_path / "training_edits.jsonl").write_text('{"image": "x.png", "edit_of": "test_images/a.jpg"}\n')
    with pytest.raises(ValueError, match="no training image of this folder"):
        read_training_images(tmp_path)
    (tmp_path / "training_edits.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match="line 1"):
        read_training_images(tmp_path)
    (tmp_path / "training_edits.jsonl").write_text('{"image": "../../x.png", "edit_of": "00001_dog/a.jpg"}\n')
    with pytest.raises(ValueError):
        read_training_images(tmp_path)
