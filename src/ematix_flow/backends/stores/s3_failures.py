"""Turns errors of S3 and boto3 into errors that say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ematix_flow.aws.errors import AWSConnection, error_code, error_message, http_status
from ematix_flow.errors import CannotConnect, FlowError, TargetFailed
from ematix_flow.spec.connections.lakes import S3Connection

_REGION = ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301")
_CLOCK = ("RequestTimeTooSkewed", "RequestExpired")
_MISSING = ("NoSuchKey", "404", "NotFound")
_CONDITION = ("PreconditionFailed", "412", "ConditionalRequestConflict", "409")


@contextmanager
def translate_errors(connection: S3Connection, doing: str, *, reaching: bool = False) -> Iterator[None]:
    """Turn errors of boto3 in the block into FlowErrors: CannotConnect with ``reaching``, when nothing has
    begun yet."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        raise _refused_error(connection, doing, error, reaching) from error
    except Boto3Error as error:  # a transfer wraps the client's own
        cause = error.__cause__ or error.__context__
        if isinstance(cause, ClientError):
            raise _refused_error(connection, doing, cause, reaching) from error
        raise _error(doing, str(error), reaching) from error
    except BotoCoreError as error:
        raise _unreached_error(connection, doing, error, reaching) from error


def is_missing_object(error: Any) -> bool:
    """Whether the server says that the object does not exist. A missing bucket does not count."""
    return error_code(error) in _MISSING


def is_failed_condition(error: Any) -> bool:
    """Whether the server says that a condition of the request failed."""
    return error_code(error) in _CONDITION


def is_access_denied(error: FlowError) -> bool:
    """Whether the credentials are valid, but lack the right."""
    cause = error.__cause__
    return error_code(cause) in ("AccessDenied", "403") if cause is not None else False


def _as_aws(connection: S3Connection) -> AWSConnection:
    return AWSConnection(
        name=connection.name,
        service="the S3 server",
        credentials="S3",
        address=connection.endpoint or "Amazon S3",
        keys_are_for="this server",
        credentials_step="give access_key_id and secret_access_key, a profile, or anonymous = true",
        certificate_step=f"set ca_cert_path of connection {connection.name!r} to the file of its authority",
    )


def _refused_error(connection: S3Connection, doing: str, error: Any, reaching: bool) -> FlowError:
    code, message, name = error_code(error), error_message(error), connection.name
    bucket = f"bucket {connection.bucket!r}"
    refused = _as_aws(connection).keys_error(error)
    if refused is not None:
        return refused
    if code == "NoSuchBucket":
        return CannotConnect(
            f"there is no {bucket} on the S3 server",
            next_step=f"create it, or fix the bucket of connection {name!r}; buckets are never created here",
        )
    if code in _REGION:
        there = _bucket_region(error)
        actual = f"in region {there}" if there else "in another region"
        expected = connection.region or "no region"
        return CannotConnect(
            f"{bucket} is {actual}, and connection {name!r} expects it in {expected}",
            next_step=f'write  region = "{there or "…"}"  into the connection',
        )
    if code in _CLOCK:
        return CannotConnect(
            f"the S3 server refused the request because of its time: {message}",
            next_step="set this machine's clock",
        )
    if code in ("AccessDenied", "403", "AllAccessDisabled", "AccountProblem"):
        return CannotConnect(
            f"the S3 server does not allow the user of connection {name!r} {doing}: {message}",
            next_step=f"give it the right to list, read, write and delete in {bucket}",
        )
    if code in _MISSING:  # a HEAD response has no details
        return CannotConnect(
            f"there is no {bucket} on the S3 server, or the requested object is not in it ({doing})",
            next_step=f"create it, or fix the bucket of connection {name!r}; buckets are never created here",
        )
    return _error(doing, f"the server answered {http_status(error)} {code}: {message}", reaching)


def _bucket_region(error: Any) -> str:
    response = error.response
    headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return str(headers.get("x-amz-bucket-region") or response.get("Error", {}).get("Region") or "")


def _unreached_error(connection: S3Connection, doing: str, error: Any, reaching: bool) -> FlowError:
    from botocore import exceptions as e

    explained = _as_aws(connection).client_error(error)
    if explained is not None:
        return explained
    name, where = connection.name, connection.endpoint or "Amazon S3"
    if isinstance(error, (e.ParamValidationError, e.InvalidRegionError, e.NoRegionError)):
        return CannotConnect(
            f"connection {name!r} cannot be used: {' '.join(str(error).split())}",
            next_step="fix its bucket, prefix or region",
        )
    if isinstance(error, (e.HTTPClientError, e.ConnectionError)):
        what = f"cannot reach the S3 server at {where}: {error}"
        step = f"check the endpoint of connection {name!r} and the network, and run it again"
        return CannotConnect(what, next_step=step) if reaching else TargetFailed(what, next_step=step)
    return _error(doing, str(error), reaching)


def _error(doing: str, why: str, reaching: bool) -> FlowError:
    what = f"the S3 server failed {doing}: {why}"
    step = "run it again once the server works"
    return CannotConnect(what, next_step=step) if reaching else TargetFailed(what, next_step=step)
