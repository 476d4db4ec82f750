"""Readers of the three data sets and of prepared files, on small files in each format."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import time
import warnings
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pytest

from decodehub.loaders.ieeg.reader_tools import lip_of_acpc, lip_of_mni
from decodehub.loaders.ieeg.readers import open_recording

h5py = pytest.importorskip("h5py")
ANNEX = "../../.git/annex/objects/aa/bb/SHA256E-s123456789--0123456789abcdef.h5/SHA256E-s123456789--0123456789abcdef.h5\n"


class TestTreebank:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        """Subject 3: lite electrodes (one of them corrupted), one that is not lite, a trigger."""
        from decodehub.loaders.ieeg.readers_treebank import lite_electrodes

        labels = ["DC1", *[f"{e}*#" if i == 0 else e for i, e in enumerate(lite_electrodes()[3][:5])], "Z9"]
        rng = np.random.default_rng(0)
        self.data = rng.standard_normal((len(labels), 5000)).astype(np.float32) * 50
        with h5py.File(tmp_path / "sub_3_trial000.h5", "w") as f:
            for i, row in enumerate(self.data):
                f.create_dataset(f"data/electrode_{i}", data=row, chunks=(1024,))
        self.clean = [label.replace("*", "").replace("#", "") for label in labels]
        (tmp_path / "electrode_labels/sub_3").mkdir(parents=True)
        (tmp_path / "electrode_labels/sub_3/electrode_labels.json").write_text(json.dumps(labels))
        (tmp_path / "corrupted_elec.json").write_text(json.dumps({"sub_3": [self.clean[2]]}))
        (tmp_path / "localization/sub_3").mkdir(parents=True)
        rows = [f"{e},{100 + i},{110 + i},{120 + i},G_x{i},dk" for i, e in enumerate(labels[:-2])]
        (tmp_path / "localization/sub_3/depth-wm.csv").write_text("Electrode,L,I,P,Destrieux,DesikanKilliany\n" + "\n".join(rows) + "\n")
        return tmp_path

    def test_lite_electrodes_in_microvolts(self, root: Path) -> None:
        recording = open_recording(root, "neuroprobev2", "sub_3_trial000")
        kept = [1, 3, 4, 5]  # without the trigger, the corrupted one and the one that Neuroprobe does not use
        assert recording.ch_names == tuple(self.clean[i] for i in kept)
        assert (recording.subject_session, recording.sfreq, recording.line_freq, recording.n_samples) == ("sub3_sess0", 2048.0, 60, 5000)
        assert np.array_equal(recording.read(1000, 3000), self.data[kept, 1000:3000])
        assert recording.lip is not None and recording.lip[0].tolist() == [101, 111, 121]
        assert np.isnan(recording.lip[-1]).all() and recording.regions == ("G_x1", "G_x3", "G_x4", "unknown")

    def test_tier_full_keeps_what_carries_signal(self, root: Path) -> None:
        from decodehub.loaders.ieeg.readers_treebank import open_treebank

        assert open_treebank(root, 3, 0, "full").ch_names == tuple(self.clean[i] for i in (1, 3, 4, 5, 6))

    def test_travels_to_other_processes_without_its_handle(self, root: Path) -> None:
        recording = open_recording(root, "neuroprobev2", "sub_3_trial000")
        first = recording.read(0, 10)
        assert np.array_equal(pickle.loads(pickle.dumps(recording)).read(0, 10), first)  # noqa: S301  (our own object)

    def test_missing_pieces_are_named(self, root: Path) -> None:
        (root / "corrupted_elec.json").unlink()
        with pytest.raises(FileNotFoundError, match="corrupted_elec"):
            open_recording(root, "neuroprobev2", "sub_3_trial000")

    @pytest.mark.parametrize(("content", "message"), [(ANNEX, "git-annex pointer"), ("", "empty"), ("not hdf5 " * 500, "not an HDF5 file")])
    def test_what_is_no_recording_is_named(self, root: Path, content: str, message: str) -> None:
        (root / "sub_3_trial000.h5").write_text(content)
        with pytest.raises(ValueError, match=message):
            open_recording(root, "neuroprobev2", "sub_3_trial000")

    def test_lite_electrode_counts(self) -> None:
        from decodehub.loaders.ieeg.readers_treebank import lite_electrodes

        assert {s: len(lite_electrodes()[s]) for s in (1, 3, 4, 7, 10)} == {1: 120, 3: 109, 4: 120, 7: 119, 10: 120}


class TestBYD:
    ID = "sub-CS41_ses-P41CSR1"
    NAMES = ("LAMY1", "LAMY2", "XSPE1", "RHIP1", "LOFC3")

    def write(self, root: Path, *, conversion: float = 1.0, stamps: np.ndarray | None = None, start: float = 0.25) -> np.ndarray:
        pynwb = pytest.importorskip("pynwb")
        warnings.filterwarnings("ignore", "The linked table", UserWarning)
        rng = np.random.default_rng(1)
        data = rng.standard_normal((40_000, len(self.NAMES))) * 5e-5
        file = pynwb.NWBFile("d", "P41CS_R1", datetime(2020, 1, 1, tzinfo=timezone.utc))
        device = file.create_device("ATLAS")
        group = file.create_electrode_group("g", "macros", "x", device)
        file.add_electrode_column("origchannel_name", "n")
        file.add_electrode(x=0.0, y=0.0, z=0.0, location="micro", group=group, origchannel_name="RAMY9")
        for i, name in enumerate(self.NAMES):
            file.add_electrode(x=10.0 + i, y=20.0, z=30.0, location="x", group=group, origchannel_name=name)
        region = file.create_electrode_table_region(list(range(1, len(self.NAMES) + 1)), "macros")
        clock = {"timestamps": stamps} if stamps is not None else {"starting_time": start, "rate": 1000.0}
        series = pynwb.ecephys.ElectricalSeries(
            name="ElectricalSeries", data=data / conversion, electrodes=region, conversion=conversion, **clock
        )
        module = file.create_processing_module("ecephys", "d")
        module.add(pynwb.ecephys.LFP(electrical_series=series, name="LFP_macro"))
        file.add_trial_column("stim_phase", "p")
        for begin, end, phase in ((30.0, 31.0, "recognition"), (0.0, 12.0, "encoding")):
            file.add_trial(begin, end, stim_phase=phase)
        (root / "sub-CS41").mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings(), pynwb.NWBHDF5IO(str(root / f"sub-CS41/{self.ID}_behavior+ecephys.nwb"), "w") as io:
            warnings.simplefilter("ignore")
            io.write(file)
        return data

    def test_time_base_units_channels_and_coordinates(self, tmp_path: Path) -> None:
        data = self.write(tmp_path)
        recording = open_recording(tmp_path, "kelesbyd2024", self.ID)
        assert recording.ch_names == ("LAMY1", "LAMY2", "RHIP1", "LOFC3")
        assert (recording.subject_session, recording.sfreq, recording.line_freq) == ("sub41_sess1", 1000.0, 60)
        # The LFP begins at stamp .25 s = -9.75 s of the film; kept are 10 s before it (less here) to 10 s after its end at 12 s.
        assert recording.start_s == pytest.approx(-9.75) and recording.n_samples == 31_751
        first, stop = recording.window_bounds(2.0)
        assert first == 11_750 and np.allclose(recording.read(first, stop), data[first:stop, [0, 1, 3, 4]].T * 1e6, rtol=1e-6)
        assert recording.lip is not None and recording.lip[0].tolist() == [118, 80, 108]

    def test_crops_before_the_film(self, tmp_path: Path) -> None:
        data = self.write(tmp_path, start=-3.0)  # 3 s more than the margin
        recording = open_recording(tmp_path, "kelesbyd2024", self.ID)
        assert recording.start_s == pytest.approx(-10.0)
        assert np.allclose(recording.read(0, 5), data[3000:3005, [0, 1, 3, 4]].T * 1e6, rtol=1e-6)

    def test_the_conversion_of_the_file_is_used(self, tmp_path: Path) -> None:
        data = self.write(tmp_path, conversion=2.5e-7)
        recording = open_recording(tmp_path, "kelesbyd2024", self.ID)
        assert np.allclose(recording.read(0, 50), data[:50, [0, 1, 3, 4]].T * 1e6, rtol=1e-5)

    def test_stamps_with_a_gap_are_refused(self, tmp_path: Path) -> None:
        stamps = np.arange(40_000) / 1000
        stamps[20_000:] += 0.1
        self.write(tmp_path, stamps=stamps)
        with pytest.raises(ValueError, match="a gap"):
            open_recording(tmp_path, "kelesbyd2024", self.ID)

    def test_steady_stamps_give_the_rate(self, tmp_path: Path) -> None:
        self.write(tmp_path, stamps=0.25 + np.arange(40_000) / 1000)
        recording = open_recording(tmp_path, "kelesbyd2024", self.ID)
        assert (recording.sfreq, recording.n_samples) == (1000.0, 31_751)

    def test_regions_come_from_a_table_beside_the_data(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        (tmp_path / "regions.csv").write_text(f"recording_id,channel,destrieux\n{self.ID},RHIP1,G_hip\nother,LAMY1,G_no\n")
        assert open_recording(tmp_path, "kelesbyd2024", self.ID).regions == ("unknown", "unknown", "G_hip", "unknown")

    @pytest.mark.parametrize(
        ("gone", "message"),
        [
            ("rate", "starting_time has no attribute rate"),
            ("starting_time", "has neither starting_time with its rate nor timestamps"),
            ("unit", "has no attribute unit"),
            ("origchannel_name", "lacks the columns origchannel_name"),
            ("electrodes", "has no electrodes"),
        ],
    )
    def test_a_file_without_something_needed_says_what(self, gone: str, message: str, tmp_path: Path) -> None:
        self.write(tmp_path)
        with h5py.File(tmp_path / f"sub-CS41/{self.ID}_behavior+ecephys.nwb", "r+") as f:
            series = f["processing/ecephys/LFP_macro/ElectricalSeries"]
            if gone == "rate":
                del series["starting_time"].attrs["rate"]
            elif gone == "unit":
                del series["data"].attrs["unit"]
            elif gone == "origchannel_name":
                del f["general/extracellular_ephys/electrodes/origchannel_name"]
            else:
                del series[gone]
        with pytest.raises(ValueError, match=rf"{self.ID}.*{message}"):
            open_recording(tmp_path, "kelesbyd2024", self.ID)

    def test_a_repaired_file_is_another_source(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        path = tmp_path / f"sub-CS41/{self.ID}_behavior+ecephys.nwb"
        before, stat = open_recording(tmp_path, "kelesbyd2024", self.ID).source(), path.stat()
        assert open_recording(tmp_path, "kelesbyd2024", self.ID).source() == before and json.dumps(before)
        time.sleep(0.02)
        with h5py.File(path, "r+") as f:
            f["processing/ecephys/LFP_macro/ElectricalSeries/data"][15_000:16_000] = 0
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as a tool that keeps times would leave it
        assert open_recording(tmp_path, "kelesbyd2024", self.ID).source() != before

    def test_missing_and_bad_files_are_named(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="DANDI:000623"):
            open_recording(tmp_path, "kelesbyd2024", self.ID)
        with pytest.raises(ValueError, match="an id like"):
            open_recording(tmp_path, "kelesbyd2024", "CS41")
        (tmp_path / "sub-CS41").mkdir()
        with h5py.File(tmp_path / f"sub-CS41/{self.ID}.nwb", "w") as f:
            f.create_group("processing/ecephys")
        with pytest.raises(ValueError, match="no macro-electrode recording"):
            open_recording(tmp_path, "kelesbyd2024", self.ID)


class TestPippi:
    ID = "sub-01_ses-iemu_task-film_acq-clinical_run-1"

    def sidecars(self, root: Path, shared: Path) -> Path:
        source = shared / "data/ieeg/pippi_ds003688/sub-01/ses-iemu/ieeg"
        folder = root / "sub-01/ses-iemu/ieeg"
        shutil.copytree(source, folder)
        return folder

    def write_signals(self, folder: Path, sfreq: int = 2048) -> np.ndarray:
        """A short BrainVision file with all channels of the real channels.tsv; the task is moved to its first seconds."""
        pybv = pytest.importorskip("pybv")
        names = [line.split("\t")[0] for line in (folder / f"{self.ID}_channels.tsv").read_text().splitlines()[1:]]
        data = np.random.default_rng(2).standard_normal((len(names), 4 * sfreq)) * 1e-4
        pybv.write_brainvision(
            data=data, sfreq=sfreq, ch_names=names, fname_base=f"{self.ID}_ieeg", folder_out=str(folder), resolution=0.01, unit="µV"
        )
        events = folder / "sub-01_ses-iemu_task-film_run-1_events.tsv"
        events.write_text("onset\tduration\ttrial_type\tvalue\n0.5001\t0\tstart task\t9\n0.51\t1\tmusic\t2\n3.5\t0\tend task\t9\n")
        self.names = names
        return data

    def test_good_seeg_from_start_to_end_of_the_task(self, tmp_path: Path, shared: Path) -> None:
        data = self.write_signals(self.sidecars(tmp_path, shared))
        recording = open_recording(tmp_path, "berezutskayapippi2022", self.ID)
        assert (len(recording.ch_names), recording.line_freq, recording.subject_session) == (101, 50.0, "sub1_sess1")
        first = 1025  # .5001 s is sample 1024.2
        assert recording.n_samples == 3.5 * 2048 - first and 0 <= recording.start_s < 1 / 2048
        rows = [self.names.index(name) for name in recording.ch_names]
        assert np.allclose(recording.read(10, 60), data[rows, first + 10 : first + 60] * 1e6, atol=0.01)
        assert recording.lip is not None
        assert recording.lip[recording.ch_names.index("AR1")] == pytest.approx(lip_of_acpc([[22.420, 23.640, -31.740]])[0])
        assert np.array_equal(pickle.loads(pickle.dumps(recording)).read(0, 5), recording.read(0, 5))  # noqa: S301

    @pytest.mark.parametrize(
        ("header", "listed", "scale"),
        [("µV", "µV", 1), ("mV", "µV", 1000), ("n/a", "µV", 1), ("n/a", "mV", 1000), ("", "mV", 1000), ("", "n/a", 1), ("", "V", 1e6)],
    )
    def test_the_unit_is_that_of_the_header_or_else_of_the_channels_table(
        self, header: str, listed: str, scale: float, tmp_path: Path, shared: Path
    ) -> None:
        folder = self.sidecars(tmp_path, shared)
        data = self.write_signals(folder)
        self.with_units(folder, header, listed)
        recording = open_recording(tmp_path, "berezutskayapippi2022", self.ID)
        rows = [self.names.index(name) for name in recording.ch_names]
        assert np.allclose(recording.read(0, 50), data[rows, 1025:1075] * 1e6 * scale, atol=0.01 * scale)

    @pytest.mark.parametrize(("header", "listed", "message"), [("n/a", "n/a", "so its values have no scale"), ("", "C", "'C' is none of")])
    def test_values_without_a_unit_are_refused(self, header: str, listed: str, message: str, tmp_path: Path, shared: Path) -> None:
        folder = self.sidecars(tmp_path, shared)
        self.write_signals(folder)
        self.with_units(folder, header, listed)
        with pytest.raises(ValueError, match=message):
            open_recording(tmp_path, "berezutskayapippi2022", self.ID)

    def with_units(self, folder: Path, header: str, listed: str) -> None:
        for path, old, new in ((folder / f"{self.ID}_ieeg.vhdr", ",µV", f",{header}"), (folder / f"{self.ID}_channels.tsv", "µV", listed)):
            text = path.read_text(encoding="utf-8")
            assert old in text
            path.write_text(text.replace(old, new), encoding="utf-8")

    def test_what_bids_allows_is_read(self, tmp_path: Path, shared: Path) -> None:
        """No mains frequency, no status column, electrodes without coordinates in whatever spelling."""
        folder = self.sidecars(tmp_path, shared)
        self.write_signals(folder)
        sidecar = folder / f"{self.ID}_ieeg.json"
        sidecar.write_text(json.dumps(json.loads(sidecar.read_text()) | {"PowerLineFrequency": "n/a"}))
        channels = folder / f"{self.ID}_channels.tsv"
        channels.write_text(channels.read_text(encoding="utf-8").replace("\tstatus\t", "\tremark\t", 1), encoding="utf-8")
        electrodes = folder / "sub-01_ses-iemu_acq-clinical_electrodes.tsv"
        rows = [line.split("\t") for line in electrodes.read_text().splitlines()]
        for row, value in ((rows[1], "N/A"), (rows[2], "")):
            row[1] = value
        electrodes.write_text("\n".join("\t".join(row) for row in rows) + "\n")
        recording = open_recording(tmp_path, "berezutskayapippi2022", self.ID)
        assert recording.line_freq == 50 and len(recording.ch_names) == 103
        assert recording.lip is not None
        assert all(np.isnan(recording.lip[recording.ch_names.index(row[0])]).all() for row in rows[1:3])
        sidecar.write_text(json.dumps(json.loads(sidecar.read_text()) | {"PowerLineFrequency": "fifty"}))
        with pytest.raises(ValueError, match="PowerLineFrequency is 'fifty', expected a number or n/a"):
            open_recording(tmp_path, "berezutskayapippi2022", self.ID)

    def test_a_rate_that_differs_from_the_sidecar_is_refused(self, tmp_path: Path, shared: Path) -> None:
        self.write_signals(self.sidecars(tmp_path, shared), sfreq=512)
        with pytest.raises(ValueError, match=r"512 Hz, .*says 2048"):
            open_recording(tmp_path, "berezutskayapippi2022", self.ID)

    def test_a_pointer_in_place_of_the_signals_is_named(self, tmp_path: Path, shared: Path) -> None:
        folder = self.sidecars(tmp_path, shared)
        with pytest.raises(FileNotFoundError, match="vhdr does not exist"):
            open_recording(tmp_path, "berezutskayapippi2022", self.ID)
        self.write_signals(folder)
        (folder / f"{self.ID}_ieeg.eeg").write_text(ANNEX)
        with pytest.raises(ValueError, match="git-annex pointer"):
            open_recording(tmp_path, "berezutskayapippi2022", self.ID)

    def test_real_sidecars_of_the_five_sessions(self, shared: Path) -> None:
        from decodehub.hub_datasets.imindbench.vocabulary import sessions
        from decodehub.loaders.ieeg.readers_bids import electrode_lip, film_span, good_channels

        root = shared / "data/ieeg/pippi_ds003688"
        for session in (s for s in sessions() if s.dataset == "berezutskayapippi2022"):
            sub = session.recording_id.split("_")[0]
            folder = root / f"{sub}/ses-iemu/ieeg"
            names = good_channels(folder / f"{session.recording_id}_channels.tsv")
            assert len(names) == session.channels
            begin, end = film_span(next(folder.glob("*task-film*events.tsv")))
            assert 388 < end - begin < 395
            lip = electrode_lip(folder, f"{sub}_ses-iemu_acq-clinical", names)
            inside = lip[~np.isnan(lip).any(axis=1)]
            assert len(inside) > 0.9 * len(names) and (inside > 20).all() and (inside < 240).all()

    def test_events_and_channels_that_do_not_fit(self, tmp_path: Path) -> None:
        from decodehub.loaders.ieeg.readers_bids import electrode_lip, film_span, good_channels

        (tmp_path / "e.tsv").write_text("onset\ttrial_type\n1\tstart task\n")
        with pytest.raises(ValueError, match="expected one 'start task' and a later 'end task'"):
            film_span(tmp_path / "e.tsv")
        (tmp_path / "c.tsv").write_text("name\ttype\tstatus\nA1\tSEEG\tbad\nE\tECG\tgood\n")
        with pytest.raises(ValueError, match="no good SEEG channel"):
            good_channels(tmp_path / "c.tsv")
        (tmp_path / "x_coordsystem.json").write_text('{"iEEGCoordinateSystem": "MNI152", "iEEGCoordinateUnits": "mm"}')
        with pytest.raises(ValueError, match="mm of MNI152"):
            electrode_lip(tmp_path, "x", ("A1",))


class TestTemporaldata:
    def write(self, root: Path, recording_id: str, **attributes: object) -> np.ndarray:
        temporaldata = pytest.importorskip("temporaldata")
        data = np.random.default_rng(3).standard_normal((5000, 3)).astype(np.float32)
        prepared = temporaldata.Data(
            seeg_data=temporaldata.RegularTimeSeries(sampling_rate=1000.0, data=data, domain_start=-1.0),
            channels=temporaldata.ArrayDict(
                name=np.array(["LAMY1", "LAMY2", "LAMY3"]),
                included=np.array([True, False, True]),
                destrieux=np.array(["G_a", "G_b", ""]),
                x=np.array([1.0, 2, 3]),
                y=np.zeros(3),
                z=np.zeros(3),
            ),
            domain=temporaldata.Interval(-1.0, 4.0),
        )
        (root / "processed").mkdir(parents=True, exist_ok=True)
        with h5py.File(root / f"processed/{recording_id}.h5", "w") as f:
            prepared.to_hdf5(f)
            f["seeg_data"].attrs.update(attributes)
            for fold in range(2):
                for part, start in (("train", 0), ("val", 10), ("test", 20)):
                    group = f.create_group(f"splits/full$binary$within_session$onset$fold{fold}${part}")
                    group["start"], group["label"] = np.arange(start, start + 4) + 0.5 * fold, np.array([0, 1, 0, 1])
                    group["end"] = group["start"][:] + 1
        return data

    def test_included_channels_in_microvolts(self, tmp_path: Path) -> None:
        data = self.write(tmp_path, TestBYD.ID, unit="V", scale_to_uV=1e6)
        recording = open_recording(tmp_path, "kelesbyd2024", TestBYD.ID)
        assert recording.ch_names == ("LAMY1", "LAMY3") and recording.regions == ("G_a", "unknown") and recording.start_s == -1.0
        assert np.allclose(recording.read(7, 20), data[7:20, [0, 2]].T * 1e6)
        assert recording.window_bounds(0.5) == (1500, 2500)
        assert recording.lip is not None and recording.lip.tolist() == [[127, 110, 128], [125, 110, 128]]

    def test_values_without_a_scale_are_refused(self, tmp_path: Path) -> None:
        self.write(tmp_path, TestBYD.ID)
        with pytest.raises(ValueError, match="have no scale"):
            open_recording(tmp_path, "kelesbyd2024", TestBYD.ID)

    def test_published_splits_are_read_as_they_are(self, tmp_path: Path) -> None:
        from decodehub.loaders.ieeg.readers_temporaldata import published_folds

        self.write(tmp_path, TestBYD.ID, unit="uV")
        path = tmp_path / f"processed/{TestBYD.ID}.h5"
        table, folds = published_folds(path, "kelesbyd2024", "onset")
        assert len(table) == 24 and [f.status for f in folds] == ["ok", "ok"]
        assert table.start_s[folds[1].test].tolist() == [20.5, 21.5, 22.5, 23.5] and table.label[folds[1].test].tolist() == [0, 1, 0, 1]
        with pytest.raises(ValueError, match="has no splits"):
            published_folds(path, "kelesbyd2024", "speech")


def test_coordinate_maps_are_those_of_the_benchmark() -> None:
    assert lip_of_mni([[10, 20, 30]]).tolist() == [[118, 80, 108]]
    assert lip_of_acpc([[0, 0, 0]]).tolist() == [[127.5748, 112.7481, 130.1209]]
    assert np.isnan(lip_of_acpc([[np.nan, 0, 0]])[0, 0])


def test_an_unknown_data_set_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no reader for the data set 'x'"):
        open_recording(tmp_path, "x", "y")
