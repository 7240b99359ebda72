"""Finds the ``${…}`` references of the project and where they are used. Reads no secret."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from ematix_flow.config.connection_resolution import ConfigSources
from ematix_flow.errors import FlowError
from ematix_flow.spec.connections.base import Connection
from ematix_flow.spec.connections.references import REFERENCE, ExpandedText, split_default


@dataclass(frozen=True)
class SecretReference:
    """A reference without its braces, and the fields and settings that use it."""

    reference: str
    used_by: tuple[str, ...]

    @property
    def reference_without_default(self) -> str:
        """The reference without its default value, which may be a secret."""
        return split_default(self.reference)[0]


def find_secret_references(places: ConfigSources) -> tuple[SecretReference, ...]:
    """Every reference in the connections in force and in the project's settings, each once."""
    found: dict[str, list[str]] = {}
    for text, user in (*_connection_texts(places), *_setting_texts(places.project_file.tables)):
        for match in REFERENCE.finditer(text):
            users = found.setdefault(match[1], [])
            if user not in users:
                users.append(user)
    return tuple(SecretReference(reference, tuple(users)) for reference, users in found.items())


def _connection_texts(places: ConfigSources) -> Iterator[tuple[str, str]]:
    for name in places.names():
        definition = next(iter(places.definitions(name)))
        try:
            connection = definition.build()
        except FlowError:  # `flow connections list` shows why it is invalid
            continue
        yield from _field_texts(connection, name)


def _field_texts(connection: Connection, name: str) -> Iterator[tuple[str, str]]:
    for field in fields(connection):
        value = getattr(connection, field.name)
        if isinstance(value, Connection):
            yield from _field_texts(value, f"{name}.{field.name}")
        else:
            yield from _texts(value, f"{name}.{field.name}")


def _setting_texts(tables: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for table, value in tables.items():
        if table != "connections":
            yield from _texts(value, f"[{table}]")


def _texts(value: object, user: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str) and not isinstance(value, ExpandedText):
        yield value, user
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _texts(part, f"{user} {key}" if user.startswith("[") else f"{user}.{key}")
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts(part, user)
