"""Blocks of change events are read as the same messages are read one by one, for any messages."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from ematix_flow.backends.payloads import change_blocks
from ematix_flow.backends.payloads.base import DecodedBatch, PayloadSpec
from ematix_flow.backends.payloads.change_decoder import ChangeDecoder
from ematix_flow.backends.payloads.change_events import UNAVAILABLE, UNAVAILABLE_TEXTS
from ematix_flow.spec.cdc import CDC
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType
from tests.property.change_model import message_batch

COLUMNS = (
    ColumnSpec("id", DataType("big_int"), primary_key=True),
    ColumnSpec("code", DataType("text"), primary_key=True),
    ColumnSpec("note", DataType("text"), nullable=True),
    ColumnSpec("price", DataType("numeric", precision=10, scale=2), nullable=True),
    ColumnSpec("share", DataType("double"), nullable=True),
    ColumnSpec("day", DataType("date"), nullable=True),
    ColumnSpec("at", DataType("timestamp"), nullable=True),
    ColumnSpec("seen", DataType("timestamp_tz"), nullable=True),
    ColumnSpec("data", DataType("json"), nullable=True),
    ColumnSpec("flag", DataType("boolean"), nullable=True),
    ColumnSpec("small", DataType("small_int"), nullable=True),
    ColumnSpec("raw", DataType("bytes"), nullable=True),
)
VALUES: dict[str, tuple[Any, ...]] = {
    "note": ("x", "", None, UNAVAILABLE, 5, 1.5, True, "ä\u0000", "a-0"),
    "price": ("1.50", 2, 2.25, None, "1e3", 123456789.12),
    "share": (0.5, 1, -0.0, "NaN", None, 1.2345678901234567, 10**25),
    "day": (19000, "2026-01-02", None, -1, 10**9),
    "at": (1_700_000_000_000, 1_700_000_000_000_123, "2026-01-02T03:04:05", None, -5),
    "seen": (1_700_000_000_000_123_456, "2026-01-02T03:04:05Z", 0, None, 10**18 * 9),
    "data": ('{"a": 1.50}', "no json", None, "5", {"a": [1]}, [1, 2.0]),
    "flag": (True, False, None, 1, "true"),
    "small": (1, -3, None, 70_000, 2.0, "7"),
    "raw": ("AQI=", None, UNAVAILABLE_TEXTS[1], "?"),
}
SAFE = {name: values[:1] for name, values in VALUES.items()} | {"seen": (1_700_000_000_000_123,)}
NO_CHANGES = (None, b"", b"null", b"5", b"{", b"[]", b'{"op": 1}', b'{"op": ["c"]}', b'"\xff"')
OLD_ROWS: tuple[Any, ...] = ({"id": 99, "code": "z"}, {"id": 1}, {}, "x", {"id": None, "code": "a"})
SOURCES: tuple[Any, ...] = (
    {"connector": "mysql", "file": "binlog.000003", "pos": 77, "row": 1, "ts_ms": 1_700_000_000_000},
    {"connector": "postgresql", "ts_ms": 5},
    {"connector": "sqlserver", "commit_lsn": "00000027:00000758:0005", "ts_us": 1_700_000_000_000_000},
    {"connector": "oracle", "ts_ms": 1_700_000_000_000},
    {},
    "x",
)


def random_message(chance: random.Random, wild: float) -> bytes | None:
    """Regular, or with the given probability anything."""

    def is_wild() -> bool:
        return chance.random() < wild

    if is_wild():
        return chance.choice(
            (None, b"", b"null", b"5", b"{", b"[]", b'{"op": 1}', b'{"op": ["c"]}', b'"\xff"')
        )
    row: dict[str, Any] = {"id": chance.randrange(5), "code": chance.choice(("a", "b"))}
    if is_wild():
        row["id"] = chance.choice((None, "7", 1.5, UNAVAILABLE, -(10**20)))
    for name, choices in VALUES.items():
        if not is_wild():
            row[name] = chance.choice(choices if is_wild() else SAFE[name])
    if is_wild():
        row[chance.choice(("extra", "Note", "_offset"))] = chance.choice((None, 1))
    op = chance.choice("ccuurd")
    before: Any = {"id": row["id"], "code": row["code"]} if chance.random() < 0.3 else None
    if is_wild():
        before = chance.choice(
            ({"id": 99, "code": "z"}, {"id": 1}, {}, "x", dict(row), {"id": None, "code": "a"})
        )
    after: Any = None if op == "d" else row
    if op == "d" and before is None:
        before = {"id": row["id"], "code": row["code"]}
    if is_wild():
        op, after = chance.choice(
            (("t", None), ("m", None), ("z", row), ("u", None), ("d", row), ("c", [1]), (None, row))
        )
    source = {"connector": "postgresql", "lsn": chance.randrange(9999), "ts_ms": 1_700_000_000_000}
    if chance.random() < 0.7:
        source["sequence"] = chance.choice(('["16","24"]', '[null,"24"]'))
    if is_wild():
        source = chance.choice(
            (*SOURCES, {**source, "lsn": 1.5}, {**source, "sequence": "x", "ts_ms": "soon"})
        )
    message: dict[str, Any] = {"op": op, "before": before, "after": after, "source": source}
    if is_wild():
        message = chance.choice(({"schema": None, "payload": message}, {"payload": None}, {"payload": 5}))
    return json.dumps(message).encode()


def contents(decoded: DecodedBatch) -> tuple[Any, ...]:
    reasons = [(each.index, each.reason, each.stage) for each in decoded.bad]
    rows = decoded.rows
    return rows.schema, str(rows.to_pylist()), decoded.indexes.to_pylist(), reasons, decoded.empty_count


def check_seed(seed: int) -> bool:
    """Returns whether all blocks were regular."""
    chance = random.Random(seed)
    evolution = chance.choice(("skip", "fail", "evolve"))
    columns = (
        COLUMNS
        if chance.random() < 0.7
        else (*COLUMNS, ColumnSpec("gone_at", DataType("timestamp_tz"), True))
    )
    cdc = (
        CDC(schema_evolution=evolution)
        if chance.random() < 0.8
        else CDC(key_field=["before.id", "after.code"])
    )
    decoder = ChangeDecoder(cdc, PayloadSpec(), columns, ("id", "code"), timed=chance.random() < 0.5)
    wild = chance.choice((0.0, 0.003, 0.01, 0.1))
    messages = message_batch([random_message(chance, wild) for _ in range(chance.randrange(12))], 7)
    expected = contents(decoder._decode_each(messages))
    assert contents(decoder.decode(messages)) == expected, f"seed {seed}"
    return not expected[3] and wild == 0.0


def test_blocks_of_change_events_give_what_messages_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_blocks, "BLOCK_ROWS", 4)
    monkeypatch.setattr("ematix_flow.backends.payloads.change_decoder.BLOCK_ROWS", 4)
    regular = sum(check_seed(seed) for seed in range(1_500))
    assert regular > 100


@pytest.mark.long
def test_many_blocks_of_change_events_give_what_messages_give() -> None:
    for seed in range(10_000, 60_000):
        check_seed(seed)


def test_a_regular_block_is_read_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(1)
    decoder = ChangeDecoder(CDC(), PayloadSpec(), COLUMNS, ("id", "code"))
    messages = message_batch([*(random_message(chance, 0) for _ in range(50)), None])

    def refuse(*_: Any) -> Any:
        raise AssertionError("read one by one")

    monkeypatch.setattr(ChangeDecoder, "_decode_each", refuse)
    decoded = decoder.decode(messages)
    assert decoded.rows.num_rows == 50 and decoded.empty_count == 1
