"""Publishing: a data set, a metric or a model as a whole repository; a record as predictions in one repository and numbers in another."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import HfApi

from decodehub.core.entry import Entry, names
from decodehub.core.files import home, write_bytes
from decodehub.core.records import RECORD, ResultRecord
from decodehub.core.words import suggest

from .cards import decode
from .checks import check_files, refuse
from .client import HubError, NotOnHub, Repo, ask, hub_api, is_ours, out_of_reach
from .dataset import reserved, stage_dataset
from .listing import folder_lines, how_to_merge, link, merge_command, number_lines, plan_lines, size_text
from .metric import stage_metric
from .model import find_model, stage_model
from .released import DataSet, released_data
from .results import RESULTS, entries_path, filed_card, filed_entries, is_of_model, stage_results
from .sending import (
    CARD,
    Goal,
    Plan,
    Published,
    State,
    look_at,
    make_plan,
    read_file,
    send_plan,
    write_manifest,
)
from .tasks import dataset_of
from .verify import verify
from .verify_remote import check_records, is_repo_id

OWNER = "OWNER"  # stands for the owner of the token where nobody can be asked who that is
ORG_VARIABLE = "DECODEHUB_ORG"
Say = Callable[[str], None]


class Options(NamedTuple):
    """How to push.

    Attributes:
        public: make a new repository public. direct: commit to main and do not propose.
        go: send, and do not only show. into_existing: accept files of others in the repository.
    """

    public: bool = False
    direct: bool = False
    go: bool = False
    into_existing: bool = False


class Places(NamedTuple):
    """Where a record goes: `model` and `data` are None for the record alone; `unread` says why the Hub was not asked."""

    results: Repo
    model: Repo | None
    data: str | None
    unread: str | None = None


@contextmanager
def staging() -> Iterator[Path]:
    """An empty folder below ``$DECODEHUB_HOME``, on one file system with the data sets that are made there."""
    home().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home(), prefix=".push.") as scratch:
        yield Path(scratch)


def push_thing(
    what: str, org: str, name: str | None, kind: str | None, data_dir: str | None, options: Options, say: Say
) -> Published | None:
    """Publish a data set or metric by its name, or a model by its folder; None where it was only shown.

    Raises:
        ValueError: nothing is called so, or it may not be published. HubError: the Hub refused or failed.
    """
    api, entry = hub_api(), _entry(what, kind)
    if entry is not None and entry.kind == "metric" and name not in (None, entry.name):
        # `evaluate` looks for a script with the name of the repository.
        raise ValueError(f"a metric keeps its name: leave --name out, or say {entry.name}")
    with staging() as folder:
        if entry is None:
            source = _existing(what)
            repo = Repo("model", f"{org}/{name or _model_name(source, find_model(source))}")
            title = f"Model {repo.id.split('/')[1]}"
        else:
            repo = Repo("dataset" if entry.kind == "dataset" else "space", f"{org}/{name or entry.name}")
            title = f"{'Release of' if entry.kind == 'dataset' else 'Metric'} {entry.name}"
        _check_name(repo)
        state = look_at(api, repo, title, propose=not options.direct)
        goal = Goal(title, True, options.into_existing, (), not options.direct, not options.public, how_to_merge(repo))

        def there(path: str) -> bytes | None:
            return read_file(api, state, path)

        if entry is None:
            faults = stage_model(source, folder, repo, there, replace=options.into_existing)
        elif entry.kind == "metric":
            faults = stage_metric(entry, folder, repo, there, replace=options.into_existing)
        else:
            faults = stage_dataset(entry, folder, repo, data_dir, there, replace=options.into_existing)
            goal = goal._replace(reserved=reserved(folder))
        refuse(faults + check_files(folder), repo.page)
        write_manifest(folder)
        return carry_out(api, make_plan(folder, state, goal), options, say)


def push_record(
    record: Path,
    model: str | None,
    options: Options,
    say: Say,
    *,
    results: str | None = None,
    org: str | None = None,
    data: str | None = None,
) -> list[Published]:
    """Publish a record: its predictions in a data set of results, its numbers on the model; what was published is loaded back and re-scored.

    Args:
        record: its folder.
        model: ``ORG/MODEL``; of someone else it gets a pull request. None publishes the record alone.
        results: ``ORG/NAME`` of the data set of results; by default ``decodehub-results`` of `org`.
        org: whose results; by default the owner of the model, where the token may write there, else that of the token.
        data: ``ORG/NAME`` of the data set that holds what the record was scored on; by default in `org`, in ``$DECODEHUB_ORG``, or
            beside the results.

    Without `options.go`, and without a token or network, what this machine knows is shown.

    Raises:
        ValueError: the record is wrong, or is of another model. HubError: the Hub refused or failed; what landed before is said.
    """
    api, found = hub_api(), _right_record(record, model)
    places = _places(api, found, model, options, results, org, data)
    if places.unread is not None:
        _show_unread(api, record, found, places, say)
        return []
    missing = [] if places.model is None else _missing(api, places.model)
    known: DataSet | None = None
    if places.data is not None:
        try:
            known = released_data(api, record, found, places.data)
        except NotOnHub:
            missing.append(
                f"datasets/{places.data}, on which the record was scored: publish it first, name where it is (--dataset ORG/NAME), or give "
                "--results-only, which writes no numbers on a model"
            )
    if missing and options.go:
        raise NotOnHub(f"not on the Hub, or this token may not see it: {'; '.join(missing)}. Nothing was published")
    if places.model is not None and known is not None and not missing:
        _check_card(api, found, places.model, known, options)
    done: list[Published] = []
    try:
        url = _push_results(api, record, found, places, options, done, say)
        if places.model is not None and places.data is not None:
            _push_numbers(api, found, places.model, known or DataSet(places.data, ""), url, options, done, say)
    except (HubError, ValueError) as error:
        landed = [link(api, published) for published in done if published.changed]
        if not landed:
            raise
        raise HubError(
            f"published: {', '.join(landed)}. The rest was not: {error}. Run this again: what has landed is not sent twice"
        ) from None
    for line in missing:
        say(f"not on the Hub yet, so that --yes would be refused: {line}")
    return done


def carry_out(api: HfApi, plan: Plan, options: Options, say: Say) -> Published | None:
    """Show what would be sent and, with `options.go`, send it."""
    for line in plan_lines(plan):
        say(line)
    if not options.go and not plan.nothing_to_do:
        say(
            "  nothing was sent: this is what --yes would do"
            if not plan.needs_consent
            else "  nothing was sent: --yes needs --into-existing too"
        )
        return None
    published = send_plan(api, plan)
    if published.changed:
        say(f"  published as {published.revision[:12]}: {link(api, published)}")
        if published.pull is not None:
            say(f"  merge it on that page, or: {merge_command(plan.repo, published.pull)}")
    return published


def _push_results(api: HfApi, folder: Path, record: ResultRecord, places: Places, options: Options, done: list[Published], say: Say) -> str:
    """Send predictions, which are added to `done` and loaded back; the address of the record."""
    repo, title = places.results, _title(record)
    direct = options.direct and ask(lambda: is_ours(api, repo), repo)
    state = look_at(api, repo, title, propose=not direct)
    with staging() as scratch:
        path = stage_results(folder, record, scratch, with_card=CARD not in state.files)
        refuse(check_files(scratch), repo.page)
        goal = Goal(title, propose=not direct, private=not options.public, description=how_to_merge(repo))
        published = carry_out(api, make_plan(scratch, state, goal), options, say)
    if published is not None:
        done.append(published)
        _load_back(api, published, path, say)
    pull = state.pull if published is None else published.pull
    revision = "main" if pull is None else f"refs%2Fpr%2F{pull}"
    return f"{api.endpoint}/{repo.page}/tree/{revision}/{path}"


def _push_numbers(
    api: HfApi,
    record: ResultRecord,
    model: Repo,
    data: DataSet,
    url: str,
    options: Options,
    done: list[Published],
    say: Say,
) -> None:
    title = _title(record)
    # To the model of someone else there is no other way than a pull request.
    direct = options.direct and ask(lambda: is_ours(api, model), model)
    try:
        state = look_at(api, model, title, propose=not direct)
    except NotOnHub:
        state = State(model, False)
    if not options.go:
        for line in number_lines(record, url, data):
            say(line)
    with staging() as scratch:
        _stage_numbers(api, record, scratch, state, data, url)
        description = f"Numbers of {record.benchmark.id}, re-scored from the predictions at {url}\n\n{how_to_merge(model)}"
        goal = Goal(title, propose=not direct, private=not options.public, description=description)
        published = carry_out(api, make_plan(scratch, state, goal), options, say)
    if published is not None:
        done.append(published)


def _stage_numbers(api: HfApi, record: ResultRecord, folder: Path, state: State, data: DataSet, url: str) -> None:
    """Write the model's card and our file of ``.eval_results`` with the numbers of a record into `folder`."""
    model, place = state.repo.id, entries_path(record)
    card, entries = read_file(api, state, CARD), read_file(api, state, place)
    text = filed_card(None if card is None else decode(card, model), record, url, model, data)
    write_bytes(folder / CARD, text.encode())
    filed = filed_entries(None if entries is None else decode(entries, f"{place} of {model}"), record, url, model, data)
    if filed is not None:
        write_bytes(folder / place, filed.encode())
    refuse(check_files(folder), state.repo.page)


def _check_card(api: HfApi, record: ResultRecord, model: Repo, data: DataSet, options: Options) -> None:
    """A card, or entries, of the model that cannot be read are an error before anything is sent."""
    with staging() as scratch:
        state = look_at(api, model, _title(record), propose=not options.direct)
        _stage_numbers(api, record, scratch, state, data, api.endpoint)


def _title(record: ResultRecord) -> str:
    return f"Results: {record.benchmark.id} of {record.model.id}"


def _right_record(folder: Path, model: str | None) -> ResultRecord:
    record, differences = verify(folder)
    if differences:
        raise ValueError(f"{folder}: {len(differences)} numbers are not what the predictions give: see decodehub verify {folder}")
    if model is None:
        return record
    if not is_repo_id(model) or model.count("/") != 1:
        raise ValueError(f"--model must be ORG/NAME of a model on the Hub, found {model!r}")
    if not is_of_model(record, model):
        raise ValueError(
            f"the record is of model {record.model.id!r}, not of {model!r}: push it to the model that it names, or make the record of the "
            f"published model (load {model} and score it under that name)"
        )
    return record


def _places(
    api: HfApi, record: ResultRecord, model: str | None, options: Options, results: str | None, org: str | None, data: str | None
) -> Places:
    """Where everything goes. Without `options.go` the Hub need not be within reach."""
    target = None if model is None else Repo("model", model)
    unread = None if options.go else out_of_reach(api)
    owner = org
    if owner is None and unread is None:
        some = target or Repo("dataset", results or RESULTS)
        owner = target.id.split("/")[0] if target and ask(lambda: is_ours(api, some), some) else str(ask(api.whoami, some)["name"])
    elif owner is None:
        owner, unread = OWNER, f"{unread}; {OWNER} stands for the owner of the model or of the token (or say --org)"
    repo = Repo("dataset", results or f"{owner}/{RESULTS}")
    _check_name(repo)
    name = None
    if target is not None:
        name = data or f"{org or os.environ.get(ORG_VARIABLE) or owner}/{dataset_of(record.benchmark.id.replace('-', '_'))}"
        _check_name(Repo("dataset", name))
    return Places(repo, target, name, unread)


def _missing(api: HfApi, model: Repo) -> list[str]:
    try:
        ask(lambda: api.repo_info(model.id, repo_type=model.kind), model)
    except NotOnHub:
        return [f"{model.id}: publish the model first (decodehub push FOLDER --org {model.id.split('/')[0]})"]
    return []


def _load_back(api: HfApi, published: Published, path: str, say: Say) -> None:
    """Download a record that was just published and re-score it.

    Raises:
        HubError: what is on the Hub does not give the record's numbers.
    """
    found = check_records(api, published.repo, published.revision, path)
    if [finding.state for finding in found] != ["recomputed"]:
        words = "; ".join(finding.what for finding in found) or "no record is there"
        raise HubError(f"what was published at {published.repo.page} does not verify: {words}")
    say(f"  loaded back and re-scored: {found[0].what}")


def _show_unread(api: HfApi, folder: Path, record: ResultRecord, places: Places, say: Say) -> None:
    """Say what would go where, for repositories that could not be read; of a model's card only the new numbers are known."""
    with staging() as scratch:
        path = stage_results(folder, record, scratch, with_card=True)
        refuse(check_files(scratch), places.results.page)
        url = f"{api.endpoint}/{places.results.page}/tree/main/{path}"
        unread = [f"the card of {places.results.page}"]
        lines = [f"dataset {places.results.id}, at most:", *folder_lines(scratch)]
    if places.model is not None and places.data is not None:
        data = DataSet(places.data, "")
        for line in number_lines(record, url, data):
            say(line)
        lines += [f"model {places.model.id}, at most:", f"  ~ {CARD}  the card that is there, with the numbers of model-index above"]
        if (text := filed_entries(None, record, url, places.model.id, data)) is not None:
            lines.append(f"  + {entries_path(record)}  {size_text(len(text.encode()))}")
        unread += [f"the card of {places.model.page}", f"the rows of datasets/{places.data}"]
    lines += [
        f"{', '.join(unread[:-1])}{' and ' if unread[:-1] else ''}{unread[-1]} were not read on the Hub: {places.unread}",
        "nothing was sent",
    ]
    for line in lines:
        say(line)


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
    known = [entry.name for entry in names() if entry.kind != "model"]
    raise ValueError(
        f"{what!r} is neither the folder of a model or record nor a data set or metric of {', '.join(known)}{suggest(what, known)}; "
        "models are pushed by their folder"
    )


def record_folder(what: str) -> Path:
    """The folder of a record.

    Raises:
        ValueError: it holds none.
    """
    folder = _existing(what)
    if not (folder / RECORD).is_file():
        raise ValueError(f"{folder} holds no {RECORD}: --model and --results-only take the folder of a record")
    return folder


def _model_name(source: Path, weights: Path) -> str:
    return (source if source != weights or weights.name != "model" else weights.parent).resolve().name


def _check_name(repo: Repo) -> None:
    if not is_repo_id(repo.id) or repo.id.count("/") != 1:
        raise ValueError(f"{repo.id!r} is not the name of a repository: expected ORG/NAME, of letters, digits, '-', '_' and '.'")
