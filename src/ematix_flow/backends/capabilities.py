"""What each backend can do, as data. The planner decides by these values alone."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Capabilities:
    """What one backend can do."""

    source: bool = False
    strategies: frozenset[str] = field(default_factory=frozenset)
    transactions: bool = False  # data, ledger and watermark commit together
    same_db: bool = False  # can run INSERT … SELECT by itself
    parallel_read: bool = False  # several tasks under one snapshot
    parallel_write: bool = True  # several tasks may write staging at once
    concurrent_writers: bool = False  # other sessions may commit rows while a pipeline reads, in any order
    shared_filesystem: bool = False  # executors must see the same files as the driver
    schemas: bool = True  # False: the schema becomes part of the table's name
    max_identifier_bytes: int | None = None
    file_bytes: int = 0  # the size at which a load closes a data file; 0: it writes none

    @property
    def target(self) -> bool:
        return bool(self.strategies)
