"""Every connection that is known, with where it stands and what it hides. No secret is shown or fetched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ematix_flow.config.resolution import Origin, Surroundings
from ematix_flow.errors import FlowError


@dataclass(frozen=True)
class ListedConnection:
    """One name. ``fields`` are masked; ``problem`` says why the definition in force cannot be used."""

    name: str
    kind: str | None
    fields: dict[str, Any]
    origin: Origin
    shadowed: tuple[Origin, ...] = ()
    problem: str | None = None

    @property
    def target(self) -> str:
        """Where it leads, in one short text."""
        for name in ("url", "amqp_url", "path", "bootstrap_servers", "bucket", "uri", "host", "account"):
            if self.fields.get(name):
                return str(self.fields[name])
        return next((str(v) for k, v in self.fields.items() if k not in ("kind", "name")), "")

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "fields": {k: v for k, v in self.fields.items() if k not in ("kind", "name")},
            "origin": self.origin.to_json(),
            "shadowed": [origin.to_json() for origin in self.shadowed],
            "problem": self.problem,
        }


def list_definitions(places: Surroundings) -> tuple[ListedConnection, ...]:
    """Every name, sorted. Raises ConfigError only for a file that cannot be read at all."""
    return tuple(_listed(name, places) for name in places.names())


def _listed(name: str, places: Surroundings) -> ListedConnection:
    first, *rest = places.definitions(name)
    shadowed = tuple(definition.origin for definition in rest)
    try:
        connection = first.build()
    except FlowError as error:
        return ListedConnection(name, None, {}, first.origin, shadowed, error.what)
    return ListedConnection(name, connection.kind, connection.to_json(), first.origin, shadowed)
