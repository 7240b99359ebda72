"""``cdc=`` in a declaration and in TOML: what it means for the targets, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from ematix_flow import CDC, Annotated, BigInt, KafkaConnection, ManagedTable, Text, nullable, pk
from ematix_flow.api.stream_toml import stream_from_text
from ematix_flow.api.stream_toml_writer import stream_to_toml
from ematix_flow.api.streaming import stream_spec
from ematix_flow.connections import ObjectStoreLocalConnection, PostgresConnection
from ematix_flow.errors import DeclarationError
from ematix_flow.spec.streams import StreamSpec

KAFKA = KafkaConnection(name="kafka", bootstrap_servers="localhost:9092")
WAREHOUSE = PostgresConnection(name="wh", url="postgresql://localhost/db")


class Customers(ManagedTable):
    region: Annotated[Text, pk()]
    number: Annotated[BigInt, pk()]
    email: Annotated[Text, nullable()]


def declared(**options: Any) -> StreamSpec:
    given = {"target": WAREHOUSE, "target_table": Customers, "cdc": CDC(), **options}
    return stream_spec(None, name="mirror", source=KAFKA, source_query="customers", **given)


def test_the_key_is_that_of_the_table_of_keys_or_of_the_envelope() -> None:
    assert declared().targets[0].keys == ("region", "number")
    assert declared(keys=["number"]).targets[0].keys == ("number",)
    assert declared(target_table="customers").targets[0].keys == ("id",)
    named = CDC(key_field=["after.region", "after.no"])
    assert declared(target_table="customers", cdc=named).targets[0].keys == ("region", "no")


def test_two_parts_of_a_key_are_not_one_column() -> None:
    with pytest.raises(DeclarationError, match=r"several paths of the name 'id' \('org.id', 'row.id'\)"):
        CDC(key_field=["org.id", "row.id"])


def test_a_declaration_survives_json_and_toml() -> None:
    cdc = CDC(
        envelope="custom",
        op_field="meta.op",
        after_field="row",
        key_field=("row.region", "row.number"),
        ts_field="meta.at",
        op_map={"I": "insert", "D": "delete"},
        delete_mode="soft",
        soft_delete_column="deleted_at",
        schema_evolution="fail",
        out_of_order_tolerance_ms=0,
    )
    for each in (cdc, CDC(), CDC(envelope="maxwell")):
        spec = declared(cdc=each, target_table="customers")
        assert StreamSpec.from_json(spec.to_json()) == spec
        assert stream_from_text(stream_to_toml(spec)).cdc == each


@pytest.mark.parametrize("heading", ["cdc", "transform.cdc"])
def test_both_places_in_a_file_mean_the_same(heading: str) -> None:
    text = stream_to_toml(declared(cdc=None, target_table="customers"))
    spec = stream_from_text(f'{text}\n[{heading}]\nenvelope = "maxwell"\nkey_field = "data.no"\n')
    assert spec.cdc == CDC(envelope="maxwell", key_field="data.no") and spec.targets[0].keys == ("no",)


@pytest.mark.parametrize(
    ("lines", "words", "line"),
    [
        ('envelope = "debezum"', "did you mean 'debezium'", 1),
        ('envelope = "debezium"\nkeyfield = "id"', "keyfield", 2),
        ('delete_mode = "soft"', "belong together", 1),
        ('envelope = "custom"', "needs op_field=, after_field=, op_map=", 1),
        ('[cdc.op_map]\nX = "explode"', "'explode'", 0),
    ],
)
def test_an_error_points_at_the_line_of_the_file(lines: str, words: str, line: int) -> None:
    text = stream_to_toml(declared(cdc=None, target_table="customers"))
    start = text.count("\n") + 2
    with pytest.raises(DeclarationError, match="(?i)" + words) as failed:
        stream_from_text(f"{text}\n[cdc]\n{lines}\n")
    assert failed.value.where is not None and failed.value.where.line >= start


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"transform_sql": "SELECT 1"}, "transform_sql= has no effect with cdc="),
        ({"mode": "scd2", "event_timestamp_column": "at"}, "event_timestamp_column= has no effect"),
        ({"update_columns": ["email"]}, "update_columns="),
        ({"compare_columns": ["email"]}, "compare_columns= has no effect"),
        (
            {"mode": "scd2", "cdc": CDC(delete_mode="soft", soft_delete_column="gone")},
            "ends the version of a deleted row",
        ),
        (
            {
                "mode": "scd2",
                "cdc": CDC(envelope="custom", op_field="op", after_field="row", op_map={"A": "insert"}),
            },
            "does not say where it is",
        ),
        ({"window": object()}, "window= has no effect with cdc="),
        ({"cdc": "debezium"}, r"cdc= takes CDC\(…\)"),
        ({"target": KAFKA, "target_table": None, "target_topic": "x"}, "a broker takes messages"),
        (
            {
                "target": ObjectStoreLocalConnection(name="files", path="x"),
                "target_prefix": "p",
                "target_table": None,
            },
            "its files never change",
        ),
        ({"cdc": CDC(delete_mode="soft", soft_delete_column="region")}, "is part of the key"),
    ],
)
def test_what_does_not_go_together_with_changes_is_refused(options: Any, words: str) -> None:
    with pytest.raises(DeclarationError, match=words):
        declared(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"envelope": "x"},
        {"envelope": None},
        {"key_field": ""},
        {"key_field": []},
        {"key_field": ["a", 5]},
        {"op_field": "a..b"},
        {"op_map": {"a": "b"}},
        {"op_map": []},
        {"delete_mode": "none"},
        {"soft_delete_column": "x"},
        {"schema_evolution": 1},
        {"out_of_order_tolerance_ms": -1},
        {"out_of_order_tolerance_ms": True},
    ],
)
def test_a_wrong_option_is_refused_at_the_line(options: Any) -> None:
    with pytest.raises(DeclarationError) as failed:
        CDC(**options)
    assert failed.value.where is not None and failed.value.where.file == __file__
