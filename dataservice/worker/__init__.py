"""The data plane's giving end: leases windows, runs pipelines on them, streams elements.

`service` is the table of producers and who reads from them, `producer` makes elements of windows,
`pump` sends them, `membership` keeps the worker registered, `server` is the whole as an object.
"""
