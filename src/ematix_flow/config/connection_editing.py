"""Changes one connection in ``~/.ematix-flow/connections.toml`` and keeps the rest of the file as written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ematix_flow.config.connection_resolution import (
    CONNECTION_NAME,
    USER_FILE,
    connection_tables,
    with_kind_from_url,
)
from ematix_flow.config.home_folder import home_folder
from ematix_flow.config.toml_file import read_toml
from ematix_flow.errors import ConfigError, DeclarationError, UsageError
from ematix_flow.spec.connections import Connection, connection_from_mapping, has_reference


def set_connection(
    name: str,
    definition: str | Mapping[str, Any],
    *,
    env: Mapping[str, str] | None = None,
    home: Path | None = None,
) -> Path:
    """Define or change a connection in the user's file; returns the file's path.

    A string is the URL. Fields that are not given stay, unless the kind changes. If the result is not a valid
    connection, nothing is written. The file is replaced atomically, with mode 0600.
    """
    import tomlkit

    if not CONNECTION_NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a connection name: use letters, digits, '_' and '-', a letter first"
        )
    variables = os.environ if env is None else env
    path = (home or home_folder(variables)) / USER_FILE
    file = read_toml(path)
    given = {"url": definition} if isinstance(definition, str) else dict(definition)
    before = connection_tables(file).get(name)
    kept = _unchanged_fields(name, before, given)
    connection = _build_connection(name, {**kept, **given}, variables)

    document = tomlkit.parse(file.text)
    if "connections" not in document:
        document["connections"] = tomlkit.table(is_super_table=True)
    tables: Any = document["connections"]
    if not isinstance(before, Mapping):
        tables[name] = tomlkit.table()
    table = tables[name]
    for key in [key for key in table if key not in kept and key not in given]:
        del table[key]
    for key, value in given.items():
        table[key] = _as_field_type(connection, key, value)
    _replace_file(path, tomlkit.dumps(document))
    return path


def parse_assignments(assignments: Sequence[str]) -> dict[str, str]:
    """``["url=postgres://…", "group_id=x"]`` as a mapping; only the first ``=`` of each counts."""
    found: dict[str, str] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip():
            # the text may be a URL with a password, so the error does not repeat it
            raise UsageError("a field is written  field=value", next_step="such as  url=postgres://…")
        found[key.strip()] = value
    return found


def parse_definition(arguments: Sequence[str]) -> tuple[str, dict[str, str]]:
    """``NAME=DSN`` or ``NAME field=value …`` as the name and its fields."""
    form = "flow connections set NAME url=…   or   flow connections set NAME=DSN"
    if not arguments:
        raise UsageError("no connection is given", next_step=form)
    name, equals, dsn = arguments[0].partition("=")
    fields = parse_assignments(arguments[1:])
    if equals:
        fields = {"url": dsn, **fields}
    if not CONNECTION_NAME.fullmatch(name) or not fields:
        raise UsageError("a connection needs a name and at least one field", next_step=form)
    return name, fields


def _unchanged_fields(name: str, before: object, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the current definition that stay."""
    if not isinstance(before, Mapping):
        return {}
    replaced = {"url", "dsn"} if {"url", "dsn"} & given.keys() else set()
    kept = {k: v for k, v in before.items() if k not in replaced}
    try:
        old = connection_from_mapping(name, before).kind
        new = connection_from_mapping(name, given).kind
    except DeclarationError:
        return kept  # the fields add to the current definition, and are checked with it
    return kept if old == new else {}


def _build_connection(name: str, table: Mapping[str, Any], env: Mapping[str, str]) -> Connection:
    try:
        return connection_from_mapping(name, with_kind_from_url(name, table, env, missing_ok=True))
    except DeclarationError as error:
        raise ConfigError(error.what, state="nothing was written", next_step=error.next_step) from None


def _as_field_type(connection: Connection, key: str, value: Any) -> Any:
    """The value in the type of its field: ``"5439"`` from a command line is written as a number."""
    typed = getattr(connection, key, value)
    return typed if isinstance(typed, (bool, int)) and not has_reference(value) else value


def _replace_file(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = path.resolve()  # a link stays a link
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")  # made with 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
