"""Turns errors of Kinesis and boto3 into our errors, with the next step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from botocore import exceptions as e

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
_BAD_KEYS = frozenset(
    {
        "UnrecognizedClientException",
        "InvalidSignatureException",
        "InvalidClientTokenId",
        "MissingAuthenticationTokenException",
        "IncompleteSignatureException",
    }
)
_EXPIRED_KEYS = frozenset({"ExpiredTokenException", "ExpiredToken"})
_DENIED = frozenset({"AccessDeniedException", "AccessDenied", "KMSAccessDeniedException"})


def code_of(error: object) -> str:
    response = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


def message_text(error: object) -> str:
    response = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Message") or "").rstrip(".") or code_of(error)


def is_throttled(error: object) -> bool:
    return code_of(error) in THROTTLED


def is_denied(error: object) -> bool:
    return code_of(error) in _DENIED


def is_unreachable(error: object) -> bool:
    """Whether the server was not reached, or answered with a server error."""
    if isinstance(error, e.SSLError):
        return False
    if isinstance(error, (e.ConnectionError, e.HTTPClientError)):
        return True
    status = (getattr(error, "response", None) or {}).get("ResponseMetadata", {}).get("HTTPStatusCode") or 0
    return int(status) >= 500


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
    code, words, name = code_of(error), message_text(error), connection.name
    if code in _BAD_KEYS:
        return CannotConnect(
            f"Kinesis refused the access keys of connection {name!r}: {words}",
            next_step="check access_key_id and secret_access_key, and that they are for this region",
        )
    if code in _EXPIRED_KEYS:
        return CannotConnect(
            f"the AWS credentials of connection {name!r} are no longer valid: {words}",
            next_step="get new ones (a session token expires after some hours), and run it again",
        )
    if code in _DENIED:
        return failed(
            f"Kinesis does not allow the user of connection {name!r}: {doing}: {words}",
            next_step="give it kinesis:ListShards, kinesis:GetShardIterator, kinesis:GetRecords and "
            "kinesis:DescribeStreamSummary to read, kinesis:PutRecords to send",
        )
    if is_unreachable(error):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return away(
            f"Kinesis has an error ({doing}): it answered {status} {words}",
            next_step="run it again once the service works",
        )
    return failed(f"Kinesis refused: {doing}: {words} ({code})", next_step=f"flow connections check {name}")


def unreachable_error(
    connection: KinesisConnection, doing: str, away: type[FlowError], error: Exception
) -> FlowError:
    name, where = connection.name, connection.endpoint or f"AWS, region {connection.region or 'by default'}"
    words = " ".join(str(error).split())
    if isinstance(error, e.SSLError):
        return CannotConnect(
            f"cannot trust the certificate of {where}: {words}",
            next_step=f"set AWS_CA_BUNDLE to its authority's file, or verify_tls = false in {name!r}",
        )
    if isinstance(error, (e.NoCredentialsError, e.PartialCredentialsError)):
        return CannotConnect(
            f"connection {name!r} has no AWS credentials: no keys are given, and none are in the "
            "environment, the profile or the machine's role",
            next_step="give access_key_id and secret_access_key, or a profile",
        )
    if isinstance(error, (e.ProfileNotFound, e.CredentialRetrievalError, e.TokenRetrievalError, e.SSOError)):
        return CannotConnect(
            f"cannot get the AWS credentials of connection {name!r}: {words}",
            next_step="fix the profile, or sign in again, and run it again",
        )
    if isinstance(error, (e.ConnectionError, e.HTTPClientError)):
        return away(
            f"cannot reach Kinesis at {where} ({doing}): {words}",
            next_step=f"check the endpoint and region of connection {name!r} and the network",
        )
    return CannotConnect(
        f"connection {name!r} cannot be used: {words}",
        next_step="fix its stream_name, region or endpoint",
    )
