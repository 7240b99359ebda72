"""What Kinesis answers on a bad day: throttling, iterators that expire, records that are refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from ematix_flow.backends.kinesis.backend import KinesisStreamBackend
from ematix_flow.backends.kinesis.sender import KinesisSender
from ematix_flow.backends.messages.base import ReadRequest, Receiver, outgoing_schema
from ematix_flow.errors import CannotConnect, SourceFailed, TargetFailed
from ematix_flow.spec.connections import KinesisConnection
from tests.contract.kinesis_fake import SHARD, Answer, FakeKinesis, error, fake_kinesis, records, shard


@pytest.fixture
def fake() -> Iterator[FakeKinesis]:
    with fake_kinesis() as server:
        yield server


def connection(fake: FakeKinesis) -> KinesisConnection:
    return KinesisConnection(name="k", **fake.connection_fields())


def opened(fake: FakeKinesis, **reading: Any) -> Receiver:
    return KinesisStreamBackend(connection(fake)).stream_source().receiver(ReadRequest("s", **reading), {})


def in_turn(*answers: Answer) -> Any:
    """Each answer once, then the last for ever."""
    left = list(answers)
    return lambda request: left.pop(0) if len(left) > 1 else left[0]


def rows(*values: tuple[bytes | None, bytes | None]) -> pa.RecordBatch:
    columns = [
        pa.array([value for value, _ in values], pa.binary()),
        pa.array([key for _, key in values], pa.binary()),
        pa.nulls(len(values), pa.int32()),
        pa.nulls(len(values), pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=outgoing_schema())


def polled(receiver: Receiver, count: int) -> list[str | None]:
    found: list[str | None] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        found += [message.position for message in receiver.poll(100, 0.2)]
    return found


# ------------------------------------------------------------------ reading


def test_a_shard_that_is_throttled_is_asked_again_from_the_same_place(fake: FakeKinesis) -> None:
    throttled = error("ProvisionedThroughputExceededException")
    fake.answers["GetRecords"] = in_turn(
        (200, records([1], "second")),
        *[throttled] * 8,
        (200, records([2], "third")),
        (200, records([], "end")),
    )
    with closing(opened(fake)) as receiver:
        assert polled(receiver, 2) == ["1", "2"]
    asked = [request["ShardIterator"] for name, request in fake.requests if name == "GetRecords"]
    assert set(asked[1:10]) == {"second"}


def test_an_iterator_that_has_expired_is_renewed_after_the_last_record(fake: FakeKinesis) -> None:
    fake.answers["GetRecords"] = in_turn(
        (200, records([7], "old")), error("ExpiredIteratorException"), (200, records([8], "new"))
    )
    with closing(opened(fake)) as receiver:
        assert polled(receiver, 2) == ["7", "8"]
    asked = [request for name, request in fake.requests if name == "GetShardIterator"]
    assert asked[1]["ShardIteratorType"] == "AFTER_SEQUENCE_NUMBER"
    assert asked[1]["StartingSequenceNumber"] == "7"


def test_a_shard_is_not_asked_more_than_five_times_a_second(fake: FakeKinesis) -> None:
    fake.answers["GetRecords"] = lambda request: (200, records([1], "more", behind=1000))
    with closing(opened(fake)) as receiver:
        began = time.monotonic()
        while time.monotonic() - began < 1.5:
            receiver.poll(100, 0.01)
        took = time.monotonic() - began
        assert receiver.is_drained() is False
        assert receiver.lag() == {f"s/{SHARD}": 1000}
    assert fake.count("GetRecords") <= took * 5 + 1


def test_pages_of_shards_are_all_read(fake: FakeKinesis) -> None:
    first, second = shard("shardId-000000000001"), shard("shardId-000000000002")
    fake.answers["ListShards"] = lambda request: (
        200,
        {"Shards": [second]} if "NextToken" in request else {"Shards": [first], "NextToken": "x"},
    )
    with closing(opened(fake)) as receiver:
        receiver.poll(10, 0)
        assert set(receiver.lag()) == {"s/shardId-000000000001", "s/shardId-000000000002"}
    assert {"NextToken": "x", "MaxResults": 1000} in [request for _, request in fake.requests]


def test_a_child_whose_parents_are_gone_is_read(fake: FakeKinesis) -> None:
    fake.answers["ListShards"] = lambda request: (200, {"Shards": [shard("c", "gone", "gone-too")]})
    with closing(opened(fake)) as receiver:
        receiver.poll(10, 0)
        assert set(receiver.lag()) == {"s/c"}


def test_a_merged_shard_waits_for_both_parents(fake: FakeKinesis) -> None:
    tree = [shard("a", closed=True), shard("b", closed=True), shard("c", "a", "b")]
    fake.answers["ListShards"] = lambda request: (200, {"Shards": tree})
    fake.answers["GetShardIterator"] = lambda request: (200, {"ShardIterator": request["ShardId"]})
    slow = in_turn(*[(200, records([], "b"))] * 3, (200, records([2], None)))
    by_shard = {
        "a": lambda request: (200, records([1], None)),
        "b": slow,
        "c": lambda request: (200, records([3], "c")),
    }
    fake.answers["GetRecords"] = lambda request: by_shard[request["ShardIterator"]](request)
    with closing(opened(fake)) as receiver:
        assert polled(receiver, 3) == ["1", "2", "3"]


def closing_shards(fake: FakeKinesis, *listings: Answer, ended: str = "a") -> None:
    """Shard ``ended`` ends with record 1; the others go on for ever, the record of ``c`` is 3."""
    fake.answers["ListShards"] = in_turn(*listings)
    fake.answers["GetShardIterator"] = lambda request: (200, {"ShardIterator": request["ShardId"]})
    by_shard = {
        ended: lambda request: (200, records([1], None)),
        "b": lambda request: (200, records([2], "b")),
        "c": lambda request: (200, records([3], "none")),
        "none": lambda request: (200, records([], "none")),
    }
    fake.answers["GetRecords"] = lambda request: by_shard[request["ShardIterator"]](request)


def stored(receiver: Receiver, count: int) -> tuple[list[str | None], dict[str, str]]:
    """What a caller holds who stores messages and progress of each poll that succeeds."""
    found: list[str | None] = []
    progress: dict[str, str] = {}
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        found += [message.position for message in receiver.poll(100, 0.2)]
        progress |= receiver.progress()
    return found, progress


@pytest.mark.parametrize("code", ["LimitExceededException", "AccessDeniedException"])
def test_the_last_records_of_a_shard_are_not_lost_when_shards_cannot_be_listed(
    fake: FakeKinesis, code: str
) -> None:
    tree = (200, {"Shards": [shard("a"), shard("b")]})
    closing_shards(fake, tree, error(code, "no"))
    with closing(opened(fake)) as receiver:
        found = [message.position for message in receiver.poll(100, 0.2)]
        assert sorted(map(str, found)) == ["1", "2"]
        assert receiver.progress()["a"] == "SHARD_END"
        assert receiver.is_drained() is False


def test_shards_are_listed_again_after_a_listing_was_throttled(fake: FakeKinesis) -> None:
    before = (200, {"Shards": [shard("a")]})
    after = (200, {"Shards": [shard("a", closed=True), shard("c", "a")]})
    throttled = error("LimitExceededException")
    closing_shards(fake, before, *[throttled] * 6, after)
    with closing(opened(fake)) as receiver:
        found, progress = stored(receiver, 2)
        assert found == ["1", "3"]
        assert progress["a"] == "SHARD_END"


def test_children_that_a_listing_misses_are_found_by_the_next(fake: FakeKinesis) -> None:
    before = (200, {"Shards": [shard("a")]})
    after = (200, {"Shards": [shard("a", closed=True), shard("c", "a")]})
    closing_shards(fake, before, before, before, after)
    with closing(opened(fake)) as receiver:
        assert [message.position for message in receiver.poll(100, 1)] == ["1"]
        receiver.poll(100, 0)
        assert receiver.is_drained() is False  # no shard is left, and a stream has one always
        found, _ = stored(receiver, 1)
        assert found == ["3"]
        deadline = time.monotonic() + 30
        while receiver.is_drained() is False and time.monotonic() < deadline:
            receiver.poll(100, 0.2)
        assert receiver.is_drained() is True


def test_shards_are_listed_now_and_then(fake: FakeKinesis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ematix_flow.backends.kinesis.receiver.LIST_EVERY", 0.3)
    before = (200, {"Shards": [shard("none")]})
    closing_shards(fake, before, before, (200, {"Shards": [shard("none"), shard("c")]}))
    with closing(opened(fake)) as receiver:
        assert polled(receiver, 1) == ["3"]


def test_half_of_the_children_are_not_everything(fake: FakeKinesis) -> None:
    half = {"StartingHashKey": "0", "EndingHashKey": str(2**127 - 1)}
    left = (200, {"Shards": [shard("a", closed=True), {**shard("c", "a"), "HashKeyRange": half}]})
    closing_shards(fake, (200, {"Shards": [shard("a")]}), left)
    with closing(opened(fake)) as receiver:
        assert stored(receiver, 2)[0] == ["1", "3"]
        for _ in range(3):
            receiver.poll(100, 0.3)
        assert receiver.is_drained() is False


def test_an_empty_record_is_a_value(fake: FakeKinesis) -> None:
    empty = records([1], "more")
    empty["Records"][0]["Data"] = ""
    fake.answers["GetRecords"] = lambda request: (200, empty)
    with closing(opened(fake)) as receiver:
        assert [message.value for message in receiver.poll(1, 5)] == [b""]


def test_what_one_shard_brought_is_not_lost_when_another_fails(fake: FakeKinesis) -> None:
    tree = [shard("a"), shard("b")]
    fake.answers["ListShards"] = lambda request: (200, {"Shards": tree})
    fake.answers["GetShardIterator"] = lambda request: (200, {"ShardIterator": request["ShardId"]})
    fake.answers["GetRecords"] = lambda request: (
        error("AccessDeniedException", "no") if request["ShardIterator"] == "b" else (200, records([1], "a"))
    )
    with closing(opened(fake)) as receiver:
        assert [message.position for message in receiver.poll(10, 1)] == ["1"]
        assert list(receiver.progress()) == ["a"]
        with pytest.raises(SourceFailed, match="does not allow"):
            receiver.poll(10, 1)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("UnrecognizedClientException", CannotConnect),
        ("ExpiredTokenException", CannotConnect),
        ("KMSDisabledException", SourceFailed),
    ],
)
def test_a_refusal_is_reported_in_words(fake: FakeKinesis, code: str, kind: type[Exception]) -> None:
    fake.answers["GetRecords"] = lambda request: error(code, "the reason")
    with closing(opened(fake)) as receiver, pytest.raises(kind, match="the reason"):
        receiver.poll(10, 1)


def test_a_user_who_may_not_describe_the_stream_can_read_it(fake: FakeKinesis) -> None:
    fake.answers["DescribeStreamSummary"] = lambda request: error("AccessDeniedException")
    fake.answers["GetRecords"] = lambda request: (200, records([1], "more"))
    with closing(opened(fake)) as receiver:
        assert polled(receiver, 1) == ["1"]
    assert "may not describe" in KinesisStreamBackend(connection(fake)).check()


# ------------------------------------------------------------------ sending


def taken(request: dict[str, Any], *refused: int, code: str = "InternalFailure") -> Answer:
    told = [
        {"ErrorCode": code, "ErrorMessage": "later"}
        if index in refused
        else {"SequenceNumber": "1", "ShardId": "s"}
        for index in range(len(request["Records"]))
    ]
    return 200, {"FailedRecordCount": len(refused), "Records": told}


def test_only_the_records_that_were_refused_are_sent_again(fake: FakeKinesis) -> None:
    throttled = "ProvisionedThroughputExceededException"
    answers = [lambda r: taken(r, 1, 3, code=throttled), lambda r: taken(r, 0), lambda r: taken(r)]
    fake.answers["PutRecords"] = lambda request: answers.pop(0)(request)
    batch = rows(*[(b"%d" % number, b"k%d" % number) for number in range(5)])
    assert KinesisSender(connection(fake), "s").send([batch]) == 5
    sent = [[record["PartitionKey"] for record in request["Records"]] for _, request in fake.requests]
    assert sent == [["k0", "k1", "k2", "k3", "k4"], ["k1", "k3"], ["k1"]]


def test_records_that_are_refused_for_good_fail_at_once(fake: FakeKinesis) -> None:
    fake.answers["PutRecords"] = lambda request: taken(request, 0, code="InvalidArgumentException")
    with pytest.raises(TargetFailed, match=r"1 × InvalidArgumentException.*later"):
        KinesisSender(connection(fake), "s").send([rows((b"1", b"k"), (b"2", b"k"))])
    assert fake.count("PutRecords") == 1


def test_records_that_never_get_in_are_reported_in_the_end(fake: FakeKinesis) -> None:
    fake.answers["PutRecords"] = lambda request: taken(
        request, *range(len(request["Records"])), code="ProvisionedThroughputExceededException"
    )
    with pytest.raises(TargetFailed, match="refused 2 records") as caught:
        KinesisSender(connection(fake), "s", patience=1.0).send([rows((b"1", b"k"), (b"2", b"k"))])
    assert "update-shard-count" in str(caught.value)
    assert fake.count("PutRecords") > 2


def test_requests_are_as_large_as_the_service_takes_and_no_larger(fake: FakeKinesis) -> None:
    fake.answers["PutRecords"] = taken
    small = rows(*[(b"x", b"k")] * 1201)
    large = rows(*[(b"x" * 1_000_000, b"k")] * 7)
    assert KinesisSender(connection(fake), "s").send([small, large]) == 1208
    assert [len(request["Records"]) for _, request in fake.requests] == [500, 500, 206, 2]


def test_a_sender_that_is_pickled_sends(fake: FakeKinesis) -> None:
    import pickle

    fake.answers["PutRecords"] = taken
    sender = (
        KinesisStreamBackend(connection(fake)).message_target().sender("s", {"partition_key_prefix": "p-"})
    )
    assert pickle.loads(pickle.dumps(sender)).send([rows((b"1", None), (None, None))]) == 2
    keys = [record["PartitionKey"] for record in fake.requests[0][1]["Records"]]
    assert all(key.startswith("p-") for key in keys) and len(set(keys)) == 2
