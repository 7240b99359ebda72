"""Change events: messages as Debezium and Maxwell document them, and what is read from each."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pytest

from ematix_flow.backends.payloads.base import PayloadSpec
from ematix_flow.backends.payloads.change_decoder import ChangeDecoder, infer_change_columns
from ematix_flow.backends.payloads.change_events import BadChange, change_time, read_change
from ematix_flow.backends.payloads.debezium_values import debezium_value
from ematix_flow.spec.cdc import CDC
from ematix_flow.spec.change_positions import is_open_change, is_snapshot_row, just_before
from ematix_flow.spec.tables import CHANGE_AT, CHANGE_KEPT, CHANGE_OP, CHANGE_POSITION, ColumnSpec
from ematix_flow.spec.types import DataType
from tests.property.change_model import message_batch

COLUMNS = (
    ColumnSpec("id", DataType("big_int"), primary_key=True),
    ColumnSpec("first_name", DataType("text"), nullable=True),
    ColumnSpec("email", DataType("text"), nullable=True),
)
# https://debezium.io/documentation/reference/stable/connectors/postgresql.html: an update, without its schema
POSTGRES_UPDATE: dict[str, Any] = {
    "before": {"id": 1},
    "after": {"id": 1, "first_name": "Anne Marie", "last_name": "Kretchmar", "email": "annek@noanswer.org"},
    "source": {
        "version": "3.0.0.Final",
        "connector": "postgresql",
        "name": "PostgreSQL_server",
        "ts_ms": 1559033904863,
        "snapshot": False,
        "db": "postgres",
        "schema": "public",
        "table": "customers",
        "txId": 556,
        "lsn": 24023128,
        "xmin": None,
    },
    "op": "u",
    "ts_ms": 1465584025523,
}
# https://debezium.io/documentation/reference/stable/connectors/mysql.html: a delete
MYSQL_DELETE: dict[str, Any] = {
    "before": {
        "id": 1004,
        "first_name": "Anne Marie",
        "last_name": "Kretchmar",
        "email": "annek@noanswer.org",
    },
    "after": None,
    "source": {
        "version": "3.0.0.Final",
        "connector": "mysql",
        "name": "mysql-server-1",
        "ts_ms": 1465581902300,
        "snapshot": False,
        "db": "inventory",
        "table": "customers",
        "server_id": 223344,
        "gtid": None,
        "file": "mysql-bin.000003",
        "pos": 805,
        "row": 0,
        "thread": 7,
        "query": "DELETE FROM customers WHERE id=1004",
    },
    "op": "d",
    "ts_ms": 1465581902461,
}
# https://debezium.io/documentation/reference/stable/connectors/sqlserver.html
SQL_SERVER_SOURCE = {
    "connector": "sqlserver",
    "change_lsn": "00000027:00000758:0003",
    "commit_lsn": "00000027:00000758:0005",
    "event_serial_no": "1",
    "ts_ms": 1559729468470,
}
# https://maxwells-daemon.io/dataformat/: an update, with output_binlog_position
MAXWELL_UPDATE: dict[str, Any] = {
    "database": "test",
    "table": "e",
    "type": "update",
    "ts": 1477053234,
    "xid": 23396,
    "commit": True,
    "position": "master.000006:800911",
    "data": {"id": 1, "m": 5.444, "c": "2016-10-21 05:33:54.631000", "comment": "I am a creature of light."},
    "old": {"m": 4.2341, "c": "2016-10-21 05:33:37.523000"},
}


def decode(cdc: CDC, *messages: Any, keys: tuple[str, ...] = ("id",), columns: Any = COLUMNS) -> Any:
    values = [m if m is None or isinstance(m, bytes) else json.dumps(m).encode() for m in messages]
    return ChangeDecoder(cdc, PayloadSpec(), columns, keys).decode(message_batch(values, 42))


def number(width: int, value: int) -> str:
    return f"{value:0{width}d}"


def test_a_debezium_update_is_read_with_and_without_its_wrapper() -> None:
    for message in (POSTGRES_UPDATE, {"schema": {"type": "struct"}, "payload": POSTGRES_UPDATE}):
        (row,) = decode(CDC(), message).rows.to_pylist()
        assert row == {
            "id": 1,
            "first_name": "Anne Marie",
            "email": "annek@noanswer.org",
            CHANGE_OP: "u",
            CHANGE_POSITION: f"{number(20, 24023128)}.{number(20, 24023128)}.{number(20, 42)}",
            CHANGE_KEPT: None,
            CHANGE_AT: None,
        }


def test_a_debezium_delete_has_the_key_of_the_old_row_and_the_place_in_the_binlog() -> None:
    decoded = decode(CDC(), MYSQL_DELETE, None, b"", b"null", {"schema": None, "payload": None})
    (row,) = decoded.rows.to_pylist()
    assert (row["id"], row["email"], row[CHANGE_OP]) == (1004, None, "d")
    assert row[CHANGE_POSITION].split(".")[:3] == [number(20, 3), number(20, 805), number(20, 0)]
    assert decoded.empty_count == 4 and not decoded.bad


def test_positions_sort_as_the_log_does() -> None:
    def position(source: dict[str, Any], op: str = "c") -> str:
        found = read_change(CDC(), {"op": op, "after": {"id": 1}, "source": source}, "7")
        assert found is not None
        return found.position

    ordered = [
        {"connector": "mysql", "file": "mysql-bin.999999", "pos": 4, "row": 0},
        {"connector": "mysql", "file": "mysql-bin.1000000", "pos": 4, "row": 0},
        {"connector": "mysql", "file": "mysql-bin.1000000", "pos": 4, "row": 1},
        {"connector": "mysql", "file": "mysql-bin.1000000", "pos": 10, "row": 0},
    ]
    assert [position(each) for each in ordered] == sorted(position(each) for each in ordered)
    later = {**SQL_SERVER_SOURCE, "change_lsn": "00000027:00000758:000a"}
    assert position(SQL_SERVER_SOURCE) < position(later)
    read = position({"connector": "postgresql", "lsn": None}, op="r")
    assert read < position({"connector": "postgresql", "lsn": 5})
    with pytest.raises(BadChange, match="which order the changes"):
        position({"connector": "postgresql", "lsn": None})
    assert position({"connector": "mongodb", "ts_ms": 5}) < position({"connector": "mongodb", "ts_ms": 6})


def test_a_maxwell_update_is_the_new_row_and_a_change_of_the_key_deletes_the_old_one() -> None:
    columns = (ColumnSpec("id", DataType("big_int")), ColumnSpec("comment", DataType("text"), nullable=True))
    (row,) = decode(CDC(envelope="maxwell"), MAXWELL_UPDATE, columns=columns).rows.to_pylist()
    assert (row["id"], row["comment"], row[CHANGE_OP]) == (1, "I am a creature of light.", "u")
    assert row[CHANGE_POSITION].startswith(f"{number(20, 6)}.{number(20, 800911)}.")
    moved = {**MAXWELL_UPDATE, "old": {"id": 9}}
    gone, new = decode(CDC(envelope="maxwell"), moved, columns=columns).rows.to_pylist()
    assert (gone["id"], gone[CHANGE_OP], new["id"], new[CHANGE_OP]) == (9, "d", 1, "u")
    assert gone[CHANGE_POSITION] == new[CHANGE_POSITION]


def test_rows_of_one_maxwell_transaction_keep_their_order() -> None:
    begun = {k: v for k, v in MAXWELL_UPDATE.items() if k != "commit"}
    positions = [
        read_change(CDC(envelope="maxwell"), {**begun, "xoffset": n}, "1").position  # type: ignore[union-attr]
        for n in (0, 1, 10)
    ]
    last = read_change(CDC(envelope="maxwell"), MAXWELL_UPDATE, "1")
    assert last is not None and [*positions, last.position] == sorted([*positions, last.position])


def test_changes_of_postgres_sort_by_commits_and_those_of_an_open_transaction_are_marked() -> None:
    def position(commit: str | None, lsn: int, op: str = "u") -> str:
        source = {"connector": "postgresql", "lsn": lsn, "sequence": json.dumps([commit, str(lsn)])}
        found = read_change(CDC(), {"op": op, "after": {"id": 1}, "source": source}, "7")
        assert found is not None
        return found.position

    row, opened, later = position(None, 100, "r"), position(None, 90), position("105", 95)
    assert row < later and opened < later  # its place is before the snapshot, its commit is not
    assert position("80", 95) < row and position("105", 95) < position("105", 96)
    assert is_snapshot_row(row) and is_open_change(opened)
    assert not is_open_change(later) and not is_snapshot_row(later)
    assert just_before(opened, row) < opened
    assert position("22046088", 22046088) != position(None, 22046088)


def test_a_change_without_any_position_is_refused() -> None:
    """RabbitMQ's ids of messages are no numbers: all changes would have the same position."""
    cdc = CDC(envelope="custom", op_field="op", after_field="row", op_map={"+": "insert"}, key_field="row.id")
    message = {"op": "+", "row": {"id": 1}}
    assert read_change(cdc, message, "17") is not None
    with pytest.raises(BadChange, match="ts_field="):
        read_change(cdc, message, "6f1c-aa")


def test_bootstrapped_rows_never_replace_a_change() -> None:
    rows = [
        {"database": "d", "table": "t", "type": "bootstrap-start", "ts": 1450557744, "data": {}},
        {"database": "d", "table": "t", "type": "bootstrap-insert", "ts": 1450557744, "data": {"id": 1}},
        {"database": "d", "table": "t", "type": "bootstrap-complete", "ts": 1450557744, "data": {}},
    ]
    decoded = decode(CDC(envelope="maxwell"), *rows)
    (row,) = decoded.rows.to_pylist()
    change = read_change(CDC(envelope="maxwell"), MAXWELL_UPDATE, "0")
    assert change is not None and row[CHANGE_POSITION] < change.position and decoded.empty_count == 2


def test_rows_of_maxwells_own_table_of_bootstraps_are_no_rows_of_the_table() -> None:
    row = {"id": 1, "database_name": "d", "table_name": "t", "is_complete": 0, "inserted_rows": 0}
    request = {**MAXWELL_UPDATE, "database": "maxwell", "table": "bootstrap"}
    own, another = {**request, "data": {**row, "client_id": "maxwell"}}, {**request, "data": row}
    decoded = decode(CDC(envelope="maxwell"), own, another)
    assert decoded.empty_count == 1 and decoded.rows.num_rows == 1


def test_what_an_event_does_not_tell_is_marked_by_column() -> None:
    after = {"id": 1, "first_name": "__debezium_unavailable_value"}
    (row,) = decode(CDC(), {**POSTGRES_UPDATE, "after": after}).rows.to_pylist()
    assert row[CHANGE_KEPT] == "012" and row["first_name"] is None


def test_a_bad_message_does_not_hurt_its_neighbours() -> None:
    decoded = decode(
        CDC(),
        b"no json",
        [1],
        {**POSTGRES_UPDATE, "after": {"first_name": "x"}},
        {**POSTGRES_UPDATE, "after": "text"},
        {**POSTGRES_UPDATE, "after": {**POSTGRES_UPDATE["after"], "id": "x"}},
        POSTGRES_UPDATE,
        {"payload": 5},
    )
    assert decoded.indexes.to_pylist() == [5]
    assert [each.index for each in decoded.bad] == [0, 1, 2, 3, 4, 6]
    assert "'after.id', which is the key" in decoded.bad[2].reason
    assert "not a valid" in decoded.bad[4].reason


@pytest.mark.parametrize(
    ("value", "kind", "schema", "expected"),
    [
        (
            "AMg=",
            "numeric",
            {"name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}},
            "2.00",
        ),
        (
            "/w==",
            "numeric",
            {"name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "0"}},
            "-1",
        ),
        ({"scale": 3, "value": "BNI="}, "numeric", None, "1.234"),
    ],
)
def test_debezium_decimals_are_exact(value: Any, kind: str, schema: Any, expected: str) -> None:
    data_type = DataType("numeric", precision=10, scale=3)
    assert debezium_value(value, data_type, schema) == Decimal(expected)


def test_debezium_times_are_read_by_their_schema_or_their_size() -> None:
    stamp, day = DataType("timestamp"), DataType("date")
    at = dt.datetime(2023, 11, 14, 22, 13, 20)
    for number_of, name in (
        (1_700_000_000_000, "io.debezium.time.Timestamp"),
        (1_700_000_000_000_000, "io.debezium.time.MicroTimestamp"),
        (1_700_000_000_000_000_000, "io.debezium.time.NanoTimestamp"),
    ):
        for schema in ({"name": name}, None):
            assert debezium_value(number_of, stamp, schema) == at.isoformat()
    assert debezium_value(19000, day, None) == "2022-01-08"
    assert debezium_value(-1, day, {"name": "io.debezium.time.Date"}) == "1969-12-31"
    assert debezium_value('{"a": 1.50}', DataType("json"), None) == {"a": "1.50"}


def test_new_columns_come_from_the_rows_of_upserts() -> None:
    values = [json.dumps(each).encode() for each in (MYSQL_DELETE, POSTGRES_UPDATE)]
    found = infer_change_columns(CDC(), PayloadSpec(), [*values, b"no json"])
    assert [(c.name, c.type.kind) for c in found] == [
        ("id", "big_int"),
        ("first_name", "text"),
        ("last_name", "text"),
        ("email", "text"),
    ]


MOMENT = dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=dt.timezone.utc)


@pytest.mark.parametrize(
    ("cdc", "message"),
    [
        (CDC(), {"source": {"ts_ms": 1_700_000_000_123}}),
        (CDC(), {"source": {"ts_ms": 1_700_000_000_000, "ts_us": 1_700_000_000_123_000}}),
        (CDC(ts_field="ts_ns"), {"ts_ns": 1_700_000_000_123_000_999}),
        (CDC(ts_field="at"), {"at": "2023-11-14T23:13:20.123+01:00"}),
        (CDC(envelope="maxwell", ts_field="at"), {"ts": 1, "at": "2023-11-14T22:13:20.123Z"}),
    ],
)
def test_the_time_of_a_change_is_read_in_every_unit(cdc: CDC, message: dict[str, Any]) -> None:
    assert change_time(cdc, message) == MOMENT


def test_maxwell_tells_the_second_of_a_change() -> None:
    assert change_time(CDC(envelope="maxwell"), {"ts": 1_700_000_000}) == MOMENT.replace(microsecond=0)


@pytest.mark.parametrize("value", [None, "soon", "9" * 30, {}, [1], True, -1])
def test_a_change_without_a_time_is_bad(value: Any) -> None:
    with pytest.raises(BadChange, match=r"source\.ts_ms"):
        change_time(CDC(), {"source": {"ts_ms": value}})


def test_new_fields_have_the_widest_type_and_no_reserved_name() -> None:
    decoder = ChangeDecoder(CDC(schema_evolution="evolve"), PayloadSpec(), COLUMNS, ("id",))
    after = {"id": 1, "EMAIL": "x", "size": 1, "empty": None, "_offset": 5, "_LOADED_at": 1, "_ematix_x": 1}
    rows = [after, {**after, "size": 2.5, "more": {"a": 1}}]
    messages = [json.dumps({**POSTGRES_UPDATE, "after": row}).encode() for row in rows]
    no_key = json.dumps({**POSTGRES_UPDATE, "after": {"id": None, "other": 1}}).encode()
    found = decoder.new_columns(message_batch([*messages, no_key, b"no json", b'{"op": "d"}']))
    assert {column.name: column.type.kind for column in found} == {"size": "double", "more": "json"}
    assert decoder.new_columns(message_batch([json.dumps(POSTGRES_UPDATE).encode()])) != ()  # last_name
