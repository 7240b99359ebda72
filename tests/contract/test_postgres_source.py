"""PostgreSQL as a source: every type read exactly, clear errors for wrong SQL, splits of one snapshot."""

from __future__ import annotations

import datetime as dt
import decimal
import threading
import uuid
from typing import Any

import pyarrow as pa
import pytest

from ematix_flow.backends.arrow.batch_casts import cast_batch
from ematix_flow.backends.base import SourceQuery
from ematix_flow.backends.postgres.backend import PostgresBackend
from ematix_flow.errors import PlanError, RowRejected, SourceFailed
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import SourceRange, Watermark
from tests.contract.postgres_setup import backend_of, read_all, sql

UTC = dt.timezone.utc
D = decimal.Decimal

# (expression, canonical type, value as read)
TYPES: list[tuple[str, str | None, Any]] = [
    ("'-32768'::int2", "SmallInt", -32768),
    ("2147483647::int4", "Integer", 2147483647),
    ("9223372036854775807::int8", "BigInt", 9223372036854775807),
    ("1.5::real", "Float", 1.5),
    ("'-Infinity'::float8", "Double", float("-inf")),
    ("0.1::float8", "Double", 0.1),
    ("12.30::numeric(10,2)", "Numeric[10, 2]", D("12.30")),
    ("'-99999999999999999999999999999999999999'::numeric(38,0)", "Numeric[38, 0]", D("-" + "9" * 38)),
    ("0.00001::numeric(3,5)", "Numeric[5, 5]", D("0.00001")),
    ("1234567::numeric(5,-2)", "Numeric[7, 0]", D(1234600)),
    ("12345678901234567890.1234567890::numeric", None, "12345678901234567890.1234567890"),
    ("1::numeric(50,10)", None, "1.0000000000"),
    ("'t'::bool", "Boolean", True),
    ("'naïve 😀 % \\ ''quoted'''::text", "Text", "naïve 😀 % \\ 'quoted'"),
    ("'abc'::varchar(5)", "String[5]", "abc"),
    ("'abc'::varchar", "Text", "abc"),
    ("'ab'::char(5)", "String[5]", "ab"),
    ("'nm'::name", "Text", "nm"),
    ("'x'::\"char\"", "Text", "x"),
    ("'0001-01-01'::date", "Date", dt.date(1, 1, 1)),
    ("'2024-02-29 23:59:59.999999'::timestamp", "Timestamp", dt.datetime(2024, 2, 29, 23, 59, 59, 999999)),
    ("'2024-01-01 00:00+02'::timestamptz", "TimestampTZ", dt.datetime(2023, 12, 31, 22, tzinfo=UTC)),
    ("""'{"b": 1,  "a": 2}'::json""", "JSON", '{"b": 1,  "a": 2}'),
    ("""'{"b": 1,  "a": 2}'::jsonb""", "JSONB", '{"a": 2, "b": 1}'),
    (
        "'11111111-2222-3333-4444-555555555555'::uuid",
        "UUID",
        str(uuid.UUID("1" * 8 + "2222333344445" + "5" * 11)),
    ),
    ("'\\x00ff'::bytea", "Bytes", b"\x00\xff"),
    ("'13:45:00.5'::time", "Text", "13:45:00.5"),
    ("'1 year 2 days 03:00'::interval", "Text", "P1Y2DT3H"),
    ("'{1,NULL,3}'::int[]", "JSON", "[1,null,3]"),
    ("'{{a,b},{c,d}}'::text[]", "JSON", '[["a","b"],["c","d"]]'),
    ("ROW(1, 'x')", "JSON", '{"f1":1,"f2":"x"}'),
    ("4294967295::oid", "BigInt", 4294967295),
    ("'192.168.0.1/24'::inet", "Text", "192.168.0.1/24"),
    ("'[1,5)'::int4range", "Text", "[1,5)"),
    ("B'101'::bit(3)", "Text", "101"),
]


@pytest.fixture
def backend(pg_database: str) -> PostgresBackend:
    return backend_of(pg_database)


def test_every_type_is_described_and_read_exactly_together_with_nulls(backend: PostgresBackend) -> None:
    columns = ", ".join(f"{expression} AS c{i}" for i, (expression, _, _) in enumerate(TYPES))
    empty = ", ".join(
        f"CASE WHEN false THEN {expression} END AS c{i}" for i, (expression, _, _) in enumerate(TYPES)
    )
    select = f"SELECT {columns}"
    described = backend.source().describe(select)
    assert [str(c.type) if c.type else None for c in described] == [kind for _, kind, _ in TYPES]
    assert list(read_all(backend, select)[0].values()) == [value for _, _, value in TYPES]
    assert set(read_all(backend, f"SELECT {empty}")[0].values()) == {None}


def test_domains_and_enums_are_read_as_what_they_are_made_of(
    pg_database: str, backend: PostgresBackend
) -> None:
    sql(pg_database, "CREATE TYPE mood AS ENUM ('sad', 'ok')")
    sql(pg_database, "CREATE DOMAIN cents AS numeric(10, 2) CHECK (VALUE >= 0)")
    sql(pg_database, "CREATE TABLE t (m mood, c cents)")
    sql(pg_database, "INSERT INTO t VALUES ('ok', 1.5)")
    assert [str(c.type) for c in backend.source().describe("SELECT * FROM t")] == ["Text", "Numeric[10, 2]"]
    assert read_all(backend, "SELECT * FROM t") == [{"m": "ok", "c": D("1.50")}]


def test_numbers_without_limits_fit_the_declared_type_by_value(backend: PostgresBackend) -> None:
    table = TableSpec(
        None,
        "t",
        (
            ColumnSpec("n", DataType("numeric", precision=30, scale=10)),
            ColumnSpec("i", DataType("big_int")),
            ColumnSpec("m", DataType("numeric", precision=10, scale=2)),
        ),
    )
    wanted = {c.name: c.type for c in table.columns}
    select = "SELECT 12345678901234567890.123456789::numeric AS n, 5.00::numeric AS i, 12.34::money AS m"
    with backend.source().split(SourceQuery(select), wanted, 1) as splits:
        [batch] = splits[0].read()
    assert cast_batch(batch, table).to_pylist() == [
        {"n": D("12345678901234567890.1234567890"), "i": 5, "m": D("12.34")}
    ]
    with (
        backend.source().split(SourceQuery(select.replace("5.00", "5.01")), wanted, 1) as splits,
        pytest.raises(RowRejected, match=r"'i', row 1 .*5\.01"),
    ):
        cast_batch(next(iter(splits[0].read())), table)


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("'infinity'::timestamp", "'infinity'"),
        ("'-infinity'::timestamptz", "'-infinity'"),
        ("'infinity'::date", "'infinity'"),
        ("'-infinity'::date", "'-infinity'"),
        ("'294276-12-31'::timestamp", "after the year 294246"),
        ("'NaN'::numeric(10,2)", "'nan'"),
    ],
)
def test_values_that_nothing_else_can_hold_stop_with_their_column_and_row(
    backend: PostgresBackend, expression: str, shown: str
) -> None:
    select = f"SELECT CASE WHEN g = 3 THEN {expression} END AS odd FROM generate_series(1, 5) AS g"
    with pytest.raises(RowRejected) as raised:
        read_all(
            backend, f"SELECT {expression} AS odd FROM ({select}) AS s" if "NaN" in expression else select
        )
    assert "'odd', row" in str(raised.value)
    assert shown in str(raised.value)


def test_the_first_days_of_the_calendar_are_read(backend: PostgresBackend) -> None:
    with backend.source().split(
        SourceQuery("SELECT '4713-01-01 BC'::date AS d, '4713-01-01 BC'::timestamp AS t"), {}, 1
    ) as s:
        [batch] = s[0].read()
    assert batch.column(0).cast(pa.int32()).to_pylist() == [-2440550]
    assert batch.column(1).cast(pa.int64()).to_pylist() == [-2440550 * 86_400_000_000]


@pytest.mark.parametrize(
    ("select", "message"),
    [
        ("SELEC 1", 'syntax error at or near "SELEC"\n  line 1: SELEC 1\n          ^'),
        (
            "SELECT 1 AS a,\n\tnope\nFROM pg_class",
            'column "nope" does not exist\n  line 2: \tnope\n          \t^',
        ),
        ("SELECT '100%' AS p FROM nowhere;", 'relation "nowhere" does not exist\n  line 1: SELECT'),
        ("SELECT pg_sleep(0) AS z", "column 'z' .* type void"),
        ("SELECT 1 AS a, 2 AS a", "'a' twice"),
        ("SELECT $1::int AS a", "parameter"),
        ("CREATE TABLE x (a int)", "no columns"),
        ("SELECT 1 AS a; SELECT 2 AS a", "more than one statement"),
        ("", "empty"),
        ("SELECT 1/0 AS a", "division by zero"),
        ("SELECT 1 / (500000 - g) AS a FROM generate_series(1, 1000000) AS g", "SQL: division by zero"),
    ],
)
def test_wrong_sql_is_reported_with_its_place(backend: PostgresBackend, select: str, message: str) -> None:
    with pytest.raises((SourceFailed, PlanError)) as raised:
        backend.source().describe(select)
        read_all(backend, select)
    if ".*" in message:
        raised.match(message)
    else:
        assert message in str(raised.value)


def test_describing_and_explaining_run_nothing(pg_database: str, backend: PostgresBackend) -> None:
    sql(pg_database, "CREATE SEQUENCE s")
    assert backend.source().describe("SELECT nextval('s') AS n")[0].name == "n"
    assert "Result" in backend.source().explain("SELECT nextval('s') AS n;")
    assert sql(pg_database, "SELECT is_called FROM s") == [(False,)]
    with pytest.raises(PlanError):
        backend.source().explain("SELECT 1; DROP SEQUENCE s")


def test_a_source_that_may_not_be_read_names_the_grant(pg_database: str, backend: PostgresBackend) -> None:
    sql(pg_database, "CREATE TABLE secret (a int)")
    sql(pg_database, "DROP ROLE IF EXISTS blind")
    sql(pg_database, "CREATE ROLE blind LOGIN PASSWORD 'blind-secret'")
    blind = backend_of(pg_database, user="blind", password="blind-secret")
    with pytest.raises(SourceFailed, match="GRANT SELECT"):
        read_all(blind, "SELECT * FROM secret")
    sql(pg_database, "DROP ROLE blind")


@pytest.mark.parametrize(
    "select",
    [
        'SELECT 1 AS a, \'%s %(x)s 100%\' AS "100% ""odd"" {} name" -- last comment',
        'SELECT 1 AS a, \'%s %(x)s 100%\' AS "100% ""odd"" {} name" ; -- after the end ;\n',
        '/* ; */ WITH q AS (SELECT 1 AS a) SELECT a, \'%s %(x)s 100%\' AS "100% ""odd"" {} name" FROM q ;;',
    ],
)
def test_percent_signs_comments_and_semicolons_pass_untouched(backend: PostgresBackend, select: str) -> None:
    assert read_all(backend, select) == [{"a": 1, '100% "odd" {} name': "%s %(x)s 100%"}]


def test_a_table_is_named_in_parts_and_everything_is_quoted(
    pg_database: str, backend: PostgresBackend
) -> None:
    sql(pg_database, 'CREATE SCHEMA "We.ird"')
    sql(pg_database, 'CREATE TABLE "We.ird"."or""der" ("select" int, "Ünï" text)')
    sql(pg_database, """INSERT INTO "We.ird"."or""der" VALUES (1, 'x')""")
    source = backend.source()
    query = source.table_query('"We.ird"."or""der"', [("id", "select"), ("Ünï", "Ünï")])
    assert query == 'SELECT "select" AS "id", "Ünï" FROM "We.ird"."or""der"'
    assert read_all(backend, query) == [{"id": 1, "Ünï": "x"}]
    assert source.table_query("public.orders", []) == 'SELECT * FROM "public"."orders"'
    assert source.table_query("orders; DROP TABLE x", []) == 'SELECT * FROM "orders; DROP TABLE x"'
    for wrong in ("", "a..b", "a.b.c.d", 'a"b'):
        with pytest.raises(SourceFailed):
            source.table_query(wrong, [])


def _many_pages(url: str, pages: int = 1600, table: str = "big") -> int:
    """A table of about so many pages; how many rows it has."""
    sql(url, f"CREATE TABLE {table} (id int, filler text)")
    rows = pages * 8
    sql(url, f"INSERT INTO {table} SELECT g, repeat(md5(g::text), 28) FROM generate_series(1, {rows}) AS g")
    sql(url, f"ANALYZE {table}")
    return rows


def test_shares_give_each_row_once_while_others_write(pg_database: str, backend: PostgresBackend) -> None:
    rows = _many_pages(pg_database)
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            sql(pg_database, "UPDATE big SET filler = filler || 'x' WHERE id % 7 = (random() * 6)::int")
            sql(
                pg_database,
                "INSERT INTO big SELECT 1000000 + (random() * 1e6)::int, 'new' FROM generate_series(1, 50)",
            )
            sql(pg_database, "DELETE FROM big WHERE id < 1000000 AND id % 97 = (random() * 96)::int")

    writer = threading.Thread(target=disturb)
    with backend.source().split(SourceQuery("SELECT id FROM big WHERE id > 0 OR false;"), {}, 3) as splits:
        assert len(splits) == 3
        writer.start()
        try:
            seen = [id for split in splits for batch in split.read() for id in batch.column(0).to_pylist()]
            again = [id for batch in splits[1].read() for id in batch.column(0).to_pylist()]
        finally:
            stop.set()
            writer.join()
    assert sorted(seen) == list(range(1, rows + 1))
    assert set(again) < set(seen)  # a retried task reads the same snapshot


@pytest.mark.parametrize(
    "select",
    [
        "SELECT count(*) AS n FROM big",
        "SELECT my_count(id) AS n FROM big",
        "SELECT DISTINCT id FROM big",
        "SELECT id FROM big ORDER BY id LIMIT 5",
        "SELECT id, row_number() OVER (ORDER BY id) AS n FROM big",
        "SELECT id FROM big UNION ALL SELECT id FROM big",
        "SELECT b.id FROM big AS b JOIN big AS c ON b.id = c.id",
        "SELECT id FROM (SELECT id FROM big) AS s",
        "SELECT id FROM big WHERE id IN (SELECT max(id) FROM big)",
        "SELECT id FROM a_view",
        "SELECT id FROM parted",
        "SELECT id FROM parent",
        "SELECT id FROM big FOR UPDATE",
        "SELECT id FROM big TABLESAMPLE BERNOULLI (50) REPEATABLE (1)",
        "SELECT g AS id FROM generate_series(1, 10) AS g",
        "TABLE small",
        "SELECT id FROM small",
    ],
)
def test_only_a_plain_select_over_one_large_table_is_shared_out(
    pg_database: str, backend: PostgresBackend, select: str
) -> None:
    _many_pages(pg_database, 1100)
    sql(pg_database, "CREATE AGGREGATE my_count(int) (SFUNC = int4pl, STYPE = int4, INITCOND = '0')")
    sql(pg_database, "CREATE VIEW a_view AS SELECT * FROM big")
    sql(pg_database, "CREATE TABLE parted (id int, filler text) PARTITION BY RANGE (id)")
    sql(pg_database, "CREATE TABLE parent (id int, filler text)")
    sql(pg_database, "ALTER TABLE big INHERIT parent")
    sql(pg_database, "CREATE TABLE small AS SELECT 1 AS id")
    with backend.source().split(SourceQuery(select), {}, 4) as splits:
        assert len(splits) == 1
        if "FOR UPDATE" not in select:
            sum(batch.num_rows for batch in splits[0].read())


def test_a_select_that_an_index_answers_better_stays_whole(
    pg_database: str, backend: PostgresBackend
) -> None:
    _many_pages(pg_database, 1100)
    sql(pg_database, "CREATE INDEX ON big (id)")
    with backend.source().split(SourceQuery("SELECT id FROM big WHERE id = 17"), {}, 2) as splits:
        assert len(splits) == 1
    with backend.source().split(SourceQuery('SELECT "b"."id" FROM PUBLIC.Big AS b'), {}, 2) as splits:
        assert len(splits) == 2


def test_a_range_that_an_index_finds_is_not_looked_for_in_every_page(
    pg_database: str, backend: PostgresBackend
) -> None:
    rows = _many_pages(pg_database, 3000)
    sql(pg_database, "CREATE INDEX ON big (id)")
    sql(pg_database, "ANALYZE big")
    kept = SourceRange("id", Watermark("id", DataType("integer"), rows - rows // 100))
    with backend.source().split(SourceQuery("SELECT id FROM big", kept), {}, 4) as splits:
        assert len(splits) == 1
        assert sum(batch.num_rows for batch in splits[0].read()) == rows // 100 + 1


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_range_keeps_boundary_rows_and_rows_without_a_watermark(
    pg_database: str, backend: PostgresBackend, parallelism: int
) -> None:
    rows = _many_pages(pg_database, 1100)
    sql(pg_database, "INSERT INTO big VALUES (NULL, 'no mark')")
    integer = DataType("integer")
    kept = SourceRange("id", Watermark("id", integer, rows - 1), Watermark("id", integer, rows))
    got = read_all(backend, "SELECT id FROM big", parallelism=parallelism, source_range=kept)
    assert sorted(row["id"] or 0 for row in got) == [0, rows - 1, rows]
    everything = read_all(backend, "SELECT id FROM big", source_range=SourceRange("id", None))
    assert len(everything) == rows + 1


@pytest.mark.parametrize(
    ("values", "kind", "low", "expected"),
    [
        ("('a'), ('B'), ('b'), ('é')", "text", "a", ["a", "b", "é"]),
        ("('2024-01-01 00:00:00.000001'::timestamp), ('2024-01-01')", "timestamp",
         dt.datetime(2024, 1, 1), 2),
        ("('2024-01-01 00:00:00.000001'::timestamp), ('2024-01-01')", "timestamp_tz",
         dt.datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=UTC), 1),
        ("('11111111-1111-1111-1111-111111111111'::uuid), ('ffffffff-1111-1111-1111-111111111111')", "uuid",
         "f0000000-0000-0000-0000-000000000000", 1),
        ("('11111111-1111-1111-1111-111111111111'::uuid), ('ffffffff-1111-1111-1111-111111111111')", "text",
         "f0000000", 1),
        ("(DATE '2024-01-01'), (DATE '2024-01-02')", "date", dt.date(2024, 1, 2), 1),
    ],
)  # fmt: skip
def test_a_range_compares_by_type_and_text_by_code_point(
    pg_database: str, backend: PostgresBackend, values: str, kind: str, low: Any, expected: Any
) -> None:
    sql(pg_database, """CREATE COLLATION odd_order (provider = icu, locale = 'en-US')""")
    collated = "v COLLATE odd_order AS v" if "'a'" in values else "v"
    select = f"SELECT {collated} FROM (VALUES {values}) AS t(v)"
    got = read_all(backend, select, source_range=SourceRange("v", Watermark("v", DataType(kind), low)))
    if isinstance(expected, int):
        assert len(got) == expected
    else:
        assert [row["v"] for row in got] == expected


def test_batches_are_bounded_and_stop_when_the_reader_does(backend: PostgresBackend) -> None:
    select = "SELECT repeat('x', 1000000) AS x FROM generate_series(1, 200) AS g"
    with backend.source().split(SourceQuery(select), {}, 1) as splits:
        reader = splits[0].read()
        first = next(reader)
        assert first.nbytes < 20_000_000
        reader.close()
    with backend.source().split(SourceQuery("SELECT 1 AS a WHERE false"), {}, 1) as splits:
        assert list(splits[0].read()) == []


def test_a_connection_that_breaks_while_reading_is_a_source_failure(
    pg_database: str, backend: PostgresBackend
) -> None:
    select = "SELECT repeat(md5(g::text), 1000) AS x FROM generate_series(1, 100000) AS g"
    with (
        backend.source().split(SourceQuery(select), {}, 1) as splits,
        pytest.raises(SourceFailed, match="broke"),
    ):
        for batch in splits[0].read():
            assert batch.num_rows
            sql(
                pg_database,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'active'"
                " AND application_name = 'ematix-flow reading' AND datname = current_database()",
            )


def test_the_rows_of_a_whole_table_are_known_ahead_once_it_is_analysed(pg_database: str) -> None:
    source = backend_of(pg_database).source()
    sql(pg_database, "CREATE TABLE many AS SELECT g AS id FROM generate_series(1, 5000) AS g")
    assert source.expected_rows(SourceQuery("SELECT id FROM many")) is None
    sql(pg_database, "ANALYZE many")
    assert source.expected_rows(SourceQuery("SELECT id FROM many")) == 5000
    low = SourceRange("id", Watermark("id", DataType("big_int"), 10), None)
    assert source.expected_rows(SourceQuery("SELECT id FROM many", low)) is None


def test_an_estimated_number_of_rows_is_not_reported(pg_database: str) -> None:
    sql(pg_database, "CREATE TABLE many AS SELECT g AS id FROM generate_series(1, 50) AS g")
    sql(pg_database, "CREATE VIEW few AS SELECT id FROM many WHERE id < 10")
    sql(pg_database, "ANALYZE many")
    source = backend_of(pg_database).source()
    guessed = (
        "SELECT id FROM many WHERE id < 10",
        "SELECT count(*) FROM many",
        "SELECT DISTINCT id FROM many",
        "SELECT id FROM many LIMIT 1",
        "SELECT generate_series(1, id) FROM many",
        "SELECT a.id FROM many AS a JOIN many AS b ON a.id = b.id",
        "SELECT id FROM few",
    )
    assert {text: source.expected_rows(SourceQuery(text)) for text in guessed} == dict.fromkeys(guessed)
