"""Endpoints of connections: the list with masked secrets, and the check of one."""

from __future__ import annotations

from typing import Any

from ematix_flow.config import connection_definitions
from ematix_flow.errors import UnknownName, did_you_mean
from ematix_flow.web.answers import not_found
from ematix_flow.web.endpoints import Call
from ematix_flow.web.site import Site


def list_connections(site: Site, call: Call) -> dict[str, Any]:
    return {"items": [listed.to_json() for listed in connection_definitions()]}


def check_connection(site: Site, call: Call) -> dict[str, Any]:
    from ematix_flow.run.connect import time_connection

    name = call.required("name")
    names = [listed.name for listed in connection_definitions()]
    if name not in names:
        known = did_you_mean(name, names)
        raise not_found(
            UnknownName(f"there is no connection {name!r}.{known}", next_step="flow connections list")
        )
    return time_connection(name).to_json()
