"""Training and sweeps of iEEG models."""
