"""boto3 clients with timeouts for a connection; and the names of streams."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError

from ematix_flow.aws.sessions import aws_session
from ematix_flow.backends.kinesis.failures import unreachable_error
from ematix_flow.errors import CannotConnect, ConfigError
from ematix_flow.spec.connections import Connection, KinesisConnection

CONNECT_SECONDS, READ_SECONDS = 5, 20
ATTEMPTS = 3  # with growing pauses of some seconds in total
DEFAULT_REGION = "us-east-1"


def kinesis_connection(connection: Connection) -> KinesisConnection:
    if not isinstance(connection, KinesisConnection):
        raise ConfigError(f"connection {connection.name!r} is {connection.kind}, not kinesis")
    return connection


def kinesis_client(connection: KinesisConnection, *, attempts: int = ATTEMPTS, connections: int = 10) -> Any:
    """A new client. Safe for threads; the caller closes it."""
    config = Config(
        retries={"mode": "standard", "total_max_attempts": attempts},
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        max_pool_connections=connections,
    )
    try:
        session = aws_session(
            access_key_id=connection.access_key_id,
            secret_access_key=connection.secret_access_key,
            session_token=connection.session_token,
            profile=connection.profile,
            region=connection.region,
        )
        if session.region_name is None and not connection.endpoint:
            raise CannotConnect(
                f"connection {connection.name!r} has no region, and neither has the environment",
                next_step='write  region = "…"  into the connection',
            )
        client = session.client(
            "kinesis",
            endpoint_url=connection.endpoint.rstrip("/") or None,
            region_name=session.region_name or DEFAULT_REGION,
            verify=None if connection.verify_tls else False,
            config=config,
        )
    except (BotoCoreError, ValueError) as error:
        raise unreachable_error(connection, "make a client", CannotConnect, error) from error
    if not connection.verify_tls:
        import urllib3

        # the connection disables verification; a warning for each request would not help
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    return client


def shared_client(connection: KinesisConnection, *, attempts: int) -> Any:
    """One client per process, never closed: creating one takes longer than many batches."""
    return _cached_client(os.getpid(), connection, attempts)


@lru_cache(maxsize=8)
def _cached_client(process: int, connection: KinesisConnection, attempts: int) -> Any:
    return kinesis_client(connection, attempts=attempts)


def stream_argument(stream: str) -> dict[str, str]:
    """The request argument that names a stream, by name or by ARN."""
    return {"StreamARN": stream} if stream.startswith("arn:") else {"StreamName": stream}


def short_name(stream: str) -> str:
    return stream.rsplit("/", 1)[-1] if stream.startswith("arn:") else stream
