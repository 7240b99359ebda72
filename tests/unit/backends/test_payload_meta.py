"""Parts of a message other than its payload, raw payloads, and columns found from samples."""

from __future__ import annotations

import datetime as dt
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ematix_flow.backends.payloads.base import META_COLUMNS, PayloadSpec
from ematix_flow.backends.payloads.codecs import (
    decoder_for,
    describe_subject,
    encoder_for,
    infer_json_columns,
    meta_columns,
)
from ematix_flow.errors import ConfigError, SchemaMismatch
from ematix_flow.spec.tables import ColumnSpec
from tests.unit.backends.payload_messages import column, covers, messages, utc

AT = utc(2024, 1, 2, 3, 4, 5)


def read(columns: Any, values: list[bytes | None], form: str = "json", **meta: Any) -> Any:
    decoder = decoder_for(PayloadSpec(form), columns, numeric_positions=True)
    decoded = pickle.loads(pickle.dumps(decoder)).decode(messages(values, **meta))
    covers(decoded, len(values))
    return decoded


def test_meta_columns_come_from_the_message_in_their_default_types() -> None:
    columns = (column("x", "integer"), *meta_columns(numeric_positions=True))
    decoded = read(
        columns,
        [b'{"x":1,"_topic":"of the payload"}'],
        key=[b"\xff"],
        topic=["orders"],
        partition=["3"],
        position=["9223372036854775807"],
        timestamp=[AT],
        headers=['{"h": "v"}'],
    )
    assert decoded.rows.schema.names == ["x", *META_COLUMNS]
    assert decoded.rows.to_pylist() == [
        {
            "x": 1,
            "_key": b"\xff",
            "_topic": "orders",
            "_partition": 3,
            "_offset": 2**63 - 1,
            "_event_ts": AT,
            "_headers": '{"h": "v"}',
        }
    ]


def test_the_good_value_of_one_column_does_not_hide_the_bad_one_of_another() -> None:
    columns = (column("_key", "integer"), column("_event_ts", "timestamp_tz"), column("x", "integer"))
    values: list[bytes | None] = [b'{"x": 1, "_event_ts": "2024-01-02T03:04:05Z"}'] * 2
    decoded = read(columns, values, key=[b"no number", b"7"], timestamp=[AT, AT])
    assert [each.index for each in decoded.bad] == [0]
    assert decoded.rows.to_pylist() == [{"_key": 7, "_event_ts": AT, "x": 1}]


def test_positions_that_are_no_numbers_are_texts_by_default() -> None:
    assert [c.type.kind for c in meta_columns(("_partition", "_offset"))] == ["text", "text"]
    assert [c.type.kind for c in meta_columns(("_partition", "_offset"), numeric_positions=True)] == [
        "integer",
        "big_int",
    ]


def test_the_time_of_the_payload_wins_over_that_of_the_message() -> None:
    columns = (column("_event_ts", "timestamp_tz", nullable=False),)
    values = [
        b'{"_event_ts":"2020-01-01T00:00:00Z"}',
        b'{"_event_ts":null}',
        b"{}",
        b"{}",
        b'{"_event_ts":"x"}',
    ]
    decoded = read(columns, list(values), timestamp=[AT, AT, AT, None, AT])
    assert decoded.rows.column(0).to_pylist() == [utc(2020, 1, 1), AT, AT]
    assert {each.index: each.reason for each in decoded.bad} == {
        3: "the message has no timestamp, and _event_ts takes no nulls",
        4: "field '_event_ts' is 'x', which is not a valid TimestampTZ",
    }


@pytest.mark.parametrize(
    ("wanted", "key", "expected"),
    [
        (column("_key", "text"), "é".encode(), "é"),
        (column("_key", "big_int"), b"42", 42),
        (
            column("_key", "uuid"),
            b"8F14E45F-CEEA-467A-9B36-34A1B0C5C5AB",
            "8f14e45f-ceea-467a-9b36-34a1b0c5c5ab",
        ),
        (column("_key", "json"), b'{"id": 1}', '{"id":1}'),
        (column("_key", "json"), b"plain", '"plain"'),
        (column("_key", "string", length=3), b"abc", "abc"),
        (column("_key", "text"), None, None),
    ],
)
def test_a_key_is_converted_to_its_column(wanted: ColumnSpec, key: bytes | None, expected: object) -> None:
    assert read((wanted,), [b"{}"], key=[key]).rows.to_pylist() == [{"_key": expected}]


@pytest.mark.parametrize(
    ("wanted", "key", "reason"),
    [
        (column("_key", "text"), b"\xff", "the key is not valid UTF-8"),
        (column("_key", "big_int"), b"x", "field '_key' is 'x', which is not a valid BigInt"),
        (column("_key", "string", length=3), b"abcd", "more than String[3] holds"),
        (column("_key", "text", nullable=False), None, "the message has no key"),
    ],
)
def test_a_key_that_does_not_fit_is_bad_and_the_rest_goes_on(
    wanted: ColumnSpec, key: bytes | None, reason: str
) -> None:
    decoded = read((wanted, column("x", "integer")), [b"{}", b"[]", b'{"x":1}'], key=[key, b"1", b"2"])
    assert reason in decoded.bad[0].reason
    assert decoded.indexes.to_pylist() == [2]


def test_a_position_that_is_no_number_is_bad() -> None:
    for numeric in (True, False):
        decoder = decoder_for(PayloadSpec(), (column("_offset", "big_int"),), numeric_positions=numeric)
        decoded = decoder.decode(messages([b"{}", b"{}"], position=["shard-7", "8"]))
        covers(decoded, 2)
        assert decoded.bad[0].reason == "field '_offset' is 'shard-7', which is not a valid BigInt"
        assert decoded.rows.to_pylist() == [{"_offset": 8}]


# ------------------------------------------------------------------ raw payloads


def test_a_raw_payload_is_the_only_column_or_the_one_named_value() -> None:
    assert read((column("body", "bytes"),), [b"\xff", None], "raw_bytes").rows.to_pylist() == [
        {"body": b"\xff"}
    ]
    columns = (column("_topic", "text"), column("value", "text"))
    decoded = read(columns, [b"abc", b"\xff", b""], "raw_bytes", topic=["t", "t", "t"])
    assert decoded.rows.to_pylist() == [{"_topic": "t", "value": "abc"}, {"_topic": "t", "value": ""}]
    assert decoded.bad[0].reason == "the payload is not valid UTF-8 (byte 0)"


def test_raw_payloads_may_be_left_out_and_only_metadata_read() -> None:
    decoded = read((column("_topic", "text"),), [b"\xff", None], "raw_bytes", topic=["a", "b"])
    assert decoded.rows.to_pylist() == [{"_topic": "a"}] and decoded.empty_count == 1
    decoded = read((column("_topic", "text"),), [b"{}", b"no"], "json", topic=["a", "b"])
    assert decoded.rows.to_pylist() == [{"_topic": "a"}] and decoded.bad[0].index == 1


def test_a_raw_payload_does_not_fill_other_columns() -> None:
    with pytest.raises(SchemaMismatch, match="no value for 'id'"):
        decoder_for(
            PayloadSpec("raw_bytes"),
            (column("id", "text"), column("value", "bytes")),
            numeric_positions=False,
        )
    with pytest.raises(SchemaMismatch, match="column 'id' is BigInt"):
        encoder_for(PayloadSpec("raw_bytes"), (column("id", "big_int"),))


def test_raw_rows_are_written_as_they_are() -> None:
    encoder = encoder_for(PayloadSpec("raw_bytes"), (column("body", "text"),))
    assert encoder.encode(pa.RecordBatch.from_pydict({"body": ["é", None]})).to_pylist() == [
        "é".encode(),
        None,
    ]


def test_an_unknown_format_gets_a_hint() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'avro'"):
        decoder_for(PayloadSpec("avroo"), (column("x", "text"),), numeric_positions=False)


# ------------------------------------------------------------------ columns from samples


def kinds(*values: bytes | None) -> dict[str, str]:
    found = infer_json_columns(values)
    assert all(each.nullable for each in found)
    return {each.name: str(each.type) for each in found}


def test_columns_are_found_from_samples_in_order_of_appearance() -> None:
    assert list(
        kinds(
            b'{"b":1,"a":"x","t":"2024-01-02T03:04:05Z","d":1.5,"n":{"x":1},"f":true,"u":null}',
            b'{"c":12345678901234567890,"b":-9223372036854775808,"a":"2024-01-02T03:04:05Z","d":2}',
            b'{"t":"2024-01-02T03:04:05.5+02:00","n":[1],"f":1}',
        ).items()
    ) == [
        ("b", "BigInt"),
        ("a", "Text"),
        ("t", "TimestampTZ"),
        ("d", "Double"),
        ("n", "JSON"),
        ("f", "Text"),
        ("u", "Text"),
        ("c", "Numeric[38, 0]"),
    ]


def test_times_without_a_zone_dates_and_numbers_too_long_stay_text() -> None:
    assert kinds(b'{"a":"2024-01-02T03:04:05","b":"2024-01-02","c":' + b"9" * 50 + b"}") == {
        "a": "Text",
        "b": "Text",
        "c": "Text",
    }


def test_of_names_that_differ_in_case_only_the_usual_one_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert kinds(b'{"ID":"x","n":1}', b'{"id":1}', b'{"id":2}') == {"n": "BigInt", "id": "BigInt"}
    assert "'ID' (as 'id')" in caplog.text


def test_bad_samples_say_nothing() -> None:
    assert kinds(None, b"", b"[1]", b"\xff", b'{"":1,"\\ud800":2,"ok":1}') == {"ok": "BigInt"}
    assert infer_json_columns([]) == ()


def test_without_a_registry_nothing_is_described() -> None:
    assert describe_subject(PayloadSpec()) is None


@settings(max_examples=100)
@given(
    st.lists(
        st.dictionaries(
            st.text("abc", min_size=1, max_size=2),
            st.none()
            | st.booleans()
            | st.integers(-(2**80), 2**80)
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text(max_size=5)
            | st.lists(st.integers(), max_size=2)
            | st.datetimes(timezones=st.just(dt.timezone.utc)),
            min_size=1,
            max_size=3,
        ),
        min_size=1,
        max_size=5,
    )
)
def test_every_sample_fits_the_columns_that_were_found_from_it(rows: list[dict[str, Any]]) -> None:
    from ematix_flow.backends.payloads.json_values import json_bytes

    values: list[bytes | None] = [json_bytes(row) for row in rows]
    columns = infer_json_columns(values)
    assert columns == infer_json_columns(values)
    decoded = read(columns, values)
    assert not decoded.bad and decoded.rows.num_rows == len(rows)
