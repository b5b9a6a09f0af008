"""Checkpoints: what is in one, how it is written and committed, which are kept."""
