"""Ledger entries and watermarks as tables of files and lakes store them: small JSON records next to the data.

Their keys are on disk and in buckets, so they never change.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict, dataclass
from typing import Any

from ematix_flow.backends.base import LedgerEntry, Load, LoadResult
from ematix_flow.spec.watermarks import Watermark


def new_ledger_entry(load: Load, batch_key: str, result: LoadResult, high: Watermark | None) -> LedgerEntry:
    """The entry of a load that commits now; ``high`` is its new watermark."""
    source_from, source_to = load.source_bounds(high)
    return LedgerEntry(
        pipeline=load.pipeline,
        target=load.target,
        batch_key=batch_key,
        run_id=str(load.run_id),
        source_from=source_from,
        source_to=source_to,
        rows_in=result.rows_in,
        rows_inserted=result.rows_inserted,
        rows_updated=result.rows_updated,
        rows_deleted=result.rows_deleted,
        committed_at=dt.datetime.now(dt.timezone.utc),
    )


def entry_to_json(entry: LedgerEntry) -> dict[str, Any]:
    return {**asdict(entry), "committed_at": entry.committed_at.isoformat()}


def entry_from_json(value: dict[str, Any]) -> LedgerEntry:
    return LedgerEntry(**{**value, "committed_at": dt.datetime.fromisoformat(value["committed_at"])})


@dataclass(frozen=True)
class StoredWatermark:
    """The watermark of a pipeline for a target."""

    pipeline: str
    target: str
    watermark: Watermark

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "target": self.target,
            "column": self.watermark.column,
            "type": self.watermark.type_json(),
            "value": self.watermark.encode(),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> StoredWatermark:
        watermark = Watermark.decode(value["column"], value["type"], value["value"])
        return cls(value["pipeline"], value["target"], watermark)


def find_watermark(
    stored: tuple[StoredWatermark, ...], pipeline: str, target: str, column: str
) -> Watermark | None:
    return next((each.watermark for each in stored if _key(each) == (pipeline, target, column)), None)


def with_watermark(
    stored: tuple[StoredWatermark, ...], pipeline: str, target: str, watermark: Watermark
) -> tuple[StoredWatermark, ...]:
    """The watermarks with this one in the place of its predecessor."""
    new = StoredWatermark(pipeline, target, watermark)
    return (*(each for each in stored if _key(each) != _key(new)), new)


def _key(stored: StoredWatermark) -> tuple[str, str, str]:
    return stored.pipeline, stored.target, stored.watermark.column
