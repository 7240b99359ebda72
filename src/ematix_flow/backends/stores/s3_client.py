"""One boto3 client per process and connection, created on first use and never pickled."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ematix_flow.aws.sessions import aws_session
from ematix_flow.spec.connections.lakes import S3Connection
from ematix_probe.redaction import remember_secret

if TYPE_CHECKING:
    import boto3

ATTEMPTS = 11  # with growing pauses, about half a minute in total
CONNECT_SECONDS, READ_SECONDS = 10, 60
DEFAULT_REGION = "us-east-1"
_GLOBAL_HOST = "s3.amazonaws.com"  # means the host of the region

# the fields that a client is made from; one client serves all prefixes
_CACHE_KEY_FIELDS = (
    *("endpoint", "region", "access_key_id", "secret_access_key", "session_token", "profile"),
    *("path_style", "verify_tls", "ca_cert_path", "anonymous", "requester_pays"),
)
_clients: dict[tuple[object, ...], Any] = {}
_lock = threading.Lock()


def s3_client(connection: S3Connection, attempts: int | None = None) -> Any:
    """The client of this process. A forked process gets a new one."""
    attempts = attempts or ATTEMPTS
    key = (os.getpid(), attempts, *(getattr(connection, name) for name in _CACHE_KEY_FIELDS))
    with _lock:
        if key in _clients:
            return _clients[key]
        session = _session(connection)
        client = _create_client(connection, session, attempts)
        if connection.anonymous or session.get_credentials() is not None:
            _clients[key] = client  # a client without credentials may find some when it is created again
        return client


def endpoint_of(connection: S3Connection) -> str | None:
    """The server's address; None if the region decides it."""
    given = connection.endpoint.rstrip("/")
    return None if not given or urlsplit(given).hostname == _GLOBAL_HOST else given


def frozen_credentials(connection: S3Connection) -> tuple[str, str, str]:
    """The current keys and token of the connection's profile; empty if it has none."""
    found = _session(connection).get_credentials()
    if found is None:
        return "", "", ""
    frozen = found.get_frozen_credentials()
    for secret in (frozen.secret_key, frozen.token):
        remember_secret(secret or "")
    return frozen.access_key or "", frozen.secret_key or "", frozen.token or ""


def _session(connection: S3Connection) -> boto3.Session:
    return aws_session(
        access_key_id=connection.access_key_id,
        secret_access_key=connection.secret_access_key,
        session_token=connection.session_token,
        profile=connection.profile,
        region=connection.region,
    )


def _create_client(connection: S3Connection, session: boto3.Session, attempts: int) -> Any:
    from botocore import UNSIGNED
    from botocore.config import Config

    endpoint = endpoint_of(connection)
    # other servers may not support Amazon's newer checksums
    checksums = "when_supported" if endpoint is None else "when_required"
    config = Config(
        s3={"addressing_style": "path" if connection.uses_path_style else "auto"},
        retries={"mode": "standard", "total_max_attempts": attempts},
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        max_pool_connections=32,
        request_checksum_calculation=checksums,
        response_checksum_validation=checksums,
        **({"signature_version": UNSIGNED} if connection.anonymous else {}),
    )
    client = session.client(
        "s3",
        endpoint_url=endpoint,
        region_name=session.region_name or DEFAULT_REGION,
        verify=(connection.ca_cert_path or None) if connection.verify_tls else False,
        config=config,
    )
    client.meta.events.register_first("needs-retry.s3.*", _stop_retrying_bad_certificate)
    if not connection.verify_tls:
        _silence_unverified_warnings()
    if connection.requester_pays:
        client.meta.events.register("before-call.s3.*", _add_requester_pays)
    return client


def _silence_unverified_warnings() -> None:
    """Silence urllib3's warnings: the connection declares that certificates are not verified."""
    import urllib3

    urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)


def _stop_retrying_bad_certificate(caught_exception: Exception | None = None, **others: object) -> None:
    """Do not retry after a certificate error: a retry cannot succeed."""
    if caught_exception is not None and "CERTIFICATE_VERIFY_FAILED" in str(caught_exception):
        raise caught_exception


def _add_requester_pays(params: dict[str, Any], **others: object) -> None:
    params["headers"]["x-amz-request-payer"] = "requester"
