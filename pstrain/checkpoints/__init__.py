"""Checkpoints: their contents, how they are written and committed, and which are kept."""
