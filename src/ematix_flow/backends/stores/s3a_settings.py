"""The settings with which a Spark session reaches a bucket through ``s3a://``.

Every setting is for one bucket, so that two connections never share keys. Settings that hold secrets have
names that Spark hides (`secret.key`, `access.key`, `session.token`) in its listings, plans, event logs and
pages. We never commit by renames, which are copies in S3, so no committer is set.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from ematix_flow.backends.stores.s3_client import DEFAULT_REGION, endpoint_of, frozen_credentials
from ematix_flow.backends.stores.s3_failures import translate_errors
from ematix_flow.errors import Unsupported
from ematix_flow.spec.connections.lakes import S3Connection

JAR_GROUPS = ("s3",)
CA_CERT_SETTING = (
    "ematix.flow.ca_cert_path."  # not a setting of Spark: the code that configures a session applies it
)

_S3A = "org.apache.hadoop.fs.s3a."
_STATIC = _S3A + "SimpleAWSCredentialsProvider"
_TEMPORARY = _S3A + "TemporaryAWSCredentialsProvider"
_ANONYMOUS = _S3A + "AnonymousAWSCredentialsProvider"
_DEFAULT_CHAIN = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"

# give up on a failing server after about half a minute
_RETRY_SETTINGS = {
    "attempts.maximum": "3",
    "retry.limit": "5",
    "retry.throttle.limit": "8",
    "connection.establish.timeout": "10s",
    "connection.timeout": "60s",
}
_ALWAYS = "path.style.access"
_NAMES = (
    "endpoint",
    "connection.ssl.enabled",
    "endpoint.region",
    "access.key",
    "secret.key",
    "session.token",
    "aws.credentials.provider",
    "requester.pays.enabled",
    _ALWAYS,
    *_RETRY_SETTINGS,
)
_BUCKET_SETTING = re.compile(rf"fs\.s3a\.bucket\.(.+)\.{re.escape(_ALWAYS)}")


def s3a_settings(connection: S3Connection) -> dict[str, str]:
    """The settings of the connection's bucket. They contain secrets: never show them."""
    if not connection.verify_tls:
        raise Unsupported(
            f"connection {connection.name!r} has verify_tls = false, and Spark always verifies the "
            "certificate of an S3 server",
            next_step="set ca_cert_path to the file of the server's authority instead",
        )
    settings = {
        _ALWAYS: _flag(connection.uses_path_style),
        "requester.pays.enabled": _flag(connection.requester_pays),
        **_RETRY_SETTINGS,
        **_credentials(connection),
    }
    endpoint = endpoint_of(connection)
    if endpoint is not None:
        settings["endpoint"] = endpoint
        settings["connection.ssl.enabled"] = _flag(endpoint.startswith("https://"))
    region = connection.region or (DEFAULT_REGION if endpoint is not None else "")
    if region:
        settings["endpoint.region"] = region
    conf = {_setting_name(connection.bucket, name): value for name, value in settings.items()}
    if connection.ca_cert_path:
        conf[CA_CERT_SETTING + connection.bucket] = os.path.abspath(
            os.path.expanduser(connection.ca_cert_path)
        )
    return conf


def settings_by_bucket(conf: Mapping[str, str]) -> dict[str, dict[str, str | None]]:
    """The settings of each bucket in ``conf``; None for a setting that must be unset."""
    buckets = sorted(found[1] for key in conf if (found := _BUCKET_SETTING.fullmatch(key)))
    return {
        bucket: {_setting_name(bucket, name): conf.get(_setting_name(bucket, name)) for name in _NAMES}
        for bucket in buckets
    }


def _setting_name(bucket: str, name: str) -> str:
    return f"fs.s3a.bucket.{bucket}.{name}"


def _credentials(connection: S3Connection) -> dict[str, str]:
    if connection.anonymous:
        return {"aws.credentials.provider": _ANONYMOUS}
    access, secret, token = connection.access_key_id, connection.secret_access_key, connection.session_token
    if connection.profile:  # Java knows fewer kinds of profiles than Python does
        with translate_errors(connection, "to use its profile", reaching=True):
            access, secret, token = frozen_credentials(connection)
    if not access:
        return {"aws.credentials.provider": _DEFAULT_CHAIN}
    keys = {"aws.credentials.provider": _STATIC, "access.key": access, "secret.key": secret}
    if token:
        keys |= {"aws.credentials.provider": _TEMPORARY, "session.token": token}
    return keys


def _flag(value: bool) -> str:
    return "true" if value else "false"
