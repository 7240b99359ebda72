"""Lists every known connection, where it is defined and which definitions it hides. Reads no secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ematix_flow.config.connection_resolution import ConfigSources, DefinitionOrigin
from ematix_flow.config.dsn import dsn_of
from ematix_flow.errors import FlowError
from ematix_flow.spec.connections import Connection
from ematix_probe.redaction import mask


@dataclass(frozen=True)
class ListedConnection:
    """One connection with masked secrets. ``problem`` is why its definition is invalid."""

    name: str
    kind: str | None
    fields: dict[str, Any]
    origin: DefinitionOrigin
    shadowed: tuple[DefinitionOrigin, ...] = ()
    problem: str | None = None
    masked_dsn: str = ""

    @property
    def destination(self) -> str:
        """The server, path or bucket in one short text."""
        return _destination(self.fields)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "fields": {k: v for k, v in self.fields.items() if k not in ("kind", "name")},
            "origin": self.origin.to_json(),
            "shadowed": [origin.to_json() for origin in self.shadowed],
            "problem": self.problem,
        }


def list_definitions(places: ConfigSources) -> tuple[ListedConnection, ...]:
    """Every connection, sorted by name. Raises ConfigError only for an unreadable file."""
    return tuple(_list_connection(name, places) for name in places.names())


def _list_connection(name: str, places: ConfigSources) -> ListedConnection:
    first, *rest = places.definitions(name)
    shadowed = tuple(definition.origin for definition in rest)
    try:
        connection = first.build()
    except FlowError as error:
        problem = f"(invalid: {error.what})"
        return ListedConnection(name, None, {}, first.origin, shadowed, error.what, problem)
    fields = connection.to_json()
    return ListedConnection(
        name, connection.kind, fields, first.origin, shadowed, masked_dsn=_masked_dsn(connection, fields)
    )


def _destination(fields: Mapping[str, Any]) -> str:
    for name in ("url", "amqp_url", "path", "bootstrap_servers", "bucket", "uri", "host", "account"):
        if fields.get(name):
            return str(fields[name])
    return next((str(v) for k, v in fields.items() if k not in ("kind", "name")), "")


def _masked_dsn(connection: Connection, fields: Mapping[str, Any]) -> str:
    try:
        return mask(dsn_of(connection))
    except FlowError:  # a kind that is not one URL, such as a bucket
        return f"{connection.kind}://{_destination(fields)}"
