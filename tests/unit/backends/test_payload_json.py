"""JSON payloads: what becomes of each value, and that reading in blocks and one by one agree."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ematix_flow.backends.payloads import json_decoding
from ematix_flow.backends.payloads.base import PayloadSpec
from ematix_flow.backends.payloads.codecs import decoder_for, encoder_for
from ematix_flow.backends.payloads.json_block import read_block
from ematix_flow.backends.payloads.json_decoding import JsonDecoder, parse_fields
from ematix_flow.spec.tables import ColumnSpec
from tests.unit.backends.payload_messages import ALL_KINDS, column, covers, messages, numeric, utc

NO_JSON = tuple(c for c in ALL_KINDS if c.type.kind not in ("json", "jsonb"))


def read(value: bytes, wanted: ColumnSpec) -> Any:
    """The one value of a payload; a refused one gives its reason."""
    decoded = JsonDecoder((wanted,)).read(pa.array([value], pa.binary()))
    covers(decoded, 1)
    return decoded.bad[0].reason if decoded.bad else decoded.rows.column(0)[0].as_py()


@pytest.mark.parametrize(
    "number",
    [
        *("1767225600000000000", "9223372036854775807", "9999999999999999999", "99999999999999999999"),
        *("-9223372036854775808", "-9999999999999999999", "-999999999999999999", "18446744073709551616"),
        *("0.1234567890123456789", "12345678901234567.5", "-1234567890123456789.5", "1234567890123456e3"),
        *("12345678901234567E-3", "1e400", "-1.5e-400", "1.5"),
    ],
)
def test_a_long_number_is_read_exactly(number: str) -> None:
    """Debezium writes nanoseconds of 19 digits into every message, which are not a reason to read slowly."""
    payload = f'{{"a": {{"at": {number}}}, "b": "text {number}"}}'.encode()
    found = parse_fields(payload)
    assert found["b"] == f"text {number}"
    assert Decimal(str(found["a"]["at"])) == Decimal(number)
    assert type(found["a"]["at"]) is int if number.lstrip("-").isdigit() else True


TAKEN = [
    (b'{"x":5}', column("x", "integer"), 5),
    (b'{"x":5.0}', column("x", "integer"), 5),
    (b'{"x":"5"}', column("x", "integer"), 5),
    (b'{"x":5e3}', column("x", "integer"), 5000),
    (b'{"x":9223372036854775807}', column("x", "big_int"), 2**63 - 1),
    (b'{"x":-9223372036854775808}', column("x", "big_int"), -(2**63)),
    (
        b'{"x":12345678901234567890123456789012345678}',
        numeric("x", 38, 0),
        Decimal("1234567890123456789012345678901234567" + "8"),
    ),
    (
        b'{"x":0.1234567890123456789012345678}',
        numeric("x", 38, 28),
        Decimal("0.1234567890123456789012345678"),
    ),
    (b'{"x":1.50}', numeric("x"), Decimal("1.50")),
    (b'{"x":1.5000000}', numeric("x"), Decimal("1.50")),
    (b'{"x":"1.5"}', numeric("x"), Decimal("1.50")),
    (b'{"x":1e2}', numeric("x"), Decimal("100.00")),
    (b'{"x":1}', column("x", "double"), 1.0),
    (b'{"x":0.1}', column("x", "float"), pytest.approx(0.1)),
    (b'{"x":"Infinity"}', column("x", "double"), float("inf")),
    (b'{"x":-Infinity}', column("x", "double"), float("-inf")),
    (b'{"x":true}', column("x", "boolean"), True),
    (b'{"x":1.10}', column("x", "text"), "1.10"),
    (b'{"x":-0}', column("x", "text"), "-0"),
    (b'{"x":12345678901234567890123}', column("x", "text"), "12345678901234567890123"),
    (b'{"x":true}', column("x", "text"), "true"),
    (b'{"x":"a\\u0000b"}', column("x", "text"), "a\0b"),
    (b'{"x":{"a":[1,2.50]}}', column("x", "text"), '{"a":[1,2.5]}'),
    (b'{"x":{"a":[1,12345678901234567890.5]}}', column("x", "json"), '{"a":[1,12345678901234567890.5]}'),
    (b'{"x":"a"}', column("x", "json"), '"a"'),
    (b'{"x":[1,null,{"b":"\\u00e9"}]}', column("x", "jsonb"), '[1,null,{"b":"é"}]'),
    (b'{"x":"2024-02-29"}', column("x", "date"), dt.date(2024, 2, 29)),
    (b'{"x":"2024-01-02T03:04:05Z"}', column("x", "timestamp_tz"), utc(2024, 1, 2, 3, 4, 5)),
    (b'{"x":"2024-01-02T03:04:05+02:00"}', column("x", "timestamp_tz"), utc(2024, 1, 2, 1, 4, 5)),
    (b'{"x":"2024-01-02 03:04:05.123456"}', column("x", "timestamp_tz"), utc(2024, 1, 2, 3, 4, 5, 123456)),
    (
        b'{"x":"2024-01-02T03:04:05.123456789Z"}',
        column("x", "timestamp_tz"),
        utc(2024, 1, 2, 3, 4, 5, 123456),
    ),
    (b'{"x":"2024-01-02T03:04:05-0330"}', column("x", "timestamp"), dt.datetime(2024, 1, 2, 6, 34, 5)),
    (b'{"x":"2024-01-02"}', column("x", "timestamp"), dt.datetime(2024, 1, 2)),
    (b'{"x":1704164645123}', column("x", "timestamp_tz"), utc(2024, 1, 2, 3, 4, 5, 123000)),
    (b'{"x":-1.5}', column("x", "timestamp_tz"), utc(1969, 12, 31, 23, 59, 59, 998500)),
    (b'{"x":"aGVsbG8="}', column("x", "bytes"), b"hello"),
    (
        b'{"x":"8F14E45F-CEEA-467A-9B36-34A1B0C5C5AB"}',
        column("x", "uuid"),
        "8f14e45f-ceea-467a-9b36-34a1b0c5c5ab",
    ),
    (b'{"x":null}', column("x", "integer"), None),
    (b"{}", column("x", "integer"), None),
    (b'{"x":1,"x":2}', column("x", "integer"), 2),
    (b'\xef\xbb\xbf{"x":1}', column("x", "integer"), 1),
    (b'\n{\n"x" : 1\r\n}\n', column("x", "integer"), 1),
    (b'{"y":NaN,"x":1,"z":"\\ud800"}', column("x", "integer"), 1),
]
REFUSED = [
    (b'{"qty":"abc"}', column("qty", "integer"), "field 'qty' is 'abc', which is not a valid Integer"),
    (b'{"x":1.5}', column("x", "integer"), "field 'x' is 1.5, which is not a valid Integer"),
    (b'{"x":true}', column("x", "integer"), "field 'x' is true, which is not a valid Integer"),
    (b'{"x":2147483648}', column("x", "integer"), "field 'x' is 2147483648, out of the range of Integer"),
    (b'{"x":1e999999999}', column("x", "big_int"), "out of the range"),
    (b'{"x":' + b"9" * 5000 + b"}", column("x", "big_int"), "a number of 5000 digits"),
    (b'{"x":NaN}', column("x", "integer"), "field 'x' is NaN, which is not a valid Integer"),
    (b'{"x":1e400}', column("x", "double"), "out of the range of Double"),
    (b'{"x":1e39}', column("x", "float"), "out of the range of Float"),
    (b'{"x":1.555}', numeric("x"), "more digits after the point than Numeric[10, 2] holds"),
    (b'{"x":123456789.1}', numeric("x"), "out of the range of Numeric[10, 2]"),
    (b'{"x":1}', column("x", "boolean"), "field 'x' is 1, which is not a valid Boolean"),
    (b'{"x":"true"}', column("x", "boolean"), "which is not a valid Boolean"),
    (b'{"x":"\\ud800"}', column("x", "text"), "half of a surrogate pair"),
    (b'{"x":{"\\ud800":1}}', column("x", "json"), "half of a surrogate pair"),
    (
        b'{"x":"12345678901"}',
        column("x", "string", length=10),
        "has 11 characters, more than String[10] holds",
    ),
    (b'{"x":"2024-02-30"}', column("x", "date"), "which is not a valid Date"),
    (b'{"x":"2024-01-02T25:00:00Z"}', column("x", "timestamp_tz"), "which is not a valid TimestampTZ"),
    (b'{"x":"0001-01-01T00:00:00+14:00"}', column("x", "timestamp_tz"), "which is not a valid TimestampTZ"),
    (b'{"x":1e18}', column("x", "timestamp_tz"), "out of the range"),
    (b'{"x":"###"}', column("x", "bytes"), "which is not base64 text"),
    ('{"x":"é"}'.encode(), column("x", "bytes"), "which is not base64 text"),
    (b'{"x":"8f14e45f"}', column("x", "uuid"), "which is not a valid UUID"),
    (b'{"x":null}', column("x", "integer", nullable=False), "missing or null, and the column takes no nulls"),
    (b"{}", column("x", "integer", nullable=False), "field 'x' is missing or null"),
    (b"null", column("x", "integer"), "the payload is null, not a JSON object"),
    (b"[1]", column("x", "integer"), "the payload is a list, not a JSON object"),
    (b'"x"', column("x", "integer"), "not a JSON object"),
    (b"   ", column("x", "integer"), "not valid JSON"),
    (b'{"x":1', column("x", "integer"), "not valid JSON"),
    (b'{"x":1}{"x":2}', column("x", "integer"), "not valid JSON"),
    (b"{}null{}", column("x", "integer"), "not valid JSON"),
    (b'{"x":"a\nb"}', column("x", "text"), "not valid JSON"),
    (b'{"x":"\xff"}', column("x", "text"), "not valid UTF-8"),
    (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", column("x", "json"), "nested too deeply"),
    (b'{"x":' + b"[" * 600 + b"]" * 600 + b"}", column("x", "json"), "nested too deeply"),
]


@pytest.mark.parametrize(("payload", "wanted", "expected"), TAKEN, ids=lambda x: repr(x)[:50])
def test_a_value_is_taken_as_its_column_wants_it(payload: bytes, wanted: ColumnSpec, expected: Any) -> None:
    assert read(payload, wanted) == expected


@pytest.mark.parametrize(("payload", "wanted", "reason"), REFUSED, ids=lambda x: repr(x)[:50])
def test_a_value_that_does_not_fit_is_refused_in_words(
    payload: bytes, wanted: ColumnSpec, reason: str
) -> None:
    answer = read(payload, wanted)
    assert isinstance(answer, str) and reason in answer
    assert len(answer) < 200


def test_messages_without_a_payload_give_no_row() -> None:
    decoder = decoder_for(PayloadSpec(), [column("x", "integer")], numeric_positions=True)
    decoded = decoder.decode(messages([b'{"x":1}', None, b"", b'{"x":2}']))
    covers(decoded, 4)
    assert decoded.empty_count == 2
    assert decoded.indexes.to_pylist() == [0, 3]


def test_no_messages_give_no_rows_of_the_wanted_types() -> None:
    decoded = decoder_for(PayloadSpec(), ALL_KINDS, numeric_positions=True).decode(messages([]))
    covers(decoded, 0)
    assert [f.type for f in decoded.rows.schema] == [c.type.arrow() for c in ALL_KINDS]


def test_one_poisoned_message_among_many_costs_one_small_block(monkeypatch: pytest.MonkeyPatch) -> None:
    one_by_one = 0
    original = JsonDecoder.read_rows

    def counted(self: JsonDecoder, values: Any, indexes: Any) -> Any:
        nonlocal one_by_one
        one_by_one += len(values)
        return original(self, values, indexes)

    monkeypatch.setattr(JsonDecoder, "read_rows", counted)
    values = [b'{"x":%d}' % i for i in range(20_000)]
    values[12_345] = b'{"x":"poison"}'
    decoded = JsonDecoder((column("x", "integer"),)).read(pa.array(values, pa.binary()))
    covers(decoded, 20_000)
    assert [each.index for each in decoded.bad] == [12_345]
    assert one_by_one == 1_000


def test_payloads_are_read_in_blocks_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_decoding, "_BLOCK_BYTES", 50)
    values = [b'{"x":%d}' % i for i in range(100)]
    decoded = JsonDecoder((column("x", "integer"),)).read(pa.array(values, pa.binary()))
    covers(decoded, 100)
    assert decoded.rows.column(0).to_pylist() == list(range(100))


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([b'{"x":1704164645123}'] * 3, column("x", "timestamp_tz")),
        ([b'{"x":"2024-01-02T03:04:05.123456789Z"}'] * 3, column("x", "timestamp_tz")),
        ([b'{"x":"2024-01-02T03:04:05"}'] * 3, column("x", "timestamp")),
        ([b'{"x":"17"}'] * 3, column("x", "integer")),
        ([b'{"x":"12.50"}'] * 3, numeric("x")),
        ([b'{"x":12.5}'] * 3, numeric("x")),
        ([b'{"x":12.5}'] * 3, column("x", "double")),
    ],
)
def test_the_usual_ways_to_write_a_value_are_read_in_blocks(values: list[bytes], wanted: ColumnSpec) -> None:
    arrays = read_block(pa.array(values, pa.binary()), (wanted,))
    assert arrays is not None
    rows, _, bad = JsonDecoder((wanted,)).read_rows(values, range(3))
    assert not bad and rows.column(0).equals(arrays[0])


# ------------------------------------------------------------------ both halves agree

_numbers = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str),
    st.sampled_from(
        ["-0", "1e5", "1E-7", "0.0", "1e400", "1e-400", "NaN", "-Infinity", "01", "1.", "12.340"]
    ),
)
_texts = st.one_of(
    st.text(max_size=15),
    st.sampled_from(
        [
            "NaN",
            "5",
            "-7",
            "+3",
            " 5",
            "1.5",
            "1e3",
            ".5",
            "5.",
            "1_000",
            "２",
            "true",
            "",
            "aGk=",
            "aGk",
            "????",
        ]
    ),
    st.datetimes().map(dt.datetime.isoformat),
    st.datetimes(
        timezones=st.sampled_from([dt.timezone.utc, dt.timezone(dt.timedelta(hours=-3, minutes=-30))])
    ).map(dt.datetime.isoformat),
    st.from_regex(
        r"[0-9]{4}-[01][0-9]-[0-3][0-9]"
        r"([T ][0-2][0-9]:[0-5][0-9]:[0-6][0-9](\.[0-9]{1,10})?(Z|[+-][0-2][0-9]:?[0-9]{2})?)?",
        fullmatch=True,
    ),
    st.dates().map(dt.date.isoformat),
    st.uuids().map(str),
    st.binary(max_size=6).map(lambda b: __import__("base64").b64encode(b).decode()),
).map(json.dumps)
_scalars = st.one_of(
    _numbers, _texts, st.sampled_from(["true", "false", "null", '"\\ud800"', '"\\ud83d\\ude00"'])
)
_values = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda v: f"[{','.join(v)}]"),
        st.dictionaries(st.text(max_size=3).map(json.dumps), inner, max_size=3).map(
            lambda v: "{" + ",".join(f"{k}:{x}" for k, x in v.items()) + "}"
        ),
    ),
    max_leaves=5,
)


@st.composite
def _objects(draw: st.DrawFn, names: tuple[str, ...]) -> bytes:
    fields = draw(st.lists(st.tuples(st.sampled_from([*names, "other"]), _values), max_size=4))
    space = draw(st.sampled_from(["", "", " ", "\n", "\r"]))
    return ("{" + f",{space}".join(f"{json.dumps(n)}:{space}{v}" for n, v in fields) + "}").encode()


def same(column_a: pa.Array, column_b: pa.Array) -> bool:
    return repr(column_a.to_pylist()) == repr(column_b.to_pylist())


@pytest.mark.parametrize("value", [b'{"single":-0}', b'{"single":-0.0}', b'{"single":-0e1}'])
def test_a_negative_zero_keeps_its_sign_in_a_block_and_one_by_one(value: bytes) -> None:
    (column,) = (c for c in NO_JSON if c.name == "single")
    arrays = read_block(pa.array([value], pa.binary()), (column,))
    rows, _, bad = JsonDecoder((column,)).read_rows([value], [0])
    assert arrays is not None and not bad
    assert repr(rows.column(0).to_pylist()) == repr(arrays[0].to_pylist()) == "[-0.0]"


@settings(max_examples=150)
@given(st.data())
def test_a_block_holds_what_reading_one_by_one_gives(data: st.DataObject) -> None:
    columns = tuple(data.draw(st.lists(st.sampled_from(NO_JSON), min_size=1, max_size=3, unique=True)))
    payload = _objects(tuple(c.name for c in columns))
    values = data.draw(st.lists(payload, min_size=1, max_size=3))
    arrays = read_block(pa.array(values, pa.binary()), columns)
    if arrays is None:
        return
    rows, taken, bad = JsonDecoder(columns).read_rows(values, range(len(values)))
    assert not bad and taken == list(range(len(values)))
    for at in range(len(columns)):
        assert same(rows.column(at), arrays[at]), (columns[at], values)


@settings(max_examples=100)
@given(
    st.lists(
        st.one_of(
            st.none(), st.binary(max_size=30), _objects(tuple(c.name for c in ALL_KINDS)), st.just(b"null")
        ),
        max_size=6,
    )
)
@example([b'{"big":1}', b"null", b'{"big":2}'])
def test_no_payload_makes_the_decoder_fail(values: list[bytes | None]) -> None:
    for columns in (ALL_KINDS, NO_JSON):
        decoded = JsonDecoder(columns).read(pa.array(values, pa.binary()))
        covers(decoded, len(values))


@settings(max_examples=80)
@given(st.data())
def test_mutated_payloads_never_make_the_decoder_fail(data: st.DataObject) -> None:
    payload = bytearray(data.draw(_objects(tuple(c.name for c in NO_JSON))))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, len(payload) - 1)))
        payload[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    values = [b'{"big":1}', bytes(payload), b'{"text":"x"}']
    covers(JsonDecoder(NO_JSON).read(pa.array(values, pa.binary())), 3)


# ------------------------------------------------------------------ there and back

_rows = st.fixed_dictionaries(
    {
        "small": st.none() | st.integers(-(2**15), 2**15 - 1),
        "int": st.none() | st.integers(-(2**31), 2**31 - 1),
        "big": st.none() | st.integers(-(2**63), 2**63 - 1),
        "single": st.none() | st.floats(width=32),
        "double": st.none() | st.floats(),
        "num": st.none() | st.decimals(-(10**8) + 1, 10**8 - 1, places=2, allow_nan=False),
        "flag": st.none() | st.booleans(),
        "text": st.none() | st.text(max_size=20),
        "short": st.none() | st.text(max_size=10),
        "day": st.none() | st.dates(),
        "clock": st.none() | st.datetimes(),
        "moment": st.none() | st.datetimes(timezones=st.just(dt.timezone.utc)),
        "doc": st.none() | st.sampled_from(['{"a":1}', "[1,2]", '"x"', "12345678901234567890.5"]),
        "docb": st.none(),
        "uid": st.none() | st.uuids().map(str),
        "raw": st.none() | st.binary(max_size=10),
    }
)


@settings(max_examples=80)
@given(st.lists(_rows, min_size=1, max_size=4))
def test_what_is_written_as_json_is_read_back_as_it_was(rows: list[dict[str, Any]]) -> None:
    schema = pa.schema([(c.name, c.type.arrow()) for c in ALL_KINDS])
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    encoder = pickle.loads(pickle.dumps(encoder_for(PayloadSpec(), ALL_KINDS)))
    decoder = pickle.loads(pickle.dumps(decoder_for(PayloadSpec(), ALL_KINDS, numeric_positions=False)))
    decoded = decoder.decode(messages(encoder.encode(batch).to_pylist()))
    covers(decoded, len(rows))
    assert not decoded.bad
    assert repr(decoded.rows.to_pylist()) == repr(batch.to_pylist())


def test_json_is_written_with_exact_numbers_zones_and_embedded_documents() -> None:
    columns = [
        numeric("n", 38, 10),
        column("at", "timestamp_tz"),
        column("d", "json"),
        column("none", "text"),
    ]
    rows = [{"n": Decimal("12345678901234567890.1234567890"), "at": utc(2024, 1, 2), "d": '{"a": 1.50}'}]
    schema = pa.schema([(c.name, c.type.arrow()) for c in columns])
    written = encoder_for(PayloadSpec(), columns).encode(pa.RecordBatch.from_pylist(rows, schema=schema))
    assert written.to_pylist() == [
        b'{"n":12345678901234567890.1234567890,"at":"2024-01-02T00:00:00Z","d":{"a": 1.50},"none":null}'
    ]


def test_a_json_column_that_holds_no_json_is_rejected_with_its_row() -> None:
    from ematix_flow.errors import RowRejected

    encoder = encoder_for(PayloadSpec(), [column("d", "json")])
    with pytest.raises(RowRejected, match="row 2: column 'd' is not valid JSON"):
        encoder.encode(pa.RecordBatch.from_pydict({"d": ["1", "{oops"]}))
