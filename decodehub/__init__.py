"""decodehub: benchmarks, models and metrics for decoding the brain, by name.

Importing it makes the bare names of its datasets and metrics known to ``datasets`` and ``evaluate``::

    import decodehub
    from datasets import load_dataset
    import evaluate

    load_dataset("eeg-editbench")
    evaluate.load("eeg_editbench")

Nothing heavy is imported until it is used.
"""

from .core.entry import names
from .core.registry import install as _install
from .core.registry import path

__version__ = "0.1.0"
__all__ = ["__version__", "names", "path"]

_install()
