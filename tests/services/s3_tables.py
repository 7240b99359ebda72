"""Table buckets of the S3 server: what its Iceberg REST catalog keeps tables in."""

from __future__ import annotations

import secrets
from typing import Any

from tests.services.s3 import REGION, S3Server


def create_table_bucket(server: S3Server) -> str:
    """A new one, which takes tables and nothing else; it is gone with the server."""
    import boto3

    session = boto3.Session(server.keys.access, server.keys.secret, region_name=REGION)
    name = f"tables-{secrets.token_hex(4)}"
    session.client("s3tables", endpoint_url=server.endpoint).create_table_bucket(name=name)
    return name


def catalog_fields(server: S3Server, table_bucket: str, staging: str) -> dict[str, Any]:
    """What an Iceberg connection to the server's catalog is declared with."""
    return {
        "uri": server.iceberg_endpoint,
        "warehouse": f"s3://{table_bucket}",
        "staging": staging,
        "credential": f"{server.keys.access}:{server.keys.secret}",
        "endpoint": server.endpoint,
        "region": REGION,
        "access_key_id": server.keys.access,
        "secret_access_key": server.keys.secret,
    }
