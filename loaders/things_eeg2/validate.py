"""Check THINGS-EEG2 data of any layout and say what is wrong with them."""

from __future__ import annotations

import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from decodehub.core.files import sha256_json, write_json

from . import PARTITIONS, Epochs
from .checks import Finding, check_epochs, check_files
from .read import open_source
from .run_checks import Shown, check_event_log, check_run, check_session_counts, read_event_log
from .store import INFO

if TYPE_CHECKING:
    from . import Partition

ROLES = ("image", "repetition", "channel", "time")
TMIN = {100.0: -0.2}  # of the published files at this sampling rate; else 0


def validate(
    path: Path | str,
    out_json: Path | None = None,
    *,
    axes: str | None = None,
    channels: int | Sequence[str] | None = None,
    sfreq: float | None = None,
    partition: Partition = "test",
    events: Path | None = None,
    subjects: Sequence[int] | None = None,
    design: bool = True,
) -> int:
    """Run all checks that fit `path`, print a table of what was found, and write it as JSON.

    Args:
        path: prepared arrays, any layout that `decodehub.loaders.things_eeg2.read` opens, or one ``.npy`` array without a description.
        out_json: where to write the findings as JSON.
        axes: of an array: what its axes are, such as "image,channel,time"; by default that for 3 axes and
            "image,repetition,channel,time" for 4.
        channels: of an array: how many channels it should have, or their names in order.
        sfreq: of an array, in Hz; by default 250 for epochs of 250 samples and 100 for 100.
        partition: of an array.
        events: root of a BIDS tree with the event log to compare with.
        subjects: numbers; all by default.
        design: compare the number of images, repetitions and events with the experiment; False for a part of the data.

    Returns:
        Exit status: 1 with an error among the findings, else 0.

    Raises:
        FileNotFoundError: nothing there. ValueError: a layout that is not known, or axes that do not fit the array.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: give a folder of THINGS-EEG2 data, or an .npy array")
    groups: list[tuple[str, list[Finding]]] = []
    for name, findings in _groups(path, axes, channels, sfreq, partition, events, subjects, design):
        groups.append((name, findings))
        _print(name, findings)
    levels = [f.level for _, findings in groups for f in findings]
    counts = {level: levels.count(level) for level in ("ok", "warning", "error")}
    _summarise(path, counts)
    if out_json is not None:
        listed: list[dict[str, Any]] = [{"data": name, **asdict(f)} for name, findings in groups for f in findings]
        write_json(out_json, {"schema_version": 1, "path": path.name, "counts": counts, "findings": listed, "hash": sha256_json(listed)})
    return int(counts["error"] > 0)


def array_epochs(
    path: Path,
    *,
    axes: str | None = None,
    channels: int | Sequence[str] | None = None,
    sfreq: float | None = None,
    partition: Partition = "test",
) -> Epochs:
    """A bare array as epochs; see `validate` for the arguments. Image numbers are taken to be 1, 2, 3, ...

    Raises:
        ValueError: `axes` do not fit the array, or another number of channels than stated.
    """
    try:
        data = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, TypeError, OSError, EOFError, SyntaxError, OverflowError, MemoryError, tokenize.TokenError) as error:
        raise ValueError(f"{path} is not a whole .npy array ({(str(error).splitlines() or [''])[0]}): save it again") from None
    default = {3: "image,channel,time", 4: ",".join(ROLES)}.get(data.ndim)
    if axes is None and default is None:
        raise ValueError(f"{path} has {data.ndim} axes {data.shape}; expected 3 or 4: state them, such as --axes image,channel,time")
    roles = [role.strip() for role in (axes or default or "").split(",")]
    if len(roles) != data.ndim or len(set(roles)) != len(roles) or not {"image", "channel", "time"} <= set(roles) <= set(ROLES):
        raise ValueError(f"axes {axes!r} do not fit an array {data.shape}: name each of its axes once, of {', '.join(ROLES)}")
    data = data.transpose([roles.index(role) for role in ROLES if role in roles])
    if "repetition" not in roles:
        data = data[:, None]
    names = () if channels is None or isinstance(channels, int) else tuple(channels)
    stated = channels if isinstance(channels, int) else len(names) or None
    if stated is not None and data.shape[2] != stated:
        raise ValueError(f"{path} has {data.shape[2]} channels when its axes are {','.join(roles)}, stated were {stated}: correct --axes")
    rate = sfreq or {250: 250.0, 100: 100.0}.get(data.shape[3])
    if rate is None:
        raise ValueError(f"{path} has {data.shape[3]} samples an epoch: state the sampling rate, such as --sfreq 250")
    times = np.arange(data.shape[3]) / rate + TMIN.get(rate, 0.0)
    return Epochs(data, names, float(rate), times, np.arange(1, len(data) + 1), partition, 1)


def _groups(
    path: Path,
    axes: str | None,
    channels: int | Sequence[str] | None,
    sfreq: float | None,
    partition: Partition,
    events: Path | None,
    subjects: Sequence[int] | None,
    design: bool,
) -> Iterator[tuple[str, list[Finding]]]:
    if path.is_file() and path.suffix == ".npy" and _is_plain_array(path):
        epochs = array_epochs(path, axes=axes, channels=channels, sfreq=sfreq, partition=partition)
        yield path.name, _without_design(_epoch_findings(epochs, events), design)
        return
    if any(option is not None for option in (axes, channels, sfreq)):
        raise ValueError(f"axes, channels and sfreq are of a bare .npy array; {path} says them itself")
    if path.is_dir() and (findings := check_files(path)):
        yield "downloads", findings
    if list(path.glob(f"sub-*/{INFO}")):
        yield from _prepared(path, subjects, PARTITIONS, events, design)
        return
    source = open_source(path)
    for subject in source.subjects if subjects is None else subjects:
        if source.kind == "runs":
            yield from _run_groups(source.runs(subject), subject, design, source.design)
            continue
        for part in PARTITIONS:
            try:
                epochs = source.epochs(subject, part)
            except (FileNotFoundError, ValueError) as error:  # a partition that is not there or cannot be read; the others may be
                yield f"subject {subject}, {part}", [_missing(error, part, design)]
                continue
            yield f"subject {subject}, {part} ({source.layout})", _without_design(_epoch_findings(epochs, events), design)


def _prepared(
    root: Path, subjects: Sequence[int] | None, partitions: Sequence[Partition], events: Path | None, design: bool
) -> Iterator[tuple[str, list[Finding]]]:
    from .store import INFO, load_epochs

    for subject in subjects or sorted(int(p.parent.name[4:]) for p in root.glob(f"sub-*/{INFO}")):
        for part in partitions:
            name = f"subject {subject}, {part} (prepared)"
            try:
                epochs = load_epochs(root, subject, part, verify=True)
            except FileNotFoundError as error:
                yield name, [_missing(error, part, design)]
            except ValueError as error:
                yield name, [Finding("file", "error", "arrays as info.json describes them", str(error), "prepare the subject again")]
            else:
                stored = Finding("file", "ok", "arrays as info.json describes them", "hashes agree")
                yield name, [stored, *_without_design(_epoch_findings(epochs, events), design)]


def _epoch_findings(epochs: Epochs, events: Path | None) -> list[Finding]:
    findings = check_epochs(epochs)
    if events is not None:
        findings += check_event_log(epochs, read_event_log(events, epochs.subject, epochs.partition))
    return findings


def _run_groups(runs: Iterator[Any], subject: int, design: bool, simulated: dict[str, Any] | None) -> Iterator[tuple[str, list[Finding]]]:
    shown = []
    for run in runs:
        shown.append(Shown(np.asarray(run.images), run.partition, run.session, run.name))
        yield f"subject {subject}, session {run.session}, {run.partition}: {run.name}", check_run(run, design=design and simulated is None)
    if design:
        yield f"subject {subject}, all runs", check_session_counts(shown, subject=subject, design=simulated)


def _missing(error: Exception, partition: Partition, design: bool) -> Finding:
    return Finding("file", "error" if design else "warning", f"the partition {partition}", str(error), "prepare or download it")


def _without_design(findings: list[Finding], design: bool) -> list[Finding]:
    counted = ("image count", "repetition count", "image numbers", "sessions")
    return findings if design else [f for f in findings if f.check not in counted]


def _is_plain_array(path: Path) -> bool:
    """Whether the file is an array of numbers, and not a pickled dictionary in the clothes of one."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False).dtype != object
    except ValueError:
        return False
    except (TypeError, OSError, EOFError, SyntaxError, OverflowError, MemoryError, tokenize.TokenError) as error:
        raise ValueError(f"{path} is not a whole .npy array ({(str(error).splitlines() or [''])[0]}): save it again") from None


def _print(name: str, findings: list[Finding]) -> None:
    colours = {"ok": "green", "warning": "yellow", "error": "bold red"}
    table = Table("", "check", "found", "expected", "remedy", title=name, title_justify="left", box=None, header_style="bold")
    for f in findings:
        quiet = f.level == "ok"
        table.add_row(
            Text(f.level, style=colours[f.level]),
            Text(f.check),
            Text(f.found),
            Text("" if quiet else f.expected),
            Text("" if quiet else f.remedy),
        )
    Console().print(table)


def _summarise(path: Path, counts: dict[str, int]) -> None:
    word = (
        "[bold red]errors[/bold red]"
        if counts["error"]
        else ("[yellow]warnings[/yellow]" if counts["warning"] else "[green]in order[/green]")
    )
    Console().print(f"{path.name}: {word} ({counts['error']} errors, {counts['warning']} warnings, {counts['ok']} ok)")
