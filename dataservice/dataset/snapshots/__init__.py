"""The folders of saved datasets, for those that write them and those that read them.

Knows nothing of who writes which part. Invariant: a folder says by itself whether it is complete.
"""
