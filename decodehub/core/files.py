"""Files that can be trusted: atomic writes, canonical JSON, content hashes, paths that stay in their folder."""

from __future__ import annotations

import csv
import errno
import fcntl
import hashlib
import importlib.util
import io
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

POINTER_MAX_BYTES = 1024
_LFS_HEAD = b"version https://git-lfs.github.com/spec/"


def home() -> Path:
    """Folder for what decodehub makes or caches: ``$DECODEHUB_HOME``, else ``~/.cache/decodehub``."""
    try:
        return Path(os.environ.get("DECODEHUB_HOME") or Path.home() / ".cache" / "decodehub").expanduser().absolute()
    except RuntimeError:  # neither HOME nor an entry for this user
        raise RuntimeError("there is no home folder to keep data and caches in: set DECODEHUB_HOME to a folder") from None


def package_folder(name: str) -> Path:
    """The folder of an installed package, which is not imported.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"package {name} is not installed", name=name)
    return Path(next(iter(spec.submodule_search_locations)))


def canonical_json(value: Any, *, indent: int | None = None) -> str:
    """JSON with sorted keys and no NaN, so that equal values give equal text.

    Raises:
        ValueError: a float is NaN or infinite (write null with a reason instead).
    """
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators)


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text, in which no key may stand twice and no number may be NaN or infinite.

    Raises:
        ValueError: not such a text; the message says why, and the caller where.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path: Path, *, max_bytes: int | None = None) -> Any:
    """The value of a JSON file; see `parse_json`.

    Raises:
        FileNotFoundError, ValueError: see `read_data`; not UTF-8, or not JSON. The message names the file.
    """
    try:
        return parse_json(read_data(path, max_bytes=max_bytes).decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}): save it as UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON ({error}): correct it, or fetch it again") from None
    except ValueError as error:
        raise error if str(path) in str(error) else ValueError(f"{path} is not JSON that can be trusted ({error}): correct it") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in names if names.count(key) > 1)!r} is there twice")
    return value


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON")


def sha256_bytes(data: bytes) -> str:
    """``"sha256:<64 hex>"`` of `data`."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def sha256_json(value: Any) -> str:
    """Hash of the canonical JSON of `value`."""
    return sha256_bytes(canonical_json(value).encode())


def sha256_file(path: Path) -> str:
    """Hash of a file's bytes, read in blocks."""
    with Path(path).open("rb") as f:
        return "sha256:" + hashlib.file_digest(f, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else sha256_bytes(f.read())


def file_state(path: Path) -> list[int]:
    """Size, times of change and inode: differs once a file has been written to or replaced, whatever its content. For keys of files too large to hash."""
    stat = Path(path).stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


class DiskFull(OSError):
    """There is no space for a file; the message names it and says how much is missing."""


@contextmanager
def disk_full_in_words(path: Path, size: int | None = None) -> Iterator[None]:
    """Raise `DiskFull`, which names `path` and the `size` in bytes that it needs, where the block runs out of space."""
    try:
        yield
    except OSError as error:
        if isinstance(error, DiskFull) or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        free = shutil.disk_usage(path.parent).free / 1e9
        needed = f"{size / 1e9:,.3f} GB are needed, " if size is not None else ""
        limit = "; files of this size are not allowed to this process (ulimit -f)" if error.errno == errno.EFBIG else ""
        raise DiskFull(
            f"no space to write {path}: {needed}{free:,.3f} GB are free{limit}. Free some, or name another folder; what is finished is kept"
        ) from None


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that becomes `path` (fsync, rename) only when the block ends without an error.

    Raises:
        DiskFull: the disk is full.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with disk_full_in_words(path), _temporary(path, ".part") as part:
        try:
            yield part
            with part.open("rb+") as f:
                os.fsync(f.fileno())
            part.chmod(0o666 & ~_umask())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


# A temporary name says which machine and process made it. Its maker also holds a lock on it as long as it lives, for a process of that number
# may be another's by now; the lock alone does not do, as some libraries put a new file in the place of the one they are given.
_HOST = hashlib.sha256(os.uname().nodename.encode()).hexdigest()[:6]
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<host>[0-9a-f]{6})-(?P<process>[0-9]+)-[a-z0-9_]{8}\.(?P<kind>part|old)", re.DOTALL)
_SWEPT: set[Path] = set()
_OURS: set[str] = set()  # temporary paths of this process
_DAY = 86_400


@contextmanager
def _temporary(path: Path, suffix: str, *, folder: bool = False) -> Iterator[Path]:
    """A new temporary file or folder beside `path`, locked meanwhile; the first of a process in a folder removes what dead ones left there."""
    if path.parent not in _SWEPT:
        _SWEPT.add(path.parent)
        remove_orphans(path.parent)
    prefix = f".{path.name[:200]}.{_HOST}-{os.getpid()}-"
    if folder:
        name = tempfile.mkdtemp(dir=path.parent, prefix=prefix, suffix=suffix)
    else:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=prefix, suffix=suffix)
        os.close(handle)
    _OURS.add(name)
    try:
        with _locked(Path(name), wait=True):
            yield Path(name)
    finally:
        _OURS.discard(name)


@contextmanager
def _locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold the system's lock on a file or folder; gives whether it was had (where a file system has none: False)."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            had = True
        except OSError:
            had = False
        yield had
    finally:
        os.close(handle)


def remove_orphans(folder: Path) -> list[str]:
    """Remove the temporary files and folders that killed processes of decodehub left in `folder`; those of living ones stay.

    A folder that was being replaced when its process died is put back. What another machine made is left for a day, as locks may not reach
    from one machine to the other.

    Returns:
        Their names.
    """
    removed = []
    for path in sorted(folder.glob(".*")) if folder.is_dir() else ():
        match = _TEMPORARY.fullmatch(path.name)
        try:
            if match is None or str(path) in _OURS or (match["host"] != _HOST and time.time() - path.lstat().st_mtime < _DAY):
                continue
            if match["host"] == _HOST and int(match["process"]) != os.getpid() and _is_alive(int(match["process"])):
                continue
            with _locked(path, wait=False) as mine:
                if not mine:
                    continue
                if match["kind"] == "old" and not (folder / match["name"]).exists():
                    path.rename(folder / match["name"])
                elif path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
                removed.append(path.name)
        except OSError:  # gone meanwhile, or not ours to remove
            continue
    return removed


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path` whole or not at all."""
    with atomic_path(path) as part:
        part.write_bytes(data)


def write_json(path: Path, value: Any) -> None:
    """Write canonical, indented JSON to `path` whole or not at all."""
    write_bytes(path, (canonical_json(value, indent=2) + "\n").encode())


@contextmanager
def new_folder(folder: Path | str, *, or_existing: bool = False, replace: bool = False) -> Iterator[Path]:
    """A working folder beside `folder` that becomes `folder` when the block ends without an error, and is removed otherwise.

    Args:
        folder: where it is to be.
        or_existing: where another process was first, keep its folder, which holds the same, and drop this one.
        replace: put it in the place of a folder that is there, which is removed once the new one stands.

    Raises:
        FileExistsError: `folder` is there already.
    """
    folder = Path(folder)
    if folder.exists() and not (or_existing or replace):
        raise FileExistsError(f"{folder} exists already: remove it or name another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with disk_full_in_words(folder), _temporary(folder, ".part", folder=True) as work:
        try:
            yield work
            work.chmod(0o777 & ~_umask())
            if replace and folder.exists():
                _swap(work, folder)
                return
            try:
                os.rename(work, folder)  # noqa: PTH104  (refuses a folder that has come into being meanwhile and is not empty)
            except OSError:
                if not (or_existing and folder.is_dir()):
                    raise
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _swap(work: Path, folder: Path) -> None:
    """Put `work` in the place of `folder`, and remove what was there."""
    with _temporary(folder, ".old", folder=True) as old, _locked(folder, wait=True):  # locked: `remove_orphans` puts back what is not
        os.rename(folder, old)  # noqa: PTH104  (onto an empty folder)
        try:
            os.rename(work, folder)  # noqa: PTH104
        except OSError:
            os.rename(old, folder)  # noqa: PTH104
            raise
        shutil.rmtree(old, ignore_errors=True)


def inside(folder: Path, relative: str) -> Path:
    """`folder` / `relative`, which must stay in `folder` once links and ``..`` are followed.

    Raises:
        ValueError: the path is absolute, empty or leads out of the folder.
    """
    folder = Path(folder)
    if not relative or Path(relative).is_absolute() or "\\" in relative or "\0" in relative:
        raise ValueError(f"path {relative!r} must be relative, with '/' between its parts")
    path = folder / relative
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"path {relative!r} leads out of its folder")
    return path


def pointer_kind(head: bytes) -> str | None:
    """What a small file stands for when it is a pointer in place of data: ``"git-annex"``, ``"Git LFS"`` or None."""
    if head.startswith(_LFS_HEAD):
        return "Git LFS"
    if len(head) <= POINTER_MAX_BYTES and b"/annex/objects/" in head:
        return "git-annex"
    return None


def read_data(path: Path, *, max_bytes: int | None = None) -> bytes:
    """The bytes of a data file, with the reason in words when they are not there.

    Raises:
        FileNotFoundError: there is no such file (a broken git-annex link is named as such).
        ValueError: the file is empty, larger than `max_bytes`, or a git-annex or Git LFS pointer.
    """
    path = Path(path)
    if not path.is_file():
        if path.is_symlink() and "annex" in str(path.readlink()):
            raise ValueError(f"{path} is a git-annex link without its content: run 'datalad get' or 'git annex get' there")
        raise FileNotFoundError(f"{path} does not exist")
    size = path.stat().st_size
    if size == 0:
        raise ValueError(f"{path} is empty")
    if max_bytes is not None and size > max_bytes:
        raise ValueError(f"{path} has {size:,} bytes, more than the {max_bytes:,} allowed")
    data = path.read_bytes()
    if (kind := pointer_kind(data[: POINTER_MAX_BYTES + 1])) is not None:
        remedy = "'datalad get' or 'git annex get'" if kind == "git-annex" else "'git lfs pull'"
        raise ValueError(f"{path} is a {kind} pointer in place of the data: run {remedy} in its folder")
    return data


def read_json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSON-lines file, each with where it stands (``"PATH, row 3"``), for errors.

    Raises:
        FileNotFoundError, ValueError: no file, not UTF-8, or a line that is no JSON object; the message names file and row.
    """
    try:
        text = read_data(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}): save it as UTF-8") from None
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"{path}, row {number}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{where}: not JSON ({error}); one object a line") from None
            if not isinstance(row, dict):
                raise ValueError(f"{where}: expected an object, found {type(row).__name__}")
            yield where, row


def read_csv(path: Path, columns: Sequence[str]) -> list[tuple[str, dict[str, str]]]:
    """The rows of a CSV file, each with where it stands (``"PATH, line 3"``), for errors; a short row has empty cells at its end.

    Raises:
        FileNotFoundError, ValueError: see `read_data`; not UTF-8, not CSV, a column of `columns` that is missing, or a row longer than the
            header; the message names file and line.
    """
    try:
        text = read_data(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}): save it as UTF-8") from None
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True, restval="")
    rows = []
    try:
        found = reader.fieldnames or []
        if missing := [name for name in columns if name not in found]:
            raise ValueError(f"{path} lacks the column {missing[0]!r}: it needs {' and '.join(columns)}, found {str(list(found))[:200]}")
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            if None in row:
                raise ValueError(f"{where}: the row is longer than the header: put cells that hold a comma in quotation marks")
            if any("\0" in cell for cell in row.values()):
                raise ValueError(f"{where}: a NUL byte: save the table again as CSV in UTF-8")
            rows.append((where, row))
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num + 1}: not CSV ({error}): save the table again as CSV in UTF-8") from None
    return rows


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
