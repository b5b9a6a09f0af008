"""The data worker: leases windows, runs pipelines on them and streams the elements to readers.

`service` starts producers, which `producer_factory` makes, and connects readers to them; `producer`
turns windows into elements, `flow_control` sends the elements, `membership` keeps the worker
registered, and `server` puts all of this together as one object.
"""
