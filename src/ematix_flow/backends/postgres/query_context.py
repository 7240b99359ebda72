"""What decides the rows of a query in a session: its user, its search path and its settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import psycopg

_SESSION = """
SELECT current_user::text, session_user::text, current_setting('search_path')
"""
# all settings except those of the connection, of logging and of the current transaction
_SETTINGS = r"""
SELECT name, coalesce(setting, '') FROM pg_catalog.pg_settings
WHERE name NOT IN ('application_name', 'client_min_messages', 'client_connection_check_interval')
  AND name <> 'search_path' AND name NOT SIMILAR TO '(log|track|tcp|transaction|debug)\_%' ORDER BY name
"""
# the server does not list custom settings (app.tenant): take their names from the connection's options
_CUSTOM = re.compile(r"([A-Za-z_][\w$-]*(?:\.[\w$-]+)+)(?=\s*=)")
_CUSTOM_VALUE = "SELECT coalesce(current_setting(%(name)s, true), '')"


def read_query_context(connection: psycopg.Connection[Any]) -> Mapping[str, str]:
    """Equal for two sessions of one database if and only if every query has the same result in both."""
    current, session, path = connection.execute(_SESSION).fetchall()[0]
    context = {"user": current, "login": session, "search_path": path}
    for name in sorted({name.lower() for name in _CUSTOM.findall(connection.info.options or "")}):
        spelt = name.replace("-", "_")  # as the server reads  --app.my-setting=
        context[spelt] = connection.execute(_CUSTOM_VALUE, {"name": spelt}).fetchall()[0][0]
    return context | dict(connection.execute(_SETTINGS).fetchall())
