"""One subscription, pulled from. Nothing is acknowledged but by `acknowledge`.

A pull runs in a thread of its own, at most one at a time, and is never cut short: messages that a server
has already handed to a call that is given up would come again only when their deadline has passed.
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

from ematix_flow.backends.messages.contract import Message, Receiver
from ematix_flow.backends.pubsub.ack_deadlines import AckDeadlines
from ematix_flow.backends.pubsub.clients import CALL_SECONDS, close_client, short_retry
from ematix_flow.backends.pubsub.failures import TRANSIENT, UNREACHABLE, explain_error, translate_errors
from ematix_flow.backends.pubsub.names import short_name
from ematix_flow.backends.pubsub.source import Subscription
from ematix_flow.errors import CannotConnect, SourceFailed
from ematix_flow.spec.connections import PubSubConnection

MAX_PULLED = 1000
PULL_SECONDS = 20.0  # how long the service may look for a first message
LEASE_SECONDS = 60  # what a deadline is moved by; also how late a crash's messages come again at most
MAX_RECEIPTS = 1000  # receipts in a request, which may have 512 KiB
PATIENCE = 60.0  # how long the service may be away
_PAUSES = (0.1, 0.5, 1.0, 2.0)

_UTC = dt.timezone.utc
_log = logging.getLogger(__name__)


class PubSubReceiver(Receiver):
    """Receipts outlive the connection; a message that comes again has its old id and a new receipt."""

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
        self._found_nothing = False  # the last pull, and it was answered
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
        """What the service hands out, and when it was asked: leases run from then on."""
        asked = time.monotonic()
        request = {"subscription": self._subscription.path, "max_messages": count}
        try:
            answer = self._client.pull(request=request, retry=None, timeout=PULL_SECONDS)
        except e.DeadlineExceeded:  # it looked for all that time, and there was none
            return asked, []
        return asked, list(PullResponse.pb(answer).received_messages)

    def _collect_pull(self) -> None:
        """Take what a finished pull has brought."""
        if self._pulling is None or not self._pulling.done():
            return
        finished, self._pulling = self._pulling, None
        try:
            asked, received = finished.result()
        except TRANSIENT as error:
            self._wait_while_unreachable(error)
            return
        except e.GoogleAPICallError as error:
            doing = f"pull from subscription {short_name(self._subscription.path)!r}"
            raise explain_error(self._connection, doing, SourceFailed, error) from error
        self._away_since = None
        self._found_nothing = not received
        self._deadlines.start((each.ack_id for each in received), asked, self._subscription.ack_deadline)
        self._ready.extend(self._as_message(each) for each in received)

    def _wait_while_unreachable(self, error: e.GoogleAPICallError) -> None:
        """Wait a little; CannotConnect when it has been away for too long."""
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
            redelivered=received.delivery_attempt > 1,  # told only where there is a dead-letter policy
        )

    # -------------------------------------------------------------- acknowledging

    def acknowledge(self, receipts: Sequence[Any]) -> bool | None:
        """True where the subscription delivers exactly once; else what is done may still come again.

        What a service that is away was not told comes again for certain.
        """
        with translate_errors(self._connection, "acknowledge messages", SourceFailed):
            try:
                done = self._send_receipts(receipts, self._client.acknowledge)
            except UNREACHABLE as error:
                _log.warning("Pub/Sub was not told that %d messages are done: %s", len(receipts), error)
                done = False
        self._deadlines.remove(receipts)
        return done and self._subscription.exactly_once

    def nack(self, receipts: Sequence[Any]) -> None:
        """Give messages back: they come again, until a dead-letter policy moves them to its topic."""
        with translate_errors(self._connection, "give messages back", SourceFailed):
            self._send_receipts(receipts, self._client.modify_ack_deadline, ack_deadline_seconds=0)
        self._deadlines.remove(receipts)

    def keep_alive(self) -> None:
        """Ask for more time for all that is unacknowledged, before its time runs out."""
        self._collect_pull()
        now = time.monotonic()
        due = self._deadlines.due(now)
        if not due:
            return
        seconds = max(LEASE_SECONDS, self._subscription.ack_deadline)
        try:
            self._send_receipts(due, self._client.modify_ack_deadline, ack_deadline_seconds=seconds)
        except (e.GoogleAPICallError, e.RetryError) as error:  # asked again in a second
            _log.warning("Pub/Sub did not extend the deadline of %d messages: %s", len(due), error)
            return
        self._deadlines.start(due, now, seconds)

    def is_drained(self) -> bool | None:
        """Whether a pull that began after the last message has found nothing."""
        return self._found_nothing and not self._ready

    def pending(self) -> int:
        """How many messages are received and not acknowledged."""
        return len(self._deadlines)

    def _send_receipts(self, receipts: Sequence[str], call: Callable[..., Any], **what: Any) -> bool:
        """Say it of all receipts, in requests of bounded size. Receipts that are no longer valid are passed
        over; False when the service could not take some of them."""
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
                    # told of single receipts, where the subscription delivers exactly once
                    left = [each for each in left if str(answers.get(each, "")).startswith("TRANSIENT_")]
                    if not left:
                        break
                if pause is None:
                    done = False
                else:
                    time.sleep(pause)
        return done

    def close(self) -> None:
        """What is unacknowledged is given back, so that it comes again at once and not after its deadline."""
        if self._closed.is_set():
            return
        self._closed.set()
        try:
            if self._away_since is None:
                for chunk in _chunks(self._deadlines.receipts()):
                    path = self._subscription.path
                    request = {"subscription": path, "ack_ids": chunk, "ack_deadline_seconds": 0}
                    self._client.modify_ack_deadline(request=request, retry=None, timeout=CALL_SECONDS / 2)
        except e.GoogleAPICallError as error:  # it comes again when its deadline has passed
            _log.info("Pub/Sub did not take messages back: %s", error)
        finally:
            close_client(self._client)  # ends a pull that is still waiting
            self._puller.shutdown(wait=True, cancel_futures=True)


def _chunks(receipts: Sequence[str]) -> Iterator[list[str]]:
    for first in range(0, len(receipts), MAX_RECEIPTS):
        yield list(receipts[first : first + MAX_RECEIPTS])


def _as_json(attributes: Any) -> str | None:
    """In the order of names, so that a message that comes again is the same."""
    return json.dumps(dict(attributes), sort_keys=True, ensure_ascii=False) if attributes else None
