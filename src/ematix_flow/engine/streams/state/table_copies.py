"""The tables of a state as bytes: all of their rows, or those that one version made and ended.

Every table of a state but its facts and its progress has the columns ``since`` and ``until``. A row is known
by all its values, so a version that ended a row names it by them.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.engine.streams.state.state_file import StateFile
from ematix_flow.errors import EngineError, Unsupported
from ematix_flow.state.stream_states import StatePart

if TYPE_CHECKING:
    import pyarrow as pa

MADE, ENDED = "made", "ended"
_FORMAT = 1  # of the facts and of the bytes
_ROWS = 100_000  # of one part
_TYPE = re.compile(r"[A-Za-z0-9_ ,()\[\]\"]+")
_NO_ARROW_FORM = ("HUGEINT", "UHUGEINT")  # Arrow holds 38 digits


Columns = dict[str, list[tuple[str, str, bool]]]  # of each table: name, type, nullable


def table_columns(file: StateFile) -> Columns:
    """The tables of a state with their columns."""
    found = file.database.execute(
        """SELECT c.table_name, c.column_name, c.data_type, c.is_nullable
        FROM duckdb_columns() c JOIN duckdb_tables() t USING (database_name, schema_name, table_name)
        WHERE NOT t.temporary AND t.table_name NOT IN ('facts', 'progress')
        ORDER BY c.table_name, c.column_index"""
    ).fetchall()
    tables: Columns = {}
    for table, name, kind, nullable in found:
        if kind in _NO_ARROW_FORM:
            raise Unsupported(f"column {name!r} of the state's table {table!r} cannot be stored in Postgres")
        tables.setdefault(table, []).append((name, kind, bool(nullable)))
    return tables


def full_copy(file: StateFile, version: int) -> Iterator[StatePart]:
    """All rows of the state, with those that its newest version has ended."""
    yield from _table_parts(file, version, "until IS NULL")


def changes(file: StateFile, version: int) -> Iterator[StatePart]:
    """The rows that the newest version has made, and those that it has ended."""
    yield from _table_parts(file, version, f"since = {version} AND until IS NULL")


def _table_parts(file: StateFile, version: int, made: str) -> Iterator[StatePart]:
    ended = f"until = {version} AND since < {version}"
    for table, columns in table_columns(file).items():
        names = ", ".join(_quote(name) for name, *_ in columns if name != "until")
        for kind, condition in ((MADE, made), (ENDED, ended)):
            found = file.database.sql(f"SELECT {names} FROM {_quote(table)} WHERE {condition}")
            for number, data in enumerate(_streams(found.to_arrow_reader(_ROWS))):
                yield StatePart(version, table, kind, number, data)


def _streams(reader: pa.RecordBatchReader) -> Iterator[bytes]:
    """Arrow streams of about `_ROWS` rows each."""
    held: list[pa.RecordBatch] = []
    for batch in reader:
        held.append(batch)
        if sum(each.num_rows for each in held) >= _ROWS:
            yield _to_bytes(held)
            held = []
    if any(each.num_rows for each in held):
        yield _to_bytes(held)


def _to_bytes(batches: list[pa.RecordBatch]) -> bytes:
    import pyarrow as pa

    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


# ------------------------------------------------------------------ facts, and the way back


def state_facts(file: StateFile) -> str:
    """The facts, the progress and the columns of a state, as text."""
    return json.dumps(
        {
            "format": _FORMAT,
            "tables": table_columns(file),
            "facts": file.facts(),
            "progress": file.newest_progress(2),
        }
    )


def stored_columns(facts: str) -> Columns:
    """The tables of a stored state. Refuses one that a newer version of this program has stored."""
    found: dict[str, Any] = json.loads(facts)
    if found["format"] > _FORMAT:
        raise Unsupported(
            f"the state in Postgres has format {found['format']}, and this version knows formats up to "
            f"{_FORMAT}: a newer version of ematix-flow has written it",
            state="nothing was loaded, and the state is unchanged",
            next_step="run the stream with that version or a newer one",
        )
    return {
        table: [(name, kind, nullable) for name, kind, nullable in columns]
        for table, columns in found["tables"].items()
    }


def restore_state(folder: Path, facts: str, parts: Iterable[StatePart], version: int) -> None:
    """Write the state of ``version`` into an empty folder.

    ``parts`` are those of a full copy, and then those of each version after it, in their order.
    """
    tables, found = stored_columns(facts), json.loads(facts)
    file = StateFile(folder)
    try:
        for table, columns in tables.items():
            file.database.execute(f"CREATE TABLE {_quote(table)} ({', '.join(map(_column_sql, columns))})")
        _load_rows(file, tables, parts, version)
        file.restore_facts(found["facts"], found["progress"])
        file.database.execute("CHECKPOINT")
    finally:
        file.close()


def _load_rows(file: StateFile, tables: Columns, parts: Iterable[StatePart], version: int) -> None:
    """Rows go into their tables as they come. Those that a later version ended are removed at the end."""
    import pyarrow as pa

    database, copied = file.database, None
    for table in tables:
        database.execute(f"CREATE TEMP TABLE {_ended(table)} AS FROM {_quote(table)} LIMIT 0")
    for part in parts:
        copied = part.version if copied is None else copied
        if not part.data:  # a version without changes
            continue
        with pa.ipc.open_stream(part.data) as reader:
            database.register("incoming_rows", reader.read_all())
        if part.kind == MADE:
            database.execute(f"INSERT INTO {_quote(part.table)} BY NAME SELECT * FROM incoming_rows")
        elif part.version > copied:  # a full copy does not hold the rows that its version ended
            database.execute(f"INSERT INTO {_ended(part.table)} BY NAME SELECT * FROM incoming_rows")
        if part.kind == ENDED and part.version == version:
            database.execute(
                f"INSERT INTO {_quote(part.table)} BY NAME SELECT *, {version} AS until FROM incoming_rows"
            )
        database.unregister("incoming_rows")
    for table, columns in tables.items():
        _remove_ended(file, table, [name for name, *_ in columns if name != "until"])
        database.execute(f"DROP TABLE {_ended(table)}")


def _remove_ended(file: StateFile, table: str, columns: Sequence[str]) -> None:
    """Remove as many rows of the same values as have ended."""
    names = ", ".join(map(_quote, columns))
    same = " AND ".join(f"o.{_quote(name)} IS NOT DISTINCT FROM e.{_quote(name)}" for name in columns)
    number = f"row_number() OVER (PARTITION BY {names}) AS nth"
    file.database.execute(
        f"""DELETE FROM {_quote(table)} WHERE rowid IN (
            WITH o AS (
                SELECT place, {names}, {number} FROM (
                    SELECT o.rowid AS place, o.* FROM {_quote(table)} o SEMI JOIN {_ended(table)} e ON {same}
                    WHERE o.until IS NULL
                )
            ), e AS (SELECT {names}, {number} FROM {_ended(table)})
            SELECT o.place FROM o JOIN e ON o.nth = e.nth AND {same}
        )"""
    )


def _ended(table: str) -> str:
    return _quote(f"ended rows of {table}")


def _column_sql(column: tuple[str, str, bool]) -> str:
    name, kind, nullable = column
    if not _TYPE.fullmatch(kind):
        raise EngineError(f"the state in Postgres is damaged: {kind!r} is not a type")
    return f"{_quote(name)} {kind}{'' if nullable else ' NOT NULL'}"


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
