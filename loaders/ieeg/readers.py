"""Recordings of the three data sets as their owners publish them; nothing but the header is read until a window is asked for.

`open_recording` finds the file and the kind. Signals come out in microvolts; what a file says of its unit is checked, never guessed.
"""

from __future__ import annotations

import re
from pathlib import Path

from .readers_bids import open_pippi
from .readers_nwb import open_byd
from .readers_temporaldata import open_temporaldata
from .readers_treebank import open_treebank
from .recording import Recording


def open_recording(root: Path, dataset: str, recording_id: str) -> Recording:
    """The recording `recording_id` of a data set below `root`.

    A file ``processed/RECORDING_ID.h5`` (temporaldata, as torch_brain prepares it) is taken before the original.

    Raises:
        FileNotFoundError: not there, with what was looked for. ValueError: a pointer in place of the data, or not as expected.
        ImportError: h5py is missing.
    """
    root = Path(root)
    if (prepared := root / "processed" / f"{recording_id}.h5").exists():
        return open_temporaldata(prepared, dataset)
    if dataset == "neuroprobev2":
        match = re.fullmatch(r"sub_(\d+)_trial(\d+)", recording_id)
        if not match:
            raise ValueError(f"recording {recording_id!r} of {dataset}: expected an id like sub_1_trial001")
        return open_treebank(root, int(match[1]), int(match[2]))
    if dataset == "kelesbyd2024":
        return open_byd(root, recording_id)
    if dataset == "berezutskayapippi2022":
        return open_pippi(root, recording_id)
    raise ValueError(f"no reader for the data set {dataset!r}")
