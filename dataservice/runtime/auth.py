"""The shared secret of a cluster, and its TLS files: where they come from and how they are checked.

On first start a server creates the token in a file that only its user can read; clients of that
user find it by themselves. Knows no gRPC and no Flight. Invariant: a configured source of the token
that cannot be used is an error, never a reason to fall back to the next source.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dataservice.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    MissingFileError,
    UnauthenticatedError,
)
from dataservice.runtime.folders import private_folder
from dataservice.runtime.tls_probe import check_roots, check_server_pair

TOKEN_METADATA_KEY: Final = "x-dataservice-token"
TOKEN_ENV: Final = "DATASERVICE_TOKEN"
TOKEN_FILE_ENV: Final = "DATASERVICE_TOKEN_FILE"
# Set to a wrong path, this must be an error, so that no client goes without TLS silently.
TLS_CA_ENV: Final = "DATASERVICE_TLS_CA"
WRONG_TOKEN: Final = (
    f"the token is missing or wrong; give both ends the same one (token=, {TOKEN_ENV} or "
    f"{TOKEN_FILE_ENV})"
)
_STATE_HOME_ENV: Final = "XDG_STATE_HOME"
_TOKEN_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """The PEM files for TLS.

    A server presents ``cert_path`` with ``key_path``. A client trusts ``ca_path``, or the system's
    root certificates if it is None. Clients authenticate by the token, not by certificates.
    """

    cert_path: str | None = None
    key_path: str | None = None
    ca_path: str | None = None

    def __post_init__(self) -> None:
        if (self.cert_path is None) != (self.key_path is None):
            raise InvalidArgumentError(
                f"TLS needs both a certificate and its key, got cert_path={self.cert_path!r} "
                f"and key_path={self.key_path!r}"
            )

    @classmethod
    def of(
        cls, cert_path: str | None, key_path: str | None, ca_path: str | None
    ) -> TlsConfig | None:
        """Returns the value for these paths; None (no TLS) if all are None."""
        if cert_path is None and key_path is None and ca_path is None:
            return None
        return cls(cert_path=cert_path, key_path=key_path, ca_path=ca_path)

    def read_server_pair(self) -> tuple[bytes, bytes]:
        """Returns the key and the certificate chain, in that order."""
        if self.cert_path is None or self.key_path is None:
            raise FailedPreconditionError(
                "a server with TLS needs cert_path and key_path; only ca_path is set"
            )
        pair = _read_pem(self.key_path, "TLS key"), _read_pem(self.cert_path, "TLS certificate")
        check_server_pair(self.cert_path, self.key_path)
        return pair

    def server_context(self) -> ssl.SSLContext:
        """Returns the context for a server's sockets."""
        self.read_server_pair()
        assert self.cert_path is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert_path, self.key_path)
        return context

    def client_context(self) -> ssl.SSLContext:
        """Returns a context for client sockets, which checks the server's certificate and name."""
        self.read_roots()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.ca_path is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(cafile=self.ca_path)
        return context

    def read_roots(self) -> bytes | None:
        """Returns the certificates that a client trusts; None for those of the system."""
        if self.ca_path is None:
            return None
        roots = _read_pem(self.ca_path, "TLS CA certificate")
        check_roots(self.ca_path)
        return roots


def client_tls(ca_path: str | None) -> TlsConfig | None:
    """Returns TLS settings that trust the certificates in a file; None: no TLS.

    The file is ``ca_path`` or, without one, the one named by DATASERVICE_TLS_CA, if that is set:
    MissingFileError if there is no such file.
    """
    if ca_path is None:
        ca_path = os.environ.get(TLS_CA_ENV)
        if ca_path is not None and not os.path.exists(ca_path):
            raise MissingFileError(f"{TLS_CA_ENV} names {ca_path!r}, which does not exist")
    return TlsConfig.of(None, None, ca_path)


def _read_pem(path: str, role: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise FailedPreconditionError(
            f"cannot read the {role} file {path}: {error.strerror}"
        ) from error


def resolve_token(explicit: str | None = None) -> str:
    """Returns the token of this process.

    It is the first that is given of: ``explicit``, ``$DATASERVICE_TOKEN``, the file
    ``$DATASERVICE_TOKEN_FILE``, and the default file, which is created if it is missing. If the
    home directory cannot be written, as in many containers, a file in the temporary directory takes
    the place of the default file. Several processes may safely do this at once.
    """
    if explicit is not None:
        return _checked(explicit, "the token argument")
    if TOKEN_ENV in os.environ:
        return _checked(os.environ[TOKEN_ENV], f"environment variable {TOKEN_ENV}")
    if TOKEN_FILE_ENV in os.environ:
        return _read_token(Path(os.environ[TOKEN_FILE_ENV]), f" (named by {TOKEN_FILE_ENV})")
    return _read_token(_default_token_file(), "")


def _default_token_file() -> Path:
    """Returns the default token file, which exists afterwards."""
    path = default_token_path()
    # Not Path.exists, which raises if this user may not enter the home directory.
    if os.path.exists(path):
        return path
    try:
        _create_token(path)
    except FailedPreconditionError:
        if os.environ.get(_STATE_HOME_ENV):
            raise
        path = _token_path_without_home()
        if not os.path.exists(path):
            _create_token(path)
    return path


def _token_path_without_home() -> Path:
    try:
        return Path(private_folder("dataservice-token")) / "token"
    except OSError as error:
        raise FailedPreconditionError(
            f"cannot keep a token in the home directory, nor in the temporary one ({error}); set "
            f"{TOKEN_ENV}, or {TOKEN_FILE_ENV} to a file that exists"
        ) from error


def default_token_path() -> Path:
    """Returns the path of the token file that is used if nothing else is configured."""
    state_home = os.environ.get(_STATE_HOME_ENV) or "~/.local/state"
    return Path(state_home).expanduser() / "dataservice" / "token"


def tokens_equal(expected: str, presented: str | bytes | None) -> bool:
    """Compares two tokens, in a time that does not depend on where they differ."""
    if presented is None:
        return False
    if isinstance(presented, str):
        presented = presented.encode("utf-8", "surrogatepass")
    return hmac.compare_digest(expected.encode(), presented)


def _checked(token: str, origin: str) -> str:
    # Tokens travel in HTTP/2 headers, where only visible ASCII arrives unchanged.
    if not token or not all("!" <= character <= "~" for character in token):
        raise InvalidArgumentError(
            f"the token from {origin} must be non-empty visible ASCII without spaces; "
            "unset it or set a token such as `openssl rand -hex 32` prints"
        )
    return token


def _read_token(path: Path, note: str) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            token = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UnauthenticatedError(
            f"cannot read the token file {path}{note}: {reason}; "
            f"make it readable or set {TOKEN_ENV}"
        ) from error
    if mode & 0o077:
        raise FailedPreconditionError(
            f"the token file {path}{note} has mode {mode:04o}, so other users may read it; "
            f"run `chmod 600 {path}`"
        )
    return _checked(token, f"file {path}{note}")


def _create_token(path: Path) -> None:
    """Creates a complete file with mode 0600 at ``path``, unless there is one already."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(secrets.token_urlsafe(_TOKEN_BYTES) + "\n")
                file.flush()
                os.fsync(file.fileno())
            # A link is atomic and never replaces a file, so no process sees half a token or a
            # second one.
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
        finally:
            draft.unlink()
    except OSError as error:
        raise FailedPreconditionError(
            f"cannot create the token file {path}: {error.strerror}; "
            f"set {TOKEN_ENV}, or {TOKEN_FILE_ENV} to a file that exists"
        ) from error
