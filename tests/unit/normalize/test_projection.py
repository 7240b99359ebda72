"""The SELECT around the user's SQL: its shape, and what it refuses before anything runs."""

import pytest
import sqlglot

from ematix_flow import normalize as n
from ematix_flow.errors import PlanError, SchemaMismatch, Unsupported
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.functions.base import find_rejection
from ematix_flow.strategies.projection import build_projection, check_columns, needs_projection

TEXT, BIG_INT, MOMENT = DataType("text"), DataType("big_int"), DataType("timestamp_tz")
ENGINES = ("postgres", "duckdb", "sqlite", "spark")


def table(**columns):
    """Columns by name: a type, or markers for a text column."""
    specs = [
        ColumnSpec(name, TEXT, True, False, tuple(given) if isinstance(given, list) else (given,))
        if not isinstance(given, DataType)
        else ColumnSpec(name, given, nullable=True)
        for name, given in columns.items()
    ]
    return TableSpec("analytics", "events", tuple(specs))


def project(spec, source="SELECT * FROM raw", columns=None, dialect="postgres", **more):
    return build_projection(
        source_sql=source,
        table=spec,
        source_columns=list(spec.column_names) if columns is None else columns,
        dialect=dialect,
        **more,
    )


PLAIN = table(id=BIG_INT, name=TEXT)


def test_without_markers_it_is_a_choice_of_columns():
    assert project(PLAIN, columns=["name", "id"]) == (
        'SELECT "id", "name" FROM (\nSELECT * FROM raw\n) AS "_ematix_level0"'
    )
    assert not needs_projection(PLAIN)
    assert not needs_projection(PLAIN, column_map={"id": "id"})


def test_it_is_needed_for_markers_pre_transforms_and_other_names():
    assert needs_projection(table(name=n.trim()))
    assert needs_projection(PLAIN, [n.limit(1)])
    assert needs_projection(PLAIN, (), {"id": "identifier"})


def test_types_that_agree_are_not_cast():
    sql = project(PLAIN, source_types={"id": BIG_INT, "name": DataType("string", length=5)})
    assert "CAST" not in sql


def test_types_that_differ_are_cast():
    sql = project(PLAIN, source_types={"id": DataType("integer"), "name": TEXT})
    assert sql.startswith('SELECT CAST("id" AS BIGINT) AS "id", "name" FROM')


def test_a_text_is_never_cast_to_a_length():
    spec = TableSpec(None, "t", (ColumnSpec("v", DataType("string", length=3), normalizers=(n.trim(),)),))
    for dialect in ENGINES:
        assert "(3)" not in project(spec, dialect=dialect, source_types={"v": TEXT})


def test_a_chain_of_markers_does_not_double_with_every_step():
    markers = [n.parse_bool(), n.default(False)] * 6
    sql = project(table(v=markers), source_types={"v": TEXT})
    assert len(sql) < 6000


@pytest.mark.parametrize("dialect", ENGINES)
def test_what_is_built_is_sql_of_the_dialect(dialect):
    spec = table(
        id=BIG_INT,
        a=[n.trim(), n.parse_int(), n.clamp(0, 5)],
        b=[n.parse_timestamp(), n.to_timezone("Asia/Tokyo")],
        c=[n.derive("upper(x)"), n.regex_replace("a|b", "$")],
    )
    sql = project(
        spec,
        columns=["id", "a", "b", "x"],
        dialect=dialect,
        pre=[
            n.deduplicate_by("id", order_by="b desc, lower(a) nulls first"),
            n.filter_where("a > 1"),
            n.limit(5),
        ],
    )
    tree = sqlglot.parse_one(sql, dialect=dialect)
    assert [s.alias_or_name for s in tree.selects] == ["id", "a", "b", "c"]


@pytest.mark.parametrize("source", ["SELECT 1 AS id ;", "SELECT 1 AS id; -- done;\n", "SELECT 1 AS id;\n;"])
def test_a_final_semicolon_is_left_out(source):
    assert (
        project(table(id=BIG_INT), source)
        == 'SELECT "id" FROM (\n'
        + source[:14].rstrip()
        + (" \n" if source[14] == " " else "\n")
        + ') AS "_ematix_level0"'
    )


def test_semicolons_in_texts_and_names_are_kept():
    source = """SELECT ';' AS id, ";" AS "a;b" FROM t -- ; """
    assert source in project(table(id=BIG_INT), source)


def test_several_statements_are_refused():
    with pytest.raises(PlanError, match="more than one statement"):
        project(PLAIN, "DELETE FROM t; SELECT 1")


def test_an_empty_query_is_refused():
    with pytest.raises(PlanError, match="is empty"):
        project(PLAIN, "-- nothing\n")


def test_names_that_differ_are_an_error_that_names_both_sides():
    where = SourceLocation("pipelines.py", 7)
    with pytest.raises(SchemaMismatch) as caught:
        check_columns(table=PLAIN, source_columns=["id", "nmae"], where=where)
    assert "analytics.events declares 'name', and the source has no such column. Did you mean 'nmae'?" in (
        caught.value.what
    )
    assert "the source yields 'nmae', and analytics.events declares no such column. Did you mean 'name'?" in (
        caught.value.what
    )
    assert caught.value.where == where


def test_a_missing_column_alone_and_a_surplus_column_alone_are_errors():
    with pytest.raises(SchemaMismatch, match="declares 'name'"):
        check_columns(table=PLAIN, source_columns=["id"])
    with pytest.raises(SchemaMismatch, match="yields 'extra'"):
        check_columns(table=PLAIN, source_columns=["id", "name", "extra"])


def test_a_column_that_comes_twice_is_an_error():
    with pytest.raises(SchemaMismatch, match="'id' twice"):
        check_columns(table=PLAIN, source_columns=["id", "name", "id"])


def test_a_derived_column_needs_no_source_and_its_inputs_no_target():
    spec = table(id=BIG_INT, full=[n.derive("first || ' ' || \"Last Name\""), n.trim()])
    columns = ["id", "first", "Last Name"]
    check_columns(table=spec, source_columns=columns, dialect="postgres")
    assert "(first || ' ' || \"Last Name\"\n)" in project(spec, columns=columns)
    with pytest.raises(SchemaMismatch, match="yields 'other'"):
        check_columns(table=spec, source_columns=[*columns, "other"])


def test_a_map_names_source_columns_or_expressions():
    mapping = {"id": "identifier", "name": "upper(label)"}
    sql = project(PLAIN, columns=["identifier", "label"], column_map=mapping)
    inner = 'SELECT "identifier" AS "id", (upper(label)\n) AS "name" FROM'
    assert sql.startswith(f'SELECT "id", CAST("name" AS TEXT) AS "name" FROM ({inner}')
    with pytest.raises(SchemaMismatch, match="column_map names 'nam'"):
        project(PLAIN, column_map={"nam": "x"})


def test_case_decides_only_where_the_engine_cares():
    assert project(PLAIN, columns=["ID", "Name"], dialect="duckdb").startswith(
        'SELECT "ID" AS "id", "Name" AS "name"'
    )
    with pytest.raises(SchemaMismatch):
        project(PLAIN, columns=["ID", "Name"], dialect="postgres")


def test_col_is_replaced_as_a_word_and_not_in_texts():
    spec = table(v=n.sql("coalesce(col, 'col', t.col, columns, col(1), \"col\") -- col"))
    assert '(coalesce("v", \'col\', t.col, columns, col(1), "col") -- col\n)' in project(spec)


@pytest.mark.parametrize("raw", ["a) FROM t; DROP TABLE x; --", "a;", "(a", "-- nothing", "'a"])
def test_an_expression_that_would_leave_its_place_is_refused(raw):
    with pytest.raises(PlanError):
        project(table(v=n.derive(raw)), columns=[])
    with pytest.raises(PlanError):
        project(PLAIN, pre=[n.filter_where(raw)])


def test_a_key_that_is_no_column_is_refused():
    with pytest.raises(SchemaMismatch, match=r"no column 'idd'\. Did you mean 'id'\?"):
        project(PLAIN, pre=[n.deduplicate_by("idd")])


@pytest.mark.parametrize(
    ("markers", "have", "complaint"),
    [
        ([n.round(2)], TEXT, "needs a number"),
        ([n.clamp(0, 1)], DataType("boolean"), "needs a number"),
        ([n.date_trunc("day")], TEXT, "needs a date or time"),
        ([n.parse_timestamp()], BIG_INT, "read from text"),
        ([n.lower()], DataType("double"), "write as text differently"),
        ([n.default("x")], BIG_INT, "does not fit"),
        ([n.default(0.5)], BIG_INT, "does not fit"),
        ([n.nullif(1)], DataType("date"), "does not fit"),
    ],
)
def test_a_marker_on_a_value_of_the_wrong_type_is_refused(markers, have, complaint):
    with pytest.raises(Unsupported, match=complaint):
        project(table(v=markers), source_types={"v": have})


@pytest.mark.parametrize(("have", "want"), [("date", "big_int"), ("bytes", "integer"), ("boolean", "date")])
def test_types_that_can_never_fit_are_a_mismatch(have, want):
    with pytest.raises(SchemaMismatch, match="column 'v'"):
        project(table(v=DataType(want)), source_types={"v": DataType(have)})


def test_an_engine_without_functions_is_refused():
    with pytest.raises(Unsupported, match="snowflake"):
        project(PLAIN, dialect="snowflake")


def test_our_words_are_found_in_a_drivers_error():
    driver = "invalid input for type bigint: \"<<ematix_flow: column 'n': 'x' is not a number>>\"\nLINE 1"
    assert find_rejection(driver) == "column 'n': 'x' is not a number"
    assert find_rejection("connection refused") is None
