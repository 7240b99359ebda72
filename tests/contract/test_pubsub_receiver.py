"""Subscriptions against Google's own test server: the service itself cannot run here."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from ematix_flow.backends.messages.base import Message, ReadRequest
from ematix_flow.backends.pubsub.backend import PubSubStreamBackend
from ematix_flow.backends.pubsub.receiver import PubSubReceiver
from ematix_flow.backends.spool.spool import Spool
from ematix_flow.errors import CannotConnect, SourceFailed, SourceMissing
from ematix_flow.spec.connections import PubSubConnection
from tests.services.process import free_port
from tests.services.pubsub import PROJECT, PubSubServer, Topic


def backend_of(server: PubSubServer, **changes: Any) -> PubSubStreamBackend:
    return PubSubStreamBackend(PubSubConnection(name="events", **{**server.connection_fields(), **changes}))


@contextmanager
def receiving(server: PubSubServer, subscription: str) -> Iterator[PubSubReceiver]:
    receiver = backend_of(server).stream_source().receiver(ReadRequest(subscription), {})
    assert isinstance(receiver, PubSubReceiver)
    with closing(receiver):
        yield receiver


def received(receiver: PubSubReceiver, count: int, *, within: float = 30) -> list[Message]:
    """So many messages, or all that came in that time."""
    found: list[Message] = []
    deadline = time.monotonic() + within
    while len(found) < count and time.monotonic() < deadline:
        found += receiver.poll(5000, 0.25)
    return found


def nothing_comes(receiver: PubSubReceiver, seconds: float) -> bool:
    return not received(receiver, 1, within=seconds)


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"data": str(number).encode()} for number in range(count)]


def test_a_message_arrives_with_its_key_id_time_and_attributes(
    pubsub: PubSubServer, pubsub_topic: Topic
) -> None:
    sent = {"data": b'{"a": 1}', "ordering_key": "Ω", "attributes": {"b": "ü", "a": "1"}}
    [message_id] = pubsub.publish(pubsub_topic, [sent])
    with receiving(pubsub, pubsub_topic.subscription) as receiver:
        [message] = received(receiver, 1)
    assert (message.value, message.key, message.position) == (b'{"a": 1}', "Ω".encode(), message_id)
    assert message.topic == pubsub_topic.topic
    assert json.loads(message.headers or "") == {"a": "1", "b": "ü"}
    assert message.timestamp is not None
    assert abs(message.timestamp - dt.datetime.now(dt.timezone.utc)) < dt.timedelta(minutes=5)


def test_a_message_without_payload_has_an_empty_one(pubsub: PubSubServer, pubsub_topic: Topic) -> None:
    pubsub.publish(pubsub_topic, [{"attributes": {"only": "this"}}])
    with receiving(pubsub, pubsub_topic.subscription) as receiver:
        [message] = received(receiver, 1)
    assert message.value == b"" and message.key is None


def test_what_is_not_acknowledged_comes_again_when_the_receiver_closes(
    pubsub: PubSubServer, pubsub_topic: Topic
) -> None:
    pubsub.publish(pubsub_topic, numbered(3))
    with receiving(pubsub, pubsub_topic.subscription) as first:
        before = received(first, 3)
        first.acknowledge([message.receipt for message in before if message.value == b"1"])
    with receiving(pubsub, pubsub_topic.subscription) as second:
        again = received(second, 2)
        assert sorted(message.value or b"" for message in again) == [b"0", b"2"]
        assert {m.position for m in again} < {m.position for m in before}
        second.acknowledge([message.receipt for message in again])
    with receiving(pubsub, pubsub_topic.subscription) as third:
        assert nothing_comes(third, 1.5)


def test_a_redelivery_equals_the_message_in_all_but_its_receipt(
    pubsub: PubSubServer, pubsub_topic: Topic
) -> None:
    attributes = {str(number): "x" for number in range(20)}
    pubsub.publish(pubsub_topic, [{"data": b"x", "ordering_key": "k", "attributes": attributes}])
    with receiving(pubsub, pubsub_topic.subscription) as receiver:
        [once] = received(receiver, 1)
        receiver.nack([once.receipt])
        [again] = received(receiver, 1)
    told_apart = {"receipt", "redelivered"}
    for name in Message.__dataclass_fields__.keys() - told_apart:
        assert getattr(once, name) == getattr(again, name), name
    assert once.receipt != again.receipt


def test_what_is_not_kept_comes_again_after_its_deadline(pubsub: PubSubServer) -> None:
    topic = pubsub.create_topic("deadline", ack_deadline=2)
    pubsub.publish(topic, numbered(1))
    with receiving(pubsub, topic.subscription) as idle, receiving(pubsub, topic.subscription) as other:
        [message] = received(idle, 1)  # and then it asks for no more time
        [again] = received(other, 1)
        assert again.position == message.position
        idle.acknowledge([message.receipt])  # a receipt that is no longer valid is no error
        other.acknowledge([again.receipt])
    pubsub.drop_topic(topic)


def test_what_is_kept_does_not_come_again(pubsub: PubSubServer) -> None:
    topic = pubsub.create_topic("kept", ack_deadline=2)
    pubsub.publish(topic, numbered(2500))
    with receiving(pubsub, topic.subscription) as keeping, receiving(pubsub, topic.subscription) as other:
        messages = received(keeping, 2500)
        until = time.monotonic() + 5
        while time.monotonic() < until:
            keeping.keep_alive()
            assert not other.poll(10, 0.2)
        assert keeping.pending() == 2500
        keeping.acknowledge([message.receipt for message in messages])
        assert keeping.pending() == 0
    pubsub.drop_topic(topic)


def test_polling_alone_keeps_what_was_polled_before(pubsub: PubSubServer) -> None:
    topic = pubsub.create_topic("polled", ack_deadline=2)
    pubsub.publish(topic, numbered(1))
    with receiving(pubsub, topic.subscription) as receiver:
        received(receiver, 1)
        assert not receiver.poll(10, 5)
    pubsub.drop_topic(topic)


def test_the_attempts_of_a_dead_letter_policy_are_seen_and_move_the_message_away(
    pubsub: PubSubServer,
) -> None:
    graves = pubsub.create_topic("graves")
    policy = {"dead_letter_topic": f"projects/{PROJECT}/topics/{graves.topic}", "max_delivery_attempts": 5}
    topic = pubsub.create_topic("mortal", dead_letter_policy=policy)
    pubsub.publish(topic, [{"data": b"bad"}])
    flags = []
    with receiving(pubsub, topic.subscription) as receiver, receiving(pubsub, graves.subscription) as grave:
        while messages := received(receiver, 1, within=2):
            flags.append(messages[0].redelivered)
            receiver.nack([messages[0].receipt])
        assert flags == [False, True, True, True, True]
        assert [message.value for message in received(grave, 1)] == [b"bad"]
    pubsub.drop_topic(topic)
    pubsub.drop_topic(graves)


def test_twenty_thousand_messages_arrive_once(pubsub: PubSubServer, pubsub_topic: Topic) -> None:
    pubsub.publish(pubsub_topic, numbered(20_000))
    found: list[Message] = []
    with receiving(pubsub, pubsub_topic.subscription) as receiver:
        while len(found) < 20_000:
            messages = received(receiver, 1)
            assert messages, f"only {len(found)} came"
            found += messages
            receiver.acknowledge([message.receipt for message in messages])
        assert nothing_comes(receiver, 1)
    assert sorted(int(message.value or b"") for message in found) == list(range(20_000))


def test_a_poll_brings_no_more_than_was_asked_for(pubsub: PubSubServer, pubsub_topic: Topic) -> None:
    pubsub.publish(pubsub_topic, numbered(10))
    with receiving(pubsub, pubsub_topic.subscription) as receiver:
        sizes = [len(receiver.poll(3, 5)) for _ in range(4)]
    assert max(sizes) <= 3 and sum(sizes) == 10


def test_a_spool_holds_every_message_once_though_it_was_restarted(
    pubsub: PubSubServer, pubsub_topic: Topic, tmp_path: Any
) -> None:
    import pyarrow.parquet as pq

    pubsub.publish(pubsub_topic, numbered(300))
    for stop_at in (100, 300):
        spool = Spool(tmp_path / "spool").open()
        receiver = (
            backend_of(pubsub)
            .stream_source()
            .receiver(ReadRequest(pubsub_topic.subscription), spool.progress())
        )
        spool.follow(receiver, max_rows=50, thread=False)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            spool.run_once(0.5)
            files = sorted(spool.segments.glob("*.parquet"))
            if sum(pq.read_metadata(file).num_rows for file in files) >= stop_at:
                break
        receiver.close()
        spool.close()
    values = [v for file in files for v in pq.read_table(file).column("value").to_pylist()]
    assert sorted(map(int, values)) == list(range(300))


# ------------------------------------------------------------------ what is not there


def test_a_missing_subscription_says_how_to_create_it(pubsub: PubSubServer) -> None:
    with pytest.raises(SourceMissing, match="no subscription 'nothing-here'") as caught:
        backend_of(pubsub).stream_source().check(ReadRequest("nothing-here"))
    assert "gcloud pubsub subscriptions create nothing-here" in str(caught.value)


@pytest.mark.parametrize("name", ["{topic}", "projects/{project}/topics/{topic}"])
def test_a_topic_is_answered_with_its_subscriptions(
    pubsub: PubSubServer, pubsub_topic: Topic, name: str
) -> None:
    query = name.format(topic=pubsub_topic.topic, project=PROJECT)
    with pytest.raises(SourceFailed, match="is a topic") as caught:
        backend_of(pubsub).stream_source().receiver(ReadRequest(query), {})
    assert pubsub_topic.subscription in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "x", "projects/p/subscriptions/a/b", "sub\n", "../x", "1abc"])
def test_a_name_that_cannot_be_one_is_refused(pubsub: PubSubServer, name: str) -> None:
    with pytest.raises(SourceFailed, match="not a valid name of a Pub/Sub subscription"):
        backend_of(pubsub).stream_source().check(ReadRequest(name))


def test_a_subscription_that_is_deleted_meanwhile_fails_the_poll(pubsub: PubSubServer) -> None:
    topic = pubsub.create_topic("deleted")
    with receiving(pubsub, topic.subscription) as receiver:
        pubsub.drop_topic(topic)
        with pytest.raises(SourceFailed, match="pull from subscription"):
            received(receiver, 1)


def test_a_server_that_is_not_there_is_reported_in_bounded_time(
    pubsub: PubSubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ematix_flow.backends.pubsub.clients.RETRY_SECONDS", 1.0)
    dead = backend_of(pubsub, endpoint=f"127.0.0.1:{free_port()}")
    with pytest.raises(CannotConnect, match="cannot reach Pub/Sub"):
        dead.check()
    with pytest.raises(CannotConnect, match="cannot reach Pub/Sub"):
        dead.stream_source().check(ReadRequest("some-subscription"))


def test_the_receiver_survives_a_restart_of_the_server(stoppable_pubsub: PubSubServer) -> None:
    server = stoppable_pubsub
    topic = server.create_topic("restart")
    with receiving(server, topic.subscription) as receiver:
        server.publish(topic, numbered(1))
        assert received(receiver, 1)
        server.stop()
        assert not receiver.poll(10, 0.5)
        server.start()  # which has forgotten everything
        with pytest.raises(SourceFailed, match="pull from subscription"):
            received(receiver, 1)


def test_a_server_that_stays_away_is_reported_in_the_end(
    stoppable_pubsub: PubSubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ematix_flow.backends.pubsub.receiver.PATIENCE", 1.0)
    server = stoppable_pubsub
    server.start()
    topic = server.create_topic("away")
    with receiving(server, topic.subscription) as receiver:
        server.stop()
        with pytest.raises(CannotConnect, match="cannot reach Pub/Sub"):
            received(receiver, 1)


@pytest.fixture(scope="module")
def stoppable_pubsub() -> Iterator[PubSubServer]:
    """A server that tests may stop."""
    from tests.services.pubsub import running_server

    with running_server() as server:
        yield server
