"""Where the embedded sample of EEG-EditBench lies; what builds it is imported only to build it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from decodehub.core.code import code_hash
from decodehub.core.files import home
from decodehub.core.repos import SAMPLE_CONFIG

from .manifest import MANIFEST

MASKS = Path(__file__).with_name("sample_masks.json")
PACKAGES = ("numpy", "scipy", "opencv-python-headless", "pillow", "scikit-image", "scikit-learn")


@cache
def sample_code() -> str:
    """Changes when the code, the masks or the packages that make the sample do."""
    return code_hash("decodehub.hub_datasets.eeg_editbench.sample", packages=PACKAGES, data=(MASKS,)).removeprefix("sha256:")[:12]


def ensure_sample() -> Path:
    """Folder of the sample release under `decodehub.core.files.home`, built when it is not there; safe for processes that start together."""
    folder = home() / "releases" / f"{SAMPLE_CONFIG}-{sample_code()}"
    if not (folder / MANIFEST).is_file():
        from .sample import build_sample  # half a second of OpenCV that reading a built sample does not need

        try:
            build_sample(folder)
        except OSError:
            # Another process may have renamed its own, equal build into place first.
            if not (folder / MANIFEST).is_file():
                raise
    return folder
