"""Certificates for servers that tests start, each of an authority of its own."""

from __future__ import annotations

import pathlib

import trustme

from dataservice.runtime.auth import TlsConfig


def new_certificate(folder: pathlib.Path, *hosts: str) -> TlsConfig:
    """Writes a new authority, and a certificate and key for ``hosts``; returns their paths.

    Without ``hosts`` the certificate is for this host.
    """
    folder.mkdir(exist_ok=True)
    authority = trustme.CA()
    certificate = authority.issue_cert(*(hosts or ("127.0.0.1", "localhost")))
    cert, key, ca = (str(folder / f"{name}.pem") for name in ("cert", "key", "ca"))
    certificate.cert_chain_pems[0].write_to_path(cert)
    certificate.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(ca)
    return TlsConfig(cert_path=cert, key_path=key, ca_path=ca)
