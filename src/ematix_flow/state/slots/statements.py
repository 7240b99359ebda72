"""SQL statements for slots: how a slot is identified, claimed and read."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from ematix_flow.state.runlog.records import bounded_text
from ematix_flow.state.slots.base import Slot, SlotRecord
from ematix_flow.state.slots.tables import slots

SLOTS_PER_STATEMENT = 500  # slots in one statement


def matches_slot(slot: Slot) -> tuple[Any, Any]:
    return slots.c.pipeline == slot.pipeline, slots.c.fires_at == slot.fire_time


def matches_bound_slot() -> tuple[Any, Any, Any]:
    """Return conditions on the slot and fence that `bound_slot_values` binds."""
    return (
        slots.c.pipeline == sa.bindparam("of_pipeline"),
        slots.c.fires_at == sa.bindparam("of_moment"),
        slots.c.fence == sa.bindparam("of_fence"),
    )


def bound_slot_values(slot: Slot, fence: int) -> dict[str, Any]:
    return {"of_pipeline": slot.pipeline, "of_moment": slot.fire_time, "of_fence": fence}


def claim_statement(now: dt.datetime, holder: str, seconds: float) -> sa.Update:
    """Return the statement that claims a due slot, bound by `bound_slot_values`."""
    due = sa.or_(
        sa.and_(slots.c.status == "waiting", slots.c.not_before <= now),
        sa.and_(slots.c.status == "claimed", slots.c.expires_at <= now),
    )
    died = sa.and_(slots.c.status == "claimed", slots.c.begun)
    return (
        sa.update(slots)
        .where(*matches_bound_slot(), due)
        .ordered_values(  # deaths first: MySQL reads values that it has just set
            (slots.c.deaths, slots.c.deaths + sa.case((died, 1), else_=0)),
            (slots.c.begun, False),
            (slots.c.status, "claimed"),
            (slots.c.fence, slots.c.fence + 1),
            (slots.c.holder, holder),
            (slots.c.expires_at, now + dt.timedelta(seconds=seconds)),
        )
    )


def read_many(connection: sa.Connection, wanted: Sequence[Slot]) -> dict[Slot, SlotRecord]:
    found: dict[Slot, SlotRecord] = {}
    slots_wanted = set(wanted)
    for first in range(0, len(wanted), SLOTS_PER_STATEMENT):
        part = wanted[first : first + SLOTS_PER_STATEMENT]
        query = sa.select(slots).where(
            slots.c.pipeline.in_({slot.pipeline for slot in part}),
            slots.c.fires_at.in_({slot.fire_time for slot in part}),
        )
        records = [slot_record(row) for row in connection.execute(query)]
        found |= {record.slot: record for record in records if record.slot in slots_wanted}
    return found


def released_values(reason: str | None) -> dict[str, Any]:
    return {"holder": None, "expires_at": None, "reason": None if reason is None else bounded_text(reason)}


def slot_record(row: Any) -> SlotRecord:
    """Return the record of a table row, with its columns in order."""
    pipeline, at, status, fence, failures, deaths, begun, not_before, holder, expires_at, reason = row
    return SlotRecord(
        slot=Slot(pipeline, at),
        status=status,
        fence=int(fence),
        failures=int(failures),
        deaths=int(deaths),
        not_before=not_before,
        holder=holder,
        expires_at=expires_at,
        reason=reason,
        begun=bool(begun),
    )
