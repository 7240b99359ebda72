"""Sending to a topic of Google's own test server: the service itself cannot run here."""

from __future__ import annotations

import json
import pickle
from collections import defaultdict
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from ematix_flow.backends.messages.base import Message, ReadRequest, outgoing_schema
from ematix_flow.backends.pubsub.backend import PubSubStreamBackend
from ematix_flow.backends.pubsub.sender import PubSubSender
from ematix_flow.errors import CannotConnect, ConfigError, RowRejected, TargetFailed
from ematix_flow.spec.connections import PubSubConnection
from tests.services.process import free_port
from tests.services.pubsub import PROJECT, PubSubServer, Topic


def connection_to(server: PubSubServer, **changes: Any) -> PubSubConnection:
    return PubSubConnection(name="events", **{**server.connection_fields(), **changes})


def rows(*messages: tuple[bytes | None, bytes | None, dict[str, Any] | None]) -> pa.RecordBatch:
    headers = [None if each is None else json.dumps(each) for _, _, each in messages]
    columns = [
        pa.array([value for value, _, _ in messages], pa.binary()),
        pa.array([key for _, key, _ in messages], pa.binary()),
        pa.nulls(len(messages), pa.int32()),
        pa.array(headers, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=outgoing_schema())


def arrived(server: PubSubServer, topic: Topic, count: int) -> list[Message]:
    source = PubSubStreamBackend(connection_to(server)).stream_source()
    found: list[Message] = []
    with closing(source.receiver(ReadRequest(topic.subscription), {})) as receiver:
        while len(found) < count and (more := receiver.poll(1000, 5)):
            receiver.acknowledge([message.receipt for message in more])
            found += more
    return found


def test_what_is_sent_arrives_with_key_and_attributes(pubsub: PubSubServer, pubsub_topic: Topic) -> None:
    target = PubSubStreamBackend(connection_to(pubsub)).message_target()
    target.check_destination(pubsub_topic.topic)
    sender = pickle.loads(pickle.dumps(target.sender(pubsub_topic.topic, {})))
    batch = rows(
        (b"1", "ü".encode(), {"a": "x", "n": 1, "none": None}), (b"2", None, None), (None, b"k", None)
    )
    assert sender.send([batch]) == 3
    found = {message.value: message for message in arrived(pubsub, pubsub_topic, 3)}
    assert found.keys() == {b"1", b"2", b""}
    assert found[b"1"].key == "ü".encode()
    assert json.loads(found[b"1"].headers or "") == {"a": "x", "n": "1"}
    assert found[b"2"].key is None and found[b"2"].headers is None
    assert found[b""].key == b"k"


def test_twenty_thousand_messages_of_ten_keys_arrive_in_the_order_of_each(pubsub: PubSubServer) -> None:
    topic = pubsub.create_topic("ordered")
    sender = PubSubStreamBackend(connection_to(pubsub)).message_target().sender(topic.topic, {})
    messages = [(str(n).encode(), f"key-{n % 10}".encode(), None) for n in range(20_000)]
    batches = (rows(*messages[first : first + 3000]) for first in range(0, 20_000, 3000))
    assert sender.send(batches) == 20_000
    by_key: dict[bytes | None, list[int]] = defaultdict(list)
    for message in sorted(arrived(pubsub, topic, 20_000), key=lambda m: int((m.position or "").lstrip("m"))):
        by_key[message.key].append(int(message.value or b""))
    assert by_key == {f"key-{key}".encode(): list(range(key, 20_000, 10)) for key in range(10)}
    pubsub.drop_topic(topic)


def test_a_key_can_go_as_an_attribute_instead(pubsub: PubSubServer, pubsub_topic: Topic) -> None:
    target = PubSubStreamBackend(connection_to(pubsub)).message_target()
    assert target.sender(pubsub_topic.topic, {"ordering": "false"}).send([rows((b"1", b"k", None))]) == 1
    [message] = arrived(pubsub, pubsub_topic, 1)
    assert message.key is None and message.headers == '{"key": "k"}'


def test_requests_are_no_larger_than_the_service_takes(pubsub: PubSubServer, pubsub_topic: Topic) -> None:
    sender = PubSubStreamBackend(connection_to(pubsub)).message_target().sender(pubsub_topic.topic, {})
    large = [(b"x" * 1_500_000, key, None) for key in (None, None, None, b"a", b"a", b"a")]
    assert sender.send([rows(*large)]) == 6
    assert len(arrived(pubsub, pubsub_topic, 6)) == 6


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ((b"x" * 10_000_001, None, None), "message 1 has 10,000,"),
        ((None, None, None), "message 1 has no payload"),
        ((b"x", b"\xff", None), "key of message 1 is not UTF-8"),
        ((b"x", b"k" * 1025, None), "key of message 1 has 1,025 bytes"),
    ],
)
def test_a_message_that_the_service_never_takes_is_refused_by_its_number(
    pubsub: PubSubServer, pubsub_topic: Topic, message: Any, words: str
) -> None:
    sender = PubSubStreamBackend(connection_to(pubsub)).message_target().sender(pubsub_topic.topic, {})
    with pytest.raises(RowRejected, match=words):
        sender.send([rows((b"fine", None, None), message)])


def test_a_missing_topic_is_reported_before_and_while_sending(pubsub: PubSubServer) -> None:
    target = PubSubStreamBackend(connection_to(pubsub)).message_target()
    with pytest.raises(TargetFailed, match="no topic 'nothing-here'") as caught:
        target.check_destination("nothing-here")
    assert "gcloud pubsub topics create nothing-here" in str(caught.value)
    with pytest.raises(TargetFailed, match="publish 1 messages to topic 'nothing-here'"):
        target.sender("nothing-here", {}).send([rows((b"1", None, None))])


def test_a_server_that_is_not_there_fails_the_target(pubsub: PubSubServer) -> None:
    dead = connection_to(pubsub, endpoint=f"127.0.0.1:{free_port()}")
    sender = PubSubSender(dead, f"projects/{PROJECT}/topics/any", patience=1.0)
    with pytest.raises(TargetFailed, match="cannot reach Pub/Sub"):
        sender.send([rows((b"1", None, None), (b"2", b"k", None))])


def test_options_that_are_unknown_are_refused(pubsub: PubSubServer) -> None:
    target = PubSubStreamBackend(connection_to(pubsub)).message_target()
    with pytest.raises(ConfigError, match="no option 'order'"):
        target.sender("any-topic", {"order": "x"})
    with pytest.raises(ConfigError, match="true or false"):
        target.sender("any-topic", {"ordering": "maybe"})
    with pytest.raises(TargetFailed, match="not a valid name of a Pub/Sub topic"):
        target.check_destination("a b")


# ------------------------------------------------------------------ who we are


def test_the_emulator_is_found_by_googles_variable(
    pubsub: PubSubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", pubsub.endpoint)
    backend = PubSubStreamBackend(PubSubConnection(name="events", project_id=PROJECT))
    assert backend.check() == f"Google Pub/Sub, project {PROJECT}, at {pubsub.endpoint}"
    assert backend.identity() == PubSubStreamBackend(connection_to(pubsub)).identity()


def test_anonymous_access_to_the_service_itself_is_refused() -> None:
    backend = PubSubStreamBackend(PubSubConnection(name="events", project_id="p", anonymous_auth=True))
    with pytest.raises(CannotConnect, match="anonymous_auth"):
        backend.check()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot read"),
        ("no json", "no usable credentials"),
        ('{"type": "service_account", "private_key": "secret-of-mine"}', "no usable credentials"),
        ('{"type": "other"}', "neither a service account key"),
        ("[]", "neither a service account key"),
    ],
)
def test_credentials_that_cannot_be_used_are_reported_without_showing_them(
    tmp_path: Any, content: str | None, words: str
) -> None:
    path = tmp_path / "key.json"
    if content is not None:
        path.write_text(content)
    connection = PubSubConnection(name="events", project_id="p", credentials_path=str(path))
    with pytest.raises(CannotConnect, match=words) as caught:
        PubSubStreamBackend(connection).check()
    assert "secret-of-mine" not in str(caught.value)


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ("no", "not JSON"),
        ("[1]", "not a JSON object"),
        (json.dumps({str(number): "x" for number in range(101)}), "101 headers"),
        (json.dumps({"n" * 257: "x"}), "too long"),
        (json.dumps({"n": "x" * 1025}), "1,025 bytes"),
        (json.dumps({"googclient": "x"}), "does not accept"),
        (json.dumps({"": "x"}), "does not accept"),
        ('{"n": "\\ud800"}', "not valid text"),
    ],
)
def test_a_row_whose_headers_the_service_cannot_hold_is_named(headers: str, words: str) -> None:
    rows = [{"value": b"0"}, {"value": b"1", "headers": headers}]
    batch = pa.RecordBatch.from_pylist(rows, schema=outgoing_schema())
    connection = PubSubConnection(name="e", project_id="p", endpoint="127.0.0.1:1", anonymous_auth=True)
    with pytest.raises(RowRejected, match=f"message 1 .*{words}"):
        PubSubSender(connection, "projects/p/topics/t").send([batch])
