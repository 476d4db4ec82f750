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

from .cards import read_card, split_card, with_values
from .released import DataSet
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
any of them can be re-scored, without the model and without the images:

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


def filed_card(card: str | None, record: ResultRecord, url: str, model: str, data: DataSet) -> str:
    """A model's card with the numbers of a record in its ``model-index``; entries of others, and of other benchmarks, stay as they are.

    Args:
        card: the card that is there, or None.
        record: what is reported. url: of the record and its predictions.
        model: ``ORG/NAME``. data: the data set that holds the release it is scored on.

    Raises:
        ValueError: the card's YAML cannot be read.
    """
    card = card or f"\n# {model.split('/')[-1]}\n"
    front, _ = split_card(card, model)
    ours = index_entry(record, url, data)
    index = front.get("model-index") or [{"name": model.split("/")[-1], "results": []}]
    if not isinstance(index, list) or not isinstance(index[0], dict) or not isinstance(index[0].get("results") or [], list):
        raise ValueError(f"the model-index of the card of {model} is malformed: mend it first")
    results = list(index[0].get("results") or [])
    places = [i for i, result in enumerate(results) if _replaced(result, ours)]
    if places and _same_claim(results[places[0]], ours):
        ours = results[places[0]]
    kept = [result for i, result in enumerate(results) if i not in places]
    kept.insert(places[0] if places else len(kept), ours)
    return with_values(card, model, {"model-index": [{**index[0], "results": kept}, *index[1:]]})


def filed_entries(text: str | None, record: ResultRecord, url: str, model: str, data: DataSet) -> str | None:
    """Our file of ``.eval_results`` with the headline numbers of a record, one entry a data set and task; None where there is nothing to file.

    Args:
        text: the file that is there, or None. Others as for :func:`filed_card`.

    Raises:
        ValueError: the file that is there cannot be read.
    """
    ours = hub_entries(record, url, data)
    if not ours:
        return None
    try:
        there = yaml.safe_load(text) if text else []
        former = {(entry["dataset"]["id"], entry["dataset"]["task_id"]): entry for entry in there or []}
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, RecursionError) as error:
        place = f"{entries_path(record)} of {model}"
        raise ValueError(
            f"{place} cannot be read ({type(error).__name__}: {error}), so it is not written back: mend or delete it first"
        ) from None
    for entry in ours:
        key = (entry["dataset"]["id"], entry["dataset"]["task_id"])
        if not (key in former and _same_claim(former[key], entry)):
            former[key] = entry
    return yaml.safe_dump(list(former.values()), sort_keys=False, allow_unicode=True)


def entries_path(record: ResultRecord) -> str:
    """Where the headline numbers of a record stand in a model's repository."""
    return f".eval_results/{SOURCE}-{record.benchmark.id}.yaml"


def hub_entries(record: ResultRecord, url: str, data: DataSet) -> list[dict[str, Any]]:
    """One entry a headline number, as the Hub reads them; none for a sample or simulated data, which say nothing about the benchmark."""
    if record.kind != "real" or record.not_checked:
        return []
    return eval_result_entries_to_yaml(
        [
            EvalResultEntry(
                dataset_id=data.id,
                dataset_revision=data.revision,
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


def index_entry(record: ResultRecord, url: str, data: DataSet) -> dict[str, Any]:
    """The numbers of a record as one result of a card's ``model-index``."""
    name = dataset_of(record.benchmark.id.replace("-", "_"))
    entry = find(name, "dataset")
    front, _ = read_card(entry.folder / "README.md")
    kinds = {"real": "", "sample": "a sample", "simulated": "simulated recordings"}
    label = f" ({kinds[record.kind]}: these scores say nothing about the benchmark)" if kinds[record.kind] else ""
    numbers = [
        metric
        for metric in record.metrics
        if metric.value is not None and (not metric.slice or metric in headline_metrics(record).values())
    ]
    return {
        "task": {"type": (front.get("task_categories") or ["other"])[0]},
        "dataset": {
            "type": data.id,
            "name": f"{front.get('pretty_name', name)}, release {record.benchmark.release}{label}",
            "config": builder_class(entry).DEFAULT_CONFIG_NAME,
            "split": "test",
            "revision": data.revision,
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


def is_of_model(record: ResultRecord, model: str) -> bool:
    """Whether a record is of a model of the Hub: made under its whole name, or under its name without the owner."""
    return record.model.id in (model, model.split("/")[-1])


def _replaced(result: Any, ours: Mapping[str, Any]) -> bool:
    """Whether an entry is a former one of ours for the same data and rules."""
    if not isinstance(result, dict) or (result.get("source") or {}).get("name") != SOURCE:
        return False
    there, new = result.get("dataset") or {}, ours["dataset"]
    args = there.get("args") or {}
    same_rules = all(args.get(key) == new["args"][key] for key in ("protocol", "protocol_hash"))
    same_data = there.get("type") == new["type"] and args.get("release") == new["args"]["release"]
    return same_rules and (same_data or args.get("content_hash") == new["args"]["content_hash"])


def _same_claim(former: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    """Whether two entries differ in nothing but the revision under which data and predictions are read (a branch, or the pull request before)."""

    def essence(entry: Mapping[str, Any]) -> dict[str, Any]:
        dataset = {key: value for key, value in entry["dataset"].items() if key != "revision"}
        url = re.sub(r"/tree/[^/]+/", "/tree/-/", (entry.get("source") or {}).get("url") or "")
        return {**entry, "dataset": dataset, "source": {**(entry.get("source") or {}), "url": url}}

    return essence(former) == essence(ours) and bool(former["dataset"].get("revision"))


def number_name(metric: Metric) -> str:
    """Name of a number on a card."""
    return metric.name + "".join(f" {key} {value}" for key, value in metric.slice.items())


def _notes(record: ResultRecord, metric: Metric) -> str:
    interval = f", 95 % interval {metric.ci95[0]:.4g} to {metric.ci95[1]:.4g}" if metric.ci95 else ""
    return (
        f"{record.protocol.name}, release {record.benchmark.release}, model as scored: {record.model.id}, n = {metric.n}{interval}, "
        f"{metric.unit}; recomputed from the predictions at the source"
    )
