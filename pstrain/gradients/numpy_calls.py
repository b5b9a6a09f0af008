"""Finds out whether NumPy or SciPy is about to compute with a tensor's value, losing its gradient.

SciPy's functions do not offer a tensor to compute the result itself, nor does NumPy for tensors in
lists or tensors stored into an array. So the caller is determined from its frame and bytecode.
Knows nothing of tapes. Invariant: if the frame does not tell, the program counts as having asked
for the value explicitly.
"""

from __future__ import annotations

import dis
import functools
import math
from types import BuiltinFunctionType, CodeType, FrameType

import numpy as np

from pstrain.errors import UnimplementedError
from pstrain.gradients import derivatives
from pstrain.gradients.derivatives import special

# Functions beside the ufuncs, and methods of ufuncs: in C, so that they have no frame of their own.
_FUNCTIONS_IN_C = {"dot", "inner", "vdot", "where", "concatenate"}
_METHODS_IN_C = {"reduce", "accumulate", "reduceat", "outer"}
# Piecewise constant functions of ``math``, which have no gradient to lose.
_STEPS_OF_MATH = frozenset(
    {"ceil", "floor", "trunc", "frexp", "isclose", "isfinite", "isinf", "isnan", "ulp"}
)
_SMOOTH = {
    id(function): name
    for name, function in vars(math).items()
    if isinstance(function, BuiltinFunctionType) and name not in _STEPS_OF_MATH
}
# Functions written in C that call another function, or return an iterator that calls one.
_APPLYING = frozenset({"map", "starmap", "reduce", "accumulate"})
# Instructions of ``array[...] = value``.
_STORES = frozenset({"STORE_SUBSCR", "STORE_SLICE"})


def check_keeps_gradient(frame: FrameType) -> None:
    """Raises UnimplementedError if what ``frame`` executes would lose the gradient of a tensor."""
    if _instruction(frame.f_code, frame.f_lasti).opname in _STORES:
        raise UnimplementedError(
            "`array[...] = tensor` would put a tensor that a loss may depend on into an array, "
            "which keeps no gradient: compute with the tensor itself, or write "
            "`array[...] = tensor.numpy()` for its value"
        )
    if _module(frame).startswith("scipy."):
        raise UnimplementedError(
            "SciPy's functions lose the gradient of a tensor, and a loss may depend on it: write "
            "NumPy's, as np.log(np.sum(np.exp(x))) for logsumexp(x), which have one, as "
            f"scipy.special has of {special.names()}; for its value give tensor.numpy()"
        )
    if _computes(frame):
        raise UnimplementedError(
            "tensors in a list, given to a function of NumPy, lose their gradient, and a loss "
            "may depend on it: write sum([a, b]) / 2 for np.mean([a, b]), [np.exp(a), "
            "np.exp(b)] for np.exp([a, b]), or np.stack([a, b]) for one tensor of all; for their "
            "values give tensor.numpy()"
        )


def check_float(frame: FrameType, what: str) -> None:
    """Raises UnimplementedError if ``frame`` is calling a smooth function of Python's ``math``."""
    names = _applied_at(frame.f_code, frame.f_lasti)
    name = next((found for found in (_smooth(frame, *one) for one in names) if found), "")
    if not name:
        return
    has_twin = getattr(np, name, None) in derivatives.UFUNCS
    instead = f"np.{name}({what})" if has_twin else f"it by what has one ({derivatives.names()})"
    raise UnimplementedError(
        f"math.{name} would lose the gradient of a {what}, and a loss may depend on it: write "
        f"{instead}, or math.{name}(float({what})) for its value"
    )


def _smooth(frame: FrameType, root: str, name: str) -> str:
    """Returns the name in ``math`` of the smooth function that ``name`` may refer to; "" if none.

    ``root``: the object that ``name`` is an attribute of, or ``name`` itself; empty if unknown.
    """
    seen = {**frame.f_globals, **frame.f_locals}
    if root in ("", name) and id(seen.get(name)) in _SMOOTH:
        return _SMOOTH[id(seen[name])]
    is_of_math = seen.get(root) is math if root else any(one is math for one in seen.values())
    # Looked up by identity: names of constants in math, such as e, may be functions elsewhere.
    return name if is_of_math and id(getattr(math, name, None)) in _SMOOTH else ""


def _computes(frame: FrameType) -> bool:
    """True if what ``frame`` executes computes with the tensor's value that it asks for."""
    module = _module(frame)
    if module.startswith("numpy."):
        return not module.startswith("numpy.testing")
    return _computes_at(frame.f_code, frame.f_lasti)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


@functools.lru_cache(maxsize=1024)
def _instruction(code: CodeType, offset: int) -> dis.Instruction:
    return next(one for one in dis.get_instructions(code) if one.offset == offset)


@functools.lru_cache(maxsize=1024)
def _computes_at(code: CodeType, offset: int) -> bool:
    """True if the instruction at ``offset`` is an operator, or calls something by a NumPy name."""
    instructions = list(dis.get_instructions(code))
    current = _instruction(code, offset)
    if current.opname == "BINARY_OP":
        return True
    return current.opname.startswith("CALL") and _has_gradient(_called(current, instructions))


@functools.lru_cache(maxsize=1024)
def _applied_at(code: CodeType, offset: int) -> tuple[tuple[str, str], ...]:
    """Returns root and last name of what is called at ``offset``, or may be by ``map`` and such."""
    current, instructions = _instruction(code, offset), list(dis.get_instructions(code))
    start, end = _start(current), _end(current)
    inside = [
        one
        for one in instructions
        if isinstance(one.argval, str) and start <= _start(one) and _end(one) <= end
    ]
    is_call = current.opname.startswith("CALL")
    applies = not _APPLYING.isdisjoint(str(one.argval) for one in inside)
    return (
        *((("", _called(current, instructions)),) if is_call else ()),
        *(_references(inside, instructions) if applies else ()),
    )


def _references(
    names: list[dis.Instruction], instructions: list[dis.Instruction]
) -> tuple[tuple[str, str], ...]:
    """Returns root and last name of each reference that is passed as an argument, not called."""
    called = {_start(one) for one in instructions if one.opname.startswith("CALL")}
    given: dict[tuple[int, int], list[dis.Instruction]] = {}
    for one in names:
        if _start(one) not in called:
            given.setdefault(_start(one), []).append(one)
    return tuple(
        (str(min(chain, key=_end).argval), str(max(chain, key=_end).argval))
        for chain in given.values()
    )


def _called(call: dis.Instruction, instructions: list[dis.Instruction]) -> str:
    """Returns the last name of the called expression: of the longest that starts with the call."""
    start, end = _start(call), _end(call)
    named = [
        one
        for one in instructions
        if isinstance(one.argval, str) and start == _start(one) and _end(one) < end
    ]
    return str(max(named, key=_end).argval) if start[0] and named else ""


def _start(instruction: dis.Instruction) -> tuple[int, int]:
    place = instruction.positions
    return (place.lineno or 0, place.col_offset or 0) if place else (0, 0)


def _end(instruction: dis.Instruction) -> tuple[int, int]:
    place = instruction.positions
    return (place.end_lineno or 0, place.end_col_offset or 0) if place else (0, 0)


def _has_gradient(name: str) -> bool:
    """True if NumPy's function of this name computes floats that a loss may depend on."""
    function = getattr(np, name, None)
    if isinstance(function, np.ufunc):
        gives_floats = any("d" in types.partition("->")[2] for types in function.types)
        return gives_floats and function not in derivatives.CONSTANT
    return name in _FUNCTIONS_IN_C | _METHODS_IN_C
