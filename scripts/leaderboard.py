"""The leaderboard of result records: three boards in the browser, or as CSV."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from decodehub.leaderboard.boards import Table
    from decodehub.leaderboard.data import Loaded

app = typer.Typer(add_completion=False)

_SPACE_README = """---
title: decodehub leaderboard
sdk: gradio
sdk_version: {gradio}
app_file: app.py
license: apache-2.0
datasets: [{repo}]
---

Boards of EEG-EditBench, BCS and iMINDBench from the records of [{repo}](https://huggingface.co/datasets/{repo}), each scored anew from its predictions.
"""
_SPACE_APP = '''"""The decodehub leaderboard of {repo}."""

from decodehub.scripts.leaderboard import serve

serve(hub="{repo}", host="0.0.0.0", port=7860)
'''


@app.command()
def main(
    records: Annotated[Path, typer.Argument(help="Folder that holds folders of records, at any depth.")] = Path("runs"),
    hub: Annotated[
        str | None, typer.Option(help="Results repository of the Hub, in place of a folder, such as ORG/decodehub-results.")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Commit or branch of the repository.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 opens it to the network.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(help="Port; by default the first free one from 7860.")] = None,
    verify: Annotated[bool, typer.Option(help="Score records anew in the background; each only once.")] = True,
    csv: Annotated[Path | None, typer.Option(help="Check all records, write the boards to this CSV file, and stop.")] = None,
    row: Annotated[str | None, typer.Option(help="With --csv: only this row, by the key that its page shows.")] = None,
    samples: Annotated[bool, typer.Option("--samples", help="With --csv: samples and simulated runs in place of real results.")] = False,
    write_space: Annotated[
        Path | None, typer.Option(help="With --hub: write the files of a Gradio Space to this folder, and stop.")
    ] = None,
) -> None:
    """Show the records of a folder or a Hub repository as a leaderboard in the browser.

    The page needs gradio, the extra `leaderboard`; --csv needs nothing.

    Example: decodehub leaderboard runs
    Example: decodehub leaderboard runs --csv boards.csv
    Example: decodehub leaderboard --hub ORG/decodehub-results --write-space space
    """
    if write_space is not None:
        if hub is None:
            raise ValueError("--write-space needs --hub ORG/RESULTS, the repository that the Space shows")
        _write_space(write_space, hub)
    elif csv is not None:
        _write_csv(csv, _reader(records, hub, revision)(), row, samples, verify)
    else:
        serve(records, hub=hub, revision=revision, host=host, port=port, verify=verify)


def serve(
    records: Path = Path("runs"),
    *,
    hub: str | None = None,
    revision: str | None = None,
    host: str = "127.0.0.1",
    port: int | None = None,
    verify: bool = True,
) -> None:
    """Serve the page until it is stopped.

    Raises:
        ImportError: gradio is not installed.
        FileNotFoundError: there is no such folder.
    """
    read = _reader(records, hub, revision)
    try:
        from decodehub.leaderboard import app as _leaderboard_app
    except ModuleNotFoundError as error:
        if error.name != "gradio":
            raise
        raise ImportError(
            "the leaderboard in the browser needs gradio: pip install 'decodehub[leaderboard]'; --csv needs nothing"
        ) from None
    from decodehub.leaderboard.checks import Checks

    store = _leaderboard_app.Store(read, Checks(), verify=verify)
    n, wrong = len(store.loaded.entries), len(store.loaded.problems)
    typer.echo(f"records      {n}" + (f", not valid: {wrong} (see About)" if wrong else ""))
    page = _leaderboard_app.build(store)
    _, url, _ = page.launch(server_name=host, server_port=port, prevent_thread_lock=True, **_leaderboard_app.launch_options())
    typer.echo(f"leaderboard  {url}   (stop with Ctrl+C)")
    page.block_thread()


def _reader(records: Path, hub: str | None, revision: str | None) -> Callable[[], Loaded]:
    from decodehub.leaderboard.data import read_folder, read_hub

    return (lambda: read_folder(records)) if hub is None else (lambda: read_hub(hub, revision))


def _write_csv(path: Path, loaded: Loaded, row: str | None, samples: bool, verify: bool) -> None:
    from decodehub.core.files import write_bytes
    from decodehub.leaderboard.checks import Checks
    from decodehub.leaderboard.html import to_csv

    checks, key = Checks(), (row or "").partition("/")[0]
    wanted = [e for e in loaded.entries if row is None or e.key == key]
    if verify:
        from tqdm import tqdm

        for entry in tqdm(wanted, desc="scoring anew", disable=None):
            checks.make(entry)
    samples = samples if row is None else any(e.separate for e in wanted)
    tables = _tables(loaded._replace(entries=tuple(wanted)), checks, samples)
    if row is not None:
        tables = [t._replace(placed=tuple(p for p in t.placed if p.row.key == row)) for t in tables]
    parts = [to_csv(t) for t in tables if t.placed]
    if row is not None and not parts:
        raise ValueError(f"no row of {loaded.root} has the key {row!r}")
    lines = [line for i, part in enumerate(parts) for line in part.splitlines(keepends=True)[1 if i else 0 :]]
    write_bytes(path, "".join(lines).encode())
    typer.echo(f"{path}: {max(0, len(lines) - 1)} numbers" + (" of samples, which say nothing about the benchmarks" if samples else ""))
    for problem in loaded.problems:
        typer.secho(f"{problem.path} is not shown: {problem.reason}", fg="yellow", err=True)


def _tables(loaded: Loaded, checks: object, samples: bool) -> list[Table]:
    """Every board with its headline numbers, one table for each set of rows that may be compared, then the reported rows."""
    from decodehub.leaderboard.boards import boards, groups, make_table, rows_of
    from decodehub.leaderboard.checks import Checks

    assert isinstance(checks, Checks)
    found = []
    for board in boards():
        rows = rows_of(board, loaded.entries, samples=samples)
        first, (_, opts) = next(iter(board.choosers.items()))
        for value in [v for _, v in opts] if first == "table" else [opts[0][1]]:
            for subset in [v for _, v in board.choosers["subset"][1]] if "subset" in board.choosers else [""]:
                choices = {first: value, "subset": subset}
                own = [row for row in rows if board.keep(row, choices)]
                for _, group in groups(own):
                    found.append(make_table(board, [r for r in own if r.entry is not None], checks, {**choices, "group": group}))
                found.append(make_table(board, [r for r in own if r.entry is None], checks, choices))
    return found


def _write_space(folder: Path, repo: str) -> None:
    import gradio

    from decodehub import __version__
    from decodehub.core.files import write_bytes
    from decodehub.leaderboard.data import repo_name

    name = repo_name(repo)
    files = {
        "README.md": _SPACE_README.format(gradio=gradio.__version__, repo=name),
        "app.py": _SPACE_APP.format(repo=name),
        "requirements.txt": f"decodehub[leaderboard]=={__version__}\n",
    }
    for file, text in files.items():
        write_bytes(folder / file, text.encode())
    typer.echo(f"{folder}: {', '.join(files)}. Publish it: hf upload ORG/leaderboard {folder} --repo-type space")


if __name__ == "__main__":
    app()
