"""The coordinator: schedules closures on trainers.

`decide`, `assigning` and `rounds` decide (pure), `events` are the facts, `state` is their sum,
`core` owns the lock, `scheduler` is what others ask, `link` is the connection to one trainer,
`client` is what a program holds.
"""

from pstrain.foreign_names import COORDINATOR, module_getattr

__getattr__ = module_getattr(__name__, COORDINATOR)
