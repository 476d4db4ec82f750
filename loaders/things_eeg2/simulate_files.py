"""**Simulated** THINGS-EEG2 on disk, in each of the layouts in which the real data circulate, at any size.

All that is written says that it is simulated: `dataset_description.json`, `info.json`, a key of each dict. Concepts are called "simulated"
with their number. What is odd about the real files is odd here: byte-order marks, the reference that is a stored channel, triggers of two
digits, `times` of 300 for 250 samples, channels in recording order.
"""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from decodehub.core.files import atomic_path, write_bytes, write_json
from decodehub.core.tensors import reserved_array

from ..simulate_eeg import channel_names, channel_positions
from . import (
    CHANNELS,
    IMAGES_PER_CONCEPT,
    POSTERIOR_17_OSF,
    RECORDING_ORDER,
    SFREQ_RAW,
    TARGET_EVENT,
    Epochs,
    Partition,
    channel_indices,
)
from .simulate import EvokedModel, RunSchedule, record

_BOM = b"\xef\xbb\xbf"
_OSF_NAMES: dict[Partition, str] = {"train": "training", "test": "test"}
NAME = "SIMULATED THINGS-EEG2 (decodehub): no recording of a person"


def image_path(partition: Partition, image: int) -> str:
    """Path as in the image sets: ``train_images/00001_simulated0001/simulated0001_01b.jpg``."""
    concept, within = ((image - 1) // IMAGES_PER_CONCEPT + 1, (image - 1) % IMAGES_PER_CONCEPT + 1) if partition == "train" else (image, 1)
    return f"{partition}_images/{concept:05d}_simulated{concept:04d}/simulated{concept:04d}_{within:02d}b.jpg"


# ------------------------------------------------------------------------------------------------------------------------------ raw dicts


def write_raw_dicts(root: Path, runs: Iterable[RunSchedule], model: EvokedModel, *, design: Mapping[str, Any] | None = None) -> None:
    """``sub-01/ses-01/raw_eeg_{training,test}.npy``, the training parts of a session one after the other.

    `design` is what the files state as the experiment's (`ScheduleSettings.design`), when it is smaller than the real one.
    Memory: twice one session's training recording in float64 (5.4 GB at full size), as pickling copies it.
    """
    groups: dict[tuple[int, Partition], list[RunSchedule]] = {}
    for run in runs:
        groups.setdefault((run.session, run.partition), []).append(run)
    for (session, partition), parts in groups.items():
        data = np.zeros((len(RECORDING_ORDER) + 1, sum(run.n_samples for run in parts)))
        start = 0
        for run in parts:
            data[:-1, start : start + run.n_samples] = record(run, model)
            data[-1, start + run.samples] = np.where(run.images == 0, TARGET_EVENT, run.images)
            start += run.n_samples
        content = {
            "raw_eeg_data": data,
            "ch_names": [*RECORDING_ORDER, "stim"],
            "ch_types": ["eeg"] * len(RECORDING_ORDER) + ["stim"],
            "sfreq": int(SFREQ_RAW),
            "highpass": 0.01,
            "lowpass": 100.0,
            "simulated": True,
            **({"design": dict(design)} if design is not None else {}),
        }
        path = root / f"sub-{model.subject:02d}" / f"ses-{session:02d}" / f"raw_eeg_{_OSF_NAMES[partition]}.npy"
        with atomic_path(path) as part, part.open("wb") as f:
            np.save(f, content, allow_pickle=True)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------------------------------------------- BIDS


def write_bids(
    root: Path,
    runs: Iterable[RunSchedule],
    model: EvokedModel,
    *,
    format: Literal["brainvision", "bdf"] = "brainvision",
    originals: bool = False,
    compress_events: bool = False,
    design: Mapping[str, Any] | None = None,
) -> None:
    """A BIDS tree like NEMAR nm000232, one recording in memory at a time.

    Args:
        root: the data set's folder. runs, model: what is recorded.
        format: of the recordings. BDF has 24 bits, so that a sample is off by up to a 17-millionth of its channel's range.
        originals: put the recordings (BrainVision) under ``sourcedata``, training parts named part, and only the tables in the tree.
        compress_events: write ``events.tsv.gz``.
        design: what ``dataset_description.json`` states as the experiment's (`ScheduleSettings.design`), when it is smaller than the real one.
    """
    _write_root(root, model.subject, design)
    scans: dict[int, list[list[Any]]] = {}
    for run in runs:
        sub, ses = f"sub-{run.subject:02d}", f"ses-{run.session:02d}"
        folder = root / sub / ses / "eeg"
        name = f"{sub}_{ses}_task-{run.partition}" + (f"_run-{run.part:02d}" if run.partition == "train" else "")
        signal = record(run, model)
        if originals:
            original = name.replace("_run-", "_part-")
            write_brainvision(root / "sourcedata" / sub / ses / "eeg" / f"{original}_eeg.vhdr", signal, run)
        elif format == "bdf":
            write_bdf(folder / f"{name}_eeg.bdf", signal)
        else:
            write_brainvision(folder / f"{name}_eeg.vhdr", signal, run)
        events = _table(_event_rows(run))
        if compress_events:
            write_bytes(folder / f"{name}_events.tsv.gz", gzip.compress(events, mtime=0))
        else:
            write_bytes(folder / f"{name}_events.tsv", events)
        _write_sidecars(folder / name, run)
        scans.setdefault(run.session, []).append([f"eeg/{name}_eeg.{'bdf' if format == 'bdf' else 'vhdr'}", "n/a"])
    for session, rows in scans.items():
        _write_session(root, model.subject, session, rows)


def _write_root(root: Path, subject: int, design: Mapping[str, Any] | None) -> None:
    generator = {"Name": "decodehub simulator", **({"Design": dict(design)} if design is not None else {})}
    about = {"Name": NAME, "BIDSVersion": "1.9.0", "DatasetType": "raw", "License": "CC0", "GeneratedBy": [generator]}
    write_json(root / "dataset_description.json", about)
    subjects = {int(p.name[4:]) for p in root.glob("sub-*")} | {subject}
    rows = [["participant_id", "age", "sex"], *([f"sub-{number:02d}", "n/a", "n/a"] for number in sorted(subjects))]
    write_bytes(root / "participants.tsv", _table(rows))


def _write_sidecars(stem: Path, run: RunSchedule) -> None:
    """``STEM_channels.tsv`` and ``STEM_eeg.json`` of a recording."""
    columns = "name type units low_cutoff high_cutoff description sampling_frequency status status_description".split()
    rows = [[ch, "EEG", "V", 0.09999996424359608, 100.0, "ElectroEncephaloGram", SFREQ_RAW, "good", "n/a"] for ch in RECORDING_ORDER]
    write_bytes(stem.with_name(f"{stem.name}_channels.tsv"), _BOM + _table([columns, *rows]))
    about = {
        "TaskName": run.partition,
        "TaskDescription": NAME,
        "SamplingFrequency": SFREQ_RAW,
        "PowerLineFrequency": 50,
        "EEGReference": "FCz (online); offline re-referenced as needed",  # as in the release, although FCz is a stored channel
        "EEGGround": "AFz",
        "EEGChannelCount": len(RECORDING_ORDER),
        "RecordingType": "continuous",
        "RecordingDuration": run.n_samples / SFREQ_RAW,
        "SoftwareFilters": "n/a",
    }
    write_json(stem.with_name(f"{stem.name}_eeg.json"), about)


def _write_session(root: Path, subject: int, session: int, scans: list[list[Any]]) -> None:
    """What a session states of all its recordings: electrodes, their coordinate system, the list of files."""
    stem = root / f"sub-{subject:02d}" / f"ses-{session:02d}"
    prefix = f"sub-{subject:02d}_ses-{session:02d}"
    position = dict(zip(channel_names(), channel_positions().tolist()))
    electrodes = [["name", "x", "y", "z", "impedance"], *([ch, *position[ch], "n/a"] for ch in RECORDING_ORDER)]
    write_bytes(stem / "eeg" / f"{prefix}_space-CapTrak_electrodes.tsv", _BOM + _table(electrodes))
    write_json(stem / "eeg" / f"{prefix}_space-CapTrak_coordsystem.json", {"EEGCoordinateSystem": "CapTrak", "EEGCoordinateUnits": "m"})
    write_bytes(stem / f"{prefix}_scans.tsv", _BOM + _table([["filename", "acq_time"], *scans]))


def _table(rows: Iterable[Iterable[Any]]) -> bytes:
    return "".join("\t".join(map(str, row)) + "\n" for row in rows).encode()


def trigger(partition: Partition, image: int) -> int:
    """The byte that the recording gets: the test image's number, the first two digits of the training image's, 255 for a catch trial."""
    return 255 if image == 0 else image if partition == "test" else int(str(image)[:2])


def _event_rows(run: RunSchedule) -> list[list[Any]]:
    rows: list[list[Any]] = [
        "onset duration sample value trial_type tot_img_number img_category category_name block sequence img_in_sequence soa".split()
    ]
    soa = np.diff(run.samples, prepend=run.samples[:1]) / SFREQ_RAW
    for i, (sample, image) in enumerate(zip(run.samples.tolist(), run.images.tolist())):
        concept = (image - 1) // IMAGES_PER_CONCEPT + 1 if run.partition == "train" else image
        what = ["image", image, concept, f"{concept:05d}_simulated{concept:04d}"] if image else ["target", "n/a", "n/a", "n/a"]
        place = [int(run.block[i]), int(run.sequence[i]), int(run.position[i])]
        rows.append([sample / SFREQ_RAW, 0.1, sample, trigger(run.partition, image), *what, *place, soa[i] if place[2] > 1 else "n/a"])
    return rows


def write_brainvision(path: Path, signal: np.ndarray, run: RunSchedule) -> None:
    """A BrainVision triple: float32, multiplexed, in microvolts.

    Args:
        path: of the ``.vhdr``. signal: (63, n) volts in recording order. run: for the markers.
    """
    eeg, marks = path.with_suffix(".eeg"), path.with_suffix(".vmrk")
    with atomic_path(eeg) as part, part.open("wb") as f:
        for start in range(0, signal.shape[1], 1 << 16):
            f.write((signal[:, start : start + (1 << 16)].T * np.float32(1e6)).astype("<f4").tobytes())
    markers = [
        f"Mk{i + 2}=Stimulus,S{trigger(run.partition, image):3d},{sample + 1},1,0"
        for i, (sample, image) in enumerate(zip(run.samples.tolist(), run.images.tolist()))
    ]
    head = ["[Common Infos]", "Codepage=UTF-8", f"DataFile={eeg.name}"]
    text = [
        "Brain Vision Data Exchange Marker File, Version 1.0",
        "; simulated",
        *head,
        "",
        "[Marker Infos]",
        "Mk1=New Segment,,1,1,0",
        *markers,
        "",
    ]
    write_bytes(marks, "\n".join(text).encode())
    text = [
        "Brain Vision Data Exchange Header File Version 1.0",
        "; simulated",
        *head,
        f"MarkerFile={marks.name}",
        "DataFormat=BINARY",
        "DataOrientation=MULTIPLEXED",
        f"NumberOfChannels={len(signal)}",
        f"SamplingInterval={round(1e6 / SFREQ_RAW)}",
        "[Binary Infos]",
        "BinaryFormat=IEEE_FLOAT_32",
        "[Channel Infos]",
        *(f"Ch{i + 1}={name},,1,µV" for i, name in enumerate(RECORDING_ORDER)),
        "",
    ]
    write_bytes(path, "\n".join(text).encode())


def write_bdf(path: Path, signal: np.ndarray, *, unit: str = "uV") -> None:
    """A BDF file: 24 bits, records of one second, the last filled up with zeros.

    Args:
        path: of the ``.bdf``. signal: (63, n) volts in recording order.
        unit: written in the header, "" to leave it unstated; the values are microvolts for "uV", else volts.
    """
    n_channels, rate = len(signal), int(SFREQ_RAW)
    n_records = -(-signal.shape[1] // rate)
    # The header has eight characters for the range; the range as written is what the samples are scaled by.
    most = [f"{np.abs(row).max() * (1e6 if unit == 'uV' else 1) * 1.001 + 1e-9:.7f}"[:8] for row in signal]
    if unit != "uV":
        most = [f"{float(np.abs(row).max()) * 1.1 + 1e-9:.1E}".replace("E-0", "E-") for row in signal]
    top = 2**23 - 1
    fields = [
        (16, RECORDING_ORDER[:n_channels]),
        (80, ["simulated"] * n_channels),
        (8, [unit] * n_channels),
        (8, [f"-{m}"[:8] for m in most]),
        (8, most),
        (8, [str(-top)] * n_channels),
        (8, [str(top)] * n_channels),
        (80, [""] * n_channels),
        (8, [str(rate)] * n_channels),
        (32, [""] * n_channels),
    ]
    first = b"\xffBIOSEMI" + "simulated".ljust(80).encode() * 2 + b"01.01.2101.00.00" + str(256 * (n_channels + 1)).ljust(8).encode()
    first += "24BIT".ljust(44).encode() + str(n_records).ljust(8).encode() + b"1".ljust(8) + str(n_channels).ljust(4).encode()
    low, high = (np.array([float(text) for text in values])[:, None] for values in (fields[3][1], fields[4][1]))
    with atomic_path(path) as part, part.open("wb") as f:
        f.write(first + b"".join(text.ljust(width).encode() for width, texts in fields for text in texts))
        for start in range(0, n_records * rate, rate):
            block = np.zeros((n_channels, rate))
            values = signal[:, start : start + rate]
            block[:, : values.shape[1]] = values * (1e6 if unit == "uV" else 1.0)
            digital = np.round((block - low) / (high - low) * 2 * top - top).astype("<i4")
            if np.abs(digital).max() > top:
                raise ValueError(f"{path}: the header cannot state the range of the signal ({np.abs(signal).max():g} V)")
            f.write(digital[..., None].view(np.uint8)[..., :3].tobytes())


# ------------------------------------------------------------------------------------------------------------------------- epochs layouts


def _numbered(epochs: Epochs) -> np.ndarray:
    if not np.array_equal(epochs.images, np.arange(1, len(epochs.data) + 1)):
        raise ValueError(
            f"this layout names no images: it needs the images 1..n of {epochs.partition}, found {epochs.images[:5].tolist()}, ..."
        )
    return epochs.data


def write_preprocessed_dicts(root: Path, epochs: Mapping[Partition, Epochs], *, dtype: Any = np.float64) -> None:
    """``Preprocessed_data_250Hz/sub-01/preprocessed_eeg_{training,test}.npy`` as NICE, ATM and MB2C write it: a pickle without numpy's header."""
    for partition, e in epochs.items():
        times = np.arange(300) / e.sfreq - 0.2  # of the epoch before it was cut to 0..1 s
        content = {"preprocessed_eeg_data": _numbered(e).astype(dtype), "ch_names": list(e.ch_names), "times": times, "simulated": True}
        path = root / "Preprocessed_data_250Hz" / f"sub-{e.subject:02d}" / f"preprocessed_eeg_{_OSF_NAMES[partition]}.npy"
        with atomic_path(path) as part, part.open("wb") as f:
            pickle.dump(content, f, protocol=4)


def write_osf_preprocessed(root: Path, epochs: Mapping[Partition, Epochs]) -> None:
    """``sub-01/preprocessed_eeg_{training,test}.npy`` as the data's authors write it: 17 channels in recording order, 100 Hz, -0.2 to 0.8 s."""
    times = np.round(np.arange(100) / 100 - 0.2, 2)
    for partition, e in epochs.items():
        chosen = _numbered(e)[:, :, channel_indices(e.ch_names, POSTERIOR_17_OSF)]
        data = np.zeros((*chosen.shape[:3], len(times)))
        grid = times[20:] * e.sfreq  # samples of the 250 Hz grid, every second one between two of them
        low, share = np.floor(grid + 1e-9).astype(int), np.round(grid % 1, 6) % 1
        data[..., 20:] = chosen[..., low] * (1 - share) + chosen[..., np.minimum(low + 1, chosen.shape[-1] - 1)] * share
        content = {"preprocessed_eeg_data": data, "ch_names": list(POSTERIOR_17_OSF), "times": times, "simulated": True}
        path = root / f"sub-{e.subject:02d}" / f"preprocessed_eeg_{_OSF_NAMES[partition]}.npy"
        with atomic_path(path) as part, part.open("wb") as f:
            np.save(f, content, allow_pickle=True)  # type: ignore[arg-type]


def write_torch_files(root: Path, epochs: Mapping[Partition, Epochs], *, order: np.ndarray | None = None) -> None:
    """``Preprocessed_data_250Hz_whiten/sub-01/{train,test}.pt`` as UBP, ATS and HyFI write it: float16.

    Args:
        root: folder. epochs: by partition. order: rows of the training file, to write them in another order than the official one.
    """
    import torch

    for partition, e in epochs.items():
        rows = np.arange(len(e.data)) if order is None or partition == "test" else order
        shape = (len(rows), e.data.shape[1])
        paths = np.array([image_path(partition, int(image)) for image in e.images[rows]])
        concepts = (e.images[rows] - 1) // IMAGES_PER_CONCEPT if partition == "train" else e.images[rows] - 1
        content = {
            "eeg": torch.from_numpy(np.ascontiguousarray(e.data[rows], dtype=np.float16)),
            "label": torch.from_numpy(np.broadcast_to(concepts[:, None], shape).copy()),
            "img": np.broadcast_to(paths[:, None], shape).tolist(),
            "text": [f"This picture is {path.split('/')[1][6:]}" for path in paths],
            "session": torch.from_numpy(np.asarray(e.sessions if e.sessions is not None else np.zeros(shape), dtype=np.int64)[rows]),
            "ch_names": list(e.ch_names),
            "times": torch.from_numpy(np.asarray(e.times)),
            "simulated": True,
        }
        with atomic_path(root / "Preprocessed_data_250Hz_whiten" / f"sub-{e.subject:02d}" / f"{partition}.pt") as part:
            torch.save(content, part)


def write_plain_arrays(root: Path, epochs: Mapping[Partition, Epochs]) -> None:
    """``sub-01/{train,test}.npy`` and ``info.json`` as NeuroBridge writes it: (concepts, images of a concept, repetitions, channels, times)."""
    info: dict[str, Any] = {"ch_names": list(CHANNELS), "simulated": True}
    folder = root
    for partition, e in epochs.items():
        within = IMAGES_PER_CONCEPT if partition == "train" else 1
        folder = root / f"sub-{e.subject:02d}"
        data = _numbered(e)
        with reserved_array(folder / f"{partition}.npy", (len(data) // within, within, *data.shape[1:])) as out:
            out[...] = data.reshape(out.shape)
        info |= {"ch_names": list(e.ch_names), "sfreq": e.sfreq, "times": [float(t) for t in e.times]}
    write_bytes(folder / "info.json", json.dumps(info).encode())
