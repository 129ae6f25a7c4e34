"""A run folder and what is in it: checkpoints, logs, loading."""
