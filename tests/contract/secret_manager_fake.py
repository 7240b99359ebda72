"""An emulator of Google Secret Manager for these tests: the one call that we make, over gRPC.

Google offers none that can be run elsewhere. It is asked with Google's own client, and fails on demand.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from google.auth.credentials import AnonymousCredentials
from google.cloud.secretmanager import (
    AccessSecretVersionRequest,
    AccessSecretVersionResponse,
    SecretManagerServiceClient,
)
from google.cloud.secretmanager_v1.services.secret_manager_service.transports import (
    SecretManagerServiceGrpcTransport,
)


class FakeSecretManager:
    """``versions`` has the bytes, or the failure, of each version by its full name."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.versions: dict[str, bytes | grpc.StatusCode] = {}
        self.asked: list[str] = []
        self.hanging = threading.Event()
        self.released = threading.Event()

    def client(self) -> SecretManagerServiceClient:
        channel = grpc.insecure_channel(self.endpoint)
        transport = SecretManagerServiceGrpcTransport(channel=channel, credentials=AnonymousCredentials())
        return SecretManagerServiceClient(transport=transport)

    def access(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.asked.append(request.name)
        if self.hanging.is_set():
            self.released.wait(60)
        found = self.versions.get(request.name, grpc.StatusCode.NOT_FOUND)
        if isinstance(found, grpc.StatusCode):
            context.abort(found, f"{found.value[1]}: {request.name}")
        return AccessSecretVersionResponse.pb()(name=request.name, payload={"data": found})


@contextmanager
def fake_secret_manager() -> Iterator[FakeSecretManager]:
    fake = FakeSecretManager()
    access = grpc.unary_unary_rpc_method_handler(
        fake.access,
        request_deserializer=AccessSecretVersionRequest.pb().FromString,
        response_serializer=lambda answer: answer.SerializeToString(),
    )
    service = grpc.method_handlers_generic_handler(
        "google.cloud.secretmanager.v1.SecretManagerService", {"AccessSecretVersion": access}
    )
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((service,))
    fake.endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield fake
    finally:
        fake.released.set()
        server.stop(None).wait()
