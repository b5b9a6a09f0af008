"""Public names of the data service."""
