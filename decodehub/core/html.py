"""HTML from templates: one environment for the templates of every room, which lie in its folder ``templates``."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

ROOMS = Path(__file__).resolve().parents[1]
LIMIT = 300  # characters of a text that comes from others, where a template asks for `clip`


@cache
def environment() -> Environment:
    """The environment: names are paths below the package, such as ``reports/templates/page.html``.

    Every value is escaped unless it is `Markup`, an unknown name is an error, and characters that do not print (such as those that turn the
    direction of a line) become spaces. Templates have ``file(name)``, the text of a style sheet or script as it is, and the filter ``clip``.
    """
    made = Environment(
        loader=FileSystemLoader(ROOMS),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["file"] = source
    made.filters["clip"] = clip
    return made


def render(template: str, /, **values: Any) -> Markup:
    """A template with these values.

    Raises:
        jinja2.UndefinedError: the template names a value that is not given.
    """
    return Markup(environment().get_template(template).render(values))


def source(name: str) -> Markup:
    """A file of ours beside the templates, unchanged; never a file of others."""
    return Markup((ROOMS / name).read_text(encoding="utf-8"))


def clip(text: object, limit: int = LIMIT) -> str:
    """At most `limit` characters of a text, three dots where there is more."""
    plain = str(text)
    return plain if len(plain) <= limit else plain[:limit] + " ..."


def _printable(value: Any) -> Any:
    if isinstance(value, str) and not isinstance(value, Markup):
        return "".join(c if c.isprintable() or c in "\n\t" else " " for c in value)
    return value
