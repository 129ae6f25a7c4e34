"""The run folder: checkpoints, logs, loading."""
