"""Arrays that someone has already preprocessed, stored with the channels in the order that models take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from decodehub.core.tensors import reserved_array

from . import CHANNELS, PARTITIONS, POSTERIOR_17, POSTERIOR_17_OSF, RECORDING_ORDER, Epochs, Partition, channel_indices
from .store import INFO, WORK, check_replaces, subject_folder, write_info

ChannelOrder = Literal["model", "recording", "osf17"]
ORDERS: dict[str, tuple[str, ...]] = {"model": CHANNELS, "recording": RECORDING_ORDER, "osf17": POSTERIOR_17_OSF}
_IMAGES_A_BLOCK = 64


def named_channels(epochs: Epochs, order: str | None = None) -> tuple[str, ...]:
    """The channel names of epochs; for data without names, those of the order that the caller states.

    Args:
        epochs: with or without `ch_names`.
        order: "model" (63 in the order of models, or its last 17), "recording" (63 as in the raw files) or "osf17" (17 as in the authors' 100 Hz files).

    Raises:
        ValueError: no names and no order, an order of another length, or an order that the names contradict.
    """
    n = epochs.data.shape[2]
    if order is not None and order not in ORDERS:
        raise ValueError(f"channel order must be one of {sorted(ORDERS)}, found {order!r}")
    stated = None if order is None else POSTERIOR_17 if (order, n) == ("model", 17) else ORDERS[order]
    if not epochs.ch_names:
        if stated is None:
            raise ValueError(
                f"the data have {n} channels without names, and there are several orders in use: state --channel-order model, recording or osf17 "
                "if you know which it is ('decodehub things validate' may tell)"
            )
        if len(stated) != n:
            raise ValueError(f"channel order {order!r} has {len(stated)} channels, the data have {n}")
        return stated
    if stated is not None and tuple(epochs.ch_names) != stated:
        raise ValueError(
            f"the data name their channels ({', '.join(epochs.ch_names[:4])}, ...), in another order than {order!r}: leave the order out"
        )
    return tuple(epochs.ch_names)


def store_epochs(
    epochs_of: Callable[[Partition], Epochs],
    out_root: Path,
    *,
    channels: Sequence[str] | None = None,
    channel_order: str | None = None,
    source: str,
    overwrite: bool = False,
) -> Path:
    """Store one subject's epochs with channels selected and ordered by name; values, unit and times stay as they are.

    Args:
        epochs_of: gives the epochs of a partition; one is let go before the next is asked for.
        out_root: the subject's folder is made in it.
        channels: names in the order wanted; by default all that are there, in the order of models.
        channel_order: see :func:`named_channels`.
        source: the layout of the files, in words.
        overwrite: replace arrays that were made with other settings, or by others.

    Returns:
        The subject's folder.

    Raises:
        ValueError: channels are missing or without names, non-finite values, partitions that do not fit together.
    """
    described: dict[Partition, Epochs] = {}
    folder: Path | None = None
    for partition in PARTITIONS:
        epochs = epochs_of(partition)
        here = named_channels(epochs, channel_order)
        wanted = tuple(channels) if channels is not None else tuple(name for name in CHANNELS if name in here)
        picks = channel_indices(here, wanted)
        settings = {"method": "selected", "of": dict(epochs.settings), "channels": list(wanted), "channel_order": channel_order}
        if folder is None:
            folder = subject_folder(out_root, epochs.subject)
            check_replaces(folder, settings, overwrite=overwrite)
            (folder / WORK).mkdir(parents=True, exist_ok=True)
            (folder / INFO).unlink(missing_ok=True)
        elif (first := described["train"]).subject != epochs.subject or first.ch_names != wanted or first.unit != epochs.unit:
            raise ValueError(f"{source}: train and test differ in subject, channels or unit")
        _write_arrays(folder, epochs, picks, source)
        described[partition] = replace(
            epochs, data=np.load(folder / f"{partition}.npy", mmap_mode="r", allow_pickle=False), ch_names=wanted, settings=settings
        )
        del epochs
    assert folder is not None
    write_info(folder, described, source=source)
    (folder / WORK).rmdir()
    return folder


def _write_arrays(folder: Path, epochs: Epochs, picks: Sequence[int], source: str) -> None:
    """Epochs of the channels `picks`, image numbers and, where they are known, sessions."""
    partition = epochs.partition
    shape = (*epochs.data.shape[:2], len(picks), epochs.data.shape[3])
    with reserved_array(folder / f"{partition}.npy", shape) as out:
        for start in range(0, len(out), _IMAGES_A_BLOCK):
            block = np.asarray(epochs.data[start : start + _IMAGES_A_BLOCK])[:, :, picks]
            if not np.isfinite(block).all():
                row = start + int(np.nonzero(~np.isfinite(block).all(axis=(1, 2, 3)))[0][0])
                raise ValueError(f"{source}: {partition} image {epochs.images[row]} has NaN or infinite values")
            out[start : start + _IMAGES_A_BLOCK] = block
    for name, values, dtype in (("images", epochs.images, np.int32), ("sessions", epochs.sessions, np.int8)):
        path = folder / f"{partition}_{name}.npy"
        path.unlink(missing_ok=True)
        if values is not None:
            with reserved_array(path, np.shape(values), dtype) as out:
                out[...] = values
