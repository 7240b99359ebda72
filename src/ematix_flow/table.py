"""What users import to declare tables: ``from ematix_flow.table import ManagedTable``."""

from __future__ import annotations

from ematix_flow.api.tables import ManagedTable, table
from ematix_flow.api.types import Column

__all__ = ["Column", "ManagedTable", "table"]
