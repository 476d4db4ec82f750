"""Building edits and collecting judgements, by models and by people."""
