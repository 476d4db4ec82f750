"""Publish on the Hugging Face Hub: a data set, a trained model, a metric, or the numbers of a result record."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from decodehub.core.entry import Entry, names
from decodehub.core.files import home
from decodehub.core.provenance import redact
from decodehub.core.records import RECORD, ResultRecord
from decodehub.hub.client import HubError, Plan, Published, Repo, ask, hub_api, is_ours, local_files, make_plan, send_plan

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from rich.console import Console

app = typer.Typer(add_completion=False)
OWNER = "OWNER"  # stands for the owner of the token where nobody can be asked who that is
REACH_S = 10.0  # for the Hub to answer at all


class Options(NamedTuple):
    """How to push: `public` makes a new repository public; `direct` commits instead of a pull request; `go` sends and does not only show."""

    public: bool = False
    direct: bool = False
    go: bool = False


class Staged(NamedTuple):
    """A folder that is ready to be sent: `owned` are patterns of files that a former push may have left."""

    repo: Repo
    folder: Path
    title: str
    owned: tuple[str, ...]


@contextmanager
def staging() -> Iterator[Path]:
    """An empty folder below ``$DECODEHUB_HOME``, on one file system with the data sets that are made there."""
    home().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home(), prefix=".push.") as scratch:
        yield Path(scratch)


def push_thing(
    what: str, org: str, name: str | None, kind: str | None, data_dir: str | None, options: Options, console: Console
) -> Published | None:
    """Publish a data set or metric by its name, or a model by its folder; None where it was only shown.

    Raises:
        ValueError: nothing is called so, or it may not be published. HubError: the Hub refused or failed.
    """
    from decodehub.hub.checks import check_files, refuse

    api = hub_api()
    with staging() as folder:
        if (entry := _entry(what, kind)) is not None and entry.kind == "dataset":
            from decodehub.hub.dataset import OWNED, stage_dataset

            staged = Staged(Repo("dataset", f"{org}/{name or entry.name}"), folder, f"Release of {entry.name}", OWNED)
            faults = stage_dataset(entry, folder, staged.repo, data_dir)
        elif entry is not None:
            from decodehub.hub.metric import OWNED as METRIC
            from decodehub.hub.metric import stage_metric

            # `evaluate` looks for a script with the name of the repository.
            if name not in (None, entry.name):
                raise ValueError(f"a metric keeps its name: leave --name out, or say {entry.name}")
            staged = Staged(Repo("space", f"{org}/{entry.name}"), folder, f"Metric {entry.name}", METRIC)
            faults = stage_metric(entry, folder, staged.repo)
        else:
            from decodehub.hub.model import OWNED as MODEL
            from decodehub.hub.model import find_model, stage_model

            source = _existing(what)
            repo = Repo("model", f"{org}/{name or _model_name(source, find_model(source))}")
            staged = Staged(repo, folder, f"Model {repo.id.split('/')[1]}", MODEL)
            faults = stage_model(source, folder, repo, card_there(api, repo))
        refuse(faults + check_files(folder), staged.repo.page)
        return carry_out(api, staged, options, console)


def push_record(record: Path, model: str, results: str | None, org: str | None, options: Options, console: Console) -> list[Published]:
    """Publish a record: its predictions in a data set of results, its numbers on the model; what was published is loaded back and re-scored.

    Args:
        record: its folder.
        model: ``ORG/MODEL``. Of someone else it gets a pull request.
        results: ``ORG/NAME`` of the data set of results; by default ``decodehub-results`` of `org`.
        org: whose benchmark and results; by default the owner of the token.

    Without `options.go`, and without a token or network, what this machine knows is shown.

    Raises:
        ValueError: the record is wrong, or is of another model. HubError: the Hub refused or failed.
    """
    from decodehub.hub.checks import check_files, refuse
    from decodehub.hub.results import RESULTS, stage_numbers, stage_results

    api, found, target = hub_api(), _right_record(record, model), Repo("model", model)
    card, why = None, None if options.go else out_of_reach(api)
    if why is None:
        me = ask(api.whoami, target)["name"]
        org = org or me
        card = card_there(api, target)
        if card is None:
            ask(lambda: api.repo_info(model, repo_type="model"), target)  # a model that is not there is an error
    elif org is None:
        org, why = OWNER, f"{why}; {OWNER} stands for the owner of the token (or say --org)"
    home_of_results = Repo("dataset", results or f"{org}/{RESULTS}")
    with_card = why is not None or card_there(api, home_of_results) is None
    done = []
    with staging() as scratch:
        first, second = scratch / "results", scratch / "model"
        path = stage_results(record, found, first, with_card=with_card)
        url = f"{api.endpoint}/{home_of_results.page}/tree/main/{path}"
        stage_numbers(found, second, target, card, url, org)
        both = ((first, home_of_results), (second, target))
        for folder, repo in both:
            refuse(check_files(folder), repo.page)
        if not options.go:
            show_numbers(found, url, org, console)
        if why is not None:
            show_unread(both, why, console)
            return []
        title = f"{found.benchmark.id} of {found.model.id}"
        for folder, repo in both:
            # To the model of someone else there is no other way than a pull request.
            own = ask(lambda repo=repo: is_ours(api, repo), repo)  # type: ignore[misc]
            published = carry_out(
                api, Staged(repo, folder, f"Results: {title}", ()), options._replace(direct=options.direct and own), console
            )
            if published is None:
                continue
            done.append(published)
            if repo is home_of_results:
                load_back(api, published, path, console)
    return done


def _right_record(folder: Path, model: str) -> ResultRecord:
    from decodehub.hub.verify import verify
    from decodehub.hub.verify_remote import is_repo_id

    found, differences = verify(folder)
    if differences:
        raise ValueError(f"{folder}: {len(differences)} numbers are not what the predictions give: see decodehub verify {folder}")
    if not is_repo_id(model):
        raise ValueError(f"--model must be ORG/NAME of a model on the Hub, found {model!r}")
    if "/" in found.model.id and found.model.id != model:
        raise ValueError(f"the record is of model {found.model.id!r}, not of {model!r}: score the published model, or push to that one")
    return found


def load_back(api: HfApi, published: Published, path: str, console: Console) -> None:
    """Download a record that was just published and score it anew.

    Raises:
        HubError: what is on the Hub does not give the record's numbers.
    """
    from decodehub.hub.verify_remote import check_records

    found = check_records(api, published.repo, published.revision, path)
    if [finding.state for finding in found] != ["recomputed"]:
        words = "; ".join(finding.what for finding in found) or "no record is there"
        raise HubError(f"what was published at {published.repo.page} does not verify: {words}")
    console.print(f"  loaded back and scored anew: {found[0].what}", markup=False, highlight=False)


def carry_out(api: HfApi, staged: Staged, options: Options, console: Console) -> Published | None:
    """Show what would be sent and, with `options.go`, send it."""
    plan = make_plan(
        api, staged.repo, staged.folder, staged.title, owned=staged.owned, propose=not options.direct, private=not options.public
    )
    show(plan, console, options)
    if not options.go and not plan.nothing_to_do:
        console.print("  nothing was sent: this is what --yes would do", highlight=False)
        return None
    published = send_plan(api, plan, staged.owned)
    where = "" if published.pull is None else f", pull request {published.pull}"
    if published.changed:
        console.print(
            f"  published as {published.revision[:12]}{where}: {api.endpoint}/{staged.repo.page}", highlight=False, soft_wrap=True
        )
    return published


def show(plan: Plan, console: Console, options: Options) -> None:
    """Print where a plan goes and every file with its size."""
    if plan.nothing_to_do:
        where = "" if plan.pull is None else f" in pull request {plan.pull}"
        console.print(f"[bold]{plan.repo.page}[/bold]: all {plan.same} files are there{where}; nothing to do", highlight=False)
        return
    new = "" if plan.exists else (", new and private" if plan.private else ", new and PUBLIC")
    how = "as a commit to main" if options.direct else f"to pull request {plan.pull}" if plan.pull else "as a pull request"
    console.print(f"[bold]{plan.repo.kind} {plan.repo.id}[/bold]{new}, {how}:", highlight=False)
    for file in plan.send:
        console.print(f"  {'~' if file.replaces else '+'} {file.path}  {_size(file.size)}", markup=False, highlight=False, soft_wrap=True)
    for path in plan.delete:
        console.print(f"  - {path}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"  {len(plan.send)} files, {_size(plan.size)}; {plan.same} unchanged, {len(plan.delete)} to delete", highlight=False)


def show_numbers(record: ResultRecord, url: str, org: str, console: Console) -> None:
    """Print what a record adds to the model's card and to ``.eval_results``."""
    from decodehub.hub.results import hub_entries, index_entry

    entry, entries = index_entry(record, url, org), hub_entries(record, url, org)
    lines = [f"checked: the predictions give the {len(record.metrics)} numbers of the record, and every file may be published"]
    lines += [f"model-index of the card, {entry['dataset']['type']} ({entry['dataset']['name']}):"]
    lines += [f"  {m['name']}: {m['value']:.6g} {m['args']['unit']}" for m in entry["metrics"]]
    lines += [f".eval_results, {entry['dataset']['type']}:" if entries else "no .eval_results: a sample enters no leaderboard"]
    lines += [f"  {e['dataset']['task_id']}: {e['value']:.6g}" for e in entries]
    console.print("\n".join([*lines, f"source: {url}"]), markup=False, highlight=False, soft_wrap=True)


def show_unread(staged: Iterable[tuple[Path, Repo]], why: str, console: Console) -> None:
    """Print the files for repositories that could not be read; of a model's card only the new numbers are known."""
    lines, unread = [], []
    for folder, repo in staged:
        files = {path: file.stat().st_size for path, file in local_files(folder).items()}
        if repo.kind == "model":
            del files["README.md"]
            lines += [f"{repo.kind} {repo.id}, at most:", "  ~ README.md  the card that is there, with the numbers of model-index above"]
        else:
            lines += [f"{repo.kind} {repo.id}, at most:"]
        lines += [f"  + {path}  {_size(size)}" for path, size in files.items()] + [f"  {len(files)} files, {_size(sum(files.values()))}"]
        unread.append(f"the card of {repo.page}")
    lines += [f"{' and '.join(unread)} were not read on the Hub: {why}", "nothing was sent"]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def out_of_reach(api: HfApi) -> str | None:
    """Why the Hub cannot be asked from here, None where it can."""
    from huggingface_hub import constants, get_session, get_token

    if constants.HF_HUB_OFFLINE:
        return "offline mode is on (HF_HUB_OFFLINE)"
    if get_token() is None:
        return "there is no token of the Hub on this machine (run `hf auth login`, or set HF_TOKEN)"
    try:
        get_session().head(api.endpoint, timeout=REACH_S)
    except Exception as error:  # any answer is an answer, whatever its status; the library of the client has errors of its own
        return f"{api.endpoint} does not answer ({type(error).__name__})"
    return None


def card_there(api: HfApi, repo: Repo) -> str | None:
    """The card of a repository on the Hub, None where there is no repository or card."""
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, RepositoryNotFoundError

    def read() -> str | None:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                path = api.hf_hub_download(repo.id, "README.md", repo_type=repo.kind, local_dir=scratch)
            except GatedRepoError:
                raise
            except (EntryNotFoundError, RepositoryNotFoundError):
                return None
            return Path(path).read_text(encoding="utf-8")

    return ask(read, repo)


def _entry(what: str, kind: str | None) -> Entry | None:
    if kind not in (None, "dataset", "metric", "model"):
        raise ValueError(f"--kind must be dataset, metric or model, found {kind!r}")
    found = [entry for entry in names(kind) if entry.name == what and entry.kind in ("dataset", "metric")]
    if len(found) > 1:
        raise ValueError(f"{what!r} is a data set and a metric: say --kind dataset or --kind metric")
    return found[0] if found else None


def _existing(what: str) -> Path:
    path = Path(what)
    if path.is_dir():
        return path
    known = ", ".join(entry.name for entry in names() if entry.kind != "model")
    raise ValueError(
        f"{what!r} is neither the folder of a model or record nor a data set or metric of {known}; models are pushed by their folder"
    )


def _model_name(source: Path, weights: Path) -> str:
    return (source if source != weights or weights.name != "model" else weights.parent).resolve().name


def _size(n: int) -> str:
    return f"{n:,} B" if n < 10_000 else f"{n / 1e3:,.1f} kB" if n < 1e6 else f"{n / 1e6:,.1f} MB"


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
    public: Annotated[bool, typer.Option("--public", help="Make a new repository public; private otherwise.")] = False,
    direct: Annotated[bool, typer.Option("--direct", help="Commit to main; a pull request otherwise.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Send it. Without this the files and sizes are shown and nothing is sent.")] = False,
) -> None:
    """Publish WHAT on the Hub, after checks and a list of the files.

    Refused are an unknown licence, or one that does not let the images be passed on, photographs of THINGS, pickles, tokens, and incomplete
    releases. An interrupted push goes on where it stopped; a second one of the same content sends nothing. Without --yes, a record is shown
    also where there is no token or no network.

    Example: decodehub push eeg-editbench --org my-lab --data-dir releases/1.0 --yes
    """
    from rich.console import Console

    options, console = Options(public, direct, yes), Console()
    try:
        if model is not None:
            folder = _existing(what)
            if not (folder / RECORD).is_file():
                raise ValueError(f"{folder} holds no {RECORD}: --model takes the folder of a record")
            push_record(folder, model, results, org, options, console)
        elif org is None:
            raise ValueError("say where to publish: --org ORG (or --model ORG/MODEL for a record)")
        else:
            push_thing(what, org, name, kind, data_dir, options, console)
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        raise HubError(redact(str(error))) from None


if __name__ == "__main__":
    app()
