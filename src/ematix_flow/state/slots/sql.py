"""Slots in a SQL database, through SQLAlchemy Core: every change of a slot is one conditional statement.

Each change names the fence that was read before; if no row is changed, another process was faster. So nothing
is locked between two statements, and any database that counts changed rows is suitable. When many slots are
changed in one transaction, their rows are read afterwards to find out which ones were changed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from ematix_flow.state.runlog.records import bounded_text
from ematix_flow.state.runlog.table_store import RunLogTableStore
from ematix_flow.state.runlog.tables import SLOTS_SINCE
from ematix_flow.state.slots.base import (
    ENDED,
    UNCLAIMED,
    UNFINISHED,
    UNSUCCESSFUL,
    Claim,
    Slot,
    SlotRecord,
    SlotStatus,
    SlotStore,
)
from ematix_flow.state.slots.memory import fire_order
from ematix_flow.state.slots.scheduler_lease import SchedulerLease, is_running, next_lease
from ematix_flow.state.slots.statements import (
    SLOTS_PER_STATEMENT,
    bound_slot_values,
    claim_statement,
    matches_bound_slot,
    matches_slot,
    read_many,
    released_values,
    slot_record,
)
from ematix_flow.state.slots.tables import leases, slots
from ematix_flow.state.sql.dialects import insert_if_new

_FEW_NAMES = 20


class SqlSlotStore(RunLogTableStore, SlotStore):
    """Slots in a SQL database. Without tables there are no slots."""

    since = SLOTS_SINCE

    # ------------------------------------------------------------------ questions

    def get(self, slot: Slot) -> SlotRecord | None:
        with self._read_connection() as connection:
            row = connection.execute(sa.select(slots).where(*matches_slot(slot))).one_or_none()
        return None if row is None else slot_record(row)

    def unfinished(self, pipelines: Sequence[str] | None = None) -> list[SlotRecord]:
        query = (
            sa.select(slots)
            .where(slots.c.status.in_(UNFINISHED))
            .order_by(slots.c.fires_at, slots.c.pipeline)
        )
        wanted = None if pipelines is None else set(pipelines)
        with self._read_connection() as connection:
            found = [slot_record(row) for row in connection.execute(query)]
        return [record for record in found if wanted is None or record.slot.pipeline in wanted]

    def newest(self, pipelines: Sequence[str]) -> dict[str, SlotRecord]:
        if not pipelines:
            return {}
        if len(set(pipelines)) <= _FEW_NAMES:
            return self._newest_of_few(sorted(set(pipelines)))
        last = self._last_of_each()
        query = sa.select(slots).join(
            last, sa.and_(slots.c.pipeline == last.c.pipeline, slots.c.fires_at == last.c.fires_at)
        )
        wanted = set(pipelines)
        if len(wanted) <= SLOTS_PER_STATEMENT:
            query = query.where(slots.c.pipeline.in_(wanted))
        with self._read_connection() as connection:
            found = [slot_record(row) for row in connection.execute(query)]
        return {record.slot.pipeline: record for record in found if record.slot.pipeline in wanted}

    def _newest_of_few(self, pipelines: Sequence[str]) -> dict[str, SlotRecord]:
        """Search the index for each, where all others need not be read."""
        other = slots.alias()
        last = {
            name: sa.select(sa.func.max(other.c.fires_at)).where(other.c.pipeline == name).scalar_subquery()
            for name in pipelines
        }
        one_of = (sa.and_(slots.c.pipeline == name, slots.c.fires_at == at) for name, at in last.items())
        with self._read_connection() as connection:
            found = [slot_record(row) for row in connection.execute(sa.select(slots).where(sa.or_(*one_of)))]
        return {record.slot.pipeline: record for record in found}

    def last_fires(self, pipelines: Sequence[str]) -> dict[str, dt.datetime]:
        wanted = set(pipelines)
        with self._read_connection() as connection:
            found = connection.execute(sa.select(self._last_of_each()))
            return {name: at for name, at in found if name in wanted}

    def _last_of_each(self) -> sa.Subquery:
        """Return a query for the last fire of each pipeline; it stays fast with many slots."""
        if self._dialect not in ("postgresql", "sqlite"):  # MySQL skips through the index by itself
            last = sa.select(slots.c.pipeline, sa.func.max(slots.c.fires_at).label("fires_at"))
            return last.group_by(slots.c.pipeline).subquery()
        names = sa.select(sa.func.min(slots.c.pipeline).label("pipeline")).cte("names", recursive=True)
        following = sa.select(sa.func.min(slots.c.pipeline)).where(slots.c.pipeline > names.c.pipeline)
        names = names.union_all(sa.select(following.scalar_subquery()).where(names.c.pipeline.is_not(None)))
        other = slots.alias()
        last_fire = sa.select(sa.func.max(other.c.fires_at)).where(other.c.pipeline == names.c.pipeline)
        return sa.select(names.c.pipeline, last_fire.scalar_subquery().label("fires_at")).subquery()

    def latest(self, pipeline: str, until: dt.datetime) -> SlotRecord | None:
        query = sa.select(slots).where(slots.c.pipeline == pipeline, slots.c.fires_at <= until)
        with self._read_connection() as connection:
            row = connection.execute(query.order_by(slots.c.fires_at.desc()).limit(1)).one_or_none()
        return None if row is None else slot_record(row)

    def unsuccessful(self, pipelines: Sequence[str], since: dt.datetime) -> list[SlotRecord]:
        query = sa.select(slots).where(slots.c.status.in_(UNSUCCESSFUL), slots.c.fires_at >= since)
        wanted = set(pipelines)
        with self._read_connection() as connection:
            rows = connection.execute(query.order_by(slots.c.fires_at, slots.c.pipeline))
            return [slot_record(row) for row in rows if row.pipeline in wanted]

    def between(self, since: dt.datetime, until: dt.datetime, limit: int) -> list[SlotRecord]:
        found: list[SlotRecord] = []
        with self._read_connection() as connection:
            for status in (*UNFINISHED, *ENDED):  # by its part of the index
                query = sa.select(slots).where(
                    slots.c.status == status, slots.c.fires_at >= since, slots.c.fires_at < until
                )
                rows = connection.execute(query.order_by(slots.c.fires_at.desc()).limit(limit))
                found += [slot_record(row) for row in rows]
        return sorted(found, key=fire_order, reverse=True)[:limit]

    def get_many(self, wanted: Sequence[Slot]) -> dict[Slot, SlotRecord]:
        with self._read_connection() as connection:
            return read_many(connection, wanted)

    # ------------------------------------------------------------------ slots

    def open(
        self,
        wanted: Iterable[Slot],
        status: SlotStatus = "waiting",
        reason: str | None = None,
        *,
        holder: str | None = None,
    ) -> int:
        new_ones = list(dict.fromkeys(wanted))
        new = 0
        for first in range(0, len(new_ones), SLOTS_PER_STATEMENT):
            with self._transaction() as connection:
                now = self._now(connection)
                rows = [
                    {
                        "pipeline": slot.pipeline,
                        "fires_at": slot.fire_time,
                        "status": status,
                        "fence": 0,
                        "failures": 0,
                        "deaths": 0,
                        "begun": False,
                        "not_before": now,
                        "reason": reason,
                        "holder": holder,
                    }
                    for slot in new_ones[first : first + SLOTS_PER_STATEMENT]
                ]
                new += self._insert(connection, rows)
        return new

    def _insert(self, connection: sa.Connection, rows: list[dict[str, Any]]) -> int:
        """Insert the rows that do not exist yet, and return how many."""
        insert = insert_if_new(slots, self._dialect)
        if self._dialect == "duckdb":  # one statement per row would be slow, and not counted
            return connection.execute(insert.values(rows)).rowcount
        return connection.execute(insert, rows).rowcount

    def claim(self, seen: SlotRecord, holder: str, seconds: float) -> Claim | None:
        with self._transaction() as connection:
            change = claim_statement(self._now(connection), holder, seconds)
            if connection.execute(change, bound_slot_values(seen.slot, seen.fence)).rowcount != 1:
                return None
            known = connection.execute(
                sa.select(slots.c.failures, slots.c.deaths).where(*matches_slot(seen.slot))
            ).one()
        return Claim(seen.slot, holder, seen.fence + 1, int(known.failures), int(known.deaths))

    def claim_all(self, seen: Sequence[SlotRecord], holder: str, seconds: float) -> list[Claim]:
        fences = {record.slot: record.fence + 1 for record in seen}
        if not fences:
            return []
        with self._transaction() as connection:
            change = claim_statement(self._now(connection), holder, seconds)
            connection.execute(change, [bound_slot_values(record.slot, record.fence) for record in seen])
            now = read_many(connection, list(fences))
        return [
            Claim(slot, holder, record.fence, record.failures, record.deaths)
            for slot, record in now.items()
            if (record.status, record.fence, record.holder) == ("claimed", fences[slot], holder)
        ]

    def begin(self, claim: Claim, seconds: float, holder: str | None = None) -> bool:
        def begin_values(now: dt.datetime) -> dict[str, Any]:
            new_holder = {} if holder is None else {"holder": holder}
            return {"begun": True, "expires_at": now + dt.timedelta(seconds=seconds), **new_holder}

        return self._change(claim, begin_values, sa.not_(slots.c.begun))

    def renew(self, claim: Claim, seconds: float, reason: str | None = None) -> bool:
        values = {} if reason is None else {"reason": bounded_text(reason)}
        return self._change(claim, lambda now: {"expires_at": now + dt.timedelta(seconds=seconds), **values})

    def end(self, claim: Claim, status: SlotStatus, reason: str | None = None) -> bool:
        return self._change(claim, lambda now: {"status": status, **released_values(reason)})

    def end_all(self, reasons: Mapping[Claim, str | None], status: SlotStatus) -> set[Slot]:
        if not reasons:
            return set()
        change = (
            sa.update(slots)
            .where(*matches_bound_slot(), slots.c.status == "claimed")
            .values(status=status, holder=None, expires_at=None, reason=sa.bindparam("reason_text"))
        )
        parameters = [
            {
                **bound_slot_values(claim.slot, claim.fence),
                "reason_text": None if why is None else bounded_text(why),
            }
            for claim, why in reasons.items()
        ]
        with self._transaction() as connection:
            connection.execute(change, parameters)
            now = read_many(connection, [claim.slot for claim in reasons])
        fences = {claim.slot: claim.fence for claim in reasons}
        return {
            slot for slot, record in now.items() if (record.status, record.fence) == (status, fences[slot])
        }

    def retry_later(
        self, claim: Claim, seconds: float, reason: str | None = None, *, failed: bool = True
    ) -> bool:
        return self._change(
            claim,
            lambda now: {
                "status": "waiting",
                "failures": slots.c.failures + int(failed),
                "not_before": now + dt.timedelta(seconds=seconds),
                **released_values(reason),
            },
        )

    def end_wait(self, seen: SlotRecord) -> bool:
        with self._transaction() as connection:
            change = (
                sa.update(slots)
                .where(*matches_slot(seen.slot), slots.c.status == "waiting", slots.c.fence == seen.fence)
                .values(not_before=self._now(connection))
            )
            return connection.execute(change).rowcount == 1

    def reopen(self, slot: Slot) -> bool:
        with self._transaction() as connection:
            change = (
                sa.update(slots)
                .where(*matches_slot(slot), slots.c.status.in_(("gave_up", "skipped")))
                .values(status="waiting", failures=0, deaths=0, not_before=self._now(connection), reason=None)
            )
            return connection.execute(change).rowcount == 1

    def end_unclaimed(self, seen: SlotRecord, status: SlotStatus, reason: str | None = None) -> bool:
        if seen.status not in UNCLAIMED:
            return False
        with self._transaction() as connection:
            change = (
                sa.update(slots)
                .where(*matches_slot(seen.slot), slots.c.status == seen.status, slots.c.fence == seen.fence)
                .values(status=status, **released_values(reason))
            )
            return connection.execute(change).rowcount == 1

    def _change(
        self, claim: Claim, values: Callable[[dt.datetime], dict[str, Any]], *also: sa.ColumnElement[bool]
    ) -> bool:
        """Change the slot while the claim is the newest.

        An expired claim that was not taken over still counts.
        """
        with self._transaction() as connection:
            change = (
                sa.update(slots)
                .where(
                    *matches_slot(claim.slot),
                    slots.c.status == "claimed",
                    slots.c.fence == claim.fence,
                    *also,
                )
                .values(values(self._now(connection)))
            )
            return connection.execute(change).rowcount == 1

    # ------------------------------------------------------------------ leases

    def lease(self, name: str, holder: str, seconds: float) -> SchedulerLease | None:
        with self._transaction() as connection:
            now = self._now(connection)
            until = now + dt.timedelta(seconds=seconds)
            current = connection.execute(sa.select(leases).where(leases.c.name == name)).one_or_none()
            if current is None:
                lease = next_lease(name, holder, now, None)
                row = {"name": name, "holder": holder, "fence": 1, "expires_at": until}
                is_new = connection.execute(insert_if_new(leases, self._dialect).values(row)).rowcount == 1
                return lease if is_new else None
            before = SchedulerLease(name, current.holder, int(current.fence))
            lease = next_lease(name, holder, now, (before, current.expires_at))
            if lease is None:
                return None
            is_free = sa.or_(leases.c.holder == holder, sa.not_(is_running(leases.c.expires_at, now)))
            updated = connection.execute(
                sa.update(leases)
                .where(leases.c.name == name, leases.c.fence == before.fence, is_free)
                .values(holder=holder, fence=lease.fence, expires_at=until)
            )
            return lease if updated.rowcount == 1 else None

    def release(self, lease: SchedulerLease) -> None:
        with self._transaction() as connection:
            connection.execute(
                sa.update(leases)
                .where(leases.c.name == lease.name, leases.c.fence == lease.fence)
                .values(expires_at=self._now(connection))
            )

    def purge(self, before: dt.datetime, pipeline: str | None = None) -> int:
        """Delete in portions, each in its own transaction, so that concurrent claims do not wait long."""
        later, same_fire = slots.alias("later"), slots.alias("same_fire")
        newer = sa.exists().where(later.c.pipeline == slots.c.pipeline, later.c.fires_at > slots.c.fires_at)
        awaited = sa.exists().where(
            same_fire.c.fires_at == slots.c.fires_at, same_fire.c.status.in_(UNFINISHED)
        )
        of_pipeline = sa.true() if pipeline is None else slots.c.pipeline == pipeline
        ended = slots.c.status.in_(ENDED)
        query = (
            sa.select(slots.c.pipeline, slots.c.fires_at)
            .where(slots.c.fires_at < before, ended, newer, sa.not_(awaited), of_pipeline)
            .limit(SLOTS_PER_STATEMENT)
        )
        done = 0
        while True:
            with self._transaction() as connection:
                old = [Slot(row.pipeline, row.fires_at) for row in connection.execute(query)]
                for slot in old:  # a slot that was reopened meanwhile stays
                    done += connection.execute(sa.delete(slots).where(*matches_slot(slot), ended)).rowcount
            if len(old) < SLOTS_PER_STATEMENT:
                return done
