"""The project's settings: the tables of ``.ematix-flow.toml`` that are not connections."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ematix_flow.config.connection_resolution import PROJECT_FILE
from ematix_flow.config.interpolate import expand
from ematix_flow.config.toml_file import TomlFile, read_toml
from ematix_flow.config.working_folder import working_folder
from ematix_flow.errors import ConfigError, FlowError, did_you_mean
from ematix_flow.spec.location import SourceLocation

# the keys of each table; None: the module that reads the table checks them
_KNOWN_KEYS: Mapping[str, tuple[str, ...] | None] = {
    "connections": None,
    "engine": None,
    "project": ("module",),
    "run_log": ("url", "keep"),
    "alerts": ("urls",),
    "metrics": ("url",),
    "traces": ("url",),
    "log": ("format",),
}


def project_settings(cwd: Path | None = None) -> Mapping[str, Any]:
    """``[engine]``, ``[run_log]`` and the other tables as written; empty when there is no file.

    Raises ConfigError for an unknown table or key, because it would have no effect.
    """
    file = read_toml((cwd or working_folder()) / PROJECT_FILE)
    _refuse_unknown(file)
    return MappingProxyType({key: value for key, value in file.tables.items() if key != "connections"})


def setting_location(table: str, key: str, cwd: Path | None = None) -> SourceLocation | None:
    """The line of a setting, or of the nearest table around it; None when there is no file."""
    file = read_toml((cwd or working_folder()) / PROJECT_FILE)
    return file.where(table, key) if file.exists else None


def text_setting(
    table: str, key: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> str | None:
    """A text setting such as ``[run_log] url``, with its references replaced; None if it is not set."""
    found: Any = project_settings(cwd).get(table, {})
    value = found.get(key) if isinstance(found, dict) else found
    if value is None:
        return None
    if isinstance(value, str):
        return _expand_setting(value, table, key, cwd, env)
    raise ConfigError(
        f"[{table}] {key} in {PROJECT_FILE} is not text: {value!r}", where=setting_location(table, key, cwd)
    )


def list_setting(table: str, key: str, cwd: Path | None = None) -> tuple[str, ...]:
    """A list setting such as ``[alerts] urls``; empty if it is not set."""
    found: Any = project_settings(cwd).get(table, {})
    value = found.get(key, []) if isinstance(found, dict) else found
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return tuple(_expand_setting(each, table, key, cwd, None) for each in value)
    raise ConfigError(
        f"[{table}] {key} in {PROJECT_FILE} is not a list of texts", where=setting_location(table, key, cwd)
    )


def _expand_setting(value: str, table: str, key: str, cwd: Path | None, env: Mapping[str, str] | None) -> str:
    """The text with its references replaced. An error points at the setting."""
    try:
        return str(expand(value, env=env, used_by=f"[{table}] {key} in {PROJECT_FILE}"))
    except FlowError as error:
        raise error.with_location(setting_location(table, key, cwd)) from error.__cause__


def _refuse_unknown(file: TomlFile) -> None:
    for table, value in file.tables.items():
        if table not in _KNOWN_KEYS:
            raise ConfigError(
                f"{PROJECT_FILE} has no table [{table}].{did_you_mean(table, _KNOWN_KEYS)}",
                where=file.where(table),
                next_step=f"the tables are {', '.join(f'[{each}]' for each in sorted(_KNOWN_KEYS))}",
            )
        keys = _KNOWN_KEYS[table]
        for key in value if isinstance(value, dict) else ():
            if keys is not None and key not in keys:
                raise ConfigError(
                    f"[{table}] in {PROJECT_FILE} has no setting '{key}'.{did_you_mean(key, keys)}",
                    where=file.where(table, key),
                    next_step=f"it takes {' and '.join(keys)}",
                )
