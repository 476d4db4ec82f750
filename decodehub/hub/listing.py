"""What a push says: files and sizes, numbers, and where to find and merge what was published."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import HfApi

from decodehub.core.records import ResultRecord

from .client import Repo
from .released import DataSet
from .results import hub_entries, index_entry
from .sending import CARD, Plan, Published, local_files


def plan_lines(plan: Plan) -> list[str]:
    """Where a plan goes, every file with its size, and what of others is there."""
    state, goal = plan.state, plan.goal
    if plan.nothing_to_do:
        where = "" if state.pull is None else f" in pull request {state.pull}"
        return [f"{plan.repo.page}: all {plan.same} files are there{where}; nothing to do"]
    new = "" if state.exists else (", new and private" if goal.private else ", new and PUBLIC")
    how = f"to pull request {state.pull}" if state.pull else "as a pull request" if goal.propose else "as a commit to main"
    lines = [f"{plan.repo.kind} {plan.repo.id}{new}, {how}:"]
    lines += [f"  {'~' if file.replaces else '+'} {file.path}  {size_text(file.size)}" for file in plan.send]
    lines += [f"  - {path}" for path in plan.delete]
    lines += [f"  = {path}  (changed by others since the last push: stays)" for path in plan.changed]
    lines += [f"  ! {path}  (changed or made by others: would be replaced)" for path in plan.replaces]
    lines += [f"  = {path}  (of others: {'what others wrote in it stays' if path == CARD else 'stays'})" for path in plan.others]
    return [*lines, f"  {len(plan.send)} files, {size_text(plan.size)}; {plan.same} unchanged, {len(plan.delete)} to delete"]


def number_lines(record: ResultRecord, url: str, data: DataSet) -> list[str]:
    """What a record adds to the model's card and to ``.eval_results``."""
    entry, entries = index_entry(record, url, data), hub_entries(record, url, data)
    lines = [f"checked: the predictions give the {len(record.metrics)} numbers of the record, and every file may be published"]
    lines += [f"model-index of the card, {entry['dataset']['type']} ({entry['dataset']['name']}):"]
    lines += [f"  {m['name']}: {m['value']:.6g} {m['args']['unit']}" for m in entry["metrics"]]
    lines += [f".eval_results, {entry['dataset']['type']}:" if entries else "no .eval_results: a sample enters no leaderboard"]
    lines += [f"  {e['dataset']['task_id']}: {e['value']:.6g}" for e in entries]
    return [*lines, f"source: {url}"]


def folder_lines(folder: Path) -> list[str]:
    """Every file of a folder with its size."""
    files = {path: file.stat().st_size for path, file in local_files(folder).items()}
    lines = [f"  + {path}  {size_text(size)}" for path, size in files.items()]
    return [*lines, f"  {len(files)} files, {size_text(sum(files.values()))}"]


def size_text(n: int) -> str:
    """A number of bytes for people."""
    return f"{n:,} B" if n < 10_000 else f"{n / 1e3:,.1f} kB" if n < 1e6 else f"{n / 1e6:,.1f} MB"


def link(api: HfApi, published: Published) -> str:
    """Address of what was published: of its pull request, else of the repository."""
    page = f"{api.endpoint}/{published.repo.page}"
    return page if published.pull is None else f"{page}/discussions/{published.pull}"


def merge_command(repo: Repo, pull: int | str) -> str:
    """The command that merges a pull request."""
    kind = "" if repo.kind == "model" else f" --type {repo.kind}"
    return f"hf discussions merge {repo.id} {pull}{kind}"


def how_to_merge(repo: Repo) -> str:
    """What a pull request says of itself."""
    return f"To accept it, merge it on this page, or run `{merge_command(repo, 'NUMBER')}` with the number of this pull request."
