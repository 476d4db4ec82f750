"""Files that would run code are refused without running it; honest files of every protocol read back as they were."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from decodehub.loaders.restricted_pickle import MAPPED_BYTES, RefusedError, load_arrays, load_torch


class Call:
    """Pickles to a call."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


def _content() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "raw_eeg_data": rng.standard_normal((64, MAPPED_BYTES // 64 // 8 + 1)),
        "fortran": np.asfortranarray(rng.standard_normal((600, 500))).astype(">f4", order="K"),
        "half": rng.standard_normal(5).astype(np.float16),
        "ch_names": ["Fp1", "stim"],
        "words": np.array(["a", "bcd"]),
        "empty": np.zeros((0, 3)),
        "objects": np.array([[{"k": np.arange(3)}, None], ["s", [1, 2]]], dtype=object),
        "fortran_objects": np.asfortranarray(np.array([["a", 1], [None, 2.5]], dtype=object)),
        "sfreq": 1000,
        "highpass": 0.01,
        "scalar": np.float32(3),
        "flag": np.bool_(True),
        "word": np.str_("ab"),
        "tuple": (1, "x", None, True, b"", b"raw"),
        "ordered": OrderedDict(a=1, b=np.arange(2)),
    }


def _equal(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert type(found) is dict
        assert list(found) == list(expected)
        for key in expected:
            _equal(found[key], expected[key])
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        if expected.dtype.hasobject:
            for a, b in zip(found.ravel(), expected.ravel()):
                _equal(a, b)
        else:
            assert_array_equal(found, expected)
    else:
        assert found == expected
        assert type(found) is type(expected)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_pickles_of_every_protocol(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(pickle.dumps(_content(), protocol=protocol))
    found = load_arrays(path)
    _equal(found, _content())
    if protocol >= 3:
        assert isinstance(found["raw_eeg_data"], np.memmap)


def test_pickled_npy_and_plain_npy(tmp_path: Path) -> None:
    np.save(tmp_path / "dict.npy", _content(), allow_pickle=True)  # type: ignore[arg-type]
    _equal(load_arrays(tmp_path / "dict.npy"), _content())
    plain = np.arange(12.0).reshape(3, 4)
    np.save(tmp_path / "plain.npy", plain)
    _equal(np.asarray(load_arrays(tmp_path / "plain.npy")), plain)


def test_python_2_strings(tmp_path: Path) -> None:
    raw = np.arange(4.0).tobytes()
    program = (
        b"\x80\x02}U\x01xcnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x04\x85cnumpy\ndtype\nU\x02f8K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U"
        + bytes([len(raw)])
        + raw
        + b"tbs."
    )
    (tmp_path / "py2.pkl").write_bytes(program)
    _equal(load_arrays(tmp_path / "py2.pkl"), {"x": np.arange(4.0)})


def test_shared_parts_stay_shared_and_large_files_stay_on_disk(tmp_path: Path) -> None:
    array = np.zeros(MAPPED_BYTES)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"a": array, "b": array}))
    found = load_arrays(tmp_path / "a.pkl")
    assert found["a"] is found["b"]
    assert not found["a"].flags.writeable


# ------------------------------------------------------------------------------------------------------------------------------- malice


def _programs(marker: Path) -> dict[str, Any]:
    command = f"touch {marker}"
    return {
        "os.system": Call(os.system, command),
        "eval": {"a": Call(eval, f"open({str(marker)!r}, 'w')")},
        "exec in a list": [1, [Call(exec, f"open({str(marker)!r}, 'w')")]],
        "subprocess": {"ch_names": Call(subprocess.getoutput, command)},
        "in an object array": {"a": np.array([None, Call(os.system, command)], dtype=object)},
        "in an array in an array": np.array([np.array([Call(os.system, command)], dtype=object), 1], dtype=object),
        "as a key": {Call(os.system, command): 1},
        "a path": {"a": marker},
        "getattr": Call(getattr, "x", "format"),
        "numpy.load": Call(np.load, str(marker)),
        "numpy.fromfile": Call(np.fromfile, str(marker)),
        "huge bytes": Call(bytes, 10**12),
        "array by its class": Call(np.ndarray, (10**12,)),
        "set": {1, 2},
    }


@pytest.mark.parametrize("name", list(_programs(Path("x"))))
@pytest.mark.parametrize("npy", [True, False])
def test_code_is_refused_and_not_run(tmp_path: Path, name: str, npy: bool) -> None:
    marker = tmp_path / "ran"
    value = _programs(marker)[name]
    path = tmp_path / "evil.npy"
    if npy:
        holder = np.empty((), dtype=object)
        holder[()] = value
        np.save(path, holder, allow_pickle=True)
    else:
        path.write_bytes(pickle.dumps(value))
    with pytest.raises(ValueError, match="refused"):
        load_arrays(path)
    assert not marker.exists()


def test_message_names_the_global_and_the_file(tmp_path: Path) -> None:
    (tmp_path / "evil.npy").write_bytes(pickle.dumps(Call(os.system, "true")))
    with pytest.raises(RefusedError, match=r"refused: this file would run code\. .*evil\.npy names (posix|nt)\.system"):
        load_arrays(tmp_path / "evil.npy")


_DTYPE = b"cnumpy\ndtype\n(U\x02%sI00\nI01\ntR"
_EMPTY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"


@pytest.mark.parametrize(
    ("name", "program", "message"),
    [
        (
            "array larger than its data",
            _EMPTY + b"(K\x01(J\xff\xff\xff\x7ft" + _DTYPE % b"f8" + b"I00\nU\x04abcdtb.",
            "claims 17,179,869,176",
        ),
        (
            "shape before the data",
            b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(J\xff\xff\xff\x7ftU\x01btR.",
            "claims the shape",
        ),
        ("another class", b"cnumpy.core.multiarray\n_reconstruct\n(cbuiltins\nlist\n(K\x00tU\x01btR.", "another class"),
        ("objects of raw bytes", b"cnumpy.core.numeric\n_frombuffer\n(U\x08AAAAAAAA" + _DTYPE % b"O8" + b"(K\x01tU\x01CtR.", "raw bytes"),
        ("state of raw pointers", _EMPTY + b"(K\x01(K\x01t" + _DTYPE % b"O8" + b"I00\nU\x08AAAAAAAAtb.", "of which 0 are there"),
        ("negative shape", _EMPTY + b"(K\x01(J\xff\xff\xff\xfft" + _DTYPE % b"f8" + b"I00\nU\x00tb.", "an array of shape"),
        ("dtype with fields", _DTYPE % b"V8" + b".", "dtype 'V8'"),
        ("dtype that gets fields", _DTYPE % b"f8" + b"(K\x03U\x01<N(U\x01atN}J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x3ftb.", "fields"),
        ("dtype by a list", b"cnumpy\ndtype\n((lp0\ntR.", "refused: dtype|not a readable"),
        ("scalar object", b"cnumpy.core.multiarray\nscalar\n(" + _DTYPE % b"O8" + b"U\x08AAAAAAAAtR.", "scalar"),
        ("changes a stand-in", b"cnumpy\ndtype\n}U\x08__call__K\x01sb.", "tries to change numpy.dtype"),
        ("inst opcode", b"(U\x04trueios\nsystem\n.", "names os.system"),
        ("obj opcode", b"(cos\nsystem\nU\x04trueo.", "names os.system"),
        ("stack global", b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "names os.system"),
        ("dotted name", b"\x80\x04\x8c\x05numpy\x8c\x0adtype.type\x93.", "names numpy.dtype.type"),
        ("persistent id", b"\x80\x02U\x030:8Q.", "outside itself"),
        ("extension", b"\x80\x02\x82\x01.", "outside itself"),
        ("memo", b"\x80\x02K\x01r\xff\xff\xff\x7f.", "claims a memo of 2,147,483,647"),
        ("text memo", b"}p2147483647\n.", "claims a memo"),
        ("claims bytes", b"\x80\x04\x8e\x00\x00\x00\x00\x00\x01\x00\x00abc.", "claims 1,099,511,627,776 bytes"),
        ("truncated", pickle.dumps({"a": np.arange(1000)})[:-500], "cut short"),
        ("no stop", b"\x80\x04}", "cut short"),
        ("text", b"hello, this is a text and no pickle", "neither a .npy file nor a pickle"),
        ("function as a value", b"\x80\x02}U\x01acnumpy\ndtype\ns.", "holds a _Callable"),
        ("stack underflow", b"\x80\x02R.", "not a readable pickle"),
    ],
)
def test_forged_pickles(tmp_path: Path, name: str, program: bytes, message: str) -> None:
    path = tmp_path / "forged.pkl"
    path.write_bytes(program if program.startswith(b"\x80") or name in ("text", "text memo") else b"\x80\x02" + program)
    with pytest.raises(ValueError, match=message):
        load_arrays(path)


def test_nesting(tmp_path: Path) -> None:
    laughs: list = ["ha"]
    for _ in range(200):
        laughs = [laughs, laughs]
    (tmp_path / "laughs.pkl").write_bytes(pickle.dumps(laughs))
    found = load_arrays(tmp_path / "laughs.pkl")  # shared parts are visited once
    assert found[0] is found[1]
    (tmp_path / "deep.pkl").write_bytes(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".")
    with pytest.raises(ValueError, match="nested too deeply"):
        load_arrays(tmp_path / "deep.pkl")
    own: list = []
    own.append(own)
    (tmp_path / "own.pkl").write_bytes(pickle.dumps(own))
    assert (found := load_arrays(tmp_path / "own.pkl"))[0] is found


def test_forged_dtype_in_a_fresh_process_leaves_numpy_alone(tmp_path: Path) -> None:
    """Raw pointers as objects would end the process; the refusal is an ordinary error."""
    program = b"\x80\x02" + _EMPTY + b"(K\x01(K\x01t" + _DTYPE % b"f8"
    program += b"(K\x03U\x01|NNNJ\x08\x00\x00\x00J\x08\x00\x00\x00K\x3ftbI00\nU\x08AAAAAAAAtb."  # flags of an object dtype
    (tmp_path / "a.pkl").write_bytes(program)
    code = f"from decodehub.loaders.restricted_pickle import load_arrays\nprint(load_arrays({str(tmp_path / 'a.pkl')!r}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("[2261634.5")  # eight times the byte 65 as a number: the forged flags were not used


# ------------------------------------------------------------------------------------------------------------------------ other files


def test_files_that_are_something_else(tmp_path: Path) -> None:
    import torch

    annex = tmp_path / "annex.npy"
    annex.write_text("/annex/objects/MD5E-s8340000--abc.npy\n")
    with pytest.raises(ValueError, match=r"git-annex pointer in place of the data.*datalad get"):
        load_arrays(annex)
    lfs = tmp_path / "lfs.npy"
    lfs.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 8340000\n")
    with pytest.raises(ValueError, match="Git LFS pointer"):
        load_arrays(lfs)
    (tmp_path / "empty.npy").touch()
    with pytest.raises(ValueError, match="is empty"):
        load_arrays(tmp_path / "empty.npy")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_arrays(tmp_path / "none.npy")
    torch.save({"eeg": torch.zeros(300)}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"zip archive.*weights_only=True"):
        load_arrays(tmp_path / "a.pt")
    torch.save({"eeg": torch.zeros(300)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(ValueError, match=r"before torch 1\.6"):
        load_arrays(tmp_path / "old.pt")
    np.save(tmp_path / "plain.npy", np.zeros(1000))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "plain.npy").read_bytes()[:2000])
    with pytest.raises(ValueError, match=r"not a whole \.npy file"):
        load_arrays(tmp_path / "cut.npy")
    record = np.zeros(2, dtype=[("a", "O"), ("b", "f8")])
    np.save(tmp_path / "record.npy", record, allow_pickle=True)
    with pytest.raises(RefusedError, match="records with Python objects"):
        load_arrays(tmp_path / "record.npy")


def test_torch_files(tmp_path: Path) -> None:
    import torch

    content = {"eeg": torch.arange(6.0).reshape(2, 3).half(), "img": np.array([["a", "b"]]), "session": np.arange(3), "ch_names": ["Pz"]}
    torch.save(content, tmp_path / "a.pt")
    found = load_torch(tmp_path / "a.pt")
    assert found["eeg"].dtype == np.float16
    assert_array_equal(found["eeg"], np.arange(6).reshape(2, 3))
    assert_array_equal(found["img"], content["img"])
    assert_array_equal(found["session"], np.arange(3))
    assert found["ch_names"] == ["Pz"]
    torch.save(content, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert_array_equal(load_torch(tmp_path / "old.pt")["session"], np.arange(3))


def test_torch_files_refuse(tmp_path: Path) -> None:
    import torch

    marker = tmp_path / "ran"
    for value in (Call(os.system, f"touch {marker}"), np.array([Call(os.system, f"touch {marker}")], dtype=object)):
        torch.save({"eeg": value}, tmp_path / "evil.pt")
        with pytest.raises(RefusedError, match=r"refused: .*evil\.pt .*posix\.system") as caught:
            load_torch(tmp_path / "evil.pt")
        assert "weights_only" not in str(caught.value)  # torch's own message advises to load the file all the same
    assert not marker.exists()
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ValueError, match="holds a list"):
        load_torch(tmp_path / "list.pt")
    with zipfile.ZipFile(tmp_path / "zip.pt", "w") as archive:
        archive.writestr("x/readme", "no torch file " * 200)
    with pytest.raises(ValueError, match="not a whole file of torch"):
        load_torch(tmp_path / "zip.pt")
