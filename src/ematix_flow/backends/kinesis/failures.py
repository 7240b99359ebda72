"""Turns errors of Kinesis and boto3 into our errors, with the next step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from botocore import exceptions as e

from ematix_flow.aws.errors import (
    ACCESS_DENIED,
    AWSConnection,
    error_code,
    error_message,
    http_status,
    is_unreachable,
)
from ematix_flow.errors import CannotConnect, FlowError
from ematix_flow.spec.connections import KinesisConnection

THROTTLED = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "LimitExceededException",
        "ThrottlingException",
        "Throttling",
        "KMSThrottlingException",
        "RequestLimitExceeded",
    }
)
_DENIED = ACCESS_DENIED | {"KMSAccessDeniedException"}


def is_throttled(error: object) -> bool:
    return error_code(error) in THROTTLED


def is_denied(error: object) -> bool:
    return error_code(error) in _DENIED


def _as_aws(connection: KinesisConnection) -> AWSConnection:
    name = connection.name
    return AWSConnection(
        name=name,
        service="Kinesis",
        credentials="AWS",
        address=_address(connection),
        keys_are_for="this region",
        credentials_step="give access_key_id and secret_access_key, or a profile",
        certificate_step=f"set AWS_CA_BUNDLE to its authority's file, or verify_tls = false in {name!r}",
    )


def _address(connection: KinesisConnection) -> str:
    return connection.endpoint or f"AWS, region {connection.region or 'by default'}"


@contextmanager
def translate_errors(
    connection: KinesisConnection,
    doing: str,
    failed: type[FlowError],
    *,
    away: type[FlowError] = CannotConnect,
) -> Iterator[None]:
    """Turn errors of boto3 into ours: ``failed`` for a refusal, ``away`` when the service is unreachable."""
    try:
        yield
    except (e.ClientError, e.BotoCoreError) as error:
        raise explain_error(connection, doing, failed, error, away=away) from error


def explain_error(
    connection: KinesisConnection,
    doing: str,
    failed: type[FlowError],
    error: Any,
    *,
    away: type[FlowError] = CannotConnect,
) -> FlowError:
    if isinstance(error, e.ClientError):
        return _refusal(connection, doing, failed, error, away)
    return unreachable_error(connection, doing, away, error)


def _refusal(
    connection: KinesisConnection, doing: str, failed: type[FlowError], error: Any, away: type[FlowError]
) -> FlowError:
    code, words, name = error_code(error), error_message(error), connection.name
    refused = _as_aws(connection).keys_error(error)
    if refused is not None:
        return refused
    if code in _DENIED:
        return failed(
            f"Kinesis does not allow the user of connection {name!r} to {doing}: {words}",
            next_step="give it kinesis:ListShards, kinesis:GetShardIterator, kinesis:GetRecords and "
            "kinesis:DescribeStreamSummary to read, kinesis:PutRecords to send",
        )
    if is_unreachable(error):
        return away(
            f"Kinesis failed to {doing}: it answered {http_status(error)} {words}",
            next_step="run it again once the service works",
        )
    return failed(f"Kinesis refused to {doing}: {words} ({code})", next_step=f"flow connections check {name}")


def unreachable_error(
    connection: KinesisConnection, doing: str, away: type[FlowError], error: Exception
) -> FlowError:
    explained = _as_aws(connection).client_error(error)
    if explained is not None:
        return explained
    name, words = connection.name, " ".join(str(error).split())
    if isinstance(error, (e.ConnectionError, e.HTTPClientError)):
        return away(
            f"cannot reach Kinesis at {_address(connection)} ({doing}): {words}",
            next_step=f"check the endpoint and region of connection {name!r} and the network",
        )
    return CannotConnect(
        f"connection {name!r} cannot be used: {words}",
        next_step="fix its stream_name, region or endpoint",
    )
