"""Where a server listens: whether the network can reach it there, and the rule if it can.

Knows hosts as they are configured; looks up no name. Invariant: a host that may be reachable from
other machines counts as reachable, and is refused unless the server has TLS or its user has
explicitly accepted an unencrypted network.
"""

from __future__ import annotations

import ipaddress

from dataservice.errors import InvalidArgumentError, InvalidTypeError
from dataservice.runtime.addresses import LAST_PORT
from dataservice.runtime.arguments import check_true_or_false, is_integer, path_of


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


def check_listener(
    host: object,
    port: object,
    *,
    token: object,
    tls_cert_path: object,
    tls_key_path: object,
    insecure_network: object,
) -> None:
    """Raises InvalidArgumentError unless a server may listen with these settings.

    Above all, others on the network must not be able to read the token and the data.
    """
    if not is_integer(port) or not 0 <= port <= LAST_PORT:  # type: ignore[operator]
        raise InvalidArgumentError(f"port must be an integer from 0 to {LAST_PORT}, got {port!r}")
    if not isinstance(host, str) or not host:
        raise InvalidArgumentError(
            f"host must be a non-empty string such as '127.0.0.1', got {host!r}"
        )
    check_true_or_false(insecure_network=insecure_network)
    # The message leaves the value out, since it may be the secret token as another type.
    if token is not None and not isinstance(token, str):
        raise InvalidTypeError(f"token must be None or text, got {type(token).__name__}")
    for name, path in (("tls_cert_path", tls_cert_path), ("tls_key_path", tls_key_path)):
        if path is not None:
            path_of(path, name)
    if (tls_cert_path is None) != (tls_key_path is None):
        raise InvalidArgumentError(
            f"tls_cert_path and tls_key_path go together, got tls_cert_path={tls_cert_path!r} and "
            f"tls_key_path={tls_key_path!r}"
        )
    if not is_loopback(host) and tls_cert_path is None and not insecure_network:
        raise InvalidArgumentError(
            f"host={host!r} can be reached from the network, where token and data would travel "
            "unencrypted; set tls_cert_path and tls_key_path (--tls-cert, --tls-key), or accept "
            "that with insecure_network=True (--insecure-network)"
        )
