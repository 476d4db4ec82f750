"""Preparing THINGS-EEG2: against a literal pipeline with whole arrays, against known responses, and through crashes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import mne
import numpy as np
import pytest
from scipy.linalg import fractional_matrix_power
from sklearn.covariance import ledoit_wolf
from sklearn.utils import shuffle
from typer.testing import CliRunner

from decodehub.core.jobs import JobRunning
from decodehub.loaders.mvnn import fit_mvnn
from decodehub.loaders.things_eeg2 import CHANNELS, POSTERIOR_17, POSTERIOR_17_OSF, RECORDING_ORDER, Epochs, Run, channel_indices
from decodehub.loaders.things_eeg2 import prepare as prepare_module
from decodehub.loaders.things_eeg2.epoching import PrepareSettings, fingerprint, iter_epochs, usable_events
from decodehub.loaders.things_eeg2.prepare import prepare_subject
from decodehub.loaders.things_eeg2.select import named_channels, store_epochs
from decodehub.loaders.things_eeg2.store import load_epochs, read_info
from decodehub.scripts.things import app, prepare_settings

TRAIN, TEST, RESPONSE = 12, 3, 190  # images, and milliseconds of response
ALL = ("train", "test")


def responses(partition: str, sources: int = 5) -> np.ndarray:
    """(n_images, 63, RESPONSE): volts, channels in the order of models, mean 0 over time, so that baselines stay what they are."""
    rng = np.random.default_rng({"train": 1, "test": 2}[partition])
    t = np.linspace(0, 1, RESPONSE)
    waves = np.stack([np.sin(np.pi * t) ** 2 * np.sin(2 * np.pi * (k + 2) * t) for k in range(sources)])
    waves -= waves.mean(axis=1, keepdims=True)
    return 1e-5 * rng.standard_normal((TRAIN if partition == "train" else TEST, len(CHANNELS), sources)) @ waves


def train_images(session: int) -> np.ndarray:
    """Half of the training images: sessions 1 and 2 share them out, and so do 3 and 4, in another way."""
    order = np.random.default_rng(10 + (session - 1) // 2).permutation(TRAIN) + 1
    return order[: TRAIN // 2] if session % 2 else order[TRAIN // 2 :]


def make_run(session: int, partition: str, images: np.ndarray, seed: int, noise: float, subject: int = 1) -> Run:
    """A stream of images every 200 ms with catch trials (0), channels in recording order beside a stimulus channel, 0.5 s after the last image."""
    rng = np.random.default_rng(seed)
    onsets = 1000 + 200 * np.arange(len(images)) + rng.integers(0, 2, len(images))
    n = int(onsets[-1]) + 500
    mixing = np.random.default_rng(99).standard_normal((len(CHANNELS), len(CHANNELS)))
    data = np.random.default_rng([seed, 1]).standard_normal((len(CHANNELS), n)) * 0.5
    data += 0.1 * mixing @ np.random.default_rng([seed, 2]).standard_normal((len(CHANNELS), n)).cumsum(axis=1) * 0.1
    data *= noise
    evoked = responses(partition)
    for onset, image in zip(onsets, images):
        if image:
            data[:, onset : onset + RESPONSE] += evoked[image - 1]
    data = data[channel_indices(CHANNELS, RECORDING_ORDER)] + 1e-3 * np.arange(len(CHANNELS))[:, None]  # electrodes have offsets
    info = mne.create_info([*RECORDING_ORDER, "stim"], 1000.0, ["eeg"] * len(CHANNELS) + ["stim"])
    raw = mne.io.RawArray(np.vstack([data, np.zeros(n)]), info, first_samp=321, verbose=False)
    return Run(raw, onsets, images, partition, subject, session, f"ses-{session:02d} {partition} {seed}")


def small_runs(noise: float = 5e-6, slow: float = 0.0, subject: int = 1) -> Iterator[Run]:
    """Four sessions; the training part of session 3 comes in two recordings. The last events of each are too near its end for an epoch."""
    for session in range(1, 5):
        rng = np.random.default_rng(1000 * subject + session)
        spare = np.full(4, 1)  # the last three of these have no whole epoch, the first is one trial too many
        test = np.concatenate([rng.permutation(np.repeat(np.arange(1, TEST + 1), 20)), [0], spare])
        yield make_run(session, "test", test, 10 * session, noise, subject)
        train = rng.permutation(np.concatenate([np.repeat(train_images(session), 2), train_images(session)[:2], [0, 0]]))
        parts = [train[:8], train[8:]] if session == 3 else [train]
        for i, part in enumerate(parts):
            tail = np.full(3, train_images(session)[0])  # none of these has a whole epoch
            yield make_run(session, "train", np.concatenate([part, tail]), 10 * session + 1 + i, noise, subject)
        time.sleep(slow)


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return list(small_runs())


@pytest.fixture(scope="module")
def prepared(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Default settings."""
    return prepare_subject(runs, tmp_path_factory.mktemp("prepared"), progress=False)


def load(folder: Path) -> dict[str, Epochs]:
    return {partition: load_epochs(folder.parent, int(folder.name[4:]), partition, verify=True) for partition in ALL}


def contents(folder: Path) -> dict[str, bytes]:
    assert not (folder / ".work").exists() and not (folder / ".lock").exists()
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


# ----------------------------------------------------------------------------------------------------------------- a second way


def literal_covariance(samples: np.ndarray) -> np.ndarray:
    centred = samples - samples.mean(axis=0)
    sd = np.sqrt((centred**2).mean(axis=0))
    return ledoit_wolf(centred / sd)[0] * np.outer(sd, sd)


@lru_cache
def literal_trials(resample: str) -> list[dict[str, tuple[np.ndarray, np.ndarray]]]:
    """By session and partition: (n_images, n_repetitions, 63, 250) float64 volts and the images, all epochs of a session cut at once by mne."""
    sessions = []
    runs = list(small_runs())
    for session in range(1, 5):
        data = {}
        for partition, keep in (("train", 2), ("test", 20)):
            found, labels = [], []
            for run in runs:
                if (run.session, run.partition) != (session, partition):
                    continue
                events = np.column_stack([run.onsets + run.raw.first_samp, np.zeros(len(run.onsets), int), run.images])[run.images > 0]
                raw = run.raw
                if resample == "raw":
                    raw, events = raw.copy().resample(250, events=events, verbose=False)
                epochs = mne.Epochs(raw, events, tmin=-0.2, tmax=1.0, baseline=(None, 0), picks="eeg", preload=True, verbose=False)
                if resample == "epochs":
                    epochs.resample(250, verbose=False)
                found.append(epochs.reorder_channels(list(CHANNELS)).get_data())
                labels.append(epochs.events[:, 2])
            trials, images = np.concatenate(found), np.concatenate(labels)
            chosen = [shuffle(np.where(images == i)[0], random_state=20200220, n_samples=keep) for i in np.unique(images)]
            data[partition] = np.stack([trials[c] for c in chosen])[..., 50:300], np.unique(images)
        sessions.append(data)
    return sessions


def literal(resample: str, mvnn: str) -> dict[str, np.ndarray]:
    """The merged arrays, float64, in the words of the published description."""
    merged: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    for session in literal_trials(resample):
        data = {partition: trials for partition, (trials, _) in session.items()}
        if mvnn != "off":
            sigmas = [np.mean([np.mean([literal_covariance(x.T) for x in c], axis=0) for c in data[p]], axis=0) for p in mvnn.split("+")]
            matrix = fractional_matrix_power(np.mean(sigmas, axis=0), -0.5).real
            data = {p: (d.swapaxes(2, 3) @ matrix).swapaxes(2, 3) for p, d in data.items()}
        for partition in ALL:
            merged[partition].append(data[partition])
    number = np.concatenate([session["train"][1] for session in literal_trials(resample)])
    every = np.concatenate(merged["train"])
    train, test = np.stack([np.concatenate(every[number == i]) for i in np.unique(number)]), np.concatenate(merged["test"], axis=1)
    return {p: x[:, shuffle(np.arange(x.shape[1]), random_state=20200220)] for p, x in (("train", train), ("test", test))}


@pytest.mark.parametrize("changes", [{}, {"mvnn": "train+test"}, {"mvnn": "off"}, {"mvnn": "off", "resample": "raw"}])
def test_equals_the_literal_pipeline(runs, tmp_path, changes):
    settings = PrepareSettings(**changes)
    found = load(prepare_subject(runs, tmp_path, settings, progress=False))
    for partition, expected in literal(settings.resample, settings.mvnn).items():
        assert found[partition].data.shape == expected.shape
        np.testing.assert_allclose(found[partition].data, expected, rtol=0, atol=2e-6 * expected.std() * (30 if settings.whitened else 1))


def test_shapes_and_description(prepared):
    found = load(prepared)
    assert found["train"].data.shape == (TRAIN, 4, 63, 250) and found["test"].data.shape == (TEST, 80, 63, 250)
    for partition, e in found.items():
        assert e.data.dtype == np.float32 and e.ch_names == CHANNELS and e.unit == "MVNN" and e.sfreq == 250 and e.subject == 1
        np.testing.assert_allclose(e.times, np.arange(250) / 250)
        np.testing.assert_array_equal(e.images, np.arange(1, (TRAIN if partition == "train" else TEST) + 1))
    sessions = found["test"].sessions
    assert (np.sort(sessions, axis=1) == np.repeat([1, 2, 3, 4], 20)).all()
    for image, row in zip(found["train"].images, found["train"].sessions):
        shown = [s for s in range(1, 5) if image in train_images(s)]
        assert sorted(row) == sorted(shown * 2)
    info = read_info(prepared)
    assert info["made_from"]["events_at_the_edges"] == {
        f"ses-{s:02d} {p} {i}": 3 for s in range(1, 5) for p in ALL for i in range(1 + (s == 3 and p == "train"))
    }
    assert info["made_from"]["unused_trials"] == {"test": 4, "train": 8}
    assert info["settings"]["mvnn"] == "train" and info["settings"]["channels"] == list(CHANNELS)
    assert sorted(path.name for path in prepared.iterdir()) == sorted(
        ["info.json"] + [f"{p}{suffix}.npy" for p in ALL for suffix in ("", "_images", "_sessions")]
    )


def test_recovers_the_responses_that_were_put_in(tmp_path):
    """Image by image, channel by channel: any slip in the order of images, channels, repetitions or time would show."""
    found = load(prepare_subject(small_runs(noise=1e-7), tmp_path, PrepareSettings(mvnn="off", unit="uV"), progress=False))
    for partition, e in found.items():
        truth = responses(partition)[:, :, 1::4] * 1e6  # from 1 ms on: see PrepareSettings.resample
        mean = np.asarray(e.data).mean(axis=1)[:, :, : truth.shape[2]]
        for a, b in zip(mean, truth):
            assert np.corrcoef(a.ravel(), b.ravel())[0, 1] > 0.999
        assert 0.95 < np.polyfit(truth.ravel(), mean.ravel(), 1)[0] < 1.05
        assert e.unit == "uV"


def test_whitening_is_by_session_and_recovers_responses(runs, prepared, tmp_path):
    plain = load(prepare_subject(runs, tmp_path, PrepareSettings(mvnn="off"), progress=False))
    white = load(prepared)
    for session in range(1, 5):
        mine = plain["train"].sessions == session
        rows = mine.any(axis=1)
        matrix = fit_mvnn(np.stack([trials[m] for trials, m in zip(plain["train"].data[rows], mine[rows])]))
        for partition in ALL:
            at = white[partition].sessions == session
            expected = np.matmul(matrix, plain[partition].data[at].astype(float))
            np.testing.assert_allclose(white[partition].data[at], expected, atol=1e-5 * expected.std())


def test_17_channels_are_a_slice_unless_they_are_whitened_alone(runs, prepared, tmp_path):
    posterior = channel_indices(CHANNELS, POSTERIOR_17)
    whole = load(prepared)
    sliced = load(prepare_subject(runs, tmp_path / "a", PrepareSettings(channels="17"), progress=False))
    own = load(prepare_subject(runs, tmp_path / "b", PrepareSettings(channels="17", mvnn_channels="selected"), progress=False))
    off = load(prepare_subject(runs, tmp_path / "c", PrepareSettings(mvnn="off"), progress=False))
    names = PrepareSettings(channels=POSTERIOR_17_OSF, mvnn="off", mvnn_channels="selected")
    off_17 = load(prepare_subject(runs, tmp_path / "d", names, progress=False))
    for p in ALL:
        assert sliced[p].ch_names == POSTERIOR_17 and off_17[p].ch_names == POSTERIOR_17_OSF
        np.testing.assert_array_equal(sliced[p].data, whole[p].data[:, :, posterior])
        assert not np.allclose(own[p].data, whole[p].data[:, :, posterior], atol=0.1)
        np.testing.assert_array_equal(off_17[p].data, off[p].data[:, :, channel_indices(CHANNELS, POSTERIOR_17_OSF)])


def test_other_settings_do_what_they_say(runs, prepared, tmp_path):
    default = load(prepared)
    ordered = load(prepare_subject(runs, tmp_path / "a", PrepareSettings(repetition_order="session"), progress=False))
    for p in ALL:
        assert (np.diff(ordered[p].sessions, axis=1) >= 0).all()
        column = shuffle(np.arange(ordered[p].data.shape[1]), random_state=20200220)
        np.testing.assert_array_equal(ordered[p].data[:, column], default[p].data)
    two = load(prepare_subject(runs, tmp_path / "c", PrepareSettings(sessions=(1, 2)), progress=False))
    assert two["test"].data.shape[:2] == (TEST, 40)
    for i, changes in enumerate(
        [
            {"repetition_choice": "first"},
            {"mvnn_scope": "subject"},
            {"mvnn_window": "epoch"},
            {"mvnn_shrinkage": "none", "mvnn_window": "epoch"},
            {"mvnn_dim": "time"},
            {"baseline": "none"},
        ]
    ):
        other = load(prepare_subject(runs, tmp_path / f"b{i}", PrepareSettings(sessions=(1, 2), **changes), progress=False))
        assert other["train"].data.shape[:2] == (TRAIN, 2) and other["test"].data.shape == two["test"].data.shape
        assert not np.array_equal(other["test"].data, two["test"].data), changes


# ---------------------------------------------------------------------------------------------------------------------- cutting


def test_cutting_equals_mne_and_blocks_change_nothing(runs):
    run = runs[0]
    settings = PrepareSettings(mvnn_window="epoch")
    events = np.column_stack([run.onsets + run.raw.first_samp, np.zeros(len(run.onsets), int), run.images])[run.images > 0]
    epochs = mne.Epochs(run.raw, events, tmin=-0.2, tmax=1.0, baseline=(None, 0), picks="eeg", preload=True, verbose=False)
    onsets, images = usable_events(run, settings)
    np.testing.assert_array_equal(images, epochs.events[:, 2])
    np.testing.assert_array_equal(onsets + run.raw.first_samp, epochs.events[:, 0])
    expected = epochs.resample(250, verbose=False).reorder_channels(list(CHANNELS)).get_data()
    for size in (1, 7, 64, 10_000):
        found = np.concatenate(list(iter_epochs(run, settings, trials_a_block=size)))
        assert found.shape == (len(images), 63, 300)
        assert np.abs(found - expected).max() < 1e-11 * np.abs(expected).max()


def test_events_in_any_order_and_far_apart():
    run = make_run(1, "test", np.array([1, 2, 3] * 5), 5, 5e-6)
    spread = replace(run, onsets=np.array([300, 9_000, 1_500, 2_500, 3_500]), images=np.array([4, 1, 0, 2, 3]))
    raw = mne.io.RawArray(np.random.default_rng(0).standard_normal((64, 200_000)) * 1e-5, run.raw.info, verbose=False)
    far = replace(spread, raw=raw, onsets=spread.onsets * np.array([1, 20, 1, 1, 1]))
    onsets, images = usable_events(far, PrepareSettings())
    assert images.tolist() == [4, 2, 3, 1] and onsets.tolist() == [300, 2_500, 3_500, 180_000]
    assert [len(block) for block in iter_epochs(far, PrepareSettings())] == [3, 1]  # never a long pause in memory


# ---------------------------------------------------------------------------------------------------------------------- leakage


def test_test_recordings_leave_no_trace_in_training_arrays(runs, prepared, tmp_path):
    louder = [
        replace(run, raw=run.raw.copy().apply_function(lambda x: 3 * x, picks="eeg")) if run.partition == "test" else run for run in runs
    ]
    changed = load(prepare_subject(louder, tmp_path / "a", progress=False))
    default = load(prepared)
    np.testing.assert_array_equal(changed["train"].data, default["train"].data)
    np.testing.assert_allclose(changed["test"].data, 3 * default["test"].data, atol=1e-3)  # the same transform
    both = PrepareSettings(mvnn="train+test", sessions=(1, 2))
    before = load(prepare_subject(runs, tmp_path / "b", both, progress=False))
    after = load(prepare_subject(louder, tmp_path / "c", both, progress=False))
    assert not np.allclose(before["train"].data, after["train"].data, rtol=0.1)


# ----------------------------------------------------------------------------------------------------------------------- resuming


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the recordings that were really cut."""
    names: list[str] = []

    def counting(run: Run, settings: PrepareSettings) -> Iterator[np.ndarray]:
        names.append(run.name)
        return iter_epochs(run, settings)

    monkeypatch.setattr(prepare_module, "iter_epochs", counting)
    return names


def test_goes_on_after_a_crash(runs, prepared, tmp_path, cut):
    def broken() -> Iterator[Run]:
        yield from runs[:5]
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        prepare_subject(broken(), tmp_path, progress=False)
    assert len(cut) == 5 and not (tmp_path / "sub-01" / "info.json").exists()
    with pytest.raises(FileNotFoundError, match="prepare the subject"):
        load_epochs(tmp_path, 1, "test")
    damaged = tmp_path / "sub-01" / ".work" / "ses-01_test_0.npy"
    damaged.write_bytes(damaged.read_bytes()[:-4] + b"oops")
    louder = replace(runs[3], raw=runs[3].raw.copy().apply_function(lambda x: 2 * x, picks="eeg"))
    (tmp_path / "sub-01" / ".work" / ".train.npy.abc.part").write_bytes(b"left by a killed process")
    with pytest.raises(ValueError, match="no recording of session 3 train, session 4 train, session 4 test"):
        prepare_subject([*runs[:3], louder, runs[4]], tmp_path, progress=False)
    assert cut[5:] == [runs[0].name, runs[3].name]  # the damaged epochs and the changed recording
    folder = prepare_subject(runs, tmp_path, progress=False)
    assert cut[7:] == [run.name for run in (runs[3], *runs[5:])]
    assert contents(folder) == contents(prepared)


def test_a_crash_while_merging_loses_no_cut_epochs(runs, prepared, tmp_path, cut, monkeypatch):
    def full(*args: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(prepare_module, "_publish", full)
        with pytest.raises(OSError, match="no space"):
            prepare_subject(runs, tmp_path, progress=False)
    folder = prepare_subject(runs, tmp_path, progress=False)
    assert len(cut) == len(runs)
    assert contents(folder) == contents(prepared)


def test_other_settings_reuse_nothing_and_a_complete_subject_is_recognised(runs, tmp_path, cut):
    with pytest.raises(ValueError, match="no recording"):
        prepare_subject(runs[:2], tmp_path, progress=False)
    plain = PrepareSettings(mvnn="off")
    folder = prepare_subject(lambda: iter(runs), tmp_path, plain, progress=False)
    assert len(cut) == 2 + len(runs)
    before = contents(folder)
    prepare_subject(lambda: iter(runs), tmp_path, plain, progress=False)
    assert len(cut) == 2 + len(runs) and contents(folder) == before
    array = bytearray(before["test.npy"])
    array[-1] ^= 1
    (folder / "test.npy").write_bytes(array)
    prepare_subject(lambda: iter(runs), tmp_path, plain, progress=False)  # a damaged array is made anew
    assert contents(folder) == before
    with pytest.raises(ValueError, match=r"other settings \(unit differ\): .* --overwrite"):
        prepare_subject(lambda: iter(runs), tmp_path, replace(plain, unit="uV"), progress=False)
    assert contents(folder) == before
    prepare_subject(lambda: iter(runs), tmp_path, replace(plain, unit="uV"), progress=False, overwrite=True)
    assert contents(folder)["test.npy"] != before["test.npy"]


def test_survives_sigkill(prepared, tmp_path):
    code = (
        "import importlib.util, sys; from pathlib import Path\n"
        f"spec = importlib.util.spec_from_file_location('small', {str(Path(__file__))!r})\n"
        "small = importlib.util.module_from_spec(spec); sys.modules['small'] = small; spec.loader.exec_module(small)\n"
        f"small.prepare_subject(small.small_runs(slow=float(sys.argv[1])), Path({str(tmp_path)!r}), progress=False)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, "2"])
    note = tmp_path / "sub-01" / ".work" / "ses-02_train_0.json"
    deadline = time.monotonic() + 120
    while not note.exists() and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert note.exists() and not (tmp_path / "sub-01" / "info.json").exists()
    first = (tmp_path / "sub-01" / ".work" / "ses-01_test_0.npy").stat().st_mtime_ns
    seen = []

    def watched() -> Iterator[Run]:
        for run in small_runs():
            yield run
            seen.append((tmp_path / "sub-01" / ".work" / "ses-01_test_0.npy").stat().st_mtime_ns)

    folder = prepare_subject(watched(), tmp_path, progress=False)
    assert set(seen) == {first}  # what the killed process had finished was used
    assert contents(folder) == contents(prepared)


def test_two_processes_do_not_share_a_folder(runs, tmp_path):
    def nested() -> Iterator[Run]:
        yield runs[0]
        prepare_subject(runs, tmp_path, progress=False)

    with pytest.raises(JobRunning, match="another decodehub process"):
        prepare_subject(nested(), tmp_path, progress=False)


# ------------------------------------------------------------------------------------------------------------------------- errors


def without(runs: list[Run], partition: str, image: int) -> list[Run]:
    """The first trial of an image in session 1 becomes a catch trial."""
    changed = list(runs)
    i = next(i for i, run in enumerate(runs) if (run.session, run.partition) == (1, partition))
    images = runs[i].images.copy()
    images[np.flatnonzero(images == image)[0]] = 0
    changed[i] = replace(runs[i], images=images)
    return changed


def test_images_with_too_few_repetitions_are_named_or_dropped(runs, tmp_path):
    lonely = int(train_images(1)[3])
    fewer = without(without(runs, "train", lonely), "test", 2)
    with pytest.raises(ValueError, match=rf"1 train images .*image {lonely}: 1 of 2 in session 1.*incomplete='drop'"):
        prepare_subject(fewer, tmp_path, progress=False)
    folder = prepare_subject(fewer, tmp_path, PrepareSettings(incomplete="drop"), progress=False)
    found = load(folder)
    assert found["train"].images.tolist() == [i for i in range(1, TRAIN + 1) if i != lonely]
    assert found["test"].images.tolist() == [1, 3]
    assert read_info(folder)["made_from"]["incomplete_images"] == {"train": [lonely], "test": [2]}


def test_an_image_missing_from_a_session_is_named(runs, tmp_path):
    lonely = int(train_images(1)[3])
    with pytest.raises(ValueError, match=rf"image {lonely}: in 1 of 2 sessions"):
        prepare_subject(without(without(runs, "train", lonely), "train", lonely), tmp_path, progress=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda run: replace(run, subject=2), "is of subject 2, the others of subject 1"),
        (lambda run: replace(run, images=np.zeros_like(run.images)), "no image events"),
        (lambda run: replace(run, images=np.full_like(run.images, 99999)), "not marked as catch trials"),
        (lambda run: replace(run, images=run.images + 200), r"image numbers .*train images are|test images are 1..200"),
        (lambda run: replace(run, onsets=np.full_like(run.onsets, 500)), "at the sample of another event"),
        (lambda run: replace(run, onsets=run.onsets + 10**6), "none of its .* epochs lies within"),
        (lambda run: replace(run, raw=run.raw.copy().rename_channels({"Cz": "CZ"})), r"\['Cz'\] are not among"),
        (lambda run: replace(run, raw=run.raw.copy().resample(500, verbose=False)), "500 Hz, expected 1000 Hz"),
    ],
)
def test_bad_recordings(runs, tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        prepare_subject([runs[0], change(runs[2])], tmp_path, progress=False)


def test_nan_is_located_and_missing_channels_are_explained(runs):
    raw = runs[0].raw.copy()
    raw._data[raw.ch_names.index("P7"), 4321] = np.nan
    with pytest.raises(ValueError, match=r"P7 has NaN or infinite samples, the first at 4.321 s"):
        fingerprint(replace(runs[0], raw=raw), PrepareSettings())
    few = replace(runs[0], raw=runs[0].raw.copy().pick(list(POSTERIOR_17)))
    with pytest.raises(ValueError, match="mvnn_channels='selected'"):
        fingerprint(few, PrepareSettings(channels="17"))
    assert fingerprint(few, PrepareSettings(channels="17", mvnn_channels="selected")).startswith("sha256:")


def test_a_recording_given_twice(runs, tmp_path):
    with pytest.raises(ValueError, match="the same recording as ses-01 train 0"):
        prepare_subject([runs[1], runs[1]], tmp_path, progress=False)


def test_a_channel_that_is_flat_is_named(runs, tmp_path):
    flat = [replace(run, raw=run.raw.copy().apply_function(lambda x: 0 * x, picks=["FT9"])) for run in runs]
    with pytest.raises(ValueError, match=r"session 1 train: channels \['FT9'\] are flat"):
        prepare_subject(flat, tmp_path, progress=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mvnn": "test"}, "mvnn must be one of"),
        ({"channels": "64"}, "'63', '17' or a tuple"),
        ({"channels": ("Pz", "Pz")}, "different names"),
        ({"channels": ("Fz",)}, r"\['Fz'\] are not among"),
        ({"window": (0.0, 1.2)}, "must hold"),
        ({"tmin": -0.2005}, "no whole number of samples"),
        ({"sessions": ()}, "sessions must be"),
    ],
)
def test_bad_settings(changes, message):
    with pytest.raises(ValueError, match=message):
        PrepareSettings(**changes)


def test_other_rates_when_stated(runs, tmp_path):
    """At 250 Hz there is nothing to resample, and the epochs keep their samples."""
    low = [replace(run, raw=run.raw.copy().resample(250, verbose=False), onsets=run.onsets // 4) for run in runs]
    found = load(prepare_subject(low, tmp_path, PrepareSettings(sfreq_raw=250.0, mvnn="off"), progress=False))
    expected = low[0].raw.get_data(picks=["Oz"])[0]
    image = int(low[0].images[0])
    onset = int(low[0].onsets[0])
    epoch = expected[onset : onset + 250] - expected[onset - 50 : onset + 1].mean()
    oz = np.asarray(found["test"].data[image - 1, :, CHANNELS.index("Oz")])
    assert np.abs(oz - epoch).max(axis=1).min() < 1e-11


# ------------------------------------------------------------------------------------------------------------------------ command


def ready_made(n_channels: int = 17, names: tuple[str, ...] = POSTERIOR_17_OSF, subject: int = 3) -> dict[str, Epochs]:
    rng = np.random.default_rng(0)
    return {
        p: Epochs(
            rng.standard_normal((4, 2, n_channels, 10)).astype(np.float32),
            names,
            100.0,
            np.arange(10) / 100,
            np.arange(1, 5),
            p,
            subject,
            "MVNN",
        )
        for p in ALL
    }


def test_ready_made_epochs_are_ordered_by_name(tmp_path):
    made = ready_made()
    found = load(store_epochs(made.__getitem__, tmp_path, source="somewhere"))
    for p in ALL:
        assert found[p].ch_names == POSTERIOR_17 and found[p].unit == "MVNN" and found[p].sessions is None
        np.testing.assert_array_equal(found[p].data, made[p].data[:, :, channel_indices(POSTERIOR_17_OSF, POSTERIOR_17)])
    nameless = ready_made(names=())
    with pytest.raises(ValueError, match=r"without names.*--channel-order"):
        store_epochs(nameless.__getitem__, tmp_path, source="somewhere")
    stated = load(store_epochs(nameless.__getitem__, tmp_path / "b", channel_order="osf17", source="somewhere"))
    np.testing.assert_array_equal(stated["test"].data, found["test"].data)
    assert named_channels(nameless["test"], "model") == POSTERIOR_17
    with pytest.raises(ValueError, match="has 63 channels, the data have 17"):
        named_channels(nameless["test"], "recording")
    with pytest.raises(ValueError, match="in another order"):
        named_channels(made["test"], "model")
    made["test"].data[2, 0, 0, 0] = np.inf
    with pytest.raises(ValueError, match="test image 3 has NaN"):
        store_epochs(made.__getitem__, tmp_path / "c", source="somewhere")


class FakeSource:
    layout = description = "simulated"
    kind, subjects, design = "runs", (1, 2), None

    def __init__(self, runs: list[Run]) -> None:
        self._runs = runs

    def runs(self, subject: int) -> Iterator[Run]:
        if subject == 1:
            raise ValueError("sub-01 has no session 2")
        return iter([replace(run, subject=2) for run in self._runs])


def test_one_bad_subject_does_not_stop_the_others(runs, tmp_path, monkeypatch):
    from decodehub.loaders.things_eeg2 import read as read_module

    source = FakeSource(runs)
    source.subjects = [1, 2]
    monkeypatch.setattr(read_module, "open_source", lambda path: source)
    arguments = ["prepare", str(tmp_path / "raw"), "--out", str(tmp_path / "out"), "--channels", "17", "--no-mvnn", "--no-progress"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "1 of 2 subjects failed" in str(result.exception) and "sub-01 has no session 2" in str(result.exception)
    assert "test 3 x 80 x 17 x 250, train 12 x 4 x 17 x 250, 250 Hz, unit V" in result.output
    assert json.loads((tmp_path / "out" / "sub-02" / "info.json").read_text())["source"] == "simulated"
    with pytest.raises(ValueError, match="there are the subjects 1, 2"):
        CliRunner().invoke(app, [*arguments, "--subject", "7"], catch_exceptions=False)
    with pytest.raises(ValueError, match="lies in the folder"):
        CliRunner().invoke(app, ["prepare", str(tmp_path), "--out", str(tmp_path / "out")], catch_exceptions=False)


def test_settings_from_words():
    settings = prepare_settings("Oz, O1", True, ["mvnn=train+test", "sessions=1,2", "window=0,0.8", "repetitions_test=10", "sfreq=100"])
    assert settings == PrepareSettings(
        ("Oz", "O1"), mvnn="train+test", sessions=(1, 2), window=(0.0, 0.8), repetitions_test=10, sfreq=100.0
    )
    for bad in (["mvn=off"], ["sessions"], ["sessions=one"], ["mvnn=train", "mvnn=off"], ["channels=17"]):
        with pytest.raises(ValueError, match=r"--set|twice"):
            prepare_settings(None, True, bad)
