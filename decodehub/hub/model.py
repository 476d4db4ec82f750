"""A trained model as the repository that is pushed: weights, configuration, the code that travels with them, and a card with its numbers."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from transformers import AutoModel, AutoProcessor, PretrainedConfig

from decodehub.core.entry import Entry, names
from decodehub.core.files import read_data, write_bytes
from decodehub.core.records import RECORD, ResultRecord

from .cards import decode, merged, read_card
from .checks import check_files, check_licence
from .client import Repo
from .verify import verify

CONFIG, FOLDER = "config.json", "model"
# What the base class of configurations adds of its own, beside what the code needs.
_OF_TRANSFORMERS = {"architectures", "auto_map", "transformers_version", "_name_or_path", *PretrainedConfig().to_dict()} - {"model_type"}
MANAGED = ("license", "library_name", "pipeline_tag", "tags")  # keys of the card that a push writes


def find_model(source: Path) -> Path:
    """The folder with ``config.json``: `source`, or ``model`` in it, as training jobs write.

    Raises:
        ValueError: there is none.
    """
    for folder in (source, source / FOLDER):
        if (folder / CONFIG).is_file():
            return folder
    raise ValueError(f"{source} holds no model: expected {CONFIG} and weights as save_pretrained writes them, there or in {FOLDER}/")


def stage_model(
    source: Path, folder: Path, repo: Repo, there: Callable[[str], bytes | None] = lambda path: None, *, replace: bool = False
) -> list[str]:
    """Write the repository of a model into `folder` and return its faults.

    Args:
        source: a folder that `save_pretrained` wrote, or that of a training job; a record that lies there gives the table of numbers.
        folder: empty. repo: where it will go.
        there: gives a file of the repository as it is, or None.
        replace: replace our part of the card even where others changed it.

    Raises:
        ValueError: no model of ours, or a record that does not give its own numbers.
    """
    weights = find_model(source)
    if faults := check_files(weights):
        return faults
    entry = _entry(weights)
    model = AutoModel.from_pretrained(weights, local_files_only=True)
    model.save_pretrained(folder)
    if any((weights / name).is_file() for name in ("processor_config.json", "preprocessor_config.json")):
        AutoProcessor.from_pretrained(weights, local_files_only=True).save_pretrained(folder)
    data, body = read_card(entry.folder / "README.md")
    record = _record(source)
    run = json.loads(read_data(source / "run.json")) if (source / "run.json").is_file() else None
    former = there("README.md")
    text = _card(model, data, body, repo, record, run)
    text = merged(text, None if former is None else decode(former, repo.page), repo.page, managed=MANAGED, replace=replace)
    write_bytes(folder / "README.md", text.encode())
    return check_licence(data.get("license"), "the model's card", images=False)


def _entry(weights: Path) -> Entry:
    kind = json.loads(read_data(weights / CONFIG)).get("model_type")
    known = []
    for entry in names("model"):
        importlib.import_module(entry.module.rpartition(".")[0])  # registers the family with the Auto classes
        module = importlib.import_module(entry.module)
        configs = [
            c.config_class
            for _, c in inspect.getmembers(module, inspect.isclass)
            if c.__module__ == module.__name__ and hasattr(c, "config_class")
        ]
        types = [config.model_type for config in configs if config is not None]
        if kind in types:
            return entry
        known += types
    raise ValueError(f"{weights / CONFIG}: model_type {kind!r} is none of ours, which are {sorted(known)}")


def _record(source: Path) -> ResultRecord | None:
    if not (source / RECORD).is_file():
        return None
    record, differences = verify(source)
    if differences:
        raise ValueError(
            f"{source / RECORD} states numbers that its predictions do not give ({differences[0].metric}): see decodehub verify"
        )
    return record


def _card(model: Any, data: dict[str, Any], body: str, repo: Repo, record: ResultRecord | None, run: dict[str, Any] | None) -> str:
    name = repo.id.split("/")[1]
    front: dict[str, Any] = {key: data[key] for key in ("license", "library_name", "pipeline_tag") if key in data}
    front["tags"] = [*data.get("tags", []), "decodehub"]
    doc = inspect.cleandoc(type(model).__doc__ or "").replace(":class:", "")
    module = f"{type(model).__module__.rsplit('.', 1)[0]}"
    settings = {key: value for key, value in sorted(model.config.to_dict().items()) if key not in _OF_TRANSFORMERS}
    parts = [
        f"# {name}",
        f"Type `{model.config.model_type}`, {model.num_parameters():,} parameters{_inputs(model)}. Weights are safetensors; the code lies "
        "beside them.",
        "## Use",
        f"""```python
from transformers import AutoModel

model = AutoModel.from_pretrained("{repo.id}", trust_remote_code=True)  # runs the code of this repository
```

With decodehub installed no remote code is needed: `import {module}`, then the same call without `trust_remote_code`.""",
        *(_numbers(record) if record is not None else ["## Numbers\n\nNot scored yet."]),
        *([f"## Training\n\n{_table(_flat(run))}"] if run is not None else []),
        f"## Configuration\n\n{_table(_flat(settings))}",
        f"## The published architecture\n\nSizes and encoders here are those of the source; those of this model are above.\n\n{doc}",
        "## Citation\n\n```bibtex\n" + "\n".join(_citations(body, model.config.model_type)) + "\n```",
    ]
    return f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True)}---\n\n" + "\n\n".join(parts) + "\n"


def _inputs(model: Any) -> str:
    """Shapes of an example of what the model takes."""
    shapes = {name: tuple(value.shape) for name, value in getattr(model, "dummy_inputs", {}).items() if hasattr(value, "shape")}
    words = ", ".join(f"`{name}` {' x '.join(map(str, shape))}" for name, shape in shapes.items() if name != "input_ids")
    return f"; takes, for example, {words}" if words else ""


def _numbers(record: ResultRecord) -> list[str]:
    what = {"real": "", "sample": "A sample or rehearsal release", "simulated": "Simulated recordings"}[record.kind]
    warning = f"**{what}: these numbers say nothing about the benchmark itself.**\n\n" if what else ""
    rows = [
        f"| {metric.name} | {metric.value:.4g} | {'' if metric.ci95 is None else f'{metric.ci95[0]:.4g} to {metric.ci95[1]:.4g}'} "
        f"| {'' if metric.chance is None else f'{metric.chance:.4g}'} | {metric.n} | {metric.unit} |"
        for metric in record.metrics
        if not metric.slice and metric.value is not None
    ]
    about = (
        f"{warning}{record.benchmark.id}, release {record.benchmark.release}, protocol {record.protocol.name}. Data: {record.data}. "
        f"{record.aggregation}. {record.model.notes}".rstrip()
    )
    about += "\n\nThe predictions behind these numbers are published with `decodehub push RECORD --model`, which also files them for leaderboards."
    table = "\n".join(["| number | value | 95 % interval | chance | n | unit |", "|---|---|---|---|---|---|", *rows])
    return [f"## Numbers\n\n{about}\n\n{table}"]


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            text = json.dumps(value, ensure_ascii=False)
            found[prefix + key] = text if len(text) <= 200 else f"{len(value)} values" if isinstance(value, list) else text[:200] + "..."
    return found


def _table(values: dict[str, str]) -> str:
    return "\n".join(["| setting | value |", "|---|---|", *(f"| `{key}` | {value} |" for key, value in values.items())])


def _citations(body: str, model_type: str) -> list[str]:
    """BibTeX entries of the family's card: those whose key has the model's name, else all."""
    entries = [entry for block in re.findall(r"```bibtex\n(.*?)\n```", body, re.DOTALL) for entry in re.split(r"\n(?=@)", block)]
    words = [word for word in model_type.split("-") if word != "eeg"]
    return [entry for entry in entries if any(word in entry.split(",", 1)[0] for word in words)] or entries
