"""Whether certificates can be used, and whether a server wants one seen: for clear errors only.

Libraries that encrypt say little when a file is of another kind, or when one end speaks TLS and
the other does not. Invariant: nothing here decides whom to trust.
"""

from __future__ import annotations

import socket
import ssl

from dataservice.errors import InvalidArgumentError, UnavailableError
from dataservice.vocabulary import split_address

_PROBE_TIMEOUT_S = 0.5


def check_server_pair(cert_path: str, key_path: str) -> None:
    """InvalidArgumentError unless the files are a certificate in PEM form and its key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert_path, key_path, password="")
    except (ssl.SSLError, ValueError) as error:
        raise InvalidArgumentError(
            f"the TLS certificate {cert_path} and the key {key_path} are no PEM files without a "
            f"password that go together: {error}"
        ) from error


def check_roots(ca_path: str) -> None:
    """InvalidArgumentError unless the file holds a certificate in PEM form."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=ca_path)
    except ssl.SSLError as error:
        raise InvalidArgumentError(
            f"the TLS CA certificate file {ca_path} holds no certificate in PEM form: {error}"
        ) from error


def explained(failure: UnavailableError, address: str, *, by_tls: bool) -> UnavailableError:
    """``failure`` of a client, that says so where one end speaks TLS and the other does not.

    Blocks for a second at most, and only where something listens: for clients that were never
    answered, since a server keeps to what it speaks.
    """
    speaks_tls = _speaks_tls(address)
    if speaks_tls and not by_tls:
        return UnavailableError(
            f"{failure}; it speaks TLS and this client does not: name the certificate that vouches "
            "for it (DATASERVICE_TLS_CA or --tls-ca; in training PSTRAIN_TLS_CA or tls_ca_path)"
        )
    if speaks_tls is False and by_tls:
        return UnavailableError(
            f"{failure}; this client speaks TLS and it does not: start it with --tls-cert and "
            "--tls-key, or name no certificate here"
        )
    return failure


def _speaks_tls(address: str) -> bool | None:
    """None where nothing answers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection(split_address(address), _PROBE_TIMEOUT_S) as plain,
            context.wrap_socket(plain),
        ):
            return True
    except ssl.SSLError as error:
        return False if error.reason == "WRONG_VERSION_NUMBER" else None
    except (OSError, ValueError, InvalidArgumentError):
        return None
