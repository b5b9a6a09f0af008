"""Whether a server can be reached from the network, and the rule for one that can.

Knows hosts as they are configured; looks up no name. Invariant: a host that may be reachable from
other machines counts as reachable, and is refused unless the server has TLS or its user has
explicitly accepted an unencrypted network.
"""

from __future__ import annotations

import ipaddress

from dataservice.errors import InvalidArgumentError


def is_loopback(host: str) -> bool:
    """True if only processes of this machine can reach a server bound to ``host``.

    Names are not looked up: of all names only ``localhost`` counts as loopback.
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, *, has_tls: bool, insecure_network: bool) -> None:
    """Raises InvalidArgumentError if others on the network could read the token and the data."""
    if not is_loopback(host) and not has_tls and not insecure_network:
        raise InvalidArgumentError(
            f"host={host!r} can be reached from the network, where token and data would travel "
            "unencrypted; set tls_cert_path and tls_key_path (--tls-cert, --tls-key), or accept "
            "that with insecure_network=True (--insecure-network)"
        )
