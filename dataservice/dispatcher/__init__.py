"""The control plane: datasets, jobs, and which reader reads what from which worker.

`decide`, `opening` and `leasing` make decisions (pure), `events` defines the facts, `state` is
their sum, `service` owns the lock, the journal and the clock, `endpoint` translates between
messages and values, and `server` wraps everything in one object.
"""
