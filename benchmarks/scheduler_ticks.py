"""One poll of the scheduler over 1,000 pipelines, on a store with a week of hourly slots of each.

Polls of several kinds, each within the budget of 250 ms: nothing is due; all are due, but wait for an
upstream that runs; all fire at this time; and the poll after that. First all pipelines have one schedule,
then many schedules in many zones. A poll starts no more runs than there are free workers, so the cost of a
start is reported for one run. A poll that finds a given-up upstream skips all that wait for it; that cost is
also reported for one slot.

The clock is the store's, set to a working day: what fires does not depend on the time of the benchmark.
"""

from __future__ import annotations

import datetime as dt
import functools
import logging
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.machine import commit, machine_facts, versions
from benchmarks.results import Result, Run
from benchmarks.rounds import new_folder
from benchmarks.servers import Servers
from ematix_flow.schedule.executors.base import RunDispatch
from ematix_flow.schedule.executors.subprocesses import SubprocessExecutor

if TYPE_CHECKING:
    import sqlalchemy as sa

    from ematix_flow.graph.registry import Registry
    from ematix_flow.schedule.scheduler import Scheduler

PIPELINES, HOURS, TICKS, STARTS = 1_000, 168, 9, 8
BUDGET_SECONDS = 0.25
HOUR, FIVE_MINUTES, SECOND = dt.timedelta(hours=1), dt.timedelta(minutes=5), dt.timedelta(seconds=1)
NOON = dt.datetime(2026, 3, 18, 12, tzinfo=dt.timezone.utc)  # a Wednesday
ZONES = (
    *("UTC", "Europe/Berlin", "Europe/London", "America/New_York", "America/Los_Angeles"),
    *("America/Sao_Paulo", "Asia/Kolkata", "Asia/Tokyo", "Australia/Sydney", "Africa/Casablanca"),
)
CRONS = (
    *("*/5 8-18 * * 1-5", "*/5 * * * *", "*/5 6-22 * * *", "*/15 7-19 * * 1-5", "*/10 0-21 * * 1-6"),
    *("0 */2 * * *", "30 6,12,18 * * *", "15 3 * * *", "0 9 1 * *", "*/5 9-17 1-28 * 1-5"),
)
ONE_FOR_ALL = '("@hourly", "UTC")'
MANY = f"[(cron, zone) for cron in {CRONS} for zone in {ZONES}][number % {len(CRONS) * len(ZONES)}]"
MODULE = """\
from ematix_flow import BigInt, ManagedTable, ematix


class Orders(ManagedTable):
    order_id: BigInt


@ematix.pipeline(target=Orders, target_connection="warehouse", name="upstream")
def upstream(conn):
    return "SELECT 1 AS order_id"


for number in range({pipelines}):
    cron, zone = {schedule}

    @ematix.pipeline(
        target=Orders,
        target_connection="warehouse",
        name=f"orders_{{number}}",
        schedule=cron,
        timezone=zone,
        depends_on=[upstream],
    )
    def orders(conn):
        return "SELECT 1 AS order_id"
"""


def run_scheduler_ticks(repeat: int, say: Callable[[str], None]) -> Result:
    folder = new_folder("scheduler-tick")
    facts, about = machine_facts(), versions()
    runs: list[Run] = []
    for name, schedule in (("hourly", ONE_FOR_ALL), ("many", MANY)):
        text = MODULE.format(pipelines=PIPELINES, schedule=schedule)
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    try:
        with Servers() as servers:
            for number in range(1, repeat + 1):
                postgres = servers.create("postgres", f"scheduler{number}").location
                for store, url in (("SQLite", f"sqlite://{folder}/{number}.db"), ("PostgreSQL", postgres)):
                    for kind, seconds in polls(folder, url):
                        run = Run(f"{store}: {kind}", number, 0.0, seconds, seconds)
                        runs.append(run)
                        say(f"  round {number}, {run.contestant}: {seconds * 1000:.1f} ms")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Result(
        benchmark="scheduler-tick",
        case="scheduler-tick",
        title=f"One poll of the scheduler over {PIPELINES:,} pipelines with {PIPELINES * HOURS:,} slots",
        date=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        rows=PIPELINES,
        limit_seconds=BUDGET_SECONDS,
        machine=facts,
        versions=about,
        commit=commit(),
        runs=tuple(runs),
    )


def polls(folder: Path, url: str) -> Iterator[tuple[str, float]]:
    """The median of some polls of each kind on a new store."""
    from ematix_flow.state.slots.base import Slot

    world = _World(url)
    store, clock = world.store, world.clock
    names = [f"orders_{number}" for number in range(PIPELINES)]
    for hours in range(HOURS):
        store.open((Slot(name, NOON - hours * HOUR) for name in names), "skipped", "filled in")

    clock.set(NOON + HOUR / 2)
    scheduler = world.scheduler(folder / "hourly.py")
    scheduler.tick()  # the first poll computes what the next ones reuse
    yield "nothing is due", statistics.median(_timed(scheduler) for _ in range(TICKS))

    store.open([Slot("upstream", NOON - 2 * HOUR)], "succeeded")  # without it all of them are skipped
    moments = [NOON + (1 + number) * HOUR + SECOND for number in range(TICKS)]
    fire, after = world.fires(scheduler, moments, PIPELINES)
    yield "all fire", fire
    yield "the poll after all fired", after
    yield "the start of one run", world.start(scheduler, moments[-1] + HOUR)

    yield "the skip of one run", world.skip(scheduler, moments[-1] + 2 * HOUR)

    running = Slot("upstream", NOON)
    store.open([running])
    seen = store.get(running)
    assert seen is not None and store.claim(seen, "another", 3600) is not None
    now = clock()
    store.open(Slot(name, now) for name in names)
    scheduler.tick()
    yield "all wait for an upstream", statistics.median(_timed(scheduler) for _ in range(TICKS))

    world.end_all()
    clock.set(moments[-1] + 3 * HOUR + FIVE_MINUTES / 2)
    scheduler = world.scheduler(folder / "many.py")
    yield "many schedules: the first poll", _timed(scheduler)
    world.end_all()
    scheduler.tick()
    yield "many schedules: nothing is due", statistics.median(_timed(scheduler) for _ in range(TICKS))
    noon = NOON + 27 * HOUR
    clock.set(noon + FIVE_MINUTES / 2)
    scheduler.tick()
    world.end_all()
    scheduler.tick()
    moments = [noon + (2 + number) * FIVE_MINUTES + SECOND for number in range(TICKS)]
    fire, after = world.fires(scheduler, moments, PIPELINES // 4)
    yield "many schedules: a quarter fire or more", fire
    yield "many schedules: the poll after that", after
    store.close()


class _Clock:
    """The time of a server, or of this machine, moved to a fixed day."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine, self._ahead = engine, dt.timedelta()

    def set(self, moment: dt.datetime) -> None:
        self._ahead += moment - self()

    def __call__(self) -> dt.datetime:
        import sqlalchemy as sa

        if self._engine.dialect.name == "sqlite":
            return dt.datetime.now(dt.timezone.utc) + self._ahead
        with self._engine.connect() as connection:  # read each time, as without this clock
            now: dt.datetime = connection.execute(sa.text("SELECT clock_timestamp()")).scalar_one()
        return now.astimezone(dt.timezone.utc) + self._ahead


class _StartsNothing(SubprocessExecutor):
    """Of so many ``workers``; each is a process that ends at once."""

    def dispatch(self, job: RunDispatch) -> None:
        process = subprocess.Popen(["true", *job.arguments()], stdin=subprocess.DEVNULL)
        self._running[process.pid] = (process, job)

    def capacity(self) -> int:
        return self.workers - len(self._running)


class _World:
    def __init__(self, url: str) -> None:
        from ematix_flow.backends.state_stores.run_logs import sql_tables
        from ematix_flow.state.runlog.sql import SqlRunLog
        from ematix_flow.state.slots.sql import SqlSlotStore

        tables = sql_tables(url, keep_open=True)
        self._engine, self._schema = tables.engine, tables.schema
        self.clock = _Clock(tables.engine)
        self.clock.set(NOON)
        self.run_log = tables.open_store(SqlRunLog)
        self.store = SqlSlotStore(tables.engine, tables.location, self.clock, schema=tables.schema)

    def scheduler(self, module: Path) -> Scheduler:
        from ematix_flow.run.run_context import RunContext
        from ematix_flow.schedule.run_due import SlotRunner, refuse_spark
        from ematix_flow.schedule.scheduler import Scheduler

        context = RunContext(self.run_log, refuse_spark, trigger="schedule")
        runner = SlotRunner(_declared(module), self.store, self.run_log, lambda slot: context)
        return Scheduler(runner, _full(), str(module))

    def fires(self, scheduler: Scheduler, moments: list[dt.datetime], least: int) -> tuple[float, float]:
        """Polls at times at which pipelines fire, and the polls that follow, after those runs have ended."""
        found, after = [], []
        for moment in moments:
            self.clock.set(moment)
            found.append(_timed(scheduler))
            assert self.end_all() >= least, "they did not fire"
            after.append(_timed(scheduler))
        return statistics.median(found), statistics.median(after)

    def start(self, scheduler: Scheduler, moment: dt.datetime) -> float:
        """The additional time of a poll for each run that it starts: its gate, its claim and its process."""
        from ematix_flow.state.slots.base import Slot

        ended = Slot("upstream", NOON - HOUR)
        self.store.open([ended], "succeeded")
        self.clock.set(moment)
        scheduler.tick()
        without = statistics.median(_timed(scheduler) for _ in range(TICKS))
        found = []
        for _ in range(TICKS):
            scheduler.executor = _StartsNothing(STARTS)
            found.append((_timed(scheduler, STARTS) - without) / STARTS)
            scheduler.executor.close(10.0)
        scheduler.executor = _full()
        self.end_all()
        return statistics.median(found)

    def skip(self, scheduler: Scheduler, moment: dt.datetime) -> float:
        """The additional time of a poll for each slot that it skips because an upstream was given up."""
        from ematix_flow.state.slots.base import Slot

        self.store.open([Slot("upstream", NOON - HOUR / 2)], "gave_up", "the benchmark wants it so")
        without = _timed(scheduler)
        self.clock.set(moment)
        logging.disable(logging.WARNING)  # it logs each
        took = _timed(scheduler)
        logging.disable(logging.NOTSET)
        return (took - without) / (PIPELINES - self.end_all())

    def end_all(self) -> int:
        """End all waiting and claimed slots as succeeded."""
        import sqlalchemy as sa

        from ematix_flow.state.slots.base import UNFINISHED
        from ematix_flow.state.slots.tables import slots

        change = sa.update(slots).where(slots.c.status.in_(UNFINISHED)).values(status="succeeded")
        options = {"schema_translate_map": {None: self._schema}, "writes": True}
        with self._engine.connect().execution_options(**options) as connection, connection.begin():
            return connection.execute(change).rowcount


@functools.cache
def _declared(module: Path) -> Registry:
    from ematix_flow.graph.module_loading import load_module
    from ematix_flow.graph.registry import Registry, use_registry

    with use_registry(Registry()):
        return load_module(str(module))


def _full() -> _StartsNothing:
    """An executor without a free worker."""
    executor = _StartsNothing()
    executor.workers = 0
    return executor


def _timed(scheduler: Scheduler, starts: int = 0) -> float:
    begin = time.perf_counter()
    started = scheduler.tick()
    took = time.perf_counter() - begin
    assert len(started) == starts, f"{len(started)} were started"
    return took
