"""A placeholder that a user's function gets for a column that NumPy cannot hold.

The function may return the placeholder, under any name; any other use is an error that says why.
Knows Arrow arrays, nothing of batches or plans. Invariant: no operation takes the placeholder for
an array of values.
"""

from __future__ import annotations

from typing import Any, NoReturn

import pyarrow as pa
from numpy.lib.mixins import NDArrayOperatorsMixin

from dataservice.errors import SchemaError


class TouchedError(SchemaError):
    """A function used a column that NumPy cannot hold."""


class UntouchedColumn(NDArrayOperatorsMixin):
    """A placeholder for `array`; `reason` says why it cannot be a NumPy array."""

    def __init__(self, array: pa.Array, reason: str) -> None:
        self.array = array
        self._reason = reason

    def touch(self) -> NoReturn:
        """Raises TouchedError with the reason."""
        raise TouchedError(f"{self._reason}; a function may only return it as it is")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        self.touch()

    def __array_ufunc__(self, *_: Any, **__: Any) -> NoReturn:
        self.touch()

    def __array_function__(self, *_: Any, **__: Any) -> NoReturn:
        self.touch()

    def __getattr__(self, name: str) -> NoReturn:
        if name == "_reason":  # an instance that copy or pickle has not filled in yet
            raise AttributeError(name)
        self.touch()

    def __int__(self) -> int:
        self.touch()

    def __float__(self) -> float:
        self.touch()

    def __round__(self, _digits: int | None = None) -> Any:
        self.touch()

    def __format__(self, _spec: str) -> str:
        self.touch()

    def __getitem__(self, _key: Any) -> NoReturn:
        self.touch()

    def __setitem__(self, _key: Any, _value: Any) -> NoReturn:
        self.touch()

    def __len__(self) -> int:
        self.touch()

    def __iter__(self) -> NoReturn:
        self.touch()

    def __contains__(self, _value: object) -> bool:
        self.touch()

    def __bool__(self) -> bool:
        self.touch()

    def __repr__(self) -> str:
        return f"<UntouchedColumn of type {self.array.type}>"
