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

_KIND = {"sample": "It is a sample or rehearsal release", "simulated": "The recordings were simulated"}


@app.command()
def main(
    target: Annotated[str, typer.Argument(help="A record (folder or record.json), a folder of records or of a data set, or ORG/NAME.")],
    revision: Annotated[str | None, typer.Option(help="Of a Hub repository: a branch, tag, commit or refs/pr/NUMBER.")] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Download the files of a data set too, and not take the Hub's word for their hashes.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit 0 only if everything is recomputed; without it also if nothing is wrong.")
    ] = False,
) -> None:
    """Re-score from the saved predictions and say: recomputed, reported only, or what is wrong.

    A data set is checked by the hashes of its release.json. Of a model on the Hub every field of the numbers that it claims is compared with the
    record and predictions that they name as their source. What lacks its predictions is reported only: say --strict where that must not pass.

    Example: decodehub verify runs/demo
    Example: decodehub verify runs/demo --strict
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
        if len(finding.details) > 20:
            console.print(f"  and {len(finding.details) - 20} more")
        if finding.record is not None and finding.record.kind != "real":
            console.print(f"{_KIND[finding.record.kind]}: these scores say nothing about the benchmark itself.")
    count = {state: sum(finding.state == state for finding in findings) for state in _LABEL}
    console.print(f"{count['recomputed']} recomputed, {count['reported only']} reported only, {count['wrong']} wrong", highlight=False)
    if count["wrong"] or (strict and count["reported only"]):
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
