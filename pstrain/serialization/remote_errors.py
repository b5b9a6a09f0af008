"""Encodes an exception that a closure raised as text that cannot run code when it is decoded.

Classes travel as names; arguments and attributes travel if they are of types that closures may
return. Imports nothing and unpickles nothing. Invariant: whatever was raised, the receiver gets an
exception whose text and notes describe it.
"""

from __future__ import annotations

import base64
import json
import traceback
from collections.abc import Mapping
from typing import Any, TypeAlias

from dataservice.errors import DataServiceError, error_from_dict, error_to_dict, is_registered
from pstrain.errors import OutOfRangeError, RemoteError
from pstrain.serialization import results
from pstrain.serialization.loaded_classes import loaded_class

_DETAIL_MAX_BYTES = 64 << 10
_MEMBERS_MAX = 20

_ClassName: TypeAlias = "tuple[str, str]"


def encode(error: BaseException, where: str) -> str:
    """Encodes an error as JSON, StopIteration as OutOfRangeError; ``where`` names the process."""
    trace = "".join(traceback.format_exception(error))
    if isinstance(error, StopIteration):
        error = OutOfRangeError(f"the dataset is exhausted ({where})")
    encoded: dict[str, Any] = {"traceback": trace, "where": where}
    if isinstance(error, DataServiceError):
        encoded["ours"] = error_to_dict(error)
    if not is_registered(type(error)):
        encoded["classes"] = [
            (cls.__module__, cls.__qualname__)
            for cls in type(error).__mro__
            if issubclass(cls, BaseException)
        ]
        encoded["message"] = _text(error)
        encoded["args"] = _packed(_arguments(error))
        encoded["attributes"] = {name: _packed(value) for name, value in vars(error).items()}
    if isinstance(error, BaseExceptionGroup) and len(error.exceptions) <= _MEMBERS_MAX:
        encoded["group"] = (error.message, [encode(each, where) for each in error.exceptions])
    return json.dumps(encoded)


def decode(text: str) -> Exception:
    """Returns the error as an instance of its own class, if this process has loaded that class.

    If it has not, or cannot rebuild the error, returns a RemoteError that is also an instance of
    the nearest base class known here. The traceback of the process that raised the error is added
    as a note.
    """
    value = json.loads(text)
    error = _user_error(value) if "classes" in value else error_from_dict(value["ours"])
    error.add_note(f"Raised remotely:\n{value['traceback'].rstrip()}")
    return error


def _user_error(value: Mapping[str, Any]) -> Exception:
    own, *above = value["classes"]
    cls = _loaded_class(own)
    error = None if cls is None else _rebuilt(cls, value)
    if error is not None:
        return error
    if "ours" in value:
        return error_from_dict(value["ours"])
    nearest = next((found for name in above if (found := _loaded_class(name))), Exception)
    return _remote_class(nearest)(
        f"{'.'.join(own)}: {value['message']} ({value['where']})",
        remote_traceback=value["traceback"],
        remote_class=".".join(own),
    )


def _loaded_class(name: _ClassName) -> type[Exception] | None:
    found = loaded_class(*name)
    return found if found is not None and issubclass(found, Exception) else None


def _rebuilt(cls: type[Exception], value: Mapping[str, Any]) -> Exception | None:
    """Rebuilds an error as unpickling would, without calling ``__init__`` of the class itself.

    That may take other arguments than ``args``. None if the text of the rebuilt error differs from
    the original text.
    """
    base = _built_in_base(cls)
    args = _local_arguments(value)
    try:
        error: Exception = base.__new__(cls, *args)
        base.__init__(error, *args)
    except (TypeError, ValueError, OverflowError):  # such as UnicodeError, of a message alone
        return None
    kept = {name: each for name, each in value["attributes"].items() if each is not None}
    vars(error).update({name: _unpacked(each) for name, each in kept.items()})
    return error if cls is base or _text(error) == value["message"] else None


def _local_arguments(value: Mapping[str, Any]) -> tuple[Any, ...]:
    if "group" in value:
        message, members = value["group"]
        return message, [decode(each) for each in members]
    return (value["message"],) if value["args"] is None else _unpacked(value["args"])


def _remote_class(known: type[Exception]) -> type[RemoteError]:
    """Returns a subclass of RemoteError and ``known``, or of its nearest base that allows one."""
    if issubclass(RemoteError, known):
        return RemoteError
    try:
        made = type(f"Remote{known.__name__}", (RemoteError, known), {"__module__": __name__})
        made("")
    except TypeError:  # incompatible memory layouts, or a constructor with required arguments
        return _remote_class(known.__base__)  # type: ignore[arg-type]
    return made


def _built_in_base(cls: type[BaseException]) -> type[BaseException]:
    """Returns the nearest built-in base, whose memory layout the instances of ``cls`` have."""
    base: Any = cls
    while base.__module__ != "builtins":
        base = base.__base__
    return base


def _arguments(error: BaseException) -> tuple[Any, ...]:
    """Returns all arguments, also those that ``args`` omits, such as an OSError's file name."""
    return _built_in_base(type(error)).__reduce__(error)[1]  # type: ignore[return-value]


def _packed(value: Any) -> str | None:
    """Returns ``value`` encoded, or None if its type cannot travel or it is too large."""
    try:
        encoded = results.encode(value)
    except Exception:  # of any kind: it must not replace the error that is being reported
        return None
    return base64.b64encode(encoded).decode() if len(encoded) <= _DETAIL_MAX_BYTES else None


def _unpacked(text: str) -> Any:
    return results.decode(base64.b64decode(text))


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:  # raised by the user's __str__
        return f"<its text could not be made: {failure!r}>"
