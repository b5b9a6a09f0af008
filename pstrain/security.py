"""Which TLS certificates training's servers present and which its clients trust.

Reads the environment, opens no connection. Invariant: a process that was told to use TLS never
communicates without it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from dataservice.runtime.auth import TlsConfig
from pstrain.errors import InvalidArgumentError, MissingFileError

TLS_CA_ENV: Final = "PSTRAIN_TLS_CA"
# Options of a whole cluster, passed by `pstrain launch` to servers that user programs start.
TLS_CERT_ENV: Final = "PSTRAIN_TLS_CERT"
TLS_KEY_ENV: Final = "PSTRAIN_TLS_KEY"
INSECURE_NETWORK_ENV: Final = "PSTRAIN_INSECURE_NETWORK"


def client_tls(ca_path: str | None) -> TlsConfig | None:
    """Returns the TLS configuration of a client that trusts the CA file; None: no TLS.

    ``ca_path`` None: the file in PSTRAIN_TLS_CA, if set. MissingFileError if the file is missing.
    """
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
    """Returns the TLS configuration of a server that presents this certificate; None: no TLS.

    Without ``cert_path`` and ``key_path``, those in PSTRAIN_TLS_CERT and PSTRAIN_TLS_KEY are used.
    InvalidArgumentError for a CA file without a certificate.
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
    """Raises InvalidArgumentError if both certificates and unencrypted traffic were asked for.

    ``paths``: paths of certificates, by the option that gave them.
    """
    given = [f"{name} {path}" for name, path in paths.items() if path is not None]
    if insecure_network and given:
        raise InvalidArgumentError(
            f"--insecure-network (insecure_network=True) says that traffic travels unencrypted, "
            f"and {', '.join(given)} that it is encrypted: leave one of them out"
        )


def may_expose(insecure_network: bool) -> bool:
    """True if other hosts may reach a server without TLS, by argument or by the environment."""
    return insecure_network or os.environ.get(INSECURE_NETWORK_ENV) == "1"
