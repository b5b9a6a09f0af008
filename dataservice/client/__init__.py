"""Reading through the data service: what a reader asks of the dispatcher and gets from workers.

`api` registers datasets and describes what is read, `source` is that as the node of a plan,
`service_stream` its elements with a position. Below, `reader` has threads and connections, while
`session` and `tracker` (pure) know what was received and what is to be said of it.
"""
