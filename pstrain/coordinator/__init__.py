"""The coordinator: schedules closures on trainers.

`decide` and `rounds` decide (pure), `events` are the facts, `state` is their sum, `service` owns
lock and time, `link` is the connection to one trainer, `client` is what a program holds.
"""
