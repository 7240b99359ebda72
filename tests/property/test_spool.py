"""A spool between a broker that delivers again and targets that commit: each message arrives once."""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from ematix_flow import fault_points
from ematix_flow.backends.spool.spool import Spool
from tests.property.broker_model import Broker, BrokerReceiver, Log

POINTS = ("spool.written", "spool.indexed", "spool.renamed", "spool.settled", "spool.acknowledged")


class SpoolStream:
    """The stream around the spool: a target that commits segments once by their name, and what dies."""

    def __init__(self, folder: Path, source: Broker | list[bytes], linger: float) -> None:
        self.folder = folder
        self.linger = linger
        self.source = source
        self.committed: dict[str, list[bytes]] = {}
        self.start()

    def start(self) -> None:
        self.spool = Spool(self.folder).open()
        self.receiver: Any = (
            BrokerReceiver(self.source)
            if isinstance(self.source, Broker)
            else Log(self.source, self.spool.progress())
        )
        self.spool.follow(self.receiver, max_rows=4, linger=self.linger, max_pending_rows=16, thread=False)

    def die(self) -> None:
        """The process died; only the disk and the broker keep their state."""
        self.spool._failure = RuntimeError("dead")
        self.spool.close()

    def turn(self, crash_at: str | None = None) -> None:
        self._until_death(crash_at, lambda: self.spool.run_once(timeout=0))

    def commit(self, count: int, crash_at: str | None = None) -> None:
        names = self.spool.pending_segments()[:count]
        for name in names:
            rows = pq.read_table(self.spool.segments / name).column("value").to_pylist()
            assert self.committed.setdefault(name, rows) == rows, "a replay has other messages"
        self._until_death(crash_at, lambda: self.spool.settle(names))

    def _until_death(self, crash_at: str | None, act: Any) -> None:
        with ExitStack() as stack:
            if crash_at:
                stack.enter_context(fault_points.inject(crash_at, "crash"))
            try:
                act()
            except fault_points.InjectedCrash:
                self.die()
                self.start()

    def finish(self) -> Counter[bytes]:
        self.spool._segment_writer._linger = self.linger = 0
        for _ in range(500):
            self.turn()
            self.commit(10)
            source = self.source  # an acknowledgement may have been lost: then it has some again
            waiting = isinstance(source, Broker) and (source.ready or source.unacknowledged)
            if self.spool.is_drained(0) and not self.spool.pending_segments() and not waiting:
                break
        self.turn()
        self.spool.close()
        return Counter(value for rows in self.committed.values() for value in rows)


lingers = st.sampled_from([0, 60])  # a segment a turn, or messages of several turns in one
steps = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 6)),
    st.tuples(st.just("turn"), st.sampled_from([None, None, None, *POINTS])),
    st.tuples(st.just("commit"), st.integers(1, 3)),
    st.tuples(st.just("commit and die"), st.integers(1, 3)),
    st.tuples(st.just("disconnect"), st.none()),
    st.tuples(st.just("lose the acknowledgement"), st.sampled_from(["before", "after"])),
    st.tuples(st.just("repeat"), st.none()),
    st.tuples(st.just("die"), st.none()),
)


def play(world: SpoolStream, broker: Broker, history: list[tuple[str, Any]], publish: Any) -> None:
    for what, detail in history:
        if what == "publish":
            for _ in range(detail):
                publish()
        elif what == "turn":
            world.turn(detail)
        elif what == "commit":
            world.commit(detail)
        elif what == "commit and die":
            world.commit(detail, "spool.settled")
        elif what == "disconnect":
            broker.disconnect()
        elif what == "lose the acknowledgement":
            world.receiver.dies_in_acknowledge = detail
        elif what == "repeat":
            broker.repeat()
        else:
            world.die()
            world.start()


@given(st.lists(steps, max_size=40), lingers, st.booleans())
def test_messages_with_ids_arrive_once_however_often_they_are_delivered(
    history: list[tuple[str, Any]], linger: float, flags: bool
) -> None:
    broker = Broker(flags=flags)
    if flags:  # who marks redelivery does not repeat within a connection
        history = [step for step in history if step[0] != "repeat"]
    with tempfile.TemporaryDirectory() as folder:
        world = SpoolStream(Path(folder), broker, linger)
        play(world, broker, history, lambda: broker.publish(b"same", str(len(broker.published))))
        assert world.finish() == Counter(message.value for message in broker.published)
        assert not broker.ready and not broker.unacknowledged


@given(st.lists(steps, max_size=40), lingers, st.booleans())
def test_different_messages_without_ids_arrive_once(
    history: list[tuple[str, Any]], linger: float, flags: bool
) -> None:
    broker = Broker(flags=flags)
    history = [step for step in history if step[0] != "repeat"]
    with tempfile.TemporaryDirectory() as folder:
        world = SpoolStream(Path(folder), broker, linger)
        play(world, broker, history, lambda: broker.publish(b"%d" % len(broker.published)))
        assert world.finish() == Counter(message.value for message in broker.published)
        assert not broker.ready and not broker.unacknowledged


@given(st.lists(steps, max_size=40), lingers)
def test_equal_messages_without_ids_are_counted_while_acknowledgements_are_answered(
    history: list[tuple[str, Any]], linger: float
) -> None:
    broker = Broker()
    doubtful = ("lose the acknowledgement", "repeat", "commit and die")
    history = [s for s in history if s[0] not in doubtful and s != ("turn", "spool.acknowledged")]
    with tempfile.TemporaryDirectory() as folder:
        world = SpoolStream(Path(folder), broker, linger)
        play(world, broker, history, lambda: broker.publish(b"%d" % (len(broker.published) % 2)))
        assert world.finish() == Counter(message.value for message in broker.published)


@given(st.lists(steps, max_size=40), lingers)
def test_a_source_read_by_position_arrives_once_and_in_order(
    history: list[tuple[str, Any]], linger: float
) -> None:
    values: list[bytes] = []
    history = [
        step for step in history if step[0] not in ("disconnect", "lose the acknowledgement", "repeat")
    ]
    with tempfile.TemporaryDirectory() as folder:
        world = SpoolStream(Path(folder), values, linger)
        play(world, Broker(), history, lambda: values.append(b"%d" % len(values)))
        world.finish()
        assert [value for name in sorted(world.committed) for value in world.committed[name]] == values
