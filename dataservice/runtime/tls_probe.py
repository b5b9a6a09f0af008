"""Checks certificates, and whether a server speaks TLS: only to make errors clear.

TLS libraries say little if a file is of the wrong kind, if only one end speaks TLS, or if a
certificate is not trusted. Knows nothing of calls. Invariant: nothing here decides whom to trust.
"""

from __future__ import annotations

import socket
import ssl

from dataservice.errors import InvalidArgumentError, UnauthenticatedError, UnavailableError
from dataservice.runtime.addresses import split_address

_PROBE_TIMEOUT_S = 0.5


def check_server_pair(cert_path: str, key_path: str) -> None:
    """Raises InvalidArgumentError unless the files are a PEM certificate and its key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert_path, key_path, password="")
    except (ssl.SSLError, ValueError) as error:
        raise InvalidArgumentError(
            f"the TLS certificate {cert_path} and the key {key_path} are not PEM files without a "
            f"password that go together: {error}"
        ) from error


def check_roots(ca_path: str) -> None:
    """Raises InvalidArgumentError unless the file holds a PEM certificate."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=ca_path)
    except ssl.SSLError as error:
        raise InvalidArgumentError(
            f"the TLS CA certificate file {ca_path} holds no certificate in PEM form: {error}"
        ) from error


def explained(
    failure: UnavailableError, address: str, *, by_tls: bool, ca_path: str | None
) -> UnavailableError | UnauthenticatedError:
    """Returns ``failure``, or a clearer error if TLS keeps both ends from ever connecting.

    The clearer error is an UnauthenticatedError, which is not retried. It means that only one end
    speaks TLS, or that the certificates in ``ca_path`` (None: those of the system) do not vouch for
    the server's. Blocks for a second at most, and only if something listens. To be called for
    clients that were never answered, since a server does not change whether it speaks TLS.
    """
    speaks_tls = _speaks_tls(address)
    if speaks_tls is None or not (speaks_tls or by_tls):
        return failure
    if not by_tls:
        return UnauthenticatedError(
            f"{failure}; it speaks TLS and this client does not: name the certificate that vouches "
            "for it (DATASERVICE_TLS_CA or --tls-ca; in training PSTRAIN_TLS_CA or tls_ca_path)"
        )
    if not speaks_tls:
        return UnauthenticatedError(
            f"{failure}; this client speaks TLS and it does not: start it with --tls-cert and "
            "--tls-key, or name no certificate here (DATASERVICE_TLS_CA, --tls-ca; in training "
            "PSTRAIN_TLS_CA, tls_ca_path)"
        )
    reason = _refusal_reason(address, ca_path)
    if reason is None:
        return failure
    trusted = "the certificates of this system" if ca_path is None else ca_path
    return UnauthenticatedError(
        f"{failure}; its certificate is not trusted ({reason}) by {trusted}: name the CA that it "
        "was issued by (DATASERVICE_TLS_CA or --tls-ca; in training PSTRAIN_TLS_CA or "
        "tls_ca_path), and an address that it was issued for"
    )


def _speaks_tls(address: str) -> bool | None:
    """Returns whether the server speaks TLS; None if nothing answers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        _shake_hands(address, context)
    except ssl.SSLError as error:
        return False if error.reason == "WRONG_VERSION_NUMBER" else None
    except (OSError, ValueError):
        return None
    return True


def _refusal_reason(address: str, ca_path: str | None) -> str | None:
    """Returns why the server's certificate is refused; None if it is accepted or not checked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if ca_path is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(cafile=ca_path)
        _shake_hands(address, context)
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except (OSError, ValueError):
        return None
    return None


def _shake_hands(address: str, context: ssl.SSLContext) -> None:
    """Does a TLS handshake; raises SSLError if that fails, another OSError if nothing answers."""
    host, port = split_address(address)
    failure: OSError | None = None
    for family, kind, protocol, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        # Wrapped before it is connected, since wrapping a socket whose peer is gone leaks it.
        with (
            socket.socket(family, kind, protocol) as plain,
            context.wrap_socket(plain, server_hostname=host) as wrapped,
        ):
            wrapped.settimeout(_PROBE_TIMEOUT_S)
            try:
                wrapped.connect(place)
                return
            except ssl.SSLError:
                raise
            except OSError as error:
                failure = error
    if failure is not None:
        raise failure
