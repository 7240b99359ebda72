"""The rows that gates set aside: counted, shown, purged, and loaded again by a replay.

A replay takes the locks of a run, and loads each target's rows in the transaction that removes them from
quarantine. What fails again goes back there.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from ematix_flow.backends.base import Load, LoadPlan, QuarantinedRows, QuarantineFilter
from ematix_flow.backends.gated_target import QuarantineCount
from ematix_flow.engine.connections import Connections, StartSpark
from ematix_flow.engine.planning.gates import SKIP_VARIABLE, are_checks_skipped
from ematix_flow.engine.planning.quarantine_plans import (
    QuarantinePlace,
    as_replay,
    plan_replay,
    quarantine_places,
    target_of,
)
from ematix_flow.errors import Unsupported, UsageError, did_you_mean
from ematix_flow.plan.results import ResultStatus, RunResult, TargetResult
from ematix_flow.run.pipeline import open_connections
from ematix_flow.run.recording import record_command
from ematix_flow.spec.pipelines import PipelineSpec
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.state.times import utc_now


@dataclass(frozen=True)
class QuarantineChoice:
    """Which rows of a pipeline: of one rule, of one batch (the start of its id), of one target, or all.

    ``table`` is the quarantine table if it is not the one that the pipeline declares.
    """

    rule: str | None = None
    batch: str | None = None
    target: str | None = None
    table: str | None = None


@dataclass(frozen=True)
class ChosenRows:
    """The chosen rows of one target, and how many there are."""

    place: QuarantinePlace
    filter: QuarantineFilter
    rows: int

    @property
    def quarantined(self) -> QuarantinedRows:
        return QuarantinedRows(self.place.table, self.filter)


class Quarantine:
    """The quarantine tables of one pipeline or stream. ``spark`` starts Spark for targets that need it."""

    def __init__(
        self, spec: PipelineSpec | StreamSpec, spark: StartSpark, choice: QuarantineChoice | None = None
    ) -> None:
        self.spec, self.choice = spec, choice or QuarantineChoice()
        if spec.expectations.to_dead_letters and self.choice.table is None:
            self._refuse_dead_letters()
        self.connections = open_connections(spark)
        self.places = [
            place
            for place in quarantine_places(spec, self.choice.table)
            if self.choice.target in (None, place.label)
        ]
        if not self.places:
            self._refuse_places()

    def _refuse_dead_letters(self) -> None:
        raise UsageError(
            f"{self.spec.name!r} sets failing rows aside as dead letters, not in a table",
            where=self.spec.where,
            next_step=f"flow dlq list --pipeline {self.spec.name}; --quarantine-table names a table that an "
            "earlier declaration has filled",
        )

    def _refuse_places(self) -> None:
        known = [place.label for place in quarantine_places(self.spec)]
        if known and self.choice.target is not None:
            raise UsageError(
                f"{self.spec.name!r} has no target {self.choice.target!r}."
                f"{did_you_mean(self.choice.target, known)}",
                next_step=f"give one of: {', '.join(known)}",
            )
        raise Unsupported(
            f"{self.spec.name!r} loads no table, so that it has no quarantine table", where=self.spec.where
        )

    def counts(self) -> list[tuple[QuarantinePlace, QuarantineCount]]:
        """The rows of each target by rule and batch."""
        return [
            (place, count)
            for place in self.places
            for count in target_of(place, self.connections).count_quarantined(place.table, self.spec.name)
        ]

    def choose(self) -> list[ChosenRows]:
        """The chosen rows of each target that has some.

        Raises UsageError if a rule or batch is named that has none.
        """
        counts = self.counts()
        rule, batch = self.choice.rule, self._resolve_batch([count for _, count in counts])
        found: list[ChosenRows] = []
        for place in self.places:
            rows = sum(
                count.rows
                for at, count in counts
                if at == place and rule in (None, count.rule) and batch in (None, count.batch)
            )
            if rows:
                found.append(ChosenRows(place, QuarantineFilter(self.spec.name, rule, batch), rows))
        if not found and (rule is not None or batch is not None):
            self._refuse_choice([count for _, count in counts])
        return found

    def _resolve_batch(self, counts: Sequence[QuarantineCount]) -> str | None:
        """The whole id of the chosen batch, of which the first characters are enough."""
        given = self.choice.batch
        if given is None:
            return None
        matching = sorted({count.batch for count in counts if count.batch.startswith(given)})
        if len(matching) > 1 and given not in matching:
            raise UsageError(
                f"{given!r} is the start of {len(matching)} batches: {', '.join(matching)}",
                next_step="give more of the id",
            )
        if not matching:
            self._refuse_choice(counts)
        return matching[0]

    def _refuse_choice(self, counts: Sequence[QuarantineCount]) -> NoReturn:
        choice = self.choice
        given = " and ".join(
            f"{what} {value!r}"
            for what, value in (("rule", choice.rule), ("batch", choice.batch))
            if value is not None
        )
        rules = dict.fromkeys(count.rule for count in counts)
        hint = did_you_mean(choice.rule, rules) if choice.rule is not None else ""
        raise UsageError(
            f"no row of {self.spec.name!r} is in quarantine under {given}.{hint}",
            next_step=f"flow quarantine list {self.spec.name}  shows the rules and batches with rows",
        )

    def show(self, limit: int, offset: int) -> tuple[list[tuple[QuarantinePlace, Mapping[str, Any]]], int]:
        """At most ``limit`` of the chosen rows, oldest first within a target, and how many there are."""
        chosen = self.choose()
        shown: list[tuple[QuarantinePlace, Mapping[str, Any]]] = []
        skipped = offset
        for each in chosen:
            if skipped >= each.rows:
                skipped -= each.rows
                continue
            target = target_of(each.place, self.connections)
            found = target.read_quarantined(each.quarantined, limit - len(shown), skipped)
            shown += [(each.place, row) for row in found]
            skipped = 0
            if len(shown) >= limit:
                break
        return shown, sum(each.rows for each in chosen)

    def purge(self, chosen: Sequence[ChosenRows]) -> int:
        """Delete the rows. Returns how many were deleted.

        Raises TargetFailed if a database no longer has as many of them as were counted.
        """
        return sum(
            target_of(each.place, self.connections).purge_quarantined(
                replace(each.quarantined, counted=each.rows)
            )
            for each in chosen
        )

    def replay(self, run_log: str | None = None, note: Callable[[str], None] = lambda _: None) -> RunResult:
        """Load the chosen rows again, as one recorded run. Rows that fail again go back to quarantine."""
        if are_checks_skipped():
            raise UsageError(
                f"{SKIP_VARIABLE} is set, so that a replay would load every quarantined row unchecked",
                state="nothing was changed",
                next_step=f"unset {SKIP_VARIABLE}",
            )
        spec, chosen = self.spec, self.choose()
        labels = ", ".join(place.label for place in self.places)
        run_id = uuid.uuid4()
        with record_command(spec.name, labels, "replay", run_log, spec.where, str(run_id)) as recording:
            began = utc_now()
            results = []
            with ExitStack() as locks:
                for each in chosen:
                    target = target_of(each.place, self.connections)
                    locks.enter_context(target.lock(spec.name, each.place.label, run_id))
                plan_of = _planner(spec, self.connections) if chosen else None
                for each in chosen:
                    assert plan_of is not None
                    results.append(self._replay_target(each, plan_of(each.place), run_id))
                    note(_describe(results[-1]))
            status: ResultStatus = "succeeded" if results else "skipped"
            seconds = (utc_now() - began).total_seconds()
            result = RunResult(spec.name, str(run_id), status, tuple(results), seconds)
            recording.finish(status, rows=result.rows, metrics=result.to_json())
        return result

    def _replay_target(self, chosen: ChosenRows, plan: LoadPlan, run_id: uuid.UUID) -> TargetResult:
        place = chosen.place
        target = target_of(place, self.connections)
        target.change_table(plan.table, replace(plan.table_plan, changes=()))
        load = Load(
            self.spec.name, place.label, plan, run_id, dt.datetime.now(dt.timezone.utc), f"replay:{run_id}"
        )
        applied = target.apply(load, chosen.quarantined)
        return TargetResult(
            place.label,
            plan.mode,  # type: ignore[arg-type]  # change events have no gate
            "quarantine",
            "succeeded",
            rows=applied.rows,
            expectations=applied.expectations,
        )


def _planner(
    spec: PipelineSpec | StreamSpec, connections: Connections
) -> Callable[[QuarantinePlace], LoadPlan]:
    """A function that plans the replay of a target."""
    if isinstance(spec, PipelineSpec):
        return lambda place: plan_replay(spec, place, connections)
    from ematix_flow.engine.streams.stream_folder import stream_folder_for
    from ematix_flow.engine.streams.stream_runner import build_stream_plan

    plan = build_stream_plan(spec, connections, stream_folder_for(spec))
    planned = {each.target.label: each.load for each in plan.targets}

    def plan_target(place: QuarantinePlace) -> LoadPlan:
        if place.label not in planned:
            raise Unsupported(
                f"the columns of stream {spec.name!r} are known only with its first message, so that its "
                "quarantined rows cannot be loaded",
                where=spec.where,
                state="nothing was changed",
                next_step="declare them with source_columns=",
            )
        return as_replay(planned[place.label], place, connections)

    return plan_target


def _describe(result: TargetResult) -> str:
    loaded = (result.rows_read or 0) - result.rows_quarantined
    return f"{result.target}: {loaded:,} rows loaded, {result.rows_quarantined:,} back in quarantine"
