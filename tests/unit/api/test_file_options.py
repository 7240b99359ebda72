"""Options for files in a declaration: checked against the connection, also if only its name is given."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest

from ematix_flow import BigInt, ObjectStoreLocalConnection, PostgresConnection, Target, Text, ematix, pk
from ematix_flow import register_connection as register
from ematix_flow.errors import DeclarationError
from ematix_flow.spec.pipelines import PipelineSpec


@ematix.table(schema="shop")
class Orders:
    order_id: Annotated[BigInt, pk()]
    note: Text | None


@pytest.fixture(autouse=True)
def connections() -> None:
    register(ObjectStoreLocalConnection(name="lake", path="lake", format="parquet"))
    register(ObjectStoreLocalConnection(name="sheets", path="sheets", format="csv"))
    register(PostgresConnection(name="shop", url="postgres://localhost/shop"))


def declare(**options: Any) -> PipelineSpec:
    options = {"target": Orders, "target_connection": "shop", **options}
    if "targets" in options:
        del options["target"]
        del options["target_connection"]

    @ematix.pipeline(**options)
    def load() -> str:
        return "SELECT 1"

    return load.spec


def test_how_a_source_is_read_is_part_of_the_pipeline_and_survives_json() -> None:
    read = {"has_header": False, "delimiter": ";", "null_regex": r"^(NA|\\N)$", "schema_infer_max_records": 9}
    spec = declare(source_connection="sheets", csv_read_options=read, json_read_options={"batch_size": 100})
    assert dict(spec.source.files.csv_read_options) == read
    assert dict(spec.source.files.json_read_options) == {"batch_size": 100}
    assert PipelineSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize(
    ("connection", "read", "words"),
    [
        ("lake", {"delimiter": ";"}, "the connection's format is parquet"),
        ("shop", {"delimiter": ";"}, "the connection holds no files"),
        (None, {"delimiter": ";"}, "the connection holds no files"),
        ("sheets", {"delimeter": ";"}, "Did you mean 'delimiter'"),
        ("later", {"delimiter": ";;"}, "one ASCII character"),
    ],
)
def test_options_that_do_not_fit_a_source_are_refused(
    connection: str | None, read: dict[str, Any], words: str
) -> None:
    with pytest.raises(DeclarationError, match=words):
        declare(source_connection=connection, csv_read_options=read)


@pytest.mark.parametrize(
    ("connection", "options", "words"),
    [
        ("lake", {"prefix": "x", "csv_header": True}, "the connection's format is parquet"),
        ("sheets", {"prefix": "x", "parquet_compression": "zstd"}, "the connection's format is csv"),
        ("shop", {"prefix": "x"}, "prefix= is for files"),
        ("shop", {"table": Orders, "partition_by": ["note"]}, "partition_by= is for files"),
        ("later", {"prefix": "x", "parquet_compression": "zip"}, "unknown"),
    ],
)
def test_options_that_do_not_fit_a_target_are_refused(
    connection: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(DeclarationError, match=words):
        declare(targets=[Target(connection=connection, **options)])


def test_a_connection_that_is_declared_later_is_checked_when_it_is_known() -> None:
    spec = declare(source_connection="later", csv_read_options={"delimiter": ";"})
    assert dict(spec.source.files.csv_read_options) == {"delimiter": ";"}


def test_a_table_and_a_prefix_are_the_columns_and_the_folder() -> None:
    target = Target(connection="lake", table=Orders, prefix="raw/orders", parquet_compression="snappy")
    (found,) = declare(targets=[target]).targets
    assert found.table is not None
    assert (found.table.schema, found.table.name, found.label) == (None, "raw/orders", "lake:raw/orders")
    assert found.table.column_names == ("order_id", "note")


def test_one_declaration_may_carry_the_read_options_of_both_text_formats() -> None:
    target = Target(
        connection="sheets",
        prefix="events/csv",
        csv_read_options={
            "has_header": True,
            "delimiter": ",",
            "quote": '"',
            "escape": "\\",
            "comment": "#",
            "null_regex": r"^(NA|NULL|\\N)$",
            "truncated_rows_ok": False,
            "schema_infer_max_records": 4096,
        },
        json_read_options={"schema_infer_max_records": 4096, "batch_size": 8192},
    )
    assert declare(targets=[target]).targets[0].prefix == "events/csv"
