"""What both models of a load on a database share: statements over a pool, judging, progress, the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ematix_probe.load.answers import NOT_STARTED, TIMEOUT, Answer
from ematix_probe.load.checks import Rows, judge
from ematix_probe.load.feeders import OutOfRows
from ematix_probe.load.loop_timer import clock
from ematix_probe.load.recording import SECOND
from ematix_probe.load.shares import (
    FAREWELL,
    Publish,
    Share,
    ShareResult,
    StopSignal,
    take_snapshot,
)
from ematix_probe.load.sql_connections import CANCEL_SECONDS, SqlConnection, import_driver
from ematix_probe.load.sql_pool import ConnectionPool
from ematix_probe.load.sql_target import SqlTarget

CANNOT_CONNECT = "cannot connect"
NO_CONNECTION = "no connection was free: see pool="


@dataclass(frozen=True)
class _Running:
    """A statement that a thread waits for."""

    intended: int
    started: int
    deadline: int
    connection: SqlConnection


class SqlSending:
    """Runs the statements of one share. A subclass says which `threads` do so, and when."""

    def __init__(self, share: Share, publish: Publish, stop: StopSignal) -> None:
        self.share, self.start_at, self.publish = share, 0, publish
        self.target: SqlTarget = share.target
        self.recorder = share.recorder
        self.end = self.recorder.end
        self.lock = threading.Lock()
        self.statement = self.target.statement.for_driver(self.target.dialect)
        self.names = frozenset(self.target.statement.names)
        feeder = self.target.feeder
        self.row_of = None if feeder is None else feeder.open(share.share, share.shares)
        self.keeps_rows = self.target.needs_rows
        self.stopping = threading.Event()
        self.stopped_at: int | None = None
        self.interrupted = False
        self.ended_early: str | None = None
        self.running: dict[int, _Running] = {}  # by thread
        self.is_over = False  # nothing that ends from now on is counted
        self.in_flight = 0
        self.failure: BaseException | None = None
        stop.call(self.interrupt)
        self.pool = ConnectionPool(share, self.connections())
        import_driver(self.target.dialect)  # now, not in the first statement's time

    def now(self) -> int:
        return clock() - self.start_at

    def connections(self) -> int:
        raise NotImplementedError

    def threads(self) -> list[Callable[[], None]]:
        raise NotImplementedError

    def run(self) -> ShareResult:
        workers = [
            threading.Thread(target=self._guarded, args=(work,), name=f"load-{number}", daemon=True)
            for number, work in enumerate(self.threads())
        ]
        for worker in workers:
            worker.start()
        abandoned = self._watch(workers)
        self.pool.close()
        if self.failure is not None:
            raise self.failure
        self.recorder.connections = self.pool.opened
        elapsed = self.end if self.stopped_at is None else max(min(self.stopped_at, self.end), 0)
        with self.lock:
            self.is_over = True
            return ShareResult(self.recorder, elapsed, self.interrupted, self.ended_early, abandoned)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OutOfRows as error:
            self.ended_early = str(error)
            self.stop_starting()
        except BaseException as error:  # a fault of this program must end the load, not hang it
            self.failure = self.failure or error
            self.stop_starting()

    def _watch(self, workers: list[threading.Thread]) -> int:
        """Report each second and cancel what takes too long, until all threads are done.

        Returns how many statements an interrupted load left. A server that never answers ends the load too:
        its statements count as timeouts.
        """
        following = 1
        latest = self.end + 2 * round(self.share.timeout * SECOND) + FAREWELL
        while any(worker.is_alive() for worker in workers):
            next(worker for worker in workers if worker.is_alive()).join(0.05)
            now = self.now()
            self._cancel_late(now)
            if now >= following * SECOND:
                with self.lock:
                    snapshot = take_snapshot(self.recorder, now, self.in_flight, self.waiting(now))
                self.publish(snapshot)
                following = now // SECOND + 1
            if self.interrupted and self.stopped_at is not None and now > self.stopped_at + FAREWELL:
                left = self._give_up()
                cancel_all([each.connection for each in left])
                return len(left)
            if now > latest:
                detail = f"no answer within {self.share.timeout:g} s"
                for each in self._give_up():
                    self.recorder.record(each.intended, each.started, now, 0, TIMEOUT, detail, 0)
                for intended in self.never_begun():
                    self.recorder.record_not_started(intended, now, NOT_STARTED, NO_CONNECTION)
                return 0
        return 0

    def _give_up(self) -> list[_Running]:
        """Wait for nothing more; returns what is still running."""
        self.stopping.set()
        with self.lock:
            self.is_over = True
            left, self.running = list(self.running.values()), {}
        return left

    def _cancel_late(self, now: int) -> None:
        with self.lock:  # so that it is still this statement that the connection runs
            for each in self.running.values():
                if now > each.deadline and not each.connection.ends_late_statements:
                    each.connection.cancel()

    def never_begun(self) -> Iterator[int]:
        """The intended times of the arrivals that no thread has taken."""
        return iter(())

    def waiting(self, now: int) -> int:
        return 0

    def interrupt(self) -> None:
        self.interrupted = True
        self.stop_starting()

    def stop_starting(self) -> None:
        if self.stopped_at is None:
            self.stopped_at = self.now()
        self.stopping.set()

    def wait_until(self, time: int) -> bool:
        """Sleep until a time of the load; False when the load stops before."""
        wait = time - self.now()
        return not (self.stopping.wait(wait / SECOND) if wait > 0 else self.stopping.is_set())

    def values(self, n: int) -> Mapping[str, Any] | None:
        """The values of arrival ``n``: those that the statement names."""
        if self.row_of is None:
            return None
        with self.lock:  # a file or an iterator is read by one thread at a time
            row = self.row_of(n)
        return {name: row.get(name) for name in self.names} if self.names else None

    def attempt(
        self, intended: int, values: Mapping[str, Any] | None, connection: SqlConnection | None
    ) -> Answer:
        """Run the statement over a connection, which is opened when there is none, and count it."""
        started = self.now()
        with self.lock:
            self.in_flight += 1
            self.recorder.most_in_flight = max(self.recorder.most_in_flight, self.in_flight)
        answer = self._execute(intended, started, values, connection)
        finished = self.now()
        error, detail = answer.error, answer.detail
        if error is None and self.target.checks:
            error, detail = judge(self.target.checks, Rows(answer.size, answer.rows))
        with self.lock:
            if not self.is_over:
                self.recorder.record(intended, started, finished, 0, error, detail, answer.size)
        return answer

    def count_not_started(self, intended: int) -> None:
        with self.lock:
            if not self.is_over:
                self.recorder.record_not_started(intended, self.now(), NOT_STARTED, NO_CONNECTION)

    def _execute(
        self, intended: int, started: int, values: Mapping[str, Any] | None, connection: SqlConnection | None
    ) -> Answer:
        opened = connection
        try:
            if opened is None:
                opened = self.pool.open()
        except Exception as error:
            with self.lock:
                self.in_flight -= 1
            self.pool.give_back(None)
            return Answer(error=CANNOT_CONNECT, detail=f"{type(error).__name__}: {error}")
        me = threading.get_ident()
        deadline = started + round(self.share.timeout * SECOND)
        with self.lock:
            self.running[me] = _Running(intended, started, deadline, opened)
        try:
            count, rows = opened.execute(self.statement, values, self.keeps_rows)
        except Exception as error:
            late = self.now() >= deadline
            kind = TIMEOUT if late or is_timeout(error) else error_kind(error)
            return Answer(error=kind, detail=str(error))
        else:
            return Answer(size=count, rows=rows)
        finally:
            with self.lock:  # before another thread can take the connection
                self.in_flight -= 1
                self.running.pop(me, None)
            self.pool.give_back(opened)


def cancel_all(connections: Sequence[SqlConnection]) -> None:
    """Cancel what these connections run, all at the same time: each may have to ask its server."""
    threads = [threading.Thread(target=each.cancel, daemon=True) for each in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(CANCEL_SECONDS)


def is_timeout(error: BaseException) -> bool:
    """A statement that the database or the socket ended because it took too long."""
    if isinstance(error, TimeoutError) or getattr(error, "sqlstate", None) == "57014":
        return True
    code = error.args[0] if error.args else None  # of MySQL and MariaDB: the socket's, then the servers'
    return (code == 2013 and "timed out" in str(error).lower()) or code in (1969, 3024)


def error_kind(error: BaseException) -> str:
    """The class of the error, with the code that the database gives it."""
    state = getattr(error, "sqlstate", None)
    if state is None and error.args and isinstance(error.args[0], int):
        state = error.args[0]  # of MySQL and MariaDB
    name = type(error).__name__
    return f"{name} {state}" if state else name
