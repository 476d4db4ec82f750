"""Training, scoring and audit of the BCI-Coherence Score."""
