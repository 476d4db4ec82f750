"""Features of iEEG windows: Multi-STFT and Waveform against the literal way, on the same windows.

    python benchmarks/imind_features.py               # a minute or two on an idle core
    python benchmarks/imind_features.py --channels 8  # a quick look

The literal way is what the released code words: each window by itself, six ``scipy.signal.lfilter``, Laplacian, three ``torch.stft`` and abs; for
the Waveform track 15 s around each window, six ``lfilter`` and ``sosfiltfilt``. ``scipy.signal.stft`` stands beside it as a third
implementation. (The package ``neuroprobe`` has no spectrogram code to compare with.) Times are CPU seconds of one thread, medians of
repeats taken in turn, so that another job on the machine weighs on both alike.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from scipy.signal import butter, iirnotch, lfilter, resample_poly, sosfiltfilt
from scipy.signal import stft as scipy_stft
from threadpoolctl import threadpool_limits

from decodehub.loaders.ieeg.recording import ArrayRecording
from decodehub.loaders.recipes import NOTCH_60, STFT_BANDS, named_recipe
from decodehub.loaders.session_features import extract
from decodehub.loaders.waveform import apply_montage, filter_signal, laplacian_montage


def make_recording(channels: int, sfreq: int, seconds: float) -> ArrayRecording:
    """Noise with a falling spectrum and 60 Hz mains on electrodes of eight contacts."""
    rng = np.random.default_rng(0)
    n = int(seconds * sfreq)
    data = np.cumsum(rng.standard_normal((channels, n), dtype=np.float32), axis=1)
    data -= np.linspace(0, 1, n, dtype=np.float32) * data[:, -1:]
    data += 5 * np.sin(2 * np.pi * 60 * np.arange(n, dtype=np.float32) / sfreq)
    names = tuple(f"E{i // 8}x{i % 8 + 1}" for i in range(channels))
    return ArrayRecording("neuroprobev2", "noise", "sub1", "sess1", float(sfreq), names, n, 60, simulated=True, data=data)


def literal_neighbours(names: tuple[str, ...]) -> list[list[int]]:
    """Index of the one or two contacts beside each, by name."""
    index = {name: i for i, name in enumerate(names)}
    found = []
    for name in names:
        stem, number = re.fullmatch(r"(.*?)(\d+)", name).groups()  # type: ignore[union-attr]
        found.append([index[f"{stem}{k}"] for k in (int(number) - 1, int(number) + 1) if f"{stem}{k}" in index])
    return found


def notched(x: np.ndarray, sfreq: int) -> np.ndarray:
    """Six notches, one after the other, in float64."""
    x = x.astype(np.float64)
    for frequency in NOTCH_60:
        x = lfilter(*iirnotch(frequency, 30, sfreq), x, axis=-1)
    return x


def laplacian(x: np.ndarray, beside: list[list[int]]) -> np.ndarray:
    """Contact minus the mean of its neighbours, float32."""
    x = x.astype(np.float32)
    return np.stack([x[i] - x[others].mean(axis=0) for i, others in enumerate(beside) if others])


def literal_multi_stft(recording: ArrayRecording, first: np.ndarray) -> np.ndarray:
    """(n, C, frames, bins), window by window with torch."""
    sfreq, beside = int(recording.sfreq), literal_neighbours(recording.ch_names)
    hop, out = int(sfreq / 16), []
    for s in first:
        signal = torch.from_numpy(laplacian(notched(recording.read(s, s + sfreq), sfreq), beside))
        parts = []
        for seconds, low, high in STFT_BANDS:
            nperseg = round(seconds * sfreq)
            spectrum = torch.stft(
                signal, nperseg, hop, window=torch.hann_window(nperseg), center=True, pad_mode="reflect", return_complex=True
            )
            frequencies = torch.fft.rfftfreq(nperseg, 1 / sfreq)
            parts.append(spectrum.abs()[:, (frequencies >= low) & (frequencies <= high)])
        out.append(torch.cat(parts, dim=1).transpose(1, 2).numpy())
    return np.stack(out)


def by_scipy_stft(recording: ArrayRecording, first: np.ndarray) -> np.ndarray:
    """The same magnitudes by `scipy.signal.stft`, all windows at once, after our own filter and Laplacian."""
    sfreq = int(recording.sfreq)
    windows = np.stack([recording.read(s, s + sfreq) for s in first])
    x = apply_montage(laplacian_montage(recording.ch_names), filter_signal(windows, sfreq, notch_hz=NOTCH_60).astype(np.float32))
    parts = []
    for seconds, low, high in STFT_BANDS:
        n = round(seconds * sfreq)
        padded = np.pad(x, ((0, 0), (0, 0), (n // 2, n // 2)), mode="reflect")
        f, _, z = scipy_stft(padded, sfreq, "hann", n, n - int(sfreq / 16), boundary=None, padded=False)
        # scipy divides by the sum of the window.
        parts.append(np.abs(z[..., (f >= low) & (f <= high), :]) * (n / 2))
    return np.concatenate(parts, axis=2).transpose(0, 1, 3, 2)


def literal_waveform(recording: ArrayRecording, first: np.ndarray) -> np.ndarray:
    """(n, C, 500), window by window (windows whose context is inside of the recording)."""
    sfreq, beside, out = int(recording.sfreq), literal_neighbours(recording.ch_names), []
    sos = butter(4, 0.5, "highpass", fs=sfreq, output="sos")
    for s in first:
        x = sosfiltfilt(sos, notched(recording.read(s - 7 * sfreq, s + 8 * sfreq), sfreq), axis=-1)
        out.append(resample_poly(laplacian(x[:, 7 * sfreq : 8 * sfreq], beside), 500, sfreq, axis=-1))
    return np.stack(out)


def in_turn(functions: dict[str, Callable[[], np.ndarray]], repeats: int) -> dict[str, tuple[float, np.ndarray]]:
    """Median CPU seconds and the result of each."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    results = {}
    for _ in range(repeats):
        for name, function in functions.items():
            begin = time.process_time()
            results[name] = function()
            times[name].append(time.process_time() - begin)
    return {name: (statistics.median(times[name]), results[name]) for name in functions}


def report(title: str, found: dict[str, tuple[float, np.ndarray]], rows: int) -> None:
    """Print times, ratios and the largest difference, relative to the largest value of each channel."""
    (base_time, base), *_ = found.values()
    print(title)
    for name, (seconds, values) in found.items():
        axes = tuple(a for a in range(base.ndim) if a != 1)
        difference = (np.abs(values - base) / np.abs(base).max(axis=axes, keepdims=True)).max()
        print(
            f"  {name:24} {seconds:7.2f} s  {seconds / rows * 1e6:7.1f} us a row  {base_time / seconds:5.1f}x  largest difference {difference:.1e}"
        )


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--windows", type=int, default=120)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        for sfreq in (2048, 1000):
            recording = make_recording(arguments.channels, sfreq, 15 + 0.5 * arguments.windows)
            first = (7 * sfreq + np.arange(arguments.windows) * (sfreq // 2)).astype(
                np.int64
            )  # half overlapping, as windows without speech
            rows = arguments.channels * len(first)
            stft, wave = named_recipe("multi-stft"), named_recipe("wav-hpf-robust")
            shape = f"{len(first)} windows x {arguments.channels} channels at {sfreq} Hz, median of {arguments.repeats}"
            functions = {
                "literal (torch)": lambda r=recording, f=first: literal_multi_stft(r, f),
                "scipy.signal.stft": lambda r=recording, f=first: by_scipy_stft(r, f),
                "decodehub": lambda r=recording, f=first, c=stft: extract(c, r, f).values,
            }
            report(f"Multi-STFT, {shape}", in_turn(functions, arguments.repeats), rows)
            functions = {
                "literal": lambda r=recording, f=first: literal_waveform(r, f),
                "decodehub": lambda r=recording, f=first, c=wave: extract(c, r, f).values,
            }
            report(f"Waveform, {shape}", in_turn(functions, arguments.repeats), rows)


if __name__ == "__main__":
    main()
