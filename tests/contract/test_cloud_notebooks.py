"""Pub/Sub and Kinesis used directly, against their emulators: the services themselves cannot run here."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ematix_flow._core import KinesisBackend, PubSubBackend
from ematix_flow.errors import CannotConnect, SourceFailed, TargetFailed
from tests.services.kinesis import REGION, KinesisServer
from tests.services.pubsub import PROJECT, PubSubServer, Topic

ROWS = pa.table({"id": pa.array(range(10), pa.int64()), "name": [f"n{number}" for number in range(10)]})


def opened_pubsub(server: PubSubServer) -> PubSubBackend:
    return PubSubBackend.open(PROJECT, endpoint=server.endpoint, anonymous_auth=True)


def opened_kinesis(server: KinesisServer, stream: str, **more: object) -> KinesisBackend:
    return KinesisBackend.open(
        stream,
        region=REGION,
        endpoint=server.endpoint,
        access_key_id="tests",
        secret_access_key="anything-goes-here",
        **more,  # type: ignore[arg-type]
    )


def ids(backend: PubSubBackend | KinesisBackend, place: str, number: int) -> list[int]:
    """Of the next messages, waited for as long as it takes on a busy machine."""
    found: list[int] = []
    for batch in backend.iter_arrow_stream(place, idle_timeout=60, batch_size=number):
        found += batch.column("id").to_pylist()
        if len(found) >= number:
            break
    return sorted(found)


def test_pubsub_brings_again_what_was_not_committed(pubsub: PubSubServer, pubsub_topic: Topic) -> None:
    with opened_pubsub(pubsub) as backend:
        assert PROJECT in backend.ping()
        assert backend.write_arrow_stream(pubsub_topic.topic, ROWS) == 10
        assert ids(backend, pubsub_topic.subscription, 10) == list(range(10))
        assert backend.pending_count() == 10
    with opened_pubsub(pubsub) as backend:
        assert ids(backend, pubsub_topic.subscription, 10) == list(range(10))
        backend.commit_offsets()
        assert backend.pending_count() == 0
    with opened_pubsub(pubsub) as backend:
        assert backend.read_arrow_stream(pubsub_topic.subscription, idle_timeout=1) == []


def test_pubsub_gives_back_what_is_refused(pubsub: PubSubServer, pubsub_topic: Topic) -> None:
    pubsub.publish(pubsub_topic, [{"data": b'{"id": 1}'}])
    with opened_pubsub(pubsub) as backend:
        assert ids(backend, pubsub_topic.subscription, 1) == [1]
        assert backend.nack_pending() == 1
        assert ids(backend, pubsub_topic.subscription, 1) == [1]


def test_kinesis_goes_on_from_positions_that_were_committed(
    kinesis: KinesisServer, kinesis_stream: str
) -> None:
    with opened_kinesis(kinesis, kinesis_stream) as backend:
        assert kinesis_stream in backend.ping()
        assert backend.write_arrow_stream(kinesis_stream, ROWS, message_key_column="name") == 10
        assert ids(backend, kinesis_stream, 10) == list(range(10))
        assert backend.committed_positions() == {}
        backend.commit_offsets()
        positions = backend.committed_positions()
    assert positions
    kinesis.put(kinesis_stream, [("k", b'{"id": 99, "name": "later"}')])
    with opened_kinesis(kinesis, kinesis_stream, positions=positions) as backend:
        assert ids(backend, kinesis_stream, 1) == [99]


def test_places_that_are_missing_are_reported(pubsub: PubSubServer, kinesis: KinesisServer) -> None:
    with opened_pubsub(pubsub) as events:
        with pytest.raises(SourceFailed, match="no subscription"):
            events.read_arrow_stream("nothing-here")
        with pytest.raises(TargetFailed, match="no topic"):
            events.write_arrow_stream("nothing-here", ROWS)
    with opened_kinesis(kinesis, "nothing-here") as stream:
        with pytest.raises(CannotConnect, match="no Kinesis stream"):
            stream.ping()
        with pytest.raises(SourceFailed, match="no Kinesis stream"):
            stream.read_arrow_stream("")
        with pytest.raises(TargetFailed, match="no Kinesis stream"):
            stream.write_arrow_stream("", ROWS)
