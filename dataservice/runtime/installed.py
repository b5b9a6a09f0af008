"""The installed version of the distribution that holds both packages.

Knows nothing of either package. Invariant: a source tree that is not installed runs too.
"""

from __future__ import annotations

_DISTRIBUTION = "pstrain"


def installed_version() -> str:
    """Returns the version; "unknown" in a source tree that is not installed."""
    # Importing it takes as long as all that a program needs to parse its arguments.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"
