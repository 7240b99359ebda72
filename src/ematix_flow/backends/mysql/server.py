"""Which server it is, MySQL or MariaDB, and what differs between the two."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ematix_flow.backends.mysql.address import MySQLAddress
from ematix_flow.backends.mysql.connection import DriverError, open_connection
from ematix_flow.backends.mysql.failures import target_failure

# no padding: trailing spaces and case count, and text is ordered by code point
EXACT_COLLATIONS = {"MySQL": "utf8mb4_0900_bin", "MariaDB": "utf8mb4_nopad_bin"}
_FACTS = """
SELECT @@version, @@hostname, CAST(@@port AS CHAR), @@datadir, @@local_infile, @@lower_case_table_names
"""
_SERVER_UUID = "SELECT @@server_uuid"


@dataclass(frozen=True)
class ServerFacts:
    """Version and settings of the server."""

    version: str
    identity: str
    local_infile: bool
    folds_table_names: bool

    @property
    def product(self) -> str:
        return "MariaDB" if "MariaDB" in self.version else "MySQL"


class MySQLServer:
    """One server. Its facts are read when they are first needed."""

    def __init__(self, address: MySQLAddress) -> None:
        self.address = address

    @cached_property
    def facts(self) -> ServerFacts:
        with open_connection(self.address) as connection:
            try:
                with connection.cursor() as cursor:
                    cursor.execute(_FACTS)
                    version, *place, infile, folds = cursor.fetchall()[0]
                    if "MariaDB" not in version:
                        cursor.execute(_SERVER_UUID)
                        place = [str(cursor.fetchall()[0][0])]
            except DriverError as error:
                raise target_failure(error) from error
        return ServerFacts(version, ":".join(place), bool(infile), bool(int(folds)))

    @property
    def is_mariadb(self) -> bool:
        return self.facts.product == "MariaDB"

    @property
    def collation(self) -> str:
        return EXACT_COLLATIONS[self.facts.product]
