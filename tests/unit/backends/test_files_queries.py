"""Tables in a query: found, replaced by placeholders, and nothing else changed."""

from __future__ import annotations

import pytest

from ematix_flow.backends.objectstore.formats.text_types import infer_type_of_texts, type_from_facts
from ematix_flow.backends.objectstore.spark import LocalFilesSource
from ematix_flow.backends.spark_sql.query_tables import parse_query_template
from ematix_flow.errors import SourceFailed


@pytest.mark.parametrize(
    ("sql", "placed", "tables"),
    [
        ("SELECT * FROM events", "SELECT * FROM {t0} AS `events`", [("events",)]),
        ("SELECT e.a FROM shop.events e", "SELECT e.a FROM {t0} e", [("shop", "events")]),
        (
            "SELECT shop.events.a FROM shop.events",
            "SELECT events.a FROM {t0} AS `events`",
            [("shop", "events")],
        ),
        ("SELECT '{x}' FROM `odd ``name`", "SELECT '{{x}}' FROM {t0} AS `odd ``name`", [("odd `name",)]),
        (
            "WITH a AS (SELECT * FROM a), B AS (SELECT * FROM a) SELECT * FROM b JOIN c ON true",
            "WITH a AS (SELECT * FROM {t0} AS `a`), B AS (SELECT * FROM a) "
            "SELECT * FROM b JOIN {t1} AS `c` ON true",
            [("a",), ("c",)],
        ),
        (
            "SELECT * FROM a WHERE x IN (SELECT x FROM a AS o) -- FROM z",
            "SELECT * FROM {t0} AS `a` WHERE x IN (SELECT x FROM {t0} AS o) -- FROM z",
            [("a",)],
        ),
        (
            "SELECT * FROM a TABLESAMPLE (10 PERCENT), range(3)",
            "SELECT * FROM {t0} TABLESAMPLE (10 PERCENT) AS `a`, range(3)",
            [("a",)],
        ),
        (
            "SELECT '\U0001f600 é', /* FROM b */ * FROM a\nUNION ALL\nSELECT * FROM `events/raw`",
            "SELECT '\U0001f600 é', /* FROM b */ * FROM {t0} AS `a`\nUNION ALL\n"
            "SELECT * FROM {t1} AS `events/raw`",
            [("a",), ("events/raw",)],
        ),
        ("SELECT 1 AS x", "SELECT 1 AS x", []),
        ("SELECT * FROM (VALUES (1)) AS v(x)", "SELECT * FROM (VALUES (1)) AS v(x)", []),
    ],
)
def test_only_the_names_of_tables_are_replaced(sql: str, placed: str, tables: list[tuple[str, ...]]) -> None:
    found = parse_query_template(sql)
    assert found is not None
    assert sorted(found.tables.values()) == sorted(tables)
    numbers = {name: f"t{tables.index(name)}" for name in tables}
    renumbered = found.sql
    for placeholder, name in found.tables.items():
        renumbered = renumbered.replace("{" + placeholder + "}", "<" + numbers[name] + ">")
    assert renumbered.replace("<", "{").replace(">", "}") == placed


def test_sql_that_cannot_be_parsed_is_left_to_spark() -> None:
    assert parse_query_template("SELEC * FORM events") is None


@pytest.mark.parametrize("sql", ["DROP TABLE events", "SELECT 1; SELECT 2", "INSERT INTO a SELECT * FROM b"])
def test_anything_but_one_query_is_refused(sql: str) -> None:
    with pytest.raises(SourceFailed, match="must be one query"):
        parse_query_template(sql)


def test_a_table_query_quotes_every_name() -> None:
    source = LocalFilesSource.__new__(LocalFilesSource)
    assert source.table_query("shop.or`ders", []) == "SELECT * FROM `shop`.`or``ders`"
    assert source.table_query("t", [("id", "order id")]) == "SELECT `order id` AS `id` FROM `t`"


@pytest.mark.parametrize(
    ("facts", "spark_type"),
    [
        ({"cells": 0}, "STRING"),
        ({"number": True, "whole_digits": 18}, "BIGINT"),
        ({"number": True, "whole_digits": 25}, "DECIMAL(25,0)"),
        ({"number": True, "whole_digits": 5, "most_places": 2, "fewest_places": 2}, "DECIMAL(7,2)"),
        ({"number": True, "whole_digits": 5, "most_places": 3, "fewest_places": 0}, "DOUBLE"),
        ({"number": True, "whole_digits": 14, "most_places": 3, "fewest_places": 0}, "DECIMAL(17,3)"),
        ({"number": True, "whole_digits": 30, "most_places": 12, "fewest_places": 0}, "STRING"),
        ({"float": True}, "DOUBLE"),
        ({"boolean": True}, "BOOLEAN"),
        ({"date": True}, "DATE"),
        ({"zoned": True}, "TIMESTAMP"),
        ({"local": True}, "TIMESTAMP_NTZ"),
        ({}, "STRING"),
    ],
)
def test_a_column_of_csv_gets_a_type_that_loses_nothing(facts: dict[str, object], spark_type: str) -> None:
    counts = {"whole_digits": 0, "most_places": 0, "fewest_places": 0}
    assert type_from_facts({"cells": 1, **counts, **facts}) == spark_type


FLOATS = [
    (["0.5", "1e-3", "0E5", "-NaN"], "STRING"),
    (["0.5", "1e-3", "0e-999", "NaN", "-Infinity"], "DOUBLE"),
    (["123456789012345", "NaN"], "DOUBLE"),
    (["-0.00123456789012345", "1e3"], "DOUBLE"),
    (["1.500000000000000000e+00"], "DOUBLE"),
    (["9007199254740993", "NaN"], "STRING"),
    (["12345678901234567.89", "1e3"], "STRING"),
    (["1.234567890123456e2"], "STRING"),
    (["1e400"], "STRING"),
    (["1e-400"], "STRING"),
    (["1.2345e-320"], "STRING"),
    (["1e3\n"], "STRING"),
    (["1\n"], "STRING"),
    (["2026-01-01\n"], "STRING"),
]


@pytest.mark.parametrize(
    ("texts", "spark_type"),
    [
        (["2026", "1", None], "BIGINT"),
        (["007", "8"], "STRING"),
        (["1.50", "2.25"], "DECIMAL(3,2)"),
        (["2026-01-01", "2026-12-31"], "DATE"),
        (["2026-02-30"], "STRING"),
        (["2026-01-01 10:00:00"], "TIMESTAMP_NTZ"),
        (["true", "False"], "BOOLEAN"),
        (["de", "fr"], "STRING"),
        *FLOATS,
        ([None], "STRING"),
    ],
)
def test_the_names_of_partition_folders_get_types_by_the_same_rules(
    texts: list[str | None], spark_type: str
) -> None:
    assert infer_type_of_texts(texts) == spark_type
