"""What both packages stand on: calls, streams, the journal, processes, threads, time.

Knows nothing of datasets, of jobs or of training.
"""
