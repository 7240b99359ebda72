"""Dead letters in a SQL database, through SQLAlchemy Core.

`SqlDeadLetterStore` works on every database: the engine that it is given holds what differs. Every
transaction is short, handles a bounded portion and can be repeated.
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

from ematix_flow.errors import TargetFailed, UsageError
from ematix_flow.state.dead_letters.base import (
    LEASE_SECONDS,
    MAX_ATTEMPTS,
    MAX_PAYLOAD_BYTES,
    DeadLetter,
    DeadLetterStore,
    LetterCount,
    LetterLease,
    LetterPage,
    LetterSelection,
    LetterStage,
    LetterStatus,
    NoSuchLetter,
    bounded_reason,
    storable_text,
)
from ematix_flow.state.dead_letters.tables import TABLE, is_current, letter_tables, migrate
from ematix_flow.state.id_prefixes import find_by_prefix
from ematix_flow.state.sql.failures import database_message, is_conflict
from ematix_flow.state.sql.sqlite import sqlite_engine
from ematix_flow.state.state_root import private_directory
from ematix_flow.state.times import utc_now

LETTERS_PER_STATEMENT = 500  # in one statement
BYTES_PER_STATEMENT = 8 * 1024 * 1024  # of payloads in one statement, and in one lease
_MAX_TRIES = 5
_PAUSE = 0.05

_FIELDS = tuple(field.name for field in fields(DeadLetter))
_LISTED_FIELDS = tuple(name for name in _FIELDS if name not in ("payload", "key"))

R = TypeVar("R")
Page = list[tuple[int, str]]  # seq and id


class SqlDeadLetterStore(DeadLetterStore):
    """Stores letters in one table of the database behind ``engine``; creates or migrates the table at once.

    ``reader`` is the engine for queries, if they use another one.
    """

    def __init__(
        self,
        engine: sa.Engine,
        location: str,
        *,
        schema: str | None = None,
        table: str = TABLE,
        max_attempts: int = MAX_ATTEMPTS,
        longest_payload: int = MAX_PAYLOAD_BYTES,
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
        added = 0
        for portion in _letter_portions(_first_of_each_id(letters)):
            cut = [letter.with_payload_cut_to(self.longest_payload) for letter in portion]
            added += self._run_in_transaction(partial(self._add, letters=cut))
        return added

    def _add(self, connection: sa.Connection, letters: Sequence[DeadLetter]) -> int:
        table = self._letters
        known = {row.id: row for row in connection.execute(self._known_letters(letters))}
        new = [letter for letter in letters if letter.id not in known]
        first = time.time_ns()
        rows = [
            {name: getattr(letter, name) for name in _FIELDS} | {"seq": first + number}
            for number, letter in enumerate(new)
        ]
        if rows:
            connection.execute(sa.insert(table), rows)
        reopened = [
            letter for letter in letters if letter.id in known and _is_reopened(known[letter.id], letter)
        ]
        for number, letter in enumerate(reopened, start=len(rows)):
            values = {name: getattr(letter, name) for name in _FIELDS if name != "id"}
            connection.execute(
                sa.update(table).where(table.c.id == letter.id).values(values | {"seq": first + number})
            )
        moved = [
            letter.id
            for letter in letters
            if letter.id in known
            and known[letter.id].status != "replayed"
            and known[letter.id].batch != letter.batch
        ]
        for batch in {letter.batch for letter in letters if letter.id in moved}:
            ids = [letter.id for letter in letters if letter.id in moved and letter.batch == batch]
            connection.execute(sa.update(table).where(table.c.id.in_(ids)).values(batch=batch))
        return len(new) + len(reopened)

    def select_new(self, letters: Sequence[DeadLetter]) -> builtins.list[DeadLetter]:
        found: builtins.list[DeadLetter] = []
        for portion in _letter_portions(_first_of_each_id(letters)):
            known = {row.id: row for row in self._rows(self._known_letters(portion))}
            found += [
                letter
                for letter in portion
                if letter.id not in known or _is_reopened(known[letter.id], letter)
            ]
        return found

    def _known_letters(self, letters: Sequence[DeadLetter]) -> sa.Select[Any]:
        """The query for those of the letters that the table has."""
        table = self._letters
        ids = [letter.id for letter in letters]
        return sa.select(table.c.id, table.c.status, table.c.batch).where(table.c.id.in_(ids))

    # ------------------------------------------------------------------ reading

    def list(
        self,
        pipeline: str | None = None,
        *,
        status: LetterStatus | None = None,
        stage: LetterStage | None = None,
        limit: int = 20,
        offset: int = 0,
    ) -> builtins.list[DeadLetter]:
        table = self._letters
        query = sa.select(*[table.c[name] for name in _LISTED_FIELDS]).order_by(table.c.seq, table.c.id)
        query = query.limit(max(limit, 0)).offset(max(offset, 0))
        for column, value in ((table.c.pipeline, pipeline), (table.c.status, status), (table.c.stage, stage)):
            if value is not None:
                query = query.where(column == storable_text(value))
        return self._read_letters(query)

    def page(
        self,
        pipeline: str | None = None,
        *,
        status: LetterStatus | None = None,
        stage: LetterStage | None = None,
        reason: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> LetterPage:
        table = self._letters
        query = sa.select(*[table.c[name] for name in (*_LISTED_FIELDS, "seq")])
        for column, value in ((table.c.pipeline, pipeline), (table.c.status, status), (table.c.stage, stage)):
            if value is not None:
                query = query.where(column == storable_text(value))
        if reason is not None:
            query = query.where(table.c.reason.icontains(storable_text(reason), autoescape=True))
        if after is not None:
            seq, id = _parse_place(after)
            query = query.where(table.c.seq >= seq, sa.or_(table.c.seq > seq, table.c.id > id))
        rows = self._rows(query.order_by(table.c.seq, table.c.id).limit(limit + 1))
        letters = tuple(
            DeadLetter(**{name: row._mapping[name] for name in _LISTED_FIELDS}) for row in rows[:limit]
        )
        last = rows[limit - 1] if len(rows) > limit else None
        return LetterPage(letters, None if last is None else f"{last.seq}-{last.id}")

    def of_batch(self, pipeline: str, stage: LetterStage, batch: str) -> builtins.list[DeadLetter]:
        table = self._letters
        found = [table.c.pipeline == storable_text(pipeline), table.c.stage == stage]
        found.append(table.c.batch == storable_text(batch))
        return self._read_letters(sa.select(*[table.c[name] for name in _LISTED_FIELDS]).where(*found))

    def counts(self, pipeline: str | None = None) -> builtins.list[LetterCount]:
        table = self._letters
        groups = (table.c.pipeline, table.c.stage, table.c.status)
        failed = (sa.func.min(table.c.failed_at), sa.func.max(table.c.failed_at))
        query = sa.select(*groups, sa.func.count(), *failed).group_by(*groups)
        if pipeline is not None:
            query = query.where(table.c.pipeline == storable_text(pipeline))
        found = [LetterCount(*tuple(row)) for row in self._rows(query)]
        return sorted(found, key=lambda count: (count.pipeline, count.stage, count.status))

    def get(self, pipeline: str | None, id_or_prefix: str) -> DeadLetter:
        if not id_or_prefix.isalnum() or not id_or_prefix.isascii():
            raise NoSuchLetter(id_or_prefix)
        table = self._letters
        # by range, which every database answers from the key
        begins = sa.and_(table.c.id >= id_or_prefix, table.c.id < id_or_prefix + "~")
        query = sa.select(table.c.id).where(begins).order_by(table.c.id).limit(4)
        if pipeline is not None:
            query = query.where(table.c.pipeline == storable_text(pipeline))
        found = find_by_prefix("dead letters", id_or_prefix, {row.id: row.id for row in self._rows(query)})
        letters = self._whole_letters([] if found is None else [found])
        if not letters:
            raise NoSuchLetter(id_or_prefix)
        return letters[0]

    # ------------------------------------------------------------------ replaying

    def lease(
        self,
        pipeline: str,
        selection: LetterSelection,
        *,
        lease_seconds: float = LEASE_SECONDS,
        limit: int = LETTERS_PER_STATEMENT,
        before: dt.datetime | None = None,
    ) -> LetterLease:
        table, token = self._letters, uuid.uuid4().hex
        statuses = selection.replayable_statuses()
        until = self._clock() + dt.timedelta(seconds=lease_seconds)
        most = min(limit, LETTERS_PER_STATEMENT, selection.first or limit)
        if not statuses or most < 1:
            return LetterLease(token, until)
        also = [table.c.status.in_(statuses), table.c.whole == sa.true(), table.c.loading.is_(None)]
        if before is not None:
            also.append(table.c.failed_at < before)
        for _ in range(_MAX_TRIES):
            ids = self._ids_within_byte_limit(next(self._pages(pipeline, selection, also, most), []))
            if not ids:
                return LetterLease(token, until)
            conditions = [table.c.id.in_(ids), *also, self._not_leased()]
            change = sa.update(table).where(*conditions).values(lease=token, leased_until=until)
            if self._execute_change(change):  # 0: another replay was faster, so try the next letters
                break
        leased = sa.select(table.c.id).where(table.c.lease == token, table.c.id.in_(ids))
        ids = [row.id for row in self._rows(leased.order_by(table.c.seq, table.c.id))]
        return LetterLease(token, until, tuple(self._whole_letters(ids)))

    def lease_interrupted(self, pipeline: str, *, lease_seconds: float = LEASE_SECONDS) -> LetterLease:
        table, token = self._letters, uuid.uuid4().hex
        until = self._clock() + dt.timedelta(seconds=lease_seconds)
        free = [table.c.pipeline == storable_text(pipeline), table.c.loading.is_not(None), self._not_leased()]
        oldest = sa.select(table.c.loading).where(*free).order_by(table.c.seq, table.c.id).limit(1)
        found = self._rows(oldest)
        if not found:
            return LetterLease(token, until)
        of_replay = table.c.loading.startswith(found[0].loading.split(" ")[0].rpartition(":")[0])
        self._execute_change(sa.update(table).where(*free, of_replay).values(lease=token, leased_until=until))
        leased = sa.select(table.c.id).where(
            table.c.lease == token, table.c.pipeline == storable_text(pipeline)
        )
        ids = [row.id for row in self._rows(leased.order_by(table.c.seq, table.c.id))]
        return LetterLease(token, until, tuple(self._whole_letters(ids)))

    def loading_of_others(self, pipeline: str, lease: LetterLease) -> dt.datetime | None:
        table = self._letters
        of_others = sa.or_(table.c.lease.is_(None), table.c.lease != lease.token)
        loading = [table.c.pipeline == storable_text(pipeline), table.c.loading.is_not(None), of_others]
        rows = self._rows(sa.select(table.c.leased_until).where(*loading))
        return max((row.leased_until or self._clock() for row in rows), default=None)

    def mark_loading(
        self, lease: LetterLease, ids: Sequence[str], loading: str | None, loaded_in: str | None = None
    ) -> int:
        values = {} if loaded_in is None else {"loaded_in": loaded_in}
        return self._change_leased(lease, ids, loading=loading, **values)

    def renew(self, lease: LetterLease, lease_seconds: float = LEASE_SECONDS) -> LetterLease:
        table = self._letters
        until = self._clock() + dt.timedelta(seconds=lease_seconds)
        ids = [letter.id for letter in lease.letters]
        still: set[str] = set()
        for part in _id_portions(ids):
            owned = [table.c.id.in_(part), table.c.lease == lease.token]
            self._execute_change(sa.update(table).where(*owned).values(leased_until=until))
            still.update(row.id for row in self._rows(sa.select(table.c.id).where(*owned)))
        return LetterLease(
            lease.token, until, tuple(letter for letter in lease.letters if letter.id in still)
        )

    def mark_replayed(self, lease: LetterLease, ids: Sequence[str]) -> int:
        return self._release_letters(lease, ids, status="replayed", loading=None)

    def mark_failed(
        self, lease: LetterLease, id: str, reason: str, loaded_in: str | None = None
    ) -> LetterStatus | None:
        table = self._letters
        attempt = table.c.attempt + 1
        status = sa.case((attempt >= self.max_attempts, "parked"), else_="pending")
        change = (
            sa.update(table)
            .where(table.c.id == id, table.c.lease == lease.token)
            .ordered_values(
                (table.c.status, status),  # before the attempt: MySQL reads values that it has just set
                (table.c.attempt, attempt),
                (table.c.reason, bounded_reason(reason)),
                (table.c.failed_at, self._clock()),
                (table.c.lease, None),
                (table.c.leased_until, None),
                (table.c.loading, None),
                (table.c.loaded_in, table.c.loaded_in if loaded_in is None else loaded_in),
            )
        )
        if not self._execute_change(change):
            return None
        found = self._rows(sa.select(table.c.status).where(table.c.id == id))
        return found[0].status if found else None

    def release(self, lease: LetterLease, ids: Sequence[str] | None = None) -> int:
        return self._release_letters(lease, [letter.id for letter in lease.letters] if ids is None else ids)

    def _release_letters(self, lease: LetterLease, ids: Sequence[str], **values: Any) -> int:
        return self._change_leased(lease, ids, lease=None, leased_until=None, **values)

    def _change_leased(self, held: LetterLease, ids: Sequence[str], **values: Any) -> int:
        table = self._letters
        return sum(
            self._execute_change(
                sa.update(table).where(table.c.id.in_(part), table.c.lease == held.token).values(**values)
            )
            for part in _id_portions(ids)
        )

    # ------------------------------------------------------------------ tidying

    def park(self, pipeline: str, selection: LetterSelection) -> int:
        table = self._letters
        pending = table.c.status == "pending"
        parked = sa.update(table).values(status="parked", lease=None, leased_until=None)
        return sum(
            self._execute_change(
                parked.where(table.c.id.in_([id for _, id in page]), pending, self._not_leased())
            )
            for page in self._pages(pipeline, selection, [pending], selection.first)
        )

    def purge(self, pipeline: str, selection: LetterSelection) -> int:
        table = self._letters
        return sum(
            self._execute_change(
                sa.delete(table).where(table.c.id.in_([id for _, id in page]), self._not_leased())
            )
            for page in self._pages(pipeline, selection, [], selection.first)
        )

    def close(self) -> None:
        self._engine.dispose()
        self._reader.dispose()

    # ------------------------------------------------------------------ choosing

    def _pages(
        self,
        pipeline: str,
        selection: LetterSelection,
        also: Sequence[sa.ColumnElement[bool]],
        most: int | None,
    ) -> Iterator[Page]:
        """Yield the selected letters that are not leased, oldest first, page by page."""
        table = self._letters
        query = sa.select(table.c.seq, table.c.id).order_by(table.c.seq, table.c.id)
        query = query.where(table.c.pipeline == storable_text(pipeline), self._not_leased(), *also)
        if selection.stage is not None:
            query = query.where(table.c.stage == selection.stage)
        if selection.status is not None:
            query = query.where(table.c.status == selection.status)
        if selection.reason is not None:
            query = query.where(table.c.reason.icontains(storable_text(selection.reason), autoescape=True))
        for part in (None,) if selection.ids is None else _id_portions(selection.ids):
            chosen = query if part is None else query.where(table.c.id.in_(part))
            after: tuple[int, str] | None = None
            while most is None or most > 0:
                page = chosen.limit(
                    LETTERS_PER_STATEMENT if most is None else min(most, LETTERS_PER_STATEMENT)
                )
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

    def _ids_within_byte_limit(self, page: Page) -> builtins.list[str]:
        """Return the first ids of a page whose payloads together stay under the byte limit; at least one."""
        table = self._letters
        query = sa.select(table.c.id, table.c.payload_size).where(table.c.id.in_([id for _, id in page]))
        sizes = {row.id: row.payload_size for row in self._rows(query)}
        ids: builtins.list[str] = []
        total = 0
        for _, id in page:
            total += sizes.get(id, 0)
            if ids and total > BYTES_PER_STATEMENT:
                break
            ids.append(id)
        return ids

    def _not_leased(self) -> sa.ColumnElement[bool]:
        table = self._letters
        return sa.or_(table.c.leased_until.is_(None), table.c.leased_until <= self._clock())

    # ------------------------------------------------------------------ talking to the database

    def _prepare(self) -> None:
        try:
            with self._reader.connect() as connection:
                current = is_current(self._tables.stored_version(connection), self.location)
        except SQLAlchemyError as error:
            if not is_conflict(error):
                raise self._unavailable(error) from error
            current = False  # another process is creating them
        if not current:
            self._run_in_transaction(lambda connection: migrate(connection, self._tables, self.location))

    def _whole_letters(self, ids: Sequence[str]) -> builtins.list[DeadLetter]:
        table = self._letters
        query = sa.select(*[table.c[name] for name in _FIELDS]).where(table.c.id.in_(ids))
        return self._read_letters(query.order_by(table.c.seq, table.c.id)) if ids else []

    def _read_letters(self, query: sa.Select[Any]) -> builtins.list[DeadLetter]:
        return [DeadLetter(**row._mapping) for row in self._rows(query)]

    def _rows(self, query: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        try:
            with self._reader.connect() as connection:
                return connection.execute(query).all()
        except SQLAlchemyError as error:
            raise self._unavailable(error) from error

    def _execute_change(self, change: sa.Update | sa.Delete) -> int:
        return self._run_in_transaction(lambda connection: connection.execute(change).rowcount)

    def _run_in_transaction(self, work: Callable[[sa.Connection], R]) -> R:
        """Run the work in one transaction; retry if another session caused a conflict."""
        for left in reversed(range(_MAX_TRIES)):
            try:
                with self._transaction() as connection:
                    return work(connection)
            except SQLAlchemyError as error:
                if not left or not is_conflict(error):
                    raise self._unavailable(error) from error
                time.sleep(_PAUSE * (_MAX_TRIES - left))
        raise AssertionError("the last try returns or raises")

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        with self._engine.connect().execution_options(writes=True) as connection, connection.begin():
            yield connection

    def _unavailable(self, error: SQLAlchemyError) -> TargetFailed:
        return TargetFailed(
            f"the dead letters in {self.location} cannot be used: {database_message(error)}",
            state="stored letters are unchanged",
            next_step="check that the database can be reached and written to, or name another store",
        )


def open_dead_letter_file(
    path: Path, *, table: str | None = None, max_attempts: int = MAX_ATTEMPTS
) -> SqlDeadLetterStore:
    """Open the letters in a SQLite file; creates the file if needed, readable by this user only."""
    private_directory(path.parent)
    return SqlDeadLetterStore(
        sqlite_engine(path), f"sqlite://{path}", table=table or TABLE, max_attempts=max_attempts
    )


def _parse_place(text: str) -> tuple[int, str]:
    seq, _, id = text.partition("-")
    if not (seq.isdecimal() and seq.isascii() and len(seq) <= 19 and id.isalnum() and id.isascii()):
        raise UsageError(
            f"{text[:100]!r} is not a place among dead letters",
            next_step="give the value of  next  of the page before",
        )
    return min(int(seq), 2**63 - 1), id


def _id_portions(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), LETTERS_PER_STATEMENT):
        yield ids[start : start + LETTERS_PER_STATEMENT]


def _first_of_each_id(letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
    first = {letter.id: letter for letter in reversed(letters)}
    return tuple(reversed(first.values()))


def _is_reopened(known: sa.Row[Any], letter: DeadLetter) -> bool:
    """Whether a known letter was replayed, and has now failed in another batch."""
    return bool(known.status == "replayed" and known.batch != letter.batch)


def _letter_portions(letters: Sequence[DeadLetter]) -> Iterator[Sequence[DeadLetter]]:
    """Yield portions of letters that fit into one statement."""
    portion: list[DeadLetter] = []
    size = 0
    for letter in letters:
        if portion and (
            len(portion) == LETTERS_PER_STATEMENT or size + len(letter.payload) > BYTES_PER_STATEMENT
        ):
            yield portion
            portion, size = [], 0
        portion.append(letter)
        size += len(letter.payload)
    if portion:
        yield portion
