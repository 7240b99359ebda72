"""One start of a stream: plan it, lock its targets, open its sources, run its queries until they end."""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING

from ematix_flow.backends.payloads.base import Payload
from ematix_flow.backends.streams import Reading, Received, ReceivedFiles, SparkStream, StreamSource
from ematix_flow.engine.failures import translate
from ematix_flow.engine.streams.batches import (
    BatchLoader,
    BatchReport,
    DeadLetters,
    inferred_columns,
    sample_values,
)
from ematix_flow.engine.streams.checkpoint import Checkpoint, least, separate, write_checkpoint
from ematix_flow.engine.streams.decoding import ByOrigin
from ematix_flow.engine.streams.following import Followed, FollowedBySpark, SharedPositions, SharedSpool
from ematix_flow.engine.streams.lookups import Lookups
from ematix_flow.engine.streams.place import StreamPlace
from ematix_flow.engine.streams.query import StreamQuery
from ematix_flow.engine.streams.sinks import MessageSink, Sink, TableSink, held_here
from ematix_flow.errors import CannotConnect, FlowError, Unsupported
from ematix_flow.plan.spark_types import columns_of_frame
from ematix_flow.plan.streams import (
    StreamPlan,
    StreamTargetPlan,
    check_abilities,
    known_columns,
    plan_targets,
    source_payload,
    stream_source,
    target_payload,
    with_meta,
)
from ematix_flow.plan.world import World
from ematix_flow.spec.streams import StreamSourceSpec, StreamSpec, StreamTargetSpec
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)
_GOOD_SECONDS = 60.0  # a part that ran so long did not fail at once
_QUIET_SECONDS = 15.0  # a batch that waits is begun sooner


class Stream:
    """A declared stream in the world as it is now. ``stop`` ends it between two batches."""

    def __init__(
        self,
        spec: StreamSpec,
        world: World,
        place: StreamPlace,
        *,
        once: bool = False,
        letters: DeadLetters | None = None,
        report: Callable[[BatchReport], None] = lambda _: None,
        note: Callable[[str], None] = _log.info,
        alive: Callable[[], None] = lambda: None,
        failing: Callable[[str, FlowError | None], None] = lambda target, error: None,
        stop: threading.Event | None = None,
    ) -> None:
        """``failing`` is told of a target that fails alone, and with None that it is well again."""
        self.spec, self.world, self.place, self.once = spec, world, place, once
        self.letters, self.report, self.note, self.alive = letters, report, note, alive
        self.failing = failing
        self.stop = stop or threading.Event()
        for connection in [s.connection for s in spec.sources] + [t.connection for t in spec.targets]:
            world.backend(connection)  # so that Spark, once it is started, has the jars of all of them
        self.sources: list[StreamSource] = [stream_source(world, source) for source in spec.sources]
        self.lookups = Lookups(spec, world, note)

    # -------------------------------------------------------------- the plan

    def plan(self) -> StreamPlan:
        """What it will do, as far as it can be known before the first message. Changes nothing."""
        try:
            return self._plan()
        except FlowError as error:
            raise error.at(self.spec.where) from error.__cause__
        finally:
            self.lookups.stop()

    def _plan(self, with_targets: bool = True) -> StreamPlan:
        """Without targets: each that may fail alone is planned by itself."""
        spec = self.spec
        check_abilities(spec, self.world)
        for source, declared in zip(self.sources, spec.sources, strict=True):
            source.check(self._reading(declared))
        payloads = tuple(
            source_payload(self.world, declared) if source.kind_of_rows == "messages" else None
            for source, declared in zip(self.sources, spec.sources, strict=True)
        )
        if len(payloads) > 1 and not all(
            isinstance(source, SparkStream) and source.kind_of_rows == "messages" for source in self.sources
        ):
            raise Unsupported(
                "a stream of several sources follows Kafka topics only",
                where=spec.where,
                next_step="declare a stream for each of the others",
            )
        columns, said_by = known_columns(spec, self.world, payloads, self.place.pinned_columns())
        if columns is None and payloads[0] is None:
            columns, said_by = self._columns_of_rows()
        if columns is not None and payloads[0] is not None:
            columns = self.with_meta(columns)
        plan = StreamPlan(spec, columns, said_by, payloads)
        if columns is None or not with_targets:
            return plan
        return replace(plan, targets=plan_targets(spec, self.world, columns, self.lookups.views()))

    def with_meta(self, columns: tuple[ColumnSpec, ...]) -> tuple[ColumnSpec, ...]:
        numbered = all(isinstance(source, SparkStream) for source in self.sources)
        return with_meta(self.spec, columns, numbered)

    def _columns_of_rows(self) -> tuple[tuple[ColumnSpec, ...] | None, str]:
        """The columns of a source whose rows have some already."""
        source, reading = self.sources[0], self._reading(self.spec.sources[0])
        if isinstance(source, ReceivedFiles):
            return source.describe(self.world.spark(), reading), "found in the files"
        assert isinstance(source, SparkStream)
        with self.world.spark_errors(f"the source of {self.spec.name!r}"):
            found = columns_of_frame(source.frame(self.world.spark(), reading))
        columns = tuple(ColumnSpec(c.name, c.type or DataType("text"), nullable=True) for c in found)
        return columns, "those of the source"

    def _reading(self, source: StreamSourceSpec, resume: str | None = None) -> Reading:
        connection = self.world.backend(source.connection).connection
        most = self.spec.max_rows_per_batch  # of all sources together
        return Reading(
            query=source.query,
            starting=source.starting or getattr(connection, "auto_offset_reset", "") or "earliest",
            resume=resume,
            max_rows=None if most is None else max(1, most // len(self.spec.sources)),
            fail_on_data_loss=self.spec.fail_on_data_loss,
            options=dict(source.options),
            files=source.files,
            pipeline=self.spec.name,
        )

    def loaders(self, incoming: DataFrame) -> list[BatchLoader]:
        """Loaders for messages that come by hand, one for each group of targets that moves together."""
        plan = self.plan()
        parts = [_Part(self, plan, group, n, (), (), aside=True) for n, group in enumerate(self._groups())]
        return [part.loader(incoming) for part in parts]

    # -------------------------------------------------------------- running

    def run(self) -> None:
        """Until it is stopped, or all is loaded; raises what it fails of."""
        try:
            self._run()
        except FlowError as error:
            raise error.at(self.spec.where) from error.__cause__

    def _run(self) -> None:
        self.place.make()
        groups = self._groups()
        with ExitStack() as leaving:
            leaving.callback(self.lookups.stop)
            plan = self._plan(with_targets=len(groups) == 1)
            if self.spec.lookups:
                self.lookups.start()
            spools = self._open_spools(len(groups), leaving)
            told = [SharedPositions(source, len(groups)) for source in self.sources]
            parts = [_Part(self, plan, group, n, spools, told) for n, group in enumerate(groups)]
            self._run_parts(parts)

    def _groups(self) -> list[tuple[StreamTargetSpec, ...]]:
        """Targets that move together. One that may fail alone moves alone, and catches up by itself."""
        targets = self.spec.targets
        return [(target,) for target in targets] if self.spec.continue_on_target_failure else [targets]

    def lock(self, target: StreamTargetSpec, run_id: uuid.UUID) -> AbstractContextManager[object]:
        if self.world.backend(target.connection).message_target() is not None:
            return held_here(self.spec.name, target.label, run_id)
        return self.world.target(target.connection).lock(self.spec.name, target.label, run_id)

    def _open_spools(self, groups: int, leaving: ExitStack) -> list[SharedSpool | None]:
        spools: list[SharedSpool | None] = []
        for number, (source, declared) in enumerate(zip(self.sources, self.spec.sources, strict=True)):
            spool = None
            if isinstance(source, Received):
                spool = SharedSpool(
                    source,
                    self._reading(declared),
                    self.place.spool(number),
                    groups,
                    self._remembered(),
                    getattr(self.letters, "refused_in", None),
                )
                leaving.callback(spool.close)
            spools.append(spool)
        return spools

    def _remembered(self) -> str | None:
        """Where a received source stood by the ledgers, for a spool that is new."""
        plan = StreamPlan(self.spec, None, "", ())
        found: list[str] = []
        for target in self.spec.targets:
            try:
                position = _Part(self, plan, (target,), 0, (), (), aside=True).position(target)
            except CannotConnect:
                if not self.spec.continue_on_target_failure:
                    raise
                return None
            own = separate(position, 1)[0] if position is not None else None
            if own is None:
                return None
            found.append(own)
        return min(found, key=lambda position: int(json.loads(position)["segment"]))

    def _run_parts(self, parts: Sequence[_Part]) -> None:
        if len(parts) == 1:
            parts[0].run()
            return
        failures: list[FlowError] = []
        threads = [
            threading.Thread(
                target=copy_context().run, args=(part.run_on, failures), name=f"ematix-flow {part.label}"
            )
            for part in parts
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]


class _Part:
    """The targets of a stream that share a query: all of them, or one."""

    def __init__(
        self,
        stream: Stream,
        plan: StreamPlan,
        group: tuple[StreamTargetSpec, ...],
        number: int,
        spools: Sequence[SharedSpool | None],
        told: Sequence[SharedPositions],
        *,
        aside: bool = False,
    ) -> None:
        self.stream, self.plan, self.group, self.number = stream, plan, group, number
        self.spools, self.told = spools, told
        self.aside = aside  # beside a run that may be at work: nothing of others is touched
        self._is_failing, self._started = False, 0.0
        self.label = group[0].label if len(stream.spec.targets) > 1 and len(group) == 1 else "all"
        self.checkpoint = Checkpoint(stream.place.checkpoint(self.label))
        for place, (spool, shared) in enumerate(zip(spools, told, strict=True)):
            shared.begin(number, self.checkpoint, place)
            if spool is not None:
                spool.begin(number, self.checkpoint)

    def run(self) -> None:
        with ExitStack() as locks:
            run_id = uuid.uuid4()
            for target in self.group:
                locks.enter_context(self.stream.lock(target, run_id))
            self._run()

    def _run(self) -> None:
        stream, spark = self.stream, self.stream.world.spark()
        sources = self._follow()
        known = self._loader(self._planned(self.plan)) if self.plan.columns is not None else None
        query = StreamQuery(
            f"{stream.spec.name} {self.label}",
            sources,
            self.checkpoint,
            lambda incoming: known or self._loader_of(incoming),
            once=stream.once,
            idle_pause_ms=stream.spec.idle_pause_ms,
            report=self._report,
            alive=lambda: self._alive(query.is_idle),
            stop=stream.stop,
        )
        query.start(spark, self._failure)
        self._started = time.monotonic()
        query.wait()

    def _report(self, batch: BatchReport) -> None:
        self._is_well()
        self.stream.report(batch)

    def _alive(self, is_idle: bool) -> None:
        """One that failed and then waits for messages for a while has none left to fail of."""
        if self._is_failing and is_idle and time.monotonic() - self._started > _QUIET_SECONDS:
            self._is_well()
        self.stream.alive()

    def _is_well(self) -> None:
        if self._is_failing:
            self._is_failing = False
            self.stream.failing(self.label, None)

    def _failure(self, error: Exception) -> FlowError:
        """A source may know better what Spark's words about it mean."""
        stream = self.stream
        said = f"{error}\n{error.__cause__}" if error.__cause__ is not None else str(error)
        for source, declared in zip(stream.sources, stream.spec.sources, strict=True):
            found = source.failure(stream._reading(declared), said)
            if found is not None:
                return found
        return translate(error, what=f"stream {stream.spec.name!r}", source=True)

    def run_on(self, failures: list[FlowError]) -> None:
        """Again and again: a target that fails does not stop the others, and catches up when it is back."""
        delay = 1.0
        while not self.stream.stop.is_set():
            started = time.monotonic()
            try:
                return self.run()
            except Exception as raised:
                error = self._failure(raised)
                self._is_failing = True
                self.stream.failing(self.label, error)
                if self.stream.once:
                    self.stream.note(f"{self.label}: {error.what}")
                    failures.append(error)
                    return
            if time.monotonic() - started > _GOOD_SECONDS:
                delay = 1.0
            self.stream.note(f"{self.label}: {error.what}; the next try in {delay:g} s")
            self.stream.stop.wait(delay)
            delay = min(delay * 2, 60.0)

    def _follow(self) -> list[Followed]:
        stream = self.stream
        self._leave_stale()
        resume = self._resume() if self.checkpoint.is_new else self._after_other_places()
        if resume[0] is not None and self._goes_on_by_checkpoint(resume[0]):
            shutil.rmtree(self.checkpoint.folder, ignore_errors=True)
            self.checkpoint.folder.parent.mkdir(parents=True, exist_ok=True)
            write_checkpoint(self.checkpoint.folder, [resume[0]])
            resume = (None,)
        followed: list[Followed] = []
        for declared, position, spool, shared in zip(
            stream.spec.sources, resume, self.spools, self.told, strict=True
        ):
            if spool is not None:
                followed.append(spool.share(self.number, self.plan.columns, self.checkpoint))
            else:
                reading = stream._reading(declared, position)
                followed.append(FollowedBySpark(shared, self.number, reading, self._left_out(len(followed))))
        return followed

    def _after_other_places(self) -> tuple[str | None, ...]:
        """When other topics are asked for than the checkpoint has: leave it, and go on where they stood."""
        stream = self.stream
        newest = self.checkpoint.last_planned()
        assert newest is not None
        planned, remembered = self.checkpoint.positions(newest), self._remembered()
        if len(planned) != len(stream.sources):
            raise Unsupported(
                f"stream {stream.spec.name!r} had {len(planned)} sources and has {len(stream.sources)} now: "
                "which of its positions is whose cannot be told",
                state="nothing was read",
                next_step="declare the sources as before, or give the stream another name, which begins anew",
            )
        if all(
            not isinstance(source, SparkStream)
            or known is None
            or source.goes_on(known, told, stream._reading(declared))
            for source, declared, known, told in zip(
                stream.sources, stream.spec.sources, planned, remembered, strict=True
            )
        ):
            return (None,) * len(stream.sources)
        if not any(remembered):
            done = self.checkpoint.last_committed()
            remembered = self.checkpoint.positions(done) if done is not None else remembered
        self.checkpoint.put_aside()
        stream.note("source_query asks for other topics than before: each goes on where it stood")
        return remembered

    def _left_out(self, place: int) -> str | None:
        """Of what the ledger remembers of a source, that which is not asked for now."""
        source, told = self.stream.sources[place], self._remembered()[place]
        if not isinstance(source, SparkStream) or told is None:
            return None
        return source.left_out(told, self.stream._reading(self.stream.spec.sources[place]))

    def _goes_on_by_checkpoint(self, position: str) -> bool:
        """Whether a lost checkpoint is written anew: Delta and spools take positions from nowhere else."""
        first, spool = self.stream.sources[0], self.spools[0]
        if spool is not None:
            return bool(json.loads(position).get("spool") == spool.spool.id)
        return isinstance(first, SparkStream) and first.kind_of_rows == "columns"

    def _leave_stale(self) -> None:
        """A checkpoint that others have gone on without is out of date: the ledger knows better.

        That is so when targets moved apart for a while, or when an old folder was brought back.
        """
        if self.checkpoint.is_new or not all(isinstance(s, SparkStream) for s in self.stream.sources):
            return
        own = f"stream:{self.checkpoint.query_id()}:"
        for target in self.group:
            newest = self._newest(target)
            if newest is not None and not newest.startswith(own):
                self.checkpoint.put_aside()
                self.stream.note(
                    f"the checkpoint is older than the ledger of {target.label}: it is put aside"
                )
                return

    def _resume(self) -> tuple[str | None, ...]:
        """Without a checkpoint the targets know how far they are."""
        found = self._positions()
        if len(set(found)) > 1:
            self.stream.note(
                "the checkpoint is gone, and the targets are not equally far: what some of them already hold "
                "may come to them again"
            )
        remembered = self._remembered()
        if any(remembered):
            self.stream.note("there is no checkpoint: going on where the ledger of the target ends")
        return remembered

    def _positions(self) -> list[str | None]:
        """The last position of each target; those that keep no ledger do not count."""
        return [self.position(target) for target in self.group if self._remembers(target)]

    def _remembered(self) -> tuple[str | None, ...]:
        """Where each source stood by the ledgers of all targets; all None when one has nothing yet."""
        sources, found = len(self.stream.spec.sources), self._positions()
        positions = [position for position in found if position is not None]
        if not positions or len(positions) < len(found):
            return (None,) * sources
        return separate(least(positions), sources)

    def _remembers(self, target: StreamTargetSpec) -> bool:
        sends = self.stream.world.backend(target.connection).message_target()
        return sends is None or (sends.transactions and self.stream.spec.delivery == "exactly_once")

    def _newest(self, target: StreamTargetSpec) -> str | None:
        """The key of the newest batch of this stream that a target holds."""
        found = self._last(target)
        return found[0] if found is not None else None

    def position(self, target: StreamTargetSpec) -> str | None:
        found = self._last(target)
        return found[1] if found is not None else None

    def _last(self, target: StreamTargetSpec) -> tuple[str, str | None] | None:
        world, name = self.stream.world, self.stream.spec.name
        sends = world.backend(target.connection).message_target()
        if sends is not None:
            return sends.last_token(name, target.label) if self._remembers(target) else None
        for entry in world.target(target.connection).ledger(name, target.label, limit=100):
            if entry.batch_key.startswith("stream:") and entry.source_to:
                return entry.batch_key, entry.source_to
        return None

    # -------------------------------------------------------------- the loader

    def loader(self, incoming: DataFrame) -> BatchLoader:
        if self.plan.columns is None:
            return self._loader_of(incoming)
        return self._loader(self._planned(self.plan))

    def _planned(self, plan: StreamPlan) -> StreamPlan:
        """The plan with this part's targets."""
        if plan.targets:
            return plan
        stream = self.stream
        assert plan.columns is not None
        own = replace(stream.spec, targets=self.group)
        return replace(plan, targets=plan_targets(own, stream.world, plan.columns, stream.lookups.views()))

    def _loader_of(self, incoming: DataFrame) -> BatchLoader:
        """The loader, now that there are messages to look at."""
        stream, payloads = self.stream, self.plan.payloads
        pinned = stream.place.pinned_columns()
        if pinned is None:
            if payloads[0] is None:
                found = columns_of_frame(incoming)
                pinned = tuple(ColumnSpec(c.name, c.type or DataType("text"), nullable=True) for c in found)
            else:
                pinned = inferred_columns(payloads[0], sample_values(incoming, payloads[0]))
                if pinned is None:
                    return self._loader_of_nothing(payloads)
            stream.place.pin_columns(pinned)
        columns = pinned if payloads[0] is None else stream.with_meta(pinned)
        plan = self._planned(replace(self.plan, columns=columns, columns_by="found in the first messages"))
        stream.note(str(plan))
        return self._loader(plan)

    def _loader_of_nothing(self, payloads: Sequence[Payload | None]) -> BatchLoader:
        """Nothing can be read: all of it is bad, and the next batch may tell more."""
        column = ColumnSpec("value", DataType("text"), nullable=True)
        plan = replace(self.plan, columns=(column,), targets=())
        return BatchLoader(
            plan,
            (),
            _decoders(payloads, (column,), self.stream.sources),
            self.stream.world,
            self.stream.letters,
            dict,
        )

    def _loader(self, plan: StreamPlan) -> BatchLoader:
        stream = self.stream
        sinks = [self._sink(target) for target in plan.targets if target.target in self.group]
        assert plan.columns is not None
        fused = stream.spec.transform_sql is None and len(sinks) == 1 and isinstance(sinks[0], TableSink)
        # decoded for one table alone, its own columns say what may not be null
        columns = sinks[0].plan.table.columns if fused and sinks[0].plan.projection is None else plan.columns
        decoders = None if None in plan.payloads else _decoders(plan.payloads, columns, stream.sources)
        plan = replace(plan, columns=tuple(columns))
        return BatchLoader(plan, sinks, decoders, stream.world, stream.letters, stream.lookups.views)

    def _sink(self, plan: StreamTargetPlan) -> Sink:
        stream, target = self.stream, plan.target
        messages = stream.world.backend(target.connection).message_target()
        if messages is None:
            sink = TableSink(plan, stream.world.target(target.connection))
            for left in sink.prepare(stream.spec.name, sweep=not self.aside):
                stream.note(f"removed staging that an interrupted run had left: {left}")
            return sink
        from ematix_flow.backends.payloads.codecs import encoder_for

        place = target.topic or target.queue or ""
        messages.check_place(place)
        options = {"partition_key_prefix": target.partition_key_prefix} if target.partition_key_prefix else {}
        shown = [
            c for c in plan.table.columns if c.name not in (target.headers_column, target.partition_column)
        ]
        encoder = encoder_for(target_payload(stream.world, target), shown)
        once = plan.guarantee.value == "exactly_once"
        return MessageSink(plan, messages, messages.sender(place, options), encoder, once)


def _decoders(
    payloads: Sequence[Payload | None], columns: Sequence[ColumnSpec], sources: Sequence[StreamSource]
) -> ByOrigin:
    from ematix_flow.backends.payloads.codecs import decoder_for

    return ByOrigin(
        tuple(
            decoder_for(payload, columns, numeric_positions=isinstance(source, SparkStream))
            for payload, source in zip(payloads, sources, strict=True)
            if payload is not None
        )
    )


def plan_of(spec: StreamSpec, world: World, place: StreamPlace) -> StreamPlan:
    """What a stream would do now. Changes nothing."""
    return Stream(spec, world, place).plan()
