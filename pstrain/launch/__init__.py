"""Starts the processes of a cluster: on this machine, or on an engine."""
