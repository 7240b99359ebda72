"""Actions in a SQL database, through SQLAlchemy Core: every change is one conditional statement.

Each change names the fence that was read before; if no row is changed, another process was faster. An action
that has not ended has a unique key, so that two requests for the same at once make one action.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import sqlalchemy as sa

from ematix_flow.errors import ConfigError
from ematix_flow.state.actions.base import ActionStore, no_such_action
from ematix_flow.state.actions.memory import new_action, new_hold
from ematix_flow.state.actions.records import (
    CARRIED_KINDS,
    ENDED,
    UNFINISHED,
    ActionKind,
    ActionRecord,
    ActionStatus,
    Hold,
    HoldKind,
    request_key,
    stored_text,
)
from ematix_flow.state.actions.tables import actions, holds
from ematix_flow.state.id_prefixes import find_by_prefix
from ematix_flow.state.runlog.table_store import RunLogTableStore
from ematix_flow.state.runlog.tables import ACTIONS_SINCE
from ematix_flow.state.sql.dialects import insert_if_new

_MAX_TRIES = 20
_PURGE_PORTION = 500
_NEWEST_FIRST = (actions.c.requested_at.desc(), actions.c.action_id.desc())
_RECORD_COLUMNS = [actions.c[each.name] for each in fields(ActionRecord)]
_HOLD_COLUMNS = [holds.c[each.name] for each in fields(Hold)]


class SqlActionStore(RunLogTableStore, ActionStore):
    """Actions in a SQL database. Without tables there are no actions."""

    since = ACTIONS_SINCE

    # ------------------------------------------------------------------ requests

    def request(
        self, kind: ActionKind, subject: str, arguments: Mapping[str, Any], *, by: str, via: str
    ) -> tuple[ActionRecord, bool]:
        for _ in range(_MAX_TRIES):
            with self._transaction() as connection:
                record = new_action(kind, subject, arguments, by, via, self._now(connection))
                key = request_key(kind, subject, record.arguments)
                if self._insert(connection, record, key):
                    return record, True
            known = self._records(sa.select(*_RECORD_COLUMNS).where(actions.c.request_key == key))
            if known:
                return known[0], False
        raise ConfigError(
            f"others kept requesting {kind} of {subject} in {self.location}", next_step="request it again"
        )

    def _insert(self, connection: sa.Connection, record: ActionRecord, key: str) -> bool:
        row = {each.name: getattr(record, each.name) for each in fields(record)}
        row |= {"run_ids": list(record.run_ids), "request_key": key}
        changed: int = connection.execute(insert_if_new(actions, self._dialect).values(row)).rowcount
        return changed == 1

    def get(self, action_id: str) -> ActionRecord:
        if not action_id:
            raise no_such_action(action_id)
        matches = actions.c.action_id.startswith(action_id, autoescape=True)
        query = sa.select(*_RECORD_COLUMNS)
        candidates = self._records(query.where(actions.c.action_id == action_id)) or self._records(
            query.where(matches).limit(3)
        )
        found = find_by_prefix("actions", action_id, {record.action_id: record for record in candidates})
        if found is None:
            raise no_such_action(action_id)
        return found

    def list(
        self,
        *,
        limit: int = 50,
        before: tuple[dt.datetime, str] | None = None,
        subject: str | None = None,
        kind: ActionKind | None = None,
        unfinished: bool = False,
    ) -> tuple[ActionRecord, ...]:
        query = sa.select(*_RECORD_COLUMNS).order_by(*_NEWEST_FIRST).limit(max(limit, 0))
        if before is not None:
            at, action_id = before
            same_time = sa.and_(actions.c.requested_at == at, actions.c.action_id < action_id)
            query = query.where(sa.or_(actions.c.requested_at < at, same_time))
        if subject is not None:
            query = query.where(actions.c.subject == subject)
        if kind is not None:
            query = query.where(actions.c.kind == kind)
        if unfinished:
            query = query.where(actions.c.status.in_(UNFINISHED))
        return self._records(query)

    def stop_requested(self, run_id: str) -> ActionRecord | None:
        key = request_key("stop", run_id, {})
        found = self._records(sa.select(*_RECORD_COLUMNS).where(actions.c.request_key == key))
        return found[0] if found else None

    # ------------------------------------------------------------------ carrying out

    def claimable(self) -> tuple[ActionRecord, ...]:
        query = sa.select(*_RECORD_COLUMNS).where(
            actions.c.status.in_(UNFINISHED), actions.c.kind.in_(CARRIED_KINDS)
        )
        with self._read_connection() as connection:
            found = _read(connection, query.order_by(actions.c.requested_at, actions.c.action_id))
            now = self._now(connection) if found else None
        return tuple(record for record in found if now is not None and record.is_claimable(now))

    def keep_waiting(self, seen: ActionRecord, seconds: float) -> bool:
        return self._change(seen, "waiting", seconds, {})

    def claim(self, seen: ActionRecord, holder: str, seconds: float) -> ActionRecord | None:
        this = actions.c.action_id == seen.action_id
        with self._transaction() as connection:
            now = self._now(connection)
            expired = sa.and_(actions.c.status == "claimed", actions.c.expires_at <= now)
            died = sa.and_(actions.c.status == "claimed", actions.c.begun)
            change = (
                sa.update(actions)
                .where(
                    this,
                    actions.c.fence == seen.fence,
                    actions.c.kind.in_(CARRIED_KINDS),
                    sa.or_(actions.c.status == "waiting", expired),
                )
                .ordered_values(  # deaths first: MySQL reads values that it has just set
                    (actions.c.deaths, actions.c.deaths + sa.case((died, 1), else_=0)),
                    (actions.c.begun, False),
                    (actions.c.status, "claimed"),
                    (actions.c.fence, actions.c.fence + 1),
                    (actions.c.holder, holder),
                    (actions.c.expires_at, now + dt.timedelta(seconds=seconds)),
                )
            )
            if connection.execute(change).rowcount != 1:
                return None
            return _read(connection, sa.select(*_RECORD_COLUMNS).where(this))[0]

    def begin(self, claimed: ActionRecord, seconds: float, holder: str | None = None) -> bool:
        new_holder = {} if holder is None else {"holder": holder}
        return self._change_claimed(claimed, seconds, {"begun": True, **new_holder}, sa.not_(actions.c.begun))

    def renew(self, claimed: ActionRecord, seconds: float) -> bool:
        return self._change_claimed(claimed, seconds, {})

    def hand_back(self, claimed: ActionRecord) -> bool:
        return self._change_claimed(claimed, None, {"status": "waiting", "begun": False, "holder": None})

    def _change_claimed(
        self,
        claimed: ActionRecord,
        seconds: float | None,
        values: dict[str, Any],
        *also: sa.ColumnElement[bool],
    ) -> bool:
        """Change the action while the claim is the newest, which then lasts for ``seconds`` from now.

        An expired claim that was not taken over still counts.
        """
        return self._change(claimed, "claimed", seconds, values, *also)

    def _change(
        self,
        seen: ActionRecord,
        status: ActionStatus,
        seconds: float | None,
        values: dict[str, Any],
        *also: sa.ColumnElement[bool],
    ) -> bool:
        with self._transaction() as connection:
            until = None if seconds is None else self._now(connection) + dt.timedelta(seconds=seconds)
            change = sa.update(actions).where(
                actions.c.action_id == seen.action_id,
                actions.c.status == status,
                actions.c.fence == seen.fence,
                *also,
            )
            return connection.execute(change.values(expires_at=until, **values)).rowcount == 1

    def end(
        self,
        claimed: ActionRecord,
        status: ActionStatus,
        outcome: str,
        run_ids: tuple[str, ...] = (),
    ) -> bool:
        with self._transaction() as connection:
            change = sa.update(actions).where(
                actions.c.action_id == claimed.action_id,
                actions.c.status.in_(UNFINISHED),
                actions.c.fence == claimed.fence,
            )
            values = {
                "status": status,
                "outcome": stored_text(outcome),
                "run_ids": list(run_ids),
                "ended_at": self._now(connection),
                "request_key": None,
                "holder": None,
                "expires_at": None,
            }
            return connection.execute(change.values(values)).rowcount == 1

    # ------------------------------------------------------------------ holds

    def hold(self, kind: HoldKind, name: str, *, by: str, reason: str | None = None) -> bool:
        with self._transaction() as connection:
            made = new_hold(kind, name, by, reason, self._now(connection))
            row = {each.name: getattr(made, each.name) for each in fields(made)}
            changed: int = connection.execute(insert_if_new(holds, self._dialect).values(row)).rowcount
            return changed == 1

    def release(self, kind: HoldKind, name: str) -> bool:
        with self._transaction() as connection:
            ended = sa.delete(holds).where(holds.c.kind == kind, holds.c.name == name)
            return connection.execute(ended).rowcount == 1

    def holds(self) -> tuple[Hold, ...]:
        with self._read_connection() as connection:
            rows = connection.execute(sa.select(*_HOLD_COLUMNS)).all()
        return tuple(sorted((Hold(*row) for row in rows), key=lambda hold: (hold.kind, hold.name)))

    def mark_held(self, name: str, run_id: str, at: str) -> None:
        with self._transaction() as connection:
            change = sa.update(holds).where(holds.c.kind == "run", holds.c.name == name)
            connection.execute(change.values(held_run=run_id, held_at=stored_text(at)))

    def mark_released(self, name: str, run_id: str) -> None:
        with self._transaction() as connection:
            change = sa.update(holds).where(
                holds.c.kind == "run", holds.c.name == name, holds.c.held_run == run_id
            )
            connection.execute(change.values(held_run=None, held_at=None))

    def purge(self, before: dt.datetime) -> int:
        """Delete in portions, each in its own transaction, so that concurrent changes do not wait long."""
        old = sa.and_(actions.c.status.in_(ENDED), actions.c.ended_at < before)
        query = sa.select(actions.c.action_id).where(old).limit(_PURGE_PORTION)
        done = 0
        while True:
            with self._transaction() as connection:
                ids = [*connection.scalars(query)]
                if ids:
                    connection.execute(sa.delete(actions).where(actions.c.action_id.in_(ids), old))
            done += len(ids)
            if len(ids) < _PURGE_PORTION:
                return done

    def _records(self, query: sa.Select[Any]) -> tuple[ActionRecord, ...]:
        with self._read_connection() as connection:
            return _read(connection, query)


def _read(connection: sa.Connection, query: sa.Select[Any]) -> tuple[ActionRecord, ...]:
    names = [each.name for each in fields(ActionRecord)]
    found = []
    for row in connection.execute(query):
        values = dict(zip(names, row, strict=True))
        for name in ("fence", "deaths"):
            values[name] = int(values[name])
        values |= {"run_ids": tuple(values["run_ids"]), "begun": bool(values["begun"])}
        found.append(ActionRecord(**values))
    return tuple(found)
