"""What a function that is sent to another process holds of a server of the program that sent it.

Knows names and values, no kind of server. Invariant: nothing of the server itself travels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn


class StandIn:
    """Has the addresses ``known`` as attributes, and says of all others that they are not here."""

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
