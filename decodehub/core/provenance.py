"""The ``decodehub`` command that runs, in words that may be published: no folder of a machine, no token."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

# Tokens of the Hub: hf_ and 34 letters and digits; hf_oauth_ and hf_jwt_ are longer and have dots.
TOKEN = re.compile(r"hf_(?:(?:oauth|jwt)_[\w.-]{8,}|[A-Za-z0-9]{20,})")
HIDDEN = "hf_[hidden]"
MAX_LENGTH = 4000  # characters
_typed: ContextVar[tuple[str, ...] | None] = ContextVar("typed", default=None)
_SECRET = re.compile(r"(?i)token|key|secret|password")
_TOKEN = re.compile(r"(?<![A-Za-z0-9])hf_[\w.-]+")
# The folders of a path that starts at a root, a home or above the present folder, alone or within an argument such as NAME=FOLDER.
_BORDER = r"[\s,;:=\"'()\[\]{}]"
_ROOT = r"(?:/|(?:~[^\\/]*|[A-Za-z]:|\.\.|\\)[\\/])"
_FOLDERS = re.compile(rf"(?:^|(?<={_BORDER})){_ROOT}(?:(?:(?!{_BORDER}{_ROOT}).)*[\\/])?(?![\\/]|$|{_BORDER}{_ROOT})")


@contextmanager
def running(arguments: Sequence[str]) -> Iterator[None]:
    """While these arguments of ``decodehub`` are carried out, `stated` gives them."""
    before = _typed.set(tuple(arguments))
    try:
        yield
    finally:
        _typed.reset(before)


def stated() -> str | None:
    """The command that runs (`command_line`); None where Python calls without one."""
    arguments = _typed.get()
    return None if arguments is None else command_line(arguments)


def command_line(arguments: Sequence[str]) -> str:
    """A command for readers of a record, at most `MAX_LENGTH` characters.

    Of a path that starts at a root, a home or above the present folder its last name is kept. Values of options and settings with token, key,
    secret or password in their name are hidden, and whatever looks like a token. The folder of results is ``OUT``: equal runs make equal
    records wherever they go.
    """
    shown, option = ["decodehub"], ""
    for argument in arguments:
        name, sign, value = argument.partition("=")
        if _SECRET.search(option):
            shown.append("[hidden]")
        elif argument.startswith("-"):
            shown.append(f"{name}={_value(name, value)}" if sign else _public(argument))
        else:
            shown.append(_value(option, argument))
        option = argument if argument.startswith("-") and not sign else ""
    text = shlex.join(shown)
    return text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH - 4]} ..."


def secrets() -> set[str]:
    """Tokens of this process and machine, to be hidden from every output."""
    from huggingface_hub import get_token

    found = {os.environ.get(name) for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN")} | {get_token()}
    return {token for token in found if token and len(token) >= 8}


def redact(text: str) -> str:
    """`text` without anything that is or looks like a token."""
    for token in secrets():
        text = text.replace(token, HIDDEN)
    return TOKEN.sub(HIDDEN, text)


def _value(option: str, value: str) -> str:
    name, sign, _ = value.partition("=")
    if option == "--out":
        return "OUT"
    if _SECRET.search(option):
        return "[hidden]"
    return f"{_public(name)}=[hidden]" if sign and _SECRET.search(name) else _public(value)


def _public(text: str) -> str:
    plain = "".join(c if c.isprintable() else " " for c in redact(text))
    home = (os.environ.get("HOME") or os.environ.get("USERPROFILE") or "").rstrip("\\/") or "~"
    plain = re.sub(rf"(?:^|(?<={_BORDER})){re.escape(home)}(?=[\\/]|$|{_BORDER})", "~", plain)
    return _FOLDERS.sub("", _TOKEN.sub(HIDDEN, plain))
