"""Sessions of boto3 with the keys of a connection, for S3, Kinesis and the Glue schema registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ematix_probe.redaction import remember_secret

if TYPE_CHECKING:
    import boto3


def aws_session(
    *, access_key_id: str, secret_access_key: str, session_token: str, profile: str, region: str
) -> boto3.Session:
    """A new session, whose secrets are masked from now on. The environment decides what is empty."""
    import boto3

    for secret in (secret_access_key, session_token):
        remember_secret(secret)
    return boto3.Session(
        aws_access_key_id=access_key_id or None,
        aws_secret_access_key=secret_access_key or None,
        aws_session_token=session_token or None,
        profile_name=profile or None,
        region_name=region or None,
    )
