"""Code that travels with the weights: what a saved model needs of this package is copied beside it, and imported from there.

transformers carries a model's own module along ``from .x import`` and no further. Modules of other rooms (the decoding of images, the frozen
encoders) are imported by their full names here, so that each is there once; when a model is saved they are put beside it, and imports of
them are rewritten to ``from .x import``. Code that was loaded from beside weights has no such imports left and travels on as it is.
"""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import Any

_PACKAGE = "decodehub"
_IMPORT = re.compile(rf"^(?P<indent>[ \t]*)from {_PACKAGE}\.(?P<path>[\w.]+) import ", re.MULTILINE)
_RELATIVE = re.compile(r"^[ \t]*from \.(?P<path>\w+) import ", re.MULTILINE)


def carry_code(folder: Path | str) -> None:
    """Put beside the ``.py`` files of `folder` the modules of this package that they import, at any depth.

    Raises:
        ValueError: two modules of one name.
    """
    folder = Path(folder)
    carried: dict[str, str] = {}
    waiting = [(path, "") for path in sorted(folder.glob("*.py"))]
    while waiting:
        path, room = waiting.pop()
        text = path.read_text(encoding="utf-8")
        needed = [match["path"] for match in _IMPORT.finditer(text)]
        needed += [f"{room}.{match['path']}" for match in _RELATIVE.finditer(text)] if room else []
        for module in needed:
            name = module.rpartition(".")[2]
            if carried.get(name) == module:
                continue
            if name in carried:
                raise ValueError(f"{folder / name}.py would stand for two modules, one of them {_PACKAGE}.{module}: rename one")
            carried[name] = module
            spec = importlib.util.find_spec(f"{_PACKAGE}.{module}")
            if spec is None or spec.origin is None:
                raise ValueError(f"{path} imports {_PACKAGE}.{module}, which is no module with a file")
            target = folder / f"{name}.py"
            target.write_text(Path(spec.origin).read_text(encoding="utf-8"), encoding="utf-8")
            waiting.append((target, module.rpartition(".")[0]))
        path.write_text(_IMPORT.sub(lambda m: f"{m['indent']}from .{m['path'].rpartition('.')[2]} import ", text), encoding="utf-8")


class TravelsWithCode:
    """Mixin of what `save_pretrained` saves; stands before the class of transformers."""

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, push_to_hub: bool = False, **kwargs: Any) -> Any:
        """As in transformers, with the code of this package that is needed to load it without the package."""
        hub = {key: kwargs.pop(key) for key in ("repo_id", "commit_message", "private", "create_pr", "revision") if key in kwargs}
        saved = super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]
        carry_code(Path(save_directory))
        if push_to_hub:
            self.push_to_hub(hub.pop("repo_id", Path(save_directory).name), token=kwargs.get("token"), **hub)  # type: ignore[attr-defined]
        return saved
