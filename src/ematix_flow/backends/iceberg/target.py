"""Iceberg as a target: the lake's protocol, with namespaces, and the changes of a table that Iceberg has."""

from __future__ import annotations

from collections.abc import Mapping

from ematix_flow.backends.alterations import CannotAlter
from ematix_flow.backends.base import TableChange
from ematix_flow.backends.iceberg.dialect import IcebergDialect, can_widen
from ematix_flow.backends.iceberg.format import IcebergFormat
from ematix_flow.backends.lake.target import LakeTarget
from ematix_flow.backends.sql_session import SqlSession
from ematix_flow.backends.stores.base import Store
from ematix_flow.backends.table_diff import TableDiff
from ematix_flow.spec.tables import TableSpec


class IcebergTarget(LakeTarget):
    def __init__(self, format: IcebergFormat, store: Store, conf: Mapping[str, str]) -> None:
        super().__init__(format, store, conf)
        self.dialect = IcebergDialect()
        self.iceberg = format

    def schema_changes(self, session: SqlSession, table: TableSpec) -> list[TableChange]:
        missing = self.iceberg.missing_namespaces(self.spark(), table)
        return [
            TableChange("create_schema", name, f"CREATE NAMESPACE IF NOT EXISTS {name}") for name in missing
        ]

    def alterations(self, session: SqlSession, diff: TableDiff) -> list[TableChange]:
        live = {c.name: c.type for c in diff.live.columns}
        for item in diff.widened:
            if not can_widen(live[item.name], item.type):
                raise CannotAlter(
                    f"Iceberg does not change column {item.name!r} from {live[item.name]} to {item.type}. "
                    "By hand: add a column of the new type, fill it, and drop the old one"
                )
        return super().alterations(session, diff)
