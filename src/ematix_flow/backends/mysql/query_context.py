"""What decides the rows of a query in a session, and whether two addresses reach one server."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from ematix_flow.backends.mysql.address import APPLICATION, MySQLAddress
from ematix_flow.backends.mysql.session import open_session

_SESSION = "SELECT COALESCE(DATABASE(), ''), CURRENT_USER(), USER(), COALESCE(CURRENT_ROLE(), '')"
_SETTINGS = """
SHOW SESSION VARIABLES WHERE Variable_name IN (
  'sql_mode', 'old_mode', 'time_zone', 'lc_time_names', 'default_week_format', 'div_precision_increment',
  'character_set_client', 'character_set_connection', 'character_set_results', 'character_set_database',
  'collation_connection', 'collation_database', 'group_concat_max_len', 'sql_select_limit',
  'sql_auto_is_null', 'sql_big_selects', 'max_join_size', 'max_sort_length', 'max_execution_time',
  'max_statement_time', 'optimizer_switch'
)
"""


def read_query_context(address: MySQLAddress) -> Mapping[str, str]:
    """Equal for two sessions of one server if and only if every query has the same result in both."""
    with open_session(address) as session:
        database, account, login, role = session.fetch(_SESSION)[0]
        settings = {str(name): str(value) for name, value in session.fetch(_SETTINGS)}
    return {"default database": database, "user": account, "login": login, "role": role} | settings


def reach_one_server(first: MySQLAddress, second: MySQLAddress) -> bool:
    """Whether a lock taken through one address is visible through the other.

    The server's own identity is not enough: a copied data folder keeps its uuid, and two containers may have
    the same host name, port and folder.
    """
    name = {"name": f"{APPLICATION}:{secrets.token_hex(16)}"}
    with open_session(first) as one, open_session(second) as other:
        one.fetch("SELECT GET_LOCK(%(name)s, 0)", name)
        return other.fetch("SELECT IS_USED_LOCK(%(name)s)", name)[0][0] is not None
