"""Parameter servers: rows with optimizer slots, the changes to them, and their checkpoint files.

`shard` holds a range of rows and every change to them, `store` all shards of one server. `requests`
answers requests, `commits` and `ledger` make each closure count once, and `server` is the server as
an object.
"""
