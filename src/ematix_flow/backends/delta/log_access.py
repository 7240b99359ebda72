"""How delta-rs reaches a table of a store: its URI, and the options of its file system."""

from __future__ import annotations

import re

from ematix_flow.backends.lake.direct_table import SparkNeeded
from ematix_flow.backends.stores.base import Store
from ematix_flow.backends.stores.local_store import LocalStore
from ematix_flow.spec.connections import DeltaS3Connection

_DECODED = re.compile(r"[%\\?#]")  # of a URI


def log_access(store: Store, folder: str) -> tuple[str, dict[str, str]] | SparkNeeded:
    """The URI and the options, which contain secrets: never show them."""
    unclear = _DECODED.search(store.uri(folder))
    if unclear:
        return SparkNeeded(f"delta-rs may read {unclear[0]!r} in the name of a folder as something else")
    if isinstance(store, LocalStore):
        return store.uri(folder), {}
    from ematix_flow.backends.stores.s3_store import S3Store

    if not isinstance(store, S3Store) or not isinstance(store.connection, DeltaS3Connection):
        return SparkNeeded("delta-rs does not reach this store")
    options = _s3_options(store.connection)
    if isinstance(options, SparkNeeded):
        return options
    return f"s3://{store.connection.bucket}/{store.key(folder)}", options


def _s3_options(connection: DeltaS3Connection) -> dict[str, str] | SparkNeeded:
    from ematix_flow.backends.stores.s3_client import DEFAULT_REGION, endpoint_of, frozen_credentials

    if connection.ca_cert_path:
        return SparkNeeded("delta-rs does not use ca_cert_path")
    if connection.anonymous or connection.requester_pays:
        return SparkNeeded("delta-rs writes only with keys of the bucket's own account")
    endpoint = endpoint_of(connection)
    region = connection.region or (DEFAULT_REGION if endpoint is not None else "")
    if not region:
        return SparkNeeded("the connection names no region")
    keys = (connection.access_key_id, connection.secret_access_key, connection.session_token)
    access, secret, token = keys if keys[0] else frozen_credentials(connection)
    if not access:
        return SparkNeeded("no keys are known to this process")
    options = {
        "AWS_REGION": region,
        "AWS_ACCESS_KEY_ID": access,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false" if connection.uses_path_style else "true",
        "AWS_CONDITIONAL_PUT": "etag",  # of two writers of one version, one fails
    }
    if token:
        options["AWS_SESSION_TOKEN"] = token
    if endpoint is not None:
        options["AWS_ENDPOINT_URL"] = endpoint
        options["AWS_ALLOW_HTTP"] = "true" if endpoint.startswith("http://") else "false"
    return options
