"""Words for errors."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def suggest(name: str, options: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` with the option that is nearest to `name`, or an empty string where none is near."""
    near = get_close_matches(str(name), [str(option) for option in options], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
