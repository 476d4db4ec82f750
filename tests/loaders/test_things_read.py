"""Every layout reads back as it was written; real sidecars and real recordings work; what is missing or odd is named."""

from __future__ import annotations

import gzip
import pickle
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from decodehub.loaders.things_eeg2 import CHANNELS, POSTERIOR_17_OSF, RECORDING_ORDER, TARGET_EVENT, Epochs, Partition, image_order
from decodehub.loaders.things_eeg2 import read as read
from decodehub.loaders.things_eeg2.arrays import check_axes, dict_epochs, image_numbers, plain_epochs, torch_epochs
from decodehub.loaders.things_eeg2.bids import find_runs, missing_runs, read_events, read_recording, read_tsv
from decodehub.loaders.things_eeg2.read import open_source
from decodehub.loaders.things_eeg2.simulate import (
    RunSchedule,
    ScheduleSettings,
    SignalSettings,
    evoked_model,
    make_schedule,
    record,
    simulate_epochs,
)
from decodehub.loaders.things_eeg2.simulate_files import (
    image_path,
    write_bdf,
    write_bids,
    write_osf_preprocessed,
    write_plain_arrays,
    write_preprocessed_dicts,
    write_raw_dicts,
    write_torch_files,
)
from decodehub.loaders.things_eeg2.store import save_epochs

TINY = ScheduleSettings(n_train_concepts=2, n_test_images=3, n_sessions=2, train_parts=2, train_blocks=2, test_blocks=1, pauses=0.02)
RUNS = make_schedule(TINY, subject=1, seed=0)
MODEL = evoked_model(SignalSettings(snr=1.0, latent_dim=4), subject=1, seed=0)


@pytest.fixture(scope="module")
def bids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bids")
    write_bids(root, RUNS, MODEL)
    return root


@pytest.fixture
def own_bids(bids: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(bids, tmp_path / "bids"))


def _runs(source: read.Source) -> list[read.Run]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return list(source.runs(1))


def _same_runs(found: list[read.Run], expected: list[RunSchedule], tolerance: float) -> None:
    assert [(run.session, run.partition, run.subject) for run in found] == [(run.session, run.partition, 1) for run in expected]
    for run, schedule in zip(found, expected):
        signal = record(schedule, MODEL)
        assert_array_equal(run.onsets, schedule.samples)
        assert_array_equal(run.images, schedule.images)
        assert set(run.raw.get_channel_types(picks=list(CHANNELS))) == {"eeg"}
        assert run.raw.info["sfreq"] == 1000
        data = run.raw.get_data(picks=list(RECORDING_ORDER))[:, : schedule.n_samples]
        assert_allclose(data, signal, rtol=0, atol=tolerance * np.abs(signal).max())


# ---------------------------------------------------------------------------------------------------------------------- runs, simulated


def test_bids_brainvision(bids: Path) -> None:
    source = open_source(bids)
    assert (source.layout, source.kind, source.subjects) == (read.BIDS, "runs", [1])
    _same_runs(_runs(source), RUNS, 1e-6)
    assert [run.name for run in _runs(open_source(bids / "sub-01"))] == [run.name for run in _runs(source)]
    with pytest.raises(ValueError, match="holds continuous recordings"):
        source.epochs(1, "train")
    with pytest.raises(ValueError, match=r"has the subjects \[1\], not 2"):
        source.runs(2)


def test_bids_bdf_and_units_from_the_table(tmp_path: Path) -> None:
    write_bids(tmp_path, RUNS[:2], MODEL, format="bdf")
    _same_runs(_runs(open_source(tmp_path)), RUNS[:2], 1e-6)
    # A recording that states no unit takes that of channels.tsv; here volts.
    path = next(tmp_path.rglob("*_task-test_eeg.bdf"))
    write_bdf(path, record(RUNS[0], MODEL), unit="")
    _same_runs(_runs(open_source(tmp_path)), RUNS[:2], 1e-6)
    table = next(tmp_path.rglob("*_task-test_channels.tsv"))
    table.write_bytes(table.read_bytes().replace(b"\tV\t", "\tµV\t".encode()))
    assert _runs(open_source(tmp_path))[0].raw.get_data().std() == pytest.approx(1e-6 * record(RUNS[0], MODEL).std(), rel=0.05)


def test_bids_originals_and_compressed_tables(tmp_path: Path) -> None:
    write_bids(tmp_path, RUNS[:3], MODEL, originals=True, compress_events=True)
    _same_runs(_runs(open_source(tmp_path)), RUNS[:3], 1e-6)  # the tree has no recordings: the originals are taken
    source = open_source(tmp_path / "sourcedata")
    assert source.layout == read.BIDS_ORIGINALS
    _same_runs(_runs(source), RUNS[:3], 1e-6)
    for table in tmp_path.rglob("*_events.tsv.gz"):
        table.unlink()
    with pytest.raises(ValueError, match=r"3 of 3 runs cannot be read(.|\n)*do not identify images(.|\n)*events\.tsv of the same run"):
        open_source(tmp_path / "sourcedata").runs(1)


def test_raw_dicts(tmp_path: Path) -> None:
    write_raw_dicts(tmp_path / "Raw_data", RUNS, MODEL)
    source = open_source(tmp_path)
    assert (source.layout, source.kind, source.subjects) == (read.RAW_DICTS, "runs", [1])
    found = _runs(source)
    assert [(run.session, run.partition) for run in found] == [(1, "test"), (1, "train"), (2, "test"), (2, "train")]
    _same_runs(found[:1], RUNS[:1], 1e-7)
    # The training parts are one recording.
    first, second = RUNS[1:3]
    assert_array_equal(found[1].onsets, np.concatenate([first.samples, second.samples + first.n_samples]))
    assert_array_equal(found[1].images, np.concatenate([first.images, second.images]))
    assert_allclose(found[1].raw.get_data()[:, first.n_samples :], record(second, MODEL), rtol=0, atol=1e-12)
    lost = tmp_path / "Raw_data/sub-01/ses-02/raw_eeg_test.npy"
    lost.rename(lost.with_name("raw_eeg_training2.npy"))
    with pytest.raises(ValueError, match=r"does not say 'train'|both train"):
        source.runs(1)
    (lost.with_name("raw_eeg_training2.npy")).unlink()
    with pytest.raises(ValueError, match=r"session 2 lacks the recording of \['test'\]"):
        source.runs(1)


def _raw_dict(stim: np.ndarray, **changes: Any) -> dict[str, Any]:
    data = np.zeros((3, len(stim)))
    data[1] = stim
    return {"raw_eeg_data": data, "ch_names": ["Oz", "stim", "O1"], "ch_types": ["eeg", "stim", "eeg"], "sfreq": 1000, **changes}


def test_pulses_of_any_length(tmp_path: Path) -> None:
    stim = np.zeros(3000)
    stim[0] = 7  # on the first sample
    stim[200:210] = 154
    stim[400], stim[600:800] = TARGET_EVENT, 16_540
    stim[800:820] = 154  # without a zero between
    stim[1000:1003] = 154
    np.save(tmp_path / "raw_eeg_training.npy", _raw_dict(stim), allow_pickle=True)  # type: ignore[arg-type]
    run = read.raw_dict_run(tmp_path / "raw_eeg_training.npy", subject=1, session=1, partition="train")
    assert run.onsets.tolist() == [0, 200, 400, 600, 800, 1000]
    assert run.images.tolist() == [7, 154, 0, 16_540, 154, 154]
    assert run.raw.ch_names == ["Oz", "O1"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_raw_dict(np.zeros(10)), "has no event"),
        (_raw_dict(np.full(10, 0.5)), "no image numbers"),
        (_raw_dict(np.full(10, 201.0)), r"image number 201, but test images are 1\.\.200"),
        (_raw_dict(np.ones(10), ch_names=["a", "b", "c"]), r"channels \['stim'\] are not among"),
        (_raw_dict(np.ones(10), ch_names=["a", "stim"]), r"is \(3, 10\) float64 with 2 channel names"),
        (_raw_dict(np.ones(10), raw_eeg_data=np.zeros((10, 3))), "axes look swapped"),
        ({"x": 1}, r"holds dict with \['x'\]"),
    ],
)
def test_raw_dicts_refuse(tmp_path: Path, content: dict, message: str) -> None:
    path = tmp_path / "raw_eeg_test.npy"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(ValueError, match=message):
        read.raw_dict_run(path, subject=1, session=1, partition="test")


# ------------------------------------------------------------------------------------------------------------------------ runs, damaged


def test_partition_is_never_taken_from_the_number(own_bids: Path) -> None:
    """Image 154 is a sailboat in the test and another image in training; low numbers in training runs stay training images."""
    found = _runs(open_source(own_bids))
    assert all(run.images.max() <= 200 for run in found)
    assert {run.partition for run in found} == {"train", "test"}
    table = next(own_bids.rglob("*_task-test_events.tsv"))
    table.write_text(table.read_text().replace("\t3\t3\t", "\t201\t201\t"))
    with pytest.raises(ValueError, match=r"image number 201, but test images are 1\.\.200"):
        _runs(open_source(own_bids))


@pytest.mark.parametrize("kind", ["pointer", "link", "signal", "lfs", "none", "marker"])
def test_missing_recordings_are_named(own_bids: Path, kind: str) -> None:
    header = next(own_bids.rglob("*_ses-01_task-train_run-02_eeg.vhdr"))
    signal = header.with_suffix(".eeg")
    pointer = "/annex/objects/SHA256E-s341500320--3b70aa1a4cc31968e40fd9f26d61883912788c61222b2712c6d8e71b4d513b1b.eeg"
    signal.unlink()
    message = r"1 of 6 runs cannot be read"
    if kind == "pointer":
        signal.write_text(pointer + "\n")
        message += r"(.|\n)*run-02_eeg\.eeg is a git-annex pointer .* 341,500,320 bytes: run 'datalad get"
    elif kind == "link":
        signal.symlink_to("../../../.git" + pointer)
        message += r"(.|\n)*run-02_eeg\.eeg is a git-annex pointer .* 341,500,320 bytes"
    elif kind == "lfs":
        signal.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
        message += r"(.|\n)*Git LFS pointer"
    elif kind == "signal":
        signal.write_bytes(b"\0" * 5000)
        header.unlink()
        message += r"(.|\n)*without its header"
    elif kind == "marker":
        signal.write_bytes(b"\0" * 5000)
        header.with_suffix(".vmrk").unlink()
        message += r"(.|\n)*vmrk does not exist"
    else:
        header.unlink()
        message += r"(.|\n)*run-02 has an events\.tsv but no recording"
    with pytest.raises(ValueError, match=message):
        open_source(own_bids).runs(1)


def test_missing_runs_and_the_stored_reference_are_warned_of(own_bids: Path) -> None:
    for path in list(own_bids.rglob("*_ses-02_task-train_run-02_*")):
        path.unlink()
    assert missing_runs(find_runs(own_bids)) == ["sub-01_ses-02_task-train_run-02"]
    with pytest.warns(UserWarning, match="missing: sub-01_ses-02_task-train_run-02"):
        runs = open_source(own_bids).runs(1)
    with pytest.warns(UserWarning, match="calls FCz the reference, yet FCz is among the recorded channels") as caught:
        assert len(list(runs)) == 5
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("tot_img_number", "number", 1), "expected .*tot_img_number"),
        (lambda text: text.replace("\timage\t", "\trest_marker\t"), "no event of trial_type 'image'"),
        (lambda text: text.replace("\timage\t2\t2\t", "\timage\tn/a\t2\t"), "tot_img_number 'n/a'"),
        (
            lambda text: text.replace("\timage\t2\t2\t", "\timage\t2\t3\t"),
            "test image 2 belongs to concept 2, the table says img_category 3",
        ),
        (lambda text: text[: len(text) // 2], "another number of cells"),
        (lambda text: text.replace("\t0.1\t", "\t0.1\t9"), "differ by up to"),
    ],
)
def test_damaged_event_tables(own_bids: Path, change: Callable[[str], str], message: str) -> None:
    table = next(own_bids.rglob("*_ses-01_task-test_events.tsv"))
    table.write_text(change(table.read_text()))
    with pytest.raises(ValueError, match=message):
        next(open_source(own_bids).runs(1))


def test_events_and_recording_must_belong_together(own_bids: Path) -> None:
    one, other = (next(own_bids.rglob(f"*_ses-0{i}_task-test_events.tsv")) for i in (1, 2))
    shutil.copy(other, one)
    with pytest.raises(ValueError, match=r"do not belong together|ends at"):
        next(open_source(own_bids).runs(1))


def test_channel_names_must_be_those_of_the_table(own_bids: Path) -> None:
    table = next(own_bids.rglob("*_ses-01_task-test_channels.tsv"))
    table.write_bytes(table.read_bytes().replace(b"\nOz\t", b"\nOZ\t"))
    with pytest.raises(ValueError, match=r"name other channels: \['OZ', 'Oz'\]"):
        next(open_source(own_bids).runs(1))


# ----------------------------------------------------------------------------------------------------------------------------- real files


def test_real_sidecars(shared: Path) -> None:
    root = shared / "data/things_eeg2/bids_sample"
    source = open_source(root)
    assert (source.layout, source.subjects) == (read.BIDS, [1])
    pointer = r"task-test_eeg\.eeg is a git-annex pointer in place of the recording, which has 341,500,320 bytes: run 'datalad get"
    with pytest.raises(ValueError, match=rf"2 of 2 runs(.|\n)*{pointer}(.|\n)*train_run-01 has an events\.tsv but no recording"):
        source.runs(1)
    for run in find_runs(root):
        assert run.events is not None
        events = read_events(run.events, run.partition)
        targets, images = (24, 4056) if run.partition == "test" else (18, 3342)
        assert ((events.images == 0).sum(), (events.images > 0).sum()) == (targets, images)
        assert_allclose(events.samples, events.onsets * 1000, atol=1e-6)
        assert ((events.images > 0) & (events.images <= 200)).any()  # numbers that both partitions have
    names = [row["name"] for row in read_tsv(next(root.rglob("*_channels.tsv")))]
    assert tuple(names) == RECORDING_ORDER
    assert set(read_tsv(next(root.rglob("*_scans.tsv")))[0]) == {"filename", "acq_time"}
    # A test table under a training name is found out by the concepts beside the numbers.
    with pytest.raises(ValueError, match="train image 154 belongs to concept 16, the table says img_category 154"):
        read_events(next(root.rglob("*task-test_events.tsv.gz")), "train")


def test_real_recordings(shared: Path) -> None:
    samples = shared / "data/eeg_samples"
    vision = read_recording(samples / "brainvision_mne/test.vhdr")
    assert (len(vision.ch_names), vision.info["sfreq"], vision.n_times) == (32, 1000, 7900)
    lab = read_recording(samples / "eeglab_visual_attention/eeglab_data.set")
    assert (len(lab.ch_names), lab.info["sfreq"]) == (32, 128)
    assert 1e-6 < np.median(np.abs(lab.get_data())) < 1e-4  # volts
    folder = samples / "tiny_bids/sub-01/ses-eeg/eeg"
    tiny = read_recording(folder / "sub-01_ses-eeg_task-rest_eeg.vhdr", folder / "sub-01_ses-eeg_task-rest_channels.tsv")
    assert (len(tiny.ch_names), tiny.info["sfreq"], tiny.n_times) == (69, 5000, 10_000)
    assert {"eeg", "eog", "ecg"} <= set(tiny.get_channel_types())
    with pytest.raises(ValueError, match=r"tasks \['rest'\]; THINGS-EEG2 has 'train' and 'test'"):
        open_source(samples / "tiny_bids")
    with pytest.raises(ValueError, match="no BrainVision header, BDF, EDF or EEGLAB file"):
        read_recording(samples / "README.md")


def test_real_array_with_a_mislabelled_axis(shared: Path) -> None:
    data = np.load(shared / "data/things_eeg2/eeg/sub01_test_posterior_mean_17reps_100hz_200x17x100.npy")
    with pytest.raises(ValueError, match=r"\(200, 17, 100\); expected .* One axis is missing"):
        plain_epochs(data, {}, Path("test.npy"), "test", 1)


# ----------------------------------------------------------------------------------------------------------------------- epochs layouts


@pytest.fixture(scope="module")
def epochs() -> dict[Partition, Epochs]:
    """Values that float16 holds exactly, so that all layouts can hold the same."""
    made: dict[Partition, Epochs] = {
        "train": simulate_epochs(MODEL, "train", np.arange(1, 21), 4),
        "test": simulate_epochs(MODEL, "test", np.arange(1, 6), 8),
    }
    return {name: replace(e, data=e.data.astype(np.float16).astype(np.float32)) for name, e in made.items()}


LAYOUTS: dict[str, Callable[[Path, Any], Any]] = {
    read.PREPROCESSED_DICTS: write_preprocessed_dicts,
    read.TORCH_FILES: write_torch_files,
    read.PLAIN_ARRAYS: write_plain_arrays,
    read.PREPARED: lambda root, epochs: save_epochs(root, epochs, source="simulated"),
}


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_layouts_hold_the_same(tmp_path: Path, epochs: dict[Partition, Epochs], layout: str) -> None:
    LAYOUTS[layout](tmp_path, epochs)
    for folder in (tmp_path, next(tmp_path.rglob("sub-01"))):
        source = open_source(folder)
        assert (source.layout, source.kind, source.subjects) == (layout, "epochs", [1])
        for partition, expected in epochs.items():
            found = source.epochs(1, partition)
            assert found.data.dtype == np.float32
            assert_array_equal(found.data, expected.data)
            assert_array_equal(found.images, expected.images)
            assert found.ch_names == CHANNELS
            assert_allclose(found.times, expected.times, atol=1e-12)
            assert (found.sfreq, found.partition, found.subject, found.unit) == (250.0, partition, 1, "MVNN")
            assert found.settings["simulated"] is True
            if found.sessions is not None and expected.sessions is not None:
                assert_array_equal(found.sessions, expected.sessions)
    with pytest.raises(ValueError, match="holds epochs"):
        source.runs(1)
    with pytest.raises(ValueError, match="partition must be"):
        source.epochs(1, "training")  # type: ignore[arg-type]


def test_layout_is_known_by_content(tmp_path: Path, epochs: dict[Partition, Epochs]) -> None:
    write_preprocessed_dicts(tmp_path, epochs)
    folder = tmp_path / "Preprocessed_data_250Hz/sub-01"
    (folder / "preprocessed_eeg_training.npy").rename(folder / "my_train.pt")
    (folder / "preprocessed_eeg_test.npy").rename(folder / "my-test.bin")
    (folder / ".DS_Store").write_bytes(b"x" * 2000)
    assert_array_equal(open_source(tmp_path).epochs(1, "train").data, epochs["train"].data)
    write_plain_arrays(tmp_path / "Preprocessed_data_250Hz", epochs)
    with pytest.raises(ValueError, match="holds several layouts"):
        open_source(tmp_path)


def test_dicts_of_other_writers(tmp_path: Path, epochs: dict[Partition, Epochs]) -> None:
    write_preprocessed_dicts(tmp_path, epochs, dtype=np.float32)
    source = open_source(tmp_path)
    assert source.epochs(1, "train").settings["times"] == "the last 250 of the 300 in the file"
    path = tmp_path / "Preprocessed_data_250Hz/sub-01/preprocessed_eeg_test.npy"
    content = pickle.loads(path.read_bytes())  # noqa: S301 - written above
    np.save(path, content, allow_pickle=True)  # with numpy's header, as np.load(...).item() expects it
    assert_array_equal(open_source(tmp_path).epochs(1, "test").data, epochs["test"].data)


def test_authors_17_channels(tmp_path: Path, epochs: dict[Partition, Epochs]) -> None:
    write_osf_preprocessed(tmp_path, epochs)
    source = open_source(tmp_path)
    assert source.layout == read.PREPROCESSED_DICTS_OSF
    found = source.epochs(1, "train")
    assert found.data.shape == (20, 4, 17, 100)
    assert found.ch_names == POSTERIOR_17_OSF != CHANNELS[46:]
    assert (found.sfreq, found.times[0], found.times[-1]) == (100.0, -0.2, 0.79)
    # Every second sample at 100 Hz lies on the 250 Hz grid.
    for i, name in enumerate(POSTERIOR_17_OSF):
        assert_array_equal(found.data[:, :, i, 20::2], epochs["train"].data[:, :, CHANNELS.index(name), 0:200:5])


def test_torch_rows_follow_the_image_paths(tmp_path: Path, epochs: dict[Partition, Epochs]) -> None:
    write_torch_files(tmp_path, epochs, order=np.random.default_rng(0).permutation(20))
    found = open_source(tmp_path).epochs(1, "train")
    assert_array_equal(found.data, epochs["train"].data)
    assert_array_equal(found.sessions, epochs["train"].sessions)
    assert "reordered" in found.settings["rows"]


def test_channel_names_are_not_guessed(tmp_path: Path, epochs: dict[Partition, Epochs]) -> None:
    write_plain_arrays(tmp_path, epochs)
    (tmp_path / "sub-01/info.json").unlink()
    found = open_source(tmp_path).epochs(1, "train")
    assert found.ch_names == ()
    assert found.data.shape == (20, 4, 63, 250)
    assert isinstance(found.data, np.memmap)


def test_image_order_is_ascii() -> None:
    """A locale's sort puts hot-air_balloon after hot_chocolate and ignores case; the official order is that of the bytes."""
    names = ["hot_chocolate", "hot-air_balloon", "camera_lens", "camera2", "camera1", ".DS_Store", "hot_tub", "hot-water_bottle"]
    assert image_order(names) == ["camera1", "camera2", "camera_lens", "hot-air_balloon", "hot-water_bottle", "hot_chocolate", "hot_tub"]
    files = [f"a_{i:02d}b.jpg" for i in range(1, 8)] + ["a-1.jpg", "A_9.jpg", "a.jpg"]
    numbers = image_numbers([f"train_images/00003_a/{name}" for name in files], "train", "x")
    assert dict(zip(files, numbers.tolist()))["A_9.jpg"] == 21
    assert dict(zip(files, numbers.tolist()))["a-1.jpg"] == 22
    assert dict(zip(files, numbers.tolist()))["a.jpg"] == 23
    assert numbers[0] == 24
    assert image_numbers([image_path("train", i) for i in range(21, 41)], "train", "x").tolist() == list(range(21, 41))
    assert image_numbers(["test_images/00154_sailboat/sailboat_01b.jpg"], "test", "x").tolist() == [154]


@pytest.mark.parametrize(
    ("paths", "partition", "message"),
    [
        (["aardvark_01b.jpg"], "test", "does not end in a concept folder"),
        (["train_images/00001_a/a.jpg"] * 10, "train", r"concept 1 has 10 images \(1 different\)"),
        (["train_images/00001_a/a.jpg"], "train", "concept 1 has 1 images"),
        (["test_images/00201_a/a.jpg"], "test", "test concept 201"),
    ],
)
def test_image_paths_refuse(paths: list[str], partition: Partition, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        image_numbers(paths, partition, "train.pt")


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((200, 63, 80, 250), r"axes look swapped.*axis 1 \(63\) is channels and axis 3 \(250\) is times"),
        ((200, 80, 250, 63), r"axes look swapped.*axis 3 \(63\) is channels and axis 2 \(250\) is times"),
        ((80, 250, 17, 200), r"axes look swapped.*axis 2 \(17\) is channels and axis 1 \(250\) is times"),
        ((200, 80, 64, 250), r"has shape \(200, 80, 64, 250\); expected"),
        ((200, 63, 250), "One axis is missing"),
        ((0, 80, 63, 250), "has shape"),
    ],
)
def test_axes(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_axes(shape, "file")


def test_arrays_refuse(epochs: dict[Partition, Epochs]) -> None:
    data, path = np.zeros((5, 8, 63, 250), dtype=np.float32), Path("test.npy")
    with pytest.raises(ValueError, match="17 channel names for 63 channels"):
        dict_epochs({"preprocessed_eeg_data": data, "ch_names": list(POSTERIOR_17_OSF)}, path, "test", 1)
    with pytest.raises(ValueError, match="100 times for 250 samples"):
        dict_epochs({"preprocessed_eeg_data": data, "ch_names": CHANNELS, "times": np.arange(100)}, path, "test", 1)
    with pytest.raises(ValueError, match="201 images; test has 200"):
        dict_epochs({"preprocessed_eeg_data": np.zeros((201, 1, 17, 250)), "ch_names": ()}, path, "test", 1)
    with pytest.raises(ValueError, match=r"axis 1 should be the 10 images of a train concept"):
        plain_epochs(np.zeros((10, 3, 4, 17, 250)), {}, path, "train", 1)
    with pytest.raises(ValueError, match="expected 'img'"):
        torch_epochs({"eeg": data}, path, "test", 1)
    with pytest.raises(ValueError, match="3 image paths for 5 images"):
        torch_epochs({"eeg": data, "img": ["a/b", "c/d", "e/f"]}, path, "test", 1)
    rows = [[image_path("test", (i + j) % 5 + 1) for j in range(8)] for i in range(5)]
    with pytest.raises(ValueError, match="repetitions of different images"):
        torch_epochs({"eeg": data, "img": rows}, path, "test", 1)


def test_folders_refuse(tmp_path: Path, epochs: dict[Partition, Epochs]) -> None:
    with pytest.raises(FileNotFoundError, match="is no folder"):
        open_source(tmp_path / "none")
    with pytest.raises(ValueError, match="has no folder sub-01"):
        open_source(tmp_path)
    folder = tmp_path / "sub-01"
    folder.mkdir()
    np.save(folder / "train.npy", np.zeros((3, 4)))
    with pytest.raises(ValueError, match=r"nothing of a known THINGS-EEG2 layout; found \['train\.npy \(array \(3, 4\) float64\)'\]"):
        open_source(tmp_path)
    (folder / "train.npy").unlink()
    write_plain_arrays(tmp_path, {"train": epochs["train"]})
    with pytest.raises(ValueError, match="has 0 files for the partition 'test'"):
        open_source(tmp_path).epochs(1, "test")
    (folder / "train.npy").rename(folder / "data.npy")
    with pytest.raises(ValueError, match="does not say 'train'"):
        open_source(tmp_path).epochs(1, "train")
    write_plain_arrays(tmp_path / "a", epochs)
    write_plain_arrays(tmp_path / "b", epochs)
    shutil.rmtree(folder)
    with pytest.raises(ValueError, match="holds several data sets"):
        open_source(tmp_path)


def test_compressed_and_odd_tables(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(b"\xef\xbb\xbfname\tunits\r\nOz\t\xc2\xb5V\r\n")
    assert read_tsv(tmp_path / "a.tsv") == [{"name": "Oz", "units": "µV"}]
    (tmp_path / "b.tsv.gz").write_bytes(gzip.compress(b"name\nOz\n")[:-3])
    with pytest.raises(ValueError, match="not a whole UTF-8 table"):
        read_tsv(tmp_path / "b.tsv.gz")
