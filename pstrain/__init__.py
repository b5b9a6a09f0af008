"""Public names of parameter-server training."""
