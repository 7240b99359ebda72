"""What each backend can do, as data. The planner reads it; nothing else decides."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Capabilities:
    """One record a backend."""

    source: bool = False
    strategies: frozenset[str] = field(default_factory=frozenset)
    transactions: bool = False  # data, ledger and watermark commit together
    same_db: bool = False  # can run INSERT … SELECT by itself
    parallel_read: bool = False  # several tasks under one snapshot
    parallel_write: bool = True  # several tasks may write staging at once
    concurrent_writers: bool = False  # others may commit rows while we read, in any order
    shared_filesystem: bool = False  # executors must see the driver's paths
    schemas: bool = True  # has schemas; else the schema becomes part of the table's name
    max_identifier_bytes: int | None = None
    file_bytes: int = 0  # a load leaves data files, which are closed at this size; 0: it leaves none

    @property
    def target(self) -> bool:
        return bool(self.strategies)
