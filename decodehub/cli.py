"""The ``decodehub`` command: one verb a file of ``scripts/``, found by looking at the folder, imported when called."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from . import __version__
from .core import provenance
from .core.entry import Entry, names
from .core.words import suggest

_UsageError: Any = typer.BadParameter.mro()[1]  # typer carries a copy of click in some versions and imports it in others


def _verbs() -> dict[str, Path]:
    spec = importlib.util.find_spec("decodehub.scripts")
    assert spec is not None and spec.submodule_search_locations
    files = sorted(Path(next(iter(spec.submodule_search_locations))).glob("[a-z]*.py"))
    return {file.stem.replace("_", "-"): file for file in files}


def _first_docstring(file: Path) -> str:
    """The docstring of a module, which is not imported: listing thirteen verbs must not cost what they import."""
    text = file.read_text(encoding="utf-8")
    end = text.find('"""', text.find('"""') + 3)
    return ast.get_docstring(ast.parse(text[: end + 3])) or ""


class _Verbs(TyperGroup):
    """Commands of this module, and one for every script that defines a typer `app`: imported when it is called, read when it is listed."""

    def main(self, args: Any = None, *more: Any, **options: Any) -> Any:
        with provenance.running(sys.argv[1:] if args is None else args):
            return super().main(args, *more, **options)

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *_verbs()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if (file := _verbs().get(cmd_name)) is not None:
            return TyperCommand(cmd_name, help=_first_docstring(file))
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and (file := _verbs().get(name)) is not None:
            command = typer.main.get_command(importlib.import_module(f"decodehub.scripts.{file.stem}").app)
            command.name = name
        return name, command, rest


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
        known = [entry.name for entry in names()]
        raise typer.BadParameter(f"nothing is called {name!r}; there are {', '.join(known)}{suggest(name, known)}")
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


STOPPED = "Stopped. What is finished is kept: run the same command again to go on."


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which stops the command as Ctrl-C does."""


def main() -> None:
    """Run the command; an error is one line, and `DECODEHUB_DEBUG=1` shows where it came from.

    Exit codes: 0, 1 (an error, or something is wrong with what was checked), 2 (options that there are not), 130 (Ctrl-C), 143 (SIGTERM).
    """
    terminated = False

    def terminate(number: int, frame: FrameType | None) -> None:
        nonlocal terminated
        terminated = True
        raise _Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        code = _run()
    finally:
        signal.signal(signal.SIGTERM, before)
    if code == 130:
        typer.secho(STOPPED, fg="yellow", err=True)
        code = 143 if terminated else 130
    if code:
        sys.exit(code)


def _run() -> int:
    """The exit code of the command that `sys.argv` states; 130 when it was stopped."""
    try:
        code = app(prog_name="decodehub", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except _UsageError as error:
        return _usage(error)
    except BrokenPipeError:  # the reader of the output, such as head, has enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123  (else Python complains once more at the end)
        return 1
    except Exception as error:
        if os.environ.get("DECODEHUB_DEBUG"):
            raise
        typer.secho(f"Error: {_in_words(error)}", fg="red", err=True)
        return 1


def _usage(error: Any) -> int:
    """What is wrong with the options, in one line; the help where there were none."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return 2
    command = error.ctx.command_path if error.ctx is not None else "decodehub"
    typer.secho(f"Error: {' '.join(error.format_message().split())} (see '{command} --help')", fg="red", err=True)
    return 2


_EXPECTED = (ValueError, LookupError, ImportError, RuntimeError, OSError)


def _in_words(error: Exception) -> str:
    message = str(error.args[0] if isinstance(error, KeyError) and error.args else error).strip()
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, _EXPECTED) and " " in message:
        return message
    # Not one of ours: the kind of error is all that may tell what it means.
    return f"{type(error).__name__}: {message or 'no message'} (DECODEHUB_DEBUG=1 shows where it came from)"


if __name__ == "__main__":
    main()
