"""A result record on the Hub: predictions in a data set of results, numbers on the model's card and in ``.eval_results``."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

from decodehub.core.entry import find
from decodehub.core.files import inside, sha256_file, write_bytes
from decodehub.core.records import RECORD, Metric, ResultRecord
from decodehub.core.repos import builder_class

from .client import Repo
from .metric import read_card
from .tasks import dataset_of, headline_metrics

RESULTS = "decodehub-results"
SOURCE = "decodehub"
LICENCE = "cc-by-4.0"
RESULTS_CARD = f"""---
license: {LICENCE}
pretty_name: Results of decodehub
tags:
- decodehub
- benchmark-results
viewer: false
---

# Results

One folder a result, `BENCHMARK/MODEL/HASH_OF_THE_RECORD/`: `record.json`, the predictions, and the table that they are scored against. The numbers of
any of them can be computed anew, without the model and without the images:

    decodehub verify OWNER/{RESULTS}

Source: [decodehub](https://github.com/decodehub/decodehub); each record names its benchmark, whose card has the citation.
"""


def result_path(folder: Path, record: ResultRecord) -> str:
    """Where a record goes in a repository of results; the same record always goes to the same place."""
    model = re.sub(r"[^A-Za-z0-9._-]+", "--", record.model.id)
    return f"{record.benchmark.id}/{model}/{sha256_file(folder / RECORD).removeprefix('sha256:')[:16]}"


def stage_results(source: Path, record: ResultRecord, folder: Path, *, with_card: bool) -> str:
    """Write a record with all it needs into `folder`, as in a repository of results; returns its path there.

    Args:
        source, record: the folder of the record and the record.
        folder: empty.
        with_card: write the repository's card too.
    """
    path = result_path(source, record)
    for name in [RECORD, record.benchmark.table, *(run.predictions for run in record.runs)]:
        target = folder / path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(inside(source, name), target)
    if with_card:
        write_bytes(folder / "README.md", RESULTS_CARD.encode())
    return path


def stage_numbers(record: ResultRecord, folder: Path, model: Repo, card: str | None, url: str, org: str) -> None:
    """Write the model's card with the numbers of a record, and ``.eval_results/decodehub-BENCHMARK.yaml``, into `folder`.

    Args:
        record: what is reported. folder: empty. model: the repository.
        card: the card that is there, or None.
        url: of the record and its predictions. org: whose data set it is scored on.
    """
    write_bytes(folder / "README.md", card_with_results(card, model.id, record, url, org).encode())
    entries = hub_entries(record, url, org)
    if entries:
        text = yaml.safe_dump(entries, sort_keys=False, allow_unicode=True)
        write_bytes(folder / ".eval_results" / f"{SOURCE}-{record.benchmark.id}.yaml", text.encode())


def hub_entries(record: ResultRecord, url: str, org: str) -> list[dict[str, Any]]:
    """One entry a headline number, as the Hub reads them; none for a sample or simulated data, which say nothing about the benchmark."""
    if record.kind != "real" or record.not_checked:
        return []
    dataset = f"{org}/{dataset_of(record.benchmark.id.replace('-', '_'))}"
    return eval_result_entries_to_yaml(
        [
            EvalResultEntry(
                dataset_id=dataset,
                task_id=task,
                value=metric.value,
                date=record.created[:10],
                source_url=url,
                source_name=SOURCE,
                notes=_notes(record, metric),
            )
            for task, metric in headline_metrics(record).items()
        ]
    )


def index_entry(record: ResultRecord, url: str, org: str) -> dict[str, Any]:
    """The numbers of a record as one result of a card's ``model-index``."""
    name = dataset_of(record.benchmark.id.replace("-", "_"))
    entry = find(name, "dataset")
    data, _ = read_card(entry.folder / "README.md")
    kinds = {"real": "", "sample": "a sample", "simulated": "simulated recordings"}
    label = f" ({kinds[record.kind]}: these scores say nothing about the benchmark)" if kinds[record.kind] else ""
    numbers = [
        metric
        for metric in record.metrics
        if metric.value is not None and (not metric.slice or metric in headline_metrics(record).values())
    ]
    return {
        "task": {"type": (data.get("task_categories") or ["other"])[0]},
        "dataset": {
            "type": f"{org}/{name}",
            "name": f"{data.get('pretty_name', name)}, release {record.benchmark.release}{label}",
            "config": builder_class(entry).DEFAULT_CONFIG_NAME,
            "split": "test",
            "args": {
                "release": record.benchmark.release,
                "content_hash": record.benchmark.content_hash,
                "protocol": record.protocol.name,
                "protocol_hash": record.protocol.hash,
            },
        },
        "metrics": [
            {
                "type": metric.name,
                "value": metric.value,
                "name": number_name(metric),
                "args": {
                    "unit": metric.unit,
                    "n": metric.n,
                    **({"ci95": list(metric.ci95)} if metric.ci95 else {}),
                    **({} if metric.chance is None else {"chance": metric.chance}),
                },
            }
            for metric in numbers
        ],
        "source": {"name": SOURCE, "url": url},
    }


def card_with_results(card: str | None, model: str, record: ResultRecord, url: str, org: str) -> str:
    """A model's card with the numbers of a record in its metadata; entries of others, and of other benchmarks, stay as they are.

    Raises:
        ValueError: the card's YAML cannot be read.
    """
    front, body = split_card(card or f"\n# {model.split('/')[-1]}\n", model)
    ours = index_entry(record, url, org)
    index = front.setdefault("model-index", [])
    if not isinstance(index, list) or (index and not isinstance(index[0], dict)):
        raise ValueError(f"the model-index of the card of {model} is malformed: mend it first")
    if not index:
        index.append({"name": model.split("/")[-1], "results": []})
    results = index[0].setdefault("results", [])
    index[0]["results"] = [result for result in results if not _replaced(result, ours)] + [ours]
    return _joined(front, body)


def keep_results(card: str, former: str, model: str) -> str:
    """A new card with the ``model-index`` entries of the former one that it does not bring anew."""
    front, body = split_card(card, model)
    there, _ = split_card(former, model)
    new = [result for index in front.get("model-index") or [] for result in index["results"]]
    kept = [result for index in there.get("model-index") or [] for result in index.get("results") or []]
    # The same numbers stay as they are: their source may name the predictions, which a card alone does not.
    new = [ours for ours in new if not any(_replaced(result, ours) and result["metrics"] == ours["metrics"] for result in kept)]
    kept = [result for result in kept if not any(_replaced(result, ours) for ours in new)]
    if kept or new:
        front["model-index"] = [{"name": model.split("/")[-1], "results": [*kept, *new]}]
    return _joined(front, body)


def _joined(front: Mapping[str, Any], body: str) -> str:
    return f"---\n{yaml.safe_dump(dict(front), sort_keys=False, allow_unicode=True)}---\n{body}"


def _replaced(result: Any, ours: Mapping[str, Any]) -> bool:
    """Whether an entry is a former one of ours for the same data and rules."""
    if not isinstance(result, dict) or (result.get("source") or {}).get("name") != SOURCE:
        return False
    there, new = result.get("dataset") or {}, ours["dataset"]
    same = ("release", "protocol", "protocol_hash")
    return there.get("type") == new["type"] and all((there.get("args") or {}).get(key) == new["args"][key] for key in same)


def number_name(metric: Metric) -> str:
    """Name of a number on a card."""
    return metric.name + "".join(f" {key} {value}" for key, value in metric.slice.items())


def split_card(card: str, model: str) -> tuple[dict[str, Any], str]:
    """YAML and text of a card; no YAML is an empty one.

    Raises:
        ValueError: the YAML cannot be read.
    """
    match = re.match(r"\s*---\r?\n(.*?)\r?\n---[ \t]*\r?\n?(.*)\Z", card, re.DOTALL)
    if match is None:
        return {}, card
    try:
        front = yaml.safe_load(match[1]) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"the YAML of the card of {model} cannot be read ({error}): mend it first") from None
    if not isinstance(front, dict):
        raise ValueError(f"the YAML of the card of {model} is no mapping: mend it first")
    return front, match[2]


def _notes(record: ResultRecord, metric: Metric) -> str:
    interval = f", 95 % interval {metric.ci95[0]:.4g} to {metric.ci95[1]:.4g}" if metric.ci95 else ""
    return (
        f"{record.protocol.name}, release {record.benchmark.release}, model as scored: {record.model.id}, n = {metric.n}{interval}, "
        f"{metric.unit}; recomputed from the predictions at the source"
    )
