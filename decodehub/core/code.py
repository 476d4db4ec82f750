"""The hash of code, for keys of what it made: a change of any module that a module imports is a new key."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from .files import sha256_bytes, sha256_json

PACKAGE = "decodehub"


def code_hash(*modules: str, packages: Iterable[str] = (), data: Iterable[Path] = ()) -> str:
    """``"sha256:..."`` of modules of ours, of everything of ours that they import at any depth, and of what they stand on.

    Nothing is imported: the statements are read, those inside functions too.

    Args:
        modules: full names, such as ``decodehub.loaders.mvnn``.
        packages: names of installed distributions whose version counts.
        data: files that the code reads.

    Raises:
        ModuleNotFoundError: there is no such module of ours.
    """
    files = {name: sha256_bytes(_source(name)) for name in _with_imports(modules)}
    versions = {name: importlib.metadata.version(name) for name in packages}
    return sha256_json([files, versions, [[path.name, sha256_bytes(path.read_bytes())] for path in data]])


def imported_modules(*modules: str) -> frozenset[str]:
    """The modules of ours that these import at any depth, themselves among them."""
    return frozenset(_with_imports(modules))


def _with_imports(modules: Iterable[str]) -> list[str]:
    waiting, reached = list(modules), set()
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += _imports(name)
    return sorted(reached)


@cache
def _imports(name: str) -> tuple[str, ...]:
    """Modules of ours that a module names in its import statements."""
    path = _path(name)
    if path is None:
        raise ModuleNotFoundError(f"{name} is no module of {PACKAGE}")
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    imported: list[str] = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1])
                base = f"{parent}.{base}" if base else parent
            imported += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return tuple(name for name in dict.fromkeys(imported) if name.startswith(f"{PACKAGE}.") and _path(name) is not None)


@cache
def _source(name: str) -> bytes:
    path = _path(name)
    assert path is not None
    return path.read_bytes()


@cache
def _path(name: str) -> Path | None:
    """The file of a module of ours; None where the name is of something else, such as a function."""
    _, _, rest = name.partition(".")
    room, _, inner = rest.partition(".")
    root = _room(room)
    if root is None:
        return None
    stem = root.joinpath(*inner.split(".")) if inner else root
    return next((path for path in (stem.with_name(f"{stem.name}.py"), stem / "__init__.py") if path.is_file()), None)


@cache
def _room(name: str) -> Path | None:
    """The folder of a top-level package of ours, or where its module would be without its ending."""
    spec = importlib.util.find_spec(f"{PACKAGE}.{name}")
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin)
    return origin.parent if origin.name == "__init__.py" else origin.with_suffix("")
