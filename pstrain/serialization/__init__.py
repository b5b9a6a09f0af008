"""How values travel between the processes of a cluster: functions, results, errors, arrays.

- `pickling`: functions and models to trainers, the only bytes that run code when they are read;
- `results`, `sparse_arrays`: what closures return, and the arrays in it that are mostly zeros;
- `remote_errors`: the exceptions that closures raise; `loaded_classes` finds their classes;
- `bfloat16`: rows and gradients in half their bytes.

Knows no connection. Invariant: only `pickling` can run code that arrived from another process.
"""
