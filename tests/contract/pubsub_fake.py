"""A server with Pub/Sub's protocol whose answers a test chooses: emulators do not fail on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.empty_pb2 import Empty
from google.pubsub_v1 import (
    AcknowledgeRequest,
    GetSubscriptionRequest,
    ModifyAckDeadlineRequest,
    PullRequest,
    PullResponse,
    Subscription,
)
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

_REQUESTS = {
    "GetSubscription": GetSubscriptionRequest,
    "Pull": PullRequest,
    "Acknowledge": AcknowledgeRequest,
    "ModifyAckDeadline": ModifyAckDeadlineRequest,
}


class Refusal(Exception):
    """The call fails with this code; ``receipts`` has the results of single receipts."""

    def __init__(self, code: grpc.StatusCode, receipts: dict[str, str] | None = None) -> None:
        self.code, self.receipts = code, receipts or {}


class FakePubSub:
    """``answers`` has one function a call: it takes the request and gives the answer, or raises Refusal."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.requests: list[tuple[str, Any]] = []
        self.answers: dict[str, Callable[[Any], Any]] = {
            "GetSubscription": lambda request: Subscription.pb()(
                name=request.subscription, topic="projects/p/topics/t", ack_deadline_seconds=10
            ),
            "Pull": lambda request: PullResponse.pb()(),
            "Acknowledge": lambda request: Empty(),
            "ModifyAckDeadline": lambda request: Empty(),
        }

    def asked(self, call: str) -> list[Any]:
        return [request for name, request in self.requests if name == call]

    def handle(self, call: str, request: Any, context: grpc.ServicerContext) -> Any:
        self.requests.append((call, request))
        try:
            return self.answers[call](request)
        except Refusal as refusal:
            detail = AnyMessage()
            detail.Pack(ErrorInfo(reason="SOME_RECEIPTS", metadata=refusal.receipts))
            details = [detail] if refusal.receipts else []
            code, _ = refusal.code.value
            context.abort_with_status(rpc_status.to_status(Status(code=code, message="no", details=details)))


def pulled(*receipts: str) -> Any:
    """An answer that hands out a message for each receipt."""
    return PullResponse.pb()(
        received_messages=[
            {"ack_id": each, "message": {"data": each.encode(), "message_id": each}} for each in receipts
        ]
    )


@contextmanager
def fake_pubsub() -> Iterator[FakePubSub]:
    fake = FakePubSub()

    def handler(call: str) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: fake.handle(call, request, context),
            request_deserializer=_REQUESTS[call].pb().FromString,
            response_serializer=lambda answer: answer.SerializeToString(),
        )

    server = grpc.server(ThreadPoolExecutor(4))
    handlers = {call: handler(call) for call in _REQUESTS}
    service = grpc.method_handlers_generic_handler("google.pubsub.v1.Subscriber", handlers)
    server.add_generic_rpc_handlers((service,))
    fake.endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield fake
    finally:
        server.stop(None).wait()
