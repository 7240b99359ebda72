"""How a column of a query's result is read as Arrow. Tasks import this module, so it imports little."""

from __future__ import annotations

from dataclasses import dataclass

from ematix_flow.spec.types import DataType


@dataclass(frozen=True)
class ColumnExport:
    """``{}`` in ``template`` is the quoted column; Arrow then holds ``type``."""

    name: str
    native: str
    type: DataType | None
    template: str = "{}"
