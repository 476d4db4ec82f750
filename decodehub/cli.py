"""The ``decodehub`` command: one verb a file of ``scripts/``, found by looking at the folder, imported when called."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from . import __version__
from .core import provenance
from .core.entry import Entry, names


def _verbs() -> dict[str, str]:
    spec = importlib.util.find_spec("decodehub.scripts")
    assert spec is not None and spec.submodule_search_locations
    files = sorted(Path(next(iter(spec.submodule_search_locations))).glob("[a-z]*.py"))
    return {file.stem.replace("_", "-"): f"decodehub.scripts.{file.stem}" for file in files}


class _Verbs(TyperGroup):
    """Commands of this module, and one for every script that defines a typer `app`."""

    def main(self, args: Any = None, *more: Any, **options: Any) -> Any:
        with provenance.running(sys.argv[1:] if args is None else args):
            return super().main(args, *more, **options)

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *_verbs()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if (module := _verbs().get(cmd_name)) is not None:
            command = typer.main.get_command(importlib.import_module(module).app)
            command.name = cmd_name
            return command
        return super().get_command(ctx, cmd_name)


app = typer.Typer(
    cls=_Verbs,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    """Benchmarks, models and metrics for decoding the brain, by name.

    Start with `decodehub demo`; `decodehub list` shows what there is.
    """
    if version:
        typer.echo(__version__)
        raise typer.Exit


@app.command("list")
def list_names() -> None:
    """List the datasets, metrics and models that load by name."""
    from rich.console import Console

    from .core.tables import Column, Table

    columns = ["kind", Column("name", justify="left"), Column("how it is loaded", justify="left", wrap=True)]
    Console().print(Table(columns, [(entry.kind, entry.name, _call(entry)) for entry in names()]).rich(box=False))


@app.command()
def info(name: Annotated[str, typer.Argument(help="A name that `decodehub list` shows, e.g. eeg-editbench.")]) -> None:
    """Show the card of a dataset, metric or model.

    Example: decodehub info eeg-editbench
    """
    from rich.console import Console
    from rich.markdown import Markdown

    matches = [entry for entry in names() if name in (entry.name, entry.name.rsplit("/", 1)[-1])]
    if not matches:
        raise typer.BadParameter(f"nothing is called {name!r}; there are {', '.join(entry.name for entry in names())}")
    for entry in matches:
        card = (entry.folder / "README.md").read_text(encoding="utf-8")
        text = card.split("---\n", 2)[-1] if card.startswith("---\n") else card
        Console().print(f"[bold]{entry.kind} {entry.name}[/bold]   {_call(entry)}\n", Markdown(text), sep="")


def _call(entry: Entry) -> str:
    if entry.kind == "dataset":
        return f'load_dataset("{entry.name}")'
    if entry.kind == "metric":
        return f'evaluate.load("{entry.name}")'
    return f"from {entry.module} import ..."


def main() -> None:
    """Run the command; an error that a user can mend is one line, and `DECODEHUB_DEBUG=1` shows where it came from."""
    import os

    try:
        app(prog_name="decodehub")
    except (ValueError, FileNotFoundError, KeyError, ImportError, RuntimeError, OSError) as error:
        if os.environ.get("DECODEHUB_DEBUG"):
            raise
        message = error.args[0] if isinstance(error, KeyError) and error.args else error
        typer.secho(f"Error: {message}", fg="red", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
