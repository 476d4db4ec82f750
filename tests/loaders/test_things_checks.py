"""Every check against a planted fault, and none against good data."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mne
import numpy as np
import pytest

from decodehub.hub_datasets.things_eeg2 import sample
from decodehub.hub_datasets.things_eeg2.sample import simulate_sample
from decodehub.loaders.simulate_eeg import channel_positions
from decodehub.loaders.things_eeg2 import CHANNELS, POSTERIOR_17, POSTERIOR_17_OSF, RECORDING_ORDER, Epochs, Run
from decodehub.loaders.things_eeg2 import checks as checks
from decodehub.loaders.things_eeg2 import run_checks as run_checks
from decodehub.loaders.things_eeg2.epoching import PrepareSettings
from decodehub.loaders.things_eeg2.prepare import prepare_subject
from decodehub.loaders.things_eeg2.read import open_source
from decodehub.loaders.things_eeg2.signal import axis_roles, spatial_roughness, summarise, trial_sample, whiteness
from decodehub.loaders.things_eeg2.simulate import ScheduleSettings, SignalSettings, evoked_model, make_schedule
from decodehub.loaders.things_eeg2.simulate_files import write_raw_dicts
from decodehub.loaders.things_eeg2.store import save_epochs
from decodehub.loaders.things_eeg2.validate import array_epochs, validate

SNIPPET = "data/things_eeg2/eeg/sub01_test_posterior_mean_17reps_100hz_200x17x100.npy"


@pytest.fixture(scope="module")
def good() -> dict[str, Epochs]:
    return simulate_sample()


@pytest.fixture(scope="module")
def unwhitened() -> np.ndarray:
    """(63, 63) what undoes whitening: the square root of a smooth covariance."""
    positions = channel_positions()
    distance = np.linalg.norm(positions[:, None] - positions[None], axis=-1)
    values, vectors = np.linalg.eigh(np.exp(-distance / 0.06))
    return ((vectors * np.sqrt(values)) @ vectors.T).astype(np.float32)


def levels(findings: list[checks.Finding]) -> dict[str, str]:
    return {f.check: f.level for f in findings if f.level != "ok"}


def changed(epochs: Epochs, change: Callable[[np.ndarray], object]) -> Epochs:
    data = epochs.data.copy()
    change(data)
    return replace(epochs, data=data)


class TestGoodData:
    @pytest.mark.parametrize("partition", ["train", "test"])
    def test_passes_without_warnings(self, good: dict[str, Epochs], partition: str) -> None:
        findings = checks.check_epochs(good[partition])
        assert levels(findings) == {}
        assert len({f.check for f in findings}) == len(findings) == 16

    @pytest.mark.parametrize("seed", [1, 2])
    def test_of_other_seeds_and_subjects_too(self, seed: int) -> None:
        small = {"train": (40, 4), "test": (4, 20)}
        assert levels(checks.check_epochs(simulate_sample(subject=seed + 1, counts=small, seed=seed)["train"])) == {}

    def test_of_17_channels_too(self, good: dict[str, Epochs]) -> None:
        posterior = replace(good["train"], data=good["train"].data[:, :, 46:], ch_names=POSTERIOR_17)
        assert levels(checks.check_epochs(posterior)) in ({}, {"channel positions": "warning"})
        order = [POSTERIOR_17.index(name) for name in POSTERIOR_17_OSF]
        mixed = replace(posterior, data=posterior.data[:, :, order])
        assert levels(checks.check_epochs(mixed)) == {"channel positions": "warning"}

    def test_of_17_channels_in_no_order_of_a_file_it_cannot_be_told(self, good: dict[str, Epochs]) -> None:
        for seed in range(6):
            order = 46 + np.random.default_rng(seed).permutation(17)
            mixed = replace(good["train"], data=good["train"].data[:, :, order], ch_names=POSTERIOR_17)
            (finding,) = [f for f in checks.check_epochs(mixed) if f.check == "channel positions"]
            assert finding.level == "warning" and ("cannot tell" in finding.found or "fit the order" in finding.found)

    def test_without_a_response_positions_are_not_called_wrong(self, good: dict[str, Epochs]) -> None:
        noise = np.random.default_rng(0).standard_normal(good["train"].data.shape, dtype=np.float32)
        (finding,) = [f for f in checks.check_epochs(replace(good["train"], data=noise)) if f.check == "channel positions"]
        assert finding.level == "warning" and "cannot tell, the mean response is too weak" in finding.found

    def test_every_fault_says_what_to_do(self, good: dict[str, Epochs]) -> None:
        bad = replace(good["train"], ch_names=(), times=np.arange(300), images=np.arange(3, 43), data=good["train"].data * 1e-6)
        faults = [f for f in checks.check_epochs(bad) if f.level != "ok"]
        assert len(faults) >= 4 and all(f.remedy and f.expected and f.found for f in faults)


class TestAxes:
    def test_swapped_by_size(self, good: dict[str, Epochs]) -> None:
        swapped = replace(good["train"], data=good["train"].data.transpose(0, 2, 1, 3), ch_names=())
        (finding,) = [f for f in checks.check_epochs(swapped) if f.check == "shape"]
        assert finding.level == "error" and "swapped" in finding.found

    def test_swapped_where_sizes_say_nothing(self, good: dict[str, Epochs]) -> None:
        """20 of the channels in place of repetitions: only the signal tells."""
        data = good["test"].data[:, :20, 43:63].transpose(0, 2, 1, 3)
        found = levels(checks.check_epochs(replace(good["test"], data=data, ch_names=())))
        assert found["axis roles"] == "error"

    def test_repetitions_in_place_of_channels(self, good: dict[str, Epochs]) -> None:
        """What happened to a published file: channels were averaged and the first 17 repetitions called channels."""
        data = good["test"].data.mean(axis=2)[:, None, :17]
        (finding,) = checks.check_axis_roles(good["test"], summarise(replace(good["test"], data=data)), trial_sample(data))
        assert finding.level == "error" and "behaves like repetitions" in finding.found

    def test_no_signal_is_not_called_an_error(self) -> None:
        noise = np.random.default_rng(0).standard_normal((40, 4, 63, 250)).astype(np.float32)
        epochs = Epochs(noise, CHANNELS, 250.0, np.arange(250) / 250, np.arange(1, 41), "train", 1)
        (finding,) = checks.check_axis_roles(epochs, summarise(epochs), trial_sample(noise))
        assert finding.level == "warning" and "cannot tell" in finding.found

    def test_roles_do_not_depend_on_scale_or_sign(self, good: dict[str, Epochs]) -> None:
        data = good["train"].data
        a = axis_roles(summarise(good["train"]), trial_sample(data), 250.0)
        b = axis_roles(summarise(replace(good["train"], data=data * np.float32(-8))), trial_sample(data * np.float32(-8)), 250.0)
        assert b.channels == pytest.approx(a.channels) and b.repetitions == pytest.approx(a.repetitions)

    @pytest.mark.parametrize("shape", [(40, 63, 250), (40, 4, 63, 0)])
    def test_another_rank_or_no_data(self, good: dict[str, Epochs], shape: tuple[int, ...]) -> None:
        assert levels(checks.check_epochs(replace(good["train"], data=np.zeros(shape, np.float32)))) == {"shape": "error"}

    def test_the_real_mislabelled_file_is_noticed(self, shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert validate(shared / SNIPPET, tmp_path / "findings.json", channels=17, sfreq=100) == 1
        report = json.loads((tmp_path / "findings.json").read_text())
        (finding,) = [f for f in report["findings"] if f["check"] == "axis roles"]
        assert finding["level"] == "error" and "axis 2 behaves like repetitions" in finding["found"]
        assert "behaves like" in " ".join(capsys.readouterr().out.split())
        assert next(f for f in report["findings"] if f["check"] == "5 Hz ripple")["level"] == "ok"

    def test_the_real_file_is_in_order_once_its_axis_is_called_repetitions(self, shared: Path) -> None:
        data = np.load(shared / SNIPPET)[:, :, None]
        epochs = Epochs(data, ("Oz",), 100.0, np.arange(100) / 100 - 0.2, np.arange(1, 201), "test", 1)
        assert checks.check_axis_roles(epochs, summarise(epochs), trial_sample(data)) == []


class TestScale:
    def test_volts(self, good: dict[str, Epochs], unwhitened: np.ndarray) -> None:
        raw = replace(good["train"], data=unwhitened @ good["train"].data * np.float32(1e-5))
        assert levels(checks.check_epochs(raw)) == {"scale": "error", "whiteness": "error"}
        assert levels(checks.check_epochs(replace(raw, unit="V"))) == {"scale": "warning", "whiteness": "warning"}

    def test_microvolts(self, good: dict[str, Epochs], unwhitened: np.ndarray) -> None:
        found = checks.check_epochs(replace(good["train"], data=unwhitened @ good["train"].data * np.float32(10)))
        assert levels(found) == {"scale": "error", "whiteness": "error"}
        assert "microvolts" in next(f.found for f in found if f.check == "scale")

    def test_standardised_but_not_whitened(self, good: dict[str, Epochs], unwhitened: np.ndarray) -> None:
        assert levels(checks.check_epochs(replace(good["train"], data=unwhitened @ good["train"].data))) == {"whiteness": "error"}

    def test_evenness_is_one_for_an_identity_and_known_for_others(self) -> None:
        rng = np.random.default_rng(0)
        noise = rng.standard_normal((50, 4, 8, 500))
        assert whiteness(noise).evenness == pytest.approx(1, abs=1e-3)
        assert whiteness(noise).scale == pytest.approx(1, abs=1e-2)
        weights = np.arange(1, 9.0)
        expected = np.sum(weights**2) ** 2 / (8 * np.sum(weights**4))
        assert whiteness(noise * weights[:, None]).evenness == pytest.approx(expected, rel=1e-2)

    def test_one_repetition_is_not_judged(self, good: dict[str, Epochs]) -> None:
        averaged = replace(good["train"], data=good["train"].data.mean(axis=1, keepdims=True), sessions=None)
        assert levels(checks.check_epochs(averaged)) == {"repetition count": "warning"}
        assert levels(checks.check_scale(averaged, trial_sample(averaged.data * 1e-6))) == {"scale": "error"}


class TestTime:
    def test_shuffled(self, good: dict[str, Epochs]) -> None:
        order = np.random.default_rng(0).permutation(250)
        assert levels(checks.check_epochs(replace(good["train"], data=good["train"].data[..., order]))) == {"5 Hz ripple": "error"}

    @pytest.mark.parametrize("soa", [0.25, 0.3])
    def test_another_stimulus_onset_asynchrony(self, soa: float, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sample, "SOA", soa)
        epochs = simulate_sample(counts={"train": (40, 4), "test": (4, 20)})["train"]
        assert levels(checks.check_epochs(epochs)) == {"5 Hz ripple": "error"}

    def test_wrong_sampling_rate(self, good: dict[str, Epochs]) -> None:
        wrong = replace(good["train"], sfreq=200.0, times=np.arange(250) / 200)
        assert levels(checks.check_epochs(wrong)) == {"5 Hz ripple": "error", "times": "warning"}

    def test_the_300_times_of_one_layout(self, good: dict[str, Epochs]) -> None:
        findings = checks.check_times(replace(good["train"], times=np.arange(-50, 250) / 250))
        assert levels(findings) == {"times": "error"} and "times[-250:]" in findings[0].remedy

    def test_times_that_do_not_fit_the_rate(self, good: dict[str, Epochs]) -> None:
        assert levels(checks.check_times(replace(good["train"], times=np.arange(250) / 100))) == {"times": "error"}

    def test_short_epochs_are_not_judged(self, good: dict[str, Epochs]) -> None:
        short = replace(good["train"], data=good["train"].data[..., :100], times=good["train"].times[:100])
        assert levels(checks.check_epochs(short)) == {"5 Hz ripple": "warning", "times": "warning"}


class TestChannels:
    def test_names_missing_unknown_or_twice(self, good: dict[str, Epochs]) -> None:
        for names in ((), ("Fz", *CHANNELS[1:]), (CHANNELS[1], *CHANNELS[1:])):
            assert levels(checks.check_channel_names(replace(good["train"], ch_names=names))) == {"channel names": "error"}

    @pytest.mark.parametrize(("names", "label"), [(RECORDING_ORDER, "recordings"), (POSTERIOR_17_OSF, "OSF"), (CHANNELS[::-1], "another")])
    def test_other_orders_are_named(self, good: dict[str, Epochs], names: tuple[str, ...], label: str) -> None:
        (finding,) = checks.check_channel_names(replace(good["train"], ch_names=names))
        assert finding.level == "warning" and label in finding.found

    def test_data_in_the_order_of_the_recordings_under_the_names_of_the_models(self, good: dict[str, Epochs]) -> None:
        order = [CHANNELS.index(name) for name in RECORDING_ORDER]
        findings = checks.check_epochs(replace(good["train"], data=good["train"].data[:, :, order]))
        assert levels(findings) == {"channel positions": "error"}
        assert "the data fit the order that of the recordings better" in next(f.found for f in findings if f.check == "channel positions")

    def test_permuted(self, good: dict[str, Epochs]) -> None:
        order = np.random.default_rng(3).permutation(63)
        assert levels(checks.check_epochs(replace(good["train"], data=good["train"].data[:, :, order]))) == {"channel positions": "error"}

    def test_random_orders_are_rarely_taken_for_right(self, good: dict[str, Epochs]) -> None:
        summary, rng = summarise(good["train"]), np.random.default_rng(0)
        chances = [spatial_roughness(summary, tuple(rng.permutation(CHANNELS)), 99) for _ in range(40)]
        assert np.mean([c is not None and c[1] <= 0.01 for c in chances]) < 0.1

    def test_flat(self, good: dict[str, Epochs]) -> None:
        findings = checks.check_epochs(changed(good["train"], lambda x: x[:, :, 60].fill(0)))
        assert levels(findings)["flat channels"] == "error"
        assert "flat throughout: O1" in next(f.found for f in findings if f.check == "flat channels")

    def test_flat_in_one_epoch(self, good: dict[str, Epochs]) -> None:
        findings = checks.check_epochs(changed(good["train"], lambda x: x[3, 1, 20].fill(1)))
        assert levels(findings) == {"flat channels": "error"}


class TestRowsAndValues:
    def test_nan_and_infinity_are_counted_and_placed(self, good: dict[str, Epochs]) -> None:
        def spoil(x: np.ndarray) -> None:
            x[7, 2, 5, 100], x[8, 0, 0, 0] = np.nan, np.inf

        findings = checks.check_epochs(changed(good["train"], spoil))
        assert levels(findings) == {"finite": "error"}
        assert "2 NaN or infinite, first at (row, repetition, channel, time) (7, 2, 5, 100)" in next(
            f.found for f in findings if f.check == "finite"
        )

    def test_missing_image(self, good: dict[str, Epochs]) -> None:
        e = good["train"]
        keep = np.delete(np.arange(40), 17)
        assert e.sessions is not None
        findings = checks.check_epochs(replace(e, data=e.data[keep], images=e.images[keep], sessions=e.sessions[keep]))
        assert levels(findings) == {"image count": "error", "image numbers": "error"}
        assert "1 missing (18)" in next(f.found for f in findings if f.check == "image numbers")

    def test_duplicated_image(self, good: dict[str, Epochs]) -> None:
        e = changed(good["train"], lambda x: x[5].__setitem__(..., x[4]))
        images = e.images.copy()
        images[5] = images[4]
        findings = checks.check_epochs(replace(e, images=images))
        assert levels(findings) == {"image numbers": "error", "equal epochs": "error"}
        assert "1 there twice (5)" in next(f.found for f in findings if f.check == "image numbers")

    def test_numbers_of_the_other_partition_and_another_order(self, good: dict[str, Epochs]) -> None:
        outside = checks.check_images(replace(good["test"], images=good["test"].images + 16_000))
        assert levels(outside) == {"image numbers": "error"} and "outside the range" in outside[0].found
        assert "not ascending" in checks.check_images(replace(good["test"], images=good["test"].images[::-1]))[0].found

    def test_the_design_of_the_experiment_is_expected_of_what_is_not_simulated(self, good: dict[str, Epochs]) -> None:
        real = replace(good["train"], settings={})
        assert levels(checks.check_counts(real)) == {"image count": "error"}
        assert "16,500 missing" in checks.check_images(real)[0].found

    def test_dtype(self, good: dict[str, Epochs]) -> None:
        for dtype, level in ((np.float64, "warning"), (np.float16, "warning"), (np.int16, "error")):
            assert levels(
                checks.check_shape(replace(good["train"], data=good["train"].data[:2].astype(dtype), images=np.array([1, 2])))
            ) == {"dtype": level}

    def test_sessions(self, good: dict[str, Epochs]) -> None:
        for e in good.values():
            assert e.sessions is not None
            sessions = e.sessions.copy()
            sessions[2] = 1
            (finding,) = checks.check_sessions(replace(e, sessions=sessions))
            assert finding.level == "error" and "1 images (3)" in finding.found

    def test_a_pass_in_small_pieces_gives_the_same(self, good: dict[str, Epochs], monkeypatch: pytest.MonkeyPatch) -> None:
        whole = summarise(good["train"])
        monkeypatch.setattr("decodehub.loaders.things_eeg2.signal.CHUNK_BYTES", 1)
        pieces = summarise(good["train"])
        np.testing.assert_allclose(pieces.halves, whole.halves, atol=1e-6)
        np.testing.assert_allclose(whole.halves[0], good["train"].data[::2].mean(axis=0, dtype=np.float64), atol=1e-6)


class TestLeakage:
    def test_concepts(self) -> None:
        splits = {"train": ["a", "b", "c"], "validation": ["c", "d"], "test": ["e", "a"]}
        assert levels(checks.check_leakage(splits)) == {
            "concepts of train and validation": "warning",
            "concepts of train and test": "error",
        }

    def test_images(self) -> None:
        found = checks.check_leakage({"train": range(10), "validation": range(9, 12), "test": range(20, 30)}, what="images")
        assert levels(found) == {"images of train and validation": "error"}

    def test_none(self) -> None:
        assert levels(checks.check_leakage({"train": ["a"], "test": ["b"]})) == {}


class TestFiles:
    def test_checksums_sizes_and_pointers(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import hashlib

        content = b"x" * 5000
        monkeypatch.setitem(checks.KNOWN_FILES, "test_images.zip", (5000, hashlib.sha256(content).hexdigest()))
        cases = {
            "good": (content, "ok", "as expected"),
            "damaged": (b"y" + content[1:], "error", "SHA-256"),
            "short": (content[:-1], "error", "4,999 bytes"),
            "pointer": (b"/annex/objects/SHA256E-s8129948--" + b"0" * 64 + b".zip\n", "error", "git-annex pointer"),
        }
        for name, (data, level, words) in cases.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / "test_images.zip").write_bytes(data)
            (finding,) = checks.check_files(tmp_path / name)
            assert finding.level == level and words in finding.found, name
        (tmp_path / "link").mkdir()
        (tmp_path / "link/training_images.zip").symlink_to("../.git/annex/objects/nothing")
        assert checks.check_files(tmp_path / "link")[0].found == "a git-annex link without the data"


class TestEventLog:
    def log(self, epochs: Epochs) -> dict[int, np.ndarray]:
        assert epochs.sessions is not None
        return {
            int(s): np.concatenate([np.repeat(epochs.images, (epochs.sessions == s).sum(axis=1)), [0, 0]])
            for s in np.unique(epochs.sessions)
        }

    def test_agrees(self, good: dict[str, Epochs]) -> None:
        for epochs in good.values():
            assert levels(run_checks.check_event_log(epochs, self.log(epochs))) == {}

    def test_disagrees(self, good: dict[str, Epochs]) -> None:
        e, log = good["train"], self.log(good["train"])
        less = {s: v[v != 3] for s, v in log.items()}
        assert "1 images never shown (3)" in run_checks.check_event_log(e, less)[0].found
        more = {**log, 4: np.append(log[4], [99])}
        assert "1 shown images not there (99)" in run_checks.check_event_log(e, more)[0].found
        moved = {5 - s: v for s, v in log.items()}
        assert "of a session than were shown in it" in run_checks.check_event_log(e, moved)[0].found

    def test_reads_tables_with_and_without_byte_order_mark_and_packed(self, tmp_path: Path) -> None:
        header = "onset\ttrial_type\ttot_img_number\n"
        folder = tmp_path / "sub-01/ses-02/eeg"
        folder.mkdir(parents=True)
        (folder / "sub-01_ses-02_task-train_run-01_events.tsv").write_text("\ufeff" + header + "1.0\timage\t7\n1.2\ttarget\tn/a\n")
        with gzip.open(folder / "sub-01_ses-02_task-train_run-02_events.tsv.gz", "wt") as f:
            f.write(header + "1.0\timage\t9\n1.2\trest_marker\tn/a\n")
        assert {s: v.tolist() for s, v in run_checks.read_event_log(tmp_path, 1, "train").items()} == {2: [7, 0, 9]}
        with pytest.raises(FileNotFoundError, match=r"no events\.tsv of subject 1, test"):
            run_checks.read_event_log(tmp_path, 1, "test")

    def test_reads_the_real_tables(self, shared: Path) -> None:
        log = run_checks.read_event_log(shared / "data/things_eeg2/bids_sample", 1, "test")
        assert len(log[1]) == 4080 and (log[1] == 0).sum() == 24
        assert np.unique(np.bincount(log[1])[1:]).tolist() == [20, 21]


def make_run(**changes: object) -> Run:
    """A short test run of 480 events at 1 kHz (the real ones have 4,080)."""
    rng = np.random.default_rng(0)
    n = 480
    onsets = 500 + 200 * np.arange(n) + 700 * (np.arange(n) // 20)
    images = np.concatenate([np.zeros(24), np.tile(np.arange(1, 201), 2), np.arange(1, 57)]).astype(int)
    data = np.zeros((63, int(onsets[-1]) + 1500), dtype=np.float32)
    data[:] = rng.standard_normal(data.shape[1], dtype=np.float32) * np.float32(1e-5)
    spoil = changes.pop("spoil", None)
    if callable(spoil):
        spoil(data)
    names = list(changes.pop("names", RECORDING_ORDER))  # type: ignore[call-overload]
    sfreq = float(changes.pop("sfreq", 1000.0))  # type: ignore[arg-type]
    raw = mne.io.RawArray(data, mne.create_info(names, sfreq, "eeg"), verbose="error")
    run = Run(raw, onsets, rng.permutation(images), "test", 1, 1, "ses-01 test")
    return replace(run, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def good_run() -> Run:
    return make_run()


class TestRuns:
    @pytest.fixture(autouse=True)
    def short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(run_checks.EVENTS, "test", {480: 24})

    def test_good(self, good_run: Run) -> None:
        assert levels(run_checks.check_run(good_run)) == {}

    def test_events_left_out(self, good_run: Run) -> None:
        less = replace(good_run, onsets=good_run.onsets[:-1], images=good_run.images[:-1])
        assert levels(run_checks.check_run(less)) == {"ses-01 test: events": "error"}
        assert levels(run_checks.check_run(less, design=False)) == {}

    def test_numbers_of_triggers(self, good_run: Run) -> None:
        images = np.where(good_run.images == 0, 99_999, good_run.images)
        assert set(levels(run_checks.check_run(replace(good_run, images=images)))) == {"ses-01 test: events", "ses-01 test: image numbers"}

    def test_onsets_of_another_rate_or_out_of_the_recording(self, good_run: Run) -> None:
        for onsets in (good_run.onsets // 4, good_run.onsets + 10**6, good_run.onsets[::-1]):
            assert levels(run_checks.check_run(replace(good_run, onsets=onsets))) == {"ses-01 test: onset spacing": "error"}

    def test_flat_and_missing_channels_units_and_rates(self) -> None:
        assert levels(run_checks.check_run(make_run(spoil=lambda x: x[4].fill(0)))) == {"ses-01 test: flat channels": "error"}
        assert levels(run_checks.check_run(make_run(spoil=lambda x: np.multiply(x, 1e6, out=x)))) == {"ses-01 test: unit": "error"}
        assert levels(run_checks.check_run(make_run(names=["Fz", *RECORDING_ORDER[1:]]))) == {"ses-01 test: channels": "error"}
        onsets = {"ses-01 test: sampling rate": "warning", "ses-01 test: onset spacing": "error"}
        assert levels(run_checks.check_run(make_run(sfreq=500.0))) == onsets


class TestHistory:
    def test_the_true_history_is_in_order_and_a_lost_session_is_found(self, shared: Path) -> None:
        history = np.load(shared / "data/things_eeg2/things_eeg2_events_all.npz")
        mine = history["subject"] == 4
        columns = {name: history[name][mine] for name in ("session", "is_test", "run", "tot_img_number", "is_target")}
        columns["tot_img_number"] = np.where(columns["is_target"] == 1, 0, columns["tot_img_number"])
        shown = []
        for session, is_test, run in sorted(set(zip(columns["session"].tolist(), columns["is_test"].tolist(), columns["run"].tolist()))):
            rows = (columns["session"] == session) & (columns["is_test"] == is_test) & (columns["run"] == run)
            images = columns["tot_img_number"][rows]
            assert run_checks.EVENTS["test" if is_test else "train"][len(images)] == (images == 0).sum()
            shown.append(run_checks.Shown(images, "test" if is_test else "train", session, f"run {run}"))
        assert levels(run_checks.check_session_counts(shown, subject=4)) == {}
        lost = [s for s in shown if s.session != 3 or s.partition == "test"]
        assert levels(run_checks.check_session_counts(lost, subject=4)) == {"subject 4, train": "error"}


class TestValidate:
    def test_simulated_recordings_and_what_is_prepared_from_them(self, tmp_path: Path) -> None:
        """The whole path with the real noise normalisation: raw files are in order, and so are the whitened epochs."""
        schedule = ScheduleSettings(
            n_train_concepts=8, images_per_concept=6, n_test_images=6, train_parts=1, train_blocks=1, test_blocks=1, pauses=0.2
        )
        model = evoked_model(SignalSettings(snr=0.1), subject=1, seed=0)
        write_raw_dicts(tmp_path / "raw", make_schedule(schedule, subject=1, seed=0), model)
        assert validate(tmp_path / "raw", tmp_path / "raw.json", design=False) == 0
        source = open_source(tmp_path / "raw")
        prepare_subject(lambda: source.runs(1), tmp_path / "out", PrepareSettings(incomplete="drop"), source=source.layout, progress=False)
        assert validate(tmp_path / "out", tmp_path / "out.json", design=False) == 0
        for name, checks_run in (("raw", 40), ("out", 26)):
            assert json.loads((tmp_path / f"{name}.json").read_text())["counts"] == {"error": 0, "ok": checks_run, "warning": 0}

    def test_prepared_arrays(self, good: dict[str, Epochs], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        save_epochs(tmp_path / "p", {"train": good["train"]}, source="test")
        assert validate(tmp_path / "p", tmp_path / "a.json", design=False) == 0
        assert validate(tmp_path / "p", tmp_path / "b.json") == 1  # the test partition is missing
        first, again = (json.loads((tmp_path / n).read_text()) for n in ("a.json", "b.json"))
        assert first["counts"]["error"] == 0 and first["counts"]["warning"] == 1
        assert again["counts"]["error"] == 1
        assert "1 errors" in capsys.readouterr().out
        with (tmp_path / "p/sub-01/train.npy").open("rb+") as f:
            f.seek(5000)
            f.write(b"\x00\x00\x00\x42")
        assert validate(tmp_path / "p", tmp_path / "c.json", design=False) == 1

    def test_arrays_with_stated_axes(self, good: dict[str, Epochs], tmp_path: Path) -> None:
        data = good["train"].data
        np.save(tmp_path / "x.npy", data.transpose(3, 1, 0, 2))
        epochs = array_epochs(tmp_path / "x.npy", axes="time,repetition,image,channel", channels=CHANNELS)
        np.testing.assert_array_equal(epochs.data, data)
        for wrong in ("image,channel", "image,channel,time,time", "image,channel,time,colour"):
            with pytest.raises(ValueError, match="do not fit an array"):
                array_epochs(tmp_path / "x.npy", axes=wrong)
        with pytest.raises(ValueError, match="stated were 17"):
            array_epochs(tmp_path / "x.npy", axes="time,repetition,image,channel", channels=17)
        with pytest.raises(FileNotFoundError, match="does not exist"):
            validate(tmp_path / "nothing")
