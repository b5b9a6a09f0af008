"""The substrate of both packages: calls, message streams, the journal, processes, threads, time.

Knows no datasets, no jobs and no training.
"""
