"""The simulated recordings: the schedule against the real event log, the signal against its definition, bytes against a second run."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from decodehub.loaders.restricted_pickle import load_arrays
from decodehub.loaders.simulate_eeg import channel_names
from decodehub.loaders.things_eeg2 import CHANNELS, RECORDING_ORDER, channel_indices
from decodehub.loaders.things_eeg2.simulate import (
    EvokedModel,
    RunSchedule,
    ScheduleSettings,
    SignalSettings,
    evoked_model,
    make_schedule,
    noise,
    record,
    schedule_from_bids,
    simulate_epochs,
)
from decodehub.loaders.things_eeg2.simulate_files import image_path, trigger, write_bids, write_plain_arrays, write_raw_dicts

TINY = ScheduleSettings(n_train_concepts=2, n_test_images=4, n_sessions=2, train_parts=1, train_blocks=1, test_blocks=1, pauses=0.02)


@pytest.fixture(scope="module")
def full() -> list[RunSchedule]:
    return make_schedule(ScheduleSettings(), subject=1, seed=0)


@pytest.fixture(scope="module")
def real(shared: Path) -> dict[str, np.ndarray]:
    with np.load(shared / "data/things_eeg2/things_eeg2_events_all.npz") as events:
        return {name: events[name] for name in events}


@pytest.fixture(scope="module")
def loud() -> EvokedModel:
    return evoked_model(SignalSettings(snr=np.inf, latent_dim=8), subject=1, seed=0)


def _counts(images: np.ndarray) -> dict[int, int]:
    repeated = np.unique(images[images > 0], return_counts=True)[1]
    return dict(zip(*(part.tolist() for part in np.unique(repeated, return_counts=True))))


def test_full_schedule_has_the_counts_of_the_real_one(full: list[RunSchedule], real: dict[str, np.ndarray]) -> None:
    one = real["subject"] == 1
    assert [(run.session, run.partition, run.part) for run in full[:7]] == [
        (1, "test", 0),
        *((1, "train", part) for part in range(1, 6)),
        (2, "test", 0),
    ]
    for session in range(1, 5):
        for partition in ("test", "train"):
            here = one & (real["session"] == session) & (real["is_test"] == (partition == "test"))
            runs = [run for run in full if (run.session, run.partition) == (session, partition)]
            images = np.concatenate([run.images for run in runs])
            assert len(images) == here.sum()
            assert (images == 0).sum() == real["is_target"][here].sum()
            mine, theirs = _counts(images), _counts(real["tot_img_number"][here])
            if partition == "test":
                assert mine == theirs == {20: 144, 21: 56}
            else:
                assert sum(mine.values()) == sum(theirs.values()) == 8270
                assert sum(k * v for k, v in mine.items()) == sum(k * v for k, v in theirs.items()) == 16710
                assert mine[2] == pytest.approx(theirs[2], abs=10)
            for name in ("block", "sequence", "position"):
                assert_array_equal(np.concatenate([getattr(run, name) for run in runs]), real[name][here])


def test_sessions_share_the_concepts_out(full: list[RunSchedule]) -> None:
    concepts = [
        {int(c) for run in full if run.session == session and run.partition == "train" for c in (run.images[run.images > 0] - 1) // 10}
        for session in range(1, 5)
    ]
    assert [len(c) for c in concepts] == [827] * 4
    assert not concepts[0] & concepts[1]
    assert not concepts[2] & concepts[3]
    assert concepts[0] not in (concepts[2], concepts[3])
    totals = _counts(np.concatenate([run.images for run in full if run.partition == "train"]))
    assert sum(totals.values()) == 16_540
    assert totals[4] == pytest.approx(15_870, abs=30)  # the real subjects have 15,866 to 15,875


def test_timing_is_that_of_the_real_one(full: list[RunSchedule], real: dict[str, np.ndarray]) -> None:
    step, place, same = np.diff(real["sample"].astype(int)), real["position"][1:], np.diff(real["block"].astype(int)) == 0
    mine_step = np.concatenate([np.diff(run.samples) for run in full])
    mine_place = np.concatenate([run.position[1:] for run in full])
    mine_same = np.concatenate([np.diff(run.block) for run in full]) == 0
    within, mine_within = step[place > 1], mine_step[mine_place > 1]
    for share in (1, 25, 50, 75, 99):
        assert np.percentile(mine_within, share) == np.percentile(within, share)
    for ms in (199, 200, 201):
        assert (mine_within == ms).mean() == pytest.approx((within == ms).mean(), abs=0.02)
    gaps, mine_gaps = step[(place == 1) & same], mine_step[(mine_place == 1) & mine_same]
    for share in (0, 25, 50, 75):
        assert np.percentile(mine_gaps, share) == pytest.approx(np.percentile(gaps, share), rel=0.06)
    # Catch trials: at most one in a sequence, never its first image.
    for run in full:
        targets = np.flatnonzero(run.images == 0)
        assert (run.position[targets] > 1).all()
        assert len({(run.block[i], run.sequence[i]) for i in targets}) == len(targets)
        assert (np.diff(run.samples) > 0).all()
        assert run.samples[-1] < run.n_samples


def test_small_schedules(full: list[RunSchedule]) -> None:
    for settings in (TINY, ScheduleSettings(n_train_concepts=10, n_test_images=7, images_per_concept=3, train_parts=2, train_blocks=4)):
        runs = make_schedule(settings, subject=2, seed=1)
        for session in range(1, settings.n_sessions + 1):
            test, train = (
                np.concatenate([run.images for run in runs if (run.session, run.partition) == (session, p)]) for p in ("test", "train")
            )
            assert set(test) == {0, *range(1, settings.n_test_images + 1)}
            assert min(_counts(test)) >= 20
            assert min(_counts(train)) >= 2
            assert len(np.unique(train[train > 0])) == settings.n_train_concepts // 2 * settings.images_per_concept
    again = make_schedule(ScheduleSettings(), subject=1, seed=0)
    assert all(np.array_equal(a.images, b.images) and np.array_equal(a.samples, b.samples) for a, b in zip(full, again))
    other = make_schedule(TINY, subject=1, seed=0)[0]
    assert not np.array_equal(other.samples, make_schedule(TINY, subject=2, seed=0)[0].samples)


def test_true_history_from_event_tables(shared: Path, real: dict[str, np.ndarray]) -> None:
    runs = schedule_from_bids(shared / "data/things_eeg2/bids_sample", 1)
    assert [(run.partition, run.part) for run in runs] == [("test", 0), ("train", 1)]
    for run in runs:
        here = (real["subject"] == 1) & (real["session"] == 1) & (real["is_test"] == (run.partition == "test")) & (real["run"] == 1)
        assert_array_equal(run.samples, real["sample"][here])
        assert_array_equal(run.images, real["tot_img_number"][here])
        assert_array_equal(run.position, real["position"][here])


# -------------------------------------------------------------------------------------------------------------------------------- signals


def test_recording_is_the_sum_of_responses(loud: EvokedModel) -> None:
    """Second implementation: event by event and channel by channel, by name."""
    run = make_schedule(TINY, subject=1, seed=0)[0]
    found = record(run, loud)
    expected = np.zeros((63, run.n_samples + 1000))
    names = channel_names()
    for sample, image in zip(run.samples, run.images):
        response = loud.target if image == 0 else np.tensordot(loud.latents["test"][image - 1], loud.maps, 1) + loud.erp
        for row, name in enumerate(RECORDING_ORDER):
            expected[row, sample : sample + 1000] += response[names.index(name)]
    assert_allclose(found, expected[:, : run.n_samples], atol=1e-6 * np.abs(expected).max())


def test_truth_is_the_response_at_250_hz(loud: EvokedModel) -> None:
    one = np.array([3])
    truth = loud.truth("train", one)
    assert truth.shape == (1, 63, 250)
    lonely = RunSchedule(1, 1, "train", 1, np.array([500]), one, one, one, one, 3000)
    signal = record(lonely, loud)[channel_indices(RECORDING_ORDER, CHANNELS)]
    assert_array_equal(signal[:, 500:1500:4], truth[0])
    assert not np.array_equal(truth, loud.truth("test", one))  # image 3 of the two partitions is two images
    assert not truth[..., -20:].any()
    rms = np.sqrt(np.square(loud.maps).sum(0).mean())
    assert 0.8e-6 < rms < 1e-6  # 1 microvolt as set, less what fades at the end


def test_noise(loud: EvokedModel) -> None:
    settings = SignalSettings(snr=0.5)
    x = noise(200_000, settings, np.random.default_rng(0))
    assert x.std(axis=1) == pytest.approx(2e-6, rel=0.1)
    spectrum = np.square(np.abs(np.fft.rfft(x[:, :65536], axis=1))).mean(axis=0)
    freqs = np.fft.rfftfreq(65536, 1e-3)
    band = [spectrum[(freqs > f) & (freqs < 1.5 * f)].mean() for f in (5, 40, 300)]
    assert band[0] / band[1] == pytest.approx(8, rel=0.3)
    assert band[2] < 1e-3 * band[1]
    correlation = np.corrcoef(x)
    o1, oz, fp1 = (RECORDING_ORDER.index(name) for name in ("O1", "Oz", "Fp1"))
    assert correlation[o1, oz] > 0.4 > 0.2 > correlation[o1, fp1]
    assert not noise(100, loud.settings, np.random.default_rng(0)).any()
    assert np.std(noise(5000, SignalSettings(snr=0), np.random.default_rng(0))) > 1e-6


def test_epochs_average_to_the_truth() -> None:
    model = evoked_model(SignalSettings(snr=1.0, latent_dim=8), subject=3, seed=2)
    epochs = simulate_epochs(model, "test", np.arange(1, 4), 400)
    assert epochs.settings["simulated"] is True
    assert_allclose(epochs.data.mean(1), model.truth("test", epochs.images) / model.settings.noise_sd, atol=6 / 20)
    assert epochs.data.var(axis=1).mean() == pytest.approx(1, rel=0.02)


def test_equal_arguments_give_equal_files_that_say_simulated(tmp_path: Path) -> None:
    runs = make_schedule(TINY, subject=1, seed=3)[:2]
    model = evoked_model(SignalSettings(latent_dim=4), subject=1, seed=3)
    hashes = []
    for name in ("a", "b"):
        write_bids(tmp_path / name, runs, model)
        write_raw_dicts(tmp_path / name / "osf", runs, model)
        files = sorted(p for p in (tmp_path / name).rglob("*") if p.is_file())
        hashes.append({str(p.relative_to(tmp_path / name)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files})
        model = evoked_model(SignalSettings(latent_dim=4), subject=1, seed=3)
    assert hashes[0] == hashes[1]
    assert "SIMULATED" in json.loads((tmp_path / "a/dataset_description.json").read_text())["Name"]
    assert load_arrays(tmp_path / "a/osf/sub-01/ses-01/raw_eeg_test.npy")["simulated"] is True
    for table in ("sub-01_ses-01_scans.tsv", "eeg/sub-01_ses-01_task-test_channels.tsv", "eeg/sub-01_ses-01_space-CapTrak_electrodes.tsv"):
        assert (tmp_path / "a/sub-01/ses-01" / table).read_bytes().startswith(b"\xef\xbb\xbf")
    assert not list((tmp_path / "a").rglob("*.part"))


def test_triggers_and_paths(real: dict[str, np.ndarray]) -> None:
    sample = np.random.default_rng(0).choice(len(real["trigger"]), 5000, replace=False)
    for test, image, byte in zip(real["is_test"][sample], real["tot_img_number"][sample], real["trigger"][sample]):
        assert trigger("test" if test else "train", int(image)) == byte
    assert image_path("train", 11) == "train_images/00002_simulated0002/simulated0002_01b.jpg"
    assert image_path("test", 11) == "test_images/00011_simulated0011/simulated0011_01b.jpg"


# ------------------------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_train_concepts": 3}, "must be even"),
        ({"n_sessions": 3}, "must be even"),
        ({"n_train_concepts": 1656}, "n_train_concepts must be 1..1654, found 1656"),
        ({"n_test_images": 0}, "n_test_images must be 1..200, found 0"),
        ({"train_blocks": 7}, "multiple of train_parts"),
        ({"sequence_length": 1}, "sequence_length must be at least 2"),
        ({"pauses": -1.0}, "pauses 0 or more"),
    ],
)
def test_schedule_settings_refuse(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScheduleSettings(**changes)


def test_other_bad_input(tmp_path: Path, loud: EvokedModel) -> None:
    with pytest.raises(ValueError, match="snr must be 0 or more"):
        SignalSettings(snr=-1)
    with pytest.raises(ValueError, match="latent_dim must be a whole number"):
        SignalSettings(latent_dim=0)
    with pytest.raises(ValueError, match="subject must be 1 or more"):
        make_schedule(TINY, subject=0, seed=0)
    with pytest.raises(ValueError, match="no event tables of subject 4"):
        schedule_from_bids(tmp_path, 4)
    with pytest.raises(ValueError, match=r"needs the images 1\.\.n of train, found \[2\]"):
        write_plain_arrays(tmp_path, {"train": simulate_epochs(loud, "train", np.array([2]), 4)})
