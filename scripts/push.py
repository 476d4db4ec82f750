"""Publish on the Hugging Face Hub: a data set, a trained model, a metric, or the numbers of a result record."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def main(
    what: Annotated[
        str, typer.Argument(help="Name of a data set or metric, folder of a trained model, or folder of a record (with --model).")
    ],
    org: Annotated[str | None, typer.Option(help="Organisation or user of the Hub to publish in.")] = None,
    model: Annotated[str | None, typer.Option(help="ORG/MODEL whose numbers the record WHAT is.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the repository; by default that of WHAT.")] = None,
    kind: Annotated[str | None, typer.Option(help="dataset or metric, where both have the name WHAT.")] = None,
    data_dir: Annotated[str | None, typer.Option(help='Folder of the release of a data set, or "sample".')] = None,
    results: Annotated[str | None, typer.Option(help="ORG/NAME of the data set for predictions; by default ORG/decodehub-results.")] = None,
    dataset: Annotated[str | None, typer.Option(help="ORG/NAME of the data set that holds what the record was scored on.")] = None,
    results_only: Annotated[
        bool, typer.Option("--results-only", help="Publish the record WHAT and its predictions; write no numbers on a model.")
    ] = False,
    public: Annotated[bool, typer.Option("--public", help="Make a new repository public; private otherwise.")] = False,
    direct: Annotated[bool, typer.Option("--direct", help="Commit to main; a pull request otherwise.")] = False,
    into_existing: Annotated[
        bool, typer.Option("--into-existing", help="Push into a repository that holds files of others; they are shown, and stay.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Send it. Without this the files and sizes are shown and nothing is sent.")] = False,
) -> None:
    """Publish WHAT on the Hub, after checks and a list of the files.

    Refused are an unknown licence, or one that does not let the images be passed on, photographs of THINGS, pickles, tokens, incomplete
    releases, and numbers of a release that the data set on the Hub does not hold. An interrupted push goes on where it stopped; a second one
    of the same content sends nothing. Without --yes, a record is shown also where there is no token or no network.

    Example: decodehub push eeg-editbench --org my-lab --data-dir releases/1.0 --yes
    """
    from rich.console import Console

    from decodehub.core.provenance import redact
    from decodehub.hub.client import HubError
    from decodehub.hub.publish import Options, push_record, push_thing, record_folder

    options, console = Options(public, direct, yes, into_existing), Console()

    def say(line: str) -> None:
        console.print(redact(line), markup=False, highlight=False, soft_wrap=True)

    try:
        if model is not None or results_only:
            target = None if results_only else model
            push_record(record_folder(what), target, options, say, results=results, org=org, data=dataset)
        elif org is None:
            raise ValueError("say where to publish: --org ORG (or --model ORG/MODEL for a record)")
        else:
            push_thing(what, org, name, kind, data_dir, options, say)
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        raise HubError(redact(str(error))) from None


if __name__ == "__main__":
    app()
