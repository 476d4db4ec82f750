"""Simulated recordings: what was put in is there, at its size, on its contact, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.signal import welch

from decodehub.loaders.ieeg import simulate_events
from decodehub.loaders.ieeg.labels import TASKS
from decodehub.loaders.ieeg.simulate import DEFAULT_EFFECTS, HIGH_GAMMA, SESSIONS, Effect, Settings, driver, scaled, simulate_recording
from decodehub.loaders.ieeg.splits import make_folds

QUIET = Settings(line_uv=0.0)


def simulate(dataset: str = "kelesbyd2024", session: str = "sub41_sess1", **options: object) -> np.ndarray:
    recording = simulate_recording(dataset, session, **{"seed": 1, "minutes": 1.0, "timing": "drawn", "settings": QUIET, **options})  # type: ignore[arg-type]
    return recording.read(0, recording.n_samples)


@pytest.fixture(scope="module")
def background() -> np.ndarray:
    return simulate(effects=())


def test_equal_arguments_give_equal_bytes(background: np.ndarray) -> None:
    assert np.array_equal(simulate(effects=()), background)
    assert not np.array_equal(simulate(effects=(), seed=2), background)
    assert not np.array_equal(simulate(effects=(), session="sub41_sess2"), background)


def test_recording_says_what_it_is() -> None:
    for dataset, sfreq, line in (("neuroprobev2", 2048, 60), ("kelesbyd2024", 1000, 60), ("berezutskayapippi2022", 2048, 50)):
        recording = simulate_recording(dataset, SESSIONS[dataset][0], seed=0, timing="drawn")
        assert recording.simulated and recording.recording_id.startswith("simulated-")
        assert (recording.sfreq, recording.line_freq, len(recording.ch_names), recording.unit) == (sfreq, line, 32, "uV")
        assert recording.lip is not None and recording.lip.shape == (32, 3) and recording.regions is not None
        assert recording._data is None  # no signal is made before it is read


def test_background_has_its_size_and_slope(background: np.ndarray) -> None:
    assert np.sqrt(np.square(background).mean(axis=1)).mean() == pytest.approx(QUIET.rms_uv, rel=0.05)
    freqs, power = welch(background, fs=1000, nperseg=2000)
    low, high = (power[:, (freqs > f - 2) & (freqs < f + 2)].mean() for f in (10, 40))
    assert np.log(low / high) / np.log(4) == pytest.approx(2.0, abs=0.15)
    same, other = np.corrcoef(background)[0, [1, 9]]
    assert same == pytest.approx(QUIET.shared, abs=0.15) and abs(other) < 0.15


@pytest.mark.parametrize(("dataset", "line"), [("kelesbyd2024", 60), ("berezutskayapippi2022", 50)])
def test_mains_is_that_of_the_country(dataset: str, line: int) -> None:
    recording = simulate_recording(dataset, SESSIONS[dataset][0], seed=0, minutes=1, effects=(), timing="drawn")
    sfreq = int(recording.sfreq)
    power = np.square(np.abs(np.fft.rfft(recording.read(0, 20 * sfreq)))).mean(axis=0)
    for k in (1, 2, 3):
        assert power[20 * line * k] > 20 * np.median(power[20 * line * k - 60 : 20 * line * k + 60])
    other = 110 - line
    assert power[20 * other] < 5 * np.median(power[20 * other - 60 : 20 * other + 60])


class TestEffects:
    def test_effects_are_on_their_contacts_alone(self, background: np.ndarray) -> None:
        recording = simulate_recording("kelesbyd2024", "sub41_sess1", seed=1, minutes=1.0, timing="drawn", settings=QUIET)
        added = recording.read(0, recording.n_samples) - background
        rows = {recording.ch_names.index(recording.contact(e)) for e in DEFAULT_EFFECTS}
        assert len(rows) == 5 and rows == set(np.flatnonzero(np.abs(added).max(axis=1) > 1e-3))

    def test_an_evoked_wave_has_its_peak_after_its_events(self, background: np.ndarray) -> None:
        effect = Effect("onset", "evoked", 1, 4, 2.0)
        recording = simulate_recording(
            "kelesbyd2024", "sub41_sess1", seed=1, minutes=1.0, timing="drawn", settings=QUIET, effects=(effect,)
        )
        added = (recording.read(0, recording.n_samples) - background)[recording.ch_names.index("RHIP4")]
        starts, drive = driver(recording.events, "onset")
        lonely = [s for s in starts[drive == 1] if (np.abs(starts[drive == 1] - s) > 0.6).sum() == (drive == 1).sum() - 1]
        assert lonely
        for s in lonely:
            i = int(np.ceil(s * 1000))
            assert np.abs(added[i : i + 600]).max() == pytest.approx(2.0 * QUIET.rms_uv, rel=0.01)

    def test_high_gamma_has_its_size_in_its_band(self, background: np.ndarray) -> None:
        effect = Effect("speech", "high_gamma", 0, 3, 2.0)
        added = (simulate(effects=(effect,)) - background)[2]
        freqs, power = welch(added, fs=1000, nperseg=1000)
        inside = (freqs >= HIGH_GAMMA[0] - 5) & (freqs <= HIGH_GAMMA[1] + 5)
        assert power[inside].sum() > 0.99 * power.sum()
        doubled = (simulate(effects=scaled((effect,), 2.0)) - background)[2]
        assert np.allclose(doubled, 2 * added, atol=1e-3)

    def test_a_task_is_decodable_from_the_power_of_its_contact_and_not_from_another(self) -> None:
        """The recovery in the small: rank windows by high-gamma power; the planted contact separates, the others do not."""
        recording = simulate_recording("kelesbyd2024", "sub41_sess1", seed=1, minutes=3.0, timing="drawn", settings=QUIET)
        table = recording.labels("speech")
        fold = make_folds(recording.dataset, recording.recording_id, "speech", table)[0]
        rows = np.concatenate([fold.train, fold.test])
        windows = np.stack([recording.read(*recording.window_bounds(s)) for s in table.start_s[rows]])
        power = np.square(np.abs(np.fft.rfft(windows, axis=-1)[..., 70:151])).sum(axis=-1)
        label = table.label[rows]
        auc = [np.mean(power[label == 1, c][:, None] > power[label == 0, c][None]) for c in range(len(recording.ch_names))]
        assert auc[recording.ch_names.index("LAMY3")] > 0.85
        assert 0.35 < np.median(auc) < 0.6

    def test_drivers_are_between_0_and_1_and_follow_the_labels(self) -> None:
        recording = simulate_recording("neuroprobev2", "sub1_sess1", seed=1, timing="drawn")
        for task in TASKS:
            starts, drive = driver(recording.events, task)
            assert drive.min() >= 0 and drive.max() <= 1, task
            if task == "speech":
                continue
            table = recording.labels(task)
            by_start = dict(zip(starts.round(6), drive))
            mean = [np.mean([by_start.get(round(s, 6), 0.0) for s in table.start_s[table.label == c]]) for c in (0, 1)]
            assert mean[1] > mean[0] + 0.4, task


class TestOptions:
    def test_drift_is_slow_and_of_its_size(self, background: np.ndarray) -> None:
        drift = simulate(effects=(), settings=replace(QUIET, drift_uv=200.0)) - background
        freqs, power = welch(drift, fs=1000, nperseg=20_000)
        assert power[:, freqs > 0.5].sum() < 0.01 * power.sum()
        assert 50 < np.sqrt(np.square(drift).mean()) < 400

    def test_gains_differ_between_contacts_and_change_over_the_session(self, background: np.ndarray) -> None:
        gained = simulate(effects=(), settings=replace(QUIET, gain_sd=1.0)) / background
        assert np.log(np.median(gained, axis=1)).std() == pytest.approx(1.0, abs=0.4)
        drifting = simulate(effects=(), settings=replace(QUIET, gain_drift=1.0)) / background
        assert np.allclose(drifting[:, [0, -1]], [1.0, np.e], rtol=1e-3)


class TestEvents:
    @pytest.mark.parametrize("dataset", list(SESSIONS))
    def test_every_task_can_be_scored(self, dataset: str) -> None:
        recording = simulate_recording(dataset, SESSIONS[dataset][0], seed=2026, timing="drawn")
        last = recording.duration_s - 1
        for task in TASKS:
            table = recording.labels(task)
            folds = make_folds(dataset, recording.recording_id, task, table)
            assert all(fold.status == "ok" for fold in folds), (task, [fold.reason for fold in folds])
            assert table.start_s.min() >= 0 and table.start_s.max() <= last

    def test_sessions_of_one_film_share_their_words(self) -> None:
        tables = [
            simulate_events.simulate_events("kelesbyd2024", s, seed=0, minutes=2, timing="drawn") for s in ("sub41_sess1", "sub42_sess2")
        ]
        pd.testing.assert_frame_equal(tables[0].words, tables[1].words)

    def test_real_timing_where_the_package_is(self, shared, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(simulate_events, "neuroprobe_folder", lambda: shared / "data/ieeg/neuroprobe")
        table = simulate_events.simulate_events("neuroprobev2", "sub3_sess0", seed=0, minutes=5)
        assert table.simulated.startswith("timing of neuroprobe subject 3 trial 0 from 401 s")
        assert (len(table.words), len(table.pauses)) == (322, 295)
        assert table.words["text"].iloc[0].isalpha()

    def test_real_timing_is_refused_where_it_is_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(simulate_events, "neuroprobe_folder", lambda: None)
        with pytest.raises(ValueError, match="pip install neuroprobe"):
            simulate_events.simulate_events("neuroprobev2", "sub3_sess0", seed=0, minutes=5, timing="neuroprobe")
        assert simulate_events.simulate_events("neuroprobev2", "sub3_sess0", seed=0, minutes=5).simulated == "simulated timing and features"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "x"}, "dataset must be"),
        ({"session": "s1"}, "session must be"),
        ({"minutes": 0.5}, "minutes 1 to 60"),
        ({"effects": (Effect("speech", "evoked", 9, 1, 1.0),)}, "4 electrodes of 8"),
        ({"timing": "real"}, "timing must be"),
    ],
)
def test_bad_arguments_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulate(**options)


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match="rms_uv must be positive"):
        Settings(rms_uv=0)
    with pytest.raises(ValueError, match="shared must be"):
        Settings(shared=1.0)
