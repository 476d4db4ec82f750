"""A metric as the Space that ``evaluate.load("ORG/NAME")`` reads: its script, what the script needs of this package, requirements, card, app.

`evaluate` copies the script and the files beside it that the script imports with ``from .x import``, one level deep. So every module of this
package that the metric needs, at whatever depth, is put beside the script under a flat name, its imports are turned to these names, and the
script imports all of them. The data set is loaded from the same organisation. Nothing of this package has to be installed.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

from decodehub import __version__
from decodehub.core.entry import Entry
from decodehub.core.files import write_bytes

from .cards import decode, merged, read_card
from .checks import check_licence
from .client import Repo
from .tasks import loaded_names

ROOT = "decodehub"
MANAGED = ("sdk", "sdk_version", "app_file", "pinned", "title", "license", "tags")  # keys of the card that a push writes
IMAGE_PAIRS = f"{ROOT}.metrics.bcs.image_pairs"  # metrics built on it take images
# What the registry knows about names and folders does not travel; in its place comes the organisation of the Space.
REGISTRY = f"{ROOT}.registry"
_REGISTRY_STUB = '''"""Where this Space looks for models that are not named: in its own organisation."""

import os

ORG_VARIABLE = "DECODEHUB_SPACE_OF_{variable}"
os.environ[ORG_VARIABLE] = "{org}"
'''
APP = '''"""Try the metric in a browser: {what}."""

{imports}import evaluate
import gradio as gr

metric = evaluate.load(str(Path(__file__).with_name("{name}.py")))


def score(prediction, reference) -> dict:
    """Scores of what was given."""
    try:
        return metric.compute({arguments})
    except (TypeError, ValueError, RuntimeError, ImportError) as error:
        raise gr.Error(str(error)) from error


demo = gr.Interface(
    score,
    {inputs},
    gr.JSON(label="scores"),
    title="{title}",
    description=metric.description,
    article=metric.inputs_description,
)

if __name__ == "__main__":
    demo.launch()
'''
_JSON_APP = {
    "what": "predictions and references as JSON",
    "imports": "import json\nfrom pathlib import Path\n\n",
    "arguments": "predictions=json.loads(prediction), references=json.loads(reference)",
    "inputs": '[gr.Code(language="json", label="predictions"), gr.Code(language="json", label="references")]',
}
_IMAGE_APP = {
    "what": "a reconstruction and the image it is of",
    "imports": "from pathlib import Path\n\n",
    "arguments": "predictions=[prediction], references=[reference], progress=False",
    "inputs": '[gr.Image(label="reconstruction"), gr.Image(label="reference")]',
}


class Import(NamedTuple):
    """An import of this package in a module: the statement, the module that it names, and whether names are taken from it."""

    node: ast.Import | ast.ImportFrom
    module: str


def stage_metric(
    entry: Entry, folder: Path, repo: Repo, there: Callable[[str], bytes | None] = lambda path: None, *, replace: bool = False
) -> list[str]:
    """Write the Space of a metric into `folder` and return its faults.

    Args:
        entry: the metric. folder: empty. repo: where it will go.
        there: gives a file of the Space as it is, or None.
        replace: replace our part of the card even where others changed it.
    """
    org = repo.id.split("/")[0]
    sources = closure(entry.module, org)
    flat = {module: flat_name(module, entry) for module in sources}
    packages = set()
    for module, text in sources.items():
        write_bytes(folder / f"{flat[module]}.py", flatten(module, text, flat, org, main=module == entry.module).encode())
        packages |= foreign(text)
    write_bytes(folder / "requirements.txt", ("\n".join(requirements(packages | {"datasets", "evaluate"})) + "\n").encode())
    former = there("README.md")
    card = merged(
        _card(entry, repo, sources, flat),
        None if former is None else decode(former, repo.page),
        repo.page,
        managed=MANAGED,
        replace=replace,
    )
    write_bytes(folder / "README.md", card.encode())
    data, _ = read_card(entry.folder / "README.md")
    kind = _IMAGE_APP if IMAGE_PAIRS in sources else _JSON_APP
    write_bytes(folder / "app.py", APP.format(name=entry.name, title=data.get("title", entry.name), **kind).encode())
    return check_licence(data.get("license"), "the metric's card", images=False)


def closure(module: str, org: str) -> dict[str, str]:
    """Source of a module and of everything of this package that it imports, at any depth, by module name; `org` is that of the Space.

    Raises:
        ValueError: something is imported that does not travel.
    """
    sources: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in sources:
            continue
        stub = _REGISTRY_STUB.format(org=org, variable=re.sub(r"\W", "_", org).upper())
        sources[name] = stub if name == REGISTRY else _file(name).read_text(encoding="utf-8")
        waiting += [found.module for found in own_imports(name, ast.parse(sources[name])) if found.module != ROOT]
    return dict(sorted(sources.items()))


def own_imports(module: str, tree: ast.AST) -> list[Import]:
    """Imports of this package in the code of a module, those inside functions too.

    Raises:
        ValueError: a form that cannot be turned into a flat name.
    """
    found = []
    package = module if _is_package(module) else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and any(alias.name.split(".")[0] == ROOT for alias in node.names):
            if [alias.name for alias in node.names] != [ROOT]:
                raise ValueError(f"{module}, line {node.lineno}: write 'from decodehub.x import y' in code that travels")
            found.append(Import(node, ROOT))
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
                base = f"{parent}.{base}" if base else parent
            if base.split(".")[0] != ROOT:
                continue
            if base == ROOT or (base == package and not node.module):
                raise ValueError(f"{module}, line {node.lineno}: write 'from decodehub.x import y' in code that travels")
            found.append(Import(node, base))
    return found


def flat_name(module: str, entry: Entry) -> str:
    """Name of a module in the Space: those of the metric keep theirs, others say where they are from."""
    own = entry.module.rpartition(".")[0] + "."
    short = module.removeprefix(own) if module.startswith(own) else module.replace(f"{ROOT}.", "decodehub_", 1).replace(".", "_")
    return entry.name if module == entry.module else short


def flatten(module: str, text: str, flat: Mapping[str, str], org: str, *, main: bool) -> str:
    """The code of a module for the Space: flat imports, data sets by their full names.

    Args:
        module, text: its name and code.
        flat: names in the Space. org: whose data sets. main: it is the script, which must import all others.
    """
    tree = ast.parse(text)
    lines = text.splitlines(keepends=True)
    changes: list[tuple[ast.stmt | ast.expr, str]] = []
    for node, target in own_imports(module, tree):
        if target == ROOT:
            changes.append((node, "pass"))
        else:
            changes.append((node, f"from .{flat[target]} import {', '.join(_alias(alias) for alias in node.names)}"))
    for name, places in loaded_names(tree).items():
        if "/" not in name:
            changes += [(constant, f'"{org}/{name}"') for constant in places]
    for place, new in sorted(changes, key=lambda change: -change[0].lineno):
        start, stop = place.lineno - 1, place.end_lineno or place.lineno
        before = lines[start].encode()[: place.col_offset].decode()
        after = lines[stop - 1].encode()[place.end_col_offset :].decode()
        if isinstance(place, ast.stmt):
            after = "\n"  # a comment behind an import would be taken for an address by `evaluate`
        lines[start:stop] = [before + new + after]
    code = "".join(lines)
    if main:
        others = [name for target, name in flat.items() if target != module]
        code += "\n# So that `evaluate` brings these files along, by names that no function above has.\n" + "".join(
            f"from .{n} import __name__ as _brought_{n}\n" for n in sorted(others)
        )
    ast.parse(code)
    return code


def foreign(text: str) -> set[str]:
    """Top-level names that a module imports from elsewhere."""
    found = set()
    looked_for = {name for name in _dependencies() if "_" in name}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and node.value in looked_for:  # found by `importlib`, such as packages of weights
            found.add(node.value)
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").split(".")[0])
    return found - set(sys.stdlib_module_names) - {ROOT, ""}


def requirements(packages: set[str]) -> list[str]:
    """Requirement lines for imported packages, with the bounds that this package has; those of its extras are left to the user.

    Raises:
        ValueError: a package that is no dependency of this one.
    """
    ours = _dependencies()
    needed = {package for package in packages if package in ours or package.replace("_", "-").lower() not in _extras()}
    if strange := sorted(needed - set(ours)):
        raise ValueError(f"the metric imports {strange}, which are no dependencies of {ROOT}: add them to pyproject.toml")
    return sorted({ours[package] for package in needed})


@cache
def _extras() -> frozenset[str]:
    """Names of the distributions that only an extra of this package needs."""
    lines = [line for line in importlib.metadata.requires(ROOT) or [] if re.search(r'extra == "(?!dev")', line)]
    return frozenset(re.split(r"[<>=!~\[ ;]", line, maxsplit=1)[0].lower() for line in lines)


@cache
def _dependencies() -> dict[str, str]:
    """Requirement line of this package for each top-level name that a dependency of it installs."""

    def plain(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    lines = [line.split(";")[0].strip() for line in importlib.metadata.requires(ROOT) or [] if "extra ==" not in line]
    ours = {plain(re.split(r"[<>=!~\[ ]", line, maxsplit=1)[0]): line for line in lines}
    providers = importlib.metadata.packages_distributions()
    return {name: ours[plain(d)] for name, distributions in providers.items() for d in distributions if plain(d) in ours}


def _card(entry: Entry, repo: Repo, sources: Mapping[str, str], flat: Mapping[str, str]) -> str:
    data, body = read_card(entry.folder / "README.md")
    data |= {"sdk": "gradio", "app_file": "app.py", "pinned": False, "title": data.get("title", entry.name)}
    data["tags"] = list(dict.fromkeys(["evaluate", "metric", *data.get("tags", []), "decodehub"]))
    rows = "\n".join(f"| `{flat[module]}.py` | `{module}` |" for module in sources)
    datasets = sorted({name for source in sources.values() for name in loaded_names(ast.parse(source))})
    reads = "".join(f"It reads the data set `{repo.id.split('/')[0]}/{name}`. " for name in datasets)
    return f"""---
{yaml.safe_dump(data, sort_keys=False, allow_unicode=True)}---
{body.rstrip()}

## This Space

```python
import evaluate  # and the packages of requirements.txt; decodehub itself is not needed

metric = evaluate.load("{repo.id}")
```

{reads}Names of samples and folders of a release (`"sample"`, `data_dir`) need the package. Its files, from decodehub {__version__}:

| file | module |
|---|---|
{rows}
"""


def _alias(alias: ast.alias) -> str:
    return alias.name if alias.asname is None else f"{alias.name} as {alias.asname}"


def _spec(module: str) -> importlib.machinery.ModuleSpec:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"{module} is not a module of this package")
    return spec


def _file(module: str) -> Path:
    return Path(str(_spec(module).origin))


def _is_package(module: str) -> bool:
    return _spec(module).submodule_search_locations is not None
