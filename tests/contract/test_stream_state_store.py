"""The states of streams in Postgres: one owner at a time, whole versions, and errors that say what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from ematix_flow.backends.postgres.stream_state import PostgresStreamStates
from ematix_flow.backends.state_stores.stream_states import open_stream_states
from ematix_flow.engine.streams.state.mirror import restore_columns
from ematix_flow.engine.streams.stream_folder import StreamFolder
from ematix_flow.errors import CannotConnect, EngineError, FlowError, MissingSecret, PipelineLocked
from ematix_flow.spec.windows import StateStore
from ematix_flow.state.stream_states import StateEntry, StatePart
from tests.services.postgres import PostgresServer
from tests.stream_runs import query


def store(url: str, schema: str = "public") -> PostgresStreamStates:
    return open_stream_states(StateStore(kind="postgres", url=url, schema=schema))


@pytest.fixture
def states(pg_database: str) -> Iterator[PostgresStreamStates]:
    with closing(store(pg_database)) as opened:
        yield opened


def part(version: int, data: bytes, number: int = 0) -> StatePart:
    return StatePart(version, "windows", "made", number, data)


def entry(owner: str, version: int) -> StateEntry:
    return StateEntry(owner, version, '{"facts": 1}', "files", "columns", "status")


def test_a_full_copy_replaces_everything_and_changes_replace_what_is_repeated(
    states: PostgresStreamStates,
) -> None:
    assert states.read("s", "all") is None  # creates nothing
    assert states.claim("s", "all", "me") == StateEntry("")
    states.claim("s", "other", "you")
    states.write("s", "other", entry("you", 1), [part(1, b"other")], is_copy=True)
    states.write("s", "all", entry("me", 1), [part(1, b"a"), part(1, b"\0b", 1)], is_copy=True)
    states.write("s", "all", entry("me", 2), [part(2, b"c")], is_copy=False)
    states.write("s", "all", entry("me", 3), [part(3, b"d")], is_copy=False)
    states.write("s", "all", entry("me", 2), [part(2, b"again")], is_copy=False)
    assert [each.data for each in states.parts("s", "all")] == [b"a", b"\0b", b"again"]
    assert states.versions("s", "all") == {1: 3, 2: 5}
    assert states.read("s", "all") == entry("me", 2)
    states.write("s", "all", entry("me", 3), [part(3, b"whole")], is_copy=True)
    assert [each.data for each in states.parts("s", "all")] == [b"whole"]
    assert {name: found.version for name, found in states.read_all("s").items()} == {"all": 3, "other": 1}


def test_a_process_that_was_replaced_cannot_write(states: PostgresStreamStates, pg_database: str) -> None:
    states.claim("s", "all", "first")
    states.write("s", "all", entry("first", 1), [part(1, b"a")], is_copy=True)
    with closing(store(pg_database)) as second:
        assert second.claim("s", "all", "second") == entry("first", 1)
        with pytest.raises(PipelineLocked, match="another process has taken over"):
            states.write("s", "all", entry("first", 2), [part(2, b"b")], is_copy=False)
        with pytest.raises(PipelineLocked):
            states.write_entry("s", "all", entry("first", 1))
        second.write("s", "all", entry("second", 2), [part(2, b"c")], is_copy=False)
        assert [each.data for each in second.parts("s", "all")] == [b"a", b"c"]


def test_a_broken_connection_is_opened_again(states: PostgresStreamStates, pg_database: str) -> None:
    states.claim("s", "all", "me")
    query(
        pg_database,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    states.write("s", "all", entry("me", 1), [part(1, b"a")], is_copy=True)
    assert states.read("s", "all") == entry("me", 1)


def test_a_schema_of_any_name_is_used_and_a_missing_one_is_named(pg_database: str) -> None:
    hostile = 'a "b"; DROP'
    with closing(store(pg_database, hostile)) as states:
        with pytest.raises(EngineError, match="has no schema") as refused:
            states.claim("s", "all", "me")
        assert "CREATE SCHEMA" in str(refused.value.next_step)
        with psycopg.connect(pg_database, autocommit=True) as connection:
            connection.execute(psycopg.sql.SQL("CREATE SCHEMA {}").format(psycopg.sql.Identifier(hostile)))
        states.claim("s", "all", "me")
        assert states.read("s", "all") == StateEntry("me")


def test_a_missing_permission_is_named(postgres: PostgresServer, pg_database: str) -> None:
    role = f"reader_{abs(hash(pg_database))}"
    address = urlsplit(pg_database)
    query(pg_database, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    query(pg_database, f"CREATE ROLE {role} LOGIN PASSWORD 'hunter22'")
    theirs = f"postgres://{role}:hunter22@{address.hostname}:{address.port}{address.path}"
    with closing(store(theirs)) as states, pytest.raises(EngineError, match="permission denied") as refused:
        states.claim("s", "all", "me")
    assert str(refused.value.next_step).startswith("GRANT USAGE, CREATE on schema public")
    assert role in str(refused.value.next_step)


@pytest.mark.parametrize(
    ("url", "kind", "message"),
    [
        ("postgres://ann:hunter22@127.0.0.1:9/x", CannotConnect, "127.0.0.1:9/x"),
        ("${EMATIX_TEST_NO_SUCH_URL}", MissingSecret, "EMATIX_TEST_NO_SUCH_URL is not set"),
    ],
)
def test_a_server_that_cannot_be_reached_is_named_without_its_password(
    url: str, kind: type[FlowError], message: str
) -> None:
    with pytest.raises(kind, match=message) as refused, closing(store(url)) as states:
        states.claim("s", "all", "me")
    assert "hunter22" not in f"{refused.value} {refused.value.next_step} {refused.value.state}"


def test_the_columns_that_were_inferred_are_brought_back(
    states: PostgresStreamStates, tmp_path: Path
) -> None:
    stored = {"columns.json": "{}", "columns-1.json": '{"columns": []}'}
    states.claim("s", "all", "me")
    restore_columns(states, "s", StreamFolder(tmp_path))
    assert list(tmp_path.iterdir()) == []
    states.write("s", "all", replace(entry("me", 1), columns=json.dumps(stored)), [], is_copy=True)
    restore_columns(states, "s", StreamFolder(tmp_path))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == stored
    states.write_entry("s", "all", replace(entry("me", 1), columns='{"../x": ""}'))
    with pytest.raises(EngineError, match="is no file of columns"):
        restore_columns(states, "s", StreamFolder(tmp_path))


def test_a_reference_is_replaced_when_the_store_is_opened(
    pg_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE_URL", pg_database)
    with closing(store("${STATE_URL}")) as states:
        states.claim("s", "all", "me")
    assert query(pg_database, "SELECT stream, query, owner FROM ematix_stream_state") == [("s", "all", "me")]
