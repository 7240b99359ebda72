"""From a due slot to its end: claimed, run while the claim is kept, ended or tried again by policy.

Knows neither what a run does nor where: it is given both. Whatever dies here dies without harm. A claim
that nobody keeps expires and is taken over; what two runs of one slot load is loaded once, because the
slot names the batch.
"""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass

from ematix_flow.schedule.due import Agenda
from ematix_flow.spec.pipelines import RetryPolicy
from ematix_flow.state.slots import Claim, SlotRecord, SlotStore

LOCKED_SECONDS = 30.0  # until a pipeline that another run holds is tried again
DEATHS = 3  # attempts of a slot that end without a word before it is given up
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ended:
    """What an attempt came to; one that found its pipeline ``locked`` is none."""

    succeeded: bool
    reason: str | None = None
    locked: bool = False


def look(store: SlotStore, agenda: Agenda) -> list[SlotRecord]:
    """Open what has fired, and list what may be claimed now, the oldest first."""
    names = list(agenda.scheduled)
    due = agenda.due(store.last_fires(names), store.now())
    if due.missed:
        store.open(due.missed, "skipped", "missed, and catchup does not ask for it")
    if due.wanted:
        store.open(due.wanted)
    now = store.now()  # later than what was just opened
    return [record for record in store.unended(names) if record.is_due(now)]


def take(
    store: SlotStore, seen: SlotRecord, holder: str, seconds: float, policy: RetryPolicy
) -> Claim | None:
    """Claim a slot. One whose attempts die again and again is given up instead: None."""
    claim = store.claim(seen, holder, seconds)
    if claim is None:
        return None
    died = claim.fence - 1 - claim.failures
    if died >= max(DEATHS, policy.max_attempts):
        store.end(claim, "gave_up", f"{died} attempts ended without a word")
        return None
    return claim


def conclude(
    store: SlotStore, claim: Claim, ended: Ended, policy: RetryPolicy, chance: random.Random
) -> str | None:
    """Say how an attempt ended: ``succeeded``, ``waiting`` for the next, ``gave_up``; None if too late."""
    if ended.succeeded:
        return "succeeded" if store.end(claim, "succeeded", ended.reason) else None
    if ended.locked:
        return "waiting" if store.wait(claim, LOCKED_SECONDS, ended.reason, failed=False) else None
    failures = claim.failures + 1
    if failures >= policy.max_attempts:
        return "gave_up" if store.end(claim, "gave_up", ended.reason) else None
    return "waiting" if store.wait(claim, pause(policy, failures, chance), ended.reason) else None


def pause(policy: RetryPolicy, failures: int, chance: random.Random) -> float:
    """Seconds before the next attempt, spread by a tenth so that many do not come back at once."""
    return policy.delay(failures) * chance.uniform(1.0, 1.1)
