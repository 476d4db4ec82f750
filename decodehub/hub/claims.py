"""The numbers that a model's repository claims: read from card and ``.eval_results``, and compared field by field with what a record gives.

A claim is right when it says what ``decodehub push`` would write for that record, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import yaml

from decodehub.core.files import read_data
from decodehub.core.records import MAX_NESTING, ResultRecord

from .released import DataSet
from .results import hub_entries, index_entry
from .verify import equal_numbers

CARD = "README.md"
MAX_BYTES = 2_000_000
_FRONT = re.compile(r"\s*---\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_REPO = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
_SOURCE = re.compile(rf"/datasets/({_REPO})/tree/([\w.%-]+)/((?:[\w-][\w.-]*/)*[\w-][\w.-]*)/?", re.ASCII)


class Claim(NamedTuple):
    """One entry of a file.

    Attributes:
        place: the file, in the repository. content: the entry as it was read: of ``.eval_results`` one number, of ``model-index`` one result.
    """

    place: str
    content: dict[str, Any]

    @property
    def metrics(self) -> list[Mapping[str, Any]]:
        """The numbers of a result of ``model-index``; none for an entry of ``.eval_results``."""
        return self.content["metrics"] if self.place == CARD else []

    @property
    def n(self) -> int:
        """How many numbers it claims."""
        return len(self.metrics) if self.place == CARD else 1

    @property
    def url(self) -> str:
        """Where it says that its numbers are from; "" for nowhere."""
        return str((self.content.get("source") or {}).get("url") or "")

    @property
    def dataset(self) -> str:
        """Id of the data set that it is filed under."""
        return str(self.content["dataset"]["type" if self.place == CARD else "id"])

    @property
    def revision(self) -> str | None:
        """The commit of the data set that it states."""
        value = self.content["dataset"].get("revision")
        return None if value is None else str(value)


class Source(NamedTuple):
    """Where a record lies on the Hub: a data set of results, a revision, a folder."""

    repo: str
    revision: str
    path: str


class _Strict(yaml.SafeLoader):
    """YAML without aliases, which can grow without end, of limited depth, and without a key twice, of which readers take one or the other."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has aliases (*): write the values out")
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise yaml.YAMLError(f"it has more than {MAX_NESTING} levels")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        names = [self.construct_object(key, deep=True) for key, _ in node.value]
        if double := next((name for i, name in enumerate(names) if name in names[:i]), None):
            raise yaml.YAMLError(f"the key {double!r} is there twice")
        return super().construct_mapping(node, deep)


def read_claims(path: Path, place: str) -> tuple[list[Claim], list[str]]:
    """The claims of a card or of a file of ``.eval_results``, and its faults. A wrong entry does not hide the others."""
    claims, faults = [], []
    try:
        text = read_data(path, max_bytes=MAX_BYTES).decode("utf-8")
        entries = list(_results(text) if place == CARD else _load(text))
    except (ValueError, yaml.YAMLError, RecursionError, KeyError, TypeError, AttributeError) as error:
        return [], [f"its numbers cannot be read ({type(error).__name__}: {error})"]
    for i, entry in enumerate(entries):
        if fault := _malformed(entry, place):
            faults.append(f"entry {i + 1} cannot be read: {fault}")
        else:
            claims.append(Claim(place, entry))
    return claims, faults


def source_of(url: str, endpoint: str) -> Source | str:
    """The folder of a record that a url names, or in words why it names none."""
    if not url:
        return " without predictions"
    inside = url.removeprefix(endpoint.rstrip("/"))
    if inside == url or not inside.startswith("/"):
        return f" without predictions on this Hub, {endpoint} (source {url[:300]})"
    match = _SOURCE.fullmatch(inside)
    if match is None:
        return f" without predictions (source {url[:300]})"
    return Source(match[1], unquote(match[2]), match[3])


def doubles(claims: Iterable[Claim]) -> list[str]:
    """Numbers that are claimed twice, in words: the Hub has one value for a data set and task, and a card one for a source and name."""
    seen: dict[tuple[str, ...], str] = {}
    found = []
    for claim in claims:
        if claim.place == CARD:
            keys = [(claim.place, claim.url, _label(metric)) for metric in claim.metrics if claim.url]
        else:
            keys = [("", claim.dataset, str(claim.content["dataset"]["task_id"]))]
        for key in keys:
            if key in seen:
                found.append(f"{key[2]} of {claim.dataset}: in {seen[key]} and in {claim.place}")
            seen.setdefault(key, claim.place)
    return found


def compare_claim(claim: Claim, record: ResultRecord, model: str) -> list[str]:
    """Everything that a claim says and its record does not, in words.

    Args:
        claim: what is claimed. record: what is at its source. model: the repository that claims it, ``ORG/NAME``.
    """
    faults = []
    if record.model.id not in (model, model.split("/")[-1]):
        faults.append(f"the record is of model {record.model.id!r}, these are claimed for {model!r}")
    stated, data = dict(claim.content), DataSet(claim.dataset, claim.revision or "")
    stated["dataset"] = {key: value for key, value in stated["dataset"].items() if key != "revision"}  # compared with the Hub
    if claim.place != CARD:
        task = stated["dataset"]["task_id"]
        right = next((entry for entry in hub_entries(record, claim.url, data) if entry["dataset"]["task_id"] == task), None)
        if right is None:
            return [*faults, f"{task}: the record has no headline number of that name for a leaderboard"]
        right["dataset"].pop("revision", None)
        return faults + [f"{task}: {words}" for words in _differences(stated, right)]
    right = index_entry(record, claim.url, data)
    right["dataset"].pop("revision", None)
    numbers = {_label(metric): metric for metric in right.pop("metrics")}
    faults += _differences({key: value for key, value in stated.items() if key != "metrics"}, right)
    for metric in claim.metrics:
        name = _label(metric)
        faults += [f"{name}: {words}" for words in _differences(metric, numbers[name])] if name in numbers else [f"{name}: no such number"]
    return faults


def _differences(stated: Any, right: Any, where: str = "") -> list[str]:
    """Every leaf in which two values of JSON differ, in words."""
    if isinstance(stated, Mapping) and isinstance(right, Mapping):
        keys = [*right, *(key for key in stated if key not in right)]
        return [w for key in keys for w in _differences(stated.get(key), right.get(key), f"{where}.{key}" if where else str(key))]
    left = stated if isinstance(stated, (int, float, list, bool, type(None))) else str(stated)  # YAML reads a bare date as one
    if isinstance(left, bool) is isinstance(right, bool) and equal_numbers(_plain(left), _plain(right)):
        return []
    what = "nothing" if right is None else right
    place = "" if where == "value" else f"{where} "
    return [f"{place}stated {left!r}, {'recomputed' if where == 'value' else 'expected'} {what}"[:600]]


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _label(metric: Mapping[str, Any]) -> str:
    return str(metric.get("name") or metric["type"])


def _load(text: str) -> list[Any]:
    entries = yaml.load(text, _Strict)  # noqa: S506  (a SafeLoader)
    if not isinstance(entries, list):
        raise TypeError(f"expected a list of entries, found {type(entries).__name__}")
    return entries


def _results(text: str) -> Iterator[Any]:
    match = _FRONT.match(text)
    front = (yaml.load(match[1], _Strict) if match else None) or {}  # noqa: S506  (a SafeLoader)
    for index in front.get("model-index") or []:
        yield from index.get("results") or []


def _malformed(entry: Any, place: str) -> str | None:
    """Why an entry is none, or None."""
    if not isinstance(entry, dict) or not isinstance(entry.get("dataset"), dict):
        return "expected a mapping with a data set"
    if not isinstance(entry.get("source") or {}, dict):
        return "its source is no mapping"
    wanted = {"type"} if place == CARD else {"id", "task_id"}
    if missing := sorted(wanted - entry["dataset"].keys()):
        return f"its data set lacks {', '.join(missing)}"
    if place != CARD:
        return None if "value" in entry else "it has no value"
    metrics = entry.get("metrics")
    if not isinstance(metrics, list) or not all(isinstance(m, dict) and "value" in m and "type" in m for m in metrics):
        return "its metrics are not a list of types and values"
    return None
