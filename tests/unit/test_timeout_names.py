"""A time-out under the other of its two names raises an error that tells the right one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import dataservice
import pstrain
from dataservice.errors import InvalidTypeError
from pstrain.checkpoints.saving import SavedCheckpoint

OTHER_NAME = {"timeout": "timeout_s", "timeout_s": "timeout"}


def _public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yields all functions, classes and methods under public names."""
    for package in (dataservice, pstrain):
        for name in package.__all__:
            found = getattr(package, name)
            if inspect.isfunction(found):
                yield name, found
            if inspect.isclass(found):
                for method, function in inspect.getmembers(found, callable):
                    if method == "__init__" or not method.startswith("_"):
                        yield f"{name}.{method}", function
    yield "SavedCheckpoint.wait", SavedCheckpoint.wait


def _taken(function: Callable[..., Any]) -> str | None:
    """Returns the name under which a callable takes a time-out."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:
        return None
    return next((name for name in OTHER_NAME if name in parameters), None)


WAITS = {
    name: function
    for name, function in _public()
    if _taken(function) is not None and name != "Snapshot.__init__"  # which programs do not call
}


def test_known_waits_are_found() -> None:
    known = ["distribute", "Dataset.load", "Snapshot.wait", "RemoteValue.get", "WorkerServer.join"]
    assert set(known) <= set(WAITS)
    assert len(WAITS) >= 19


@pytest.mark.parametrize("name", WAITS)
def test_timeout_by_its_other_name_is_refused_with_the_right_one(name: str) -> None:
    taken = _taken(WAITS[name])
    assert taken is not None
    with pytest.raises(InvalidTypeError) as caught:
        WAITS[name](**{OTHER_NAME[taken]: 5})
    assert f"takes no argument {OTHER_NAME[taken]!r}: write {taken}=" in str(caught.value)
