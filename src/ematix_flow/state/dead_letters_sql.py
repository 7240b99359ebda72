"""Dead letters in a SQL database, through SQLAlchemy Core.

`SqlDeadLetters` knows no particular database: what differs between them is the engine it is given. Every
transaction is short and handles a bounded portion, and each can be repeated.
"""

from __future__ import annotations

import builtins
import datetime as dt
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from ematix_flow.errors import TargetFailed
from ematix_flow.state.dead_letters import (
    LEASE_SECONDS,
    LONGEST_PAYLOAD,
    MAX_ATTEMPTS,
    DeadLetter,
    DeadLetterStore,
    Lease,
    LetterCount,
    LetterStatus,
    Selection,
    Stage,
    no_such_letter,
    several_letters,
    shown_reason,
    storable,
)
from ematix_flow.state.dead_letters_tables import TABLE, is_current, letter_tables, migrate, stored_version
from ematix_flow.state.records import utc_now
from ematix_flow.state.root import private_directory
from ematix_flow.state.sql_failures import is_conflict, own_words
from ematix_flow.state.sqlite_file import sqlite_engine

MOST_LETTERS = 500  # in one statement
MOST_BYTES = 8 * 1024 * 1024  # of payloads in one statement, and in one lease
_TRIES = 5
_PAUSE = 0.05

_FIELDS = tuple(field.name for field in fields(DeadLetter))
_LISTED = tuple(name for name in _FIELDS if name not in ("payload", "key"))

R = TypeVar("R")
Page = list[tuple[int, str]]  # seq and id


class SqlDeadLetters(DeadLetterStore):
    """Letters in one table of the database behind ``engine``, which is made or migrated at once.

    ``reader`` is the engine for questions, where those are opened in another way.
    """

    def __init__(
        self,
        engine: sa.Engine,
        location: str,
        *,
        schema: str | None = None,
        table: str = TABLE,
        max_attempts: int = MAX_ATTEMPTS,
        longest_payload: int = LONGEST_PAYLOAD,
        reader: sa.Engine | None = None,
        clock: Callable[[], dt.datetime] = utc_now,
    ) -> None:
        self.location = location
        self.max_attempts = max_attempts
        self.longest_payload = longest_payload
        self._engine, self._reader = engine, reader or engine
        self._clock = clock
        self._tables = letter_tables(schema, table)
        self._letters = self._tables.letters
        self._prepare()

    # ------------------------------------------------------------------ adding

    def add(self, letters: Sequence[DeadLetter]) -> int:
        once = {letter.id: letter for letter in reversed(letters)}  # of equal ids the first stays
        added = 0
        for portion in _portions(tuple(reversed(once.values()))):
            cut = [letter.cut_to(self.longest_payload) for letter in portion]
            added += self._written(partial(self._add, letters=cut))
        return added

    def _add(self, connection: sa.Connection, letters: Sequence[DeadLetter]) -> int:
        table = self._letters
        there = {
            row.id: row
            for row in connection.execute(
                sa.select(table.c.id, table.c.status, table.c.batch).where(
                    table.c.id.in_([letter.id for letter in letters])
                )
            )
        }
        new = [letter for letter in letters if letter.id not in there]
        first = time.time_ns()
        rows = [
            {name: getattr(letter, name) for name in _FIELDS} | {"seq": first + number}
            for number, letter in enumerate(new)
        ]
        if rows:
            connection.execute(sa.insert(table), rows)
        again = [
            letter
            for letter in letters
            if letter.id in there
            and there[letter.id].status == "replayed"
            and there[letter.id].batch != letter.batch
        ]
        for number, letter in enumerate(again, start=len(rows)):
            values = {name: getattr(letter, name) for name in _FIELDS if name != "id"}
            connection.execute(
                sa.update(table).where(table.c.id == letter.id).values(values | {"seq": first + number})
            )
        return len(new) + len(again)

    # ------------------------------------------------------------------ looking

    def list(
        self,
        pipeline: str | None = None,
        *,
        status: LetterStatus | None = None,
        stage: Stage | None = None,
        limit: int = 20,
        offset: int = 0,
    ) -> builtins.list[DeadLetter]:
        table = self._letters
        query = sa.select(*[table.c[name] for name in _LISTED]).order_by(table.c.seq, table.c.id)
        query = query.limit(max(limit, 0)).offset(max(offset, 0))
        for column, value in ((table.c.pipeline, pipeline), (table.c.status, status), (table.c.stage, stage)):
            if value is not None:
                query = query.where(column == storable(value))
        return self._letters_of(query)

    def counts(self, pipeline: str | None = None) -> builtins.list[LetterCount]:
        table = self._letters
        groups = (table.c.pipeline, table.c.stage, table.c.status)
        failed = (sa.func.min(table.c.failed_at), sa.func.max(table.c.failed_at))
        query = sa.select(*groups, sa.func.count(), *failed).group_by(*groups)
        if pipeline is not None:
            query = query.where(table.c.pipeline == storable(pipeline))
        found = [LetterCount(*tuple(row)) for row in self._rows(query)]
        return sorted(found, key=lambda count: (count.pipeline, count.stage, count.status))

    def get(self, pipeline: str | None, id_or_prefix: str) -> DeadLetter:
        if not id_or_prefix.isalnum() or not id_or_prefix.isascii():
            raise no_such_letter(id_or_prefix)
        table = self._letters
        # by range, which every database answers from the key
        begins = sa.and_(table.c.id >= id_or_prefix, table.c.id < id_or_prefix + "~")
        query = sa.select(table.c.id).where(begins).order_by(table.c.id).limit(4)
        if pipeline is not None:
            query = query.where(table.c.pipeline == storable(pipeline))
        found = [row.id for row in self._rows(query)]
        if id_or_prefix in found:
            found = [id_or_prefix]
        if len(found) > 1:
            raise several_letters(id_or_prefix, found)
        letters = self._whole_letters(found)
        if not letters:
            raise no_such_letter(id_or_prefix)
        return letters[0]

    # ------------------------------------------------------------------ replaying

    def take(
        self,
        pipeline: str,
        selection: Selection,
        *,
        lease_seconds: float = LEASE_SECONDS,
        limit: int = MOST_LETTERS,
        before: dt.datetime | None = None,
    ) -> Lease:
        table, token = self._letters, uuid.uuid4().hex
        statuses = selection.takes()
        until = self._clock() + dt.timedelta(seconds=lease_seconds)
        most = min(limit, MOST_LETTERS, selection.first or limit)
        if not statuses or most < 1:
            return Lease(token, until)
        also = [table.c.status.in_(statuses), table.c.whole == sa.true()]
        if before is not None:
            also.append(table.c.failed_at < before)
        for _ in range(_TRIES):
            ids = self._affordable(next(self._pages(pipeline, selection, also, most), []))
            if not ids:
                return Lease(token, until)
            conditions = [table.c.id.in_(ids), table.c.status.in_(statuses), self._free()]
            change = sa.update(table).where(*conditions).values(lease=token, leased_until=until)
            if self._changed(change):  # none: another replay was quicker, and what comes next may be ours
                break
        mine = sa.select(table.c.id).where(table.c.lease == token, table.c.id.in_(ids))
        taken = [row.id for row in self._rows(mine.order_by(table.c.seq, table.c.id))]
        return Lease(token, until, tuple(self._whole_letters(taken)))

    def renew(self, lease: Lease, lease_seconds: float = LEASE_SECONDS) -> Lease:
        table = self._letters
        until = self._clock() + dt.timedelta(seconds=lease_seconds)
        ids = [letter.id for letter in lease.letters]
        still: set[str] = set()
        for part in _parts(ids):
            mine = [table.c.id.in_(part), table.c.lease == lease.token]
            self._changed(sa.update(table).where(*mine).values(leased_until=until))
            still.update(row.id for row in self._rows(sa.select(table.c.id).where(*mine)))
        return Lease(lease.token, until, tuple(letter for letter in lease.letters if letter.id in still))

    def done(self, lease: Lease, ids: Sequence[str]) -> int:
        return self._let_go(lease, ids, status="replayed")

    def failed(self, lease: Lease, id: str, reason: str) -> LetterStatus | None:
        table = self._letters
        attempt = table.c.attempt + 1
        status = sa.case((attempt >= self.max_attempts, "parked"), else_="pending")
        change = (
            sa.update(table)
            .where(table.c.id == id, table.c.lease == lease.token)
            .ordered_values(
                (table.c.status, status),  # before the attempt: MySQL would see the one it has just set
                (table.c.attempt, attempt),
                (table.c.reason, shown_reason(reason)),
                (table.c.failed_at, self._clock()),
                (table.c.lease, None),
                (table.c.leased_until, None),
            )
        )
        if not self._changed(change):
            return None
        found = self._rows(sa.select(table.c.status).where(table.c.id == id))
        return found[0].status if found else None

    def release(self, lease: Lease, ids: Sequence[str] | None = None) -> int:
        return self._let_go(lease, [letter.id for letter in lease.letters] if ids is None else ids)

    def _let_go(self, lease: Lease, ids: Sequence[str], **values: Any) -> int:
        table = self._letters
        return sum(
            self._changed(
                sa.update(table)
                .where(table.c.id.in_(part), table.c.lease == lease.token)
                .values(lease=None, leased_until=None, **values)
            )
            for part in _parts(ids)
        )

    # ------------------------------------------------------------------ tidying

    def park(self, pipeline: str, selection: Selection) -> int:
        table = self._letters
        pending = table.c.status == "pending"
        parked = sa.update(table).values(status="parked", lease=None, leased_until=None)
        return sum(
            self._changed(parked.where(table.c.id.in_([id for _, id in page]), pending, self._free()))
            for page in self._pages(pipeline, selection, [pending], selection.first)
        )

    def purge(self, pipeline: str, selection: Selection) -> int:
        table = self._letters
        return sum(
            self._changed(sa.delete(table).where(table.c.id.in_([id for _, id in page]), self._free()))
            for page in self._pages(pipeline, selection, [], selection.first)
        )

    def close(self) -> None:
        self._engine.dispose()
        self._reader.dispose()

    # ------------------------------------------------------------------ choosing

    def _pages(
        self,
        pipeline: str,
        selection: Selection,
        also: Sequence[sa.ColumnElement[bool]],
        most: int | None,
    ) -> Iterator[Page]:
        """The chosen letters that nobody holds, oldest first, page by page."""
        table = self._letters
        query = sa.select(table.c.seq, table.c.id).order_by(table.c.seq, table.c.id)
        query = query.where(table.c.pipeline == storable(pipeline), self._free(), *also)
        if selection.stage is not None:
            query = query.where(table.c.stage == selection.stage)
        if selection.status is not None:
            query = query.where(table.c.status == selection.status)
        if selection.reason is not None:
            query = query.where(table.c.reason.icontains(storable(selection.reason), autoescape=True))
        for part in (None,) if selection.ids is None else _parts(selection.ids):
            chosen = query if part is None else query.where(table.c.id.in_(part))
            after: tuple[int, str] | None = None
            while most is None or most > 0:
                page = chosen.limit(MOST_LETTERS if most is None else min(most, MOST_LETTERS))
                if after is not None:
                    seq, id = after
                    later = sa.and_(table.c.seq == seq, table.c.id > id)
                    page = page.where(sa.or_(table.c.seq > seq, later))
                found = [(row.seq, row.id) for row in self._rows(page)]
                if not found:
                    break
                most = None if most is None else most - len(found)
                after = found[-1]
                yield found

    def _affordable(self, page: Page) -> builtins.list[str]:
        """The first ids of a page whose payloads fit into memory together; always one."""
        table = self._letters
        query = sa.select(table.c.id, table.c.payload_size).where(table.c.id.in_([id for _, id in page]))
        sizes = {row.id: row.payload_size for row in self._rows(query)}
        ids: builtins.list[str] = []
        total = 0
        for _, id in page:
            total += sizes.get(id, 0)
            if ids and total > MOST_BYTES:
                break
            ids.append(id)
        return ids

    def _free(self) -> sa.ColumnElement[bool]:
        table = self._letters
        return sa.or_(table.c.leased_until.is_(None), table.c.leased_until <= self._clock())

    # ------------------------------------------------------------------ talking to the database

    def _prepare(self) -> None:
        try:
            with self._reader.connect() as connection:
                current = is_current(stored_version(connection, self._tables), self.location)
        except SQLAlchemyError as error:
            if not is_conflict(error):
                raise self._unavailable(error) from error
            current = False  # another makes them at this moment
        if not current:
            self._written(lambda connection: migrate(connection, self._tables, self.location))

    def _whole_letters(self, ids: Sequence[str]) -> builtins.list[DeadLetter]:
        table = self._letters
        query = sa.select(*[table.c[name] for name in _FIELDS]).where(table.c.id.in_(ids))
        return self._letters_of(query.order_by(table.c.seq, table.c.id)) if ids else []

    def _letters_of(self, query: sa.Select[Any]) -> builtins.list[DeadLetter]:
        return [DeadLetter(**row._mapping) for row in self._rows(query)]

    def _rows(self, query: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        try:
            with self._reader.connect() as connection:
                return connection.execute(query).all()
        except SQLAlchemyError as error:
            raise self._unavailable(error) from error

    def _changed(self, change: sa.Update | sa.Delete) -> int:
        return self._written(lambda connection: connection.execute(change).rowcount)

    def _written(self, work: Callable[[sa.Connection], R]) -> R:
        """Work in one transaction, again when another session only got in its way."""
        for left in reversed(range(_TRIES)):
            try:
                with self._transaction() as connection:
                    return work(connection)
            except SQLAlchemyError as error:
                if not left or not is_conflict(error):
                    raise self._unavailable(error) from error
                time.sleep(_PAUSE * (_TRIES - left))
        raise AssertionError("the last try returns or raises")

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        with self._engine.connect().execution_options(writes=True) as connection, connection.begin():
            yield connection

    def _unavailable(self, error: SQLAlchemyError) -> TargetFailed:
        return TargetFailed(
            f"the dead letters in {self.location} cannot be used: {own_words(error)}",
            state="what had been kept is unchanged",
            next_step="see that the database can be reached and written to, or name another store",
        )


def open_dead_letter_file(
    path: Path, *, table: str | None = None, max_attempts: int = MAX_ATTEMPTS
) -> SqlDeadLetters:
    """The letters in a SQLite file, which is made at need, for this user alone."""
    private_directory(path.parent)
    return SqlDeadLetters(
        sqlite_engine(path), f"sqlite://{path}", table=table or TABLE, max_attempts=max_attempts
    )


def _parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), MOST_LETTERS):
        yield ids[start : start + MOST_LETTERS]


def _portions(letters: Sequence[DeadLetter]) -> Iterator[Sequence[DeadLetter]]:
    """Letters that fit into one statement together."""
    portion: list[DeadLetter] = []
    size = 0
    for letter in letters:
        if portion and (len(portion) == MOST_LETTERS or size + len(letter.payload) > MOST_BYTES):
            yield portion
            portion, size = [], 0
        portion.append(letter)
        size += len(letter.payload)
    if portion:
        yield portion
