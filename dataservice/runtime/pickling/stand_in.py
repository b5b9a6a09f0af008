"""The stand-in for a server that a function refers to when it is sent to another process.

Knows names and values, but no kind of server. Invariant: no part of the server itself travels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn


class StandIn:
    """An object with the attributes ``known``; all others raise an AttributeError that explains."""

    def __init__(self, of: str, known: Mapping[str, Any]) -> None:
        self._of, self._known = of, dict(known)
        for name, value in known.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return StandIn, (self._of, self._known)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"{self._of} lives in the program that made it; a function that is sent to other "
            f"processes has only its {' and '.join(self._known)}, not {name!r}",
            name=name,
            obj=self,
        )

    def __repr__(self) -> str:
        return f"<{self._of}, in another process>"
