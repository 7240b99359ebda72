"""What of a session decides which rows a query yields, and whether two addresses reach one server."""

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
    """Equal for two sessions of one server exactly when they answer every query alike."""
    with open_session(address) as session:
        database, account, login, role = session.fetch(_SESSION)[0]
        settings = {str(name): str(value) for name, value in session.fetch(_SETTINGS)}
    return {"default database": database, "user": account, "login": login, "role": role} | settings


def reach_one_server(first: MySQLAddress, second: MySQLAddress) -> bool:
    """Whether a lock that is taken through one address is seen through the other.

    What a server says of itself is not enough: a copied data folder keeps its number, and two containers may
    share host name, port and folder.
    """
    name = {"name": f"{APPLICATION}:{secrets.token_hex(16)}"}
    with open_session(first) as one, open_session(second) as other:
        one.fetch("SELECT GET_LOCK(%(name)s, 0)", name)
        return other.fetch("SELECT IS_USED_LOCK(%(name)s)", name)[0][0] is not None
