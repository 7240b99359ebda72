"""``column_map=`` of one of several targets: each names the same source columns in its own way."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Annotated, Any

import pytest

from ematix_flow import BigInt, SQLiteConnection, Text, ematix, pk, register_connection


@ematix.table(name="people")
class Person:
    person_id: Annotated[BigInt, pk()]
    email: Text


@ematix.table(name="contacts")
class Contact:
    contact_id: Annotated[BigInt, pk()]
    address: Text


def database_of_users(folder: Path) -> Path:
    """The connection ``db``, and its file."""
    path = folder / "data.db"
    with sqlite3.connect(path) as made:
        made.execute("CREATE TABLE users (id INTEGER, mail TEXT)")
        made.execute("INSERT INTO users VALUES (1, 'a@x'), (2, 'b@x')")
    register_connection(SQLiteConnection(name="db", path=str(path)))
    return path


@pytest.mark.parametrize("by_table", [False, True])
def test_each_target_renames_the_source_columns_by_its_own_map(tmp_path: Path, by_table: bool) -> None:
    path = database_of_users(tmp_path)

    @ematix.pipeline(
        targets=[
            ematix.target(Person, mode="append", column_map={"person_id": "id", "email": "mail"}),
            ematix.target(Contact, mode="merge", column_map={"contact_id": "id", "address": "mail"}),
        ],
        target_connection="db",
        source_table="users" if by_table else None,
    )
    def spread(conn: Any) -> str | None:
        return None if by_table else "SELECT id, mail FROM users"

    spread.sync()
    with sqlite3.connect(path) as reading:
        assert reading.execute("SELECT person_id, email FROM people ORDER BY 1").fetchall() == [
            (1, "a@x"),
            (2, "b@x"),
        ]
        assert reading.execute("SELECT contact_id, address FROM contacts ORDER BY 1").fetchall() == [
            (1, "a@x"),
            (2, "b@x"),
        ]


@ematix.table(name="logins")
class Login:
    login: Annotated[Text, pk()]
    shown: Text
    user_id: BigInt


@pytest.mark.parametrize("first", [Person, Login])
def test_two_columns_of_a_target_may_come_from_one_of_the_source(tmp_path: Path, first: type) -> None:
    path = database_of_users(tmp_path)
    targets = [
        ematix.target(Person, mode="append", column_map={"person_id": "id", "email": "mail"}),
        ematix.target(Login, mode="merge", column_map={"login": "mail", "shown": "mail", "user_id": "id"}),
    ]

    @ematix.pipeline(
        targets=targets if first is Person else targets[::-1],
        target_connection="db",
        source_table="users",
    )
    def spread(conn: Any) -> None:
        return None

    spread.sync()
    with sqlite3.connect(path) as reading:
        assert reading.execute("SELECT person_id, email FROM people ORDER BY 1").fetchall() == [
            (1, "a@x"),
            (2, "b@x"),
        ]
        assert reading.execute("SELECT login, shown, user_id FROM logins ORDER BY 1").fetchall() == [
            ("a@x", "a@x", 1),
            ("b@x", "b@x", 2),
        ]
