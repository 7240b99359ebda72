"""How a workflow ends when one of its jobs changes at the same time."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest

from ematix_flow.graph.registry import DeclaredPipeline, Registry
from ematix_flow.schedule.clearing import reopen_slots
from ematix_flow.schedule.restarted_slots import end_restarted_slot
from ematix_flow.schedule.workflows import WorkflowSlots, slot_name
from ematix_flow.spec.pipelines import PipelineSpec, TargetSpec
from ematix_flow.spec.workflows import WorkflowSpec
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.slots.base import Claim, Slot, SlotRecord
from ematix_flow.state.slots.memory import MemorySlotStore

NOON = dt.datetime(2026, 5, 17, 12, tzinfo=dt.timezone.utc)
NIGHTLY = WorkflowSpec("nightly", ("orders",), schedule="0 2 29 2 *")
JOB, WORKFLOW = Slot("orders", NOON), Slot(slot_name("nightly"), NOON)
FAILED = RunRecord("failed", "orders", "db:orders", "append", slot=NOON)


class RacedStore(MemorySlotStore):
    """Lets something happen once, just before a method is called."""

    def __init__(self) -> None:
        super().__init__()
        self.before: str | None = None
        self.happens: Callable[[], object] = lambda: None

    def _happen(self, method: str) -> None:
        if self.before == method:
            self.before = None
            self.happens()

    def claim(self, seen: SlotRecord, holder: str, seconds: float) -> Claim | None:
        self._happen("claim")
        return super().claim(seen, holder, seconds)

    def get_many(self, wanted: Any) -> dict[Slot, SlotRecord]:
        if self._slots[WORKFLOW].status == "claimed":
            self._happen("get_many")
        return super().get_many(wanted)

    def end(self, claim: Claim, *given: Any) -> bool:
        self._happen("end")
        return super().end(claim, *given)


@pytest.fixture
def project() -> Registry:
    registry = Registry()
    spec = PipelineSpec("orders", "project:orders", (TargetSpec("db"),))
    registry.add_pipeline(DeclaredPipeline(spec, lambda: "", None))
    registry.add_workflow(NIGHTLY)
    return registry


def status(store: MemorySlotStore, slot: Slot) -> str:
    record = store.get(slot)
    assert record is not None
    return record.status


def failed_job(before: str) -> RacedStore:
    store = RacedStore()
    store.open([WORKFLOW])
    store.open([JOB], "gave_up", "it failed")
    store.before = before
    return store


@pytest.mark.parametrize("before", ["claim", "get_many", "end"])
def test_a_workflow_that_ends_while_its_job_is_restarted_succeeds(project: Registry, before: str) -> None:
    store = failed_job(before)
    store.happens = lambda: end_restarted_slot(store, project, FAILED, "restart")
    workflows = WorkflowSlots([NIGHTLY], lambda names: {})
    workflows.advance(store)
    assert (store.before, status(store, JOB)) == (None, "succeeded")
    workflows.advance(store)
    assert status(store, WORKFLOW) == "succeeded"


@pytest.mark.parametrize("before", ["claim", "get_many", "end"])
def test_a_workflow_that_ends_while_its_job_is_cleared_waits_for_it(project: Registry, before: str) -> None:
    store = failed_job(before)
    store.happens = lambda: reopen_slots(store, project, store.unsuccessful(["orders"], NOON))
    workflows = WorkflowSlots([NIGHTLY], lambda names: {})
    workflows.advance(store)
    workflows.advance(store)
    assert (status(store, JOB), status(store, WORKFLOW)) == ("waiting", "waiting")
    job = store.get(JOB)
    claim = None if job is None else store.claim(job, "scheduler", 60)
    assert claim is not None and store.end(claim, "succeeded")
    workflows.advance(store)
    assert status(store, WORKFLOW) == "succeeded"
