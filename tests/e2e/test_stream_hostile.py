"""Hostile messages through a stream, into every kind of target: each is one dead letter, others arrive.

One generator makes the messages: for each declared type values that it, or some target, does not hold, and
for each target what its own table refuses. A message arrives or is put aside, never both and never neither.
"""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path
from typing import Annotated, Any

import pytest

from ematix_flow import (
    JSON,
    JSONB,
    UUID,
    BigInt,
    Boolean,
    Bytes,
    Date,
    Double,
    Float,
    Integer,
    ManagedTable,
    Numeric,
    SmallInt,
    String,
    Text,
    Timestamp,
    TimestampTZ,
    pk,
)
from ematix_flow.backends.registry import open_backend
from ematix_flow.backends.state_stores.dead_letters import open_stream_dead_letters
from ematix_flow.graph.registry import DeclaredStream
from ematix_flow.spec.connections import (
    DeltaLocalConnection,
    DuckDBConnection,
    IcebergConnection,
    MySQLConnection,
    ObjectStoreLocalConnection,
    SQLiteConnection,
)
from ematix_flow.state.dead_letters.base import LetterSelection
from ematix_flow.streams.dead_letter_replay import letter_runner, replay_letters
from tests.contract.mysql_setup import sql as mysql_sql
from tests.services.kafka import KafkaServer
from tests.stream_runs import kafka_connection, load, produce, query, stream, warehouse

pytestmark = pytest.mark.usefixtures("spark")


class Everything(ManagedTable):
    __tablename__ = "everything"
    id: Annotated[BigInt, pk()]
    small: SmallInt | None
    whole: Integer | None
    big: BigInt | None
    single: Float | None
    double: Double | None
    exact: Numeric(6, 2) | None
    flag: Boolean | None
    short: String(5) | None
    text: Text | None
    doc: JSON | None
    docb: JSONB | None
    day: Date | None
    clock: Timestamp | None
    moment: TimestampTZ | None
    uid: UUID | None
    raw: Bytes | None
    tag: String(40) | None
    rule: Integer | None


GOOD = {
    "small": "1",
    "whole": "2",
    "big": "3",
    "single": "0.5",
    "double": "0.25",
    "exact": "1.25",
    "flag": "true",
    "short": '"abc"',
    "text": '"Grüße 🎉"',
    "doc": '"Grüße"',
    "docb": '{"b": null}',
    "day": '"2026-01-31"',
    "clock": '"2026-01-31T08:00:00"',
    "moment": '"2026-01-31T08:00:00+01:00"',
    "uid": '"0b6f2d4e-7f6f-4a3c-9d4b-0d6a7f1f5a10"',
    "raw": '"AAEC"',
    "tag": "null",
    "rule": "1",
}
WORDS = ["NaN", "Infinity", "-Infinity", '"NaN"', "1e400", "-1e400", '"x"', "[]", "{}"]
TIMES = [
    "0000-01-01",
    "10000-01-01",
    "-0044-03-15",
    "0044-03-15 BC",
    "2026-02-30",
    "0001-01-01",
    "9999-12-31",
]
DEEP = "[" * 300 + "]" * 300
HOSTILE = {  # as JSON; some targets hold some of them
    "small": ["32768", "-32769", "1.5", *WORDS],
    "whole": ["2147483648", "99999999999999999999999999", *WORDS],
    "big": ["9223372036854775808", "1e30", *WORDS],
    "single": ["3.5e38", "1e-60", *WORDS],
    "double": ["1e-400", "9" * 400, *WORDS],
    "exact": ["12345.67", "1.234", "1e9", *WORDS],
    "flag": ["1", '"true"', "null", "[]"],
    "short": ['"abcdef"', '"\\u0000"', '"\\ud800"', '"🎉🎉🎉🎉🎉"', '"éééééé"', "[1, 2, 3]"],
    "text": ['"a\\u0000b"', '"\\ud800"', '"\\udc00\\ud800"', DEEP, '"' + "x" * 200_000 + '"', "1e400"],
    "doc": ['"\\u0000"', '{"\\u0000": 1}', '"\\ud800"', DEEP, "1e400", "9" * 400, '{"a": 1, "a": 2}'],
    "docb": ['"\\u0000"', '{"\\u0000": 1}', '["\\\\u0000"]', '"\\ud800"', DEEP, "1e400", "1e200000"],
    "day": [f'"{each}"' for each in TIMES],
    "clock": [*[f'"{each}T00:00:00"' for each in TIMES], "1e20", '"2026-01-31T25:00:00"'],
    "moment": [*[f'"{each}T00:00:00Z"' for each in TIMES], '"2026-01-31T08:00:00+99:00"', "-1e18"],
    "uid": ['"0b6f2d4e"', '""', "7"],
    "raw": ['"%%%"', '"AAE"', "7"],
}
NEVER = {  # no target holds these
    ("small", "32768"),
    ("whole", "2147483648"),
    ("big", "9223372036854775808"),
    ("exact", "12345.67"),
    ("exact", "1.234"),
    ("short", '"abcdef"'),
    ("text", '"\\ud800"'),
    ("docb", '"\\ud800"'),
    ("day", '"0000-01-01"'),
    ("day", '"10000-01-01"'),
    ("clock", '"-0044-03-15T00:00:00"'),
    ("moment", '"2026-02-30T00:00:00Z"'),
    ("uid", '"0b6f2d4e"'),
    ("raw", '"%%%"'),
}
BROKEN = [b"", b"{", b'{"id": ', b"null", b"[]", b'"x"', b"\xff\xfe", b'{"id": 1, "text": "\xff"}', b"{}" * 2]


def message(number: int, **fields: str) -> bytes:
    held = {"id": str(number), **GOOD, **fields}
    return ("{" + ", ".join(f'"{name}": {text}' for name, text in held.items()) + "}").encode()


class Sent:
    """The messages by number: good ones are between all others."""

    def __init__(self, refused: dict[str, str], repeats: bool) -> None:
        self.messages: list[bytes] = []
        self.good: set[int] = set()
        self.bad: set[int] = set()  # for sure
        self.either: set[int] = set()
        for column, texts in HOSTILE.items():
            for text in texts:
                number = self._add(**{column: text})
                (self.bad if (column, text) in NEVER else self.either).add(number)
                self._good()
        for column, text in refused.items():
            self.bad.add(self._add(**{column: text}))
            self._good()
        if repeats:
            self.good.add(self._add(tag='"twice"'))
            self.bad.add(self._add(tag='"twice"'))
        self.broken = [body for body in BROKEN if body]
        self.messages += BROKEN
        self._good()

    def _good(self) -> None:
        self.good.add(self._add())

    def _add(self, **fields: str) -> int:
        number = len(self.messages)
        self.messages.append(message(number, **fields))
        return number


# One of each kind of store in every run; the others take the same ways.
TARGETS = [
    "postgres",
    "sqlite",
    "delta",
    "csv",
    *[
        pytest.param(kind, marks=pytest.mark.long)
        for kind in ("mariadb", "mysql", "duckdb", "iceberg", "parquet", "orc", "jsonl")
    ],
]


@pytest.mark.parametrize("kind", TARGETS)
def test_each_hostile_message_is_one_dead_letter_and_all_others_arrive(
    kind: str,
    kafka: KafkaServer,
    kafka_topic: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    spark: Any,
) -> None:
    connection, options = _target(kind, tmp_path, request)
    followed = stream(
        source=kafka_connection(kafka),
        source_query=kafka_topic,
        source_columns=Everything,
        target=connection,
        transform_on_error="dlq",
        **options,
    )
    produce(kafka, kafka_topic, [message(10_000)])
    load(followed)
    refused = _ruled(kind, connection, spark, tmp_path)
    sent = Sent(refused, repeats=kind in ("postgres", "mariadb", "mysql", "sqlite", "duckdb"))
    produce(kafka, kafka_topic, sent.messages)
    result = load(followed)
    rows = _ids(kind, connection, spark, tmp_path)
    arrived = set(rows) - {10_000}
    assert len(rows) == len(set(rows))
    with open_stream_dead_letters(followed.spec, env=os.environ) as store:
        letters = store.list("events", limit=1_000)
        payloads = [store.get("events", letter.id).payload for letter in letters]
    assert all(letter.reason for letter in letters)
    aside = {sent.messages.index(payload) for payload in payloads if payload not in BROKEN}
    assert sorted(payload for payload in payloads if payload in BROKEN) == sorted(sent.broken)
    assert sent.good <= arrived
    assert sent.bad <= aside, [sent.messages[n] for n in sorted(sent.bad - aside)]
    assert not arrived & aside
    assert arrived | aside == sent.good | sent.bad | sent.either
    assert result.dead_letters == len(letters) == len(aside) + len(sent.broken)
    if kind == "delta":  # which knows JSON as text: each start writes it alike
        frame = spark.read.format("delta").load(str(tmp_path / "lake" / "s" / "everything"))
        good = frame.where(frame["id"].isin(10_000, *sent.good))
        assert [row[0] for row in good.select("doc").distinct().collect()] == ['"Grüße"']
    if kind == "sqlite":
        _replay(followed, connection, len(letters), arrived | {10_000})
    assert load(followed).total_rows == 0


def _replay(followed: Any, connection: Any, letters: int, arrived: set[int]) -> None:
    """Each letter fails again for its own reason, until the table takes it; then it is loaded once."""
    with open_stream_dead_letters(followed.spec, env=os.environ) as store:
        run = letter_runner(DeclaredStream(followed.spec, followed))
        outcome = replay_letters("events", store, LetterSelection(all=True), run)
        assert (outcome.replayed, outcome.failed) == (0, letters)
        _run("sqlite", connection, "DROP TRIGGER refusing")
        outcome = replay_letters("events", store, LetterSelection(all=True), run)
    assert outcome.replayed == 2
    rows = [row[0] for row in _run("sqlite", connection, "SELECT id FROM everything")]
    assert len(rows) == len(set(rows)) == len(arrived) + 2


def _target(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Any, dict[str, Any]]:
    if kind == "postgres":
        url = request.getfixturevalue("pg_database")
        return warehouse(url), {"target_table": ("public", "everything")}
    if kind in ("mariadb", "mysql"):
        url = request.getfixturevalue(f"{kind}_database")
        return MySQLConnection(name="maria", url=url), {"target_table": "everything"}
    if kind == "sqlite":
        return SQLiteConnection(name="lite", path=str(tmp_path / "w.db")), {"target_table": "everything"}
    if kind == "duckdb":
        duck = DuckDBConnection(name="duck", path=str(tmp_path / "w.duckdb"))
        return duck, {"target_table": ("main", "everything")}
    if kind == "delta":
        lake = DeltaLocalConnection(name="lake", path=str(tmp_path / "lake"))
        return lake, {"target_table": ("s", "everything")}
    if kind == "iceberg":
        lake = IcebergConnection(name="lake", catalog_type="hadoop", warehouse=str(tmp_path / "lake"))
        return lake, {"target_table": ("s", "everything")}
    files = ObjectStoreLocalConnection(name="files", path=str(tmp_path / "files"), format=kind)
    return files, {"target_prefix": "everything"}


_PARENT = "CREATE TABLE parents (n int PRIMARY KEY)"
_RULES = {
    "postgres": [
        _PARENT,
        "INSERT INTO parents VALUES (1)",
        "ALTER TABLE everything ADD UNIQUE (tag)",
        "ALTER TABLE everything ADD CHECK (whole <> 77)",
        "ALTER TABLE everything ADD FOREIGN KEY (rule) REFERENCES parents DEFERRABLE INITIALLY DEFERRED",
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN IF NEW.big = 77 THEN RAISE EXCEPTION 'no 77 here'; END IF; RETURN NEW; END$$",
        "CREATE TRIGGER refusing BEFORE INSERT ON everything FOR EACH ROW EXECUTE FUNCTION refuse()",
        "CREATE INDEX ON everything (text)",
        "ALTER TABLE everything ALTER COLUMN flag SET NOT NULL",
    ],
    "mysql": [
        _PARENT,
        "INSERT INTO parents VALUES (1)",
        "ALTER TABLE everything ADD UNIQUE (tag)",
        "ALTER TABLE everything ADD CHECK (whole <> 77)",
        "ALTER TABLE everything ADD FOREIGN KEY (rule) REFERENCES parents (n)",
        "CREATE TRIGGER refusing BEFORE INSERT ON everything FOR EACH ROW IF NEW.big = 77 THEN "
        "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no 77 here'; END IF",
    ],
    "sqlite": [
        "CREATE UNIQUE INDEX tags ON everything (tag)",
        "CREATE TRIGGER refusing BEFORE INSERT ON everything WHEN NEW.big = 77 OR NEW.whole = 77 "
        "BEGIN SELECT RAISE(ABORT, 'no 77 here'); END",
    ],
    "duckdb": ["CREATE UNIQUE INDEX tags ON everything (tag)"],
}
_RULES["mariadb"] = _RULES["mysql"]
_REFUSED = {
    "postgres": {"whole": "77", "rule": "9", "big": "77", "docb": '"\\u0000"', "flag": "null"},
    "mysql": {"whole": "77", "rule": "9", "big": "77", "double": "NaN"},
    "sqlite": {"whole": "77", "big": "77", "double": "NaN"},
    "delta": {"whole": "77"},
}
_REFUSED["mariadb"] = _REFUSED["mysql"]


def _ruled(kind: str, connection: Any, spark: Any, tmp_path: Path) -> dict[str, str]:
    """Give the table its own constraints; return the fields that break them."""
    if kind == "delta":
        table = f"delta.`{tmp_path / 'lake' / 's' / 'everything'}`"
        spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT seven CHECK (whole <> 77 OR whole IS NULL)")
    for statement in _RULES.get(kind, ()):
        _run(kind, connection, statement)
    return _REFUSED.get(kind, {})


def _run(kind: str, connection: Any, sql: str) -> list[tuple[Any, ...]]:
    if kind == "postgres":
        return query(connection.url, sql)
    if kind == "sqlite":
        with sqlite3.connect(connection.path) as opened:
            return opened.execute(sql).fetchall()
    if kind == "duckdb":
        import duckdb

        with duckdb.connect(connection.path) as database:
            return database.execute(sql).fetchall()
    return mysql_sql(connection.url, sql)


def _ids(kind: str, connection: Any, spark: Any, tmp_path: Path) -> list[int]:
    if kind == "delta":
        frame = spark.read.format("delta").load(str(tmp_path / "lake" / "s" / "everything"))
    elif kind == "iceberg":
        frame = open_backend(connection).source().frame(spark.newSession(), "SELECT id FROM s.everything")
    elif kind in ("parquet", "csv", "orc", "jsonl"):
        reader = spark.read.format(kind.removesuffix("l")).option("header", True)
        reader = reader.option("escape", '"').option("multiLine", kind == "csv")
        frame = reader.load(str(tmp_path / "files" / "everything"))
    else:
        return [row[0] for row in _run(kind, connection, "SELECT id FROM everything")]
    return [int(row[0]) for row in frame.select("id").collect()]


class Outgoing(ManagedTable):
    __tablename__ = "outgoing"
    id: BigInt
    to: Integer
    headers: Text
    text: Text


def test_a_message_that_a_broker_does_not_take_is_put_aside(kafka: KafkaServer, kafka_topic: str) -> None:
    from confluent_kafka import Consumer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    topic = NewTopic(f"{kafka_topic}-out", 2, 1, config={"max.message.bytes": "20000"})
    admin.create_topics([topic])[topic.topic].result(30)
    sent = [{"id": n, "to": n % 2, "headers": '{"a": "b"}', "text": "x"} for n in range(12)]
    sent[3]["text"] = os.urandom(30_000).hex()
    sent[5]["to"] = 7
    sent[6]["to"] = -1
    sent[8]["headers"] = "no JSON"
    produce(kafka, kafka_topic, sent)
    followed = stream(
        source=kafka_connection(kafka),
        source_query=kafka_topic,
        target=kafka_connection(kafka),
        target_topic=topic.topic,
        target_partition_column="to",
        target_headers_column="headers",
        source_columns=Outgoing,
        transform_on_error="dlq",
        delivery="exactly_once",
    )
    result = load(followed)
    assert result.dead_letters == 4
    with open_stream_dead_letters(followed.spec, env=os.environ) as store:
        letters = {int(letter.position or -1): letter for letter in store.list("events", limit=20)}
    assert set(letters) == {3, 5, 6, 8}
    assert "allows 20,000" in letters[3].reason and "partition 7" in letters[5].reason
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic.topic])
    found: list[int] = []
    try:
        while len(found) < 8:
            read = consumer.poll(30)
            assert read is not None and read.error() is None
            found.append(json.loads(read.value())["id"])
    finally:
        consumer.close()
    assert sorted(found) == [0, 1, 2, 4, 7, 9, 10, 11]
