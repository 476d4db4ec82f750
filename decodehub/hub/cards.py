"""Cards of repositories: YAML and text, of which what others wrote there survives to the letter.

What this package writes of a card's text stands between two marks; the first has the hash of what is between them, so that a change by others is
seen. Of the YAML, whole keys are replaced; every other key keeps its lines, with comments and the way that it is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from decodehub.core.files import sha256_bytes

UNITED = ("tags", "language")  # lists to which others may have added
_BEGIN = re.compile(r"<!-- decodehub ([0-9a-f]{12}): [^\n]*-->\n")
_BEGIN_TEXT = "<!-- decodehub {}: written by `decodehub push`; text of your own is kept when it stands before or after these marks -->\n"
_END = "<!-- /decodehub -->\n"


class Card(NamedTuple):
    """A card: `blocks` are the top-level keys with their lines as they stand, `front` their values, `body` the text."""

    blocks: dict[str, str]
    front: dict[str, Any]
    body: str


def decode(data: bytes, what: str) -> str:
    """Text of a card.

    Raises:
        ValueError: it is not UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"the card of {what} is not UTF-8 text ({error}), so it is not written back: mend it first") from None


def read_card(path: Path) -> tuple[dict[str, Any], str]:
    """YAML and text of a card of this package.

    Raises:
        ValueError: it does not begin with YAML.
    """
    card = parse(path.read_text(encoding="utf-8"), str(path))
    if not card.front:
        raise ValueError(f"{path} must begin with YAML between two lines of ---")
    return card.front, card.body


def split_card(text: str, what: str) -> tuple[dict[str, Any], str]:
    """YAML and text of a card; no YAML is an empty one.

    Raises:
        ValueError: the YAML cannot be read.
    """
    card = parse(text, what)
    return card.front, card.body


def parse(text: str, what: str) -> Card:
    """Take a card apart; no YAML is an empty one.

    Args:
        text: of the card. what: whose, for errors.

    Raises:
        ValueError: the YAML has no end, cannot be read, is no mapping or has a key twice.
    """
    if (opening := re.match(r"\s*---[ \t]*\r?\n", text)) is None:
        return Card({}, {}, text)
    closing = re.compile(r"^---[ \t]*(?:\r?\n|\Z)", re.MULTILINE).search(text, opening.end())
    if closing is None:
        raise ValueError(f"the YAML of the card of {what} has no end (a second line of ---): mend it first")
    source, body = text[opening.end() : closing.start()], text[closing.end() :]
    try:
        node = yaml.compose(source, yaml.SafeLoader)
        front = yaml.safe_load(source)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        said = " ".join(str(error).split())
        raise ValueError(f"the YAML of the card of {what} cannot be read ({said}): mend it first") from None
    if front is None:
        return Card({}, {}, body)
    if not isinstance(node, yaml.MappingNode) or not isinstance(front, dict):
        raise ValueError(f"the YAML of the card of {what} is no mapping: mend it first")
    names = [str(key.value) for key, _ in node.value]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the YAML of the card of {what} has the key {twice!r} twice: mend it first")
    if node.flow_style:  # {a: 1, b: 2}: its keys have no lines of their own
        return Card({name: _dump(name, value) for name, value in front.items()}, front, body)
    lines = source.splitlines(keepends=True)
    starts = [key.start_mark.line for key, _ in node.value]
    starts[0] = 0  # comments above belong to the first key
    blocks = {name: "".join(lines[a:b]) for name, a, b in zip(names, starts, [*starts[1:], len(lines)])}
    return Card(blocks, front, body)


def with_values(text: str, what: str, values: Mapping[str, Any]) -> str:
    """A card with other values of some keys, None to take a key away; everything else keeps its letters.

    Raises:
        ValueError: as :func:`parse`.
    """
    card = parse(text, what)
    return _checked(_joined(_replaced(card, values), card.body), card, values, what)


def merged(ours: str, there: str | None, what: str, *, managed: Iterable[str] = (), replace: bool = False) -> str:
    """Our card for a repository in place of the one that is there, of which what others wrote survives.

    Args:
        ours: our YAML and text.
        there: the card that is there, or None.
        what: whose, for errors.
        managed: keys that are ours even where `ours` does not have them.
        replace: replace our part of the text even where others have changed it.

    Raises:
        ValueError: the card that is there is damaged, or our part of its text was changed by others.
    """
    mine = parse(ours, what)
    text = mine.body.strip("\n") + "\n"
    part = _BEGIN_TEXT.format(_hash(text)) + text + _END
    if there is None or not there.strip():
        return _joined({name: _dump(name, value) for name, value in mine.front.items()}, f"\n{part}")
    card = parse(there, what)
    values: dict[str, Any] = {**dict.fromkeys(managed), **mine.front}
    for name in UNITED:
        if isinstance(old := card.front.get(name), list) and isinstance(new := values.get(name), list):
            values[name] = [*new, *(value for value in old if value not in new)]
    return _checked(_joined(_replaced(card, values), _with_part(card.body, part, what, replace)), card, values, what)


def _checked(text: str, former: Card, values: Mapping[str, Any], what: str) -> str:
    """The new card, which must be read back with its new values and every other one as it was (an anchor may have gone with its key)."""
    expected = {**former.front, **values}
    if parse(text, what).front != {name: value for name, value in expected.items() if value is not None or name not in values}:
        raise ValueError(
            f"the YAML of the card of {what} cannot be changed without changing keys of others (an anchor, or a tag): mend it first"
        )
    return text


def _with_part(body: str, part: str, what: str, replace: bool) -> str:
    begins, ends = list(_BEGIN.finditer(body)), [match.start() for match in re.finditer(re.escape(_END.rstrip("\n")), body)]
    if not begins and not ends:
        return f"{body.rstrip()}\n\n{part}" if body.strip() else f"\n{part}"
    if len(begins) != 1 or len(ends) != 1 or ends[0] < begins[0].end():
        raise ValueError(
            f"the card of {what} has the marks of decodehub {len(begins)} and {len(ends)} times: leave one pair, in their order"
        )
    inside = body[begins[0].end() : ends[0]]
    if _hash(inside) != begins[0][1] and not replace:
        raise ValueError(
            f"in the card of {what} the text between the marks of decodehub was changed by others: move their text before or after the "
            "marks, where it is kept, or give --into-existing to replace it"
        )
    return body[: begins[0].start()] + part + body[ends[0] + len(_END) :]


def _replaced(card: Card, values: Mapping[str, Any]) -> dict[str, str]:
    blocks = dict(card.blocks)
    for name, value in values.items():
        if value is None:
            blocks.pop(name, None)
        elif name not in blocks or card.front.get(name) != value:
            blocks[name] = _dump(name, value)
    return blocks


def _joined(blocks: Mapping[str, str], body: str) -> str:
    return "---\n" + "".join(block if block.endswith("\n") else block + "\n" for block in blocks.values()) + "---\n" + body


def _dump(name: str, value: Any) -> str:
    return yaml.safe_dump({name: value}, sort_keys=False, allow_unicode=True)


def _hash(text: str) -> str:
    return sha256_bytes(text.encode()).removeprefix("sha256:")[:12]
