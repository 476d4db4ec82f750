"""Training and studies of EEG-to-image retrieval models."""
