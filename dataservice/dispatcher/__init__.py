"""The control plane: datasets, jobs, and who reads what from which worker.

`decide`, `opening` and `delivery` decide (pure), `events` are the facts, `state` is their sum,
`service` owns lock, journal and time, `endpoint` speaks the wire, `server` is the whole as an
object.
"""
