"""The control plane: datasets, jobs, and which reader reads what from which worker.

A request passes `endpoint` (messages and values), `service` (one method per request) and
`state_store` (the lock and the journal). `decide`, `opening`, `leasing`, `rounds`, `saving` and
`lifecycle` are pure: they decide on facts, which `events` defines and of which `state` is the sum.
`compaction` and `journal_frames` bring the state through a restart; `server` wraps everything.
"""
