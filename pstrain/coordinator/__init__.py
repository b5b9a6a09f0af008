"""The coordinator: schedules closures on trainers.

`decide`, `assigning` and `rounds` take decisions (pure), `events` are the facts they yield,
`state` is the sum of the events applied, `core` owns the lock, `scheduler` is the interface to the
program, `trainer_interface` that to trainers, `link` the connection to one trainer,
`server_recovery` what is done about lost parameter servers, `client` the public API.
"""

from pstrain.porting.foreign_names import COORDINATOR, module_getattr

__getattr__ = module_getattr(__name__, COORDINATOR)
