"""``load_dataset("things-eeg2")``: real calls of the real library on the sample and on small prepared folders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import get_dataset_config_names, get_dataset_split_names, load_dataset, load_dataset_builder

import decodehub
from decodehub.hub_datasets.eeg_editbench.taxonomy import load_taxonomy
from decodehub.hub_datasets.things_eeg2.builder import concept_index, release_name, train_concept_names
from decodehub.hub_datasets.things_eeg2.sample import RELEASE, ensure_sample, simulate_sample
from decodehub.loaders.things_eeg2 import CHANNELS, TRAIN_CONCEPTS
from decodehub.loaders.things_eeg2.store import load_epochs, read_info, save_epochs

SMALL = {"train": (30, 4), "test": (5, 8)}
COLUMNS = ["subject", "image_number", "concept_index", "concept", "eeg", "release"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two prepared subjects that are not the sample, one of which has no test partition."""
    root = tmp_path_factory.mktemp("prepared")
    settings = {"noise_normalisation": "as a test"}
    for subject in (1, 3):
        epochs = {k: replace(e, settings=settings) for k, e in simulate_sample(subject=subject, counts=SMALL).items()}  # type: ignore[arg-type]
        save_epochs(root, epochs if subject == 1 else {"train": epochs["train"]}, source="recordings")
    return root


class TestSample:
    def test_has_both_splits_and_says_that_it_is_simulated(self) -> None:
        data = load_dataset("things-eeg2", "sample")
        assert {name: len(part) for name, part in data.items()} == {"train": 40, "test": 10}
        for part in data.values():
            assert part.column_names == COLUMNS
            assert set(part["release"]) == {RELEASE} and "simulated" in RELEASE
            assert "simulated" in part.info.description and part.info.license == "cc-by-4.0" and "gifford" in part.info.citation

    @pytest.mark.parametrize("partition", ["train", "test"])
    def test_averages_are_those_of_the_arrays(self, partition: Any) -> None:
        data = load_dataset("things-eeg2", "sample", split=partition).with_format("numpy")
        epochs = load_epochs(ensure_sample(), 1, partition)
        eeg = data[:]["eeg"]
        assert eeg.shape == (len(epochs.images), 63, 250) and eeg.dtype == np.float32
        np.testing.assert_allclose(eeg, epochs.data.mean(axis=1, dtype=np.float64), atol=1e-6)
        np.testing.assert_array_equal(data[:]["image_number"], epochs.images)

    def test_concepts(self) -> None:
        data = load_dataset("things-eeg2", "sample")
        assert data["test"]["concept"][:] == [c.name for c in load_taxonomy().concepts[:10]]
        assert data["test"]["concept_index"][:] == list(range(10))
        assert data["train"]["concept"][:] == [None] * 40
        assert data["train"]["concept_index"][:] == [i // 10 for i in range(40)]

    def test_the_bare_name_gives_the_sample_with_a_warning(self) -> None:
        with pytest.warns(UserWarning, match="SIMULATED"):
            data = load_dataset("things-eeg2")
        assert list(data) == ["train"] and set(data["train"]["release"]) == {RELEASE}

    def test_takes_no_folder(self, prepared: Path) -> None:
        with pytest.raises(ValueError, match="takes no data_dir"):
            load_dataset("things-eeg2", "sample", data_dir=str(prepared))

    def test_equal_seeds_give_equal_epochs_and_others_do_not(self) -> None:
        a, b, c = (simulate_sample(counts={"train": (25, 2), "test": (2, 4)}, seed=seed)["train"].data for seed in (1, 1, 2))
        np.testing.assert_array_equal(a, b)
        assert not np.array_equal(a, c)


class TestPreparedFolder:
    @pytest.mark.filterwarnings("error::UserWarning")
    def test_trials(self, prepared: Path) -> None:
        data = load_dataset("things-eeg2", "test", split="test", data_dir=str(prepared), average=False)
        assert data.column_names == [*COLUMNS[:-1], "repetition", "session", "release"]
        epochs = load_epochs(prepared, 1, "test")
        assert len(data) == 40 and data["repetition"][:8] == list(range(1, 9)) and data["session"][:8] == [1, 1, 2, 2, 3, 3, 4, 4]
        np.testing.assert_array_equal(data.with_format("numpy")[:]["eeg"], epochs.data.reshape(40, 63, 250))
        assert data["image_number"][:] == np.repeat(epochs.images, 8).tolist()

    def test_subjects(self, prepared: Path) -> None:
        both = load_dataset("things-eeg2", "train", split="train", data_dir=str(prepared), subject="all")
        assert both["subject"][:] == [1] * 30 + [3] * 30
        third = load_dataset("things-eeg2", "train", split="train", data_dir=str(prepared), subject=3)
        assert third.with_format("numpy")[:]["eeg"].tolist() == both.with_format("numpy")[30:]["eeg"].tolist()
        with pytest.raises(FileNotFoundError, match=r"prepared subjects \[1, 3\], asked for was 2"):
            load_dataset("things-eeg2", "train", data_dir=str(prepared), subject=2)
        with pytest.raises(FileNotFoundError, match="not 'test'"):
            load_dataset("things-eeg2", "test", data_dir=str(prepared), subject=3)
        for wrong in (0, "one", True):
            with pytest.raises(ValueError, match="number from 1"):
                load_dataset("things-eeg2", data_dir=str(prepared), subject=wrong)

    def test_streaming_gives_the_same_rows(self, prepared: Path) -> None:
        options = {"data_dir": str(prepared), "subject": "all"}
        rows = list(load_dataset("things-eeg2", "train", split="train", streaming=True, **options).with_format("numpy"))
        table = load_dataset("things-eeg2", "train", split="train", **options).with_format("numpy")
        assert rows[0]["eeg"].shape == (63, 250) and rows[0]["eeg"].dtype == np.float32
        np.testing.assert_array_equal(np.stack([row["eeg"] for row in rows]), table[:]["eeg"])
        assert [row["image_number"] for row in rows] == table[:]["image_number"].tolist()

    def test_streams_and_workers_share_the_work(self, prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("decodehub.hub_datasets.things_eeg2.builder.IMAGES_A_BLOCK", 8)
        stream = load_dataset("things-eeg2", "train", split="train", data_dir=str(prepared), streaming=True)
        assert stream.num_shards == 4
        halves = [[row["image_number"] for row in stream.shard(2, i)] for i in range(2)]
        assert sorted(halves[0] + halves[1]) == list(range(1, 31)) and halves[0] and halves[1]
        builder = load_dataset_builder("things-eeg2", "train", data_dir=str(prepared), cache_dir=str(prepared / "cache"))
        builder.download_and_prepare(num_proc=2)
        assert builder.as_dataset(split="train")["image_number"][:] == list(range(1, 31))

    def test_another_content_is_never_answered_from_the_cache(self, prepared: Path, tmp_path: Path) -> None:
        epochs = simulate_sample(counts=SMALL)  # type: ignore[arg-type]
        means = []
        for scale in (1, 2):
            data = {k: replace(e, data=e.data * np.float32(scale)) for k, e in epochs.items()}
            save_epochs(tmp_path / "p", data, source="recordings")  # type: ignore[arg-type]
            table = load_dataset("things-eeg2", "train", split="train", data_dir=str(tmp_path / "p")).with_format("numpy")
            means.append(table[:]["eeg"])
        np.testing.assert_allclose(means[1], 2 * means[0], rtol=1e-5)

    def test_arrays_that_changed_since_are_refused(self, tmp_path: Path) -> None:
        save_epochs(tmp_path / "p", simulate_sample(counts=SMALL, seed=7), source="recordings")  # type: ignore[arg-type]
        load_dataset("things-eeg2", "train", data_dir=str(tmp_path / "p"))  # now in the cache, which must not answer
        with (tmp_path / "p/sub-01/train.npy").open("rb+") as f:
            f.seek(4096)
            f.write(b"\x00\x00\x80\x3f")
        with pytest.raises(ValueError, match="has changed since it was prepared"):
            load_dataset("things-eeg2", "train", data_dir=str(tmp_path / "p"))

    def test_subjects_with_other_channels_do_not_go_together(self, tmp_path: Path) -> None:
        for subject, channels in ((1, CHANNELS), (2, CHANNELS[46:])):
            e = simulate_sample(subject=subject, counts=SMALL)["train"]  # type: ignore[arg-type]
            save_epochs(tmp_path, {"train": replace(e, data=e.data[:, :, -len(channels) :], ch_names=channels)}, source="recordings")
        assert load_dataset("things-eeg2", split="train", data_dir=str(tmp_path), subject=2).features["eeg"].shape == (17, 250)
        with pytest.raises(ValueError, match="subjects 1, 2 differ"):
            load_dataset("things-eeg2", data_dir=str(tmp_path), subject="all")

    def test_home_folder_is_found_without_a_warning(
        self, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: Any
    ) -> None:
        monkeypatch.setenv("DECODEHUB_HOME", str(tmp_path))
        (tmp_path / "things-eeg2").symlink_to(prepared)
        assert len(load_dataset("things-eeg2", split="train")) == 30
        assert not [w for w in recwarn if "SIMULATED" in str(w.message)]

    def test_nothing_there_says_how_to_prepare(self, tmp_path: Path) -> None:
        for subject in (1, "all"):
            with pytest.raises(FileNotFoundError, match="things prepare"):
                load_dataset("things-eeg2", data_dir=str(tmp_path), subject=subject)


class TestNames:
    def test_training_concepts_from_the_users_folder(self, prepared: Path, tmp_path: Path) -> None:
        names = [f"concept_{i:04d}" for i in range(TRAIN_CONCEPTS)]
        (tmp_path / "sub-01").symlink_to(prepared / "sub-01")
        (tmp_path / "train_concepts.txt").write_text("\n".join(names) + "\n")
        data = load_dataset("things-eeg2", "train", split="train", data_dir=str(tmp_path))
        assert data["concept"][:] == [names[i // 10] for i in range(30)]
        (tmp_path / "train_concepts.txt").write_text("aardvark\n")
        with pytest.raises(ValueError, match=r"names 1 training concepts, expected 1,654"):
            load_dataset("things-eeg2", "train", data_dir=str(tmp_path))

    def test_official_folder_names(self, tmp_path: Path, shared: Path) -> None:
        import csv

        with (shared / "data/things_eeg2/things_eeg2_train_concepts_1654.csv").open() as f:
            rows = list(csv.DictReader(f))
        for row in reversed(rows):
            (tmp_path / "training_images" / row["folder"]).mkdir(parents=True)
        (tmp_path / "training_images/.DS_Store").touch()
        assert train_concept_names(tmp_path) == [row["concept_id"] for row in rows]
        assert [concept_index(int(row["first_image_id"]), "train") for row in rows] == [int(row["index0"]) for row in rows]

    def test_releases_of_simulated_recordings_say_so(self, prepared: Path) -> None:
        info = read_info(prepared / "sub-01")
        assert release_name(info).startswith("prepared-")
        assert release_name({**info, "source": "raw OSF, simulated"}).startswith("simulated-")
        assert release_name({**info, "settings": {"simulated": True}}).startswith("simulated-")


class TestTheLibrary:
    def test_names(self) -> None:
        assert set(get_dataset_config_names("things-eeg2")) == {"train", "test", "sample"}
        assert get_dataset_split_names("things-eeg2", "sample") == ["train", "test"]

    def test_data_files_and_odd_options_are_refused(self, prepared: Path) -> None:
        with pytest.raises(ValueError, match="takes data_dir="):
            load_dataset("things-eeg2", data_files="x.npy")
        with pytest.raises(ValueError, match="average must be"):
            load_dataset("things-eeg2", data_dir=str(prepared), average="yes")

    def test_the_published_form_gives_the_same_rows(self) -> None:
        with pytest.warns(UserWarning, match="SIMULATED"):
            path = decodehub.path("things-eeg2")
        assert path == decodehub.path("things-eeg2", data_dir="sample")
        for split in ("train", "test"):
            ours = load_dataset("things-eeg2", "sample", split=split).with_format("numpy")
            for config in (split, "sample"):
                published = load_dataset(path, config, split=split).with_format("numpy")
                np.testing.assert_array_equal(published[:]["eeg"], ours[:]["eeg"])
                assert published.column_names == ours.column_names
        streamed = next(iter(load_dataset(path, "test", split="test", streaming=True).with_format("numpy")))
        assert streamed["eeg"].shape == (63, 250)
