"""``ManagedTable.ensure``: a table created or compared by hand, and the attributes of a declared class."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Annotated

import pytest

from ematix_flow import BigInt, ManagedTable, SQLiteConnection, Text, connect, ematix, pk, register_connection
from ematix_flow.engine.live_connection import LiveConnection
from ematix_flow.errors import DeclarationError, SchemaMismatch


@ematix.table(schema=None, name="notes")
class Note:
    note_id: Annotated[BigInt, pk()]
    body: Text | None


class LaterNote(ManagedTable):
    __tablename__ = "notes"

    note_id: Annotated[BigInt, pk()]
    body: Text | None
    author: Text | None


class StrictNote(ManagedTable):
    __tablename__ = "notes"

    note_id: Annotated[BigInt, pk()]
    body: Text


@pytest.fixture
def database(tmp_path: Path) -> LiveConnection:
    return connect(SQLiteConnection(name="notes", path=str(tmp_path / "notes.db")))


def columns(tmp_path: Path) -> list[str]:
    with sqlite3.connect(tmp_path / "notes.db") as reading:
        return [row[1] for row in reading.execute("PRAGMA table_info(notes)")]


def test_a_missing_table_is_created_with_the_columns_of_a_load(
    database: LiveConnection, tmp_path: Path
) -> None:
    assert Note.ensure(database) == {"action": "created", "differences": []}
    assert columns(tmp_path) == ["note_id", "body", "_loaded_at", "_batch_id"]
    assert Note.ensure(database) == {"action": "unchanged", "differences": []}


def test_a_table_of_versions_is_created_for_its_mode(database: LiveConnection, tmp_path: Path) -> None:
    Note.ensure(database, mode="scd2")
    assert "valid_from" in columns(tmp_path)


def test_a_difference_raises_is_listed_or_is_evolved_by_the_policy(
    database: LiveConnection, tmp_path: Path
) -> None:
    Note.ensure(database)
    with pytest.raises(SchemaMismatch, match="author"):
        LaterNote.ensure(database)
    assert "author" not in columns(tmp_path)
    evolved = LaterNote.ensure(database, on_drift="evolve")
    assert evolved["action"] == "evolved"
    assert "author" in str(evolved["differences"])
    assert "author" in columns(tmp_path)
    warned = StrictNote.ensure(database, on_drift="warn")
    assert warned["action"] == "drift"
    assert "body" in str(warned["differences"])


def test_a_connection_may_be_named(tmp_path: Path) -> None:
    register_connection(SQLiteConnection(name="notes", path=str(tmp_path / "notes.db")))
    assert Note.ensure("notes")["action"] == "created"


def test_a_policy_that_is_unknown_is_refused_where_it_is_called(database: LiveConnection) -> None:
    with pytest.raises(DeclarationError, match="on_drift") as error:
        Note.ensure(database, on_drift="ignore")
    assert __file__ in str(error.value.where)


def test_a_declared_class_tells_its_name_schema_and_columns() -> None:
    @ematix.table(schema="web")
    class PageView:
        view_id: Annotated[BigInt, pk()]

    class VisitLog(ManagedTable):
        visit_id: Annotated[BigInt, pk()]

    assert (PageView.__schema__, PageView.__tablename__) == ("web", "page_view")
    assert (VisitLog.__schema__, VisitLog.__tablename__) == (None, "visit_log")
    assert [(column.name, column.nullable) for column in VisitLog.columns] == [("visit_id", False)]

    class DetailedVisit(VisitLog):
        note: Text | None

    assert DetailedVisit.__tablename__ == "detailed_visit"
