"""What Pub/Sub answers on a bad day, and how subscriptions that deliver exactly once answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty
from google.pubsub_v1 import PullResponse, Subscription

from ematix_flow.backends.messages.base import Message, ReadRequest
from ematix_flow.backends.pubsub.backend import PubSubStreamBackend
from ematix_flow.backends.pubsub.receiver import PubSubReceiver
from ematix_flow.errors import CannotConnect, SourceFailed
from ematix_flow.spec.connections import PubSubConnection
from tests.contract.pubsub_fake import FakePubSub, Refusal, fake_pubsub, pulled


@pytest.fixture
def fake() -> Iterator[FakePubSub]:
    with fake_pubsub() as server:
        yield server


def opened(fake: FakePubSub) -> PubSubReceiver:
    connection = PubSubConnection(name="e", project_id="p", endpoint=fake.endpoint, anonymous_auth=True)
    receiver = PubSubStreamBackend(connection).stream_source().receiver(ReadRequest("subscription"), {})
    assert isinstance(receiver, PubSubReceiver)
    return receiver


def once(answer: Any) -> Any:
    """That answer, and then nothing any more."""
    left = [answer]
    return lambda request: left.pop() if left else PullResponse.pb()()


def received(receiver: PubSubReceiver, count: int, timeout: float = 0.2) -> list[Message]:
    found: list[Message] = []
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        found += receiver.poll(1000, timeout)
    return found


def exactly_once(request: Any) -> Any:
    return Subscription.pb()(
        name=request.subscription,
        topic="projects/p/topics/t",
        ack_deadline_seconds=10,
        enable_exactly_once_delivery=True,
    )


def test_a_pull_is_not_cut_short_by_impatient_polls(fake: FakePubSub) -> None:
    answers = threading.Event()

    def slow(request: Any) -> Any:
        answers.wait(20)
        return pulled("a")

    fake.answers["Pull"] = slow
    with closing(opened(fake)) as receiver:
        for _ in range(5):
            assert receiver.poll(10, 0.01) == ()
        fake.answers["Pull"] = once(PullResponse.pb()())
        answers.set()
        assert [message.receipt for message in received(receiver, 1, 0.01)] == ["a"]
    assert len(fake.asked("Pull")) <= 2


def test_more_than_was_asked_for_waits_for_the_next_poll(fake: FakePubSub) -> None:
    fake.answers["Pull"] = once(pulled("a", "b", "c"))
    with closing(opened(fake)) as receiver:
        assert len(receiver.poll(2, 5)) == 2
        assert len(receiver.poll(2, 5)) == 1
        assert receiver.pending() == 3


def test_what_is_unacknowledged_is_given_back_at_the_end(fake: FakePubSub) -> None:
    fake.answers["Pull"] = once(pulled("a", "b"))
    with closing(opened(fake)) as receiver:
        received(receiver, 2)
        receiver.acknowledge(["a"])
    [request] = fake.asked("ModifyAckDeadline")
    assert (list(request.ack_ids), request.ack_deadline_seconds) == (["b"], 0)


def test_receipts_go_in_requests_of_bounded_size(fake: FakePubSub) -> None:
    fake.answers["Pull"] = once(pulled(*[str(number) for number in range(2500)]))
    with closing(opened(fake)) as receiver:
        messages: list[Message] = received(receiver, 2500)
        assert receiver.acknowledge([message.receipt for message in messages]) is not True
    assert [len(request.ack_ids) for request in fake.asked("Acknowledge")] == [1000, 1000, 500]


def test_exactly_once_tells_which_receipts_failed_for_good_and_which_for_now(fake: FakePubSub) -> None:
    fake.answers["GetSubscription"] = exactly_once
    fake.answers["Pull"] = once(pulled("good", "old", "busy"))
    left = [
        Refusal(
            grpc.StatusCode.FAILED_PRECONDITION,
            {"old": "PERMANENT_FAILURE_INVALID_ACK_ID", "busy": "TRANSIENT_FAILURE_UNORDERED_ACK_ID"},
        )
    ]

    def acknowledge(request: Any) -> Any:
        if left:
            raise left.pop()
        return Empty()

    fake.answers["Acknowledge"] = acknowledge
    with closing(opened(fake)) as receiver:
        received(receiver, 3)
        assert receiver.acknowledge(["good", "old", "busy"]) is True
        assert receiver.pending() == 0
    assert [list(request.ack_ids) for request in fake.asked("Acknowledge")] == [
        ["good", "old", "busy"],
        ["busy"],
    ]


def test_an_acknowledgement_that_is_refused_is_reported(fake: FakePubSub) -> None:
    def refuse(request: Any) -> Any:
        raise Refusal(grpc.StatusCode.PERMISSION_DENIED)

    fake.answers["Acknowledge"] = refuse
    with closing(opened(fake)) as receiver, pytest.raises(SourceFailed, match="acknowledge messages"):
        receiver.acknowledge(["a"])


def test_an_acknowledgement_that_does_not_arrive_is_no_failure(
    fake: FakePubSub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ematix_flow.backends.pubsub.clients.RETRY_SECONDS", 0.5)

    def refuse(request: Any) -> Any:
        raise Refusal(grpc.StatusCode.UNAVAILABLE)

    fake.answers["GetSubscription"] = exactly_once
    fake.answers["Pull"] = once(pulled("a"))
    fake.answers["Acknowledge"] = refuse
    with closing(opened(fake)) as receiver:
        received(receiver, 1)
        assert receiver.acknowledge(["a"]) is False
        assert receiver.pending() == 0


def test_a_service_that_is_busy_for_a_while_is_asked_again(fake: FakePubSub) -> None:
    left = [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL]
    message = once(pulled("a"))

    def pull(request: Any) -> Any:
        if left:
            raise Refusal(left.pop())
        return message(request)

    fake.answers["Pull"] = pull
    with closing(opened(fake)) as receiver:
        assert len(received(receiver, 1)) == 1


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, CannotConnect, "refused the credentials"),
        (grpc.StatusCode.PERMISSION_DENIED, SourceFailed, "not allowed"),
        (grpc.StatusCode.NOT_FOUND, SourceFailed, "pull from subscription"),
    ],
)
def test_a_refusal_is_reported_in_words(
    fake: FakePubSub, code: grpc.StatusCode, kind: type[Exception], words: str
) -> None:
    def pull(request: Any) -> Any:
        raise Refusal(code)

    fake.answers["Pull"] = pull
    with closing(opened(fake)) as receiver, pytest.raises(kind, match=words):
        received(receiver, 1)


def test_it_is_drained_when_a_pull_after_the_last_message_finds_nothing(fake: FakePubSub) -> None:
    answers = threading.Event()
    first = once(pulled("a", "b"))

    def pull(request: Any) -> Any:
        if len(fake.asked("Pull")) != 2:
            return first(request)
        answers.wait(20)
        return PullResponse.pb()()

    fake.answers["Pull"] = pull
    with closing(opened(fake)) as receiver:
        assert receiver.is_drained() is False  # nothing has been requested yet
        assert len(receiver.poll(1, 5)) == 1
        assert receiver.is_drained() is False  # one waits here
        assert len(receiver.poll(1, 5)) == 1
        assert receiver.poll(1, 0.2) == ()
        assert receiver.is_drained() is False  # the second pull has not answered
        answers.set()
        deadline = time.monotonic() + 30
        while not receiver.is_drained() and time.monotonic() < deadline:
            assert not receiver.poll(1, 0.1)
        assert receiver.is_drained() is True


def test_a_service_that_is_away_is_not_drained(fake: FakePubSub) -> None:
    def refuse(request: Any) -> Any:
        raise Refusal(grpc.StatusCode.UNAVAILABLE)

    with closing(opened(fake)) as receiver:
        while not receiver.is_drained():
            receiver.poll(1, 0.1)
        fake.answers["Pull"] = refuse
        receiver.poll(1, 1.0)
        assert receiver.is_drained() is False


def test_an_empty_payload_is_a_value(fake: FakePubSub) -> None:
    answer = pulled("a")
    answer.received_messages[0].message.data = b""
    fake.answers["Pull"] = once(answer)
    with closing(opened(fake)) as receiver:
        assert [message.value for message in received(receiver, 1)] == [b""]


def test_who_may_pull_and_not_look_can_pull(fake: FakePubSub) -> None:
    def refuse(request: Any) -> Any:
        raise Refusal(grpc.StatusCode.PERMISSION_DENIED)

    fake.answers["GetSubscription"] = refuse
    fake.answers["Pull"] = once(pulled("a"))
    with closing(opened(fake)) as receiver:
        assert len(received(receiver, 1)) == 1


def test_a_subscription_that_delivers_by_itself_is_refused(fake: FakePubSub) -> None:
    fake.answers["GetSubscription"] = lambda request: Subscription.pb()(
        name=request.subscription,
        topic="projects/p/topics/t",
        push_config={"push_endpoint": "https://example.com/push"},
    )
    with pytest.raises(SourceFailed, match="delivers by itself"):
        opened(fake)
