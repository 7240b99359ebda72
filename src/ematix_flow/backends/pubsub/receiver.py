"""Pulls messages from one subscription. Only `acknowledge` acknowledges them.

A pull runs in its own thread, at most one at a time, and is never cancelled: messages that the server has
already given to a cancelled call would be delivered again only after their deadline.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from google.api_core import exceptions as e
from google.pubsub_v1 import PullResponse, SubscriberClient

from ematix_flow.backends.messages.base import Message, Receiver
from ematix_flow.backends.pubsub.ack_deadlines import AckDeadlines
from ematix_flow.backends.pubsub.clients import CALL_SECONDS, close_client, short_retry
from ematix_flow.backends.pubsub.failures import TRANSIENT, UNREACHABLE, explain_error, translate_errors
from ematix_flow.backends.pubsub.names import short_name
from ematix_flow.backends.pubsub.subscription import Subscription
from ematix_flow.errors import CannotConnect, SourceFailed
from ematix_flow.spec.connections import PubSubConnection

MAX_PULLED = 1000
PULL_SECONDS = 20.0  # how long the service may wait for a first message
LEASE_SECONDS = 60  # the new deadline; also the maximum delay of redelivery after a crash
MAX_RECEIPTS = 1000  # receipts in a request, whose limit is 512 KiB
PATIENCE = 60.0  # seconds that the service may be unreachable
_PAUSES = (0.1, 0.5, 1.0, 2.0)

_UTC = dt.timezone.utc
_log = logging.getLogger(__name__)


class PubSubReceiver(Receiver):
    """Receipts stay valid without the connection; a redelivered message has its old id and a new receipt."""

    acknowledges = True

    def __init__(
        self,
        connection: PubSubConnection,
        client: SubscriberClient,
        subscription: Subscription,
    ) -> None:
        self._connection, self._client, self._subscription = connection, client, subscription
        self._deadlines = AckDeadlines()
        self._ready: deque[Message] = deque()
        self._puller = ThreadPoolExecutor(1, thread_name_prefix="pubsub-pull")
        self._pulling: Future[tuple[float, list[Any]]] | None = None
        self._away_since: float | None = None
        self._found_nothing = False  # by the last pull, which was answered
        self._closed = threading.Event()

    # -------------------------------------------------------------- receiving

    def poll(self, max_messages: int, timeout: float) -> Sequence[Message]:
        deadline = time.monotonic() + timeout
        while True:
            self.keep_alive()
            if self._ready:
                return [self._ready.popleft() for _ in range(min(max_messages, len(self._ready)))]
            if self._pulling is None:
                count = max(1, min(max_messages, MAX_PULLED))
                self._pulling = self._puller.submit(self._pull, count)
            left = deadline - time.monotonic()
            if left <= 0 and not self._pulling.done():
                return ()
            wait([self._pulling], max(0.0, min(left, 1.0)))

    def _pull(self, count: int) -> tuple[float, list[Any]]:
        """The time of the request, from which deadlines count, and the messages."""
        asked_at = time.monotonic()
        request = {"subscription": self._subscription.path, "max_messages": count}
        try:
            answer = self._client.pull(request=request, retry=None, timeout=PULL_SECONDS)
        except e.DeadlineExceeded:  # no message came in that time
            return asked_at, []
        return asked_at, list(PullResponse.pb(answer).received_messages)

    def _collect_pull(self) -> None:
        """Take the messages of a finished pull."""
        if self._pulling is None or not self._pulling.done():
            return
        finished, self._pulling = self._pulling, None
        try:
            asked_at, received = finished.result()
        except TRANSIENT as error:
            self._wait_while_unreachable(error)
            return
        except e.GoogleAPICallError as error:
            doing = f"pull from subscription {short_name(self._subscription.path)!r}"
            raise explain_error(self._connection, doing, SourceFailed, error) from error
        self._away_since = None
        self._found_nothing = not received
        self._deadlines.start((each.ack_id for each in received), asked_at, self._subscription.ack_deadline)
        self._ready.extend(self._as_message(each) for each in received)

    def _wait_while_unreachable(self, error: e.GoogleAPICallError) -> None:
        """Wait a little; CannotConnect when the service has been unreachable for too long."""
        now = time.monotonic()
        self._found_nothing = False
        self._away_since = self._away_since or now
        if now - self._away_since >= PATIENCE:
            raise explain_error(self._connection, "pull messages", CannotConnect, error) from error
        self._closed.wait(min(1.0, PATIENCE / 4))

    def _as_message(self, received: Any) -> Message:
        message = received.message
        published = message.publish_time.ToDatetime() if message.HasField("publish_time") else None
        return Message(
            value=message.data,
            key=message.ordering_key.encode() or None,
            topic=self._subscription.topic or short_name(self._subscription.path),
            partition=None,
            position=message.message_id,
            timestamp=published.replace(tzinfo=_UTC) if published else None,
            headers=_as_json(message.attributes),
            receipt=received.ack_id,
            redelivered=received.delivery_attempt > 1,  # known only with a dead-letter policy
        )

    # -------------------------------------------------------------- acknowledging

    def acknowledge(self, receipts: Sequence[Any]) -> bool | None:
        """True where the subscription delivers exactly once; else messages may still be delivered again.

        If the service is unreachable, the messages will be delivered again.
        """
        with translate_errors(self._connection, "acknowledge messages", SourceFailed):
            try:
                done = self._send_receipts(receipts, self._client.acknowledge)
            except UNREACHABLE as error:
                _log.warning("could not acknowledge %d messages to Pub/Sub: %s", len(receipts), error)
                done = False
        self._deadlines.remove(receipts)
        return done and self._subscription.exactly_once

    def nack(self, receipts: Sequence[Any]) -> None:
        """Give messages back: they are delivered again, until a dead-letter policy moves them."""
        with translate_errors(self._connection, "give messages back", SourceFailed):
            self._send_receipts(receipts, self._client.modify_ack_deadline, ack_deadline_seconds=0)
        self._deadlines.remove(receipts)

    def keep_alive(self) -> None:
        """Extend the deadlines of unacknowledged messages before they end."""
        self._collect_pull()
        now = time.monotonic()
        due = self._deadlines.due(now)
        if not due:
            return
        seconds = max(LEASE_SECONDS, self._subscription.ack_deadline)
        try:
            self._send_receipts(due, self._client.modify_ack_deadline, ack_deadline_seconds=seconds)
        except (e.GoogleAPICallError, e.RetryError) as error:  # retried in a second
            _log.warning("Pub/Sub did not extend the deadline of %d messages: %s", len(due), error)
            return
        self._deadlines.start(due, now, seconds)

    def is_drained(self) -> bool | None:
        """Whether a pull after the last message has found nothing."""
        return self._found_nothing and not self._ready

    def pending(self) -> int:
        """The number of messages that are received and not acknowledged."""
        return len(self._deadlines)

    def _send_receipts(self, receipts: Sequence[str], call: Callable[..., Any], **what: Any) -> bool:
        """Send a request for all receipts, in parts of bounded size. Receipts that are no longer valid are
        ignored; False when the service could not accept some of them."""
        done = True
        for chunk in _chunks(receipts):
            left = chunk
            for pause in (*_PAUSES, None):
                request = {"subscription": self._subscription.path, "ack_ids": left, **what}
                try:
                    call(request=request, retry=short_retry(), timeout=CALL_SECONDS)
                    break
                except e.GoogleAPICallError as error:
                    answers = getattr(error, "metadata", None) or {}
                    if not any("_FAILURE_" in str(answer) for answer in answers.values()):
                        raise
                    # errors of single receipts, where the subscription delivers exactly once
                    left = [each for each in left if str(answers.get(each, "")).startswith("TRANSIENT_")]
                    if not left:
                        break
                if pause is None:
                    done = False
                else:
                    time.sleep(pause)
        return done

    def close(self) -> None:
        """Give unacknowledged messages back, so that they are delivered again at once."""
        if self._closed.is_set():
            return
        self._closed.set()
        try:
            if self._away_since is None:
                for chunk in _chunks(self._deadlines.receipts()):
                    path = self._subscription.path
                    request = {"subscription": path, "ack_ids": chunk, "ack_deadline_seconds": 0}
                    self._client.modify_ack_deadline(request=request, retry=None, timeout=CALL_SECONDS / 2)
        except e.GoogleAPICallError as error:  # they are delivered again after their deadline
            _log.info("could not give messages back to Pub/Sub: %s", error)
        finally:
            close_client(self._client)  # ends a pull that is still waiting
            self._puller.shutdown(wait=True, cancel_futures=True)


def _chunks(receipts: Sequence[str]) -> Iterator[list[str]]:
    for first in range(0, len(receipts), MAX_RECEIPTS):
        yield list(receipts[first : first + MAX_RECEIPTS])


def _as_json(attributes: Any) -> str | None:
    """The attributes as JSON, sorted by name, so that a redelivered message has the same text."""
    return json.dumps(dict(attributes), sort_keys=True, ensure_ascii=False) if attributes else None
