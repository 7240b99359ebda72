"""Checks whether a catalog can be reached, without Spark."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from ematix_flow.backends.iceberg.catalog_settings import token_address
from ematix_flow.backends.stores.base import Store
from ematix_flow.errors import CannotConnect
from ematix_flow.spec.connections.lakes import IcebergConnection
from ematix_probe.redaction import mask

_SECONDS = 15
_HIVE_PORT = 9083


def check_catalog(connection: IcebergConnection, store: Store | None) -> str:
    """Check the catalog and describe it; CannotConnect if it cannot be reached."""
    kind = connection.catalog_type
    shown = f"Iceberg catalog ({kind})"
    if kind == "hadoop" and store is None:
        return f"{shown} in {connection.warehouse} (not checked: this needs Spark)"
    if kind == "rest":
        _check_rest(connection)
        shown += f" at {mask(connection.uri)}"
    elif kind == "hive":
        shown += f" at {_check_port(connection)}"
    elif kind != "hadoop":
        shown += f" at {mask(connection.uri or connection.warehouse)} (not checked: this needs Spark)"
    return f"{shown}, files in {store.check()}" if store is not None else shown


def _check_port(connection: IcebergConnection) -> str:
    pieces = urllib.parse.urlsplit(connection.uri.split(",")[0])
    host, port = pieces.hostname or "", pieces.port or _HIVE_PORT
    try:
        socket.create_connection((host, port), timeout=_SECONDS).close()
    except OSError as error:
        raise CannotConnect(f"no metastore answers at {host}:{port}: {error}") from error
    return f"{host}:{port}"


def _check_rest(connection: IcebergConnection) -> None:
    """Request the configuration, which every REST catalog returns to its users."""
    uri = connection.uri.rstrip("/")
    query = urllib.parse.urlencode({"warehouse": connection.warehouse} if connection.warehouse else {})
    headers = {k[len("header.") :]: v for k, v in connection.properties.items() if k.startswith("header.")}
    token = connection.token or _request_token(connection)
    if token:
        headers["Authorization"] = f"Bearer {token}"
    where = f"{uri}/v1/config?{query}".rstrip("?")
    answer = _request_json(urllib.request.Request(where, headers=headers), connection)
    if not {"defaults", "overrides"} & answer.keys():
        raise CannotConnect(
            f"the server at {mask(uri)} is not an Iceberg REST catalog",
            next_step="give the address before /v1/config as uri",
        )


def _request_token(connection: IcebergConnection) -> str:
    if not connection.credential:
        return ""
    client, has_client, secret = connection.credential.partition(":")
    fields = {
        "grant_type": "client_credentials",
        "scope": connection.properties.get("scope", "catalog"),
        **({"client_id": client, "client_secret": secret} if has_client else {"client_secret": client}),
    }
    where = token_address(connection)
    request = urllib.request.Request(where, data=urllib.parse.urlencode(fields).encode(), method="POST")
    return str(_request_json(request, connection).get("access_token", ""))


def _request_json(request: urllib.request.Request, connection: IcebergConnection) -> Mapping[str, Any]:
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as response:
            answer: Mapping[str, Any] = json.loads(response.read())
            return answer
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            reason, step = "does not let this connection in", "check its token or credential"
        else:
            reason, step = f"answers {error.code} {error.reason}", "check its uri and warehouse"
        where = mask(connection.uri)
        raise CannotConnect(f"the REST catalog at {where} {reason}", next_step=step) from error
    except (OSError, ValueError) as error:
        reason = mask(str(getattr(error, "reason", error)))
        raise CannotConnect(f"no REST catalog answers at {mask(connection.uri)}: {reason}") from error
