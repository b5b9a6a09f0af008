"""Where a token and TLS files come from, and which of them are refused, and how."""

from __future__ import annotations

import os
import stat
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dataservice.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    UnauthenticatedError,
)
from dataservice.runtime.auth import (
    TOKEN_ENV,
    TOKEN_FILE_ENV,
    TlsConfig,
    default_token_path,
    resolve_token,
    tokens_equal,
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(TOKEN_ENV, raising=False)
    monkeypatch.delenv(TOKEN_FILE_ENV, raising=False)
    return tmp_path


def token_file(path: Path, token: str, mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(token)
    path.chmod(mode)
    return path


def test_token_sources_are_tried_in_order_of_precedence(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token_file(default_token_path(), "by-default\n")
    assert resolve_token() == "by-default"
    monkeypatch.setenv(TOKEN_FILE_ENV, str(token_file(home / "token", "by-file\n")))
    assert resolve_token() == "by-file"
    monkeypatch.setenv(TOKEN_ENV, "by-environment")
    assert resolve_token() == "by-environment"
    assert resolve_token("explicit") == "explicit"


def test_first_use_creates_private_token_file_that_later_uses_read() -> None:
    token = resolve_token()
    path = default_token_path()
    assert len(token) >= 43
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert resolve_token() == token
    assert os.listdir(path.parent) == ["token"]


def test_default_token_path_without_xdg_lies_in_home_directory(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(home))
    assert default_token_path() == home / ".local/state/dataservice/token"


def test_concurrent_first_uses_agree_on_one_token() -> None:
    barrier = threading.Barrier(8)

    def start(_: int) -> str:
        barrier.wait(timeout=10)
        return resolve_token()

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(start, range(8)))) == 1
    assert os.listdir(default_token_path().parent) == ["token"]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_token_file_accessible_to_other_users_is_refused(mode: int) -> None:
    path = token_file(default_token_path(), "leaked", mode)
    with pytest.raises(FailedPreconditionError, match=f"chmod 600 {path}"):
        resolve_token()


def test_missing_named_token_file_is_refused_without_fallback(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token_file(default_token_path(), "by-default")
    for path in (home / "missing", home):
        monkeypatch.setenv(TOKEN_FILE_ENV, str(path))
        with pytest.raises(UnauthenticatedError, match=f"{path}.*{TOKEN_FILE_ENV}"):
            resolve_token()


def test_binary_token_file_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = token_file(home / "token", "")
    path.write_bytes(b"\xff\xfe")
    monkeypatch.setenv(TOKEN_FILE_ENV, str(path))
    with pytest.raises(UnauthenticatedError, match="token file"):
        resolve_token()


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "clé", "\x00"])
def test_token_of_other_than_visible_ascii_is_refused_unechoed(token: str) -> None:
    with pytest.raises(InvalidArgumentError, match="visible ASCII") as caught:
        resolve_token(token)
    assert not token or token not in str(caught.value)


def test_empty_token_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_ENV, "")
    with pytest.raises(InvalidArgumentError, match=TOKEN_ENV):
        resolve_token()


def test_uncreatable_token_directory_is_refused_naming_remedy(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(token_file(home / "file", "")))
    with pytest.raises(FailedPreconditionError, match=f"set {TOKEN_ENV}"):
        resolve_token()


@pytest.fixture
def without_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Takes the home folder away; returns the path of the user's own temporary folder."""
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(token_file(home / "file", "")))
    (home / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(home / "temporary"))
    return home / "temporary" / f"dataservice-token-{os.getuid()}"


def test_token_without_home_lies_in_private_temporary_folder(
    without_home: Path,
) -> None:
    token = resolve_token()
    assert resolve_token() == token
    assert stat.S_IMODE(without_home.stat().st_mode) == 0o700
    assert (without_home / "token").read_text().strip() == token


def test_world_writable_temporary_token_folder_is_refused(without_home: Path) -> None:
    without_home.mkdir(mode=0o700)
    without_home.chmod(0o777)
    with pytest.raises(FailedPreconditionError, match=f"not a folder of this user.*{TOKEN_ENV}"):
        resolve_token()


def test_inaccessible_home_counts_as_no_home(
    without_home: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Path.stat

    def closed(path: Path, **options: bool) -> os.stat_result:
        if path.is_relative_to(home / "file"):
            raise PermissionError(13, "Permission denied")
        return look(path, **options)

    monkeypatch.setattr(Path, "stat", closed)
    assert resolve_token()
    assert os.path.exists(without_home / "token")


def test_tokens_equal_accepts_only_identical_tokens() -> None:
    assert tokens_equal("secret", "secret")
    assert tokens_equal("secret", b"secret")
    for other in ("Secret", "secre", "secret ", "", "sécret", b"\xff", None):
        assert not tokens_equal("secret", other)


def test_tls_config_is_none_without_paths_and_refuses_half_a_pair() -> None:
    assert TlsConfig.of(None, None, None) is None
    with pytest.raises(InvalidArgumentError, match=r"c\.pem"):
        TlsConfig.of("c.pem", None, None)
    with pytest.raises(FailedPreconditionError, match="only ca_path"):
        TlsConfig(ca_path="ca.pem").read_server_pair()


def test_missing_or_invalid_tls_files_are_refused_naming_them(home: Path) -> None:
    certificate, key = home / "c.pem", home / "k.pem"
    certificate.write_bytes(b"certificate")
    key.write_bytes(b"key")
    tls = TlsConfig(cert_path=str(certificate), key_path=str(key), ca_path=str(home / "none"))
    with pytest.raises(InvalidArgumentError, match=r"c\.pem and the key .*k\.pem"):
        tls.read_server_pair()
    assert TlsConfig().read_roots() is None
    with pytest.raises(FailedPreconditionError, match=r"CA certificate.*No such file"):
        tls.read_roots()
    with pytest.raises(InvalidArgumentError, match=r"c\.pem holds no certificate"):
        TlsConfig(ca_path=str(certificate)).read_roots()
