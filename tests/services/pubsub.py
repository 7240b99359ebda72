"""A private Pub/Sub server: Google's own test server ``pstest``, built once from the pinned Go module.

The service itself cannot be run outside Google. This one speaks the same gRPC, keeps everything in memory
and redelivers by deadline; it has no accounts, no limits of size and no exactly-once delivery. It takes
acknowledgement deadlines from one second, where the service wants ten.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.services.go_programs import GoProgram
from tests.services.process import ServerProcess, ServiceUnavailable, free_port, in_own_folder

PROGRAM = GoProgram("pstest", "Google's Pub/Sub test server")
PROJECT = "ematix-tests"


def find() -> Path | None:
    """The server's program: named by EMATIX_TEST_PSTEST, or the one built from this very module."""
    named = os.environ.get("EMATIX_TEST_PSTEST")
    if named:
        if not Path(named).is_file():
            raise ServiceUnavailable(f"EMATIX_TEST_PSTEST is {named}, which is not a file")
        return Path(named)
    return PROGRAM.built()


def install() -> Path:
    """Build it, with the Go that is there or else with a locked wheel of Go."""
    found = find()
    return found or PROGRAM.build()


@dataclass(frozen=True)
class Topic:
    """A topic and its subscription, by their short names."""

    topic: str
    subscription: str


class PubSubServer:
    """One server. It forgets everything when it stops; its port stays the same."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._program, self._folder = program, folder
        self._port = 0
        self._process: ServerProcess | None = None
        self._starter = ThreadPoolExecutor(1)  # a process dies with the thread that started it

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    def connection_fields(self) -> dict[str, Any]:
        """What a connection to this server is declared with."""
        return {"project_id": PROJECT, "endpoint": self.endpoint, "anonymous_auth": True}

    def start(self) -> None:
        """Start it unless it runs; back only when it answers."""
        if self.running:
            return
        for _ in range(5):  # another process may take a free port before us
            self._port = self._port or free_port()
            process = self._starter.submit(self._process_on, self._port).result()
            if self._answers(process):
                self._process = process
                return
            process.end(signal.SIGKILL)
            self._port = 0
        raise ServiceUnavailable(f"Google's Pub/Sub test server did not start:\n{process.log_tail()}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.end(signal.SIGTERM)
            self._process = None

    def publisher(self) -> Any:
        """A client for tests to create topics and publish with; close it by ``transport.close()``."""
        from google.pubsub_v1 import PublisherClient

        return PublisherClient(transport=self._transport("publisher"))

    def subscriber(self) -> Any:
        from google.pubsub_v1 import SubscriberClient

        return SubscriberClient(transport=self._transport("subscriber"))

    def create_topic(self, hint: str = "", *, ack_deadline: int = 10, **subscription: Any) -> Topic:
        """A new topic with one subscription; their names start with what is usable of the hint."""
        readable = re.sub(r"[^a-z0-9]+", "-", hint.lower())[:30].strip("-")
        name = f"t-{readable}-{secrets.token_hex(4)}".replace("--", "-")
        topic = Topic(name, f"{name}-sub")
        with self.publisher() as publisher, self.subscriber() as subscriber:
            path = f"projects/{PROJECT}/topics/{name}"
            publisher.create_topic(request={"name": path})
            subscriber.create_subscription(
                request={
                    "name": f"projects/{PROJECT}/subscriptions/{topic.subscription}",
                    "topic": path,
                    "ack_deadline_seconds": ack_deadline,
                    **subscription,
                }
            )
        return topic

    def drop_topic(self, topic: Topic) -> None:
        from google.api_core.exceptions import NotFound

        self.start()  # a test may have left it down, and it remembers nothing
        with self.publisher() as publisher, self.subscriber() as subscriber, suppress(NotFound):
            subscriber.delete_subscription(
                request={"subscription": f"projects/{PROJECT}/subscriptions/{topic.subscription}"}
            )
            publisher.delete_topic(request={"topic": f"projects/{PROJECT}/topics/{topic.topic}"})

    def publish(self, topic: Topic, messages: list[dict[str, Any]]) -> list[str]:
        """The ids of the messages, in order."""
        ids: list[str] = []
        with self.publisher() as publisher:
            for first in range(0, len(messages), 1000):
                chunk = messages[first : first + 1000]
                path = f"projects/{PROJECT}/topics/{topic.topic}"
                ids += publisher.publish(request={"topic": path, "messages": chunk}).message_ids
        return ids

    # ------------------------------------------------------------------ the process

    def _transport(self, kind: str) -> Any:
        import grpc
        from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
        from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

        made = {"publisher": PublisherGrpcTransport, "subscriber": SubscriberGrpcTransport}[kind]
        return made(channel=grpc.insecure_channel(self.endpoint, [("grpc.enable_http_proxy", 0)]))

    def _process_on(self, port: int) -> ServerProcess:
        command = [str(self._program), str(port)]
        return ServerProcess(command, None, self._folder / "server.log", dies_by=signal.SIGKILL)

    def _answers(self, process: ServerProcess) -> bool:
        """Whether the started process listens: it prints so, and ends if it cannot."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and process.running:
            if f"listening on 127.0.0.1:{self._port}" in process.log_tail():
                return True
            time.sleep(0.05)
        return False


@contextmanager
def running_server() -> Iterator[PubSubServer]:
    """A started server in its own folder; both are removed after the block, even if it fails."""
    program = find()
    if program is None:
        raise ServiceUnavailable("no Pub/Sub test server is installed: run  python -m tests.services install")
    with in_own_folder("pubsub", lambda folder: PubSubServer(program, folder)) as server:
        yield server
