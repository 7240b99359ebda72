"""Records of Amazon's producer library, and what only looks like one."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from ematix_flow.backends.kinesis.kpl_records import PackedMessage, unpack_record
from ematix_flow.backends.kinesis.shards import Shard, readable_shards

WHOLE = Shard("s", (), 0, 2**128 - 1, 0, closed=False)
MAGIC = b"\xf3\x89\x9a\xc2"


def sealed(body: bytes) -> bytes:
    return MAGIC + body + hashlib.md5(body).digest()


def field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def record(key: int, data: bytes, explicit: int | None = None) -> bytes:
    hashed = b"" if explicit is None else bytes([2 << 3, explicit])
    return field(3, bytes([1 << 3, key]) + hashed + field(3, data))


def test_messages_share_the_table_of_keys() -> None:
    body = field(1, b"a") + field(1, b"b") + record(1, b"x") + record(0, b"y") + record(1, b"")
    assert unpack_record(sealed(body), WHOLE) == [
        PackedMessage(0, "b", b"x"),
        PackedMessage(1, "a", b"y"),
        PackedMessage(2, "b", b""),
    ]


def test_an_explicit_hash_says_to_which_shard_a_message_belongs() -> None:
    body = field(1, b"a") + field(2, b"5") + field(2, b"50") + record(0, b"low", 0) + record(0, b"high", 1)
    lower = Shard("s", (), 0, 10, 0, closed=False)
    assert unpack_record(sealed(body), lower) == [PackedMessage(0, "a", b"low")]


def test_what_only_looks_packed_is_left_as_it_is() -> None:
    good = field(1, b"a") + record(0, b"x")
    for data in (
        b"",
        MAGIC,
        MAGIC + b"x" * 16,
        sealed(good)[:-1],
        sealed(good[:-1]),
        sealed(record(0, b"no such key")),
        sealed(field(1, b"\xff") + record(0, b"x")),
        sealed(field(1, b"a") + field(3, b"")),
        sealed(b"\x0f"),
        sealed(b"\x80" * 11),
        b"plain",
    ):
        assert unpack_record(data, WHOLE) is None


@given(st.binary(max_size=200))
def test_no_bytes_whatsoever_make_it_fail(body: bytes) -> None:
    unpack_record(sealed(body), WHOLE)
    assert unpack_record(body, WHOLE) is None or body.startswith(MAGIC)


def family() -> list[Shard]:
    def made(id: str, *parents: str) -> Shard:
        return Shard(id, parents, 0, 1, 0, closed=False)

    return [made("a"), made("b"), made("merged", "a", "b"), made("half", "merged"), made("orphan", "gone")]


def test_a_child_waits_for_all_its_parents() -> None:
    def names(*ended: str) -> set[str]:
        return {shard.id for shard in readable_shards(family(), ended)}

    assert names() == {"a", "b", "orphan"}
    assert names("a") == {"b", "orphan"}
    assert names("a", "b") == {"merged", "orphan"}
    assert names("a", "b", "merged", "orphan") == {"half"}
