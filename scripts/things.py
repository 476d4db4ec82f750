"""THINGS-EEG2 jobs: from the published files to training arrays."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from decodehub.loaders.things_eeg2.epoching import PrepareSettings
    from decodehub.loaders.things_eeg2.read import Source

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)


@app.command()
def prepare(
    source: Annotated[Path, typer.Argument(help="Folder with the files, in any of the published layouts.")],
    out: Annotated[Path, typer.Option(help="Folder of the result: sub-01 and so on.")],
    subject: Annotated[list[str] | None, typer.Option(help='Number of a subject, repeatable, or "all" (the default).')] = None,
    channels: Annotated[str | None, typer.Option(help='"63", "17" (occipital and parietal), or names with commas between them.')] = None,
    mvnn: Annotated[bool, typer.Option(help="Multivariate noise normalisation, fitted on the training partition of each session.")] = True,
    option: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other setting as name=value, repeatable, e.g. mvnn=train+test, sessions=1,2 or incomplete=drop."),
    ] = None,
    channel_order: Annotated[
        str | None, typer.Option(help="For arrays without channel names, if you know their order: model, recording or osf17.")
    ] = None,
    progress: Annotated[bool, typer.Option(help="Show progress bars.")] = True,
    overwrite: Annotated[bool, typer.Option(help="Replace arrays in --out that were made with other settings, or by others.")] = False,
) -> None:
    """Make arrays of epochs that every retrieval model takes, from recordings or from arrays that others have preprocessed.

    Stop it at any time: a restart goes on. Arrays that are already preprocessed keep their values; their channels are put in order.

    Example: decodehub things prepare things-eeg2 --out prepared --subject 1 --channels 17
    """
    from decodehub.loaders.things_eeg2.read import open_source

    found = open_source(source)
    subjects = _subjects(subject, found.subjects)
    settings = prepare_settings(channels, mvnn, option or [])
    if found.kind == "epochs" and (option or not mvnn):
        raise ValueError(f"{source} holds epochs that are already preprocessed ({found.layout}): only --channels and --channel-order apply")
    if found.kind == "runs" and channel_order is not None:
        raise ValueError(f"{source} holds recordings with channel names ({found.layout}): --channel-order does not apply")
    if out.resolve().is_relative_to(source.resolve()) or (out.resolve() == source.resolve().parent and source.name.startswith("sub-")):
        raise ValueError(f"--out {out} lies in the folder of the files, which must stay as they are: choose another")
    typer.echo(f"{source}: {found.description}; subjects {', '.join(map(str, subjects))}")
    failed: dict[int, str] = {}
    for number in subjects:
        try:
            folder = _prepare_one(found, number, out, settings, channels, channel_order, progress, overwrite)
        except (ValueError, OSError, KeyError, RuntimeError) as error:  # one subject's files must not end the job of all
            failed[number] = str(error)
            typer.secho(f"sub-{number:02d} failed: {error}", fg="red", err=True)
            continue
        typer.echo(f"{folder}: {_shapes(folder)}")
    if failed:
        lines = "\n".join(f"  sub-{number:02d}: {error}" for number, error in failed.items())
        raise RuntimeError(f"{len(failed)} of {len(subjects)} subjects failed; run again to retry only these:\n{lines}")


@app.command()
def validate(
    path: Annotated[Path, typer.Argument(help="Files in any layout, a prepared folder, or one .npy array.")],
    json: Annotated[Path | None, typer.Option(help="Also write the findings here.")] = None,
    subject: Annotated[list[int] | None, typer.Option(help="Number of a subject, repeatable; all by default.")] = None,
    events: Annotated[Path | None, typer.Option(help="BIDS folder whose event log the counts are compared with.")] = None,
    axes: Annotated[str | None, typer.Option(help="For a bare array, what its axes are; see the error for the words.")] = None,
    channels: Annotated[int | None, typer.Option(help="For a bare array: how many channels it should have.")] = None,
    sfreq: Annotated[float | None, typer.Option(help="For a bare array: sampling rate in Hz.")] = None,
    partition: Annotated[str, typer.Option(help="For a bare array: train or test.")] = "test",
    design: Annotated[bool, typer.Option(help="Compare counts with the full experiment; off for partial data.")] = True,
) -> None:
    """Check THINGS-EEG2 data: axes, whiteness, the 5 Hz ripple, channels, counts, leakage. Exit code 1 if something is wrong.

    Example: decodehub things validate prepared --json findings.json
    """
    from decodehub.loaders.things_eeg2 import PARTITIONS
    from decodehub.loaders.things_eeg2.validate import validate as check

    named = {name: name for name in PARTITIONS}
    if partition not in named:
        raise ValueError(f"--partition must be train or test, found {partition!r}")
    code = check(
        path, json, axes=axes, channels=channels, sfreq=sfreq, partition=named[partition], events=events, subjects=subject, design=design
    )
    raise typer.Exit(code)


@app.command()
def shard(
    prepared: Annotated[str, typer.Argument(help='Folder that `decodehub things prepare` wrote, or "sample".')],
    out: Annotated[Path, typer.Option(help="Folder of the shards.")],
    subject: Annotated[list[int] | None, typer.Option(help="Number of a subject, repeatable; all by default.")] = None,
    megabytes: Annotated[int, typer.Option(min=1, help="Largest size of a shard.")] = 256,
    float16: Annotated[bool, typer.Option(help="Store half precision, at half the size.")] = False,
    average: Annotated[bool, typer.Option(help="Average the repetitions of each image.")] = False,
) -> None:
    """Write prepared arrays as webdataset shards with the same bytes every time; shards that are right already are left alone.

    Example: decodehub things shard prepared --out shards --float16
    """
    from decodehub.hub_datasets.things_eeg2.shard import shard as write

    write(prepared, out, subjects=subject, max_bytes=megabytes << 20, float16=float16, average=average)


@app.command()
def simulate(
    out: Annotated[Path, typer.Argument(help="Folder to write to.")],
    layout: Annotated[str, typer.Option(help="raw-dicts (as on OSF) or bids (as NEMAR nm000232, BrainVision).")] = "bids",
    subject: Annotated[int, typer.Option(min=1, help="Number of the simulated subject.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of schedule, responses and noise.")] = 0,
    concepts: Annotated[int, typer.Option(min=2, help="Training concepts; the real experiment has 1,654.")] = 8,
    images: Annotated[int, typer.Option(min=1, help="Images a training concept; the real experiment has 10.")] = 2,
    test_images: Annotated[int, typer.Option(min=1, help="Test images; the real experiment has 200.")] = 10,
) -> None:
    """Write simulated recordings in a published layout, to try the whole path without 80 GB of data. They say that they are simulated.

    Example: decodehub things simulate simulated --layout raw-dicts && decodehub things prepare simulated --out prepared
    """
    from decodehub.core.files import new_folder
    from decodehub.loaders.things_eeg2.simulate import ScheduleSettings, SignalSettings, evoked_model, make_schedule
    from decodehub.loaders.things_eeg2.simulate_files import write_bids, write_raw_dicts

    writers = {"raw-dicts": write_raw_dicts, "bids": write_bids}
    if layout not in writers:
        raise ValueError(f"--layout must be one of {sorted(writers)}, found {layout!r}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is not {'empty' if out.is_dir() else 'a folder'}: choose a new folder")
    size = ScheduleSettings(
        n_train_concepts=concepts, images_per_concept=images, n_test_images=test_images, **_blocks(concepts * images, test_images)
    )
    runs = make_schedule(size, subject=subject, seed=seed)
    with new_folder(out, replace=True) as work:
        writers[layout](work, runs, evoked_model(SignalSettings(), subject=subject, seed=seed), design=size.design)
    typer.echo(f"{out}: {len(runs)} simulated recordings of subject {subject}, layout {layout}")


def _blocks(train_images: int, test_images: int) -> dict[str, int]:
    """Blocks that hold 2 (20) repetitions of each image in a session, with a tenth to spare; those of the real experiment at its size."""
    from math import ceil

    train_blocks = min(15, ceil(1.1 * train_images / (56 * 20)))
    return {
        "train_parts": 5 if train_blocks == 15 else 1,
        "train_blocks": train_blocks,
        "test_blocks": min(4, ceil(1.1 * test_images / 51)),
    }


def prepare_settings(channels: str | None = None, mvnn: bool = True, options: list[str] | None = None) -> PrepareSettings:
    """`PrepareSettings` from words: name=value, in the type of the setting's default.

    Raises:
        ValueError: an unknown setting, a value of the wrong type, one that `PrepareSettings` does not know, or a setting given twice.
    """
    from decodehub.loaders.things_eeg2.epoching import PrepareSettings

    values: dict[str, object] = {}
    defaults = PrepareSettings().__dict__
    for option in options or []:
        name, equals, text = option.partition("=")
        if not equals or name not in defaults or name == "channels":
            raise ValueError(f"--set {option}: expected name=value with one of {', '.join(sorted(set(defaults) - {'channels'}))}")
        if name in values or (name == "mvnn" and not mvnn):
            raise ValueError(f"{name} is set twice")
        default = defaults[name]
        try:
            values[name] = tuple(type(default[0])(part) for part in text.split(",")) if isinstance(default, tuple) else type(default)(text)
        except ValueError:
            raise ValueError(f"--set {option}: the value must be like {default!r}") from None
    if not mvnn:
        values["mvnn"] = "off"
    if channels is not None:
        values["channels"] = channels if channels in ("63", "17") else tuple(name.strip() for name in channels.split(","))
    return PrepareSettings(**values)  # type: ignore[arg-type]


def _prepare_one(
    source: Source,
    subject: int,
    out: Path,
    settings: PrepareSettings,
    channels: str | None,
    channel_order: str | None,
    progress: bool,
    overwrite: bool,
) -> Path:
    if source.kind == "runs":
        from decodehub.loaders.things_eeg2.prepare import prepare_subject

        return prepare_subject(
            lambda: source.runs(subject),
            out,
            settings,
            source=source.description,
            design=source.design,
            progress=progress,
            overwrite=overwrite,
        )
    from decodehub.loaders.things_eeg2.select import store_epochs

    wanted = None if channels is None else settings.ch_names
    return store_epochs(
        lambda partition: source.epochs(subject, partition),
        out,
        channels=wanted,
        channel_order=channel_order,
        source=source.description,
        overwrite=overwrite,
    )


def _subjects(wanted: list[str] | None, there: list[int]) -> list[int]:
    if not wanted or wanted == ["all"]:
        return there
    if bad := [word for word in wanted if not word.isdecimal() or int(word) not in there]:
        raise ValueError(f"--subject {', '.join(bad)}: there are the subjects {', '.join(map(str, there))}, or all")
    return sorted({int(word) for word in wanted})


def _shapes(folder: Path) -> str:
    from decodehub.loaders.things_eeg2.store import read_info

    info = read_info(folder)
    shapes = ", ".join(f"{name} {' x '.join(map(str, part['shape']))}" for name, part in info["partitions"].items())
    return f"{shapes}, {info['sfreq']:g} Hz, unit {info['unit']}"


if __name__ == "__main__":
    app()
