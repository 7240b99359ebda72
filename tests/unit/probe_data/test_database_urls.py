"""URLs of databases: a password may hold any character, and no part of it is ever shown."""

from __future__ import annotations

from typing import Any

import pytest

from ematix_probe import RunHistory, probe, source
from ematix_probe.database_urls import split_database_url
from ematix_probe.errors import DeclarationError, HistoryError, ProbeError

PASSWORDS = [
    "first@SECONDHALF",
    "first/SECONDHALF",
    "first?SECONDHALF",
    "first:SECONDHALF",
    "a@b/c?d#SECONDHALF",
]


@pytest.mark.parametrize("password", PASSWORDS)
def test_a_password_as_written_ends_at_the_last_at_sign(password: str) -> None:
    found = split_database_url(f"postgresql+psycopg://u:{password}@db:5433/shop?sslmode=require")
    assert (found.scheme, found.user, found.password) == ("postgresql", "u", password)
    assert (found.host, found.port, found.database) == ("db", 5433, "shop")
    assert found.options == {"sslmode": "require"}
    assert split_database_url(found.encoded) == found
    assert found.masked == "postgresql://u:***@db:5433/shop?sslmode=require"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("postgres:///shop?host=/run/pg", (None, None, None, None, "shop")),
        ("postgres:///shop?user=a&password=b@c", (None, None, None, None, "shop")),
        ("mysql://[::1]:3307/a%2Fb", (None, None, "::1", 3307, "a/b")),
        ("mysql://u%40x:p%40w@h", ("u@x", "p@w", "h", None, "")),
        ("sqlite:////data/p@th.db", (None, None, None, None, "data/p@th.db")),
    ],
)
def test_parts_that_are_not_written_are_missing(url: str, address: tuple[Any, ...]) -> None:
    found = split_database_url(url)
    assert (found.user, found.password, found.host, found.port, found.database) == address


def test_each_server_of_a_list_has_its_port() -> None:
    assert split_database_url("postgres://u:p@x@one:1,[::2]:2,three/d").hosts == (
        ("one", 1),
        ("::2", 2),
        ("three", None),
    )


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_a_server_that_cannot_be_reached_shows_no_part_of_the_password(scheme: str, password: str) -> None:
    url = f"{scheme}://u:{password}@127.0.0.1:1/x"
    make = source.postgres if scheme == "postgresql" else source.mysql

    @probe.data(source=make(url), table="orders")
    def orders(t: Any) -> None:
        t.row_count(at_least=1)

    report = orders.run()
    assert report.verdict == "error"
    shown = f"{report.to_dict()} {report} {orders} {make(url)!r}"
    assert "127.0.0.1:1" in shown
    with pytest.raises(ProbeError) as failed:
        RunHistory(url).runs()
    shown += f"{failed.value} {RunHistory(url)!r}"
    assert "SECONDHALF" not in shown and "first" not in shown


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_a_url_without_its_host_is_refused_and_not_shown(scheme: str) -> None:
    url = f"{scheme}://u:SECONDHALF/first"
    with pytest.raises(DeclarationError, match="host that can be read") as refused:
        (source.postgres if scheme == "postgresql" else source.mysql)(url)
    with pytest.raises(HistoryError, match="host that can be read") as also:
        RunHistory(url)
    assert "SECONDHALF" not in f"{refused.value}{also.value}"
