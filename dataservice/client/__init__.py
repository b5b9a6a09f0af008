"""The client side of the data service: registering datasets and reading jobs.

`api` holds the functions that users call. `source` represents a job as a node of a plan, and
`service_stream` presents a reader's elements as a stream whose position can be saved. Below these,
`reader` owns threads and connections, while `session` and `tracker` (pure) record what was received
and decide what to report to the dispatcher.
"""
