"""Preprocessing of iEEG windows: against literal recipes in torch and scipy, properties of each stage, recipes and their tracks."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import butter, iirnotch, lfilter, resample_poly, sosfiltfilt

from decodehub.loaders import session_features
from decodehub.loaders.context_filter import context_filter
from decodehub.loaders.ieeg.recording import ArrayRecording
from decodehub.loaders.multi_stft import multi_stft, stft_plan
from decodehub.loaders.recipes import CUSTOM, NOTCH_60, RECIPES, Recipe, Stage, named_recipe, recipe_from
from decodehub.loaders.session_features import distinct_windows, extract, fit_normaliser
from decodehub.loaders.waveform import apply_montage, filter_signal, harmonics, laplacian_montage, resample

NAMES = ("LA1", "LA2", "LA3", "RB5", "RB6", "X9", "GRID", "LA10")  # LA10 and X9 have no neighbour, GRID no number
KEPT = ("LA1", "LA2", "LA3", "RB5", "RB6")
NPERSEG = {2048: (1024, 512, 256, 128), 1000: (500, 250, 125, 62)}


def record(
    sfreq: int, seconds: float = 40.0, *, line_freq: float = 60.0, drift: float = 0.0, seed: int = 0, gains: bool = True
) -> ArrayRecording:
    """Noise with a spectrum like 1/f, an offset and mains; contacts of different gains."""
    rng = np.random.default_rng(seed)
    n = int(seconds * sfreq)
    time = np.arange(n) / sfreq
    data = np.cumsum(rng.standard_normal((len(NAMES), n)), axis=1)
    data -= np.linspace(0, 1, n) * data[:, -1:]
    data += 3 * np.sin(2 * np.pi * line_freq * time) + 20 + drift * np.cumsum(rng.standard_normal((len(NAMES), n)), axis=1) / np.sqrt(n)
    if gains:
        data *= np.geomspace(0.1, 10, len(NAMES))[:, None]
    return ArrayRecording(
        "neuroprobev2", "synthetic", "sub1", "sess1", float(sfreq), NAMES, n, line_freq, simulated=True, data=data.astype(np.float32)
    )


def literal_laplacian(x: np.ndarray) -> np.ndarray:
    out = []
    for i, name in enumerate(NAMES):
        match = re.fullmatch(r"(.*?)(\d+)", name)
        beside = [
            j for j, other in enumerate(NAMES) if match and other in (f"{match[1]}{int(match[2]) - 1}", f"{match[1]}{int(match[2]) + 1}")
        ]
        if beside:
            out.append(x[i] - np.mean([x[j] for j in beside], axis=0))
    return np.stack(out)


def literal_multi_stft(window: np.ndarray, sfreq: int) -> np.ndarray:
    """(C, frames, bins) of one window (channels, samples), as the released code words it: lfilter in float64, then torch in float32."""
    x = window.astype(np.float64)
    for frequency in NOTCH_60:
        if frequency < sfreq / 2:
            x = lfilter(*iirnotch(frequency, 30, sfreq), x, axis=-1)
    signal = torch.from_numpy(literal_laplacian(x.astype(np.float32)))
    *sizes, hop = NPERSEG[sfreq]
    parts = []
    for nperseg, (low, high) in zip(sizes, ((2, 40), (20, 150), (80, 250))):
        spectrum = torch.stft(
            signal, nperseg, hop, window=torch.hann_window(nperseg), center=True, pad_mode="reflect", return_complex=True
        ).abs()
        frequencies = torch.fft.rfftfreq(nperseg, 1 / sfreq)
        parts.append(spectrum[:, (frequencies >= low) & (frequencies <= high)])
    return torch.cat(parts, dim=1).transpose(1, 2).numpy()


def literal_waveform(data: np.ndarray, first: int, sfreq: int) -> np.ndarray:
    """(C, 500): 15 s around the window, reflected at the ends, notches, zero-phase high-pass, crop, Laplacian, 500 Hz."""
    width, n = 15 * sfreq, sfreq
    begin = first - (width - n) // 2
    index = np.arange(begin, begin + width)
    index = np.abs(index)
    index = np.where(index >= data.shape[1], 2 * (data.shape[1] - 1) - index, index)
    x = data[:, index].astype(np.float64)
    for frequency in NOTCH_60:
        x = lfilter(*iirnotch(frequency, 30, sfreq), x, axis=-1)
    x = sosfiltfilt(butter(4, 0.5, "highpass", fs=sfreq, output="sos"), x, axis=-1)
    x = literal_laplacian(x[:, first - begin : first - begin + n].astype(np.float32))
    return resample_poly(x, 500, sfreq, axis=-1)


def features(recipe: Recipe, recording: ArrayRecording, starts: np.ndarray) -> np.ndarray:
    windows = distinct_windows(recording, {"task": starts}, recipe)
    return extract(recipe, recording, windows.first).values[windows.rows["task"]]


class TestAgainstLiteralRecipes:
    @pytest.mark.parametrize("sfreq", [2048, 1000])
    def test_multi_stft(self, sfreq: int) -> None:
        recording = record(sfreq)
        starts = np.array([0.0, 0.31, 7.77, 7.9, 38.9999])
        found = features(named_recipe("multi-stft"), recording, starts)
        first = np.ceil(np.round(starts * sfreq, 6)).astype(int)
        expected = np.stack([literal_multi_stft(recording.data[:, s : s + sfreq], sfreq) for s in first])
        assert found.shape == (5, len(KEPT), 17, 75)
        scale = np.abs(expected).max(axis=(0, 2, 3), keepdims=True)
        assert np.abs((found - expected) / scale).max() < 1e-5

    def test_global_norm(self) -> None:
        recording = record(1000)
        recipe = named_recipe("multi-stft")
        x = features(recipe, recording, np.arange(0.0, 38.0, 0.5))
        before = x.copy()
        rows = np.random.default_rng(0).permutation(len(x))
        train = x[rows[:40]].astype(np.float64)
        normaliser = fit_normaliser(recipe.stages[-1], x, rows[:40])
        mean, sd = train.mean(axis=(0, 2), keepdims=True), train.std(axis=(0, 2), keepdims=True)
        for part in (rows[:40], rows[40:], rows[:0]):
            np.testing.assert_allclose(normaliser.take(x, part), ((x[part] - mean) / (sd + 1e-8)), rtol=1e-5, atol=1e-5)
        assert np.array_equal(x, before)

    @pytest.mark.parametrize("mode", ["sample_channel_time", "sample_channel", None])
    @pytest.mark.parametrize("shape", [(5, 3, 7, 4), (5, 3, 50)])
    def test_each_window_by_itself(self, mode: str | None, shape: tuple[int, ...]) -> None:
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32) * 5 + 2
        normaliser = fit_normaliser(None if mode is None else Stage("normalise", {"mode": mode, "eps": 1e-6}), x, np.arange(2))
        axis = 2 if mode == "sample_channel_time" else tuple(range(2, x.ndim))
        expected = x if mode is None else (x - x.mean(axis, keepdims=True)) / (x.std(axis, keepdims=True) + 1e-6)
        np.testing.assert_allclose(normaliser.take(x, np.array([4, 0])), expected[[4, 0]], rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("sfreq", [2048, 1000])
    def test_waveform(self, sfreq: int) -> None:
        recording = record(sfreq, drift=300)
        starts = np.array([0.0, 3.2, 15.123, 37.5, 38.9])
        found = features(named_recipe("wav-hpf-robust"), recording, starts)
        first = np.ceil(np.round(starts * sfreq, 6)).astype(int)
        expected = np.stack([literal_waveform(recording.data, s, sfreq) for s in first])
        assert found.shape == (5, len(KEPT), 500)
        scale = np.abs(expected).max(axis=(0, 2), keepdims=True)
        assert np.abs((found - expected) / scale).max() < 1e-5

    @pytest.mark.parametrize("order", [2, 3, 4])
    @pytest.mark.parametrize("notches", [NOTCH_60, ()])
    def test_one_pass_over_a_stretch_equals_filtering_every_piece(self, order: int, notches: tuple[float, ...]) -> None:
        x = np.cumsum(np.random.default_rng(0).standard_normal((3, 12_000)), axis=1) + 1e3
        starts, width, before, n = np.array([0, 1, 1500, 1500, 6000, 9000]), 3000, 1000, 1000
        settings = {"notch_hz": notches, "notch_q": 30.0, "highpass_hz": 0.5, "highpass_order": order}
        pieces = np.stack([filter_signal(x[:, s : s + width], 1000, **settings)[:, before : before + n] for s in starts])
        found = context_filter(x, starts, width, before, n, 1000.0, **settings)
        assert np.abs(found - pieces).max() < 1e-8 * np.abs(pieces).max()

    def test_robust_scalar_of_all_and_of_a_reservoir(self) -> None:
        x = np.random.default_rng(0).standard_normal((50, 4, 500)).astype(np.float32) * 7 + 3
        stage = Stage("normalise", {"mode": "global_robust"})
        every = fit_normaliser(stage, x, np.arange(50))
        median = np.median(x)
        assert every.shift == pytest.approx(median) and every.scale == pytest.approx(1.4826 * np.median(np.abs(x - median)))
        some = fit_normaliser(Stage("normalise", {"mode": "global_robust", "reservoir": 10_000}), x, np.arange(50))
        again = fit_normaliser(Stage("normalise", {"mode": "global_robust", "reservoir": 10_000}), x, np.arange(50))
        assert some.shift == again.shift != every.shift and some.scale == pytest.approx(every.scale, rel=0.05)


class TestStages:
    def test_bins_and_frames_of_the_paper(self) -> None:
        for sfreq in (2048, 1000):
            plan = stft_plan(sfreq, sfreq)
            assert (plan.n_frames, len(plan.frequencies), plan.hop) == (17, 75, NPERSEG[sfreq][3])
            assert [len(k[0]) // 2 for k in plan.kernels] == [20, 33, 22]

    @settings(max_examples=20, deadline=None)
    @given(st.integers(0, 2**31), st.floats(0.1, 1e3))
    def test_magnitudes_scale_and_ignore_the_sign(self, seed: int, factor: float) -> None:
        x = np.random.default_rng(seed).standard_normal((2, 1000)).astype(np.float32)
        once = multi_stft(x, 1000)
        np.testing.assert_allclose(multi_stft(x * np.float32(-factor), 1000), once * factor, rtol=2e-4, atol=1e-4 * factor)

    def test_a_sine_peaks_in_its_bin_in_each_band_that_holds_it(self) -> None:
        x = np.sin(2 * np.pi * 96 * np.arange(2048) / 2048)
        found, frequencies = multi_stft(x[None], 2048)[0, 8], stft_plan(2048, 2048.0).frequencies
        for part in (slice(20, 53), slice(53, 75)):
            assert frequencies[part][found[part].argmax()] == 96
        assert found[20:53].max() == pytest.approx(512 / 4, rel=1e-4)  # half the sum of the Hann window

    def test_bands_that_do_not_fit_are_refused(self) -> None:
        with pytest.raises(ValueError, match="Nyquist"):
            stft_plan(250, 250.0)
        with pytest.raises(ValueError, match="cannot be padded"):
            stft_plan(400, 1000.0, ((1.0, 2, 40),))

    def test_notches_are_those_of_scipy_one_after_the_other(self) -> None:
        x = np.random.default_rng(0).standard_normal((3, 500))
        expected = x
        for frequency in (60, 120):
            expected = lfilter(*iirnotch(frequency, 30, 300), expected)
        np.testing.assert_allclose(filter_signal(x, 300, notch_hz=NOTCH_60), expected, atol=1e-12)
        assert harmonics(50) == (50, 100, 150, 200, 250, 300, 350) and harmonics(60) == NOTCH_60

    def test_laplacian_has_no_response_to_what_contacts_share(self) -> None:
        montage = laplacian_montage(NAMES)
        assert tuple(NAMES[i] for i in montage.kept) == KEPT
        x = np.random.default_rng(0).standard_normal((2, len(NAMES), 30)).astype(np.float32)
        np.testing.assert_allclose(apply_montage(montage, x), np.stack([literal_laplacian(w) for w in x]), atol=1e-6)
        np.testing.assert_allclose(apply_montage(montage, x), montage.weights @ x, atol=1e-6)
        assert np.abs(apply_montage(montage, np.full_like(x, 1e6))).max() == 0
        every = apply_montage(laplacian_montage(NAMES, drop_isolated=False), x)
        np.testing.assert_array_equal(every[:, :3], apply_montage(montage, x)[:, :3])
        np.testing.assert_array_equal(every[:, 5:], x[:, 5:])
        with pytest.raises(ValueError, match="has a neighbour"):
            laplacian_montage(["A1", "B1", "C"])

    def test_resample_keeps_a_slow_sine(self) -> None:
        time = np.arange(2048) / 2048
        found = resample(np.sin(2 * np.pi * 5 * time)[None], 2048, 500)[0]
        assert found.shape == (500,)
        np.testing.assert_allclose(found[50:-50], np.sin(2 * np.pi * 5 * np.arange(500) / 500)[50:-50], atol=2e-3)


class TestWindows:
    def test_distinct_windows_are_made_once_and_given_to_every_task(self) -> None:
        recording, recipe = record(1000), named_recipe("multi-stft")
        starts = {"a": np.array([5.0, 1.0, 3.0003]), "b": np.array([3.0, 1.0])}
        windows = distinct_windows(recording, starts, recipe)
        assert windows.first.tolist() == [1000, 3000, 3001, 5000]
        assert windows.rows["a"].tolist() == [3, 0, 2] and windows.rows["b"].tolist() == [1, 0]
        old = Recipe(recipe.stages, slicing="legacy_floor")
        assert distinct_windows(recording, starts, old).first.tolist() == [1000, 3000, 5000]

    def test_a_window_outside_is_named(self) -> None:
        with pytest.raises(ValueError, match=r"synthetic, task b: 1 windows are outside.*row 1 at 39.500 s"):
            distinct_windows(record(1000), {"b": np.array([1.0, 39.5])}, named_recipe("multi-stft"))

    @pytest.mark.parametrize("name", ["multi-stft", "multi-stft-corrected", "wav-hpf-robust"])
    def test_values_do_not_depend_on_how_windows_are_grouped(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        recording, starts = record(1000), np.array([0.2, 0.9, 14.0, 21.5, 33.3])
        together = features(named_recipe(name), recording, starts)
        monkeypatch.setattr(session_features, "CHUNK_BYTES", 1)
        one_by_one = features(named_recipe(name), recording, starts)
        scale = np.abs(together).max()
        assert np.abs(together - one_by_one).max() / scale < 2e-6
        alone = features(named_recipe(name), recording, starts[2:3])
        assert np.abs(alone - one_by_one[2:3]).max() / scale < 2e-6

    def test_large_features_go_to_a_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        recording, recipe = record(1000), named_recipe("multi-stft")
        first = np.array([1000, 2000])
        in_memory = extract(recipe, recording, first, folder=tmp_path)
        assert not isinstance(in_memory.values, np.memmap)
        monkeypatch.setattr(session_features, "RAM_BYTES", 0)
        on_disk = extract(recipe, recording, first, folder=tmp_path)
        assert isinstance(on_disk.values, np.memmap) and not list(tmp_path.iterdir())  # it has no name, so no other job can meet it
        np.testing.assert_array_equal(on_disk.values, in_memory.values)

    @pytest.mark.parametrize("sfreq", [1000.001, 999.999, 2047.999, 2048.02])
    def test_a_clock_that_is_off_by_millionths_gives_the_bins_of_its_rate(self, sfreq: float) -> None:
        nominal = stft_plan(round(sfreq), float(round(sfreq)))
        plan = stft_plan(round(sfreq), sfreq)
        np.testing.assert_array_equal(plan.frequencies, nominal.frequencies)
        assert len(plan.frequencies) == 75 and plan[:3] == nominal[:3]
        assert resample(np.zeros((1, round(sfreq)), dtype=np.float32), sfreq, 500.0).shape[-1] == 500

    def test_a_full_disk_is_said_before_anything_is_made(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(handle: int, offset: int, size: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(session_features, "RAM_BYTES", 0)
        monkeypatch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match=rf"no space to write {tmp_path}.* GB are needed.*name another folder"):
            extract(named_recipe("multi-stft"), record(1000), np.array([1000]), folder=tmp_path)
        assert not list(tmp_path.iterdir())

    def test_a_context_is_reflected_at_the_ends_and_a_short_recording_is_refused(self) -> None:
        recording = record(1000, 8.5)
        assert np.isfinite(features(named_recipe("wav-hpf-robust"), recording, np.array([0.0, 7.5]))).all()
        with pytest.raises(ValueError, match="too short to be reflected"):
            features(named_recipe("wav-hpf-robust"), record(1000, 5.0), np.array([0.0]))


class TestCorrections:
    """What the reference leaves in, and the corrected recipes take out."""

    def test_the_right_line_frequency_removes_50_hz(self) -> None:
        recording = record(2048, line_freq=50.0)
        recording.data[::2] *= 1.5  # mains that differ between contacts survive the Laplacian
        starts = np.arange(5.0, 30.0, 0.5)
        plan = stft_plan(2048, 2048.0)
        bin_50 = np.flatnonzero(plan.frequencies[20:53] == 48)[0] + 20
        power = {
            name: features(named_recipe(name), recording, starts)[..., bin_50].mean() for name in ("multi-stft", "multi-stft-corrected")
        }
        assert power["multi-stft-corrected"] < 0.5 * power["multi-stft"]

    def test_filtering_before_windows_are_cut_leaves_no_transient(self) -> None:
        recording = record(2048, line_freq=60.0)
        recording.data[::2] *= 1.5
        starts = np.arange(5.0, 30.0, 0.5)
        bin_60 = 20 + int(np.flatnonzero(stft_plan(2048, 2048.0).frequencies[20:53] == 60)[0])
        early = {n: features(named_recipe(n), recording, starts)[:, :, :4, bin_60].mean() for n in ("multi-stft", "multi-stft-corrected")}
        assert early["multi-stft-corrected"] < 0.5 * early["multi-stft"]

    def test_the_high_pass_takes_out_drift(self) -> None:
        recording = record(1000, drift=500)
        starts = np.arange(5.0, 30.0, 0.5)
        with_, without = (features(named_recipe(n), recording, starts).mean(axis=-1).std() for n in ("wav-hpf-robust", "wav-nohpf-robust"))
        assert with_ < 0.5 * without


class TestRecipes:
    def test_tracks_follow_from_the_chain(self) -> None:
        assert {name: recipe.track for name, recipe in RECIPES.items()} == {
            "multi-stft": "Multi-STFT",
            "multi-stft-corrected": "Multi-STFT (corrected)",
            "wav-hpf-robust": "Waveform",
            "wav-hpf-robust-corrected": "Waveform (corrected)",
            "multi-stft-zscore": "Custom",
            "multi-stft-unnormalised": "Custom",
            "single-stft": "Custom",
            "wav-hpf-zscore": "Waveform",
            "wav-nohpf-robust": "Custom",
        }
        assert len({recipe.hash for recipe in RECIPES.values()}) == len(RECIPES)

    def variations(self) -> Iterator[Recipe]:
        chain = named_recipe("multi-stft").as_dict()["chain"]
        changes = (
            (0, "notch_hz", [60, 120]), (0, "notch_q", 35), (0, "notch_phase", "zero"), (0, "highpass_hz", 0.5), (1, "drop_isolated", False),
            (2, "hop_s", 0.05), (2, "output", "log_magnitude"), (3, "eps", 1e-6), (3, "mode", "none"), (0, "unheard_of", 1),
        )  # fmt: skip
        for i, setting, value in changes:
            yield recipe_from({"chain": [{**s, **({setting: value} if k == i else {})} for k, s in enumerate(chain)]})
        yield recipe_from({"chain": [*chain, {"stage": "whiten"}]})
        yield recipe_from({"chain": [chain[1], chain[0], *chain[2:]]})
        yield recipe_from({"chain": chain, "window_s": 2.0})

    def test_any_change_makes_it_custom_with_another_hash(self) -> None:
        for recipe in self.variations():
            assert recipe.track == CUSTOM and recipe.hash != named_recipe("multi-stft").hash, recipe

    def test_json_round_trip_and_defaults_filled_in(self) -> None:
        for recipe in RECIPES.values():
            assert recipe_from(recipe.as_dict()) == recipe and recipe_from(recipe.as_dict()).hash == recipe.hash
        short = recipe_from({"chain": [{"stage": "filter"}, {"stage": "laplacian"}, {"stage": "stft"}, {"stage": "normalise"}]})
        assert short.track == "Multi-STFT" and short.hash == named_recipe("multi-stft").hash

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ({}, 'list "chain"'),
            ({"chain": []}, "at least one stage"),
            ({"chain": [{"name": "filter"}]}, r'chain\[0\] must be a mapping with a "stage"'),
            ({"chain": [{"stage": "filter", "notch_q": -1}]}, r"chain\[0\]: stage 'filter': notch_q=-1"),
            ({"chain": [{"stage": "filter"}], "slicing": "round"}, "slicing must be one of"),
            ({"chain": [{"stage": "filter"}], "name": "x"}, r"found also \['name'\]"),
        ],
    )
    def test_malformed_recipes_are_errors(self, value: dict, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            recipe_from(value)

    @pytest.mark.parametrize(
        ("chain", "message"),
        [
            (["whiten"], "cannot run"),
            (["laplacian", "laplacian"], "two Laplacians"),
            (["stft", "laplacian"], "cannot stand at place 1"),
            (["context", "laplacian"], "needs the stages context, filter"),
        ],
    )
    def test_chains_that_cannot_run_are_refused(self, chain: list, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            extract(Recipe(tuple(Stage(name) for name in chain)), record(1000), np.array([0]))

    def test_not_finite_training_windows_are_refused(self) -> None:
        x = np.ones((3, 2, 4, 5), dtype=np.float32)
        x[1, 1, 1, 1] = np.nan
        with pytest.raises(ValueError, match="not finite"):
            fit_normaliser(Stage("normalise"), x, np.arange(3))
