"""Layers and models whose variables steps change, or do not, as Keras' ``trainable`` says.

A variable is frozen for those who read it through the handles of what was frozen. Invariant:
variables that never were trained stay so.
"""

from __future__ import annotations

from typing import Any

from dataservice.runtime.arguments import check_true_or_false
from pstrain.session import captured_changed
from pstrain.variables.base import BaseVariable
from pstrain.variables.names import Key, key_of


class Freezable:
    """For classes whose attributes are variables and others of these, or lists and dicts of them.

    ``trainable`` holds for steps that begin later, and is no part of checkpoints.
    """

    _is_trainable = True
    _frozen: frozenset[Key] = frozenset()

    @property
    def trainable(self) -> bool:
        """Whether steps change the variables. False freezes those that are trained, True again."""
        return self._is_trainable

    @trainable.setter
    def trainable(self, trainable: bool) -> None:
        check_true_or_false(trainable=trainable)
        self._is_trainable = trainable
        self._switch()
        captured_changed()

    def _switch(self) -> None:
        for name, value in list(vars(self).items()):
            setattr(self, name, self._switched(value))

    def _switched(self, value: Any) -> Any:
        if isinstance(value, BaseVariable):
            return self._switched_variable(value)
        if isinstance(value, Freezable):
            value.trainable = self._is_trainable
        if type(value) in (list, tuple):
            return type(value)(map(self._switched, value))
        if type(value) is dict:
            return {name: self._switched(each) for name, each in value.items()}
        return value

    def _switched_variable(self, variable: BaseVariable) -> BaseVariable:
        if variable.trainable and not self._is_trainable:
            self._frozen |= {key_of(variable)}
        is_known = key_of(variable) in self._frozen
        return variable.to_be_trained(self._is_trainable) if is_known else variable
