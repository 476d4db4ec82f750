"""decodehub: benchmarks, models and metrics for decoding the brain, by name."""

__version__ = "0.1.0"
