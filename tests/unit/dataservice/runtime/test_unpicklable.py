"""Values that keep a function from being sent: found wherever held, named as in the program."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import pytest

import dataservice as ds
from dataservice.dataset.function import Function
from dataservice.errors import InvalidArgumentError
from dataservice.runtime.pickling.shipping import users_code_by_value
from dataservice.runtime.pickling.unpicklable import find_unpicklable
from pstrain.serialization import pickling

LOCK = threading.Lock()


class Loader:
    """A callable object with a state, as users write them."""

    def __init__(self) -> None:
        self.options = {"a": [1, LOCK]}

    def __call__(self, columns: Any) -> Any:
        return columns

    def method(self, columns: Any) -> Any:
        return columns


def uses_a_global(columns: Any) -> Any:
    return columns if LOCK else None


def calls_itself(columns: Any) -> Any:
    return LOCK if columns else calls_itself(columns)


def _cases() -> Iterator[tuple[Callable[..., Any], str]]:
    lock, held = LOCK, [1, {"q": LOCK}]
    yield (lambda columns: (lock, columns)[1]), "lock"
    yield (lambda columns: [lock for _ in columns]), "lock"
    yield (lambda columns: (held, columns)[1]), "held[1]['q']"
    yield (lambda columns, key=LOCK: (key, columns)[1]), "key"
    yield (lambda columns, *, key=LOCK: (key, columns)[1]), "key"
    yield (lambda columns: uses_a_global(columns)), "LOCK"
    yield calls_itself, "LOCK"
    yield functools.partial(lambda lock, columns: (lock, columns), LOCK), "args[0]"
    yield functools.partial(lambda columns, lock: (lock, columns), lock=LOCK), "keywords['lock']"
    yield Loader(), "self.options['a'][1]"
    yield Loader().method, "self.options['a'][1]"


@pytest.mark.parametrize(("function", "path"), list(_cases()))
def test_unpicklable_value_held_by_function_is_found_with_its_path(
    function: Callable[..., Any], path: str
) -> None:
    with users_code_by_value(), pytest.raises(TypeError) as caught:
        cloudpickle.dumps(function)
    with users_code_by_value():
        found = find_unpicklable(function, caught.value, cloudpickle.dumps)
    assert (found.path, found.value) == (path, LOCK)
    assert str(found) == f"it holds {path}, of type lock: cannot pickle '_thread.lock' object"


def test_both_packages_name_unpicklable_value_held_by_function() -> None:
    reader = iter(ds.Dataset.range(3))
    wanted = r"it holds reader, of type DatasetIterator: an iterator stays in its process.*dataset"
    with pytest.raises(InvalidArgumentError, match=wanted):
        Function.of(lambda _: reader, "map").pickled()
    with pytest.raises(InvalidArgumentError, match=wanted):
        pickling.dumps_function(lambda: reader, lambda _: None)
    with pytest.raises(
        InvalidArgumentError, match=r"cannot send the arguments: it holds argum.*1\]"
    ):
        pickling.dumps(((1, LOCK), {}), lambda _: None)


def test_unpicklable_argument_itself_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match=r"cannot send lock: cannot pickle '_thread"):
        pickling.dumps(LOCK, lambda _: None)
