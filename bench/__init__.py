"""Benchmarks: one question per module, each with a smoke size; not part of the package."""
