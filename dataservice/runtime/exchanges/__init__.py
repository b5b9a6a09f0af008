"""Exchanges: streams of messages between a client and a named handler of a server.

A message is a few header bytes and perhaps a body, which no transport copies more often than it
must (`message`, `bodies`). There are four transports with the same calls and errors; `transport`
chooses one:

- `in_process`: bodies by reference, for a client in the server's process;
- `local_*`, `packet_socket`, `segment_pool`, `shared_memory`: bodies in memory that two processes
  of one user on one host lend each other;
- `socket_*`, `byte_streams`: TCP, plain or with TLS;
- `flight*`, with `watchdog` and `severing` to bound what Flight does not: Arrow Flight.

The middle two are connections, over which `connection_exchange` and `connection_server` run an
exchange. Knows nothing of what messages mean. Invariant: no call of a client outlives its time-out.
"""
