"""Kinesis streams against the emulator ``kinesis-local``: the service itself cannot run here."""

from __future__ import annotations

import datetime as dt
import hashlib
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.backends.kinesis.backend import KinesisStreamBackend
from ematix_flow.backends.kinesis.positions import ENDED
from ematix_flow.backends.kinesis.receiver import KinesisReceiver
from ematix_flow.backends.messages.base import Message, ReadRequest
from ematix_flow.backends.spool.spool import Spool
from ematix_flow.errors import CannotConnect, SourceFailed, SourceMissing
from ematix_flow.spec.connections import KinesisConnection
from tests.services.kinesis import KinesisServer, running_server
from tests.services.process import free_port

LONG_AGO = "2020-01-01T00:00:00+00:00"


def backend_of(server: KinesisServer, stream: str, **changes: Any) -> KinesisStreamBackend:
    return KinesisStreamBackend(
        KinesisConnection(name="k", **{**server.connection_fields(stream), **changes})
    )


@contextmanager
def receiving(
    server: KinesisServer, stream: str, progress: Mapping[str, str] | None = None, **reading: Any
) -> Iterator[KinesisReceiver]:
    source = backend_of(server, stream).stream_source()
    receiver = source.receiver(ReadRequest(stream, **reading), progress or {})
    assert isinstance(receiver, KinesisReceiver)
    with closing(receiver):
        yield receiver


class Reader:
    """Polls and stores positions with what it got, as a spool does."""

    def __init__(self, receiver: KinesisReceiver, progress: Mapping[str, str] | None = None) -> None:
        self.receiver = receiver
        self.progress = dict(progress or {})
        self.messages: list[Message] = []

    def turn(self, max_messages: int = 1000, timeout: float = 0.3) -> list[Message]:
        found = list(self.receiver.poll(max_messages, timeout))
        self.progress.update(self.receiver.progress())
        self.messages += found
        return found

    def until(self, count: int, **limits: Any) -> list[Message]:
        deadline = time.monotonic() + 60
        while len(self.messages) < count and time.monotonic() < deadline:
            self.turn(**limits)
        return self.messages

    def until_drained(self) -> list[Message]:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if not self.turn() and self.receiver.is_drained():
                return self.messages
        raise AssertionError("it was never drained")


def numbered(first: int, last: int, keys: int = 10) -> list[tuple[str, bytes]]:
    return [(f"key-{number % keys}", str(number).encode()) for number in range(first, last)]


def by_key(messages: list[Message]) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = defaultdict(list)
    for message in messages:
        found[message.key or b""].append(int(message.value or b""))
    return found


def in_order(first: int, last: int, keys: int = 10) -> dict[bytes, list[int]]:
    return {f"key-{key}".encode(): [n for n in range(first, last) if n % keys == key] for key in range(keys)}


def open_shards(kinesis: KinesisServer, stream: str) -> list[Any]:
    shards = kinesis.client().list_shards(StreamName=stream)["Shards"]
    return [each for each in shards if "EndingSequenceNumber" not in each["SequenceNumberRange"]]


def split(kinesis: KinesisServer, stream: str) -> None:
    shard = open_shards(kinesis, stream)[0]
    first, last = (int(shard["HashKeyRange"][f"{end}HashKey"]) for end in ("Starting", "Ending"))
    kinesis.client().split_shard(
        StreamName=stream, ShardToSplit=shard["ShardId"], NewStartingHashKey=str((first + last) // 2)
    )
    kinesis.wait_until_active(stream)


def merge(kinesis: KinesisServer, stream: str) -> None:
    ordered = sorted(open_shards(kinesis, stream), key=lambda s: int(s["HashKeyRange"]["StartingHashKey"]))
    kinesis.client().merge_shards(
        StreamName=stream, ShardToMerge=ordered[0]["ShardId"], AdjacentShardToMerge=ordered[1]["ShardId"]
    )
    kinesis.wait_until_active(stream)


# ------------------------------------------------------------------ what comes


def test_a_record_arrives_with_its_key_shard_sequence_number_and_time(
    kinesis: KinesisServer, kinesis_stream: str
) -> None:
    [shard] = kinesis.put(kinesis_stream, [("kéy", b'{"a": 1}')])
    with receiving(kinesis, kinesis_stream) as receiver:
        [message] = Reader(receiver).until(1)
        assert receiver.progress()[shard].startswith(f"{message.position}@")
        assert not receiver.acknowledges
    assert (message.value, message.key, message.topic) == (b'{"a": 1}', "kéy".encode(), kinesis_stream)
    assert message.partition == shard
    assert message.position is not None and message.position.isdecimal()
    assert message.timestamp is not None
    assert abs(message.timestamp - dt.datetime.now(dt.timezone.utc)) < dt.timedelta(minutes=5)


def test_two_shards_are_read_in_the_order_of_each(kinesis: KinesisServer, kinesis_stream: str) -> None:
    kinesis.put(kinesis_stream, numbered(0, 1000))
    with receiving(kinesis, kinesis_stream) as receiver:
        reader = Reader(receiver)
        assert not receiver.is_drained() or not receiver.lag()
        messages = reader.until_drained()
        assert set(receiver.lag().values()) == {0}
        assert len(receiver.lag()) == 2 and receiver.lag_unit == "milliseconds"
    assert by_key(messages) == in_order(0, 1000)
    assert len({message.partition for message in messages}) == 2


@pytest.mark.long
@pytest.mark.slow
def test_twenty_thousand_records_of_many_shards_arrive_once(kinesis: KinesisServer) -> None:
    stream = kinesis.create_stream("many", shards=60)  # the emulator is slow with many records in a shard
    kinesis.put(stream, numbered(0, 20_000, keys=1000))
    with receiving(kinesis, stream) as receiver:
        messages = Reader(receiver).until(20_000, max_messages=5000)
    assert by_key(messages) == in_order(0, 20_000, keys=1000)
    kinesis.drop_stream(stream)


def test_a_poll_brings_no_more_than_was_asked_for(kinesis: KinesisServer, kinesis_stream: str) -> None:
    kinesis.put(kinesis_stream, numbered(0, 30))
    with receiving(kinesis, kinesis_stream) as receiver:
        reader = Reader(receiver)
        assert len(reader.turn(max_messages=1)) == 1
        assert all(len(reader.turn(max_messages=7)) <= 7 for _ in range(3))
        assert by_key(reader.until(30, max_messages=7)) == in_order(0, 30)


def test_reading_goes_on_where_positions_were_stored(kinesis: KinesisServer, kinesis_stream: str) -> None:
    kinesis.put(kinesis_stream, numbered(0, 500))
    messages: list[Message] = []
    progress: dict[str, str] = {}
    for stop_at in (120, 130, 500, 700):
        with receiving(kinesis, kinesis_stream, progress) as receiver:
            reader = Reader(receiver, progress)
            reader.until(stop_at - len(messages), max_messages=60)
            messages, progress = messages + reader.messages, reader.progress
        if stop_at == 500:
            kinesis.put(kinesis_stream, numbered(500, 700))
    assert by_key(messages) == in_order(0, 700)


def test_a_spool_that_is_restarted_holds_every_record_once(
    kinesis: KinesisServer, kinesis_stream: str, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    kinesis.put(kinesis_stream, numbered(0, 300))
    files: list[Path] = []
    for stop_at in (100, 300):
        spool = Spool(tmp_path / "spool").open()
        source = backend_of(kinesis, kinesis_stream).stream_source()
        receiver = source.receiver(ReadRequest(kinesis_stream), spool.progress())
        spool.follow(receiver, max_rows=50, thread=False)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            spool.run_once(0.5)
            files = sorted(spool.segments.glob("*.parquet"))
            if sum(pq.read_metadata(file).num_rows for file in files) >= stop_at:
                break
        receiver.close()
        spool.close()
    values = [v for file in files for v in pq.read_table(file).column("value").to_pylist()]
    assert sorted(map(int, values)) == list(range(300))


# ------------------------------------------------------------------ splits and merges


def test_keys_stay_in_order_over_a_split_and_a_merge(kinesis: KinesisServer, kinesis_stream: str) -> None:
    kinesis.put(kinesis_stream, numbered(0, 200))
    with receiving(kinesis, kinesis_stream) as receiver:
        reader = Reader(receiver)
        reader.until(50, max_messages=40)
        split(kinesis, kinesis_stream)
        kinesis.put(kinesis_stream, numbered(200, 400))
        reader.until(250, max_messages=40)
        merge(kinesis, kinesis_stream)
        kinesis.put(kinesis_stream, numbered(400, 600))
        messages = reader.until(600, max_messages=40)
        reader.until_drained()
    assert by_key(messages) == in_order(0, 600)
    assert list(reader.progress.values()).count(ENDED) >= 2


def test_a_reader_that_comes_after_the_splits_finds_everything_in_order(
    kinesis: KinesisServer, kinesis_stream: str
) -> None:
    for step in range(4):
        kinesis.put(kinesis_stream, numbered(step * 100, step * 100 + 100))
        merge(kinesis, kinesis_stream) if step == 2 else split(kinesis, kinesis_stream)
    with receiving(kinesis, kinesis_stream) as receiver:
        assert by_key(Reader(receiver).until_drained()) == in_order(0, 400)


@pytest.mark.slow
def test_a_restart_between_parent_and_child_loses_and_doubles_nothing(
    kinesis: KinesisServer, kinesis_stream: str
) -> None:
    kinesis.put(kinesis_stream, numbered(0, 200))
    split(kinesis, kinesis_stream)
    kinesis.put(kinesis_stream, numbered(200, 400))
    messages: list[Message] = []
    progress: dict[str, str] = {}
    while len(messages) < 400:  # a new receiver for every few messages
        with receiving(kinesis, kinesis_stream, progress) as receiver:
            reader = Reader(receiver, progress)
            reader.until(1, max_messages=30)
            messages, progress = messages + reader.messages, reader.progress
    with receiving(kinesis, kinesis_stream, progress) as receiver:
        assert Reader(receiver).until_drained() == []
    assert by_key(messages) == in_order(0, 400)


# ------------------------------------------------------------------ where it starts


def test_latest_brings_what_comes_after_the_opening(kinesis: KinesisServer, kinesis_stream: str) -> None:
    kinesis.put(kinesis_stream, numbered(0, 50))
    with receiving(kinesis, kinesis_stream, starting="latest") as receiver:
        reader = Reader(receiver)
        assert reader.until_drained() == []
        kinesis.put(kinesis_stream, numbered(50, 60))
        assert by_key(reader.until(10)) == in_order(50, 60)


def test_latest_is_remembered_though_nothing_came_before_the_restart(
    kinesis: KinesisServer, kinesis_stream: str
) -> None:
    kinesis.put(kinesis_stream, numbered(0, 50))
    time.sleep(1.1)  # so that what came is older than the opening by any clock
    with receiving(kinesis, kinesis_stream, starting="latest") as receiver:
        reader = Reader(receiver)
        assert reader.turn() == []
        assert len(reader.progress) == 2
    kinesis.put(kinesis_stream, numbered(50, 60))
    with receiving(kinesis, kinesis_stream, reader.progress, starting="latest") as receiver:
        assert by_key(Reader(receiver).until(10)) == in_order(50, 60)


def test_a_moment_is_where_reading_starts(kinesis: KinesisServer, kinesis_stream: str) -> None:
    kinesis.put(kinesis_stream, numbered(0, 20))
    time.sleep(0.2)
    moment = dt.datetime.now(dt.timezone.utc)
    time.sleep(0.2)
    kinesis.put(kinesis_stream, numbered(20, 40))
    with receiving(kinesis, kinesis_stream, starting=moment) as receiver:
        assert by_key(Reader(receiver).until_drained()) == in_order(20, 40)


def test_any_other_start_is_refused(kinesis: KinesisServer, kinesis_stream: str) -> None:
    with (
        pytest.raises(SourceFailed, match="'earliest', 'latest' or a time"),
        receiving(kinesis, kinesis_stream, starting="yesterday"),
    ):
        pass


# ------------------------------------------------------------------ what was lost


def lost_positions(kinesis: KinesisServer, stream: str) -> dict[str, dict[str, str]]:
    """Stored positions that cannot be resumed, by why."""
    kinesis.put(stream, numbered(0, 20))
    with receiving(kinesis, stream) as receiver:
        reader = Reader(receiver)
        reader.until_drained()
    shard, position = sorted(reader.progress.items())[0]
    sequence = position.partition("@")[0]
    others = {name: text for name, text in reader.progress.items() if name != shard}
    return {
        "out of retention": {**others, shard: f"{sequence}@{LONG_AGO}"},
        "shard gone": {**reader.progress, "shardId-000000000099": f"{sequence}@{LONG_AGO}"},
        "created again": {**others, shard: f"1234@{dt.datetime.now(dt.timezone.utc).isoformat()}"},
        "unknown": {**others, shard: str(int(sequence) + 1)},
    }


@pytest.mark.parametrize("why", ["out of retention", "shard gone", "created again", "unknown"])
def test_what_passed_out_of_retention_is_reported_by_shard(
    kinesis: KinesisServer, kinesis_stream: str, why: str
) -> None:
    progress = lost_positions(kinesis, kinesis_stream)[why]
    with (
        pytest.raises(SourceFailed, match=r"shard shardId-0000000000\d\d .* no longer has") as caught,
        receiving(kinesis, kinesis_stream, progress) as receiver,
    ):
        Reader(receiver).until_drained()
    assert "fail_on_data_loss" in str(caught.value)


def test_loss_that_is_allowed_goes_on_with_the_oldest(kinesis: KinesisServer, kinesis_stream: str) -> None:
    for progress in lost_positions(kinesis, kinesis_stream).values():
        with receiving(kinesis, kinesis_stream, progress, fail_on_data_loss=False) as receiver:
            Reader(receiver).until_drained()


def test_a_quiet_shard_is_not_taken_for_a_loss(
    kinesis: KinesisServer, kinesis_stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ematix_flow.backends.kinesis.receiver._KNOWN_FOR", dt.timedelta(0))
    kinesis.put(kinesis_stream, numbered(0, 20))
    with receiving(kinesis, kinesis_stream) as receiver:
        reader = Reader(receiver)
        before = dict(reader.progress)
        reader.until_drained()
        reader.turn(timeout=1)
    assert reader.progress != before
    with receiving(kinesis, kinesis_stream, reader.progress) as receiver:
        assert Reader(receiver).until_drained() == []


def test_a_position_that_is_damaged_is_refused(kinesis: KinesisServer, kinesis_stream: str) -> None:
    for text in ("", "abc", "12@yesterday"):
        with (
            pytest.raises(SourceFailed, match="not a position in a Kinesis shard"),
            receiving(kinesis, kinesis_stream, {"shardId-000000000000": text}),
        ):
            pass


# ------------------------------------------------------------------ packed records


def packed(messages: list[tuple[str, bytes]]) -> bytes:
    """As Amazon's producer library packs them."""

    def field(number: int, content: bytes) -> bytes:
        assert len(content) < 128
        return bytes([number << 3 | 2, len(content)]) + content

    body = b"".join(field(1, key.encode()) for key, _ in messages)
    for index, (_, data) in enumerate(messages):
        body += field(3, bytes([1 << 3, index]) + field(3, data))
    return b"\xf3\x89\x9a\xc2" + body + hashlib.md5(body).digest()


def test_records_of_the_producer_library_are_unpacked(kinesis: KinesisServer) -> None:
    stream = kinesis.create_stream("packed", shards=1)
    kinesis.put(stream, [("a", packed([("k1", b"1"), ("k2", b"2")])), ("b", b"3")])
    with receiving(kinesis, stream) as receiver:
        messages = Reader(receiver).until(3)
    assert [(m.key, m.value) for m in messages] == [(b"k1", b"1"), (b"k2", b"2"), (b"b", b"3")]
    assert len({message.position for message in messages}) == 3
    kinesis.drop_stream(stream)


def test_packed_messages_of_another_shard_are_left_to_it(kinesis: KinesisServer, kinesis_stream: str) -> None:
    keys = [f"key-{number}" for number in range(10)]
    shards = kinesis.put(kinesis_stream, [(key, packed([(each, b"1") for each in keys])) for key in keys])
    with receiving(kinesis, kinesis_stream) as receiver:
        messages = Reader(receiver).until_drained()
    home = dict(zip([key.encode() for key in keys], shards, strict=True))
    assert {message.key: message.partition for message in messages} == home


# ------------------------------------------------------------------ what is not there


def test_a_missing_stream_says_how_to_create_it(kinesis: KinesisServer) -> None:
    backend = backend_of(kinesis, "nothing-here")
    with pytest.raises(SourceMissing, match="no Kinesis stream 'nothing-here'") as caught:
        backend.stream_source().check(ReadRequest("nothing-here"))
    assert "aws kinesis create-stream --stream-name nothing-here" in str(caught.value)
    with pytest.raises(CannotConnect, match="no Kinesis stream"):
        backend.check()


@pytest.mark.parametrize("name", ["a b", "x" * 129, "a/b", "stream\n", "arn:aws:s3:::bucket"])
def test_a_name_that_cannot_be_one_is_refused(kinesis: KinesisServer, name: str) -> None:
    with pytest.raises(SourceFailed, match="not a valid name of a Kinesis stream"):
        backend_of(kinesis, "any").stream_source().check(ReadRequest(name))


def test_the_connection_names_the_stream_when_nobody_else_does(
    kinesis: KinesisServer, kinesis_stream: str
) -> None:
    kinesis.put(kinesis_stream, [("k", b"1")])
    backend = backend_of(kinesis, kinesis_stream)
    assert "2 open shards" in backend.check()
    with closing(backend.stream_source().receiver(ReadRequest(""), {})) as receiver:
        assert isinstance(receiver, KinesisReceiver)
        assert [message.value for message in Reader(receiver).until(1)] == [b"1"]


def test_a_server_that_is_not_there_is_reported_in_bounded_time(kinesis: KinesisServer) -> None:
    dead = backend_of(kinesis, "any", endpoint=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(CannotConnect, match="cannot reach Kinesis"):
        dead.check()
    with pytest.raises(CannotConnect, match="cannot reach Kinesis"):
        dead.stream_source().receiver(ReadRequest("any"), {})


def test_no_keys_at_all_are_reported(kinesis: KinesisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for changes in ({"access_key_id": "", "secret_access_key": ""}, {"profile": "nobody"}):
        fields = {"access_key_id": "", "secret_access_key": "", **changes}
        with pytest.raises(CannotConnect, match="credentials"):
            backend_of(kinesis, "any", **fields).check()


def test_a_server_that_stays_away_is_reported_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ematix_flow.backends.kinesis.receiver.PATIENCE", 1.0)
    with running_server() as server:
        stream = server.create_stream("away", shards=2)
        server.put(stream, numbered(0, 10))
        with receiving(server, stream) as receiver:
            reader = Reader(receiver)
            reader.until(10)
            server.stop()
            with pytest.raises(CannotConnect, match="cannot reach Kinesis"):
                reader.until(11)


def test_a_stream_that_is_deleted_meanwhile_fails_the_poll(kinesis: KinesisServer) -> None:
    stream = kinesis.create_stream("deleted")
    with receiving(kinesis, stream) as receiver:
        reader = Reader(receiver)
        reader.turn()
        kinesis.drop_stream(stream)
        with pytest.raises((SourceFailed, CannotConnect)):
            reader.until(1)
