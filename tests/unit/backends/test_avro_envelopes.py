"""The schemas of Debezium's Avro events: types by Connect's names, and by Avro's own."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from fastavro import parse_schema

from ematix_flow.backends.payloads.avro_envelopes import envelope_schema
from ematix_flow.backends.payloads.debezium_values import column_type, debezium_value
from ematix_flow.spec.types import DataType

CONNECT, DEBEZIUM = "org.apache.kafka.connect.data", "io.debezium"


def field_schema(declared: Any) -> Any:
    row = {"type": "record", "name": "Value", "fields": [{"name": "x", "type": declared}]}
    fields = [{"name": "before", "type": ["null", row]}, {"name": "after", "type": ["null", "Value"]}]
    parsed = parse_schema({"type": "record", "name": "shop.Envelope", "fields": fields})
    before, after = envelope_schema(parsed)["fields"]
    assert before["fields"] == after["fields"] and after["field"] == "after"
    return after["fields"][0]


@pytest.mark.parametrize(
    ("declared", "kind"),
    [
        (["null", "string"], "text"),
        ("int", "integer"),
        ({"type": "array", "items": "string"}, "json"),
        ({"type": "enum", "name": "E", "symbols": ["a"]}, "text"),
        ({"type": "int", "connect.name": f"{DEBEZIUM}.time.Date"}, "date"),
        ({"type": "long", "connect.name": f"{DEBEZIUM}.time.NanoTimestamp"}, "timestamp"),
        ({"type": "string", "connect.name": f"{DEBEZIUM}.data.Json"}, "json"),
        ({"type": "int", "logicalType": "date"}, "date"),
        ({"type": "long", "logicalType": "timestamp-micros"}, "timestamp_tz"),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, "timestamp"),
        ({"type": "string", "logicalType": "uuid"}, "uuid"),
        ({"type": "int", "logicalType": "time-millis", "connect.name": f"{CONNECT}.Time"}, "text"),
    ],
)
def test_a_field_has_the_column_of_its_meaning(declared: Any, kind: str) -> None:
    assert column_type(field_schema(declared)) == DataType(kind)


@pytest.mark.parametrize(("digits", "kept"), [(12, 12), (64, 38)])
def test_a_decimal_keeps_its_precision_unless_connect_did_not_know_it(digits: int, kept: int) -> None:
    declared = {"type": "bytes", "logicalType": "decimal", "precision": digits, "scale": 2}
    assert column_type(field_schema(declared)) == DataType("numeric", precision=kept, scale=2)


def test_a_decimal_of_any_scale_is_read_from_its_bytes() -> None:
    value = {"scale": 3, "value": b"\xff\x38"}
    assert debezium_value(value, DataType("numeric", precision=9, scale=3), None) == Decimal("-0.200")
