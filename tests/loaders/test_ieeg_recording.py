"""Recordings: reading, units, windows, channels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodehub.loaders.ieeg.recording import ArrayRecording, microvolt_factor, split_electrode, to_array, window_bounds, with_data


def make(**changes: object) -> ArrayRecording:
    data = np.arange(3 * 100, dtype=np.float32).reshape(3, 100)
    fields = {
        "dataset": "neuroprobev2",
        "recording_id": "sub_1_trial001",
        "subject": "sub1",
        "session": "sess1",
        "sfreq": 10.0,
        "ch_names": ("A1", "A2", "B1"),
        "n_samples": 100,
        "line_freq": 60.0,
        "lip": np.arange(9.0).reshape(3, 3),
        "regions": ("x", "y", "z"),
        "data": data,
    }
    return ArrayRecording(**{**fields, **changes})  # type: ignore[arg-type]


def test_reads_what_it_holds_in_microvolts() -> None:
    recording = make()
    piece = recording.read(10, 15)
    assert piece.dtype == np.float32 and np.array_equal(piece, recording.data[:, 10:15])
    assert (recording.unit, recording.subject_session, recording.duration_s) == ("uV", "sub1_sess1", 10.0)


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 5), (6, 5), (90, 101)])
def test_never_pads(start: int, stop: int) -> None:
    with pytest.raises(IndexError, match="samples 0 to 100"):
        make().read(start, stop)


def test_picks_channels_with_their_places() -> None:
    picked = make().pick(["B1", "A1"])
    assert picked.ch_names == ("B1", "A1") and picked.regions == ("z", "x")
    assert np.array_equal(picked.lip, np.arange(9.0).reshape(3, 3)[[2, 0]])
    assert np.array_equal(picked.read(3, 9), make().data[[2, 0], 3:9])
    with pytest.raises(ValueError, match="no channels C1"):
        make().pick(["C1"])


def test_copies_keep_everything_but_the_signal() -> None:
    recording = make(start_s=-2.0)
    assert np.array_equal(to_array(recording).data, recording.data)
    other = with_data(recording, np.zeros((3, 7)))
    assert (other.n_samples, other.start_s, other.regions) == (7, -2.0, recording.regions)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": "neuroprobe"}, "none of"),
        ({"sfreq": 0.0}, "sfreq"),
        ({"line_freq": 55}, "50 or 60"),
        ({"ch_names": ("A1", "A1", "B1")}, "more than once: A1"),
        ({"lip": np.zeros((2, 3))}, r"lip must be \(3, 3\)"),
        ({"regions": ("x",)}, "3 regions"),
        ({"n_samples": 99}, "expected data"),
    ],
)
def test_refuses_what_does_not_fit(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**changes)


class TestWindows:
    @given(st.integers(0, 20_000_000), st.sampled_from([1000.0, 2048.0, 512.0]))
    def test_a_sample_is_its_own_start(self, sample: int, sfreq: float) -> None:
        assert window_bounds(sample / sfreq, sfreq) == (sample, sample + int(sfreq))

    @given(st.floats(0, 1e4), st.sampled_from([1000.0, 2048.0]))
    def test_ceil_is_the_first_sample_not_before(self, start: float, sfreq: float) -> None:
        first, stop = window_bounds(start, sfreq)
        assert first / sfreq >= start - 1e-8 and (first - 1) / sfreq < start + 1e-8
        assert stop - first == sfreq

    def test_float_noise_moves_nothing(self) -> None:
        assert window_bounds(0.1 + 0.2, 10.0, 0.5) == (3, 8)  # 0.1 + 0.2 is a little more than 0.3
        assert window_bounds(30.736, 1000.0)[0] == 30736

    def test_policies_differ_between_samples(self) -> None:
        assert window_bounds(0.25, 10.0)[0] == 3
        assert window_bounds(0.25, 10.0, policy="legacy_floor")[0] == 2
        with pytest.raises(ValueError, match="policy"):
            window_bounds(0.25, 10.0, policy="round")  # type: ignore[arg-type]

    def test_the_clock_of_the_labels_may_begin_later(self) -> None:
        assert make(start_s=-2.0).window_bounds(1.0) == (30, 40)


@pytest.mark.parametrize(("unit", "factor"), [("V", 1e6), ("volts", 1e6), ("µV", 1), ("mV", 1e3)])
def test_units(unit: str, factor: float) -> None:
    assert microvolt_factor(unit, "f") == factor


def test_a_unit_that_is_no_voltage_is_refused() -> None:
    with pytest.raises(ValueError, match=r"file\.h5: unit 'a\.u\.'"):
        microvolt_factor("a.u.", "file.h5")


@pytest.mark.parametrize(("name", "parts"), [("LAH1", ("LAH", 1)), ("T1bIc12", ("T1bIc", 12)), ("Ref", None), ("7", ("", 7))])
def test_stem_and_number(name: str, parts: tuple[str, int] | None) -> None:
    assert split_electrode(name) == parts
