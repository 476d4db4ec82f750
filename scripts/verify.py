"""Re-score result records from their saved predictions and compare: of a folder, of many, or of a repository on the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from decodehub.hub.client import HubError
from decodehub.hub.verify import check_folder
from decodehub.hub.verify_remote import is_repo_id, verify_hub

app = typer.Typer(add_completion=False)
_STYLE = {"recomputed": "bold green", "reported only": "bold yellow", "wrong": "bold red"}
_LABEL = {"recomputed": "RECOMPUTED", "reported only": "REPORTED ONLY", "wrong": "NOT VERIFIED"}


@app.command()
def main(
    target: Annotated[str, typer.Argument(help="A record (folder or record.json), a folder of records or of a data set, or ORG/NAME.")],
    revision: Annotated[str | None, typer.Option(help="Of a Hub repository: a branch, tag, commit or refs/pr/NUMBER.")] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Download the files of a data set too, and not take the Hub's word for their hashes.")
    ] = False,
) -> None:
    """Re-score from the saved predictions and say: recomputed, reported only, or what is wrong.

    A data set is checked by the hashes of its release.json. Of a model on the Hub the numbers of its card are compared with the predictions that
    they name as their source.

    Example: decodehub verify runs/demo
    """
    from rich.console import Console
    from rich.markup import escape

    if Path(target).exists() or not is_repo_id(target):
        findings = check_folder(Path(target))
    else:
        try:
            findings = verify_hub(target, revision, deep=deep)
        except HubError as error:
            raise HubError(f"{error}. There is no folder {target} on this machine either") from None
    console = Console()
    for finding in findings:
        console.print(f"[{_STYLE[finding.state]}]{_LABEL[finding.state]}[/]: {escape(finding.what)}")
        for line in finding.details[:20]:
            console.print(f"  {line}", markup=False)
        if finding.record is not None and finding.record.is_sample:
            console.print("It is a sample or rehearsal release: these scores say nothing about the benchmark itself.")
    if any(finding.state == "wrong" for finding in findings):
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
