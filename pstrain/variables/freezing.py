"""Freezing of layers and models by their ``trainable`` attribute, as in Keras.

Freezing applies to the handles in the frozen object: a step that reads the variable through another
handle still trains it. Invariant: a variable that was created as not trainable stays so.
"""

from __future__ import annotations

from typing import Any

from dataservice.runtime.arguments import check_true_or_false
from pstrain.serialization.pickling import invalidate_sent_functions
from pstrain.variables.base import BaseVariable
from pstrain.variables.names import Key, key_of, parts_of


class Freezable:
    """Mixin for classes whose attributes are variables and Freezables, or lists and dicts of them.

    ``trainable`` affects steps that begin later. Checkpoints do not store it.
    """

    _is_trainable = True
    _frozen: frozenset[Key] = frozenset()

    @property
    def trainable(self) -> bool:
        """Whether steps train the variables. False freezes trainable ones, True unfreezes them."""
        return self._is_trainable

    @trainable.setter
    def trainable(self, trainable: bool) -> None:
        check_true_or_false(trainable=trainable)
        self._is_trainable = trainable
        self._switch()
        invalidate_sent_functions()

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
        if parts := parts_of(variable):
            # A joined variable is a view of its parts, so the switched parts are joined anew.
            join: Any = type(variable)
            return join([self._switched_variable(p) for p in parts], variable.name)
        if variable.trainable and not self._is_trainable:
            self._frozen |= {key_of(variable)}
        is_known = key_of(variable) in self._frozen
        return variable.to_be_trained(self._is_trainable) if is_known else variable
