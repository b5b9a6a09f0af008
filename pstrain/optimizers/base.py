"""The base of optimizers: an update rule with its parameters, and a counter of steps.

Knows no arithmetic of the rules: the servers apply them where the rows are. Invariant: of an
optimizer's rule only the learning rate ever changes, atomically and only in the program, so
threads and trainers may share an optimizer freely.
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from dataservice.errors import DataServiceWarning
from dataservice.runtime.arguments import non_negative
from pstrain import initializers
from pstrain.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from pstrain.gradients.tape import Gradients
from pstrain.optimizers import schedules
from pstrain.optimizers.clipping import Clipping
from pstrain.optimizers.pairs import from_pairs
from pstrain.optimizers.schedules import LearningRateSchedule, plain
from pstrain.porting import foreign_arguments, foreign_names
from pstrain.porting.foreign_arguments import refuse_arguments
from pstrain.porting.foreign_names import Hinting
from pstrain.serialization.pickling import capture_generation, invalidate_sent_functions
from pstrain.variables.base import new_handle
from pstrain.variables.parameters import current_round, current_step
from pstrain.variables.variable import Variable, create_variable
from pstrain.vocabulary import OptimizerSpec, StepToken

Rate = float | LearningRateSchedule

# After so many steps a process reads the shared counter again; in between it adds its own steps.
_STEPS_PER_READ = 16


class RateValue(float):
    """A learning rate as TensorFlow has it: a number with ``numpy()`` and ``assign(rate)``."""

    _optimizer: Optimizer | None = None

    @classmethod
    def of(cls, optimizer: Optimizer) -> RateValue:
        value = cls(optimizer.spec.learning_rate)
        value._optimizer = optimizer
        return value

    def numpy(self) -> np.float64:
        return np.float64(self)

    def assign(self, rate: Any) -> None:
        """Sets ``learning_rate`` of the optimizer that this is the rate of."""
        if self._optimizer is None:
            raise FailedPreconditionError(
                "a copy of a learning rate belongs to no optimizer: write optimizer.learning_rate "
                f"= {rate}"
            )
        self._optimizer.learning_rate = rate

    def __reduce__(self) -> tuple[Any, ...]:
        return RateValue, (float(self),)


class Optimizer(Hinting):
    """The base class of optimizers; make one in the same strategy scope as the model it trains.

    All optimizers take ``learning_rate``, a number or a schedule of the step number; ``l2``, which
    times the value is added to the gradient of each value that a step changes; and at most one of
    ``clipvalue`` (per number), ``clipnorm`` (per variable) and ``global_clipnorm`` (over all
    variables of a step).
    """

    name: ClassVar[str] = ""
    _remedies = foreign_names.OPTIMIZER_OBJECT

    @refuse_arguments("an optimizer", foreign_arguments.OPTIMIZER)
    def __init__(
        self,
        learning_rate: Rate,
        arguments: Mapping[str, Any],
        *,
        rule: str = "",
        parameters: Mapping[str, float] | None = None,
        slots: Sequence[float] = (),
        row_slots: Sequence[float] = (),
        l2: float = 0.0,
        clipvalue: float | None = None,
        clipnorm: float | None = None,
        global_clipnorm: float | None = None,
    ) -> None:
        self._schedule = learning_rate if isinstance(learning_rate, LearningRateSchedule) else None
        self._clipping = Clipping(value=clipvalue, norm=clipnorm, global_norm=global_clipnorm)
        self._arguments = {
            **arguments,
            "l2": l2,
            "clipvalue": clipvalue,
            "clipnorm": clipnorm,
            "global_clipnorm": global_clipnorm,
        }
        self.spec = OptimizerSpec(
            name=rule or self.name,
            learning_rate=self._first_rate(learning_rate),
            l2=non_negative(l2, "l2"),
            parameters=dict(parameters or {}),
            slots=tuple(slots),
            row_slots=tuple(row_slots),
        )
        self._constructor_rate: Rate = learning_rate
        self._is_rate_set = False
        self.iterations = self._new_counter()
        self._counter = _StepCounter()

    def __setattr__(self, name: str, value: Any) -> None:
        if not hasattr(type(self), name):  # what a subclass defines is its own
            self._check_settable(name, value)
        super().__setattr__(name, value)

    def _check_settable(self, name: str, value: Any) -> None:
        """Raises AttributeError if steps would not heed the value."""
        what = f"{type(self).__name__!r} object"
        if name in self._remedies:
            foreign_names.no_attribute(what, name, self._remedies, self)
        arguments = self.__dict__.get("_arguments", {})
        if name in arguments and arguments[name] != value:
            raise AttributeError(
                f"{name!r} of this {what} is as it was made; make another one, with {name}={value}",
                name=name,
                obj=self,
            )

    if not TYPE_CHECKING:  # type checkers still report unknown names

        def __getattr__(self, name: str) -> Any:
            """Returns an argument of the constructor, such as ``epsilon``."""
            arguments = self.__dict__.get("_arguments", {})
            return arguments[name] if name in arguments else super().__getattr__(name)

    def _new_counter(self) -> Any:
        counter = create_variable(
            initializers.zeros(),
            shape=(),
            dtype="int64",
            name=f"{self.name}/iterations",
            trainable=False,
        )
        return new_handle(_Iterations, counter.spec, counter.parameters, 0, counter.spec.rows)

    @property
    def learning_rate(self) -> Rate:
        """The learning rate, or the schedule that it follows."""
        return self._schedule or RateValue.of(self)

    @learning_rate.setter
    def learning_rate(self, rate: Rate) -> None:
        """Sets the rate for steps of functions that are scheduled later; keeps slots and counter.

        Checkpoints save a rate that was set, and set it in the optimizer that they are restored
        into. Of a schedule whose class is not in ``optimizers.schedules`` they save only the name.
        FailedPreconditionError inside a scheduled function.
        """
        if current_step() is not None:
            raise FailedPreconditionError(
                "a scheduled function cannot set the learning rate, which is every trainer's: "
                "set it in the program, or give the optimizer a schedule"
            )
        self.spec = replace(self.spec, learning_rate=self._first_rate(rate))
        self._schedule = rate if isinstance(rate, LearningRateSchedule) else None
        self._is_rate_set = True
        invalidate_sent_functions()

    def saved_rate(self) -> dict[str, Any]:
        """Returns what a checkpoint saves of the rate: the rate that a program has set, if any."""
        if self._schedule is None or not self._is_rate_set:
            return {"rate": self.spec.learning_rate if self._is_rate_set else None}
        if schedules.is_known(self._schedule):
            return {"schedule": self._schedule.get_config()}
        return {"other_schedule": type(self._schedule).__name__}

    def restore_rate(self, saved: Mapping[str, Any]) -> None:
        """Restores the result of :meth:`saved_rate`; if no rate was set, the constructor's rate."""
        if saved.get("rate") is not None:
            self.learning_rate = float(saved["rate"])
        elif "schedule" in saved:
            self.learning_rate = schedules.from_config(saved["schedule"])
        elif "rate" in saved and self._is_rate_set:
            self.learning_rate = self._constructor_rate
            self._is_rate_set = False
        elif "other_schedule" in saved:
            self._warn_of_missing_schedule(saved["other_schedule"])

    def _warn_of_missing_schedule(self, name: str) -> None:
        """Warns that the schedule is not in the checkpoint, unless one of this name is set."""
        if type(self._schedule).__name__ != name:
            warnings.warn(
                f"the checkpoint was saved while the learning rate followed {name}, a schedule of "
                f"the program's own, which is not in it: {self!r} stays as it is; set "
                f"optimizer.learning_rate = {name}(...)",
                DataServiceWarning,
                stacklevel=2,
            )

    @property
    def variables(self) -> list[Any]:
        return [self.iterations]

    @refuse_arguments("apply_gradients", foreign_arguments.APPLY_GRADIENTS)
    def apply_gradients(self, grads_and_vars: Gradients | Iterable[tuple[Any, Any]]) -> None:
        """Makes one step; blocks until every server has applied it.

        ``grads_and_vars``: the result of ``tape.gradients``, or pairs of (gradient, variable). A
        gradient is an array of the variable's shape, ``IndexedSlices`` of its rows (the gradients
        of an index that occurs several times are summed), or an ``Update`` from ``Gradients.of``.
        The variable may be a part of a ShardedVariable. InvalidArgumentError if the variables are
        in another place than this optimizer.
        """
        given = grads_and_vars
        gradients = given if isinstance(given, Gradients) else from_pairs(given)
        if gradients.parameters is not self.iterations.parameters:
            names = ", ".join(update.variable.name for update in gradients.updates[:3])
            raise InvalidArgumentError(
                f"the optimizer and the variables it is to change ({names}, ...) live in "
                "different places: create both inside the same strategy.scope(), or both outside"
            )
        updates = self._clipping.clip(gradients.updates)
        gradients.parameters.apply(updates, self._present_spec(), iterations=self.iterations.spec)

    def _present_spec(self) -> OptimizerSpec:
        if self._schedule is None:
            return self.spec
        step = self._counter.next_step(self.iterations)
        rate = self._checked_rate(f"the learning rate of step {step}", self._schedule(step))
        return replace(self.spec, learning_rate=rate)

    def _first_rate(self, rate: Rate) -> float:
        if callable(rate) and not isinstance(rate, LearningRateSchedule):
            raise InvalidTypeError(
                f"learning_rate must be a number or one of optimizers.schedules, got {rate!r}: "
                "make a subclass of LearningRateSchedule of it"
            )
        first = rate(0) if isinstance(rate, LearningRateSchedule) else rate
        return self._checked_rate("learning_rate", first)

    def _checked_rate(self, what: str, rate: Any) -> float:
        """Returns ``rate``; InvalidArgumentError if this rule cannot make a step with it."""
        return non_negative(rate, what)

    def move_to(self, strategy: Any) -> None:
        """Moves the optimizer into the scope of ``strategy``; does nothing if it was made there.

        InvalidArgumentError if it has made steps elsewhere, because their count would be lost.
        """
        if strategy.extended.variable_created_in_scope(self.iterations):
            return
        if steps := int(self.iterations.numpy()):
            raise InvalidArgumentError(
                f"this optimizer has made {steps} steps outside of the model's strategy: make "
                "another one, inside the same strategy.scope() as the model"
            )
        with strategy.scope():
            self.iterations = self._new_counter()

    def with_learning_rate(self, learning_rate: float) -> Self:
        """Returns the same rule with another rate; it shares this optimizer's counter and slots."""
        changed = copy.copy(self)
        rate = self._checked_rate("learning_rate", learning_rate)
        changed._schedule, changed._constructor_rate, changed._is_rate_set = None, rate, False
        changed.spec = replace(self.spec, learning_rate=rate)
        return changed

    def __repr__(self) -> str:
        return f"<{type(self).__name__} learning_rate={self.learning_rate}>"

    def get_config(self) -> dict[str, Any]:
        """Returns the JSON form, from which :meth:`from_config` makes the same rule."""
        rate = self.spec.learning_rate if self._schedule is None else self._schedule.get_config()
        return {"name": self.name, "learning_rate": rate, **plain(self._arguments)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Makes an optimizer of this class from the result of :meth:`get_config`.

        It has a new ``iterations`` variable. :func:`pstrain.optimizers.from_config` finds the class
        by the name in the configuration; InvalidArgumentError if that is another one's.
        """
        if config.get("name", cls.name) != cls.name:
            raise InvalidArgumentError(
                f"this is the configuration of {config['name']!r}, not of {cls.name!r}: write "
                "optimizers.from_config(config)"
            )
        arguments = {k: v for k, v in config.items() if k not in ("name", "learning_rate")}
        make: Any = cls
        optimizer: Self = make(_rate_of(config["learning_rate"]), **arguments)
        return optimizer


class _Iterations(Variable):
    """The counter of steps; schedules follow an assigned value from the next step on."""

    def _assign(self, op: str, value: Any) -> None:
        super()._assign(op, value)
        invalidate_sent_functions()


class _StepCounter:
    """This process's estimate of the number of the next step. Thread-safe.

    The number is exact if only one process makes steps, and in rounds: there each closure reads the
    shared counter, because its step is that of all trainers. Otherwise the number lacks the steps
    that other trainers made since the last read, too few for a schedule to matter. The counter is
    read again after a restore and after the program has assigned it; each trainer then reads it
    too, because it is sent the functions of the new generation.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._step = 0
        self._steps_until_read = 0
        self._last_read: tuple[int, StepToken | None] = (capture_generation(), None)

    def next_step(self, iterations: Any) -> int:
        with self._lock:
            present = (capture_generation(), current_round())
            if self._steps_until_read <= 0 or self._last_read != present:
                self._last_read = present
                self._step = int(iterations)
                self._steps_until_read = _STEPS_PER_READ
            step = self._step
            self._step += 1
            self._steps_until_read -= 1
            return step

    def __getstate__(self) -> dict[str, Any]:
        return {"generation": capture_generation()}

    def __setstate__(self, _state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]


def _rate_of(config: Any) -> Rate:
    """Returns the rate or the schedule of a configuration."""
    return schedules.from_config(config) if isinstance(config, Mapping) else float(config)


def check_fraction(name: str, value: float) -> float:
    """Returns ``value``, checked to be a decay rate of a moving mean: at least 0 and below 1."""
    fraction = non_negative(value, name)
    if fraction >= 1:
        raise InvalidArgumentError(f"{name} must be at least 0 and below 1, got {value}")
    return fraction
