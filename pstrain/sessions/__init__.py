"""Sessions: one program's use of a cluster's servers, from its start to the notice of its end.

- `ids`: which of two sessions is newer; `start`: the order in which one begins on the servers;
- `exit_notice`: the program tells the servers that it has ended;
- `presence`: a server ends when its program has.

Knows neither variables nor training.
"""
