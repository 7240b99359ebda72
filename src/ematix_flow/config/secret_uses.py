"""Which ``${…}`` references the project uses, and where. Nothing is fetched here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from ematix_flow.config.resolution import Surroundings
from ematix_flow.errors import FlowError
from ematix_flow.spec.connections.base import Connection
from ematix_flow.spec.connections.references import REFERENCE, Expanded, split_default


@dataclass(frozen=True)
class SecretUse:
    """A reference as it is written, without its braces, and who uses it."""

    reference: str
    used_by: tuple[str, ...]

    @property
    def shown(self) -> str:
        """Without a default value, which may be a secret."""
        return split_default(self.reference)[0]


def list_uses(places: Surroundings) -> tuple[SecretUse, ...]:
    """Every reference of a connection in force, or of a setting of the project's file, each once."""
    found: dict[str, list[str]] = {}
    for text, user in (*_of_connections(places), *_of_settings(places.project_file.tables)):
        for match in REFERENCE.finditer(text):
            users = found.setdefault(match[1], [])
            if user not in users:
                users.append(user)
    return tuple(SecretUse(reference, tuple(users)) for reference, users in found.items())


def _of_connections(places: Surroundings) -> Iterator[tuple[str, str]]:
    for name in places.names():
        definition = next(iter(places.definitions(name)))
        try:
            connection = definition.build()
        except FlowError:  # one that cannot be built is a matter of `flow connections list`
            continue
        yield from _of_fields(connection, name)


def _of_fields(connection: Connection, name: str) -> Iterator[tuple[str, str]]:
    for field in fields(connection):
        value = getattr(connection, field.name)
        if isinstance(value, Connection):
            yield from _of_fields(value, f"{name}.{field.name}")
        else:
            yield from _texts(value, f"{name}.{field.name}")


def _of_settings(tables: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for table, value in tables.items():
        if table != "connections":
            yield from _texts(value, f"[{table}]")


def _texts(value: object, user: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str) and not isinstance(value, Expanded):
        yield value, user
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _texts(part, f"{user} {key}" if user.startswith("[") else f"{user}.{key}")
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts(part, user)
