"""Checks that a stream exists, before anything is read or sent."""

from __future__ import annotations

import re
from typing import Any

from botocore.exceptions import ClientError

from ematix_flow.aws.errors import error_code
from ematix_flow.backends.kinesis.client import short_name, stream_argument
from ematix_flow.backends.kinesis.failures import is_denied, translate_errors
from ematix_flow.errors import FlowError, SourceFailed, SourceMissing, TargetFailed, TargetMissing
from ematix_flow.spec.connections import KinesisConnection

_MISSING: dict[type[FlowError], type[FlowError]] = {SourceFailed: SourceMissing, TargetFailed: TargetMissing}
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,128}")
_ARN = re.compile(r"arn:aws[a-z-]*:kinesis:[a-z0-9-]*:\d*:stream/[A-Za-z0-9_.\-]{1,128}")


def describe_stream(
    connection: KinesisConnection, client: Any, stream: str, failed: type[FlowError]
) -> dict[str, Any] | None:
    """The service's description of a stream; None if this user may not read it.

    Raises ``failed`` when the request fails, and `SourceMissing` or `TargetMissing` when there is no stream.
    """
    absent = _MISSING.get(failed, failed)
    if not (_NAME.fullmatch(stream) or _ARN.fullmatch(stream)):
        raise absent(
            f"{stream!r} is not a valid name of a Kinesis stream",
            next_step="a name has 1 to 128 of letters, digits and  _ . -;  or it is an ARN of a stream",
        )
    with translate_errors(connection, f"describe stream {short_name(stream)!r}", failed):
        try:
            answer: dict[str, Any] = client.describe_stream_summary(**stream_argument(stream))
        except ClientError as error:
            if is_denied(error):
                return None
            if error_code(error) != "ResourceNotFoundException":
                raise
            region = client.meta.region_name
            raise absent(
                f"there is no Kinesis stream {short_name(stream)!r} in region {region}",
                next_step=f"aws kinesis create-stream --stream-name {short_name(stream)} --shard-count 1 "
                f"--region {region};  or fix the region of connection {connection.name!r}",
            ) from error
    summary: dict[str, Any] = answer["StreamDescriptionSummary"]
    return summary
