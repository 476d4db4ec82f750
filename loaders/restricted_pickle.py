"""Arrays out of pickled files from outside, without running anything that such a file says.

Many EEG files are a dict of arrays that ``np.save`` or ``pickle.dump`` wrote. A pickle is a program: loading it the usual way runs it.
Here a file is read in two steps. The first walks over the opcodes, checks every stated size against the size of the file and leaves large
payloads where they are. The second executes the rest with an unpickler for which the only callables are the stand-ins below: they rebuild
arrays, dtypes and scalars of plain numbers and strings. numpy's own ``dtype.__setstate__`` and ``_frombuffer`` are never called with values
from the file, because a forged dtype makes numpy follow pointers that the file chooses. Large arrays are memory-mapped, so a file of 8 GB
opens at once and is never read twice.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np

from decodehub.core.files import POINTER_MAX_BYTES, read_data

MAPPED_BYTES = 1 << 20  # payloads from this size on are memory-mapped
_NPY_MAGIC, _ZIP_MAGIC = b"\x93NUMPY", b"PK\x03\x04"
_LEGACY_TORCH = bytes.fromhex("8a0a6cfc9c46f9206aa85019")  # the number at the head of torch files older than 1.6
_COUNTED = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_OPCODES = {opcode.code: opcode for opcode in pickletools.opcodes}
_PAYLOADS = {"BINBYTES", "BINBYTES8", "BYTEARRAY8", "BINSTRING"}
_FOREIGN = {"PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER"}
_SIMPLE_DTYPE = re.compile(r"[<>=|]?(?:[biufcSUO]\d{0,9}|\?)")
_NUMPY = ("numpy", "numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric")


class RefusedError(ValueError):
    """A file holds something else than arrays, numbers, names and containers of them."""


def load_arrays(path: Path) -> Any:
    """What a ``.npy`` file or a pickle holds: an array, or a dict, list or tuple of arrays, numbers, strings.

    Args:
        path: a ``.npy`` file (a plain array, or a pickled object as ``np.save`` writes a dict) or a plain pickle of protocol 0 to 5,
            recognised by their content.

    Returns:
        Arrays are read-only; those of 1 MiB and more are memory maps (perhaps unaligned: copy them before heavy work). A dict saved by
        ``np.save`` comes as the dict, with no need of ``.item()``. OrderedDicts come as dicts.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is empty, cut short, a git-annex or Git LFS pointer, a zip (``torch.save``, ``.npz``), neither ``.npy`` nor
            pickle, claims more data than it has, or (:class:`RefusedError`) would run code.
    """
    path = Path(path)
    if not path.is_file() or path.stat().st_size <= POINTER_MAX_BYTES:
        read_data(path)  # says what is wrong, if anything is
    with path.open("rb") as f:
        head = f.read(64)
        f.seek(0)
        if head.startswith(_ZIP_MAGIC):
            raise ValueError(
                f"{path} is a zip archive, as torch.save and np.savez write; expected .npy or pickle: "
                "read it with torch.load(path, weights_only=True) or np.load(path)"
            )
        if _LEGACY_TORCH in head:
            raise ValueError(f"{path} is a torch file in the format before torch 1.6: read it with torch.load(path, weights_only=True)")
        if head.startswith(_NPY_MAGIC):
            return _load_npy(path, f)
        return _load_pickle(path, f)


def _load_npy(path: Path, f: BinaryIO) -> Any:
    try:
        version = np.lib.format.read_magic(f)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        dtype = readers[version](f)[2] if version in readers else None
        if dtype is None or not dtype.hasobject:
            return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError, SyntaxError, OverflowError, MemoryError) as error:
        raise ValueError(f"{path} is not a whole .npy file ({error}): fetch it again") from None
    if dtype != np.dtype(object):
        raise RefusedError(f"refused: {path} holds records with Python objects ({dtype}); expected an array of objects or numbers")
    return _load_pickle(path, f)


def _load_pickle(path: Path, f: BinaryIO) -> Any:
    program = _condense(path, f)
    try:
        value = _plain(_Unpickler(io.BytesIO(program), path).load(), path, {})
    except RefusedError:
        raise
    except (pickle.UnpicklingError, ValueError, EOFError, AttributeError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"{path} is not a readable pickle of arrays ({type(error).__name__}: {error})") from None
    except (RecursionError, MemoryError) as error:
        raise ValueError(f"{path} is nested too deeply or asks for too much memory ({type(error).__name__})") from None
    return value.item() if isinstance(value, np.ndarray) and value.dtype.hasobject and value.ndim == 0 else value


def load_torch(path: Path) -> dict[str, Any]:
    """The dict that ``torch.save`` wrote, tensors as arrays.

    ``torch.load(weights_only=True, mmap=True)`` reads it. numpy arrays beside the tensors go through the stand-ins of this module and not
    through numpy's own functions, which a forged dtype could misuse.

    Returns:
        Values of the dict; float16 stays float16, bfloat16 becomes float32. Tensors of zip files are memory-mapped.

    Raises:
        FileNotFoundError: no such file. ValueError: empty, a pointer, cut short, not a dict, or (:class:`RefusedError`) would run code.
    """
    import torch

    path = Path(path)
    if not path.is_file() or path.stat().st_size <= POINTER_MAX_BYTES:
        read_data(path)
    with path.open("rb") as f:
        zipped = f.read(4) == _ZIP_MAGIC
    admitted: list[Any] = [(_Callable(f"{m}.{n}", function), f"{m}.{n}") for (m, n), function in STAND_INS.items()]
    admitted += [(kind, f"decodehub.{kind.__name__}") for kind in (_Array, _DType)]
    try:
        with torch.serialization.safe_globals(admitted):
            value = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL ([\w.]+)", str(error))  # not the whole message: it advises to load the file without this guard
        raise RefusedError(
            f"refused: loading this file could run code. {path} holds more than tensors, arrays, numbers and strings"
            f"{f', it names {named.group(1)}' if named else ''}. Ask its author for plain tensors"
        ) from None
    except (RuntimeError, ValueError, EOFError, OSError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise ValueError(f"{path} is not a whole file of torch.save ({type(error).__name__}: {error}): fetch it again") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__}; expected a dict of arrays")
    tensors = {key: (v.float() if v.dtype == torch.bfloat16 else v).numpy() for key, v in value.items() if isinstance(v, torch.Tensor)}
    return _plain({**value, **tensors}, path, {})


# ------------------------------------------------------------------------------------------------------------------------ the first step


def _condense(path: Path, f: BinaryIO) -> bytes:
    """The pickle at the position of `f`, with large payloads replaced by references into the file.

    Raises:
        ValueError: the bytes are no pickle, end too early, or state a size that the file does not have.
    """
    size = path.stat().st_size
    out = io.BytesIO()
    n_opcodes = 0

    def take(n: int) -> bytes:
        if n > size - f.tell():
            raise ValueError(f"{path} is cut short or forged: it claims {n:,} bytes at byte {f.tell():,} of {size:,}. Fetch it again")
        return f.read(n)

    while True:
        code = take(1)
        opcode = _OPCODES.get(code.decode("latin1"))
        if opcode is None or (n_opcodes == 0 and opcode.name not in ("PROTO", "MARK", "EMPTY_DICT", "EMPTY_LIST", "GLOBAL")):
            raise ValueError(f"{path} is neither a .npy file nor a pickle (byte {f.tell() - 1:,} is {code!r})")
        if opcode.name in _FOREIGN:
            raise RefusedError(f"refused: {path} refers to objects outside itself ({opcode.name})")
        n_opcodes += 1
        if opcode.arg is None:
            out.write(code)
        elif opcode.arg.n == pickletools.UP_TO_NEWLINE:
            line = b"".join(f.readline() for _ in range(2 if opcode.name in ("GLOBAL", "INST") else 1))
            if not line.endswith(b"\n"):
                raise ValueError(f"{path} is cut short: it ends within a line of its pickle. Fetch it again")
            _check_memo(path, opcode.name, line, n_opcodes)
            out.write(code + line)
        elif opcode.arg.n >= 0:
            argument = take(opcode.arg.n)
            _check_memo(path, opcode.name, argument, n_opcodes)
            if opcode.name != "FRAME":  # frames would no longer fit their contents, and are optional
                out.write(code + argument)
        else:
            head = take(_COUNTED[opcode.arg.n])
            length = int.from_bytes(head, "little")
            if opcode.name in _PAYLOADS and MAPPED_BYTES <= length <= size - f.tell():
                reference = f"{f.tell()}:{length}".encode()
                out.write(b"X" + len(reference).to_bytes(4, "little") + reference + b"Q")  # BINUNICODE, BINPERSID
                f.seek(length, io.SEEK_CUR)
            else:
                out.write(code + head + take(length))
        if opcode.name == "STOP":
            return out.getvalue()


def _check_memo(path: Path, opcode: str, argument: bytes, n_opcodes: int) -> None:
    """Refuse an opcode that asks for a memo of more entries than opcodes so far can have made."""
    if opcode == "PUT" and not (argument.strip().isdigit() and int(argument) <= n_opcodes):
        raise RefusedError(f"refused: {path} claims a memo of {argument.strip()[:20]!r} entries after {n_opcodes} opcodes")
    if opcode in ("BINPUT", "LONG_BINPUT") and int.from_bytes(argument, "little") > n_opcodes:
        raise RefusedError(f"refused: {path} claims a memo of {int.from_bytes(argument, 'little'):,} entries")


# ----------------------------------------------------------------------------------------------------------------------- the second step


class _Unpickler(pickle.Unpickler):
    """Executes a condensed pickle; the stand-ins of this module are all that it can call."""

    def __init__(self, stream: BinaryIO, path: Path) -> None:
        super().__init__(stream, encoding="latin1")  # Python 2 wrote array data as text
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        if (function := STAND_INS.get((module, name))) is None:
            raise RefusedError(
                f"refused: this file would run code. {self._path} names {module}.{name}; expected only what holds arrays, numbers and "
                "strings. Do not load it by other means; ask its author for plain arrays"
            )
        return _Callable(f"{module}.{name}", function)

    def persistent_load(self, pid: Any) -> _Span:
        offset, length = pid.split(":")  # written by `_condense`, which refuses such opcodes in the file itself
        return _Span(self._path, int(offset), int(length))


class _Span:
    """Bytes that stay in the file."""

    __slots__ = ("length", "offset", "path")

    def __init__(self, path: Path, offset: int, length: int) -> None:
        self.path, self.offset, self.length = path, offset, length

    def __len__(self) -> int:
        return self.length

    def __setstate__(self, state: object) -> NoReturn:
        raise RefusedError("refused: the file changes bytes after reading them")


class _Callable:
    """What a global name of the pickle stands for: can be called, and nothing else."""

    __slots__ = ("_function", "name")

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self._function = name, function

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __setstate__(self, state: object) -> NoReturn:
        raise RefusedError(f"refused: the file tries to change {self.name}")


class _DType:
    """A dtype of plain numbers, strings or objects."""

    __slots__ = ("dtype",)

    def __init__(self, descr: Any, align: Any = False, copy: Any = False) -> None:
        text = descr.decode("ascii") if isinstance(descr, bytes) else descr
        if not isinstance(text, str) or not _SIMPLE_DTYPE.fullmatch(text):
            raise RefusedError(f"refused: dtype {descr!r}; expected plain numbers, strings or objects")
        self.dtype = np.dtype(text)

    def __setstate__(self, state: Any) -> None:
        structure = state[2:5]
        order: Any = state[1]
        order = order.decode("ascii") if isinstance(order, bytes) else order
        if order not in ("<", ">", "=", "|") or any(part is not None for part in structure):
            raise RefusedError("refused: a dtype with fields, sub-arrays or an unknown byte order")
        if order in "<>":
            self.dtype = self.dtype.newbyteorder(order)


class _Array:
    """An array to be; numpy pickles an empty one and then its state."""

    __slots__ = ("items", "value")

    def __init__(self) -> None:
        self.value: np.ndarray = np.empty(0)
        self.items: list | None = None  # of an object array

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        self._fill(shape, dtype, "F" if fortran else "C", data)

    def _fill(self, shape: Any, dtype: Any, order: Any, data: Any) -> None:
        shape = (shape,) if isinstance(shape, int) else shape
        if not isinstance(dtype, _DType) or not isinstance(shape, tuple) or not all(isinstance(n, int) and n >= 0 for n in shape):
            raise RefusedError(f"refused: an array of shape {shape!r} and dtype {dtype!r}")
        kind, count = dtype.dtype, math.prod(shape)
        if kind.hasobject:
            if not isinstance(data, list) or len(data) != count:
                raise RefusedError(
                    f"refused: an array of {count:,} objects of which {len(data) if isinstance(data, list) else 0} are there"
                )
            self.value, self.items = np.empty(shape, dtype=object, order=order), data
            return
        data = data.encode("latin1") if isinstance(data, str) else data
        if not isinstance(data, (bytes, bytearray, _Span)) or len(data) != count * kind.itemsize:
            found = f"{len(data):,} bytes" if hasattr(data, "__len__") else "none"
            raise RefusedError(f"refused: an array of shape {shape} {kind} claims {count * kind.itemsize:,} bytes of data, found {found}")
        if not count or not kind.itemsize:
            self.value = np.zeros(shape if not count else (), dtype=kind)
        elif isinstance(data, _Span):
            self.value = np.memmap(data.path, dtype=kind, mode="r", offset=data.offset, shape=shape, order=order)
        else:
            self.value = np.frombuffer(bytes(data), dtype=kind).reshape(shape, order=order)


def _array_class(*args: Any) -> NoReturn:
    raise RefusedError("refused: the file makes an array in a way that numpy does not use for saving")


def _reconstruct(cls: Any, shape: Any, typecode: Any) -> _Array:
    if not isinstance(cls, _Callable) or cls._function is not _array_class or shape not in ((0,), 0):
        raise RefusedError(f"refused: an array of another class than numpy.ndarray, or that claims the shape {shape!r} before its data")
    return _Array()


def _frombuffer(data: Any, dtype: Any, shape: Any, order: Any, *_: Any) -> _Array:
    array = _Array()
    if order not in ("C", "F") or not isinstance(dtype, _DType) or dtype.dtype.hasobject:
        raise RefusedError("refused: an array of objects made of raw bytes")
    array._fill(shape, dtype, order, data)
    return array


def _scalar(dtype: Any, data: Any = b"") -> Any:
    data = data.encode("latin1") if isinstance(data, str) else data
    if not isinstance(dtype, _DType) or dtype.dtype.hasobject or not isinstance(data, bytes) or len(data) != dtype.dtype.itemsize:
        raise RefusedError("refused: a numpy scalar that is no plain number or string")
    return np.frombuffer(data, dtype=dtype.dtype)[0] if data else dtype.dtype.type()


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise RefusedError("refused: text in another encoding than the one that Python uses for bytes")
    return text.encode("latin1")


def _builtin(kind: Callable[..., Any], *accepted: type) -> Callable[..., Any]:
    """`kind` of nothing or of one value of an accepted type: ``bytes(10**12)`` is not such a call."""

    def make(*args: Any) -> Any:
        if len(args) > 1 or (args and type(args[0]) not in accepted):
            raise RefusedError(f"refused: {getattr(kind, '__name__', kind)} of {[type(arg).__name__ for arg in args]}")
        return kind(*args)

    return make


_numbers = (int, float, bool, str)
_containers = (list, tuple, dict)
_BUILTINS: dict[str, Callable[..., Any]] = {
    "str": _builtin(str, *_numbers),
    "float": _builtin(float, *_numbers),
    "int": _builtin(int, *_numbers),
    "bool": _builtin(bool, *_numbers),
    "bytes": _builtin(bytes, bytes, list),
    "list": _builtin(list, *_containers),
    "tuple": _builtin(tuple, *_containers),
    "dict": _builtin(dict, *_containers),
}
STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    **{(module, "_reconstruct"): _reconstruct for module in _NUMPY},
    **{(module, "scalar"): _scalar for module in _NUMPY},
    **{(module, "_frombuffer"): _frombuffer for module in _NUMPY},
    ("numpy", "ndarray"): _array_class,
    ("numpy", "dtype"): _DType,
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): _builtin(dict, *_containers),
    **{(module, name): function for module in ("builtins", "__builtin__") for name, function in _BUILTINS.items()},
}


def _plain(value: Any, path: Path, done: dict[int, Any]) -> Any:
    """`value` with arrays for their stand-ins, all the way down; other types are refused.

    `done` keeps what was converted, with the original so that its id stays taken: shared parts are visited once.
    """
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, np.generic)):
        return value
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:  # a tensor of `load_torch`
        return value
    if id(value) in done:
        return done[id(value)][1]
    result: Any
    if isinstance(value, _Array):
        result = value.value
        done[id(value)] = (value, result)
        if value.items is not None:
            flat = result.reshape(-1) if result.flags.c_contiguous else np.empty(len(value.items), dtype=object)
            for i, item in enumerate(value.items):  # numpy lists the objects in C order, whatever the order in memory
                flat[i] = _plain(item, path, done)
            result[...] = flat.reshape(result.shape)
    elif isinstance(value, _DType):
        result = value.dtype
    elif type(value) is list:
        done[id(value)] = (value, result := [])
        result.extend(_plain(item, path, done) for item in value)
    elif type(value) is dict:
        done[id(value)] = (value, result := {})
        result.update((_plain(key, path, done), _plain(item, path, done)) for key, item in value.items())
    elif type(value) is tuple:
        result = tuple(_plain(item, path, done) for item in value)
    elif isinstance(value, _Span):
        result = np.memmap(path, dtype=np.uint8, mode="r", offset=value.offset, shape=(len(value),)).tobytes()
    else:
        raise RefusedError(f"refused: {path} holds a {type(value).__name__}; expected arrays, numbers, strings and containers of them")
    done[id(value)] = (value, result)
    return result
