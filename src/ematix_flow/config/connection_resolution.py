"""Decides which definition of a connection's name is in force, for batch pipelines and streams.

In this order: ``EMATIX_FLOW_DSN_<NAME>``, ``EMATIX_FLOW_DSN`` for ``default``, ``.ematix-flow.toml`` in the
working directory, ``~/.ematix-flow/connections.toml``, connections declared in Python. The first source that
defines the name wins; definitions are not merged. ``${…}`` references are not replaced here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from ematix_flow.config.home_folder import home_folder
from ematix_flow.config.interpolate import expand, reads_environment_only
from ematix_flow.config.toml_file import TomlFile, read_toml
from ematix_flow.config.working_folder import working_folder
from ematix_flow.errors import ConfigError, DeclarationError, MissingSecret, UnknownConnection, did_you_mean
from ematix_flow.spec.connections import Connection, connection_from_mapping, kind_of_scheme
from ematix_flow.spec.location import SourceLocation

PROJECT_FILE = ".ematix-flow.toml"
CONNECTION_NAME = re.compile(r"[A-Za-z_][\w-]*")
USER_FILE = Path(".ematix-flow") / "connections.toml"
ENV_DSN = "EMATIX_FLOW_DSN"


class RegisteredConnection(Protocol):
    """A connection declared in this process, and where."""

    @property
    def connection(self) -> Connection: ...

    @property
    def where(self) -> SourceLocation | None: ...


_registered_connections: Callable[[], Mapping[str, RegisteredConnection]] = dict


def set_registered_connections(source: Callable[[], Mapping[str, RegisteredConnection]]) -> None:
    """Set the function that returns the connections declared in this process.

    Their registry is in a higher layer, which calls this.
    """
    global _registered_connections
    _registered_connections = source


def registered_connections() -> Mapping[str, RegisteredConnection]:
    """The connections declared in this process, by name."""
    return _registered_connections()


@dataclass(frozen=True)
class DefinitionOrigin:
    """Where a definition comes from; prints as ``env EMATIX_FLOW_DSN_X`` or ``file:line``."""

    source: str  # env, project_file, user_file, registered or instance
    label: str
    where: SourceLocation | None = None

    def __str__(self) -> str:
        return self.label

    def to_json(self) -> dict[str, Any]:
        return {"source": self.source, "label": self.label}


@dataclass(frozen=True)
class ResolvedConnection:
    """The connection in force, where it is defined, and the definitions that it hides."""

    connection: Connection
    origin: DefinitionOrigin
    shadowed: tuple[DefinitionOrigin, ...] = ()


@dataclass(frozen=True)
class ConnectionDefinition:
    """One definition of a name, not built yet: an unused definition may be invalid."""

    name: str
    origin: DefinitionOrigin
    build: Callable[[], Connection]


@dataclass(frozen=True)
class ConfigSources:
    """The sources of definitions, each read once: by default those of this process."""

    registered: Mapping[str, RegisteredConnection] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)
    cwd: Path = field(default_factory=working_folder)
    home: Path | None = None

    @cached_property
    def project_file(self) -> TomlFile:
        return read_toml(self.cwd / PROJECT_FILE)

    @cached_property
    def user_file(self) -> TomlFile:
        return read_toml((self.home or home_folder(self.env)) / USER_FILE)

    def names(self) -> tuple[str, ...]:
        """Every name that a source defines, sorted."""
        names = {*self.registered, *connection_tables(self.project_file), *connection_tables(self.user_file)}
        used_variables = {env_variable(name) for name in names}
        for variable, value in self.env.items():
            if variable.startswith(f"{ENV_DSN}_") and value and variable not in used_variables:
                names.add(variable.removeprefix(f"{ENV_DSN}_").lower())
        if self.env.get(ENV_DSN):
            names.add("default")
        return tuple(sorted(names))

    def definitions(self, name: str) -> Iterator[ConnectionDefinition]:
        """The definitions of a name, the one in force first."""
        variables = [env_variable(name)] + ([ENV_DSN] if name == "default" else [])
        for variable in variables:
            dsn = self.env.get(variable)
            if dsn:
                origin = DefinitionOrigin("env", f"env {variable}")
                yield ConnectionDefinition(name, origin, self._builder(name, {"url": dsn}, origin))
        for source, file in (("project_file", self.project_file), ("user_file", self.user_file)):
            tables = connection_tables(file)
            if name in tables:
                where = file.where("connections", name)
                origin = DefinitionOrigin(source, str(where), where)
                yield ConnectionDefinition(name, origin, self._builder(name, tables[name], origin))
        if name in self.registered:
            declared = self.registered[name]
            label = str(declared.where) if declared.where else "registered in this process"
            origin = DefinitionOrigin("registered", label, declared.where)
            yield ConnectionDefinition(name, origin, lambda: declared.connection)

    def describe_search(self, name: str) -> str:
        """The sources that were searched, for an error."""
        variables = env_variable(name) + (f", {ENV_DSN}" if name == "default" else "")
        files = ", ".join(
            f"{file.path} ({len(connection_tables(file))} connections)"
            if file.exists
            else f"{file.path} (not there)"
            for file in (self.project_file, self.user_file)
        )
        declared = f"{len(self.registered)} declared in Python"
        return f"searched: environment ({variables}), {files}, {declared}"

    def _builder(self, name: str, table: object, origin: DefinitionOrigin) -> Callable[[], Connection]:
        def build() -> Connection:
            mapping = {"url": table} if isinstance(table, str) else table
            if not isinstance(mapping, Mapping):
                raise ConfigError(f"connection {name!r} is neither a table nor a URL", where=origin.where)
            try:
                return connection_from_mapping(
                    name, with_kind_from_url(name, mapping, self.env), origin.where
                )
            except DeclarationError as error:
                at = "" if origin.where else f" ({origin})"
                raise ConfigError(error.what + at, where=origin.where, next_step=error.next_step) from None

        return build


def resolve_connection(
    value: str | Connection,
    *,
    registered: Mapping[str, RegisteredConnection],
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    home: Path | None = None,
) -> ResolvedConnection:
    """The connection in force for a name or an instance.

    A registered instance is looked up by its name, so that an environment variable can redirect it. Any other
    instance is used as it is. Raises UnknownConnection for a name that no source defines.
    """
    places = ConfigSources(registered, os.environ if env is None else env, cwd or working_folder(), home)
    if isinstance(value, Connection):
        declared = registered.get(value.name)
        if declared is None or declared.connection != value:
            where = value.declared_at
            label = str(where) if where else "given in Python"
            return ResolvedConnection(value, DefinitionOrigin("instance", label, where))
        value = value.name
    found = list(places.definitions(value))
    if not found:
        raise UnknownConnection(
            f"no connection is named {value!r}.{did_you_mean(value, places.names())}",
            state=places.describe_search(value),
            next_step=f"export {env_variable(value)}=postgres://…   or   flow connections set {value} url=…"
            if CONNECTION_NAME.fullmatch(value)
            else "flow connections list  shows all connections",
        )
    return ResolvedConnection(found[0].build(), found[0].origin, tuple(d.origin for d in found[1:]))


def env_variable(name: str) -> str:
    """The variable that redirects a connection: ``raw-db`` is EMATIX_FLOW_DSN_RAW_DB."""
    return f"{ENV_DSN}_{re.sub('[^A-Z0-9]', '_', name.upper())}"


def with_kind_from_url(
    name: str, mapping: Mapping[str, Any], env: Mapping[str, str], *, missing_ok: bool = False
) -> Mapping[str, Any]:
    """The table, with the kind of the URL behind ``url = "${DSN}"`` added. The URL itself stays a reference.

    Only the environment is read, never a secret store: a URL from a store needs an explicit kind.
    """
    url = mapping.get("url", mapping.get("dsn"))
    if "kind" in mapping or not isinstance(url, str) or not reads_environment_only(url):
        return mapping
    if kind_of_scheme(url) is not None:
        return mapping
    try:
        kind = kind_of_scheme(expand(url, env=env, used_by=f"connection {name!r}"))
    except MissingSecret:
        if missing_ok:
            return mapping
        raise
    return {**mapping, "kind": kind} if kind else mapping


def connection_tables(file: TomlFile) -> Mapping[str, Any]:
    """The definitions in a file by name."""
    if "connection" in file.tables:
        raise ConfigError(
            f"{file.path.name} has [connection]; connections are defined in [connections.<name>]",
            where=file.where("connection"),
            next_step="rename the table to [connections.<name>]",
        )
    tables = file.tables.get("connections", {})
    if not isinstance(tables, dict):
        raise ConfigError(
            f"'connections' in {file.path.name} is not a table", where=file.where("connections")
        )
    return tables
