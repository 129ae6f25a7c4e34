"""Replay on disk: a ring of rows for each environment, segments sampled from all of them."""
