"""The contract of a target that checks rows before they become visible, and keeps those it sets aside."""

from __future__ import annotations

import datetime as dt
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ematix_flow.backends.base import BatchTarget, QuarantinedRows
from ematix_flow.errors import LoadError
from ematix_flow.spec.tables import TableSpec


@dataclass(frozen=True)
class QuarantineCount:
    """The rows that one run set aside for one rule."""

    rule: str
    batch: str
    rows: int
    oldest: dt.datetime
    newest: dt.datetime


class MessagesFail(LoadError):
    """Messages whose rows fail a rule have to become dead letters before the rest of the batch is loaded.

    ``rules`` has the rule that each message fails. The load was rolled back.
    """

    def __init__(self, rules: Mapping[str, str], label: str) -> None:
        super().__init__(
            f"rows of {len(rules):,} messages fail expectations of {label}, and other rows each time that "
            "they are checked",
            state=f"nothing was loaded; {label} is unchanged",
            next_step="use rules that give the same row the same result",
        )
        self.rules = rules


class GatedTarget(BatchTarget):
    """Its `apply` evaluates the gate of a load, and loads `QuarantinedRows`.

    Where target and quarantine table cannot commit together, a reader of the quarantine table may see rows of
    a load that has died, or is not done yet, until the next load of the target. A replay does not load those.
    """

    @abstractmethod
    def gate_dialect(self) -> str:
        """sqlglot's name of the SQL in which expectations are evaluated."""

    @abstractmethod
    def count_quarantined(self, table: TableSpec, pipeline: str) -> list[QuarantineCount]:
        """The rows of a pipeline by rule and batch, oldest first; empty if there is no quarantine table."""

    @abstractmethod
    def read_quarantined(self, rows: QuarantinedRows, limit: int, offset: int) -> list[Mapping[str, Any]]:
        """At most ``limit`` of the chosen rows with all columns of the table, oldest first."""

    @abstractmethod
    def purge_quarantined(self, rows: QuarantinedRows) -> int:
        """Delete the chosen rows. Returns how many there were."""
