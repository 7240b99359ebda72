"""The targets of a stream that move together: where they go on, and what their query loads."""

from __future__ import annotations

import json
import logging
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from ematix_flow.backends.payloads.base import Payload
from ematix_flow.backends.streams import Reading, SparkStream, StreamSource
from ematix_flow.engine.failures import translate
from ematix_flow.engine.streams.batches import (
    BatchLoader,
    BatchReport,
    inferred_columns,
    sample_values,
)
from ematix_flow.engine.streams.checkpoint import Checkpoint, least, separate, write_checkpoint
from ematix_flow.engine.streams.decoding import ByOrigin
from ematix_flow.engine.streams.following import Followed, FollowedBySpark, SharedPositions, SharedSpool
from ematix_flow.engine.streams.incoming import Incoming
from ematix_flow.engine.streams.place_ids import ids_before, ids_now, replaced_places, with_ids
from ematix_flow.engine.streams.query import StreamQuery
from ematix_flow.engine.streams.schemas import KnownSchemas
from ematix_flow.engine.streams.sinks import MessageSink, Sink, TableSink
from ematix_flow.engine.warming import warm_workers
from ematix_flow.errors import FlowError, TargetFailed, Unsupported
from ematix_flow.plan.spark_types import columns_of_frame
from ematix_flow.plan.stream_columns import REGISTERED
from ematix_flow.plan.streams import (
    StreamPlan,
    StreamTargetPlan,
    plan_targets,
    target_payload,
)
from ematix_flow.spec.streams import StreamTargetSpec
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.state.private_files import make_private_folders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ematix_flow.engine.streams.stream import Stream

_log = logging.getLogger(__name__)
_GOOD_SECONDS = 60.0  # a part that ran so long did not fail at once
_QUIET_SECONDS = 15.0  # a batch that waits is begun sooner


class Part:
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
        if self.plan.columns is None:  # the sinks are opened with the first messages, which is too late
            self._check_places()
        warm_workers(spark)
        sources = self._follow()
        known = self._loader(self._planned(self.plan)) if self.plan.columns is not None else None
        query = StreamQuery(
            f"{stream.spec.name} {self.label}",
            sources,
            self.checkpoint,
            lambda incoming: known or self._loader_of(incoming),
            self._renewed,
            once=stream.once,
            idle_pause_ms=stream.spec.idle_pause_ms,
            report=self._report,
            alive=lambda: self._alive(query.is_idle),
            stop=stream.stop,
            lag=lambda lag, unit: stream.lag(stream.lags.put(self.label, lag), unit),
        )
        try:
            query.start(spark, self._failure)
            self._started = time.monotonic()
            query.wait()
        finally:
            query.close()

    def _check_places(self) -> None:
        """TargetMissing when a broker has no such topic, queue or stream to send to."""
        for target in self.group:
            messages = self.stream.world.backend(target.connection).message_target()
            if messages is not None:
                messages.check_place(target.topic or target.queue or "")

    def _report(self, batch: BatchReport) -> None:
        self._is_well()
        self.stream.report(replace(batch, lag=self.stream.lags.put(self.label, batch.lag)))

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
            found = source.failure(stream.reading(declared), said)
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
        place_ids = ids_now(stream.sources, self._readings())
        resume = self._resume() if self.checkpoint.is_new else self._after_other_places(place_ids)
        if resume[0] is not None and self._goes_on_by_checkpoint(resume[0]):
            shutil.rmtree(self.checkpoint.folder, ignore_errors=True)
            make_private_folders(self.checkpoint.folder.parent)
            write_checkpoint(self.checkpoint.folder, [resume[0]])
            resume = (None,)
        sends_on = any(target.sends for target in self.group)
        followed: list[Followed] = []
        for declared, position, spool, shared, ids in zip(
            stream.spec.sources, resume, self.spools, self.told, place_ids, strict=True
        ):
            if spool is not None:
                followed.append(
                    spool.share(self.number, self.plan.columns, self.checkpoint, in_order=sends_on)
                )
            else:
                reading = stream.reading(declared, position)
                followed.append(
                    FollowedBySpark(
                        shared,
                        self.number,
                        replace(reading, begun=not self.checkpoint.is_new),
                        left=self._left_out(len(followed)),
                        in_order=sends_on,
                        place_ids=ids,
                    )
                )
        return followed

    def _after_other_places(self, place_ids: Sequence[Mapping[str, str]]) -> tuple[str | None, ...]:
        """When other topics are asked for than the checkpoint has, or one was created again: leave it.

        What is the same as before then goes on where it stood.
        """
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
        ids = ids_before(stream.sources, self.checkpoint, remembered)
        replaced = replaced_places(stream.sources, self._readings(), ids, place_ids)
        if not replaced and all(
            not isinstance(source, SparkStream)
            or known is None
            or source.goes_on(known, told, stream.reading(declared))
            for source, declared, known, told in zip(
                stream.sources, stream.spec.sources, planned, remembered, strict=True
            )
        ):
            return (None,) * len(stream.sources)
        if not any(remembered):
            done = self.checkpoint.last_committed()
            remembered = self.checkpoint.positions(done) if done is not None else remembered
        remembered = with_ids(stream.sources, remembered, ids)
        if replaced:
            return self._read_replaced_from_the_beginning(replaced, remembered)
        if len(set(self._positions())) > 1:
            raise Unsupported(
                "source_query asks for other topics than before, and the targets are not equally far",
                state="nothing was read",
                next_step="run it once with the topics as they were, until all targets have the same; "
                "then change them",
            )
        self.checkpoint.put_aside()
        stream.note("source_query asks for other topics than before: each goes on where it stood")
        return remembered

    def _read_replaced_from_the_beginning(
        self, replaced: Sequence[str], remembered: tuple[str | None, ...]
    ) -> tuple[str | None, ...]:
        self.checkpoint.put_aside()
        said = f"{'; '.join(replaced)}: it is read from its beginning, as fail_on_data_loss=False allows"
        _log.warning("stream %r: %s", self.stream.spec.name, said)
        self.stream.note(said)
        if len(set(self._positions())) > 1:
            self.stream.note(
                "the targets are not equally far: what some of them already hold of other topics may come to "
                "them again"
            )
        return remembered

    def _readings(self) -> list[Reading]:
        return [self.stream.reading(declared) for declared in self.stream.spec.sources]

    def _left_out(self, place: int) -> str | None:
        """Of what the ledger remembers of a source, that which is not asked for now."""
        source, reading = self.stream.sources[place], self.stream.reading(self.stream.spec.sources[place])
        if not isinstance(source, SparkStream):
            return None
        known = [separate(each, len(self.stream.sources))[place] for each in self._positions() if each]
        left = [source.left_out(position, reading) for position in known if position is not None]
        found = [position for position in left if position is not None]
        return least(found) if found else None

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
            return self._with_what_it_had(plan)
        stream = self.stream
        assert plan.columns is not None
        own = replace(stream.spec, targets=self.group)
        views = stream.lookups.views()
        targets = plan_targets(own, stream.world, plan.columns, views, plan.columns_by)
        return self._with_what_it_had(replace(plan, targets=targets))

    def _with_what_it_had(self, plan: StreamPlan) -> StreamPlan:
        """A table that is gone would begin in the middle of the stream: that is refused."""
        for target in plan.targets:
            creates = any(change.action == "create_table" for change in target.changes.changes)
            if creates and self.position(target.target) is not None:
                raise TargetFailed(
                    f"{target.table.label} is gone, and this stream has loaded it before: it would begin in "
                    "the middle",
                    state="nothing was loaded",
                    next_step="bring the table back, or load everything that the source still has by another "
                    "name= of the stream",
                )
        return plan

    def _renewed(self, loader: BatchLoader, incoming: Incoming) -> BatchLoader:
        """Planned again, with the registry's newest schema, when a batch is of one that is newer."""
        if loader.schemas is None or not loader.schemas.bring_more(incoming):
            return loader
        stream = self.stream
        stream.note("the schema registry has a newer schema, and messages of it: planning again")
        plan = self._planned(stream.plan_without_targets())
        stream.note(str(plan))
        renewed = self._loader(plan, loader.schemas)
        for sink in loader.sinks:
            sink.close()
        self.plan = replace(plan, targets=())
        return renewed

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
            self.stream.note,
        )

    def _loader(self, plan: StreamPlan, judged: KnownSchemas | None = None) -> BatchLoader:
        """``judged`` are the schemas that the plan before had, and that need not be looked at again."""
        stream = self.stream
        schemas = _schemas(plan, judged)
        sinks = [self._sink(target) for target in plan.targets if target.target in self.group]
        assert plan.columns is not None
        fused = stream.spec.transform_sql is None and len(sinks) == 1 and isinstance(sinks[0], TableSink)
        # decoded for one table alone, its own columns say what may not be null
        columns = sinks[0].plan.table.columns if fused and sinks[0].plan.projection is None else plan.columns
        columns = _as_declared(columns, stream.spec.columns)
        decoders = None if None in plan.payloads else _decoders(plan.payloads, columns, stream.sources)
        plan = replace(plan, columns=columns)
        return BatchLoader(
            plan, sinks, decoders, stream.world, stream.letters, stream.lookups.views, stream.note, schemas
        )

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


def _schemas(plan: StreamPlan, judged: KnownSchemas | None) -> KnownSchemas | None:
    """The schemas that a plan was made with, when it takes its columns from a registry."""
    if plan.columns_by != REGISTERED or plan.payloads[0] is None or plan.columns is None:
        return None
    return KnownSchemas(plan.payloads[0], plan.columns, judged)


def _as_declared(columns: Sequence[ColumnSpec], declared: TableSpec | None) -> tuple[ColumnSpec, ...]:
    """The columns as ``source_columns=`` declares them: a table may hold more, nulls or longer texts."""
    said = {c.name: c for c in declared.columns} if declared is not None else {}
    return tuple(
        replace(said[c.name], nullable=c.nullable and said[c.name].nullable) if c.name in said else c
        for c in columns
    )


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
