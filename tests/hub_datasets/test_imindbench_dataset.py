"""``load_dataset("imindbench")``: vocabulary, labels, the simulated sample, the audit."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import datasets
import numpy as np
import pytest

import decodehub  # noqa: F401  (registers the bare name)
from decodehub.hub_datasets.imindbench import builder, sample, vocabulary
from decodehub.hub_datasets.imindbench.audit import audit
from decodehub.hub_datasets.imindbench.data import open_recording, resolve_folder, unit_labels
from decodehub.loaders.ieeg.splits import make_folds

MAIN = {"neuroprobev2": (49, 75), "kelesbyd2024": (254, 435), "berezutskayapippi2022": (44, 75)}


class TestVocabulary:
    def test_the_grid(self) -> None:
        assert (len(vocabulary.tasks()), len(vocabulary.sessions()), len(vocabulary.units())) == (15, 39, 585)
        assert Counter(s.dataset for s in vocabulary.sessions()) == {"neuroprobev2": 5, "kelesbyd2024": 29, "berezutskayapippi2022": 5}
        grid = {(u.dataset, u.subject_session, u.task) for u in vocabulary.units()}
        assert grid == {(s.dataset, s.subject_session, t.id) for s in vocabulary.sessions() for t in vocabulary.tasks()}
        assert (len(vocabulary.select("main")), len(vocabulary.select("challenge")), len(vocabulary.select())) == (347, 238, 585)
        for dataset, (main, every) in MAIN.items():
            mine = [u for u in vocabulary.units() if u.dataset == dataset]
            assert (sum(u.subset == "main" for u in mine), len(mine)) == (main, every)

    def test_main_is_the_published_list(self, shared: Path) -> None:
        published = json.loads((shared / "data/ieeg/imindbench_main_units.json").read_text())["datasets"]
        listed = {f"{d}/{s}/{t}" for d, tasks in published.items() for t, row in tasks.items() for s in row["main"]}
        assert listed == {u.id for u in vocabulary.select("main")}

    def test_names_and_aliases(self) -> None:
        assert vocabulary.find_task("head_word_pos").id == vocabulary.find_task("Head Word Position").id == "word_head_pos"
        assert vocabulary.find_dataset("Pippi") == "berezutskayapippi2022"
        with pytest.raises(KeyError, match="no task is called"):
            vocabulary.find_task("x")
        with pytest.raises(KeyError, match="no session 'sub2_sess0'"):
            vocabulary.find_session("neuroprobev2", "sub2_sess0")
        names = [name for task in vocabulary.tasks() for name in (task.id, *task.aliases)]
        assert len(names) == len(set(names))

    def test_sessions_have_their_recordings(self) -> None:
        assert vocabulary.find_session("kelesbyd2024", "sub57_sess2").recording_id == "sub-CS57_ses-P57CSR2"
        assert vocabulary.find_session("berezutskayapippi2022", "sub9_sess2").recording_id == "sub-09_ses-iemu_task-film_acq-clinical_run-2"
        assert {s.line_freq for s in vocabulary.sessions() if s.dataset == "berezutskayapippi2022"} == {50.0}

    def test_bad_units_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "u.csv").write_text(
            "dataset,subject_session,task,subset\nneuroprobev2,sub1_sess1,onset,main\nneuroprobev2,sub1_sess1,onset,main\n"
        )
        with pytest.raises(ValueError, match="line 3"):
            vocabulary.read_units(tmp_path / "u.csv")


class TestLoad:
    def test_units(self) -> None:
        data = datasets.load_dataset("imindbench", "units")["units"]
        assert len(data) == 585 and data.unique("release") == ["0.1.0"]
        assert data[0] == {
            "unit": "neuroprobev2/sub1_sess1/onset",
            "dataset": "neuroprobev2",
            "subject_session": "sub1_sess1",
            "subject": "sub1",
            "session": "sess1",
            "task": "onset",
            "subset": "main",
            "release": "0.1.0",
        }
        assert len(datasets.load_dataset("imindbench", "units", subset="main")["units"]) == 347

    def test_units_of_the_sample(self) -> None:
        data = datasets.load_dataset("imindbench", "units", data_dir="sample")["units"]
        assert len(data) == 90 and data.unique("release") == [sample.release()]
        assert {task for task, subset in zip(data["task"], data["subset"]) if subset == "main"} == {"onset", "speech", "volume", "face_num"}

    def test_labels_of_the_sample_are_the_folds_of_the_real_rules(self) -> None:
        data = datasets.load_dataset("imindbench", "labels", data_dir="sample", unit_dataset="kelesbyd2024", task="onset")[
            "labels"
        ].to_pandas()
        table = unit_labels(sample.FOLDER, "kelesbyd2024", "sub41_sess1", "onset")
        recording = open_recording(sample.FOLDER, "kelesbyd2024", "sub41_sess1")
        for fold in make_folds("kelesbyd2024", recording.recording_id, "onset", table):
            for part in ("train", "val", "test"):
                rows = data[(data["subject_session"] == "sub41_sess1") & (data["fold"] == fold.index) & (data["part"] == part)]
                assert np.array_equal(rows["start_s"], table.start_s[fold.part(part)])
                assert np.array_equal(rows["label"], table.label[fold.part(part)])

    def test_labels_without_data_are_the_sample_with_a_warning(self) -> None:
        with pytest.warns(UserWarning, match="SIMULATED"):
            data = datasets.load_dataset("imindbench", "labels", task="word_gap", unit_dataset="neuroprobev2")["labels"]
        assert data.unique("release") == [sample.release()]

    def test_published_tables_become_the_published_sizes(self, shared: Path, tmp_path: Path) -> None:
        (tmp_path / "berezutskayapippi2022").mkdir()
        (tmp_path / "berezutskayapippi2022/labels").symlink_to(shared / "data/ieeg/labels/pippi")
        options = {"data_dir": str(tmp_path), "unit_dataset": "berezutskayapippi2022", "task": "delta_volume"}
        data = datasets.load_dataset("imindbench", "labels", **options)["labels"].to_pandas()
        sizes = data[data["subject_session"] == "sub1_sess1"].groupby(["fold", "part"]).size().to_dict()
        expected = {"train": (256, 254), "val": (128, 130), "test": (116, 126)}
        assert sizes == {(fold, part): both[fold] for part, both in expected.items() for fold in (0, 1)}

    def test_missing_labels_are_refused_or_left_out(self, tmp_path: Path) -> None:
        (tmp_path / "kelesbyd2024/labels").mkdir(parents=True)
        (tmp_path / "kelesbyd2024/labels/onset_binary_labels.csv").write_text(
            "start_time_s,label\n" + "".join(f"{i * 2},{i % 2}\n" for i in range(40))
        )
        options = {"data_dir": str(tmp_path), "unit_dataset": "kelesbyd2024"}
        with pytest.raises(datasets.exceptions.DatasetGenerationError) as error:
            datasets.load_dataset("imindbench", "labels", **options)
        assert "406 of 435 units have no labels" in str(error.value.__cause__)
        data = datasets.load_dataset("imindbench", "labels", partial=True, **options)["labels"]
        assert data.unique("task") == ["onset"] and len(data.unique("unit")) == 29

    def test_a_changed_table_is_read_anew(self, tmp_path: Path) -> None:
        path = tmp_path / "kelesbyd2024/labels/onset_binary_labels.csv"
        path.parent.mkdir(parents=True)
        first = None
        for n in (40, 60):
            path.write_text("start_time_s,label\n" + "".join(f"{i * 2},{i % 2}\n" for i in range(n)))
            rows = len(
                datasets.load_dataset("imindbench", "labels", data_dir=str(tmp_path), unit_dataset="kelesbyd2024", task="onset")["labels"]
            )
            assert rows != first
            first = rows

    def test_sample_shows_windows_with_their_signals(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            builder.IMINDBench, "_units", lambda self: tuple(u for u in sample.sample_units() if u.id.endswith("sub41_sess1/speech"))
        )
        made = builder.IMINDBench(config_name="sample")
        rows = [row for _, row in made._generate_examples(list(made._units()))]
        assert [row["label"] for row in rows].count(1) == 3 * sample.SHOWN_WINDOWS == len(rows) / 2
        assert {row["release"] for row in rows} == {sample.release()}
        row = rows[0]
        recording = sample.sample_recording("kelesbyd2024", "sub41_sess1")
        assert np.array_equal(row["ieeg"], recording.read(*recording.window_bounds(row["start_s"]))) and row["ieeg"].shape == (32, 1000)
        assert {row["unit"] for row in rows} == {"kelesbyd2024/sub41_sess1/speech"}

    @pytest.mark.parametrize(
        ("options", "message"), [({"task": "loudness"}, "'loudness' selects nothing"), ({"data_files": "x"}, "data_dir")]
    )
    def test_unknown_selections_are_named(self, options: dict, message: str) -> None:
        with pytest.raises(Exception, match=message):
            datasets.load_dataset("imindbench", "units", **options)


class TestAudit:
    def test_of_the_sample(self) -> None:
        rows = audit("sample", dataset="BYD", task="onset")
        assert [(row["subject_session"], row["fold"]) for row in rows] == [(s, k) for s in ("sub41_sess1", "sub41_sess2") for k in (0, 1)]
        assert all(row["duplicated_windows"] == 0 and row["positive_test"] == 0.5 and row["same_film_sessions"] == 1 for row in rows)

    def test_neuroprobe_cuts_classes_at_different_times(self, shared: Path, tmp_path: Path) -> None:
        """A finding on real timing: the interleaved list is cut by rank within class, so windows of the two parts share time."""
        folder = tmp_path / "neuroprobev2"
        folder.mkdir()
        for name in ("time_alignment", "pitch_volume"):
            (folder / name).symlink_to(shared / "data/ieeg/neuroprobe" / name)
        rows = audit(tmp_path, dataset="neuroprobev2", task="pitch", subset="main")
        first = {row["subject_session"]: row for row in rows if row["fold"] == 0}
        assert first["sub1_sess1"]["overlap_test_train"] == 87 and first["sub1_sess1"]["n_test"] == 875
        assert (
            first["sub1_sess1"]["same_film_sessions"] == 0 and first["sub3_sess0"]["film_overlap_test_sources"] > 0
        )  # cars-2 is there three times

    def test_missing_files_and_names(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="should hold the download"):
            audit(tmp_path, dataset="Pippi", task="speech")
        assert audit(tmp_path, dataset="Pippi", task="speech", partial=True) == []
        with pytest.raises(KeyError, match="no unit has"):
            audit("sample", subset="hard")


def test_a_folder_is_looked_for_where_the_card_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DECODEHUB_HOME", str(tmp_path))
    (tmp_path / "imindbench").mkdir()
    assert resolve_folder(None) == tmp_path / "imindbench" and resolve_folder("sample") == sample.FOLDER


def test_a_recording_of_a_download_is_opened_by_unit(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="should hold the download of kelesbyd2024"):
        open_recording(tmp_path, "kelesbyd2024", "sub41_sess1")
    (tmp_path / "kelesbyd2024").mkdir()
    with pytest.raises(FileNotFoundError, match=r"sub-CS41_ses-P41CSR1"):
        open_recording(tmp_path, "kelesbyd2024", "sub41_sess1")


def test_a_prepared_recording_alone_gives_its_labels_and_folds(tmp_path: Path) -> None:
    import h5py

    from decodehub.hub_datasets.imindbench.data import unit_folds
    from decodehub.hub_datasets.imindbench.vocabulary import find_session

    recording_id = find_session("kelesbyd2024", "sub41_sess1").recording_id
    path = tmp_path / "kelesbyd2024" / "processed" / f"{recording_id}.h5"
    path.parent.mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=r"speech_binary_labels\.csv does not exist"):
        unit_folds(tmp_path, "kelesbyd2024", "sub41_sess1", "speech", recording_id)
    with h5py.File(path, "w") as f:
        for fold, first in ((0, 0.0), (1, 20.0)):
            for k, part in enumerate(("train", "val", "test")):
                group = f.create_group(f"splits/full$binary$within_session$speech$fold{fold}${part}")
                group["start"], group["end"] = first + 4 * k + np.arange(4.0), first + 4 * k + np.arange(4.0) + 1
                group["label"] = np.arange(4) % 2
    table, folds = unit_folds(tmp_path, "kelesbyd2024", "sub41_sess1", "speech", recording_id)
    assert [table.start_s[fold.test].tolist() for fold in folds] == [[8, 9, 10, 11], [28, 29, 30, 31]]
