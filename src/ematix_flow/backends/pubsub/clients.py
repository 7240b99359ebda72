"""Creates the clients of a connection; the caller closes them.

These are Google's generated clients, not the higher-level ones with their own threads, so that we decide what
is sent when, and how failures are handled.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.auth.exceptions import GoogleAuthError

from ematix_flow.errors import CannotConnect, ConfigError
from ematix_flow.spec.connections import Connection, PubSubConnection

if TYPE_CHECKING:
    from google.api_core.retry import Retry
    from google.pubsub_v1 import PublisherClient, SubscriberClient

EMULATOR = "PUBSUB_EMULATOR_HOST"  # Google's own libraries use it too
SERVICE = "pubsub.googleapis.com"
CALL_SECONDS = 10.0
RETRY_SECONDS = 10.0
_SCOPES = ("https://www.googleapis.com/auth/pubsub",)
_CHANNEL = [
    ("grpc.max_receive_message_length", -1),  # a pull may return more than gRPC's default of 4 MiB
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 30_000),  # notices a server that disappears
    ("grpc.keepalive_timeout_ms", 10_000),
]


def pubsub_connection(connection: Connection) -> PubSubConnection:
    if not isinstance(connection, PubSubConnection):
        raise ConfigError(f"connection {connection.name!r} is {connection.kind}, not pubsub")
    return connection


def address_of(connection: PubSubConnection) -> str:
    """The server's address: the connection's endpoint, else the emulator's variable, else Google's."""
    given = connection.endpoint or os.environ.get(EMULATOR) or SERVICE
    return given.partition("://")[2].rstrip("/") or given if "://" in given else given


def is_emulator(connection: PubSubConnection) -> bool:
    """Whether to connect without credentials and encryption."""
    return connection.anonymous_auth or bool(os.environ.get(EMULATOR) and not connection.endpoint)


def short_retry(seconds: float | None = None) -> Retry:
    """Retries transient errors for at most ``seconds`` in total."""
    from google.api_core import exceptions as e
    from google.api_core.retry import Retry, if_exception_type

    passing = if_exception_type(e.Aborted, e.InternalServerError, e.ServiceUnavailable, e.ResourceExhausted)
    return Retry(
        predicate=passing, initial=0.1, maximum=2.0, timeout=RETRY_SECONDS if seconds is None else seconds
    )


def subscriber_client(connection: PubSubConnection) -> SubscriberClient:
    from google.pubsub_v1 import SubscriberClient
    from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

    channel = _channel(connection, SubscriberGrpcTransport)
    return SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))


def publisher_client(connection: PubSubConnection) -> PublisherClient:
    from google.pubsub_v1 import PublisherClient
    from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

    channel = _channel(connection, PublisherGrpcTransport)
    return PublisherClient(transport=PublisherGrpcTransport(channel=channel))


def close_client(client: SubscriberClient | PublisherClient) -> None:
    """Close the client's connections, and end all waiting calls."""
    transport: Any = client.transport
    transport.close()


def _channel(connection: PubSubConnection, transport: Any) -> Any:
    address = address_of(connection)
    if is_emulator(connection):
        if address == SERVICE:
            raise CannotConnect(
                f"connection {connection.name!r} has anonymous_auth, which Google's service does not accept",
                next_step=f"give the emulator's address as endpoint or in {EMULATOR}, or leave the field out",
            )
        import grpc

        return grpc.insecure_channel(address, options=_CHANNEL)
    try:
        credentials = _credentials(connection)
        host = address if ":" in address else f"{address}:443"
        return transport.create_channel(host=host, credentials=credentials, scopes=_SCOPES, options=_CHANNEL)
    except GoogleAuthError as error:
        raise CannotConnect(
            f"connection {connection.name!r} has no Google credentials: {str(error).splitlines()[0]}",
            next_step="give credentials_path, or set GOOGLE_APPLICATION_CREDENTIALS, "
            "or run  gcloud auth application-default login",
        ) from error


def _credentials(connection: PubSubConnection) -> Any:
    """The credentials of the named file; None means the application's default credentials."""
    path = connection.credentials_path
    if not path:
        return None
    from google.oauth2 import credentials, service_account

    account: Any = service_account.Credentials  # they have no types
    user: Any = credentials.Credentials
    step = f"fix credentials_path of connection {connection.name!r}"
    try:
        content = json.loads(Path(path).expanduser().read_text())
        kind = content.get("type") if isinstance(content, dict) else None
        if kind == "service_account":
            loaded = account.from_service_account_info(content, scopes=_SCOPES)
        elif kind == "authorized_user":
            loaded = user.from_authorized_user_info(content, scopes=_SCOPES)
        else:
            raise CannotConnect(
                f"{path} is neither a service account key nor user credentials",
                next_step=f"{step}; other kinds are found through GOOGLE_APPLICATION_CREDENTIALS",
            )
    except OSError as error:
        raise CannotConnect(f"cannot read {path}: {error.strerror}", next_step=step) from error
    except ValueError as error:  # also from the library for a broken key; its text may quote the file
        raise CannotConnect(f"{path} holds no usable credentials", next_step=step) from error
    return loaded
