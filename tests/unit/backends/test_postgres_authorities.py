"""Which certificates PostgreSQL connections trust, by their settings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from ematix_flow.backends.postgres.address import parse_address
from ematix_flow.spec.connections import PostgresConnection


@pytest.fixture(autouse=True)
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The system's authorities, for these tests."""
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authorities.pem"))
    (tmp_path / "authorities.pem").write_text("")
    return str(tmp_path / "authorities.pem")


def believed(url: str, **fields: Any) -> tuple[object, object]:
    found = conninfo_to_dict(parse_address(PostgresConnection(name="x", url=url, **fields)).conninfo())
    return found.get("sslmode"), found.get("sslrootcert")


def test_a_server_elsewhere_is_verified_with_the_systems_authorities(trusted: str) -> None:
    assert believed("postgres://db.example/d") == ("verify-full", trusted)
    assert believed("host=db.example dbname=d") == ("verify-full", trusted)
    assert believed("postgres://10.1.2.3/d") == ("verify-full", trusted)


def test_an_authority_of_ones_own_is_used_instead() -> None:
    assert believed("postgres://db.example/d", ssl_root_cert="/ca.pem") == ("verify-full", "/ca.pem")
    assert believed("postgres://db.example/d?sslrootcert=/ca.pem") == ("verify-full", "/ca.pem")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.3.2.1", "[::1]", ""])
def test_a_server_on_this_machine_is_not_asked(host: str) -> None:
    assert believed(f"postgres://{host}/d") == (None, None)


def test_a_stated_mode_wins() -> None:
    assert believed("postgres://db.example/d", sslmode="require") == ("require", None)
    assert believed("postgres://db.example/d?sslmode=disable") == ("disable", None)


def test_naming_the_systems_authorities_asks_for_full_verification(trusted: str) -> None:
    assert believed("postgres://localhost/d?sslrootcert=system") == ("verify-full", trusted)


def test_a_folder_of_authorities_is_left_to_openssl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    monkeypatch.setenv("SSL_CERT_DIR", os.getcwd())
    assert believed("postgres://db.example/d") == ("verify-full", "system")
