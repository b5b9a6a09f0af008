"""Which certificates training shows and trusts.

Reads the environment, opens no connection. Invariant: who was told to use TLS never speaks without.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from dataservice.runtime.auth import TlsConfig
from pstrain.errors import InvalidArgumentError, MissingFileError

TLS_CA_ENV: Final = "PSTRAIN_TLS_CA"
# What was said of a whole cluster when it was launched, for servers in programs of their own.
TLS_CERT_ENV: Final = "PSTRAIN_TLS_CERT"
TLS_KEY_ENV: Final = "PSTRAIN_TLS_KEY"
INSECURE_NETWORK_ENV: Final = "PSTRAIN_INSECURE_NETWORK"


def client_tls(ca_path: str | None) -> TlsConfig | None:
    """Towards servers that the file vouches for; None: that in PSTRAIN_TLS_CA, or no TLS."""
    path = ca_path if ca_path is not None else os.environ.get(TLS_CA_ENV)
    if path is None:
        return None
    if not os.path.exists(path):
        source = TLS_CA_ENV if ca_path is None else "tls_ca_path"
        raise MissingFileError(f"{source} names {path!r}, which does not exist")
    return TlsConfig(ca_path=path)


def server_tls(
    cert_path: str | None, key_path: str | None, ca_path: str | None
) -> TlsConfig | None:
    """Of a server that shows the certificate; None without any path.

    Without both, those in PSTRAIN_TLS_CERT and PSTRAIN_TLS_KEY.
    """
    if cert_path is None and key_path is None:
        cert_path, key_path = os.environ.get(TLS_CERT_ENV), os.environ.get(TLS_KEY_ENV)
    if cert_path is None and key_path is None:
        if ca_path is not None:
            raise InvalidArgumentError(
                f"a server with tls_ca_path={ca_path!r} needs a certificate of its own: set "
                "tls_cert_path and tls_key_path (--tls-cert, --tls-key) too"
            )
        return None
    trusted = client_tls(ca_path)
    return TlsConfig(
        cert_path=cert_path,
        key_path=key_path,
        ca_path=None if trusted is None else trusted.ca_path,
    )


def check_one_way(insecure_network: bool, paths: Mapping[str, str | None]) -> None:
    """InvalidArgumentError where both were asked for: certificates, and traffic without any.

    ``paths``, by the name of the option that gave each.
    """
    given = [f"{name} {path}" for name, path in paths.items() if path is not None]
    if insecure_network and given:
        raise InvalidArgumentError(
            f"--insecure-network (insecure_network=True) says that traffic travels unencrypted, "
            f"and {', '.join(given)} that it is encrypted: leave one of them out"
        )


def may_expose(insecure_network: bool) -> bool:
    """Whether a server may be reached by other hosts without TLS: it was typed out somewhere."""
    return insecure_network or os.environ.get(INSECURE_NETWORK_ENV) == "1"
