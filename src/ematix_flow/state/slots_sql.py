"""Slots in a SQL database, through SQLAlchemy Core: every change is one conditional statement.

Who changes a slot names the fence that it saw; when no row is changed, another was faster. So nothing is
locked between two statements, and every database that counts changed rows will do.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from ematix_flow.state.records import shown_text, utc_now
from ematix_flow.state.runlog_tables import SLOTS_SINCE, empty_tables, prepare
from ematix_flow.state.slots import (
    ENDED,
    LONGEST_LEASE,
    UNENDED,
    UNSUCCESSFUL,
    Claim,
    Lease,
    Slot,
    SlotRecord,
    SlotStatus,
    SlotStore,
)
from ematix_flow.state.slots_tables import leases, slots
from ematix_flow.state.sql_failures import connected, run_log_unavailable

_AT_ONCE = 500
_CLOCKS = {"postgresql": "SELECT clock_timestamp()", "mysql": "SELECT UTC_TIMESTAMP(6)"}


class SqlSlots(SlotStore):
    """``clock`` is for tests; without one a server's own clock counts, and a file's is this machine's.

    One that is only ``looking`` leaves the tables as they are: where there are none, there are no slots.
    """

    def __init__(
        self,
        engine: sa.Engine,
        location: str,
        clock: Callable[[], dt.datetime] | None = None,
        *,
        schema: str | None = None,
        reader: sa.Engine | None = None,
        maker: sa.Engine | None = None,
        create_tables: bool = True,
        looking: bool = False,
    ) -> None:
        self.location = location
        named = {None: schema}
        self._engine = engine.execution_options(schema_translate_map=named, writes=True)
        self._reader = (reader or engine).execution_options(schema_translate_map=named)
        making = (maker or engine).execution_options(schema_translate_map=named, writes=True)
        try:
            found = prepare(
                making, self._reader, location, schema=schema, create_tables=create_tables, looking=looking
            )
        except SQLAlchemyError as error:
            raise run_log_unavailable(location, error) from error
        if found < SLOTS_SINCE:
            self.close()
            self._engine = self._reader = empty_tables().execution_options()
        dialect = self._engine.dialect.name
        self._dialect = "mysql" if dialect == "mariadb" else dialect
        self._own_clock = clock or (None if self._dialect in _CLOCKS else utc_now)

    def close(self) -> None:
        self._engine.dispose()
        self._reader.dispose()

    # ------------------------------------------------------------------ questions

    def now(self) -> dt.datetime:
        if self._own_clock:
            return self._own_clock()
        with self._asking() as connection:
            return self._now(connection)

    def get(self, slot: Slot) -> SlotRecord | None:
        with self._asking() as connection:
            row = connection.execute(sa.select(slots).where(*_is(slot))).one_or_none()
        return None if row is None else _record(row)

    def unended(self, pipelines: Sequence[str] | None = None) -> list[SlotRecord]:
        query = (
            sa.select(slots).where(slots.c.status.in_(UNENDED)).order_by(slots.c.fires_at, slots.c.pipeline)
        )
        wanted = None if pipelines is None else set(pipelines)
        with self._asking() as connection:
            found = [_record(row) for row in connection.execute(query)]
        return [record for record in found if wanted is None or record.slot.pipeline in wanted]

    def newest(self, pipelines: Sequence[str]) -> dict[str, SlotRecord]:
        if not pipelines:
            return {}
        last = self._last_of_each()
        query = sa.select(slots).join(
            last, sa.and_(slots.c.pipeline == last.c.pipeline, slots.c.fires_at == last.c.fires_at)
        )
        wanted = set(pipelines)
        if len(wanted) <= _AT_ONCE:
            query = query.where(slots.c.pipeline.in_(wanted))
        with self._asking() as connection:
            found = [_record(row) for row in connection.execute(query)]
        return {record.slot.pipeline: record for record in found if record.slot.pipeline in wanted}

    def last_fires(self, pipelines: Sequence[str]) -> dict[str, dt.datetime]:
        wanted = set(pipelines)
        with self._asking() as connection:
            found = connection.execute(sa.select(self._last_of_each()))
            return {name: at for name, at in found if name in wanted}

    def _last_of_each(self) -> sa.Subquery:
        """The last fire of each pipeline, in a time that does not grow with how many there were."""
        if self._dialect not in ("postgresql", "sqlite"):  # MySQL leaps through the index by itself
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
        with self._asking() as connection:
            row = connection.execute(query.order_by(slots.c.fires_at.desc()).limit(1)).one_or_none()
        return None if row is None else _record(row)

    def unsuccessful(self, pipelines: Sequence[str], since: dt.datetime) -> list[SlotRecord]:
        query = sa.select(slots).where(slots.c.status.in_(UNSUCCESSFUL), slots.c.fires_at >= since)
        wanted = set(pipelines)
        with self._asking() as connection:
            rows = connection.execute(query.order_by(slots.c.fires_at, slots.c.pipeline))
            return [_record(row) for row in rows if row.pipeline in wanted]

    def many(self, wanted: Sequence[Slot]) -> dict[Slot, SlotRecord]:
        found: dict[Slot, SlotRecord] = {}
        asked = set(wanted)
        with self._asking() as connection:
            for first in range(0, len(wanted), _AT_ONCE):
                part = wanted[first : first + _AT_ONCE]
                query = sa.select(slots).where(
                    slots.c.pipeline.in_({slot.pipeline for slot in part}),
                    slots.c.fires_at.in_({slot.at for slot in part}),
                )
                records = [_record(row) for row in connection.execute(query)]
                found |= {record.slot: record for record in records if record.slot in asked}
        return found

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
        for first in range(0, len(new_ones), _AT_ONCE):
            with self._changing() as connection:
                now = self._now(connection)
                rows = [
                    {
                        "pipeline": slot.pipeline,
                        "fires_at": slot.at,
                        "status": status,
                        "fence": 0,
                        "failures": 0,
                        "deaths": 0,
                        "begun": False,
                        "not_before": now,
                        "reason": reason,
                        "holder": holder,
                    }
                    for slot in new_ones[first : first + _AT_ONCE]
                ]
                new += self._insert(connection, rows)
        return new

    def _insert(self, connection: sa.Connection, rows: list[dict[str, Any]]) -> int:
        """How many were not there yet."""
        insert = self._insert_new(slots)
        if self._dialect == "duckdb":  # a statement a row would take it long, and go uncounted
            return connection.execute(insert.values(rows)).rowcount
        return connection.execute(insert, rows).rowcount

    def claim(self, seen: SlotRecord, holder: str, seconds: float) -> Claim | None:
        with self._changing() as connection:
            now = self._now(connection)
            due = sa.or_(
                sa.and_(slots.c.status == "waiting", slots.c.not_before <= now),
                sa.and_(slots.c.status == "claimed", slots.c.expires_at <= now),
            )
            died = sa.and_(slots.c.status == "claimed", slots.c.begun)
            change = (
                sa.update(slots)
                .where(*_is(seen.slot), slots.c.fence == seen.fence, due)
                .ordered_values(  # deaths first: MySQL would show it the new values
                    (slots.c.deaths, slots.c.deaths + sa.case((died, 1), else_=0)),
                    (slots.c.begun, False),
                    (slots.c.status, "claimed"),
                    (slots.c.fence, seen.fence + 1),
                    (slots.c.holder, holder),
                    (slots.c.expires_at, now + dt.timedelta(seconds=seconds)),
                )
            )
            if connection.execute(change).rowcount != 1:
                return None
            known = connection.execute(
                sa.select(slots.c.failures, slots.c.deaths).where(*_is(seen.slot))
            ).one()
        return Claim(seen.slot, holder, seen.fence + 1, int(known.failures), int(known.deaths))

    def begin(self, claim: Claim, seconds: float, holder: str | None = None) -> bool:
        def begun(now: dt.datetime) -> dict[str, Any]:
            named = {} if holder is None else {"holder": holder}
            return {"begun": True, "expires_at": now + dt.timedelta(seconds=seconds), **named}

        return self._change(claim, begun, sa.not_(slots.c.begun))

    def renew(self, claim: Claim, seconds: float, reason: str | None = None) -> bool:
        told = {} if reason is None else {"reason": shown_text(reason)}
        return self._change(claim, lambda now: {"expires_at": now + dt.timedelta(seconds=seconds), **told})

    def end(self, claim: Claim, status: SlotStatus, reason: str | None = None) -> bool:
        return self._change(claim, lambda now: {"status": status, **_let_go(reason)})

    def wait(self, claim: Claim, seconds: float, reason: str | None = None, *, failed: bool = True) -> bool:
        return self._change(
            claim,
            lambda now: {
                "status": "waiting",
                "failures": slots.c.failures + int(failed),
                "not_before": now + dt.timedelta(seconds=seconds),
                **_let_go(reason),
            },
        )

    def reopen(self, slot: Slot) -> bool:
        with self._changing() as connection:
            change = (
                sa.update(slots)
                .where(*_is(slot), slots.c.status.in_(("gave_up", "skipped")))
                .values(status="waiting", failures=0, deaths=0, not_before=self._now(connection), reason=None)
            )
            return connection.execute(change).rowcount == 1

    def _change(
        self, claim: Claim, values: Callable[[dt.datetime], dict[str, Any]], *also: sa.ColumnElement[bool]
    ) -> bool:
        """While the claim is the newest. An expired one that nobody took over still counts."""
        with self._changing() as connection:
            change = (
                sa.update(slots)
                .where(*_is(claim.slot), slots.c.status == "claimed", slots.c.fence == claim.fence, *also)
                .values(values(self._now(connection)))
            )
            return connection.execute(change).rowcount == 1

    # ------------------------------------------------------------------ leases

    def lease(self, name: str, holder: str, seconds: float) -> Lease | None:
        with self._changing() as connection:
            now = self._now(connection)
            until = now + dt.timedelta(seconds=seconds)
            held = connection.execute(sa.select(leases).where(leases.c.name == name)).one_or_none()
            if held is None:
                row = {"name": name, "holder": holder, "fence": 1, "expires_at": until}
                made = connection.execute(self._insert_new(leases).values(row)).rowcount == 1
                return Lease(name, holder, 1) if made else None
            ahead = now + LONGEST_LEASE
            if now < held.expires_at <= ahead and held.holder != holder:
                return None
            same = held.holder == holder and held.expires_at > now
            fence = int(held.fence) + (0 if same else 1)
            taken = connection.execute(
                sa.update(leases)
                .where(
                    leases.c.name == name,
                    leases.c.fence == held.fence,
                    sa.or_(
                        leases.c.expires_at <= now, leases.c.expires_at > ahead, leases.c.holder == holder
                    ),
                )
                .values(holder=holder, fence=fence, expires_at=until)
            )
            return Lease(name, holder, fence) if taken.rowcount == 1 else None

    def release(self, lease: Lease) -> None:
        with self._changing() as connection:
            connection.execute(
                sa.update(leases)
                .where(leases.c.name == lease.name, leases.c.fence == lease.fence)
                .values(expires_at=self._now(connection))
            )

    def purge(self, before: dt.datetime, pipeline: str | None = None) -> int:
        """A portion a transaction: who claims at the same time waits for none of it long."""
        later, beside = slots.alias("later"), slots.alias("beside")
        newer = sa.exists().where(later.c.pipeline == slots.c.pipeline, later.c.fires_at > slots.c.fires_at)
        awaited = sa.exists().where(beside.c.fires_at == slots.c.fires_at, beside.c.status.in_(UNENDED))
        mine = sa.true() if pipeline is None else slots.c.pipeline == pipeline
        ended = slots.c.status.in_(ENDED)
        query = (
            sa.select(slots.c.pipeline, slots.c.fires_at)
            .where(slots.c.fires_at < before, ended, newer, sa.not_(awaited), mine)
            .limit(_AT_ONCE)
        )
        done = 0
        while True:
            with self._changing() as connection:
                old = [Slot(row.pipeline, row.fires_at) for row in connection.execute(query)]
                for slot in old:  # one that was reopened since it was found stays
                    done += connection.execute(sa.delete(slots).where(*_is(slot), ended)).rowcount
            if len(old) < _AT_ONCE:
                return done

    # ------------------------------------------------------------------ the database

    def _now(self, connection: sa.Connection) -> dt.datetime:
        if self._own_clock:
            return self._own_clock()
        found: dt.datetime = connection.execute(sa.text(_CLOCKS[self._dialect])).scalar_one()
        return found.astimezone(dt.timezone.utc) if found.tzinfo else found.replace(tzinfo=dt.timezone.utc)

    def _insert_new(self, table: sa.Table) -> Any:
        """An insert that does nothing where the key is there, and says so by its count of rows."""
        insert: Any
        if self._dialect == "mysql":
            insert = sa.insert(table).prefix_with("IGNORE")
        elif self._dialect in ("sqlite", "duckdb"):
            insert = sa.insert(table).prefix_with("OR IGNORE")
        else:
            from sqlalchemy.dialects import postgresql  # only where it is used: its import takes a while

            insert = postgresql.insert(table).on_conflict_do_nothing()
        return insert.execution_options(preserve_rowcount=True)

    @contextmanager
    def _asking(self) -> Iterator[sa.Connection]:
        try:
            with connected(self._reader) as connection:
                yield connection
        except SQLAlchemyError as error:
            raise run_log_unavailable(self.location, error) from error

    @contextmanager
    def _changing(self) -> Iterator[sa.Connection]:
        try:
            with connected(self._engine) as connection, connection.begin():
                yield connection
        except SQLAlchemyError as error:
            raise run_log_unavailable(self.location, error) from error


def _is(slot: Slot) -> tuple[Any, Any]:
    return slots.c.pipeline == slot.pipeline, slots.c.fires_at == slot.at


def _let_go(reason: str | None) -> dict[str, Any]:
    return {"holder": None, "expires_at": None, "reason": None if reason is None else shown_text(reason)}


def _record(row: Any) -> SlotRecord:
    """A row of the table, its columns in their order."""
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
