"""Parameter servers: rows and their optimizer slots, what changes them, their part in checkpoints.

`shard` is a run of rows and every change to them, `store` all that one server has, `requests` what
it answers, `commits` and `ledger` how a closure counts once, `server` is the whole as an object.
"""
