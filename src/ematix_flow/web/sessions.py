"""Endpoints of a session: who asks, and what the server offers. `app` begins and ends sessions itself."""

from __future__ import annotations

from typing import Any

from ematix_flow.web.endpoints import Call, Endpoint
from ematix_flow.web.site import Site


def show_viewer(site: Site, call: Call) -> dict[str, Any]:
    return {
        "role": call.viewer.role,
        "read_only": site.read_only,
        "version": site.version,
        "module": site.module,
        "run_log": site.stores.location,
        "scheduler": site.with_scheduler,
        "zone": "UTC",
        "module_changed": site.files.changed(),
        "features": {
            "dead_letters": bool(site.registry.streams),
            "samples": bool(site.registry.streams) and not site.stores.is_object_store,
        },
    }


ENDPOINTS = (
    Endpoint(
        "POST",
        "/session",
        "Begin a session: the answer sets its cookie.",
        "SessionRole",
        "begin_session",
        body="Session",
        role=None,
        refusals=(400, 401, 413, 429),
    ),
    Endpoint("DELETE", "/session", "End the session of this browser.", None, "end_session", answers=(204,)),
    Endpoint("GET", "/me", "Who asks, and what this server is.", "Me", show_viewer, is_direct=True),
    Endpoint("GET", "/openapi.json", "This document.", "", "openapi"),
    Endpoint(
        "GET",
        "/events",
        "Live changes as server-sent events: of runs, streams, slots, actions and holds.",
        "Change",
        "events",
        refusals=(429,),
        media_type="text/event-stream",
    ),
)
