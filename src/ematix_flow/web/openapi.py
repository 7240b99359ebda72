"""The OpenAPI 3.1 document, made of the table of endpoints that also makes the routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ematix_flow.web.endpoints import Endpoint
from ematix_flow.web.guard import BASE
from ematix_flow.web.schemas import SCHEMAS

_DESCRIPTION = (
    "What `flow web` serves. Times are UTC in ISO 8601, and secrets are masked. Lists page by the value of "
    "`next`, given as `after`. A request that changes something needs the header `X-Requested-With: "
    "ematix-flow` and an `Origin` of this server, unless it has a bearer token."
)
_WORDS = {
    400: "The request is wrong.",
    401: "No valid token.",
    403: "Not allowed: the role, the host or the origin.",
    404: "There is no such thing.",
    409: "Refused as things are now.",
    413: "The body is too large.",
    429: "Too many readers, or too many wrong tokens.",
    503: "A store or a server is away.",
}


def document(table: Sequence[Endpoint], version: str) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for each in table:
        paths.setdefault(f"{BASE}{each.path}", {})[each.method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {"title": "ematix-flow", "version": version, "description": _DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "ematix-flow-PORT",
                    "description": "Begun by POST /session. Over TLS its name is __Host-ematix-flow.",
                },
            },
        },
        "security": [{"bearer": []}, {"session": []}],
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    made: dict[str, Any] = {"summary": endpoint.summary, "responses": _responses(endpoint)}
    if endpoint.role == "operator":
        made["description"] = "For operators."
    if endpoint.parameters:
        names = endpoint.path_names
        made["parameters"] = [
            parameter.to_openapi(in_path=parameter.name in names) for parameter in endpoint.parameters
        ]
    if endpoint.body is not None:
        made["requestBody"] = {"required": True, "content": _json(endpoint.body)}
    if endpoint.role is None:
        made["security"] = []
    return made


def _responses(endpoint: Endpoint) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status in endpoint.answers:
        found[str(status)] = {"description": "Done."} | (
            {} if endpoint.answer is None else {"content": _content(endpoint)}
        )
    refusals = {*endpoint.refusals, 403} | ({401} if endpoint.role is not None else set())
    for status in sorted(refusals):
        found[str(status)] = {"description": _WORDS[status], "content": _json("Error")}
    return found


def _content(endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.media_type != "application/json":
        return {endpoint.media_type: {"schema": {"type": "string"}}}
    if endpoint.answer == "":
        return {"application/json": {"schema": {"type": "object"}}}
    return _json(endpoint.answer or "")


def _json(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
